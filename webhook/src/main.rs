//! `mimeo-webhook`: the part of Mimeo that answers the API server's admission reviews.
//!
//! This file parses the flags, connects the parts, and waits for the shutdown.

mod app;
mod body;
mod compare;
mod copies;
mod flags;
mod hooks;
mod jobs;
mod limits;
mod metrics;
mod namespaces;
mod objects;
mod paced;
mod permissions;
mod pod_gate;
mod policies;
mod register;
mod rules;
mod warnings;

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use clap::Parser;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use mimeo_engine::{Engine, Settings};
use mimeo_model::{
    id::RuleKind,
    names,
    registration::{NAME, Registration},
    role::Role,
};
use mimeo_runtime::{
    certificates::callers,
    client::Clients,
    debug::DebugPages,
    discovery::Discovery,
    driver::{Tools, drive},
    handle::{CopyRequests, Handle},
    https,
    identity::{Identity, username},
    lease::{Heartbeat, HeartbeatSpec},
    limiter::Limiter,
    listen::listen,
    metrics::Metrics,
    observer::Observer,
    operations,
    readiness::{Check, Readiness},
    shutdown::Shutdown,
    tls::{self, ServingMaterial},
    writer::Writer,
};
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::{Instant, sleep_until},
};
use tracing::info;

use crate::{
    app::App,
    flags::Flags,
    hooks::router,
    limits::Limits,
    metrics::Answers,
    paced::Paced,
    permissions::Questions,
    policies::Registrar,
    register::{Kept, MANAGER, Wanted},
};

/// Timeout of one request to the API server.
const DEADLINE: Duration = Duration::from_secs(10);
/// Minimum and maximum number of concurrent requests. A webhook replica fills single namespaces;
/// the reconciler writes the bulk of the copies.
const CONCURRENCY: (usize, usize) = (4, 32);
/// Interval between renewals of this replica's Lease. A killed replica counts as alive for three
/// intervals. During that time Mimeo does not report a new rule as in force.
const HEARTBEAT: Duration = Duration::from_secs(5);

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let debug = DebugPages::new(flags.telemetry.init()?);
    tls::install_provider();
    let shutdown = Shutdown::on_signals()?;
    if let Some(job) = flags.job {
        let clients = flags.client.clients("mimeo-webhook").await?;
        let namespace = flags.identity.namespace();
        return tokio::select! {
            done = job.run(&clients.requests, &namespace) => done,
            () = shutdown.triggered() => anyhow::bail!("interrupted"),
        };
    }
    // Invalid flags end the program before it sends or answers any request.
    let (endpoint, serving_names) = flags.endpoint.resolve(&flags.identity.namespace())?;
    let pod_gate_resources = flags.hooks.pod_gate_resources()?;
    let readiness = Readiness::new(shutdown.clone());
    let checks = Checks::new(&readiness);
    let metrics = Metrics::new();
    let (answers, counts) = (metrics.add(Answers::new), metrics.add(CopyRequests::new));
    let clients = flags.client.clients("mimeo-webhook").await?;
    let guard = flags.ops.guard(&clients.requests);
    operations::serve(
        &flags.ops,
        &guard,
        readiness.clone(),
        metrics.clone(),
        &debug,
        axum::Router::new(),
    )
    .context("operations server")?;
    let listener = listen(flags.endpoint.listen)?;
    info!(address = %listener.local_addr()?, "listening");
    let asked = async {
        (
            flags.identity.resolve(&clients.requests).await,
            username(&clients.requests).await,
        )
    };
    let (identity, username) = tokio::select! {
        found = asked => found,
        () = shutdown.triggered() => return Ok(()),
    };
    let settings = Settings {
        budget: flags.hooks.pod_gate_budget,
        reach: flags.reach.reach(),
        ..Settings::new(Role::Injector, &*identity.cluster)
    };
    let traces = flags.trace.start("mimeo-webhook", &identity.replica);
    let handle = Handle::new(Engine::new(settings), counts, traces.clone());
    let mimeo_users = flags
        .hooks
        .mimeo_users(&identity.namespace, username.clone());
    let registration = Registration {
        endpoint,
        ca_bundle: None,
        own_namespace: identity.namespace.clone(),
        namespaces_failure_policy: flags.hooks.namespaces_failure_policy(),
        pod_gate_resources,
        mimeo_users: mimeo_users.clone(),
        owner: None,
    };
    let app = Arc::new(App {
        handle: handle.clone(),
        client: clients.requests.clone(),
        discovery: Arc::new(Discovery::new(clients.requests.clone())),
        policies: Arc::default(),
        traces,
        metrics: answers,
        pod_gate_wait: flags.hooks.pod_gate_wait,
        held: Semaphore::new(flags.hooks.pod_gate_max_held),
        reads: Semaphore::new(pod_gate::READS),
        questions: Questions::default(),
        limits: Limits::default(),
        no_room: Paced::default(),
        no_review: Paced::default(),
        own_namespace: identity.namespace.clone(),
        mimeo_users,
        username,
    });
    let seen = observe(&clients, &identity, &app, &checks);

    let material = flags.certificate.start(
        &clients,
        &identity.namespace,
        serving_names,
        shutdown.clone(),
    );
    metrics.of_watches(&clients.watcher.health);
    debug.of_watches(&clients.watcher.health);
    metrics.of_engine(&handle);
    metrics.of_clients(&clients);
    debug.of_engine(&handle);
    metrics.of_certificate("hooks", material.clone());
    let callers = callers::start(flags.endpoint.client_ca_file.clone());
    let config = tls::server_config_for(callers, material.clone())?;
    let serving = tokio::spawn(https::serve(
        listener,
        router(app.clone()),
        config,
        flags.drain,
        shutdown.clone(),
    ));
    // A replica that is not ready receives no requests and so holds no pods. Its Lease, which says
    // that it does, therefore starts only once it is ready.
    let ready = async {
        let overlap = flags.certificate.ca_overlap;
        let contested = register(&clients, &app, registration, material, overlap, &checks).await;
        readiness.complete().await;
        contested
    };
    let ready = tokio::select! {
        contested = ready => Some(contested),
        () = shutdown.triggered() => None,
    };
    if let Some(contested) = ready {
        let owner = flags.pod.owner(&flags.identity);
        beat(&clients, &identity, owner, (seen, contested), &shutdown).await;
    }
    serving.await.context("server")
}

