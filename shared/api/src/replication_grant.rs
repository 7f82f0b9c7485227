//! `ReplicationGrant`: the consent of a namespace's owner to Replications of other namespaces.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{schema, selection::NamespaceSelection};

/// The namespaces whose Replications may use objects of this namespace, the objects, and the
/// access.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "mimeo.dev",
    version = "v1alpha1",
    kind = "ReplicationGrant",
    plural = "replicationgrants",
    shortname = "replgrant",
    category = "mimeo",
    namespaced,
    status = "ReplicationGrantStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "ReplicationGrant lets Replications of other namespaces copy objects out of its \
        namespace, or write copies into it. At most 256 of a namespace count, with 1024 names in \
        all, the oldest first; a name with * or ? and each label count as 8 names, a pattern as 8 \
        or more. Whether it counts, its condition Ready says.",
    printcolumn(name = "Access", type_ = "string", json_path = ".spec.access"),
    printcolumn(name = "Grantees", type_ = "string", json_path = ".status.grantees"),
    printcolumn(name = "Objects", type_ = "string", json_path = ".status.objects"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Used By",
        type_ = "integer",
        json_path = ".status.replications"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ReplicationGrantSpec {
    /// Read: objects of this namespace may be sources of the grantees' Replications. Write: the
    /// grantees' Replications may write copies into this namespace. Default: Read.
    #[serde(default)]
    pub access: Access,

    /// Namespaces whose Replications get this access: every namespace that at least one item
    /// selects. A user who may create or label namespaces so that they are selected can get the
    /// access, too. At least 1, at most 16.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub grantees: Vec<NamespaceSelection>,

    /// The objects of this grant, as sources or as copies. At least 1, at most 16.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub objects: Vec<GrantedObjects>,
}

/// The access that the grant gives.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Access {
    /// Copy objects out of the namespace.
    #[default]
    Read,
    /// Write copies into the namespace.
    Write,
}

/// Objects of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantedObjects {
    /// API version of the objects, with its group if it has one: v1, apps/v1. The grant covers all
    /// versions of the kind.
    #[schemars(schema_with = "schema::api_version")]
    pub api_version: String,

    /// Kind of the objects.
    #[schemars(schema_with = "schema::kind")]
    pub kind: String,

    /// Names of the objects, exact or with * (any characters) and ? (one character). A name has at
    /// most two *, and no ? between them. If left out, any name; only then may a selector of a
    /// Replication find the objects. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::object_globs")]
    pub names: Vec<String>,
}

/// State of a grant as Mimeo last saw it. Written whole, like the status of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(description = "What Mimeo last saw of this grant.")]
pub struct ReplicationGrantStatus {
    /// The metadata.generation that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the grant: Ready, which is True if the grant counts. If it does not, the reason
    /// is TooManyGrants or InvalidSpec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Number of Replications that use the grant: those that it admits and that have sources or
    /// copies of its kinds in this namespace, under any name. At most 200 are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replications: Option<i32>,

    /// The grantees in one line, shortened if too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub grantees: Option<String>,

    /// The objects in one line, shortened if too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub objects: Option<String>,
}
