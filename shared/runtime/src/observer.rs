//! Tells an engine what the cluster shows: keeps exactly those watches open that the engine's demand asks for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::Client;
use mimeo_api::{ClusterReplication, Replication, ReplicationGrant, names::API_VERSION};
use mimeo_core::{
    engine::{CopyWatch, Demand, Engine, Member, Observed, Webhooks},
    grant::Grant,
    kind::{GroupVersionKind, Resource},
    meta::version,
    names,
    outcome::Unreadable,
    rule::{Refusal, Rule, RuleId, RuleKind, SourceRef, SourceSelector},
    sources::{SourceWatch, watches},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch::Receiver},
    task::AbortHandle,
    time::Instant,
};
use tracing::{debug, warn};

use crate::{
    discovery::{Discovery, DiscoveryError, resource_path},
    driver::{Handle, admits},
    follow::Backoff,
    lease::{Observed as SeenLease, observe},
    seal::Keyring,
    watch::{Event, LASTING, Meta, WatchSpec, watch},
    writer::{ErrandError, KINDS_CONFIG_MAP, Kinds, Writer, parse_kinds},
};

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
    /// What was last seen of each CRD of rules: its uid as served, and as recorded.
    pub crds: Arc<Mutex<BTreeMap<RuleKind, Crd>>>,
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
    /// Rules of a kind, as they come and go, with their authors as this key shows them. `also` sees each rule's resourceVersion as
    /// it is taken in.
    pub async fn rules(self, kind: RuleKind, mut keyring: Receiver<Keyring>, also: impl Fn(u64) + Send + Sync) {
        // Without a look for the key nobody would be known for a moment, and that be said.
        while keyring.wait_for(|ring| *ring != Keyring::Unread).await.is_ok() {
            let ring = keyring.borrow_and_update().clone();
            tokio::select! {
                () = self.rules_sealed_by(&ring, kind, &also) => {}
                _ = keyring.changed() => {}
            }
        }
    }

    async fn rules_sealed_by(&self, ring: &Keyring, kind: RuleKind, also: &(impl Fn(u64) + Send + Sync)) {
        let spec = cluster_wide(&format!("/apis/{API_VERSION}/{}", kind.plural()), false, None, "rules");
        let mut listed = BTreeSet::new();
        watch::<Value>(self.client.clone(), spec, |event| match event {
            Event::Listing => listed.clear(),
            Event::Applied(object) => {
                let Some(id) = rule_id(kind, &object) else { return };
                listed.insert(id.clone());
                let at = version(object.pointer("/metadata/resourceVersion").and_then(Value::as_str));
                let author = ring.author(&kind.to_string(), &object);
                let (parsed, status) = parse(kind, object);
                self.handle.with(|engine, now| engine.rule_applied(id, parsed, author, status, now));
                also(at);
            }
            Event::Deleted(object) => {
                let Some(id) = rule_id(kind, &object) else { return };
                listed.remove(&id);
                self.handle.with(|engine, now| engine.rule_gone(&id, now));
            }
            Event::Listed { version } => {
                self.handle.with(|engine, now| engine.rules_listed(kind, &listed, now));
                also(version);
            }
            Event::NotServed => self.handle.with(|engine, now| engine.rules_unserved(kind, now)),
            Event::Unreadable(why) => self.handle.with(|engine, now| engine.rules_unreadable(kind, why, now)),
        })
        .await;
    }

    /// What namespaces grant each other's rules.
    pub async fn grants(self) {
        let spec = cluster_wide(&format!("/apis/{API_VERSION}/replicationgrants"), false, None, "grants");
        let mut listed: BTreeSet<(Box<str>, Box<str>)> = BTreeSet::new();
        let key = |object: &Value| {
            let text = |at| object.pointer(at).and_then(Value::as_str).map(Box::<str>::from);
            text("/metadata/namespace").zip(text("/metadata/name"))
        };
        watch::<Value>(self.client.clone(), spec, |event| match event {
            Event::Listing => listed.clear(),
            Event::Applied(object) => {
                let Some((namespace, name)) = key(&object) else { return };
                listed.insert((namespace.clone(), name.clone()));
                let grant = decode::<ReplicationGrant>(object).and_then(|object| Grant::parse(&object));
                self.handle.with(|engine, now| engine.grant_applied(&namespace, &name, grant, now));
            }
            Event::Deleted(object) => {
                let Some((namespace, name)) = key(&object) else { return };
                self.handle.with(|engine, now| engine.grant_gone(&namespace, &name, now));
            }
            Event::Listed { .. } => {
                self.handle.with(|engine, now| engine.grants_listed(&listed, now));
                listed.clear();
            }
            Event::NotServed => self.handle.with(Engine::grants_unserved),
            Event::Unreadable(why) => self.handle.with(|engine, now| engine.grants_unreadable(why, now)),
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
            Event::NotServed | Event::Unreadable(_) => {}
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
        let Kinds { kinds, mut crds, confirmed } = map.map(parse_kinds).unwrap_or_default();
        self.handle.with(|engine, now| {
            engine.kinds_recorded(&kinds, now);
            engine.confirmed(confirmed.as_deref(), now);
        });
        for kind in RuleKind::ALL {
            let uid = crds.remove(&kind);
            self.crd_is(kind, |state| state.recorded = Sight::Looked(uid));
        }
    }

    fn crd_is(&self, kind: RuleKind, change: impl FnOnce(&mut Crd)) {
        let mut crds = self.crds.lock().unwrap_or_else(PoisonError::into_inner);
        let state = crds.entry(kind).or_default();
        change(state);
        if let Crd { served: Sight::Looked(served), recorded: Sight::Looked(recorded) } = state {
            self.handle.with(|engine, now| engine.crd(kind, served.clone(), recorded.clone(), now));
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
        let replicas: Mutex<Replicas> = Mutex::default();
        let lock = || replicas.lock().unwrap_or_else(PoisonError::into_inner);
        let tell = || {
            let webhooks = lock().alive(Instant::now());
            self.handle.with(|engine, now| engine.webhooks(webhooks, now));
        };
        let watching = watch::<Lease>(self.client.clone(), spec, |event| {
            match event {
                Event::Listing => lock().listed.clear(),
                Event::Applied(lease) => lock().show(lease, Instant::now()),
                Event::Deleted(lease) => lock().lose(&lease),
                Event::Listed { .. } => lock().complete(),
                Event::NotServed | Event::Unreadable(_) => return,
            }
            tell();
        });
        // A replica that died says nothing: its Lease runs out.
        let ageing = async {
            loop {
                tokio::time::sleep(Duration::from_secs(5)).await;
                if !lock().leases.is_empty() {
                    tell();
                }
            }
        };
        tokio::join!(watching, ageing);
    }

    /// CRDs, by their metadata: kinds come and go with them.
    pub async fn crds(self, wake: Arc<Notify>) {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let spec = cluster_wide(path, true, None, "CRDs");
        let mut served: BTreeMap<RuleKind, Box<str>> = BTreeMap::new();
        let (mut listing, mut listed) = (true, false);
        watch::<Meta>(self.client.clone(), spec, |event| {
            let (Event::Applied(object) | Event::Deleted(object)) = &event else {
                match event {
                    Event::Listing => {
                        listing = true;
                        served.clear();
                    }
                    Event::Listed { .. } => {
                        // What was looked up before the first listing is no older than it.
                        if listed {
                            self.discovery.forget();
                        }
                        (listing, listed) = (false, true);
                        self.crds_served(&served);
                        wake.notify_one();
                    }
                    _ => {}
                }
                return;
            };
            let name = object.metadata.name.as_deref().unwrap_or_default();
            if let Some(kind) = RuleKind::ALL.into_iter().find(|kind| kind.crd_name() == name) {
                // One that is being deleted takes its objects along: it serves nothing any more.
                let stays = matches!(event, Event::Applied(_)) && object.metadata.deletion_timestamp.is_none();
                served.remove(&kind);
                served.extend(object.metadata.uid.as_deref().filter(|_| stays).map(|uid| (kind, uid.into())));
            }
            if !listing {
                // A CRD's name is its plural and its group.
                self.discovery.forget_group(name.split_once('.').unwrap_or_default().1);
                self.crds_served(&served);
                wake.notify_one();
            }
        })
        .await;
    }

    fn crds_served(&self, uids: &BTreeMap<RuleKind, Box<str>>) {
        for kind in RuleKind::ALL {
            self.crd_is(kind, |state| state.served = Sight::Looked(uids.get(&kind).cloned()));
        }
    }

    /// Everything that the engine's demand asks for, opened and closed as it changes. `wake` makes it look at kinds again.
    pub async fn demand(self, wake: Arc<Notify>) {
        let mut changes = self.handle.changes();
        let mut open = Open::default();
        let mut failing: BTreeMap<GroupVersionKind, Failing> = BTreeMap::new();
        let mut version = None;
        let mut took = Duration::ZERO;
        loop {
            // However often it changes, to look at what a tenant with thousands of rules demands takes little of the time.
            tokio::time::sleep(took * 4).await;
            let current = self.handle.look(|engine, _| engine.demand_version());
            let moved = || self.handle.look(|engine, _| engine.demand_version()) != current;
            let mut pause = Duration::from_mins(10);
            if version != Some(current) {
                let began = Instant::now();
                let demand = self.handle.look(|engine, _| engine.demand());
                version = Some(current);
                self.follow(&demand, &mut open);
                took = began.elapsed();
                failing.retain(|gvk, _| demand.kinds.contains(gvk));
                // A kind whose server hangs doesn't hold up what the others' answers ask for.
                let (last, first): (Vec<_>, Vec<_>) = demand.kinds.iter().partition(|gvk| failing.contains_key(gvk));
                for kinds in [first, last] {
                    pause = pause.min(self.discover(&kinds, &mut failing).await);
                    if moved() {
                        break;
                    }
                }
                if moved() {
                    continue;
                }
            }
            let changed = async {
                loop {
                    if changes.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                    if moved() {
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

    /// Looks these kinds up. Returns when to do so again: one that no CRD announces is looked for now and then.
    async fn discover(
        &self,
        kinds: &[&GroupVersionKind],
        failing: &mut BTreeMap<GroupVersionKind, Failing>,
    ) -> Duration {
        let mut pause = Duration::MAX;
        let mut missing = BTreeSet::new();
        for gvk in kinds {
            let error = match self.discovery.find(gvk).await {
                Ok(resource) => {
                    failing.remove(*gvk);
                    if resource.is_none() {
                        missing.insert(&gvk.group);
                        pause = pause.min(Duration::from_secs(30));
                    }
                    self.handle.with(|engine, now| engine.kind(gvk, resource, now));
                    continue;
                }
                // Not answered is not "not served".
                Err(error) => error,
            };
            pause = pause.min(Duration::from_secs(5));
            let streak = failing.entry((*gvk).clone()).or_default();
            if let Some((why, news)) = streak.despair(matches!(error, DiscoveryError::Denied { .. })) {
                if news {
                    warn!(kind = %gvk.kind, group = %gvk.group, %error, "cannot look a kind up");
                }
                self.handle.with(|engine, now| engine.kind_unanswered(gvk, why, now));
            }
        }
        missing.into_iter().for_each(|group| self.discovery.forget_group(group));
        pause
    }

    fn follow(&self, demand: &Demand, open: &mut Open) {
        open.copies.retain(|watch, task| demand.copies.get(watch) == Some(&task.resource) || task.stop());
        for (watch, resource) in &demand.copies {
            open.copies.entry(watch.clone()).or_insert_with(|| {
                debug!(kind = %watch.kind, namespace = watch.namespace, "watching copies");
                Task::start(resource, self.clone().copies(watch.clone(), resource.clone()))
            });
        }
        let wanted = watches(&demand.sources, &demand.selectors, demand.confined);
        let selectors: BTreeSet<SourceSelector> = demand.selectors.keys().cloned().collect();
        // What another selector finds a wide watch would not show before its next listing.
        let wide = |watch: &SourceWatch| matches!(watch, SourceWatch::Namespace { .. } | SourceWatch::Cluster { .. });
        let stale = |watch: &SourceWatch| wide(watch) && open.selectors != selectors;
        open.sources.retain(|watch, task| (wanted.contains(watch) && !stale(watch)) || task.stop());
        open.members.retain(|watch, _| wanted.contains(watch));
        for watch in wanted {
            let members = match &watch {
                SourceWatch::Named(_) | SourceWatch::Selected(_) => Arc::default(),
                wide => open.members.entry(wide.clone()).or_default().clone(),
            };
            let running = open.sources.contains_key(&watch);
            members.set(demand.sources.keys().filter(|source| watch.shows(source)), running);
            open.sources.entry(watch.clone()).or_insert_with(|| match watch {
                SourceWatch::Named(source) => {
                    let resource = demand.sources.get(&source).cloned().unwrap_or_else(|| unknown(&source.gvk));
                    Task::start(&resource, self.clone().source(source, resource.clone()))
                }
                SourceWatch::Selected(selector) => {
                    let resource = demand.selectors.get(&selector).cloned().unwrap_or_else(|| unknown(&selector.gvk));
                    Task::start(&resource, self.clone().selected(selector, resource.clone()))
                }
                SourceWatch::Namespace { resource, namespace } => Task::start(
                    &resource,
                    self.clone().many(resource.clone(), Some(namespace), members, selectors.clone()),
                ),
                SourceWatch::Cluster { resource } => {
                    Task::start(&resource, self.clone().many(resource.clone(), None, members, selectors.clone()))
                }
            });
        }
        open.selectors = selectors;
    }

    async fn copies(self, copies: CopyWatch, resource: Resource) {
        let selector = format!("{}={}", names::MANAGED_BY, names::MANAGED_BY_VALUE);
        let path = resource_path(&resource, copies.namespace.as_deref(), None);
        let kind = &copies.kind;
        watch::<Meta>(self.client.clone(), cluster_wide(&path, true, Some(selector), "copies"), |event| match event {
            Event::Listing => self.handle.with(|engine, now| engine.copies_listing(&copies, now)),
            Event::Applied(object) => self.handle.with(|engine, now| engine.copy_applied(kind, &object.metadata, now)),
            Event::Deleted(object) => self.handle.with(|engine, now| engine.copy_gone(kind, &object.metadata, now)),
            Event::Listed { version } => self.handle.with(|engine, now| engine.copies_listed(&copies, version, now)),
            Event::NotServed => self.gone(&resource),
            Event::Unreadable(why) => self.handle.with(|engine, now| engine.copies_unreadable(&copies, why, now)),
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
            Event::Listed { .. } => {}
            Event::NotServed => self.gone(&resource),
            Event::Unreadable(why) => self.handle.with(|engine, now| engine.source_unreadable(&source, why, now)),
        })
        .await;
    }

    /// What a selector finds.
    async fn selected(self, selector: SourceSelector, resource: Resource) {
        let spec = WatchSpec {
            path: resource_path(&resource, Some(&selector.namespace), None),
            metadata_only: false,
            label_selector: (!selector.selector.is_empty()).then(|| selector.selector.to_query()),
            name: None,
            what: format!("sources {selector}"),
        };
        let mut found = BTreeSet::new();
        let source = |object: &Value| Some(selector.source(object.pointer("/metadata/name")?.as_str()?));
        watch::<Value>(self.client.clone(), spec, |event| match event {
            Event::Listing => found.clear(),
            Event::Applied(object) => {
                let Some(source) = source(&object) else { return };
                found.extend(Member::of(&object));
                self.handle.with(|engine, now| engine.source(&source, Some(object), now));
            }
            Event::Deleted(object) => {
                let Some(source) = source(&object) else { return };
                self.handle.with(|engine, now| engine.source(&source, None, now));
            }
            Event::Listed { .. } => {
                let found = std::mem::take(&mut found);
                self.handle.with(|engine, now| engine.selected(&selector, &found, now));
            }
            Event::NotServed => self.gone(&resource),
            Event::Unreadable(why) => self.handle.with(|engine, now| engine.selector_unreadable(&selector, why, now)),
        })
        .await;
    }

    /// Many sources of one kind: their metadata is watched, and what changed is read.
    async fn many(
        self,
        resource: Resource,
        namespace: Option<Box<str>>,
        members: Arc<Members>,
        selectors: BTreeSet<SourceSelector>,
    ) {
        let path = resource_path(&resource, namespace.as_deref(), None);
        let spec = cluster_wide(&path, true, None, "sources");
        let here = |selector: &SourceSelector| {
            selector.gvk == resource.gvk && namespace.as_ref().is_none_or(|home| *home == selector.namespace)
        };
        let mut selected: Vec<Selected> = selectors.into_iter().filter(here).map(Selected::new).collect();
        let find = |meta: &Meta| {
            let (namespace, name) = (meta.metadata.namespace.as_deref()?, meta.metadata.name.as_deref()?);
            members.wanted().get(&SourceRef::named(resource.gvk.clone(), namespace, name)).cloned()
        };
        let reads = &members.reads;
        let mut missing = BTreeSet::new();
        let watching = watch::<Meta>(self.client.clone(), spec, |event| match event {
            Event::Listing => {
                missing.clone_from(&members.wanted());
                selected.iter_mut().for_each(|selected| selected.found.clear());
            }
            // What became of it, and in which order, a read tells.
            Event::Applied(ref object) | Event::Deleted(ref object) => {
                let there = matches!(event, Event::Applied(_));
                if let Some(source) = find(object) {
                    missing.remove(&source);
                    reads.want(source);
                }
                selected.iter_mut().filter_map(|selected| selected.show(object, there)).for_each(|one| reads.want(one));
            }
            Event::Listed { .. } => {
                std::mem::take(&mut missing).into_iter().for_each(|source| reads.want(source));
                self.handle.with(|engine, now| {
                    for Selected { selector, found } in &selected {
                        engine.selected(selector, &found.values().cloned().collect(), now);
                    }
                });
            }
            Event::NotServed => self.gone(&resource),
            Event::Unreadable(why) => self.handle.with(|engine, now| {
                for source in members.wanted().iter() {
                    engine.source_unreadable(source, why, now);
                }
                for Selected { selector, .. } in &selected {
                    engine.selector_unreadable(selector, why, now);
                }
            }),
        });
        tokio::join!(watching, self.read(reads, &resource));
    }

    /// Reads sources as they come due, one at a time.
    async fn read(&self, reads: &Reads, resource: &Resource) {
        let mut failing: BTreeMap<SourceRef, Failing> = BTreeMap::new();
        loop {
            let source = reads.next().await;
            let error = match self.writer.read(resource, &source.namespace, &source.name).await {
                Ok(object) => {
                    failing.remove(&source);
                    let object = object.filter(|object| admits(&source, object));
                    self.handle.with(|engine, now| engine.source(&source, object, now));
                    continue;
                }
                Err(error) => error,
            };
            let streak = failing.entry(source.clone()).or_default();
            if let Some((why, news)) = streak.despair(matches!(error, ErrandError::Denied { .. })) {
                if news {
                    warn!(%source, %error, "cannot read a source");
                }
                self.handle.with(|engine, now| engine.source_unreadable(&source, why, now));
            }
            reads.want_at(source, Instant::now() + streak.backoff.pause());
        }
    }

    fn gone(&self, resource: &Resource) {
        self.discovery.forget();
        self.handle.with(|engine, now| engine.kind(&resource.gvk, None, now));
    }
}

/// The sources that one wide watch serves. They come and go while it goes on: whichever comes is read then, and what happens to it
/// afterwards the watch shows.
#[derive(Default)]
struct Members {
    wanted: Mutex<BTreeSet<SourceRef>>,
    reads: Reads,
}

impl Members {
    fn wanted(&self) -> MutexGuard<'_, BTreeSet<SourceRef>> {
        // It is replaced as a whole.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on it is these. What a watch that is yet to begin serves its listing will show.
    fn set<'a>(&self, sources: impl Iterator<Item = &'a SourceRef>, running: bool) {
        let sources: BTreeSet<SourceRef> = sources.cloned().collect();
        let former = std::mem::replace(&mut *self.wanted(), sources.clone());
        if running {
            sources.difference(&former).for_each(|source| self.reads.want(source.clone()));
        }
    }
}

/// A selector among those that a kind's watch looks for.
struct Selected {
    selector: SourceSelector,
    found: BTreeMap<Box<str>, Member>,
}

impl Selected {
    fn new(selector: SourceSelector) -> Self {
        Self { selector, found: BTreeMap::new() }
    }

    /// The source to read, if it is one now or was until now.
    fn show(&mut self, Meta { metadata }: &Meta, there: bool) -> Option<SourceRef> {
        let (namespace, name) = (metadata.namespace.as_deref()?, metadata.name.as_deref()?);
        let source = self.selector.source(name);
        let label = |key: &str| metadata.labels.as_ref()?.get(key).map(String::as_str);
        let member = Member::of(&json!({"metadata": metadata})).filter(|_| there && source.admits(label));
        if *source.namespace != *namespace {
            return None;
        }
        let known = match member {
            Some(member) => {
                self.found.insert(name.into(), member);
                true
            }
            None => self.found.remove(name).is_some(),
        };
        known.then_some(source)
    }
}

/// Sources to read: each once, however often it changed.
#[derive(Default)]
struct Reads {
    due: Mutex<BTreeMap<SourceRef, Instant>>,
    more: Notify,
}

impl Reads {
    fn due(&self) -> MutexGuard<'_, BTreeMap<SourceRef, Instant>> {
        // Entries are added and removed whole.
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It changed, or may have.
    fn want(&self, source: SourceRef) {
        self.due().insert(source, Instant::now());
        self.more.notify_one();
    }

    /// It is worth another look then, if nothing happens before.
    fn want_at(&self, source: SourceRef, at: Instant) {
        self.due().entry(source).or_insert(at);
    }

    /// The one that has been due for longest, as soon as one is. What happens to it from here on makes it due again.
    async fn next(&self) -> SourceRef {
        loop {
            let first = self.due().iter().min_by_key(|(_, due)| **due).map(|(source, due)| (source.clone(), *due));
            match first {
                Some((source, due)) if due <= Instant::now() => {
                    self.due().remove(&source);
                    return source;
                }
                Some((_, due)) => tokio::select! {
                    () = tokio::time::sleep_until(due) => {}
                    () = self.more.notified() => {}
                },
                None => self.more.notified().await,
            }
        }
    }
}

/// Something that has been failing for a while.
struct Failing {
    since: Instant,
    backoff: Backoff,
    /// Whether it was said.
    told: bool,
}

impl Default for Failing {
    fn default() -> Self {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        Self { since: Instant::now(), backoff, told: false }
    }
}

impl Failing {
    /// What it means for whoever waits, once that is more than a passing trouble; and whether that is news.
    fn despair(&mut self, denied: bool) -> Option<(Unreadable, bool)> {
        let why = if denied { Unreadable::Forbidden { verb: "get" } } else { Unreadable::Unavailable };
        let lasts = denied || self.since.elapsed() >= LASTING;
        lasts.then(|| (why, !std::mem::replace(&mut self.told, true)))
    }
}

#[derive(Default)]
struct Open {
    copies: BTreeMap<CopyWatch, Task>,
    sources: BTreeMap<SourceWatch, Task>,
    members: BTreeMap<SourceWatch, Arc<Members>>,
    selectors: BTreeSet<SourceSelector>,
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

fn unknown(gvk: &GroupVersionKind) -> Resource {
    Resource { gvk: gvk.clone(), plural: "".into(), namespaced: true }
}

fn cluster_wide(path: &str, metadata_only: bool, label_selector: Option<String>, what: &str) -> WatchSpec {
    WatchSpec { path: path.into(), metadata_only, label_selector, name: None, what: what.into() }
}

fn rule_id(kind: RuleKind, object: &Value) -> Option<RuleId> {
    let text = |at| object.pointer(at).and_then(Value::as_str).map(Box::from);
    Some(RuleId { kind, namespace: text("/metadata/namespace"), name: text("/metadata/name")? })
}

/// One that can't even be decoded, as a newer version may have stored it, is that rule's trouble alone.
fn parse(kind: RuleKind, object: Value) -> (Result<Rule, Vec<Refusal>>, Observed) {
    let parsed = match kind {
        RuleKind::ClusterReplication => {
            decode::<ClusterReplication>(object).map(|object| (Rule::parse(&object), object.status))
        }
        RuleKind::Replication => {
            decode::<Replication>(object).map(|object| (Rule::parse_replication(&object), object.status))
        }
    };
    parsed.unwrap_or_else(|refusals| (Err(refusals), None))
}

fn decode<T: DeserializeOwned>(object: Value) -> Result<T, Vec<Refusal>> {
    serde_json::from_value(object).map_err(|error| vec![Refusal { field: "spec".into(), message: error.to_string() }])
}

/// The webhook's replicas by the names of their Leases. Each lives as long as its Lease keeps changing; clocks are not compared.
#[derive(Default)]
struct Replicas {
    leases: BTreeMap<String, SeenLease>,
    /// Shown since the last listing began.
    listed: BTreeSet<String>,
}

impl Replicas {
    fn show(&mut self, lease: Lease, now: Instant) {
        let name = lease.metadata.name.clone().unwrap_or_default();
        self.listed.insert(name.clone());
        if let Some(seen) = observe(self.leases.remove(&name), Some(lease), now) {
            self.leases.insert(name, seen);
        }
    }

    fn lose(&mut self, lease: &Lease) {
        self.leases.remove(lease.metadata.name.as_deref().unwrap_or_default());
    }

    fn complete(&mut self) {
        self.leases.retain(|name, _| self.listed.contains(name));
    }

    fn alive(&self, now: Instant) -> Webhooks {
        let alive = self.leases.values().filter(|seen| now < seen.expiry());
        Webhooks { seen: alive.map(|seen| seen_version(&seen.lease)).collect() }
    }
}

fn seen_version(lease: &Lease) -> u64 {
    let annotations = lease.metadata.annotations.as_ref();
    version(annotations.and_then(|all| all.get(names::SEEN)).map(String::as_str))
}

#[cfg(test)]
mod tests {
    use mimeo_core::{
        engine::{Role, Settings, Tick},
        review::User,
    };
    use serde_json::json;

    use super::*;
    use crate::{
        driver::CopyRequests,
        limiter::Limiter,
        testing::{Script, Server},
    };

    const UID: &str = "0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5";
    const SECOND: Duration = Duration::from_secs(1);

    fn secrets() -> Resource {
        let gvk = GroupVersionKind::parse("v1", "Secret").expect("a kind");
        Resource { gvk, plural: "secrets".into(), namespaced: true }
    }

    fn source(name: &str) -> SourceRef {
        SourceRef::named(secrets().gvk, "platform", name)
    }

    fn object(name: &str, version: u64) -> Value {
        let metadata = json!({"name": name, "namespace": "platform", "resourceVersion": version.to_string()});
        json!({"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "data": {"a": "aHVudGVyMg=="}})
    }

    /// An observer of this server whose engine has one rule with these sources, and a namespace that waits for their copies.
    fn observer(server: &Server, names: &[&str]) -> Observer {
        let sources: Vec<Value> = names
            .iter()
            .map(|name| json!({"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": name}))
            .collect();
        let rule = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "registry"},
            "spec": {"barrier": "Required", "sources": sources, "targets": [{"namespaces": ["team"]}]},
        });
        let rule = Rule::parse(&serde_json::from_value(rule).expect("a rule")).expect("a good rule");
        let id = rule.id.clone();
        let mut engine = Engine::new(Settings::new(Role::Injector, "cluster"));
        engine.rule_applied(id.clone(), Ok(rule), Some(User::default()), None, SECOND);
        engine.rules_listed(RuleKind::ClusterReplication, &[id].into(), SECOND);
        engine.rules_unserved(RuleKind::Replication, SECOND);
        let meta = json!({"name": "team", "uid": UID, "resourceVersion": "3", "labels": {names::MARK: "token"}});
        engine.namespace_applied(&serde_json::from_value(meta).expect("metadata"), SECOND);
        engine.namespaces_listed(&["team".into()].into(), SECOND);
        engine.claim("team", SECOND);
        engine.kinds_recorded(&BTreeSet::new(), SECOND);
        engine.kind(&secrets().gvk, Some(secrets()), SECOND);
        let client = server.client();
        Observer {
            handle: Handle::new(engine, CopyRequests::default()),
            client: client.clone(),
            writer: Writer::new(client.clone(), Limiter::new(1, 1), Duration::from_secs(5), "mimeo"),
            discovery: Arc::new(Discovery::new(client)),
            namespace: "mimeo".into(),
            crds: Arc::default(),
        }
    }

    /// Runs `work` until the engine looks as it should.
    #[track_caller]
    fn until(
        work: impl Future<Output = ()>,
        handle: &Handle,
        mut holds: impl FnMut(&mut Engine, Tick) -> bool,
    ) -> impl Future<Output = ()> {
        let (caller, mut changes) = (std::panic::Location::caller(), handle.changes());
        async move {
            let waiting = async {
                while !handle.look(&mut holds) {
                    changes.changed().await.expect("the handle lives");
                }
            };
            tokio::select! {
                () = work => {}
                done = tokio::time::timeout(Duration::from_secs(20), waiting) => assert!(done.is_ok(), "{caller}"),
            }
        }
    }

    fn refusal(code: u16) -> Script {
        Script::json(code, &json!({"kind": "Status", "apiVersion": "v1", "code": code}))
    }

    #[tokio::test]
    async fn the_engine_is_told_of_a_source_that_may_not_be_watched() {
        let server = Server::start([refusal(403), refusal(403)]).await;
        let observer = observer(&server, &["a"]);
        let handle = observer.handle.clone();
        until(observer.source(source("a"), secrets()), &handle, |engine, _| engine.informed()).await;
        assert_eq!(held(&handle), ["Secret a (Forbidden)"]);
    }

    /// What the namespace waits for, and what it can't get.
    fn held(handle: &Handle) -> Vec<String> {
        let progress = handle.look(|engine, now| engine.progress("team", now));
        progress.waiting.into_iter().chain(progress.denied).collect()
    }

    fn many(observer: Observer, names: &[&str]) -> impl Future<Output = ()> {
        let members = Arc::new(Members::default());
        let sources: Vec<SourceRef> = names.iter().map(|name| source(name)).collect();
        members.set(sources.iter(), false);
        observer.many(secrets(), Some("platform".into()), members, BTreeSet::new())
    }

    fn listing(names: &[&str]) -> Script {
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let end = json!({"metadata": {"resourceVersion": "10", "annotations": annotations}});
        let lines = names.iter().map(|name| json!({"type": "ADDED", "object": object(name, 9)}));
        let lines = lines.chain([json!({"type": "BOOKMARK", "object": end})]);
        Script::text(200, lines.flat_map(|line| [line.to_string(), "\n".into()]).collect::<String>())
    }

    #[tokio::test]
    async fn a_source_that_cannot_be_read_holds_up_no_other() {
        let names = ["a", "b", "c"];
        let absent = json!({"kind": "Status", "apiVersion": "v1", "code": 404, "details": {"name": "c"}});
        let server = Server::start([
            listing(&["a", "b"]).hold(),
            refusal(403),
            Script::json(200, &object("b", 9)),
            Script::json(404, &absent),
        ])
        .await;
        let observer = observer(&server, &names);
        let handle = observer.handle.clone();
        until(many(observer, &names), &handle, |engine, _| engine.informed()).await;
        let paths: Vec<String> = server.requests().split_off(1);
        assert_eq!(paths, ["a", "b", "c"].map(|name| format!("GET /api/v1/namespaces/platform/secrets/{name}")));
        assert_eq!(held(&handle), ["Secret b", "Secret a (Forbidden)", "Secret c (SourceNotFound)"]);
    }

    /// Its last state is still being read when it is deleted.
    #[tokio::test]
    async fn a_deleted_source_is_not_revived_by_a_read_under_way() {
        let deleted = json!({"type": "DELETED", "object": object("a", 11)});
        let absent = json!({"kind": "Status", "apiVersion": "v1", "code": 404, "details": {"name": "a"}});
        let server = Server::start([
            listing(&["a"]).pause(Duration::from_millis(100)).send(format!("{deleted}\n")).hold(),
            Script::text(200, "").pause(Duration::from_millis(300)).send(object("a", 9).to_string()),
            Script::json(404, &absent),
        ])
        .await;
        let observer = observer(&server, &["a"]);
        let handle = observer.handle.clone();
        let gone = |engine: &mut Engine, now| engine.progress("team", now).denied == ["Secret a (SourceNotFound)"];
        until(many(observer, &["a"]), &handle, gone).await;
        assert_eq!(server.requests().len(), 3);
    }

    #[tokio::test]
    async fn a_source_waits_its_turn_once() {
        let reads = Reads::default();
        let later = Instant::now() + Duration::from_hours(1);
        reads.want(source("b"));
        reads.want_at(source("b"), later);
        reads.want_at(source("a"), later);
        assert_eq!(reads.next().await, source("b"));
        reads.want(source("a"));
        assert_eq!(reads.next().await, source("a"));
        assert!(reads.due().is_empty());
    }

    /// By how long its Lease has not changed here: what its own clock says counts for nothing.
    #[tokio::test]
    async fn a_replica_lives_while_its_lease_changes() {
        let lease = |renewed: &str| -> Lease {
            let spec = json!({"leaseDurationSeconds": 15, "renewTime": renewed});
            let metadata = json!({"name": "w", "annotations": {names::SEEN: "7"}});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a Lease")
        };
        let (start, mut replicas) = (Instant::now(), Replicas::default());
        let alive = |replicas: &Replicas, seconds| replicas.alive(start + Duration::from_secs(seconds)).seen;
        for slow_or_fast in ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
            replicas = Replicas::default();
            replicas.show(lease(slow_or_fast), start);
            assert_eq!(alive(&replicas, 14), [7]);
            assert!(alive(&replicas, 15).is_empty());
        }
        // Shown again it is as old as it was; what a listing doesn't show is gone.
        replicas.listed.clear();
        replicas.show(lease("2999-01-01T00:00:00.000000Z"), start + Duration::from_secs(9));
        replicas.complete();
        assert!(alive(&replicas, 15).is_empty());
        replicas.show(lease("2999-01-01T00:00:05.000000Z"), start + Duration::from_secs(9));
        assert_eq!(alive(&replicas, 15), [7]);
        replicas.listed.clear();
        replicas.complete();
        assert!(alive(&replicas, 15).is_empty());
    }
}
