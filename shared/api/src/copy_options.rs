//! The fields of both kinds of rule about their copies: how Mimeo makes them, keeps them, and
//! deletes them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    is_default,
    schema::{rule, rule_of},
    transform::CopyTransform,
};

/// How a rule's copies are made and kept. Both kinds of rule have these fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct CopyOptions {
    /// How the copies differ from their sources. If left out, they do not. In a Replication,
    /// finalizers are allowed only if every target is its own namespace.
    #[serde(skip_serializing_if = "is_default")]
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
    /// that any ClusterReplication names as its source is always left alone. A Replication also
    /// leaves alone what a Replication names as its source, and may read. If two rules want the
    /// same name, one rule has it and the other reports a conflict. A ClusterReplication has it
    /// before a Replication. A copy that a rule no longer wants is taken over in place. In a
    /// Replication, Adopt and Overwrite are allowed only if every target is its own namespace.
    /// Default: Report.
    pub conflict_policy: ConflictPolicy,

    /// Policy for changes and deletions of copies by other clients. Repair: Mimeo restores the
    /// copy. Deny: the API server refuses the request, unless the namespace is being deleted. If no
    /// webhook could refuse the request, Mimeo restores the copy. Deny needs strategy Replace: with
    /// Apply other clients may add fields to a copy, and with CreateOnce the copy is theirs. In a
    /// Replication, Deny is allowed only if every target is its own namespace. There the API server
    /// refuses no request of the cluster's own clients: service accounts of kube-system, nodes,
    /// system:kube-*. Default: Repair.
    pub drift_policy: DriftPolicy,

    /// Whether copies that are no longer wanted are deleted or stay. A Replication's copy that its
    /// namespace no longer grants counts as unmatched. Not with strategy CreateOnce: such copies
    /// always stay. Default: all are deleted.
    #[serde(skip_serializing_if = "is_default")]
    pub retention_policy: RetentionPolicy,

    /// Period in seconds in which Mimeo verifies each copy in addition to its watches. It applies
    /// the copy; if the copy is right, the apply changes nothing. The verifications of a rule's
    /// copies are spread over the period. From 10 to 604800, or 0: never. Not with strategy
    /// CreateOnce, whose copies belong to their namespaces. Default: 0.
    #[schemars(range(min = 0, max = 604_800), extend("x-kubernetes-validations" = [
        rule("self == 0 || self >= 10", "must be 0 or at least 10"),
    ]))]
    pub resync_seconds: i32,

    /// Stop writing and deleting for this rule. While this is true, no pod waits for the rule's
    /// copies, and status.plan shows what the rule would do. Default: false.
    pub suspend: bool,
}

/// The conditions of both kinds of rule, which a kind completes with `data`: the sources for which
/// `transform.data` is allowed. Only a `ClusterReplication` has sources that are embedded in it.
pub(crate) fn conditions(data: &str) -> [Value; 6] {
    [
        rule_of(
            ".targets",
            "(size(self.sources) == 1 && !has(self.sources[0].selector)) || !has(self.targets) \
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
            &format!(
                "!has(self.transform) || !has(self.transform.data) || self.sources.all(s, {data})"
            ),
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
            "driftPolicy Deny needs strategy Replace: with Apply others may add fields to a copy, \
             and with CreateOnce they own it",
        ),
        rule_of(
            ".resyncSeconds",
            "self.strategy != 'CreateOnce' || self.resyncSeconds == 0",
            "resyncSeconds must be 0: with strategy CreateOnce Mimeo never updates a copy",
        ),
    ]
}

/// How Mimeo writes copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DriftPolicy {
    /// Mimeo restores the copy.
    #[default]
    Repair,
    /// The API server refuses the request.
    Deny,
}

/// Whether a copy that is no longer wanted is deleted or stays, by cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RetentionPolicy {
    /// When this rule is deleted. Delete: the copies are deleted. Retain: they stay as they are.
    /// Mimeo records the choice on each copy when it writes the copy. So a change has no effect on
    /// copies that are not written afterwards, as while the rule is suspended or its source is
    /// missing. A later rule of the same name takes over the copies that it wants, and leaves the
    /// others. Default: Delete.
    pub when_rule_deleted: Retention,

    /// When a namespace is no longer selected. Delete: its copies are deleted. Retain: they stay as
    /// they are. Default: Delete.
    pub when_unmatched: Retention,

    /// When a source is deleted. Delete: its copies are deleted after the grace period. Retain:
    /// they stay as they are. Default: Delete.
    pub when_source_deleted: Retention,

    /// Grace period in seconds after the deletion of a source. If the source is created again
    /// within it, its copies stay. The period begins again when the reconciler restarts. From 0 to
    /// 86400. Default: 60.
    #[schemars(range(min = 0, max = 86400))]
    pub source_grace_period_seconds: i32,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        Self {
            when_rule_deleted: Retention::default(),
            when_unmatched: Retention::default(),
            when_source_deleted: Retention::default(),
            source_grace_period_seconds: 60,
        }
    }
}

/// Whether a copy that is no longer wanted is deleted or stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Retention {
    /// The copy is deleted.
    #[default]
    Delete,
    /// The copy stays, and is no longer updated.
    Retain,
}
