//! Guards the pages of the operations server. A request passes if its bearer token belongs to a
//! user with the permission for its path.
//!
//! The guard asks as Kubernetes' own components do, which have a library for it in Go. A
//! `TokenReview` names the token's user. A `SubjectAccessReview` says whether the user may use the
//! method, in lower case (such as `get`), on this path. RBAC grants that permission by
//! `nonResourceURLs`. Without an answer of the API server the guard refuses the request.
//!
//! No answer is remembered. So a scrape costs the API server two small requests, and a withdrawn
//! permission ends at once.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{ConnectInfo, Request, State},
    http::{
        HeaderMap, Method, StatusCode,
        header::{AUTHORIZATION, HOST},
        uri::Authority,
    },
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
};
use k8s_openapi::api::authentication::v1::TokenReview;
use kube::Client;
use serde_json::json;
use tokio::{sync::Semaphore, time::timeout};
use tracing::{debug, warn};

use crate::{
    access::{may_visit, review},
    call::{CallError, CallResult},
};

/// At most this many visits are asked about at a time. Further visits are refused, so a flood of
/// tokens neither reaches the API server nor keeps connections of the operations server.
const ASKING: usize = 8;
/// For both questions together.
const DEADLINE: Duration = Duration::from_secs(5);

/// Stands in front of routes.
pub struct Guard(Option<Arc<Reviewer>>);

impl Guard {
    /// Lets every request through.
    pub fn open() -> Self {
        Self(None)
    }

    /// Lets a request through if the API server confirms its token and the permission of the
    /// token's user. Needs the permission to create `tokenreviews` and `subjectaccessreviews`.
    pub fn by_token(client: Client) -> Self {
        Self(Some(Arc::new(Reviewer {
            client,
            room: Semaphore::new(ASKING),
            unanswered: AtomicBool::new(false),
        })))
    }

    /// Puts the routes behind this guard. Panics if the router has no route. (Unknown paths are not
    /// guarded: they stay a 404.)
    pub fn protect(&self, router: Router) -> Router {
        match &self.0 {
            Some(reviewer) => router.route_layer(from_fn_with_state(reviewer.clone(), pass)),
            None => router,
        }
    }

    /// Puts routes behind this guard that must never be open to the network. With tokens it works
    /// as [`Guard::protect`].
    ///
    /// Without tokens two conditions hold instead. The connection must come from this machine, or
    /// from this Pod as with `kubectl port-forward`. The request must also call the machine by one
    /// of its own names. Otherwise a foreign web page could give its own host name this machine's
    /// address, and make a browser here send the request.
    pub fn confine(&self, router: Router) -> Router {
        match &self.0 {
            Some(_) => self.protect(router),
            None => router.route_layer(from_fn(from_here)),
        }
    }
}

async fn from_here(
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    // Not all of 127.0.0.0/8: proxies of service meshes use other addresses in it when they forward
    // visitors from other machines.
    let ip = peer.ip().to_canonical();
    if (ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST) && calls_it_local(request.headers())
    {
        return next.run(request).await;
    }
    let message = "only for visitors from this machine, by the name localhost, unless --ops-auth asks for tokens\n";
    (StatusCode::FORBIDDEN, message).into_response()
}

/// Whether `Host` is a name that cannot be pointed to an address of an attacker's choice.
fn calls_it_local(headers: &HeaderMap) -> bool {
    let host = headers
        .get(HOST)
        .and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    host.is_some_and(|host| matches!(host.host(), "localhost" | "127.0.0.1" | "[::1]"))
}

