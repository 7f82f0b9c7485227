//! The lost copies of each rule: those that wait, and those that were deleted within the window.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_model::{id::RuleId, meta::Uid};

use crate::{
    clock::Tick,
    copy::{CopyKey, Why},
};

/// Why a copy is lost, and since when without a break. A copy may be written for labels that this
/// process has not seen yet. Then it is unmatched for a moment. That moment must not complete the
/// collecting time of another loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) why: Why,
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
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PendingDeletion {
    /// Copies that are collected, or wait for a confirmation.
    collected: BTreeMap<CopyKey, Loss>,
    /// Copies that were released for deletion without a confirmation, and when. They count for a
    /// while.
    gone: BTreeMap<CopyKey, Tick>,
    /// When the pending deletion is reviewed next.
    pub(crate) due: Tick,
    pub(crate) held: Option<Held>,
}

impl PendingDeletion {
    /// The number of copies that are collected, or wait for a confirmation.
    pub(crate) fn len(&self) -> usize {
        self.collected.len()
    }

    /// True if no copy is collected.
    pub(crate) fn is_idle(&self) -> bool {
        self.collected.is_empty()
    }

    /// True if no copy waits, and no deleted copy counts any more.
    pub(crate) fn is_over(&self) -> bool {
        self.collected.is_empty() && self.gone.is_empty()
    }

    pub(crate) fn copies(&self) -> impl Iterator<Item = &CopyKey> {
        self.collected.keys()
    }

    pub(crate) fn losses(&self) -> impl Iterator<Item = (&CopyKey, &Loss)> {
        self.collected.iter()
    }

    pub(crate) fn loss(&self, key: &CopyKey) -> Option<&Loss> {
        self.collected.get(key)
    }

    pub(crate) fn has(&self, key: &CopyKey) -> bool {
        self.collected.contains_key(key)
    }

    /// The times of deletion that still count.
    pub(crate) fn gone(&self) -> impl Iterator<Item = Tick> {
        self.gone.values().copied()
    }
}

/// An event for the pending deletions.
#[derive(Debug)]
pub(crate) enum LossEvent {
    /// A decision has found that the rule loses this copy, and no read confirms the loss.
    Lost(Arc<RuleId>, CopyKey, Why),
    /// A rule wants the copy (again).
    Wanted(CopyKey),
    /// The rule does not exist any more.
    RuleGone(Arc<RuleId>),
    /// The rule carries another confirmation than before.
    Confirmed(Arc<RuleId>),
    /// The time to collect the losses of the rule may be over.
    Due(Arc<RuleId>),
}

/// The losses of all rules. Each lost copy is in one pending deletion, and `losers` finds that
/// pending deletion.
#[derive(Debug, Default)]
pub(crate) struct PendingDeletions {
    all: BTreeMap<Arc<RuleId>, PendingDeletion>,
    losers: BTreeMap<CopyKey, Arc<RuleId>>,
    /// The nonce of a held deletion that a user confirmed on the kinds `ConfigMap`.
    pub(crate) confirmed: Option<Box<str>>,
}

impl PendingDeletions {
    pub(crate) fn get(&self, id: &RuleId) -> Option<&PendingDeletion> {
        self.all.get(id)
    }

    /// The held deletion of a rule, if there is one.
    pub(crate) fn held(&self, id: &RuleId) -> Option<&Held> {
        self.get(id)?.held.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: &RuleId) -> Option<&mut PendingDeletion> {
        self.all.get_mut(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<RuleId>, &PendingDeletion)> {
        self.all.iter()
    }

    pub(crate) fn rules(&self) -> impl Iterator<Item = &Arc<RuleId>> {
        self.all.keys()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Records a loss. The pending deletion is reviewed at `due`, or earlier.
    pub(crate) fn add(
        &mut self,
        id: &Arc<RuleId>,
        key: CopyKey,
        loss: Loss,
        due: Tick,
    ) -> &mut PendingDeletion {
        if self.losers.get(&key).is_some_and(|loser| loser != id) {
            self.take_back(&key);
        }
        self.losers.insert(key.clone(), id.clone());
        let new = || PendingDeletion {
            collected: BTreeMap::new(),
            gone: BTreeMap::new(),
            due,
            held: None,
        };
        let pending = self.all.entry(id.clone()).or_insert_with(new);
        pending.gone.remove(&key);
        pending.collected.insert(key, loss);
        pending.due = if pending.due <= loss.since {
            due
        } else {
            pending.due.min(due)
        };
        pending
    }

    /// Removes a loss, because the copy is no longer lost or its loss is being decided.
    pub(crate) fn take(&mut self, id: &RuleId, key: &CopyKey) -> Option<Loss> {
        let loss = self.all.get_mut(id)?.collected.remove(key)?;
        self.losers.remove(key);
        Some(loss)
    }

    /// Restores the former record of a loss, if the copy is still lost for the same reason.
    pub(crate) fn resume(&mut self, id: &RuleId, key: &CopyKey, known: Loss) {
        let loss = self
            .all
            .get_mut(id)
            .and_then(|pending| pending.collected.get_mut(key));
        if let Some(loss) = loss.filter(|loss| loss.why == known.why) {
            *loss = known;
        }
    }

    /// Notes that a copy was released for deletion without a confirmation.
    pub(crate) fn let_go(&mut self, id: &Arc<RuleId>, key: CopyKey, at: Tick) {
        if let Some(pending) = self.all.get_mut(id) {
            self.losers.insert(key.clone(), id.clone());
            pending.gone.insert(key, at);
        }
    }

    /// Removes the deletions from before `since`: they no longer count.
    pub(crate) fn expire(&mut self, id: &RuleId, since: Tick) {
        let Some(pending) = self.all.get_mut(id) else {
            return;
        };
        let losers = &mut self.losers;
        pending.gone.retain(|key, at| {
            let counts = *at >= since;
            if !counts {
                losers.remove(key);
            }
            counts
        });
    }

    /// Removes the copy from the losses. Returns the rule that had lost it.
    pub(crate) fn take_back(&mut self, key: &CopyKey) -> Option<Arc<RuleId>> {
        let id = self.losers.remove(key)?;
        let pending = self.all.get_mut(&id)?;
        pending.collected.remove(key);
        pending.gone.remove(key);
        Some(id)
    }

    /// Ends the pending deletion of a rule.
    pub(crate) fn remove(&mut self, id: &RuleId) {
        for key in self
            .all
            .remove(id)
            .iter()
            .flat_map(|pending| pending.collected.keys().chain(pending.gone.keys()))
        {
            self.losers.remove(key);
        }
    }

    /// Removes the pending deletions of all rules that `keeps` doesn't accept.
    pub(crate) fn retain(&mut self, keeps: impl Fn(&Arc<RuleId>) -> bool) {
        let over: BTreeSet<_> = self.all.keys().filter(|id| !keeps(id)).cloned().collect();
        over.iter().for_each(|id| self.remove(id));
    }
}
