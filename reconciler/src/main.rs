//! `mimeo-reconciler`: keeps every copy in every namespace as its rule says.
//!
//! This file parses the flags, connects the parts, and waits for the shutdown.

mod ui;

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use clap::Parser;
use mimeo_engine::{Engine, Settings};
use mimeo_model::{id::RuleKind, role::Role};
use mimeo_runtime::{
    client::{ClientArgs, Clients},
    debug::DebugPages,
    definitions,
    discovery::Discovery,
    driver::{Tools, announce, drive, remind, report},
    duration,
    handle::{CopyRequests, Handle},
    identity::IdentityArgs,
    lease::{Election, LeaseArgs},
    limiter::Limiter,
    metrics::Metrics,
    observer::Observer,
    operations::{OpsArgs, serve},
    reach::ReachArgs,
    readiness::{Check, Readiness},
    shutdown::Shutdown,
    telemetry::TelemetryArgs,
    tls::install_provider,
    trace::TraceArgs,
    writer::Writer,
};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tracing::info;

use crate::ui::{Known, UiArgs};

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
    ui: UiArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    keep: KeepArgs,
}

/// How copies are kept.
#[derive(Debug, clap::Args)]
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

/// Name of the Lease that elects the leading replica.
const LEASE: &str = "mimeo-reconciler";

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let debug = DebugPages::new(flags.telemetry.init()?);
    install_provider();
    let shutdown = Shutdown::on_signals()?;
    let readiness = Readiness::new(shutdown.clone());
    let checks = Checks::new(&readiness);
    let metrics = Metrics::new();
    let counts = metrics.add(CopyRequests::new);
    let clients = flags.client.clients("mimeo-reconciler").await?;
    let guard = flags.ops.guard(&clients.requests);
    let page = flags.ui.page();
    let routes = page
        .as_ref()
        .map(|page| page.routes(&guard))
        .unwrap_or_default();
    serve(
        &flags.ops,
        &guard,
        readiness,
        metrics.clone(),
        &debug,
        routes,
    )
    .context("operations server")?;
    let identity = tokio::select! {
        found = flags.identity.resolve(&clients.requests) => found,
        () = shutdown.triggered() => return Ok(()),
    };
    let namespace = &identity.namespace;
    let settings = Settings {
        takeover: flags.keep.takeover_delay,
        budget: flags.keep.pod_gate_budget,
        deletion_delay: flags.keep.deletion_delay,
        deletion_limit: flags.keep.deletion_limit,
        deletion_window: flags.keep.deletion_window,
        reach: flags.reach.reach(),
        ..Settings::new(Role::Keeper, identity.cluster)
    };
    let traces = flags.trace.start("mimeo-reconciler", &identity.replica);
    let handle = Handle::new(Engine::new(settings), counts, traces);
    let limiter = Limiter::new(4.min(flags.keep.concurrency), flags.keep.concurrency);
    let writer = Writer::new(
        clients.requests.clone(),
        limiter.clone(),
        flags.keep.request_timeout,
        namespace,
    );
    let discovery = Arc::new(Discovery::new(clients.requests.clone()));

    let election = Election::start(&clients, namespace, LEASE, &identity.replica, &flags.lease)?;
    let leading = election.leading();
    metrics.of_watches(&clients.watcher.health);
    debug.of_watches(&clients.watcher.health);
    metrics.of_engine(&handle);
    debug.of_engine(&handle);
    metrics.of_leader(&handle, leading.clone());
    metrics.of_clients(&clients);
    if flags.keep.rule_metrics > 0 {
        metrics.of_rules(&handle, leading.clone(), flags.keep.rule_metrics);
    }
    let leads = leading.clone();
    debug.add("leading", move || (*leads.borrow()).into());
    if let Some(page) = page {
        page.open(Known {
            handle: handle.clone(),
            leading: leading.clone(),
            leader: election.holder(),
            replica: identity.replica.clone(),
            namespace: namespace.clone(),
        });
    }
    observe(&clients, &handle, &writer, &discovery, namespace);
    tokio::spawn(definitions::follow(
        clients.watcher.clone(),
        checks.current.clone(),
    ));
    tokio::spawn(ready(handle.clone(), checks));
    let tools = Tools {
        writer: writer.clone(),
        limiter,
        discovery,
    };
    let driving = tokio::spawn(drive(handle.clone(), tools, leading.clone()));
    tokio::spawn(report(handle.clone(), writer.clone(), leading.clone()));
    tokio::spawn(announce(
        handle.clone(),
        writer,
        identity.replica.clone(),
        leading.clone(),
    ));
    tokio::spawn(remind(handle));

    let lost = async {
        election.acquired().await;
        info!("leading");
        election.lost().await;
    };
    tokio::select! {
        () = shutdown.triggered() => info!("shutting down"),
        // This process does not know the writes of another leader since then. Starting over is the
        // simplest way to learn them.
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
) {
    let observer = Observer {
        handle: handle.clone(),
        watcher: clients.watcher.clone(),
        writer: writer.clone(),
        discovery: discovery.clone(),
        namespace: namespace.to_owned(),
        crds: Arc::default(),
        noted: Arc::default(),
    };
    let wake = Arc::new(Notify::new());
    for kind in RuleKind::ALL {
        tokio::spawn(observer.clone().rules(kind, |_| {}));
    }
    tokio::spawn(observer.clone().grants());
    tokio::spawn(observer.clone().namespaces());
    tokio::spawn(observer.clone().kinds());
    tokio::spawn(observer.clone().webhooks());
    tokio::spawn(observer.clone().crds(wake.clone()));
    tokio::spawn(observer.demand(wake));
}

/// Conditions that must hold before this replica is ready. A standby replica is ready too.
struct Checks {
    listed: Check,
    readable: Check,
    current: Check,
}

impl Checks {
    fn new(readiness: &Readiness) -> Self {
        Self {
            listed: readiness.check("rules and namespaces listed"),
            readable: readiness.check("ClusterReplications readable"),
            current: readiness.check("definitions up to date"),
        }
    }
}

/// Keeps two checks current: rules and namespaces have been listed, and `ClusterReplications` can
/// still be read.
async fn ready(
    handle: Handle,
    Checks {
        listed, readable, ..
    }: Checks,
) {
    let mut changes: watch::Receiver<u64> = handle.changes();
    loop {
        let (primed, follows) =
            handle.look(|engine, _| (engine.index().primed(), engine.index().follows_rules()));
        listed.set(primed);
        readable.set(follows);
        if changes.changed().await.is_err() {
            return;
        }
        // Thousands of changes arrive while copies are written. The pause combines them.
        sleep(Duration::from_millis(100)).await;
    }
}
