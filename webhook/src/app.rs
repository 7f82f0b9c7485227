//! State that all hooks share.

use std::{sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use mimeo_engine::Index;
use mimeo_runtime::{
    call::{CallError, CallResult},
    discovery::Discovery,
    handle::Handle,
    named,
    trace::Traces,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use crate::{limits::Limits, metrics::Answers, permissions::Questions, policies::Policies};

/// State that all hooks share.
pub(crate) struct App {
    /// The engine: rules, namespaces and copies.
    pub(crate) handle: Handle,
    /// Client for reads that must come from the API server, not from a cache.
    pub(crate) client: Client,
    /// The kinds that the cluster serves.
    pub(crate) discovery: Arc<Discovery>,
    /// The `TransformPolicies`.
    pub(crate) policies: Arc<Policies>,
    /// Records one trace span per review.
    pub(crate) traces: Traces,
    /// Counters.
    pub(crate) metrics: Answers,
    /// Longest time that one request is held.
    pub(crate) pod_gate_wait: Duration,
    /// Room for held requests.
    pub(crate) held: Semaphore,
    /// Limits the concurrent reads of namespaces for the pod gate.
    pub(crate) reads: Semaphore,
    /// Limits the concurrent requests to the API server on behalf of reviews.
    pub(crate) questions: Questions,
    /// The limits of all reviews together.
    pub(crate) limits: Limits,
    /// The namespace in which Mimeo runs.
    pub(crate) own_namespace: String,
    /// Users that may change the pending label.
    pub(crate) mimeo_users: Vec<String>,
    /// The user of this program.
    pub(crate) username: String,
}

impl App {
    /// Reads the facts that the engine has observed.
    pub(crate) fn index<T>(&self, read: impl FnOnce(&Index) -> T) -> T {
        self.handle.look(|engine| read(engine.index()))
    }

    /// Reads the metadata of a namespace. Returns `None` if it does not exist.
    pub(crate) async fn read_namespace(
        &self,
        name: &str,
        deadline: Instant,
    ) -> CallResult<Option<ObjectMeta>> {
        let read = named::read_metadata(&self.client, "/api/v1/namespaces", name);
        let read = timeout_at(deadline, read).await;
        read.unwrap_or(Err(CallError::Late))
    }
}
