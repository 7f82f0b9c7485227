//! Whether copies may go that are to.
//!
//! Deleting is the one thing that can't be mended, and silence is easily mistaken for a wish. So a
//! loss counts as meant only when a read that no cache answers says so; every other loss is
//! collected for a while first, and held when it is large.

use std::sync::Arc;

use mimeo_model::{id::RuleId, meta::Seen, role::Role, source::SourceRef};

use crate::{
    Engine, Namespace, RuleState, SourceState,
    absent::{Absence, HowGone},
    cell::{Belief, Cell, Leave, Step, Why},
    disposal::{Disposal, is_heir},
    slot::{NoRendering, Slot},
    work::Timer,
};

impl Engine {
    /// What to do about a cell in which nobody wants a copy (any more).
    pub(crate) fn decide_unwanted(
        &mut self,
        name: &Arc<str>,
        namespace: &Namespace,
        cell: &Cell,
    ) -> Step {
        if matches!(cell.belief, Belief::Taken(_)) && self.settings.role == Role::Keeper {
            return Step::Look;
        }
        let Some(id) = cell.ours().and_then(|seen| seen.rule.clone()) else {
            return Step::Leave(Leave::Nothing);
        };
        let disposal = self.disposal(name, namespace, cell);
        self.decide_disposal(disposal, &id, (name, namespace), cell)
    }

    /// What to do about a copy that counts with this rule, by what is to become of it.
    pub(crate) fn decide_disposal(
        &mut self,
        disposal: Disposal,
        id: &Arc<RuleId>,
        (name, namespace): (&Arc<str>, &Namespace),
        cell: &Cell,
    ) -> Step {
        let Some(seen) = cell.ours() else {
            return Step::Leave(Leave::Nothing);
        };
        match disposal {
            Disposal::Keep(why) => Step::Leave(why),
            // Deleting is the keeper's.
            _ if self.settings.role == Role::Injector => Step::Leave(Leave::Undecided),
            _ if self
                .rules
                .get(id)
                .is_some_and(|state| state.acting().is_none()) =>
            {
                Step::Leave(Leave::Suspended)
            }
            Disposal::RuleGone => {
                let how = self.how_rule_went(id, name, cell);
                self.decide_lost(how, id, name, cell, Why::RuleDeleted)
            }
            // As long as it is new.
            Disposal::SourceGone(sources) if self.is_new_loss(id, &sources) => {
                Step::Leave(Leave::NoSource)
            }
            Disposal::SourceGone(sources) => {
                let how = self.how_sources_went(&sources, name, cell);
                self.decide_lost(how, id, name, cell, Why::SourceDeleted)
            }
            Disposal::Unmatched => self.decide_unmatched(id, (name, namespace), cell),
            // First the new copies, then away with the old one.
            Disposal::Superseded if self.awaits_successors(id, namespace, seen) => {
                Step::Leave(Leave::Undecided)
            }
            Disposal::Superseded => Step::Delete(seen.uid, seen.version, Why::Superseded),
        }
    }

    /// Whether a source was lost so shortly ago that what its rule copied of it stays.
    fn is_new_loss(&mut self, id: &Arc<RuleId>, sources: &[SourceRef]) -> bool {
        let Some(rule) = self.rules.get(id).and_then(RuleState::acting) else {
            return true;
        };
        let grace = rule.retention.source_grace;
        let mut new = false;
        for source in sources {
            // What a selector found before this process began is lost from now on.
            let lost = SourceState::Missing {
                since: self.now,
                absence: Absence::from(None),
            };
            if let SourceState::Missing { since, .. } =
                self.sources.entry(source.clone()).or_insert(lost)
                && self.now < *since + grace
            {
                self.work.timer(*since + grace, Timer::Rule(id.clone()));
                new = true;
            }
        }
        new
    }

    /// What became of the sources that this copy may have been made of; none: that isn't known of
    /// all.
    fn how_sources_went(
        &mut self,
        sources: &[SourceRef],
        name: &Arc<str>,
        cell: &Cell,
    ) -> Option<HowGone> {
        let mut all = HowGone::Deleted;
        for source in sources {
            // The object is still there, but it has become a copy: no one has deleted it.
            let missing = self
                .sources
                .get(source)
                .is_some_and(SourceState::is_missing);
            let how = if missing {
                self.how_source_went(source, name, cell)?
            } else {
                HowGone::Unexplained
            };
            if how != HowGone::Deleted {
                all = how;
            }
        }
        Some(all)
    }

    /// A copy of a rule that has lost what it was for: it goes if that was meant, and with all
    /// others if it wasn't.
    fn decide_lost(
        &mut self,
        how: Option<HowGone>,
        id: &Arc<RuleId>,
        name: &Arc<str>,
        cell: &Cell,
        why: Why,
    ) -> Step {
        let Some(seen) = cell.ours() else {
            return Step::Leave(Leave::Nothing);
        };
        match how {
            None => Step::Leave(Leave::Undecided),
            Some(HowGone::Deleted) => Step::Delete(seen.uid, seen.version, why),
            Some(HowGone::WithNamespace | HowGone::Unexplained) => self.sweep(id, name, cell, why),
        }
    }

    /// Whether copies are yet to come that this one is left for. What can't come is not waited for.
    fn awaits_successors(&self, id: &RuleId, namespace: &Namespace, seen: &Seen) -> bool {
        let comes = |other: &Cell, slot: &Slot| match &slot.rendering {
            Err(NoRendering::NotRead) => true,
            Ok(_) => other.failure.is_none(),
            Err(_) => false,
        };
        // Its heir is waited for come what may.
        let due = |(other, slot)| {
            is_heir(slot, seen) || self.hindrance(slot).is_none() && comes(other, slot)
        };
        self.successors(id, namespace).any(due)
    }
}
