//! The definitions against the rules that hold for every field of them. That `manifests/crds/` has
//! them is a test of `shared/model`, among all that is generated.

use kube::{CustomResourceExt as _, Resource as _};
use mimeo_api::{ClusterReplication, Replication, ReplicationGrant, TransformPolicy, crds, names};
use serde_json::{Map, Value};

#[test]
fn names_are_those_of_the_definitions() {
    assert_eq!(ClusterReplication::group(&()), names::GROUP);
    assert_eq!(ClusterReplication::version(&()), names::VERSION);
    assert_eq!(ClusterReplication::kind(&()), names::CLUSTER_REPLICATION);
    assert_eq!(TransformPolicy::api_version(&()), names::API_VERSION);
    assert_eq!(TransformPolicy::kind(&()), names::TRANSFORM_POLICY);
    let found: Vec<_> = crds()
        .into_iter()
        .filter_map(|crd| crd.metadata.name)
        .collect();
    assert_eq!(Replication::kind(&()), names::REPLICATION);
    assert_eq!(ReplicationGrant::kind(&()), names::REPLICATION_GRANT);
    let kinds = [
        ClusterReplication::crd_name(),
        ReplicationGrant::crd_name(),
        Replication::crd_name(),
        TransformPolicy::crd_name(),
    ];
    assert_eq!(found, kinds);
}

#[test]
fn every_field_is_described_and_defaults_are_in_the_words() {
    each_property(&mut |path, schema| {
        let description = schema
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default();
        assert!(!description.is_empty(), "{path} has no description");
        if let Some(default) = schema.get("default") {
            let words = format!("Default: {}", default.to_string().trim_matches('"'));
            assert!(
                description.contains(&words),
                "{path} does not say `{words}`: {description}"
            );
        }
    });
}

#[test]
fn every_list_of_a_spec_is_limited_and_says_how_it_merges() {
    each_property(&mut |path, schema| {
        if schema.get("type").is_some_and(|type_| type_ == "array") {
            assert!(schema.contains_key("maxItems"), "{path} has no limit");
            assert!(
                schema.contains_key("x-kubernetes-list-type"),
                "{path} does not say how it merges"
            );
        }
    });
}

/// Calls `check` for every property below spec and status of every definition, with its path.
fn each_property(check: &mut dyn FnMut(&str, &Map<String, Value>)) {
    fn walk(path: &str, schema: &Value, check: &mut dyn FnMut(&str, &Map<String, Value>)) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            check(&path, property.as_object().expect("a property is a schema"));
            walk(&path, property, check);
            walk(&path, &property["items"], check);
        }
    }
    for crd in crds() {
        let value = serde_json::to_value(&crd).expect("a CRD is plain data");
        walk(
            &crd.spec.names.kind,
            &value["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
            check,
        );
    }
}
