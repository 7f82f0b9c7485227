//! Events about rules: their contents, how often they are written, and how few they are.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Status};
use mimeo_engine::{
    Action, Answer, Engine, EventReason, EventUpdate, Request, Settings, Task, Verb,
};
use mimeo_model::{
    id::RuleKind,
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    outcome::{Failure, FailureReason, Outcome},
    role::Role,
    rule::Rule,
    source::SourceRef,
};
use serde_json::{Value, from_value, json};

use crate::common::{gone, uid};

fn secrets() -> Resource {
    Resource {
        gvk: GroupVersionKind::parse("v1", "Secret").unwrap(),
        plural: "secrets".into(),
        namespaced: true,
    }
}

/// Rules that copy one Secret into the same namespaces, each under its own copy name, and a clock.
struct World {
    engine: Engine,
    sources: Vec<SourceRef>,
    now: Duration,
    written: usize,
}

impl World {
    fn new(role: Role, rules: usize, namespaces: usize) -> Self {
        let now = Duration::from_secs(1);
        let mut engine = Engine::new(Settings::new(role, "cluster"));
        let (mut sources, mut ids) = (Vec::new(), BTreeSet::new());
        for number in 0..rules {
            let source = json!({"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": format!("s{number}")});
            let rule = json!({
                "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
                "metadata": {"name": format!("rule-{number}"), "uid": uid(number)},
                "spec": {"sources": [source], "targets": [{"namespaces": ["team-*"]}]},
            });
            let rule = Rule::parse(&from_value(rule).unwrap()).unwrap();
            sources.push(rule.sources[0].clone());
            ids.insert(rule.id.clone());
            engine.at(now).rule_applied(rule.id.clone(), Ok(rule), None);
        }
        engine
            .at(now)
            .rules_known(RuleKind::ClusterReplication, Known::Listed(&ids));
        engine
            .at(now)
            .rules_known(RuleKind::Replication, Known::Unserved);
        let mut listed: BTreeSet<Box<str>> = BTreeSet::new();
        for number in 0..namespaces {
            let name = format!("team-{number:05}");
            let meta = json!({"name": name, "uid": uid(1000 + number), "resourceVersion": "5"});
            engine.at(now).namespace_applied(&from_value(meta).unwrap());
            listed.insert(name.into());
        }
        engine.at(now).namespaces_listed(&listed);
        let kind = secrets().gvk;
        engine.at(now).kinds_recorded(&[kind.clone()].into());
        engine.at(now).kind(&kind, Known::Listed(secrets()));
        let _ = engine.demand();
        engine.at(now).copies_listing(&kind.group_kind().into());
        engine
            .at(now)
            .copies_known(&kind.group_kind().into(), Known::Listed(6));
        let mut world = Self {
            engine,
            sources,
            now,
            written: 0,
        };
        for number in 0..rules {
            world.source(number, "a");
        }
        world
    }

