//! The history that matters according to the documents, at the end of each round.

use std::collections::{BTreeMap, BTreeSet};

use super::judge::{Judge, Object, Observed, Round};
use super::model::{Cell, Holder, RuleId, Verdict, World};

#[derive(Clone)]
pub struct Held {
    pub object: Object,
    pub holder: Holder,
}

/// A namespace's uid, a rule, and the rule's copy there.
pub type CreatedCopy = (String, RuleId, Cell);

#[derive(Default)]
pub struct Memory {
    pub copies: BTreeMap<Cell, Held>,
    pub seeded: BTreeSet<CreatedCopy>,
    /// Copies that may have been created once. A race decided it.
    pub maybe_seeded: BTreeSet<CreatedCopy>,
    /// Tampered copies that no rule has written since.
    pub tampered: BTreeSet<String>,
    /// Tampered copies that no process can recognize as Mimeo's any more.
    pub tainted: BTreeSet<String>,
    /// A foreign object was in the way. Mimeo retries the copy within five minutes.
    pub lagging: BTreeSet<Cell>,
    /// Keys of labels or data that users added to copies, each with the copy's uid.
    pub extras: BTreeMap<String, String>,
    /// Objects with a value that users wrote under one of the rule's keys: in a copy, or in a foreign
    /// object that may become one. If the rule has dropped the key meanwhile, it is a user's key.
    pub edited: BTreeSet<String>,
}

impl Memory {
    /// Records the state at the end of a round. Returns the foreign objects that have become copies
    /// or are gone.
    pub fn advance(&mut self, round: &Round, observed: &Observed, tag: &str) -> BTreeSet<Cell> {
        let now = round.now();
        let judge = Judge::new(self, round, observed, tag);
        let (extras, edited, lagging) = (
            self.extras.clone(),
            self.edited.clone(),
            self.lagging.clone(),
        );
        let mut next = Self {
            lagging,
            extras,
            edited,
            ..Self::default()
        };
        let (lasting, going) = self
            .seeded
            .iter()
            .cloned()
            .partition(|seed| round.lasts(seed));
        (next.seeded, next.maybe_seeded) = (lasting, going);
        next.maybe_seeded.extend(self.maybe_seeded.iter().cloned());
        next.tainted.clone_from(&self.tainted);
        next.tampered = self.tampered.union(&round.tampered).cloned().collect();
        if round.killed_reconciler {
            next.tainted.append(&mut next.tampered);
        }
        let mut taken = BTreeSet::new();
        let mut cells = now.claimed();
        cells.extend(round.states.iter().flat_map(World::claimed));
        cells.extend(
            observed
                .objects
                .keys()
                .filter(|cell| now.namespaces.contains_key(&cell.namespace))
                .cloned(),
        );
        cells.extend(now.foreign.keys().cloned());
        for cell in cells.iter().filter(|cell| {
            now.namespaces.contains_key(&cell.namespace) && !now.sources.contains_key(cell)
        }) {
            let seen = observed.objects.get(cell);
            if now
                .foreign
                .get(cell)
                .is_some_and(|foreign| seen.is_none_or(|seen| seen.ours || seen.uid != foreign.uid))
            {
                taken.insert(cell.clone());
            }
            if round.foreign_ever(cell) {
                next.lagging.insert(cell.clone());
            }
            let verdict = now.verdict(cell, judge.holder(cell).as_ref());
            judge.remember_seeds(cell, &verdict, seen, &mut next);
            let Some(seen) = seen.filter(|seen| seen.ours || judge.knows(&seen.uid)) else {
                continue;
            };
            if now.foreign.contains_key(cell) && !taken.contains(cell) {
                continue;
            }
            let Some(mut holder) = judge.holder(cell) else {
                continue;
            };
            let written = match &verdict {
                Verdict::Wanted(rules, _) => seen.ours && rules.contains(&holder.rule),
                Verdict::CreatedCopy(rule, _) => *rule == holder.rule,
                _ => false,
            };
            if written {
                holder.kept = now.kept(&holder.rule, cell).into_iter().collect();
                holder.orphan = false;
                next.lagging.remove(cell);
                // Mimeo does not repair a copy that it created once. Where the label is still
                // missing, nothing has been written since it was stripped, and a reconciler that
                // has started since cannot find the copy.
                if matches!(verdict, Verdict::Wanted(..)) && seen.labelled() {
                    next.tainted.remove(&seen.uid);
                    next.tampered.remove(&seen.uid);
                }
            }
            next.copies.insert(
                cell.clone(),
                Held {
                    object: seen.clone(),
                    holder,
                },
            );
        }
        let there: BTreeSet<&String> = observed
            .objects
            .values()
            .map(|object| &object.uid)
            .collect();
        next.extras.retain(|key, uid| {
            let with = |object: &Object| {
                object.content.labels.contains_key(key) || object.content.data.contains_key(key)
            };
            observed
                .objects
                .values()
                .any(|object| object.uid == *uid && with(object))
        });
        next.edited.retain(|uid| there.contains(uid));
        next.tainted.retain(|uid| there.contains(uid));
        next.tampered.retain(|uid| there.contains(uid));
        next.lagging
            .retain(|cell| now.namespaces.contains_key(&cell.namespace));
        let uids: BTreeSet<&String> = now
            .namespaces
            .values()
            .map(|namespace| &namespace.uid)
            .collect();
        next.seeded.retain(|(uid, ..)| uids.contains(uid));
        next.maybe_seeded.retain(|(uid, ..)| uids.contains(uid));
        *self = next;
        taken
    }
}

