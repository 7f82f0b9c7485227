//! The facts that could not be read, and what each of them leaves unknown.

use std::collections::BTreeMap;

use mimeo_model::{id::RuleKind, source::SourceRef};

/// What a fact leaves unknown if it can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gap {
    /// The rules of this kind, or some of them.
    Rules(RuleKind),
    /// The copies of one kind of objects.
    Copies,
    /// The grants: whether a Replication may have copies in other namespaces.
    Grants,
    /// Whether a rule lost more copies than it seems.
    Losses,
    /// Whether the copies of this source are up to date.
    Source(SourceRef),
    /// Other details of an answer.
    Details,
}

/// The facts that could not be read: one sentence for users about each, and its gap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unread(BTreeMap<String, Gap>);

impl Unread {
    pub(super) fn insert(&mut self, gap: Gap, sentence: impl Into<String>) {
        self.0.insert(sentence.into(), gap);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All sentences.
    pub(crate) fn sentences(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// The sentences about some gaps.
    pub(crate) fn about(&self, wanted: impl Fn(&Gap) -> bool) -> impl Iterator<Item = &str> {
        let found = self.0.iter().filter(move |(_, gap)| wanted(gap));
        found.map(|(sentence, _)| sentence.as_str())
    }

    /// True if a fact leaves this unknown.
    pub(crate) fn has(&self, gap: &Gap) -> bool {
        self.0.values().any(|one| one == gap)
    }

    /// True if rules may be missing.
    pub(crate) fn has_rules(&self) -> bool {
        self.0.values().any(|gap| matches!(gap, Gap::Rules(_)))
    }
}