    fn source(&mut self, number: usize, type_: &str) {
        let object = json!({"metadata": {"resourceVersion": "9"}, "type": type_});
        self.engine
            .at(self.now)
            .source(&self.sources[number], Some(Decoded::Whole(object)));
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// Answers every pending request.
    fn answer(&mut self, outcome: impl Fn(&Request) -> Option<Outcome>) {
        while let Some(action) = self.engine.at(self.now).next_action() {
            match action {
                Action::Request(request) => {
                    let outcome = outcome(&request).unwrap_or_else(|| self.written(&request));
                    self.engine.at(self.now).outcome(&request, outcome);
                }
                Action::Job(job) => {
                    if matches!(job.task, Task::ConfirmSource(_)) {
                        let read = Answer::Presence(gone(Some(u32::MAX)));
                        self.engine.at(self.now).answered(&job, read);
                    }
                }
            }
        }
    }

    fn written(&mut self, request: &Request) -> Outcome {
        self.written += 1;
        let object = match request.verb {
            Verb::Apply(uid) | Verb::Learn(uid) => uid.to_string(),
            _ => uid(100_000 + self.written),
        };
        let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}, "time": "2026-01-02T00:00:00Z"});
        let meta = json!({
            "name": &*request.name, "namespace": &*request.namespace,
            "uid": object, "resourceVersion": (10 * (1 + self.written)).to_string(),
            "managedFields": [entry], "labels": {"app.kubernetes.io/managed-by": "mimeo"},
            "annotations": {
                "mimeo.dev/rule": request.rule.as_ref().unwrap().to_string(), "mimeo.dev/cluster": "cluster",
                "mimeo.dev/source": self.sources[0].to_string(),
                "mimeo.dev/checksum": request.rendering.as_ref().unwrap().checksum.to_string(),
            },
        });
        Outcome::Object(Box::new(from_value(meta).unwrap()))
    }

    /// Carries out every pending request, and returns the created objects.
    fn created(&mut self) -> Vec<ObjectMeta> {
        let mut created = Vec::new();
        while let Some(action) = self.engine.at(self.now).next_action() {
            let Action::Request(request) = action else {
                continue;
            };
            let outcome = self.written(&request);
            if let (Verb::Create, Outcome::Object(meta)) = (request.verb, &outcome) {
                created.push(ObjectMeta::clone(meta));
            }
            self.engine.at(self.now).outcome(&request, outcome);
        }
        created
    }

    fn announced(&mut self) -> Vec<EventUpdate> {
        self.engine.at(self.now).event_updates()
    }
}

fn refused(reason: FailureReason) -> Outcome {
    Outcome::Refused(Failure {
        reason,
        message: "not you".into(),
    })
}

fn kinds(announced: &[EventUpdate]) -> Vec<&str> {
    announced
        .iter()
        .map(|one| one.regarding.kind.as_deref().unwrap())
        .collect()
}

#[test]
fn a_rule_that_fails_everywhere_is_one_event_and_ten_more() {
    let mut world = World::new(Role::Keeper, 1, 5000);
    world.answer(|_| Some(refused(FailureReason::Forbidden)));
    assert_eq!(world.announced(), [], "collected for a moment");
    let due = world.engine.events_due().unwrap();
    assert_eq!(due, world.now + Duration::from_secs(5));
    world.now = due;
    let announced = world.announced();
    let mut want = vec!["ClusterReplication"];
    want.extend(["Secret"; 10]);
    assert_eq!(kinds(&announced), want);
    let rule = &announced[0];
    assert_eq!(
        (rule.reason.type_(), rule.reason.as_str(), rule.count),
        ("Warning", "CopyFailed", 5000)
    );
    assert_eq!(
        rule.note,
        "5000 copies in 5000 namespaces, first team-00000, team-00001, team-00002: Forbidden: not \
         you"
    );
    assert_eq!(rule.regarding.uid, Some(uid(0)));
    let copy = &announced[1];
    assert_eq!((copy.reason.as_str(), copy.count), ("CopyFailed", 1));
    assert_eq!(
        copy.note,
        "ClusterReplication/rule-0: Secret s0: Forbidden: not you"
    );
    let about = &copy.regarding;
    assert_eq!(
        (about.api_version.as_deref(), about.name.as_deref()),
        (Some("v1"), Some("s0"))
    );
    assert_eq!(
        (about.namespace.as_deref(), &about.uid),
        (Some("team-00000"), &None),
        "there is no such object"
    );
    assert_eq!(copy.related.as_ref(), Some(&rule.regarding));
    let names: BTreeSet<_> = announced.iter().map(|one| one.name.clone()).collect();
    assert_eq!(names.len(), 11);

    // A failure that repeats for the same reason causes no further Event for hours.
    for _ in 0..10 {
        world.wait(600);
        world.answer(|_| Some(refused(FailureReason::Forbidden)));
        assert_eq!(
            (world.announced(), world.engine.events_due()),
            (vec![], None)
        );
    }
}

