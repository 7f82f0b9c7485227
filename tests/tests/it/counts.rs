//! The exact number of Mimeo's requests to the API server, from its audit log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::stream::{StreamExt as _, TryStreamExt as _, iter};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client};
use mimeo_tests::scenario::{
    SOON, Scene, Setting, apply, condition, delete, label, merge, put, value, version,
};
use mimeo_tests::{
    AuditEvent, AuditMark, ControlPlane, Pair, create_namespace, create_secret, eventually,
    skipped_before,
};
use serde_json::json;

use crate::stages::{self, IN_THE_WAY, LOAD, MANY, Many};

const COPIES: usize = 1000;
const PENDING_LABEL: &str = "mimeo.dev/copies";

/// Without a controller manager, no other client writes into the namespaces. However slow the
/// webhook is, the reconciler leaves new namespaces to it.
async fn setting() -> Result<Setting> {
    Setting::start(
        ControlPlane::builder()
            .controller_manager(false)
            .audit(true),
        Pair::builder().reconciler_args(["--takeover-delay", "1h"]),
    )
    .await
}

/// An API server ends the watch of a slow client, as on a busy machine. The client resumes it at the
/// same version.
fn is_resumed(event: &AuditEvent) -> bool {
    event.verb == "watch"
        && event.uri.contains("resourceVersion=")
        && !event.uri.contains("sendInitialEvents")
}

/// Returns the requests of Mimeo's programs since the mark. Renewals of Leases and resumed watches
/// are left out.
async fn asked(setting: &Setting, mark: &AuditMark) -> Result<Vec<AuditEvent>> {
    let counts = |event: &AuditEvent| {
        setting.is_ours(event) && event.resource != "leases" && !is_resumed(event)
    };
    Ok(setting
        .control_plane
        .audit_since(mark)
        .await?
        .into_iter()
        .filter(counts)
        .collect())
}

fn told(events: &[AuditEvent]) -> Vec<String> {
    events
        .iter()
        .map(|event| format!("{} {} {} {}", event.user, event.verb, event.uri, event.code))
        .collect()
}

fn is_status(event: &AuditEvent) -> bool {
    event.resource == "clusterreplications" && event.subresource == "status"
}

/// Splits the writes into those of copies and all others.
fn writes(events: &[AuditEvent]) -> (Vec<&AuditEvent>, Vec<&AuditEvent>) {
    events
        .iter()
        .filter(|event| event.is_write())
        .partition(|event| event.resource == "secrets")
}

#[tokio::test]
async fn a_thousand_copies_cost_a_thousand_writes_and_then_none() -> Result<()> {
    let turn = LOAD.lock().await;
    let setting = setting().await?;
    let scene = setting.scene("count").await?;
    if skipped_before(&scene.client, 34, "streaming lists").await? {
        return Ok(());
    }
    let namespaces = many_namespaces(&scene, "old", COPIES).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    created(&scene, &namespaces).await?;
    rotated(&scene).await?;
    edited_beside(&scene).await?;
    repaired(&scene, &namespaces).await?;
    let count = new_namespaces(&scene).await?;
    drop(turn);
    idle(&scene, namespaces.len() + count).await
}

/// One process is made for this many namespaces. In some of them a foreign object is in the way.
#[tokio::test]
async fn ten_thousand_namespaces_are_counted_for_the_author_and_in_the_status() -> Result<()> {
    let _turn = LOAD.lock().await;
    let Many { setting, told } = stages::many().await?;
    ensure!(
        told.contains(&format!("Warning: Mimeo: the rule selects {MANY} of ")),
        "{told}"
    );
    let scene = setting.scene("many").await?;
    let status = scene
        .wait_counts(Many::RULE, [MANY, MANY - IN_THE_WAY, IN_THE_WAY])
        .await?;
    let named: Vec<_> = status
        .failures
        .iter()
        .map(|one| (one.namespace.clone(), &*one.reason))
        .collect();
    let first: Vec<_> = Many::in_the_way()
        .take(20)
        .map(|namespace| (namespace, "Conflict"))
        .collect();
    assert_eq!(named, first);
    let size = serde_json::to_string(&status)?.len();
    assert!(size < 16 << 10, "{size} bytes");
    Ok(())
}

