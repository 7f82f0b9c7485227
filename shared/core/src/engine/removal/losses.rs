//! What each rule loses, by rule and by namespace.
//!
//! Anybody can put marks on his own objects, and let each name another rule that there never was. So whatever is asked of a
//! namespace costs what its own rules lose, and only so many rules that aren't there lose anything in it.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use crate::engine::Tick;
use crate::{cell::Why, meta::Uid, rule::RuleId, slot::KindId};

/// So many rules that aren't there lose copies in one namespace at a time. What is beyond stays where it is until there is room.
const STRAYS: usize = 64;

pub(in crate::engine) type CellKey = (Arc<str>, KindId, Arc<str>);

/// Why a cell is lost, and since when without a break: a copy that is written for labels which are about to come is unmatched
/// for a moment, and that moment must not be the last one of somebody else's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Loss {
    pub(in crate::engine) why: Why,
    pub(in crate::engine) since: Tick,
    /// The copy that it was when a person was told of it.
    pub(in crate::engine) told: Option<Uid>,
}

/// Losses of one rule that nobody confirmed, being collected or held.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) struct Sweep {
    cells: BTreeMap<CellKey, Loss>,
    /// Whether its rule wasn't there when it began.
    stray: bool,
    pub(in crate::engine) due: Tick,
    /// What a person must repeat to let those go that are told with it.
    pub(in crate::engine) held: Option<Box<str>>,
}

impl Sweep {
    pub(in crate::engine) fn len(&self) -> usize {
        self.cells.len()
    }

    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    pub(in crate::engine) fn cells(&self) -> impl Iterator<Item = &CellKey> {
        self.cells.keys()
    }

    pub(in crate::engine) fn losses(&self) -> impl Iterator<Item = (&CellKey, &Loss)> {
        self.cells.iter()
    }

    /// A person is told of just these copies.
    pub(in crate::engine) fn tell(&mut self, nonce: Box<str>, copies: &BTreeMap<CellKey, Uid>) {
        for (key, loss) in &mut self.cells {
            loss.told = copies.get(key).copied();
        }
        self.held = Some(nonce);
    }

    /// Nothing of it waits for a person any more. Tells whether something did.
    pub(in crate::engine) fn untell(&mut self) -> bool {
        self.cells.values_mut().for_each(|loss| loss.told = None);
        self.held.take().is_some()
    }

