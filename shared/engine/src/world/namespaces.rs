//! Namespaces as they appear, change and disappear, and the copies in them.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use mimeo_model::{
    created::CreatedCopies,
    id::KindId,
    meta::{Seen, Uid, seconds, version},
    names,
    selection::{Labels, Place},
};

use crate::{
    Effects, Index,
    clock::{SKEW, Tick},
    copy::{CopyKey, CopyState, Observation},
    jobs::JobKey,
    verdict::Verdict,
    view::Ended,
    wants::BlockedCopies,
    work,
};

/// One namespace. Its own watch has shown it, or so far only copies in it were seen.
#[derive(Debug, Default)]
pub(crate) struct Namespace {
    /// Its key among the namespaces.
    pub(crate) name: Arc<str>,
    /// `None` until its own watch has shown it.
    pub(crate) uid: Option<Uid>,
    pub(crate) version: u64,
    /// When the namespace was created, in seconds since 1970. 0 if that is not known.
    created_at: u32,
    pub(crate) labels: Labels,
    /// When this process saw the namespace's labels change, or appear.
    pub(crate) labelled: Tick,
    terminating: bool,
    /// Until then the reconciler writes no copies. The webhook has just written them, and the watch
    /// of copies may show that later.
    pub(crate) settles: Tick,
    /// Boxed, because few namespaces have it at a time.
    pub(crate) pending_label: Option<Box<PendingLabel>>,
    pub(crate) copies: Vec<CopyState>,
    pub(crate) blocked: BlockedCopies,
    /// The create-once record: copies that were created in the namespace once, according to its
    /// annotation or to this process.
    pub(crate) created: CreatedCopies,
    /// The part of the create-once record that the annotation has.
    pub(crate) annotated: CreatedCopies,
    /// True if a former namespace of this name was deleted. The objects in `copies` may have been
    /// deleted with it.
    ended: bool,
    /// A crowded namespace isn't planned again until then.
    pub(crate) rests: Tick,
    /// True if facts have changed since the last plan, and the next plan waits for the end of the
    /// rest. The stored verdicts may be out of date.
    pub(crate) behind: bool,
    /// Number of its last change that the page shows.
    pub(crate) changed: u64,
}

/// The pending label of a namespace. Its nonce is among the labels.
#[derive(Debug, Default)]
pub(crate) struct PendingLabel {
    pub(crate) since: Tick,
    /// From when on this webhook replica fills the namespace.
    pub(crate) charge: Option<Tick>,
}

impl Index {
    pub(crate) fn namespace_name(&self, name: &str) -> Arc<str> {
        self.namespaces
            .get_key_value(name)
            .map_or_else(|| name.into(), |(known, _)| known.clone())
    }

    pub(crate) fn copy(&self, (namespace, kind, name): &CopyKey) -> Option<&CopyState> {
        self.namespaces.get(namespace)?.copy(*kind, name)
    }

    pub(crate) fn copy_mut(&mut self, (namespace, kind, name): &CopyKey) -> Option<&mut CopyState> {
        self.namespaces.get_mut(namespace)?.copy_mut(*kind, name)
    }
}

