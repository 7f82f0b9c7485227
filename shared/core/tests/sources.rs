//! What a rule's own sources have to fear from its copies: nothing.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{collections::BTreeSet, time::Duration};

use mimeo_core::{
    engine::{Action, Engine, Role, Settings},
    kind::{GroupVersionKind, Resource},
    rule::Rule,
};
use serde_json::{from_value, json};

const NOW: Duration = Duration::from_secs(1);

#[test]
fn a_copy_named_as_another_source_is_not_written_over_it() {
    let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
    let source = |namespace: &str, name: &str| json!({"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "name": name});
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "rule"},
        "spec": {
            "sources": [source("one", "a"), source("two", "a-copy")],
            "targets": [{"namespaces": ["one", "two", "team"], "name": "$(source.name)-copy"}],
        },
    });
    let rule = Rule::parse(&from_value(rule).unwrap()).unwrap();
    let (id, sources) = (rule.id.clone(), rule.sources.clone());
    let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
    engine.rule_applied(id.clone(), Ok(rule), None, NOW);
    engine.rules_listed(&[id].into(), NOW);
    for (number, name) in ["one", "two", "team"].into_iter().enumerate() {
        let uid = format!("00000000-0000-4000-8000-{number:012}");
        let namespace = json!({"name": name, "uid": uid, "resourceVersion": "5"});
        engine.namespace_applied(&from_value(namespace).unwrap(), NOW);
    }
    engine.namespaces_listed(&["one".into(), "two".into(), "team".into()].into(), NOW);
    engine.kinds_recorded(&BTreeSet::from([gvk.clone()]), NOW);
    engine.kind(&gvk, Some(Resource { gvk: gvk.clone(), plural: "secrets".into(), namespaced: true }), NOW);
    let _ = engine.demand();
    engine.copies_listing(&gvk.group_kind(), NOW);
    engine.copies_listed(&gvk.group_kind(), 6, NOW);
    for source in &sources {
        engine.source(source, Some(json!({"metadata": {"resourceVersion": "9"}})), NOW);
    }
    let mut written = BTreeSet::new();
    while let Some(action) = engine.next(NOW) {
        if let Action::Request(request) = action {
            written.insert(format!("{}/{}", request.ticket.namespace, request.ticket.name));
        }
    }
    let want = ["one/a-copy", "one/a-copy-copy", "team/a-copy", "team/a-copy-copy", "two/a-copy-copy"];
    assert_eq!(written, want.map(str::to_owned).into());
}
