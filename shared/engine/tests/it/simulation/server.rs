//! An API server in memory with the properties that the engine relies on: uids, one resourceVersion
//! counter, server-side apply with `managedFields`, preconditions, and the life of namespaces.
//!
//! Other clients write through [`Server::edit`] and similar functions. Mimeo writes through
//! [`Server::apply`] and [`Server::delete`], which record each change that Mimeo made.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta, Status, Time},
    jiff::Timestamp,
};
use mimeo_api::{ClusterReplicationStatus, ReplicationGrantSpec};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    names,
};
use serde_json::{Map, Value, json};

use super::spec::RuleSpec;

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Res {
    Namespace,
    Rule,
    /// A rule that lives in a namespace.
    Replication,
    Grant,
    Secret,
    ConfigMap,
    Widget,
}

/// Kinds that are copied.
pub const COPIED: [Res; 3] = [Res::Secret, Res::ConfigMap, Res::Widget];

impl Res {
    pub fn gvk(self) -> GroupVersionKind {
        let (api, kind) = match self {
            Self::Namespace => ("v1", "Namespace"),
            Self::Rule => ("mimeo.dev/v1alpha1", "ClusterReplication"),
            Self::Replication => ("mimeo.dev/v1alpha1", "Replication"),
            Self::Grant => ("mimeo.dev/v1alpha1", "ReplicationGrant"),
            Self::Secret => ("v1", "Secret"),
            Self::ConfigMap => ("v1", "ConfigMap"),
            Self::Widget => ("example.com/v1", "Widget"),
        };
        GroupVersionKind::parse(api, kind).expect("well formed")
    }

    pub fn of(group: &str, kind: &str) -> Self {
        match (group, kind) {
            ("", "Secret") => Self::Secret,
            ("", "ConfigMap") => Self::ConfigMap,
            ("example.com", "Widget") => Self::Widget,
            _ => panic!("{kind} of {group:?} isn't copied"),
        }
    }

    pub fn resource(self) -> Resource {
        let plural = format!("{self:?}s").to_lowercase();
        Resource {
            gvk: self.gvk(),
            plural: plural.into(),
            namespaced: true,
        }
    }
}

/// The place of an object. The namespace of a Namespace and of a `ClusterReplication` is "".
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub res: Res,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(res: Res, namespace: &str, name: &str) -> Self {
        Self {
            res,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// Returns the key of a rule.
    pub fn of(id: &RuleId) -> Self {
        let res = match id.kind {
            RuleKind::ClusterReplication => Res::Rule,
            RuleKind::Replication => Res::Replication,
        };
        Self::new(res, id.namespace.as_deref().unwrap_or_default(), &id.name)
    }

    /// Returns the id of the rule with this key.
    pub fn id(&self) -> RuleId {
        let kind = if self.res == Res::Rule {
            RuleKind::ClusterReplication
        } else {
            RuleKind::Replication
        };
        let namespace = (!self.namespace.is_empty()).then(|| self.namespace.as_str().into());
        RuleId {
            kind,
            namespace,
            name: self.name.as_str().into(),
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}/{}", self.res, self.namespace, self.name)
    }
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub manager: String,
    pub apply: bool,
    pub fields: BTreeSet<String>,
    /// The clock's seconds at the last change.
    pub time: u64,
}

/// An object. Its fields are flat: `data/k`, `label/k`, `ann/k`, `fin/k`, `type`, `immutable`,
/// `spec/k`.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    pub key: Key,
    pub uid: String,
    pub version: u64,
    pub deleting: bool,
    pub fields: BTreeMap<String, String>,
    pub entries: Vec<Entry>,
    /// The spec, if the object is a rule.
    pub spec: Option<Rc<RuleSpec>>,
    pub grant: Option<Rc<ReplicationGrantSpec>>,
    pub status: Option<ClusterReplicationStatus>,
    pub generation: i64,
    /// The clock's seconds at the creation.
    pub created: u64,
}

