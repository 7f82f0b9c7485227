//! Informs an engine about the cluster: keeps exactly those watches open that the engine's demand
//! names.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use mimeo_api::names::API_VERSION;
use mimeo_engine::{CopyWatch, Engine};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    meta::version,
    names,
    outcome::Unreadable,
};
use serde_json::Value;
use tokio::{sync::Notify, time::Instant};

use crate::{
    backoff::Backoff,
    discovery::{Discovery, resource_path},
    handle::Handle,
    object::Decoded,
    stored::{parse_grant, parse_rule},
    watch::{Event, LASTING, Meta, WatchSpec, Watcher, watch},
    writer::{KINDS_CONFIG_MAP, Kinds, Writer, parse_kinds},
};

mod demand;
mod replicas;
mod sources;

/// Keeps an engine informed.
#[derive(Clone)]
pub struct Observer {
    /// The engine.
    pub handle: Handle,
    /// Opens watches.
    pub watcher: Watcher,
    /// Reads single sources when the watch of a kind shows a change.
    pub writer: Writer,
    /// Finds kinds.
    pub discovery: Arc<Discovery>,
    /// Mimeo's own namespace.
    pub namespace: String,
    /// The last state of each CRD of rules: its uid as served, and its uid as recorded.
    pub crds: Arc<Mutex<BTreeMap<RuleKind, Crd>>>,
    /// The kinds that may have copies, as last recorded.
    pub noted: Arc<Mutex<BTreeSet<GroupVersionKind>>>,
}

/// The uids of one CRD. Both must be known before the engine is told: one alone would look like a
/// CRD that was installed again.
#[derive(Debug, Default)]
pub struct Crd {
    served: Sight,
    recorded: Sight,
}

/// A uid that the observer looks for.
#[derive(Debug, Default)]
enum Sight {
    #[default]
    NotLooked,
    Looked(Option<Box<str>>),
}

impl Observer {
    /// Watches the rules of a kind. `also` gets the resourceVersion of each rule that the engine
    /// was told about.
    pub async fn rules(self, kind: RuleKind, also: impl Fn(u64) + Send + Sync) {
        let spec = cluster_wide(
            &format!("/apis/{API_VERSION}/{}", kind.plural()),
            false,
            None,
            "rules",
        );
        let mut listed = BTreeSet::new();
        watch::<Value>(self.watcher.clone(), spec, |event| match event {
            Event::Listing => listed.clear(),
            Event::Applied(object) => listed.extend(self.rule(kind, Decoded::Whole(object), &also)),
            Event::Undecodable(part) => listed.extend(self.rule(kind, Decoded::Part(part), &also)),
            Event::Deleted(Meta { metadata }) => {
                let Some(id) = rule_id(
                    kind,
                    metadata.namespace.as_deref(),
                    metadata.name.as_deref(),
                ) else {
                    return;
                };
                listed.remove(&id);
                self.handle.with(|engine, now| engine.rule_gone(&id, now));
            }
            Event::Listed { version } => {
                self.handle
                    .with(|engine, now| engine.rules_listed(kind, &listed, now));
                also(version);
            }
            Event::NotServed => self
                .handle
                .with(|engine, now| engine.rules_unserved(kind, now)),
            Event::Unreadable(why) => self
                .handle
                .with(|engine, now| engine.rules_unreadable(kind, why, now)),
        })
        .await;
    }

    /// Tells the engine a rule's state. Returns the rule's id.
    fn rule(
        &self,
        kind: RuleKind,
        object: Decoded<Value>,
        also: &(impl Fn(u64) + Send + Sync),
    ) -> Option<RuleId> {
        let text = |at| object.value().pointer(at).and_then(Value::as_str);
        let id = rule_id(kind, text("/metadata/namespace"), text("/metadata/name"))?;
        let at = version(text("/metadata/resourceVersion"));
        let (parsed, status) = parse_rule(kind, object);
        self.handle
            .with(|engine, now| engine.rule_applied(id.clone(), parsed, status, now));
        also(at);
        Some(id)
    }

