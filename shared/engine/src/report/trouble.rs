//! Problems with the sources of a rule, and with the watches of its copies.

use jiff::Timestamp;

use mimeo_model::{
    choices::Retain,
    condition::ConditionReason,
    kind::{GroupVersionKind, Resource},
    known::Known,
    meta::{Seen, source_hash},
    outcome::Unreadable,
    plural,
    rule::Rule,
    source::{SourceRef, SourceSelector},
};

use crate::{
    Index, SourceState, clock::Tick, follow, missing_grants::MissingGrant, projection::NoRendering,
    select::Choice,
};

impl Index {
    /// Returns the first problem with the sources, as reason and message.
    pub(crate) fn source_trouble(
        &self,
        rule: &Rule,
        choice: &Choice,
    ) -> Option<(ConditionReason, String)> {
        let selected = || {
            choice
                .sources
                .iter()
                .filter(|source| source.selector().is_some())
        };
        let trouble = rule
            .selectors
            .iter()
            .find_map(|selector| self.selector_trouble(rule, selector, selected()));
        trouble
            .or_else(|| {
                choice
                    .sources
                    .iter()
                    .find_map(|source| self.trouble_of(rule, source))
            })
            .or_else(|| {
                let found = choice.sources.len() + choice.beyond;
                (choice.beyond > 0).then(|| {
                let message = format!(
                    "the rule has {}{found} sources, and Mimeo copies at most {}: of those that \
                     selectors find, the oldest",
                    if choice.uncounted { "at least " } else { "" },
                    rule.most_sources
                );
                (ConditionReason::SourceRefused, message)
            })
            })
    }

