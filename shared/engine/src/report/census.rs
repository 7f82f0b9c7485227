//! Counts the copies of all rules with due statuses. It visits each copy once and counts a piece at
//! a time, because the engine can do no other work meanwhile.

use std::{collections::BTreeMap, sync::Arc};

use mimeo_model::id::RuleId;

use crate::{Effort, Index, tally::Tally};

/// The number of copies in one piece; the last namespace may exceed it. A piece takes a few
/// milliseconds.
const PIECE: usize = 5_000;

/// The finished and the remaining part of the count.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// The rules, in the order in which their statuses are written.
    rules: Vec<Arc<RuleId>>,
    tallies: BTreeMap<Arc<RuleId>, Tally>,
    /// The namespaces with copies of these rules that are still to be counted. The last one is
    /// next.
    places: Vec<Arc<str>>,
}

impl Census {
    /// Begins to count for the rules whose statuses are due. `ClusterReplication`s, if there are
    /// any, come first. `None`: no status is due.
    pub(crate) fn begin(index: &mut Index) -> Option<Self> {
        let rules = index.begin_statuses();
        rules.first()?;
        let counts =
            |id: &&Arc<RuleId>| index.rules.get(*id).is_some_and(|state| state.rule.is_ok());
        let tallies: BTreeMap<_, _> = rules
            .iter()
            .filter(counts)
            .map(|id| (id.clone(), Tally::default()))
            .collect();
        let everywhere = tallies.keys().next().filter(|id| id.namespace.is_none());
        let mut places: Vec<Arc<str>> = match everywhere {
            Some(id) => index.places(id),
            None => tallies.keys().flat_map(|id| index.places(id)).collect(),
        };
        places.sort_unstable();
        places.dedup();
        Some(Self {
            rules,
            tallies,
            places,
        })
    }

    /// Counts the next piece. Returns true after the last one.
    pub(crate) fn count(&mut self, index: &Index, effort: &mut Effort) -> bool {
        let mut looked = 0;
        while looked < PIECE
            && let Some(name) = self.places.pop()
        {
            let Some(namespace) = index.namespaces.get(&name) else {
                continue;
            };
            looked += namespace.copies.len().max(1);
            effort.counted += u64::try_from(namespace.copies.len()).unwrap_or(u64::MAX);
            for copy in &namespace.copies {
                let owner = index.projections.owner(copy);
                let Some((id, tally)) = owner.and_then(|id| Some((id, self.tallies.get_mut(id)?)))
                else {
                    continue;
                };
                if let Some(standing) = index.standing(id, (&name, namespace), copy) {
                    let kind = || index.kind_of(copy.kind).to_owned();
                    tally.count(|| (name.clone(), kind(), copy.name.clone()), standing);
                }
            }
        }
        self.places.is_empty()
    }

    /// Returns the rules with their tallies, in their order.
    pub(crate) fn tallies(self) -> impl Iterator<Item = (Arc<RuleId>, Tally)> {
        let Self {
            rules, mut tallies, ..
        } = self;
        rules.into_iter().map(move |id| {
            let tally = tallies.remove(&id).unwrap_or_default();
            (id, tally)
        })
    }
}