    /// Watches the `ReplicationGrant`s of all namespaces.
    pub async fn grants(self) {
        let spec = cluster_wide(
            &format!("/apis/{API_VERSION}/replicationgrants"),
            false,
            None,
            "grants",
        );
        let mut listed: BTreeSet<(Box<str>, Box<str>)> = BTreeSet::new();
        watch::<Value>(self.watcher.clone(), spec, |event| match event {
            Event::Listing => listed.clear(),
            Event::Applied(object) => listed.extend(self.grant(Decoded::Whole(object))),
            Event::Undecodable(part) => listed.extend(self.grant(Decoded::Part(part))),
            Event::Deleted(Meta { metadata }) => {
                let Some((namespace, name)) = metadata.namespace.zip(metadata.name) else {
                    return;
                };
                self.handle
                    .with(|engine, now| engine.grant_gone(&namespace, &name, now));
            }
            Event::Listed { .. } => {
                self.handle
                    .with(|engine, now| engine.grants_listed(&listed, now));
                listed.clear();
            }
            Event::NotServed => self.handle.with(Engine::grants_unserved),
            Event::Unreadable(why) => self
                .handle
                .with(|engine, now| engine.grants_unreadable(why, now)),
        })
        .await;
    }

    /// Tells the engine a grant's state. Returns the grant's namespace and name.
    fn grant(&self, object: Decoded<Value>) -> Option<(Box<str>, Box<str>)> {
        let text = |at| {
            object
                .value()
                .pointer(at)
                .and_then(Value::as_str)
                .map(Box::<str>::from)
        };
        let (namespace, name) = text("/metadata/namespace").zip(text("/metadata/name"))?;
        let grant = parse_grant(object);
        self.handle
            .with(|engine, now| engine.grant_applied(&namespace, &name, grant, now));
        Some((namespace, name))
    }

    /// Watches the metadata of namespaces.
    pub async fn namespaces(self) {
        let spec = cluster_wide("/api/v1/namespaces", true, None, "namespaces");
        // The names in the listing that is in progress; none outside of a listing.
        let mut listed: Option<BTreeSet<Box<str>>> = None;
        watch::<Meta>(self.watcher.clone(), spec, |event| match event {
            Event::Listing => listed = Some(BTreeSet::new()),
            Event::Applied(object) => {
                let name = object.metadata.name.as_deref().unwrap_or_default();
                listed
                    .iter_mut()
                    .for_each(|listed| _ = listed.insert(name.into()));
                self.handle
                    .with(|engine, now| engine.namespace_applied(&object.metadata, now));
            }
            Event::Deleted(object) => {
                let name = object.metadata.name.as_deref().unwrap_or_default();
                listed.iter_mut().for_each(|listed| _ = listed.remove(name));
                self.handle
                    .with(|engine, now| engine.namespace_deleted(&object.metadata, now));
            }
            Event::Listed { .. } => {
                let Some(listed) = listed.take() else { return };
                self.handle
                    .with(|engine, now| engine.namespaces_listed(&listed, now));
            }
            // An object that is watched by its metadata alone is decoded or passed over, never
            // shown as undecodable.
            Event::Undecodable(_) | Event::NotServed | Event::Unreadable(_) => {}
        })
        .await;
    }

