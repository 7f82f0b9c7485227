//! The marks that this replica set and has not seen yet.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::clock::Tick;

/// What a mark that this replica set waits for, before it is this replica's to redeem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The namespace, which is being created.
    Namespace,
    /// The labels that an update gives it. They may never come: the update may yet be refused.
    Labels,
}

/// A mark that isn't seen by then was for a request that has been refused.
const KEPT: Duration = Duration::from_mins(1);
/// At most this many: whoever can reach the webhook can have any number issued. The oldest goes for
/// the newest, which is seen within milliseconds if anybody asked for it.
const MOST: usize = 10_000;

/// Tokens, and what each waits for.
#[derive(Debug, Default)]
pub(crate) struct Issued {
    awaited: BTreeMap<Box<str>, (Awaited, u64)>,
    /// The same in the order of their issue, with those that were redeemed meanwhile; so no issue
    /// has to go over all of them.
    order: VecDeque<(Tick, Box<str>, u64)>,
    serial: u64,
}

impl Issued {
    pub(crate) fn add(&mut self, token: &str, awaited: Awaited, now: Tick) {
        self.serial += 1;
        self.awaited.insert(token.into(), (awaited, self.serial));
        self.order.push_back((now, token.into(), self.serial));
        while let Some((since, token, serial)) = self.order.front()
            && (self.order.len() > MOST || *since + KEPT <= now)
        {
            // One that was issued again has a later place, too.
            if self
                .awaited
                .get(token)
                .is_some_and(|(_, last)| last == serial)
            {
                self.awaited.remove(token);
            }
            self.order.pop_front();
        }
    }

    pub(crate) fn contains(&self, token: &str) -> bool {
        self.awaited.contains_key(token)
    }

    /// It has been seen.
    pub(crate) fn redeem(&mut self, token: &str) -> Option<Awaited> {
        self.awaited.remove(token).map(|(awaited, _)| awaited)
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