/// Creates namespaces of the scene, 32 at a time.
async fn many_namespaces(scene: &Scene<'_>, kind: &str, count: usize) -> Result<Vec<String>> {
    let create = |number| async move {
        let name = format!("{}-{kind}-{number}", scene.tag);
        create_namespace(&scene.client, &name, &[("scene", &scene.tag)]).await?;
        Ok(name)
    };
    iter(0..count)
        .map(create)
        .buffer_unordered(32)
        .try_collect()
        .await
}

async fn created(scene: &Scene<'_>, namespaces: &[String]) -> Result<()> {
    let mark = scene.setting.control_plane.audit_mark().await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    let rule = rule.set(
        "transform",
        json!({"annotations": {"exclude": ["example.com/*"]}}),
    );
    rule.create(&scene.client).await?;
    scene.wait_counts(&scene.tag, [COPIES, COPIES, 0]).await?;

    let events = asked(scene.setting, &mark).await?;
    let (copies, others) = writes(&events);
    assert_eq!(copies.len(), COPIES, "writes to create");
    scene.assert_paced(&scene.tag, &mark).await?;
    assert!(
        copies
            .iter()
            .all(|event| event.code == 201 && event.verb == "patch")
    );
    let reached: BTreeSet<_> = copies.iter().map(|event| &event.namespace).collect();
    assert_eq!(reached, namespaces.iter().collect());
    let known = |event: &&&AuditEvent| {
        is_status(event) || (event.resource == "configmaps" && event.name == "mimeo-kinds")
    };
    assert_eq!(
        others.iter().filter(known).count(),
        others.len(),
        "{others:#?}"
    );
    let reads: Vec<_> = events
        .iter()
        .filter(|event| event.verb == "get" && reached.contains(&event.namespace))
        .collect();
    assert!(
        reads.is_empty(),
        "nothing is read to be written: {reads:#?}"
    );
    assert_eq!(
        events.iter().filter(|event| event.verb == "list").count(),
        0
    );
    // Only the webhook asks. May the author read the source, and create, update and delete copies
    // (4)? May the webhook read the source and write copies (5)? May the reconciler do its work
    // with the kind (6)? May the author list namespaces, so that the warning can count them (1)?
    let reviews = events
        .iter()
        .filter(|event| event.resource == "subjectaccessreviews")
        .count();
    // If the webhook does not answer in time, the author sends the rule again.
    let attempts = scene.setting.control_plane.audit_since(&mark).await?;
    let attempts = attempts
        .iter()
        .filter(|event| (&*event.verb, &*event.name) == ("create", &*scene.tag))
        .count();
    let each = 4 + 5 + 6 + 1;
    assert!(
        (each..=each * attempts).contains(&reviews),
        "{reviews} reviews in {attempts} attempts"
    );
    Ok(())
}

async fn rotated(scene: &Scene<'_>) -> Result<()> {
    let mark = scene.setting.control_plane.audit_mark().await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    let source = scene.secrets(&scene.home).get("registry").await?;
    wait_taken_in(scene, &source).await?;
    scene.wait_synced(&scene.tag).await?;

    let events = asked(scene.setting, &mark).await?;
    let (copies, others) = writes(&events);
    assert_eq!(copies.len(), COPIES, "writes to rotate");
    scene.assert_paced(&scene.tag, &mark).await?;
    assert!(copies.iter().all(|event| event.code == 200));
    assert_eq!(
        copies
            .iter()
            .map(|event| &event.namespace)
            .collect::<BTreeSet<_>>()
            .len(),
        COPIES
    );
    assert!(others.iter().all(|event| is_status(event)), "{others:#?}");
    let rest: Vec<_> = events
        .iter()
        .filter(|event| !event.is_write())
        .cloned()
        .collect();
    assert!(rest.is_empty(), "{:#?}", told(&rest));
    Ok(())
}

