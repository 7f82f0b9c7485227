//! Variables with values of the target namespace. Each namespace fills in its own copies, and a
//! missing value affects no other namespace.

#![allow(clippy::unwrap_used)] // It is how a test fails.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use mimeo_engine::{Action, Engine, Request, Settings, Verb};
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

use crate::common::uid;

fn secrets() -> Resource {
    let gvk = GroupVersionKind::parse("v1", "Secret").unwrap();
    Resource {
        gvk,
        plural: "secrets".into(),
        namespaced: true,
    }
}

/// An engine, and an API server that accepts every request.
struct World {
    engine: Engine,
    rule: RuleId,
    role: Role,
    copies: BTreeMap<String, Value>,
    /// Verb, namespace and name of every request.
    log: Vec<String>,
    version: u64,
    now: Duration,
}

impl World {
    /// A world with one rule for all namespaces except the one of the sources. Its sources are
    /// Secrets of `home` with these names.
    fn new(role: Role, sources: &[&str], spec: &Value) -> Self {
        let rule = rule("rule", sources, spec);
        let (id, sources) = (rule.id.clone(), rule.sources.clone());
        let mut engine = Engine::new(Settings::new(role, "cluster"));
        let now = Duration::from_secs(1);
        engine.at(now).rule_applied(id.clone(), Ok(rule), None);
        engine.at(now).rules_known(
            RuleKind::ClusterReplication,
            Known::Listed(&[id.clone()].into()),
        );
        engine
            .at(now)
            .rules_known(RuleKind::Replication, Known::Unserved);
        engine.at(now).namespaces_listed(&[].into());
        engine.at(now).kinds_recorded(&[secrets().gvk].into());
        engine
            .at(now)
            .kind(&secrets().gvk, Known::Listed(secrets()));
        let _ = engine.demand();
        engine
            .at(now)
            .copies_listing(&secrets().gvk.group_kind().into());
        engine
            .at(now)
            .copies_known(&secrets().gvk.group_kind().into(), Known::Listed(6));
        let mut world = Self {
            engine,
            rule: id,
            role,
            copies: BTreeMap::new(),
            log: Vec::new(),
            version: 100,
            now,
        };
        for source in &sources {
            world.source(source, "aHVudGVyMg==");
        }
        world
    }

    fn source(&mut self, source: &SourceRef, data: &str) {
        self.version += 1;
        let object = json!({
            "metadata": {"resourceVersion": self.version.to_string(), "annotations": {"odd": "«0:0» \"$(namespace.name)\""}},
            "data": {"a": data},
        });
        self.engine
            .at(self.now)
            .source(source, Some(Decoded::Whole(object)));
    }

    /// The namespace has these labels now.
    fn namespace(&mut self, name: &str, labels: Value) {
        self.version += 1;
        let mut labels = labels;
        if self.role == Role::Injector {
            labels["mimeo.dev/copies"] = json!("token");
        }
        let number = name
            .bytes()
            .fold(0, |number, byte| number * 31 + u64::from(byte));
        let meta = json!({
            "name": name, "uid": uid(number), "resourceVersion": self.version.to_string(), "labels": labels,
        });
        self.engine
            .at(self.now)
            .namespace_applied(&from_value(meta).unwrap());
        self.engine.at(self.now).take_charge(name);
    }

    /// Carries out all actions until there are no more. Returns the requests since the last call.
    fn run(&mut self) -> Vec<String> {
        self.now += Duration::from_mins(1);
        while let Some(action) = self.engine.at(self.now).next_action() {
            if let Action::Request(request) = action {
                let outcome = self.answer(&request);
                self.engine.at(self.now).outcome(&request, outcome);
            }
        }
        std::mem::take(&mut self.log)
    }

