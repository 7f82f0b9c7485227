//! Every label, annotation and well-known name that Mimeo writes or reads, with who writes and who
//! reads it.
//!
//! Tests apart, nothing else in the project spells one of these out.

/// Field manager of every copy that Mimeo writes. Its entry in `managedFields` makes an object
/// ours, and keeps it ours for a process that has seen it
/// ([`Seen::ours`](crate::meta::Seen::ours)); labels and annotations prove nothing, whoever may
/// patch the object can set them.
pub const MANAGER: &str = "mimeo";

/// Field manager of rules' statuses. Not that of copies: nothing but copies is ever Mimeo's own.
pub const STATUS_MANAGER: &str = "mimeo-status";

/// Label on every copy, value [`MANAGED_BY_VALUE`]. It selects the watch of copies; no decision
/// rests on it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGED_BY_VALUE: &str = "mimeo";

/// Label on every copy of a `ClusterReplication`: the rule's name (shortened by a hash past 63
/// characters). For people's `kubectl get -l`; Mimeo reads [`RULE`] instead.
pub const CLUSTER_REPLICATION: &str = "mimeo.dev/cluster-replication";

/// The same for a `Replication`: its namespace and name, with a dot between.
pub const REPLICATION: &str = "mimeo.dev/replication";

/// Label on copies that only Mimeo may change, value [`DRIFT_DENY`]: the API server asks about
/// those alone. What the rule says then decides.
pub const DRIFT: &str = "mimeo.dev/drift";
/// Value of [`DRIFT`].
pub const DRIFT_DENY: &str = "deny";

/// Annotation on every copy: the rule it belongs to, as [`RuleId`](crate::id::RuleId) prints it.
/// The selectors of rules find no object that has it.
pub const RULE: &str = "mimeo.dev/rule";
/// Annotation on every copy: the source, as `apiVersion/Kind/namespace/name`, or
/// `inline/apiVersion/Kind/name` if it stands in the rule.
pub const SOURCE: &str = "mimeo.dev/source";
/// Annotation on every copy: checksum of the rendering. On the copy only: whoever reads it can read
/// the copy.
pub const CHECKSUM: &str = "mimeo.dev/checksum";
/// Annotation on copies whose retention isn't all `Delete`: what to do when the rule is gone and
/// can't be asked, and which rule said so.
pub const RETENTION: &str = "mimeo.dev/retention";
/// Annotation on copies that are to have no fields but ours, value [`STRATEGY_REPLACE`]: what is
/// remembered of an object when it is seen hangs by that. What may be done to it, the rule says.
pub const STRATEGY: &str = "mimeo.dev/strategy";
/// Value of [`STRATEGY`].
pub const STRATEGY_REPLACE: &str = "Replace";
/// Annotation on every copy: uid of the `kube-system` namespace of the cluster that wrote it. A
/// copy restored from another cluster's backup carries the other uid and is never collected here.
pub const CLUSTER: &str = "mimeo.dev/cluster";

/// Label on a namespace whose copies aren't all there yet; its value is the token of the admission
/// that set it. The pod gate's `namespaceSelector` asks for it, whoever finds all cells written
/// removes it.
pub const MARK: &str = "mimeo.dev/copies";

/// Annotation on a namespace: what `strategy: CreateOnce` has created in it, as
/// [`Seeds`](crate::seeds::Seeds) prints it. The reconciler writes it, both programs read it.
/// Whoever may patch the namespace can forge it, and gains that such copies come again, or don't
/// come.
pub const SEEDED: &str = "mimeo.dev/seeded";

/// Annotation by which a person confirms a held deletion; its value repeats the nonce of the
/// `DeletionHeld` message. On the rule, or on the kinds `ConfigMap` for a rule that no longer
/// exists.
pub const CONFIRM_DELETION: &str = "mimeo.dev/confirm-deletion";

/// Annotation on objects of Mimeo's kinds: the name of the user who wrote the spec, for people. The
/// webhook sets it, whatever the request carries. No decision rests on it.
pub const AUTHOR: &str = "mimeo.dev/author";

/// Annotation on the kinds `ConfigMap`: uid of the CRD that rules lived under when copies were
/// first written. Another one served since means that the rules were lost with it, not deleted.
/// `former` if there were copies then of rules that weren't there.
pub const CRD_UID: &str = "mimeo.dev/crd-uid";
/// The same for `Replication`s.
pub const REPLICATIONS_CRD_UID: &str = "mimeo.dev/replications-crd-uid";

/// Annotation on a webhook replica's Lease: the highest resourceVersion of a rule that the replica
/// has taken in.
pub const SEEN: &str = "mimeo.dev/seen";
/// Annotation on the same Lease while another client keeps changing the hooks of namespaces and
/// pods: what rules' statuses say of it.
pub const CONTESTED: &str = "mimeo.dev/contested";
/// Label on the Leases of webhook replicas, by which the reconciler finds them.
pub const REPLICA: &str = "mimeo.dev/replica";
/// Value of [`REPLICA`] on a webhook's Lease.
pub const REPLICA_WEBHOOK: &str = "webhook";

/// Label on `ClusterRole`s, value `true`: the cluster adds their rules to what both of Mimeo's
/// programs may do.
pub const AGGREGATE: &str = "mimeo.dev/aggregate-to-mimeo";
/// The same for what the reconciler alone may do.
pub const AGGREGATE_TO_RECONCILER: &str = "mimeo.dev/aggregate-to-mimeo-reconciler";

/// Prefix of every label and annotation key that is Mimeo's own.
pub const PREFIX: &str = "mimeo.dev/";

/// Namespaces that only an exact name in a rule reaches, never a glob, a pattern or a selector.
pub const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];
