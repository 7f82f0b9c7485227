//! The pod gate: no pod starts before the copies of its namespace, despite any action of users and
//! any failure of the webhook.
//!
//! A miss is a pod that was stored before a copy of its rule, or without one. The revisions of etcd
//! decide it. If the namespaces webhook fails open, an API server may admit a namespace without the
//! webhook's answer. That is no miss: it is the first exception of the promise, and a busy machine
//! can cause it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures::future::try_join_all;
use futures::try_join;
use http::Request;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, LimitRange, Namespace, Pod, ResourceQuota, Secret};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Client};
use mimeo_model::names::PENDING_LABEL;
use mimeo_model::registration::TIMEOUT;
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Setting, Stage, apply, delete, kubectl, label, of, put, relabel, rule,
    uid, value, wait_for, wait_gone,
};
use mimeo_tests::traffic::{
    create_namespaces, create_patiently, pod, precedes, retry_after, stubbornly, webhook_timed_out,
};
use mimeo_tests::{
    AuditEvent, AuditMark, ControlPlane, NAMESPACE, Pair, create_namespace, create_secret,
    eventually, unique,
};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, RwLock};

use crate::stages::LOAD;

/// Two API servers and two webhook replicas. A test that disturbs them holds the lock for writing,
/// and restores everything afterwards.
static STAGE: OnceCell<Result<RwLock<Setting>, String>> = OnceCell::const_new();

/// A short drain: the balancer notices within 50 ms. The time budget is [`LONG_BUDGET`].
const ORDINARY: [&str; 4] = ["--shutdown-delay", "500ms", "--pod-gate-budget", "1h"];
const STRICT: [&str; 4] = [
    "--shutdown-delay",
    "500ms",
    "--namespaces-failure-policy",
    "Fail",
];
/// A time budget that ends only after each test. Until then, the pending label of a namespace
/// stays if a copy cannot be written, and pods get their warning.
pub(crate) const LONG_BUDGET: [&str; 2] = ["--pod-gate-budget", "1h"];
/// A time budget that a test can wait for. The reconciler keeps a longer one, because it only
/// removes pending labels later.
const BRIEF: [&str; 6] = [
    "--shutdown-delay",
    "500ms",
    "--pod-gate-budget",
    "6s",
    "--pod-gate-wait",
    "3s",
];
/// The time budget with these flags, and the time for which one request is held.
const BUDGET: Duration = Duration::from_secs(6);
const HELD_FOR: Duration = Duration::from_secs(3);
/// Few places for held requests, so that some dozens of pods fill them.
const NARROW: [&str; 6] = [
    "--shutdown-delay",
    "500ms",
    "--pod-gate-max-held",
    "8",
    "--pod-gate-wait",
    "2s",
];
/// The number of requests that one replica holds with these flags.
const PLACES: u32 = 8;

/// An API server waits up to 100 ms for its own caches before it creates a pod in a new namespace.
/// So these queues do not load it.
const QUEUES: usize = 6;

async fn stage() -> Result<&'static RwLock<Setting>> {
    let start = || async {
        let control_plane = ControlPlane::builder().api_servers(2).audit(true);
        let started = Setting::start(
            control_plane,
            Pair::builder()
                .webhooks(2)
                .webhook_args(ORDINARY)
                .reconciler_args(LONG_BUDGET),
        )
        .await;
        started
            .map(RwLock::new)
            .map_err(|error| format!("{error:#}"))
    };
    STAGE
        .get_or_init(start)
        .await
        .as_ref()
        .map_err(|error| anyhow!("{error}"))
}

// --- No pod before its copies ---

const REGISTRY: &str = "registry";
const SETTINGS: &str = "settings";

/// Users who create namespaces that match a rule in force, each with a pod at once.
struct Crowd {
    clients: [Client; 2],
    tag: String,
    /// True if they retry after every refusal.
    stubborn: bool,
    done: AtomicUsize,
    /// The place in the audit log before the first namespace.
    mark: AuditMark,
}

/// A namespace whose pod was admitted too early, and a description of how early.
struct Miss {
    namespace: String,
    told: String,
}

impl Crowd {
    /// Writes a rule with `podGate: Required` and two sources. Returns once the rule is in force.
    async fn gather(setting: &Setting, about: &str) -> Result<Self> {
        let scene = setting.scene(about).await?;
        two_sources(&scene).await?;
        let rule = required(&scene);
        rule.create(&scene.client).await?;
        in_force(&scene, &rule).await?;
        let clients = [
            scene.client.clone(),
            setting.control_plane.client_for(1).await?,
        ];
        Ok(Self {
            clients,
            tag: scene.tag.clone(),
            stubborn: false,
            done: AtomicUsize::new(0),
            mark: setting.control_plane.audit_mark().await?,
        })
    }

    /// Fails if there is a miss without an excuse.
    async fn assert_none(&self, setting: &Setting, misses: Vec<Miss>) -> Result<()> {
        assert_none(&unexcused(setting, &self.mark, misses).await?);
        Ok(())
    }

    /// Creates 300 namespaces in this many queues, one after another in each. Then creates 100 at
    /// once. Returns the misses.
    async fn come(&self, queues: usize) -> Result<Vec<Miss>> {
        let mut misses = self.queue(300, queues).await?;
        misses.extend(self.queue(100, 100).await?);
        Ok(misses)
    }

    async fn queue(&self, count: usize, queues: usize) -> Result<Vec<Miss>> {
        let queue = async |first| {
            let mut misses = Vec::new();
            for number in (first..count).step_by(queues) {
                misses.extend(self.one(number).await?);
            }
            Ok::<_, anyhow::Error>(misses)
        };
        let misses = try_join_all((0..queues).map(queue)).await?;
        Ok(misses.into_iter().flatten().collect())
    }