    fn answer(&mut self, request: &Request) -> Outcome {
        let key = format!("{}/{}", request.namespace, request.name);
        let word = format!("{:?}", request.verb)
            .split('(')
            .next()
            .unwrap()
            .to_owned();
        self.log.push(format!("{word} {key}"));
        let precondition = match request.verb {
            Verb::Create => Precondition::Absent,
            Verb::Apply(uid) => Precondition::Is(uid),
            Verb::Delete(..) => {
                self.copies.remove(&key);
                return Outcome::Absent;
            }
            verb => unreachable!("{verb:?} {key}"),
        };
        let body = request
            .rendering
            .as_ref()
            .unwrap()
            .body(precondition)
            .concat();
        let mut copy: Value = serde_json::from_slice(&body).unwrap();
        self.version += 1;
        let uid = self.copies.get(&key).map_or_else(
            || json!(uid(self.version)),
            |old| old["metadata"]["uid"].clone(),
        );
        let metadata = copy["metadata"].as_object_mut().unwrap();
        assert_eq!(metadata["name"], json!(*request.name), "{key}");
        metadata.insert("uid".into(), uid);
        metadata.insert("namespace".into(), json!(*request.namespace));
        metadata.insert("resourceVersion".into(), json!(self.version.to_string()));
        let entry =
            json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsV1": {}});
        metadata.insert("managedFields".into(), json!([entry]));
        self.copies.insert(key, copy.clone());
        Outcome::Object(Box::new(from_value(copy["metadata"].take()).unwrap()))
    }

    /// Returns the namespace, name and reason of each failure in the rule's status.
    fn failures(&mut self) -> Vec<[String; 3]> {
        // The status is written whether or not it changed.
        self.engine.at(self.now).status_failed(&self.rule);
        self.now += Duration::from_secs(6);
        let status = self
            .engine
            .at(self.now)
            .statuses(Timestamp::UNIX_EPOCH)
            .pop()
            .unwrap()
            .status;
        assert_eq!(
            status.copies.unwrap().failed,
            i32::try_from(status.failures.len()).unwrap()
        );
        status
            .failures
            .into_iter()
            .map(|one| [one.namespace, one.name, one.reason])
            .collect()
    }

    fn annotation(&self, copy: &str, key: &str) -> &str {
        self.copies[copy]["metadata"]["annotations"][key]
            .as_str()
            .unwrap()
    }
}

fn rule(name: &str, sources: &[&str], spec: &Value) -> Rule {
    let source = |name: &&str| json!({"apiVersion": "v1", "kind": "Secret", "namespace": "home", "name": name});
    let mut rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": name},
        "spec": {"sources": sources.iter().map(source).collect::<Vec<_>>()},
    });
    for (field, value) in spec.as_object().unwrap() {
        rule["spec"][field] = value.clone();
    }
    Rule::parse(&from_value(rule).unwrap()).unwrap()
}

fn everywhere(name: &str, transform: &Value) -> Value {
    json!({
        "targets": [{"namespaceSelector": {}, "copyName": name}], "exclude": [{"namespaces": ["home"]}],
        "transform": transform,
    })
}

#[test]
fn each_namespace_fills_in_its_own_values_and_the_rest_is_shared() {
    let transform = json!({
        "labels": {"set": {"team": "t$(namespace.labels['team'])"}},
        "annotations": {"set": {"at": "$(source.name) of $(namespace.name), \"$(HOME)\""}},
    });
    let mut world = World::new(
        Role::Keeper,
        &["a"],
        &everywhere("$(source.name)-$(namespace.name)", &transform),
    );
    world.namespace("one", json!({"team": "red"}));
    world.namespace("two", json!({"team": ""}));
    assert_eq!(world.run(), ["Create one/a-one", "Create two/a-two"]);
    for (copy, at, team) in [("one/a-one", "one", "tred"), ("two/a-two", "two", "t")] {
        assert_eq!(
            world.annotation(copy, "at"),
            format!("a of {at}, \"$(HOME)\"")
        );
        assert_eq!(
            world.annotation(copy, "odd"),
            "«0:0» \"$(namespace.name)\"",
            "a source's own text is text"
        );
        assert_eq!(world.copies[copy]["metadata"]["labels"]["team"], team);
        assert_eq!(world.copies[copy]["data"]["a"], "aHVudGVyMg==");
    }
    let checksums = ["one/a-one", "two/a-two"]
        .map(|copy| world.annotation(copy, "mimeo.dev/checksum").to_owned());
    assert_ne!(checksums[0], checksums[1]);
    assert!(world.failures().is_empty());
    assert_eq!(world.run(), Vec::<String>::new(), "all is as it should be");
}

