//! The plan of a suspended rule: lifting it does exactly that.

use jiff::Timestamp;
use mimeo_core::{engine::SourceRead, rule::Rule};
use serde_json::{Value, from_value, json};

use crate::{
    common::{author, home},
    secret, simple,
    world::{World, labelled, rule, secrets},
};

impl World {
    fn store(&mut self, mut rule: Rule, generation: i64) {
        rule.generation = generation;
        self.engine.rule_applied(rule.id.clone(), Ok(rule), author(), None, self.now);
        self.settle();
    }

    /// What the plan counts: to come, to change, to go.
    fn planned(&mut self, name: &str) -> (i32, i32, i32) {
        let plan = self.status_of(name).plan.unwrap();
        (plan.create, plan.update, plan.delete)
    }
}

fn suspended(selectors: &[Value], to: &[&str]) -> Rule {
    rule("r", selectors, to, &json!({"suspend": true}))
}

/// As it goes when its rule acts, so the plan says.
#[test]
fn a_copy_that_feeds_another_rule_is_planned_to_go_with_its_source() {
    let from_copy = json!({"namespace": "one", "name": "a"});
    let mut world = World::new(vec![simple().remove(0), rule("other", &[from_copy], &["away"], &json!({}))]);
    world.listed(&[secret("a")]);
    world.store(suspended(&[labelled()], &["one", "two"]), 2);
    world.read = Some(SourceRead::Absent(home(0, 0)));
    world.shown(&secret("a"), false);
    assert_eq!(world.planned("r"), (0, 0, 2));
    world.wait(600);
    assert_eq!(world.copies(), ["one/a", "two/a"]);
    world.store(simple().remove(0), 3);
    world.wait(61);
    world.wait(1);
    assert_eq!(world.copies(), [""; 0]);
}

#[test]
fn a_copy_that_no_watch_shows_is_not_planned_to_go() {
    let mut world = World::new(simple());
    world.listed(&[secret("a")]);
    world.store(suspended(&[labelled()], &["one", "two"]), 2);
    let copy = world.copies.get_mut("one/a").unwrap();
    copy["metadata"]["labels"].as_object_mut().unwrap().remove("app.kubernetes.io/managed-by").unwrap();
    copy["metadata"]["resourceVersion"] = "200".into();
    let meta = from_value(copy["metadata"].clone()).unwrap();
    world.engine.copy_gone(&secrets().group_kind(), &meta, world.now);
    world.settle();
    world.store(suspended(&[labelled()], &["away"]), 3);
    assert_eq!(world.planned("r"), (1, 0, 1));
    world.store(rule("r", &[labelled()], &["away"], &json!({})), 4);
    world.wait(61);
    assert_eq!(world.copies(), ["away/a", "one/a"]);
}

#[test]
fn the_copy_of_one_of_too_many_is_not_planned_to_go() {
    let aged = |number: usize| {
        let mut object = secret(&format!("s{number:03}"));
        object["metadata"]["creationTimestamp"] =
            format!("2026-01-01T00:{:02}:{:02}Z", number / 60, number % 60).into();
        object
    };
    let all: Vec<Value> = (0..257).map(aged).collect();
    let mut world = World::new(vec![rule("r", &[labelled()], &["one"], &json!({}))]);
    world.listed(&all[1..]);
    assert_eq!(world.copies.len(), 256);
    world.store(suspended(&[labelled()], &["one"]), 2);
    world.listed(&all);
    // A crowded namespace isn't planned twice at a time.
    world.wait(1);
    assert_eq!(world.planned("r"), (1, 0, 0));
    world.store(rule("r", &[labelled()], &["one"], &json!({})), 3);
    for _ in 0..4 {
        world.wait(61);
    }
    assert_eq!(world.copies.len(), 257);
}

#[test]
fn a_copy_that_somebody_deletes_is_not_planned_to_go_any_more() {
    let mut world = World::new(simple());
    world.listed(&[secret("a")]);
    world.store(suspended(&[labelled()], &["away"]), 2);
    assert_eq!(world.planned("r"), (1, 0, 2));
    world.wait(60);
    assert_eq!(world.engine.statuses(world.now, Timestamp::UNIX_EPOCH), [], "nothing is due");
    let gone = world.copies.remove("one/a").unwrap();
    let meta = from_value(gone["metadata"].clone()).unwrap();
    world.engine.copy_gone(&secrets().group_kind(), &meta, world.now);
    world.settle();
    assert_eq!(world.planned("r"), (1, 0, 1));
}

#[test]
fn what_was_changed_while_nobody_watched_is_planned_to_be_repaired() {
    let mut world = World::new(simple());
    world.listed(&[secret("a")]);
    let copy = world.copies.get_mut("one/a").unwrap();
    copy["metadata"]["managedFields"][0]["fieldsV1"] = json!({"f:data": {}});
    copy["metadata"]["resourceVersion"] = "200".into();
    world.restart(vec![suspended(&[labelled()], &["one", "two"])]);
    world.listed(&[secret("a")]);
    assert_eq!((world.planned("r"), world.written), ((0, 1, 0), 2));
    world.store(simple().remove(0), 2);
    assert_eq!(world.written, 3);
}
