//! Compares the CRDs of a cluster with the CRDs that this program was built for.
//!
//! If a CRD lacks a field, the API server drops this field from objects, or refuses the objects. A
//! rule then does less than it says, and a status can't be written. Where CRDs are installed
//! separately, a new installation of the program does not fix this.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use mimeo_api::crds;

/// The fields of Mimeo's own CRD that the served CRD lacks, as in `spec.suspend`.
///
/// The result is empty for a CRD of another project, and for a later CRD that has more fields.
pub fn lacks(served: &CustomResourceDefinition) -> Vec<String> {
    let own = crds()
        .into_iter()
        .find(|own| own.metadata.name == served.metadata.name);
    let mut lacking = Vec::new();
    for version in own.iter().flat_map(|own| &own.spec.versions) {
        let schema = served
            .spec
            .versions
            .iter()
            .find(|served| served.name == version.name && served.served);
        match (
            version.schema.as_ref(),
            schema.map(|served| served.schema.as_ref()),
        ) {
            (_, None) => lacking.push(format!("version {}", version.name)),
            (Some(own), Some(served)) => {
                let served = served.and_then(|served| served.open_api_v3_schema.as_ref());
                own.open_api_v3_schema
                    .iter()
                    .for_each(|own| compare("", own, served, &mut lacking));
            }
            (None, Some(_)) => {}
        }
    }
    lacking
}

/// Adds the paths below `path` that `own` has and `served` does not have.
fn compare(
    path: &str,
    own: &JSONSchemaProps,
    served: Option<&JSONSchemaProps>,
    lacking: &mut Vec<String>,
) {
    let Some(served) = served else {
        return lacking.push(path.to_owned());
    };
    if served.x_kubernetes_preserve_unknown_fields == Some(true) {
        return;
    }
    for (name, own) in own.properties.iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        compare(
            &path,
            own,
            served.properties.as_ref().and_then(|all| all.get(name)),
            lacking,
        );
    }
    if let Some(JSONSchemaPropsOrArray::Schema(own)) = &own.items {
        let served = match &served.items {
            Some(JSONSchemaPropsOrArray::Schema(items)) => Some(&**items),
            _ => None,
        };
        compare(&format!("{path}[]"), own, served, lacking);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(own)) = &own.additional_properties {
        let served = match &served.additional_properties {
            Some(JSONSchemaPropsOrBool::Schema(values)) => Some(&**values),
            _ => None,
        };
        compare(&format!("{path}.*"), own, served, lacking);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{Value, from_value, json, to_value};

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
