//! Serves an axum router over TLS: certificates that change while it runs, and an end that loses no request.
//!
//! Where certificates come from is the business of [`crate::certificates`]; bodies, from their first byte on, are the router's:
//! how large they may be, and by when they must be there.

use std::{fmt, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::{Extension, Router};
use clap::Args;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{
        ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier, danger::ClientCertVerifier,
    },
    sign::CertifiedKey,
};
use tokio::{
    io::AsyncBufReadExt,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::{debug, info, warn};

use crate::{
    certificates::ServingMaterial,
    connections::{Connections, Stay},
    duration,
    guard::Peer,
    linger::{self, Lent},
    shutdown::Shutdown,
};

/// From the accepted connection to the first byte of the first request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection that hasn't asked anything may take to do so once the server ends. Not nothing: an API server that has
/// just connected has a review to send, and its call would fail.
const LATE: Duration = Duration::from_secs(2);
/// How long a connection may be without a request. Longer than Go keeps such ones (90 s), so that it is the client who closes
/// them, who can't lose a request that way; and longer than any request takes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(100);
/// At once. An API server has one or two.
const CONNECTIONS: usize = 128;
/// What one connection may have sent, in bytes, before the requests it belongs to take it up.
const WINDOW: u32 = 256 << 10;
/// The same of a request's head.
const HEAD: usize = 32 << 10;
/// An HTTP/2 client that has been silent for this long is pinged,
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// and dropped unless it answers within this.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// An API server multiplexes all its reviews over one connection; below this it would open further ones.
const CONCURRENT_STREAMS: u32 = 1_000;

/// Flags of the end.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Shutdown")]
pub struct DrainArgs {
    /// How long to go on accepting connections after SIGTERM, until clients have learnt to go elsewhere (as in 500ms, 5s)
    #[arg(long, env = "MIMEO_SHUTDOWN_DELAY", value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    pub shutdown_delay: Duration,
    /// How long requests in flight may take to end after that (as in 15s, 1m)
    #[arg(long, env = "MIMEO_DRAIN_TIMEOUT", value_name = "DURATION", default_value = "20s", value_parser = duration::parse)]
    pub drain_timeout: Duration,
}

/// Why a certificate and a key can't be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificate in the PEM text, or a broken one.
    #[error("the certificate is no PEM text")]
    Certificate,
    /// No private key in the PEM text, or a broken one.
    #[error("the private key is no PEM text")]
    Key,
    /// They don't fit each other, or the key is of an unknown kind.
    #[error("the certificate and its private key can't be used")]
    Pair(#[source] rustls::Error),
    /// The TLS library refuses its own defaults.
    #[error("TLS can't be configured")]
    Config(#[source] rustls::Error),
}

/// Makes ring the process's TLS cryptography where nothing else was chosen; for libraries that ask the process for it.
pub fn install_provider() {
    // An error says that there is one already.
    let _ = ring::default_provider().install_default();
}

/// Parses a certificate chain and its private key, both PEM, and checks that they belong together.
pub fn certified_key(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey, TlsError> {
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>().map_err(|_| TlsError::Certificate)?;
    if chain.is_empty() {
        return Err(TlsError::Certificate);
    }
    // The parser's own error could quote the text.
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::Key)?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(TlsError::Pair)
}

/// A TLS server's configuration that serves whatever certificate is the current one, for HTTP/2 and HTTP/1.1. Before
/// there is one, handshakes fail.
pub fn server_config(material: watch::Receiver<Option<Arc<ServingMaterial>>>) -> Result<ServerConfig, TlsError> {
    server_config_for(WebPkiClientVerifier::no_client_auth(), material)
}

/// The same for those alone whose certificate passes this.
pub fn server_config_for(
    callers: Arc<dyn ClientCertVerifier>,
    material: watch::Receiver<Option<Arc<ServingMaterial>>>,
) -> Result<ServerConfig, TlsError> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?
        .with_client_cert_verifier(callers)
        .with_cert_resolver(Arc::new(Current(material)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // API servers don't resume sessions, so there is nothing to remember.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

struct Current(watch::Receiver<Option<Arc<ServingMaterial>>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.borrow().as_ref().map(|material| Arc::clone(&material.certified_key))
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current")
    }
}

/// Serves until the shutdown, with the [`Peer`] as an extension of each request: then goes on as before for the delay, stops
/// accepting, lets requests in flight end (telling clients to go elsewhere), and after the drain's time gives up on the rest.
pub async fn serve(listener: TcpListener, router: Router, config: ServerConfig, drain: DrainArgs, shutdown: Shutdown) {
    let draining = Shutdown::new();
    let server = Server { acceptor: TlsAcceptor::from(Arc::new(config)), router, draining: draining.clone() };
    let mut connections = Connections::new(CONNECTIONS);
    let accepting = async {
        shutdown.triggered().await;
        sleep(drain.shutdown_delay).await;
    };
    let mut accepting = pin!(accepting);
    loop {
        tokio::select! {
            () = &mut accepting => break,
            (stream, peer) = connections.accept(&listener) => {
                connections.serve(|stay| server.clone().connection(stream, Peer(peer), stay));
            }
        }
    }
    for (stream, peer) in waiting(listener).take(CONNECTIONS) {
        connections.serve(|stay| server.clone().connection(stream, Peer(peer), stay));
    }
    draining.trigger();
    info!(connections = connections.count(), "draining");
    if timeout(drain.drain_timeout, connections.end()).await.is_err() {
        warn!(connections = connections.count(), "drain timed out");
    }
}

/// Closes a listener, and returns those that had connected by then and weren't accepted yet: they would be reset with it.
fn waiting(listener: TcpListener) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
    let listener = listener.into_std().ok();
    std::iter::from_fn(move || {
        // An error says, as a rule, that there are no more.
        let (stream, peer) = listener.as_ref()?.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        Some((TcpStream::from_std(stream).ok()?, peer))
    })
}

#[derive(Clone)]
struct Server {
    acceptor: TlsAcceptor,
    router: Router,
    draining: Shutdown,
}

impl Server {
    async fn connection(self, stream: TcpStream, peer: Peer, stay: Stay) {
        tokio::select! {
            () = self.answer(stream, peer, &stay) => {}
            () = stay.over() => debug!("connection made way for another one"),
        }
    }

    async fn answer(self, stream: TcpStream, peer: Peer, stay: &Stay) {
        let too_late = async {
            self.draining.triggered().await;
            sleep(LATE).await;
        };
        let handshake = timeout(HANDSHAKE_TIMEOUT, handshake(&self.acceptor, stream));
        let stream = tokio::select! {
            () = too_late => return,
            result = handshake => match result {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return debug!(%error, "TLS handshake failed"),
                Err(_) => return debug!("TLS handshake timed out"),
            },
        };
        let builder = builder(stream.get_ref().1.alpn_protocol() == Some(b"h2"));
        let router = self.router.layer(Extension(peer));
        let (stream, returned) = Lent::new(stream);
        {
            let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), stay.answers(router)));
            let result = tokio::select! {
                result = connection.as_mut() => result,
                () = ended(&self.draining, stay) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = result {
                debug!(error, "connection failed");
            }
        }
        if let Ok(stream) = returned.await {
            // What comes is of no interest, be it broken.
            linger::close(stream.into_inner().0).await;
        }
    }
}

