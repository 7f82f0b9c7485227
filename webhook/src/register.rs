//! Keeps the webhook configurations in the cluster as Mimeo wants them. A replica writes them once
//! it can serve, writes them again when their contents change, and restores them when another
//! client changes or deletes them.
//!
//! Every replica does this. Equal replicas write equal configurations, which the API server stores
//! as no change, so they do not disturb each other. During an update of Mimeo the replicas are
//! unequal. Each then waits longer and longer between its writes.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use http::Method;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use kube::{Client, Resource};
use mimeo_model::registration::{NAME, POLICIES_NAME};
use mimeo_runtime::{
    backoff::Backoff,
    call::{
        self, APPLY, Answer, CallError, CallResult, DEADLINE, JSON, JSON_PATCH, LARGEST_OBJECT,
        METADATA,
    },
    client::Clients,
    follow::Follower,
    named,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tracing::{info, warn};

use crate::{
    compare::{Trust, holds},
    metrics::Answers,
};

/// Field manager of the configurations and of the statuses of policies.
pub(crate) const MANAGER: &str = "mimeo-webhook";
/// The `ClusterRole` that owns the configurations. Deleting it means removing Mimeo.
const OWNER: &str = "mimeo-webhook";
/// Time without a write after which a fight with another client is over.
const FIGHT: Duration = Duration::from_mins(5);
/// From this pause on, the statuses of rules report the other client. The sixth or seventh write in
/// a row reaches it. During an update two versions of Mimeo write the same configuration, for as
/// long as the update takes.
const CONTESTED: Duration = Duration::from_secs(30);

/// A webhook configuration that a task keeps as wanted.
pub(crate) struct Kept {
    /// The contents that the configuration must have, without its owner.
    wanted: watch::Sender<Option<Arc<Value>>>,
    /// The wanted contents that the cluster was last seen to have.
    held: watch::Receiver<Option<Arc<Value>>>,
    /// A message while another client keeps changing the configuration, otherwise `None`. The
    /// message stays until five minutes after the last write.
    pub(crate) contested: watch::Receiver<Option<String>>,
}

impl Kept {
    /// Sets the contents that the configuration must have from now on. Equal contents only wake the
    /// task, which then finds nothing to write.
    pub(crate) fn want(&self, wanted: Value) {
        self.wanted.send_replace(Some(Arc::new(wanted)));
    }

    /// Returns once the cluster has the contents that were wanted last. Cancel safe.
    pub(crate) async fn holds(&self) {
        let mut held = self.held.clone();
        let current = |held: &Option<Arc<Value>>| held.is_some() && *held == *self.wanted.borrow();
        if held.wait_for(current).await.is_err() {
            // The task ends only with the runtime.
            std::future::pending::<()>().await;
        }
    }
}

/// The task that keeps one webhook configuration, of kind `K`.
pub(crate) struct Keeper<K> {
    client: Client,
    follower: Follower<K>,
    /// The path of the configuration.
    path: String,
    name: &'static str,
    metrics: Answers,
    held: watch::Sender<Option<Arc<Value>>>,
    contested: watch::Sender<Option<String>>,
    /// True once the configuration was seen with an owner.
    owned: bool,
    /// The contents of the last write, if it succeeded. A write that the API server keeps refusing
    /// is not a fight.
    wrote: Option<Arc<Value>>,
    repairs: Repairs,
}

impl<K> Keeper<K>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    /// Starts to keep the configuration with this name. The task writes nothing before the first
    /// call of [`Kept::want`].
    pub(crate) fn start(clients: &Clients, metrics: &Answers, name: &'static str) -> Kept {
        let (publish, held) = watch::channel(None);
        let (tell, contested) = watch::channel(None);
        let wanted = watch::Sender::new(None);
        let path = K::url_path(&(), None);
        let (watcher, what) = (
            clients.watcher.clone(),
            format!("{}/{name}", K::plural(&())),
        );
        let keeper = Self {
            client: clients.requests.clone(),
            follower: Follower::new(watcher, &path, name, what),
            path: format!("{path}/{name}"),
            name,
            metrics: metrics.clone(),
            held: publish,
            contested: tell,
            owned: false,
            wrote: None,
            repairs: Repairs::default(),
        };
        tokio::spawn(keeper.run(wanted.subscribe()));
        Kept {
            wanted,
            held,
            contested,
        }
    }

    async fn run(mut self, mut wanted: watch::Receiver<Option<Arc<Value>>>) {
        let mut live = value(self.follower.next().await);
        let mut not_before = Instant::now();
        loop {
            let want = wanted.borrow_and_update().clone();
            let due = self.look(&live, want.as_ref());
            let waits = due.is_some();
            if let Some(want) = due.filter(|_| Instant::now() >= not_before) {
                let news = self
                    .held
                    .borrow()
                    .as_ref()
                    .is_some_and(|held| *held != want);
                let now = Instant::now();
                let pause = self.repairs.next(news, now);
                not_before = now + pause;
                if let Some(written) = self.restore(want, pause).await {
                    live = written;
                }
                continue;
            }
            let fight_ends = self.repairs.fight_ends();
            tokio::select! {
                seen = self.follower.next() => live = value(seen),
                changed = wanted.changed() => if changed.is_err() { return },
                () = sleep_until(not_before), if waits => {}
                () = sleep_until(fight_ends.unwrap_or(not_before)), if fight_ends.is_some() => {}
            }
        }
    }

    /// Compares the configuration with the wanted contents, and tells the result. Returns the
    /// contents if they must be written.
    fn look(&mut self, live: &Value, want: Option<&Arc<Value>>) -> Option<Arc<Value>> {
        let owners = live["metadata"]["ownerReferences"].as_array();
        self.owned |= owners.is_some_and(|owners| !owners.is_empty());
        // Other replicas may trust certificates that this one does not want: they may know the next
        // certificates already, or not yet. Such certificates stay. They are removed once, when the
        // contents that this replica wants change.
        let trust = if self.held.borrow().as_ref() == want {
            Trust::AtLeast
        } else {
            Trust::Exactly
        };
        let due = want.filter(|want| !holds(live, want, trust)).cloned();
        if want.is_some() {
            let kind = K::kind(&());
            self.metrics.registered(&kind, self.name, due.is_none());
        }
        let fight_ends = self.repairs.fight_ends();
        if fight_ends.is_some_and(|end| Instant::now() >= end) {
            self.repairs = Repairs::default();
            self.contested
                .send_if_modified(|told| told.take().is_some());
        }
        if due.is_none() {
            self.held.send_replace(want.cloned());
        }
        due
    }

    /// Writes the contents once. Returns the configuration that the API server has stored.
    async fn restore(&mut self, want: Arc<Value>, pause: Duration) -> Option<Value> {
        let fights = self.wrote.take().as_ref() == Some(&want);
        if fights && pause >= CONTESTED {
            self.tell(pause);
        }
        let written = self.write(&want).await.unwrap_or_else(|error| {
            let error = format!("{error:#}");
            warn!(
                name = self.name,
                error, "failed to write a webhook configuration"
            );
            None
        })?;
        self.wrote = Some(want);
        Some(written)
    }

    /// Logs and reports that another client keeps changing the configuration after Mimeo has
    /// written it.
    fn tell(&self, pause: Duration) {
        let kind = K::kind(&());
        let message = "another client, or another version of mimeo-webhook, keeps changing this \
            webhook configuration";
        warn!(name = self.name, %kind, pause = ?pause, message);
        let sentence = contested(&kind, self.name);
        self.contested
            .send_if_modified(|told| told.replace(sentence).is_none());
    }

    /// Writes the contents. Returns `None` if the owner is gone, because Mimeo is then being
    /// removed.
    async fn write(&self, want: &Value) -> anyhow::Result<Option<Value>> {
        let mut body = want.clone();
        if !self.add_owner(&mut body).await? {
            info!(
                name = self.name,
                "webhook configuration not written: the ClusterRole that owns it is gone"
            );
            return Ok(None);
        }
        let mut written = self.patch(APPLY, "force=true&", &body).await?;
        if !holds(&written, want, Trust::Exactly) {
            written = self.replace(&written, &body).await?;
        }
        info!(name = self.name, kind = %K::kind(&()), "webhook configuration written");
        Ok(Some(written))
    }

    /// Replaces all entries. A server-side apply leaves the entries and match conditions that other
    /// clients added.
    async fn replace(&self, live: &Value, body: &Value) -> anyhow::Result<Value> {
        let operations = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/webhooks", "value": body["webhooks"]},
        ]);
        self.patch(JSON_PATCH, "", &operations).await
    }

    /// Sends a patch of this type, with these options. Returns the configuration that the API
    /// server has stored.
    async fn patch(
        &self,
        content_type: &str,
        options: &str,
        patch: &Value,
    ) -> anyhow::Result<Value> {
        let uri = format!("{}?{options}fieldManager={MANAGER}", self.path);
        let request = call::write(Method::PATCH, &uri, JSON, content_type, patch.to_string());
        let answer = call::call(&self.client, request, DEADLINE, LARGEST_OBJECT).await?;
        ensure!(
            answer.code.is_success(),
            "the API server answered {}: {}",
            answer.code,
            answer.message()
        );
        let stored: K = answer.parse().ok_or(CallError::Undecodable)?;
        Ok(value(stored))
    }

    /// Names the `ClusterRole` as the owner of the configuration. Returns false if the configuration
    /// had an owner and the `ClusterRole` is gone.
    async fn add_owner(&self, body: &mut Value) -> anyhow::Result<bool> {
        let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
        let role = match named::read_metadata(&self.client, roles, OWNER).await {
            // This program may not read it.
            Err(CallError::Denied { code: 403 }) => return Ok(true),
            role => role.context("failed to read the owner")?,
        };
        let Some(uid) = role.and_then(|role| role.uid) else {
            // Outside a cluster it has never existed.
            return Ok(!self.owned);
        };
        body["metadata"]["ownerReferences"] = json!([
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": OWNER, "uid": uid},
        ]);
        Ok(true)
    }
}

