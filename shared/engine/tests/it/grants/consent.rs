//! Copies exist if both namespaces consent. Without consent Mimeo does nothing and reveals nothing.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use mimeo_api::ClusterReplicationStatus;
use mimeo_engine::{Action, Task};
use mimeo_model::{
    known::{Decoded, Known},
    outcome::{Outcome, Unreadable},
};
use serde_json::{from_value, json};

use crate::grants::scene::{
    Scene, cluster_replication, condition, copying, grant, replication, secrets, selecting, source,
    to, words,
};

#[test]
fn within_its_namespace_a_rule_needs_nobodys_consent() {
    let mut scene = Scene::unlisted(&["home", "other"]);
    let id = scene.rule(replication("home", "r", &json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "x"}], "targets": [{"namespaces": ["home"], "copyName": "y"}],
    })));
    scene.show(&source("home", "x"));
    assert_eq!(scene.done(), ["write home/y"]);
    let marks = &scene.objects["home/y"];
    assert_eq!(marks["labels"]["mimeo.dev/replication"], "home.r");
    assert_eq!(marks["annotations"]["mimeo.dev/rule"], "Replication/home/r");
    scene
        .engine
        .at(scene.now)
        .grants_known(Known::Listed(&BTreeSet::new()));
    let status = scene.status(&id);
    assert_eq!(words(&status, "Ready"), "True Synced");
    assert_eq!(words(&status, "Authorized"), "True Allowed");
    assert!(
        status
            .conditions
            .iter()
            .all(|condition| condition.type_ != "PodGateActive")
    );
}

#[test]
fn across_namespaces_both_sides_consent_or_nothing_is_read_or_written() {
    let mut scene = Scene::new(&["home", "from", "to"]);
    let x = source("from", "x");
    let id = scene.rule(replication("home", "r", &copying("from", "x", &["to"])));
    assert!(!scene.watched(&x));
    scene.grant("to", grant("Write", &to("home"), &[]));
    assert!(!scene.watched(&x), "the source isn't granted by the target");
    scene.grant("from", grant("Read", &to("home"), &["x"]));
    scene.show(&x);
    assert_eq!(scene.done(), ["write to/x"]);
    assert_eq!(words(&scene.status(&id), "Ready"), "True Synced");

    // A grant that doesn't cover the access counts as no grant.
    for (access, from, names) in [
        ("Read", to("home"), &["other"][..]),
        ("Read", to("another"), &[]),
        (
            "Read",
            json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}}),
            &[],
        ),
    ] {
        let mut scene = Scene::new(&["home", "from", "to"]);
        scene.rule(replication("home", "r", &copying("from", "x", &["to"])));
        scene.grant("to", grant("Write", &to("home"), &[]));
        scene.grant("from", grant(access, &from, names));
        assert!(!scene.watched(&x), "{access} {from} {names:?}");
    }
}

#[test]
fn until_grants_are_known_nothing_crosses_and_nothing_is_lost() {
    let mut scene = Scene::new(&["home", "from", "to"]);
    let x = source("from", "x");
    scene.grant("to", grant("Write", &to("home"), &[]));
    scene.grant("from", grant("Read", &to("home"), &[]));
    let rule = replication("home", "r", &copying("from", "x", &["to"]));
    scene.rule(rule.clone());
    scene.show(&x);
    assert_eq!(scene.done(), ["write to/x"]);

    // Another process finds the copy before it knows the grants.
    let mut next = Scene::unlisted(&["home", "from", "to"]);
    next.objects = scene.objects.clone();
    next.engine.at(next.now).copy_applied(
        &secrets().group_kind(),
        &from_value(next.objects["to/x"].clone()).unwrap(),
    );
    next.rule(rule);
    next.grant("from", grant("Read", &to("home"), &[]));
    assert!(!next.watched(&x));
    next.wait(60);
    assert_eq!(next.done(), [] as [&str; 0]);
    next.grant("to", grant("Write", &to("home"), &[]));
    let listed = [
        ("from".into(), "Read".into()),
        ("to".into(), "Write".into()),
    ];
    next.engine
        .at(next.now)
        .grants_known(Known::Listed(&listed.into()));
    next.show(&x);
    next.wait(60);
    assert!(next.done().iter().all(|done| !done.starts_with("delete")));
}

