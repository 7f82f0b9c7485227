//! Building blocks of scenarios: a [`Stage`] that several tests share, a [`Scene`] for each test on
//! it, short forms for rules ([`rule`]), and functions that wait for a rule's effects.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, NamespaceResourceScope, TypeMeta};
use kube::{Api, Client, Config, Resource};
use mimeo_api::{ClusterReplication, ClusterReplicationStatus};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::control_plane::Builder;
use crate::pair::PairBuilder;
use crate::traffic::{patiently, tells_timeout};
use crate::{
    AuditEvent, AuditMark, ControlPlane, Pair, User, create_namespace, create_secret, eventually,
    planted, unique,
};

/// Time limit for anything that a scenario waits for. It allows for a busy machine.
pub const SOON: Duration = Duration::from_mins(5);

/// A control plane with Mimeo on it, kept in a `static` and shared by the tests of one binary.
pub struct Stage {
    control_plane: fn() -> Builder,
    pair: fn() -> PairBuilder,
    started: OnceCell<Result<Setting, String>>,
}

/// The running parts of a [`Stage`].
pub struct Setting {
    /// Mimeo. It is dropped first, because its end still searches the cluster for planted values.
    pub pair: Pair,
    /// The control plane.
    pub control_plane: ControlPlane,
}

impl Stage {
    /// Makes one for a `static`.
    pub const fn new(control_plane: fn() -> Builder, pair: fn() -> PairBuilder) -> Self {
        Self {
            control_plane,
            pair,
            started: OnceCell::const_new(),
        }
    }

    /// Starts it, or waits until it has started. A failure is returned to all callers and not
    /// retried.
    pub async fn get(&'static self) -> Result<&'static Setting> {
        let start = || async {
            Setting::start((self.control_plane)(), (self.pair)())
                .await
                .map_err(|error| format!("{error:#}"))
        };
        self.started
            .get_or_init(start)
            .await
            .as_ref()
            .map_err(|error| anyhow!("{error}"))
    }

    /// A new scene for one test.
    pub async fn scene(&'static self, about: &str) -> Result<Scene<'static>> {
        self.get().await?.scene(about).await
    }
}

impl Setting {
    /// Starts one for a single test that cannot share it.
    pub async fn start(control_plane: Builder, pair: PairBuilder) -> Result<Self> {
        let control_plane = control_plane.start().await?;
        let pair = pair.start(&control_plane).await?;
        Ok(Self {
            pair,
            control_plane,
        })
    }

    /// A new scene for one test.
    pub async fn scene(&self, about: &str) -> Result<Scene<'_>> {
        let client = self.control_plane.client().await?;
        let tag = unique(about);
        let home = format!("{tag}-home");
        create_namespace(&client, &home, &[]).await?;
        Ok(Scene {
            setting: self,
            client,
            tag,
            home,
        })
    }

    /// True if one of Mimeo's programs sent the request.
    pub fn is_ours(&self, event: &AuditEvent) -> bool {
        event.user == self.pair.webhook_user().name()
            || event.user == self.pair.reconciler_user().name()
    }

    /// Waits until all copies of the rule exist and are up to date.
    #[track_caller]
    pub fn wait_synced(
        &self,
        client: &Client,
        rule: &str,
    ) -> impl Future<Output = Result<ClusterReplicationStatus>> {
        wait_condition(client, rule, ["Ready", "True", "Synced"])
    }

    /// The logs of all Mimeo programs.
    pub fn log(&self) -> String {
        let programs = self.pair.webhooks.iter().chain(&self.pair.reconciler);
        programs
            .map(|replica| replica.program.log().unwrap_or_default())
            .collect()
    }
}

/// One test's part of a stage: names and a label that no other test uses, and a namespace for
/// sources.
///
/// When it ends it prints the programs' log lines about it, which the test harness shows for a
/// failed test. It fails the test if any output so far contains a planted value.
pub struct Scene<'a> {
    /// The running control plane and Mimeo.
    pub setting: &'a Setting,
    /// The admin's client of API server 0.
    pub client: Client,
    /// Prefix of every name in this scene, and the value of its namespaces' label `scene`.
    pub tag: String,
    /// The namespace of the sources. It does not have the label `scene`.
    pub home: String,
}

