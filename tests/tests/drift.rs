//! `driftPolicy: Deny`: nobody but Mimeo changes or deletes a copy, and nothing else is held up by that.

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::Status;
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Stage, apply, delete, label, merge, put, relabel, value, version, wait_for, wait_gone,
};
use mimeo_tests::tenant::Tenant;
use mimeo_tests::{ControlPlane, Pair, create_secret, eventually};
use serde_json::{Value, json};

static STAGE: Stage = Stage::new(ControlPlane::builder, Pair::builder);

const REGISTRY: &str = "registry";

/// A rule that denies drift, with one copy.
async fn guarded(scene: &Scene<'_>) -> Result<(RuleSpec, String)> {
    scene.secret(REGISTRY, &[("password", "example"), ("user", "robot")]).await?;
    let namespace = scene.namespace().await?;
    let rule = scene.rule().secret(&scene.home, REGISTRY).set("driftPolicy", json!("Deny"));
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    // The webhook has taken in the rule, and the API server the webhook.
    scene.wait_condition(&rule.name, "BarrierActive", "True", "Active").await?;
    Ok((rule, namespace))
}

fn patch(value: Value) -> Result<Patch<Value>> {
    Ok(if value.is_array() { Patch::Json(serde_json::from_value(value)?) } else { Patch::Merge(value) })
}

/// The refusal, if it is Mimeo's.
fn refused<T>(outcome: kube::Result<T>) -> Result<Option<Box<Status>>> {
    match outcome {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains("copies.mimeo.dev") => {
            Ok(Some(status))
        }
        Err(error) => Err(error).context("refused for another reason"),
    }
}

#[tokio::test]
async fn what_mimeo_keeps_in_a_copy_nobody_else_changes() -> Result<()> {
    let scene = STAGE.scene("kept").await?;
    let (rule, namespace) = guarded(&scene).await?;
    let before = scene.secrets(&namespace).get(REGISTRY).await?;
    // Whoever may edit the namespace, and whoever may do everything.
    let owner = Tenant::editor_of(&scene, &namespace).await?;
    for secrets in [owner.secrets(), scene.secrets(&namespace)] {
        nothing_is_changed(&rule, &secrets).await?;
    }
    let after = scene.secrets(&namespace).get(REGISTRY).await?;
    assert_eq!(version(&before), version(&after), "nothing of it was stored");
    Ok(())
}

async fn nothing_is_changed(rule: &RuleSpec, secrets: &Api<Secret>) -> Result<()> {
    let params = PatchParams::default();
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    for (about, params, change) in [
        ("a value", &params, json!({"data": {"password": "eA=="}})),
        ("in a dry run, too", &dry_run, json!({"data": {"password": "eA=="}})),
        ("a key", &params, json!({"data": {"password": null}})),
        ("the label that the API server asks by", &params, json!({"metadata": {"labels": {"mimeo.dev/drift": null}}})),
        ("all labels", &params, json!([{"op": "remove", "path": "/metadata/labels"}])),
        ("whose copy it is", &params, json!({"metadata": {"annotations": {"mimeo.dev/rule": "x"}}})),
        ("who owns what", &params, json!({"metadata": {"managedFields": [{}]}})),
        ("that and a value", &params, json!({"metadata": {"managedFields": []}, "data": {"password": "eA=="}})),
    ] {
        let status = refused(secrets.patch(REGISTRY, params, &patch(change)?).await)?.context(about)?;
        assert!(status.message.contains(&format!("ClusterReplication/{}", rule.name)), "{about}: {}", status.message);
    }
    for manager in ["somebody", "mimeo"] {
        let object =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": REGISTRY}, "data": {"password": "eA=="}});
        let forced = PatchParams::apply(manager).force();
        refused(secrets.patch(REGISTRY, &forced, &Patch::Apply(&object)).await)?.context(manager)?;
    }
    refused(secrets.delete(REGISTRY, &DeleteParams::default()).await)?.context("deleted")?;
    let all = secrets.delete_collection(&DeleteParams::default(), &ListParams::default()).await;
    refused(all)?.context("deleted with all others")?;
    Ok(())
}

