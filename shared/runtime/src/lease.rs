//! Leases: one leader among replicas ([`Election`]), and a sign of life of each replica ([`Heartbeat`]).
//!
//! The rules are those of Kubernetes' own components, so the same Lease can be read by the same eyes: a holder renews on a
//! short period and gives up itself well before others may take over, and others judge by how long *they* have seen no
//! change, never by comparing clocks. What leading means is the caller's business.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};
use tracing::{info, warn};

use crate::{
    client::{Clients, Fault, status, within},
    duration,
    follow::{Backoff, Follower},
};

/// Flags of leader election.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Leader election")]
pub struct LeaseArgs {
    /// How long others wait after the last renewal they saw before they take over (as in 15s); counted in whole seconds
    #[arg(long, env = "MIMEO_LEASE_DURATION", value_name = "DURATION", default_value = "15s", value_parser = duration::parse)]
    pub lease_duration: Duration,
    /// How long the leader tries to renew before it gives up; must be less than the lease's duration (as in 10s)
    #[arg(long, env = "MIMEO_LEASE_RENEW_DEADLINE", value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub lease_renew_deadline: Duration,
    /// Time between renewals and between attempts; must be less than the renew deadline (as in 2s)
    #[arg(long, env = "MIMEO_LEASE_RETRY_PERIOD", value_name = "DURATION", default_value = "2s", value_parser = duration::parse)]
    pub lease_retry_period: Duration,
}

/// Why an election can't be held.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The durations don't leave the leader time to notice that it lost.
    #[error("lease durations must satisfy: lease duration > renew deadline > retry period > 0")]
    Timing,
}

/// What a replica that doesn't lead should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    /// There is no Lease, and whoever held the last one must have noticed.
    Create,
    /// Nobody holds it, or the holder has let it expire, or the holder is this replica in an earlier life.
    Take,
    /// Somebody holds it, at least until then.
    Wait(Instant),
}

/// The Lease, and since when it has been seen as it is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Observed {
    /// As it was seen last.
    pub(crate) lease: Lease,
    since: Instant,
    /// It was deleted since. Its holder doesn't know yet, and may write it anew.
    deleted: bool,
}

impl Observed {
    /// When its holder counts as dead unless it shows a sign of life.
    pub(crate) fn expiry(&self) -> Instant {
        self.since + self.duration()
    }

    fn holder(&self) -> Option<&str> {
        self.lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).filter(|holder| !holder.is_empty())
    }

    fn duration(&self) -> Duration {
        let seconds = self.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    }
}

fn next_move(observed: Option<&Observed>, me: &str, now: Instant) -> Move {
    let Some(observed) = observed else { return Move::Create };
    match observed.holder() {
        Some(holder) if holder != me && now < observed.expiry() => Move::Wait(observed.expiry()),
        _ if observed.deleted => Move::Create,
        _ => Move::Take,
    }
}

/// What is known after `seen` arrived. A write that isn't the holder's (an annotation, say) is no sign of its life.
pub(crate) fn observe(before: Option<Observed>, seen: Option<Lease>, now: Instant) -> Option<Observed> {
    let Some(lease) = seen else { return before.map(|before| Observed { deleted: true, ..before }) };
    let since = match before {
        Some(before) if before.lease.spec == lease.spec => before.since,
        _ => now,
    };
    Some(Observed { lease, since, deleted: false })
}

/// The spec by which `me` takes (or keeps) a Lease.
fn held(before: Option<&LeaseSpec>, me: &str, duration: Duration, now: Timestamp) -> LeaseSpec {
    let before = before.cloned().unwrap_or_default();
    let same = before.holder_identity.as_deref() == Some(me);
    let transitions = before.lease_transitions.map_or(0, |count| if same { count } else { count.saturating_add(1) });
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: Some(whole_seconds(duration)),
        acquire_time: before.acquire_time.filter(|_| same).or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions),
        ..before
    }
}

/// The spec by which a holder lets go: whoever sees it takes over at once.
fn released(before: &LeaseSpec, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: None,
        lease_duration_seconds: Some(1),
        renew_time: Some(MicroTime(now)),
        ..before.clone()
    }
}

/// Up, since others must not take over early; at least one, as the API server demands.
fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis().div_ceil(1_000)).unwrap_or(i32::MAX).max(1)
}

