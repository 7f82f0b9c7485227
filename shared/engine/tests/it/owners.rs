//! Copies with fields that other managers own, or with cleared `managedFields`: the requests that
//! restore them.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use mimeo_engine::{Action, Engine, EventReason, Notice, Request, Settings, Verb, copy::Why};
use mimeo_model::{
    id::RuleKind,
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    meta::Uid,
    outcome::{Failure, FailureReason, Outcome},
    role::Role,
    rule::Rule,
    source::SourceRef,
};
use serde_json::{Value, from_value, json};

const UID: &str = "00000000-0000-4000-8000-000000000002";

struct Scene {
    engine: Engine,
    source: SourceRef,
    now: Duration,
    /// resourceVersion and checksum of the copy.
    version: u64,
    checksum: String,
}

fn uid() -> Uid {
    Uid::parse(UID).unwrap()
}

fn gvk() -> GroupVersionKind {
    GroupVersionKind::parse("v1", "ConfigMap").unwrap()
}

fn entry(manager: &str, fields: &[&str]) -> Value {
    let operation = if manager == "mimeo" {
        "Apply"
    } else {
        "Update"
    };
    let fields: serde_json::Map<_, _> = fields
        .iter()
        .map(|field| (format!("f:{field}"), json!({})))
        .collect();
    json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": {"f:data": fields}})
}

fn ours() -> Value {
    entry("mimeo", &["a"])
}

impl Scene {
    /// A scene with one copy in namespace `team`, written by a rule with that spec.
    fn new(spec: &Value) -> Self {
        let now = Duration::from_secs(1);
        let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
        let source = SourceRef::named(gvk(), "home", "x");
        engine.at(now).namespace_applied(
            &from_value(json!({"name": "team", "uid": UID, "resourceVersion": "5"})).unwrap(),
        );
        engine.at(now).namespaces_listed(&["team".into()].into());
        engine.at(now).kinds_recorded(&BTreeSet::from([gvk()]));
        engine.at(now).kind(
            &gvk(),
            Known::Listed(Resource {
                gvk: gvk(),
                plural: "configmaps".into(),
                namespaced: true,
            }),
        );
        let mut scene = Self {
            engine,
            source,
            now,
            version: 10,
            checksum: String::new(),
        };
        scene.rule(1, spec);
        let id = "ClusterReplication/rule".parse().unwrap();
        scene
            .engine
            .at(now)
            .rules_known(RuleKind::ClusterReplication, Known::Listed(&[id].into()));
        scene
            .engine
            .at(now)
            .rules_known(RuleKind::Replication, Known::Unserved);
        let _ = scene.engine.demand();
        scene
            .engine
            .at(now)
            .copies_listing(&gvk().group_kind().into());
        scene
            .engine
            .at(now)
            .copies_known(&gvk().group_kind().into(), Known::Listed(6));
        scene.data("1");
        let create = scene.expect(Verb::Create, Why::Missing);
        scene.written(&create, &[ours()]);
        scene.rests();
        scene
    }

