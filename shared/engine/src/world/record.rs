//! The records of kinds. A kind is recorded before the first copy of it is written. The record
//! tells a later process where to look for copies.

use std::collections::BTreeSet;

use mimeo_model::{
    id::KindId,
    kind::{GroupKind, GroupVersionKind},
};

use crate::{Effects, Index, KindState, jobs::JobKey, kinds::Note, projection::Projection};

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

    /// True if the record of a kind can be removed.
    pub(crate) fn is_needless(&self, kind: &GroupKind) -> bool {
        self.kinds.id(kind).is_some_and(|id| {
            // A removal without an answer may have succeeded. Only a definite answer ends it.
            self.kinds[id].note == Note::Removing || self.needless_kinds().contains(&id)
        })
    }

    /// The kinds whose records are no longer needed: no rule wants the kind, every copy was listed,
    /// and no copy is left.
    pub(crate) fn needless_kinds(&self) -> BTreeSet<KindId> {
        let mut needed = self.wanted_kinds();
        let copies = self.namespaces.values().flat_map(|entry| &entry.copies);
        let recorded = copies.filter(|copy| copy.needs_record());
        needed.extend(recorded.map(|copy| copy.kind));
        let needless = |(id, kind): &(KindId, &KindState)| {
            kind.may_be_written() && !needed.contains(id) && self.all_copies_listed(kind)
        };
        let kinds = self.kinds.iter().filter(needless);
        kinds.map(|(id, _)| id).collect()
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

    /// The kinds of all rules' sources.
    fn wanted_kinds(&self) -> BTreeSet<KindId> {
        let rules = self.rules.values().filter_map(|state| state.valid());
        rules
            .flat_map(|rule| &rule.kinds)
            .filter_map(|gvk| self.kinds.id(&gvk.group_kind()))
            .collect()
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
