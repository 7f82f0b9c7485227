//! Whether Mimeo may delete a copy now.
//!
//! A deletion cannot be undone, and an object that a watch doesn't show is easily mistaken for a
//! deleted one. So a loss counts as deliberate only if an uncached read says so. Every other loss
//! is first collected for a while, and held if it is large.

use std::sync::Arc;

use mimeo_model::{id::RuleId, meta::Seen, role::Role, source::SourceRef};

use crate::{
    Index, Namespace, RuleState, SourceState,
    absent::HowGone,
    cell::{Cell, Leave, Observation, Step, Why},
    fate::{Fate, is_replacement},
    slot::{NoRendering, Slot},
    verdict::{Need, Needs, Outlook, Verdict},
};

impl Index {
    /// Returns the verdict about a cell that no rule wants (any more).
    pub(crate) fn decide_unwanted(
        &self,
        name: &Arc<str>,
        namespace: &Namespace,
        cell: &Cell,
        needs: &mut Needs,
    ) -> Verdict {
        if matches!(cell.observed, Observation::Taken(_)) && self.settings.role == Role::Keeper {
            return Verdict {
                step: Step::Look,
                ..Verdict::default()
            };
        }
        let Some(id) = cell.ours().and_then(|seen| seen.rule.as_ref()) else {
            return Verdict::default();
        };
        let fate = self.fate(name, namespace, cell);
        let outlook = if fate.goes() {
            Outlook::Delete
        } else {
            Outlook::Open
        };
        let step = self.decide_fate(fate, id, (name, namespace), cell, needs);
        Verdict { step, outlook }
    }

    /// Returns the step for a copy of this rule, given the copy's fate.
    pub(crate) fn decide_fate(
        &self,
        fate: Fate,
        id: &Arc<RuleId>,
        (name, namespace): (&Arc<str>, &Namespace),
        cell: &Cell,
        needs: &mut Needs,
    ) -> Step {
        let Some(seen) = cell.ours() else {
            return Step::Leave(Leave::Nothing);
        };
        match fate {
            Fate::Keep(why) => Step::Leave(why),
            // Only the reconciler deletes copies.
            _ if self.settings.role == Role::Injector => Step::Leave(Leave::Undecided),
            _ if self
                .rules
                .get(id)
                .is_some_and(|state| state.acting().is_none()) =>
            {
                Step::Leave(Leave::Suspended)
            }
            Fate::RuleGone => {
                let how = self.how_rule_went(id, cell, needs);
                lost(how, id, cell, Why::RuleDeleted, needs)
            }
            // The source's grace period has not ended.
            Fate::SourceGone(sources) if self.is_new_loss(id, &sources, needs) => {
                Step::Leave(Leave::NoSource)
            }
            Fate::SourceGone(sources) => {
                let how = self.how_sources_went(&sources, cell, needs);
                lost(how, id, cell, Why::SourceDeleted, needs)
            }
            Fate::Unmatched => self.decide_unmatched(id, (name, namespace), cell, needs),
            // The new copies must exist before the old one is deleted.
            Fate::Superseded if self.awaits_successors(id, namespace, seen) => {
                Step::Leave(Leave::Undecided)
            }
            Fate::Superseded => Step::Delete(Why::Superseded),
        }
    }

    /// True if the grace period of a source has not ended, so that the copies of the rule stay.
    fn is_new_loss(&self, id: &Arc<RuleId>, sources: &[SourceRef], needs: &mut Needs) -> bool {
        let Some(rule) = self.rules.get(id).and_then(RuleState::acting) else {
            return true;
        };
        let mut new = false;
        for source in sources {
            let since = match self.sources.get(source) {
                Some(SourceState::Missing { since, .. }) => *since,
                Some(SourceState::Found { .. } | SourceState::NotRead) => continue,
                // The grace period of a source that a selector found before this process began
                // starts now.
                None => {
                    needs.push(Need::LostSource(source.clone()));
                    self.now
                }
            };
            let end = since + rule.retention.source_grace;
            if self.now < end {
                needs.push(Need::GraceEnd(id.clone(), end));
                new = true;
            }
        }
        new
    }

    /// Returns how the possible sources of this copy disappeared. `None`: that is unknown for at
    /// least one of them.
    fn how_sources_went(
        &self,
        sources: &[SourceRef],
        cell: &Cell,
        needs: &mut Needs,
    ) -> Option<HowGone> {
        let mut all = HowGone::Deleted;
        for source in sources {
            let how = match self.sources.get(source) {
                // The object still exists, but it has become a copy. No client has deleted it.
                Some(SourceState::Found { .. } | SourceState::NotRead) => HowGone::Unexplained,
                Some(SourceState::Missing { .. }) | None => {
                    self.how_source_went(source, cell, needs)?
                }
            };
            if how != HowGone::Deleted {
                all = how;
            }
        }
        if all == HowGone::Deleted && !self.are_freshly_read(sources, needs) {
            return None;
        }
        Some(all)
    }

    /// True if the rule's other copies must be written first. A copy that cannot be written is not
    /// waited for.
    fn awaits_successors(&self, id: &RuleId, namespace: &Namespace, seen: &Seen) -> bool {
        let comes = |other: &Cell, slot: &Slot| match &slot.rendering {
            Err(NoRendering::NotRead) => true,
            Ok(_) => other.failure.is_none(),
            Err(_) => false,
        };
        // The replacement of this copy, from the same source, is waited for in any case.
        let due = |(other, slot)| {
            is_replacement(slot, seen) || self.blocked(slot).is_none() && comes(other, slot)
        };
        self.successors(id, namespace).any(due)
    }
}

/// Returns the step for a copy that has lost its rule or its source. The copy is deleted if the
/// loss was deliberate. Otherwise it is collected with the rule's other losses.
fn lost(how: Option<HowGone>, id: &Arc<RuleId>, cell: &Cell, why: Why, needs: &mut Needs) -> Step {
    match how {
        _ if cell.ours().is_none() => Step::Leave(Leave::Nothing),
        None => Step::Leave(Leave::Undecided),
        Some(HowGone::Deleted) => Step::Delete(why),
        Some(HowGone::WithNamespace | HowGone::Unexplained) => collect(id, cell, why, needs),
    }
}

/// Returns the step for a copy with an unconfirmed loss. The step is the deletion of the copy, if
/// that was approved. Otherwise the copy is collected with the rule's other losses.
pub(crate) fn collect(id: &Arc<RuleId>, cell: &Cell, why: Why, needs: &mut Needs) -> Step {
    match cell.ours() {
        None => Step::Leave(Leave::Nothing),
        Some(_) if cell.approved == Some(why) => Step::Delete(why),
        Some(_) => {
            needs.push(Need::Loss(id.clone(), why));
            Step::Leave(Leave::Undecided)
        }
    }
}
