//! Which cell wants which copy, and what to do about it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use mimeo_api::{Access, DriftPolicy};

use super::{
    Engine, Listing, Namespace, Role, RuleState, Served, Source, Tick,
    announce::Happening,
    collect::RuleVerdict,
    work::{Errand, Timer},
};
use crate::{
    cell::{Belief, Cell, Leave, Phase, Spared, Step, Why},
    kind::GroupKind,
    meta::{Checksum, Seen},
    outcome::{Failure, Reason},
    rule::{Barrier, Rule, RuleId, RuleKind, Strategy},
    seeds::Seed,
    selection::Labels,
    slot::{KindId, NoRendering, Slot, SlotId},
    template::Place,
};

/// A cell that a rule wants and another rule has.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Lost {
    pub(super) kind: KindId,
    pub(super) name: Arc<str>,
    pub(super) winner: Arc<RuleId>,
}

impl Lost {
    /// Who has it, to people who look at the rule that hasn't.
    pub(super) fn message(&self, loser: &RuleId, namespace: &str) -> String {
        // To a tenant whatever is in his own namespace is known, and of other tenants' rules nothing else is.
        let known = |home: &str| namespace == home || self.winner.namespace.as_deref() == Some(home);
        if *self.winner == *loser {
            "another source of this rule has this copy".to_owned()
        } else if loser.namespace.as_deref().is_none_or(known) {
            format!("{} has this copy", self.winner)
        } else {
            "another rule has this copy".to_owned()
        }
    }
}

type Wants = BTreeMap<(KindId, Arc<str>), SlotId>;

impl Engine {
    /// Plans every namespace in which something changed.
    pub(super) fn plan(&mut self) {
        while let Some(name) = self.dirty.pop_first() {
            if self.rests(&name) {
                continue;
            }
            self.planned += 1;
            self.plan_namespace(&name);
        }
    }

    /// Whether a crowded namespace is planned later: so many rules as a tenant may have in it would keep the engine from all
    /// others' work, if each of their changes planned all of their copies at once.
    fn rests(&mut self, name: &Arc<str>) -> bool {
        let Some(namespace) = self.namespaces.get_mut(name) else { return false };
        if namespace.cells.len() < CROWD || namespace.mark.is_some() {
            return false;
        }
        if self.now < namespace.rests {
            self.work.timer(namespace.rests, Timer::Namespace(name.clone()));
            return true;
        }
        let pause = REST.saturating_mul(u32::try_from(namespace.cells.len()).unwrap_or(u32::MAX));
        namespace.rests = self.now + pause;
        false
    }

    /// How often a namespace was planned so far.
    pub fn planned(&self) -> u64 {
        self.planned
    }

    fn plan_namespace(&mut self, name: &Arc<str>) {
        let Some(mut namespace) = self.namespaces.remove(name) else { return };
        self.assign(name, &mut namespace);
        // Wanted ones first: what becomes of the others depends on whether these are there.
        for wanted in [true, false] {
            for index in 0..namespace.cells.len() {
                if namespace.cells[index].want.is_some() == wanted {
                    self.consider(name, &mut namespace, index);
                }
            }
        }
        // An injector watches no copies: what it knew of one is forgotten with the want.
        let keeps = self.settings.role == Role::Keeper;
        namespace.cells.retain(|cell| cell.want.is_some() || (keeps && cell.seen().is_some()) || !cell.settled());
        self.plan_mark(name, &mut namespace);
        self.plan_seeds(name, &mut namespace);
        if namespace.uid.is_some() || !namespace.cells.is_empty() {
            self.namespaces.insert(name.clone(), namespace);
        }
    }

