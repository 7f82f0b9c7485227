//! One program: its engine, its watches, its requests in flight, and the events that it has
//! received.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
    time::Duration,
};

use mimeo_api::ReplicationGrant;
use mimeo_engine::{
    Action, Engine, GrantsRead, Job, Member, Members, Presence, Request, Settings, Verb,
    clock::Tick,
};
use mimeo_model::{
    grant::{Grant, GrantStatus},
    id::{RuleId, RuleKind},
    kind::{GroupKind, GroupVersionKind},
    known::{Decoded, Known},
    outcome::Outcome,
    refusal::Refused,
    render::Precondition,
    role::Role,
    rule::Rule,
    source::{SourceRef, SourceSelector},
};
use serde_json::{Value, json};

use super::server::{Key, Object, Pre, Res, Server, flatten};

pub const CLUSTER: &str = "00000000-0000-4000-8000-00000000c1a5";

/// The subject of a watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    Rules,
    Namespaces,
    Copies(Res),
    Source(Res, String, String),
    Selected(SourceSelector),
    /// The kinds `ConfigMap`.
    Notes,
    /// True if a kind is served.
    Kind(Res),
    Replications,
    Grants,
}

impl Topic {
    fn res(&self) -> Option<Res> {
        match self {
            Self::Rules => Some(Res::Rule),
            Self::Namespaces => Some(Res::Namespace),
            Self::Replications => Some(Res::Replication),
            Self::Grants => Some(Res::Grant),
            Self::Copies(res) | Self::Source(res, ..) => Some(*res),
            Self::Selected(selector) => Some(Res::of(&selector.gvk.group, &selector.gvk.kind)),
            Self::Notes | Self::Kind(_) => None,
        }
    }

    fn selects(&self, object: &Object) -> bool {
        match self {
            Self::Copies(_) => object.labelled(),
            Self::Source(_, namespace, name) => {
                object.key.namespace == *namespace && object.key.name == *name
            }
            Self::Selected(selector) => {
                let labels = object.labels();
                let label = |key: &str| labels.get(key).map(String::as_str);
                object.key.namespace == *selector.namespace && selector.selector.matches_by(label)
            }
            _ => true,
        }
    }
}

/// A message of a watch.
#[derive(Clone, Debug)]
pub enum Message {
    Listing,
    Applied(Rc<Object>),
    Gone(Rc<Object>),
    Listed(u64),
    Notes(usize),
    Kind(bool),
    /// The LIST was answered 404.
    NotServed,
}

impl std::fmt::Display for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Applied(object) => write!(f, "applied {} v{}", object.key, object.version),
            Self::Gone(object) => write!(f, "gone {} v{}", object.key, object.version),
            other => write!(f, "{other:?}"),
        }
    }
}

/// A watch: its undelivered messages, and its position in the server's log.
#[derive(Debug, Default)]
pub struct Watch {
    queue: VecDeque<Message>,
    cursor: usize,
    /// Uids of the objects that this listing has shown.
    shown: BTreeSet<String>,
    /// For subjects outside the log: the last state that the watch delivered.
    told: Option<usize>,
    /// True if the LIST was answered with 404. The watch has then delivered nothing, and the LIST
    /// must be retried.
    unlisted: bool,
}

impl Watch {
    fn open(topic: &Topic, server: &Server) -> Self {
        let mut watch = Self {
            cursor: server.log.len(),
            ..Self::default()
        };
        let Some(res) = topic.res() else { return watch };
        if !server.served(res) {
            watch.unlisted = true;
            watch.queue.push_back(Message::NotServed);
            return watch;
        }
        watch.queue.push_back(Message::Listing);
        watch.queue.extend(
            server
                .of(res)
                .filter(|object| topic.selects(object))
                .cloned()
                .map(Message::Applied),
        );
        watch.queue.push_back(Message::Listed(server.version));
        watch
    }

