//! Rules of tenants and grants between namespaces, tested by users with limited permissions,
//! including hostile ones.

use anyhow::{Result, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use mimeo_api::{ClusterReplicationStatus, Replication};
use mimeo_tests::author::secrets;
use mimeo_tests::scenario::{
    SOON, annotation, delete, kubectl, label, merge, of, relabel, rule, wait_gone,
};
use mimeo_tests::tenant::{Tenant, consent, copying, has};
use mimeo_tests::{create_namespace, eventually};
use serde_json::{Value, json};

use crate::stages::SHIPPED as STAGE;

/// Returns a spec that copies each Secret with the label `copy` from the namespace `from` to the
/// rule's own. Without `from` it selects in the rule's own namespace. The copies are named
/// `copy-of-` and the source's name.
fn selecting(from: Option<&str>, home: &str) -> Value {
    let labels = json!({"matchLabels": {"copy": "yes"}});
    let mut spec = json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "selector": labels}],
        "targets": [{"namespaces": [home], "copyName": "copy-of-$(source.name)"}],
        "retentionPolicy": {"sourceGracePeriodSeconds": 0},
    });
    if let Some(from) = from {
        spec["sources"][0]["namespace"] = json!(from);
    }
    spec
}

#[tokio::test]
async fn a_tenant_copies_at_home_what_he_may_read_and_write_there() -> Result<()> {
    let scene = STAGE.scene("at-home").await?;
    let tenant = Tenant::new(&scene).await?;
    tenant.secret("db", "one").await?;
    let mut spec = copying(None, "db", &[&tenant.home]);
    spec["targets"][0]["copyName"] = json!("db-copy");
    tenant
        .is_refused("replications", "r", &spec, "may not get secrets/db")
        .await?;
    tenant.may(&secrets(&["get"])).await?;
    tenant
        .is_refused("replications", "r", &spec, "may not create secrets")
        .await?;
    tenant
        .may(&secrets(&["create", "update", "delete"]))
        .await?;
    tenant.writes("replications", "r", &spec).await?;

    let copy = scene
        .wait_secret(&tenant.home, "db-copy", has("one"))
        .await?;
    assert_eq!(
        label(&copy, "mimeo.dev/replication"),
        Some(&*format!("{}.r", tenant.home))
    );
    assert_eq!(
        annotation(&copy, "mimeo.dev/rule"),
        Some(&*format!("Replication/{}/r", tenant.home))
    );
    let status = tenant.status("r", "Ready", "Synced").await?;
    assert_eq!(
        status.copies.map(|copies| (copies.desired, copies.synced)),
        Some((1, 1))
    );

    // Mimeo deletes the copies of a deleted rule at once.
    let rules: Api<Replication> = of(&tenant.client, &tenant.home);
    rules.delete("r", &DeleteParams::default()).await?;
    wait_gone(scene.secrets(&tenant.home), "db-copy").await
}

