//! Objects that `Replication`s may use as sources, and copies that are sources of other rules.

use jiff::Timestamp;
use mimeo_model::{id::RuleId, known::Decoded, rule::Rule};
use serde_json::json;

use crate::grants::scene::{Scene, cluster_replication, copying, grant, replication, source, to};

#[test]
fn a_source_that_may_be_read_is_left_alone_by_tenants_rules() {
    for (readable, written) in [(true, [].as_slice()), (false, ["write home/x"].as_slice())] {
        let mut scene = Scene::new(&["home", "reader"]);
        if readable {
            scene.grant("home", grant("Read", &to("reader"), &[]));
        }
        scene.stranger("home/x");
        scene.rule(replication(
            "reader",
            "r",
            &copying("home", "x", &["reader"]),
        ));
        scene.rule(replication(
            "home",
            "w",
            &json!({
                "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "own"}],
                "targets": [{"namespaces": ["home"], "copyName": "x"}], "conflictPolicy": "Overwrite",
            }),
        ));
        scene.show(&source("home", "own"));
        assert_eq!(scene.done(), written, "{readable}");
    }
}

#[test]
fn a_copy_may_be_another_rules_source() {
    let mut scene = Scene::new(&["platform", "home"]);
    scene.rule(cluster_replication(
        "p",
        &copying("platform", "x", &["home"]),
    ));
    scene.rule(replication("home", "r", &json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "x"}], "targets": [{"namespaces": ["home"], "copyName": "y"}],
    })));
    scene.show(&source("platform", "x"));
    scene.show(&source("home", "x"));
    assert_eq!(scene.done(), ["write home/x", "write home/y"]);
    scene.show(&source("platform", "x"));
    assert_eq!(scene.done(), [] as [&str; 0], "the same content");
}

/// A rule of namespace `home` that copies there under another name. `created` is its creation time
/// in seconds.
fn at_home(name: &str, from: &str, to: &str, created: i64) -> Rule {
    let mut rule = replication(
        "home",
        name,
        &json!({
            "sources": [{"apiVersion": "v1", "kind": "Secret", "name": from}],
            "targets": [{"namespaces": ["home"], "copyName": to}],
            "transform": {"data": {"rename": {"a": "b", "b": "a"}}},
            "conflictPolicy": "Overwrite",
        }),
    );
    rule.created = Timestamp::from_second(created).unwrap();
    rule
}

/// A rule writes no object that a rule of a higher rank names as its source. So one rule of a ring
/// writes nothing, however many rules the ring has.
#[test]
fn rules_form_no_ring() {
    for middle in [&["y"][..], &["m", "y"]] {
        let mut scene = Scene::new(&["home"]);
        let mut from = "x";
        for (age, to) in (1..).zip(middle) {
            scene.rule(at_home(&format!("to-{to}"), from, to, age));
            scene.show(&source("home", from));
            assert_eq!(scene.done(), [format!("write home/{to}")]);
            from = to;
        }
        // The first source is deleted. The last rule would create it again, as a copy of its copy.
        scene
            .engine
            .at(scene.now)
            .source(&source("home", "x"), None);
        let last = scene.rule(at_home("to-x", "y", "x", 9));
        scene.show(&source("home", "y"));
        assert_eq!(scene.done().len(), 0);
        let status = scene.status(&last);
        assert_eq!(
            (&*status.failures[0].reason, &*status.failures[0].name),
            ("Conflict", "x")
        );
        assert!(
            status.failures[0].message.contains("higher rank names"),
            "{status:?}"
        );
        // Once no rule names the object as its source, it is written.
        let id: RuleId = format!("Replication/home/to-{}", middle[0])
            .parse()
            .unwrap();
        scene.engine.at(scene.now).rule_gone(&id);
        assert_eq!(scene.done(), ["write home/x"]);
    }
}

/// A rule may name a copy as its source only in two cases. It is younger than the copy's own rule,
/// or it is a `Replication` and the copy's own rule is a `ClusterReplication`.
#[test]
fn the_rule_of_the_higher_rank_decides_whether_its_source_may_be_a_copy() {
    let platform = |from: &str, to: &str, created: i64| {
        let spec = json!({
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": from}],
            "targets": [{"namespaces": ["home"], "copyName": to}],
        });
        let mut rule = cluster_replication("p", &spec);
        rule.created = Timestamp::from_second(created).unwrap();
        rule
    };
    let both = ["write home/y", "write home/z"].as_slice();
    let none = [].as_slice();
    for (writer, reader, written) in [
        (at_home("w", "x", "y", 1), at_home("r", "y", "z", 2), both),
        // Two rules created in the same second are ranked by name.
        (at_home("a", "x", "y", 1), at_home("b", "y", "z", 1), both),
        (at_home("b", "x", "y", 1), at_home("a", "y", "z", 1), none),
        (at_home("w", "x", "y", 2), at_home("r", "y", "z", 1), none),
        (platform("x", "y", 2), at_home("r", "y", "z", 1), both),
        (at_home("w", "x", "y", 1), platform("y", "z", 2), none),
    ] {
        let mut scene = Scene::new(&["home"]);
        let case = format!("{} named by {}", writer.id, reader.id);
        scene.rule(reader);
        let writer = scene.rule(writer);
        scene.show(&source("home", "x"));
        if !written.is_empty() {
            scene.show(&source("home", "y"));
        }
        assert_eq!(scene.done(), written, "{case}");
        let failures = scene.status(&writer).failures;
        assert_eq!(failures.len(), usize::from(written.is_empty()), "{case}");
    }
}

/// If a later rule of a higher rank names the copy, the copy stays as it is.
#[test]
fn a_copy_that_a_higher_rank_comes_to_name_is_left_as_it_is() {
    let mut scene = Scene::new(&["home"]);
    let writer = scene.rule(at_home("w", "x", "y", 1));
    scene.show(&source("home", "x"));
    assert_eq!(scene.done(), ["write home/y"]);
    scene.rule(cluster_replication("p", &copying("home", "y", &["home"])));
    assert_eq!(scene.done().len(), 0);
    scene.engine.at(scene.now).source(
        &source("home", "x"),
        Some(Decoded::Whole(
            json!({"metadata": {"resourceVersion": "900"}, "data": {"a": "bmV3"}}),
        )),
    );
    assert_eq!(scene.done().len(), 0);
    assert_eq!(&*scene.status(&writer).failures[0].reason, "Conflict");
}
