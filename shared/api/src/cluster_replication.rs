//! `ClusterReplication`: the rule of the platform's administrators. It copies sources into many
//! namespaces.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    schema::{self, rule, rule_of},
    selection::{NamespaceSelection, one_is_set},
    transform::{self, CopyTransform},
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
#[schemars(extend("x-kubernetes-validations" = [
    rule_of(
        ".targets",
        "(size(self.sources) == 1 && !has(self.sources[0].selector)) \
         || self.targets.all(t, !has(t.copyName) || t.copyName.contains('$(source.name)'))",
        "with several sources or a selector, targets[].copyName must contain $(source.name)",
    ),
    rule_of(
        ".transform.type",
        "!has(self.transform) || !has(self.transform.type) \
         || self.sources.all(s, has(s.kind) && s.apiVersion == 'v1' && s.kind == 'Secret')",
        "transform.type is only for Secrets",
    ),
    rule_of(
        ".transform.data",
        "!has(self.transform) || !has(self.transform.data) || self.sources.all(s, has(s.inline) ? \
         s.inline.apiVersion == 'v1' && s.inline.kind == 'ConfigMap' : s.apiVersion == 'v1' && \
         s.kind in ['Secret', 'ConfigMap'])",
        "transform.data is only for Secrets and ConfigMaps",
    ),
    rule_of(
        ".retentionPolicy",
        "self.strategy != 'CreateOnce' || !has(self.retentionPolicy)",
        "retentionPolicy must be left out: with strategy CreateOnce copies always stay",
    ),
    rule_of(
        ".driftPolicy",
        "self.driftPolicy != 'Deny' || self.strategy == 'Replace'",
        "driftPolicy Deny needs strategy Replace: with Apply others may add fields to a copy, and \
         with CreateOnce they own it",
    ),
    rule_of(
        ".resyncSeconds",
        "self.strategy != 'CreateOnce' || self.resyncSeconds == 0",
        "resyncSeconds must be 0: with strategy CreateOnce Mimeo never updates a copy",
    ),
]))]
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

    /// How the copies differ from their sources. If left out, they do not.
    #[serde(default, skip_serializing_if = "CopyTransform::is_noop")]
    #[schemars(schema_with = "transform::of_rule")]
    pub transform: CopyTransform,

    /// How Mimeo writes copies. Apply: by server-side apply; fields, keys, labels and annotations
    /// of other clients stay. Replace: likewise, but fields of other clients are removed, except
    /// finalizers and owner references. Do not use Replace for kinds into which controllers write
    /// (a Deployment, a PersistentVolumeClaim): Mimeo and the controller would undo each other's
    /// writes without end. CreateOnce: Mimeo creates a copy where no object has its name, and never
    /// updates, restores or deletes it afterwards. An existing object counts as created, unless
    /// conflictPolicy is Overwrite. The namespace's annotation mimeo.dev/seeded records created
    /// copies for as long as the namespace exists. Without the annotation a missing copy is created
    /// again. Default: Apply.
    #[serde(default)]
    pub strategy: Strategy,

    /// Policy for an object that has a copy's name and is not Mimeo's. Report: Mimeo leaves the
    /// object alone and reports it. Adopt: the object becomes the copy if it has the copy's
    /// content, or a label or annotation that another tool sets only on copies; otherwise as
    /// Report. If the API server does not let Mimeo change the object in place (type of a Secret,
    /// immutable data, roleRef), Mimeo leaves it alone and reports Invalid. Overwrite: the object
    /// becomes the copy in spite of its content. Mimeo writes over it in place, so with strategy
    /// Apply its other fields stay. A Secret, ConfigMap or RoleBinding that cannot be changed in
    /// place is deleted and created again; names of copies must then not contain labels of the
    /// namespace. An adopted or overwritten object is deleted when copies are deleted. An object
    /// that any ClusterReplication names as its source is always left alone. If two rules want the
    /// same name, one rule has it and the other reports a conflict. A copy that a rule no longer
    /// wants is taken over in place. Default: Report.
    #[serde(default)]
    pub conflict_policy: ConflictPolicy,

    /// Policy for changes and deletions of copies by other clients. Repair: Mimeo restores the
    /// copy. Deny: the API server refuses the request, unless the namespace is being deleted. If no
    /// webhook could refuse the request, Mimeo restores the copy. Deny needs strategy Replace: with
    /// Apply other clients may add fields to a copy, and with CreateOnce the copy is theirs.
    /// Default: Repair.
    #[serde(default)]
    pub drift_policy: DriftPolicy,

    /// Whether copies that are no longer wanted are deleted or stay. Not with strategy CreateOnce:
    /// such copies always stay. Default: all are deleted.
    #[serde(default, skip_serializing_if = "RetentionPolicy::is_default")]
    pub retention_policy: RetentionPolicy,

    /// Whether pods of a new namespace wait for its copies. BestEffort: pods wait for a limited
    /// time and are then admitted with a warning. Required: pods are refused until the copies
    /// exist; the author of the rule needs the verb gate on clusterreplications. None: pods do not
    /// wait. Default: BestEffort.
    #[serde(default)]
    pub pod_gate: PodGate,

    /// Period in seconds in which Mimeo verifies each copy in addition to its watches. It applies
    /// the copy; if the copy is right, the apply changes nothing. The verifications of a rule's
    /// copies are spread over the period. From 10 to 604800, or 0: never. Not with strategy
    /// CreateOnce, whose copies belong to their namespaces. Default: 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 604_800), extend("x-kubernetes-validations" = [
        rule("self == 0 || self >= 10", "must be 0 or at least 10"),
    ]))]
    pub resync_seconds: i32,

    /// Stop writing and deleting for this rule. While this is true, no pod waits for the rule's
    /// copies, and status.plan shows what the rule would do. Default: false.
    #[serde(default)]
    pub suspend: bool,
}

