//! Objects that an installation may not access. Mimeo neither requests them nor waits for them, and
//! reports this.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use mimeo_engine::{Action, CopyWatch, Engine, Request, Settings, Verb};
use mimeo_model::{
    authority::of_rule,
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    outcome::{Failure, FailureReason, Outcome, Unreadable},
    reach::Reach,
    role::Role,
    rule::Rule,
    selection::Labels,
    source::SourceRef,
};
use serde_json::{from_value, json};

const UID: &str = "0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5";
const NOW: Duration = Duration::from_secs(1);

fn secrets() -> Resource {
    let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
    Resource {
        gvk,
        plural: "secrets".into(),
        namespaced: true,
    }
}

fn watch(namespace: &str) -> CopyWatch {
    CopyWatch {
        kind: secrets().gvk.group_kind(),
        namespace: Some(namespace.into()),
    }
}

/// Sources only in `platform`, copies only in `a` and `b`, and no kinds but Secrets.
fn confined() -> Reach {
    Reach {
        sources: Some(["platform".into()].into()),
        targets: Some(Arc::new(["a".into(), "b".into()].into())),
        kinds: Some([secrets().gvk.group_kind()].into()),
    }
}

/// An engine with a rule that copies `kind` from `home` everywhere. Its source was read. The
/// namespaces with these names all have the pending label.
fn engine(role: Role, reach: Reach, (kind, home): (&str, &str), namespaces: &[&str]) -> Engine {
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
        "metadata": {"name": "registry", "uid": UID, "generation": 1, "resourceVersion": "2"},
        "spec": {
            "podGate": "Required",
            "sources": [{"apiVersion": "v1", "kind": kind, "namespace": home, "name": "registry"}],
            "targets": [{"namespaceSelector": {}}],
        },
    });
    let rule = Rule::parse(&from_value(rule).unwrap()).unwrap();
    let (id, source) = (rule.id.clone(), rule.sources[0].clone());
    let mut engine = Engine::new(Settings {
        reach,
        ..Settings::new(role, "cluster")
    });
    engine.at(NOW).rule_applied(id.clone(), Ok(rule), None);
    engine
        .at(NOW)
        .rules_known(RuleKind::ClusterReplication, Known::Listed(&[id].into()));
    engine
        .at(NOW)
        .rules_known(RuleKind::Replication, Known::Unserved);
    engine.at(NOW).kinds_recorded(&[secrets().gvk].into());
    for (version, name) in (3..).zip(namespaces) {
        let labels = json!({"mimeo.dev/copies": "token"});
        let uid = format!("0f3e4d5c-1a2b-3c4d-5e6f-{version:012}");
        let meta = json!({"name": name, "uid": uid, "resourceVersion": version.to_string(), "labels": labels});
        engine.at(NOW).namespace_applied(&from_value(meta).unwrap());
    }
    engine
        .at(NOW)
        .namespaces_listed(&namespaces.iter().map(|name| (*name).into()).collect());
    engine
        .at(NOW)
        .kind(&secrets().gvk, Known::Listed(secrets()));
    engine.demand();
    let object = json!({"metadata": {"name": "registry", "resourceVersion": "9"}, "data": {"a": "aHVudGVyMg=="}});
    engine.at(NOW).source(&source, Some(Decoded::Whole(object)));
    engine
}

fn requests(engine: &mut Engine, now: Duration) -> Vec<Request> {
    let mut requests = Vec::new();
    while let Some(action) = engine.at(now).next_action() {
        if let Action::Request(request) = action {
            requests.push(*request);
        }
    }
    requests
}

fn created(requests: &[Request]) -> Vec<&str> {
    requests
        .iter()
        .filter(|request| request.verb == Verb::Create)
        .map(|one| &*one.namespace)
        .collect()
}

#[test]
fn each_namespace_in_reach_has_a_watch_of_its_own_and_waits_for_no_other() {
    let later = NOW + Duration::from_secs(5);
    let mut engine = engine(
        Role::Keeper,
        confined(),
        ("Secret", "platform"),
        &["a", "b", "c"],
    );
    assert_eq!(
        engine.demand().copies.keys().collect::<Vec<_>>(),
        [&watch("a"), &watch("b")]
    );
    assert!(engine.demand().confined);
    assert!(
        created(&requests(&mut engine, later)).is_empty(),
        "nothing was listed yet"
    );
    engine.at(later).copies_listing(&watch("b"));
    engine
        .at(later)
        .copies_known(&watch("b"), Known::Listed(20));
    assert_eq!(created(&requests(&mut engine, later)), ["b"]);
    engine.at(later).copies_listing(&watch("a"));
    engine
        .at(later)
        .copies_known(&watch("a"), Known::Listed(21));
    assert_eq!(created(&requests(&mut engine, later)), ["a"]);
    let rules = |engine: &Engine, name| {
        engine
            .index()
            .pod_gate_rules(Some(name), &Labels::new())
            .len()
    };
    assert_eq!(
        (rules(&engine, "a"), rules(&engine, "c")),
        (1, 0),
        "no target, no mark"
    );
}

