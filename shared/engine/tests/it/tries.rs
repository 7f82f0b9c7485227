//! Retries of failed requests: how often they happen, and their other costs.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use mimeo_engine::{Action, Answer, Engine, Request, Task, Verb};
use mimeo_model::{
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    outcome::{Failure, FailureReason, Outcome},
    role::Role,
    rule::Rule,
};
use serde_json::{Value, from_value, json};

use crate::common::{primed, uid};

/// An engine with one rule for some namespaces, and the objects at the places of its copies.
struct World {
    engine: Engine,
    gvk: GroupVersionKind,
    now: Duration,
    /// Metadata of the existing objects, by namespace.
    objects: BTreeMap<String, Value>,
    version: u64,
    unmarks: usize,
}

impl World {
    fn new(role: Role, namespaces: usize, spec: &Value) -> Self {
        let now = Duration::from_secs(1);
        let mut rule = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "rule", "generation": 1},
            "spec": {
                "sources": [{"apiVersion": "example.com/v1", "kind": "Box", "namespace": "home", "name": "x"}],
                "targets": [{"namespaces": ["team-*"]}],
            },
        });
        rule["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().cloned().unwrap());
        let rule = Rule::parse(&from_value(rule).unwrap()).unwrap();
        let source = rule.sources[0].clone();
        let gvk = source.gvk.clone();
        let resource = Resource {
            gvk: gvk.clone(),
            plural: "boxes".into(),
            namespaced: true,
        };
        let mut engine = primed(role, rule, resource, namespaces, now);
        engine.at(now).copies_listing(&gvk.group_kind().into());
        engine
            .at(now)
            .copies_known(&gvk.group_kind().into(), Known::Listed(6));
        engine.at(now).source(
            &source,
            Some(Decoded::Whole(
                json!({"metadata": {"resourceVersion": "9"}, "spec": {"a": "b"}}),
            )),
        );
        Self {
            engine,
            gvk,
            now,
            objects: BTreeMap::new(),
            version: 10,
            unmarks: 0,
        }
    }

    /// Lets time pass and answers all requests. Returns these requests.
    fn run(
        &mut self,
        time: Duration,
        mut answer: impl FnMut(&mut Self, &Request) -> Outcome,
    ) -> Vec<Verb> {
        let (end, mut sent) = (self.now + time, Vec::new());
        loop {
            while let Some(action) = self.engine.at(self.now).next_action() {
                match action {
                    Action::Request(request) => {
                        sent.push(request.verb);
                        let outcome = answer(self, &request);
                        self.engine.at(self.now).outcome(&request, outcome);
                    }
                    Action::Job(job) => {
                        if matches!(job.task, Task::RemoveLabel { .. }) {
                            self.unmarks += 1;
                            self.engine.at(self.now).answered(&job, Answer::Failed);
                        }
                    }
                }
            }
            match self.engine.wake_at().filter(|due| *due <= end) {
                Some(due) => self.now = self.now.max(due),
                None => break,
            }
        }
        self.now = end;
        sent
    }

    /// Answers like a healthy API server: an apply that changes nothing keeps the resourceVersion.
    fn carry_out(&mut self, request: &Request) -> Outcome {
        let namespace = request.namespace.to_string();
        match request.verb {
            Verb::Create if self.objects.contains_key(&namespace) => Outcome::Conflict,
            Verb::Create => {
                self.version += 1;
                let copy = self.copy(request, self.version);
                self.objects.insert(namespace, copy.clone());
                Outcome::Object(Box::new(from_value(copy).unwrap()))
            }
            _ => match self.objects.get(&namespace) {
                Some(object) => Outcome::Object(Box::new(from_value(object.clone()).unwrap())),
                None => Outcome::Absent,
            },
        }
    }

    fn copy(&self, request: &Request, version: u64) -> Value {
        let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        json!({
            "name": "x", "namespace": &*request.namespace, "uid": uid(self.version), "resourceVersion": version.to_string(),
            "managedFields": [entry], "labels": {"app.kubernetes.io/managed-by": "mimeo"},
            "annotations": {
                "mimeo.dev/rule": "ClusterReplication/rule", "mimeo.dev/cluster": "cluster",
                "mimeo.dev/checksum": request.rendering.as_ref().unwrap().checksum.to_string(),
            },
        })
    }

    /// Another client writes fields to a copy that aren't Mimeo's.
    fn touch(&mut self, namespace: &str) {
        self.version += 1;
        let object = self.objects.get_mut(namespace).unwrap();
        object["resourceVersion"] = self.version.to_string().into();
        let meta = from_value(object.clone()).unwrap();
        self.engine
            .at(self.now)
            .copy_applied(&self.gvk.group_kind(), &meta);
    }

    fn failures(&mut self) -> Vec<String> {
        self.now += Duration::from_secs(2);
        let statuses = self.engine.at(self.now).statuses(Timestamp::UNIX_EPOCH);
        statuses
            .into_iter()
            .flat_map(|update| update.status.failures)
            .map(|failure| failure.reason)
            .collect()
    }
}

