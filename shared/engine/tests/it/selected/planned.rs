//! The plan of a suspended rule. After the suspension Mimeo carries out exactly this plan.

use jiff::Timestamp;
use mimeo_model::{
    known::{Decoded, Known},
    rule::Rule,
    source::SourceRef,
};
use serde_json::{Value, from_value, json};

use crate::common::{gone, uid};
use crate::selected::{
    secret, simple,
    world::{World, labelled, rule, secrets},
};

impl World {
    pub(crate) fn store(&mut self, mut rule: Rule, generation: i64) {
        rule.generation = generation;
        self.engine
            .at(self.now)
            .rule_applied(rule.id.clone(), Ok(rule), None);
        self.settle();
    }

    /// The watch shows a copy with another resourceVersion.
    fn touched(&mut self, key: &str, version: u64) {
        let metadata = &mut self.copies.get_mut(key).unwrap()["metadata"];
        metadata["resourceVersion"] = version.to_string().into();
        let meta = from_value(metadata.clone()).unwrap();
        self.engine
            .at(self.now)
            .copy_applied(&secrets().group_kind(), &meta);
        self.settle();
    }

    /// Returns the plan's numbers of copies to create, to change and to delete.
    fn planned(&mut self, name: &str) -> (i32, i32, i32) {
        let plan = self.status_of(name).plan.unwrap();
        (plan.create, plan.update, plan.delete)
    }
}

fn suspended(selectors: &[Value], to: &[&str]) -> Rule {
    rule("r", selectors, to, &json!({"suspend": true}))
}

