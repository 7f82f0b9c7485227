//! How much of tenants' sources, and of what is made of them, is held in memory.
//!
//! Whoever may write Replications may name sources as large as objects can be, and have each of them copied in many guises. The
//! oldest rules are served first, each as far as its namespace's allowance and that of all tenants go. What is beyond them isn't
//! watched and has no copies made of it; how large it was is remembered, for as long as its rule stays as it is. The platform's rules
//! have no such bound.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::engine::{Engine, SourceState};
use crate::{
    memory::{SOURCES_OF_A_NAMESPACE, SOURCES_OF_ALL},
    render::{Copies, SourceRefused},
    rule::{Rule, RuleId, RuleKind, SourceRef},
    slot::{NoRendering, Slot},
};

/// So much memory takes no time worth speaking of while copies are made of a source: several of what is usual.
const IN_PASSING: usize = 16 << 10;

impl Engine {
    /// Finds out which slots of Replications are beyond the allowances. Those that have come to be, or are no more, are rendered
    /// anew, and their sources watched no more or again.
    pub(in crate::engine) fn apply_allowances(&mut self) {
        // What is made weighs other than what it was taken for. So that this ends, what has no room once has none till something changes.
        let mut again = false;
        while self.apply_allowances_once(again) {
            again = true;
        }
    }

    /// Whether slots have been rendered, and may weigh something else now.
    fn apply_allowances_once(&mut self, again: bool) -> bool {
        if self.within_allowance() {
            return false;
        }
        let tenants = self.rules.iter().filter(|(id, _)| id.kind == RuleKind::Replication);
        let mut rules: Vec<_> = tenants
            .filter_map(|(id, state)| Some((state.rule.as_ref().ok()?.created, id, state.slots.concat())))
            .collect();
        rules.sort_unstable_by_key(|(created, id, _)| (*created, *id));
        let (mut all, mut homes) = (0, BTreeMap::<_, (usize, BTreeSet<SourceRef>)>::new());
        let mut changed = Vec::new();
        for (_, rule, slots) in &rules {
            let (home, sources) = homes.entry(&rule.namespace).or_default();
            let mut beyond = BTreeSet::new();
            for id in slots {
                let Some(slot) = self.slots.get_mut(id) else { continue };
                let known = sources.contains(&slot.source);
                let weight = slot.weight + if known { 0 } else { slot.source_weight };
                let full = *home + weight > SOURCES_OF_A_NAMESPACE || all + weight > SOURCES_OF_ALL;
                // A source is there for all targets or for none.
                let shed = full || beyond.contains(&slot.source) || (again && slot.shed);
                if shed {
                    beyond.insert(slot.source.clone());
                } else {
                    *home += weight;
                    all += weight;
                    if !known {
                        sources.insert(slot.source.clone());
                    }
                }
                if slot.shed != shed {
                    slot.shed = shed;
                    changed.push(*id);
                }
            }
        }
        if changed.is_empty() {
            return false;
        }
        // What nobody holds any more is let go at once, and its watch as soon as that can be.
        let sources: BTreeSet<SourceRef> =
            changed.iter().filter_map(|id| self.slots.get(id)).map(|slot| slot.source.clone()).collect();
        for source in &sources {
            self.keep_if_copied(source);
            let held = self.slots.of_source(source).any(|(_, slot)| !slot.shed);
            if let Some(state) = self.sources.get_mut(source).filter(|_| source.is_named() && !held) {
                *state = SourceState::NotRead { since: self.now };
            }
        }
        // Those of one source together: what they have in common is made once.
        changed.sort_unstable();
        self.render(changed);
        self.demand_changed();
        true
    }

    /// Whether nothing is beyond the allowances, or was; sources that several rules name are counted several times.
    fn within_allowance(&self) -> bool {
        let (mut all, mut home, mut last) = (0, 0, &None);
        for (id, state) in self.rules.iter().filter(|(id, _)| id.kind == RuleKind::Replication) {
            // In the order of identities a namespace's rules come together.
            if *last != id.namespace {
                (home, last) = (0, &id.namespace);
            }
            for slot in state.slots.iter().flatten().filter_map(|id| self.slots.get(id)) {
                home += slot.weight + slot.source_weight;
                all += slot.weight + slot.source_weight;
                if slot.shed || home > SOURCES_OF_A_NAMESPACE || all > SOURCES_OF_ALL {
                    return false;
                }
            }
        }
        true
    }
}

/// What is made of sources in one go, which is weighed as a whole only after that: so much is made till then, and the rest once it is
/// known to have room.
#[derive(Debug, Default)]
pub(in crate::engine) struct Scale {
    kept: usize,
    beyond: BTreeSet<(Arc<RuleId>, SourceRef)>,
}

impl Scale {
    /// Has the copies of a slot made, unless it is a tenant's and that would take more than he may have. It is known before how much
    /// making them takes: nothing is made in vain, whatever becomes of it.
    pub(in crate::engine) fn make(
        &mut self,
        slot: &mut Slot,
        rule: &Rule,
        source: &SourceState,
        make: impl FnOnce(&Slot) -> Result<Copies, NoRendering>,
    ) -> Result<Copies, NoRendering> {
        if slot.rule.kind != RuleKind::Replication {
            return make(slot);
        }
        let refused = Err(NoRendering::Refused(SourceRefused::TooMuch));
        // The copies for other targets share all but their metadata with the first's.
        let first = slot.target == 0;
        // What is made in passing counts where it is large.
        let passing = |held| rule.transform.memory(held, RuleKind::Replication).saturating_sub(IN_PASSING);
        match source {
            // Before it is read again: what it will come to is near enough.
            SourceState::Found { object: None, facts, .. } if slot.weight == 0 => {
                slot.source_weight = if first { facts.memory } else { 0 };
                slot.weight = facts.memory.max(passing(facts.memory));
            }
            SourceState::NotRead { .. } | SourceState::Found { object: None, .. } => {}
            SourceState::Found { facts, .. } if slot.granted => {
                if first {
                    (slot.source_weight, slot.weight) = (facts.memory, passing(facts.memory));
                }
            }
            SourceState::Found { .. } | SourceState::Missing { .. } => (slot.source_weight, slot.weight) = (0, 0),
        }
        if matches!(source, SourceState::NotRead { .. } | SourceState::Found { object: None, .. }) {
            // Perhaps because of what it weighed.
            return if slot.shed { refused } else { make(slot) };
        }
        let whose = (slot.rule.clone(), slot.source.clone());
        slot.shed |= self.kept + slot.weight > SOURCES_OF_A_NAMESPACE || self.beyond.contains(&whose);
        if slot.shed {
            self.beyond.insert(whose);
            return refused;
        }
        let made = make(slot);
        if let Ok(copies) = &made {
            let held = copies.len(first);
            slot.weight = if first { slot.weight.max(held) } else { held };
        }
        self.kept += slot.weight;
        made
    }
}
