//! Mimeo's custom resources, `mimeo.dev/v1alpha1`: the types that every other crate reads rules
//! with, and the `CustomResourceDefinition`s generated from them.
//!
//! A value of these types is the stored object with its defaults, and no more. `mimeo-model` parses
//! these values into its own types. It decides, for example, if a pattern compiles or a selector is
//! valid. This crate has no IO, no client and no clock.
//!
//! `kubectl explain` prints the comments of fields. So they are plain text for the authors of
//! rules. A comment names the default of its field, because `explain` does not show it.
//!
//! [`crds`] is the only source of the CRDs. `manifests/crds/` has them as YAML, and a test compares
//! the two.

// `kubectl explain` prints the comments of fields, and it would print backticks, too. Printer
// columns repeat their types.
#![allow(
    clippy::doc_markdown,
    clippy::doc_link_with_quotes,
    clippy::duplicated_attributes
)]

pub mod cluster_replication;
pub mod copy_options;
pub mod names;
pub mod replication;
pub mod replication_grant;
mod schema;
pub mod selection;
pub mod transform;
pub mod transform_policy;

pub use cluster_replication::{
    ClusterReplication, ClusterReplicationSpec, ClusterReplicationStatus, CopyCounts, CopyFailure,
    Plan, PlannedCopy, PodGate, Source, SourceStatus, Target,
};
pub use copy_options::{
    ConflictPolicy, CopyOptions, DriftPolicy, Retention, RetentionPolicy, Strategy,
};
pub use replication::{Replication, ReplicationSource, ReplicationSpec, ReplicationTarget};
pub use replication_grant::{
    Access, GrantedObjects, ReplicationGrant, ReplicationGrantSpec, ReplicationGrantStatus,
};
pub use schema::crds;
pub use selection::NamespaceSelection;
pub use transform::{
    CopyTransform, DataEdits, JsonPatchOp, JsonPatchOperation, KeyEdits, Transform,
};
pub use transform_policy::{
    FailurePolicy, MatchedKind, ObjectMatch, TransformPolicy, TransformPolicySpec,
    TransformPolicyStatus,
};

/// True if a field that is left out means the same as this value.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
