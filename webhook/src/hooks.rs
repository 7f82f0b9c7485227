//! From bytes to bytes: the routes, what every hook has in common, and what all of them know.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{FromRequestParts, Path, Query, State, rejection::QueryRejection},
    http::{StatusCode, header::CONTENT_TYPE, request::Parts},
    response::{IntoResponse, Response},
    routing::post,
};
use kube::Client;
use mimeo_core::{
    admission::come_again,
    registration::{
        BARRIER_PATH, COPIES_PATH, NAMESPACES_PATH, OBJECTS_PATH, RULES_PATH, SOURCES_PATH, STAMPS_PATH, TIMEOUT,
    },
    review::{Kept, Request, Verdict, encode},
};
use mimeo_runtime::{
    discovery::Discovery,
    driver::Handle,
    duration,
    guard::Peer,
    seal::Keyring,
    trace::{Began, Parent, Traces},
};
use serde::Deserialize;
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout_at},
};
use tracing::warn;

use crate::{
    author::Questions,
    barrier::{self, Live},
    body::{Why, receive},
    copies,
    memory::{Memory, Room},
    metrics::{Answers, Hook, Word},
    namespaces, objects,
    paced::Paced,
    policies::Policies,
    rules, sources, stamps,
    turns::Turns,
};

/// How long API servers wait, and so does whoever else says that he waits longer.
const LONGEST: Duration = TIMEOUT;

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
    /// What stamps are sealed with.
    pub(crate) keyring: watch::Receiver<Keyring>,
    /// Who wants a span of each review.
    pub(crate) traces: Traces,
    /// Counters.
    pub(crate) metrics: Answers,
    /// How long one request may be held.
    pub(crate) barrier_wait: Duration,
    /// Room for held requests.
    pub(crate) held: Semaphore,
    /// Reads of namespaces: when each began, and what it showed.
    pub(crate) reads: Turns<Option<(Instant, Live)>>,
    /// What they have the API server asked.
    pub(crate) questions: Questions,
    /// For reviews under way.
    pub(crate) memory: Memory,
    /// When it was last logged that there was no memory for a review.
    pub(crate) no_room: Paced,
    /// When it was last logged that a review could not be read.
    pub(crate) no_review: Paced,
    /// Where Mimeo itself runs.
    pub(crate) own_namespace: String,
    /// Users who may change the mark.
    pub(crate) mimeo_users: Vec<String>,
    /// The one that this program is.
    pub(crate) username: String,
}

/// The hooks, each at its path.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route(NAMESPACES_PATH, post(namespaces_hook))
        .route(BARRIER_PATH, post(barrier_hook))
        .route(&format!("{OBJECTS_PATH}{{policy}}"), post(objects_hook))
        .route(STAMPS_PATH, post(stamps_hook))
        .route(RULES_PATH, post(rules_hook))
        .route(COPIES_PATH, post(copies_hook))
        .route(SOURCES_PATH, post(sources_hook))
        .with_state(app)
}

/// What the API server says besides the review.
#[derive(Debug)]
struct Asked {
    /// How long it waits, as in `5s`.
    timeout: Option<String>,
    /// The trace that it makes of this request, if it traces.
    parent: Parent,
    /// Where it asks from.
    peer: Option<IpAddr>,
}

/// What it adds to the URL.
#[derive(Debug, Deserialize)]
struct Added {
    timeout: Option<String>,
}

impl<S: Sync> FromRequestParts<S> for Asked {
    type Rejection = QueryRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let Query(Added { timeout }) = Query::try_from_uri(&parts.uri)?;
        let peer = parts.extensions.get::<Peer>().map(|Peer(peer)| peer.ip().to_canonical());
        Ok(Self { timeout, parent: Parent::of(&parts.headers), peer })
    }
}

impl Asked {
    /// When the answer must be on its way.
    fn deadline(&self, arrived: Instant) -> Instant {
        let told = self.timeout.as_deref().and_then(|text| duration::parse(text).ok());
        let timeout = told.map_or(LONGEST, |told| told.min(LONGEST));
        let margin = (timeout / 10).max(Duration::from_millis(200));
        arrived + timeout.saturating_sub(margin)
    }
}

type Shared = State<Arc<App>>;

async fn namespaces_hook(State(app): Shared, asked: Asked, body: Body) -> Response {
    match Review::open(&app, Hook::Namespaces, &asked, body).await {
        Ok(review) => review.answer(namespaces::decide(&app, &review.request, review.deadline)).await,
        Err(answer) => answer,
    }
}

async fn barrier_hook(State(app): Shared, asked: Asked, body: Body) -> Response {
    match Review::open(&app, Hook::Barrier, &asked, body).await {
        Ok(review) => review.answer(barrier::decide(&app, &review.request, review.deadline)).await,
        Err(answer) => answer,
    }
}

async fn objects_hook(State(app): Shared, Path(policy): Path<String>, asked: Asked, body: Body) -> Response {
    match Review::open(&app, Hook::Objects, &asked, body).await {
        Ok(review) => review.answer(objects::decide(&app, &policy, &review.request)).await,
        Err(answer) => answer,
    }
}

