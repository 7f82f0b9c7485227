//! Statuses of `ReplicationGrants`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use mimeo_api::ReplicationGrant;
use mimeo_model::{
    grant::{Effect, Grant, GrantStatus, Standing},
    known::Known,
    refusal::Refusal,
};
use serde_json::{Value, from_value, json};

use crate::common::uid;
use crate::grants::scene::{Scene, copying, grant, replication, to};

/// Returns the next statuses of the grants of namespace `to`, after a moment.
fn told(scene: &mut Scene) -> Vec<(String, bool, i32)> {
    scene.wait(2);
    let updates = scene.engine.at(scene.now).grant_statuses();
    assert!(
        updates.iter().all(|update| &*update.namespace == "to"),
        "{updates:?}"
    );
    updates
        .iter()
        .map(|one| {
            (
                one.name.to_string(),
                one.standing.effect == Effect::Counts,
                one.standing.replications,
            )
        })
        .collect()
}

#[test]
fn a_grant_says_how_many_replications_use_it() {
    let mut scene = Scene::new(&["home", "other", "to"]);
    scene.grant("to", grant("Write", &to("home"), &["x"]));
    scene.grant(
        "to",
        grant("Read", &json!({"namespaces": ["*"]}), &["shared"]),
    );
    assert_eq!(
        told(&mut scene),
        [("Read".into(), true, 0), ("Write".into(), true, 0)]
    );
    assert_eq!(
        (told(&mut scene), scene.engine.index().grant_statuses_due()),
        (vec![], None),
        "said once"
    );

    let push = scene.rule(replication("home", "push", &copying("home", "x", &["to"])));
    scene.rule(replication(
        "home",
        "another-name",
        &copying("home", "y", &["to"]),
    ));
    let mut other_kind = copying("home", "x", &["to"]);
    other_kind["sources"][0]["kind"] = json!("ConfigMap");
    scene.rule(replication("home", "another-kind", &other_kind));
    scene.rule(replication(
        "other",
        "not-admitted",
        &copying("other", "x", &["to"]),
    ));
    assert_eq!(told(&mut scene), [("Write".into(), true, 2)]);
    scene.rule(replication(
        "home",
        "pull",
        &copying("to", "shared", &["home"]),
    ));
    scene.rule(replication(
        "other",
        "pull",
        &copying("to", "shared", &["other"]),
    ));
    assert_eq!(told(&mut scene), [("Read".into(), true, 2)]);
    scene.engine.at(scene.now).rule_gone(&push);
    assert_eq!(told(&mut scene), [("Write".into(), true, 1)]);
}

#[test]
fn labels_of_a_replications_namespace_decide_whether_it_uses_a_grant() {
    let mut scene = Scene::new(&["home", "to"]);
    let gold = json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}});
    scene.grant("to", grant("Write", &gold, &[]));
    scene.rule(replication("home", "push", &copying("home", "x", &["to"])));
    assert_eq!(told(&mut scene), [("Write".into(), true, 0)]);
    scene.namespace("home", &json!({"tier": "gold"}));
    assert_eq!(told(&mut scene), [("Write".into(), true, 1)]);
}

#[test]
fn a_grant_that_does_not_count_says_so_and_a_status_that_could_not_be_written_is_tried_again() {
    let mut scene = Scene::new(&["home", "to"]);
    for (age, name) in [(1, "first"), (2, "second")] {
        let mut grant = grant("Write", &to("home"), &[]);
        (grant.created, grant.load) = (Timestamp::from_second(age).unwrap(), 1000);
        scene
            .engine
            .at(scene.now)
            .grant_applied("to", name, Ok(grant));
    }
    assert_eq!(
        told(&mut scene),
        [("first".into(), true, 0), ("second".into(), false, 0)]
    );
    scene
        .engine
        .at(scene.now)
        .grant_status_failed("to", "second");
    assert_eq!(told(&mut scene), [], "after a pause");
    scene.wait(60);
    assert_eq!(told(&mut scene), [("second".into(), false, 0)]);
}

