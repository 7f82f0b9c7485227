//! Whether Mimeo may delete a copy now.
//!
//! A deletion cannot be undone, and an object that a watch doesn't show is easily mistaken for a
//! deleted one. So a loss counts as deliberate only if an uncached read says so. Every other loss
//! is first collected for a while, and held if it is large.

use std::sync::Arc;

use mimeo_model::{id::RuleId, meta::Seen, source::SourceRef};

use crate::{
    Index, Namespace, RuleState, SourceState,
    absent::HowGone,
    copy::{CopyState, Leave, Why},
    fate::{Fate, is_replacement},
    projection::{NoRendering, Projection},
    verdict::{Need, Needs},
};

/// Whether Mimeo may delete a copy now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayGo {
    /// Yes, for this reason.
    Yes(Why),
    /// A fact is missing: how the rule, the source or the grant disappeared, or whether the copy
    /// that replaces this one exists.
    Unknown,
    /// Only together with the rule's other losses: no client deleted the rule, the source or the
    /// grant on purpose.
    Collect(Why),
    /// No: the copy stays, for this reason.
    No(Leave),
}

impl Index {
    /// Returns whether a copy of this rule may be deleted now, given the copy's fate.
    pub(crate) fn may_go(
        &self,
        fate: Fate,
        id: &Arc<RuleId>,
        (name, namespace): (&Arc<str>, &Namespace),
        copy: &CopyState,
        needs: &mut Needs,
    ) -> MayGo {
        let Some(seen) = copy.ours() else {
            return MayGo::No(Leave::Nothing);
        };
        match fate {
            Fate::Keep(why) => MayGo::No(why),
            _ if self
                .rules
                .get(id)
                .is_some_and(|state| state.acting().is_none()) =>
            {
                MayGo::No(Leave::Suspended)
            }
            Fate::RuleGone => lost(self.how_rule_went(id, copy, needs), Why::RuleDeleted),
            // The source's grace period has not ended.
            Fate::SourceGone(sources) if self.is_new_loss(id, &sources, needs) => {
                MayGo::No(Leave::NoSource)
            }
            Fate::SourceGone(sources) => lost(
                self.how_sources_went(&sources, copy, needs),
                Why::SourceDeleted,
            ),
            Fate::Unmatched => self.may_go_unmatched(id, (name, namespace), copy, needs),
            // The new copies must exist before the old one is deleted.
            Fate::Superseded if self.awaits_successors(id, namespace, seen) => MayGo::Unknown,
            Fate::Superseded => MayGo::Yes(Why::Superseded),
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
        if all == HowGone::Deleted && !self.are_freshly_read(sources, needs) {
            return None;
        }
        Some(all)
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

/// Returns whether a copy that has lost its rule or its source may be deleted. `how` says how the
/// rule or the source disappeared, if that is known.
fn lost(how: Option<HowGone>, why: Why) -> MayGo {
    match how {
        None => MayGo::Unknown,
        Some(HowGone::Deleted) => MayGo::Yes(why),
        Some(HowGone::WithNamespace | HowGone::Unexplained) => MayGo::Collect(why),
    }
}
