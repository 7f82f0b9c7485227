//! `TransformPolicy`: changes objects at admission, for every writer.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    schema::{self, rule, rule_of},
    transform::Transform,
};

/// The objects to rewrite, and how.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "mimeo.dev",
    version = "v1alpha1",
    kind = "TransformPolicy",
    plural = "transformpolicies",
    shortname = "tpol",
    category = "mimeo",
    status = "TransformPolicyStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "TransformPolicy rewrites matching objects when any client creates or updates them.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Failure Policy",
        type_ = "string",
        json_path = ".spec.failurePolicy"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule_of(
        ".transform.type",
        "!has(self.transform.type) || self.match.kinds.all(k, k.apiVersion == 'v1' && k.kind == \
         'Secret')",
        "transform.type is only for Secrets",
    ),
    rule_of(
        ".transform.data",
        "!has(self.transform.data) || self.match.kinds.all(k, k.apiVersion == 'v1' && k.kind in \
         ['Secret', 'ConfigMap'])",
        "transform.data is only for Secrets and ConfigMaps",
    ),
]))]
pub struct TransformPolicySpec {
    /// The objects to rewrite. All fields must match. Objects in namespaces whose names begin with
    /// kube-, and in Mimeo's own namespace, are never rewritten.
    #[serde(rename = "match")]
    pub match_: ObjectMatch,

    /// Changes of a matching object. A new Secret gets the type given here. A Secret that is
    /// updated keeps its stored type.
    #[schemars(extend("x-kubernetes-validations" = [
        rule(
            "has(self.type) || has(self.labels) || has(self.annotations) || has(self.data) || \
             has(self.finalizers)",
            "at least one of type, labels, annotations, data and finalizers must be set",
        ),
    ]))]
    pub transform: Transform,

    /// What the API server does with a matching write while Mimeo's webhook does not answer. Fail:
    /// it refuses the write. Ignore: it stores the object unchanged. Default: Fail.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
}

/// The objects of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMatch {
    /// Kinds of the objects. At least 1, at most 8.
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub kinds: Vec<MatchedKind>,

    /// Labels of the objects. Must not be empty.
    #[schemars(schema_with = "schema::nonempty_label_selector")]
    pub object_selector: LabelSelector,

    /// Labels of the objects' namespaces. If left out, objects in all namespaces match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub namespace_selector: Option<LabelSelector>,

    /// Exact names of namespaces whose objects are not rewritten. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::namespace_names")]
    pub exclude_namespaces: Vec<String>,
}

/// A kind of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("self.kind != 'Namespace'", "kind Namespace is never rewritten"),
]))]
pub struct MatchedKind {
    /// API version of the kind, with its group if it has one: v1, apps/v1.
    #[schemars(schema_with = "schema::api_version")]
    pub api_version: String,

    /// The kind: any namespaced kind.
    #[schemars(schema_with = "schema::kind")]
    pub kind: String,
}

/// What the API server does with a matching write while no webhook answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    /// It refuses the write.
    #[default]
    Fail,
    /// It stores the object unchanged.
    Ignore,
}

/// The state of a policy as Mimeo last saw it. Written whole, like the status of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(description = "What Mimeo last saw and did for this policy.")]
pub struct TransformPolicyStatus {
    /// The metadata.generation that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the policy: Ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
