//! `ClusterReplication`s take precedence. A tenant's `Replication` takes over only the copies that
//! they release.

use std::collections::BTreeSet;

use jiff::Timestamp;
use mimeo_engine::{Home, Presence, Task};
use mimeo_model::{
    id::{RuleId, RuleKind},
    known::Known,
    outcome::Unreadable,
    refusal::Refused,
};
use serde_json::{from_value, json};

use crate::common::gone;
use crate::grants::scene::{
    Scene, cluster_replication, condition, copying, grant, replication, secrets, source, to, words,
};

#[test]
fn the_platforms_rule_has_its_copies_whatever_a_tenant_names_as_his_source() {
    let spec = |conflict: &str| {
        json!({
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "x"}],
            "targets": [{"namespaces": ["home"]}], "conflictPolicy": conflict,
        })
    };
    // The tenant's own object occupies the copy's place, and it is the source of the tenant's rule.
    // As the source of a `ClusterReplication`, such an object would be left alone.
    let mut scene = Scene::new(&["home", "platform"]);
    scene.stranger("home/x");
    scene.rule(replication("home", "r", &json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "x"}], "targets": [{"namespaces": ["home"], "copyName": "y"}],
    })));
    scene.rule(cluster_replication("p", &spec("Overwrite")));
    scene.show(&source("platform", "x"));
    assert_eq!(scene.done(), ["write home/x"]);
    // The copy does not stay for the tenant's rule either, once the `ClusterReplication` no longer
    // wants it.
    scene
        .engine
        .at(scene.now)
        .rule_gone(&"ClusterReplication/p".parse().unwrap());
    scene.run();
    assert!(
        scene
            .jobs
            .iter()
            .any(|job| matches!(job.task, Task::ConfirmRule(_)))
    );
    let read = gone(Some(0));
    scene.tell_rule("ClusterReplication/p", read);
    assert_eq!(scene.done(), ["delete home/x"]);
}

#[test]
fn a_tenants_copy_gives_way_to_the_platforms() {
    let mut scene = Scene::new(&["home", "platform"]);
    let id = scene.rule(replication("home", "r", &json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "own"}], "targets": [{"namespaces": ["home"], "copyName": "x"}],
    })));
    scene.show(&source("home", "own"));
    assert_eq!(scene.done(), ["write home/x"]);
    scene.rule(cluster_replication(
        "p",
        &copying("platform", "x", &["home"]),
    ));
    scene.show(&source("platform", "x"));
    assert_eq!(scene.done(), ["write home/x"]);
    assert_eq!(
        scene.objects["home/x"]["annotations"]["mimeo.dev/rule"],
        "ClusterReplication/p"
    );
    let status = scene.status(&id);
    assert_eq!(status.failures[0].reason, "RuleConflict");
    assert!(status.failures[0].message.contains("ClusterReplication/p"));
}

/// A tenant learns of other tenants' rules only that one exists. In this scene a
/// `ClusterReplication` has the copy that a tenant's rule wants, too. The other source exists.
fn contested() -> (Scene, RuleId) {
    let mut scene = Scene::new(&["home", "vault", "to"]);
    scene.grant("to", grant("Write", &to("home"), &[]));
    let id = scene.rule(cluster_replication("p", &copying("vault", "x", &["to"])));
    scene.show(&source("vault", "x"));
    assert_eq!(scene.done(), ["write to/x"]);
    scene.rule(replication("home", "r", &copying("home", "x", &["to"])));
    scene.show(&source("home", "x"));
    assert_eq!(scene.done(), [] as [&str; 0]);
    (scene, id)
}

