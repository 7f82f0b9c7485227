//! The effect of a read that finds a rule or source missing: for which copies it counts, and for
//! how long.

use std::time::Duration;

use mimeo_engine::{Answer, Home, Presence, Task, Verb};
use mimeo_model::{
    id::RuleId,
    outcome::{FailureReason, Outcome},
};

use serde_json::json;

use crate::common::gone;
use crate::grants::scene::{Scene, cluster_replication, copying, replication, source, to, words};

const CREATED: &str = "2026-01-01T00:00:00Z";
const CREATED_AT: u32 = 1_767_225_600;
const BEFORE: &str = "2025-12-31T23:59:59Z";
const AFTER: &str = "2026-01-01T00:00:01Z";

/// The case: the source's namespace was deleted and created again without the source. The process
/// that observed the deletion has ended.
#[test]
fn a_source_that_went_with_a_former_namespace_is_lost_after_a_restart_too() {
    let places: Vec<String> = (0..20).map(|i| format!("place-{i}")).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    for (written, meant) in [(BEFORE, false), (CREATED, false), (AFTER, true)] {
        let mut scene = Scene::new(&[&places[..], &["a"]].concat());
        let id = scene.rule(cluster_replication("p", &copying("a", "b", &places)));
        for place in &places {
            scene.mark_of(written, place, "b", "ClusterReplication/p");
        }
        assert!(scene.watched(&source("a", "b")));
        scene.engine.at(scene.now).source(&source("a", "b"), None);
        scene.wait(61);
        assert!(scene.asks(&Task::ConfirmSource(source("a", "b"))));
        let read = gone(Some(CREATED_AT));
        scene.answer(
            &Task::ConfirmSource(source("a", "b")),
            Answer::Presence(read),
        );
        assert_eq!(scene.done().len(), if meant { 20 } else { 0 }, "{written}");
        scene.wait(60);
        assert_eq!(scene.done().len(), 0, "{written}");
        let status = scene.status(&id);
        let stalled = status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "Stalled");
        assert_eq!(stalled, !meant, "{written}");
        assert!(meant || words(&status, "Stalled") == "True DeletionHeld");
    }
}

/// Twenty copies of source `b` in namespace `a`, made by a `ClusterReplication`, and a tenant's
/// namespace.
fn twenty_copies() -> (Scene, RuleId) {
    let places: Vec<String> = (0..20).map(|i| format!("place-{i}")).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let mut scene = Scene::new(&[&places[..], &["a", "theirs"]].concat());
    let id = scene.rule(cluster_replication("p", &copying("a", "b", &places)));
    scene.show(&source("a", "b"));
    assert_eq!(scene.done().len(), 20);
    (scene, id)
}

/// Deletes source `b` together with its namespace `a`. Then another namespace `a` exists.
fn lose_with_namespace(scene: &mut Scene) {
    scene.engine.at(scene.now).source(&source("a", "b"), None);
    scene.uids.remove("a");
    scene.namespace("a", &json!({}));
    scene.wait(61);
    let read = gone(Some(CREATED_AT));
    scene.answer(
        &Task::ConfirmSource(source("a", "b")),
        Answer::Presence(read),
    );
    scene.run();
}

/// A tenant can create objects in its own namespace that look like copies of any rule, and delete
/// them again.
#[test]
fn no_tenant_keeps_a_person_from_confirming_what_is_held() {
    let (mut scene, id) = twenty_copies();
    lose_with_namespace(&mut scene);
    scene.wait(11);
    let stalled = |scene: &mut Scene| {
        let conditions = scene.status(&id).conditions;
        conditions
            .into_iter()
            .find(|one| one.type_ == "Stalled")
            .unwrap()
            .message
    };
    let told = stalled(&mut scene);
    for _ in 0..3 {
        scene.mark("theirs", "x", "ClusterReplication/p");
        scene.wait(11);
        assert_eq!(stalled(&mut scene), told);
    }
    let nonce = told.rsplit_once('=').unwrap().1;
    scene.engine.at(scene.now).confirmed(Some(nonce));
    assert_eq!(scene.done().len(), 20, "all that was told");
    assert!(scene.objects.contains_key("theirs/x"));
    scene.wait(11);
    assert_eq!(scene.done(), ["delete theirs/x"], "by itself it isn't much");
}

