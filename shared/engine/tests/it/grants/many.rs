//! Very many objects of one tenant cost no other user anything.

use jiff::Timestamp;
use mimeo_engine::Task;
use mimeo_model::{
    kind::GroupVersionKind,
    known::{Decoded, Known},
};
use serde_json::{Value, json};

use crate::common::uid;
use crate::grants::scene::{
    Scene, cluster_replication, copying, grant, replication, seconds, secrets, source, to, words,
};

/// The limit keeps checks of one namespace's grants fast. The oldest grants count. A user that
/// writes a grant beyond the limit is told.
#[test]
fn grants_beyond_the_bounds_grant_nothing() {
    for (number, load) in [(256, 2), (4, 256)] {
        let mut scene = Scene::new(&["home", "to"]);
        let aged = |age: i64, from: &str| {
            let mut grant = grant("Write", &to(from), &[]);
            grant.created = Timestamp::from_second(age).unwrap();
            grant
        };
        let other = |age| {
            let mut grant = aged(age, "nobody");
            grant.load = load;
            grant
        };
        for age in 1..=number {
            scene
                .engine
                .at(scene.now)
                .grant_applied("to", &format!("g{age}"), Ok(other(age)));
        }
        let wanted = aged(1000, "home");
        let why = scene
            .engine
            .index()
            .refuses_grant("to", "wanted", &wanted)
            .unwrap()
            .to_string();
        assert!(
            why.contains(
                "a namespace may have at most 256 ReplicationGrants, with 1024 names in all"
            ),
            "{why}"
        );
        assert_eq!(
            scene
                .engine
                .index()
                .refuses_grant("other", "wanted", &wanted),
            None
        );
        scene.grant("to", wanted);
        let id = scene.rule(replication("home", "r", &copying("home", "x", &["to"])));
        scene.show(&source("home", "x"));
        assert_eq!(scene.done().len(), 0);
        assert_eq!(words(&scene.status(&id), "Authorized"), "False NotGranted");
        // The grant counts once there is room. It stops to count when there is no room. The older
        // grant has precedence.
        scene.engine.at(scene.now).grant_gone("to", "g1");
        scene.run();
        assert_eq!(scene.done(), ["write to/x"]);
        assert_eq!(words(&scene.status(&id), "Ready"), "True Synced");
        assert_eq!(
            scene.engine.index().refuses_grant("to", "g1", &other(1)),
            None
        );
        assert!(
            scene
                .engine
                .index()
                .refuses_grant("to", "new", &other(2000))
                .is_some()
        );
        scene
            .engine
            .at(scene.now)
            .grant_applied("to", "g1", Ok(other(1)));
        scene.run();
        let known: Vec<String> = (1..=number).map(|age| format!("g{age}")).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).chain(["Write"]).collect();
        scene.tell_grants("to", &known, Some("2026-01-01T00:00:00Z"));
        assert_eq!(scene.done(), ["delete to/x"]);
        assert_eq!(words(&scene.status(&id), "Authorized"), "False NotGranted");
    }
}

/// Each change costs work only for the namespaces that it concerns, however many other namespaces
/// there are.
#[test]
fn a_flood_of_a_tenants_rules_concerns_his_namespaces_alone() {
    let planned = |others: usize| {
        let others: Vec<String> = (0..others).map(|i| format!("other-{i}")).collect();
        let mut namespaces: Vec<&str> = others.iter().map(String::as_str).collect();
        namespaces.extend(["home", "from"]);
        let mut scene = Scene::new(&namespaces);
        scene.run();
        let before = scene.engine.effort().planned;
        for i in 0..100 {
            let spec = json!({
                "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "from", "name": format!("x{i}")}],
                "targets": [{"namespaces": ["home"]}],
            });
            scene.rule(replication("home", &format!("r{i}"), &spec));
            scene.engine.at(scene.now).grant_applied(
                "home",
                &format!("g{i}"),
                Ok(grant("Read", &to("nobody"), &[])),
            );
            scene.run();
        }
        scene.engine.effort().planned - before
    };
    assert_eq!(planned(10), planned(500));
}

