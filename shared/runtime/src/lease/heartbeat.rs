//! A sign of life of each replica.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference},
};
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams},
};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};
use tracing::warn;

use super::whole_seconds;
use crate::{
    backoff::Backoff,
    client::Clients,
    fault::{Fault, status, within},
};

/// Between two writes, however much there is to say.
const SPACING: Duration = Duration::from_secs(1);
/// Of a request.
const DEADLINE: Duration = Duration::from_secs(5);

/// Of what a heartbeat's Lease is made.
#[derive(Debug, Clone)]
pub struct HeartbeatSpec {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease, this replica's alone.
    pub name: String,
    /// This replica.
    pub holder: String,
    /// By which readers find the Lease.
    pub labels: BTreeMap<String, String>,
    /// With which the Lease goes, be it that nobody told the replica to stop.
    pub owner: Option<OwnerReference>,
    /// Between renewals; the Lease's duration is three times as long.
    pub period: Duration,
    /// Server-side apply's field manager.
    pub field_manager: String,
}

/// A replica's own Lease, renewed as long as this lives and deleted by [`stop`](Self::stop).
/// Readers judge a Lease by how long they have seen no change of it; one whose replica was killed
/// counts for nothing, and stays until its owner is gone.
///
/// Needs the verbs `create`, `patch` and `delete` on Leases.
#[derive(Debug)]
pub struct Heartbeat {
    annotations: watch::Sender<BTreeMap<String, String>>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Heartbeat {
    /// Writes the Lease at once and then on each period.
    pub fn start(clients: &Clients, spec: HeartbeatSpec) -> Self {
        let api = Api::namespaced(clients.requests.clone(), &spec.namespace);
        let (annotations, wanted) = watch::channel(BTreeMap::new());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(Renewal { api, spec }.run(wanted, stopped));
        Self {
            annotations,
            stop,
            task,
        }
    }

    /// Sets one annotation, or removes it, promptly; several changes within a second are one write.
    pub fn annotate(&self, key: &str, value: Option<&str>) {
        self.annotations.send_if_modified(|annotations| {
            let former = match value {
                Some(value) => annotations.insert(key.to_owned(), value.to_owned()),
                None => annotations.remove(key),
            };
            former.as_deref() != value
        });
    }

    /// Sets one annotation that nobody is in a hurry for: it goes along with the next renewal.
    pub fn annotate_later(&self, key: &str, value: &str) {
        self.annotations.send_if_modified(|annotations| {
            annotations.insert(key.to_owned(), value.to_owned());
            false
        });
    }

    /// Stops renewing and deletes the Lease.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// What renews it, in a task of its own.
struct Renewal {
    api: Api<Lease>,
    spec: HeartbeatSpec,
}

impl Renewal {
    async fn run(
        self,
        mut wanted: watch::Receiver<BTreeMap<String, String>>,
        mut stop: oneshot::Receiver<()>,
    ) {
        tokio::select! {
            told = &mut stop => if told.is_ok() { self.delete().await },
            // Dropped without being told to stop: like a killed process, it leaves the Lease to
            // expire.
            () = self.beat(&mut wanted) => {}
        }
    }

    async fn beat(&self, wanted: &mut watch::Receiver<BTreeMap<String, String>>) {
        let mut backoff = Backoff::new(SPACING, DEADLINE);
        let since = Timestamp::now();
        loop {
            let written = Instant::now();
            let lease = self.lease(wanted.borrow_and_update().clone(), since, Timestamp::now());
            if let Err(error) = within(DEADLINE, self.apply(&lease)).await {
                warn!(lease = self.spec.name, error = %Fault(&error), "failed to write the heartbeat, retrying");
                sleep(backoff.pause()).await;
                continue;
            }
            backoff.reset();
            sleep_until(written + SPACING).await;
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                () = sleep_until(written + self.spec.period) => {}
            }
        }
    }

    fn lease(
        &self,
        annotations: BTreeMap<String, String>,
        since: Timestamp,
        now: Timestamp,
    ) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(self.spec.name.clone()),
                labels: Some(self.spec.labels.clone()),
                annotations: Some(annotations),
                owner_references: self.spec.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.spec.holder.clone()),
                lease_duration_seconds: Some(whole_seconds(self.spec.period.saturating_mul(3))),
                acquire_time: Some(MicroTime(since)),
                renew_time: Some(MicroTime(now)),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Created or changed by the same one request, whatever is there: the name is this replica's
    /// alone.
    async fn apply(&self, lease: &Lease) -> Result<Lease, kube::Error> {
        let params = PatchParams::apply(&self.spec.field_manager).force();
        self.api
            .patch(&self.spec.name, &params, &Patch::Apply(lease))
            .await
    }

    async fn delete(&self) {
        let deleted = within(
            DEADLINE,
            self.api.delete(&self.spec.name, &DeleteParams::default()),
        )
        .await;
        match deleted {
            Ok(_) => {}
            Err(error) if status(&error) == Some(404) => {}
            Err(error) => {
                warn!(lease = self.spec.name, error = %Fault(&error), "failed to delete the heartbeat");
            }
        }
    }
}
