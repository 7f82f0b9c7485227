//! How much tenants' rules take themselves, whatever becomes of their sources.
//!
//! Who may write Replications may write thousands, with hundreds of slots and cells each. The oldest are held, as far as their
//! namespace's room and that of all tenants go. What is younger is refused when it comes, or when older ones do, and nothing of it is
//! held but the refusal.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;

use crate::engine::Engine;
use crate::rule::{Refusal, Refused, Rule, RuleId, RuleKind};

/// Most bytes for the Replications of one namespace: some thousands of usual size.
const RULES_OF_A_NAMESPACE: usize = 8 << 20;
/// Most bytes for all Replications: an eighth of the memory that the reconciler's manifest allows it.
const RULES_OF_ALL: usize = 32 << 20;

/// The Replications that are held.
#[derive(Debug, Default)]
pub(in crate::engine) struct Crowd {
    known: BTreeMap<Arc<RuleId>, (Timestamp, usize)>,
    all: Room,
    homes: BTreeMap<Box<str>, Room>,
}

/// Who shares it, the oldest first, and what they take together.
#[derive(Debug, Default)]
struct Room {
    by_age: BTreeSet<(Timestamp, Arc<RuleId>)>,
    taken: usize,
}

impl Room {
    fn enter(&mut self, who: &(Timestamp, Arc<RuleId>), takes: usize) {
        self.by_age.insert(who.clone());
        self.taken += takes;
    }

    fn leave(&mut self, who: &(Timestamp, Arc<RuleId>), took: usize) {
        self.by_age.remove(who);
        self.taken -= took;
    }

    /// The youngest, if there are more than fit in.
    fn excess(&self, most: usize) -> Option<Arc<RuleId>> {
        self.by_age.last().filter(|_| self.taken > most).map(|(_, id)| id.clone())
    }
}

impl Crowd {
    /// Takes in a rule. Gives those for which there is no room any more, or none from the start.
    fn enter(&mut self, id: &Arc<RuleId>, rule: &Rule) -> Vec<Arc<RuleId>> {
        let Some(home) = &id.namespace else { return vec![] };
        let who = (rule.created, id.clone());
        self.known.insert(id.clone(), (rule.created, rule.weight));
        self.all.enter(&who, rule.weight);
        self.homes.entry(home.clone()).or_default().enter(&who, rule.weight);
        let mut out = Vec::new();
        let at_home = |crowd: &Self| crowd.homes.get(home).and_then(|room| room.excess(RULES_OF_A_NAMESPACE));
        while let Some(youngest) = at_home(self).or_else(|| self.all.excess(RULES_OF_ALL)) {
            self.leave(&youngest);
            out.push(youngest);
        }
        out
    }

    pub(in crate::engine) fn leave(&mut self, id: &RuleId) {
        let (Some((id, (created, took))), Some(home)) = (self.known.remove_entry(id), &id.namespace) else { return };
        let who = (created, id);
        self.all.leave(&who, took);
        if let Some(room) = self.homes.get_mut(home) {
            room.leave(&who, took);
            if room.by_age.is_empty() {
                self.homes.remove(home);
            }
        }
    }
}

impl Engine {
    /// Finds room for a tenant's rule, be it at the cost of younger ones, which are to be refused then.
    pub(in crate::engine) fn make_room(
        &mut self,
        id: &Arc<RuleId>,
        rule: Result<Rule, Refused>,
    ) -> (Result<Rule, Refused>, Vec<Arc<RuleId>>) {
        self.crowd.leave(id);
        let Ok(held) = &rule else { return (rule, vec![]) };
        let mut out = self.crowd.enter(id, held);
        match out.iter().position(|out| out == id) {
            Some(own) => {
                out.swap_remove(own);
                (Err(Refused { generation: held.generation, refusals: vec![crowded()] }), out)
            }
            None => (rule, out),
        }
    }

    /// Lets go what is held of rules for which there is no room any more. Their copies stay.
    pub(in crate::engine) fn crowd_out(&mut self, ids: &[Arc<RuleId>]) {
        for id in ids {
            let Some(state) = self.rules.get(id) else { continue };
            let Ok(rule) = &state.rule else { continue };
            let refused = Refused { generation: rule.generation, refusals: vec![crowded()] };
            let (author, observed) = (state.author.as_deref().cloned(), state.status.observed().clone());
            self.rule_applied((**id).clone(), Err(refused), author, observed, self.now);
        }
    }

    /// Why a Replication that is to be stored would not be held, if it wouldn't.
    pub fn refuses_rule(&self, rule: &Rule) -> Option<Refusal> {
        let home = rule.id.namespace.as_deref().filter(|_| rule.id.kind == RuleKind::Replication)?;
        let own = self.crowd.known.get(&rule.id).map_or(0, |(_, took)| *took);
        let full = |taken: usize, most| taken - own + rule.weight > most;
        let at_home = self.crowd.homes.get(home).map_or(0, |room| room.taken);
        let full = full(at_home, RULES_OF_A_NAMESPACE) || full(self.crowd.all.taken, RULES_OF_ALL);
        full.then(crowded)
    }
}

fn crowded() -> Refusal {
    let most = format!(
        "the Replications of one namespace may take {} MiB of memory, sources times namespaces, and those of all {} MiB",
        RULES_OF_A_NAMESPACE >> 20,
        RULES_OF_ALL >> 20
    );
    let message = format!("{most}; older ones have taken what this one would need: delete some, then change this one");
    Refusal { field: "spec".into(), message }
}
