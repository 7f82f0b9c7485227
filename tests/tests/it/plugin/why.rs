//! `kubectl mimeo why`: for each reason why a copy is missing, the answer names the reason and the
//! next step.

use anyhow::{Context as _, Result, ensure};
use mimeo_tests::{
    create_secret, eventually,
    scenario::{SOON, Scene, delete, kubectl, merge, relabel, rule},
};
use serde_json::{Value, json};

use super::{run, says, why};
use crate::{copies::told::exhaust, stages::PLAIN as STAGE};

const REGISTRY: &str = "registry";

/// Waits until the answer of a `ClusterReplication` has this state. Returns the answer.
async fn wait_state(scene: &Scene<'_>, object: &str, rule: &str, state: &str) -> Result<Value> {
    let id = format!("ClusterReplication/{rule}");
    super::wait_state(scene, object, &id, state).await
}

#[tokio::test]
async fn a_copy_is_traced_to_its_rule_and_to_the_client_that_changed_it() -> Result<()> {
    let scene = STAGE.scene("why-there").await?;
    let namespace = scene.namespace().await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    let object = format!("{namespace}/secret/{REGISTRY}");
    wait_state(&scene, &object, &scene.tag, "Synced").await?;
    // Under strategy Apply, other clients may own further fields.
    let label = json!({"metadata": {"labels": {"team": "blue"}}});
    merge(&scene.secrets(&namespace), REGISTRY, label).await?;
    let (code, answer) = why(&scene.setting.control_plane, None, &object)?;
    assert_eq!(code, 0, "{answer:#}");
    let copy = &answer["copy"];
    assert_eq!(copy["rule"], format!("ClusterReplication/{}", scene.tag));
    assert_eq!(copy["ownedByMimeo"], true);
    assert_eq!(
        copy["changedBy"][0]["fields"],
        json!(["metadata.labels.team"])
    );
    // The plural names the same kind.
    let object = format!("{namespace}/secrets/{REGISTRY}");
    let (code, _) = why(&scene.setting.control_plane, None, &object)?;
    assert_eq!(code, 0);
    // So does the short name of any kind that the API server serves.
    let object = format!("{namespace}/netpol/{REGISTRY}");
    let (_, answer) = why(&scene.setting.control_plane, None, &object)?;
    assert_eq!(answer["kind"], "NetworkPolicy");
    Ok(())
}

#[tokio::test]
async fn each_reason_for_a_missing_copy_is_named_with_the_next_step() -> Result<()> {
    let scene = STAGE.scene("why-not").await?;
    let namespace = scene.namespace().await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let named = |name: &str| {
        rule(&format!("{}-{name}", scene.tag))
            .secret(&scene.home, REGISTRY)
            .to_label("scene", &scene.tag)
            .named(name)
    };
    let full_name = |name: &str| format!("{}-{name}", scene.tag);
    let of = |name: &str| format!("{namespace}/secret/{name}");

    named("suspended")
        .set("suspend", json!(true))
        .create(&scene.client)
        .await?;
    let answer = wait_state(
        &scene,
        &of("suspended"),
        &full_name("suspended"),
        "Suspended",
    )
    .await?;
    says(&answer, "fix", "\"suspend\":false");
    // A command for the current context could change another cluster.
    let object = of("suspended");
    let args = ["why", &object, "--context", "test"];
    let text = run(&scene.setting.control_plane, None, &args)?.stdout;
    let fix = "kubectl --context test patch clusterreplication/";
    assert!(text.contains(fix), "{text}");

    let excluded = json!([{"namespaces": [namespace]}]);
    named("excluded")
        .set("exclude", excluded)
        .create(&scene.client)
        .await?;
    let answer = wait_state(
        &scene,
        &of("excluded"),
        &full_name("excluded"),
        "NotSelected",
    )
    .await?;
    says(&answer, "message", "spec.exclude[0]");

    let labelled =
        json!([{"namespaceSelector": {"matchLabels": {"tier": "gold"}}, "copyName": "labelled"}]);
    named("labelled")
        .set("targets", labelled)
        .create(&scene.client)
        .await?;
    let answer = wait_state(
        &scene,
        &of("labelled"),
        &full_name("labelled"),
        "NotSelected",
    )
    .await?;
    says(&answer, "message", "tier is not set");
    says(
        &answer,
        "fix",
        &format!("kubectl label namespace {namespace} tier=gold"),
    );
    relabel(&scene.client, &namespace, "tier", Some("silver")).await?;
    let answer = wait_state(
        &scene,
        &of("labelled"),
        &full_name("labelled"),
        "NotSelected",
    )
    .await?;
    says(&answer, "fix", "tier=gold --overwrite");

    let lost =
        json!([{"apiVersion": "v1", "kind": "Secret", "namespace": scene.home, "name": "lost"}]);
    named("lost")
        .set("sources", lost)
        .create(&scene.client)
        .await?;
    let answer = wait_state(&scene, &of("lost"), &full_name("lost"), "SourceNotFound").await?;
    says(
        &answer,
        "fix",
        &format!("kubectl -n {} get secret/lost", scene.home),
    );

    create_secret(&scene.client, &namespace, "foreign", &[("a", "b")]).await?;
    named("foreign").create(&scene.client).await?;
    let answer = wait_state(&scene, &of("foreign"), &full_name("foreign"), "Conflict").await?;
    says(&answer, "fix", "conflictPolicy");

    named("rival").create(&scene.client).await?;
    wait_state(&scene, &of("rival"), &full_name("rival"), "Synced").await?;
    let second = full_name("rival-2");
    rule(&second)
        .secret(&scene.home, REGISTRY)
        .to_label("scene", &scene.tag)
        .named("rival")
        .create(&scene.client)
        .await?;
    let answer = wait_state(&scene, &of("rival"), &second, "RuleConflict").await?;
    says(&answer, "message", &full_name("rival"));

    let unset = json!({"labels": {"set": {"stage": "$(namespace.labels['stage'])"}}});
    named("unset")
        .set("transform", unset)
        .create(&scene.client)
        .await?;
    let answer = wait_state(&scene, &of("unset"), &full_name("unset"), "VariableUnset").await?;
    says(
        &answer,
        "fix",
        &format!("give namespace {namespace} the label"),
    );

    named("once")
        .set("strategy", json!("CreateOnce"))
        .create(&scene.client)
        .await?;
    wait_state(&scene, &of("once"), &full_name("once"), "Synced").await?;
    delete(&scene.secrets(&namespace), "once").await?;
    eventually(SOON, "a copy that was created once", || async {
        let answer = wait_state(&scene, &of("once"), &full_name("once"), "Synced").await?;
        let message = answer["message"].as_str().unwrap_or_default();
        ensure!(message.contains("strategy: CreateOnce"), "{answer:#}");
        Ok(Some(()))
    })
    .await?;

    let gadgets = json!([{"apiVersion": "example.com/v1", "kind": "Gadget", "namespace": scene.home, "name": "gadget"}]);
    named("gadget")
        .set("sources", gadgets)
        .create(&scene.client)
        .await?;
    let answer = wait_state(
        &scene,
        &format!("{namespace}/gadget.example.com/gadget"),
        &full_name("gadget"),
        "KindNotServed",
    )
    .await?;
    says(&answer, "fix", "CRD");

    let (code, answer) = why(&scene.setting.control_plane, None, &of("misspelt"))?;
    assert_eq!((code, &answer["rules"]), (1, &json!([])));
    assert!(answer["notes"].to_string().contains("rival"), "{answer:#}");
    Ok(())
}