    /// Creates a namespace and a pod in it. Takes turns with the ways of naming and with the pairs
    /// of API servers. Returns the miss, if there is one.
    async fn one(&self, number: usize) -> Result<Option<Miss>> {
        let (first, second) = (&self.clients[number % 2], &self.clients[number / 2 % 2]);
        let name = unique(&self.tag);
        let labels = [("scene".to_owned(), self.tag.clone())].into();
        let mut namespace = Namespace {
            metadata: ObjectMeta {
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        if (number / 4).is_multiple_of(2) {
            namespace.metadata.name = Some(name);
        } else {
            namespace.metadata.generate_name = Some(format!("{name}-"));
        }
        let namespaces: Api<Namespace> = Api::all(first.clone());
        let namespace = self
            .create(&namespaces, &namespace)
            .await
            .context("a namespace was refused")?;
        let namespace = namespace
            .metadata
            .name
            .context("a namespace without a name")?;
        let admitted = self
            .create(&of(second, &namespace), &pod("first"))
            .await
            .context("a pod was refused")?;
        let miss = missed(second, &namespace, &admitted).await?;
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok(miss)
    }

    async fn create<K>(&self, api: &Api<K>, object: &K) -> Result<K>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
    {
        if self.stubborn {
            let params = PostParams::default();
            let (created, _) = stubbornly(|| api.create(&params, object)).await?;
            return Ok(created);
        }
        Ok(create_patiently(api, object).await?.0)
    }

    /// Returns once this many namespaces have been created.
    async fn have_come(&self, count: usize) -> Result<()> {
        eventually(SOON * 2, format!("{count} to have come"), || async {
            Ok((self.done.load(Ordering::Relaxed) >= count).then_some(()))
        })
        .await
    }
}

/// Calls [`Crowd::gather`] for tests that need the stage for themselves only afterwards.
async fn gather(about: &str) -> Result<Crowd> {
    let setting = stage().await?.read().await;
    Crowd::gather(&setting, about).await
}

async fn two_sources(scene: &Scene<'_>) -> Result<()> {
    scene.secret(REGISTRY, &[("password", "example")]).await?;
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(SETTINGS.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([("proxy".to_owned(), "none".to_owned())].into()),
        ..ConfigMap::default()
    };
    of(&scene.client, &scene.home)
        .create(&PostParams::default(), &map)
        .await?;
    Ok(())
}

/// Returns the scene's rule with both sources and `podGate: Required`.
fn required(scene: &Scene<'_>) -> RuleSpec {
    let rule =
        scene
            .rule()
            .secret(&scene.home, REGISTRY)
            .source("v1", "ConfigMap", &scene.home, SETTINGS);
    rule.set("podGate", json!("Required"))
}

async fn in_force(scene: &Scene<'_>, rule: &RuleSpec) -> Result<()> {
    scene
        .wait_condition(&rule.name, "PodGateActive", "True", "Active")
        .await?;
    Ok(())
}

/// Returns a miss that names the copies which did not exist when the pod was admitted.
async fn missed(client: &Client, namespace: &str, admitted: &Pod) -> Result<Option<Miss>> {
    let secret = of::<Secret>(client, namespace).get_opt(REGISTRY).await?;
    let map = of::<ConfigMap>(client, namespace).get_opt(SETTINGS).await?;
    let miss = |told: String| {
        let namespace = namespace.to_owned();
        Ok(Some(Miss { namespace, told }))
    };
    let (Some(secret), Some(map)) = (&secret, &map) else {
        let there = (secret.is_some(), map.is_some());
        return miss(format!("Secret and ConfigMap are there: {there:?}"));
    };
    if precedes(secret, admitted)? && precedes(map, admitted)? {
        return Ok(None);
    }
    let versions = [&secret.metadata, &map.metadata, &admitted.metadata]
        .map(|meta| meta.resource_version.clone());
    miss(format!(
        "Secret, ConfigMap and Pod were stored at {versions:?}"
    ))
}

/// Returns the misses without an excuse. An excuse is an API server that admitted the namespace
/// after it had waited the whole timeout for the webhook's answer. A webhook that ends or breaks a
/// connection is no excuse.
async fn unexcused(setting: &Setting, since: &AuditMark, misses: Vec<Miss>) -> Result<Vec<String>> {
    if misses.is_empty() {
        return Ok(Vec::new());
    }
    let waited_in_vain = |event: &AuditEvent| {
        let hook = |name: &String| name == "namespaces.mimeo.dev";
        let waited = event.at.duration_since(event.received).unsigned_abs();
        event.passed_over.iter().any(hook) && waited >= TIMEOUT
    };
    let events = setting.control_plane.audit_since(since).await?;
    let excused: BTreeSet<&str> = events
        .iter()
        .filter(|event| event.resource == "namespaces" && waited_in_vain(event))
        .map(|event| &*event.name)
        .collect();
    let misses = misses.into_iter();
    let misses = misses.filter(|miss| !excused.contains(&*miss.namespace));
    Ok(misses
        .map(|miss| format!("{}: {}", miss.namespace, miss.told))
        .collect())
}

#[track_caller]
fn assert_none(misses: &[String]) {
    assert!(misses.is_empty(), "{} misses: {misses:#?}", misses.len());
}

#[tokio::test]
async fn a_pod_right_after_its_namespace_finds_its_copies() -> Result<()> {
    let _turn = LOAD.lock().await;
    let setting = stage().await?.read().await;
    let crowd = Crowd::gather(&setting, "prompt").await?;
    let misses = crowd.come(1).await?;
    crowd.assert_none(&setting, misses).await
}

#[tokio::test]
async fn a_pod_right_after_its_namespace_finds_its_copies_while_no_reconciler_runs() -> Result<()> {
    let _turn = LOAD.lock().await;
    let crowd = gather("alone").await?;
    let mut setting = stage().await?.write().await;
    let reconciler = setting.pair.reconciler.take();
    reconciler
        .context("no reconciler runs")?
        .program
        .stop(SOON)
        .await?;
    let misses = crowd.come(QUEUES).await?;
    setting.pair.start_reconciler().await?;
    crowd.assert_none(&setting, misses).await
}

#[tokio::test]
async fn a_pod_right_after_its_namespace_finds_its_copies_while_a_replica_shuts_down() -> Result<()>
{
    let _turn = LOAD.lock().await;
    let crowd = gather("drained").await?;
    let mut setting = stage().await?.write().await;
    let pair = &mut setting.pair;
    let shut_down = async {
        crowd.have_come(150).await?;
        // The process counts as a replica until it has ended.
        let ended = pair.webhooks[0].program.stop(SOON).await?;
        pair.webhooks.remove(0);
        Ok::<_, anyhow::Error>(ended)
    };
    let (misses, ended) = tokio::join!(crowd.come(QUEUES), shut_down);
    setting.pair.start_webhook().await?;
    assert!(ended?.success(), "a drained replica ends well");
    crowd.assert_none(&setting, misses?).await
}

#[tokio::test]
async fn a_pod_right_after_its_namespace_finds_its_copies_in_strict_mode_while_a_replica_is_killed()
-> Result<()> {
    let _turn = LOAD.lock().await;
    let mut crowd = gather("killed").await?;
    crowd.stubborn = true;
    let mut setting = stage().await?.write().await;
    with_webhooks(&mut setting.pair, &STRICT).await?;
    let pair = &mut setting.pair;
    let kill = async {
        crowd.have_come(150).await?;
        let mut victim = pair.webhooks.remove(0);
        victim.program.kill()?;
        Ok::<_, anyhow::Error>(victim.name.clone())
    };
    let (misses, killed) = tokio::join!(crowd.come(QUEUES), kill);
    with_webhooks(&mut setting.pair, &ORDINARY).await?;
    // The killed process counts as a replica until its Lease expires. The rules of other tests
    // would wait for it.
    delete(
        &of::<Lease>(&crowd.clients[0], NAMESPACE),
        &format!("mimeo-webhook-{}", killed?),
    )
    .await?;
    crowd.assert_none(&setting, misses?).await
}

/// Replaces all webhooks by two with these flags.
async fn with_webhooks(pair: &mut Pair, args: &[&str]) -> Result<()> {
    pair.stop_webhooks().await?;
    pair.set_webhook_args(args.iter().copied());
    pair.start_webhooks(2).await
}

#[tokio::test]
async fn a_pod_right_after_its_namespace_was_labelled_finds_its_copies() -> Result<()> {
    let _turn = LOAD.lock().await;
    let setting = stage().await?.read().await;
    let crowd = Crowd::gather(&setting, "labelled").await?;
    let client = &crowd.clients[0];
    let names = create_namespaces(client, 300, ("not-yet", &crowd.tag)).await?;
    let queue = async |queue| {
        let mut misses = Vec::new();
        for number in (queue..names.len()).step_by(QUEUES) {
            let (name, second) = (&names[number], &crowd.clients[number / 2 % 2]);
            relabel(&crowd.clients[number % 2], name, "scene", Some(&crowd.tag)).await?;
            let (admitted, _) = create_patiently(&of(second, name), &pod("first")).await?;
            misses.extend(missed(second, name, &admitted).await?);
        }
        Ok::<_, anyhow::Error>(misses)
    };
    let misses = try_join_all((0..QUEUES).map(queue)).await?;
    let misses = misses.into_iter().flatten().collect();
    crowd.assert_none(&setting, misses).await
}

// --- The ways around ---

/// Creates a pod at once, and retries. Returns the miss, if there is one.
async fn try_pod(client: &Client, namespace: &str) -> Result<Option<Miss>> {
    let until = Instant::now() + SOON;
    let admitted = loop {
        match create_patiently(&of(client, namespace), &pod(&unique("pod"))).await {
            Ok((admitted, _)) => break admitted,
            Err(error) if judged_by_the_former(&error) && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error.into()),
        }
    };
    missed(client, namespace, &admitted).await
}

/// True if the API server refused an object because a former namespace of that name, which its
/// cache still has, is being deleted.
fn judged_by_the_former(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403 && status.message.contains("being terminated"))
}

