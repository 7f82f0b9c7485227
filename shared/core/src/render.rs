//! A copy's body: rendered once per source version and target, then shared by all of the target's namespaces.

use std::sync::Arc;

use bytes::Bytes;
use mimeo_api::DriftPolicy;
use serde_json::{Map, Value, json};

use crate::{
    kind::GroupVersionKind,
    meta::{Checksum, Uid},
    names,
    rule::{Rule, RuleId, SourceRef, Target},
};

/// The bytes of one copy, whatever its namespace: that is in the URL only.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendering {
    /// Name of the copy.
    pub name: Arc<str>,
    /// Identifies the rendering; also on the copy, as the annotation [`names::CHECKSUM`].
    pub checksum: Checksum,
    /// The body behind the id, which alone differs from copy to copy.
    rest: Bytes,
    /// Where in it the metadata ends.
    content: usize,
}

/// Not derived: the bytes may be a Secret's.
impl std::fmt::Debug for Rendering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rendering({}, {}, {} bytes)", self.name, self.checksum, self.rest.len())
    }
}

/// What the written object must be for the write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing has the name. Server-side apply has no such wish of its own, but no object ever has resourceVersion "1": with
    /// it an apply creates, or answers 409 even when forced. Neither a read before nor a race between can do damage.
    Absent,
    /// It is this very object, not one that took its name since.
    Is(Uid),
    /// It is this very object as it was at this version.
    Unchanged(Uid, u64),
}