    fn rule(&mut self, generation: i64, spec: &Value) {
        let mut rule = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
            "metadata": {"name": "rule", "generation": generation, "uid": UID},
            "spec": {
                "sources": [{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "home", "name": "x"}],
                "targets": [{"namespaces": ["team"]}],
            },
        });
        rule["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().cloned().unwrap());
        let rule = Rule::parse(&from_value(rule).unwrap()).unwrap();
        self.engine
            .at(self.now)
            .rule_applied(rule.id.clone(), Ok(rule), None);
    }

    fn data(&mut self, value: &str) {
        let object = json!({"metadata": {"resourceVersion": value}, "data": {"a": value}});
        self.engine
            .at(self.now)
            .source(&self.source, Some(Decoded::Whole(object)));
    }

    fn next(&mut self) -> Option<Box<Request>> {
        loop {
            if let Action::Request(request) = self.engine.at(self.now).next_action()? {
                return Some(request);
            }
        }
    }

    /// Returns the next request, after any delay.
    fn at_last(&mut self) -> Box<Request> {
        loop {
            match self.next() {
                Some(request) => return request,
                None => self.now = self.engine.wake_at().unwrap(),
            }
        }
    }

    #[track_caller]
    fn expect(&mut self, verb: Verb, why: impl Into<Option<Why>>) -> Box<Request> {
        let request = self.next().expect("a request");
        assert_eq!((request.verb, request.why), (verb, why.into()));
        request
    }

    #[track_caller]
    fn rests(&mut self) {
        let request = self.next();
        assert!(request.is_none(), "{:?}", request.unwrap());
    }

    /// Changes the copy and returns its metadata.
    fn copy(&mut self, entries: &[Value]) -> ObjectMeta {
        self.version += 1;
        let meta = json!({
            "name": "x", "namespace": "team", "uid": UID, "resourceVersion": self.version.to_string(),
            "managedFields": entries, "labels": {"app.kubernetes.io/managed-by": "mimeo"},
            "annotations": {
                "mimeo.dev/rule": "ClusterReplication/rule", "mimeo.dev/cluster": "cluster",
                "mimeo.dev/source": self.source.to_string(), "mimeo.dev/checksum": self.checksum,
            },
        });
        from_value(meta).unwrap()
    }

    fn answer(&mut self, request: &Request, meta: ObjectMeta) {
        self.engine
            .at(self.now)
            .outcome(request, Outcome::Object(Box::new(meta)));
    }

    fn written(&mut self, request: &Request, entries: &[Value]) {
        self.checksum = request.rendering.as_ref().unwrap().checksum.to_string();
        let meta = self.copy(entries);
        self.answer(request, meta);
    }

    /// Another client changes the copy.
    fn show(&mut self, entries: &[Value]) {
        let meta = self.copy(entries);
        self.engine
            .at(self.now)
            .copy_applied(&gvk().group_kind(), &meta);
    }

    fn refuse(&mut self, request: &Request, reason: FailureReason) {
        let refused = Outcome::Refused(Failure {
            reason,
            message: "no".into(),
        });
        self.engine.at(self.now).outcome(request, refused);
    }

    fn claim(&self) -> Verb {
        Verb::Claim(uid(), self.version)
    }
}

/// The copy's annotation says so too, but any user can forge an annotation.
#[test]
fn whether_others_may_add_to_a_copy_its_rule_says_alone() {
    let added = || [ours(), entry("tool", &["b"])];
    let mut scene = Scene::new(&json!({"strategy": "Apply"}));
    let mut forged = scene.copy(&added());
    forged
        .annotations
        .as_mut()
        .unwrap()
        .insert("mimeo.dev/strategy".into(), "Replace".into());
    scene
        .engine
        .at(scene.now)
        .copy_applied(&gvk().group_kind(), &forged);
    scene.rests();
    scene.data("2");
    let apply = scene.expect(Verb::Apply(uid()), Why::Changed);
    scene.written(&apply, &added());
    scene.rule(2, &json!({"strategy": "Replace"}));
    let claim = scene.expect(scene.claim(), Why::Changed);
    assert!(claim.exclusive);
}

#[test]
fn what_was_added_before_a_rule_let_others_add_stays() {
    let mut scene = Scene::new(&json!({"strategy": "Replace"}));
    scene.rule(2, &json!({"strategy": "Replace", "suspend": true}));
    scene.show(&[ours(), entry("tool", &["b"])]);
    let learn = scene.expect(Verb::Learn(uid()), None);
    let correct = scene.copy(&[ours(), entry("tool", &["b"])]);
    scene.answer(&learn, correct);
    scene.rests();
    scene.rule(3, &json!({"strategy": "Apply"}));
    scene.expect(Verb::Apply(uid()), Why::Changed);
}

/// The refusal arrives before the watch shows that the other client has cleared the entries.
#[test]
fn a_copy_is_ours_by_its_uid_whatever_a_request_about_it_met() {
    let mut scene = Scene::new(&json!({}));
    scene.show(&[ours(), entry("tool", &["a"])]);
    scene.rests();
    scene.data("2");
    let claim = scene.expect(scene.claim(), Why::Changed);
    scene
        .engine
        .at(scene.now)
        .outcome(&claim, Outcome::Conflict);
    let look = scene.expect(Verb::Look, None);
    let cleared = scene.copy(&[]);
    scene.answer(&look, cleared);
    scene.expect(Verb::Apply(uid()), Why::Disowned);

    let mut scene = Scene::new(&json!({}));
    scene.rule(2, &json!({"targets": [{"namespaces": ["else"]}]}));
    scene.rests();
    scene.now += Duration::from_secs(20);
    let delete = scene.expect(Verb::Delete(uid(), scene.version), Why::Unmatched);
    scene
        .engine
        .at(scene.now)
        .outcome(&delete, Outcome::Conflict);
    let look = scene.expect(Verb::Look, None);
    let cleared = scene.copy(&[]);
    scene.answer(&look, cleared);
    scene.expect(Verb::Delete(uid(), scene.version), Why::Unmatched);
}