    /// Returns the next message of the watch.
    fn next(&mut self, topic: &Topic, server: &Server) -> Option<Message> {
        match topic {
            Topic::Notes => return self.state(server.notes.len() - 1).map(Message::Notes),
            Topic::Kind(res) => {
                return self
                    .state(usize::from(server.served(*res)))
                    .map(|served| Message::Kind(served == 1));
            }
            _ => {}
        }
        while self.queue.is_empty() && self.cursor < server.log.len() {
            let event = &server.log[self.cursor];
            self.cursor += 1;
            if Some(event.key.res) != topic.res() {
                continue;
            }
            let selected = |object: &&Rc<Object>| topic.selects(object);
            match (
                event.old.as_ref().filter(selected),
                event.new.as_ref().filter(selected),
            ) {
                (_, Some(new)) => self.queue.push_back(Message::Applied(new.clone())),
                (Some(old), None) => {
                    // The last state that the watch has shown, with the resourceVersion of the
                    // event that ended it.
                    let last = Object {
                        version: event.version,
                        ..(**old).clone()
                    };
                    self.queue.push_back(Message::Gone(Rc::new(last)));
                }
                (None, None) => {}
            }
        }
        self.queue.pop_front()
    }

    fn state(&mut self, now: usize) -> Option<usize> {
        (self.told != Some(now)).then(|| {
            self.told = Some(now);
            now
        })
    }
}

/// A request or a job in flight.
#[derive(Debug)]
pub struct Flight {
    pub what: What,
    /// The answer, once the server has carried it out.
    pub answer: Option<Answer>,
}

impl Flight {
    pub fn of(what: What) -> Self {
        Self { what, answer: None }
    }
}

#[derive(Debug)]
pub enum What {
    Request(Box<Request>),
    Job(Box<Job>),
}

impl What {
    /// Turns a write into a read of the same object, but not a dry run. Returns the verb from
    /// before.
    #[allow(dead_code)] // Only the worlds take snapshots.
    pub fn read_instead_of_write(&mut self) -> Verb {
        let Self::Request(request) = self else {
            return Verb::Look;
        };
        let verb = request.verb;
        if !matches!(verb, Verb::Compare(..) | Verb::Learn(_)) {
            request.verb = Verb::Look;
        }
        verb
    }
}

/// The result of a request or job.
#[derive(Clone, Debug)]
pub enum Answer {
    Outcome(Outcome, Option<Rc<Object>>),
    /// The rule or the source that was read, if its kind is served.
    Presence(Option<Presence>),
    Grants(GrantsRead),
    /// The source that was read, if it exists.
    Shown(Option<Rc<Object>>),
    /// True if the write was made.
    Written(bool),
}

/// The events that a program has received. They decide which of its requests are allowed.
#[derive(Debug, Default)]
pub struct View {
    pub rules: BTreeMap<String, Rc<Object>>,
    tenants: BTreeMap<RuleId, Rc<Object>>,
    pub namespaces: BTreeMap<String, Rc<Object>>,
    /// The newest state of each copy that the program has seen, by uid.
    pub copies: BTreeMap<String, Rc<Object>>,
    /// Uids of objects that the program has seen with an entry of Mimeo's.
    pub ours: BTreeSet<String>,
}

/// One program.
#[derive(Debug)]
pub struct Process {
    pub role: Role,
    pub engine: Engine,
    pub start: Duration,
    pub watches: BTreeMap<Topic, Watch>,
    pub flights: Vec<Flight>,
    pub view: View,
    demand: Option<u64>,
    /// The largest number of requests in flight.
    window: usize,
    pub requests: BTreeMap<&'static str, usize>,
    announced: usize,
}

impl Process {
    pub fn new(role: Role, window: usize, clock: Duration, server: &Server) -> Self {
        let settings = Settings {
            backoff_limit: Duration::from_secs(30),
            ..Settings::new(role, CLUSTER)
        };
        let mut process = Self {
            role,
            engine: Engine::new(settings),
            start: clock,
            watches: BTreeMap::new(),
            flights: Vec::new(),
            view: View::default(),
            demand: None,
            window,
            requests: BTreeMap::new(),
            announced: 0,
        };
        for topic in [Topic::Rules, Topic::Namespaces, Topic::Notes] {
            process
                .watches
                .insert(topic.clone(), Watch::open(&topic, server));
        }
        for topic in [Topic::Replications, Topic::Grants] {
            if topic.res().is_some_and(|res| server.served(res)) {
                process
                    .watches
                    .insert(topic.clone(), Watch::open(&topic, server));
            }
        }
        process
    }

