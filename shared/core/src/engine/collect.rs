//! Which copies nobody wants, and whether they may go.
//!
//! Deleting is the one thing that can't be mended, and silence is easily mistaken for a wish. So a loss counts as meant only
//! when a read that no cache answers says so; every other loss is collected for a while first, and held when it is large.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    Engine, Namespace, Note, Role, RuleState, Served, Source, Tick,
    announce::Happening,
    work::{Errand, Timer},
};
use crate::{
    cell::{Belief, Cell, Leave, Phase, Step, Why},
    kind::GroupKind,
    meta::{Checksum, Uid, source_hash},
    rule::{Retain, RuleId, RuleKind, SourceRef},
    slot::{KindId, NoRendering, Slot},
};

/// A rule that copies name but that doesn't exist.
#[derive(Debug)]
pub(super) struct Gone {
    /// When this process last saw it.
    seen: LastSeen,
    verdict: RuleVerdict,
    /// Until then it is remembered even if no copy names it: a write that was never answered may still show.
    until: Tick,
}

/// How long after a kind's note couldn't be removed that is tried again.
const UNRECORD_AGAIN: Duration = Duration::from_mins(1);
/// Recorded in place of the uid of a CRD that isn't there any more.
const FORMER_CRD: &str = "former";
/// Longer than any write may take to show.
const REMEMBERED: Duration = Duration::from_mins(10);

#[derive(Debug)]
enum LastSeen {
    /// Not in this process's life, or before it knew of any CRD.
    Never,
    /// While its CRD had this uid.
    Under(Box<str>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleVerdict {
    Unconfirmed,
    Asked,
    /// Deleted on purpose.
    Meant,
    /// Deleted with its namespace.
    Homeless,
    /// Lost with its CRD: no copy goes by itself.
    Lost,
}

impl Gone {
    /// It was there until just now, under this CRD.
    pub(super) fn seen_under(crd: Option<Box<str>>, now: Tick) -> Self {
        let seen = crd.map_or(LastSeen::Never, LastSeen::Under);
        Self { seen, verdict: RuleVerdict::Unconfirmed, until: now + REMEMBERED }
    }
}

/// What became of a missing source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceVerdict {
    Unconfirmed,
    Asked,
    /// Deleted on purpose.
    Meant,
    /// Gone with its namespace, not selected any more, or gone for reasons unknown.
    Lost,
}

/// Uids of the CRD that rules live under. Another uid means that it was re-installed, and every rule lost with the old one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CrdState {
    /// As served now.
    pub(super) current: Option<Box<str>>,
    /// As recorded when copies were first written.
    pub(super) recorded: Option<Box<str>>,
    /// Whether it is being recorded.
    recording: bool,
}

impl CrdState {
    /// Under which CRD a rule lives that is shown now. Not known while there is one that was not there when copies were first
    /// written: the rule may have gone with the former one, and the news of that be under way.
    pub(super) fn certain(&self) -> Option<Box<str>> {
        self.current.clone().filter(|_| self.recorded.is_none() || self.recorded == self.current)
    }
}

/// Losses of one rule that nobody confirmed, being collected or held.
#[derive(Debug)]
pub(super) struct Sweep {
    cells: BTreeMap<CellKey, Loss>,
    due: Tick,
    /// What a person must repeat to let them go.
    pub(super) held: Option<Box<str>>,
}

/// Which Replications lose much together.
#[derive(Debug, Default)]
pub(super) struct MuchLost {
    /// Those of all namespaces.
    all: bool,
    /// Those of these namespaces.
    homes: BTreeSet<Box<str>>,
}

/// Why a cell is lost, and since when without a break: a copy that is written for labels which are about to come is unmatched
/// for a moment, and that moment must not be the last one of somebody else's time.
#[derive(Debug, Clone, Copy)]
struct Loss {
    why: Why,
    since: Tick,
}

pub(super) type CellKey = (Arc<str>, KindId, Arc<str>);

impl Sweep {
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }
}

/// The answer to [`Errand::ConfirmSource`], by reads that no cache answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceRead {
    /// It isn't there; its namespace is, with this uid, and stays.
    Absent(Uid),
    /// Neither is there, or the namespace is going.
    Homeless,
    /// It is there, with labels that its selector doesn't match.
    Relabelled,
}

/// The answer to [`Errand::ConfirmRule`]: the rule, and the CRD it lives under, each by a read that no cache answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRead {
    /// Whether the rule exists after all.
    pub found: bool,
    /// Whether its namespace is gone, or going, if it lives in one.
    pub homeless: bool,
    /// Uid of its CRD, unless that is missing or being deleted.
    pub crd: Option<Box<str>>,
}

