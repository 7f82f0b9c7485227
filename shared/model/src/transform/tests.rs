//! Tests of the edits of labels, annotations, data, type and finalizers, and of the refusals.

use std::collections::BTreeMap;

use super::*;
use crate::{kind::GroupVersionKind, names, refusal::Refusal, template::Variable};
use proptest::prelude::*;
use serde_json::json;

fn source() -> SourceRef {
    let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
    SourceRef::named(gvk, "platform", "registry")
}

fn parse_of_copies(spec: Value) -> Result<Transform, Vec<Refusal>> {
    let spec: CopyTransform = serde_json::from_value(spec).unwrap();
    Refusals::of(|refusals| check_of_copies(&spec, "t", &[source()], refusals))?;
    Ok(spec.common)
}

fn parse_of_admission(spec: Value, kinds: &[GroupVersionKind]) -> Result<Transform, Vec<Refusal>> {
    let spec = serde_json::from_value(spec).unwrap();
    Refusals::of(|refusals| check(&spec, "t", Use::Admission, kinds.iter(), refusals))?;
    Ok(spec)
}

#[track_caller]
fn of_copies(spec: Value) -> Transform {
    parse_of_copies(spec).unwrap()
}

#[track_caller]
fn of_admission(spec: Value) -> Transform {
    parse_of_admission(spec, &[source().gvk]).unwrap()
}

fn rewritten(spec: Value, mut object: Value, stored: Option<&Value>) -> Value {
    rewrite(&of_admission(spec), &mut object, stored, "team");
    object
}

#[test]
fn a_copy_is_stripped_then_included_then_excluded_then_set() {
    let from = json!({"app": "x", "team": "a", "team-b": "b", "helm.sh/chart": "c", "kept": "k"});
    for (edits, want) in [
        (
            json!({}),
            json!({"app": "x", "team": "a", "team-b": "b", "kept": "k"}),
        ),
        (
            json!({"include": ["team*", "helm.sh/*"]}),
            json!({"team": "a", "team-b": "b"}),
        ),
        (
            json!({"include": ["team*"], "exclude": ["*-b"]}),
            json!({"team": "a"}),
        ),
        (json!({"include": []}), json!({})),
        (
            json!({"include": [], "set": {"app": "$(source.name)", "new": ""}}),
            json!({"app": "registry", "new": ""}),
        ),
        (
            json!({"exclude": ["*"], "set": {"app": "y", "helm.sh/chart": "d"}}),
            json!({"app": "y", "helm.sh/chart": "d"}),
        ),
    ] {
        let transform = of_copies(json!({"labels": edits, "annotations": edits}));
        assert_eq!(
            Value::Object(copy_keys(
                &transform.labels,
                from.as_object(),
                &source(),
                &Variable::to_string
            )),
            want,
            "{edits}"
        );
        assert_eq!(
            Value::Object(copy_keys(
                &transform.annotations,
                from.as_object(),
                &source(),
                &Variable::to_string
            )),
            want,
            "{edits}"
        );
    }
    let transform = of_copies(
        json!({"labels": {"set": {"a": "b"}}, "type": "Opaque", "finalizers": ["a.b/c"]}),
    );
    assert_eq!(
        Value::Object(copy_keys(
            &transform.labels,
            None,
            &source(),
            &Variable::to_string
        )),
        json!({"a": "b"})
    );
    assert_eq!(
        (transform.type_.as_deref(), &*transform.finalizers),
        (Some("Opaque"), &["a.b/c".to_owned()][..])
    );
}

#[test]
fn a_new_object_is_rewritten() {
    let spec = json!({
        "type": "example.com/auth", "labels": {"exclude": ["old*"], "set": {"participant": "x"}},
        "annotations": {"set": {"a": "$(HOME)"}}, "finalizers": ["example.com/f"],
    });
    let object = json!({"metadata": {"name": "n", "labels": {"old-1": "", "k": "v"}}, "type": "Opaque", "data": {"d": "ZA=="}});
    let want = json!({
        "metadata": {
            "name": "n", "labels": {"k": "v", "participant": "x"},
            "annotations": {"a": "$(HOME)"}, "finalizers": ["example.com/f"],
        },
        "type": "example.com/auth", "data": {"d": "ZA=="},
    });
    assert_eq!(rewritten(spec, object, None), want);
}

#[test]
fn a_stored_secret_keeps_its_type() {
    let object = || json!({"metadata": {"name": "n"}, "type": "old"});
    for stored in ["new", "other", "old"] {
        let stored_object = json!({"metadata": {"name": "n"}, "type": stored});
        assert_eq!(
            rewritten(json!({"type": "new"}), object(), Some(&stored_object))["type"],
            stored
        );
    }
    let stored = json!({"type": "x"});
    assert_eq!(
        rewritten(
            json!({"labels": {"set": {"a": "b"}}}),
            object(),
            Some(&stored)
        )["type"],
        "old"
    );
}

