//! Specs that Mimeo refuses, with the exact words and without any effect. Also specs that it
//! accepts although they cannot work yet.

use anyhow::{Context, Result, bail, ensure};
use http::Request;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use mimeo_api::{ClusterReplication, ClusterReplicationStatus, TransformPolicy};
use mimeo_tests::refused::{Case, changed, misjudged, passes_schemas};
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Setting, annotation, apply, condition, create, delete, kubectl, label,
    of, put, relabel, rule, stranger, uid, value, version, wait_condition, wait_gone,
};
use mimeo_tests::traffic::{pod, stubbornly};
use mimeo_tests::{ControlPlane, Pair, eventually, unique};
use serde_json::{Value, json};

use crate::stages::PLAIN as STAGE;

fn good(scene: &Scene<'_>, name: &str) -> RuleSpec {
    rule(name)
        .to_label("scene", &scene.tag)
        .secret(&scene.home, "registry")
}

fn source(api_version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "namespace": "platform", "name": name})
}

fn sources(all: &[Value]) -> Value {
    json!({"sources": all})
}

fn target(target: &Value) -> Value {
    json!({"targets": [target]})
}

fn selector(selector: &Value) -> Value {
    target(&json!({"namespaceSelector": selector}))
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    selector(&json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
}

fn named(name: &str) -> Value {
    target(&json!({"namespaces": ["team-*"], "copyName": name}))
}

fn transform(transform: &Value) -> Value {
    json!({"transform": transform})
}

fn patch(op: &str, path: &str) -> Value {
    transform(&json!({"jsonPatch": [{"op": op, "path": path}]}))
}

fn set(of: &str, key: &str, value: &str) -> Value {
    transform(&json!({of: {"set": {key: value}}}))
}

fn bad_sources() -> Vec<Case> {
    const SET: &str = "apiVersion, kind and namespace must be set";
    const ONE: &str = "exactly one of name, selector and inline";
    let secret = |name: &str| source("v1", "Secret", name);
    let mut elsewhere = secret("registry");
    elsewhere["namespace"] = json!("other");
    let without = |field: &str| {
        let mut source = secret("registry");
        source.as_object_mut().map(|fields| fields.remove(field));
        sources(&[source])
    };
    let with = |field: &str, value: &str| {
        let mut source = secret("registry");
        source[field] = json!(value);
        sources(&[source])
    };
    vec![
        (
            "no list of sources",
            json!({"sources": null}),
            &["spec.sources"],
        ),
        ("no source", sources(&[]), &["spec.sources"]),
        (
            "too many sources",
            sources(
                &(0..33)
                    .map(|n| secret(&format!("s{n}")))
                    .collect::<Vec<_>>(),
            ),
            &["spec.sources"],
        ),
        (
            "something else than sources",
            json!({"sources": "registry"}),
            &["spec.sources"],
        ),
        (
            "no apiVersion",
            without("apiVersion"),
            &["spec.sources[0]", SET],
        ),
        ("no kind", without("kind"), &["spec.sources[0]", SET]),
        (
            "no namespace",
            without("namespace"),
            &["spec.sources[0]", SET],
        ),
        (
            "neither name nor selector",
            without("name"),
            &["spec.sources[0]", ONE],
        ),
        (
            "both name and selector",
            sources(&[
                json!({"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "a", "selector": {}}),
            ]),
            &["spec.sources[0]", ONE],
        ),
        (
            "an invalid apiVersion",
            with("apiVersion", "a/b/c"),
            &["spec.sources[0].apiVersion", "as in v1"],
        ),
        (
            "an invalid kind",
            with("kind", "Sec ret"),
            &["spec.sources[0].kind", "as in Secret"],
        ),
        (
            "an invalid namespace",
            with("namespace", "Platform"),
            &["spec.sources[0].namespace", "no wildcards"],
        ),
        (
            "an invalid name",
            with("name", "a/b"),
            &["spec.sources[0].name", "must be the name of an object"],
        ),
        (
            "kind Namespace",
            sources(&[source("v1", "Namespace", "x")]),
            &["spec.sources[0]", "Namespace is never copied"],
        ),
        (
            "a cluster-scoped kind",
            sources(&[source("v1", "Node", "x")]),
            &["spec.sources[0]", "Node", "cluster-scoped"],
        ),
        (
            "a cluster-scoped kind of a group, behind a good one",
            sources(&[
                secret("a"),
                source("rbac.authorization.k8s.io/v1", "ClusterRole", "x"),
            ]),
            &["spec.sources[1]", "ClusterRole", "cluster-scoped"],
        ),
        (
            "a kind of Mimeo's own",
            sources(&[source("mimeo.dev/v1alpha1", "ClusterReplication", "x")]),
            &["spec.sources[0]"],
        ),
        (
            "a source twice",
            sources(&[secret("registry"), secret("registry")]),
            &["spec.sources"],
        ),
        (
            "two sources of one name",
            sources(&[secret("registry"), elsewhere]),
            &["spec.", "cop"],
        ),
    ]
}

/// Returns inline objects that a rule may not contain.
fn bad_objects() -> Vec<Case> {
    const METADATA: &str = "spec.sources[0].inline.metadata";
    let object = |api_version: &str, kind: &str, metadata: &Value| {
        sources(&[
            json!({"inline": {"apiVersion": api_version, "kind": kind, "metadata": metadata}}),
        ])
    };
    let with =
        |field: &str, value: &Value| object("v1", "ConfigMap", &json!({"name": "a", field: value}));
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "a"}]);
    let named = json!({"name": "a"});
    let mut both = object("v1", "ConfigMap", &named);
    both["sources"][0]["name"] = json!("b");
    let mut ended = object("v1", "ConfigMap", &named);
    ended["sources"][0]["inline"]["status"] = json!({"phase": "x"});
    let mut odd = object("v1", "ConfigMap", &named);
    odd["sources"][0]["inline"]["data"] = json!({"k": "$(namespace.uid)"});
    vec![
        (
            "an inline Secret",
            object("v1", "Secret", &named),
            &["spec.sources[0].inline", "kind Secret must not"],
        ),
        (
            "an inline Namespace",
            object("v1", "Namespace", &named),
            &["spec.sources[0].inline", "never copied"],
        ),
        (
            "an inline object of a cluster-scoped kind",
            object("v1", "Node", &named),
            &["spec.sources[0]", "cluster-scoped"],
        ),
        (
            "an inline object of Mimeo's own kinds",
            object("mimeo.dev/v1alpha1", "Replication", &named),
            &["spec.sources[0].inline.kind", "Mimeo's own kinds"],
        ),
        (
            "an inline object without apiVersion",
            sources(&[json!({"inline": {"kind": "ConfigMap", "metadata": named}})]),
            &["spec.sources[0].inline", "apiVersion"],
        ),
        (
            "an inline object without metadata",
            sources(&[json!({"inline": {"apiVersion": "v1", "kind": "ConfigMap"}})]),
            &["spec.sources[0].inline", "must have metadata.name"],
        ),
        (
            "an inline object without a name",
            object("v1", "ConfigMap", &json!({})),
            &["must have metadata.name"],
        ),
        (
            "a generated name",
            object("v1", "ConfigMap", &json!({"generateName": "a-"})),
            &["no metadata.generateName"],
        ),
        (
            "a name and a generated one",
            with("generateName", &json!("a-")),
            &["no metadata.generateName"],
        ),
        (
            "a variable in an inline object's name",
            object("v1", "ConfigMap", &json!({"name": "$(namespace.name)"})),
            &[METADATA, "name"],
        ),
        (
            "another namespace",
            with("namespace", &json!("kube-system")),
            &[METADATA, "namespace: must not be set"],
        ),
        (
            "owner references",
            with("ownerReferences", &owner),
            &[METADATA, "ownerReferences: must not be set"],
        ),
        (
            "finalizers",
            with("finalizers", &json!(["a.b/c"])),
            &[METADATA, "finalizers: must not be set"],
        ),
        (
            "an invalid label",
            with("labels", &json!({"a": "b c"})),
            &[METADATA, "labels"],
        ),
        (
            "a status",
            ended,
            &["spec.sources[0].inline.status: must not be set"],
        ),
        (
            "a variable that there isn't",
            odd,
            &["spec.sources[0].inline", "no variable $(namespace.uid)"],
        ),
        (
            "an inline object's namespace in a name",
            json!({
                "sources": [{"inline": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named}}],
                "targets": [{"namespaces": ["team-*"], "copyName": "$(source.namespace)-x"}],
            }),
            &[
                "spec.targets[0].copyName",
                "an inline source has no namespace",
            ],
        ),
        (
            "an inline object and a name",
            both,
            &[
                "spec.sources[0]",
                "exactly one of name, selector and inline",
            ],
        ),
        (
            "an inline object twice",
            sources(&vec![
                json!({"inline": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named}});
                2
            ]),
            &["spec.sources[1]", "the rule already has the source"],
        ),
    ]
}

