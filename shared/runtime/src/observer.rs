//! Informs an engine about the cluster: keeps exactly those watches open that the engine's demand
//! names.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Resource as _, api::ObjectMeta};
use mimeo_api::names::API_VERSION;
use mimeo_engine::CopyWatch;
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    names,
    outcome::Unreadable,
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::{sync::Notify, time::Instant};
use tracing::warn;

use crate::{
    backoff::Backoff,
    call::CallError,
    discovery::resource_path,
    follow::Follower,
    handle::Handle,
    object::text,
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
    handle: Handle,
    watcher: Watcher,
    /// Finds kinds, and reads single sources when the watch of a kind shows a change.
    writer: Writer,
    /// The kinds that may have copies, as last recorded.
    noted: Arc<Mutex<BTreeSet<GroupVersionKind>>>,
}

impl Observer {
    /// An observer that opens no watch yet.
    pub fn new(handle: &Handle, watcher: &Watcher, writer: &Writer) -> Self {
        Self {
            handle: handle.clone(),
            watcher: watcher.clone(),
            writer: writer.clone(),
            noted: Arc::default(),
        }
    }

    /// Opens the watches that every engine needs, each in a task of its own. `kinds_changed` is
    /// called when the cluster may serve other kinds.
    pub fn start(&self, kinds_changed: impl Fn() + Send + Sync + 'static) {
        let wake = Arc::new(Notify::new());
        for kind in RuleKind::ALL {
            tokio::spawn(self.clone().rules(kind));
        }
        tokio::spawn(self.clone().grants());
        tokio::spawn(self.clone().namespaces());
        tokio::spawn(self.clone().kinds());
        tokio::spawn(self.clone().demand(wake.clone()));
        tokio::spawn(self.clone().crds(move || {
            wake.notify_one();
            kinds_changed();
        }));
    }

    /// Watches the rules of a kind.
    async fn rules(self, kind: RuleKind) {
        let path = format!("/apis/{API_VERSION}/{}", kind.plural());
        feed(
            self.watcher.clone(),
            WatchSpec::objects(path, "rules"),
            |object: Decoded<Value>| {
                let namespace = text(object.value(), "/metadata/namespace");
                let id = rule_id(kind, namespace, text(object.value(), "/metadata/name"))?;
                let (parsed, status) = parse_rule(kind, object);
                self.handle
                    .with(|engine| engine.rule_applied(id.clone(), parsed, status));
                Some(id)
            },
            |meta| {
                let id = rule_id(kind, meta.namespace.as_deref(), meta.name.as_deref());
                if let Some(id) = id {
                    self.handle.with(|engine| engine.rule_gone(&id));
                }
            },
            |known| {
                self.handle.with(|engine| engine.rules_known(kind, known));
            },
        )
        .await;
    }

    /// Watches the `ReplicationGrant`s of all namespaces.
    async fn grants(self) {
        let path = format!("/apis/{API_VERSION}/replicationgrants");
        feed(
            self.watcher.clone(),
            WatchSpec::objects(path, "grants"),
            |object: Decoded<Value>| {
                let namespace: Box<str> = text(object.value(), "/metadata/namespace")?.into();
                let name: Box<str> = text(object.value(), "/metadata/name")?.into();
                let grant = parse_grant(object);
                self.handle
                    .with(|engine| engine.grant_applied(&namespace, &name, grant));
                Some((namespace, name))
            },
            |meta| {
                if let (Some(namespace), Some(name)) = (&meta.namespace, &meta.name) {
                    self.handle
                        .with(|engine| engine.grant_gone(namespace, name));
                }
            },
            |known| {
                self.handle.with(|engine| engine.grants_known(known));
            },
        )
        .await;
    }

    /// Watches the metadata of namespaces.
    async fn namespaces(self) {
        feed(
            self.watcher.clone(),
            WatchSpec::metadata("/api/v1/namespaces", "namespaces"),
            // An object that is watched by its metadata alone is decoded or passed over, never
            // shown in part.
            |object: Decoded<Meta>| {
                let Meta { metadata } = object.whole()?;
                self.handle
                    .with(|engine| engine.namespace_applied(&metadata));
                Some(metadata.name?.into())
            },
            |meta| self.handle.with(|engine| engine.namespace_deleted(meta)),
            |known: Known<&BTreeSet<Box<str>>>| {
                if let Known::Listed(listed) = known {
                    self.handle.with(|engine| engine.namespaces_listed(listed));
                }
            },
        )
        .await;
    }

