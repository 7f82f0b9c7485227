//! Objects as people write them and as the API server stores them, read into the types and back.

use mimeo_api::{
    ClusterReplication, ClusterReplicationStatus, ConflictPolicy, CopyTransform, FailurePolicy,
    KeyEdits, PodGate, Retention, RetentionPolicy, Strategy, Transform, TransformPolicy,
    is_default,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

const SHORTEST: &str = "
apiVersion: mimeo.dev/v1alpha1
kind: ClusterReplication
metadata: {name: registry}
spec:
  sources: [{apiVersion: v1, kind: Secret, namespace: platform, name: registry}]
  targets: [{namespaceSelector: {}}]
";

const RENAMED: &str = "
apiVersion: mimeo.dev/v1alpha1
kind: ClusterReplication
metadata: {name: wildcard}
spec:
  sources:
  - {apiVersion: v1, kind: Secret, namespace: certificates, name: wildcard}
  - {apiVersion: v1, kind: Secret, namespace: certificates, name: fallback}
  targets:
  - namespaceSelector: {matchLabels: {ingress: 'true'}}
    copyName: tls-$(source.name)
  - namespaces: [edge]
  exclude:
  - {namespaces: ['sandbox-*']}
  - {namespacePattern: 'tmp-[0-9]+'}
  transform:
    type: kubernetes.io/tls
    labels: {include: [], set: {tier: edge}}
    annotations: {exclude: ['example.com/*']}
    finalizers: [example.com/credential]
  retentionPolicy: {whenSourceDeleted: Retain, sourceGracePeriodSeconds: 0}
  podGate: Required
  suspend: true
";

const POLICY: &str = "
apiVersion: mimeo.dev/v1alpha1
kind: TransformPolicy
metadata: {name: credentials}
spec:
  match:
    kinds: [{apiVersion: v1, kind: Secret}]
    objectSelector: {matchLabels: {example.com/synced: 'true'}}
    excludeNamespaces: [platform]
  transform: {type: example.com/basic-auth}
";

#[test]
fn what_is_left_out_has_its_default() {
    let spec = read::<ClusterReplication>(SHORTEST).spec;
    assert_eq!(spec.copies.transform, CopyTransform::default());
    assert!(is_default(&spec.copies.transform));
    assert_eq!(spec.copies.strategy, Strategy::Apply);
    assert_eq!(spec.copies.conflict_policy, ConflictPolicy::Report);
    assert_eq!(spec.pod_gate, PodGate::BestEffort);
    assert!(!spec.copies.suspend);
    assert_eq!(
        spec.copies.retention_policy,
        RetentionPolicy {
            when_rule_deleted: Retention::Delete,
            when_unmatched: Retention::Delete,
            when_source_deleted: Retention::Delete,
            source_grace_period_seconds: 60,
        }
    );
    assert_eq!(
        read::<TransformPolicy>(POLICY).spec.failure_policy,
        FailurePolicy::Fail
    );
}

#[test]
fn an_empty_struct_has_the_defaults_of_its_fields() {
    assert_eq!(read::<RetentionPolicy>("{}"), RetentionPolicy::default());
    assert_eq!(
        read::<KeyEdits>("{}"),
        KeyEdits {
            include: vec!["*".to_owned()],
            ..KeyEdits::default()
        }
    );
    assert_eq!(read::<Transform>("{labels: {}}"), Transform::default());
    assert_eq!(
        read::<CopyTransform>("{labels: {}}"),
        CopyTransform::default()
    );
    assert_eq!(
        read::<ClusterReplicationStatus>("{}"),
        ClusterReplicationStatus::default()
    );
}

#[test]
fn what_is_said_is_kept() {
    let spec = read::<ClusterReplication>(RENAMED).spec;
    let [ingress, edge] = &spec.targets[..] else {
        unreachable!("two targets were written")
    };
    assert!(ingress.selection.namespace_selector.is_some());
    assert_eq!(ingress.copy_name.as_deref(), Some("tls-$(source.name)"));
    let [sandbox, temporary] = &spec.exclude[..] else {
        unreachable!("two exclusions were written")
    };
    assert_eq!(sandbox.namespaces, ["sandbox-*"]);
    assert_eq!(temporary.namespace_pattern.as_deref(), Some("tmp-[0-9]+"));
    assert_eq!(edge.selection.namespaces, ["edge"]);
    assert!(edge.selection.namespace_selector.is_none());
    assert!(
        spec.copies.transform.common.labels.include.is_empty(),
        "an empty list keeps no key"
    );
    assert_eq!(spec.copies.transform.common.annotations.include, ["*"]);
    assert_eq!(
        spec.copies.retention_policy.when_source_deleted,
        Retention::Retain
    );
    assert_eq!(
        spec.copies.retention_policy.when_unmatched,
        Retention::Delete
    );
    assert_eq!(spec.copies.retention_policy.source_grace_period_seconds, 0);
}

#[test]
fn writing_and_reading_again_changes_nothing() {
    fn holds<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(text: &str) {
        let object = read::<T>(text);
        let written = serde_json::to_value(&object).expect("a rule can be written");
        assert_eq!(
            serde_json::from_value::<T>(written).expect("what was written can be read"),
            object
        );
    }
    holds::<ClusterReplication>(SHORTEST);
    holds::<ClusterReplication>(RENAMED);
    holds::<TransformPolicy>(POLICY);
}

/// A newer version's fields may still be stored: the API server prunes them only as an object is
/// written.
#[test]
fn an_unknown_field_is_passed_over() {
    let mut object: Value = read(SHORTEST);
    object["spec"]["later"] = json!({"field": 1});
    object["spec"]["targets"][0]["later"] = json!(true);
    let known: ClusterReplication =
        serde_json::from_value(object).expect("unknown fields are passed over");
    assert_eq!(known, read(SHORTEST));
}

#[test]
fn a_policy_that_does_not_exist_is_refused() {
    for field in ["strategy", "conflictPolicy", "podGate"] {
        let mut object: Value = read(SHORTEST);
        object["spec"][field] = json!("Whatever");
        assert!(
            serde_json::from_value::<ClusterReplication>(object).is_err(),
            "{field}"
        );
    }
}

#[track_caller]
fn read<T: DeserializeOwned>(text: &str) -> T {
    serde_yaml::from_str(text).expect("the example can be read")
}
