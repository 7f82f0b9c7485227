//! Copies as their watch shows them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use mimeo_model::{
    kind::GroupKind,
    meta::{Uid, version},
};

use crate::{
    Effects, Index, Namespace,
    copy::{Content, CopyState, Observation, Phase},
};

impl Index {
    /// Records an object that the watch of copies shows. The object has Mimeo's label, but Mimeo
    /// need not own it.
    pub(crate) fn copy_applied(&mut self, kind: &GroupKind, meta: &ObjectMeta) {
        let Some((namespace, name)) = meta.namespace.as_deref().zip(meta.name.as_deref()) else {
            return;
        };
        let Some(id) = self.kind_id(kind) else {
            return;
        };
        let listing = self.kinds[id].watched_in(Some(namespace)).listing;
        // The answer to Mimeo's own write has shown most objects before.
        let entry = self.namespaces.get_mut(namespace);
        let known = entry.and_then(|entry| entry.copy_mut(id, name));
        let shown = version(meta.resource_version.as_deref());
        if let Some(copy) = known.filter(|copy| copy.knows(shown)) {
            copy.listing = listing;
            return;
        }
        let Some(seen) = self.read(meta, id) else {
            return;
        };
        let namespace = self.namespace_name(namespace);
        if let Some(rule) = &seen.rule {
            self.consent.note_copy_in(rule, &namespace);
        }
        let name = self.projections.copy_name(name);
        self.remember_origin(&seen, meta);
        let entry = self.namespaces.entry(namespace.clone());
        let entry = entry.or_insert_with(|| Box::new(Namespace::new(&namespace)));
        let copy = entry.copy_or_insert(id, &name);
        copy.listing = listing;
        let owner = self.projections.owner(copy).cloned();
        if !copy.show(seen) {
            return;
        }
        self.shown += 1;
        copy.shown = self.shown;
        copy.retry_now();
        self.dirty.insert(namespace);
        owner.iter().for_each(|rule| self.mark_status_due(rule));
    }

    /// Records that the watch of copies lost an object: the object was deleted, or only its label
    /// was removed.
    pub(crate) fn copy_gone(&mut self, kind: &GroupKind, meta: &ObjectMeta, effects: &mut Effects) {
        let Some((namespace, name)) = meta.namespace.as_deref().zip(meta.name.as_deref()) else {
            return;
        };
        let Some(uid) = meta.uid.as_deref().and_then(Uid::parse) else {
            return;
        };
        let Some(kind) = self.kind_id(kind) else {
            return;
        };
        let Some((namespace, mut entry)) = self.namespaces.remove_entry(namespace) else {
            return;
        };
        if let Ok(at) = entry.position(kind, name) {
            // A create-once copy counts as created even if it disappears before the next plan.
            self.note_created(&mut entry, at);
            let seen = entry.copies[at].seen();
            let former = seen.is_some_and(|seen| !entry.has(seen));
            let copy = &mut entry.copies[at];
            let version = version(meta.resource_version.as_deref());
            let owner = self.rule_of(copy);
            if copy.vanish(Some(uid), version) {
                if former {
                    // The object was deleted with a former namespace of the name. It never existed
                    // in this one.
                    copy.observed = Observation::Unknown;
                }
                copy.retry_now();
                self.dirty.insert(namespace.clone());
                effects.work.untidy = true;
                owner.iter().for_each(|rule| self.mark_status_due(rule));
            }
        }
        self.namespaces.insert(namespace, entry);
    }
}

impl CopyState {
    /// Ends the pause of a copy after an event, so that its request may be sent at once.
    pub(crate) fn retry_now(&mut self) {
        if self.phase == Phase::Waiting {
            self.phase = Phase::Idle;
        }
    }

    /// Makes Mimeo read an object again when its rule comes to create copies once. An object that
    /// is here now counts. No watch shows an object without Mimeo's label, so one that was here
    /// before may be gone. If it was Mimeo's own, its uid still tells that.
    pub(crate) fn look_anew(&mut self) {
        self.observed = match &self.observed {
            Observation::Hidden(uid) => Observation::Taken(Some(*uid)),
            Observation::Present(seen) if !seen.labelled => {
                if seen.ours() {
                    Observation::Taken(Some(seen.uid))
                } else {
                    Observation::Unknown
                }
            }
            _ => return,
        };
    }

    /// Resets the copy because other bytes are wanted here. The API server's answers about the
    /// former bytes don't hold for them.
    pub(crate) fn start_over(&mut self) {
        self.failure = None;
        self.approved = None;
        self.stuck = false;
        self.content = Content::Unknown;
        self.verify = false;
        self.retry_now();
    }
}
