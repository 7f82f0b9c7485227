//! Consent taken back on purpose, told from consent that was lost.
//!
//! What one namespace's owner ceases to grant the owner of another must not keep. So before a large loss of a Replication's copies is
//! held, the namespaces that grant less now are read, past all caches: if a namespace stays, its grants are those that are known here,
//! and their definition was there before the copy was, then it is meant. What was lost with the definition, with the namespace, or by
//! other labels of the Replication's own is held as before.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_api::Access;

use crate::engine::{
    Engine, Tick,
    absent::{FRESH, Home},
    grants::Grants,
    losses::CellKey,
    work::{Errand, delay},
};
use crate::{
    cell::Cell,
    grant::Grant,
    kind::GroupKind,
    meta::Seen,
    rule::{RuleId, SourceRef},
};

/// What is known of a namespace's having taken consent back.
#[derive(Debug, Default)]
pub(in crate::engine) struct Withdrawal {
    word: Word,
    /// Rules whose losses are decided about once it is known.
    waiting: BTreeSet<Arc<RuleId>>,
    /// How often in a row asking told nothing.
    streak: u8,
}

#[derive(Debug, Default)]
enum Word {
    #[default]
    None,
    Asked {
        at: Tick,
    },
    /// It grants what is known here and no more, on purpose, as far as copies go that were created after that second.
    Meant {
        at: Tick,
        since: u32,
    },
    /// It isn't asked again until then.
    Unknown {
        until: Tick,
    },
}

/// The answer to [`Errand::ConfirmGrants`], by reads that no cache answers, the grants first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantsRead {
    /// Every grant in the namespace that can be parsed, with its resourceVersion.
    pub grants: BTreeMap<Box<str>, u64>,
    /// The namespace, if it isn't gone, or going.
    pub home: Option<Home>,
    /// When the CRD of grants was created, in seconds since 1970; none if it is missing or being deleted.
    pub defined: Option<u32>,
}

impl Withdrawal {
    /// What the namespace grants has changed: what was read says nothing of that.
    pub(in crate::engine) fn forget_what_was_read(&mut self) {
        if matches!(self.word, Word::Meant { .. }) {
            self.word = Word::None;
        }
    }
}

impl Engine {
    /// What a namespace grants was read; none: there was no answer.
    pub fn grants_read(&mut self, namespace: &str, read: Option<&GrantsRead>, now: Tick) {
        self.at(now);
        let known = self.consent.grants.get(namespace).map(Grants::versions).unwrap_or_default();
        let Some(withdrawal) = self.consent.withdrawals.get_mut(namespace) else { return };
        // What differs from what is known the watch has yet to tell.
        let read = read.filter(|read| read.grants == known);
        self.consent.much_lost = None;
        let since = read.and_then(|read| Some(read.home?.created.max(read.defined?)));
        withdrawal.streak = if since.is_some() { 0 } else { withdrawal.streak.saturating_add(1) };
        withdrawal.word = match since {
            Some(since) => Word::Meant { at: self.now, since },
            None => Word::Unknown { until: self.now + delay(&self.settings, withdrawal.streak.saturating_add(1)) },
        };
        let waiting = std::mem::take(&mut withdrawal.waiting);
        self.end_sweeps(waiting);
    }

    /// Whether it will soon be known of all that a rule loses whether it was taken back on purpose. What isn't known is asked.
    pub(in crate::engine) fn awaits_word(&mut self, id: &Arc<RuleId>) -> bool {
        // Each with when the newest of these copies was created.
        let mut givers: BTreeMap<Box<str>, u32> = BTreeMap::new();
        for (key, giver) in self.swept(id).filter_map(|key| Some((key, self.withdrawn_by(id, key)?))) {
            let newest = givers.entry(giver).or_default();
            *newest = self.copy_in(key).map_or(*newest, |seen| seen.created.max(*newest));
        }
        let mut awaits = false;
        for (giver, newest) in givers {
            let withdrawal = self.consent.withdrawals.entry(giver.clone()).or_default();
            let asks = match withdrawal.word {
                Word::None => true,
                Word::Asked { at } if self.now < at + self.settings.sweep => {
                    withdrawal.waiting.insert(id.clone());
                    awaits = true;
                    false
                }
                // Whoever doesn't answer in that time holds nothing up.
                Word::Asked { .. } => false,
                Word::Meant { at, since } => self.now > at + FRESH && newest > since,
                Word::Unknown { until } => self.now >= until,
            };
            if asks {
                withdrawal.word = Word::Asked { at: self.now };
                withdrawal.waiting.insert(id.clone());
                self.work.errands.push_back(Errand::ConfirmGrants(giver));
                awaits = true;
            }
        }
        if awaits {
            self.prolong_sweep(id);
        }
        awaits
    }

