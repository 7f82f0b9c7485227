//! What tenants' sources may take of the memory, and that the platform's rules and older ones don't feel it.

#![allow(clippy::unwrap_used)] // It is how a test fails.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use mimeo_core::{
    engine::{Action, Engine, Errand, Member, Members, Role, Settings},
    kind::{GroupVersionKind, Resource},
    outcome::Outcome,
    render::Precondition,
    rule::{Rule, RuleId, RuleKind, SourceRef},
};
use serde_json::{Value, from_value, json};

use common::{author, vouch};

/// So large a source that its own bytes and those of its copies are some 1.8 MiB.
const LARGE: usize = 900 << 10;

struct Scene {
    engine: Engine,
    now: Duration,
    version: u32,
    /// What was written since the last look.
    written: BTreeSet<String>,
    conditions: BTreeMap<RuleId, BTreeMap<String, (String, String)>>,
    /// What is to be read.
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
            engine.rules_listed(kind, &BTreeSet::new(), now);
            engine.crd(kind, Some("crd".into()), Some("crd".into()), now);
        }
        engine.kinds_recorded(&[secrets()].into(), now);
        engine.kind(&secrets(), Some(Resource { gvk: secrets(), plural: "secrets".into(), namespaced: true }), now);
        engine.grants_listed(&BTreeSet::new(), now);
        for (number, name) in namespaces.iter().enumerate() {
            let uid = common::uid(number);
            let meta = json!({"name": name, "uid": uid, "resourceVersion": "5"});
            engine.namespace_applied(&from_value(meta).unwrap(), now);
        }
        engine.namespaces_listed(&namespaces.iter().map(|name| (*name).into()).collect(), now);
        engine.copies_listing(&secrets().group_kind().into(), now);
        engine.copies_listed(&secrets().group_kind().into(), 100, now);
        Self { engine, now, version: 100, written: BTreeSet::new(), conditions: BTreeMap::new(), reads: Vec::new() }
    }

    /// A Replication of that age which copies a source of its namespace to a copy that is called after the rule.
    fn rule(&mut self, home: &str, name: &str, age: i64, source: &str) -> RuleId {
        let created = Timestamp::from_second(age).unwrap();
        let object = json!({
            "metadata": {"namespace": home, "name": name, "generation": 1, "creationTimestamp": created.to_string()},
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
            "spec": {
                "sources": [{"apiVersion": "v1", "kind": "Secret", "name": source}],
                "targets": [{"namespaces": [home], "name": format!("{name}-copy")}, {"namespaces": ["elsewhere"]}],
                // Another guise of the same content for each rule.
                "transform": {"data": {"rename": {"a": name}}},
            },
        });
        self.apply(Rule::parse_replication(&from_value(object).unwrap()).unwrap())
    }

    fn apply(&mut self, rule: Rule) -> RuleId {
        let id = rule.id.clone();
        self.engine.rule_applied(id.clone(), Ok(rule), author(), None, self.now);
        vouch(&mut self.engine, self.now);
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
        self.engine.source(source, Some(object), self.now);
        self.run();
    }

    fn run(&mut self) {
        while let Some(action) = self.engine.next(self.now) {
            let request = match action {
                Action::Request(request) => request,
                Action::Errand(Errand::ReadSource(source)) => {
                    self.reads.push(source);
                    continue;
                }
                Action::Errand(_) => continue,
            };
            let (namespace, name) = (&*request.ticket.namespace, &*request.ticket.name);
            self.written.insert(format!("{namespace}/{name}"));
            self.version += 1;
            let body = request.rendering.as_ref().unwrap().body(Precondition::Absent).concat();
            let mut meta = serde_json::from_slice::<Value>(&body).unwrap()["metadata"].take();
            meta["uid"] = format!("00000000-0000-4000-9000-{:012}", self.version).into();
            meta["resourceVersion"] = self.version.to_string().into();
            meta["managedFields"] = json!([{
                "manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {},
            }]);
            (meta["name"], meta["namespace"]) = (name.into(), namespace.into());
            self.engine.outcome(&request.ticket, Outcome::Object(Box::new(from_value(meta).unwrap())), self.now);
        }
    }

    fn written(&mut self) -> Vec<String> {
        std::mem::take(&mut self.written).into_iter().collect()
    }

    /// Reason and message of the condition.
    fn sources_found(&mut self, id: &RuleId) -> (String, String) {
        self.now += Duration::from_secs(5);
        for update in self.engine.statuses(self.now, Timestamp::UNIX_EPOCH) {
            let conditions = update.status.conditions.into_iter();
            let conditions = conditions.map(|condition| (condition.type_, (condition.reason, condition.message)));
            self.conditions.insert(update.id, conditions.collect());
        }
        self.conditions[id]["SourcesFound"].clone()
    }
}

