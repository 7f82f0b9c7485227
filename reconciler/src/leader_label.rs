//! `--leader-label`: labels the leader's Pod, so that a Service can select the leader.
//!
//! Each new leader takes the label off all other Pods, because a former leader may have been killed.
//! The label decides nothing. Only the Lease elects the leader.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client, Resource,
    core::{ObjectList, PartialObjectMeta},
};
use mimeo_model::names::{LEADER, LEADER_VALUE};
use mimeo_runtime::{
    backoff::Backoff,
    call::{self, CallError, CallResult, DEADLINE, METADATA_LIST, encode},
    identity::Identity,
    named,
};
use serde_json::json;
use tokio::{sync::watch, time::sleep};
use tracing::{info, warn};

use crate::PROGRAM;

/// The flag of the label.
#[derive(clap::Args)]
#[command(next_help_heading = "Leader election")]
pub(crate) struct LabelArgs {
    /// Set label mimeo.dev/leader on the leader's Pod, for a Service; takes the permission to list
    /// and patch Pods of Mimeo's namespace
    #[arg(long, env = "MIMEO_LEADER_LABEL")]
    leader_label: bool,
}

impl LabelArgs {
    /// Waits until this replica leads, and then moves the label to its Pod. A failure is tried
    /// again.
    pub(crate) async fn follow(
        self,
        client: Client,
        identity: Identity,
        mut leading: watch::Receiver<bool>,
    ) {
        if !self.leader_label || leading.wait_for(|leads| *leads).await.is_err() {
            return;
        }
        let pods = Pod::url_path(&(), Some(&identity.namespace));
        let mut backoff = Backoff::default();
        while let Err(error) = label(&client, &pods, &identity.replica).await {
            warn!(%error, "leader label not moved, retrying");
            sleep(backoff.pause()).await;
        }
        info!(pod = identity.replica, "leader label set");
    }
}

/// Sets the label on this Pod, and then takes it off all others. `pods` is the path of all Pods of
/// the namespace.
async fn label(client: &Client, pods: &str, leader: &str) -> CallResult<()> {
    patch(client, pods, leader, Some(LEADER_VALUE)).await?;
    let labelled = format!("{pods}?labelSelector={}", encode(LEADER));
    let found: Option<ObjectList<PartialObjectMeta<Pod>>> =
        call::get(client, &labelled, METADATA_LIST, DEADLINE).await?;
    let found = found.into_iter().flat_map(|found| found.items);
    let names = found.filter_map(|pod| pod.metadata.name);
    let mut done = Ok(());
    for name in names.filter(|name| name != leader) {
        match patch(client, pods, &name, None).await {
            Err(CallError::NotFound) => {}
            patched => done = done.and(patched),
        }
    }
    done
}

/// Sets the label of a Pod, or takes it off.
async fn patch(client: &Client, pods: &str, name: &str, value: Option<&str>) -> CallResult<()> {
    let change = json!({"metadata": {"labels": {LEADER: value}}});
    named::merge(client, pods, name, PROGRAM, &change).await
}
