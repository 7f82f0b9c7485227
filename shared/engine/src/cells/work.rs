//! The order of work: the queue, the timers and the back-off.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use mimeo_model::{
    id::{KindId, RuleId, SlotId},
    kind::GroupKind,
    meta::Checksum,
    outcome::Failure,
    outcome::FailureReason,
};

use crate::{
    Engine, Index, Queued, Settings,
    announce::Happening,
    cell::{Cell, Failing, Observation, Phase},
    clock::Tick,
    jobs::{Job, JobKey},
    request::Request,
};

/// One piece of work for the driver.
#[derive(Debug)]
pub enum Action {
    /// One request about one cell. The driver hands its answer to [`Engine::outcome`].
    Request(Box<Request>),
    /// Any other work. The driver hands its answer to [`Engine::answered`].
    Job(Box<Job>),
}

/// A failure of one cell, for the log. A cell reports the same reason only once.
#[derive(Clone, Debug)]
pub struct Notice {
    /// The rule that wants a copy in the cell. If no rule wants one, the rule of the copy that is
    /// there.
    pub rule: Option<Arc<RuleId>>,
    /// True if a rule wants a copy in the cell.
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

/// An empty queue keeps room for this many cells.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Work {
    urgent: VecDeque<CellRef>,
    normal: VecDeque<CellRef>,
    tenants: Turns,
    timers: BTreeSet<(Tick, Timer)>,
    pub(crate) serial: u32,
    pub(crate) untidy: bool,
    /// No tidying before this time, because the last one took long.
    pub(crate) tidy_after: Tick,
}

pub(crate) type CellRef = (Arc<str>, KindId, Arc<str>);

/// The waiting cells of `Replication`s, by the namespace of their rule. The namespaces take turns,
/// so one namespace with many cells cannot delay the others.
#[derive(Debug, Default)]
struct Turns {
    waiting: BTreeMap<Box<str>, VecDeque<CellRef>>,
    /// The namespace that had the last turn.
    last: Box<str>,
}

impl Turns {
    fn push(&mut self, home: &str, cell: CellRef) {
        match self.waiting.get_mut(home) {
            Some(cells) => cells.push_back(cell),
            None => _ = self.waiting.insert(home.into(), [cell].into()),
        }
    }

    fn pop(&mut self) -> Option<CellRef> {
        let after = (Bound::Excluded(&*self.last), Bound::Unbounded);
        let next = self
            .waiting
            .range::<str, _>(after)
            .next()
            .or_else(|| self.waiting.iter().next());
        let home = next?.0.clone();
        let cells = self.waiting.get_mut(&home)?;
        let cell = cells.pop_front();
        if cells.is_empty() {
            self.waiting.remove(&home);
        }
        self.last = home;
        cell
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Cell(Arc<str>, KindId, Arc<str>),
    /// A request must verify a copy, if its rule still has a resync period.
    Resync(Arc<str>, KindId, Arc<str>),
    Namespace(Arc<str>),
    /// The pause of a failed job is over.
    Job(JobKey),
    /// The answer to this job may be out of date.
    Expired(JobKey),
    /// A cell of this slot may ask again, with a dry run, how a good copy looks.
    Learn(SlotId),
    Rule(Arc<RuleId>),
    PendingDeletion(Arc<RuleId>),
    /// The statuses of all rules are due.
    Rules,
    Tidy,
    Everything,
}

impl Work {
    /// Queues a cell. `home` is the namespace of its rule, if the rule is a `Replication`.
    pub(crate) fn queue(
        &mut self,
        namespace: &Arc<str>,
        cell: &mut Cell,
        urgent: bool,
        home: Option<&str>,
    ) {
        if std::mem::replace(&mut cell.in_queue, true) {
            return;
        }
        let queued = (namespace.clone(), cell.kind, cell.name.clone());
        match home {
            Some(home) => self.tenants.push(home, queued),
            None if urgent => self.urgent.push_back(queued),
            None => self.normal.push_back(queued),
        }
        self.untidy = true;
    }

