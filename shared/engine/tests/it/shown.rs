//! The data of the reconciler's page: every state with its age, first completely, then the changes
//! in small pieces.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use mimeo_engine::{
    Action, Answer, Cursor, Ended, Engine, Home, Job, Notice, PlaceView, Presence, Request,
    Settings, State, Task, View,
};
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

/// The time in seconds since 1970 at which the process started.
const START: i64 = 1_800_000_000;

fn secrets() -> Resource {
    Resource {
        gvk: GroupVersionKind::parse("v1", "Secret").unwrap(),
        plural: "secrets".into(),
        namespaced: true,
    }
}

fn rule_id(number: usize) -> RuleId {
    format!("ClusterReplication/rule-{number:02}")
        .parse()
        .unwrap()
}

/// Rules that copy one Secret each into the namespaces `team-*`, and a reader of the page.
struct World {
    engine: Engine,
    now: Duration,
    generation: i64,
    written: usize,
    /// The last read of a rule that does not exist.
    confirm: Option<Job>,
    cursor: Cursor,
}

impl World {
    fn new(rules: usize, namespaces: usize) -> Self {
        let settings = Settings {
            deletion_limit: 2,
            ..Settings::new(Role::Keeper, "cluster")
        };
        let now = Duration::from_secs(10);
        let mut world = Self {
            engine: Engine::new(settings),
            now,
            generation: 0,
            written: 0,
            confirm: None,
            cursor: Cursor::default(),
        };
        (0..rules).for_each(|number| world.rule(number, &json!({})));
        world.engine.at(now).rules_known(
            RuleKind::ClusterReplication,
            Known::Listed(&(0..rules).map(rule_id).collect()),
        );
        world
            .engine
            .at(now)
            .rules_known(RuleKind::Replication, Known::Unserved);
        let names: Vec<String> = (0..namespaces)
            .map(|number| format!("team-{number:05}"))
            .collect();
        names.iter().for_each(|name| world.namespace(name, "5"));
        let listed: BTreeSet<Box<str>> = names.iter().map(|name| name.as_str().into()).collect();
        world.engine.at(now).namespaces_listed(&listed);
        let kind = secrets().gvk;
        world.engine.at(now).kinds_recorded(&[kind.clone()].into());
        world.engine.at(now).kind(&kind, Known::Listed(secrets()));
        let _ = world.engine.demand();
        world
            .engine
            .at(now)
            .copies_listing(&kind.group_kind().into());
        world
            .engine
            .at(now)
            .copies_known(&kind.group_kind().into(), Known::Listed(6));
        for number in 0..rules {
            let source = world.parsed(number, &json!({})).sources[0].clone();
            let object =
                json!({"metadata": {"resourceVersion": "9"}, "data": {"token": "aHVudGVyMg=="}});
            world
                .engine
                .at(now)
                .source(&source, Some(Decoded::Whole(object)));
        }
        world
    }

    fn parsed(&self, number: usize, more: &Value) -> Rule {
        let source = json!({"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": format!("s{number:02}")});
        let mut spec = json!({"sources": [source], "targets": [{"namespaces": ["team-*"]}]});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let metadata = json!({"name": &*rule_id(number).name, "uid": uid(number), "generation": self.generation, "resourceVersion": "7"});
        let rule = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": metadata, "spec": spec,
        });
        Rule::parse(&from_value(rule).unwrap()).unwrap()
    }

    /// Applies the rule with its usual spec and these further fields.
    fn rule(&mut self, number: usize, more: &Value) {
        self.generation += 1;
        let rule = self.parsed(number, more);
        self.engine
            .at(self.now)
            .rule_applied(rule.id.clone(), Ok(rule), None);
    }

    fn namespace(&mut self, name: &str, version: &str) {
        let number = 1000 + name[5..].parse::<usize>().unwrap();
        let meta = json!({"name": name, "uid": uid(number), "resourceVersion": version});
        self.engine
            .at(self.now)
            .namespace_applied(&from_value(meta).unwrap());
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_second(START).unwrap() + self.now
    }

    /// Answers every pending request.
    fn answer(&mut self, outcome: impl Fn(&Request) -> Option<Outcome>) {
        while let Some(action) = self.engine.at(self.now).next_action() {
            match action {
                Action::Request(request) => {
                    let outcome = outcome(&request).unwrap_or_else(|| self.written(&request));
                    self.engine.at(self.now).outcome(&request, outcome);
                }
                Action::Job(job) if matches!(job.task, Task::ConfirmRule(_)) => {
                    self.confirm = Some(*job);
                }
                Action::Job(_) => {}
            }
        }
    }

    fn written(&mut self, request: &Request) -> Outcome {
        self.written += 1;
        let entry = json!({
            "manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {},
            "time": self.wall().to_string(),
        });
        let rule = request.rule.as_ref().unwrap();
        let meta = json!({
            "name": &*request.name, "namespace": &*request.namespace,
            "uid": uid(1_000_000 + self.written), "resourceVersion": (10 + self.written).to_string(),
            "managedFields": [entry], "labels": {"app.kubernetes.io/managed-by": "mimeo"},
            "annotations": {
                "mimeo.dev/rule": rule.to_string(), "mimeo.dev/cluster": "cluster",
                "mimeo.dev/source": format!("Secret/home/s{}", &rule.name[5..]),
                "mimeo.dev/checksum": request.rendering.as_ref().unwrap().checksum.to_string(),
            },
        });
        Outcome::Object(Box::new(from_value(meta).unwrap()))
    }

    /// Returns all pieces of the changes.
    fn look(&mut self) -> Vec<View> {
        let mut pieces = Vec::new();
        let wall = self.wall();
        while let Some(view) = self.engine.at(self.now).page(wall).view(&mut self.cursor) {
            pieces.push(view);
        }
        pieces
    }

    /// Returns the changes in namespaces, by their names.
    fn places(&mut self) -> BTreeMap<String, Vec<PlaceView>> {
        let namespaces = self.look().into_iter().flat_map(|view| view.namespaces);
        namespaces
            .map(|namespace| (namespace.name.to_string(), namespace.places))
            .collect()
    }

    /// Returns the state, reason and age of the one rule's copies.
    fn stand(&mut self) -> Vec<(State, Option<String>, Option<i64>)> {
        let wall = self.wall();
        let told = |place: &PlaceView| {
            let age = place
                .since
                .map(|since| wall.as_second() - since.as_second());
            (place.state, place.reason.clone(), age)
        };
        self.places()
            .values()
            .map(|places| told(&places[0]))
            .collect()
    }
}

