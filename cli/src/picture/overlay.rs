//! The objects of files in place of the stored ones, as if a user had just applied the files.
//!
//! An object keeps the fields that a file does not have: its uid, its age, and the fields of other clients.
//! Nothing is sent to the API server for this.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mimeo_api::names::REPLICATION_GRANT;
use mimeo_engine::{Answer, Presence, Task};
use mimeo_model::{
    authority::only_suspends, grant::Grant, known::Decoded, outcome::Outcome,
    source::SourceSelector,
};
use mimeo_runtime::stored::explain_grant;
use serde_json::{Map, Value, json};

use super::answers::Read;
use crate::{
    files::{Files, InFile, Key},
    read::{metadata, text},
};

/// The uid of an object that is not stored yet.
const NEW: &str = "00000000-0000-4000-8000-000000000002";
/// The annotation in which kubectl keeps the former file.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Files, and how their rules and grants differ from the stored ones.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    files: Files,
    /// The rules and grants with another spec.
    changed: BTreeSet<Key>,
    /// Those of them that are not only suspended, so that their author needs permissions.
    pub(super) to_authorize: BTreeSet<Key>,
}

impl Overlay {
    pub(crate) fn new(files: Files) -> Self {
        Self {
            files,
            ..Self::default()
        }
    }

    /// Replaces the rules or grants of a list by those of the files, and adds the new ones.
    pub(super) fn put_specs(&mut self, kind: &str, found: &mut Vec<Decoded<Value>>) {
        for (key, InFile { object, .. }) in self.files.of_kind(kind) {
            let same = |stored: &Decoded<Value>| {
                let stored = stored.value();
                text(stored, "/metadata/name") == key.name
                    && text(stored, "/metadata/namespace") == key.namespace
            };
            let at = found.iter().position(same);
            let stored = at.map(|at| found.swap_remove(at));
            let stored = stored.as_ref().map(Decoded::value);
            let (object, changed) = with_spec(stored, object);
            if changed {
                self.changed.insert(key.clone());
                if !stored.is_some_and(|stored| only_suspends(stored, &object)) {
                    self.to_authorize.insert(key.clone());
                }
            }
            found.push(Decoded::Whole(object));
        }
    }

    /// Puts the labels and annotations of the files' namespaces on those of a list.
    pub(super) fn put_namespaces(&self, found: &mut Vec<ObjectMeta>) {
        for (key, InFile { object, .. }) in self.files.namespaces() {
            let at = found
                .iter()
                .position(|meta| meta.name.as_ref() == Some(&key.name));
            let stored = at.map(|at| found.swap_remove(at));
            let former = stored.as_ref().map(|meta| json!({ "metadata": meta }));
            let mut object = merged(former.as_ref(), object);
            // The API server sets this label on each namespace.
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = json!(key.name);
            let Some(meta) = metadata(&object) else {
                continue;
            };
            found.push(meta);
        }
    }

    /// Replaces facts in an answer of the API server.
    pub(super) fn put(&self, read: Read) -> Read {
        match read {
            Read::Source(source, read) => match self.files.source(&source) {
                Some(InFile { object, .. }) => {
                    let stored = read.ok().flatten();
                    let object = merged(stored.as_ref(), object);
                    Read::Source(source, Ok(Some(object)))
                }
                None => Read::Source(source, read),
            },
            Read::Selected(selector, Ok(objects)) => {
                let objects = self.select(&selector, objects);
                Read::Selected(selector, Ok(objects))
            }
            Read::Job(job, answer, note) => {
                let answer = self.answer(&job.task, answer);
                Read::Job(job, answer, note)
            }
            // An object that the files create may take the name of a copy.
            Read::Object(request, Ok(Outcome::Absent)) => {
                let gvk = &request.resource.gvk;
                let found = self.files.object(gvk, &request.namespace, &request.name);
                let meta = found.and_then(|found| metadata(&merged(None, &found.object)));
                let outcome = meta.map_or(Outcome::Absent, |meta| Outcome::Object(Box::new(meta)));
                Read::Object(request, Ok(outcome))
            }
            read => read,
        }
    }

    /// The sources that a selector finds once the files are applied.
    fn select(&self, selector: &SourceSelector, mut objects: Vec<Value>) -> Vec<Value> {
        for (InFile { object, .. }, _) in self.files.candidates(selector) {
            let name = text(object, "/metadata/name");
            let same = |other: &Value| text(other, "/metadata/name") == name;
            let at = objects.iter().position(same);
            let stored = at.map(|at| objects.swap_remove(at));
            let object = merged(stored.as_ref(), object);
            let label = |key: &str| object["metadata"]["labels"][key].as_str();
            if selector.selector.matches_by(label) {
                objects.push(object);
            }
        }
        objects
    }

