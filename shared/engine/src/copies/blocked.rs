//! Why a copy cannot exist for now. Pods do not wait for such a copy, and users see the reason.

use std::fmt;

use mimeo_model::{
    condition::ConditionReason,
    kind::GroupVersionKind,
    known::Known,
    outcome::{FailureReason, Unreadable},
    source::SourceSelector,
};

use crate::{
    Index,
    projection::{NoRendering, Projection},
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
    /// Returns the reason why a projection has no copies to write, if it is known. Pods need not
    /// wait for them.
    pub(crate) fn blocked(&self, projection: &Projection) -> Option<Blocked> {
        if let Err(why) = self.source_kind(projection.gvk(), projection.source.home()) {
            return why;
        }
        match &projection.rendering {
            Err(NoRendering::NotGranted) => Some(Blocked::Condition(ConditionReason::NotGranted)),
            Err(NoRendering::NotRead) => {
                let why = self.unreadable.get(&projection.source).copied();
                why.map(Blocked::Unreadable)
            }
            Err(NoRendering::SourceMissing) => {
                Some(Blocked::Condition(ConditionReason::SourceNotFound))
            }
            Err(NoRendering::Refused(why)) if why.by_the_rule() => {
                Some(Blocked::Failure(why.failure().reason))
            }
            Err(NoRendering::Refused(_)) => {
                Some(Blocked::Condition(ConditionReason::SourceRefused))
            }
            Ok(_) => None,
        }
    }

    /// Returns the reason why the findings of a selector are unknown, if there is one. Pods need
    /// not wait for them.
    pub(crate) fn selector_blocked(&self, selector: &SourceSelector) -> Option<Blocked> {
        if let Err(why) = self.source_kind(&selector.gvk, Some(&selector.namespace)) {
            return why;
        }
        let why = self.selectors.get(selector)?.watch.unreadable();
        why.map(Blocked::Unreadable)
    }

    /// Checks that sources of a kind can exist in a namespace. The error is the reason, if it is
    /// known.
    fn source_kind(
        &self,
        gvk: &GroupVersionKind,
        home: Option<&str>,
    ) -> Result<(), Option<Blocked>> {
        if self.settings.reach.refuses_home(gvk, home).is_some() {
            return Err(Some(Blocked::OutOfReach));
        }
        match self.kinds.served(gvk) {
            Known::Unknown => Err(None),
            Known::Unreadable(why) => Err(Some(Blocked::Unreadable(*why))),
            Known::Listed(resource) if resource.namespaced => Ok(()),
            Known::Unserved | Known::Listed(_) => {
                Err(Some(Blocked::Condition(ConditionReason::KindNotServed)))
            }
        }
    }
}
