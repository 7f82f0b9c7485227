//! Whether Mimeo may delete a copy now.
//!
//! A deletion cannot be undone, and an object that a watch doesn't show is easily mistaken for a
//! deleted one. So a loss counts as deliberate only if an uncached read says so. Every other loss
//! is first collected for a while, and held if it is large.

use std::sync::Arc;

use mimeo_model::{id::RuleId, meta::Seen, source::SourceRef};

use crate::{
    Index, Namespace, SourceState,
    absent::HowGone,
    copy::{CopyState, Leave, Step, Why},
    fate::{Fate, is_replacement},
    projection::{NoRendering, Projection},
    verdict::{Need, Needs},
};

impl Index {
    /// Returns the step for a copy of this rule with this fate: its deletion, if that is allowed now.
    pub(crate) fn may_go(
        &self,
        fate: Fate,
        id: &Arc<RuleId>,
        namespace: &Namespace,
        copy: &CopyState,
        needs: &mut Needs,
    ) -> Step {
        let Some(seen) = copy.ours() else {
            return Step::Leave(Leave::Nothing);
        };
        let (how, why) = match fate {
            Fate::Keep(why) => return Step::Leave(why),
            _ if self.rules.contains_key(id) && self.acting(id).is_none() => {
                return Step::Leave(Leave::Suspended);
            }
            Fate::RuleGone => (self.how_rule_went(id, copy, needs), Why::RuleDeleted),
            // The source's grace period has not ended.
            Fate::SourceGone(sources) if self.is_new_loss(id, &sources, needs) => {
                return Step::Leave(Leave::NoSource);
            }
            Fate::SourceGone(sources) => {
                let how = self.how_sources_went(&sources, copy, needs);
                (how, Why::SourceDeleted)
            }
            Fate::Unmatched => match self.how_consent_went(id, namespace, copy, needs) {
                Some(HowGone::Unexplained) => return Step::Leave(Leave::Retained),
                how => (how, Why::Unmatched),
            },
            // The new copies must exist before the old one is deleted.
            Fate::Superseded if self.awaits_successors(id, namespace, seen) => {
                return Step::Leave(Leave::Undecided);
            }
            Fate::Superseded => return Step::Delete(Why::Superseded),
        };
        match how {
            // No client deleted the rule, the source or the grant on purpose. So the copy is deleted
            // only after the rule's collected losses were approved.
            Some(HowGone::WithNamespace | HowGone::Unexplained) if copy.approved != Some(why) => {
                needs.push(Need::Loss(id.clone(), why));
                Step::Leave(Leave::Undecided)
            }
            Some(_) => Step::Delete(why),
            None => Step::Leave(Leave::Undecided),
        }
    }

    /// True if the grace period of a source has not ended, so that the copies of the rule stay.
    fn is_new_loss(&self, id: &Arc<RuleId>, sources: &[SourceRef], needs: &mut Needs) -> bool {
        let Some(rule) = self.acting(id) else {
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
            let end = since + rule.source_grace();
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
        copy: &CopyState,
        needs: &mut Needs,
    ) -> Option<HowGone> {
        let mut all = HowGone::Deleted;
        for source in sources {
            let how = match self.sources.get(source) {
                // The object still exists, but it has become a copy. No client has deleted it.
                Some(SourceState::Found { .. } | SourceState::NotRead) => HowGone::Unexplained,
                Some(SourceState::Missing { .. }) | None => {
                    self.how_source_went(source, copy, needs)?
                }
            };
            if how != HowGone::Deleted {
                all = how;
            }
        }
        (all != HowGone::Deleted || self.are_freshly_read(sources, needs)).then_some(all)
    }

    /// True if the rule's other copies must be written first. A copy that cannot be written is not
    /// waited for.
    fn awaits_successors(&self, id: &RuleId, namespace: &Namespace, seen: &Seen) -> bool {
        let comes = |other: &CopyState, projection: &Projection| match &projection.rendering {
            Err(NoRendering::NotRead) => true,
            Ok(_) => other.failure.is_none(),
            Err(_) => false,
        };
        // The replacement of this copy, from the same source, is waited for in any case.
        let due = |(other, projection)| {
            is_replacement(projection, seen)
                || self.blocked(projection).is_none() && comes(other, projection)
        };
        self.successors(id, namespace).any(due)
    }
}
