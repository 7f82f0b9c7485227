//! The grants between namespaces, and the namespaces that each rule concerns.
//!
//! A `Replication` may act in its own namespace without a grant. It may act in another namespace
//! only as far as that namespace consents. Every decision here treats a namespace without consent
//! like a namespace that does not exist. So Mimeo does not reveal which namespaces exist.
//!
//! There may be many rules. Each change is looked up by the namespaces that it concerns, and only
//! these namespaces are planned again.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_api::Access;

use mimeo_model::{
    condition::ConditionReason,
    grant::{self, Grant, RefusedGrant},
    id::{ProjectionId, RuleId, RuleKind},
    kind::GroupKind,
    known::Known,
    refusal::Refusal,
    rule::Rule,
    source::{SourceRef, SourceSelector},
};

use crate::{
    Effects, Index, Namespace, RuleState,
    absent::Became,
    authorized::{Unauthorized, own_kind_unreadable},
    copy::CopyState,
    follow::Follows,
    grants::Grants,
    jobs::{JobKey, Jobs},
    missing_grants::MissingGrants,
    projection::Projection,
    usage::Usage,
    withdrawn::Withdrawal,
};

/// The grants, and the `Replication`s by the namespaces that they concern.
#[derive(Debug, Default)]
pub(crate) struct Consent {
    /// The grants, by namespace.
    pub(crate) grants: BTreeMap<Box<str>, Grants>,
    /// The missing grants of each `Replication`. They are computed on first use, and again after a
    /// change of the facts that they depend on.
    pub(crate) missing_grants: BTreeMap<Arc<RuleId>, OnceCell<MissingGrants>>,
    pub(crate) follows: Follows,
    pub(crate) known: Known<()>,
    /// `Replication`s by the namespaces that they target. Such a namespace need not exist.
    pub(crate) targeting: BTreeMap<Box<str>, BTreeSet<Arc<RuleId>>>,
    /// Namespaces in which a copy of the `Replication` was seen since the last tidying.
    copies_in: BTreeMap<Arc<RuleId>, BTreeSet<Arc<str>>>,
    /// Projections whose source is in another namespace than their rule, by the namespace of the
    /// source.
    pub(crate) readers: BTreeMap<Box<str>, BTreeSet<ProjectionId>>,
    /// `Replication`s with selectors in another namespace than their own, by that other namespace.
    pub(crate) selecting: BTreeMap<Box<str>, BTreeSet<Arc<RuleId>>>,
    /// The reads of namespaces that no longer grant access to some existing copies.
    pub(crate) withdrawals: BTreeMap<Box<str>, Withdrawal>,
    /// The namespaces in which the users of the grants must be counted again.
    pub(crate) usage: Usage,
}

impl Consent {
    /// Drops the missing grants of a rule. The next use computes them again.
    pub(crate) fn forget_missing_grants(&mut self, rule: &Arc<RuleId>) {
        if let Some(known) = self.missing_grants.get_mut(rule) {
            known.take();
        }
    }

    pub(crate) fn add_reader(&mut self, id: ProjectionId, projection: &Projection) {
        if reads_abroad(projection) {
            self.readers
                .entry(projection.source.namespace.clone())
                .or_default()
                .insert(id);
        }
    }

    pub(crate) fn remove_reader(&mut self, id: ProjectionId, projection: &Projection) {
        remove(&mut self.readers, &projection.source.namespace, &id);
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

    /// Drops the namespaces of all rules except these. No copy of the others is left.
    pub(crate) fn forget_places_of_copies(&mut self, owners: &BTreeSet<Arc<RuleId>>) {
        self.copies_in.retain(|id, _| owners.contains(id));
    }

    /// Replaces the namespaces with copies of `Replication`s. The new map is complete.
    pub(crate) fn copies_are_in(&mut self, copies_in: BTreeMap<Arc<RuleId>, BTreeSet<Arc<str>>>) {
        self.copies_in = copies_in;
    }
}

fn reads_abroad(projection: &Projection) -> bool {
    projection
        .rule
        .namespace
        .as_ref()
        .is_some_and(|home| *home != projection.source.namespace)
}

fn remove<T: Ord>(index: &mut BTreeMap<Box<str>, BTreeSet<T>>, namespace: &str, item: &T) {
    if let Some(items) = index.get_mut(namespace) {
        items.remove(item);
        if items.is_empty() {
            index.remove(namespace);
        }
    }
}

impl Index {
    /// True if the content of a grant must still be read.
    pub(crate) fn awaits_grant(&self, namespace: &str, name: &str) -> bool {
        self.consent
            .grants
            .get(namespace)
            .is_some_and(|grants| grants.awaits(name))
    }