#[test]
fn consent_withdrawn_takes_the_copies_along_once_it_was_read() {
    for (namespace, access) in [("from", "Read"), ("to", "Write")] {
        let mut scene = Scene::new(&["home", "from", "to"]);
        scene.grant("to", grant("Write", &to("home"), &[]));
        scene.grant("from", grant("Read", &to("home"), &[]));
        let id = scene.rule(replication(
            "home",
            "r",
            &copying("from", "x", &["to", "home"]),
        ));
        scene.show(&source("from", "x"));
        assert_eq!(scene.done(), ["write home/x", "write to/x"]);
        scene.revoke(namespace, access);
        scene.wait(9);
        assert_eq!(scene.done(), [] as [&str; 0], "{access}");
        assert_eq!(words(&scene.status(&id), "Authorized"), "False NotGranted");
        scene.tell_grants(namespace, &[], Some("2026-01-01T00:00:00Z"));
        let gone: &[&str] = if access == "Read" {
            &["delete home/x", "delete to/x"]
        } else {
            &["delete to/x"]
        };
        assert_eq!(scene.done(), gone);
        assert_eq!(scene.watched(&source("from", "x")), access == "Write");
    }
}

#[test]
fn labels_of_the_rules_namespace_count_when_they_change() {
    let mut scene = Scene::new(&["home", "from"]);
    let gold = json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}});
    scene.grant("from", grant("Read", &gold, &[]));
    scene.rule(replication("home", "r", &copying("from", "x", &["home"])));
    assert!(!scene.watched(&source("from", "x")));
    scene.namespace("home", &json!({"tier": "gold"}));
    scene.show(&source("from", "x"));
    assert_eq!(scene.done(), ["write home/x"]);
    scene.namespace("home", &json!({}));
    scene.run();
    assert!(!scene.watched(&source("from", "x")));
    scene.wait(11);
    assert_eq!(scene.done(), ["delete home/x"]);
}

/// New labels of the rule's namespace end its consent, so the copy is only collected. If the owner
/// of the source then revokes the grant as well, the copy's loss is the owner's will.
#[test]
fn a_grant_revoked_after_labels_have_changed_is_asked_about_at_once() {
    for spec in [
        copying("vault", "x", &["home"]),
        selecting("vault", &["home"]),
    ] {
        let mut scene = Scene::new(&["vault"]);
        scene.namespace("home", &json!({"team": "a"}));
        let team = json!({"namespaceSelector": {"matchLabels": {"team": "a"}}});
        scene.grant("vault", grant("Read", &team, &[]));
        scene.rule(replication("home", "r", &spec));
        if scene.watched(&source("vault", "x")) {
            scene.show(&source("vault", "x"));
        } else {
            scene.find("vault", &["x"]);
        }
        assert_eq!(scene.done().len(), 1, "{spec}");
        scene.namespace("home", &json!({}));
        scene.run();
        let task = Task::ConfirmGrants("vault".into());
        assert_eq!(
            (scene.asks(&task), scene.done().len()),
            (false, 0),
            "{spec}"
        );
        scene.revoke("vault", "Read");
        assert!(scene.asks(&task), "{spec}");
        assert_eq!(scene.engine.outdated_verdicts(), [] as [&str; 0], "{spec}");
    }
}

#[test]
fn what_is_granted_is_done_though_not_all_is() {
    let mut scene = Scene::new(&["home", "a", "b"]);
    scene.grant("a", grant("Write", &to("home"), &[]));
    let id = scene.rule(replication("home", "r", &copying("home", "x", &["a", "b"])));
    scene.show(&source("home", "x"));
    assert_eq!(scene.done(), ["write a/x"]);
    let status = scene.status(&id);
    assert_eq!(words(&status, "Authorized"), "False NotGranted");
    let copies = status.copies.unwrap();
    assert_eq!((copies.desired, copies.synced, copies.failed), (2, 1, 1));
    let [failure] = &status.failures[..] else {
        panic!("{:?}", status.failures)
    };
    assert_eq!(
        (&*failure.namespace, &*failure.name, &*failure.reason),
        ("b", "x", "NotGranted")
    );
}

#[test]
fn what_is_granted_is_not_denied_before_it_is_known() {
    let rule = || replication("home", "r", &copying("home", "x", &["to"]));
    let mut scene = Scene::unlisted(&["home", "to"]);
    assert_eq!(
        scene.engine.index().not_granted(&rule(), &rule().sources),
        [""; 0]
    );
    let id = scene.rule(rule());
    scene.show(&source("home", "x"));
    scene.wait(60);
    assert_eq!(
        scene.engine.at(scene.now).statuses(Timestamp::UNIX_EPOCH),
        []
    );

    scene.engine.at(scene.now).grants_known(Known::Unserved);
    let told = scene.engine.index().not_granted(&rule(), &rule().sources);
    assert_eq!(told.len(), 1);
    assert!(
        told[0].contains("does not serve ReplicationGrants"),
        "{told:?}"
    );
    let status = scene.status(&id);
    assert_eq!(words(&status, "Authorized"), "False GrantsUnknown");
    assert_eq!(condition(&status, "Authorized").2, told[0]);
    assert_eq!(status.failures, []);

    scene
        .engine
        .at(scene.now)
        .grants_known(Known::Unreadable(Unreadable::Forbidden));
    let status = scene.status(&id);
    assert_eq!(words(&status, "Authorized"), "False ControllerForbidden");
    let message = condition(&status, "Authorized").2;
    assert!(message.contains(
        "{apiGroups: [mimeo.dev], resources: [replicationgrants], verbs: [get, list, watch]}"
    ));

    scene
        .engine
        .at(scene.now)
        .grants_known(Known::Listed(&BTreeSet::new()));
    assert_eq!(words(&scene.status(&id), "Authorized"), "False NotGranted");
}

