//! Tests of reviews: accepted ones, refused ones, and the parts that the decoder keeps.

use serde_json::{Value, json};

use super::*;
use crate::{
    names,
    review::{bad_request, encode_unread},
};

fn review() -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "kind": {"group": "", "version": "v1", "kind": "Secret"},
            "resource": {"group": "", "version": "v1", "resource": "secrets"}, "subResource": "status",
            "requestKind": {"group": "", "version": "v1", "kind": "Secret"}, "name": "n", "namespace": "ns",
            "operation": "UPDATE", "userInfo": {"username": "ann", "groups": ["g"], "extra": {"k": ["v"]}},
            "object": {
                "metadata": {"name": "n", "managedFields": [{"manager": "m"}]}, "type": "t",
                "data": {"k": "c2VjcmV0"}, "spec": {},
            },
            "oldObject": {"metadata": {"name": "n"}}, "dryRun": true, "options": {"kind": "UpdateOptions"},
        },
    })
}

#[track_caller]
fn decoded(review: &Value, kept: Kept) -> Request {
    decode(review.to_string().as_bytes(), kept).unwrap()
}

fn undecodable(review: &str) -> Undecodable {
    decode(review.as_bytes(), Kept::Content).expect_err(&review[..review.len().min(1_000)])
}

#[test]
fn decode_reads_every_field() {
    let request = decoded(&review(), Kept::Content);
    assert_eq!(request.uid, "u-1");
    assert_eq!(
        request.kind,
        GroupVersionKind::parse("v1", "Secret").unwrap()
    );
    assert_eq!(
        (request.name.as_deref(), request.namespace.as_deref()),
        (Some("n"), Some("ns"))
    );
    assert_eq!(
        (request.operation, request.dry_run),
        (Operation::Update, true)
    );
    assert_eq!(
        request.user,
        User {
            name: "ann".into(),
            ..User::default()
        }
    );
    assert_eq!(
        request.object,
        Some(json!({"metadata": {"name": "n"}, "type": "t", "data": {"k": null}}))
    );
    assert_eq!(request.old_object, Some(json!({"metadata": {"name": "n"}})));
}

#[test]
fn of_an_object_is_kept_what_the_hook_looks_at() {
    let mut review = review();
    let (rule, source) = ("mimeo.dev/rule", "mimeo.dev/source");
    review["request"]["object"]["metadata"] = json!({
        "name": "n", "labels": {"a": "b"}, "annotations": {rule: "r", source: "s", "mimeo.dev/strategy": "Replace"},
        "managedFields": [{"manager": "m"}], "ownerReferences": [{"name": "o"}],
    });
    let all = json!({
        "name": "n", "labels": {"a": "b"}, "annotations": {rule: "r", source: "s", "mimeo.dev/strategy": "Replace"},
    });
    for (kept, object) in [
        (
            Kept::Marks,
            json!({"metadata": {"name": "n", "annotations": {rule: "r", source: "s"}}}),
        ),
        (Kept::Metadata, json!({"metadata": all})),
        (
            Kept::Content,
            json!({"metadata": all, "type": "t", "data": {"k": null}}),
        ),
        (Kept::Rule, json!({"metadata": all, "spec": {}})),
    ] {
        assert_eq!(decoded(&review, kept).object, Some(object), "{kept:?}");
    }
    review["request"]["object"]["metadata"] = json!({"name": "n", "annotations": null});
    assert_eq!(
        decoded(&review, Kept::Marks).object,
        Some(json!({"metadata": {"name": "n"}}))
    );
}