#[test]
fn a_topic_is_told_once_a_minute_and_continues_its_series() {
    let mut world = World::new(Role::Keeper, 1, 3);
    let mut told: Vec<EventUpdate> = Vec::new();
    // A source that changes all the time and can never be copied.
    for second in 0..300 {
        world.source(0, &format!("type-{second}"));
        world.answer(|_| Some(refused(FailureReason::Invalid)));
        told.extend(
            world
                .announced()
                .into_iter()
                .filter(|one| one.related.is_none()),
        );
        world.wait(1);
    }
    assert_eq!(told.len(), 5);
    assert!(
        told.iter()
            .all(|one| one.name == told[0].name && one.count == 3),
        "{told:#?}"
    );
}

#[test]
fn a_restart_continues_the_series_and_another_reason_begins_one() {
    let names = |reason: FailureReason| {
        let mut world = World::new(Role::Keeper, 2, 3);
        world.answer(|_| Some(refused(reason)));
        world.wait(5);
        world
            .announced()
            .into_iter()
            .map(|one| one.name)
            .collect::<BTreeSet<_>>()
    };
    let (first, restarted, other) = (
        names(FailureReason::Forbidden),
        names(FailureReason::Forbidden),
        names(FailureReason::Invalid),
    );
    assert_eq!((first.len(), &first), (8, &restarted));
    assert!(first.is_disjoint(&other));
}

/// While a retry asks whether the object in the way still exists, an Event about it has the same
/// name as before, so it continues the series.
#[test]
fn an_object_in_the_way_is_the_same_while_a_retry_is_in_flight() {
    let announced = |retried: bool| {
        let mut world = World::new(Role::Keeper, 1, 1);
        let foreign = ObjectMeta {
            name: Some("s0".into()),
            namespace: Some("team-00000".into()),
            uid: Some(uid(7)),
            resource_version: Some("6".into()),
            ..ObjectMeta::default()
        };
        world.answer(|request| match request.verb {
            Verb::Create => Some(Outcome::Conflict),
            Verb::Look => Some(Outcome::Object(Box::new(foreign.clone()))),
            verb => panic!("{verb:?}"),
        });
        world.wait(5);
        if retried {
            let action = world.engine.at(world.now).next_action();
            assert!(
                matches!(&action, Some(Action::Request(request)) if request.verb == Verb::Create),
                "{action:?}"
            );
        }
        world.announced()
    };
    let quiet = announced(false);
    assert_eq!(kinds(&quiet), ["ClusterReplication", "Secret"]);
    assert_eq!(quiet[1].regarding.uid, Some(uid(7)));
    assert_eq!(announced(true), quiet);
}

#[test]
fn what_has_passed_is_not_told() {
    let mut world = World::new(Role::Keeper, 1, 3);
    world.answer(|_| Some(refused(FailureReason::Timeout)));
    world.wait(4);
    world.answer(|_| None);
    world.wait(60);
    assert_eq!(
        (world.announced(), world.engine.events_due()),
        (vec![], None)
    );
}

#[test]
fn of_a_hundred_failing_rules_each_gets_its_turn() {
    let mut world = World::new(Role::Keeper, 100, 20);
    world.answer(|_| Some(refused(FailureReason::Forbidden)));
    world.wait(5);
    let mut all = world.announced();
    let rules = |all: &[EventUpdate]| all.iter().filter(|one| one.related.is_none()).count();
    assert_eq!(all.len(), 50);
    assert_eq!(rules(&all), 50, "Events about rules come first");
    let begun = world.now;
    while let Some(due) = world.engine.events_due() {
        assert!(due > world.now, "nothing is due that can't be told");
        world.now = due;
        all.extend(world.announced());
        let refilled = world.now.saturating_sub(begun).as_secs() / 6;
        assert!(all.len() as u64 <= 50 + refilled);
    }
    assert_eq!(rules(&all), 100);
}

