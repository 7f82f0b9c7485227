//! Everything that was observed of the cluster, with the verdicts about its copies.
//!
//! All decisions are methods of [`Index`] with `&self`: they see facts and nothing else. They have
//! no access to the queue, to jobs, to timers or to reports, so they cannot have effects on these.
//! [`Engine`](crate::Engine) takes events in, and has all effects.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_model::{
    id::{RuleId, RuleKind},
    known::Watched,
    outcome::Unreadable,
    reach::Reach,
    source::{SourceRef, SourceSelector},
};

use crate::{
    Settings, Webhooks, absent::Absence, clock::Tick, consent, jobs::JobKey, kinds, losses,
    namespaces::Namespace, projection::Projections, rules::RuleState, select, sources::SourceState,
};

/// The observed state of the cluster. By default, nothing was observed yet.
#[derive(Debug, Default)]
pub struct Index {
    pub(crate) settings: Settings,
    pub(crate) rules: BTreeMap<Arc<RuleId>, RuleState>,
    /// The watches of rules, by kind, each from its first event on.
    pub(crate) rule_watches: BTreeMap<RuleKind, Watched>,
    /// The highest resourceVersion at which a generation of a `ClusterReplication` was first seen.
    pub(crate) newest_spec: u64,
    /// The missing rules, sources and grants that verdicts depend on, each by the job that reads it.
    pub(crate) absences: BTreeMap<JobKey, Absence>,
    pub(crate) consent: consent::Consent,
    /// The copies that rules have lost without a read that confirms it.
    pub(crate) losses: losses::Losses,
    /// Each value has its own allocation, because each plan takes one value out and puts it back.
    /// The nodes of a map also have room for twice as many values as they hold.
    pub(crate) namespaces: BTreeMap<Arc<str>, Box<Namespace>>,
    pub(crate) namespaces_listed: bool,
    /// The sources that rules name, and those that their selectors find. A source that a selector
    /// no longer finds stays here as long as copies of it exist.
    pub(crate) sources: BTreeMap<SourceRef, SourceState>,
    pub(crate) selectors: BTreeMap<SourceSelector, select::SelectorState>,
    /// The sources that copies name in their annotations, by the hash of the reference.
    pub(crate) origins: BTreeMap<u64, SourceRef>,
    /// Sources that can't be read now. The state from the last successful read stays valid
    /// meanwhile.
    pub(crate) unreadable: BTreeMap<SourceRef, Unreadable>,
    pub(crate) kinds: kinds::Kinds,
    pub(crate) projections: Projections,
    /// The number of observations of copies so far.
    pub(crate) shown: u64,
    /// Namespaces with changed facts, which must be planned again.
    pub(crate) dirty: BTreeSet<Arc<str>>,
    /// The nonces of pending labels that this webhook replica has set and not seen in its watch yet.
    pub(crate) issued: BTreeSet<Box<str>>,
    pub(crate) webhooks: Webhooks,
    /// When a webhook began to run without a break.
    pub(crate) webhooks_since: Tick,
    /// The number of changes to the set of needed watches.
    pub(crate) demand_version: u64,
    /// The present time, as the caller has set it for this event or question.
    pub(crate) now: Tick,
}

impl Index {
    /// The namespaces and kinds in which Mimeo acts.
    pub fn reach(&self) -> &Reach {
        &self.settings.reach
    }

    pub(crate) fn replan_all(&mut self) {
        self.dirty.extend(self.namespaces.keys().cloned());
    }
}