#[test]
fn a_platforms_copy_passes_to_a_tenant_only_when_its_rule_is_deleted_on_purpose() {
    for (defined, passes) in [(None, false), (Some(u32::MAX), false), (Some(0), true)] {
        let (mut scene, id) = contested();
        scene.engine.at(scene.now).rule_gone(&id);
        scene.wait(60);
        assert_eq!(scene.done(), [] as [&str; 0], "before anybody knows");
        assert!(scene.asks(&Task::ConfirmRule(id.clone())));
        let read = Presence::Absent(Home {
            namespace: Some(0),
            crd: defined,
        });
        scene.tell_rule(&id.to_string(), read);
        scene.run();
        scene.wait(60);
        assert_eq!(!scene.done().is_empty(), passes, "{defined:?}");
    }
    // A rule that no longer wants the copy but may not act leaves the copy as it is.
    for (suspend, passes) in [(true, false), (false, true)] {
        let (mut scene, _) = contested();
        let mut elsewhere = copying("vault", "x", &["vault"]);
        elsewhere["targets"][0]["copyName"] = json!("y");
        elsewhere["suspend"] = json!(suspend);
        let mut rule = cluster_replication("p", &elsewhere);
        rule.generation = 2;
        scene.rule(rule);
        scene.wait(60);
        assert_eq!(
            scene.done().contains(&"write to/x".to_owned()),
            passes,
            "{suspend}"
        );
    }
}

#[test]
fn a_rule_that_rests_keeps_its_copies_and_tenants_are_told_whose_they_are() {
    for rests in ["suspended", "refused"] {
        let mut scene = Scene::new(&["home", "vault", "to"]);
        scene.grant("to", grant("Write", &to("home"), &[]));
        let p = scene.rule(cluster_replication(
            "p",
            &copying("vault", "x", &["home", "to"]),
        ));
        scene.show(&source("vault", "x"));
        scene.done();
        let mut elsewhere = copying("vault", "x", &["vault"]);
        elsewhere["targets"][0]["copyName"] = json!("y");
        let mut lifted = cluster_replication("p", &elsewhere);
        elsewhere["suspend"] = json!(true);
        let mut resting = cluster_replication("p", &elsewhere);
        (resting.generation, lifted.generation) = (2, 3);
        match rests {
            "refused" => {
                let refused = Refused {
                    generation: 2,
                    created: Timestamp::MAX,
                    refusals: vec![],
                };
                scene
                    .engine
                    .at(scene.now)
                    .rule_applied(p, Err(refused), None);
            }
            _ => drop(scene.rule(resting)),
        }
        let mut own = copying("home", "own", &["home", "to"]);
        own["targets"][0]["copyName"] = json!("x");
        let id = scene.rule(replication("home", "r", &own));
        scene.show(&source("home", "own"));
        scene.wait(60);
        assert_eq!(scene.done(), [] as [&str; 0], "{rests}");
        let status = scene.status(&id);
        assert_eq!(words(&status, "Ready"), "False CopiesFailed", "{rests}");
        let told: Vec<_> = status
            .failures
            .iter()
            .map(|one| [&*one.namespace, &*one.reason, &*one.message])
            .collect();
        // A tenant learns no more than that about other tenants' namespaces.
        let platforms = ["home", "RuleConflict", "ClusterReplication/p has this copy"];
        assert_eq!(
            told,
            [
                platforms,
                ["to", "RuleConflict", "another rule has this copy"]
            ],
            "{rests}"
        );
        // The same would happen if the tenant's rule were active.
        own["suspend"] = json!(true);
        let mut previewed = replication("home", "r", &own);
        previewed.generation = 2;
        scene.rule(previewed);
        let plan = scene.status(&id).plan.unwrap();
        assert_eq!((plan.conflict, plan.update), (2, 0), "{rests}");
        own["suspend"] = json!(false);
        let mut acting = replication("home", "r", &own);
        acting.generation = 3;
        scene.rule(acting);
        scene.rule(lifted);
        scene.wait(60);
        let done = scene.done();
        assert!(
            ["write home/x", "write to/x"]
                .iter()
                .all(|write| done.contains(&(*write).to_owned())),
            "{rests}"
        );
        assert_eq!(words(&scene.status(&id), "Ready"), "True Synced", "{rests}");
    }
}

