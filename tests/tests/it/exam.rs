//! A random exam: seeded edits in rounds on a real control plane, with `kill -9`, judged by a model
//! written for this test.
//!
//! After each round the cluster must reach the state that the model computes, and keep it.
//!
//! - `model.rs` is the model, written from the documents.
//! - `judge.rs` compares the cluster with the model. `memory.rs` keeps the history that it needs.
//! - `edits.rs` and `rules.rs` choose the edits.
//! - `pods.rs` decides which pods had to wait.
//! - `cluster.rs` writes and reads the cluster.
//! - `plugin.rs` compares `kubectl mimeo` with the statuses.
//!
//! `MIMEO_EXAM_ROUNDS` is the number of rounds, `MIMEO_EXAM_SEED` the seed. A seed fixes the edits
//! and the kills, but not the races between the processes.

#![allow(unreachable_pub)] // One binary of several files.

mod cluster;
mod dice;
mod edits;
mod judge;
mod memory;
mod model;
mod plugin;
mod pods;
mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::DeleteParams;
use mimeo_tests::scenario::{SOON, Setting, of};
use mimeo_tests::{AuditEvent, AuditMark, ControlPlane, NAMESPACE, Pair, Replica, unique};

use self::cluster::{Chronicle, in_force, is_led, observe};
use self::dice::Dice;
use self::edits::Exam;
use self::judge::{Judge, Observed};

const ROUNDS: &str = "MIMEO_EXAM_ROUNDS";
const SEED: &str = "MIMEO_EXAM_SEED";
const DEFAULT_ROUNDS: u64 = 30;
const DEFAULT_SEED: u64 = 20_261_123;
/// After this many rounds, the exam starts again in a new cluster, with the next seed.
const SCENE: u64 = 100;
/// One in this many rounds waits first until all pod gates are in force, which takes some seconds.
/// Its edits are mostly of namespaces and pods.
const GATES: u64 = 3;
/// The number of edits in a round.
const EDITS: u64 = 16;
/// The longest time between two edits, in milliseconds.
const PAUSE: u64 = 50;
/// In the final state, no write may happen for this long.
const IDLE: Duration = Duration::from_millis(400);
const POLL: Duration = Duration::from_millis(50);

fn number(variable: &str, default: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{variable} is no number")),
        Err(_) => Ok(default),
    }
}

#[tokio::test]
async fn the_cluster_is_what_the_documents_say_whatever_people_do_and_whoever_is_killed()
-> Result<()> {
    let (rounds, mut seed) = (number(ROUNDS, DEFAULT_ROUNDS)?, number(SEED, DEFAULT_SEED)?);
    let mut done = 0;
    while done < rounds {
        let scene = SCENE.min(rounds - done);
        eprintln!("{SEED}={seed} {ROUNDS}={scene}");
        sit(seed, scene).await?;
        (done, seed) = (done + scene, seed + 1);
    }
    Ok(())
}

/// Mimeo with two webhooks and two reconcilers.
struct Hall {
    setting: Setting,
    /// The reconciler besides the one in the setting.
    second: Option<Replica>,
}

/// The program that is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Webhook,
    Reconciler,
    OtherReconciler,
}

async fn open() -> Result<Hall> {
    let control_plane = ControlPlane::builder().audit(true);
    // Large losses, which Mimeo holds, belong to other tests. A slow machine may not use up the
    // time budget of the pods.
    let budget = ["--pod-gate-budget", "300s"];
    let strict = [
        "--namespaces-failure-policy",
        "Fail",
        "--shutdown-delay",
        "0s",
    ];
    let lease = ["--lease-retry-period", "300ms"];
    let deletions = ["--deletion-delay", "500ms", "--deletion-limit", "1000000"];
    let pair = Pair::builder()
        .webhooks(2)
        .webhook_args(strict.into_iter().chain(budget))
        .reconciler_args(lease.into_iter().chain(deletions).chain(budget));
    let mut setting = Setting::start(control_plane, pair).await?;
    let second = setting.pair.reconciler.take();
    setting.pair.start_reconciler().await?;
    Ok(Hall { setting, second })
}

