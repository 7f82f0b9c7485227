//! `--leader-label`: labels the leader's Pod, so that a Service can select the leader.
//!
//! Each new leader takes the label off all other Pods first: the former leader may have been killed.
//! The label decides nothing. Only the Lease elects the leader.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use mimeo_model::names::{LEADER, LEADER_VALUE};
use mimeo_runtime::{
    backoff::Backoff,
    fault::{Fault, within},
    identity::Identity,
    named,
};
use serde_json::json;
use tokio::{sync::watch, time::sleep};
use tracing::{info, warn};

/// Time limit of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The flag of the label.
#[derive(Debug, clap::Args)]
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
        let pods = Api::namespaced(client, &identity.namespace);
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
        while let Err(error) = within(TIMEOUT, label(&pods, &identity.replica)).await {
            warn!(error = %Fault(&error), "leader label not set, retrying");
            sleep(backoff.pause()).await;
        }
        info!(pod = identity.replica, "leader label set");
    }
}

/// Moves the label to this Pod.
async fn label(pods: &Api<Pod>, leader: &str) -> kube::Result<()> {
    let labelled = ListParams::default().labels(LEADER);
    for pod in pods.list_metadata(&labelled).await? {
        let name = pod.metadata.name.unwrap_or_default();
        if name != leader {
            match patch(pods, &name, None).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                outcome => outcome?,
            }
        }
    }
    patch(pods, leader, Some(LEADER_VALUE)).await
}

async fn patch(pods: &Api<Pod>, name: &str, value: Option<&str>) -> kube::Result<()> {
    let change = Patch::Merge(json!({"metadata": {"labels": {LEADER: value}}}));
    named::patch(pods, name, &PatchParams::default(), &change).await?;
    Ok(())
}