impl Judge<'_> {
    fn remember_seeds(
        &self,
        cell: &Cell,
        verdict: &Verdict,
        seen: Option<&Object>,
        next: &mut Memory,
    ) {
        let former = |index| self.former(cell, index);
        let history = self
            .round
            .states
            .iter()
            .enumerate()
            .map(|(index, state)| state.verdict(cell, former(index).as_ref()));
        for of in history.chain([verdict.clone()]) {
            if let Verdict::CreatedCopy(rule, _) = of {
                let seed = self.seed(&rule, cell);
                if !next.seeded.contains(&seed) {
                    next.maybe_seeded.insert(seed);
                }
            }
        }
        // An object that exists under such a rule counts as created, also while its source is
        // missing.
        if seen.is_some() || self.held(cell).is_some() {
            for state in &self.round.states {
                let lacks = |source: &Cell| !state.sources.contains_key(source);
                for (rule, source) in state.claims(cell) {
                    let seed = self.seed(&rule, cell);
                    let counts = lacks(&source) && state.once_by(&rule, cell);
                    if counts && !next.seeded.contains(&seed) {
                        next.maybe_seeded.insert(seed);
                    }
                }
            }
        }
        match verdict {
            Verdict::CreatedCopy(rule, _) if seen.is_some() => {
                let seed = self.seed(rule, cell);
                next.maybe_seeded.remove(&seed);
                next.seeded.insert(seed);
            }
            // With the other strategies, Mimeo writes the copy again and removes the record.
            Verdict::Wanted(rules, _) => {
                for rule in rules {
                    let seed = self.seed(rule, cell);
                    next.maybe_seeded.remove(&seed);
                    next.seeded.remove(&seed);
                }
            }
            _ => {}
        }
    }
}

impl Memory {
    /// True if no earlier edit hinders this copy.
    pub fn is_plain(&self, cell: &Cell, round: &Round) -> bool {
        let uid = self.copies.get(cell).map(|held| &held.object.uid);
        let tampered = |uid: &String| {
            self.tainted.contains(uid)
                || self.tampered.contains(uid)
                || round.tampered.contains(uid)
        };
        !self.lagging.contains(cell) && !uid.is_some_and(tampered)
    }

    /// True if a copy in a namespace perhaps cannot be written.
    pub fn is_rough(&self, namespace: &str, round: &Round) -> bool {
        self.copies
            .keys()
            .chain(&self.lagging)
            .any(|cell| cell.namespace == namespace && !self.is_plain(cell, round))
    }
}