async fn stamps_hook(State(app): Shared, asked: Asked, body: Body) -> Response {
    match Review::open(&app, Hook::Stamps, &asked, body).await {
        Ok(review) => review.answer(stamps::decide(&app, &review.request, review.deadline)).await,
        Err(answer) => answer,
    }
}

async fn rules_hook(State(app): Shared, asked: Asked, body: Body) -> Response {
    match Review::open(&app, Hook::Rules, &asked, body).await {
        Ok(review) => review.answer(rules::decide(&app, &review.request, review.deadline)).await,
        Err(answer) => answer,
    }
}

async fn copies_hook(State(app): Shared, asked: Asked, body: Body) -> Response {
    match Review::open(&app, Hook::Copies, &asked, body).await {
        Ok(review) => review.answer(copies::decide(&app, &review.request, review.deadline)).await,
        Err(answer) => answer,
    }
}

async fn sources_hook(State(app): Shared, asked: Asked, body: Body) -> Response {
    match Review::open(&app, Hook::Sources, &asked, body).await {
        Ok(review) => review.answer(async { sources::decide(&app, &review.request) }).await,
        Err(answer) => answer,
    }
}

/// What each hook looks at.
fn kept(hook: Hook) -> Kept {
    match hook {
        Hook::Namespaces => Kept::Metadata,
        Hook::Objects => Kept::Content,
        Hook::Stamps | Hook::Rules => Kept::Rule,
        Hook::Barrier | Hook::Copies | Hook::Sources => Kept::Marks,
    }
}

/// A review under way.
struct Review<'a> {
    app: &'a App,
    hook: Hook,
    arrived: Instant,
    began: Began,
    parent: Parent,
    deadline: Instant,
    request: Request,
    room: Room<'a>,
}

impl<'a> Review<'a> {
    /// Reads it, in the time that there is for all of it.
    ///
    /// # Errors
    /// The answer that says why that can't be done.
    async fn open(app: &'a App, hook: Hook, asked: &Asked, body: Body) -> Result<Self, Response> {
        let (arrived, began, parent) = (Instant::now(), Began::now(), asked.parent);
        let deadline = asked.deadline(arrived);
        // Its uid isn't known before it is read, for which there is no room.
        let peer = asked.peer.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let Some(mut room) = app.memory.room(peer, deadline).await else {
            Self::unread(app, hook, arrived, &Why::NoRoom);
            return Err(StatusCode::TOO_MANY_REQUESTS.into_response());
        };
        match receive(body, kept(hook), &mut room, deadline).await {
            Ok(request) => Ok(Self { app, hook, arrived, began, parent, deadline, request, room }),
            Err(unread) => {
                Self::unread(app, hook, arrived, &unread.why);
                Err(unread.answer(hook).map_or_else(|| failed(&unread.why), json))
            }
        }
    }

    /// Tells and counts one that isn't read.
    fn unread(app: &App, hook: Hook, arrived: Instant, why: &Why) {
        let told = if *why == Why::NoRoom { &app.no_room } else { &app.no_review };
        if told.is_news() {
            warn!(?hook, error = %why, "no review");
        }
        app.metrics.answered(hook, why.word(), arrived.elapsed());
    }

    /// Answers with what is decided, in time.
    async fn answer(&self, decision: impl Future<Output = Verdict>) -> Response {
        let late = || come_again("Mimeo has no answer in time".into());
        let verdict = tokio::select! {
            biased;
            verdict = timeout_at(self.deadline, decision) => verdict.unwrap_or_else(|_| late()),
            () = self.room.over() => come_again(Why::NoRoom.to_string()),
        };
        self.app.metrics.answered(self.hook, Word::of(&verdict), self.arrived.elapsed());
        self.trace(&verdict);
        json(encode(&self.request.uid, &verdict))
    }

    fn trace(&self, verdict: &Verdict) {
        let Request { uid, kind, namespace, name, operation, .. } = &self.request;
        self.app.traces.record("review", self.parent, self.began, |span| {
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

/// To the API server this is a call that failed. It tells its clients, and counts, which code there was; of a 500 alone also what it says.
fn failed(why: &Why) -> Response {
    let code = match why {
        Why::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Why::BrokenOff | Why::Late | Why::NoRoom | Why::Undecodable(_) => StatusCode::INTERNAL_SERVER_ERROR,
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
            Asked::from_request_parts(&mut parts, &()).await.expect("nothing wrong with it")
        };
        let request = || axum::http::Request::post("/mutate/namespaces?timeout=5s");
        let bare = asked(request()).await;
        assert_eq!((bare.timeout.as_deref(), bare.parent), (Some("5s"), Parent::None));
        let traced = asked(request().header("traceparent", header)).await;
        assert!(matches!(traced.parent, Parent::Sampled { .. }), "{traced:?}");
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
            let asked = Asked { timeout: timeout.map(Into::into), parent: Parent::None, peer: None };
            assert_eq!(asked.deadline(now) - now, Duration::from_millis(want), "{timeout:?}");
        }
    }
}
