//! A standby takes in what its watches show, for as long as another one leads, and grows no larger by it.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::time::Duration;

use mimeo_core::{
    engine::{Engine, Role, Settings},
    kind::GroupVersionKind,
};
use serde_json::{from_value, json};

#[test]
fn a_standby_forgets_what_has_ended() {
    let secrets = GroupVersionKind::parse("v1", "Secret").unwrap().group_kind();
    let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
    let mut now = Duration::ZERO;
    for round in 1..=10 {
        now += Duration::from_secs(1);
        let name = format!("ended-{round}");
        let uid = format!("00000000-0000-4000-8000-{round:012}");
        let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        let namespace =
            json!({"name": name, "uid": uid, "resourceVersion": "5", "labels": {"mimeo.dev/copies": "token"}});
        let copy = json!({
            "name": "registry", "namespace": name, "uid": uid, "resourceVersion": "6", "managedFields": [entry],
            "labels": {"app.kubernetes.io/managed-by": "mimeo"},
            "annotations": {"mimeo.dev/rule": format!("ClusterReplication/{name}"), "mimeo.dev/cluster": "cluster"},
        });
        let (namespace, copy) = (from_value(namespace).unwrap(), from_value(copy).unwrap());
        engine.namespace_applied(&namespace, now);
        engine.copy_applied(&secrets, &copy, now);
        engine.namespace_deleted(&namespace, now);
        engine.copy_gone(&secrets, &copy, now);
    }
    assert!(engine.wake_at().is_some());
    engine.rest(now + Duration::from_mins(1));
    assert_eq!(engine.wake_at(), None);
    let rest = format!("{engine:?}");
    assert!(!rest.contains("ended-"), "{rest}");
}
