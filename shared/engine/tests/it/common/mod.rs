//! Helpers that the engine's tests share.

#![allow(dead_code)] // Not all in each of them.

use std::{collections::BTreeSet, fmt::Display};

use mimeo_engine::{Engine, Home, Settings, clock::Tick};
use mimeo_model::{id::RuleKind, kind::Resource, meta::Uid, role::Role, rule::Rule};
use serde_json::{from_value, json};

/// The uid of an object, of one number for each.
pub(crate) fn uid(number: impl Display + Copy) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// A namespace of that number's uid, created then, in seconds since 1970.
pub(crate) fn home(number: impl Display + Copy, created: u32) -> Home {
    Home {
        uid: Uid::parse(&uid(number)).expect("a uid"),
        created,
    }
}

/// An engine that has been told of one rule of the platform's with one source, of its kind, of
/// namespaces `team-0` and so on that it is to fill at once. Copies and source are still to be
/// shown.
pub(crate) fn primed(
    role: Role,
    rule: Rule,
    resource: Resource,
    namespaces: usize,
    now: Tick,
) -> Engine {
    let mut engine = Engine::new(Settings::new(role, "cluster"));
    let id = rule.id.clone();
    engine.rule_applied(id.clone(), Ok(rule), None, now);
    engine.rules_listed(RuleKind::ClusterReplication, &[id].into(), now);
    engine.rules_unserved(RuleKind::Replication, now);
    let names: BTreeSet<Box<str>> = (0..namespaces)
        .map(|number| format!("team-{number}").into())
        .collect();
    for (name, number) in names.iter().zip(1..) {
        let mut meta = json!({"name": name, "uid": uid(number), "resourceVersion": "5"});
        if role == Role::Injector {
            meta["labels"] = json!({"mimeo.dev/copies": "token"});
        }
        engine.namespace_applied(&from_value(meta).expect("metadata"), now);
        engine.take_charge(name, now);
    }
    engine.namespaces_listed(&names, now);
    let gvk = resource.gvk.clone();
    engine.kinds_recorded(&[gvk.clone()].into(), now);
    engine.kind(&gvk, Some(resource), now);
    let _ = engine.demand();
    engine
}