    /// Returns why the grant would not count: the namespace has too many older grants. `None`: the
    /// grant would count.
    pub fn refuses_grant(&self, namespace: &str, name: &str, grant: &Grant) -> Option<Refusal> {
        let counts = self
            .consent
            .grants
            .get(namespace)
            .is_none_or(|grants| grants.would_count(name, grant));
        let message = grant::too_many();
        (!counts).then(|| Refusal {
            field: "metadata.namespace".into(),
            message,
        })
    }

    /// True if all grants and namespaces are known. Only then may a missing grant cost a rule its
    /// existing copies.
    pub(crate) fn grants_known(&self) -> bool {
        self.consent.known.is_listed() && self.namespaces_listed
    }

    /// True if a rule may read a source.
    pub(crate) fn may_read(&self, id: &RuleId, source: &SourceRef) -> bool {
        match source.selector() {
            Some(selector) => self.may_select(id, &selector),
            None => self.may(
                Access::Read,
                id,
                &source.namespace,
                &source.gvk.group_kind(),
                &source.name,
            ),
        }
    }

    /// True if a rule may select sources. It needs a grant for all names of the kind, because a
    /// selector reveals which objects exist.
    pub(crate) fn may_select(&self, id: &RuleId, selector: &SourceSelector) -> bool {
        self.given(Access::Read, id, &selector.namespace)
            .covers_any(&selector.gvk.group_kind())
    }

    /// True if a rule may have this copy in the namespace.
    pub(crate) fn may_write(
        &self,
        id: &RuleId,
        namespace: &str,
        kind: &GroupKind,
        name: &str,
    ) -> bool {
        self.may(Access::Write, id, namespace, kind, name)
    }

    /// True if a rule may have copies of this kind in the namespace, even if only copies with
    /// certain names.
    pub(crate) fn may_write_some(&self, id: &RuleId, namespace: &str, kind: &GroupKind) -> bool {
        self.given(Access::Write, id, namespace).concerns(kind)
    }

    fn may(
        &self,
        access: Access,
        id: &RuleId,
        namespace: &str,
        kind: &GroupKind,
        name: &str,
    ) -> bool {
        self.given(access, id, namespace).covers(kind, name)
    }

    /// Returns the grants of a namespace that admit a rule. A caller asks once for all objects of
    /// the rule. To find out if a grant admits the rule costs as much as to find out if it covers
    /// an object.
    pub(crate) fn given(&self, access: Access, id: &RuleId, namespace: &str) -> Given<'_> {
        let Some(home) = id.namespace.as_deref().filter(|home| *home != namespace) else {
            return Given::All;
        };
        let known = self
            .namespaces
            .get(home)
            .filter(|entry| entry.uid.is_some());
        let Some(entry) = known.filter(|_| self.consent.known.is_listed()) else {
            return Given::By(vec![]);
        };
        let grants = self
            .consent
            .grants
            .get(namespace)
            .into_iter()
            .flat_map(Grants::counting);
        Given::By(
            grants
                .filter(|grant| grant.admits(access, home, &entry.labels))
                .collect(),
        )
    }

