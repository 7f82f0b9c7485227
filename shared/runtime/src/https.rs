//! Serves an axum router over TLS, and shuts down without losing a request.
//!
//! It speaks HTTP/1.1 alone, as API servers do with the webhook of a Service. The operations server
//! answers its connections by the same code, without TLS too.
//!
//! The router handles bodies from their first byte on: it limits their size and their time.

use std::{io, pin::pin, time::Duration};

use axum::{Router, extract::State, middleware, response::Response};
use clap::Args;
use http::{HeaderValue, header::CONNECTION};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_rustls::server::TlsStream;
use tracing::{debug, info, warn};

use crate::{connections::accept, duration, linger, shutdown::CancellationToken, tls::Tls};

/// From the accepted connection to the first byte of the first request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a new connection may take to send its first request once the server shuts down. An API
/// server that has just connected has a review to send. Without this time its call would fail.
const LATE: Duration = Duration::from_secs(2);
/// How long a connection may be without the complete head of a request. Go closes an idle
/// connection after 90 s. The client should close first, because it cannot lose a request that way.
const IDLE_TIMEOUT: Duration = Duration::from_secs(100);
/// After this time the server asks the client to connect again, with the next answer.
const LIFETIME: Duration = Duration::from_mins(5);
/// After this further time the server drops the connection. It is longer than a client may take to
/// send a request, and longer than any request takes.
const GRACE: Duration = Duration::from_mins(2);
/// Connections at once. API servers need a connection for each concurrent request, and keep some
/// idle ones for each hook and each `TransformPolicy`.
const CONNECTIONS: usize = 512;
/// Unread bytes that one connection may have sent, and so the longest head of a request.
const HEAD: usize = 32 << 10;

/// Flags for the shutdown.
#[derive(Clone, Args)]
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
/// each answer then asks the client to connect elsewhere. Then it stops accepting and lets requests
/// in flight end. After the drain timeout it drops the remaining connections.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Tls,
    drain: DrainArgs,
    shutdown: CancellationToken,
) {
    let draining = CancellationToken::new();
    let server = Server {
        tls: Some(tls),
        router,
        idle: IDLE_TIMEOUT,
        lifetime: LIFETIME + GRACE,
        leaving: shutdown.clone(),
        draining: draining.clone(),
    };
    let mut open = JoinSet::new();
    let accepting = async {
        shutdown.cancelled().await;
        sleep(drain.shutdown_delay).await;
    };
    let mut accepting = pin!(accepting);
    loop {
        tokio::select! {
            () = &mut accepting => break,
            (stream, _) = accept(&listener, &mut open, CONNECTIONS) => {
                open.spawn(server.clone().connection(stream));
            }
        }
    }
    for stream in waiting(listener).take(CONNECTIONS) {
        open.spawn(server.clone().connection(stream));
    }
    draining.cancel();
    info!(connections = open.len(), "draining");
    let ended = async { while open.join_next().await.is_some() {} };
    if timeout(drain.drain_timeout, ended).await.is_err() {
        warn!(connections = open.len(), "drain timed out");
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

/// Answers connections. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Server {
    /// `None` for plain HTTP.
    pub(crate) tls: Option<Tls>,
    pub(crate) router: Router,
    /// How long a connection may be without the complete head of a request.
    pub(crate) idle: Duration,
    /// A connection is dropped after this time.
    pub(crate) lifetime: Duration,
    /// Once cancelled, each answer ends its connection.
    pub(crate) leaving: CancellationToken,
    /// Once cancelled, all connections end.
    pub(crate) draining: CancellationToken,
}

impl Server {
    /// Answers the requests of one connection.
    pub(crate) async fn connection(self, stream: TcpStream) {
        let Some(tls) = &self.tls else {
            return self.answer(stream).await;
        };
        let too_late = async {
            self.draining.cancelled().await;
            sleep(LATE).await;
        };
        let handshake = timeout(HANDSHAKE_TIMEOUT, handshake(tls, stream));
        let stream = tokio::select! {
            () = too_late => return,
            result = handshake => match result {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return debug!(%error, "TLS handshake failed"),
                Err(_) => return debug!("TLS handshake timed out"),
            },
        };
        self.answer(stream).await;
    }

    /// Answers the requests of a stream.
    async fn answer(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let answered = self.answer_requests(&mut stream);
        if timeout(self.lifetime, answered).await.is_err() {
            return debug!("connection dropped at the end of its time");
        }
        // The remaining input does not matter, so a connection that broke is handled alike.
        linger::close(stream).await;
    }

    async fn answer_requests(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let begun = Instant::now();
        let parting = (self.leaving.clone(), begun + LIFETIME);
        let router = self
            .router
            .clone()
            .layer(middleware::map_response_with_state(parting, part));
        let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(router));
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                // Hyper counts the idle time between requests as time to read the next head.
                .header_read_timeout(self.idle)
                .max_buf_size(HEAD)
                .serve_connection(io, service)
        );
        let drained = async {
            self.draining.cancelled().await;
            // If a connection is asked to end before its first request was read, it may end without
            // an answer.
            sleep_until(begun + LATE).await;
        };
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = drained => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            debug!(%error, "connection failed");
        }
    }
}

/// Asks a client to close its connection, once the server shuts down or the connection's
/// lifetime is over at this time.
///
/// The client closes, because only the client knows whether a request is in flight. A server that
/// closes an idle connection loses a request sent at the same moment. The client then cannot tell
/// whether the request was carried out (RFC 9112, section 9.5). An API server treats
/// such a request as a failed call.
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

#[cfg(test)]
mod tests;
