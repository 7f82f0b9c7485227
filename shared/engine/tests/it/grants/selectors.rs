//! Selectors of `Replication`s. In the own namespace they find all objects; in another namespace
//! they need a grant for all objects of the kind. Without that grant Mimeo does not list and
//! reveals nothing.

use std::collections::BTreeSet;

use jiff::Timestamp;
use mimeo_api::ClusterReplicationStatus;
use mimeo_engine::{Engine, Settings};
use mimeo_model::{
    drift::Marked,
    id::{RuleId, RuleKind},
    kind::Resource,
    known::Known,
    role::Role,
    rule::Rule,
};
use serde_json::{Value, from_value, json};

use crate::common::uid;
use crate::grants::scene::{
    Scene, cluster_replication, condition, copying, grant, replication, secrets, selecting, source,
    to, words,
};

const NOTHING: [&str; 0] = [];

#[test]
fn what_is_found_at_home_is_copied_as_it_comes_and_goes() {
    let mut scene = Scene::unlisted(&["home", "other"]);
    let id = scene.rule(replication("home", "r", &selecting("home", &["home"])));
    scene.find("home", &["a", "b"]);
    assert_eq!(
        scene.done(),
        ["write home/a-copy", "write home/b-copy"],
        "nobody's consent is waited for"
    );
    scene.find("home", &["a", "b", "c"]);
    assert_eq!(scene.done(), ["write home/c-copy"]);
    scene
        .engine
        .at(scene.now)
        .grants_known(Known::Listed(&BTreeSet::new()));
    let status = scene.status(&id);
    assert_eq!(words(&status, "Ready"), "True Synced");
    assert_eq!(
        status
            .sources
            .iter()
            .map(|source| &*source.name)
            .collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    scene.find("home", &["a", "b"]);
    assert_eq!(
        words(&scene.status(&id), "SourcesFound"),
        "False InGracePeriod"
    );
    // A change of the found objects concerns only the namespaces that the rule names.
    let before = scene.engine.effort().planned;
    scene.find("home", &["a", "d"]);
    assert!(
        scene.engine.effort().planned - before <= 4,
        "one namespace, once for each change"
    );
}

#[test]
fn in_another_namespace_it_takes_a_grant_that_limits_no_names() {
    let mut scene = Scene::new(&["home", "vault"]);
    let widgets = json!({"apiVersion": "example.com/v1", "kind": "Widget", "namespace": "vault", "selector": {}});
    scene.rule(replication(
        "home",
        "w",
        &json!({"sources": [widgets], "targets": [{"namespaces": ["home"]}]}),
    ));
    let id = scene.rule(replication("home", "r", &selecting("vault", &["home"])));
    let any = || grant("Read", &to("home"), &[]);
    for not_enough in [
        grant("Read", &to("home"), &["a", "b"]),
        grant("Read", &to("home"), &["*"]),
        grant("Read", &to("other"), &[]),
        grant("Write", &to("home"), &[]),
    ] {
        let access = format!("{:?}", not_enough.access);
        scene.grant("vault", not_enough);
        assert_eq!(scene.selectors("vault").len(), 0);
        scene.revoke("vault", &access);
    }
    assert!(
        scene
            .engine
            .demand()
            .kinds
            .iter()
            .all(|kind| *kind == secrets()),
        "kinds aren't looked up either"
    );
    scene.grant("vault", any());
    assert_eq!(
        scene.selectors("vault").len(),
        1,
        "of the kind that is granted"
    );
    scene.find("vault", &["a", "b"]);
    assert_eq!(scene.done(), ["write home/a-copy", "write home/b-copy"]);
    let status = scene.status(&id);
    assert_eq!(
        (words(&status, "Ready"), status.sources.len()),
        ("True Synced".to_owned(), 2)
    );

    // A grant for fewer objects counts as none. The watch is closed, and the held objects are
    // dropped. The copies are treated as after a withdrawn grant.
    scene.grant("vault", grant("Read", &to("home"), &["a"]));
    assert_eq!(scene.selectors("vault").len(), 0);
    assert_eq!(scene.engine.inside().counts["sources"], 0);
    let status = scene.status(&id);
    assert_eq!(
        (words(&status, "Authorized"), status.sources.len()),
        ("False NotGranted".to_owned(), 0)
    );
    scene.wait(60);
    assert_eq!(scene.done(), NOTHING, "before the grants were read");
    scene.tell_grants("vault", &["Read"], Some("2026-01-01T00:00:00Z"));
    assert_eq!(scene.done(), ["delete home/a-copy", "delete home/b-copy"]);
}

#[test]
fn a_grant_that_comes_back_in_time_costs_nothing() {
    let mut scene = Scene::new(&["home", "vault"]);
    scene.grant("vault", grant("Read", &to("home"), &[]));
    scene.rule(replication("home", "r", &selecting("vault", &["home"])));
    scene.find("vault", &["a"]);
    assert_eq!(scene.done(), ["write home/a-copy"]);
    scene.revoke("vault", "Read");
    let _ = scene.engine.demand();
    scene.wait(5);
    scene.grant("vault", grant("Read", &to("home"), &[]));
    scene.wait(20);
    assert_eq!(
        scene.done(),
        NOTHING,
        "not before it is known what is there"
    );
    scene.find("vault", &["a"]);
    scene.wait(60);
    assert_eq!(scene.done(), NOTHING);
}

/// After a restart only the annotations of the copies tell their sources.
#[test]
fn what_is_withdrawn_while_nothing_ran_goes_by_the_rules_policy_for_what_is_unmatched() {
    for (policy, gone) in [("Delete", &["delete home/a-copy"][..]), ("Retain", &[])] {
        let rule = || {
            let mut spec = selecting("vault", &["home"]);
            // The fate of copies after the loss of their source is another setting.
            let other = if policy == "Delete" {
                "Retain"
            } else {
                "Delete"
            };
            spec["retentionPolicy"] = json!({"whenUnmatched": policy, "whenSourceDeleted": other});
            replication("home", "r", &spec)
        };
        let mut scene = Scene::new(&["home", "vault"]);
        scene.grant("vault", grant("Read", &to("home"), &[]));
        scene.rule(rule());
        scene.find("vault", &["a"]);
        assert_eq!(scene.done(), ["write home/a-copy"]);

        let mut next = Scene::unlisted(&["home", "vault"]);
        next.objects = scene.objects.clone();
        let copy = from_value(next.objects["home/a-copy"].clone()).unwrap();
        next.engine
            .at(next.now)
            .copy_applied(&secrets().group_kind(), &copy);
        next.rule(rule());
        next.wait(60);
        assert_eq!(next.done(), NOTHING, "until it is known what is granted");
        next.engine
            .at(next.now)
            .grants_known(Known::Listed(&BTreeSet::new()));
        next.run();
        if policy == "Delete" {
            next.tell_grants("vault", &[], Some("2026-01-01T00:00:00Z"));
        }
        next.wait(11);
        assert_eq!(next.done(), gone, "{policy}");
    }
}

#[test]
fn labels_of_the_rules_namespace_count_when_they_change() {
    let mut scene = Scene::new(&["home", "vault"]);
    scene.grant(
        "vault",
        grant(
            "Read",
            &json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}}),
            &[],
        ),
    );
    scene.rule(replication("home", "r", &selecting("vault", &["home"])));
    assert_eq!(scene.selectors("vault").len(), 0);
    scene.namespace("home", &json!({"tier": "gold"}));
    scene.find("vault", &["a"]);
    assert_eq!(scene.done(), ["write home/a-copy"]);
    scene.namespace("home", &json!({}));
    scene.run();
    assert_eq!(scene.selectors("vault").len(), 0);
    scene.wait(11);
    assert_eq!(scene.done(), ["delete home/a-copy"]);
}

