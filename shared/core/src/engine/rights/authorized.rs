//! Whether a rule may do what it says: who its author is, what they may do, and what Mimeo itself is granted.
//!
//! A rule whose author is not known, or may not do what the rule does, writes and deletes nothing; its copies stay. What it would
//! find is told to nobody, for its author may not know. One that nobody may answer for wants nothing either: it takes no
//! copy from another rule, and holds no pod. One whose author has lost a right still means its barrier.
//!
//! The keeper has the author asked about, again and again, and says in the rule's status what came of it. The injector takes it
//! from there: both act on one verdict, and none is older than the keeper's last one. A rule that has none yet was checked as
//! it was written.

use std::{collections::BTreeSet, fmt::Write as _, sync::Arc};

use mimeo_api::names::GROUP;

use crate::engine::{
    Engine, Observed, Role, RuleState, Served, Tick, sources::SourceState, tally::Tally, trouble::unwatched,
};
use crate::{
    authority::{Need, Right, lacks, of_rule},
    condition::{ConditionReason, ConditionType},
    kind::{GroupVersionKind, Resource},
    names,
    outcome::{FailureReason, Unreadable},
    own_rights::{self, Program, ProgramRight, RoleRef},
    reach::Reach,
    review::User,
    rule::{Barrier, Rule, RuleId, RuleKind, SourceRef},
};

/// Most namespaces that a message names.
const NAMED: usize = 5;

/// What is to be asked about a rule's author.
#[derive(Clone, Debug, PartialEq)]
pub struct Inquiry {
    /// The rule.
    pub rule: Arc<RuleId>,
    uid: Box<str>,
    generation: i64,
    /// Who wrote it.
    pub author: Arc<User>,
    /// What they must hold.
    pub needs: Vec<Need>,
}

/// Whether a rule may act in its author's place.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::engine) enum Authority {
    /// Nobody is known to be the author.
    Unknown,
    /// It is being asked; with the reason, if there is no answer.
    Open(Option<Unreadable>),
    /// The author may do all that the rule does.
    Held,
    /// They may not, and why.
    Denied(Box<str>),
}

impl Authority {
    /// Whether somebody is known to be the author.
    pub(in crate::engine) fn counts(&self) -> bool {
        *self != Self::Unknown
    }
}

/// That the author lacks a right, as the status of this generation says.
pub(in crate::engine) fn told_denied(observed: &Observed, generation: i64) -> Option<Box<str>> {
    let mut conditions = observed.iter().flat_map(|status| &status.conditions);
    let denied = conditions.find(|one| {
        one.type_ == ConditionType::Authorized.as_str()
            && one.reason == ConditionReason::AuthorDenied.as_str()
            && one.observed_generation == Some(generation)
    });
    denied.map(|one| one.message.as_str().into())
}

impl RuleState {
    /// The rule, if it may write and delete: it isn't suspended, and its author may.
    pub(in crate::engine) fn acting(&self) -> Option<&Rule> {
        self.rule.as_ref().ok().filter(|rule| !rule.suspend && self.authorized())
    }

    /// Whether its author is known to be one who may.
    pub(in crate::engine) fn authorized(&self) -> bool {
        self.authority == Authority::Held
    }

    /// The rule, if it counts at all: somebody is known to have written it who might. Of any other neither slots nor selectors are
    /// held: anybody could have a rule stored that nobody answers for, and it would keep objects from others, and take memory.
    pub(in crate::engine) fn counted(&self) -> Option<&Rule> {
        self.rule.as_ref().ok().filter(|_| self.authority.counts())
    }

    /// Whether its author may, or is being asked about.
    pub(in crate::engine) fn may_yet(&self) -> bool {
        self.authority.counts() && !self.denied()
    }

    /// Whether its author is known to be one who may not.
    pub(in crate::engine) fn denied(&self) -> bool {
        matches!(self.authority, Authority::Denied(_))
    }