    /// Returns the problem of a selector.
    fn selector_trouble<'a>(
        &self,
        rule: &Rule,
        selector: &SourceSelector,
        mut sources: impl Iterator<Item = &'a SourceRef>,
    ) -> Option<(ConditionReason, String)> {
        if let Some(home) = rule
            .id
            .namespace
            .as_deref()
            .filter(|_| !self.may_select(&rule.id, selector))
        {
            let message = self.grants_unknown().map(|unknown| unknown.message);
            return Some((
                ConditionReason::SourceRefused,
                message.unwrap_or_else(|| MissingGrant::of_selector(selector).message(home)),
            ));
        }
        if !self.counts_selectors(rule) {
            return Some((ConditionReason::SourceRefused, follow::too_many()));
        }
        let resource = match self.resource_of(&selector.gvk, Some(&selector.namespace)) {
            Ok(resource) => resource,
            Err((reason, why)) => return Some((reason, format!("{selector}: {why}"))),
        };
        if let Some(why) = self.selectors.get(selector)?.watch.unreadable() {
            return Some((
                ConditionReason::SourceRefused,
                format!("{selector}: {}", why.explain(&resource.to_string())),
            ));
        }
        let lost = self
            .sources_of(selector)
            .find_map(|(source, state)| match state {
                SourceState::Missing { since, .. }
                    if self.now < *since + rule.retention.source_grace
                        && self.copied(rule, source) =>
                {
                    let grace = self.grace(rule, *since);
                    Some((
                        ConditionReason::InGracePeriod,
                        format!("{source} is deleted or no longer matches the selector; {grace}"),
                    ))
                }
                _ => None,
            });
        let none = || {
            (
                ConditionReason::SourceNotFound,
                format!("{selector}: no object matches the selector; label the objects to copy"),
            )
        };
        lost.or_else(|| (!sources.any(|source| selector.finds(source))).then(none))
    }

    /// Says how long the copies of a source that was lost at `since` stay.
    fn grace(&self, rule: &Rule, since: Tick) -> String {
        let grace = rule.retention.source_grace;
        let end = self
            .started
            .and_then(|started| started.checked_add(since + grace).ok())
            .and_then(|end| Timestamp::from_second(end.as_second()).ok());
        match end {
            Some(end) => format!(
                "its copies stay until {end} (sourceGracePeriodSeconds {}), and longer if it comes \
                 back before",
                grace.as_secs()
            ),
            None => format!("its copies stay for {}", plural::seconds(grace.as_secs())),
        }
    }

    /// Returns the problem of a source.
    fn trouble_of(&self, rule: &Rule, source: &SourceRef) -> Option<(ConditionReason, String)> {
        if let Some(home) = rule
            .id
            .namespace
            .as_deref()
            .filter(|_| !self.may_read(&rule.id, source))
        {
            let message = self.grants_unknown().map(|unknown| unknown.message);
            return Some((
                ConditionReason::SourceRefused,
                message.unwrap_or_else(|| MissingGrant::of_source(source).message(home)),
            ));
        }
        let resource = match self.resource_of(&source.gvk, source.home()) {
            Ok(resource) => resource,
            Err((reason, why)) => return Some((reason, format!("{source}: {why}"))),
        };
        if let Some(why) = self.unreadable.get(source) {
            return Some((
                ConditionReason::SourceRefused,
                format!("{source}: {}", why.explain(&resource.to_string())),
            ));
        }
        match self.sources.get(source) {
            // A selected source in this state is being read.
            Some(SourceState::Found { .. } | SourceState::NotRead) => {}
            Some(SourceState::Missing { since, .. })
                if self.now < *since + rule.retention.source_grace && self.copied(rule, source) =>
            {
                let grace = self.grace(rule, *since);
                return Some((
                    ConditionReason::InGracePeriod,
                    format!("{source} is deleted; {grace}"),
                ));
            }
            _ => {
                return Some((
                    ConditionReason::SourceNotFound,
                    format!("{source} does not exist; create it, or name another source"),
                ));
            }
        }
        let projections = self
            .rules
            .get(&rule.id)
            .into_iter()
            .flat_map(|state| state.projections.iter().flatten());
        let refused = projections
            .filter_map(|id| self.projections.get(id))
            .find_map(|projection| match &projection.rendering {
                // A rendering that the rule makes invalid is reported as the failure of each
                // copy.
                Err(NoRendering::Refused(why))
                    if projection.source == *source && !why.by_the_rule() =>
                {
                    Some(why)
                }
                _ => None,
            });
        refused.map(|why| (ConditionReason::SourceRefused, format!("{source}: {why}")))
    }

    /// Returns the resource for sources of a kind in a namespace. The error says why no such source
    /// is possible, as reason and message.
    fn resource_of(
        &self,
        gvk: &GroupVersionKind,
        namespace: Option<&str>,
    ) -> Result<&Resource, (ConditionReason, String)> {
        if let Some(why) = self.settings.reach.refuses_home(gvk, namespace) {
            return Err((ConditionReason::SourceRefused, why.to_string()));
        }
        match self.kinds.served(gvk) {
            Known::Listed(resource) if !resource.namespaced => Err((
                ConditionReason::SourceRefused,
                "the kind is cluster-scoped".to_owned(),
            )),
            Known::Listed(resource) => Ok(resource),
            Known::Unreadable(why) => {
                let version = gvk.api_version();
                let message =
                    format!("the API server does not say which kinds {version} has ({why})");
                Err((ConditionReason::SourceRefused, message))
            }
            _ => Err((
                ConditionReason::KindNotServed,
                "the cluster does not serve this kind (see: kubectl api-resources)".to_owned(),
            )),
        }
    }

    /// True if copies of the source exist and the rule deletes them together with the source.
    fn copied(&self, rule: &Rule, source: &SourceRef) -> bool {
        let hash = source_hash(&source.to_string());
        let made_here = |seen: &Seen| seen.source == hash && seen.rule.as_deref() == Some(&rule.id);
        let places = self.places(&rule.id);
        let mut copies = places
            .iter()
            .filter_map(|name| self.namespaces.get(name))
            .flat_map(|namespace| &namespace.copies);
        rule.retention.when_source_deleted == Retain::Delete
            && copies.any(|copy| copy.ours().is_some_and(made_here))
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