/// Conditions that must hold before this replica is ready.
struct Checks {
    informed: Check,
    policies: Check,
    certificate: Check,
    registered: Check,
}

impl Checks {
    fn new(readiness: &Readiness) -> Self {
        Self {
            informed: readiness.check("rules, namespaces and sources read"),
            policies: readiness.check("policies listed"),
            certificate: readiness.check("certificate served"),
            registered: readiness.check("hooks registered"),
        }
    }
}

/// The rules that this replica has seen, as resourceVersions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// The newest change of a rule's spec. The Lease reports it at once.
    spec: u64,
    /// The newest change of any rule, including its status. Mimeo writes statuses often and nothing
    /// waits for them here, so the Lease reports this value at its next renewal.
    version: u64,
}

/// Starts the watches and the driver, which carries out the engine's decisions.
fn observe(
    clients: &Clients,
    identity: &Identity,
    app: &Arc<App>,
    checks: &Checks,
) -> watch::Receiver<Seen> {
    let limiter = Limiter::new(CONCURRENCY.0, CONCURRENCY.1);
    let writer = Writer::new(
        clients.requests.clone(),
        limiter.clone(),
        DEADLINE,
        &identity.namespace,
    );
    let observer = Observer {
        handle: app.handle.clone(),
        watcher: clients.watcher.clone(),
        writer: writer.clone(),
        discovery: app.discovery.clone(),
        namespace: identity.namespace.clone(),
        crds: Arc::default(),
        noted: Arc::default(),
    };
    let (publish, seen) = watch::channel(Seen::default());
    let handle = app.handle.clone();
    let taken_in = move |version: u64| {
        let spec = handle.look(|engine, _| engine.index().rules_seen());
        publish.send_modify(|seen| {
            *seen = Seen {
                spec: seen.spec.max(spec),
                version: seen.version.max(version),
            }
        });
    };
    let (kinds, copies) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    tokio::spawn(
        observer
            .clone()
            .rules(RuleKind::ClusterReplication, taken_in),
    );
    tokio::spawn(observer.clone().rules(RuleKind::Replication, |_| {}));
    tokio::spawn(observer.clone().grants());
    tokio::spawn(observer.clone().namespaces());
    tokio::spawn(observer.clone().kinds());
    tokio::spawn(observer.clone().crds(kinds.clone()));
    tokio::spawn(observer.demand(copies.clone()));
    let policies = app.policies.clone();
    tokio::spawn(async move {
        loop {
            kinds.notified().await;
            copies.notify_one();
            policies.kinds_changed();
        }
    });
    let listed = checks.policies.clone();
    let (policies, watcher) = (app.policies.clone(), clients.watcher.clone());
    tokio::spawn(async move { policies.follow(watcher, || listed.set(true)).await });
    tokio::spawn(informed(app.handle.clone(), checks.informed.clone()));
    let tools = Tools {
        writer,
        limiter,
        discovery: app.discovery.clone(),
    };
    let handle = app.handle.clone();
    tokio::spawn(async move {
        // Several replicas may fill namespaces at the same time. The webhook therefore needs no
        // leader.
        let (_always, active) = watch::channel(true);
        drive(handle, tools, active).await;
    });
    seen
}