impl Object {
    /// True if Mimeo's field manager has an apply entry.
    pub fn ours(&self) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.apply && entry.manager == names::MANAGER)
    }

    pub fn field(&self, path: &str) -> Option<&str> {
        self.fields.get(path).map(String::as_str)
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.field(&format!("ann/{key}"))
    }

    pub fn labelled(&self) -> bool {
        self.field(&format!("label/{}", names::MANAGED_BY)) == Some(names::MANAGED_BY_VALUE)
    }

    /// Returns the fields below this path, without the path.
    pub fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (String, String)> + 'a {
        self.fields.iter().filter_map(move |(path, value)| {
            Some((path.strip_prefix(prefix)?.to_owned(), value.clone()))
        })
    }

    pub fn labels(&self) -> BTreeMap<String, String> {
        self.under("label/").collect()
    }

    fn finalized(&self) -> bool {
        !self.fields.keys().any(|path| path.starts_with("fin/"))
    }

    pub fn meta(&self) -> ObjectMeta {
        let time = |seconds: u64| {
            Time(Timestamp::from_second(i64::try_from(seconds).expect("small")).expect("in range"))
        };
        let entry = |entry: &Entry| ManagedFieldsEntry {
            api_version: Some(self.key.res.gvk().api_version()),
            fields_type: Some("FieldsV1".into()),
            fields_v1: Some(FieldsV1(field_set(&entry.fields))),
            manager: Some(entry.manager.clone()),
            operation: Some(if entry.apply { "Apply" } else { "Update" }.into()),
            subresource: None,
            time: Some(time(entry.time)),
        };
        let finalizers: Vec<String> = self.under("fin/").map(|(name, _)| name).collect();
        ObjectMeta {
            name: Some(self.key.name.clone()),
            namespace: (!self.key.namespace.is_empty()).then(|| self.key.namespace.clone()),
            uid: Some(self.uid.clone()),
            resource_version: Some(self.version.to_string()),
            generation: Some(self.generation),
            creation_timestamp: Some(time(self.created)),
            deletion_timestamp: self.deleting.then(|| time(self.version)),
            labels: Some(self.labels()),
            annotations: Some(self.under("ann/").collect()),
            finalizers: Some(finalizers),
            managed_fields: Some(self.entries.iter().map(entry).collect()),
            ..ObjectMeta::default()
        }
    }

    pub fn json(&self) -> Value {
        let gvk = self.key.res.gvk();
        let mut object =
            json!({"apiVersion": gvk.api_version(), "kind": *gvk.kind, "metadata": self.meta()});
        for part in ["data", "binaryData", "spec"] {
            let fields: BTreeMap<String, String> = self.under(&format!("{part}/")).collect();
            // The server leaves out empty maps, except those of a CRD's objects.
            if !fields.is_empty() || part == "spec" && self.key.res == Res::Widget {
                object[part] = json!(fields);
            }
        }
        if let Some(kind) = self.field("type") {
            object["type"] = kind.into();
        }
        if self.is_immutable() {
            object["immutable"] = true.into();
        }
        object
    }

    /// True if no client can change the content of the object.
    pub fn is_immutable(&self) -> bool {
        self.field("immutable") == Some("true")
    }

    /// The content that cannot be changed in an immutable object.
    fn content(&self) -> impl Iterator<Item = (&String, &String)> {
        let is_content = |path: &str| {
            path == "immutable"
                || ["data/", "binaryData/"]
                    .iter()
                    .any(|part| path.starts_with(part))
        };
        self.fields.iter().filter(move |(path, _)| is_content(path))
    }
}