    /// Whether a rule lost that cell since a namespace took its consent back on purpose.
    pub(in crate::engine) fn was_withdrawn(&self, id: &RuleId, key: &CellKey) -> bool {
        if self.consent.withdrawals.is_empty() {
            return false;
        }
        let Some(seen) = self.copy_in(key) else { return false };
        let giver = self.withdrawn_by(id, key).and_then(|giver| self.consent.withdrawals.get(&giver));
        // A copy that was there before may have been granted under another definition, or by a former namespace of that name.
        giver.is_some_and(|giver| match giver.word {
            Word::Meant { at, since } => self.now <= at + FRESH && seen.created > since,
            _ => false,
        })
    }

    fn copy_in(&self, (namespace, kind, name): &CellKey) -> Option<&Seen> {
        self.namespaces.get(namespace)?.cell(*kind, name).and_then(Cell::ours)
    }

    /// The namespace that doesn't grant what the copy in a cell takes, if that alone is why its rule wants it no more, and it isn't
    /// for labels that the rule's namespace has now.
    fn withdrawn_by(&self, id: &RuleId, (name, kind, copy): &CellKey) -> Option<Box<str>> {
        let (state, namespace) = (self.rules.get(id)?, self.namespaces.get(name)?);
        let rule = state.rule.as_ref().ok().filter(|rule| rule.matches(name, &namespace.labels))?;
        let place = namespace.place(name);
        let mut slots = self.slots_for(state, name, &namespace.labels).map(|(_, slot)| slot);
        let slot = slots.find(|slot| slot.kind == *kind && slot.name.at(place) == *copy);
        let withheld = || self.origin(namespace.cell(*kind, copy)?).filter(|source| self.is_withheld(rule, source));
        let group_kind = &self.kinds[*kind].group_kind;
        // A selector takes a grant of objects of any name.
        let read: Option<(&SourceRef, bool)> = match slot {
            Some(slot) => (!slot.granted).then_some((&slot.source, slot.source.is_named())),
            None => Some((withheld()?, false)),
        };
        let (access, giver, object) = match read {
            Some((source, named)) => (Access::Read, &*source.namespace, named.then_some(&*source.name)),
            None if !self.may_write(id, name, group_kind, copy) => (Access::Write, &**name, Some(&**copy)),
            None => return None,
        };
        (!self.may_be_for_labels(id, access, giver, group_kind, object)).then(|| giver.into())
    }

    /// Whether a namespace may grant that to a rule but for the labels of the rule's namespace, and these have changed later than what it
    /// grants, or nobody knows: whoever may label namespaces has not spoken for its owner. Or whether that isn't known.
    fn may_be_for_labels(
        &self,
        id: &RuleId,
        access: Access,
        giver: &str,
        kind: &GroupKind,
        name: Option<&str>,
    ) -> bool {
        let home = id.namespace.as_deref().and_then(|home| self.namespaces.get(home));
        let Some(home) = home.filter(|home| home.uid.is_some() && self.grants_known()) else { return true };
        let Some(grants) = self.consent.grants.get(giver) else { return false };
        let covers = |grant: &Grant| match name {
            Some(name) => grant.covers(kind, name),
            None => grant.covers_any(kind),
        };
        grants.awaits_some()
            || grants.counting_with_changes().any(|(grant, changed)| {
                let later = changed.is_some_and(|changed| changed > home.labelled);
                grant.selects_by_labels(access) && covers(grant) && !later
            })
    }

    /// Forgets what was asked for losses that there were.
    pub(in crate::engine) fn forget_withdrawals(&mut self) {
        if self.sweeps.is_empty() {
            self.consent.withdrawals.clear();
        }
    }
}
