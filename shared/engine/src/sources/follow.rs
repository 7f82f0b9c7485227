//! Which selectors are followed. All of the platform's are; of a tenant's those in its own
//! namespace, and those in others that consent to it. What isn't followed is neither watched nor
//! looked up, and finds nothing, whoever else follows the same.
//!
//! Each selector is a watch, and what it finds is kept in order: so of each namespace's
//! Replications only so many count.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_model::{
    id::{RuleId, RuleKind},
    refusal::Refusal,
    rule::Rule,
    source::{SourceRef, SourceSelector},
};

use crate::{Engine, RuleState, quota::Quota};

/// Most selectors of one namespace's Replications that count, those of the oldest rules: as many as
/// one rule may have.
const MOST: usize = 32;

/// The Replications of a namespace with selectors. The cost is the number of these.
type Selecting = Quota<Arc<RuleId>, { usize::MAX }, MOST>;

/// Replications with selectors.
#[derive(Debug, Default)]
pub(crate) struct Follows {
    known: BTreeMap<Arc<RuleId>, Known>,
    by_home: BTreeMap<Box<str>, Selecting>,
}

/// What decides whether a rule's selectors are followed. Kept, since it is asked for each copy.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    counts: bool,
    /// Each, in the rule's order.
    granted: Vec<bool>,
}

impl Follows {
    /// The rules of a namespace whose selectors count.
    fn counting(&self, home: &str) -> BTreeSet<Arc<RuleId>> {
        let rules = |quota: &Selecting| {
            let ids = quota.iter().take(quota.fitting());
            ids.map(|(_, id)| id.clone()).collect()
        };
        self.by_home.get(home).map(rules).unwrap_or_default()
    }
}

impl Engine {
    /// The selectors of a stored rule that are followed.
    pub(crate) fn followed<'a>(&self, rule: &'a Rule) -> Vec<&'a SourceSelector> {
        if rule.id.kind == RuleKind::ClusterReplication {
            return rule.selectors.iter().collect();
        }
        let known = self
            .consent
            .follows
            .known
            .get(&rule.id)
            .filter(|known| known.counts);
        let granted = known.map_or(&[][..], |known| &known.granted);
        rule.selectors
            .iter()
            .zip(granted)
            .filter(|(_, granted)| **granted)
            .map(|(selector, _)| selector)
            .collect()
    }

    /// Whether another namespace doesn't let the rule look for this object, which one of its
    /// selectors could find.
    pub(crate) fn is_withheld(&self, rule: &Rule, source: &SourceRef) -> bool {
        let granted = self
            .consent
            .follows
            .known
            .get(&rule.id)
            .map_or(&[][..], |known| &known.granted);
        rule.selectors
            .iter()
            .zip(granted)
            .any(|(selector, granted)| !granted && selector.could_find(source))
    }

    /// The rules that have a selector, be it followed for them or not.
    pub(crate) fn rules_selecting(&self, selector: &SourceSelector) -> Vec<Arc<RuleId>> {
        self.selectors
            .get(selector)
            .into_iter()
            .flat_map(|findings| &findings.rules)
            .cloned()
            .collect()
    }

    /// Whether the selectors of a stored rule count.
    pub(crate) fn counts_selectors(&self, rule: &Rule) -> bool {
        self.consent
            .follows
            .known
            .get(&rule.id)
            .is_none_or(|known| known.counts)
    }

    /// Why the selectors of a rule would find nothing, if its namespace's Replications have too
    /// many that are older.
    pub fn refuses_selectors(&self, rule: &Rule) -> Option<Refusal> {
        let home = rule
            .id
            .namespace
            .as_deref()
            .filter(|_| !rule.selectors.is_empty())?;
        let quota = self.consent.follows.by_home.get(home)?;
        let fits = quota.would_fit(&rule.id.name, rule.created, rule.selectors.len());
        (!fits).then(|| Refusal {
            field: "spec.sources".into(),
            message: too_many(),
        })
    }

    /// A rule has other selectors now, or none. What it finds by them isn't asked before its slots
    /// are.
    pub(crate) fn replace_selectors(
        &mut self,
        id: &Arc<RuleId>,
        old: Option<&Rule>,
        new: Option<&Rule>,
    ) -> Shift {
        let counted = id
            .namespace
            .as_deref()
            .map(|home| self.consent.follows.counting(home))
            .unwrap_or_default();
        for selector in old.into_iter().flat_map(|rule| &rule.selectors) {
            if let Some(findings) = self.selectors.get_mut(selector) {
                findings.rules.remove(id);
            }
        }
        for selector in new.into_iter().flat_map(|rule| &rule.selectors) {
            self.selectors
                .entry(selector.clone())
                .or_default()
                .rules
                .insert(id.clone());
        }
        let Some(home) = id.namespace.as_deref() else {
            return Shift::default();
        };
        let follows = &mut self.consent.follows;
        follows.known.remove(id);
        if let Some(quota) = follows.by_home.get_mut(home) {
            quota.remove(&id.name);
            if quota.is_empty() {
                follows.by_home.remove(home);
            }
        }
        if let Some(new) = new.filter(|new| !new.selectors.is_empty()) {
            let quota = follows.by_home.entry(home.into()).or_default();
            quota.put(&id.name, new.created, new.selectors.len(), id.clone());
            let known = self.find_followed(new, home);
            self.consent.follows.known.insert(id.clone(), known);
        }
        let counting = self.consent.follows.counting(home);
        Shift(
            counted
                .symmetric_difference(&counting)
                .filter(|other| *other != id)
                .cloned()
                .collect(),
        )
    }

    fn find_followed(&self, rule: &Rule, home: &str) -> Known {
        let granted = rule
            .selectors
            .iter()
            .map(|selector| self.may_select(&rule.id, selector))
            .collect();
        Known {
            counts: self.consent.follows.counting(home).contains(&rule.id),
            granted,
        }
    }

    /// The selectors of these rules have come to count, or don't any more.
    pub(crate) fn follow_anew(&mut self, Shift(rules): Shift) {
        rules.iter().for_each(|id| self.review_selectors(id));
    }

    /// What a rule's namespace is granted may have changed, or whether its selectors count: it has
    /// the sources that it may have.
    pub(crate) fn review_selectors(&mut self, id: &Arc<RuleId>) {
        let Some(rule) = self.rules.get(id).and_then(RuleState::valid) else {
            return;
        };
        let Some(home) = id
            .namespace
            .as_deref()
            .filter(|_| !rule.selectors.is_empty())
        else {
            return;
        };
        let known = self.find_followed(rule, home);
        self.consent.forget_lacks(id);
        self.mark_status_due(id);
        if self.consent.follows.known.get(id) == Some(&known) {
            return;
        }
        self.consent.follows.known.insert(id.clone(), known);
        self.refit_slots(id);
        self.replan_rule(id);
        self.demand_changed();
    }
}

/// Rules whose selectors have come to count, or don't any more.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Shift(Vec<Arc<RuleId>>);

/// To people who look at a rule whose selectors don't count.
pub(crate) fn too_many() -> String {
    format!(
        "the Replications of a namespace may have at most {MOST} selectors in all, and older rules use that up: delete some, or join \
         several into one"
    )
}
