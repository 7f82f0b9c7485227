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
pub struct CreatedCopy(u64);

impl CreatedCopy {
    /// The entry for a rule's copy of this kind and name, in the namespace with this uid.
    pub fn new(namespace: Uid, rule: &RuleId, kind: &GroupKind, name: &str) -> Self {
        Self(Checksum::of(format!("{namespace} {rule} {kind} {name}").as_bytes()).short())
    }
}

/// Most entries that Replications may record. The annotations of a namespace have room for 256 KiB,
/// and no user can annotate it once they are full. A hash does not show its rule. So the entries of
/// `ClusterReplication`s count as well, but they are always recorded.
pub const MOST: usize = 1024;

/// The copies that have been created in a namespace. Prints as the value of
/// [`CREATED_ONCE`](crate::names::CREATED_ONCE): 16 hexadecimal digits for each entry, in order,
/// separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreatedCopies {
    /// The entries. [`Self::insert`] records a new copy and keeps the limit. The entries of an
    /// annotation are taken as they are.
    pub entries: BTreeSet<CreatedCopy>,
}

impl CreatedCopies {
    /// Parses an annotation, and ignores text that it does not understand.
    pub fn parse(text: &str) -> Self {
        // The parser of numbers would also take a sign.
        let is_entry = |word: &&str| word.len() == 16 && !word.starts_with('+');
        let words = text.split(',').filter(is_entry);
        let numbers = words.filter_map(|word| u64::from_str_radix(word, 16).ok());
        let entries = numbers.map(CreatedCopy).collect();
        Self { entries }
    }

    /// Records that the copy has been created. A Replication's entry (`tenants`) is not recorded
    /// beyond [`MOST`]. Returns true if the entry is new.
    pub fn insert(&mut self, entry: CreatedCopy, tenants: bool) -> bool {
        (!tenants || self.entries.len() < MOST) && self.entries.insert(entry)
    }
}

impl fmt::Display for CreatedCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, CreatedCopy(entry)) in self.entries.iter().enumerate() {
            write!(f, "{}{entry:016x}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    fn entry(namespace: &str, rule: &str, kind: &str, name: &str) -> CreatedCopy {
        let kind = GroupKind {
            group: "".into(),
            kind: kind.into(),
        };
        CreatedCopy::new(
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
            entry(uid, "ClusterReplication/a", "Secret", "x"),
            entry(other, "ClusterReplication/a", "Secret", "x"),
            entry(uid, "ClusterReplication/b", "Secret", "x"),
            entry(uid, "ClusterReplication/a", "ConfigMap", "x"),
            entry(uid, "ClusterReplication/a", "Secret", "y"),
        ];
        let mut created = CreatedCopies::default();
        assert_eq!(created.to_string(), "");
        for (count, entry) in all.into_iter().enumerate() {
            assert!(
                !created.entries.contains(&entry),
                "the {count}th is another than those before"
            );
            created.insert(entry, false);
            assert_eq!(created.to_string().len(), (count + 1) * 17 - 1);
        }
        assert_eq!(CreatedCopies::parse(&created.to_string()), created);
        created.entries.remove(&all[0]);
        assert!(!created.entries.contains(&all[0]) && created.entries.contains(&all[1]));
    }

    #[test]
    fn tenants_do_not_fill_the_annotations_of_a_namespace() {
        let numbered = |number: usize| {
            entry(
                "0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5",
                "Replication/a/a",
                "Secret",
                &number.to_string(),
            )
        };
        let mut created = CreatedCopies::default();
        (0..=MOST).for_each(|number| _ = created.insert(numbered(number), true));
        assert!(
            created.entries.contains(&numbered(MOST - 1))
                && !created.entries.contains(&numbered(MOST))
        );
        created.insert(numbered(MOST + 1), false);
        assert!(
            created.entries.contains(&numbered(MOST + 1)),
            "the platform's are"
        );
        assert_eq!(CreatedCopies::parse(&created.to_string()), created);
        for gone in [0, 1] {
            created.entries.remove(&numbered(gone));
        }
        created.insert(numbered(MOST), true);
        assert!(
            created.entries.contains(&numbered(MOST)),
            "there is room again"
        );
    }

    #[test]
    fn what_makes_no_sense_is_passed_over() {
        assert!(CreatedCopies::parse("").entries.is_empty());
        assert!(
            CreatedCopies::parse("x,,+00000000000000f,0123, 0123456789abcdef,0123456789abcdef0")
                .entries
                .is_empty()
        );
        assert_eq!(
            CreatedCopies::parse("junk,0123456789abcdef").to_string(),
            "0123456789abcdef"
        );
    }
}
