//! A rule's sources and their renderings.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{collections::BTreeSet, time::Duration};

use mimeo_engine::{Action, Engine, Request, Settings};
use mimeo_model::{
    id::RuleKind,
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    render::Precondition,
    role::Role,
    rule::Rule,
};
use serde_json::{Value, from_value, json};

const NOW: Duration = Duration::from_secs(1);

fn source(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "name": name})
}

/// Returns the writes for a rule with these sources and targets, before any of its copies exists.
fn writes(sources: &[Value], targets: &Value) -> Vec<Request> {
    let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "rule"},
        "spec": {"sources": sources, "targets": targets},
    });
    let rule = Rule::parse(&from_value(rule).unwrap()).unwrap();
    let (id, sources) = (rule.id.clone(), rule.sources.clone());
    let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
    engine.at(NOW).rule_applied(id.clone(), Ok(rule), None);
    engine
        .at(NOW)
        .rules_known(RuleKind::ClusterReplication, Known::Listed(&[id].into()));
    engine
        .at(NOW)
        .rules_known(RuleKind::Replication, Known::Unserved);
    for (number, name) in ["one", "two", "team"].into_iter().enumerate() {
        let uid = crate::common::uid(number);
        let namespace = json!({"name": name, "uid": uid, "resourceVersion": "5"});
        engine
            .at(NOW)
            .namespace_applied(&from_value(namespace).unwrap());
    }
    engine
        .at(NOW)
        .namespaces_listed(&["one".into(), "two".into(), "team".into()].into());
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
    for source in &sources {
        engine.at(NOW).source(
            source,
            Some(Decoded::Whole(
                json!({"metadata": {"resourceVersion": "9"}, "data": {"a": "eA=="}}),
            )),
        );
    }
    let actions = std::iter::from_fn(|| engine.at(NOW).next_action());
    let request = |action| {
        if let Action::Request(request) = action {
            Some(*request)
        } else {
            None
        }
    };
    actions.filter_map(request).collect()
}

#[test]
fn a_copy_named_as_another_source_is_not_written_over_it() {
    let targets =
        json!([{"namespaces": ["one", "two", "team"], "copyName": "$(source.name)-copy"}]);
    let written = writes(&[source("one", "a"), source("two", "a-copy")], &targets);
    let written: BTreeSet<String> = written
        .iter()
        .map(|request| format!("{}/{}", request.namespace, request.name))
        .collect();
    let want = [
        "one/a-copy",
        "one/a-copy-copy",
        "team/a-copy",
        "team/a-copy-copy",
        "two/a-copy-copy",
    ];
    assert_eq!(written, want.map(str::to_owned).into());
}

#[test]
fn what_targets_have_in_common_is_held_once() {
    for b in ["b", "$(namespace.name)-b"] {
        let targets = json!([
            {"namespaces": ["team"], "copyName": "a"}, {"namespaces": ["one"], "copyName": b}, {"namespaces": ["two"], "copyName": b},
        ]);
        let written = writes(&[source("home", "s")], &targets);
        let bodies = written.iter().map(|request| {
            request
                .rendering
                .as_ref()
                .unwrap()
                .body(Precondition::Absent)
        });
        let ends: BTreeSet<(String, *const u8)> = bodies
            .map(|body| body.last().unwrap().clone())
            .map(|end| (String::from_utf8(end.to_vec()).unwrap(), end.as_ptr()))
            .collect();
        assert_eq!((written.len(), ends.len()), (3, 1), "{ends:?}");
    }
}
