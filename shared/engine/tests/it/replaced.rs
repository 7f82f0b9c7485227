//! Copies that the API server does not allow to be changed as needed.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Status};
use mimeo_engine::{Action, Engine, Request, Settings, Task, Verb};
use mimeo_model::{
    id::RuleKind,
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    outcome::{FailureReason, Outcome},
    role::Role,
    rule::Rule,
    source::SourceRef,
};
use serde_json::{Value, from_value, json};

use crate::common::{fails, uid};

const NOW: Duration = Duration::from_secs(1);

struct Scene {
    engine: Engine,
    source: SourceRef,
}

/// A rule that copies one object of this kind into namespace `team`, which is still empty.
fn scene(role: Role, api_version: &str, kind: &str, plural: &str) -> Scene {
    let gvk = GroupVersionKind::parse(api_version, kind).unwrap();
    let source = json!({"apiVersion": api_version, "kind": kind, "namespace": "home", "name": "x"});
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "rule"},
        "spec": {"sources": [source], "targets": [{"namespaces": ["team"]}]},
    });
    let rule = Rule::parse(&from_value(rule).unwrap()).unwrap();
    let (id, source) = (rule.id.clone(), rule.sources[0].clone());
    let mut engine = Engine::new(Settings::new(role, "cluster"));
    engine.at(NOW).rule_applied(id.clone(), Ok(rule), None);
    engine
        .at(NOW)
        .rules_known(RuleKind::ClusterReplication, Known::Listed(&[id].into()));
    engine
        .at(NOW)
        .rules_known(RuleKind::Replication, Known::Unserved);
    let mut namespace = json!({"name": "team", "uid": uid(1), "resourceVersion": "5"});
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
            plural: plural.into(),
            namespaced: true,
        }),
    );
    let _ = engine.demand();
    engine.at(NOW).copies_listing(&gvk.group_kind().into());
    engine
        .at(NOW)
        .copies_known(&gvk.group_kind().into(), Known::Listed(6));
    Scene { engine, source }
}

/// The copy that this request writes.
fn copy(request: &Request, number: u32) -> ObjectMeta {
    let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
    let checksum = request.rendering.as_ref().unwrap().checksum.to_string();
    let meta = json!({
        "name": "x", "namespace": "team", "uid": uid(number), "resourceVersion": (10 + number).to_string(),
        "managedFields": [entry], "labels": {"app.kubernetes.io/managed-by": "mimeo"},
        "annotations": {
            "mimeo.dev/rule": "ClusterReplication/rule", "mimeo.dev/cluster": "cluster", "mimeo.dev/checksum": checksum,
        },
    });
    from_value(meta).unwrap()
}

impl Scene {
    fn source_is(&mut self, type_: &str) {
        let object = json!({"metadata": {"resourceVersion": "9"}, "type": type_});
        self.engine
            .at(NOW)
            .source(&self.source, Some(Decoded::Whole(object)));
    }

    fn next(&mut self) -> Option<Box<Request>> {
        loop {
            match self.engine.at(NOW).next_action()? {
                Action::Request(request) => return Some(request),
                Action::Job(job) if matches!(job.task, Task::RemoveLabel { .. }) => return None,
                Action::Job(_) => {}
            }
        }
    }

    /// The copy is written, and then the source changes. Returns the request that changes the copy.
    fn changed(&mut self) -> Box<Request> {
        self.source_is("a");
        let create = self.next().unwrap();
        assert_eq!(create.verb, Verb::Create);
        self.written(&create, 2);
        self.source_is("b");
        let apply = self.next().unwrap();
        assert!(matches!(apply.verb, Verb::Apply(_)), "{:?}", apply.verb);
        apply
    }

    fn written(&mut self, request: &Request, number: u32) {
        self.engine
            .at(NOW)
            .outcome(request, Outcome::Object(Box::new(copy(request, number))));
    }

