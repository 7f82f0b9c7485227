//! What namespaces grant each other's rules, and which namespaces a rule concerns at all.
//!
//! A Replication acts within its own namespace by itself, and beyond it as far as the other
//! namespace consents. Nothing of what is decided here tells a namespace that doesn't consent from
//! one that doesn't exist. A tenant's rules may be many: whatever changes is looked up by the
//! namespaces that it concerns, and no others are planned.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_api::Access;

use mimeo_model::{
    condition::ConditionReason,
    grant::{self, Grant},
    id::{RuleId, RuleKind, SlotId},
    kind::GroupKind,
    outcome::Unreadable,
    refusal::Refusal,
    rule::Rule,
    source::{SourceRef, SourceSelector},
};

use crate::{
    Engine, Listing, RuleState,
    authorized::{Unauthorized, own_kind_unreadable},
    clock::Tick,
    follow::Follows,
    grants::Grants,
    jobs::JobKey,
    lacks::Lacks,
    slot::Slot,
    usage::Usage,
    withdrawn::Withdrawal,
};

/// Grants, and the Replications by the namespaces that they concern.
#[derive(Debug, Default)]
pub(crate) struct Consent {
    /// By namespace.
    pub(crate) grants: BTreeMap<Box<str>, Grants>,
    /// What each Replication lacks: found out when first asked for, and anew when what it depends
    /// on has changed.
    pub(crate) lacks: BTreeMap<Arc<RuleId>, OnceCell<Lacks>>,
    pub(crate) follows: Follows,
    pub(crate) listing: Listing,
    /// Replications that target a namespace, which need not exist.
    pub(crate) targeting: BTreeMap<Box<str>, BTreeSet<Arc<RuleId>>>,
    /// Namespaces where copies of a Replication were seen since it was last tidied up.
    strewn: BTreeMap<Arc<RuleId>, BTreeSet<Arc<str>>>,
    /// Slots whose source is in another namespace than their rule, by that namespace.
    pub(crate) readers: BTreeMap<Box<str>, BTreeSet<SlotId>>,
    /// Replications with selectors in another namespace than their own, by that namespace.
    pub(crate) selecting: BTreeMap<Box<str>, BTreeSet<Arc<RuleId>>>,
    /// What is known of namespaces that have granted less than copies that are there take.
    pub(crate) withdrawals: BTreeMap<Box<str>, Withdrawal>,
    /// Where it is to be counted anew who uses the grants.
    pub(crate) usage: Usage,
}

impl Consent {
    /// What a rule lacks is to be found out anew.
    pub(crate) fn forget_lacks(&mut self, rule: &Arc<RuleId>) {
        if let Some(known) = self.lacks.get_mut(rule) {
            known.take();
        }
    }

    pub(crate) fn add_reader(&mut self, id: SlotId, slot: &Slot) {
        if reads_abroad(slot) {
            self.readers
                .entry(slot.source.namespace.clone())
                .or_default()
                .insert(id);
        }
    }

    pub(crate) fn remove_reader(&mut self, id: SlotId, slot: &Slot) {
        remove(&mut self.readers, &slot.source.namespace, &id);
    }

    /// A copy of the rule is in this namespace.
    pub(crate) fn strew(&mut self, rule: &Arc<RuleId>, namespace: &Arc<str>) {
        if rule.kind == RuleKind::Replication {
            self.strewn
                .entry(rule.clone())
                .or_default()
                .insert(namespace.clone());
        }
    }

    /// No copy is left of other rules than these.
    pub(crate) fn forget_strewn(&mut self, owners: &BTreeSet<Arc<RuleId>>) {
        self.strewn.retain(|id, _| owners.contains(id));
    }

    /// Copies of Replications are there, and nowhere else.
    pub(crate) fn strewn_as(&mut self, strewn: BTreeMap<Arc<RuleId>, BTreeSet<Arc<str>>>) {
        self.strewn = strewn;
    }
}

