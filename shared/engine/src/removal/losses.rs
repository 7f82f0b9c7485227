//! The lost copies of each rule: those that wait, and those that were released for deletion within
//! the window.

use std::{collections::BTreeMap, sync::Arc};

use mimeo_model::{id::RuleId, meta::Uid};

use crate::{
    clock::Tick,
    copy::{CopyKey, Why},
};

/// A copy that is lost without a read that confirms the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) why: Why,
    /// Since when the copy is lost without a break. A copy may be written for labels that this
    /// process has not seen yet. Then it is unmatched for a moment. That moment must not complete
    /// the collecting time of another loss.
    pub(crate) since: Tick,
}

/// Copies that wait for a user's confirmation. Later losses are not added to them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// The nonce that confirms the deletion when a user repeats it.
    pub(crate) nonce: Box<str>,
    pub(crate) copies: BTreeMap<CopyKey, Uid>,
}

/// The unconfirmed losses of one rule.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingDeletion {
    /// Copies that are collected, or wait for a confirmation.
    pub(crate) collected: BTreeMap<CopyKey, Loss>,
    /// Copies that were released for deletion without a confirmation, and when. They count as lost
    /// for a while.
    pub(crate) released: BTreeMap<CopyKey, Tick>,
    /// When the pending deletion is reviewed next.
    pub(crate) due: Tick,
    /// True if the rule's status said at the first loss that deletions are held. A former process
    /// held them then, and knew more losses than this one.
    pub(crate) was_held: bool,
    pub(crate) held: Option<Held>,
}

impl PendingDeletion {
    /// True if no copy is collected, and no released copy counts any more.
    pub(crate) fn is_over(&self) -> bool {
        self.collected.is_empty() && self.released.is_empty()
    }
}

/// The losses of all rules. Each lost copy is in one pending deletion, and `losers` finds that
/// pending deletion.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    pub(crate) pending: BTreeMap<Arc<RuleId>, PendingDeletion>,
    losers: BTreeMap<CopyKey, Arc<RuleId>>,
    /// The nonce of a held deletion that a user confirmed on the kinds `ConfigMap`.
    pub(crate) confirmed: Option<Box<str>>,
}

impl Losses {
    /// Returns the loss of a collected copy, and the rule that has lost it.
    pub(crate) fn get(&self, key: &CopyKey) -> Option<(&Arc<RuleId>, &Loss)> {
        let id = self.losers.get(key)?;
        Some((id, self.pending.get(id)?.collected.get(key)?))
    }

    /// The held deletion of a rule, if there is one.
    pub(crate) fn held(&self, id: &RuleId) -> Option<&Held> {
        self.pending.get(id)?.held.as_ref()
    }

    /// The collected copies of a rule.
    pub(crate) fn collected(&self, id: &RuleId) -> impl Iterator<Item = &CopyKey> {
        let pending = self.pending.get(id).into_iter();
        pending.flat_map(|pending| pending.collected.keys())
    }

    /// Records a loss. The pending deletion is reviewed at `due`, or earlier. Returns the time of
    /// the review.
    pub(crate) fn add(&mut self, id: &Arc<RuleId>, key: CopyKey, loss: Loss, due: Tick) -> Tick {
        if self.losers.get(&key).is_some_and(|loser| loser != id) {
            self.remove(&key);
        }
        self.losers.insert(key.clone(), id.clone());
        let pending = self.pending.entry(id.clone()).or_default();
        pending.released.remove(&key);
        pending.collected.insert(key, loss);
        pending.due = if pending.due <= loss.since {
            due
        } else {
            pending.due.min(due)
        };
        pending.due
    }

    /// Removes a loss. Returns the rule that had lost the copy.
    pub(crate) fn remove(&mut self, key: &CopyKey) -> Option<Arc<RuleId>> {
        let id = self.losers.remove(key)?;
        let pending = self.pending.get_mut(&id)?;
        pending.collected.remove(key);
        pending.released.remove(key);
        Some(id)
    }

    /// Forgets the copies that were released before `since`: they no longer count.
    pub(crate) fn expire(&mut self, id: &RuleId, since: Tick) {
        let Some(pending) = self.pending.get_mut(id) else {
            return;
        };
        for (key, _) in pending.released.extract_if(.., |_, at| *at < since) {
            self.losers.remove(&key);
        }
    }

    /// Ends the pending deletion of a rule.
    pub(crate) fn end(&mut self, id: &RuleId) {
        let Some(pending) = self.pending.remove(id) else {
            return;
        };
        for key in pending.collected.keys().chain(pending.released.keys()) {
            self.losers.remove(key);
        }
    }
}
