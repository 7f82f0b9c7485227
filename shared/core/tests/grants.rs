//! What a namespace's own rule may do: within it by itself, between namespaces what these consent to, and nothing that would tell a
//! tenant what there is in another's.

#![allow(clippy::unwrap_used)] // It is how a test fails.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use mimeo_api::ClusterReplicationStatus;
use mimeo_core::{
    engine::{Action, Engine, Errand, Request, Role, RuleRead, Settings, Verb},
    grant::Grant,
    kind::{GroupVersionKind, Resource},
    outcome::{Outcome, Unreadable},
    render::Precondition,
    rule::{Rule, RuleId, RuleKind, SourceRef},
};
use serde_json::{Value, from_value, json};

use common::{author, vouch};

struct Scene {
    engine: Engine,
    now: Duration,
    version: u32,
    /// Metadata of what is there, by `namespace/name`.
    objects: BTreeMap<String, Value>,
    /// What was written and deleted since the last look.
    done: Vec<String>,
    statuses: BTreeMap<RuleId, ClusterReplicationStatus>,
    /// Of the namespaces.
    uids: BTreeMap<String, u32>,
    errands: Vec<Errand>,
}

fn secrets() -> GroupVersionKind {
    GroupVersionKind::parse("v1", "Secret").unwrap()
}

fn source(namespace: &str, name: &str) -> SourceRef {
    SourceRef::named(secrets(), namespace, name)
}

fn uid(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

fn replication(home: &str, name: &str, spec: &Value) -> Rule {
    let object = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
        "metadata": {"namespace": home, "name": name, "generation": 1, "resourceVersion": "1"}, "spec": spec,
    });
    Rule::parse_replication(&from_value(object).unwrap()).unwrap()
}

fn cluster_replication(name: &str, spec: &Value) -> Rule {
    let object = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
        "metadata": {"name": name, "generation": 1, "resourceVersion": "1"}, "spec": spec,
    });
    Rule::parse(&from_value(object).unwrap()).unwrap()
}

/// Copies `from/name` to `to`.
fn copying(from: &str, name: &str, to: &[&str]) -> Value {
    json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": from, "name": name}],
        "targets": [{"namespaces": to}],
    })
}

fn grant(access: &str, from: &Value, names: &[&str]) -> Grant {
    let mut to = json!({"apiVersion": "v1", "kind": "Secret"});
    if !names.is_empty() {
        to["names"] = json!(names);
    }
    let object = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant", "metadata": {"namespace": "any", "name": "any"},
        "spec": {"access": access, "from": [from], "to": [to]},
    });
    Grant::parse(&from_value(object).unwrap()).unwrap()
}

fn to(home: &str) -> Value {
    json!({"namespaces": [home]})
}

impl Scene {
    /// These namespaces, and nothing in them; which grants there are isn't known yet.
    fn unlisted(namespaces: &[&str]) -> Self {
        let mut scene = Self::starting(namespaces);
        for kind in RuleKind::ALL {
            scene.engine.rules_listed(kind, &BTreeSet::new(), scene.now);
        }
        scene
    }

    /// The same before rules are known either.
    fn starting(namespaces: &[&str]) -> Self {
        let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
        let now = Duration::from_secs(1);
        for kind in RuleKind::ALL {
            engine.crd(kind, Some("crd".into()), Some("crd".into()), now);
        }
        engine.kinds_recorded(&[secrets()].into(), now);
        engine.kind(&secrets(), Some(Resource { gvk: secrets(), plural: "secrets".into(), namespaced: true }), now);
        let mut scene = Self {
            engine,
            now,
            version: 100,
            objects: BTreeMap::new(),
            done: Vec::new(),
            statuses: BTreeMap::new(),
            uids: BTreeMap::new(),
            errands: Vec::new(),
        };
        for name in namespaces {
            scene.namespace(name, &json!({}));
        }
        scene.engine.namespaces_listed(&namespaces.iter().map(|name| (*name).into()).collect(), now);
        scene.engine.copies_listing(&secrets().group_kind().into(), now);
        scene.engine.copies_listed(&secrets().group_kind().into(), 100, now);
        scene
    }

    fn new(namespaces: &[&str]) -> Self {
        let mut scene = Self::unlisted(namespaces);
        scene.engine.grants_listed(&BTreeSet::new(), scene.now);
        scene
    }

