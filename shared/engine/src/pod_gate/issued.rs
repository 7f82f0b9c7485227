//! The pending labels that this replica set and has not seen in the watch yet.

use std::collections::BTreeMap;

/// The awaited event after this replica set a pending label. Once it has happened, this replica may
/// write the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The namespace must appear: it is being created.
    Namespace,
    /// The labels of an update must appear. They may never do so, because another webhook may still
    /// refuse the update.
    Labels,
}

/// The largest number of nonces. Any client that can reach the webhook can cause any number of
/// them. The label of a genuine request appears within milliseconds.
const MOST: usize = 10_000;

/// The nonces, each with the awaited event.
#[derive(Debug, Default)]
pub(crate) struct Issued(BTreeMap<Box<str>, Awaited>);

impl Issued {
    /// Adds a nonce. If there are too many, all others are dropped. The reconciler then writes the
    /// copies of their namespaces, a little later.
    pub(crate) fn add(&mut self, nonce: &str, awaited: Awaited) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(nonce.into(), awaited);
    }

    pub(crate) fn contains(&self, nonce: &str) -> bool {
        self.0.contains_key(nonce)
    }

    /// Removes the nonce, because its pending label has appeared.
    pub(crate) fn redeem(&mut self, nonce: &str) -> Option<Awaited> {
        self.0.remove(nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_displaces_the_others_and_not_what_comes_after_it() {
        let mut issued = Issued::default();
        issued.add("old", Awaited::Namespace);
        for number in 0..2 * MOST {
            issued.add(&number.to_string(), Awaited::Namespace);
            assert!(issued.0.len() <= MOST);
        }
        issued.add("genuine", Awaited::Labels);
        assert!(!issued.contains("old") && issued.contains("genuine"));
        assert_eq!(
            (issued.redeem("genuine"), issued.redeem("genuine")),
            (Some(Awaited::Labels), None)
        );
    }

    #[test]
    fn the_same_one_again_and_again_takes_no_room() {
        let mut issued = Issued::default();
        issued.add("first", Awaited::Labels);
        for _ in 0..2 * MOST {
            issued.add("same", Awaited::Namespace);
        }
        assert!(issued.contains("first") && issued.contains("same"));
        assert_eq!(issued.0.len(), 2);
    }
}
