//! Unconfirmed losses of a rule's copies. Mimeo collects them for a while and then deletes the
//! copies. If the losses are large, it holds the deletion until a user confirms it. The collected
//! losses of one rule are its pending deletion.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mimeo_model::{
    id::RuleId,
    meta::{Checksum, Uid},
};

use crate::{
    Effects, Effort, Index, RuleState, Settings,
    absent::HowGone,
    copy::{CopyKey, CopyState, Why},
    events::{EventCause, places},
    losses::{Held, Loss, LossEvent, PendingDeletion, PendingDeletions},
    work::Timer,
};

/// A held deletion of copies after the end of their rule. It has the facts that the rule's status
/// would show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDeletion<'a> {
    /// The rule.
    pub rule: &'a RuleId,
    /// The copies, by namespace.
    pub copies: Vec<HeldCopy<'a>>,
    /// Why Mimeo does not delete them without a confirmation, as a clause.
    pub why: &'static str,
    /// The value that a user must repeat to confirm the deletion. It stands for exactly these
    /// copies.
    pub nonce: &'a str,
}

/// A copy whose deletion is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCopy<'a> {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its kind.
    pub kind: &'a str,
    /// Its name.
    pub name: Arc<str>,
}

impl HeldDeletion<'_> {
    /// Returns the number of namespaces with such copies, and the names of the first three.
    pub fn places(&self) -> String {
        let mut namespaces: Vec<&Arc<str>> =
            self.copies.iter().map(|copy| &copy.namespace).collect();
        namespaces.dedup();
        places(&namespaces)
    }
}

impl Index {
    fn approve_deletion(&mut self, copies: BTreeMap<CopyKey, Loss>) {
        for (key, Loss { why, .. }) in copies {
            if let Some(copy) = self.copy_mut(&key) {
                copy.approved = Some(why);
                copy.retry_now();
                self.dirty.insert(key.0);
            }
        }
    }
}

impl PendingDeletions {
    /// Takes in the losses that decisions have found, and the other events about losses.
    pub(crate) fn take_in(&mut self, index: &mut Index, effects: &mut Effects) {
        for event in std::mem::take(&mut effects.losses) {
            match event {
                LossEvent::Lost(id, key, why) => self.collect(&id, key, why, index, effects),
                LossEvent::Wanted(key) => self.forgive(&key, index),
                LossEvent::RuleGone(id) => self.remove(&id),
                LossEvent::Confirmed(id) => _ = self.confirm(&id, index, effects),
                LossEvent::Due(id) => self.end_collecting(&id, index, effects),
            }
        }
    }

    /// Records the nonce that the kinds `ConfigMap` carries, if it carries one. The held deletion
    /// with this nonce may go ahead.
    pub(crate) fn confirmed(
        &mut self,
        nonce: Option<&str>,
        index: &mut Index,
        effects: &mut Effects,
    ) {
        self.confirmed = nonce.map(Into::into);
        let ids: Vec<Arc<RuleId>> = self.rules().cloned().collect();
        for id in ids {
            self.confirm(&id, index, effects);
        }
    }