#[tokio::test]
async fn no_label_of_its_creators_exempts_a_namespace() -> Result<()> {
    let setting = stage().await?.read().await;
    let crowd = Crowd::gather(&setting, "exempt").await?;
    let client = &crowd.clients[0];
    let labels = [
        ("mimeo.dev/exempt", "true"),
        ("mimeo.dev/ignore", "true"),
        ("kubernetes.io/metadata.name", "kube-system"),
        ("app.kubernetes.io/managed-by", "mimeo"),
        ("control-plane", "true"),
        ("pod-security.kubernetes.io/enforce", "privileged"),
    ];
    let mut misses = Vec::new();
    for (key, value) in labels {
        let namespace = unique(&crowd.tag);
        create_namespace(client, &namespace, &[("scene", &crowd.tag), (key, value)]).await?;
        misses.extend(try_pod(client, &namespace).await?);
    }
    crowd.assert_none(&setting, misses).await
}

async fn pending_label(client: &Client, namespace: &str) -> Result<Option<String>> {
    let namespace = Api::<Namespace>::all(client.clone()).get(namespace).await?;
    Ok(label(&namespace, PENDING_LABEL).map(str::to_owned))
}

/// Creates a namespace of the scene, whose rule is in force. Takes another one if an API server had
/// to go on without the webhook's answer.
pub(crate) async fn labelled(scene: &Scene<'_>) -> Result<String> {
    let mark = scene.setting.control_plane.audit_mark().await?;
    loop {
        let name = unique(&scene.tag);
        let labels = [("scene", &*scene.tag)];
        let namespace = create_namespace(&scene.client, &name, &labels).await?;
        if label(&namespace, PENDING_LABEL).is_some() {
            return Ok(name);
        }
        assert_excused(scene.setting, &mark, &name, "it has no pending label").await?;
    }
}

/// Fails if every API server has had the webhook's answers about this namespace since the mark.
async fn assert_excused(
    setting: &Setting,
    since: &AuditMark,
    namespace: &str,
    told: &str,
) -> Result<()> {
    let miss = Miss {
        namespace: namespace.to_owned(),
        told: told.to_owned(),
    };
    assert_none(&unexcused(setting, since, vec![miss]).await?);
    Ok(())
}

/// Returns a namespace whose pods wait: its rule is in force, and a source is missing.
async fn pending(scene: &Scene<'_>, pod_gate: &str) -> Result<String> {
    let rule = scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .set("podGate", json!(pod_gate));
    rule.create(&scene.client).await?;
    in_force(scene, &rule).await?;
    labelled(scene).await
}

/// Returns the message that refuses a pod for good.
async fn refusal(client: &Client, namespace: &str) -> Result<String> {
    match create_patiently(&of(client, namespace), &pod(&unique("pod"))).await {
        Ok(_) => bail!("a pod was admitted into {namespace}"),
        Err(kube::Error::Api(status))
            if (400..500).contains(&status.code) && status.code != 429 =>
        {
            Ok(status.message)
        }
        Err(error) => Err(error).context("a refusal that is no answer"),
    }
}

async fn put_finalize(
    namespaces: &Api<Namespace>,
    namespace: &Namespace,
) -> kube::Result<Namespace> {
    let name = namespace.metadata.name.as_deref().unwrap_or_default();
    namespaces
        .replace_subresource("finalize", name, &PostParams::default(), namespace)
        .await
}

#[tokio::test]
async fn nobody_but_mimeo_removes_the_mark() -> Result<()> {
    let setting = stage().await?.read().await;
    let scene = setting.scene("unmarked").await?;
    let mut namespace = pending(&scene, "Required").await?;
    for way in [
        "nothing",
        "a merge patch",
        "another value",
        "a JSON patch",
        "a PUT",
        "status",
        "finalize",
    ] {
        loop {
            let mark = setting.control_plane.audit_mark().await?;
            let before = pending_label(&scene.client, &namespace).await?;
            let before = before.context("a pending namespace has no pending label")?;
            remove_mark(&scene.client, &namespace, way).await?;
            let after = pending_label(&scene.client, &namespace).await?;
            if after.as_ref() == Some(&before) {
                break;
            }
            let told = format!("by {way}: {before} has become {after:?}");
            assert_excused(&setting, &mark, &namespace, &told).await?;
            namespace = labelled(&scene).await?;
        }
        let refusal = refusal(&scene.client, &namespace).await.context(way)?;
        assert!(refusal.contains(REGISTRY), "by {way}: {refusal}");
    }

    // Mimeo removes the label once no copy is missing.
    scene.secret(REGISTRY, &[("password", "example")]).await?;
    mark_gone(&scene.client, &namespace).await?;
    scene.wait_secret(&namespace, REGISTRY, |_| true).await?;
    create_patiently(&of(&scene.client, &namespace), &pod("last")).await?;
    Ok(())
}

/// Asks to remove or change the pending label in this way.
async fn remove_mark(client: &Client, namespace: &str, way: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let without = || async {
        let mut object = namespaces.get(namespace).await?;
        object
            .metadata
            .labels
            .as_mut()
            .and_then(|labels| labels.remove(PENDING_LABEL))
            .context("it has no pending label")?;
        Ok::<_, anyhow::Error>(object)
    };
    let params = PostParams::default();
    match way {
        "nothing" => {}
        "a merge patch" => relabel(client, namespace, PENDING_LABEL, None).await?,
        "another value" => relabel(client, namespace, PENDING_LABEL, Some("done")).await?,
        "a JSON patch" => {
            let path = format!("/metadata/labels/{}", PENDING_LABEL.replace('/', "~1"));
            let remove = json!([{"op": "remove", "path": path}]);
            let remove: Patch<()> = Patch::Json(serde_json::from_value(remove)?);
            namespaces
                .patch(namespace, &PatchParams::default(), &remove)
                .await?;
        }
        "a PUT" => {
            namespaces
                .replace(namespace, &params, &without().await?)
                .await?;
        }
        "status" => {
            namespaces
                .replace_status(namespace, &params, &without().await?)
                .await?;
        }
        "finalize" => {
            put_finalize(&namespaces, &without().await?).await?;
        }
        way => bail!("no such way: {way}"),
    }
    Ok(())
}

async fn mark_gone(client: &Client, namespace: &str) -> Result<()> {
    eventually(SOON, format!("{namespace} unlabelled"), || async {
        match pending_label(client, namespace).await? {
            None => Ok(Some(())),
            Some(token) => bail!("its pending label is {token}"),
        }
    })
    .await
}

