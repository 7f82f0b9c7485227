//! The statuses of grants: whether each counts, and how many Replications use it.
//!
//! One namespace at a time has its turn, a moment after the first change there. So tenants with
//! many rules and grants cost no more than one count a second.

use std::{collections::BTreeMap, time::Duration};

use mimeo_api::Access;

use mimeo_model::{
    grant::{Grant, Standing},
    id::RuleKind,
    rule::Rule,
    source::SourceQuery,
};

use crate::{
    Index,
    clock::Tick,
    consent::{Consent, named_targets, read_abroad},
};

/// How long changes of a namespace are collected, from the first one on, before they are counted.
const COLLECTED: Duration = Duration::from_secs(2);
/// The pause from one namespace's turn to the next.
const PACE: Duration = Duration::from_secs(1);
/// The pause after a status could not be written.
const RETRY: Duration = Duration::from_mins(1);
/// The largest number of statuses that one turn writes. The next turn writes the others.
const WRITES: usize = 32;
/// The largest number of Replications that are counted for a namespace. Only Replications of
/// namespaces admitted by its grants count.
const COUNTED: usize = 200;

/// The status of a grant that must be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantUpdate {
    /// Namespace of the grant.
    pub namespace: Box<str>,
    /// Name of the grant.
    pub name: Box<str>,
    /// The new content of its status.
    pub standing: Standing,
}

impl Consent {
    /// Records a change of a namespace's grants, or of the Replications that use them.
    pub(crate) fn usage_changed(&mut self, namespace: &str, now: Tick) {
        if let Some(grants) = self.grants.get_mut(namespace) {
            grants.due = grants.due.or(Some(now + COLLECTED));
        }
    }

    /// Records a new, changed or deleted Replication, or a change of the grants to it.
    pub(crate) fn usage_changed_by(&mut self, rule: &Rule, now: Tick) {
        named_targets(rule)
            .chain(read_abroad(rule))
            .for_each(|namespace| self.usage_changed(namespace, now));
    }
}

impl Index {
    /// Returns the namespace with the next turn, and when it is. `None` until the Replications and
    /// grants are known.
    fn next_usage(&self) -> Option<(Tick, &str)> {
        let Consent {
            grants, next_usage, ..
        } = &self.consent;
        let known = self.all_rules_of(RuleKind::Replication) && self.grants_known();
        let due = grants
            .iter()
            .filter_map(|(namespace, grants)| Some((grants.due?, &**namespace)));
        let (due, namespace) = due.min().filter(|_| known)?;
        Some((due.max(*next_usage), namespace))
    }

    /// When `Engine::grant_statuses` may return statuses. `None` until the Replications and
    /// grants are known.
    pub fn grant_statuses_due(&self) -> Option<Tick> {
        self.next_usage().map(|(due, _)| due)
    }

    /// Returns the number of Replications that use each grant of a namespace, by the grants' names.
    fn used(&self, namespace: &str) -> BTreeMap<Box<str>, i32> {
        let mut used: BTreeMap<Box<str>, i32> = BTreeMap::new();
        // Grouped by the namespaces of the Replications: the same grants admit all Replications of
        // one namespace.
        let mut admitting: BTreeMap<&str, Vec<(&str, &Grant)>> = BTreeMap::new();
        let mut counted = 0;
        for id in self.consent.concerned(namespace) {
            let Some(home) = id.namespace.as_deref().filter(|home| *home != namespace) else {
                continue;
            };
            let admitting = admitting.entry(home).or_insert_with(|| {
                let grants = self.admitting(namespace, home);
                grants.map(|(name, grant, _)| (name, grant)).collect()
            });
            let Some(rule) = self.valid(id).filter(|_| !admitting.is_empty()) else {
                continue;
            };
            counted += 1;
            if counted > COUNTED {
                break;
            }
            let using = admitting
                .iter()
                .filter(|(_, grant)| uses(rule, namespace, grant));
            for (name, _) in using {
                *used.entry((*name).into()).or_default() += 1;
            }
        }
        used
    }
}

impl Index {
    /// Returns the statuses of grants that must be written now.
    pub(crate) fn grant_statuses(&mut self) -> Vec<GrantUpdate> {
        let turn = self.next_usage().filter(|(due, _)| *due <= self.now);
        let Some(namespace) = turn.map(|(_, namespace)| Box::<str>::from(namespace)) else {
            return vec![];
        };
        self.consent.next_usage = self.now + PACE;
        let used = self.used(&namespace);
        let used = |name: &str| used.get(name).copied().unwrap_or_default();
        let Some(grants) = self.consent.grants.get_mut(&namespace) else {
            return vec![];
        };
        let updates = grants.status_updates(WRITES, used);
        grants.due = (updates.len() == WRITES).then(|| self.now + COLLECTED);
        let update = |(name, standing)| GrantUpdate {
            namespace: namespace.clone(),
            name,
            standing,
        };
        updates.into_iter().map(update).collect()
    }

    /// Records that a grant's status could not be written.
    pub(crate) fn grant_status_failed(&mut self, namespace: &str, name: &str) {
        if let Some(grants) = self.consent.grants.get_mut(namespace) {
            grants.status_failed(name);
            grants.due = Some(self.now + RETRY);
        }
    }
}

/// True if a Replication reads or writes objects of a granted kind in another namespace. Names do not
/// count.
fn uses(rule: &Rule, namespace: &str, grant: &Grant) -> bool {
    let here = |query: &SourceQuery<'_>| match grant.access {
        Access::Read => query.home() == Some(namespace),
        Access::Write => rule.names(namespace),
    };
    let mut queries = rule.queries().filter(here);
    queries.any(|query| grant.concerns(&query.gvk().group_kind()))
}
