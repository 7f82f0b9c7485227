//! State that all hooks share.

use std::{sync::Arc, time::Duration};

use kube::Client;
use mimeo_model::meta::Uid;
use mimeo_runtime::{discovery::Discovery, handle::Handle, trace::Traces};
use tokio::sync::Semaphore;

use crate::{
    limits::Limits, metrics::Answers, paced::Paced, permissions::Questions, policies::Policies,
};

/// State that all hooks share.
pub(crate) struct App {
    /// Rules, namespaces and copies.
    pub(crate) handle: Handle,
    /// For reads that no cache may answer.
    pub(crate) client: Client,
    /// Which kinds there are.
    pub(crate) discovery: Arc<Discovery>,
    /// The policies.
    pub(crate) policies: Arc<Policies>,
    /// Receives a span of each review.
    pub(crate) traces: Traces,
    /// Counters.
    pub(crate) metrics: Answers,
    /// How long one request may be held.
    pub(crate) pod_gate_wait: Duration,
    /// Room for held requests.
    pub(crate) held: Semaphore,
    /// Permits to read namespaces for the pod gate.
    pub(crate) reads: Semaphore,
    /// Questions to the API server under way.
    pub(crate) questions: Questions,
    /// The limits of all reviews together.
    pub(crate) limits: Limits,
    /// When it was last logged that there was no room for a review.
    pub(crate) no_room: Paced,
    /// When it was last logged that a review could not be read.
    pub(crate) no_review: Paced,
    /// Where Mimeo itself runs.
    pub(crate) own_namespace: String,
    /// Users who may change the mark.
    pub(crate) mimeo_users: Vec<String>,
    /// The one that this program is.
    pub(crate) username: String,
}

/// A namespace as the API server stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Live {
    /// It waits for copies.
    Marked(Uid),
    /// It doesn't, or doesn't exist: whether it was deleted or never was, the API server will say.
    Unmarked,
    /// The API server did not answer.
    Unknown,
}
