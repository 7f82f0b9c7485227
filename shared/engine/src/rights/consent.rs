//! The grants between namespaces, and the namespaces that each rule concerns.
//!
//! A `Replication` may act in its own namespace without a grant. It may act in another namespace
//! only as far as that namespace consents. Every decision here treats a namespace without consent
//! like a namespace that does not exist. So Mimeo does not reveal which namespaces exist.
//!
//! There may be many rules. Each change is looked up by the namespaces that it concerns, and only
//! these namespaces are planned again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_api::Access;

use mimeo_model::{
    condition::ConditionReason,
    grant::{self, Grant, GrantStatus},
    id::{RuleId, RuleKind},
    kind::GroupKind,
    known::Known,
    refusal::Refusal,
    rule::Rule,
    source::{SourceQuery, SourceRef},
};

use crate::{
    Effects, Index, RuleState, SourceState, absent::Became, authorized::own_kind_unreadable,
    clock::Tick, copy::CopyState, grants::Grants, jobs::JobKey, trouble::Trouble,
};

/// The grants, and the `Replication`s by the namespaces that they concern.
#[derive(Debug, Default)]
pub(crate) struct Consent {
    /// The grants, by namespace.
    pub(crate) grants: BTreeMap<Box<str>, Grants>,
    pub(crate) known: Known<()>,
    /// `Replication`s by the namespaces that they target. Such a namespace need not exist.
    pub(crate) targeting: BTreeMap<Box<str>, BTreeSet<Arc<RuleId>>>,
    /// Namespaces in which a copy of the `Replication` was seen since the last tidying.
    pub(crate) copies_in: BTreeMap<Arc<RuleId>, BTreeSet<Arc<str>>>,
    /// `Replication`s by the other namespaces in which they name or select sources.
    pub(crate) reading: BTreeMap<Box<str>, BTreeSet<Arc<RuleId>>>,
    /// When the users of one namespace's grants may be counted next.
    pub(crate) next_usage: Tick,
}

impl Consent {
    /// The `Replication`s that have targets in a namespace, or read it from other namespaces.
    pub(crate) fn concerned(&self, namespace: &str) -> BTreeSet<&Arc<RuleId>> {
        let indices = [&self.targeting, &self.reading].into_iter();
        let concerned = indices.filter_map(|index| index.get(namespace));
        concerned.flatten().collect()
    }

    /// Records that a copy of the rule is in this namespace.
    pub(crate) fn note_copy_in(&mut self, rule: &Arc<RuleId>, namespace: &Arc<str>) {
        if rule.kind == RuleKind::Replication {
            self.copies_in
                .entry(rule.clone())
                .or_default()
                .insert(namespace.clone());
        }
    }
}

fn remove(
    index: &mut BTreeMap<Box<str>, BTreeSet<Arc<RuleId>>>,
    namespace: &str,
    id: &Arc<RuleId>,
) {
    if let Some(ids) = index.get_mut(namespace) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(namespace);
        }
    }
}

impl Index {
    /// Returns why the grant would not count: the namespace has too many older grants. `None`: the
    /// grant would count.
    pub fn refuses_grant(&self, namespace: &str, name: &str, grant: &Grant) -> Option<Refusal> {
        let grants = self.consent.grants.get(namespace)?;
        (!grants.would_count(name, grant)).then(|| Refusal {
            field: "metadata.namespace".into(),
            message: grant::too_many(),
        })
    }

    /// True if all grants and namespaces are known. Only then may a missing grant cost a rule its
    /// existing copies.
    pub(crate) fn grants_known(&self) -> bool {
        self.consent.known.is_listed() && self.namespaces_listed
    }

    /// True if a rule may read these sources. An inline source needs no grant.
    pub(crate) fn may_read(&self, id: &RuleId, query: SourceQuery<'_>) -> bool {
        let kind = query.gvk().group_kind();
        query.home().is_none_or(|home| {
            let given = self.given(Access::Read, id, home);
            given.any(|grant| grant.covers(&kind, query.name()))
        })
    }

    /// Whether a rule may read each of its sources, and then whether it may select with each of its
    /// selectors.
    pub(crate) fn readable(&self, rule: &Rule) -> Vec<bool> {
        let queries = rule.queries();
        queries
            .map(|query| self.may_read(&rule.id, query))
            .collect()
    }

