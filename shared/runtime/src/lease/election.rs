//! Elects one leader among replicas.
//!
//! Three rules keep two replicas from leading at the same time. Each write of the Lease names the
//! version that it replaces, so of two candidates only one succeeds. A leader that cannot renew
//! gives up at the renew deadline, before the Lease expires for others. A candidate takes a Lease
//! of another holder only after it has seen no change for the whole lease duration.
//!
//! A leader that stops releases the Lease, so a standby does not have to wait until it expires.

use std::time::Duration;

use anyhow::{bail, ensure};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{Client, Resource, api::ObjectMeta};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};
use tracing::{info, warn};

use super::{SeenLease, observe, seen::holder, whole_seconds};
use crate::{
    backoff::Backoff,
    call::{self, CallError, CallResult, JSON, put},
    client::Clients,
    duration,
    follow::Follower,
    identity::Identity,
    shutdown::CancellationToken,
    watch::Watcher,
};

/// Flags of leader election.
#[derive(Args)]
#[command(next_help_heading = "Leader election")]
pub struct LeaseArgs {
    /// How long others wait after the last renewal they saw before they take over (as in 15s);
    /// counted in whole seconds
    #[arg(long, env = "MIMEO_LEASE_DURATION", value_name = "DURATION", default_value = "15s", value_parser = duration::parse)]
    pub lease_duration: Duration,
    /// How long the leader tries to renew before it gives up; must be less than the lease's
    /// duration (as in 10s)
    #[arg(long, env = "MIMEO_LEASE_RENEW_DEADLINE", value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub lease_renew_deadline: Duration,
    /// Time between renewals and between attempts; must be less than the renew deadline (as in 2s)
    #[arg(long, env = "MIMEO_LEASE_RETRY_PERIOD", value_name = "DURATION", default_value = "2s", value_parser = duration::parse)]
    pub lease_retry_period: Duration,
}

/// A candidate for leadership. Another replica takes over when the Lease is released or expires.
///
/// Needs the permissions `create` on Leases, and `get`, `list`, `watch`, `update` on this one name.
pub struct Candidate {
    leading: watch::Sender<bool>,
    holder: watch::Sender<Option<String>>,
    client: Client,
    /// The path of all Leases of the namespace.
    path: String,
    watcher: Watcher,
    name: &'static str,
    /// The name of this replica, unique among the candidates.
    me: String,
    args: LeaseArgs,
}

impl Candidate {
    /// Makes this replica a candidate for the Lease `name`.
    ///
    /// # Errors
    /// The durations leave the leader no time to notice that it lost the Lease.
    pub fn new(
        clients: &Clients,
        identity: &Identity,
        name: &'static str,
        args: LeaseArgs,
    ) -> anyhow::Result<Self> {
        ensure!(
            args.lease_duration > args.lease_renew_deadline
                && args.lease_renew_deadline > args.lease_retry_period
                && args.lease_retry_period > Duration::ZERO,
            "lease durations must satisfy: lease duration > renew deadline > retry period > 0"
        );
        Ok(Self {
            leading: watch::Sender::new(false),
            holder: watch::Sender::new(None),
            client: clients.requests.clone(),
            path: Lease::url_path(&(), Some(&identity.namespace)),
            watcher: clients.watcher.clone(),
            name,
            me: identity.replica.clone(),
            args,
        })
    }

    /// Whether this replica leads: true from when it acquired the Lease until it lost the Lease or
    /// until the shutdown.
    pub fn leading(&self) -> watch::Receiver<bool> {
        self.leading.subscribe()
    }

    /// The Lease's holder, as this replica last saw it. The Lease may have expired since.
    pub fn holder(&self) -> watch::Receiver<Option<String>> {
        self.holder.subscribe()
    }

    /// Waits until this replica leads, and then renews the Lease until the shutdown. Returns the
    /// Lease if it must be [released](Self::release).
    ///
    /// # Errors
    /// The Lease was lost. Work that only the leader may do must stop then.
    pub async fn run(&self, shutdown: &CancellationToken) -> anyhow::Result<Option<Lease>> {
        let won = Box::pin(self.stand_by());
        let Some((lease, renewed)) = shutdown.run_until_cancelled(won).await else {
            return Ok(None);
        };
        info!(lease = self.name, holder = self.me, "leading");
        self.holder.send_replace(Some(self.me.clone()));
        self.leading.send_replace(true);
        let kept = self.lead(Some(lease), renewed, shutdown).await;
        self.leading.send_replace(false);
        kept
    }

