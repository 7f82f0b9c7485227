//! The objects that a selector finds, in the order in which a rule takes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use mimeo_model::{meta::is_copy, rule::MOST_SOURCES, source::refused_type};

/// The number of objects that are kept. Many of them can disappear before Mimeo must list the next
/// ones. A user that labels thousands of objects does not fill the memory.
const KEPT: usize = 4 * MOST_SOURCES;

/// An object that has a selector's labels, ordered by priority. Originals come before copies, which
/// no rule takes. Among the originals, objects that may be copied come first, then the older ones.
/// So an object that is created or copied later takes no other object's place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// True if the object is a copy. Rules may name copies, but their selectors find none.
    pub(crate) copy: bool,
    refused: bool,
    /// The time as the API server writes it. The order of these texts is the order of time.
    created: Box<str>,
    pub(crate) name: Arc<str>,
}

impl Member {
    /// Returns the member for this object, or `None` if it has no name. The object's metadata is
    /// enough.
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

/// The first objects that a selector finds.
#[derive(Clone, Debug, Default)]
pub struct Members {
    in_order: BTreeSet<Member>,
    by_name: BTreeMap<Arc<str>, Member>,
    /// The first object that isn't kept. Nothing is known about the objects after it.
    beyond: Option<Member>,
}

impl Members {
    /// Adds an object, unless enough objects come before it. Returns true if that changed anything.
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

    /// Removes an object. Returns true if it was there.
    pub fn take(&mut self, name: &str) -> bool {
        let old = self.by_name.remove(name);
        old.is_some_and(|old| self.in_order.remove(&old))
    }

    /// Returns the object of that name, if it is kept.
    pub fn get(&self, name: &str) -> Option<&Member> {
        self.by_name.get(name)
    }

    /// True if the object would be kept if it existed.
    fn reaches(&self, member: &Member) -> bool {
        self.beyond.as_ref().is_none_or(|beyond| member < beyond)
    }

    /// The objects that a rule may take.
    pub(crate) fn first(&self) -> impl Iterator<Item = &Member> {
        self.in_order.iter().take(MOST_SOURCES)
    }

    /// The first object that no rule takes.
    pub(crate) fn excess(&self) -> Option<&Member> {
        self.in_order.iter().nth(MOST_SOURCES)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.in_order.iter()
    }

    /// The number of objects. If not all are kept, there are more.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// True if so many objects have disappeared that Mimeo must list the next ones.
    pub(crate) fn depleted(&self) -> bool {
        self.beyond.is_some() && self.len() < MOST_SOURCES
    }

    /// Returns the members after a new listing. For known members, the known facts stay: they may
    /// be more than a listing shows.
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
        // The order in which they are shown doesn't matter.
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
        // A removed member makes no room for another one, because other objects may come before it.
        assert!(members.take("m7") && !members.take("m7"));
        members.put(member(KEPT + 1));
        assert_eq!((members.len(), members.depleted()), (KEPT - 1, false));
        (8..KEPT - 200).for_each(|number| _ = members.take(&format!("m{number}")));
        assert!(members.depleted());
        assert!(!Members::default().depleted());
    }
}