    /// Refuses the request with the API server's message for this kind.
    fn refuse(&mut self, request: &Request) {
        let cause = match &*self.source.gvk.kind {
            "ConfigMap" => {
                json!({"field": "data", "message": "Forbidden: field is immutable when `immutable` \
                    is set"})
            }
            "RoleBinding" => {
                json!({"field": "roleRef", "message": "Invalid value: {\"name\":\"b\"}: cannot \
                    change roleRef"})
            }
            _ => json!({"field": "type", "message": "Invalid value: \"b\": field is immutable"}),
        };
        let status: Value =
            json!({"code": 422, "reason": "Invalid", "details": {"causes": [cause]}});
        let status: Status = from_value(status).unwrap();
        let refused = Outcome::of_error(422, &status, None, &request.resource, &request.name);
        self.engine.at(NOW).outcome(request, refused);
    }
}

#[test]
fn a_copy_that_cannot_be_changed_is_deleted_and_made_anew() {
    for (api_version, kind, plural) in [
        ("v1", "Secret", "secrets"),
        ("v1", "ConfigMap", "configmaps"),
        (
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            "rolebindings",
        ),
    ] {
        let mut scene = scene(Role::Keeper, api_version, kind, plural);
        let apply = scene.changed();
        scene.refuse(&apply);
        let delete = scene.next().unwrap();
        assert!(
            matches!(delete.verb, Verb::Delete(uid, 12) if uid.to_string() == self::uid(2)),
            "{kind}"
        );
        scene.engine.at(NOW).outcome(&delete, Outcome::Absent);
        let create = scene.next().unwrap();
        assert_eq!(create.verb, Verb::Create, "{kind}");
        scene.written(&create, 3);
        assert!(scene.next().is_none(), "{kind}");
    }
}

/// Another client removed the label that the watch of copies selects by. Then the source changed.
#[test]
fn a_copy_that_no_watch_shows_is_made_anew_as_well() {
    let mut scene = scene(Role::Keeper, "v1", "Secret", "secrets");
    scene.source_is("a");
    let create = scene.next().unwrap();
    scene.written(&create, 2);
    let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
    let hidden = json!({
        "name": "x", "namespace": "team", "uid": uid(2), "resourceVersion": "13", "managedFields": [entry],
    });
    let hidden: ObjectMeta = from_value(hidden).unwrap();
    scene
        .engine
        .at(NOW)
        .copy_gone(&scene.source.gvk.group_kind(), &hidden);
    scene.source_is("b");
    // A create request tells whether the copy is gone or only has no label. A read shows the
    // object.
    let create = scene.next().unwrap();
    assert_eq!(create.verb, Verb::Create);
    scene.engine.at(NOW).outcome(&create, Outcome::Conflict);
    let apply = scene.next().unwrap();
    assert!(matches!(apply.verb, Verb::Apply(_)), "{:?}", apply.verb);
    scene.refuse(&apply);
    let look = scene.next().unwrap();
    assert_eq!(look.verb, Verb::Look);
    scene
        .engine
        .at(NOW)
        .outcome(&look, Outcome::Object(Box::new(hidden)));
    let apply = scene.next().unwrap();
    assert!(matches!(apply.verb, Verb::Apply(_)), "{:?}", apply.verb);
    scene.refuse(&apply);
    let delete = scene.next().unwrap();
    assert!(matches!(delete.verb, Verb::Delete(uid, 13) if uid.to_string() == self::uid(2)));
    scene.engine.at(NOW).outcome(&delete, Outcome::Absent);
    let create = scene.next().unwrap();
    assert_eq!(create.verb, Verb::Create);
    scene.written(&create, 4);
    assert!(scene.next().is_none());
}

