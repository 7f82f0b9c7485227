//! Copies that are created once: whether that is done, and what their namespaces remember of it.

use std::sync::Arc;

use mimeo_model::{
    choices::Strategy,
    id::{KindId, RuleId, RuleKind},
    role::Role,
    rule::Rule,
    seeds::Seed,
};

use crate::{
    Engine, Namespace, RuleState,
    cell::Cell,
    clock::Tick,
    slot::Slot,
    work::{Errand, Timer, delay},
};

impl Engine {
    /// Whether a rule that creates its copies once has nothing to do in a cell (any more).
    pub(crate) fn seeded(
        &self,
        slot: &Slot,
        rule: &Rule,
        namespace: &Namespace,
        cell: &Cell,
    ) -> bool {
        rule.strategy == Strategy::CreateOnce
            && (cell.shows_seed(rule.conflict)
                || self.remembers(namespace, &rule.id, slot.kind, &cell.name))
    }

    /// Whether what is seen in a cell is in this namespace, and not in a former one of its name
    /// whose end is yet to be told: it is newer, or was asked for, or a later listing didn't show
    /// its end. What we may have deleted ourselves is not.
    pub(crate) fn is_of_now(&self, name: &str, namespace: &Namespace, cell: &Cell) -> bool {
        let listed = self.kinds[cell.kind].surveys.of(name).listed_at;
        let newer = || cell.seen().is_none_or(|seen| seen.version > namespace.born);
        !cell.leaving && (cell.proven || listed >= namespace.born || newer())
    }

    /// Whether the namespace remembers that the rule created this copy in it, once and for all.
    pub(crate) fn remembers(
        &self,
        namespace: &Namespace,
        rule: &RuleId,
        kind: KindId,
        name: &str,
    ) -> bool {
        let seed = || self.seed(namespace, rule, kind, name);
        !namespace.seeds.is_empty() && seed().is_some_and(|seed| namespace.seeds.contains(seed))
    }

    fn seed(&self, namespace: &Namespace, rule: &RuleId, kind: KindId, name: &str) -> Option<Seed> {
        let kind = &self.kinds[kind].group_kind;
        Some(Seed::new(namespace.uid?, rule, kind, name))
    }

    /// Remembers what is in a cell as created, if its rule creates once, and acts. So it counts
    /// whatever becomes of it, also before the annotation says so; and what was there while the
    /// rule did nothing counts for nothing.
    pub(crate) fn sow(&self, name: &str, namespace: &mut Namespace, at: usize) {
        let cell = &namespace.cells[at];
        if self.settings.role != Role::Keeper || !namespace.alive() {
            return;
        }
        let Some(slot) = cell.want.and_then(|id| self.slots.get(&id)) else {
            return;
        };
        let acting = self.rules.get(&slot.rule).and_then(RuleState::acting);
        let Some(rule) = acting.filter(|rule| rule.strategy == Strategy::CreateOnce) else {
            return;
        };
        if !cell.shows_seed(rule.conflict) || !self.is_of_now(name, namespace, cell) {
            return;
        }
        let Some(seed) = self.seed(namespace, &rule.id, slot.kind, &cell.name) else {
            return;
        };
        let tenants = rule.id.kind == RuleKind::Replication;
        if namespace.seeds.insert(seed, tenants) {
            namespace.sown.insert(seed, false);
        }
    }

    /// Has the namespace remember what was created in it once: all of it with one write. A rule
    /// that has come to keep its copy is forgotten; should it ever create once again, what is there
    /// then counts.
    pub(crate) fn plan_seeds(&mut self, name: &Arc<str>, namespace: &mut Namespace) {
        (0..namespace.cells.len()).for_each(|at| self.sow(name, namespace, at));
        let keeps = self.settings.role == Role::Keeper;
        if !keeps
            || namespace.noting
            || !namespace.alive()
            || !self.all_rules()
            || !self.in_charge(namespace)
        {
            return;
        }
        if namespace.seeds.is_empty() {
            return;
        }
        let mut seeds = namespace.seeds.clone();
        for cell in &namespace.cells {
            let Some(slot) = cell.want.and_then(|id| self.slots.get(&id)) else {
                continue;
            };
            let Some(rule) = self.rules.get(&slot.rule).and_then(RuleState::acting) else {
                continue;
            };
            if rule.strategy != Strategy::CreateOnce {
                // Before its copies were seen another rule may have the cell, whose mark decides
                // that.
                if !self.kinds[cell.kind].copies_known_in(name) {
                    continue;
                }
                self.seed(namespace, &rule.id, slot.kind, &cell.name)
                    .iter()
                    .for_each(|seed| seeds.remove(*seed));
            } else if !cell.settled() {
                return; // Its answer comes by here.
            }
        }
        let mut noted = namespace.seeds.clone();
        noted.subtract(&namespace.sown);
        namespace.sown.retain(&seeds);
        if seeds == noted {
            // No watch would tell of a write that changes nothing.
            namespace.seeds = seeds;
        } else {
            namespace.noting = true;
            let version = namespace.version;
            self.work.errands.push_back(Errand::NoteSeeds {
                namespace: name.clone(),
                seeds,
                version,
            });
        }
    }

    /// Whether what was created once in a namespace could be noted. If not, the namespace changed
    /// under us, and its watch tells, or the server refused or didn't answer: then it is tried
    /// again after a pause that grows. When it was, the watch tells, too.
    pub fn seeds_noted(&mut self, namespace: &str, done: bool, now: Tick) {
        self.at(now);
        let Some(name) = self
            .namespaces
            .get_key_value(namespace)
            .map(|(name, _)| name.clone())
        else {
            return;
        };
        let Some(entry) = self.namespaces.get_mut(namespace) else {
            return;
        };
        if done {
            entry.note_streak = 0;
        } else if entry.noting {
            let due = self.now + delay(&self.settings, entry.note_streak);
            entry.note_streak = entry.note_streak.saturating_add(1);
            self.work.timer(due, Timer::Note(name));
        }
    }
}
