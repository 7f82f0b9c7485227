//! The names of Mimeo's kinds in the API server. Mimeo's labels and annotations are in
//! `mimeo-model`.

/// API group of every kind of Mimeo.
pub const GROUP: &str = "mimeo.dev";

/// The only version of the API so far. It is served and stored.
pub const VERSION: &str = "v1alpha1";

/// `apiVersion` of all of Mimeo's objects: group and version.
pub const API_VERSION: &str = "mimeo.dev/v1alpha1";

/// Kind of the cluster-wide rule.
pub const CLUSTER_REPLICATION: &str = "ClusterReplication";

/// Kind of a rule in one namespace.
pub const REPLICATION: &str = "Replication";

/// Kind of a namespace's consent to rules of other namespaces.
pub const REPLICATION_GRANT: &str = "ReplicationGrant";

/// Kind of the policy that changes objects at admission.
pub const TRANSFORM_POLICY: &str = "TransformPolicy";