#[allow(clippy::too_many_lines)] // A table.
fn bad_targets() -> Vec<Case> {
    let at_least_one: &[&str] = &[
        "spec.targets[0]",
        "at least one of namespaces, namespacePattern and namespaceSelector",
    ];
    let excluding = |item: Value| json!({"exclude": [item]});
    let names = |names: &[&str]| target(&json!({"namespaces": names}));
    let pattern = |pattern: &str| target(&json!({"namespacePattern": pattern}));
    let no_pattern: &[&str] = &["spec.targets[0].namespacePattern", "RE2"];
    let at_selector: &[&str] = &["spec.targets[0].namespaceSelector"];
    vec![
        (
            "no list of targets",
            json!({"targets": null}),
            &["spec.targets"],
        ),
        ("no target", json!({"targets": []}), &["spec.targets"]),
        (
            "too many targets",
            json!({"targets": vec![json!({"namespaces": ["a"]}); 33]}),
            &["spec.targets"],
        ),
        ("none of the selections", target(&json!({})), at_least_one),
        (
            "a name without a selection",
            target(&json!({"copyName": "x"})),
            at_least_one,
        ),
        (
            "an exclusion of nothing",
            excluding(json!({})),
            &["spec.exclude[0]", "at least one of"],
        ),
        (
            "too many exclusions",
            json!({"exclude": vec![json!({"namespaces": ["a"]}); 33]}),
            &["spec.exclude"],
        ),
        (
            "no name in the list",
            names(&[]),
            &["spec.targets[0].namespaces"],
        ),
        (
            "a glob with capitals",
            names(&["Team-*"]),
            &["spec.targets[0].namespaces[0]", "as in team-*"],
        ),
        (
            "a glob with a class",
            names(&["a", "team-[ab]"]),
            &["spec.targets[0].namespaces[1]"],
        ),
        ("an invalid pattern", pattern("team-("), no_pattern),
        (
            "a pattern that looks around",
            pattern("(?=team)"),
            no_pattern,
        ),
        // Rust's regular expressions accept these patterns, the API server's don't.
        (
            "a pattern with comments",
            pattern("(?x)team-a # b"),
            no_pattern,
        ),
        (
            "a pattern that turns Unicode on",
            pattern("(?u)team"),
            no_pattern,
        ),
        ("a pattern of lines", pattern("(?R)team"), no_pattern),
        (
            "a pattern with an escaped letter",
            pattern(r"\u0061"),
            no_pattern,
        ),
        // Both accept these patterns, but with different meanings.
        (
            "a pattern of a class within a class",
            pattern("[[a-z]0-9]"),
            no_pattern,
        ),
        (
            "a pattern of a part of a class",
            pattern("[a-z&&[^x]]"),
            no_pattern,
        ),
        ("a pattern of a word's edge", pattern(r"\<team"), no_pattern),
        ("a pattern of an odd count", pattern("a{ 2 }"), no_pattern),
        ("a pattern of an odd range", pattern("[--a]"), no_pattern),
        // No name needs this syntax.
        ("a pattern with flags", pattern("(?i)team"), no_pattern),
        (
            "a pattern too large to write out",
            pattern("((a{500}){500}){500}"),
            no_pattern,
        ),
        (
            "a pattern too large to run",
            pattern("(.*a.{9}){9}"),
            &["spec.targets[0].namespacePattern", "fits into"],
        ),
        (
            "an invalid pattern in an exclusion",
            excluding(json!({"namespacePattern": "["})),
            &["spec.exclude[0].namespacePattern", "RE2"],
        ),
        (
            "an unknown operator",
            expression("a", "Maybe", &["b"]),
            at_selector,
        ),
        ("In without values", expression("a", "In", &[]), at_selector),
        (
            "Exists with values",
            expression("a", "Exists", &["b"]),
            at_selector,
        ),
        (
            "an invalid key",
            expression("a b", "Exists", &[]),
            at_selector,
        ),
        (
            "an invalid value",
            selector(&json!({"matchLabels": {"a": "-b"}})),
            at_selector,
        ),
        (
            "a copy name that is no DNS name",
            named("Pull_Secret"),
            &["spec.targets[0].copyName"],
        ),
        (
            "a copy name with a slash",
            named("a/b"),
            &["spec.targets[0].copyName"],
        ),
        (
            "a copy name too long",
            named(&"a".repeat(254)),
            &["spec.targets[0].copyName"],
        ),
        (
            "a copy name that becomes too long",
            named(&format!("{}-$(source.name)", "a".repeat(250))),
            &["spec.targets[0].copyName"],
        ),
        (
            "an unknown variable of the source",
            named("$(source.uid)"),
            &["spec.targets[0].copyName", "$(source.uid)"],
        ),
        (
            "an unknown variable of the namespace",
            named("$(namespace.uid)"),
            &["spec.targets[0].copyName", "$(namespace.uid)"],
        ),
        (
            "a label without quotes",
            named("$(namespace.labels[team])"),
            &["spec.targets[0].copyName", "labels[team]"],
        ),
        (
            "a label with an odd key",
            named("$(namespace.labels['a b'])"),
            &["spec.targets[0].copyName", "the label's key"],
        ),
        (
            "a name that no value makes right",
            named("-$(namespace.name)"),
            &["spec.targets[0].copyName", "is not a valid DNS name"],
        ),
        (
            "one copy name for several sources",
            json!({
                "sources": [source("v1", "Secret", "a"), source("v1", "Secret", "b")],
                "targets": [{"namespaces": ["team-*"], "copyName": "same"}],
            }),
            &["spec.targets", "$(source.name)"],
        ),
    ]
}

