//! Compares the CRDs of a cluster with the CRDs that this program was built for.
//!
//! If a CRD lacks a field, the API server drops this field from objects, or refuses the objects. A
//! rule then does less than it says, and a status can't be written. Where CRDs are installed
//! separately, a new installation of the program does not fix this.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mimeo_api::crds;
use serde_json::{Value, json};

/// True if the served CRD lacks a field of Mimeo's own CRD, or its version.
///
/// False for a CRD of another project, and for a later CRD that has more fields.
pub fn is_older(served: &CustomResourceDefinition) -> bool {
    let same = |own: &CustomResourceDefinition| own.metadata.name == served.metadata.name;
    let own = crds().into_iter().find(same);
    own.into_iter()
        .flat_map(|own| own.spec.versions)
        .any(|own| {
            let mut versions = served.spec.versions.iter();
            let served = versions.find(|served| served.name == own.name && served.served);
            let [served, own] = [json!(served), json!(own)]
                .map(|mut version| version["schema"]["openAPIV3Schema"].take());
            !has_fields(&served, &own)
        })
}

/// True if the schema `served` has all fields of the schema `own`.
fn has_fields(served: &Value, own: &Value) -> bool {
    let has = |place: &str| own[place].is_null() || has_fields(&served[place], &own[place]);
    let mut properties = own["properties"].as_object().into_iter().flatten();
    served["x-kubernetes-preserve-unknown-fields"] == true
        || served.is_object()
            && properties.all(|(name, own)| has_fields(&served["properties"][name], own))
            && has("items")
            && has("additionalProperties")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{from_value, to_value};

    use super::*;

    /// True if this CRD counts as older after the change.
    fn changed(name: &str, change: impl Fn(&mut Value)) -> bool {
        let crd = crds()
            .into_iter()
            .find(|crd| crd.metadata.name.as_deref() == Some(name))
            .unwrap();
        let mut crd = to_value(crd).unwrap();
        change(&mut crd["spec"]["versions"][0]);
        is_older(&from_value(crd).unwrap())
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
            assert!(!is_older(&crd));
        }
    }

    #[test]
    fn one_that_lacks_a_field_or_the_version_is_older() {
        let rules = "clusterreplications.mimeo.dev";
        let sources = "/properties/spec/properties/sources/items/properties";
        for (parent, field) in [
            ("/properties/spec/properties", "suspend"),
            (sources, "selector"),
            ("/properties/status/properties", "plan"),
        ] {
            let older = changed(rules, |version| remove(version, parent, field));
            assert!(older, "{field}");
        }
        let newer = |version: &mut Value| {
            version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["more"] =
                json!({"type": "string"});
        };
        assert!(!changed(rules, newer), "a later one");
        assert!(changed(rules, |version| version["served"] = json!(false)));
        let open = |version: &mut Value| {
            version["schema"] = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        };
        assert!(
            !changed("transformpolicies.mimeo.dev", open),
            "it takes whatever there is"
        );
        let none = |version: &mut Value| {
            version["schema"] = json!({"openAPIV3Schema": {"type": "object"}});
        };
        assert!(changed("replicationgrants.mimeo.dev", none));
    }

    #[test]
    fn of_other_kinds_nothing_is_said() {
        let mut crd = crds().remove(0);
        crd.metadata.name = Some("widgets.example.com".into());
        crd.spec.versions.clear();
        assert!(!is_older(&crd));
    }
}