#[tokio::test]
async fn a_mark_set_in_advance_changes_nothing() -> Result<()> {
    let setting = stage().await?.read().await;
    let crowd = Crowd::gather(&setting, "forged").await?;
    let client = &crowd.clients[0];
    let mut misses = Vec::new();
    for forged in ["", "done", "0"] {
        let namespace = unique(&crowd.tag);
        create_namespace(
            client,
            &namespace,
            &[("scene", &crowd.tag), (PENDING_LABEL, forged)],
        )
        .await?;
        misses.extend(try_pod(client, &namespace).await?);
        mark_gone(client, &namespace).await?;
    }
    crowd.assert_none(&setting, misses).await?;
    // If no rule matches, the label holds no pods, and Mimeo removes it.
    let created = unique("unmatched");
    create_namespace(client, &created, &[(PENDING_LABEL, "forged")]).await?;
    let labelled = unique("unmatched");
    create_namespace(client, &labelled, &[]).await?;
    relabel(client, &labelled, PENDING_LABEL, Some("forged")).await?;
    for namespace in [created, labelled] {
        create_patiently(&of(client, &namespace), &pod("first")).await?;
        mark_gone(client, &namespace).await?;
    }
    Ok(())
}

#[tokio::test]
async fn labels_given_through_a_subresource_count() -> Result<()> {
    let _turn = LOAD.lock().await;
    let setting = stage().await?.read().await;
    let crowd = Crowd::gather(&setting, "subresource").await?;
    let client = &crowd.clients[0];
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut misses = Vec::new();
    for number in 0..60 {
        let name = unique(&crowd.tag);
        let mut namespace = create_namespace(client, &name, &[]).await?;
        let labels = namespace.metadata.labels.get_or_insert_default();
        labels.insert("scene".to_owned(), crowd.tag.clone());
        // The service account controller and others may have changed the namespace since it was
        // created.
        namespace.metadata.resource_version = None;
        match number % 3 {
            0 => {
                let labels = json!({"metadata": {"labels": {"scene": crowd.tag}}});
                namespaces
                    .patch_status(&name, &PatchParams::default(), &Patch::Merge(labels))
                    .await?;
            }
            1 => {
                namespaces
                    .replace_status(&name, &PostParams::default(), &namespace)
                    .await?;
            }
            _ => {
                put_finalize(&namespaces, &namespace).await?;
            }
        }
        misses.extend(try_pod(&crowd.clients[number % 2], &name).await?);
    }
    crowd.assert_none(&setting, misses).await
}

#[tokio::test]
async fn a_dry_run_has_no_effects() -> Result<()> {
    let setting = stage().await?.read().await;
    let crowd = Crowd::gather(&setting, "dry").await?;
    let client = &crowd.clients[0];
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let existing = create_namespace(client, &unique(&crowd.tag), &[])
        .await?
        .metadata
        .name
        .context("no name")?;
    let waiting = setting.scene("dry-pending").await?;
    let pending = pending(&waiting, "Required").await?;
    let marked = pending_label(client, &pending).await?;

    let audit = setting.control_plane.audit_mark().await?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let labels = [("scene".to_owned(), crowd.tag.clone())].into();
    let name = unique(&crowd.tag);
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    namespaces.create(&dry_run, &namespace).await?;
    let dry_patch = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let labels = |labels: Value| Patch::Merge(json!({"metadata": {"labels": labels}}));
    namespaces
        .patch(&existing, &dry_patch, &labels(json!({"scene": crowd.tag})))
        .await?;
    namespaces
        .patch(&pending, &dry_patch, &labels(json!({PENDING_LABEL: null})))
        .await?;
    let refused = of::<Pod>(client, &pending)
        .create(&dry_run, &pod("dry"))
        .await;
    assert!(
        refused.is_err(),
        "a dry run shows the result: the pod is refused"
    );

    // If the dry runs had caused any write, it would have come before the copies of this namespace.
    let real = unique(&crowd.tag);
    create_namespace(client, &real, &[("scene", &crowd.tag)]).await?;
    let mut misses: Vec<Miss> = try_pod(client, &real).await?.into_iter().collect();
    mark_gone(client, &real).await?;
    let events = setting.control_plane.audit_since(&audit).await?;
    let dry: BTreeSet<&str> = [&*name, &*existing, &*pending].into();
    let touches = |event: &mimeo_tests::AuditEvent| {
        dry.contains(&*event.namespace)
            || (event.resource == "namespaces" && dry.contains(&*event.name))
    };
    let ours: Vec<_> = events
        .iter()
        .filter(|event| setting.is_ours(event) && event.is_write() && touches(event))
        .collect();
    assert!(ours.is_empty(), "{ours:#?}");
    assert!(namespaces.get_opt(&name).await?.is_none());
    assert!(
        of::<Secret>(client, &existing)
            .get_opt(REGISTRY)
            .await?
            .is_none()
    );
    assert_eq!(
        (
            pending_label(client, &existing).await?,
            pending_label(client, &pending).await?
        ),
        (None, marked)
    );

    create_namespace(client, &name, &[("scene", &crowd.tag)]).await?;
    misses.extend(try_pod(client, &name).await?);
    crowd.assert_none(&setting, misses).await
}

#[tokio::test]
async fn a_namespace_created_again_under_its_name_is_a_new_one() -> Result<()> {
    let setting = stage().await?.read().await;
    let crowd = Crowd::gather(&setting, "again").await?;
    let lives = (0..10).map(async |_| {
        let (client, name) = (&crowd.clients[0], unique(&crowd.tag));
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let mut misses = Vec::new();
        let mut before = String::new();
        for _ in 0..4 {
            let created = create_namespace(client, &name, &[("scene", &crowd.tag)]).await?;
            ensure!(uid(&created) != before, "it was not created again");
            before = uid(&created);
            misses.extend(try_pod(client, &name).await?);
            delete(&namespaces, &name).await?;
            wait_gone(namespaces.clone(), &name).await?;
        }
        Ok::<_, anyhow::Error>(misses)
    });
    let misses = try_join_all(lives).await?.into_iter().flatten().collect();
    crowd.assert_none(&setting, misses).await
}

// --- Copies that cannot be written ---

/// Runs `kubectl run` and returns its output, which includes the warnings. Retries up to ten times
/// if the answer asks for it, but not after a webhook call timed out.
pub(crate) fn kubectl_run(setting: &Setting, namespace: &str) -> Result<String> {
    loop {
        let name = unique("pod");
        let args = [
            "run",
            &name,
            "--image=example.com/app:1",
            "--namespace",
            namespace,
        ];
        match kubectl(&setting.control_plane, args) {
            Err(error) if error.to_string().contains("deadline exceeded") => {}
            outcome => return outcome,
        }
    }
}

#[tokio::test]
async fn pods_wait_for_a_missing_source_if_that_is_required_and_are_warned_if_not() -> Result<()> {
    let setting = stage().await?.read().await;
    let (required, best_effort) = (
        setting.scene("required").await?,
        setting.scene("best-effort").await?,
    );
    let (denied, excused) = try_join!(
        pending(&required, "Required"),
        pending(&best_effort, "BestEffort")
    )?;

    let told = kubectl_run(&setting, &excused)?;
    assert!(
        told.contains("Warning:") && told.contains(REGISTRY) && told.contains("created"),
        "{told}"
    );
    let refusal = refusal(&required.client, &denied).await?;
    assert!(
        refusal.contains(REGISTRY) && refusal.contains("Secret"),
        "{refusal}"
    );
    let told = kubectl_run(&setting, &denied)
        .expect_err("the copy is required")
        .to_string();
    assert!(told.contains(REGISTRY), "{told}");

    for (scene, namespace) in [(&required, &denied), (&best_effort, &excused)] {
        scene.secret(REGISTRY, &[("password", "example")]).await?;
        mark_gone(&scene.client, namespace).await?;
        scene.wait_secret(namespace, REGISTRY, |_| true).await?;
        let told = kubectl_run(&setting, namespace)?;
        assert!(!told.contains("Warning:"), "{told}");
    }
    Ok(())
}

