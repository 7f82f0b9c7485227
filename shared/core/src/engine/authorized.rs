//! Whether a rule may do what it says: condition `Authorized`.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{Engine, Served, status::Tally};
use crate::{
    kind::Resource,
    outcome::{Reason, Unreadable},
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
        rule.sources.iter().find_map(|source| self.controller_forbidden(source, tally))
    }

    /// What the API server denies Mimeo itself about a source or its copies, and how to grant it.
    fn controller_forbidden(&self, source: &SourceRef, tally: &Tally) -> Option<Unauthorized> {
        let resource = self.served.get(&source.gvk).and_then(Served::namespaced)?;
        let kind = self.kind_ids.get(&source.gvk.group_kind()).map(|id| &self.kinds[usize::from(id.0)]);
        let denied = |why: Option<Unreadable>| why.filter(|why| matches!(why, Unreadable::Forbidden { .. }));
        let explain = |why: Unreadable| why.explain(&resource.to_string());
        let source_denied = || Some(format!("{source}: {}", explain(denied(self.unreadable.get(source).copied())?)));
        let copies_denied = || Some(format!("copies cannot be watched: {}", explain(denied(kind?.unreadable)?)));
        let message = copies_denied().or_else(source_denied).or_else(|| writing_denied(resource, tally))?;
        Some(Unauthorized {
            reason: "ControllerForbidden",
            message: format!("{message}; {}", to_grant(source, resource)),
        })
    }
}

/// In which namespaces copies of the kind were denied.
fn writing_denied(resource: &Resource, tally: &Tally) -> Option<String> {
    let kind = &*resource.gvk.kind;
    let denied = tally.failures.iter().filter(|((_, of, _), (reason, _))| of == kind && *reason == Reason::Forbidden);
    let namespaces: BTreeSet<&str> = denied.map(|((namespace, ..), _)| &**namespace).collect();
    let first = namespaces.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let mut message = format!("Mimeo is denied copies of kind {kind} in {first}");
    match namespaces.len() {
        0 => return None,
        1..=NAMED => {}
        all => _ = write!(message, " and {} more namespaces", all - NAMED),
    }
    Some(message)
}

/// All that the reconciler needs of the kind: which of it is missing only the next refusal would tell.
fn to_grant(source: &SourceRef, resource: &Resource) -> String {
    let needed = rights::needed(std::slice::from_ref(source), |_| Some(resource.clone()));
    let needed: BTreeSet<ProgramRight> =
        needed.into_iter().filter(|need| need.program == Program::Reconciler).collect();
    rights::explain(&needed).join("; ")
}