    fn namespace(&mut self, name: &str, labels: &Value) {
        self.version += 1;
        let uid = *self.uids.entry(name.to_owned()).or_insert(self.version);
        let meta = json!({
            "name": name, "uid": self::uid(uid), "labels": labels, "resourceVersion": self.version.to_string(),
        });
        self.engine.namespace_applied(&from_value(meta).unwrap(), self.now);
    }

    fn rule(&mut self, rule: Rule) -> RuleId {
        let id = rule.id.clone();
        self.engine.rule_applied(id.clone(), Ok(rule), author(), None, self.now);
        vouch(&mut self.engine, self.now);
        self.run();
        id
    }

    fn grant(&mut self, namespace: &str, grant: Grant) {
        let name = format!("{:?}", grant.access);
        self.engine.grant_applied(namespace, &name, Ok(grant), self.now);
        self.run();
    }

    fn revoke(&mut self, namespace: &str, access: &str) {
        self.engine.grant_gone(namespace, access, self.now);
        self.run();
    }

    /// Whether the source is to be watched.
    fn watched(&mut self, source: &SourceRef) -> bool {
        self.engine.demand().sources.contains_key(source)
    }

    /// The source's watch shows it.
    fn show(&mut self, source: &SourceRef) {
        assert!(self.watched(source), "{source} isn't watched");
        self.version += 1;
        let object = json!({
            "metadata": {"resourceVersion": self.version.to_string()}, "type": "Opaque", "data": {"a": "b"},
        });
        self.engine.source(source, Some(object), self.now);
        self.run();
    }