/// Runs this many rounds in one cluster.
async fn sit(seed: u64, rounds: u64) -> Result<()> {
    let mut hall = open().await?;
    let client = hall.setting.control_plane.client().await?;
    let chronicle = Chronicle::begin(&client).await?;
    let mut dice = Dice(!seed);
    let mut exam = Exam::new(client.clone(), unique("exam"), seed).await?;
    let mut slowest = Duration::ZERO;
    let mut kills = 0;
    let mut coverage: BTreeMap<&str, usize> = BTreeMap::new();
    let mut compared: BTreeMap<&str, usize> = BTreeMap::new();
    for round in 0..=rounds {
        let started = Instant::now();
        let gates = round > 0 && round.is_multiple_of(GATES);
        let force = if gates {
            exam.await_force().await?
        } else {
            in_force(&client).await?
        };
        let plan = if round == 0 {
            Vec::new()
        } else {
            plan(&mut dice)
        };
        kills += plan.len();
        if round > 0 {
            exam.begin_round();
            exam.round.killed_webhook = plan
                .iter()
                .any(|(_, victim)| matches!(victim, Victim::Webhook));
            exam.round.killed_reconciler = plan
                .iter()
                .any(|(_, victim)| !matches!(victim, Victim::Webhook));
            let edits = 4 + exam.dice.below(EDITS);
            let steps = exam.steps.clone();
            let editing = async {
                for _ in 0..edits {
                    exam.act(gates).await?;
                    tokio::time::sleep(Duration::from_millis(dice.below(PAUSE))).await;
                }
                // The tasks that still wait for a step can continue.
                steps.fetch_add(1000, Ordering::SeqCst);
                Ok::<_, anyhow::Error>(())
            };
            let outcome = tokio::try_join!(editing, kill(&client, &mut hall, &plan, steps.clone()));
            if let Err(error) = outcome {
                report(&exam, seed, round, &plan, &[format!("{error:#}")]);
                return Err(error);
            }
        }
        let mut differences = settle(&exam, &hall).await.err().unwrap_or_default();
        let (pods, round_so_far, memory) = (&mut exam.pods, &exam.round, &exam.memory);
        differences.extend(pods.join(round_so_far, memory, &force, &chronicle).await?);
        differences.append(&mut exam.complaints);
        if !differences.is_empty() {
            report(&exam, seed, round, &plan, &differences);
            bail!(
                "{SEED}={seed}, round {round}: {} differences",
                differences.len()
            );
        }
        chronicle.forget();
        let observed = observe(&client, &exam.tag).await?;
        let judge = Judge::new(&exam.memory, &exam.round, &observed, &exam.tag);
        differences = judge.differences();
        if !differences.is_empty() {
            report(&exam, seed, round, &plan, &differences);
            bail!("{SEED}={seed}, round {round}: it didn't stay so");
        }
        if gates {
            for (what, number) in plugin::agrees(&client, &hall.setting.control_plane).await? {
                *compared.entry(what).or_default() += number;
            }
        }
        judge
            .coverage
            .borrow()
            .iter()
            .for_each(|(what, count)| *coverage.entry(*what).or_default() += count);
        let taken = exam.memory.advance(&exam.round, &observed, &exam.tag);
        exam.world.foreign.retain(|cell, _| !taken.contains(cell));
        slowest = slowest.max(started.elapsed());
        eprintln!(
            "round {round}: {} edits, {plan:?}, {:?}",
            exam.edits,
            started.elapsed()
        );
    }
    exam.await_ends().await?;
    let pods = &exam.pods;
    eprintln!(
        "{rounds} rounds, {kills} kills, slowest round {slowest:?}; pods: {} admitted, {} denied, {} copies looked for before them, {} missing where labels came back at once",
        pods.admitted, pods.denied, pods.checked, pods.excepted
    );
    coverage
        .iter()
        .chain(&compared)
        .for_each(|(what, count)| eprintln!("{count:6} {what}"));
    if rounds < DEFAULT_ROUNDS {
        return Ok(());
    }
    ensure!(pods.checked > 0, "no pod had copies to wait for");
    ensure!(!compared.is_empty(), "kubectl mimeo was never compared");
    for (what, count) in &compared {
        // Rules are rarely suspended. So in few rounds `diff` may have no plan to foretell.
        let rare = what.ends_with("diff") && rounds < SCENE;
        ensure!(*count > 0 || rare, "{rounds} rounds compared no {what}");
    }
    Ok(())
}

/// Plans the kills: mostly one or two, one after the other. Each has the number of the edit that it
/// precedes.
fn plan(dice: &mut Dice) -> Vec<(usize, Victim)> {
    let victims = [Victim::Webhook, Victim::Reconciler, Victim::OtherReconciler];
    let count = dice.below(3);
    let mut plan: Vec<_> = (0..count)
        .filter_map(|_| {
            Some((
                usize::try_from(dice.below(EDITS)).ok()?,
                dice.one_of(&victims)?,
            ))
        })
        .collect();
    plan.sort_by_key(|(step, _)| *step);
    plan
}