#[test]
fn copies_of_what_is_found_take_a_grant_where_they_go() {
    let mut scene = Scene::new(&["home", "to"]);
    let rule = replication("home", "r", &selecting("home", &["to", "home"]));
    let id = scene.rule(rule.clone());
    scene.find("home", &["a", "b"]);
    assert_eq!(scene.done(), ["write home/a-copy", "write home/b-copy"]);
    let lacking = |scene: &mut Scene| {
        let status = scene.status(&id);
        let copies = status.copies.unwrap();
        let failed = status
            .failures
            .iter()
            .map(|failure| format!("{}/{}", failure.namespace, failure.name));
        (copies.desired, copies.synced, failed.collect::<Vec<_>>())
    };
    assert_eq!(
        lacking(&mut scene),
        (4, 2, vec!["to/a-copy".to_owned(), "to/b-copy".to_owned()])
    );
    scene.grant("to", grant("Write", &to("home"), &["a-*"]));
    assert_eq!(scene.done(), ["write to/a-copy"]);
    assert_eq!(lacking(&mut scene), (4, 3, vec!["to/b-copy".to_owned()]));
    scene.find("home", &["a", "b", "c"]);
    assert_eq!(
        lacking(&mut scene),
        (6, 4, vec!["to/b-copy".to_owned(), "to/c-copy".to_owned()])
    );
    // The author of such a rule is told which copies it would have now.
    let found: Vec<_> = ["a", "b"]
        .iter()
        .map(|name| rule.selectors[0].source(*name))
        .collect();
    let told = scene.engine.index().not_granted(&rule, &found);
    assert!(
        told[0].starts_with("Secret b-copy in namespace to is not granted as a copy"),
        "{told:?}"
    );
    assert_eq!(told.len(), 1);
}

