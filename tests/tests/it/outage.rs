//! Failures around Mimeo: of webhooks, API servers and etcd, and slow answers. Nothing is lost, and
//! nothing is written twice.

mod certificates;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use futures::{TryStreamExt, future::join_all};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use mimeo_model::names::{CLUSTER_REPLICATION, PENDING_LABEL};
use mimeo_tests::scenario::{
    SOON, Scene, Setting, condition, delete, label, merge, of, put, relabel, value, wait_for,
    wait_gone,
};
use mimeo_tests::traffic::{
    create_asked, create_namespaces, create_patiently, pod, precedes, revision,
};
use mimeo_tests::{
    AuditEvent, AuditMark, Component, ControlPlane, NAMESPACE, Pair, create_namespace,
    create_secret, eventually, unique,
};
use serde_json::json;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard, OnceCell};
use tokio::task::JoinHandle;

const REGISTRY: &str = "registry";
/// Webhooks stop at once. All of them share one address, which does not point to a stopped webhook
/// by then.
const AT_ONCE: [&str; 2] = ["--shutdown-delay", "100ms"];

/// Mimeo's timeout for an answer in the tests that stop servers.
const IMPATIENT: &str = "2s";

/// A stage for one test at a time. Each test restores it.
struct Exclusive(
    OnceCell<Result<AsyncMutex<Setting>, String>>,
    fn() -> (mimeo_tests::Builder, mimeo_tests::PairBuilder),
);

impl Exclusive {
    const fn new(what: fn() -> (mimeo_tests::Builder, mimeo_tests::PairBuilder)) -> Self {
        Self(OnceCell::const_new(), what)
    }

    async fn get(&'static self) -> Result<MutexGuard<'static, Setting>> {
        let start = || async {
            let (control_plane, pair) = (self.1)();
            let started = Setting::start(control_plane, pair).await;
            started
                .map(AsyncMutex::new)
                .map_err(|error| format!("{error:#}"))
        };
        let started = self
            .0
            .get_or_init(start)
            .await
            .as_ref()
            .map_err(|error| anyhow!("{error}"))?;
        Ok(started.lock().await)
    }
}

/// The stage for failures of Mimeo's own programs.
static PROGRAMS: Exclusive = Exclusive::new(|| {
    (
        ControlPlane::builder().audit(true),
        Pair::builder().webhook_args(AT_ONCE),
    )
});

/// The stage for failures of servers. Mimeo uses the first API server, and the test observes
/// through the second. The Lease is long, so the leader keeps it while its API server is down.
static SERVERS: Exclusive = Exclusive::new(|| {
    let pair = Pair::builder().reconciler_args(["--request-timeout", IMPATIENT]);
    (ControlPlane::builder().api_servers(2).audit(true), pair)
});

/// The history of all stored states of one rule's copies, seen from an API server that stays up.
struct Chronicle {
    states: Arc<Mutex<BTreeMap<String, Vec<State>>>>,
    reading: JoinHandle<()>,
}

/// One stored state of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    revision: u64,
    text: String,
}