/// Edits two fields that the copies do not have: one that no copy carries, and one that this rule
/// excludes.
async fn edited_beside(scene: &Scene<'_>) -> Result<()> {
    let mark = scene.setting.control_plane.audit_mark().await?;
    for key in [
        "kubectl.kubernetes.io/last-applied-configuration",
        "example.com/note",
    ] {
        let annotation = json!({"metadata": {"annotations": {key: "changed"}}});
        let source = merge(&scene.secrets(&scene.home), "registry", annotation).await?;
        wait_taken_in(scene, &source).await?;
    }
    let events = asked(scene.setting, &mark).await?;
    let (copies, _) = writes(&events);
    assert_eq!(copies.len(), 0, "{copies:#?}");
    // Only the source's new version in the status is written.
    assert!(
        events.iter().all(is_status) && events.len() <= 2,
        "{:#?}",
        told(&events)
    );
    Ok(())
}

/// Waits until the rule's status has this version of the source.
async fn wait_taken_in(scene: &Scene<'_>, source: &Secret) -> Result<()> {
    eventually(SOON, "the source's version in the status", || async {
        let rules: Api<mimeo_api::ClusterReplication> = Api::all(scene.client.clone());
        let status = rules.get(&scene.tag).await?.status.unwrap_or_default();
        let seen = status
            .sources
            .first()
            .and_then(|source| source.resource_version.clone());
        if seen == Some(version(source)) {
            Ok(Some(()))
        } else {
            bail!("{seen:?}")
        }
    })
    .await
}

async fn repaired(scene: &Scene<'_>, namespaces: &[String]) -> Result<()> {
    let whole = |copy: &Secret| {
        value(copy, "token").as_deref() == Some("two")
            && label(copy, "app.kubernetes.io/managed-by") == Some("mimeo")
    };
    let mark = scene.setting.control_plane.audit_mark().await?;
    put(
        &scene.secrets(&namespaces[0]),
        "registry",
        &[("token", "theirs")],
    )
    .await?;
    delete(&scene.secrets(&namespaces[1]), "registry").await?;
    let bare = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
    merge(&scene.secrets(&namespaces[2]), "registry", bare).await?;
    for (namespace, want) in namespaces.iter().zip([&[200][..], &[201], &[409, 200]]) {
        scene.wait_secret(namespace, "registry", whole).await?;
        let events = asked(scene.setting, &mark).await?;
        let here: Vec<_> = events
            .iter()
            .filter(|event| event.namespace == *namespace)
            .collect();
        let answers: Vec<_> = here
            .iter()
            .map(|event| (event.verb.as_str(), event.code))
            .collect();
        assert_eq!(
            answers,
            want.iter().map(|code| ("patch", *code)).collect::<Vec<_>>(),
            "{here:#?}"
        );
    }
    Ok(())
}

