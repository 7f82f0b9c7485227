//! Missing permissions of a rule: grants of other namespaces, and permissions of Mimeo itself.
//!
//! Nothing here asks about the author of a rule. The webhook checks the author's permissions when
//! the rule is written, and the permissions are not checked again, as Kubernetes does for Roles.

use std::{collections::BTreeSet, fmt::Write as _};

use mimeo_api::names::GROUP;

use mimeo_model::{
    condition::ConditionReason,
    id::{RuleId, RuleKind},
    kind::Resource,
    outcome::{FailureReason, Unreadable},
    own_rights::{self, Program, RoleRef},
    plural::first_items,
    rule::Rule,
    source::{SourceQuery, SourceRef},
};

use crate::{
    Index, RuleState,
    events::places,
    sources::SourceState,
    tally::Tally,
    trouble::{Trouble, unwatched},
};

impl RuleState {
    /// The rule, if its spec is valid.
    pub(crate) fn valid(&self) -> Option<&Rule> {
        self.rule.as_ref().ok()
    }

    /// The rule, if it is active: its spec is valid, and it is not suspended.
    pub(crate) fn acting(&self) -> Option<&Rule> {
        self.valid().filter(|rule| !rule.suspend)
    }
}

impl Index {
    /// The rule, if it exists and its spec is valid.
    pub(crate) fn valid(&self, id: &RuleId) -> Option<&Rule> {
        self.rules.get(id)?.valid()
    }

    /// The rule, if it exists and is active.
    pub(crate) fn acting(&self, id: &RuleId) -> Option<&Rule> {
        self.rules.get(id)?.acting()
    }

    /// Returns the first missing permission of a rule.
    pub(crate) fn unauthorized(&self, rule: &Rule, tally: &Tally) -> Option<Trouble> {
        let named = rule.sources.iter().map(SourceQuery::One);
        let selected = self.followed(rule).map(SourceQuery::Selected);
        let mut queries = named.chain(selected);
        self.lacks_grants(rule)
            .or_else(|| rule.leaves_out(&self.settings.reach).map(by_limits))
            .or_else(|| queries.find_map(|query| self.controller_forbidden(rule, query, tally)))
    }

    /// Returns the missing grants of a Replication. This check comes first: without the grants, a
    /// Replication must learn nothing else about these namespaces.
    fn lacks_grants(&self, rule: &Rule) -> Option<Trouble> {
        let missing = self.not_granted(rule, &self.choose(rule).sources);
        let reason = self
            .grants_unknown()
            .map_or(ConditionReason::NotGranted, |(reason, _)| reason);
        (!missing.is_empty()).then(|| (reason, first_items(&missing, "; ")))
    }

    /// Returns the problem if some kind of rule cannot be read, so that Mimeo doesn't see changes
    /// of those rules. This rule stays active meanwhile.
    pub(crate) fn rules_unread(&self) -> Option<Trouble> {
        RuleKind::ALL.into_iter().find_map(|kind| {
            let why = self.rule_watch(kind).unreadable()?;
            Some(own_kind_unreadable(kind.plural(), why))
        })
    }

    /// Returns the permission that the API server denies Mimeo itself for a source or its copies,
    /// and how to grant it.
    fn controller_forbidden(
        &self,
        rule: &Rule,
        query: SourceQuery<'_>,
        tally: &Tally,
    ) -> Option<Trouble> {
        if let Some(why) = self.settings.reach.refuses(query) {
            return Some(by_limits(format!("{query}: {why}")));
        }
        let gvk = query.gvk();
        let resource = self.kinds.resource(gvk)?;
        let denied = |why: &Unreadable| *why == Unreadable::Forbidden;
        let copies = self
            .unwatchable(rule, &gvk.group_kind())
            .filter(|(_, why)| denied(why))
            .map(|(place, why)| (unwatched(place, why, resource), place));
        let reading = || {
            let why = self.why_unreadable(query).filter(denied)?;
            let what = format!("{query}: {}", why.explain(&resource.to_string()));
            Some((what, query.home()))
        };
        let read = copies.or_else(reading);
        // If a write was denied, the written object is known. If it gives permissions to others,
        // Mimeo needs these permissions itself.
        let written = read.is_none();
        let (what, places) = match read {
            None => writing(resource, tally)?,
            Some((what, place)) => (what, place.into_iter().collect()),
        };
        let role = |source: &SourceRef| match self.sources.get(source)? {
            SourceState::Found { object, .. } => RoleRef::of(object.as_deref()?),
            _ => None,
        };
        let sources = rule.with_roles(role).filter(|(one, _)| one.gvk() == gvk);
        let reach = &self.settings.reach;
        let targets: BTreeSet<Box<str>> = places.iter().map(|name| (*name).into()).collect();
        let targets = reach.targets.is_some().then_some(&targets);
        // These are all permissions that the reconciler needs for the kind in these namespaces.
        // Only the next denial would show which of them is missing.
        let served = [(gvk.clone(), resource.clone())].into();
        let mut needed = own_rights::needed_by(rule.id.kind, sources, targets, &served);
        needed.retain(|need| {
            let place = need.right.namespace.as_deref();
            need.program == Program::Reconciler
                && place.is_none_or(|place| places.contains(place))
                && (written || !need.hands_out())
        });
        let to_grant = first_items(&own_rights::explain(&needed, reach), "; ");
        let message = format!("{what}; {to_grant}");
        Some((ConditionReason::ControllerForbidden, message))
    }
}

/// The rule needs more than the installation is limited to.
fn by_limits(message: String) -> Trouble {
    (ConditionReason::ControllerForbidden, message)
}

/// Returns the problem that objects of one of Mimeo's own kinds cannot be read.
pub(crate) fn own_kind_unreadable(plural: &str, why: Unreadable) -> Trouble {
    let mut message = why.explain(&format!("{plural}.{GROUP}"));
    let reason = match why {
        Unreadable::Forbidden => {
            _ = write!(
                message,
                "; Mimeo's ClusterRoles must have the rule {{apiGroups: [{GROUP}], resources: \
                 [{plural}], verbs: [get, list, watch]}}"
            );
            ConditionReason::ControllerForbidden
        }
        Unreadable::Unavailable => ConditionReason::Pending,
    };
    (reason, message)
}

/// Returns the problem that the API server denied writes of copies of this kind, and the namespaces
/// in which it did.
fn writing<'a>(resource: &Resource, tally: &'a Tally) -> Option<(String, BTreeSet<&'a str>)> {
    let kind = &*resource.gvk.kind;
    let denied = tally
        .failures
        .iter()
        .filter(|((_, of, _), (reason, _))| of == kind && *reason == FailureReason::Forbidden);
    let names: BTreeSet<&str> = denied.map(|((namespace, ..), _)| &**namespace).collect();
    let what = format!(
        "Mimeo may not write copies of kind {kind} in {}",
        places(names.iter().copied())
    );
    (!names.is_empty()).then_some((what, names))
}
