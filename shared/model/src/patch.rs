//! `transform.jsonPatch`: the last change to a copy, by RFC 6902.
//!
//! The patch sees the copy without its identity (name, apiVersion, kind) and without Mimeo's labels
//! and annotations. They are added after the patch, so no operation can change them, wherever its
//! path leads. A path to one of them can only be a mistake, so Mimeo refuses the rule.

use json_patch::{PatchErrorKind, jsonptr::Pointer};
use mimeo_api::{JsonPatchOp, JsonPatchOperation};
use serde_json::{Value, from_value, json};

use crate::{
    id::RuleKind,
    marks::is_mark,
    refusal::Refusals,
    size::size,
    source::{MOST_BYTES, SourceRef, SourceRefused},
    syntax,
    template::{Show, Template, fill_in, texts},
};

/// Most operations of one patch.
const OPERATIONS: usize = 32;
/// Longest path, in bytes.
const PATH: usize = 1024;
/// Most bytes of all values of one patch together.
const VALUES: usize = 64 * 1024;
/// Most bytes of a copy after any of the operations. An API server stores no larger objects.
const RESULT: usize = 1536 * 1024;
/// Deepest nesting of a copy after any of the operations, and of a value.
pub(crate) const DEPTH: usize = 100;

/// Checks a patch for the copies of these sources. Refusals name fields below `field`.
pub(crate) fn check(
    operations: &[JsonPatchOperation],
    field: &str,
    sources: &[SourceRef],
    refusals: &mut Refusals,
) {
    refusals.limit(field, operations.len(), OPERATIONS);
    let size = operations
        .iter()
        .filter_map(|one| size(one.value.as_ref()?, DEPTH))
        .sum::<usize>();
    if size > VALUES {
        refusals.add(
            field,
            format!("must not have more than {VALUES} bytes in all values"),
        );
    }
    for (i, operation) in operations.iter().enumerate() {
        check_operation(operation, &format!("{field}[{i}]"), sources, refusals);
    }
}

/// Patches a copy by checked operations. The copy has no identity, and its metadata has only labels
/// and annotations, without Mimeo's own. No checked path leads to its root, its metadata, its
/// labels or its annotations as a whole, so all four stay objects. The draft relies on that.
/// `rules` is the kind of the copy's rule.
///
/// # Errors
/// The operation that fails and the reason, without any of the data. The copy is then only partly
/// patched.
pub(crate) fn apply(
    operations: &[JsonPatchOperation],
    copy: &mut Value,
    source: &SourceRef,
    rules: RuleKind,
    show: Show<'_>,
) -> Result<(), SourceRefused> {
    // An operation can double the copy by copying a part into itself. So the size is checked
    // after each operation.
    let most = match rules {
        RuleKind::ClusterReplication => RESULT,
        RuleKind::Replication => MOST_BYTES,
    };
    for (number, operation) in operations.iter().enumerate() {
        let refused = |why| SourceRefused::JsonPatch { number, why };
        let mut operation = json!(operation);
        fill_in(&mut operation["value"], source, show);
        let operation = from_value(operation).map_err(|_| refused("it can't be done"))?;
        json_patch::patch_unsafe(copy, &[operation])
            .map_err(|error| refused(explain(&error.kind)))?;
        let size = size(copy, DEPTH);
        let size = size.ok_or_else(|| refused("the result is nested too deeply"))?;
        if size > most {
            return Err(SourceRefused::PatchTooLarge { number, most });
        }
    }
    Ok(())
}

/// The messages of the `json_patch` crate name paths, and a later version might name values.
fn explain(kind: &PatchErrorKind) -> &'static str {
    match kind {
        PatchErrorKind::TestFailed => "the test fails",
        PatchErrorKind::InvalidFromPointer => "there is nothing at from",
        PatchErrorKind::InvalidPointer => "there is no such path",
        PatchErrorKind::CannotMoveInsideItself => "a value can't be moved into itself",
        _ => "it can't be done",
    }
}