fn stored(spec: &Value, status: &Value) -> ReplicationGrant {
    let metadata = json!({"namespace": "to", "name": "g", "uid": uid(7), "generation": 3, "resourceVersion": "8"});
    let kind = "ReplicationGrant";
    let object = json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec, "status": status});
    from_value(object).unwrap()
}

#[test]
fn a_status_shows_all_grantees_and_objects_and_is_not_written_again() {
    let spec = json!({
        "grantees": [
            {"namespaces": ["team-*", "ops"], "namespaceSelector": {
                "matchLabels": {"tier": "gold"},
                "matchExpressions": [
                    {"key": "env", "operator": "NotIn", "values": ["dev", "test"]}, {"key": "legacy", "operator": "DoesNotExist"},
                ],
            }},
            {"namespacePattern": "shop-[0-9]+"},
            {"namespaceSelector": {}},
        ],
        "objects": [
            {"apiVersion": "v1", "kind": "Secret", "names": ["db-*", "ca"]}, {"apiVersion": "v1", "kind": "ConfigMap"},
        ],
    });
    let standing = Standing {
        generation: 3,
        effect: Effect::Counts,
        replications: 2,
    };
    let status = standing.status(
        &stored(&spec, &json!({})),
        &[],
        Timestamp::from_second(60).unwrap(),
    );
    assert_eq!(
        status.grantees.as_deref(),
        Some(
            "team-*,ops and labels tier=gold,env notin (dev,test),!legacy; pattern shop-[0-9]+; \
             all namespaces"
        )
    );
    assert_eq!(
        status.objects.as_deref(),
        Some("Secret db-*,ca; ConfigMap (any)")
    );

    // The stored status is known, and its transition time stays the same.
    let grant = stored(&spec, &serde_json::to_value(&status).unwrap());
    assert_eq!(
        standing.status(&grant, &[], Timestamp::from_second(99).unwrap()),
        status
    );
    assert_eq!(Grant::parse(&grant).unwrap().status, Some(standing));
    let mut scene = Scene::new(&["to"]);
    let mut unused = Grant::parse(&grant).unwrap();
    unused.status = Some(Standing {
        replications: 0,
        ..standing
    });
    scene
        .engine
        .at(scene.now)
        .grant_applied("to", "g", Ok(unused));
    assert_eq!(told(&mut scene), []);

    let long = json!({"grantees": [{"namespaces": vec!["n".repeat(60); 100]}], "objects": [{"apiVersion": "v1", "kind": "Secret"}]});
    let text = standing
        .status(&stored(&long, &json!({})), &[], Timestamp::UNIX_EPOCH)
        .grantees
        .unwrap();
    assert!(text.len() == 256 && text.ends_with("..."), "{text}");
}

#[test]
fn a_grant_beyond_the_limit_says_so_with_what_to_do() {
    let spec = json!({"grantees": [{"namespaces": ["a"]}], "objects": [{"apiVersion": "v1", "kind": "Secret"}]});
    let standing = Standing {
        generation: 1,
        effect: Effect::TooMany,
        replications: 0,
    };
    let status = standing.status(&stored(&spec, &json!({})), &[], Timestamp::UNIX_EPOCH);
    let ready = &status.conditions[0];
    assert_eq!(
        (&*ready.type_, &*ready.status, &*ready.reason),
        ("Ready", "False", "TooManyGrants")
    );
    assert!(
        ready
            .message
            .starts_with("a namespace may have at most 256 ReplicationGrants")
            && ready.message.contains("delete or shorten"),
        "{}",
        ready.message
    );
    assert_eq!(Standing::read(&status), Some(standing));
}

