//! Whether a rule may do what it says: condition `Authorized`.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{
    Engine, Served,
    status::{Tally, unwatched},
};
use crate::{
    kind::Resource,
    outcome::{Reason, Unreadable},
    reach::Reach,
    rights::{self, Program, ProgramRight},
    rule::{Rule, SourceRef},
};

/// Most namespaces that a message names.
const NAMED: usize = 5;

/// Why a rule may not do what it says: a stable word, and what to do.
pub(super) struct Unauthorized {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Engine {
    /// The first thing that a rule may not do.
    pub(super) fn unauthorized(&self, rule: &Rule, tally: &Tally) -> Option<Unauthorized> {
        self.lacks_grants(rule)
            .or_else(|| rule.sources.iter().find_map(|source| self.controller_forbidden(source, tally)))
    }

    /// What other namespaces do not grant a tenant's rule. It comes first: nothing else is told of what isn't granted.
    fn lacks_grants(&self, rule: &Rule) -> Option<Unauthorized> {
        let (lacks, more) = self.not_granted(rule, NAMED);
        let mut message = lacks.join("; ");
        if more > 0 {
            _ = write!(message, "; and {more} more");
        }
        (!lacks.is_empty()).then_some(Unauthorized { reason: "NotGranted", message })
    }

    /// What the API server denies Mimeo itself about a source or its copies, and how to grant it.
    fn controller_forbidden(&self, source: &SourceRef, tally: &Tally) -> Option<Unauthorized> {
        if let Some(why) = self.settings.reach.refuses(source) {
            return Some(Unauthorized { reason: "ControllerForbidden", message: format!("{source}: {why}") });
        }
        let resource = self.served.get(&source.gvk).and_then(Served::namespaced)?;
        let kind = self.kind_ids.get(&source.gvk.group_kind()).map(|id| &self.kinds[usize::from(id.0)]);
        let denied = |why: &Unreadable| matches!(why, Unreadable::Forbidden { .. });
        let copies = || {
            let (namespace, why) = kind?.surveys.unreadable().filter(|(_, why)| denied(why))?;
            Some(Denied { what: unwatched(namespace, why, resource), places: namespace.into_iter().collect() })
        };
        let reading = || {
            let why = self.unreadable.get(source).filter(|why| denied(why))?;
            let what = format!("{source}: {}", why.explain(&resource.to_string()));
            Some(Denied { what, places: [&*source.namespace].into() })
        };
        let denied = copies().or_else(reading).or_else(|| writing(resource, tally))?;
        let to_grant = denied.to_grant(source, &self.settings.reach, resource);
        Some(Unauthorized { reason: "ControllerForbidden", message: format!("{}; {to_grant}", denied.what) })
    }
}

/// What the API server denies Mimeo, and in which namespaces, as far as that is known.
struct Denied<'a> {
    what: String,
    places: BTreeSet<&'a str>,
}

/// In which namespaces copies of the kind were denied.
fn writing<'a>(resource: &Resource, tally: &'a Tally) -> Option<Denied<'a>> {
    let kind = &*resource.gvk.kind;
    let denied = tally.failures.iter().filter(|((_, of, _), (reason, _))| of == kind && *reason == Reason::Forbidden);
    let places: BTreeSet<&str> = denied.map(|((namespace, ..), _)| &**namespace).collect();
    let first = places.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let mut what = format!("Mimeo is denied copies of kind {kind} in {first}");
    match places.len() {
        0 => return None,
        1..=NAMED => {}
        all => _ = write!(what, " and {} more namespaces", all - NAMED),
    }
    Some(Denied { what, places })
}

impl Denied<'_> {
    /// All that the reconciler needs of the kind there: which of it is missing only the next refusal would tell.
    fn to_grant(&self, source: &SourceRef, reach: &Reach, resource: &Resource) -> String {
        let here = |need: &ProgramRight| need.namespace.as_deref().is_none_or(|name| self.places.contains(name));
        let needed = rights::needed(&[source], reach, |_| Some(resource.clone()));
        let needed = needed.into_iter().filter(|need| need.program == Program::Reconciler && here(need));
        rights::explain(&needed.collect(), reach).join("; ")
    }
}
