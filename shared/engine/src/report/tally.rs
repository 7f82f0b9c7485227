//! The state of each copy for its rule, and the counts of all copies of a rule.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_api::{CopyCounts, Plan, PlannedCopy};

use mimeo_model::{
    id::{KindId, RuleId},
    outcome::FailureReason,
    rule::Rule,
};

use crate::{CopyNumbers, Effort, Index, Namespace, copy::CopyState, verdict::Outlook};

const PLANNED: usize = 20;

/// Namespace, kind and name: the order in which failures are reported.
pub(crate) type CellName = (String, String, String);

/// The state of one copy for its rule. The rule wants the copy, or has left it behind.
pub(crate) struct Standing<'a> {
    pub(crate) rule: &'a Arc<RuleId>,
    pub(crate) kind: &'a str,
    pub(crate) name: Cow<'a, str>,
    /// True if the rule wants a copy.
    pub(crate) wanted: bool,
    /// The change that the rule wants. [`Outlook::Right`]: the copy is correct.
    pub(crate) outlook: Outlook,
    /// The failure: a stable reason, and a sentence for users.
    pub(crate) failure: Option<(FailureReason, String)>,
    /// The copy and its namespace. `None`: the rule cannot have the copy.
    pub(crate) copy: Option<(&'a Arc<str>, &'a CopyState)>,
}

/// The counts of the copies of one rule.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) copies: CopyCounts,
    pub(crate) plan: Plan,
    /// The first copies that the plan counts.
    planned: BTreeMap<CellName, Outlook>,
    pub(crate) failures: BTreeMap<CellName, (FailureReason, String)>,
}

impl Tally {
    /// Returns the plan with its first copies.
    pub(crate) fn planned(&self) -> Plan {
        let copies = self.planned.iter().map(planned).collect();
        Plan {
            copies,
            ..self.plan.clone()
        }
    }

    /// Returns the number of copies, and the number of failures for each reason.
    pub(crate) fn numbers(&self) -> CopyNumbers {
        let CopyCounts {
            desired, synced, ..
        } = self.copies;
        let count = |count: i32| usize::try_from(count).unwrap_or_default();
        let mut reasons = BTreeMap::new();
        for (reason, _) in self.failures.values() {
            *reasons.entry(*reason).or_default() += 1;
        }
        CopyNumbers {
            desired: count(desired),
            synced: count(synced),
            failed: reasons,
        }
    }

    /// Counts a copy. Most copies are correct, so their names are in no list.
    pub(crate) fn count(&mut self, namespace: &str, standing: Standing<'_>) {
        let copy = || {
            let (kind, name) = (standing.kind.to_owned(), standing.name.to_string());
            (namespace.to_owned(), kind, name)
        };
        self.copies.desired += i32::from(standing.wanted);
        self.copies.synced += i32::from(standing.outlook == Outlook::Right);
        self.plan(standing.outlook, copy);
        if let Some(failure) = standing.failure {
            self.copies.failed += 1;
            self.failures.insert(copy(), failure);
        }
    }

    /// Counts a planned change, and keeps the first ones by name.
    fn plan(&mut self, outlook: Outlook, copy: impl Fn() -> CellName) {
        let Plan {
            create,
            update,
            delete,
            conflict,
            ..
        } = &mut self.plan;
        *match outlook {
            Outlook::Create => create,
            Outlook::Update => update,
            Outlook::Delete => delete,
            Outlook::Conflict => conflict,
            Outlook::Right | Outlook::Unfillable | Outlook::Open => return,
        } += 1;
        self.planned.insert(copy(), outlook);
        if self.planned.len() > PLANNED {
            self.planned.pop_last();
        }
    }
}

fn planned(((namespace, kind, name), action): (&CellName, &Outlook)) -> PlannedCopy {
    PlannedCopy {
        action: action.planned().unwrap_or_default().to_owned(),
        kind: kind.clone(),
        namespace: namespace.clone(),
        name: name.clone(),
    }
}

impl Index {
    /// Counts the copies of these rules, and visits each copy once. The tallies are in the order of
    /// the rules.
    pub(crate) fn tallies(
        &self,
        rules: Vec<Arc<RuleId>>,
        effort: &mut Effort,
    ) -> Vec<(Arc<RuleId>, Tally)> {
        let valid = |id: &&Arc<RuleId>| self.valid(id).is_some();
        let counted: BTreeSet<Arc<RuleId>> = rules.iter().filter(valid).cloned().collect();
        // A ClusterReplication may have copies anywhere.
        let places: BTreeSet<Arc<str>> = if counted.iter().any(|id| id.namespace.is_none()) {
            self.namespaces.keys().cloned().collect()
        } else {
            counted.iter().flat_map(|id| self.places(id)).collect()
        };
        let mut tallies: BTreeMap<&Arc<RuleId>, Tally> = BTreeMap::new();
        for namespace in places.iter().filter_map(|name| self.namespaces.get(name)) {
            effort.counted += namespace.copies.len();
            for standing in self.standings(namespace, |id| counted.contains(id)) {
                let tally = tallies.entry(standing.rule).or_default();
                tally.count(&namespace.name, standing);
            }
        }
        let tally = |id: Arc<RuleId>| {
            let tally = tallies.remove(&id).unwrap_or_default();
            (id, tally)
        };
        rules.into_iter().map(tally).collect()
    }

