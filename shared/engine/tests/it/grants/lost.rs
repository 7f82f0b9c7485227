//! Copies after the loss of their rules, grants or CRDs.

use jiff::Timestamp;
use mimeo_engine::{Answer, GrantsRead, Home, Presence, Task};
use mimeo_model::{id::RuleId, outcome::Unreadable, refusal::Refused, rule::Rule};
use serde_json::json;

use crate::common::gone;
use crate::grants::scene::{
    Scene, cluster_replication, condition, copying, grant, replication, seconds, source, to, words,
};

/// When the CRD was created, and the seconds before and after that.
const DEFINED: &str = "2026-01-01T00:00:00Z";
const EARLIER: &str = "2025-12-31T23:59:59Z";
const LATER: &str = "2026-01-01T00:00:01Z";

/// Returns true if Mimeo deletes a copy of this rule at once, because the rule was deleted on
/// purpose. Otherwise checks that the deletion is held, and comes with the confirmation. `seen` is
/// the rule, if this process saw it before it was gone.
fn is_deleted(
    id: &RuleId,
    seen: Option<Result<Rule, Refused>>,
    (created, written): (Option<&str>, &str),
    defined: u32,
) -> bool {
    let mut scene = Scene::new(&["vault", "z"]);
    scene.defined = defined;
    if let Some(rule) = seen {
        let engine = scene.engine.at(scene.now);
        engine.rule_applied(id.clone(), rule, None);
        engine.rule_gone(id);
    }
    scene.mark_created(created, written, "z", "y", &id.to_string());
    scene.run();
    scene.tell_rules_gone(0);
    scene.wait(60);
    let held = scene.engine.held().map(|held| held.nonce.to_owned());
    let held: Vec<String> = held.collect();
    let deleted = scene.done();
    if held.is_empty() {
        assert_eq!(deleted, ["delete z/y"]);
        return true;
    }
    assert_eq!((deleted.len(), held.len()), (0, 1));
    scene.engine.at(scene.now).confirmed(Some(&held[0]));
    assert_eq!(scene.done(), ["delete z/y"]);
    false
}

/// A rule of each kind that was created at this time.
fn rules(created: &str) -> [Rule; 2] {
    let spec = copying("vault", "x", &["none"]);
    [
        cluster_replication("p", &spec),
        replication("vault", "p", &spec),
    ]
    .map(|rule| Rule {
        created: created.parse().unwrap(),
        ..rule
    })
}

/// The case: the CRD was deleted and installed again. Only a rule that is younger than the present
/// CRD was deleted on purpose. The age of the rule proves that if this process saw it, because a
/// write of a lost rule may arrive after the CRD was installed again. Otherwise the age of the copy
/// proves it.
#[test]
fn a_rule_that_may_have_gone_with_a_former_crd_is_lost() {
    for (rule, created, written, deleted) in [
        (None, Some(EARLIER), EARLIER, false),
        (None, None, EARLIER, false),
        // Equal times prove nothing.
        (None, Some(EARLIER), DEFINED, false),
        (None, Some(DEFINED), EARLIER, false),
        (None, Some(EARLIER), LATER, true),
        // No object can be written before it was created.
        (None, Some(LATER), EARLIER, true),
        (Some(EARLIER), Some(LATER), LATER, false),
        (Some(DEFINED), Some(LATER), LATER, false),
        (Some(LATER), Some(EARLIER), EARLIER, true),
    ] {
        for made in rules(rule.unwrap_or(EARLIER)) {
            for refused in [false, true] {
                let refusal = Refused {
                    generation: 1,
                    created: made.created,
                    refusals: vec![],
                };
                let known = if refused {
                    Err(refusal)
                } else {
                    Ok(made.clone())
                };
                let known = rule.map(|_| known);
                let found = is_deleted(&made.id, known, (created, written), seconds(DEFINED));
                let case = format!("{} {rule:?} {created:?} {written} {refused}", made.id);
                assert_eq!(found, deleted, "{case}");
            }
        }
    }
}