    /// An object that isn't Mimeo's, in a copy's way.
    fn stranger(&mut self, key: &str) {
        self.version += 1;
        let (namespace, name) = key.split_once('/').unwrap();
        let entry = json!({"manager": "stranger", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        let meta = json!({
            "name": name, "namespace": namespace, "uid": uid(self.version), "resourceVersion": self.version.to_string(),
            "managedFields": [entry],
        });
        self.objects.insert(key.to_owned(), meta);
    }

    /// An object that looks like a copy of this rule.
    fn mark(&mut self, namespace: &str, name: &str, rule: &str) {
        self.version += 1;
        let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        let meta = json!({
            "name": name, "namespace": namespace, "uid": uid(self.version), "resourceVersion": self.version.to_string(),
            "labels": {"app.kubernetes.io/managed-by": "mimeo"}, "managedFields": [entry],
            "annotations": {"mimeo.dev/rule": rule, "mimeo.dev/cluster": "cluster", "mimeo.dev/source": "v1/Secret/a/b"},
        });
        self.engine.copy_applied(&secrets().group_kind(), &from_value(meta.clone()).unwrap(), self.now);
        self.objects.insert(format!("{namespace}/{name}"), meta);
    }

    /// Carries out what the engine wants.
    fn run(&mut self) {
        while let Some(action) = self.engine.next(self.now) {
            let request = match action {
                Action::Request(request) => request,
                // There may be copies of the kind, whether a rule wants some or not.
                Action::Errand(Errand::Unrecord(kind, _)) => {
                    self.engine.unrecorded(&kind, false, self.now);
                    continue;
                }
                Action::Errand(errand) => {
                    self.errands.push(errand);
                    continue;
                }
            };
            let ticket = &request.ticket;
            let key = format!("{}/{}", ticket.namespace, ticket.name);
            let there = self.objects.get(&key).map(|meta| Outcome::Object(Box::new(from_value(meta.clone()).unwrap())));
            let outcome = match ticket.verb {
                Verb::Create if there.is_some() => Outcome::Conflict,
                Verb::Create | Verb::Apply(_) | Verb::Take(..) => {
                    self.done.push(format!("write {key}"));
                    let written = self.written(&request);
                    self.objects.insert(key, written.clone());
                    Outcome::Object(Box::new(from_value(written).unwrap()))
                }
                Verb::Delete(..) => {
                    self.done.push(format!("delete {key}"));
                    self.objects.remove(&key);
                    Outcome::Absent
                }
                Verb::Look | Verb::Learn(_) | Verb::Compare(..) | Verb::Claim(..) => there.unwrap_or(Outcome::Absent),
            };
            self.engine.outcome(&request.ticket, outcome, self.now);
        }
    }

    fn written(&mut self, request: &Request) -> Value {
        self.version += 1;
        let ticket = &request.ticket;
        let body = request.rendering.as_ref().unwrap().body(Precondition::Absent).concat();
        let mut meta = serde_json::from_slice::<Value>(&body).unwrap()["metadata"].take();
        let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        let (name, namespace, version) = (&*ticket.name, &*ticket.namespace, self.version);
        let known = self.objects.get(&format!("{namespace}/{name}")).map(|meta| meta["uid"].clone());
        meta["uid"] = known.unwrap_or_else(|| uid(version).into());
        meta["resourceVersion"] = version.to_string().into();
        meta["managedFields"] = json!([entry]);
        (meta["name"], meta["namespace"]) = (name.into(), namespace.into());
        meta
    }

    /// What was written and deleted since the last look.
    fn done(&mut self) -> Vec<String> {
        self.run();
        std::mem::take(&mut self.done)
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.run();
    }

    fn status(&mut self, id: &RuleId) -> ClusterReplicationStatus {
        self.run();
        self.now += Duration::from_secs(5);
        let statuses = self.engine.statuses(self.now, Timestamp::UNIX_EPOCH);
        for update in statuses {
            self.statuses.insert(update.id, update.status);
        }
        self.statuses[id].clone()
    }
}

fn condition(status: &ClusterReplicationStatus, type_: &str) -> (String, String, String) {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

fn words(status: &ClusterReplicationStatus, type_: &str) -> String {
    let (status, reason, _) = condition(status, type_);
    format!("{status} {reason}")
}

#[test]
fn within_its_namespace_a_rule_needs_nobodys_consent() {
    let mut scene = Scene::unlisted(&["home", "other"]);
    let id = scene.rule(replication("home", "r", &json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "x"}], "targets": [{"namespaces": ["home"], "name": "y"}],
    })));
    scene.show(&source("home", "x"));
    assert_eq!(scene.done(), ["write home/y"]);
    let marks = &scene.objects["home/y"];
    assert_eq!(marks["labels"]["mimeo.dev/replication"], "home.r");
    assert_eq!(marks["annotations"]["mimeo.dev/rule"], "Replication/home/r");
    scene.engine.grants_listed(&BTreeSet::new(), scene.now);
    let status = scene.status(&id);
    assert_eq!(words(&status, "Ready"), "True Synced");
    assert_eq!(words(&status, "Authorized"), "True Allowed");
    assert!(status.conditions.iter().all(|condition| condition.type_ != "BarrierActive"));
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

    // What a grant doesn't cover is as if there were none.
    for (access, from, names) in [
        ("Read", to("home"), &["other"][..]),
        ("Read", to("another"), &[]),
        ("Read", json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}}), &[]),
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

    // Another process finds the copy, and doesn't know yet what is granted.
    let mut next = Scene::unlisted(&["home", "from", "to"]);
    next.objects = scene.objects.clone();
    next.engine.copy_applied(&secrets().group_kind(), &from_value(next.objects["to/x"].clone()).unwrap(), next.now);
    next.rule(rule);
    next.grant("from", grant("Read", &to("home"), &[]));
    assert!(!next.watched(&x));
    next.wait(60);
    assert_eq!(next.done(), [] as [&str; 0]);
    next.grant("to", grant("Write", &to("home"), &[]));
    let listed = [("from".into(), "Read".into()), ("to".into(), "Write".into())];
    next.engine.grants_listed(&listed.into(), next.now);
    next.show(&x);
    next.wait(60);
    assert!(next.done().iter().all(|done| !done.starts_with("delete")));
}

