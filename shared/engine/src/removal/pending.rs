//! Unconfirmed losses of a rule's copies. Mimeo collects them for a while and then deletes the
//! copies. If the losses are large, it holds the deletion until a user confirms it. The collected
//! losses of one rule are its pending deletion.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mimeo_model::{
    id::{KindId, RuleId},
    meta::{Checksum, Uid},
};

use crate::{
    Engine, Index, Settings,
    absent::HowGone,
    announce::{Happening, places},
    cell::{Cell, Why},
    clock::Tick,
    losses::{CellKey, Held, Loss, PendingDeletion},
    work::Timer,
};

/// A held deletion of copies after the end of their rule. It has the facts that the rule's status
/// would show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDeletion<'a> {
    /// The rule.
    pub rule: &'a RuleId,
    /// The number of copies.
    pub copies: usize,
    /// Why Mimeo does not delete them without a confirmation, as a clause.
    pub why: &'static str,
    /// The value that a user must repeat to confirm the deletion. It stands for exactly these
    /// copies.
    pub nonce: &'a str,
    namespaces: Vec<Arc<str>>,
}

impl HeldDeletion<'_> {
    /// Returns the number of namespaces with such copies, and the names of the first three.
    pub fn places(&self) -> String {
        let mut namespaces: Vec<&Arc<str>> = self.namespaces.iter().collect();
        namespaces.dedup();
        places(&namespaces)
    }
}

impl Index {
    fn approve_deletion(&mut self, cells: BTreeMap<CellKey, Loss>) {
        for ((namespace, kind, name), Loss { why, .. }) in cells {
            let Some(entry) = self.namespaces.get_mut(&namespace) else {
                continue;
            };
            if let Some(cell) = entry.cell_mut(kind, &name) {
                cell.approved = Some(why);
                cell.retry_now();
                self.dirty.insert(namespace);
            }
        }
    }
}

impl Engine {
    /// Records the nonce that the kinds `ConfigMap` carries, if it carries one. The held deletion
    /// with this nonce may go ahead.
    pub fn confirmed(&mut self, nonce: Option<&str>, now: Tick) {
        self.index.at(now);
        self.deletion.confirmed = nonce.map(Into::into);
        let ids: Vec<Arc<RuleId>> = self.deletion.pending.rules().cloned().collect();
        for id in ids {
            self.confirm_deletion(&id);
        }
    }