#[tokio::test]
async fn pods_wait_for_a_copy_in_conflict_if_that_is_required_and_are_warned_if_not() -> Result<()>
{
    let setting = stage().await?.read().await;
    try_join!(
        in_conflict(&setting, "Required"),
        in_conflict(&setting, "BestEffort")
    )?;
    Ok(())
}

async fn in_conflict(setting: &Setting, pod_gate: &str) -> Result<()> {
    let scene = setting.scene("conflict").await?;
    let namespace = pending(&scene, pod_gate).await?;
    let foreign = create_secret(
        &scene.client,
        &namespace,
        REGISTRY,
        &[("password", "their own")],
    )
    .await?;
    scene.secret(REGISTRY, &[("password", "example")]).await?;
    scene
        .wait_condition(&scene.tag, "Ready", "False", "CopiesFailed")
        .await?;
    if pod_gate == "Required" {
        let refusal = refusal(&scene.client, &namespace).await?;
        assert!(
            refusal.contains(REGISTRY) && refusal.contains("Conflict"),
            "{refusal}"
        );
        // Once the object in the way is deleted, Mimeo writes the copy and the pods are admitted.
        delete(&scene.secrets(&namespace), REGISTRY).await?;
        mark_gone(&scene.client, &namespace).await?;
        let copy = scene.wait_secret(&namespace, REGISTRY, |_| true).await?;
        assert_eq!(value(&copy, "password").as_deref(), Some("example"));
        create_patiently(&of(&scene.client, &namespace), &pod("last")).await?;
    } else {
        let told = kubectl_run(setting, &namespace)?;
        assert!(
            told.contains("Warning:") && told.contains(REGISTRY) && told.contains("Conflict"),
            "{told}"
        );
        let now = scene.secrets(&namespace).get(REGISTRY).await?;
        assert_eq!(
            now.metadata.resource_version,
            foreign.metadata.resource_version
        );
    }
    Ok(())
}

/// Creates a namespace without labels, has it filled, and then sets the scene's label. Returns the
/// namespace, and the message that refuses a pod there.
///
/// On a busy machine, an API server may admit the pod: it has not seen the pending label yet, or it
/// had to go on without the webhook's answer. Then this takes another namespace.
async fn refusal_where_labels_come(
    scene: &Scene<'_>,
    fill: impl AsyncFn(&str) -> Result<()>,
) -> Result<(String, String)> {
    eventually(SOON, "a pod that is refused", || async {
        let namespace = unique(&scene.tag);
        create_namespace(&scene.client, &namespace, &[]).await?;
        fill(&namespace).await?;
        relabel(&scene.client, &namespace, "scene", Some(&scene.tag)).await?;
        let refusal = refusal(&scene.client, &namespace).await;
        if refusal.is_err() {
            relabel(&scene.client, &namespace, "scene", None).await?;
        }
        Ok(Some((namespace, refusal?)))
    })
    .await
}

#[tokio::test]
async fn an_object_in_the_way_where_labels_come_to_match_is_named() -> Result<()> {
    let setting = stage().await?.read().await;
    let scene = setting.scene("in-the-way").await?;
    scene.secret(REGISTRY, &[("password", "example")]).await?;
    let rule = scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .set("podGate", json!("Required"));
    rule.create(&scene.client).await?;
    in_force(&scene, &rule).await?;
    let (namespace, refusal) = refusal_where_labels_come(&scene, async |namespace| {
        let data = [("password", "their own")];
        create_secret(&scene.client, namespace, REGISTRY, &data).await?;
        Ok(())
    })
    .await?;
    assert!(
        refusal.contains(REGISTRY) && refusal.contains("Conflict"),
        "{refusal}"
    );
    let left = scene.secrets(&namespace).get(REGISTRY).await?;
    assert_eq!(value(&left, "password").as_deref(), Some("their own"));
    delete(&scene.secrets(&namespace), REGISTRY).await?;
    mark_gone(&scene.client, &namespace).await?;
    scene
        .wait_secret(&namespace, REGISTRY, |copy| {
            value(copy, "password").as_deref() == Some("example")
        })
        .await?;
    create_patiently(&of(&scene.client, &namespace), &pod("last")).await?;
    Ok(())
}

/// The API server's conflict about a copy may name a quota, as it does if two requests count for a
/// quota at once.
#[tokio::test]
async fn a_quota_in_the_way_is_a_conflict_and_one_that_is_the_copy_holds_no_pods() -> Result<()> {
    let setting = stage().await?.read().await;
    let scene = setting.scene("quota").await?;
    let quota = |namespace: &str, most: &str| {
        let metadata = json!({"name": "limits", "namespace": namespace});
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"count/jobs.batch": most}}})
    };
    apply(&scene.client, &quota(&scene.home, "70")).await?;
    let rule = scene
        .rule()
        .source("v1", "ResourceQuota", &scene.home, "limits")
        .set("podGate", json!("Required"));
    let rule = rule.set("retentionPolicy", json!({"whenUnmatched": "Retain"}));
    rule.create(&scene.client).await?;
    in_force(&scene, &rule).await?;
    let (namespace, refusal) = refusal_where_labels_come(&scene, async |namespace| {
        apply(&scene.client, &quota(namespace, "7")).await?;
        Ok(())
    })
    .await?;
    assert!(
        refusal.contains("limits") && refusal.contains("Conflict"),
        "{refusal}"
    );
    let status = scene.wait_counts(&scene.tag, [1, 0, 1]).await?;
    assert_eq!(
        status.failures[0].reason, "Conflict",
        "{:?}",
        status.failures
    );
    rule.set("conflictPolicy", json!("Overwrite"))
        .replace(&scene.client)
        .await?;
    mark_gone(&scene.client, &namespace).await?;
    let most = of::<ResourceQuota>(&scene.client, &namespace)
        .get("limits")
        .await?
        .spec
        .and_then(|spec| spec.hard);
    assert_eq!(json!(most), json!({"count/jobs.batch": "70"}));

    // The copy was retained, so it exists when the label is set again.
    relabel(&scene.client, &namespace, "scene", None).await?;
    scene.wait_counts(&scene.tag, [0, 0, 0]).await?;
    relabel(&scene.client, &namespace, "scene", Some(&scene.tag)).await?;
    create_patiently(&of(&scene.client, &namespace), &pod("last")).await?;
    Ok(())
}

#[tokio::test]
async fn pods_of_system_priority_classes_pass() -> Result<()> {
    let setting = stage().await?.read().await;
    let scene = setting.scene("system").await?;
    let namespace = pending(&scene, "Required").await?;
    refusal(&scene.client, &namespace).await?;
    for class in ["system-cluster-critical", "system-node-critical"] {
        let mut critical = pod(class);
        critical.spec.get_or_insert_default().priority_class_name = Some(class.to_owned());
        of::<Pod>(&scene.client, &namespace)
            .create(&PostParams::default(), &critical)
            .await?;
    }
    Ok(())
}