#[test]
fn consent_withdrawn_takes_the_copies_along_after_a_while() {
    for (namespace, access) in [("from", "Read"), ("to", "Write")] {
        let mut scene = Scene::new(&["home", "from", "to"]);
        scene.grant("to", grant("Write", &to("home"), &[]));
        scene.grant("from", grant("Read", &to("home"), &[]));
        let id = scene.rule(replication("home", "r", &copying("from", "x", &["to", "home"])));
        scene.show(&source("from", "x"));
        assert_eq!(scene.done(), ["write home/x", "write to/x"]);
        scene.revoke(namespace, access);
        scene.wait(9);
        assert_eq!(scene.done(), [] as [&str; 0], "{access}");
        assert_eq!(words(&scene.status(&id), "Authorized"), "False NotGranted");
        scene.wait(11);
        let gone: &[&str] = if access == "Read" { &["delete home/x", "delete to/x"] } else { &["delete to/x"] };
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
    let [failure] = &status.failures[..] else { panic!("{:?}", status.failures) };
    assert_eq!((&*failure.namespace, &*failure.name, &*failure.reason), ("b", "x", "NotGranted"));
}

/// A tenant looks for what there is in other namespaces: nothing that he is told depends on it.
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
                "targets": [{"namespaces": ["vault", "home"], "name": "$(source.name)-copy"}],
            }),
        ));
        scene.show(&source("home", "own"));
        let status = scene.status(&id);
        let rule = replication("home", "probe", &copying("vault", "x", &["vault"]));
        format!(
            "{:?} {:?}",
            scene.engine.not_granted(&rule, 5),
            ClusterReplicationStatus {
                last_sync_time: None,
                sources: status.sources.iter().filter(|source| source.namespace == "vault").cloned().collect(),
                ..status
            }
        )
    };
    let absent = told(&|_| {}, &["home"]);
    assert!(absent.contains("NotGranted") && absent.contains("is not granted as a source"), "{absent}");
    assert_eq!(told(&|_| {}, &["home", "vault"]), absent, "there is such a namespace");
    let read = |scene: &mut Scene| {
        // The platform reads the object, and copies it there, too.
        scene.rule(cluster_replication(
            "p",
            &json!({
                "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "vault", "name": "x"}],
                "targets": [{"namespaces": ["vault"], "name": "x-copy"}],
            }),
        ));
        scene.show(&source("vault", "x"));
    };
    assert_eq!(told(&read, &["home", "vault"]), absent, "there is such an object, and it is read for another rule");
}

#[test]
fn the_platforms_rule_has_its_copies_whatever_a_tenant_names_as_his_source() {
    let spec = |conflict: &str| {
        json!({
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "x"}],
            "targets": [{"namespaces": ["home"]}], "conflictPolicy": conflict,
        })
    };
    // His own object, in the copy's place, and his rule's source: it would be left alone for the platform's rule's source.
    let mut scene = Scene::new(&["home", "platform"]);
    scene.stranger("home/x");
    scene.rule(replication("home", "r", &json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "x"}], "targets": [{"namespaces": ["home"], "name": "y"}],
    })));
    scene.rule(cluster_replication("p", &spec("Overwrite")));
    scene.show(&source("platform", "x"));
    assert_eq!(scene.done(), ["write home/x"]);
    // Nor does it stay for him when the platform wants it no more.
    scene.engine.rule_gone(&"ClusterReplication/p".parse().unwrap(), scene.now);
    scene.run();
    assert!(scene.errands.iter().any(|errand| matches!(errand, Errand::ConfirmRule(_))));
    let read = RuleRead { found: false, homeless: false, crd: Some("crd".into()) };
    scene.engine.rule_read(&"ClusterReplication/p".parse().unwrap(), Some(&read), scene.now);
    assert_eq!(scene.done(), ["delete home/x"]);
}

#[test]
fn a_tenants_copy_gives_way_to_the_platforms() {
    let mut scene = Scene::new(&["home", "platform"]);
    let id = scene.rule(replication("home", "r", &json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "own"}], "targets": [{"namespaces": ["home"], "name": "x"}],
    })));
    scene.show(&source("home", "own"));
    assert_eq!(scene.done(), ["write home/x"]);
    scene.rule(cluster_replication("p", &copying("platform", "x", &["home"])));
    scene.show(&source("platform", "x"));
    assert_eq!(scene.done(), ["write home/x"]);
    assert_eq!(scene.objects["home/x"]["annotations"]["mimeo.dev/rule"], "ClusterReplication/p");
    let status = scene.status(&id);
    assert_eq!(status.failures[0].reason, "RuleConflict");
    assert!(status.failures[0].message.contains("ClusterReplication/p"));
}