    fn pop(&mut self) -> Option<CellRef> {
        self.urgent
            .pop_front()
            .or_else(|| self.normal.pop_front())
            .or_else(|| self.tenants.pop())
    }

    /// The queue is empty. Gives the memory of a large fan-out back instead of keeping it for the
    /// next one.
    fn rest(&mut self) {
        self.urgent.shrink_to(FEW);
        self.normal.shrink_to(FEW);
    }

    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    pub(crate) fn queued(&self) -> Queued {
        let tenants = self.tenants.waiting.values().map(VecDeque::len).sum();
        Queued {
            urgent: self.urgent.len(),
            normal: self.normal.len(),
            tenants,
        }
    }

    /// Something has disappeared. The next tidying removes the state that only it needed.
    pub(crate) fn tidy_later(&mut self) {
        self.untidy = true;
    }

    pub(crate) fn timer(&mut self, due: Tick, timer: Timer) {
        self.timers.insert((due, timer));
    }

    /// Delays the next request about a cell. The delay doubles with each failure in a row.
    pub(crate) fn back_off(
        &mut self,
        namespace: &Arc<str>,
        cell: &mut Cell,
        at_least: Option<Duration>,
        now: Tick,
        settings: &Settings,
    ) {
        let delay = delay(settings, cell.streak).max(at_least.unwrap_or_default());
        cell.streak = cell.streak.saturating_add(1);
        // The delay is up to a fifth longer, depending on the name of the namespace. So cells that
        // failed together don't all retry at the same time.
        let spread =
            u32::try_from(Checksum::of(namespace.as_bytes()).short() % 200).unwrap_or_default();
        self.put_off(namespace, cell, now + delay + delay * spread / 1000);
    }

    /// Delays the next request about a cell to this time, which replaces any former time. So a cell
    /// has at most one such timer, however often the cluster changes meanwhile.
    pub(crate) fn put_off(&mut self, namespace: &Arc<str>, cell: &mut Cell, due: Tick) {
        let timer = Timer::Cell(namespace.clone(), cell.kind, cell.name.clone());
        let former = (std::mem::replace(&mut cell.due, due), timer);
        self.timers.remove(&former);
        cell.phase = Phase::Waiting;
        self.timer(due, former.1);
    }

    /// Sets the time at which a copy must be verified, or `None` for never. It replaces any former
    /// time.
    pub(crate) fn remind(&mut self, namespace: &Arc<str>, cell: &mut Cell, due: Option<Tick>) {
        let former = std::mem::replace(&mut cell.resync, due);
        if former == due {
            return;
        }
        let timer = Timer::Resync(namespace.clone(), cell.kind, cell.name.clone());
        if let Some(former) = former {
            self.timers.remove(&(former, timer.clone()));
        }
        if let Some(due) = due {
            self.timer(due, timer);
        }
    }
}

pub(crate) fn delay(settings: &Settings, streak: u8) -> Duration {
    settings
        .backoff
        .saturating_mul(1 << u32::from(streak.min(20)))
        .min(settings.backoff_limit)
}

impl Index {
    /// Returns the one rule whose numbers include this cell. Code that changes this rule marks the
    /// former rule's status as due. The plan of the cell marks the new rule's status.
    pub(crate) fn rule_of(&self, cell: &Cell) -> Option<Arc<RuleId>> {
        self.slots.owner(cell).cloned()
    }
}

impl Engine {
    /// Returns the next work. `None`: there is none until an event arrives or [`Engine::wake_at`]
    /// is reached.
    pub fn next(&mut self, now: Tick) -> Option<Action> {
        self.index.at(now);
        self.fire();
        self.plan();
        if let Some(job) = self.next_job() {
            return Some(Action::Job(Box::new(job)));
        }
        while let Some(cell) = self.work.pop() {
            if let Some(request) = self.request(&cell) {
                return Some(Action::Request(Box::new(request)));
            }
        }
        self.work.rest();
        if self.work.untidy {
            if self.index.now < self.work.tidy_after {
                self.work.timer(self.work.tidy_after, Timer::Tidy);
            } else {
                self.tidy();
                self.work.untidy = false;
            }
        }
        self.next_job().map(Box::new).map(Action::Job)
    }

