//! The differences between a copy and its source, and the changes of a policy to an object at
//! admission.

use mimeo_api::{CopyTransform, Transform, is_default};
use serde_json::{Map, Value, json};

use crate::{
    kind::GroupVersionKind,
    marks::is_ours,
    patch,
    refusal::Refusals,
    source::{SourceRef, refused_type},
    syntax,
};

mod keys;

use self::keys::{check_data, check_keys, rewrite_keys};
pub(crate) use self::keys::{copy_data, copy_keys, data_changes};

/// Most finalizers.
const FINALIZERS: usize = 8;

type Fields = Map<String, Value>;

/// The use of a text with variables. It determines the check of the text.
#[derive(Clone, Copy)]
pub(crate) enum Use<'a> {
    /// For copies of these sources.
    Copies(&'a [SourceRef]),
    /// For an object at admission. There is no source.
    Admission,
}

/// Checks the transform of a rule. Its texts may have variables of any of `sources`. Refusals
/// name fields below `field`.
pub(crate) fn check_of_copies(
    spec: &CopyTransform,
    field: &str,
    sources: &[SourceRef],
    refusals: &mut Refusals,
) {
    let CopyTransform { common, json_patch } = spec;
    let kinds = sources.iter().map(|source| &source.gvk);
    check(common, field, Use::Copies(sources), kinds, refusals);
    patch::check(json_patch, &format!("{field}.jsonPatch"), sources, refusals);
}

/// Checks the transform of a policy, or that of a rule without its patch, for objects of these
/// kinds. Refusals name fields below `field`.
pub(crate) fn check<'a>(
    spec: &Transform,
    field: &str,
    used: Use<'_>,
    mut kinds: impl Iterator<Item = &'a GroupVersionKind> + Clone,
    refusals: &mut Refusals,
) {
    let Transform {
        type_,
        labels,
        annotations,
        data,
        finalizers,
    } = spec;
    let secrets = kinds.clone().all(GroupVersionKind::is_secret);
    if !is_default(data) && !kinds.all(|kind| kind.is_secret() || kind.is_config_map()) {
        refusals.add(
            format!("{field}.data"),
            "is only for Secrets and ConfigMaps",
        );
    }
    let at_type = format!("{field}.type");
    if let Some(text) = type_ {
        refusals.one(&at_type, syntax::secret_type(text));
        if refused_type(Some(text)).is_some() {
            refusals.add(
                &at_type,
                "must not be that of service account tokens or Helm \
                 releases: Kubernetes or Helm would use the Secret as one",
            );
        }
        if !secrets {
            refusals.add(at_type, "is only for Secrets");
        }
    }
    let at = |part: &str| format!("{field}.{part}");
    check_keys(
        labels,
        &at("labels"),
        used,
        syntax::qualified_name,
        syntax::label_value,
        refusals,
    );
    check_keys(
        annotations,
        &at("annotations"),
        used,
        syntax::annotation_key,
        |_| Ok(()),
        refusals,
    );
    check_data(data, &at("data"), refusals);
    refuse_finalizers(finalizers, &at("finalizers"), refusals);
}

/// Changes an object at admission, except its data. `stored` is the old object of an UPDATE.
/// The variable `$(namespace.name)` has the value `namespace`.
///
/// A new Secret gets the type of the transform. A stored Secret keeps its type, which is
/// immutable. So a client can send the original type again without an error. Mimeo's labels and
/// annotations are not changed. A second run changes nothing.
pub(crate) fn rewrite(
    transform: &Transform,
    object: &mut Value,
    stored: Option<&Value>,
    namespace: &str,
) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    if let Some(wanted) = &transform.type_ {
        let kept = stored.map_or(Some(&**wanted), |stored| stored["type"].as_str());
        fields.extend(kept.map(|kept| ("type".into(), kept.into())));
    }
    if let Some(metadata) = object_in(fields, "metadata") {
        rewrite_keys(&transform.labels, metadata, "labels", namespace);
        rewrite_keys(&transform.annotations, metadata, "annotations", namespace);
        add_finalizers(&transform.finalizers, metadata);
    }
}

/// True if the object has a deletionTimestamp. Mimeo never writes or changes such an object.
pub fn is_being_deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// The object at `key`. It is added if it does not exist.
fn object_in<'a>(parent: &'a mut Fields, key: &str) -> Option<&'a mut Fields> {
    set_in(parent, key, Map::new().into()).as_object_mut()
}

/// The value at `key`. A missing or null value becomes `empty`.
fn set_in<'a>(parent: &'a mut Fields, key: &str, empty: Value) -> &'a mut Value {
    let value = parent.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = empty;
    }
    value
}

fn add_finalizers(finalizers: &[String], metadata: &mut Fields) {
    if finalizers.is_empty() {
        return;
    }
    let Some(there) = set_in(metadata, "finalizers", json!([])).as_array_mut() else {
        return;
    };
    for finalizer in finalizers {
        if !there.iter().any(|one| one == finalizer) {
            there.push(finalizer.as_str().into());
        }
    }
}

fn refuse_finalizers(finalizers: &[String], field: &str, refusals: &mut Refusals) {
    refusals.limit(field, finalizers.len(), FINALIZERS);
    for (i, finalizer) in finalizers.iter().enumerate() {
        let field = format!("{field}[{i}]");
        refusals.one(&field, syntax::finalizer(finalizer));
        if is_ours(finalizer) {
            refusals.add(
                &field,
                "must not be in Mimeo's own domain: nothing would remove it",
            );
        }
        if finalizers[..i].contains(finalizer) {
            refusals.add(field, format!("{finalizer:?} is listed twice"));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests;