/// Returns a field set in the form of `managedFields`. The metadata fields that are compared stand
/// below `f:metadata`.
fn field_set(paths: &BTreeSet<String>) -> Value {
    let is_meta = |path: &&String| {
        ["label/", "ann/", "fin/"]
            .iter()
            .any(|prefix| path.starts_with(prefix))
    };
    let (meta, content): (Vec<_>, Vec<_>) = paths.iter().partition(is_meta);
    let (finalizers, meta): (Vec<_>, Vec<_>) =
        meta.into_iter().partition(|path| path.starts_with("fin/"));
    let set = |paths: Vec<&String>| {
        paths
            .iter()
            .map(|path| (format!("f:{path}"), json!({})))
            .collect::<Map<_, _>>()
    };
    let (mut all, mut meta) = (set(content), set(meta));
    if !finalizers.is_empty() {
        meta.insert("f:finalizers".into(), set(finalizers).into());
    }
    if !meta.is_empty() {
        all.insert("f:metadata".into(), meta.into());
    }
    all.into()
}

/// Returns the paths of such a field set.
fn paths(set: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (field, below) in set.as_object().into_iter().flatten() {
        match field.as_str() {
            "f:metadata" | "f:finalizers" => found.extend(paths(below)),
            field => drop(found.insert(field.trim_start_matches("f:").to_owned())),
        }
    }
    found
}

/// Returns the fields of an applied body.
pub fn flatten(body: &Value) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let mut take = |prefix: &str, part: Option<&Value>| {
        for (key, value) in part.and_then(Value::as_object).into_iter().flatten() {
            fields.insert(format!("{prefix}/{key}"), text(value));
        }
    };
    take("label", body.pointer("/metadata/labels"));
    take("ann", body.pointer("/metadata/annotations"));
    take("data", body.get("data"));
    take("binaryData", body.get("binaryData"));
    take("spec", body.get("spec"));
    for name in body
        .pointer("/metadata/finalizers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        fields.insert(format!("fin/{}", text(name)), String::new());
    }
    for field in ["type", "immutable"] {
        fields.extend(body.get(field).map(|value| (field.into(), text(value))));
    }
    fields
}

/// A change, as a watch delivers it.
#[derive(Clone, Debug)]
pub struct Event {
    pub version: u64,
    pub key: Key,
    pub old: Option<Rc<Object>>,
    pub new: Option<Rc<Object>>,
}

/// A refusal: code and `Status`.
pub type Refusal = (u16, Status);

fn refuse(code: u16, body: Value) -> Refusal {
    (code, serde_json::from_value(body).expect("a Status"))
}

/// The precondition of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pre {
    Absent,
    Is(String),
    Unchanged(String, u64),
}

/// A change that Mimeo made.
#[derive(Clone, Debug)]
pub struct Write {
    pub key: Key,
    /// create, apply, claim, delete, unmark, status.
    pub verb: &'static str,
}

/// The API server with all its objects.
#[derive(Clone, Debug, Default)]
pub struct Server {
    pub objects: BTreeMap<Key, Rc<Object>>,
    pub log: Vec<Event>,
    pub version: u64,
    uids: u64,
    /// Seconds of the clock.
    pub seconds: u64,
    /// Kinds that the server does not serve. It serves Replications and grants only if a test wants
    /// them.
    pub unserved: BTreeSet<Res>,
    /// Namespaces that were deleted, and not created again.
    pub reaped: BTreeSet<String>,
    /// Namespaces whose quota is used up.
    pub full: BTreeSet<String>,
    /// The content of the kinds `ConfigMap`, version by version.
    pub notes: Vec<Notes>,
    /// The clock's seconds at the creation of the CRD of `ClusterReplication`s, if it exists.
    pub crd: Option<u64>,
    pub writes: Vec<Write>,
    /// Uids of all objects in which Mimeo's field manager ever had an entry.
    pub ever_ours: BTreeSet<String>,
    /// Copies that another client deleted or took over, each with the uid of its namespace.
    pub meddled: BTreeSet<(String, Key)>,
    /// The forbidden changes that Mimeo made.
    pub violations: Vec<String>,
}

/// The kinds `ConfigMap`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    pub kinds: BTreeSet<GroupVersionKind>,
    pub confirmed: Vec<String>,
}

