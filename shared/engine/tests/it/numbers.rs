//! Values behind the metrics: counts, and durations by the engine's clock.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mimeo_engine::{
    Action, Answer, CopyNumbers, Engine, Job, Notice, Numbers, Queued, Request, Settings, Task,
};
use mimeo_model::{
    id::RuleKind,
    kind::Resource,
    known::{Decoded, Known},
    outcome::{Failure, FailureReason, Outcome},
    role::Role,
    rule::Rule,
    source::SourceRef,
};
use serde_json::{Value, from_value, json};

use crate::common::uid;

const KIND: RuleKind = RuleKind::ClusterReplication;
const TENANTS: RuleKind = RuleKind::Replication;

/// One rule, one source, and namespaces that the rule selects by a label.
struct World {
    engine: Engine,
    source: SourceRef,
    now: Duration,
    written: u64,
    shown: u64,
    /// What was measured, in seconds.
    lags: Vec<u64>,
}

fn namespace(number: u64, version: u64, labels: &Value) -> Value {
    json!({"name": format!("team-{number}"), "uid": uid(number), "resourceVersion": version.to_string(), "labels": labels})
}

fn rule(generation: i64, spec: &Value) -> Rule {
    let mut rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
        "metadata": {"name": "rule", "generation": generation, "uid": uid(0)},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": "x"}],
            "targets": [{"namespaceSelector": {"matchLabels": {"team": "yes"}}}],
        },
    });
    rule["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().cloned().unwrap());
    Rule::parse(&from_value(rule).unwrap()).unwrap()
}

impl World {
    /// All lags so far, in seconds.
    fn lags(&mut self) -> &[u64] {
        for notice in self.engine.at(self.now).notices() {
            match notice {
                Notice::CopyLag { kind, lag } => {
                    assert_eq!(kind, KIND);
                    self.lags.push(lag.as_secs());
                }
                Notice::NamespaceLag(lag) => self.lags.push(lag.as_secs()),
                Notice::Failed(_) | Notice::Held { .. } => {}
            }
        }
        &self.lags
    }

    fn new(role: Role, namespaces: u64, labels: &Value) -> Self {
        let now = Duration::from_secs(1);
        let mut engine = Engine::new(Settings::new(role, "cluster"));
        let rule = rule(1, &json!({}));
        let (id, source) = (rule.id.clone(), rule.sources[0].clone());
        engine.at(now).rule_applied(id.clone(), Ok(rule), None);
        engine
            .at(now)
            .rules_known(KIND, Known::Listed(&[id].into()));
        engine
            .at(now)
            .rules_known(RuleKind::Replication, Known::Unserved);
        let mut listed: BTreeSet<Box<str>> = BTreeSet::new();
        for number in 1..=namespaces {
            engine
                .at(now)
                .namespace_applied(&from_value(namespace(number, 5, labels)).unwrap());
            listed.insert(format!("team-{number}").into());
        }
        engine.at(now).namespaces_listed(&listed);
        let gvk = source.gvk.clone();
        engine.at(now).kinds_recorded(&[gvk.clone()].into());
        engine.at(now).kind(
            &gvk,
            Known::Listed(Resource {
                gvk: gvk.clone(),
                plural: "secrets".into(),
                namespaced: true,
            }),
        );
        let _ = engine.demand();
        engine.at(now).copies_listing(&gvk.group_kind().into());
        engine
            .at(now)
            .copies_known(&gvk.group_kind().into(), Known::Listed(6));
        let mut world = Self {
            engine,
            source,
            now,
            written: 0,
            shown: 0,
            lags: vec![],
        };
        world.change("first");
        world
    }

    fn change(&mut self, type_: &str) {
        let object = json!({"metadata": {"resourceVersion": "9"}, "type": type_});
        self.engine
            .at(self.now)
            .source(&self.source, Some(Decoded::Whole(object)));
    }

    /// The watch shows a namespace with labels that it didn't have before.
    fn come(&mut self, number: u64, labels: &Value) {
        self.shown += 1;
        let namespace = namespace(number, 100 + self.shown, labels);
        self.engine
            .at(self.now)
            .namespace_applied(&from_value(namespace).unwrap());
    }

    fn next(&mut self) -> Option<Action> {
        self.engine.at(self.now).next_action()
    }

    /// Answers all requests, each a second after the one before. Returns the jobs.
    fn answer(&mut self, outcome: impl Fn(&Request) -> Option<Outcome>) -> Vec<Job> {
        let mut jobs = Vec::new();
        while let Some(action) = self.next() {
            match action {
                Action::Request(request) => {
                    self.now += Duration::from_secs(1);
                    let outcome = outcome(&request).unwrap_or_else(|| self.write(&request));
                    self.engine.at(self.now).outcome(&request, outcome);
                }
                Action::Job(job) => jobs.push(*job),
            }
        }
        jobs
    }

