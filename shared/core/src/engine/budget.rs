//! How much of tenants' sources, and of what is made of them, is held in memory.
//!
//! Whoever may write Replications may name sources as large as objects can be, and have each of them copied in many guises. The
//! oldest rules are served first, each as far as its namespace's budget and that of all tenants go. What is beyond them isn't
//! watched and has no copies made of it; how large it was is remembered, for as long as its rule stays as it is. The platform's rules
//! have no such bound.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::{Engine, Source};
use crate::{
    render::{Copies, SourceRefused},
    rule::{RuleId, RuleKind, SourceRef},
    slot::{NoRendering, Slot},
};

/// Most bytes of sources and copies' bodies for the Replications of one namespace: a thousand objects of usual size, or one or two of
/// the largest;
pub(crate) const OF_A_NAMESPACE: usize = 4 << 20;
/// and for all Replications: a quarter of the memory that the reconciler's manifest allows it.
pub(crate) const OF_ALL: usize = 32 << 20;

impl Engine {
    /// Finds out which slots of Replications are beyond the budgets. Those that have come to be, or are no more, are rendered
    /// anew, and their sources watched no more or again.
    pub(super) fn weigh(&mut self) {
        if self.within_budget() {
            return;
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
                let full = *home + weight > OF_A_NAMESPACE || all + weight > OF_ALL;
                // A source is there for all targets or for none.
                let shed = full || beyond.contains(&slot.source);
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
            return;
        }
        // What nobody holds any more is let go at once, and its watch as soon as that can be.
        let sources: BTreeSet<SourceRef> =
            changed.iter().filter_map(|id| self.slots.get(id)).map(|slot| slot.source.clone()).collect();
        for source in &sources {
            self.hold_if_copied(source);
            let held = self.slots.of_source(source).any(|(_, slot)| !slot.shed);
            if let Some(state) = self.sources.get_mut(source).filter(|_| source.is_named() && !held) {
                *state = Source::NotRead;
            }
        }
        self.render_slots(changed);
        self.demand_changed();
    }

    /// Whether nothing is beyond the budgets, or was; sources that several rules name are counted several times.
    fn within_budget(&self) -> bool {
        let (mut all, mut home, mut last) = (0, 0, &None);
        for (id, state) in self.rules.iter().filter(|(id, _)| id.kind == RuleKind::Replication) {
            // In the order of identities a namespace's rules come together.
            if *last != id.namespace {
                (home, last) = (0, &id.namespace);
            }
            for slot in state.slots.iter().flatten().filter_map(|id| self.slots.get(id)) {
                home += slot.weight + slot.source_weight;
                all += slot.weight + slot.source_weight;
                if slot.shed || home > OF_A_NAMESPACE || all > OF_ALL {
                    return false;
                }
            }
        }
        true
    }
}

/// What is made of sources in one go, which is weighed only after that: so much of it is kept till then, and the rest is made again.
#[derive(Debug, Default)]
pub(super) struct Scale {
    kept: usize,
    beyond: BTreeSet<(Arc<RuleId>, SourceRef)>,
}

impl Scale {
    /// Takes what was made for a tenant's slot, unless that is more than may be kept.
    pub(super) fn take(
        &mut self,
        slot: &mut Slot,
        made: Result<Copies, NoRendering>,
        source: &Source,
    ) -> Result<Copies, NoRendering> {
        if slot.rule.kind != RuleKind::Replication {
            return made;
        }
        let refused = Err(NoRendering::Refused(SourceRefused::TooMuch));
        if let Source::Found { object: None, facts, .. } = source
            && slot.weight == 0
        {
            // Before it is read again: what it will come to is near enough.
            (slot.source_weight, slot.weight) = (if slot.target == 0 { facts.length } else { 0 }, facts.length);
        }
        if matches!(source, Source::NotRead | Source::Found { object: None, .. }) {
            // Perhaps because of what it weighed.
            return if slot.shed { refused } else { made };
        }
        (slot.source_weight, slot.weight) = match source {
            Source::Found { facts, .. } if slot.granted => {
                // The copies for other targets share all but their metadata with the first's.
                let first = slot.target == 0;
                let copies = made.as_ref().map_or(0, |copies| copies.len(first));
                (if first { facts.length } else { 0 }, copies)
            }
            _ => (0, 0),
        };
        let whose = (slot.rule.clone(), slot.source.clone());
        slot.shed |= self.kept + slot.weight > OF_A_NAMESPACE || self.beyond.contains(&whose);
        if slot.shed {
            self.beyond.insert(whose);
            return refused;
        }
        self.kept += slot.weight;
        made
    }
}

/// Of an object in memory, near enough.
pub(super) fn length(value: &Value) -> usize {
    let inner = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(length).sum(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| size_of::<String>() + key.len() + length(value)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() + inner
}
