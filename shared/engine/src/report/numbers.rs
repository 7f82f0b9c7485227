//! Numbers for metrics: the objects and the work in progress. None of them names an object, and none
//! causes work while the cluster is idle.

use std::{collections::BTreeMap, sync::Arc};

use mimeo_model::{
    condition::ConditionReason,
    id::{RuleId, RuleKind},
    outcome::FailureReason,
};

use crate::{Effects, Index, SourceState, copy::Phase};

/// The numbers of an engine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Rules, by kind and by the status and reason of their condition Ready. The status is `None`
    /// while it is unknown.
    pub rules: BTreeMap<(RuleKind, Option<bool>, &'static str), usize>,
    /// Rules with a condition Stalled, by kind and reason.
    pub stalled: BTreeMap<(RuleKind, &'static str), usize>,
    /// Copies, by the kind of their rules.
    pub copies: BTreeMap<RuleKind, CopyNumbers>,
    /// Copies with a deletion that is held until a user confirms it, by the kind of their rules.
    /// Every kind has an entry.
    pub held: BTreeMap<RuleKind, usize>,
    /// The copies in the queues.
    pub queued: Queued,
    /// Namespaces with the pending label: their pods wait for the first copies.
    pub waiting: usize,
    /// Live replicas of the webhook.
    pub webhooks: usize,
}

/// The copies of rules, as their statuses count them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyNumbers {
    /// Copies that should exist.
    pub desired: usize,
    /// Copies that exist and are correct.
    pub synced: usize,
    /// Copies that could not be written or deleted, by reason.
    pub failed: BTreeMap<FailureReason, usize>,
}

/// The copies in the queues, in the order in which the queues are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    /// Copies in namespaces whose pods wait for them.
    pub urgent: usize,
    /// Other copies of `ClusterReplication`s.
    pub normal: usize,
    /// Copies of Replications.
    pub tenants: usize,
}

/// The contents of an engine, for the diagnosis of problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// True if all rules and namespaces were seen.
    pub primed: bool,
    /// True if all kinds and sources were seen, too.
    pub informed: bool,
    /// The number of objects of each sort.
    pub counts: BTreeMap<&'static str, usize>,
}

/// The status of a rule, in values that don't depend on the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    /// Status and reason of the condition Ready.
    pub(crate) ready: Option<(bool, ConditionReason)>,
    /// Reason of the condition Stalled.
    pub(crate) stalled: Option<ConditionReason>,
    /// The rule's copies.
    pub(crate) copies: CopyNumbers,
}

impl Numbers {
    /// Returns all numbers. This goes over every rule and namespace, but over no copy. The numbers
    /// of copies are those of the last statuses, which only the leading reconciler has.
    pub(crate) fn of(index: &Index, effects: &Effects) -> Self {
        let mut numbers = Self {
            held: RuleKind::ALL.map(|kind| (kind, 0)).into(),
            queued: effects.work.queued(),
            // A terminating namespace gets no copies, and keeps its pending label.
            waiting: index
                .namespaces
                .values()
                .filter(|entry| entry.alive() && entry.pending_label.is_some())
                .count(),
            webhooks: index.webhooks.seen.len(),
            ..Self::default()
        };
        for (id, pending) in &index.losses.pending {
            if pending.held.is_some() {
                *numbers.held.entry(id.kind).or_default() += pending.collected.len();
            }
        }
        for (id, state) in &index.rules {
            let Reported {
                ready,
                stalled,
                copies,
            } = &state.status.reported;
            let (ready, reason) = ready.map_or((None, "Unknown"), |(ready, reason)| {
                (Some(ready), reason.as_str())
            });
            *numbers.rules.entry((id.kind, ready, reason)).or_default() += 1;
            if let Some(reason) = stalled {
                *numbers
                    .stalled
                    .entry((id.kind, reason.as_str()))
                    .or_default() += 1;
            }
            let all = numbers.copies.entry(id.kind).or_default();
            all.desired += copies.desired;
            all.synced += copies.synced;
            for (reason, count) in &copies.failed {
                *all.failed.entry(*reason).or_default() += count;
            }
        }
        numbers
    }
}

impl Index {
    /// Returns the numbers of copies of the first `most` `ClusterReplication`s, by name, as their
    /// last statuses count them. Tenants can create any number of Replications, so these are left
    /// out.
    pub fn rule_numbers(&self, most: usize) -> Vec<(Arc<RuleId>, CopyNumbers)> {
        let rules = self.cluster_rules();
        rules
            .take(most)
            .map(|(id, state)| (id.clone(), state.status.reported.copies.clone()))
            .collect()
    }
}

impl Inside {
    /// Returns the contents of the engine. This goes over every copy, so it is not for each scrape.
    pub(crate) fn of(index: &Index, effects: &Effects) -> Self {
        let sources =
            |counts: fn(&&SourceState) -> bool| index.sources.values().filter(counts).count();
        let mut counts = BTreeMap::from([
            ("rules", index.rules.len()),
            ("sources", index.sources.len()),
            ("sourcesHeld", sources(|source| source.is_held())),
            ("sourcesMissing", sources(|source| source.is_missing())),
            ("selectors", index.selectors.len()),
            ("projections", index.projections.len()),
            ("kinds", index.kinds.states.len()),
            ("namespaces", index.namespaces.len()),
            ("namespacesToPlan", index.dirty.len()),
            ("pending", index.losses.pending.len()),
            ("jobs", effects.jobs.len()),
            ("timers", effects.work.timers()),
        ]);
        for copy in index
            .namespaces
            .values()
            .flat_map(|namespace| &namespace.copies)
        {
            let phase = match copy.phase {
                Phase::Idle => "copiesIdle",
                Phase::Queued => "copiesQueued",
                Phase::InFlight(_) => "copiesInFlight",
                Phase::Waiting => "copiesWaiting",
            };
            *counts.entry(phase).or_default() += 1;
            *counts.entry("copiesFailed").or_default() += usize::from(copy.failure.is_some());
            *counts.entry("copies").or_default() += usize::from(copy.ours().is_some());
        }
        Self {
            primed: index.primed(),
            informed: index.informed(),
            counts,
        }
    }
}