/// A claim sends the former content through admission. A policy may demand the new content by then.
#[test]
fn a_change_is_written_though_the_claim_before_it_is_refused() {
    for reason in [FailureReason::AdmissionDenied, FailureReason::Invalid] {
        let mut scene = Scene::new(&json!({}));
        scene.show(&[ours(), entry("tool", &["a"])]);
        scene.data("2");
        let claim = scene.expect(scene.claim(), Why::Changed);
        scene.refuse(&claim, reason);
        let apply = scene.expect(Verb::Apply(uid()), Why::Changed);
        scene.written(&apply, &[ours()]);
        scene.rests();
        let mut notices = scene.engine.notices().into_iter();
        let failed = notices.any(|notice| matches!(notice, Notice::Failed(_)));
        assert!(!failed, "{reason}");
    }
}

#[test]
fn what_is_told_of_a_write_does_not_depend_on_whether_its_watch_or_its_answer_is_quicker() {
    let synced = |scene: &mut Scene| {
        let wall = Timestamp::UNIX_EPOCH + scene.now;
        let status = scene.engine.at(scene.now).statuses(wall).pop();
        (
            wall,
            status
                .and_then(|status| status.status.last_sync_time)
                .map(|Time(at)| at),
        )
    };
    let mut scene = Scene::new(&json!({}));
    let (now, first) = synced(&mut scene);
    assert_eq!(first, Some(now));
    scene.now += Duration::from_mins(5);
    scene.show(&[entry("mimeo", &[]), entry("tool", &["a"])]);
    let apply = scene.expect(Verb::Apply(uid()), Why::Drifted);
    let right = scene.copy(&[ours()]);
    scene
        .engine
        .at(scene.now)
        .copy_applied(&gvk().group_kind(), &right);
    scene.rests();
    scene.answer(&apply, right);
    scene.rests();
    let (now, last) = synced(&mut scene);
    assert_eq!(last, Some(now));

    // No other client's object was taken: the object was a copy all along.
    scene.now += Duration::from_mins(5);
    let mut stripped = scene.copy(&[]);
    stripped.uid = Some("00000000-0000-4000-8000-000000000003".into());
    scene
        .engine
        .at(scene.now)
        .copy_applied(&gvk().group_kind(), &stripped);
    let other = Uid::parse(stripped.uid.as_deref().unwrap()).unwrap();
    let compare = scene.expect(Verb::Compare(other, scene.version), None);
    let ours = ObjectMeta {
        managed_fields: from_value(json!([ours()])).unwrap(),
        ..stripped
    };
    scene.answer(
        &compare,
        ObjectMeta {
            managed_fields: from_value(json!([self::ours(), entry("before-first-apply", &["a"])]))
                .unwrap(),
            ..ours.clone()
        },
    );
    let take = scene.expect(Verb::Take(other, scene.version), Why::Disowned);
    let taken = ObjectMeta {
        resource_version: Some("100".into()),
        ..ours
    };
    scene
        .engine
        .at(scene.now)
        .copy_applied(&gvk().group_kind(), &taken);
    scene.answer(&take, taken);
    let told = scene
        .engine
        .at(scene.now + Duration::from_mins(1))
        .event_updates();
    assert!(
        told.iter()
            .all(|one| one.reason != EventReason::CopyAdopted),
        "{told:?}"
    );
}

/// The pauses between repairs of a fight with another client.
struct Pauses {
    last: Duration,
    longest: Duration,
}

impl Pauses {
    fn since(now: Duration) -> Self {
        Self {
            last: now,
            longest: Duration::ZERO,
        }
    }

    /// Records a repair. The pause before it must not be shorter than the one before.
    #[track_caller]
    fn note(&mut self, now: Duration) {
        let pause = now.saturating_sub(self.last);
        assert!(pause >= self.longest, "{pause:?} after {:?}", self.longest);
        (self.last, self.longest) = (now, pause);
    }

    #[track_caller]
    fn reach_the_longest(&self) {
        assert!(self.longest >= Settings::new(Role::Keeper, "cluster").backoff_limit);
    }
}

