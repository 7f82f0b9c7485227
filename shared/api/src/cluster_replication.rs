//! `ClusterReplication`: the rule of the platform's administrators. It copies sources into many
//! namespaces.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    copy_options::{CopyOptions, conditions},
    schema::{self, rule, rule_of},
    selection::{NamespaceSelection, one_is_set},
};

/// The objects to copy, the namespaces that get copies, and how Mimeo keeps the copies.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "mimeo.dev",
    version = "v1alpha1",
    kind = "ClusterReplication",
    plural = "clusterreplications",
    shortname = "crepl",
    category = "mimeo",
    status = "ClusterReplicationStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "ClusterReplication keeps copies of objects in the namespaces that it selects, and keeps \
        them up to date.",
    printcolumn(name = "Source", type_ = "string", json_path = ".status.source"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".status.copies.desired"
    ),
    printcolumn(
        name = "Synced",
        type_ = "integer",
        json_path = ".status.copies.synced"
    ),
    printcolumn(
        name = "Failed",
        type_ = "integer",
        json_path = ".status.copies.failed"
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
        name = "Last Sync",
        type_ = "date",
        json_path = ".status.lastSyncTime",
        priority = 1
    ),
    printcolumn(
        name = "Suspended",
        type_ = "boolean",
        json_path = ".spec.suspend",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = conditions(
    "has(s.inline) ? s.inline.apiVersion == 'v1' && s.inline.kind == 'ConfigMap' : \
     s.apiVersion == 'v1' && s.kind in ['Secret', 'ConfigMap']",
)))]
pub struct ClusterReplicationSpec {
    /// The objects to copy: by name, by labels, or embedded in this rule. At least 1, at most 32.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub sources: Vec<Source>,

    /// Namespaces that get copies: every namespace that at least one item selects. A copy never
    /// replaces a source. kube-system, kube-public and kube-node-lease get copies only if named
    /// exactly. At least 1, at most 32.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub targets: Vec<Target>,

    /// Namespaces that get no copies although a target selects them: every namespace that at least
    /// one item matches. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub exclude: Vec<NamespaceSelection>,

    /// Whether pods of a new namespace wait for its copies. BestEffort: pods wait for a limited
    /// time and are then admitted with a warning. Required: pods are refused until the copies
    /// exist; the author of the rule needs the verb gate on clusterreplications. None: pods do not
    /// wait. Default: BestEffort.
    #[serde(default)]
    pub pod_gate: PodGate,

    /// How the copies are made and kept. Both kinds of rule have these fields.
    #[serde(flatten)]
    pub copies: CopyOptions,
}

/// The objects to copy: one object by its name, objects by their labels, or an object embedded in
/// the rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("!has(self.kind) || self.kind != 'Namespace'", "kind Namespace is never copied"),
    rule(
        "[has(self.name), has(self.selector), has(self.inline)].exists_one(x, x)",
        "exactly one of name, selector and inline must be set",
    ),
    rule(
        "has(self.inline) ? !has(self.apiVersion) && !has(self.kind) && !has(self.__namespace__) \
         : has(self.apiVersion) && has(self.kind) && has(self.__namespace__)",
        "apiVersion, kind and namespace must be set, or none of them with inline, which has its \
         own",
    ),
    rule_of(
        ".inline",
        "!has(self.inline) || !(self.inline.apiVersion == 'v1' && self.inline.kind in ['Secret', \
         'Namespace'])",
        "kind Secret must not be inline, because every user who may read the rule could read it; \
         kind Namespace is never copied",
    ),
    rule_of(
        ".inline",
        "!has(self.inline) || has(self.inline.metadata) && has(self.inline.metadata.name) \
         && !has(self.inline.metadata.generateName)",
        "an inline object must have metadata.name, and no metadata.generateName",
    ),
]))]
pub struct Source {
    /// API version of the source, with its group if it has one: v1, apps/v1. Required, except with
    /// inline.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::api_version")]
    pub api_version: Option<String>,

    /// Kind of the source: any namespaced kind. Required, except with inline.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::kind")]
    pub kind: Option<String>,

    /// Namespace of the source. Required, except with inline.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::namespace_name")]
    pub namespace: Option<String>,

    /// Name of the source. The source may be the copy of another rule, if that rule ranks above
    /// this one. A ClusterReplication ranks above a Replication, then the older rule above the
    /// younger one, then the rule whose namespace and name come first. A rule writes no object that
    /// a rule of a higher rank names as its source.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_name")]
    pub name: Option<String>,

