//! The order of work: the queue, the timers and the back-off.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    num::NonZeroU64,
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use mimeo_model::{
    id::{ProjectionId, RuleId, RuleKind},
    kind::GroupKind,
    meta::Checksum,
    outcome::{Failure, FailureReason},
};

use crate::{
    Effects, Index, Queued, Settings,
    clock::Tick,
    copy::{CopyKey, CopyState, Failing, Observation, Phase},
    events::EventReason,
    jobs::{Job, JobKey},
    request::Request,
};

/// One piece of work for the driver.
#[derive(Debug)]
pub enum Action {
    /// One request about one copy. The driver hands its answer to `Engine::outcome`.
    Request(Box<Request>),
    /// Any other work. The driver hands its answer to `Engine::answered`.
    Job(Box<Job>),
}

/// Something that the caller logs or measures.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A copy failed.
    Failed(FailedCopy),
    /// The deletion of copies is held whose rule no longer exists. The rule has no status to show
    /// that.
    Held {
        /// The rule.
        rule: Arc<RuleId>,
        /// The number of copies.
        copies: usize,
        /// The value that a user must repeat to confirm the deletion.
        nonce: Box<str>,
    },
    /// A copy was written after its source changed.
    CopyLag {
        /// The kind of the rule.
        kind: RuleKind,
        /// The time since this process saw the change.
        lag: Duration,
    },
    /// The pending label of a namespace was removed, because all copies exist. The value is the time
    /// since this process saw the label.
    NamespaceLag(Duration),
}

/// A failure of one copy. A copy reports the same reason only once.
#[derive(Clone, Debug)]
pub struct FailedCopy {
    /// The rule that wants the copy. If no rule wants it, the rule of the copy that is
    /// there.
    pub rule: Option<Arc<RuleId>>,
    /// True if a rule wants the copy.
    pub wanted: bool,
    /// Kind of the copy.
    pub kind: GroupKind,
    /// Namespace of the copy.
    pub namespace: Arc<str>,
    /// Name of the copy.
    pub name: Arc<str>,
    /// The failure.
    pub failure: Failure,
}

#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The copies that wait for their requests. No queue is empty.
    waiting: BTreeMap<Queue, VecDeque<CopyKey>>,
    /// The tenants' queue that had the last turn.
    last: Queue,
    timers: BTreeSet<(Tick, Timer)>,
    pub(crate) serial: u32,
    /// True if something may have disappeared. The next tidying removes the state that only it
    /// needed.
    pub(crate) untidy: bool,
    /// No tidying before this time, because the last one took long.
    pub(crate) tidy_after: Tick,
}

/// A queue of copies. The first queue with copies is served first.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Queue {
    /// Copies in namespaces whose pods wait for them.
    #[default]
    Urgent,
    /// Other copies of `ClusterReplication`s.
    Normal,
    /// Copies of the `Replication`s of a namespace. These queues take turns, so one namespace with
    /// many copies cannot delay the others.
    Tenants(Box<str>),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Copy(CopyKey),
    /// A request must verify a copy.
    Resync(CopyKey),
    Namespace(Arc<str>),
    /// The pause of a failed job is over.
    Job(JobKey),
    /// The answer to this job may be out of date.
    Expired(JobKey),
    /// A copy of this projection may ask again, with a dry run, how a good copy looks.
    Learn(ProjectionId),
    Rule(Arc<RuleId>),
    PendingDeletion(Arc<RuleId>),
    /// The statuses of all rules are due.
    Rules,
    Tidy,
}

impl Work {
    /// Queues a copy. `home` is the namespace of its rule, if the rule is a `Replication`.
    pub(crate) fn queue(
        &mut self,
        namespace: &Arc<str>,
        copy: &mut CopyState,
        urgent: bool,
        home: Option<&str>,
    ) {
        if std::mem::replace(&mut copy.in_queue, true) {
            return;
        }
        let queue = match home {
            Some(home) => Queue::Tenants(home.into()),
            None if urgent => Queue::Urgent,
            None => Queue::Normal,
        };
        let waiting = self.waiting.entry(queue).or_default();
        waiting.push_back(copy.key(namespace));
        self.untidy = true;
    }

    pub(crate) fn pop(&mut self) -> Option<CopyKey> {
        let (first, _) = self.waiting.first_key_value()?;
        let mut queue = first.clone();
        if let Queue::Tenants(_) = first {
            let after = (Bound::Excluded(&self.last), Bound::Unbounded);
            if let Some((next, _)) = self.waiting.range::<Queue, _>(after).next() {
                queue = next.clone();
            }
            self.last = queue.clone();
        }
        let copies = self.waiting.get_mut(&queue)?;
        let copy = copies.pop_front();
        if copies.is_empty() {
            self.waiting.remove(&queue);
        }
        copy
    }

    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    pub(crate) fn queued(&self) -> Queued {
        let mut queued = Queued::default();
        for (queue, copies) in &self.waiting {
            let count = match queue {
                Queue::Urgent => &mut queued.urgent,
                Queue::Normal => &mut queued.normal,
                Queue::Tenants(_) => &mut queued.tenants,
            };
            *count += copies.len();
        }
        queued
    }

    /// When the first timer is due.
    pub(crate) fn wake_at(&self) -> Option<Tick> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Takes the next timer that is due.
    pub(crate) fn pop_timer(&mut self, now: Tick) -> Option<Timer> {
        self.wake_at().filter(|due| *due <= now)?;
        self.timers.pop_first().map(|(_, timer)| timer)
    }

