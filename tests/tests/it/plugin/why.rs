//! `kubectl mimeo why`: for each reason why a copy is missing, the answer names the reason and the
//! next step.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use mimeo_tests::{
    ControlPlane, Pair, create_secret, eventually,
    scenario::{SOON, Scene, Setting, any, delete, kubectl, merge, relabel, rule, value},
};
use serde_json::{Value, json};

use super::{fix_command, run, says, shell, why};
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
        answer["changedBy"][0]["fields"],
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
async fn what_led_to_the_last_write_is_told() -> Result<()> {
    // A shared reconciler may hold back Events about edits for long.
    let setting = Setting::start(
        ControlPlane::builder().controller_manager(false),
        Pair::builder(),
    )
    .await?;
    let scene = setting.scene("why-then").await?;
    let namespace = scene.namespace().await?;
    scene.secret(REGISTRY, &[("token", "0")]).await?;
    scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    let object = format!("{namespace}/secret/{REGISTRY}");
    let text = run(&setting.control_plane, None, &["why", &object])?.stdout;
    let told = "ago. Before that, \"";
    assert!(
        text.contains("  Created by Mimeo ") && text.contains(told),
        "{text}"
    );

    // Times have whole seconds. So this write may count as the creation, and the rule as changed
    // after the source.
    let sources = scene.secrets(&scene.home);
    let rotated = PatchParams {
        field_manager: Some("rotation".into()),
        ..PatchParams::default()
    };
    for token in 1.. {
        ensure!(token < 50, "the rule still counts");
        let change = json!({"stringData": {"token": token.to_string()}});
        sources
            .patch(REGISTRY, &rotated, &Patch::Merge(change))
            .await?;
        scene
            .wait_secret(&namespace, REGISTRY, |copy| {
                value(copy, "token") == Some(token.to_string())
            })
            .await?;
        let text = run(&setting.control_plane, None, &["why", &object])?.stdout;
        let told = "\"rotation\" changed the source ";
        if text.contains("  Last written by Mimeo ") && text.contains(told) {
            break;
        }
    }

    let edit = json!({"stringData": {"token": "edited"}});
    merge(&scene.secrets(&namespace), REGISTRY, edit).await?;
    eventually(SOON, "the Event", || async {
        let (_, answer) = why(&setting.control_plane, None, &object)?;
        let event = &answer["copy"]["event"];
        ensure!(event["reason"] == "EditReverted", "{answer:#}");
        Ok(Some(()))
    })
    .await?;
    let text = run(&setting.control_plane, None, &["why", &object])?.stdout;
    assert!(text.contains("  Event EditReverted "), "{text}");
    Ok(())
}

/// A copy that its rule created once belongs to the namespace. Where it was deleted, `why` says so.
#[tokio::test]
async fn a_copy_that_was_created_once_and_deleted_is_told() -> Result<()> {
    let scene = STAGE.scene("why-once").await?;
    let namespace = scene.namespace().await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let once = scene.rule().secret(&scene.home, REGISTRY);
    let once = once.set("strategy", json!("CreateOnce"));
    once.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let object = format!("{namespace}/secret/{REGISTRY}");
    let control_plane = &scene.setting.control_plane;
    let (code, answer) = why(control_plane, None, &object)?;
    assert_eq!(code, 0, "{answer:#}");
    delete(&scene.secrets(&namespace), REGISTRY).await?;
    let answer = eventually(SOON, "the answer", || async {
        let (code, answer) = why(control_plane, None, &object)?;
        ensure!(code == 1, "{answer:#}");
        Ok(Some(answer["rules"][0].clone()))
    })
    .await?;
    says(&answer, "message", "another client deleted it");
    let fix = format!("kubectl annotate namespace {namespace} mimeo.dev/seeded-");
    says(&answer, "fix", &fix);
    // The command is enough.
    let words = ["annotate", "namespace", &namespace, "mimeo.dev/seeded-"];
    kubectl(control_plane, words)?;
    let is_copied = |copy: &Secret| value(copy, "token").as_deref() == Some("one");
    scene.wait_secret(&namespace, REGISTRY, is_copied).await?;
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
        &format!("kubectl label namespace {namespace} 'stage=<value>'"),
    );

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
    let shown = shell(&scene.setting.control_plane, fix_command(&answer)?).await?;
    assert!(shown.contains("count/secrets"), "{shown}");

    let raised = json!({"hard": {"count/secrets": "9"}});
    let quotas = any(&scene.client, "v1", "ResourceQuota", Some(&namespace))?;
    merge(&quotas, "none", json!({"spec": raised})).await?;
    // No controller of quotas runs here.
    let status = Patch::Merge(json!({"status": raised}));
    let params = PatchParams::default();
    quotas.patch_status("none", &params, &status).await?;
    wait_state(&scene, &object, &scene.tag, "Synced").await?;
    Ok(())
}