impl Engine {
    /// The CRD of these rules is served with this uid, or isn't served; `recorded` is the uid noted when copies were first
    /// written.
    pub fn crd(&mut self, kind: RuleKind, current: Option<Box<str>>, recorded: Option<Box<str>>, now: Tick) {
        self.at(now);
        let known = &mut self.crds[kind];
        let state = CrdState { current, recorded, recording: false };
        if (&known.current, &known.recorded) == (&state.current, &state.recorded) {
            return;
        }
        // The first lists of rules and of CRDs are of one time.
        let first = *known == CrdState::default();
        *known = state;
        for (_, state) in self.rules.iter_mut().filter(|(id, state)| id.kind == kind && first && state.crd.is_none()) {
            state.crd = known.certain();
        }
        self.work.disturb();
        let lost = self.gone.iter_mut().filter(|(id, gone)| id.kind == kind && gone.verdict == RuleVerdict::Lost);
        for (_, gone) in lost {
            gone.verdict = RuleVerdict::Unconfirmed;
        }
        self.everything_dirty();
    }

    /// The nonce that a person repeated on the kinds `ConfigMap`, if there is one: that held deletion may go ahead.
    pub fn confirmed(&mut self, nonce: Option<&str>, now: Tick) {
        self.at(now);
        self.confirmed = nonce.map(Into::into);
        let ids: Vec<Arc<RuleId>> = self.sweeps.keys().cloned().collect();
        for id in ids {
            self.confirm_sweep(&id);
        }
    }

    /// Held deletions of rules that no longer exist: rule, number of copies, nonce. For the one who can't read it in a status.
    pub fn held(&self) -> impl Iterator<Item = (&RuleId, usize, &str)> {
        self.sweeps
            .iter()
            .filter(|(id, _)| !self.rules.contains_key(*id))
            .filter_map(|(id, sweep)| sweep.held.as_deref().map(|nonce| (&**id, sweep.len(), nonce)))
    }

    /// A rule was read.
    pub fn rule_read(&mut self, id: &RuleId, read: Option<&RuleRead>, now: Tick) {
        self.at(now);
        if let Some(state) = self.rules.get_mut(id) {
            state.crd_asked = false;
            match read {
                Some(read) if read.found => {
                    state.crd.clone_from(&read.crd);
                    self.work.disturb();
                }
                // Its watch will say that it is gone. Not answered, it is asked again.
                _ => self.work.timer(self.now + self.settings.backoff * 4, Timer::Everything),
            }
            return;
        }
        let Some((id, gone)) = self.gone.get_key_value(id).map(|(id, _)| id.clone()).zip(self.gone.get_mut(id)) else {
            return;
        };
        let Some(read) = read else {
            // Not answered. A 403 or 5xx is never read as "gone".
            gone.verdict = RuleVerdict::Unconfirmed;
            self.work.timer(self.now + self.settings.backoff * 4, Timer::Everything);
            return;
        };
        if read.found {
            // Its watch will show it, or shows it already.
            gone.verdict = RuleVerdict::Unconfirmed;
            self.work.timer(self.now + self.settings.backoff * 4, Timer::Everything);
            return;
        }
        let lived_under = match &gone.seen {
            LastSeen::Under(crd) => Some(crd),
            LastSeen::Never => self.crds[id.kind].recorded.as_ref(),
        };
        let meant = read.crd.is_some() && read.crd.as_ref() == lived_under;
        gone.verdict = match (meant, read.homeless) {
            (true, false) => RuleVerdict::Meant,
            (true, true) => RuleVerdict::Homeless,
            (false, _) => RuleVerdict::Lost,
        };
        let keys = self.cells_of(&id);
        self.dirty.extend(keys.into_iter().map(|(namespace, ..)| namespace));
    }

    /// A source was read; none: it is there after all, or there was no answer.
    pub fn source_read(&mut self, source: &SourceRef, read: Option<SourceRead>, now: Tick) {
        self.at(now);
        let Some(Source::Missing { verdict, home, .. }) = self.sources.get_mut(source) else { return };
        *verdict = match read {
            // Not by itself, but with its namespace, of which this is another.
            Some(SourceRead::Absent(now)) if home.is_some_and(|then| then != now) => SourceVerdict::Lost,
            Some(SourceRead::Absent(_)) => SourceVerdict::Meant,
            Some(SourceRead::Homeless | SourceRead::Relabelled) => SourceVerdict::Lost,
            None => SourceVerdict::Unconfirmed,
        };
        if read.is_none() {
            self.work.timer(self.now + self.settings.backoff * 4, Timer::Everything);
            return;
        }
        let source = source.clone();
        self.concern_source(&source);
    }