impl Rendering {
    /// The body in pieces; only the middle one is made anew.
    pub fn body(&self, precondition: Precondition) -> [Bytes; 3] {
        let id = match precondition {
            Precondition::Absent => Bytes::from_static(br#""resourceVersion":"1","#),
            Precondition::Is(uid) => Bytes::from(format!(r#""uid":"{uid}","#)),
            Precondition::Unchanged(uid, version) => {
                Bytes::from(format!(r#""uid":"{uid}","resourceVersion":"{version}","#))
            }
        };
        [Bytes::from_static(br#"{"metadata":{"#), id, self.rest.clone()]
    }

    /// The body without labels, annotations and finalizers: what is the same in an object that only lacks our marks.
    pub fn content(&self, uid: Uid, version: u64) -> [Bytes; 3] {
        let name = Value::from(&*self.name);
        let id = format!(r#""uid":"{uid}","resourceVersion":"{version}","name":{name}"#);
        [Bytes::from_static(br#"{"metadata":{"#), Bytes::from(id), self.rest.slice(self.content..)]
    }
}

/// Why a source gives no copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceRefused {
    /// A token is its service account's; elsewhere it would speak for an account that lives here.
    #[error("a service account token is never copied; set transform.type to copy its data as another type")]
    ServiceAccountToken,
    /// Helm would take a copied release for one of its own.
    #[error("a Helm release is never copied; set transform.type to copy its data as another type")]
    HelmRelease,
    /// Both can't have it, and which one is left out isn't for us to say.
    #[error("transform.data.rename brings two keys to the name {0:?}")]
    SameKey(String),
    /// Not an object at all.
    #[error("the source is not a JSON object")]
    NotAnObject,
}

/// Renders the copy of `object` for one target.
pub fn render(
    rule: &Rule,
    source: &SourceRef,
    target: &Target,
    object: &Value,
    cluster: &str,
) -> Result<Rendering, SourceRefused> {
    let object = object.as_object().ok_or(SourceRefused::NotAnObject)?;
    let mut body = content(&source.gvk, object);
    if source.gvk.is_secret() {
        secret_type(rule, &mut body)?;
    }
    rule.transform.copy_data(&mut body).map_err(SourceRefused::SameKey)?;
    body.insert("apiVersion".into(), source.gvk.api_version().into());
    body.insert("kind".into(), (*source.gvk.kind).into());
    let name = target.copy_name(source);
    let mut metadata = metadata(rule, source, object, &name, cluster);
    let checksum = Checksum::of(json!([&metadata, &body]).to_string().as_bytes());
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.insert(names::CHECKSUM.into(), checksum.to_string().into());
    }
    let (rest, content) = join(metadata, body);
    Ok(Rendering { name: name.into(), checksum, rest, content })
}

/// `…metadata's members},…the other members}`: what follows the id in the body, and where the metadata's members end.
fn join(metadata: Map<String, Value>, body: Map<String, Value>) -> (Bytes, usize) {
    let metadata = Value::Object(metadata).to_string();
    let body = Value::Object(body).to_string();
    // Both have members (a name, a kind), so the seams are a comma each.
    (Bytes::from([&metadata[1..], ",", &body[1..]].concat()), metadata.len() - 2)
}

/// Everything but identity, metadata, status, and what the cluster assigned to the source alone.
fn content(gvk: &GroupVersionKind, object: &Map<String, Value>) -> Map<String, Value> {
    let mut content: Map<String, Value> = object
        .iter()
        .filter(|(key, _)| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    for path in assigned(gvk) {
        remove(&mut content, path);
    }
    content
}

/// Fields that the cluster fills in for one object and no other can have, or that name objects of its namespace.
fn assigned(gvk: &GroupVersionKind) -> &'static [&'static [&'static str]] {
    match (&*gvk.group, &*gvk.kind) {
        ("", "Service") => &[&["spec", "clusterIP"], &["spec", "clusterIPs"], &["spec", "healthCheckNodePort"]],
        ("", "ServiceAccount") => &[&["secrets"]],
        ("", "PersistentVolumeClaim") => &[&["spec", "volumeName"]],
        _ => &[],
    }
}

fn remove(content: &mut Map<String, Value>, path: &[&str]) {
    match path {
        [] => {}
        [last] => {
            content.remove(*last);
        }
        [first, rest @ ..] => {
            if let Some(inner) = content.get_mut(*first).and_then(Value::as_object_mut) {
                remove(inner, rest);
            }
        }
    }
}

fn secret_type(rule: &Rule, body: &mut Map<String, Value>) -> Result<(), SourceRefused> {
    if let Some(wanted) = rule.transform.secret_type() {
        body.insert("type".into(), wanted.into());
        return Ok(());
    }
    match body.get("type").and_then(Value::as_str) {
        Some("kubernetes.io/service-account-token") => Err(SourceRefused::ServiceAccountToken),
        Some("helm.sh/release.v1") => Err(SourceRefused::HelmRelease),
        _ => Ok(()),
    }
}

fn metadata(
    rule: &Rule,
    source: &SourceRef,
    object: &Map<String, Value>,
    name: &str,
    cluster: &str,
) -> Map<String, Value> {
    let from = |field: &str| object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_object);
    let mut labels = rule.transform.copy_labels(from("labels"), source);
    labels.insert(names::MANAGED_BY.into(), names::MANAGED_BY_VALUE.into());
    labels.insert(names::CLUSTER_REPLICATION.into(), label_value(&rule.id).into());
    if rule.drift == DriftPolicy::Deny {
        labels.insert(names::DRIFT.into(), names::DRIFT_DENY.into());
    }
    let mut annotations = rule.transform.copy_annotations(from("annotations"), source);
    annotations.insert(names::RULE.into(), rule.id.to_string().into());
    annotations.insert(names::SOURCE.into(), source.to_string().into());
    annotations.insert(names::CLUSTER.into(), cluster.into());
    if let Some(retention) = rule.retention.annotation() {
        annotations.insert(names::RETENTION.into(), retention.into());
    }
    let mut metadata = Map::new();
    metadata.insert("name".into(), name.into());
    metadata.insert("labels".into(), labels.into());
    metadata.insert("annotations".into(), annotations.into());
    let finalizers = rule.transform.finalizers();
    if !finalizers.is_empty() {
        metadata.insert("finalizers".into(), finalizers.into());
    }
    metadata
}

/// A label value has at most 63 characters, a rule's name 253: longer ones keep their beginning and end in a hash.
fn label_value(id: &RuleId) -> String {
    let name = &*id.name;
    if name.len() <= 63 {
        return name.into();
    }
    let beginning: String = name.chars().take(54).collect();
    format!("{beginning}-{:08x}", Checksum::of(name.as_bytes()).short() >> 32)
}
