//! From bytes to bytes: the routes, what every hook has in common, and what all of them know.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, Query, State, rejection::BytesRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::post,
};
use kube::Client;
use mimeo_core::{
    admission::come_again,
    registration::{BARRIER_PATH, NAMESPACES_PATH, OBJECTS_PATH, RULES_PATH},
    review::{Request, Undecodable, Verdict, decode, encode},
};
use mimeo_runtime::{discovery::Discovery, driver::Handle, duration};
use serde::Deserialize;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use tracing::warn;

use crate::{
    barrier::{self, Live},
    metrics::{Hook, Metrics},
    namespaces, objects,
    policies::Policies,
    rules,
    turns::Turns,
};

/// Object and old object travel together, each up to etcd's 1.5 MiB and grown by JSON's escapes; API servers send no more than
/// this.
const BODY_LIMIT: usize = 7 << 20;
/// The API server's own default, should it not say how long it waits.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What the hooks know and share.
pub(crate) struct App {
    /// Rules, namespaces and copies.
    pub(crate) handle: Handle,
    /// For reads that no cache may answer.
    pub(crate) client: Client,
    /// Which kinds there are.
    pub(crate) discovery: Arc<Discovery>,
    /// The policies.
    pub(crate) policies: Arc<Policies>,
    /// Counters.
    pub(crate) metrics: Metrics,
    /// How long one request may be held.
    pub(crate) barrier_wait: Duration,
    /// Room for held requests.
    pub(crate) held: Semaphore,
    /// Reads of namespaces: when each began, and what it showed.
    pub(crate) reads: Turns<Option<(Instant, Live)>>,
    /// Users who may change the mark.
    pub(crate) mimeo_users: Vec<String>,
}

/// The hooks, each at its path.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route(NAMESPACES_PATH, post(namespaces_hook))
        .route(BARRIER_PATH, post(barrier_hook))
        .route(&format!("{OBJECTS_PATH}{{policy}}"), post(objects_hook))
        .route(RULES_PATH, post(rules_hook))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(app)
}

/// What the API server adds to the URL.
#[derive(Debug, Deserialize)]
struct Asked {
    /// How long it waits, as in `5s`.
    timeout: Option<String>,
}

impl Asked {
    /// When the answer must be on its way.
    fn deadline(&self, arrived: Instant) -> Instant {
        let timeout = self.timeout.as_deref().and_then(|text| duration::parse(text).ok()).unwrap_or(TIMEOUT);
        let margin = (timeout / 10).max(Duration::from_millis(200));
        arrived + timeout.saturating_sub(margin)
    }
}

type Shared = State<Arc<App>>;
/// As far as it could be read.
type Body = Result<Bytes, BytesRejection>;

async fn namespaces_hook(State(app): Shared, Query(asked): Query<Asked>, body: Body) -> Response {
    let review = match Review::open(&app, Hook::Namespaces, &asked, body) {
        Ok(review) => review,
        Err(answer) => return json(answer),
    };
    review.answer(namespaces::decide(&app, &review.request, review.deadline)).await
}

async fn barrier_hook(State(app): Shared, Query(asked): Query<Asked>, body: Body) -> Response {
    let review = match Review::open(&app, Hook::Barrier, &asked, body) {
        Ok(review) => review,
        Err(answer) => return json(answer),
    };
    review.answer(barrier::decide(&app, &review.request, review.deadline)).await
}

async fn objects_hook(
    State(app): Shared,
    Path(policy): Path<String>,
    Query(asked): Query<Asked>,
    body: Body,
) -> Response {
    let review = match Review::open(&app, Hook::Objects, &asked, body) {
        Ok(review) => review,
        Err(answer) => return json(answer),
    };
    review.answer(objects::decide(&app, &policy, &review.request)).await
}

async fn rules_hook(State(app): Shared, Query(asked): Query<Asked>, body: Body) -> Response {
    let review = match Review::open(&app, Hook::Rules, &asked, body) {
        Ok(review) => review,
        Err(answer) => return json(answer),
    };
    review.answer(rules::decide(&app, &review.request, review.deadline)).await
}

/// A review under way.
struct Review<'a> {
    app: &'a App,
    hook: Hook,
    arrived: Instant,
    deadline: Instant,
    request: Request,
}

impl<'a> Review<'a> {
    /// Reads it.
    ///
    /// # Errors
    /// The answer that says why that can't be done.
    fn open(app: &'a App, hook: Hook, asked: &Asked, body: Body) -> Result<Self, Vec<u8>> {
        let arrived = Instant::now();
        match body.map_err(|rejection| unread(&rejection)).and_then(|body| decode(&body)) {
            Ok(request) => Ok(Self { app, hook, arrived, deadline: asked.deadline(arrived), request }),
            Err(undecodable) => {
                warn!(?hook, error = %undecodable, "undecodable review");
                app.metrics.answered(hook, None, arrived.elapsed());
                Err(undecodable.answer())
            }
        }
    }

    /// Answers with what is decided, in time.
    async fn answer(&self, decision: impl Future<Output = Verdict>) -> Response {
        let late = || come_again("Mimeo has no answer in time".into());
        let verdict = timeout_at(self.deadline, decision).await.unwrap_or_else(|_| late());
        self.app.metrics.answered(self.hook, Some(&verdict), self.arrived.elapsed());
        json(encode(&self.request.uid, &verdict))
    }
}

/// Why there is no body.
fn unread(rejection: &BytesRejection) -> Undecodable {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        Undecodable::unread(format!("over {} MiB", BODY_LIMIT >> 20))
    } else {
        Undecodable::unread("it broke off")
    }
}

fn json(body: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_leaves_a_margin() {
        let now = Instant::now();
        for (timeout, want) in
            [(Some("5s"), 4_500), (Some("1s"), 800), (Some("100ms"), 0), (None, 9_000), (Some("x"), 9_000)]
        {
            let asked = Asked { timeout: timeout.map(Into::into) };
            assert_eq!(asked.deadline(now) - now, Duration::from_millis(want), "{timeout:?}");
        }
    }
}