/// The objects to copy: one object by its name, objects by their labels, or an object embedded in
/// the rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::api_version")]
    pub api_version: Option<String>,

    /// Kind of the source: any namespaced kind. Required, except with inline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::kind")]
    pub kind: Option<String>,

    /// Namespace of the source. Required, except with inline.
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
    /// kube-root-ca.crt and openshift-service-ca.crt, which exist in each namespace anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: Option<LabelSelector>,

    /// The object to copy itself, with apiVersion, kind and metadata.name. Its metadata may also
    /// have labels and annotations, nothing else, and it has no status. Any namespaced kind except
    /// Secret, because every user who may read the rule could read it. In strings other than its
    /// name and labels, $(source.name) stands for metadata.name, and $(namespace.name) and
    /// $(namespace.labels['key']) for those of the copy's namespace. A namespace without that label
    /// gets no copy and is reported. At most 1 MiB. As with other sources, labels and annotations
    /// of GitOps tools, Helm and kubectl are not copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

/// How Mimeo writes copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// Server-side apply: fields of other clients stay.
    #[default]
    Apply,
    /// Exclusive: fields of other clients are removed.
    Replace,
    /// Created once. From then on the copy belongs to its namespace.
    CreateOnce,
}

/// Policy for an object that has a copy's name and is not Mimeo's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ConflictPolicy {
    /// The object is left alone and reported.
    #[default]
    Report,
    /// The object becomes the copy if it has the copy's content or another tool's mark. Otherwise
    /// it is left alone and reported.
    Adopt,
    /// The object becomes the copy.
    Overwrite,
}

/// Policy for changes and deletions of copies by other clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DriftPolicy {
    /// Mimeo restores the copy.
    #[default]
    Repair,
    /// The API server refuses the request.
    Deny,
}

/// Whether a copy that is no longer wanted is deleted or stays, by cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetentionPolicy {
    /// When this rule is deleted. Delete: the copies are deleted. Retain: they stay as they are.
    /// Mimeo records the choice on each copy when it writes the copy. So a change has no effect on
    /// copies that are not written afterwards, as while the rule is suspended or its source is
    /// missing. A later rule of the same name takes over the copies that it wants, and leaves the
    /// others. Default: Delete.
    #[serde(default)]
    pub when_rule_deleted: Retention,

    /// When a namespace is no longer selected. Delete: its copies are deleted. Retain: they stay as
    /// they are. Default: Delete.
    #[serde(default)]
    pub when_unmatched: Retention,

    /// When a source is deleted. Delete: its copies are deleted after the grace period. Retain:
    /// they stay as they are. Default: Delete.
    #[serde(default)]
    pub when_source_deleted: Retention,

    /// Grace period in seconds after the deletion of a source. If the source is created again
    /// within it, its copies stay. The period begins again when the reconciler restarts. From 0 to
    /// 86400. Default: 60.
    #[serde(default = "grace")]
    #[schemars(range(min = 0, max = 86400))]
    pub source_grace_period_seconds: i32,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        Self {
            when_rule_deleted: Retention::default(),
            when_unmatched: Retention::default(),
            when_source_deleted: Retention::default(),
            source_grace_period_seconds: grace(),
        }
    }
}

impl RetentionPolicy {
    /// True if the policy equals the default for a missing one.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

const fn grace() -> i32 {
    60
}

/// Whether a copy that is no longer wanted is deleted or stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Retention {
    /// The copy is deleted.
    #[default]
    Delete,
    /// The copy stays, and is no longer updated.
    Retain,
}

/// Whether pods of a new namespace wait for its copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
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
#[serde(rename_all = "camelCase")]
#[schemars(description = "What Mimeo last saw and did for this rule.")]
pub struct ClusterReplicationStatus {
    /// The metadata.generation that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the rule: Ready, SourcesFound, Authorized, PodGateActive. Reconciling and
    /// Stalled appear only while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Number of copies, by their state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<CopyCounts>,

    /// What the rule would do if it were not suspended. Set only while it is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,

    /// The first source, and how many more there are: Secret platform/registry +2. Of an inline one
    /// its kind, then the word inline. While no object is found, a selector stands for what it may
    /// find: Secret platform/(selector).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub source: Option<String>,

    /// The sources of the rule, and the version of each that was last read. The first 32 of them,
    /// or fewer if long names would make the status larger than 16 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub sources: Vec<SourceStatus>,

    /// Copies that could not be written or deleted: the first 20 of them, or fewer if long names
    /// would make the status larger than 16 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub failures: Vec<CopyFailure>,

    /// When a copy was last written or deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

/// What a suspended rule would do.
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

/// What a suspended rule would do with one copy.
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