    /// Why the rule's author is none to act for: nothing that the rule would find is told then.
    pub(in crate::engine) fn author_trouble(&self, id: &RuleId) -> Option<Unauthorized> {
        let touch = || {
            let (kind, name, key) = (id.kind.to_string().to_lowercase(), &id.name, names::AUTHOR);
            let namespace = id.namespace.as_ref().map(|namespace| format!("-n {namespace} ")).unwrap_or_default();
            format!("kubectl annotate --overwrite {namespace}{kind} {name} {key}=me")
        };
        let (reason, message) = match &self.authority {
            Authority::Unknown => {
                let touch = touch();
                let message = format!(
                    "it is not known who wrote the rule as it is: it was stored or changed past Mimeo's webhook; whoever may \
                     do what it does becomes its author by {touch}"
                );
                (ConditionReason::AuthorUnknown, message)
            }
            Authority::Denied(why) => {
                let touch = touch();
                let message =
                    format!("{why}, and wrote the rule; give them the right, or have who holds it run {touch}");
                (ConditionReason::AuthorDenied, message)
            }
            Authority::Open(Some(Unreadable::Forbidden { .. })) => {
                let message = "Mimeo may not ask what the rule's author may do: it lacks create on \
                               subjectaccessreviews.authorization.k8s.io";
                (ConditionReason::ControllerForbidden, message.into())
            }
            Authority::Open(Some(Unreadable::Unavailable)) => {
                (ConditionReason::Pending, "the API server does not say now what the rule's author may do".into())
            }
            Authority::Open(None) | Authority::Held => return None,
        };
        Some(Unauthorized { reason, message })
    }

    /// What it does to the pods of a namespace that waits for its copies.
    pub(in crate::engine) fn barrier(&self) -> Barrier {
        self.counted().filter(|rule| !rule.suspend).map_or(Barrier::None, |rule| rule.barrier)
    }
}

/// Why a rule may not do what it says: a stable word, and what to do.
pub(in crate::engine) struct Unauthorized {
    pub(in crate::engine) reason: ConditionReason,
    pub(in crate::engine) message: String,
}

