//! `/validate/copies`: refuses changes to copies of rules with `driftPolicy: Deny`.
//!
//! The hook fails open, here as in the API server: the reconciler restores the copy after a change
//! that was let through.

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use mimeo_model::{
    drift,
    review::{Request, Verdict},
};
use mimeo_runtime::{
    fault::{Fault, until},
    named,
};
use tokio::time::Instant;
use tracing::warn;

use crate::app::App;

pub(crate) async fn decide(app: &App, request: &Request, deadline: Instant) -> Verdict {
    let guard = app
        .handle
        .look(|engine, _| drift::guard(request, |rule, copy| engine.index().guards(rule, copy)));
    let (Some(rule), Some(namespace)) = (guard, request.namespace.as_deref()) else {
        return Verdict::ALLOW;
    };
    let api: Api<Namespace> = Api::all(app.client.clone());
    match until(deadline, named::read_metadata(&api, namespace)).await {
        Ok(Some(live)) if live.deletion_timestamp.is_none() => drift::refusal(request, &rule),
        Ok(_) => Verdict::ALLOW,
        Err(error) => {
            warn!(namespace, error = %Fault(&error), "failed to read a namespace: a change of a \
                copy is let through");
            Verdict::ALLOW
        }
    }
}
