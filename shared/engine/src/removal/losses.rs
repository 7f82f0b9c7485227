//! The lost copies of each rule: those that wait, and those that were deleted within the window.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_model::{
    id::{KindId, RuleId},
    meta::Uid,
};

use crate::{cell::Why, clock::Tick};

pub(crate) type CellKey = (Arc<str>, KindId, Arc<str>);

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
    pub(crate) copies: BTreeMap<CellKey, Uid>,
}

/// The unconfirmed losses of one rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// Copies that are collected, or wait for a confirmation.
    collected: BTreeMap<CellKey, Loss>,
    /// Copies that were released for deletion without a confirmation, and when. They count for a
    /// while.
    gone: BTreeMap<CellKey, Tick>,
    /// When the sweep is reviewed next.
    pub(crate) due: Tick,
    pub(crate) held: Option<Held>,
}

impl Sweep {
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

    pub(crate) fn cells(&self) -> impl Iterator<Item = &CellKey> {
        self.collected.keys()
    }

    pub(crate) fn losses(&self) -> impl Iterator<Item = (&CellKey, &Loss)> {
        self.collected.iter()
    }

    pub(crate) fn loss(&self, key: &CellKey) -> Option<&Loss> {
        self.collected.get(key)
    }

    /// The times of deletion that still count.
    pub(crate) fn gone(&self) -> impl Iterator<Item = Tick> {
        self.gone.values().copied()
    }
}

/// The losses of all rules. Each lost cell is in one sweep, and `losers` finds that sweep.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    all: BTreeMap<Arc<RuleId>, Sweep>,
    losers: BTreeMap<CellKey, Arc<RuleId>>,
}

impl Sweeps {
    pub(crate) fn get(&self, id: &RuleId) -> Option<&Sweep> {
        self.all.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: &RuleId) -> Option<&mut Sweep> {
        self.all.get_mut(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<RuleId>, &Sweep)> {
        self.all.iter()
    }

    pub(crate) fn rules(&self) -> impl Iterator<Item = &Arc<RuleId>> {
        self.all.keys()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Records a loss. The sweep is reviewed at `due`, or earlier.
    pub(crate) fn add(
        &mut self,
        id: &Arc<RuleId>,
        key: CellKey,
        loss: Loss,
        due: Tick,
    ) -> &mut Sweep {
        if self.losers.get(&key).is_some_and(|loser| loser != id) {
            self.forgive(&key);
        }
        self.losers.insert(key.clone(), id.clone());
        let new = || Sweep {
            collected: BTreeMap::new(),
            gone: BTreeMap::new(),
            due,
            held: None,
        };
        let sweep = self.all.entry(id.clone()).or_insert_with(new);
        sweep.gone.remove(&key);
        sweep.collected.insert(key, loss);
        sweep.due = if sweep.due <= loss.since {
            due
        } else {
            sweep.due.min(due)
        };
        sweep
    }

    /// Removes a loss, because the copy is no longer lost or its loss is being decided.
    pub(crate) fn take(&mut self, id: &RuleId, key: &CellKey) -> Option<Loss> {
        let loss = self.all.get_mut(id)?.collected.remove(key)?;
        self.losers.remove(key);
        Some(loss)
    }

    /// Restores the former record of a loss, if the copy is still lost for the same reason.
    pub(crate) fn resume(&mut self, id: &RuleId, key: &CellKey, known: Loss) {
        let loss = self
            .all
            .get_mut(id)
            .and_then(|sweep| sweep.collected.get_mut(key));
        if let Some(loss) = loss.filter(|loss| loss.why == known.why) {
            *loss = known;
        }
    }

    /// Notes that a copy was released for deletion without a confirmation.
    pub(crate) fn let_go(&mut self, id: &Arc<RuleId>, key: CellKey, at: Tick) {
        if let Some(sweep) = self.all.get_mut(id) {
            self.losers.insert(key.clone(), id.clone());
            sweep.gone.insert(key, at);
        }
    }

    /// Removes the deletions from before `since`: they no longer count.
    pub(crate) fn expire(&mut self, id: &RuleId, since: Tick) {
        let Some(sweep) = self.all.get_mut(id) else {
            return;
        };
        let losers = &mut self.losers;
        sweep.gone.retain(|key, at| {
            let counts = *at >= since;
            if !counts {
                losers.remove(key);
            }
            counts
        });
    }

    /// Removes the cell from the losses. Returns the rule that had lost it.
    pub(crate) fn forgive(&mut self, key: &CellKey) -> Option<Arc<RuleId>> {
        let id = self.losers.remove(key)?;
        let sweep = self.all.get_mut(&id)?;
        sweep.collected.remove(key);
        sweep.gone.remove(key);
        Some(id)
    }

    /// Ends the sweep of a rule.
    pub(crate) fn remove(&mut self, id: &RuleId) {
        for key in self
            .all
            .remove(id)
            .iter()
            .flat_map(|sweep| sweep.collected.keys().chain(sweep.gone.keys()))
        {
            self.losers.remove(key);
        }
    }

    /// Removes the sweeps of all rules that `keeps` doesn't accept.
    pub(crate) fn retain(&mut self, keeps: impl Fn(&Arc<RuleId>) -> bool) {
        let over: BTreeSet<_> = self.all.keys().filter(|id| !keeps(id)).cloned().collect();
        over.iter().for_each(|id| self.remove(id));
    }
}
