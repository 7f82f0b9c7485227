//! Each `conflictPolicy` for foreign objects that occupy a copy's name, and `strategy: CreateOnce`:
//! the requests that each one sends.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Status};
use mimeo_api::Plan;
use mimeo_engine::{Action, Answer, Engine, Job, Notice, Request, Settings, Task, Verb, copy::Why};
use mimeo_model::{
    id::RuleKind,
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    names,
    outcome::{FailureReason, Outcome},
    role::Role,
    rule::Rule,
    source::SourceRef,
};
use serde_json::{Value, from_value, json};

use crate::common::fails;

const NOW: Duration = Duration::from_secs(1);
const UID: &str = "00000000-0000-4000-8000-000000000002";

struct Scene {
    engine: Engine,
    now: Duration,
    /// The generation of the rule, from 0.
    generation: i64,
    /// The records that the engine wanted in the namespace's annotation.
    noted: Vec<String>,
    /// The last job that writes such a record.
    noting: Option<Job>,
    /// True if the engine wanted to read a rule.
    asked: bool,
}

fn rule(name: &str, source: &str, spec: &Value) -> Rule {
    let mut rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": name},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": source, "name": "x"}],
            "targets": [{"namespaces": ["team"]}],
        },
    });
    rule["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    Rule::parse(&from_value(rule).unwrap()).unwrap()
}

/// A rule that copies Secret `home/x` into namespace `team`, where another object has that name.
fn scene(role: Role, spec: &Value) -> Scene {
    let mut scene = unlisted(role, spec);
    let ids = ["rule", "other"].map(|name| rule(name, "home", &json!({})).id);
    scene
        .engine
        .at(NOW)
        .rules_known(RuleKind::ClusterReplication, Known::Listed(&ids.into()));
    scene
        .engine
        .at(NOW)
        .rules_known(RuleKind::Replication, Known::Unserved);
    scene
}

/// The same, before all rules were listed.
fn unlisted(role: Role, spec: &Value) -> Scene {
    let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
    let rule = rule("rule", "home", spec);
    let source = rule.sources[0].clone();
    let mut engine = Engine::new(Settings::new(role, "cluster"));
    engine.at(NOW).rule_applied(rule.id.clone(), Ok(rule), None);
    let mut namespace = json!({"name": "team", "uid": "00000000-0000-4000-8000-000000000001", "resourceVersion": "5"});
    if role == Role::Injector {
        namespace["labels"] = json!({"mimeo.dev/copies": "token"});
    }
    engine
        .at(NOW)
        .namespace_applied(&from_value(namespace).unwrap());
    engine.at(NOW).namespaces_listed(&["team".into()].into());
    engine.at(NOW).take_charge("team");
    engine
        .at(NOW)
        .kinds_recorded(&BTreeSet::from([gvk.clone()]));
    engine.at(NOW).kind(
        &gvk,
        Known::Listed(Resource {
            gvk: gvk.clone(),
            plural: "secrets".into(),
            namespaced: true,
        }),
    );
    let _ = engine.demand();
    engine.at(NOW).copies_listing(&gvk.group_kind().into());
    engine
        .at(NOW)
        .copies_known(&gvk.group_kind().into(), Known::Listed(6));
    let object =
        json!({"metadata": {"resourceVersion": "9"}, "type": "Opaque", "data": {"a": "b"}});
    engine.at(NOW).source(&source, Some(Decoded::Whole(object)));
    Scene {
        engine,
        now: NOW,
        generation: 0,
        noted: Vec::new(),
        noting: None,
        asked: false,
    }
}

fn team(version: u32, seeds: Option<&str>) -> ObjectMeta {
    let annotations: BTreeMap<_, _> = seeds
        .iter()
        .map(|seeds| (names::CREATED_ONCE, *seeds))
        .collect();
    let uid = "00000000-0000-4000-8000-000000000001";
    let meta = json!({"name": "team", "uid": uid, "resourceVersion": version.to_string(), "annotations": annotations});
    from_value(meta).unwrap()
}

fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
    json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields})
}

fn theirs() -> Value {
    entry(
        "stranger",
        "Update",
        &json!({"f:data": {".": {}, "f:a": {}}, "f:type": {}, "f:metadata": {"f:labels": {"f:b": {}}}}),
    )
}

