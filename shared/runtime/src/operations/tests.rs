//! Probes and metrics beside clients that stall, in TLS, and while a check fails.

use axum::body::Body;
use futures::{FutureExt, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};

use super::*;
use crate::{
    certificates::{Bundle, Lifetimes, ServingNames},
    testing::{Server, debug_pages, hurry, tls_client, tls_connect},
};

fn plain() -> OpsArgs {
    let ops_listen = ([127, 0, 0, 1], 0).into();
    OpsArgs {
        ops_listen,
        ops_auth: OpsAuth::None,
        ops_cert_dir: None,
        debug_endpoints: false,
    }
}

fn start(args: &OpsArgs, guard: &Guard, readiness: &Readiness) -> SocketAddr {
    serve(
        args,
        guard,
        readiness.clone(),
        Metrics::default(),
        &debug_pages(),
        Router::new(),
    )
    .expect("a free port")
}

async fn get(address: SocketAddr, path: &str) -> String {
    let stream = TcpStream::connect(address).await.expect("it listens");
    ask(stream, path).await
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("it answers");
    answer
}

#[tokio::test]
async fn a_port_that_is_taken_is_named_once() {
    let readiness = Readiness::new(CancellationToken::new());
    let address = start(&plain(), &Guard::open(), &readiness);
    let args = OpsArgs {
        ops_listen: address,
        ..plain()
    };
    let error = serve(
        &args,
        &Guard::open(),
        readiness,
        Metrics::default(),
        &debug_pages(),
        Router::new(),
    )
    .expect_err("the port is taken");
    // With all of its causes, as the programs print it.
    let told = format!("{error:#}");
    assert!(
        told.starts_with(&format!("failed to listen at {address}: ")),
        "{told}"
    );
    assert_eq!(told.matches("listen").count(), 1, "{told}");
}

#[tokio::test]
async fn a_connection_that_asks_nothing_is_closed() {
    let readiness = Readiness::new(CancellationToken::new());
    let address = start(&plain(), &Guard::open(), &readiness);
    let mut silent = TcpStream::connect(address).await.expect("it listens");
    silent
        .write_all(b"GET /healthz HTTP/1.1\r\n")
        .await
        .expect("it reads");
    let mut unread = [0; 9];
    let closed = timeout(2 * PATIENCE, silent.read(&mut unread));
    let closed = hurry(PATIENCE / 4, closed).await.expect("closed");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

#[tokio::test]
async fn an_answer_by_pieces_that_nobody_takes_is_cut_off() {
    let endless = async || {
        let pieces =
            futures::stream::repeat_with(|| Ok::<_, std::convert::Infallible>("x".repeat(1 << 16)));
        Body::from_stream(pieces)
    };
    let readiness = Readiness::new(CancellationToken::new());
    let more = Router::new().route("/endless", axum::routing::get(endless));
    let served = serve(
        &plain(),
        &Guard::open(),
        readiness,
        Metrics::default(),
        &debug_pages(),
        more,
    );
    let address = served.expect("a free port");
    let mut idle = TcpStream::connect(address).await.expect("it listens");
    idle.write_all(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .expect("it reads");
    hurry(LIFETIME / 4, sleep(2 * LIFETIME)).await;
    // Data that was in flight arrives, and nothing after it.
    let _ = idle.read_to_end(&mut Vec::new()).await;
}

#[tokio::test]
async fn a_probe_beyond_the_limit_is_answered_once_silent_clients_are_closed() {
    let readiness = Readiness::new(CancellationToken::new());
    let address = start(&plain(), &Guard::open(), &readiness);
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS {
        silent.push(TcpStream::connect(address).await.expect("it listens"));
    }
    let answer = timeout(2 * PATIENCE, get(address, "/healthz"));
    let answer = hurry(PATIENCE / 4, answer).await.expect("in time");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn an_answer_by_pieces_may_pause_and_an_answer_that_never_begins_is_given_up() {
    let paused = async || {
        let pieces = futures::stream::iter(["begun", "ended"]).then(async |piece| {
            sleep(2 * PATIENCE).await;
            Ok::<_, std::convert::Infallible>(piece)
        });
        Body::from_stream(pieces)
    };
    let more = Router::new()
        .route("/paused", axum::routing::get(paused))
        .route("/never", axum::routing::get(std::future::pending::<()>));
    let address = serve(
        &plain(),
        &Guard::open(),
        Readiness::new(CancellationToken::new()),
        Metrics::default(),
        &debug_pages(),
        more,
    )
    .expect("a free port");
    let answer = hurry(PATIENCE / 4, get(address, "/paused")).await;
    assert!(
        answer.contains("begun") && answer.contains("ended"),
        "{answer}"
    );
    let answer = hurry(PATIENCE / 4, get(address, "/never")).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test]
async fn ready_while_all_checks_hold_and_no_shutdown_began() {
    let shutdown = CancellationToken::new();
    let readiness = Readiness::new(shutdown.clone());
    let (caches, certificate) = (readiness.check("caches"), readiness.check("certificate"));
    let address = start(&plain(), &Guard::open(), &readiness);

    assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(get(address, "/metrics").await.contains("openmetrics-text"));
    certificate.set(true);
    let answer = get(address, "/readyz").await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.ends_with("missing: caches\n"),
        "{answer}"
    );
    assert!(readiness.complete().now_or_never().is_none());
    caches.set(true);
    readiness.complete().await;
    assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
    shutdown.cancel();
    let answer = get(address, "/readyz").await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.ends_with("missing: not shutting down\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn behind_a_guard_probes_are_open_and_all_is_said_in_tls() {
    let bundle = Bundle::issue(
        &ServingNames::new(["localhost"]),
        &Lifetimes::default(),
        jiff::Timestamp::now(),
    );
    let bundle = bundle.expect("a bundle");
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("tls.crt"), &bundle.serving.certificate).expect("written");
    std::fs::write(folder.path().join("tls.key"), bundle.serving.key.expose()).expect("written");
    let api_server = Server::start([]).await;
    let readiness = Readiness::new(CancellationToken::new());
    let args = OpsArgs {
        ops_auth: OpsAuth::Token,
        ops_cert_dir: Some(folder.path().to_owned()),
        ..plain()
    };
    let address = start(&args, &args.guard(&api_server.client()), &readiness);

    let client = tls_client(&bundle.material().expect("its material"), b"http/1.1");
    let connect = async || loop {
        // The server reads the folder soon after its start.
        if let Ok(stream) = tls_connect(address, client.clone()).await {
            return stream;
        }
        sleep(Duration::from_millis(10)).await;
    };
    for (path, code) in [
        ("/healthz", "200"),
        ("/readyz", "200"),
        ("/metrics", "401"),
        ("/other", "404"),
    ] {
        let answer = ask(connect().await, path).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code}")),
            "{path}: {answer}"
        );
    }
    assert_eq!(api_server.requests(), [""; 0], "nobody had a token");
    let mut clear = TcpStream::connect(address).await.expect("it listens");
    clear
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .expect("it reads");
    let mut answer = Vec::new();
    // The answer is a TLS alert, unless the connection is reset.
    let _ = clear.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}