/// A Replication gets a copy from another namespace only with the consent of both sides. Before
/// that its author learns nothing of the other namespace, not even whether it exists.
#[tokio::test]
async fn another_namespaces_secret_takes_its_owners_consent() -> Result<()> {
    let scene = STAGE.scene("consent").await?;
    let tenant = Tenant::new(&scene).await?;
    tenant
        .may(&secrets(&["get", "create", "update", "delete"]))
        .await?;
    let owner = Tenant::new(&scene).await?;
    owner.secret("db", "one").await?;
    tenant
        .writes(
            "replications",
            "pull",
            &copying(Some(&owner.home), "db", &[]),
        )
        .await?;
    let probe = |namespace: &str, source: &str| {
        let mut spec = copying(Some(namespace), source, &[namespace]);
        spec["targets"][0]["copyName"] = json!("probe");
        spec
    };
    tenant
        .writes("replications", "there", &probe(&owner.home, "db"))
        .await?;
    tenant
        .writes("replications", "empty", &probe(&owner.home, "no"))
        .await?;
    let nowhere = format!("{}-x", owner.home);
    tenant
        .writes("replications", "nowhere", &probe(&nowhere, "db"))
        .await?;

    let told = async |rule: &str, namespace: &str, source: &str| -> Result<String> {
        let status = tenant.status(rule, "Authorized", "NotGranted").await?;
        let ClusterReplicationStatus {
            conditions,
            copies,
            failures,
            sources,
            ..
        } = status;
        let conditions: Vec<_> = conditions
            .iter()
            .map(|one| (&one.type_, &one.status, &one.reason, &one.message))
            .collect();
        let told = format!("{conditions:?} {copies:?} {failures:?} {sources:?}");
        Ok(told
            .replace(namespace, "NAMESPACE")
            .replace(&format!("Secret {source}"), "Secret S")
            .replace(&format!("name: \"{source}\""), "name: S"))
    };
    let there = told("there", &owner.home, "db").await?;
    assert_eq!(told("empty", &owner.home, "no").await?, there);
    assert_eq!(told("nowhere", &nowhere, "db").await?, there);

    // The owner cannot grant access without having the permission.
    let read = consent("Read", &tenant.home, &["db"]);
    owner
        .is_refused("replicationgrants", "g", &read, "may not get secrets/db")
        .await?;
    let one = json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["db"], "verbs": ["get"]});
    owner.may(&one).await?;
    owner
        .is_refused(
            "replicationgrants",
            "g",
            &consent("Read", &tenant.home, &[]),
            "may not get secrets in",
        )
        .await?;
    owner
        .is_refused(
            "replicationgrants",
            "g",
            &consent("Write", &tenant.home, &["db"]),
            "may not create secrets",
        )
        .await?;
    owner.writes("replicationgrants", "g", &read).await?;
    scene.wait_secret(&tenant.home, "db", has("one")).await?;
    tenant.status("pull", "Ready", "Synced").await?;

    // The owner withdraws the grant.
    delete(
        &of::<mimeo_api::ReplicationGrant>(&owner.client, &owner.home),
        "g",
    )
    .await?;
    wait_gone(scene.secrets(&tenant.home), "db").await?;
    tenant.status("pull", "Authorized", "NotGranted").await?;
    Ok(())
}

/// A grant can name its grantees by namespace labels. Only users who may change namespaces set
/// these labels, so a tenant cannot grant itself access.
#[tokio::test]
async fn consent_by_label_comes_and_goes_with_the_label() -> Result<()> {
    let scene = STAGE.scene("by-label").await?;
    let (owner, taker) = (Tenant::editor(&scene).await?, Tenant::editor(&scene).await?);
    owner.secret("db", "one").await?;
    let label = json!({"matchLabels": {"trusted-by": owner.home}});
    let from = json!([{"namespaceSelector": label}]);
    let to = json!([{"apiVersion": "v1", "kind": "Secret", "names": ["db"]}]);
    owner
        .writes(
            "replicationgrants",
            "g",
            &json!({"access": "Read", "grantees": from, "objects": to}),
        )
        .await?;
    taker
        .writes("replications", "r", &copying(Some(&owner.home), "db", &[]))
        .await?;
    taker.status("r", "Authorized", "NotGranted").await?;

    let labels = json!({"metadata": {"labels": {"trusted-by": owner.home}}});
    match merge(
        &Api::<Namespace>::all(taker.client.clone()),
        &taker.home,
        labels,
    )
    .await
    {
        Err(error) if format!("{error:#}").contains("forbidden") => {}
        answer => bail!("a tenant labels its own namespace: {:?}", answer.map(drop)),
    }
    relabel(&scene.client, &taker.home, "trusted-by", Some(&owner.home)).await?;
    scene.wait_secret(&taker.home, "db", has("one")).await?;
    taker.status("r", "Ready", "Synced").await?;
    relabel(&scene.client, &taker.home, "trusted-by", None).await?;
    wait_gone(scene.secrets(&taker.home), "db").await?;
    taker.status("r", "Authorized", "NotGranted").await?;
    Ok(())
}