    fn write(&mut self, request: &Request) -> Outcome {
        self.written += 1;
        let number: u64 = request
            .namespace
            .strip_prefix("team-")
            .unwrap()
            .parse()
            .unwrap();
        let checksum = request.rendering.as_ref().unwrap().checksum.to_string();
        Outcome::Object(Box::new(self.copy(number, 100 + self.written, &checksum)))
    }

    /// The copy in a namespace, with this resourceVersion.
    fn copy(&self, number: u64, version: u64, checksum: &str) -> ObjectMeta {
        let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        let meta = json!({
            "name": "x", "namespace": format!("team-{number}"), "uid": uid(1000 + number),
            "resourceVersion": version.to_string(),
            "managedFields": [entry], "labels": {"app.kubernetes.io/managed-by": "mimeo"},
            "annotations": {
                "mimeo.dev/rule": "ClusterReplication/rule", "mimeo.dev/cluster": "cluster", "mimeo.dev/checksum": checksum,
                "mimeo.dev/source": self.source.to_string(),
            },
        });
        from_value(meta).unwrap()
    }

    /// Returns the numbers after the statuses were written.
    fn numbers(&mut self) -> Numbers {
        self.now += Duration::from_secs(2);
        let _ = self.engine.at(self.now).statuses(Timestamp::UNIX_EPOCH);
        self.engine.numbers()
    }
}

#[test]
fn rules_and_copies_are_counted_as_their_statuses_say() {
    let mut world = World::new(Role::Keeper, 3, &json!({"team": "yes"}));
    assert_eq!(
        world.engine.numbers().rules,
        [((KIND, None, "Unknown"), 1)].into(),
        "nothing was told yet"
    );
    let Some(Action::Request(first)) = world.next() else {
        panic!("a request")
    };
    assert_eq!(
        world.engine.numbers().queued,
        Queued {
            urgent: 0,
            normal: 2,
            tenants: 0
        }
    );
    let failure = Failure {
        reason: FailureReason::Invalid,
        message: "no".into(),
    };
    world
        .engine
        .at(world.now)
        .outcome(&first, Outcome::Refused(failure));
    world.answer(|_| None);
    let inside = world.engine.inside();
    assert!(inside.primed && inside.informed);
    let count = |what: &str| inside.counts.get(what).copied();
    assert_eq!(
        ["copies", "copiesIdle", "copiesWaiting", "copiesFailed"].map(count),
        [2, 2, 1, 1].map(Some)
    );
    let numbers = world.numbers();
    assert_eq!(numbers.queued, Queued::default());
    assert_eq!(
        numbers.rules,
        [((KIND, Some(false), "CopiesFailed"), 1)].into()
    );
    let copies = CopyNumbers {
        desired: 3,
        synced: 2,
        failed: [(FailureReason::Invalid, 1)].into(),
    };
    assert_eq!(numbers.copies, [(KIND, copies)].into());

    world.change("second");
    world.answer(|_| None);
    let numbers = world.numbers();
    assert_eq!(numbers.rules, [((KIND, Some(true), "Synced"), 1)].into());
    let copies = CopyNumbers {
        desired: 3,
        synced: 3,
        failed: [].into(),
    };
    assert_eq!(numbers.copies, [(KIND, copies)].into());
    assert!(numbers.stalled.is_empty());
}

#[test]
fn a_copy_lags_from_the_change_of_its_source() {
    let mut world = World::new(Role::Keeper, 3, &json!({"team": "yes"}));
    world.answer(|_| None);
    assert_eq!(world.lags().len(), 0, "to create is no change");
    world.now += Duration::from_mins(10);
    world.change("second");
    // The first request gets no answer, and is sent again.
    let Some(Action::Request(first)) = world.next() else {
        panic!("a request")
    };
    let failure = Failure {
        reason: FailureReason::Timeout,
        message: "late".into(),
    };
    world.engine.at(world.now).outcome(
        &first,
        Outcome::Unavailable {
            retry_after: Some(Duration::from_secs(10)),
            failure,
        },
    );
    world.answer(|_| None);
    assert_eq!(world.lags().len(), 2);
    world.now += Duration::from_secs(12);
    world.answer(|_| None);
    assert_eq!(world.lags(), [1, 2, 15], "seconds after the change");

    // The same holds if another client overwrites a copy long after.
    world.now += Duration::from_mins(10);
    world.written += 1;
    let other = world.copy(1, 100 + world.written, &"1".repeat(32));
    world
        .engine
        .at(world.now)
        .copy_applied(&world.source.gvk.group_kind(), &other);
    world.answer(|_| None);
    assert_eq!((world.written, world.lags().len()), (8, 3));

    let id = rule(1, &json!({})).id;
    let labels = json!({"transform": {"labels": {"set": {"a": "b"}}}});
    world
        .engine
        .at(world.now)
        .rule_applied(id, Ok(rule(2, &labels)), None);
    world.answer(|_| None);
    assert_eq!(world.written, 11, "written anew");
    assert_eq!(
        world.lags().len(),
        3,
        "the rule's change is none of the source"
    );
}