#[test]
fn mimeos_marks_survive_a_rewrite() {
    let marks = json!({"mimeo.dev/rule": "r", names::MANAGED_BY: names::MANAGED_BY_VALUE});
    let object = json!({"metadata": {"labels": marks}});
    let spec = || json!({"labels": {"include": []}});
    assert_eq!(rewritten(spec(), object.clone(), None), object);
    let others = json!({"metadata": {"labels": {names::MANAGED_BY: "Helm"}}});
    assert_eq!(
        rewritten(spec(), others, None),
        json!({"metadata": {"labels": {}}})
    );
}

#[test]
fn odd_shapes_are_passed_over() {
    let spec = || json!({"finalizers": ["a.b/c"], "labels": {"set": {"a": "b"}}});
    assert_eq!(rewritten(spec(), json!("text"), None), json!("text"));
    assert_eq!(
        rewritten(spec(), json!({"metadata": 1}), None),
        json!({"metadata": 1})
    );
    let nulls = json!({"metadata": {"labels": null, "finalizers": null}});
    assert_eq!(
        rewritten(spec(), nulls, None),
        json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["a.b/c"]}})
    );
}

#[test]
fn parse_refuses_with_the_field_and_the_reason() {
    let many: BTreeMap<_, _> = (0..65).map(|i| (format!("k{i}"), "")).collect();
    let set = |keys: usize, text: &str| {
        let all = (0..keys).map(|i| (format!("k{i}"), text.to_owned()));
        json!({"annotations": {"set": all.collect::<BTreeMap<_, _>>()}})
    };
    let names = "$(source.name)".repeat(200);
    for (spec, want) in [
        (json!({"type": ""}), "t.type: must not be empty"),
        (
            json!({"type": "kubernetes.io/service-account-token"}),
            "t.type: must not be that of service account tokens",
        ),
        (
            json!({"type": "helm.sh/release.v1"}),
            "t.type: must not be that of service account tokens or Helm releases",
        ),
        (
            json!({"labels": {"include": ["a b"]}}),
            "t.labels.include[0]: \"a b\" is not a valid key",
        ),
        (
            json!({"annotations": {"exclude": ["x", ""]}}),
            "t.annotations.exclude[1]: must not be empty",
        ),
        (
            json!({"labels": {"set": {"a": "x/$(source.name)"}}}),
            "t.labels.set[a]: the value for v1/Secret/platform/r",
        ),
        (
            json!({"labels": {"set": {"a": "$(source.x)"}}}),
            "t.labels.set[a]: there is no variable",
        ),
        (
            json!({"labels": {"set": {"a": "$(namespace.name)-"}}}),
            "t.labels.set[a]: the value for v1/Secret/platform/registry \"x-\" is not a valid \
             label value",
        ),
        (
            json!({"labels": {"set": {"mimeo.dev/rule": "x"}}}),
            "t.labels.set[mimeo.dev/rule]: is reserved for Mimeo",
        ),
        (
            json!({"annotations": {"set": {"x.mimeo.dev/y": ""}}}),
            "t.annotations.set[x.mimeo.dev/y]: is reserved for Mimeo",
        ),
        (
            json!({"labels": {"set": {names::MANAGED_BY: "x"}}}),
            "t.labels.set[app.kubernetes.io/managed-by]: is reserved",
        ),
        (
            set(60, &"v".repeat(5000)),
            "t.annotations.set: must not have more than 262144 bytes",
        ),
        (
            set(6, &names),
            "t.annotations.set: must not have more than 262144 bytes",
        ),
        (
            json!({"annotations": {"set": many}}),
            "t.annotations.set: must not have more than 64 items",
        ),
        (
            json!({"data": {"include": ["a b"]}}),
            "t.data.include[0]: \"a b\" is not a valid key",
        ),
        (
            json!({"data": {"rename": {"a": "b/c"}}}),
            "t.data.rename[a]: \"b/c\" is not a valid key",
        ),
        (
            json!({"data": {"rename": {"a": "c", "b": "c"}}}),
            "t.data.rename[b]: another key is renamed to \"c\"",
        ),
        (
            json!({"finalizers": ["a.b/c", "a.b/c"]}),
            "t.finalizers[1]: \"a.b/c\" is listed twice",
        ),
        (
            json!({"finalizers": ["mimeo.dev/c"]}),
            "t.finalizers[0]: must not be in Mimeo's own domain",
        ),
        (
            json!({"finalizers": ["foregroundDeletion"]}),
            "t.finalizers[0]: \"foregroundDeletion\" must have a domain",
        ),
    ] {
        let refusals = parse_of_copies(spec).unwrap_err();
        assert_eq!(refusals.len(), 1, "{want}: {refusals:?}");
        assert!(
            refusals[0].to_string().starts_with(want),
            "{want}: {refusals:?}"
        );
    }
}

