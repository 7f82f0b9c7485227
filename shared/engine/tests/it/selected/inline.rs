//! Inline sources: the rule itself contains the object.

use mimeo_model::rule::Rule;
use serde_json::{Value, from_value, json};

use super::{condition, world::World};
use crate::common::uid;

/// A rule with that generation and these inline objects, for two namespaces.
fn parse(
    name: &str,
    generation: i64,
    objects: &[Value],
    more: &Value,
) -> Result<Rule, Vec<String>> {
    let sources: Vec<Value> = objects
        .iter()
        .map(|object| json!({"inline": object}))
        .collect();
    let mut rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
        "metadata": {"name": name, "generation": generation},
        "spec": {"sources": sources, "targets": [{"namespaces": ["one", "two"]}]},
    });
    rule["spec"]
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let parsed = Rule::parse(&from_value(rule).unwrap());
    parsed.map_err(|refusals| refusals.iter().map(ToString::to_string).collect())
}

fn rule(generation: i64, objects: &[Value]) -> Rule {
    parse("r", generation, objects, &json!({})).unwrap()
}

fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": value}})
}

fn world(rules: Vec<Rule>) -> World {
    let mut world = World::of("ConfigMap", "configmaps", rules);
    world.settle();
    world
}

fn replace(world: &mut World, rule: Rule) {
    world
        .engine
        .at(world.now)
        .rule_applied(rule.id.clone(), Ok(rule), None);
    let _ = world.engine.demand();
    world.settle();
}

#[test]
fn what_stands_in_a_rule_is_copied_and_follows_the_rule() {
    let text = "$(source.name) of $(namespace.name), $(other)";
    let mut world = world(vec![rule(1, &[map("a", text)])]);
    assert_eq!(world.copies(), ["one/a", "two/a"]);
    assert_eq!(
        world.copies["one/a"]["data"],
        json!({"k": "a of one, $(other)"})
    );
    assert_eq!(
        world.copies["two/a"]["metadata"]["annotations"]["mimeo.dev/source"],
        "inline/v1/ConfigMap/a"
    );
    let status = world.status();
    assert_eq!(condition(&status, "Ready").0, "True Synced");
    assert_eq!(condition(&status, "SourcesFound").0, "True Found");
    assert_eq!(status.source.as_deref(), Some("ConfigMap inline"));
    let source = &status.sources[0];
    assert_eq!(
        (
            source.namespace.as_deref(),
            &*source.name,
            source.resource_version.as_deref()
        ),
        (None, "a", None)
    );
    replace(&mut world, rule(2, &[map("a", text)]));
    assert_eq!(world.written, 2, "the same object is no change");
    replace(&mut world, rule(3, &[map("a", "other")]));
    assert_eq!(
        (world.written, &world.copies["two/a"]["data"]["k"]),
        (4, &json!("other")),
        "one write each"
    );
    world.restart(vec![rule(3, &[map("a", "other")])]);
    world.settle();
    world.wait(600);
    assert_eq!(
        (world.written, world.copies().len()),
        (4, 2),
        "nor is a restart"
    );
    assert!(
        world.confirmed.is_empty() && world.reads.is_empty(),
        "there is nothing to read"
    );
    assert!(world.engine.demand().sources.is_empty(), "nor to watch");
}

#[test]
fn one_that_is_taken_out_of_its_rule_takes_its_copies_along_once_the_others_are_there() {
    let mut world = world(vec![rule(1, &[map("a", "x")])]);
    replace(&mut world, rule(2, &[map("b", "x")]));
    assert_eq!(world.copies(), ["one/b", "two/b"]);
    // The same as with a named source: the rule has changed, and no source was deleted.
    let kept = json!({"retentionPolicy": {"whenUnmatched": "Retain"}});
    replace(&mut world, parse("r", 3, &[map("c", "x")], &kept).unwrap());
    assert_eq!(world.copies(), ["one/b", "one/c", "two/b", "two/c"]);
}

#[test]
fn what_stands_in_one_rule_is_no_source_of_another() {
    let other = json!({"targets": [{"namespaces": ["one"], "copyName": "$(source.name)-b"}]});
    let world = world(vec![
        rule(1, &[map("a", "1")]),
        parse("s", 1, &[map("a", "2")], &other).unwrap(),
    ]);
    let data: Vec<(&str, &Value)> = world
        .copies
        .iter()
        .map(|(key, copy)| (&**key, &copy["data"]["k"]))
        .collect();
    assert_eq!(
        data,
        [
            ("one/a", &json!("1")),
            ("one/a-b", &json!("2")),
            ("two/a", &json!("1"))
        ]
    );
}

#[test]
fn the_rule_says_how_copies_differ() {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"keep": "1", "drop": "2"},
        "metadata": {"name": "a", "labels": {"team": "a"}, "annotations": {"helm.sh/chart": "x", "mimeo.dev/source": "x", "n": "$(namespace.name)"}},
    });
    let add = json!([{"op": "add", "path": "/data/of", "value": "$(namespace.name)"}]);
    let transform = json!({"data": {"exclude": ["drop"]}, "labels": {"set": {"l": "$(source.name)-$(namespace.name)"}}, "jsonPatch": add});
    let world = world(vec![
        parse("r", 1, &[object], &json!({"transform": transform})).unwrap(),
    ]);
    let copy = &world.copies["one/a"];
    assert_eq!(copy["data"], json!({"keep": "1", "of": "one"}));
    let labels = &copy["metadata"]["labels"];
    assert_eq!(
        (&labels["team"], &labels["l"]),
        (&json!("a"), &json!("a-one"))
    );
    let annotations = &copy["metadata"]["annotations"];
    assert_eq!(
        (&annotations["n"], &annotations["helm.sh/chart"]),
        (&json!("one"), &Value::Null)
    );
    assert_eq!(annotations["mimeo.dev/source"], "inline/v1/ConfigMap/a");
}

