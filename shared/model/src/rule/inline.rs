//! Objects inside a rule, and the fields that they may have. The API server checks their labels and
//! annotations when it stores the rule. Only the API server decides if an object is valid for its
//! kind, when Mimeo writes the copies.

use serde_json::{Map, Value};

use crate::{
    id::RuleId,
    kind::GroupVersionKind,
    patch::DEPTH,
    refusal::Refusals,
    size::size,
    source::SourceRef,
    syntax,
    template::{Template, texts},
};

/// The metadata that an inline object may set: the same fields that copies take from a source.
const METADATA: [&str; 3] = ["name", "labels", "annotations"];

/// Most bytes of one object: the limit of a ConfigMap.
const SIZE: usize = 1024 * 1024;

/// The reason to refuse a variable in a rule with an inline source.
pub(super) const NO_NAMESPACE: &str =
    "must not contain $(source.namespace): an inline source has no namespace";

/// True if the text has the variable that an inline source has no value for.
pub(super) fn needs_namespace(text: &str) -> bool {
    text.contains("$(source.namespace)")
}

/// Parses an object inside this rule. Refusals name fields below `field`.
pub(super) fn parse(
    object: &Value,
    rule: &RuleId,
    field: &str,
    refusals: &mut Refusals,
) -> Option<SourceRef> {
    if size(object, DEPTH).is_none_or(|size| size > SIZE) {
        refusals.add(
            field,
            format!("must not have more than {SIZE} bytes or more than {DEPTH} levels"),
        );
        return None;
    }
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let gvk = refusals.one(
        field,
        GroupVersionKind::parse(text("apiVersion"), text("kind")),
    );
    if let Some(gvk) = &gvk {
        if gvk.is_secret() {
            refusals.add(
                format!("{field}.kind"),
                "must not be Secret: every user who may read the rule could read it",
            );
        }
        if let Some(why) = gvk.left_alone() {
            refusals.add(format!("{field}.kind"), why);
        }
        let binary = object["binaryData"]
            .as_object()
            .filter(|_| gvk.is_config_map());
        for (key, value) in binary.into_iter().flatten() {
            if let Ok(value) = Template::parse(value.as_str().unwrap_or_default()) {
                refusals.one(&format!("{field}.binaryData[{key}]"), value.check_base64());
            }
        }
    }
    // Tools write null or an empty object for a field without a value. Such a field counts as not
    // set.
    let is_set = |value: &Value| !value.is_null() && *value != Value::Object(Map::new());
    if is_set(&object["status"]) {
        refusals.add(
            format!("{field}.status"),
            "must not be set: status is never copied",
        );
    }
    let metadata = &object["metadata"];
    for (key, value) in metadata.as_object().into_iter().flatten() {
        if !METADATA.contains(&key.as_str()) && is_set(value) {
            let why = "must not be set: only name, labels and annotations may be";
            refusals.add(format!("{field}.metadata.{key}"), why);
        }
    }
    let name = metadata["name"].as_str().unwrap_or_default();
    let group = gvk.as_ref().map_or("", |gvk| &gvk.group);
    refusals.one(
        &format!("{field}.metadata.name"),
        syntax::object_name(group, name),
    );
    let source = gvk.map(|gvk| SourceRef::inline(gvk, rule, name));
    if let Some(why) = texts(object).find_map(|text| Template::parse(text).err()) {
        refusals.add(field, why);
    }
    if texts(object).any(needs_namespace) {
        refusals.add(field, NO_NAMESPACE);
    }
    source
}