    /// True if a rule may have this copy in the namespace.
    pub(crate) fn may_write(
        &self,
        id: &RuleId,
        namespace: &str,
        kind: &GroupKind,
        name: &str,
    ) -> bool {
        self.given(Access::Write, id, namespace).covers(kind, name)
    }

    /// Returns the grants of a namespace that admit a rule. A caller asks once for all objects of
    /// the rule. To find out if a grant admits the rule costs as much as to find out if it covers
    /// an object.
    pub(crate) fn given(&self, access: Access, id: &RuleId, namespace: &str) -> Given<'_> {
        let home = id.namespace.as_deref().filter(|home| *home != namespace);
        Given(home.map(|home| {
            let grants = self.admitting(namespace, home).map(|(_, grant, _)| grant);
            grants.filter(|grant| grant.access == access).collect()
        }))
    }

    /// Returns the grants of a namespace that admit the `Replication`s of the namespace `home`.
    pub(crate) fn admitting(
        &self,
        namespace: &str,
        home: &str,
    ) -> impl Iterator<Item = (&str, &Grant, Option<Tick>)> {
        let entry = self.namespaces.get(home);
        let known = entry.filter(|entry| entry.uid.is_some() && self.consent.known.is_listed());
        let grants = self.consent.grants.get(namespace).into_iter();
        grants
            .flat_map(Grants::counting)
            .filter(move |(_, grant, _)| known.is_some_and(|entry| grant.admits(entry.place())))
    }

    /// Returns why the grants of other namespaces are unknown. `None`: they are known, or not
    /// listed yet.
    pub(crate) fn grants_unknown(&self) -> Option<Trouble> {
        let (reason, why) = match self.consent.known {
            Known::Unknown | Known::Listed(()) => return None,
            Known::Unserved => {
                let why = "the cluster does not serve ReplicationGrants; install their CRD";
                (ConditionReason::GrantsUnknown, why.to_owned())
            }
            Known::Unreadable(why) => own_kind_unreadable("replicationgrants", why),
        };
        let message = format!("Mimeo does not know what other namespaces grant: {why}");
        Some((reason, message))
    }

    // ---- which namespaces a change concerns ----

    /// Adds the places, the selectors and the inline sources of a rule. They have no effect before
    /// the rule has projections. Returns true for each source that the rule may read, and then for
    /// each selector whose objects it may read.
    pub(crate) fn add_claims(&mut self, id: &Arc<RuleId>, rule: &Rule) -> Vec<bool> {
        let readable = self.readable(rule);
        let selectors = readable.iter().skip(rule.sources.len());
        for (selector, granted) in rule.selectors.iter().zip(selectors) {
            let findings = self.selectors.entry(selector.clone()).or_default();
            findings.rules.insert(id.clone(), *granted);
        }
        for (source, object) in &rule.inline {
            let state = SourceState::found(source, object.clone());
            self.sources.insert(source.clone(), state);
        }
        let consent = &mut self.consent;
        for namespace in named_targets(rule) {
            let targeting = consent.targeting.entry(namespace.into()).or_default();
            targeting.insert(id.clone());
        }
        for namespace in read_abroad(rule) {
            let reading = consent.reading.entry(namespace.into()).or_default();
            reading.insert(id.clone());
        }
        consent.usage_changed_by(rule, self.now);
        readable
    }

    /// Removes the places and the selectors of a rule.
    pub(crate) fn remove_claims(&mut self, id: &Arc<RuleId>, rule: &Rule) {
        for selector in &rule.selectors {
            if let Some(findings) = self.selectors.get_mut(selector) {
                findings.rules.remove(id);
            }
        }
        let consent = &mut self.consent;
        for namespace in named_targets(rule) {
            remove(&mut consent.targeting, namespace, id);
        }
        for namespace in read_abroad(rule) {
            remove(&mut consent.reading, namespace, id);
        }
        consent.usage_changed_by(rule, self.now);
    }

    /// Returns the rules that may want copies in a namespace: all `ClusterReplication`s, and the
    /// `Replication`s that name the namespace.
    pub(crate) fn rules_for(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = (&Arc<RuleId>, &RuleState)> {
        let local = self.consent.targeting.get(namespace).into_iter().flatten();
        let local = local.filter_map(|id| self.rules.get_key_value(id));
        self.cluster_rules().chain(local)
    }

    /// Returns the namespaces in which a rule may want copies, or has some.
    pub(crate) fn places(&self, id: &RuleId) -> BTreeSet<Arc<str>> {
        let rule = self.valid(id);
        if id.kind == RuleKind::ClusterReplication {
            let mut places = BTreeSet::new();
            for (name, namespace) in &self.namespaces {
                // A copy that the rule wants is where it matches. Others may be left from before.
                let wrote = |copy: &CopyState| copy.rule().is_some_and(|rule| **rule == *id);
                if rule.is_some_and(|rule| rule.matches(namespace.place()))
                    || namespace.copies.iter().any(wrote)
                {
                    places.insert(name.clone());
                }
            }
            return places;
        }
        let targets = rule.into_iter().flat_map(named_targets);
        let known = targets.filter_map(|name| Some(&self.namespaces.get(name)?.name));
        let copies_in = self.consent.copies_in.get(id).into_iter().flatten();
        known.chain(copies_in).cloned().collect()
    }

    /// A rule has changed. The namespaces that it concerns must be planned again.
    pub(crate) fn replan_rule(&mut self, id: &RuleId) {
        let mut places = self.places(id);
        // In the namespaces of its sources, this rule may now protect more objects from other
        // rules, or fewer, because no source is ever written.
        let queries = self.valid(id).into_iter().flat_map(Rule::queries);
        let homes = queries.filter_map(|query| self.namespaces.get(query.home()?));
        places.extend(homes.map(|home| home.name.clone()));
        self.dirty.extend(places);
    }

    /// Plans again for every rule with this source. That includes rules whose selector found it,
    /// because such a rule may have no projection for the source any more.
    pub(crate) fn replan_rules_of_source(&mut self, source: &SourceRef) {
        let mut rules: BTreeSet<Arc<RuleId>> = self
            .projections
            .of_source(source)
            .map(|(_, projection)| projection.rule.clone())
            .collect();
        if let Some(selector) = source.selector() {
            rules.extend(self.rules_selecting(selector));
        }
        self.replan_rules(rules);
    }

    /// The situation of these rules has changed.
    pub(crate) fn replan_rules(&mut self, rules: impl IntoIterator<Item = Arc<RuleId>>) {
        for id in rules {
            self.mark_status_due(&id);
            self.replan_rule(&id);
        }
    }
}