/// A tenant tries to find out which objects another namespace has. No message to the tenant depends
/// on it.
#[test]
fn nothing_is_told_of_what_a_selector_may_not_find() {
    let told = |namespaces: &[&str], world: &dyn Fn(&mut Scene)| {
        let mut scene = Scene::new(namespaces);
        world(&mut scene);
        scene.done();
        let rule = replication("home", "r", &selecting("vault", &["home", "vault"]));
        let id = scene.rule(rule.clone());
        let status: ClusterReplicationStatus = scene.status(&id);
        scene.now += std::time::Duration::from_mins(5);
        let events = scene.engine.at(scene.now).event_updates();
        let done = scene.done();
        format!(
            "{:?} {status:?} {events:?} {done:?}",
            scene.engine.index().not_granted(&rule, &[])
        )
    };
    let absent = told(&["home"], &|_| {});
    assert!(
        absent.contains(
            "Secret by a selector in namespace vault is not granted as a source to namespace home"
        ),
        "{absent}"
    );
    assert_eq!(
        told(&["home", "vault"], &|_| {}),
        absent,
        "there is such a namespace"
    );
    let named = |scene: &mut Scene| scene.grant("vault", grant("Read", &to("home"), &["a", "b*"]));
    assert_eq!(
        told(&["home", "vault"], &named),
        absent,
        "some of it is granted"
    );
    let found = |scene: &mut Scene| {
        // A `ClusterReplication` with the same selector finds the same objects, and copies them
        // into that namespace.
        scene.rule(cluster_replication("p", &selecting("vault", &["vault"])));
        scene.find("vault", &["a", "b"]);
    };
    assert_eq!(
        told(&["home", "vault"], &found),
        absent,
        "there are such objects, and they are held"
    );
    let unreadable = |scene: &mut Scene| {
        scene.rule(cluster_replication("p", &selecting("vault", &["vault"])));
        let why = mimeo_model::outcome::Unreadable::Forbidden;
        for selector in scene.selectors("vault") {
            scene
                .engine
                .at(scene.now)
                .selected(&selector, Known::Unreadable(why));
        }
    };
    assert_eq!(
        told(&["home", "vault"], &unreadable),
        absent,
        "Mimeo may not look there"
    );
}