/// For each reason, the printed fix is all that a person needs.
#[tokio::test]
async fn the_fix_of_a_missing_copy_leads_to_the_copy() -> Result<()> {
    let scene = STAGE.scene("why-fix").await?;
    let namespace = scene.namespace().await?;
    let absent = format!("{}-absent", scene.tag);
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    create_secret(&scene.client, &namespace, "taken", &[("a", "b")]).await?;
    let control_plane = &scene.setting.control_plane;
    let draft = |name: &str| {
        rule(&format!("{}-{name}", scene.tag))
            .secret(&scene.home, REGISTRY)
            .to_label("scene", &scene.tag)
            .named(name)
    };
    let tier = json!({"matchLabels": {"tier": scene.tag}});
    let labelled = json!([{"namespaceSelector": tier, "copyName": "labelled"}]);
    let early = json!([{"namespaces": [absent], "copyName": "early"}]);
    let stage = json!({"labels": {"set": {"stage": "$(namespace.labels['stage'])"}}});
    for (name, field, value, namespace, state) in [
        ("suspended", "suspend", json!(true), &namespace, "Suspended"),
        ("labelled", "targets", labelled, &namespace, "NotSelected"),
        ("unset", "transform", stage, &namespace, "VariableUnset"),
        ("taken", "suspend", json!(false), &namespace, "Conflict"),
        ("early", "targets", early, &absent, "Pending"),
    ] {
        let rule = draft(name).set(field, value);
        rule.create(&scene.client).await?;
        let object = format!("{namespace}/secret/{name}");
        let answer = wait_state(&scene, &object, &rule.name, state).await?;
        let line = if state == "Conflict" {
            // The command edits the rule. The note has the command that deletes the object.
            let note = answer["fix"]["note"].as_str().unwrap_or_default();
            let line = note.split_once("delete it: ").map(|(_, line)| line);
            line.with_context(|| format!("{answer:#}"))?.to_owned()
        } else {
            fix_command(&answer)?.replace("<value>", "gold")
        };
        shell(control_plane, &line).await?;
        wait_state(&scene, &object, &rule.name, "Synced").await?;
    }

    // The note says to create the source. Then the command finds it.
    let missing =
        json!([{"apiVersion": "v1", "kind": "Secret", "namespace": scene.home, "name": "lost"}]);
    let rule = draft("lost").set("sources", missing);
    rule.create(&scene.client).await?;
    let object = format!("{namespace}/secret/lost");
    let answer = wait_state(&scene, &object, &rule.name, "SourceNotFound").await?;
    says(&answer, "fix", "create the source");
    scene.secret("lost", &[("token", "two")]).await?;
    shell(control_plane, fix_command(&answer)?).await?;
    wait_state(&scene, &object, &rule.name, "Synced").await?;
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
    let object = format!("{namespace}/secret/absent");
    let (_, answer) = why(control_plane, Some(&user), &object)?;
    let told = "As far as you may read them, no rule makes a Secret named absent";
    assert!(answer["notes"].to_string().contains(told), "{answer:#}");
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