    /// Returns the states of the copies in a namespace that belong to the asked rules, and of the
    /// copies that these rules want there and cannot have.
    pub(crate) fn standings<'a>(
        &'a self,
        namespace: &'a Namespace,
        asked: impl Fn(&RuleId) -> bool + Copy,
    ) -> impl Iterator<Item = Standing<'a>> {
        let name = &namespace.name;
        let copies = namespace.copies.iter().filter_map(move |copy| {
            let rule = self.projections.owner(copy).filter(|id| asked(id))?;
            let wanted = self.projections.wanted(copy).is_some();
            let left_behind = copy.want.is_none()
                && namespace.alive()
                && copy.ours().is_some_and(|seen| !seen.elsewhere);
            (wanted || left_behind).then(|| Standing {
                rule,
                kind: self.kind_of(copy.kind),
                name: (&*copy.name).into(),
                wanted,
                outlook: copy.verdict.outlook,
                failure: failure(copy),
                copy: Some((name, copy)),
            })
        });
        let blocked = namespace.blocked.iter();
        let blocked = blocked.filter(move |((id, ..), _)| asked(id));
        let blocked = blocked.map(move |((id, kind, copy_name), copy)| {
            let failure = (copy.reason(), copy.message(id, name));
            Standing::without_copy(id, self.kind_of(*kind), (&**copy_name).into(), failure)
        });
        copies.chain(blocked)
    }

    pub(crate) fn kind_of(&self, kind: KindId) -> &str {
        &self.kinds[kind].group_kind.kind
    }

    /// Returns the states of the copies that a rule lacks grants for, in one namespace or in all,
    /// each with its namespace. They are the same whether the namespace exists or not.
    pub(crate) fn ungranted_standings<'a>(
        &self,
        id: &'a Arc<RuleId>,
        rule: &'a Rule,
        only: Option<&str>,
    ) -> impl Iterator<Item = (&'a str, Standing<'a>)> {
        let home = id.namespace.as_deref();
        let copies = home.map(|home| {
            let sources = self.choose(rule).sources;
            (home, self.ungranted(rule, &sources, only))
        });
        copies.into_iter().flat_map(move |(home, copies)| {
            copies
                .into_iter()
                .map(move |((namespace, kind, name), lack)| {
                    let failure = (FailureReason::NotGranted, lack.message(home));
                    let standing = Standing::without_copy(id, kind, name.into(), failure);
                    (namespace, standing)
                })
        })
    }

    /// Counts the copies that a rule lacks grants for.
    pub(crate) fn tally_not_granted(&self, id: &Arc<RuleId>, rule: &Rule, tally: &mut Tally) {
        let known = self.grants_known();
        for (namespace, mut standing) in self.ungranted_standings(id, rule, None) {
            if !known {
                standing.failure = None; // The copy may be correct.
            }
            tally.count(namespace, standing);
        }
    }
}

impl<'a> Standing<'a> {
    /// The state of a copy that the rule wants and cannot have.
    fn without_copy(
        rule: &'a Arc<RuleId>,
        kind: &'a str,
        name: Cow<'a, str>,
        failure: (FailureReason, String),
    ) -> Self {
        let outlook = if failure.0 == FailureReason::RuleConflict {
            Outlook::Conflict
        } else {
            Outlook::Open
        };
        Self {
            rule,
            kind,
            name,
            wanted: true,
            outlook,
            failure: Some(failure),
            copy: None,
        }
    }
}

/// Returns the failure of a copy. It is the result of the last request. Without one, a wanted copy
/// fails if the present object is being deleted and still exists.
fn failure(copy: &CopyState) -> Option<(FailureReason, String)> {
    let deleting = copy.seen().is_some_and(|seen| seen.deleting);
    let going = deleting && copy.verdict.outlook == Outlook::Conflict;
    match &copy.failure {
        Some(failing) => Some((failing.failure.reason, failing.failure.message.to_string())),
        None => going.then(|| {
            (
                FailureReason::Conflict,
                "what has its name is being deleted, and a finalizer keeps it".to_owned(),
            )
        }),
    }
}