fn refused(reason: FailureReason) -> Outcome {
    Outcome::Refused(Failure {
        reason,
        message: "no".into(),
    })
}

/// The request may become valid later: a schema may change, or a port may become free. No watch
/// shows that.
#[test]
fn what_is_invalid_is_tried_again_once_in_a_while() {
    for reason in [FailureReason::Invalid, FailureReason::TooLarge] {
        let mut world = World::new(Role::Keeper, 1, &json!({}));
        let tries = world.run(Duration::from_hours(1), |_, _| refused(reason));
        assert!(
            (10..=13).contains(&tries.len()),
            "{} in an hour",
            tries.len()
        );
        assert_eq!(
            world.run(Duration::from_mins(6), World::carry_out),
            [Verb::Create]
        );
        assert_eq!(world.failures(), [] as [&str; 0]);
        assert_eq!(world.run(Duration::from_hours(1), World::carry_out), []);
    }
}

/// The webhook watches no copies. If no reconciler runs, only the webhook can look again, and pods
/// wait.
#[test]
fn an_injector_looks_again_at_what_is_in_its_way_whatever_its_labels() {
    let stranger = json!({"labels": {"app.kubernetes.io/managed-by": "mimeo"}});
    let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{
        "manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {},
    }], "labels": {"app.kubernetes.io/managed-by": "mimeo"}});
    for more in [stranger, going] {
        let mut world = World::new(Role::Injector, 1, &json!({"podGate": "Required"}));
        let mut meta =
            json!({"name": "x", "namespace": "team-0", "uid": uid(900), "resourceVersion": "4"});
        meta.as_object_mut()
            .unwrap()
            .extend(more.as_object().cloned().unwrap());
        world.objects.insert("team-0".into(), meta);
        world.run(Duration::from_secs(30), World::carry_out);
        let denied = world.engine.at(world.now).progress("team-0").denied;
        assert_eq!(
            (denied.len(), &*denied[0].copy, &*denied[0].why),
            (
                1,
                "Box.example.com x",
                "Conflict, an object of that name exists"
            )
        );
        world.objects.clear();
        world.run(Duration::from_mins(1), World::carry_out);
        let progress = world.engine.at(world.now).progress("team-0");
        assert!(crate::common::ready(&progress), "{more}");
    }
}

#[test]
fn a_mark_that_cannot_be_taken_off_is_tried_after_a_pause_that_grows() {
    let mut world = World::new(Role::Injector, 1, &json!({}));
    let sent = world.run(Duration::ZERO, World::carry_out);
    assert_eq!(sent, [Verb::Create], "a new namespace waits for nothing");
    world.run(Duration::from_hours(1), World::carry_out);
    assert!((30..80).contains(&world.unmarks), "{}", world.unmarks);
    // A change of the namespace causes another try.
    let tried = world.unmarks;
    let meta = json!({"name": "team-0", "uid": uid(1), "resourceVersion": "6", "labels": {"mimeo.dev/copies": "token"}});
    world
        .engine
        .at(world.now)
        .namespace_applied(&from_value(meta).unwrap());
    world.run(Duration::ZERO, World::carry_out);
    assert_eq!(world.unmarks, tried + 1);
}

