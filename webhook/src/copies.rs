//! `/validate/copies`: refuses changes to copies of rules with `driftPolicy: Deny`.
//!
//! The hook fails open, here as in the API server: the reconciler restores the copy after a change
//! that was let through.

use mimeo_model::{
    drift,
    review::{Request, Verdict},
};
use tokio::time::Instant;
use tracing::warn;

use crate::app::App;

pub(crate) async fn decide(app: &App, request: &Request, deadline: Instant) -> Verdict {
    let guard = app.index(|index| drift::guard(request, |rule, copy| index.guards(rule, copy)));
    let (Some(rule), Some(namespace)) = (guard, request.namespace.as_deref()) else {
        return Verdict::ALLOW;
    };
    match app.read_namespace(namespace, deadline).await {
        Ok(Some(live)) if live.deletion_timestamp.is_none() => drift::refusal(request, &rule),
        Ok(_) => Verdict::ALLOW,
        Err(error) => {
            warn!(namespace, %error, "failed to read a namespace: a change of a \
                copy is let through");
            Verdict::ALLOW
        }
    }
}
