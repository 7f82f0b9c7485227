//! `/mutate/namespaces`: marks namespaces that must wait for copies, and keeps the mark.
//!
//! Its failure policy is the operator's choice. What it decides is [`mimeo_engine::admission`]'s;
//! this waits and marks.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mimeo_engine::{
    Awaited,
    admission::{self, Mark, come_again},
};
use mimeo_model::{
    meta,
    names::MARK,
    registration::is_exempt,
    review::{Request, Verdict, bad_request},
};
use mimeo_runtime::{
    fault::{Fault, status, within},
    handle::Handle,
    named,
};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{info, warn};

use crate::{app::App, register::MANAGER};

/// Left for the answer when waiting took all the time there was.
const RESERVE: Duration = Duration::from_millis(100);
/// Until every API server has seen a namespace's new mark; it takes some 5 ms.
const SPREADING: Duration = Duration::from_millis(50);

pub(crate) async fn decide(app: &App, request: &Request, deadline: Instant) -> Verdict {
    if request
        .name
        .as_deref()
        .is_some_and(|name| is_exempt(name, &app.own_namespace))
    {
        return Verdict::ALLOW;
    }
    let until = deadline.checked_sub(RESERVE).unwrap_or(deadline);
    let token = admission::token(&request.uid);
    let look = || {
        app.handle.look(|engine, _| {
            (
                engine.primed(),
                admission::namespace(request, engine, &app.mimeo_users, &token),
            )
        })
    };
    let (primed, mut decision) = look();
    if !primed && (decision.mark == Mark::Set || decision.mark_first) {
        primed_by(&app.handle, until).await;
        (_, decision) = look();
    }
    if decision.mark_first
        && let Err(refusal) = mark_first(app, request, &token, until).await
    {
        return refusal;
    }
    if decision.mark == Mark::Set && !request.dry_run {
        app.handle
            .with(|engine, now| engine.issue(&token, Awaited::Namespace, now));
    }
    note(request, decision.mark);
    Verdict::Patch {
        patch: decision.patch,
        warnings: vec![],
    }
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
    let namespace = request
        .name
        .as_deref()
        .or_else(|| request.generate_name())
        .unwrap_or_default();
    let by = &request.user.name;
    match mark {
        _ if request.dry_run => {}
        Mark::Untouched => {}
        Mark::Set => info!(namespace, "namespace marked"),
        Mark::Stripped => info!(namespace, by, "mark removed that was set in advance"),
        Mark::Restored => info!(namespace, by, "mark restored"),
    }
}

/// Marks a namespace before it gets its labels, and waits until every API server knows. This write
/// makes the API server try the update anew, and ask again; by then it finds the mark. An update
/// that names the resourceVersion it was made for gets a 409 instead, and its author reads again.
async fn mark_first(
    app: &App,
    request: &Request,
    token: &str,
    deadline: Instant,
) -> Result<(), Verdict> {
    let name = request.name.as_deref().unwrap_or_default();
    // An API server always says it. Without it (and 0 is as good as none) the mark would land on
    // whatever has the name, whoever asks.
    let old = request
        .old_object
        .as_ref()
        .and_then(|old| old["metadata"]["resourceVersion"].as_str());
    let version = meta::version(old);
    if version == 0 {
        return Err(bad_request(
            "an update of a namespace without its resourceVersion".into(),
        ));
    }
    let patch =
        json!({"metadata": {"resourceVersion": version.to_string(), "labels": {MARK: token}}});
    let api: Api<Namespace> = Api::all(app.client.clone());
    let params = PatchParams {
        field_manager: Some(MANAGER.into()),
        ..PatchParams::default()
    };
    app.handle
        .with(|engine, now| engine.issue(token, Awaited::Labels, now));
    let left = deadline.saturating_duration_since(Instant::now());
    match within(
        left,
        named::patch(&api, name, &params, &Patch::Merge(patch)),
    )
    .await
    {
        Ok(_) => {
            info!(
                namespace = name,
                "namespace marked before its labels change"
            );
            sleep(SPREADING).await;
            Ok(())
        }
        // It has changed since the API server read it for this update, which therefore will be
        // tried anew, too.
        Err(error) if status(&error) == Some(409) => Ok(()),
        Err(error) => {
            warn!(namespace = name, error = %Fault(&error), "failed to mark a namespace");
            Err(come_again(format!(
                "Mimeo cannot set its pending label on namespace {name} now"
            )))
        }
    }
}