/// Of other tenants' rules, too, he is told no more than that there is one.
/// A scene in which the platform has the copy that a tenant's rule wants, too; the other source is there.
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
    for (crd, passes) in [(None, false), (Some("another"), false), (Some("crd"), true)] {
        let (mut scene, id) = contested();
        scene.engine.rule_gone(&id, scene.now);
        scene.wait(60);
        assert_eq!(scene.done(), [] as [&str; 0], "before anybody knows");
        assert!(scene.errands.contains(&Errand::ConfirmRule(id.clone())));
        scene.engine.crd(RuleKind::ClusterReplication, crd.map(Into::into), Some("crd".into()), scene.now);
        scene.run();
        let read = RuleRead { found: false, homeless: false, crd: crd.map(Into::into) };
        scene.engine.rule_read(&id, Some(&read), scene.now);
        scene.wait(60);
        assert_eq!(!scene.done().is_empty(), passes, "{crd:?}");
    }
    // One that wants it no more, but may not act, leaves it as it is.
    for (suspend, passes) in [(true, false), (false, true)] {
        let (mut scene, _) = contested();
        let mut elsewhere = copying("vault", "x", &["vault"]);
        elsewhere["targets"][0]["name"] = json!("y");
        elsewhere["suspend"] = json!(suspend);
        let mut rule = cluster_replication("p", &elsewhere);
        rule.generation = 2;
        scene.rule(rule);
        scene.wait(60);
        assert_eq!(scene.done().contains(&"write to/x".to_owned()), passes, "{suspend}");
    }
}

#[test]
fn tenants_rules_write_nothing_before_the_platforms_are_known() {
    let (known, _) = contested();
    let unreadable = Unreadable::Forbidden { verb: "list" };
    for (unreadable, copy) in [(None, true), (Some(unreadable), true), (None, false)] {
        let mut scene = Scene::starting(&["home", "vault", "to"]);
        scene.grant("to", grant("Write", &to("home"), &[]));
        scene.engine.grants_listed(&[("to".into(), "Write".into())].into(), scene.now);
        if copy {
            scene.objects = known.objects.clone();
            let meta = from_value(scene.objects["to/x"].clone()).unwrap();
            scene.engine.copy_applied(&secrets().group_kind(), &meta, scene.now);
        }
        let id = scene.rule(replication("home", "r", &copying("home", "x", &["to"])));
        scene.engine.rules_listed(RuleKind::Replication, &[id].into(), scene.now);
        scene.show(&source("home", "x"));
        if let Some(why) = unreadable {
            scene.engine.rules_unreadable(RuleKind::ClusterReplication, why, scene.now);
        }
        scene.wait(600);
        assert_eq!(scene.done(), [] as [&str; 0]);
        scene.engine.rules_listed(RuleKind::ClusterReplication, &BTreeSet::new(), scene.now);
        scene.run();
        if copy {
            assert_eq!(scene.done(), [] as [&str; 0], "its rule may have gone with its definition");
        } else {
            assert_eq!(scene.done(), ["write to/x"]);
        }
    }
}

#[test]
fn what_is_granted_is_not_denied_before_it_is_known() {
    let rule = || replication("home", "r", &copying("home", "x", &["to"]));
    let mut scene = Scene::unlisted(&["home", "to"]);
    assert_eq!(scene.engine.not_granted(&rule(), 5), (vec![], 0));
    let id = scene.rule(rule());
    scene.show(&source("home", "x"));
    scene.wait(60);
    assert_eq!(scene.engine.statuses(scene.now, Timestamp::UNIX_EPOCH), []);

    scene.engine.grants_unserved(scene.now);
    let (told, more) = scene.engine.not_granted(&rule(), 5);
    assert_eq!((told.len(), more), (1, 0));
    assert!(told[0].contains("does not serve ReplicationGrants"), "{told:?}");
    let status = scene.status(&id);
    assert_eq!(words(&status, "Authorized"), "False GrantsUnknown");
    assert_eq!(condition(&status, "Authorized").2, told[0]);
    assert_eq!(status.failures, []);

    scene.engine.grants_unreadable(Unreadable::Forbidden { verb: "list" }, scene.now);
    let status = scene.status(&id);
    assert_eq!(words(&status, "Authorized"), "False ControllerForbidden");
    let message = condition(&status, "Authorized").2;
    assert!(message.contains("{apiGroups: [mimeo.dev], resources: [replicationgrants], verbs: [get, list, watch]}"));

    scene.engine.grants_listed(&BTreeSet::new(), scene.now);
    assert_eq!(words(&scene.status(&id), "Authorized"), "False NotGranted");
}

