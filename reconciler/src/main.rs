//! `mimeo-reconciler`: keeps every copy in every namespace as its rule says. Parses flags, wires, waits.

mod authors;

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use clap::Parser;
use mimeo_core::{
    engine::{Engine, Role, Settings},
    rule::RuleKind,
};
use mimeo_runtime::{
    client::{ClientArgs, Clients},
    discovery::Discovery,
    driver::{CopyRequests, Handle, Tools, announce, drive, remind, report},
    duration,
    identity::IdentityArgs,
    lease::{Election, LeaseArgs},
    limiter::Limiter,
    observer::Observer,
    reach::ReachArgs,
    seal::{self, Keyring},
    server::{OpsArgs, Readiness, serve},
    shutdown::Shutdown,
    telemetry::{TelemetryArgs, registry},
    tls::install_provider,
    writer::Writer,
};
use tokio::sync::{Notify, watch};
use tracing::info;

use crate::authors::Authors;

/// Keeps copies of Kubernetes objects where they are needed: the part outside the API request
#[derive(Debug, Parser)]
#[command(name = "mimeo-reconciler", version)]
struct Flags {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    identity: IdentityArgs,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    reach: ReachArgs,
    #[command(flatten)]
    ops: OpsArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    #[command(flatten)]
    keep: KeepArgs,
}

/// How copies are kept.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Keeping copies")]
struct KeepArgs {
    /// How long a new namespace is left to the webhook before its copies are written here (as in 2s)
    #[arg(long, env = "MIMEO_TAKEOVER_DELAY", value_name = "DURATION", default_value = "2s", value_parser = duration::parse)]
    takeover_delay: Duration,
    /// How long pods of a namespace that is new, or newly labelled, are held at most for copies of rules with `barrier:
    /// BestEffort`; the webhook must have the same (as in 10s)
    #[arg(long, env = "MIMEO_BARRIER_BUDGET", value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    barrier_budget: Duration,
    /// How long losses that nobody confirmed (namespaces that match no more, a source gone with its namespace) are collected
    /// before the first copy is deleted (as in 10s)
    #[arg(long, env = "MIMEO_DELETION_DELAY", value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    deletion_delay: Duration,
    /// Such losses are held, and deleted only when a person confirms it, from this many copies on, if they are half of their
    /// rule's copies or more
    #[arg(long, env = "MIMEO_DELETION_LIMIT", value_name = "COPIES", default_value_t = 20)]
    deletion_limit: usize,
    /// How often the authors of rules are asked about again, if no role or binding changes: whether they may still do what their
    /// rules do (as in 1h)
    #[arg(long, env = "MIMEO_AUTHOR_CHECK_PERIOD", value_name = "DURATION", default_value = "1h", value_parser = duration::parse)]
    author_check_period: Duration,
    /// How long one request may take before it counts as failed (as in 10s)
    #[arg(long, env = "MIMEO_REQUEST_TIMEOUT", value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    request_timeout: Duration,
    /// Most requests at once; fewer are used while the API server is slow
    #[arg(long, env = "MIMEO_CONCURRENCY", value_name = "REQUESTS", default_value_t = 64)]
    concurrency: usize,
}

/// Name of the Lease by which one replica leads.
const LEASE: &str = "mimeo-reconciler";

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    flags.telemetry.init()?;
    install_provider();
    let shutdown = Shutdown::on_signals()?;
    let readiness = Readiness::new(shutdown.clone());
    let mut metrics = registry();
    let counts = CopyRequests::new(&mut metrics);
    serve(&flags.ops, readiness.clone(), Arc::new(metrics)).await.context("operations server")?;

    let clients = flags.client.clients("mimeo-reconciler").await?;
    let identity = tokio::select! {
        found = flags.identity.resolve(&clients.requests) => found,
        () = shutdown.triggered() => return Ok(()),
    };
    let namespace = &identity.namespace;
    let settings = Settings {
        takeover: flags.keep.takeover_delay,
        budget: flags.keep.barrier_budget,
        sweep: flags.keep.deletion_delay,
        sweep_limit: flags.keep.deletion_limit,
        reach: flags.reach.reach(),
        ..Settings::new(Role::Keeper, identity.cluster)
    };
    let handle = Handle::new(Engine::new(settings), counts);
    let limiter = Limiter::new(4.min(flags.keep.concurrency), flags.keep.concurrency);
    let writer = Writer::new(clients.requests.clone(), limiter.clone(), flags.keep.request_timeout, namespace);
    let discovery = Arc::new(Discovery::new(clients.requests.clone()));

    let election = Election::start(&clients, namespace, LEASE, &identity.replica, &flags.lease)?;
    let leading = election.leading();
    let keyring = seal::follow(&clients, namespace, false);
    observe(&clients, &handle, &writer, &discovery, namespace, &keyring);
    let authors = Authors::new(handle.clone(), &clients, limiter.clone(), flags.keep.author_check_period);
    tokio::spawn(authors.ask(leading.clone()));
    tokio::spawn(ready(handle.clone(), readiness));
    let tools = Tools { writer: writer.clone(), limiter, discovery };
    let driving = tokio::spawn(drive(handle.clone(), tools, leading.clone()));
    tokio::spawn(report(handle.clone(), writer.clone(), leading.clone()));
    tokio::spawn(announce(handle.clone(), writer, identity.replica.clone(), leading.clone()));
    tokio::spawn(remind(handle));

    let lost = async {
        election.acquired().await;
        info!("leading");
        election.lost().await;
    };
    tokio::select! {
        () = shutdown.triggered() => info!("shutting down"),
        // What another leader has written since is not known here: starting over is the simplest way to know it.
        () = lost => anyhow::bail!("leadership lost"),
    }
    driving.abort();
    election.release().await;
    Ok(())
}

fn observe(
    clients: &Clients,
    handle: &Handle,
    writer: &Writer,
    discovery: &Arc<Discovery>,
    namespace: &str,
    keyring: &watch::Receiver<Keyring>,
) {
    let observer = Observer {
        handle: handle.clone(),
        client: clients.watches.clone(),
        writer: writer.clone(),
        discovery: discovery.clone(),
        namespace: namespace.to_owned(),
        crds: Arc::default(),
    };
    let wake = Arc::new(Notify::new());
    for kind in RuleKind::ALL {
        tokio::spawn(observer.clone().rules(kind, keyring.clone(), |_| {}));
    }
    tokio::spawn(observer.clone().grants());
    tokio::spawn(observer.clone().namespaces());
    tokio::spawn(observer.clone().kinds());
    tokio::spawn(observer.clone().webhooks());
    tokio::spawn(observer.clone().crds(wake.clone()));
    tokio::spawn(observer.demand(wake));
}

/// Ready once rules and namespaces were seen: a standby is ready, too.
async fn ready(handle: Handle, readiness: Readiness) {
    let check = readiness.check("rules and namespaces listed");
    let mut changes: watch::Receiver<u64> = handle.changes();
    while !handle.look(|engine, _| engine.primed()) {
        if changes.changed().await.is_err() {
            return;
        }
    }
    check.set(true);
}
