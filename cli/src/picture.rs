//! One picture of the cluster: the rules, the namespaces, and the engine's decisions about them.
//!
//! The engine is the reconciler's own ([`Snapshot`]). This file answers its questions by reading
//! with the rights of the user. A fact that the user may not read stays unknown, and is noted.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Parser;
use futures::{StreamExt as _, stream};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use mimeo_api::{ClusterReplicationStatus, names::API_VERSION};
use mimeo_engine::{
    Answer, CopyWatch, Engine, Job, Member, Members, Question, Request, Settings, Snapshot, Task,
    Verb,
};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    names,
    outcome::{Failure, FailureReason, Outcome, Unreadable},
    reach::Reach,
    refusal::Refused,
    role::Role,
    rule::Rule,
    selection::Labels,
    source::{SourceRef, SourceSelector},
};
use mimeo_runtime::{
    discovery::{Discovery, encode, resource_path},
    limiter::Limiter,
    reach::ReachArgs,
    stored::{parse_grant, parse_rule},
    writer::{KINDS_CONFIG_MAP, Writer, parse_kinds},
};
use serde_json::Value;

use crate::{
    connect::Connected,
    read::{Part, ReadError, Reader},
};

/// Most requests at once.
const AT_ONCE: usize = 16;

/// What a command needs of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    /// The only namespace whose copies matter. `None`: all.
    pub(crate) namespace: Option<String>,
    /// Rules that take the place of stored ones, or come in addition.
    pub(crate) rules: Vec<Value>,
    /// True if dry runs may be sent. They show whether an object of another client has a copy's
    /// content.
    pub(crate) dry_runs: bool,
}

/// A rule as it is stored.
pub(crate) struct Stored {
    /// The rule, or why it is refused.
    pub(crate) rule: Result<Rule, Refused>,
    /// The status that the reconciler wrote last.
    pub(crate) status: Option<ClusterReplicationStatus>,
    /// The object.
    pub(crate) object: Value,
}

/// Everything that was read, and the engine that has seen it.
pub(crate) struct Picture {
    pub(crate) snapshot: Snapshot,
    pub(crate) rules: BTreeMap<RuleId, Stored>,
    pub(crate) namespaces: BTreeMap<String, ObjectMeta>,
    /// The sources that selectors find, by name.
    pub(crate) selected: BTreeMap<SourceSelector, Vec<String>>,
    /// The resources of the kinds in use. `None`: the API server doesn't serve the kind.
    pub(crate) kinds: BTreeMap<GroupVersionKind, Option<Resource>>,
    /// Sources that the user may not read.
    pub(crate) hidden: BTreeSet<SourceRef>,
    /// Sentences about what could not be read.
    pub(crate) unread: BTreeSet<String>,
}

impl Picture {
    /// Reads the cluster as far as the scope needs it.
    pub(crate) async fn read(connected: &Connected, scope: Scope) -> Result<Self> {
        let mut reading = Reading::begin(connected, scope).await?;
        reading.rules().await?;
        reading.namespaces().await?;
        reading.grants().await;
        reading.kinds_recorded().await;
        reading.answer_all().await;
        Ok(reading.picture)
    }

    /// The labels of a namespace.
    pub(crate) fn labels(&self, namespace: &str) -> Option<Labels> {
        let labels = self.namespaces.get(namespace)?.labels.iter().flatten();
        Some(
            labels
                .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
                .collect(),
        )
    }
}

/// A picture that is being read.
struct Reading<'a> {
    connected: &'a Connected,
    reader: Reader,
    writer: Writer,
    discovery: Discovery,
    limiter: Limiter,
    scope: Scope,
    picture: Picture,
    progress: Progress,
}