/// The writes of one fight with another client, and the pause between them.
#[derive(Default)]
struct Repairs {
    /// Time of the last write.
    last: Option<Instant>,
    backoff: Backoff,
}

impl Repairs {
    /// Records a write at `now` and returns the pause before the next one. With `news` Mimeo itself
    /// wants new contents; otherwise another client has changed the configuration.
    fn next(&mut self, news: bool, now: Instant) -> Duration {
        if news {
            self.backoff.reset();
        }
        self.last = Some(now);
        self.backoff.pause()
    }

    /// Time at which a fight is over if there are no more writes.
    fn fight_ends(&self) -> Option<Instant> {
        self.last.map(|last| last + FIGHT)
    }
}

/// The message about a configuration that another client keeps changing or deleting.
fn contested(kind: &str, name: &str) -> String {
    format!(
        "{kind} {name} is changed or deleted again and again by another client, or by another \
         version of mimeo-webhook. Mimeo restores it each time, after a longer pause; until then \
         pods may not wait for their copies. Have no other client write it: kubectl get {kind} \
         {name} -o yaml --show-managed-fields shows the clients"
    )
}

/// Tries a configuration of policies in a dry run.
///
/// # Errors
/// The inner error is the API server's refusal. The outer error means that the API server gave no
/// answer.
pub(crate) async fn try_out(client: &Client, wanted: &Value) -> CallResult<Result<(), Answer>> {
    let path = MutatingWebhookConfiguration::url_path(&(), None);
    let uri = format!("{path}/{POLICIES_NAME}?dryRun=All&force=true&fieldManager={MANAGER}");
    let request = call::write(Method::PATCH, &uri, METADATA, APPLY, wanted.to_string());
    let answer = call::call(client, request, DEADLINE, LARGEST_OBJECT).await?;
    if matches!(answer.code.as_u16(), 400 | 403 | 413 | 422) {
        return Ok(Err(answer));
    }
    answer.accept().map(|_| Ok(()))
}