/// A grant can name its grantees by a pattern. The pattern must match the whole name: a longer name
/// that contains a granted one gets no access.
#[tokio::test]
async fn consent_by_pattern_is_for_those_whose_whole_name_it_is() -> Result<()> {
    let scene = STAGE.scene("by-pattern").await?;
    let (owner, taker) = (Tenant::editor(&scene).await?, Tenant::editor(&scene).await?);
    let longer = format!("{}-x", taker.home);
    create_namespace(&scene.client, &longer, &[]).await?;
    let longer = Tenant::editor_of(&scene, &longer).await?;
    owner.secret("db", "one").await?;
    let to = json!([{"apiVersion": "v1", "kind": "Secret", "names": ["db"]}]);
    let granting = |pattern: &str| json!({"access": "Read", "grantees": [{"namespacePattern": pattern}], "objects": to});
    let taker_alone = format!("({}|nobody)", taker.home.replace('-', "[-]"));
    owner
        .writes("replicationgrants", "g", &granting(&taker_alone))
        .await?;
    for tenant in [&taker, &longer] {
        tenant
            .writes("replications", "r", &copying(Some(&owner.home), "db", &[]))
            .await?;
    }
    scene.wait_secret(&taker.home, "db", has("one")).await?;
    longer.status("r", "Authorized", "NotGranted").await?;

    // A change of the pattern changes the grantees.
    let grants: Api<mimeo_api::ReplicationGrant> = of(&owner.client, &owner.home);
    let longer_alone = format!("{}-.", taker.home);
    merge(&grants, "g", json!({"spec": granting(&longer_alone)})).await?;
    scene.wait_secret(&longer.home, "db", has("one")).await?;
    wait_gone(scene.secrets(&taker.home), "db").await?;
    taker.status("r", "Authorized", "NotGranted").await?;
    Ok(())
}

/// A rule has so many copies that Mimeo would hold a large loss until the rule's author confirms
/// it. The author has no say if a grant is withdrawn.
#[tokio::test]
async fn consent_taken_back_takes_every_copy_with_it() -> Result<()> {
    const COPIES: usize = 25;
    let scene = STAGE.scene("taken-back").await?;
    let owner = Tenant::editor(&scene).await?;
    let taker = Tenant::editor(&scene).await?;
    owner.secret("db", "one").await?;
    owner
        .writes(
            "replicationgrants",
            "g",
            &consent("Read", &taker.home, &["db"]),
        )
        .await?;
    // Timestamps have whole seconds. So the order of two objects from the same second is unknown.
    let home = Api::<Namespace>::all(scene.client.clone())
        .get(&owner.home)
        .await?;
    let created = home
        .metadata
        .creation_timestamp
        .map(|time| time.0.as_second());
    eventually(
        SOON,
        "the second to end in which the namespace was created",
        || async { Ok((Some(Timestamp::now().as_second()) > created).then_some(())) },
    )
    .await?;
    let mut spec = copying(Some(&owner.home), "db", &[]);
    let target = |number| json!({"namespaces": [taker.home], "copyName": format!("db-{number}")});
    spec["targets"] = (0..COPIES).map(target).collect();
    taker.writes("replications", "r", &spec).await?;
    let status = taker.status("r", "Ready", "Synced").await?;
    assert_eq!(
        status.copies.map(|copies| copies.synced),
        Some(i32::try_from(COPIES)?)
    );

    delete(
        &of::<mimeo_api::ReplicationGrant>(&owner.client, &owner.home),
        "g",
    )
    .await?;
    for number in 0..COPIES {
        wait_gone(scene.secrets(&taker.home), &format!("db-{number}")).await?;
    }
    let status = taker.status("r", "Authorized", "NotGranted").await?;
    assert!(
        status
            .conditions
            .iter()
            .all(|condition| condition.reason != "DeletionHeld"),
        "{:?}",
        status.conditions
    );
    Ok(())
}

