//! The state machine that both programs drive: *event → index → plan → write → outcome → status*.
//!
//! It never waits and never reads a clock: [`Engine::at`] sets the time of the next events, and
//! requests leave as values. The reconciler runs the engine as [`Role::Keeper`] over every
//! namespace. The webhook runs it as [`Role::Injector`] over the few namespaces that wait for their
//! first copies. Both programs use the same decisions about copies, so they cannot disagree.
//!
//! Decisions are methods of [`Index`] with `&self`. A method with effects takes `&mut Effects`.
//! [`Engine`] is the surface for the programs.
//!
//! - `index`: all observed facts, and the verdicts about copies
//! - `world`: the observed rules, kinds, namespaces and copies, and the watches that they need
//! - `sources`: the objects that rules copy
//! - `rights`: whether a rule has the permissions and grants that it needs
//! - `copies`: from a changed namespace to a request, and from its answer back to the state
//! - `jobs`: questions and small writes that concern no single copy
//! - `removal`: why Mimeo may delete a copy
//! - `pod_gate`: namespaces that wait for their copies
//! - `report`: statuses, Events, numbers and views for users
//! - `quota`: how many Replications of one namespace count
//! - `snapshot`: one reading of the cluster, for `kubectl mimeo`

pub mod admission;
pub mod author;
pub mod clock;
mod copies;
pub mod copy;
mod effects;
mod engine;
mod index;
mod jobs;
mod pod_gate;
pub mod projection;
mod quota;
mod removal;
mod report;
mod rights;
mod snapshot;
mod sources;
mod world;

use std::time::Duration;

pub use self::{
    absent::{Home, Presence},
    copy_watches::CopyWatch,
    demand::Demand,
    effects::Effort,
    engine::Engine,
    events::{EventReason, EventUpdate},
    index::Index,
    jobs::{Answer, Job, Task},
    members::{Member, Members},
    missing_grants::MissingGrant,
    numbers::{CopyNumbers, Inside, Numbers, Queued},
    pending::{HeldCopy, HeldDeletion},
    pod_gate::{AwaitedCopy, Progress},
    preview::{Contest, Preview},
    request::{Request, Verb},
    snapshot::{Question, Snapshot},
    status::{Observed, StatusUpdate, Webhooks},
    usage::GrantUpdate,
    verdict::Outlook,
    view::{CopyView, Cursor, Ended, NamespaceView, Page, PlaceView, RuleView, State, View},
    withdrawn::GrantsRead,
    work::{Action, FailedCopy, Notice},
};
use self::{
    copies::{blocked, request, verdict, wants, work},
    effects::Effects,
    removal::{absent, losses, pending, withdrawn},
    report::{conditions, events, numbers, preview, status, tally, trouble, view},
    rights::{authorized, consent, grants, missing_grants, usage},
    sources::{members, select},
    world::{copy_watches, demand, kinds, namespaces, rules},
};
use self::{kinds::KindState, namespaces::Namespace, rules::RuleState, sources::SourceState};
use mimeo_model::{reach::Reach, role::Role};

/// The settings of one engine, from flags or from the cluster.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The role: reconciler or webhook.
    pub role: Role,
    /// Uid of the namespace `kube-system`. It identifies this cluster.
    pub cluster: Box<str>,
    /// How long the reconciler leaves a namespace with the pending label to the webhook.
    pub takeover: Duration,
    /// How long unconfirmed losses of copies are collected before the first of these copies is
    /// deleted.
    pub deletion_delay: Duration,
    /// The smallest number of lost copies that can hold a deletion. The losses must also be half of
    /// the rule's copies.
    pub deletion_limit: usize,
    /// How long a released copy still counts as a loss, from the time of its release for deletion.
    pub deletion_window: Duration,
    /// How long pods may be held under `podGate: BestEffort`, from the time of the pending label.
    pub budget: Duration,
    /// The back-off after a first failure. It doubles with each failure, up to `backoff_limit`.
    pub backoff: Duration,
    /// The longest back-off.
    pub backoff_limit: Duration,
    /// The namespaces and kinds in which Mimeo acts.
    pub reach: Reach,
}

impl Default for Settings {
    /// The default settings of a reconciler, for a cluster without an identity.
    fn default() -> Self {
        Self {
            role: Role::Keeper,
            cluster: Box::default(),
            takeover: Duration::from_secs(2),
            deletion_delay: Duration::from_secs(10),
            deletion_limit: 20,
            deletion_window: Duration::from_mins(10),
            budget: Duration::from_secs(10),
            backoff: Duration::from_millis(250),
            backoff_limit: Duration::from_mins(5),
            reach: Reach::default(),
        }
    }
}

impl Settings {
    /// Returns the default settings for a role and a cluster.
    pub fn new(role: Role, cluster: impl Into<Box<str>>) -> Self {
        Self {
            role,
            cluster: cluster.into(),
            ..Self::default()
        }
    }

    /// True in the reconciler: it watches all copies, keeps them right, and deletes them. The
    /// webhook watches none. It only writes the copies of namespaces with the pending label.
    pub(crate) fn keeps_copies(&self) -> bool {
        self.role == Role::Keeper
    }
}
