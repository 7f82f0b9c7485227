//! `Replication`: a tenant's rule. It copies objects into its own namespace, or between consenting
//! namespaces.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    cluster_replication::ClusterReplicationStatus,
    copy_options::{CopyOptions, conditions},
    schema::{self, rule},
};

/// The objects to copy, the namespaces that get copies, and how Mimeo keeps the copies.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "mimeo.dev",
    version = "v1alpha1",
    kind = "Replication",
    plural = "replications",
    shortname = "repl",
    category = "mimeo",
    namespaced,
    status = "ClusterReplicationStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Replication keeps copies of objects in its own namespace and, where these consent by a \
        ReplicationGrant, from and in others. A namespace may have at most 1024 Replications, with \
        10240 copies in all, of which the oldest count. A source has at most 256 KiB as JSON."
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = conditions(
    "s.apiVersion == 'v1' && s.kind in ['Secret', 'ConfigMap']",
)))]
pub struct ReplicationSpec {
    /// The objects to copy: by name or by labels. At least 1, at most 32.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub sources: Vec<ReplicationSource>,

    /// Namespaces that get copies. A copy never replaces a source. At most 32 items, and at most
    /// 256 copies: sources times namespaces. Default: this rule's own namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub targets: Vec<ReplicationTarget>,

    /// How the copies are made and kept. Both kinds of rule have these fields.
    #[serde(flatten)]
    pub copies: CopyOptions,
}

/// The objects to copy: one object by its name, or objects by their labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("self.kind != 'Namespace'", "kind Namespace is never copied"),
    rule("has(self.name) != has(self.selector)", "exactly one of name and selector must be set"),
    rule(
        "!self.apiVersion.startsWith('rbac.authorization.k8s.io/')",
        "a Replication copies no kind of rbac.authorization.k8s.io, because such objects give \
         permissions",
    ),
]))]
pub struct ReplicationSource {
    /// API version of the source, with its group if it has one: v1, apps/v1.
    #[schemars(schema_with = "schema::api_version")]
    pub api_version: String,

    /// Kind of the source: any namespaced kind except those of rbac.authorization.k8s.io.
    #[schemars(schema_with = "schema::kind")]
    pub kind: String,

    /// Namespace of the source. Another namespace than this rule's own must consent with a
    /// ReplicationGrant with access Read; for a selector, with a grant that limits no names. Until
    /// then Mimeo reads nothing there and tells this rule nothing about it. Default: this rule's
    /// own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::namespace_name")]
    pub namespace: Option<String>,

    /// Name of the source. The source may be the copy of another rule, if that rule ranks above
    /// this one. A ClusterReplication ranks above a Replication, then the older rule above the
    /// younger one, then the rule whose namespace and name come first. A rule writes no object that
    /// a rule of a higher rank names as its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_name")]
    pub name: Option<String>,

    /// Labels of the sources: every object of the kind in the namespace with these labels is a
    /// source while it has them. An empty selector ({}) means every object. If an object loses the
    /// labels, its copies are deleted after the grace period, or held if they are many. A rule has
    /// at most 256 sources. Of the objects that selectors find the oldest count, and the others are
    /// reported. A selector never finds copies of Mimeo: name a copy to copy it. It finds service
    /// account tokens and Helm releases only if transform.type is set. It never finds
    /// kube-root-ca.crt and openshift-service-ca.crt, which exist in each namespace anyway. A
    /// Replication has only as many sources as make 256 copies in its targets' namespaces. At most
    /// 64 keys and values. Each selector takes 256 of the copies that all Replications of the
    /// namespace may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: Option<LabelSelector>,
}

/// Namespaces that get copies, and the name of the copies there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ReplicationTarget {
    /// Names of namespaces. Each namespace other than this rule's own must consent with a
    /// ReplicationGrant with access Write. The status doesn't tell whether such a namespace exists.
    /// At least 1, at most 32. Default: this rule's own namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::target_namespaces")]
    pub namespaces: Vec<String>,

    /// Name of the copies. $(source.name) and $(source.namespace) stand for those of the source,
    /// $(namespace.name) for that of the copy's namespace. If the rule has several sources or a
    /// selector, the name must contain $(source.name). Default: the source's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub copy_name: Option<String>,
}
