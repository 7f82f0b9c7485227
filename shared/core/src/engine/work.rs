//! The queue, the back-off, and what an answer means for a cell.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Engine, Namespace, Note, Role, Served, Settings, Tick, announce::Happening, plan::FIGHT};
use crate::{
    cell::{Belief, Cell, Content, Good, Phase, Reference, Repair, Step, Why},
    kind::{GroupKind, GroupVersionKind, Resource},
    meta::{Checksum, Seen, Uid},
    names,
    outcome::{Failure, Outcome, Reason},
    ownership::content_is_ours,
    render::{Copies, Rendering},
    rule::{ConflictPolicy, RuleId, RuleKind, SourceRef, Strategy},
    seeds::Seeds,
    slot::{KindId, Slot, SlotId},
    template::Place,
};

/// Something for the rim to do.
#[derive(Debug)]
pub enum Action {
    /// One request about one cell. Its answer comes back through [`Engine::outcome`].
    Request(Box<Request>),
    /// Anything else.
    Errand(Errand),
}

/// One request about one cell.
#[derive(Debug)]
pub struct Request {
    /// Comes back with the answer.
    pub ticket: Ticket,
    /// Where to send it.
    pub resource: Resource,
    /// What to write; none where nothing is written.
    pub rendering: Option<Arc<Rendering>>,
    /// Whether nobody else is to own a field of the copy.
    pub exclusive: bool,
    /// The rule on whose behalf.
    pub rule: Option<Arc<RuleId>>,
}

/// Ties an answer to its request.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// Namespace of the cell.
    pub namespace: Arc<str>,
    /// Name of the copy.
    pub name: Arc<str>,
    /// What is asked for.
    pub verb: Verb,
    kind: KindId,
    serial: u32,
    slot: Option<SlotId>,
    /// Of what is written.
    checksum: Option<Checksum>,
    /// Of the slot's copies then, whatever their namespaces.
    copies: Option<Checksum>,
    sent: Tick,
    /// Why something changes; none where nothing does.
    pub why: Option<Why>,
    /// Version of what was seen in the cell then.
    version: Option<u64>,
}

/// What is asked of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Server-side apply that only ever creates.
    Create,
    /// Forced server-side apply to the object with this uid.
    Apply(Uid),
    /// The same if the object is still of this version.
    Take(Uid, u64),
    /// Server-side apply of the content alone to the object with this uid and version, without force and as a dry run.
    Compare(Uid, u64),
    /// Forced server-side apply to the object with this uid, as a dry run.
    Learn(Uid),
    /// Read the object's metadata and write of it what [`claim`](crate::ownership::claim) says, if it still has this uid and version.
    Claim(Uid, u64),
    /// Read the metadata, not from a cache.
    Look,
    /// Delete the object with this uid if it is still of this version.
    Delete(Uid, u64),
}

/// Something to do that is about no cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Note in the kinds `ConfigMap` that copies of this kind may exist. The `ConfigMap`'s watch tells when it is done.
    Record(GroupVersionKind),
    /// Remove the note, unless there are copies in one of these namespaces (none named: in any); answer by [`Engine::unrecorded`].
    Unrecord(GroupKind, Vec<Option<Box<str>>>),
    /// Note the uid of the CRD of these rules.
    RecordCrd(RuleKind, Box<str>),
    /// Read a rule and its CRD; answer by [`Engine::rule_read`].
    ConfirmRule(RuleId),
    /// Read a source and its namespace; answer by [`Engine::source_read`].
    ConfirmSource(SourceRef),
    /// Read a source that a selector finds; answer by [`Engine::source`].
    ReadSource(SourceRef),
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
    /// Take the mark off a namespace, if it still has this token and version; tell [`Engine::unmarked`] if that fails.
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

#[derive(Debug, Default)]
pub(super) struct Work {
    urgent: VecDeque<CellRef>,
    normal: VecDeque<CellRef>,
    tenants: Turns,
    timers: BTreeSet<(Tick, Timer)>,
    pub(super) errands: VecDeque<Errand>,
    serial: u32,
    untidy: bool,
}

