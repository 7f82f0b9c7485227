//! Copies that are created once: whether that is done, and what their namespaces remember of it.

use std::sync::Arc;

use mimeo_model::{
    choices::Strategy,
    id::{KindId, RuleId, RuleKind},
    role::Role,
    rule::Rule,
    seeds::{Seed, Seeds},
};

use crate::{
    Engine, Namespace, RuleState,
    cell::Cell,
    jobs::{JobKey, Task},
    slot::Slot,
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

    /// Has the namespace remember which copies were created in it once: all of them with one
    /// write. A rule that has come to keep its copy is forgotten; should it ever create once again,
    /// the copy that exists then counts.
    pub(crate) fn plan_seeds(&mut self, name: &Arc<str>, namespace: &mut Namespace) {
        (0..namespace.cells.len()).for_each(|at| self.sow(name, namespace, at));
        let key = JobKey::RecordCreated(name.clone());
        if self.jobs.has(&key) {
            return;
        }
        let Some(seeds) = self.seeds_to_keep(name, namespace) else {
            return;
        };
        let noted = noted_seeds(namespace);
        namespace.sown.retain(&seeds);
        if seeds == noted {
            // No watch would tell of a write that changes nothing.
            namespace.seeds = seeds;
        } else {
            self.jobs.ask(key);
        }
    }

    /// What a namespace is to remember, if this process writes that and everything that decides
    /// about it is known.
    fn seeds_to_keep(&self, name: &str, namespace: &Namespace) -> Option<Seeds> {
        let writes = self.settings.role == Role::Keeper
            && namespace.alive()
            && self.all_rules()
            && self.in_charge(namespace)
            && !namespace.seeds.is_empty();
        if !writes {
            return None;
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
                return None; // Its answer plans the namespace once more.
            }
        }
        Some(seeds)
    }

    /// The write of a namespace's annotation, as far as the namespace is known now; none if the
    /// annotation says everything already.
    pub(crate) fn created_to_record(&self, name: &Arc<str>) -> Option<Task> {
        let namespace = self.namespaces.get(name)?;
        let seeds = self.seeds_to_keep(name, namespace)?;
        (seeds != noted_seeds(namespace)).then(|| Task::RecordCreated {
            namespace: name.clone(),
            seeds,
            version: namespace.version,
        })
    }
}

/// What a namespace's annotation says.
fn noted_seeds(namespace: &Namespace) -> Seeds {
    let mut noted = namespace.seeds.clone();
    noted.subtract(&namespace.sown);
    noted
}
