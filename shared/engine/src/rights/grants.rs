//! The grants of one namespace. The oldest ones count, within a quota, so that a lookup is fast.

use std::{collections::BTreeMap, iter};

use jiff::Timestamp;

use mimeo_model::grant::{Edition, Effect, Grant, GrantStatus, LOAD, MOST, Standing};

use crate::clock::Tick;

/// The grants of a namespace.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    /// The valid grants, the oldest first, and those of one age by name.
    valid: BTreeMap<(Timestamp, Box<str>), Known>,
    /// The statuses of all grants, by name: the stored ones, or those about to be written. A grant
    /// that is not in `valid` has an invalid spec and grants nothing.
    statuses: BTreeMap<Box<str>, GrantStatus>,
    /// When their statuses may be written at the earliest, if they may have changed.
    pub(crate) due: Option<Tick>,
}

#[derive(Debug)]
struct Known {
    grant: Grant,
    /// When this process saw the grant appear or change.
    changed: Option<Tick>,
}

impl Grants {
    /// Records a grant. If its spec is new, `now` is the time of the change. `None` means that the
    /// spec may have been the same for long. Returns false if the grant gives the same access as
    /// before.
    pub(crate) fn put(
        &mut self,
        name: &str,
        grant: Result<Grant, GrantStatus>,
        now: Option<Tick>,
    ) -> bool {
        let former = self.remove(name);
        let status = match &grant {
            Ok(grant) => GrantStatus {
                generation: grant.edition.generation,
                status: grant.status,
            },
            Err(refused) => *refused,
        };
        self.statuses.insert(name.into(), status);
        let Ok(grant) = grant else {
            return former.is_some();
        };
        let Grant {
            created, edition, ..
        } = grant;
        let same = former.filter(|former| former.grant.edition == edition);
        let new = same.is_none() || edition.uid.is_none();
        let changed = same.map_or(now, |same| same.changed);
        let known = Known { grant, changed };
        self.valid.insert((created, name.into()), known);
        new
    }

    /// Forgets a grant. Returns false if it granted nothing.
    pub(crate) fn take(&mut self, name: &str) -> bool {
        self.statuses.remove(name);
        self.remove(name).is_some()
    }

    fn remove(&mut self, name: &str) -> Option<Known> {
        let mut named = self.valid.extract_if(.., |(_, other), _| **other == *name);
        named.next().map(|(_, known)| known)
    }

    /// Returns up to `most` statuses to write, by the grants' names. `used` returns the number of
    /// Replications that use a grant, and 0 for a grant that does not count. From now on the
    /// statuses count as written.
    pub(crate) fn status_updates(
        &mut self,
        most: usize,
        used: impl Fn(&str) -> i32,
    ) -> Vec<(Box<str>, Standing)> {
        let counting = iter::repeat_n(Effect::Counts, self.counting().count());
        let effects = counting.chain(iter::repeat(Effect::TooMany));
        let valid = self.valid.keys().map(|(_, name)| name);
        let effects: BTreeMap<_, _> = valid.zip(effects).collect();
        let updates = self.statuses.iter_mut().filter_map(|(name, stored)| {
            let standing = Standing {
                generation: stored.generation,
                effect: effects.get(name).copied().unwrap_or(Effect::Invalid),
                replications: used(name),
            };
            let written = stored.status.replace(standing);
            (written != Some(standing)).then(|| (name.clone(), standing))
        });
        updates.take(most).collect()
    }

