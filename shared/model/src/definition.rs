//! Compares the CRDs of a cluster with the CRDs that this program was built for.
//!
//! If a CRD lacks a field, the API server drops this field from objects, or refuses the objects. A
//! rule then does less than it says, and a status can't be written. Where CRDs are installed
//! separately, a new installation of the program does not fix this.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mimeo_api::crds;
use serde_json::{Value, json};

/// The fields of Mimeo's own CRD that the served CRD lacks, as in `spec.suspend`.
///
/// The result is empty for a CRD of another project, and for a later CRD that has more fields.
pub fn lacks(served: &CustomResourceDefinition) -> Vec<String> {
    let own = crds()
        .into_iter()
        .find(|own| own.metadata.name == served.metadata.name);
    let mut lacking = Vec::new();
    for own in own.iter().flat_map(|own| &own.spec.versions) {
        let mut versions = served.spec.versions.iter();
        if let Some(served) = versions.find(|served| served.name == own.name && served.served) {
            let [own, served] =
                [own, served].map(|version| json!(version.schema)["openAPIV3Schema"].take());
            compare("", &own, &served, &mut lacking);
        } else {
            lacking.push(format!("version {}", own.name));
        }
    }
    lacking
}

/// Adds the paths below `path` that the schema `own` has and `served` does not have.
fn compare(path: &str, own: &Value, served: &Value, lacking: &mut Vec<String>) {
    if !served.is_object() {
        return lacking.push(path.to_owned());
    }
    if served["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    for (name, own) in own["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        compare(&path, own, &served["properties"][name], lacking);
    }
    for (field, sign) in [("items", "[]"), ("additionalProperties", ".*")] {
        if own[field].is_object() {
            let path = format!("{path}{sign}");
            compare(&path, &own[field], &served[field], lacking);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{from_value, to_value};

    use super::*;

    /// The fields that this CRD lacks after the change.
    fn changed(name: &str, change: impl Fn(&mut Value)) -> Vec<String> {
        let crd = crds()
            .into_iter()
            .find(|crd| crd.metadata.name.as_deref() == Some(name))
            .unwrap();
        let mut crd = to_value(crd).unwrap();
        change(&mut crd["spec"]["versions"][0]);
        lacks(&from_value(crd).unwrap())
    }

    fn remove(version: &mut Value, pointer: &str, field: &str) {
        let parent = version
            .pointer_mut(&format!("/schema/openAPIV3Schema{pointer}"))
            .unwrap();
        assert!(
            parent.as_object_mut().unwrap().remove(field).is_some(),
            "{pointer}/{field}"
        );
    }

    #[test]
    fn a_definition_has_all_that_it_was_generated_with() {
        for crd in crds() {
            assert_eq!(lacks(&crd), [""; 0]);
        }
    }

    #[test]
    fn what_an_older_one_lacks_is_named_with_its_place() {
        let rules = "clusterreplications.mimeo.dev";
        let lost = changed(rules, |version| {
            remove(version, "/properties/spec/properties", "suspend");
            remove(
                version,
                "/properties/spec/properties/sources/items/properties",
                "selector",
            );
            remove(version, "/properties/status/properties", "plan");
        });
        assert_eq!(
            lost,
            ["spec.sources[].selector", "spec.suspend", "status.plan"]
        );
        let newer = |version: &mut Value| {
            version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["more"] =
                json!({"type": "string"});
        };
        assert_eq!(changed(rules, newer), [""; 0], "a later one");
        assert_eq!(
            changed(rules, |version| version["served"] = json!(false)),
            ["version v1alpha1"]
        );
        let open = |version: &mut Value| {
            version["schema"] = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        };
        assert_eq!(
            changed("transformpolicies.mimeo.dev", open),
            [""; 0],
            "it takes whatever there is"
        );
        let none = |version: &mut Value| {
            version["schema"] = json!({"openAPIV3Schema": {"type": "object"}});
        };
        assert_eq!(
            changed("replicationgrants.mimeo.dev", none),
            ["spec", "status"]
        );
    }

    #[test]
    fn of_other_kinds_nothing_is_said() {
        let mut crd = crds().remove(0);
        crd.metadata.name = Some("widgets.example.com".into());
        crd.spec.versions.clear();
        assert_eq!(lacks(&crd), [""; 0]);
    }
}