#[test]
fn pauses_of_a_fight_grow_as_long_as_it_lasts() {
    let mut scene = Scene::new(&json!({}));
    let mut pauses = Pauses::since(scene.now);
    for _ in 0..20 {
        scene.show(&[entry("mimeo", &[]), entry("tool", &["a"])]);
        let apply = scene.at_last();
        pauses.note(scene.now);
        scene.written(&apply, &[ours()]);
    }
    pauses.reach_the_longest();
}

/// The case: a tool applies an object that it read long ago, with all its annotations.
#[test]
fn who_writes_an_old_copy_again_and_again_is_answered_after_a_pause() {
    for strategy in ["Apply", "Replace"] {
        let mut scene = Scene::new(&json!({"strategy": strategy}));
        let old = scene.checksum.clone();
        scene.data("2");
        let apply = scene.expect(Verb::Apply(uid()), Why::Changed);
        scene.written(&apply, &[ours()]);
        let mut pauses = Pauses::since(scene.now);
        for _ in 0..20 {
            let new = std::mem::replace(&mut scene.checksum, old.clone());
            scene.show(&[entry("mimeo", &[]), entry("tool", &["a"])]);
            let first = scene.at_last();
            pauses.note(scene.now);
            let apply = match first.verb {
                Verb::Claim(..) => {
                    let claimed = scene.copy(&[ours()]);
                    scene.answer(&first, claimed);
                    scene.expect(Verb::Apply(uid()), Why::Drifted)
                }
                _ => first,
            };
            assert_eq!(apply.why, Some(Why::Drifted));
            scene.written(&apply, &[ours()]);
            assert_eq!(scene.checksum, new);
        }
        pauses.reach_the_longest();
        // Once the other client stops, its earlier writes don't delay changes of the source.
        scene.now += Duration::from_hours(1);
        scene.rests();
        scene.data("3");
        scene.expect(Verb::Apply(uid()), Why::Changed);
    }
}

/// No watch shows the copy meanwhile.
#[test]
fn who_hides_a_copy_before_he_writes_over_it_is_answered_after_a_pause_too() {
    let mut scene = Scene::new(&json!({}));
    let old = scene.checksum.clone();
    scene.data("2");
    let apply = scene.expect(Verb::Apply(uid()), Why::Changed);
    scene.written(&apply, &[ours()]);
    let mut pauses = Pauses::since(scene.now);
    for _ in 0..20 {
        let hidden = scene.copy(&[ours()]);
        scene
            .engine
            .at(scene.now)
            .copy_gone(&gvk().group_kind(), &hidden);
        scene.checksum.clone_from(&old);
        scene.show(&[entry("mimeo", &[]), entry("tool", &["a"])]);
        let apply = scene.at_last();
        assert_eq!(apply.why, Some(Why::Drifted));
        pauses.note(scene.now);
        scene.written(&apply, &[ours()]);
    }
    pauses.reach_the_longest();
}

/// The watch shows the other client's write before the answer to Mimeo's own write arrives.
#[test]
fn an_answer_that_comes_late_makes_nobody_elses_writing_ours() {
    let mut scene = Scene::new(&json!({}));
    let old = scene.checksum.clone();
    scene.data("2");
    let apply = scene.expect(Verb::Apply(uid()), Why::Changed);
    scene.checksum = apply.rendering.as_ref().unwrap().checksum.to_string();
    let written = scene.copy(&[ours()]);
    scene.checksum = old;
    scene.show(&[entry("mimeo", &[]), entry("tool", &["a"])]);
    scene.answer(&apply, written);
    scene.expect(Verb::Apply(uid()), Why::Drifted);
}

/// Each time the other client writes before the write that follows Mimeo's claim.
#[test]
fn who_adds_to_an_exclusive_copy_again_and_again_is_answered_after_a_pause() {
    let mut scene = Scene::new(&json!({"strategy": "Replace"}));
    let added = || [ours(), entry("tool", &["b"])];
    scene.show(&added());
    for _ in 0..3 {
        let claim = scene.expect(scene.claim(), Why::Shared);
        let claimed = scene.copy(&[entry("mimeo", &["a", "b"])]);
        scene.answer(&claim, claimed);
        scene.show(&added());
        let apply = scene.expect(Verb::Apply(uid()), Why::Shared);
        scene.written(&apply, &added());
        scene.rests();
        scene.now = scene.engine.wake_at().unwrap();
    }
}