#[test]
fn a_copy_that_was_made_anew_is_told() {
    let mut world = World::new(Role::Keeper, 1, 1);
    world.answer(|_| None);
    world.source(0, "b");
    let cause =
        json!({"field": "type", "message": "Invalid value: \"hunter2\": field is immutable"});
    let status: Value = json!({"code": 422, "reason": "Invalid", "message": "hunter2", "details": {"causes": [cause]}});
    let status: Status = from_value(status).unwrap();
    world.answer(|request| match request.verb {
        Verb::Apply(_) => Some(Outcome::of_error(
            422,
            &status,
            None,
            &request.resource,
            &request.name,
        )),
        Verb::Delete(..) => Some(Outcome::Absent),
        _ => None,
    });
    assert_eq!(world.written, 2);
    world.wait(5);
    let announced = world.announced();
    assert_eq!(kinds(&announced), ["ClusterReplication", "Secret"]);
    for one in &announced {
        assert_eq!(
            (one.reason.type_(), one.reason.as_str()),
            ("Normal", "CopyRecreated")
        );
        assert!(
            one.note.contains("Secret s0") && !one.note.contains("hunter2"),
            "{}",
            one.note
        );
    }
}

#[test]
fn an_edit_that_was_reverted_is_told_with_who_made_it() {
    let mut world = World::new(Role::Keeper, 1, 2);
    let mut written = world.created();
    world.wait(60);
    let editors = [Some("kubectl-edit"), None];
    for (meta, editor) in written.iter_mut().zip(editors) {
        meta.resource_version = Some("35".into());
        let entries = meta.managed_fields.as_mut().unwrap();
        entries[0].fields_v1 = from_value(json!({"f:data": {}})).unwrap();
        let theirs = editor.map(|manager| {
            json!({
                "manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:data": {"f:token": {}}}, "time": "2026-01-03T00:00:00Z",
            })
        });
        entries.extend(theirs.map(|entry| from_value(entry).unwrap()));
        world
            .engine
            .at(world.now)
            .copy_applied(&secrets().gvk.group_kind(), meta);
    }
    world.answer(|_| None);
    world.wait(5);
    let announced = world.announced();
    assert_eq!(
        kinds(&announced),
        ["ClusterReplication", "Secret", "Secret"]
    );
    let word = |one: &EventUpdate| (one.reason.type_(), one.reason.as_str());
    assert!(
        announced
            .iter()
            .all(|one| word(one) == ("Warning", "EditReverted")),
        "{announced:#?}"
    );
    let told = "ClusterReplication/rule-0: Secret s0: an edit was reverted; to change the copy, \
        change its source v1/Secret/home/s0";
    assert_eq!(
        announced[1].note,
        format!("{told}; last written by field manager \"kubectl-edit\"")
    );
    assert_eq!(
        announced[1].regarding.uid, written[0].uid,
        "of the object that was edited"
    );
    assert_eq!(
        announced[2].note, told,
        "whoever removes a field leaves no entry"
    );
    assert!(
        !announced[0].note.contains("kubectl-edit"),
        "it is the copy's namespace's"
    );

    // A copy that changes because its source changed is no edit by a user.
    world.source(0, "b");
    world.answer(|_| None);
    world.wait(60);
    assert_eq!(world.announced(), []);
}

