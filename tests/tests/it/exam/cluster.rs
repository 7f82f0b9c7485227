//! Access of the exam to the cluster: requests are retried until the API server decides, and
//! existing objects are listed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::{DynamicObject, Status};
use kube::{Api, Client};
use mimeo_api::ClusterReplication;
use mimeo_tests::scenario::{SOON, any, condition, merge, of};
use mimeo_tests::{NAMESPACE, create_namespace, eventually};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::judge::{Object, Observed, Seen};
use super::model::{
    Access, Cell, Conflict, Content, Gate, KINDS, Kind, Map, Rule, RuleId, Spec, Strategy, Targets,
};

/// The pause before a retry, if the API server did not decide, for example while a webhook is being
/// killed.
const PAUSE: Duration = Duration::from_millis(20);
/// The exam never judges this namespace. Objects there show the progress of the watches.
const FENCE: &str = "fence";

/// The API server's result, or its refusal.
pub type Decision<T> = Result<T, Box<Status>>;

/// Creates an object, with any number of retries.
pub async fn create<K>(api: &Api<K>, object: &K) -> Result<Decision<K>>
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let params = PostParams::default();
    decided("create", || api.create(&params, object)).await
}

/// Patches an object as another client than Mimeo.
pub async fn patch<K>(api: &Api<K>, name: &str, patch: Patch<Value>) -> Result<Decision<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    let params = PatchParams {
        field_manager: Some("exam".to_owned()),
        ..PatchParams::default()
    };
    decided("patch", || api.patch(name, &params, &patch)).await
}

pub async fn delete<K>(api: &Api<K>, name: &str) -> Result<Decision<()>>
where
    K: Clone + Debug + DeserializeOwned,
{
    let params = DeleteParams::default();
    Ok(decided("delete", || api.delete(name, &params))
        .await?
        .map(drop))
}