fn bad_transforms() -> Vec<Case> {
    let annotations: serde_json::Map<String, Value> = (0..64)
        .map(|n| (format!("example.com/{n}"), json!("x".repeat(4096))))
        .collect();
    vec![
        (
            "a label key",
            set("labels", "a b", "c"),
            &["spec.transform.labels.set"],
        ),
        (
            "a label value",
            set("labels", "a", "b c"),
            &["spec.transform.labels.set[a]", "is not a valid label value"],
        ),
        (
            "a variable in a label",
            set("labels", "a", "$(source.uid)"),
            &["spec.transform.labels.set[a]", "$(source.uid)"],
        ),
        (
            "a label that no value makes right",
            set("labels", "a", "$(namespace.name)-"),
            &["spec.transform.labels.set[a]", "is not a valid label value"],
        ),
        (
            "a variable in an annotation",
            set("annotations", "a", "$(namespace.labels['a)'])"),
            &["spec.transform.annotations.set[a]", "there is no variable"],
        ),
        (
            "an annotation key",
            set("annotations", "a b", "c"),
            &["spec.transform.annotations.set"],
        ),
        (
            "annotations over the limit",
            transform(&json!({"annotations": {"set": annotations}})),
            &["spec.transform.annotations"],
        ),
        (
            "a glob of keys",
            transform(&json!({"labels": {"include": ["a b"]}})),
            &["spec.transform.labels.include[0]", "as in example.com/*"],
        ),
        (
            "our label",
            set("labels", "app.kubernetes.io/managed-by", "x"),
            &["spec.transform.labels.set", "is reserved for Mimeo"],
        ),
        (
            "a label of ours",
            set("labels", "mimeo.dev/copies", "x"),
            &["spec.transform.labels.set", "is reserved for Mimeo"],
        ),
        (
            "an annotation of ours",
            set("annotations", "mimeo.dev/rule", "x"),
            &["spec.transform.annotations.set", "is reserved for Mimeo"],
        ),
        (
            "a finalizer without a domain",
            transform(&json!({"finalizers": ["held"]})),
            &["spec.transform.finalizers[0]", "as in example.com/cleanup"],
        ),
        (
            "a finalizer of ours",
            transform(&json!({"finalizers": ["mimeo.dev/held"]})),
            &["spec.transform.finalizers[0]"],
        ),
        (
            "a finalizer with a blank",
            transform(&json!({"finalizers": ["example.com/a b"]})),
            &["spec.transform.finalizers[0]"],
        ),
        (
            "an operation that there isn't",
            patch("merge", "/data/a"),
            &["spec.transform.jsonPatch[0].op"],
        ),
        (
            "a patch of the whole",
            patch("remove", ""),
            &["spec.transform.jsonPatch[0].path"],
        ),
        (
            "a patch of the kind",
            patch("remove", "/kind"),
            &["spec.transform.jsonPatch[0].path", "kind"],
        ),
        (
            "a patch of the name",
            patch("remove", "/metadata/name"),
            &["spec.transform.jsonPatch[0].path", "one label"],
        ),
        (
            "a patch of all labels",
            patch("remove", "/metadata/labels"),
            &["spec.transform.jsonPatch[0].path"],
        ),
        (
            "a patch of a mark",
            patch("remove", "/metadata/labels/mimeo.dev~1cluster-replication"),
            &["spec.transform.jsonPatch[0].path", "is reserved for Mimeo"],
        ),
        (
            "a patch of the type",
            patch("remove", "/type"),
            &["spec.transform.jsonPatch[0].path", "transform.type"],
        ),
        (
            "a patch without its value",
            patch("add", "/data/a"),
            &["spec.transform.jsonPatch[0].value"],
        ),
        (
            "a patch without its origin",
            patch("move", "/data/a"),
            &["spec.transform.jsonPatch[0].from"],
        ),
        (
            "too many operations",
            transform(&json!({"jsonPatch": vec![json!({"op": "remove", "path": "/data/a"}); 33]})),
            &["spec.transform.jsonPatch"],
        ),
        (
            "an unknown variable in a patch",
            transform(
                &json!({"jsonPatch": [{"op": "add", "path": "/data/a", "value": {"b": ["$(source.uid)"]}}]}),
            ),
            &["spec.transform.jsonPatch[0].value", "$(source.uid)"],
        ),
        (
            "a value that is not base64 in a patch",
            transform(&json!({"jsonPatch": [{"op": "add", "path": "/data/a", "value": "text!"}]})),
            &["spec.transform.jsonPatch[0].value", "must be base64"],
        ),
        (
            "an empty type",
            transform(&json!({"type": ""})),
            &["spec.transform.type"],
        ),
        (
            "an invalid type",
            transform(&json!({"type": "a b"})),
            &["spec.transform.type"],
        ),
        (
            "a type for a ConfigMap",
            json!({"sources": [source("v1", "ConfigMap", "a")], "transform": {"type": "Opaque"}}),
            &["spec.transform.type", "only for Secrets"],
        ),
        (
            "a type for a ConfigMap among Secrets",
            json!({"sources": [source("v1", "Secret", "a"), source("v1", "ConfigMap", "b")], "transform": {"type": "Opaque"}}),
            &["spec.transform.type", "only for Secrets"],
        ),
    ]
}

fn bad_choices() -> Vec<Case> {
    const NEEDS_REPLACE: &str = "driftPolicy Deny needs strategy Replace";
    vec![
        (
            "a strategy",
            json!({"strategy": "Merge"}),
            &["spec.strategy"],
        ),
        (
            "verifying all the time",
            json!({"resyncSeconds": 9}),
            &["spec.resyncSeconds", "at least 10"],
        ),
        (
            "a negative period",
            json!({"resyncSeconds": -1}),
            &["spec.resyncSeconds"],
        ),
        (
            "verifying what is the namespace's",
            json!({"strategy": "CreateOnce", "resyncSeconds": 60}),
            &["spec.resyncSeconds", "Mimeo never updates a copy"],
        ),
        (
            "a retention of what always stays",
            json!({"strategy": "CreateOnce", "retentionPolicy": {"whenUnmatched": "Retain"}}),
            &["spec.retentionPolicy", "copies always stay"],
        ),
        (
            "a guard of what is the namespace's",
            json!({"strategy": "CreateOnce", "driftPolicy": "Deny"}),
            &["spec.driftPolicy", NEEDS_REPLACE],
        ),
        (
            "a guard of what others may add to",
            json!({"driftPolicy": "Deny"}),
            &["spec.driftPolicy", NEEDS_REPLACE],
        ),
        (
            "a conflict policy",
            json!({"conflictPolicy": "Steal"}),
            &["spec.conflictPolicy"],
        ),
        (
            "a pod gate",
            json!({"podGate": "Sometimes"}),
            &["spec.podGate"],
        ),
        (
            "a retention",
            json!({"retentionPolicy": {"whenUnmatched": "Keep"}}),
            &["spec.retentionPolicy.whenUnmatched"],
        ),
        (
            "a negative grace",
            json!({"retentionPolicy": {"sourceGracePeriodSeconds": -1}}),
            &["spec.retentionPolicy.sourceGracePeriodSeconds"],
        ),
        (
            "a grace over a day",
            json!({"retentionPolicy": {"sourceGracePeriodSeconds": 86401}}),
            &["spec.retentionPolicy.sourceGracePeriodSeconds"],
        ),
        (
            "suspend that is no boolean",
            json!({"suspend": "yes"}),
            &["spec.suspend"],
        ),
    ]
}

