//! Who answers for a tenant's rule, and what becomes of it when they may not any more, or when nobody does; and consent that is
//! changed while copies hang by it.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mimeo_api::{ClusterReplicationStatus, Replication, ReplicationGrant};
use mimeo_tests::author::{grant, secrets};
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Setting, Stage, annotation, condition, delete, forget_the_hooks, merge, of, put, wait_for,
    wait_gone,
};
use mimeo_tests::tenant::{Tenant, consent, copying, has};
use mimeo_tests::{ControlPlane, Pair, eventually, unique};
use serde_json::{Value, json};

const AUTHOR: &str = "mimeo.dev/author";
const SEAL: &str = "mimeo.dev/author-seal";
const WRITE: [&str; 3] = ["create", "update", "delete"];

fn quick() -> mimeo_tests::PairBuilder {
    Pair::builder().shipped_rights().reconciler_args(["--deletion-delay", "1s"])
}

static STAGE: Stage = Stage::new(ControlPlane::builder, quick);

/// Author and seal.
type Stamp = (String, String);

fn stamp(rule: &Replication) -> Option<Stamp> {
    Some((annotation(rule, AUTHOR)?.to_owned(), annotation(rule, SEAL)?.to_owned()))
}

/// The name of the author that a rule shows.
fn author(rule: &Replication) -> Result<String> {
    let author: Value = serde_json::from_str(&stamp(rule).context("no stamp")?.0)?;
    Ok(author["username"].as_str().unwrap_or_default().to_owned())
}

/// Copies Secret `db` beside itself, under this name.
fn beside(home: &str, name: &str) -> Value {
    let mut spec = copying(None, "db", &[home]);
    spec["targets"][0]["name"] = json!(name);
    spec
}

/// Somebody else in the same namespace, who may write its rules and nothing else.
async fn colleague(tenant: &Tenant<'_>) -> Result<(String, Client)> {
    let user = tenant.scene.setting.control_plane.user(&unique(&tenant.scene.tag), &[])?;
    let rights = json!({"apiGroups": ["mimeo.dev"], "resources": ["replications"], "verbs": ["*"]});
    grant(tenant.scene, "User", user.name(), Some(&tenant.home), &rights).await?;
    let client = user.client().await?;
    let rules: Api<Replication> = of(&client, &tenant.home);
    eventually(SOON, "a colleague's rights", || async { Ok(Some(rules.list(&ListParams::default()).await?)) }).await?;
    Ok((user.name().to_owned(), client))
}

