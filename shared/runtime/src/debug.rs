//! `/log-level` reads and changes how much a program logs. `/debug/state`, which is optional, shows
//! the internal state of the running program in numbers. An operator can log more without a
//! restart, because a restart might hide the fault.
//!
//! These pages name no object and show no content of an object. [`Guard`](crate::guard::Guard)
//! decides on the access to them.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use mimeo_engine::{Inside, Numbers};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing::info;

use crate::{handle::Handle, telemetry::LogFilter, watch::Health};

/// Length of the longest filter that is accepted, in bytes.
const LONGEST_FILTER: usize = 4 << 10;

type Part = Box<dyn Fn() -> Value + Send + Sync>;

/// The debug pages of a program. Parts may be added while the pages are served. Cheap to clone.
#[derive(Clone)]
pub struct DebugPages {
    filter: LogFilter,
    started: Instant,
    parts: Arc<Mutex<BTreeMap<&'static str, Part>>>,
}

impl DebugPages {
    /// Pages of a program that starts now and logs by `filter`.
    pub fn new(filter: LogFilter) -> Self {
        Self {
            filter,
            started: Instant::now(),
            parts: Arc::default(),
        }
    }

    /// Adds a part of the state. Each request for the page reads it again.
    pub fn add(&self, name: &'static str, read: impl Fn() -> Value + Send + Sync + 'static) {
        self.parts.lock().insert(name, Box::new(read));
    }

    /// Adds the engine's facts, queues and work in progress.
    pub fn of_engine(&self, handle: &Handle) {
        let handle = handle.clone();
        self.add("engine", move || {
            let (Inside { primed, informed, counts }, numbers) =
                handle.look(|engine| (engine.inside(), engine.numbers()));
            let Numbers { queued, held, waiting, webhooks, .. } = numbers;
            json!({
                "primed": primed, "informed": informed, "counts": counts, "deletionsHeld": held.values().sum::<usize>(),
                "namespacesWaiting": waiting, "webhookReplicas": webhooks,
                "queues": {"namespaces": queued.urgent, "rules": queued.normal, "tenants": queued.tenants},
            })
        });
    }

    /// Adds the health of the engine's watches.
    pub fn of_watches(&self, health: &Health) {
        let health = health.clone();
        self.add("watches", move || {
            let mut watches = json!({});
            for (resource, time) in health.silence() {
                watches[resource] = json!({"silentSeconds": time.as_secs(), "failures": {}});
            }
            for ((resource, reason), count) in health.failures() {
                watches[resource]["failures"][reason] = count.into();
            }
            watches
        });
    }

    /// The routes of the pages. The state has one only if `shows_state` is true.
    pub(crate) fn router(&self, shows_state: bool) -> Router {
        let mut router = Router::new().route("/log-level", get(log_level).put(set_log_level));
        if shows_state {
            router = router.route("/debug/state", get(state));
        }
        router
            .layer(DefaultBodyLimit::max(LONGEST_FILTER))
            .with_state(self.clone())
    }
}

async fn state(State(pages): State<DebugPages>) -> Json<Value> {
    let tokio = tokio::runtime::Handle::current().metrics();
    let tasks = json!({
        "alive": tokio.num_alive_tasks(), "queued": tokio.global_queue_depth(), "workers": tokio.num_workers(),
    });
    let uptime = pages.started.elapsed().as_secs();
    let version = env!("CARGO_PKG_VERSION");
    let mut state = json!({"version": version, "uptimeSeconds": uptime, "tasks": tasks});
    for (name, read) in &*pages.parts.lock() {
        state[*name] = read();
    }
    Json(state)
}

async fn log_level(State(pages): State<DebugPages>) -> String {
    format!("{}\n", pages.filter.current())
}

async fn set_log_level(State(pages): State<DebugPages>, filter: String) -> Response {
    // Logged before and after the change: one of the two levels may suppress the message.
    info!(from = pages.filter.current(), "log level is being changed");
    match pages.filter.set(filter.trim()) {
        Ok(()) => {
            let filter = pages.filter.current();
            info!(filter, "log level changed");
            format!("{filter}\n").into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::Request;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;
    use crate::testing::debug_pages;

    async fn ask(pages: &DebugPages, method: &str, path: &str, body: &str) -> (u16, String) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::from(body.to_owned()));
        let answer = pages
            .router(true)
            .oneshot(request.expect("a request"))
            .await
            .expect("an answer");
        let code = answer.status().as_u16();
        let body = answer
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        (code, String::from_utf8(body.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn the_log_level_is_told_and_changed_and_nonsense_is_refused() {
        let pages = debug_pages();
        let path = "/log-level";
        assert_eq!(ask(&pages, "GET", path, "").await, (200, "info\n".into()));
        let (code, now) = ask(&pages, "PUT", path, "warn,mimeo_runtime=trace\n").await;
        assert!(code == 200 && now.contains("mimeo_runtime=trace"), "{now}");
        assert_eq!(ask(&pages, "GET", path, "").await.1, now);
        let (code, why) = ask(&pages, "PUT", path, "mimeo_runtime=loudly").await;
        assert!(
            code == 400 && why.starts_with("invalid log filter"),
            "{code} {why}"
        );
        assert_eq!(
            ask(&pages, "PUT", path, &"x".repeat(LONGEST_FILTER + 1))
                .await
                .0,
            413
        );
        assert_eq!(ask(&pages, "GET", path, "").await.1, now, "as it was");
    }

    #[tokio::test]
    async fn the_state_has_all_parts() {
        let pages = debug_pages();
        pages.add("leading", || true.into());
        pages.of_watches(&Health::default());
        let (code, text) = ask(&pages, "GET", "/debug/state", "").await;
        let state: Value = serde_json::from_str(&text).expect("JSON");
        assert!(
            code == 200 && state["leading"] == true && state["watches"].is_object(),
            "{text}"
        );
        assert!(
            state["tasks"]["alive"].is_u64() && state["version"].is_string(),
            "{text}"
        );
    }
}
