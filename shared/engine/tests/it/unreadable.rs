//! Unreadable objects. They are reported, block nothing, and are never treated as deleted.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::time::Duration;

use jiff::Timestamp;
use mimeo_engine::{Action, AwaitedCopy, Engine, Progress, Settings, StatusUpdate, Task, Verb};
use mimeo_model::{
    id::RuleKind,
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    outcome::{Failure, FailureReason, Outcome, Unreadable},
    role::Role,
    rule::Rule,
    source::SourceRef,
};
use serde_json::{Value, from_value, json};

const UID: &str = "0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5";
const FORBIDDEN: Unreadable = Unreadable::Forbidden;

fn secrets() -> Resource {
    let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
    Resource {
        gvk,
        plural: "secrets".into(),
        namespaced: true,
    }
}

/// An engine with one rule for all namespaces, one namespace, and a clock.
struct World {
    engine: Engine,
    source: SourceRef,
    now: Duration,
}

impl World {
    fn new(role: Role, pod_gate: &str) -> Self {
        let rule = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
            "metadata": {"name": "registry", "uid": UID, "generation": 1, "resourceVersion": "2"},
            "spec": {
                "podGate": pod_gate,
                "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "registry"}],
                "targets": [{"namespaces": ["team"]}],
            },
        });
        let rule = Rule::parse(&from_value(rule).unwrap()).unwrap();
        let (id, source, now) = (
            rule.id.clone(),
            rule.sources[0].clone(),
            Duration::from_secs(1),
        );
        let mut engine = Engine::new(Settings::new(role, "cluster"));
        engine.at(now).rule_applied(id.clone(), Ok(rule), None);
        engine
            .at(now)
            .rules_known(RuleKind::ClusterReplication, Known::Listed(&[id].into()));
        engine
            .at(now)
            .rules_known(RuleKind::Replication, Known::Unserved);
        engine.at(now).kinds_recorded(&[secrets().gvk].into());
        let meta = json!({"name": "team", "uid": UID, "resourceVersion": "3", "labels": {"mimeo.dev/copies": "token"}});
        engine.at(now).namespace_applied(&from_value(meta).unwrap());
        engine.at(now).namespaces_listed(&["team".into()].into());
        engine.at(now).take_charge("team");
        Self {
            engine,
            source,
            now,
        }
    }

    fn served(mut self) -> Self {
        self.engine
            .at(self.now)
            .kind(&secrets().gvk, Known::Listed(secrets()));
        self.engine.demand();
        self
    }

    fn list_copies(&mut self) {
        self.engine
            .at(self.now)
            .copies_listing(&secrets().gvk.group_kind().into());
        self.engine
            .at(self.now)
            .copies_known(&secrets().gvk.group_kind().into(), Known::Listed(5));
    }

    fn show_source(&mut self) {
        let object = json!({"metadata": {"name": "registry", "resourceVersion": "7"}, "data": {"a": "aHVudGVyMg=="}});
        self.engine
            .at(self.now)
            .source(&self.source, Some(Decoded::Whole(object)));
    }

    fn progress(&mut self) -> Progress {
        self.engine.at(self.now).progress("team")
    }

    /// Returns the rule's conditions as they would be written now: type, status, reason and
    /// message.
    fn conditions(&mut self) -> Vec<(String, String, String, String)> {
        self.now += Duration::from_secs(2);
        let written: Vec<StatusUpdate> = self.engine.at(self.now).statuses(Timestamp::UNIX_EPOCH);
        let conditions = written
            .into_iter()
            .flat_map(|update| update.status.conditions);
        conditions
            .map(|one| (one.type_, one.status, one.reason, one.message))
            .collect()
    }

    #[track_caller]
    fn expect(&mut self, type_: &str, reason: &str, part: &str) {
        let conditions = self.conditions();
        let found = conditions
            .iter()
            .any(|one| one.0 == type_ && one.2 == reason && one.3.contains(part));
        assert!(found, "{conditions:?}");
    }

    fn requests(&mut self) -> Vec<Verb> {
        let mut verbs = Vec::new();
        while let Some(action) = self.engine.at(self.now).next_action() {
            if let Action::Request(request) = action {
                verbs.push(request.verb);
            }
        }
        verbs
    }
}

/// Returns these copies, each with the reason that blocks it.
fn told(copies: &[AwaitedCopy]) -> Vec<String> {
    copies
        .iter()
        .map(|copy| format!("{} ({})", copy.copy, copy.why))
        .collect()
}

