//! Completes objects of Mimeo's kinds by the schema of their CRDs, as the API server does.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Fills in the defaults of an object's spec, and removes nulls. Returns the paths of unknown
/// fields: kubectl refuses them, and the API server would drop them.
///
/// The schema's other conditions are not checked here. The parser of rules repeats them, but for the
/// labels and annotations of embedded objects.
pub(super) fn complete(kind: &str, object: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let schemas = schemas();
    let (Some(schema), Some(object)) = (schemas.get(kind), object.as_object_mut()) else {
        return unknown;
    };
    // The status of a file counts for nothing: the reconciler writes it.
    object.remove("status");
    let known = ["apiVersion", "kind", "metadata", "spec"];
    let fields = object.keys().filter(|key| !known.contains(&key.as_str()));
    unknown.extend(fields.cloned());
    if let Some(spec) = object.get_mut("spec") {
        walk(&schema["properties"]["spec"], spec, "spec", &mut unknown);
    }
    unknown
}

fn schemas() -> BTreeMap<String, Value> {
    let schema = |crd: &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition| {
        let version = crd.spec.versions.first()?;
        serde_json::to_value(version.schema.as_ref()?.open_api_v3_schema.as_ref()?).ok()
    };
    mimeo_api::crds()
        .iter()
        .filter_map(|crd| Some((crd.spec.names.kind.clone(), schema(crd)?)))
        .collect()
}

fn walk(schema: &Value, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    match value {
        Value::Array(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                walk(&schema["items"], item, &format!("{path}[{i}]"), unknown);
            }
        }
        Value::Object(fields) => walk_fields(schema, fields, path, unknown),
        _ => {}
    }
}

fn walk_fields(
    schema: &Value,
    fields: &mut Map<String, Value>,
    path: &str,
    unknown: &mut Vec<String>,
) {
    if schema["additionalProperties"].is_object() {
        let values = fields.iter_mut();
        values.for_each(|(key, value)| {
            walk(
                &schema["additionalProperties"],
                value,
                &format!("{path}.{key}"),
                unknown,
            );
        });
        return;
    }
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    // An explicit null counts as left out.
    fields.retain(|_, value| !value.is_null());
    for (name, property) in properties {
        if let Some(default) = property
            .get("default")
            .filter(|_| !fields.contains_key(name))
        {
            fields.insert(name.clone(), default.clone());
        }
    }
    for (name, value) in fields {
        let path = format!("{path}.{name}");
        match properties.get(name) {
            Some(property) => walk(property, value, &path, unknown),
            None => unknown.push(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rule_gets_the_defaults_of_its_schema() {
        let mut rule = json!({"spec": {
            "sources": [{"inline": {"kept": null}}], "retentionPolicy": {"whenUnmatched": "Retain"},
            "podGate": null, "transform": {"labels": {"exclude": ["a"]}},
        }});
        assert_eq!(
            complete("ClusterReplication", &mut rule),
            Vec::<String>::new()
        );
        let spec = &rule["spec"];
        assert_eq!(spec["podGate"], "BestEffort");
        assert_eq!(spec["strategy"], "Apply");
        assert_eq!(spec["sources"][0]["inline"], json!({"kept": null}));
        assert_eq!(spec["retentionPolicy"]["sourceGracePeriodSeconds"], 60);
        assert_eq!(
            spec["transform"]["labels"],
            json!({"include": ["*"], "exclude": ["a"]})
        );
    }

    #[test]
    fn unknown_fields_are_named_by_their_paths() {
        let mut rule =
            json!({"specs": {}, "spec": {"targets": [{"namespace": "a"}], "transform": {"x": 1}}});
        assert_eq!(
            complete("ClusterReplication", &mut rule),
            ["specs", "spec.targets[0].namespace", "spec.transform.x"]
        );
    }
}
