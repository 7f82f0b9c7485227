//! `ClusterReplication`: the rule of the platform's administrators. It copies sources into many
//! namespaces.

// `kubectl explain` prints the comments of fields, and it would print backticks, too. Printer
// columns repeat their types.
#![allow(
    clippy::doc_markdown,
    clippy::doc_link_with_quotes,
    clippy::duplicated_attributes
)]

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

/// What is copied, where to, and how the copies are kept.
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
    doc = "ClusterReplication keeps copies of objects in the namespaces that it selects, and keeps them up to date.",
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
        "!has(self.transform) || !has(self.transform.data) \
         || self.sources.all(s, has(s.inline) ? s.inline.apiVersion == 'v1' && s.inline.kind == 'ConfigMap' \
         : s.apiVersion == 'v1' && s.kind in ['Secret', 'ConfigMap'])",
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
        "driftPolicy Deny needs strategy Replace: with Apply others may add fields to a copy, and with CreateOnce they own it",
    ),
    rule_of(
        ".resyncSeconds",
        "self.strategy != 'CreateOnce' || self.resyncSeconds == 0",
        "resyncSeconds must be 0: with strategy CreateOnce Mimeo never updates a copy",
    ),
]))]
pub struct ClusterReplicationSpec {
    /// The objects to copy: each by its name, all with some labels, or as it stands in this rule.
    /// At least 1, at most 32.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub sources: Vec<Source>,

    /// Where the copies go: to every namespace that any of these selects. Never over one of the
    /// sources, and to kube-system, kube-public and kube-node-lease only if named exactly. At least
    /// 1, at most 32.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub targets: Vec<Target>,

    /// Namespaces that get no copies, whatever target selects them: those that any of these items
    /// matches. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub exclude: Vec<NamespaceSelection>,

    /// How the copies differ from their sources. If left out, they do not.
    #[serde(default, skip_serializing_if = "CopyTransform::is_noop")]
    #[schemars(schema_with = "transform::of_rule")]
    pub transform: CopyTransform,

    /// How copies are written. Apply: by server-side apply; fields, keys, labels and annotations
    /// that others add stay. Replace: likewise, and what others add is removed, but for finalizers
    /// and owner references; not for kinds into which controllers write (a Deployment, a
    /// PersistentVolumeClaim), which would be undone again and again. CreateOnce: created where
    /// nothing has their name, and never updated, restored or deleted after that; what is there
    /// already counts as created, unless conflictPolicy is Overwrite. What was created is
    /// remembered in the namespace's annotation mimeo.dev/seeded, for as long as the namespace
    /// exists; without the annotation what is missing is created again. Default: Apply.
    #[serde(default)]
    pub strategy: Strategy,

    /// Policy for an object that has a copy's name and is not Mimeo's. Report: it is left alone and
    /// reported. Adopt: it becomes the copy if its content is the copy's already, or if it carries
    /// the mark that another tool leaves on its copies; if not, as Report. An object that the API
    /// server does not let Mimeo change in place (type of a Secret, immutable data, roleRef) is
    /// left alone and reported as Invalid. Overwrite: it becomes the copy whatever is in it. It is
    /// written over in place, so with strategy Apply what only it has stays; a Secret, ConfigMap or
    /// RoleBinding that cannot be changed so is deleted and created anew; names of copies must then
    /// have no labels of the namespace in them. What becomes a copy goes when copies go. An object
    /// that any ClusterReplication names as its source is always left alone. Copies of other rules
    /// are Mimeo's: of two rules that want the same name one has it and the other reports it, and
    /// what a rule no longer wants is taken over in place. Default: Report.
    #[serde(default)]
    pub conflict_policy: ConflictPolicy,