fn reads_abroad(slot: &Slot) -> bool {
    slot.rule
        .namespace
        .as_ref()
        .is_some_and(|home| *home != slot.source.namespace)
}

fn remove<T: Ord>(index: &mut BTreeMap<Box<str>, BTreeSet<T>>, namespace: &str, item: &T) {
    if let Some(items) = index.get_mut(namespace) {
        items.remove(item);
        if items.is_empty() {
            index.remove(namespace);
        }
    }
}

impl Engine {
    /// A grant exists, with this spec. One that can't be parsed grants nothing.
    pub fn grant_applied(
        &mut self,
        namespace: &str,
        name: &str,
        grant: Result<Grant, Vec<Refusal>>,
        now: Tick,
    ) {
        self.at(now);
        let Ok(grant) = grant else {
            return self.grant_gone(namespace, name, now);
        };
        let news = (self.consent.listing == Listing::Listed).then_some(self.now);
        let grants = self.consent.grants.entry(namespace.into()).or_default();
        // A new status grants nothing else. Its Replications aren't planned anew each time that one
        // more is counted in it.
        let same = grants.has(name, &grant) && !grants.awaits(name);
        let wanted = grants.put(name, grant, news);
        if same && wanted.is_empty() {
            return self.consent.usage_changed(namespace, self.now);
        }
        self.read_grants(namespace, wanted);
        self.review_grants(namespace);
    }

    /// Has grants read that come to count, since others went: they weren't held till then.
    fn read_grants(&mut self, namespace: &str, names: Vec<Box<str>>) {
        for name in names {
            self.jobs.ask(JobKey::ReadGrant {
                namespace: namespace.into(),
                name,
            });
        }
    }

    /// Whether a grant has yet to be read again.
    pub(crate) fn awaits_grant(&self, namespace: &str, name: &str) -> bool {
        self.consent
            .grants
            .get(namespace)
            .is_some_and(|grants| grants.awaits(name))
    }

    /// Why a grant would grant nothing, if it would: the namespace has too many that are older.
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

    /// A grant doesn't exist any more, as far as its watch says.
    pub fn grant_gone(&mut self, namespace: &str, name: &str, now: Tick) {
        self.at(now);
        let Some(grants) = self.consent.grants.get_mut(namespace) else {
            return;
        };
        let Some(wanted) = grants.take(name) else {
            return;
        };
        if grants.is_empty() {
            self.consent.grants.remove(namespace);
            self.consent.usage.forget(namespace);
        }
        self.read_grants(namespace, wanted);
        self.review_grants(namespace);
    }

