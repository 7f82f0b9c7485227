//! Missing permissions of a rule: grants of other namespaces, and permissions of Mimeo itself.
//!
//! Nothing here asks about the author of a rule. The webhook checks the author's permissions when
//! the rule is written, and the permissions are not checked again, as Kubernetes does for Roles.

use std::{collections::BTreeSet, fmt::Write as _};

use mimeo_api::names::GROUP;

use mimeo_model::{
    choices::PodGate,
    condition::ConditionReason,
    id::RuleKind,
    kind::{GroupVersionKind, Resource},
    outcome::{FailureReason, Unreadable},
    own_rights::{self, Program, ProgramRight, RoleRef},
    plural,
    reach::Reach,
    rule::Rule,
    source::SourceRef,
};

use crate::{Index, RuleState, sources::SourceState, tally::Tally, trouble::unwatched};

/// The largest number of namespaces that a message names.
const NAMED: usize = 5;

impl RuleState {
    /// The rule, if its spec is valid.
    pub(crate) fn valid(&self) -> Option<&Rule> {
        self.rule.as_ref().ok()
    }

    /// The rule, if it is active: its spec is valid, and it is not suspended.
    pub(crate) fn acting(&self) -> Option<&Rule> {
        self.valid().filter(|rule| !rule.suspend)
    }

    /// The pod gate of the rule for a namespace with the pending label. It is `None` if the rule is
    /// inactive.
    pub(crate) fn pod_gate(&self) -> PodGate {
        self.acting().map_or(PodGate::None, |rule| rule.pod_gate)
    }
}

/// Why a rule cannot do its work: a stable reason, and advice.
pub(crate) struct Unauthorized {
    pub(crate) reason: ConditionReason,
    pub(crate) message: String,
}

impl Unauthorized {
    /// The rule needs more than the installation is limited to.
    fn by_limits(message: String) -> Self {
        Self {
            reason: ConditionReason::ControllerForbidden,
            message,
        }
    }
}

/// The place of a source, or of the sources that a selector finds.
struct Home<'a> {
    gvk: &'a GroupVersionKind,
    /// `None` for an inline source.
    namespace: Option<&'a str>,
    /// The text that users know it by.
    what: &'a dyn std::fmt::Display,
    unreadable: Option<Unreadable>,
}

impl Index {
    /// Returns the first missing permission of a rule.
    pub(crate) fn unauthorized(&self, rule: &Rule, tally: &Tally) -> Option<Unauthorized> {
        let named = rule.sources.iter().map(|source| Home {
            gvk: &source.gvk,
            namespace: source.home(),
            what: source,
            unreadable: self.unreadable.get(source).copied(),
        });
        let selected = self.followed(rule).into_iter().map(|selector| Home {
            gvk: &selector.gvk,
            namespace: Some(&selector.namespace),
            what: selector,
            unreadable: self
                .selectors
                .get(selector)
                .and_then(|findings| findings.watch.unreadable()),
        });
        let mut homes = named.chain(selected);
        self.lacks_grants(rule)
            .or_else(|| {
                rule.leaves_out(&self.settings.reach)
                    .map(Unauthorized::by_limits)
            })
            .or_else(|| homes.find_map(|home| self.controller_forbidden(rule, &home, tally)))
    }

    /// Returns the missing grants of a Replication. This check comes first: without the grants, a
    /// Replication must learn nothing else about these namespaces.
    fn lacks_grants(&self, rule: &Rule) -> Option<Unauthorized> {
        let message = || {
            let (missing, more) = self.not_granted(rule, &self.sources_had(rule), NAMED);
            let mut message = missing.join("; ");
            if more > 0 {
                _ = write!(message, "; and {more} more");
            }
            message
        };
        let known = self.consent.missing_grants.get(&rule.id);
        let message = match known.filter(|_| self.grants_known()) {
            Some(known) => known.get_or_init(message).clone(),
            None => message(),
        };
        let reason = self
            .grants_unknown()
            .map_or(ConditionReason::NotGranted, |unknown| unknown.reason);
        (!message.is_empty()).then_some(Unauthorized { reason, message })
    }

    /// Returns the problem if some kind of rule cannot be read, so that Mimeo doesn't see changes
    /// of those rules. This rule stays active meanwhile.
    pub(crate) fn rules_unread(&self) -> Option<Unauthorized> {
        RuleKind::ALL.into_iter().find_map(|kind| {
            Some(own_kind_unreadable(
                kind.plural(),
                self.collections[kind].watch.unreadable()?,
            ))
        })
    }