/// Else whatever Mimeo finds after a restart would be held for ever, of rules that were deleted meanwhile.
#[test]
fn a_mark_made_up_before_the_first_copy_keeps_no_definition_from_being_recorded() {
    // As after an upgrade from a version without Replications; and as on the first start, or when the record was lost.
    for (cluster, recorded) in [(Some("crd"), "crd"), (None, "former")] {
        let mut scene = Scene::new(&["home", "mallory"]);
        scene.engine.crd(RuleKind::ClusterReplication, Some("crd".into()), cluster.map(Into::into), scene.now);
        scene.engine.crd(RuleKind::Replication, Some("crd".into()), None, scene.now);
        scene.mark("mallory", "m", "Replication/x/y");
        scene.run();
        let lost = RuleRead { found: false, homeless: false, crd: Some("crd".into()) };
        scene.engine.rule_read(&"Replication/x/y".parse().unwrap(), Some(&lost), scene.now);
        scene.rule(replication(
            "home",
            "r",
            &json!({
                "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "x"}],
                "targets": [{"namespaces": ["home"], "name": "y"}],
            }),
        ));
        scene.show(&source("home", "x"));
        assert_eq!(scene.done(), [] as [&str; 0], "not before it is recorded");
        let expected = Errand::RecordCrd(RuleKind::Replication, recorded.into());
        let records =
            scene.errands.iter().filter(|errand| matches!(errand, Errand::RecordCrd(RuleKind::Replication, _)));
        assert_eq!(records.collect::<Vec<_>>(), [&expected]);
        scene.engine.crd(RuleKind::Replication, Some("crd".into()), Some(recorded.into()), scene.now);
        assert_eq!(scene.done(), ["write home/y"]);
        // What the mark's rule was is asked once more.
        scene.engine.rule_read(&"Replication/x/y".parse().unwrap(), Some(&lost), scene.now);
        scene.wait(60);
        let deleted = scene.done() == ["delete mallory/m"];
        assert_eq!(deleted, cluster.is_some(), "it may have gone with its definition");
    }
}

