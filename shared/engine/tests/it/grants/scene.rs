//! A test scene: namespaces with rules and grants, and an engine with all requests carried out at
//! once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use mimeo_api::ClusterReplicationStatus;
use mimeo_engine::{
    Action, Answer, Engine, GrantsRead, Home, Job, Member, Members, Presence, Request, Settings,
    Task, Verb,
};
use mimeo_model::{
    grant::{Edition, Grant},
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

pub(crate) struct Scene {
    pub(crate) engine: Engine,
    pub(crate) now: Duration,
    pub(crate) version: u32,
    /// Metadata of the existing objects, by `namespace/name`.
    pub(crate) objects: BTreeMap<String, Value>,
    /// The writes and deletes since the last look.
    pub(crate) done: Vec<String>,
    pub(crate) statuses: BTreeMap<RuleId, ClusterReplicationStatus>,
    /// Uids of the namespaces.
    pub(crate) uids: BTreeMap<String, u32>,
    /// Jobs without an answer so far.
    pub(crate) jobs: Vec<Job>,
    /// When the CRDs of rules were created.
    pub(crate) defined: u32,
}

impl Scene {
    /// Creates a scene with these empty namespaces. The grants are not listed yet.
    pub(crate) fn unlisted(namespaces: &[&str]) -> Self {
        let mut scene = Self::starting(namespaces);
        for kind in RuleKind::ALL {
            scene
                .engine
                .at(scene.now)
                .rules_known(kind, Known::Listed(&BTreeSet::new()));
        }
        scene
    }

    /// The same, but the rules are not listed either.
    pub(crate) fn starting(namespaces: &[&str]) -> Self {
        let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
        let now = Duration::from_secs(1);
        engine.at(now).kinds_recorded(&[secrets()].into());
        engine.at(now).kind(
            &secrets(),
            Known::Listed(Resource {
                gvk: secrets(),
                plural: "secrets".into(),
                namespaced: true,
            }),
        );
        let mut scene = Self {
            engine,
            now,
            version: 100,
            objects: BTreeMap::new(),
            done: Vec::new(),
            statuses: BTreeMap::new(),
            uids: BTreeMap::new(),
            jobs: Vec::new(),
            defined: 0,
        };
        for name in namespaces {
            scene.namespace(name, &json!({}));
        }
        scene
            .engine
            .at(now)
            .namespaces_listed(&namespaces.iter().map(|name| (*name).into()).collect());
        scene
            .engine
            .at(now)
            .copies_listing(&secrets().group_kind().into());
        scene
            .engine
            .at(now)
            .copies_known(&secrets().group_kind().into(), Known::Listed(100));
        scene
    }

    pub(crate) fn new(namespaces: &[&str]) -> Self {
        let mut scene = Self::unlisted(namespaces);
        scene
            .engine
            .at(scene.now)
            .grants_known(Known::Listed(&BTreeSet::new()));
        scene
    }

    pub(crate) fn namespace(&mut self, name: &str, labels: &Value) {
        self.version += 1;
        let uid = *self.uids.entry(name.to_owned()).or_insert(self.version);
        let meta = json!({
            "name": name, "uid": self::uid(uid), "labels": labels, "resourceVersion": self.version.to_string(),
        });
        self.engine
            .at(self.now)
            .namespace_applied(&from_value(meta).unwrap());
    }

    pub(crate) fn rule(&mut self, rule: Rule) -> RuleId {
        let id = rule.id.clone();
        self.engine
            .at(self.now)
            .rule_applied(id.clone(), Ok(rule), None);
        self.run();
        id
    }

    pub(crate) fn grant(&mut self, namespace: &str, grant: Grant) {
        let name = format!("{:?}", grant.access);
        self.engine
            .at(self.now)
            .grant_applied(namespace, &name, Ok(grant));
        self.run();
    }

    pub(crate) fn revoke(&mut self, namespace: &str, access: &str) {
        self.engine.at(self.now).grant_gone(namespace, access);
        self.run();
    }

    /// Answers a read of the grants of an existing namespace with these names. `defined` is when
    /// the CRD of grants was created.
    pub(crate) fn tell_grants(&mut self, namespace: &str, names: &[&str], defined: Option<&str>) {
        self.tell_grants_of(namespace, names, 0, defined);
    }

    /// The same, with this generation for each grant.
    pub(crate) fn tell_grants_of(
        &mut self,
        namespace: &str,
        names: &[&str],
        generation: i64,
        defined: Option<&str>,
    ) {
        let read = GrantsRead {
            grants: names
                .iter()
                .map(|name| {
                    (
                        (*name).into(),
                        Edition {
                            uid: None,
                            generation,
                        },
                    )
                })
                .collect(),
            home: Home {
                namespace: Some(1),
                crd: defined.map(seconds),
            },
        };
        self.answer(&Task::ConfirmGrants(namespace.into()), Answer::Grants(read));
        self.run();
    }

    /// True if the engine has requested this task and waits for the answer.
    pub(crate) fn asks(&self, task: &Task) -> bool {
        self.jobs.iter().any(|job| job.task == *task)
    }

    /// Answers a requested task.
    #[track_caller]
    pub(crate) fn answer(&mut self, task: &Task, answer: Answer) {
        let asked = self.jobs.iter().position(|job| job.task == *task);
        let asked = asked.ok_or_else(|| format!("{task:?} isn't asked"));
        let job = self.jobs.remove(asked.unwrap());
        self.engine.at(self.now).answered(&job, answer);
    }

    /// Answers a read of a rule.
    #[track_caller]
    pub(crate) fn tell_rule(&mut self, id: &str, read: Presence) {
        let id = id.parse().unwrap();
        self.answer(&Task::ConfirmRule(id), Answer::Presence(read));
    }

    /// Answers every read of a rule: the rule does not exist, but its CRD and its namespace do.
    /// `home_created` is when that namespace was created.
    pub(crate) fn tell_rules_gone(&mut self, home_created: u32) {
        let rules: Vec<RuleId> = self
            .jobs
            .iter()
            .filter_map(|job| match &job.task {
                Task::ConfirmRule(id) => Some(id.clone()),
                _ => None,
            })
            .collect();
        for id in rules {
            let namespace = id.namespace.as_ref().map_or(0, |_| home_created);
            let home = Home {
                namespace: Some(namespace),
                crd: Some(self.defined),
            };
            let read = Presence::Absent(home);
            self.answer(&Task::ConfirmRule(id), Answer::Presence(read));
        }
        self.run();
    }

    /// True if a rule's status reports a held deletion.
    pub(crate) fn holds(&mut self, id: &RuleId) -> bool {
        let conditions = self.status(id).conditions;
        conditions
            .iter()
            .any(|condition| condition.type_ == "Stalled" && condition.reason == "DeletionHeld")
    }

    /// True if the engine wants a watch of the source.
    pub(crate) fn watched(&mut self, source: &SourceRef) -> bool {
        self.engine.demand().sources.contains_key(source)
    }

    /// Returns the selectors that the engine wants to watch in that namespace.
    pub(crate) fn selectors(&mut self, namespace: &str) -> Vec<SourceSelector> {
        let selectors = self.engine.demand().selectors.into_keys();
        selectors
            .filter(|selector| *selector.namespace == *namespace)
            .collect()
    }

    /// The watches of the selectors in this namespace show exactly these objects, the oldest first.
    pub(crate) fn find(&mut self, namespace: &str, names: &[&str]) {
        let objects: Vec<Value> = names
            .iter()
            .enumerate()
            .map(|(age, name)| found(namespace, name, age))
            .collect();
        for selector in self.selectors(namespace) {
            let mut members = Members::default();
            for object in &objects {
                members.extend(Member::of(object));
                let source = selector.source(object["metadata"]["name"].as_str().unwrap());
                self.engine
                    .at(self.now)
                    .source(&source, Some(Decoded::Whole(object.clone())));
            }
            self.engine
                .at(self.now)
                .selected(&selector, Known::Listed(&members));
        }
        self.run();
    }

    /// The watch of the source shows it.
    pub(crate) fn show(&mut self, source: &SourceRef) {
        assert!(self.watched(source), "{source} isn't watched");
        self.version += 1;
        let object = json!({
            "metadata": {
                "resourceVersion": self.version.to_string(), "creationTimestamp": "2025-12-31T00:00:00Z",
            },
            "type": "Opaque", "data": {"a": "b"},
        });
        self.engine
            .at(self.now)
            .source(source, Some(Decoded::Whole(object)));
        self.run();
    }

    /// Puts an object that isn't Mimeo's own into the place of a copy.
    pub(crate) fn stranger(&mut self, key: &str) {
        self.version += 1;
        let (namespace, name) = key.split_once('/').unwrap();
        let entry = json!({"manager": "stranger", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        let meta = json!({
            "name": name, "namespace": namespace, "uid": uid(self.version), "resourceVersion": self.version.to_string(),
            "managedFields": [entry],
        });
        self.objects.insert(key.to_owned(), meta);
    }

    /// Creates an object that looks like a copy of this rule.
    pub(crate) fn mark(&mut self, namespace: &str, name: &str, rule: &str) {
        self.mark_of("2026-02-01T00:00:00Z", namespace, name, rule);
    }

    /// The same, with this time of the last write.
    pub(crate) fn mark_of(&mut self, written: &str, namespace: &str, name: &str, rule: &str) {
        self.mark_created(None, written, namespace, name, rule);
    }

    /// The same, with this creation time, if it is known.
    pub(crate) fn mark_created(
        &mut self,
        created: Option<&str>,
        written: &str,
        namespace: &str,
        name: &str,
        rule: &str,
    ) {
        self.version += 1;
        let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}, "time": written});
        let meta = json!({
            "name": name, "namespace": namespace, "uid": uid(self.version), "resourceVersion": self.version.to_string(),
            "labels": {"app.kubernetes.io/managed-by": "mimeo"}, "managedFields": [entry], "creationTimestamp": created,
            "annotations": {"mimeo.dev/rule": rule, "mimeo.dev/cluster": "cluster", "mimeo.dev/source": "v1/Secret/a/b"},
        });
        self.engine
            .at(self.now)
            .copy_applied(&secrets().group_kind(), &from_value(meta.clone()).unwrap());
        self.objects.insert(format!("{namespace}/{name}"), meta);
    }

    /// Carries out all actions of the engine.
    pub(crate) fn run(&mut self) {
        while let Some(action) = self.engine.at(self.now).next_action() {
            match action {
                Action::Request(request) => self.carry_out(&request),
                // Copies of the kind may exist, whether or not a rule wants some.
                Action::Job(job) if matches!(job.task, Task::ForgetKind(..)) => {
                    self.engine.at(self.now).answered(&job, Answer::Changed);
                }
                Action::Job(job) => self.jobs.push(*job),
            }
        }
    }

    pub(crate) fn carry_out(&mut self, request: &Request) {
        let key = format!("{}/{}", request.namespace, request.name);
        let there = self
            .objects
            .get(&key)
            .map(|meta| Outcome::Object(Box::new(from_value(meta.clone()).unwrap())));
        let outcome = match request.verb {
            Verb::Create if there.is_some() => Outcome::Conflict,
            Verb::Create | Verb::Apply(_) | Verb::Take(..) => {
                self.done.push(format!("write {key}"));
                let written = self.written(request);
                self.objects.insert(key, written.clone());
                Outcome::Object(Box::new(from_value(written).unwrap()))
            }
            Verb::Delete(..) => {
                self.done.push(format!("delete {key}"));
                self.objects.remove(&key);
                Outcome::Absent
            }
            Verb::Look | Verb::Learn(_) | Verb::Compare(..) | Verb::Claim(..) => {
                there.unwrap_or(Outcome::Absent)
            }
        };
        self.engine.at(self.now).outcome(request, outcome);
    }

    /// Returns the next request, without an answer.
    pub(crate) fn request(&mut self) -> Request {
        loop {
            match self.engine.at(self.now).next_action().unwrap() {
                Action::Request(request) => return *request,
                Action::Job(job) => self.jobs.push(*job),
            }
        }
    }

    pub(crate) fn written(&mut self, request: &Request) -> Value {
        self.version += 1;
        let body = request
            .rendering
            .as_ref()
            .unwrap()
            .body(Precondition::Absent)
            .concat();
        let mut meta = serde_json::from_slice::<Value>(&body).unwrap()["metadata"].take();
        let entry = json!({"manager": "mimeo", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        let (name, namespace, version) = (&*request.name, &*request.namespace, self.version);
        let known = self
            .objects
            .get(&format!("{namespace}/{name}"))
            .map(|meta| meta["uid"].clone());
        meta["uid"] = known.unwrap_or_else(|| uid(version).into());
        meta["resourceVersion"] = version.to_string().into();
        meta["managedFields"] = json!([entry]);
        meta["creationTimestamp"] = json!("2026-02-01T00:00:00Z");
        (meta["name"], meta["namespace"]) = (name.into(), namespace.into());
        meta
    }

    /// Returns the writes and deletes since the last look.
    pub(crate) fn done(&mut self) -> Vec<String> {
        self.run();
        std::mem::take(&mut self.done)
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.run();
    }

    pub(crate) fn status(&mut self, id: &RuleId) -> ClusterReplicationStatus {
        self.run();
        self.now += Duration::from_secs(5);
        let statuses = self.engine.at(self.now).statuses(Timestamp::UNIX_EPOCH);
        for update in statuses {
            self.statuses.insert(update.id, update.status);
        }
        self.statuses[id].clone()
    }
}

/// Returns a time in seconds since 1970.
pub(crate) fn seconds(time: &str) -> u32 {
    u32::try_from(time.parse::<Timestamp>().unwrap().as_second()).unwrap()
}

pub(crate) fn secrets() -> GroupVersionKind {
    GroupVersionKind::parse("v1", "Secret").unwrap()
}

fn found(namespace: &str, name: &str, age: usize) -> Value {
    let time = format!("2026-01-01T00:{:02}:{:02}Z", age / 60, age % 60);
    json!({
        "metadata": {"namespace": namespace, "name": name, "resourceVersion": "9", "creationTimestamp": time},
        "type": "Opaque", "data": {"a": "b"},
    })
}

pub(crate) fn source(namespace: &str, name: &str) -> SourceRef {
    SourceRef::named(secrets(), namespace, name)
}

pub(crate) fn replication(home: &str, name: &str, spec: &Value) -> Rule {
    let object = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
        "metadata": {"namespace": home, "name": name, "generation": 1, "resourceVersion": "1"}, "spec": spec,
    });
    Rule::parse_replication(&from_value(object).unwrap()).unwrap()
}