    /// Policy for changes and deletions of copies by other clients. Repair: Mimeo restores the
    /// copy. Deny: the API server refuses the request, unless the namespace is being deleted; Mimeo
    /// restores what no webhook could refuse. Deny needs strategy Replace: with Apply others may
    /// add fields to a copy, and with CreateOnce they own it. Default: Repair.
    #[serde(default)]
    pub drift_policy: DriftPolicy,

    /// What becomes of copies that are no longer wanted. Not with strategy CreateOnce, whose copies
    /// always stay. Default: all of them are deleted.
    #[serde(default, skip_serializing_if = "RetentionPolicy::is_default")]
    pub retention_policy: RetentionPolicy,

    /// Whether pods of a new namespace wait for its copies. BestEffort: they wait for a limited
    /// time and are then admitted with a warning. Required: they are refused until the copies are
    /// there; the author of the rule needs the verb gate on clusterreplications. None: they do not
    /// wait. Default: BestEffort.
    #[serde(default)]
    pub pod_gate: PodGate,

    /// Seconds after which each copy is verified, again and again, besides what watches tell: it is
    /// applied, which changes nothing and is no write if it is as it should be. The copies of a
    /// rule are spread over that time. From 10 to 604800, or 0: never. Not with strategy
    /// CreateOnce, whose copies are their namespace's. Default: 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 604_800), extend("x-kubernetes-validations" = [
        rule("self == 0 || self >= 10", "must be 0 or at least 10"),
    ]))]
    pub resync_seconds: i32,

    /// Stop writing and deleting for this rule. While it is true, nothing waits for its copies, and
    /// status.plan says what would be done. Default: false.
    #[serde(default)]
    pub suspend: bool,
}

/// What to copy: one object by its name, objects by their labels, or an object that stands in the
/// rule itself.
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
        "apiVersion, kind and namespace must be set, or none of them with inline, which has its own",
    ),
    rule_of(
        ".inline",
        "!has(self.inline) || !(self.inline.apiVersion == 'v1' && self.inline.kind in ['Secret', 'Namespace'])",
        "kind Secret must not be inline, because every user who may read the rule could read it; kind Namespace is never copied",
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

    /// Kind of the source. Any kind that lives in namespaces. Required, except with inline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::kind")]
    pub kind: Option<String>,

    /// Namespace of the source. Required, except with inline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::namespace_name")]
    pub namespace: Option<String>,

    /// Name of the source. It may be the copy of another rule, if that rule ranks above this one. A
    /// ClusterReplication ranks above a Replication, then the older rule above the younger one,
    /// then the one whose namespace and name come first. A rule writes no object that a rule of a
    /// higher rank names as its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_name")]
    pub name: Option<String>,

    /// Labels of the sources: every object of the kind in the namespace that has them is a source,
    /// for as long as it has them; an empty selector ({}) means every object. One that has them no
    /// more counts as deleted. Passed over are service account tokens and Helm releases (but with
    /// transform.type), kube-root-ca.crt and openshift-service-ca.crt, which are in each namespace
    /// anyway, and copies of Mimeo: a rule that copies a copy names it. A rule has at most 256
    /// sources; of those that selectors find the oldest come first, and what is left out is
    /// reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: Option<LabelSelector>,

    /// The object to copy itself, with apiVersion, kind and metadata.name; of its metadata only
    /// labels and annotations may be set besides, and no status. Any kind that lives in namespaces
    /// but Secret, since whoever may read the rule would read it. In its strings, but not in its
    /// name and labels, $(source.name) stands for metadata.name, $(namespace.name) and
    /// $(namespace.labels['key']) for those of the copy's namespace; a namespace without that label
    /// gets no copy and is reported. At most 1 MiB. As of any source, labels and annotations of
    /// GitOps tools, Helm and kubectl are not carried to the copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded_object")]
    pub inline: Option<Value>,
}

/// Namespaces that get copies, and the copies' name there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [one_is_set()]))]
pub struct Target {
    /// At least one of the three is set, and those that are set must all match.
    #[serde(flatten)]
    pub selection: NamespaceSelection,

