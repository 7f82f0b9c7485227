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

use crate::{Engine, RuleState, sources::SourceState, tally::Tally, trouble::unwatched};

/// Most namespaces that a message names.
const NAMED: usize = 5;

impl RuleState {
    /// The rule, if its spec makes sense.
    pub(crate) fn valid(&self) -> Option<&Rule> {
        self.rule.as_ref().ok()
    }

    /// The rule, if it writes and deletes: its spec makes sense, and it is not suspended.
    pub(crate) fn acting(&self) -> Option<&Rule> {
        self.valid().filter(|rule| !rule.suspend)
    }

    /// Which pods the rule holds in a namespace that waits for its copies.
    pub(crate) fn pod_gate(&self) -> PodGate {
        self.acting().map_or(PodGate::None, |rule| rule.pod_gate)
    }
}

/// Why a rule may not do what it says: a stable word, and what to do.
pub(crate) struct Unauthorized {
    pub(crate) reason: ConditionReason,
    pub(crate) message: String,
}

impl Unauthorized {
    /// That the installation is limited to less than that.
    fn by_limits(message: String) -> Self {
        Self {
            reason: ConditionReason::ControllerForbidden,
            message,
        }
    }
}

/// Where sources are: one, or what a selector finds.
struct Home<'a> {
    gvk: &'a GroupVersionKind,
    /// None if it is inline.
    namespace: Option<&'a str>,
    /// What people know it by.
    what: &'a dyn std::fmt::Display,
    unreadable: Option<Unreadable>,
}

impl Engine {
    /// The first thing that a rule may not do.
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
                .and_then(|findings| findings.unreadable),
        });
        let mut homes = named.chain(selected);
        self.lacks_grants(rule)
            .or_else(|| {
                rule.leaves_out(&self.settings.reach)
                    .map(Unauthorized::by_limits)
            })
            .or_else(|| homes.find_map(|home| self.controller_forbidden(rule, &home, tally)))
    }

    /// What other namespaces do not grant a tenant's rule. It comes first: nothing else is told of
    /// what isn't granted.
    fn lacks_grants(&self, rule: &Rule) -> Option<Unauthorized> {
        let (lacks, more) = self.lacks_told(rule, NAMED);
        let mut message = lacks.join("; ");
        if more > 0 {
            _ = write!(message, "; and {more} more");
        }
        let reason = self
            .grants_untold()
            .map_or(ConditionReason::NotGranted, |untold| untold.reason);
        (!lacks.is_empty()).then_some(Unauthorized { reason, message })
    }

    /// Which of the other rules can't be read, so that they are followed by nobody. This one does
    /// what it says meanwhile.
    pub(crate) fn rules_unread(&self) -> Option<Unauthorized> {
        RuleKind::ALL.into_iter().find_map(|kind| {
            Some(own_kind_unreadable(
                kind.plural(),
                self.collections[kind].unread?,
            ))
        })
    }

    /// What the API server denies Mimeo itself about a source or its copies, and how to grant it.
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

/// That objects of a kind of Mimeo's own can't be read.
pub(crate) fn own_kind_unreadable(plural: &str, why: Unreadable) -> Unauthorized {
    let mut message = why.explain(&format!("{plural}.{GROUP}"));
    let reason = match why {
        Unreadable::Forbidden { .. } => {
            _ = write!(
                message,
                "; Mimeo's ClusterRoles must have the rule {{apiGroups: [{GROUP}], resources: [{plural}], verbs: [get, list, watch]}}"
            );
            ConditionReason::ControllerForbidden
        }
        Unreadable::Unavailable => ConditionReason::Pending,
    };
    Unauthorized { reason, message }
}

/// What the API server denies Mimeo, and in which namespaces, as far as that is known.
struct Denied<'a> {
    what: String,
    places: BTreeSet<&'a str>,
    /// It is known what was to be written: whatever that gives must be Mimeo's to give.
    written: bool,
}

/// In which namespaces copies of the kind were denied.
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
    /// All that the reconciler needs of the kind there: which of it is missing only the next
    /// refusal would tell.
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
