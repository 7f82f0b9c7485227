//! What is written down before the first copy of a kind, so that any later process knows where to
//! look: the kind itself, and the CRDs that rules live under.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;

use mimeo_model::{
    id::{KindId, RuleId, RuleKind},
    kind::GroupKind,
};

use crate::{
    Engine, KindState, RuleState, Served,
    absent::Became,
    clock::Tick,
    kinds::Note,
    slot::Slot,
    work::{Errand, Timer},
};

/// How long after a kind's note couldn't be removed that is tried again.
const UNRECORD_AGAIN: Duration = Duration::from_mins(1);

/// Uids of the CRD that rules live under. Another uid means that it was re-installed, and every
/// rule lost with the old one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CrdState {
    /// As served now.
    pub(crate) current: Option<Box<str>>,
    /// As recorded when copies were first written.
    pub(crate) recorded: Option<Box<str>>,
    /// Whether it is being recorded.
    recording: bool,
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
        let state = CrdState {
            current,
            recorded,
            recording: false,
        };
        if (&known.current, &known.recorded) == (&state.current, &state.recorded) {
            return;
        }
        // The first lists of rules and of CRDs are of one time.
        let first = *known == CrdState::default();
        *known = state;
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

    /// Before the first copy of a kind is written, the kind is recorded, and the CRD of rules:
    /// whoever cleans up later must know where to look.
    pub(crate) fn record(&mut self, kind: KindId) {
        let wanted = self
            .slots
            .values()
            .find(|slot| slot.kind == kind)
            .map(Slot::gvk);
        let served = || {
            self.kinds
                .all_served()
                .keys()
                .find(|gvk| self.kinds.id(&gvk.group_kind()) == Some(kind))
        };
        let Some(gvk) = wanted.or_else(served).cloned() else {
            return;
        };
        let state = &mut self.kinds[kind];
        if state.note == Note::Absent {
            state.note = Note::Adding;
            self.work.errands.push_back(Errand::Record(gvk));
        }
        for kind in RuleKind::ALL {
            let used =
                kind == RuleKind::ClusterReplication || self.has_rules(kind) || self.has_gone(kind);
            if used && self.crd_unrecorded(kind) {
                self.record_crd(kind);
            }
        }
    }

    /// Records another CRD than before once no copy can show any more whose rule went with the
    /// former one: it would be taken for an orphan of the new one.
    pub(crate) fn record_crd_when_clear(&mut self, kind: RuleKind) {
        match self
            .gone
            .iter()
            .filter(|(id, _)| id.kind == kind)
            .map(|(_, gone)| gone.until)
            .max()
        {
            None => self.record_crd(kind),
            Some(until) if until > self.now => self.work.timer(until, Timer::Everything),
            // Copies of such a rule are there: whoever confirms their deletion, or brings the rule
            // back, settles it.
            Some(_) => {}
        }
    }

    fn record_crd(&mut self, kind: RuleKind) {
        let Some(uid) = self.collections[kind].crd.current.clone() else {
            return;
        };
        if !std::mem::replace(&mut self.collections[kind].crd.recording, true) {
            self.work.errands.push_back(Errand::RecordCrd(kind, uid));
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

    /// Whether every rule of the kind is known to live under the CRD that is served now. One that
    /// isn't is read: it may have gone with the former one, and its watch not have said so yet.
    pub(crate) fn ask_where_rules_live(&mut self, kind: RuleKind) -> bool {
        let Some(current) = &self.collections[kind].crd.current else {
            return true;
        };
        let mut settled = true;
        let elsewhere =
            |id: &RuleId, state: &RuleState| id.kind == kind && state.crd.as_ref() != Some(current);
        for (id, state) in self
            .rules
            .iter_mut()
            .filter(|(id, state)| elsewhere(id, state))
        {
            settled = false;
            if !std::mem::replace(&mut state.crd_asked, true) {
                self.work
                    .errands
                    .push_back(Errand::ConfirmRule((**id).clone()));
            }
        }
        settled
    }

    /// A kind's note was removed, or a copy was found after all; then it is tried again in a while.
    pub fn unrecorded(&mut self, kind: &GroupKind, done: bool, now: Tick) {
        self.at(now);
        let Some(id) = self.kinds.id(kind).filter(|_| !done) else {
            return;
        };
        let note = &mut self.kinds[id].note;
        if *note == Note::Removing {
            *note = Note::Kept;
            self.work.timer(self.now + UNRECORD_AGAIN, Timer::Kind(id));
            self.replan_all();
        }
    }

    /// Whether a kind's note is still to be removed when its turn comes: a rule may have come to
    /// want the kind.
    pub(crate) fn still_needless(&mut self, kind: &GroupKind) -> bool {
        let Some(id) = self.kinds.id(kind) else {
            return false;
        };
        let wanted = self.wanted_kinds().contains(&id);
        let kind = &mut self.kinds[id];
        if wanted && kind.note == Note::Removing {
            kind.note = Note::Present { fresh: false };
        }
        !wanted && kind.note == Note::Removing
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
