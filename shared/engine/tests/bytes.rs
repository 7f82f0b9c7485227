//! The memory that a copy and a namespace take. Only live allocations count, so the number is the
//! same on every machine.

#![allow(clippy::unwrap_used)] // It is how a test fails.

#[path = "it/common/mod.rs"]
mod common;

use std::{alloc::System, collections::BTreeSet, time::Duration};

use cap::Cap;
use jiff::Timestamp;
use mimeo_engine::{Action, Engine, Request, Settings};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    outcome::Outcome,
    role::Role,
    rule::Rule,
};
use serde_json::{from_value, json};

use common::uid;

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

const RULES: usize = 10;
const NAMESPACES: usize = 1_000;

struct World {
    engine: Engine,
    now: Duration,
    version: u64,
}

fn secrets() -> GroupVersionKind {
    GroupVersionKind::parse("v1", "Secret").unwrap()
}

fn rule(number: usize) -> Rule {
    let source = json!({"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": format!("s{number}")});
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
        "metadata": {"name": format!("rule-{number}"), "uid": uid(number), "generation": 1, "resourceVersion": "7"},
        "spec": {"sources": [source], "targets": [{"namespaces": ["team-*"]}]},
    });
    Rule::parse(&from_value(rule).unwrap()).unwrap()
}

impl World {
    fn new() -> Self {
        let now = Duration::from_secs(10);
        let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
        let names: BTreeSet<Box<str>> = (0..NAMESPACES)
            .map(|number| format!("team-{number}").into())
            .collect();
        for (name, number) in names.iter().zip(1000..) {
            // The API server sets this label on every namespace.
            let labels = json!({"kubernetes.io/metadata.name": name});
            let meta =
                json!({"name": name, "uid": uid(number), "resourceVersion": "5", "labels": labels});
            engine.at(now).namespace_applied(&from_value(meta).unwrap());
        }
        engine.at(now).namespaces_listed(&names);
        engine.at(now).kinds_recorded(&[secrets()].into());
        engine.at(now).kind(
            &secrets(),
            Known::Listed(Resource {
                gvk: secrets(),
                plural: "secrets".into(),
                namespaced: true,
            }),
        );
        engine
            .at(now)
            .rules_known(RuleKind::Replication, Known::Unserved);
        engine
            .at(now)
            .copies_listing(&secrets().group_kind().into());
        engine
            .at(now)
            .copies_known(&secrets().group_kind().into(), Known::Listed(6));
        Self {
            engine,
            now,
            version: 1_000,
        }
    }

    /// Adds one rule after another, as users write them.
    fn add(&mut self, number: usize, ids: &mut BTreeSet<RuleId>) {
        let rule = rule(number);
        let source = rule.sources[0].clone();
        ids.insert(rule.id.clone());
        self.engine
            .at(self.now)
            .rule_applied(rule.id.clone(), Ok(rule), None);
        if number == 0 {
            self.engine
                .at(self.now)
                .rules_known(RuleKind::ClusterReplication, Known::Listed(ids));
        }
        let _ = self.engine.demand();
        self.engine
            .at(self.now)
            .copies_known(&secrets().group_kind().into(), Known::Listed(self.version));
        let object =
            json!({"metadata": {"resourceVersion": "9"}, "type": "a", "data": {"a": "b25l"}});
        self.engine
            .at(self.now)
            .source(&source, Some(Decoded::Whole(object)));
    }

    fn write(&mut self, request: &Request) -> Outcome {
        self.version += 1;
        let entry = json!({
            "manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {},
            "time": "2026-01-01T00:00:00Z",
        });
        let rule = request.rule.as_ref().unwrap();
        let meta = json!({
            "name": &*request.name, "namespace": &*request.namespace, "uid": uid(self.version),
            "resourceVersion": self.version.to_string(), "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [entry], "labels": {"app.kubernetes.io/managed-by": "mimeo"},
            "annotations": {
                "mimeo.dev/rule": rule.to_string(), "mimeo.dev/cluster": "cluster",
                "mimeo.dev/checksum": request.rendering.as_ref().unwrap().checksum.to_string(),
                "mimeo.dev/source": format!("v1/Secret/home/{}", request.name),
            },
        });
        Outcome::Object(Box::new(from_value(meta).unwrap()))
    }

    /// Runs until nothing is due for hours.
    fn settle(&mut self) {
        let end = self.now + Duration::from_hours(1);
        loop {
            while let Some(action) = self.engine.at(self.now).next_action() {
                if let Action::Request(request) = action {
                    let outcome = self.write(&request);
                    self.engine.at(self.now).outcome(&request, outcome);
                    let _ = self.engine.notices();
                }
            }
            let _ = self.engine.at(self.now).statuses(Timestamp::UNIX_EPOCH);
            match self.engine.wake_at().filter(|due| *due < end) {
                Some(due) => self.now = due.max(self.now + Duration::from_millis(1)),
                None if self
                    .engine
                    .index()
                    .status_due()
                    .is_some_and(|due| due < end) =>
                {
                    self.now += Duration::from_secs(1);
                }
                None => return,
            }
        }
    }
}

/// The largest number of bytes that the reconciler may use for each copy, besides its base.
const MOST: usize = 270;
/// The largest number of bytes that it may use for each namespace, without the copies.
const MOST_OF_NAMESPACE: usize = 400;

/// Adds rule by rule. One copy more must not double the size of any table.
#[test]
fn a_copy_takes_no_more_than_270_bytes_and_a_namespace_400() {
    let base = MEMORY.allocated();
    let mut world = World::new();
    world.settle();
    let each = (MEMORY.allocated() - base) / NAMESPACES;
    assert!(
        each <= MOST_OF_NAMESPACE,
        "{each} bytes for each of {NAMESPACES} namespaces"
    );
    let base = MEMORY.allocated();
    let mut ids = BTreeSet::new();
    for number in 0..RULES {
        world.add(number, &mut ids);
        world.settle();
        let copies = (number + 1) * NAMESPACES;
        let synced = world.engine.numbers().copies[&RuleKind::ClusterReplication].synced;
        assert_eq!(synced, copies);
        let each = (MEMORY.allocated() - base) / copies;
        assert!(each <= MOST, "{each} bytes for each of {copies} copies");
    }
}
