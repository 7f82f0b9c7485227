//! Control planes that a test has left, emptied for the next one.
//!
//! An API server takes seconds of processor time to start, and most tests with their own control
//! plane disturb none of its servers. Emptying goes through etcd: keys that a test added are
//! deleted, and keys that it changed get their first value. API servers and controllers see this as
//! deletions and updates by another API server.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use http::Request;
use k8s_openapi::ByteString;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::control_plane::{Builder, Plane};

/// Most control planes that are kept. Each one takes memory and some processor time.
const KEPT: usize = 3;
/// Most operations in one transaction of etcd (`--max-txn-ops`).
const AT_ONCE: usize = 128;
/// For this long, nothing may change in a new or emptied control plane. Requests of killed clients
/// may still be running, and controllers follow the deletions.
const QUIET: Duration = Duration::from_millis(300);
/// Number of attempts to read or empty a control plane.
const ATTEMPTS: u32 = 20;

static KEPT_FOR_LATER: Mutex<Vec<Plane>> = Mutex::new(Vec::new());

/// Keeps the servers for a later control plane with the same options.
pub(crate) fn keep(servers: Plane) {
    let mut kept = KEPT_FOR_LATER
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    kept.push(servers);
    let excess = kept.len().saturating_sub(KEPT);
    let ended: Vec<Plane> = kept.drain(..excess).collect();
    drop(kept);
    drop(ended);
}

/// Returns kept servers with these options. They are not empty yet.
pub(crate) fn take(builder: &Builder) -> Option<Plane> {
    let mut kept = KEPT_FOR_LATER
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let at = kept
        .iter()
        .position(|servers| servers.builder == *builder)?;
    Some(kept.remove(at))
}

/// The keys of etcd when the control plane was new.
#[derive(Default)]
pub(crate) struct Baseline(BTreeMap<ByteString, Stored>);

/// A value in etcd.
struct Stored {
    value: ByteString,
    /// The revision of etcd at which the value was last written.
    revision: String,
}

#[derive(Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct KeyValue {
    key: ByteString,
    #[serde(default)]
    value: ByteString,
    mod_revision: String,
}

impl Baseline {
    /// Reads all keys of a new control plane, once its controllers have written theirs.
    ///
    /// # Errors
    /// etcd does not answer, or something keeps writing.
    pub(crate) async fn read(etcd: &Client) -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let kvs = range(etcd, false).await?.into_iter();
            let stored = |kv: KeyValue| {
                let stored = Stored {
                    value: kv.value,
                    revision: kv.mod_revision,
                };
                (kv.key, stored)
            };
            let baseline = Self(kvs.map(stored).collect());
            tokio::time::sleep(QUIET).await;
            if baseline.operations(range(etcd, true).await?).is_empty() {
                return Ok(baseline);
            }
        }
        bail!("a new control plane was still changing after {ATTEMPTS} attempts to read it")
    }

    /// Deletes the keys that were added, and gives the keys that were changed their first value.
    ///
    /// # Errors
    /// etcd does not answer, or something keeps writing.
    pub(crate) async fn restore(&mut self, etcd: &Client) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let operations = self.operations(range(etcd, true).await?);
            if operations.is_empty() {
                return Ok(());
            }
            for some in operations.chunks(AT_ONCE) {
                let body = json!({"success": some});
                let answer: Value = ask(etcd, "/v3/kv/txn", &body).await?;
                ensure!(answer["succeeded"] == true, "etcd refused: {answer}");
            }
            // The values are the first ones again, at other revisions.
            for kv in range(etcd, true).await? {
                if let Some(stored) = self.0.get_mut(&kv.key) {
                    stored.revision = kv.mod_revision;
                }
            }
            tokio::time::sleep(QUIET).await;
        }
        bail!("a control plane was still changing after {ATTEMPTS} attempts to empty it")
    }

    /// Returns the operations that lead from the present keys to the first ones. CRDs come last,
    /// after their objects.
    fn operations(&self, present: Vec<KeyValue>) -> Vec<Value> {
        let mut unseen: BTreeMap<_, _> = self.0.iter().collect();
        let mut deleted = Vec::new();
        let mut written = Vec::new();
        for kv in present {
            match unseen.remove(&kv.key) {
                Some(first) if first.revision != kv.mod_revision && !is_lease(&kv.key) => {
                    written.push(put(&kv.key, &first.value));
                }
                Some(_) => {}
                None => deleted.push(kv.key),
            }
        }
        written.extend(
            unseen
                .into_iter()
                .map(|(key, first)| put(key, &first.value)),
        );
        deleted.sort_by_key(is_definition);
        let deleted = deleted
            .into_iter()
            .map(|key| json!({"request_delete_range": {"key": key}}));
        deleted.chain(written).collect()
    }
}

fn put(key: &ByteString, value: &ByteString) -> Value {
    json!({"request_put": {"key": key, "value": value}})
}

fn contains(key: &ByteString, part: &str) -> bool {
    key.0
        .windows(part.len())
        .any(|window| window == part.as_bytes())
}

/// True if a server renews the object all the time.
fn is_lease(key: &ByteString) -> bool {
    contains(key, "/leases/") || contains(key, "/masterleases/")
}

fn is_definition(key: &ByteString) -> bool {
    contains(key, "/customresourcedefinitions/") || contains(key, "/apiservices/")
}

/// Returns all keys.
async fn range(etcd: &Client, keys_only: bool) -> Result<Vec<KeyValue>> {
    // A range from the zero byte to the zero byte has all keys.
    let zero = ByteString(vec![0]);
    let body = json!({"key": zero, "range_end": zero, "keys_only": keys_only});
    let range: Range = ask(etcd, "/v3/kv/range", &body).await?;
    Ok(range.kvs)
}

/// Sends a request to etcd's JSON gateway.
async fn ask<T: serde::de::DeserializeOwned>(etcd: &Client, path: &str, body: &Value) -> Result<T> {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(body)?)?;
    let answer = etcd.request_text(request).await?;
    serde_json::from_str(&answer).with_context(|| format!("etcd's answer to {path}"))
}
