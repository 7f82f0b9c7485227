//! Tells an engine what the cluster shows: keeps exactly those watches open that the engine's demand asks for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::Client;
use mimeo_api::ClusterReplication;
use mimeo_core::{
    engine::{Demand, Engine, Observed, Webhooks},
    kind::{GroupKind, GroupVersionKind, Resource},
    meta::version,
    names,
    rule::{Refusal, Rule, RuleId, RuleKind, SourceRef},
    sources::{SourceWatch, watches},
};
use serde_json::Value;
use tokio::task::AbortHandle;
use tracing::{debug, warn};

use crate::{
    discovery::{Discovery, resource_path},
    driver::Handle,
    watch::{Event, Meta, WatchSpec, watch},
    writer::{KINDS_CONFIG_MAP, Writer, parse_kinds},
};

/// Name of the CRD that rules live under.
const RULES_CRD: &str = "clusterreplications.mimeo.dev";

/// Keeps an engine informed.
#[derive(Clone)]
pub struct Observer {
    /// The engine.
    pub handle: Handle,
    /// For watches: no deadline but silence.
    pub client: Client,
    /// Reads single sources when a kind's watch shows a change.
    pub writer: Writer,
    /// Finds kinds.
    pub discovery: Arc<Discovery>,
    /// Mimeo's own namespace.
    pub namespace: String,
    /// What was last seen of the rules' CRD: its uid as served, and as recorded.
    pub crd: Arc<Mutex<Crd>>,
}

/// Both must have been seen before the engine is told: half of it would read like a re-installed CRD.
#[derive(Debug, Default)]
pub struct Crd {
    served: Sight,
    recorded: Sight,
}

/// A uid that is to be looked for.
#[derive(Debug, Default)]
enum Sight {
    #[default]
    NotLooked,
    Looked(Option<Box<str>>),
}

impl Observer {
    /// Rules, as they come and go. `also` sees each rule's resourceVersion as it is taken in.
    pub async fn rules(self, also: impl Fn(u64) + Send + Sync) {
        let spec = cluster_wide("/apis/mimeo.dev/v1alpha1/clusterreplications", false, None, "rules");
        let mut listed = BTreeSet::new();
        watch::<Value>(self.client.clone(), spec, |event| match event {
            Event::Listing => listed.clear(),
            Event::Applied(object) => {
                let Some(id) = rule_id(&object) else { return };
                listed.insert(id.clone());
                let at = version(object.pointer("/metadata/resourceVersion").and_then(Value::as_str));
                let (parsed, status) = parse(object);
                self.handle.with(|engine, now| engine.rule_applied(id, parsed, status, now));
                also(at);
            }
            Event::Deleted(object) => {
                let Some(id) = rule_id(&object) else { return };
                listed.remove(&id);
                self.handle.with(|engine, now| engine.rule_gone(&id, now));
            }
            Event::Listed { version } => {
                self.handle.with(|engine, now| engine.rules_listed(&listed, now));
                also(version);
            }
            Event::NotServed => self.handle.with(Engine::rules_unserved),
            Event::Denied => {}
        })
        .await;
    }

    /// Namespaces, by their metadata.
    pub async fn namespaces(self) {
        let spec = cluster_wide("/api/v1/namespaces", true, None, "namespaces");
        let mut listed: BTreeSet<Box<str>> = BTreeSet::new();
        watch::<Meta>(self.client.clone(), spec, |event| match event {
            Event::Listing => listed.clear(),
            Event::Applied(object) => {
                listed.insert(object.metadata.name.as_deref().unwrap_or_default().into());
                self.handle.with(|engine, now| engine.namespace_applied(&object.metadata, now));
            }
            Event::Deleted(object) => {
                listed.remove(object.metadata.name.as_deref().unwrap_or_default());
                self.handle.with(|engine, now| engine.namespace_deleted(&object.metadata, now));
            }
            Event::Listed { .. } => {
                self.handle.with(|engine, now| engine.namespaces_listed(&listed, now));
                listed.clear();
            }
            Event::NotServed | Event::Denied => {}
        })
        .await;
    }

    /// The kinds `ConfigMap`: which kinds may have copies, which CRD the rules lived under, and what a person confirmed.
    pub async fn kinds(self) {
        let path = format!("/api/v1/namespaces/{}/configmaps", self.namespace);
        let spec = WatchSpec {
            path,
            metadata_only: false,
            label_selector: None,
            name: Some(KINDS_CONFIG_MAP.to_owned()),
            what: "kinds".into(),
        };
        let mut seen = false;
        watch::<ConfigMap>(self.client.clone(), spec, |event| match event {
            Event::Applied(map) => {
                seen = true;
                self.kinds_are(Some(&map));
            }
            Event::Deleted(_) => self.kinds_are(None),
            Event::Listing => seen = false,
            Event::Listed { .. } if !seen => self.kinds_are(None),
            _ => {}
        })
        .await;
    }

