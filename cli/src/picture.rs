//! One picture of the cluster: the rules, the namespaces, and the engine's decisions about them.
//!
//! The engine is the reconciler's own ([`Snapshot`]). `reading` answers its questions with the
//! permissions of the user. A fact that the user may not read stays unknown, and is noted.

mod answers;
mod overlay;
mod progress;
mod reading;
mod unread;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mimeo_api::ClusterReplicationStatus;
use mimeo_engine::{CopyView, Cursor, PlaceView, Progress as Waits, Snapshot};
use mimeo_model::{
    id::RuleId,
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    refusal::Refused,
    rule::Rule,
    selection::Labels,
    source::{SourceRef, SourceSelector},
};
use mimeo_runtime::stored::parse_grant;
use serde_json::Value;

use self::reading::Reading;
pub(crate) use self::{
    overlay::Overlay,
    unread::{Gap, Unread},
};
use crate::{
    connect::Connected,
    files::Key,
    read::{Reader, text},
};

/// The namespaces whose copies a command asks about.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// All namespaces.
    All,
    /// One namespace.
    One(String),
}

impl Scope {
    /// The namespace of the flag `-n`, or all namespaces.
    pub(crate) fn asked(connected: &Connected) -> Self {
        let namespace = connected.asked_namespace.clone();
        namespace.map_or(Self::All, Self::One)
    }

    pub(crate) fn has(&self, namespace: &str) -> bool {
        self.one().is_none_or(|one| one == namespace)
    }

    fn one(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::One(namespace) => Some(namespace),
        }
    }
}

/// A rule as it is stored.
pub(crate) struct Stored {
    /// The rule, or why it is refused.
    pub(crate) rule: Result<Rule, Refused>,
    /// The status that the reconciler wrote for this spec.
    pub(crate) status: Option<ClusterReplicationStatus>,
    /// The object.
    pub(crate) object: Value,
}

/// Namespaces and names of grants.
pub(crate) type GrantNames = BTreeSet<(Box<str>, Box<str>)>;

/// Everything that was read, and the engine that has seen it.
pub(crate) struct Picture {
    /// The namespace in which Mimeo is installed.
    pub(crate) mimeo: String,
    pub(crate) snapshot: Snapshot,
    pub(crate) rules: BTreeMap<RuleId, Stored>,
    pub(crate) namespaces: BTreeMap<String, ObjectMeta>,
    /// The sources that selectors find, by name.
    pub(crate) selected: BTreeMap<SourceSelector, Vec<String>>,
    /// The resources of the kinds that rules use. `None`: the API server doesn't serve the kind.
    pub(crate) kinds: BTreeMap<GroupVersionKind, Option<Resource>>,
    /// The namespaces in the scope with the pending label, and the copies that hold their pods.
    pub(crate) waiting: BTreeMap<String, Waits>,
    /// The facts that could not be read.
    pub(crate) unread: Unread,
    /// The rules and grants of files that differ from the stored ones by more than `suspend: true`.
    pub(crate) to_authorize: BTreeSet<Key>,
}

impl Picture {
    /// Reads the cluster as far as the copies in the scope depend on it.
    pub(crate) async fn read(connected: &Connected, scope: Scope) -> Result<Self> {
        let reader = connected.reader();
        Self::read_with(connected, reader, scope, Overlay::default()).await
    }

    /// The same, with the objects of files in place of the stored ones.
    pub(crate) async fn read_with(
        connected: &Connected,
        reader: Reader,
        scope: Scope,
        overlay: Overlay,
    ) -> Result<Self> {
        let mut reading = Reading::outline(connected, reader, scope, overlay).await?;
        reading.kinds_recorded().await;
        reading.answer_all().await;
        Ok(reading.finish())
    }

    /// Reads the rules, the namespaces and the grants, and nothing that the engine asks about them.
    pub(crate) async fn outline(connected: &Connected, scope: Scope) -> Result<Self> {
        let reader = connected.reader();
        let reading = Reading::outline(connected, reader, scope, Overlay::default()).await?;
        Ok(reading.finish())
    }

    /// The statuses that the reconciler would write now, where they differ from the stored ones.
    pub(crate) fn statuses(&mut self) -> BTreeMap<RuleId, ClusterReplicationStatus> {
        statuses(&mut self.snapshot)
    }

    /// The rules that are not refused.
    pub(crate) fn valid_rules(&self) -> impl Iterator<Item = &Rule> {
        let rules = self.rules.values();
        rules.filter_map(|stored| stored.rule.as_ref().ok())
    }