/// Retries a request until the API server decides. A refusal is a decision, too.
async fn decided<T, F>(what: &str, mut attempt: impl FnMut() -> F) -> Result<Decision<T>>
where
    F: Future<Output = kube::Result<T>>,
{
    let until = Instant::now() + SOON;
    loop {
        match attempt().await {
            Ok(done) => return Ok(Ok(done)),
            Err(kube::Error::Api(status))
                if (400..500).contains(&status.code) && status.code != 429 =>
            {
                return Ok(Err(status));
            }
            Err(error) if Instant::now() > until => {
                return Err(error).context(format!("{what}: never decided"));
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Returns the API of the Secrets or ConfigMaps in a namespace, or in all.
pub fn objects(client: &Client, kind: Kind, namespace: Option<&str>) -> Result<Api<DynamicObject>> {
    any(client, "v1", kind.name(), namespace)
}

/// Returns the fields of a Secret or ConfigMap with this content.
pub fn body(kind: Kind, content: &Content) -> Value {
    let data = if kind == Kind::Secret {
        "stringData"
    } else {
        "data"
    };
    json!({data: content.data, "metadata": {"labels": content.labels, "annotations": content.annotations}})
}

pub fn read(kind: Kind, object: &DynamicObject) -> Object {
    let metadata = &object.metadata;
    let entries = metadata.managed_fields.iter().flatten();
    let ours = entries
        .into_iter()
        .any(|entry| entry.manager.as_deref() == Some("mimeo") && entry.subresource.is_none());
    let text = |value: &Value| match kind {
        Kind::ConfigMap => value.as_str().unwrap_or_default().to_owned(),
        Kind::Secret => {
            let ByteString(bytes) = serde_json::from_value(value.clone()).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        }
    };
    let data = object
        .data
        .get("data")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let content = Content {
        data: data
            .map(|(key, value)| (key.clone(), text(value)))
            .collect(),
        labels: metadata.labels.clone().unwrap_or_default(),
        annotations: metadata.annotations.clone().unwrap_or_default(),
    };
    let (uid, version) = (
        metadata.uid.clone().unwrap_or_default(),
        metadata.resource_version.clone().unwrap_or_default(),
    );
    Object {
        uid,
        version,
        ours,
        content,
    }
}

/// Returns all objects in the namespaces with this prefix.
pub async fn observe(client: &Client, tag: &str) -> Result<Observed> {
    let mut observed = Observed::default();
    for kind in KINDS {
        for object in objects(client, kind, None)?
            .list(&ListParams::default())
            .await?
        {
            let namespace = object.metadata.namespace.clone().unwrap_or_default();
            let name = object.metadata.name.clone().unwrap_or_default();
            if namespace.starts_with(tag) && object.metadata.deletion_timestamp.is_none() {
                observed.objects.insert(
                    Cell {
                        namespace,
                        kind,
                        name,
                    },
                    read(kind, &object),
                );
            }
        }
    }
    for namespace in Api::<Namespace>::all(client.clone())
        .list(&ListParams::default())
        .await?
    {
        let metadata = namespace.metadata;
        let seeded = metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get("mimeo.dev/seeded"));
        let digits = seeded.map_or(0, |text| text.bytes().filter(u8::is_ascii_hexdigit).count());
        let (uid, labels) = (
            metadata.uid.unwrap_or_default(),
            metadata.labels.unwrap_or_default(),
        );
        let seen = Seen {
            uid,
            labels,
            terminating: metadata.deletion_timestamp.is_some(),
            seeds: digits / 16,
        };
        observed
            .namespaces
            .insert(metadata.name.unwrap_or_default(), seen);
    }
    Ok(observed)
}

/// True if one of these reconcilers is leading.
pub async fn is_led(client: &Client, by: &[&str]) -> Result<bool> {
    let lease = of::<Lease>(client, NAMESPACE)
        .get_opt("mimeo-reconciler")
        .await?;
    let holder = lease.and_then(|lease| lease.spec?.holder_identity);
    Ok(holder.is_some_and(|holder| by.contains(&holder.as_str())))
}

/// Returns the `ClusterReplication`s whose pod gate is in force.
pub async fn in_force(client: &Client) -> Result<BTreeSet<RuleId>> {
    let rules = Api::<ClusterReplication>::all(client.clone())
        .list(&ListParams::default())
        .await?;
    let active = |rule: &ClusterReplication| {
        rule.status.as_ref().is_some_and(|status| {
            let current = status.observed_generation == rule.metadata.generation;
            current
                && condition(status, GATE_ACTIVE)
                    .is_some_and(|condition| condition.status == "True")
        })
    };
    let rules = rules.into_iter().filter(active);
    Ok(rules
        .map(|rule| RuleId {
            home: None,
            name: rule.metadata.name.unwrap_or_default(),
        })
        .collect())
}

// ---- The resources of the API. Other files do not spell their names. ----

const API: &str = "mimeo.dev/v1alpha1";
const GATE_ACTIVE: &str = "PodGateActive";

pub fn rules(client: &Client, id: &RuleId) -> Result<Api<DynamicObject>> {
    let kind = if id.home.is_none() {
        "ClusterReplication"
    } else {
        "Replication"
    };
    any(client, API, kind, id.home.as_deref())
}

pub fn grants(client: &Client, namespace: &str) -> Result<Api<DynamicObject>> {
    any(client, API, "ReplicationGrant", Some(namespace))
}

pub fn grant(access: Access, to: &str, kinds: &BTreeSet<Kind>) -> Value {
    let kinds: Vec<Value> = kinds
        .iter()
        .map(|kind| json!({"apiVersion": "v1", "kind": kind.name()}))
        .collect();
    let access = format!("{access:?}");
    json!({
        "apiVersion": API, "kind": "ReplicationGrant", "metadata": {"name": access.to_lowercase()},
        "spec": {"access": access, "grantees": [{"namespaces": [to]}], "objects": kinds},
    })
}

pub fn rule(id: &RuleId, Rule { spec, .. }: &Rule) -> Value {
    let kind = if id.home.is_none() {
        "ClusterReplication"
    } else {
        "Replication"
    };
    json!({"apiVersion": API, "kind": kind, "metadata": {"name": id.name}, "spec": spec_of(id, spec)})
}

pub fn spec_of(id: &RuleId, spec: &Spec) -> Value {
    let source = |cell: &Cell| json!({"apiVersion": "v1", "kind": cell.kind.name(), "namespace": cell.namespace, "name": cell.name});
    let sources: Vec<Value> = spec.sources.iter().map(source).collect();
    let name = format!(
        "{}-$(source.name)",
        if spec.shared { "shared" } else { id.word() }
    );
    let target = match &spec.targets {
        Targets::Team(team, _) => {
            json!({"namespaceSelector": {"matchLabels": {"team": team}}, "copyName": name})
        }
        Targets::Names(names) => json!({"namespaces": names, "copyName": name}),
        Targets::Own => json!({"namespaces": [id.home], "copyName": name}),
    };
    let mut all = json!({
        "sources": sources, "targets": [target], "transform": transform(spec), "strategy": format!("{:?}", spec.strategy),
        "conflictPolicy": match spec.conflict {
            Conflict::Report => "Report",
            Conflict::Adopt => "Adopt",
            Conflict::Overwrite => "Overwrite",
        },
        "driftPolicy": if spec.deny { "Deny" } else { "Repair" },
        "suspend": spec.suspend,
    });
    if spec.strategy != Strategy::CreateOnce {
        let keep = |retain| if retain { "Retain" } else { "Delete" };
        let retention = spec.retention;
        all["retentionPolicy"] = json!({
            "whenRuleDeleted": keep(retention.rule), "whenUnmatched": keep(retention.unmatched),
            "whenSourceDeleted": keep(retention.source), "sourceGracePeriodSeconds": retention.grace,
        });
    }
    if let Targets::Team(_, Some(tier)) = &spec.targets {
        all["exclude"] = json!([{"namespaceSelector": {"matchLabels": {"tier": tier}}}]);
    }
    if id.home.is_none() {
        all["podGate"] = match spec.gate {
            Gate::BestEffort => "BestEffort",
            Gate::Required => "Required",
            Gate::None => "None",
        }
        .into();
    }
    all
}

fn transform(spec: &Spec) -> Value {
    let mut all = json!({});
    if spec.transform.exclude {
        all["data"]["exclude"] = json!(["extra"]);
    }
    if spec.transform.rename {
        all["data"]["rename"] = json!({"text": "renamed"});
    }
    if spec.transform.unlabel {
        all["labels"]["exclude"] = json!(["app"]);
    }
    if let Some(number) = spec.transform.set {
        all["labels"]["set"] = json!({"exam/where": "$(namespace.name)"});
        all["annotations"]["set"] = json!({"exam/set": number.to_string()});
    }
    all
}

// ---- Events in the order of etcd's revisions ----

/// Creations and deletions of Secrets and ConfigMaps.
pub struct Chronicle {
    client: Client,
    events: Arc<Mutex<Events>>,
}

#[derive(Default)]
struct Events {
    /// Each event: the revision, the object, and true if it existed from then on.
    list: Vec<(u64, Cell, bool)>,
    /// The progress of each kind's watch.
    fences: BTreeMap<Kind, u64>,
    failed: Option<String>,
}

impl Chronicle {
    /// Begins now, before any object of the exam exists.
    pub async fn begin(client: &Client) -> Result<Self> {
        create_namespace(client, FENCE, &[]).await?;
        let events = Arc::<Mutex<Events>>::default();
        for kind in KINDS {
            let api = objects(client, kind, None)?;
            let version = api
                .list_metadata(&ListParams::default())
                .await?
                .metadata
                .resource_version
                .unwrap_or_default();
            let events = events.clone();
            tokio::spawn(async move {
                if let Err(error) = follow(&api, kind, version, &events).await {
                    lock(&events).failed = Some(format!("{error:#}"));
                }
            });
        }
        Ok(Self {
            client: client.clone(),
            events,
        })
    }

    /// Waits until the watches have shown all earlier writes.
    pub async fn catch_up(&self) -> Result<()> {
        for kind in KINDS {
            let api = objects(&self.client, kind, Some(FENCE))?;
            let object =
                json!({"apiVersion": "v1", "kind": kind.name(), "metadata": {"name": FENCE}});
            let fence = match api.get_opt(FENCE).await? {
                None => {
                    api.create(&PostParams::default(), &serde_json::from_value(object)?)
                        .await?
                }
                Some(before) => {
                    let last = before.metadata.resource_version;
                    merge(
                        &api,
                        FENCE,
                        json!({"metadata": {"annotations": {"exam/last": last}}}),
                    )
                    .await?
                }
            };
            let version: u64 = fence
                .metadata
                .resource_version
                .unwrap_or_default()
                .parse()?;
            eventually(SOON, "the watch", || async {
                let events = lock(&self.events);
                if let Some(failed) = &events.failed {
                    bail!("{failed}");
                }
                Ok(events
                    .fences
                    .get(&kind)
                    .is_some_and(|seen| *seen >= version)
                    .then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// True if the object existed at that revision.
    pub fn had(&self, cell: &Cell, revision: u64) -> bool {
        let events = lock(&self.events);
        let of = events
            .list
            .iter()
            .filter(|(at, of, _)| of == cell && *at <= revision);
        of.max_by_key(|(at, ..)| *at)
            .is_some_and(|(.., there)| *there)
    }

    /// Returns the events of an object, for the report.
    pub fn tell(&self, cell: &Cell) -> Vec<(u64, bool)> {
        let events = lock(&self.events);
        events
            .list
            .iter()
            .filter(|(_, of, _)| of == cell)
            .map(|(at, _, there)| (*at, *there))
            .collect()
    }

    /// Forgets all events except the last one of each object.
    pub fn forget(&self) {
        let mut events = lock(&self.events);
        let mut last: BTreeMap<Cell, (u64, bool)> = BTreeMap::new();
        for (at, cell, there) in events.list.drain(..) {
            last.insert(cell, (at, there));
        }
        events.list = last
            .into_iter()
            .filter(|(_, (_, there))| *there)
            .map(|(cell, (at, there))| (at, cell, there))
            .collect();
    }
}

fn lock(events: &Mutex<Events>) -> std::sync::MutexGuard<'_, Events> {
    events.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow(
    api: &Api<DynamicObject>,
    kind: Kind,
    mut version: String,
    events: &Mutex<Events>,
) -> Result<()> {
    loop {
        let mut stream = api
            .watch_metadata(&WatchParams::default(), &version)
            .await?
            .boxed();
        // The stream ends after some minutes. The next one continues after the last event.
        while let Some(event) = stream.try_next().await? {
            let (object, there) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
                WatchEvent::Deleted(object) => (object, false),
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => bail!("{status:?}"),
            };
            version = object.metadata.resource_version.unwrap_or_default();
            let revision = version.parse()?;
            let namespace = object.metadata.namespace.unwrap_or_default();
            let mut events = lock(events);
            if namespace == FENCE {
                events.fences.insert(kind, revision);
            } else {
                let name = object.metadata.name.unwrap_or_default();
                events.list.push((
                    revision,
                    Cell {
                        namespace,
                        kind,
                        name,
                    },
                    there,
                ));
            }
        }
    }
}

/// Returns a map of labels, annotations or data.
pub fn map(pairs: &[(&str, &str)]) -> Map {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}