/// Here Jobs wait, too.
static JOBS: Stage = Stage::new(
    || ControlPlane::builder().audit(true),
    || {
        Pair::builder()
            .webhook_args(["--pod-gate-resources", "batch/v1/jobs"])
            .webhook_args(LONG_BUDGET)
            .reconciler_args(LONG_BUDGET)
    },
);

fn job(name: &str) -> Result<Job> {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.com/app:1"}]}});
    Ok(serde_json::from_value(
        json!({"metadata": {"name": name}, "spec": {"template": template}}),
    )?)
}

/// The flag adds resources that wait. Pods wait with any value of it.
#[tokio::test]
async fn a_job_waits_where_jobs_are_said_to_and_pods_wait_too() -> Result<()> {
    let scene = JOBS.scene("jobs").await?;
    let namespace = pending(&scene, "Required").await?;
    let job = job("first")?;
    let jobs: Api<Job> = of(&scene.client, &namespace);
    match create_patiently(&jobs, &job).await {
        Err(kube::Error::Api(status)) if status.message.contains(REGISTRY) => {}
        outcome => bail!(
            "{:?}",
            outcome.map(|_| "a job was admitted without its copies")
        ),
    }
    let told = refusal(&scene.client, &namespace).await?;
    ensure!(told.contains(REGISTRY), "{told}");
    // A resource that the flag does not name does not wait.
    of::<ConfigMap>(&scene.client, &namespace)
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "a"}}))?,
        )
        .await?;
    scene.secret(REGISTRY, &[("password", "example")]).await?;
    let params = PostParams::default();
    let (admitted, _) = stubbornly(|| jobs.create(&params, &job)).await?;
    let copy = scene.secrets(&namespace).get(REGISTRY).await?;
    ensure!(precedes(&copy, &admitted)?, "the copy is late");
    Ok(())
}

/// If several rules have copies in a namespace, the strictest counts. The order of the rules and
/// the resource that waits make no difference. After that, a warning names the copies of the other
/// rules.
#[tokio::test]
async fn of_several_rules_the_strictest_is_waited_for() -> Result<()> {
    for order in [["BestEffort", "Required"], ["Required", "BestEffort"]] {
        let scene = JOBS.scene("strictest").await?;
        let rules = order.map(|pod_gate| {
            let rule = rule(&unique(&scene.tag))
                .to_label("scene", &scene.tag)
                .secret(&scene.home, &source_of(pod_gate));
            rule.set("podGate", json!(pod_gate))
        });
        for rule in &rules {
            rule.create(&scene.client).await?;
        }
        for rule in &rules {
            in_force(&scene, rule).await?;
        }
        let namespace = labelled(&scene).await?;
        let jobs: Api<Job> = of(&scene.client, &namespace);
        let cell = format!("Secret {} (", source_of("Required"));
        let denied =
            |told: &str| told.contains(&cell) && told.contains("podGate Required): SourceNotFound");
        match create_patiently(&jobs, &job("first")?).await {
            Err(kube::Error::Api(status)) if status.code == 403 && denied(&status.message) => {}
            outcome => bail!(
                "{order:?}: {:?}",
                outcome.map(|_| "a job was admitted without its copies")
            ),
        }
        let told = refusal(&scene.client, &namespace).await?;
        ensure!(denied(&told), "{order:?}: {told}");

        scene
            .secret(&source_of("Required"), &[("password", "example")])
            .await?;
        let (params, job) = (PostParams::default(), job("first")?);
        let (admitted, _) = stubbornly(|| jobs.create(&params, &job)).await?;
        let copy = scene
            .secrets(&namespace)
            .get(&source_of("Required"))
            .await?;
        ensure!(precedes(&copy, &admitted)?, "{order:?}: the copy is late");
        let told = kubectl_run(scene.setting, &namespace)?;
        let (missing, there) = (source_of("BestEffort"), source_of("Required"));
        ensure!(
            told.contains("Warning:") && told.contains(&missing) && !told.contains(&there),
            "{order:?}: {told}"
        );
    }
    Ok(())
}

/// Returns the name of the source of the rule with this pod gate.
fn source_of(pod_gate: &str) -> String {
    format!("for-{}", pod_gate.to_lowercase())
}

#[tokio::test]
async fn nobody_waits_for_a_rule_that_is_suspended_or_has_no_pod_gate_any_more() -> Result<()> {
    let setting = stage().await?.read().await;
    for (about, field, value) in [
        ("resting", "suspend", json!(true)),
        ("lifted", "podGate", json!("None")),
    ] {
        let scene = setting.scene(about).await?;
        let namespace = pending(&scene, "Required").await?;
        refusal(&scene.client, &namespace).await?;
        let rule = scene
            .rule()
            .secret(&scene.home, REGISTRY)
            .set("podGate", json!("Required"))
            .set(field, value);
        rule.replace(&scene.client).await?;
        scene
            .wait_condition(&rule.name, "PodGateActive", "False", "Disabled")
            .await?;
        mark_gone(&scene.client, &namespace).await?;
        create_patiently(&of(&scene.client, &namespace), &pod("first")).await?;
        // Pods do not wait in a later namespace either.
        let later = scene.namespace().await?;
        create_patiently(&of(&scene.client, &later), &pod("first")).await?;
        ensure!(
            scene.secrets(&later).get_opt(REGISTRY).await?.is_none(),
            "there is no source"
        );
    }
    Ok(())
}

// --- Copies that take long ---

#[tokio::test]
async fn the_time_budget_ends_the_wait_for_copies_unless_they_are_required() -> Result<()> {
    let mut setting = stage().await?.write().await;
    with_webhooks(&mut setting.pair, &BRIEF).await?;
    let waited = Box::pin(wait_out_the_budget(&setting)).await;
    with_webhooks(&mut setting.pair, &ORDINARY).await?;
    waited
}

async fn wait_out_the_budget(setting: &Setting) -> Result<()> {
    let (required, excused, early) = try_join!(
        setting.scene("required"),
        setting.scene("excused"),
        setting.scene("early")
    )?;
    two_sources(&required).await?;
    two_sources(&excused).await?;
    let limits = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": LIMITS, "namespace": early.home},
        "spec": {"limits": [{"type": "Container", "default": {"cpu": "500m"}}]},
    });
    apply(&early.client, &limits).await?;
    let best_effort = self::required(&excused).set("podGate", json!("BestEffort"));
    let limited = early
        .rule()
        .source("v1", "LimitRange", &early.home, LIMITS)
        .set("podGate", json!("Required"));
    let gates = try_join!(
        shut_out(&required, self::required(&required)),
        shut_out(&excused, best_effort),
        shut_out(&early, limited)
    )?;

    // The time of the required rule ends first.
    let kept = labelled(&required).await?;
    let told = comes_again(&required.client, &kept).await?;
    assert!(told.contains(REGISTRY), "{told}");
    // On a busy machine, a pod may come when the time budget or even the warning is over. Then the
    // test takes another namespace.
    let let_go = eventually(SOON, "pods before and after the time budget", || async {
        let (since, namespace) = (Instant::now(), labelled(&excused).await?);
        let told = comes_again(&excused.client, &namespace).await?;
        assert!(told.contains(REGISTRY), "{told}");
        let warnings = admission_warnings(&excused.client, &namespace).await?;
        let held = since.elapsed();
        assert!(held >= BUDGET, "it was let go after {held:?}");
        ensure!(warnings.contains(REGISTRY), "{warnings}");
        ensure!(
            !warnings.contains(SETTINGS),
            "that copy is there: {warnings}"
        );
        Ok(Some(namespace))
    })
    .await?;
    let told = comes_again(&required.client, &kept).await?;
    let says = format!(
        "denied the request: Mimeo: pods in {kept} wait for Secret {REGISTRY} \
         (ClusterReplication/{}, podGate Required): it is being written",
        required.tag
    );
    assert!(
        told.contains(&says) && told.contains(". Retry in 1 s. See: kubectl describe crepl "),
        "{told}"
    );
    gates.0.open().await?;
    let miss = try_pod(&required.client, &kept).await?;
    ensure!(miss.is_none(), "{:?}", miss.map(|miss| miss.told));
    gates.1.open().await?;
    excused.wait_secret(&let_go, REGISTRY, |_| true).await?;
    mark_gone(&excused.client, &let_go).await?;
    nobody_is_held_for_limits(&early, &gates.2).await
}

