//! `--ui`: a live page on the operations address. It shows the rules, the namespaces, and the state
//! of the copies.
//!
//! The page only reads: names, states, and the statuses of rules. The page itself holds no data, so
//! it needs no permission. Its data names the objects of tenants, so the guard protects it: RBAC
//! must allow the user, or, without tokens, the client must connect from this machine or Pod.
//!
//! Viewers must not burden the program. Their number is limited. Each receives the changes since
//! its last read, as one combined piece. A viewer that stops reading is disconnected.

mod session;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Query, State},
    http::{HeaderName, StatusCode, header},
    middleware::map_response,
    response::{
        AppendHeaders, IntoResponse, Redirect, Response,
        sse::{KeepAlive, Sse},
    },
    routing::{MethodRouter, get},
};
use futures::stream::unfold;
use jiff::Timestamp;
use mimeo_model::id::RuleId;
use mimeo_runtime::{guard::Guard, handle::Handle, identity::Identity};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

use self::session::{Session, tell_copy};

/// Flags of the page.
#[derive(clap::Args)]
#[command(next_help_heading = "Operations")]
pub(crate) struct UiArgs {
    /// Serve a page under /ui/ of the operations address that shows rules, namespaces, and how
    /// copies stand
    #[arg(long, env = "MIMEO_UI")]
    ui: bool,
}

/// Most pages that are followed at once. Most of the operations server's connections stay free for
/// probes and scrapes.
const VISITORS: usize = 16;
/// Longest time without an event. The page treats a longer silence as a lost connection.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Content Security Policy of the page. It loads nothing from other origins, and no text can become
/// a document or a script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// The page's state. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Page {
    known: Arc<OnceLock<Known>>,
    visitors: Arc<Semaphore>,
}

/// Data that the page shows.
#[derive(Clone)]
pub(crate) struct Known {
    /// The engine.
    pub(crate) handle: Handle,
    /// True if this replica leads. The engines of other replicas do not know the state of copies.
    pub(crate) leading: watch::Receiver<bool>,
    /// The replica that leads.
    pub(crate) leader: watch::Receiver<Option<String>>,
    /// This replica.
    pub(crate) identity: Identity,
}

/// The answer to a request without data.
type Refusal = (StatusCode, &'static str);

impl UiArgs {
    /// The page, if the flag enables it.
    pub(crate) fn page(&self) -> Option<Page> {
        self.ui.then(|| Page {
            known: Arc::default(),
            visitors: Arc::new(Semaphore::new(VISITORS)),
        })
    }
}

impl Page {
    /// The routes that the page adds to the operations server. The guard protects the data.
    pub(crate) fn routes(&self, guard: &Guard) -> Router {
        let data = Router::new()
            .route("/ui/stream", get(stream))
            .route("/ui/copies", get(copies))
            .with_state(self.clone());
        Router::new()
            .route("/ui", get(async || Redirect::permanent("/ui/")))
            .route(
                "/ui/",
                asset("text/html; charset=utf-8", include_str!("ui/index.html")),
            )
            .route(
                "/ui/style.css",
                asset("text/css; charset=utf-8", include_str!("ui/style.css")),
            )
            .route("/ui/page.js", script(include_str!("ui/page.js")))
            .route("/ui/held.js", script(include_str!("ui/held.js")))
            .route("/ui/elements.js", script(include_str!("ui/elements.js")))
            .merge(guard.confine(data))
            .layer(map_response(harden))
    }

    /// Makes the data available. Until then, requests for it are answered with 503.
    pub(crate) fn open(&self, known: Known) {
        // Main opens the page once. A second call would change nothing.
        let _ = self.known.set(known);
    }

    fn known(&self) -> Result<&Known, Refusal> {
        self.known
            .get()
            .ok_or((StatusCode::SERVICE_UNAVAILABLE, "starting\n"))
    }
}

fn asset(kind: &'static str, text: &'static str) -> MethodRouter {
    get(async move || ([(header::CONTENT_TYPE, kind)], text))
}

fn script(text: &'static str) -> MethodRouter {
    asset("text/javascript; charset=utf-8", text)
}

/// Adds the security headers to every answer.
async fn harden(response: Response) -> impl IntoResponse {
    let same_origin = HeaderName::from_static("cross-origin-resource-policy");
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (same_origin, "same-origin"),
    ];
    (AppendHeaders(headers), response)
}

/// Streams server-sent events until the connection ends, after 5 minutes at most. The page then
/// reconnects and shows again that it has the permission, which may have been removed in the
/// meantime.
async fn stream(State(page): State<Page>) -> Result<impl IntoResponse, Refusal> {
    let known = page.known()?.clone();
    let visit = page.visitors.try_acquire_owned();
    let visit = visit.map_err(|_| {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "so many pages are open that there is no room for one more\n",
        )
    })?;
    let events = unfold(
        (Session::new(known), visit),
        async |(mut session, visit)| Some((session.next().await, (session, visit))),
    );
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)))
}

/// Query of `/ui/copies`: one rule in one namespace.
#[derive(Deserialize)]
struct Place {
    rule: String,
    namespace: String,
}

/// Returns the copies of one rule in one namespace, with their messages.
async fn copies(
    State(page): State<Page>,
    Query(place): Query<Place>,
) -> Result<Json<Value>, Refusal> {
    let Known {
        handle, leading, ..
    } = page.known()?;
    if !*leading.borrow() {
        return Err((StatusCode::SERVICE_UNAVAILABLE, "this replica stands by\n"));
    }
    let rule: RuleId = place
        .rule
        .parse()
        .map_err(|_| (StatusCode::BAD_REQUEST, "that is no rule\n"))?;
    let copies = handle.look(|engine| {
        engine
            .page(Timestamp::now())
            .copies(&rule, &place.namespace)
    });
    Ok(Json(copies.iter().map(tell_copy).collect()))
}
