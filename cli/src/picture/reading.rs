//! Reads the cluster for a picture, and answers the engine's questions.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use anyhow::{Result, bail};
use futures::{StreamExt as _, stream};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use mimeo_api::names::REPLICATION_GRANT;
use mimeo_engine::{CopyWatch, Engine, Member, Members, Question, Snapshot, Verb};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    names,
    outcome::Unreadable,
    reach::Reach,
    selection::Place,
};
use mimeo_runtime::{
    call::encode,
    discovery::{Discovery, resource_path},
    limiter::Limiter,
    stored::parse_rule,
    writer::{KINDS_CONFIG_MAP, Writer, parse_kinds},
};
use serde_json::Value;

use super::{
    Gap, Overlay, Picture, Scope, Stored, Unread,
    answers::{Asker, Read},
    assumed,
    progress::Progress,
    show_grants, show_namespaces,
};
use crate::{
    connect::Connected,
    installation::settings,
    read::{AT_ONCE, Part, ReadError, Reader, metadata, own_path, text},
};

/// A picture that is being read.
pub(super) struct Reading {
    asker: Rc<Asker>,
    scope: Scope,
    overlay: Overlay,
    reach: Reach,
    picture: Picture,
    progress: Progress,
}

impl Reading {
    /// Reads the rules, the namespaces and the grants.
    pub(super) async fn outline(
        connected: &Connected,
        reader: Reader,
        scope: Scope,
        overlay: Overlay,
    ) -> Result<Self> {
        let mut reading = Self::begin(connected, reader, scope, overlay).await?;
        reading.rules().await?;
        reading.namespaces().await?;
        reading.grants().await;
        Ok(reading)
    }

    pub(super) fn finish(mut self) -> Picture {
        self.waiting();
        self.picture.to_authorize = self.overlay.to_authorize;
        self.picture
    }