#[test]
fn a_label_that_comes_back_leaves_nothing_of_the_failure() {
    let transform = json!({"annotations": {"set": {"team": "$(namespace.labels['team'])"}}});
    let mut world = World::new(Role::Keeper, &["a"], &everywhere("a", &transform));
    world.namespace("one", json!({"team": "red", "tier": "iron"}));
    assert_eq!(world.run(), ["Create one/a"]);
    assert!(world.failures().is_empty());
    world.namespace("one", json!({}));
    assert_eq!(world.run(), Vec::<String>::new());
    assert_eq!(
        world.failures(),
        [["one", "a", "VariableUnset"].map(String::from)]
    );
    world.now += Duration::from_mins(1);
    assert_eq!(
        world.engine.at(world.now).statuses(Timestamp::UNIX_EPOCH),
        [],
        "nothing is due"
    );
    world.namespace("one", json!({"team": "red", "tier": "iron"}));
    assert_eq!(world.run(), Vec::<String>::new());
    let told = world.engine.at(world.now).statuses(Timestamp::UNIX_EPOCH);
    assert!(told[0].status.failures.is_empty(), "{told:?}");
}

#[test]
fn the_bytes_between_the_values_are_in_memory_once() {
    let mut world = World::new(
        Role::Keeper,
        &["a"],
        &everywhere("$(namespace.name)", &json!({})),
    );
    world.namespace("one", json!({}));
    world.namespace("two", json!({}));
    let mut bodies = Vec::new();
    while let Some(action) = world.engine.at(world.now).next_action() {
        if let Action::Request(request) = action {
            bodies.push(request.rendering.unwrap().body(Precondition::Absent));
        }
    }
    let [one, two] = &bodies[..] else {
        panic!("{} bodies", bodies.len())
    };
    let secret = |body: &Vec<bytes::Bytes>| {
        let text = |piece: &&bytes::Bytes| String::from_utf8_lossy(piece).contains("aHVudGVyMg==");
        body.iter().find(text).unwrap().as_ptr()
    };
    assert_eq!(secret(one), secret(two));
}

#[test]
fn a_missing_label_is_the_trouble_of_its_namespace_alone() {
    for (name, transform) in [
        ("a-$(namespace.labels['team'])", json!({})),
        (
            "a",
            json!({"annotations": {"set": {"x": "$(namespace.labels['team'])"}}}),
        ),
    ] {
        let mut world = World::new(Role::Keeper, &["a"], &everywhere(name, &transform));
        world.namespace("one", json!({}));
        world.namespace("two", json!({"team": "red"}));
        assert_eq!(world.run().len(), 1, "{name}");
        let failures = world.failures();
        assert!(
            matches!(&failures[..], [[namespace, copy, reason]] if namespace == "one" && copy == name && reason == "VariableUnset"),
            "{failures:?}"
        );
        world.namespace("one", json!({"team": "blue"}));
        assert_eq!(world.run().len(), 1, "{name}");
        assert!(world.failures().is_empty(), "{name}");
        // An existing copy stays while its right content is unknown.
        world.namespace("one", json!({}));
        assert_eq!(world.run(), Vec::<String>::new(), "{name}");
        assert_eq!(
            (world.copies.len(), world.failures().len()),
            (2, 1),
            "{name}"
        );
    }
}

