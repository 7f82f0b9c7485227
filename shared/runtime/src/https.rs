//! Serves an axum router over TLS, and ends so that no request is lost.
//!
//! Bodies, from their first byte on, are the router's: how large they may be, and by when they must be there.

use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::{Extension, Router, extract::State, middleware, response::Response};
use clap::Args;
use http::{HeaderValue, header::CONNECTION};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::ServerConfig;
use tokio::{
    io::AsyncBufReadExt,
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::{debug, info, warn};

use crate::{
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
/// An HTTP/2 client that has been silent for this long is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// An HTTP/2 client that doesn't answer a ping within this is dropped.
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

/// Serves until the shutdown, with the [`Peer`] as an extension of each request: then goes on for the delay, telling clients of
/// HTTP/1.1 with each answer to go elsewhere, stops accepting, lets requests in flight end (telling all clients so), and after the
/// drain's time gives up on the rest.
pub async fn serve(listener: TcpListener, router: Router, config: ServerConfig, drain: DrainArgs, shutdown: Shutdown) {
    let draining = Shutdown::new();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let server = Server { acceptor, router, leaving: shutdown.clone(), draining: draining.clone() };
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
    leaving: Shutdown,
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
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let builder = builder(http2);
        let router = self.router.layer(Extension(peer));
        let router = if http2 { router } else { router.layer(middleware::map_response_with_state(self.leaving, part)) };
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

/// Has a client of HTTP/1.1 close its connection once the server is about to end: it is who asks next who knows whether a request is
/// under way. A server that closes an idle connection loses what was sent to it just then, and the client can't tell whether that was
/// carried out (RFC 9112, section 9.5): an API server, which speaks HTTP/1.1 with Services, takes it for a failed call.
async fn part(State(leaving): State<Shutdown>, mut response: Response) -> Response {
    if leaving.is_triggered() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
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
mod tests;
