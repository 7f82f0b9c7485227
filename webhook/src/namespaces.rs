//! `/mutate/namespaces`: marks namespaces that must wait for copies, and keeps the mark; writes the copies of rules that come to
//! match a namespace before it does.
//!
//! Updates are never refused for what can't be written: what is required then has its pods wait.
//!
//! Its failure policy is the operator's choice. What it decides is [`mimeo_core::admission`]'s; this waits and writes.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mimeo_core::{
    admission::{self, First, InjectionDecision, Mark, come_again},
    names::MARK,
    review::{Request, Verdict},
    rule::RuleId,
    selection::Labels,
};
use mimeo_runtime::{
    client::{Fault, within},
    driver::Handle,
    observer::namespace_view,
};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{info, warn};

use crate::{hooks::App, register::MANAGER};

/// Left for the answer when waiting took all the time there was.
const RESERVE: Duration = Duration::from_millis(100);
/// Until every API server has seen a namespace's new mark; it takes some 5 ms.
const SPREADING: Duration = Duration::from_millis(50);

pub(crate) async fn decide(app: &App, request: &Request, deadline: Instant) -> Verdict {
    let until = deadline.checked_sub(RESERVE).unwrap_or(deadline);
    let token = admission::token(&request.uid);
    let look = || {
        app.handle.look(|engine, _| (engine.primed(), admission::namespace(request, engine, &app.mimeo_users, &token)))
    };
    let (primed, mut decision) = look();
    if !primed && (decision.mark == Mark::Set || decision.first == First::Mark) {
        primed_by(&app.handle, until).await;
        (_, decision) = look();
    }
    let warnings = match decision.first {
        First::Nothing => Ok(vec![]),
        First::Mark => mark_first(app, request, &token, "its labels change while the rules aren't known", until).await,
        First::Inject { labels, rules } => inject(app, request, labels, rules, &token, until).await,
    };
    let warnings = match warnings {
        Ok(warnings) => warnings,
        Err(refusal) => return refusal,
    };
    if decision.mark == Mark::Set && !request.dry_run {
        app.handle.with(|engine, now| engine.issue(&token, now));
    }
    note(request, decision.mark);
    Verdict::Patch { patch: decision.patch, warnings }
}

/// Waits until the rules are known, or for as long as there is time.
async fn primed_by(handle: &Handle, until: Instant) {
    let mut changes = handle.changes();
    let primed = async {
        while !handle.look(|engine, _| engine.primed()) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    // Late is an answer, too: the rules stay unknown.
    let _ = timeout_at(until, primed).await;
}

fn note(request: &Request, mark: Mark) {
    let namespace = request.name.as_deref().or_else(|| request.generate_name()).unwrap_or_default();
    let by = &request.username;
    match mark {
        _ if request.dry_run => {}
        Mark::Untouched => {}
        Mark::Set => info!(namespace, "namespace marked"),
        Mark::Stripped => info!(namespace, by, "mark removed that was set in advance"),
        Mark::Restored => info!(namespace, by, "mark restored"),
    }
}

/// What the author of an update is told besides, or why there can be none now.
type Told = Result<Vec<String>, Verdict>;

/// Writes the copies of these rules before the update that brings the namespace under them.
async fn inject(
    app: &App,
    request: &Request,
    labels: Labels,
    rules: BTreeSet<RuleId>,
    token: &str,
    deadline: Instant,
) -> Told {
    let name = request.name.as_deref().unwrap_or_default();
    let Some(_turn) = app.updates.take(name, deadline).await else {
        return Err(come_again(format!("another update brings namespace {name} under a rule just now")));
    };
    let until = (Instant::now() + app.barrier_wait).min(deadline);
    let count = rules.len();
    let _claim = Claim::new(&app.handle, name, request, labels, rules);
    let mut changes = app.handle.changes();
    loop {
        changes.mark_unchanged();
        let progress = app.handle.look(|engine, now| engine.progress(name, now));
        match admission::injection(name, &progress, Instant::now() >= until) {
            InjectionDecision::Admit { warnings } => {
                info!(namespace = name, rules = count, late = warnings.len(), "copies written inside an update");
                return Ok(warnings);
            }
            InjectionDecision::Mark(message) => {
                mark_first(app, request, token, &message, deadline).await?;
                return Ok(vec![message]);
            }
            InjectionDecision::Wait => {}
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return Err(come_again("Mimeo is ending".into())) },
            () = sleep_until(until) => {}
        }
    }
}

/// Marks a namespace before it gets its labels. Set by the same update, the mark would reach API servers no sooner than the pods
/// that it is to hold. This write makes the API server try the update anew, and ask again; by then it finds the mark.
///
/// Nobody redeems this mark before a pod comes, or the reconciler finds it old enough: the labels are there by then, and if not,
/// removing it makes the API server ask once more.
async fn mark_first(app: &App, request: &Request, token: &str, why: &str, deadline: Instant) -> Told {
    let name = request.name.as_deref().unwrap_or_default();
    let version = request.old_object.as_ref().map(|old| &old["metadata"]["resourceVersion"]);
    let patch = json!({"metadata": {"resourceVersion": version, "labels": {MARK: token}}});
    let api: Api<Namespace> = Api::all(app.client.clone());
    let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
    let left = deadline.saturating_duration_since(Instant::now());
    if let Err(error) = within(left, api.patch_metadata(name, &params, &Patch::Merge(patch))).await {
        warn!(namespace = name, error = %Fault(&error), "failed to mark a namespace");
        return Err(come_again(format!("Mimeo cannot mark namespace {name} now")));
    }
    info!(namespace = name, "namespace marked before its labels change: {why}");
    sleep(SPREADING).await;
    Ok(vec![])
}

/// The engine's claim on a namespace for the time of an update; let go however the request ends.
struct Claim<'a> {
    handle: &'a Handle,
    name: &'a str,
}

impl<'a> Claim<'a> {
    fn new(handle: &'a Handle, name: &'a str, request: &Request, labels: Labels, rules: BTreeSet<RuleId>) -> Self {
        let stored = request.old_object.as_ref().and_then(|old| ObjectMeta::deserialize(&old["metadata"]).ok());
        handle.with(|engine, now| {
            // The watch may be behind what the API server has shown in this request.
            if let Some(meta) = stored {
                engine.namespace_applied(&namespace_view(meta), now);
            }
            engine.claim_labels(name, labels, rules, now);
        });
        Self { handle, name }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.handle.with(|engine, now| engine.release_labels(self.name, now));
    }
}