    /// Returns the held deletions of rules that no longer exist, those of `ClusterReplication`s
    /// first. They have no status in which a user could read them.
    pub(crate) fn held_of_gone<'a>(
        &'a self,
        index: &'a Index,
    ) -> impl Iterator<Item = HeldDeletion<'a>> {
        let gone = self.iter().filter(|(id, _)| !index.rules.contains_key(*id));
        gone.filter_map(|(id, pending)| {
            let held = pending.held.as_ref()?;
            let copies = self.held_copies(id, index);
            Some(HeldDeletion {
                rule: id,
                copies: copies
                    .into_keys()
                    .map(|(namespace, kind, name)| HeldCopy {
                        namespace,
                        kind: index.kind_of(kind),
                        name,
                    })
                    .collect(),
                why: if all_homeless(id, pending, index) {
                    "it was deleted with its namespace, and many copies were lost at once"
                } else {
                    "Mimeo did not see its deletion: it may have been lost with its CRD"
                },
                nonce: &held.nonce,
            })
        })
    }

    /// Collects an unconfirmed loss.
    fn collect(
        &mut self,
        id: &Arc<RuleId>,
        key: CopyKey,
        why: Why,
        index: &Index,
        effects: &mut Effects,
    ) {
        let since = index.now;
        let known = self
            .get(id)
            .and_then(|pending| Some((pending.loss(&key)?.why, pending.due)));
        let due = match known {
            Some((former, due)) if former == why => due,
            _ => {
                let due = since + index.settings.deletion_delay;
                self.add(id, key, Loss { why, since }, due).due
            }
        };
        if due > since {
            effects.work.timer(due, Timer::PendingDeletion(id.clone()));
        }
    }

    /// Removes a copy from the losses because a rule wants it (again).
    fn forgive(&mut self, key: &CopyKey, index: &mut Index) {
        let Some(id) = self.take_back(key) else {
            return;
        };
        let Some(pending) = self.get_mut(&id).filter(|pending| pending.is_idle()) else {
            return;
        };
        pending.held = None;
        if pending.is_over() {
            self.remove(&id);
        }
        index.mark_status_due(&id);
    }

    /// Ends the collecting time of a rule's pending deletion. Copies that have been lost for the
    /// whole time may be deleted, unless the rule has lost too much in all. A held deletion is
    /// reviewed each time, because the loss may have been undone.
    fn end_collecting(&mut self, id: &Arc<RuleId>, index: &mut Index, effects: &mut Effects) {
        if self.get(id).is_none_or(|pending| pending.due > index.now) {
            return;
        }
        self.review(id, index, effects);
        if let Some(since) = index.now.checked_sub(index.settings.deletion_window) {
            self.expire(id, since);
        }
        let Some(pending) = self.get(id).filter(|pending| !pending.is_over()) else {
            self.remove(id);
            index.mark_status_due(id);
            return;
        };
        // If the rule does not exist, its copies are collected only because no deliberate deletion
        // of the rule is known. Then the number of copies doesn't matter. Counting them would take
        // long, and copies can name many rules that never existed.
        let unmeant = !index.rules.contains_key(id) && !all_homeless(id, pending, index);
        if unmeant || loses_much(id, pending, index, &mut effects.effort) {
            self.hold_back(id, index, effects);
            return;
        }
        if self
            .get_mut(id)
            .is_some_and(|pending| pending.held.take().is_some())
        {
            self.show_pending(id, index, effects);
            index.mark_status_due(id);
        }
        self.let_go_what_is_due(id, index, effects);
    }

    /// Holds the deletion of the lost copies and reports it to users. Copies that are lost later
    /// wait for their own confirmation.
    fn hold_back(&mut self, id: &Arc<RuleId>, index: &mut Index, effects: &mut Effects) {
        if self.held_copies(id, index).is_empty() {
            if let Some(pending) = self.get_mut(id) {
                let copies = copies(pending, index);
                let nonce = nonce(id, copies.values());
                pending.held = Some(Held { nonce, copies });
            }
            effects
                .events
                .add(id, EventCause::DeletionHeld, [], 0, index.now);
            self.show_pending(id, index, effects);
        }
        index.mark_status_due(id);
        if !self.confirm(id, index, effects) {
            self.collect_longer(id, index, effects);
        }
    }

    /// Returns the lost copies that the current nonce stands for. A copy with another uid than
    /// before is not among them.
    pub(crate) fn held_copies(&self, id: &RuleId, index: &Index) -> BTreeMap<CopyKey, Uid> {
        let Some((pending, held)) = self
            .get(id)
            .and_then(|pending| Some((pending, pending.held.as_ref()?)))
        else {
            return BTreeMap::new();
        };
        let mut copies = copies(pending, index);
        copies.retain(|key, uid| held.copies.get(key) == Some(uid));
        copies
    }

    /// True if the copy waits for a confirmation of its deletion.
    pub(crate) fn holds(&self, id: &RuleId, namespace: &Arc<str>, copy: &CopyState) -> bool {
        self.get(id)
            .is_some_and(|pending| pending.held.is_some() && pending.has(&copy.key(namespace)))
    }

    /// Marks the namespaces of the collected copies as changed: a copy looks different to users
    /// once its deletion is held, or is no longer held.
    fn show_pending(&self, id: &RuleId, index: &mut Index, effects: &mut Effects) {
        for (name, ..) in self.get(id).into_iter().flat_map(PendingDeletion::copies) {
            if let Some(namespace) = index.namespaces.get_mut(name) {
                namespace.changed = effects.changes.next();
            }
        }
    }

    /// Decides every collected copy again. Only copies that are still lost for the same reason keep
    /// the start of their loss. The verdicts are not stored: the next plan does that, and may also
    /// queue the copies.
    fn review(&mut self, id: &Arc<RuleId>, index: &mut Index, effects: &mut Effects) {
        let keys: Vec<CopyKey> = self
            .get(id)
            .into_iter()
            .flat_map(PendingDeletion::copies)
            .cloned()
            .collect();
        effects.effort.review(keys.len());
        for key in keys {
            let Some(known) = self.take(id, &key) else {
                continue;
            };
            let (name, kind, copy_name) = &key;
            let Some(namespace) = index.namespaces.remove(name) else {
                continue;
            };
            if let Some(copy) = namespace.copy(*kind, copy_name) {
                let (_, needs) = index.decide(name, &namespace, copy);
                index.meet(needs, &key, effects);
            }
            index.namespaces.insert(name.clone(), namespace);
            self.take_in(index, effects);
            self.resume(id, &key, known);
        }
    }

    fn let_go_what_is_due(&mut self, id: &Arc<RuleId>, index: &mut Index, effects: &mut Effects) {
        let Settings {
            deletion_delay: time,
            deletion_window: window,
            ..
        } = index.settings;
        let Some(pending) = self.get(id) else {
            return;
        };
        let gone: Vec<CopyKey> = pending
            .losses()
            .filter(|(_, loss)| loss.since + time <= index.now)
            .map(|(key, _)| key.clone())
            .collect();
        let gone = self.take_all(id, gone);
        for key in gone.keys() {
            self.let_go(id, key.clone(), index.now);
        }
        if let Some(pending) = self.get_mut(id) {
            let collected = pending.losses().map(|(_, loss)| loss.since + time);
            // The deletion no longer counts one millisecond after the window.
            let counted = pending
                .gone()
                .map(|at| at + window + Duration::from_millis(1));
            if let Some(due) = collected.chain(counted).min() {
                pending.due = due;
                effects.work.timer(due, Timer::PendingDeletion(id.clone()));
            }
        }
        index.approve_deletion(gone);
    }

    fn take_all(&mut self, id: &RuleId, keys: Vec<CopyKey>) -> BTreeMap<CopyKey, Loss> {
        keys.into_iter()
            .filter_map(|key| self.take(id, &key).map(|loss| (key, loss)))
            .collect()
    }

    /// Approves the held deletion if a user has confirmed it, on the rule or on the kinds
    /// `ConfigMap`. Returns true in that case. Copies that were lost since stay collected, and get
    /// another nonce.
    fn confirm(&mut self, id: &Arc<RuleId>, index: &mut Index, effects: &mut Effects) -> bool {
        let Some(held) = self.held(id) else {
            return false;
        };
        let rule = index.rules.get(id).and_then(RuleState::valid);
        let confirmed = [
            rule.and_then(|rule| rule.confirm_deletion.as_ref()),
            self.confirmed.as_ref(),
        ];
        if !confirmed.contains(&Some(&held.nonce)) {
            return false;
        }
        let held = self.held_copies(id, index).into_keys().collect();
        let gone = self.take_all(id, held);
        if let Some(pending) = self.get_mut(id) {
            pending.held = None;
            if pending.is_over() {
                self.remove(id);
            } else {
                self.collect_longer(id, index, effects);
            }
        }
        index.approve_deletion(gone);
        index.mark_status_due(id);
        true
    }

    /// Starts another collecting time for a rule's pending deletion.
    fn collect_longer(&mut self, id: &Arc<RuleId>, index: &Index, effects: &mut Effects) {
        if let Some(pending) = self.get_mut(id) {
            pending.due = index.now + index.settings.deletion_delay;
            effects
                .work
                .timer(pending.due, Timer::PendingDeletion(id.clone()));
        }
    }
}

