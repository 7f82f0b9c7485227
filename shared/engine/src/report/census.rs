//! Counts the cells of all rules with due statuses. It visits each cell once and counts a piece at
//! a time, because the engine can do no other work meanwhile.

use std::{collections::BTreeMap, sync::Arc};

use mimeo_model::id::RuleId;

use crate::{Engine, tally::Tally};

/// The number of cells in one piece; the last namespace may exceed it. A piece takes a few
/// milliseconds.
const PIECE: usize = 5_000;

/// The finished and the remaining part of the count.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// The rules, in the order in which their statuses are written.
    rules: Vec<Arc<RuleId>>,
    tallies: BTreeMap<Arc<RuleId>, Tally>,
    /// The namespaces with cells of these rules that are still to be counted. The last one is next.
    places: Vec<Arc<str>>,
}

impl Census {
    /// Drops a rule that has changed: its count is out of date.
    pub(crate) fn forget(&mut self, id: &RuleId) {
        self.rules.retain(|rule| **rule != *id);
        self.tallies.remove(id);
    }
}

impl Engine {
    /// Begins to count for these rules. `ClusterReplication`s, if there are any, come first.
    pub(crate) fn begin_census(&mut self, rules: Vec<Arc<RuleId>>) {
        let counts = |id: &&Arc<RuleId>| {
            self.index
                .rules
                .get(*id)
                .is_some_and(|state| state.rule.is_ok())
        };
        let tallies: BTreeMap<_, _> = rules
            .iter()
            .filter(counts)
            .map(|id| (id.clone(), Tally::default()))
            .collect();
        let everywhere = tallies.keys().next().filter(|id| id.namespace.is_none());
        let mut places: Vec<Arc<str>> = match everywhere {
            Some(id) => self.index.places(id),
            None => tallies
                .keys()
                .flat_map(|id| self.index.places(id))
                .collect(),
        };
        places.sort_unstable();
        places.dedup();
        self.report.census = Some(Census {
            rules,
            tallies,
            places,
        });
    }

    /// Counts the next piece. After the last piece, returns the rules with their tallies, in their
    /// order.
    pub(crate) fn count(&mut self) -> Option<Vec<(Arc<RuleId>, Tally)>> {
        let mut census = self.report.census.take()?;
        let mut looked = 0;
        while looked < PIECE
            && let Some(name) = census.places.pop()
        {
            let Some(namespace) = self.index.namespaces.get(&name) else {
                continue;
            };
            looked += namespace.cells.len().max(1);
            self.effort.counted += u64::try_from(namespace.cells.len()).unwrap_or(u64::MAX);
            for cell in &namespace.cells {
                let owner = self.index.slots.owner(cell);
                let Some((id, tally)) =
                    owner.and_then(|id| Some((id, census.tallies.get_mut(id)?)))
                else {
                    continue;
                };
                if let Some(standing) = self.index.standing(id, (&name, namespace), cell) {
                    let cell = || {
                        (
                            name.clone(),
                            self.index.kind_of(cell.kind).to_owned(),
                            cell.name.clone(),
                        )
                    };
                    tally.count(cell, standing);
                }
            }
        }
        if !census.places.is_empty() {
            self.report.census = Some(census);
            return None;
        }
        let Census {
            rules, mut tallies, ..
        } = census;
        let mut tally = |id: Arc<RuleId>| {
            let tally = tallies.remove(&id).unwrap_or_default();
            (id, tally)
        };
        Some(rules.into_iter().map(&mut tally).collect())
    }

    /// The number of cells looked at so far for statuses.
    pub fn counted(&self) -> u64 {
        self.effort.counted
    }
}