    /// An answer that agrees with the files, where it is about one of their objects.
    fn answer(&self, task: &Task, answer: Answer) -> Answer {
        match (task, answer) {
            (Task::ReadSource(source), Answer::Object(stored)) => {
                let Some(InFile { object, .. }) = self.files.source(source) else {
                    return Answer::Object(stored);
                };
                let stored = stored.as_ref().map(Decoded::value);
                Answer::Object(Some(Decoded::Whole(merged(stored, object))))
            }
            (Task::ConfirmSource(source), answer) => match self.files.source(source) {
                Some(InFile { object, .. }) => {
                    let label = |key: &str| object["metadata"]["labels"][key].as_str();
                    Answer::Presence(if source.admits(label) {
                        Presence::Present
                    } else {
                        Presence::Relabelled
                    })
                }
                None => answer,
            },
            (Task::ConfirmGrants(namespace), Answer::Grants(mut read)) => {
                for (key, grant) in self.grants(namespace) {
                    let edition = match read.grants.get(&*key.name) {
                        Some(stored) if self.changed.contains(key) => {
                            let generation = stored.generation + 1;
                            mimeo_model::grant::Edition {
                                generation,
                                ..*stored
                            }
                        }
                        Some(stored) => *stored,
                        None => grant.edition,
                    };
                    read.grants.insert(key.name.as_str().into(), edition);
                }
                Answer::Grants(read)
            }
            (_, answer) => answer,
        }
    }

    /// The valid grants of the files in a namespace.
    fn grants(&self, namespace: &str) -> Vec<(&Key, Grant)> {
        let grants = self.files.of_kind(REPLICATION_GRANT);
        let here = grants.filter(|(key, _)| key.namespace == namespace);
        here.filter_map(|(key, InFile { object, .. })| {
            let (object, _) = with_spec(None, object);
            let (grant, _) = explain_grant(Decoded::Whole(object));
            Some((key, Grant::parse(&grant).ok()?))
        })
        .collect()
    }
}

/// A stored rule or grant with the spec of a file, and whether that is another spec.
fn with_spec(stored: Option<&Value>, file: &Value) -> (Value, bool) {
    let mut object = merged(stored, file);
    object["spec"] = file["spec"].clone();
    let changed = stored.is_none_or(|stored| stored["spec"] != object["spec"]);
    if changed {
        let generation = object["metadata"]["generation"].as_i64();
        object["metadata"]["generation"] = json!(generation.unwrap_or_default() + 1);
    }
    (object, changed)
}

/// A stored object after `kubectl apply` of a file.
fn merged(stored: Option<&Value>, file: &Value) -> Value {
    let mut object = match stored {
        Some(stored) => stored.clone(),
        None => {
            json!({"metadata": {"uid": NEW, "resourceVersion": "1", "creationTimestamp": jiff::Timestamp::now()}})
        }
    };
    let annotation = object["metadata"]["annotations"][LAST_APPLIED].as_str();
    let last = annotation.and_then(|last| serde_json::from_str(last).ok());
    let mut file = file.clone();
    if let Some(metadata) = file["metadata"].as_object_mut() {
        for assigned in [
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "generation",
            "managedFields",
        ] {
            metadata.remove(assigned);
        }
    }
    merge(&mut object, last.as_ref().unwrap_or(&Value::Null), &file);
    if !object["metadata"]["labels"].is_object() {
        object["metadata"]["labels"] = json!({});
    }
    // The last file may have had the data in another form (stringData).
    if ["Secret", "ConfigMap"].contains(&text(&file, "/kind"))
        && let Some(fields) = object.as_object_mut()
    {
        for field in ["data", "binaryData"] {
            match file.get(field).filter(|data| !data.is_null()) {
                Some(data) => _ = fields.insert(field.into(), data.clone()),
                None => _ = fields.remove(field),
            }
        }
    }
    object
}

/// Sets the fields of a file, and removes those that only the last file had. Lists count as a whole.
fn merge(stored: &mut Value, last: &Value, file: &Value) {
    let Value::Object(new) = file else {
        *stored = file.clone();
        return;
    };
    if !stored.is_object() {
        *stored = Value::Object(Map::new());
    }
    let Some(fields) = stored.as_object_mut() else {
        return;
    };
    let former = last.as_object().into_iter().flatten();
    for (field, _) in former.filter(|(field, _)| !new.contains_key(*field)) {
        fields.remove(field);
    }
    for (field, value) in new {
        if value.is_null() {
            fields.remove(field);
            continue;
        }
        let below = fields.entry(field).or_insert(Value::Null);
        merge(below, &last[field], value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_sets_its_fields_and_removes_those_of_the_last_file() {
        let last = json!({"metadata": {"labels": {"old": "1", "kept": "1"}}}).to_string();
        let stored = json!({
            "kind": "ConfigMap", "data": {"a": "1", "b": "2"},
            "metadata": {
                "uid": "u", "labels": {"old": "1", "kept": "1", "of-others": "1"},
                "annotations": {LAST_APPLIED: last},
            },
        });
        let file =
            json!({"kind": "ConfigMap", "data": {"b": "3"}, "metadata": {"labels": {"kept": "2"}}});
        let merged = merged(Some(&stored), &file);
        assert_eq!(merged["data"], json!({"b": "3"}));
        assert_eq!(merged["metadata"]["uid"], "u");
        assert_eq!(
            merged["metadata"]["labels"],
            json!({"kept": "2", "of-others": "1"})
        );
    }

    #[test]
    fn a_spec_of_a_file_replaces_the_stored_one() {
        let stored = json!({"metadata": {"generation": 3, "uid": "u"}, "spec": {"suspend": false}, "status": {"a": 1}});
        let file = json!({"metadata": {"name": "a"}, "spec": {"suspend": true}});
        let (object, changed) = with_spec(Some(&stored), &file);
        assert!(changed);
        assert_eq!(object["metadata"]["generation"], 4);
        assert_eq!(object["status"], json!({"a": 1}));
        let (object, changed) = with_spec(Some(&object), &file);
        assert!(!changed);
        assert_eq!(object["metadata"]["generation"], 4);
    }
}