/// A `ClusterReplication` is planned where it matches, matched before, or has copies.
#[test]
fn a_cluster_replication_concerns_the_namespaces_of_its_targets_and_of_its_copies() {
    let planned = |others: usize| {
        let others: Vec<String> = (0..others).map(|i| format!("other-{i}")).collect();
        let mut namespaces: Vec<&str> = others.iter().map(String::as_str).collect();
        namespaces.extend(["a", "b", "from"]);
        let mut scene = Scene::new(&namespaces);
        scene.run();
        let before = scene.engine.effort().planned;
        for (generation, target) in (1..).zip(["a", "b", "a"]) {
            let spec = json!({
                "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "from", "name": "x"}],
                "targets": [{"namespaces": [target]}],
            });
            let mut rule = cluster_replication("r", &spec);
            rule.generation = generation;
            scene.rule(rule);
            scene.show(&source("from", "x"));
            scene.wait(60);
            assert!(
                scene.objects.keys().eq([&format!("{target}/x")]),
                "{:?}",
                scene.objects
            );
        }
        scene.engine.effort().planned - before
    };
    assert_eq!(planned(10), planned(500));
}

/// A tenant's rules may have any number of copies in one namespace. A change of one copy doesn't
/// plan all of them again each time.
#[test]
fn a_crowded_namespace_is_planned_as_often_as_it_can_be_and_no_more() {
    let mut scene = Scene::new(&["home"]);
    let planned_for = |scene: &mut Scene, rules: std::ops::Range<u32>| {
        let before = scene.engine.effort().planned;
        for i in rules {
            let spec = json!({
                "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "own"}],
                "targets": [{"namespaces": ["home"], "copyName": format!("copy-{i}")}],
            });
            scene.rule(replication("home", &format!("r{i}"), &spec));
        }
        scene.engine.effort().planned - before
    };
    planned_for(&mut scene, 0..1);
    scene.show(&source("home", "own"));
    assert!(planned_for(&mut scene, 1..255) >= 254);
    assert!(planned_for(&mut scene, 255..400) < 10);
    scene.wait(1);
    assert_eq!(scene.objects.len(), 400);
}

/// A tenant with many rules waits for its turn. Copies of `ClusterReplication`s come first, and
/// other tenants' copies come in between.
#[test]
fn a_flood_of_writes_keeps_nobody_else_waiting() {
    let mut scene = Scene::new(&["flood", "other", "platform"]);
    let own = |name: &str, to: &str| {
        json!({
            "sources": [{"apiVersion": "v1", "kind": "Secret", "name": name}], "targets": [{"namespaces": [to], "copyName": "copy"}],
        })
    };
    let mut flood = own("x", "flood");
    flood["targets"] = (0..32)
        .map(|i| json!({"namespaces": ["flood"], "copyName": format!("copy-{i}")}))
        .collect();
    for rule in [
        replication("flood", "r", &flood),
        replication("other", "r", &own("x", "other")),
    ] {
        scene
            .engine
            .at(scene.now)
            .rule_applied(rule.id.clone(), Ok(rule), None);
    }
    let platform = cluster_replication("p", &copying("platform", "x", &["other"]));
    scene
        .engine
        .at(scene.now)
        .rule_applied(platform.id.clone(), Ok(platform), None);
    for home in ["flood", "other", "platform"] {
        assert!(scene.watched(&source(home, "x")));
        let object =
            json!({"metadata": {"resourceVersion": "7"}, "type": "Opaque", "data": {"a": "b"}});
        scene
            .engine
            .at(scene.now)
            .source(&source(home, "x"), Some(Decoded::Whole(object)));
    }
    let done = scene.done();
    assert_eq!((done[0].as_str(), done.len()), ("write other/x", 34));
    assert!(
        done[1..3].contains(&"write other/copy".to_owned()),
        "{done:?}"
    );
}

/// A rule with an invented kind costs a lookup of that kind, and nothing more.
#[test]
fn kinds_that_are_not_served_are_the_matter_of_the_rules_that_name_them() {
    let places: Vec<String> = (0..500).map(|i| format!("place-{i}")).collect();
    let mut namespaces: Vec<&str> = places.iter().map(String::as_str).collect();
    namespaces.push("mallory");
    let mut scene = Scene::new(&namespaces);
    let kinds: Vec<GroupVersionKind> = (0..32)
        .map(|i| GroupVersionKind::parse("example.com/v1", &format!("K{i}")).unwrap())
        .collect();
    let source = |kind: &GroupVersionKind| json!({"apiVersion": kind.api_version(), "kind": &*kind.kind, "name": "x"});
    let sources: Vec<Value> = kinds.iter().map(source).collect();
    let targets = json!([{"namespaces": ["mallory"], "copyName": "$(source.name)-copy"}]);
    let id = scene.rule(replication(
        "mallory",
        "r",
        &json!({"sources": sources, "targets": targets}),
    ));
    let planned = scene.engine.effort().planned;
    for kind in &kinds {
        scene.engine.at(scene.now).kind(kind, Known::Unserved);
        scene.run();
    }
    let planned = scene.engine.effort().planned - planned;
    assert!(
        planned <= 64,
        "{planned} namespaces planned for 32 kinds that aren't there"
    );
    assert_eq!(
        words(&scene.status(&id), "SourcesFound"),
        "False KindNotServed"
    );
}

