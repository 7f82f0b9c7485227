//! Serves an axum router over TLS, and ends so that no request is lost.
//!
//! Bodies, from their first byte on, are the router's: how large they may be, and by when they must
//! be there.

use std::{io, pin::pin, sync::Arc, time::Duration};

use axum::{Router, extract::State, middleware, response::Response};
use clap::Args;
use http::{HeaderValue, header::CONNECTION};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use rustls::ServerConfig;
use tokio::{
    io::AsyncBufReadExt,
    net::{TcpListener, TcpStream},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::{debug, info, warn};

use crate::{
    connections::Connections,
    duration,
    linger::{self, Lent},
    shutdown::Shutdown,
};

/// From the accepted connection to the first byte of the first request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a new connection may take to send its first request once the server ends. An API server
/// that has just connected has a review to send, and without this time its call would fail.
const LATE: Duration = Duration::from_secs(2);
/// How long an HTTP/1.1 connection may be without a whole head of a request. Go closes an idle
/// connection after 90 s. The client should be the one who closes, since it can't lose a request
/// that way.
const IDLE_TIMEOUT: Duration = Duration::from_secs(100);
/// After this time the server asks the client to connect again: HTTP/2 by GOAWAY, HTTP/1.1 with the
/// next answer. Without it a client could keep an HTTP/2 connection for ever by answering pings.
const LIFETIME: Duration = Duration::from_mins(5);
/// After this further time the server drops the connection: longer than a client of HTTP/1.1 may
/// take to ask, and than any request takes.
const GRACE: Duration = Duration::from_mins(2);
/// Connections at once. API servers speak HTTP/1.1 with a Service's webhook. They need a connection
/// for each concurrent request, and keep some idle ones for each hook and each `TransformPolicy`.
const CONNECTIONS: usize = 512;
/// Unread bytes of bodies that one HTTP/2 connection may have sent, and one of its streams.
const WINDOW: u32 = 64 << 10;
/// Unread bytes that one HTTP/1.1 connection may have sent, and so the longest head of a request.
const HEAD: usize = 32 << 10;
/// An HTTP/2 client that has been silent for this long is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// An HTTP/2 client that doesn't answer a ping within this is dropped.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests at once on an HTTP/2 connection. An API server that needs more opens another
/// connection.
const CONCURRENT_STREAMS: u32 = 250;

/// Flags of the end.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Shutdown")]
pub struct DrainArgs {
    /// How long to go on accepting connections after SIGTERM, until clients have learnt to go
    /// elsewhere (as in 500ms, 5s)
    #[arg(long, env = "MIMEO_SHUTDOWN_DELAY", value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    pub shutdown_delay: Duration,
    /// How long requests in flight may take to end after that (as in 15s, 1m)
    #[arg(long, env = "MIMEO_DRAIN_TIMEOUT", value_name = "DURATION", default_value = "20s", value_parser = duration::parse)]
    pub drain_timeout: Duration,
}

/// Serves until the shutdown: then goes on for the delay, telling clients of HTTP/1.1 with each
/// answer to go elsewhere, stops accepting, lets requests in flight end (telling all clients so),
/// and after the drain's time gives up on the rest.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    config: ServerConfig,
    drain: DrainArgs,
    shutdown: Shutdown,
) {
    let draining = Shutdown::new();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let server = Server {
        acceptor,
        router,
        leaving: shutdown.clone(),
        draining: draining.clone(),
    };
    let mut connections = Connections::new(CONNECTIONS);
    let accepting = async {
        shutdown.triggered().await;
        sleep(drain.shutdown_delay).await;
    };
    let mut accepting = pin!(accepting);
    loop {
        tokio::select! {
            () = &mut accepting => break,
            (stream, _) = connections.accept(&listener) => {
                connections.serve(server.clone().connection(stream));
            }
        }
    }
    for stream in waiting(listener).take(CONNECTIONS) {
        connections.serve(server.clone().connection(stream));
    }
    draining.trigger();
    info!(connections = connections.count(), "draining");
    if timeout(drain.drain_timeout, connections.end())
        .await
        .is_err()
    {
        warn!(connections = connections.count(), "drain timed out");
    }
}

/// Closes a listener, and returns those that had connected by then and weren't accepted yet: they
/// would be reset with it.
fn waiting(listener: TcpListener) -> impl Iterator<Item = TcpStream> {
    let listener = listener.into_std().ok();
    std::iter::from_fn(move || {
        // An error says, as a rule, that there are no more.
        let (stream, _) = listener.as_ref()?.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        TcpStream::from_std(stream).ok()
    })
}

#[derive(Clone)]
struct Server {
    acceptor: TlsAcceptor,
    router: Router,
    leaving: Shutdown,
    draining: Shutdown,
}

impl Server {
    async fn connection(self, stream: TcpStream) {
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
        let (stream, returned) = Lent::new(stream);
        if timeout(LIFETIME + GRACE, self.answer(stream))
            .await
            .is_err()
        {
            return debug!("connection dropped at the end of its time");
        }
        if let Ok(stream) = returned.await {
            // What comes is of no interest, be it broken.
            linger::close(stream.into_inner().0).await;
        }
    }

    /// Answers the requests of one connection.
    async fn answer(&self, stream: Lent<TlsStream<TcpStream>>) {
        let begun = Instant::now();
        let http2 = stream
            .get_ref()
            .is_some_and(|stream| stream.get_ref().1.alpn_protocol() == Some(b"h2"));
        let mut router = self.router.clone();
        if !http2 {
            let parting = Parting {
                leaving: self.leaving.clone(),
                at: begun + LIFETIME,
            };
            router = router.layer(middleware::map_response_with_state(parting, part));
        }
        let builder = builder(http2);
        let service = TowerToHyperService::new(router);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = self.ended(http2, begun) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            debug!(error, "connection failed");
        }
    }

    /// Returns when a connection that began then should end: the server drains, or an HTTP/2
    /// connection has lasted its time.
    async fn ended(&self, http2: bool, begun: Instant) {
        tokio::select! {
            // A connection that is told to end before its first request was read may end without
            // an answer.
            () = self.draining.triggered() => sleep_until(begun + LATE).await,
            () = sleep_until(begun + LIFETIME), if http2 => {}
        }
    }
}

/// When clients of HTTP/1.1 are told to connect again.
#[derive(Clone)]
struct Parting {
    leaving: Shutdown,
    at: Instant,
}

/// Has a client of HTTP/1.1 close its connection once the server is about to end, or the connection
/// has lasted its time. Only the client knows whether a request is under way. A server that closes
/// an idle connection loses a request that was sent just then, and the client can't tell whether
/// that was carried out (RFC 9112, section 9.5): an API server, which speaks HTTP/1.1 with
/// Services, takes it for a failed call.
async fn part(State(parting): State<Parting>, mut response: Response) -> Response {
    if parting.leaving.is_triggered() || parting.at <= Instant::now() {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
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
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(CONCURRENT_STREAMS)
        .initial_connection_window_size(WINDOW)
        .initial_stream_window_size(WINDOW);
    if http2 {
        builder.http2_only()
    } else {
        builder.http1_only()
    }
}

#[cfg(test)]
mod tests;