    fn kinds_are(&self, map: Option<&ConfigMap>) {
        let (kinds, crd, confirmed) = map.map(parse_kinds).unwrap_or_default();
        self.handle.with(|engine, now| {
            engine.kinds_recorded(&kinds, now);
            engine.confirmed(confirmed.as_deref(), now);
        });
        self.crd_is(|state| state.recorded = Sight::Looked(crd));
    }

    fn crd_is(&self, change: impl FnOnce(&mut Crd)) {
        let mut state = self.crd.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        if let Crd { served: Sight::Looked(served), recorded: Sight::Looked(recorded) } = &*state {
            self.handle.with(|engine, now| engine.crd(served.clone(), recorded.clone(), now));
        }
    }

    /// Leases of webhook replicas: who is alive, and which rules each has taken in.
    pub async fn webhooks(self) {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace);
        let selector = format!("{}={}", names::REPLICA, names::REPLICA_WEBHOOK);
        let spec = WatchSpec {
            path,
            metadata_only: false,
            label_selector: Some(selector),
            name: None,
            what: "webhook replicas".into(),
        };
        let leases: Mutex<BTreeMap<String, Lease>> = Mutex::default();
        let tell = || {
            let leases = leases.lock().unwrap_or_else(PoisonError::into_inner);
            let seen = leases.values().filter(|lease| live(lease, Timestamp::now())).map(seen_version).collect();
            self.handle.with(|engine, now| engine.webhooks(Webhooks { seen }, now));
        };
        let lock = || leases.lock().unwrap_or_else(PoisonError::into_inner);
        let watching = watch::<Lease>(self.client.clone(), spec, |event| {
            match event {
                Event::Listing => lock().clear(),
                Event::Applied(lease) => {
                    lock().insert(lease.metadata.name.clone().unwrap_or_default(), lease);
                }
                Event::Deleted(lease) => {
                    lock().remove(lease.metadata.name.as_deref().unwrap_or_default());
                }
                Event::Listed { .. } => {}
                Event::NotServed | Event::Denied => return,
            }
            tell();
        });
        // A replica that died says nothing: its Lease runs out.
        let ageing = async {
            loop {
                tokio::time::sleep(Duration::from_secs(5)).await;
                if !lock().is_empty() {
                    tell();
                }
            }
        };
        tokio::join!(watching, ageing);
    }

    /// CRDs, by their metadata: kinds come and go with them.
    pub async fn crds(self, wake: Arc<tokio::sync::Notify>) {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let spec = cluster_wide(path, true, None, "CRDs");
        let mut served: Option<Box<str>> = None;
        let (mut listing, mut listed) = (true, false);
        watch::<Meta>(self.client.clone(), spec, |event| {
            let (Event::Applied(object) | Event::Deleted(object)) = &event else {
                match event {
                    Event::Listing => (listing, served) = (true, None),
                    Event::Listed { .. } => {
                        // What was looked up before the first listing is no older than it.
                        if listed {
                            self.discovery.forget();
                        }
                        (listing, listed) = (false, true);
                        self.crd_served(served.clone());
                        wake.notify_one();
                    }
                    _ => {}
                }
                return;
            };
            let name = object.metadata.name.as_deref().unwrap_or_default();
            if name == RULES_CRD {
                // One that is being deleted takes its objects along: it serves nothing any more.
                let stays = matches!(event, Event::Applied(_)) && object.metadata.deletion_timestamp.is_none();
                served = object.metadata.uid.as_deref().filter(|_| stays).map(Into::into);
            }
            if !listing {
                // A CRD's name is its plural and its group.
                self.discovery.forget_group(name.split_once('.').unwrap_or_default().1);
                self.crd_served(served.clone());
                wake.notify_one();
            }
        })
        .await;
    }

    fn crd_served(&self, uid: Option<Box<str>>) {
        self.crd_is(|state| state.served = Sight::Looked(uid));
    }

    /// Everything that the engine's demand asks for, opened and closed as it changes. `wake` makes it look at kinds again.
    pub async fn demand(self, wake: Arc<tokio::sync::Notify>) {
        let mut changes = self.handle.changes();
        let mut open = Open::default();
        let mut version = None;
        loop {
            let current = self.handle.look(|engine, _| engine.demand_version());
            let mut pause = Duration::from_mins(10);
            if version != Some(current) {
                let demand = self.handle.look(|engine, _| engine.demand());
                version = Some(current);
                self.follow(&demand, &mut open);
                if !self.discover(&demand.kinds).await {
                    pause = Duration::from_secs(30);
                }
                if self.handle.look(|engine, _| engine.demand_version()) != current {
                    continue;
                }
            }
            let changed = async {
                loop {
                    if changes.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                    if self.handle.look(|engine, _| engine.demand_version()) != current {
                        return;
                    }
                    // Demand changes with rules and kinds, other things far more often.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                () = changed => {}
                () = wake.notified() => version = None,
                () = tokio::time::sleep(pause) => version = None,
            }
        }
    }

    /// Looks every kind up. Tells whether all were found; one that no CRD announces is looked for again now and then.
    async fn discover(&self, kinds: &BTreeSet<GroupVersionKind>) -> bool {
        let mut all = true;
        for gvk in kinds {
            match self.discovery.find(gvk).await {
                Ok(resource) => {
                    all &= resource.is_some();
                    self.handle.with(|engine, now| engine.kind(gvk, resource, now));
                }
                // Not answered is not "not served".
                Err(error) => {
                    all = false;
                    warn!(kind = %gvk.kind, group = %gvk.group, %error, "cannot look a kind up");
                }
            }
        }
        if !all {
            self.discovery.forget();
        }
        all
    }

    fn follow(&self, demand: &Demand, open: &mut Open) {
        open.copies.retain(|kind, task| demand.copies.get(kind) == Some(&task.resource) || task.stop());
        for (kind, resource) in &demand.copies {
            open.copies.entry(kind.clone()).or_insert_with(|| {
                debug!(%kind, "watching copies");
                Task::start(resource, self.clone().copies(kind.clone(), resource.clone()))
            });
        }
        let wanted = watches(&demand.sources);
        // A kind's watch serves whichever sources are wanted; one that comes to be wanted needs a new listing to be seen.
        let members: BTreeSet<SourceRef> = demand.sources.keys().cloned().collect();
        let stale = |watch: &SourceWatch| !matches!(watch, SourceWatch::Named(_)) && open.members != members;
        open.sources.retain(|watch, task| (wanted.contains(watch) && !stale(watch)) || task.stop());
        for watch in wanted {
            open.sources.entry(watch.clone()).or_insert_with(|| match watch {
                SourceWatch::Named(source) => {
                    let resource = demand.sources.get(&source).cloned().unwrap_or_else(|| unknown(&source));
                    Task::start(&resource, self.clone().source(source, resource.clone()))
                }
                SourceWatch::Namespace { resource, namespace } => {
                    let task = self.clone().many(resource.clone(), Some(namespace), members.clone());
                    Task::start(&resource, task)
                }
                SourceWatch::Cluster { resource } => {
                    Task::start(&resource, self.clone().many(resource.clone(), None, members.clone()))
                }
            });
        }
        open.members = members;
    }

    async fn copies(self, kind: GroupKind, resource: Resource) {
        let selector = format!("{}={}", names::MANAGED_BY, names::MANAGED_BY_VALUE);
        let spec = cluster_wide(&resource_path(&resource, None, None), true, Some(selector), "copies");
        watch::<Meta>(self.client.clone(), spec, |event| match event {
            Event::Listing => self.handle.with(|engine, now| engine.copies_listing(&kind, now)),
            Event::Applied(object) => self.handle.with(|engine, now| engine.copy_applied(&kind, &object.metadata, now)),
            Event::Deleted(object) => self.handle.with(|engine, now| engine.copy_gone(&kind, &object.metadata, now)),
            Event::Listed { version } => self.handle.with(|engine, now| engine.copies_listed(&kind, version, now)),
            Event::NotServed => self.gone(&resource),
            Event::Denied => {}
        })
        .await;
    }

    async fn source(self, source: SourceRef, resource: Resource) {
        let spec = WatchSpec {
            path: resource_path(&resource, Some(&source.namespace), None),
            metadata_only: false,
            label_selector: None,
            name: Some(source.name.to_string()),
            what: format!("source {source}"),
        };
        let mut seen = false;
        watch::<Value>(self.client.clone(), spec, |event| match event {
            Event::Listing => seen = false,
            Event::Applied(object) => {
                seen = true;
                self.handle.with(|engine, now| engine.source(&source, Some(object), now));
            }
            Event::Deleted(_) => self.handle.with(|engine, now| engine.source(&source, None, now)),
            Event::Listed { .. } if !seen => self.handle.with(|engine, now| engine.source(&source, None, now)),
            Event::Listed { .. } | Event::Denied => {}
            Event::NotServed => self.gone(&resource),
        })
        .await;
    }

    /// Many sources of one kind: their metadata is watched, and what changed is read.
    async fn many(self, resource: Resource, namespace: Option<Box<str>>, members: BTreeSet<SourceRef>) {
        let path = resource_path(&resource, namespace.as_deref(), None);
        let spec = cluster_wide(&path, true, None, "sources");
        let mine: BTreeSet<SourceRef> = members
            .into_iter()
            .filter(|source| {
                source.gvk == resource.gvk && namespace.as_ref().is_none_or(|name| *name == source.namespace)
            })
            .collect();
        let find = |meta: &Meta| {
            let named = SourceRef {
                gvk: resource.gvk.clone(),
                namespace: meta.metadata.namespace.as_deref()?.into(),
                name: meta.metadata.name.as_deref()?.into(),
            };
            mine.get(&named).cloned()
        };
        let mut missing = BTreeSet::new();
        let (changed, mut queue) = tokio::sync::mpsc::unbounded_channel::<SourceRef>();
        let reading = async {
            while let Some(source) = queue.recv().await {
                while let Err(error) = self.read(&source, &resource).await {
                    debug!(%source, %error, "cannot read a source");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        };
        let watching = watch::<Meta>(self.client.clone(), spec, |event| match event {
            Event::Listing => missing.clone_from(&mine),
            Event::Applied(object) => {
                if let Some(source) = find(&object) {
                    missing.remove(&source);
                    // The receiver lives as long as this closure.
                    let _ = changed.send(source);
                }
            }
            Event::Deleted(object) => {
                if let Some(source) = find(&object) {
                    self.handle.with(|engine, now| engine.source(&source, None, now));
                }
            }
            Event::Listed { .. } => {
                for source in std::mem::take(&mut missing) {
                    self.handle.with(|engine, now| engine.source(&source, None, now));
                }
            }
            Event::NotServed => self.gone(&resource),
            Event::Denied => {}
        });
        tokio::join!(watching, reading);
    }

    async fn read(&self, source: &SourceRef, resource: &Resource) -> crate::writer::Answer<()> {
        let object = self.writer.read(resource, &source.namespace, &source.name).await?;
        self.handle.with(|engine, now| engine.source(source, object, now));
        Ok(())
    }

    fn gone(&self, resource: &Resource) {
        self.discovery.forget();
        self.handle.with(|engine, now| engine.kind(&resource.gvk, None, now));
    }
}

#[derive(Default)]
struct Open {
    copies: BTreeMap<GroupKind, Task>,
    sources: BTreeMap<SourceWatch, Task>,
    members: BTreeSet<SourceRef>,
}

struct Task {
    resource: Resource,
    abort: AbortHandle,
}

impl Task {
    fn start(resource: &Resource, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { resource: resource.clone(), abort: tokio::spawn(work).abort_handle() }
    }

    /// Ends it; always false, for `retain`.
    fn stop(&self) -> bool {
        self.abort.abort();
        false
    }
}

fn unknown(source: &SourceRef) -> Resource {
    Resource { gvk: source.gvk.clone(), plural: "".into(), namespaced: true }
}

fn cluster_wide(path: &str, metadata_only: bool, label_selector: Option<String>, what: &str) -> WatchSpec {
    WatchSpec { path: path.into(), metadata_only, label_selector, name: None, what: what.into() }
}

fn rule_id(object: &Value) -> Option<RuleId> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str)?.into();
    Some(RuleId { kind: RuleKind::ClusterReplication, namespace: None, name })
}

/// One that can't even be decoded, as a newer version may have stored it, is that rule's trouble alone.
fn parse(object: Value) -> (Result<Rule, Vec<Refusal>>, Observed) {
    match serde_json::from_value::<ClusterReplication>(object) {
        Ok(object) => (Rule::parse(&object), object.status),
        Err(error) => (Err(vec![Refusal { field: "spec".into(), message: error.to_string() }]), None),
    }
}

fn live(lease: &Lease, now: Timestamp) -> bool {
    let Some(spec) = &lease.spec else { return false };
    let duration = Duration::from_secs(u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0));
    spec.renew_time
        .as_ref()
        .is_some_and(|at| Duration::try_from(now.duration_since(at.0)).unwrap_or(Duration::ZERO) <= duration)
}

fn seen_version(lease: &Lease) -> u64 {
    let annotations = lease.metadata.annotations.as_ref();
    version(annotations.and_then(|all| all.get(names::SEEN)).map(String::as_str))
}