/// Returns when the connection should be given up: the server ends, or nothing was asked for long. HTTP/2 clients that ask
/// nothing would otherwise keep theirs by answering pings.
async fn ended(draining: &Shutdown, stay: &Stay) {
    tokio::select! {
        () = draining.triggered() => {
            // One that is told to end before its first request was read may end without an answer.
            let _ = timeout(LATE, stay.asked()).await;
        }
        () = stay.silent(IDLE_TIMEOUT) => {}
    }
}

/// Done when the client has begun to speak, so that one which never does holds nothing for long.
async fn handshake(acceptor: &TlsAcceptor, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    stream.fill_buf().await?;
    Ok(stream)
}

/// By the protocol that was agreed on, instead of guessing it from the first bytes.
fn builder(http2: bool) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Hyper counts idle time between requests as time to read the next head.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT).max_buf_size(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(CONCURRENT_STREAMS)
        .initial_connection_window_size(WINDOW)
        .initial_stream_window_size(WINDOW);
    if http2 { builder.http2_only() } else { builder.http1_only() }
}

#[cfg(test)]
mod tests {
    use axum::{
        body::{Body, Bytes},
        http::Request,
        routing::{get, post},
    };
    use http_body_util::BodyExt;
    use tokio::{
        io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
        task::JoinHandle,
    };

