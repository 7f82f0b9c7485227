//! What other people do while Mimeo works: they create namespaces and pods, with `kubectl`'s
//! patience. And the exact answer to whether a pod was let in before a copy was there.

use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ServiceAccount};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::scenario::SOON;
use crate::{create_namespace, unique};

/// A whole number of seconds is what a server can ask for.
const SECOND: Duration = Duration::from_secs(1);
/// As many namespaces as are created at a time.
const AT_ONCE: usize = 50;
/// Between two attempts of a client that comes back whatever it was told.
const STUBBORN_PAUSE: Duration = Duration::from_millis(50);

/// A pod that nothing runs.
pub fn pod(name: &str) -> Pod {
    let container = Container {
        name: "main".to_owned(),
        image: Some("example.com/app:1".to_owned()),
        ..Container::default()
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container],
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

/// Creates that many namespaces with this label, some dozens at once; returns their names.
pub async fn create_namespaces(
    client: &Client,
    count: usize,
    label: (&str, &str),
) -> Result<Vec<String>> {
    let names: Vec<String> = (0..count).map(|_| unique(label.1)).collect();
    for some in names.chunks(AT_ONCE) {
        try_join_all(
            some.iter()
                .map(async |name| create_namespace(client, name, &[label]).await),
        )
        .await?;
    }
    Ok(names)
}

/// Creates an object as `kubectl` and every client of client-go does: when the server says "not
/// now" (429) and when to come back, it does so. They do ten times; here it is for [`SOON`], since
/// a machine may be slow. Says also how often it was told.
///
/// # Errors
/// The refusal, if it is another one or the last.
pub async fn create_patiently<K>(api: &Api<K>, object: &K) -> kube::Result<(K, u32)>
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let until = Instant::now() + SOON;
    let mut told = 0;
    loop {
        match api.create(&PostParams::default(), object).await {
            Ok(created) => return Ok((created, told)),
            Err(error) => match retry_after(&error) {
                Some(pause) if Instant::now() < until => {
                    told += 1;
                    tokio::time::sleep(pause).await;
                }
                _ => return Err(error),
            },
        }
    }
}

/// Whether a pod was refused because its namespace is so new that it has no service account yet.
/// (Where that is asked for: a [`crate::ControlPlane`] doesn't.)
pub fn wants_account(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    status.code == 403 && status.message.contains("error looking up service account")
}

/// Creates the service account `default` before the controller does, so that nobody has to wait for
/// it.
pub async fn create_account(client: &Client, namespace: &str) -> Result<()> {
    let account = ServiceAccount {
        metadata: ObjectMeta {
            name: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        ..ServiceAccount::default()
    };
    match Api::namespaced(client.clone(), namespace)
        .create(&PostParams::default(), &account)
        .await
    {
        // The controller was first.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        outcome => outcome
            .map(drop)
            .context("failed to create a service account"),
    }
}

/// When to come back, if the refusal is one that clients come back after.
///
/// A server that is too busy for the request says it in a header, which this client does not show:
/// a second, then.
pub fn retry_after(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else {
        return None;
    };
    let seconds = status
        .details
        .as_ref()
        .map_or(1, |details| details.retry_after_seconds);
    (status.code == 429 && seconds > 0).then(|| SECOND * seconds)
}

/// Repeats what is refused for any reason, until it is not. Says also how often it was refused.
///
/// # Errors
/// The last refusal, once [`SOON`] has passed.
pub async fn stubbornly<T, F: Future<Output = kube::Result<T>>>(
    mut attempt: impl FnMut() -> F,
) -> Result<(T, u32)> {
    let until = Instant::now() + SOON;
    let mut refused = 0;
    loop {
        match attempt().await {
            Ok(done) => return Ok((done, refused)),
            Err(error) if Instant::now() > until => {
                return Err(error).context("refused to the end");
            }
            Err(_) => {
                refused += 1;
                tokio::time::sleep(STUBBORN_PAUSE).await;
            }
        }
    }
}

/// Whether `first` was stored in its present state before `then` was.
///
/// Exact, also between kinds and API servers: a resourceVersion is the revision of the one etcd. So
/// when `then` is as it was created, and `first` has been written once, this says whether `first`
/// was there when `then` was created.
pub fn precedes<A: Resource, B: Resource>(first: &A, then: &B) -> Result<bool> {
    Ok(revision(first)? < revision(then)?)
}

/// The revision of etcd at which the object was stored.
pub fn revision<K: Resource>(object: &K) -> Result<u64> {
    let version = object
        .meta()
        .resource_version
        .as_deref()
        .context("the object has no resourceVersion")?;
    version
        .parse()
        .with_context(|| format!("the resourceVersion {version} is no number"))
}