impl Index {
    /// Records a namespace with this metadata, as its watch or a read shows it.
    pub(crate) fn namespace_applied(&mut self, meta: &ObjectMeta, effects: &mut Effects) {
        let Some(name) = meta.name.as_deref() else {
            return;
        };
        let name = self.namespace_name(name);
        let uid = meta.uid.as_deref().and_then(Uid::parse);
        let version = version(meta.resource_version.as_deref());
        let known = self.namespaces.get(&name);
        if let Some(known) = known.filter(|known| known.uid.is_some()) {
            // A read may have been faster than the watch. So an earlier object of the same name is
            // out of date, too.
            if version <= known.version {
                return;
            }
            // The namespace was deleted and created again with the same name. None of the former
            // objects is in it.
            if known.uid != uid {
                self.namespace_gone(&name, effects);
            }
        }
        let entry = self.namespaces.remove(&name);
        let mut entry = entry.unwrap_or_else(|| Box::new(Namespace::new(&name)));
        if std::mem::take(&mut entry.ended) {
            // The object is older than the known namespace. It is most likely a copy in the former
            // namespace, and the watch will still show its deletion.
            for copy in entry
                .copies
                .iter_mut()
                .filter(|copy| copy.seen().is_some_and(|seen| seen.version < version))
            {
                copy.observed = Observation::Taken(None);
            }
        }
        let known = entry.uid.is_some();
        let watched =
            !known && self.settings.reach.targets.is_some() && self.settings.reach.is_target(&name);
        entry.uid = uid;
        entry.version = version;
        entry.created_at = meta.creation_timestamp.as_ref().map_or(0, seconds);
        let labels = meta
            .labels
            .iter()
            .flatten()
            .map(|(k, v)| (k.as_str().into(), v.as_str().into()))
            .collect();
        let old = std::mem::replace(&mut entry.labels, labels);
        let changed = known && old != entry.labels;
        if changed || !known {
            entry.labelled = self.now;
        }
        if changed {
            self.fill_in_anew(&mut entry, &old);
        }
        entry.terminating = meta.deletion_timestamp.is_some();
        let created = meta
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(names::CREATED_ONCE));
        entry.note(
            created
                .map(|text| CreatedCopies::parse(text))
                .unwrap_or_default(),
        );
        if watched {
            self.demand_changed();
        }
        effects.jobs.moved(&JobKey::RecordCreated(name.clone()));
        effects.jobs.moved(&JobKey::RemoveLabel(name.clone()));
        self.see_label(&mut entry, !known, &old, &mut effects.work);
        if changed {
            self.let_settle(&mut entry, &mut effects.work);
        }
        self.namespaces.insert(name.clone(), entry);
        if changed || !known {
            self.review_home(&name, effects);
        }
        self.dirty.insert(name);
    }

    /// Records that the watch of namespaces lost one. Nothing changes if a read has shown another
    /// namespace of its name since.
    pub(crate) fn namespace_deleted(&mut self, meta: &ObjectMeta, effects: &mut Effects) {
        let (Some(name), uid) = (
            meta.name.as_deref(),
            meta.uid.as_deref().and_then(Uid::parse),
        ) else {
            return;
        };
        if self
            .namespaces
            .get(name)
            .is_some_and(|entry| entry.uid.is_none() || entry.uid == uid)
        {
            self.namespace_gone(name, effects);
        }
    }

    /// Records that a namespace was deleted.
    pub(crate) fn namespace_gone(&mut self, name: &str, effects: &mut Effects) {
        let Some((name, mut old)) = self.namespaces.remove_entry(name) else {
            return;
        };
        self.dirty.remove(&name);
        effects.jobs.end(&JobKey::RecordCreated(name.clone()));
        effects.jobs.end(&JobKey::RemoveLabel(name.clone()));
        effects.changes.end(Ended::Namespace(name.clone()));
        effects.work.untidy = true;
        if self.settings.reach.targets.is_some() {
            self.demand_changed();
        }
        for copy in &old.copies {
            self.mark_status_of(copy);
        }
        for (id, ..) in old.blocked.keys() {
            self.mark_status_due(id);
        }
        self.review_home(&name, effects);
        let copies = watched(&mut effects.work, &mut old, self.settings.keeps_copies());
        if !copies.is_empty() {
            let ended = Namespace {
                copies,
                ended: true,
                ..Namespace::new(&name)
            };
            self.namespaces.insert(name, Box::new(ended));
        }
    }

    /// Records that every namespace has been shown; `listed` has all of them.
    pub(crate) fn namespaces_listed(&mut self, listed: &BTreeSet<Box<str>>, effects: &mut Effects) {
        let lost: Vec<Arc<str>> = self
            .namespaces
            .values()
            .filter(|entry| entry.uid.is_some() && !listed.contains(&*entry.name))
            .map(|entry| entry.name.clone())
            .collect();
        for name in lost {
            self.namespace_gone(&name, effects);
        }
        self.namespaces_listed = true;
        self.replan_all();
    }

    /// Resets the copies whose renderings contain other values after the labels changed from `old`.
    /// These copies are different ones now. The statuses of their rules about the former copies,
    /// such as a missing value, may be out of date.
    fn fill_in_anew(&mut self, namespace: &mut Namespace, old: &Labels) {
        let now = Place {
            name: &namespace.name,
            labels: &namespace.labels,
        };
        let before = Place { labels: old, ..now };
        for copy in &mut namespace.copies {
            let projection = self.projections.wanted(copy);
            let Some(Ok(copies)) = projection.map(|projection| &projection.rendering) else {
                continue;
            };
            if copies.checksum_at(before) != copies.checksum_at(now) {
                copy.start_over();
                self.mark_status_of(copy);
            }
        }
    }
}

