//! Quotas of Replications: the size of a source, and the number of Replications in a namespace.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use mimeo_engine::{Action, Engine, Member, Members, Settings, Task};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    outcome::Outcome,
    render::Precondition,
    role::Role,
    rule::Rule,
    source::SourceRef,
};
use serde_json::{Value, from_value, json};

/// More bytes than a `Replication` may copy.
const LARGE: usize = 900 << 10;

struct Scene {
    engine: Engine,
    now: Duration,
    version: u32,
    /// The writes since the last look.
    written: BTreeSet<String>,
    conditions: BTreeMap<RuleId, BTreeMap<String, (String, String)>>,
    /// The sources that the engine wants to read.
    reads: Vec<SourceRef>,
}

fn secrets() -> GroupVersionKind {
    GroupVersionKind::parse("v1", "Secret").unwrap()
}

fn source(namespace: &str, name: &str) -> SourceRef {
    SourceRef::named(secrets(), namespace, name)
}

impl Scene {
    fn new(namespaces: &[&str]) -> Self {
        let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
        let now = Duration::from_secs(1);
        for kind in RuleKind::ALL {
            engine
                .at(now)
                .rules_known(kind, Known::Listed(&BTreeSet::new()));
        }
        engine.at(now).kinds_recorded(&[secrets()].into());
        engine.at(now).kind(
            &secrets(),
            Known::Listed(Resource {
                gvk: secrets(),
                plural: "secrets".into(),
                namespaced: true,
            }),
        );
        engine.at(now).grants_known(Known::Listed(&BTreeSet::new()));
        for (number, name) in namespaces.iter().enumerate() {
            let uid = crate::common::uid(number);
            let meta = json!({"name": name, "uid": uid, "resourceVersion": "5"});
            engine.at(now).namespace_applied(&from_value(meta).unwrap());
        }
        engine
            .at(now)
            .namespaces_listed(&namespaces.iter().map(|name| (*name).into()).collect());
        engine
            .at(now)
            .copies_listing(&secrets().group_kind().into());
        engine
            .at(now)
            .copies_known(&secrets().group_kind().into(), Known::Listed(100));
        Self {
            engine,
            now,
            version: 100,
            written: BTreeSet::new(),
            conditions: BTreeMap::new(),
            reads: Vec::new(),
        }
    }

    /// Adds a `Replication` with that age. It copies a source of its namespace to a copy named
    /// after the rule.
    fn rule(&mut self, home: &str, name: &str, age: i64, source: &str) -> RuleId {
        let created = Timestamp::from_second(age).unwrap();
        let object = json!({
            "metadata": {"namespace": home, "name": name, "generation": 1, "creationTimestamp": created.to_string()},
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
            "spec": {
                "sources": [{"apiVersion": "v1", "kind": "Secret", "name": source}],
                "targets": [{"namespaces": [home], "copyName": format!("{name}-copy")}, {"namespaces": ["elsewhere"]}],
                // Each rule renders the same content in its own way.
                "transform": {"data": {"rename": {"a": name}}},
            },
        });
        self.apply(Rule::parse_replication(&from_value(object).unwrap()).unwrap())
    }

    fn apply(&mut self, rule: Rule) -> RuleId {
        let id = rule.id.clone();
        self.engine
            .at(self.now)
            .rule_applied(id.clone(), Ok(rule), None);
        self.run();
        id
    }

    fn watched(&mut self, source: &SourceRef) -> bool {
        self.engine.demand().sources.contains_key(source)
    }

    fn show(&mut self, source: &SourceRef, size: usize) {
        assert!(self.watched(source), "{source} isn't watched");
        self.version += 1;
        let object = json!({
            "metadata": {"resourceVersion": self.version.to_string()}, "type": "Opaque", "data": {"a": "eHh4".repeat(size / 4)},
        });
        self.engine
            .at(self.now)
            .source(source, Some(Decoded::Whole(object)));
        self.run();
    }