/// The preview names `ClusterReplication`s and rules of the tenant's own namespace, and only for
/// copies in that namespace.
#[test]
fn a_tenant_is_told_beforehand_who_has_his_copies_at_home_and_nothing_of_others() {
    let mut scene = Scene::new(&["home", "vault", "to"]);
    for place in ["home", "to"] {
        scene.grant(place, grant("Write", &to("*"), &[]));
    }
    let named = |from: &str, places: &[&str], name: &str| {
        let mut spec = copying(from, "own", places);
        spec["targets"][0]["copyName"] = json!(name);
        spec
    };
    scene.rule(cluster_replication(
        "p",
        &named("vault", &["home", "to"], "platforms"),
    ));
    scene.rule(replication(
        "home",
        "first",
        &named("home", &["home", "to"], "mine"),
    ));
    scene.rule(replication(
        "to",
        "theirs",
        &named("to", &["home", "to"], "theirs"),
    ));
    // No grant lets this rule read its source.
    scene.rule(replication(
        "home",
        "idle",
        &named("vault", &["home"], "unread"),
    ));
    // These rules do nothing.
    let mut suspended = named("vault", &["home"], "suspended");
    suspended["suspend"] = json!(true);
    scene.rule(cluster_replication("suspended", &suspended));
    for (from, place, name, rival) in [
        ("home", "home", "platforms", Some("ClusterReplication/p")),
        ("home", "home", "mine", Some("Replication/home/first")),
        ("home", "home", "theirs", None),
        ("home", "home", "unread", None),
        ("home", "home", "suspended", None),
        ("home", "home", "free", None),
        ("home", "to", "platforms", None),
        ("home", "to", "mine", None),
        ("home", "to", "theirs", None),
        ("vault", "home", "mine", None),
    ] {
        let rule = replication("home", "second", &named(from, &[place], name));
        let contests = scene.engine.index().contests(&rule, None);
        let told: Vec<_> = contests
            .iter()
            .map(|one| (one.other.to_string(), &*one.name, one.places()))
            .collect();
        let want = rival.map(|rival| (rival.to_owned(), name, "namespace home".to_owned()));
        assert_eq!(
            told,
            want.into_iter().collect::<Vec<_>>(),
            "{from} {place}/{name}"
        );
        assert_eq!(
            scene.engine.index().contests(&rule, Some(&rule)),
            [],
            "{from} {place}/{name}"
        );
    }
}

#[test]
fn tenants_rules_write_nothing_before_the_platforms_are_known() {
    let (known, _) = contested();
    let unreadable = Unreadable::Forbidden;
    for (unreadable, copy) in [(None, true), (Some(unreadable), true), (None, false)] {
        let mut scene = Scene::starting(&["home", "vault", "to"]);
        scene.grant("to", grant("Write", &to("home"), &[]));
        scene
            .engine
            .at(scene.now)
            .grants_known(Known::Listed(&[("to".into(), "Write".into())].into()));
        if copy {
            scene.objects = known.objects.clone();
            let meta = from_value(scene.objects["to/x"].clone()).unwrap();
            scene
                .engine
                .at(scene.now)
                .copy_applied(&secrets().group_kind(), &meta);
        }
        let id = scene.rule(replication("home", "r", &copying("home", "x", &["to"])));
        scene
            .engine
            .at(scene.now)
            .rules_known(RuleKind::Replication, Known::Listed(&[id].into()));
        scene.show(&source("home", "x"));
        if let Some(why) = unreadable {
            scene
                .engine
                .at(scene.now)
                .rules_known(RuleKind::ClusterReplication, Known::Unreadable(why));
        }
        scene.wait(600);
        assert_eq!(scene.done(), [] as [&str; 0]);
        scene.engine.at(scene.now).rules_known(
            RuleKind::ClusterReplication,
            Known::Listed(&BTreeSet::new()),
        );
        scene.run();
        if copy {
            assert_eq!(
                scene.done(),
                [] as [&str; 0],
                "its rule may have gone with its definition"
            );
        } else {
            assert_eq!(scene.done(), ["write to/x"]);
        }
    }
}

