//! The pending labels that this replica set and has not seen in the watch yet.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::clock::Tick;

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

/// If a pending label has not appeared after this time, the request was refused.
const KEPT: Duration = Duration::from_mins(1);
/// The largest number of nonces. Any client that can reach the webhook can cause any number of
/// them. The newest nonce displaces the oldest. The label of a genuine request appears within
/// milliseconds.
const MOST: usize = 10_000;

/// The nonces, each with the awaited event.
#[derive(Debug, Default)]
pub(crate) struct Issued {
    awaited: BTreeMap<Box<str>, (Awaited, u64)>,
    /// The nonces in the order of their issue, including those that were redeemed since. So issuing
    /// one does not go over all of them.
    order: VecDeque<(Tick, Box<str>, u64)>,
    serial: u64,
}

impl Issued {
    pub(crate) fn add(&mut self, nonce: &str, awaited: Awaited, now: Tick) {
        self.serial += 1;
        self.awaited.insert(nonce.into(), (awaited, self.serial));
        self.order.push_back((now, nonce.into(), self.serial));
        while let Some((since, nonce, serial)) = self.order.front()
            && (self.order.len() > MOST || *since + KEPT <= now)
        {
            // A nonce that was issued again has a second place later in the order.
            if self
                .awaited
                .get(nonce)
                .is_some_and(|(_, last)| last == serial)
            {
                self.awaited.remove(nonce);
            }
            self.order.pop_front();
        }
    }

    pub(crate) fn contains(&self, nonce: &str) -> bool {
        self.awaited.contains_key(nonce)
    }

    /// Removes the nonce, because its pending label has appeared.
    pub(crate) fn redeem(&mut self, nonce: &str) -> Option<Awaited> {
        self.awaited.remove(nonce).map(|(awaited, _)| awaited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Tick = Tick::ZERO;

    #[test]
    fn a_flood_displaces_the_oldest_and_not_what_comes_after_it() {
        let mut issued = Issued::default();
        issued.add("old", Awaited::Namespace, NOW);
        for number in 0..2 * MOST {
            issued.add(&number.to_string(), Awaited::Namespace, NOW);
        }
        issued.add("genuine", Awaited::Labels, NOW);
        assert!(!issued.contains("old") && issued.contains("genuine"));
        assert_eq!((issued.awaited.len(), issued.order.len()), (MOST, MOST));
        assert_eq!(
            (issued.redeem("genuine"), issued.redeem("genuine")),
            (Some(Awaited::Labels), None)
        );
    }

    #[test]
    fn the_same_one_again_and_again_takes_no_room() {
        let mut issued = Issued::default();
        for _ in 0..2 * MOST {
            issued.add("same", Awaited::Namespace, NOW);
        }
        assert!(issued.contains("same") && issued.order.len() == MOST);
    }

    #[test]
    fn what_is_not_seen_within_a_minute_is_forgotten() {
        let mut issued = Issued::default();
        issued.add("first", Awaited::Namespace, NOW);
        issued.add("again", Awaited::Namespace, NOW);
        issued.add("again", Awaited::Namespace, NOW + KEPT / 2);
        issued.add("last", Awaited::Namespace, NOW + KEPT);
        assert!(!issued.contains("first") && issued.contains("again") && issued.contains("last"));
        assert_eq!(issued.order.len(), 2);
    }
}
