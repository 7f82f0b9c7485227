//! `/mutate/objects/<policy>`: rewrites objects as a `TransformPolicy` says, for every user.
//!
//! If the webhook does not answer, the policy's own failure policy decides. The hook's errors
//! follow the same failure policy as far as it is known.

use mimeo_api::FailurePolicy;
use mimeo_model::review::{Request, Verdict, is_name};
use mimeo_runtime::named;
use tracing::warn;

use crate::{
    app::App,
    metrics::Word,
    policies::{Known, POLICIES_PATH},
};

pub(crate) async fn decide(app: &App, name: &str, request: &Request) -> Verdict {
    let verdict = answer(app, name, request).await;
    if Word::of(&verdict) == Word::Patched {
        app.metrics.rewrote(name);
    }
    verdict
}

async fn answer(app: &App, name: &str, request: &Request) -> Verdict {
    if let Some(known) = app.policies.find(name) {
        return rewrite(&known, request);
    }
    if !is_name(name) {
        return Verdict::ALLOW;
    }
    // Either another replica has registered the policy and its watch was faster than this one's, or
    // the policy has just been deleted.
    match named::read(&app.client, POLICIES_PATH, name).await {
        Ok(Some(object)) => rewrite(&Known::new(object), request),
        Ok(None) => Verdict::ALLOW,
        Err(error) => {
            warn!(policy = name, %error, "failed to read a policy");
            fail(format!(
                "cannot read TransformPolicy {name} now, which rewrites this {}; try again",
                request.kind.kind
            ))
        }
    }
}

fn rewrite(known: &Known, request: &Request) -> Verdict {
    if let Ok(policy) = &known.policy {
        return policy.rewrite(request);
    }
    let name = known.name();
    let kind = &request.kind.kind;
    let advice = format!("Correct the policy: kubectl describe tpol {name} shows the reason");
    match known.object.spec.failure_policy {
        FailurePolicy::Fail => fail(format!(
            "this {kind} is refused, because TransformPolicy {name} has an invalid spec and \
             failurePolicy Fail. {advice}"
        )),
        FailurePolicy::Ignore => Verdict::Allow {
            warnings: vec![format!(
                "this {kind} is not rewritten, because TransformPolicy {name} has an invalid spec. \
                 {advice}"
            )],
        },
    }
}

fn fail(message: String) -> Verdict {
    Verdict::deny(500, "InternalError", message)
}