impl Scene<'_> {
    /// A rule named after the scene that targets its namespaces. It has no sources yet.
    pub fn rule(&self) -> RuleSpec {
        rule(&self.tag).to_label("scene", &self.tag)
    }

    /// Creates a namespace of the scene.
    pub async fn namespace(&self) -> Result<String> {
        let name = unique(&self.tag);
        create_namespace(&self.client, &name, &[("scene", &self.tag)]).await?;
        Ok(name)
    }

    /// Creates `count` namespaces of the scene.
    pub async fn namespaces(&self, count: usize) -> Result<Vec<String>> {
        let mut names = Vec::with_capacity(count);
        for _ in 0..count {
            names.push(self.namespace().await?);
        }
        Ok(names)
    }

    /// Creates a source: an Opaque Secret in the scene's home.
    pub async fn secret(&self, name: &str, data: &[(&str, &str)]) -> Result<Secret> {
        create_secret(&self.client, &self.home, name, data).await
    }

    /// The Secrets of a namespace.
    pub fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Waits until a Secret exists and `is` returns true for it.
    #[track_caller]
    pub fn wait_secret(
        &self,
        namespace: &str,
        name: &str,
        is: impl Fn(&Secret) -> bool,
    ) -> impl Future<Output = Result<Secret>> {
        wait_for(self.secrets(namespace), name.to_owned(), is)
    }

    /// Waits until the rule has this condition for its present spec.
    #[track_caller]
    pub fn wait_condition(
        &self,
        rule: &str,
        type_: &str,
        status: &str,
        reason: &str,
    ) -> impl Future<Output = Result<ClusterReplicationStatus>> {
        wait_condition(&self.client, rule, [type_, status, reason])
    }

    /// Waits until the rule's status has these counts of desired, synced and failed copies.
    #[track_caller]
    pub fn wait_counts(
        &self,
        rule: &str,
        counts: [usize; 3],
    ) -> impl Future<Output = Result<ClusterReplicationStatus>> {
        wait_counts(self.client.clone(), rule.to_owned(), counts)
    }

    /// Waits until all copies of the rule exist and are up to date.
    #[track_caller]
    pub fn wait_synced(
        &self,
        rule: &str,
    ) -> impl Future<Output = Result<ClusterReplicationStatus>> {
        self.wait_condition(rule, "Ready", "True", "Synced")
    }

    /// Checks that Mimeo wrote the rule's status since the mark, and at most once a second.
    ///
    /// # Errors
    /// The check fails (the error has the times), or there is no audit log.
    pub async fn assert_paced(&self, rule: &str, mark: &AuditMark) -> Result<()> {
        let mut events = self.setting.control_plane.audit_since(mark).await?;
        events.retain(|event| {
            self.setting.is_ours(event) && event.subresource == "status" && event.name == rule
        });
        let times: Vec<_> = events.iter().map(|event| event.received).collect();
        let (first, last) = times
            .iter()
            .min()
            .zip(times.iter().max())
            .context("no status was written")?;
        let seconds = usize::try_from(last.duration_since(*first).as_secs())?;
        // The first one may have been on its way for longer than the last, on a busy machine by
        // some seconds.
        ensure!(
            times.len() <= seconds + 4,
            "{} statuses in {seconds} s: {times:?}",
            times.len()
        );
        Ok(())
    }

    /// Checks that Mimeo's programs have written nothing in a namespace since the mark.
    ///
    /// # Errors
    /// The check fails (the error has the writes), or there is no audit log.
    pub async fn assert_unwritten(&self, namespace: &str, mark: &AuditMark) -> Result<()> {
        let mut events = self.setting.control_plane.audit_since(mark).await?;
        events.retain(|event| {
            self.setting.is_ours(event) && event.is_write() && event.namespace == namespace
        });
        ensure!(events.is_empty(), "{events:#?}");
        Ok(())
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        let log = self.setting.log();
        let lines: Vec<&str> = log
            .lines()
            .filter(|line| line.contains(&self.tag))
            .collect();
        eprintln!("--- log lines about {} ---", self.tag);
        lines
            .iter()
            .skip(lines.len().saturating_sub(200))
            .for_each(|line| eprintln!("{line}"));
        self.setting.pair.look();
        planted::raise();
    }
}

