//! The records of kinds. A kind is recorded before the first copy of it is written. The record
//! tells a later process where to look for copies.

use mimeo_model::{
    id::KindId,
    kind::{GroupKind, GroupVersionKind},
};

use crate::{Effects, Index, jobs::JobKey, kinds::Note, projection::Projection};

impl Index {
    /// Returns the version in which a kind must be recorded. `None`: the kind is recorded already.
    pub(crate) fn kind_to_record(&self, kind: &GroupKind) -> Option<GroupVersionKind> {
        let id = self.kinds.id(kind)?;
        if self.kinds[id].note != Note::Absent {
            return None;
        }
        let wanted = self
            .projections
            .values()
            .find(|projection| projection.kind == id)
            .map(Projection::gvk);
        let served = || self.kinds.served.keys().find(|gvk| gvk.is_of(kind));
        wanted.or_else(served).cloned()
    }

    /// True if the record of a kind can be removed: no rule wants the kind, every copy was listed,
    /// and no copy is left.
    pub(crate) fn is_needless(&self, kind: &GroupKind) -> bool {
        let Some(id) = self.kinds.id(kind) else {
            return false;
        };
        let state = &self.kinds[id];
        let rules = self.rules.values().filter_map(|state| state.valid());
        let mut wanted = rules.flat_map(|rule| &rule.kinds);
        let mut copies = self.namespaces.values().flat_map(|entry| &entry.copies);
        match state.note {
            Note::Absent => false,
            // A removal without an answer may have succeeded. Only a definite answer ends it.
            Note::Removing => true,
            Note::Present => {
                self.all_copies_listed(state)
                    && !wanted.any(|gvk| gvk.is_of(kind))
                    && !copies.any(|copy| copy.kind == id && copy.needs_record())
            }
        }
    }

    /// The record of a kind stays for now, because a copy was found after all.
    pub(crate) fn kept_kind(&mut self, kind: &GroupKind) {
        if let Some(id) = self.kinds.id(kind)
            && self.kinds[id].note == Note::Removing
        {
            self.kinds[id].note = Note::Present;
            // Copies of a rule that came to want the kind wait for this.
            self.replan_all();
        }
    }

    /// Requests the record of a kind. It must exist before the first copy of the kind is written. A
    /// later process that cleans up finds the copies by it.
    pub(crate) fn record(&mut self, kind: KindId, effects: &mut Effects) {
        let state = &self.kinds[kind];
        if state.note == Note::Absent {
            let kind = state.group_kind.clone();
            effects.jobs.ask(JobKey::RecordKind(kind));
        }
    }
}
