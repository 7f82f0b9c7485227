//! A sign of life of this replica: a Lease that the replica renews.
//!
//! The Lease's annotations say which rules the replica has seen, and whether another client keeps
//! changing its hooks. Readers measure how long they have seen no change of a Lease. After a replica
//! was killed its Lease expires for them, and exists until its owner is deleted.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::Lease,
    apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference},
};
use kube::Resource;
use mimeo_model::names;
use mimeo_runtime::{
    backoff::Backoff,
    call::{self, APPLY, METADATA},
    client::Clients,
    handle::Handle,
    identity::Identity,
    shutdown::CancellationToken,
};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tracing::warn;

use crate::register::MANAGER;

/// Interval between renewals.
const PERIOD: Duration = Duration::from_secs(5);
/// Seconds for which a killed replica counts as alive: three intervals. During that time Mimeo does
/// not report a new rule as in force.
const LIFE: i32 = 15;
/// Least time between two writes, regardless of how often the annotations change.
const SPACING: Duration = Duration::from_secs(1);
/// For one request.
const DEADLINE: Duration = Duration::from_secs(5);

/// Renews this replica's Lease until the shutdown, then deletes it. The garbage collector deletes
/// the Lease together with `owner`, even if the replica was killed.
///
/// A new spec of a rule, or another value of `contested`, is written at once. Mimeo writes the
/// statuses of rules often and nothing waits for them here, so the next renewal reports them.
///
/// Needs the permissions `create`, `patch` and `delete` on Leases.
pub(crate) async fn beat(
    clients: &Clients,
    identity: &Identity,
    owner: Option<OwnerReference>,
    handle: &Handle,
    mut contested: watch::Receiver<Option<String>>,
    shutdown: &CancellationToken,
) {
    let name = format!("mimeo-webhook-{}", identity.replica);
    let leases = Lease::url_path(&(), Some(&identity.namespace));
    let (client, path) = (&clients.requests, format!("{leases}/{name}"));
    let renewing = async {
        let since = MicroTime(Timestamp::now());
        // One request creates or changes the Lease, regardless of its present content: only this
        // replica uses the name.
        let uri = format!("{path}?force=true&fieldManager={MANAGER}");
        let mut backoff = Backoff::new(SPACING, DEADLINE);
        loop {
            let written = Instant::now();
            let (spec, version) = handle.look(|engine| {
                let index = engine.index();
                (index.newest_spec(), index.newest_rule())
            });
            let mut annotations = json!({names::SEEN: version.to_string()});
            if let Some(told) = &*contested.borrow_and_update() {
                annotations[names::CONTESTED] = json!(told);
            }
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": name,
                    "labels": {names::REPLICA: names::REPLICA_WEBHOOK},
                    "annotations": annotations,
                    "ownerReferences": owner.as_slice(),
                },
                "spec": {
                    "holderIdentity": identity.replica,
                    "leaseDurationSeconds": LIFE,
                    "acquireTime": since,
                    "renewTime": MicroTime(Timestamp::now()),
                },
            });
            let request = call::write(Method::PATCH, &uri, METADATA, APPLY, lease.to_string());
            if let Err(error) = call::exchange::<IgnoredAny>(client, request, DEADLINE).await {
                warn!(lease = name, %error, "failed to write the heartbeat, retrying");
                sleep(backoff.pause()).await;
                continue;
            }
            backoff.reset();
            sleep_until(written + SPACING).await;
            tokio::select! {
                () = handle.until(|engine| engine.index().newest_spec() > spec) => {}
                _ = contested.changed() => {}
                () = sleep_until(written + PERIOD) => {}
            }
        }
    };
    shutdown.run_until_cancelled(renewing).await;
    if let Err(error) = call::delete(client, &path, DEADLINE).await {
        warn!(lease = name, %error, "failed to delete the heartbeat");
    }
}