#[tokio::test]
async fn what_a_tenant_selects_at_home_is_found_now_and_later() -> Result<()> {
    let scene = STAGE.scene("select-home").await?;
    let tenant = Tenant::new(&scene).await?;
    let spec = selecting(None, &tenant.home);
    tenant
        .may(&secrets(&["get", "create", "update", "delete"]))
        .await?;
    tenant
        .is_refused(
            "replications",
            "r",
            &spec,
            "may not list secrets in namespace",
        )
        .await?;
    tenant.may(&secrets(&["list"])).await?;
    tenant.writes("replications", "r", &spec).await?;
    tenant.status("r", "SourcesFound", "SourceNotFound").await?;
    tenant.labelled("a", "one").await?;
    scene
        .wait_secret(&tenant.home, "copy-of-a", has("one"))
        .await?;
    tenant.labelled("b", "two").await?;
    scene
        .wait_secret(&tenant.home, "copy-of-b", has("two"))
        .await?;
    eventually(SOON, "two copies in the status", || async {
        let status = tenant.status("r", "Ready", "Synced").await?;
        let counts = status.copies.map(|copies| (copies.desired, copies.synced));
        Ok((counts == Some((2, 2))).then_some(()))
    })
    .await?;

    delete(&scene.secrets(&tenant.home), "b").await?;
    wait_gone(scene.secrets(&tenant.home), "copy-of-b").await?;
    merge(
        &scene.secrets(&tenant.home),
        "a",
        json!({"metadata": {"labels": {"copy": null}}}),
    )
    .await?;
    wait_gone(scene.secrets(&tenant.home), "copy-of-a").await
}

/// A selector needs consent to all objects of the kind. Before that the author learns neither which
/// sources exist, nor their number, nor whether the namespace exists. Mimeo does not list them
/// either.
#[tokio::test]
async fn a_selector_in_another_namespace_takes_a_grant_that_limits_no_names() -> Result<()> {
    let scene = STAGE.scene("select-abroad").await?;
    let tenant = Tenant::new(&scene).await?;
    tenant
        .may(&secrets(&["get", "create", "update", "delete"]))
        .await?;
    let owner = Tenant::new(&scene).await?;
    owner.may(&secrets(&["get"])).await?;
    let empty = scene.namespace().await?;
    let nowhere = format!("{empty}-x");
    let mark = scene.setting.control_plane.audit_mark().await?;
    owner.labelled("db", "one").await?;
    for (rule, namespace) in [
        ("there", &owner.home),
        ("empty", &empty),
        ("nowhere", &nowhere),
    ] {
        tenant
            .writes(
                "replications",
                rule,
                &selecting(Some(namespace), &tenant.home),
            )
            .await?;
    }
    let nothing = tenant.told("nowhere", &nowhere).await?;
    ensure!(
        nothing.contains("Secret by a selector in namespace NAMESPACE is not granted"),
        "{nothing}"
    );
    assert_eq!(tenant.told("empty", &empty).await?, nothing);
    assert_eq!(tenant.told("there", &owner.home).await?, nothing);
    // A grant with names is not consent to all objects, not even with patterns.
    owner
        .writes(
            "replicationgrants",
            "some",
            &consent("Read", &tenant.home, &["db", "d*"]),
        )
        .await?;
    let named = copying(Some(&owner.home), "db", &[]);
    tenant.writes("replications", "named", &named).await?;
    scene.wait_secret(&tenant.home, "db", has("one")).await?;
    assert_eq!(tenant.told("there", &owner.home).await?, nothing);
    let looked = scene.setting.control_plane.audit_since(&mark).await?;
    let looked = looked
        .iter()
        .filter(|event| scene.setting.is_ours(event) && event.resource == "secrets");
    let looked: Vec<_> = looked
        .filter(|event| event.namespace == owner.home && event.verb != "get")
        .collect();
    ensure!(
        looked
            .iter()
            .all(|event| event.uri.contains("fieldSelector=metadata.name")),
        "{looked:?}"
    );

    // To grant a selector, the owner needs the permission to list.
    let any = consent("Read", &tenant.home, &[]);
    owner
        .is_refused(
            "replicationgrants",
            "any",
            &any,
            "may not list secrets in namespace",
        )
        .await?;
    owner.may(&secrets(&["list"])).await?;
    owner.writes("replicationgrants", "any", &any).await?;
    scene
        .wait_secret(&tenant.home, "copy-of-db", has("one"))
        .await?;
    owner.labelled("later", "two").await?;
    scene
        .wait_secret(&tenant.home, "copy-of-later", has("two"))
        .await?;
    eventually(SOON, "both sources to be told", || async {
        let sources = tenant.status("there", "Ready", "Synced").await?.sources;
        ensure!(sources.len() == 2, "{sources:?}");
        Ok(Some(()))
    })
    .await?;

    // The owner withdraws the grant.
    delete(
        &of::<mimeo_api::ReplicationGrant>(&owner.client, &owner.home),
        "any",
    )
    .await?;
    for copy in ["copy-of-db", "copy-of-later"] {
        wait_gone(scene.secrets(&tenant.home), copy).await?;
    }
    eventually(SOON, "as little to be told as before", || async {
        let told = tenant.told("there", &owner.home).await?;
        if told == nothing {
            Ok(Some(()))
        } else {
            bail!("{told}")
        }
    })
    .await?;
    scene.wait_secret(&tenant.home, "db", has("one")).await?;
    Ok(())
}