#[test]
fn a_namespaces_large_sources_are_held_as_far_as_its_allowance_goes() {
    let mut scene = Scene::new(&["home", "other"]);
    let rules = ["one", "two", "three"].map(|name| (name, source("home", name)));
    let ids: Vec<RuleId> = (1..).zip(&rules).map(|(age, (name, _))| scene.rule("home", name, age, name)).collect();
    // Whatever is seen first, the oldest rules are served.
    for (_, source) in rules.iter().rev() {
        scene.show(source, LARGE);
    }
    assert_eq!(scene.written(), ["home/one-copy", "home/three-copy", "home/two-copy"]);
    assert!(scene.watched(&rules[0].1) && scene.watched(&rules[1].1) && !scene.watched(&rules[2].1));
    assert_eq!(scene.sources_found(&ids[0]).0, "Found");
    let (reason, message) = scene.sources_found(&ids[2]);
    assert_eq!(reason, "SourceRefused");
    assert!(message.contains("4 MiB of memory for the rules of one namespace and 32 MiB for all"), "{message}");

    // Neither the platform's rules nor another namespace's have to do with it, and small ones fit in.
    let object = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "p", "generation": 1},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": "three"}],
            "targets": [{"namespaces": ["other"]}],
        },
    });
    scene.apply(Rule::parse(&from_value(object).unwrap()).unwrap());
    scene.show(&rules[2].1, LARGE);
    scene.rule("other", "large", 4, "large");
    scene.show(&source("other", "large"), LARGE);
    scene.rule("home", "small", 5, "small");
    scene.show(&source("home", "small"), 1 << 10);
    assert_eq!(scene.written(), ["home/small-copy", "other/large-copy", "other/three"]);
    assert_eq!(scene.sources_found(&ids[2]).0, "SourceRefused");

    // Once there is room it is as any other.
    scene.engine.rule_gone(&ids[0], scene.now);
    scene.show(&rules[2].1, LARGE + 4);
    assert_eq!(scene.written(), ["home/three-copy", "other/three"]);
    assert_eq!(scene.sources_found(&ids[2]).0, "Found");
}

/// What a rule's selector finds is the rule's like what it names: read once, held as far as there is room, and read again when there is.
#[test]
fn what_selectors_find_have_a_part_in_the_allowance() {
    let mut scene = Scene::new(&["home"]);
    let labels = json!({"matchLabels": {"copy": "yes"}});
    let object = json!({
        "metadata": {"namespace": "home", "name": "r", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "selector": labels}],
            "targets": [{"namespaces": ["home"], "name": "$(source.name)-copy"}],
        },
    });
    let rule = Rule::parse_replication(&from_value(object).unwrap()).unwrap();
    let selector = rule.selectors[0].clone();
    let id = scene.apply(rule);
    let _ = scene.engine.demand();
    let object = |name: &str, kind: &str, size: usize| {
        json!({
            "metadata": {"name": name, "resourceVersion": "7", "creationTimestamp": format!("2026-01-0{}T00:00:00Z", name.len())},
            "type": kind, "data": {"a": "eHh4".repeat(size / 4)},
        })
    };
    let held = |scene: &Scene| (scene.engine.inside().counts["sourcesHeld"], scene.engine.inside().counts["sources"]);
    let show = |scene: &mut Scene, object: Value| {
        let source = selector.source(object["metadata"]["name"].as_str().unwrap());
        scene.engine.source(&source, Some(object), scene.now);
        scene.run();
    };
    // Before all of it is listed nobody knows which will be copied: no more is held than has room anyway.
    let mut members = Members::default();
    for name in ["a", "bb", "ccc", "dddd"] {
        for i in 0..4 {
            let object = object(&format!("{name}{i}"), "helm.sh/release.v1", LARGE);
            members.extend(Member::of(&object));
            show(&mut scene, object);
        }
    }
    assert_eq!(held(&scene).0, 10, "some 8 MiB");
    for name in ["x", "yy", "zzz"] {
        let object = object(name, "Opaque", LARGE);
        members.extend(Member::of(&object));
        show(&mut scene, object);
    }
    scene.engine.selected(&selector, &members, scene.now);
    // Of what there was no room for the oldest are read again, as much as there is room for now.
    scene.run();
    let reads = std::mem::take(&mut scene.reads);
    assert_eq!(reads.iter().map(|source| &*source.name).collect::<Vec<_>>(), ["x", "yy"]);
    assert_eq!(held(&scene).0, 0, "what is never copied is let go");
    for name in ["x", "yy"] {
        show(&mut scene, object(name, "Opaque", LARGE));
    }
    assert_eq!(scene.written(), ["home/x-copy", "home/yy-copy"]);
    assert_eq!(held(&scene), (2, 19));
    assert_eq!(scene.sources_found(&id).0, "SourceRefused");
    // Its edits are watched, and not held.
    show(&mut scene, object("zzz", "Opaque", LARGE + 4));
    assert_eq!((held(&scene).0, scene.reads.len(), scene.written().len()), (2, 0, 0));
    // One that shrinks makes room.
    show(&mut scene, object("yy", "Opaque", 1 << 10));
    assert_eq!(scene.reads.drain(..).map(|source| source.name.to_string()).collect::<Vec<_>>(), ["zzz"]);
    show(&mut scene, object("zzz", "Opaque", LARGE + 4));
    assert_eq!(scene.written(), ["home/yy-copy", "home/zzz-copy"]);
    assert_eq!(scene.sources_found(&id).0, "Found");
    assert_eq!(held(&scene).0, 3);
}

