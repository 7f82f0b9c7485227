//! The floor: the time that the same API server takes for the same writes by a plain client, with
//! no other work around them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, stream};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::{Value, json};

/// Numbers of concurrent requests that the plain client tries. The fastest one counts.
const CONCURRENCY: [usize; 4] = [1, 8, 32, 64];

/// Times of one write to every namespace, each at the best concurrency.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floor {
    /// POST of an object that does not exist.
    pub(crate) create: Duration,
    /// PUT of an object that exists.
    pub(crate) update: Duration,
    /// Server-side apply of an object that does not exist.
    pub(crate) apply_create: Duration,
    /// Server-side apply of an object that exists.
    pub(crate) apply_update: Duration,
    /// Median of single creates, one after another.
    pub(crate) one_create: Duration,
    /// 99th percentile of these. It includes pauses of the API server itself, such as garbage
    /// collection on two cores.
    pub(crate) one_create_p99: Duration,
    /// Median of single server-side applies to an existing object.
    pub(crate) one_apply: Duration,
}

/// One kind of write to one namespace.
#[derive(Clone, Copy)]
enum Write {
    Create,
    Update,
    Apply,
}

/// Measures all times and deletes all objects that it creates.
pub(crate) async fn measure(
    client: &Client,
    namespaces: &[String],
    payload: &str,
) -> Result<Floor> {
    let mut best = [Duration::MAX; 4];
    for concurrency in CONCURRENCY {
        let created = format!("floor-create-{concurrency}");
        let applied = format!("floor-apply-{concurrency}");
        let rounds = [
            (Write::Create, &created, "1"),
            (Write::Update, &created, "2"),
            (Write::Apply, &applied, "1"),
            (Write::Apply, &applied, "2"),
        ];
        for (index, (write, name, version)) in rounds.into_iter().enumerate() {
            let body = secret(name, payload, version);
            let took = all(client, namespaces, write, name, &body, concurrency).await?;
            best[index] = best[index].min(took);
        }
        for name in [created, applied] {
            remove(client, namespaces, &name).await?;
        }
    }
    let few = &namespaces[..namespaces.len().min(200)];
    let [one_create, one_create_p99] = single(client, few, Write::Create, payload, "1").await?;
    let [one_apply, _] = single(client, few, Write::Apply, payload, "2").await?;
    remove(client, few, "floor-one").await?;
    let [create, update, apply_create, apply_update] = best;
    Ok(Floor {
        create,
        update,
        apply_create,
        apply_update,
        one_create,
        one_create_p99,
        one_apply,
    })
}

async fn all(
    client: &Client,
    namespaces: &[String],
    write: Write,
    name: &str,
    body: &str,
    concurrency: usize,
) -> Result<Duration> {
    let begun = Instant::now();
    let writes =
        stream::iter(namespaces).map(|namespace| send(client, write, namespace, name, body));
    let results: Vec<Result<()>> = writes.buffer_unordered(concurrency).collect().await;
    let took = begun.elapsed();
    results.into_iter().collect::<Result<()>>()?;
    Ok(took)
}

/// Writes one after another. Returns the median and the 99th percentile.
async fn single(
    client: &Client,
    namespaces: &[String],
    write: Write,
    payload: &str,
    version: &str,
) -> Result<[Duration; 2]> {
    let body = secret("floor-one", payload, version);
    let mut took = Vec::with_capacity(namespaces.len());
    for namespace in namespaces {
        let begun = Instant::now();
        send(client, write, namespace, "floor-one", &body).await?;
        took.push(begun.elapsed());
    }
    took.sort();
    Ok([took[took.len() / 2], took[took.len() * 99 / 100]])
}

