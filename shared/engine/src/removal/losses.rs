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
    /// When the copy was released for deletion without a confirmation. It counts as lost for a
    /// while after that. `None`: the copy is collected, or waits for a confirmation.
    pub(crate) released: Option<Tick>,
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
    pub(crate) losses: BTreeMap<CopyKey, Loss>,
    /// When the pending deletion is reviewed next.
    pub(crate) due: Tick,
    pub(crate) held: Option<Held>,
}

impl PendingDeletion {
    /// The copies that are collected, or wait for a confirmation.
    pub(crate) fn collected(&self) -> impl Iterator<Item = (&CopyKey, &Loss)> {
        self.losses
            .iter()
            .filter(|(_, loss)| loss.released.is_none())
    }

    /// True if no copy is collected.
    pub(crate) fn is_idle(&self) -> bool {
        self.collected().next().is_none()
    }

    /// True if the copy is collected, or waits for a confirmation.
    pub(crate) fn collects(&self, key: &CopyKey) -> bool {
        self.losses
            .get(key)
            .is_some_and(|loss| loss.released.is_none())
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
    /// Returns the loss of a copy, and the rule that has lost it.
    pub(crate) fn get(&self, key: &CopyKey) -> Option<(&Arc<RuleId>, &Loss)> {
        let id = self.losers.get(key)?;
        Some((id, self.pending.get(id)?.losses.get(key)?))
    }

    /// Records a loss. The pending deletion is reviewed at `due`, or earlier. Returns the time of
    /// the review.
    pub(crate) fn add(&mut self, id: &Arc<RuleId>, key: CopyKey, loss: Loss, due: Tick) -> Tick {
        if self.losers.get(&key).is_some_and(|loser| loser != id) {
            self.remove(&key);
        }
        self.losers.insert(key.clone(), id.clone());
        let pending = self.pending.entry(id.clone()).or_default();
        pending.losses.insert(key, loss);
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
        self.pending.get_mut(&id)?.losses.remove(key);
        Some(id)
    }

    /// Keeps only these losses of a rule.
    pub(crate) fn retain(&mut self, id: &RuleId, keeps: impl Fn(&CopyKey, &Loss) -> bool) {
        let Some(pending) = self.pending.get_mut(id) else {
            return;
        };
        let losers = &mut self.losers;
        pending.losses.retain(|key, loss| {
            let kept = keeps(key, loss);
            if !kept {
                losers.remove(key);
            }
            kept
        });
    }

    /// Ends the pending deletion of a rule.
    pub(crate) fn end(&mut self, id: &RuleId) {
        self.retain(id, |_, _| false);
        self.pending.remove(id);
    }
}