    pub(in crate::engine) fn loss(&self, key: &CellKey) -> Option<&Loss> {
        self.cells.get(key)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(in crate::engine) struct Sweeps {
    all: BTreeMap<Arc<RuleId>, Sweep>,
    places: Places,
}

/// The namespaces that they concern.
#[derive(Debug, Default)]
struct Places {
    all: BTreeMap<Arc<str>, Place>,
    /// Those where there is room again for what is beyond.
    roomy: BTreeSet<Arc<str>>,
}

#[derive(Debug, Default)]
struct Place {
    /// How many cells each rule loses here.
    lost: BTreeMap<Arc<RuleId>, usize>,
    /// How many of these rules aren't there.
    strays: usize,
    /// Copies that were left alone when this was planned last, for which there was no room.
    beyond: usize,
}

impl Sweeps {
    pub(in crate::engine) fn get(&self, id: &RuleId) -> Option<&Sweep> {
        self.all.get(id)
    }

    pub(in crate::engine) fn get_mut(&mut self, id: &RuleId) -> Option<&mut Sweep> {
        self.all.get_mut(id)
    }

    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = (&Arc<RuleId>, &Sweep)> {
        self.all.iter()
    }

    pub(in crate::engine) fn rules(&self) -> impl Iterator<Item = &Arc<RuleId>> {
        self.all.keys()
    }

    pub(in crate::engine) fn len(&self) -> usize {
        self.all.len()
    }

    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many copies are left alone since more rules that aren't there lose some in their namespaces than are looked after.
    pub(in crate::engine) fn beyond(&self) -> usize {
        self.places.all.values().map(|place| place.beyond).sum()
    }

    /// The namespace is planned: what is beyond is counted anew.
    pub(in crate::engine) fn count_anew(&mut self, namespace: &str) {
        if let Some(place) = self.places.all.get_mut(namespace).filter(|place| place.beyond > 0) {
            place.beyond = 0;
            if place.lost.is_empty() {
                self.places.all.remove(namespace);
            }
        }
    }

    /// Whether there is room for what a rule loses in a namespace. A rule that is there always finds some; `stray` says that it isn't.
    pub(in crate::engine) fn has_room(&mut self, id: &Arc<RuleId>, namespace: &str, stray: bool) -> bool {
        let Some(place) = self.places.all.get_mut(namespace).filter(|_| stray) else { return true };
        let room = place.strays < STRAYS || place.lost.contains_key(id);
        place.beyond += usize::from(!room);
        room
    }

    /// Notes a loss of a cell. If it begins a sweep, that is due then.
    pub(in crate::engine) fn add(
        &mut self,
        id: &Arc<RuleId>,
        key: CellKey,
        loss: Loss,
        stray: bool,
        due: Tick,
    ) -> &mut Sweep {
        let new = || Sweep { cells: BTreeMap::new(), stray, due, held: None };
        let sweep = self.all.entry(id.clone()).or_insert_with(new);
        let namespace = key.0.clone();
        if sweep.cells.insert(key, loss).is_none() {
            self.places.enter(id, &namespace, sweep.stray);
        }
        sweep
    }

    /// A cell isn't lost any more, or its loss is being decided about.
    pub(in crate::engine) fn take(&mut self, id: &RuleId, key: &CellKey) -> Option<Loss> {
        let sweep = self.all.get_mut(id)?;
        let loss = sweep.cells.remove(key)?;
        self.places.leave(id, &key.0, sweep.stray);
        Some(loss)
    }

    /// A cell that is still lost for the same reason is what it was.
    pub(in crate::engine) fn resume(&mut self, id: &RuleId, key: &CellKey, known: Loss) {
        let loss = self.all.get_mut(id).and_then(|sweep| sweep.cells.get_mut(key));
        if let Some(loss) = loss.filter(|loss| loss.why == known.why) {
            *loss = known;
        }
    }

    /// The rules that lose a cell, which they no longer do.
    pub(in crate::engine) fn forgive(&mut self, key: &CellKey) -> BTreeSet<Arc<RuleId>> {
        let here: Vec<_> =
            self.places.all.get(&key.0).into_iter().flat_map(|place| place.lost.keys()).cloned().collect();
        here.into_iter().filter(|id| self.take(id, key).is_some()).collect()
    }

    /// The sweep is over.
    pub(in crate::engine) fn remove(&mut self, id: &RuleId) -> BTreeMap<CellKey, Loss> {
        let Some(sweep) = self.all.remove(id) else { return BTreeMap::new() };
        for (namespace, ..) in sweep.cells.keys() {
            self.places.leave(id, namespace, sweep.stray);
        }
        sweep.cells
    }

    /// Of other rules than these nothing is left to lose.
    pub(in crate::engine) fn retain(&mut self, keeps: impl Fn(&Arc<RuleId>, &Sweep) -> bool) {
        let over: Vec<_> = self.all.iter().filter(|(id, sweep)| !keeps(id, sweep)).map(|(id, _)| id.clone()).collect();
        for id in over {
            self.remove(&id);
        }
    }

    /// The namespaces where there is room again for copies for which there was none.
    pub(in crate::engine) fn roomy(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.places.roomy)
    }
}

impl Places {
    /// A rule loses a cell more in a namespace.
    fn enter(&mut self, id: &Arc<RuleId>, namespace: &Arc<str>, stray: bool) {
        let place = self.all.entry(namespace.clone()).or_default();
        match place.lost.entry(id.clone()) {
            Entry::Occupied(mut count) => *count.get_mut() += 1,
            Entry::Vacant(first) => {
                first.insert(1);
                place.strays += usize::from(stray);
            }
        }
        if place.strays >= STRAYS {
            self.roomy.remove(namespace);
        }
    }

    /// A rule loses a cell less in a namespace.
    fn leave(&mut self, id: &RuleId, namespace: &Arc<str>, stray: bool) {
        let Some(place) = self.all.get_mut(namespace) else { return };
        let Some(count) = place.lost.get_mut(id) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        place.lost.remove(id);
        place.strays -= usize::from(stray);
        if place.beyond > 0 {
            self.roomy.insert(namespace.clone());
        } else if place.lost.is_empty() {
            self.all.remove(namespace);
        }
    }
}
