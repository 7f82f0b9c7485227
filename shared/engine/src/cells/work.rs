//! What is to be done next: the queue, the timers and the back-off.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use mimeo_model::{
    id::{KindId, RuleId, RuleKind, SlotId},
    kind::{GroupKind, GroupVersionKind},
    meta::Checksum,
    outcome::Failure,
    outcome::FailureReason,
    seeds::Seeds,
    source::SourceRef,
};

use crate::{
    Engine, Queued, Settings,
    announce::Happening,
    cell::{Belief, Cell, Failing, Phase},
    clock::Tick,
    kinds::Note,
    request::Request,
};

/// Something for the driver to do.
#[derive(Debug)]
pub enum Action {
    /// One request about one cell. Its answer comes back through [`Engine::outcome`].
    Request(Box<Request>),
    /// Anything else.
    Errand(Errand),
}

/// Something to do that is about no cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Note in the kinds `ConfigMap` that copies of this kind may exist. The `ConfigMap`'s watch
    /// tells when it is done.
    Record(GroupVersionKind),
    /// Remove the note, unless there are copies in one of these namespaces (none named: in any);
    /// answer by [`Engine::unrecorded`].
    Unrecord(GroupKind, Vec<Option<Box<str>>>),
    /// Note the uid of the CRD of these rules.
    RecordCrd(RuleKind, Box<str>),
    /// Read a rule and its CRD; answer by [`Engine::rule_read`].
    ConfirmRule(RuleId),
    /// Read a source and its namespace; answer by [`Engine::source_read`].
    ConfirmSource(SourceRef),
    /// Read which grants a namespace has, itself and their CRD; answer by [`Engine::grants_read`].
    ConfirmGrants(Box<str>),
    /// Read a source that a selector finds; answer by [`Engine::source`].
    ReadSource(SourceRef),
    /// Read a grant; answer by [`Engine::grant_read`].
    ReadGrant {
        /// Its namespace.
        namespace: Box<str>,
        /// Its name.
        name: Box<str>,
    },
    /// Write down in a namespace, if it is still of this version, what was created in it once; tell
    /// [`Engine::seeds_noted`] if that fails.
    NoteSeeds {
        /// The namespace.
        namespace: Arc<str>,
        /// All of it.
        seeds: Seeds,
        /// The namespace's resourceVersion.
        version: u64,
    },
    /// Take the mark off a namespace, if it still has this token and version; tell
    /// [`Engine::unmarked`] if that fails.
    Unmark {
        /// The namespace.
        namespace: Arc<str>,
        /// The mark's token.
        token: Box<str>,
        /// The namespace's resourceVersion: a label change in between may have brought a rule more.
        version: u64,
    },
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
    pub(crate) errands: VecDeque<Errand>,
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
    /// What was created once in a namespace may be noted again.
    Note(Arc<str>),
    /// A namespace's mark may be taken off again.
    Unmark(Arc<str>),
    /// A slot's cells may be asked again what a good copy looks like.
    Learn(SlotId),
    Rule(Arc<RuleId>),
    /// What became of a rule may be asked again.
    AskRule(Arc<RuleId>),
    /// What became of a source may be asked again.
    AskSource(SourceRef),
    /// The grants of a namespace may be asked about again.
    AskGrants(Box<str>),
    Sweep(Arc<RuleId>),
    /// The statuses of all rules.
    Rules,
    Kind(KindId),
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
            if let Some(errand) = self.errand() {
                return Some(Action::Errand(errand));
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
        self.errand().map(Action::Errand)
    }

    /// The next errand that is still worth running.
    fn errand(&mut self) -> Option<Errand> {
        while let Some(errand) = self.work.errands.pop_front() {
            let worth = match &errand {
                Errand::Unmark {
                    namespace,
                    token,
                    version,
                } => self.still_removable(namespace, token, *version),
                Errand::Unrecord(kind, _) => self.still_needless(kind),
                // With the news came another plan.
                Errand::NoteSeeds {
                    namespace, version, ..
                } => self
                    .namespaces
                    .get(namespace)
                    .is_some_and(|entry| entry.version == *version),
                _ => true,
            };
            if worth {
                return Some(errand);
            }
        }
        None
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
            Timer::Note(name) => {
                if let Some(entry) = self.namespaces.get_mut(&name) {
                    entry.noting = false;
                }
                self.dirty.insert(name);
            }
            Timer::Unmark(name) => {
                if let Some(mark) = self
                    .namespaces
                    .get_mut(&name)
                    .and_then(|entry| entry.mark.as_mut())
                {
                    mark.removing = false;
                }
                self.dirty.insert(name);
            }
            Timer::Learn(id) => self.ask_reference(id),
            Timer::Rule(id) => {
                self.mark_status_due(&id);
                self.replan_rule(&id);
            }
            Timer::AskRule(id) => self.reopen_rule(&id),
            Timer::AskSource(source) => self.reopen_source(&source),
            Timer::AskGrants(namespace) => self.reopen_grants(&namespace),
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
            Timer::Kind(id) => {
                let note = &mut self.kinds[id].note;
                if *note == Note::Kept {
                    *note = Note::Present { fresh: false };
                    self.work.tidy_later();
                }
            }
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
