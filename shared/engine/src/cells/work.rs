//! What is to be done next: the queue, the timers and the back-off.

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
    Engine, Queued, Settings,
    announce::Happening,
    cell::{Belief, Cell, Failing, Phase},
    clock::Tick,
    jobs::{Job, JobKey},
    request::Request,
};

/// Something for the driver to do.
#[derive(Debug)]
pub enum Action {
    /// One request about one cell. Its answer comes back through [`Engine::outcome`].
    Request(Box<Request>),
    /// Anything else. Its answer comes back through [`Engine::answered`].
    Job(Box<Job>),
}

/// A cell that isn't as it should be, told once.
#[derive(Clone, Debug)]
pub struct Notice {
    /// The rule that wants a copy there, or whose copy is there though nobody wants it.
    pub rule: Option<Arc<RuleId>>,
    /// Whether a copy is wanted there.
    pub wanted: bool,
    /// Kind of the copy.
    pub kind: GroupKind,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What is wrong.
    pub failure: Failure,
}

/// So many cells may wait in a queue that keeps its room.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Work {
    urgent: VecDeque<CellRef>,
    normal: VecDeque<CellRef>,
    tenants: Turns,
    timers: BTreeSet<(Tick, Timer)>,
    pub(crate) serial: u32,
    pub(crate) untidy: bool,
    /// Having taken long it isn't done again until then.
    pub(crate) tidy_after: Tick,
}

pub(crate) type CellRef = (Arc<str>, KindId, Arc<str>);

/// Cells of Replications. However many those of one namespace have, the others' come in between.
#[derive(Debug, Default)]
struct Turns {
    waiting: BTreeMap<Box<str>, VecDeque<CellRef>>,
    /// Whose turn was the last.
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
    /// A copy is to be verified, if its rule still says so.
    Resync(Arc<str>, KindId, Arc<str>),
    Namespace(Arc<str>),
    /// The pause of a job that failed is over.
    Job(JobKey),
    /// A slot's cells may be asked again what a good copy looks like.
    Learn(SlotId),
    Rule(Arc<RuleId>),
    Sweep(Arc<RuleId>),
    /// The statuses of all rules.
    Rules,
    Tidy,
    Everything,
}

impl Work {
    /// Queues a cell; `home` is the namespace of its rule, if that lives in one.
    pub(crate) fn queue(
        &mut self,
        namespace: &Arc<str>,
        cell: &Cell,
        urgent: bool,
        home: Option<&str>,
    ) {
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

    /// All has been done. The room that a large fan-out took isn't kept for the next one.
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

    /// Something went: what it needed may not be needed any more.
    pub(crate) fn tidy_later(&mut self) {
        self.untidy = true;
    }

    pub(crate) fn timer(&mut self, due: Tick, timer: Timer) {
        self.timers.insert((due, timer));
    }

    /// Puts a cell off, longer each time.
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
        // Spread over a fifth, by the name: what failed together doesn't come back together.
        let spread =
            u32::try_from(Checksum::of(namespace.as_bytes()).short() % 200).unwrap_or_default();
        self.put_off(namespace, cell, now + delay + delay * spread / 1000);
    }

    /// Puts a cell off until then, whatever it was put off until before: however often the world
    /// changes meanwhile, it has one timer.
    pub(crate) fn put_off(&mut self, namespace: &Arc<str>, cell: &mut Cell, due: Tick) {
        let timer = Timer::Cell(namespace.clone(), cell.kind, cell.name.clone());
        let former = (std::mem::replace(&mut cell.due, due), timer);
        self.timers.remove(&former);
        cell.phase = Phase::Waiting;
        self.timer(due, former.1);
    }