    /// Returns why the grants of other namespaces are unknown. `None`: they are known, or not
    /// listed yet.
    pub(crate) fn grants_unknown(&self) -> Option<Unauthorized> {
        let unknown = |why: &str| format!("Mimeo does not know what other namespaces grant: {why}");
        match self.consent.known {
            Known::Unknown | Known::Listed(()) => None,
            Known::Unserved => {
                let message =
                    unknown("the cluster does not serve ReplicationGrants; install their CRD");
                Some(Unauthorized {
                    reason: ConditionReason::GrantsUnknown,
                    message,
                })
            }
            Known::Unreadable(why) => {
                let Unauthorized { reason, message } =
                    own_kind_unreadable("replicationgrants", why);
                Some(Unauthorized {
                    reason,
                    message: unknown(&message),
                })
            }
        }
    }

    // ---- which namespaces a change concerns ----

    pub(crate) fn learn_places(&mut self, id: &Arc<RuleId>, rule: &Rule) {
        for namespace in named_targets(rule) {
            self.consent
                .targeting
                .entry(namespace.into())
                .or_default()
                .insert(id.clone());
        }
        for namespace in selected_abroad(rule) {
            self.consent
                .selecting
                .entry(namespace.into())
                .or_default()
                .insert(id.clone());
        }
        self.consent.usage_changed_by(rule, self.now);
        if id.kind == RuleKind::Replication {
            self.consent
                .missing_grants
                .insert(id.clone(), OnceCell::new());
        }
    }

    pub(crate) fn forget_places(&mut self, id: &Arc<RuleId>, rule: Option<&Rule>) {
        for namespace in rule.into_iter().flat_map(named_targets) {
            remove(&mut self.consent.targeting, namespace, id);
        }
        for namespace in rule.into_iter().flat_map(selected_abroad) {
            remove(&mut self.consent.selecting, namespace, id);
        }
        rule.into_iter()
            .for_each(|rule| self.consent.usage_changed_by(rule, self.now));
        self.consent.missing_grants.remove(id);
    }

    /// Returns the rules that may want copies in a namespace: all `ClusterReplication`s, and the
    /// `Replication`s that name the namespace.
    pub(crate) fn rules_for(&self, namespace: &str) -> Vec<Arc<RuleId>> {
        let local = self.consent.targeting.get(namespace).into_iter().flatten();
        self.cluster_rules()
            .map(|(id, _)| id)
            .chain(local)
            .cloned()
            .collect()
    }

    /// Returns the namespaces in which a rule may want copies, or has some.
    pub(crate) fn places(&self, id: &RuleId) -> BTreeSet<Arc<str>> {
        let rule = self.rules.get(id).and_then(RuleState::valid);
        if id.kind == RuleKind::ClusterReplication {
            let concerned = |(name, namespace): &(&Arc<str>, &Box<Namespace>)| {
                rule.is_some_and(|rule| rule.matches(name, &namespace.labels))
                    || namespace.copies.iter().any(|copy| self.concerns(copy, id))
            };
            let places = self.namespaces.iter().filter(concerned);
            return places.map(|(name, _)| name.clone()).collect();
        }
        let targets = rule.into_iter().flat_map(named_targets);
        let known = targets
            .filter_map(|name| self.namespaces.get_key_value(name))
            .map(|(name, _)| name);
        let copies_in = self.consent.copies_in.get(id).into_iter().flatten();
        known.chain(copies_in).cloned().collect()
    }

    /// True if the rule wants the copy, or wrote the object that is there.
    fn concerns(&self, copy: &CopyState, id: &RuleId) -> bool {
        let wants = self.projections.wanted(copy);
        wants.is_some_and(|projection| *projection.rule == *id)
            || copy
                .ours()
                .is_some_and(|seen| seen.rule.as_deref() == Some(id))
    }

