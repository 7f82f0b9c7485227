//! The leader among the reconcilers dies, or hangs. Another one takes over, not too early and
//! without a loss.

use std::ops::{RangeBounds, RangeInclusive};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::api::DeleteParams;
use mimeo_node_tests::{Mimeo, Node, Program};
use mimeo_tests::{
    NAMESPACE, eventually,
    scenario::{SOON, of},
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::Mutex;

use crate::people::People;

const FILLED: usize = 30;
/// The number of namespaces that are created while no reconciler leads.
const AT_ONCE: usize = 4;
/// The shipped `--lease-duration`. A standby takes over when it has seen no renewal for this long,
/// as docs/how-to/availability.md promises.
const LEASE_SECONDS: i64 = 15;
/// The shipped `--lease-retry-period`. A failed attempt adds this much.
const RETRY_SECONDS: i64 = 2;
/// The promised time. The numbers are whole seconds, so they leave a standby up to one second to
/// see and to write.
const LATEST: RangeInclusive<i64> = LEASE_SECONDS..=LEASE_SECONDS + RETRY_SECONDS;

#[tokio::test]
async fn a_leader_that_is_killed_for_good_is_replaced_within_its_lease_and_nothing_is_lost()
-> Result<()> {
    let mimeo = Mimeo::by_kustomize().await?;
    let people = People::settle(&mimeo.client, "replaced").await?;
    let mut names = people.move_in_together(FILLED).await?;
    let leader = mimeo.leader().await?;
    // The kubelet would restart the container in the same pod at once. A leader of the same name
    // would take back its own Lease.
    mimeo.node.kill("kubelet").await?;
    let replaced = async {
        // The leader is killed in the middle of a rotation.
        people.rotate("second").await?;
        signal(&mimeo, &leader, Signal::KILL).await?;
        // Other changes follow while no reconciler leads.
        people.rotate("third").await?;
        names.extend(people.move_in_together(AT_ONCE).await?);
        let (last, next) = takeover(&mimeo, &leader).await?;
        within(LATEST, &last, next.acquired.0)?;
        people.have(&names, "third").await
    }
    .await;
    mimeo.node.start("kubelet").await?;
    replaced?;
    mimeo.ready().await?;
    people.rotate("fourth").await?;
    people.have(&names, "fourth").await?;
    people.leave().await
}

#[tokio::test]
async fn a_leader_that_is_killed_for_a_moment_is_followed_by_itself_or_another_and_nothing_is_lost()
-> Result<()> {
    let mimeo = Mimeo::by_kustomize().await?;
    let people = People::settle(&mimeo.client, "killed").await?;
    let names = people.move_in_together(FILLED).await?;
    let leader = mimeo.leader().await?;
    let before = restarts(&mimeo, &leader).await?;
    // The leader is killed in the middle of a rotation.
    people.rotate("second").await?;
    signal(&mimeo, &leader, Signal::KILL).await?;
    let last = lease(&mimeo).await?;
    // Any reconciler may lead next.
    let next = eventually(SOON, "a leader", || async {
        let next = lease(&mimeo).await?;
        Ok((next.renewed > last.renewed).then_some(next))
    })
    .await?;
    within(..=*LATEST.end(), &last, next.renewed.0)?;
    people.have(&names, "second").await?;
    eventually(SOON, "its container to be started again", || async {
        Ok((restarts(&mimeo, &leader).await? > before).then_some(()))
    })
    .await?;
    people.rotate("third").await?;
    people.have(&names, "third").await?;
    mimeo.ready().await?;
    people.leave().await
}

#[tokio::test]
async fn a_leader_whose_pod_is_deleted_hands_over_and_nobody_waits_for_its_lease() -> Result<()> {
    let mimeo = Mimeo::by_kustomize().await?;
    let people = People::settle(&mimeo.client, "deleted").await?;
    let names = people.move_in_together(FILLED).await?;
    let leader = mimeo.leader().await?;
    people.rotate("second").await?;
    let last = lease(&mimeo).await?;
    of::<Pod>(&mimeo.client, NAMESPACE)
        .delete(&leader, &DeleteParams::default())
        .await?;
    people.have(&names, "second").await?;
    let next = eventually(SOON, "another one to lead", || async {
        let next = lease(&mimeo).await?;
        Ok((next.holder != leader && !next.holder.is_empty()).then_some(next))
    })
    .await?;
    within(..LEASE_SECONDS, &last, next.acquired.0)?;
    people.rotate("third").await?;
    people.have(&names, "third").await?;
    mimeo.ready().await?;
    people.leave().await
}

#[tokio::test]
async fn a_leader_that_hangs_is_replaced_once_its_lease_has_expired() -> Result<()> {
    let mimeo = Mimeo::by_kustomize().await?;
    let people = People::settle(&mimeo.client, "hangs").await?;
    let names = people.move_in_together(FILLED).await?;
    let leader = mimeo.leader().await?;
    signal(&mimeo, &leader, Signal::STOP).await?;
    people.rotate("second").await?;
    let (last, next) = takeover(&mimeo, &leader).await?;
    people.have(&names, "second").await?;
    // No other reconciler may act before the last leader has given up by itself.
    within(LATEST, &last, next.acquired.0)?;
    // The liveness probe ends the process, unless it has woken up before. In both cases it no
    // longer leads, and says so.
    let _ = signal(&mimeo, &leader, Signal::CONT).await;
    people.rotate("third").await?;
    people.have(&names, "third").await?;
    mimeo.ready().await?;
    people.leave().await
}

/// Checks the time of the takeover, in seconds after the former leader's last renewal.
fn within(seconds: impl RangeBounds<i64>, last: &Held, taken: Timestamp) -> Result<()> {
    let after = taken.duration_since(last.renewed.0);
    eprintln!("taken over {after:#} after the last renewal");
    ensure!(
        seconds.contains(&after.as_secs()),
        "taken over {after:#} after the last renewal"
    );
    Ok(())
}

struct Held {
    holder: String,
    acquired: MicroTime,
    renewed: MicroTime,
}

async fn lease(mimeo: &Mimeo) -> Result<Held> {
    let lease = of::<Lease>(&mimeo.client, NAMESPACE)
        .get(Program::Reconciler.name())
        .await?;
    let spec = lease.spec.context("no spec")?;
    Ok(Held {
        // Empty after the Lease was released.
        holder: spec.holder_identity.unwrap_or_default(),
        acquired: spec.acquire_time.context("never acquired")?,
        renewed: spec.renew_time.context("never renewed")?,
    })
}

/// Returns the Lease as that leader last held it, and as another pod holds it afterwards.
async fn takeover(mimeo: &Mimeo, leader: &str) -> Result<(Held, Held)> {
    // A renewal may have been in flight when the leader died.
    let last = Mutex::new(lease(mimeo).await?);
    let next = eventually(SOON, "another pod to lead", || async {
        let now = lease(mimeo).await?;
        if now.holder != leader {
            return Ok(Some(now));
        }
        *last.lock().await = now;
        bail!("{leader} holds the Lease still")
    })
    .await?;
    let last = last.into_inner();
    ensure!(last.holder == leader, "{} led, not {leader}", last.holder);
    Ok((last, next))
}

async fn restarts(mimeo: &Mimeo, pod: &str) -> Result<i32> {
    let pod = of::<Pod>(&mimeo.client, NAMESPACE).get(pod).await?;
    Ok(pod
        .status
        .and_then(|status| status.container_statuses)
        .iter()
        .flatten()
        .map(|one| one.restart_count)
        .sum())
}

/// Signals the process of a reconciler's pod.
async fn signal(mimeo: &Mimeo, pod: &str, signal: Signal) -> Result<()> {
    let found = of::<Pod>(&mimeo.client, NAMESPACE).get(pod).await?;
    let uid = found.metadata.uid.context("no uid")?;
    for process in Node::processes("/mimeo-reconciler")? {
        // The names of the kubelet's cgroups contain the pod's uid.
        if std::fs::read_to_string(process.join("cgroup"))?.contains(&uid) {
            let id = process
                .file_name()
                .and_then(|name| name.to_str())
                .context("no id")?
                .parse()?;
            return kill_process(Pid::from_raw(id).context("no process")?, signal)
                .context("failed to signal it");
        }
    }
    bail!("no process belongs to {pod}")
}
