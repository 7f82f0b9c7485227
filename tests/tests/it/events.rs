//! Events, as `kubectl describe` and `kubectl events` show them: each problem with copies is
//! reported once and counted.

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Setting, create, delete, kubectl, merge, put, uid, value, wait_for,
};
use mimeo_tests::{AuditEvent, AuditMark, ControlPlane, Pair, create_secret, eventually};
use serde_json::json;

async fn setting() -> Result<Setting> {
    Setting::start(
        ControlPlane::builder()
            .controller_manager(false)
            .audit(true),
        Pair::builder(),
    )
    .await
}

/// Returns the Events about objects of that kind with that reason, in the order of their
/// namespaces.
async fn told(scene: &Scene<'_>, kind: &str, reason: &str) -> Result<Vec<Event>> {
    let events: Api<Event> = Api::all(scene.client.clone());
    let mut told = events.list(&ListParams::default()).await?.items;
    let by_mimeo =
        |event: &Event| event.reporting_controller.as_deref() == Some("mimeo.dev/reconciler");
    told.retain(|event| {
        by_mimeo(event) && about(event).0 == kind && event.reason.as_deref() == Some(reason)
    });
    told.sort_by_key(namespace_of);
    Ok(told)
}

fn namespace_of(event: &Event) -> String {
    event.metadata.namespace.clone().unwrap_or_default()
}

fn about(event: &Event) -> (String, String) {
    let regarding = event.regarding.clone().unwrap_or_default();
    (
        regarding.kind.unwrap_or_default(),
        regarding.name.unwrap_or_default(),
    )
}

fn count(event: &Event) -> i32 {
    event.series.as_ref().map_or(1, |series| series.count)
}

async fn wait_told(
    scene: &Scene<'_>,
    kind: &str,
    reason: &str,
    want: impl Fn(&[Event]) -> bool,
) -> Result<Vec<Event>> {
    eventually(SOON, format!("Events {reason} about a {kind}"), || async {
        let told = told(scene, kind, reason).await?;
        if want(&told) {
            Ok(Some(told))
        } else {
            bail!("{told:#?}")
        }
    })
    .await
}

#[tokio::test]
async fn what_fails_is_told_once_and_counted_across_restarts() -> Result<()> {
    let mut setting = setting().await?;
    let (rule, mark) = {
        let scene = setting.scene("fails").await?;
        let mut namespaces = scene.namespaces(12).await?;
        namespaces.sort();
        for namespace in &namespaces {
            create_secret(&scene.client, namespace, "registry", &[("token", "theirs")]).await?;
        }
        scene.secret("registry", &[("token", "hunter2")]).await?;
        let rule = scene.rule().secret(&scene.home, "registry");
        suspended(&rule).create(&scene.client).await?;
        wait_conflicts(&scene, &rule, 12).await?;
        rule.replace(&scene.client).await?;
        let about_rule = wait_told(&scene, "ClusterReplication", "CopyFailed", |told| {
            !told.is_empty()
        })
        .await?;
        let event = &about_rule[0];
        assert_eq!(
            (about_rule.len(), about(event).1.as_str(), count(event)),
            (1, scene.tag.as_str(), 12)
        );
        let note = event.note.clone().unwrap_or_default();
        assert!(
            note.starts_with("12 copies in 12 namespaces, first ") && note.contains("Conflict"),
            "{note}"
        );
        let told = (
            event.type_.as_deref(),
            event.action.as_deref(),
            event.reporting_controller.as_deref(),
        );
        assert_eq!(
            told,
            (
                Some("Warning"),
                Some("Reconcile"),
                Some("mimeo.dev/reconciler")
            )
        );

        let about_copies =
            wait_told(&scene, "Secret", "CopyFailed", |told| told.len() >= 10).await?;
        let there: Vec<String> = about_copies.iter().map(namespace_of).collect();
        assert_eq!(there, namespaces[..10], "the first ten and no more");
        let shown = kubectl(
            &setting.control_plane,
            ["describe", "clusterreplication", &scene.tag],
        )?;
        assert!(
            shown.contains("CopyFailed") && shown.contains(&note) && !shown.contains("hunter2"),
            "{shown}"
        );
        let shown = kubectl(
            &setting.control_plane,
            ["events", "-n", &namespaces[0], "--for", "secret/registry"],
        )?;
        assert!(shown.contains("CopyFailed"), "{shown}");
        (rule, setting.control_plane.audit_mark().await?)
    };
    stop_reconciler(&mut setting).await?;
    let client = setting.control_plane.client().await?;
    suspended(&rule).replace(&client).await?;
    setting.pair.start_reconciler().await?;
    let scene = setting.scene("after").await?;
    wait_conflicts(&scene, &rule, 12).await?;
    rule.replace(&scene.client).await?;
    let counted = |told: &[Event]| told.iter().any(|event| count(event) == 24);
    let about_rule = wait_told(&scene, "ClusterReplication", "CopyFailed", counted).await?;
    assert_eq!(about_rule.len(), 1);
    // The Event about the rule is written first.
    let ten = |told: &[Event]| told.iter().filter(|event| count(event) == 2).count() == 10;
    wait_told(&scene, "Secret", "CopyFailed", ten).await?;
    assert_eq!(writes(&setting, &mark).await?, ["patch"; 11]);
    Ok(())
}