/// Sets the check once the engine has read everything that a namespace's copies depend on.
async fn informed(handle: Handle, check: Check) {
    let mut changes = handle.changes();
    while !handle.look(|engine, _| engine.index().informed()) {
        if changes.changed().await.is_err() {
            return;
        }
    }
    check.set(true);
}

/// Registers the hooks and keeps them registered. Returns once the API server has them.
///
/// The returned channel holds a message while another client keeps changing the hooks of namespaces
/// and pods. For the time of `overlap`, the CA bundle also keeps the certificates that it held
/// before. Replicas of an earlier version may still run and serve such a certificate.
async fn register(
    clients: &Clients,
    app: &App,
    registration: Registration,
    mut material: watch::Receiver<Option<Arc<ServingMaterial>>>,
    overlap: Duration,
    checks: &Checks,
) -> watch::Receiver<Option<String>> {
    let before = register::trusted_before(clients).await;
    let overlap_ends = Instant::now() + overlap;
    let served = checks.certificate.clone();
    let (publish, current) = watch::channel(None);
    let registrar = Registrar::new(
        app.policies.clone(),
        clients,
        &app.metrics,
        app.discovery.clone(),
    );
    tokio::spawn(registrar.run(current));
    let kept = Arc::new((
        Kept::mutating(clients, &app.metrics, NAME),
        Kept::validating(clients, &app.metrics, NAME),
    ));
    let hooks = kept.clone();
    tokio::spawn(async move {
        loop {
            let overlaps = Instant::now() < overlap_ends;
            if let Some(material) = material.borrow_and_update().clone() {
                let before = if overlaps { before.as_str() } else { "" };
                let ca_bundle = material
                    .ca_bundle
                    .as_ref()
                    .map(|own| compare::joined(own, before));
                let registration = Registration {
                    ca_bundle,
                    ..registration.clone()
                };
                hooks.0.want(Wanted::Mutating(registration.clone()));
                hooks.1.want(Wanted::Validating(registration.clone()));
                publish.send_replace(Some(registration));
                served.set(true);
            }
            tokio::select! {
                changed = material.changed() => if changed.is_err() { return },
                () = sleep_until(overlap_ends), if overlaps => {}
            }
        }
    });
    kept.0.holds().await;
    kept.1.holds().await;
    checks.registered.set(true);
    kept.0.contested()
}

/// Keeps this replica's Lease, which shows three things: the replica is alive, which rules it has
/// seen, and whether another client keeps changing its hooks. Removes the Lease at shutdown.
async fn beat(
    clients: &Clients,
    identity: &Identity,
    owner: Option<OwnerReference>,
    (mut seen, mut contested): (watch::Receiver<Seen>, watch::Receiver<Option<String>>),
    shutdown: &Shutdown,
) {
    let heartbeat = Heartbeat::start(
        clients,
        HeartbeatSpec {
            namespace: identity.namespace.clone(),
            name: format!("mimeo-webhook-{}", identity.replica),
            holder: identity.replica.clone(),
            labels: [(names::REPLICA.to_owned(), names::REPLICA_WEBHOOK.to_owned())].into(),
            owner,
            period: HEARTBEAT,
            field_manager: MANAGER.to_owned(),
        },
    );
    let mut told: Option<Seen> = None;
    loop {
        let now = *seen.borrow_and_update();
        if told.is_none_or(|told| now.spec > told.spec) {
            heartbeat.annotate(names::SEEN, Some(&now.version.to_string()));
        } else {
            heartbeat.annotate_later(names::SEEN, &now.version.to_string());
        }
        told = Some(now);
        heartbeat.annotate(names::CONTESTED, contested.borrow_and_update().as_deref());
        tokio::select! {
            () = shutdown.triggered() => break,
            changed = seen.changed() => if changed.is_err() { break },
            changed = contested.changed() => if changed.is_err() { break },
        }
    }
    heartbeat.stop().await;
}
