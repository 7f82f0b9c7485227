//! Certificates that change under connections, stalling clients, and the shutdown.

use std::{net::SocketAddr, sync::Arc};

use axum::{body::Body, http::Request, routing::get};
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::watch,
    task::JoinHandle,
};

use super::*;
use crate::{
    certificates::{Bundle, Lifetimes, ServingNames},
    testing::{hurry, skip, tls_client as client, tls_connect as connect, tls_upgrade as upgrade},
    tls::{ServingMaterial, Tls},
};

const DRAIN: DrainArgs = DrainArgs {
    shutdown_delay: Duration::from_millis(200),
    drain_timeout: Duration::from_secs(10),
};

fn material() -> Arc<ServingMaterial> {
    let names = ServingNames::new(["localhost"]);
    let bundle =
        Bundle::issue(&names, &Lifetimes::default(), jiff::Timestamp::now()).expect("a bundle");
    Arc::new(bundle.material().expect("its material"))
}

struct Running {
    address: SocketAddr,
    publish: watch::Sender<Option<Arc<ServingMaterial>>>,
    shutdown: CancellationToken,
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
        .route("/slow", get(slow));
    let shutdown = CancellationToken::new();
    let tls = Tls {
        material,
        callers: None,
    };
    let task = tokio::spawn(serve(listener, router, tls, drain, shutdown.clone()));
    Running {
        address,
        publish,
        shutdown,
        task,
    }
}

fn request(path: &str) -> Request<Body> {
    Request::get(format!("https://localhost{path}"))
        .header("host", "localhost")
        .body(Body::empty())
        .expect("a request")
}

async fn text(response: http::Response<hyper::body::Incoming>) -> Vec<u8> {
    response
        .into_body()
        .collect()
        .await
        .expect("a whole body")
        .to_bytes()
        .to_vec()
}

#[tokio::test]
async fn a_new_certificate_is_served_at_once_and_old_connections_go_on() {
    let server = run(DRAIN).await;
    let (old, new) = (
        server.publish.borrow().clone().expect("published"),
        material(),
    );
    let stream = connect(server.address, client(&old, b"http/1.1"))
        .await
        .expect("trusted");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .expect("HTTP/1.1");
    tokio::spawn(connection);
    let running = tokio::spawn(sender.send_request(request("/slow")));
    server.publish.send_replace(Some(Arc::clone(&new)));

    connect(server.address, client(&new, b"http/1.1"))
        .await
        .expect("the new one is served");
    connect(server.address, client(&old, b"http/1.1"))
        .await
        .expect_err("the old one isn't");
    assert_eq!(
        text(running.await.expect("a task").expect("an answer")).await,
        b"slow"
    );
    sender.ready().await.expect("the connection is kept");
    assert_eq!(
        text(
            sender
                .send_request(request("/fast"))
                .await
                .expect("an answer")
        )
        .await,
        b"fast"
    );
}

#[tokio::test]
async fn without_a_certificate_handshakes_fail_and_later_succeed() {
    let server = run(DRAIN).await;
    let material = server.publish.send_replace(None).expect("published");
    connect(server.address, client(&material, b"http/1.1"))
        .await
        .expect_err("nothing to serve");
    server.publish.send_replace(Some(Arc::clone(&material)));
    connect(server.address, client(&material, b"http/1.1"))
        .await
        .expect("served");
}

#[tokio::test]
async fn shutdown_accepts_for_a_while_then_ends_requests_in_flight() {
    let server = run(DRAIN).await;
    let trusted = server.publish.borrow().clone().expect("published");
    let early = connect(server.address, client(&trusted, b"http/1.1"))
        .await
        .expect("trusted");
    let (mut early, connection) = http1::handshake(TokioIo::new(early))
        .await
        .expect("HTTP/1.1");
    tokio::spawn(connection);
    let first = tokio::spawn(early.send_request(request("/slow")));
    sleep(Duration::from_millis(50)).await;
    server.shutdown.cancel();

    let late = connect(server.address, client(&trusted, b"http/1.1"))
        .await
        .expect("still accepting");
    let (mut single, connection) = http1::handshake(TokioIo::new(late))
        .await
        .expect("HTTP/1.1");
    tokio::spawn(connection);
    let second = single
        .send_request(request("/slow"))
        .await
        .expect("an answer");
    assert_eq!(
        second
            .headers()
            .get("connection")
            .map(http::HeaderValue::as_bytes),
        Some(&b"close"[..])
    );
    assert_eq!(text(second).await, b"slow");
    assert_eq!(
        text(first.await.expect("a task").expect("an answer")).await,
        b"slow"
    );
    timeout(Duration::from_secs(5), server.task)
        .await
        .expect("it ends by itself")
        .expect("without a panic");
    TcpStream::connect(server.address)
        .await
        .expect_err("nobody listens");
}

/// API servers use their connections to a Service's webhook in this way.
#[tokio::test]
async fn whoever_goes_on_asking_by_http1_is_sent_elsewhere_before_the_drain() {
    let server = run(DrainArgs {
        shutdown_delay: Duration::from_mins(1),
        ..DRAIN
    })
    .await;
    let trusted = server.publish.borrow().clone().expect("published");
    let ask = async |known: Option<http1::SendRequest<Body>>| {
        let mut sender = if let Some(sender) = known {
            sender
        } else {
            let stream = connect(server.address, client(&trusted, b"http/1.1"))
                .await
                .expect("trusted");
            let (sender, connection) = http1::handshake(TokioIo::new(stream))
                .await
                .expect("HTTP/1.1");
            tokio::spawn(connection);
            sender
        };
        let answer = sender
            .send_request(request("/fast"))
            .await
            .expect("an answer");
        let parting = answer
            .headers()
            .get("connection")
            .is_some_and(|word| word == "close");
        assert_eq!(text(answer).await, b"fast");
        (sender, parting)
    };
    let (sender, parting) = ask(None).await;
    assert!(!parting, "the connection is kept");
    let (sender, parting) = ask(Some(sender)).await;
    assert!(!parting, "the connection is kept");
    server.shutdown.cancel();
    for known in [Some(sender), None] {
        let (mut sender, parting) = ask(known).await;
        assert!(parting, "it is told to go elsewhere");
        timeout(Duration::from_secs(5), sender.ready())
            .await
            .expect("at once")
            .expect_err("the connection has ended");
    }
    server.task.abort();
}

