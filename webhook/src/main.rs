//! `mimeo-webhook`: the part of Mimeo that answers the API server's admission reviews.
//!
//! This file parses the flags, connects the parts, and waits for the shutdown.

mod app;
mod body;
mod compare;
mod copies;
mod flags;
mod heartbeat;
mod hooks;
mod jobs;
mod limits;
mod metrics;
mod namespaces;
mod objects;
mod permissions;
mod pod_gate;
mod policies;
mod register;
mod rules;
mod warnings;

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use clap::Parser;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use mimeo_engine::Settings;
use mimeo_model::{
    registration::{NAME, Registration},
    role::Role,
};
use mimeo_runtime::{
    call::DEADLINE,
    certificates::{Trusted, callers},
    client::Clients,
    driver::drive,
    https,
    identity::{Identity, username},
    limiter::Limiter,
    listen::listen,
    observer::Observer,
    program::Program,
    readiness::Check,
    tls::{Callers, Certificate, Tls},
    writer::Writer,
};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, sleep_until},
};
use tracing::info;

use crate::{
    app::App, flags::Flags, heartbeat::beat, hooks::router, limits::Limits, metrics::Answers,
    permissions::Questions, policies::Registrar, register::Keeper,
};

/// The program's name in the API server's audit log and in traces.
const PROGRAM: &str = "mimeo-webhook";
/// Minimum and maximum number of concurrent requests. A webhook replica fills single namespaces;
/// the reconciler writes the bulk of the copies.
const CONCURRENCY: (usize, usize) = (4, 32);

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let program = Program::start(PROGRAM, &flags.program).await?;
    let Some(job) = flags.job else {
        return Box::pin(serve(flags, program)).await;
    };
    let namespace = flags.program.identity.namespace();
    let job = job.run(&program.clients.requests, &namespace);
    let done = program.shutdown.run_until_cancelled(job).await;
    done.context("interrupted")?
}

/// Answers reviews until the shutdown.
async fn serve(flags: Flags, program: Program) -> anyhow::Result<()> {
    // Invalid flags end the program before it sends or answers any request.
    let (endpoint, serving_names) = flags
        .endpoint
        .resolve(&flags.program.identity.namespace())?;
    // Conditions that must hold before this replica is ready.
    let informed = program
        .readiness
        .check("rules, namespaces and sources read");
    let listed = program.readiness.check("policies listed");
    let served = program.readiness.check("certificate served");
    let verifiable = program.readiness.check("CA of API servers loaded");
    let registered = program.readiness.check("hooks registered");
    program.operate(&flags.program.ops, |_| axum::Router::new())?;
    let listener = listen(flags.endpoint.listen)?;
    info!(address = %listener.local_addr()?, "listening");
    let Program {
        clients, shutdown, ..
    } = &program;
    let asked = async {
        let identity = flags.program.identity.resolve(&clients.requests).await;
        (identity, username(&clients.requests).await)
    };
    let Some((identity, username)) = shutdown.run_until_cancelled(asked).await else {
        return Ok(());
    };
    let (app, writer) = app(&flags, &program, &identity, username)?;
    observe(clients, writer, &app, informed, listed);

    let namespace = &identity.namespace;
    let certificate = &flags.certificate;
    let material = certificate.start(clients, namespace, serving_names, shutdown.clone());
    program.metrics.of_certificate("hooks", material.clone());
    let tls = Tls {
        material: material.clone(),
        callers: flags.endpoint.client_ca_file.clone().map(callers::start),
    };
    tokio::spawn(verifies(tls.callers.clone(), verifiable));
    let (hooks, drain) = (router(app.clone()), flags.drain.clone());
    let serving = tokio::spawn(https::serve(listener, hooks, tls, drain, shutdown.clone()));
    let registration = Registration {
        endpoint,
        ca_bundle: None,
        own_namespace: namespace.clone(),
        namespaces_failure_policy: flags.hooks.namespaces_failure_policy,
        pod_gate_resources: flags.hooks.pod_gate_resources.clone(),
        mimeo_users: app.mimeo_users.clone(),
    };
    // A replica that is not ready receives no requests and so holds no pods. Its Lease, which says
    // that it does, therefore starts only once it is ready.
    let ready = async {
        let overlap = certificate.lifetimes.overlap;
        let contested = register(clients, &app, registration, material, overlap, served).await;
        registered.set(true);
        program.readiness.complete().await;
        contested
    };
    if let Some(contested) = shutdown.run_until_cancelled(ready).await {
        let owner = flags.pod.owner(&flags.program.identity);
        beat(clients, &identity, owner, &app.handle, contested, shutdown).await;
    }
    serving.await.context("server")
}