/// While Mimeo did not run, another client changed the copy and then made it immutable. The API
/// server refuses even the dry run that compares the copy.
#[test]
fn a_copy_that_cannot_even_be_compared_is_made_anew() {
    let mut former = scene(Role::Keeper, "v1", "ConfigMap", "configmaps");
    former.source_is("a");
    let left = copy(&former.next().unwrap(), 2);
    let mut scene = scene(Role::Keeper, "v1", "ConfigMap", "configmaps");
    scene
        .engine
        .at(NOW)
        .copy_applied(&scene.source.gvk.group_kind(), &left);
    scene.source_is("a");
    let learn = scene.next().unwrap();
    assert!(matches!(learn.verb, Verb::Learn(_)), "{:?}", learn.verb);
    scene.refuse(&learn);
    let delete = scene.next().unwrap();
    assert!(matches!(delete.verb, Verb::Delete(uid, 12) if uid.to_string() == self::uid(2)));
    scene.engine.at(NOW).outcome(&delete, Outcome::Absent);
    let create = scene.next().unwrap();
    assert_eq!(create.verb, Verb::Create);
    scene.written(&create, 3);
    assert!(scene.next().is_none());
}

/// The source has the content of the copy again, so no replacement is needed.
#[test]
fn a_change_that_was_taken_back_replaces_nothing() {
    let mut scene = scene(Role::Keeper, "v1", "Secret", "secrets");
    let apply = scene.changed();
    scene.refuse(&apply);
    scene.source_is("a");
    let learn = scene.next();
    assert!(learn.is_none_or(|request| matches!(request.verb, Verb::Learn(_))));
}

/// A replacement would delete all dependents of the object as well.
#[test]
fn a_copy_of_another_kind_is_left_and_said_to_be_invalid() {
    let mut scene = scene(Role::Keeper, "v1", "Service", "services");
    let apply = scene.changed();
    scene.refuse(&apply);
    assert!(scene.next().is_none());
    assert!(
        scene
            .engine
            .notices()
            .iter()
            .any(|notice| fails(notice, FailureReason::Invalid))
    );
}

/// A webhook replica deletes nothing.
#[test]
fn a_replica_of_the_webhook_leaves_it_to_the_reconciler() {
    let mut scene = scene(Role::Injector, "v1", "Secret", "secrets");
    scene.source_is("a");
    let create = scene.next().unwrap();
    scene.written(&create, 2);
    scene.source_is("b");
    while let Some(request) = scene.next() {
        assert!(!matches!(request.verb, Verb::Delete(..)));
        scene.refuse(&request);
    }
}

/// A finalizer held the former copy for a while. So the watch showed its deletion, and no answer
/// did.
#[test]
fn a_copy_that_was_made_anew_is_changed_in_place_from_then_on() {
    let mut scene = scene(Role::Keeper, "v1", "Secret", "secrets");
    let apply = scene.changed();
    scene.refuse(&apply);
    let delete = scene.next().unwrap();
    let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
    let going = json!({
        "name": "x", "namespace": "team", "uid": uid(2), "resourceVersion": "13", "managedFields": [&entry],
        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/held"],
        "labels": {"app.kubernetes.io/managed-by": "mimeo"},
    });
    let going: ObjectMeta = from_value(going).unwrap();
    scene
        .engine
        .at(NOW)
        .outcome(&delete, Outcome::Object(Box::new(going.clone())));
    assert!(scene.next().is_none(), "it is waited for");
    let gone = ObjectMeta {
        resource_version: Some("14".into()),
        ..going
    };
    scene
        .engine
        .at(NOW)
        .copy_gone(&scene.source.gvk.group_kind(), &gone);
    let create = scene.next().unwrap();
    assert_eq!(create.verb, Verb::Create);
    scene.written(&create, 5);
    let edited = json!({
        "name": "x", "namespace": "team", "uid": uid(5), "resourceVersion": "20", "managedFields": [entry],
        "labels": {"app.kubernetes.io/managed-by": "mimeo"}, "annotations": {"mimeo.dev/checksum": "somebody's"},
    });
    scene
        .engine
        .at(NOW)
        .copy_applied(&scene.source.gvk.group_kind(), &from_value(edited).unwrap());
    let apply = scene.next().unwrap();
    assert!(matches!(apply.verb, Verb::Apply(_)), "{:?}", apply.verb);
}