    /// Watches the kinds `ConfigMap`. It records the kinds that may have copies, and the last
    /// confirmation by a person.
    async fn kinds(self) {
        let maps = ConfigMap::url_path(&(), Some(&self.writer.namespace));
        let what = format!("configmaps/{KINDS_CONFIG_MAP}");
        let mut follower = Follower::new(self.watcher.clone(), &maps, KINDS_CONFIG_MAP, what);
        loop {
            let map: Option<ConfigMap> = follower.next().await;
            let Kinds { kinds, confirmed } = map.as_ref().map(parse_kinds).unwrap_or_default();
            self.noted.lock().clone_from(&kinds);
            self.handle.with(|engine| {
                engine.kinds_recorded(&kinds);
                engine.confirmed(confirmed.as_deref());
            });
        }
    }

    /// Watches the metadata of CRDs, because kinds appear and disappear with them. Calls `changed`
    /// after each change.
    async fn crds(self, changed: impl Fn() + Send + Sync) {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let spec = WatchSpec::metadata(path, "CRDs");
        let (mut listing, mut listed) = (true, false);
        watch::<Meta>(self.watcher.clone(), spec, |event| {
            let Meta { metadata } = match event {
                Event::Shown(Decoded::Whole(object)) | Event::Deleted(object) => object,
                Event::Listing => {
                    listing = true;
                    return;
                }
                Event::Known(Known::Listed(_)) => {
                    // Answers from before the first listing need not be forgotten: they are no
                    // older than the listing.
                    if listed {
                        self.writer.discovery.forget();
                    }
                    (listing, listed) = (false, true);
                    return changed();
                }
                Event::Shown(Decoded::Part(_)) | Event::Known(_) => return,
            };
            if !listing {
                // A CRD's name consists of its plural and its group.
                let name = metadata.name.unwrap_or_default();
                let (_, group) = name.split_once('.').unwrap_or_default();
                self.writer.discovery.forget_group(group);
                changed();
            }
        })
        .await;
    }

    async fn copies(self, copies: CopyWatch, resource: Resource) {
        let selector = format!("{}={}", names::MANAGED_BY, names::MANAGED_BY_VALUE);
        let path = resource_path(&resource, copies.namespace.as_deref(), None);
        let kind = &copies.kind;
        let spec = WatchSpec {
            label_selector: Some(selector),
            ..WatchSpec::metadata(path, "copies")
        };
        watch::<Meta>(self.watcher.clone(), spec, |event| match event {
            Event::Known(Known::Unserved) => self.gone(&resource),
            event => self.handle.with(|engine| match event {
                Event::Listing => engine.copies_listing(&copies),
                Event::Shown(Decoded::Whole(object)) => {
                    engine.copy_applied(kind, &object.metadata);
                }
                Event::Shown(Decoded::Part(_)) => {}
                Event::Deleted(object) => engine.copy_gone(kind, &object.metadata),
                Event::Known(known) => engine.copies_known(&copies, known),
            }),
        })
        .await;
    }

    fn gone(&self, resource: &Resource) {
        self.writer.discovery.forget();
        self.handle
            .with(|engine| engine.kind(&resource.gvk, Known::Unserved));
    }
}

/// Watches objects that must be known completely, until dropped. `shown` and `gone` get one object.
/// `shown` returns its identity, and `known` gets the identities of all objects in a list. The list
/// may have an object that was gone before the list was complete.
pub async fn feed<T: DeserializeOwned, K: Ord + Send + Sync>(
    watcher: Watcher,
    spec: WatchSpec,
    shown: impl Fn(Decoded<T>) -> Option<K> + Send + Sync,
    gone: impl Fn(&ObjectMeta) + Send + Sync,
    known: impl Fn(Known<&BTreeSet<K>>) + Send + Sync,
) {
    // The identities in the listing that is in progress; none outside of a listing.
    let mut listed: Option<BTreeSet<K>> = None;
    watch::<T>(watcher, spec, |event| match event {
        Event::Listing => listed = Some(BTreeSet::new()),
        Event::Shown(object) => {
            if let (Some(key), Some(listed)) = (shown(object), &mut listed) {
                listed.insert(key);
            }
        }
        Event::Deleted(Meta { metadata }) => gone(&metadata),
        Event::Known(state) => {
            let listed = listed.take().unwrap_or_default();
            known(state.map(|_| &listed));
        }
    })
    .await;
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
    /// Once the failure counts as lasting, returns its reason. Logs it the first time.
    fn despair(&mut self, what: impl fmt::Display, error: &CallError) -> Option<Unreadable> {
        let denied = matches!(error, CallError::Denied { .. });
        if !denied && self.since.elapsed() < LASTING {
            return None;
        }
        if !std::mem::replace(&mut self.told, true) {
            warn!(%what, %error, "cannot look up or read");
        }
        Some(if denied {
            Unreadable::Forbidden
        } else {
            Unreadable::Unavailable
        })
    }
}

fn rule_id(kind: RuleKind, namespace: Option<&str>, name: Option<&str>) -> Option<RuleId> {
    Some(RuleId {
        kind,
        namespace: namespace.map(Box::from),
        name: name?.into(),
    })
}