/// Two kinds with the same number would share their copies and the decisions about them.
#[test]
fn there_is_an_end_to_kinds_and_those_that_nobody_needs_make_room() {
    let mut scene = Scene::new(&["home"]);
    let recorded = (0..=u16::MAX)
        .map(|i| GroupVersionKind::parse("example.com/v1", &format!("K{i}")).unwrap());
    scene
        .engine
        .at(scene.now)
        .kinds_recorded(&recorded.collect());
    let rule = |name: &str| {
        let source = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x"});
        let targets = json!([{"namespaces": ["home"], "copyName": format!("{name}-copy")}]);
        replication(
            "home",
            name,
            &json!({"sources": [source], "targets": targets}),
        )
    };
    let id = scene.rule(rule("a"));
    let status = scene.status(&id);
    assert_eq!(words(&status, "SourcesFound"), "False KindNotServed");
    assert_eq!(status.copies.unwrap().desired, 0);
    scene
        .engine
        .at(scene.now)
        .kinds_recorded(&[secrets()].into());
    let id = scene.rule(rule("b"));
    let maps = GroupVersionKind::parse("v1", "ConfigMap").unwrap();
    scene.engine.at(scene.now).kind(&maps, Known::Unserved);
    let status = scene.status(&id);
    assert_eq!(words(&status, "SourcesFound"), "False KindNotServed");
    assert_eq!(status.copies.unwrap().desired, 1);
}

/// Otherwise a user could update a rule again and again with invented kinds, and fill the memory of
/// both programs.
#[test]
fn kinds_that_were_made_up_are_forgotten_and_no_other() {
    let mut scene = Scene::new(&["home", "to"]);
    let id = scene.rule(cluster_replication("p", &copying("home", "x", &["to"])));
    scene.show(&source("home", "x"));
    assert_eq!(scene.done(), ["write to/x"]);
    for update in 0..100 {
        let source = |number: i32| json!({"apiVersion": "example.com/v1", "kind": format!("K{number}"), "namespace": "to", "name": "x"});
        let sources: Vec<Value> = (update * 32..(update + 1) * 32).map(source).collect();
        let targets = json!([{"namespaces": ["home"], "copyName": "$(source.name)-copy"}]);
        let mut rule = replication(
            "home",
            "r",
            &json!({"sources": sources, "targets": targets}),
        );
        rule.generation = i64::from(update);
        scene.rule(rule);
    }
    let kinds = scene.engine.inside().counts["kinds"];
    assert!((32..=1024).contains(&kinds), "{kinds} kinds are known");
    assert_eq!(words(&scene.status(&id), "Ready"), "True Synced");
    let copy = scene.objects.remove("to/x").unwrap();
    scene.engine.at(scene.now).copy_gone(
        &secrets().group_kind(),
        &serde_json::from_value(copy).unwrap(),
    );
    assert_eq!(
        scene.done(),
        ["write to/x"],
        "the copy's kind is the one that it was"
    );
}