/// For a rule that does not exist, the number of its copies in a namespace is unknown.
#[test]
fn no_tenant_keeps_a_person_from_confirming_what_a_rule_left_that_is_gone() {
    let (mut scene, id) = twenty_copies();
    scene.engine.at(scene.now).rule_gone(&id);
    scene.run();
    let read = Presence::Absent(Home {
        namespace: Some(0),
        crd: Some(u32::MAX),
    });
    scene.tell_rule(&id.to_string(), read);
    scene.run();
    scene.wait(11);
    let told = |scene: &Scene| {
        scene
            .engine
            .held()
            .map(|held| (held.nonce.to_owned(), held.copies.len()))
            .collect::<Vec<_>>()
    };
    let first = told(&scene);
    assert_eq!((first.len(), first[0].1), (1, 20));
    for round in 0..3 {
        for number in 0..50 {
            scene.mark(
                "theirs",
                &format!("x-{round}-{number}"),
                "ClusterReplication/p",
            );
        }
        scene.wait(11);
        assert_eq!(told(&scene), first);
    }
    scene.engine.at(scene.now).confirmed(Some(&first[0].0));
    assert_eq!(scene.done().len(), 20);
    // The remaining losses are collected on their own.
    scene.wait(11);
    let rest = told(&scene);
    assert_eq!((rest.len(), rest[0].1), (1, 150));
    scene.engine.at(scene.now).confirmed(Some(&rest[0].0));
    assert_eq!(scene.done().len(), 150);
}

/// Some copies are restored, and the remaining losses are below the limit.
#[test]
fn a_hold_that_has_ended_is_told_no_more() {
    let places: Vec<String> = (0..40).map(|i| format!("place-{i}")).collect();
    let mut scene = Scene::new(&["a"]);
    let label = |scene: &mut Scene, which: std::ops::Range<usize>, team: &str| {
        places[which]
            .iter()
            .for_each(|place| scene.namespace(place, &json!({"team": team})));
    };
    label(&mut scene, 0..40, "ours");
    let mut spec = copying("a", "b", &[]);
    spec["targets"] = json!([{"namespaceSelector": {"matchLabels": {"team": "ours"}}}]);
    let id = scene.rule(cluster_replication("p", &spec));
    scene.show(&source("a", "b"));
    assert_eq!(scene.done().len(), 40);
    label(&mut scene, 15..40, "theirs");
    scene.run();
    scene.wait(11);
    assert!(scene.holds(&id));
    label(&mut scene, 15..25, "ours");
    label(&mut scene, 14..15, "theirs");
    scene.run();
    scene.wait(6);
    assert_eq!(scene.done().len(), 15, "what was lost for long enough");
    assert!(!scene.holds(&id));
}

/// A deletion was approved but not answered, and then the source appeared again. The approval must
/// not cover the next loss, which waits on its own.
#[test]
fn what_was_decided_about_a_loss_ends_with_it() {
    let mut scene = Scene::new(&["a", "place"]);
    scene.rule(cluster_replication("p", &copying("a", "b", &["place"])));
    scene.show(&source("a", "b"));
    assert_eq!(scene.done(), ["write place/b"]);
    for _ in 0..2 {
        lose_with_namespace(&mut scene);
        assert_eq!(
            scene.done(),
            [] as [&str; 0],
            "it went with its namespace, and is collected first"
        );
        scene.now += Duration::from_secs(11);
        let delete = scene.request();
        assert!(matches!(delete.verb, Verb::Delete(..)));
        scene.engine.at(scene.now).outcome(
            &delete,
            Outcome::of_silence(FailureReason::Timeout, "no answer"),
        );
        scene.show(&source("a", "b"));
        scene.wait(60);
        scene.done();
    }
}