#[test]
fn a_namespace_is_watched_once_it_exists() {
    let mut engine = engine(Role::Keeper, confined(), ("Secret", "platform"), &["a"]);
    let before = engine.index().demand_version();
    assert_eq!(engine.demand().copies.len(), 1);
    let meta = json!({"name": "b", "uid": UID, "resourceVersion": "30"});
    engine.at(NOW).namespace_applied(&from_value(meta).unwrap());
    assert!(engine.index().demand_version() > before);
    assert_eq!(engine.demand().copies.len(), 2);
    engine.at(NOW).namespace_gone("b");
    assert_eq!(engine.demand().copies.len(), 1);
}

#[test]
fn what_is_out_of_reach_is_not_asked_for_and_told() {
    for (what, flag) in [
        (("Secret", "team"), "--source-namespaces"),
        (("ConfigMap", "platform"), "--kinds"),
    ] {
        let mut engine = engine(Role::Keeper, confined(), what, &["a"]);
        let demand = engine.demand();
        let asked = demand
            .sources
            .keys()
            .map(|source: &SourceRef| source.to_string())
            .collect::<Vec<_>>();
        assert!(asked.is_empty(), "{asked:?}");
        assert!(
            demand.kinds.iter().all(GroupVersionKind::is_secret),
            "the recorded kind alone: {:?}",
            demand.kinds
        );
        let now = NOW + Duration::from_mins(1);
        assert!(requests(&mut engine, now).is_empty());
        assert!(engine.index().informed());
        let conditions = engine
            .at(now)
            .statuses(Timestamp::UNIX_EPOCH)
            .remove(0)
            .status
            .conditions;
        let found = conditions
            .iter()
            .find(|one| one.type_ == "SourcesFound")
            .unwrap();
        assert_eq!(found.reason, "SourceRefused");
        assert!(found.message.contains(flag), "{}", found.message);
        let denied = engine.at(now).progress("a").denied;
        assert!(
            denied.len() == 1 && denied[0].why == "OutOfReach",
            "{denied:?}"
        );
    }
}

/// The Role for a new namespace may arrive later than the namespace, created by a pod that runs in
/// it.
#[test]
fn pods_do_not_wait_where_mimeo_has_no_right_yet() {
    for (reach, held) in [(confined(), false), (Reach::default(), true)] {
        let mut engine = engine(Role::Injector, reach, ("Secret", "platform"), &["a"]);
        engine.at(NOW).take_charge("a");
        let request = requests(&mut engine, NOW).remove(0);
        assert_eq!(request.verb, Verb::Create);
        let failure = Failure {
            reason: FailureReason::Forbidden,
            message: "denied".into(),
        };
        engine.at(NOW).outcome(&request, Outcome::Refused(failure));
        let progress = engine.at(NOW).progress("a");
        assert_eq!(!progress.denied.is_empty(), held, "{progress:?}");
        assert!(progress.uid.is_some() && progress.waiting.is_empty());
    }
}

/// The reconciler writes nothing before it has listed the copies, so no denied write shows that the
/// Role is missing.
#[test]
fn pods_do_not_wait_where_the_reconciler_may_not_list_the_copies() {
    let mut engine = engine(Role::Keeper, confined(), ("Secret", "platform"), &["a"]);
    engine.demand();
    let later = NOW + Duration::from_secs(3);
    assert!(created(&requests(&mut engine, later)).is_empty());
    assert_eq!(engine.at(later).progress("a").waiting.len(), 1);
    engine
        .at(later)
        .copies_known(&watch("a"), Known::Unreadable(Unreadable::Forbidden));
    let progress = engine.at(later).progress("a");
    assert!(
        progress.denied.is_empty() && progress.waiting.is_empty(),
        "{progress:?}"
    );
}