/// A namespace can get so many labels while no webhook runs. Only the old object is then reduced to
/// its pending label. A new object with too many labels is refused.
#[test]
fn of_a_namespace_that_has_too_many_labels_they_can_be_taken_away() {
    let labels = |count| -> serde_json::Map<String, Value> {
        (0..count)
            .map(|number| (number.to_string(), json!("")))
            .chain([(names::PENDING_LABEL.into(), json!("t"))])
            .collect()
    };
    let namespace = |count| json!({"name": "n", "uid": "u", "resourceVersion": "7", "labels": labels(count), "annotations": {"a": "b"}});
    let mut review = review();
    review["request"]["object"] = json!({"metadata": namespace(3)});
    review["request"]["oldObject"] = json!({"metadata": namespace(100_000)});
    let Request {
        object, old_object, ..
    } = decoded(&review, Kept::Metadata);
    assert_eq!(object, Some(json!({"metadata": namespace(3)})));
    let metadata = json!({"name": "n", "uid": "u", "resourceVersion": "7", "labels": {names::PENDING_LABEL: "t"}});
    assert_eq!(old_object, Some(json!({"metadata": metadata})));
    review["request"]["object"] = json!({"metadata": namespace(100_001)});
    let refused = decode(review.to_string().as_bytes(), Kept::Metadata).unwrap_err();
    assert_eq!(refused.why, "an object with too many values");
}

/// A user with write access to a copy must not get around its guard by first adding content to it.
#[test]
fn however_much_is_in_an_object_whose_copy_it_is_is_read() {
    let many: serde_json::Map<String, Value> = (0..100_000)
        .map(|number| (number.to_string(), json!("")))
        .collect();
    let metadata =
        |annotations: Value| json!({"name": "n", "labels": many, "annotations": annotations});
    let mut annotations = many.clone();
    annotations.insert(names::RULE.into(), json!("r"));
    let object = json!({"metadata": metadata(annotations.into()), "data": many, "type": "t"});
    let mut review = review();
    review["request"]["oldObject"] = object;
    let old = decoded(&review, Kept::Marks).old_object.unwrap();
    assert_eq!(
        old,
        json!({"metadata": {"name": "n", "annotations": {names::RULE: "r"}}})
    );
    assert_eq!(
        undecodable(&review.to_string()).why,
        "an object with too many values"
    );
}