impl<'a> Reading<'a> {
    async fn begin(connected: &'a Connected, scope: Scope) -> Result<Self> {
        let client = connected.client.clone();
        let reader = Reader::new(client.clone(), connected.timeout);
        let system = reader
            .get("/api/v1/namespaces/kube-system", Part::Metadata)
            .await;
        let mut unread = BTreeSet::new();
        let cluster = match system {
            Ok(Some(system)) => text(&system, "/metadata/uid").to_owned(),
            Ok(None) => String::new(),
            Err(ReadError::Forbidden(_)) => {
                unread.insert("You can't read Namespace kube-system, so copies of another cluster count as this cluster's.".into());
                String::new()
            }
            Err(error) => bail!("can't reach the cluster: {error}"),
        };
        let (reach, unknown) = reach(&reader, &connected.mimeo).await;
        unread.extend(unknown);
        let settings = Settings {
            reach,
            ..Settings::new(Role::Keeper, cluster)
        };
        let limiter = Limiter::new(AT_ONCE, AT_ONCE);
        let writer = Writer::new(
            client.clone(),
            limiter.clone(),
            connected.timeout,
            &connected.mimeo,
        );
        Ok(Self {
            connected,
            reader,
            writer,
            discovery: Discovery::new(client),
            limiter,
            scope,
            picture: Picture {
                snapshot: Snapshot::new(settings),
                rules: BTreeMap::new(),
                namespaces: BTreeMap::new(),
                selected: BTreeMap::new(),
                kinds: BTreeMap::new(),
                hidden: BTreeSet::new(),
                unread,
            },
            progress: Progress::default(),
        })
    }

    fn note(&mut self, sentence: String) {
        self.picture.unread.insert(sentence);
    }

    fn tell(&mut self, event: impl FnOnce(&mut Engine, Duration)) {
        let (engine, now) = self.picture.snapshot.engine();
        event(engine, now);
    }

    async fn rules(&mut self) -> Result<()> {
        for kind in RuleKind::ALL {
            let mut found = Vec::new();
            let path = format!("/apis/{API_VERSION}/{}", kind.plural());
            let mut read = self
                .reader
                .list(&path, None, Part::Whole, |object| found.push(object))
                .await;
            if let (Err(ReadError::Forbidden(_)), RuleKind::Replication) = (&read, kind) {
                let home = self.scope.namespace.as_ref();
                let home = home.unwrap_or(&self.connected.namespace).clone();
                self.note(format!(
                    "You can't list Replications in all namespaces. Only those of {home} are considered."
                ));
                let path = format!(
                    "/apis/{API_VERSION}/namespaces/{}/{}",
                    encode(&home),
                    kind.plural()
                );
                read = self
                    .reader
                    .list(&path, None, Part::Whole, |object| found.push(object))
                    .await;
            }
            match read {
                Ok(_) => {}
                Err(ReadError::NotServed) if kind == RuleKind::ClusterReplication => bail!(
                    "the API server doesn't serve ClusterReplications: Mimeo's CRDs are not installed in this cluster"
                ),
                Err(ReadError::NotServed) => {
                    self.tell(|engine, now| engine.rules_known(kind, Known::Unserved, now));
                    continue;
                }
                Err(error @ ReadError::Forbidden(_)) => self.note(format!(
                    "You can't list {kind}s: {error}. They are left out."
                )),
                Err(error) => bail!("can't list {kind}s: {error}"),
            }
            let replaced: Vec<Value> = self
                .scope
                .rules
                .iter()
                .filter(|rule| rule["kind"] == *kind.to_string())
                .cloned()
                .collect();
            found.extend(replaced.into_iter().map(Decoded::Whole));
            for object in found {
                self.rule(kind, object);
            }
            let listed: BTreeSet<RuleId> = self
                .picture
                .rules
                .keys()
                .filter(|id| id.kind == kind)
                .cloned()
                .collect();
            self.tell(|engine, now| engine.rules_known(kind, Known::Listed(&listed), now));
        }
        Ok(())
    }

    fn rule(&mut self, kind: RuleKind, object: Decoded<Value>) {
        let value = object.value().clone();
        let home = value["metadata"]["namespace"].as_str().map(Into::into);
        let id = RuleId {
            kind,
            namespace: home,
            name: text(&value, "/metadata/name").into(),
        };
        let (rule, status) = parse_rule(kind, object);
        self.tell(|engine, now| {
            engine.rule_applied(id.clone(), rule.clone(), status.clone(), now);
        });
        let stored = Stored {
            rule,
            status,
            object: value,
        };
        self.picture.rules.insert(id, stored);
    }