/// Creates namespaces with one Secret each. Returns the time at the best concurrency.
pub(crate) async fn namespaces_with_secrets(
    client: &Client,
    prefix: &str,
    count: usize,
    payload: &str,
) -> Result<Duration> {
    let mut best = Duration::MAX;
    for concurrency in CONCURRENCY {
        let names: Vec<String> = (0..count)
            .map(|n| format!("{prefix}-{concurrency}-{n}"))
            .collect();
        let body = secret("floor", payload, "1");
        let begun = Instant::now();
        let writes = stream::iter(&names).map(|name| async {
            call(
                client,
                Method::POST,
                "/api/v1/namespaces",
                "application/json",
                namespace(name, &[]).to_string(),
            )
            .await?;
            send(client, Write::Create, name, "floor", &body).await
        });
        let results: Vec<Result<()>> = writes.buffer_unordered(concurrency).collect().await;
        best = best.min(begun.elapsed());
        results.into_iter().collect::<Result<()>>()?;
    }
    Ok(best)
}

async fn send(
    client: &Client,
    write: Write,
    namespace: &str,
    name: &str,
    body: &str,
) -> Result<()> {
    let collection = format!("/api/v1/namespaces/{namespace}/secrets");
    let (method, path, content) = match write {
        Write::Create => (
            Method::POST,
            format!("{collection}?fieldManager=floor"),
            "application/json",
        ),
        Write::Update => (
            Method::PUT,
            format!("{collection}/{name}?fieldManager=floor"),
            "application/json",
        ),
        Write::Apply => (
            Method::PATCH,
            format!("{collection}/{name}?fieldManager=floor&force=true"),
            "application/apply-patch+yaml",
        ),
    };
    call(client, method, &path, content, body.to_owned()).await
}

/// Sends one request and reads the whole answer. Asks for metadata only, as Mimeo does.
pub(crate) async fn call(
    client: &Client,
    method: Method,
    path: &str,
    content: &str,
    body: String,
) -> Result<()> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content)
        .header(
            "accept",
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
        )
        .body(Body::from(body.into_bytes()))
        .context("building a request")?;
    let answer = client.send(request).await.context("sending a request")?;
    let status = answer.status();
    let body = answer
        .into_body()
        .collect()
        .await
        .context("reading an answer")?
        .to_bytes();
    ensure!(
        status.is_success(),
        "{path}: {status}: {}",
        String::from_utf8_lossy(&body)
    );
    Ok(())
}

async fn remove(client: &Client, namespaces: &[String], name: &str) -> Result<()> {
    let calls = stream::iter(namespaces).map(|namespace| async move {
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        call(
            client,
            Method::DELETE,
            &path,
            "application/json",
            String::new(),
        )
        .await
    });
    calls
        .buffer_unordered(16)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect()
}

/// A Secret of almost the same bytes as the copy of [`source`], with label and annotation keys of
/// the floor's own. It has no namespace, because the path names it.
pub(crate) fn secret(name: &str, payload: &str, version: &str) -> String {
    let metadata = json!({
        "name": name,
        "labels": {"bench": "floor", "example.com/cluster-replication": "registry"},
        "annotations": {
            "version": version, "example.com/checksum": "0123456789abcdef0123456789abcdef",
            "example.com/cluster": "0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5",
            "example.com/rule": "ClusterReplication/registry", "example.com/source": "v1/Secret/platform/registry",
        },
    });
    with(&metadata, payload, version)
}

/// A Secret to be copied. Mimeo adds the rest of a copy's metadata.
pub(crate) fn source(name: &str, payload: &str, version: &str) -> String {
    with(
        &json!({"name": name, "annotations": {"version": version}}),
        payload,
        version,
    )
}

/// `payload` and `version` are already base64, as they are in a copy.
fn with(metadata: &Value, payload: &str, version: &str) -> String {
    let data = json!({"payload": payload, "version": format!("{version:0>4}")});
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}).to_string()
}

/// A namespace with these labels.
pub(crate) fn namespace(name: &str, labels: &[(&str, &str)]) -> Value {
    let labels: serde_json::Map<String, Value> = labels
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).into()))
        .collect();
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}