fn refused(reason: FailureReason) -> Outcome {
    Outcome::Refused(Failure {
        reason,
        message: "not you".into(),
    })
}

fn is(name: &str) -> impl Fn(&Request) -> bool {
    move |request| &*request.namespace == name
}

#[test]
fn states_have_reasons_and_ages() {
    let mut world = World::new(1, 2);
    let _ = world.engine.at(world.now).next_action();
    let pending = (State::Pending, Some("Create".to_owned()), None);
    assert_eq!(world.stand(), [pending.clone(), pending]);

    let mut world = World::new(1, 2);
    let first = is("team-00000");
    world.answer(|request| first(request).then(|| refused(FailureReason::QuotaExceeded)));
    world.wait(100);
    world.answer(|_| Some(refused(FailureReason::QuotaExceeded)));
    let failed = |age| (State::Failed, Some("QuotaExceeded".to_owned()), Some(age));
    let synced = |age| (State::Synced, None, Some(age));
    assert_eq!(
        world.stand(),
        [failed(100), synced(100)],
        "failing since the first time"
    );

    let copies = |world: &mut World| {
        let wall = world.wall();
        world
            .engine
            .at(world.now)
            .page(wall)
            .copies(&rule_id(0), "team-00000")
    };
    let copy = &copies(&mut world)[0];
    assert_eq!(
        (&*copy.kind, &*copy.name, &copy.failure),
        (
            "Secret",
            "s00",
            &Some((FailureReason::QuotaExceeded, "not you".to_owned()))
        )
    );

    world.wait(400);
    world.answer(|_| None);
    world.wait(5);
    assert_eq!(
        world.stand(),
        [synced(5)],
        "what has not changed isn't shown again"
    );
    assert_eq!(copies(&mut world)[0].failure, None);

    world.rule(
        0,
        &json!({"suspend": true, "transform": {"labels": {"set": {"a": "b"}}}}),
    );
    world.answer(|_| None);
    let suspended = |age| (State::Suspended, Some("Update".to_owned()), Some(age));
    assert_eq!(world.stand(), [suspended(5), suspended(505)]);
}

#[test]
fn a_deletion_that_is_held_is_shown_as_held() {
    let mut world = World::new(1, 2);
    world.answer(|_| None);
    assert_eq!(world.stand().len(), 2);
    world.rule(0, &json!({"targets": [{"namespaces": ["other"]}]}));
    world.answer(|_| None);
    let going = (State::Pending, Some("Delete".to_owned()), Some(0));
    assert_eq!(world.stand(), [going.clone(), going]);
    world.wait(11);
    world.answer(|_| None);
    let held = (State::Held, Some("Delete".to_owned()), Some(11));
    assert_eq!(world.stand(), [held.clone(), held]);
}

#[test]
fn what_is_held_of_a_rule_that_is_gone_says_how_much_where_and_why() {
    let mut world = World::new(1, 5);
    world.answer(|_| None);
    world.engine.at(world.now).rule_gone(&rule_id(0));
    world.answer(|_| None);
    let read = Presence::Absent(Home {
        namespace: None,
        crd: None,
    });
    let asked = world.confirm.take().unwrap();
    world
        .engine
        .at(world.now)
        .answered(&asked, Answer::Presence(read));
    world.answer(|_| None);
    assert_eq!(world.engine.held().count(), 0, "it is collected first");
    world.wait(11);
    world.answer(|_| None);
    let held: Vec<_> = world.engine.held().collect();
    let [held] = &held[..] else {
        panic!("{held:?}")
    };
    assert_eq!((held.rule, held.copies.len()), (&rule_id(0), 5));
    assert_eq!(
        held.places(),
        "5 namespaces, first team-00000, team-00001, team-00002"
    );
    assert!(held.why.contains("lost with its CRD"), "{}", held.why);
    let shown = held.nonce.to_owned();
    let notices = world.engine.notices();
    let [
        Notice::Held {
            rule,
            copies,
            nonce,
        },
    ] = &notices[..]
    else {
        panic!("{notices:?}")
    };
    assert_eq!((&**rule, *copies, &**nonce), (&rule_id(0), 5, &*shown));
    world.wait(60);
    world.answer(|_| None);
    assert!(world.engine.notices().is_empty(), "it is logged once");

    world.rule(0, &json!({}));
    assert_eq!(world.engine.held().count(), 0, "it is back");
}