/// Creates a pod, with any number of retries. Returns the warnings of its admission.
///
/// `kubectl` shows them, too. But on a busy machine it starts so late that there are none any more.
async fn admission_warnings(client: &Client, namespace: &str) -> Result<String> {
    eventually(SOON, "a pod that is admitted", || async {
        let body = serde_json::to_vec(&pod(&unique("pod")))?;
        let request = Request::post(format!("/api/v1/namespaces/{namespace}/pods"))
            .header("content-type", "application/json")
            .body(body.into())?;
        let answer = client.send(request).await?;
        ensure!(answer.status() == 201, "{}", answer.status());
        let warnings = answer.headers().get_all("warning").iter();
        let warnings: Result<Vec<_>, _> = warnings.map(|warning| warning.to_str()).collect();
        Ok(Some(warnings?.join("; ")))
    })
    .await
}

/// Writes the rule. Once it is in force, blocks every write of its copies.
async fn shut_out(scene: &Scene<'_>, rule: RuleSpec) -> Result<Gate> {
    rule.create(&scene.client).await?;
    in_force(scene, &rule).await?;
    Gate::shut(scene).await
}

const LIMITS: &str = "limits";

/// LimitRanges are read before any webhook is called. A held pod would be admitted without a check
/// against them.
async fn nobody_is_held_for_limits(scene: &Scene<'_>, gate: &Gate) -> Result<()> {
    let namespace = labelled(scene).await?;
    // The webhook holds each request of a held pod for at least this long.
    let told = eventually(SOON, "a pod that is answered at once", || async {
        let since = Instant::now();
        let told = comes_again(&scene.client, &namespace).await?;
        let held = since.elapsed();
        ensure!(held < HELD_FOR, "it was held for {held:?}");
        Ok(Some(told))
    })
    .await?;
    assert!(told.contains(LIMITS), "{told}");
    gate.open().await?;
    let (admitted, _) = create_patiently(&of(&scene.client, &namespace), &pod("first")).await?;
    let copy = of::<LimitRange>(&scene.client, &namespace)
        .get(LIMITS)
        .await?;
    assert!(precedes(&copy, &admitted)?, "the copy is late");
    let container = &admitted.spec.context("no spec")?.containers[0];
    let limit = container
        .resources
        .as_ref()
        .and_then(|resources| resources.limits.as_ref()?.get("cpu"));
    assert_eq!(
        limit.map(|limit| limit.0.as_str()),
        Some("500m"),
        "the pod was judged by it"
    );
    Ok(())
}

/// Returns the message that tells a pod's creator to retry.
async fn comes_again(client: &Client, namespace: &str) -> Result<String> {
    loop {
        let outcome = of::<Pod>(client, namespace)
            .create(&PostParams::default(), &pod(&unique("pod")))
            .await;
        match outcome {
            Err(kube::Error::Api(status)) if by_mimeo(&status) => {
                return Ok(status.message.clone());
            }
            Err(error) if webhook_timed_out(&error) => {}
            outcome => bail!("{:?}", outcome.map(|_| "a pod was admitted")),
        }
    }
}

/// True if Mimeo answered with 429, and not a busy API server.
fn by_mimeo(status: &Status) -> bool {
    status.code == 429 && status.message.contains("pods in ")
}

/// The number of pods that wait at once. It is several times the number of places.
const HELD: usize = 100;

/// Mimeo's own metrics count the requests that it holds and those that it answers with 429.
#[tokio::test]
async fn held_pods_come_back_and_hold_up_nobody_else() -> Result<()> {
    let _turn = LOAD.lock().await;
    let mut setting = stage().await?.write().await;
    with_webhooks(&mut setting.pair, &NARROW).await?;
    let outcome = Box::pin(hold_pods(&setting)).await;
    with_webhooks(&mut setting.pair, &ORDINARY).await?;
    outcome
}

async fn hold_pods(setting: &Setting) -> Result<()> {
    let scene = setting.scene("held").await?;
    two_sources(&scene).await?;
    let rule = required(&scene);
    rule.create(&scene.client).await?;
    let (others, ()) = try_join!(Crowd::gather(setting, "others"), in_force(&scene, &rule))?;
    let mut elsewhere = create_namespaces(&others.clients[0], 50, ("scene", &others.tag)).await?;
    for namespace in &elsewhere {
        mark_gone(&others.clients[0], namespace).await?;
    }
    // Checks the number of Mimeo's writes while no request is held.
    work(setting, &others, &mut elsewhere, "rotated").await?;

    let gate = Gate::shut(&scene).await?;
    let mut namespaces = Vec::new();
    for _ in 0..5 {
        namespaces.push(labelled(&scene).await?);
    }
    // The requests come from a user, not from the admin: the API server treats `system:masters` in
    // its own way.
    let person = bound_to_everything(setting, &scene.tag).await?;
    let waiting = Waiting::default();
    let pods = (0..HELD)
        .map(|number| waiting.pod(&person, &namespaces[number % namespaces.len()], number));
    let over = AtomicBool::new(false);
    let meanwhile = async {
        waiting.all_were_told().await?;
        eventually(SOON, "as many held requests as may be", || async {
            let most = waiting.most.load(Ordering::Relaxed);
            ensure!(most >= PLACES, "{most}");
            Ok(Some(()))
        })
        .await?;
        // The pods continue to arrive and to be held. Mimeo writes the copies of other namespaces
        // as usual.
        work(setting, &others, &mut elsewhere, "rotated again").await?;
        let misses = others.queue(20, 1).await?;
        let early = waiting.admitted.load(Ordering::Relaxed);
        gate.open().await?;
        waiting.all_are_admitted().await?;
        over.store(true, Ordering::Relaxed);
        Ok::<_, anyhow::Error>((misses, early))
    };
    let (held, (misses, early), ()) =
        try_join!(try_join_all(pods), meanwhile, waiting.count(setting, &over))?;
    others.assert_none(setting, misses).await?;
    assert_eq!(
        early, 0,
        "pods admitted while their copies could not be written"
    );
    let most = waiting.most.load(Ordering::Relaxed);
    assert_eq!(most, PLACES, "one replica held {most} requests at once");
    let refused = waiting.refused.into_inner().expect("no thread panicked");
    assert!(refused.is_empty(), "{refused:#?}");
    let held = held.into_iter().flatten().collect();
    assert_none(&unexcused(setting, &others.mark, held).await?);
    Ok(())
}