    /// Gives every cell of the namespace the slot that wants a copy in it.
    fn assign(&mut self, name: &Arc<str>, namespace: &mut Namespace) {
        let (wants, lost) = self.wanted(name, namespace);
        for id in &self.rules_for(name) {
            let Some(state) = self.rules.get_mut(id) else { continue };
            match lost.get(id) {
                Some(cells) if state.conflicts.get(name) == Some(cells) => {}
                Some(cells) => {
                    if self.settings.role == Role::Keeper {
                        let known = state.conflicts.get(name).map_or(&[][..], Vec::as_slice);
                        let new = cells.iter().filter(|cell| !known.contains(cell));
                        let new = new.map(|cell| (name.clone(), cell.kind, cell.name.clone()));
                        self.news.add(id, Happening::CopyFailed(Reason::RuleConflict), new, 0, self.now);
                    }
                    state.conflicts.insert(name.clone(), cells.clone());
                    state.status.touch();
                }
                None if state.conflicts.is_empty() => {}
                None => {
                    if state.conflicts.remove(name).is_some() {
                        state.status.touch();
                    }
                }
            }
        }
        for (kind, copy) in wants.keys() {
            namespace.cell_or_insert(*kind, copy);
        }
        for cell in &mut namespace.cells {
            let want = wants.get(&(cell.kind, cell.name.clone())).copied();
            if cell.want == want {
                continue;
            }
            let owners =
                [cell.want, want].map(|id| id.and_then(|id| self.slots.get(&id)).map(|slot| slot.rule.clone()));
            cell.want = want;
            cell.streak = 0;
            cell.start_over();
            self.work.remind(name, cell, None);
            if want.is_some() {
                self.forgive(name, cell.kind, &cell.name);
            }
            for owner in owners.into_iter().flatten() {
                if let Some(state) = self.rules.get_mut(&owner) {
                    state.status.touch();
                }
            }
        }
    }

    /// The cells that rules want in a namespace, each with its winner, and what the losers lost.
    fn wanted(&self, name: &Arc<str>, namespace: &Namespace) -> (Wants, BTreeMap<Arc<RuleId>, Vec<Lost>>) {
        // An injector has no business in a namespace that waits for nothing.
        let concerned = self.settings.role == Role::Keeper || namespace.mark.is_some();
        if !namespace.alive() || !concerned {
            return (Wants::new(), BTreeMap::new());
        }
        let mut wants = Wants::new();
        let mut lost: BTreeMap<Arc<RuleId>, Vec<Lost>> = BTreeMap::new();
        // A tenant's rule never wins over the platform's, whose copies are all that an injector writes.
        let rules = match self.settings.role {
            Role::Keeper => self.rules_for(name),
            Role::Injector => self.cluster_rules().map(|(id, _)| id.clone()).collect(),
        };
        let mut given = BTreeMap::new();
        for (id, state) in rules.iter().filter_map(|id| self.rules.get_key_value(id)) {
            let given = given.entry(&id.namespace).or_insert_with(|| self.given(Access::Write, id, name));
            for (slot_id, slot) in self.slots_for(state, name, &namespace.labels) {
                let copy = slot.name.at(namespace.place(name));
                let kind = &self.kinds[usize::from(slot.kind.0)].group_kind;
                if self.is_own_source(state, kind, name, &copy) {
                    continue; // A source is never written, be it for the copy of another one.
                }
                if !slot.granted || !given.covers(kind, &copy) {
                    continue;
                }
                let marked = namespace.cell(slot.kind, &copy).and_then(Cell::ours).and_then(|seen| seen.rule.as_ref());
                if let Some(keeper) = marked.filter(|keeper| self.waits_for_author(keeper, kind, name, namespace)) {
                    let cells = lost.entry(id.clone()).or_default();
                    cells.push(Lost { kind: slot.kind, name: copy, winner: keeper.clone() });
                    continue;
                }
                let key = (slot.kind, copy.clone());
                let Some(holder) = wants.get(&key).and_then(|id| self.slots.get(id)) else {
                    wants.insert(key, slot_id);
                    continue;
                };
                if holder.rule == slot.rule && holder.source == slot.source {
                    continue; // An earlier target of the same rule.
                }
                // Of two sources of one rule the earlier target's has it, or the earlier.
                let (winner, loser) = if holder.rule != slot.rule && self.precedes(id, &holder.rule, marked) {
                    let loser = holder.rule.clone();
                    wants.insert(key, slot_id);
                    (id.clone(), loser)
                } else {
                    (holder.rule.clone(), id.clone())
                };
                let cells = lost.entry(loser).or_default();
                // Another target of the same rule may have lost it already, to somebody who lost it since.
                match cells.iter_mut().find(|cell| cell.kind == slot.kind && cell.name == copy) {
                    Some(cell) => cell.winner = winner,
                    None => cells.push(Lost { kind: slot.kind, name: copy, winner }),
                }
            }
        }
        (wants, lost)
    }

