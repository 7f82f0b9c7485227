//! `resyncSeconds`: Mimeo verifies each copy once per period, each at its own time, by one request
//! that changes nothing.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use mimeo_engine::{Action, Engine, Request, Verb, copy::Why};
use mimeo_model::{
    kind::Resource,
    known::{Decoded, Known},
    outcome::Outcome,
    role::Role,
    rule::Rule,
};
use serde_json::{Value, from_value, json};

use crate::common::{primed, uid};

const PERIOD: Duration = Duration::from_mins(1);
const COPIES: usize = 100;

struct Scene {
    engine: Engine,
    now: Duration,
    /// resourceVersions of the copies.
    versions: BTreeMap<String, u64>,
}

fn rule(generation: i64, spec: &Value) -> Rule {
    let mut rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
        "metadata": {"name": "rule", "generation": generation, "uid": uid(0)},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": "x"}],
            "targets": [{"namespaces": ["team-*"]}], "resyncSeconds": PERIOD.as_secs(),
        },
    });
    rule["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().cloned().unwrap());
    Rule::parse(&from_value(rule).unwrap()).unwrap()
}

impl Scene {
    fn new(role: Role) -> Self {
        let now = Duration::from_secs(1);
        let rule = rule(1, &json!({}));
        let source = rule.sources[0].clone();
        let gvk = source.gvk.clone();
        let resource = Resource {
            gvk: gvk.clone(),
            plural: "secrets".into(),
            namespaced: true,
        };
        let mut engine = primed(role, rule, resource, COPIES, now);
        engine.at(now).copies_listing(&gvk.group_kind().into());
        engine
            .at(now)
            .copies_known(&gvk.group_kind().into(), Known::Listed(6));
        engine.at(now).source(
            &source,
            Some(Decoded::Whole(
                json!({"metadata": {"resourceVersion": "9"}, "type": "Opaque"}),
            )),
        );
        let mut scene = Self {
            engine,
            now,
            versions: BTreeMap::new(),
        };
        let created = scene.run(Duration::ZERO);
        assert!(
            created
                .iter()
                .all(|(_, request)| request.verb == Verb::Create)
        );
        assert_eq!(created.len(), COPIES);
        scene
    }

    /// Lets time pass and answers all requests like an API server on which nothing has changed.
    fn run(&mut self, time: Duration) -> Vec<(Duration, Box<Request>)> {
        let end = self.now + time;
        let mut sent = Vec::new();
        loop {
            while let Some(action) = self.engine.at(self.now).next_action() {
                let Action::Request(request) = action else {
                    continue;
                };
                let meta = self.copy(&request);
                self.engine.at(self.now).outcome(
                    &request,
                    Outcome::Object(Box::new(from_value(meta).unwrap())),
                );
                sent.push((self.now, request));
            }
            match self.engine.wake_at().filter(|due| *due <= end) {
                Some(due) => self.now = due,
                None => break,
            }
        }
        self.now = end;
        sent
    }

    fn copy(&mut self, request: &Request) -> Value {
        let (namespace, next) = (
            request.namespace.to_string(),
            10 + self.versions.len() as u64,
        );
        let version = *self.versions.entry(namespace.clone()).or_insert(next);
        let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        let checksum = request.rendering.as_ref().unwrap().checksum.to_string();
        json!({
            "name": "x", "namespace": namespace, "uid": uid(version), "resourceVersion": version.to_string(),
            "managedFields": [entry], "labels": {"app.kubernetes.io/managed-by": "mimeo"},
            "annotations": {
                "mimeo.dev/rule": "ClusterReplication/rule", "mimeo.dev/cluster": "cluster", "mimeo.dev/checksum": checksum,
            },
        })
    }
}

