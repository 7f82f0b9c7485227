//! The state machine from outside: events come in, actions and reports leave.
//!
//! Each part does its own work. This file takes each event to the parts that it concerns, in order.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mimeo_model::{
    grant::{Grant, GrantStatus},
    id::{RuleId, RuleKind},
    kind::{GroupKind, GroupVersionKind, Resource},
    known::{Decoded, Known},
    outcome::{Outcome, Unreadable},
    refusal::Refused,
    rule::Rule,
    source::{SourceRef, SourceSelector},
};
use serde_json::Value;

use crate::{
    Action, Answer, CopyWatch, Demand, Effects, Effort, EventUpdate, GrantUpdate, HeldDeletion,
    Index, Inside, Job, Members, Notice, Numbers, Observed, Progress, Request, Settings,
    StatusUpdate, Webhooks, clock::Tick, view::Page, work::Timer,
};

/// The state machine: the observed state of the cluster, and all work in progress.
#[derive(Debug)]
pub struct Engine {
    index: Index,
    effects: Effects,
}

impl Engine {
    /// Creates an engine that has observed nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            index: Index {
                settings,
                ..Index::default()
            },
            effects: Effects::default(),
        }
    }

    /// Returns the observed facts.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Sets the clock, before the engine is given events or asked for work or reports. The clock
    /// never goes back.
    pub fn at(&mut self, now: Tick) -> &mut Self {
        self.index.now = self.index.now.max(now);
        self
    }

    /// Returns the time that [`Engine::at`] has set.
    pub fn now(&self) -> Tick {
        self.index.now
    }

    // ---- events: rules ----

    /// Records a rule with this spec; `observed` is the status that it carries.
    pub fn rule_applied(&mut self, id: RuleId, rule: Result<Rule, Refused>, observed: Observed) {
        self.index
            .rule_applied(id, rule, observed, &mut self.effects);
    }

    /// Records that a rule no longer exists according to its watch.
    pub fn rule_gone(&mut self, id: &RuleId) {
        self.index.rule_gone(id, &mut self.effects);
    }

    /// Records the state of the watch of these rules. A list has all rules of the kind.
    pub fn rules_known(&mut self, kind: RuleKind, known: Known<&BTreeSet<RuleId>>) {
        self.index.rules_known(kind, known, &mut self.effects);
    }

    // ---- events: grants ----

    /// Records a grant with this spec. A grant that can't be parsed grants nothing.
    pub fn grant_applied(
        &mut self,
        namespace: &str,
        name: &str,
        grant: Result<Grant, GrantStatus>,
    ) {
        self.index
            .grant_applied(namespace, name, grant, &mut self.effects);
    }

    /// Records that a grant does not exist any more according to its watch.
    pub fn grant_gone(&mut self, namespace: &str, name: &str) {
        self.index.grant_gone(namespace, name, &mut self.effects);
    }

    /// Records the state of the watch of grants. A list has the namespace and name of each grant.
    pub fn grants_known(&mut self, known: Known<&BTreeSet<(Box<str>, Box<str>)>>) {
        self.index.grants_are(known, &mut self.effects);
    }

    // ---- events: namespaces ----

    /// Records a namespace with this metadata, as its watch or a read shows it.
    pub fn namespace_applied(&mut self, meta: &ObjectMeta) {
        self.index.namespace_applied(meta, &mut self.effects);
    }

    /// Records that the watch of namespaces lost one. Nothing changes if a read has shown another
    /// namespace of its name since.
    pub fn namespace_deleted(&mut self, meta: &ObjectMeta) {
        self.index.namespace_deleted(meta, &mut self.effects);
    }

    /// Records that a namespace was deleted.
    pub fn namespace_gone(&mut self, name: &str) {
        self.index.namespace_gone(name, &mut self.effects);
    }

    /// Records that every namespace has been shown; `listed` has all of them.
    pub fn namespaces_listed(&mut self, listed: &BTreeSet<Box<str>>) {
        self.index.namespaces_listed(listed, &mut self.effects);
    }

    // ---- events: kinds ----

    /// Records the answer of discovery about a kind.
    pub fn kind(&mut self, gvk: &GroupVersionKind, served: Known<Resource>) {
        self.index.kind(gvk, served);
    }

    /// Records the kinds in the kinds `ConfigMap`, in the recorded versions. Copies of these may
    /// exist.
    pub fn kinds_recorded(&mut self, kinds: &BTreeSet<GroupVersionKind>) {
        self.index.kinds_recorded(kinds, &mut self.effects);
    }

    /// Records the nonce that the kinds `ConfigMap` carries, if it carries one. The held deletion
    /// with this nonce may go ahead.
    pub fn confirmed(&mut self, nonce: Option<&str>) {
        self.index.confirmed(nonce, &mut self.effects);
    }

    // ---- events: copies and sources ----

    /// Records that a listing of copies begins.
    pub fn copies_listing(&mut self, watch: &CopyWatch) {
        self.index.copies_listing(watch);
    }

    /// Records the state of a watch of copies. A list has its resourceVersion. Copies that it
    /// didn't show were absent then.
    pub fn copies_known(&mut self, watch: &CopyWatch, known: Known<u64>) {
        self.index.copies_known(watch, known, &mut self.effects);
    }

    /// Records an object that the watch of copies shows. The object has Mimeo's label, but Mimeo
    /// need not own it.
    pub fn copy_applied(&mut self, kind: &GroupKind, meta: &ObjectMeta) {
        self.index.copy_applied(kind, meta);
    }

    /// Records that the watch of copies lost an object: the object was deleted, or only its label
    /// was removed.
    pub fn copy_gone(&mut self, kind: &GroupKind, meta: &ObjectMeta) {
        self.index.copy_gone(kind, meta, &mut self.effects);
    }

    /// Records that a source exists, or that it doesn't. This comes from a watch, which reads a
    /// cache. So Mimeo confirms a deletion before it acts on it.
    pub fn source(&mut self, source: &SourceRef, object: Option<Decoded<Value>>) {
        self.index.source_shown(source, object, &mut self.effects);
    }

    /// Records that a source can't be read, until [`Engine::source`] says otherwise.
    pub fn source_unreadable(&mut self, source: &SourceRef, why: Unreadable) {
        self.index.source_unreadable(source, why);
    }

    /// Records the state of a selector's watch. A list has all objects that exist now.
    /// [`Engine::source`] shows each of them too, before or after this call.
    pub fn selected(&mut self, selector: &SourceSelector, known: Known<&Members>) {
        self.index.selected(selector, known, &mut self.effects);
    }

    // ---- events: the webhook ----

    /// Records the webhook's replicas, as their Leases show them.
    pub fn webhooks(&mut self, webhooks: Webhooks) {
        self.index.webhooks(webhooks, &mut self.effects);
    }

    /// Records that this replica set a pending label with this nonce. It writes the copies once its
    /// watch shows the new namespace, or the new labels of a namespace that existed before.
    pub fn issue(&mut self, nonce: &str) {
        self.index.issue(nonce);
    }

    /// Records that a pod waits in this namespace. This replica helps to write the copies, even if
    /// another replica set the pending label.
    pub fn take_charge(&mut self, namespace: &str) {
        self.index.take_charge(namespace);
    }

    // ---- work ----

    /// Returns the watches that are needed now, and forgets the state that only other watches could
    /// show.
    pub fn demand(&mut self) -> Demand {
        self.index.demand(&mut self.effects)
    }

    /// Returns the next work. `None`: there is none until an event arrives or [`Engine::wake_at`]
    /// is reached.
    pub fn next_action(&mut self) -> Option<Action> {
        self.fire();
        self.plan();
        if let Some(job) = self.next_job() {
            return Some(job);
        }
        while let Some(copy) = self.effects.work.pop() {
            if let Some(request) = self.index.request(&copy, &mut self.effects) {
                return Some(Action::Request(Box::new(request)));
            }
            // A repair that is put off has changed the situation.
            self.plan();
        }
        let work = &mut self.effects.work;
        if work.untidy && self.index.now < work.tidy_after {
            work.timer(work.tidy_after, Timer::Tidy);
        } else if work.untidy {
            self.index.tidy(&mut self.effects);
            self.effects.work.untidy = false;
        }
        self.next_job()
    }

    fn next_job(&mut self) -> Option<Action> {
        let job = self.index.next_job(&mut self.effects)?;
        Some(Action::Job(Box::new(job)))
    }

    /// Plans every namespace that changed.
    fn plan(&mut self) {
        while let Some(name) = self.index.dirty.pop_first() {
            self.index.plan(&name, &mut self.effects);
        }
    }

    /// Acts on the timers that are due.
    fn fire(&mut self) {
        while let Some(timer) = self.effects.work.pop_timer(self.index.now) {
            self.index.go_off(timer, &mut self.effects);
        }
    }

    /// Returns when to call [`Engine::next_action`] again even if no event arrives.
    pub fn wake_at(&self) -> Option<Tick> {
        self.effects.work.wake_at()
    }

    /// Takes in the answer to a request.
    pub fn outcome(&mut self, request: &Request, outcome: Outcome) {
        self.index.outcome(request, outcome, &mut self.effects);
    }

    /// Takes back a request that was never sent, if its copy now wants another one. Returns true in
    /// that case.
    pub(crate) fn withdraw_outdated(&mut self, request: &Request) -> bool {
        self.index.withdraw_outdated(request)
    }

    /// Takes in the answer to a job. An answer that no longer counts changes nothing.
    pub fn answered(&mut self, job: &Job, answer: Answer) {
        self.index.answered(job, answer, &mut self.effects);
    }

    /// Keeps the engine of a standby small. It acts on due timers and forgets state that has ended.
    /// It plans nothing, because the plan would be out of date by the time the standby may act.
    pub fn rest(&mut self) {
        self.fire();
        self.effects.events.forget();
        self.effects.changes.forget();
        self.effects.notices.clear();
        self.index.rest();
    }

    // ---- reports ----

    /// Returns the copies that still hold the pods of a namespace.
    pub fn progress(&mut self, namespace: &str) -> Progress {
        self.plan();
        self.index.progress(namespace)
    }

    /// Returns the statuses that are due, as of the time `wall`.
    pub fn statuses(&mut self, wall: Timestamp) -> Vec<StatusUpdate> {
        self.plan();
        let due = self.index.due_statuses();
        let tallies = self.index.tallies(due, &mut self.effects.effort);
        let changes = &mut self.effects.changes;
        tallies
            .into_iter()
            .filter_map(|(id, tally)| self.index.status(&id, tally, wall, changes))
            .collect()
    }

    /// Records that a status could not be written.
    pub fn status_failed(&mut self, id: &RuleId) {
        self.index.status_failed(id);
    }

    /// Returns the statuses of grants that must be written now.
    pub fn grant_statuses(&mut self) -> Vec<GrantUpdate> {
        self.index.grant_statuses()
    }

    /// Records that a grant's status could not be written.
    pub fn grant_status_failed(&mut self, namespace: &str, name: &str) {
        self.index.grant_status_failed(namespace, name);
    }

    /// Returns the Events to write now.
    pub fn event_updates(&mut self) -> Vec<EventUpdate> {
        self.effects.events.event_updates(&self.index)
    }

    /// When [`Engine::event_updates`] has Events to write.
    pub fn events_due(&self) -> Option<Tick> {
        self.effects.events.next_due()
    }

    /// Returns what the caller logs and measures, since the last call. A copy reports the same
    /// failure only once.
    pub fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.effects.notices)
    }

    /// Returns the held deletions of rules that no longer exist, those of `ClusterReplication`s
    /// first. They have no status in which a user could read them.
    pub fn held(&self) -> impl Iterator<Item = HeldDeletion<'_>> {
        self.index.held_of_gone()
    }

    /// Returns all numbers for metrics.
    pub fn numbers(&self) -> Numbers {
        Numbers::of(&self.index, &self.effects)
    }

    /// Returns the contents of the engine. This goes over every copy, so it is not for each scrape.
    pub fn inside(&self) -> Inside {
        Inside::of(&self.index, &self.effects)
    }

    /// Returns the facts that the page shows; `wall` is the present time.
    pub fn page(&self, wall: Timestamp) -> Page<'_> {
        Page {
            index: &self.index,
            changes: &self.effects.changes,
            wall,
        }
    }

    /// Decides about every copy again. Returns the copies whose stored verdict is out of date.
    /// While a timer is due, all may be. For tests.
    pub fn outdated_verdicts(&self) -> Vec<String> {
        if self.wake_at().is_some_and(|due| due <= self.index.now) {
            return Vec::new();
        }
        self.index.outdated_verdicts()
    }

    /// How much the engine has done so far. For tests.
    pub fn effort(&self) -> Effort {
        self.effects.effort
    }
}