/// The state that the hooks share, with the means to carry out the decisions of its engine.
fn app(
    flags: &Flags,
    program: &Program,
    identity: &Identity,
    username: String,
) -> anyhow::Result<(Arc<App>, Writer)> {
    let settings = Settings {
        budget: flags.hooks.pod_gate_budget,
        reach: flags.program.reach.reach(),
        ..Settings::new(Role::Injector, &*identity.cluster)
    };
    let traces = flags.program.trace.start(PROGRAM, &identity.replica)?;
    let own_namespace = identity.namespace.clone();
    let client = program.clients.requests.clone();
    let (least, most) = CONCURRENCY;
    let limiter = Limiter::new(least, most);
    let writer = Writer::new(client.clone(), limiter, DEADLINE, &own_namespace);
    let app = App {
        handle: program.engine(settings, traces.clone()),
        questions: Questions::new(client.clone()),
        client,
        discovery: writer.discovery.clone(),
        policies: Arc::default(),
        traces,
        metrics: program.metrics.add(Answers::new),
        pod_gate_wait: flags.hooks.pod_gate_wait,
        held: Semaphore::new(flags.hooks.pod_gate_max_held),
        reads: Semaphore::new(pod_gate::READS),
        limits: Limits::default(),
        mimeo_users: flags.hooks.mimeo_users(&own_namespace, username.clone()),
        own_namespace,
        username,
    };
    Ok((Arc::new(app), writer))
}

/// Starts the watches and the driver, which carries out the engine's decisions.
fn observe(clients: &Clients, writer: Writer, app: &Arc<App>, informed: Check, listed: Check) {
    let policies = app.policies.clone();
    Observer::new(&app.handle, &clients.watcher, &writer).start(move || policies.kinds_changed());
    let (policies, watcher) = (app.policies.clone(), clients.watcher.clone());
    tokio::spawn(async move { policies.follow(watcher, || listed.set(true)).await });
    let handle = app.handle.clone();
    tokio::spawn(async move {
        handle.until(|engine| engine.index().informed()).await;
        informed.set(true);
    });
    let handle = app.handle.clone();
    tokio::spawn(async move {
        // Several replicas may fill namespaces at the same time. The webhook therefore needs no
        // leader.
        let (_always, active) = watch::channel(true);
        drive(handle, writer, active).await;
    });
}

/// Waits until callers can be verified, if a file names the CA of their certificates.
async fn verifies(callers: Option<Callers>, check: Check) {
    if let Some(mut callers) = callers
        && callers.wait_for(Option::is_some).await.is_err()
    {
        return;
    }
    check.set(true);
}

/// Registers the hooks and keeps them registered. Returns once the API server has them.
///
/// The returned channel holds a message while another client keeps changing the hooks of namespaces
/// and pods. For the time of `overlap`, the CA bundle also keeps the certificates of a former CA,
/// and those that it held before. Other replicas may still serve a certificate that only these can
/// verify.
async fn register(
    clients: &Clients,
    app: &App,
    mut registration: Registration,
    mut material: Certificate,
    overlap: Duration,
    served: Check,
) -> watch::Receiver<Option<String>> {
    let before = register::trusted_before(clients).await;
    let mut trusted = Trusted::new(overlap, &before, Instant::now());
    let (publish, current) = watch::channel(None);
    let registrar = Registrar::new(
        app.policies.clone(),
        clients,
        &app.metrics,
        app.discovery.clone(),
    );
    tokio::spawn(registrar.run(current));
    let kept = Arc::new((
        Keeper::<MutatingWebhookConfiguration>::start(clients, &app.metrics, NAME),
        Keeper::<ValidatingWebhookConfiguration>::start(clients, &app.metrics, NAME),
    ));
    let hooks = kept.clone();
    tokio::spawn(async move {
        loop {
            let now = Instant::now();
            if let Some(material) = material.borrow_and_update().clone() {
                let ca = material.ca_bundle.as_ref();
                registration.ca_bundle = ca.map(|ca| trusted.bundle(ca, now));
                hooks.0.want(registration.mutating());
                hooks.1.want(registration.validating());
                publish.send_replace(Some(registration.clone()));
                served.set(true);
            }
            let ends = trusted.ends(now);
            tokio::select! {
                changed = material.changed() => if changed.is_err() { return },
                () = sleep_until(ends.unwrap_or(now)), if ends.is_some() => {}
            }
        }
    });
    kept.0.holds().await;
    kept.1.holds().await;
    kept.0.contested.clone()
}
