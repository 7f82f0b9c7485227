//! Learns from Leases which replicas of the webhook are alive, and which rules each of them knows.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use mimeo_engine::Webhooks;
use mimeo_model::{known::Decoded, meta::version, names};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Observer;
use crate::{
    lease::{SeenLease, observe},
    watch::{Event, Meta, WatchSpec, watch},
};

impl Observer {
    /// Watches the Leases of webhook replicas. They show which replicas are alive, and which rules
    /// each of them knows.
    pub async fn webhooks(self) {
        let path = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            self.writer.namespace
        );
        let selector = format!("{}={}", names::REPLICA, names::REPLICA_WEBHOOK);
        let spec = WatchSpec {
            label_selector: Some(selector),
            ..WatchSpec::objects(path, "webhook replicas")
        };
        let replicas: Mutex<Replicas> = Mutex::default();
        let lock = || replicas.lock();
        let tell = || {
            let webhooks = lock().alive(Instant::now());
            self.handle.with(|engine| engine.webhooks(webhooks));
        };
        let watching = watch::<Lease>(self.watcher.clone(), spec, |event| {
            match event {
                Event::Shown(Decoded::Whole(lease)) => lock().show(lease, Instant::now()),
                Event::Deleted(Meta { metadata }) => {
                    lock().0.remove(&metadata.name.unwrap_or_default());
                }
                Event::Listing | Event::Shown(Decoded::Part(_)) | Event::Known(_) => return,
            }
            tell();
        });
        // A dead replica sends no event: its Lease expires. So does one that was deleted before a
        // listing.
        let ageing = async {
            loop {
                tokio::time::sleep(Duration::from_secs(5)).await;
                tell();
            }
        };
        tokio::join!(watching, ageing);
    }
}

/// The replicas of the webhook, by the names of their Leases. A replica is alive as long as its
/// Lease keeps changing. Clocks are not compared.
#[derive(Default)]
struct Replicas(BTreeMap<String, SeenLease>);

impl Replicas {
    /// Takes in a Lease.
    fn show(&mut self, lease: Lease, now: Instant) {
        let name = lease.metadata.name.clone().unwrap_or_default();
        let seen = observe(self.0.remove(&name), Some(lease), now);
        self.0.extend(seen.map(|seen| (name, seen)));
    }

    fn alive(&self, now: Instant) -> Webhooks {
        let alive = || self.0.values().filter(|seen| now < seen.expiry());
        Webhooks {
            seen: alive()
                .map(|seen| version(annotation(&seen.lease, names::SEEN)))
                .collect(),
            contested: alive()
                .find_map(|seen| annotation(&seen.lease, names::CONTESTED))
                .map(Into::into),
        }
    }
}

fn annotation<'a>(lease: &'a Lease, key: &str) -> Option<&'a str> {
    lease.annotations().get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A dead replica's annotation is ignored.
    #[tokio::test]
    async fn what_one_replica_says_of_the_hooks_is_heard() {
        let lease = |name: &str, annotations: serde_json::Value| -> Lease {
            let metadata = json!({"name": name, "annotations": annotations});
            serde_json::from_value(
                json!({"metadata": metadata, "spec": {"leaseDurationSeconds": 15}}),
            )
            .expect("a Lease")
        };
        let (start, mut replicas) = (Instant::now(), Replicas::default());
        replicas.show(lease("a", json!({names::SEEN: "7"})), start);
        assert_eq!(replicas.alive(start).contested, None);
        replicas.show(lease("b", json!({names::CONTESTED: "changed by c"})), start);
        assert_eq!(
            replicas.alive(start),
            Webhooks {
                seen: vec![7, 0],
                contested: Some("changed by c".into())
            }
        );
        assert_eq!(
            replicas.alive(start + Duration::from_secs(15)),
            Webhooks::default()
        );
    }

    /// A replica's life is measured by the time without a change of its Lease here. The replica's
    /// own clock does not count.
    #[tokio::test]
    async fn a_replica_lives_while_its_lease_changes() {
        let lease = |renewed: &str| -> Lease {
            let spec = json!({"leaseDurationSeconds": 15, "renewTime": renewed});
            let metadata = json!({"name": "w", "annotations": {names::SEEN: "7"}});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a Lease")
        };
        let (start, mut replicas) = (Instant::now(), Replicas::default());
        let alive = |replicas: &Replicas, seconds| {
            replicas.alive(start + Duration::from_secs(seconds)).seen
        };
        for slow_or_fast in ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
            replicas = Replicas::default();
            replicas.show(lease(slow_or_fast), start);
            assert_eq!(alive(&replicas, 14), [7]);
            assert!(alive(&replicas, 15).is_empty());
        }
        // A Lease that is shown again without a change does not get younger.
        replicas.show(
            lease("2999-01-01T00:00:00.000000Z"),
            start + Duration::from_secs(9),
        );
        assert!(alive(&replicas, 15).is_empty());
        replicas.show(
            lease("2999-01-01T00:00:05.000000Z"),
            start + Duration::from_secs(9),
        );
        assert_eq!(alive(&replicas, 15), [7]);
    }
}