    /// The slots of a rule that a namespace matches.
    fn slots_for<'a>(
        &'a self,
        state: &'a RuleState,
        name: &'a str,
        labels: &'a Labels,
    ) -> impl Iterator<Item = (SlotId, &'a Slot)> {
        // For one that nobody answers for nothing is wanted.
        let rule = state.rule.as_ref().ok().filter(|_| state.vouched());
        let targets = rule.into_iter().flat_map(|rule: &Rule| rule.targets.iter().zip(&state.slots));
        let matched = targets.filter(move |(target, _)| target.selection.matches(name, labels));
        matched.flat_map(|(_, slots)| slots).filter_map(|id| Some((*id, self.slots.get(id)?)))
    }

    /// Whether a rule wants a copy there that nobody else may change.
    pub fn guards(&self, id: &RuleId, kind: &GroupKind, namespace: &str, name: &str) -> bool {
        let Some(state) = self.rules.get(id) else { return false };
        let Some(rule) = state.acting() else { return false };
        let Some(space) = self.namespaces.get(namespace) else { return false };
        let denies = rule.drift == DriftPolicy::Deny && space.alive();
        let makes =
            |slot: &Slot| slot.granted && slot.gvk().is_of(kind) && *slot.name.at(space.place(namespace)) == *name;
        denies
            && self.slots_for(state, namespace, &space.labels).any(|(_, slot)| makes(slot))
            && !self.is_own_source(state, kind, namespace, name)
            && self.may_write(id, namespace, kind, name)
    }

    /// Whether that rule, whose mark a copy carries, may want it once its author is known: then no other takes it meanwhile, for it would
    /// keep it. Which sources a selector of the rule finds isn't looked at till then.
    fn waits_for_author(&self, id: &RuleId, kind: &GroupKind, name: &str, namespace: &Namespace) -> bool {
        let state = self.rules.get(id).filter(|state| !state.vouched());
        state
            .and_then(|state| state.rule.as_ref().ok())
            .is_some_and(|rule| rule.kinds.iter().any(|gvk| gvk.is_of(kind)) && rule.matches(name, &namespace.labels))
    }

    /// Who wins one cell: a rule whose author may have it, or whose copy is there, then the wider kind of rule, then the rule whose
    /// mark the copy carries, then the older, then by name.
    fn precedes(&self, a: &Arc<RuleId>, b: &Arc<RuleId>, marked: Option<&Arc<RuleId>>) -> bool {
        let created = |id| self.rules.get(id).and_then(|state| state.rule.as_ref().ok()).map(|rule| rule.created);
        // Else a right that is lost for a moment would cost the copy for good.
        let denied = |id| marked != Some(id) && self.rules.get(id).is_some_and(RuleState::denied);
        let rank = |id| (denied(id), rank(id, created(id), marked.map(|marked| &**marked)));
        rank(a) < rank(b)
    }

    /// Decides about one cell and queues what is to be done.
    fn consider(&mut self, name: &Arc<str>, namespace: &mut Namespace, index: usize) {
        let cell = &namespace.cells[index];
        if self.kinds_known && cell.ours().is_some() && !self.kinds[usize::from(cell.kind.0)].recorded() {
            // The note was removed while the copy was being written.
            self.record(cell.kind);
        }
        let step = self.decide(name, namespace, cell);
        let urgent = namespace.mark.is_some();
        let home = self.rule_of(&namespace.cells[index]).filter(|_| !matches!(step, Step::Leave(_)));
        let cell = &mut namespace.cells[index];
        if let Step::Leave(why) = step {
            self.settle(Place { name, labels: &namespace.labels }, name, cell, why);
            return;
        }
        if cell.phase == Phase::Idle {
            cell.phase = Phase::Queued;
            self.work.queue(name, cell, urgent, home.as_deref().and_then(|rule| rule.namespace.as_deref()));
        }
        self.touch_cell(index, namespace);
    }

    /// Notes that a cell needs no request now, and why.
    pub(super) fn settle(&mut self, place: Place<'_>, name: &Arc<str>, cell: &mut Cell, why: Leave) {
        // What isn't wanted any more counts with the rule whose copy it is.
        let rule = self.rule_of(cell);
        match why {
            Leave::UpToDate => {
                self.remind_of_resync(name, cell);
                let before = (cell.good, cell.failure.take());
                cell.approve();
                if before == (cell.good, None) {
                    return;
                }
            }
            Leave::Unfillable => {
                let slot = cell.want.and_then(|id| self.slots.get(&id));
                let copies = slot.and_then(|slot| slot.rendering.as_ref().ok());
                if let Some(Err(failure)) = copies.map(|copies| copies.checksum_at(place)) {
                    self.fail(name, cell, failure);
                }
            }
            Leave::Foreign(why) if cell.phase == Phase::Idle => {
                self.fail(name, cell, Failure { reason: Reason::Conflict, message: why.message().into() });
                // Not being ours it may carry no label that a watch would show: look again now and then.
                self.work.back_off(name, cell, None, self.now, &self.settings);
            }
            // No watch will tell of its end.
            Leave::Deleting if cell.phase == Phase::Idle && cell.seen().is_some_and(Seen::unwatched) => {
                cell.failure = None;
                self.work.back_off(name, cell, None, self.now, &self.settings);
            }
            Leave::KindNotRecorded => self.record(cell.kind),
            // Something is still to be done, now or soon: what failed last is worth telling till then.
            Leave::Foreign(_) | Leave::Learning | Leave::NotListed => {}
            Leave::Undecided if cell.want.is_some() => {}
            _ => cell.failure = None,
        }
        if let Some(state) = rule.and_then(|id| self.rules.get_mut(&id)) {
            state.status.touch();
        }
    }

    /// When the rule's period is over, the copy is verified. By its name it has its own moment in the period, so that not all come at
    /// once; and the same each time, so that it has one timer, however often it is found right.
    fn remind_of_resync(&mut self, namespace: &Arc<str>, cell: &mut Cell) {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let due = self.resync_of(cell).map(|period| {
            let moment = Checksum::of(format!("{namespace}/{}", cell.name).as_bytes()).short() % millis(period);
            let periods = (millis(self.now) + millis(period) - moment) / millis(period);
            Duration::from_millis(moment) + period.saturating_mul(u32::try_from(periods).unwrap_or(u32::MAX))
        });
        self.work.remind(namespace, cell, due);
    }

    /// The period after which a copy is verified, as long as its rule may write it.
    pub(super) fn resync_of(&self, cell: &Cell) -> Option<Duration> {
        let slot = self.slots.get(&cell.want?)?;
        let rule = self.rules.get(&slot.rule)?.acting()?;
        rule.resync.filter(|_| self.settings.role == Role::Keeper)
    }

    fn touch_cell(&mut self, index: usize, namespace: &Namespace) {
        let rule = namespace.cells[index].want.and_then(|id| self.slots.get(&id)).map(|slot| slot.rule.clone());
        if let Some(state) = rule.and_then(|id| self.rules.get_mut(&id)) {
            state.status.touch();
        }
    }

    /// What to do about one cell. Everything that is ever done to a copy is decided here.
    pub(super) fn decide(&mut self, name: &Arc<str>, namespace: &Namespace, cell: &Cell) -> Step {
        if !namespace.alive() {
            // A terminating namespace's copies go with it, and nothing can be written there.
            return Step::Leave(Leave::Nothing);
        }
        let Some(id) = cell.want else { return self.decide_unwanted(name, namespace, cell) };
        let step = self.decide_wanted(id, name, namespace, cell);
        if matches!(step, Step::Leave(Leave::NoSource)) {
            return self.decide_sourceless(id, name, cell);
        }
        let leaves = matches!(step, Step::Leave(_));
        if leaves || (self.in_charge(namespace) && self.left_by_the_platform(id, cell)) {
            return step;
        }
        Step::Leave(Leave::Undecided)
    }

    /// Whether a rule may have its cell as far as rules of the platform go, which come before a tenant's. Unless they are seen
    /// nobody knows what they want; so a copy of theirs passes on only where it might be deleted, too.
    fn left_by_the_platform(&mut self, id: SlotId, cell: &Cell) -> bool {
        if self.slots.get(&id).is_none_or(|slot| slot.rule.kind == RuleKind::ClusterReplication) {
            return true;
        }
        if !matches!(self.listings[RuleKind::ClusterReplication], Listing::Listed | Listing::Unserved) {
            return false;
        }
        let marked = cell.ours().and_then(|seen| seen.rule.clone());
        let Some(former) = marked.filter(|former| former.kind == RuleKind::ClusterReplication) else { return true };
        match self.rules.get(&former) {
            Some(state) => state.acting().is_some(),
            None => self.rule_verdict(&former) == RuleVerdict::Meant,
        }
    }

    /// Whether this process may write into the namespace now.
    pub(super) fn in_charge(&self, namespace: &Namespace) -> bool {
        match self.settings.role {
            // A marked namespace is the webhook's for a while: two writers would cost a second request.
            Role::Keeper => {
                let left =
                    namespace.mark.as_ref().map_or(namespace.settles, |mark| mark.since + self.settings.takeover);
                self.now >= left
            }
            Role::Injector => namespace.claim.is_some_and(|from| self.now >= from),
        }
    }

    pub(super) fn decide_wanted(&self, id: SlotId, name: &str, namespace: &Namespace, cell: &Cell) -> Step {
        let Some(slot) = self.slots.get(&id) else { return Step::Leave(Leave::Nothing) };
        let state = self.rules.get(&slot.rule);
        let rule = state.and_then(|state| state.rule.as_ref().ok());
        let acting = state.is_some_and(|state| state.acting().is_some());
        if rule.is_some_and(|rule| self.seeded(slot, rule, namespace, cell)) {
            let keeps = self.settings.role == Role::Keeper && acting;
            // Nothing that is only thought to be here is remembered for good.
            let doubted = keeps
                && !self.is_of_now(name, namespace, cell)
                && self.served.get(slot.gvk()).and_then(Served::namespaced).is_some();
            return if doubted { Step::Look } else { Step::Leave(Leave::Seeded) };
        }
        if state.is_some_and(|state| !state.authorized()) {
            return Step::Leave(Leave::Unauthorized);
        }
        let checksum = match &slot.rendering {
            Ok(copies) => copies.checksum_at(namespace.place(name)),
            Err(NoRendering::Refused(_)) => return Step::Leave(Leave::SourceRefused),
            Err(_) => return Step::Leave(Leave::NoSource),
        };
        if self.served.get(slot.gvk()).and_then(Served::namespaced).is_none() {
            return Step::Leave(Leave::KindNotServed);
        }
        let Ok(checksum) = checksum else { return Step::Leave(Leave::Unfillable) };
        let kind = &self.kinds[usize::from(slot.kind.0)];
        let listed = kind.surveyed(name) || self.settings.role == Role::Injector;
        let step = match rule {
            Some(rule) if listed => self.compare(slot, checksum, rule, (name, namespace), cell),
            _ => Step::Leave(Leave::NotListed),
        };
        if !acting {
            // The preview must tell a create from a conflict, and only a read can.
            let unknown =
                matches!(cell.belief, Belief::Unknown | Belief::Taken(_) | Belief::Vanished(_) | Belief::Hidden(_));
            return match (step, self.settings.role) {
                (Step::Leave(Leave::NotListed), _) => step,
                (_, Role::Keeper) if unknown => Step::Look,
                // And what would be adopted, only the server.
                (Step::Compare(..), Role::Keeper) => step,
                _ => Step::Leave(Leave::Suspended),
            };
        }
        if let (true, Step::Apply(uid, _) | Step::Take(uid, ..), Some(seen)) = (cell.stuck, step, cell.seen()) {
            return Step::Delete(uid, seen.version, Why::Replaced);
        }
        let noted = kind.noted() && !self.crd_unrecorded(slot.rule.kind);
        // Noted while it is being listed, it costs no time.
        let writes = matches!(step, Step::Create(_) | Step::Apply(..) | Step::Take(..) | Step::Claim(..));
        if !noted && (writes || step == Step::Leave(Leave::NotListed)) {
            return Step::Leave(Leave::KindNotRecorded);
        }
        step
    }

    /// Whether a rule that creates its copies once has nothing to do in a cell (any more).
    pub(super) fn seeded(&self, slot: &Slot, rule: &Rule, namespace: &Namespace, cell: &Cell) -> bool {
        rule.strategy == Strategy::CreateOnce
            && (cell.shows_seed(rule.conflict) || self.remembers(namespace, &rule.id, slot.kind, &cell.name))
    }

    /// Whether what is seen in a cell is in this namespace, and not in a former one of its name whose end is yet to be told: it is
    /// newer, or was asked for, or a later listing didn't show its end. What we may have deleted ourselves is not.
    fn is_of_now(&self, name: &str, namespace: &Namespace, cell: &Cell) -> bool {
        let listed = self.kinds[usize::from(cell.kind.0)].surveys.of(name).listed_at;
        let newer = || cell.seen().is_none_or(|seen| seen.version > namespace.born);
        !cell.leaving && (cell.proven || listed >= namespace.born || newer())
    }

    /// Whether the namespace remembers that the rule created this copy in it, once and for all.
    pub(super) fn remembers(&self, namespace: &Namespace, rule: &RuleId, kind: KindId, name: &str) -> bool {
        let seed = || self.seed(namespace, rule, kind, name);
        !namespace.seeds.is_empty() && seed().is_some_and(|seed| namespace.seeds.contains(seed))
    }

    fn seed(&self, namespace: &Namespace, rule: &RuleId, kind: KindId, name: &str) -> Option<Seed> {
        let kind = &self.kinds[usize::from(kind.0)].group_kind;
        Some(Seed::new(namespace.uid?, rule, kind, name))
    }

    /// Has the namespace remember what was created in it once: all of it with one write. A rule that has come to keep its copy is
    /// forgotten; should it ever create once again, what is there then counts.
    fn plan_seeds(&mut self, name: &Arc<str>, namespace: &mut Namespace) {
        let keeps = self.settings.role == Role::Keeper;
        if !keeps || namespace.noting || !namespace.alive() || !self.all_rules() || !self.in_charge(namespace) {
            return;
        }
        let mut seeds = namespace.seeds.clone();
        for cell in &namespace.cells {
            let Some(slot) = cell.want.and_then(|id| self.slots.get(&id)) else { continue };
            let Some(rule) = self.rules.get(&slot.rule).and_then(RuleState::acting) else { continue };
            let once = rule.strategy == Strategy::CreateOnce;
            if !once && seeds.is_empty() {
                continue;
            }
            if once && !cell.settled() {
                return; // Its answer comes by here.
            }
            let news = !once || cell.shows_seed(rule.conflict) && self.is_of_now(name, namespace, cell);
            if let Some(seed) = self.seed(namespace, &rule.id, slot.kind, &cell.name).filter(|_| news) {
                seeds.set(seed, once);
            }
        }
        if seeds != namespace.seeds {
            namespace.noting = true;
            let version = namespace.version;
            self.work.errands.push_back(Errand::NoteSeeds { namespace: name.clone(), seeds, version });
        }
    }

    /// What makes a cell hold its slot's rendering, with the rule's word for what isn't ours.
    pub(super) fn compare(
        &self,
        slot: &Slot,
        checksum: Checksum,
        rule: &Rule,
        (name, namespace): (&str, &Namespace),
        cell: &Cell,
    ) -> Step {
        let exclusive = rule.strategy == Strategy::Replace;
        let step = cell.compare(checksum, slot.reference, rule.conflict, exclusive);
        match step {
            // Of what isn't ours all rules must be known before it is written: any may name it as its source.
            Step::Take(..) | Step::Compare(..) if !self.all_rules() => Step::Leave(Leave::Undecided),
            Step::Take(..) | Step::Compare(..) if self.is_source(rule.id.kind, slot.kind, name, &cell.name) => {
                Step::Leave(Leave::Foreign(Spared::Source))
            }
            Step::Create(_) | Step::Apply(..) | Step::Take(..) | Step::Claim(..)
                if self.comes_from_itself(slot, name, namespace, cell) =>
            {
                Step::Leave(Leave::Foreign(Spared::Ring))
            }
            _ => step,
        }
    }

    /// Why a slot has no copies to give, if that is known: whoever waits for them needn't.
    pub(super) fn hindrance(&self, slot: &Slot) -> Option<&'static str> {
        if self.settings.reach.refuses(&slot.source).is_some() {
            return Some("OutOfReach");
        }
        match (self.served.get(slot.gvk()), &slot.rendering) {
            (None | Some(Served::Unknown), _) => None,
            (Some(Served::Unanswered(why)), _) => Some(why.reason()),
            (Some(served), _) if served.namespaced().is_none() => Some("KindNotServed"),
            (_, Err(NoRendering::NotGranted)) => Some("NotGranted"),
            (_, Err(NoRendering::NotRead)) => self.unreadable.get(&slot.source).map(|why| why.reason()),
            (_, Err(NoRendering::SourceMissing)) => Some("SourceNotFound"),
            (_, Err(NoRendering::Refused(_))) => Some("SourceRefused"),
            (_, Ok(_)) => None,
        }
    }

    /// A cell whose source isn't there: its copy stays through the grace, and until the loss is known to be meant.
    pub(super) fn decide_sourceless(&mut self, id: SlotId, name: &Arc<str>, cell: &Cell) -> Step {
        let keep = Step::Leave(Leave::NoSource);
        let Some(slot) = self.slots.get(&id) else { return keep };
        let Some(seen) = cell.ours() else { return keep };
        // A copy of another source stays: the rule may just have been pointed at one that is yet to come.
        if seen.deleting || seen.source != crate::meta::source_hash(&slot.source.to_string()) {
            return keep;
        }
        let Some(rule) = self.rules.get(&slot.rule).and_then(RuleState::acting) else { return keep };
        let Some(Source::Missing { since, .. }) = self.sources.get(&slot.source) else { return keep };
        if self.settings.role == Role::Injector || self.now < *since + rule.retention.source_grace {
            return keep;
        }
        if rule.retention.when_source_deleted == crate::rule::Retain::Retain {
            return Step::Leave(Leave::Retained);
        }
        let (source, rule) = (slot.source.clone(), slot.rule.clone());
        self.decide_lost_source(&source, &rule, name, cell)
    }

    /// When the grace of a missing source ends, its cells are to be looked at again.
    pub(super) fn remind_of_grace(&mut self, id: &Arc<RuleId>) {
        let Some(Ok(rule)) = self.rules.get(id).map(|state| &state.rule) else { return };
        // Those that selectors don't find any more are reminded of by their copies.
        let missing = rule.sources.iter().filter_map(|source| match self.sources.get(source) {
            Some(Source::Missing { since, .. }) => Some(*since),
            _ => None,
        });
        let due: Vec<Tick> = missing.map(|since| since + rule.retention.source_grace).collect();
        for due in due {
            self.work.timer(due, Timer::Rule(id.clone()));
        }
    }

    /// Marks a rule's status as due.
    pub(super) fn touch(&mut self, id: &Arc<RuleId>) {
        if let Some(state) = self.rules.get_mut(id) {
            state.status.touch();
        }
    }

    /// The strictest barrier that holds a namespace's pods for this slot.
    pub(super) fn barrier_of(&self, id: SlotId) -> Barrier {
        let state = self.slots.get(&id).and_then(|slot| self.rules.get(&slot.rule));
        state.map_or(Barrier::None, RuleState::barrier)
    }
}

