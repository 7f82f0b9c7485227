//! Why a copy cannot exist for now. Pods do not wait for such a copy, and users see the reason.

use std::fmt;

use mimeo_model::{
    condition::ConditionReason,
    outcome::{FailureReason, Unreadable},
    source::SourceSelector,
};

use crate::{
    Index, Served,
    slot::{NoRendering, Slot},
};

/// The reason why a copy cannot be made or written. Its `Display` is the stable word for the
/// reason.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blocked {
    /// Mimeo does not act in the source's namespace.
    OutOfReach,
    /// The rule or its source has a problem.
    Condition(ConditionReason),
    /// The source, or the discovery of its kind, cannot be read.
    Unreadable(Unreadable),
    /// Writing the copy failed.
    Failure(FailureReason),
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfReach => f.write_str("OutOfReach"),
            Self::Condition(reason) => reason.fmt(f),
            Self::Unreadable(why) => why.fmt(f),
            Self::Failure(reason) => reason.fmt(f),
        }
    }
}

impl Index {
    /// Returns the reason why a slot has no copies to write, if it is known. Pods need not wait for
    /// them.
    pub(crate) fn blocked(&self, slot: &Slot) -> Option<Blocked> {
        if self.settings.reach.refuses(&slot.source).is_some() {
            return Some(Blocked::OutOfReach);
        }
        match (self.kinds.served(slot.gvk()), &slot.rendering) {
            (None | Some(Served::Unknown), _) => None,
            (Some(Served::Unanswered(why)), _) => Some(Blocked::Unreadable(*why)),
            (Some(served), _) if served.namespaced().is_none() => {
                Some(Blocked::Condition(ConditionReason::KindNotServed))
            }
            (_, Err(NoRendering::NotGranted)) => {
                Some(Blocked::Condition(ConditionReason::NotGranted))
            }
            (_, Err(NoRendering::NotRead)) => self
                .unreadable
                .get(&slot.source)
                .copied()
                .map(Blocked::Unreadable),
            (_, Err(NoRendering::SourceMissing)) => {
                Some(Blocked::Condition(ConditionReason::SourceNotFound))
            }
            (_, Err(NoRendering::Refused(why))) if why.by_the_rule() => {
                Some(Blocked::Failure(FailureReason::Invalid))
            }
            (_, Err(NoRendering::Refused(_))) => {
                Some(Blocked::Condition(ConditionReason::SourceRefused))
            }
            (_, Ok(_)) => None,
        }
    }

    /// Returns the reason why the findings of a selector are unknown, if there is one. Pods need
    /// not wait for them.
    pub(crate) fn selector_blocked(&self, selector: &SourceSelector) -> Option<Blocked> {
        if self
            .settings
            .reach
            .refuses_home(&selector.gvk, Some(&selector.namespace))
            .is_some()
        {
            return Some(Blocked::OutOfReach);
        }
        match self.kinds.served(&selector.gvk) {
            None | Some(Served::Unknown) => None,
            Some(Served::Unanswered(why)) => Some(Blocked::Unreadable(*why)),
            Some(served) if served.namespaced().is_none() => {
                Some(Blocked::Condition(ConditionReason::KindNotServed))
            }
            Some(_) => self
                .selectors
                .get(selector)?
                .unreadable
                .map(Blocked::Unreadable),
        }
    }
}