/// The schema of the CRD cannot express these checks.
const BY_THE_WEBHOOK: &[&str] = &[
    "a cluster-scoped kind",
    "a cluster-scoped kind of a group, behind a good one",
    "a kind of Mimeo's own",
    "a source twice",
    "two sources of one name",
    "an inline object of a cluster-scoped kind",
    "an inline object of Mimeo's own kinds",
    "a variable in an inline object's name",
    "another namespace",
    "owner references",
    "finalizers",
    "a status",
    "a variable that there isn't",
    "an inline object's namespace in a name",
    "an inline object twice",
    "a pattern of a class within a class",
    "a pattern of a part of a class",
    "a pattern of a word's edge",
    "a pattern of an odd count",
    "a pattern of an odd range",
    "a pattern with flags",
    "a pattern too large to run",
    "In without values",
    "Exists with values",
    "an invalid key",
    "an invalid value",
    "a copy name that is no DNS name",
    "a copy name with a slash",
    "a copy name too long",
    "a copy name that becomes too long",
    "an unknown variable of the source",
    "an unknown variable of the namespace",
    "a label without quotes",
    "a label with an odd key",
    "a name that no value makes right",
    "a label key",
    "a label value",
    "a variable in a label",
    "a label that no value makes right",
    "a variable in an annotation",
    "an annotation key",
    "annotations over the limit",
    "our label",
    "a label of ours",
    "an annotation of ours",
    "a finalizer of ours",
    "a patch of the kind",
    "a patch of the name",
    "a patch of all labels",
    "a patch of a mark",
    "a patch of the type",
    "a patch without its value",
    "a patch without its origin",
    "an unknown variable in a patch",
    "a value that is not base64 in a patch",
    "an invalid type",
];

#[tokio::test]
async fn most_bad_rules_are_refused_by_their_definition_too() -> Result<()> {
    let good = rule("good")
        .to_label("scene", "a")
        .secret("platform", "registry");
    let cases = [
        bad_sources(),
        bad_objects(),
        bad_targets(),
        bad_transforms(),
        bad_choices(),
    ]
    .concat();
    let passed = passes_schemas(
        "ClusterReplication",
        "clusterreplications",
        &good.spec,
        cases,
    )
    .await?;
    assert_eq!(passed, BY_THE_WEBHOOK);
    Ok(())
}

#[tokio::test]
async fn a_bad_rule_is_refused_with_its_field_and_changes_nothing() -> Result<()> {
    let scene = STAGE.scene("bad").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let good = good(&scene, &scene.tag);
    good.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let before = version(&scene.secrets(&namespace).get("registry").await?);

    let rules: Api<ClusterReplication> = Api::all(scene.client.clone());
    let mut wrong = Vec::new();
    for (what, change, words) in [
        bad_sources(),
        bad_objects(),
        bad_targets(),
        bad_transforms(),
        bad_choices(),
    ]
    .concat()
    {
        let name = unique(&scene.tag);
        let bad = RuleSpec {
            name: name.clone(),
            spec: changed(&good.spec, &change)?,
        };
        wrong.extend(misjudged(
            what,
            create(&scene.client, "clusterreplications", &bad.object()).await,
            words,
        ));
        if rules.get_opt(&name).await?.is_some() {
            wrong.push(format!("{what}: it is stored"));
            delete(&rules, &name).await?;
        }
        let bad = RuleSpec {
            name: good.name.clone(),
            ..bad
        };
        let update = bad
            .replace(&scene.client)
            .await
            .map_err(anyhow::Error::downcast::<kube::Error>);
        match update {
            Ok(()) => wrong.push(format!("{what}: accepted as an update")),
            Err(Ok(error)) => wrong.extend(misjudged::<()>(
                &format!("{what}, as an update"),
                Err(error),
                words,
            )),
            Err(Err(error)) => return Err(error),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let stored = rules.get(&scene.tag).await?;
    assert_eq!(stored.metadata.generation, Some(1));
    assert_eq!(
        version(&scene.secrets(&namespace).get("registry").await?),
        before
    );
    Ok(())
}

/// Of these, the checks that need the cluster, to know which kinds are namespaced. Such a rule
/// fails at the check of its author, who is unknown here.
const BY_THE_CLUSTER: [&str; 3] = [
    "a cluster-scoped kind",
    "a cluster-scoped kind of a group, behind a good one",
    "an inline object of a cluster-scoped kind",
];

/// Each of these rules was stored without the webhook. The reconciler refuses it in the same words,
/// and it has no effect. A webhook that starts later changes nothing about it.
#[tokio::test]
async fn what_only_the_webhook_refuses_is_told_by_the_reconciler_once_it_is_stored() -> Result<()> {
    let control_plane = ControlPlane::builder()
        .controller_manager(false)
        .audit(true);
    let mut setting = Setting::start(control_plane, Pair::builder().webhooks(0)).await?;
    let client = setting.control_plane.client().await?;
    let (tag, home, stored) = {
        let scene = setting.scene("stored").await?;
        let namespace = scene.namespace().await?;
        scene.secret("registry", &[("token", "one")]).await?;
        let (good, mark) = (
            good(&scene, &scene.tag),
            setting.control_plane.audit_mark().await?,
        );
        let mut stored = Vec::new();
        for case in [
            bad_sources(),
            bad_objects(),
            bad_targets(),
            bad_transforms(),
            bad_choices(),
        ]
        .concat()
        {
            if BY_THE_WEBHOOK.contains(&case.0) {
                let bad = RuleSpec {
                    name: unique(&scene.tag),
                    spec: changed(&good.spec, &case.1)?,
                };
                bad.create(&client).await.context(case.0)?;
                stored.push((bad.name, case));
            }
        }
        assert_eq!(stored.len(), BY_THE_WEBHOOK.len());
        all_are_told(&client, &stored).await?;
        scene.assert_unwritten(&namespace, &mark).await?;
        // The reconciler does not repeat a status that it has written.
        let writes = setting.control_plane.audit_since(&mark).await?;
        let writes = writes
            .iter()
            .filter(|one| one.is_write() && one.resource == "clusterreplications");
        let statuses = writes.filter(|one| setting.is_ours(one)).count();
        assert!(
            (stored.len()..=2 * stored.len()).contains(&statuses),
            "{statuses} for {}",
            stored.len()
        );
        (scene.tag.clone(), scene.home.clone(), stored)
    };
    setting.pair.start_webhook().await?;
    let scene = Scene {
        setting: &setting,
        client: client.clone(),
        tag,
        home,
    };
    let good = good(&scene, &scene.tag).named("pace");
    good.create(&client).await?;
    scene
        .wait_condition(&good.name, "PodGateActive", "True", "Active")
        .await?;
    let new = scene.namespace().await?;
    stubbornly(|| async {
        of::<Pod>(&client, &new)
            .create(&PostParams::default(), &pod("first"))
            .await
    })
    .await?;
    // The pod waits at most for a time budget, which may be too short for a busy machine.
    scene.wait_secret(&new, "pace", |_| true).await?;
    let secrets = scene.secrets(&new).list(&ListParams::default()).await?;
    let names: Vec<_> = secrets
        .items
        .iter()
        .filter_map(|secret| secret.metadata.name.as_deref())
        .collect();
    assert_eq!(names, ["pace"]);
    assert_eq!(
        of::<ConfigMap>(&client, &new)
            .list(&ListParams::default())
            .await?
            .items,
        []
    );
    all_are_told(&client, &stored).await?;
    let log = setting.log();
    assert!(!log.contains("panicked"), "{log}");
    Ok(())
}

/// Waits until each status reports the error, in the words of its refusal.
async fn all_are_told(client: &Client, stored: &[(String, Case)]) -> Result<()> {
    for (name, (what, _, words)) in stored {
        // The first source of this rule is missing. The status reports that first.
        if what.ends_with("behind a good one") && BY_THE_CLUSTER.contains(what) {
            wait_condition(client, name, ["SourcesFound", "False", "SourceNotFound"])
                .await
                .context(*what)?;
            continue;
        }
        if BY_THE_CLUSTER.contains(what) {
            let status = wait_condition(client, name, ["SourcesFound", "False", "SourceRefused"])
                .await
                .context(*what)?;
            assert_reason(
                &status,
                "SourcesFound",
                "False",
                "SourceRefused",
                "cluster-scoped",
            )
            .context(*what)?;
            continue;
        }
        for (type_, is) in [("Ready", "False"), ("Stalled", "True")] {
            let status = wait_condition(client, name, [type_, is, "InvalidSpec"])
                .await
                .context(*what)?;
            for word in *words {
                assert_reason(&status, type_, is, "InvalidSpec", word).context(*what)?;
            }
        }
    }
    Ok(())
}

/// The kind was namespaced when the rule was written, and later is not. Mimeo repeats the checks
/// that need the cluster, too.
#[tokio::test]
async fn a_kind_that_leaves_the_namespaces_is_told_in_the_status() -> Result<()> {
    let scene = STAGE.scene("leaves").await?;
    scene.namespace().await?;
    let group = format!("{}.example.com", scene.tag);
    let definition = |scope: &str| -> Result<CustomResourceDefinition> {
        Ok(serde_json::from_value(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("gadgets.{group}")},
            "spec": {
                "group": group, "scope": scope, "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
            },
        }))?)
    };
    let version = format!("{group}/v1");
    mimeo_tests::install_crd(&scene.client, &definition("Namespaced")?).await?;
    let metadata = json!({"namespace": scene.home, "name": "one"});
    apply(
        &scene.client,
        &json!({"apiVersion": version, "kind": "Gadget", "metadata": metadata}),
    )
    .await?;
    let named = scene.rule().source(&version, "Gadget", &scene.home, "one");
    let object = json!({"apiVersion": version, "kind": "Gadget", "metadata": {"name": "two"}});
    let inline = RuleSpec {
        name: format!("{}-inline", scene.tag),
        ..scene.rule()
    }
    .inline(&object);
    for rule in [&named, &inline] {
        eventually(SOON, "the kind to be known", || async {
            Ok(Some(rule.create(&scene.client).await?))
        })
        .await?;
        scene.wait_synced(&rule.name).await?;
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(scene.client.clone());
    delete(&definitions, &format!("gadgets.{group}")).await?;
    wait_gone(definitions, &format!("gadgets.{group}")).await?;
    mimeo_tests::install_crd(&scene.client, &definition("Cluster")?).await?;
    for rule in [&named, &inline] {
        let status = scene
            .wait_condition(&rule.name, "SourcesFound", "False", "SourceRefused")
            .await?;
        assert_reason(
            &status,
            "SourcesFound",
            "False",
            "SourceRefused",
            "cluster-scoped",
        )?;
    }
    Ok(())
}