/// The lower one wins a cell. `marked` is the rule whose copy is there, if that is known.
pub(super) fn rank<'a>(id: &'a RuleId, created: Option<Timestamp>, marked: Option<&RuleId>) -> impl Ord + use<'a> {
    (id.kind, marked != Some(id), created, id)
}

impl Cell {
    /// Whether no request is queued or under way.
    pub(super) fn settled(&self) -> bool {
        !matches!(self.phase, Phase::Queued | Phase::InFlight(_))
    }
}

impl Why {
    /// Whether this write undoes what somebody else did: repeated quickly, it is a fight.
    pub(super) fn repairs(self) -> bool {
        let undoes = matches!(
            self,
            Self::Drifted | Self::Unproven | Self::SilentlyChanged | Self::LabelRemoved | Self::Vanished
        );
        undoes || matches!(self, Self::Disowned | Self::Shared | Self::Adopted | Self::Overwritten)
    }
}

/// A namespace with this many cells is crowded,
const CROWD: usize = 256;
/// and rests so long for each of them after it was planned: some ten times what that took.
const REST: Duration = Duration::from_micros(20);

/// A repair within this time of the last one is part of the same fight; where the pauses have grown longer, within twice the pause.
pub(super) const FIGHT: Duration = Duration::from_mins(1);