    pub(crate) fn timer(&mut self, due: Tick, timer: Timer) {
        self.timers.insert((due, timer));
    }

    /// Delays the next request about a copy. The delay doubles with each failure in a row.
    pub(crate) fn back_off(
        &mut self,
        namespace: &Arc<str>,
        copy: &mut CopyState,
        at_least: Option<Duration>,
        index: &Index,
    ) {
        let delay = delay(&index.settings, copy.streak).max(at_least.unwrap_or_default());
        copy.streak = copy.streak.saturating_add(1);
        // The delay is up to a fifth longer, depending on the name of the namespace. So copies that
        // failed together don't all retry at the same time.
        let spread =
            u32::try_from(Checksum::of(namespace.as_bytes()).short() % 200).unwrap_or_default();
        self.put_off(namespace, copy, index.now + delay + delay * spread / 1000);
    }

    /// Delays the next request about a copy to this time, which replaces any former time. So a copy
    /// has at most one such timer, however often the cluster changes meanwhile.
    pub(crate) fn put_off(&mut self, namespace: &Arc<str>, copy: &mut CopyState, due: Tick) {
        let timer = Timer::Copy(copy.key(namespace));
        let former = (std::mem::replace(&mut copy.due, due), timer);
        self.timers.remove(&former);
        copy.phase = Phase::Waiting;
        self.timer(due, former.1);
    }

    /// Sets the time at which a copy must be verified, in milliseconds, or `None` for never. It
    /// replaces any former time.
    pub(crate) fn remind(
        &mut self,
        namespace: &Arc<str>,
        copy: &mut CopyState,
        due: Option<NonZeroU64>,
    ) {
        let former = std::mem::replace(&mut copy.resync, due);
        if former == due {
            return;
        }
        let timer = |due: NonZeroU64| {
            let timer = Timer::Resync(copy.key(namespace));
            (Duration::from_millis(due.get()), timer)
        };
        if let Some(former) = former {
            self.timers.remove(&timer(former));
        }
        self.timers.extend(due.map(timer));
    }
}

pub(crate) fn delay(settings: &Settings, streak: u8) -> Duration {
    settings
        .backoff
        .saturating_mul(1 << u32::from(streak.min(20)))
        .min(settings.backoff_limit)
}

impl Index {
    /// Returns the one rule whose numbers include this copy. Code that changes this rule marks the
    /// former rule's status as due. The plan of the copy marks the new rule's status.
    pub(crate) fn rule_of(&self, copy: &CopyState) -> Option<Arc<RuleId>> {
        self.projections.owner(copy).cloned()
    }
}

impl Index {
    pub(crate) fn go_off(&mut self, timer: Timer, effects: &mut Effects) {
        match timer {
            Timer::Copy(key) => {
                let keeps = self.settings.keeps_copies();
                let copy = self.copy_mut(&key);
                let Some(copy) = copy.filter(|copy| copy.phase == Phase::Waiting) else {
                    return;
                };
                copy.phase = Phase::Idle;
                // No watch shows an object that isn't Mimeo's own. So an object that conflicted may
                // be gone by now. And an object may exist by now where a rule of a higher rank kept
                // a copy from being created. A read must tell.
                let barred = copy.observed == Observation::Absent
                    && copy.failed() == Some(FailureReason::Conflict);
                if barred || copy.seen().is_some_and(|seen| seen.unwatched(keeps)) {
                    copy.observed = Observation::Unknown;
                }
                self.dirty.insert(key.0);
            }
            Timer::Resync(key) => {
                // If the rule has another period by now, the next plan assigns the copy anew, which
                // clears `verify`.
                if let Some(copy) = self.copy_mut(&key) {
                    copy.resync = None;
                    copy.verify = true;
                    self.dirty.insert(key.0);
                }
            }
            Timer::Namespace(name) => _ = self.dirty.insert(name),
            Timer::Job(key) => effects.jobs.resume(&key, self.now),
            Timer::Expired(key) => self.expire(&key),
            Timer::Learn(id) => self.ask_reference(id),
            Timer::Rule(id) => {
                self.mark_status_due(&id);
                self.replan_rule(&id);
            }
            Timer::Tidy => effects.work.untidy = true,
            Timer::Rules => self.mark_all_statuses_due(),
            Timer::PendingDeletion(id) => self.end_collecting(&id, effects),
        }
    }

    /// Records the failure of a copy. A notice and an Event report it when its reason is new, not
    /// with every retry.
    pub(crate) fn fail(
        &mut self,
        namespace: &Arc<str>,
        copy: &mut CopyState,
        failure: Failure,
        effects: &mut Effects,
    ) {
        let rule = self.rule_of(copy);
        self.mark_status_of(copy);
        if copy.failed() != Some(failure.reason) {
            if let Some(rule) = &rule {
                let cause = EventReason::CopyFailed(failure.reason);
                let copy = (copy.key(namespace), None);
                effects.events.add(rule, cause, Some(copy), self);
            }
            effects.notices.push(Notice::Failed(FailedCopy {
                rule,
                wanted: copy.want.is_some(),
                kind: self.kinds[copy.kind].group_kind.clone(),
                namespace: namespace.clone(),
                name: copy.name.clone(),
                failure: failure.clone(),
            }));
        }
        let old = copy.failure.as_deref();
        let since = old.map_or(self.now, |old| old.since);
        let seen = copy.seen().map(|seen| seen.uid);
        let object = seen.or(old.and_then(|old| old.object));
        copy.failure = Some(Box::new(Failing {
            failure,
            since,
            object,
        }));
    }
}
