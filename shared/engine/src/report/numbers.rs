//! What there is, what is under way and how long things took, in numbers: for metrics. None of them
//! names an object, and none takes work of its own while nothing happens.

use std::{collections::BTreeMap, time::Duration};

use mimeo_model::{condition::ConditionReason, id::RuleKind, outcome::FailureReason};

use crate::{Engine, PerKind, cell::Phase};

/// An engine in numbers, as of now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Rules, by kind and by status and reason of their condition Ready; the status is none as long
    /// as it isn't known.
    pub rules: BTreeMap<(RuleKind, Option<bool>, &'static str), usize>,
    /// Rules with a condition Stalled, by kind and reason.
    pub stalled: BTreeMap<(RuleKind, &'static str), usize>,
    /// Copies, by the kind of their rules.
    pub copies: BTreeMap<RuleKind, CopyNumbers>,
    /// Copies whose deletion is held until a person confirms it, by the kind of their rules; all
    /// kinds are there.
    pub held: BTreeMap<RuleKind, usize>,
    /// What is to be done.
    pub queued: Queued,
    /// Marked namespaces: their pods wait for the first copies.
    pub waiting: usize,
    /// Live replicas of the webhook.
    pub webhooks: usize,
    /// From the moment that a change of a source was seen until a copy had it, by the kind of their
    /// rules; all kinds are there.
    pub copy_lag: BTreeMap<RuleKind, Durations>,
    /// From the moment that this process saw the mark of a namespace until it took the mark off,
    /// because all copies were there.
    pub namespace_lag: Durations,
}

/// Copies of rules, as their statuses count them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyNumbers {
    /// Those that should exist.
    pub desired: usize,
    /// Those that exist and are as they should be.
    pub synced: usize,
    /// Those that could not be written or deleted, by reason.
    pub failed: BTreeMap<FailureReason, usize>,
}

/// Cells that wait for their turn, in the order in which the queues are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    /// Of namespaces that wait for their copies.
    pub urgent: usize,
    /// Other ones of `ClusterReplication`s.
    pub normal: usize,
    /// Those of tenants' rules.
    pub tenants: usize,
}

/// What an engine holds, for whoever looks for what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// Whether rules and namespaces were seen once.
    pub primed: bool,
    /// Whether all that copies are made of was seen, too.
    pub informed: bool,
    /// How many there are of what.
    pub counts: BTreeMap<&'static str, usize>,
}

/// What a rule's status says, in words that don't depend on the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Status and reason of condition Ready.
    pub(crate) ready: Option<(bool, ConditionReason)>,
    /// Reason of condition Stalled.
    pub(crate) stalled: Option<ConditionReason>,
    /// Its copies.
    pub(crate) copies: CopyNumbers,
}

/// How long copies took to come and to change.
#[derive(Debug, Default)]
pub(crate) struct Lags {
    /// From a source's change to each of its copies.
    pub(crate) copies: PerKind<Durations>,
    /// From the mark of a namespace to its removal.
    pub(crate) namespaces: Durations,
}

/// How many things took how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    counts: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

/// From one write to one that waited until somebody came to mend what kept it.
const BOUNDS: [Duration; 15] = [
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_mins(1),
    Duration::from_mins(5),
    Duration::from_mins(30),
];

impl Durations {
    pub(crate) fn record(&mut self, duration: Duration) {
        let at = BOUNDS
            .iter()
            .position(|bound| duration <= *bound)
            .unwrap_or(BOUNDS.len());
        self.counts[at] += 1;
        self.sum += duration;
    }

    /// How many took at most so long, and longer than the bound before; the last has none.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        BOUNDS.into_iter().map(Some).chain([None]).zip(self.counts)
    }

    /// All together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Engine {
    /// All of it in numbers. Takes a look at each rule and namespace, none at a copy: what is said
    /// of copies is what the rules' statuses said last. Only a keeper that leads knows of any.
    pub fn numbers(&self) -> Numbers {
        let mut numbers = Numbers {
            held: RuleKind::ALL.map(|kind| (kind, 0)).into(),
            queued: self.work.queued(),
            // One that goes gets none, and keeps its mark till the end.
            waiting: self
                .namespaces
                .values()
                .filter(|entry| entry.alive() && entry.mark.is_some())
                .count(),
            webhooks: self.webhooks.seen.len(),
            copy_lag: RuleKind::ALL
                .map(|kind| (kind, self.lags.copies[kind].clone()))
                .into(),
            namespace_lag: self.lags.namespaces.clone(),
            ..Numbers::default()
        };
        for (id, sweep) in self.sweeps.iter().filter(|(_, sweep)| sweep.held.is_some()) {
            *numbers.held.entry(id.kind).or_default() += sweep.len();
        }
        for (id, state) in &self.rules {
            let Told {
                ready,
                stalled,
                copies,
            } = state.status.told();
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

impl Engine {
    /// What it holds. Takes a look at every copy: not for each scrape.
    pub fn inside(&self) -> Inside {
        let mut counts = BTreeMap::from([
            ("rules", self.rules.len()),
            ("sources", self.sources.len()),
            (
                "sourcesHeld",
                self.sources
                    .values()
                    .filter(|source| source.is_held())
                    .count(),
            ),
            (
                "sourcesMissing",
                self.sources
                    .values()
                    .filter(|source| source.is_missing())
                    .count(),
            ),
            ("selectors", self.selectors.len()),
            ("slots", self.slots.len()),
            ("kinds", self.kinds.len()),
            ("namespaces", self.namespaces.len()),
            ("namespacesToPlan", self.dirty.len()),
            ("sweeps", self.sweeps.len()),
            ("errands", self.work.errands.len()),
            ("timers", self.work.timers()),
        ]);
        for cell in self
            .namespaces
            .values()
            .flat_map(|namespace| &namespace.cells)
        {
            let phase = match cell.phase {
                Phase::Idle => "cellsIdle",
                Phase::Queued => "cellsQueued",
                Phase::InFlight(_) => "cellsInFlight",
                Phase::Waiting => "cellsWaiting",
            };
            *counts.entry(phase).or_default() += 1;
            *counts.entry("cellsFailed").or_default() += usize::from(cell.failure.is_some());
            *counts.entry("copies").or_default() += usize::from(cell.ours().is_some());
        }
        Inside {
            primed: self.primed(),
            informed: self.informed(),
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
