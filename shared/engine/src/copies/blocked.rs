//! Why a copy cannot exist for now. Pods do not wait for such a copy, and users see the reason.

use mimeo_model::{
    condition::ConditionReason,
    known::Known,
    outcome::Unreadable,
    source::{SourceQuery, SourceSelector},
};

use crate::{
    Index,
    projection::{NoRendering, Projection},
};

/// The stable word for the reason why a copy cannot be made or written.
pub(crate) type Blocked = &'static str;

impl Index {
    /// Returns the reason why a projection has no copies to write, if it is known. Pods need not
    /// wait for them.
    pub(crate) fn blocked(&self, projection: &Projection) -> Option<Blocked> {
        let query = SourceQuery::One(&projection.source);
        if let Err(why) = self.source_kind(query) {
            return why;
        }
        match &projection.rendering {
            Err(NoRendering::NotGranted) => Some(ConditionReason::NotGranted.as_str()),
            Err(NoRendering::NotRead) => Some(self.why_unreadable(query)?.as_str()),
            Err(NoRendering::SourceMissing) => Some(ConditionReason::SourceNotFound.as_str()),
            Err(NoRendering::Refused(why)) if why.by_the_rule() => {
                Some(why.failure().reason.as_str())
            }
            Err(NoRendering::Refused(_)) => Some(ConditionReason::SourceRefused.as_str()),
            Ok(_) => None,
        }
    }

    /// Returns the reason why the findings of a selector are unknown, if there is one. Pods need
    /// not wait for them.
    pub(crate) fn selector_blocked(&self, selector: &SourceSelector) -> Option<Blocked> {
        let query = SourceQuery::Selected(selector);
        if let Err(why) = self.source_kind(query) {
            return why;
        }
        Some(self.why_unreadable(query)?.as_str())
    }

    /// Returns why sources can't be read now, although their kind is served.
    pub(crate) fn why_unreadable(&self, query: SourceQuery<'_>) -> Option<Unreadable> {
        match query {
            SourceQuery::One(source) => self.unreadable.get(source).copied(),
            SourceQuery::Selected(selector) => self.selectors.get(selector)?.watch.unreadable(),
        }
    }

    /// Checks that sources of this kind can exist in this namespace. The error is the reason, if it
    /// is known.
    fn source_kind(&self, query: SourceQuery<'_>) -> Result<(), Option<Blocked>> {
        if self.settings.reach.refuses(query).is_some() {
            return Err(Some("OutOfReach"));
        }
        match self.kinds.served(query.gvk()) {
            Known::Unknown => Err(None),
            Known::Unreadable(why) => Err(Some(why.as_str())),
            Known::Listed(resource) if resource.namespaced => Ok(()),
            Known::Unserved | Known::Listed(_) => {
                Err(Some(ConditionReason::KindNotServed.as_str()))
            }
        }
    }
}
