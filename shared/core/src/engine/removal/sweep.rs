//! Losses that nobody confirmed: collected for a while, and held when they are large until a person confirms them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::engine::{
    Engine, RuleState, Tick,
    absent::HowGone,
    announce::{Happening, places},
    losses::{CellKey, Loss, Sweep},
    work::Timer,
};
use crate::{
    cell::{Cell, Leave, Step, Why},
    meta::{Checksum, Uid},
    rule::{RuleId, RuleKind},
    slot::KindId,
};

/// Copies of a rule that is gone, whose deletion waits for a person: what the rule's status would say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDeletion<'a> {
    /// The rule.
    pub rule: &'a RuleId,
    /// How many copies they are.
    pub copies: usize,
    /// Why they don't just go, in a clause.
    pub why: &'static str,
    /// What a person must repeat to let them go. It stands for exactly these copies.
    pub nonce: &'a str,
    namespaces: Vec<Arc<str>>,
}

impl HeldDeletion<'_> {
    /// In how many namespaces they are, and which these are: the first three.
    pub fn places(&self) -> String {
        let mut namespaces: Vec<&Arc<str>> = self.namespaces.iter().collect();
        namespaces.dedup();
        places(&namespaces)
    }
}

/// Which Replications lose much together.
#[derive(Debug, Default)]
pub(in crate::engine) struct MuchLost {
    /// Those of all namespaces.
    all: bool,
    /// Those of these namespaces.
    homes: BTreeSet<Box<str>>,
}

impl Engine {
    /// The nonce that a person repeated on the kinds `ConfigMap`, if there is one: that held deletion may go ahead.
    pub fn confirmed(&mut self, nonce: Option<&str>, now: Tick) {
        self.at(now);
        self.confirmed = nonce.map(Into::into);
        let ids: Vec<Arc<RuleId>> = self.sweeps.rules().cloned().collect();
        for id in ids {
            self.confirm_sweep(&id);
        }
    }

