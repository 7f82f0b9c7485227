//! Jobs when the API server fails: each kind is asked for once, is retried after pauses that
//! double, and its answer counts once.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{collections::BTreeSet, time::Duration};

use mimeo_engine::{Action, Answer, Job, Task};
use mimeo_model::known::Decoded;
use serde_json::{Value, from_value, json};

use crate::{
    common::uid,
    grants::scene::{Scene, cluster_replication, copying, grant, replication, source, to},
};

/// The first pause of `Settings::new`, and the longest of a job. Up to a fifth is added, so that
/// jobs don't come back together.
const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_mins(1);

/// A kind of job: its name, a scene in which the engine needs one, and its task.
type Case = (&'static str, fn() -> Scene, fn(&Task) -> bool);

const CASES: [Case; 8] = [
    ("RecordKind", a_first_copy, |task| {
        matches!(task, Task::RecordKind(_))
    }),
    ("ForgetKind", no_copy, |task| {
        matches!(task, Task::ForgetKind(..))
    }),
    ("ConfirmRule", a_copy_of_no_rule, |task| {
        matches!(task, Task::ConfirmRule(_))
    }),
    ("ConfirmSource", a_lost_source, |task| {
        matches!(task, Task::ConfirmSource(_))
    }),
    ("ConfirmGrants", a_lost_grant, |task| {
        matches!(task, Task::ConfirmGrants(_))
    }),
    ("ReadSource", a_source_that_was_let_go, |task| {
        matches!(task, Task::ReadSource(_))
    }),
    ("RecordCreated", a_copy_created_once, |task| {
        matches!(task, Task::RecordCreated { .. })
    }),
    ("RemoveLabel", a_filled_namespace, |task| {
        matches!(task, Task::RemoveLabel { .. })
    }),
];

#[test]
fn a_job_that_fails_is_retried_alone_after_pauses_that_double() {
    for (name, scene, is_it) in CASES {
        let mut scene = scene();
        let mut job = next(&mut scene, is_it).unwrap_or_else(|| panic!("{name} isn't asked for"));
        let mut pause = FIRST;
        for attempt in 0..14 {
            scene.now += Duration::from_hours(1);
            assert!(
                next(&mut scene, is_it).is_none(),
                "{name} is under way already, attempt {attempt}"
            );
            scene.engine.at(scene.now).answered(&job, Answer::Failed);
            assert!(next(&mut scene, is_it).is_none(), "{name} has no pause");
            scene.now += pause.saturating_sub(Duration::from_millis(1));
            assert!(
                next(&mut scene, is_it).is_none(),
                "{name} pauses for less than {pause:?}"
            );
            scene.now += Duration::from_millis(1) + pause / 5;
            let former = job;
            job = next(&mut scene, is_it)
                .unwrap_or_else(|| panic!("{name} pauses for more than {pause:?}"));
            // The answer to the former attempt arrives late.
            scene.engine.at(scene.now).answered(&former, Answer::Failed);
            pause = (pause * 2).min(LONGEST);
        }
        assert_eq!(pause, LONGEST);
    }
}

#[test]
fn a_write_that_was_made_is_not_made_again_before_its_watch_shows_it() {
    let written = |task: &Task| {
        matches!(
            task,
            Task::RecordKind(_) | Task::RecordCreated { .. } | Task::RemoveLabel { .. }
        )
    };
    let mut seen = 0;
    for (name, scene, is_it) in CASES {
        let mut scene = scene();
        let Some(job) = next(&mut scene, is_it).filter(|job| written(&job.task)) else {
            continue;
        };
        seen += 1;
        scene.engine.at(scene.now).answered(&job, Answer::Done);
        scene.now += LONGEST.saturating_sub(Duration::from_millis(1));
        assert!(next(&mut scene, is_it).is_none(), "{name} is written twice");
        // The watch may never show it, because another client may have undone it at once.
        scene.now += LONGEST;
        assert!(next(&mut scene, is_it).is_some(), "{name} is forgotten");
    }
    assert_eq!(seen, 3);
}

/// A read that began before the watch showed a change says nothing about the present.
#[test]
fn what_the_watch_shows_during_a_read_is_newer_than_the_read() {
    let mut scene = a_source_that_was_let_go();
    let job = next(&mut scene, |task| matches!(task, Task::ReadSource(_))).unwrap();
    scene
        .engine
        .at(scene.now)
        .source(&source("home", "x"), None);
    let stale = json!({"metadata": {"resourceVersion": "200"}, "type": "Opaque"});
    let answer = Answer::Object(Some(Decoded::Whole(stale)));
    scene.engine.at(scene.now).answered(&job, answer);
    next(&mut scene, |_| false);
    assert_eq!(scene.done(), [] as [&str; 0], "the source was deleted");
}

/// The object of a job changed while the job ran. The next attempt needs no pause.
#[test]
fn a_job_whose_object_has_changed_meanwhile_is_retried_at_once() {
    let mut scene = a_filled_namespace();
    let is_it = |task: &Task| matches!(task, Task::RemoveLabel { .. });
    let job = next(&mut scene, is_it).unwrap();
    let meta = json!({
        "name": "new", "uid": uid(900), "labels": {"mimeo.dev/copies": "token"}, "resourceVersion": "901",
    });
    let meta = from_value(meta).unwrap();
    scene.engine.at(scene.now).namespace_applied(&meta);
    assert!(next(&mut scene, is_it).is_none(), "it is under way");
    scene.engine.at(scene.now).answered(&job, Answer::Changed);
    assert!(next(&mut scene, is_it).is_some());
}

/// Carries out all requests. Returns the next job of this kind, if there is one.
fn next(scene: &mut Scene, is_it: fn(&Task) -> bool) -> Option<Job> {
    let mut found = None;
    while let Some(action) = scene.engine.at(scene.now).next_action() {
        match action {
            Action::Request(request) => scene.carry_out(&request),
            Action::Job(job) if is_it(&job.task) => {
                assert!(found.is_none(), "{found:?} and {job:?}");
                found = Some(*job);
            }
            // Jobs of other kinds wait for their answers.
            Action::Job(_) => {}
        }
    }
    found
}

fn a_first_copy() -> Scene {
    let mut scene = Scene::new(&["home", "to"]);
    scene.engine.at(scene.now).kinds_recorded(&BTreeSet::new());
    apply(&mut scene, &copying("home", "x", &["to"]));
    show(&mut scene, 1);
    scene
}

fn no_copy() -> Scene {
    Scene::new(&["home"])
}

fn a_copy_of_no_rule() -> Scene {
    let mut scene = Scene::new(&["to"]);
    scene.mark("to", "x", "ClusterReplication/gone");
    scene
}

fn a_lost_source() -> Scene {
    let mut scene = Scene::new(&["home", "to"]);
    scene.rule(cluster_replication("r", &copying("home", "x", &["to"])));
    scene.show(&source("home", "x"));
    scene
        .engine
        .at(scene.now)
        .source(&source("home", "x"), None);
    scene.now += Duration::from_secs(61);
    scene
}

fn a_lost_grant() -> Scene {
    let mut scene = Scene::new(&["home", "to"]);
    scene.grant("to", grant("Write", &to("home"), &[]));
    scene.rule(replication("home", "r", &copying("home", "x", &["to"])));
    scene.show(&source("home", "x"));
    scene.engine.at(scene.now).grant_gone("to", "Write");
    scene
}

/// A source too large for the `Replication` that names it, so its content isn't held. A
/// `ClusterReplication` may copy it.
fn a_source_that_was_let_go() -> Scene {
    let mut scene = Scene::new(&["home", "to"]);
    let mut own = copying("home", "x", &["home"]);
    own["targets"][0]["copyName"] = "y".into();
    scene.rule(replication("home", "r", &own));
    show(&mut scene, 100 * 1024);
    scene.run();
    apply(&mut scene, &copying("home", "x", &["to"]));
    scene
}

fn a_copy_created_once() -> Scene {
    let mut scene = Scene::new(&["home", "to"]);
    let mut spec = copying("home", "x", &["to"]);
    spec["strategy"] = "CreateOnce".into();
    apply(&mut scene, &spec);
    show(&mut scene, 1);
    scene
}

/// A namespace with the pending label whose copies are all written.
fn a_filled_namespace() -> Scene {
    let mut scene = Scene::new(&["home"]);
    scene.rule(cluster_replication("r", &copying("home", "x", &["new"])));
    scene.show(&source("home", "x"));
    let meta = json!({
        "name": "new", "uid": uid(900), "labels": {"mimeo.dev/copies": "token"}, "resourceVersion": "900",
    });
    let meta = from_value(meta).unwrap();
    scene.engine.at(scene.now).namespace_applied(&meta);
    scene.now += Duration::from_secs(3);
    scene
}

/// Applies a `ClusterReplication` and carries out nothing.
fn apply(scene: &mut Scene, spec: &Value) {
    let rule = cluster_replication("p", spec);
    let now = scene.now;
    scene
        .engine
        .at(now)
        .rule_applied(rule.id.clone(), Ok(rule), None);
}

/// The watch of the source shows it with `size` times three bytes of data.
fn show(scene: &mut Scene, size: usize) {
    let shown = json!({
        "metadata": {"resourceVersion": "200"}, "type": "Opaque",
        "data": {"a": "eHh4".repeat(size)},
    });
    scene
        .engine
        .at(scene.now)
        .source(&source("home", "x"), Some(Decoded::Whole(shown)));
}