async fn kill(
    client: &Client,
    hall: &mut Hall,
    plan: &[(usize, Victim)],
    steps: Arc<AtomicUsize>,
) -> Result<()> {
    for (step, victim) in plan {
        while steps.load(Ordering::SeqCst) < *step {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let pair = &mut hall.setting.pair;
        match victim {
            Victim::Webhook => {
                // The other webhook answers meanwhile.
                let mut victim = pair.webhooks.remove(0);
                victim.program.kill()?;
                pair.start_webhook().await?;
                // The killed process counts as a replica until its Lease expires. Rules would wait
                // until it knows them.
                let leases = of::<Lease>(client, NAMESPACE);
                leases
                    .delete(
                        &format!("mimeo-webhook-{}", victim.name),
                        &DeleteParams::default(),
                    )
                    .await?;
            }
            Victim::Reconciler | Victim::OtherReconciler => {
                if matches!(victim, Victim::OtherReconciler) {
                    std::mem::swap(&mut pair.reconciler, &mut hall.second);
                }
                let mut victim = pair.reconciler.take().context("no reconciler runs")?;
                victim.program.kill()?;
                // If the killed process led, its Lease would have to expire, which takes long. With
                // a shorter time, leaders on a busy machine would lose it.
                if is_led(client, &[&victim.name]).await? {
                    let leases = of::<Lease>(client, NAMESPACE);
                    leases
                        .delete("mimeo-reconciler", &DeleteParams::default())
                        .await?;
                }
                pair.start_reconciler().await?;
            }
        }
    }
    Ok(())
}

/// Waits until the cluster equals the model, a reconciler leads, and Mimeo writes nothing more.
async fn settle(exam: &Exam, hall: &Hall) -> Result<(), Vec<String>> {
    let until = Instant::now() + SOON / 2;
    loop {
        let now = try_settle(exam, hall)
            .await
            .unwrap_or_else(|error| vec![format!("{error:#}")]);
        if now.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(now);
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn try_settle(exam: &Exam, hall: &Hall) -> Result<Vec<String>> {
    let observed = observe(&exam.client, &exam.tag).await?;
    let told = differences(exam, &observed);
    if !told.is_empty() {
        return Ok(told);
    }
    let reconcilers: Vec<&str> = hall
        .setting
        .pair
        .reconciler
        .iter()
        .chain(&hall.second)
        .map(|replica| replica.name.as_str())
        .collect();
    if !is_led(&exam.client, &reconcilers).await? {
        return Ok(vec!["no reconciler leads".to_owned()]);
    }
    let mark = hall.setting.control_plane.audit_mark().await?;
    // No write may happen in this time, so there is no condition to wait for.
    tokio::time::sleep(IDLE).await;
    let written = written(hall, &mark, &exam.tag).await?;
    Ok(written
        .iter()
        .map(|event| format!("not idle: {} {} ({})", event.verb, event.uri, event.code))
        .collect())
}

fn differences(exam: &Exam, observed: &Observed) -> Vec<String> {
    Judge::new(&exam.memory, &exam.round, observed, &exam.tag).differences()
}

/// Returns Mimeo's writes since then, without its own objects, statuses and Events.
async fn written(hall: &Hall, mark: &AuditMark, tag: &str) -> Result<Vec<AuditEvent>> {
    let mut events = hall.setting.control_plane.audit_since(mark).await?;
    events.retain(|event| {
        let object = event.namespace.starts_with(tag) || event.resource == "namespaces";
        let reported = event.resource == "events" || event.subresource == "status";
        hall.setting.is_ours(event) && event.is_write() && event.code < 300 && object && !reported
    });
    Ok(events)
}

fn report(exam: &Exam, seed: u64, round: u64, plan: &[(usize, Victim)], differences: &[String]) {
    eprintln!("=== {SEED}={seed}, round {round}, kills {plan:?} ===");
    eprintln!("--- the rules before it ---");
    for (id, rule) in exam
        .round
        .states
        .first()
        .iter()
        .flat_map(|world| &world.rules)
    {
        eprintln!("  {}: {}", id.word(), rules::brief(&rule.spec));
    }
    eprintln!("--- differences ---");
    differences
        .iter()
        .for_each(|difference| eprintln!("  {difference}"));
    eprintln!("--- the world ---");
    for (id, rule) in &exam.world.rules {
        eprintln!("  {}: {}", id.word(), rules::brief(&rule.spec));
    }
    for (name, namespace) in &exam.world.namespaces {
        eprintln!("  {name}: {:?}", namespace.labels);
    }
    eprintln!(
        "  sources {:?}",
        exam.world
            .sources
            .keys()
            .map(|cell| cell.name.as_str())
            .collect::<Vec<_>>()
    );
    eprintln!("  grants {:?}", exam.world.grants);
    eprintln!(
        "  foreign {:?}",
        exam.world.foreign.keys().collect::<Vec<_>>()
    );
    for (cell, held) in &exam.memory.copies {
        if differences.iter().any(|difference| {
            difference.contains(&cell.name) && difference.contains(&cell.namespace)
        }) {
            eprintln!(
                "  before: {}/{}: uid {}, {:?}",
                cell.namespace, cell.name, held.object.uid, held.holder
            );
        }
    }
}