    /// A rule has changed. The namespaces that it concerns must be planned again.
    pub(crate) fn replan_rule(&mut self, id: &RuleId) {
        let mut places = self.places(id);
        // In the namespaces of its sources, this rule may now protect more objects from other
        // rules, or fewer, because no source is ever written.
        let projections = self
            .rules
            .get(id)
            .into_iter()
            .flat_map(|state| state.projections.iter().flatten());
        let sources = projections
            .filter_map(|projection| self.projections.get(projection))
            .map(|projection| &*projection.source.namespace);
        let homes: BTreeSet<&str> = sources.collect();
        places.extend(
            homes
                .into_iter()
                .filter_map(|name| self.namespaces.get_key_value(name))
                .map(|(name, _)| name.clone()),
        );
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
        rules.extend(
            source
                .selector()
                .map(|selector| self.rules_selecting(&selector))
                .into_iter()
                .flatten(),
        );
        for id in rules {
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
        grant: Result<Grant, RefusedGrant>,
        effects: &mut Effects,
    ) {
        let grant = match grant {
            Ok(grant) => grant,
            Err(refused) => return self.grant_refused(namespace, name, refused, effects),
        };
        self.consent.usage.forget_refused(namespace, name);
        let changed = (self.consent.known.is_listed()).then_some(self.now);
        let grants = self.consent.grants.entry(namespace.into()).or_default();
        // A new status does not change the access that the grant gives. The engine itself counts
        // the `Replication`s in that status, so a count must not lead to a new plan for each of
        // them.
        let same = grants.has(name, &grant) && !grants.awaits(name);
        let wanted = grants.put(name, grant, changed);
        if same && wanted.is_empty() {
            return self.consent.usage_changed(namespace, self.now);
        }
        read_grants(namespace, wanted, &mut effects.jobs);
        self.review_grants(namespace, effects);
    }

    /// The watch shows that a grant does not exist any more.
    pub(crate) fn grant_gone(&mut self, namespace: &str, name: &str, effects: &mut Effects) {
        self.consent.usage.forget_refused(namespace, name);
        let Some(grants) = self.consent.grants.get_mut(namespace) else {
            return self.consent.usage.forget(namespace);
        };
        let Some(wanted) = grants.take(name) else {
            return;
        };
        if grants.is_empty() {
            self.consent.grants.remove(namespace);
            self.consent.usage.forget(namespace);
        }
        read_grants(namespace, wanted, &mut effects.jobs);
        self.review_grants(namespace, effects);
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
            let known = known.chain(self.consent.usage.refused());
            let lost: Vec<_> = known.filter(|key| !listed.contains(key)).collect();
            for (namespace, name) in lost {
                self.grant_gone(&namespace, &name, effects);
            }
        }
        if self.consent.known.is_listed() {
            return;
        }
        self.consent.known = state.map(|_| ());
        if !state.is_listed() {
            return self.mark_all_statuses_due();
        }
        let Consent {
            readers,
            targeting,
            selecting,
            ..
        } = &self.consent;
        let namespaces: BTreeSet<Box<str>> = readers
            .keys()
            .chain(targeting.keys())
            .chain(selecting.keys())
            .cloned()
            .collect();
        for namespace in namespaces {
            self.review_grants(&namespace, effects);
        }
        self.replan_all();
    }

    /// The grants of a namespace have changed.
    fn review_grants(&mut self, namespace: &str, effects: &mut Effects) {
        self.consent.usage_changed(namespace, self.now);
        // An earlier read proves nothing about these grants.
        self.became(
            JobKey::ConfirmGrants(namespace.into()),
            Became::Unknown,
            effects,
        );
        for id in self
            .consent
            .selecting
            .get(namespace)
            .cloned()
            .unwrap_or_default()
        {
            self.review_selectors(&id, effects);
        }
        let readers = self
            .consent
            .readers
            .get(namespace)
            .cloned()
            .unwrap_or_default();
        self.review_readers(readers, effects);
        let targeting = self
            .consent
            .targeting
            .get(namespace)
            .cloned()
            .unwrap_or_default();
        for id in targeting
            .iter()
            .filter(|id| id.namespace.as_deref() != Some(namespace))
        {
            self.consent.forget_missing_grants(id);
            self.mark_status_due(id);
        }
        if let Some((name, _)) = self.namespaces.get_key_value(namespace) {
            self.dirty.insert(name.clone());
        }
    }