#[tokio::test]
async fn who_had_connected_before_the_drain_is_answered() {
    let server = run(DrainArgs {
        shutdown_delay: Duration::ZERO,
        ..DRAIN
    })
    .await;
    let trusted = server.publish.borrow().clone().expect("published");
    // Connected without waiting: the server runs on the same thread and has not accepted this
    // connection yet.
    let early = std::net::TcpStream::connect(server.address).expect("it listens");
    server.shutdown.cancel();
    while TcpStream::connect(server.address).await.is_ok() {}
    early.set_nonblocking(true).expect("possible");
    let early = TcpStream::from_std(early).expect("a stream");
    let stream = upgrade(early, client(&trusted, b"http/1.1"))
        .await
        .expect("a handshake");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .expect("HTTP/1.1");
    tokio::spawn(connection);
    let answer = sender.send_request(request("/slow")).await;
    assert_eq!(text(answer.expect("an answer")).await, b"slow");
    timeout(Duration::from_secs(5), server.task)
        .await
        .expect("it ends by itself")
        .expect("without a panic");
}

/// An API server may write its next review before it has read the request to connect elsewhere.
#[tokio::test]
async fn who_asks_while_it_is_told_to_go_elsewhere_is_not_cut_off() {
    let server = run(DrainArgs {
        shutdown_delay: Duration::ZERO,
        ..DRAIN
    })
    .await;
    let trusted = server.publish.borrow().clone().expect("published");
    let mut stream = connect(server.address, client(&trusted, b"http/1.1"))
        .await
        .expect("trusted");
    server.shutdown.cancel();
    stream
        .write_all(b"GET /fast HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("in order");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("connection: close"), "{answer}");
    let request = [0; 1 << 10];
    for _ in 0..5 {
        stream
            .write_all(&request)
            .await
            .expect("what nobody reads is taken");
        stream.flush().await.expect("and sent");
        sleep(Duration::from_millis(20)).await;
    }
    drop(stream);
    timeout(Duration::from_secs(5), server.task)
        .await
        .expect("it ends by itself")
        .expect("without a panic");
}

#[tokio::test]
async fn a_drain_is_bounded() {
    let drain = DrainArgs {
        shutdown_delay: Duration::ZERO,
        drain_timeout: Duration::from_millis(100),
    };
    let server = run(drain).await;
    let trusted = server.publish.borrow().clone().expect("published");
    let stream = connect(server.address, client(&trusted, b"http/1.1"))
        .await
        .expect("trusted");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .expect("HTTP/1.1");
    tokio::spawn(connection);
    let running = tokio::spawn(async move { sender.send_request(request("/slow")).await });
    sleep(Duration::from_millis(50)).await;
    server.shutdown.cancel();
    timeout(Duration::from_millis(400), server.task)
        .await
        .expect("it gives up")
        .expect("without a panic");
    running.await.expect("a task").expect_err("cut off");
}

#[tokio::test]
async fn a_client_that_begins_no_handshake_or_request_is_closed() {
    let server = run(DRAIN).await;
    let trusted = server.publish.borrow().clone().expect("published");
    let mut silent = TcpStream::connect(server.address)
        .await
        .expect("it listens");
    let mut idle = connect(server.address, client(&trusted, b"http/1.1"))
        .await
        .expect("trusted");
    idle.write_all(b"GET /fast HTTP/1.1\r\n")
        .await
        .expect("it reads");
    let mut unread = Vec::new();
    let closed = timeout(HANDSHAKE_TIMEOUT * 2, silent.read_to_end(&mut unread));
    let _ = hurry(HANDSHAKE_TIMEOUT / 4, closed).await.expect("in time");
    let closed = timeout(IDLE_TIMEOUT * 2, idle.read_to_end(&mut unread));
    let _ = hurry(IDLE_TIMEOUT / 4, closed).await.expect("in time");
}

#[tokio::test]
async fn a_connection_has_a_lifetime_and_no_answer_is_lost_by_it() {
    let server = run(DRAIN).await;
    let trusted = server.publish.borrow().clone().expect("published");
    let stream = connect(server.address, client(&trusted, b"http/1.1"))
        .await
        .expect("trusted");
    let (mut single, http1) = http1::handshake(TokioIo::new(stream))
        .await
        .expect("HTTP/1.1");
    let http1 = tokio::spawn(http1);
    for _ in 0..4 {
        let answer = single
            .send_request(request("/fast"))
            .await
            .expect("an answer");
        assert!(answer.headers().get("connection").is_none());
        assert_eq!(text(answer).await, b"fast");
        skip(LIFETIME / 4).await;
    }
    skip(IDLE_TIMEOUT / 5).await;
    let answer = single
        .send_request(request("/fast"))
        .await
        .expect("an answer");
    let parting = answer
        .headers()
        .get("connection")
        .is_some_and(|word| word == "close");
    assert!(parting, "it is told to connect again");
    assert_eq!(text(answer).await, b"fast");
    let ended = timeout(GRACE, http1).await;
    let _ = ended.expect("it has ended").expect("without a panic");
}
