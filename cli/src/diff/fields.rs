//! The fields of a copy that a request changes: their paths and lengths, and no value.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use mimeo_engine::{Request, Verb};
use mimeo_model::names;
use mimeo_runtime::discovery::resource_path;
use serde::Serialize;
use serde_json::Value;

use crate::{
    manifest::{self, below, bytes, length, manifest},
    read::{Part, Reader},
};

/// A change of one field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FieldChange {
    path: String,
    /// The length of the value in bytes before the change. `None`: the field is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<usize>,
    /// The length of the value in bytes after the change. `None`: the field is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<usize>,
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        match (self.before, self.after) {
            (None, None) => write!(f, "~ {path}"),
            (None, Some(after)) => write!(f, "+ {path} ({})", bytes(after)),
            (Some(before), None) => write!(f, "- {path} ({})", bytes(before)),
            (Some(before), Some(after)) if before == after => {
                write!(f, "~ {path} (changed, {})", bytes(after))
            }
            (Some(before), Some(after)) => {
                write!(f, "~ {path} (changed, {before} to {})", bytes(after))
            }
        }
    }
}

/// The fields that a request changes. If the present copy can't be read, they are unknown, and a
/// sentence says so.
pub(super) async fn of(reader: &Reader, request: &Request) -> (Vec<FieldChange>, Option<String>) {
    let Some(new) = manifest(request) else {
        return (Vec::new(), None);
    };
    if request.verb == Verb::Create {
        // The marks of a new copy are always the same.
        let only_data = |field: &FieldChange| !field.path.starts_with("metadata");
        let fields = changes(&Value::Null, &new, request.exclusive);
        return (fields.into_iter().filter(only_data).collect(), None);
    }
    let path = resource_path(
        &request.resource,
        Some(&request.namespace),
        Some(&request.name),
    );
    match reader.get(&path, Part::Whole).await {
        Ok(found) => {
            let old = found.unwrap_or_default();
            (changes(&old, &new, request.exclusive), None)
        }
        Err(error) => {
            let note = format!(
                "You can't read {} {}/{}: {error}. Which of its fields change is unknown.",
                request.resource.gvk.kind, request.namespace, request.name
            );
            (Vec::new(), Some(note))
        }
    }
}

/// The changes that an apply of `new` makes. It removes the fields that only Mimeo owns; an
/// exclusive copy loses those of others, too.
fn changes(old: &Value, new: &Value, exclusive: bool) -> Vec<FieldChange> {
    let (before, after) = (leaves(old), leaves(new));
    let owned = owned(old, exclusive);
    let is_secret = new["kind"] == "Secret";
    let size = |path: &str, value: &Value| {
        let base64 = is_secret && path.starts_with("data") || path.starts_with("binaryData");
        length(value, base64)
    };
    let mut changes = Vec::new();
    for (path, value) in &after {
        let old = before.get(path);
        if old != Some(value) {
            changes.push(FieldChange {
                path: path.clone(),
                before: old.map(|old| size(path, old)),
                after: Some(size(path, value)),
            });
        }
    }
    for (path, value) in &before {
        if !after.contains_key(path) && owned.contains(path) {
            changes.push(FieldChange {
                path: path.clone(),
                before: Some(size(path, value)),
                after: None,
            });
        }
    }
    changes.sort();
    changes
}

/// The values of an object by their paths, without the fields that the API server assigns. A list is one value.
fn leaves(object: &Value) -> BTreeMap<String, &Value> {
    fn walk<'a>(value: &'a Value, path: &str, found: &mut BTreeMap<String, &'a Value>) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    walk(value, &below(path, key), found);
                }
            }
            Value::Null => {}
            value => _ = found.insert(path.to_owned(), value),
        }
    }
    let mut found = BTreeMap::new();
    walk(object, "", &mut found);
    let assigned = [
        "apiVersion",
        "kind",
        "metadata.name",
        "metadata.namespace",
        "metadata.managedFields",
    ];
    for path in assigned {
        found.remove(path);
    }
    for mark in [names::CHECKSUM, names::CLUSTER] {
        found.remove(&below("metadata.annotations", mark));
    }
    found
}

/// The paths of the fields that Mimeo's manager owns, or all managers.
fn owned(object: &Value, all: bool) -> BTreeSet<String> {
    let entries = object["metadata"]["managedFields"].as_array();
    let entries = entries.into_iter().flatten();
    let own = entries.filter(|entry| all || entry["manager"] == names::MANAGER);
    own.flat_map(|entry| manifest::owned(&entry["fieldsV1"]))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_named_by_path_and_length_without_values() {
        let old = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "uid": "u", "annotations": {"mimeo.dev/checksum": "a", "of/others": "b"},
                "managedFields": [{"manager": "mimeo", "fieldsV1": {"f:data": {"f:gone": {}, "f:same": {}, "f:tls.crt": {}}}}],
            },
            "data": {"gone": "aaaa", "same": "c2FtZQ==", "tls.crt": "b25l", "of-others": "dGhyZWU="},
        });
        let new = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "a", "annotations": {"mimeo.dev/checksum": "b"}},
            "data": {"same": "c2FtZQ==", "tls.crt": "dGhyZWU=", "new": ""},
        });
        let changes_of = |exclusive| -> Vec<String> {
            let changes = changes(&old, &new, exclusive);
            changes.iter().map(ToString::to_string).collect()
        };
        let expected = [
            "- data.gone (3 bytes)",
            "+ data.new (0 bytes)",
            "~ data[tls.crt] (changed, 3 to 5 bytes)",
        ];
        assert_eq!(changes_of(false), expected);
    }
}