#[test]
fn a_type_is_only_for_secrets_and_a_variable_only_for_copies() {
    let parse = |spec: Value, kind: &str| {
        let kinds = [source().gvk, GroupVersionKind::parse("v1", kind).unwrap()];
        let refused = parse_of_admission(spec, &kinds).unwrap_err();
        refused
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_eq!(
        parse(json!({"type": "Opaque"}), "ConfigMap"),
        "t.type: is only for Secrets"
    );
    let message = parse(json!({"data": {"exclude": ["a"]}}), "Service");
    assert_eq!(message, "t.data: is only for Secrets and ConfigMaps");
    let message = parse(
        json!({"labels": {"set": {"a": "$(source.name)"}}}),
        "Secret",
    );
    assert_eq!(
        message,
        "t.labels.set[a]: a TransformPolicy has only the variable $(namespace.name)"
    );
    let message = parse(
        json!({"labels": {"set": {"a": "$(namespace.labels['b'])"}}}),
        "Secret",
    );
    assert_eq!(
        message,
        "t.labels.set[a]: a TransformPolicy has only the variable $(namespace.name)"
    );
    let object = json!({"metadata": {"name": "n"}});
    let spec = json!({"labels": {"set": {"at": "in-$(namespace.name)"}}});
    assert_eq!(
        rewritten(spec, object, None)["metadata"]["labels"]["at"],
        "in-team"
    );
    let mut config_map = source();
    config_map.gvk.kind = "ConfigMap".into();
    let spec = serde_json::from_value(json!({"type": "Opaque"})).unwrap();
    let sources = [source(), config_map];
    let parsed = Refusals::of(|refusals| check_of_copies(&spec, "t", &sources, refusals));
    assert!(parsed.is_err());
}

#[test]
fn data_of_a_copy_is_included_then_excluded_then_renamed() {
    let body = json!({"data": {"a": "1", "b": "2", "tls.crt": "3"}, "binaryData": {"c": "4"}, "immutable": true});
    for (edits, want) in [
        (json!({}), Ok(body.clone())),
        (
            json!({"include": ["tls.*", "c"]}),
            Ok(json!({"data": {"tls.crt": "3"}, "binaryData": {"c": "4"}, "immutable": true})),
        ),
        (
            json!({"exclude": ["?", "*.crt"]}),
            Ok(json!({"data": {}, "binaryData": {}, "immutable": true})),
        ),
        (
            json!({"include": ["a", "b"], "rename": {"a": "b", "b": "a", "gone": "x"}}),
            Ok(json!({"data": {"b": "1", "a": "2"}, "binaryData": {}, "immutable": true})),
        ),
        (json!({"rename": {"a": "c"}}), Err("c".to_owned())),
        (
            json!({"exclude": ["c"], "rename": {"a": "c"}}),
            Ok(
                json!({"data": {"c": "1", "b": "2", "tls.crt": "3"}, "binaryData": {}, "immutable": true}),
            ),
        ),
    ] {
        let mut copy = body.as_object().unwrap().clone();
        let done = copy_data(&of_copies(json!({"data": edits})).data, &mut copy);
        assert_eq!(done.map(|()| Value::Object(copy)), want, "{edits}");
    }
}

#[test]
fn data_of_an_admitted_object_is_edited_without_being_told() {
    let object = json!({"data": {"old": "c2VjcmV0", "both": "1", "new-both": "2"}, "stringData": {"extra/": "hunter2"}});
    let edits = json!({"include": ["old", "both"], "rename": {"old": "new", "both": "new-both"}});
    let transform = of_admission(json!({"data": edits}));
    let changes = json_patch::Patch(data_changes(&transform.data, &object));
    let text = changes.to_string();
    assert!(
        !text.contains("c2VjcmV0") && !text.contains("hunter2"),
        "{text}"
    );
    let mut once = object;
    json_patch::patch(&mut once, &changes).unwrap();
    assert_eq!(
        once,
        json!({"data": {"new": "c2VjcmV0", "both": "1", "new-both": "2"}, "stringData": {}})
    );
    assert!(data_changes(&transform.data, &once).is_empty());
    assert!(data_changes(&of_admission(json!({"type": "x"})).data, &once).is_empty());
}

proptest! {
    #[test]
    fn rewriting_twice_is_rewriting_once(
        include in "[ab*]{0,2}", exclude in "[ab?]{0,2}", set in prop::collection::btree_map("[abc]{1,2}", "[xy]", 0..3),
        labels in prop::option::of(prop::collection::btree_map("[abc]{1,2}", "[xyz]", 0..4)),
        finalizers in prop::option::of(prop::collection::vec("[ab]/[ab]", 0..3)), stored in prop::option::of("[xyz]"),
    ) {
        let list = |glob: String| if glob.is_empty() { vec![] } else { vec![glob] };
        let edits = json!({"include": list(include), "exclude": list(exclude), "set": set});
        let transform = of_admission(json!({"type": "x", "labels": edits, "finalizers": ["a/a", "b/b"]}));
        let stored = stored.map(|stored| json!({"type": stored}));
        let mut once = json!({"metadata": {"labels": labels, "finalizers": finalizers}, "type": "y"});
        rewrite(&transform, &mut once, stored.as_ref(), "team");
        let mut twice = once.clone();
        rewrite(&transform, &mut twice, stored.as_ref(), "team");
        prop_assert_eq!(once, twice);
    }
}