#[test]
fn a_rule_that_went_with_a_former_namespace_is_not_deleted_on_purpose() {
    for (written, meant) in [(BEFORE, false), (CREATED, false), (AFTER, true)] {
        let mut scene = Scene::new(&["a", "z"]);
        scene.mark_of(written, "z", "b", "Replication/a/r");
        scene.run();
        let read = gone(Some(CREATED_AT));
        scene.tell_rule("Replication/a/r", read);
        assert_eq!(scene.done().len(), usize::from(meant), "{written}");
        scene.wait(11);
        assert_eq!(
            scene.done().len(),
            usize::from(!meant),
            "collected first: {written}"
        );
    }
    // The process knows the age of a rule that it has seen.
    for (again, meant) in [(false, true), (true, false)] {
        let mut scene = Scene::new(&["home", "to"]);
        scene.grant("to", crate::grants::scene::grant("Write", &to("home"), &[]));
        let id = scene.rule(replication("home", "r", &copying("home", "x", &["to"])));
        scene.show(&source("home", "x"));
        assert_eq!(scene.done(), ["write to/x"]);
        if again {
            scene.uids.remove("home");
            scene.namespace("home", &json!({}));
        }
        scene.engine.at(scene.now).rule_gone(&id);
        scene.run();
        let created = if again { u32::MAX } else { 0 };
        scene.tell_rule(&id.to_string(), gone(Some(created)));
        assert_eq!(scene.done().len(), usize::from(meant));
        scene.wait(11);
        assert_eq!(scene.objects.len(), 0);
    }
}

/// The rule may exist again, and the watch may show that late.
#[test]
fn a_read_counts_for_no_copy_that_came_after_it_and_for_none_later_on() {
    let id: RuleId = "ClusterReplication/p".parse().unwrap();
    let asked = |scene: &Scene| scene.asks(&Task::ConfirmRule(id.clone()));
    let mut scene = Scene::new(&["z"]);
    scene.mark("z", "a", "ClusterReplication/p");
    scene.run();
    scene.mark("z", "b", "ClusterReplication/p");
    scene.run();
    scene.tell_rule(&id.to_string(), gone(Some(0)));
    assert_eq!(
        scene.done(),
        ["delete z/a"],
        "the other came after it was asked"
    );
    assert!(asked(&scene));
    scene.tell_rule(&id.to_string(), gone(Some(0)));
    assert_eq!(scene.done(), ["delete z/b"]);
    assert!(!asked(&scene));
    // If a copy can't be deleted at once, the engine reads its rule again.
    scene.mark("z", "c", "ClusterReplication/p");
    scene.run();
    assert!(asked(&scene));
    scene.tell_rule(&id.to_string(), gone(Some(0)));
    let request = scene.request();
    scene.engine.at(scene.now).outcome(
        &request,
        Outcome::of_silence(FailureReason::Timeout, "no answer"),
    );
    scene.wait(11);
    assert_eq!((scene.done(), asked(&scene)), (vec![], true));
    scene.tell_rule(&id.to_string(), gone(Some(0)));
    assert_eq!(scene.done(), ["delete z/c"]);
}

/// A request without an answer is retried after pauses that grow.
#[test]
fn what_nobody_answers_is_asked_after_a_pause_that_grows() {
    let mut scene = Scene::new(&["a", "z"]);
    scene.rule(cluster_replication("p", &copying("a", "b", &["z"])));
    scene.mark("z", "b", "ClusterReplication/p");
    scene.mark("z", "c", "ClusterReplication/q");
    assert!(scene.watched(&source("a", "b")));
    scene.engine.at(scene.now).source(&source("a", "b"), None);
    scene.wait(61);
    let mut planned = 0;
    for _ in 0..3600 {
        scene.wait(1);
        let before = scene.engine.effort().planned;
        for job in std::mem::take(&mut scene.jobs) {
            scene.engine.at(scene.now).answered(&job, Answer::Failed);
            planned += usize::from(matches!(
                job.task,
                Task::ConfirmRule(_) | Task::ConfirmSource(_)
            ));
        }
        scene.run();
        assert!(
            scene.engine.effort().planned - before <= 2,
            "no answer, no plan"
        );
    }
    assert!((60..150).contains(&planned), "{planned}");
}