impl Namespace {
    /// A namespace that no watch has shown yet.
    pub(crate) fn new(name: &Arc<str>) -> Self {
        Self {
            name: name.clone(),
            ..Self::default()
        }
    }

    pub(crate) fn position(&self, kind: KindId, name: &str) -> Result<usize, usize> {
        self.copies
            .binary_search_by(|copy| (copy.kind, &*copy.name).cmp(&(kind, name)))
    }

    pub(crate) fn copy(&self, kind: KindId, name: &str) -> Option<&CopyState> {
        self.position(kind, name).ok().map(|at| &self.copies[at])
    }

    pub(crate) fn copy_mut(&mut self, kind: KindId, name: &str) -> Option<&mut CopyState> {
        self.position(kind, name)
            .ok()
            .map(|at| &mut self.copies[at])
    }

    pub(crate) fn copy_or_insert(&mut self, kind: KindId, name: &Arc<str>) -> &mut CopyState {
        let at = self.position(kind, name).unwrap_or_else(|at| {
            // There are many namespaces with few copies each. If the capacity doubled each time,
            // much of the memory would be unused.
            if self.copies.len() == self.copies.capacity() {
                self.copies.reserve_exact(1 + self.copies.len() / 8);
            }
            let copy = CopyState {
                kind,
                name: name.clone(),
                ..CopyState::default()
            };
            self.copies.insert(at, copy);
            at
        });
        &mut self.copies[at]
    }

    /// Takes the create-once record from the annotation. An entry that the annotation no longer has
    /// no longer counts.
    fn note(&mut self, annotated: CreatedCopies) {
        let gone = &self.annotated.entries;
        self.created.entries.retain(|entry| !gone.contains(entry));
        self.created.entries.extend(&annotated.entries);
        self.annotated = annotated;
    }

    /// True if this object is in the namespace. An older object was in a former namespace of its
    /// name. The watch of copies may show later that the object is gone.
    pub(crate) fn has(&self, seen: &Seen) -> bool {
        seen.created.saturating_add(SKEW) >= self.created_at
    }

    /// True if its own watch has shown the namespace, and it is not terminating.
    pub(crate) fn alive(&self) -> bool {
        self.uid.is_some() && !self.terminating
    }

    /// The values of the namespace for variables in its copies.
    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            name: &self.name,
            labels: &self.labels,
        }
    }

    /// The nonce in its pending label.
    pub(crate) fn nonce(&self) -> Option<&str> {
        self.labels.get(names::PENDING_LABEL)
    }
}

/// Returns the copies of a deleted namespace that the watch of copies will report as deleted. The
/// watch may already have shown copies of the next namespace of that name. All other state is
/// dropped with the namespace.
fn watched(work: &mut work::Work, namespace: &mut Namespace, keeps_copies: bool) -> Vec<CopyState> {
    let mut copies = std::mem::take(&mut namespace.copies);
    copies
        .iter_mut()
        .for_each(|copy| work.remind(&namespace.name, copy, None));
    copies.retain(|copy| keeps_copies && copy.seen().is_some_and(|seen| seen.labelled));
    for copy in &mut copies {
        copy.want = None;
        copy.verdict = Verdict::default();
        copy.baseline = None;
        copy.failure = None;
        copy.approved = None;
        copy.stuck = false;
    }
    copies
}