/// Only the API server knows this reason. The answer has it from the rule's status.
#[tokio::test]
async fn a_used_up_quota_is_named_as_the_reconciler_found_it() -> Result<()> {
    let scene = STAGE.scene("why-quota").await?;
    let namespace = scene.namespace().await?;
    exhaust(&scene, &namespace).await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .create(&scene.client)
        .await?;
    let object = format!("{namespace}/secret/{REGISTRY}");
    let answer = wait_state(&scene, &object, &scene.tag, "QuotaExceeded").await?;
    says(
        &answer,
        "fix",
        &format!("kubectl -n {namespace} describe resourcequota"),
    );
    Ok(())
}

/// The user reads objects of one namespace, and nothing else.
#[tokio::test]
async fn a_user_without_permissions_is_told_which_facts_are_missing() -> Result<()> {
    let scene = STAGE.scene("why-tenant").await?;
    let namespace = scene.namespace().await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    let control_plane = &scene.setting.control_plane;
    let user = control_plane.user(&scene.tag, &[])?;
    kubectl(
        control_plane,
        [
            "-n",
            &namespace,
            "create",
            "rolebinding",
            "edits",
            "--clusterrole=edit",
            "--user",
            &scene.tag,
        ],
    )?;
    let object = format!("{namespace}/secret/{REGISTRY}");
    let (code, answer) = why(control_plane, Some(&user), &object)?;
    assert_eq!(code, 1, "the state is unknown: {answer:#}");
    assert_eq!(
        answer["copy"]["rule"],
        format!("ClusterReplication/{}", scene.tag)
    );
    assert_eq!(answer["rules"][0]["state"], "Unknown", "{answer:#}");
    let notes = answer["notes"].to_string();
    for part in ["ClusterReplications", "namespaces", "ReplicationGrants"] {
        assert!(
            notes.contains(&format!("You can't list {part}")),
            "{part}: {answer:#}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_wrong_argument_is_refused_with_an_example() -> Result<()> {
    let scene = STAGE.scene("why-wrong").await?;
    let answer = why(&scene.setting.control_plane, None, "a/b/c/d");
    let error = format!("{:#}", answer.err().context("it is accepted")?);
    assert!(error.contains("team-blue/secret/registry"), "{error}");
    let answer = why(&scene.setting.control_plane, None, "a/gizmos/c");
    let error = format!("{:#}", answer.err().context("it is accepted")?);
    assert!(error.contains("kubectl api-resources"), "{error}");
    Ok(())
}