    /// Labels of the sources: every object of the kind in the namespace with these labels is a
    /// source while it has them. An empty selector ({}) means every object. If an object loses the
    /// labels, its copies are deleted after the grace period, or held if they are many. A rule has
    /// at most 256 sources. Of the objects that selectors find the oldest count, and the others are
    /// reported. A selector never finds copies of Mimeo: name a copy to copy it. It finds service
    /// account tokens and Helm releases only if transform.type is set. It never finds
    /// kube-root-ca.crt and openshift-service-ca.crt, which exist in each namespace anyway.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: Option<LabelSelector>,

    /// The object to copy itself, with apiVersion, kind and metadata.name. Its metadata may also
    /// have labels and annotations, nothing else, and it has no status. Any namespaced kind except
    /// Secret, because every user who may read the rule could read it. In strings other than its
    /// name and labels, $(source.name) stands for metadata.name, and $(namespace.name) and
    /// $(namespace.labels['key']) for those of the copy's namespace. A namespace without that label
    /// gets no copy and is reported. At most 1 MiB. As with other sources, labels and annotations
    /// of GitOps tools, Helm and kubectl are not copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded_object")]
    pub inline: Option<Value>,
}

/// Namespaces that get copies, and the name of the copies there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [one_is_set()]))]
pub struct Target {
    /// Set at least one of the three. All that are set must match.
    #[serde(flatten)]
    pub selection: NamespaceSelection,

    /// Name of the copies. $(source.name) and $(source.namespace) stand for those of the source (an
    /// inline source has no namespace), $(namespace.name) and $(namespace.labels['key']) for those
    /// of the copy's namespace. A namespace without that label gets no copy and is reported. If the
    /// rule has several sources or a selector, the name must contain $(source.name). Default: the
    /// source's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub copy_name: Option<String>,
}

/// Whether pods of a new namespace wait for its copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodGate {
    /// Pods wait for a limited time, and are then admitted with a warning.
    #[default]
    BestEffort,
    /// Pods are refused until the copies exist.
    Required,
    /// Pods do not wait.
    None,
}

/// The state of a rule as Mimeo last saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(description = "What Mimeo last saw and did for this rule.")]
pub struct ClusterReplicationStatus {
    /// The metadata.generation that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the rule: Ready, SourcesFound, Authorized, PodGateActive. Reconciling and
    /// Stalled appear only while they are true.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Number of copies, by their state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<CopyCounts>,

    /// What the rule would do if it were not suspended. Set only while it is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,

    /// The first source, and how many more there are: Secret platform/registry +2. Of an inline one
    /// its kind, then the word inline. While no object is found, a selector stands for what it may
    /// find: Secret platform/(selector).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub source: Option<String>,

    /// The sources of the rule, and the version of each that was last read. The first 32 of them,
    /// or fewer if long names would make the status larger than 16 KiB.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub sources: Vec<SourceStatus>,

    /// Copies that could not be written or deleted: the first 20 of them, or fewer if long names
    /// would make the status larger than 16 KiB.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub failures: Vec<CopyFailure>,

    /// When a status last reported that a copy was written or deleted: about a second after the write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sync_time: Option<Time>,
}

/// Number of copies, by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CopyCounts {
    /// Copies that should exist.
    pub desired: i32,
    /// Copies that exist and are right.
    pub synced: i32,
    /// Copies that could not be written or deleted, conflicts included.
    pub failed: i32,
}

/// The changes that a suspended rule would make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Copies that would be created.
    pub create: i32,
    /// Copies that would be updated.
    pub update: i32,
    /// Copies that would be deleted.
    pub delete: i32,
    /// Copies that could not be written because another object has their name.
    pub conflict: i32,
    /// These copies: the first 20, by namespace, kind and name, or fewer if long names would make
    /// the status larger than 16 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub copies: Vec<PlannedCopy>,
}

/// The change that a suspended rule would make to one copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedCopy {
    /// The action: Create, Update, Delete or Conflict.
    pub action: String,
    /// Kind of the copy.
    pub kind: String,
    /// Namespace of the copy.
    pub namespace: String,
    /// Name of the copy.
    pub name: String,
}

/// A source as it was last read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// API version of the source.
    pub api_version: String,
    /// Kind of the source.
    pub kind: String,
    /// Namespace of the source. Left out for an inline one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the source.
    pub name: String,
    /// Version of the source that was last read. Left out while the source does not exist, and for
    /// an inline one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// A copy that could not be written or deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CopyFailure {
    /// Kind of the copy.
    pub kind: String,
    /// Namespace of the copy.
    pub namespace: String,
    /// Name of the copy.
    pub name: String,
    /// The reason in one word: Conflict, RuleConflict, NotGranted, Forbidden, Invalid, TooLarge,
    /// QuotaExceeded, AdmissionDenied, VariableUnset, Timeout or ClusterUnreachable.
    pub reason: String,
    /// The reason in a sentence. For Secrets it leaves out the API server's own words.
    #[schemars(length(max = 512))]
    pub message: String,
}
