//! What is written down before the first copy of a kind, so that any later process knows where to
//! look: the kind itself, and the CRDs that rules live under.

use std::collections::BTreeSet;

use jiff::Timestamp;

use mimeo_model::{
    id::{KindId, RuleKind},
    kind::{GroupKind, GroupVersionKind},
};

use crate::{
    Engine, KindState, Served, absent::Became, clock::Tick, jobs::JobKey, kinds::Note, slot::Slot,
    work::Timer,
};

/// Uids of the CRD that rules live under. Another uid means that it was re-installed, and every
/// rule lost with the old one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CrdState {
    /// As served now.
    pub(crate) current: Option<Box<str>>,
    /// As recorded when copies were first written.
    pub(crate) recorded: Option<Box<str>>,
}

impl CrdState {
    /// Under which CRD a rule lives that is shown now. Not known while there is one that was not
    /// there when copies were first written: the rule may have gone with the former one, and the
    /// news of that be under way.
    pub(crate) fn certain(&self) -> Option<Box<str>> {
        self.current
            .clone()
            .filter(|_| self.recorded.is_none() || self.recorded == self.current)
    }
}

impl Engine {
    /// The kinds `ConfigMap` was created then, or isn't there. Of copies that were written before
    /// it says nothing: what did may have been lost.
    pub fn kinds_since(&mut self, created: Option<Timestamp>, now: Tick) {
        self.at(now);
        let since = created.map(|time| u32::try_from(time.as_second()).unwrap_or_default());
        if std::mem::replace(&mut self.kinds.since, since) != since {
            self.replan_all();
        }
    }

    /// The CRD of these rules is served with this uid, or isn't served; `recorded` is the uid noted
    /// when copies were first written.
    pub fn crd(
        &mut self,
        kind: RuleKind,
        current: Option<Box<str>>,
        recorded: Option<Box<str>>,
        now: Tick,
    ) {
        self.at(now);
        let known = &mut self.collections[kind].crd;
        let state = CrdState { current, recorded };
        if *known == state {
            return;
        }
        // The first lists of rules and of CRDs are of one time.
        let first = *known == CrdState::default();
        *known = state;
        self.jobs.moved(&JobKey::RecordCrd(kind));
        for (_, state) in self
            .rules
            .iter_mut()
            .filter(|(id, state)| id.kind == kind && first && state.crd.is_none())
        {
            state.crd = known.certain();
        }
        self.work.tidy_later();
        let lost = self
            .gone
            .iter_mut()
            .filter(|(id, gone)| id.kind == kind && gone.absence.became == Became::Unexplained);
        for (_, gone) in lost {
            gone.absence.became = Became::Unknown;
        }
        self.replan_all();
    }

    /// Before the first copy of a kind is written, the kind is recorded, and the CRD of rules: a
    /// later process that cleans up must know where to look.
    pub(crate) fn record(&mut self, kind: KindId) {
        let state = &self.kinds[kind];
        if state.note == Note::Absent {
            let kind = state.group_kind.clone();
            self.jobs.ask(JobKey::RecordKind(kind));
        }
        for kind in RuleKind::ALL {
            let used =
                kind == RuleKind::ClusterReplication || self.has_rules(kind) || self.has_gone(kind);
            if used && self.crd_unrecorded(kind) {
                self.jobs.ask(JobKey::RecordCrd(kind));
            }
        }
    }

    /// The version in which a kind is to be recorded; none if it is recorded already.
    pub(crate) fn kind_to_record(&self, kind: &GroupKind) -> Option<GroupVersionKind> {
        let id = self.kinds.id(kind)?;
        if self.kinds[id].note != Note::Absent {
            return None;
        }
        let wanted = self
            .slots
            .values()
            .find(|slot| slot.kind == id)
            .map(Slot::gvk);
        let served = || self.kinds.all_served().keys().find(|gvk| gvk.is_of(kind));
        wanted.or_else(served).cloned()
    }

    /// The uid of the CRD that is to be recorded; none if it is recorded already, or another one
    /// is and may have taken rules along.
    pub(crate) fn crd_to_record(&self, kind: RuleKind) -> Option<Box<str>> {
        let CrdState { current, recorded } = &self.collections[kind].crd;
        let clear = recorded.is_none() || self.may_replace_crd(kind);
        current.clone().filter(|_| current != recorded && clear)
    }

    /// True once no copy can show any more whose rule went with the CRD that is recorded. Recorded
    /// earlier, such a copy would be taken for an orphan of the new CRD.
    fn may_replace_crd(&self, kind: RuleKind) -> bool {
        let CrdState { current, .. } = &self.collections[kind].crd;
        let mut rules = self.rules.iter().filter(|(id, _)| id.kind == kind);
        rules.all(|(_, state)| state.crd == *current)
            && !self.has_gone(kind)
            && self.every_copy_seen()
    }

