//! The quota of a namespace for Replications and their copies: the oldest that fit count. The quota
//! for grants is in `grants`.

use std::sync::Arc;

use jiff::Timestamp;

use mimeo_model::{
    id::{RuleId, RuleKind},
    refusal::{Refusal, Refused},
    rule::Rule,
};

use crate::{Effects, Index};

/// The largest number of Replications in one namespace.
const REPLICATIONS: usize = 1024;

/// The largest number of copies that these Replications may have in all.
const COPIES: usize = 10_240;

impl Index {
    /// The valid Replications of a namespace.
    pub(crate) fn replications(&self, home: &str) -> impl Iterator<Item = (&Arc<RuleId>, &Rule)> {
        let first = RuleId {
            kind: RuleKind::Replication,
            namespace: Some(home.into()),
            name: Box::default(),
        };
        self.rules
            .range::<RuleId, _>(first..)
            .take_while(move |(id, _)| id.namespace.as_deref() == Some(home))
            .filter_map(|(id, state)| Some((id, state.valid()?)))
    }

    /// Returns the refusal of a Replication in a review, if older ones leave no room for it in its
    /// namespace.
    pub fn refuses_rule(&self, rule: &Rule) -> Option<Refusal> {
        let others = self.replications(rule.id.namespace.as_deref()?);
        let older = others.filter(|(id, other)| ***id != rule.id && age(other) < age(rule));
        let costs = older.map(|(_, other)| other.most_copies());
        let costs: Vec<usize> = costs.chain([rule.most_copies()]).collect();
        let fits = costs.len() <= REPLICATIONS && costs.iter().sum::<usize>() <= COPIES;
        (!fits).then(used_up)
    }
}

impl Index {
    /// Refuses the Replications of a namespace for which older ones leave no room. The engine holds
    /// nothing of a refused rule, and the rule's copies stay.
    pub(crate) fn refuse_excess(&mut self, home: &str, effects: &mut Effects) {
        let mut rules: Vec<_> = self.replications(home).collect();
        rules.sort_by_key(|(_, rule)| age(rule));
        let (mut fitting, mut copies) = (0, 0);
        rules.retain(|(_, rule)| {
            let with_rule = copies + rule.most_copies();
            let fits = fitting < REPLICATIONS && with_rule <= COPIES;
            if fits {
                fitting += 1;
                copies = with_rule;
            }
            !fits
        });
        let excess = rules.into_iter().map(|(id, rule)| {
            let refused = Refused {
                generation: rule.generation,
                created: rule.created,
                refusals: vec![used_up()],
            };
            (id.clone(), refused)
        });
        for (id, refused) in excess.collect::<Vec<_>>() {
            let state = self.rules.get(&id);
            let observed = state.and_then(|state| state.status.observed.clone());
            self.replace_rule(&id, Err(refused), observed, effects);
        }
    }
}

/// The order in which Replications fit: by age, and for the same age by name.
fn age(rule: &Rule) -> (Timestamp, &RuleId) {
    (rule.created, &rule.id)
}

fn used_up() -> Refusal {
    Refusal {
        field: "spec".into(),
        message: format!(
            "a namespace may have at most {REPLICATIONS} Replications, with {COPIES} copies in all \
             (sources times target namespaces, and 256 for each selector); older \
             Replications use that up: delete some of them, then change this one"
        ),
    }
}