    /// Returns when to call [`Engine::next`] again even if no event arrives.
    pub fn wake_at(&self) -> Option<Tick> {
        self.work.timers.first().map(|(due, _)| *due)
    }

    pub(crate) fn fire(&mut self) {
        while let Some((due, _)) = self.work.timers.first()
            && *due <= self.index.now
        {
            let Some((_, timer)) = self.work.timers.pop_first() else {
                return;
            };
            self.go_off(timer);
        }
    }

    fn go_off(&mut self, timer: Timer) {
        match timer {
            Timer::Cell(namespace, kind, name) => {
                let Some(cell) = self
                    .index
                    .namespaces
                    .get_mut(&namespace)
                    .and_then(|entry| entry.cell_mut(kind, &name))
                else {
                    return;
                };
                if cell.phase != Phase::Waiting {
                    return;
                }
                cell.phase = Phase::Idle;
                // No watch shows an object that isn't Mimeo's own. So an object that conflicted may
                // be gone by now. And an object may exist by now where a rule of a higher rank kept
                // a copy from being created. A read must tell.
                let barred = cell.observed == Observation::Absent
                    && cell
                        .failure
                        .as_ref()
                        .is_some_and(|failure| failure.failure.reason == FailureReason::Conflict);
                if barred
                    || cell
                        .seen()
                        .is_some_and(|seen| seen.unwatched(self.index.settings.role))
                {
                    cell.observed = Observation::Unknown;
                }
                self.index.dirty.insert(namespace);
            }
            Timer::Resync(namespace, kind, name) => {
                let cell = self
                    .index
                    .namespaces
                    .get(&namespace)
                    .and_then(|entry| entry.cell(kind, &name));
                let due = cell.is_some_and(|cell| self.index.resync_of(cell).is_some());
                let entry = self.index.namespaces.get_mut(&namespace);
                if let Some(cell) = entry.and_then(|entry| entry.cell_mut(kind, &name)) {
                    cell.resync = None;
                    cell.verify = due;
                    self.index.dirty.insert(namespace);
                }
            }
            Timer::Namespace(name) => {
                self.index.dirty.insert(name);
            }
            Timer::Job(key) => self.resume_job(&key),
            Timer::Expired(key) => self.index.expire(&key),
            Timer::Learn(id) => self.index.ask_reference(id),
            Timer::Rule(id) => {
                self.index.mark_status_due(&id);
                self.index.replan_rule(&id);
            }
            Timer::Tidy => self.work.tidy_later(),
            Timer::Everything => {
                self.work.tidy_later();
                self.index.replan_all();
            }
            Timer::Rules => self
                .index
                .rules
                .values_mut()
                .for_each(|state| state.status.mark_due()),
            Timer::PendingDeletion(id) => self.end_collecting(&id),
        }
    }

    /// Records the failure of a cell. A notice and an Event report it when its reason is new, not
    /// with every retry.
    pub(crate) fn fail(&mut self, namespace: &Arc<str>, cell: &mut Cell, failure: Failure) {
        let rule = self.index.rule_of(cell);
        if let Some(rule) = &rule {
            self.index.mark_status_due(rule);
        }
        if cell
            .failure
            .as_ref()
            .is_none_or(|old| old.failure.reason != failure.reason)
        {
            if let Some(rule) = &rule {
                self.happened(rule, Happening::CopyFailed(failure.reason), namespace, cell);
            }
            self.report.notices.push(Notice {
                rule,
                wanted: cell.want.is_some(),
                kind: self.index.kinds[cell.kind].group_kind.clone(),
                namespace: namespace.clone(),
                name: cell.name.clone(),
                failure: failure.clone(),
            });
        }
        let since = cell
            .failure
            .as_ref()
            .map_or(self.index.now, |old| old.since);
        cell.failure = Some(Box::new(Failing { failure, since }));
    }

    /// Returns the failures since the last call, for the log. A cell reports the same reason only
    /// once.
    pub fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.report.notices)
    }
}