#[tokio::test]
async fn a_field_that_is_yet_to_come_is_not_taken_silently() -> Result<()> {
    let scene = STAGE.scene("strict").await?;
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().display().to_string();
    let good = good(&scene, &scene.tag);
    for (field, value) in [
        ("transform", json!({"jsonMerge": {}})),
        ("clusters", json!(["east"])),
    ] {
        std::fs::write(
            file.path(),
            good.clone().set(field, value).object().to_string(),
        )?;
        let answer = kubectl(&scene.setting.control_plane, ["create", "-f", &path]);
        let refusal = format!("{:#}", answer.expect_err("an unknown field"));
        assert!(
            refusal.contains("unknown field") && refusal.contains(field),
            "{refusal}"
        );
    }
    // A source of a future version of the API lacks all the fields that a source must have.
    let inline = good.clone().set(
        "sources",
        json!([{"inline": {"apiVersion": "v1", "kind": "ConfigMap"}}]),
    );
    let answer = create(&scene.client, "clusterreplications", &inline.object()).await;
    assert_eq!(misjudged("inline", answer, &["spec.sources[0]"]), None);
    Ok(())
}

/// The names of fields before the first release. kubectl asks the API server to refuse unknown
/// fields. For other clients, the API server drops them with a warning.
#[tokio::test]
async fn a_former_name_of_a_field_is_refused_with_its_path() -> Result<()> {
    let scene = STAGE.scene("former").await?;
    let rule =
        |field: &str, value: &Value| good(&scene, &scene.tag).set(field, value.clone()).object();
    let targets = |targets: Value| rule("targets", &json!([targets]));
    let grant = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant", "metadata": {"name": "former", "namespace": scene.home},
        "spec": {"from": [{"namespaces": ["a"]}], "to": [{"apiVersion": "v1", "kind": "Secret"}]},
    });
    for (object, strict, lenient) in [
        (
            targets(json!({"namespaces": ["a"], "name": "b"})),
            vec!["unknown field \"spec.targets[0].name\""],
            "Warning: unknown field \"spec.targets[0].name\"",
        ),
        (
            targets(json!({"namespaces": ["a*"], "exclude": {"namespaces": ["ab"]}})),
            vec!["unknown field \"spec.targets[0].exclude\""],
            "Warning: unknown field \"spec.targets[0].exclude\"",
        ),
        (
            rule("barrier", &json!("Required")),
            vec!["unknown field \"spec.barrier\""],
            "Warning: unknown field \"spec.barrier\"",
        ),
        (
            rule("conflictPolicy", &json!("Fail")),
            vec!["spec.conflictPolicy", "\"Fail\"", "\"Report\""],
            "spec.conflictPolicy: Unsupported value: \"Fail\"",
        ),
        (
            grant,
            vec!["unknown field \"spec.from\"", "unknown field \"spec.to\""],
            "spec.grantees: Required value",
        ),
    ] {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), object.to_string())?;
        let path = file.path().display().to_string();
        let control_plane = &scene.setting.control_plane;
        let refused = kubectl(control_plane, ["apply", "-f", &path])
            .err()
            .with_context(|| format!("accepted: {object}"))?;
        let refused = format!("{refused:#}");
        assert!(
            strict.iter().all(|word| refused.contains(word)),
            "{refused}"
        );
        let dry_run = ["apply", "--dry-run=server", "--validate=warn", "-f", &path];
        let told = kubectl(control_plane, dry_run).unwrap_or_else(|refused| format!("{refused:#}"));
        assert!(told.contains(lenient), "{told}");
    }
    Ok(())
}