impl Server {
    pub fn new() -> Self {
        let unserved = BTreeSet::from([Res::Replication, Res::Grant]);
        Self {
            notes: vec![Notes::default()],
            unserved,
            crd: Some(0),
            ..Self::default()
        }
    }

    pub fn uid(&mut self) -> String {
        self.uids += 1;
        format!("{:08x}-0000-4000-8000-{:012x}", self.uids, self.uids * 7)
    }

    pub fn get(&self, key: &Key) -> Option<&Rc<Object>> {
        self.objects.get(key)
    }

    pub fn of(&self, res: Res) -> impl Iterator<Item = &Rc<Object>> {
        self.objects
            .values()
            .filter(move |object| object.key.res == res)
    }

    pub fn namespace(&self, name: &str) -> Option<&Rc<Object>> {
        self.get(&Key::new(Res::Namespace, "", name))
    }

    pub fn served(&self, res: Res) -> bool {
        !self.unserved.contains(&res) && (res != Res::Rule || self.crd.is_some())
    }

    /// Returns when the present CRD of a rule kind was created. The CRD of Replications never
    /// changes.
    pub fn defined(&self, kind: RuleKind) -> Option<u32> {
        let created = match kind {
            RuleKind::ClusterReplication => self.crd,
            RuleKind::Replication => self.served(Res::Replication).then_some(0),
        };
        created.map(|seconds| u32::try_from(seconds).expect("small"))
    }

    pub fn noted(&self) -> &Notes {
        self.notes.last().expect("never empty")
    }

    pub fn note(&mut self, change: impl FnOnce(&mut Notes)) {
        let mut notes = self.noted().clone();
        change(&mut notes);
        if notes != *self.noted() {
            self.notes.push(notes);
        }
    }

    fn put(&mut self, key: &Key, new: Option<Object>) -> Option<Rc<Object>> {
        self.version += 1;
        let old = self.objects.remove(key);
        let new = new.map(|object| {
            Rc::new(Object {
                version: self.version,
                ..object
            })
        });
        if let Some(new) = &new {
            self.objects.insert(key.clone(), new.clone());
            if new.ours() {
                self.ever_ours.insert(new.uid.clone());
            }
        }
        self.log.push(Event {
            version: self.version,
            key: key.clone(),
            old,
            new: new.clone(),
        });
        new
    }

    fn fresh(&mut self, key: &Key) -> Object {
        // The clock of every other API server is a second behind. Those that create rules and
        // namespaces have the right time.
        let copied = matches!(key.res, Res::Secret | Res::ConfigMap);
        let behind = if copied { self.uids % 2 } else { 0 };
        Object {
            key: key.clone(),
            uid: self.uid(),
            version: 0,
            deleting: false,
            fields: BTreeMap::new(),
            entries: Vec::new(),
            spec: None,
            grant: None,
            status: None,
            generation: 1,
            created: self.seconds.saturating_sub(behind),
        }
    }

    fn meddle(&mut self, key: &Key) {
        if let Some(namespace) = self.namespace(&key.namespace) {
            let uid = namespace.uid.clone();
            self.meddled.insert((uid, key.clone()));
        }
    }

    // ---- actions of other clients ----

    /// Creates an object for `manager`, unless an object with this key exists.
    pub fn create(&mut self, key: &Key, fields: &[(&str, &str)], manager: &str) -> bool {
        let open = key.namespace.is_empty()
            || self
                .namespace(&key.namespace)
                .is_some_and(|namespace| !namespace.deleting);
        if !open || !self.served(key.res) || self.objects.contains_key(key) {
            return false;
        }
        let mut object = self.fresh(key);
        object.fields = fields
            .iter()
            .map(|(path, value)| ((*path).to_owned(), (*value).to_owned()))
            .collect();
        if key.res == Res::Secret {
            object
                .fields
                .entry("type".into())
                .or_insert_with(|| "Opaque".into());
        }
        let fields = object.fields.keys().cloned().collect();
        object.entries.push(Entry {
            manager: manager.into(),
            apply: false,
            fields,
            time: self.seconds,
        });
        if key.res == Res::Namespace {
            object
                .fields
                .insert("label/kubernetes.io/metadata.name".into(), key.name.clone());
        }
        self.meddle(key);
        self.put(key, Some(object));
        true
    }

