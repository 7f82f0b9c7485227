//! A sign of life of each replica: a Lease that the replica renews.

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

/// Least time between two writes, regardless of how often the annotations change.
const SPACING: Duration = Duration::from_secs(1);
/// For one request.
const DEADLINE: Duration = Duration::from_secs(5);

/// The content of a heartbeat's Lease.
#[derive(Debug, Clone)]
pub struct HeartbeatSpec {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease. Only this replica uses it.
    pub name: String,
    /// The name of this replica.
    pub holder: String,
    /// Labels with which readers find the Lease.
    pub labels: BTreeMap<String, String>,
    /// The object that owns the Lease. When it is deleted the garbage collector deletes the Lease,
    /// too, even if the replica was killed.
    pub owner: Option<OwnerReference>,
    /// Time between renewals. The Lease's duration is three times as long.
    pub period: Duration,
    /// The field manager for server-side apply.
    pub field_manager: String,
}

/// A replica's own Lease. It is renewed as long as this value lives, and [`stop`](Self::stop)
/// deletes it. Readers measure how long they have seen no change of a Lease. After a replica was
/// killed its Lease expires for them, and exists until its owner is deleted.
///
/// Needs the permissions `create`, `patch` and `delete` on Leases.
#[derive(Debug)]
pub struct Heartbeat {
    annotations: watch::Sender<BTreeMap<String, String>>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Heartbeat {
    /// Writes the Lease at once, and again in each period.
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

    /// Sets or removes one annotation soon. Several changes within a second become one write.
    pub fn annotate(&self, key: &str, value: Option<&str>) {
        self.annotations.send_if_modified(|annotations| {
            let former = match value {
                Some(value) => annotations.insert(key.to_owned(), value.to_owned()),
                None => annotations.remove(key),
            };
            former.as_deref() != value
        });
    }

    /// Sets one annotation that is not urgent: the next renewal writes it.
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

/// Renews the Lease in a task of its own.
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
            // The heartbeat was dropped without [`Heartbeat::stop`]. As after a kill, the Lease
            // stays and expires.
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
                warn!(lease = self.spec.name, error = %Fault(&error), "failed to write the \
                    heartbeat, retrying");
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

    /// Creates or changes the Lease with one request, regardless of its present content: only this
    /// replica uses the name.
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
                warn!(lease = self.spec.name, error = %Fault(&error), "failed to delete the \
                    heartbeat");
            }
        }
    }
}