    /// Waits until the Lease is free and takes it. Returns the Lease and the time just before the
    /// request.
    async fn stand_by(&self) -> (Lease, Instant) {
        let (watcher, what) = (self.watcher.clone(), format!("leases/{}", self.name));
        let mut follower = Follower::new(watcher, &self.path, self.name, what);
        let period = self.args.lease_retry_period;
        let mut backoff = Backoff::new(period, period.saturating_mul(2));
        let mut observed = observe(None, follower.next().await, Instant::now());
        loop {
            let held_by = observed.as_ref().and_then(|seen| holder(&seen.lease));
            self.holder.send_replace(held_by.map(str::to_owned));
            let asked = Instant::now();
            let wake = if let Some(expiry) = held_until(observed.as_ref(), &self.me, asked) {
                expiry
            } else {
                let existing = observed.as_ref().filter(|seen| !seen.deleted);
                match self.hold(existing.map(|seen| &seen.lease)).await {
                    Ok(Some(lease)) => return (lease, asked),
                    Ok(None) => {
                        // The watch will soon show the other write. But the watch of an API server
                        // that was restored from a backup may not, so the Lease is read as well.
                        if let Ok(lease) = self.read().await {
                            observed = observe(observed, lease, Instant::now());
                        }
                    }
                    Err(error) => {
                        warn!(lease = self.name, %error, "failed to acquire the Lease, retrying");
                    }
                }
                Instant::now() + backoff.pause()
            };
            tokio::select! {
                seen = follower.next() => observed = observe(observed, seen, Instant::now()),
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Renews the Lease until the shutdown. Returns it as last seen.
    async fn lead(
        &self,
        mut lease: Option<Lease>,
        mut renewed: Instant,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<Option<Lease>> {
        loop {
            let deadline = renewed + self.args.lease_renew_deadline;
            tokio::select! {
                () = shutdown.cancelled() => return Ok(lease),
                () = sleep_until(deadline.min(Instant::now() + self.args.lease_retry_period)) => {}
            }
            let asked = Instant::now();
            match timeout_at(deadline, self.renew(&mut lease)).await {
                Ok(Ok(true)) => renewed = asked,
                Ok(Ok(false)) => bail!("leadership lost: another replica took the Lease"),
                Err(_) => bail!("leadership lost: the Lease could not be renewed in time"),
                Ok(Err(error)) => {
                    warn!(lease = self.name, %error, "failed to renew the Lease, retrying");
                }
            }
        }
    }

    /// Renews the Lease, or creates it if it was deleted. If another write came first and left this
    /// replica the holder, or deleted the Lease, this is tried once more. Returns false if another
    /// replica holds the Lease.
    async fn renew(&self, lease: &mut Option<Lease>) -> CallResult<bool> {
        for _ in 0..2 {
            if let Some(new) = self.hold(lease.as_ref()).await? {
                *lease = Some(new);
                return Ok(true);
            }
            *lease = self.read().await?;
            let lost = |now: &Lease| holder(now) != Some(&*self.me);
            if lease.as_ref().is_some_and(lost) {
                return Ok(false);
            }
        }
        // Other clients keep writing the Lease. This counts as a failed request.
        Err(CallError::Conflict)
    }

    /// Writes this replica as the holder, into a new Lease or in place of exactly this version.
    /// `None`: another write came first.
    async fn hold(&self, lease: Option<&Lease>) -> CallResult<Option<Lease>> {
        let mut lease = lease.cloned().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.name.to_owned()),
                ..ObjectMeta::default()
            },
            ..Lease::default()
        });
        let before = lease.spec.unwrap_or_default();
        let duration = self.args.lease_duration;
        lease.spec = Some(held(before, &self.me, duration, Timestamp::now()));
        put(&self.client, &self.path, &lease, self.request_deadline()).await
    }

    async fn read(&self) -> CallResult<Option<Lease>> {
        let path = format!("{}/{}", self.path, self.name);
        call::get(&self.client, &path, JSON, self.request_deadline()).await
    }

    /// Releases the Lease. Call it after all work of the leader has stopped: a standby takes over at
    /// once.
    pub async fn release(&self, lease: Lease) {
        let spec = lease.spec.map(|spec| released(spec, Timestamp::now()));
        let body = Lease { spec, ..lease };
        match put(&self.client, &self.path, &body, self.request_deadline()).await {
            Ok(Some(_)) => info!(lease = self.name, "Lease released"),
            Ok(None) => {
                warn!(
                    lease = self.name,
                    "the Lease was changed or deleted meanwhile, it is not released"
                );
            }
            Err(error) => {
                warn!(lease = self.name, %error, "failed to release the Lease, it will expire");
            }
        }
    }

    /// Short enough to repeat a request that hangs before the renew deadline.
    fn request_deadline(&self) -> Duration {
        self.args.lease_renew_deadline / 2
    }
}

/// Until when, at least, another replica holds the Lease. `None` if this replica may take it: the
/// Lease has no holder, or it has expired, or the holder is an earlier process with this replica's
/// name. If there is no Lease, the holder of the last one must have noticed its loss by now.
fn held_until(observed: Option<&SeenLease>, me: &str, now: Instant) -> Option<Instant> {
    let observed = observed?;
    let others = holder(&observed.lease).is_some_and(|holder| holder != me);
    Some(observed.expiry()).filter(|expiry| others && now < *expiry)
}

/// The spec with which `me` takes or keeps the Lease.
fn held(before: LeaseSpec, me: &str, duration: Duration, now: Timestamp) -> LeaseSpec {
    let same = before.holder_identity.as_deref() == Some(me);
    let transitions = before
        .lease_transitions
        .map_or(0, |count| count.saturating_add(i32::from(!same)));
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: Some(whole_seconds(duration)),
        acquire_time: before
            .acquire_time
            .filter(|_| same)
            .or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions),
        ..before
    }
}

/// The spec with which a holder releases the Lease. A replica that sees it takes over at once.
fn released(before: LeaseSpec, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: None,
        lease_duration_seconds: Some(1),
        renew_time: Some(MicroTime(now)),
        ..before
    }
}

#[cfg(test)]
mod tests;