    /// Watches the kinds `ConfigMap`. It records the kinds that may have copies, the uids of the
    /// CRDs of rules, and the last confirmation by a person.
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
        watch::<ConfigMap>(self.watcher.clone(), spec, |event| match event {
            Event::Applied(map) => {
                seen = true;
                self.kinds_are(Some(&map));
            }
            // The former content stays valid.
            Event::Undecodable(_) => seen = true,
            Event::Deleted(_) => self.kinds_are(None),
            Event::Listing => seen = false,
            Event::Listed { .. } if !seen => self.kinds_are(None),
            _ => {}
        })
        .await;
    }

    fn kinds_are(&self, map: Option<&ConfigMap>) {
        let Kinds {
            kinds,
            mut crds,
            confirmed,
        } = map.map(parse_kinds).unwrap_or_default();
        let created = map
            .and_then(|map| map.metadata.creation_timestamp.as_ref())
            .map(|time| time.0);
        self.noted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(&kinds);
        self.handle.with(|engine, now| {
            engine.kinds_since(created, now);
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
        if let Crd {
            served: Sight::Looked(served),
            recorded: Sight::Looked(recorded),
        } = state
        {
            self.handle
                .with(|engine, now| engine.crd(kind, served.clone(), recorded.clone(), now));
        }
    }

    /// Watches the metadata of CRDs, because kinds appear and disappear with them.
    pub async fn crds(self, wake: Arc<Notify>) {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let spec = cluster_wide(path, true, None, "CRDs");
        let mut served: BTreeMap<RuleKind, Box<str>> = BTreeMap::new();
        let (mut listing, mut listed) = (true, false);
        watch::<Meta>(self.watcher.clone(), spec, |event| {
            let (Event::Applied(object) | Event::Deleted(object)) = &event else {
                match event {
                    Event::Listing => {
                        listing = true;
                        served.clear();
                    }
                    Event::Listed { .. } => {
                        // Answers from before the first listing need not be forgotten: they are no
                        // older than the listing.
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
            if let Some(kind) = RuleKind::ALL
                .into_iter()
                .find(|kind| kind.crd_name() == name)
            {
                // A CRD that is being deleted takes its objects with it, so it counts as not
                // served.
                let stays = matches!(event, Event::Applied(_))
                    && object.metadata.deletion_timestamp.is_none();
                served.remove(&kind);
                served.extend(
                    object
                        .metadata
                        .uid
                        .as_deref()
                        .filter(|_| stays)
                        .map(|uid| (kind, uid.into())),
                );
            }
            if !listing {
                // A CRD's name consists of its plural and its group.
                let (plural, group) = name.split_once('.').unwrap_or_default();
                self.discovery.forget_group(group);
                self.handle
                    .with(|engine, now| engine.defined(group, plural, now));
                self.crds_served(&served);
                wake.notify_one();
            }
        })
        .await;
    }

    fn crds_served(&self, uids: &BTreeMap<RuleKind, Box<str>>) {
        for kind in RuleKind::ALL {
            self.crd_is(kind, |state| {
                state.served = Sight::Looked(uids.get(&kind).cloned());
            });
        }
    }

    async fn copies(self, copies: CopyWatch, resource: Resource) {
        let selector = format!("{}={}", names::MANAGED_BY, names::MANAGED_BY_VALUE);
        let path = resource_path(&resource, copies.namespace.as_deref(), None);
        let kind = &copies.kind;
        watch::<Meta>(
            self.watcher.clone(),
            cluster_wide(&path, true, Some(selector), "copies"),
            |event| match event {
                Event::Undecodable(_) => {}
                Event::Listing => self
                    .handle
                    .with(|engine, now| engine.copies_listing(&copies, now)),
                Event::Applied(object) => self
                    .handle
                    .with(|engine, now| engine.copy_applied(kind, &object.metadata, now)),
                Event::Deleted(object) => self
                    .handle
                    .with(|engine, now| engine.copy_gone(kind, &object.metadata, now)),
                Event::Listed { version } => self
                    .handle
                    .with(|engine, now| engine.copies_listed(&copies, version, now)),
                Event::NotServed => self.gone(&resource),
                Event::Unreadable(why) => self
                    .handle
                    .with(|engine, now| engine.copies_unreadable(&copies, why, now)),
            },
        )
        .await;
    }

    fn gone(&self, resource: &Resource) {
        self.discovery.forget();
        self.handle
            .with(|engine, now| engine.kind(&resource.gvk, None, now));
    }
}

/// An operation that has been failing for a while.
struct Failing {
    since: Instant,
    backoff: Backoff,
    /// Whether the failure was logged.
    told: bool,
}

impl Default for Failing {
    fn default() -> Self {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        Self {
            since: Instant::now(),
            backoff,
            told: false,
        }
    }
}

impl Failing {
    /// Once the failure counts as lasting, returns its reason, and whether it is returned for the
    /// first time.
    fn despair(&mut self, denied: bool) -> Option<(Unreadable, bool)> {
        let why = if denied {
            Unreadable::Forbidden { verb: "get" }
        } else {
            Unreadable::Unavailable
        };
        let lasts = denied || self.since.elapsed() >= LASTING;
        lasts.then(|| (why, !std::mem::replace(&mut self.told, true)))
    }
}

fn cluster_wide(
    path: &str,
    metadata_only: bool,
    label_selector: Option<String>,
    what: &str,
) -> WatchSpec {
    WatchSpec {
        path: path.into(),
        metadata_only,
        label_selector,
        name: None,
        what: what.into(),
    }
}

fn rule_id(kind: RuleKind, namespace: Option<&str>, name: Option<&str>) -> Option<RuleId> {
    Some(RuleId {
        kind,
        namespace: namespace.map(Box::from),
        name: name?.into(),
    })
}