    /// Has a cell verified then, or never, whenever it was to be before.
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

impl Engine {
    /// The next thing to do; none until something happens or [`Engine::wake_at`] comes.
    pub fn next(&mut self, now: Tick) -> Option<Action> {
        self.at(now);
        self.fire();
        loop {
            self.plan();
            if let Some(job) = self.next_job() {
                return Some(Action::Job(Box::new(job)));
            }
            while let Some(cell) = self.work.pop() {
                if let Some(request) = self.request(&cell) {
                    return Some(Action::Request(Box::new(request)));
                }
            }
            // Where the last of what was queued comes to nothing, something may have waited for
            // that.
            if self.dirty.is_empty() {
                break;
            }
        }
        self.work.rest();
        if self.work.untidy {
            if self.now < self.work.tidy_after {
                self.work.timer(self.work.tidy_after, Timer::Tidy);
            } else {
                self.tidy();
                self.work.untidy = false;
            }
        }
        self.next_job().map(Box::new).map(Action::Job)
    }

    /// When to call [`Engine::next`] again even if nothing happens.
    pub fn wake_at(&self) -> Option<Tick> {
        self.work.timers.first().map(|(due, _)| *due)
    }

    pub(crate) fn fire(&mut self) {
        while let Some((due, _)) = self.work.timers.first()
            && *due <= self.now
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
                // No watch shows an object that isn't ours: it may be gone by now, or have come to
                // where a rule of a higher rank kept a copy from being created.
                let barred = cell.belief == Belief::Absent
                    && cell
                        .failure
                        .as_ref()
                        .is_some_and(|failure| failure.failure.reason == FailureReason::Conflict);
                if barred
                    || cell
                        .seen()
                        .is_some_and(|seen| seen.unwatched(self.settings.role))
                {
                    cell.belief = Belief::Unknown;
                }
                self.dirty.insert(namespace);
            }
            Timer::Resync(namespace, kind, name) => {
                let cell = self
                    .namespaces
                    .get(&namespace)
                    .and_then(|entry| entry.cell(kind, &name));
                let due = cell.is_some_and(|cell| self.resync_of(cell).is_some());
                let entry = self.namespaces.get_mut(&namespace);
                if let Some(cell) = entry.and_then(|entry| entry.cell_mut(kind, &name)) {
                    cell.resync = None;
                    cell.verify = due;
                    self.dirty.insert(namespace);
                }
            }
            Timer::Namespace(name) => {
                self.dirty.insert(name);
            }
            Timer::Job(key) => self.resume_job(&key),
            Timer::Learn(id) => self.ask_reference(id),
            Timer::Rule(id) => {
                self.mark_status_due(&id);
                self.replan_rule(&id);
            }
            Timer::Tidy => self.work.tidy_later(),
            Timer::Everything => {
                self.work.tidy_later();
                self.replan_all();
            }
            Timer::Rules => self
                .rules
                .values_mut()
                .for_each(|state| state.status.mark_due()),
            Timer::Sweep(id) => self.end_sweep(&id),
        }
    }

    /// The one rule with which a cell counts. Whatever changes that marks the former one's status
    /// as due; the other's is when the cell is planned.
    pub(crate) fn rule_of(&self, cell: &Cell) -> Option<Arc<RuleId>> {
        self.slots.owner(cell).cloned()
    }

    /// Notes why a cell isn't as it should be. Told once, not with every try.
    pub(crate) fn fail(&mut self, namespace: &Arc<str>, cell: &mut Cell, failure: Failure) {
        let rule = self.rule_of(cell);
        if let Some(rule) = &rule {
            self.mark_status_due(rule);
        }
        if cell
            .failure
            .as_ref()
            .is_none_or(|old| old.failure.reason != failure.reason)
        {
            if let Some(rule) = &rule {
                self.happened(rule, Happening::CopyFailed(failure.reason), namespace, cell);
            }
            self.notices.push(Notice {
                rule,
                wanted: cell.want.is_some(),
                kind: self.kinds[cell.kind].group_kind.clone(),
                namespace: namespace.clone(),
                name: cell.name.clone(),
                failure: failure.clone(),
            });
        }
        let since = cell.failure.as_ref().map_or(self.now, |old| old.since);
        cell.failure = Some(Box::new(Failing { failure, since }));
    }

    /// What went wrong since the last call, for the log: each cell's trouble once.
    pub fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}