#[tokio::test]
async fn copies_in_another_namespace_take_its_owners_consent() -> Result<()> {
    let scene = STAGE.scene("push").await?;
    let tenant = Tenant::new(&scene).await?;
    tenant.may(&secrets(&["get"])).await?;
    let owner = Tenant::new(&scene).await?;
    owner.may(&secrets(&["create", "update", "delete"])).await?;
    tenant.secret("db", "one").await?;
    tenant
        .writes("replications", "push", &copying(None, "db", &[&owner.home]))
        .await?;
    tenant.status("push", "Authorized", "NotGranted").await?;
    owner
        .writes(
            "replicationgrants",
            "g",
            &consent("Write", &tenant.home, &["db*"]),
        )
        .await?;
    scene.wait_secret(&owner.home, "db", has("one")).await?;
    tenant.status("push", "Ready", "Synced").await?;

    // Rules are deleted with their namespace, and copies with their rules.
    delete(
        &Api::<k8s_openapi::api::core::v1::Namespace>::all(scene.client.clone()),
        &tenant.home,
    )
    .await?;
    wait_gone(scene.secrets(&owner.home), "db").await
}

#[tokio::test]
async fn the_platforms_copy_comes_whatever_a_tenant_did_before() -> Result<()> {
    let scene = STAGE.scene("platform").await?;
    let tenant = Tenant::new(&scene).await?;
    tenant
        .may(&secrets(&["get", "create", "update", "delete"]))
        .await?;
    // The tenant's copy has the name of the platform's copy. Another object of the tenant is the
    // source of its rule, and is in the way of a copy.
    for name in ["own", "second"] {
        eventually(SOON, "the tenant's permission", || async {
            Ok(Some(tenant.makes(name, "his").await?))
        })
        .await?;
    }
    let mut spec = copying(None, "own", &[&tenant.home]);
    spec["targets"][0]["copyName"] = json!("first");
    tenant.writes("replications", "squats", &spec).await?;
    let mut spec = copying(None, "second", &[&tenant.home]);
    spec["targets"][0]["copyName"] = json!("elsewhere");
    tenant.writes("replications", "names", &spec).await?;
    scene.wait_secret(&tenant.home, "first", has("his")).await?;
    scene
        .wait_secret(&tenant.home, "elsewhere", has("his"))
        .await?;

    scene.secret("first", &[("token", "platforms")]).await?;
    scene.secret("second", &[("token", "platforms")]).await?;
    for name in ["first", "second"] {
        let platform = rule(&format!("{}-{name}", scene.tag))
            .to_label("scene", &scene.tag)
            .secret(&scene.home, name);
        platform
            .set("conflictPolicy", json!("Overwrite"))
            .create(&scene.client)
            .await?;
        scene
            .wait_secret(&tenant.home, name, has("platforms"))
            .await?;
    }
    // A copy may be a source. So the copy that the tenant's rule makes of it follows it.
    scene
        .wait_secret(&tenant.home, "elsewhere", has("platforms"))
        .await?;
    let status = tenant.status("squats", "Ready", "CopiesFailed").await?;
    assert_eq!(status.failures[0].reason, "RuleConflict");
    Ok(())
}

