//! Helpers that the engine's tests share.

#![allow(dead_code)] // Some tests use only a few of them.

use std::{collections::BTreeSet, fmt::Display};

use mimeo_engine::{Engine, Home, Notice, Presence, Progress, Settings, clock::Tick};
use mimeo_model::{
    id::RuleKind, kind::Resource, known::Known, outcome::FailureReason, role::Role, rule::Rule,
};
use serde_json::{from_value, json};

/// A uid, a different one for each number.
pub(crate) fn uid(number: impl Display + Copy) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// A read that finds no object under a CRD that was created in 1970. `namespace` is when its namespace
/// was created.
pub(crate) fn gone(namespace: Option<u32>) -> Presence {
    Presence::Absent(Home {
        namespace,
        crd: Some(0),
    })
}

/// True if the log says that a copy failed for this reason.
pub(crate) fn fails(notice: &Notice, reason: FailureReason) -> bool {
    matches!(notice, Notice::Failed(failed) if failed.failure.reason == reason)
}

/// True if pods may be admitted without a warning.
pub(crate) fn ready(progress: &Progress) -> bool {
    progress.uid.is_some()
        && progress.waiting.is_empty()
        && progress.denied.is_empty()
        && progress.excused.is_empty()
}

/// An engine that has observed one `ClusterReplication` with one source, the source's kind, and
/// namespaces `team-0`, `team-1` and so on. It must write copies into all of them at once. The
/// copies and the source were not observed yet.
pub(crate) fn primed(
    role: Role,
    rule: Rule,
    resource: Resource,
    namespaces: usize,
    now: Tick,
) -> Engine {
    let mut engine = Engine::new(Settings::new(role, "cluster"));
    let id = rule.id.clone();
    engine.at(now).rule_applied(id.clone(), Ok(rule), None);
    engine
        .at(now)
        .rules_known(RuleKind::ClusterReplication, Known::Listed(&[id].into()));
    engine
        .at(now)
        .rules_known(RuleKind::Replication, Known::Unserved);
    let names: BTreeSet<Box<str>> = (0..namespaces)
        .map(|number| format!("team-{number}").into())
        .collect();
    for (name, number) in names.iter().zip(1..) {
        let mut meta = json!({"name": name, "uid": uid(number), "resourceVersion": "5"});
        if role == Role::Injector {
            meta["labels"] = json!({"mimeo.dev/copies": "token"});
        }
        engine
            .at(now)
            .namespace_applied(&from_value(meta).expect("metadata"));
        engine.at(now).take_charge(name);
    }
    engine.at(now).namespaces_listed(&names);
    let gvk = resource.gvk.clone();
    engine.at(now).kinds_recorded(&[gvk.clone()].into());
    engine.at(now).kind(&gvk, Known::Listed(resource));
    let _ = engine.demand();
    engine
}
