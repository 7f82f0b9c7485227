//! Mimeo's custom resources, `mimeo.dev/v1alpha1`: the types that every other crate reads rules
//! with, and the `CustomResourceDefinition`s generated from them.
//!
//! A value here is what the API server stored and no more: defaults are filled in, but whether a
//! pattern compiles or a selector can be parsed is decided in `mimeo-model`, where these types are
//! turned into what the programs work with. No IO, no client, no clock.
//!
//! The comments of fields are also what `kubectl explain` prints: plain text for the authors of
//! rules. `explain` shows no defaults, so a field that has one says so.
//!
//! [`crds`] is the one way to the definitions; `manifests/crds/` holds them as YAML and a test
//! compares the two.

pub mod cluster_replication;
pub mod names;
pub mod replication;
pub mod replication_grant;
mod schema;
pub mod selection;
pub mod transform;
pub mod transform_policy;

pub use cluster_replication::{
    ClusterReplication, ClusterReplicationSpec, ClusterReplicationStatus, ConflictPolicy,
    CopyCounts, CopyFailure, DriftPolicy, Plan, PlannedCopy, PodGate, Retention, RetentionPolicy,
    Source, SourceStatus, Strategy, Target,
};
pub use replication::{Replication, ReplicationSource, ReplicationSpec, ReplicationTarget};
pub use replication_grant::{
    Access, GrantedObjects, ReplicationGrant, ReplicationGrantSpec, ReplicationGrantStatus,
};
pub use schema::{EXACT_TARGETS, crds};
pub use selection::NamespaceSelection;
pub use transform::{
    CopyTransform, DataEdits, JsonPatchOp, JsonPatchOperation, KeyEdits, Transform,
};
pub use transform_policy::{
    FailurePolicy, MatchedKind, ObjectMatch, TransformPolicy, TransformPolicySpec,
    TransformPolicyStatus,
};