type CellRef = (Arc<str>, KindId, Arc<str>);

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
        let next = self.waiting.range::<str, _>(after).next().or_else(|| self.waiting.iter().next());
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
pub(super) enum Timer {
    Cell(Arc<str>, KindId, Arc<str>),
    /// A copy is to be verified, if its rule still says so.
    Resync(Arc<str>, KindId, Arc<str>),
    Namespace(Arc<str>),
    /// What was created once in a namespace may be noted again.
    Note(Arc<str>),
    Rule(Arc<RuleId>),
    Sweep(Arc<RuleId>),
    /// The statuses of all rules.
    Rules,
    Kind(KindId),
    Everything,
}

impl Work {
    /// Queues a cell; `home` is the namespace of its rule, if that lives in one.
    pub(super) fn queue(&mut self, namespace: &Arc<str>, cell: &Cell, urgent: bool, home: Option<&str>) {
        let queued = (namespace.clone(), cell.kind, cell.name.clone());
        match home {
            Some(home) => self.tenants.push(home, queued),
            None if urgent => self.urgent.push_back(queued),
            None => self.normal.push_back(queued),
        }
        self.untidy = true;
    }

    fn pop(&mut self) -> Option<CellRef> {
        self.urgent.pop_front().or_else(|| self.normal.pop_front()).or_else(|| self.tenants.pop())
    }

    /// Something went: what it needed may not be needed any more.
    pub(super) fn disturb(&mut self) {
        self.untidy = true;
    }

    pub(super) fn timer(&mut self, due: Tick, timer: Timer) {
        self.timers.insert((due, timer));
    }

    /// Puts a cell off, longer each time.
    pub(super) fn back_off(
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
        let spread = u32::try_from(Checksum::of(namespace.as_bytes()).short() % 200).unwrap_or_default();
        self.put_off(namespace, cell, now + delay + delay * spread / 1000);
    }

    /// Puts a cell off until then, whatever it was put off until before: however often the world changes meanwhile, it has one
    /// timer.
    fn put_off(&mut self, namespace: &Arc<str>, cell: &mut Cell, due: Tick) {
        let timer = Timer::Cell(namespace.clone(), cell.kind, cell.name.clone());
        let former = (std::mem::replace(&mut cell.due, due), timer);
        self.timers.remove(&former);
        cell.phase = Phase::Waiting;
        self.timer(due, former.1);
    }

