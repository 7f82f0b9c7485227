//! The copies that rules with `strategy: CreateOnce` have created in a namespace. An annotation of
//! the namespace stores them, so a copy that the namespace's owner deletes is not created again,
//! even after a restart.
//!
//! A copy is recorded after its creation, not before. If the program ends in between, the copy
//! exists and is recorded next time. A copy deleted in this very moment is created again, once.
//! With the opposite order, a copy that was never created could count as created.

use std::{collections::BTreeSet, fmt};

use crate::{
    id::RuleId,
    kind::GroupKind,
    meta::{Checksum, Uid},
};

/// One copy that one rule has created in one namespace.
///
/// It is a hash, so that thousands fit into an annotation. The namespace's uid is part of the hash:
/// if a manifest or a backup carries the annotation to another namespace, it has no meaning there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seed(u64);

impl Seed {
    /// The seed of a rule's copy of this kind and name, in the namespace with this uid.
    pub fn new(namespace: Uid, rule: &RuleId, kind: &GroupKind, name: &str) -> Self {
        Self(Checksum::of(format!("{namespace} {rule} {kind} {name}").as_bytes()).short())
    }
}

/// Most seeds that Replications may record. The annotations of a namespace have room for 256 KiB,
/// and no user can annotate it once they are full. A hash does not show its rule. So the seeds of
/// `ClusterReplication`s count as well, but they are always recorded.
pub const MOST: usize = 1024;

/// The copies that have been created in a namespace. Prints as the value of
/// [`SEEDED`](crate::names::SEEDED): 16 hexadecimal digits for each seed, in order, separated by
/// commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seeds(BTreeSet<Seed>);

impl Seeds {
    /// Parses an annotation, and ignores text that it does not understand.
    pub fn parse(text: &str) -> Self {
        let is_seed =
            |word: &&str| word.len() == 16 && word.bytes().all(|digit| digit.is_ascii_hexdigit());
        let words = text.split(',').filter(is_seed);
        Self(
            words
                .filter_map(|word| u64::from_str_radix(word, 16).ok())
                .map(Seed)
                .collect(),
        )
    }

    /// True if it has no seed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if this copy has been created.
    pub fn contains(&self, seed: Seed) -> bool {
        self.0.contains(&seed)
    }

    /// Records that the copy has been created. A Replication's seed (`tenants`) is not recorded
    /// beyond [`MOST`]. Returns true if the seed is new.
    pub fn insert(&mut self, seed: Seed, tenants: bool) -> bool {
        (!tenants || self.0.len() < MOST) && self.0.insert(seed)
    }

    /// Removes a seed that no longer matters.
    pub fn remove(&mut self, seed: Seed) {
        self.0.remove(&seed);
    }

    /// Keeps only the seeds that are also in `these`.
    pub fn retain(&mut self, these: &Self) {
        self.0.retain(|seed| these.contains(*seed));
    }

    /// Keeps only the seeds that are not in `these`.
    pub fn subtract(&mut self, these: &Self) {
        self.0.retain(|seed| !these.contains(*seed));
    }

    /// Adds all seeds of `others`.
    pub fn extend(&mut self, others: &Self) {
        self.0.extend(&others.0);
    }
}

impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Seed(seed)) in self.0.iter().enumerate() {
            write!(f, "{}{seed:016x}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    fn seed(namespace: &str, rule: &str, kind: &str, name: &str) -> Seed {
        let kind = GroupKind {
            group: "".into(),
            kind: kind.into(),
        };
        Seed::new(
            Uid::parse(namespace).unwrap(),
            &rule.parse().unwrap(),
            &kind,
            name,
        )
    }

    #[test]
    fn what_is_printed_is_what_is_parsed() {
        let uid = "0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5";
        let other = "0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c6";
        let all = [
            seed(uid, "ClusterReplication/a", "Secret", "x"),
            seed(other, "ClusterReplication/a", "Secret", "x"),
            seed(uid, "ClusterReplication/b", "Secret", "x"),
            seed(uid, "ClusterReplication/a", "ConfigMap", "x"),
            seed(uid, "ClusterReplication/a", "Secret", "y"),
        ];
        let mut seeds = Seeds::default();
        assert_eq!(seeds.to_string(), "");
        for (count, seed) in all.into_iter().enumerate() {
            assert!(
                !seeds.contains(seed),
                "the {count}th is another than those before"
            );
            seeds.insert(seed, false);
            assert_eq!(seeds.to_string().len(), (count + 1) * 17 - 1);
        }
        assert_eq!(Seeds::parse(&seeds.to_string()), seeds);
        seeds.remove(all[0]);
        assert!(!seeds.contains(all[0]) && seeds.contains(all[1]));
    }

    #[test]
    fn tenants_do_not_fill_the_annotations_of_a_namespace() {
        let numbered = |number: usize| {
            seed(
                "0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5",
                "Replication/a/a",
                "Secret",
                &number.to_string(),
            )
        };
        let mut seeds = Seeds::default();
        (0..=MOST).for_each(|number| _ = seeds.insert(numbered(number), true));
        assert!(seeds.contains(numbered(MOST - 1)) && !seeds.contains(numbered(MOST)));
        seeds.insert(numbered(MOST + 1), false);
        assert!(seeds.contains(numbered(MOST + 1)), "the platform's are");
        assert_eq!(Seeds::parse(&seeds.to_string()), seeds);
        for gone in [0, 1] {
            seeds.remove(numbered(gone));
        }
        seeds.insert(numbered(MOST), true);
        assert!(seeds.contains(numbered(MOST)), "there is room again");
    }

    #[test]
    fn what_makes_no_sense_is_passed_over() {
        assert!(Seeds::parse("").is_empty());
        assert!(
            Seeds::parse("x,,+00000000000000f,0123, 0123456789abcdef,0123456789abcdef0").is_empty()
        );
        assert_eq!(
            Seeds::parse("junk,0123456789abcdef").to_string(),
            "0123456789abcdef"
        );
    }
}
