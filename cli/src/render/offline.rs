//! The engine on files alone: the files answer each question.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mimeo_api::{ClusterReplicationStatus, names::REPLICATION_GRANT};
use mimeo_engine::{
    Answer, Job, Member, Members, Question, Request, Settings, Snapshot, Task, Verb,
};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    names,
    outcome::{FailureReason, Outcome},
    refusal::Refusal,
    role::Role,
    rule::Rule,
    source::{SourceQuery, SourceSelector},
};
use mimeo_runtime::stored::{explain_grant, parse_rule};
use serde_json::{Value, json};

use crate::{
    files::{Files, InFile, Key, key},
    manifest::manifest,
    names::refusals,
    picture::{show_grants, show_namespaces, statuses, unsynced},
    read::{metadata, text},
};

/// The uid of each object in a file. No decision compares the uids of two objects.
const UID: &str = "00000000-0000-4000-8000-000000000001";

/// A copy that Mimeo would create.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) key: Key,
    pub(crate) rule: String,
    pub(crate) source: String,
    pub(crate) object: Value,
}

/// The copies that files make, by namespace, kind and name, and the failures of their rules.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    pub(crate) copies: Vec<Copy>,
    pub(crate) problems: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// Renders the rules of the files.
pub(crate) fn render(files: &Files) -> Rendered {
    let mut offline = Offline {
        files,
        snapshot: Snapshot::new(Settings::new(Role::Keeper, UID)),
        rules: BTreeMap::new(),
        rendered: Rendered::default(),
    };
    offline.show_rules();
    offline.show_namespaces();
    offline.show_grants();
    offline.answer_all();
    offline.collect();
    offline.rendered
}

struct Offline<'a> {
    files: &'a Files,
    snapshot: Snapshot,
    /// The valid rules.
    rules: BTreeMap<RuleId, Rule>,
    rendered: Rendered,
}