    async fn namespaces(&mut self) -> Result<()> {
        let mut found = Vec::new();
        let all = self
            .reader
            .list("/api/v1/namespaces", None, Part::Metadata, |object| {
                found.extend(metadata(object.value()));
            })
            .await;
        match (all, self.scope.namespace.clone()) {
            (Ok(_), _) => {}
            (Err(ReadError::Forbidden(_)), Some(only)) => {
                let path = format!("/api/v1/namespaces/{}", encode(&only));
                match self.reader.get(&path, Part::Metadata).await {
                    Ok(Some(object)) => found.extend(metadata(&object)),
                    Ok(None) => {}
                    Err(_) => {
                        self.note(format!("You can't read Namespace {only}: its labels are unknown, so rules that select by labels seem not to match it."));
                        found.push(assumed(&only));
                    }
                }
                self.note(
                    "You can't list namespaces. Only the one that was asked for is considered."
                        .into(),
                );
            }
            (Err(error), _) => bail!("can't list namespaces: {error}"),
        }
        let mut listed: BTreeSet<Box<str>> = BTreeSet::new();
        for meta in found {
            let Some(name) = meta.name.clone() else {
                continue;
            };
            listed.insert(name.as_str().into());
            self.tell(|engine, now| engine.namespace_applied(&meta, now));
            self.picture.namespaces.insert(name, meta);
        }
        self.tell(|engine, now| engine.namespaces_listed(&listed, now));
        Ok(())
    }

    async fn grants(&mut self) {
        let path = format!("/apis/{API_VERSION}/replicationgrants");
        let mut found = Vec::new();
        let read = self
            .reader
            .list(&path, None, Part::Whole, |object| found.push(object))
            .await;
        match read {
            Ok(_) => {
                let mut listed = BTreeSet::new();
                for object in found {
                    let namespace: Box<str> = text(object.value(), "/metadata/namespace").into();
                    let name: Box<str> = text(object.value(), "/metadata/name").into();
                    let grant = parse_grant(object);
                    self.tell(|engine, now| engine.grant_applied(&namespace, &name, grant, now));
                    listed.insert((namespace, name));
                }
                self.tell(|engine, now| engine.grants_known(Known::Listed(&listed), now));
            }
            Err(ReadError::NotServed) => {
                self.tell(|engine, now| engine.grants_known(Known::Unserved, now));
            }
            Err(error) => {
                self.note(format!("You can't list ReplicationGrants: {error}. Whether Replications may cross namespaces is unknown."));
                let why = Unreadable::Forbidden { verb: "list" };
                self.tell(|engine, now| engine.grants_known(Known::Unreadable(why), now));
            }
        }
    }

    async fn kinds_recorded(&mut self) {
        let path = format!(
            "/api/v1/namespaces/{}/configmaps/{KINDS_CONFIG_MAP}",
            encode(&self.connected.mimeo)
        );
        let recorded = match self.reader.get(&path, Part::Whole).await {
            Ok(map) => map.and_then(|map| serde_json::from_value::<ConfigMap>(map).ok()),
            Err(error) => {
                self.note(format!(
                    "You can't read ConfigMap {}/{KINDS_CONFIG_MAP}: {error}. Copies of rules that no longer exist may be missing here.",
                    self.connected.mimeo
                ));
                None
            }
        };
        let created = recorded
            .as_ref()
            .and_then(|map| map.metadata.creation_timestamp.as_ref())
            .map(|time| time.0);
        let kinds = recorded.as_ref().map(parse_kinds).unwrap_or_default();
        self.picture.snapshot.kinds_recorded(kinds.kinds);
        self.tell(|engine, now| {
            engine.kinds_since(created.or(Some(jiff::Timestamp::UNIX_EPOCH)), now);
            engine.confirmed(kinds.confirmed.as_deref(), now);
        });
        // The rules were read just now from the CRDs that are served, so they are not lost.
        for kind in RuleKind::ALL {
            let uid = kinds.crds.get(&kind).cloned();
            self.tell(|engine, now| {
                engine.crd(kind, uid.clone().or(Some("served".into())), uid, now);
            });
        }
    }