/// A user with the permission to write objects may use Mimeo's field manager and any of Mimeo's
/// labels and annotations.
#[tokio::test]
async fn marks_that_name_anothers_rule_reach_nothing_of_his() -> Result<()> {
    let scene = STAGE.scene("forged").await?;
    let victim = Tenant::new(&scene).await?;
    victim
        .may(&secrets(&["get", "create", "update", "delete"]))
        .await?;
    victim.secret("db", "one").await?;
    let mut spec = copying(None, "db", &[&victim.home]);
    spec["targets"][0]["copyName"] = json!("db-copy");
    victim.writes("replications", "r", &spec).await?;
    let before = scene
        .wait_secret(&victim.home, "db-copy", has("one"))
        .await?;

    let forger = Tenant::new(&scene).await?;
    forger.may(&secrets(&["*"])).await?;
    let forged = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": "db-copy", "namespace": forger.home,
            "labels": before.metadata.labels, "annotations": before.metadata.annotations,
        },
        "data": {"token": "eA=="},
    });
    let api: Api<Secret> = of(&forger.client, &forger.home);
    let params = PatchParams::apply("mimeo").force();
    eventually(SOON, "the forged copy", || async {
        Ok(Some(
            api.patch("db-copy", &params, &Patch::Apply(&forged))
                .await?,
        ))
    })
    .await?;
    // No rule wants the forged copy there. Mimeo deletes it, and nothing else.
    wait_gone(scene.secrets(&forger.home), "db-copy").await?;
    let after = scene.secrets(&victim.home).get("db-copy").await?;
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert_eq!(victim.status("r", "Ready", "Synced").await?.failures, []);
    Ok(())
}

/// The columns of `kubectl get` show the owner the content of a grant and the number of its users.
#[tokio::test]
async fn a_grant_shows_whom_it_grants_what_and_how_many_use_it() -> Result<()> {
    let scene = STAGE.scene("grant-status").await?;
    let (tenant, owner) = (Tenant::new(&scene).await?, Tenant::new(&scene).await?);
    tenant
        .may(&secrets(&["get", "create", "update", "delete"]))
        .await?;
    owner.may(&secrets(&["get", "list"])).await?;
    owner.secret("db", "one").await?;
    let mut spec = consent("Read", &tenant.home, &["db", "ca-*"]);
    let gold = json!({"namespacePattern": "no-such-.*", "namespaceSelector": {"matchLabels": {"tier": "gold"}}});
    spec["grantees"] = json!([{"namespaces": [tenant.home]}, gold]);
    let secrets = |names: &[&str]| json!({"apiVersion": "v1", "kind": "Secret", "names": names});
    spec["objects"] = json!([secrets(&["db", "ca-*"]), secrets(&["cert"])]);
    owner.writes("replicationgrants", "g", &spec).await?;
    let shown = async |used: &'static str| {
        eventually(
            SOON,
            format!("a grant that {used} Replications use"),
            || async {
                let args = [
                    "get",
                    "replicationgrant",
                    "g",
                    "--namespace",
                    &owner.home,
                    "--no-headers",
                ];
                let row = kubectl(&scene.setting.control_plane, args)?;
                let row: Vec<&str> = row
                    .split("  ")
                    .map(str::trim)
                    .filter(|cell| !cell.is_empty())
                    .collect();
                let grantees = format!("{}; pattern no-such-.* and labels tier=gold", tenant.home);
                let want = [
                    "g",
                    "Read",
                    &*grantees,
                    "Secret db,ca-*; Secret cert",
                    "True",
                    used,
                ];
                if row.get(..6) == Some(&want) {
                    Ok(Some(()))
                } else {
                    bail!("{row:?}")
                }
            },
        )
        .await
    };
    shown("0").await?;
    tenant
        .writes(
            "replications",
            "pull",
            &copying(Some(&owner.home), "db", &[]),
        )
        .await?;
    tenant
        .writes(
            "replications",
            "another-name",
            &copying(Some(&owner.home), "other", &[]),
        )
        .await?;
    shown("2").await?;
    let mark = scene.setting.control_plane.audit_mark().await?;
    tenant.status("pull", "Ready", "Synced").await?;
    delete(&tenant.rules(), "pull").await?;
    shown("1").await?;
    let written = scene.setting.control_plane.audit_since(&mark).await?;
    let written = written
        .iter()
        .filter(|event| scene.setting.is_ours(event) && event.is_write());
    let written = written
        .filter(|event| event.resource == "replicationgrants" && event.namespace == owner.home);
    ensure!(
        written.count() == 1,
        "a status is written when it says something else, and not with its own news"
    );
    Ok(())
}