impl Unauthorized {
    /// That the installation is limited to less than that.
    fn by_limits(message: String) -> Self {
        Self { reason: ConditionReason::ControllerForbidden, message }
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
    /// What is known of a rule's author as the rule is shown. An answer holds for as long as the spec and the author do.
    pub(in crate::engine) fn authority_of(
        &self,
        id: &RuleId,
        rule: Option<&Rule>,
        author: Option<&Arc<User>>,
        observed: &Observed,
    ) -> Authority {
        let (Some(rule), Some(author)) = (rule, author) else { return Authority::Unknown };
        if self.settings.role == Role::Injector {
            return told_denied(observed, rule.generation).map_or(Authority::Held, Authority::Denied);
        }
        let same = |old: &Rule| old.uid == rule.uid && old.generation == rule.generation;
        let known = self.rules.get(id).filter(|state| state.rule.as_ref().is_ok_and(same));
        let known = known.filter(|state| state.author.as_ref() == Some(author));
        known.map_or(Authority::Open(None), |state| state.authority.clone())
    }

    /// Grows whenever somebody has to be asked about.
    pub fn inquiry_version(&self) -> u64 {
        self.inquiry_version
    }

    pub(in crate::engine) fn ask_about_authors(&mut self) {
        self.inquiry_version += 1;
    }

    /// Whether the author of any rule is known.
    pub fn authored(&self) -> bool {
        self.rules.values().any(|state| state.author.is_some())
    }

    /// Whether any rule's author is known to be one who may not.
    pub fn any_denied(&self) -> bool {
        self.rules.values().any(RuleState::denied)
    }

    /// What to ask about every rule whose author is known. A kind that isn't served or isn't looked for, of which nothing can be
    /// written, is left out.
    pub fn inquiries(&self) -> Vec<Inquiry> {
        self.inquiries_about(|_| true)
    }

    /// The same for rules that wait for the answer; `denied`: and for those that wait for another one.
    pub fn open_inquiries(&self, denied: bool) -> Vec<Inquiry> {
        self.inquiries_about(|state| match state.authority {
            Authority::Open(_) => true,
            Authority::Denied(_) => denied,
            Authority::Unknown | Authority::Held => false,
        })
    }

    fn inquiries_about(&self, concerned: impl Fn(&RuleState) -> bool) -> Vec<Inquiry> {
        let served = |gvk: &GroupVersionKind| self.kinds.resource(gvk).cloned();
        let inquiry = |(id, state): (&Arc<RuleId>, &RuleState)| {
            let (rule, author) = (state.rule.as_ref().ok()?, state.author.clone()?);
            let slots = state.slots.iter().flatten().filter_map(|id| self.slots.get(id));
            let mut read = slots.filter(|slot| slot.granted && self.settings.reach.refuses(&slot.source).is_none());
            if read.any(|slot| matches!(self.kinds.served(slot.gvk()), None | Some(Served::Unknown))) {
                return None;
            }
            let mut needs = of_rule(rule, served);
            needs.retain(|need| &*need.right.resource != "*");
            Some(Inquiry { rule: id.clone(), uid: rule.uid.clone(), generation: rule.generation, author, needs })
        };
        self.rules.iter().filter(|(_, state)| concerned(state)).filter_map(inquiry).collect()
    }

    /// The rights that the author of an inquiry lacks, or that nobody could say: then the last answer holds.
    pub fn answered(&mut self, inquiry: &Inquiry, answer: Result<&[&Right], Unreadable>, now: Tick) {
        self.at(now);
        let Some(state) = self.rules.get_mut(&inquiry.rule) else { return };
        let same = |rule: &Rule| rule.uid == inquiry.uid && rule.generation == inquiry.generation;
        if !state.rule.as_ref().is_ok_and(same) || state.author.as_ref() != Some(&inquiry.author) {
            return;
        }
        let authority = match answer {
            Ok([]) => Authority::Held,
            Ok(missing) => Authority::Denied(lacks(&inquiry.author.name, missing).into()),
            Err(why) if matches!(state.authority, Authority::Open(_)) => Authority::Open(Some(why)),
            Err(_) => return,
        };
        if state.authority != authority {
            state.authority = authority;
            self.authority_changed(&inquiry.rule.clone());
        }
    }

    /// A kind has come to be served: rights to it were not asked for before.
    pub(in crate::engine) fn reopen(&mut self, gvk: &GroupVersionKind) {
        self.ask_about_authors();
        if self.settings.role == Role::Injector {
            return;
        }
        let concerned = |state: &RuleState| state.rule.as_ref().is_ok_and(|rule| rule.kinds.contains(gvk));
        for state in self.rules.values_mut().filter(|state| state.authority == Authority::Held && concerned(state)) {
            state.authority = Authority::Open(None);
        }
    }

    /// What a rule may do has changed.
    pub(in crate::engine) fn authority_changed(&mut self, id: &Arc<RuleId>) {
        self.mark_status_due(id);
        self.work.tidy_later();
        self.replan_rule(id);
    }

    /// The first thing that a rule may not do, though its author may.
    pub(in crate::engine) fn unauthorized(&self, rule: &Rule, tally: &Tally) -> Option<Unauthorized> {
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
            unreadable: self.selectors.get(selector).and_then(|findings| findings.unreadable),
        });
        let mut homes = named.chain(selected);
        self.lacks_grants(rule)
            .or_else(|| self.settings.reach.leaves_out(rule).map(Unauthorized::by_limits))
            .or_else(|| homes.find_map(|home| self.controller_forbidden(rule, &home, tally)))
    }

    /// What other namespaces do not grant a tenant's rule. It comes first: nothing else is told of what isn't granted.
    fn lacks_grants(&self, rule: &Rule) -> Option<Unauthorized> {
        let (lacks, more) = self.lacks_told(rule, NAMED);
        let mut message = lacks.join("; ");
        if more > 0 {
            _ = write!(message, "; and {more} more");
        }
        let reason = self.grants_untold().map_or(ConditionReason::NotGranted, |untold| untold.reason);
        (!lacks.is_empty()).then_some(Unauthorized { reason, message })
    }

    /// Which of the other rules can't be read, so that they are followed by nobody. This one does what it says meanwhile.
    pub(in crate::engine) fn rules_unread(&self) -> Option<Unauthorized> {
        RuleKind::ALL
            .into_iter()
            .find_map(|kind| Some(own_kind_unreadable(kind.plural(), self.collections[kind].unread?)))
    }

    /// What the API server denies Mimeo itself about a source or its copies, and how to grant it.
    fn controller_forbidden(&self, rule: &Rule, home: &Home<'_>, tally: &Tally) -> Option<Unauthorized> {
        let Home { gvk, namespace: place, what: source, unreadable } = *home;
        if let Some(why) = self.settings.reach.refuses_home(gvk, place) {
            return Some(Unauthorized::by_limits(format!("{source}: {why}")));
        }
        let resource = self.kinds.resource(gvk)?;
        let denied = |why: &Unreadable| matches!(why, Unreadable::Forbidden { .. });
        let copies = || {
            let (namespace, why) = self.unwatchable(rule, &gvk.group_kind()).filter(|(_, why)| denied(why))?;
            let what = unwatched(namespace, why, resource);
            Some(Denied { what, places: namespace.into_iter().collect(), written: false })
        };
        let reading = || {
            let why = unreadable.filter(denied)?;
            let what = format!("{source}: {}", why.explain(&resource.to_string()));
            Some(Denied { what, places: place.into_iter().collect(), written: false })
        };
        let denied = copies().or_else(reading).or_else(|| writing(resource, tally))?;
        let role = |source: &SourceRef| match self.sources.get(source)? {
            SourceState::Found { object, .. } => RoleRef::of(object.as_deref()?),
            _ => None,
        };
        let homes = rule.homes(role).filter(|home| home.gvk.group_kind() == gvk.group_kind());
        let to_grant = denied.to_grant(homes, &self.settings.reach, resource);
        Some(Unauthorized {
            reason: ConditionReason::ControllerForbidden,
            message: format!("{}; {to_grant}", denied.what),
        })
    }
}