/// The lost copies of a rule, with their uids.
fn copies(pending: &PendingDeletion, index: &Index) -> BTreeMap<CopyKey, Uid> {
    pending
        .copies()
        .filter_map(|key| Some((key.clone(), index.copy(key)?.ours()?.uid)))
        .collect()
}

/// True if the rule lost all of these copies because it disappeared with its namespace.
fn all_homeless(id: &RuleId, pending: &PendingDeletion, index: &Index) -> bool {
    pending.copies().all(|key| {
        let how = index
            .copy(key)
            .and_then(|copy| index.how_rule_went_if_known(id, copy));
        how == Some(HowGone::WithNamespace)
    })
}

/// True if the rule loses so many copies that the deletion is held: at least the limit, and at
/// least half of the rule's copies.
fn loses_much(id: &RuleId, pending: &PendingDeletion, index: &Index, effort: &mut Effort) -> bool {
    let lost = pending.len() + pending.gone().count();
    // Only a large loss justifies counting all copies of the rule.
    !pending.is_idle()
        && lost >= index.settings.deletion_limit
        && lost >= kept(id, pending, index, effort)
}

/// The number of copies that the rule has and keeps. Only wanted copies count. Objects elsewhere
/// that only look like the rule's copies must not make a loss seem small.
fn kept(id: &RuleId, pending: &PendingDeletion, index: &Index, effort: &mut Effort) -> usize {
    let mut kept = 0;
    for name in &index.places(id) {
        let Some(namespace) = index.namespaces.get(name) else {
            continue;
        };
        effort.review(namespace.copies.len());
        let keeps = |copy: &&CopyState| {
            let projection = index.projections.wanted(copy);
            copy.approved.is_none()
                && projection.is_some_and(|projection| *projection.rule == *id)
                && copy
                    .ours()
                    .is_some_and(|seen| !seen.elsewhere && !seen.deleting)
                && !pending.has(&copy.key(name))
        };
        kept += namespace.copies.iter().filter(keeps).count();
    }
    kept
}

/// Returns a nonce for exactly these copies. A confirmation for few copies therefore doesn't
/// confirm more of them. A confirmation from before doesn't confirm the next loss of the same
/// copies.
fn nonce<'a>(id: &RuleId, copies: impl Iterator<Item = &'a Uid>) -> Box<str> {
    // The numbers of kinds, by which the copies are sorted, differ between processes.
    let mut uids: Vec<String> = copies.map(Uid::to_string).collect();
    uids.sort_unstable();
    let text = id.to_string() + &uids.concat();
    format!("{:08x}", Checksum::of(text.as_bytes()).short() >> 32).into()
}