    fn run(&mut self) {
        while let Some(action) = self.engine.at(self.now).next_action() {
            let request = match action {
                Action::Request(request) => request,
                Action::Job(job) => {
                    if let Task::ReadSource(source) = job.task {
                        self.reads.push(source);
                    }
                    continue;
                }
            };
            let (namespace, name) = (&*request.namespace, &*request.name);
            self.written.insert(format!("{namespace}/{name}"));
            self.version += 1;
            let body = request
                .rendering
                .as_ref()
                .unwrap()
                .body(Precondition::Absent)
                .concat();
            let mut meta = serde_json::from_slice::<Value>(&body).unwrap()["metadata"].take();
            meta["uid"] = format!("00000000-0000-4000-9000-{:012}", self.version).into();
            meta["resourceVersion"] = self.version.to_string().into();
            meta["managedFields"] = json!([{
                "manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {},
            }]);
            (meta["name"], meta["namespace"]) = (name.into(), namespace.into());
            self.engine.at(self.now).outcome(
                &request,
                Outcome::Object(Box::new(from_value(meta).unwrap())),
            );
        }
    }

    fn written(&mut self) -> Vec<String> {
        std::mem::take(&mut self.written).into_iter().collect()
    }

    /// Returns the reason and the message of the condition.
    fn sources_found(&mut self, id: &RuleId) -> (String, String) {
        self.now += Duration::from_secs(5);
        for update in self.engine.at(self.now).statuses(Timestamp::UNIX_EPOCH) {
            let conditions = update.status.conditions.into_iter();
            let conditions = conditions
                .map(|condition| (condition.type_, (condition.reason, condition.message)));
            self.conditions.insert(update.id, conditions.collect());
        }
        self.conditions[id]["SourcesFound"].clone()
    }
}

#[test]
fn a_source_that_is_too_large_is_refused_to_replications_alone() {
    let mut scene = Scene::new(&["home", "other"]);
    let large = source("home", "large");
    let id = scene.rule("home", "r", 1, "large");
    let small = scene.rule("home", "s", 2, "small");
    scene.show(&large, LARGE);
    scene.show(&source("home", "small"), 1 << 10);
    assert_eq!(scene.written(), ["home/s-copy"]);
    let (reason, message) = scene.sources_found(&id);
    assert_eq!(reason, "SourceRefused");
    assert!(
        message.contains("bytes as JSON, and a Replication copies at most 262144"),
        "{message}"
    );
    assert_eq!(scene.sources_found(&small).0, "Found");
    assert_eq!(scene.engine.inside().counts["sourcesHeld"], 1);

    // For a `ClusterReplication` the object is read.
    let object = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "p", "generation": 1},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": "large"}],
            "targets": [{"namespaces": ["other"]}],
        },
    });
    scene.apply(Rule::parse(&from_value(object).unwrap()).unwrap());
    assert_eq!(
        std::mem::take(&mut scene.reads),
        std::slice::from_ref(&large)
    );
    scene.show(&large, LARGE);
    assert_eq!(scene.written(), ["other/large"]);
    assert_eq!(scene.sources_found(&id).0, "SourceRefused");

    scene.show(&large, 200 << 10);
    assert_eq!(scene.written(), ["home/r-copy", "other/large"]);
    assert_eq!(scene.sources_found(&id).0, "Found");
}

/// An object that a selector finds is read once. It is held if it is small enough. If it is too
/// large, it is read again once it has become small enough.
#[test]
fn an_object_that_a_selector_finds_is_held_unless_it_is_too_large() {
    let mut scene = Scene::new(&["home"]);
    let labels = json!({"matchLabels": {"copy": "yes"}});
    let object = json!({
        "metadata": {"namespace": "home", "name": "r", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "selector": labels}],
            "targets": [{"namespaces": ["home"], "copyName": "$(source.name)-copy"}],
        },
    });
    let rule = Rule::parse_replication(&from_value(object).unwrap()).unwrap();
    let selector = rule.selectors[0].clone();
    let id = scene.apply(rule);
    let _ = scene.engine.demand();
    let object = |name: &str, size: usize| {
        json!({
            "metadata": {"name": name, "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "type": "Opaque", "data": {"a": "eHh4".repeat(size / 4)},
        })
    };
    let held = |scene: &Scene| scene.engine.inside().counts["sourcesHeld"];
    let show = |scene: &mut Scene, object: Value| {
        let source = selector.source(object["metadata"]["name"].as_str().unwrap());
        scene
            .engine
            .at(scene.now)
            .source(&source, Some(Decoded::Whole(object)));
        scene.run();
    };
    let mut members = Members::default();
    for (name, size) in [("large", LARGE), ("small", 1 << 10)] {
        let object = object(name, size);
        members.extend(Member::of(&object));
        show(&mut scene, object);
    }
    assert_eq!(held(&scene), 1, "before all are listed, too");
    scene
        .engine
        .at(scene.now)
        .selected(&selector, Known::Listed(&members));
    scene.run();
    assert_eq!(scene.written(), ["home/small-copy"]);
    assert_eq!(scene.sources_found(&id).0, "SourceRefused");
    show(&mut scene, object("large", LARGE + 4));
    assert_eq!((held(&scene), scene.reads.len()), (1, 0));
    show(&mut scene, object("large", 1 << 10));
    assert_eq!(scene.written(), ["home/large-copy"]);
    assert_eq!(scene.sources_found(&id).0, "Found");
    show(&mut scene, object("small", LARGE));
    assert_eq!((held(&scene), scene.reads.len()), (1, 0));
}

