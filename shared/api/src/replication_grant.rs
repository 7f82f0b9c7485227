//! `ReplicationGrant`: what the owner of a namespace lets Replications of other namespaces do in it.

// The comments of fields are printed by `kubectl explain`, which would print the backticks too. Printer columns repeat
// their types.
#![allow(clippy::doc_markdown, clippy::doc_link_with_quotes, clippy::duplicated_attributes)]

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    schema::{self, rule},
    selection::NamespaceSelection,
};

/// Who may do what with which objects of this namespace.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "mimeo.dev",
    version = "v1alpha1",
    kind = "ReplicationGrant",
    plural = "replicationgrants",
    shortname = "replgrant",
    category = "mimeo",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    doc = "ReplicationGrant lets Replications of other namespaces copy objects out of its namespace, or write copies into it. At most 256 of a namespace count, with 1024 names in all, the oldest first; a name with * or ?, a pattern and each label count as 8 names. It has no status: whether it counts is told by the condition Authorized of the Replications that need it.",
    printcolumn(name = "Access", type_ = "string", json_path = ".spec.access"),
    printcolumn(name = "From", type_ = "string", json_path = ".spec.from[*].namespaces"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ReplicationGrantSpec {
    /// Read: objects of this namespace may be sources of the Replications. Write: they may have copies in it. Default: Read.
    #[serde(default)]
    pub access: Access,

    /// Namespaces whose Replications may: those that any of these selects. Whoever may make or label namespaces so that they
    /// are selected is granted it, too. At least 1, at most 16.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub from: Vec<GrantedNamespaces>,

    /// The objects that it is about, sources or copies. At least 1, at most 16.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub to: Vec<GrantedObjects>,
}

/// What Replications may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Access {
    /// Copy objects out of the namespace.
    #[default]
    Read,
    /// Write copies into the namespace.
    Write,
}

/// Namespaces in which Replications live. Exactly one of the three is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule(
        "[has(self.namespaces), has(self.namespacePattern), has(self.namespaceSelector)].exists_one(x, x)",
        "exactly one of namespaces, namespacePattern and namespaceSelector must be set",
    ),
]))]
pub struct GrantedNamespaces {
    /// Exactly one of the three is set.
    #[serde(flatten)]
    pub selection: NamespaceSelection,
}

/// Objects of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantedObjects {
    /// API version of the objects, with its group if it has one: v1, apps/v1. It stands for all versions of the kind.
    #[schemars(schema_with = "schema::api_version")]
    pub api_version: String,

    /// Kind of the objects.
    #[schemars(schema_with = "schema::kind")]
    pub kind: String,

    /// Their names, exact or with * (any characters) and ? (one character). At most two * in one, and no ? between them. If left
    /// out, any name; only then Replications may find them by a selector, too. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::object_globs")]
    pub names: Vec<String>,
}
