//! `mimeo-reconciler`: keeps every copy in every namespace as its rule says.
//!
//! This file parses the flags, connects the parts, and waits for the shutdown.

mod leader_label;
mod ui;

use std::time::Duration;

use clap::Parser;
use mimeo_engine::Settings;
use mimeo_model::role::Role;
use mimeo_runtime::{
    client::Clients,
    definitions,
    driver::{announce, drive, report},
    duration,
    handle::Handle,
    identity::Identity,
    lease::{Candidate, LeaseArgs},
    limiter::Limiter,
    observer::Observer,
    program::{Program, ProgramArgs},
    readiness::Check,
    writer::Writer,
};
use tokio::{sync::watch, task::JoinHandle, time::sleep};

use crate::{
    leader_label::LabelArgs,
    ui::{Known, UiArgs},
};

/// Keeps copies of Kubernetes objects where they are needed: the part outside the API request
#[derive(Parser)]
#[command(name = "mimeo-reconciler", version)]
struct Flags {
    #[command(flatten)]
    program: ProgramArgs,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    label: LabelArgs,
    #[command(flatten)]
    ui: UiArgs,
    #[command(flatten)]
    keep: KeepArgs,
}

/// How copies are kept.
#[derive(clap::Args)]
#[command(next_help_heading = "Keeping copies")]
struct KeepArgs {
    /// Time for the webhook to fill a new namespace before the reconciler writes its copies (as in
    /// 2s)
    #[arg(long, env = "MIMEO_TAKEOVER_DELAY", value_name = "DURATION", default_value = "2s", value_parser = duration::parse)]
    takeover_delay: Duration,
    /// Longest time that pods of a new or newly labelled namespace wait for copies of rules with
    /// `podGate: BestEffort`; the webhook must have the same value (as in 10s)
    #[arg(long, env = "MIMEO_POD_GATE_BUDGET", value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pod_gate_budget: Duration,
    /// Time to collect unconfirmed losses (namespaces that no longer match, a source deleted with
    /// its namespace) before the first copy is deleted (as in 10s)
    #[arg(long, env = "MIMEO_DELETION_DELAY", value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    deletion_delay: Duration,
    /// Number of copies from which such losses are held until a person confirms them, if they are
    /// at least half of the rule's copies
    #[arg(
        long,
        env = "MIMEO_DELETION_LIMIT",
        value_name = "COPIES",
        default_value_t = 20
    )]
    deletion_limit: usize,
    /// Time for which a deleted copy still counts among its rule's losses (as in 10m)
    #[arg(long, env = "MIMEO_DELETION_WINDOW", value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    deletion_window: Duration,
    /// Number of rules with a metric of their own, `mimeo_rule_copies`: the first by name
    #[arg(
        long,
        env = "MIMEO_RULE_METRICS",
        value_name = "RULES",
        default_value_t = 0
    )]
    rule_metrics: usize,
    /// How long one request may take before it counts as failed (as in 10s)
    #[arg(long, env = "MIMEO_REQUEST_TIMEOUT", value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    request_timeout: Duration,
    /// Most requests at once; fewer are used while the API server is slow
    #[arg(
        long,
        env = "MIMEO_CONCURRENCY",
        value_name = "REQUESTS",
        default_value_t = 64
    )]
    concurrency: usize,
}

/// The program's name in the API server's audit log and in traces.
const PROGRAM: &str = "mimeo-reconciler";
/// Name of the Lease that elects the leading replica.
const LEASE: &str = "mimeo-reconciler";

// One thread is enough: the engine does one thing at a time. A second one took a seventh more
// processor time, for wake-ups between them.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let program = Program::start(PROGRAM, &flags.program).await?;
    // Conditions that must hold before this replica is ready. A standby replica is ready too.
    let listed = program.readiness.check("rules and namespaces listed");
    let readable = program.readiness.check("ClusterReplications readable");
    let current = program.readiness.check("definitions up to date");
    let page = flags.ui.page();
    program.operate(&flags.program.ops, |guard| {
        let routes = page.as_ref().map(|page| page.routes(guard));
        routes.unwrap_or_default()
    })?;
    let Program {
        clients,
        metrics,
        shutdown,
        ..
    } = &program;
    let identity = flags.program.identity.resolve(&clients.requests);
    let Some(identity) = shutdown.run_until_cancelled(identity).await else {
        return Ok(());
    };
    let traces = flags.program.trace.start(PROGRAM, &identity.replica)?;
    let handle = program.engine(settings(&flags, &identity.cluster), traces);

    let candidate = Candidate::new(clients, &identity, LEASE, flags.lease)?;
    let leading = candidate.leading();
    metrics.of_leader(&handle, leading.clone(), flags.keep.rule_metrics);
    let label = flags
        .label
        .follow(clients.requests.clone(), identity.clone(), leading.clone());
    tokio::spawn(label);
    let leads = leading.clone();
    program
        .debug
        .add("leading", move || (*leads.borrow()).into());
    if let Some(page) = page {
        page.open(Known {
            handle: handle.clone(),
            leading: leading.clone(),
            leader: candidate.holder(),
            identity: identity.clone(),
        });
    }
    let driving = keep(&flags.keep, clients, &handle, &identity, leading);
    tokio::spawn(definitions::check(clients.requests.clone(), current));
    tokio::spawn(ready(handle, listed, readable));

    // After a loss this process does not know the writes of another leader. Starting over is the
    // simplest way to learn them.
    let held = candidate.run(shutdown).await?;
    driving.abort();
    if let Some(lease) = held {
        candidate.release(lease).await;
    }
    Ok(())
}

fn settings(flags: &Flags, cluster: &str) -> Settings {
    let KeepArgs {
        takeover_delay,
        pod_gate_budget,
        deletion_delay,
        deletion_limit,
        deletion_window,
        ..
    } = flags.keep;
    Settings {
        takeover: takeover_delay,
        budget: pod_gate_budget,
        deletion_delay,
        deletion_limit,
        deletion_window,
        reach: flags.program.reach.reach(),
        ..Settings::new(Role::Keeper, cluster)
    }
}

/// Starts the watches, and the tasks that carry out and report the engine's decisions while this
/// replica leads. Returns the task that writes copies.
fn keep(
    args: &KeepArgs,
    clients: &Clients,
    handle: &Handle,
    identity: &Identity,
    leading: watch::Receiver<bool>,
) -> JoinHandle<()> {
    let most = args.concurrency;
    let writer = Writer::new(
        clients.requests.clone(),
        Limiter::new(4.min(most), most),
        args.request_timeout,
        &identity.namespace,
    );
    let observer = Observer::new(handle, &clients.watcher, &writer);
    observer.start(|| {});
    tokio::spawn(observer.webhooks());
    tokio::spawn(report(handle.clone(), writer.clone(), leading.clone()));
    let (events, reporter) = (writer.clone(), identity.replica.clone());
    tokio::spawn(announce(handle.clone(), events, reporter, leading.clone()));
    tokio::spawn(drive(handle.clone(), writer, leading))
}

/// Keeps two checks current: rules and namespaces have been listed, and `ClusterReplications` can
/// still be read.
async fn ready(handle: Handle, listed: Check, readable: Check) {
    let mut changes = handle.changes();
    loop {
        let (primed, follows) =
            handle.look(|engine| (engine.index().primed(), engine.index().follows_rules()));
        listed.set(primed);
        readable.set(follows);
        let _ = changes.changed().await;
        // Thousands of changes arrive while copies are written. The pause combines them.
        sleep(Duration::from_millis(100)).await;
    }
}
