//! The running replicas of Mimeo, as their Leases show them.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use mimeo_model::names::{REPLICA, REPLICA_WEBHOOK};
use mimeo_runtime::call::encode;
use serde::Serialize;
use serde_json::Value;

use crate::{
    output::age,
    read::{Part, ReadError, Reader},
};

/// The Lease of the leading reconciler.
pub(crate) const LEADER: &str = "mimeo-reconciler";

/// A replica with a Lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Replica {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) renewed: Option<Timestamp>,
    /// True if the replica has renewed its Lease in time.
    pub(crate) alive: bool,
}

impl Replica {
    fn of(lease: Lease, now: Timestamp) -> Option<Self> {
        let spec = lease.spec?;
        let name = spec.holder_identity.filter(|holder| !holder.is_empty())?;
        let renewed = spec.renew_time.map(|time| time.0);
        let duration = SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or(0).into());
        let alive = renewed.is_some_and(|renewed| now.duration_since(renewed) <= duration);
        Some(Self {
            name,
            renewed,
            alive,
        })
    }

    /// The replica and the age of its Lease's last renewal: `webhook-1 (3s ago)`.
    pub(crate) fn text(&self, now: Timestamp) -> String {
        match self.renewed {
            Some(renewed) => format!("{} ({} ago)", self.name, age(renewed, now)),
            None => self.name.clone(),
        }
    }
}

/// The replicas of Mimeo. A part that the user may not read is `None`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Installation {
    /// The leading reconciler. Without one the list is empty.
    pub(crate) leader: Option<Vec<Replica>>,
    /// The replicas of the webhook.
    pub(crate) webhooks: Option<Vec<Replica>>,
}

impl Installation {
    /// Reads the Leases, and returns a sentence for each failed read.
    pub(crate) async fn read(reader: &Reader, mimeo: &str) -> (Self, Vec<String>) {
        let leases = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            encode(mimeo)
        );
        let now = Timestamp::now();
        let mut unread = Vec::new();
        let mut note = |what: &str, error: &ReadError| {
            unread.push(format!("Can't read {what} in namespace {mimeo}: {error}."));
        };
        let leader = reader.get(&format!("{leases}/{LEADER}"), Part::Whole).await;
        if let Err(error) = &leader {
            note("the reconciler's Lease", error);
        }
        let leader = leader.ok();
        let leader = leader.map(|lease| lease.and_then(|lease| replica(lease, now)));
        let mut webhooks = Vec::new();
        let selector = format!("{REPLICA}={REPLICA_WEBHOOK}");
        let keep = |lease: mimeo_model::known::Decoded<Value>| {
            webhooks.extend(replica(lease.value().clone(), now));
        };
        let listed = reader.list(&leases, Some(&selector), Part::Whole, keep);
        let listed = listed.await;
        if let Err(error) = &listed {
            note("the webhook's Leases", error);
        }
        let installation = Self {
            leader: leader.map(|leader| leader.into_iter().collect()),
            webhooks: listed.is_ok().then_some(webhooks),
        };
        (installation, unread)
    }
}

fn replica(lease: Value, now: Timestamp) -> Option<Replica> {
    Replica::of(serde_json::from_value(lease).ok()?, now)
}

impl Installation {
    /// Two lines for people: the leader, and the replicas of the webhook.
    pub(crate) fn lines(&self, now: Timestamp) -> Vec<String> {
        let told = |what: &str, replicas: &[Replica], none: &str| {
            let alive = replicas.iter().filter(|replica| replica.alive);
            let alive: Vec<String> = alive.map(|replica| replica.text(now)).collect();
            if alive.is_empty() {
                format!("{what}: {none}")
            } else {
                format!("{what}: {}", alive.join(", "))
            }
        };
        let leader = self.leader.as_deref().map(|leader| {
            let none = "none leads. Copies don't change until one does";
            told("Reconciler", leader, none)
        });
        let webhooks = self.webhooks.as_deref().map(|webhooks| {
            let none = "no replica is alive. New namespaces wait for the reconciler";
            told("Webhook", webhooks, none)
        });
        leader.into_iter().chain(webhooks).collect()
    }

    /// False if a reconciler or the webhook is known to be missing.
    pub(crate) fn runs(&self) -> bool {
        let runs = |replicas: &Option<Vec<Replica>>| {
            let alive = |replicas: &Vec<Replica>| replicas.iter().any(|replica| replica.alive);
            replicas.as_ref().is_none_or(alive)
        };
        runs(&self.leader) && runs(&self.webhooks)
    }
}