    /// A namespace was created or deleted, or its labels have changed. Other namespaces may grant
    /// more or less to its rules now.
    pub(crate) fn review_home(&mut self, namespace: &str, effects: &mut Effects) {
        let first = RuleId {
            kind: RuleKind::Replication,
            namespace: Some(namespace.into()),
            name: "".into(),
        };
        let rules = self.rules.range::<RuleId, _>(&first..);
        let rules = rules.take_while(|(id, _)| id.namespace.as_deref() == Some(namespace));
        let (mut ids, mut readers) = (Vec::new(), BTreeSet::new());
        for (id, state) in rules {
            ids.push(id.clone());
            readers.extend(
                state
                    .projections
                    .iter()
                    .flatten()
                    .filter(|id| self.projections.get(id).is_some_and(reads_abroad)),
            );
        }
        self.review_readers(readers, effects);
        for id in ids {
            if let Some(rule) = self.rules.get(&id).and_then(RuleState::valid) {
                self.consent.usage_changed_by(rule, self.now);
            }
            self.review_selectors(&id, effects);
            self.consent.forget_missing_grants(&id);
            self.mark_status_due(&id);
            self.replan_rule(&id);
        }
    }

    fn review_readers(&mut self, readers: BTreeSet<ProjectionId>, effects: &mut Effects) {
        let (mut changed, mut answers) = (Vec::new(), BTreeMap::new());
        let mut rules = BTreeSet::new();
        for id in readers {
            let Some(projection) = self.projections.get(&id) else {
                continue;
            };
            let rule = projection.rule.clone();
            // The answer is the same for all targets of a rule, and for all rules of a namespace.
            let question = (rule.namespace.clone(), projection.source.clone());
            let granted = *answers
                .entry(question)
                .or_insert_with(|| self.may_read(&rule, &projection.source));
            self.consent.forget_missing_grants(&rule);
            if projection.granted != granted {
                changed.push(id);
            }
            // Copies are deleted at once if the owner revoked the grant. They are collected if
            // labels have changed. So a rule that stays without the grant is planned again, too.
            if projection.granted != granted || !granted {
                rules.insert(rule);
            }
            if let Some(projection) = self.projections.get_mut(&id) {
                projection.granted = granted;
            }
        }
        for rule in rules {
            self.replan_rule(&rule);
        }
        if !changed.is_empty() {
            self.render_projections(changed, effects);
            self.demand_changed();
        }
    }
}

/// Requests a read of grants that count now because other grants have gone. The engine did not hold
/// the content of these grants before.
fn read_grants(namespace: &str, names: Vec<Box<str>>, jobs: &mut Jobs) {
    for name in names {
        let namespace = namespace.into();
        jobs.ask(JobKey::ReadGrant { namespace, name });
    }
}

/// Returns the namespaces that a `Replication` names as targets.
pub(crate) fn named_targets(rule: &Rule) -> impl Iterator<Item = &str> {
    let local = rule.id.kind == RuleKind::Replication;
    let targets = rule.targets.iter().filter(move |_| local);
    targets
        .filter_map(|target| target.selection.exact_names())
        .flatten()
}

/// Returns the namespaces, except its own, in which a `Replication` selects sources.
fn selected_abroad(rule: &Rule) -> impl Iterator<Item = &str> {
    let home = rule.id.namespace.as_deref();
    let namespaces = rule.selectors.iter().map(|selector| &*selector.namespace);
    namespaces.filter(move |namespace| home.is_some_and(|home| home != *namespace))
}

/// The access of a rule to a namespace.
pub(crate) enum Given<'a> {
    /// The namespace is the rule's own, or the rule is a `ClusterReplication`.
    All,
    /// Only the access that these grants give.
    By(Vec<&'a Grant>),
}

impl Given<'_> {
    fn concerns(&self, kind: &GroupKind) -> bool {
        match self {
            Self::All => true,
            Self::By(grants) => grants.iter().any(|grant| grant.concerns(kind)),
        }
    }

    fn covers_any(&self, kind: &GroupKind) -> bool {
        match self {
            Self::All => true,
            Self::By(grants) => grants.iter().any(|grant| grant.covers_any(kind)),
        }
    }

    pub(crate) fn covers(&self, kind: &GroupKind, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::By(grants) => grants.iter().any(|grant| grant.covers(kind, name)),
        }
    }
}
