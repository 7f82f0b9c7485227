//! `/mutate/pods`: pods of a marked namespace wait here for its copies.
//!
//! Fails closed: it is only asked about namespaces whose copies are missing. That the API server
//! asks at all says that it has seen the mark; this process's own watch may be behind, or still
//! show an earlier namespace of the same name. So nothing is admitted or denied before a read, not
//! from a cache and not older than the request, has shown which namespace it is. What has to wait
//! anyway costs no read: held requests take up the API server's seats, of which reads would need
//! more.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use mimeo_engine::admission::{self, GateDecision, come_again, forbid};
use mimeo_model::{
    meta::Uid,
    names::MARK,
    registration::is_exempt,
    review::{Request, Verdict},
};
use mimeo_runtime::{
    fault::{Fault, within},
    named,
};
use tokio::{
    sync::SemaphorePermit,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tracing::{debug, info, warn};

use crate::app::{App, Live};

/// The replica that marked a namespace fills it within a few milliseconds; only when it hasn't by
/// then do others help.
const HELP_AFTER: Duration = Duration::from_millis(50);
/// Changes come in bursts: a waiting request looks no more often than this.
const PACE: Duration = Duration::from_millis(1);
/// Reads of namespaces at once, so that a storm of pods is none of reads.
pub(crate) const READS: usize = 16;

pub(crate) async fn decide(app: &App, request: &Request, deadline: Instant) -> Verdict {
    let Some(namespace) = request
        .namespace
        .as_deref()
        .filter(|name| !is_exempt(name, &app.own_namespace))
    else {
        return Verdict::ALLOW;
    };
    match wait(app, request, namespace, deadline).await {
        GateDecision::Admit { warnings } => {
            if !warnings.is_empty() {
                info!(
                    namespace,
                    "admitted without its copies: {}",
                    warnings.join(" ")
                );
            }
            Verdict::Allow { warnings }
        }
        GateDecision::Deny(message) => {
            info!(namespace, "denied: {message}");
            forbid(message)
        }
        GateDecision::Wait(message) | GateDecision::ComeAgain(message) => {
            debug!(namespace, "told to come again: {message}");
            come_again(message)
        }
    }
}

/// Waits until something can be said, or waiting has been long enough.
async fn wait(app: &App, request: &Request, namespace: &str, deadline: Instant) -> GateDecision {
    let arrived = Instant::now();
    let until = (arrived + app.pod_gate_wait).min(deadline);
    let mut help_at = (!request.dry_run).then_some(arrived + HELP_AFTER);
    let (mut held, mut confirmed) = (None, None);
    let mut changes = app.handle.changes();
    loop {
        changes.mark_unchanged();
        let progress = app
            .handle
            .look(|engine, now| engine.progress(namespace, now));
        let decision = admission::pod_gate(namespace, &progress);
        let waits = matches!(decision, GateDecision::Wait(_) | GateDecision::ComeAgain(_));
        if !waits && confirmed == progress.uid {
            return decision;
        }
        if confirmed.is_none() && (!waits || progress.uid.is_none()) {
            match read(app, namespace, until).await {
                Live::Marked(uid) => confirmed = Some(uid),
                Live::Unmarked => return GateDecision::Admit { warnings: vec![] },
                Live::Unknown => {
                    return GateDecision::ComeAgain(format!(
                        "Mimeo cannot read namespace {namespace} now"
                    ));
                }
            }
            continue;
        }
        held = held.or_else(|| Held::new(app));
        let again = matches!(decision, GateDecision::ComeAgain(_));
        let leave = again || request.dry_run || held.is_none() || Instant::now() >= until;
        if help_at
            .take_if(|at| leave || *at <= Instant::now())
            .is_some()
        {
            app.handle
                .with(|engine, now| engine.take_charge(namespace, now));
        }
        if leave {
            return if waits {
                decision
            } else {
                elsewhere(namespace)
            };
        }
        let wake = help_at.unwrap_or(until).min(until);
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return elsewhere(namespace);
                }
                sleep(PACE).await;
            }
            () = sleep_until(wake) => {}
        }
    }
}

/// What this process knows is about another namespace of that name.
fn elsewhere(namespace: &str) -> GateDecision {
    GateDecision::ComeAgain(admission::still_reading(namespace))
}

/// Reads a namespace. The engine learns its state, too.
async fn read(app: &App, namespace: &str, until: Instant) -> Live {
    let Ok(Ok(_permit)) = timeout_at(until, app.reads.acquire()).await else {
        return Live::Unknown;
    };
    let api: Api<Namespace> = Api::all(app.client.clone());
    let left = until.saturating_duration_since(Instant::now());
    let meta = match within(left, named::read_metadata(&api, namespace)).await {
        Ok(None) => return Live::Unmarked,
        Ok(Some(meta)) => meta,
        Err(error) => {
            warn!(namespace, error = %Fault(&error), "failed to read a namespace");
            return Live::Unknown;
        }
    };
    let marked = meta
        .labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(MARK));
    let uid = meta.uid.as_deref().and_then(Uid::parse).filter(|_| marked);
    app.handle
        .with(|engine, now| engine.namespace_applied(&meta, now));
    uid.map_or(Live::Unmarked, Live::Marked)
}

/// A place among the held requests.
struct Held<'a> {
    app: &'a App,
    _room: SemaphorePermit<'a>,
}

impl<'a> Held<'a> {
    /// None if all places are taken.
    fn new(app: &'a App) -> Option<Self> {
        let room = app.held.try_acquire().ok()?;
        app.metrics.held.inc();
        Some(Self { app, _room: room })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.app.metrics.held.dec();
    }
}
