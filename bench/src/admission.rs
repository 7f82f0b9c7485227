//! Admission latency: sends one review after another to the webhook, and compares it with a TLS
//! server that does nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::{Router, body::Bytes, routing::post};
use http::Request;
use http_body_util::BodyExt;
use kube::{Client, Config, client::Body};
use mimeo_runtime::{
    certificates::{Bundle, Lifetimes, ServingNames},
    https::{self, DrainArgs},
    shutdown::CancellationToken,
    tls::Tls,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::table::Results;

const ROUNDS: usize = 2000;
/// The first reviews open the connections and do not count.
const UNCOUNTED: usize = 100;

/// Adds the figures. After each review to the webhook follows one to the server that does nothing.
/// So other load on the machine affects both alike.
pub(crate) async fn measure(results: &mut Results, webhook: &str) -> Result<()> {
    let [noop, webhook] = [client(&noop().await?)?, client(webhook)?];
    for (what, path, review, reads) in [
        (
            "namespace that matches",
            "/mutate/namespaces",
            namespace_review(),
            false,
        ),
        (
            "pod, with the read of its namespace",
            "/mutate/pods",
            pod_review(),
            true,
        ),
    ] {
        let (mut own, mut floor) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
        for round in 0..UNCOUNTED + ROUNDS {
            let took = [
                once(&webhook, path, &review, round).await?,
                once(&noop, "/", &review, round).await?,
            ];
            if round >= UNCOUNTED {
                own.push(took[0]);
                floor.push(took[1]);
            }
        }
        own.sort();
        floor.sort();
        for share in [50, 99] {
            let [own, floor] = [&own, &floor].map(|all| micros(all[all.len() * share / 100]));
            let figure = format!("admission, {what}, p{share}");
            // The server that does nothing reads no namespace, so these two times have no bound.
            let bound = if share == 99 && !reads {
                1.2
            } else {
                f64::INFINITY
            };
            results.add(
                &figure,
                format!("{own:.0} µs"),
                format!("{floor:.0} µs"),
                own / floor,
                bound,
            );
        }
    }
    Ok(())
}

async fn noop() -> Result<String> {
    let names = ServingNames::new(["127.0.0.1"]);
    let bundle = Bundle::issue(&names, &Lifetimes::default(), jiff::Timestamp::now())?;
    let (_, material) = tokio::sync::watch::channel(Some(std::sync::Arc::new(bundle.material()?)));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("https://127.0.0.1:{}", listener.local_addr()?.port());
    let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": "u", "allowed": true}});
    let answer = Bytes::from(answer.to_string());
    let router = Router::new().fallback(post(move |_: Bytes| async move { answer }));
    let tls = Tls {
        material,
        callers: None,
    };
    let drain = DrainArgs {
        shutdown_delay: Duration::ZERO,
        drain_timeout: Duration::ZERO,
    };
    tokio::spawn(https::serve(
        listener,
        router,
        tls,
        drain,
        CancellationToken::new(),
    ));
    Ok(url)
}

fn client(url: &str) -> Result<Client> {
    let mut config = Config::new(url.parse().context("a URL")?);
    // The webhook uses a certificate of its own. Verifying it is not part of the measurement.
    config.accept_invalid_certs = true;
    Ok(Client::try_from(config)?)
}

/// Sends one review. Returns the time from its first byte to the last byte of the answer.
async fn once(client: &Client, path: &str, review: &Value, round: usize) -> Result<Duration> {
    let mut review = review.clone();
    review["request"]["uid"] = format!("0f3e4d5c-1a2b-3c4d-5e6f-{round:012x}").into();
    let request = Request::post(format!("{path}?timeout=5s"))
        .header("content-type", "application/json")
        .body(Body::from(review.to_string().into_bytes()))?;
    let begun = Instant::now();
    let answer = client.send(request).await?;
    ensure!(answer.status().is_success(), "{path}: {}", answer.status());
    let body = answer.into_body().collect().await?.to_bytes();
    let took = begun.elapsed();
    let answer: Value = serde_json::from_slice(&body)?;
    ensure!(answer["response"]["allowed"] == true, "{path}: {answer}");
    Ok(took)
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn namespace_review() -> Value {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-review", "labels": {"a": "b"}}});
    // A dry run: no replica must wait for a namespace with this pending label.
    review("Namespace", "namespaces", "", &object)
}

fn pod_review() -> Value {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team-00000"},
        "spec": {"containers": [{"name": "c", "image": "example.com/app:1"}]},
    });
    review("Pod", "pods", "team-00000", &object)
}

fn review(kind: &str, resource: &str, namespace: &str, object: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "", "operation": "CREATE", "dryRun": true,
            "kind": {"group": "", "version": "v1", "kind": kind},
            "resource": {"group": "", "version": "v1", "resource": resource},
            "name": object["metadata"]["name"], "namespace": namespace,
            "userInfo": {"username": "bench"}, "object": object, "oldObject": null,
        },
    })
}
