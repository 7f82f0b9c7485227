//! The operations server: `/healthz`, `/readyz` and `/metrics` on a port of their own, in plain
//! HTTP or TLS.
//!
//! Probes have no token, so the first two are open to all clients. [`Guard`] protects the other
//! paths.
//!
//! The server runs until the process ends. Probes thus see "not ready", and metrics can be read,
//! while the program drains. A connection serves one request, and each of its steps has a time
//! limit. A client that keeps opening connections can keep probes out; a `NetworkPolicy` prevents
//! that.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{
    Extension, Router,
    extract::{ConnectInfo, Request, State},
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use clap::{Args, ValueEnum};
use kube::Client;
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::timeout};
use tracing::{error, info};

use crate::{
    certificates::{mounted, unverified},
    connections,
    debug::DebugPages,
    guard::Guard,
    https::Server,
    listen::listen,
    metrics::{CONTENT_TYPE as METRICS_CONTENT_TYPE, Metrics},
    readiness::Readiness,
    shutdown::CancellationToken,
    tls::Tls,
};

/// For the head of the request, and for the rest of the request until the answer begins. The TLS
/// handshake has as much.
const PATIENCE: Duration = Duration::from_secs(10);
/// For a whole connection, even if its client does not read the answer. A page that shows a stream
/// for longer connects again.
const LIFETIME: Duration = Duration::from_mins(5);
/// Connections at once.
const CONNECTIONS: usize = 64;

/// Flags of the operations server.
#[derive(Args)]
#[command(next_help_heading = "Operations")]
pub struct OpsArgs {
    /// Address of /healthz, /readyz and /metrics. `[::]` means all addresses, of IPv4 too. Port 0
    /// takes a free port and logs it
    #[arg(
        long,
        env = "MIMEO_OPS_LISTEN",
        value_name = "ADDRESS",
        default_value = "[::]:8080"
    )]
    pub ops_listen: SocketAddr,
    /// Clients that may read /metrics and use /log-level and /debug there; every client may read
    /// /healthz and /readyz
    #[arg(
        long,
        env = "MIMEO_OPS_AUTH",
        value_name = "WHO",
        value_enum,
        default_value = "none"
    )]
    pub ops_auth: OpsAuth,
    /// Folder with tls.crt and tls.key, read again when they change. The address then speaks TLS,
    /// until the files exist with a certificate made at start, which clients can't verify. Default:
    /// plain HTTP, or with `--ops-auth token` TLS with such a certificate
    #[arg(long, env = "MIMEO_OPS_CERT_DIR", value_name = "FOLDER")]
    pub ops_cert_dir: Option<PathBuf>,
    /// Serve /debug/state (the program's inner state, in numbers) there, beside /log-level (GET,
    /// PUT), which is always served. Without `--ops-auth token` both are for connections from the
    /// same machine or Pod only
    #[arg(long, env = "MIMEO_DEBUG_ENDPOINTS")]
    pub debug_endpoints: bool,
}

/// Which clients may read the guarded pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpsAuth {
    /// Every client that reaches the address.
    None,
    /// A client with the bearer token of a user that may `get` the path (RBAC: nonResourceURLs), in
    /// TLS.
    Token,
}

impl OpsArgs {
    /// The guard of all paths except those of probes. It asks the API server with this client.
    pub fn guard(&self, client: &Client) -> Guard {
        match self.ops_auth {
            OpsAuth::None => Guard::open(),
            OpsAuth::Token => Guard::by_token(client.clone()),
        }
    }

    /// None means plain HTTP.
    fn tls(&self, metrics: &Metrics) -> anyhow::Result<Option<Tls>> {
        if self.ops_cert_dir.is_none() && self.ops_auth == OpsAuth::None {
            return Ok(None);
        }
        let own = unverified::issue().context("failed to make a certificate")?;
        let own = Some(Arc::new(own));
        let material = match &self.ops_cert_dir {
            Some(folder) => mounted::start(folder, own),
            // A token in clear text would be public.
            None => watch::channel(own).1,
        };
        metrics.of_certificate("operations", material.clone());
        Ok(Some(Tls {
            material,
            callers: None,
        }))
    }
}

/// Binds the address and serves in the background. Returns and logs the bound address. The guard
/// protects all paths except those of probes. The routes in `more` have their own guard.
///
/// Needs a Tokio runtime.
pub fn serve(
    args: &OpsArgs,
    guard: &Guard,
    readiness: Readiness,
    metrics: Metrics,
    debug: &DebugPages,
    more: Router,
) -> anyhow::Result<SocketAddr> {
    let tls = args.tls(&metrics)?;
    let listener = listen(args.ops_listen)?;
    let address = listener.local_addr()?;
    info!(%address, tls = tls.is_some(), "operations server listening");
    let router = router(guard, readiness.clone(), metrics).merge(more);
    let router = router.merge(guard.confine(debug.router(args.debug_endpoints)));
    tokio::spawn(readiness.tell());
    tokio::spawn(accept(listener, tls, router));
    Ok(address)
}

async fn accept(listener: TcpListener, tls: Option<Tls>, router: Router) {
    // Each connection ends with its first answer.
    let leaving = CancellationToken::new();
    leaving.cancel();
    let server = Server {
        tls,
        router: router.layer(from_fn(in_time)),
        idle: PATIENCE,
        lifetime: LIFETIME,
        leaving,
        draining: CancellationToken::new(),
    };
    let mut open = JoinSet::new();
    loop {
        let (stream, peer) = connections::accept(&listener, &mut open, CONNECTIONS).await;
        let router = server.router.clone().layer(Extension(ConnectInfo(peer)));
        let server = Server {
            router,
            ..server.clone()
        };
        open.spawn(server.connection(stream));
    }
}

async fn in_time(request: Request, next: Next) -> Response {
    timeout(PATIENCE, next.run(request))
        .await
        .unwrap_or_else(|_| StatusCode::REQUEST_TIMEOUT.into_response())
}

fn router(guard: &Guard, readiness: Readiness, metrics: Metrics) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready).with_state(readiness))
        .merge(guard.protect(Router::new().route("/metrics", get(measured).with_state(metrics))))
}

async fn ready(State(readiness): State<Readiness>) -> Response {
    let missing = readiness.missing();
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    (
        StatusCode::SERVICE_UNAVAILABLE,
        format!("missing: {}\n", missing.join(", ")),
    )
        .into_response()
}

async fn measured(State(metrics): State<Metrics>) -> Response {
    match metrics.text() {
        Ok(text) => ([(CONTENT_TYPE, METRICS_CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            error!(%error, "failed to encode metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests;