#[test]
fn what_a_namespace_cannot_fill_in_is_missing_there_alone() {
    let mut world = world(vec![rule(1, &[map("a", "$(namespace.labels['team'])")])]);
    assert_eq!(world.copies(), [] as [&str; 0]);
    let status = world.status();
    let failed: Vec<&str> = status
        .failures
        .iter()
        .map(|failure| &*failure.reason)
        .collect();
    assert_eq!(failed, ["VariableUnset"; 2]);
    let labelled =
        json!({"name": "one", "uid": uid(2), "resourceVersion": "6", "labels": {"team": "t"}});
    world
        .engine
        .at(world.now)
        .namespace_applied(&from_value(labelled).unwrap());
    world.settle();
    assert_eq!(
        (world.copies(), &world.copies["one/a"]["data"]["k"]),
        (vec!["one/a"], &json!("t"))
    );
}

/// The object in the rule is valid, so the source counts as found.
#[test]
fn a_patch_that_does_not_fit_fails_with_each_copy() {
    let patch = json!([{"op": "test", "path": "/data/k", "value": "other"}]);
    let more = json!({"transform": {"jsonPatch": patch}});
    let mut world = world(vec![parse("r", 1, &[map("a", "x")], &more).unwrap()]);
    assert_eq!(world.copies(), [] as [&str; 0]);
    let status = world.status();
    assert_eq!(condition(&status, "Ready").0, "False CopiesFailed");
    assert_eq!(condition(&status, "SourcesFound").0, "True Found");
    let failed: Vec<(&str, &str)> = status
        .failures
        .iter()
        .map(|failure| (&*failure.namespace, &*failure.reason))
        .collect();
    assert_eq!(failed, [("one", "Invalid"), ("two", "Invalid")]);
    let message = &status.failures[0].message;
    assert!(
        message.contains("transform.jsonPatch[0] can't be applied: the test"),
        "{message}"
    );
}

#[test]
fn what_cannot_stand_in_a_rule_is_refused() {
    let with = |pointer: &str, value: Value| {
        let mut object = map("a", "x");
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[last] = value;
        object
    };
    for (object, begins) in [
        (
            with("/kind", json!("Secret")),
            "spec.sources[0].inline.kind: must not be Secret",
        ),
        (
            with("/kind", json!("Namespace")),
            "spec.sources[0].inline.kind: kind Namespace",
        ),
        (
            with("/apiVersion", json!("mimeo.dev/v1alpha1")),
            "spec.sources[0].inline.kind: Mimeo's own",
        ),
        (with("/kind", json!(7)), "spec.sources[0].inline: kind "),
        (
            with("/metadata", json!({})),
            "spec.sources[0].inline.metadata.name: must not be empty",
        ),
        (
            with("/metadata/name", json!("$(namespace.name)")),
            "spec.sources[0].inline.metadata.name: ",
        ),
        (
            with("/metadata/namespace", json!("x")),
            "spec.sources[0].inline.metadata.namespace: must not be set",
        ),
        (
            with("/metadata/finalizers", json!(["a.b/c"])),
            "spec.sources[0].inline.metadata.finalizers: must not be set",
        ),
        (
            with("/status", json!({"a": 1})),
            "spec.sources[0].inline.status: must not be set",
        ),
        (
            with("/data/k", json!("$(source.kind)")),
            "spec.sources[0].inline: there is no variable",
        ),
        (
            with("/data/k", json!("$(source.namespace)")),
            "spec.sources[0].inline: must not contain $(source.namespace)",
        ),
        (
            with("/data/k", json!("x".repeat(1 << 20))),
            "spec.sources[0].inline: must not have more than 1048576 bytes",
        ),
        (
            with(
                "/data/k",
                (0..100).fold(json!(1), |inner, _| json!([inner])),
            ),
            "spec.sources[0].inline: must not have more",
        ),
        (json!("a"), "spec.sources[0].inline: "),
    ] {
        let refused = parse("r", 1, std::slice::from_ref(&object), &json!({})).unwrap_err();
        assert!(refused[0].starts_with(begins), "{object}: {refused:?}");
    }
    let named = json!({"targets": [{"namespaces": ["one"], "copyName": "$(source.namespace)-x"}]});
    let set = json!({"transform": {"labels": {"set": {"a": "$(source.namespace)"}}}});
    for (more, begins) in [
        (named, "spec.targets[0].copyName: must not contain"),
        (set, "spec.transform: must not contain"),
    ] {
        let refused = parse("r", 1, &[map("a", "x")], &more).unwrap_err();
        assert!(refused[0].starts_with(begins), "{refused:?}");
    }
    let both = json!({"sources": [{"inline": map("a", "x"), "name": "b"}]});
    assert!(
        parse("r", 1, &[], &both).unwrap_err()[0]
            .starts_with("spec.sources[0]: inline must be the only field of a source")
    );
    let twice = parse("r", 1, &[map("a", "x"), map("a", "y")], &json!({})).unwrap_err();
    assert!(
        twice[0]
            .starts_with("spec.sources[1]: the rule already has the source inline/v1/ConfigMap/a"),
        "{twice:?}"
    );
}

#[test]
fn what_tools_write_of_nothing_is_left_out() {
    let mut object = map("a", "x");
    object["status"] = json!({});
    object["metadata"]["creationTimestamp"] = Value::Null;
    let world = world(vec![rule(1, &[object])]);
    let fields: Vec<&String> = world.copies["one/a"].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["apiVersion", "data", "kind", "metadata", "number"]);
}
