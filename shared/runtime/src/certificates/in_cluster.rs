//! The certificate in a Secret of the cluster, which all replicas share. Mimeo issues it itself, so
//! that an installation needs no other component.
//!
//! The first replica creates the Secret. Every later write carries the resourceVersion that it was
//! decided on, so of two writers one fails and reads the result of the other. Replicas learn of a
//! change by a watch on that one name, so all of them switch within moments. An unchanged Secret
//! costs nothing except that watch.
//!
//! A replica that stops no longer writes the Secret. If an operator deletes the Secret while the
//! replica finishes its work, the Secret must stay deleted. That is how a leaked key is replaced.
//!
//! Needs these permissions in its namespace: `create` on Secrets, and `get`, `list`, `watch`,
//! `update` on this one name.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Client, Resource, ResourceExt, api::ObjectMeta};
use tokio::{sync::watch, time::sleep};
use tracing::{error, info};

use super::{Bundle, Lifetimes, Publisher, Renewal, ServingNames};
use crate::{
    backoff::Backoff,
    call::{DEADLINE, put},
    client::Clients,
    follow::Follower,
    named,
    shutdown::CancellationToken,
    tls::Certificate,
};

/// This value differs from the one on copies: a list of copies by their label must not contain this
/// Secret.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "mimeo-webhook");
/// The clock is checked at least this often. A sleep does not count the time in which the machine
/// is suspended.
const LONGEST_SLEEP: Duration = Duration::from_hours(1);
const SHORTEST_SLEEP: Duration = Duration::from_secs(1);

/// Renews the Secret when due and publishes its material, until all receivers are dropped or the
/// shutdown begins. After the shutdown the last material stays published.
pub fn start(
    clients: &Clients,
    namespace: &str,
    name: &str,
    names: ServingNames,
    lifetimes: Lifetimes,
    shutdown: CancellationToken,
) -> Certificate {
    let (publish, receiver) = watch::channel(None);
    let path = Secret::url_path(&(), Some(namespace));
    let watcher = clients.watcher.clone();
    let follower = Follower::new(watcher, &path, name, format!("secrets/{name}"));
    let keeper = Keeper {
        client: clients.requests.clone(),
        path,
        name: name.to_owned(),
        names,
        lifetimes,
        known: None,
    };
    tokio::spawn(async move {
        tokio::select! {
            () = publish.closed() => {}
            () = keeper.keep(follower, &publish) => {}
            // Connections that still arrive are served the last certificate.
            () = shutdown.cancelled() => publish.closed().await,
        }
    });
    receiver
}

struct Keeper {
    client: Client,
    /// The path of all Secrets of the namespace.
    path: String,
    name: String,
    names: ServingNames,
    lifetimes: Lifetimes,
    /// The last valid bundle. If the Secret is deleted it is created again with this bundle, so
    /// that clients need no other CA.
    known: Option<Bundle>,
}

impl Keeper {
    async fn keep(mut self, mut follower: Follower<Secret>, publish: &Publisher) {
        let mut backoff = Backoff::default();
        let mut seen = follower.next().await;
        loop {
            let pause = match self.settle(seen.clone(), publish).await {
                Ok((secret, due)) => {
                    backoff.reset();
                    seen = secret;
                    until(due)
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    error!(
                        secret = self.name,
                        error, "failed to keep the serving certificate"
                    );
                    backoff.pause()
                }
            };
            tokio::select! {
                changed = follower.next() => seen = changed,
                () = sleep(pause) => {}
            }
        }
    }

    /// Takes all steps that are due, with one write each, and publishes the material. Returns the
    /// Secret and the time of the next step.
    async fn settle(
        &mut self,
        mut secret: Option<Secret>,
        publish: &Publisher,
    ) -> anyhow::Result<(Option<Secret>, Timestamp)> {
        loop {
            let (bundle, step) = self.plan(secret.as_ref(), Timestamp::now())?;
            if let Renewal::Keep { until } = step {
                publish.send_replace(Some(Arc::new(bundle.material()?)));
                self.known = Some(bundle);
                return Ok((secret, until));
            }
            secret = self.write(secret, &bundle, step).await?;
        }
    }