fn check_operation(
    operation: &JsonPatchOperation,
    field: &str,
    sources: &[SourceRef],
    refusals: &mut Refusals,
) {
    let JsonPatchOperation {
        op,
        path,
        from,
        value,
    } = operation;
    let takes_value = matches!(
        op,
        JsonPatchOp::Add | JsonPatchOp::Replace | JsonPatchOp::Test
    );
    let takes_from = matches!(op, JsonPatchOp::Move | JsonPatchOp::Copy);
    if takes_value != value.is_some() {
        let why = "must be set, and not be null, for add, replace and test, and for these alone";
        refusals.add(format!("{field}.value"), why);
    }
    if takes_from != from.is_some() {
        let why = "must be set for move and copy, and for these alone";
        refusals.add(format!("{field}.from"), why);
    }
    let is_encoded = |source: &SourceRef| match part(path) {
        Some("data") => source.gvk.is_secret(),
        Some("binaryData") => source.gvk.is_config_map(),
        _ => false,
    };
    if let Some(value) = value {
        let encoded = sources.iter().any(is_encoded);
        refusals.one(&format!("{field}.value"), check_value(value, *op, encoded));
    }
    let secrets = sources.iter().any(|source| source.gvk.is_secret());
    let checked = refusals.one(&format!("{field}.path"), check_path(path, secrets));
    if let Some(from) = from {
        refusals.one(&format!("{field}.from"), check_path(from, secrets));
    }
    let moves_data = from.as_deref().and_then(part) == Some("data") && part(path) != Some("data");
    if secrets && moves_data && checked.is_some() {
        // If each operation keeps this rule, then so does the whole patch.
        refusals.add(
            format!("{field}.path"),
            "must be in data if from is in data: elsewhere a Secret's data would be readable",
        );
    }
}

/// The field of the copy that a path leads into.
fn part(path: &str) -> Option<&str> {
    path.split('/').nth(1)
}

/// Checks that a path leads to a place that a patch may see and change.
fn check_path(path: &str, secrets: bool) -> Result<(), String> {
    if path.len() > PATH {
        return Err(format!("must not be longer than {PATH} characters"));
    }
    let pointer = Pointer::parse(path)
        .map_err(|_| format!("{path:?} is not a JSON pointer (RFC 6901), as in /data/key"))?;
    let tokens: Vec<String> = pointer
        .tokens()
        .map(|token| token.decoded().into_owned())
        .collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    match &tokens[..] {
        [] => Err("must not be the whole object".into()),
        [field @ ("apiVersion" | "kind" | "status"), ..] => Err(format!("must not be {field}")),
        ["type", ..] if secrets => {
            Err("must not be a Secret's type: that is for transform.type".into())
        }
        ["stringData", ..] if secrets => {
            Err("must not be stringData: what is stored is in data".into())
        }
        ["metadata", "labels", key, ..] => check_key(key, syntax::qualified_name(key)),
        ["metadata", "annotations", key, ..] => check_key(key, syntax::annotation_key(key)),
        ["metadata", ..] => Err("must be one label or one annotation if it is in metadata".into()),
        _ => Ok(()),
    }
}

fn check_key(key: &str, checked: Result<(), String>) -> Result<(), String> {
    checked?;
    if is_mark(key) {
        Err("is reserved for Mimeo".into())
    } else {
        Ok(())
    }
}