#[tokio::test]
async fn a_bad_policy_is_refused_with_its_field_and_not_stored() -> Result<()> {
    let scene = STAGE.scene("bad-policy").await?;
    let secrets = json!([{"apiVersion": "v1", "kind": "Secret"}]);
    let kind = |api_version: &str, kind: &str| {
        let labels = json!({"labels": {"set": {"a": "b"}}});
        json!({"/match/kinds": [{"apiVersion": api_version, "kind": kind}], "/transform": labels})
    };
    let cases: Vec<Case> = vec![
        (
            "no kinds",
            json!({"/match/kinds": []}),
            &["spec.match.kinds"],
        ),
        (
            "too many kinds",
            json!({"/match/kinds": vec![secrets[0].clone(); 9]}),
            &["spec.match.kinds"],
        ),
        (
            "kind Namespace",
            kind("v1", "Namespace"),
            &["spec.match.kinds[0]", "never rewritten"],
        ),
        (
            "a cluster-scoped kind",
            kind("v1", "Node"),
            &["spec.match.kinds[0]", "cluster-scoped"],
        ),
        (
            "Mimeo's own kind",
            kind("mimeo.dev/v1alpha1", "TransformPolicy"),
            &["spec.match.kinds[0]"],
        ),
        (
            "no object selector",
            json!({"/match/objectSelector": {}}),
            &["spec.match.objectSelector", "empty"],
        ),
        (
            "an invalid object selector",
            json!({"/match/objectSelector": {"matchLabels": {"a b": "c"}}}),
            &["spec.match.objectSelector"],
        ),
        (
            "an invalid namespace selector",
            json!({"/match/namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            &["spec.match.namespaceSelector"],
        ),
        (
            "an excluded glob",
            json!({"/match/excludeNamespaces": ["team-*"]}),
            &["spec.match.excludeNamespaces[0]"],
        ),
        (
            "no transform",
            json!({"/transform": {}}),
            &["spec.transform"],
        ),
        (
            "an invalid type",
            json!({"/transform": {"type": "a b"}}),
            &["spec.transform.type"],
        ),
        (
            "the type of service account tokens",
            json!({"/transform": {"type": "kubernetes.io/service-account-token"}}),
            &["spec.transform.type", "service account tokens"],
        ),
        (
            "the type of Helm's releases",
            json!({"/transform": {"type": "helm.sh/release.v1"}}),
            &["spec.transform.type", "Helm releases"],
        ),
        (
            "a type for ConfigMaps",
            json!({"/match/kinds": [{"apiVersion": "v1", "kind": "ConfigMap"}]}),
            &["spec.transform.type", "only for Secrets"],
        ),
        (
            "an invalid label",
            json!({"/transform/labels": {"set": {"a b": "c"}}}),
            &["spec.transform.labels.set"],
        ),
        (
            "a mark of ours",
            json!({"/transform/labels": {"set": {"mimeo.dev/copies": "c"}}}),
            &["spec.transform.labels.set"],
        ),
        (
            "a variable of a source",
            json!({"/transform/annotations": {"set": {"a": "$(source.name)"}}}),
            &[
                "spec.transform.annotations.set[a]",
                "a TransformPolicy has only the variable",
            ],
        ),
        (
            "a variable of the namespace's labels",
            json!({"/transform/annotations": {"set": {"a": "$(namespace.labels['b'])"}}}),
            &[
                "spec.transform.annotations.set[a]",
                "a TransformPolicy has only the variable",
            ],
        ),
        (
            "an invalid finalizer",
            json!({"/transform/finalizers": ["held"]}),
            &["spec.transform.finalizers[0]"],
        ),
        (
            "a failure policy",
            json!({"/failurePolicy": "Maybe"}),
            &["spec.failurePolicy"],
        ),
    ];
    let policies: Api<TransformPolicy> = Api::all(scene.client.clone());
    let mut wrong = Vec::new();
    for (what, change, words) in cases {
        let name = unique(&scene.tag);
        let matched =
            json!({"kinds": secrets, "objectSelector": {"matchLabels": {"scene": scene.tag}}});
        let spec = changed(
            &json!({"match": matched, "transform": {"type": "example.com/login"}}),
            &change,
        )?;
        let metadata = json!({"name": name});
        let policy = json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": metadata, "spec": spec});
        wrong.extend(misjudged(
            what,
            create(&scene.client, "transformpolicies", &policy).await,
            words,
        ));
        if policies.get_opt(&name).await?.is_some() {
            wrong.push(format!("{what}: it is stored"));
            delete(&policies, &name).await?;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

#[tokio::test]
async fn a_rule_for_every_namespace_is_accepted_with_a_warning_that_counts_them() -> Result<()> {
    // This test has its own cluster, so that no other test creates namespaces meanwhile.
    let setting = Setting::start(
        ControlPlane::builder().controller_manager(false),
        Pair::builder(),
    )
    .await?;
    let scene = setting.scene("every").await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene.namespaces(2).await?;
    let all = Api::<Namespace>::all(scene.client.clone())
        .list(&ListParams::default())
        .await?
        .items;
    let names = all
        .iter()
        .filter_map(|namespace| namespace.metadata.name.as_deref());
    let reached = names.filter(|name| !name.starts_with("kube-")).count();
    let sentence = |target: usize| {
        let count = format!("the rule selects {reached} of {} namespaces", all.len());
        let system =
            "kube-system, kube-public and kube-node-lease are left out unless a target names them";
        format!(
            "Warning: Mimeo: spec.targets[{target}].namespaceSelector is empty: {count}; {system}"
        )
    };
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().display().to_string();
    let told = |targets: Value, dry_run: bool| {
        let rule = rule(&scene.tag)
            .secret(&scene.home, "registry")
            .set("targets", targets);
        std::fs::write(file.path(), rule.object().to_string())?;
        let args = ["apply", "-f", &path]
            .into_iter()
            .chain(dry_run.then_some("--dry-run=server"));
        let told = kubectl(&setting.control_plane, args)?;
        anyhow::Ok(
            told.lines()
                .filter(|line| line.starts_with("Warning:"))
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    };
    let (named, every) = (
        json!({"namespaces": ["default"]}),
        json!({"namespaceSelector": {}}),
    );
    eventually(SOON, "the webhook to see the namespaces", || async {
        let told = told(json!([every]), true)?;
        if told == [sentence(0)] {
            Ok(Some(()))
        } else {
            bail!("{told:#?}")
        }
    })
    .await?;
    assert_eq!(
        told(json!([named, every]), true)?,
        [sentence(1)],
        "it says which"
    );
    // An author who selects all namespaces by a common label or by a pattern does so on purpose.
    // The warning then has only the count.
    let pattern = json!({"namespacePattern": ".*"});
    let word = json!({"namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "Exists"}]}});
    for (target, count) in [(&named, 1), (&pattern, reached), (&word, reached)] {
        let counts = format!(
            "Warning: Mimeo: the rule selects {count} of {} namespaces",
            all.len()
        );
        assert_eq!(told(json!([target]), true)?, [counts], "{target}");
    }
    let rules: Api<ClusterReplication> = Api::all(scene.client.clone());
    assert!(
        rules.get_opt(&scene.tag).await?.is_none(),
        "a dry run stores nothing"
    );
    let one = format!(
        "Warning: Mimeo: the rule selects 1 of {} namespaces",
        all.len()
    );
    assert_eq!(told(json!([named]), false)?, [one]);
    assert_eq!(told(json!([every]), false)?, [sentence(0)]);
    Ok(())
}

// ---- accepted, and reported in the status ----

#[tokio::test]
async fn a_missing_source_is_told_until_it_is_there() -> Result<()> {
    let scene = STAGE.scene("missing").await?;
    let namespace = scene.namespace().await?;
    good(&scene, &scene.tag).create(&scene.client).await?;
    let status = scene
        .wait_condition(&scene.tag, "Ready", "False", "SourceNotFound")
        .await?;
    assert_reason(
        &status,
        "SourcesFound",
        "False",
        "SourceNotFound",
        &scene.home,
    )?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene.wait_synced(&scene.tag).await?;
    scene.secrets(&namespace).get("registry").await?;
    Ok(())
}

#[tokio::test]
async fn a_kind_that_is_not_served_is_told_until_it_is() -> Result<()> {
    let scene = STAGE.scene("unserved").await?;
    scene.namespace().await?;
    let group = format!("{}.example.com", scene.tag);
    scene
        .rule()
        .source(&format!("{group}/v1"), "Gadget", &scene.home, "one")
        .create(&scene.client)
        .await?;
    let status = scene
        .wait_condition(&scene.tag, "Ready", "False", "KindNotServed")
        .await?;
    assert_reason(&status, "SourcesFound", "False", "KindNotServed", "Gadget")?;
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("gadgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    mimeo_tests::install_crd(&scene.client, &serde_json::from_value(crd)?).await?;
    scene
        .wait_condition(&scene.tag, "SourcesFound", "False", "SourceNotFound")
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_rule_that_matches_nothing_is_ready() -> Result<()> {
    let scene = STAGE.scene("nothing").await?;
    scene.secret("registry", &[("token", "one")]).await?;
    good(&scene, &scene.tag).create(&scene.client).await?;
    scene
        .wait_condition(&scene.tag, "Ready", "True", "NoNamespaceMatches")
        .await?;
    scene.wait_counts(&scene.tag, [0, 0, 0]).await?;
    Ok(())
}

#[tokio::test]
async fn the_sources_own_cell_is_left_out() -> Result<()> {
    let scene = STAGE.scene("own").await?;
    let namespace = scene.namespace().await?;
    let source = scene.secret("registry", &[("token", "one")]).await?;
    relabel(&scene.client, &scene.home, "scene", Some(&scene.tag)).await?;
    good(&scene, &scene.tag).create(&scene.client).await?;
    scene.wait_counts(&scene.tag, [1, 1, 0]).await?;
    scene.secrets(&namespace).get("registry").await?;
    assert_eq!(
        version(&scene.secrets(&scene.home).get("registry").await?),
        version(&source)
    );

    // In the namespace of its source, a copy under another name is an ordinary copy.
    good(&scene, &scene.tag)
        .named("second")
        .replace(&scene.client)
        .await?;
    scene
        .wait_secret(&scene.home, "second", |copy| {
            value(copy, "token").as_deref() == Some("one")
        })
        .await?;
    assert_eq!(
        version(&scene.secrets(&scene.home).get("registry").await?),
        version(&source)
    );
    Ok(())
}

#[tokio::test]
async fn secrets_that_belong_to_one_namespace_are_refused_unless_their_type_is_changed()
-> Result<()> {
    let scene = STAGE.scene("belong").await?;
    let namespace = scene.namespace().await?;
    let token = json!({"type": "kubernetes.io/service-account-token",
        "metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": "default"}}});
    let release =
        json!({"type": "helm.sh/release.v1", "metadata": {"name": "sh.helm.release.v1.shop.v1"}});
    for (source, changed) in [
        (token, "example.com/token"),
        (release, "example.com/release"),
    ] {
        let mut source: Secret = serde_json::from_value(source)?;
        source.data = Some([("all".to_owned(), k8s_openapi::ByteString(b"one".to_vec()))].into());
        let name = source.metadata.name.clone().unwrap_or_default();
        scene
            .secrets(&scene.home)
            .create(&PostParams::default(), &source)
            .await?;
        let refused = rule(&unique(&scene.tag))
            .to_label("scene", &scene.tag)
            .secret(&scene.home, &name);
        refused.create(&scene.client).await?;
        let status = scene
            .wait_condition(&refused.name, "SourcesFound", "False", "SourceRefused")
            .await?;
        assert_reason(&status, "SourcesFound", "False", "SourceRefused", &name)?;
        assert!(scene.secrets(&namespace).get_opt(&name).await?.is_none());

        refused
            .set("transform", json!({"type": changed}))
            .replace(&scene.client)
            .await?;
        let copy = scene.wait_secret(&namespace, &name, |_| true).await?;
        assert_eq!(
            (copy.type_.as_deref(), value(&copy, "all").as_deref()),
            (Some(changed), Some("one"))
        );
    }
    Ok(())
}

#[tokio::test]
async fn of_two_rules_for_one_cell_the_older_has_it_and_the_other_says_so() -> Result<()> {
    let scene = STAGE.scene("two").await?;
    let namespace = scene.namespace().await?;
    // The younger rule's name sorts first. The age decides, not the name.
    let [oldest, older, younger] = ["zz", "z", "a"].map(|name| {
        rule(&format!("{}-{name}", scene.tag))
            .to_label("scene", &scene.tag)
            .secret(&scene.home, name)
            .named("shared")
    });
    let elsewhere = oldest.clone().set(
        "targets",
        json!([{"namespaces": [scene.tag], "copyName": "shared"}]),
    );
    for (rule, name) in [(&elsewhere, "zz"), (&older, "z"), (&younger, "a")] {
        scene.secret(name, &[("from", name)]).await?;
        rule.create(&scene.client).await?;
        // Creation times have whole seconds.
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    }
    let status = scene
        .wait_condition(&younger.name, "Ready", "False", "CopiesFailed")
        .await?;
    let failure = status.failures.first().context("no failure")?;
    assert_eq!(
        (failure.reason.as_str(), failure.namespace.as_str()),
        ("RuleConflict", namespace.as_str())
    );
    assert!(failure.message.contains(&older.name), "{failure:?}");
    scene.wait_synced(&older.name).await?;
    let before = scene.secrets(&namespace).get("shared").await?;
    assert_eq!(value(&before, "from").as_deref(), Some("z"));

    older.delete(&scene.client).await?;
    scene.wait_synced(&younger.name).await?;
    let after = scene.secrets(&namespace).get("shared").await?;
    assert_eq!(
        (value(&after, "from").as_deref(), uid(&after)),
        (Some("a"), uid(&before)),
        "taken over in place"
    );
    let belongs = format!("ClusterReplication/{}", younger.name);
    assert_eq!(annotation(&after, "mimeo.dev/rule"), Some(belongs.as_str()));
    assert_eq!(
        label(&after, "mimeo.dev/cluster-replication"),
        Some(younger.name.as_str())
    );
    // The rule in the copy's annotation keeps the copy, although an older rule now wants it.
    oldest.replace(&scene.client).await?;
    scene
        .wait_condition(&oldest.name, "Ready", "False", "CopiesFailed")
        .await?;
    put(&scene.secrets(&scene.home), "a", &[("from", "a2")]).await?;
    scene
        .wait_secret(&namespace, "shared", |copy| {
            value(copy, "from").as_deref() == Some("a2")
        })
        .await?;
    Ok(())
}

#[track_caller]
fn assert_reason(
    status: &ClusterReplicationStatus,
    type_: &str,
    is: &str,
    reason: &str,
    about: &str,
) -> Result<()> {
    let found = condition(status, type_).context("no such condition")?;
    assert_eq!(
        (found.status.as_str(), found.reason.as_str()),
        (is, reason),
        "{status:#?}"
    );
    assert!(found.message.contains(about), "{}", found.message);
    Ok(())
}

// ---- bodies that no API server sends ----

const REVIEW: &str = "f3b1a6ce-0c6e-4c7e-9d0a-1b2c3d4e5f60";

/// Returns unreadable bodies, with the uid of the review that each of them names.
fn unreadable() -> [(&'static str, Vec<u8>, &'static str); 7] {
    let shapeless = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": REVIEW, "kind": 7}});
    let other = json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": REVIEW}});
    [
        ("nothing", Vec::new(), ""),
        ("no JSON", b"{hello".to_vec(), ""),
        ("no text", vec![0xff; 64], ""),
        ("no review", b"[1, 2]".to_vec(), ""),
        (
            "no request",
            br#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}"#.to_vec(),
            "",
        ),
        (
            "a request of another shape",
            shapeless.to_string().into_bytes(),
            REVIEW,
        ),
        ("another version", other.to_string().into_bytes(), REVIEW),
    ]
}

#[tokio::test]
async fn a_body_that_no_one_can_read_is_answered_with_a_review_that_says_why() -> Result<()> {
    let setting = STAGE.get().await?;
    let webhook = stranger(&setting.pair.url())?;
    for path in [
        "/mutate/namespaces",
        "/mutate/pods",
        "/mutate/rules",
        "/validate/rules",
        "/validate/copies",
    ] {
        for (what, body, uid) in unreadable() {
            let review = ask(&webhook, path, body)
                .await
                .with_context(|| format!("{path}: {what}"))?;
            let answer = &review["response"];
            assert_eq!(
                (&review["apiVersion"], &review["kind"]),
                (&json!("admission.k8s.io/v1"), &json!("AdmissionReview"))
            );
            assert_eq!(
                (&answer["uid"], &answer["allowed"]),
                (&json!(uid), &json!(false)),
                "{path}: {what}: {review}"
            );
            let why = answer["status"]["message"].as_str().unwrap_or_default();
            assert!(
                answer["status"]["code"] == 400
                    && why.starts_with("Mimeo: the webhook cannot read the review: "),
                "{path}: {what}: {review}"
            );
        }
    }
    for path in [
        "/mutate/pods",
        "/mutate/rules",
        "/validate/rules",
        "/validate/copies",
    ] {
        // The body is only a little too large, so that the answer is not lost with the unread rest.
        // The answer ends the connection, so each request has its own.
        let another = stranger(&setting.pair.url())?;
        let review = ask(&another, path, padded(REVIEW, LARGEST))
            .await
            .with_context(|| format!("{path}: too large"))?;
        let why = review["response"]["status"]["message"]
            .as_str()
            .unwrap_or_default();
        assert!(
            review["response"]["allowed"] == json!(false) && why.contains("MiB"),
            "{path}: too large: {review}"
        );
    }
    Ok(())
}

/// Any verdict of the webhook would be a refusal. Only an error leaves the choice to the failure
/// policy.
#[tokio::test]
async fn where_the_failure_policy_is_to_decide_the_answer_is_an_error() -> Result<()> {
    let setting = STAGE.get().await?;
    let webhook = stranger(&setting.pair.url())?;
    let failed = |answer: Result<Value>, code: u16, what: &str| match answer
        .map_err(anyhow::Error::downcast::<kube::Error>)
    {
        Err(Ok(kube::Error::Api(status))) if status.code == code => Ok(status.message),
        answer => bail!("{what}: {answer:?}"),
    };
    let path = "/mutate/objects/some";
    for (what, body, _) in unreadable() {
        let why = failed(
            ask(&webhook, path, body).await,
            500,
            &format!("{path}: {what}"),
        )?;
        assert!(
            why.contains("not an AdmissionReview"),
            "{path}: {what}: {why}"
        );
    }
    for path in ["/mutate/namespaces", path] {
        let another = stranger(&setting.pair.url())?;
        let why = failed(
            ask(&another, path, padded(REVIEW, LARGEST)).await,
            413,
            path,
        )?;
        assert!(why.contains("MiB"), "{path}: {why}");
    }
    Ok(())
}

/// The size of the largest review that an API server sends, in bytes.
const LARGEST: usize = 19 << 20;

#[tokio::test]
async fn the_largest_body_that_an_api_server_sends_is_read() -> Result<()> {
    let setting = STAGE.get().await?;
    let webhook = stranger(&setting.pair.url())?;
    let uid = "1c1f0a56-3f0e-4a39-8c1f-6d1b5a9e0c11";
    for path in [
        "/mutate/namespaces",
        "/mutate/pods",
        "/mutate/objects/some",
        "/validate/rules",
    ] {
        // On a busy machine, the webhook may not read the body in time. Then the test retries.
        eventually(SOON, path, || async {
            let review = ask(&webhook, path, padded(uid, LARGEST - (64 << 10))).await?;
            let answer = &review["response"];
            ensure!(
                answer["uid"] == json!(uid) && answer["allowed"] == json!(true),
                "{review}"
            );
            Ok(Some(()))
        })
        .await?;
    }
    Ok(())
}

/// Returns a review of about this size in bytes. It creates a ConfigMap, which every hook admits
/// unchanged.
fn padded(uid: &str, size: usize) -> Vec<u8> {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big", "namespace": "default"},
        "data": {"all": "x".repeat(size)}});
    let request = json!({
        "uid": uid, "operation": "CREATE", "name": "big", "namespace": "default", "dryRun": true,
        "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
        "userInfo": {"username": "robin", "groups": []}, "object": object,
    });
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    review.to_string().into_bytes()
}

/// # Errors
///
/// If the answer is not 200 with JSON. An API server would treat such an answer as a failed call.
async fn ask(webhook: &Client, path: &str, body: Vec<u8>) -> Result<Value> {
    let request = Request::post(format!("{path}?timeout=5s"))
        .header("content-type", "application/json")
        .body(body)?;
    let answer = webhook.request_text(request).await?;
    Ok(serde_json::from_str(&answer)?)
}