/// A grant may be changed while no webhook runs. Before the change it counted.
#[test]
fn a_grant_that_is_refused_says_so_until_it_is_corrected_or_deleted() {
    let mut scene = Scene::new(&["home", "to"]);
    let counts = Standing {
        generation: 1,
        effect: Effect::Counts,
        replications: 2,
    };
    let invalid = Standing {
        generation: 2,
        effect: Effect::Invalid,
        replications: 0,
    };
    let refused = |status| {
        Err(GrantStatus {
            generation: 2,
            status: Some(status),
        })
    };
    let due = |scene: &mut Scene| -> Vec<Standing> {
        scene.wait(2);
        let updates = scene.engine.at(scene.now).grant_statuses();
        updates.into_iter().map(|update| update.standing).collect()
    };
    scene
        .engine
        .at(scene.now)
        .grant_applied("to", "g", refused(counts));
    assert_eq!(due(&mut scene), [invalid]);
    // The refusal's status is stored now, and the watch shows it.
    scene
        .engine
        .at(scene.now)
        .grant_applied("to", "g", refused(invalid));
    assert_eq!(due(&mut scene), []);
    // The write of the status failed after all.
    scene.engine.at(scene.now).grant_status_failed("to", "g");
    scene.wait(60);
    assert_eq!(due(&mut scene), [invalid]);
    // Another grant counts beside the refused one.
    scene.grant("to", grant("Write", &to("home"), &["x"]));
    assert_eq!(told(&mut scene), [("Write".into(), true, 0)]);
    scene.engine.at(scene.now).grant_gone("to", "Write");
    scene
        .engine
        .at(scene.now)
        .grant_applied("to", "g", refused(counts));
    assert_eq!(due(&mut scene), [invalid]);
    // A corrected grant counts. A grant that is refused again and deleted has no status.
    let corrected = Ok(grant("Read", &to("home"), &["x"]));
    scene
        .engine
        .at(scene.now)
        .grant_applied("to", "g", corrected);
    assert_eq!(told(&mut scene), [("g".into(), true, 0)]);
    scene
        .engine
        .at(scene.now)
        .grant_applied("to", "g", refused(counts));
    scene
        .engine
        .at(scene.now)
        .grants_known(Known::Listed(&BTreeSet::new()));
    assert_eq!(scene.engine.index().grant_statuses_due(), None);

    let spec = json!({"grantees": [{"namespacePattern": "("}], "objects": [{"apiVersion": "v1", "kind": "Secret"}]});
    let refusal = Refusal {
        field: "spec.grantees[0].namespacePattern".into(),
        message: "not a regular expression".into(),
    };
    let status = invalid.status(
        &stored(&spec, &json!({})),
        &[refusal],
        Timestamp::UNIX_EPOCH,
    );
    let ready = &status.conditions[0];
    assert_eq!(
        (&*ready.status, &*ready.reason, &*ready.message),
        (
            "False",
            "InvalidSpec",
            "the grant grants nothing: spec.grantees[0].namespacePattern: not a regular expression"
        )
    );
    assert_eq!(Standing::read(&status), Some(invalid));
}

/// This holds for any number of a tenant's objects. They hide no user of a grant, and the number of
/// statuses written at once stays the same.
#[test]
fn many_replications_and_grants_cost_one_turn_after_another() {
    let mut scene = Scene::new(&["aaa", "home", "to"]);
    scene.grant("to", grant("Read", &to("home"), &["x"]));
    for number in 0..300 {
        scene.rule(replication(
            "aaa",
            &format!("r{number}"),
            &copying("to", "x", &["aaa"]),
        ));
        let mut own = copying("to", "x", &["to"]);
        own["targets"][0]["copyName"] = json!("y");
        scene.rule(replication("to", &format!("r{number}"), &own));
    }
    scene.rule(replication(
        "home",
        "uses-it",
        &copying("to", "x", &["home"]),
    ));
    assert_eq!(
        told(&mut scene),
        [("Read".into(), true, 1)],
        "those that aren't admitted don't count"
    );

    let mut names = BTreeSet::new();
    for number in 0..100 {
        scene.engine.at(scene.now).grant_applied(
            "to",
            &format!("g{number}"),
            Ok(grant("Write", &to("home"), &["y"])),
        );
    }
    while let Some(due) = scene.engine.index().grant_statuses_due() {
        scene.now = due;
        let updates = scene.engine.at(scene.now).grant_statuses();
        assert!(updates.len() <= 32);
        names.extend(updates.into_iter().map(|update| update.name));
    }
    assert_eq!(names.len(), 100);
}
