//! Why a copy cannot exist for now. Pods do not wait for such a copy, and users see the reason.

use mimeo_model::{
    condition::ConditionReason, kind::GroupVersionKind, known::Known, source::SourceSelector,
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
        if let Err(why) = self.source_kind(projection.gvk(), projection.source.home()) {
            return why;
        }
        match &projection.rendering {
            Err(NoRendering::NotGranted) => Some(ConditionReason::NotGranted.as_str()),
            Err(NoRendering::NotRead) => {
                let why = self.unreadable.get(&projection.source)?;
                Some(why.word())
            }
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
        if let Err(why) = self.source_kind(&selector.gvk, Some(&selector.namespace)) {
            return why;
        }
        let why = self.selectors.get(selector)?.watch.unreadable()?;
        Some(why.word())
    }

    /// Checks that sources of a kind can exist in a namespace. The error is the reason, if it is
    /// known.
    fn source_kind(
        &self,
        gvk: &GroupVersionKind,
        home: Option<&str>,
    ) -> Result<(), Option<Blocked>> {
        if self.settings.reach.refuses_home(gvk, home).is_some() {
            return Err(Some("OutOfReach"));
        }
        match self.kinds.served(gvk) {
            Known::Unknown => Err(None),
            Known::Unreadable(why) => Err(Some(why.word())),
            Known::Listed(resource) if resource.namespaced => Ok(()),
            Known::Unserved | Known::Listed(_) => {
                Err(Some(ConditionReason::KindNotServed.as_str()))
            }
        }
    }
}
