//! The routes of the hooks, and the steps that all hooks share: from a request's bytes to the
//! response's bytes.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{FromRequestParts, Path, Query, State, rejection::QueryRejection},
    http::{StatusCode, header::CONTENT_TYPE, request::Parts},
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
    trace::{Began, Parent},
};
use serde::Deserialize;
use tokio::{
    sync::SemaphorePermit,
    time::{Instant, timeout_at},
};
use tracing::warn;

use crate::{
    app::App,
    body::{Why, receive},
    copies,
    limits::Room,
    metrics::{Hook, Word},
    namespaces, objects, pod_gate, rules,
};

/// Timeout of the API server, and the longest timeout that the webhook accepts from a caller.
const LONGEST: Duration = TIMEOUT;

/// The router, with one path for each hook.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route(NAMESPACES_PATH, post(namespaces_hook))
        .route(PODS_PATH, post(pod_gate_hook))
        .route(&format!("{OBJECTS_PATH}{{policy}}"), post(objects_hook))
        .route(AUTHORS_PATH, post(authors_hook))
        .route(RULES_PATH, post(rules_hook))
        .route(COPIES_PATH, post(copies_hook))
        .with_state(app)
}

/// Parts of the HTTP request besides the review.
#[derive(Debug)]
struct Asked {
    /// The API server's timeout, such as `5s`.
    timeout: Option<String>,
    /// The API server's trace context, if it traces this request.
    parent: Parent,
}

/// Query parameters that the API server adds to the URL.
#[derive(Debug, Deserialize)]
struct Added {
    timeout: Option<String>,
}

impl<S: Sync> FromRequestParts<S> for Asked {
    type Rejection = QueryRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let Query(Added { timeout }) = Query::try_from_uri(&parts.uri)?;
        Ok(Self {
            timeout,
            parent: Parent::of(&parts.headers),
        })
    }
}

impl Asked {
    /// Time by which the webhook must send the response. It leaves a margin before the API server's
    /// timeout.
    fn deadline(&self, arrived: Instant) -> Instant {
        let told = self
            .timeout
            .as_deref()
            .and_then(|text| duration::parse(text).ok());
        let timeout = told.map_or(LONGEST, |told| told.min(LONGEST));
        let margin = (timeout / 10).max(Duration::from_millis(200));
        arrived + timeout.saturating_sub(margin)
    }
}

type Shared = State<Arc<App>>;

async fn namespaces_hook(State(app): Shared, asked: Asked, body: Body) -> Response {
    match Review::open(&app, Hook::Namespaces, &asked, body).await {
        Ok(review) => {
            review
                .answer(namespaces::decide(&app, &review.request, review.deadline))
                .await
        }
        Err(answer) => answer,
    }
}

async fn pod_gate_hook(State(app): Shared, asked: Asked, body: Body) -> Response {
    match Review::open(&app, Hook::Pods, &asked, body).await {
        Ok(review) => {
            review
                .answer(pod_gate::decide(&app, &review.request, review.deadline))
                .await
        }
        Err(answer) => answer,
    }
}

async fn objects_hook(
    State(app): Shared,
    Path(policy): Path<String>,
    asked: Asked,
    body: Body,
) -> Response {
    match Review::open(&app, Hook::Objects, &asked, body).await {
        Ok(review) => {
            review
                .answer(objects::decide(&app, &policy, &review.request))
                .await
        }
        Err(answer) => answer,
    }
}

async fn authors_hook(State(app): Shared, asked: Asked, body: Body) -> Response {
    match Review::open(&app, Hook::Authors, &asked, body).await {
        Ok(review) => {
            review
                .answer(async { rules::note_author(&review.request) })
                .await
        }
        Err(answer) => answer,
    }
}

async fn rules_hook(State(app): Shared, asked: Asked, body: Body) -> Response {
    match Review::open(&app, Hook::Rules, &asked, body).await {
        Ok(review) => {
            review
                .answer(rules::decide(&app, &review.request, review.deadline))
                .await
        }
        Err(answer) => answer,
    }
}

async fn copies_hook(State(app): Shared, asked: Asked, body: Body) -> Response {
    match Review::open(&app, Hook::Copies, &asked, body).await {
        Ok(review) => {
            review
                .answer(copies::decide(&app, &review.request, review.deadline))
                .await
        }
        Err(answer) => answer,
    }
}

