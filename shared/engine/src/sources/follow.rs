//! Which selectors are followed. All selectors of `ClusterReplication`s are followed. A
//! Replication's selectors are followed in its own namespace, and in other namespaces that consent.
//! If a selector isn't followed, Mimeo watches nothing and looks nothing up for it, and the rule
//! gets no sources from it. That holds even if the same selector is followed for another rule.
//!
//! Each selector costs a watch, and its findings are kept in order. So only a limited number of
//! selectors counts for the Replications of one namespace.

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

use crate::{Effects, Index, RuleState, quota::Quota};

/// The largest number of selectors that count for one namespace's Replications, those of the oldest
/// rules first. It is as many as one rule may have.
const MOST: usize = 32;

/// The Replications of a namespace that have selectors. The cost is the number of their selectors.
type Selecting = Quota<Arc<RuleId>, { usize::MAX }, MOST>;

/// The Replications with selectors.
#[derive(Debug, Default)]
pub(crate) struct Follows {
    known: BTreeMap<Arc<RuleId>, Known>,
    by_home: BTreeMap<Box<str>, Selecting>,
}

/// The facts that decide whether a rule's selectors are followed. They are stored because they are
/// needed for each copy.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    counts: bool,
    /// For each selector, in the rule's order.
    granted: Vec<bool>,
}

impl Follows {
    /// The rules of a namespace with selectors that count.
    fn counting(&self, home: &str) -> BTreeSet<Arc<RuleId>> {
        let rules = |quota: &Selecting| {
            let ids = quota.iter().take(quota.fitting());
            ids.map(|(_, id)| id.clone()).collect()
        };
        self.by_home.get(home).map(rules).unwrap_or_default()
    }
}

impl Index {
    /// The followed selectors of a stored rule.
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

    /// True if one of the rule's selectors could find this object, but the object's namespace does
    /// not grant that.
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

    /// The rules that have a selector, whether it is followed for them or not.
    pub(crate) fn rules_selecting(&self, selector: &SourceSelector) -> Vec<Arc<RuleId>> {
        self.selectors
            .get(selector)
            .into_iter()
            .flat_map(|findings| &findings.rules)
            .cloned()
            .collect()
    }

    /// True if the selectors of a stored rule count.
    pub(crate) fn counts_selectors(&self, rule: &Rule) -> bool {
        self.consent
            .follows
            .known
            .get(&rule.id)
            .is_none_or(|known| known.counts)
    }

    /// Returns the refusal of a rule if the selectors of older Replications in its namespace use up
    /// the quota.
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

    /// Records the new selectors of a rule, or that it has none. The new findings have no effect
    /// before the caller asks for the rule's projections. Returns the other rules with selectors
    /// that begin or cease to count.
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
}

impl Index {
    /// Applies the change for rules with selectors that have begun or ceased to count.
    pub(crate) fn follow_anew(&mut self, Shift(rules): Shift, effects: &mut Effects) {
        rules
            .iter()
            .for_each(|id| self.review_selectors(id, effects));
    }

    /// Updates the sources of a rule after a change of the grants to its namespace, or of whether
    /// its selectors count.
    pub(crate) fn review_selectors(&mut self, id: &Arc<RuleId>, effects: &mut Effects) {
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
        self.consent.forget_missing_grants(id);
        self.mark_status_due(id);
        if self.consent.follows.known.get(id) == Some(&known) {
            // Copies are deleted at once if the owner revoked the grant. They are collected if
            // labels have changed.
            if known.granted.contains(&false) {
                self.replan_rule(id);
            }
            return;
        }
        self.consent.follows.known.insert(id.clone(), known);
        self.refit_projections(id, effects);
        self.replan_rule(id);
        self.demand_changed();
    }
}

/// Rules with selectors that have begun or ceased to count.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Shift(Vec<Arc<RuleId>>);

/// The message for users of a rule with selectors that don't count.
pub(crate) fn too_many() -> String {
    format!(
        "the Replications of a namespace may have at most {MOST} selectors in all, and older rules \
         use that up: delete some, or join several into one"
    )
}