#[test]
fn each_guise_of_one_large_source_counts() {
    let mut scene = Scene::new(&["home"]);
    let ids: Vec<RuleId> = (0..10).map(|i| scene.rule("home", &format!("r{i}"), i, "x")).collect();
    scene.show(&source("home", "x"), LARGE);
    assert_eq!(scene.written(), ["home/r0-copy", "home/r1-copy", "home/r2-copy"]);
    assert_eq!(scene.sources_found(&ids[3]).0, "SourceRefused");
    // One that grows or shrinks takes or gives the room.
    scene.show(&source("home", "x"), LARGE / 2);
    assert_eq!(scene.written(), (0..8).map(|i| format!("home/r{i}-copy")).collect::<Vec<_>>());
    let younger = scene.rule("home", "younger", 10, "x");
    assert_eq!(scene.written(), Vec::<String>::new());
    assert_eq!(scene.sources_found(&younger).0, "SourceRefused");
    scene.engine.rule_gone(&ids[0], scene.now);
    scene.run();
    assert_eq!(scene.written(), ["home/r8-copy"]);
}

#[test]
fn all_tenants_together_have_an_allowance_that_the_oldest_rules_have_taken() {
    let homes: Vec<String> = (0..10).map(|i| format!("home-{i}")).collect();
    let mut scene = Scene::new(&homes.iter().map(String::as_str).collect::<Vec<_>>());
    for (age, home) in (0..).zip(&homes) {
        for name in ["one", "two"] {
            scene.rule(home, name, age, name);
            if scene.watched(&source(home, name)) {
                scene.show(&source(home, name), LARGE);
            }
        }
    }
    let held = scene.engine.demand().sources.len();
    assert_eq!((held, scene.written().len()), (18, 18));
}

/// As many rules as the tenant of `tests/tests/flood.rs` has fit in; with more copies each, the oldest do.
#[test]
fn what_rules_take_themselves_has_an_allowance_that_the_oldest_have() {
    let parse = |name: &str, age: i64, sources: usize, namespaces: usize| {
        let created = Timestamp::from_second(age).unwrap().to_string();
        let sources: Vec<Value> = (0..sources)
            .map(|i| json!({"apiVersion": "v1", "kind": "Secret", "name": format!("source-{i}")}))
            .collect();
        let namespaces: Vec<String> = (0..namespaces).map(|i| format!("namespace-{i}")).collect();
        let object = json!({
            "metadata": {"namespace": "home", "name": name, "generation": 1, "uid": name, "creationTimestamp": created},
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
            "spec": {"sources": sources, "targets": [{"namespaces": namespaces, "name": "copy-of-$(source.name)"}]},
        });
        Rule::parse_replication(&from_value(object).unwrap()).unwrap()
    };
    assert!(parse("usual", 1, 1, 2).weight * 2000 < 8 << 20);
    let weight = parse("r", 1, 32, 8).weight;
    let fit = i64::try_from((8 << 20) / weight).unwrap();
    assert!(weight > 256 * 200 && fit > 10, "{weight}");

    let mut scene = Scene::new(&["home"]);
    let refused = |scene: &mut Scene, age: i64| {
        // So many at once are told.
        for _ in 0..3 {
            scene.now += Duration::from_secs(5);
            for update in scene.engine.statuses(scene.now, Timestamp::UNIX_EPOCH) {
                let conditions = update.status.conditions.into_iter();
                let conditions = conditions.map(|condition| (condition.type_, (condition.reason, condition.message)));
                scene.conditions.insert(update.id, conditions.collect());
            }
        }
        let id = parse(&format!("r{age}"), age, 1, 1).id;
        scene.conditions[&id]["Ready"].0 == "InvalidSpec"
    };
    // From the youngest on: each that is older than those that fill the room takes it from the youngest.
    for age in (1..=fit + 3).rev() {
        scene.apply(parse(&format!("r{age}"), age, 32, 8));
    }
    for number in 0..32 {
        scene.engine.source(&source("home", &format!("source-{number}")), None, scene.now);
    }
    let out: Vec<i64> = (1..=fit + 3).filter(|age| refused(&mut scene, *age)).collect();
    assert_eq!(out, [fit + 1, fit + 2, fit + 3]);
    assert!(
        scene.conditions.values().any(|rule| rule["Ready"].1.contains("of one namespace may take 8 MiB of memory"))
    );
    assert_eq!(scene.engine.demand().sources.len(), 32);
    let another = parse("another", fit + 9, 32, 8);
    assert!(scene.engine.refuses_rule(&another).is_some());

    // Once there is room one that is told again has it.
    scene.engine.rule_gone(&parse("r1", 1, 1, 1).id, scene.now);
    assert!(scene.engine.refuses_rule(&another).is_none());
    scene.apply(parse(&format!("r{}", fit + 1), fit + 1, 32, 8));
    assert!(!refused(&mut scene, fit + 1) && refused(&mut scene, fit + 2));
}