    /// Records that a grant's status could not be written.
    pub(crate) fn status_failed(&mut self, name: &str) {
        if let Some(stored) = self.statuses.get_mut(name) {
            stored.status = None;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.statuses.is_empty()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &Box<str>> {
        self.statuses.keys()
    }

    /// The valid grants, with their known editions.
    pub(crate) fn editions(&self) -> BTreeMap<Box<str>, Edition> {
        self.valid
            .iter()
            .map(|((_, name), known)| (name.clone(), known.grant.edition))
            .collect()
    }

    /// The grants that count, by name, each with the time when this process saw it appear or
    /// change. The oldest count, until they have too many names in all.
    pub(crate) fn counting(&self) -> impl Iterator<Item = (&str, &Grant, Option<Tick>)> {
        let mut names = 0;
        let oldest = self.valid.iter().take(MOST);
        let counting = oldest.take_while(move |(_, known)| {
            names += known.grant.load;
            names <= LOAD
        });
        counting.map(|((_, name), known)| (&**name, &known.grant, known.changed))
    }

    /// True if the grant would count if it were stored.
    pub(crate) fn would_count(&self, name: &str, grant: &Grant) -> bool {
        let older = self.valid.range(..(grant.created, name.into()));
        let older = older.filter(|((_, other), _)| **other != *name);
        let loads = older.map(|(_, known)| known.grant.load);
        let loads: Vec<usize> = loads.chain([grant.load]).collect();
        loads.len() <= MOST && loads.iter().sum::<usize>() <= LOAD
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use mimeo_model::meta::Uid;
    use serde_json::{from_value, json};

    use super::*;

    fn grant(age: i64, load: usize) -> Grant {
        let object = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant", "metadata": {"namespace": "home", "name": "g"},
            "spec": {"grantees": [{"namespaces": ["a"]}], "objects": [{"apiVersion": "v1", "kind": "Secret"}]},
        });
        let mut grant = Grant::parse(&from_value(object).unwrap()).unwrap();
        (grant.created, grant.load) = (Timestamp::from_second(age).unwrap(), load);
        grant
    }

    fn counting(grants: &Grants) -> Vec<&str> {
        grants.counting().map(|(name, ..)| name).collect()
    }

    #[test]
    fn the_oldest_grants_count_in_whatever_order_they_come() {
        let most = i64::try_from(MOST).unwrap();
        let ages: [Vec<i64>; 2] = [(0..most * 4).collect(), (0..most * 4).rev().collect()];
        for ages in ages {
            let mut grants = Grants::default();
            for age in ages {
                assert!(grants.put(&format!("g{age}"), Ok(grant(age, 1)), None));
            }
            let ages = grants.counting().map(|(_, grant, _)| grant.created);
            assert!(ages.map(Timestamp::as_second).eq(0..most));
        }
    }

    #[test]
    fn a_grant_counts_once_there_is_room_and_no_longer() {
        let mut grants = Grants::default();
        for age in [1, 2, 3] {
            let grant = grant(age, LOAD / 2);
            assert!(grants.put(&format!("g{age}"), Ok(grant), None));
        }
        assert_eq!(counting(&grants), ["g1", "g2"]);
        assert!(grants.take("g1") && !grants.take("g1"));
        assert_eq!(counting(&grants), ["g2", "g3"]);
        assert!(grants.put("g0", Ok(grant(0, LOAD / 2)), None));
        assert_eq!(counting(&grants), ["g0", "g2"]);
        // A refused grant takes no room.
        let refused = GrantStatus {
            generation: 1,
            status: None,
        };
        assert!(grants.put("g2", Err(refused), None) && !grants.put("g2", Err(refused), None));
        assert_eq!(counting(&grants), ["g0", "g3"]);
        assert!(!grants.take("g2") && grants.take("g0") && grants.take("g3"));
        assert!(grants.is_empty());
    }

    #[test]
    fn the_time_of_a_change_stays_while_the_spec_does() {
        let mut grants = Grants::default();
        let at = |grants: &Grants| grants.counting().next().and_then(|(.., changed)| changed);
        let mut stored = grant(1, 1);
        stored.edition = Edition {
            uid: Uid::parse("00000000-0000-4000-8000-000000000001"),
            generation: 1,
        };
        assert!(grants.put("g", Ok(stored.clone()), None));
        assert!(!grants.put("g", Ok(stored.clone()), Some(Tick::ZERO)));
        assert_eq!(at(&grants), None);
        stored.edition.generation = 2;
        assert!(grants.put("g", Ok(stored), Some(Tick::ZERO)));
        assert_eq!(at(&grants), Some(Tick::ZERO));
    }
}