async fn pass(State(reviewer): State<Arc<Reviewer>>, request: Request, next: Next) -> Response {
    match reviewer
        .review(request.headers(), request.method(), request.uri().path())
        .await
    {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// The answer to a visitor who is refused.
type Refused = (StatusCode, &'static str);

/// There is no token, or the API server does not know it.
const UNAUTHORIZED: Refused = (StatusCode::UNAUTHORIZED, "Unauthorized\n");
/// The user lacks the permission.
const FORBIDDEN: Refused = (StatusCode::FORBIDDEN, "Forbidden\n");
/// The API server gave no decision.
const UNANSWERED: Refused = (
    StatusCode::SERVICE_UNAVAILABLE,
    "the API server can't say now who may see this\n",
);

struct Reviewer {
    client: Client,
    room: Semaphore,
    /// Whether the last question had no answer. It is logged once, and not for each request.
    unanswered: AtomicBool,
}

impl Reviewer {
    async fn review(
        &self,
        headers: &HeaderMap,
        method: &Method,
        path: &str,
    ) -> Result<(), Refused> {
        let token = bearer(headers).ok_or(UNAUTHORIZED)?;
        let Ok(_room) = self.room.try_acquire() else {
            return Err(UNANSWERED);
        };
        let verb = method.as_str().to_ascii_lowercase();
        let asked = timeout(DEADLINE, self.ask(token, &verb, path)).await;
        let asked = asked.unwrap_or(Err(CallError::Late));
        let before = self.unanswered.swap(asked.is_err(), Ordering::Relaxed);
        asked.unwrap_or_else(|error| {
            if !before {
                warn!(%error, "cannot ask who may see metrics and the like, so \
                    nobody may");
            }
            Err(UNANSWERED)
        })
    }

    /// Asks whose token it is, and whether this user may make the visit.
    async fn ask(&self, token: &str, verb: &str, path: &str) -> CallResult<Result<(), Refused>> {
        let review: TokenReview =
            review(&self.client, json!({"spec": {"token": token}}), DEADLINE).await?;
        let status = review
            .status
            .filter(|status| status.authenticated == Some(true));
        let Some(user) = status.and_then(|status| status.user) else {
            return Ok(Err(UNAUTHORIZED));
        };
        if may_visit(&self.client, &user, verb, path, DEADLINE).await? {
            return Ok(Ok(()));
        }
        debug!(user = user.username, verb, path, "visitor turned away");
        Ok(Err(FORBIDDEN))
    }
}

/// The token of a header `Authorization: Bearer <token>`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, extract::connect_info::MockConnectInfo, routing::get};
    use serde_json::Value;
    use tokio::time::Instant;
    use tower::ServiceExt;

    use super::*;
    use crate::testing::{Script, Server};

    fn token_review(authenticated: bool) -> Script {
        let user = json!({"username": "ann", "uid": "u-7", "groups": ["g"], "extra": {"k": ["v"]}});
        let status = if authenticated {
            json!({"authenticated": true, "user": user})
        } else {
            json!({"error": "no"})
        };
        Script::json(201, &json!({"spec": {}, "status": status}))
    }

    fn access_review(status: &Value) -> Script {
        Script::json(201, &json!({"spec": {}, "status": status}))
    }

    fn yes() -> Script {
        access_review(&json!({"allowed": true}))
    }

    fn failure(code: u16) -> Script {
        Script::json(
            code,
            &json!({"kind": "Status", "status": "Failure", "code": code}),
        )
    }

    async fn visit(router: &Router, path: &str, authorization: &str) -> u16 {
        visit_host(router, path, authorization, "localhost:8080").await
    }

    async fn visit_host(router: &Router, path: &str, authorization: &str, host: &str) -> u16 {
        let mut request = http::Request::get(path).header(HOST, host);
        if !authorization.is_empty() {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Body::empty()).expect("a request");
        router
            .clone()
            .oneshot(request)
            .await
            .expect("an answer")
            .status()
            .as_u16()
    }

    fn routes() -> Router {
        Router::new()
            .route("/metrics", get(async || "m"))
            .route("/debug/x", get(async || "d"))
    }

    #[tokio::test]
    async fn who_is_let_through() {
        let no = || access_review(&json!({"allowed": false}));
        let undecided = || access_review(&json!({"allowed": false, "evaluationError": "x"}));
        for (what, authorization, answers, want) in [
            ("no token", "", vec![], 401),
            ("another scheme", "Basic YTpi", vec![], 401),
            ("an empty token", "Bearer ", vec![], 401),
            (
                "a token that nobody knows",
                "Bearer t",
                vec![token_review(false)],
                401,
            ),
            (
                "a user who may not",
                "Bearer t",
                vec![token_review(true), no()],
                403,
            ),
            (
                "a user who may",
                "Bearer t",
                vec![token_review(true), yes()],
                200,
            ),
            (
                "in other letters",
                "bearer t",
                vec![token_review(true), yes()],
                200,
            ),
            ("no right to ask", "Bearer t", vec![failure(403)], 503),
            (
                "no answer about the token",
                "Bearer t",
                vec![failure(500)],
                503,
            ),
            (
                "no answer about the user",
                "Bearer t",
                vec![token_review(true), failure(500)],
                503,
            ),
            (
                "an answer that is none",
                "Bearer t",
                vec![token_review(true), undecided()],
                503,
            ),
        ] {
            let questions = answers.len();
            let server = Server::start(answers).await;
            let router = Guard::by_token(server.client()).protect(routes());
            assert_eq!(
                visit(&router, "/metrics", authorization).await,
                want,
                "{what}"
            );
            assert_eq!(server.requests().len(), questions, "{what}");
        }
    }

    #[tokio::test]
    async fn a_review_tells_all_that_an_authorizer_may_look_at() {
        let server = Server::start([token_review(true), yes()]).await;
        let router = Guard::by_token(server.client()).protect(routes());
        assert_eq!(visit(&router, "/metrics", "Bearer t").await, 200);
        let came = server.came();
        assert_eq!(came.len(), 2);
        let spec = |n: usize| {
            serde_json::from_slice::<Value>(&came[n].body).expect("JSON")["spec"].clone()
        };
        assert_eq!(spec(0), json!({"token": "t"}));
        let attributes = json!({"verb": "get", "path": "/metrics"});
        let want = json!({
            "user": "ann", "uid": "u-7", "groups": ["g"], "extra": {"k": ["v"]}, "nonResourceAttributes": attributes,
        });
        assert_eq!(spec(1), want);
    }

    #[tokio::test]
    async fn a_permission_that_is_withdrawn_ends_at_once() {
        let no = access_review(&json!({"allowed": false}));
        let server = Server::start([token_review(true), yes(), token_review(true), no]).await;
        let router = Guard::by_token(server.client()).protect(routes());
        assert_eq!(visit(&router, "/metrics", "Bearer t").await, 200);
        assert_eq!(visit(&router, "/metrics", "Bearer t").await, 403);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_tokens_is_turned_away_at_once_and_keeps_no_connections() {
        let server = Server::start([]).await;
        let router = Guard::by_token(server.client()).protect(routes());
        let began = Instant::now();
        let visit = |n: usize| {
            let router = router.clone();
            async move {
                (
                    visit(&router, "/metrics", &format!("Bearer {n}")).await,
                    began.elapsed(),
                )
            }
        };
        let asking: Vec<_> = (0..ASKING).map(|n| tokio::spawn(visit(n))).collect();
        tokio::task::yield_now().await;
        assert_eq!(visit(ASKING).await, (503, Duration::ZERO));
        for visit in asking {
            assert_eq!(visit.await.expect("an answer"), (503, DEADLINE));
        }
        assert!(server.requests().len() <= ASKING);
    }

    #[tokio::test]
    async fn an_open_guard_asks_nobody_and_confines_to_this_machine() {
        assert_eq!(
            visit(&Guard::open().protect(routes()), "/metrics", "").await,
            200
        );
        let confined = Guard::open().confine(routes());
        for (peer, want) in [
            ("127.0.0.1:9", 200),
            ("[::1]:9", 200),
            ("[::ffff:127.0.0.1]:9", 200),
            ("127.0.0.6:9", 403),
            ("[::ffff:127.0.0.6]:9", 403),
            ("10.0.0.7:9", 403),
            ("[fd00::1]:9", 403),
        ] {
            let router = confined.clone().layer(MockConnectInfo(
                peer.parse::<SocketAddr>().expect("an address"),
            ));
            assert_eq!(visit(&router, "/debug/x", "").await, want, "{peer}");
        }
        let here = confined.layer(MockConnectInfo(SocketAddr::from(([127, 0, 0, 1], 9))));
        for (host, want) in [
            ("localhost", 200),
            ("127.0.0.1:1", 200),
            ("[::1]:8080", 200),
            ("rebound.example.com:8080", 403),
            ("localhost.example.com", 403),
            ("localhost@example.com", 403),
            ("10.0.0.7:8080", 403),
            ("", 403),
        ] {
            assert_eq!(
                visit_host(&here, "/debug/x", "", host).await,
                want,
                "{host}"
            );
        }
        let server = Server::start([]).await;
        let by_token = Guard::by_token(server.client()).confine(routes());
        let from_here = by_token.layer(MockConnectInfo(SocketAddr::from(([127, 0, 0, 1], 9))));
        assert_eq!(
            visit(&from_here, "/debug/x", "").await,
            401,
            "a token is asked of everybody"
        );
    }
}
