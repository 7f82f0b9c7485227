//! What tenants' rules take for sources, and copies that feed others.

use mimeo_core::rule::RuleId;
use serde_json::json;

use crate::scene::{Scene, cluster_replication, copying, grant, replication, secrets, source, to};

#[test]
fn a_source_feeds_the_copies_that_are_granted_and_no_others() {
    let mut scene = Scene::new(&["home", "from", "to", "other"]);
    let x = (&secrets().group_kind(), "from", "x");
    let fed = |scene: &Scene| scene.engine.feeds_tenants(x.0, x.1, x.2);
    scene.rule(replication("home", "r", &copying("from", "x", &["to", "other", "nowhere", "home"])));
    assert_eq!(fed(&scene), 0, "it may not be read");
    scene.grant("from", grant("Read", &to("home"), &[]));
    assert_eq!(fed(&scene), 1, "in its own namespace");
    for namespace in ["to", "nowhere"] {
        scene.grant(namespace, grant("Write", &to("home"), &[]));
    }
    assert_eq!(fed(&scene), 2, "as many as there can be");
    scene.rule(replication("from", "own", &json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "x"}], "targets": [{"namespaces": ["from"], "name": "y"}],
    })));
    assert_eq!(fed(&scene), 3);
    assert_eq!(scene.engine.feeds_tenants(x.0, "to", "x"), 0);
}

/// The API server asks about the deletion of so many: whoever has most rules has no more of them than others.
#[test]
fn of_very_many_sources_the_platforms_are_the_first_and_tenants_take_turns() {
    let mut scene = Scene::new(&["a", "b", "vault"]);
    let own = |home: &str, name: &str| {
        let sources = json!([{"apiVersion": "v1", "kind": "Secret", "name": name}]);
        replication(home, name, &json!({"sources": sources, "targets": [{"namespaces": [home], "name": "copy"}]}))
    };
    for name in ["a", "b", "c", "d"] {
        scene.rule(own("a", name));
    }
    scene.rule(own("b", "z"));
    scene.rule(cluster_replication("p", &copying("vault", "x", &["a"])));
    scene.rule(replication("b", "foreign", &copying("vault", "y", &["b"])));
    scene.show(&source("vault", "x"));
    let sources = |most| {
        let sources = scene.engine.sources(most).unwrap();
        sources.keys().map(|source| format!("{}/{}", source.namespace, source.name)).collect::<Vec<_>>()
    };
    assert_eq!(sources(1), ["vault/x"]);
    assert_eq!(sources(3), ["a/a", "b/z", "vault/x"]);
    assert_eq!(sources(4), ["a/a", "a/b", "b/z", "vault/x"]);
    assert_eq!(sources(9), ["a/a", "a/b", "a/c", "a/d", "b/z", "vault/x"], "what isn't granted isn't there");
}

#[test]
fn a_source_that_may_be_read_is_left_alone_by_tenants_rules() {
    for (readable, written) in [(true, [].as_slice()), (false, ["write home/x"].as_slice())] {
        let mut scene = Scene::new(&["home", "reader"]);
        if readable {
            scene.grant("home", grant("Read", &to("reader"), &[]));
        }
        scene.stranger("home/x");
        scene.rule(replication("reader", "r", &copying("home", "x", &["reader"])));
        scene.rule(replication(
            "home",
            "w",
            &json!({
                "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "own"}],
                "targets": [{"namespaces": ["home"], "name": "x"}], "conflictPolicy": "Overwrite",
            }),
        ));
        scene.show(&source("home", "own"));
        assert_eq!(scene.done(), written, "{readable}");
    }
}

#[test]
fn a_copy_may_be_another_rules_source() {
    let mut scene = Scene::new(&["platform", "home"]);
    scene.rule(cluster_replication("p", &copying("platform", "x", &["home"])));
    scene.rule(replication("home", "r", &json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "x"}], "targets": [{"namespaces": ["home"], "name": "y"}],
    })));
    scene.show(&source("platform", "x"));
    scene.show(&source("home", "x"));
    assert_eq!(scene.done(), ["write home/x", "write home/y"]);
    scene.show(&source("platform", "x"));
    assert_eq!(scene.done(), [] as [&str; 0], "the same content");
}

/// A copy may be another rule's source, but not that of the rule which it came from, however many are between them.
#[test]
fn rules_in_a_ring_write_nothing() {
    for middle in [&["y"][..], &["m", "y"]] {
        let mut scene = Scene::new(&["home"]);
        let rule = |from: &str, to: &str| {
            replication(
                "home",
                &format!("to-{to}"),
                &json!({
                    "sources": [{"apiVersion": "v1", "kind": "Secret", "name": from}],
                    "targets": [{"namespaces": ["home"], "name": to}],
                    "transform": {"data": {"rename": {"a": "b", "b": "a"}}},
                }),
            )
        };
        let mut from = "x";
        for to in middle {
            scene.rule(rule(from, to));
            scene.show(&source("home", from));
            assert_eq!(scene.done(), [format!("write home/{to}")]);
            from = to;
        }
        // The first one's source goes, and comes again as a copy of its copy.
        scene.engine.source(&source("home", "x"), None, scene.now);
        let ring = scene.rule(rule("y", "x"));
        scene.show(&source("home", "y"));
        assert_eq!(scene.done().len(), 0);
        let status = scene.status(&ring);
        assert_eq!((&*status.failures[0].reason, &*status.failures[0].name), ("Conflict", "x"));
        assert!(status.failures[0].message.contains("such a ring of rules would never end"), "{status:?}");
        // Without the first it is none.
        let id: RuleId = format!("Replication/home/to-{}", middle[0]).parse().unwrap();
        scene.engine.rule_gone(&id, scene.now);
        assert_eq!(scene.done(), ["write home/x"]);
    }
}