impl Offline<'_> {
    fn problem(&mut self, file: &str, object: impl std::fmt::Display, why: impl std::fmt::Display) {
        self.rendered
            .problems
            .push(format!("{file}: {object}: {why}"));
    }

    fn show_rules(&mut self) {
        for kind in RuleKind::ALL {
            let mut listed = BTreeSet::new();
            for (key, InFile { object, file }) in self.files.of_kind(&kind.to_string()) {
                let id = RuleId {
                    kind,
                    namespace: (!key.namespace.is_empty()).then(|| key.namespace.as_str().into()),
                    name: key.name.as_str().into(),
                };
                let (rule, _) = parse_rule(kind, Decoded::Whole(stored(object)));
                match &rule {
                    Ok(rule) => _ = self.rules.insert(id.clone(), rule.clone()),
                    Err(refused) => self.problem(file, &id, invalid(&refused.refusals)),
                }
                self.snapshot.engine().rule_applied(id.clone(), rule, None);
                listed.insert(id);
            }
            let engine = self.snapshot.engine();
            engine.rules_known(kind, Known::Listed(&listed));
        }
        if self.rules.is_empty() && self.rendered.problems.is_empty() {
            self.rendered
                .problems
                .push("the files have no ClusterReplication and no Replication".into());
        }
    }

    /// Shows the namespaces of the files, and those in which the files have objects.
    fn show_namespaces(&mut self) {
        let mut found: BTreeMap<&str, Value> = BTreeMap::new();
        for (key, _) in self.files.iter() {
            if !key.namespace.is_empty() {
                found.insert(&key.namespace, json!({"metadata": {"name": key.namespace}}));
            }
        }
        for (key, namespace) in self.files.namespaces() {
            found.insert(&key.name, namespace.object.clone());
        }
        let named = found.into_iter().filter_map(|(name, namespace)| {
            let mut meta = metadata(&stored(&namespace))?;
            // The API server sets this label on each namespace.
            let labels = meta.labels.get_or_insert_default();
            labels.insert("kubernetes.io/metadata.name".into(), name.into());
            Some(meta)
        });
        show_namespaces(&mut self.snapshot, &named.collect::<Vec<_>>());
    }

    fn show_grants(&mut self) {
        let mut valid = Vec::new();
        for (key, InFile { object, file }) in self.files.of_kind(REPLICATION_GRANT) {
            let object = stored(object);
            let (_, refusals) = explain_grant(Decoded::Whole(object.clone()));
            if refusals.is_empty() {
                valid.push(Decoded::Whole(object));
            } else {
                self.problem(file, key, invalid(&refusals));
            }
        }
        show_grants(&mut self.snapshot, valid);
        self.snapshot.kinds_recorded(BTreeSet::new());
    }

    fn answer_all(&mut self) {
        loop {
            let questions = self.snapshot.questions();
            if questions.is_empty() {
                return;
            }
            for question in questions {
                self.answer(question);
            }
        }
    }

    fn answer(&mut self, question: Question) {
        let files = self.files;
        let engine = self.snapshot.engine();
        match question {
            Question::Kind(gvk) => {
                let resource = assumed(&gvk);
                engine.kind(&gvk, Known::Listed(resource));
            }
            Question::Copies(watch, _) => {
                engine.copies_listing(&watch);
                engine.copies_known(&watch, Known::Listed(1));
            }
            Question::Source(source, _) => {
                let object = files.source(&source);
                let object = object.map(|found| Decoded::Whole(stored(&found.object)));
                engine.source(&source, object);
            }
            Question::Selected(selector, _) => {
                let mut members = Members::default();
                for object in selected(files, &selector) {
                    members.extend(Member::of(&object));
                    let source = selector.source(text(&object, "/metadata/name"));
                    engine.source(&source, Some(Decoded::Whole(object)));
                }
                engine.selected(&selector, Known::Listed(&members));
            }
            Question::Job(job) => {
                let answer = self.job(&job);
                self.snapshot.engine().answered(&job, answer);
            }
            Question::Object(request) => self.look(&request),
        }
    }

    /// Only a source can be asked for: there are no copies whose deletion needs a proof.
    fn job(&self, job: &Job) -> Answer {
        match &job.task {
            Task::ReadSource(source) => {
                let object = self.files.source(source);
                Answer::Object(object.map(|found| Decoded::Whole(stored(&found.object))))
            }
            _ => Answer::Failed,
        }
    }

    /// Another object of a file may have the name of the copy.
    fn look(&mut self, request: &Request) {
        let found = self
            .files
            .object(&request.resource.gvk, &request.namespace, &request.name);
        let outcome = match found.and_then(|found| metadata(&stored(&found.object))) {
            // Only the API server can compare an object with a copy.
            Some(_) if matches!(request.verb, Verb::Compare(..) | Verb::Learn(_)) => return,
            Some(meta) => Outcome::Object(Box::new(meta)),
            None => Outcome::Absent,
        };
        self.snapshot.object(request, outcome);
    }

    /// Collects the decisions.
    fn collect(&mut self) {
        let mut copies: Vec<Copy> = self
            .snapshot
            .changes()
            .iter()
            .filter_map(|request| {
                let object = manifest(request)?;
                Some(Copy {
                    key: key(&object, None).ok()?,
                    rule: request.rule.as_ref()?.to_string(),
                    source: annotation(&object, names::SOURCE),
                    object,
                })
            })
            .collect();
        copies.sort_by(|a, b| order(&a.key).cmp(&order(&b.key)));
        self.rendered.copies = copies;
        let statuses = statuses(&mut self.snapshot);
        let mut failed = self.failed();
        for (id, rule) in std::mem::take(&mut self.rules) {
            let file = self.files.file_of(&id).unwrap_or_default().to_owned();
            let mut note = |text: String| {
                let note = format!("{file}: {id} {text}");
                self.rendered.notes.push(note);
            };
            if rule.suspend {
                note("is suspended and makes no copies".into());
                continue;
            }
            for hint in absent(self.files, &rule) {
                note(hint);
            }
            let failed = failed.remove(&id).unwrap_or_default();
            let problems = self.problems_of(&id, statuses.get(&id), failed);
            for problem in problems {
                self.problem(&file, &id, problem);
            }
        }
    }

    /// The reasons why copies of a rule are missing: its conditions, and the failures of single
    /// copies.
    fn problems_of(
        &mut self,
        id: &RuleId,
        status: Option<&ClusterReplicationStatus>,
        failed: Vec<String>,
    ) -> Vec<String> {
        let Some(status) = status else {
            return vec!["its copies can't be decided from files".into()];
        };
        let mut problems: Vec<String> = causes(status)
            .into_iter()
            .map(|(reason, message)| format!("{reason}: {message}"))
            .collect();
        problems.extend(failed);
        let ready = status.conditions.iter().find(|condition| {
            condition.type_ == "Ready" && condition.reason == "NoNamespaceMatches"
        });
        if ready.is_some() && problems.is_empty() {
            let file = self.files.file_of(id).unwrap_or_default();
            self.rendered
                .notes
                .push(format!("{file}: {id} selects no namespace of the files"));
        }
        problems
    }

    /// The failures of single copies, by rule.
    fn failed(&self) -> BTreeMap<RuleId, Vec<String>> {
        let mut failed: BTreeMap<RuleId, Vec<String>> = BTreeMap::new();
        unsynced(&self.snapshot, |rule, namespace, copy| {
            // A condition names the missing grants already.
            if let Some((reason, message)) = copy.failure
                && reason != FailureReason::NotGranted
            {
                let place = format!("{} {namespace}/{}", copy.kind, copy.name);
                let failed = failed.entry(rule.clone()).or_default();
                failed.push(format!("{reason}: {place}: {message}"));
            }
        });
        failed
    }
}

