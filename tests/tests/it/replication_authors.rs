//! The author of a tenant's rule is checked when the spec is written. Also grants that change while
//! copies depend on them.

use anyhow::{Result, ensure};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mimeo_api::{Replication, ReplicationGrant};
use mimeo_tests::author::{grant, secrets};
use mimeo_tests::scenario::{SOON, annotation, merge, of, wait_gone};
use mimeo_tests::tenant::{Tenant, consent, copying, has};
use mimeo_tests::{eventually, unique};
use serde_json::{Value, json};

use crate::stages::SHIPPED_QUICK as STAGE;

const AUTHOR: &str = "mimeo.dev/author";

/// Returns a spec that copies the Secret `db` within its namespace, under this name.
fn beside(home: &str, name: &str) -> Value {
    let mut spec = copying(None, "db", &[home]);
    spec["targets"][0]["copyName"] = json!(name);
    spec
}

/// Returns another user of the same namespace, with permissions only on its rules.
async fn colleague(tenant: &Tenant<'_>) -> Result<(String, Client)> {
    let user = tenant
        .scene
        .setting
        .control_plane
        .user(&unique(&tenant.scene.tag), &[])?;
    let rights = json!({"apiGroups": ["mimeo.dev"], "resources": ["replications"], "verbs": ["*"]});
    grant(
        tenant.scene,
        "User",
        user.name(),
        Some(&tenant.home),
        &rights,
    )
    .await?;
    let client = user.client().await?;
    let rules: Api<Replication> = of(&client, &tenant.home);
    eventually(SOON, "a colleague's rights", || async {
        Ok(Some(rules.list(&ListParams::default()).await?))
    })
    .await?;
    Ok((user.name().to_owned(), client))
}

#[tokio::test]
async fn the_author_of_a_tenants_rule_is_the_user_who_wrote_its_spec() -> Result<()> {
    let scene = STAGE.scene("author").await?;
    let tenant = Tenant::editor(&scene).await?;
    tenant.makes("db", "one").await?;
    let (name, client) = colleague(&tenant).await?;
    let rules: Api<Replication> = of(&client, &tenant.home);
    let refused = |result: kube::Result<Replication>| match result {
        Err(kube::Error::Api(status)) if status.message.contains("may not get secrets/db") => {
            Ok(())
        }
        other => anyhow::bail!("{other:?}"),
    };
    let mut forged = tenant.object("replications", "r", &beside(&tenant.home, "copy"));
    forged["metadata"]["annotations"] = json!({AUTHOR: tenant.name(), "note": "x"});
    // The colleague may not read the Secret. The name in the annotation makes no difference.
    refused(
        rules
            .create(
                &PostParams::default(),
                &serde_json::from_value(forged.clone())?,
            )
            .await,
    )?;
    let path = format!("namespaces/{}/replications", tenant.home);
    mimeo_tests::scenario::create(&tenant.client, &path, &forged).await?;
    scene.wait_secret(&tenant.home, "copy", has("one")).await?;
    let first = tenant.rules().get("r").await?;
    assert_eq!(
        [AUTHOR, "note"].map(|key| annotation(&first, key)),
        [Some(tenant.name()), Some("x")]
    );

    // A change of the metadata does not change the author. A change of the spec needs the
    // permissions that the spec uses.
    for annotations in [
        json!({AUTHOR: null}),
        json!({AUTHOR: name}),
        json!({AUTHOR: "me"}),
    ] {
        let touched = merge(
            &rules,
            "r",
            json!({"metadata": {"annotations": annotations}}),
        )
        .await?;
        assert_eq!(
            annotation(&touched, AUTHOR),
            Some(tenant.name()),
            "{annotations}"
        );
    }
    let another = json!({"spec": beside(&tenant.home, "other")});
    refused(
        rules
            .patch("r", &PatchParams::default(), &Patch::Merge(another.clone()))
            .await,
    )?;
    merge(&rules, "r", json!({"spec": {"suspend": true}})).await?;
    refused(
        rules
            .patch(
                "r",
                &PatchParams::default(),
                &Patch::Merge(json!({"spec": {"suspend": false}})),
            )
            .await,
    )?;
    let rights = secrets(&["get", "create", "update", "delete"]);
    grant(&scene, "User", &name, Some(&tenant.home), &rights).await?;
    let mut another = another;
    another["spec"]["suspend"] = json!(false);
    let changed = eventually(SOON, "the user's permissions", || async {
        Ok(Some(merge(&rules, "r", another.clone()).await?))
    })
    .await?;
    assert_eq!(annotation(&changed, AUTHOR), Some(&*name));
    scene.wait_secret(&tenant.home, "other", has("one")).await?;
    wait_gone(scene.secrets(&tenant.home), "copy").await?;
    ensure!(scene.secrets(&tenant.home).get_opt("db").await?.is_some());
    Ok(())
}

