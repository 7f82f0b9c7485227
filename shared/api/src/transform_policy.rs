//! `TransformPolicy`: changes objects at admission, for every writer.

// `kubectl explain` prints the comments of fields, and it would print backticks, too. Printer
// columns repeat their types.
#![allow(clippy::doc_markdown, clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    schema::{self, rule, rule_of},
    transform::{self, Transform},
};

/// Which objects are rewritten, and how.
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
    doc = "TransformPolicy rewrites matching objects as they are created and updated, whoever writes them.",
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
        "!has(self.transform.type) || self.match.kinds.all(k, k.apiVersion == 'v1' && k.kind == 'Secret')",
        "transform.type is only for Secrets",
    ),
    rule_of(
        ".transform.data",
        "!has(self.transform.data) || self.match.kinds.all(k, k.apiVersion == 'v1' && k.kind in ['Secret', 'ConfigMap'])",
        "transform.data is only for Secrets and ConfigMaps",
    ),
]))]
pub struct TransformPolicySpec {
    /// Which objects are rewritten. An object must match all of the fields. None in a namespace
    /// whose name begins with kube-, nor in Mimeo's own, whatever the fields say.
    #[serde(rename = "match")]
    pub match_: ObjectMatch,

    /// What is changed in a matching object. A new Secret gets the type given here; a Secret that
    /// is updated keeps the type that it is stored with.
    #[schemars(extend("x-kubernetes-validations" = [
        rule(
            "has(self.type) || has(self.labels) || has(self.annotations) || has(self.data) || has(self.finalizers)",
            "at least one of type, labels, annotations, data and finalizers must be set",
        ),
    ]))]
    #[schemars(schema_with = "transform::of_policy")]
    pub transform: Transform,

    /// What happens to a matching write while Mimeo's webhook does not answer. Fail: it is refused.
    /// Ignore: it passes unchanged. Default: Fail.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
}

/// Which objects a policy is for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMatch {
    /// Kinds of the objects. At least 1, at most 8.
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub kinds: Vec<MatchedKind>,

    /// Labels of the objects. Must not be empty.
    #[schemars(schema_with = "schema::nonempty_label_selector")]
    pub object_selector: LabelSelector,

    /// Labels of the namespaces that the objects are in. If left out, they may be in any namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub namespace_selector: Option<LabelSelector>,

    /// Exact names of namespaces whose objects are left as they are. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::namespace_names")]
    pub exclude_namespaces: Vec<String>,
}

/// A kind of object that a policy is for.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("self.kind != 'Namespace'", "kind Namespace is never rewritten"),
]))]
pub struct MatchedKind {
    /// API version of the kind, with its group if it has one: v1, apps/v1.
    #[schemars(schema_with = "schema::api_version")]
    pub api_version: String,

    /// The kind. Any kind that lives in namespaces.
    #[schemars(schema_with = "schema::kind")]
    pub kind: String,
}

/// What happens to a matching write while no webhook answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    /// It is refused.
    #[default]
    Fail,
    /// It passes unchanged.
    Ignore,
}

/// What Mimeo last saw and did for a policy. Written whole, like the status of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "What Mimeo last saw and did for this policy.")]
pub struct TransformPolicyStatus {
    /// The metadata.generation that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// State of the policy: Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