    pub fn tick(&self, clock: Duration) -> Tick {
        clock.saturating_sub(self.start)
    }

    /// Opens and closes watches according to the engine's demand.
    pub fn follow_demand(&mut self, server: &Server) {
        if self.demand == Some(self.engine.index().demand_version()) {
            return;
        }
        self.demand = Some(self.engine.index().demand_version());
        let demand = self.engine.demand();
        let mut wanted = BTreeSet::from([Topic::Rules, Topic::Namespaces, Topic::Notes]);
        wanted.extend(
            demand
                .kinds
                .iter()
                .map(|gvk| Topic::Kind(Res::of(&gvk.group, &gvk.kind))),
        );
        wanted.extend(
            demand
                .copies
                .keys()
                .map(|watch| Topic::Copies(Res::of(&watch.kind.group, &watch.kind.kind))),
        );
        wanted.extend(demand.sources.keys().map(|source| {
            Topic::Source(
                Res::of(&source.gvk.group, &source.gvk.kind),
                source.namespace.to_string(),
                source.name.to_string(),
            )
        }));
        wanted.extend(demand.selectors.into_keys().map(Topic::Selected));
        let tenants = [Topic::Replications, Topic::Grants];
        self.watches
            .retain(|topic, _| wanted.contains(topic) || tenants.contains(topic));
        for topic in wanted {
            self.watches
                .entry(topic)
                .or_insert_with_key(|topic| Watch::open(topic, server));
        }
    }

    /// Opens a watch that no demand names.
    #[allow(dead_code)] // Only the worlds take snapshots.
    pub fn open(&mut self, topic: Topic, server: &Server) {
        self.watches
            .entry(topic)
            .or_insert_with_key(|topic| Watch::open(topic, server));
    }

    /// Breaks a watch and lists again.
    pub fn relist(&mut self, topic: &Topic, server: &Server) {
        if topic.res().is_none() {
            return;
        }
        if let Some(watch) = self.watches.get_mut(topic) {
            *watch = Watch::open(topic, server);
        }
    }

    /// Retries the lists that were answered with 404 and would now succeed.
    pub fn retry_lists(&mut self, server: &Server) {
        for (topic, watch) in &mut self.watches {
            if watch.unlisted && topic.res().is_some_and(|res| server.served(res)) {
                *watch = Watch::open(topic, server);
            }
        }
    }

    /// Hands one message of a watch to the engine, and returns it.
    pub fn deliver(&mut self, topic: &Topic, server: &Server, clock: Duration) -> Option<Message> {
        let message = self.watches.get_mut(topic)?.next(topic, server)?;
        self.engine.at(self.tick(clock));
        match topic {
            Topic::Rules if matches!(message, Message::NotServed) => {
                if self.role == Role::Injector {
                    self.view.rules.clear();
                }
                self.engine
                    .rules_known(RuleKind::ClusterReplication, Known::Unserved);
            }
            Topic::Copies(res) | Topic::Source(res, ..)
                if matches!(message, Message::NotServed) =>
            {
                self.engine.kind(&res.gvk(), Known::Unserved);
                // The program repeats the discovery of the kind.
                self.watches.entry(Topic::Kind(*res)).or_default().told = None;
            }
            Topic::Selected(selector) if matches!(message, Message::NotServed) => {
                self.engine.kind(&selector.gvk, Known::Unserved);
                self.watches
                    .entry(Topic::Kind(Res::of(
                        &selector.gvk.group,
                        &selector.gvk.kind,
                    )))
                    .or_default()
                    .told = None;
            }
            Topic::Selected(selector) => self.tell_selected(selector, &message),
            Topic::Rules => self.tell_rule(&message),
            Topic::Replications => self.tell_replication(&message),
            Topic::Grants => self.tell_grant(&message),
            Topic::Namespaces => self.tell_namespace(&message),
            Topic::Copies(res) => self.tell_copy(*res, &message),
            Topic::Source(res, namespace, name) => {
                self.tell_source(*res, namespace, name, &message);
            }
            Topic::Kind(res) => {
                let Message::Kind(served) = message else {
                    return None;
                };
                self.engine
                    .kind(&res.gvk(), served.then(|| res.resource()).into());
            }
            Topic::Notes => {
                let Message::Notes(at) = message else {
                    return None;
                };
                let notes = &server.notes[at];
                self.engine.kinds_recorded(&notes.kinds);
                self.engine
                    .confirmed(notes.confirmed.last().map(String::as_str));
            }
        }
        Some(message)
    }