/// The kinds and namespaces that a rule names and no file has. Such a name may be a typing error.
fn absent(files: &Files, rule: &Rule) -> BTreeSet<String> {
    let read = rule.queries().filter(|query| query.home().is_some());
    let kinds = read.map(SourceQuery::gvk);
    let has = |gvk: &GroupVersionKind| {
        let mut keys = files.iter().map(|(key, _)| key);
        keys.any(|key| *key.group == *gvk.group && *key.kind == *gvk.kind)
    };
    let kinds = kinds.filter(|gvk| !has(gvk));
    let kinds = kinds.map(|gvk| format!("copies objects of kind {gvk}, and no file has one"));
    let names = rule.named_targets();
    let there = |name: &str| {
        let mut keys = files.iter().map(|(key, _)| key);
        keys.any(|key| key.namespace == name || key.kind == "Namespace" && key.name == name)
    };
    let names = names.filter(|name| !there(name));
    let names = names.map(|name| format!("names namespace {name}, and no file has it"));
    kinds.chain(names).collect()
}

/// The conditions of a status that say why copies are missing. Two conditions may have one cause.
pub(crate) fn causes(status: &ClusterReplicationStatus) -> Vec<(&str, &str)> {
    let mut causes: Vec<(&str, &str)> = Vec::new();
    for type_ in ["Authorized", "SourcesFound"] {
        let conditions = status.conditions.iter();
        for condition in conditions.filter(|one| one.type_ == type_ && one.status == "False") {
            if !causes
                .iter()
                .any(|(_, message)| *message == condition.message)
            {
                causes.push((&condition.reason, &condition.message));
            }
        }
    }
    causes
}

/// The order of copies in the output.
pub(crate) fn order(key: &Key) -> (&str, &str, &str, &str) {
    (&key.namespace, &key.kind, &key.name, &key.group)
}

fn annotation(object: &Value, key: &str) -> String {
    let annotation = object["metadata"]["annotations"][key].as_str();
    annotation.unwrap_or_default().to_owned()
}

fn invalid(refused: &[Refusal]) -> String {
    format!("InvalidSpec: {}", refusals(refused))
}

/// The objects that a selector finds in the files.
fn selected(files: &Files, selector: &SourceSelector) -> Vec<Value> {
    files
        .candidates(selector)
        .filter(|(_, selected)| *selected)
        .map(|(found, _)| stored(&found.object))
        .collect()
}

/// The object as if it were stored. Its metadata has only fields that a file can have.
fn stored(object: &Value) -> Value {
    let mut object = object.clone();
    let given = metadata(&object).unwrap_or_default();
    let meta = ObjectMeta {
        name: given.name,
        namespace: given.namespace,
        labels: given.labels,
        annotations: given.annotations,
        finalizers: given.finalizers,
        uid: Some(UID.into()),
        resource_version: Some("1".into()),
        generation: Some(1),
        ..ObjectMeta::default()
    };
    object["metadata"] = serde_json::to_value(meta).unwrap_or_default();
    object
}

/// A kind that no file describes. The plural is part of URLs only, and no request is sent.
fn assumed(gvk: &GroupVersionKind) -> Resource {
    Resource {
        gvk: gvk.clone(),
        plural: format!("{}s", gvk.kind.to_lowercase()).into(),
        namespaced: true,
    }
}