#[tokio::test]
async fn what_others_add_and_what_the_rule_wants_passes() -> Result<()> {
    let scene = STAGE.scene("passes").await?;
    let (rule, namespace) = guarded(&scene).await?;
    let owner = Tenant::editor_of(&scene, &namespace).await?;
    let secrets = owner.secrets();
    merge(&secrets, REGISTRY, json!({"metadata": {"labels": {"team": "blue"}}, "data": {"extra": "eA=="}})).await?;
    put(&scene.secrets(&scene.home), REGISTRY, &[("password", "rotated")]).await?;
    let copy =
        scene.wait_secret(&namespace, REGISTRY, |copy| value(copy, "password").as_deref() == Some("rotated")).await?;
    // It is not exclusive because somebody says so.
    merge(&secrets, REGISTRY, json!({"metadata": {"annotations": {"mimeo.dev/strategy": "Replace"}}})).await?;
    merge(&secrets, REGISTRY, json!({"metadata": {"labels": {"other": "green"}}})).await?;
    assert_eq!((label(&copy, "team"), value(&copy, "extra").as_deref()), (Some("blue"), Some("x")));
    // Others' objects are nobody's copies, whatever they carry.
    let forged = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": "forged", "namespace": namespace, "labels": {"mimeo.dev/drift": "deny"},
            "annotations": {"mimeo.dev/rule": format!("ClusterReplication/{}", rule.name)},
        },
    });
    apply(&owner.client, &forged).await?;
    put(&secrets, "forged", &[("a", "b")]).await?;
    delete(&secrets, "forged").await?;
    // A namespace goes with all that is in it.
    delete(&Api::<Namespace>::all(scene.client.clone()), &namespace).await?;
    wait_gone(scene.secrets(&namespace), REGISTRY).await?;
    // What the rule doesn't want any more isn't kept from anybody, not from Mimeo either.
    let other = scene.namespace().await?;
    scene.wait_secret(&other, REGISTRY, |_| true).await?;
    relabel(&scene.client, &other, "scene", None).await?;
    wait_gone(scene.secrets(&other), REGISTRY).await
}

/// Whether somebody may change the copy by now.
async fn let_through(secrets: &Api<Secret>) -> Result<()> {
    eventually(SOON, "the change to be let through", || async {
        let change = json!({"data": {"password": "eA=="}});
        match refused(secrets.patch(REGISTRY, &PatchParams::default(), &patch(change)?).await)? {
            None => Ok(Some(())),
            Some(status) => bail!("{}", status.message),
        }
    })
    .await
}

#[tokio::test]
async fn a_suspended_rule_and_one_that_repairs_deny_nothing() -> Result<()> {
    let scene = STAGE.scene("lifted").await?;
    let (rule, namespace) = guarded(&scene).await?;
    let owner = Tenant::editor_of(&scene, &namespace).await?;
    let secrets = owner.secrets();
    rule.clone().set("suspend", json!(true)).replace(&scene.client).await?;
    let_through(&secrets).await?;
    let kept = |copy: &Secret| value(copy, "password").as_deref() == Some("example");
    rule.replace(&scene.client).await?;
    wait_for(secrets.clone(), REGISTRY.to_owned(), kept).await?;

    rule.set("driftPolicy", json!("Repair")).replace(&scene.client).await?;
    wait_for(secrets.clone(), REGISTRY.to_owned(), |copy| label(copy, "mimeo.dev/drift").is_none()).await?;
    let_through(&secrets).await?;
    wait_for(secrets, REGISTRY.to_owned(), kept).await?;
    Ok(())
}

#[tokio::test]
async fn a_copy_that_is_being_deleted_can_go() -> Result<()> {
    let scene = STAGE.scene("leaves").await?;
    create_secret(&scene.client, &scene.home, REGISTRY, &[("password", "example")]).await?;
    let namespace = scene.namespace().await?;
    let rule = scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .set("driftPolicy", json!("Deny"))
        .set("transform", json!({"finalizers": ["example.com/keep"]}));
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    rule.delete(&scene.client).await?;
    let secrets = Tenant::editor_of(&scene, &namespace).await?.secrets();
    let leaving = |copy: &Secret| copy.metadata.deletion_timestamp.is_some();
    wait_for(secrets.clone(), REGISTRY.to_owned(), leaving).await?;
    merge(&secrets, REGISTRY, json!({"metadata": {"finalizers": null}})).await?;
    wait_gone(secrets, REGISTRY).await
}