/// The same rule, suspended.
fn suspended(rule: &RuleSpec) -> RuleSpec {
    rule.clone().set("suspend", json!(true))
}

/// Waits until the status of a suspended rule shows this number of conflicts. Once the rule is
/// active, its copies then fail at the same time, however slow the API server is.
async fn wait_conflicts(scene: &Scene<'_>, rule: &RuleSpec, number: i32) -> Result<()> {
    eventually(SOON, "the plan", || async {
        let status = scene
            .wait_condition(&rule.name, "Ready", "False", "Suspended")
            .await?;
        let plan = status.plan.context("no plan")?;
        ensure!(plan.conflict == number, "{plan:?}");
        Ok(Some(()))
    })
    .await
}

/// Returns the verbs of Mimeo's writes to Events since the mark.
async fn writes(setting: &Setting, mark: &AuditMark) -> Result<Vec<String>> {
    let events = setting.control_plane.audit_since(mark).await?;
    let writes = events
        .into_iter()
        .filter(|event| setting.is_ours(event) && event.resource == "events");
    Ok(writes
        .filter(AuditEvent::is_write)
        .map(|event| event.verb)
        .collect())
}

async fn stop_reconciler(setting: &mut Setting) -> Result<()> {
    if let Some(mut old) = setting.pair.reconciler.take() {
        assert!(old.program.stop(SOON).await?.success());
    }
    Ok(())
}

