//! Every label, annotation and well-known name in use by Mimeo, with its writer and its reader.
//!
//! No other code spells these names out, except tests.

/// Field manager of every copy that Mimeo writes. An object with an entry of this manager in
/// `managedFields` is Mimeo's copy. It stays so for a process that has seen the entry
/// ([`Seen::ours`](crate::meta::Seen::ours)). Labels and annotations prove nothing, because any
/// user with write access to the object can set them.
pub const MANAGER: &str = "mimeo";

/// `reportingController` of Mimeo's Events.
pub const REPORTER: &str = "mimeo.dev/reconciler";

/// Field manager of the statuses of rules. It differs from [`MANAGER`], because only copies are
/// Mimeo's own objects.
pub const STATUS_MANAGER: &str = "mimeo-status";

/// Label on every copy, with the value [`MANAGED_BY_VALUE`]. The watch of copies selects by it. No
/// decision depends on it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGED_BY_VALUE: &str = "mimeo";

/// Label on every copy of a `ClusterReplication`: the rule's name, shortened by a hash if it is
/// longer than 63 characters. It is meant for `kubectl get -l`. Mimeo reads [`RULE`] instead.
pub const CLUSTER_REPLICATION: &str = "mimeo.dev/cluster-replication";

/// The same label for a `Replication`: its namespace and name, joined by a dot.
pub const REPLICATION: &str = "mimeo.dev/replication";

/// Label on copies that only Mimeo may change, with the value [`DRIFT_DENY`]. The API server asks
/// the webhook only about objects with this label. The rule then decides.
pub const DRIFT: &str = "mimeo.dev/drift";
/// Value of [`DRIFT`].
pub const DRIFT_DENY: &str = "deny";

/// Annotation on every copy: its rule, as [`RuleId`](crate::id::RuleId) prints it. The selectors of
/// rules find no object that has this annotation.
pub const RULE: &str = "mimeo.dev/rule";
/// Annotation on every copy: the source as `apiVersion/Kind/namespace/name`. An inline source is
/// written as `inline/apiVersion/Kind/name`.
pub const SOURCE: &str = "mimeo.dev/source";
/// Annotation on every copy: checksum of the rendering. It is stored on the copy only, because a
/// reader of the copy knows the content anyway.
pub const CHECKSUM: &str = "mimeo.dev/checksum";
/// Annotation on copies with a retention other than `Delete` for all reasons. It says whether the
/// copy stays when its rule no longer exists, and which rule set it.
pub const RETENTION: &str = "mimeo.dev/retention";
/// Annotation on copies of a rule with strategy `Replace`, with the value [`STRATEGY_REPLACE`].
/// Such a copy must have no fields of other managers. The annotation is for people: the rule
/// decides which changes Mimeo makes to the copy.
pub const STRATEGY: &str = "mimeo.dev/strategy";
/// Value of [`STRATEGY`].
pub const STRATEGY_REPLACE: &str = "Replace";
/// Annotation on every copy: uid of the namespace `kube-system` in the cluster that wrote it. A
/// copy restored from another cluster's backup carries the other uid, and Mimeo never deletes it
/// here.
pub const CLUSTER: &str = "mimeo.dev/cluster";

/// The pending label: on a namespace until all of its copies exist. Its value is a nonce from the
/// admission that set it. The pod gate's `namespaceSelector` selects by this label. The program
/// that finds all copies written removes it.
pub const PENDING_LABEL: &str = "mimeo.dev/copies";

/// Annotation on a namespace: the copies that `strategy: CreateOnce` has created in it, as
/// [`CreatedCopies`](crate::created::CreatedCopies) prints them. The reconciler writes it, and both
/// programs read it. Any user with write access to the namespace can forge it. The only effect is
/// that Mimeo creates such copies again, or does not create them.
pub const CREATED_ONCE: &str = "mimeo.dev/seeded";

/// Annotation that confirms a held deletion. Its value repeats the nonce of the `DeletionHeld`
/// message. A user sets it on the rule. For a rule that no longer exists, the user sets it on the
/// kinds `ConfigMap`.
pub const CONFIRM_DELETION: &str = "mimeo.dev/confirm-deletion";

/// Annotation on objects of Mimeo's kinds: the name of the user that wrote the spec, for people.
/// The webhook sets it and ignores the value in the request. No decision depends on it.
pub const AUTHOR: &str = "mimeo.dev/author";

/// Annotation on a webhook replica's Lease: the highest resourceVersion of a rule that the replica
/// has processed.
pub const SEEN: &str = "mimeo.dev/seen";
/// Annotation on the same Lease, while another client keeps changing the webhook configuration for
/// namespaces and pods. The statuses of rules show this text.
pub const CONTESTED: &str = "mimeo.dev/contested";
/// Label on the Leases of webhook replicas. The reconciler finds the Leases by it.
pub const REPLICA: &str = "mimeo.dev/replica";
/// Value of [`REPLICA`] on a webhook's Lease.
pub const REPLICA_WEBHOOK: &str = "webhook";

/// Label on the Pod of the reconciler that leads. A Service selects the leader by it.
pub const LEADER: &str = "mimeo.dev/leader";
/// Value of [`LEADER`].
pub const LEADER_VALUE: &str = "true";

/// Label on `ClusterRole`s, with the value `true`. The cluster adds their rules to the permissions
/// of both programs.
pub const AGGREGATE: &str = "mimeo.dev/aggregate-to-mimeo";
/// The same for permissions that only the reconciler gets.
pub const AGGREGATE_TO_RECONCILER: &str = "mimeo.dev/aggregate-to-mimeo-reconciler";

/// Prefix of all of Mimeo's own label and annotation keys.
pub const PREFIX: &str = "mimeo.dev/";

/// Namespaces that a rule selects only by their exact names, never by a glob, a pattern or a
/// selector.
pub const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];