    pub(super) fn decide_unwanted(&mut self, name: &Arc<str>, namespace: &Namespace, cell: &Cell) -> Step {
        if matches!(cell.belief, Belief::Taken(_)) && self.settings.role == Role::Keeper {
            return Step::Look;
        }
        // Without our label no watch shows it, and what nobody sees nobody cleans up: seen by chance it is left alone, too.
        let Some(seen) = cell.ours().filter(|seen| seen.labelled) else { return Step::Leave(Leave::Nothing) };
        if self.settings.role == Role::Injector || seen.deleting {
            return Step::Leave(Leave::Deleting);
        }
        if seen.elsewhere {
            return Step::Leave(Leave::Elsewhere);
        }
        let Some(id) = seen.rule.clone() else { return Step::Leave(Leave::Nothing) };
        if self.remembers(namespace, &id, cell.kind, &cell.name) {
            // Kept by its rule once, which has come to create once since: the marks on it are older than that.
            return Step::Leave(Leave::Retained);
        }
        let undecided = Step::Leave(Leave::Undecided);
        if !self.all_rules() || !self.all_rules_of(id.kind) {
            return undecided;
        }
        if self.is_named(id.kind, cell.kind, name, &cell.name) {
            // Once a copy, now what others are copied from: its own copies would go with it.
            return Step::Leave(Leave::Retained);
        }
        let Some(state) = self.rules.get(&id) else { return self.decide_ruleless(&id, name, cell) };
        if state.acting().is_none() {
            return Step::Leave(Leave::Suspended);
        }
        if let Some(step) = self.decide_unselected(&id, name, namespace, cell) {
            return step;
        }
        let Some((state, Ok(rule))) = self.rules.get(&id).map(|state| (state, &state.rule)) else { return undecided };
        if rule.retention.when_unmatched == Retain::Retain {
            return Step::Leave(Leave::Retained);
        }
        if id.kind == RuleKind::Replication && !self.grants_known() {
            return undecided;
        }
        let mut slots = state.slots.iter().flatten().filter_map(|slot| self.slots.get(slot));
        let makes = slots.any(|slot| slot.kind == cell.kind && slot.name.at(namespace.place(name)) == cell.name);
        if makes || !rule.matches(name, &namespace.labels) {
            // A copy that the rule still makes, elsewhere: what has changed is the namespace, or the selection.
            return self.sweep(&id, name, cell, Why::Unmatched);
        }
        self.decide_superseded(&id, name, namespace, cell)
    }

    /// Whether this object is a source that a rule of the kind `by` must leave alone because a rule names it. What a selector
    /// finds it takes as it comes and goes.
    pub(super) fn is_named(&self, by: RuleKind, kind: KindId, namespace: &str, name: &str) -> bool {
        let kind = &self.kinds[usize::from(kind.0)].group_kind;
        let counts = |slot: &Slot| slot.granted && slot.rule.kind <= by && slot.source.selector().is_none();
        self.slots.values().any(|slot| slot.source.is(kind, namespace, name) && counts(slot))
    }

    /// Whether this object is a source that a rule of the kind `by` must leave alone. To the platform's rules a tenant's sources
    /// are none: by naming the place of a copy as a source he could keep it away, or keep it for good. Nor is anything a source
    /// that its rule may not read.
    pub(super) fn is_source(&self, by: RuleKind, kind: KindId, namespace: &str, name: &str) -> bool {
        let kind = &self.kinds[usize::from(kind.0)].group_kind;
        let counts = |slot: &Slot| slot.granted && slot.rule.kind <= by;
        self.slots.values().any(|slot| slot.source.is(kind, namespace, name) && counts(slot))
    }

    /// A copy that its rule, which still matches the namespace, wants no more: renamed, of another kind, or of a source that the
    /// rule no longer has. First the new copies, then away with the old one; but what can't come is not waited for.
    fn decide_superseded(&mut self, id: &Arc<RuleId>, name: &Arc<str>, namespace: &Namespace, cell: &Cell) -> Step {
        let Some(seen) = cell.ours() else { return Step::Leave(Leave::Nothing) };
        let undecided = Step::Leave(Leave::Undecided);
        let mut sourceless = None;
        for other in namespace.cells.iter().filter(|other| other.good.is_none()) {
            let slot = other.want.and_then(|want| Some((want, self.slots.get(&want)?)));
            let Some((want, slot)) = slot.filter(|(_, slot)| slot.rule == *id) else { continue };
            let heir = seen.source == source_hash(&slot.source.to_string());
            match &slot.rendering {
                Err(NoRendering::SourceMissing) if heir => sourceless = Some(want),
                Err(NoRendering::NotRead) => return undecided,
                // The heir of this very copy is waited for, come what may.
                _ if heir => return undecided,
                Ok(_) if other.failure.is_none() => return undecided,
                _ => {}
            }
        }
        match sourceless {
            Some(want) => self.decide_sourceless(want, name, cell),
            None => Step::Delete(seen.uid, seen.version, Why::Superseded),
        }
    }