    fn tell_rule(&mut self, message: &Message) {
        let id = |name: &str| Key::new(Res::Rule, "", name).id();
        match message {
            Message::Listing => self.shown(&Topic::Rules).clear(),
            Message::Applied(object) => {
                self.shown(&Topic::Rules).insert(object.key.name.clone());
                self.view
                    .rules
                    .insert(object.key.name.clone(), object.clone());
                self.engine.rule_applied(
                    id(&object.key.name),
                    parse(object),
                    object.status.clone(),
                );
            }
            Message::Gone(object) => {
                self.view.rules.remove(&object.key.name);
                self.engine.rule_gone(&id(&object.key.name));
            }
            Message::Listed(_) => {
                let shown = self.shown(&Topic::Rules).clone();
                self.view.rules.retain(|name, _| shown.contains(name));
                self.engine.rules_known(
                    RuleKind::ClusterReplication,
                    Known::Listed(&shown.iter().map(|name| id(name)).collect()),
                );
                if !self.watches.contains_key(&Topic::Replications) {
                    self.engine
                        .rules_known(RuleKind::Replication, Known::Unserved);
                }
            }
            _ => {}
        }
    }

    fn tell_replication(&mut self, message: &Message) {
        let topic = Topic::Replications;
        match message {
            Message::Listing => self.shown(&topic).clear(),
            Message::Applied(object) => {
                let id = object.key.id();
                self.shown(&topic).insert(id.to_string());
                self.view.tenants.insert(id.clone(), object.clone());
                self.engine
                    .rule_applied(id, parse(object), object.status.clone());
            }
            Message::Gone(object) => {
                self.view.tenants.remove(&object.key.id());
                self.engine.rule_gone(&object.key.id());
            }
            Message::Listed(_) => {
                let listed: BTreeSet<RuleId> = self
                    .shown(&topic)
                    .iter()
                    .map(|id| id.parse().expect("as it was written"))
                    .collect();
                self.engine
                    .rules_known(RuleKind::Replication, Known::Listed(&listed));
            }
            _ => {}
        }
    }

    fn tell_grant(&mut self, message: &Message) {
        let topic = Topic::Grants;
        match message {
            Message::Listing => self.shown(&topic).clear(),
            Message::Applied(object) => {
                let Key {
                    namespace, name, ..
                } = &object.key;
                self.shown(&topic).insert(format!("{namespace}/{name}"));
                let spec = (**object.grant.as_ref().expect("a grant has a spec")).clone();
                let grant = Grant::parse(&ReplicationGrant {
                    metadata: object.meta(),
                    spec,
                    status: None,
                })
                .map_err(|_| GrantStatus {
                    generation: object.meta().generation.unwrap_or_default(),
                    status: None,
                });
                self.engine.grant_applied(namespace, name, grant);
            }
            Message::Gone(object) => {
                self.engine
                    .grant_gone(&object.key.namespace, &object.key.name);
            }
            Message::Listed(_) => {
                let listed = self
                    .shown(&topic)
                    .iter()
                    .filter_map(|path| path.split_once('/'));
                let listed = listed
                    .map(|(namespace, name)| (namespace.into(), name.into()))
                    .collect();
                self.engine.grants_known(Known::Listed(&listed));
            }
            _ => {}
        }
    }