/// The plan announces the same deletion that an active rule carries out.
#[test]
fn a_copy_that_feeds_another_rule_is_planned_to_go_with_its_source() {
    let from_copy = json!({"namespace": "one", "name": "a"});
    let mut world = World::new(vec![
        simple().remove(0),
        rule("younger", &[from_copy], &["away"], &json!({})),
    ]);
    world.listed(&[secret("a")]);
    world.store(suspended(&[labelled()], &["one", "two"]), 2);
    world.read = Some(gone(Some(0)));
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
fn a_copy_whose_label_is_gone_is_planned_to_go_like_any_other() {
    let mut world = World::new(simple());
    world.listed(&[secret("a")]);
    world.store(suspended(&[labelled()], &["one", "two"]), 2);
    let copy = world.copies.get_mut("one/a").unwrap();
    copy["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .remove("app.kubernetes.io/managed-by")
        .unwrap();
    copy["metadata"]["resourceVersion"] = "200".into();
    let meta = from_value(copy["metadata"].clone()).unwrap();
    world
        .engine
        .at(world.now)
        .copy_gone(&secrets().group_kind(), &meta);
    world.settle();
    world.store(suspended(&[labelled()], &["away"]), 3);
    assert_eq!(world.planned("r"), (1, 0, 2));
    world.store(rule("r", &[labelled()], &["away"], &json!({})), 4);
    world.wait(61);
    assert_eq!(world.copies(), ["away/a"]);
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
    // A namespace with many copies isn't planned twice in a short time.
    world.wait(1);
    assert_eq!(world.planned("r"), (1, 0, 0));
    world.store(rule("r", &[labelled()], &["one"], &json!({})), 3);
    for _ in 0..4 {
        world.wait(61);
    }
    assert_eq!(world.copies.len(), 257);
}

/// The source has no projection, so only its own deletion tells that its copy must be deleted.
#[test]
fn the_copy_of_one_of_too_many_goes_with_its_source() {
    let aged = |number: usize| {
        let mut object = secret(&format!("s{number:03}"));
        object["metadata"]["creationTimestamp"] =
            format!("2026-01-01T00:{:02}:{:02}Z", number / 60, number % 60).into();
        object
    };
    let all: Vec<Value> = (0..257).map(aged).collect();
    let mut world = World::new(vec![rule("r", &[labelled()], &["one"], &json!({}))]);
    world.listed(&all[1..]);
    world.listed(&all);
    world.wait(1);
    assert_eq!(world.copies.len(), 257, "the youngest one's stays");
    world.read = Some(gone(Some(0)));
    world.shown(&all[256], false);
    // The steps: the grace period of the source, the read of its fate, and a moment each time. A
    // namespace with many copies isn't planned twice in a short time.
    for seconds in [1, 61, 1, 1] {
        world.wait(seconds);
    }
    assert!(world.copies.len() == 256 && !world.copies.contains_key("one/s256"));
}

#[test]
fn a_copy_that_somebody_deletes_is_not_planned_to_go_any_more() {
    let mut world = resting();
    let gone = world.copies.remove("one/a").unwrap();
    let meta = from_value(gone["metadata"].clone()).unwrap();
    world
        .engine
        .at(world.now)
        .copy_gone(&secrets().group_kind(), &meta);
    world.settle();
    assert_eq!(world.planned("r"), (0, 0, 0));
}

/// A world with a suspended rule and a single copy that the rule no longer wants, after a while
/// without events. Any other copy would cause further events for the rule.
fn resting() -> World {
    let mut world = World::new(vec![rule("r", &[labelled()], &["one"], &json!({}))]);
    world.listed(&[secret("a")]);
    world.store(suspended(&[labelled()], &["nowhere"]), 2);
    assert_eq!(world.planned("r"), (0, 0, 1));
    world.wait(60);
    assert_eq!(
        world.engine.at(world.now).statuses(Timestamp::UNIX_EPOCH),
        [],
        "nothing is due"
    );
    world
}

#[test]
fn a_copy_that_another_rule_comes_to_want_is_not_planned_to_go_any_more() {
    let mut world = resting();
    let named = json!({"namespace": "home", "name": "a"});
    world.store(rule("other", &[named], &["one"], &json!({})), 1);
    let source = SourceRef::named(secrets(), "home", "a");
    world
        .engine
        .at(world.now)
        .source(&source, Some(Decoded::Whole(secret("a"))));
    world.settle();
    assert_eq!(world.planned("r"), (0, 0, 0));
}

#[test]
fn a_copy_that_becomes_another_rules_is_not_planned_to_go_any_more() {
    let mut world = resting();
    let copy = world.copies.get_mut("one/a").unwrap();
    copy["metadata"]["annotations"]["mimeo.dev/rule"] = "ClusterReplication/other".into();
    world.touched("one/a", 200);
    assert_eq!(world.planned("r"), (0, 0, 0));
}

#[test]
fn a_copy_that_a_listing_does_not_show_is_not_planned_to_go_any_more() {
    let mut world = resting();
    world.copies.remove("one/a").unwrap();
    let (kind, now) = (secrets().group_kind(), world.now);
    world.engine.at(now).copies_listing(&kind.clone().into());
    for copy in world.copies.values() {
        world
            .engine
            .at(now)
            .copy_applied(&kind, &from_value(copy["metadata"].clone()).unwrap());
    }
    world
        .engine
        .at(now)
        .copies_known(&kind.into(), Known::Listed(2_000_000));
    world.settle();
    assert_eq!(world.planned("r"), (0, 0, 0));
}

#[test]
fn the_copies_of_a_namespace_that_is_gone_are_not_planned_to_go_any_more() {
    for replaced in [false, true] {
        let mut world = resting();
        if replaced {
            let another = json!({"name": "one", "uid": uid(77), "resourceVersion": "3000000"});
            world
                .engine
                .at(world.now)
                .namespace_applied(&from_value(another).unwrap());
        } else {
            world.engine.at(world.now).namespace_gone("one");
        }
        world.copies.remove("one/a").unwrap();
        world.settle();
        assert_eq!(world.planned("r"), (0, 0, 0), "{replaced}");
    }
}

/// The process saw the copy before the change, although the rule was suspended since the process
/// began.
#[test]
fn what_was_forged_before_eyes_that_rest_is_put_right() {
    let mut wrong = simple().remove(0);
    wrong.suspend = true;
    let mut world = World::new(simple());
    world.listed(&[secret("a")]);
    world.restart(vec![wrong.clone()]);
    world.listed(&[secret("a")]);
    let entries = world.copies["one/a"]["metadata"]["managedFields"].clone();
    world.copies.get_mut("one/a").unwrap()["metadata"]["managedFields"][0]["fieldsV1"] =
        json!({"f:data": {}});
    world.touched("one/a", 200);
    world.copies.get_mut("one/a").unwrap()["metadata"]["managedFields"] = entries;
    world.touched("one/a", 201);
    assert_eq!(world.planned("r"), (0, 1, 0));
    assert_eq!(world.written, 2);
    world.store(simple().remove(0), 2);
    world.listed(&[secret("a")]);
    assert_eq!(world.written, 3, "no more than this one");
}

/// An active rule reports the same.
#[test]
fn a_copy_that_a_finalizer_holds_is_planned_to_be_in_the_way() {
    let mut world = World::new(simple());
    world.listed(&[secret("a")]);
    world.store(suspended(&[labelled()], &["one", "two"]), 2);
    world.copies.get_mut("one/a").unwrap()["metadata"]["deletionTimestamp"] =
        "2026-01-03T00:00:00Z".into();
    world.touched("one/a", 200);
    let plan = world.status_of("r").plan.unwrap();
    assert_eq!(
        (plan.create, plan.update, plan.delete, plan.conflict),
        (0, 0, 0, 1)
    );
    world.store(simple().remove(0), 3);
    assert_eq!(world.status_of("r").failures[0].reason, "Conflict");
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

#[test]
fn one_of_too_many_is_read_when_a_listing_lacks_an_older_one() {
    let aged = |number: usize| {
        let mut object = secret(&format!("s{number:03}"));
        object["metadata"]["creationTimestamp"] =
            format!("2026-01-01T00:{:02}:{:02}Z", number / 60, number % 60).into();
        object
    };
    let all: Vec<Value> = (0..260).map(aged).collect();
    let mut world = World::new(vec![rule("r", &[labelled()], &["one"], &json!({}))]);
    world.listed(&all);
    assert_eq!(world.copies.len(), 256);
    world.listed(&all[1..]);
    let next = world.selectors()[0].source("s256");
    assert_eq!(world.reads, [next]);
}