/// The watch of copies selects by a label. It shows an object without the label as deleted.
#[test]
fn a_copy_that_was_deleted_is_told_and_one_that_lost_its_label_is_an_edit() {
    let mut world = World::new(Role::Keeper, 1, 2);
    let mut written = world.created();
    world.wait(60);
    for meta in &mut written {
        meta.resource_version = Some("35".into());
        let kind = secrets().gvk.group_kind();
        world.engine.at(world.now).copy_gone(&kind, meta);
    }
    // The second object still exists.
    world.answer(|request| {
        let taken = request.verb == Verb::Create && &*request.namespace != "team-00000";
        taken.then_some(Outcome::Conflict)
    });
    world.wait(5);
    let announced = world.announced();
    let told = |reason: EventReason| -> Vec<&EventUpdate> {
        announced
            .iter()
            .filter(|one| one.reason == reason)
            .collect()
    };
    let restored = told(EventReason::CopyRestored);
    assert_eq!((restored.len(), announced.len()), (2, 4), "{announced:#?}");
    assert_eq!(restored[1].reason.type_(), "Warning");
    assert_eq!(
        restored[1].note,
        "ClusterReplication/rule-0: Secret s0: another client deleted it, and Mimeo created it \
         again; to remove the copy for good, have the rule leave this namespace out"
    );
    let places = |told: Vec<&EventUpdate>| told[1].regarding.namespace.clone().unwrap();
    assert_eq!(places(restored), "team-00000");
    assert_eq!(places(told(EventReason::EditReverted)), "team-00001");
}

/// Whoever deletes a namespace means its copies, too.
#[test]
fn what_goes_with_its_namespace_is_not_told() {
    let mut world = World::new(Role::Keeper, 1, 1);
    let mut written = world.created();
    let anew = json!({"name": "team-00000", "uid": uid(7777), "resourceVersion": "25"});
    world
        .engine
        .at(world.now)
        .namespace_applied(&from_value(anew).unwrap());
    for meta in &mut written {
        meta.resource_version = Some("26".into());
        let kind = secrets().gvk.group_kind();
        world.engine.at(world.now).copy_gone(&kind, meta);
    }
    let before = world.written;
    world.answer(|request| (request.verb == Verb::Look).then_some(Outcome::Absent));
    assert_eq!(world.written, before + 1);
    world.wait(60);
    assert_eq!(world.announced(), []);
}

/// The API server's messages about a Secret may quote its content.
#[test]
fn no_words_of_the_server_about_a_secret_are_told() {
    let mut world = World::new(Role::Keeper, 1, 1);
    let status: Status =
        from_value(json!({"code": 422, "reason": "Invalid", "message": "data: hunter2"})).unwrap();
    world.answer(|request| {
        Some(Outcome::of_error(
            422,
            &status,
            None,
            &request.resource,
            &request.name,
        ))
    });
    world.wait(5);
    let announced = world.announced();
    assert_eq!(announced.len(), 2);
    assert!(
        announced.iter().all(|one| one
            .note
            .ends_with("Invalid: the API server answered 422 Invalid")),
        "{announced:#?}"
    );
}

#[test]
fn a_source_that_went_is_told_if_there_are_copies_of_it() {
    let mut world = World::new(Role::Keeper, 1, 3);
    world.answer(|_| None);
    world.engine.at(world.now).source(&world.sources[0], None);
    world.wait(5);
    let announced = world.announced();
    assert_eq!(kinds(&announced), ["ClusterReplication"]);
    assert_eq!(
        (announced[0].reason.type_(), announced[0].reason.as_str()),
        ("Warning", "SourceGone")
    );
    assert_eq!(
        announced[0].note,
        "v1/Secret/home/s0 is gone; it is the source of 3 copies of ClusterReplication/rule-0; \
         the rule's whenSourceDeleted is Delete"
    );

    let mut back = World::new(Role::Keeper, 1, 3);
    back.answer(|_| None);
    back.engine.at(back.now).source(&back.sources[0], None);
    back.source(0, "a");
    back.wait(5);
    assert_eq!(back.announced(), [], "it is back");

    let mut never = World::new(Role::Keeper, 1, 3);
    never.engine.at(never.now).source(&never.sources[0], None);
    never.wait(5);
    assert_eq!(never.announced(), [], "nothing was copied");
}

