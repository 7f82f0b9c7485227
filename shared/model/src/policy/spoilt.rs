//! Objects that a policy would make invalid.
//!
//! The API server validates an object after all mutating webhooks, and its refusal does not name
//! the policy. So the policy's webhook refuses an object that the policy would make invalid, and
//! names the policy. This module checks labels, annotations and the keys that a type of Secret
//! needs. In all other cases, a warning tells the user that the policy changed the object.

use std::collections::BTreeSet;

use json_patch::PatchOperation;
use serde_json::Value;

use crate::syntax;

/// The data of a Secret of this type must have one of these keys.
type OneOf = &'static [&'static str];

/// Keys that the API server requires in the data of Secrets, by type.
const KEYS: [(&str, &[OneOf]); 5] = [
    ("kubernetes.io/basic-auth", &[&["username", "password"]]),
    ("kubernetes.io/dockercfg", &[&[".dockercfg"]]),
    ("kubernetes.io/dockerconfigjson", &[&[".dockerconfigjson"]]),
    ("kubernetes.io/ssh-auth", &[&["ssh-privatekey"]]),
    ("kubernetes.io/tls", &[&["tls.crt"], &["tls.key"]]),
];

/// The reason why the API server would refuse an object after the policy's changes. `before` and
/// `after` are its metadata and type. `None` if the API server would also refuse the object without
/// the policy. `data` are the changes to the data of `object`. `secret` is true if the object is a
/// Secret.
pub(super) fn spoilt(
    object: &Value,
    before: &Value,
    after: &Value,
    data: &[PatchOperation],
    secret: bool,
) -> Option<String> {
    let mut keys = keys_of(object);
    let untouched = keys.clone();
    for change in data {
        match change {
            PatchOperation::Remove(gone) => _ = keys.remove(last(gone.path.as_str())),
            PatchOperation::Move(moved) => {
                keys.remove(last(moved.from.as_str()));
                keys.insert(last(moved.path.as_str()));
            }
            _ => {}
        }
    }
    let fault = |part: &Value, keys: &BTreeSet<&str>| {
        of_metadata(&part["metadata"]).or_else(|| {
            if secret {
                of_secret(part["type"].as_str()?, keys)
            } else {
                None
            }
        })
    };
    fault(after, &keys).filter(|_| fault(before, &untouched).is_none())
}

fn keys_of(object: &Value) -> BTreeSet<&str> {
    let fields = ["data", "stringData"]
        .iter()
        .filter_map(|field| object[field].as_object());
    fields
        .flat_map(|data| data.keys())
        .map(String::as_str)
        .collect()
}

/// The key at the end of a path to data. Keys contain neither `/` nor `~`.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn of_metadata(metadata: &Value) -> Option<String> {
    let texts = |field: &str| {
        metadata[field]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(k, v)| Some((k, v.as_str()?)))
    };
    let label = texts("labels").find_map(|(key, value)| {
        Some(format!("label {key} {}", syntax::label_value(value).err()?))
    });
    let size = texts("annotations")
        .map(|(key, value)| key.len() + value.len())
        .sum::<usize>();
    let most = syntax::ANNOTATIONS_SIZE;
    label.or_else(|| {
        (size > most).then(|| format!("its annotations must not have more than {most} bytes"))
    })
}

fn of_secret(type_: &str, keys: &BTreeSet<&str>) -> Option<String> {
    let (_, wanted) = KEYS.iter().find(|(one, _)| *one == type_)?;
    let missing = wanted
        .iter()
        .find(|one_of| !one_of.iter().any(|key| keys.contains(key)))?;
    Some(format!(
        "type {type_} needs the key {} in its data",
        missing.join(" or ")
    ))
}