pub(crate) fn cluster_replication(name: &str, spec: &Value) -> Rule {
    let object = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication",
        "metadata": {"name": name, "generation": 1, "resourceVersion": "1"}, "spec": spec,
    });
    Rule::parse(&from_value(object).unwrap()).unwrap()
}

/// A rule that copies the objects with the label `copy` from `from` to `to`.
pub(crate) fn selecting(from: &str, to: &[&str]) -> Value {
    let labels = json!({"matchExpressions": [{"key": "copy", "operator": "Exists"}]});
    json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": from, "selector": labels}],
        "targets": [{"namespaces": to, "copyName": "$(source.name)-copy"}],
    })
}

/// A rule that copies `from/name` to `to`.
pub(crate) fn copying(from: &str, name: &str, to: &[&str]) -> Value {
    json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": from, "name": name}],
        "targets": [{"namespaces": to}],
    })
}

pub(crate) fn grant(access: &str, from: &Value, names: &[&str]) -> Grant {
    let mut to = json!({"apiVersion": "v1", "kind": "Secret"});
    if !names.is_empty() {
        to["names"] = json!(names);
    }
    let object = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant", "metadata": {"namespace": "any", "name": "any"},
        "spec": {"access": access, "grantees": [from], "objects": [to]},
    });
    Grant::parse(&from_value(object).unwrap()).unwrap()
}

pub(crate) fn to(home: &str) -> Value {
    json!({"namespaces": [home]})
}

pub(crate) fn condition(
    status: &ClusterReplicationStatus,
    type_: &str,
) -> (String, String, String) {
    let found = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == type_)
        .unwrap();
    (
        found.status.clone(),
        found.reason.clone(),
        found.message.clone(),
    )
}

pub(crate) fn words(status: &ClusterReplicationStatus, type_: &str) -> String {
    let (status, reason, _) = condition(status, type_);
    format!("{status} {reason}")
}
