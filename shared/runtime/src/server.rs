//! The operations server: `/healthz`, `/readyz` and `/metrics` in plain HTTP on a port of their own.
//!
//! It runs until the process ends, so that probes see "not ready" and metrics can be read while the program drains. A
//! connection is for one request and lasts no longer than one may take: whoever asks nothing must not keep probes out.

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use clap::Args;
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use prometheus_client::registry::Registry;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{debug, error, info, warn};

use crate::{
    shutdown::Shutdown,
    telemetry::{METRICS_CONTENT_TYPE, encode_metrics},
};

/// From the accepted connection to the end of the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// At once; any more wait to be accepted.
const CONNECTIONS: usize = 64;
/// How long to wait after the operating system refused to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Flags of the operations server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Operations")]
pub struct OpsArgs {
    /// Address of /healthz, /readyz and /metrics, in plain HTTP; port 0 takes a free one, which is logged
    #[arg(long, env = "MIMEO_OPS_LISTEN", value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    pub ops_listen: SocketAddr,
}

/// Whether the program is ready: all of its named checks hold and no shutdown has begun.
#[derive(Debug, Clone)]
pub struct Readiness {
    checks: Arc<watch::Sender<BTreeMap<&'static str, bool>>>,
    shutdown: Shutdown,
}

impl Readiness {
    /// Ready at once as long as no check is added.
    pub fn new(shutdown: Shutdown) -> Self {
        Self { checks: Arc::default(), shutdown }
    }

    /// Adds a check that doesn't hold yet. Adding it again resets it.
    pub fn check(&self, name: &'static str) -> Check {
        let check = Check { name, readiness: self.clone() };
        check.set(false);
        check
    }

    /// Names of what is missing, in order; empty means ready.
    pub fn missing(&self) -> Vec<&'static str> {
        let checks = self.checks.borrow();
        let shutdown = self.shutdown.is_triggered().then_some("not shutting down");
        checks.iter().filter(|(_, holds)| !**holds).map(|(name, _)| *name).chain(shutdown).collect()
    }

    /// Returns as soon as all checks hold. Cancel safe.
    pub async fn complete(&self) {
        // An error would mean that the sender is gone, and `self` holds it.
        let _ = self.checks.subscribe().wait_for(|checks| checks.values().all(|holds| *holds)).await;
    }
}

/// One of the things that must hold before the program is ready.
#[derive(Debug, Clone)]
pub struct Check {
    name: &'static str,
    readiness: Readiness,
}

impl Check {
    /// Says whether it holds now.
    pub fn set(&self, holds: bool) {
        self.readiness.checks.send_modify(|checks| {
            checks.insert(self.name, holds);
        });
    }
}

/// Binds the address and serves in the background; returns the address that was bound, which is logged too.
pub async fn serve(args: &OpsArgs, readiness: Readiness, registry: Arc<Registry>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(args.ops_listen).await?;
    let address = listener.local_addr()?;
    info!(%address, "operations server listening");
    tokio::spawn(accept(listener, router(readiness, registry)));
    Ok(address)
}

async fn accept(listener: TcpListener, router: Router) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => { connections.spawn(connection(stream, router.clone())); }
                Err(error) => {
                    warn!(%error, "failed to accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn connection(stream: TcpStream, router: Router) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "connection failed"),
        Err(_) => debug!("connection timed out"),
    }
}

fn router(readiness: Readiness, registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready).with_state(readiness))
        .route("/metrics", get(metrics).with_state(registry))
}

async fn ready(State(readiness): State<Readiness>) -> Response {
    let missing = readiness.missing();
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("missing: {}\n", missing.join(", "))).into_response()
}

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    match encode_metrics(&registry) {
        Ok(text) => ([(CONTENT_TYPE, METRICS_CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            error!(%error, "failed to encode metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_asks_nothing_is_closed() {
        let readiness = Readiness::new(Shutdown::new());
        let args = OpsArgs { ops_listen: ([127, 0, 0, 1], 0).into() };
        let address = serve(&args, readiness, Arc::new(crate::telemetry::registry())).await.expect("a free port");
        let mut silent = TcpStream::connect(address).await.expect("it listens");
        silent.write_all(b"GET /healthz HTTP/1.1\r\n").await.expect("it reads");
        let closed = timeout(2 * CONNECTION_TIMEOUT, silent.read(&mut [0; 9])).await.expect("closed");
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    }

    #[tokio::test]
    async fn ready_while_all_checks_hold_and_no_shutdown_began() {
        let shutdown = Shutdown::new();
        let readiness = Readiness::new(shutdown.clone());
        let (caches, certificate) = (readiness.check("caches"), readiness.check("certificate"));
        let args = OpsArgs { ops_listen: ([127, 0, 0, 1], 0).into() };
        let address =
            serve(&args, readiness.clone(), Arc::new(crate::telemetry::registry())).await.expect("a free port");

        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/metrics").await.contains("openmetrics-text"));
        certificate.set(true);
        let answer = get(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("missing: caches\n"), "{answer}");
        assert!(readiness.complete().now_or_never().is_none());
        caches.set(true);
        readiness.complete().await;
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        shutdown.trigger();
        let answer = get(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("missing: not shutting down\n"), "{answer}");
    }
}
