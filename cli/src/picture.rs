//! One picture of the cluster: the rules, the namespaces, and the engine's decisions about them.
//!
//! The engine is the reconciler's own ([`Snapshot`]). This file answers its questions by reading
//! with the rights of the user. A fact that the user may not read stays unknown, and is noted.

mod answers;
mod overlay;
mod progress;

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use anyhow::{Result, bail};
use clap::Parser;
use futures::{StreamExt as _, stream};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use mimeo_api::{
    ClusterReplicationStatus,
    names::{API_VERSION, REPLICATION_GRANT},
};
use mimeo_engine::{
    CopyWatch, Engine, Member, Members, Progress as Waits, Question, Settings, Snapshot, Verb,
};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    names,
    outcome::Unreadable,
    reach::Reach,
    refusal::Refused,
    role::Role,
    rule::Rule,
    selection::Labels,
    source::{SourceRef, SourceSelector},
};
use mimeo_runtime::{
    call::encode,
    discovery::{Discovery, resource_path},
    limiter::Limiter,
    reach::ReachArgs,
    stored::{parse_grant, parse_rule},
    writer::{KINDS_CONFIG_MAP, Writer, parse_kinds},
};
use serde_json::Value;

pub(crate) use self::overlay::Overlay;
use self::{
    answers::{Asker, Read},
    progress::Progress,
};
use crate::{
    connect::Connected,
    files::Key,
    read::{AT_ONCE, Part, ReadError, Reader},
};

/// The namespaces whose copies a command asks about.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// All namespaces.
    All,
    /// One namespace.
    One(String),
}

impl Scope {
    /// The namespace of the flag `-n`, or all namespaces.
    pub(crate) fn asked(connected: &Connected) -> Self {
        let namespace = connected.asked_namespace.clone();
        namespace.map_or(Self::All, Self::One)
    }

    pub(crate) fn has(&self, namespace: &str) -> bool {
        self.one().is_none_or(|one| one == namespace)
    }

    fn one(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::One(namespace) => Some(namespace),
        }
    }
}

/// A rule as it is stored.
pub(crate) struct Stored {
    /// The rule, or why it is refused.
    pub(crate) rule: Result<Rule, Refused>,
    /// The status that the reconciler wrote for this spec.
    pub(crate) status: Option<ClusterReplicationStatus>,
    /// The object.
    pub(crate) object: Value,
}

/// Everything that was read, and the engine that has seen it.
pub(crate) struct Picture {
    /// The namespace in which Mimeo is installed.
    pub(crate) mimeo: String,
    pub(crate) snapshot: Snapshot,
    pub(crate) rules: BTreeMap<RuleId, Stored>,
    pub(crate) namespaces: BTreeMap<String, ObjectMeta>,
    /// The sources that selectors find, by name.
    pub(crate) selected: BTreeMap<SourceSelector, Vec<String>>,
    /// The resources of the kinds that rules use. `None`: the API server doesn't serve the kind.
    pub(crate) kinds: BTreeMap<GroupVersionKind, Option<Resource>>,
    /// Sources that the user may not read.
    pub(crate) hidden: BTreeSet<SourceRef>,
    /// The kinds of rules that could not be listed everywhere. Rules of these may be missing here.
    pub(crate) partial: BTreeSet<RuleKind>,
    /// One sentence for each list of copies that could not be read.
    pub(crate) uncounted: BTreeSet<String>,
    /// The namespaces in the scope with the pending label, and the copies that hold their pods.
    pub(crate) waiting: BTreeMap<String, Waits>,
    /// One sentence for each fact that could not be read.
    pub(crate) unread: BTreeSet<String>,
    /// The rules and grants of files that may do more than the stored ones.
    pub(crate) widened: BTreeSet<Key>,
}

impl Picture {
    /// Reads the cluster as far as the copies in the scope depend on it.
    pub(crate) async fn read(connected: &Connected, scope: Scope) -> Result<Self> {
        Self::read_with(connected, scope, Overlay::default()).await
    }

