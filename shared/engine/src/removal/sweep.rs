//! Losses that nobody confirmed: collected for a while, and held when they are large until a person
//! confirms them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mimeo_model::{
    id::{KindId, RuleId},
    meta::{Checksum, Uid},
};

use crate::{
    Engine, Settings,
    absent::HowGone,
    announce::{Happening, places},
    cell::{Cell, Leave, Step, Why},
    clock::Tick,
    losses::{CellKey, Held, Loss, Sweep},
    work::Timer,
};

/// Copies of a rule that is gone, whose deletion waits for a person: what the rule's status would
/// say.
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

impl Engine {
    /// The nonce that a person repeated on the kinds `ConfigMap`, if there is one: that held
    /// deletion may go ahead.
    pub fn confirmed(&mut self, nonce: Option<&str>, now: Tick) {
        self.at(now);
        self.confirmed = nonce.map(Into::into);
        let ids: Vec<Arc<RuleId>> = self.sweeps.rules().cloned().collect();
        for id in ids {
            self.confirm_sweep(&id);
        }
    }

    /// Held deletions of rules that no longer exist, for the one who can't read them in a status;
    /// the platform's first.
    pub fn held(&self) -> impl Iterator<Item = HeldDeletion<'_>> {
        let gone = self
            .sweeps
            .iter()
            .filter(|(id, sweep)| sweep.held.is_some() && !self.rules.contains_key(*id));
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
                nonce: &sweep.held.as_ref()?.nonce,
                namespaces: told.into_keys().map(|(namespace, ..)| namespace).collect(),
            })
        })
    }

    /// How many cells were looked at so far to find out what becomes of losses.
    pub fn reviewed(&self) -> u64 {
        self.reviewed.get()
    }

    /// Collects a loss that nobody confirmed; a cell that was condemned for it before goes.
    pub(crate) fn sweep(
        &mut self,
        id: &Arc<RuleId>,
        name: &Arc<str>,
        cell: &Cell,
        why: Why,
    ) -> Step {
        let Some(seen) = cell.ours() else {
            return Step::Leave(Leave::Nothing);
        };
        if cell.condemned == Some(why) {
            return Step::Delete(seen.uid, seen.version, why);
        }
        let due = self.now + self.settings.sweep;
        let key = (name.clone(), cell.kind, cell.name.clone());
        let known = self
            .sweeps
            .get(id)
            .and_then(|sweep| Some((sweep.loss(&key)?.why, sweep.due)));
        let due = match known {
            Some((former, due)) if former == why => due,
            _ => {
                self.sweeps
                    .add(
                        id,
                        key,
                        Loss {
                            why,
                            since: self.now,
                        },
                        due,
                    )
                    .due
            }
        };
        if due > self.now {
            self.work.timer(due, Timer::Sweep(id.clone()));
        }
        Step::Leave(Leave::Undecided)
    }

    /// A cell is wanted (again): whatever was lost there is not.
    pub(crate) fn forgive(&mut self, name: &Arc<str>, kind: KindId, copy: &Arc<str>) {
        let Some(id) = self.sweeps.forgive(&(name.clone(), kind, copy.clone())) else {
            return;
        };
        let Some(sweep) = self.sweeps.get_mut(&id).filter(|sweep| sweep.is_idle()) else {
            return;
        };
        sweep.held = None;
        if sweep.is_over() {
            self.sweeps.remove(&id);
        }
        self.mark_status_due(&id);
    }

    /// The time of collecting is over: whatever has been lost for that long may go, unless all that
    /// is lost is too much. What is held is looked at again each time that this comes round: the
    /// loss may have been undone.
    pub(crate) fn end_sweep(&mut self, id: &Arc<RuleId>) {
        if self.sweeps.get(id).is_none_or(|sweep| sweep.due > self.now) {
            return;
        }
        self.review(id);
        if let Some(since) = self.now.checked_sub(self.settings.sweep_window) {
            self.sweeps.expire(id, since);
        }
        if self.sweeps.get(id).is_none_or(Sweep::is_over) {
            self.sweeps.remove(id);
            self.mark_status_due(id);
            return;
        }
        // Copies of a rule that isn't there are only ever collected because it wasn't deleted on
        // purpose, whatever is being read just now. How many they are then doesn't matter, which
        // takes long to find out, and of rules that never were there can be many.
        let unmeant = !self.rules.contains_key(id) && !self.all_homeless(id);
        if unmeant || self.loses_much(id) {
            self.hold_back(id);
        } else {
            if self
                .sweeps
                .get_mut(id)
                .is_some_and(|sweep| sweep.held.take().is_some())
            {
                self.show_swept(id);
                self.mark_status_due(id);
            }
            self.let_go_what_is_due(id);
        }
    }

    /// Leaves what is lost to a person, who is told of it. What is lost after that waits for its
    /// turn.
    fn hold_back(&mut self, id: &Arc<RuleId>) {
        if self.told(id).is_empty() {
            let copies = self.swept_copies(id);
            let nonce = nonce(id, copies.values());
            if let Some(sweep) = self.sweeps.get_mut(id) {
                sweep.held = Some(Held { nonce, copies });
            }
            self.news.add(id, Happening::DeletionHeld, [], 0, self.now);
            self.show_swept(id);
        }
        self.mark_status_due(id);
        if !self.confirm_sweep(id) {
            self.prolong_sweep(id);
        }
    }

    /// The copies that a rule loses.
    fn swept_copies(&self, id: &RuleId) -> BTreeMap<CellKey, Uid> {
        let uid = |(namespace, kind, name): &CellKey| {
            Some(
                self.namespaces
                    .get(namespace)?
                    .cell(*kind, name)?
                    .ours()?
                    .uid,
            )
        };
        self.swept(id)
            .filter_map(|key| Some((key.clone(), uid(key)?)))
            .collect()
    }

    /// Those of them of which a person was told, as long as they are what they were then.
    pub(crate) fn told(&self, id: &RuleId) -> BTreeMap<CellKey, Uid> {
        let Some(held) = self.sweeps.get(id).and_then(|sweep| sweep.held.as_ref()) else {
            return BTreeMap::new();
        };
        let mut copies = self.swept_copies(id);
        copies.retain(|key, uid| held.copies.get(key) == Some(uid));
        copies
    }

    /// Whether all that a rule has lost it lost by going with its namespace.
    fn all_homeless(&self, id: &RuleId) -> bool {
        self.swept(id).all(|(namespace, kind, name)| {
            let cell = self
                .namespaces
                .get(namespace)
                .and_then(|entry| entry.cell(*kind, name));
            cell.and_then(|cell| self.how_rule_went_if_known(id, cell))
                == Some(HowGone::WithNamespace)
        })
    }

    /// Whether a person is to confirm that the cell's copy goes.
    pub(crate) fn holds(&self, id: &RuleId, namespace: &Arc<str>, cell: &Cell) -> bool {
        let key = || (namespace.clone(), cell.kind, cell.name.clone());
        self.sweeps
            .get(id)
            .is_some_and(|sweep| sweep.held.is_some() && sweep.loss(&key()).is_some())
    }

    /// What is held, or isn't any more, looks different to people.
    fn show_swept(&mut self, id: &RuleId) {
        for (name, ..) in self.sweeps.get(id).into_iter().flat_map(Sweep::cells) {
            if let Some(namespace) = self.namespaces.get_mut(name) {
                namespace.changed = self.changes.next();
            }
        }
    }

    /// Whether a rule loses so much that it is held: at least the limit, and half of its copies.
    fn loses_much(&self, id: &RuleId) -> bool {
        let Some(sweep) = self.sweeps.get(id).filter(|sweep| !sweep.is_idle()) else {
            return false;
        };
        let lost = sweep.len() + sweep.gone().count();
        // Only a large loss is worth the count of all that the rule has.
        lost >= self.settings.sweep_limit && lost >= self.kept(id)
    }

    /// Decides about every collected cell anew, so that only those stay that are still lost for the
    /// same reason.
    fn review(&mut self, id: &Arc<RuleId>) {
        let keys: Vec<CellKey> = self.swept(id).cloned().collect();
        self.looked_at(keys.len());
        for key in keys {
            let Some(known) = self.sweeps.take(id, &key) else {
                continue;
            };
            let (name, kind, copy) = &key;
            let Some(namespace) = self.namespaces.remove(name) else {
                continue;
            };
            if let Some(cell) = namespace.cell(*kind, copy) {
                self.decide(name, &namespace, cell);
            }
            self.namespaces.insert(name.clone(), namespace);
            self.sweeps.resume(id, &key, known);
        }
    }

    fn looked_at(&self, cells: usize) {
        self.reviewed
            .set(self.reviewed.get() + u64::try_from(cells).unwrap_or_default());
    }

    fn let_go_what_is_due(&mut self, id: &Arc<RuleId>) {
        let Settings {
            sweep: time,
            sweep_window: window,
            ..
        } = self.settings;
        let Some(sweep) = self.sweeps.get(id) else {
            return;
        };
        let ended = |loss: &Loss| loss.since + time <= self.now;
        let gone: Vec<CellKey> = sweep
            .losses()
            .filter(|(_, loss)| ended(loss))
            .map(|(key, _)| key.clone())
            .collect();
        let gone = self.take_all(id, &gone);
        for key in gone.keys() {
            self.sweeps.let_go(id, key.clone(), self.now);
        }
        if let Some(sweep) = self.sweeps.get_mut(id) {
            let collected = sweep.losses().map(|(_, loss)| loss.since + time);
            // A moment later it counts no more.
            let counted = sweep
                .gone()
                .map(|at| at + window + Duration::from_millis(1));
            if let Some(due) = collected.chain(counted).min() {
                sweep.due = due;
                self.work.timer(due, Timer::Sweep(id.clone()));
            }
        }
        self.condemn(gone);
    }

    fn take_all(&mut self, id: &RuleId, keys: &[CellKey]) -> BTreeMap<CellKey, Loss> {
        keys.iter()
            .filter_map(|key| Some((key.clone(), self.sweeps.take(id, key)?)))
            .collect()
    }

    /// Lets go what a person was told of and has confirmed, on the rule or on the kinds
    /// `ConfigMap`. Tells whether. What else was lost meanwhile is collected on, and has another
    /// nonce.
    pub(crate) fn confirm_sweep(&mut self, id: &Arc<RuleId>) -> bool {
        let Some(held) = self.sweeps.get(id).and_then(|sweep| sweep.held.as_ref()) else {
            return false;
        };
        let rule = self
            .rules
            .get(id)
            .and_then(|state| state.rule.as_ref().ok());
        let confirmed = [
            rule.and_then(|rule| rule.confirm_deletion.as_ref()),
            self.confirmed.as_ref(),
        ];
        if !confirmed.contains(&Some(&held.nonce)) {
            return false;
        }
        let told: Vec<CellKey> = self.told(id).into_keys().collect();
        let gone = self.take_all(id, &told);
        if let Some(sweep) = self.sweeps.get_mut(id) {
            sweep.held = None;
            if sweep.is_over() {
                self.sweeps.remove(id);
            } else {
                self.prolong_sweep(id);
            }
        }
        self.condemn(gone);
        self.mark_status_due(id);
        true
    }

    /// The time of collecting goes on.
    pub(crate) fn prolong_sweep(&mut self, id: &Arc<RuleId>) {
        if let Some(sweep) = self.sweeps.get_mut(id) {
            sweep.due = self.now + self.settings.sweep;
            self.work.timer(sweep.due, Timer::Sweep(id.clone()));
        }
    }

    /// The cells that a rule loses.
    pub(crate) fn swept(&self, id: &RuleId) -> impl Iterator<Item = &CellKey> {
        self.sweeps.get(id).into_iter().flat_map(Sweep::cells)
    }

    fn condemn(&mut self, cells: BTreeMap<CellKey, Loss>) {
        for ((namespace, kind, name), Loss { why, .. }) in cells {
            let Some(entry) = self.namespaces.get_mut(&namespace) else {
                continue;
            };
            if let Some(cell) = entry.cell_mut(kind, &name) {
                cell.condemned = Some(why);
                cell.retry_now();
                self.dirty.insert(namespace);
            }
        }
    }

    /// How many copies the rule has and keeps. Nothing but what it wants counts: what merely looks
    /// like its copies elsewhere makes no loss seem little.
    fn kept(&self, id: &RuleId) -> usize {
        let mut kept = 0;
        for name in &self.places(id) {
            let Some(namespace) = self.namespaces.get(name) else {
                continue;
            };
            self.looked_at(namespace.cells.len());
            for cell in namespace
                .cells
                .iter()
                .filter(|cell| cell.condemned.is_none())
            {
                let wanted = cell
                    .want
                    .and_then(|slot| self.slots.get(&slot))
                    .is_some_and(|slot| *slot.rule == *id);
                let stays = cell
                    .ours()
                    .is_some_and(|seen| !seen.elsewhere && !seen.deleting);
                let lost = || {
                    let key = (name.clone(), cell.kind, cell.name.clone());
                    self.sweeps
                        .get(id)
                        .is_some_and(|sweep| sweep.loss(&key).is_some())
                };
                kept += usize::from(wanted && stays && !lost());
            }
        }
        kept
    }
}

/// Names exactly these copies: confirming that few go doesn't confirm it of more, and neither does
/// what was confirmed once confirm the next loss of the same places.
fn nonce<'a>(id: &RuleId, copies: impl Iterator<Item = &'a Uid>) -> Box<str> {
    let text: String = std::iter::once(id.to_string())
        .chain(copies.map(Uid::to_string))
        .collect();
    format!("{:08x}", Checksum::of(text.as_bytes()).short() >> 32).into()
}