    /// Name of the copies. In it $(source.name) and $(source.namespace) stand for the source's (an
    /// inline one has no namespace), $(namespace.name) and $(namespace.labels['key']) for those of
    /// the copy's namespace; a namespace without that label gets no copy and is reported. The
    /// source's name must be in it if the rule has several sources or a selector. Default: the
    /// source's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub copy_name: Option<String>,
}

/// How copies are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// Server-side apply: fields that others own stay theirs.
    #[default]
    Apply,
    /// Exclusive: what others add is removed.
    Replace,
    /// Created once, and then its namespace's owner's.
    CreateOnce,
}

/// What to do about an object in the way that is not ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ConflictPolicy {
    /// Leave it alone and report it.
    #[default]
    Report,
    /// Make it the copy if it is one already, by its content or by another tool's mark; else leave
    /// it alone and report it.
    Adopt,
    /// Make it the copy.
    Overwrite,
}

/// What happens when somebody else changes or deletes a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DriftPolicy {
    /// The copy is put right.
    #[default]
    Repair,
    /// The request is refused.
    Deny,
}

/// What becomes of copies that are no longer wanted, by the reason why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetentionPolicy {
    /// When this rule is deleted. Delete: the copies are deleted. Retain: they stay as they are;
    /// this is written on each copy, so a change counts for those that were written since, and
    /// while the rule is suspended, or its source is missing, none is. A later rule of this name
    /// takes over those that it wants, and leaves the others. Default: Delete.
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

    /// Seconds that a deleted source has to come back before its copies are deleted. They begin
    /// anew when the reconciler is started anew. From 0 to 86400. Default: 60.
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

/// What becomes of a copy that is no longer wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Retention {
    /// It is deleted.
    #[default]
    Delete,
    /// It stays, and nobody updates it any more.
    Retain,
}

/// Whether pods of a new namespace wait for its copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PodGate {
    /// They wait for a limited time, then they are admitted with a warning.
    #[default]
    BestEffort,
    /// They are refused until the copies are there.
    Required,
    /// They do not wait.
    None,
}

/// What Mimeo last saw and did for a rule.
///
/// Written whole: what is empty or `None` here is left out, and so removed from the stored status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "What Mimeo last saw and did for this rule.")]
pub struct ClusterReplicationStatus {
    /// The metadata.generation that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// State of the rule: Ready, SourcesFound, Authorized, PodGateActive, and only while they are
    /// true, Reconciling and Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Number of copies, by their state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<CopyCounts>,

    /// What would be done if the rule were not suspended. Only while it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,

    /// The first source, and how many more there are: Secret platform/registry +2. Of an inline one
    /// its kind, then the word inline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub source: Option<String>,

    /// The sources of the rule and the version of each that was last read. The first 32 of them, or
    /// fewer, where their names are so long that the status would exceed 16 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub sources: Vec<SourceStatus>,

    /// Copies that could not be written or deleted, the first 20 of them. Fewer where long names
    /// leave no room for them in 16 KiB.
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
    /// Copies that exist and are as they should be.
    pub synced: i32,
    /// Copies that could not be written, conflicts included.
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
    /// Which copies these are: the first 20, by namespace, kind and name. Fewer where long names
    /// leave no room for them in 16 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), extend("x-kubernetes-list-type" = "atomic"))]
    pub copies: Vec<PlannedCopy>,
}

/// What a suspended rule would do about one copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedCopy {
    /// What would become of it: Create, Update, Delete or Conflict.
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
    /// Why, in one word: Conflict, RuleConflict, NotGranted, Forbidden, Invalid, TooLarge,
    /// QuotaExceeded, AdmissionDenied, VariableUnset, Timeout or ClusterUnreachable.
    pub reason: String,
    /// Why, for people. What the API server said is left out for Secrets.
    #[schemars(length(max = 512))]
    pub message: String,
}