/// A copy name with a missing label does not exist, so neither rule has it.
#[test]
fn of_two_rules_that_lack_the_same_label_each_says_so() {
    let spec = everywhere("a-$(namespace.labels['team'])", &json!({}));
    let mut world = World::new(Role::Keeper, &["a"], &spec);
    let other = rule("second", &["a"], &spec);
    let ids = [world.rule.clone(), other.id.clone()];
    world
        .engine
        .at(world.now)
        .rule_applied(other.id.clone(), Ok(other), None);
    world.namespace("one", json!({}));
    assert_eq!(world.run(), Vec::<String>::new());
    let told = |world: &mut World| {
        ids.each_ref().map(|id| {
            world.rule = id.clone();
            world
                .failures()
                .into_iter()
                .map(|[_, _, reason]| reason)
                .collect::<Vec<_>>()
        })
    };
    let unset = || vec!["VariableUnset".to_owned()];
    assert_eq!(told(&mut world), [unset(), unset()]);
    let notes: Vec<String> = world
        .engine
        .at(world.now)
        .event_updates()
        .into_iter()
        .map(|event| event.note)
        .collect();
    assert_eq!(
        notes
            .iter()
            .filter(|note| note.contains("VariableUnset: the namespace has no value"))
            .count(),
        4,
        "{notes:#?}"
    );
    // With the label, one of the rules has the copy.
    world.namespace("one", json!({"team": "red"}));
    assert_eq!(world.run(), ["Create one/a-red"]);
    assert_eq!(told(&mut world), [vec![], vec!["RuleConflict".to_owned()]]);
}

#[test]
fn what_no_copy_may_be_named_is_not_sent() {
    let name = "a-$(namespace.labels['team'])";
    let mut world = World::new(Role::Keeper, &["a"], &everywhere(name, &json!({})));
    world.namespace("one", json!({"team": ""}));
    world.namespace("two", json!({"team": "red"}));
    assert_eq!(world.run(), ["Create two/a-red"]);
    let failures = world.failures();
    assert!(
        matches!(&failures[..], [[namespace, _, reason]] if namespace == "one" && reason == "Invalid"),
        "{failures:?}"
    );
}

#[test]
fn copies_follow_the_labels_of_their_namespace() {
    let transform = json!({"annotations": {"set": {"x": "$(namespace.labels['x'])"}}});
    let mut world = World::new(
        Role::Keeper,
        &["a"],
        &everywhere("a-$(namespace.labels['team'])", &transform),
    );
    world.namespace("one", json!({"team": "red", "x": "1"}));
    assert_eq!(world.run(), ["Create one/a-red"]);
    world.namespace("one", json!({"team": "red", "x": "1", "other": "label"}));
    assert_eq!(world.run(), Vec::<String>::new());
    world.namespace("one", json!({"team": "red", "x": "2"}));
    assert_eq!(world.run(), ["Apply one/a-red"]);
    assert_eq!(world.annotation("one/a-red", "x"), "2");
    // The new copy is written first.
    world.namespace("one", json!({"team": "blue", "x": "2"}));
    assert_eq!(world.run(), ["Create one/a-blue", "Delete one/a-red"]);
    // Without a new copy, the old one is not deleted.
    world.namespace("one", json!({"x": "2"}));
    assert_eq!(world.run(), Vec::<String>::new());
    assert_eq!(world.copies.keys().collect::<Vec<_>>(), ["one/a-blue"]);
}

#[test]
fn a_copy_stays_while_another_rule_has_its_new_name() {
    let mut world = World::new(
        Role::Keeper,
        &["a"],
        &everywhere("a-$(namespace.labels['team'])", &json!({})),
    );
    let other = rule("other", &["a"], &everywhere("a-blue", &json!({})));
    let ids = [world.rule.clone(), other.id.clone()];
    world
        .engine
        .at(world.now)
        .rule_applied(other.id.clone(), Ok(other), None);
    world
        .engine
        .at(world.now)
        .rules_known(RuleKind::ClusterReplication, Known::Listed(&ids.into()));
    world.namespace("one", json!({"team": "red"}));
    assert_eq!(world.run(), ["Create one/a-blue", "Create one/a-red"]);
    world.namespace("one", json!({"team": "blue"}));
    assert_eq!(world.run(), Vec::<String>::new());
    assert_eq!(world.failures(), [["one", "a-blue", "RuleConflict"]]);
    world.namespace("one", json!({"team": "green"}));
    assert_eq!(world.run(), ["Create one/a-green", "Delete one/a-red"]);
}