/// Pods that wait for copies which cannot be written.
struct Waiting {
    /// For each pod, the number of retries that Mimeo has asked for.
    told: Vec<AtomicUsize>,
    admitted: AtomicUsize,
    /// Refusals for any other reason.
    refused: Mutex<Vec<String>>,
    /// The largest number of requests that one replica has held at once, by its own metric.
    most: AtomicU32,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            told: (0..HELD).map(|_| AtomicUsize::new(0)).collect(),
            admitted: AtomicUsize::new(0),
            refused: Mutex::default(),
            most: AtomicU32::new(0),
        }
    }
}

impl Waiting {
    /// Creates a pod, with any number of retries. Returns the miss, if there is one.
    async fn pod(&self, client: &Client, namespace: &str, number: usize) -> Result<Option<Miss>> {
        let (pods, wanted) = (of::<Pod>(client, namespace), pod(&format!("held-{number}")));
        let created = loop {
            let error = match pods.create(&PostParams::default(), &wanted).await {
                Ok(created) => break created,
                Err(error) => error,
            };
            if matches!(&error, kube::Error::Api(status) if by_mimeo(status)) {
                self.told[number].fetch_add(1, Ordering::Relaxed);
            }
            let pause = retry_after(&error).unwrap_or_else(|| {
                // The test reports the refusals below. The pod is retried, so that all refusals are
                // seen.
                if !webhook_timed_out(&error) {
                    let mut refused = self.refused.lock().expect("no thread panicked");
                    refused.push(error.to_string());
                }
                Duration::from_secs(1)
            });
            tokio::time::sleep(pause).await;
        };
        self.admitted.fetch_add(1, Ordering::Relaxed);
        missed(client, namespace, &created).await
    }

    async fn all_were_told(&self) -> Result<()> {
        eventually(SOON, "each pod to have been told to come again", || async {
            let told = self.told.iter().map(|told| told.load(Ordering::Relaxed));
            let left = told.filter(|told| *told == 0).count();
            ensure!(left == 0, "{left} were not");
            Ok(Some(()))
        })
        .await
    }

    async fn all_are_admitted(&self) -> Result<()> {
        eventually(SOON, "each pod to be admitted", || async {
            let left = HELD - self.admitted.load(Ordering::Relaxed);
            ensure!(left == 0, "{left} are not");
            Ok(Some(()))
        })
        .await
    }

    /// Reads the number of held requests from each replica, until the test is over.
    async fn count(&self, setting: &Setting, over: &AtomicBool) -> Result<()> {
        while !over.load(Ordering::Relaxed) {
            for replica in &setting.pair.webhooks {
                let text = replica.metrics()?;
                let held = text
                    .lines()
                    .find_map(|line| line.strip_prefix("mimeo_pod_gate_held_requests "))
                    .context("no such metric")?;
                self.most.fetch_max(held.parse()?, Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// Makes Mimeo rotate a crowd's copies in these namespaces and fill 20 new ones. The new ones are
/// added to the list. Mimeo makes one write for each copy and one for each pending label.
///
/// Either program may make a write: the reconciler takes over if the webhook takes longer than 2 s.
/// A request of the other program then writes nothing.
async fn work(
    setting: &Setting,
    crowd: &Crowd,
    namespaces: &mut Vec<String>,
    text: &str,
) -> Result<()> {
    const NEW: usize = 20;
    let client = &crowd.clients[0];
    let audit = setting.control_plane.audit_mark().await?;
    let home = crowd.tag.clone() + "-home";
    put(&of(client, &home), REGISTRY, &[("password", text)]).await?;
    let rotated = |secret: &Secret| value(secret, "password").as_deref() == Some(text);
    try_join_all(
        namespaces
            .iter()
            .map(|name| wait_for(of(client, name), REGISTRY.to_owned(), rotated)),
    )
    .await?;
    let new = create_namespaces(client, NEW, ("scene", &crowd.tag)).await?;
    for name in &new {
        wait_for(of::<Secret>(client, name), REGISTRY.to_owned(), rotated).await?;
        wait_for(of::<ConfigMap>(client, name), SETTINGS.to_owned(), |_| true).await?;
        mark_gone(client, name).await?;
    }
    let events = setting.control_plane.audit_since(&audit).await?;
    let mut done: BTreeMap<_, usize> = BTreeMap::new();
    for event in events
        .iter()
        .filter(|event| setting.is_ours(event) && event.is_write() && event.code < 300)
    {
        if event.namespace.starts_with(&crowd.tag) {
            *done.entry((&*event.resource, event.code)).or_default() += 1;
        }
    }
    // A namespace that an API server admitted without the webhook's answer has no pending label to
    // remove.
    let unmarked = events
        .iter()
        .filter(|event| event.resource == "namespaces" && new.contains(&event.name))
        .filter(|event| !event.passed_over.is_empty())
        .count();
    let want = [
        (("secrets", 200), namespaces.len()),
        (("secrets", 201), NEW),
        (("configmaps", 201), NEW),
        (("namespaces", 200), NEW - unmarked),
    ];
    assert_eq!(done, want.into_iter().collect());
    namespaces.extend(new);
    Ok(())
}

/// Blocks all writes of Secrets and LimitRanges in the namespaces of a scene. It is an admission
/// webhook at an address where no server listens.
struct Gate {
    client: Client,
    name: String,
}

impl Gate {
    async fn shut(scene: &Scene<'_>) -> Result<Self> {
        let gate = Self {
            client: scene.client.clone(),
            name: scene.tag.clone(),
        };
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": gate.name},
            "webhooks": [{
                "name": "gate.example.com",
                // No server listens there.
                "clientConfig": {"url": "https://127.0.0.1:9/"},
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets", "limitranges"],
                    "operations": ["CREATE", "UPDATE"], "scope": "Namespaced",
                }],
                "namespaceSelector": {"matchLabels": {"scene": scene.tag}},
                "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 1, "admissionReviewVersions": ["v1"],
            }],
        });
        let configuration = serde_json::from_value(configuration)?;
        gate.configurations()
            .create(&PostParams::default(), &configuration)
            .await?;
        for api_server in 0..2 {
            let client = scene.setting.control_plane.client_for(api_server).await?;
            gate.is_shut_for(&client, scene).await?;
        }
        Ok(gate)
    }

    /// Waits until a Secret is refused in another namespace of the rule. A Secret there would
    /// disturb nothing.
    async fn is_shut_for(&self, client: &Client, scene: &Scene<'_>) -> Result<()> {
        let namespace = scene.namespace().await?;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some("probe".to_owned()),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        };
        eventually(SOON, "the gate to be shut", || async {
            match of::<Secret>(client, &namespace)
                .create(&dry_run, &secret)
                .await
            {
                Err(kube::Error::Api(status)) if status.message.contains("gate.example.com") => {
                    Ok(Some(()))
                }
                outcome => bail!("{:?}", outcome.map(|_| "a secret was let through")),
            }
        })
        .await
    }

    async fn open(&self) -> Result<()> {
        delete(&self.configurations(), &self.name).await
    }

    fn configurations(
        &self,
    ) -> Api<k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }
}

/// Returns a client with the role `cluster-admin`, but without the group `system:masters`.
async fn bound_to_everything(setting: &Setting, name: &str) -> Result<Client> {
    let user = setting.control_plane.user(name, &[])?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
    });
    let bindings: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> =
        Api::all(setting.control_plane.client().await?);
    bindings
        .create(&PostParams::default(), &serde_json::from_value(binding)?)
        .await?;
    let client = user.client().await?;
    eventually(SOON, "the binding to apply", || async {
        Api::<Namespace>::all(client.clone()).get("default").await?;
        Ok(Some(client.clone()))
    })
    .await
}