#[test]
fn a_rule_takes_as_many_as_make_as_many_copies_as_it_may_have() {
    let mut scene = Scene::new(&["home"]);
    let spaces: Vec<String> = (0..31).map(|i| format!("n{i}")).collect();
    let mut names: Vec<&str> = spaces.iter().map(String::as_str).collect();
    names.push("home");
    let mut spec = selecting("home", &names);
    spec["targets"]
        .as_array_mut()
        .unwrap()
        .push(json!({"namespaces": names[..31], "copyName": "x-$(source.name)"}));
    let id = scene.rule(replication("home", "r", &spec));
    scene.find("home", &["d", "c", "b", "a", "e"]);
    let written: BTreeSet<String> = scene.done().into_iter().collect();
    let oldest = [
        "write home/a-copy",
        "write home/b-copy",
        "write home/c-copy",
        "write home/d-copy",
    ];
    assert_eq!(written, oldest.map(Into::into).into());
    let (_, reason, message) = condition(&scene.status(&id), "SourcesFound");
    assert_eq!(reason, "SourceRefused");
    assert!(
        message.starts_with("the rule has too many sources, and Mimeo copies at most 4"),
        "{message}"
    );
}

/// A rule with this age and this number of selectors.
fn aged(name: &str, age: i64, selectors: usize) -> Rule {
    let selector = |i: usize| {
        let labels = json!({"matchLabels": {"copy": format!("{name}-{i}")}});
        json!({"apiVersion": "v1", "kind": "Secret", "selector": labels})
    };
    let sources: Vec<Value> = (0..selectors).map(selector).collect();
    let targets = json!([{"namespaces": ["home"], "copyName": format!("$(source.name)-{name}")}]);
    let mut rule = replication(
        "home",
        name,
        &json!({"sources": sources, "targets": targets}),
    );
    rule.created = Timestamp::from_second(age).unwrap();
    rule
}

#[test]
fn of_many_rules_with_selectors_in_a_namespace_the_oldest_count() {
    let mut scene = Scene::new(&["home", "other"]);
    for age in 1..=39 {
        scene.rule(aged(&format!("r{age}"), age, 1));
    }
    assert_eq!(
        scene.engine.index().refuses_rule(&aged("next", 100, 1)),
        None
    );
    let last = scene.rule(aged("last", 50, 1));
    assert_eq!(scene.selectors("home").len(), 40);
    scene.find("home", &["x"]);
    let written = scene.done();
    assert!(
        written.len() == 40 && written.contains(&"write home/x-last".to_owned()),
        "{written:?}"
    );
    let refused = scene
        .engine
        .index()
        .refuses_rule(&aged("next", 100, 1))
        .unwrap()
        .to_string();
    assert!(
        refused.contains("older Replications use that up"),
        "{refused}"
    );
    assert_eq!(
        scene.engine.index().refuses_rule(&aged("r1", 1, 1)),
        None,
        "it is one of them"
    );
    assert!(
        scene
            .engine
            .index()
            .refuses_rule(&replication("other", "r", &selecting("other", &["other"])))
            .is_none()
    );

    // Among rules of one age, the first by name fit.
    let fits = |name| {
        scene
            .engine
            .index()
            .refuses_rule(&aged(name, 50, 1))
            .is_none()
    };
    assert!(fits("a") && !fits("z"));

    // A restore may store such rules without a check. Then the younger ones are refused, and their
    // copies stay.
    scene.rule(aged("older", 20, 1));
    assert_eq!(scene.selectors("home").len(), 40);
    scene.wait(600);
    assert_eq!(scene.done(), NOTHING);
    let (_, reason, message) = condition(&scene.status(&last), "Ready");
    assert!(
        reason == "InvalidSpec" && message.contains("older Replications use that up"),
        "{reason} {message}"
    );
    // A refused rule counts again when it changes and there is room.
    scene
        .engine
        .at(scene.now)
        .rule_gone(&"Replication/home/r3".parse::<RuleId>().unwrap());
    scene.rule(aged("last", 50, 1));
    scene.find("home", &["x", "y"]);
    assert!(scene.done().contains(&"write home/y-last".to_owned()));
    assert_eq!(words(&scene.status(&last), "Ready"), "True Synced");
}

