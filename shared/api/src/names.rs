//! The names under which the API server knows Mimeo's kinds. Marks on copies are not here: they are
//! `mimeo-model`'s.

/// API group of every kind of Mimeo.
pub const GROUP: &str = "mimeo.dev";

/// The only version so far, served and stored.
pub const VERSION: &str = "v1alpha1";

/// `apiVersion` of every object of Mimeo: group and version.
pub const API_VERSION: &str = "mimeo.dev/v1alpha1";

/// Kind of the cluster-wide rule.
pub const CLUSTER_REPLICATION: &str = "ClusterReplication";

/// Kind of a namespace's own rule.
pub const REPLICATION: &str = "Replication";

/// Kind of the consent of a namespace to other namespaces' rules.
pub const REPLICATION_GRANT: &str = "ReplicationGrant";

/// Kind of the policy that rewrites objects as they are admitted.
pub const TRANSFORM_POLICY: &str = "TransformPolicy";
