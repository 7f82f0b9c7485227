//! The operations server: `/healthz`, `/readyz` and `/metrics` on a port of their own, in plain HTTP or in TLS.
//!
//! Probes have no token: the first two are open to everybody, whatever [`Guard`] stands before the rest.
//!
//! It runs until the process ends, so that probes see "not ready" and metrics can be read while the program drains. A
//! connection is for one request and lasts no longer than one may take, and makes way before that if it asks nothing
//! (`Connections`): nobody must keep probes out.

use std::{collections::BTreeMap, future::pending, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use clap::{Args, ValueEnum};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use kube::Client;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::sleep,
};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, error, info, warn};

use crate::{
    certificates::{CertificateError, mounted, unverified},
    connections::{Connections, Stay},
    debug::DebugPages,
    guard::{Guard, Peer},
    listen::listen,
    metrics::{CONTENT_TYPE as METRICS_CONTENT_TYPE, Metrics},
    shutdown::Shutdown,
    tls::{self, TlsError},
};

/// From the accepted connection to its request, from there to the answer, and from there to its end, or to the next piece of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// At once.
const CONNECTIONS: usize = 64;
/// How long the head of a request may be, in bytes.
const HEAD: usize = 32 << 10;
/// How long something must be missing before it is logged: about as long as the kubelet takes to notice.
const UNREADY: Duration = Duration::from_secs(5);

/// Flags of the operations server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Operations")]
pub struct OpsArgs {
    /// Address of /healthz, /readyz and /metrics, where `[::]` is every one, of IPv4 too; port 0 takes a free one, which is logged
    #[arg(long, env = "MIMEO_OPS_LISTEN", value_name = "ADDRESS", default_value = "[::]:8080")]
    pub ops_listen: SocketAddr,
    /// Who may read /metrics and /debug there; /healthz and /readyz are for everybody
    #[arg(long, env = "MIMEO_OPS_AUTH", value_name = "WHO", value_enum, default_value = "none")]
    pub ops_auth: OpsAuth,
    /// Folder with tls.crt and tls.key, re-read when they change: the address then speaks TLS, until they are there with a certificate made
    /// at start, which clients can't verify. Default: plain HTTP, or with `--ops-auth token` such a certificate
    #[arg(long, env = "MIMEO_OPS_CERT_DIR", value_name = "FOLDER")]
    pub ops_cert_dir: Option<PathBuf>,
    /// Serve /debug/state (what the program has inside, in numbers) there, beside /debug/log-level (GET, PUT), which there always is; both
    /// without `--ops-auth token` only to connections from the same machine or Pod
    #[arg(long, env = "MIMEO_DEBUG_ENDPOINTS")]
    pub debug_endpoints: bool,
}

/// Who may read what isn't for everybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpsAuth {
    /// Whoever reaches the address.
    None,
    /// Who brings a bearer token of a user that may `get` the path (RBAC: nonResourceURLs), in TLS.
    Token,
}