    /// Answers the engine's questions until it has none.
    async fn answer_all(&mut self) {
        loop {
            let questions = self.picture.snapshot.questions();
            if questions.is_empty() {
                break;
            }
            let mut progress = std::mem::take(&mut self.progress);
            let answers = stream::iter(questions)
                .map(|question| {
                    let asked = self.asked(question);
                    answer(
                        asked,
                        &self.reader,
                        &self.writer,
                        &self.discovery,
                        &self.limiter,
                    )
                })
                .buffer_unordered(AT_ONCE)
                .inspect(|_| progress.count());
            let read: Vec<Read> = answers.collect().await;
            self.progress = progress;
            for one in read {
                self.take(one);
            }
        }
        self.progress.end();
    }

    /// Leaves a question out if its answer can't matter for the scope.
    fn asked(&self, question: Question) -> Asked {
        let only = self.scope.namespace.as_deref();
        let outside = |namespace: &str| only.is_some_and(|only| only != namespace);
        match question {
            Question::Object(request) if outside(&request.ticket.namespace) => Asked::Nothing,
            Question::Object(request)
                if matches!(request.ticket.verb, Verb::Compare(..)) && !self.scope.dry_runs =>
            {
                Asked::Nothing
            }
            // Without the answer a copy with the right checksum counts as correct.
            Question::Object(request) if matches!(request.ticket.verb, Verb::Learn(_)) => {
                Asked::Nothing
            }
            Question::Copies(watch, resource)
                if watch.namespace.as_deref().is_some_and(outside) =>
            {
                let _ = resource;
                Asked::Nothing
            }
            Question::Copies(watch, resource) => {
                Asked::Copies(watch, resource, only.map(Into::into))
            }
            question => Asked::Question(question),
        }
    }

    fn take(&mut self, read: Read) {
        match read {
            Read::Nothing => {}
            Read::Kind(gvk, Ok(resource)) => {
                self.tell(|engine, now| engine.kind(&gvk, resource.clone().into(), now));
                self.picture.kinds.insert(gvk, resource);
            }
            Read::Kind(gvk, Err(why)) => {
                self.note(format!("Can't find out whether {gvk} is served: {why}."));
                self.tell(|engine, now| {
                    engine.kind(&gvk, Known::Unreadable(Unreadable::Unavailable), now);
                });
            }
            Read::Copies(watch, objects, Ok(version)) => {
                let kind = watch.kind.clone();
                self.tell(|engine, now| {
                    engine.copies_listing(&watch, now);
                    for meta in &objects {
                        engine.copy_applied(&kind, meta, now);
                    }
                    engine.copies_known(&watch, Known::Listed(version), now);
                });
            }
            Read::Copies(watch, _, Err(error)) => {
                self.note(format!(
                    "You can't list copies of kind {}: {error}. Their states are unknown.",
                    watch.kind
                ));
            }
            Read::Source(source, Ok(object)) => {
                self.tell(|engine, now| engine.source(&source, object.map(Decoded::Whole), now));
            }
            Read::Source(source, Err(error)) => {
                self.note(format!("You can't read the source {source}: {error}. Whether its copies are up to date is unknown."));
                self.picture.hidden.insert(source);
            }
            Read::Selected(selector, Ok(objects)) => {
                let mut members = Members::default();
                members.extend(objects.iter().filter_map(Member::of));
                let names = objects
                    .iter()
                    .map(|object| text(object, "/metadata/name").to_owned())
                    .collect();
                self.tell(|engine, now| {
                    for object in objects {
                        let source = selector.source(text(&object, "/metadata/name"));
                        engine.source(&source, Some(Decoded::Whole(object)), now);
                    }
                    engine.selected(&selector, Known::Listed(&members), now);
                });
                self.picture.selected.insert(selector, names);
            }
            Read::Selected(selector, Err(error)) => {
                self.note(format!(
                    "You can't list the sources {selector}: {error}. Their copies are unknown."
                ));
            }
            Read::Job(job, answer) => {
                self.tell(|engine, now| engine.answered(&job, answer, now));
            }
            Read::Object(request, Ok(outcome)) => self.picture.snapshot.object(*request, outcome),
            Read::Object(request, Err(error)) => {
                let GroupVersionKind { kind, .. } = &request.resource.gvk;
                self.note(format!(
                    "You can't read objects of kind {kind} in namespace {}: {error}.",
                    request.ticket.namespace
                ));
            }
        }
    }
}

