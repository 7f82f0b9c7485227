//! The statuses of grants: whether each counts, and how many Replications use it.
//!
//! One namespace at a time has its turn, a moment after the first change there. So tenants with
//! many rules and grants cost no more than one count a second.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use mimeo_api::Access;

use mimeo_model::{
    grant::{Effect, Grant, RefusedGrant, Standing},
    id::{RuleId, RuleKind},
    kind::GroupKind,
    rule::Rule,
    source::SourceRef,
};

use crate::{
    Effects, Index, RuleState,
    clock::Tick,
    consent::{Consent, named_targets},
    grants::Grants,
    missing_grants::copy_name,
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

/// Namespaces with grants that may need new statuses.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Each namespace with the earliest time of its turn. Only namespaces with grants are here.
    due: BTreeMap<Box<str>, Tick>,
    next_turn: Tick,
    /// Grants that are refused, by namespace and name. No namespace without any.
    refused: BTreeMap<Box<str>, BTreeMap<Box<str>, RefusedGrant>>,
}

impl Usage {
    /// Removes a namespace that has no grants any more, except refused ones.
    pub(crate) fn forget(&mut self, namespace: &str) {
        if !self.refused.contains_key(namespace) {
            self.due.remove(namespace);
        }
    }

    /// The grant isn't refused any more.
    pub(crate) fn forget_refused(&mut self, namespace: &str, name: &str) {
        if let Some(refused) = self.refused.get_mut(namespace) {
            refused.remove(name);
            if refused.is_empty() {
                self.refused.remove(namespace);
            }
        }
    }

    /// Namespace and name of each grant that is refused.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (Box<str>, Box<str>)> {
        self.refused.iter().flat_map(|(namespace, refused)| {
            refused.keys().map(|name| (namespace.clone(), name.clone()))
        })
    }

    /// Up to `most` statuses of refused grants that have to be written, by the grants' names. They
    /// count as written from now on.
    fn refused_updates(&mut self, namespace: &str, most: usize) -> Vec<(Box<str>, Standing)> {
        let Some(refused) = self.refused.get_mut(namespace) else {
            return vec![];
        };
        let updates = refused.iter_mut().filter_map(|(name, grant)| {
            let standing = Standing {
                generation: grant.generation,
                effect: Effect::Invalid,
                replications: 0,
            };
            (grant.status.replace(standing) != Some(standing)).then(|| (name.clone(), standing))
        });
        updates.take(most).collect()
    }

    /// Returns the namespace with the next turn, and when it is.
    fn first(&self) -> Option<(Tick, &str)> {
        let (namespace, due) = self.due.iter().min_by_key(|(_, due)| **due)?;
        Some(((*due).max(self.next_turn), namespace))
    }
}

impl Consent {
    /// Records a change of a namespace's grants, or of the Replications that use them.
    pub(crate) fn usage_changed(&mut self, namespace: &str, now: Tick) {
        let has_grants =
            self.grants.contains_key(namespace) || self.usage.refused.contains_key(namespace);
        if has_grants && !self.usage.due.contains_key(namespace) {
            self.usage.due.insert(namespace.into(), now + COLLECTED);
        }
    }

    /// Records a new, changed or deleted Replication, or a change of the grants to it.
    pub(crate) fn usage_changed_by(&mut self, rule: &Rule, now: Tick) {
        if rule.id.kind == RuleKind::Replication {
            let sources = rule.sources.iter().filter_map(SourceRef::home);
            let selectors = rule.selectors.iter().map(|selector| &*selector.namespace);
            named_targets(rule)
                .chain(sources)
                .chain(selectors)
                .for_each(|namespace| self.usage_changed(namespace, now));
        }
    }
}

impl Index {
    /// Up to `most` statuses of a namespace's valid grants that have to be written, by the grants'
    /// names.
    fn counting_updates(&mut self, namespace: &str, most: usize) -> Vec<(Box<str>, Standing)> {
        // While a grant is being read, its Replications are unknown. The answer to the read gives
        // the namespace another turn.
        if self
            .consent
            .grants
            .get(namespace)
            .is_none_or(Grants::awaits_some)
            || most == 0
        {
            return vec![];
        }
        let used = self.used(namespace);
        let Some(grants) = self.consent.grants.get_mut(namespace) else {
            return vec![];
        };
        grants.status_updates(most, |name| used.get(name).copied().unwrap_or_default())
    }

    /// When `Engine::grant_statuses` may return statuses. `None` until the Replications and
    /// grants are known.
    pub fn grant_statuses_due(&self) -> Option<Tick> {
        let known = self.all_rules_of(RuleKind::Replication) && self.grants_known();
        self.consent
            .usage
            .first()
            .filter(|_| known)
            .map(|(due, _)| due)
    }

