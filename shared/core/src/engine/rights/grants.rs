//! The grants of one namespace: the oldest count, as far as they can be asked in no time, and no others are held.

use std::{collections::BTreeMap, mem};

use jiff::Timestamp;

use crate::engine::Tick;
use crate::grant::{self, Grant};

/// The grants that a namespace has.
#[derive(Debug, Default)]
pub(in crate::engine) struct Grants {
    by_age: BTreeMap<(Timestamp, Box<str>), Known>,
    /// When each was created.
    created: BTreeMap<Box<str>, Timestamp>,
    /// How many of the oldest count.
    counting: usize,
}

#[derive(Debug)]
struct Known {
    load: usize,
    /// Its resourceVersion.
    version: u64,
    /// When this process saw it come or change.
    changed: Option<Tick>,
    content: Content,
}

/// What is held of a grant.
#[derive(Debug)]
enum Content {
    Held(Grant),
    /// It counts now, and is to be read again.
    Awaited,
    /// It doesn't count: anybody may write thousands of these, and it is enough to know that they are there.
    LetGo,
}

impl Grants {
    /// Takes in a grant, which has changed now if it wasn't known as it is; none: it may have been so for long. Gives the names of those
    /// that are to be read again.
    #[must_use]
    pub(in crate::engine) fn put(&mut self, name: &str, grant: Grant, now: Option<Tick>) -> Vec<Box<str>> {
        let former = self.remove(name);
        let (created, load, version) = (grant.created, grant.load, grant.version);
        let changed = former.filter(|former| former.version == version).map_or(now, |former| former.changed);
        let content = if self.would_count(name, &grant) { Content::Held(grant) } else { Content::LetGo };
        self.created.insert(name.into(), created);
        self.by_age.insert((created, name.into()), Known { load, version, changed, content });
        self.settle()
    }

    /// Forgets a grant; none if it isn't known. Gives the names of those that are to be read again.
    pub(in crate::engine) fn take(&mut self, name: &str) -> Option<Vec<Box<str>>> {
        self.remove(name).map(|_| self.settle())
    }

    fn remove(&mut self, name: &str) -> Option<Known> {
        let (name, created) = self.created.remove_entry(name)?;
        self.by_age.remove(&(created, name))
    }

    /// Finds out which count. What counted till now and doesn't any more is let go.
    fn settle(&mut self) -> Vec<Box<str>> {
        let mut load = 0;
        let fits = |known: &&Known| {
            load += known.load;
            load <= grant::LOAD
        };
        let counting = self.by_age.values().take(grant::MOST).take_while(fits).count();
        let counted = mem::replace(&mut self.counting, counting);
        // One more than these may have been before them.
        for known in self.by_age.values_mut().skip(counting).take(counted + 1) {
            known.content = Content::LetGo;
        }
        let mut wanted = Vec::new();
        for ((_, name), known) in self.by_age.iter_mut().take(counting) {
            if matches!(known.content, Content::LetGo) {
                known.content = Content::Awaited;
                wanted.push(name.clone());
            }
        }
        wanted
    }

    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    pub(in crate::engine) fn names(&self) -> impl Iterator<Item = &Box<str>> {
        self.created.keys()
    }

    /// Whether a grant is to be read again.
    pub(in crate::engine) fn awaits(&self, name: &str) -> bool {
        let known = self.created.get(name).and_then(|created| self.by_age.get(&(*created, name.into())));
        known.is_some_and(|known| matches!(known.content, Content::Awaited))
    }

    /// Whether one is to be read again.
    pub(in crate::engine) fn awaits_some(&self) -> bool {
        self.by_age.values().take(self.counting).any(|known| matches!(known.content, Content::Awaited))
    }

    /// All that there are, each with its resourceVersion.
    pub(in crate::engine) fn versions(&self) -> BTreeMap<Box<str>, u64> {
        self.by_age.iter().map(|((_, name), known)| (name.clone(), known.version)).collect()
    }

    /// Those that count, each with when this process saw it come or change.
    pub(in crate::engine) fn counting_with_changes(&self) -> impl Iterator<Item = (&Grant, Option<Tick>)> {
        self.by_age.values().take(self.counting).filter_map(|known| match &known.content {
            Content::Held(grant) => Some((grant, known.changed)),
            Content::Awaited | Content::LetGo => None,
        })
    }

    /// Those that count.
    pub(in crate::engine) fn counting(&self) -> impl Iterator<Item = &Grant> {
        self.counting_with_changes().map(|(grant, _)| grant)
    }

    /// Whether a grant would count if it were one of them.
    pub(in crate::engine) fn would_count(&self, name: &str, grant: &Grant) -> bool {
        let before = (grant.created, Box::<str>::from(name));
        let older = self.by_age.range(..before).filter(|((_, other), _)| **other != *name).take(grant::MOST);
        let (number, load) = older.fold((0, 0), |(number, load), (_, other)| (number + 1, load + other.load));
        number < grant::MOST && load + grant.load <= grant::LOAD
    }

    /// How many are held in memory.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.by_age.values().filter(|known| matches!(known.content, Content::Held(_))).count()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn grant(age: i64, load: usize) -> Grant {
        let object = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant", "metadata": {"namespace": "home", "name": "g"},
            "spec": {"from": [{"namespaces": ["a"]}], "to": [{"apiVersion": "v1", "kind": "Secret"}]},
        });
        let mut grant = Grant::parse(&from_value(object).unwrap()).unwrap();
        (grant.created, grant.load) = (Timestamp::from_second(age).unwrap(), load);
        grant
    }

    #[test]
    fn what_does_not_count_is_not_held_in_whatever_order_it_comes() {
        let most = i64::try_from(grant::MOST).unwrap();
        let ages: [Vec<i64>; 2] = [(0..most * 4).collect(), (0..most * 4).rev().collect()];
        for ages in ages {
            let mut grants = Grants::default();
            for age in ages {
                assert!(grants.put(&format!("g{age}"), grant(age, 1), None).is_empty());
                assert!(grants.held() <= grant::MOST);
            }
            assert_eq!(grants.held(), grant::MOST);
            assert!(grants.counting().all(|grant| grant.created.as_second() < most));
        }
    }

    #[test]
    fn what_comes_to_count_is_read_again_and_what_is_pushed_out_meanwhile_is_not_awaited() {
        let mut grants = Grants::default();
        for age in [1, 2, 3] {
            assert!(grants.put(&format!("g{age}"), grant(age, grant::LOAD / 2), None).is_empty());
        }
        assert_eq!(grants.take("g1"), Some(vec!["g3".into()]));
        assert!(grants.awaits("g3") && !grants.awaits("g2"));
        assert_eq!(grants.counting().count(), 1);
        // It is asked for once.
        assert!(grants.put("g4", grant(4, 1), None).is_empty());
        assert!(grants.put("g3", grant(3, grant::LOAD / 2), None).is_empty());
        assert_eq!((grants.counting().count(), grants.awaits("g3")), (2, false));

        assert_eq!(grants.take("g2"), Some(vec!["g4".into()]));
        assert!(grants.put("g0", grant(0, grant::LOAD / 2), None).is_empty());
        assert!(!grants.awaits("g4"));
        assert_eq!(grants.take("g0"), Some(vec!["g4".into()]));
        assert_eq!(grants.take("g0"), None);
    }
}