/// A question that is put to the API server.
enum Asked {
    Nothing,
    /// With the only namespace that matters.
    Copies(CopyWatch, Resource, Option<Box<str>>),
    Question(Question),
}

/// An answer of the API server.
enum Read {
    Nothing,
    Kind(GroupVersionKind, Result<Option<Resource>, String>),
    Copies(CopyWatch, Vec<ObjectMeta>, Result<u64, ReadError>),
    Source(SourceRef, Result<Option<Value>, ReadError>),
    Selected(SourceSelector, Result<Vec<Value>, ReadError>),
    Job(Box<Job>, Answer),
    Object(Box<Request>, Result<Outcome, ReadError>),
}

async fn answer(
    asked: Asked,
    reader: &Reader,
    writer: &Writer,
    discovery: &Discovery,
    limiter: &Limiter,
) -> Read {
    let question = match asked {
        Asked::Nothing => return Read::Nothing,
        Asked::Copies(watch, resource, only) => {
            let selector = format!("{}={}", names::MANAGED_BY, names::MANAGED_BY_VALUE);
            let namespace = watch.namespace.as_deref().or(only.as_deref());
            let path = resource_path(&resource, namespace, None);
            let mut copies = Vec::new();
            let keep = |object: Decoded<Value>| copies.extend(metadata(object.value()));
            let read = reader
                .list(&path, Some(&selector), Part::Metadata, keep)
                .await;
            return Read::Copies(watch, copies, read);
        }
        Asked::Question(question) => question,
    };
    match question {
        Question::Kind(gvk) => {
            let found = discovery.find(&gvk).await;
            Read::Kind(gvk, found.map_err(|error| error.to_string()))
        }
        Question::Source(source, resource) => {
            let path = resource_path(&resource, Some(&source.namespace), Some(&source.name));
            let object = reader.get(&path, Part::Whole).await;
            Read::Source(source, object)
        }
        Question::Selected(selector, resource) => {
            let path = resource_path(&resource, Some(&selector.namespace), None);
            let query = selector.selector.to_query();
            let query = (!query.is_empty()).then_some(query);
            let mut objects = Vec::new();
            let keep = |object: Decoded<Value>| objects.push(object.value().clone());
            let read = reader
                .list(&path, query.as_deref(), Part::Whole, keep)
                .await;
            Read::Selected(selector, read.map(|_| objects))
        }
        Question::Job(job) => {
            let answer = ask(&job.task, writer, discovery).await;
            Read::Job(job, answer)
        }
        Question::Object(request) => {
            if let Verb::Compare(..) = request.ticket.verb {
                let permit = limiter.acquire().await;
                let outcome = writer.carry_out(&request, permit).await;
                return Read::Object(request, Ok(outcome));
            }
            let (namespace, name) = (&request.ticket.namespace, &request.ticket.name);
            let path = resource_path(&request.resource, Some(namespace), Some(name));
            let outcome = match reader.get(&path, Part::Metadata).await {
                Ok(Some(object)) => Ok(metadata(&object).map_or(
                    Outcome::Unavailable {
                        retry_after: None,
                        failure: undecodable(),
                    },
                    |meta| Outcome::Object(Box::new(meta)),
                )),
                Ok(None) => Ok(Outcome::Absent),
                Err(error) => Err(error),
            };
            Read::Object(request, outcome)
        }
        Question::Copies(..) => Read::Nothing,
    }
}

