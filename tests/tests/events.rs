//! What people read with `kubectl describe` and `kubectl events`: what went wrong with copies, told once and counted.

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use mimeo_tests::scenario::{SOON, Scene, Setting, delete, kubectl, uid};
use mimeo_tests::{AuditEvent, AuditMark, ControlPlane, Pair, create_secret, eventually};
use serde_json::json;

async fn setting() -> Result<Setting> {
    Setting::start(ControlPlane::builder().controller_manager(false).audit(true), Pair::builder()).await
}

/// Events about something of that kind, of that reason, in the order of what they are about.
async fn told(scene: &Scene<'_>, kind: &str, reason: &str) -> Result<Vec<Event>> {
    let events: Api<Event> = Api::namespaced(scene.client.clone(), "default");
    let mut told = events.list(&ListParams::default()).await?.items;
    told.retain(|event| about(event).0 == kind && event.reason.as_deref() == Some(reason));
    told.sort_by_key(|event| about(event).1);
    Ok(told)
}

fn about(event: &Event) -> (String, String) {
    let regarding = event.regarding.clone().unwrap_or_default();
    (regarding.kind.unwrap_or_default(), regarding.name.unwrap_or_default())
}

fn count(event: &Event) -> i32 {
    event.series.as_ref().map_or(1, |series| series.count)
}

async fn wait_told(scene: &Scene<'_>, kind: &str, reason: &str, want: impl Fn(&[Event]) -> bool) -> Result<Vec<Event>> {
    eventually(SOON, format!("Events {reason} about a {kind}"), || async {
        let told = told(scene, kind, reason).await?;
        if want(&told) { Ok(Some(told)) } else { bail!("{told:#?}") }
    })
    .await
}

#[tokio::test]
async fn what_fails_is_told_once_and_counted_across_restarts() -> Result<()> {
    let mut setting = setting().await?;
    let mark = {
        let scene = setting.scene("fails").await?;
        let mut namespaces = scene.namespaces(12).await?;
        namespaces.sort();
        for namespace in &namespaces {
            create_secret(&scene.client, namespace, "registry", &[("token", "theirs")]).await?;
        }
        scene.secret("registry", &[("token", "hunter2")]).await?;
        scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;
        let about_rule = wait_told(&scene, "ClusterReplication", "CopyFailed", |told| !told.is_empty()).await?;
        let event = &about_rule[0];
        assert_eq!((about_rule.len(), about(event).1.as_str(), count(event)), (1, scene.tag.as_str(), 12));
        let note = event.note.clone().unwrap_or_default();
        assert!(note.starts_with("12 copies in 12 namespaces, first ") && note.contains("Conflict"), "{note}");
        let told = (event.type_.as_deref(), event.action.as_deref(), event.reporting_controller.as_deref());
        assert_eq!(told, (Some("Warning"), Some("Reconcile"), Some("mimeo.dev/reconciler")));

        let about_namespaces = wait_told(&scene, "Namespace", "CopyFailed", |told| told.len() >= 10).await?;
        let names: Vec<String> = about_namespaces.iter().map(|event| about(event).1).collect();
        assert_eq!(names, namespaces[..10], "the first ten and no more");
        let shown = kubectl(&setting.control_plane, ["describe", "clusterreplication", &scene.tag])?;
        assert!(shown.contains("CopyFailed") && shown.contains(&note) && !shown.contains("hunter2"), "{shown}");
        let shown = kubectl(
            &setting.control_plane,
            ["events", "-n", "default", "--for", &format!("namespace/{}", namespaces[0])],
        )?;
        assert!(shown.contains("CopyFailed"), "{shown}");
        setting.control_plane.audit_mark().await?
    };
    restart(&mut setting).await?;
    let scene = setting.scene("after").await?;
    let counted = |told: &[Event]| told.iter().any(|event| count(event) == 24);
    let about_rule = wait_told(&scene, "ClusterReplication", "CopyFailed", counted).await?;
    assert_eq!(about_rule.len(), 1);
    // The rule's is written first.
    let ten = |told: &[Event]| told.iter().filter(|event| count(event) == 2).count() == 10;
    wait_told(&scene, "Namespace", "CopyFailed", ten).await?;
    assert_eq!(writes(&setting, &mark).await?, ["patch"; 11]);
    Ok(())
}

/// What Mimeo has done to Events since the mark.
async fn writes(setting: &Setting, mark: &AuditMark) -> Result<Vec<String>> {
    let events = setting.control_plane.audit_since(mark).await?;
    let writes = events.into_iter().filter(|event| setting.is_ours(event) && event.resource == "events");
    Ok(writes.filter(AuditEvent::is_write).map(|event| event.verb).collect())
}

async fn restart(setting: &mut Setting) -> Result<()> {
    if let Some(mut old) = setting.pair.reconciler.take() {
        assert!(old.program.stop(SOON).await?.success());
    }
    setting.pair.start_reconciler().await
}

#[tokio::test]
async fn what_is_made_anew_and_what_lost_its_source_are_told() -> Result<()> {
    let setting = setting().await?;
    let scene = setting.scene("anew").await?;
    let namespace = scene.namespace().await?;
    let sources: Api<Secret> = scene.secrets(&scene.home);
    scene.secret("registry", &[("token", "hunter2")]).await?;
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let first = uid(&scene.secrets(&namespace).get("registry").await?);
    scene
        .rule()
        .secret(&scene.home, "registry")
        .set("transform", json!({"type": "example.com/other"}))
        .replace(&scene.client)
        .await?;
    scene.wait_secret(&namespace, "registry", |copy| uid(copy) != first).await?;
    for kind in ["ClusterReplication", "Namespace"] {
        let told = wait_told(&scene, kind, "CopyRecreated", |told| !told.is_empty()).await?;
        assert_eq!((told.len(), told[0].type_.as_deref()), (1, Some("Normal")));
    }
    delete(&sources, "registry").await?;
    let told = wait_told(&scene, "ClusterReplication", "SourceGone", |told| !told.is_empty()).await?;
    let note = told[0].note.clone().unwrap_or_default();
    assert!(
        note.contains(&format!("v1/Secret/{}/registry", scene.home))
            && note.contains("it fed 1 copy of ")
            && note.contains(", which is deleted 60 seconds after it"),
        "{note}"
    );
    Ok(())
}