/// The API server's answer about the former value doesn't apply to the present one.
#[test]
fn another_value_is_another_try() {
    let transform = json!({"annotations": {"set": {"x": "$(namespace.labels['x'])"}}});
    let mut world = World::new(Role::Keeper, &["a"], &everywhere("a", &transform));
    world.namespace("one", json!({"x": "1"}));
    let Some(Action::Request(request)) = world.engine.at(world.now).next_action() else {
        panic!("no request")
    };
    let status = from_value(json!({"code": 422, "reason": "Invalid"})).unwrap();
    let refused = Outcome::of_error(422, &status, None, &request.resource, &request.name);
    world.engine.at(world.now).outcome(&request, refused);
    assert_eq!((world.run(), world.failures().len()), (Vec::new(), 1));
    world.namespace("one", json!({"x": "2"}));
    assert_eq!(world.run(), ["Create one/a"]);
}

#[test]
fn a_name_never_leads_to_a_source() {
    let mut spec = everywhere("$(namespace.labels['copy'])", &json!({}));
    spec["targets"][0]["exclude"] = json!({"namespaces": ["none"]});
    let mut world = World::new(Role::Keeper, &["a"], &spec);
    world.namespace("home", json!({"copy": "a"}));
    world.namespace("one", json!({"copy": "a"}));
    assert_eq!(world.run(), ["Create one/a"]);
}

#[test]
fn of_two_sources_for_one_cell_the_second_is_reported() {
    let name = "$(source.name)-x";
    let mut spec = everywhere(name, &json!({}));
    spec["targets"] = json!([{"namespaces": ["one"], "copyName": "$(source.name)"}, {"namespaces": ["one"], "copyName": name}]);
    let mut world = World::new(Role::Keeper, &["a", "a-x"], &spec);
    world.namespace("one", json!({}));
    assert_eq!(
        world.run(),
        ["Create one/a", "Create one/a-x", "Create one/a-x-x"]
    );
    assert_eq!(
        world.annotation("one/a-x", "mimeo.dev/source"),
        "v1/Secret/home/a-x"
    );
    assert_eq!(world.failures(), [["one", "a-x", "RuleConflict"]]);
}

/// Pods never wait for a copy that Mimeo cannot make: they are refused, or admitted with a warning.
#[test]
fn a_copy_that_cannot_be_filled_in_holds_pods_as_one_that_cannot_be_written() {
    let unset = "a-$(namespace.labels['team'])";
    let test = json!({"jsonPatch": [{"op": "test", "path": "/data/a", "value": "MQ=="}]});
    for (spec, copy, why) in [
        (everywhere(unset, &json!({})), unset, "VariableUnset"),
        (everywhere("a", &test), "a", "Invalid"),
    ] {
        for (pod_gate, denied, excused) in [("Required", 1, 0), ("BestEffort", 0, 1)] {
            let mut spec = spec.clone();
            spec["podGate"] = json!(pod_gate);
            let mut world = World::new(Role::Injector, &["a"], &spec);
            world.namespace("one", json!({}));
            assert_eq!(world.run(), Vec::<String>::new());
            let progress = world.engine.at(world.now).progress("one");
            assert_eq!(
                (
                    progress.waiting.len(),
                    progress.denied.len(),
                    progress.excused.len()
                ),
                (0, denied, excused),
                "{why} {copy}"
            );
            let told = progress
                .denied
                .iter()
                .chain(&progress.excused)
                .next()
                .unwrap();
            assert_eq!((&*told.copy, &*told.why), (&*format!("Secret {copy}"), why));
        }
    }
}

#[test]
fn a_patch_is_filled_in_and_marks_are_out_of_its_reach() {
    let patch = json!([
        {"op": "add", "path": "/spec", "value": {"at": ["$(namespace.name)"], "of": "$(source.name)"}},
        {"op": "add", "path": "/metadata/labels/team", "value": "t-$(namespace.labels['team'])"},
        {"op": "copy", "from": "/data/a", "path": "/data/b"},
    ]);
    let mut world = World::new(
        Role::Keeper,
        &["a"],
        &everywhere("a", &json!({"jsonPatch": patch})),
    );
    world.namespace("one", json!({"team": "red"}));
    assert_eq!(world.run(), ["Create one/a"]);
    let copy = &world.copies["one/a"];
    assert_eq!(copy["spec"], json!({"at": ["one"], "of": "a"}));
    assert_eq!(
        copy["data"],
        json!({"a": "aHVudGVyMg==", "b": "aHVudGVyMg=="})
    );
    assert_eq!(copy["metadata"]["labels"]["team"], "t-red");
    assert_eq!(
        copy["metadata"]["labels"]["app.kubernetes.io/managed-by"],
        "mimeo"
    );
}