/// A problem in a namespace is reported only to rules that want a copy there.
#[test]
fn nobody_is_told_of_a_namespace_that_his_rule_has_nothing_in() {
    let reach = Reach {
        sources: None,
        ..confined()
    };
    let mut engine = engine(Role::Keeper, reach, ("Secret", "platform"), &["a", "b"]);
    let tenant = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
        "metadata": {"namespace": "a", "name": "own", "uid": UID, "generation": 1, "resourceVersion": "40"},
        "spec": {"sources": [{"apiVersion": "v1", "kind": "Secret", "name": "mine"}], "targets": [{"namespaces": ["a"], "copyName": "copy"}]},
    });
    let rule = Rule::parse_replication(&from_value(tenant).unwrap()).unwrap();
    assert_eq!(engine.index().reached(&rule), Some(["a".into()].into()));
    let (id, source) = (rule.id.clone(), rule.sources[0].clone());
    engine
        .at(NOW)
        .rules_known(RuleKind::Replication, Known::Listed(&[].into()));
    engine.at(NOW).grants_known(Known::Listed(&[].into()));
    engine.at(NOW).rule_applied(id.clone(), Ok(rule), None);
    engine.demand();
    let object = json!({"metadata": {"name": "mine", "resourceVersion": "41"}, "data": {"a": "aHVudGVyMg=="}});
    engine.at(NOW).source(&source, Some(Decoded::Whole(object)));
    engine
        .at(NOW)
        .copies_known(&watch("b"), Known::Unreadable(Unreadable::Forbidden));
    engine.at(NOW).copies_listing(&watch("a"));
    engine.at(NOW).copies_known(&watch("a"), Known::Listed(50));
    requests(&mut engine, NOW);
    let told = engine
        .at(NOW + Duration::from_secs(5))
        .statuses(Timestamp::UNIX_EPOCH);
    let said = |whose: &RuleId| {
        let update = told.iter().find(|update| update.id == *whose).unwrap();
        update
            .status
            .conditions
            .iter()
            .flat_map(|one| [&*one.reason, " ", &one.message, "\n"])
            .collect::<String>()
    };
    let platform = told
        .iter()
        .map(|update| &update.id)
        .find(|other| **other != id)
        .unwrap();
    assert!(
        said(platform).contains("in namespace b"),
        "{}",
        said(platform)
    );
    assert!(
        !said(&id).contains("namespace b") && !said(&id).contains("ControllerForbidden"),
        "{}",
        said(&id)
    );
}

/// The found sources don't affect the namespaces that a `ClusterReplication` writes into.
#[test]
fn a_rule_that_selects_its_sources_reaches_what_it_targets() {
    let engine = engine(
        Role::Keeper,
        confined(),
        ("Secret", "platform"),
        &["a", "b"],
    );
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "selects"},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "selector": {"matchLabels": {"a": "b"}}}],
            "targets": [{"namespaces": ["b", "c"]}],
        },
    });
    let rule = Rule::parse(&from_value(rule).unwrap())
        .unwrap()
        .within(&confined());
    assert_eq!(engine.index().reached(&rule), Some(["b".into()].into()));
}

/// The rule names its targets, so its author wants them. The rule would do nothing there, and a
/// status "ready" would be wrong.
#[test]
fn a_tenants_rule_that_is_left_out_says_so() {
    let home = |home: &str| {
        json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication", "metadata": {"namespace": home, "name": "own"},
            "spec": {"sources": [{"apiVersion": "v1", "kind": "Secret", "name": "mine"}], "targets": [{"namespaces": [home], "copyName": "copy"}]},
        })
    };
    let said = |name: &str| {
        let rule = Rule::parse_replication(&from_value(home(name)).unwrap()).unwrap();
        rule.within(&confined()).leaves_out(&confined())
    };
    assert_eq!(said("a"), None);
    assert!(said("c").is_some_and(
        |message| message.starts_with("c: ") && message.contains("--target-namespaces")
    ));
}

/// The limits may be widened later. At that time no check of the author can refuse the rule any
/// more.
#[test]
fn an_author_needs_what_the_rule_says_whatever_the_limits_leave_of_it() {
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "registry"},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "registry"}],
            "targets": [{"namespaces": ["a", "c"]}],
        },
    });
    let rule = Rule::parse(&from_value(rule).unwrap()).unwrap();
    let served = [(secrets().gvk, secrets())].into();
    let needs = |rule: &Rule| of_rule(rule, &served);
    assert_eq!(needs(&rule.clone().within(&confined())), needs(&rule));
}
