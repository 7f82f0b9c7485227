//! The state machine that both programs drive: *event → index → plan → write → outcome → status*.
//!
//! It never waits and never reads a clock: events and answers come in with the time, requests go
//! out as values. The reconciler runs it as [`Role::Keeper`] over every namespace, the webhook as
//! [`Role::Injector`] over the few that are waiting for their first copies. What is decided about a
//! cell is decided here, once, for both.
//!
//! - `world`: what the cluster shows of rules, kinds, namespaces and copies, and what must be
//!   watched for it
//! - `sources`: what rules copy
//! - `rights`: whether a rule may do what it says
//! - `cells`: from a namespace in which something changed to a request, and back
//! - `jobs`: questions and small writes that are about no copy
//! - `removal`: why a copy may go
//! - `pod_gate`: namespaces that wait for their copies
//! - `report`: what people are told
//! - `quota`: how many objects of one namespace count

pub mod admission;
pub mod author;
pub mod cell;
mod cells;
pub mod clock;
mod jobs;
mod pod_gate;
mod quota;
mod removal;
mod report;
mod rights;
pub mod slot;
mod sources;
mod world;

use std::{
    cell::Cell as Counter,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

pub use self::{
    absent::{Home, RuleRead, SourceRead},
    announce::{Announcement, EventReason},
    demand::Demand,
    issued::Awaited,
    jobs::{Answer, Job, Task},
    members::{Member, Members},
    numbers::{CopyNumbers, Durations, Inside, Numbers, Queued},
    pod_gate::{AwaitedCopy, Progress},
    preview::{Contest, Preview},
    request::{Request, Ticket, Verb},
    sources::Shown,
    status::{Observed, StatusUpdate, Webhooks},
    survey::CopyWatch,
    sweep::HeldDeletion,
    usage::GrantUpdate,
    view::{CopyView, Cursor, Ended, NamespaceView, PlaceView, RuleView, State, View},
    withdrawn::GrantsRead,
    work::{Action, Notice},
};
use self::{
    cells::{hindrance, request, verdict, wants, work},
    pod_gate::issued,
    removal::{absent, collect, disposal, losses, sweep, withdrawn},
    report::{announce, census, conditions, numbers, preview, status, tally, trouble, view},
    rights::{authorized, consent, grants, lacks, usage},
    sources::{follow, members, select},
    world::{demand, kinds, namespaces, record, rules, survey},
};
use self::{
    kinds::{KindState, Served},
    namespaces::Namespace,
    rules::RuleState,
    sources::SourceState,
};
use mimeo_model::{
    id::{RuleId, RuleKind},
    outcome::Unreadable,
    reach::Reach,
    role::Role,
    source::{SourceRef, SourceSelector},
};

use crate::{clock::Tick, slot::Slots};

/// What an operator, or the cluster, decides.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the engine is for.
    pub role: Role,
    /// Uid of the namespace `kube-system`: tells this cluster from others.
    pub cluster: Box<str>,
    /// How long the webhook may take over a marked namespace before the reconciler does it.
    pub takeover: Duration,
    /// How long losses that nobody confirmed are collected before the first delete.
    pub sweep: Duration,
    /// Losses of at least this many copies that take half of a rule's copies are held.
    pub sweep_limit: usize,
    /// How long a loss counts, from when its copy was let go.
    pub sweep_window: Duration,
    /// How long a namespace's pods may be held under `podGate: BestEffort`, from its mark on.
    pub budget: Duration,
    /// First back-off after a failure; doubles up to `backoff_limit`.
    pub backoff: Duration,
    /// Longest back-off.
    pub backoff_limit: Duration,
    /// Where it acts.
    pub reach: Reach,
}

impl Settings {
    /// The defaults, for a role and a cluster.
    pub fn new(role: Role, cluster: impl Into<Box<str>>) -> Self {
        Self {
            role,
            cluster: cluster.into(),
            takeover: Duration::from_secs(2),
            sweep: Duration::from_secs(10),
            sweep_limit: 20,
            sweep_window: Duration::from_mins(10),
            budget: Duration::from_secs(10),
            backoff: Duration::from_millis(250),
            backoff_limit: Duration::from_mins(5),
            reach: Reach::default(),
        }
    }
}