/// As after an upgrade whose `ClusterRole`s were left as they were.
#[test]
fn the_platforms_rules_work_and_tell_when_tenants_cannot_be_read() {
    let mut scene = Scene::starting(&["vault", "to"]);
    let id = scene.rule(cluster_replication("p", &copying("vault", "x", &["to"])));
    scene.engine.rules_listed(RuleKind::ClusterReplication, &[id.clone()].into(), scene.now);
    scene.show(&source("vault", "x"));
    scene.mark("vault", "mine", "ClusterReplication/gone");
    scene.mark("vault", "theirs", "Replication/a/gone");
    assert!(!scene.engine.primed());
    scene.engine.rules_unreadable(RuleKind::Replication, Unreadable::Forbidden { verb: "list" }, scene.now);
    scene.engine.grants_unreadable(Unreadable::Forbidden { verb: "list" }, scene.now);
    assert!(scene.engine.primed());
    scene.wait(1);
    assert!(scene.done().contains(&"write to/x".to_owned()));
    let asked = |name: &str| Errand::ConfirmRule(name.parse().unwrap());
    assert!(scene.errands.contains(&asked("ClusterReplication/gone")));
    assert!(!scene.errands.contains(&asked("Replication/a/gone")), "it is there, for all that is known");
    let status = scene.status(&id);
    assert_eq!(words(&status, "Ready"), "True Synced");
    assert_eq!(words(&status, "Authorized"), "False ControllerForbidden");
    let message = condition(&status, "Authorized").2;
    assert!(message.contains("{apiGroups: [mimeo.dev], resources: [replications], verbs: [get, list, watch]}"));
    scene.engine.rules_listed(RuleKind::Replication, &BTreeSet::new(), scene.now);
    assert_eq!(words(&scene.status(&id), "Authorized"), "True Allowed");
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

/// A lost definition of grants, or somebody who deletes them all, finds few copies of each rule.
#[test]
fn a_mass_of_lost_grants_is_held() {
    for (rules, deleted) in [(19, 19), (25, 0)] {
        let homes: Vec<String> = (0..rules).map(|i| format!("team-{i}")).collect();
        let mut namespaces: Vec<&str> = homes.iter().map(String::as_str).collect();
        namespaces.push("from");
        let mut scene = Scene::new(&namespaces);
        scene.grant("from", grant("Read", &json!({"namespaces": ["team-*"]}), &[]));
        for home in &homes {
            scene.rule(replication(home, "r", &copying("from", "x", &[home])));
        }
        scene.show(&source("from", "x"));
        assert_eq!(scene.done().len(), rules);
        scene.revoke("from", "Read");
        scene.wait(30);
        assert_eq!(scene.done().len(), deleted, "{rules}");
        if deleted == 0 {
            let status = scene.status(&"Replication/team-0/r".parse().unwrap());
            assert_eq!(words(&status, "Stalled"), "True DeletionHeld");
            assert!(condition(&status, "Stalled").2.contains("replication --namespace team-0 r"));
            scene.grant("from", grant("Read", &json!({"namespaces": ["team-*"]}), &[]));
            scene.wait(60);
            assert!(scene.done().iter().all(|done| !done.starts_with("delete")));
        }
    }
}

/// Copies that carry marks of a rule that never was cost nothing to make, and a rule whose losses are held is its owner's matter.
#[test]
fn no_tenant_holds_up_what_becomes_of_others_copies() {
    let places: Vec<String> = (0..30).map(|i| format!("place-{i}")).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    for (trick, later) in [("forged", 0), ("forged", 60), ("held", 0), ("held", 5), ("held", 60)] {
        let mut scene = Scene::new(&[&places[..], &["mallory", "home", "to"]].concat());
        scene.grant("to", grant("Write", &to("home"), &[]));
        let victim = scene.rule(replication("home", "r", &copying("home", "x", &["to"])));
        scene.show(&source("home", "x"));
        assert_eq!(scene.done(), ["write to/x"]);
        if trick == "forged" {
            for number in 0..500 {
                scene.mark("mallory", &format!("m-{number}"), "Replication/no-such-ns/x");
            }
            scene.run();
            let read = RuleRead { found: false, homeless: true, crd: Some("crd".into()) };
            scene.engine.rule_read(&"Replication/no-such-ns/x".parse().unwrap(), Some(&read), scene.now);
        } else {
            for place in &places {
                scene.grant(place, grant("Write", &to("mallory"), &[]));
            }
            scene.rule(replication("mallory", "m", &copying("mallory", "x", &places)));
            scene.show(&source("mallory", "x"));
            assert_eq!(scene.done().len(), places.len());
            for place in &places {
                scene.revoke(place, "Write");
            }
        }
        scene.wait(later);
        scene.revoke("to", "Write");
        scene.wait(11);
        assert_eq!(scene.done(), ["delete to/x"], "{trick} {later}");
        assert!(scene.status(&victim).conditions.iter().all(|condition| condition.type_ != "Stalled"));
    }
}

/// What is one tenant's matter is held for him alone.
#[test]
fn a_namespaces_rules_together_lose_no_more_than_one_may() {
    let places: Vec<String> = (0..30).map(|i| format!("place-{i}")).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
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
    scene.wait(60);
    assert_eq!(scene.done(), [] as [&str; 0]);
}

#[test]
fn rules_that_go_with_their_namespace_are_no_lost_definition() {
    for (homeless, deleted_at_once) in [(false, true), (true, false)] {
        let mut scene = Scene::new(&["home", "to"]);
        scene.grant("to", grant("Write", &to("home"), &[]));
        let id = scene.rule(replication("home", "r", &copying("home", "x", &["to"])));
        scene.show(&source("home", "x"));
        assert_eq!(scene.done(), ["write to/x"]);
        scene.engine.rule_gone(&id, scene.now);
        scene.run();
        let read = RuleRead { found: false, homeless, crd: Some("crd".into()) };
        scene.engine.rule_read(&id, Some(&read), scene.now);
        assert_eq!(scene.done().is_empty(), !deleted_at_once);
        scene.wait(11);
        assert_eq!(scene.objects.len(), 0);
    }
}

/// So that one namespace's grants are quickly asked: the oldest count, and whoever writes one that wouldn't is told.
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
            scene.engine.grant_applied("to", &format!("g{age}"), Ok(other(age)), scene.now);
        }
        let wanted = aged(1000, "home");
        let why = scene.engine.refuses_grant("to", "wanted", &wanted).unwrap().to_string();
        assert!(why.contains("at most 256 ReplicationGrants of a namespace count, with 1024 names in all"), "{why}");
        assert_eq!(scene.engine.refuses_grant("other", "wanted", &wanted), None);
        scene.grant("to", wanted);
        let id = scene.rule(replication("home", "r", &copying("home", "x", &["to"])));
        scene.show(&source("home", "x"));
        assert_eq!(scene.done().len(), 0);
        assert_eq!(words(&scene.status(&id), "Authorized"), "False NotGranted");
        // It counts from when there is room, and no more once there isn't: who comes first is whose is older.
        scene.engine.grant_gone("to", "g1", scene.now);
        scene.run();
        assert_eq!(scene.done(), ["write to/x"]);
        assert_eq!(words(&scene.status(&id), "Ready"), "True Synced");
        assert_eq!(scene.engine.refuses_grant("to", "g1", &other(1)), None);
        assert!(scene.engine.refuses_grant("to", "new", &other(2000)).is_some());
        scene.engine.grant_applied("to", "g1", Ok(other(1)), scene.now);
        scene.run();
        scene.wait(11);
        assert_eq!(scene.done(), ["delete to/x"]);
        assert_eq!(words(&scene.status(&id), "Authorized"), "False NotGranted");
    }
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