    use super::*;
    use crate::{
        certificates::{Bundle, Lifetimes, ServingNames},
        testing::{tls_client as client, tls_connect as connect, tls_upgrade as upgrade},
    };

    const DRAIN: DrainArgs =
        DrainArgs { shutdown_delay: Duration::from_millis(200), drain_timeout: Duration::from_secs(10) };

    fn material() -> Arc<ServingMaterial> {
        let names = ServingNames::new(["localhost"]);
        let bundle = Bundle::issue(&names, &Lifetimes::default(), jiff::Timestamp::now()).expect("a bundle");
        Arc::new(bundle.material().expect("its material"))
    }

    struct Running {
        address: SocketAddr,
        publish: watch::Sender<Option<Arc<ServingMaterial>>>,
        shutdown: Shutdown,
        task: JoinHandle<()>,
    }

    async fn run(drain: DrainArgs) -> Running {
        let (publish, material) = watch::channel(Some(material()));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let slow = async || {
            sleep(Duration::from_millis(600)).await;
            "slow"
        };
        let router = Router::new()
            .route("/fast", get(async || "fast"))
            .route("/peer", get(async |Extension(Peer(peer)): Extension<Peer>| peer.ip().to_string()))
            .route("/slow", get(slow))
            .route("/read", post(async |_: Bytes| "read"));
        let shutdown = Shutdown::new();
        let config = server_config(material).expect("a configuration");
        let task = tokio::spawn(serve(listener, router, config, drain, shutdown.clone()));
        Running { address, publish, shutdown, task }
    }

    fn request(path: &str) -> Request<Body> {
        Request::get(format!("https://localhost{path}"))
            .header("host", "localhost")
            .body(Body::empty())
            .expect("a request")
    }

    async fn text(response: http::Response<hyper::body::Incoming>) -> Vec<u8> {
        response.into_body().collect().await.expect("a whole body").to_bytes().to_vec()
    }

    #[tokio::test]
    async fn a_new_certificate_is_served_at_once_and_old_connections_go_on() {
        let server = run(DRAIN).await;
        let (old, new) = (server.publish.borrow().clone().expect("published"), material());
        let stream = connect(server.address, client(&old, b"h2")).await.expect("trusted");
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
        tokio::spawn(connection);
        let running = tokio::spawn(sender.send_request(request("/slow")));
        server.publish.send_replace(Some(Arc::clone(&new)));

        connect(server.address, client(&new, b"http/1.1")).await.expect("the new one is served");
        connect(server.address, client(&old, b"http/1.1")).await.expect_err("the old one isn't");
        assert_eq!(text(running.await.expect("a task").expect("an answer")).await, b"slow");
        assert_eq!(text(sender.send_request(request("/peer")).await.expect("an answer")).await, b"127.0.0.1");
        assert_eq!(text(sender.send_request(request("/fast")).await.expect("an answer")).await, b"fast");
    }

    #[tokio::test]
    async fn without_a_certificate_handshakes_fail_and_later_succeed() {
        let server = run(DRAIN).await;
        let material = server.publish.send_replace(None).expect("published");
        connect(server.address, client(&material, b"h2")).await.expect_err("nothing to serve");
        server.publish.send_replace(Some(Arc::clone(&material)));
        connect(server.address, client(&material, b"h2")).await.expect("served");
    }

