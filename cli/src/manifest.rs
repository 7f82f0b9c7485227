//! The copy of a request as an object, its fields, and values that are not shown.

use std::collections::BTreeSet;

use k8s_openapi::ByteString;
use mimeo_engine::Request;
use mimeo_model::{names, render::Precondition};
use serde_json::{Value, json};

/// The object that a request writes, with its namespace. The marks that depend on the cluster are
/// left out. `None`: the request writes no object.
pub(crate) fn manifest(request: &Request) -> Option<Value> {
    let body = request.rendering.as_ref()?.body(Precondition::Absent);
    let body: Vec<u8> = body.iter().flat_map(|part| part.iter().copied()).collect();
    let mut object: Value = serde_json::from_slice(&body).ok()?;
    let metadata = object["metadata"].as_object_mut()?;
    metadata.remove("resourceVersion");
    metadata.insert("namespace".into(), json!(*request.namespace));
    if let Some(annotations) = metadata.get_mut("annotations") {
        let annotations = annotations.as_object_mut()?;
        annotations.retain(|key, _| ![names::CHECKSUM, names::CLUSTER].contains(&key.as_str()));
    }
    Some(object)
}

/// Replaces the values of a Secret by their lengths.
pub(crate) fn mask(object: &mut Value) {
    if object["kind"] != "Secret" || object["apiVersion"] != "v1" {
        return;
    }
    for field in ["data", "stringData"] {
        let values = object.get_mut(field).and_then(Value::as_object_mut);
        for value in values.into_iter().flat_map(|values| values.values_mut()) {
            let masked = format!("*** ({})", bytes(length(value, field == "data")));
            *value = json!(masked);
        }
    }
}

/// The number of bytes of a value, which may be in base64.
pub(crate) fn length(value: &Value, base64: bool) -> usize {
    match serde_json::from_value::<ByteString>(value.clone()) {
        Ok(bytes) if base64 => bytes.0.len(),
        _ => match value {
            Value::String(text) => text.len(),
            other => other.to_string().len(),
        },
    }
}

/// The paths of the fields in an entry of `managedFields`. It has keys of data, and no values.
pub(crate) fn owned(fields: &Value) -> BTreeSet<String> {
    fn walk(fields: &Value, path: &str, found: &mut BTreeSet<String>) {
        let mut leaf = !path.is_empty();
        for (key, fields) in fields.as_object().into_iter().flatten() {
            if let Some(key) = key.strip_prefix("f:") {
                leaf = false;
                walk(fields, &below(path, key), found);
            }
        }
        if leaf {
            found.insert(path.to_owned());
        }
    }
    let mut found = BTreeSet::new();
    walk(fields, "", &mut found);
    found
}

/// The path of a field in the object at a path.
pub(crate) fn below(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else if key.contains(['.', '/']) {
        format!("{path}[{key}]")
    } else {
        format!("{path}.{key}")
    }
}

/// A number of bytes in words.
pub(crate) fn bytes(count: usize) -> String {
    match count {
        1 => "1 byte".into(),
        count => format!("{count} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secrets_are_masked_by_their_decoded_length() {
        let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": "dmFsdWU=", "b": "", "c": "dg=="}});
        mask(&mut secret);
        assert_eq!(
            secret["data"],
            json!({"a": "*** (5 bytes)", "b": "*** (0 bytes)", "c": "*** (1 byte)"})
        );
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "value"}});
        let mut masked = map.clone();
        mask(&mut masked);
        assert_eq!(masked, map);
    }
}