/// Any user can put labels and annotations on objects in its own namespace. They may name rules
/// that never existed, a different rule on each object. A forged entry may seem older than the CRD.
/// Such objects are held, and looked at again and again.
#[test]
fn marks_of_rules_that_never_were_cost_a_look_each_and_hold_up_nothing() {
    const MANY: usize = 500;
    for kind in ["ClusterReplication", "Replication/mallory"] {
        let mut scene = Scene::new(&["mallory", "other"]);
        scene.defined = seconds("2026-01-01T00:00:00Z");
        for number in 0..MANY {
            scene.mark_of(
                "2001-01-01T00:00:00Z",
                "mallory",
                &format!("m-{number}"),
                &format!("{kind}/none-{number}"),
            );
        }
        scene.mark_of(
            "2001-01-01T00:00:00Z",
            "other",
            "m",
            "ClusterReplication/lost",
        );
        scene.run();
        scene.tell_rules_gone(0);
        for _ in 0..5 {
            scene.wait(10);
        }
        assert_eq!(scene.engine.held().count(), MANY + 1, "{kind}");
        let lost = scene
            .engine
            .held()
            .find(|held| &*held.rule.name == "lost")
            .map(|held| held.nonce.to_owned());
        let (reviewed, planned) = (
            scene.engine.effort().reviewed,
            scene.engine.effort().planned,
        );
        for _ in 0..10 {
            scene.wait(10);
        }
        let reviewed = scene.engine.effort().reviewed - reviewed;
        assert!(
            (10..=11 * (MANY + 1)).contains(&reviewed),
            "{reviewed} cells looked at in ten rounds"
        );
        assert_eq!(
            scene.engine.effort().planned,
            planned,
            "nothing has changed"
        );
        assert_eq!(scene.done(), [] as [&str; 0]);
        scene.engine.at(scene.now).confirmed(lost.as_deref());
        assert_eq!(scene.done(), ["delete other/m"]);
        let first = scene.engine.held().next().map(|held| held.nonce.to_owned());
        scene.engine.at(scene.now).confirmed(first.as_deref());
        assert_eq!(scene.done().len(), 1);
        // An object that its owner deletes is held no longer.
        for number in 0..MANY {
            let key = format!("mallory/m-{number}");
            if let Some(meta) = scene.objects.remove(&key) {
                scene.engine.at(scene.now).copy_gone(
                    &secrets().group_kind(),
                    &serde_json::from_value(meta).unwrap(),
                );
            }
        }
        for _ in 0..3 {
            scene.wait(10);
        }
        assert_eq!(scene.engine.held().count(), 0, "{kind}");
    }
}

/// A rule was lost with its CRD, and its copies are held. A user marks an object as a copy of that
/// rule again and again. Each of these marks is younger than the CRD, and so needs a read. The held
/// copies need no plan for that.
#[test]
fn young_marks_of_a_lost_rule_cost_no_plans_of_its_held_copies() {
    const MANY: usize = 50;
    const TIMES: usize = 20;
    let lost = "ClusterReplication/lost";
    let places: Vec<String> = (0..MANY).map(|number| format!("n-{number}")).collect();
    let mut names: Vec<&str> = places.iter().map(String::as_str).collect();
    names.push("mallory");
    let mut scene = Scene::new(&names);
    scene.defined = seconds("2026-01-01T00:00:00Z");
    for place in &places {
        scene.mark_of("2025-12-31T00:00:00Z", place, "m", lost);
    }
    scene.run();
    scene.tell_rules_gone(0);
    for _ in 0..5 {
        scene.wait(10);
    }
    let held = |scene: &Scene| -> Vec<usize> {
        let held = scene.engine.held();
        held.map(|held| held.copies.len()).collect()
    };
    assert_eq!(held(&scene), [MANY]);
    let before = scene.engine.effort().planned;
    for _ in 0..TIMES {
        scene.mark_of("2026-01-02T00:00:00Z", "mallory", "x", lost);
        scene.run();
        scene.tell_rules_gone(0);
        assert_eq!(scene.done(), ["delete mallory/x"]);
    }
    let planned = scene.engine.effort().planned - before;
    assert!((TIMES..10 * TIMES).contains(&planned), "{planned} plans");
    assert_eq!(held(&scene), [MANY]);
}

/// A namespace's annotations have room for 256 KiB. If they are full, no user can annotate the
/// namespace.
#[test]
fn what_tenants_create_once_does_not_fill_the_annotations_of_a_namespace() {
    for (kind, noted) in [("ClusterReplication", true), ("Replication", false)] {
        let mut scene = Scene::new(&["home"]);
        let seeds: Vec<String> = (1..=1024).map(|number| format!("{number:016x}")).collect();
        let meta = json!({
            "name": "home", "uid": uid(scene.uids["home"]), "resourceVersion": "500",
            "annotations": {"mimeo.dev/seeded": seeds.join(",")},
        });
        scene
            .engine
            .at(scene.now)
            .namespace_applied(&serde_json::from_value(meta).unwrap());
        let mut spec = copying("home", "x", &["home"]);
        spec["targets"][0]["copyName"] = json!("y");
        spec["strategy"] = json!("CreateOnce");
        scene.rule(if noted {
            cluster_replication("p", &spec)
        } else {
            replication("home", "r", &spec)
        });
        scene.show(&source("home", "x"));
        assert_eq!(scene.done(), ["write home/y"], "{kind}");
        let notes = scene
            .jobs
            .iter()
            .any(|job| matches!(job.task, Task::RecordCreated { .. }));
        assert_eq!(notes, noted, "{kind}");
    }
}
