//! The objects that a selector finds, in the order in which a rule takes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use mimeo_model::{meta::is_copy, rule::MOST_SOURCES, source::refused_type};

/// So many are kept: enough for many to go before it has to be asked which come next. Whoever
/// labels thousands of objects fills no memory.
const KEPT: usize = 4 * MOST_SOURCES;

/// An object that has a selector's labels. Where there are too many, originals come before copies,
/// which no rule takes. Of the originals those that may be copied come first, then the older. So an
/// object that is created or copied later takes no other's place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    copy: bool,
    refused: bool,
    /// As the API server writes it, which is in the order of time.
    created: Box<str>,
    pub(crate) name: Arc<str>,
}

impl Member {
    /// This object; none without a name. Its metadata is enough.
    pub fn of(object: &Value) -> Option<Self> {
        let metadata = &object["metadata"];
        Some(Self {
            copy: is_copy(metadata),
            refused: refused_type(object["type"].as_str()).is_some(),
            created: metadata["creationTimestamp"]
                .as_str()
                .unwrap_or_default()
                .into(),
            name: metadata["name"].as_str()?.into(),
        })
    }
}

/// The first of the objects that a selector finds.
#[derive(Clone, Debug, Default)]
pub struct Members {
    in_order: BTreeSet<Member>,
    by_name: BTreeMap<Arc<str>, Member>,
    /// The first of those that aren't kept. Nothing is known of what comes after it.
    beyond: Option<Member>,
}

impl Members {
    /// Takes one in, unless there are enough before it. Tells whether anything has changed.
    pub fn put(&mut self, member: Member) -> bool {
        if self.by_name.get(&member.name) == Some(&member) {
            return false;
        }
        let moved = self.take(&member.name);
        if !self.reaches(&member) {
            return moved;
        }
        self.by_name.insert(member.name.clone(), member.clone());
        self.in_order.insert(member);
        if self.in_order.len() > KEPT
            && let Some(last) = self.in_order.pop_last()
        {
            self.by_name.remove(&last.name);
            self.beyond = Some(last);
        }
        true
    }

    /// Lets one go. Tells whether it was there.
    pub fn take(&mut self, name: &str) -> bool {
        let old = self.by_name.remove(name);
        old.is_some_and(|old| self.in_order.remove(&old))
    }

    /// Whether one of that name is kept.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Member> {
        self.by_name.get(name)
    }

    /// Whether one would be kept if it were there.
    pub(crate) fn reaches(&self, member: &Member) -> bool {
        self.beyond.as_ref().is_none_or(|beyond| member < beyond)
    }

    /// Those that a rule may take.
    pub(crate) fn first(&self) -> impl Iterator<Item = &Member> {
        self.in_order.iter().take(MOST_SOURCES)
    }

    /// The first that none takes.
    pub(crate) fn excess(&self) -> Option<&Member> {
        self.in_order.iter().nth(MOST_SOURCES)
    }

    /// How many originals that are kept are more than a rule may take.
    pub(crate) fn originals_beyond(&self) -> usize {
        let originals = self.in_order.iter().take_while(|member| !member.copy);
        originals.count().saturating_sub(MOST_SOURCES)
    }

    /// Whether there are originals that aren't kept.
    pub(crate) fn hides_originals(&self) -> bool {
        self.beyond.as_ref().is_some_and(|beyond| !beyond.copy)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.in_order.iter()
    }

    /// Whether all of them are kept.
    pub(crate) fn complete(&self) -> bool {
        self.beyond.is_none()
    }

    /// How many there are, or at least are.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether so many have gone that it must be asked which come next.
    pub(crate) fn depleted(&self) -> bool {
        !self.complete() && self.len() < MOST_SOURCES
    }

    /// What a new listing shows; of what is known already more may be known than a listing tells.
    #[must_use]
    pub(crate) fn relisted(&self, found: &Self) -> Self {
        let mut members = Self {
            beyond: found.beyond.clone(),
            ..Self::default()
        };
        for member in found.iter() {
            members.put(self.get(&member.name).unwrap_or(member).clone());
        }
        members
    }
}

impl Extend<Member> for Members {
    fn extend<I: IntoIterator<Item = Member>>(&mut self, members: I) {
        members.into_iter().for_each(|member| _ = self.put(member));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::json;

    use super::*;

    fn member(number: usize) -> Member {
        let time = format!("2026-01-01T00:{:02}:{:02}Z", number / 60, number % 60);
        Member::of(&json!({"metadata": {"name": format!("m{number}"), "creationTimestamp": time}}))
            .unwrap()
    }

    #[test]
    fn of_very_many_the_first_are_kept_and_the_last_are_none_of_them() {
        let mut members = Members::default();
        // In whatever order they are shown.
        members.extend((0..KEPT + 500).rev().map(member));
        assert_eq!(
            (members.len(), members.first().next()),
            (KEPT, Some(&member(0)))
        );
        assert!(
            members
                .iter()
                .eq((0..KEPT).map(member).collect::<Vec<_>>().iter())
        );
        // One that goes makes no room for one of which it isn't known whether it comes next.
        assert!(members.take("m7") && !members.take("m7"));
        members.put(member(KEPT + 1));
        assert_eq!((members.len(), members.depleted()), (KEPT - 1, false));
        (8..KEPT - 200).for_each(|number| _ = members.take(&format!("m{number}")));
        assert!(members.depleted());
        assert!(!Members::default().depleted());
    }
}