    fn decide_ruleless(&mut self, id: &Arc<RuleId>, name: &Arc<str>, cell: &Cell) -> Step {
        let Some(seen) = cell.ours() else { return Step::Leave(Leave::Nothing) };
        if seen.retention().is_some_and(|retention| retention.when_rule_deleted == Retain::Retain) {
            return Step::Leave(Leave::Retained);
        }
        match self.rule_verdict(id) {
            RuleVerdict::Unconfirmed | RuleVerdict::Asked => Step::Leave(Leave::Undecided),
            RuleVerdict::Meant => Step::Delete(seen.uid, seen.version, Why::RuleDeleted),
            RuleVerdict::Homeless | RuleVerdict::Lost => self.sweep(id, name, cell, Why::RuleDeleted),
        }
    }

    /// What became of a rule that isn't there but that a copy names. If that isn't known it is asked.
    pub(super) fn rule_verdict(&mut self, id: &Arc<RuleId>) -> RuleVerdict {
        let gone = self.gone.entry(id.clone()).or_insert_with(|| Gone::seen_under(None, Tick::ZERO));
        if gone.verdict == RuleVerdict::Unconfirmed {
            gone.verdict = RuleVerdict::Asked;
            self.work.errands.push_back(Errand::ConfirmRule((**id).clone()));
        }
        gone.verdict
    }

    pub(super) fn decide_lost_source(
        &mut self,
        source: &SourceRef,
        rule: &Arc<RuleId>,
        name: &Arc<str>,
        cell: &Cell,
    ) -> Step {
        let Some(Source::Missing { verdict, .. }) = self.sources.get_mut(source) else {
            return Step::Leave(Leave::NoSource);
        };
        let Some(seen) = cell.ours() else { return Step::Leave(Leave::NoSource) };
        match verdict {
            SourceVerdict::Unconfirmed => {
                *verdict = SourceVerdict::Asked;
                self.work.errands.push_back(Errand::ConfirmSource(source.clone()));
                Step::Leave(Leave::Undecided)
            }
            SourceVerdict::Asked => Step::Leave(Leave::Undecided),
            SourceVerdict::Meant => Step::Delete(seen.uid, seen.version, Why::SourceDeleted),
            SourceVerdict::Lost => self.sweep(rule, name, cell, Why::SourceDeleted),
        }
    }

    /// Collects a loss that nobody confirmed; a cell that was condemned for it before goes.
    pub(super) fn sweep(&mut self, id: &Arc<RuleId>, name: &Arc<str>, cell: &Cell, why: Why) -> Step {
        let Some(seen) = cell.ours() else { return Step::Leave(Leave::Nothing) };
        if cell.condemned == Some(why) {
            return Step::Delete(seen.uid, seen.version, why);
        }
        let due = self.now + self.settings.sweep;
        let sweep = self.sweeps.entry(id.clone()).or_insert_with(|| Sweep { cells: BTreeMap::new(), due, held: None });
        let key = (name.clone(), cell.kind, cell.name.clone());
        if sweep.cells.get(&key).is_none_or(|known| known.why != why) {
            sweep.cells.insert(key, Loss { why, since: self.now });
            if sweep.due <= self.now {
                sweep.due = due;
            }
        }
        let due = sweep.due;
        if due > self.now {
            self.work.timer(due, Timer::Sweep(id.clone()));
        }
        Step::Leave(Leave::Undecided)
    }

    /// A cell is wanted (again): whatever was lost there is not.
    pub(super) fn forgive(&mut self, name: &Arc<str>, kind: KindId, copy: &Arc<str>) {
        if self.sweeps.is_empty() {
            return;
        }
        let key = (name.clone(), kind, copy.clone());
        self.sweeps.values_mut().for_each(|sweep| {
            sweep.cells.remove(&key);
        });
        let empty: Vec<Arc<RuleId>> =
            self.sweeps.iter().filter(|(_, sweep)| sweep.cells.is_empty()).map(|(id, _)| id.clone()).collect();
        for id in empty {
            self.sweeps.remove(&id);
            self.touch(&id);
        }
    }