/// Why the operations server can't begin.
#[derive(Debug, thiserror::Error)]
pub enum OpsError {
    /// The address is taken, or isn't one of this machine.
    #[error("failed to listen")]
    Listen(#[from] io::Error),
    /// There is no certificate to be made.
    #[error("failed to make a certificate")]
    Certificate(#[from] CertificateError),
    /// The TLS library refuses its defaults.
    #[error("failed to set up TLS")]
    Tls(#[from] TlsError),
}

impl OpsArgs {
    /// What stands before all but the probes' paths; asks the API server by this client.
    pub fn guard(&self, client: &Client) -> Guard {
        match self.ops_auth {
            OpsAuth::None => Guard::open(),
            OpsAuth::Token => Guard::by_token(client.clone()),
        }
    }

    /// None: plain HTTP.
    fn acceptor(&self, metrics: &Metrics) -> Result<Option<TlsAcceptor>, OpsError> {
        let (material, own) = match (&self.ops_cert_dir, self.ops_auth) {
            (Some(folder), _) => {
                let mounted = mounted::start(folder.clone(), Duration::ZERO);
                (unverified::until(mounted.clone())?, mounted)
            }
            // A token that is sent in the clear is everybody's.
            (None, OpsAuth::Token) => {
                let material = unverified::start()?;
                (material.clone(), material)
            }
            (None, OpsAuth::None) => return Ok(None),
        };
        metrics.of_certificate("operations", own);
        let mut config = tls::server_config(material)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Some(TlsAcceptor::from(Arc::new(config))))
    }
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

    /// Logs what is missing when that has changed, until a shutdown begins. What passes before a probe has given the program up is no
    /// news: a start is made of such moments.
    async fn tell(self) {
        let mut changes = self.checks.subscribe();
        let mut told = None;
        loop {
            changes.mark_unchanged();
            let missing = self.missing();
            let news = async {
                if told.as_ref() == Some(&missing) {
                    pending::<()>().await;
                }
                if !missing.is_empty() {
                    sleep(UNREADY).await;
                }
            };
            tokio::select! {
                () = news => {}
                // An error would mean that the sender is gone, and `self` holds it.
                _ = changes.changed() => continue,
                () = self.shutdown.triggered() => return,
            }
            if missing.is_empty() {
                info!("ready");
            } else {
                warn!(missing = missing.join(", "), "not ready");
            }
            told = Some(missing);
        }
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
        self.readiness.checks.send_if_modified(|checks| checks.insert(self.name, holds) != Some(holds));
    }
}

/// Binds the address and serves in the background; returns the address that was bound, which is logged too. What isn't for
/// everybody is behind the guard; `more` brings its own.
///
/// Needs a Tokio runtime.
pub fn serve(
    args: &OpsArgs,
    guard: &Guard,
    readiness: Readiness,
    metrics: Metrics,
    debug: &DebugPages,
    more: Router,
) -> Result<SocketAddr, OpsError> {
    let acceptor = args.acceptor(&metrics)?;
    let listener = listen(args.ops_listen)?;
    let address = listener.local_addr()?;
    info!(%address, tls = acceptor.is_some(), "operations server listening");
    let router = router(guard, readiness.clone(), metrics).merge(more);
    let router = router.merge(guard.confine(debug.router(args.debug_endpoints)));
    tokio::spawn(readiness.tell());
    tokio::spawn(accept(listener, acceptor, router));
    Ok(address)
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>, router: Router) {
    let mut connections = Connections::new(CONNECTIONS);
    loop {
        let (stream, peer) = connections.accept(&listener).await;
        let (acceptor, router) = (acceptor.clone(), router.clone().layer(Extension(Peer(peer))));
        connections.serve(|stay| connection(stream, acceptor, router, stay));
    }
}

async fn connection(stream: TcpStream, acceptor: Option<TlsAcceptor>, router: Router, stay: Stay) {
    let router = router.layer(Extension(stay.clone()));
    let connection = async {
        match acceptor {
            None => answer(stream, router, &stay).await,
            Some(acceptor) => match acceptor.accept(stream).await {
                Ok(stream) => answer(stream, router, &stay).await,
                Err(error) => debug!(%error, "TLS handshake failed"),
            },
        }
    };
    tokio::select! {
        () = connection => {}
        () = stay.silent(PATIENCE) => debug!("connection timed out"),
        () = stay.over() => debug!("connection made way for another one"),
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, stay: &Stay) {
    let mut builder = http1::Builder::new();
    builder.keep_alive(false).max_buf_size(HEAD);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), stay.answers(router)).await {
        debug!(%error, "connection failed");
    }
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
    (StatusCode::SERVICE_UNAVAILABLE, format!("missing: {}\n", missing.join(", "))).into_response()
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
mod tests {
    use axum::body::Body;
    use futures::{FutureExt, StreamExt};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        sync::Notify,
        time::{sleep, timeout},
    };

    use super::*;
    use crate::{
        certificates::{Bundle, Lifetimes, ServingNames},
        testing::{Server, debug_pages, tls_client, tls_connect},
    };

    fn plain() -> OpsArgs {
        let ops_listen = ([127, 0, 0, 1], 0).into();
        OpsArgs { ops_listen, ops_auth: OpsAuth::None, ops_cert_dir: None, debug_endpoints: false }
    }

    fn start(args: &OpsArgs, guard: &Guard, readiness: &Readiness) -> SocketAddr {
        serve(args, guard, readiness.clone(), Metrics::new(), &debug_pages(), Router::new()).expect("a free port")
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let stream = TcpStream::connect(address).await.expect("it listens");
        ask(stream, path).await
    }

    async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_asks_nothing_is_closed() {
        let readiness = Readiness::new(Shutdown::new());
        let address = start(&plain(), &Guard::open(), &readiness);
        let mut silent = TcpStream::connect(address).await.expect("it listens");
        silent.write_all(b"GET /healthz HTTP/1.1\r\n").await.expect("it reads");
        let closed = timeout(2 * PATIENCE, silent.read(&mut [0; 9])).await.expect("closed");
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_by_pieces_that_nobody_takes_is_cut_off() {
        let endless = async |Extension(stay): Extension<Stay>| {
            let pieces = futures::stream::repeat_with(move || {
                stay.renew();
                Ok::<_, std::convert::Infallible>("x".repeat(1 << 16))
            });
            Body::from_stream(pieces)
        };
        let readiness = Readiness::new(Shutdown::new());
        let more = Router::new().route("/endless", axum::routing::get(endless));
        let served = serve(&plain(), &Guard::open(), readiness, Metrics::new(), &debug_pages(), more);
        let address = served.expect("a free port");
        let mut idle = TcpStream::connect(address).await.expect("it listens");
        idle.write_all(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("it reads");
        sleep(4 * PATIENCE).await;
        // What was on its way arrives, and no more.
        let _ = idle.read_to_end(&mut Vec::new()).await;
    }

    /// As a kubelet asks that waits for a second.
    async fn probe(address: SocketAddr) {
        let answer = timeout(Duration::from_secs(1), get(address, "/healthz")).await.expect("in time");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[tokio::test]
    async fn a_flood_of_connections_that_ask_nothing_keeps_no_probe_out_and_ends_no_answer() {
        let go_on = Arc::new(Notify::new());
        let told = go_on.clone();
        let followed = async move || {
            let end = async move {
                told.notified().await;
                Ok::<_, std::convert::Infallible>("ended")
            };
            Body::from_stream(futures::stream::once(async { Ok("begun") }).chain(futures::stream::once(end)))
        };
        let more = Router::new().route("/followed", axum::routing::get(followed));
        let (readiness, metrics) = (Readiness::new(Shutdown::new()), Metrics::new());
        let address = serve(&plain(), &Guard::open(), readiness, metrics, &debug_pages(), more).expect("a port");
        let mut followed = TcpStream::connect(address).await.expect("it listens");
        followed.write_all(b"GET /followed HTTP/1.0\r\n\r\n").await.expect("it reads");
        followed.read_exact(&mut [0; 9]).await.expect("it answers");

        let mut flood = Vec::new();
        for number in 0..3 * CONNECTIONS {
            let mut silent = TcpStream::connect(address).await.expect("it listens");
            if number % 2 == 0 {
                silent.write_all(b"GET /healthz HT").await.expect("it reads");
            }
            flood.push(silent);
            if number % 16 == 0 {
                probe(address).await;
            }
        }
        probe(address).await;
        for silent in &mut flood[..CONNECTIONS] {
            let rest = timeout(Duration::from_secs(5), silent.read_to_end(&mut Vec::new())).await;
            let _ = rest.expect("the first have made way");
        }
        go_on.notify_one();
        let mut rest = String::new();
        followed.read_to_string(&mut rest).await.expect("it goes on");
        assert!(rest.ends_with("begunended"), "{rest}");
    }

    #[tokio::test]
    async fn ready_while_all_checks_hold_and_no_shutdown_began() {
        let shutdown = Shutdown::new();
        let readiness = Readiness::new(shutdown.clone());
        let (caches, certificate) = (readiness.check("caches"), readiness.check("certificate"));
        let address = start(&plain(), &Guard::open(), &readiness);

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

    /// What was logged.
    #[derive(Clone, Default)]
    struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("nobody panics").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_missing_is_logged_once_when_that_changes_and_lasts() {
        let (log, writer) = {
            let log = Log::default();
            (log.clone(), move || log.clone())
        };
        let subscriber = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).without_time().finish();
        let _log = tracing::subscriber::set_default(subscriber);
        let shutdown = Shutdown::new();
        let readiness = Readiness::new(shutdown.clone());
        let (caches, certificate) = (readiness.check("caches"), readiness.check("certificate"));
        let telling = tokio::spawn(readiness.clone().tell());
        let wait = async |seconds| sleep(Duration::from_secs(seconds)).await;
        wait(1).await;
        certificate.set(true);
        wait(60).await;
        caches.set(true);
        wait(1).await;
        for check in [&caches, &certificate] {
            check.set(false);
            wait(1).await;
            check.set(true);
            check.set(true);
            wait(60).await;
        }
        certificate.set(false);
        wait(60).await;
        shutdown.trigger();
        telling.await.expect("it ends");
        let log = String::from_utf8(log.0.lock().expect("nobody panics").clone()).expect("text");
        let lines: Vec<&str> =
            log.lines().filter_map(|line| line.split_once("server: ")).map(|(_, said)| said).collect();
        assert_eq!(lines, ["not ready missing=\"caches\"", "ready", "not ready missing=\"certificate\""], "{log}");
    }

    #[tokio::test]
    async fn behind_a_guard_probes_are_open_and_all_is_said_in_tls() {
        let bundle = Bundle::issue(&ServingNames::new(["localhost"]), &Lifetimes::default(), jiff::Timestamp::now());
        let bundle = bundle.expect("a bundle");
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("tls.crt"), bundle.serving().certificate()).expect("written");
        std::fs::write(folder.path().join("tls.key"), bundle.serving().key().expose()).expect("written");
        let api_server = Server::start([]).await;
        let readiness = Readiness::new(Shutdown::new());
        let args = OpsArgs { ops_auth: OpsAuth::Token, ops_cert_dir: Some(folder.path().to_owned()), ..plain() };
        let address = start(&args, &args.guard(&api_server.client()), &readiness);

        let client = tls_client(&bundle.material().expect("its material"), b"http/1.1");
        let connect = async || loop {
            // The folder is read soon after the start.
            if let Ok(stream) = tls_connect(address, client.clone()).await {
                return stream;
            }
            sleep(Duration::from_millis(10)).await;
        };
        for (path, code) in [("/healthz", "200"), ("/readyz", "200"), ("/metrics", "401"), ("/other", "404")] {
            let answer = ask(connect().await, path).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{path}: {answer}");
        }
        assert_eq!(api_server.requests(), [""; 0], "nobody had a token");
        let mut clear = TcpStream::connect(address).await.expect("it listens");
        clear.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("it reads");
        let mut answer = Vec::new();
        // An alert of TLS, if the connection isn't reset.
        let _ = clear.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    }
}
