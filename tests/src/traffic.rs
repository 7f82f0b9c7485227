//! Traffic of other users while Mimeo works: they create namespaces and pods, and retry like
//! `kubectl`. Also checks exactly whether a copy existed when a pod was created.

use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Container, Namespace, Pod, PodSpec, ServiceAccount};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::scenario::SOON;
use crate::{create_namespace, unique};

/// Servers ask for pauses in whole seconds.
const SECOND: Duration = Duration::from_secs(1);
/// Number of namespaces that are created at the same time.
const AT_ONCE: usize = 50;
/// Pause between two attempts of a client that retries after any refusal.
const STUBBORN_PAUSE: Duration = Duration::from_millis(50);

/// The timeout of Mimeo's hooks. On a busy machine, the webhook may answer later. The API server then
/// continues without the answer of a hook with `failurePolicy: Ignore`.
pub const HOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// A pod that no node runs.
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

/// Creates `count` namespaces with this label, some dozens at the same time. Returns their names.
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

/// Creates namespaces of new names until the API server has surely asked Mimeo's webhook about one.
/// After [`HOOK_TIMEOUT`] it may have stored a namespace without the webhook's answer.
pub async fn create_asked(
    client: &Client,
    prefix: &str,
    labels: &[(&str, &str)],
) -> Result<Namespace> {
    let until = Instant::now() + SOON;
    loop {
        let began = Instant::now();
        let namespace = create_namespace(client, &unique(prefix), labels).await?;
        if began.elapsed() < HOOK_TIMEOUT {
            return Ok(namespace);
        }
        ensure!(Instant::now() < until, "each took {HOOK_TIMEOUT:?}");
    }
}

/// Creates an object with [`patiently`]. Returns the number of answers with 429, too.
///
/// # Errors
///
/// Any other refusal, or the last one.
pub async fn create_patiently<K>(api: &Api<K>, object: &K) -> kube::Result<(K, u32)>
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let params = PostParams::default();
    patiently(|| api.create(&params, object)).await
}

/// Sends a request that Mimeo's webhook must refuse, and returns the refusal.
///
/// After [`HOOK_TIMEOUT`] the API server may carry the request out without the webhook's answer.
/// Mimeo then restores the object, and this function sends the request again. It also retries as
/// [`patiently`] does.
///
/// # Errors
///
/// The request was carried out earlier than that, or always.
pub async fn refusal<T, F>(mut attempt: impl FnMut() -> F) -> Result<kube::Error>
where
    F: Future<Output = kube::Result<T>>,
{
    let until = Instant::now() + SOON;
    let mut unasked = false;
    loop {
        let began = Instant::now();
        match attempt().await {
            Err(error) if retry_after(&error).is_some() || webhook_timed_out(&error) => {}
            // Mimeo has not restored the deleted object yet.
            Err(kube::Error::Api(status)) if unasked && status.code == 404 => {}
            Err(error) => return Ok(error),
            Ok(_) => {
                unasked |= began.elapsed() >= HOOK_TIMEOUT;
                ensure!(unasked, "it was let through");
            }
        }
        ensure!(Instant::now() < until, "it was not refused in time");
        tokio::time::sleep(STUBBORN_PAUSE).await;
    }
}

/// Sends a request like `kubectl` and every client of client-go: after a 429 with a pause it
/// retries. These clients retry ten times. This function retries for [`SOON`], because a machine
/// may be slow. For the same reason it also retries after a webhook call that timed out. In both
/// cases the API server has stored nothing. Returns the number of answers with 429, too.
///
/// # Errors
///
/// Any other refusal, or the last one.
pub async fn patiently<T, F>(mut attempt: impl FnMut() -> F) -> kube::Result<(T, u32)>
where
    F: Future<Output = kube::Result<T>>,
{
    let until = Instant::now() + SOON;
    let mut told = 0;
    loop {
        // In a box, so that the futures of the many callers stay small.
        match Box::pin(attempt()).await {
            Ok(done) => return Ok((done, told)),
            Err(error) => match retry_after(&error) {
                Some(pause) if Instant::now() < until => {
                    told += 1;
                    tokio::time::sleep(pause).await;
                }
                None if webhook_timed_out(&error) && Instant::now() < until => {}
                _ => return Err(error),
            },
        }
    }
}

/// True if a pod was refused because its new namespace has no service account yet. Only clusters
/// with service account admission do so; a [`crate::ControlPlane`] does not.
pub fn wants_account(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    status.code == 403 && status.message.contains("error looking up service account")
}

/// Creates the service account `default` before the controller does, so that no pod has to wait for
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
        // The controller was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        outcome => outcome
            .map(drop)
            .context("failed to create a service account"),
    }
}

/// The pause that the refusal asks for. Returns `None` if clients do not retry after such a
/// refusal.
///
/// An overloaded server gives the pause in a header, which this client does not expose. The pause
/// is then one second.
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

/// True if the API server refused a request because a webhook call timed out. Mimeo answers
/// earlier, unless the machine is too busy.
pub fn webhook_timed_out(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 500 && tells_timeout(&status.message))
}

/// True if the API server's message tells of a webhook call that timed out.
pub fn tells_timeout(message: &str) -> bool {
    message.contains("failed calling webhook") && message.contains("deadline exceeded")
}

/// Retries a request after any refusal, until it succeeds. Returns the number of refusals, too.
///
/// # Errors
///
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

/// True if the present state of `first` was stored before that of `then`.
///
/// The answer is exact, even between kinds and API servers, because a resourceVersion is a revision
/// of the one etcd. Suppose that `first` was written once and `then` has not changed since its
/// creation. Then the answer says whether `first` existed when `then` was created.
pub fn precedes<A: Resource, B: Resource>(first: &A, then: &B) -> Result<bool> {
    Ok(revision(first)? < revision(then)?)
}

/// The etcd revision at which the object was stored.
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