/// Each change costs a look at the namespaces that it concerns, however many others there are.
#[test]
fn a_flood_of_a_tenants_rules_concerns_his_namespaces_alone() {
    let planned = |others: usize| {
        let others: Vec<String> = (0..others).map(|i| format!("other-{i}")).collect();
        let mut namespaces: Vec<&str> = others.iter().map(String::as_str).collect();
        namespaces.extend(["home", "from"]);
        let mut scene = Scene::new(&namespaces);
        scene.run();
        let before = scene.engine.planned();
        for i in 0..100 {
            let spec = json!({
                "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "from", "name": format!("x{i}")}],
                "targets": [{"namespaces": ["home"]}],
            });
            scene.rule(replication("home", &format!("r{i}"), &spec));
            scene.engine.grant_applied("home", &format!("g{i}"), Ok(grant("Read", &to("nobody"), &[])), scene.now);
            scene.run();
        }
        scene.engine.planned() - before
    };
    assert_eq!(planned(10), planned(500));
}

/// However many copies a tenant's rules have in one namespace, a change of one doesn't plan all of them at once each time.
#[test]
fn a_crowded_namespace_is_planned_as_often_as_it_can_be_and_no_more() {
    let mut scene = Scene::new(&["home"]);
    let planned_for = |scene: &mut Scene, rules: std::ops::Range<u32>| {
        let before = scene.engine.planned();
        for i in rules {
            let spec = json!({
                "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "own"}],
                "targets": [{"namespaces": ["home"], "name": format!("copy-{i}")}],
            });
            scene.rule(replication("home", &format!("r{i}"), &spec));
        }
        scene.engine.planned() - before
    };
    planned_for(&mut scene, 0..1);
    scene.show(&source("home", "own"));
    assert!(planned_for(&mut scene, 1..255) >= 254);
    assert!(planned_for(&mut scene, 255..400) < 10);
    scene.wait(1);
    assert_eq!(scene.objects.len(), 400);
}

/// A tenant with many rules waits his turn: the platform's copies come first, and another tenant's in between.
#[test]
fn a_flood_of_writes_keeps_nobody_else_waiting() {
    let mut scene = Scene::new(&["flood", "other", "platform"]);
    let own = |name: &str, to: &str| {
        json!({
            "sources": [{"apiVersion": "v1", "kind": "Secret", "name": name}], "targets": [{"namespaces": [to], "name": "copy"}],
        })
    };
    let mut flood = own("x", "flood");
    flood["targets"] = (0..32).map(|i| json!({"namespaces": ["flood"], "name": format!("copy-{i}")})).collect();
    for rule in [replication("flood", "r", &flood), replication("other", "r", &own("x", "other"))] {
        scene.engine.rule_applied(rule.id.clone(), Ok(rule), author(), None, scene.now);
    }
    let platform = cluster_replication("p", &copying("platform", "x", &["other"]));
    scene.engine.rule_applied(platform.id.clone(), Ok(platform), author(), None, scene.now);
    vouch(&mut scene.engine, scene.now);
    for home in ["flood", "other", "platform"] {
        assert!(scene.watched(&source(home, "x")));
        let object = json!({"metadata": {"resourceVersion": "7"}, "type": "Opaque", "data": {"a": "b"}});
        scene.engine.source(&source(home, "x"), Some(object), scene.now);
    }
    let done = scene.done();
    assert_eq!((done[0].as_str(), done.len()), ("write other/x", 34));
    assert!(done[1..3].contains(&"write other/copy".to_owned()), "{done:?}");
}