/// One API server stamps the CRD, another one the rule and the copy. With clocks that agree to a
/// second, a rule of a former CRD never counts as deleted on purpose. If the clock of the CRD's API
/// server is further ahead, more deletions are held.
#[test]
fn clocks_of_api_servers_that_agree_to_a_second_prove_no_deletion_of_a_lost_rule() {
    let second = |second: i64| {
        let time = Timestamp::from_second(i64::from(seconds(DEFINED)) + second);
        time.unwrap().to_string()
    };
    // How many seconds later the rule and the copy were made than the CRD.
    for later in (-3..=3).filter(|later| *later != 0) {
        for ahead in -1..=4 {
            let (made, defined) = (second(later), seconds(&second(ahead)));
            for rule in rules(&made) {
                for seen in [false, true] {
                    let copy = (Some(&*made), &*made);
                    let found = is_deleted(&rule.id, seen.then(|| Ok(rule.clone())), copy, defined);
                    let case = format!("{} {seen}: {later}, clock {ahead}", rule.id);
                    let on_purpose = later > 0;
                    assert_eq!(found, on_purpose && later > ahead, "{case}");
                }
            }
        }
    }
}

/// The CRD was installed again, and then the namespace of the rule or of the grant was deleted.
#[test]
fn what_may_have_gone_with_a_former_crd_did_not_go_with_its_namespace() {
    for (written, lost) in [(EARLIER, true), (DEFINED, true), (LATER, false)] {
        let mut scene = Scene::new(&["z"]);
        scene.mark_of(written, "z", "y", "Replication/gone/r");
        scene.run();
        let read = Presence::Absent(Home {
            namespace: None,
            crd: Some(seconds(DEFINED)),
        });
        scene.tell_rule("Replication/gone/r", read);
        scene.run();
        scene.wait(60);
        assert_eq!(scene.engine.held().count(), usize::from(lost), "{written}");
        assert_eq!(scene.done().len(), usize::from(!lost), "{written}");
    }
    // The copies of a scene are written at this time.
    let made = seconds("2026-02-01T00:00:00Z");
    for (defined, lost) in [(made + 1, true), (made, true), (made - 1, false)] {
        for exists in [false, true] {
            let mut scene = Scene::new(&["from", "home"]);
            scene.grant("from", grant("Read", &to("home"), &[]));
            scene.rule(replication("home", "r", &copying("from", "x", &["home"])));
            scene.show(&source("from", "x"));
            assert_eq!(scene.done(), ["write home/x"]);
            scene.revoke("from", "Read");
            let read = GrantsRead {
                grants: [].into(),
                home: Home {
                    namespace: exists.then_some(1),
                    crd: Some(defined),
                },
            };
            scene.answer(&Task::ConfirmGrants("from".into()), Answer::Grants(read));
            scene.run();
            scene.wait(60);
            assert_eq!(scene.done().len(), usize::from(!lost), "{defined} {exists}");
        }
    }
}

/// A copy of a `ClusterReplication` may have been lost with its rule. A tenant's rule may not take
/// it either.
#[test]
fn no_tenants_rule_takes_a_copy_that_may_have_lost_its_rule_with_the_crd() {
    for (written, taken) in [(EARLIER, false), (DEFINED, false), (LATER, true)] {
        let mut scene = Scene::new(&["home"]);
        scene.mark_of(written, "home", "y", "ClusterReplication/p");
        let targets = json!([{"namespaces": ["home"], "copyName": "y"}]);
        let sources = json!([{"apiVersion": "v1", "kind": "Secret", "name": "x"}]);
        scene.rule(replication(
            "home",
            "r",
            &json!({"sources": sources, "targets": targets}),
        ));
        scene.show(&source("home", "x"));
        let read = Presence::Absent(Home {
            namespace: Some(0),
            crd: Some(seconds(DEFINED)),
        });
        scene.tell_rule("ClusterReplication/p", read);
        scene.run();
        scene.wait(60);
        assert_eq!(scene.done().len(), usize::from(taken), "{written}");
    }
}

/// The CRD of grants was created before any copy.
const BEFORE: Option<&str> = Some("2026-01-01T00:00:00Z");
/// The CRD of grants was created after all copies.
const ANEW: Option<&str> = Some("2026-03-01T00:00:00Z");

