//! One quota for the objects of a namespace: the oldest fit.
//!
//! A quota counts objects and their cost. The cost is a number of smaller objects: copies or names.
//! This file counts Replications, and `grants` counts grants.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use mimeo_model::{
    id::RuleId,
    refusal::{Refusal, Refused},
    rule::Rule,
};

use crate::{Effects, Index};

/// The objects of one namespace. At most `OBJECTS` of them fit, with at most `COST` in all. The
/// oldest objects fit first, and objects of the same age fit in the order of their names.
#[derive(Debug)]
pub(crate) struct Quota<T, const OBJECTS: usize, const COST: usize> {
    by_age: BTreeMap<(Timestamp, Box<str>), Entry<T>>,
    created: BTreeMap<Box<str>, Timestamp>,
}

#[derive(Debug)]
struct Entry<T> {
    cost: usize,
    value: T,
}

impl<T, const OBJECTS: usize, const COST: usize> Default for Quota<T, OBJECTS, COST> {
    fn default() -> Self {
        Self {
            by_age: BTreeMap::new(),
            created: BTreeMap::new(),
        }
    }
}

impl<T, const OBJECTS: usize, const COST: usize> Quota<T, OBJECTS, COST> {
    /// Adds an object, or replaces the one of that name.
    pub(crate) fn put(&mut self, name: &str, created: Timestamp, cost: usize, value: T) {
        self.remove(name);
        self.created.insert(name.into(), created);
        self.by_age
            .insert((created, name.into()), Entry { cost, value });
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<T> {
        let (name, created) = self.created.remove_entry(name)?;
        self.by_age
            .remove(&(created, name))
            .map(|entry| entry.value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// All objects, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Box<str>, &T)> {
        self.by_age
            .iter()
            .map(|((_, name), entry)| (name, &entry.value))
    }

    /// Returns how many of the oldest objects fit.
    pub(crate) fn fitting(&self) -> usize {
        let mut sum = 0;
        let fits = |entry: &&Entry<T>| {
            sum += entry.cost;
            sum <= COST
        };
        self.by_age.values().take(OBJECTS).take_while(fits).count()
    }

    /// True if the object would fit, added as a new one or in place of the one of that name.
    pub(crate) fn would_fit(&self, name: &str, created: Timestamp, cost: usize) -> bool {
        let older = self
            .by_age
            .range(..(created, name.into()))
            .filter(|((_, other), _)| **other != *name)
            .take(OBJECTS);
        let costs: Vec<usize> = older.map(|(_, other)| other.cost).collect();
        costs.len() < OBJECTS && costs.iter().sum::<usize>() + cost <= COST
    }
}

/// The largest number of Replications in one namespace.
const REPLICATIONS: usize = 1024;
/// The largest number of copies that these Replications may have in all.
const COPIES: usize = 10_240;

/// The Replications of one namespace that fit. The cost is the number of their copies.
pub(crate) type Replications = Quota<Arc<RuleId>, REPLICATIONS, COPIES>;

impl Index {
    pub(crate) fn uncount_replication(&mut self, id: &RuleId) {
        let Some(home) = &id.namespace else { return };
        if let Some(quota) = self.replications.get_mut(home) {
            quota.remove(&id.name);
            if quota.is_empty() {
                self.replications.remove(home);
            }
        }
    }

    /// Returns the refusal of a Replication that is about to be stored, if its namespace's quota is
    /// used up.
    pub fn refuses_rule(&self, rule: &Rule) -> Option<Refusal> {
        let quota = self.replications.get(rule.id.namespace.as_ref()?)?;
        let fits = quota.would_fit(&rule.id.name, rule.created, rule.most_copies());
        (!fits).then(used_up)
    }
}

impl Index {
    /// Counts a Replication, or refuses it if older ones use up the quota. Then refuses younger
    /// ones that no longer fit. The engine holds nothing of a refused rule, and the rule's copies
    /// stay.
    pub(crate) fn count_replication(
        &mut self,
        id: &Arc<RuleId>,
        rule: Result<Rule, Refused>,
        effects: &mut Effects,
    ) -> Result<Rule, Refused> {
        self.uncount_replication(id);
        let (Ok(valid), Some(home)) = (&rule, &id.namespace) else {
            return rule;
        };
        if self.refuses_rule(valid).is_some() {
            return Err(refused(valid));
        }
        let quota = self.replications.entry(home.clone()).or_default();
        quota.put(&id.name, valid.created, valid.most_copies(), id.clone());
        let fitting = quota.fitting();
        let excess: Vec<_> = quota
            .iter()
            .skip(fitting)
            .map(|(_, id)| id.clone())
            .collect();
        for out in &excess {
            if let Some(state) = self.rules.get(out)
                && let Ok(rule) = &state.rule
            {
                let (refused, observed) = (refused(rule), state.status.observed.clone());
                self.rule_applied((**out).clone(), Err(refused), observed, effects);
            }
        }
        rule
    }
}

fn refused(rule: &Rule) -> Refused {
    Refused {
        generation: rule.generation,
        created: rule.created,
        refusals: vec![used_up()],
    }
}

fn used_up() -> Refusal {
    Refusal {
        field: "spec".into(),
        message: format!(
            "a namespace may have at most {REPLICATIONS} Replications, with {COPIES} copies in all \
             (sources times target namespaces, and 256 for each selector); older \
             Replications use that up: delete some of them, then change this one"
        ),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    fn age(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn fitting(quota: &Quota<(), 3, 10>) -> Vec<&str> {
        let names = quota.iter().map(|(name, ())| &**name);
        names.take(quota.fitting()).collect()
    }

    #[test]
    fn the_oldest_fit_and_among_those_of_one_age_the_first_by_name() {
        let mut quota = Quota::<(), 3, 10>::default();
        for (name, created, cost) in [("d", 9, 1), ("b", 5, 1), ("c", 5, 1), ("a", 7, 1)] {
            quota.put(name, age(created), cost, ());
        }
        assert_eq!(fitting(&quota), ["b", "c", "a"]);
        assert!(quota.would_fit("a", age(7), 8) && !quota.would_fit("a", age(7), 9));
        assert!(quota.would_fit("new", age(1), 10) && !quota.would_fit("new", age(10), 1));
        // An object that costs too much keeps out all younger ones.
        quota.put("c", age(5), 10, ());
        assert_eq!(fitting(&quota), ["b"]);
        assert_eq!(quota.remove("c"), Some(()));
        assert_eq!(fitting(&quota), ["b", "a", "d"]);
    }
}