    /// True if the namespace has a label with this key.
    pub(crate) fn has_label(&self, namespace: &str, key: &str) -> bool {
        let found = self.namespaces.get(namespace);
        let labels = found.and_then(|found| found.labels.as_ref());
        labels.is_some_and(|labels| labels.contains_key(key))
    }

    /// The labels of a namespace.
    pub(crate) fn labels(&self, namespace: &str) -> Option<Labels> {
        let labels = self.namespaces.get(namespace)?.labels.iter().flatten();
        Some(
            labels
                .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
                .collect(),
        )
    }
}

/// The pause before the cluster is read again: at least 2 s, and as long as the last reading took.
/// So a command that waits spends no more than half of its time on readings.
pub(crate) fn pause(took: Duration) -> Duration {
    took.max(Duration::from_secs(2))
}

/// The statuses that a reconciler would write now.
pub(crate) fn statuses(snapshot: &mut Snapshot) -> BTreeMap<RuleId, ClusterReplicationStatus> {
    let mut statuses = BTreeMap::new();
    let engine = snapshot.engine();
    loop {
        let some = engine.statuses(Timestamp::UNIX_EPOCH);
        if some.is_empty() {
            return statuses;
        }
        statuses.extend(some.into_iter().map(|update| (update.id, update.status)));
    }
}

/// Visits the rules that have copies in a namespace, or should have, by namespace.
pub(crate) fn places(snapshot: &Snapshot, mut each: impl FnMut(&str, &PlaceView)) {
    let engine = snapshot.decided();
    let mut cursor = Cursor::default();
    while let Some(view) = engine.page(Timestamp::UNIX_EPOCH).view(&mut cursor) {
        for namespace in &view.namespaces {
            for place in &namespace.places {
                each(&namespace.name, place);
            }
        }
    }
}

/// The engine's view of a rule's copies in a namespace.
pub(crate) fn copies(snapshot: &Snapshot, rule: &RuleId, namespace: &str) -> Vec<CopyView> {
    let engine = snapshot.decided();
    engine.page(Timestamp::UNIX_EPOCH).copies(rule, namespace)
}

/// Visits the copies that are not synced, by namespace and rule.
pub(crate) fn unsynced(snapshot: &Snapshot, mut each: impl FnMut(&RuleId, &str, CopyView)) {
    places(snapshot, |namespace, place| {
        if place.synced < place.copies {
            for copy in copies(snapshot, &place.rule, namespace) {
                each(&place.rule, namespace, copy);
            }
        }
    });
}

/// Shows the engine all namespaces that exist.
pub(crate) fn show_namespaces<'a>(
    snapshot: &mut Snapshot,
    found: impl IntoIterator<Item = &'a ObjectMeta>,
) {
    let engine = snapshot.engine();
    let mut listed = BTreeSet::new();
    for meta in found {
        engine.namespace_applied(meta);
        listed.extend(meta.name.as_deref().map(Into::into));
    }
    engine.namespaces_listed(&listed);
}

/// Shows the engine all grants that exist. Returns their namespaces and names.
pub(crate) fn show_grants(snapshot: &mut Snapshot, found: Vec<Decoded<Value>>) -> GrantNames {
    let engine = snapshot.engine();
    let mut names = GrantNames::new();
    for object in found {
        let namespace: Box<str> = text(object.value(), "/metadata/namespace").into();
        let name: Box<str> = text(object.value(), "/metadata/name").into();
        engine.grant_applied(&namespace, &name, parse_grant(object));
        names.insert((namespace, name));
    }
    engine.grants_known(Known::Listed(&names));
    names
}

/// The sources of a rule: named, inline, and found by selectors.
pub(crate) fn sources(picture: &Picture, rule: &Rule) -> Vec<SourceRef> {
    let mut sources = rule.sources.clone();
    for selector in &rule.selectors {
        let names = picture.selected.get(selector).into_iter().flatten();
        sources.extend(names.map(|name| selector.source(name.as_str())));
    }
    sources
}

/// The object as one of a rule's sources, if it is one. Then it is never a copy of that rule.
pub(crate) fn as_source<'a>(
    sources: &'a [SourceRef],
    (namespace, gvk, name): (&str, &GroupVersionKind, &str),
) -> Option<&'a SourceRef> {
    let is = |source: &&SourceRef| {
        source.gvk.group_kind() == gvk.group_kind()
            && (&*source.namespace, &*source.name) == (namespace, name)
    };
    sources.iter().find(is)
}

/// A namespace that the user may not read.
pub(crate) fn assumed(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        uid: Some("00000000-0000-4000-8000-000000000000".into()),
        resource_version: Some("1".into()),
        creation_timestamp: None,
        ..ObjectMeta::default()
    }
}