/// A tenant tries to find out which objects other namespaces have. No message to the tenant depends
/// on it.
#[test]
fn nothing_is_told_of_what_is_not_granted() {
    let told = |world: &dyn Fn(&mut Scene), namespaces: &[&str]| {
        let mut scene = Scene::new(namespaces);
        world(&mut scene);
        let id = scene.rule(replication(
            "home",
            "r",
            &json!({
                "sources": [
                    {"apiVersion": "v1", "kind": "Secret", "namespace": "vault", "name": "x"},
                    {"apiVersion": "v1", "kind": "Secret", "name": "own"},
                ],
                "targets": [{"namespaces": ["vault", "home"], "copyName": "$(source.name)-copy"}],
            }),
        ));
        scene.show(&source("home", "own"));
        let status = scene.status(&id);
        let rule = replication("home", "probe", &copying("vault", "x", &["vault", "home"]));
        format!(
            "{:?} {:?}",
            scene.engine.index().not_granted(&rule, &rule.sources),
            ClusterReplicationStatus {
                last_sync_time: None,
                sources: status
                    .sources
                    .iter()
                    .filter(|source| source.namespace.as_deref() == Some("vault"))
                    .cloned()
                    .collect(),
                ..status
            }
        )
    };
    let absent = told(&|_| {}, &["home"]);
    assert!(
        absent.contains("NotGranted") && absent.contains("is not granted as a source"),
        "{absent}"
    );
    assert_eq!(
        told(&|_| {}, &["home", "vault"]),
        absent,
        "there is such a namespace"
    );
    let read = |scene: &mut Scene| {
        // A `ClusterReplication` reads the object, and copies it into that namespace, too.
        scene.rule(cluster_replication(
            "p",
            &json!({
                "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "vault", "name": "x"}],
                "targets": [{"namespaces": ["vault"], "copyName": "x-copy"}],
            }),
        ));
        scene.show(&source("vault", "x"));
    };
    assert_eq!(
        told(&read, &["home", "vault"]),
        absent,
        "there is such an object, and it is read for another rule"
    );
}

#[test]
fn who_has_a_cell_abroad_is_not_told() {
    let mut scene = Scene::new(&["home", "other", "to"]);
    scene.grant("to", grant("Write", &json!({"namespaces": ["*"]}), &[]));
    scene.rule(replication("home", "a", &copying("home", "x", &["to"])));
    scene.show(&source("home", "x"));
    let id = scene.rule(replication("other", "b", &copying("other", "x", &["to"])));
    scene.show(&source("other", "x"));
    let status = scene.status(&id);
    assert_eq!(status.failures[0].message, "another rule has this copy");
}

/// The amounts would reveal how many objects another tenant's namespace has.
#[test]
fn the_amounts_of_another_namespaces_quota_are_told_in_no_status_and_no_event() {
    let mut scene = Scene::new(&["home", "to"]);
    scene.grant("to", grant("Write", &to("home"), &[]));
    let id = scene.rule(replication("home", "r", &copying("home", "x", &["to"])));
    let object =
        json!({"metadata": {"resourceVersion": "5"}, "type": "Opaque", "data": {"a": "b"}});
    scene
        .engine
        .at(scene.now)
        .source(&source("home", "x"), Some(Decoded::Whole(object)));
    let mut notes = Vec::new();
    for _ in 0..20 {
        while let Some(action) = scene.engine.at(scene.now).next_action() {
            if let Action::Request(request) = action {
                let status = json!({"message": "exceeded quota: q, used: count/secrets=41"});
                let status = from_value(status).unwrap();
                let (resource, name) = (&request.resource, &request.name);
                let outcome = Outcome::of_error(403, &status, None, resource, name);
                scene.engine.at(scene.now).outcome(&request, outcome);
            }
        }
        notes.extend(scene.engine.at(scene.now).event_updates());
        scene.now += Duration::from_secs(1);
    }
    let failures = scene.status(&id).failures;
    let told: Vec<&str> = notes
        .iter()
        .map(|event_update| &*event_update.note)
        .chain(failures.iter().map(|failure| &*failure.message))
        .collect();
    assert!(told.len() > 1, "{told:?}");
    for text in told {
        assert!(text.contains("has no room for this copy"), "{text}");
        assert!(!text.contains("41"), "{text}");
    }
}