    #[tokio::test]
    async fn shutdown_accepts_for_a_while_then_ends_requests_in_flight() {
        let server = run(DRAIN).await;
        let trusted = server.publish.borrow().clone().expect("published");
        let http2 = connect(server.address, client(&trusted, b"h2")).await.expect("trusted");
        let (mut multiplexed, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(http2)).await.expect("HTTP/2");
        tokio::spawn(connection);
        let first = tokio::spawn(multiplexed.send_request(request("/slow")));
        sleep(Duration::from_millis(50)).await;
        server.shutdown.trigger();

        let http1 = connect(server.address, client(&trusted, b"http/1.1")).await.expect("still accepting");
        let (mut single, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(http1)).await.expect("HTTP/1.1");
        tokio::spawn(connection);
        let second = single.send_request(request("/slow")).await.expect("an answer");
        assert_eq!(second.headers().get("connection").map(http::HeaderValue::as_bytes), Some(&b"close"[..]));
        assert_eq!(text(second).await, b"slow");
        assert_eq!(text(first.await.expect("a task").expect("an answer")).await, b"slow");
        timeout(Duration::from_secs(5), server.task).await.expect("it ends by itself").expect("without a panic");
        TcpStream::connect(server.address).await.expect_err("nobody listens");
    }

    #[tokio::test]
    async fn who_had_connected_before_the_drain_is_answered() {
        for protocol in [&b"h2"[..], b"http/1.1"] {
            let server = run(DrainArgs { shutdown_delay: Duration::ZERO, ..DRAIN }).await;
            let trusted = server.publish.borrow().clone().expect("published");
            // Without waiting: the server, on the same thread, hasn't accepted it.
            let early = std::net::TcpStream::connect(server.address).expect("it listens");
            server.shutdown.trigger();
            while TcpStream::connect(server.address).await.is_ok() {}
            early.set_nonblocking(true).expect("possible");
            let early = TcpStream::from_std(early).expect("a stream");
            let stream = upgrade(early, client(&trusted, protocol)).await.expect("a handshake");
            let answer = if protocol == b"h2" {
                let (mut sender, connection) =
                    hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                        .await
                        .expect("HTTP/2");
                tokio::spawn(connection);
                sender.send_request(request("/slow")).await
            } else {
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
                tokio::spawn(connection);
                sender.send_request(request("/slow")).await
            };
            assert_eq!(text(answer.expect("an answer")).await, b"slow");
            timeout(Duration::from_secs(5), server.task).await.expect("it ends by itself").expect("without a panic");
        }
    }

    /// As an API server does that writes its next review before it has read that it should go elsewhere.
    #[tokio::test]
    async fn who_asks_while_it_is_told_to_go_elsewhere_is_not_cut_off() {
        let server = run(DrainArgs { shutdown_delay: Duration::ZERO, ..DRAIN }).await;
        let trusted = server.publish.borrow().clone().expect("published");
        let mut stream = connect(server.address, client(&trusted, b"h2")).await.expect("trusted");
        // The preface, no settings of its own, and the acknowledgement of the ping by which the server learns that it was heard.
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("it reads");
        server.shutdown.trigger();
        let mut told = Vec::new();
        while stream.read_buf(&mut told).await.expect("in order") > 0 {
            let ping = told.windows(5).position(|head| head == [0, 0, 8, 6, 0]);
            if let Some(data) = ping.and_then(|at| told.get(at + 9..at + 17)) {
                let pong = [&[0, 0, 8, 6, 1, 0, 0, 0, 0], data].concat();
                told.clear();
                stream.write_all(&pong).await.expect("it reads");
            }
        }
        let request = [0; 1 << 10];
        for _ in 0..5 {
            stream.write_all(&request).await.expect("what nobody reads is taken");
            stream.flush().await.expect("and sent");
            sleep(Duration::from_millis(20)).await;
        }
        drop(stream);
        timeout(Duration::from_secs(5), server.task).await.expect("it ends by itself").expect("without a panic");
    }