    async fn begin(
        connected: &Connected,
        reader: Reader,
        scope: Scope,
        overlay: Overlay,
    ) -> Result<Self> {
        let client = connected.client.clone();
        let system = "/api/v1/namespaces/kube-system";
        let system = reader.get(system, Part::Metadata).await;
        let mut unread = Unread::default();
        let cluster = match system {
            Ok(Some(system)) => text(&system, "/metadata/uid").to_owned(),
            Ok(None) => String::new(),
            Err(ReadError::Forbidden(_)) => {
                unread.insert(
                    Gap::Details,
                    "You can't read Namespace kube-system, so copies of another cluster \
                     count as this cluster's.",
                );
                String::new()
            }
            Err(error) => bail!("can't reach the cluster: {error}"),
        };
        let (settings, unknown) = settings(&reader, &connected.mimeo, cluster).await;
        if let Some(sentence) = unknown {
            unread.insert(Gap::Details, sentence);
        }
        let reach = settings.reach.clone();
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
            reach,
            picture: Picture {
                mimeo: connected.mimeo.clone(),
                snapshot: Snapshot::new(settings),
                rules: BTreeMap::new(),
                namespaces: BTreeMap::new(),
                selected: BTreeMap::new(),
                kinds: BTreeMap::new(),
                waiting: BTreeMap::new(),
                unread,
                to_authorize: BTreeSet::new(),
            },
            progress: Progress::default(),
        })
    }

    fn note(&mut self, gap: Gap, sentence: impl Into<String>) {
        self.picture.unread.insert(gap, sentence);
    }

    /// Shows the engine an event.
    fn show(&mut self, event: impl FnOnce(&mut Engine)) {
        event(self.picture.snapshot.engine());
    }

    /// The objects at a path.
    async fn listed(&self, path: &str) -> Result<Vec<Decoded<Value>>, ReadError> {
        let mut found = Vec::new();
        let keep = |object| found.push(object);
        let reader = &self.asker.reader;
        reader.list(path, None, Part::Whole, keep).await?;
        Ok(found)
    }

    async fn rules(&mut self) -> Result<()> {
        for kind in RuleKind::ALL {
            let plural = kind.plural();
            let mut read = self.listed(&own_path(None, plural, None)).await;
            if let (Err(ReadError::Forbidden(_)), RuleKind::Replication, Scope::One(home)) =
                (&read, kind, self.scope.clone())
            {
                let sentence = format!(
                    "You can't list Replications in all namespaces. Only those of {home} are \
                     considered."
                );
                self.note(Gap::Rules(kind), sentence);
                read = self.listed(&own_path(Some(&home), plural, None)).await;
            }
            let mut found = match read {
                Ok(found) => found,
                Err(ReadError::NotServed) if kind == RuleKind::ClusterReplication => bail!(
                    "the API server doesn't serve ClusterReplications: Mimeo's CRDs are not \
                     installed in this cluster"
                ),
                Err(ReadError::NotServed) => {
                    self.show(|engine| engine.rules_known(kind, Known::Unserved));
                    continue;
                }
                Err(error @ ReadError::Forbidden(_)) => {
                    let sentence = format!("You can't list {kind}s: {error}. They are left out.");
                    self.note(Gap::Rules(kind), sentence);
                    Vec::new()
                }
                Err(error) => bail!("can't list {kind}s: {error}"),
            };
            self.overlay.put_specs(&kind.to_string(), &mut found);
            for object in found {
                self.rule(kind, object);
            }
            let ids = self.picture.rules.keys();
            let listed: BTreeSet<RuleId> = ids.filter(|id| id.kind == kind).cloned().collect();
            self.show(|engine| engine.rules_known(kind, Known::Listed(&listed)));
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
        // The reconciler limits each rule in the same way.
        let rule = rule.map(|rule| rule.within(&self.reach));
        self.show(|engine| {
            engine.rule_applied(id.clone(), rule.clone(), status.clone());
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
                    "can't list namespaces: {error}. The commands status and check answer about \
                     one namespace: -n NAMESPACE"
                )
            }
            (Err(ReadError::Forbidden(_)), Scope::One(only)) => {
                let path = format!("/api/v1/namespaces/{}", encode(&only));
                match self.asker.reader.get(&path, Part::Metadata).await {
                    Ok(Some(object)) => found.extend(metadata(&object)),
                    Ok(None) => {}
                    Err(_) => {
                        let sentence = format!(
                            "You can't read Namespace {only}: its labels are \
                             unknown, so rules that select by labels seem not to match it."
                        );
                        self.note(Gap::Details, sentence);
                        found.push(assumed(&only));
                    }
                }
                self.note(
                    Gap::Details,
                    "You can't list namespaces. Only the one that was asked for is considered.",
                );
            }
            (Err(error), _) => bail!("can't list namespaces: {error}"),
        }
        self.overlay.put_namespaces(&mut found);
        show_namespaces(&mut self.picture.snapshot, &found);
        let named = found
            .into_iter()
            .filter_map(|meta| Some((meta.name.clone()?, meta)));
        self.picture.namespaces.extend(named);
        Ok(())
    }

    async fn grants(&mut self) {
        match self
            .listed(&own_path(None, "replicationgrants", None))
            .await
        {
            Ok(mut found) => {
                self.overlay.put_specs(REPLICATION_GRANT, &mut found);
                show_grants(&mut self.picture.snapshot, found);
            }
            Err(ReadError::NotServed) => {
                self.show(|engine| engine.grants_known(Known::Unserved));
            }
            Err(error) => {
                let sentence = format!(
                    "You can't list ReplicationGrants: {error}. Whether Replications \
                     may cross namespaces is unknown."
                );
                self.note(Gap::Grants, sentence);
                let why = Unreadable::Forbidden;
                self.show(|engine| engine.grants_known(Known::Unreadable(why)));
            }
        }
    }

    pub(super) async fn kinds_recorded(&mut self) {
        let path = format!(
            "/api/v1/namespaces/{}/configmaps/{KINDS_CONFIG_MAP}",
            encode(&self.picture.mimeo)
        );
        let recorded = match self.asker.reader.get(&path, Part::Whole).await {
            Ok(map) => map.and_then(|map| serde_json::from_value::<ConfigMap>(map).ok()),
            Err(error) => {
                let sentence = format!(
                    "You can't read ConfigMap {}/{KINDS_CONFIG_MAP}: {error}. Copies of rules that \
                     no longer exist may be missing here.",
                    self.picture.mimeo
                );
                self.note(Gap::Losses, sentence);
                None
            }
        };
        // A confirmation of a held deletion is not shown. Only the reconciler decides whether it
        // holds for the copies that the reconciler held, so they count as held until they are gone.
        let kinds = recorded.as_ref().map(parse_kinds).unwrap_or_default();
        self.picture.snapshot.kinds_recorded(kinds.kinds);
    }

    /// Answers the engine's questions until it has none.
    pub(super) async fn answer_all(&mut self) {
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
        let engine = picture.snapshot.engine();
        engine.copies_listing(watch);
        let each = |object: Decoded<Value>| {
            progress.count();
            if let Some(meta) = metadata(object.value()) {
                engine.copy_applied(&watch.kind, &meta);
            }
        };
        let read = asker
            .reader
            .list(&path, Some(&selector), Part::Metadata, each)
            .await;
        match read {
            Ok(version) => engine.copies_known(watch, Known::Listed(version)),
            Err(error) => {
                let sentence = format!(
                    "You can't list copies of kind {}: {error}. Their states are unknown.",
                    watch.kind
                );
                self.note(Gap::Copies, sentence);
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
            let waits = self.picture.snapshot.engine().progress(&name);
            self.picture.waiting.insert(name, waits);
        }
    }

    /// True if the answer can matter for the copies in the scope.
    fn matters(&self, question: &Question) -> bool {
        match question {
            Question::Object(request) => {
                // Without the answer of the dry run, a copy with the right checksum counts as
                // correct. An object of another client counts as not compared yet.
                let dry_run = matches!(request.verb, Verb::Compare(..) | Verb::Learn(_));
                self.scope.has(&request.namespace) && !dry_run
            }
            Question::Source(source, _) => {
                let Some(one) = self.scope.one() else {
                    return true;
                };
                let labels = self.picture.labels(one).unwrap_or_default();
                let mut rules = self.picture.valid_rules();
                let place = Place {
                    name: one,
                    labels: &labels,
                };
                rules.any(|rule| rule.sources.contains(source) && rule.matches(place))
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
                self.show(|engine| engine.kind(&gvk, resource.clone().into()));
                self.picture.kinds.insert(gvk, resource);
            }
            Read::Kind(gvk, Err(why)) => {
                let sentence = format!("Can't find out whether {gvk} is served: {why}.");
                self.note(Gap::Losses, sentence);
                self.show(|engine| {
                    engine.kind(&gvk, Known::Unreadable(Unreadable::Unavailable));
                });
            }
            Read::Source(source, Ok(object)) => {
                self.show(|engine| engine.source(&source, object.map(Decoded::Whole)));
            }
            Read::Source(source, Err(error)) => {
                let sentence = format!(
                    "You can't read the source {source}: {error}. Whether its copies \
                     are up to date is unknown."
                );
                self.note(Gap::Source(source), sentence);
            }
            Read::Selected(selector, Ok(mut objects)) => {
                objects.retain(|object| !selector.passes_over(text(object, "/metadata/name")));
                let mut members = Members::default();
                members.extend(objects.iter().filter_map(Member::of));
                let names = objects
                    .iter()
                    .map(|object| text(object, "/metadata/name").to_owned())
                    .collect();
                self.show(|engine| {
                    for object in objects {
                        let source = selector.source(text(&object, "/metadata/name"));
                        engine.source(&source, Some(Decoded::Whole(object)));
                    }
                    engine.selected(&selector, Known::Listed(&members));
                });
                self.picture.selected.insert(selector, names);
            }
            Read::Selected(selector, Err(error)) => {
                let sentence = format!(
                    "You can't list the sources {selector}: {error}. Their copies are unknown."
                );
                self.note(Gap::Losses, sentence);
            }
            Read::Job(job, answer, note) => {
                if let Some(sentence) = note {
                    self.note(Gap::Losses, sentence);
                }
                self.show(|engine| engine.answered(&job, answer));
            }
            Read::Object(request, Ok(outcome)) => self.picture.snapshot.object(&request, outcome),
            Read::Object(request, Err(error)) => {
                let GroupVersionKind { kind, .. } = &request.resource.gvk;
                let sentence = format!(
                    "You can't read objects of kind {kind} in namespace {}: {error}.",
                    request.namespace
                );
                self.note(Gap::Details, sentence);
            }
        }
    }
}