/// That objects of a kind of Mimeo's own can't be read.
pub(in crate::engine) fn own_kind_unreadable(plural: &str, why: Unreadable) -> Unauthorized {
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
    let denied =
        tally.failures.iter().filter(|((_, of, _), (reason, _))| of == kind && *reason == FailureReason::Forbidden);
    let places: BTreeSet<&str> = denied.map(|((namespace, ..), _)| &**namespace).collect();
    let first = places.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let mut what = format!("Mimeo is denied copies of kind {kind} in {first}");
    match places.len() {
        0 => return None,
        1..=NAMED => {}
        all => _ = write!(what, " and {} more namespaces", all - NAMED),
    }
    Some(Denied { what, places, written: true })
}

impl Denied<'_> {
    /// All that the reconciler needs of the kind there: which of it is missing only the next refusal would tell.
    fn to_grant<'a>(
        &self,
        homes: impl Iterator<Item = own_rights::Home<'a>>,
        reach: &Reach,
        resource: &Resource,
    ) -> String {
        let places: BTreeSet<Box<str>> = self.places.iter().map(|name| (*name).into()).collect();
        let here = |need: &ProgramRight| need.right.namespace.as_deref().is_none_or(|name| self.places.contains(name));
        let needed = own_rights::needed(homes, reach.targets.is_some().then_some(&places), |_| Some(resource.clone()));
        let asked = |need: &ProgramRight| self.written || !need.hands_out();
        let needed = needed.into_iter().filter(|need| need.program == Program::Reconciler && here(need) && asked(need));
        own_rights::explain(&needed.collect(), reach).join("; ")
    }
}