/// A draft of a `ClusterReplication`. It is JSON, so that it can also be invalid.
#[derive(Debug, Clone)]
pub struct RuleSpec {
    /// Its name.
    pub name: String,
    /// Its spec.
    pub spec: Value,
}

/// A rule with this name, without sources and targets.
pub fn rule(name: &str) -> RuleSpec {
    RuleSpec {
        name: name.to_owned(),
        spec: json!({"sources": [], "targets": []}),
    }
}

impl RuleSpec {
    /// Adds a source.
    #[must_use]
    pub fn source(self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Self {
        self.add(
            "sources",
            json!({"apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name}),
        )
    }

    /// Adds a Secret as a source.
    #[must_use]
    pub fn secret(self, namespace: &str, name: &str) -> Self {
        self.source("v1", "Secret", namespace, name)
    }

    /// Adds a selector: all objects of a kind in a namespace that it matches become sources.
    #[must_use]
    pub fn selected(
        self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        selector: &Value,
    ) -> Self {
        let source = json!({"apiVersion": api_version, "kind": kind, "namespace": namespace, "selector": selector});
        self.add("sources", source)
    }

    /// Adds an inline source.
    #[must_use]
    pub fn inline(self, object: &Value) -> Self {
        self.add("sources", json!({"inline": object}))
    }

    /// Adds a target: the namespaces with this label.
    #[must_use]
    pub fn to_label(self, key: &str, value: &str) -> Self {
        self.target(json!({"namespaceSelector": {"matchLabels": {key: value}}}))
    }

    /// Adds a target.
    #[must_use]
    pub fn target(self, target: Value) -> Self {
        self.add("targets", target)
    }

    /// Sets the name of the copies in all targets so far.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        for target in self.spec["targets"].as_array_mut().into_iter().flatten() {
            target["copyName"] = json!(name);
        }
        self
    }

    /// Sets any field of the spec.
    #[must_use]
    pub fn set(mut self, field: &str, value: Value) -> Self {
        self.spec[field] = value;
        self
    }

    /// Sets `driftPolicy: Deny`, which needs `strategy: Replace`.
    #[must_use]
    pub fn denying(self) -> Self {
        self.set("strategy", json!("Replace"))
            .set("driftPolicy", json!("Deny"))
    }

    fn add(mut self, list: &str, item: Value) -> Self {
        if let Some(items) = self.spec[list].as_array_mut() {
            items.push(item);
        }
        self
    }

    /// The whole object.
    pub fn object(&self) -> Value {
        json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
            "metadata": {"name": self.name}, "spec": self.spec,
        })
    }

    /// Creates the rule. Retries if the webhook asks for that ([`patiently`]).
    pub async fn create(&self, client: &Client) -> Result<()> {
        create(client, "clusterreplications", &self.object()).await?;
        Ok(())
    }

    /// Replaces the spec of the existing rule. Retries if the webhook asks for that
    /// ([`patiently`]).
    pub async fn replace(&self, client: &Client) -> Result<()> {
        let rules: Api<ClusterReplication> = Api::all(client.clone());
        // A merge patch would keep fields of the old spec.
        let patch = json!([{"op": "replace", "path": "/spec", "value": self.spec}]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
        let params = PatchParams::default();
        patiently(|| rules.patch(&self.name, &params, &patch))
            .await
            .context("failed to replace a rule's spec")?;
        Ok(())
    }

    /// Deletes the rule.
    pub async fn delete(&self, client: &Client) -> Result<()> {
        let rules: Api<ClusterReplication> = Api::all(client.clone());
        rules
            .delete(&self.name, &DeleteParams::default())
            .await
            .context("failed to delete a rule")?;
        Ok(())
    }
}