/// A client may write any `managedFields`, and the API server sends them in the review.
#[test]
fn however_deep_managed_fields_are_a_review_is_read() {
    let deep = format!("{}1{}", r#"{"f:x":"#.repeat(100_000), "}".repeat(100_000));
    let body = review().to_string().replace(
        r#""manager":"m""#,
        &format!(r#""time":"9999-12-31T23:59:59Z","fieldsV1":{deep}"#),
    );
    assert!(body.len() > deep.len(), "no test of anything");
    for kept in [
        Kept::Marks,
        Kept::Metadata,
        Kept::Mark,
        Kept::Content,
        Kept::Rule,
    ] {
        assert_eq!(
            decode(body.as_bytes(), kept).unwrap(),
            decoded(&review(), kept)
        );
    }
}

#[test]
fn a_name_that_is_yet_to_be_made_up_is_none() {
    let mut review = review();
    let request = review["request"].as_object_mut().unwrap();
    for key in ["name", "namespace", "dryRun", "oldObject", "userInfo"] {
        request.remove(key);
    }
    request.insert("object".into(), json!({"metadata": {"generateName": "n-"}}));
    request.insert("namespace".into(), "".into());
    request.insert("oldObject".into(), Value::Null);
    let request = decoded(&review, Kept::Metadata);
    assert_eq!(
        (&request.name, &request.namespace, request.generate_name()),
        (&None, &None, Some("n-"))
    );
    assert!(request.old_object.is_none() && !request.dry_run && request.user.name.is_empty());
}

#[test]
fn all_is_kept_of_who_writes_one_of_mimeos_own() {
    let mut review = review();
    review["request"]["userInfo"]["uid"] = "u-7".into();
    let user = User {
        name: "ann".into(),
        uid: "u-7".into(),
        groups: vec!["g".into()],
        extra: [("k".into(), vec!["v".into()])].into(),
    };
    assert_eq!(decoded(&review, Kept::Rule).user, user);
    for (field, value) in [
        ("groups", json!(null)),
        ("extra", json!(null)),
        ("extra", json!({"k": null})),
    ] {
        let mut review = review.clone();
        review["request"]["userInfo"][field] = value;
        assert_eq!(decoded(&review, Kept::Rule).user.name, "ann");
    }
    let many: Vec<_> = (0..25_000).map(|n| format!("group-{n}")).collect();
    review["request"]["userInfo"]["groups"] = json!(many);
    let refused = decode(review.to_string().as_bytes(), Kept::Rule).unwrap_err();
    assert!(
        refused.to_string().ends_with("a user with too many groups"),
        "{refused}"
    );
    assert!(
        decoded(&review, Kept::Content).user.groups.is_empty(),
        "nobody else's groups are looked at"
    );
}

#[test]
fn what_cannot_be_a_name_is_no_review() {
    let kind = json!({"group": "", "version": "v1", "kind": "Namespace"});
    let too_long = json!("n".repeat(5_000));
    for (field, bad) in [
        ("namespace", json!("mallory/configmaps/mallory")),
        ("namespace", json!("..")),
        ("namespace", json!("a.b")),
        ("namespace", json!("a?b")),
        ("namespace", json!("a%2fb")),
        ("namespace", json!("n".repeat(64))),
        ("name", json!("kube-system/secrets/x")),
        ("name", json!(".")),
        ("name", json!("..")),
        ("name", json!("a%2fb")),
        ("name", json!("a\nb")),
        ("name", too_long.clone()),
        ("uid", too_long.clone()),
        (
            "kind",
            json!({"group": too_long, "version": "v1", "kind": "Secret"}),
        ),
        ("userInfo", json!({"username": too_long})),
        ("userInfo", json!({"username": "ann", "uid": too_long})),
    ] {
        let mut review = review();
        review["request"][field] = bad.clone();
        let refused = undecodable(&review.to_string());
        assert!(
            refused.why.contains("can't be one") || refused.why.contains("too long"),
            "{field}: {refused}"
        );
        let answer = encode_unread(
            review.to_string().as_bytes(),
            &bad_request(refused.to_string()),
        );
        assert!(answer.len() < 1_000, "{field}");
    }
    for field in IDENTITY {
        let mut review = review();
        review["request"]["object"]["metadata"][field] = too_long.clone();
        undecodable(&review.to_string());
    }
    for (name, kind, good) in [
        (
            "system:node ä",
            json!({"group": "rbac.authorization.k8s.io", "version": "v1", "kind": "Role"}),
            true,
        ),
        (
            &*"n".repeat(300),
            json!({"group": "rbac.authorization.k8s.io", "version": "v1", "kind": "Role"}),
            true,
        ),
        (
            "a.b",
            json!({"group": "example.com", "version": "v1", "kind": "Namespace"}),
            true,
        ),
        ("a.b", kind.clone(), false),
        ("team-a", kind, true),
    ] {
        let mut review = review();
        review["request"]["name"] = name.into();
        review["request"]["kind"] = kind;
        assert_eq!(
            decode(review.to_string().as_bytes(), Kept::Marks).is_ok(),
            good,
            "{name}"
        );
    }
}

#[test]
fn debug_shows_no_object() {
    let shown = format!("{:?}", decoded(&review(), Kept::Content));
    assert!(
        shown.contains("u-1") && !shown.contains("c2VjcmV0"),
        "{shown}"
    );
}

#[test]
fn the_uid_is_found_in_what_cannot_be_decoded() {
    let whole = review().to_string();
    let change = |pointer: &str, value: Value| {
        let mut review = review();
        *review.pointer_mut(pointer).unwrap() = value;
        review.to_string()
    };
    let uid_first = r#"{"request":{"uid":"u-1","object":{"data":"c2VjcmV0"#;
    for (body, uid, why) in [
        (
            whole[..whole.len() - 1].to_owned(),
            Some("u-1"),
            "Eof error, line 1",
        ),
        (uid_first.to_owned(), Some("u-1"), "Eof error"),
        (format!("{uid_first}\u{1}"), Some("u-1"), "Syntax error"),
        (
            change("/apiVersion", json!("admission.k8s.io/v1beta1")),
            Some("u-1"),
            "another apiVersion",
        ),
        (
            change("/kind", json!("Secret")),
            Some("u-1"),
            "another apiVersion",
        ),
        (
            change("/request/operation", json!("c2VjcmV0")),
            Some("u-1"),
            "Data error",
        ),
        (
            change("/request/dryRun", json!("c2VjcmV0")),
            Some("u-1"),
            "Data error",
        ),
        (
            change("/request/object/metadata/name", json!("DEEP")).replace("\"DEEP\"", &deep(200)),
            Some("u-1"),
            "Syntax error",
        ),
        (
            change("/request/object", json!([])),
            Some("u-1"),
            "Data error",
        ),
        (
            change("/request/object/metadata", json!(7)),
            Some("u-1"),
            "Data error",
        ),
        (change("/request/uid", json!(7)), None, "Data error"),
        (change("/request", Value::Null), None, "no request in it"),
        (String::new(), None, "Eof error"),
        ("null".into(), None, "Data error"),
        ("[]".into(), None, "Data error"),
        ("<html>".into(), None, "Syntax error"),
    ] {
        let undecodable = undecodable(&body);
        assert!(undecodable.why.starts_with(why), "{body}: {undecodable}");
        assert!(
            !undecodable.to_string().contains("c2VjcmV0"),
            "{undecodable}"
        );
        let answer: Value = serde_json::from_slice(&encode_unread(
            body.as_bytes(),
            &bad_request(undecodable.to_string()),
        ))
        .unwrap();
        assert_eq!(answer["response"]["uid"], uid.unwrap_or_default());
        assert_eq!(
            (
                &answer["response"]["allowed"],
                &answer["response"]["status"]["code"]
            ),
            (&json!(false), &json!(400))
        );
    }
}

fn deep(levels: usize) -> String {
    "[".repeat(levels) + &"]".repeat(levels)
}

/// A review of about 7 MiB with this many values at one place of its object.
fn flood(at: &str) -> String {
    let mut review = review();
    let (parent, last) = at.rsplit_once('/').unwrap();
    review
        .pointer_mut(&format!("/request/object{parent}"))
        .unwrap()[last] = json!("FLOOD");
    review
        .to_string()
        .replace("\"FLOOD\"", &format!("[{}0]", "0,".repeat(3_500_000)))
}

#[test]
fn parts_that_no_hook_looks_at_are_skipped() {
    for at in ["/data", "/spec", "/metadata/managedFields"] {
        let request = decode(flood(at).as_bytes(), Kept::Content).unwrap();
        assert!(request.object.unwrap().to_string().len() < 1_000, "{at}");
    }
}

#[test]
fn too_many_values_are_refused() {
    for at in ["/type", "/metadata/labels", "/metadata/finalizers"] {
        assert_eq!(
            undecodable(&flood(at)).why,
            "an object with too many values",
            "{at}"
        );
    }
}

#[test]
fn the_largest_rule_is_read_whole() {
    let namespaces: Vec<String> = (0..128).map(|number| format!("{number:0>63}")).collect();
    let item = json!({"namespaces": namespaces});
    let spec = json!({"sources": [], "targets": vec![item.clone(); 32], "exclude": vec![item; 32]});
    let mut review = review();
    review["request"]["kind"] =
        json!({"group": "mimeo.dev", "version": "v1alpha1", "kind": "ClusterReplication"});
    review["request"]["object"]["spec"] = spec.clone();
    assert!(decoded(&review, Kept::Rule).object.unwrap()["spec"] == spec);
}
