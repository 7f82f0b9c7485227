//! The leader among the reconcilers dies, or hangs: another one goes on, not too early and with nothing lost.

use std::ops::RangeBounds;

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

use crate::people::People;

const FILLED: usize = 30;
/// As shipped.
const LEASE_SECONDS: i64 = 15;
/// The Lease's time, one period between attempts, and what a busy machine adds.
const LATEST: i64 = LEASE_SECONDS + 2 + 4;

#[tokio::test]
async fn a_leader_that_is_killed_comes_back_and_nothing_is_lost() -> Result<()> {
    let mimeo = Mimeo::by_kustomize().await?;
    let people = People::settle(&mimeo.client, "killed").await?;
    let names = people.move_in_together(FILLED).await?;
    let leader = mimeo.leader().await?;
    let before = restarts(&mimeo, &leader).await?;
    // Right in the middle of a rotation.
    people.rotate("second").await?;
    signal(&mimeo, &leader, Signal::KILL).await?;
    let last = lease(&mimeo).await?;
    people.have(&names, "second").await?;
    // Whoever it is.
    let next = eventually(SOON, "somebody to lead", || async {
        let next = lease(&mimeo).await?;
        Ok((next.renewed > last.renewed).then_some(next))
    })
    .await?;
    within(..LATEST, &last, next.renewed.0)?;
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
    of::<Pod>(&mimeo.client, NAMESPACE).delete(&leader, &DeleteParams::default()).await?;
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
    let last = lease(&mimeo).await?;
    people.rotate("second").await?;
    people.have(&names, "second").await?;
    let next = lease(&mimeo).await?;
    ensure!(last.holder == leader && next.holder != leader, "{} was followed by {}", last.holder, next.holder);
    // Nobody may act before the last leader has given up by itself.
    within(LEASE_SECONDS..LATEST, &last, next.acquired.0)?;
    // The probe ends it unless it has awoken before; either way it isn't the leader any more, and says so.
    let _ = signal(&mimeo, &leader, Signal::CONT).await;
    people.rotate("third").await?;
    people.have(&names, "third").await?;
    mimeo.ready().await?;
    people.leave().await
}

/// Whether somebody took over that many seconds after the last renewal of before.
fn within(seconds: impl RangeBounds<i64>, last: &Held, taken: Timestamp) -> Result<()> {
    let after = taken.duration_since(last.renewed.0);
    eprintln!("taken over {after:#} after the last renewal");
    ensure!(seconds.contains(&after.as_secs()), "taken over {after:#} after the last renewal");
    Ok(())
}

struct Held {
    holder: String,
    acquired: MicroTime,
    renewed: MicroTime,
}

async fn lease(mimeo: &Mimeo) -> Result<Held> {
    let lease = of::<Lease>(&mimeo.client, NAMESPACE).get(Program::Reconciler.name()).await?;
    let spec = lease.spec.context("no spec")?;
    Ok(Held {
        // None after it was released.
        holder: spec.holder_identity.unwrap_or_default(),
        acquired: spec.acquire_time.context("never acquired")?,
        renewed: spec.renew_time.context("never renewed")?,
    })
}

async fn restarts(mimeo: &Mimeo, pod: &str) -> Result<i32> {
    let pod = of::<Pod>(&mimeo.client, NAMESPACE).get(pod).await?;
    Ok(pod.status.and_then(|status| status.container_statuses).iter().flatten().map(|one| one.restart_count).sum())
}

/// Signals the process of a reconciler's pod.
async fn signal(mimeo: &Mimeo, pod: &str, signal: Signal) -> Result<()> {
    let found = of::<Pod>(&mimeo.client, NAMESPACE).get(pod).await?;
    let uid = found.metadata.uid.context("no uid")?;
    for process in Node::processes("/mimeo-reconciler")? {
        // The kubelet's groups are named after pods.
        if std::fs::read_to_string(process.join("cgroup"))?.contains(&uid) {
            let id = process.file_name().and_then(|name| name.to_str()).context("no id")?.parse()?;
            return kill_process(Pid::from_raw(id).context("no process")?, signal).context("failed to signal it");
        }
    }
    bail!("no process belongs to {pod}")
}