    /// Returns the permission that the API server denies Mimeo itself for a source or its copies,
    /// and how to grant it.
    fn controller_forbidden(
        &self,
        rule: &Rule,
        home: &Home<'_>,
        tally: &Tally,
    ) -> Option<Unauthorized> {
        let Home {
            gvk,
            namespace: place,
            what: source,
            unreadable,
        } = *home;
        if let Some(why) = self.settings.reach.refuses_home(gvk, place) {
            return Some(Unauthorized::by_limits(format!("{source}: {why}")));
        }
        let resource = self.kinds.resource(gvk)?;
        let denied = |why: &Unreadable| matches!(why, Unreadable::Forbidden { .. });
        let copies = || {
            let (namespace, why) = self
                .unwatchable(rule, &gvk.group_kind())
                .filter(|(_, why)| denied(why))?;
            let what = unwatched(namespace, why, resource);
            Some(Denied {
                what,
                places: namespace.into_iter().collect(),
                written: false,
            })
        };
        let reading = || {
            let why = unreadable.filter(denied)?;
            let what = format!("{source}: {}", why.explain(&resource.to_string()));
            Some(Denied {
                what,
                places: place.into_iter().collect(),
                written: false,
            })
        };
        let denied = copies()
            .or_else(reading)
            .or_else(|| writing(resource, tally))?;
        let role = |source: &SourceRef| match self.sources.get(source)? {
            SourceState::Found { object, .. } => RoleRef::of(object.as_deref()?),
            _ => None,
        };
        let homes = rule
            .homes(role)
            .filter(|home| home.gvk.group_kind() == gvk.group_kind());
        let to_grant = denied.to_grant(homes, &self.settings.reach, resource);
        Some(Unauthorized {
            reason: ConditionReason::ControllerForbidden,
            message: format!("{}; {to_grant}", denied.what),
        })
    }
}

/// Returns the problem that objects of one of Mimeo's own kinds cannot be read.
pub(crate) fn own_kind_unreadable(plural: &str, why: Unreadable) -> Unauthorized {
    let mut message = why.explain(&format!("{plural}.{GROUP}"));
    let reason = match why {
        Unreadable::Forbidden { .. } => {
            _ = write!(
                message,
                "; Mimeo's ClusterRoles must have the rule {{apiGroups: [{GROUP}], resources: \
                 [{plural}], verbs: [get, list, watch]}}"
            );
            ConditionReason::ControllerForbidden
        }
        Unreadable::Unavailable => ConditionReason::Pending,
    };
    Unauthorized { reason, message }
}

/// A permission that the API server denies Mimeo, with the affected namespaces as far as they are
/// known.
struct Denied<'a> {
    what: String,
    places: BTreeSet<&'a str>,
    /// True if a write was denied. Then the written object is known. If it gives permissions to
    /// others, Mimeo needs these permissions itself.
    written: bool,
}

/// Returns the namespaces in which the API server denied writes of copies of this kind.
fn writing<'a>(resource: &Resource, tally: &'a Tally) -> Option<Denied<'a>> {
    let kind = &*resource.gvk.kind;
    let denied = tally
        .failures
        .iter()
        .filter(|((_, of, _), (reason, _))| of == kind && *reason == FailureReason::Forbidden);
    let places: BTreeSet<&str> = denied.map(|((namespace, ..), _)| &**namespace).collect();
    let first = places
        .iter()
        .take(NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    let mut what = format!("Mimeo may not write copies of kind {kind} in {first}");
    match places.len() {
        0 => return None,
        1..=NAMED => {}
        all => _ = write!(what, " and {}", plural::more_namespaces(all - NAMED)),
    }
    Some(Denied {
        what,
        places,
        written: true,
    })
}

impl Denied<'_> {
    /// Returns all permissions that the reconciler needs for the kind in these namespaces. Only the
    /// next denial would show which of them is missing.
    fn to_grant<'a>(
        &self,
        homes: impl Iterator<Item = own_rights::Home<'a>>,
        reach: &Reach,
        resource: &Resource,
    ) -> String {
        let places: BTreeSet<Box<str>> = self.places.iter().map(|name| (*name).into()).collect();
        let here = |need: &ProgramRight| {
            need.right
                .namespace
                .as_deref()
                .is_none_or(|name| self.places.contains(name))
        };
        let needed = own_rights::needed(homes, reach.targets.is_some().then_some(&places), |_| {
            Some(resource.clone())
        });
        let asked = |need: &ProgramRight| self.written || !need.hands_out();
        let needed = needed
            .into_iter()
            .filter(|need| need.program == Program::Reconciler && here(need) && asked(need));
        own_rights::explain(&needed.collect(), reach).join("; ")
    }
}
