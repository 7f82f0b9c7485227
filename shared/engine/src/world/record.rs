//! The records that are written before the first copy of a kind: the kind itself, and the uids of
//! the CRDs of rules. They tell a later process where to look for copies.

use std::collections::BTreeSet;

use jiff::Timestamp;

use mimeo_model::{
    id::{KindId, RuleKind},
    kind::{GroupKind, GroupVersionKind},
    known::Known,
};

use crate::{
    Effects, Index, KindState, absent::Became, jobs::JobKey, kinds::Note, projection::Projection,
    work::Timer,
};

/// The uids of the CRD of one kind of rule. A new uid means that the CRD was installed again, and
/// that every rule was lost with the former CRD.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CrdState {
    /// The uid of the CRD that is served now.
    pub(crate) current: Option<Box<str>>,
    /// The uid that was recorded when copies were first written.
    pub(crate) recorded: Option<Box<str>>,
}

impl CrdState {
    /// Returns the uid of the CRD that an observed rule belongs to. `None`: it is unknown, because
    /// the present CRD is not the recorded one. The rule may have gone with the former CRD, and the
    /// watch may show that late.
    pub(crate) fn certain(&self) -> Option<Box<str>> {
        self.current
            .clone()
            .filter(|_| self.recorded.is_none() || self.recorded == self.current)
    }
}

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

    /// Returns the uid of the CRD that must be recorded. `None`: it is recorded already, or a
    /// former CRD is recorded and rules may have been lost with it.
    pub(crate) fn crd_to_record(&self, kind: RuleKind) -> Option<Box<str>> {
        let CrdState { current, recorded } = &self.collections[kind].crd;
        let clear = recorded.is_none() || self.may_replace_crd(kind);
        current.clone().filter(|_| current != recorded && clear)
    }

    /// True once no copy can appear any more whose rule went with the recorded CRD. If the new CRD
    /// were recorded earlier, such a copy would count as an orphan of the new CRD.
    fn may_replace_crd(&self, kind: RuleKind) -> bool {
        let CrdState { current, .. } = &self.collections[kind].crd;
        let mut rules = self.rules.iter().filter(|(id, _)| id.kind == kind);
        rules.all(|(_, state)| state.crd == *current)
            // No copy names a rule of this kind that does not exist.
            && !self.gone.keys().any(|id| id.kind == kind)
            && self.every_copy_seen()
    }

    /// True if the CRD exists but no CRD of the kind was ever recorded. If this process ended now,
    /// its successor would see a missing rule and could not tell how it went. The rule may have
    /// been deleted, or lost with its CRD.
    pub(crate) fn crd_unrecorded(&self, kind: RuleKind) -> bool {
        let CrdState {
            current, recorded, ..
        } = &self.collections[kind].crd;
        current.is_some() && recorded.is_none()
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
            self.kinds[id].note = Note::Present { fresh: false };
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

    /// True if every kind that may have copies was listed. Only then is it certain that a rule
    /// without observed copies has none.
    pub(crate) fn every_copy_seen(&self) -> bool {
        let unserved = |kind: &KindState| {
            let mut versions = self.kinds.served.iter();
            versions.all(|(gvk, served)| *served == Known::Unserved || !gvk.is_of(&kind.group_kind))
        };
        self.kinds.known
            && self.primed()
            && self.kinds.iter().all(|(_, kind)| {
                !kind.may_have_copies()
                    || self.all_copies_listed(kind)
                    || unserved(kind)
                    || !self.settings.reach.copies(&kind.group_kind)
            })
    }
}

impl Index {
    /// Takes in the time when the kinds `ConfigMap` was created. `None`: it does not exist. The
    /// `ConfigMap` proves nothing about copies that were written before it, because their own
    /// record may have been lost.
    pub(crate) fn kinds_since(&mut self, created: Option<Timestamp>) {
        let since = created.map(|time| u32::try_from(time.as_second()).unwrap_or_default());
        if std::mem::replace(&mut self.kinds.since, since) != since {
            self.replan_all();
        }
    }

    /// Takes in the uid of the CRD of these rules. `current` is `None` if the CRD isn't served.
    /// `recorded` is the uid that was recorded when copies were first written.
    pub(crate) fn crd(
        &mut self,
        kind: RuleKind,
        current: Option<Box<str>>,
        recorded: Option<Box<str>>,
        effects: &mut Effects,
    ) {
        let known = &mut self.collections[kind].crd;
        let state = CrdState { current, recorded };
        if *known == state {
            return;
        }
        // The first list of rules and the first list of CRDs are of the same time, so these rules
        // belong to the present CRD.
        let first = *known == CrdState::default();
        *known = state;
        effects.jobs.moved(&JobKey::RecordCrd(kind));
        for (_, state) in self
            .rules
            .iter_mut()
            .filter(|(id, state)| id.kind == kind && first && state.crd.is_none())
        {
            state.crd = known.certain();
        }
        effects.work.untidy = true;
        let lost = self
            .gone
            .iter_mut()
            .filter(|(id, gone)| id.kind == kind && gone.absence.became == Became::Unexplained);
        for (_, gone) in lost {
            self.dirty
                .append(&mut gone.absence.turn_out(Became::Unknown, self.now));
        }
        self.replan_all();
    }

    /// Requests the records of a kind and of the CRDs of rules. They must exist before the first
    /// copy of the kind is written. A later process that cleans up finds the copies by them.
    pub(crate) fn record(&mut self, kind: KindId, effects: &mut Effects) {
        let state = &self.kinds[kind];
        if state.note == Note::Absent {
            let kind = state.group_kind.clone();
            effects.jobs.ask(JobKey::RecordKind(kind));
        }
        for kind in RuleKind::ALL {
            if self.crd_unrecorded(kind) {
                effects.jobs.ask(JobKey::RecordCrd(kind));
            }
        }
    }

    /// Requests the record of a new CRD, once that is safe. Rules that may not belong to the new
    /// CRD are read first. Such a rule may have gone with the former CRD, and the watch may show
    /// that late.
    pub(crate) fn replace_crd(&mut self, kind: RuleKind, effects: &mut Effects) {
        let CrdState { current, recorded } = &self.collections[kind].crd;
        let elsewhere = self
            .rules
            .iter()
            .filter(|(id, state)| id.kind == kind && current.is_some() && state.crd != *current);
        for (id, _) in elsewhere {
            effects.jobs.ask(JobKey::ConfirmRule(id.clone()));
        }
        if current == recorded {
            return;
        }
        if self.may_replace_crd(kind) {
            return effects.jobs.ask(JobKey::RecordCrd(kind));
        }
        // Copies of a lost rule stay until a user confirms their deletion or creates the rule
        // again. A lost rule without copies is forgotten after a while.
        let of_kind = self.gone.iter().filter(|(id, _)| id.kind == kind);
        if let Some(until) = of_kind.map(|(_, gone)| gone.until).max()
            && until > self.now
        {
            effects.work.timer(until, Timer::Tidy);
        }
    }
}