/// The object as JSON, or null if there is none.
fn value(object: impl Serialize) -> Value {
    // Serialization cannot fail: a typed object has no maps with keys other than strings.
    serde_json::to_value(object).unwrap_or_default()
}

/// The CA certificates of the hooks as registered now, in PEM. Waits until they can be read. Other
/// replicas may serve certificates that only these can verify and that this replica does not know.
/// Such a certificate comes from a former CA, from a Secret with the name that was configured
/// before, or from the time before a certificate folder was configured.
pub(crate) async fn trusted_before(clients: &Clients) -> String {
    let path = MutatingWebhookConfiguration::url_path(&(), None);
    let mut backoff = Backoff::default();
    let found: Option<MutatingWebhookConfiguration> = loop {
        match named::read(&clients.requests, &path, NAME).await {
            Ok(found) => break found,
            Err(error) => warn!(%error, "failed to read which certificates are trusted"),
        }
        sleep(backoff.pause()).await;
    };
    let hooks = found.and_then(|found| found.webhooks).unwrap_or_default();
    let bundle = |hook: MutatingWebhook| String::from_utf8(hook.client_config.ca_bundle?.0).ok();
    hooks.into_iter().filter_map(bundle).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::{
        Json, Router,
        http::{StatusCode, Uri},
        response::IntoResponse,
    };
    use kube::Config;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_trusted_cas_are_read_until_that_succeeds() {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let router = Router::new().fallback(async move |uri: Uri| {
            assert_eq!(uri.path().rsplit('/').next(), Some(NAME));
            if counted.fetch_add(1, Ordering::Relaxed) == 0 {
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            }
            let hook = json!({
                "name": "pods.mimeo.dev", "clientConfig": {"caBundle": "Q0E="},
                "sideEffects": "None", "admissionReviewVersions": ["v1"],
            });
            Json(json!({"metadata": {"name": NAME}, "webhooks": [hook]})).into_response()
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async { axum::serve(listener, router).await });
        let server = format!("http://{address}").parse().expect("an address");
        let clients = Clients::new(&Config::new(server)).expect("a client");
        assert_eq!(trusted_before(&clients).await, "CA");
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    }

    /// Seven writes, each within five minutes of the one before, are a fight.
    #[test]
    fn who_changes_it_again_and_again_fights() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut repairs = Repairs::default();
        assert_eq!(repairs.fight_ends(), None);
        for seconds in [0, 299, 598, 897, 1196] {
            assert!(repairs.next(false, at(seconds)) < CONTESTED);
        }
        for seconds in [1495, 1794] {
            repairs.next(false, at(seconds));
        }
        assert!(repairs.next(false, at(2093)) >= CONTESTED);
        assert_eq!(repairs.fight_ends(), Some(at(2093 + 300)));
        assert!(
            repairs.next(true, at(2094)) <= Duration::from_secs(1),
            "Mimeo wants something else"
        );
        for seconds in 2095..2102 {
            repairs.next(false, at(seconds));
        }
        assert!(repairs.next(false, at(2102)) >= CONTESTED);
    }
}