#[tokio::test]
async fn what_is_made_anew_and_what_lost_its_source_are_told() -> Result<()> {
    let setting = setting().await?;
    let scene = setting.scene("anew").await?;
    let mut namespaces = scene.namespaces(2).await?;
    namespaces.sort();
    let sources: Api<Secret> = scene.secrets(&scene.home);
    scene.secret("registry", &[("token", "hunter2")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    rule.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let mut first = Vec::new();
    for namespace in &namespaces {
        first.push(uid(&scene.secrets(namespace).get("registry").await?));
    }
    let other = json!({"type": "example.com/other"});
    rule.set("transform", other).replace(&scene.client).await?;
    for (namespace, first) in namespaces.iter().zip(&first) {
        scene
            .wait_secret(namespace, "registry", |copy| uid(copy) != *first)
            .await?;
    }
    let normal = |event: &Event| event.type_.as_deref() == Some("Normal");
    let both = |told: &[Event]| told.iter().map(count).sum::<i32>() == 2;
    let about_rule = wait_told(&scene, "ClusterReplication", "CopyRecreated", both).await?;
    let note = about_rule[0].note.clone().unwrap_or_default();
    // On a busy machine, the second copy may be late. Then the note is about the first one.
    let starts = ["2 copies in namespaces ", "Secret registry in namespace "];
    assert!(
        about_rule.len() == 1
            && normal(&about_rule[0])
            && starts.iter().any(|start| note.starts_with(start))
            && note.contains("created again"),
        "{about_rule:#?}"
    );
    let about_copies = wait_told(&scene, "Secret", "CopyRecreated", both).await?;
    let there: Vec<String> = about_copies.iter().map(namespace_of).collect();
    assert_eq!(there, namespaces);
    for event in &about_copies {
        let note = event.note.clone().unwrap_or_default();
        assert!(
            normal(event) && note.contains("Secret registry"),
            "{event:#?}"
        );
    }
    delete(&sources, "registry").await?;
    let told = wait_told(&scene, "ClusterReplication", "SourceGone", |told| {
        !told.is_empty()
    })
    .await?;
    let note = told[0].note.clone().unwrap_or_default();
    assert!(
        note.contains(&format!("v1/Secret/{}/registry", scene.home))
            && note.contains("it is the source of 2 copies of ")
            && note.contains("; the rule's whenSourceDeleted is Delete"),
        "{note}"
    );
    Ok(())
}

#[tokio::test]
async fn what_is_adopted_and_what_is_held_is_told_of_the_rule_and_in_the_first_namespaces()
-> Result<()> {
    let setting = setting().await?;
    let scene = setting.scene("many").await?;
    let mut namespaces = scene.namespaces(24).await?;
    namespaces.sort();
    let (adopted, _) = namespaces.split_at(12);
    for namespace in adopted {
        create_secret(
            &scene.client,
            namespace,
            "registry",
            &[("token", "hunter2")],
        )
        .await?;
    }
    scene.secret("registry", &[("token", "hunter2")]).await?;
    let rule = scene
        .rule()
        .secret(&scene.home, "registry")
        .set("conflictPolicy", json!("Adopt"));
    rule.create(&scene.client).await?;
    scene.wait_counts(&scene.tag, [24, 24, 0]).await?;
    let so = |told: &[Event]| !told.is_empty();
    // A slow API server may answer after the Event was written. A later one then counts the rest.
    let all = |told: &[Event]| told.first().is_some_and(|event| count(event) == 12);
    let about_rule = wait_told(&scene, "ClusterReplication", "CopyAdopted", all).await?;
    assert_eq!(
        (about_rule.len(), about(&about_rule[0]).1.as_str()),
        (1, scene.tag.as_str())
    );
    let note = about_rule[0].note.clone().unwrap_or_default();
    assert!(note.contains("conflictPolicy"), "{note}");
    let words = |event: &Event| {
        (
            event.type_.clone().unwrap_or_default(),
            event.action.clone().unwrap_or_default(),
        )
    };
    assert_eq!(
        words(&about_rule[0]),
        ("Normal".to_owned(), "Reconcile".to_owned())
    );
    let about_copies = wait_told(&scene, "Secret", "CopyAdopted", |told| told.len() >= 10).await?;
    let there: Vec<String> = about_copies.iter().map(namespace_of).collect();
    if note.starts_with("12 copies in 12 namespaces, first ") {
        assert_eq!(there, adopted[..10], "the first ten and no more");
    }
    assert!(there.iter().all(|name| adopted.contains(name)), "{there:?}");

    // All namespaces lose their copies at once.
    let nowhere = json!([{"namespaces": [format!("{}-nowhere", scene.tag)]}]);
    rule.set("targets", nowhere).replace(&scene.client).await?;
    scene
        .wait_condition(&scene.tag, "Stalled", "True", "DeletionHeld")
        .await?;
    let about_rule = wait_told(&scene, "ClusterReplication", "DeletionHeld", so).await?;
    assert_eq!(
        (about_rule.len(), words(&about_rule[0])),
        (1, ("Warning".to_owned(), "Reconcile".to_owned()))
    );
    let note = about_rule[0].note.clone().unwrap_or_default();
    assert!(
        note.contains("Mimeo does not delete")
            && note.contains("confirm")
            && note.contains("24 copies"),
        "{note}"
    );
    let about_copies = wait_told(&scene, "Secret", "DeletionHeld", |told| told.len() >= 10).await?;
    let there: Vec<String> = about_copies.iter().map(namespace_of).collect();
    assert_eq!(there, namespaces[..10], "the first ten and no more");
    for event in &about_copies {
        assert!(namespaces.contains(&namespace_of(event)), "{event:#?}");
        let note = event.note.clone().unwrap_or_default();
        assert!(
            note.contains(&scene.tag) && note.contains("Secret registry"),
            "{note}"
        );
        let related = event.related.clone().unwrap_or_default();
        assert_eq!(
            (related.kind.as_deref(), related.name.as_deref()),
            (Some("ClusterReplication"), Some(&*scene.tag))
        );
    }
    let shown = kubectl(
        &setting.control_plane,
        ["describe", "clusterreplication", &scene.tag],
    )?;
    assert!(
        shown.contains("CopyAdopted")
            && shown.contains("DeletionHeld")
            && !shown.contains("hunter2"),
        "{shown}"
    );
    Ok(())
}

/// A tenant can read the Events of its own namespace, and no others.
#[tokio::test]
async fn of_a_namespaces_own_rule_its_namespace_is_told_and_nobody_else() -> Result<()> {
    let setting = setting().await?;
    let scene = setting.scene("own").await?;
    let (home, other) = (scene.namespace().await?, scene.namespace().await?);
    let names: Vec<String> = (0..12).map(|number| format!("copy-{number:02}")).collect();
    for name in &names {
        create_secret(&scene.client, &home, name, &[("token", "theirs")]).await?;
    }
    create_secret(&scene.client, &home, "registry", &[("token", "hunter2")]).await?;
    let targets: Vec<_> = names
        .iter()
        .map(|name| json!({"namespaces": [home], "copyName": format!("{name}")}))
        .collect();
    let metadata = json!({"namespace": home, "name": "r"});
    let spec = json!({"sources": [{"apiVersion": "v1", "kind": "Secret", "name": "registry"}], "targets": targets});
    let rule = json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication", "metadata": metadata, "spec": spec});
    create(
        &scene.client,
        &format!("namespaces/{home}/replications"),
        &rule,
    )
    .await?;
    let of_rule = async |reason: &'static str, want: i32| {
        eventually(
            SOON,
            format!("{want} times {reason} about the Replication"),
            || async {
                let told = told(&scene, "Replication", reason).await?;
                if told.len() == 1 && count(&told[0]) == want {
                    Ok(Some(told))
                } else {
                    bail!("{told:#?}")
                }
            },
        )
        .await
    };
    let failed = of_rule("CopyFailed", 12).await?;
    let note = failed[0].note.clone().unwrap_or_default();
    assert!(
        note.contains(" in namespace ") && note.contains("Conflict"),
        "{note}"
    );
    let regarding = failed[0].regarding.clone().unwrap_or_default();
    assert_eq!(
        (regarding.namespace.as_deref(), regarding.name.as_deref()),
        (Some(&*home), Some("r"))
    );
    let shown = kubectl(
        &setting.control_plane,
        ["describe", "-n", &home, "replication", "r"],
    )?;
    assert!(
        shown.contains("CopyFailed") && !shown.contains("hunter2"),
        "{shown}"
    );

    for name in &names {
        delete(&scene.secrets(&home), name).await?;
    }
    let mut copies = Vec::new();
    for name in &names {
        copies.push(wait_for(scene.secrets(&home), name.clone(), |_| true).await?);
    }
    for name in &names {
        merge(&scene.secrets(&home), name, json!({"immutable": true})).await?;
    }
    put(&scene.secrets(&home), "registry", &[("token", "hunter3")]).await?;
    of_rule("CopyRecreated", 12).await?;
    delete(&scene.secrets(&home), "registry").await?;
    let gone = of_rule("SourceGone", 1).await?;
    let note = gone[0].note.clone().unwrap_or_default();
    assert!(
        note.contains(&format!("v1/Secret/{home}/registry"))
            && note.contains("it is the source of 12 copies"),
        "{note}"
    );
    // All Events are in the namespace itself, and none mentions the other one.
    let everywhere: Api<Event> = Api::all(scene.client.clone());
    for event in everywhere.list(&ListParams::default()).await?.items {
        let reported = event.reporting_controller.as_deref() == Some("mimeo.dev/reconciler");
        assert!(!reported || namespace_of(&event) == home, "{event:#?}");
        assert!(
            !serde_json::to_string(&event)?.contains(&other),
            "{event:#?}"
        );
    }
    Ok(())
}

/// An editor of the copy can read only the Events of its namespace. They must say why the edit was
/// reverted.
#[tokio::test]
async fn an_edit_that_was_reverted_is_told_where_it_was_made() -> Result<()> {
    let setting = setting().await?;
    let scene = setting.scene("edit").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "hunter2")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    let copies = scene.secrets(&namespace);
    let edited = kubectl(
        &setting.control_plane,
        [
            "patch",
            "secret",
            "registry",
            "-n",
            &namespace,
            "--field-manager=wright",
            "-p",
            r#"{"stringData":{"token":"mine"}}"#,
        ],
    );
    edited?;
    scene
        .wait_secret(&namespace, "registry", |copy| {
            value(copy, "token").as_deref() == Some("hunter2")
        })
        .await?;
    let told = wait_told(&scene, "Secret", "EditReverted", |told| !told.is_empty()).await?;
    let [event] = &told[..] else {
        bail!("{told:#?}")
    };
    assert_eq!(namespace_of(event), namespace);
    assert_eq!(
        event.regarding.clone().unwrap_or_default().uid,
        Some(uid(&copies.get("registry").await?))
    );
    let source = format!("v1/Secret/{}/registry", scene.home);
    assert_eq!(
        event.note.clone().unwrap_or_default(),
        format!(
            "ClusterReplication/{}: Secret registry: an edit was reverted; to change the copy, \
             change its source {source}; last written by field manager \"wright\"",
            scene.tag
        )
    );
    // A deletion is told like an edit.
    delete(&copies, "registry").await?;
    let told = wait_told(&scene, "Secret", "CopyRestored", |told| !told.is_empty()).await?;
    let [event] = &told[..] else {
        bail!("{told:#?}")
    };
    assert_eq!(
        (namespace_of(event), event.note.clone().unwrap_or_default()),
        (
            namespace.clone(),
            format!(
                "ClusterReplication/{}: Secret registry: another client deleted it, and Mimeo \
                 created it again; to remove the copy for good, have the rule leave this namespace \
                 out",
                scene.tag
            )
        )
    );
    let shown = kubectl(
        &setting.control_plane,
        ["events", "-n", &namespace, "--for", "secret/registry"],
    )?;
    assert!(
        shown.contains("EditReverted") && shown.contains("CopyRestored"),
        "{shown}"
    );
    Ok(())
}