    /// The same, with the objects of files in place of the stored ones.
    pub(crate) async fn read_with(
        connected: &Connected,
        scope: Scope,
        overlay: Overlay,
    ) -> Result<Self> {
        let mut reading = Reading::begin(connected, scope, overlay).await?;
        reading.rules().await?;
        reading.namespaces().await?;
        reading.grants().await;
        reading.kinds_recorded().await;
        reading.answer_all().await;
        reading.waiting();
        reading.picture.widened = reading.overlay.widened;
        Ok(reading.picture)
    }

    /// The statuses that the reconciler would write now, where they differ from the stored ones.
    pub(crate) fn statuses(&mut self) -> BTreeMap<RuleId, ClusterReplicationStatus> {
        statuses(&mut self.snapshot)
    }

    /// Reads the rules, the namespaces and the grants, and nothing that the engine asks about them.
    /// Returns also the limits of the installation.
    pub(crate) async fn outline(connected: &Connected, scope: Scope) -> Result<(Self, Reach)> {
        let mut reading = Reading::begin(connected, scope, Overlay::default()).await?;
        reading.rules().await?;
        reading.namespaces().await?;
        reading.grants().await;
        let (engine, _) = reading.picture.snapshot.decided();
        let reach = engine.index().reach().clone();
        Ok((reading.picture, reach))
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

/// The statuses that a reconciler would write now.
pub(crate) fn statuses(snapshot: &mut Snapshot) -> BTreeMap<RuleId, ClusterReplicationStatus> {
    let mut statuses = BTreeMap::new();
    let (engine, now) = snapshot.engine();
    loop {
        let some = engine.statuses(now, jiff::Timestamp::UNIX_EPOCH);
        if some.is_empty() && !engine.counts() {
            return statuses;
        }
        statuses.extend(some.into_iter().map(|update| (update.id, update.status)));
    }
}

/// The sources of a rule: named, inline, and found by selectors.
pub(crate) fn sources(picture: &Picture, rule: &Rule) -> Vec<SourceRef> {
    let mut sources = rule.sources.clone();
    for selector in &rule.selectors {
        let names = picture.selected.get(selector).into_iter().flatten();
        sources.extend(names.map(|name| selector.source(name.as_str())));
    }
    sources
}

/// A picture that is being read.
struct Reading {
    asker: Rc<Asker>,
    scope: Scope,
    overlay: Overlay,
    picture: Picture,
    progress: Progress,
}

impl Reading {
    async fn begin(connected: &Connected, scope: Scope, overlay: Overlay) -> Result<Self> {
        let client = connected.client.clone();
        let reader = connected.reader();
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
        let writer = Writer::new(
            client.clone(),
            Limiter::new(AT_ONCE, AT_ONCE),
            connected.timeout,
            &connected.mimeo,
        );
        Ok(Self {
            asker: Rc::new(Asker {
                reader,
                writer,
                discovery: Discovery::new(client),
            }),
            scope,
            overlay,
            picture: Picture {
                mimeo: connected.mimeo.clone(),
                snapshot: Snapshot::new(settings),
                rules: BTreeMap::new(),
                namespaces: BTreeMap::new(),
                selected: BTreeMap::new(),
                kinds: BTreeMap::new(),
                hidden: BTreeSet::new(),
                partial: BTreeSet::new(),
                uncounted: BTreeSet::new(),
                waiting: BTreeMap::new(),
                unread,
                widened: BTreeSet::new(),
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
            let reader = &self.asker.reader;
            let mut read = reader
                .list(&path, None, Part::Whole, |object| found.push(object))
                .await;
            if let (Err(ReadError::Forbidden(_)), RuleKind::Replication, Scope::One(home)) =
                (&read, kind, self.scope.clone())
            {
                self.picture.partial.insert(kind);
                self.note(format!(
                    "You can't list Replications in all namespaces. Only those of {home} are considered."
                ));
                let path = format!(
                    "/apis/{API_VERSION}/namespaces/{}/{}",
                    encode(&home),
                    kind.plural()
                );
                read = self
                    .asker
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
                Err(error @ ReadError::Forbidden(_)) => {
                    self.picture.partial.insert(kind);
                    self.note(format!(
                        "You can't list {kind}s: {error}. They are left out."
                    ));
                }
                Err(error) => bail!("can't list {kind}s: {error}"),
            }
            self.overlay.put_specs(&kind.to_string(), &mut found);
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
        // A status of an older spec says nothing about this one.
        let generation = value["metadata"]["generation"].as_i64();
        let status = status.filter(|status| status.observed_generation == generation);
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
            .asker
            .reader
            .list("/api/v1/namespaces", None, Part::Metadata, |object| {
                found.extend(metadata(object.value()));
            })
            .await;
        match (all, self.scope.clone()) {
            (Ok(_), _) => {}
            (Err(error @ ReadError::Forbidden(_)), Scope::All) => {
                bail!(
                    "can't list namespaces: {error}. Most commands answer about one namespace: -n NAMESPACE"
                )
            }
            (Err(ReadError::Forbidden(_)), Scope::One(only)) => {
                let path = format!("/api/v1/namespaces/{}", encode(&only));
                match self.asker.reader.get(&path, Part::Metadata).await {
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
        self.overlay.put_namespaces(&mut found);
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
            .asker
            .reader
            .list(&path, None, Part::Whole, |object| found.push(object))
            .await;
        match read {
            Ok(_) => {
                self.overlay.put_specs(REPLICATION_GRANT, &mut found);
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
            encode(&self.picture.mimeo)
        );
        let recorded = match self.asker.reader.get(&path, Part::Whole).await {
            Ok(map) => map.and_then(|map| serde_json::from_value::<ConfigMap>(map).ok()),
            Err(error) => {
                self.note(format!(
                    "You can't read ConfigMap {}/{KINDS_CONFIG_MAP}: {error}. Copies of rules that no longer exist may be missing here.",
                    self.picture.mimeo
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
        for kind in RuleKind::ALL {
            let recorded = kinds.crds.get(&kind).cloned();
            let current = self.crd(kind).await.or_else(|| recorded.clone());
            let current = current.or(Some("served".into()));
            let recorded = recorded.or_else(|| current.clone());
            self.tell(|engine, now| engine.crd(kind, current, recorded, now));
        }
    }

    /// The uid of the CRD of these rules. A user who may not read CRDs sees none: then rules that no
    /// longer exist count as deleted by a person.
    async fn crd(&self, kind: RuleKind) -> Option<Box<str>> {
        let group = API_VERSION.split('/').next()?;
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let path = format!("{crds}/{}.{group}", kind.plural());
        let crd = self.asker.reader.get(&path, Part::Metadata).await.ok()??;
        Some(text(&crd, "/metadata/uid").into())
    }

    /// Answers the engine's questions until it has none.
    async fn answer_all(&mut self) {
        loop {
            let questions = self.picture.snapshot.questions();
            if questions.is_empty() {
                break;
            }
            let mut others = Vec::new();
            for question in questions {
                match question {
                    Question::Copies(watch, resource) => self.copies(&watch, &resource).await,
                    question if self.matters(&question) => others.push(question),
                    _ => {}
                }
            }
            let asker = self.asker.clone();
            let mut answers = stream::iter(others)
                .map(|question| asker.answer(question))
                .buffer_unordered(AT_ONCE);
            while let Some(read) = answers.next().await {
                self.progress.count();
                if let Some(read) = read {
                    let read = self.overlay.put(read);
                    self.take(read);
                }
            }
        }
        self.progress.end();
    }

    /// Lists the copies of a kind in the scope. The engine sees each page as it comes, because the
    /// list may be long.
    async fn copies(&mut self, watch: &CopyWatch, resource: &Resource) {
        let (one, namespace) = (self.scope.one(), watch.namespace.as_deref());
        if namespace.is_some_and(|namespace| !self.scope.has(namespace)) {
            return;
        }
        let path = resource_path(resource, one.or(namespace), None);
        let selector = format!("{}={}", names::MANAGED_BY, names::MANAGED_BY_VALUE);
        let (asker, picture, progress) =
            (self.asker.clone(), &mut self.picture, &mut self.progress);
        let (engine, now) = picture.snapshot.engine();
        engine.copies_listing(watch, now);
        let each = |object: Decoded<Value>| {
            progress.count();
            if let Some(meta) = metadata(object.value()) {
                engine.copy_applied(&watch.kind, &meta, now);
            }
        };
        let read = asker
            .reader
            .list(&path, Some(&selector), Part::Metadata, each)
            .await;
        match read {
            Ok(version) => engine.copies_known(watch, Known::Listed(version), now),
            Err(error) => {
                let sentence = format!(
                    "You can't list copies of kind {}: {error}. Their states are unknown.",
                    watch.kind
                );
                self.picture.uncounted.insert(sentence.clone());
                self.note(sentence);
            }
        }
    }

    fn waiting(&mut self) {
        let marked = |meta: &ObjectMeta| {
            let mut labels = meta.labels.iter().flatten();
            labels.any(|(key, _)| key == names::PENDING_LABEL)
        };
        let namespaces = self.picture.namespaces.iter();
        let waiting: Vec<String> = namespaces
            .filter(|(name, meta)| self.scope.has(name) && marked(meta))
            .map(|(name, _)| name.clone())
            .collect();
        for name in waiting {
            let (engine, now) = self.picture.snapshot.engine();
            let waits = engine.progress(&name, now);
            self.picture.waiting.insert(name, waits);
        }
    }

    /// True if the answer can matter for the copies in the scope.
    fn matters(&self, question: &Question) -> bool {
        match question {
            Question::Object(request) => {
                // Without the answer of the dry run, a copy with the right checksum counts as
                // correct. An object of another client counts as not compared yet.
                let dry_run = matches!(request.ticket.verb, Verb::Compare(..) | Verb::Learn(_));
                self.scope.has(&request.ticket.namespace) && !dry_run
            }
            Question::Source(source, _) => {
                let Some(one) = self.scope.one() else {
                    return true;
                };
                let labels = self.picture.labels(one).unwrap_or_default();
                let rules = self.picture.rules.values();
                let mut rules = rules.filter_map(|stored| stored.rule.as_ref().ok());
                rules.any(|rule| rule.sources.contains(source) && rule.matches(one, &labels))
            }
            Question::Kind(_)
            | Question::Selected(..)
            | Question::Job(_)
            | Question::Copies(..) => true,
        }
    }

    fn take(&mut self, read: Read) {
        match read {
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
            Read::Source(source, Ok(object)) => {
                self.tell(|engine, now| engine.source(&source, object.map(Decoded::Whole), now));
            }
            Read::Source(source, Err(error)) => {
                self.note(format!("You can't read the source {source}: {error}. Whether its copies are up to date is unknown."));
                self.picture.hidden.insert(source);
            }
            Read::Selected(selector, Ok(mut objects)) => {
                objects.retain(|object| !selector.passes_over(text(object, "/metadata/name")));
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
            Read::Object(request, Ok(outcome)) => self.picture.snapshot.object(&request, outcome),
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
    let list = |field: &str| container[field].as_array().cloned().unwrap_or_default();
    // The chart sets the limits as environment variables.
    let variables = list("env").into_iter().filter_map(|variable| {
        let name = text(&variable, "/name").strip_prefix("MIMEO_")?;
        let flag = name.to_lowercase().replace('_', "-");
        Some(format!("--{flag}={}", text(&variable, "/value")))
    });
    let limits = ["--target-namespaces=", "--source-namespaces=", "--kinds="];
    let is_limit = |arg: &String| limits.iter().any(|limit| arg.starts_with(limit));
    let args = list("args");
    let args = args
        .iter()
        .filter_map(|arg| arg.as_str().map(str::to_owned));
    let args: Vec<String> = args.filter(is_limit).collect();
    // An argument takes precedence over a variable.
    let flag = |arg: &str| arg.split('=').next().map(str::to_owned);
    let given: BTreeSet<Option<String>> = args.iter().map(|arg| flag(arg)).collect();
    let variables = variables.filter(|arg| is_limit(arg) && !given.contains(&flag(arg)));
    let args = variables.chain(args);
    let flags = Flags::try_parse_from(std::iter::once("mimeo".to_owned()).chain(args));
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
pub(crate) fn assumed(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        uid: Some("00000000-0000-4000-8000-000000000000".into()),
        resource_version: Some("1".into()),
        creation_timestamp: None,
        ..ObjectMeta::default()
    }
}