/// The object that occupies the copy's place.
fn foreign() -> Value {
    json!({"name": "x", "namespace": "team", "uid": UID, "resourceVersion": "7", "managedFields": [theirs()]})
}

/// A copy that Mimeo wrote in the object's place.
fn copy(version: &str) -> Value {
    let mut copy = foreign();
    copy["managedFields"] = json!([entry("mimeo", "Apply", &json!({"f:data": {}}))]);
    copy["resourceVersion"] = version.into();
    copy["labels"] = json!({"app.kubernetes.io/managed-by": "mimeo"});
    copy
}

/// The object at that version, while a finalizer keeps it.
fn going(mut object: Value, version: &str) -> Value {
    object["resourceVersion"] = version.into();
    object["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    object
}

impl Scene {
    fn next(&mut self) -> Option<Box<Request>> {
        loop {
            match self.engine.at(self.now).next_action()? {
                Action::Request(request) => return Some(request),
                Action::Job(job) => {
                    if let Task::RecordCreated { created, .. } = &job.task {
                        self.noted.push(created.to_string());
                        self.noting = Some(*job);
                    } else {
                        self.asked |= matches!(job.task, Task::ConfirmRule(_));
                    }
                }
            }
        }
    }

    #[track_caller]
    fn expect(&mut self, verb: Verb, why: Option<Why>) -> Box<Request> {
        let request = self.next().unwrap();
        assert_eq!((request.verb, request.why), (verb, why));
        request
    }

    fn answer(&mut self, request: &Request, outcome: Outcome) {
        self.engine.at(self.now).outcome(request, outcome);
    }

    fn show(&mut self, request: &Request, meta: Value) {
        let meta: ObjectMeta = from_value(meta).unwrap();
        self.answer(request, Outcome::Object(Box::new(meta)));
    }

    /// The create request meets the object, and the engine reads it.
    #[track_caller]
    fn meet(&mut self, object: Value) {
        let create = self.expect(Verb::Create, Some(Why::Missing));
        self.answer(&create, Outcome::Conflict);
        let look = self.expect(Verb::Look, None);
        self.show(&look, object);
    }

    /// Answers the request with the object as Mimeo's own copy.
    fn taken(&mut self, request: &Request) {
        let mut meta = foreign();
        let ours = entry(
            "mimeo",
            "Apply",
            &json!({"f:data": {"f:a": {}}, "f:type": {}}),
        );
        meta["managedFields"] = json!([ours, theirs()]);
        meta["resourceVersion"] = "12".into();
        meta["labels"] = json!({"app.kubernetes.io/managed-by": "mimeo"});
        meta["annotations"] = json!({
            "mimeo.dev/rule": "ClusterReplication/rule", "mimeo.dev/cluster": "cluster",
            "mimeo.dev/checksum": request.rendering.as_ref().unwrap().checksum.to_string(),
        });
        self.show(request, meta);
    }

    /// Checks that the engine does nothing more, and reports the conflict.
    #[track_caller]
    fn spared(&mut self, word: &str) {
        assert!(self.next().is_none());
        let notices = self.engine.notices();
        let told = |notice: &Notice| match notice {
            Notice::Failed(failed) => failed.failure.message.contains(word),
            Notice::Held { .. } | Notice::CopyLag { .. } | Notice::NamespaceLag(_) => false,
        };
        let conflict = fails(&notices[0], FailureReason::Conflict) && told(&notices[0]);
        assert!(notices.len() == 1 && conflict, "{notices:?}");
    }

    fn plan(&mut self) -> Plan {
        let status = self
            .engine
            .at(self.now)
            .statuses(Timestamp::UNIX_EPOCH)
            .pop()
            .unwrap()
            .status;
        status.plan.unwrap()
    }
}

fn take(version: u64) -> Verb {
    Verb::Take(mimeo_model::meta::Uid::parse(UID).unwrap(), version)
}

fn compare(version: u64) -> Verb {
    Verb::Compare(mimeo_model::meta::Uid::parse(UID).unwrap(), version)
}

fn refusal(cause: &Value) -> Outcome {
    let status: Value = json!({"reason": "Invalid", "details": {"causes": [cause]}});
    let status: Status = from_value(status).unwrap();
    let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
    let secrets = Resource {
        gvk,
        plural: "secrets".into(),
        namespaced: true,
    };
    Outcome::of_error(422, &status, None, &secrets, "x")
}

fn immutable() -> Outcome {
    refusal(&json!({"field": "type", "message": "field is immutable"}))
}

#[test]
fn what_is_to_be_overwritten_is_written_over_as_it_was_seen_by_both_roles() {
    for role in [Role::Keeper, Role::Injector] {
        let mut scene = scene(role, &json!({"conflictPolicy": "Overwrite"}));
        scene.meet(foreign());
        let first = scene.expect(take(7), Some(Why::Overwritten));
        // Another client changes the object meanwhile, so it is read again.
        scene.answer(&first, Outcome::Conflict);
        let look = scene.expect(Verb::Look, None);
        let mut changed = foreign();
        changed["resourceVersion"] = "8".into();
        scene.show(&look, changed.clone());
        // The engine waits first, because this may be a fight. After the pause the object may be
        // gone, and no watch shows that.
        assert!(scene.next().is_none());
        scene.now += Duration::from_secs(1);
        scene.meet(changed);
        scene.expect(take(8), Some(Why::Overwritten));
    }
}

#[test]
fn what_was_overwritten_is_a_copy() {
    let mut scene = scene(Role::Keeper, &json!({"conflictPolicy": "Overwrite"}));
    scene.meet(foreign());
    let write = scene.expect(take(7), Some(Why::Overwritten));
    scene.taken(&write);
    assert!(scene.next().is_none());
    assert!(scene.engine.notices().is_empty());
    let told = scene
        .engine
        .at(NOW + Duration::from_secs(6))
        .event_updates();
    assert_eq!(
        told.iter()
            .map(|one| (one.reason.type_(), one.reason.as_str()))
            .collect::<Vec<_>>(),
        [("Normal", "CopyAdopted"); 2]
    );
    assert!(
        told[0].note.starts_with(
            "Secret x in namespace team: an object that Mimeo did not write has become the copy"
        ),
        "{}",
        told[0].note
    );
}

#[test]
fn what_is_being_deleted_is_waited_for() {
    for policy in ["Adopt", "Overwrite"] {
        let mut scene = scene(Role::Keeper, &json!({"conflictPolicy": policy}));
        scene.meet(going(foreign(), "7"));
        assert!(scene.next().is_none(), "{policy}");
        // The status reports the object for as long as a finalizer keeps it.
        let status = scene
            .engine
            .at(scene.now)
            .statuses(Timestamp::UNIX_EPOCH)
            .pop()
            .unwrap()
            .status;
        let told: Vec<&str> = status
            .failures
            .iter()
            .map(|failure| &*failure.reason)
            .collect();
        assert_eq!(
            (told, status.copies.unwrap().failed),
            (vec!["Conflict"], 1),
            "{policy}"
        );
    }
}

#[test]
fn no_rules_source_is_ever_taken() {
    for policy in ["Adopt", "Overwrite"] {
        let mut scene = scene(Role::Keeper, &json!({"conflictPolicy": policy}));
        let other = rule(
            "younger",
            "team",
            &json!({"targets": [{"namespaces": ["else"]}]}),
        );
        scene
            .engine
            .at(NOW)
            .rule_applied(other.id.clone(), Ok(other), None);
        scene.meet(foreign());
        scene.spared("source");
    }
}

/// A rule that was not observed yet may name the object as its source.
#[test]
fn nothing_is_taken_before_every_rule_is_known() {
    let mut scene = unlisted(Role::Keeper, &json!({"conflictPolicy": "Overwrite"}));
    scene.meet(foreign());
    assert!(scene.next().is_none());
    scene.engine.at(NOW).rules_known(
        RuleKind::ClusterReplication,
        Known::Listed(&[rule("rule", "home", &json!({})).id].into()),
    );
    scene
        .engine
        .at(NOW)
        .rules_known(RuleKind::Replication, Known::Unserved);
    scene.expect(take(7), Some(Why::Overwritten));
}

#[test]
fn what_cannot_be_overwritten_in_place_is_deleted_and_made_anew() {
    let mut scene = scene(Role::Keeper, &json!({"conflictPolicy": "Overwrite"}));
    scene.meet(foreign());
    let write = scene.expect(take(7), Some(Why::Overwritten));
    scene.answer(&write, immutable());
    let Verb::Take(uid, version) = take(7) else {
        return;
    };
    let delete = scene.expect(Verb::Delete(uid, version), Some(Why::Replaced));
    scene.answer(&delete, Outcome::Absent);
    scene.expect(Verb::Create, Some(Why::Missing));
}

#[test]
fn what_is_marked_as_a_copy_is_adopted_without_asking_what_is_in_it() {
    let marks = [
        ("annotations", "mimeo.dev/rule"),
        ("annotations", "clustersecret.io/created-by"),
        ("labels", "generate.kyverno.io/policy-name"),
        ("annotations", "kubed.appscode.com/origin"),
        (
            "annotations",
            "reflector.v1.k8s.emberstack.com/reflected-version",
        ),
        (
            "annotations",
            "replicator.v1.mittwald.de/replicated-from-version",
        ),
    ];
    for (place, mark) in marks {
        let mut scene = scene(Role::Keeper, &json!({"conflictPolicy": "Adopt"}));
        let mut marked = foreign();
        marked[place] = json!({mark: "any"});
        scene.meet(marked);
        let write = scene.expect(take(7), Some(Why::Adopted));
        // Adoption deletes nothing.
        scene.answer(&write, immutable());
        assert!(scene.next().is_none(), "{mark}");
        assert!(
            scene
                .engine
                .notices()
                .iter()
                .any(|notice| fails(notice, FailureReason::Invalid))
        );
    }
}

/// Such objects belong to the tool that replicates them.
#[test]
fn another_replicators_source_is_not_marked_as_a_copy() {
    let mut scene = scene(Role::Keeper, &json!({"conflictPolicy": "Adopt"}));
    let mut source = foreign();
    source["labels"] = json!({"generate.kyverno.io/clone-source": ""});
    source["annotations"] = json!({
        "kubed.appscode.com/sync": "", "replicator.v1.mittwald.de/replicate-to": "a",
        "reflector.v1.k8s.emberstack.com/reflection-allowed": "true",
    });
    scene.meet(source);
    let asked = scene.expect(compare(7), None);
    scene.answer(&asked, Outcome::Differs);
    scene.spared("not adopted");
}

#[test]
fn what_has_the_copys_content_is_adopted() {
    let ours = entry(
        "mimeo",
        "Apply",
        &json!({"f:data": {"f:a": {}}, "f:type": {}}),
    );
    let status = json!({"manager": "y", "operation": "Update", "subresource": "status", "fieldsV1": {"f:x": {}}});
    let mut scene = scene(Role::Keeper, &json!({"conflictPolicy": "Adopt"}));
    scene.meet(foreign());
    let asked = scene.expect(compare(7), None);
    let mut answer = foreign();
    answer["managedFields"] = json!([ours, theirs(), status]);
    scene.show(&asked, answer);
    let write = scene.expect(take(7), Some(Why::Adopted));
    scene.taken(&write);
    assert!(scene.next().is_none());
}

#[test]
fn what_has_more_or_less_or_other_content_is_not_adopted() {
    let ours = entry(
        "mimeo",
        "Apply",
        &json!({"f:data": {"f:a": {}}, "f:type": {}}),
    );
    let with_another = entry(
        "mimeo",
        "Apply",
        &json!({"f:data": {"f:a": {}, "f:c": {}}, "f:type": {}}),
    );
    let more = entry("third", "Apply", &json!({"f:data": {"f:secret": {}}}));
    let immutable_too = entry("third", "Update", &json!({"f:immutable": {}}));
    let answers = [
        json!([ours, theirs(), more]),
        json!([immutable_too, ours]),
        json!([theirs()]),
        json!([with_another, theirs()]),
    ];
    let answers = answers.map(|entries| {
        let mut meta = foreign();
        meta["managedFields"] = entries;
        Outcome::Object(Box::new(from_value(meta).unwrap()))
    });
    for outcome in answers.into_iter().chain([Outcome::Differs, immutable()]) {
        let mut scene = scene(Role::Keeper, &json!({"conflictPolicy": "Adopt"}));
        scene.meet(foreign());
        let asked = scene.expect(compare(7), None);
        scene.answer(&asked, outcome);
        scene.spared("not adopted");
    }
}

/// A preview reads as much as it needs for its counts, and writes nothing.
#[test]
fn a_suspended_rule_counts_what_it_would_take() {
    let cases = [
        ("Report", None, [0, 1]),
        ("Overwrite", None, [1, 0]),
        ("Adopt", Some(true), [1, 0]),
        ("Adopt", Some(false), [0, 1]),
    ];
    for (policy, same, [update, conflict]) in cases {
        let mut scene = scene(
            Role::Keeper,
            &json!({"conflictPolicy": policy, "suspend": true}),
        );
        let look = scene.expect(Verb::Look, None);
        scene.show(&look, foreign());
        if let Some(same) = same {
            let asked = scene.expect(compare(7), None);
            let mut meta = foreign();
            let ours = entry(
                "mimeo",
                "Apply",
                &json!({"f:data": {"f:a": {}}, "f:type": {}}),
            );
            meta["managedFields"] = if same {
                json!([ours, theirs()])
            } else {
                json!([theirs()])
            };
            scene.show(&asked, meta);
        }
        assert!(scene.next().is_none(), "{policy}");
        let plan = scene.plan();
        assert_eq!(
            (plan.create, plan.update, plan.delete, plan.conflict),
            (0, update, 0, conflict),
            "{policy} {same:?}"
        );
        let named: Vec<_> = plan
            .copies
            .iter()
            .map(|copy| (&*copy.action, &*copy.namespace, &*copy.name))
            .collect();
        assert_eq!(
            named,
            [(if update > 0 { "Update" } else { "Conflict" }, "team", "x")],
            "{policy} {same:?}"
        );
    }
}

/// A suspended rule costs no requests, so its plan keeps showing an object in the way.
#[test]
fn an_object_in_the_way_of_a_suspended_rule_is_read_once() {
    let mut scene = scene(
        Role::Keeper,
        &json!({"conflictPolicy": "Adopt", "suspend": true}),
    );
    let look = scene.expect(Verb::Look, None);
    scene.show(&look, foreign());
    let asked = scene.expect(compare(7), None);
    scene.show(&asked, foreign());
    for _ in 0..10 {
        assert!(scene.next().is_none());
        scene.now += Duration::from_mins(10);
    }
    assert_eq!(scene.plan().conflict, 1);
}

/// The suspended rule no longer wants the copy, which has lost its label.
#[test]
fn a_planned_deletion_is_done_at_once_after_the_rest() {
    let mut scene = scene(Role::Keeper, &json!({}));
    scene.created();
    let elsewhere = json!([{"namespaces": ["else"]}]);
    scene.change(&json!({"suspend": true, "targets": elsewhere}));
    assert!(scene.next().is_none());
    scene.removed();
    let look = scene.expect(Verb::Look, None);
    let mut stripped = foreign();
    stripped["resourceVersion"] = "20".into();
    stripped["annotations"] =
        json!({"mimeo.dev/rule": "ClusterReplication/rule", "mimeo.dev/cluster": "cluster"});
    scene.show(&look, stripped);
    assert_eq!(scene.plan().delete, 1);
    assert!(scene.next().is_none());
    scene.change(&json!({"targets": elsewhere}));
    assert!(scene.next().is_none());
    scene.now += Duration::from_secs(11);
    let delete = scene.next().unwrap();
    assert!(matches!(delete.verb, Verb::Delete(_, 20)));
}

/// A person who resumes a rule does not wait for the next read of an object in the way.
#[test]
fn a_resumed_rule_tries_at_once_again_where_an_object_was_in_the_way() {
    let mut scene = scene(Role::Keeper, &json!({"suspend": true}));
    let look = scene.expect(Verb::Look, None);
    scene.show(&look, foreign());
    assert!(scene.next().is_none());
    scene.now += Duration::from_hours(1);
    scene.change(&json!({}));
    assert!(scene.next().is_none());
    scene.now += Duration::from_secs(2);
    scene.expect(Verb::Create, Some(Why::Missing));
}

// ---- strategy: CreateOnce ----

fn once() -> Value {
    json!({"strategy": "CreateOnce"})
}

impl Scene {
    /// The rule gets another spec.
    fn change(&mut self, spec: &Value) {
        let changed = rule("rule", "home", spec);
        self.generation += 1;
        let changed = Rule {
            generation: self.generation,
            ..changed
        };
        self.engine
            .at(self.now)
            .rule_applied(changed.id.clone(), Ok(changed), None);
    }

    /// The copy is created.
    fn created(&mut self) {
        let create = self.expect(Verb::Create, Some(Why::Missing));
        self.taken(&create);
        assert!(self.next().is_none());
    }

    /// The watch of copies shows the deletion of the copy.
    fn removed(&mut self) {
        let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
        let mut last = foreign();
        last["resourceVersion"] = "20".into();
        self.engine
            .at(self.now)
            .copy_gone(&gvk.group_kind(), &from_value(last).unwrap());
    }

    /// Returns the one record that was written. The watch of the namespace shows it.
    #[track_caller]
    fn note(&mut self) -> String {
        let noted = std::mem::take(&mut self.noted);
        assert_eq!(noted.len(), 1, "{noted:?}");
        self.engine
            .at(self.now)
            .namespace_applied(&team(30, Some(&noted[0])));
        // The watch showed the write before the answer arrived.
        if let Some(job) = self.noting.take() {
            self.engine.at(self.now).answered(&job, Answer::Done);
        }
        assert!(self.next().is_none() && self.noted.is_empty());
        noted[0].clone()
    }

    fn synced(&mut self) -> bool {
        let status = self
            .engine
            .at(self.now)
            .statuses(Timestamp::UNIX_EPOCH)
            .pop()
            .unwrap()
            .status;
        status
            .copies
            .is_some_and(|copies| (copies.desired, copies.synced) == (1, 1))
    }
}

#[test]
fn what_was_created_once_never_comes_back_nor_changes_after_a_restart_either() {
    let mut scene = scene(Role::Keeper, &once());
    scene.created();
    let seeds = scene.note();
    assert_eq!(seeds.len(), 16);
    scene.removed();
    assert!(scene.next().is_none());
    assert!(scene.synced());
    let source = rule("rule", "home", &once()).sources[0].clone();
    scene.engine.at(NOW).source(
        &source,
        Some(Decoded::Whole(
            json!({"metadata": {"resourceVersion": "31"}, "data": {"a": "c"}}),
        )),
    );
    assert!(scene.next().is_none());

    for role in [Role::Keeper, Role::Injector] {
        let mut restarted = self::scene(role, &once());
        let mut meta = team(30, Some(&seeds));
        meta.labels = (role == Role::Injector)
            .then(|| [(names::PENDING_LABEL.to_owned(), "token".to_owned())].into());
        restarted.engine.at(NOW).namespace_applied(&meta);
        assert!(restarted.next().is_none(), "{role:?}");
        assert!(restarted.noted.is_empty());
        // In another namespace of the same name, the annotation proves nothing.
        meta.uid = Some(UID.into());
        meta.resource_version = Some("40".into());
        restarted.engine.at(NOW).namespace_applied(&meta);
        restarted.engine.at(NOW).take_charge("team");
        restarted.expect(Verb::Create, Some(Why::Missing));
    }
}

#[test]
fn what_is_removed_before_that_is_noted_does_not_come_back_to_who_saw_it() {
    let mut scene = scene(Role::Keeper, &once());
    scene.created();
    let noting = scene.noting.take().unwrap();
    scene.engine.at(NOW).answered(&noting, Answer::Failed);
    scene.removed();
    scene.noted.clear();
    assert!(scene.next().is_none());
    scene.now += Duration::from_secs(2);
    assert!(scene.next().is_none());
    scene.note();
}

#[test]
fn what_is_there_counts_as_created_once() {
    for policy in ["Report", "Adopt"] {
        let mut scene = scene(
            Role::Keeper,
            &json!({"strategy": "CreateOnce", "conflictPolicy": policy}),
        );
        scene.meet(foreign());
        assert!(scene.next().is_none(), "{policy}");
        scene.note();
        assert!(scene.synced(), "{policy}");
        assert!(scene.engine.notices().is_empty());
    }
    let mut scene = scene(
        Role::Keeper,
        &json!({"strategy": "CreateOnce", "conflictPolicy": "Overwrite"}),
    );
    scene.meet(foreign());
    let write = scene.expect(take(7), Some(Why::Overwritten));
    scene.taken(&write);
    assert!(scene.next().is_none());
    scene.note();
}

#[test]
fn a_copy_whose_rule_comes_to_create_once_is_left_to_its_owner_for_good() {
    for noted in [true, false] {
        let mut scene = scene(Role::Keeper, &json!({}));
        scene.created();
        assert!(scene.noted.is_empty());
        scene.change(&once());
        assert!(scene.next().is_none());
        if noted {
            scene.note();
        }
        // Its annotations still say that it must be deleted with its rule. Otherwise the engine
        // would read the rule.
        let id = rule("rule", "home", &once()).id;
        scene.engine.at(NOW).rule_gone(&id);
        assert!(scene.next().is_none());
        assert!(!scene.asked, "{noted}");
    }
}

/// A process that starts later does not know about such an object.
#[test]
fn what_was_there_when_nobody_watched_or_for_another_rule_is_not_created_once() {
    let mut scene = scene(Role::Keeper, &json!({}));
    scene.meet(foreign());
    scene.spared("didn't write");
    scene.change(&once());
    scene.created();

    let mut scene = self::scene(Role::Keeper, &once());
    scene.created();
    scene.note();
    scene.removed();
    assert!(scene.next().is_none());
    let other = rule("other", "home", &once());
    scene
        .engine
        .at(NOW)
        .rule_applied(other.id.clone(), Ok(other), None);
    // `other` comes before `rule` by its name, so it gets the copy.
    scene.expect(Verb::Create, Some(Why::Vanished));
}

/// The documents tell users to remove the annotation if a missing copy must be created again.
#[test]
fn without_the_annotation_what_is_missing_is_created_again() {
    let mut scene = scene(Role::Keeper, &once());
    scene.created();
    scene.note();
    scene.removed();
    assert!(scene.next().is_none());
    scene.engine.at(NOW).namespace_applied(&team(40, None));
    scene.expect(Verb::Create, Some(Why::Vanished));
    assert!(scene.noted.is_empty());
}

/// The request was sent before the rule changed. The copy must not count as created, because Mimeo
/// itself deletes it.
#[test]
fn what_mimeo_is_deleting_was_not_created_once() {
    let mut scene = scene(Role::Keeper, &json!({}));
    scene.created();
    scene.change(&json!({"targets": [{"namespaces": ["else"]}]}));
    assert!(scene.next().is_none());
    scene.now += Duration::from_secs(11);
    let delete = scene.next().unwrap();
    assert!(matches!(delete.verb, Verb::Delete(_, 12)));
    scene.change(&once());
    assert!(scene.next().is_none() && scene.noted.is_empty());
    scene.answer(&delete, Outcome::Absent);
    scene.expect(Verb::Create, Some(Why::Missing));
    assert!(scene.noted.is_empty());
}

/// A finalizer keeps the object for a while after the answer.
#[test]
fn what_mimeo_has_deleted_was_not_created_once_while_a_finalizer_keeps_it() {
    let mut scene = scene(Role::Keeper, &json!({}));
    scene.created();
    scene.change(&json!({"targets": [{"namespaces": ["else"]}]}));
    assert!(scene.next().is_none());
    scene.now += Duration::from_secs(11);
    let delete = scene.next().unwrap();
    scene.show(&delete, going(copy("12"), "13"));
    scene.change(&once());
    assert!(scene.next().is_none() && scene.noted.is_empty());
    scene.removed();
    scene.expect(Verb::Create, Some(Why::Missing));
    assert!(scene.noted.is_empty());
}

/// The namespace records the copy of a rule that created it once. Then another rule's copy has the
/// name, and Mimeo deletes that one.
#[test]
fn what_is_recorded_as_created_is_not_read_again_while_a_finalizer_keeps_an_object() {
    let mut scene = scene(Role::Keeper, &once());
    scene.created();
    scene.note();
    scene.removed();
    let elsewhere = json!([{"namespaces": ["else"]}]);
    scene.change(&json!({"strategy": "CreateOnce", "targets": elsewhere}));
    let look = scene.expect(Verb::Look, None);
    scene.answer(&look, Outcome::Absent);
    assert!(scene.next().is_none());
    let other = rule("other", "home", &json!({}));
    let apply = |scene: &mut Scene, other: Rule| {
        scene
            .engine
            .at(scene.now)
            .rule_applied(other.id.clone(), Ok(other), None);
    };
    apply(&mut scene, other);
    let create = scene.next().unwrap();
    assert_eq!(create.verb, Verb::Create);
    let mut theirs = copy("31");
    theirs["annotations"] = json!({
        "mimeo.dev/rule": "ClusterReplication/other", "mimeo.dev/cluster": "cluster",
        "mimeo.dev/checksum": create.rendering.as_ref().unwrap().checksum.to_string(),
    });
    scene.show(&create, theirs.clone());
    assert!(scene.next().is_none());
    let gone = Rule {
        generation: 2,
        ..rule("other", "home", &json!({"targets": elsewhere}))
    };
    apply(&mut scene, gone);
    assert!(scene.next().is_none());
    scene.now += Duration::from_secs(11);
    let delete = scene.next().unwrap();
    assert!(matches!(delete.verb, Verb::Delete(_, 31)));
    scene.show(&delete, going(theirs, "32"));
    scene.change(&once());
    let next = scene.next();
    assert!(next.is_none(), "{next:?}");
}

/// No other process could learn from the cluster that such an object existed.
#[test]
fn what_goes_while_its_rule_rests_was_not_created_once() {
    let mut scene = scene(Role::Keeper, &json!({}));
    scene.created();
    scene.change(&json!({"strategy": "CreateOnce", "suspend": true}));
    assert!(scene.next().is_none());
    scene.removed();
    let look = scene.expect(Verb::Look, None);
    scene.answer(&look, Outcome::Absent);
    assert!(scene.next().is_none() && scene.noted.is_empty());
    assert_eq!(scene.plan().create, 1);
    scene.change(&once());
    scene.expect(Verb::Create, Some(Why::Missing));
    assert!(scene.noted.is_empty());
}

#[test]
fn a_rule_that_comes_to_keep_its_copies_brings_them_back_and_forgets() {
    let mut scene = scene(Role::Keeper, &once());
    scene.created();
    scene.note();
    scene.removed();
    assert!(scene.next().is_none());
    scene.change(&json!({}));
    let create = scene.expect(Verb::Create, Some(Why::Vanished));
    assert_eq!(scene.noted, [""]);
    scene.taken(&create);
}

/// A write that changes nothing causes no watch event. The next record would wait for that event.
#[test]
fn what_was_never_noted_is_forgotten_without_a_write() {
    let mut scene = scene(Role::Keeper, &once());
    scene.created();
    let noting = scene.noting.take().unwrap();
    scene.engine.at(NOW).answered(&noting, Answer::Failed);
    scene.noted.clear();
    scene.change(&json!({}));
    assert!(scene.next().is_some(), "the copy is another one now");
    scene.now += Duration::from_secs(2);
    assert!(scene.next().is_none());
    assert_eq!(scene.noted, [""; 0]);
}

#[test]
fn a_suspended_rule_notes_nothing() {
    let mut scene = scene(
        Role::Keeper,
        &json!({"strategy": "CreateOnce", "suspend": true}),
    );
    let look = scene.expect(Verb::Look, None);
    scene.show(&look, foreign());
    assert!(scene.next().is_none() && scene.noted.is_empty());
    assert_eq!(scene.plan(), Plan::default());
}

/// The last queued copy of the namespace needs no request, so no answer arrives after it.
#[test]
fn what_was_created_once_is_noted_though_what_was_queued_with_it_lost_its_source() {
    let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": name});
    let sources = json!([secret("x"), secret("y")]);
    let targets = json!([{"namespaces": ["team"], "copyName": "$(source.name)"}]);
    let mut scene = scene(
        Role::Keeper,
        &json!({"strategy": "CreateOnce", "sources": sources, "targets": targets}),
    );
    let object = json!({"metadata": {"resourceVersion": "9"}, "type": "Opaque"});
    let other = SourceRef::named(
        GroupVersionKind::parse("v1", "Secret").unwrap(),
        "home",
        "y",
    );
    scene
        .engine
        .at(NOW)
        .source(&other, Some(Decoded::Whole(object)));
    let create = scene.expect(Verb::Create, Some(Why::Missing));
    scene.taken(&create);
    scene.engine.at(NOW).source(&other, None);
    assert!(scene.next().is_none());
    assert_eq!(scene.noted.len(), 1);
}