impl Chronicle {
    async fn begin(scene: &Scene<'_>) -> Result<Self> {
        let client = steady(scene.setting).await?;
        let selector = format!("{CLUSTER_REPLICATION}={}", scene.tag);
        let secrets: Api<Secret> = Api::all(client);
        let list = secrets
            .list(&ListParams::default().labels(&selector))
            .await?;
        let states = Arc::default();
        list.items.iter().for_each(|copy| enter(&states, copy));
        let (into, mut version) = (
            Arc::clone(&states),
            list.metadata.resource_version.unwrap_or_default(),
        );
        let reading = tokio::spawn(async move {
            // A watch that breaks continues from its last version. If states are lost, the test
            // fails as if a copy were lost.
            loop {
                let _ = follow(&secrets, &selector, &mut version, &into).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Ok(Self { states, reading })
    }

    fn states(&self) -> BTreeMap<String, Vec<State>> {
        self.states
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns the number of copies that have been stored with this text.
    fn written(&self, text: &str) -> usize {
        self.states()
            .values()
            .filter(|states| states.iter().any(|state| state.text == text))
            .count()
    }

    /// Waits until this many copies have been stored with this text.
    async fn reaches(&self, text: &str, count: usize) -> Result<()> {
        eventually(SOON, format!("{count} copies with {text:?}"), || async {
            let written = self.written(text);
            if written >= count {
                Ok(Some(()))
            } else {
                bail!("{written} copies")
            }
        })
        .await
    }

    /// Checks that each of these copies was stored with these texts, once each and in this order.
    fn assert_texts(&self, namespaces: &[String], want: &[&str]) {
        let states = self.states();
        for namespace in namespaces {
            let states = states
                .get(&format!("{namespace}/{REGISTRY}"))
                .map(Vec::as_slice)
                .unwrap_or_default();
            let texts: Vec<&str> = states.iter().map(|state| &*state.text).collect();
            assert_eq!(texts, want, "{namespace}: {states:#?}");
        }
    }
}

impl Drop for Chronicle {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn follow(
    secrets: &Api<Secret>,
    selector: &str,
    version: &mut String,
    into: &Mutex<BTreeMap<String, Vec<State>>>,
) -> Result<()> {
    let params = WatchParams::default().labels(selector);
    let mut events = std::pin::pin!(secrets.watch(&params, version).await?);
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(copy) | WatchEvent::Modified(copy) => {
                enter(into, &copy);
                *version = copy.metadata.resource_version.unwrap_or_default();
            }
            WatchEvent::Deleted(copy) => {
                *version = copy.metadata.resource_version.unwrap_or_default();
            }
            WatchEvent::Bookmark(mark) => *version = mark.metadata.resource_version,
            WatchEvent::Error(status) if status.code == 410 => {
                let list = secrets
                    .list(&ListParams::default().labels(selector))
                    .await?;
                list.items.iter().for_each(|copy| enter(into, copy));
                *version = list.metadata.resource_version.unwrap_or_default();
                return Ok(());
            }
            WatchEvent::Error(status) => bail!("{status:?}"),
        }
    }
    Ok(())
}

fn enter(into: &Mutex<BTreeMap<String, Vec<State>>>, copy: &Secret) {
    let meta = &copy.metadata;
    let state = State {
        revision: revision(copy).unwrap_or_default(),
        text: value(copy, "password").unwrap_or_default(),
    };
    let name = format!(
        "{}/{}",
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default()
    );
    let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
    let states = into.entry(name).or_default();
    if states
        .last()
        .is_none_or(|last| last.revision < state.revision)
    {
        states.push(state);
    }
}

/// A position in the audit logs, and the number of Mimeo's writes without a known result by then.
struct Since {
    audit: AuditMark,
    unheard: u64,
}

impl Since {
    async fn now(setting: &Setting) -> Result<Self> {
        let audit = setting.control_plane.audit_mark().await?;
        let unheard = unheard(setting)?;
        Ok(Self { audit, unheard })
    }
}

/// Returns the number of copy writes without a known result, by the metrics of Mimeo's programs.
fn unheard(setting: &Setting) -> Result<u64> {
    let mut unheard = 0;
    for replica in setting.pair.webhooks.iter().chain(&setting.pair.reconciler) {
        let text = replica.metrics()?;
        let lines = text.lines().filter(|line| {
            line.starts_with("mimeo_copy_requests_total{")
                && line.contains("result=\"unavailable\"")
        });
        for line in lines {
            let (_, count) = line.rsplit_once(' ').context("no count")?;
            unheard += count.parse::<u64>()?;
        }
    }
    Ok(unheard)
}

/// Checks that Mimeo has written none of these copies twice since then. An apply without a change
/// leaves no trace in the copy. So the check counts the writes that the API servers answered with
/// success. If an answer was lost, Mimeo does not know the result and is right to write again. That
/// many copies may be written twice.
async fn assert_nothing_twice(
    setting: &Setting,
    since: &Since,
    namespaces: &[String],
) -> Result<()> {
    let events = setting.control_plane.audit_since(&since.audit).await?;
    let done: Vec<&AuditEvent> = events
        .iter()
        .filter(|event| {
            setting.is_ours(event) && event.is_write() && matches!(event.code, 200 | 201)
        })
        .filter(|event| {
            event.resource == "secrets"
                && event.name == REGISTRY
                && namespaces.contains(&event.namespace)
        })
        .collect();
    assert!(
        done.len() >= namespaces.len() / 2,
        "{} writes of {} copies",
        done.len(),
        namespaces.len()
    );
    let mut of_copy: BTreeMap<&str, Vec<&AuditEvent>> = BTreeMap::new();
    for event in done {
        of_copy.entry(&event.namespace).or_default().push(event);
    }
    of_copy.retain(|_, writes| writes.len() > 1);
    let again: usize = of_copy.values().map(|writes| writes.len() - 1).sum();
    let unheard = unheard(setting)?.saturating_sub(since.unheard);
    assert!(
        u64::try_from(again)? <= unheard,
        "{again} writes too many, and {unheard} without an answer: {of_copy:#?}"
    );
    Ok(())
}

/// Returns a client of the last API server, which stays up.
async fn steady(setting: &Setting) -> Result<Client> {
    let control_plane = &setting.control_plane;
    match control_plane.client_for(1).await {
        Ok(second) => Ok(second),
        Err(_) => control_plane.client().await,
    }
}

/// Writes a rule of the scene with one source. The source has this text.
async fn one_source(scene: &Scene<'_>, text: &str) -> Result<()> {
    scene.secret(REGISTRY, &[("password", text)]).await?;
    scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .create(&scene.client)
        .await
}

/// Writes such a rule with copies in this many namespaces, and begins a chronicle of them.
async fn filled(scene: &Scene<'_>, count: usize) -> Result<(Vec<String>, Chronicle)> {
    let names = create_namespaces(&scene.client, count, ("scene", &scene.tag)).await?;
    let since = Since::now(scene.setting).await?;
    one_source(scene, "first").await?;
    scene.wait_synced(&scene.tag).await?;
    assert_nothing_twice(scene.setting, &since, &names).await?;
    let chronicle = Chronicle::begin(scene).await?;
    chronicle.reaches("first", count).await?;
    Ok((names, chronicle))
}

/// Gives the source another text.
async fn rotate(scene: &Scene<'_>, text: &str) -> Result<()> {
    let client = steady(scene.setting).await?;
    put(&of(&client, &scene.home), REGISTRY, &[("password", text)]).await?;
    Ok(())
}

/// Stops the webhooks and starts this many with these flags.
async fn with_webhooks(pair: &mut Pair, count: usize, args: &[&str]) -> Result<()> {
    pair.stop_webhooks().await?;
    pair.set_webhook_args(AT_ONCE.iter().chain(args).copied());
    pair.start_webhooks(count).await
}

// --- No webhook ---

async fn marked(client: &Client, namespace: &str) -> Result<bool> {
    let namespace = Api::<Namespace>::all(client.clone()).get(namespace).await?;
    Ok(label(&namespace, PENDING_LABEL).is_some())
}

/// Checks that a pod is admitted at the first attempt.
async fn admitted(client: &Client, namespace: &str) -> Result<()> {
    let created = of::<Pod>(client, namespace)
        .create(&PostParams::default(), &pod(&unique("pod")))
        .await;
    created.with_context(|| format!("a pod was refused in {namespace}"))?;
    Ok(())
}

#[tokio::test]
async fn without_a_webhook_namespaces_are_created_and_filled_later() -> Result<()> {
    let mut setting = PROGRAMS.get().await?;
    let scene = setting.scene("absent").await?;
    let client = scene.client.clone();
    one_source(&scene, "first").await?;
    let waiting = setting.scene("waiting").await?;
    let required = waiting
        .rule()
        .secret(&waiting.home, REGISTRY)
        .set("podGate", json!("Required"));
    required.create(&waiting.client).await?;
    for scene in [&scene, &waiting] {
        scene
            .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
            .await?;
    }
    let old = scene.namespace().await?;
    let pending = create_asked(&client, &waiting.tag, &[("scene", &waiting.tag)]).await?;
    let pending = pending.name_any();
    scene.wait_secret(&old, REGISTRY, |_| true).await?;
    eventually(SOON, "no pending label", || async {
        Ok((!marked(&scene.client, &old).await?).then_some(()))
    })
    .await?;
    assert!(
        marked(&waiting.client, &pending).await?,
        "its source is missing"
    );
    let (tag, waiting_tag, home) = (scene.tag.clone(), waiting.tag.clone(), waiting.home.clone());
    drop((scene, waiting));
    for mut replica in setting.pair.webhooks.drain(..) {
        replica.program.kill()?;
    }

    let new = unique(&tag);
    create_namespace(&client, &new, &[("scene", &tag)]).await?;
    admitted(&client, &new).await.context("it is not pending")?;
    eventually(
        SOON,
        "the API server to learn that no label is left",
        || async { admitted(&client, &old).await.map(Some) },
    )
    .await?;
    wait_for(of::<Secret>(&client, &new), REGISTRY.to_owned(), |_| true).await?;
    let refused = of::<Pod>(&client, &pending)
        .create(&PostParams::default(), &pod("early"))
        .await;
    let refused = refused
        .expect_err("a pending namespace stays closed")
        .to_string();
    assert!(refused.contains("pods.mimeo.dev"), "{refused}");

    create_secret(&client, &home, REGISTRY, &[("password", "late")]).await?;
    eventually(
        SOON,
        "the reconciler to finish a pending namespace",
        || async { Ok((!marked(&client, &pending).await?).then_some(())) },
    )
    .await?;
    wait_for(of::<Secret>(&client, &pending), REGISTRY.to_owned(), |_| {
        true
    })
    .await?;
    eventually(
        SOON,
        "the pending label's removal to reach the API server",
        || async { admitted(&client, &pending).await.map(Some) },
    )
    .await?;
    for tag in [&tag, &waiting_tag] {
        pod_gate_is(&client, tag, "False", "WebhookUnavailable").await?;
    }
    // A webhook that starts later than the rules also has them in force.
    setting.pair.start_webhook().await?;
    for tag in [&tag, &waiting_tag] {
        pod_gate_is(&client, tag, "True", "Active").await?;
    }
    for tag in [&tag, &waiting_tag] {
        let next = create_asked(&client, tag, &[("scene", tag)]).await?;
        let next = next.name_any();
        let (pod, _) = create_patiently(&of(&client, &next), &pod("first")).await?;
        assert!(
            precedes(&of::<Secret>(&client, &next).get(REGISTRY).await?, &pod)?,
            "{next}: the copy is late"
        );
    }
    Ok(())
}

async fn pod_gate_is(client: &Client, rule: &str, status: &str, reason: &str) -> Result<()> {
    let rules = Api::<mimeo_api::ClusterReplication>::all(client.clone());
    wait_for(rules, rule.to_owned(), |rule| {
        let told = rule
            .status
            .as_ref()
            .and_then(|status| condition(status, "PodGateActive"));
        told.is_some_and(|told| (told.status.as_str(), told.reason.as_str()) == (status, reason))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn without_a_webhook_strict_mode_refuses_namespaces_and_nothing_else() -> Result<()> {
    let mut setting = PROGRAMS.get().await?;
    let client = setting.control_plane.client().await?;
    let old = unique("strict");
    create_namespace(&client, &old, &[]).await?;
    with_webhooks(
        &mut setting.pair,
        1,
        &["--namespaces-failure-policy", "Fail"],
    )
    .await?;
    create_namespace(&client, &unique("strict"), &[])
        .await
        .context("a webhook runs")?;
    setting.pair.stop_webhooks().await?;

    // For a moment the API server may still use the former failure policy.
    let refused = eventually(SOON, "a namespace to be refused", || async {
        match create_namespace(&client, &unique("strict"), &[]).await {
            Ok(_) => bail!("it was created although the webhook is down"),
            Err(refused) => Ok(Some(format!("{refused:#}"))),
        }
    })
    .await?;
    assert!(refused.contains("namespaces.mimeo.dev"), "{refused}");
    create_namespace(&client, &format!("kube-{}", unique("strict")), &[])
        .await
        .context("exempt by its name")?;
    // Any change of a namespace may be a change of its labels. The API server cannot tell before it
    // calls the webhook.
    let namespaces = Api::<Namespace>::all(client.clone());
    let annotation = json!({"metadata": {"annotations": {"example.com/seen": "yes"}}});
    let refused = merge(&namespaces, &old, annotation.clone()).await;
    let refused = format!(
        "{:#}",
        refused.expect_err("its labels could not be looked at")
    );
    assert!(refused.contains("namespaces.mimeo.dev"), "{refused}");
    merge(&namespaces, "kube-system", annotation)
        .await
        .context("exempt by its name")?;
    admitted(&client, &old).await?;
    create_secret(&client, &old, "own", &[]).await?;

    with_webhooks(&mut setting.pair, 1, &[]).await?;
    create_namespace(&client, &unique("strict"), &[]).await?;
    Ok(())
}

// --- Leaders ---

async fn holder(client: &Client) -> Result<Option<String>> {
    let lease = of::<Lease>(client, NAMESPACE)
        .get("mimeo-reconciler")
        .await?;
    Ok(lease
        .spec
        .and_then(|spec| spec.holder_identity)
        .filter(|holder| !holder.is_empty()))
}

async fn led_by_another_than(client: &Client, former: Option<&str>) -> Result<String> {
    eventually(SOON, "another leader", || async {
        match holder(client).await? {
            Some(now) if Some(&*now) != former => Ok(Some(now)),
            now => bail!("led by {now:?}"),
        }
    })
    .await
}

#[tokio::test]
async fn a_leader_that_dies_is_followed_by_the_next_and_one_that_ends_lets_go() -> Result<()> {
    let mut setting = PROGRAMS.get().await?;
    let client = setting.control_plane.client().await?;
    let first = led_by_another_than(&client, None).await?;
    let mut leader = setting
        .pair
        .reconciler
        .take()
        .context("no reconciler runs")?;
    setting.pair.start_reconciler().await?;
    let mut standby = setting.pair.reconciler.take();

    let scene = setting.scene("leader").await?;
    let (names, chronicle) = filled(&scene, 30).await?;
    assert_eq!(
        holder(&client).await?.as_ref(),
        Some(&first),
        "a standby waits"
    );
    let since = Since::now(&setting).await?;
    // The times in `managedFields` have whole seconds. Two writes in one second leave the same
    // entry. A process that made neither cannot tell that Mimeo made the second, and would write
    // once more.
    tokio::time::sleep(Duration::from_secs(1)).await;
    rotate(&scene, "second").await?;
    chronicle.reaches("second", 5).await?;
    leader.program.kill()?;
    delete(&of::<Secret>(&client, &names[0]), REGISTRY).await?;
    put(&of(&client, &names[1]), REGISTRY, &[("password", "edited")]).await?;
    // A short Lease may expire while a busy machine lets a leader wait, and that leader would end.
    // So the Lease is long, and only that of the killed leader becomes short. The audit log has the
    // leader's last writes by then.
    setting.control_plane.audit_mark().await?;
    let short = json!({"spec": {"leaseDurationSeconds": 1}});
    merge(&of::<Lease>(&client, NAMESPACE), "mimeo-reconciler", short).await?;
    let second = led_by_another_than(&client, Some(&first)).await?;
    for name in &names {
        scene
            .wait_secret(name, REGISTRY, |copy| {
                value(copy, "password").as_deref() == Some("second")
            })
            .await?;
    }
    scene.wait_synced(&scene.tag).await?;
    // The next leader reads the present state, so a lost answer makes no difference.
    assert_nothing_twice(&setting, &since, &names[2..]).await?;
    chronicle.assert_texts(&names[2..], &["first", "second"]);
    drop(chronicle);
    let tag = scene.tag.clone();
    drop(scene);

    let mut leader = standby.take().context("the standby leads")?;
    assert!(leader.program.stop(SOON).await?.success());
    assert_eq!(
        holder(&client).await?,
        None,
        "{second} has let go of the lease"
    );
    setting.pair.start_reconciler().await?;
    let third = led_by_another_than(&client, Some(&second)).await?;
    assert_ne!(third, first);
    let late = unique(&tag);
    create_namespace(&client, &late, &[("scene", &tag)]).await?;
    wait_for(of::<Secret>(&client, &late), REGISTRY.to_owned(), |_| true).await?;
    Ok(())
}

// --- Servers ---

#[tokio::test]
async fn an_api_server_killed_under_load_loses_nothing_and_doubles_nothing() -> Result<()> {
    let setting = SERVERS.get().await?;
    let scene = setting.scene("api-server").await?;
    let (names, chronicle) = filled(&scene, 150).await?;
    let since = Since::now(&setting).await?;
    rotate(&scene, "second").await?;
    chronicle.reaches("second", 20).await?;
    setting.control_plane.kill(Component::ApiServer(0))?;
    // Other clients continue at the other API server.
    let client = steady(&setting).await?;
    let new = create_namespaces(&client, 10, ("scene", &scene.tag)).await?;
    delete(&of::<Secret>(&client, &names[0]), REGISTRY).await?;
    setting
        .control_plane
        .start_again(Component::ApiServer(0))
        .await?;

    chronicle.reaches("second", names.len() + new.len()).await?;
    scene
        .wait_secret(&names[0], REGISTRY, |copy| {
            value(copy, "password").as_deref() == Some("second")
        })
        .await?;
    scene.wait_synced(&scene.tag).await?;
    let all = [&names[1..], &new].concat();
    assert_nothing_twice(&setting, &since, &all).await?;
    chronicle.assert_texts(&names[1..], &["first", "second"]);
    for name in &new {
        create_patiently(&of(&client, name), &pod("late")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_etcd_that_stops_for_a_while_loses_nothing_and_doubles_nothing() -> Result<()> {
    let setting = SERVERS.get().await?;
    let scene = setting.scene("etcd").await?;
    let (names, chronicle) = filled(&scene, 150).await?;
    let since = Since::now(&setting).await?;
    rotate(&scene, "second").await?;
    chronicle.reaches("second", 20).await?;
    setting.control_plane.pause(Component::Etcd)?;
    // The outage lasts longer than Mimeo's timeout.
    tokio::time::sleep(Duration::from_secs(4)).await;
    setting.control_plane.resume(Component::Etcd)?;
    chronicle.reaches("second", names.len()).await?;
    scene.wait_synced(&scene.tag).await?;
    assert_nothing_twice(&setting, &since, &names).await?;
    chronicle.assert_texts(&names, &["first", "second"]);

    let since = Since::now(&setting).await?;
    eventually(SOON, "the API server to write again", || async {
        rotate(&scene, "third").await.map(Some)
    })
    .await?;
    chronicle.reaches("third", 20).await?;
    setting.control_plane.restart(Component::Etcd).await?;
    chronicle.reaches("third", names.len()).await?;
    scene.wait_synced(&scene.tag).await?;
    assert_nothing_twice(&setting, &since, &names).await?;
    chronicle.assert_texts(&names, &["first", "second", "third"]);
    Ok(())
}

#[tokio::test]
async fn what_happened_while_a_watch_expired_is_noticed() -> Result<()> {
    let setting = SERVERS.get().await?;
    let scene = setting.scene("expired").await?;
    let (names, chronicle) = filled(&scene, 40).await?;
    let gone = setting.scene("expired-rule").await?;
    one_source(&gone, "first").await?;
    let orphan = gone.namespace().await?;
    gone.wait_secret(&orphan, REGISTRY, |_| true).await?;
    gone.wait_synced(&gone.tag).await?;
    let client = steady(&setting).await?;

    let since = Since::now(&setting).await?;
    setting.control_plane.kill(Component::ApiServer(0))?;
    rotate(&scene, "second").await?;
    delete(&of::<Secret>(&client, &names[0]), REGISTRY).await?;
    put(&of(&client, &names[1]), REGISTRY, &[("password", "edited")]).await?;
    relabel(&client, &names[2], "scene", None).await?;
    delete(&Api::<Namespace>::all(client.clone()), &names[3]).await?;
    delete(
        &Api::<mimeo_api::ClusterReplication>::all(client.clone()),
        &gone.tag,
    )
    .await?;
    let new = unique(&scene.tag);
    create_namespace(&client, &new, &[("scene", &scene.tag)]).await?;
    // A server that has just started has empty caches.
    setting
        .control_plane
        .start_again(Component::ApiServer(0))
        .await?;

    for name in names
        .iter()
        .filter(|name| **name != names[2] && **name != names[3])
        .chain([&new])
    {
        wait_for(of::<Secret>(&client, name), REGISTRY.to_owned(), |copy| {
            value(copy, "password").as_deref() == Some("second")
        })
        .await?;
    }
    wait_gone(of::<Secret>(&client, &names[2]), REGISTRY).await?;
    wait_gone(of::<Secret>(&client, &orphan), REGISTRY).await?;
    assert_nothing_twice(&setting, &since, &names[4..]).await?;
    chronicle.assert_texts(&names[4..], &["first", "second"]);

    let events = setting.control_plane.audit_since(&since.audit).await?;
    let of_namespaces = |event: &&AuditEvent| {
        ["watch", "list"].contains(&&*event.verb)
            && event.resource == "namespaces"
            && event.user == setting.pair.reconciler_user().name()
    };
    let watches: Vec<&str> = events
        .iter()
        .filter(of_namespaces)
        .map(|event| &*event.uri)
        .collect();
    let resumed = watches
        .iter()
        .position(|uri| uri.contains("resourceVersion="));
    // Without streaming lists, Mimeo lists in pages.
    let lists = ["sendInitialEvents=true", "limit="];
    let listed = watches
        .iter()
        .rposition(|uri| lists.iter().any(|list| uri.contains(list)));
    assert!(
        resumed.is_some() && resumed < listed,
        "it resumed at its last version, and then listed again: {watches:#?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_server_that_says_not_now_is_obeyed() -> Result<()> {
    const COPIES: usize = 200;
    // This stage has the long request timeout. Mimeo repeats a write without an answer in time.
    let setting = PROGRAMS.get().await?;
    let scene = setting.scene("busy").await?;
    let names = create_namespaces(&scene.client, COPIES, ("scene", &scene.tag)).await?;
    let (levels, schemas): (Api<PriorityLevelConfiguration>, Api<FlowSchema>) = (
        Api::all(scene.client.clone()),
        Api::all(scene.client.clone()),
    );
    // The level has no seats and no queue. The API server carries out one request at a time and
    // refuses the others meanwhile.
    let level = json!({
        "metadata": {"name": scene.tag},
        "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"},
        }},
    });
    levels
        .create(&PostParams::default(), &serde_json::from_value(level)?)
        .await?;
    let here: Vec<&String> = names.iter().chain([&scene.home]).collect();
    let schema = json!({
        "metadata": {"name": scene.tag},
        "spec": {
            "priorityLevelConfiguration": {"name": scene.tag},
            "matchingPrecedence": 2,
            "rules": [{
                "subjects": [{"kind": "User", "user": {"name": setting.pair.reconciler_user().name()}}],
                "resourceRules": [{
                    "verbs": ["patch"], "apiGroups": [""], "resources": ["secrets"], "namespaces": here,
                }],
            }],
        },
    });
    schemas
        .create(&PostParams::default(), &serde_json::from_value(schema)?)
        .await?;
    let reconciler = setting.pair.reconciler_user().name();
    let probe: Api<Secret> = of(&setting.pair.reconciler_user().client().await?, &scene.home);
    eventually(SOON, "a server that is too busy", || async {
        let (patch, params) = (Patch::Merge(json!({})), PatchParams::default());
        let answers = join_all((0..64).map(|_| probe.patch("none", &params, &patch))).await;
        let busy =
            |answer: &kube::Result<Secret>| matches!(answer, Err(kube::Error::Api(status)) if status.code == 429);
        Ok(answers.iter().any(busy).then_some(()))
    })
    .await?;
    let mark = setting.control_plane.audit_mark().await?;
    one_source(&scene, "first").await?;
    let chronicle = Chronicle::begin(&scene).await?;
    eventually(SOON, "writes that are turned away", || async {
        let events = setting.control_plane.audit_since(&mark).await?;
        Ok(events
            .iter()
            .any(|event| event.user == reconciler && event.code == 429)
            .then_some(()))
    })
    .await?;
    delete(&schemas, &scene.tag).await?;
    delete(&levels, &scene.tag).await?;
    chronicle.reaches("first", COPIES).await?;
    scene.wait_synced(&scene.tag).await?;

    chronicle.assert_texts(&names, &["first"]);
    let events = setting.control_plane.audit_since(&mark).await?;
    let patches: Vec<&AuditEvent> = events
        .iter()
        .filter(|event| {
            event.user == reconciler && event.verb == "patch" && event.resource == "secrets"
        })
        .collect();
    let told = patches.iter().filter(|event| event.code == 429).count();
    assert!(told > 0, "the server was never too busy");
    let mut of_copy: BTreeMap<&str, Vec<&AuditEvent>> = BTreeMap::new();
    patches
        .iter()
        .for_each(|event| of_copy.entry(&event.namespace).or_default().push(event));
    for attempts in of_copy.values() {
        assert_eq!(
            attempts.iter().filter(|event| event.code < 300).count(),
            1,
            "{attempts:#?}"
        );
        for pair in attempts.windows(2) {
            // The server asks for whole seconds. It may log the time of an answer some time after
            // the client has it, so the times of the arrivals are compared.
            let pause = pair[1].received.duration_since(pair[0].received);
            assert!(
                pause.as_millis() >= 900,
                "it came back after {pause:?}, told to wait for a second: {pair:#?}"
            );
        }
    }
    Ok(())
}