#[test]
fn what_two_namespaces_select_alike_is_each_ones_by_its_own_grant() {
    let mut scene = Scene::new(&["home", "other", "vault"]);
    scene.grant("vault", grant("Read", &to("other"), &[]));
    let own = scene.rule(replication("home", "r", &selecting("vault", &["home"])));
    scene.rule(replication("other", "r", &selecting("vault", &["other"])));
    scene.find("vault", &["a"]);
    assert_eq!(scene.done(), ["write other/a-copy"]);
    assert_eq!(words(&scene.status(&own), "Authorized"), "False NotGranted");
    // The already found objects are available at once to a rule that gets the grant.
    scene.grant(
        "vault",
        grant("Read", &json!({"namespaces": ["home", "other"]}), &[]),
    );
    assert_eq!(scene.done(), ["write home/a-copy"]);
    scene.grant("vault", grant("Read", &to("home"), &[]));
    scene.tell_grants("vault", &["Read"], Some("2026-01-01T00:00:00Z"));
    assert_eq!(scene.done(), ["delete other/a-copy"]);
    assert_eq!(scene.selectors("vault").len(), 1);
}

/// The webhook doesn't watch the objects that tenants' selectors find. It guards every copy all the
/// same.
#[test]
fn of_what_a_tenant_selects_every_copy_is_guarded() {
    let now = std::time::Duration::from_secs(1);
    let (abroad, any) = (to("home"), [].as_slice());
    for (about, drift, given, guarded) in [
        ("all of it", "Deny", any, true),
        ("not denied", "Repair", any, false),
        ("no selector may look there", "Deny", &["a"], false),
    ] {
        let mut engine = Engine::new(Settings::new(Role::Injector, "cluster"));
        engine.at(now).rules_known(
            RuleKind::ClusterReplication,
            Known::Listed(&BTreeSet::new()),
        );
        for (number, name) in ["home", "vault", "other"].into_iter().enumerate() {
            let meta = json!({"name": name, "uid": uid(number), "resourceVersion": "5"});
            engine.at(now).namespace_applied(&from_value(meta).unwrap());
        }
        engine
            .at(now)
            .namespaces_listed(&["home", "vault", "other"].map(Into::into).into());
        engine
            .at(now)
            .grant_applied("vault", "g", Ok(grant("Read", &abroad, given)));
        engine
            .at(now)
            .grants_known(Known::Listed(&[("vault".into(), "g".into())].into()));
        engine.at(now).kinds_recorded(&[secrets()].into());
        engine.at(now).kind(
            &secrets(),
            Known::Listed(Resource {
                gvk: secrets(),
                plural: "secrets".into(),
                namespaced: true,
            }),
        );
        let mut spec = selecting("vault", &["home"]);
        spec["strategy"] = json!("Replace");
        spec["driftPolicy"] = json!(drift);
        let rule = replication("home", "r", &spec);
        let id = rule.id.clone();
        engine.at(now).rule_applied(id.clone(), Ok(rule), None);
        engine
            .at(now)
            .rules_known(RuleKind::Replication, Known::Listed(&[id.clone()].into()));
        let copy = |namespace: &str, name: &str, of: &str| {
            let source = Some(source("vault", of));
            engine.index().guards(
                &id,
                &Marked {
                    kind: secrets().group_kind(),
                    namespace,
                    name,
                    source,
                },
            )
        };
        for number in 0..40 {
            assert_eq!(
                copy("home", &format!("s{number}-copy"), &format!("s{number}")),
                guarded,
                "{about}"
            );
        }
        assert!(
            !copy("home", "another", "s1") && !copy("other", "s1-copy", "s1"),
            "where it makes none"
        );
        let unmarked = Marked {
            kind: secrets().group_kind(),
            namespace: "home",
            name: "s1-copy",
            source: None,
        };
        assert!(!engine.index().guards(&id, &unmarked));
        let elsewhere = Marked {
            source: Some(source("home", "s1")),
            ..unmarked
        };
        assert!(
            !engine.index().guards(&id, &elsewhere),
            "where it selects nothing"
        );
    }
}

#[test]
fn a_named_source_comes_before_what_is_found() {
    let mut scene = Scene::new(&["home"]);
    let mut spec = selecting("home", &["home"]);
    spec["sources"]
        .as_array_mut()
        .unwrap()
        .push(copying("home", "a", &[])["sources"][0].clone());
    scene.rule(replication("home", "r", &spec));
    scene.find("home", &["a", "b"]);
    assert_eq!(scene.done(), ["write home/b-copy"]);
    scene.show(&source("home", "a"));
    assert_eq!(scene.done(), ["write home/a-copy"]);
}