/// The world as far as it is known, and what is under way.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    rules: BTreeMap<Arc<RuleId>, RuleState>,
    collections: PerKind<rules::Collection>,
    /// Rules that copies name but that don't exist.
    gone: BTreeMap<Arc<RuleId>, absent::Gone>,
    consent: consent::Consent,
    /// By their namespaces, those that are held.
    replications: BTreeMap<Box<str>, quota::Replications>,
    sweeps: losses::Sweeps,
    /// How many cells were looked at for these.
    reviewed: Counter<u64>,
    /// What a person confirmed on the kinds `ConfigMap`.
    confirmed: Option<Box<str>>,
    /// Each by itself: in the nodes of a map there is room for twice as many as there are, and each
    /// plan takes one out and puts it back.
    namespaces: BTreeMap<Arc<str>, Box<Namespace>>,
    namespaces_listed: bool,
    /// What rules name, and what their selectors find. Of the latter also what they have found and
    /// don't any more, for as long as copies of it are there.
    sources: BTreeMap<SourceRef, SourceState>,
    selectors: BTreeMap<SourceSelector, select::Findings>,
    /// Those that are to be listed anew.
    relist: BTreeSet<SourceSelector>,
    /// What copies say that they were copied from, by its hash.
    origins: BTreeMap<u64, SourceRef>,
    /// Sources that can't be read now. What was last read of them holds meanwhile.
    unreadable: BTreeMap<SourceRef, Unreadable>,
    kinds: kinds::Kinds,
    slots: Slots,
    /// How much was shown of copies.
    shown: u64,
    work: work::Work,
    jobs: jobs::Jobs,
    dirty: BTreeSet<Arc<str>>,
    /// How often a namespace was planned.
    planned: u64,
    /// What is being counted for statuses.
    census: Option<census::Census>,
    /// How many cells were looked at for that.
    counted: u64,
    marks: pod_gate::Marks,
    lags: numbers::Lags,
    webhooks: Webhooks,
    /// Since when there is one without a break.
    webhooks_since: Tick,
    notices: Vec<Notice>,
    news: announce::News,
    changes: view::Changes,
    demand_version: u64,
    now: Tick,
}

/// Whether all objects of one of Mimeo's own kinds are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listing {
    #[default]
    Unknown,
    /// The server doesn't serve the kind.
    Unserved,
    /// It won't say, until somebody mends that.
    Unreadable(Unreadable),
    /// Each was shown once.
    Listed,
}

/// Something for each kind of rules.
#[derive(Debug, Default)]
struct PerKind<T> {
    cluster: T,
    local: T,
}

impl<T> std::ops::Index<RuleKind> for PerKind<T> {
    type Output = T;

    fn index(&self, kind: RuleKind) -> &T {
        match kind {
            RuleKind::ClusterReplication => &self.cluster,
            RuleKind::Replication => &self.local,
        }
    }
}

impl<T> std::ops::IndexMut<RuleKind> for PerKind<T> {
    fn index_mut(&mut self, kind: RuleKind) -> &mut T {
        match kind {
            RuleKind::ClusterReplication => &mut self.cluster,
            RuleKind::Replication => &mut self.local,
        }
    }
}

impl Engine {
    /// Knows nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            rules: BTreeMap::new(),
            collections: PerKind::default(),
            gone: BTreeMap::new(),
            consent: consent::Consent::default(),
            replications: BTreeMap::new(),
            sweeps: losses::Sweeps::default(),
            reviewed: Counter::new(0),
            confirmed: None,
            namespaces: BTreeMap::new(),
            namespaces_listed: false,
            sources: BTreeMap::new(),
            selectors: BTreeMap::new(),
            relist: BTreeSet::new(),
            origins: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            kinds: kinds::Kinds::default(),
            slots: Slots::default(),
            shown: 0,
            work: work::Work::default(),
            jobs: jobs::Jobs::default(),
            dirty: BTreeSet::new(),
            planned: 0,
            census: None,
            counted: 0,
            marks: pod_gate::Marks::default(),
            lags: numbers::Lags::default(),
            webhooks: Webhooks::default(),
            webhooks_since: Tick::ZERO,
            notices: Vec::new(),
            news: announce::News::default(),
            changes: view::Changes::default(),
            demand_version: 0,
            now: Tick::ZERO,
        }
    }

    /// Where it acts.
    pub fn reach(&self) -> &Reach {
        &self.settings.reach
    }

    /// Moves the clock; it never goes back.
    fn at(&mut self, now: Tick) {
        self.now = self.now.max(now);
    }

    fn replan_all(&mut self) {
        self.dirty.extend(self.namespaces.keys().cloned());
    }
}