#[test]
fn each_copy_is_verified_once_in_a_period_and_not_all_at_once() {
    let mut scene = Scene::new(Role::Keeper);
    let _ = scene.engine.at(scene.now).statuses(Timestamp::UNIX_EPOCH);
    for _ in 0..3 {
        let sent = scene.run(PERIOD);
        assert!(
            sent.iter()
                .all(|(_, request)| request.why == Some(Why::Resync))
        );
        assert!(
            sent.iter()
                .all(|(_, request)| matches!(request.verb, Verb::Apply(_)))
        );
        let namespaces: BTreeSet<_> = sent
            .iter()
            .map(|(_, request)| request.namespace.clone())
            .collect();
        assert_eq!((sent.len(), namespaces.len()), (COPIES, COPIES));
        let moments: BTreeSet<u64> = sent.iter().map(|(at, _)| at.as_secs()).collect();
        assert!(
            moments.len() > COPIES / 4,
            "spread over {} seconds",
            moments.len()
        );
        let status = scene
            .engine
            .at(scene.now)
            .statuses(Timestamp::from_second(1).unwrap());
        assert!(status.is_empty(), "nothing has changed: {status:?}");
    }
}

/// A timer of the former period has no effect.
#[test]
fn the_period_is_the_rules_own_and_nothing_is_verified_while_it_is_suspended() {
    let mut scene = Scene::new(Role::Keeper);
    let change = |scene: &mut Scene, generation, spec: &Value| {
        let rule = rule(generation, spec);
        scene
            .engine
            .at(scene.now)
            .rule_applied(rule.id.clone(), Ok(rule), None);
    };
    change(&mut scene, 2, &json!({"suspend": true}));
    assert_eq!(scene.run(PERIOD * 3).len(), 0, "suspended");
    change(&mut scene, 3, &json!({}));
    assert_eq!(
        scene.run(Duration::ZERO).len(),
        0,
        "not all at once when it isn't any more"
    );
    assert_eq!(scene.run(PERIOD).len(), COPIES);
    change(&mut scene, 4, &json!({"resyncSeconds": 0}));
    assert_eq!(scene.run(PERIOD * 3).len(), 0, "never");
    change(&mut scene, 5, &json!({"resyncSeconds": 120}));
    assert_eq!(scene.run(PERIOD * 2).len(), COPIES, "every other minute");
    assert_eq!(scene.run(PERIOD * 2).len(), COPIES);
}

/// Otherwise a user that may edit a rule could pile up timers, for as long as the longest period.
#[test]
fn no_timer_is_left_of_a_period_that_a_rule_has_no_more_or_of_a_copy_that_is_gone() {
    let quiet = |scene: &Scene| {
        scene
            .engine
            .wake_at()
            .is_none_or(|due| due > scene.now + PERIOD)
    };
    let mut scene = Scene::new(Role::Keeper);
    assert!(!quiet(&scene));
    let rule = rule(2, &json!({"resyncSeconds": 0}));
    scene
        .engine
        .at(scene.now)
        .rule_applied(rule.id.clone(), Ok(rule), None);
    scene.run(Duration::from_secs(10));
    assert!(
        quiet(&scene),
        "{:?} at {:?}",
        scene.engine.wake_at(),
        scene.now
    );

    let mut scene = Scene::new(Role::Keeper);
    for number in 0..COPIES {
        scene
            .engine
            .at(scene.now)
            .namespace_gone(&format!("team-{number}"));
    }
    scene.run(Duration::from_secs(10));
    assert!(
        quiet(&scene),
        "{:?} at {:?}",
        scene.engine.wake_at(),
        scene.now
    );
}

#[test]
fn whoever_only_creates_verifies_nothing() {
    let mut scene = Scene::new(Role::Injector);
    assert_eq!(scene.run(PERIOD * 3).len(), 0);
}

/// The copy exists, and is most likely correct.
#[test]
fn a_copy_that_is_being_verified_holds_no_pod() {
    let mut scene = Scene::new(Role::Keeper);
    let request = loop {
        match scene.engine.at(scene.now).next_action() {
            Some(Action::Request(request)) => break request,
            Some(Action::Job(_)) => {}
            None => scene.now = scene.engine.wake_at().unwrap(),
        }
    };
    assert_eq!(request.why, Some(Why::Resync));
    let progress = scene.engine.at(scene.now).progress(&request.namespace);
    assert!(crate::common::ready(&progress), "{progress:?}");
}