    fn tell_namespace(&mut self, message: &Message) {
        match message {
            Message::Listing => self.shown(&Topic::Namespaces).clear(),
            Message::Applied(object) => {
                self.shown(&Topic::Namespaces)
                    .insert(object.key.name.clone());
                self.view
                    .namespaces
                    .insert(object.key.name.clone(), object.clone());
                self.engine.namespace_applied(&object.meta());
            }
            Message::Gone(object) => {
                self.view.namespaces.remove(&object.key.name);
                self.engine.namespace_deleted(&object.meta());
            }
            Message::Listed(_) => {
                let shown = self.shown(&Topic::Namespaces).clone();
                self.view.namespaces.retain(|name, _| shown.contains(name));
                self.engine
                    .namespaces_listed(&shown.iter().map(|name| name.as_str().into()).collect());
            }
            _ => {}
        }
    }

    fn tell_copy(&mut self, res: Res, message: &Message) {
        let kind: GroupKind = res.gvk().group_kind();
        match message {
            Message::Listing => self.engine.copies_listing(&kind.into()),
            Message::Applied(object) => {
                self.see(object);
                self.engine.copy_applied(&kind, &object.meta());
            }
            Message::Gone(object) => self.engine.copy_gone(&kind, &object.meta()),
            Message::Listed(at) => self.engine.copies_known(&kind.into(), Known::Listed(*at)),
            _ => {}
        }
    }

    fn tell_source(&mut self, res: Res, namespace: &str, name: &str, message: &Message) {
        let source = SourceRef::named(res.gvk(), namespace, name);
        let topic = Topic::Source(res, namespace.into(), name.into());
        match message {
            Message::Listing => self.shown(&topic).clear(),
            Message::Applied(object) => {
                self.shown(&topic).insert(name.into());
                self.engine
                    .source(&source, Some(Decoded::Whole(object.json())));
            }
            Message::Gone(_) => self.engine.source(&source, None),
            Message::Listed(_) if self.shown(&topic).is_empty() => {
                self.engine.source(&source, None);
            }
            _ => {}
        }
    }

    fn tell_selected(&mut self, selector: &SourceSelector, message: &Message) {
        let topic = Topic::Selected(selector.clone());
        match message {
            Message::Listing => self.shown(&topic).clear(),
            Message::Applied(object) => {
                self.shown(&topic).insert(object.key.name.clone());
                self.engine.source(
                    &selector.source(object.key.name.as_str()),
                    Some(Decoded::Whole(object.json())),
                );
            }
            Message::Gone(object) => {
                self.engine
                    .source(&selector.source(object.key.name.as_str()), None);
            }
            Message::Listed(_) => {
                let member = |name: &String| Member::of(&json!({"metadata": {"name": name}}));
                let mut found = Members::default();
                found.extend(self.shown(&topic).iter().filter_map(member));
                self.engine.selected(selector, Known::Listed(&found));
            }
            _ => {}
        }
    }

    fn shown(&mut self, topic: &Topic) -> &mut BTreeSet<String> {
        &mut self.watches.entry(topic.clone()).or_default().shown
    }

    /// Records the state of a copy that a watch or an answer has shown.
    pub fn see(&mut self, object: &Rc<Object>) {
        if object.ours() {
            self.view.ours.insert(object.uid.clone());
        }
        let known = self
            .view
            .copies
            .entry(object.uid.clone())
            .or_insert_with(|| object.clone());
        if known.version < object.version {
            *known = object.clone();
        }
    }

    /// Hands the result of a job to the engine, or a failure if no answer arrived.
    pub fn end_job(&mut self, job: &Job, answer: Option<Answer>, now: Tick) {
        use mimeo_engine::Answer as ReportedCopy;
        let told = match answer {
            Some(Answer::Presence(Some(read))) => ReportedCopy::Presence(read),
            Some(Answer::Grants(read)) => ReportedCopy::Grants(read),
            Some(Answer::Shown(object)) => {
                ReportedCopy::Object(object.map(|object| Decoded::Whole(object.json())))
            }
            Some(Answer::Written(true)) => ReportedCopy::Done,
            Some(Answer::Written(false)) => ReportedCopy::Changed,
            Some(Answer::Outcome(..) | Answer::Presence(None)) | None => ReportedCopy::Failed,
        };
        self.engine.at(now).answered(job, told);
    }