    /// The bundle that the Secret must have, and the step that leads to it.
    fn plan(&self, secret: Option<&Secret>, now: Timestamp) -> anyhow::Result<(Bundle, Renewal)> {
        let data = secret.and_then(|secret| secret.data.as_ref());
        let read = data.filter(|data| !data.is_empty()).map(Bundle::from_data);
        match read {
            Some(Ok(bundle)) => {
                let step = bundle.renewal(&self.names, &self.lifetimes, now);
                let next = bundle.renewed(step, &self.names, &self.lifetimes, now)?;
                Ok((next, step))
            }
            Some(Err(error)) if !secret.is_some_and(is_ours) => Err(error)
                .context("the Secret has other data than Mimeo's, and isn't labelled as Mimeo's"),
            _ => {
                let bundle = match &self.known {
                    Some(known) => known.clone(),
                    None => Bundle::issue(&self.names, &self.lifetimes, now)?,
                };
                Ok((bundle, Renewal::Reissue))
            }
        }
    }

    /// Writes the bundle. If another write came first, its result is read and returned instead.
    async fn write(
        &self,
        secret: Option<Secret>,
        bundle: &Bundle,
        step: Renewal,
    ) -> anyhow::Result<Option<Secret>> {
        let secret = secret.unwrap_or_else(|| Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        });
        let body = with_bundle(secret, bundle);
        let written = put(&self.client, &self.path, &body, DEADLINE).await;
        if let Some(secret) = written.context("failed to write the Secret")? {
            info!(secret = self.name, ?step, not_after = %bundle.serving.not_after(), "serving certificate written");
            return Ok(Some(secret));
        }
        let read = named::read(&self.client, &self.path, &self.name).await;
        read.context("failed to read the Secret")
    }
}

fn is_ours(secret: &Secret) -> bool {
    secret
        .labels()
        .get(MANAGED_BY.0)
        .is_some_and(|value| value == MANAGED_BY.1)
}

/// The rest of the Secret stays, above all its resourceVersion.
fn with_bundle(mut secret: Secret, bundle: &Bundle) -> Secret {
    secret
        .labels_mut()
        .insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
    bundle.write_to(secret.data.get_or_insert_default());
    secret
}

fn until(time: Timestamp) -> Duration {
    Duration::try_from(time.duration_since(Timestamp::now()))
        .unwrap_or_default()
        .clamp(SHORTEST_SLEEP, LONGEST_SLEEP)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::ByteString;

    use super::*;

    fn keeper(known: Option<Bundle>) -> Keeper {
        crate::tls::install_provider();
        let service = tower::service_fn(async |_: http::Request<kube::client::Body>| {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::from(
                std::io::ErrorKind::NotConnected,
            ))
        });
        Keeper {
            client: Client::new(service, "here"),
            path: "/api/v1/namespaces/here/secrets".to_owned(),
            name: "tls".to_owned(),
            names: ServingNames::new(["localhost"]),
            lifetimes: Lifetimes::default(),
            known,
        }
    }

    fn bundle(now: Timestamp) -> Bundle {
        Bundle::issue(
            &ServingNames::new(["localhost"]),
            &Lifetimes::default(),
            now,
        )
        .expect("a bundle")
    }

    fn secret(label: bool, data: &[(&str, &str)]) -> Secret {
        let mut secret = Secret::default();
        if label {
            secret
                .labels_mut()
                .insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
        }
        let data = data
            .iter()
            .map(|(name, value)| ((*name).to_owned(), ByteString(value.as_bytes().to_vec())));
        secret.data = Some(data.collect());
        secret
    }

    #[tokio::test]
    async fn the_plan_for_each_secret() {
        let now = Timestamp::now();
        let issued = bundle(now);
        let good = with_bundle(Secret::default(), &issued);
        let fresh = keeper(None);
        assert!(matches!(fresh.plan(None, now), Ok((_, Renewal::Reissue))));
        assert!(
            matches!(
                fresh.plan(Some(&secret(false, &[])), now),
                Ok((_, Renewal::Reissue))
            ),
            "an empty one is filled"
        );
        assert!(matches!(
            fresh.plan(Some(&secret(true, &[("tls.crt", "?")])), now),
            Ok((_, Renewal::Reissue))
        ));
        let foreign = fresh.plan(Some(&secret(false, &[("tls.crt", "?")])), now);
        let error = foreign.expect_err("somebody else's is left alone");
        assert!(error.to_string().starts_with("the Secret has other data"));
        assert!(matches!(
            fresh.plan(Some(&good), now),
            Ok((bundle, Renewal::Keep { .. })) if bundle == issued
        ));
        let due = now + SignedDuration::from_hours(61 * 24);
        assert!(matches!(
            fresh.plan(Some(&good), due),
            Ok((_, Renewal::RenewServing))
        ));
        let known = keeper(Some(issued.clone()));
        assert_eq!(
            known.plan(None, now).expect("a plan"),
            (issued, Renewal::Reissue),
            "back as it was"
        );
    }
}