/// Creates namespaces one after another, and at once. Each causes two writes: the copy and the
/// removal of the pending label.
async fn new_namespaces(scene: &Scene<'_>) -> Result<usize> {
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;
    let mark = scene.setting.control_plane.audit_mark().await?;
    let mut new = Vec::new();
    for number in 0..5 {
        new.extend(many_namespaces(scene, &format!("new{number}"), 1).await?);
        wait_unmarked(scene, &new).await?;
    }
    new.extend(many_namespaces(scene, "burst", 25).await?);
    wait_unmarked(scene, &new).await?;
    for namespace in &new {
        scene.wait_secret(namespace, "registry", |_| true).await?;
    }
    let events = asked(scene.setting, &mark).await?;
    // If the webhook does not answer in time, the API server stores a namespace without the pending
    // label. The reconciler then writes its copy.
    let all = scene.setting.control_plane.audit_since(&mark).await?;
    let unasked: BTreeSet<&str> = all
        .iter()
        .filter(|event| event.resource == "namespaces" && !event.passed_over.is_empty())
        .map(|event| &*event.name)
        .collect();
    for namespace in new.iter().filter(|name| !unasked.contains(name.as_str())) {
        let here: Vec<_> = events
            .iter()
            .filter(|event| event.namespace == *namespace)
            .cloned()
            .collect();
        let sent: BTreeMap<_, _> = here
            .iter()
            .map(|event| (event.resource.as_str(), (&*event.verb, event.code)))
            .collect();
        let want = [("secrets", ("patch", 201)), ("namespaces", ("patch", 200))];
        assert_eq!(
            (sent, here.len()),
            (want.into_iter().collect(), 2),
            "{:#?}",
            told(&here)
        );
    }
    let rest: Vec<_> = events
        .iter()
        .filter(|event| !new.contains(&event.namespace) && !is_status(event))
        .cloned()
        .collect();
    assert!(rest.is_empty(), "{:#?}", told(&rest));
    Ok(new.len())
}