    /// Creates a rule or a grant. `describe` fills in its fields.
    pub fn declare(&mut self, key: &Key, describe: impl FnOnce(&mut Object)) -> bool {
        if !self.served(key.res) || self.objects.contains_key(key) {
            return false;
        }
        let mut object = self.fresh(key);
        describe(&mut object);
        self.put(key, Some(object));
        true
    }

    /// Changes an object. `manager` becomes the owner of the values that change. Returns true if
    /// any value changed.
    pub fn edit(&mut self, key: &Key, manager: &str, change: impl FnOnce(&mut Object)) -> bool {
        let Some(old) = self.objects.get(key).cloned() else {
            return false;
        };
        let mut new = (*old).clone();
        change(&mut new);
        let changed: BTreeSet<&String> = new
            .fields
            .iter()
            .filter(|(path, value)| old.fields.get(*path) != Some(value))
            .map(|(path, _)| path)
            .collect();
        for entry in &mut new.entries {
            let kept = |path: &String| {
                new.fields.contains_key(path)
                    && (entry.manager == manager || !changed.contains(path))
            };
            entry.fields = std::mem::take(&mut entry.fields)
                .into_iter()
                .filter(|path| kept(path))
                .collect();
        }
        // In an object without any owner, the server records no owner before the next apply.
        let untold = new.entries.is_empty() && COPIED.contains(&key.res);
        if !changed.is_empty() && !untold {
            let time = self.seconds;
            if let Some(entry) = new
                .entries
                .iter_mut()
                .find(|entry| !entry.apply && entry.manager == manager)
            {
                entry.fields.extend(changed.into_iter().cloned());
                entry.time = time;
            } else {
                let fields = changed.into_iter().cloned().collect();
                new.entries.push(Entry {
                    manager: manager.into(),
                    apply: false,
                    fields,
                    time,
                });
            }
        }
        new.entries.retain(|entry| !entry.fields.is_empty());
        if new == *old {
            return false;
        }
        if (&new.spec, &new.grant) != (&old.spec, &old.grant) {
            new.generation += 1;
        }
        if old.ours() && !new.ours() {
            self.meddle(key);
        }
        if new.deleting && new.finalized() && key.res != Res::Namespace {
            self.meddle(key);
            self.put(key, None);
        } else {
            self.put(key, Some(new));
        }
        true
    }

    /// Deletes an object for any client.
    pub fn remove(&mut self, key: &Key) -> bool {
        let Some(old) = self.objects.get(key).cloned() else {
            return false;
        };
        self.meddle(key);
        if old.finalized() && key.res != Res::Namespace {
            self.put(key, None);
            return true;
        }
        !old.deleting
            && self
                .put(
                    key,
                    Some(Object {
                        deleting: true,
                        ..(*old).clone()
                    }),
                )
                .is_some()
    }

    /// Finishes the deletion of a terminating namespace: first its objects, one by one, then the
    /// namespace.
    pub fn reap(&mut self, name: &str) -> bool {
        if !self
            .namespace(name)
            .is_some_and(|namespace| namespace.deleting)
        {
            return false;
        }
        let within: Vec<Key> = self
            .objects
            .keys()
            .filter(|key| key.namespace == name)
            .cloned()
            .collect();
        for key in within {
            self.put(&key, None);
        }
        self.put(&Key::new(Res::Namespace, "", name), None);
        self.reaped.insert(name.to_owned());
        true
    }

