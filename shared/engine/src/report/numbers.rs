//! Numbers for metrics: the objects, the work in progress and the durations. None of them names an
//! object, and none causes work while the cluster is idle.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mimeo_model::{
    condition::ConditionReason,
    id::{RuleId, RuleKind},
    outcome::FailureReason,
};

use crate::{Effects, Index, copy::Phase};

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
    /// The time from a source's change, as seen by this process, until a copy had it, by the kind
    /// of the rule. Every kind has an entry.
    pub copy_lag: BTreeMap<RuleKind, Durations>,
    /// The time from this process seeing the pending label of a namespace until it removed the
    /// label. It removes the label when all copies exist.
    pub namespace_lag: Durations,
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

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    counts: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

/// The bounds in milliseconds. They reach from the duration of one write to that of a wait until a
/// person fixes a problem.
const BOUNDS: [u64; 15] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000,
];

impl Durations {
    pub(crate) fn record(&mut self, duration: Duration) {
        let at = BOUNDS
            .iter()
            .position(|bound| duration <= Duration::from_millis(*bound))
            .unwrap_or(BOUNDS.len());
        self.counts[at] += 1;
        self.sum += duration;
    }

    /// Returns the number of durations for each bound: at most this bound, and longer than the one
    /// before. The last bucket has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bounds = BOUNDS.map(|bound| Some(Duration::from_millis(bound)));
        bounds.into_iter().chain([None]).zip(self.counts)
    }

    /// The sum of all durations.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Numbers {
    /// Returns all numbers. This goes over every rule and namespace, but over no copy. The numbers
    /// of copies are those of the last statuses, which only the leading reconciler has.
    pub(crate) fn of(index: &Index, effects: &Effects) -> Self {
        let lag = |kind: RuleKind| effects.copy_lag.get(&kind).cloned().unwrap_or_default();
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
            copy_lag: RuleKind::ALL.map(|kind| (kind, lag(kind))).into(),
            namespace_lag: effects.namespace_lag.clone(),
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
        let mut counts = BTreeMap::from([
            ("rules", index.rules.len()),
            ("sources", index.sources.len()),
            (
                "sourcesHeld",
                index
                    .sources
                    .values()
                    .filter(|source| source.is_held())
                    .count(),
            ),
            (
                "sourcesMissing",
                index
                    .sources
                    .values()
                    .filter(|source| source.is_missing())
                    .count(),
            ),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_once_in_the_first_bucket_that_holds_it() {
        let mut durations = Durations::default();
        let ms = Duration::from_millis;
        for duration in [ms(0), ms(5), ms(6), Duration::from_hours(1)] {
            durations.record(duration);
        }
        let filled: Vec<_> = durations
            .buckets()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(filled, [(Some(ms(5)), 2), (Some(ms(10)), 1), (None, 1)]);
        assert_eq!(
            (durations.count(), durations.sum()),
            (4, Duration::from_hours(1) + ms(11))
        );
        assert!(BOUNDS.is_sorted());
    }
}