    /// Takes the due Events. In any history they are few, and the API server would accept all of
    /// them.
    fn announce(&mut self, clock: Duration) {
        let now = self.tick(clock);
        let event_updates = self.engine.at(now).event_updates();
        assert!(
            event_updates
                .iter()
                .all(|one| one.note.len() <= 1024 && one.count > 0),
            "{event_updates:?}"
        );
        self.announced += event_updates.len();
        let most = 50 + usize::try_from(now.as_secs() / 6).expect("small");
        assert!(
            self.announced <= most,
            "{} Events after {now:?}",
            self.announced
        );
        assert!(
            self.engine.events_due().is_none_or(|due| due > now),
            "what is due is told"
        );
    }

    /// Takes the present work from the engine, up to the window. The new flights are at the end.
    pub fn pump(&mut self, server: &Server, clock: Duration) -> usize {
        let before = self.flights.len();
        loop {
            self.follow_demand(server);
            if self.flights.len() >= self.window {
                break;
            }
            match self.engine.at(self.tick(clock)).next_action() {
                Some(Action::Request(request)) => {
                    *self.requests.entry(verb_name(request.verb)).or_default() += 1;
                    self.flights.push(Flight::of(What::Request(request)));
                }
                Some(Action::Job(job)) => self.flights.push(Flight::of(What::Job(job))),
                None => break,
            }
        }
        self.follow_demand(server);
        self.announce(clock);
        self.flights.len() - before
    }
}

pub fn verb_name(verb: Verb) -> &'static str {
    match verb {
        Verb::Create => "create",
        Verb::Apply(_) => "apply",
        Verb::Take(..) => "take",
        Verb::Compare(..) => "compare",
        Verb::Learn(_) => "learn",
        Verb::Claim(..) => "claim",
        Verb::Look => "look",
        Verb::Delete(..) => "delete",
    }
}

/// The key of the object that the request concerns.
pub fn key_of(request: &Request) -> Key {
    let GroupVersionKind { group, kind, .. } = &request.resource.gvk;
    Key::new(Res::of(group, kind), &request.namespace, &request.name)
}

/// Composes the body of a write from its pieces, and reads it as the server does.
pub fn body_of(request: &Request, key: &Key) -> Result<(BTreeMap<String, String>, Pre), String> {
    let rendering = request.rendering.as_ref().ok_or("a write without a body")?;
    let (precondition, pre) = match request.verb {
        Verb::Create => (Precondition::Absent, Pre::Absent),
        Verb::Apply(uid) | Verb::Learn(uid) => (Precondition::Is(uid), Pre::Is(uid.to_string())),
        Verb::Take(uid, version) | Verb::Compare(uid, version) => (
            Precondition::Unchanged(uid, version),
            Pre::Unchanged(uid.to_string(), version),
        ),
        verb => return Err(format!("{verb:?} is no write")),
    };
    let bytes = match request.verb {
        Verb::Compare(uid, version) => rendering.unmarked(&request.name, uid, version).concat(),
        _ => rendering.body(precondition).concat(),
    };
    let body: Value = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    let gvk = key.res.gvk();
    let identity = json!([gvk.api_version(), *gvk.kind, key.name]);
    let found = json!([body["apiVersion"], body["kind"], body["metadata"]["name"]]);
    if found != identity || body["metadata"].get("namespace").is_some() {
        return Err(format!("{key} is sent as {found}"));
    }
    let carried = (
        body["metadata"].get("uid").cloned(),
        body["metadata"].get("resourceVersion").cloned(),
    );
    let wanted = match &pre {
        Pre::Absent => (None, Some(json!("1"))),
        Pre::Is(uid) => (Some(json!(uid)), None),
        Pre::Unchanged(uid, version) => (Some(json!(uid)), Some(json!(version.to_string()))),
    };
    if carried != wanted {
        return Err(format!(
            "{key}: precondition {carried:?} instead of {wanted:?}"
        ));
    }
    Ok((flatten(&body), pre))
}

/// Returns the rule as the API server shows it.
pub fn parse(object: &Object) -> Result<Rule, Refused> {
    let rule = object
        .spec
        .as_ref()
        .expect("a rule has a spec")
        .parse(object);
    rule.map_err(|refusals| Refused {
        generation: object.meta().generation.unwrap_or_default(),
        created: object
            .meta()
            .creation_timestamp
            .expect("an object has one")
            .0,
        refusals,
    })
}
