//! The cost of statuses: each copy is visited once for all rules with a due status.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use mimeo_engine::{Action, Engine, Request, Settings, StatusUpdate, Webhooks};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    outcome::{Failure, FailureReason, Outcome},
    role::Role,
    rule::Rule,
};
use serde_json::{Value, from_value, json};

use crate::common::uid;

const RULES: usize = 40;
const NAMESPACES: usize = 400;

struct World {
    engine: Engine,
    now: Duration,
    version: u64,
}

fn secrets() -> GroupVersionKind {
    GroupVersionKind::parse("v1", "Secret").unwrap()
}

fn rule(number: usize, generation: i64, targets: &Value) -> Rule {
    let name = format!("s{number}");
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
        "metadata": {"name": format!("rule-{number}"), "uid": uid(number), "generation": generation, "resourceVersion": "7"},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": name}], "targets": targets,
        },
    });
    Rule::parse(&from_value(rule).unwrap()).unwrap()
}

impl World {
    /// Every rule wants a copy in every namespace, and no copy exists yet.
    fn new() -> Self {
        Self::of(RULES, NAMESPACES)
    }

    /// The same with this number of rules and namespaces.
    fn of(rules: usize, namespaces: usize) -> Self {
        let now = Duration::from_secs(10);
        let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
        let names: BTreeSet<Box<str>> = (0..namespaces)
            .map(|number| format!("team-{number}").into())
            .collect();
        for (name, number) in names.iter().zip(1000..) {
            let meta = json!({"name": name, "uid": uid(number), "resourceVersion": "5"});
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
        let rules: Vec<Rule> = (0..rules)
            .map(|number| rule(number, 1, &json!([{"namespaces": ["team-*"]}])))
            .collect();
        let (ids, sources): (BTreeSet<RuleId>, Vec<_>) = rules
            .iter()
            .map(|rule| (rule.id.clone(), rule.sources[0].clone()))
            .unzip();
        for rule in rules {
            engine.at(now).rule_applied(rule.id.clone(), Ok(rule), None);
        }
        engine
            .at(now)
            .rules_known(RuleKind::ClusterReplication, Known::Listed(&ids));
        engine
            .at(now)
            .rules_known(RuleKind::Replication, Known::Unserved);
        let _ = engine.demand();
        engine
            .at(now)
            .copies_listing(&secrets().group_kind().into());
        engine
            .at(now)
            .copies_known(&secrets().group_kind().into(), Known::Listed(6));
        for source in sources {
            engine.at(now).source(
                &source,
                Some(Decoded::Whole(
                    json!({"metadata": {"resourceVersion": "9"}, "type": "a"}),
                )),
            );
        }
        Self {
            engine,
            now,
            version: 20,
        }
    }

    /// Carries out all requests, and returns their number. The API server accepts each of them.
    fn work(&mut self) -> usize {
        let mut requests = 0;
        while let Some(request) = self.request() {
            requests += 1;
            self.accept(&request);
        }
        requests
    }

    fn request(&mut self) -> Option<Box<Request>> {
        loop {
            if let Action::Request(request) = self.engine.at(self.now).next_action()? {
                return Some(request);
            }
        }
    }

    /// The API server accepts the request.
    fn accept(&mut self, request: &Request) {
        let rule = request.name.strip_prefix('s').unwrap();
        let number: usize = request.namespace["team-".len()..].parse().unwrap();
        let fields = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:type": {}}});
        self.version += 1;
        let meta = json!({
            "name": *request.name, "namespace": *request.namespace, "uid": uid(5000 + 1000 * number + rule.parse::<usize>().unwrap()),
            "resourceVersion": self.version.to_string(), "managedFields": [fields],
            "labels": {"app.kubernetes.io/managed-by": "mimeo"},
            "annotations": {
                "mimeo.dev/rule": format!("ClusterReplication/rule-{rule}"), "mimeo.dev/cluster": "cluster",
                "mimeo.dev/checksum": request.rendering.as_ref().unwrap().checksum.to_string(),
            },
        });
        let object = Outcome::Object(Box::new(from_value(meta).unwrap()));
        self.engine.at(self.now).outcome(request, object);
    }

    /// Returns all due statuses.
    fn statuses(&mut self) -> Vec<StatusUpdate> {
        self.engine.at(self.now).statuses(Timestamp::UNIX_EPOCH)
    }
}

/// The first decision follows the change of the source, the second one the answer of the API server.
/// Statuses, the pod gate and the page decide nothing.
#[test]
fn two_decisions_are_made_for_each_write_of_a_copy() {
    let mut world = World::of(1, NAMESPACES);
    assert_eq!(world.work(), NAMESPACES);
    world.statuses();
    let source = rule(0, 1, &json!([{"namespaces": ["team-*"]}])).sources[0].clone();
    for (version, kind) in [("10", "b"), ("11", "c")] {
        let before = world.engine.effort().decided;
        let object = json!({"metadata": {"resourceVersion": version}, "type": kind});
        world.now += Duration::from_secs(2);
        world
            .engine
            .at(world.now)
            .source(&source, Some(Decoded::Whole(object)));
        assert_eq!(world.work(), NAMESPACES);
        world.engine.at(world.now).progress("team-7");
        world.now += Duration::from_secs(2);
        assert_eq!(world.statuses().len(), 1);
        assert_eq!(world.engine.effort().decided - before, 2 * NAMESPACES);
    }
    assert_eq!(world.engine.outdated_verdicts(), [""; 0]);
}

/// A crowded namespace is not planned at every change. Its queued copies are judged again all the
/// same, before their requests.
#[test]
fn a_crowded_namespace_sends_no_request_that_a_later_change_forbids() {
    const MANY: usize = 300;
    let mut world = World::of(MANY, 1);
    assert_eq!(world.work(), MANY);
    world.now += Duration::from_secs(1);
    let targets = json!([{"namespaces": ["team-*"]}]);
    let rotate = |world: &mut World, number, version: u32| {
        let source = rule(number, 1, &targets).sources[0].clone();
        let object = json!({"metadata": {"resourceVersion": version.to_string()}, "type": format!("v{version}")});
        world
            .engine
            .at(world.now)
            .source(&source, Some(Decoded::Whole(object)));
    };
    (0..MANY).for_each(|number| rotate(&mut world, number, 10));
    // This plan begins the rest of the namespace.
    let first = world.request().unwrap();
    world.accept(&first);
    for number in 0..MANY {
        let away = rule(number, 2, &json!([{"namespaces": ["elsewhere"]}]));
        world
            .engine
            .at(world.now)
            .rule_applied(away.id.clone(), Ok(away), None);
    }
    assert!(world.request().is_none(), "no rule wants a copy here now");
    // The end of the rest, and of the time for which such losses are collected.
    world.now += Duration::from_secs(1);
    assert!(world.request().is_none());
    assert_eq!(world.engine.outdated_verdicts(), [""; 0]);
}

/// A rule that is suspended and resumed again and again queues its copies each time.
#[test]
fn a_copy_has_one_place_in_the_queue() {
    let mut world = World::of(1, NAMESPACES);
    let targets = json!([{"namespaces": ["team-*"]}]);
    for generation in 2..40 {
        let mut changed = rule(0, generation, &targets);
        changed.suspend = generation % 2 == 0;
        world
            .engine
            .at(world.now)
            .rule_applied(changed.id.clone(), Ok(changed), None);
        world.engine.at(world.now).progress("team-0");
        let queued = world.engine.numbers().queued;
        assert!(queued.normal <= NAMESPACES, "{queued:?}");
    }
}

fn desired(update: &StatusUpdate) -> i32 {
    update.status.copies.as_ref().unwrap().desired
}

#[test]
fn a_copy_is_visited_once_for_all_rules_with_a_due_status() {
    let mut world = World::new();
    let statuses = world.statuses();
    assert_eq!(
        statuses.iter().map(desired).collect::<Vec<_>>(),
        [i32::try_from(NAMESPACES).unwrap(); RULES]
    );
    let copies = RULES * NAMESPACES;
    assert_eq!(world.engine.effort().counted, copies);
    world.now += Duration::from_secs(2);
    assert_eq!(
        (world.statuses().len(), world.engine.effort().counted),
        (0, copies),
        "nothing is due"
    );

    let one = rule(3, 2, &json!([{"namespaces": ["team-1"]}]));
    world
        .engine
        .at(world.now)
        .rule_applied(one.id.clone(), Ok(one.clone()), None);
    let source = json!({"metadata": {"resourceVersion": "10"}, "type": "a"});
    world
        .engine
        .at(world.now)
        .source(&one.sources[0], Some(Decoded::Whole(source)));
    world.now += Duration::from_secs(2);
    let statuses = world.statuses();
    assert_eq!(
        statuses
            .iter()
            .map(|update| (&update.id, desired(update)))
            .collect::<Vec<_>>(),
        [(&one.id, 1)]
    );
}

/// Each change of a rule changes the state that every replica has taken in.
#[test]
fn what_replicas_take_in_makes_no_status_due_that_says_nothing_else_for_it() {
    let mut world = World::new();
    let seen = |seen| Webhooks {
        seen: vec![seen, seen],
        contested: None,
    };
    world.engine.at(world.now).webhooks(seen(7));
    world.statuses();
    world.now += Duration::from_secs(6);
    world.statuses();
    world.now += Duration::from_secs(2);
    world.statuses();
    assert_eq!(world.engine.index().status_due(), None);
    world.engine.at(world.now).webhooks(seen(8));
    assert_eq!(world.engine.index().status_due(), None);
    world.engine.at(world.now).webhooks(Webhooks {
        seen: vec![8],
        contested: None,
    });
    assert!(
        world.engine.index().status_due().is_some(),
        "how many there are is told"
    );
}

#[test]
fn tidying_up_after_so_many_copies_rests_in_between() {
    /// 45 µs for each of the 16,000 copies.
    const PAUSE: Duration = Duration::from_millis(720);
    let mut world = World::new();
    let failed = || {
        // Not retried soon.
        Outcome::Refused(Failure {
            reason: FailureReason::Invalid,
            message: "no".into(),
        })
    };
    let requests = std::iter::from_fn(|| world.engine.at(world.now).next_action());
    let requests: Vec<_> = requests
        .filter_map(|action| {
            if let Action::Request(request) = action {
                Some(request)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(requests.len(), RULES * NAMESPACES);
    world.now += Duration::from_secs(1);
    world.engine.at(world.now).outcome(&requests[0], failed());
    assert!(world.engine.at(world.now).next_action().is_none());
    world.engine.at(world.now).outcome(&requests[1], failed());
    assert!(world.engine.at(world.now).next_action().is_none());
    assert_eq!(world.engine.wake_at(), Some(world.now + PAUSE));
    world.now += PAUSE;
    assert!(world.engine.at(world.now).next_action().is_none());
    assert!(world.engine.wake_at().unwrap() > world.now + PAUSE);
}