/// The grant is updated. Mimeo deletes copies that it no longer covers, and creates them again once
/// it covers them again.
#[tokio::test]
async fn a_grant_that_is_narrowed_or_widened_takes_effect_on_the_copies_that_there_are()
-> Result<()> {
    let scene = STAGE.scene("width").await?;
    let (owner, taker, other) = (
        Tenant::editor(&scene).await?,
        Tenant::editor(&scene).await?,
        Tenant::editor(&scene).await?,
    );
    for name in ["db", "web"] {
        owner.makes(name, "one").await?;
    }
    owner
        .writes("replicationgrants", "g", &consent("Read", &taker.home, &[]))
        .await?;
    for tenant in [&taker, &other] {
        for name in ["db", "web"] {
            tenant
                .writes("replications", name, &copying(Some(&owner.home), name, &[]))
                .await?;
        }
    }
    let grants: Api<ReplicationGrant> = of(&owner.client, &owner.home);
    let update = async |spec: Value| -> Result<()> {
        let patch = json!([{"op": "replace", "path": "/spec", "value": spec}]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
        grants.patch("g", &PatchParams::default(), &patch).await?;
        Ok(())
    };
    // Checks which copies each tenant has, and that each missing copy has a reason.
    let holds = async |whose: [(&Tenant<'_>, [bool; 2]); 2]| -> Result<()> {
        for (tenant, granted) in whose {
            for (name, granted) in ["db", "web"].into_iter().zip(granted) {
                if granted {
                    scene.wait_secret(&tenant.home, name, has("one")).await?;
                    tenant.status(name, "Ready", "Synced").await?;
                } else {
                    wait_gone(scene.secrets(&tenant.home), name).await?;
                    tenant.status(name, "Authorized", "NotGranted").await?;
                }
            }
        }
        Ok(())
    };
    holds([(&taker, [true, true]), (&other, [false, false])]).await?;
    update(consent("Read", &taker.home, &["d*"])).await?;
    holds([(&taker, [true, false]), (&other, [false, false])]).await?;
    update(consent("Read", &other.home, &["web"])).await?;
    holds([(&taker, [false, false]), (&other, [false, true])]).await?;
    let mut both = consent("Read", &taker.home, &["db", "web"]);
    both["grantees"] = json!([{"namespaces": [taker.home]}, {"namespaces": [other.home]}]);
    update(both).await?;
    holds([(&taker, [true, true]), (&other, [true, true])]).await?;
    // A grant of write access does not include read access.
    update(consent("Write", &taker.home, &["db", "web"])).await?;
    holds([(&taker, [false, false]), (&other, [false, false])]).await?;
    update(consent("Read", &taker.home, &[])).await?;
    holds([(&taker, [true, true]), (&other, [false, false])]).await?;

    // A user may write grants but cannot read the objects. The user may not change a grant unless
    // the changed grant gives nothing but what the user has.
    let user = scene.setting.control_plane.user(&unique(&scene.tag), &[])?;
    let rights =
        json!({"apiGroups": ["mimeo.dev"], "resources": ["replicationgrants"], "verbs": ["*"]});
    grant(&scene, "User", user.name(), Some(&owner.home), &rights).await?;
    let his: Api<ReplicationGrant> = of(&user.client().await?, &owner.home);
    eventually(SOON, "the user's permissions", || async {
        Ok(Some(his.get("g").await?))
    })
    .await?;
    let widened =
        Patch::Merge(json!({"spec": {"grantees": [{"namespaces": [taker.home, other.home]}]}}));
    match his.patch("g", &PatchParams::default(), &widened).await {
        Err(kube::Error::Api(status)) if status.message.contains("may not get secrets") => {}
        outcome => anyhow::bail!("{outcome:?}"),
    }
    holds([(&taker, [true, true]), (&other, [false, false])]).await?;
    let names = |names: &[&str]| {
        let to = json!([{"apiVersion": "v1", "kind": "Secret", "names": names}]);
        Patch::Merge(json!({"spec": {"objects": to}}))
    };
    match his
        .patch("g", &PatchParams::default(), &names(&["db"]))
        .await
    {
        Err(kube::Error::Api(status)) if status.message.contains("may not get secrets/db") => {}
        outcome => anyhow::bail!("{outcome:?}"),
    }
    holds([(&taker, [true, true]), (&other, [false, false])]).await?;
    let db = json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["db"], "verbs": ["get"]});
    grant(&scene, "User", user.name(), Some(&owner.home), &db).await?;
    eventually(SOON, "the user's permission", || async {
        his.patch("g", &PatchParams::default(), &names(&["db"]))
            .await?;
        Ok(Some(()))
    })
    .await?;
    holds([(&taker, [true, false]), (&other, [false, false])]).await
}