impl Index {
    /// Takes in a grant that exists, with this spec. A grant that can't be parsed grants nothing.
    pub(crate) fn grant_applied(
        &mut self,
        namespace: &str,
        name: &str,
        grant: Result<Grant, GrantStatus>,
        effects: &mut Effects,
    ) {
        let changed = (self.consent.known.is_listed()).then_some(self.now);
        let grants = self.consent.grants.entry(namespace.into()).or_default();
        // A new status does not change the access that the grant gives. The engine itself counts
        // the `Replication`s in that status, so a count must not lead to a new plan for each of
        // them.
        if grants.put(name, grant, changed) {
            self.review_grants(namespace, effects);
        } else {
            self.consent.usage_changed(namespace, self.now);
        }
    }

    /// The watch shows that a grant does not exist any more.
    pub(crate) fn grant_gone(&mut self, namespace: &str, name: &str, effects: &mut Effects) {
        let Some(grants) = self.consent.grants.get_mut(namespace) else {
            return;
        };
        let changed = grants.take(name);
        if grants.is_empty() {
            self.consent.grants.remove(namespace);
        }
        if changed {
            self.review_grants(namespace, effects);
        }
    }

    /// Records the state of the watch of grants. A list has the namespace and name of each grant.
    /// Once listed, grants stay valid while they can't be read.
    pub(crate) fn grants_are(
        &mut self,
        state: Known<&BTreeSet<(Box<str>, Box<str>)>>,
        effects: &mut Effects,
    ) {
        if let Known::Listed(listed) = state {
            let known = self.consent.grants.iter().flat_map(|(namespace, grants)| {
                grants.names().map(|name| (namespace.clone(), name.clone()))
            });
            let lost: Vec<_> = known.filter(|key| !listed.contains(key)).collect();
            for (namespace, name) in lost {
                self.grant_gone(&namespace, &name, effects);
            }
        }
        if self.consent.known.is_listed() {
            return;
        }
        self.consent.known = state.map(|_| ());
        let rules = self.rules.keys().cloned().collect();
        self.review_sources(&rules, effects);
        self.replan_all();
    }