/// Checks a value. `encoded` is true if it becomes part of base64 data.
fn check_value(value: &Value, op: JsonPatchOp, encoded: bool) -> Result<(), String> {
    if size(value, DEPTH).is_none() {
        return Err(format!("must not be nested more than {DEPTH} deep"));
    }
    texts(value).try_for_each(|text| {
        let template = Template::parse(text)?;
        match template.variables().next() {
            Some(variable) if op == JsonPatchOp::Test => Err(format!(
                "must not contain {variable}: a test has the same result in all namespaces"
            )),
            _ if encoded && op != JsonPatchOp::Test => template.check_base64(),
            _ => Ok(()),
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use crate::{kind::GroupVersionKind, refusal::Refusal, template::Variable};

    fn source(kind: &str) -> SourceRef {
        SourceRef::named(
            GroupVersionKind::parse("v1", kind).unwrap(),
            "platform",
            "registry",
        )
    }

    fn parse(operations: &Value) -> Result<Vec<JsonPatchOperation>, String> {
        parse_for("Secret", operations)
    }

    fn parse_for(kind: &str, operations: &Value) -> Result<Vec<JsonPatchOperation>, String> {
        let operations: Vec<JsonPatchOperation> = from_value(operations.clone()).unwrap();
        let joined = |refusals: Vec<Refusal>| {
            refusals
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n")
        };
        let sources = [source(kind)];
        Refusals::of(|refusals| check(&operations, "p", &sources, refusals)).map_err(joined)?;
        Ok(operations)
    }

    /// A patched copy: metadata and the other fields.
    fn patched(operations: &Value, data: &Value) -> Result<[Value; 2], String> {
        let metadata = json!({"labels": {"a": "b"}, "annotations": {}});
        let mut copy = json!({"metadata": metadata, "type": "Opaque", "data": data});
        apply(
            &parse(operations).unwrap(),
            &mut copy,
            &source("Secret"),
            RuleKind::Replication,
            &Variable::to_string,
        )
        .map_err(|refused| refused.to_string())?;
        let metadata = copy.as_object_mut().unwrap().remove("metadata").unwrap();
        Ok([metadata, copy])
    }

    #[test]
    fn operations_are_done_in_turn_and_variables_stand_in_strings_of_values_alone() {
        let operations = json!([
            {"op": "add", "path": "/metadata/labels/of", "value": "$(source.name)"},
            {"op": "remove", "path": "/metadata/labels/a"},
            {"op": "add", "path": "/metadata/annotations/example.com~1x", "value": "$(HOME)"},
            {"op": "test", "path": "/data/a", "value": "MQ=="},
            {"op": "move", "from": "/data/a", "path": "/data/b"},
            {"op": "copy", "from": "/data/b", "path": "/data/c"},
            {"op": "add", "path": "/spec", "value": {"to": "$(namespace.name)"}},
            {"op": "replace", "path": "/spec", "value": {"$(source.name)": ["$(source.namespace)", 1, true], "at": "$(namespace.name)"}},
        ]);
        let [metadata, body] = patched(&operations, &json!({"a": "MQ=="})).unwrap();
        assert_eq!(
            metadata,
            json!({"labels": {"of": "registry"}, "annotations": {"example.com/x": "$(HOME)"}})
        );
        let data = json!({"b": "MQ==", "c": "MQ=="});
        let spec = json!({"$(source.name)": ["platform", 1, true], "at": "$(namespace.name)"});
        assert_eq!(body, json!({"type": "Opaque", "data": data, "spec": spec}));
    }

    #[test]
    fn what_cannot_be_done_is_told_without_any_data() {
        let grow = |from: &str, to: &str| json!({"op": "copy", "from": from, "path": to});
        let doubled: Vec<Value> = (0..32)
            .map(|n| grow("/data", &format!("/data/k{n}")))
            .collect();
        let mut deep = "/data".to_owned();
        let deepened: Vec<Value> = (0..32)
            .map(|_| {
                let from = deep.clone();
                deep = format!("{deep}/x/x/x/x/x");
                json!({"op": "add", "path": format!("{from}/x"), "value": {"x": {"x": {"x": {"x": {}}}}}})
            })
            .collect();
        for (operations, want) in [
            (
                json!([{"op": "test", "path": "/data/a", "value": "MQ=="}]),
                "[0] can't be applied: the test fails",
            ),
            (
                json!([{"op": "test", "path": "/data/a", "value": "aHVudGVyMg=="}, {"op": "remove", "path": "/data/b"}]),
                "[1] can't be applied: there is no such path",
            ),
            (
                json!([{"op": "add", "path": "/spec/a", "value": 1}]),
                "[0] can't be applied: there is no such path",
            ),
            (
                json!([{"op": "copy", "from": "/b", "path": "/c"}]),
                "[0] can't be applied: there is nothing at from",
            ),
            (
                json!([{"op": "move", "from": "/data", "path": "/data/a"}]),
                "a value can't be moved into itself",
            ),
            (json!(doubled), "makes the copy larger than"),
            (json!(deepened), "nested too deeply"),
        ] {
            let told = patched(&operations, &json!({"a": "aHVudGVyMg=="})).unwrap_err();
            assert!(told.contains(want), "{told}");
            assert!(
                !told.contains("aHVudGVyMg") && !told.contains("MQ=="),
                "{told}"
            );
        }
    }

    #[test]
    fn a_copy_of_a_replication_has_at_most_256_kib_after_each_operation() {
        let copy = |to: &str| json!({"op": "copy", "from": "/data/a", "path": to});
        let remove = json!({"op": "remove", "path": "/data/a"});
        let data = json!({"a": "x".repeat(200 << 10)});
        let told = patched(&json!([copy("/data/b"), remove]), &data).unwrap_err();
        assert!(
            told.contains("[0] makes the copy larger than 262144 bytes of JSON"),
            "{told}"
        );
        patched(&json!([remove]), &data).unwrap();
    }

    #[test]
    fn parse_refuses_what_can_never_be_meant() {
        let add = |path: &str| json!([{"op": "add", "path": path, "value": "x"}]);
        for (operations, want) in [
            (add(""), "p[0].path: must not be the whole object"),
            (add("data"), "p[0].path: \"data\" is not a JSON pointer"),
            (add("/a~2"), "p[0].path: \"/a~2\" is not a JSON pointer"),
            (add("/apiVersion"), "p[0].path: must not be apiVersion"),
            (add("/kind"), "p[0].path: must not be kind"),
            (add("/status/x"), "p[0].path: must not be status"),
            (add("/type"), "p[0].path: must not be a Secret's type"),
            (add("/stringData/x"), "p[0].path: must not be stringData"),
            (add("/metadata"), "p[0].path: must be one label"),
            (add("/metadata/name"), "p[0].path: must be one label"),
            (add("/metadata/namespace"), "p[0].path: must be one label"),
            (
                add("/metadata/ownerReferences/-"),
                "p[0].path: must be one label",
            ),
            (
                add("/metadata/finalizers/0"),
                "p[0].path: must be one label",
            ),
            (add("/metadata/labels"), "p[0].path: must be one label"),
            (
                add("/metadata/labels/a b"),
                "p[0].path: \"a b\" must have a name",
            ),
            (
                add("/metadata/labels/mimeo.dev~1rule"),
                "p[0].path: is reserved for Mimeo",
            ),
            (
                add("/metadata/labels/app.kubernetes.io~1managed-by"),
                "p[0].path: is reserved for Mimeo",
            ),
            (
                add("/metadata/annotations/mimeo.dev~1checksum"),
                "p[0].path: is reserved for Mimeo",
            ),
            (
                json!([{"op": "remove", "path": "/metadata/annotations"}]),
                "p[0].path: must be one label",
            ),
            (
                json!([{"op": "move", "from": "/metadata/labels", "path": "/data/x"}]),
                "p[0].from: must be one label",
            ),
            (
                json!([{"op": "copy", "from": "/metadata", "path": "/data/x"}]),
                "p[0].from: must be one label",
            ),
            (
                json!([{"op": "move", "from": "/kind", "path": "/data/x"}]),
                "p[0].from: must not be kind",
            ),
            (
                json!([{"op": "copy", "from": "/data/x", "path": "/metadata/annotations/x"}]),
                "p[0].path: must be in data if from is",
            ),
            (
                json!([{"op": "move", "path": "/data/x"}]),
                "p[0].from: must be set",
            ),
            (
                json!([{"op": "remove", "path": "/data/x", "from": "/data/y"}]),
                "p[0].from: must be set for move and copy, and for these alone",
            ),
            (
                json!([{"op": "add", "path": "/data/x"}]),
                "p[0].value: must be set",
            ),
            (
                json!([{"op": "remove", "path": "/data/x", "value": 1}]),
                "p[0].value: must be set, and not be null, for add",
            ),
            (
                json!([{"op": "add", "path": "/x", "value": ["$(source.uid)"]}]),
                "p[0].value: there is no variable",
            ),
            (
                json!([{"op": "test", "path": "/x", "value": {"a": "$(namespace.name)"}}]),
                "p[0].value: must not contain $(namespace.name)",
            ),
            (
                json!([{"op": "add", "path": "/data/x", "value": "aHVudGVyMg="}]),
                "p[0].value: must be base64 without variables",
            ),
            (
                json!([{"op": "replace", "path": "/data", "value": {"a": "$(HOME)"}}]),
                "p[0].value: must be base64 without variables",
            ),
            (
                json!([{"op": "add", "path": "/x", "value": "x".repeat(VALUES)}]),
                "p: must not have more than 65536 bytes",
            ),
            (
                json!(vec![add("/data/x")[0].clone(); 33]),
                "p: must not have more than 32 items",
            ),
        ] {
            assert!(
                parse(&operations).unwrap_err().starts_with(want),
                "{want}: {:?}",
                parse(&operations)
            );
        }
        assert!(
            parse_for("ConfigMap", &add("/type")).is_ok(),
            "another kind's type is a field like others"
        );
    }

    #[test]
    fn a_value_of_a_field_for_base64_is_base64_without_variables() {
        let operation =
            |op: &str, path: &str, value: &str| json!([{"op": op, "path": path, "value": value}]);
        for (kind, operations, taken) in [
            ("Secret", operation("add", "/data/a", "aHVudGVyMg=="), true),
            (
                "Secret",
                operation("add", "/data/a", "$(source.name)"),
                false,
            ),
            (
                "Secret",
                operation("add", "/data/a", "$(namespace.name)"),
                false,
            ),
            ("Secret", operation("add", "/data/a", "text!"), false),
            ("Secret", operation("test", "/data/a", "text!"), true),
            ("Secret", operation("add", "/binaryData/a", "text!"), true),
            ("ConfigMap", operation("add", "/data/a", "text!"), true),
            (
                "ConfigMap",
                operation("replace", "/binaryData/a", "text!"),
                false,
            ),
        ] {
            assert_eq!(
                parse_for(kind, &operations).is_ok(),
                taken,
                "{kind} {operations}"
            );
        }
    }
}