    /// Every grant there is has been shown; those in `listed`, by namespace and name, are all.
    pub fn grants_listed(&mut self, listed: &BTreeSet<(Box<str>, Box<str>)>, now: Tick) {
        self.at(now);
        let known = self.consent.grants.iter();
        let known = known.flat_map(|(namespace, grants)| {
            grants.names().map(|name| (namespace.clone(), name.clone()))
        });
        let lost: Vec<_> = known.filter(|key| !listed.contains(key)).collect();
        for (namespace, name) in lost {
            self.grant_gone(&namespace, &name, now);
        }
        if self.consent.listing != Listing::Listed {
            self.consent.listing = Listing::Listed;
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
                self.review_grants(&namespace);
            }
            self.replan_all();
        }
    }

    /// The server doesn't serve grants: their CRD isn't there (any more). Those that were shown
    /// hold.
    pub fn grants_unserved(&mut self, now: Tick) {
        self.grants_withheld(Listing::Unserved, now);
    }

    /// Grants can't be read. Those that were shown hold.
    pub fn grants_unreadable(&mut self, why: Unreadable, now: Tick) {
        self.grants_withheld(Listing::Unreadable(why), now);
    }

    fn grants_withheld(&mut self, listing: Listing, now: Tick) {
        self.at(now);
        if self.consent.listing != Listing::Listed {
            self.consent.listing = listing;
            self.rules
                .values_mut()
                .for_each(|state| state.status.mark_due());
        }
    }

    /// Whether it is known what is granted: only then does the lack of a grant mean anything for
    /// copies that are there.
    pub(crate) fn grants_known(&self) -> bool {
        self.consent.listing == Listing::Listed && self.namespaces_listed
    }

    /// Whether a rule may read a source.
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

    /// Whether a rule may look for sources: it may find any of the kind, and then it is known which
    /// there are.
    pub(crate) fn may_select(&self, id: &RuleId, selector: &SourceSelector) -> bool {
        self.given(Access::Read, id, &selector.namespace)
            .covers_any(&selector.gvk.group_kind())
    }

    /// Whether a rule may have a copy there.
    pub(crate) fn may_write(
        &self,
        id: &RuleId,
        namespace: &str,
        kind: &GroupKind,
        name: &str,
    ) -> bool {
        self.may(Access::Write, id, namespace, kind, name)
    }

    /// Whether a rule may have copies of the kind there, be it of few names.
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

    /// What a rule is given in a namespace. Asked once for all of its objects: who is given
    /// something costs as much to ask as what.
    pub(crate) fn given(&self, access: Access, id: &RuleId, namespace: &str) -> Given<'_> {
        let Some(home) = id.namespace.as_deref().filter(|home| *home != namespace) else {
            return Given::All;
        };
        let known = self
            .namespaces
            .get(home)
            .filter(|entry| entry.uid.is_some());
        let Some(entry) = known.filter(|_| self.consent.listing == Listing::Listed) else {
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

    /// Why nobody knows what other namespaces grant, if it was looked for.
    pub(crate) fn grants_untold(&self) -> Option<Unauthorized> {
        let unknown = |why: &str| format!("Mimeo does not know what other namespaces grant: {why}");
        match self.consent.listing {
            Listing::Unknown | Listing::Listed => None,
            Listing::Unserved => {
                let message =
                    unknown("the cluster does not serve ReplicationGrants; install their CRD");
                Some(Unauthorized {
                    reason: ConditionReason::GrantsUnknown,
                    message,
                })
            }
            Listing::Unreadable(why) => {
                let Unauthorized { reason, message } =
                    own_kind_unreadable("replicationgrants", why);
                Some(Unauthorized {
                    reason,
                    message: unknown(&message),
                })
            }
        }
    }

    // ---- what concerns whom ----

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
            self.consent.lacks.insert(id.clone(), OnceCell::new());
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
        self.consent.lacks.remove(id);
    }

    /// The rules that may want copies in a namespace: all of the platform's, and those that name
    /// it.
    pub(crate) fn rules_for(&self, namespace: &str) -> Vec<Arc<RuleId>> {
        let local = self.consent.targeting.get(namespace).into_iter().flatten();
        self.cluster_rules()
            .map(|(id, _)| id)
            .chain(local)
            .cloned()
            .collect()
    }

    /// The namespaces where a rule may want copies, or has some.
    pub(crate) fn places(&self, id: &RuleId) -> Vec<Arc<str>> {
        if id.kind == RuleKind::ClusterReplication {
            return self.namespaces.keys().cloned().collect();
        }
        let rule = self
            .rules
            .get(id)
            .and_then(|state| state.rule.as_ref().ok());
        let targets = rule.into_iter().flat_map(named_targets);
        let known = targets
            .filter_map(|name| self.namespaces.get_key_value(name))
            .map(|(name, _)| name);
        let strewn = self.consent.strewn.get(id).into_iter().flatten();
        known
            .chain(strewn)
            .cloned()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// Something about a rule has changed: the namespaces that it concerns are to be planned anew.
    pub(crate) fn replan_rule(&mut self, id: &RuleId) {
        if id.kind == RuleKind::ClusterReplication {
            return self.replan_all();
        }
        let mut places = self.places(id);
        // Of what is a source there more may be left alone, or less.
        let slots = self
            .rules
            .get(id)
            .into_iter()
            .flat_map(|state| state.slots.iter().flatten());
        let sources = slots
            .filter_map(|slot| self.slots.get(slot))
            .map(|slot| &*slot.source.namespace);
        let homes: BTreeSet<&str> = sources.collect();
        places.extend(
            homes
                .into_iter()
                .filter_map(|name| self.namespaces.get_key_value(name))
                .map(|(name, _)| name.clone()),
        );
        self.dirty.extend(places);
    }

    /// The same for every rule with this source, and for those whose selector found it: it may have
    /// no slot any more.
    pub(crate) fn replan_rules_of_source(&mut self, source: &SourceRef) {
        let mut rules: BTreeSet<Arc<RuleId>> = self
            .slots
            .of_source(source)
            .map(|(_, slot)| slot.rule.clone())
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

    /// What a namespace grants has changed.
    fn review_grants(&mut self, namespace: &str) {
        self.consent.usage_changed(namespace, self.now);
        self.consent
            .withdrawals
            .get_mut(namespace)
            .into_iter()
            .for_each(Withdrawal::forget_what_was_read);
        for id in self
            .consent
            .selecting
            .get(namespace)
            .cloned()
            .unwrap_or_default()
        {
            self.review_selectors(&id);
        }
        let readers = self
            .consent
            .readers
            .get(namespace)
            .cloned()
            .unwrap_or_default();
        self.review_readers(readers);
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
            self.consent.forget_lacks(id);
            self.mark_status_due(id);
        }
        if let Some((name, _)) = self.namespaces.get_key_value(namespace) {
            self.dirty.insert(name.clone());
        }
    }

    /// A namespace has come or gone, or has got other labels: what others grant its rules may be
    /// something else.
    pub(crate) fn review_home(&mut self, namespace: &str) {
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
                    .slots
                    .iter()
                    .flatten()
                    .filter(|id| self.slots.get(id).is_some_and(reads_abroad)),
            );
        }
        self.review_readers(readers);
        for id in ids {
            if let Some(rule) = self.rules.get(&id).and_then(RuleState::valid) {
                self.consent.usage_changed_by(rule, self.now);
            }
            self.review_selectors(&id);
            self.consent.forget_lacks(&id);
            self.mark_status_due(&id);
            self.replan_rule(&id);
        }
    }

    fn review_readers(&mut self, readers: BTreeSet<SlotId>) {
        let (mut changed, mut answers) = (Vec::new(), BTreeMap::new());
        for id in readers {
            let Some(slot) = self.slots.get(&id) else {
                continue;
            };
            let rule = slot.rule.clone();
            // The same for all targets, and for all rules of a namespace.
            let question = (rule.namespace.clone(), slot.source.clone());
            let granted = *answers
                .entry(question)
                .or_insert_with(|| self.may_read(&rule, &slot.source));
            self.consent.forget_lacks(&rule);
            if slot.granted != granted {
                changed.push(id);
                self.replan_rule(&rule);
            }
            if let Some(slot) = self.slots.get_mut(&id) {
                slot.granted = granted;
            }
        }
        if !changed.is_empty() {
            self.render_slots(changed);
            self.demand_changed();
        }
    }
}

/// The namespaces that a Replication targets.
pub(crate) fn named_targets(rule: &Rule) -> impl Iterator<Item = &str> {
    let local = rule.id.kind == RuleKind::Replication;
    let targets = rule.targets.iter().filter(move |_| local);
    targets
        .filter_map(|target| target.selection.exact_names())
        .flatten()
}

/// The namespaces in which a Replication looks for sources though it doesn't live there.
fn selected_abroad(rule: &Rule) -> impl Iterator<Item = &str> {
    let home = rule.id.namespace.as_deref();
    let namespaces = rule.selectors.iter().map(|selector| &*selector.namespace);
    namespaces.filter(move |namespace| home.is_some_and(|home| home != *namespace))
}

/// What a rule is given in a namespace.
pub(crate) enum Given<'a> {
    /// It is its own namespace, or the platform's rule.
    All,
    /// What these grants are about.
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