/// A tenant may label its namespace. Without this rule, the copies of a `ClusterReplication` would
/// then look late.
#[test]
fn a_copy_lags_from_its_namespaces_labels_where_those_have_changed_since() {
    let mut world = World::new(Role::Keeper, 1, &json!({"team": "yes", "a": "1"}));
    let labels = json!({"transform": {"labels": {"set": {"a": "$(namespace.labels['a'])"}}}});
    world
        .engine
        .at(world.now)
        .rule_applied(rule(1, &json!({})).id, Ok(rule(2, &labels)), None);
    world.answer(|_| None);
    world.change("second");
    world.answer(|_| None);
    world.now += Duration::from_mins(10);
    world.come(1, &json!({"team": "yes", "a": "2"}));
    world.answer(|_| None);
    assert_eq!(world.lags(), [1, 1]);
}

#[test]
fn a_namespace_lags_from_its_mark_to_the_end_of_it_where_that_is_put() {
    let mut world = World::new(
        Role::Injector,
        2,
        &json!({"team": "yes", "mimeo.dev/copies": "token"}),
    );
    for name in ["team-1", "team-2"] {
        world.engine.at(world.now).take_charge(name);
    }
    assert_eq!(world.engine.numbers().waiting, 2);
    let mut jobs = world.answer(|_| None);
    jobs.retain(|job| matches!(job.task, Task::RemoveLabel { .. }));
    let [first, second] = &jobs[..] else {
        panic!("{jobs:?}")
    };
    world.now += Duration::from_secs(3);
    // The watch may show a write before its answer arrives.
    let bare = namespace(1, 99, &json!({"team": "yes"}));
    world
        .engine
        .at(world.now)
        .namespace_applied(&from_value(bare).unwrap());
    world.engine.at(world.now).answered(first, Answer::Done);
    // Another replica did this job first.
    world.engine.at(world.now).answered(second, Answer::Failed);
    assert_eq!(world.lags(), [5]);
    assert_eq!(world.engine.numbers().waiting, 1);
}

/// Finalizers alone decide how long a stuck namespace lasts.
#[test]
fn a_namespace_that_goes_waits_for_nothing() {
    let mut world = World::new(
        Role::Keeper,
        1,
        &json!({"team": "yes", "mimeo.dev/copies": "token"}),
    );
    assert_eq!(world.engine.numbers().waiting, 1);
    let mut going = namespace(1, 50, &json!({"team": "yes", "mimeo.dev/copies": "token"}));
    going["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    world
        .engine
        .at(world.now)
        .namespace_applied(&from_value(going).unwrap());
    assert_eq!(world.engine.numbers().waiting, 0);
}

#[test]
fn held_deletions_are_counted_by_copies() {
    let mut world = World::new(Role::Keeper, 30, &json!({"team": "yes"}));
    world.answer(|_| None);
    for number in 1..=25 {
        let other = namespace(number, 50, &json!({}));
        world
            .engine
            .at(world.now)
            .namespace_applied(&from_value(other).unwrap());
    }
    assert!(world.next().is_none());
    assert_eq!(
        world.engine.numbers().held,
        [(KIND, 0), (TENANTS, 0)].into(),
        "they are being collected"
    );
    world.now += Duration::from_secs(11);
    assert!(world.next().is_none());
    let numbers = world.numbers();
    assert_eq!(numbers.held, [(KIND, 25), (TENANTS, 0)].into());
    assert_eq!(numbers.stalled, [((KIND, "DeletionHeld"), 1)].into());
}

#[test]
fn a_secret_is_in_none_of_them() {
    let mut world = World::new(Role::Keeper, 1, &json!({"team": "yes"}));
    world.change("hunter2");
    world.answer(|_| None);
    let told = format!("{:?} {:?}", world.numbers(), world.engine.inside());
    assert!(
        told.contains("copiesIdle") && !told.contains("hunter2"),
        "{told}"
    );
}