/// Mimeo deletes the copies only if a read shows that the grant was deleted under the same CRD. A
/// lost CRD of grants takes few copies of each rule, but the copies of all rules together, so each
/// loss alone is below the limit. A grant that its owner deletes takes every copy, however many
/// there are.
#[test]
fn a_lost_grant_takes_no_copy_before_a_read_shows_that_it_was_deleted() {
    for (rules, defined, deleted) in [
        (2, None, 0),
        (2, ANEW, 0),
        (2, BEFORE, 2),
        (25, None, 0),
        (25, ANEW, 0),
        (25, BEFORE, 25),
    ] {
        let homes: Vec<String> = (0..rules).map(|i| format!("team-{i}")).collect();
        let mut namespaces: Vec<&str> = homes.iter().map(String::as_str).collect();
        namespaces.push("from");
        let mut scene = Scene::new(&namespaces);
        let given = || grant("Read", &json!({"namespaces": ["team-*"]}), &[]);
        scene.grant("from", given());
        for home in &homes {
            scene.rule(replication(home, "r", &copying("from", "x", &[home])));
        }
        scene.show(&source("from", "x"));
        assert_eq!(scene.done().len(), rules);
        scene.revoke("from", "Read");
        scene.wait(60);
        assert_eq!(scene.done(), [] as [&str; 0], "before the read is answered");
        scene.tell_grants("from", &[], defined);
        scene.wait(60);
        assert_eq!(scene.done().len(), deleted, "{rules} {defined:?}");
        let status = scene.status(&"Replication/team-0/r".parse().unwrap());
        assert_eq!(words(&status, "Authorized"), "False NotGranted");
        assert!(
            status
                .conditions
                .iter()
                .all(|condition| condition.type_ != "Stalled")
        );
        if deleted == 0 {
            scene.grant("from", given());
            scene.wait(60);
            assert!(scene.done().iter().all(|done| !done.starts_with("delete")));
        }
    }
}

/// Otherwise the owner of the rule could keep the copies after the other namespace has taken its
/// consent back, by never confirming the deletion.
#[test]
fn the_taker_has_no_veto_when_consent_is_taken_back() {
    let labelled = json!({"namespaceSelector": {"matchLabels": {"team": "a"}}});
    for (how, given, goes) in [
        ("deleted", to("home"), true),
        ("narrowed", to("home"), true),
        ("narrowed", labelled.clone(), true),
        ("deleted", labelled.clone(), true),
        // A user that labels namespaces does not speak for the namespace that gave the grant.
        ("relabelled", labelled.clone(), false),
    ] {
        let mut scene = Scene::new(&["from", "home"]);
        scene.namespace("home", &json!({"team": "a"}));
        scene.grant("from", grant("Read", &given, &[]));
        let names: Vec<String> = (0..25).map(|i| format!("x-{i}")).collect();
        let targets: Vec<_> = names
            .iter()
            .map(|name| json!({"namespaces": ["home"], "copyName": name}))
            .collect();
        let mut spec = copying("from", "x", &["home"]);
        spec["targets"] = json!(targets);
        let id = scene.rule(replication("home", "r", &spec));
        scene.show(&source("from", "x"));
        assert_eq!(scene.done().len(), 25);
        scene.wait(5);
        let left: &[&str] = if how == "deleted" { &[] } else { &["Read"] };
        match how {
            "deleted" => scene.revoke("from", "Read"),
            "narrowed" => {
                let others = json!({"namespaceSelector": {"matchLabels": {"team": "z"}}});
                let by_labels = given == labelled;
                let mut narrower = if by_labels {
                    grant("Read", &others, &[])
                } else {
                    grant("Read", &given, &["y"])
                };
                narrower.edition.generation = 7;
                scene.grant("from", narrower);
            }
            _ => scene.namespace("home", &json!({})),
        }
        scene.wait(10);
        let case = format!("{how} {given}");
        assert_eq!(
            scene.asks(&Task::ConfirmGrants("from".into())),
            goes,
            "{case}"
        );
        if !goes {
            scene.wait(60);
            assert_eq!((scene.done(), scene.holds(&id)), (vec![], true), "{case}");
            continue;
        }
        // A read that differs from the watch proves nothing: the grant may have been given again.
        scene.tell_grants("from", &["Read", "Write"], BEFORE);
        assert_eq!((scene.done(), scene.holds(&id)), (vec![], false), "{case}");
        scene.wait(10);
        scene.tell_grants_of("from", left, if how == "narrowed" { 7 } else { 0 }, BEFORE);
        assert_eq!(scene.done().len(), 25, "{case}");
        assert!(!scene.holds(&id), "{case}");
        assert!(scene.objects.is_empty(), "{case}");
    }
}

