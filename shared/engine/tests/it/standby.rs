//! A standby follows its watches for as long as another replica leads, and does not grow. The same
//! holds for a webhook.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::time::Duration;

use mimeo_engine::{Engine, Members, Settings};
use mimeo_model::{
    id::RuleKind,
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    role::Role,
    rule::Rule,
};
use serde_json::{from_value, json};

#[test]
fn a_standby_forgets_what_has_ended() {
    let secrets = GroupVersionKind::parse("v1", "Secret")
        .unwrap()
        .group_kind();
    let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
    let mut now = Duration::ZERO;
    for round in 1..=10 {
        now += Duration::from_secs(1);
        let name = format!("ended-{round}");
        let uid = format!("00000000-0000-4000-8000-{round:012}");
        let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        let namespace = json!({"name": name, "uid": uid, "resourceVersion": "5", "labels": {"mimeo.dev/copies": "token"}});
        let copy = json!({
            "name": "registry", "namespace": name, "uid": uid, "resourceVersion": "6", "managedFields": [entry],
            "labels": {"app.kubernetes.io/managed-by": "mimeo"},
            "annotations": {"mimeo.dev/rule": format!("ClusterReplication/{name}"), "mimeo.dev/source": format!("v1/Secret/{name}/x"), "mimeo.dev/cluster": "cluster"},
        });
        let (namespace, copy) = (from_value(namespace).unwrap(), from_value(copy).unwrap());
        engine.at(now).namespace_applied(&namespace);
        engine.at(now).copy_applied(&secrets, &copy);
        engine.at(now).namespace_deleted(&namespace);
        engine.at(now).copy_gone(&secrets, &copy);
    }
    assert!(engine.wake_at().is_some());
    engine.at(now + Duration::from_mins(1)).rest();
    assert_eq!(engine.wake_at(), None);
    let rest = format!("{engine:?}");
    assert!(!rest.contains("ended-"), "{rest}");
}

#[test]
fn a_webhook_forgets_what_has_ended() {
    let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
    let mut engine = Engine::new(Settings::new(Role::Injector, "cluster"));
    let now = Duration::from_secs(1);
    let selector = json!({"matchLabels": {"copy": "yes"}});
    let rule = |name: &str| {
        let source = json!({"apiVersion": "v1", "kind": "Secret", "namespace": "home", "selector": selector});
        let spec = json!({"sources": [source], "targets": [{"namespaceSelector": {}}]});
        let rule = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": name}, "spec": spec,
        });
        Rule::parse(&from_value(rule).unwrap()).unwrap()
    };
    let stays = rule("stays");
    engine
        .at(now)
        .rule_applied(stays.id.clone(), Ok(stays.clone()), None);
    engine.at(now).rules_known(
        RuleKind::ClusterReplication,
        Known::Listed(&[stays.id.clone()].into()),
    );
    engine.at(now).kind(
        &gvk,
        Known::Listed(Resource {
            gvk: gvk.clone(),
            plural: "secrets".into(),
            namespaced: true,
        }),
    );
    let _ = engine.demand();
    engine
        .at(now)
        .selected(&stays.selectors[0], Known::Listed(&Members::default()));
    for round in 1..=10 {
        let ended = rule(&format!("ended-{round}"));
        engine
            .at(now)
            .rule_applied(ended.id.clone(), Ok(ended.clone()), None);
        let source = stays.selectors[0].source(format!("ended-{round}"));
        let meta = json!({"name": &*source.name, "namespace": "home", "resourceVersion": "7", "labels": {"copy": "yes"}});
        engine.at(now).source(
            &source,
            Some(Decoded::Whole(json!({"metadata": meta, "type": "Opaque"}))),
        );
        assert!(format!("{engine:?}").contains("ended-"));
        engine.at(now).source(&source, None);
        engine.at(now).rule_gone(&ended.id);
    }
    let _ = engine.demand();
    // A rule that is gone is remembered for ten minutes.
    engine.at(now + Duration::from_mins(11)).rest();
    let rest = format!("{engine:?}");
    assert!(!rest.contains("ended-"), "{rest}");
}