/// Sends a POST for an object of one of Mimeo's kinds, even an invalid one. Retries if the webhook
/// asks for that ([`patiently`]).
///
/// # Errors
/// The API server's refusal, unchanged.
pub async fn create(client: &Client, plural: &str, object: &Value) -> kube::Result<Value> {
    let requests = kube::core::Request::new(format!("/apis/mimeo.dev/v1alpha1/{plural}"));
    let object = object.to_string();
    let attempt = async || {
        let request = requests.create(&PostParams::default(), object.clone().into_bytes());
        client
            .request(request.map_err(kube::Error::BuildRequest)?)
            .await
    };
    Ok(patiently(attempt).await?.0)
}

/// Waits until an object exists and `is` returns true for it.
#[track_caller]
pub fn wait_for<K>(
    api: Api<K>,
    name: String,
    is: impl Fn(&K) -> bool,
) -> impl Future<Output = Result<K>>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Resource,
{
    let is = Arc::new(is);
    eventually(SOON, format!("{name} as wanted"), move || {
        let (api, name, is) = (api.clone(), name.clone(), is.clone());
        // Only `is` sees the content. No message may show a Secret's data, not even in a test.
        async move {
            match api.get_opt(&name).await? {
                Some(found) if is(&found) => Ok(Some(found)),
                Some(found) => bail!("{name} is there, but not so: {:?}", found.meta().labels),
                None => bail!("there is no {name}"),
            }
        }
    })
}

/// Waits until no object has this name.
#[track_caller]
pub fn wait_gone<K>(api: Api<K>, name: &str) -> impl Future<Output = Result<()>>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Resource,
{
    let name = name.to_owned();
    eventually(SOON, format!("{name} to be gone"), move || {
        let (api, name) = (api.clone(), name.clone());
        async move {
            match api.get_opt(&name).await? {
                None => Ok(Some(())),
                Some(left) => bail!(
                    "{name} is still there, deleted at {:?}",
                    left.meta().deletion_timestamp
                ),
            }
        }
    })
}

#[track_caller]
fn wait_counts(
    client: Client,
    rule: String,
    counts: [usize; 3],
) -> impl Future<Output = Result<ClusterReplicationStatus>> {
    let rules: Api<ClusterReplication> = Api::all(client);
    let want = counts.map(|count| i32::try_from(count).unwrap_or(i32::MAX));
    eventually(SOON, format!("{rule}: {want:?}"), move || {
        let (rules, rule) = (rules.clone(), rule.clone());
        async move {
            let found = rules.get(&rule).await?;
            let told = found.status.unwrap_or_default();
            let current = told.observed_generation == found.metadata.generation;
            let so = told
                .copies
                .is_some_and(|copies| [copies.desired, copies.synced, copies.failed] == want);
            if current && so {
                Ok(Some(told))
            } else {
                bail!("{told:#?}")
            }
        }
    })
}