/// After a restart one dry run shows for all copies how a good one looks. If it fails, the engine
/// doesn't send dry runs for all other copies in turn, and doesn't plan all of them each time.
#[test]
fn a_failed_dry_run_is_followed_by_another_after_a_pause_that_grows() {
    const COPIES: usize = 100;
    let mut before = World::new(Role::Keeper, COPIES, &json!({}));
    assert_eq!(before.run(Duration::ZERO, World::carry_out).len(), COPIES);
    let mut world = World::new(Role::Keeper, COPIES, &json!({}));
    world.objects = before.objects;
    let kind = world.gvk.group_kind();
    world
        .engine
        .at(world.now)
        .copies_listing(&kind.clone().into());
    for meta in world.objects.values() {
        world
            .engine
            .at(world.now)
            .copy_applied(&kind, &from_value(meta.clone()).unwrap());
    }
    world
        .engine
        .at(world.now)
        .copies_known(&kind.into(), Known::Listed(1000));
    let planned = world.engine.effort().planned;
    let silent =
        |_: &mut World, _: &Request| Outcome::of_silence(FailureReason::Timeout, "no answer");
    let tries = world.run(Duration::from_hours(1), silent);
    assert!(
        tries.iter().all(|verb| matches!(verb, Verb::Learn(_))),
        "{tries:?}"
    );
    assert!((12..30).contains(&tries.len()), "{}", tries.len());
    let planned = world.engine.effort().planned - planned;
    assert!(planned < 32 * COPIES, "{planned}");
    assert_eq!(
        world.run(Duration::from_mins(10), World::carry_out).len(),
        1,
        "one answer is enough"
    );
    assert_eq!(world.run(Duration::from_hours(1), World::carry_out), []);
}

/// Each copy of such a rule has its own fields, so only an apply tells whether a copy is correct.
/// If the apply changes nothing, no other client has undone anything.
#[test]
fn what_changes_nothing_is_no_fight() {
    let patch = json!([{"op": "add", "path": "/spec/names", "value": ["$(namespace.name)"]}]);
    let mut world = World::new(Role::Keeper, 1, &json!({"transform": {"jsonPatch": patch}}));
    world.run(Duration::ZERO, World::carry_out);
    for _ in 0..100 {
        world.touch("team-0");
        let applied = world.run(Duration::from_millis(100), World::carry_out);
        assert!(matches!(applied[..], [Verb::Apply(_)]), "{applied:?}");
        assert_eq!(world.engine.notices().len(), 0);
    }
    // A client that undoes Mimeo's write is reported, and Mimeo waits.
    let write = |world: &mut World, request: &Request| {
        world.version += 1;
        let namespace = request.namespace.to_string();
        world.objects.get_mut(&namespace).unwrap()["resourceVersion"] =
            world.version.to_string().into();
        world.carry_out(request)
    };
    let mut applied = 0;
    for _ in 0..100 {
        world.touch("team-0");
        applied += world.run(Duration::from_millis(100), write).len();
    }
    assert!(applied < 10, "{applied}");
    assert!(!world.engine.notices().is_empty());
}

/// Nothing was written, so no other client could have undone it.
#[test]
fn a_repair_that_is_refused_is_no_fight() {
    for reason in [FailureReason::Timeout, FailureReason::AdmissionDenied] {
        let answer = |_: &mut World, _: &Request| match reason {
            FailureReason::Timeout => Outcome::of_silence(reason, "no answer"),
            _ => refused(reason),
        };
        let patch = json!([{"op": "add", "path": "/spec/names", "value": ["$(namespace.name)"]}]);
        let mut world = World::new(Role::Keeper, 1, &json!({"transform": {"jsonPatch": patch}}));
        world.run(Duration::ZERO, World::carry_out);
        world.touch("team-0");
        let mut tries = 0;
        for _ in 0..60 {
            tries += world.run(Duration::from_secs(58), answer).len();
            let told = world.failures();
            assert!(
                told.iter().all(|told| *told == reason.to_string()),
                "{told:?}"
            );
        }
        assert!((12..30).contains(&tries), "{tries}");
        world.run(Duration::from_mins(10), World::carry_out);
        assert_eq!(world.failures(), [] as [&str; 0]);
        // The next repair is not delayed either.
        world.touch("team-0");
        assert!(matches!(
            world.run(Duration::from_millis(100), World::carry_out)[..],
            [Verb::Apply(_)]
        ));
    }
}