#[test]
fn of_a_source_that_a_rule_names_no_more_nothing_is_told() {
    let mut world = World::new(Role::Keeper, 1, 3);
    world.answer(|_| None);
    world.engine.at(world.now).source(&world.sources[0], None);
    let source =
        json!({"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": "another"});
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
        "metadata": {"name": "rule-0", "uid": uid(0), "generation": 2},
        "spec": {"sources": [source], "targets": [{"namespaces": ["team-*"]}]},
    });
    let rule = Rule::parse(&from_value(rule).unwrap()).unwrap();
    world
        .engine
        .at(world.now)
        .rule_applied(rule.id.clone(), Ok(rule), None);
    world.wait(5);
    assert_eq!(
        (world.announced(), world.engine.events_due()),
        (vec![], None)
    );
}

#[test]
fn deletions_that_are_held_are_told_once() {
    let mut world = World::new(Role::Keeper, 1, 40);
    world.answer(|_| None);
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
        "metadata": {"name": "rule-0", "uid": uid(0), "generation": 2},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": "s0"}],
            "targets": [{"namespaces": ["team-00001"]}],
        },
    });
    let rule = Rule::parse(&from_value(rule).unwrap()).unwrap();
    world
        .engine
        .at(world.now)
        .rule_applied(rule.id.clone(), Ok(rule), None);
    let mut told = Vec::new();
    for _ in 0..60 {
        world.answer(|request| panic!("{request:?}"));
        told.extend(world.announced());
        world.wait(5);
    }
    assert_eq!(
        kinds(&told),
        [&["ClusterReplication"][..], &["Secret"; 10]].concat()
    );
    assert!(
        told.iter()
            .all(|one| one.reason == EventReason::DeletionHeld),
        "{told:#?}"
    );
    assert!(
        told[0].note.starts_with("Mimeo does not delete 39 copies"),
        "{}",
        told[0].note
    );
    assert_eq!(told[1].regarding.namespace.as_deref(), Some("team-00000"));
    assert_eq!(
        told[1].note,
        "ClusterReplication/rule-0: Secret s0: is lost, with many others in a short time, and \
         stays until a person confirms the deletion"
    );
}

#[test]
fn two_rules_for_one_cell_are_told_by_the_one_that_lost() {
    let mut world = World::new(Role::Keeper, 1, 2);
    world.answer(|_| None);
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "z", "uid": uid(7)},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "other", "name": "s0"}],
            "targets": [{"namespaces": ["team-*"]}],
        },
    });
    let rule = Rule::parse(&from_value(rule).unwrap()).unwrap();
    world
        .engine
        .at(world.now)
        .rule_applied(rule.id.clone(), Ok(rule), None);
    world.answer(|_| None);
    world.wait(5);
    let announced = world.announced();
    assert_eq!(
        kinds(&announced),
        ["ClusterReplication", "Secret", "Secret"]
    );
    assert_eq!(announced[0].regarding.name.as_deref(), Some("z"));
    assert!(
        announced[0]
            .note
            .ends_with("RuleConflict: ClusterReplication/rule-0 has this copy"),
        "{}",
        announced[0].note
    );
}

/// Many webhook replicas would send the same Event. A standby doesn't know which Events the leader
/// has sent.
#[test]
fn only_the_reconciler_that_leads_tells_anything() {
    let mut injector = World::new(Role::Injector, 1, 1);
    injector
        .engine
        .at(injector.now)
        .source(&injector.sources[0], None);
    injector.answer(|_| Some(refused(FailureReason::Forbidden)));
    injector.wait(5);
    assert_eq!(
        (injector.announced(), injector.engine.events_due()),
        (vec![], None)
    );

    let mut standby = World::new(Role::Keeper, 1, 3);
    standby.answer(|_| None);
    standby
        .engine
        .at(standby.now)
        .source(&standby.sources[0], None);
    standby.engine.at(standby.now).rest();
    standby.wait(5);
    assert_eq!(
        (standby.announced(), standby.engine.events_due()),
        (vec![], None)
    );
}