/// A review that is being answered.
struct Review<'a> {
    app: &'a App,
    hook: Hook,
    arrived: Instant,
    began: Began,
    parent: Parent,
    deadline: Instant,
    request: Request,
    /// The body's share of the room for all reviews, and the permit to decide. Both are kept until
    /// the response is made.
    _limits: (Room<'a>, Option<SemaphorePermit<'a>>),
}

impl<'a> Review<'a> {
    /// Reads the review, within the deadline of the whole request.
    ///
    /// # Errors
    /// The response for a review that cannot be read.
    async fn open(app: &'a App, hook: Hook, asked: &Asked, body: Body) -> Result<Self, Response> {
        let (arrived, began, parent) = (Instant::now(), Began::now(), asked.parent);
        let deadline = asked.deadline(arrived);
        // Without room the body is not read, so the review's uid is unknown. The response can only
        // be an HTTP error.
        let Some(mut room) = app.limits.room() else {
            Self::unread(app, hook, arrived, &Why::NoRoom);
            return Err(StatusCode::TOO_MANY_REQUESTS.into_response());
        };
        match receive(body, hook, &app.limits, &mut room, deadline).await {
            Ok((request, permit)) => Ok(Self {
                app,
                hook,
                arrived,
                began,
                parent,
                deadline,
                request,
                _limits: (room, permit),
            }),
            Err(unread) => {
                Self::unread(app, hook, arrived, &unread.why);
                Err(unread
                    .answer(hook)
                    .map_or_else(|| failed(&unread.why), json))
            }
        }
    }

    /// Logs and counts a review that could not be read.
    fn unread(app: &App, hook: Hook, arrived: Instant, why: &Why) {
        let told = if *why == Why::NoRoom {
            &app.no_room
        } else {
            &app.no_review
        };
        if told.is_news() {
            warn!(?hook, error = %why, "no review");
        }
        app.metrics.answered(hook, why.word(), arrived.elapsed());
    }

    /// Answers with the decision, or with 429 if the decision misses the deadline.
    async fn answer(&self, decision: impl Future<Output = Verdict>) -> Response {
        let late = || come_again("the webhook did not answer in time. Retry in 1 s".into());
        let verdict = timeout_at(self.deadline, decision)
            .await
            .unwrap_or_else(|_| late());
        self.app
            .metrics
            .answered(self.hook, Word::of(&verdict), self.arrived.elapsed());
        self.trace(&verdict);
        json(encode(&self.request.uid, &verdict))
    }

    fn trace(&self, verdict: &Verdict) {
        let Request {
            uid,
            kind,
            namespace,
            name,
            operation,
            ..
        } = &self.request;
        self.app
            .traces
            .record("review", self.parent, self.began, |span| {
                span.set("hook", format_args!("{:?}", self.hook));
                span.set("verdict", format_args!("{:?}", Word::of(verdict)));
                span.set("uid", uid);
                span.set("operation", format_args!("{operation:?}"));
                span.set("kind", &kind.kind);
                span.set("namespace", namespace.as_deref().unwrap_or_default());
                span.set("name", name.as_deref().unwrap_or_default());
            });
    }
}

/// Makes an HTTP error, which the API server treats as a failed call to the webhook. The API server
/// tells its clients the code, and counts it. It passes on the text only for the code 500.
fn failed(why: &Why) -> Response {
    let code = match why {
        Why::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Why::BrokenOff | Why::Late | Why::NoRoom | Why::Undecodable(_) => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    (code, why.to_string()).into_response()
}

fn json(body: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_api_server_tells_how_long_it_waits_and_which_trace_it_follows() {
        let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let asked = async |request: axum::http::request::Builder| {
            let (mut parts, ()) = request.body(()).expect("a request").into_parts();
            Asked::from_request_parts(&mut parts, &())
                .await
                .expect("nothing wrong with it")
        };
        let request = || axum::http::Request::post("/mutate/namespaces?timeout=5s");
        let bare = asked(request()).await;
        assert_eq!(
            (bare.timeout.as_deref(), bare.parent),
            (Some("5s"), Parent::None)
        );
        let traced = asked(request().header("traceparent", header)).await;
        assert!(
            matches!(traced.parent, Parent::Sampled { .. }),
            "{traced:?}"
        );
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
            let asked = Asked {
                timeout: timeout.map(Into::into),
                parent: Parent::None,
            };
            assert_eq!(
                asked.deadline(now) - now,
                Duration::from_millis(want),
                "{timeout:?}"
            );
        }
    }
}