/// Waits until the rule has a condition of this type, status and reason for its present spec.
#[track_caller]
pub fn wait_condition(
    client: &Client,
    rule: &str,
    condition: [&str; 3],
) -> impl Future<Output = Result<ClusterReplicationStatus>> + use<> {
    let rules: Api<ClusterReplication> = Api::all(client.clone());
    let (rule, [type_, status, reason]) = (rule.to_owned(), condition.map(str::to_owned));
    eventually(
        SOON,
        format!("{rule}: {type_} {status} {reason}"),
        move || {
            let (rules, rule, want) = (
                rules.clone(),
                rule.clone(),
                (type_.clone(), status.clone(), reason.clone()),
            );
            async move {
                let found = rules.get(&rule).await?;
                let told = found.status.unwrap_or_default();
                let current = told.observed_generation == found.metadata.generation;
                let so = |one: &Condition| {
                    (&one.type_, &one.status, &one.reason) == (&want.0, &want.1, &want.2)
                };
                if current && told.conditions.iter().any(so) {
                    Ok(Some(told))
                } else {
                    bail!("{told:#?}")
                }
            }
        },
    )
}

/// The condition of this type.
pub fn condition<'a>(status: &'a ClusterReplicationStatus, type_: &str) -> Option<&'a Condition> {
    status
        .conditions
        .iter()
        .find(|condition| condition.type_ == type_)
}

/// The value of a Secret's key as text, without the planted marker. (A Secret from a watch still
/// has it.)
pub fn value(secret: &Secret, key: &str) -> Option<String> {
    let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
    Some(planted::plain(bytes))
}

/// An object's label.
pub fn label<'a, K: Resource>(object: &'a K, key: &str) -> Option<&'a str> {
    object.meta().labels.as_ref()?.get(key).map(String::as_str)
}

/// An object's annotation.
pub fn annotation<'a, K: Resource>(object: &'a K, key: &str) -> Option<&'a str> {
    object
        .meta()
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

/// An object's uid.
pub fn uid<K: Resource>(object: &K) -> String {
    object.meta().uid.clone().unwrap_or_default()
}

/// An object's resourceVersion.
pub fn version<K: Resource>(object: &K) -> String {
    object.meta().resource_version.clone().unwrap_or_default()
}

/// Merges this into an object, with a field manager other than Mimeo's. Retries if the webhook asks
/// for that ([`patiently`]).
pub async fn merge<K>(api: &Api<K>, name: &str, patch: Value) -> Result<K>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    let (patched, _) = patiently(|| api.patch(name, &params, &patch))
        .await
        .with_context(|| format!("failed to patch {name}"))?;
    Ok(patched)
}

/// Sets these values of a Secret and keeps its others.
pub async fn put(api: &Api<Secret>, name: &str, data: &[(&str, &str)]) -> Result<Secret> {
    let data: BTreeMap<_, _> = data
        .iter()
        .map(|(key, value)| (*key, ByteString(value.as_bytes().to_vec())))
        .collect();
    merge(api, name, json!({"data": data})).await
}

/// Sets a label of a namespace, or removes it (`None`).
pub async fn relabel(
    client: &Client,
    namespace: &str,
    key: &str,
    value: Option<&str>,
) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    merge(
        &namespaces,
        namespace,
        json!({"metadata": {"labels": {key: value}}}),
    )
    .await?;
    Ok(())
}

/// Applies any JSON object with a field manager other than Mimeo's. Retries if the webhook asks for
/// that ([`patiently`]).
pub async fn apply(client: &Client, object: &Value) -> Result<DynamicObject> {
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let api = any(
        client,
        text("/apiVersion"),
        text("/kind"),
        object
            .pointer("/metadata/namespace")
            .and_then(Value::as_str),
    )?;
    let (name, patch) = (text("/metadata/name"), Patch::Apply(object));
    let params = PatchParams::apply("mimeo-tests").force();
    let (applied, _) = patiently(|| api.patch(name, &params, &patch))
        .await
        .with_context(|| format!("failed to apply {} {name}", text("/kind")))?;
    Ok(applied)
}