/// A candidate for leadership; dropping it stops renewing, so others take over when the Lease expires.
///
/// Needs the verbs `create` on Leases, and `get`, `list`, `watch`, `update` on the one name.
#[derive(Debug)]
pub struct Election {
    leading: watch::Receiver<bool>,
    holder: watch::Receiver<Option<String>>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Election {
    /// Takes part in the election for the Lease `name`, as `holder`, which must be unique among the candidates.
    pub fn start(
        clients: &Clients,
        namespace: &str,
        name: &str,
        holder: &str,
        args: &LeaseArgs,
    ) -> Result<Self, LeaseError> {
        let LeaseArgs { lease_duration, lease_renew_deadline, lease_retry_period } = args.clone();
        if !(lease_duration > lease_renew_deadline
            && lease_renew_deadline > lease_retry_period
            && lease_retry_period > Duration::ZERO)
        {
            return Err(LeaseError::Timing);
        }
        let (told, seen) = watch::channel(None);
        let candidate = Candidate {
            holder: told,
            api: Api::namespaced(clients.requests.clone(), namespace),
            watched: Api::namespaced(clients.watches.clone(), namespace),
            name: name.to_owned(),
            me: holder.to_owned(),
            duration: lease_duration,
            renew_deadline: lease_renew_deadline,
            retry_period: lease_retry_period,
        };
        let (publish, leading) = watch::channel(false);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(candidate.run(publish, stopped));
        Ok(Self { leading, holder: seen, stop, task })
    }

    /// Whether this replica leads: true from when the Lease was acquired until it was lost or released.
    pub fn leading(&self) -> watch::Receiver<bool> {
        self.leading.clone()
    }

    /// Who holds the Lease, as this replica has seen it last: it may have expired since.
    pub fn holder(&self) -> watch::Receiver<Option<String>> {
        self.holder.clone()
    }

    /// Returns when this replica leads. Cancel safe.
    pub async fn acquired(&self) {
        self.becomes(true).await;
    }

    /// Returns when this replica doesn't lead (any more): whatever only the leader may do must stop. Cancel safe.
    pub async fn lost(&self) {
        self.becomes(false).await;
    }

    async fn becomes(&self, wanted: bool) {
        if self.leading.clone().wait_for(|leading| *leading == wanted).await.is_err() && wanted {
            // The task ended, as it does only with the runtime: it will never lead.
            std::future::pending::<()>().await;
        }
    }

    /// Leaves the election. Call it when all that only the leader may do has stopped: a standby takes over at once.
    pub async fn release(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

struct Candidate {
    holder: watch::Sender<Option<String>>,
    api: Api<Lease>,
    watched: Api<Lease>,
    name: String,
    me: String,
    duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

/// How an attempt to write the Lease ended, other than well.
enum Failure {
    /// Somebody else's write came first.
    Conflict,
    Request(kube::Error),
}

enum End {
    Lost,
    Stopped { release: bool },
}

impl Candidate {
    async fn run(self, publish: watch::Sender<bool>, mut stop: oneshot::Receiver<()>) {
        loop {
            let (lease, renewed) = tokio::select! {
                _ = &mut stop => return,
                won = self.stand_by() => won,
            };
            info!(lease = self.name, holder = self.me, "leading");
            self.holder.send_replace(Some(self.me.clone()));
            publish.send_replace(true);
            let mut lease = lease;
            let end = self.lead(&mut lease, renewed, &mut stop).await;
            publish.send_replace(false);
            match end {
                End::Lost => warn!(lease = self.name, holder = self.me, "leadership lost"),
                End::Stopped { release } => {
                    if release {
                        self.release(lease).await;
                    }
                    return;
                }
            }
        }
    }

    /// Waits for the Lease to be free and takes it; returns it, and when it was asked for.
    async fn stand_by(&self) -> (Lease, Instant) {
        let mut follower = Follower::new(self.watched.clone(), self.name.clone());
        let mut backoff = Backoff::new(self.retry_period, self.retry_period.saturating_mul(2));
        let mut observed = observe(None, follower.next().await, Instant::now());
        loop {
            self.holder.send_replace(observed.as_ref().and_then(Observed::holder).map(str::to_owned));
            let asked = Instant::now();
            let wake = match next_move(observed.as_ref(), &self.me, asked) {
                Move::Wait(expiry) => expiry,
                Move::Create | Move::Take => match self.hold(existing(observed.as_ref())).await {
                    Ok(lease) => return (lease, asked),
                    Err(Failure::Conflict) => {
                        // The watch is about to say whose; but not that of a server that was restored from a backup.
                        if let Ok(lease) = self.read().await {
                            observed = observe(observed, lease, Instant::now());
                        }
                        Instant::now() + backoff.pause()
                    }
                    Err(Failure::Request(error)) => {
                        warn!(lease = self.name, error = %Fault(&error), "failed to acquire the Lease, retrying");
                        Instant::now() + backoff.pause()
                    }
                },
            };
            tokio::select! {
                seen = follower.next() => observed = observe(observed, seen, Instant::now()),
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Renews until it is lost or told to stop.
    async fn lead(&self, lease: &mut Lease, mut renewed: Instant, stop: &mut oneshot::Receiver<()>) -> End {
        loop {
            let deadline = renewed + self.renew_deadline;
            tokio::select! {
                told = &mut *stop => return End::Stopped { release: told.is_ok() },
                () = sleep_until(deadline.min(Instant::now() + self.retry_period)) => {}
            }
            let asked = Instant::now();
            match tokio::time::timeout_at(deadline, self.renew(lease)).await {
                Ok(Ok(())) => renewed = asked,
                Ok(Err(Failure::Conflict)) | Err(_) => return End::Lost,
                Ok(Err(Failure::Request(error))) => {
                    warn!(lease = self.name, error = %Fault(&error), "failed to renew the Lease, retrying");
                }
            }
        }
    }

    /// One renewal. A write by somebody else that left us the holder costs one more.
    async fn renew(&self, lease: &mut Lease) -> Result<(), Failure> {
        for _ in 0..2 {
            match self.hold(Some(lease)).await {
                Ok(new) => {
                    *lease = new;
                    return Ok(());
                }
                Err(Failure::Conflict) => match self.read().await? {
                    Some(now) if held_by(&now, &self.me) => *lease = now,
                    Some(_) => return Err(Failure::Conflict),
                    // Somebody deleted it; whoever creates it now leads.
                    None => {
                        *lease = self.hold(None).await?;
                        return Ok(());
                    }
                },
                Err(failure) => return Err(failure),
            }
        }
        // Others keep writing to it: as good as a failed request.
        Err(Failure::Request(kube::Error::Service("the Lease keeps changing".into())))
    }

    /// Writes itself as the holder, into a new Lease or on top of exactly this one.
    async fn hold(&self, lease: Option<&Lease>) -> Result<Lease, Failure> {
        let before = lease.and_then(|lease| lease.spec.as_ref());
        let spec = Some(held(before, &self.me, self.duration, Timestamp::now()));
        let params = PostParams::default();
        let written = if let Some(lease) = lease {
            let body = Lease { spec, ..lease.clone() };
            within(self.request_deadline(), self.api.replace(&self.name, &params, &body)).await
        } else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            within(self.request_deadline(), self.api.create(&params, &Lease { metadata, spec })).await
        };
        written.map_err(|error| match status(&error) {
            Some(409) => Failure::Conflict,
            // To a create, 404 says that the namespace is missing, which is nobody's write.
            Some(404) if lease.is_some() => Failure::Conflict,
            _ => Failure::Request(error),
        })
    }

    async fn read(&self) -> Result<Option<Lease>, Failure> {
        within(self.request_deadline(), self.api.get_opt(&self.name)).await.map_err(Failure::Request)
    }

    async fn release(&self, lease: Lease) {
        let spec = lease.spec.as_ref().map(|spec| released(spec, Timestamp::now()));
        let body = Lease { spec, ..lease };
        match within(self.request_deadline(), self.api.replace(&self.name, &PostParams::default(), &body)).await {
            Ok(_) => info!(lease = self.name, "Lease released"),
            Err(error) => {
                warn!(lease = self.name, error = %Fault(&error), "failed to release the Lease, it will expire");
            }
        }
    }

    /// So short that a request that hangs can be repeated before the renew deadline.
    fn request_deadline(&self) -> Duration {
        self.renew_deadline / 2
    }
}

fn existing(observed: Option<&Observed>) -> Option<&Lease> {
    observed.filter(|observed| !observed.deleted).map(|observed| &observed.lease)
}

fn held_by(lease: &Lease, me: &str) -> bool {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(me)
}

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
    /// Between renewals; the Lease's duration is three times as long.
    pub period: Duration,
    /// Server-side apply's field manager.
    pub field_manager: String,
}

/// A replica's own Lease, renewed as long as this lives and deleted by [`stop`](Self::stop). Readers judge a Lease by how
/// long they have seen no change of it; one whose replica was killed stays, and counts for nothing.
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
        let task = tokio::spawn(Pulse { api, spec }.run(wanted, stopped));
        Self { annotations, stop, task }
    }

    /// Sets one annotation, written promptly; several changes within a second are one write.
    pub fn annotate(&self, key: &str, value: &str) {
        self.annotations.send_if_modified(|annotations| {
            annotations.insert(key.to_owned(), value.to_owned()).as_deref() != Some(value)
        });
    }

    /// Sets one annotation that nobody is in a hurry for: it goes along with the next renewal.
    pub fn note(&self, key: &str, value: &str) {
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

const HEARTBEAT_SPACING: Duration = Duration::from_secs(1);
const HEARTBEAT_DEADLINE: Duration = Duration::from_secs(5);

struct Pulse {
    api: Api<Lease>,
    spec: HeartbeatSpec,
}

impl Pulse {
    async fn run(self, mut wanted: watch::Receiver<BTreeMap<String, String>>, mut stop: oneshot::Receiver<()>) {
        tokio::select! {
            told = &mut stop => if told.is_ok() { self.delete().await },
            // Dropped without being told to stop: like a killed process, it leaves the Lease to expire.
            () = self.beat(&mut wanted) => {}
        }
    }

    async fn beat(&self, wanted: &mut watch::Receiver<BTreeMap<String, String>>) {
        let mut backoff = Backoff::new(HEARTBEAT_SPACING, HEARTBEAT_DEADLINE);
        let since = Timestamp::now();
        loop {
            let written = Instant::now();
            let lease = self.lease(wanted.borrow_and_update().clone(), since, Timestamp::now());
            if let Err(error) = within(HEARTBEAT_DEADLINE, self.apply(&lease)).await {
                warn!(lease = self.spec.name, error = %Fault(&error), "failed to write the heartbeat, retrying");
                sleep(backoff.pause()).await;
                continue;
            }
            backoff.reset();
            sleep_until(written + HEARTBEAT_SPACING).await;
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                () = sleep_until(written + self.spec.period) => {}
            }
        }
    }

    fn lease(&self, annotations: BTreeMap<String, String>, since: Timestamp, now: Timestamp) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(self.spec.name.clone()),
                labels: Some(self.spec.labels.clone()),
                annotations: Some(annotations),
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

    /// Created or changed by the same one request, whatever is there: the name is this replica's alone.
    async fn apply(&self, lease: &Lease) -> Result<Lease, kube::Error> {
        let params = PatchParams::apply(&self.spec.field_manager).force();
        self.api.patch(&self.spec.name, &params, &Patch::Apply(lease)).await
    }

    async fn delete(&self) {
        let deleted = within(HEARTBEAT_DEADLINE, self.api.delete(&self.spec.name, &DeleteParams::default())).await;
        match deleted {
            Ok(_) => {}
            Err(error) if status(&error) == Some(404) => {}
            Err(error) => warn!(lease = self.spec.name, error = %Fault(&error), "failed to delete the heartbeat"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, Server};

    const ME: &str = "me";

    #[tokio::test]
    async fn a_standby_that_was_told_of_a_conflict_reads_the_lease() {
        let at = |version: &str| {
            let metadata =
                ObjectMeta { name: Some("l".into()), resource_version: Some(version.into()), ..ObjectMeta::default() };
            serde_json::to_value(Lease { metadata, ..Lease::default() }).expect("JSON")
        };
        let list = serde_json::json!({"metadata": {"resourceVersion": "20"}, "items": [at("20")]});
        let conflict = Script::json(409, &serde_json::json!({"kind": "Status", "code": 409}));
        let read = Script::json(200, &at("7"));
        let silent = Script::lines([]).hold();
        let server =
            Server::start([Script::json(200, &list), conflict, read, silent, Script::json(200, &at("8"))]).await;
        let candidate = Candidate {
            holder: watch::Sender::new(None),
            api: Api::default_namespaced(server.client()),
            watched: Api::default_namespaced(server.client()),
            name: "l".into(),
            me: ME.into(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_millis(100),
        };
        let won =
            tokio::time::timeout(Duration::from_secs(20), candidate.stand_by()).await.expect("it takes the Lease");
        assert_eq!(won.0.metadata.resource_version.as_deref(), Some("8"));
        let written: Vec<Lease> =
            server.came().iter().filter_map(|came| serde_json::from_slice(&came.body).ok()).collect();
        let versions: Vec<_> = written.into_iter().filter_map(|lease| lease.metadata.resource_version).collect();
        assert_eq!(versions, ["20", "7"]);
    }

    fn lease(holder: Option<&str>, renewed: i64) -> Lease {
        let time = MicroTime(Timestamp::from_second(renewed).expect("in range"));
        let spec = LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: Some(15),
            acquire_time: Some(time.clone()),
            renew_time: Some(time),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        };
        Lease { spec: Some(spec), ..Lease::default() }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_free_or_was_not_renewed_for_its_duration() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let seen = |holder| Some(Observed { lease: lease(holder, 0), since: start, deleted: false });
        let gone = |holder| observe(seen(holder), None, after(9));
        let unspecified = Some(Observed { lease: Lease::default(), since: start, deleted: false });
        let cases = [
            ("no Lease", None, after(0), Move::Create),
            ("an empty one", unspecified, after(0), Move::Take),
            ("released", seen(None), after(0), Move::Take),
            ("released the other way", seen(Some("")), after(0), Move::Take),
            ("mine from an earlier life", seen(Some(ME)), after(0), Move::Take),
            ("another's", seen(Some("you")), after(0), Move::Wait(after(15))),
            ("another's, a moment before it expires", seen(Some("you")), after(14), Move::Wait(after(15))),
            ("another's, expired", seen(Some("you")), after(15), Move::Take),
            ("another's, deleted under it", gone(Some("you")), after(14), Move::Wait(after(15))),
            ("another's, deleted long ago", gone(Some("you")), after(15), Move::Create),
            ("released and deleted", gone(None), after(9), Move::Create),
        ];
        for (what, observed, now, want) in cases {
            assert_eq!(next_move(observed.as_ref(), ME, now), want, "{what}");
        }
    }

    #[test]
    fn only_the_holders_own_writes_are_signs_of_life() {
        let start = Instant::now();
        let later = start + Duration::from_secs(9);
        let first = observe(None, Some(lease(Some("you"), 0)), start);
        assert_eq!(first.as_ref().map(|seen| seen.since), Some(start));

        let mut annotated = lease(Some("you"), 0);
        annotated.metadata.resource_version = Some("2".to_owned());
        let same = observe(first.clone(), Some(annotated.clone()), later).expect("still there");
        assert_eq!((same.since, same.lease), (start, annotated));

        let renewed = observe(first.clone(), Some(lease(Some("you"), 2)), later);
        assert_eq!(renewed.map(|seen| seen.since), Some(later));
        assert_eq!(observe(None, None, later), None);
    }

    #[test]
    fn taking_renewing_and_releasing_keep_the_record() {
        let now = Timestamp::from_second(100).expect("in range");
        let theirs = lease(Some("you"), 0).spec.expect("a spec");
        let taken = held(Some(&theirs), ME, Duration::from_millis(14_500), now);
        assert_eq!(taken.holder_identity.as_deref(), Some(ME));
        assert_eq!((taken.lease_transitions, taken.lease_duration_seconds), (Some(4), Some(15)));
        assert_eq!(taken.acquire_time, Some(MicroTime(now)));

        let later = Timestamp::from_second(102).expect("in range");
        let renewed = held(Some(&taken), ME, Duration::from_secs(15), later);
        assert_eq!((&renewed.acquire_time, renewed.lease_transitions), (&taken.acquire_time, Some(4)));
        assert_eq!(renewed.renew_time, Some(MicroTime(later)));

        let free = released(&renewed, later);
        let seen =
            Observed { lease: Lease { spec: Some(free), ..Lease::default() }, since: Instant::now(), deleted: false };
        assert_eq!(next_move(Some(&seen), "you", seen.since), Move::Take);
        assert_eq!(held(None, ME, Duration::ZERO, now).lease_duration_seconds, Some(1));
    }
}