#[test]
fn nobody_waits_for_a_source_that_cannot_be_read() {
    for (why, word) in [
        (FORBIDDEN, "Forbidden"),
        (Unreadable::Unavailable, "Unavailable"),
    ] {
        for pod_gate in ["Required", "BestEffort"] {
            let mut world = World::new(Role::Injector, pod_gate).served();
            assert!(!world.engine.index().informed());
            assert_eq!(world.progress().waiting.len(), 1);

            world
                .engine
                .at(world.now)
                .source_unreadable(&world.source, why);
            assert!(world.engine.index().informed());
            let progress = world.progress();
            let cannot = vec![format!("Secret registry ({word})")];
            let want = if pod_gate == "Required" {
                (cannot, vec![])
            } else {
                (vec![], cannot)
            };
            assert_eq!((told(&progress.denied), told(&progress.excused)), want);
            assert!(progress.waiting.is_empty());

            world.show_source();
            assert!(world.engine.index().informed());
            assert_eq!(
                told(&world.progress().waiting),
                ["Secret registry (it is being written)"]
            );
            assert_eq!(world.requests(), [Verb::Create]);
        }
    }
}

/// No copy is made from half an object. The former copy stays.
#[test]
fn nobody_waits_for_a_source_that_cannot_be_decoded() {
    let part = json!({"metadata": {"name": "registry", "resourceVersion": "7"}, "type": "Opaque"});
    let mut world = World::new(Role::Injector, "Required").served();
    world
        .engine
        .at(world.now)
        .source(&world.source, Some(Decoded::Part(part.clone())));
    assert!(world.engine.index().informed());
    assert_eq!(
        told(&world.progress().denied),
        ["Secret registry (SourceRefused)"]
    );
    assert_eq!(world.requests(), []);
    world.show_source();
    assert_eq!(
        told(&world.progress().waiting),
        ["Secret registry (it is being written)"]
    );

    let mut world = World::new(Role::Keeper, "None").served();
    world.list_copies();
    world.show_source();
    world.expect("SourcesFound", "Found", "");
    world
        .engine
        .at(world.now)
        .source(&world.source, Some(Decoded::Part(part)));
    world.expect(
        "SourcesFound",
        "SourceRefused",
        "v1/Secret/platform/registry: the source can't be decoded",
    );
    assert_eq!(world.requests(), []);
}

#[test]
fn nobody_waits_for_a_kind_that_discovery_does_not_answer_for_or_that_is_not_served() {
    let mut world = World::new(Role::Injector, "Required");
    assert!(!world.engine.index().informed());
    assert_eq!(world.progress().waiting.len(), 1);
    world
        .engine
        .at(world.now)
        .kind(&secrets().gvk, Known::Unreadable(Unreadable::Unavailable));
    assert!(world.engine.index().informed());
    assert_eq!(
        told(&world.progress().denied),
        ["Secret registry (Unavailable)"]
    );
    world
        .engine
        .at(world.now)
        .kind(&secrets().gvk, Known::Unserved);
    assert!(world.engine.index().informed());
    assert_eq!(
        told(&world.progress().denied),
        ["Secret registry (KindNotServed)"]
    );

    // The former answer stays valid.
    let mut world = world.served();
    world.show_source();
    world
        .engine
        .at(world.now)
        .kind(&secrets().gvk, Known::Unreadable(Unreadable::Unavailable));
    assert_eq!(
        told(&world.progress().waiting),
        ["Secret registry (it is being written)"]
    );
}

#[test]
fn a_rule_says_what_cannot_be_read_and_what_is_missing_for_it() {
    let mut world = World::new(Role::Keeper, "None").served();
    assert_eq!(world.conditions(), []);
    world
        .engine
        .at(world.now)
        .source_unreadable(&world.source, FORBIDDEN);
    world.engine.at(world.now).copies_known(
        &secrets().gvk.group_kind().into(),
        Known::Unreadable(FORBIDDEN),
    );
    let part = "v1/Secret/platform/registry: Mimeo may not read secrets";
    world.expect("SourcesFound", "SourceRefused", part);
    assert_eq!(world.conditions(), [], "said once");

    world.show_source();
    let told = "copies cannot be watched: Mimeo may not read secrets (it needs get, \
        list and watch); missing permissions on Secret: a ClusterRole labelled \
        mimeo.dev/aggregate-to-mimeo=true must have the rule {apiGroups: [\"\"], resources: \
        [secrets], verbs: [create, get, list, patch, watch]}";
    let conditions = world.conditions();
    for (type_, reason) in [
        ("Ready", "NotAuthorized"),
        ("Authorized", "ControllerForbidden"),
    ] {
        let one = conditions.iter().find(|one| one.0 == type_).unwrap();
        assert!(
            one.1 == "False" && one.2 == reason && one.3.starts_with(told),
            "{one:?}"
        );
    }
    world.list_copies();
    world.expect("Ready", "Pending", "0 of 1 copy is");

    // The state from the last read stays valid, but the status says that it may be out of date.
    world
        .engine
        .at(world.now)
        .source_unreadable(&world.source, Unreadable::Unavailable);
    world.expect(
        "Ready",
        "SourceRefused",
        "has been answering with errors when asked for secrets",
    );
    world.now += Duration::from_secs(10);
    assert_eq!(world.requests(), [Verb::Create]);
    world.show_source();
    world.expect("SourcesFound", "Found", "");
}