/// Then the fields that a copy owns depend on its namespace. Other copies' fields cannot be
/// compared with them.
#[test]
fn a_copy_with_values_in_a_list_is_written_again_when_in_doubt() {
    for (value, verb) in [
        (json!(["$(namespace.name)"]), "Apply"),
        (json!("$(namespace.name)"), "Learn"),
    ] {
        let patch = json!([{"op": "add", "path": "/spec", "value": value}]);
        let mut world = World::new(
            Role::Keeper,
            &["a"],
            &everywhere("a", &json!({"jsonPatch": patch})),
        );
        world.namespace("one", json!({}));
        assert_eq!(world.run(), ["Create one/a"]);
        // The same as after a restart: only the facts from the watch are known.
        let mut copy = world.copies["one/a"].clone();
        let mut other = World::new(
            Role::Keeper,
            &["a"],
            &everywhere("a", &json!({"jsonPatch": patch})),
        );
        other.namespace("one", json!({}));
        let meta = from_value(copy["metadata"].take()).unwrap();
        other
            .engine
            .at(other.now)
            .copy_applied(&secrets().gvk.group_kind(), &meta);
        let Some(Action::Request(request)) = other.engine.at(other.now).next_action() else {
            panic!("no request")
        };
        assert!(
            format!("{:?}", request.verb).starts_with(verb),
            "{:?}",
            request.verb
        );
    }
}

#[test]
fn a_patch_that_does_not_fit_fails_with_each_copy() {
    for (patch, part) in [
        (
            json!({"op": "test", "path": "/data/a", "value": "MQ=="}),
            "transform.jsonPatch[0] can't be applied: the test",
        ),
        (
            json!({"op": "add", "path": "/metadata/labels/x", "value": "a b"}),
            "metadata.labels[x]",
        ),
        (
            json!({"op": "add", "path": "/metadata/annotations/x", "value": 1}),
            "metadata.annotations[x]",
        ),
    ] {
        let mut world = World::new(
            Role::Keeper,
            &["a"],
            &everywhere("a", &json!({"jsonPatch": [patch]})),
        );
        world.namespace("one", json!({}));
        assert_eq!(world.run(), Vec::<String>::new());
        world.now += Duration::from_secs(6);
        let status = world
            .engine
            .at(world.now)
            .statuses(Timestamp::UNIX_EPOCH)
            .pop()
            .unwrap()
            .status;
        let reasons: Vec<_> = status
            .conditions
            .iter()
            .map(|one| (&*one.type_, &*one.reason))
            .collect();
        assert!(
            reasons.contains(&("Ready", "CopiesFailed"))
                && reasons.contains(&("SourcesFound", "Found")),
            "{reasons:?}"
        );
        let [failure] = &status.failures[..] else {
            panic!("{:?}", status.failures)
        };
        assert_eq!((&*failure.namespace, &*failure.reason), ("one", "Invalid"));
        assert!(
            failure.message.contains(part) && !failure.message.contains("aHVudGVyMg"),
            "{}",
            failure.message
        );
    }
}

#[test]
fn a_preview_counts_no_copy_that_cannot_be_filled_in() {
    let mut spec = everywhere("a-$(namespace.labels['team'])", &json!({}));
    spec["suspend"] = json!(true);
    let mut world = World::new(Role::Keeper, &["a"], &spec);
    world.namespace("one", json!({}));
    while world.engine.at(world.now).next_action().is_some() {}
    let failures = world.failures();
    assert!(
        matches!(&failures[..], [[_, _, reason]] if reason == "VariableUnset"),
        "{failures:?}"
    );
}