    /// Has a cell verified then, or never, whenever it was to be before.
    pub(super) fn remind(&mut self, namespace: &Arc<str>, cell: &mut Cell, due: Option<Tick>) {
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

fn delay(settings: &Settings, streak: u8) -> Duration {
    settings.backoff.saturating_mul(1 << u32::from(streak.min(20))).min(settings.backoff_limit)
}

impl Engine {
    /// The next thing to do; none until something happens or [`Engine::wake_at`] comes.
    pub fn next(&mut self, now: Tick) -> Option<Action> {
        self.at(now);
        self.fire();
        self.plan();
        if let Some(errand) = self.errand() {
            return Some(Action::Errand(errand));
        }
        while let Some(cell) = self.work.pop() {
            if let Some(request) = self.request(&cell) {
                return Some(Action::Request(Box::new(request)));
            }
        }
        if std::mem::take(&mut self.work.untidy) {
            self.tidy();
            self.work.untidy = false;
        }
        self.errand().map(Action::Errand)
    }

    /// The next errand that is still worth running.
    fn errand(&mut self) -> Option<Errand> {
        while let Some(errand) = self.work.errands.pop_front() {
            let worth = match &errand {
                Errand::Unmark { namespace, token, version } => self.still_removable(namespace, token, *version),
                Errand::Unrecord(kind, _) => self.still_needless(kind),
                // With the news came another plan.
                Errand::NoteSeeds { namespace, version, .. } => {
                    self.namespaces.get(namespace).is_some_and(|entry| entry.version == *version)
                }
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

    pub(super) fn fire(&mut self) {
        while let Some((due, _)) = self.work.timers.first()
            && *due <= self.now
        {
            let Some((_, timer)) = self.work.timers.pop_first() else { return };
            self.ring(timer);
        }
    }

    fn ring(&mut self, timer: Timer) {
        match timer {
            Timer::Cell(namespace, kind, name) => {
                let Some(cell) = self.namespaces.get_mut(&namespace).and_then(|entry| entry.cell_mut(kind, &name))
                else {
                    return;
                };
                if cell.phase != Phase::Waiting {
                    return;
                }
                cell.phase = Phase::Idle;
                // It may be gone without a word.
                if cell.seen().is_some_and(Seen::unwatched) {
                    cell.belief = Belief::Unknown;
                }
                self.dirty.insert(namespace);
            }
            Timer::Resync(namespace, kind, name) => {
                let cell = self.namespaces.get(&namespace).and_then(|entry| entry.cell(kind, &name));
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
            Timer::Rule(id) => {
                self.touch(&id);
                self.concern(&id);
            }
            Timer::Everything => {
                self.work.disturb();
                self.everything_dirty();
            }
            Timer::Rules => self.rules.values_mut().for_each(|state| state.status.touch()),
            Timer::Sweep(id) => self.end_sweep(&id),
            Timer::Kind(id) => {
                let note = &mut self.kinds[usize::from(id.0)].note;
                if *note == Note::Kept {
                    *note = Note::Present { fresh: false };
                    self.work.disturb();
                }
            }
        }
    }

    /// Turns a queued cell into a request, as things stand now.
    fn request(&mut self, (name, kind, copy): &CellRef) -> Option<Request> {
        let mut namespace = self.namespaces.remove(name)?;
        let request = self.request_in(name, &mut namespace, *kind, copy);
        self.namespaces.insert(name.clone(), namespace);
        request
    }

    fn request_in(&mut self, name: &Arc<str>, namespace: &mut Namespace, kind: KindId, copy: &str) -> Option<Request> {
        let at = namespace.position(kind, copy).ok()?;
        if namespace.cells[at].phase != Phase::Queued {
            return None;
        }
        let step = self.decide(name, namespace, &namespace.cells[at]);
        let cell = &mut namespace.cells[at];
        cell.phase = Phase::Idle;
        let (verb, why) = match step {
            Step::Leave(leave) => {
                self.settle(Place { name, labels: &namespace.labels }, name, cell, leave);
                return None;
            }
            Step::Create(why) => (Verb::Create, Some(why)),
            Step::Apply(uid, why) => (Verb::Apply(uid), Some(why)),
            Step::Take(uid, version, why) => (Verb::Take(uid, version), Some(why)),
            Step::Compare(uid, version) => (Verb::Compare(uid, version), None),
            Step::Learn(uid) => (Verb::Learn(uid), None),
            Step::Claim(uid, version, why) => (Verb::Claim(uid, version), Some(why)),
            Step::Look => (Verb::Look, None),
            Step::Delete(uid, version, why) => (Verb::Delete(uid, version), Some(why)),
        };
        // A label found missing is the second half of a repair. Another half is a claim that the first one showed to be due, and what
        // follows it.
        let begun = matches!(cell.belief, Belief::Hidden(_)) || cell.repair != Repair::None && why == Some(Why::Shared);
        if why.is_some_and(Why::repairs) && !begun && self.fights(name, cell) {
            return None;
        }
        let slot = cell.want.and_then(|id| self.slots.get_mut(&id));
        if let (Verb::Learn(_), Some(slot)) = (verb, slot) {
            slot.reference = Reference::Asked;
        }
        let slot = cell.want.and_then(|id| self.slots.get(&id));
        let resource = self.resource(kind, slot.map(Slot::gvk))?;
        let copies = slot.and_then(|slot| slot.rendering.as_ref().ok());
        let place = Place { name, labels: &namespace.labels };
        let rendering = copies.and_then(|copies| copies.rendering_at(place).ok());
        let rule = slot.map(|slot| slot.rule.clone()).or_else(|| cell.ours().and_then(|seen| seen.rule.clone()));
        self.work.serial = self.work.serial.wrapping_add(1);
        cell.phase = Phase::InFlight(self.work.serial);
        let ticket = Ticket {
            namespace: name.clone(),
            name: cell.name.clone(),
            verb,
            kind,
            serial: self.work.serial,
            slot: cell.want,
            checksum: rendering.as_ref().map(|rendering| rendering.checksum),
            copies: copies.map(Copies::checksum),
            sent: self.now,
            why,
            version: cell.seen().map(|seen| seen.version),
        };
        let exclusive = self.exclusive(&namespace.cells[at]);
        Some(Request { ticket, resource, rendering, exclusive, rule })
    }

    /// Whether this repair follows the last one so closely that someone undoes it; then it is put off.
    fn fights(&mut self, name: &Arc<str>, cell: &mut Cell) -> bool {
        let now = u64::try_from(self.now.as_millis()).unwrap_or(u64::MAX).max(1);
        let last = Duration::from_millis(cell.repaired);
        let pause = delay(&self.settings, cell.streak);
        if cell.repaired == 0 || self.now > last + FIGHT.max(pause * 2) {
            cell.streak = 0;
        } else {
            let due = last + pause;
            if self.now < due {
                let message = "somebody keeps undoing what Mimeo writes: it is put right after a pause that grows";
                self.fail(name, cell, Failure { reason: Reason::Conflict, message: message.into() });
                self.work.put_off(name, cell, due);
                return true;
            }
            cell.streak = cell.streak.saturating_add(1);
        }
        cell.repaired = now;
        false
    }

    /// How the server serves a kind: in the wanted version, else in any.
    fn resource(&self, kind: KindId, gvk: Option<&GroupVersionKind>) -> Option<Resource> {
        if let Some(resource) = gvk.and_then(|gvk| self.served.get(gvk)).and_then(Served::namespaced) {
            return Some(resource.clone());
        }
        let group_kind = &self.kinds.get(usize::from(kind.0))?.group_kind;
        let mut served = self.served.iter().filter(|(gvk, _)| gvk.is_of(group_kind));
        served.find_map(|(_, served)| served.namespaced()).cloned()
    }

    /// The answer to a request.
    pub fn outcome(&mut self, ticket: &Ticket, outcome: Outcome, now: Tick) {
        self.at(now);
        self.work.untidy = true;
        self.take_lesson(ticket, &outcome);
        let Some(mut namespace) = self.namespaces.remove(&ticket.namespace) else { return };
        if let Ok(at) = namespace.position(ticket.kind, &ticket.name) {
            let cell = &mut namespace.cells[at];
            if cell.phase == Phase::InFlight(ticket.serial) {
                cell.phase = Phase::Idle;
                let place = Place { name: &ticket.namespace, labels: &namespace.labels };
                self.take_in(ticket, outcome, place, cell);
                if let Some(rule) = cell.ours().and_then(|seen| seen.rule.as_ref()) {
                    self.consent.strew(rule, &ticket.namespace);
                }
                self.dirty.insert(ticket.namespace.clone());
            }
        }
        self.namespaces.insert(ticket.namespace.clone(), namespace);
    }

    /// A dry run's answer is its slot's, whatever has become of the cell meanwhile: the other cells wait for it.
    fn take_lesson(&mut self, ticket: &Ticket, outcome: &Outcome) {
        if !matches!(ticket.verb, Verb::Learn(_)) {
            return;
        }
        let entry = match outcome {
            Outcome::Object(meta) => self.read(meta, ticket.kind).and_then(|seen| seen.entry),
            _ => None,
        };
        self.set_reference(ticket, entry.map_or(Reference::Unknown, Reference::Known));
        if let Some(id) = ticket.slot.and_then(|id| self.slots.get(&id)).map(|slot| slot.rule.clone()) {
            self.concern(&id);
        }
    }

    fn take_in(&mut self, ticket: &Ticket, outcome: Outcome, place: Place<'_>, cell: &mut Cell) {
        let gone = matches!((ticket.verb, &outcome), (Verb::Delete(..), Outcome::Absent | Outcome::Object(_)));
        if let Some(rule) = self.rule_of(cell).filter(|_| gone && cell.stuck) {
            self.happened(&rule, Happening::CopyRecreated, &ticket.namespace, cell);
        }
        match (ticket.verb, outcome) {
            (Verb::Compare(uid, version), Outcome::Object(meta)) => {
                let content = if content_is_ours(&meta) { Content::Same } else { Content::Other };
                self.compared(ticket, (uid, version), content, place, cell);
            }
            (Verb::Compare(uid, version), Outcome::Differs | Outcome::Immutable(_)) => {
                self.compared(ticket, (uid, version), Content::Other, place, cell);
            }
            (_, Outcome::Object(meta)) => {
                let Some(seen) = self.read(&meta, ticket.kind) else { return };
                self.remember_origin(&seen, meta.annotations.as_ref().and_then(|all| all.get(names::SOURCE)));
                self.take_object(ticket, seen, cell);
            }
            (verb, Outcome::Conflict | Outcome::Differs) => refute(verb, cell),
            // Shown, and not there: the one or the other is old, and the watch will soon say which.
            (Verb::Look, Outcome::Absent) if cell.seen().is_some() => {
                self.work.put_off(&ticket.namespace, cell, self.now + self.settings.backoff);
            }
            (verb, Outcome::Absent) => self.take_absence(verb, cell),
            // Refused was what isn't wanted any more.
            (_, Outcome::Refused(_) | Outcome::Immutable(_)) if !self.asked_for(ticket, place, cell) => {}
            // It writes the former content, which may have become what is refused: then only the new one is let through.
            (Verb::Claim(..), Outcome::Refused(_) | Outcome::Immutable(_)) if ticket.why == Some(Why::Changed) => {
                cell.repair = Repair::Claimed;
            }
            (Verb::Apply(_) | Verb::Take(..), Outcome::Immutable(_)) if self.replaces(cell) => cell.stuck = true,
            (verb, Outcome::Refused(failure) | Outcome::Immutable(failure)) => {
                // What isn't ours may change or go unseen.
                let lasting = !matches!(verb, Verb::Take(..) | Verb::Compare(..));
                let hopeless = lasting && matches!(failure.reason, Reason::Invalid | Reason::TooLarge);
                self.fail(&ticket.namespace, cell, failure);
                if hopeless {
                    // The same bytes get the same answer: only a change of source, rule or copy is worth another try.
                    cell.phase = Phase::Waiting;
                } else {
                    self.work.back_off(&ticket.namespace, cell, None, self.now, &self.settings);
                }
            }
            (_, Outcome::NamespaceGone | Outcome::NotServed) => {
                // Its own watch will say so; till then no noise.
                self.work.back_off(&ticket.namespace, cell, Some(Duration::from_secs(1)), self.now, &self.settings);
            }
            (verb, Outcome::Unavailable { retry_after, failure }) => {
                cell.leaving |= matches!(verb, Verb::Delete(..));
                self.fail(&ticket.namespace, cell, failure);
                self.work.back_off(&ticket.namespace, cell, retry_after, self.now, &self.settings);
            }
        }
        if let Some(id) = ticket.slot.and_then(|id| self.slots.get(&id)).map(|slot| slot.rule.clone()) {
            self.touch(&id);
        }
    }

    /// What a comparison found, if it was of what is believed to be here, with what is wanted.
    fn compared(&self, ticket: &Ticket, object: (Uid, u64), content: Content, place: Place<'_>, cell: &mut Cell) {
        if cell.seen().is_some_and(|seen| (seen.uid, seen.version) == object) && self.asked_for(ticket, place, cell) {
            cell.content = content;
        }
    }

    fn read(&self, meta: &ObjectMeta, kind: KindId) -> Option<Seen> {
        Seen::read(meta, &self.kinds[usize::from(kind.0)].group_kind, &self.settings.cluster)
    }

    /// Whether a copy is to have no fields but ours.
    fn exclusive(&self, cell: &Cell) -> bool {
        let slot = cell.want.and_then(|id| self.slots.get(&id));
        let rule = slot.and_then(|slot| self.rules.get(&slot.rule)?.rule.as_ref().ok());
        rule.is_some_and(|rule| rule.strategy == Strategy::Replace)
    }

    /// Whether what can't be changed is deleted and made anew: a copy, or what a rule says to overwrite, where nothing hangs by
    /// the object itself. A workload, a volume or a service would go with it.
    fn replaces(&self, cell: &Cell) -> bool {
        let GroupKind { group, kind } = &self.kinds[usize::from(cell.kind.0)].group_kind;
        let harmless = match &**group {
            "" => matches!(&**kind, "Secret" | "ConfigMap"),
            "rbac.authorization.k8s.io" => &**kind == "RoleBinding",
            _ => false,
        };
        let rule = self.rule_of(cell).and_then(|id| self.rules.get(&id)?.rule.as_ref().ok());
        let given = cell.ours().is_some() || rule.is_some_and(|rule| rule.conflict == ConflictPolicy::Overwrite);
        harmless && given && self.settings.role == Role::Keeper
    }

    /// Whether a request still says what its cell wants.
    fn asked_for(&self, ticket: &Ticket, place: Place<'_>, cell: &Cell) -> bool {
        let copies = cell.want.and_then(|id| self.slots.get(&id)).and_then(|slot| slot.rendering.as_ref().ok());
        let checksum = copies.and_then(|copies| copies.checksum_at(place).ok());
        cell.want == ticket.slot && checksum == ticket.checksum
    }

    /// The object is gone, or never was. What the watch has shown since is newer than the answer.
    fn take_absence(&mut self, verb: Verb, cell: &mut Cell) {
        match verb {
            Verb::Apply(uid)
            | Verb::Take(uid, _)
            | Verb::Compare(uid, _)
            | Verb::Learn(uid)
            | Verb::Claim(uid, _)
            | Verb::Delete(uid, _)
                if cell.seen().is_some_and(|seen| seen.uid != uid) =>
            {
                return;
            }
            Verb::Create if cell.seen().is_some() => return,
            _ => {}
        }
        if let (Verb::Delete(..), Some(rule)) = (verb, cell.ours().and_then(|seen| seen.rule.clone())) {
            self.synced(&rule);
        }
        if let Verb::Delete(_, version) = verb {
            // A listing from before may yet come.
            cell.unseen = cell.unseen.max(version);
        }
        cell.belief = Belief::Absent;
        cell.leaving = false;
        cell.stuck = false;
        cell.good = None;
        cell.failure = None;
        cell.condemned = None;
    }

    /// The rule that wants the cell, else the one whose copy is in it.
    pub(super) fn rule_of(&self, cell: &Cell) -> Option<Arc<RuleId>> {
        let wanted = cell.want.and_then(|id| self.slots.get(&id)).map(|slot| slot.rule.clone());
        wanted.or_else(|| cell.ours().and_then(|seen| seen.rule.clone()))
    }

    /// Notes why a cell isn't as it should be. Told once, not with every try.
    pub(super) fn fail(&mut self, namespace: &Arc<str>, cell: &mut Cell, failure: Failure) {
        let rule = self.rule_of(cell);
        if let Some(rule) = &rule {
            self.touch(rule);
        }
        if cell.failure.as_ref().is_none_or(|old| old.reason != failure.reason) {
            if let Some(rule) = &rule {
                self.happened(rule, Happening::CopyFailed(failure.reason), namespace, cell);
            }
            self.notices.push(Notice {
                rule,
                wanted: cell.want.is_some(),
                kind: self.kinds[usize::from(cell.kind.0)].group_kind.clone(),
                namespace: namespace.clone(),
                name: cell.name.clone(),
                failure: failure.clone(),
            });
        }
        cell.failure = Some(Box::new(failure));
    }

    /// Whether what was created once in a namespace could be noted. If not, the namespace changed under us, and its watch tells, or
    /// the server refused or didn't answer: then it is tried again after a pause that grows. When it was, the watch tells, too.
    pub fn seeds_noted(&mut self, namespace: &str, done: bool, now: Tick) {
        self.at(now);
        let Some(name) = self.namespaces.get_key_value(namespace).map(|(name, _)| name.clone()) else { return };
        let Some(entry) = self.namespaces.get_mut(namespace) else { return };
        if done {
            entry.note_streak = 0;
        } else if entry.noting {
            let due = self.now + delay(&self.settings, entry.note_streak);
            entry.note_streak = entry.note_streak.saturating_add(1);
            self.work.timer(due, Timer::Note(name));
        }
    }

    /// What went wrong since the last call, for the log: each cell's trouble once.
    pub fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn take_object(&mut self, ticket: &Ticket, seen: Seen, cell: &mut Cell) {
        cell.proven |= !matches!(ticket.verb, Verb::Learn(_));
        cell.leaving &= matches!(ticket.verb, Verb::Learn(_));
        match ticket.verb {
            // Not ours any more; the watch will say so.
            Verb::Learn(_) if seen.entry.is_none() => {
                self.work.back_off(&ticket.namespace, cell, None, self.now, &self.settings);
            }
            Verb::Learn(_) | Verb::Compare(..) => {}
            Verb::Create | Verb::Apply(_) | Verb::Take(..) => {
                if ticket.verb == Verb::Create {
                    self.adapt(ticket);
                    cell.stuck = false;
                }
                if let Some(entry) = seen.entry.filter(|_| seen.checksum == ticket.checksum) {
                    self.teach(ticket, entry);
                }
                // What is seen by now may be this very write, of which the watch was quicker to tell.
                let written = ticket.version != Some(seen.version);
                cell.good = Some(Good { version: seen.version, managers: seen.managers });
                cell.failure = None;
                cell.verify = false;
                if cell.repaired == 0 {
                    cell.streak = 0;
                }
                let adopted = matches!(ticket.why, Some(Why::Adopted | Why::Overwritten));
                if let Some(rule) = self.rule_of(cell).filter(|_| adopted) {
                    self.happened(&rule, Happening::CopyAdopted, &ticket.namespace, cell);
                }
                // Only an apply shows what is in an object whose entries somebody removed. What is there after a claim was put there since.
                let begun = cell.repair != Repair::Claimed && seen.claims().press(self.exclusive(cell));
                cell.repair = if begun { Repair::Begun } else { Repair::None };
                cell.show(seen);
                let rule = ticket.slot.and_then(|id| self.slots.get(&id)).map(|slot| slot.rule.clone());
                if let Some(rule) = rule.filter(|_| written) {
                    self.synced(&rule);
                }
            }
            Verb::Claim(..) => {
                cell.repair = Repair::Claimed;
                cell.show(seen);
            }
            // A copy with finalizers outlives its deletion for a while.
            Verb::Delete(..) => {
                cell.show(seen);
            }
            Verb::Look => {
                // Read, and then undone before the answer was here: what is there now, the next request will tell.
                if !cell.show(seen) && cell.seen().is_none() {
                    cell.belief = Belief::Unknown;
                }
            }
        }
    }

    fn set_reference(&mut self, ticket: &Ticket, reference: Reference) {
        let Some(slot) = ticket.slot.and_then(|id| self.slots.get_mut(&id)) else { return };
        let same = slot.rendering.as_ref().is_ok_and(|copies| Some(copies.checksum()) == ticket.copies);
        if same && slot.reference == Reference::Asked {
            slot.reference = reference;
        }
    }

    /// A write's answer shows which fields a good copy owns.
    fn teach(&mut self, ticket: &Ticket, entry: u64) {
        let Some(slot) = ticket.slot.and_then(|id| self.slots.get_mut(&id)) else { return };
        let same = slot.rendering.as_ref().is_ok_and(|copies| Some(copies.checksum()) == ticket.copies);
        if same && slot.reference == Reference::Unknown {
            slot.reference = Reference::Known(entry);
        }
    }

    /// A copy of the rule was written or deleted.
    fn synced(&mut self, rule: &Arc<RuleId>) {
        let now = self.now;
        if let Some(state) = self.rules.get_mut(rule) {
            state.status.synced(now);
        }
    }

    /// A write that comes too soon after its namespace makes the API server sleep for 50 ms until its cache knows the
    /// namespace. So a create that took about that long asks for a later start next time, and quick ones for an earlier.
    fn adapt(&mut self, ticket: &Ticket) {
        const SLEPT: Duration = Duration::from_millis(48);
        // Far more up than down: one create in some hundreds may sleep, for the others to start as early as they can.
        const STEP: Duration = Duration::from_millis(1);
        if self.settings.role != Role::Injector {
            return;
        }
        let took = self.now.saturating_sub(ticket.sent);
        self.inject_delay = if (SLEPT..SLEPT * 2).contains(&took) {
            (self.inject_delay + STEP).min(Duration::from_millis(5))
        } else {
            self.inject_delay.mul_f32(0.999).max(Duration::from_millis(1))
        };
    }
}

/// The object isn't what the request took it for: it is to be looked at, unless the watch has shown it since.
fn refute(verb: Verb, cell: &mut Cell) {
    let known = cell.seen().map(|seen| (seen.uid, seen.version));
    let refuted = match verb {
        Verb::Create | Verb::Look => known.is_none(),
        Verb::Apply(uid) | Verb::Learn(uid) => known.is_none_or(|known| known.0 == uid),
        Verb::Take(uid, version)
        | Verb::Compare(uid, version)
        | Verb::Claim(uid, version)
        | Verb::Delete(uid, version) => known.is_none_or(|known| known == (uid, version)),
    };
    if !refuted {
        return;
    }
    cell.belief = match (verb, &cell.belief) {
        (Verb::Create, Belief::Vanished(uid)) => Belief::Hidden(*uid),
        _ => Belief::Taken(cell.ours().map(|seen| seen.uid)),
    };
    if matches!(verb, Verb::Claim(..)) {
        cell.repair = Repair::None;
    }
    // It may be another object by now, which could be changed.
    cell.stuck = false;
    cell.good = None;
}