/// A script removes a label from one namespace after another. Even a slow script is held: the
/// losses of ten minutes count together.
#[test]
fn a_slow_loss_is_held_like_a_quick_one() {
    const MANY: usize = 40;
    let places: Vec<String> = (10..10 + MANY).map(|i| format!("place-{i}")).collect();
    // Twenty losses reach the limit.
    for (pause, deleted) in [
        (0, 0..=0),
        (1, 1..=19),
        (5, 1..=19),
        (20, 1..=19),
        (29, 1..=19),
        (40, MANY..=MANY),
    ] {
        let names: Vec<&str> = places.iter().map(String::as_str).collect();
        let mut scene = Scene::new(&[&names[..], &["home"]].concat());
        let mut spec = copying("home", "x", &["none"]);
        spec["targets"] = json!([{"namespaceSelector": {"matchLabels": {"team": "a"}}}]);
        for place in &places {
            scene.namespace(place, &json!({"team": "a"}));
        }
        let id = scene.rule(cluster_replication("p", &spec));
        scene.show(&source("home", "x"));
        assert_eq!(scene.done().len(), MANY);
        let mut gone = 0;
        for place in &places {
            scene.namespace(place, &json!({}));
            scene.wait(pause);
            gone += scene.done().len();
        }
        for _ in 0..10 {
            scene.wait(60);
        }
        gone += scene.done().len();
        assert!(
            deleted.contains(&gone),
            "{gone} copies were deleted with pauses of {pause} s"
        );
        assert_eq!(scene.holds(&id), gone < MANY, "{pause}");
        // A user that wants the deletion confirms the reported losses, and then the losses after
        // them.
        for _ in 0..3 {
            if !scene.holds(&id) {
                break;
            }
            let stalled = condition(&scene.status(&id), "Stalled").2;
            let nonce = stalled.rsplit_once('=').unwrap().1;
            scene.engine.at(scene.now).confirmed(Some(nonce));
            scene.wait(11);
            gone += scene.done().len();
        }
        assert_eq!((gone, scene.holds(&id)), (MANY, false), "{pause}");
    }
}

/// A tenant can write copies that name rules which never existed, at no cost. Held losses concern
/// only the owner of their own rule.
#[test]
fn no_tenant_holds_up_what_becomes_of_others_copies() {
    let places: Vec<String> = (0..30).map(|i| format!("place-{i}")).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    for (trick, later) in [
        ("forged", 0),
        ("forged", 60),
        ("held", 0),
        ("held", 5),
        ("held", 60),
    ] {
        let mut scene = Scene::new(&[&places[..], &["mallory", "home", "to"]].concat());
        scene.grant("to", grant("Write", &to("home"), &[]));
        let victim = scene.rule(replication("home", "r", &copying("home", "x", &["to"])));
        scene.show(&source("home", "x"));
        assert_eq!(scene.done(), ["write to/x"]);
        if trick == "forged" {
            for number in 0..500 {
                scene.mark(
                    "mallory",
                    &format!("m-{number}"),
                    "Replication/no-such-ns/x",
                );
            }
            scene.run();
            let read = gone(None);
            scene.tell_rule("Replication/no-such-ns/x", read);
        } else {
            for place in &places {
                scene.grant(place, grant("Write", &to("mallory"), &[]));
            }
            scene.rule(replication(
                "mallory",
                "m",
                &copying("mallory", "x", &places),
            ));
            scene.show(&source("mallory", "x"));
            assert_eq!(scene.done().len(), places.len());
            for place in &places {
                scene.revoke(place, "Write");
            }
        }
        scene.wait(later);
        scene.revoke("to", "Write");
        scene.tell_grants("to", &[], BEFORE);
        assert_eq!(scene.done(), ["delete to/x"], "{trick} {later}");
        assert!(
            scene
                .status(&victim)
                .conditions
                .iter()
                .all(|condition| condition.type_ != "Stalled")
        );
    }
}