    /// Returns the held deletions of rules that no longer exist, those of `ClusterReplication`s
    /// first. They have no status in which a user could read them.
    pub fn held(&self) -> impl Iterator<Item = HeldDeletion<'_>> {
        let gone =
            self.deletion.pending.iter().filter(|(id, pending)| {
                pending.held.is_some() && !self.index.rules.contains_key(*id)
            });
        gone.filter_map(|(id, pending)| {
            let told = self.told(id);
            Some(HeldDeletion {
                rule: id,
                copies: told.len(),
                why: if self.all_homeless(id) {
                    "it was deleted with its namespace, and many copies were lost at once"
                } else {
                    "Mimeo did not see its deletion: it may have been lost with its CRD"
                },
                nonce: &pending.held.as_ref()?.nonce,
                namespaces: told.into_keys().map(|(namespace, ..)| namespace).collect(),
            })
        })
    }

    /// The number of cells looked at so far in decisions about losses.
    pub fn reviewed(&self) -> u64 {
        self.effort.reviewed.get()
    }

    /// Collects an unconfirmed loss.
    pub(crate) fn collect_loss(&mut self, id: &Arc<RuleId>, key: CellKey, why: Why) {
        let due = self.index.now + self.index.settings.deletion_delay;
        let known = self
            .deletion
            .pending
            .get(id)
            .and_then(|pending| Some((pending.loss(&key)?.why, pending.due)));
        let due = match known {
            Some((former, due)) if former == why => due,
            _ => {
                self.deletion
                    .pending
                    .add(
                        id,
                        key,
                        Loss {
                            why,
                            since: self.index.now,
                        },
                        due,
                    )
                    .due
            }
        };
        if due > self.index.now {
            self.work.timer(due, Timer::PendingDeletion(id.clone()));
        }
    }

    /// Removes a cell from the losses because a rule wants it (again).
    pub(crate) fn forgive(&mut self, name: &Arc<str>, kind: KindId, copy: &Arc<str>) {
        let Some(id) = self
            .deletion
            .pending
            .forgive(&(name.clone(), kind, copy.clone()))
        else {
            return;
        };
        let Some(pending) = self
            .deletion
            .pending
            .get_mut(&id)
            .filter(|pending| pending.is_idle())
        else {
            return;
        };
        pending.held = None;
        if pending.is_over() {
            self.deletion.pending.remove(&id);
        }
        self.index.mark_status_due(&id);
    }

    /// Ends the collecting time of a rule's pending deletion. Copies that have been lost for the
    /// whole time may be deleted, unless the rule has lost too much in all. A held deletion is
    /// reviewed each time, because the loss may have been undone.
    pub(crate) fn end_collecting(&mut self, id: &Arc<RuleId>) {
        if self
            .deletion
            .pending
            .get(id)
            .is_none_or(|pending| pending.due > self.index.now)
        {
            return;
        }
        self.review(id);
        if let Some(since) = self
            .index
            .now
            .checked_sub(self.index.settings.deletion_window)
        {
            self.deletion.pending.expire(id, since);
        }
        if self
            .deletion
            .pending
            .get(id)
            .is_none_or(PendingDeletion::is_over)
        {
            self.deletion.pending.remove(id);
            self.index.mark_status_due(id);
            return;
        }
        // If the rule does not exist, its copies are collected only because no deliberate deletion
        // of the rule is known. Then the number of copies doesn't matter. Counting them would take
        // long, and copies can name many rules that never existed.
        let unmeant = !self.index.rules.contains_key(id) && !self.all_homeless(id);
        if unmeant || self.loses_much(id) {
            self.hold_back(id);
        } else {
            if self
                .deletion
                .pending
                .get_mut(id)
                .is_some_and(|pending| pending.held.take().is_some())
            {
                self.show_pending(id);
                self.index.mark_status_due(id);
            }
            self.let_go_what_is_due(id);
        }
    }

    /// Holds the deletion of the lost copies and reports it to users. Copies that are lost later
    /// wait for their own confirmation.
    fn hold_back(&mut self, id: &Arc<RuleId>) {
        if self.told(id).is_empty() {
            let copies = self.pending_copies(id);
            let nonce = nonce(id, copies.values());
            if let Some(pending) = self.deletion.pending.get_mut(id) {
                pending.held = Some(Held { nonce, copies });
            }
            self.report
                .news
                .add(id, Happening::DeletionHeld, [], 0, self.index.now);
            self.show_pending(id);
        }
        self.index.mark_status_due(id);
        if !self.confirm_deletion(id) {
            self.collect_longer(id);
        }
    }

    /// The lost copies of a rule, with their uids.
    fn pending_copies(&self, id: &RuleId) -> BTreeMap<CellKey, Uid> {
        let uid = |(namespace, kind, name): &CellKey| {
            Some(
                self.index
                    .namespaces
                    .get(namespace)?
                    .cell(*kind, name)?
                    .ours()?
                    .uid,
            )
        };
        self.collected(id)
            .filter_map(|key| Some((key.clone(), uid(key)?)))
            .collect()
    }

    /// Returns the lost copies that the current nonce stands for. A copy with another uid than
    /// before is not among them.
    pub(crate) fn told(&self, id: &RuleId) -> BTreeMap<CellKey, Uid> {
        let Some(held) = self.deletion.pending.held(id) else {
            return BTreeMap::new();
        };
        let mut copies = self.pending_copies(id);
        copies.retain(|key, uid| held.copies.get(key) == Some(uid));
        copies
    }

    /// True if the rule lost all of these copies because it disappeared with its namespace.
    fn all_homeless(&self, id: &RuleId) -> bool {
        self.collected(id).all(|(namespace, kind, name)| {
            let cell = self
                .index
                .namespaces
                .get(namespace)
                .and_then(|entry| entry.cell(*kind, name));
            cell.and_then(|cell| self.index.how_rule_went_if_known(id, cell))
                == Some(HowGone::WithNamespace)
        })
    }

    /// True if the copy in the cell waits for a confirmation of its deletion.
    pub(crate) fn holds(&self, id: &RuleId, namespace: &Arc<str>, cell: &Cell) -> bool {
        let key = || (namespace.clone(), cell.kind, cell.name.clone());
        self.deletion
            .pending
            .get(id)
            .is_some_and(|pending| pending.held.is_some() && pending.loss(&key()).is_some())
    }

    /// Marks the namespaces of the collected copies as changed: a copy looks different to users
    /// once its deletion is held, or is no longer held.
    fn show_pending(&mut self, id: &RuleId) {
        for (name, ..) in self
            .deletion
            .pending
            .get(id)
            .into_iter()
            .flat_map(PendingDeletion::cells)
        {
            if let Some(namespace) = self.index.namespaces.get_mut(name) {
                namespace.changed = self.report.changes.next();
            }
        }
    }

    /// True if the rule loses so many copies that the deletion is held: at least the limit, and at
    /// least half of the rule's copies.
    fn loses_much(&self, id: &RuleId) -> bool {
        let Some(pending) = self
            .deletion
            .pending
            .get(id)
            .filter(|pending| !pending.is_idle())
        else {
            return false;
        };
        let lost = pending.len() + pending.gone().count();
        // Only a large loss justifies counting all copies of the rule.
        lost >= self.index.settings.deletion_limit && lost >= self.kept(id)
    }

    /// Decides every collected cell again. Only cells that are still lost for the same reason keep
    /// the start of their loss. The verdicts are not stored: the next plan does that, and may also
    /// queue the cells.
    fn review(&mut self, id: &Arc<RuleId>) {
        let keys: Vec<CellKey> = self.collected(id).cloned().collect();
        self.looked_at(keys.len());
        for key in keys {
            let Some(known) = self.deletion.pending.take(id, &key) else {
                continue;
            };
            let (name, kind, copy) = &key;
            let Some(namespace) = self.index.namespaces.remove(name) else {
                continue;
            };
            if let Some(cell) = namespace.cell(*kind, copy) {
                let (_, needs) = self.index.decide(name, &namespace, cell);
                self.adopt(name, (*kind, copy), needs);
            }
            self.index.namespaces.insert(name.clone(), namespace);
            self.deletion.pending.resume(id, &key, known);
        }
    }

    fn looked_at(&self, cells: usize) {
        self.effort
            .reviewed
            .set(self.effort.reviewed.get() + u64::try_from(cells).unwrap_or_default());
    }

    fn let_go_what_is_due(&mut self, id: &Arc<RuleId>) {
        let Settings {
            deletion_delay: time,
            deletion_window: window,
            ..
        } = self.index.settings;
        let Some(pending) = self.deletion.pending.get(id) else {
            return;
        };
        let ended = |loss: &Loss| loss.since + time <= self.index.now;
        let gone: Vec<CellKey> = pending
            .losses()
            .filter(|(_, loss)| ended(loss))
            .map(|(key, _)| key.clone())
            .collect();
        let gone = self.take_all(id, &gone);
        for key in gone.keys() {
            self.deletion
                .pending
                .let_go(id, key.clone(), self.index.now);
        }
        if let Some(pending) = self.deletion.pending.get_mut(id) {
            let collected = pending.losses().map(|(_, loss)| loss.since + time);
            // The deletion no longer counts one millisecond after the window.
            let counted = pending
                .gone()
                .map(|at| at + window + Duration::from_millis(1));
            if let Some(due) = collected.chain(counted).min() {
                pending.due = due;
                self.work.timer(due, Timer::PendingDeletion(id.clone()));
            }
        }
        self.index.approve_deletion(gone);
    }

    fn take_all(&mut self, id: &RuleId, keys: &[CellKey]) -> BTreeMap<CellKey, Loss> {
        keys.iter()
            .filter_map(|key| Some((key.clone(), self.deletion.pending.take(id, key)?)))
            .collect()
    }

    /// Approves the held deletion if a user has confirmed it, on the rule or on the kinds
    /// `ConfigMap`. Returns true in that case. Copies that were lost since stay collected, and get
    /// another nonce.
    pub(crate) fn confirm_deletion(&mut self, id: &Arc<RuleId>) -> bool {
        let Some(held) = self.deletion.pending.held(id) else {
            return false;
        };
        let rule = self
            .index
            .rules
            .get(id)
            .and_then(|state| state.rule.as_ref().ok());
        let confirmed = [
            rule.and_then(|rule| rule.confirm_deletion.as_ref()),
            self.deletion.confirmed.as_ref(),
        ];
        if !confirmed.contains(&Some(&held.nonce)) {
            return false;
        }
        let told: Vec<CellKey> = self.told(id).into_keys().collect();
        let gone = self.take_all(id, &told);
        if let Some(pending) = self.deletion.pending.get_mut(id) {
            pending.held = None;
            if pending.is_over() {
                self.deletion.pending.remove(id);
            } else {
                self.collect_longer(id);
            }
        }
        self.index.approve_deletion(gone);
        self.index.mark_status_due(id);
        true
    }

    /// Starts another collecting time for a rule's pending deletion.
    pub(crate) fn collect_longer(&mut self, id: &Arc<RuleId>) {
        if let Some(pending) = self.deletion.pending.get_mut(id) {
            pending.due = self.index.now + self.index.settings.deletion_delay;
            self.work
                .timer(pending.due, Timer::PendingDeletion(id.clone()));
        }
    }

    /// The cells that a rule loses.
    pub(crate) fn collected(&self, id: &RuleId) -> impl Iterator<Item = &CellKey> {
        self.deletion
            .pending
            .get(id)
            .into_iter()
            .flat_map(PendingDeletion::cells)
    }

    /// The number of copies that the rule has and keeps. Only wanted copies count. Objects
    /// elsewhere that only look like the rule's copies must not make a loss seem small.
    fn kept(&self, id: &RuleId) -> usize {
        let mut kept = 0;
        for name in &self.index.places(id) {
            let Some(namespace) = self.index.namespaces.get(name) else {
                continue;
            };
            self.looked_at(namespace.cells.len());
            for cell in namespace
                .cells
                .iter()
                .filter(|cell| cell.approved.is_none())
            {
                let wanted = cell
                    .want
                    .and_then(|slot| self.index.slots.get(&slot))
                    .is_some_and(|slot| *slot.rule == *id);
                let stays = cell
                    .ours()
                    .is_some_and(|seen| !seen.elsewhere && !seen.deleting);
                let lost = || {
                    let key = (name.clone(), cell.kind, cell.name.clone());
                    self.deletion
                        .pending
                        .get(id)
                        .is_some_and(|pending| pending.loss(&key).is_some())
                };
                kept += usize::from(wanted && stays && !lost());
            }
        }
        kept
    }
}

/// Returns a nonce for exactly these copies. A confirmation for few copies therefore doesn't
/// confirm more of them. A confirmation from before doesn't confirm the next loss of the same
/// cells.
fn nonce<'a>(id: &RuleId, copies: impl Iterator<Item = &'a Uid>) -> Box<str> {
    let text: String = std::iter::once(id.to_string())
        .chain(copies.map(Uid::to_string))
        .collect();
    format!("{:08x}", Checksum::of(text.as_bytes()).short() >> 32).into()
}