#[tokio::test]
async fn who_writes_a_tenants_spec_is_its_author_whatever_the_rule_says() -> Result<()> {
    let scene = STAGE.scene("stamp").await?;
    let tenant = Tenant::editor(&scene).await?;
    tenant.makes("db", "one").await?;
    let mut forged = tenant.object("replications", "r", &beside(&tenant.home, "copy"));
    forged["metadata"]["annotations"] = json!({AUTHOR: r#"{"username":"system:admin"}"#, SEAL: "00", "note": "x"});
    let path = format!("namespaces/{}/replications", tenant.home);
    mimeo_tests::scenario::create(&tenant.client, &path, &forged).await?;
    let created = tenant.rules().get("r").await?;
    assert_eq!([AUTHOR, SEAL, "note"].map(|key| annotation(&created, key)), [Some("unknown"), None, Some("x")]);
    merge(&tenant.rules(), "r", json!({"metadata": {"annotations": {AUTHOR: "me"}}})).await?;
    scene.wait_secret(&tenant.home, "copy", has("one")).await?;
    let first = tenant.rules().get("r").await?;
    assert_eq!((author(&first)?.as_str(), annotation(&first, "note")), (tenant.name(), Some("x")));

    // What a colleague does to the metadata changes nothing; a spec takes the rights that it uses.
    let (name, client) = colleague(&tenant).await?;
    let rules: Api<Replication> = of(&client, &tenant.home);
    let (seal, other) = (stamp(&first), format!(r#"{{"username":"{name}"}}"#));
    for annotations in
        [json!({AUTHOR: null, SEAL: null}), json!({SEAL: "00"}), json!({AUTHOR: other}), json!({AUTHOR: "me"})]
    {
        let touched = merge(&rules, "r", json!({"metadata": {"annotations": annotations}})).await?;
        assert_eq!(stamp(&touched), seal, "{annotations}");
    }
    let another = json!({"spec": beside(&tenant.home, "other")});
    match rules.patch("r", &PatchParams::default(), &Patch::Merge(another.clone())).await {
        Err(kube::Error::Api(status)) if status.message.contains("may not get secrets/db") => {}
        other => anyhow::bail!("{other:?}"),
    }
    assert_eq!(stamp(&tenant.rules().get("r").await?), seal);
    // Who has them answers for it from then on.
    let rights = secrets(&["get", "create", "update", "delete"]);
    grant(&scene, "User", &name, Some(&tenant.home), &rights).await?;
    let changed =
        eventually(SOON, "his rights", || async { Ok(Some(merge(&rules, "r", another.clone()).await?)) }).await?;
    assert_eq!(author(&changed)?, name);
    scene.wait_secret(&tenant.home, "other", has("one")).await?;
    wait_gone(scene.secrets(&tenant.home), "copy").await
}

/// A rule of the platform's that copies Secret `pace` to every namespace of the scene: what it has carried by now, another had the time to.
async fn pace(scene: &Scene<'_>, turn: &'static str) -> Result<()> {
    let sources = scene.secrets(&scene.home);
    if sources.get_opt("pace").await?.is_some() {
        put(&sources, "pace", &[("token", turn)]).await?;
    } else {
        scene.secret("pace", &[("token", turn)]).await?;
        let pace = RuleSpec { name: format!("{}-pace", scene.tag), ..scene.rule() };
        pace.secret(&scene.home, "pace").create(&scene.client).await?;
    }
    scene.wait_synced(&format!("{}-pace", scene.tag)).await?;
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(scene.client.clone());
    let mine = ListParams::default().labels(&format!("scene={}", scene.tag));
    for namespace in namespaces.list(&mine).await?.items {
        scene.wait_secret(&namespace.metadata.name.unwrap_or_default(), "pace", has(turn)).await?;
    }
    Ok(())
}

/// Nothing is said of what there is, since who wrote it may not know.
fn says_nothing_else(status: &ClusterReplicationStatus) -> Result<()> {
    let ready = condition(status, "Ready").context("no Ready")?;
    ensure!(ready.reason == "NotAuthorized" && condition(status, "SourcesFound").is_none(), "{status:?}");
    ensure!(status.sources.is_empty() && status.failures.is_empty() && status.copies.is_none(), "{status:?}");
    Ok(())
}

#[tokio::test]
async fn a_tenant_who_loses_a_right_is_acted_for_no_more_until_he_has_it_again() -> Result<()> {
    let scene = STAGE.scene("lost").await?;
    let tenant = Tenant::new(&scene).await?;
    tenant.secret("db", "one").await?;
    let reads = tenant.may(&secrets(&["get"])).await?;
    let writes = tenant.may(&secrets(&WRITE)).await?;
    tenant.writes("replications", "r", &beside(&tenant.home, "copy")).await?;
    tenant.status("r", "Authorized", "Allowed").await?;
    scene.wait_secret(&tenant.home, "copy", has("one")).await?;

    let bindings: Api<RoleBinding> = of(&scene.client, &tenant.home);
    let (source, copies) = (scene.secrets(&tenant.home), scene.secrets(&tenant.home));
    for (lost, missing, [before, after]) in
        [(&reads, "get secrets/db", ["one", "two"]), (&writes, "create secrets", ["two", "three"])]
    {
        let mut binding = bindings.get(lost).await?;
        delete(&bindings, lost).await?;
        let status = tenant.status("r", "Authorized", "AuthorDenied").await?;
        says_nothing_else(&status)?;
        let ready = condition(&status, "Ready").context("no Ready")?;
        ensure!(ready.message.contains(tenant.name()) && ready.message.contains(missing), "{ready:?}");
        // Neither is a rotation carried, nor an edit undone.
        put(&source, "db", &[("token", after)]).await?;
        let edited =
            merge(&copies, "copy", json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}})).await?;
        pace(&scene, after).await?;
        let left = copies.get("copy").await?;
        assert_eq!(left.metadata.resource_version, edited.metadata.resource_version, "{missing}");
        ensure!(mimeo_tests::scenario::value(&left, "token").as_deref() == Some(before));

        binding.metadata = ObjectMeta { name: Some(lost.clone()), ..ObjectMeta::default() };
        bindings.create(&PostParams::default(), &binding).await?;
        tenant.status("r", "Authorized", "Allowed").await?;
        scene.wait_secret(&tenant.home, "copy", has(after)).await?;
        tenant.status("r", "Ready", "Synced").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_tenants_rule_written_past_the_webhook_does_nothing_until_somebody_answers_for_it() -> Result<()> {
    let mut setting = Setting::start(ControlPlane::builder(), quick()).await?;
    let (tag, home, place, client, other);
    {
        let scene = setting.scene("past").await?;
        let tenant = Tenant::editor(&scene).await?;
        tenant.makes("db", "one").await?;
        for name in ["honest", "edited"] {
            tenant.writes("replications", name, &beside(&tenant.home, name)).await?;
            scene.wait_secret(&tenant.home, name, has("one")).await?;
        }
        other = colleague(&tenant).await?.1;
        (tag, home, place, client) =
            (scene.tag.clone(), scene.home.clone(), tenant.home.clone(), tenant.client.clone());
    }
    setting.pair.stop_webhooks().await?;
    let admin = setting.control_plane.client().await?;
    forget_the_hooks(&admin).await?;
    // The colleague, who may write rules and read no Secret: one rule is new, one has the seal of another, one was changed beneath it.
    let rules: Api<Replication> = of(&other, &place);
    let (name, seal) = stamp(&rules.get("honest").await?).context("no stamp")?;
    for (rule, stamp) in [("bare", json!({})), ("copied", json!({AUTHOR: name, SEAL: seal}))] {
        let metadata = json!({"name": rule, "annotations": stamp});
        let object: Replication = serde_json::from_value(json!({"metadata": metadata, "spec": beside(&place, rule)}))?;
        // Until every API server has forgotten the hooks.
        eventually(SOON, "a rule past the webhook", || async {
            Ok(Some(rules.create(&PostParams::default(), &object).await?))
        })
        .await?;
    }
    merge(&rules, "edited", json!({"spec": beside(&place, "taken")})).await?;
    setting.pair.start_webhook().await?;

    let scene = Scene { setting: &setting, client: admin, tag, home };
    let forged = ["bare", "copied", "edited"];
    let told = async |rule: &str| -> Result<ClusterReplicationStatus> {
        let rules: Api<Replication> = of(&scene.client, &place);
        let unknown = |rule: &Replication| {
            let status = rule.status.as_ref().filter(|status| status.observed_generation == rule.metadata.generation);
            let found = status.and_then(|status| condition(status, "Authorized"));
            found.is_some_and(|found| found.reason == "AuthorUnknown")
        };
        Ok(wait_for(rules, rule.to_owned(), unknown).await?.status.unwrap_or_default())
    };
    for rule in forged {
        says_nothing_else(&told(rule).await?)?;
        // Not for the word of one who may not; who may takes it on himself.
        let touched = merge(&rules, rule, json!({"metadata": {"annotations": {AUTHOR: "me"}}})).await?;
        ensure!(stamp(&touched).is_none(), "{rule}");
    }
    pace(&scene, "one").await?;
    let copies: Api<Secret> = of(&scene.client, &place);
    for copy in ["bare", "copied", "taken"] {
        ensure!(copies.get_opt(copy).await?.is_none(), "{copy}");
    }
    ensure!(copies.get_opt("edited").await?.is_some(), "it stays as it is");
    for (rule, copy) in forged.into_iter().zip(["bare", "copied", "taken"]) {
        says_nothing_else(&told(rule).await?)?;
        merge(&of::<Replication>(&client, &place), rule, json!({"metadata": {"annotations": {AUTHOR: "me"}}})).await?;
        scene.wait_secret(&place, copy, has("one")).await?;
    }
    wait_gone(copies, "edited").await
}

/// By an update of the grant: what it covers no more goes, and comes again when it is covered again.
#[tokio::test]
async fn a_grant_that_is_narrowed_or_widened_takes_effect_on_the_copies_that_there_are() -> Result<()> {
    let scene = STAGE.scene("width").await?;
    let (owner, taker, other) =
        (Tenant::editor(&scene).await?, Tenant::editor(&scene).await?, Tenant::editor(&scene).await?);
    for name in ["db", "web"] {
        owner.makes(name, "one").await?;
    }
    owner.writes("replicationgrants", "g", &consent("Read", &taker.home, &[])).await?;
    for tenant in [&taker, &other] {
        for name in ["db", "web"] {
            tenant.writes("replications", name, &copying(Some(&owner.home), name, &[])).await?;
        }
    }
    let grants: Api<ReplicationGrant> = of(&owner.client, &owner.home);
    let update = async |spec: Value| -> Result<()> {
        let patch = json!([{"op": "replace", "path": "/spec", "value": spec}]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
        grants.patch("g", &PatchParams::default(), &patch).await?;
        Ok(())
    };
    // Who has which copies, and is told why not the others.
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
    both["from"] = json!([{"namespaces": [taker.home]}, {"namespaces": [other.home]}]);
    update(both).await?;
    holds([(&taker, [true, true]), (&other, [true, true])]).await?;
    // Consent to write is none to read.
    update(consent("Write", &taker.home, &["db", "web"])).await?;
    holds([(&taker, [false, false]), (&other, [false, false])]).await?;
    update(consent("Read", &taker.home, &[])).await?;
    holds([(&taker, [true, true]), (&other, [false, false])]).await?;

    // Who may write grants, and not read what they give, widens none; who only takes away needs no more.
    let user = scene.setting.control_plane.user(&unique(&scene.tag), &[])?;
    let rights = json!({"apiGroups": ["mimeo.dev"], "resources": ["replicationgrants"], "verbs": ["*"]});
    grant(&scene, "User", user.name(), Some(&owner.home), &rights).await?;
    let his: Api<ReplicationGrant> = of(&user.client().await?, &owner.home);
    eventually(SOON, "his rights", || async { Ok(Some(his.get("g").await?)) }).await?;
    let widened = Patch::Merge(json!({"spec": {"from": [{"namespaces": [taker.home, other.home]}]}}));
    match his.patch("g", &PatchParams::default(), &widened).await {
        Err(kube::Error::Api(status)) if status.message.contains("may not get secrets") => {}
        outcome => anyhow::bail!("{outcome:?}"),
    }
    holds([(&taker, [true, true]), (&other, [false, false])]).await?;
    let names = |names: &[&str]| {
        let to = json!([{"apiVersion": "v1", "kind": "Secret", "names": names}]);
        Patch::Merge(json!({"spec": {"to": to}}))
    };
    his.patch("g", &PatchParams::default(), &names(&["db"])).await?;
    holds([(&taker, [true, false]), (&other, [false, false])]).await?;
    match his.patch("g", &PatchParams::default(), &names(&["db", "web"])).await {
        Err(kube::Error::Api(status)) if status.message.contains("may not get secrets/db") => {}
        outcome => anyhow::bail!("{outcome:?}"),
    }
    holds([(&taker, [true, false]), (&other, [false, false])]).await
}