#[test]
fn of_the_replications_of_a_namespace_the_oldest_fit() {
    let parse = |name: &str, age: i64, sources: usize, namespaces: usize| {
        let created = Timestamp::from_second(age).unwrap().to_string();
        let sources: Vec<Value> = (0..sources)
            .map(|i| json!({"apiVersion": "v1", "kind": "Secret", "name": format!("source-{i}")}))
            .collect();
        let namespaces: Vec<String> = (0..namespaces).map(|i| format!("namespace-{i}")).collect();
        let object = json!({
            "metadata": {"namespace": "home", "name": name, "generation": 1, "uid": name, "creationTimestamp": created},
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
            "spec": {"sources": sources, "targets": [{"namespaces": namespaces, "copyName": "copy-of-$(source.name)"}]},
        });
        Rule::parse_replication(&from_value(object).unwrap()).unwrap()
    };
    let fit = 10_240 / 256;
    let mut scene = Scene::new(&["home"]);
    let refused = |scene: &mut Scene, age: i64| {
        // One pass writes only a limited number of statuses.
        for _ in 0..3 {
            scene.now += Duration::from_secs(5);
            for update in scene.engine.at(scene.now).statuses(Timestamp::UNIX_EPOCH) {
                let conditions = update.status.conditions.into_iter();
                let conditions = conditions
                    .map(|condition| (condition.type_, (condition.reason, condition.message)));
                scene.conditions.insert(update.id, conditions.collect());
            }
        }
        let id = parse(&format!("r{age}"), age, 1, 1).id;
        scene.conditions[&id]["Ready"].0 == "InvalidSpec"
    };
    // The youngest rule comes first. Each older rule takes its room from the youngest rules that
    // have some.
    for age in (1..=fit + 3).rev() {
        scene.apply(parse(&format!("r{age}"), age, 32, 8));
    }
    for number in 0..32 {
        scene
            .engine
            .at(scene.now)
            .source(&source("home", &format!("source-{number}")), None);
    }
    let out: Vec<i64> = (1..=fit + 3)
        .filter(|age| refused(&mut scene, *age))
        .collect();
    assert_eq!(out, [fit + 1, fit + 2, fit + 3]);
    assert!(scene.conditions.values().any(|rule| {
        rule["Ready"]
            .1
            .contains("at most 1024 Replications, with 10240 copies in all")
    }));
    assert_eq!(scene.engine.demand().sources.len(), 32);
    let another = parse("another", fit + 9, 32, 8);
    assert!(scene.engine.index().refuses_rule(&another).is_some());
    // Another namespace has its own quota.
    let elsewhere = scene.rule("elsewhere", "r", fit + 9, "own");
    assert!(scene.watched(&source("elsewhere", "own")));
    scene.engine.at(scene.now).rule_gone(&elsewhere);

    // Once there is room, a rule that the watch shows again gets it.
    scene
        .engine
        .at(scene.now)
        .rule_gone(&parse("r1", 1, 1, 1).id);
    assert!(scene.engine.index().refuses_rule(&another).is_none());
    scene.apply(parse(&format!("r{}", fit + 1), fit + 1, 32, 8));
    assert!(!refused(&mut scene, fit + 1) && refused(&mut scene, fit + 2));
}