    /// The time of collecting is over: whatever has been lost for that long may go, unless all that is lost is too much. What is
    /// held is looked at again each time that this comes round: the loss may have been undone.
    pub(super) fn end_sweep(&mut self, id: &Arc<RuleId>) {
        if self.sweeps.get(id).is_none_or(|sweep| sweep.due > self.now) {
            return;
        }
        self.review(id);
        let Some(sweep) = self.sweeps.get(id).filter(|sweep| !sweep.cells.is_empty()) else {
            self.sweeps.remove(id);
            self.touch(id);
            return;
        };
        // Copies of a rule that isn't there are only ever collected because it wasn't deleted on purpose, whatever is being read
        // just now.
        let slots = self.rules.get(id).map(|state| self.slots_had(state));
        let large = self.much(weight(sweep.cells.keys(), slots), weight(self.cells_of(id).iter(), slots));
        let large = large || self.tenants_lose_much(id);
        let unmeant = slots.is_none() && self.gone.get(id).is_none_or(|gone| gone.verdict != RuleVerdict::Homeless);
        let held = self.sweeps.get(id).filter(|_| large || unmeant);
        let nonce = held.map(|sweep| self.nonce(id, sweep));
        let due = self.now + self.settings.sweep;
        let Some(sweep) = self.sweeps.get_mut(id) else { return };
        let news = sweep.held != nonce;
        sweep.held = nonce;
        if news {
            if sweep.held.is_some() {
                self.news.add(id, Happening::DeletionHeld, [], 0, self.now);
            }
            self.touch(id);
        }
        if self.confirm_sweep(id) {
            return;
        }
        match self.sweeps.get_mut(id).filter(|sweep| sweep.held.is_some()) {
            Some(sweep) => {
                sweep.due = due;
                self.work.timer(due, Timer::Sweep(id.clone()));
            }
            None => self.let_go_what_is_due(id),
        }
    }

    fn much(&self, lost: usize, of: usize) -> bool {
        lost >= self.settings.sweep_limit && lost * 2 >= of
    }

    /// Whether the Replications of this one's namespace, or of all, lose together as much as one rule may not: what takes away
    /// the consent for many, as a lost definition of grants does, finds few copies of each.
    ///
    /// Found once for all sweeps that began and end at the same time: what becomes of one doesn't depend on which comes first.
    fn tenants_lose_much(&mut self, id: &RuleId) -> bool {
        let Some(home) = id.namespace.as_deref() else { return false };
        let losses = self.sweeps.get(id).into_iter().flat_map(|sweep| sweep.cells.values());
        let Some(began) = losses.map(|loss| loss.since).min() else { return false };
        let at = (self.now, began);
        let much = self.consent.much_lost.take().filter(|(then, _)| *then == at).map(|(_, much)| much);
        let much = much.unwrap_or_else(|| self.tenants_that_lose_much(began.saturating_sub(self.settings.sweep)));
        let loses = much.all || much.homes.contains(home);
        self.consent.much_lost = Some((at, much));
        loses
    }

    /// What was lost since then counts: whoever lets his own be held for ever holds up no later one. Nor does a rule that isn't
    /// there, which anybody's marks can name.
    fn tenants_that_lose_much(&self, since: Tick) -> MuchLost {
        let mut homes: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (id, sweep) in &self.sweeps {
            let (Some(home), Some(state)) = (id.namespace.as_deref(), self.rules.get(id)) else { continue };
            let lost = sweep.cells.iter().filter(|(_, loss)| loss.since >= since).map(|(key, _)| key);
            homes.entry(home).or_default().0 += weight(lost, Some(state.copies_at_most()));
        }
        if homes.values().map(|(lost, _)| lost).sum::<usize>() < self.settings.sweep_limit {
            return MuchLost::default();
        }
        for (id, state) in &self.rules {
            let Some(home) = id.namespace.as_deref() else { continue };
            homes.entry(home).or_default().1 += weight(self.cells_of(id).iter(), Some(state.copies_at_most()));
        }
        // No tenant by himself makes it everybody's matter.
        let most = self.settings.sweep_limit.div_ceil(2);
        let (lost, of) =
            homes.values().fold((0, 0), |sum, (lost, of)| (sum.0 + lost.min(&most), sum.1 + of.min(&most)));
        let losing = homes.iter().filter(|(_, (lost, of))| self.much(*lost, *of));
        MuchLost { all: self.much(lost, of), homes: losing.map(|(home, _)| (*home).into()).collect() }
    }

    /// Decides about every collected cell anew, so that only those stay that are still lost for the same reason.
    fn review(&mut self, id: &Arc<RuleId>) {
        let Some(sweep) = self.sweeps.get_mut(id) else { return };
        let before = std::mem::take(&mut sweep.cells);
        for (name, kind, copy) in before.keys() {
            let Some(namespace) = self.namespaces.remove(name) else { continue };
            if let Some(cell) = namespace.cell(*kind, copy) {
                self.decide(name, &namespace, cell);
            }
            self.namespaces.insert(name.clone(), namespace);
        }
        let Some(sweep) = self.sweeps.get_mut(id) else { return };
        for (key, loss) in &mut sweep.cells {
            if let Some(known) = before.get(key).filter(|known| known.why == loss.why) {
                loss.since = known.since;
            }
        }
    }

