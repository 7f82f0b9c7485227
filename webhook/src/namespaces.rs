//! `/mutate/namespaces`: sets the pending label on namespaces that must wait for copies, and guards
//! it against other users.
//!
//! The operator chooses the hook's failure policy. [`mimeo_engine::admission`] makes the decisions;
//! this file waits and writes the label.

use std::time::Duration;

use mimeo_engine::admission::{self, NamespaceDecision, come_again};
use mimeo_model::{
    meta,
    names::PENDING_LABEL,
    registration::is_exempt,
    review::{Request, Verdict, bad_request},
};
use mimeo_runtime::{call::CallError, named};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{info, warn};

use crate::{app::App, register::MANAGER};

/// Time kept for the answer when waiting has used up the rest.
const RESERVE: Duration = Duration::from_millis(100);
/// Time until every API server has seen a namespace's new pending label. It takes about 5 ms.
const SPREADING: Duration = Duration::from_millis(50);

pub(crate) async fn decide(app: &App, request: &Request, deadline: Instant) -> Verdict {
    let name = request.name.as_deref();
    if name.is_some_and(|name| is_exempt(name, &app.own_namespace)) {
        return Verdict::ALLOW;
    }
    let until = deadline.checked_sub(RESERVE).unwrap_or(deadline);
    let nonce = admission::nonce(&request.uid);
    let look = || {
        app.handle.look(|engine| {
            let index = engine.index();
            (
                index.primed(),
                admission::namespace(request, index, &app.mimeo_users, &nonce),
            )
        })
    };
    let (primed, mut decision) = look();
    if !primed && (decision.sets_label || decision.label_first) {
        // After a timeout the rules stay unknown, and the decision covers that case.
        let primed = app.handle.until(|engine| engine.index().primed());
        let _ = timeout_at(until, primed).await;
        (_, decision) = look();
    }
    if decision.label_first
        && let Err(refusal) = label_first(app, request, &nonce, until).await
    {
        return refusal;
    }
    if decision.sets_label && !request.dry_run {
        app.handle.with(|engine| engine.issue(&nonce));
    }
    note(request, &decision);
    Verdict::Patch {
        patch: decision.patch,
        warnings: vec![],
    }
}

fn note(request: &Request, decision: &NamespaceDecision) {
    let namespace = request.shown_name();
    let by = &request.user.name;
    match decision {
        _ if request.dry_run => {}
        decision if decision.sets_label => info!(namespace, "pending label set"),
        decision if decision.patch.is_empty() => {}
        _ => info!(namespace, by, "a user's change of the pending label undone"),
    }
}

/// Sets the pending label on a namespace before the namespace gets its new labels. Then waits until
/// every API server has seen the label.
///
/// This write changes the namespace, so the API server retries the update and calls the hook again.
/// The second call finds the pending label. If the update names a resourceVersion, the API server
/// answers it with 409 instead, and its client reads the namespace again.
async fn label_first(
    app: &App,
    request: &Request,
    nonce: &str,
    deadline: Instant,
) -> Result<(), Verdict> {
    let name = request.name.as_deref().unwrap_or_default();
    // An API server always sends a resourceVersion. Without one (or with 0) any caller could put
    // the pending label on whichever namespace has this name.
    let old = request.old_object.as_ref();
    let version = old.and_then(|old| old["metadata"]["resourceVersion"].as_str());
    let version = meta::version(version);
    if version == 0 {
        return Err(bad_request(format!(
            "the update of namespace {name} has no resourceVersion"
        )));
    }
    let patch = json!({"metadata": {"resourceVersion": version.to_string(), "labels": {PENDING_LABEL: nonce}}});
    app.handle.with(|engine| engine.issue(nonce));
    let path = "/api/v1/namespaces";
    let written = named::merge(&app.client, path, name, MANAGER, &patch);
    let written = timeout_at(deadline, written).await;
    match written.unwrap_or(Err(CallError::Late)) {
        Ok(()) => {
            info!(
                namespace = name,
                "pending label set before the labels change"
            );
            sleep(SPREADING).await;
            Ok(())
        }
        // The namespace has changed since the API server read it for this update. The API server
        // therefore retries this update as well.
        Err(CallError::Conflict) => Ok(()),
        Err(error) => {
            warn!(namespace = name, %error, "failed to set the pending label");
            Err(come_again(format!(
                "cannot set the pending label on namespace {name} now. Retry in 1 s"
            )))
        }
    }
}