/// Each namespace with copies of the rule is read by itself.
#[test]
fn grants_of_many_namespaces_are_each_read_before_their_copies_go() {
    let places: Vec<String> = (0..30).map(|i| format!("place-{i}")).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    for defined in [ANEW, BEFORE] {
        let mut scene = Scene::new(&[&places[..], &["home"]].concat());
        for place in &places {
            scene.grant(place, grant("Write", &to("home"), &[]));
            scene.rule(replication("home", place, &copying("home", "x", &[place])));
        }
        scene.show(&source("home", "x"));
        assert_eq!(scene.done().len(), places.len());
        for place in &places {
            scene.revoke(place, "Write");
        }
        scene.wait(10);
        assert_eq!(scene.done(), [] as [&str; 0]);
        for place in &places {
            scene.tell_grants(place, &[], defined);
        }
        let deleted = if defined == BEFORE { places.len() } else { 0 };
        assert_eq!(scene.done().len(), deleted);
    }
}

#[test]
fn rules_that_go_with_their_namespace_are_no_lost_definition() {
    for (stays, deleted_at_once) in [(true, true), (false, false)] {
        let mut scene = Scene::new(&["home", "to"]);
        scene.grant("to", grant("Write", &to("home"), &[]));
        let id = scene.rule(replication("home", "r", &copying("home", "x", &["to"])));
        scene.show(&source("home", "x"));
        assert_eq!(scene.done(), ["write to/x"]);
        scene.engine.at(scene.now).rule_gone(&id);
        scene.run();
        let home = stays.then_some(0);
        let read = gone(home);
        scene.tell_rule(&id.to_string(), read);
        assert_eq!(scene.done().is_empty(), !deleted_at_once);
        scene.wait(11);
        assert_eq!(scene.objects.len(), 0);
    }
}

#[test]
fn much_that_went_with_its_namespace_is_held_and_that_is_said() {
    let places: Vec<String> = (0..20).map(|i| format!("place-{i:02}")).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let mut scene = Scene::new(&[&places[..], &["home"]].concat());
    for place in &places {
        scene.grant(place, grant("Write", &to("home"), &[]));
    }
    let id = scene.rule(replication("home", "r", &copying("home", "x", &places)));
    scene.show(&source("home", "x"));
    assert_eq!(scene.done().len(), places.len());
    scene.engine.at(scene.now).rule_gone(&id);
    scene.run();
    let read = gone(None);
    scene.tell_rule(&id.to_string(), read);
    scene.run();
    scene.wait(11);
    let told: Vec<_> = scene
        .engine
        .held()
        .map(|held| (held.copies.len(), held.why, held.places()))
        .collect();
    let places = "20 namespaces, first place-00, place-01, place-02".to_owned();
    assert_eq!(
        told,
        [(
            20,
            "it was deleted with its namespace, and many copies were lost at once",
            places
        )]
    );
}

/// A copy that cannot be written is not waited for. Otherwise the copy of a withdrawn Secret would
/// stay until a user fixes another source.
#[test]
fn a_source_that_cannot_be_read_keeps_no_copy_of_a_former_one() {
    let mut scene = Scene::new(&["a", "z"]);
    let rule = |names: [&str; 2], generation| {
        let source =
            |name| json!({"apiVersion": "v1", "kind": "Secret", "namespace": "a", "name": name});
        let spec = json!({"sources": names.map(source), "targets": [{"namespaces": ["z"]}]});
        let mut rule = cluster_replication("p", &spec);
        rule.generation = generation;
        rule
    };
    scene.rule(rule(["x", "y"], 1));
    scene.show(&source("a", "x"));
    scene.show(&source("a", "y"));
    assert_eq!(scene.done(), ["write z/x", "write z/y"]);
    scene.rule(rule(["w", "y"], 2));
    scene.wait(60);
    assert_eq!(scene.done(), [] as [&str; 0], "first the new copies");
    scene
        .engine
        .at(scene.now)
        .source_unreadable(&source("a", "w"), Unreadable::Unavailable);
    assert_eq!(scene.done(), ["delete z/x"]);
}
