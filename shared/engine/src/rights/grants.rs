//! The grants of one namespace. The oldest ones count, within a quota, so that a lookup is fast.
//! The content of other grants is not held.

use std::{collections::BTreeMap, mem};

use mimeo_model::grant::{self, Edition, Effect, Grant, Standing};

use crate::{clock::Tick, quota::Quota};

/// The grants of a namespace.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    /// The cost of a grant is the number of its names.
    quota: Quota<Known, { grant::MOST }, { grant::LOAD }>,
    /// How many of the oldest grants count.
    counting: usize,
}

#[derive(Debug)]
struct Known {
    edition: Edition,
    /// The status of the grant, or the one that is about to be written.
    status: Option<Standing>,
    /// When this process saw the grant appear or change.
    changed: Option<Tick>,
    content: Content,
}

/// The held content of a grant.
#[derive(Debug)]
enum Content {
    Held(Grant),
    /// The grant counts now, and must be read again.
    Awaited,
    /// The grant doesn't count. A user may write thousands of such grants, so only their existence
    /// is held.
    LetGo,
}

impl Grants {
    /// Records a grant. If its spec is new, `now` is the time of the change. `None` means that the
    /// spec may have been the same for long. Returns the names of the grants that must be read
    /// again.
    #[must_use]
    pub(crate) fn put(&mut self, name: &str, grant: Grant, now: Option<Tick>) -> Vec<Box<str>> {
        let former = self.quota.remove(name);
        let Grant {
            created,
            load,
            edition,
            status,
            ..
        } = grant;
        let changed = former
            .filter(|former| former.edition == edition)
            .map_or(now, |former| former.changed);
        let content = if self.would_count(name, &grant) {
            Content::Held(grant)
        } else {
            Content::LetGo
        };
        let known = Known {
            edition,
            status,
            changed,
            content,
        };
        self.quota.put(name, created, load, known);
        self.settle()
    }

    /// Forgets a grant. Returns the names of the grants that must be read again, or `None` if the
    /// grant isn't known.
    pub(crate) fn take(&mut self, name: &str) -> Option<Vec<Box<str>>> {
        self.quota.remove(name).map(|_| self.settle())
    }

    /// Determines which grants count. Drops the content of grants that no longer count.
    fn settle(&mut self) -> Vec<Box<str>> {
        let counting = self.quota.fitting();
        let counted = mem::replace(&mut self.counting, counting);
        // The new grant may be in front of the grants that counted before, so the loop covers one
        // more.
        for (_, known) in self.quota.iter_mut().skip(counting).take(counted + 1) {
            known.content = Content::LetGo;
        }
        let mut wanted = Vec::new();
        for (name, known) in self.quota.iter_mut().take(counting) {
            if matches!(known.content, Content::LetGo) {
                known.content = Content::Awaited;
                wanted.push(name.clone());
            }
        }
        wanted
    }

    /// True if the grant is known with this very spec, so that only metadata or status can differ.
    pub(crate) fn has(&self, name: &str, grant: &Grant) -> bool {
        let known = self.quota.get(name);
        known.is_some_and(|known| known.edition == grant.edition && known.edition.uid.is_some())
    }

    /// Returns up to `most` statuses to write, by the grants' names. `used` returns the number of
    /// Replications that use a grant. From now on the statuses count as written.
    pub(crate) fn status_updates(
        &mut self,
        most: usize,
        used: impl Fn(&str) -> i32,
    ) -> Vec<(Box<str>, Standing)> {
        let mut updates = Vec::new();
        for (index, (name, known)) in self.quota.iter_mut().enumerate() {
            let counts = index < self.counting;
            let (effect, replications) = if counts {
                (Effect::Counts, used(name))
            } else {
                (Effect::TooMany, 0)
            };
            let standing = Standing {
                generation: known.edition.generation,
                effect,
                replications,
            };
            if known.status.replace(standing) != Some(standing) {
                updates.push((name.clone(), standing));
                if updates.len() == most {
                    break;
                }
            }
        }
        updates
    }

    /// Records that a grant's status could not be written.
    pub(crate) fn status_failed(&mut self, name: &str) {
        if let Some(known) = self.quota.get_mut(name) {
            known.status = None;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.quota.is_empty()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &Box<str>> {
        self.quota.iter().map(|(name, _)| name)
    }

    /// True if the grant must be read again.
    pub(crate) fn awaits(&self, name: &str) -> bool {
        let known = self.quota.get(name);
        known.is_some_and(|known| matches!(known.content, Content::Awaited))
    }

    /// True if at least one grant must be read again.
    pub(crate) fn awaits_some(&self) -> bool {
        self.quota
            .iter()
            .take(self.counting)
            .any(|(_, known)| matches!(known.content, Content::Awaited))
    }

    /// All grants, with their known editions.
    pub(crate) fn editions(&self) -> BTreeMap<Box<str>, Edition> {
        self.quota
            .iter()
            .map(|(name, known)| (name.clone(), known.edition))
            .collect()
    }

    /// The grants that count, each with the time when this process saw it appear or change.
    pub(crate) fn counting_with_changes(&self) -> impl Iterator<Item = (&Grant, Option<Tick>)> {
        self.quota
            .iter()
            .take(self.counting)
            .filter_map(|(_, known)| match &known.content {
                Content::Held(grant) => Some((grant, known.changed)),
                Content::Awaited | Content::LetGo => None,
            })
    }

    /// The grants that count, by name.
    pub(crate) fn counting_by_name(&self) -> impl Iterator<Item = (&str, &Grant)> {
        self.quota
            .iter()
            .take(self.counting)
            .filter_map(|(name, known)| match &known.content {
                Content::Held(grant) => Some((&**name, grant)),
                Content::Awaited | Content::LetGo => None,
            })
    }

    /// The grants that count.
    pub(crate) fn counting(&self) -> impl Iterator<Item = &Grant> {
        self.counting_with_changes().map(|(grant, _)| grant)
    }

    /// True if the grant would count if it were stored.
    pub(crate) fn would_count(&self, name: &str, grant: &Grant) -> bool {
        self.quota.would_fit(name, grant.created, grant.load)
    }

    /// The number of grants with held content.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.quota
            .iter()
            .filter(|(_, known)| matches!(known.content, Content::Held(_)))
            .count()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use jiff::Timestamp;
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

    #[test]
    fn what_does_not_count_is_not_held_in_whatever_order_it_comes() {
        let most = i64::try_from(grant::MOST).unwrap();
        let ages: [Vec<i64>; 2] = [(0..most * 4).collect(), (0..most * 4).rev().collect()];
        for ages in ages {
            let mut grants = Grants::default();
            for age in ages {
                assert!(
                    grants
                        .put(&format!("g{age}"), grant(age, 1), None)
                        .is_empty()
                );
                assert!(grants.held() <= grant::MOST);
            }
            assert_eq!(grants.held(), grant::MOST);
            assert!(
                grants
                    .counting()
                    .all(|grant| grant.created.as_second() < most)
            );
        }
    }

    #[test]
    fn what_comes_to_count_is_read_again_and_what_is_pushed_out_meanwhile_is_not_awaited() {
        let mut grants = Grants::default();
        for age in [1, 2, 3] {
            assert!(
                grants
                    .put(&format!("g{age}"), grant(age, grant::LOAD / 2), None)
                    .is_empty()
            );
        }
        assert_eq!(grants.take("g1"), Some(vec!["g3".into()]));
        assert!(grants.awaits("g3") && !grants.awaits("g2"));
        assert_eq!(grants.counting().count(), 1);
        // Each grant is requested once.
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
