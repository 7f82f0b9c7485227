//! Serves an axum router over TLS, and shuts down without losing a request.
//!
//! The router handles bodies from their first byte on: it limits their size and their time.

use std::{io, pin::pin, time::Duration};

use axum::{Router, extract::State, middleware, response::Response};
use clap::Args;
use http::{HeaderValue, header::CONNECTION};
use hyper::server::conn::{http1, http2};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::AsyncBufReadExt,
    net::{TcpListener, TcpStream},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_rustls::server::TlsStream;
use tracing::{debug, info, warn};

use crate::{connections::Connections, duration, linger, shutdown::CancellationToken, tls::Tls};

/// From the accepted connection to the first byte of the first request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a new connection may take to send its first request once the server shuts down. An API
/// server that has just connected has a review to send. Without this time its call would fail.
const LATE: Duration = Duration::from_secs(2);
/// How long an HTTP/1.1 connection may be without the complete head of a request. Go closes an idle
/// connection after 90 s. The client should close first, because it cannot lose a request that way.
const IDLE_TIMEOUT: Duration = Duration::from_secs(100);
/// After this time the server asks the client to connect again: HTTP/2 by GOAWAY, HTTP/1.1 with the
/// next answer. Without this limit a client could keep an HTTP/2 connection forever by answering
/// pings.
const LIFETIME: Duration = Duration::from_mins(5);
/// After this further time the server drops the connection. It is longer than an HTTP/1.1 client
/// may take to send a request, and longer than any request takes.
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

/// Flags for the shutdown.
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

/// Serves until the shutdown, and then in three steps. First it goes on for the shutdown delay;
/// each HTTP/1.1 answer then asks the client to connect elsewhere. Then it stops accepting and lets
/// requests in flight end; all clients are asked to connect elsewhere. After the drain timeout it
/// drops the remaining connections.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Tls,
    drain: DrainArgs,
    shutdown: CancellationToken,
) {
    let draining = CancellationToken::new();
    let server = Server {
        tls,
        router,
        leaving: shutdown.clone(),
        draining: draining.clone(),
    };
    let mut connections = Connections::new(CONNECTIONS);
    let accepting = async {
        shutdown.cancelled().await;
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
    draining.cancel();
    info!(connections = connections.count(), "draining");
    if timeout(drain.drain_timeout, connections.end())
        .await
        .is_err()
    {
        warn!(connections = connections.count(), "drain timed out");
    }
}

/// Closes a listener. Returns the connections that clients have opened but the server has not
/// accepted: closing the listener would reset them.
fn waiting(listener: TcpListener) -> impl Iterator<Item = TcpStream> {
    let listener = listener.into_std().ok();
    std::iter::from_fn(move || {
        // An error usually means that there are no more connections.
        let (stream, _) = listener.as_ref()?.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        TcpStream::from_std(stream).ok()
    })
}

#[derive(Clone)]
struct Server {
    tls: Tls,
    router: Router,
    leaving: CancellationToken,
    draining: CancellationToken,
}

impl Server {
    async fn connection(self, stream: TcpStream) {
        let too_late = async {
            self.draining.cancelled().await;
            sleep(LATE).await;
        };
        let handshake = timeout(HANDSHAKE_TIMEOUT, handshake(&self.tls, stream));
        let mut stream = tokio::select! {
            () = too_late => return,
            result = handshake => match result {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return debug!(%error, "TLS handshake failed"),
                Err(_) => return debug!("TLS handshake timed out"),
            },
        };
        if timeout(LIFETIME + GRACE, self.answer(&mut stream))
            .await
            .is_err()
        {
            return debug!("connection dropped at the end of its time");
        }
        // The remaining input does not matter, so a connection that broke is handled alike.
        linger::close(stream.into_inner().0).await;
    }

    /// Answers the requests of one connection.
    async fn answer(&self, stream: &mut TlsStream<TcpStream>) {
        let begun = Instant::now();
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let mut router = self.router.clone();
        if !is_http2 {
            let parting = (self.leaving.clone(), begun + LIFETIME);
            router = router.layer(middleware::map_response_with_state(parting, part));
        }
        let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(router));
        let ended = self.ended(is_http2, begun);
        // The same for two types that have no trait in common.
        let result = if is_http2 {
            let mut connection = pin!(http2_server().serve_connection(io, service));
            tokio::select! {
                result = connection.as_mut() => result,
                () = ended => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        } else {
            let mut connection = pin!(http1_server(IDLE_TIMEOUT).serve_connection(io, service));
            tokio::select! {
                result = connection.as_mut() => result,
                () = ended => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        };
        if let Err(error) = result {
            debug!(%error, "connection failed");
        }
    }

    /// Returns when a connection that began at `begun` should end: when the server drains, or at
    /// the end of an HTTP/2 connection's lifetime.
    async fn ended(&self, http2: bool, begun: Instant) {
        tokio::select! {
            // If a connection is asked to end before its first request was read, it may end without
            // an answer.
            () = self.draining.cancelled() => sleep_until(begun + LATE).await,
            () = sleep_until(begun + LIFETIME), if http2 => {}
        }
    }
}

/// Asks an HTTP/1.1 client to close its connection, once the server shuts down or the connection's
/// lifetime is over at this time.
///
/// The client closes, because only the client knows whether a request is in flight. A server that
/// closes an idle connection loses a request sent at the same moment. The client then cannot tell
/// whether the request was carried out (RFC 9112, section 9.5). An API server speaks HTTP/1.1 with
/// Services and treats such a request as a failed call.
async fn part(
    State((leaving, end)): State<(CancellationToken, Instant)>,
    mut response: Response,
) -> Response {
    if leaving.is_cancelled() || end <= Instant::now() {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Completes when the client has sent its first byte. A client that never does is dropped after
/// [`HANDSHAKE_TIMEOUT`].
async fn handshake(tls: &Tls, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    let mut stream = tls.accept(stream).await?;
    stream.fill_buf().await?;
    Ok(stream)
}

/// HTTP/1.1 with a client that may take this long for the head of a request. Hyper counts the idle
/// time between requests as time to read the next head.
pub(crate) fn http1_server(patience: Duration) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(HEAD);
    builder
}

fn http2_server() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(CONCURRENT_STREAMS)
        .initial_connection_window_size(WINDOW)
        .initial_stream_window_size(WINDOW);
    builder
}

#[cfg(test)]
mod tests;
