//! A TLS client, and a scripted HTTP server for tests. The server shows behaviour that a real API
//! server cannot be made to show on demand.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::HeaderMap;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioExecutor};
use kube::{Client, Config, client::ConfigExt};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower::{BoxError, ServiceBuilder};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::{EnvFilter, reload};

use crate::{
    debug::DebugPages,
    pieces::{Outgoing, unpack},
    telemetry::LogFilter,
    tls::ServingMaterial,
};

/// One answer.
pub(crate) struct Script {
    code: u16,
    headers: Vec<(&'static str, String)>,
    steps: Vec<Step>,
}

enum Step {
    Send(Bytes),
    Pause(Duration),
}

impl Script {
    /// An answer with this text.
    pub(crate) fn text(code: u16, text: impl Into<Bytes>) -> Self {
        Self {
            code,
            headers: Vec::new(),
            steps: Vec::new(),
        }
        .send(text)
    }

    /// An answer with this JSON.
    pub(crate) fn json(code: u16, json: &Value) -> Self {
        Self::text(code, json.to_string())
    }

    /// A watch that sends these lines and ends.
    pub(crate) fn lines<const N: usize>(lines: [Value; N]) -> Self {
        Self::text(200, lines.map(|line| format!("{line}\n")).concat())
    }

    /// Adds a piece to the body.
    pub(crate) fn send(mut self, piece: impl Into<Bytes>) -> Self {
        self.steps.push(Step::Send(piece.into()));
        self
    }

    /// Adds a wait before the next piece, or before the end.
    pub(crate) fn pause(mut self, time: Duration) -> Self {
        self.steps.push(Step::Pause(time));
        self
    }

    /// Keeps the answer open after the last piece.
    pub(crate) fn hold(self) -> Self {
        self.pause(Duration::from_hours(1))
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn response(self) -> Response {
        let body = stream::iter(self.steps).filter_map(|step| async {
            match step {
                Step::Send(piece) => Some(Ok::<_, std::convert::Infallible>(piece)),
                Step::Pause(time) => {
                    tokio::time::sleep(time).await;
                    None
                }
            }
        });
        let response = self.headers.into_iter().fold(
            Response::builder().status(self.code),
            |response, (name, value)| response.header(name, value),
        );
        response
            .body(axum::body::Body::from_stream(body))
            .expect("scripts are well-formed")
    }
}

/// A received request.
#[derive(Clone)]
pub(crate) struct Came {
    /// `METHOD path?query`.
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

type Shared = Arc<Mutex<(VecDeque<Script>, Vec<Came>)>>;

/// Answers each request with the next script. Without a script left, it never answers.
pub(crate) struct Server {
    uri: String,
    shared: Shared,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(scripts: impl IntoIterator<Item = Script>) -> Self {
        let shared: Shared = Arc::new(Mutex::new((scripts.into_iter().collect(), Vec::new())));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let uri = format!("http://{}", listener.local_addr().expect("an address"));
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let task =
            tokio::spawn(async move { axum::serve(listener, router).await.expect("a server") });
        Self { uri, shared, task }
    }

    /// A client of this server, with the layers that the programs use.
    pub(crate) fn client(&self) -> Client {
        let config = Config::new(self.uri.parse().expect("a URI"));
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .build::<_, Outgoing>(HttpConnector::new());
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .map_err(BoxError::from)
            .map_request(unpack)
            .service(http);
        Client::new(service, "default")
    }

    /// The server's address.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// The requests received so far.
    pub(crate) fn came(&self) -> Vec<Came> {
        self.shared.lock().expect("no panic").1.clone()
    }

    /// The first lines of these requests.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.came().into_iter().map(|came| came.line).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 16 << 20).await.expect("a body");
    let script = {
        let mut shared = shared.lock().expect("no panic");
        let path = head
            .uri
            .path_and_query()
            .map(ToString::to_string)
            .unwrap_or_default();
        shared.1.push(Came {
            line: format!("{} {path}", head.method),
            headers: head.headers,
            body,
        });
        shared.0.pop_front()
    };
    match script {
        Some(script) => script.response(),
        None => std::future::pending().await,
    }
}

/// The debug pages of a program, with a log that writes nothing.
pub(crate) fn debug_pages() -> DebugPages {
    let (layer, handle) = reload::Layer::new(EnvFilter::new("info"));
    // The handle has the filter only while the layer exists.
    std::mem::forget(layer);
    DebugPages::new(LogFilter(handle))
}

/// A client that trusts this material's CA and no other.
pub(crate) fn tls_client(trusted: &ServingMaterial, alpn: &[u8]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let bundle = trusted
        .ca_bundle
        .as_deref()
        .expect("issued material has a CA");
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.expect("PEM")).expect("a CA");
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("defaults")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// Connects the client to a server with the name `localhost`.
pub(crate) async fn tls_connect(
    address: SocketAddr,
    client: TlsConnector,
) -> io::Result<TlsStream<TcpStream>> {
    tls_upgrade(TcpStream::connect(address).await?, client).await
}

/// As [`tls_connect`], over an existing connection.
pub(crate) async fn tls_upgrade(
    stream: TcpStream,
    client: TlsConnector,
) -> io::Result<TlsStream<TcpStream>> {
    client
        .connect(ServerName::try_from("localhost").expect("a name"), stream)
        .await
}

/// Lets this much time pass at once. Before and after it the clock runs as usual: on a paused clock
/// a timer fires before data that a socket is about to deliver.
pub(crate) async fn skip(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Waits for a future while time passes in steps, one at each moment.
pub(crate) async fn hurry<F: Future>(step: Duration, awaited: F) -> F::Output {
    let mut awaited = std::pin::pin!(awaited);
    loop {
        tokio::select! {
            biased;
            output = awaited.as_mut() => return output,
            () = tokio::time::sleep(Duration::from_millis(20)) => skip(step).await,
        }
    }
}

/// The text that the code under test logs.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Records the lines that this thread logs, until the guard is dropped.
    pub(crate) fn record(&self) -> DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || log.clone())
            .with_ansi(false)
            .without_time()
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    pub(crate) fn text(&self) -> String {
        let text = self.0.lock().expect("nobody panics").clone();
        String::from_utf8(text).expect("logs are text")
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .expect("nobody panics")
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