#[test]
fn a_copy_that_another_rule_has_is_shown_as_failed_for_the_one_that_lost_it() {
    let mut world = World::new(2, 1);
    let source =
        json!({"apiVersion": "v1", "kind": "Secret", "namespace": "elsewhere", "name": "s00"});
    world.rule(1, &json!({"sources": [source]}));
    world.answer(|_| None);
    let places = &world.places()["team-00000"];
    let states: Vec<_> = places
        .iter()
        .map(|place| (&*place.rule.name, place.state, place.reason.as_deref()))
        .collect();
    assert_eq!(
        states,
        [
            ("rule-00", State::Synced, None),
            ("rule-01", State::Failed, Some("RuleConflict"))
        ]
    );
}

#[test]
fn several_copies_of_a_rule_count_together_and_the_worst_is_told() {
    let mut world = World::new(1, 1);
    let source = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": name});
    world.rule(0, &json!({"sources": [source("s00"), source("s01")]}));
    world.answer(|_| None);
    let place = &world.places()["team-00000"][0];
    assert_eq!(
        (
            place.state,
            place.reason.as_deref(),
            place.copies,
            place.synced
        ),
        (State::Pending, None, 2, 1)
    );
}

#[test]
fn what_a_rule_says_is_shown_with_it() {
    let mut world = World::new(1, 1);
    world.answer(|_| None);
    world.look();
    let (now, wall) = (world.now, world.wall());
    let written = world.engine.at(now).statuses(wall);
    let rules: Vec<_> = world
        .look()
        .into_iter()
        .flat_map(|view| view.rules)
        .collect();
    assert_eq!((rules.len(), written.len()), (1, 1));
    assert_eq!(rules[0].status.as_ref(), Some(&written[0].status));
    assert!(world.look().is_empty());
}

#[test]
fn pieces_are_small_and_what_has_changed_alone_comes_again() {
    let mut world = World::new(4, 3000);
    world.answer(|_| None);
    let pieces = world.look();
    assert!(pieces[0].anew && pieces.last().unwrap().whole);
    assert_eq!(
        pieces.iter().filter(|view| view.anew || view.whole).count(),
        2
    );
    assert!(
        pieces
            .iter()
            .all(|view| view.rules.len() + view.namespaces.len() <= 64)
    );
    let shown: Vec<_> = pieces.iter().flat_map(|view| &view.namespaces).collect();
    assert_eq!((shown.len(), shown[0].places.len()), (3000, 4));
    assert!(
        shown
            .iter()
            .flat_map(|namespace| &namespace.places)
            .all(|place| place.state == State::Synced)
    );

    world.namespace("team-02000", "6");
    world.engine.at(world.now).namespace_gone("team-00003");
    world.answer(|_| None);
    let pieces = world.look();
    let names: Vec<_> = pieces
        .iter()
        .flat_map(|view| &view.namespaces)
        .map(|namespace| &*namespace.name)
        .collect();
    assert_eq!(names, ["team-02000"]);
    assert_eq!(pieces[0].ended, [Ended::Namespace("team-00003".into())]);
    assert!(!pieces[0].anew);
}

/// The page shows nothing before a view is whole.
#[test]
fn a_view_becomes_whole_although_more_changes_each_time_than_fits_into_a_piece() {
    let mut world = World::new(1, 500);
    world.answer(|_| None);
    let wall = world.wall();
    let whole = (6..30).any(|version| {
        for number in 0..100 {
            world.namespace(&format!("team-{number:05}"), &version.to_string());
        }
        world.answer(|_| None);
        let view = world
            .engine
            .at(world.now)
            .page(wall)
            .view(&mut world.cursor);
        view.unwrap().whole
    });
    assert!(whole);
}

#[test]
fn who_has_missed_too_much_is_shown_everything_anew() {
    let mut world = World::new(1, 2000);
    world.answer(|_| None);
    world.look();
    for number in 0..1500 {
        world
            .engine
            .at(world.now)
            .namespace_gone(&format!("team-{number:05}"));
    }
    world.engine.at(world.now).rule_gone(&rule_id(0));
    let pieces = world.look();
    assert!(pieces[0].anew && pieces[0].ended.is_empty());
    assert_eq!(
        pieces
            .iter()
            .map(|view| view.namespaces.len())
            .sum::<usize>(),
        500
    );
    assert!(pieces.iter().all(|view| view.rules.is_empty()));
}
