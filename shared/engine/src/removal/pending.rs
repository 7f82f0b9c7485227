//! Unconfirmed losses of a rule's copies. Mimeo collects them for a while and then deletes the
//! copies. If the losses are large, it holds the deletion until a user confirms it. The collected
//! losses of one rule are its pending deletion.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use mimeo_model::{
    condition::{ConditionReason, ConditionType},
    id::RuleId,
    meta::{Checksum, Uid},
};

use crate::{
    Effects, Effort, Index, Notice, Settings,
    absent::HowGone,
    conditions::says,
    copy::{CopyKey, CopyState, Why},
    events::{EventReason, places},
    jobs::JobKey,
    losses::{Held, Loss, PendingDeletion},
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
        places(self.copies.iter().map(|copy| &*copy.namespace))
    }
}

impl Index {
    /// Records the nonce that the kinds `ConfigMap` carries, if it carries one. The held deletion
    /// with this nonce may go ahead.
    pub(crate) fn confirmed(&mut self, nonce: Option<&str>, effects: &mut Effects) {
        self.losses.confirmed = nonce.map(Into::into);
        let ids: Vec<Arc<RuleId>> = self.losses.pending.keys().cloned().collect();
        for id in ids {
            self.confirm(&id, effects);
        }
    }

    /// Returns the held deletions of rules that no longer exist, those of `ClusterReplication`s
    /// first. They have no status in which a user could read them.
    pub(crate) fn held_of_gone(&self) -> impl Iterator<Item = HeldDeletion<'_>> {
        let pending = self.losses.pending.iter();
        let gone = pending.filter(|(id, _)| !self.rules.contains_key(*id));
        gone.filter_map(|(id, pending)| {
            let held = pending.held.as_ref()?;
            let copies = self.held_copies(id);
            Some(HeldDeletion {
                rule: id,
                copies: copies
                    .into_keys()
                    .map(|(namespace, kind, name)| HeldCopy {
                        namespace,
                        kind: self.kind_of(kind),
                        name,
                    })
                    .collect(),
                why: if self.all_homeless(id, pending) {
                    "it was deleted with its namespace, and many copies were lost at once"
                } else {
                    "it may have been lost with its CRD"
                },
                nonce: &held.nonce,
            })
        })
    }

    /// Collects an unconfirmed loss.
    pub(crate) fn collect(
        &mut self,
        id: &Arc<RuleId>,
        key: &CopyKey,
        why: Why,
        effects: &mut Effects,
    ) {
        let known = self.losses.get(key);
        if known.is_some_and(|(loser, loss)| loser == id && loss.why == why) {
            return;
        }
        let loss = Loss {
            why,
            since: self.now,
        };
        if !self.losses.pending.contains_key(id) {
            let pending = PendingDeletion {
                was_held: self.says_held(id),
                ..PendingDeletion::default()
            };
            self.losses.pending.insert(id.clone(), pending);
        }
        let due = self.now + self.settings.deletion_delay;
        let due = self.losses.add(id, key.clone(), loss, due);
        effects.work.timer(due, Timer::PendingDeletion(id.clone()));
    }

    /// True if the rule's status says that deletions are held.
    fn says_held(&self, id: &RuleId) -> bool {
        let state = self.rules.get(id);
        state.is_some_and(|state| {
            says(&state.status.observed, ConditionType::Stalled, |stalled| {
                stalled.reason == ConditionReason::DeletionHeld.as_str()
            })
        })
    }

    /// Removes a copy from the losses.
    pub(crate) fn forgive(&mut self, key: &CopyKey) {
        let Some(id) = self.losses.remove(key) else {
            return;
        };
        let pending = self.losses.pending.get_mut(&id);
        let Some(pending) = pending.filter(|pending| pending.collected.is_empty()) else {
            return;
        };
        pending.held = None;
        if pending.is_over() {
            self.losses.end(&id);
        }
        self.mark_status_due(&id);
    }

    /// Ends the collecting time of a rule's pending deletion. Copies that have been lost for the
    /// whole time may be deleted, unless the rule has lost too much in all. A held deletion is
    /// reviewed each time, because the loss may have been undone.
    pub(crate) fn end_collecting(&mut self, id: &Arc<RuleId>, effects: &mut Effects) {
        let pending = self.losses.pending.get(id);
        if pending.is_none_or(|pending| pending.due > self.now) {
            return;
        }
        self.review(id, effects);
        if let Some(since) = self.now.checked_sub(self.settings.deletion_window) {
            self.losses.expire(id, since);
        }
        let pending = self.losses.pending.get(id);
        let Some(pending) = pending.filter(|pending| !pending.is_over()) else {
            self.losses.end(id);
            self.mark_status_due(id);
            return;
        };
        // If the rule does not exist, its copies are collected only because no deliberate deletion
        // of the rule is known. Then the number of copies doesn't matter. Counting them would take
        // long, and copies can name many rules that never existed.
        let unmeant = !self.rules.contains_key(id) && !self.all_homeless(id, pending);
        if unmeant || pending.was_held || self.loses_much(id, pending, &mut effects.effort) {
            self.hold_back(id, effects);
            return;
        }
        let pending = self.losses.pending.get_mut(id);
        if pending.is_some_and(|pending| pending.held.take().is_some()) {
            self.show_pending(id, effects);
            self.mark_status_due(id);
        }
        self.let_go_what_is_due(id, effects);
    }

    /// Holds the deletion of the lost copies and reports it to users. Copies that are lost later
    /// wait for their own confirmation.
    fn hold_back(&mut self, id: &Arc<RuleId>, effects: &mut Effects) {
        if self.held_copies(id).is_empty() {
            let copies = self.lost_copies(id);
            let nonce = nonce(id, copies.values());
            if !self.rules.contains_key(id) {
                effects.notices.push(Notice::Held {
                    rule: id.clone(),
                    copies: copies.len(),
                    nonce: nonce.clone(),
                });
            }
            if let Some(pending) = self.losses.pending.get_mut(id) {
                pending.held = Some(Held { nonce, copies });
            }
            effects
                .events
                .add(id, EventReason::DeletionHeld, None, self);
            self.show_pending(id, effects);
        }
        self.mark_status_due(id);
        if !self.confirm(id, effects) {
            self.collect_longer(id, effects);
        }
    }

    /// The collected copies of a rule, with their uids.
    fn lost_copies(&self, id: &RuleId) -> BTreeMap<CopyKey, Uid> {
        let collected = self.losses.collected(id);
        collected
            .filter_map(|key| Some((key.clone(), self.copy(key)?.ours()?.uid)))
            .collect()
    }

    /// Returns the lost copies that the current nonce stands for. A copy with another uid than
    /// before is not among them.
    pub(crate) fn held_copies(&self, id: &RuleId) -> BTreeMap<CopyKey, Uid> {
        let Some(held) = self.losses.held(id) else {
            return BTreeMap::new();
        };
        let mut copies = self.lost_copies(id);
        copies.retain(|key, uid| held.copies.get(key) == Some(uid));
        copies
    }

    /// True if the copy waits for a confirmation of its deletion.
    pub(crate) fn holds(&self, id: &RuleId, namespace: &Arc<str>, copy: &CopyState) -> bool {
        let pending = self.losses.pending.get(id);
        pending.is_some_and(|pending| {
            pending.held.is_some() && pending.collected.contains_key(&copy.key(namespace))
        })
    }

    /// Marks the namespaces of the collected copies as changed: a copy looks different to users
    /// once its deletion is held, or is no longer held.
    fn show_pending(&mut self, id: &RuleId, effects: &mut Effects) {
        for (name, ..) in self.losses.collected(id) {
            if let Some(namespace) = self.namespaces.get_mut(name) {
                namespace.changed = effects.changes.next();
            }
        }
    }

    /// Plans the changed namespaces of the collected copies, which ends the losses that were undone.
    /// Forgets copies that have disappeared together with their namespace.
    fn review(&mut self, id: &Arc<RuleId>, effects: &mut Effects) {
        let keys: Vec<CopyKey> = self.losses.collected(id).cloned().collect();
        effects.effort.reviewed += keys.len();
        let names: BTreeSet<&Arc<str>> = keys.iter().map(|(name, ..)| name).collect();
        for name in names {
            let namespace = self.namespaces.get(name);
            let behind = namespace.is_some_and(|namespace| namespace.behind);
            if self.dirty.remove(name) || behind {
                self.plan_namespace(name, effects);
            }
        }
        for key in &keys {
            if self.copy(key).is_none() {
                self.losses.remove(key);
            }
        }
    }

    fn let_go_what_is_due(&mut self, id: &Arc<RuleId>, effects: &mut Effects) {
        let Settings {
            deletion_delay: time,
            deletion_window: window,
            ..
        } = self.settings;
        let Some(pending) = self.losses.pending.get_mut(id) else {
            return;
        };
        let now = self.now;
        let ripe = |_: &CopyKey, loss: &mut Loss| loss.since + time <= now;
        let gone = pending.collected.extract_if(.., ripe);
        let gone: Vec<_> = gone.map(|(key, loss)| (key, loss.why)).collect();
        let released = gone.iter().map(|(key, _)| (key.clone(), now));
        pending.released.extend(released);
        let collected = pending.collected.values().map(|loss| loss.since + time);
        // The loss no longer counts one millisecond after the window.
        let counted = pending.released.values();
        let counted = counted.map(|at| *at + window + Duration::from_millis(1));
        if let Some(due) = collected.chain(counted).min() {
            pending.due = due;
            effects.work.timer(due, Timer::PendingDeletion(id.clone()));
        }
        for (key, why) in gone {
            self.approve_deletion(key, why);
        }
    }

    fn approve_deletion(&mut self, key: CopyKey, why: Why) {
        if let Some(copy) = self.copy_mut(&key) {
            copy.approved = Some(why);
            copy.retry_now();
            self.dirty.insert(key.0);
        }
    }

    /// Approves the held deletion if a user has confirmed it, on the rule or on the kinds
    /// `ConfigMap`. Returns true in that case. Copies that were lost since stay collected, and get
    /// another nonce.
    pub(crate) fn confirm(&mut self, id: &Arc<RuleId>, effects: &mut Effects) -> bool {
        let Some(held) = self.losses.held(id) else {
            return false;
        };
        let rule = self.valid(id);
        let confirmed = [
            rule.and_then(|rule| rule.confirm_deletion.as_ref()),
            self.losses.confirmed.as_ref(),
        ];
        if !confirmed.contains(&Some(&held.nonce)) {
            return false;
        }
        for key in self.held_copies(id).into_keys() {
            if let Some((_, &Loss { why, .. })) = self.losses.get(&key) {
                self.losses.remove(&key);
                self.approve_deletion(key, why);
            }
        }
        if let Some(pending) = self.losses.pending.get_mut(id) {
            pending.held = None;
            pending.was_held = false;
            if pending.is_over() {
                self.losses.end(id);
            } else {
                self.collect_longer(id, effects);
            }
        }
        self.mark_status_due(id);
        true
    }

    /// Starts another collecting time for a rule's pending deletion.
    fn collect_longer(&mut self, id: &Arc<RuleId>, effects: &mut Effects) {
        if let Some(pending) = self.losses.pending.get_mut(id) {
            pending.due = self.now + self.settings.deletion_delay;
            effects
                .work
                .timer(pending.due, Timer::PendingDeletion(id.clone()));
        }
    }

    /// True if the rule lost all of these copies because it disappeared with its namespace.
    fn all_homeless(&self, id: &Arc<RuleId>, pending: &PendingDeletion) -> bool {
        let read = JobKey::ConfirmRule(id.clone());
        pending.collected.keys().all(|key| {
            let copy = self.copy(key);
            let how = copy.and_then(|copy| self.how_gone_if_known(&read, copy));
            how == Some(HowGone::WithNamespace)
        })
    }

    /// True if the rule loses so many copies that the deletion is held: at least the limit, and at
    /// least half of the rule's copies.
    fn loses_much(&self, id: &RuleId, pending: &PendingDeletion, effort: &mut Effort) -> bool {
        let lost = pending.collected.len() + pending.released.len();
        // Only a large loss justifies counting all copies of the rule.
        !pending.collected.is_empty()
            && lost >= self.settings.deletion_limit
            && lost >= self.kept(id, pending, effort)
    }

    /// The number of copies that the rule has and keeps. Only wanted copies count. Objects
    /// elsewhere that only look like the rule's copies must not make a loss seem small.
    fn kept(&self, id: &RuleId, pending: &PendingDeletion, effort: &mut Effort) -> usize {
        let mut kept = 0;
        for name in &self.places(id) {
            let Some(namespace) = self.namespaces.get(name) else {
                continue;
            };
            effort.reviewed += namespace.copies.len();
            let keeps = |copy: &&CopyState| {
                let projection = self.projections.wanted(copy);
                copy.approved.is_none()
                    && projection.is_some_and(|projection| *projection.rule == *id)
                    && copy
                        .ours()
                        .is_some_and(|seen| !seen.elsewhere && !seen.deleting)
                    && !pending.collected.contains_key(&copy.key(name))
            };
            kept += namespace.copies.iter().filter(keeps).count();
        }
        kept
    }
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