    /// The grants of a namespace have changed.
    fn review_grants(&mut self, namespace: &str, effects: &mut Effects) {
        self.consent.usage_changed(namespace, self.now);
        // An earlier read proves nothing about these grants.
        let key = JobKey::ConfirmGrants(namespace.into());
        self.became(&key, Became::Unknown, 0, effects);
        let Consent {
            targeting, reading, ..
        } = &self.consent;
        let reading = reading.get(namespace).cloned().unwrap_or_default();
        let targeting = targeting.get(namespace).cloned().unwrap_or_default();
        self.review_sources(&reading, effects);
        targeting.iter().for_each(|id| self.mark_status_due(id));
        if let Some(entry) = self.namespaces.get(namespace) {
            self.dirty.insert(entry.name.clone());
        }
    }

    /// A namespace was created or deleted, or its labels have changed. Other namespaces may grant
    /// more or less to its rules now.
    pub(crate) fn review_home(&mut self, namespace: &str, effects: &mut Effects) {
        let rules = self.replications(namespace).map(|(id, _)| id.clone());
        let rules: BTreeSet<Arc<RuleId>> = rules.collect();
        self.review_sources(&rules, effects);
        for id in &rules {
            if let Some(rule) = self.rules.get(id).and_then(RuleState::valid) {
                self.consent.usage_changed_by(rule, self.now);
            }
            self.replan_rule(id);
        }
    }

    /// The grants to these rules may have changed. A rule that may now read more or less than
    /// before is recorded anew, like a changed rule.
    fn review_sources(&mut self, rules: &BTreeSet<Arc<RuleId>>, effects: &mut Effects) {
        for id in rules {
            self.mark_status_due(id);
            let Some(state) = self.rules.get(id) else {
                continue;
            };
            let Some(rule) = state.valid() else { continue };
            let readable = self.readable(rule);
            let all = !readable.contains(&false);
            if readable != state.readable {
                let (rule, observed) = (rule.clone(), state.status.observed.clone());
                self.replace_rule(id, Ok(rule), observed, effects);
            } else if !all {
                // Copies are deleted at once if the owner revoked the grant. They are collected if
                // labels have changed.
                self.replan_rule(id);
            }
        }
    }
}

/// Returns the namespaces that a `Replication` names as targets.
pub(crate) fn named_targets(rule: &Rule) -> impl Iterator<Item = &str> {
    let local = rule.id.kind == RuleKind::Replication;
    local.then(|| rule.named_targets()).into_iter().flatten()
}

/// Returns the namespaces, except its own, in which a `Replication` names or selects sources.
pub(crate) fn read_abroad(rule: &Rule) -> impl Iterator<Item = &str> {
    let home = rule.id.namespace.as_deref();
    let namespaces = rule.queries().filter_map(SourceQuery::home);
    namespaces.filter(move |namespace| home.is_some_and(|home| home != *namespace))
}

/// The access of a rule to a namespace: the access that these grants give. `None` stands for all
/// access: the namespace is the rule's own, or the rule is a `ClusterReplication`.
pub(crate) struct Given<'a>(Option<Vec<&'a Grant>>);

impl Given<'_> {
    fn any(&self, covers: impl Fn(&Grant) -> bool) -> bool {
        let grants = self.0.as_ref();
        grants.is_none_or(|grants| grants.iter().any(|grant| covers(grant)))
    }

    pub(crate) fn covers(&self, kind: &GroupKind, name: &str) -> bool {
        self.any(|grant| grant.covers(kind, Some(name)))
    }

    /// True if at least objects of some names are covered.
    pub(crate) fn concerns(&self, kind: &GroupKind) -> bool {
        self.any(|grant| grant.concerns(kind))
    }
}
