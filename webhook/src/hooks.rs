//! The routes of the hooks, and the steps that all hooks share: from a request's bytes to the
//! response's bytes.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::post,
};
use mimeo_engine::admission::come_again;
use mimeo_model::{
    registration::{
        AUTHORS_PATH, COPIES_PATH, NAMESPACES_PATH, OBJECTS_PATH, PODS_PATH, RULES_PATH, TIMEOUT,
    },
    review::{Request, Verdict, encode},
};
use mimeo_runtime::{
    duration,
    trace::{Parent, parent},
};
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use crate::{
    app::App,
    body::{Unread, receive},
    copies,
    metrics::{Hook, Word},
    namespaces, objects, pod_gate, rules,
};

/// The router, with one path for each hook.
pub(crate) fn router(app: Arc<App>) -> Router {
    let hook = |hook| {
        post(
            async move |State(app): State<Arc<App>>,
                        policy: Option<Path<String>>,
                        Query(added): Query<Added>,
                        headers: HeaderMap,
                        body: Body| {
                let policy = policy.map(|Path(policy)| policy).unwrap_or_default();
                let (deadline, parent) = (added.deadline(Instant::now()), parent(&headers));
                drop(headers);
                answer(&app, hook, &policy, deadline, parent, body).await
            },
        )
    };
    Router::new()
        .route(NAMESPACES_PATH, hook(Hook::Namespaces))
        .route(PODS_PATH, hook(Hook::Pods))
        .route(&format!("{OBJECTS_PATH}{{policy}}"), hook(Hook::Objects))
        .route(AUTHORS_PATH, hook(Hook::Authors))
        .route(RULES_PATH, hook(Hook::Rules))
        .route(COPIES_PATH, hook(Hook::Copies))
        .with_state(app)
}

/// Query parameters that the API server adds to the URL.
#[derive(Deserialize)]
struct Added {
    /// The API server's timeout, such as `5s`.
    timeout: Option<String>,
}

impl Added {
    /// Time by which the webhook must send the response. It leaves a margin before the API server's
    /// timeout.
    fn deadline(&self, arrived: Instant) -> Instant {
        let told = self
            .timeout
            .as_deref()
            .and_then(|text| duration::parse(text).ok());
        // The API server's own timeout is the longest that is accepted from a caller.
        let timeout = told.map_or(TIMEOUT, |told| told.min(TIMEOUT));
        let margin = (timeout / 10).max(Duration::from_millis(200));
        arrived + timeout.saturating_sub(margin)
    }
}

/// Reads a review, decides on it, and makes the response, all before the deadline. `policy` is the
/// name in the path of the hook of objects. `parent` is the API server's span, if it traces the
/// request.
async fn answer(
    app: &App,
    hook: Hook,
    policy: &str,
    deadline: Instant,
    parent: Parent,
    body: Body,
) -> Response {
    let arrived = Instant::now();
    // Without room the body is not read, so the review's uid is unknown. The response can only be
    // an HTTP error.
    let Some(mut room) = app.limits.room() else {
        unread(app, hook, &Unread::NoRoom, arrived);
        return StatusCode::TOO_MANY_REQUESTS.into_response();
    };
    // The room for the body and the permit to decide are kept until the response is made.
    let mut begun = Vec::new();
    let received = receive(body, hook, &app.limits, &mut room, deadline, &mut begun);
    let (request, _permit) = match received.await {
        Ok(received) => received,
        Err(why) => {
            unread(app, hook, &why, arrived);
            return why.answer(hook, &begun).map_or_else(|| failed(&why), json);
        }
    };
    drop(begun);
    // In a box, so that the thousands of requests that may wait for a permit stay small.
    let decision = Box::pin(decide(app, hook, policy, &request, deadline));
    let verdict = timeout_at(deadline, decision)
        .await
        .unwrap_or_else(|_| come_again("the webhook did not answer in time. Retry in 1 s".into()));
    let word = Word::of(&verdict);
    let took = arrived.elapsed();
    app.metrics.answered(hook, word, took);
    app.traces.record("review", &parent, took, |span| {
        span.set("hook", format_args!("{hook:?}"));
        span.set("verdict", format_args!("{word:?}"));
        span.set("uid", &request.uid);
        span.set("operation", format_args!("{:?}", request.operation));
        span.set("kind", &request.kind.kind);
        span.set(
            "namespace",
            request.namespace.as_deref().unwrap_or_default(),
        );
        span.set("name", request.name.as_deref().unwrap_or_default());
    });
    json(encode(&request.uid, &verdict))
}

async fn decide(
    app: &App,
    hook: Hook,
    policy: &str,
    request: &Request,
    deadline: Instant,
) -> Verdict {
    match hook {
        Hook::Namespaces => namespaces::decide(app, request, deadline).await,
        Hook::Pods => pod_gate::decide(app, request, deadline).await,
        Hook::Objects => objects::decide(app, policy, request).await,
        Hook::Authors => rules::note_author(request),
        Hook::Rules => rules::decide(app, request, deadline).await,
        Hook::Copies => copies::decide(app, request, deadline).await,
    }
}

/// Counts a review that could not be read. Any client that reaches the port can cause thousands, so
/// they are logged only on request.
fn unread(app: &App, hook: Hook, why: &Unread, arrived: Instant) {
    debug!(?hook, error = %why, "no review");
    app.metrics.answered(hook, why.word(), arrived.elapsed());
}

/// Makes an HTTP error, which the API server treats as a failed call to the webhook. The API server
/// tells its clients the code, and counts it. It passes on the text only for the code 500.
fn failed(why: &Unread) -> Response {
    let code = if *why == Unread::TooLarge {
        StatusCode::PAYLOAD_TOO_LARGE
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    (code, why.to_string()).into_response()
}

fn json(body: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_server_tells_how_long_it_waits() {
        let added = |uri: &str| Query::<Added>::try_from_uri(&uri.parse().expect("a URI"));
        let timeout = |uri| added(uri).expect("nothing wrong with it").timeout.clone();
        assert_eq!(
            timeout("/mutate/namespaces?timeout=5s").as_deref(),
            Some("5s")
        );
        assert_eq!(timeout("/mutate/namespaces"), None);
    }

    #[test]
    fn the_deadline_leaves_a_margin() {
        let now = Instant::now();
        for (timeout, want) in [
            (Some("5s"), 4_500),
            (Some("1s"), 800),
            (Some("100ms"), 0),
            (None, 4_500),
            (Some("x"), 4_500),
            (Some("1h"), 4_500),
        ] {
            let added = Added {
                timeout: timeout.map(Into::into),
            };
            assert_eq!(
                added.deadline(now) - now,
                Duration::from_millis(want),
                "{timeout:?}"
            );
        }
    }
}