#[test]
fn a_rule_says_which_copies_mimeo_is_denied() {
    let mut world = World::new(Role::Keeper, "None").served();
    world.show_source();
    world.list_copies();
    world.expect("Authorized", "Allowed", "");
    world.now += Duration::from_secs(10);
    let denied = Failure {
        reason: FailureReason::Forbidden,
        message: "not you".into(),
    };
    let mut written = 0;
    while let Some(action) = world.engine.at(world.now).next_action() {
        let Action::Request(request) = action else {
            continue;
        };
        world
            .engine
            .at(world.now)
            .outcome(&request, Outcome::Refused(denied.clone()));
        written += 1;
    }
    assert_eq!(written, 1);
    world.expect(
        "Authorized",
        "ControllerForbidden",
        "Mimeo may not write copies of kind Secret in namespace team; missing permissions",
    );
    world.now += Duration::from_hours(1);
    assert_eq!(world.requests(), [Verb::Create], "it is tried again");
}

#[test]
fn a_rule_says_that_discovery_does_not_answer() {
    let mut world = World::new(Role::Keeper, "None");
    assert_eq!(world.conditions(), []);
    world
        .engine
        .at(world.now)
        .kind(&secrets().gvk, Known::Unreadable(Unreadable::Unavailable));
    world.expect(
        "SourcesFound",
        "SourceRefused",
        "does not say which kinds v1 has (Unavailable)",
    );
}

/// Mimeo lost its permissions while it ran. It continues with the known state, and sees no changes.
/// The copies exist and stay, because Mimeo cannot tell whether the source is gone.
#[test]
fn rules_that_may_not_be_read_any_more_are_told_by_those_that_were() {
    let mut world = World::new(Role::Keeper, "None").served();
    world.list_copies();
    world.show_source();
    world.engine.at(world.now).rules_known(
        RuleKind::ClusterReplication,
        Known::Unreadable(Unreadable::Unavailable),
    );
    assert!(world.engine.index().follows_rules(), "that passes");
    world
        .engine
        .at(world.now)
        .rules_known(RuleKind::ClusterReplication, Known::Unreadable(FORBIDDEN));
    assert!(!world.engine.index().follows_rules());
    let part =
        "{apiGroups: [mimeo.dev], resources: [clusterreplications], verbs: [get, list, watch]}";
    world.expect("Authorized", "ControllerForbidden", part);
    world.now += Duration::from_secs(5);
    assert_eq!(
        world.requests(),
        [Verb::Create],
        "the rule is there, for all that is known"
    );

    let listed = "ClusterReplication/registry".parse().unwrap();
    world.engine.at(world.now).rules_known(
        RuleKind::ClusterReplication,
        Known::Listed(&[listed].into()),
    );
    assert!(world.engine.index().follows_rules());
    world.expect("Authorized", "Allowed", "");
    // Until all rules were shown once, it is unknown which rules exist.
    let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
    engine.at(world.now).rules_known(
        RuleKind::ClusterReplication,
        Known::Unreadable(Unreadable::Unavailable),
    );
    assert!(!engine.index().follows_rules());
    engine
        .at(world.now)
        .rules_known(RuleKind::ClusterReplication, Known::Unserved);
    assert!(engine.index().follows_rules(), "there are none");
}

#[test]
fn the_copies_of_a_source_that_cannot_be_read_stay() {
    let mut world = World::new(Role::Keeper, "None").served();
    let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
    let copy: Value = json!({
        "name": "registry", "namespace": "team", "uid": UID, "resourceVersion": "4", "managedFields": [entry],
        "labels": {"app.kubernetes.io/managed-by": "mimeo"},
        "annotations": {
            "mimeo.dev/rule": "ClusterReplication/registry", "mimeo.dev/source": "v1/Secret/platform/registry",
            "mimeo.dev/cluster": "cluster",
        },
    });
    let kind = secrets().gvk.group_kind();
    world
        .engine
        .at(world.now)
        .copies_listing(&kind.clone().into());
    world
        .engine
        .at(world.now)
        .copy_applied(&kind, &from_value(copy).unwrap());
    world
        .engine
        .at(world.now)
        .copies_known(&kind.clone().into(), Known::Listed(5));
    world
        .engine
        .at(world.now)
        .source_unreadable(&world.source, FORBIDDEN);
    world.now += Duration::from_hours(1);
    assert_eq!(world.requests(), []);

    // A missing source is different: the engine reads it to learn if the deletion was on purpose.
    world.engine.at(world.now).source(&world.source, None);
    world.now += Duration::from_hours(1);
    let confirm = Task::ConfirmSource(world.source.clone());
    let mut asked = false;
    while let Some(action) = world.engine.at(world.now).next_action() {
        asked |= matches!(action, Action::Job(job) if job.task == confirm);
    }
    assert!(asked);
}