    /// Removes a CRD, and all objects of its kind.
    pub fn unserve(&mut self, res: Res) -> bool {
        if !self.served(res) {
            return false;
        }
        let all: Vec<Key> = self.of(res).map(|object| object.key.clone()).collect();
        for key in all {
            self.meddle(&key);
            self.put(&key, None);
        }
        match res {
            Res::Rule => self.crd = None,
            _ => drop(self.unserved.insert(res)),
        }
        true
    }

    /// Installs a CRD, perhaps not for the first time.
    pub fn serve(&mut self, res: Res) -> bool {
        if self.served(res) {
            return false;
        }
        if res == Res::Rule {
            self.crd = Some(self.seconds);
        }
        self.unserved.remove(&res);
        true
    }

    // ---- actions of Mimeo ----

    fn writable(&self, key: &Key) -> Result<(), Refusal> {
        if !self.served(key.res) {
            return Err(refuse(
                404,
                json!({"reason": "NotFound", "message": "the server could not find the requested \
                    resource"}),
            ));
        }
        let Some(namespace) = self.namespace(&key.namespace) else {
            let details = json!({"kind": "namespaces", "name": key.namespace});
            return Err(refuse(
                404,
                json!({"reason": "NotFound", "details": details}),
            ));
        };
        if namespace.deleting && !self.objects.contains_key(key) {
            let details = json!({"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]});
            return Err(refuse(
                403,
                json!({"reason": "Forbidden", "message": "is being terminated", "details": details}),
            ));
        }
        Ok(())
    }

    /// Forced server-side apply.
    pub fn apply(
        &mut self,
        key: &Key,
        config: &BTreeMap<String, String>,
        pre: &Pre,
        dry: bool,
    ) -> Result<Rc<Object>, Refusal> {
        self.writable(key)?;
        let conflict = || {
            refuse(
                409,
                json!({"reason": "Conflict", "details": {"name": key.name, "kind": "things"}}),
            )
        };
        let old = match (self.objects.get(key).cloned(), pre) {
            (Some(old), Pre::Is(uid)) if old.uid == *uid => Some(old),
            (Some(old), Pre::Unchanged(uid, version))
                if old.uid == *uid && old.version == *version =>
            {
                Some(old)
            }
            (None, Pre::Absent) => None,
            _ => return Err(conflict()),
        };
        if config
            .iter()
            .any(|(path, value)| path.starts_with("data/") && value.as_str() == "bad")
        {
            let details = json!({"name": key.name, "causes": [{"field": "data"}]});
            return Err(refuse(
                422,
                json!({"reason": "Invalid", "details": details}),
            ));
        }
        if let (Some(old), Some(wanted)) = (&old, config.get("type"))
            && old.field("type").is_some_and(|is| is != wanted)
        {
            let cause = json!({"field": "type", "message": "Invalid value: field is immutable"});
            return Err(refuse(
                422,
                json!({"reason": "Invalid", "details": {"name": key.name, "causes": [cause]}}),
            ));
        }
        if old.is_none() && self.full.contains(&key.namespace) {
            return Err(refuse(
                403,
                json!({"reason": "Forbidden", "message": "exceeded quota: q", "details": {"name": key.name}}),
            ));
        }
        let mut new = match &old {
            Some(old) => (**old).clone(),
            None => self.fresh(key),
        };
        merge(&mut new, config, self.seconds);
        if old
            .as_ref()
            .is_some_and(|old| old.is_immutable() && !old.content().eq(new.content()))
        {
            let cause = json!({"field": "data", "message": "Forbidden: field is immutable when \
                `immutable` is set"});
            return Err(refuse(
                422,
                json!({"reason": "Invalid", "details": {"name": key.name, "causes": [cause]}}),
            ));
        }
        if old.as_deref() == Some(&new) || dry {
            return Ok(Rc::new(new));
        }
        // A foreign object is only written in the state that Mimeo has seen. Whether Mimeo may
        // write it was judged when the request was sent.
        if !matches!(pre, Pre::Unchanged(..)) {
            self.judge(key, old.as_deref());
        }
        let verb = if old.is_some() { "apply" } else { "create" };
        self.writes.push(Write {
            key: key.clone(),
            verb,
        });
        Ok(self.put(key, Some(new)).expect("it was put there"))
    }

    /// Checks any request of Mimeo's: it never changes a foreign object, nor an object that is
    /// being deleted.
    fn judge(&mut self, key: &Key, old: Option<&Object>) {
        let Some(old) = old else { return };
        if !self.ever_ours.contains(&old.uid) {
            self.violations
                .push(format!("{key} was written though it was never ours"));
        }
    }

    /// Server-side apply without force, as a dry run. The server refuses it if the apply would
    /// change fields of another owner.
    pub fn compare(
        &mut self,
        key: &Key,
        config: &BTreeMap<String, String>,
        pre: &Pre,
    ) -> Result<Rc<Object>, Refusal> {
        if let (Some(old), Pre::Unchanged(uid, version)) = (self.objects.get(key), pre)
            && (&old.uid, old.version) == (uid, *version)
            && config
                .iter()
                .any(|(path, value)| old.fields.contains_key(path) && old.fields[path] != *value)
        {
            let details = json!({"name": key.name, "causes": [{"reason": "FieldManagerConflict", "field": "some"}]});
            return Err(refuse(
                409,
                json!({"reason": "Conflict", "details": details}),
            ));
        }
        self.apply(key, config, pre, true)
    }

    /// Applies a merge patch to `managedFields`. The patch has the uid and the resourceVersion.
    pub fn claim(
        &mut self,
        key: &Key,
        uid: &str,
        version: u64,
        managers: &str,
    ) -> Result<Rc<Object>, Refusal> {
        let old = self.look(key)?;
        if old.uid != uid || old.version != version {
            return Err(refuse(
                409,
                json!({"reason": "Conflict", "details": {"name": key.name}}),
            ));
        }
        if !old.ours() {
            self.violations
                .push(format!("{key} was claimed though it isn't ours"));
        }
        let entries: Vec<ManagedFieldsEntry> =
            serde_json::from_str(managers).expect("managedFields");
        let entry = |entry: ManagedFieldsEntry| Entry {
            manager: entry.manager.expect("a manager"),
            apply: entry.operation.as_deref() == Some("Apply"),
            fields: paths(&entry.fields_v1.expect("fields").0),
            time: entry
                .time
                .map_or(0, |time| u64::try_from(time.0.as_second()).expect("small")),
        };
        self.writes.push(Write {
            key: key.clone(),
            verb: "claim",
        });
        let new = Object {
            entries: entries.into_iter().map(entry).collect(),
            ..(*old).clone()
        };
        Ok(self.put(key, Some(new)).expect("it was put there"))
    }

    pub fn look(&self, key: &Key) -> Result<Rc<Object>, Refusal> {
        if !self.served(key.res) {
            return Err(refuse(404, json!({"reason": "NotFound"})));
        }
        let details = || json!({"kind": key.res.resource().plural, "name": key.name});
        let missing = || refuse(404, json!({"reason": "NotFound", "details": details()}));
        self.objects.get(key).cloned().ok_or_else(missing)
    }

    /// Deletes an object. Returns the object if finalizers keep it.
    pub fn delete(
        &mut self,
        key: &Key,
        uid: &str,
        version: u64,
    ) -> Result<Option<Rc<Object>>, Refusal> {
        let old = self.look(key)?;
        if old.uid != uid || old.version != version {
            return Err(refuse(
                409,
                json!({"reason": "Conflict", "details": {"name": key.name}}),
            ));
        }
        self.judge(key, Some(&old));
        if !old.finalized() && old.deleting {
            return Ok(Some(old));
        }
        self.writes.push(Write {
            key: key.clone(),
            verb: "delete",
        });
        if old.finalized() {
            self.put(key, None);
            return Ok(None);
        }
        Ok(self.put(
            key,
            Some(Object {
                deleting: true,
                ..(*old).clone()
            }),
        ))
    }

    /// Records the copies created once in a namespace, by a merge patch with the namespace's
    /// resourceVersion.
    pub fn record_created(&mut self, namespace: &str, seeds: &str, version: u64) -> bool {
        let key = Key::new(Res::Namespace, "", namespace);
        let fits = self
            .get(&key)
            .is_some_and(|object| object.version == version);
        if fits {
            self.writes.push(Write {
                key: key.clone(),
                verb: "seeds",
            });
            let path = format!("ann/{}", names::CREATED_ONCE);
            self.edit(&key, names::MANAGER, |object| {
                drop(if seeds.is_empty() {
                    object.fields.remove(&path)
                } else {
                    object.fields.insert(path, seeds.to_owned())
                });
            });
        }
        fits
    }

    /// Removes the pending label by a JSON patch that tests the nonce and the resourceVersion.
    pub fn remove_label(&mut self, namespace: &str, token: &str, version: u64) -> bool {
        let key = Key::new(Res::Namespace, "", namespace);
        let path = format!("label/{}", names::PENDING_LABEL);
        let fits = self
            .get(&key)
            .is_some_and(|object| object.version == version && object.field(&path) == Some(token));
        if fits {
            self.writes.push(Write {
                key: key.clone(),
                verb: "unmark",
            });
            self.edit(&key, names::MANAGER, |object| {
                drop(object.fields.remove(&path));
            });
        }
        fits
    }

    /// Writes the status of a rule.
    pub fn status(&mut self, key: &Key, status: ClusterReplicationStatus) -> bool {
        let Some(old) = self.get(key).cloned() else {
            return false;
        };
        self.writes.push(Write {
            key: key.clone(),
            verb: "status",
        });
        if old.status.as_ref() != Some(&status) {
            self.put(
                key,
                Some(Object {
                    status: Some(status),
                    ..(*old).clone()
                }),
            );
        }
        true
    }
}

/// Carries out a forced apply of `config` on an object.
fn merge(object: &mut Object, config: &BTreeMap<String, String>, time: u64) {
    if object.entries.is_empty() && !object.fields.is_empty() {
        // These fields have values, but another client left them without an owner.
        let fields = object.fields.keys().cloned().collect();
        object.entries.push(Entry {
            manager: "before-first-apply".into(),
            apply: false,
            fields,
            time,
        });
    }
    let ours = |entry: &Entry| entry.apply && entry.manager == names::MANAGER;
    let before: BTreeSet<String> = object
        .entries
        .iter()
        .filter(|e| ours(e))
        .flat_map(|e| e.fields.clone())
        .collect();
    for path in before.iter().filter(|path| !config.contains_key(*path)) {
        if !object
            .entries
            .iter()
            .any(|entry| !ours(entry) && entry.fields.contains(path))
        {
            object.fields.remove(path);
        }
    }
    let mut changed = false;
    for (path, value) in config {
        if object.fields.get(path) == Some(value) {
            continue;
        }
        changed = true;
        object.fields.insert(path.clone(), value.clone());
        for entry in object.entries.iter_mut().filter(|entry| !ours(entry)) {
            entry.fields.remove(path);
        }
    }
    if object.key.res == Res::Secret {
        object
            .fields
            .entry("type".into())
            .or_insert_with(|| "Opaque".into());
    }
    let fields: BTreeSet<String> = config.keys().cloned().collect();
    match object.entries.iter_mut().find(|entry| ours(entry)) {
        Some(entry) => {
            if changed || entry.fields != fields {
                entry.time = time;
            }
            entry.fields = fields;
        }
        None => object.entries.insert(
            0,
            Entry {
                manager: names::MANAGER.into(),
                apply: true,
                fields,
                time,
            },
        ),
    }
    object.entries.retain(|entry| !entry.fields.is_empty());
}