fn undecodable() -> Failure {
    Failure {
        reason: FailureReason::ClusterUnreachable,
        message: "the object's metadata can't be decoded".into(),
    }
}

/// Carries out a job that only reads.
async fn ask(task: &Task, writer: &Writer, discovery: &Discovery) -> Answer {
    let resource = async |gvk: &GroupVersionKind| discovery.find(gvk).await.ok().flatten();
    let answer = match task {
        Task::ConfirmRule(id) => writer.read_rule(id).await.ok().map(Answer::Rule),
        Task::ConfirmGrants(namespace) => {
            writer.read_grants(namespace).await.ok().map(Answer::Grants)
        }
        Task::ConfirmSource(source) => match resource(&source.gvk).await {
            Some(resource) => {
                let read = writer.read_source(source, &resource).await;
                read.ok().map(Answer::Source)
            }
            None => None,
        },
        Task::ReadSource(source) => match resource(&source.gvk).await {
            Some(resource) => {
                let read = writer
                    .read(&resource, &source.namespace, &source.name)
                    .await;
                read.ok().map(Answer::Object)
            }
            None => None,
        },
        Task::ReadGrant { namespace, name } => {
            let grant = writer.read_grant(namespace, name).await;
            grant
                .ok()
                .map(|grant| Answer::Grant(grant.map(parse_grant)))
        }
        _ => None,
    };
    answer.unwrap_or(Answer::Failed)
}

/// The limits of the installation, from the arguments of its reconciler. Returns a sentence if they
/// can't be read.
async fn reach(reader: &Reader, mimeo: &str) -> (Reach, Option<String>) {
    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        reach: ReachArgs,
    }
    let path = format!(
        "/apis/apps/v1/namespaces/{}/deployments/mimeo-reconciler",
        encode(mimeo)
    );
    let deployment = match reader.get(&path, Part::Whole).await {
        Ok(Some(deployment)) => deployment,
        Ok(None) => return (Reach::default(), None),
        Err(error) => {
            let note = format!(
                "You can't read Deployment {mimeo}/mimeo-reconciler: {error}. Its limits (--target-namespaces, --source-namespaces, --kinds) are taken as unset."
            );
            return (Reach::default(), Some(note));
        }
    };
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let limits = ["--target-namespaces=", "--source-namespaces=", "--kinds="];
    let args = container["args"].as_array().into_iter().flatten();
    let args = args.filter_map(Value::as_str);
    let args = args.filter(|arg| limits.iter().any(|limit| arg.starts_with(limit)));
    let flags = Flags::try_parse_from(std::iter::once("mimeo").chain(args));
    (
        flags.map(|flags| flags.reach.reach()).unwrap_or_default(),
        None,
    )
}

/// The metadata of an object.
pub(crate) fn metadata(object: &Value) -> Option<ObjectMeta> {
    serde_json::from_value(object["metadata"].clone()).ok()
}

/// The text at a JSON pointer, or nothing.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// A namespace that the user may not read.
fn assumed(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        uid: Some("00000000-0000-4000-8000-000000000000".into()),
        resource_version: Some("1".into()),
        creation_timestamp: None,
        ..ObjectMeta::default()
    }
}

/// A line on the terminal that counts answers while a reading takes long.
#[derive(Default)]
struct Progress {
    began: Option<Instant>,
    told: Option<Instant>,
    answers: usize,
}

impl Progress {
    fn count(&mut self) {
        self.answers += 1;
        let now = Instant::now();
        let began = *self.began.get_or_insert(now);
        let due = self.told.unwrap_or(began) + Duration::from_secs(1);
        if now >= due && std::io::stderr().is_terminal() {
            self.told = Some(now);
            let mut terminal = std::io::stderr();
            // A terminal that can't be written to is no reason to stop.
            _ = write!(terminal, "\rreading the cluster: {} answers", self.answers);
            _ = terminal.flush();
        }
    }

    fn end(&mut self) {
        if self.told.is_some() {
            _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