/// The API for objects of any kind. Cluster-scoped kinds take no namespace.
pub fn any(
    client: &Client,
    api_version: &str,
    kind: &str,
    namespace: Option<&str>,
) -> Result<Api<DynamicObject>> {
    let types = TypeMeta {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
    };
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    Ok(match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

/// Deletes Mimeo's webhook configurations, for tests that have ended the webhooks. A moment later
/// the API servers call no hook any more.
pub async fn forget_the_hooks(client: &Client) -> Result<()> {
    delete(
        &Api::<MutatingWebhookConfiguration>::all(client.clone()),
        "mimeo",
    )
    .await?;
    delete(
        &Api::<ValidatingWebhookConfiguration>::all(client.clone()),
        "mimeo",
    )
    .await
}

/// Deletes an object. Retries if the webhook asks for that ([`patiently`]).
pub async fn delete<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let params = DeleteParams::default();
    patiently(|| api.delete(name, &params))
        .await
        .with_context(|| format!("failed to delete {name}"))?;
    Ok(())
}

/// The API for a namespaced kind in one namespace.
pub fn of<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope>,
    K::DynamicType: Default,
{
    Api::namespaced(client.clone(), namespace)
}

/// A client of the webhook at `url`. It is not the API server and does not verify the webhook's
/// certificate.
pub fn stranger(url: &str) -> Result<Client> {
    let mut config = Config::new(url.parse()?);
    config.accept_invalid_certs = true;
    config.default_retry = false;
    planted::client(config)
}

/// Runs `kubectl` as the admin. It retries after a 429. This function also retries for [`SOON`] after
/// a webhook call that timed out, because a machine may be slow.
///
/// # Errors
/// `kubectl` fails. The error has its output.
pub fn kubectl<A: AsRef<std::ffi::OsStr> + Display>(
    control_plane: &ControlPlane,
    args: impl IntoIterator<Item = A>,
) -> Result<String> {
    let args: Vec<A> = args.into_iter().collect();
    let words: Vec<String> = args.iter().map(ToString::to_string).collect();
    let command = format!("kubectl {}", words.join(" "));
    let until = Instant::now() + SOON;
    loop {
        let output = control_plane.kubectl()?.args(&args).output()?;
        let told = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        planted::look(command.clone(), &told);
        if output.status.success() {
            return Ok(told);
        }
        if !tells_timeout(&told) || Instant::now() > until {
            bail!("{command}: {told}");
        }
    }
}

/// Runs `kubectl` as another user.
///
/// # Errors
/// `kubectl` fails. The error has its output.
pub fn kubectl_as<'a>(
    control_plane: &ControlPlane,
    user: &'a User,
    args: impl IntoIterator<Item = &'a str>,
) -> Result<String> {
    let kubeconfig = user
        .kubeconfig()
        .to_str()
        .context("the kubeconfig's path is not UTF-8")?;
    kubectl(
        control_plane,
        ["--kubeconfig", kubeconfig].into_iter().chain(args),
    )
}

/// `kubectl`, without arguments, for commands that need no cluster.
///
/// # Errors
///
/// `kubectl` cannot be built.
pub async fn bare_kubectl() -> Result<std::process::Command> {
    crate::binaries::kubectl().await
}

/// `helm`, without arguments.
///
/// # Errors
/// `helm` cannot be built.
pub fn helm() -> Result<std::process::Command> {
    crate::binaries::helm()
}

/// The path of Prometheus' `promtool`, which evaluates alerts.
///
/// # Errors
/// `promtool` cannot be built.
pub fn promtool() -> Result<std::path::PathBuf> {
    crate::binaries::promtool()
}

/// The CRDs of other projects, as these publish them. The chart may contain objects of these kinds,
/// or the documents mention them.
///
/// # Errors
/// The CRDs cannot be downloaded.
pub fn definitions_of_others() -> Result<Vec<std::path::PathBuf>> {
    crate::binaries::definitions(&[
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        "deploy/crds/cert-manager.io_certificates.yaml",
        "deploy/crds/cert-manager.io_certificaterequests.yaml",
        "deploy/crds/cert-manager.io_issuers.yaml",
    ])
}