    /// Held deletions of rules that no longer exist, for the one who can't read them in a status; the platform's first.
    pub fn held(&self) -> impl Iterator<Item = HeldDeletion<'_>> {
        let gone = self.sweeps.iter().filter(|(id, sweep)| sweep.held.is_some() && !self.rules.contains_key(*id));
        gone.filter_map(|(id, sweep)| {
            let told = self.told(id);
            Some(HeldDeletion {
                rule: id,
                copies: told.len(),
                why: if self.all_homeless(id) {
                    "it went with its namespace, and much was lost at once"
                } else {
                    "nobody is known to have deleted it: it may have been lost with its definition"
                },
                nonce: sweep.held.as_deref()?,
                namespaces: told.into_keys().map(|(namespace, ..)| namespace).collect(),
            })
        })
    }

    /// How many copies are left alone since more rules that aren't there have left some in their namespaces than are looked after.
    pub fn beyond_held(&self) -> usize {
        self.sweeps.beyond()
    }

    /// How many cells were looked at so far to find out what becomes of losses.
    pub fn reviewed(&self) -> u64 {
        self.reviewed.get()
    }

    /// Collects a loss that nobody confirmed; a cell that was condemned for it before goes.
    pub(in crate::engine) fn sweep(&mut self, id: &Arc<RuleId>, name: &Arc<str>, cell: &Cell, why: Why) -> Step {
        let Some(seen) = cell.ours() else { return Step::Leave(Leave::Nothing) };
        if cell.condemned == Some(why) {
            return Step::Delete(seen.uid, seen.version, why);
        }
        let stray = !self.rules.contains_key(id);
        if !self.sweeps.has_room(id, name, stray) {
            return Step::Leave(Leave::Undecided);
        }
        let due = self.now + self.settings.sweep;
        let key = (name.clone(), cell.kind, cell.name.clone());
        let known = self.sweeps.get(id).and_then(|sweep| Some((sweep.loss(&key)?.why, sweep.due)));
        let due = match known {
            Some((former, due)) if former == why => due,
            _ => {
                let sweep = self.sweeps.add(id, key, Loss { why, since: self.now, told: None }, stray, due);
                if sweep.due <= self.now {
                    sweep.due = due;
                }
                sweep.due
            }
        };
        if due > self.now {
            self.work.timer(due, Timer::Sweep(id.clone()));
        }
        Step::Leave(Leave::Undecided)
    }

    /// A cell is wanted (again): whatever was lost there is not.
    pub(in crate::engine) fn forgive(&mut self, name: &Arc<str>, kind: KindId, copy: &Arc<str>) {
        if self.sweeps.is_empty() {
            return;
        }
        for id in self.sweeps.forgive(&(name.clone(), kind, copy.clone())) {
            if self.sweeps.get(&id).is_some_and(Sweep::is_empty) {
                self.sweeps.remove(&id);
                self.mark_status_due(&id);
            }
        }
    }

    /// The time of collecting is over: whatever has been lost for that long may go, unless all that is lost is too much. What is
    /// held is looked at again each time that this comes round: the loss may have been undone.
    pub(in crate::engine) fn end_sweep(&mut self, id: &Arc<RuleId>) {
        if self.sweeps.get(id).is_none_or(|sweep| sweep.due > self.now) {
            return;
        }
        self.review(id);
        if self.sweeps.get(id).is_none_or(Sweep::is_empty) {
            self.sweeps.remove(id);
            self.mark_status_due(id);
            return;
        }
        // Copies of a rule that isn't there are only ever collected because it wasn't deleted on purpose, whatever is being read
        // just now. How many they are then doesn't matter, which takes long to find out, and of rules that never were there can be many.
        let unmeant = !self.rules.contains_key(id) && !self.all_homeless(id);
        let mut large = !unmeant && self.loses_much(id);
        if large && id.kind == RuleKind::Replication {
            // What a namespace's owner takes back on purpose is nobody else's to hold.
            if self.awaits_word(id) {
                return;
            }
            self.let_go_what_was_withdrawn(id);
            large = self.loses_much(id);
        }
        if large || unmeant {
            self.hold_back(id);
        } else {
            if self.sweeps.get_mut(id).is_some_and(Sweep::untell) {
                self.show_swept(id);
                self.mark_status_due(id);
            }
            self.let_go_what_is_due(id);
        }
    }

    /// Leaves what is lost to a person, who is told of it.
    fn hold_back(&mut self, id: &Arc<RuleId>) {
        if !self.told_of_most(id) {
            let copies = self.swept_copies(id);
            let nonce = nonce(id, copies.values());
            if let Some(sweep) = self.sweeps.get_mut(id) {
                sweep.tell(nonce, &copies);
            }
            self.news.add(id, Happening::DeletionHeld, [], 0, self.now);
            self.show_swept(id);
        }
        self.mark_status_due(id);
        if !self.confirm_sweep(id) {
            self.prolong_sweep(id);
        }
    }

    /// Whether a person was told of what a rule loses in most namespaces: then what was told stays. Else whoever makes and deletes what
    /// looks like the rule's copies in some would have the nonce change under the hands that type it.
    fn told_of_most(&self, id: &RuleId) -> bool {
        let told = self.told(id);
        let weigh = |all: Vec<&CellKey>| weight(all.into_iter(), Some(1));
        let (told, untold): (Vec<_>, Vec<_>) = self.swept(id).partition(|key| told.contains_key(*key));
        !told.is_empty() && weigh(told) >= weigh(untold)
    }

    /// The copies that a rule loses.
    fn swept_copies(&self, id: &RuleId) -> BTreeMap<CellKey, Uid> {
        let uid =
            |(namespace, kind, name): &CellKey| Some(self.namespaces.get(namespace)?.cell(*kind, name)?.ours()?.uid);
        self.swept(id).filter_map(|key| Some((key.clone(), uid(key)?))).collect()
    }

    /// Those of them of which a person was told, as long as they are what they were then.
    pub(in crate::engine) fn told(&self, id: &RuleId) -> BTreeMap<CellKey, Uid> {
        let mut copies = self.swept_copies(id);
        let told = |key: &CellKey| self.sweeps.get(id).and_then(|sweep| sweep.loss(key)?.told);
        copies.retain(|key, uid| told(key) == Some(*uid));
        copies
    }

    /// Whether all that a rule has lost it lost by going with its namespace.
    fn all_homeless(&self, id: &RuleId) -> bool {
        self.swept(id).all(|(namespace, kind, name)| {
            let cell = self.namespaces.get(namespace).and_then(|entry| entry.cell(*kind, name));
            cell.and_then(|cell| self.how_rule_went_if_known(id, cell)) == Some(HowGone::WithNamespace)
        })
    }

    /// Whether a person is to confirm that the cell's copy goes.
    pub(in crate::engine) fn holds(&self, id: &RuleId, namespace: &Arc<str>, cell: &Cell) -> bool {
        let key = || (namespace.clone(), cell.kind, cell.name.clone());
        self.sweeps.get(id).is_some_and(|sweep| sweep.held.is_some() && sweep.loss(&key()).is_some())
    }

    /// What is held, or isn't any more, looks different to people.
    fn show_swept(&mut self, id: &RuleId) {
        for (name, ..) in self.sweeps.get(id).into_iter().flat_map(Sweep::cells) {
            if let Some(namespace) = self.namespaces.get_mut(name) {
                namespace.changed = self.changes.next();
            }
        }
    }

    /// Whether a rule loses so much that it is held, be it together with others.
    fn loses_much(&mut self, id: &RuleId) -> bool {
        let slots = self.rules.get(id).map(|state| self.slots_had(state));
        let lost = weight(self.swept(id), slots);
        // What it has is only looked for where it loses much.
        let by_itself = lost >= self.settings.sweep_limit && self.much(lost, weight(self.cells_of(id).iter(), slots));
        by_itself || self.tenants_lose_much(id)
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
        let losses = self.sweeps.get(id).into_iter().flat_map(Sweep::losses);
        let Some(began) = losses.map(|(_, loss)| loss.since).min() else { return false };
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
        for (id, sweep) in self.sweeps.iter() {
            let (Some(home), Some(state)) = (id.namespace.as_deref(), self.rules.get(id)) else { continue };
            let lost = sweep.losses().filter(|(_, loss)| loss.since >= since).map(|(key, _)| key);
            let lost = lost.filter(|key| !self.was_withdrawn(id, key));
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
        let keys: Vec<CellKey> = self.swept(id).cloned().collect();
        self.looked_at(keys.len());
        for key in keys {
            let Some(known) = self.sweeps.take(id, &key) else { continue };
            let (name, kind, copy) = &key;
            let Some(namespace) = self.namespaces.remove(name) else { continue };
            if let Some(cell) = namespace.cell(*kind, copy) {
                self.decide(name, &namespace, cell);
            }
            self.namespaces.insert(name.clone(), namespace);
            self.sweeps.resume(id, &key, known);
        }
    }

    fn looked_at(&self, cells: usize) {
        self.reviewed.set(self.reviewed.get() + u64::try_from(cells).unwrap_or_default());
    }

    fn let_go_what_is_due(&mut self, id: &Arc<RuleId>) {
        let time = self.settings.sweep;
        let losses = || self.sweeps.get(id).into_iter().flat_map(Sweep::losses);
        let ends = |loss: &Loss| loss.since + time;
        let gone: Vec<CellKey> =
            losses().filter(|(_, loss)| ends(loss) <= self.now).map(|(key, _)| key.clone()).collect();
        let next = losses().map(|(_, loss)| ends(loss)).filter(|end| *end > self.now).min();
        let gone = self.take_all(id, &gone);
        match (next, self.sweeps.get_mut(id)) {
            (Some(due), Some(sweep)) => {
                sweep.due = due;
                self.work.timer(due, Timer::Sweep(id.clone()));
            }
            _ => drop(self.sweeps.remove(id)),
        }
        self.condemn(gone);
    }

    fn take_all(&mut self, id: &RuleId, keys: &[CellKey]) -> BTreeMap<CellKey, Loss> {
        keys.iter().filter_map(|key| Some((key.clone(), self.sweeps.take(id, key)?))).collect()
    }

    /// Lets go what a person was told of and has confirmed, on the rule or on the kinds `ConfigMap`. Tells whether. What else was lost
    /// meanwhile is collected on, and has another nonce.
    pub(in crate::engine) fn confirm_sweep(&mut self, id: &Arc<RuleId>) -> bool {
        let Some(held) = self.sweeps.get(id).and_then(|sweep| sweep.held.as_ref()) else { return false };
        let rule = self.rules.get(id).and_then(|state| state.rule.as_ref().ok());
        let confirmed = [rule.and_then(|rule| rule.confirm_deletion.as_ref()), self.confirmed.as_ref()];
        if !confirmed.contains(&Some(held)) {
            return false;
        }
        let told: Vec<CellKey> = self.told(id).into_keys().collect();
        let gone = self.take_all(id, &told);
        match self.sweeps.get_mut(id).filter(|sweep| !sweep.is_empty()) {
            Some(rest) => {
                rest.untell();
                self.prolong_sweep(id);
            }
            None => drop(self.sweeps.remove(id)),
        }
        self.condemn(gone);
        self.mark_status_due(id);
        true
    }

    /// Lets go what the namespaces concerned are known to have taken back.
    fn let_go_what_was_withdrawn(&mut self, id: &RuleId) {
        let withdrawn: Vec<CellKey> = self.swept(id).filter(|key| self.was_withdrawn(id, key)).cloned().collect();
        let gone = self.take_all(id, &withdrawn);
        self.condemn(gone);
    }

    /// Once so much is known of what was withdrawn, the time of collecting is over for these.
    pub(in crate::engine) fn end_sweeps(&mut self, ids: BTreeSet<Arc<RuleId>>) {
        for id in ids {
            if let Some(sweep) = self.sweeps.get_mut(&id) {
                sweep.due = self.now;
                self.work.timer(self.now, Timer::Sweep(id));
            }
        }
    }

    /// The time of collecting goes on.
    pub(in crate::engine) fn prolong_sweep(&mut self, id: &Arc<RuleId>) {
        if let Some(sweep) = self.sweeps.get_mut(id) {
            sweep.due = self.now + self.settings.sweep;
            self.work.timer(sweep.due, Timer::Sweep(id.clone()));
        }
    }

    /// The cells that a rule loses.
    pub(in crate::engine) fn swept(&self, id: &RuleId) -> impl Iterator<Item = &CellKey> {
        self.sweeps.get(id).into_iter().flat_map(Sweep::cells)
    }

    fn condemn(&mut self, cells: BTreeMap<CellKey, Loss>) {
        for ((namespace, kind, name), Loss { why, .. }) in cells {
            let Some(entry) = self.namespaces.get_mut(&namespace) else { continue };
            if let Some(cell) = entry.cell_mut(kind, &name) {
                cell.condemned = Some(why);
                cell.retry_now();
                self.dirty.insert(namespace);
            }
        }
    }

    /// Every cell that holds a copy of the rule, here to stay as far as was decided.
    pub(in crate::engine) fn cells_of(&self, id: &RuleId) -> Vec<CellKey> {
        let mut keys = Vec::new();
        for name in &self.places(id) {
            let Some(namespace) = self.namespaces.get(name) else { continue };
            self.looked_at(namespace.cells.len());
            for cell in namespace.cells.iter().filter(|cell| cell.condemned.is_none()) {
                let mut copy = cell.ours().into_iter().filter(|seen| !seen.elsewhere && !seen.deleting);
                if copy.any(|seen| seen.rule.as_deref() == Some(id)) {
                    keys.push((name.clone(), cell.kind, cell.name.clone()));
                }
            }
        }
        keys
    }
}

impl RuleState {
    /// How many copies it has in a namespace, if it has one of each slot.
    fn copies_at_most(&self) -> usize {
        self.slots.iter().map(Vec::len).sum()
    }
}

/// Names exactly these copies: confirming that few go doesn't confirm it of more, and neither does what was confirmed once confirm the
/// next loss of the same places.
fn nonce<'a>(id: &RuleId, copies: impl Iterator<Item = &'a Uid>) -> Box<str> {
    let text: String = std::iter::once(id.to_string()).chain(copies.map(Uid::to_string)).collect();
    format!("{:08x}", Checksum::of(text.as_bytes()).short() >> 32).into()
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
