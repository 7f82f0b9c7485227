//! Problems with the sources of a rule, and with the watches of its copies.

use mimeo_model::{
    condition::ConditionReason,
    kind::Resource,
    known::Known,
    outcome::Unreadable,
    plural,
    rule::Rule,
    source::{SourceQuery, SourceRef, SourceSelector},
};

use crate::{
    Index, SourceState, copy::CopyState, jobs::JobKey, missing_grants::MissingGrant,
    projection::NoRendering, select::Choice, verdict::Outlook,
};

/// Why a rule cannot do its work: a stable reason, and advice.
pub(crate) type Trouble = (ConditionReason, String);

impl Index {
    /// Returns the first problem with the sources.
    pub(crate) fn source_trouble(&self, rule: &Rule, choice: &Choice) -> Option<Trouble> {
        let mut selectors = rule.selectors.iter();
        let mut sources = choice.sources.iter();
        let too_many = || {
            let message = format!(
                "the rule has too many sources, and Mimeo copies at most {}: of those that \
                 selectors find, the oldest",
                rule.most_sources
            );
            (ConditionReason::SourceRefused, message)
        };
        selectors
            .find_map(|selector| self.selector_trouble(rule, selector, choice))
            .or_else(|| sources.find_map(|source| self.trouble_of(rule, source)))
            .or_else(|| choice.beyond.then(too_many))
    }

    /// Returns the problem of a selector.
    fn selector_trouble(
        &self,
        rule: &Rule,
        selector: &SourceSelector,
        choice: &Choice,
    ) -> Option<Trouble> {
        let trouble = self.access_trouble(rule, SourceQuery::Selected(selector));
        if trouble.is_some() {
            return trouble;
        }
        // Each lost source is among the missing objects.
        let first = JobKey::ConfirmSource(selector.source(""));
        let lost = self.absences.range(first..).find_map(|(key, _)| match key {
            JobKey::ConfirmSource(source) if selector.finds(source) => {
                let grace = self.grace(rule, source)?;
                let message =
                    format!("{source} is deleted or no longer matches the selector; {grace}");
                Some((ConditionReason::InGracePeriod, message))
            }
            _ => None,
        });
        let none = || {
            let message =
                format!("{selector}: no object matches the selector; label the objects to copy");
            (ConditionReason::SourceNotFound, message)
        };
        let found = |source: &SourceRef| selector.finds(source);
        lost.or_else(|| (!choice.sources.iter().any(found)).then(none))
    }

    /// Returns the problem if the rule lacks the grant to read these sources, or if such sources
    /// are not possible or cannot be read.
    fn access_trouble(&self, rule: &Rule, query: SourceQuery<'_>) -> Option<Trouble> {
        let refused = |why| (ConditionReason::SourceRefused, why);
        if let Some(home) = &rule.id.namespace
            && !self.may_read(&rule.id, query)
        {
            let unknown = self.grants_unknown().map(|(_, message)| message);
            let message = unknown.unwrap_or_else(|| MissingGrant::to_read(query).message(home));
            return Some(refused(message));
        }
        let gvk = query.gvk();
        let (reason, why) = match self.kinds.served(gvk) {
            _ if let Some(why) = self.settings.reach.refuses(query) => refused(why.to_string()),
            Known::Listed(resource) if !resource.namespaced => {
                refused("the kind is cluster-scoped".to_owned())
            }
            Known::Listed(resource) => {
                refused(self.why_unreadable(query)?.explain(&resource.to_string()))
            }
            Known::Unreadable(why) => {
                let (version, why) = (gvk.api_version(), why.as_str());
                refused(format!(
                    "the API server does not say which kinds {version} has ({why})"
                ))
            }
            Known::Unknown | Known::Unserved => (
                ConditionReason::KindNotServed,
                "the cluster does not serve this kind (see: kubectl api-resources)".to_owned(),
            ),
        };
        Some((reason, format!("{query}: {why}")))
    }

    /// Says how long the copies of a source stay that was lost. `None`: the source is not lost, or
    /// no copies of it are deleted after a grace period that still lasts. The decision about such a
    /// copy has set a timer for the end.
    fn grace(&self, rule: &Rule, source: &SourceRef) -> Option<String> {
        let Some(SourceState::Missing { since, .. }) = self.sources.get(source) else {
            return None;
        };
        let grace = rule.source_grace();
        let going = |copy: &CopyState| copy.verdict.outlook == Outlook::Delete;
        if self.now >= *since + grace || self.copies_of(&rule.id, source, going) == 0 {
            return None;
        }
        Some(format!(
            "its copies stay for {} after that (sourceGracePeriodSeconds), or after Mimeo's restart",
            plural::seconds(grace.as_secs())
        ))
    }

    /// Returns the problem of a source.
    fn trouble_of(&self, rule: &Rule, source: &SourceRef) -> Option<Trouble> {
        let trouble = self.access_trouble(rule, SourceQuery::One(source));
        if trouble.is_some() {
            return trouble;
        }
        if let Some(grace) = self.grace(rule, source) {
            let message = format!("{source} is deleted; {grace}");
            return Some((ConditionReason::InGracePeriod, message));
        }
        // A selected source that is not read is being read.
        if self.sources.get(source).is_none_or(SourceState::is_missing) {
            let message = format!("{source} does not exist; create it, or name another source");
            return Some((ConditionReason::SourceNotFound, message));
        }
        let mut projections = self.projections.of_source(source);
        projections.find_map(|(_, projection)| match &projection.rendering {
            // A rendering that the rule makes invalid is reported as the failure of each copy.
            Err(NoRendering::Refused(why)) if *projection.rule == rule.id && !why.by_the_rule() => {
                Some((ConditionReason::SourceRefused, format!("{source}: {why}")))
            }
            _ => None,
        })
    }

    /// Returns the problem if copies of the rule cannot be watched for now.
    pub(crate) fn unwatched_copies(&self, rule: &Rule) -> Option<String> {
        rule.kinds.iter().find_map(|gvk| {
            let resource = self.kinds.resource(gvk)?;
            let (namespace, why) = self.unwatchable(rule, &gvk.group_kind())?;
            Some(unwatched(namespace, why, resource))
        })
    }
}

/// Returns the message for copies that cannot be watched, in one namespace or in all.
pub(crate) fn unwatched(namespace: Option<&str>, why: Unreadable, resource: &Resource) -> String {
    let place = namespace
        .map(|name| format!(" in namespace {name}"))
        .unwrap_or_default();
    format!(
        "copies cannot be watched{place}: {}",
        why.explain(&resource.to_string())
    )
}