/// The rules that patch a small source to something large, and then remove it again, hold next to nothing: making it counts.
#[test]
fn what_a_patch_takes_in_passing_counts() {
    let mut scene = Scene::new(&["home"]);
    let large: Vec<Value> = vec![json!({"": 0}); 500];
    let mut patch = vec![json!({"op": "add", "path": "/a", "value": large})];
    patch.extend((0..4).map(|i| json!({"op": "copy", "from": "/a", "path": format!("/x{i}")})));
    let paths = ["/a", "/x0", "/x1", "/x2", "/x3"];
    patch.extend(paths.iter().map(|path| json!({"op": "remove", "path": path})));
    let ids: Vec<RuleId> = (0..10)
        .map(|age| {
            let name = format!("r{age}");
            let object = json!({
                "metadata": {
                    "namespace": "home", "name": name, "generation": 1,
                    "creationTimestamp": Timestamp::from_second(age).unwrap().to_string(),
                },
                "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
                "spec": {
                    "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "x"}],
                    "targets": [{"namespaces": ["home"], "name": format!("{name}-copy")}],
                    "transform": {"jsonPatch": patch},
                },
            });
            scene.apply(Rule::parse_replication(&from_value(object).unwrap()).unwrap())
        })
        .collect();
    scene.show(&source("home", "x"), 1 << 10);
    assert_eq!(scene.written(), ["home/r0-copy", "home/r1-copy"]);
    assert_eq!(scene.sources_found(&ids[2]).0, "SourceRefused");
}

/// Each round of weighing makes something of what has room, and that may weigh other than it was taken for: so often that the rounds, one
/// within the other, would have no end.
#[test]
fn rules_that_weigh_other_than_they_seem_are_settled_all_the_same() {
    let mut scene = Scene::new(&["home"]);
    let annotations = |text: &str| json!({"annotations": {"set": {"a": text.repeat(3_000 / text.len())}}});
    let patch = |text: &str| {
        let value = text.repeat(3_000 / text.len());
        json!({"jsonPatch": [{"op": "add", "path": "/metadata/annotations/a", "value": value}]})
    };
    let copies = (0..32).map(|n| json!({"op": "copy", "from": "/data/a", "path": format!("/data/a{n}")}));
    let shapes = [
        annotations("$("),
        annotations("$(namespace.labels['"),
        annotations("$(source.name)"),
        annotations("$(namespace.name)"),
        patch("$("),
        patch("$(source.name)"),
        patch("$(namespace.name)"),
        json!({"jsonPatch": copies.collect::<Vec<_>>()}),
    ];
    for number in 0..160 {
        let (name, created) = (format!("r{number:03}"), Timestamp::from_second(number).unwrap());
        let object = json!({
            "metadata": {"namespace": "home", "name": name, "generation": 1, "creationTimestamp": created.to_string()},
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
            "spec": {
                "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "late"}],
                "targets": [{"namespaces": ["home"], "name": format!("{name}-copy")}],
                "transform": shapes[usize::try_from(number).unwrap() % shapes.len()],
            },
        });
        scene.apply(Rule::parse_replication(&from_value(object).unwrap()).unwrap());
    }
    for size in [1_000, 2_000, 1_000] {
        scene.show(&source("home", "late"), size);
        assert!(scene.written().contains(&"home/r000-copy".to_owned()), "the oldest has room");
    }
}
