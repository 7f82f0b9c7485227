//! `/mutate/pods`: holds the pods of a namespace that has the pending label until its copies exist.
//!
//! The hook fails closed. The API server only asks about namespaces with the pending label, so its
//! own cache shows the label. This process's watch may be behind, or it may still show an earlier
//! namespace of the same name. The hook therefore admits or denies no pod before it has read the
//! namespace itself. That read is newer than the request and does not come from a cache.
//!
//! A pod that has to wait anyway costs no read. Held requests already take up the API server's
//! capacity for concurrent requests, and reads would need more of it.

use std::time::Duration;

use mimeo_engine::admission::{self, GateDecision, come_again};
use mimeo_model::{
    meta::Uid,
    names::PENDING_LABEL,
    registration::is_exempt,
    review::{Request, Verdict},
};
use tokio::{
    sync::SemaphorePermit,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tracing::{debug, info, warn};

use crate::app::App;

/// Other replicas help after this time. The replica that set the pending label normally fills the
/// namespace within a few milliseconds.
const HELP_AFTER: Duration = Duration::from_millis(50);
/// Shortest time between two checks of a waiting request, because changes come in bursts.
const PACE: Duration = Duration::from_millis(1);
/// Concurrent reads of namespaces. The limit keeps many pods at once from causing as many reads.
pub(crate) const READS: usize = 16;

pub(crate) async fn decide(app: &App, request: &Request, deadline: Instant) -> Verdict {
    let namespace = request.namespace.as_deref();
    let Some(namespace) = namespace.filter(|name| !is_exempt(name, &app.own_namespace)) else {
        return Verdict::ALLOW;
    };
    match wait(app, request, namespace, deadline).await {
        GateDecision::Admit { warning } => {
            if let Some(warning) = &warning {
                info!(namespace, "admitted without its copies: {warning}");
            }
            let warnings = Vec::from_iter(warning);
            Verdict::Allow { warnings }
        }
        GateDecision::Deny(message) => {
            info!(namespace, "denied: {message}");
            Verdict::deny(403, "Forbidden", message)
        }
        GateDecision::Wait(message) | GateDecision::ComeAgain(message) => {
            debug!(namespace, "told to come again: {message}");
            come_again(message)
        }
    }
}

/// Waits until there is a decision or the waiting time is over.
async fn wait(app: &App, request: &Request, namespace: &str, deadline: Instant) -> GateDecision {
    let arrived = Instant::now();
    let until = (arrived + app.pod_gate_wait).min(deadline);
    let mut help_at = (!request.dry_run).then_some(arrived + HELP_AFTER);
    let (mut held, mut confirmed) = (None, None);
    let mut changes = app.handle.changes();
    loop {
        changes.mark_unchanged();
        let progress = app.handle.look(|engine| engine.progress(namespace));
        let decision = admission::pod_gate(namespace, &progress);
        let waits = matches!(decision, GateDecision::Wait(_) | GateDecision::ComeAgain(_));
        if !waits && confirmed == progress.uid {
            return decision;
        }
        if confirmed.is_none() && (!waits || progress.uid.is_none()) {
            match read(app, namespace, until).await {
                Ok(uid) => confirmed = Some(uid),
                Err(decision) => return decision,
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
            app.handle.with(|engine| engine.take_charge(namespace));
        }
        if leave {
            return if waits {
                decision
            } else {
                // This process knows only another namespace of the same name.
                GateDecision::ComeAgain(admission::still_reading(namespace))
            };
        }
        let wake = help_at.unwrap_or(until).min(until);
        tokio::select! {
            _ = changes.changed() => sleep(PACE).await,
            () = sleep_until(wake) => {}
        }
    }
}

/// Reads a namespace, and passes its state to the engine. Returns its uid if it waits for copies,
/// and the decision otherwise. A namespace that does not exist needs no wait: the API server itself
/// refuses the request.
async fn read(app: &App, namespace: &str, until: Instant) -> Result<Uid, GateDecision> {
    let admit = GateDecision::Admit { warning: None };
    let unread = GateDecision::ComeAgain(admission::unread(namespace));
    let Ok(Ok(_permit)) = timeout_at(until, app.reads.acquire()).await else {
        return Err(unread);
    };
    let meta = match app.read_namespace(namespace, until).await {
        Ok(None) => return Err(admit),
        Ok(Some(meta)) => meta,
        Err(error) => {
            warn!(namespace, %error, "failed to read a namespace");
            return Err(unread);
        }
    };
    let labels = meta.labels.as_ref();
    let marked = labels.is_some_and(|labels| labels.contains_key(PENDING_LABEL));
    let uid = meta.uid.as_deref().and_then(Uid::parse).filter(|_| marked);
    app.handle.with(|engine| engine.namespace_applied(&meta));
    uid.ok_or(admit)
}

/// A slot among the held requests.
struct Held<'a> {
    app: &'a App,
    _room: SemaphorePermit<'a>,
}

impl<'a> Held<'a> {
    /// Takes a slot. Returns `None` if all are taken.
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