/// The case: an upgrade without new `ClusterRole`s.
#[test]
fn the_platforms_rules_work_and_tell_when_tenants_cannot_be_read() {
    let mut scene = Scene::starting(&["vault", "to"]);
    let id = scene.rule(cluster_replication("p", &copying("vault", "x", &["to"])));
    scene.engine.at(scene.now).rules_known(
        RuleKind::ClusterReplication,
        Known::Listed(&[id.clone()].into()),
    );
    scene.show(&source("vault", "x"));
    scene.mark("vault", "mine", "ClusterReplication/gone");
    scene.mark("vault", "theirs", "Replication/a/gone");
    assert!(!scene.engine.index().primed());
    scene.engine.at(scene.now).rules_known(
        RuleKind::Replication,
        Known::Unreadable(Unreadable::Forbidden),
    );
    scene
        .engine
        .at(scene.now)
        .grants_known(Known::Unreadable(Unreadable::Forbidden));
    assert!(scene.engine.index().primed());
    scene.wait(1);
    assert!(scene.done().contains(&"write to/x".to_owned()));
    let asked = |name: &str| Task::ConfirmRule(name.parse().unwrap());
    assert!(scene.asks(&asked("ClusterReplication/gone")));
    assert!(
        !scene.asks(&asked("Replication/a/gone")),
        "it is there, for all that is known"
    );
    let status = scene.status(&id);
    assert_eq!(words(&status, "Ready"), "True Synced");
    assert_eq!(words(&status, "Authorized"), "False ControllerForbidden");
    let message = condition(&status, "Authorized").2;
    assert!(message.contains(
        "{apiGroups: [mimeo.dev], resources: [replications], verbs: [get, list, watch]}"
    ));
    scene
        .engine
        .at(scene.now)
        .rules_known(RuleKind::Replication, Known::Listed(&BTreeSet::new()));
    assert_eq!(words(&scene.status(&id), "Authorized"), "True Allowed");
}

/// A list arrives in pieces, and a rule that exists may fail to parse. Meanwhile no rule may take
/// another rule's copies.
#[test]
fn a_platforms_copy_passes_to_another_rule_of_its_only_when_it_is_known_what_became_of_its_own() {
    let p: RuleId = "ClusterReplication/p".parse().unwrap();
    let mut scene = Scene::starting(&["vault", "to"]);
    scene
        .engine
        .at(scene.now)
        .rules_known(RuleKind::Replication, Known::Unserved);
    scene.mark("to", "x", "ClusterReplication/p");
    let q = scene.rule(cluster_replication("q", &copying("vault", "x", &["to"])));
    scene.show(&source("vault", "x"));
    assert_eq!(
        scene.done(),
        [] as [&str; 0],
        "not all rules have been shown"
    );
    assert!(!scene.asks(&Task::ConfirmRule(p.clone())));
    scene.engine.at(scene.now).rule_applied(
        p.clone(),
        Err(Refused {
            generation: 1,
            created: Timestamp::MAX,
            refusals: vec![],
        }),
        None,
    );
    scene.engine.at(scene.now).rules_known(
        RuleKind::ClusterReplication,
        Known::Listed(&[p.clone(), q.clone()].into()),
    );
    scene.wait(60);
    assert_eq!(
        scene.done(),
        [] as [&str; 0],
        "what that rule wants nobody knows"
    );
    let failures = scene.status(&q).failures;
    assert_eq!(
        (&*failures[0].reason, &*failures[0].message),
        ("RuleConflict", "ClusterReplication/p has this copy")
    );
    scene.engine.at(scene.now).rule_gone(&p);
    scene.wait(60);
    assert_eq!(
        scene.done(),
        [] as [&str; 0],
        "whether it is gone only a read tells"
    );
    assert!(scene.asks(&Task::ConfirmRule(p.clone())));
    let read = gone(Some(0));
    scene.tell_rule(&p.to_string(), read);
    assert_eq!(scene.done(), ["write to/x"]);
}