    #[tokio::test]
    async fn a_drain_is_bounded() {
        let drain = DrainArgs { shutdown_delay: Duration::ZERO, drain_timeout: Duration::from_millis(100) };
        let server = run(drain).await;
        let trusted = server.publish.borrow().clone().expect("published");
        let stream = connect(server.address, client(&trusted, b"http/1.1")).await.expect("trusted");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
        tokio::spawn(connection);
        let running = tokio::spawn(async move { sender.send_request(request("/slow")).await });
        sleep(Duration::from_millis(50)).await;
        server.shutdown.trigger();
        timeout(Duration::from_millis(400), server.task).await.expect("it gives up").expect("without a panic");
        running.await.expect("a task").expect_err("cut off");
    }

    #[tokio::test]
    async fn a_flood_of_connections_that_ask_nothing_keeps_no_api_server_out_and_ends_no_request() {
        let server = run(DRAIN).await;
        let trusted = server.publish.borrow().clone().expect("published");
        let stream = connect(server.address, client(&trusted, b"h2")).await.expect("trusted");
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
        tokio::spawn(connection);
        assert_eq!(text(sender.send_request(request("/fast")).await.expect("an answer")).await, b"fast");
        let running = tokio::spawn(sender.send_request(request("/slow")));

        let mut flood: Vec<Box<dyn AsyncRead + Unpin>> = Vec::new();
        for number in 0..2 * CONNECTIONS {
            if number % 8 > 0 {
                flood.push(Box::new(TcpStream::connect(server.address).await.expect("it listens")));
                continue;
            }
            // One that begins a request, and whose body doesn't come.
            let mut stream = connect(server.address, client(&trusted, b"http/1.1")).await.expect("accepted");
            let begun = b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx";
            stream.write_all(begun).await.expect("it reads");
            flood.push(Box::new(stream));
        }
        let one_more = timeout(Duration::from_secs(5), connect(server.address, client(&trusted, b"h2"))).await;
        one_more.expect("in time").expect("trusted");
        for silent in &mut flood[..CONNECTIONS] {
            let rest = timeout(Duration::from_secs(5), silent.read_to_end(&mut Vec::new())).await;
            let _ = rest.expect("it made way");
        }
        assert_eq!(text(running.await.expect("a task").expect("an answer")).await, b"slow");
        let again =
            sender.send_request(request("/fast")).await.expect("nor is who has asked before others that never did");
        assert_eq!(text(again).await, b"fast");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_nothing_is_asked_for_long() {
        let (draining, stay) = (Shutdown::new(), Stay::new(Arc::default()));
        let asking = async {
            for _ in 0..5 {
                sleep(IDLE_TIMEOUT * 3 / 4).await;
                stay.renew();
            }
        };
        tokio::select! {
            () = asking => {}
            () = ended(&draining, &stay) => panic!("something was asked now and then"),
        }
        timeout(IDLE_TIMEOUT * 2, ended(&draining, &stay)).await.expect("idle");
        stay.renew();
        draining.trigger();
        timeout(LATE * 2, ended(&draining, &stay)).await.expect("the server ends");
    }

    #[test]
    fn a_key_must_fit_its_certificate() {
        let names = ServingNames::new(["localhost"]);
        let issue = || Bundle::issue(&names, &Lifetimes::default(), jiff::Timestamp::now()).expect("a bundle");
        let (one, two) = (issue(), issue());
        let (certificate, key) = (one.serving().certificate().as_bytes(), one.serving().key().expose().as_bytes());
        assert!(certified_key(certificate, key).is_ok());
        let other = two.serving().key().expose().as_bytes();
        assert!(matches!(certified_key(certificate, other), Err(TlsError::Pair(_))));
        assert!(matches!(certified_key(certificate, b"?"), Err(TlsError::Key)));
        assert!(matches!(certified_key(b"?", key), Err(TlsError::Certificate)));
    }
}