async fn wait_unmarked(scene: &Scene<'_>, namespaces: &[String]) -> Result<()> {
    let all: Api<Namespace> = Api::all(scene.client.clone());
    for namespace in namespaces {
        eventually(SOON, "the pending label's removal", || async {
            Ok(label(&all.get(namespace).await?, PENDING_LABEL)
                .is_none()
                .then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Counts the requests in half a minute without any change.
async fn idle(scene: &Scene<'_>, copies: usize) -> Result<()> {
    scene.wait_counts(&scene.tag, [copies, copies, 0]).await?;
    let asked_within = async |time: Duration| {
        let mark = scene.setting.control_plane.audit_mark().await?;
        tokio::time::sleep(time).await;
        let mut events = asked(scene.setting, &mark).await?;
        // Events about the earlier edits may come up to a minute later.
        events.retain(|event| event.verb != "watch" && event.resource != "events");
        anyhow::Ok(events)
    };
    // A status is written at most once a second. After two seconds without one, none is due.
    eventually(SOON, "the last status", || async {
        let events = asked_within(Duration::from_secs(2)).await?;
        ensure!(events.is_empty(), "{:#?}", told(&events));
        Ok(Some(()))
    })
    .await?;
    let before = gate_changed(&scene.client, &scene.tag).await?;
    let mut idle = asked_within(Duration::from_secs(30)).await?;
    if gate_changed(&scene.client, &scene.tag).await? != before {
        idle.retain(|event| !is_status(event));
    }
    assert!(idle.is_empty(), "{:#?}", told(&idle));
    Ok(())
}

/// Returns when the rule's `PodGateActive` last changed. It changes if the webhook is paused for so
/// long that it seems to be dead.
async fn gate_changed(client: &Client, rule: &str) -> Result<Option<Time>> {
    let rules: Api<mimeo_api::ClusterReplication> = Api::all(client.clone());
    let status = rules.get(rule).await?.status.unwrap_or_default();
    Ok(condition(&status, "PodGateActive").map(|gate| gate.last_transition_time.clone()))
}

// ---- restarts ----

const OTHERS: usize = 500;

/// The requests: two scopes of sources, and the CRDs. Each CRD is read once for a comparison. Those
/// of grants and policies are watched like those of rules.
const MOST: usize = 20 + 2 + (4 + 2);

#[tokio::test]
async fn a_restart_with_nothing_to_do_asks_little_and_writes_nothing_whatever_else_there_is()
-> Result<()> {
    let mut setting = setting().await?;
    let (client, home, rule) = {
        let scene = setting.scene("restart").await?;
        if skipped_before(&scene.client, 34, "streaming lists").await? {
            return Ok(());
        }
        many_namespaces(&scene, "old", 50).await?;
        scene.secret("registry", &[("token", "one")]).await?;
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shop", "namespace": scene.home}});
        apply(&scene.client, &map).await?;
        scene
            .rule()
            .secret(&scene.home, "registry")
            .source("v1", "ConfigMap", &scene.home, "shop")
            .create(&scene.client)
            .await?;
        scene.wait_synced(&scene.tag).await?;
        scene
            .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
            .await?;
        (scene.client.clone(), scene.home.clone(), scene.tag.clone())
    };
    let before = restart(&mut setting, &client, &rule, &BTreeMap::new()).await?;
    assert!(before.values().sum::<usize>() <= MOST, "{before:#?}");

    let create = |number| {
        let (client, home) = (client.clone(), home.clone());
        async move { create_secret(&client, &home, &format!("other-{number}"), &[("data", "x")]).await }
    };
    iter(0..OTHERS)
        .map(create)
        .buffer_unordered(32)
        .try_collect::<Vec<_>>()
        .await?;
    let after = restart(&mut setting, &client, &rule, &before).await?;
    // It does not depend on other objects. The first count may lack a late request.
    assert!(
        after.values().sum::<usize>() <= MOST,
        "{after:#?}, and before {before:#?}"
    );
    Ok(())
}

/// Stops the reconciler and starts another one. Returns the requests until it has made these
/// requests and is at rest: how often each verb and path.
async fn restart(
    setting: &mut Setting,
    client: &Client,
    rule: &str,
    least: &BTreeMap<String, usize>,
) -> Result<BTreeMap<String, usize>> {
    let gate = gate_changed(client, rule).await?;
    let mut old = setting.pair.reconciler.take().context("no reconciler")?;
    assert!(old.program.stop(SOON).await?.success());
    let mark = setting.control_plane.audit_mark().await?;
    setting.pair.start_reconciler().await?;
    let replica = setting.pair.reconciler.as_ref().context("no reconciler")?;
    eventually(SOON, "the reconciler to lead", || async {
        let text = replica.metrics()?;
        let leads = text.lines().any(|line| line == "mimeo_leader 1");
        // Mimeo has read its copies once it counts those that are synced.
        let synced = "mimeo_copies_synced{rule_kind=\"ClusterReplication\"} 100";
        ensure!(leads && text.contains(synced), "{text}");
        Ok(Some(()))
    })
    .await?;
    let name = setting.pair.reconciler_user().name();
    let path = |event: &AuditEvent| {
        let path = event.uri.split('?').next().unwrap_or_default();
        format!("{} {path}", event.verb)
    };
    eventually(SOON, "the requests of the last restart", || async {
        let all = setting.control_plane.audit_since(&mark).await?;
        let ours = all.iter().filter(|event| event.user == name);
        let asked: BTreeSet<String> = ours.map(path).collect();
        let missing: Vec<_> = least.keys().filter(|path| !asked.contains(*path)).collect();
        ensure!(missing.is_empty(), "{missing:#?}");
        Ok(Some(()))
    })
    .await?;
    let mut seen = 0;
    loop {
        // Long enough for a status, which is written once a second, and for the first look at the
        // sources.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let now = asked(setting, &mark).await?.len();
        if now == seen {
            break;
        }
        seen = now;
    }
    let gate_changed = gate_changed(client, rule).await? != gate;
    let all = setting.control_plane.audit_since(&mark).await?;
    let mut asked: BTreeMap<String, usize> = BTreeMap::new();
    for event in all.iter().filter(|event| event.user == name) {
        if event.resource == "leases" || is_resumed(event) {
            // The number of renewals depends on the time. Whether the watch of the reconciler's own
            // Lease is open when it takes the Lease depends on chance.
            asked.entry(path(event)).or_insert(1);
            continue;
        }
        if gate_changed && is_status(event) {
            continue;
        }
        assert!(!event.is_write(), "{event:#?}");
        *asked.entry(path(event)).or_default() += 1;
    }
    eprintln!("{asked:#?}");
    Ok(asked)
}
