//! An engine, the copies that it writes, and the events of its watches.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use mimeo_api::ClusterReplicationStatus;
use mimeo_engine::{
    Action, Answer, Engine, Member, Members, Presence, Request, Settings, Task, Verb,
};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    outcome::Outcome,
    render::Precondition,
    role::Role,
    rule::Rule,
    source::{SourceRef, SourceSelector},
};
use serde_json::{Value, from_value, json};

use crate::common::uid;

/// The time of all writes of copies, as text and in seconds.
const WRITTEN: &str = "2026-01-02T00:00:00Z";
pub(crate) const WRITTEN_AT: u32 = 1_767_312_000;

pub(crate) const NAMESPACES: [&str; 4] = ["home", "away", "one", "two"];

pub(crate) fn secrets() -> GroupVersionKind {
    GroupVersionKind::parse("v1", "Secret").unwrap()
}

/// An engine, and the copies that it has written.
pub(crate) struct World {
    resource: Resource,
    pub(crate) engine: Engine,
    pub(crate) now: Duration,
    pub(crate) copies: BTreeMap<String, Value>,
    pub(crate) written: usize,
    /// The answer to each read of a source that must be confirmed, and the sources that were read.
    pub(crate) read: Option<Presence>,
    pub(crate) confirmed: BTreeSet<SourceRef>,
    /// The sources that the engine wants to read.
    pub(crate) reads: Vec<SourceRef>,
}

pub(crate) fn rule(name: &str, selectors: &[Value], to: &[&str], more: &Value) -> Rule {
    let sources: Vec<Value> = selectors
        .iter()
        .map(|selector| {
            let mut source = json!({"apiVersion": "v1", "kind": "Secret"});
            source
                .as_object_mut()
                .unwrap()
                .extend(selector.as_object().unwrap().clone());
            source
        })
        .collect();
    let mut rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": name, "generation": 1},
        "spec": {"sources": sources, "targets": [{"namespaces": to}]},
    });
    rule["spec"]
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    Rule::parse(&from_value(rule).unwrap()).unwrap()
}

/// The entry of a good copy in `managedFields`.
fn ours() -> Value {
    json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsV1": {}, "time": WRITTEN})
}

/// A selector for Secrets of namespace `home` with the label `copy`.
pub(crate) fn labelled() -> Value {
    json!({"namespace": "home", "selector": {"matchExpressions": [{"key": "copy", "operator": "Exists"}]}})
}