    fn let_go_what_is_due(&mut self, id: &Arc<RuleId>) {
        let time = self.settings.sweep;
        let Some(sweep) = self.sweeps.get_mut(id) else { return };
        let (gone, rest): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut sweep.cells).into_iter().partition(|(_, loss)| loss.since + time <= self.now);
        match rest.values().map(|loss| loss.since + time).min() {
            Some(due) => {
                sweep.cells = rest;
                sweep.due = due;
                self.work.timer(due, Timer::Sweep(id.clone()));
            }
            None => drop(self.sweeps.remove(id)),
        }
        self.condemn(gone);
    }

    /// Lets go what is held if a person confirmed exactly that, on the rule or on the kinds `ConfigMap`. Tells whether.
    pub(super) fn confirm_sweep(&mut self, id: &Arc<RuleId>) -> bool {
        let Some(held) = self.sweeps.get(id).and_then(|sweep| sweep.held.clone()) else { return false };
        let rule = self.rules.get(id).and_then(|state| state.rule.as_ref().ok());
        let confirmed = [rule.and_then(|rule| rule.confirm_deletion.as_ref()), self.confirmed.as_ref()];
        let confirmed = confirmed.contains(&Some(&held));
        if confirmed {
            self.let_go(id);
        }
        confirmed
    }

    fn let_go(&mut self, id: &Arc<RuleId>) {
        let Some(sweep) = self.sweeps.remove(id) else { return };
        self.condemn(sweep.cells);
        self.touch(id);
    }

    fn condemn(&mut self, cells: BTreeMap<CellKey, Loss>) {
        for ((namespace, kind, name), Loss { why, .. }) in cells {
            let Some(entry) = self.namespaces.get_mut(&namespace) else { continue };
            if let Some(cell) = entry.cell_mut(kind, &name) {
                cell.condemned = Some(why);
                cell.release();
                self.dirty.insert(namespace);
            }
        }
    }

    /// Names exactly these losses of exactly these objects: confirming a small sweep doesn't confirm a larger one, and neither does
    /// what was confirmed once confirm the next loss of the same places.
    fn nonce(&self, id: &RuleId, sweep: &Sweep) -> Box<str> {
        let mut text = id.to_string();
        for (namespace, kind, name) in sweep.cells.keys() {
            let cell = self.namespaces.get(namespace).and_then(|entry| entry.cell(*kind, name));
            if let Some(seen) = cell.and_then(Cell::ours) {
                text.push_str(&seen.uid.to_string());
            }
        }
        format!("{:08x}", Checksum::of(text.as_bytes()).short() >> 32).into()
    }

    /// Every cell that holds a copy of the rule, here to stay.
    fn cells_of(&self, id: &RuleId) -> Vec<CellKey> {
        let mut keys = Vec::new();
        for name in &self.places(id) {
            let Some(namespace) = self.namespaces.get(name) else { continue };
            for cell in &namespace.cells {
                let mut copy = cell.ours().into_iter().filter(|seen| !seen.elsewhere && !seen.deleting);
                if copy.any(|seen| seen.rule.as_deref() == Some(id)) {
                    keys.push((name.clone(), cell.kind, cell.name.clone()));
                }
            }
        }
        keys
    }

    /// Forgets rules that no copy names any more, and kinds that need no watch any more. Called when the queue is empty.
    pub(super) fn tidy(&mut self) {
        if !self.all_rules() || self.settings.role == Role::Injector {
            return;
        }
        let mut named: BTreeSet<KindId> = BTreeSet::new();
        let mut owners: BTreeSet<Arc<RuleId>> = BTreeSet::new();
        let mut origins: BTreeSet<u64> = BTreeSet::new();
        let mut strewn: BTreeMap<Arc<RuleId>, BTreeSet<Arc<str>>> = BTreeMap::new();
        let cells =
            self.namespaces.iter().flat_map(|(name, namespace)| namespace.cells.iter().map(move |cell| (name, cell)));
        for (name, cell) in cells {
            if cell.want.is_none() && matches!(cell.phase, Phase::InFlight(_)) {
                // A copy may come of it yet, of a rule that is gone. Its answer calls here again.
                return;
            }
            // Whoever lists the kind before its note goes finds what isn't ours, too, if it carries our label.
            if cell.seen().is_some_and(|seen| seen.labelled || seen.ours()) {
                named.insert(cell.kind);
            }
            origins.extend(cell.ours().map(|seen| seen.source));
            let Some(owner) = cell.ours().and_then(|seen| seen.rule.clone()) else { continue };
            if owner.kind == RuleKind::Replication {
                strewn.entry(owner.clone()).or_default().insert(name.clone());
            }
            owners.insert(owner);
        }
        self.consent.strewn_as(strewn);
        self.origins.retain(|hash, _| origins.contains(hash));
        let copied = |source: &SourceRef| origins.contains(&source_hash(&source.to_string()));
        self.sources.retain(|source, state| source.selector().is_none() || !state.is_missing() || copied(source));
        let now = self.now;
        self.gone.retain(|id, gone| owners.contains(id) || now < gone.until);
        // A rule that is there may have lost the source of a copy that carries another's mark still.
        self.sweeps.retain(|id, _| owners.contains(id) || self.rules.contains_key(id));
        let wanted = self.wanted_kinds();
        let places = self.watched_places();
        let listed: Vec<bool> = self.kinds.iter().map(|kind| self.listed(kind)).collect();
        for (index, (kind, listed)) in self.kinds.iter_mut().zip(listed).enumerate() {
            let id = KindId(u16::try_from(index).unwrap_or(u16::MAX));
            let needless = listed && !wanted.contains(&id) && !named.contains(&id);
            if needless && matches!(kind.note, Note::Present { .. }) {
                kind.note = Note::Removing;
                self.work.errands.push_back(Errand::Unrecord(kind.group_kind.clone(), places.clone()));
            }
        }
        for kind in RuleKind::ALL {
            let CrdState { current, recorded, .. } = &self.crds[kind];
            // Where no tenant ever had a rule there is nothing to tell from another definition's.
            let used = kind == RuleKind::ClusterReplication || recorded.is_some() || self.has_rules(kind);
            let another = current != recorded && used;
            if self.ask_where_rules_live(kind) && another && self.every_copy_seen() {
                self.record_crd_when_clear(kind);
            }
        }
    }

    /// Records another CRD than before once no copy can show any more whose rule went with the former one: it would be taken for
    /// an orphan of the new one.
    fn record_crd_when_clear(&mut self, kind: RuleKind) {
        match self.gone.iter().filter(|(id, _)| id.kind == kind).map(|(_, gone)| gone.until).max() {
            None => self.record_crd(kind),
            Some(until) if until > self.now => self.work.timer(until, Timer::Everything),
            // Copies of such a rule are there: whoever confirms their deletion, or brings the rule back, settles it.
            Some(_) => {}
        }
    }

    /// A kind's note was removed, or a copy was found after all; then it is tried again in a while.
    pub fn unrecorded(&mut self, kind: &GroupKind, done: bool, now: Tick) {
        self.at(now);
        let Some(id) = self.kind_ids.get(kind).copied().filter(|_| !done) else { return };
        let note = &mut self.kinds[usize::from(id.0)].note;
        if *note == Note::Removing {
            *note = Note::Kept;
            self.work.timer(self.now + UNRECORD_AGAIN, Timer::Kind(id));
            self.everything_dirty();
        }
    }

    /// What keeps one small that may not act yet: time passes, and what has ended is forgotten. Nothing is planned, which would
    /// only be out of date when it may.
    pub fn rest(&mut self, now: Tick) {
        self.at(now);
        self.fire();
        self.news.forget();
        let mut owners: BTreeSet<Arc<RuleId>> = BTreeSet::new();
        self.namespaces.retain(|_, namespace| {
            namespace.cells.retain(|cell| cell.want.is_some() || cell.seen().is_some() || !cell.settled());
            owners.extend(namespace.cells.iter().filter_map(|cell| cell.ours()?.rule.clone()));
            namespace.uid.is_some() || !namespace.cells.is_empty()
        });
        self.dirty.retain(|name| self.namespaces.contains_key(name));
        self.gone.retain(|id, gone| owners.contains(id) || self.now < gone.until);
        self.consent.forget_strewn(&owners);
    }

    /// Whether every rule of the kind is known to live under the CRD that is served now. One that isn't is read: it may have gone
    /// with the former one, and its watch not have said so yet.
    fn ask_where_rules_live(&mut self, kind: RuleKind) -> bool {
        let Some(current) = &self.crds[kind].current else { return true };
        let mut settled = true;
        let elsewhere = |id: &RuleId, state: &RuleState| id.kind == kind && state.crd.as_ref() != Some(current);
        for (id, state) in self.rules.iter_mut().filter(|(id, state)| elsewhere(id, state)) {
            settled = false;
            if !std::mem::replace(&mut state.crd_asked, true) {
                self.work.errands.push_back(Errand::ConfirmRule((**id).clone()));
            }
        }
        settled
    }

    /// The kinds of all rules' sources.
    fn wanted_kinds(&self) -> BTreeSet<KindId> {
        let rules = self.rules.values().filter_map(|state| state.rule.as_ref().ok());
        rules.flat_map(|rule| &rule.kinds).filter_map(|gvk| self.kind_ids.get(&gvk.group_kind()).copied()).collect()
    }

    /// Whether a kind's note is still to be removed when its turn comes: a rule may have come to want the kind.
    pub(super) fn still_needless(&mut self, kind: &GroupKind) -> bool {
        let Some(id) = self.kind_ids.get(kind).copied() else { return false };
        let wanted = self.wanted_kinds().contains(&id);
        let kind = &mut self.kinds[usize::from(id.0)];
        if wanted && kind.note == Note::Removing {
            kind.note = Note::Present { fresh: false };
        }
        !wanted && kind.note == Note::Removing
    }

    /// Whether no CRD of the kind was ever recorded, though there is one: should this process end now, its successor could not
    /// tell a rule deleted meanwhile from one that was lost with its CRD.
    pub(super) fn crd_unrecorded(&self, kind: RuleKind) -> bool {
        let CrdState { current, recorded, .. } = &self.crds[kind];
        current.is_some() && recorded.is_none()
    }

    /// Records a kind's CRD before the kind's first copy is written.
    ///
    /// Where another kind's is recorded, that is known to be the first: copies of rules that aren't there were none of ours then,
    /// whatever somebody made them look like. Where none is, what was recorded may as well have been lost. Such copies may be of
    /// rules that went with a former CRD then, which is what is recorded.
    fn record_first_crd(&mut self, kind: RuleKind) {
        let lost = RuleKind::ALL.iter().all(|kind| self.crds[*kind].recorded.is_none());
        if lost && self.has_gone(kind) {
            self.record_crd_as(kind, FORMER_CRD.into());
        } else {
            self.record_crd(kind);
        }
    }

    fn record_crd(&mut self, kind: RuleKind) {
        if let Some(uid) = self.crds[kind].current.clone() {
            self.record_crd_as(kind, uid);
        }
    }

    fn record_crd_as(&mut self, kind: RuleKind, uid: Box<str>) {
        if !std::mem::replace(&mut self.crds[kind].recording, true) {
            self.work.errands.push_back(Errand::RecordCrd(kind, uid));
        }
    }

    /// Whether copies name rules of the kind that aren't there.
    fn has_gone(&self, kind: RuleKind) -> bool {
        self.gone.keys().any(|id| id.kind == kind)
    }

    /// Whether every kind that may have copies was listed: only then is a rule that no copy names known to have none.
    fn every_copy_seen(&self) -> bool {
        let unserved = |kind: &super::KindState| {
            let mut versions = self.served.iter().filter(|(gvk, _)| gvk.is_of(&kind.group_kind));
            versions.all(|(_, served)| *served == Served::No)
        };
        self.kinds_known
            && self.primed()
            && self.kinds.iter().all(|kind| {
                !kind.recorded() || self.listed(kind) || unserved(kind) || !self.settings.reach.copies(&kind.group_kind)
            })
    }

    /// Before the first copy of a kind is written, the kind is recorded, and the CRD of rules: whoever cleans up later must know
    /// where to look.
    pub(super) fn record(&mut self, kind: KindId) {
        let wanted = self.slots.values().find(|slot| slot.kind == kind).map(Slot::gvk);
        let served = || self.served.keys().find(|gvk| self.kind_ids.get(&gvk.group_kind()) == Some(&kind));
        let Some(gvk) = wanted.or_else(served).cloned() else { return };
        let state = &mut self.kinds[usize::from(kind.0)];
        if state.note == Note::Absent {
            state.note = Note::Adding;
            self.work.errands.push_back(Errand::Record(gvk));
        }
        for kind in RuleKind::ALL {
            let used = kind == RuleKind::ClusterReplication || self.has_rules(kind) || self.has_gone(kind);
            if used && self.crd_unrecorded(kind) {
                self.record_first_crd(kind);
            }
        }
    }

    fn has_rules(&self, kind: RuleKind) -> bool {
        self.rules.keys().any(|id| id.kind == kind)
    }
}

impl RuleState {
    /// How many copies it has in a namespace, if it has one of each slot.
    fn copies_at_most(&self) -> usize {
        self.slots.iter().map(Vec::len).sum()
    }
}

/// How much so many cells of a rule count. One namespace counts no more than the rule has, or had, slots: whoever makes objects look like
/// its copies there can neither hold up what happens elsewhere nor make it seem little.
fn weight<'a>(cells: impl Iterator<Item = &'a CellKey>, slots: Option<usize>) -> usize {
    let mut each: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
    for (namespace, ..) in cells {
        *each.entry(namespace).or_default() += 1;
    }
    each.into_values().map(|count| count.min(slots.unwrap_or(count).max(1))).sum()
}