    /// Returns the number of Replications that use each grant of a namespace, by the grants' names.
    fn used(&self, namespace: &str) -> BTreeMap<Box<str>, i32> {
        let mut used: BTreeMap<Box<str>, i32> = BTreeMap::new();
        let Some(grants) = self.consent.grants.get(namespace) else {
            return used;
        };
        // Grouped by the namespaces of the Replications: the same grants admit all Replications of
        // one namespace.
        let mut admitting: BTreeMap<&str, Vec<(&str, &Grant)>> = BTreeMap::new();
        let mut counted = 0;
        for id in self.concerned(namespace) {
            let Some(home) = id.namespace.as_deref().filter(|home| *home != namespace) else {
                continue;
            };
            let admitting = admitting.entry(home).or_insert_with(|| {
                let Some(entry) = self
                    .namespaces
                    .get(home)
                    .filter(|entry| entry.uid.is_some())
                else {
                    return vec![];
                };
                let admits =
                    |(_, grant): &(&str, &Grant)| grant.admits(grant.access, home, &entry.labels);
                grants.counting_by_name().filter(admits).collect()
            });
            let Some(rule) = self
                .rules
                .get(id)
                .and_then(RuleState::valid)
                .filter(|_| !admitting.is_empty())
            else {
                continue;
            };
            counted += 1;
            if counted > COUNTED {
                break;
            }
            let wishes = Wishes::of(rule, namespace);
            for (name, _) in admitting
                .iter()
                .filter(|(_, grant)| wishes.are_covered_by(grant))
            {
                *used.entry((*name).into()).or_default() += 1;
            }
        }
        used
    }

    /// The Replications with sources or targets in a namespace.
    fn concerned(&self, namespace: &str) -> BTreeSet<&Arc<RuleId>> {
        let Consent {
            targeting,
            selecting,
            readers,
            ..
        } = &self.consent;
        let readers = readers
            .get(namespace)
            .into_iter()
            .flatten()
            .filter_map(|id| self.projections.get(id));
        let indices = [targeting, selecting]
            .into_iter()
            .filter_map(|index| index.get(namespace))
            .flatten();
        indices
            .chain(readers.map(|projection| &projection.rule))
            .collect()
    }
}

impl Index {
    /// A grant is refused: it grants nothing, and its status says why.
    pub(crate) fn grant_refused(
        &mut self,
        namespace: &str,
        name: &str,
        refused: RefusedGrant,
        effects: &mut Effects,
    ) {
        self.grant_gone(namespace, name, effects);
        let of_namespace = self.consent.usage.refused.entry(namespace.into());
        of_namespace.or_default().insert(name.into(), refused);
        self.consent.usage_changed(namespace, self.now);
    }

    /// Returns the statuses of grants that must be written now.
    pub(crate) fn grant_statuses(&mut self) -> Vec<GrantUpdate> {
        if self.grant_statuses_due().is_none_or(|due| due > self.now) {
            return vec![];
        }
        let Some(namespace) = self
            .consent
            .usage
            .first()
            .map(|(_, namespace)| Box::<str>::from(namespace))
        else {
            return vec![];
        };
        self.consent.usage.next_turn = self.now + PACE;
        self.consent.usage.due.remove(&namespace);
        let mut updates = self.consent.usage.refused_updates(&namespace, WRITES);
        updates.extend(self.counting_updates(&namespace, WRITES - updates.len()));
        if updates.len() == WRITES {
            self.consent.usage_changed(&namespace, self.now);
        }
        let update = |(name, standing)| GrantUpdate {
            namespace: namespace.clone(),
            name,
            standing,
        };
        updates.into_iter().map(update).collect()
    }

    /// Records that a grant's status could not be written.
    pub(crate) fn grant_status_failed(&mut self, namespace: &str, name: &str) {
        let Consent { grants, usage, .. } = &mut self.consent;
        let refused = usage
            .refused
            .get_mut(namespace)
            .and_then(|refused| refused.get_mut(name));
        let known = match (refused, grants.get_mut(namespace)) {
            (Some(refused), _) => {
                refused.status = None;
                true
            }
            (None, Some(grants)) => {
                grants.status_failed(name);
                true
            }
            (None, None) => false,
        };
        if known {
            usage.due.insert(namespace.into(), self.now + RETRY);
        }
    }
}

/// The objects of another namespace that a Replication needs a grant for.
struct Wishes {
    /// Named sources.
    reads: Vec<(GroupKind, Box<str>)>,
    /// Kinds of selectors.
    selects: Vec<GroupKind>,
    /// Copies of named sources.
    writes: Vec<(GroupKind, String)>,
    /// Kinds of copies of selected sources.
    writes_found: Vec<GroupKind>,
}

impl Wishes {
    fn of(rule: &Rule, namespace: &str) -> Self {
        let sources = rule
            .sources
            .iter()
            .filter(|source| source.home() == Some(namespace));
        let selectors = rule.selectors.iter();
        let targets = || {
            rule.targets
                .iter()
                .filter(|target| target.selection.names(namespace))
        };
        let copies = |source: &SourceRef| -> Vec<(GroupKind, String)> {
            let names = targets().map(|target| copy_name(target, source, namespace));
            names.map(|name| (source.gvk.group_kind(), name)).collect()
        };
        let found = rule.selectors.iter().filter(|_| targets().next().is_some());
        Self {
            reads: sources
                .map(|source| (source.gvk.group_kind(), source.name.clone()))
                .collect(),
            selects: selectors
                .filter(|one| &*one.namespace == namespace)
                .map(|one| one.gvk.group_kind())
                .collect(),
            writes: rule.sources.iter().flat_map(copies).collect(),
            writes_found: found.map(|selector| selector.gvk.group_kind()).collect(),
        }
    }

    /// True if the grant covers at least one of these objects.
    fn are_covered_by(&self, grant: &Grant) -> bool {
        match grant.access {
            Access::Read => {
                self.reads
                    .iter()
                    .any(|(kind, name)| grant.covers(kind, name))
                    || self.selects.iter().any(|kind| grant.covers_any(kind))
            }
            Access::Write => {
                self.writes
                    .iter()
                    .any(|(kind, name)| grant.covers(kind, name))
                    || self.writes_found.iter().any(|kind| grant.concerns(kind))
            }
        }
    }
}