impl World {
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        Self::of("Secret", "secrets", rules)
    }

    /// A world with copies of another kind.
    pub(crate) fn of(kind: &str, plural: &str, rules: Vec<Rule>) -> Self {
        let gvk = GroupVersionKind::parse("v1", kind).unwrap();
        let mut world = Self {
            resource: Resource {
                gvk,
                plural: plural.into(),
                namespaced: true,
            },
            engine: Engine::new(Settings::new(Role::Keeper, "cluster")),
            now: Duration::from_secs(1),
            copies: BTreeMap::new(),
            written: 0,
            read: None,
            confirmed: BTreeSet::new(),
            reads: vec![],
        };
        world.start(rules);
        world
    }

    pub(crate) fn start(&mut self, rules: Vec<Rule>) {
        let (now, gvk) = (self.now, self.resource.gvk.clone());
        let ids: BTreeSet<RuleId> = rules.iter().map(|rule| rule.id.clone()).collect();
        for rule in rules {
            self.engine
                .at(now)
                .rule_applied(rule.id.clone(), Ok(rule), None);
        }
        self.engine
            .at(now)
            .rules_known(RuleKind::ClusterReplication, Known::Listed(&ids));
        self.engine
            .at(now)
            .rules_known(RuleKind::Replication, Known::Unserved);
        self.engine.at(now).grants_known(Known::Unserved);
        for (number, name) in NAMESPACES.into_iter().enumerate() {
            let meta = json!({"name": name, "uid": uid(number), "resourceVersion": "5"});
            self.engine
                .at(now)
                .namespace_applied(&from_value(meta).unwrap());
        }
        self.engine
            .at(now)
            .namespaces_listed(&NAMESPACES.map(Into::into).into());
        self.engine.at(now).kinds_recorded(&[gvk.clone()].into());
        self.engine
            .at(now)
            .kind(&gvk, Known::Listed(self.resource.clone()));
        let _ = self.engine.demand();
        self.engine.at(now).copies_listing(&gvk.group_kind().into());
        for copy in self.copies.values() {
            self.engine.at(now).copy_applied(
                &gvk.group_kind(),
                &from_value(copy["metadata"].clone()).unwrap(),
            );
        }
        self.engine
            .at(now)
            .copies_known(&gvk.group_kind().into(), Known::Listed(1_000_000));
    }

    /// Another process takes over. It knows only the cluster.
    pub(crate) fn restart(&mut self, rules: Vec<Rule>) {
        self.engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
        self.now = Duration::from_secs(1);
        self.start(rules);
    }

    pub(crate) fn selectors(&mut self) -> Vec<SourceSelector> {
        self.engine.demand().selectors.into_keys().collect()
    }

    /// The watch of every selector has shown these objects of its namespace.
    pub(crate) fn listed(&mut self, objects: &[Value]) {
        for selector in self.selectors() {
            let here = |object: &&Value| object["metadata"]["namespace"] == *selector.namespace;
            let mut found = Members::default();
            for object in objects.iter().filter(here) {
                found.extend(Member::of(object));
                let source = selector.source(object["metadata"]["name"].as_str().unwrap());
                self.engine
                    .at(self.now)
                    .source(&source, Some(Decoded::Whole(object.clone())));
            }
            self.engine
                .at(self.now)
                .selected(&selector, Known::Listed(&found));
        }
        self.settle();
    }

    pub(crate) fn shown(&mut self, object: &Value, there: bool) {
        for selector in self.selectors() {
            if object["metadata"]["namespace"] == *selector.namespace {
                let source = selector.source(object["metadata"]["name"].as_str().unwrap());
                self.engine
                    .at(self.now)
                    .source(&source, there.then(|| object.clone()).map(Decoded::Whole));
            }
        }
        self.settle();
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.settle();
    }

    /// Carries out all actions of the engine.
    pub(crate) fn settle(&mut self) {
        while let Some(action) = self.engine.at(self.now).next_action() {
            match action {
                Action::Request(request) => {
                    let outcome = self.carry_out(&request);
                    self.engine.at(self.now).outcome(&request, outcome);
                }
                Action::Job(job) => match &job.task {
                    Task::ConfirmSource(source) => {
                        self.confirmed.insert(source.clone());
                        let answer = self.read.map_or(Answer::Failed, Answer::Presence);
                        self.engine.at(self.now).answered(&job, answer);
                    }
                    Task::ReadSource(source) => self.reads.push(source.clone()),
                    _ => {}
                },
            }
        }
    }

    pub(crate) fn carry_out(&mut self, request: &Request) -> Outcome {
        let key = format!("{}/{}", request.namespace, request.name);
        match request.verb {
            Verb::Create | Verb::Apply(_) => {
                let number = self.copies.get(&key).map_or(100 + self.written, |copy| {
                    copy["number"]
                        .as_u64()
                        .and_then(|number| usize::try_from(number).ok())
                        .unwrap()
                });
                self.written += 1;
                let body = request
                    .rendering
                    .as_ref()
                    .unwrap()
                    .body(Precondition::Absent)
                    .concat();
                let mut copy: Value = serde_json::from_slice(&body).unwrap();
                copy["number"] = number.into();
                copy["metadata"]["uid"] = uid(number).into();
                copy["metadata"]["namespace"] = (*request.namespace).into();
                copy["metadata"]["creationTimestamp"] = WRITTEN.into();
                copy["metadata"]["resourceVersion"] = (100 + self.written).to_string().into();
                copy["metadata"]["managedFields"] = json!([ours()]);
                let meta = from_value(copy["metadata"].clone()).unwrap();
                self.copies.insert(key, copy);
                Outcome::Object(Box::new(meta))
            }
            Verb::Delete(..) => {
                self.copies.remove(&key);
                Outcome::Absent
            }
            Verb::Look | Verb::Learn(_) => {
                let copy = self.copies.get(&key);
                copy.map_or(Outcome::Absent, |copy| {
                    let mut meta = copy["metadata"].clone();
                    if let Verb::Learn(_) = request.verb {
                        meta["managedFields"] = json!([ours()]);
                    }
                    Outcome::Object(Box::new(from_value(meta).unwrap()))
                })
            }
            Verb::Take(..) | Verb::Compare(..) | Verb::Claim(..) => Outcome::Conflict,
        }
    }

    pub(crate) fn copies(&self) -> Vec<&str> {
        self.copies.keys().map(String::as_str).collect()
    }

    /// Returns the present status of that rule.
    pub(crate) fn status_of(&mut self, name: &str) -> ClusterReplicationStatus {
        self.now += Duration::from_secs(5);
        let mut told = self.engine.at(self.now).statuses(Timestamp::UNIX_EPOCH);
        told.retain(|update| *update.id.name == *name);
        told.pop().unwrap().status
    }

    pub(crate) fn status(&mut self) -> ClusterReplicationStatus {
        self.now += Duration::from_secs(5);
        self.engine
            .at(self.now)
            .statuses(Timestamp::UNIX_EPOCH)
            .pop()
            .unwrap()
            .status
    }
}