    /// Records another CRD than before once that is safe. Rules that aren't known to live under
    /// the new CRD are read: a rule may have gone with the former CRD, and its watch not have said
    /// so yet.
    pub(crate) fn replace_crd(&mut self, kind: RuleKind) {
        let CrdState { current, recorded } = &self.collections[kind].crd;
        let elsewhere = self
            .rules
            .iter()
            .filter(|(id, state)| id.kind == kind && current.is_some() && state.crd != *current);
        for (id, _) in elsewhere {
            self.jobs.ask(JobKey::ConfirmRule(id.clone()));
        }
        // Where no tenant ever had a rule there is nothing to tell from another CRD's.
        let used =
            kind == RuleKind::ClusterReplication || recorded.is_some() || self.has_rules(kind);
        if !used || current == recorded {
            return;
        }
        if self.may_replace_crd(kind) {
            return self.jobs.ask(JobKey::RecordCrd(kind));
        }
        // Copies of a lost rule stay until a person confirms their deletion or brings the rule
        // back. A rule without copies is forgotten after a while.
        let of_kind = self.gone.iter().filter(|(id, _)| id.kind == kind);
        if let Some(until) = of_kind.map(|(_, gone)| gone.until).max()
            && until > self.now
        {
            self.work.timer(until, Timer::Everything);
        }
    }

    /// Whether no CRD of the kind was ever recorded, though there is one: should this process end
    /// now, its successor could not tell a rule deleted meanwhile from one that was lost with its
    /// CRD.
    pub(crate) fn crd_unrecorded(&self, kind: RuleKind) -> bool {
        let CrdState {
            current, recorded, ..
        } = &self.collections[kind].crd;
        current.is_some() && recorded.is_none()
    }

    /// True if a kind's record may go: no rule wants the kind, every copy was listed, and none is
    /// left.
    pub(crate) fn is_needless(&self, kind: &GroupKind) -> bool {
        let Some(id) = self.kinds.id(kind) else {
            return false;
        };
        let state = &self.kinds[id];
        let mut cells = self.namespaces.values().flat_map(|entry| &entry.cells);
        matches!(state.note, Note::Present { .. })
            && self.all_copies_listed(state)
            && !self.wanted_kinds().contains(&id)
            && !cells.any(|cell| cell.kind == id && cell.needs_record())
    }

    /// A kind's record is being removed: from now on no copy of the kind may be written.
    pub(crate) fn forgetting_kind(&mut self, kind: &GroupKind) {
        if let Some(id) = self.kinds.id(kind) {
            self.kinds[id].note = Note::Removing;
        }
    }

    /// True while a kind's record is being removed.
    pub(crate) fn is_being_forgotten(&self, kind: &GroupKind) -> bool {
        self.kinds
            .id(kind)
            .is_some_and(|id| self.kinds[id].note == Note::Removing)
    }

    /// A kind's record stays for now: a copy was found after all, or the API server didn't answer.
    pub(crate) fn kept_kind(&mut self, kind: &GroupKind) {
        if self.is_being_forgotten(kind)
            && let Some(id) = self.kinds.id(kind)
        {
            self.kinds[id].note = Note::Present { fresh: false };
            self.replan_all();
        }
    }

    /// The kinds of all rules' sources.
    pub(crate) fn wanted_kinds(&self) -> BTreeSet<KindId> {
        let rules = self
            .rules
            .values()
            .filter_map(|state| state.rule.as_ref().ok());
        rules
            .flat_map(|rule| &rule.kinds)
            .filter_map(|gvk| self.kinds.id(&gvk.group_kind()))
            .collect()
    }

    /// Whether every kind that may have copies was listed: only then is a rule that no copy names
    /// known to have none.
    pub(crate) fn every_copy_seen(&self) -> bool {
        let unserved = |kind: &KindState| {
            let mut versions = self
                .kinds
                .all_served()
                .iter()
                .filter(|(gvk, _)| gvk.is_of(&kind.group_kind));
            versions.all(|(_, served)| *served == Served::No)
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

    pub(crate) fn has_rules(&self, kind: RuleKind) -> bool {
        self.rules.keys().any(|id| id.kind == kind)
    }

    /// Whether copies name rules of the kind that aren't there.
    fn has_gone(&self, kind: RuleKind) -> bool {
        self.gone.keys().any(|id| id.kind == kind)
    }
}
