//! Drives the real engine on the server in memory under ideal conditions: every event arrives, and
//! no request fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use mimeo_api::ClusterReplicationStatus;
use mimeo_engine::{CopyView, Question, Settings, Snapshot, State, Webhooks};
use mimeo_model::{
    drift::guard,
    review::{Kept, decode},
    role::Role,
};
use serde_json::{Value, json};

use super::{
    carry::carry,
    model::{Deed, Model, Plan, ReportedCopy, agrees},
    process::{Answer, CLUSTER, Flight, Process, Topic, What},
    server::{Entry, Key, Object, Res, Server, Write},
    spec::KINDS,
    tables::Planned,
};

const GUARDED: &str = "label/mimeo.dev/drift";

/// The result of a user's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Yes,
    No,
    /// Mimeo's webhook refuses the request.
    Refused,
}

/// Longer than any grace period here, than the time in which losses are collected, and than any
/// back-off.
const LONG: Duration = Duration::from_secs(65);

#[derive(Debug)]
pub struct Cluster {
    server: Server,
    process: Process,
    clock: Duration,
}

impl Cluster {
    pub fn new() -> Self {
        let clock = Duration::from_secs(1000);
        let mut server = Server::new();
        server.unserved.clear();
        server.seconds = clock.as_secs();
        let process = Process::new(Role::Keeper, 4, clock, &server);
        Self {
            server,
            process,
            clock,
        }
    }

    /// Carries out a user's action.
    pub fn act(&mut self, deed: &Deed) -> Done {
        let place = deed.place().filter(|key| KINDS.contains(&key.res));
        let may_be_asked =
            |object: &&Rc<Object>| guarded(object) || deed.sets(GUARDED) == Some("deny");
        let before = place.and_then(|key| self.server.get(key).filter(may_be_asked).cloned());
        let mut server = before.as_ref().map(|_| self.server.clone());
        if !ask(server.as_mut().unwrap_or(&mut self.server), deed) {
            return Done::No;
        }
        if let Deed::Restart = deed {
            self.process = Process::new(Role::Keeper, 4, self.clock, &self.server);
        }
        let Some((before, server)) = before.zip(server) else {
            return Done::Yes;
        };
        if hooked(deed, &before, server.get(&before.key)) && self.minded(deed, &before) {
            return Done::Refused;
        }
        self.server = server;
        Done::Yes
    }

    /// Returns the decision of a webhook replica that has just begun.
    fn minded(&self, deed: &Deed, copy: &Object) -> bool {
        let mut webhook = Process::new(Role::Injector, 4, self.clock, &self.server);
        loop {
            webhook.follow_demand(&self.server);
            let topics: Vec<Topic> = webhook.watches.keys().cloned().collect();
            let told = topics
                .iter()
                .filter(|topic| webhook.deliver(topic, &self.server, self.clock).is_some())
                .count();
            if told == 0 {
                break;
            }
        }
        let gvk = copy.key.res.gvk();
        let deletes = matches!(deed, Deed::Remove(_));
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "kind": {"group": gvk.group, "version": gvk.version, "kind": gvk.kind},
                "resource": {"group": gvk.group, "version": gvk.version, "resource": copy.key.res.resource().plural},
                "namespace": copy.key.namespace, "operation": if deletes { "DELETE" } else { "UPDATE" },
                "object": if deletes { Value::Null } else { json!({"metadata": {}}) }, "oldObject": copy.json(),
            },
        });
        let request = decode(review.to_string().as_bytes(), Kept::Marks).expect("a review");
        guard(&request, |rule, copy| {
            webhook.engine.index().guards(rule, copy)
        })
        .is_some()
    }

    // ---- time passes ----

    fn deliver(&mut self) -> bool {
        let mut busy = false;
        let topics: Vec<Topic> = self.process.watches.keys().cloned().collect();
        for topic in topics {
            while self
                .process
                .deliver(&topic, &self.server, self.clock)
                .is_some()
            {
                busy = true;
            }
        }
        busy
    }

    fn answer(&mut self, Flight { what, .. }: Flight) {
        let (answer, _) = carry(&mut self.server, &what);
        let now = self.process.tick(self.clock);
        match (what, answer) {
            (What::Request(request), Answer::Outcome(outcome, _)) => {
                self.process.engine.at(now).outcome(&request, outcome);
            }
            (What::Request(_), answer) => panic!("{answer:?} to a request"),
            (What::Job(job), answer) => self.process.end_job(&job, Some(answer), now),
        }
    }

    /// Delivers all events and answers in flight, and carries out the work that follows.
    fn calm(&mut self) -> Result<(), String> {
        for _ in 0..2_000 {
            self.process.pump(&self.server, self.clock);
            let outdated = self.process.engine.outdated_verdicts();
            if !outdated.is_empty() {
                return Err(format!("not planned again: {outdated:?}"));
            }
            let flights = std::mem::take(&mut self.process.flights);
            let mut busy = !flights.is_empty();
            flights.into_iter().for_each(|flight| self.answer(flight));
            busy |= self.deliver();
            if !busy {
                return Ok(());
            }
        }
        Err("it never comes to rest".into())
    }

    fn statuses(&mut self) -> bool {
        let now = self.process.tick(self.clock);
        let wall = Timestamp::from_second(i64::try_from(self.clock.as_secs()).expect("small"))
            .expect("in range");
        self.process.engine.at(now).webhooks(Webhooks::default());
        let updates = self.process.engine.at(now).statuses(wall);
        let any = !updates.is_empty();
        for update in updates {
            self.server.status(&Key::of(&update.id), update.status);
        }
        any
    }

    /// Lets time pass until no work is delayed any more.
    pub fn settle(&mut self) -> Result<(), String> {
        let end = self.clock + LONG;
        // The engine observes all actions of users before it decides anything.
        self.deliver();
        for _ in 0..2_000 {
            self.calm()?;
            let due = self
                .process
                .engine
                .wake_at()
                .map(|due| self.process.start + due);
            match due.filter(|due| *due < end) {
                Some(due) => self.clock = due.max(self.clock + Duration::from_millis(1)),
                None if self.clock < end => self.clock = end,
                // The statuses written meanwhile are not checked.
                None if self.statuses() => {}
                None => return Ok(()),
            }
            self.server.seconds = self.clock.as_secs();
        }
        Err("time passes and it never comes to rest".into())
    }

    // ---- comparing ----

    /// Reads the cluster once, as `kubectl mimeo` does. Returns where the snapshot's copies and
    /// statuses differ from those of the reconciler.
    pub fn compare_snapshot(&self) -> Vec<String> {
        let mut reader = Process::new(Role::Keeper, 4, self.clock, &self.server);
        let mut snapshot = Snapshot::new(Settings::new(Role::Keeper, CLUSTER));
        let mut server = self.server.clone();
        let told = |snapshot: &mut Snapshot, reader: &mut Process| {
            std::mem::swap(snapshot.engine(), &mut reader.engine);
            let topics: Vec<Topic> = reader.watches.keys().cloned().collect();
            for topic in topics {
                while reader.deliver(&topic, &self.server, self.clock).is_some() {}
            }
            std::mem::swap(snapshot.engine(), &mut reader.engine);
        };
        told(&mut snapshot, &mut reader);
        let mut rounds = 0;
        loop {
            let questions = snapshot.questions();
            if questions.is_empty() {
                break;
            }
            rounds += 1;
            if rounds > 100 {
                return vec![format!("a snapshot keeps asking {questions:?}")];
            }
            for question in questions {
                match question {
                    Question::Kind(gvk) => {
                        reader.open(Topic::Kind(Res::of(&gvk.group, &gvk.kind)), &self.server);
                    }
                    Question::Copies(watch, _) => {
                        let res = Res::of(&watch.kind.group, &watch.kind.kind);
                        reader.open(Topic::Copies(res), &self.server);
                    }
                    Question::Source(source, _) => {
                        let res = Res::of(&source.gvk.group, &source.gvk.kind);
                        let topic = Topic::Source(
                            res,
                            source.namespace.to_string(),
                            source.name.to_string(),
                        );
                        reader.open(topic, &self.server);
                    }
                    Question::Selected(selector, _) => {
                        reader.open(Topic::Selected(selector), &self.server);
                    }
                    Question::Job(job) => {
                        let (answer, _) = carry(&mut server, &What::Job(job.clone()));
                        std::mem::swap(snapshot.engine(), &mut reader.engine);
                        reader.end_job(&job, Some(answer), reader.tick(self.clock));
                        std::mem::swap(snapshot.engine(), &mut reader.engine);
                    }
                    Question::Object(request) => {
                        let mut asked = What::Request(request);
                        let verb = asked.read_instead_of_write();
                        let (answer, _) = carry(&mut server, &asked);
                        let (What::Request(mut request), Answer::Outcome(outcome, _)) =
                            (asked, answer)
                        else {
                            panic!("no answer to a request");
                        };
                        request.verb = verb;
                        snapshot.object(&request, outcome);
                    }
                }
            }
            told(&mut snapshot, &mut reader);
        }
        let mut faults = self.unlike(&snapshot);
        faults.extend(self.changes_unlike_states(&snapshot));
        faults
    }

    /// Returns the differences between the changes that a snapshot collected and the states of its
    /// copies. A copy that waits for a change has exactly one, and no other copy of a rule has any.
    fn changes_unlike_states(&self, snapshot: &Snapshot) -> Vec<String> {
        let engine = snapshot.decided();
        let mut changes: BTreeMap<(String, String, String, String), usize> = BTreeMap::new();
        for change in snapshot.changes() {
            let rule = change.rule.as_ref().map(ToString::to_string);
            let key = (
                rule.unwrap_or_default(),
                change.namespace.to_string(),
                change.resource.gvk.kind.to_string(),
                change.name.to_string(),
            );
            *changes.entry(key).or_default() += 1;
        }
        let mut faults = Vec::new();
        let rules = [Res::Rule, Res::Replication].map(|res| self.server.of(res));
        for rule in rules.into_iter().flatten().map(|rule| rule.key.id()) {
            for namespace in self.server.of(Res::Namespace) {
                let name = &namespace.key.name;
                for copy in engine.page(Timestamp::UNIX_EPOCH).copies(&rule, name) {
                    let reason = copy.reason();
                    let key = (rule.to_string(), name.clone(), copy.kind, copy.name);
                    let found = changes.remove(&key).unwrap_or_default();
                    let planned = copy.state == State::Pending && reason.is_some();
                    if found != usize::from(planned) {
                        faults.push(format!(
                            "{key:?} is {:?} {reason:?} and has {found} changes",
                            copy.state
                        ));
                    }
                }
            }
        }
        faults
    }

    fn unlike(&self, snapshot: &Snapshot) -> Vec<String> {
        let wall = Timestamp::UNIX_EPOCH;
        let states =
            |copies: Vec<CopyView>| -> BTreeMap<(String, String), (State, Option<String>)> {
                let state = |copy: CopyView| {
                    let reason = copy.reason().map(str::to_owned);
                    // Only a write shows that the API server refuses it.
                    let refused = copy
                        .failure
                        .is_some_and(|(_, message)| message.starts_with("the API server answered"));
                    let (state, reason) = match copy.state {
                        State::Failed if refused => (State::Pending, None),
                        State::Pending => (State::Pending, None),
                        // Which of two conflicts is told first depends on what was read before.
                        State::Failed if reason.as_deref() == Some("RuleConflict") => {
                            (State::Failed, Some("Conflict".into()))
                        }
                        state => (state, reason),
                    };
                    ((copy.kind, copy.name), (state, reason))
                };
                copies.into_iter().map(state).collect()
            };
        let engine = snapshot.decided();
        let rules = [Res::Rule, Res::Replication].map(|res| self.server.of(res));
        let mut faults = Vec::new();
        for rule in rules.into_iter().flatten().map(|rule| rule.key.id()) {
            for namespace in self.server.of(Res::Namespace) {
                let name = &namespace.key.name;
                let mut read = states(engine.page(wall).copies(&rule, name));
                let mut known = states(self.process.engine.page(wall).copies(&rule, name));
                // While a rule is suspended, the reconciler doesn't notice objects of others. A
                // snapshot reads all objects anew, so its plan may differ.
                known.retain(|copy, (state, _)| {
                    let compared = *state != State::Suspended;
                    if !compared {
                        read.remove(copy);
                    }
                    compared
                });
                if read != known {
                    faults.push(format!(
                        "{rule} in {name}: a snapshot shows {read:?}, the reconciler {known:?}"
                    ));
                }
            }
        }
        faults
    }

    /// Returns the differences between the cluster and the model.
    pub fn compare(&self, model: &Model, told: &BTreeMap<Key, ReportedCopy>) -> Vec<String> {
        // The simulation's server has no objects that change their owner. Here the comparison shows
        // harm to them.
        let violations = self
            .server
            .violations
            .iter()
            .filter(|what| !what.ends_with("never ours"));
        let mut faults: Vec<String> = violations.cloned().collect();
        let here = self
            .server
            .objects
            .keys()
            .filter(|key| KINDS.contains(&key.res));
        let keys: BTreeSet<&Key> = here.chain(model.objects.keys()).collect();
        for key in keys {
            match (model.objects.get(key), self.server.get(key)) {
                (Some(wanted), Some(found)) => {
                    faults.extend(
                        differences(wanted, found)
                            .into_iter()
                            .map(|what| format!("{key}: {what}")),
                    );
                }
                (Some(_), None) => faults.push(format!("{key} is gone")),
                (None, _) => faults.push(format!("{key} is there")),
            }
        }
        for (name, told) in told {
            match self.server.get(name).and_then(|rule| rule.status.as_ref()) {
                Some(status) => {
                    faults.extend(
                        misstatements(told, status)
                            .into_iter()
                            .map(|what| format!("{name}: {what}")),
                    );
                }
                None => faults.push(format!("{name} has no status")),
            }
        }
        faults
    }

    /// Returns the existing objects of the kinds that are copied.
    pub fn objects(&self) -> BTreeMap<Key, Rc<Object>> {
        let copied = self
            .server
            .objects
            .iter()
            .filter(|(key, _)| KINDS.contains(&key.res));
        copied
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect()
    }

    /// Returns where the rule's actions since then differ from the plan.
    pub fn unplanned(
        &self,
        rule: &Key,
        plan: &Plan,
        before: &BTreeMap<Key, Rc<Object>>,
    ) -> Vec<String> {
        let after = self.objects();
        let mut done = Plan::new();
        let mark = rule.id().to_string();
        let of = |object: &Rc<Object>| object.annotation("mimeo.dev/rule") == Some(&*mark);
        for key in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
            let one = match (before.get(key), after.get(key)) {
                (None, Some(is)) if of(is) => Planned::Create,
                (Some(was), is) if of(was) && !was.deleting && is.is_none_or(|is| is.deleting) => {
                    Planned::Delete
                }
                // The rule that has the object now may have created it again as well.
                (Some(was), Some(is)) if of(was) && !of(is) && was.uid != is.uid => {
                    match plan.get(key) {
                        Some(Planned::Delete) => Planned::Delete,
                        _ => continue,
                    }
                }
                (Some(was), Some(is)) if of(is) && was.version != is.version => Planned::Update,
                _ => continue,
            };
            done.insert(key.clone(), one);
        }
        let planned: Plan = plan
            .iter()
            .filter(|(_, one)| **one != Planned::Conflict)
            .map(|(a, b)| (a.clone(), *b))
            .collect();
        let mut faults = Vec::new();
        if done != planned {
            faults.push(format!("{rule}: does {done:?}, and planned {planned:?}"));
        }
        let status = self.server.get(rule).and_then(|rule| rule.status.as_ref());
        let failures = status.map_or(&[][..], |status| &status.failures);
        let conflicts = failures
            .iter()
            .filter(|one| ["Conflict", "RuleConflict"].contains(&&*one.reason))
            .count();
        let expected = plan.len() - planned.len();
        if conflicts != expected {
            faults.push(format!(
                "{rule}: has {conflicts} conflicts, and planned {expected}"
            ));
        }
        faults
    }

    /// The number of writes and deletes of copies so far.
    pub fn writes(&self) -> usize {
        let copies = |write: &&Write| KINDS.contains(&write.key.res);
        self.server.writes.iter().filter(copies).count()
    }

    /// The reasons of the condition Ready of all rules.
    pub fn reasons(&self) -> BTreeSet<String> {
        let statuses = self
            .server
            .objects
            .values()
            .filter_map(|rule| rule.status.as_ref());
        statuses.filter_map(ready).collect()
    }
}

/// Sends a user's request to the server. Returns whether it succeeded.
fn ask(server: &mut Server, deed: &Deed) -> bool {
    let namespace = |name: &str| Key::new(Res::Namespace, "", name);
    match deed {
        Deed::Namespace(name, labels) => {
            let labels: Vec<(String, &str)> = labels
                .iter()
                .map(|(key, value)| (format!("label/{key}"), value.as_str()))
                .collect();
            let fields: Vec<(&str, &str)> = labels
                .iter()
                .map(|(path, value)| (path.as_str(), *value))
                .collect();
            if server.create(&namespace(name), &fields, "user") {
                return true;
            }
            server.edit(&namespace(name), "user", |object| {
                let given = "label/kubernetes.io/metadata.name";
                object
                    .fields
                    .retain(|path, _| !path.starts_with("label/") || path == given);
                object.fields.extend(
                    fields
                        .iter()
                        .map(|(path, value)| ((*path).to_owned(), (*value).to_owned())),
                );
            });
            true
        }
        Deed::EndNamespace(name) => server.remove(&namespace(name)),
        Deed::Reap(name) => server.reap(name),
        Deed::Create(key, fields) => {
            let fields: Vec<(&str, &str)> = fields
                .iter()
                .map(|(path, value)| (path.as_str(), value.as_str()))
                .collect();
            server.create(key, &fields, "user")
        }
        Deed::Change(key, changes) => {
            server.edit(key, "user", |object| {
                for (path, value) in changes {
                    match value {
                        Some(value) => drop(object.fields.insert(path.clone(), value.clone())),
                        None => drop(object.fields.remove(path)),
                    }
                }
            });
            true
        }
        Deed::Remove(key) => {
            server.remove(key);
            true
        }
        Deed::Release(key) => {
            server.edit(key, "user", |object| {
                object.fields.retain(|path, _| !path.starts_with("fin/"));
            });
            true
        }
        Deed::Disown(key) => server.edit(key, "user", |object| {
            let fields = object.fields.keys().cloned().collect();
            object.entries = vec![Entry {
                manager: "user".into(),
                apply: false,
                fields,
                time: object.version,
            }];
        }),
        Deed::Clear(key) => server.edit(key, "user", |object| object.entries.clear()),
        Deed::Forge(key, path, value) => {
            let before = server
                .get(key)
                .map(|object| object.entries.clone())
                .unwrap_or_default();
            server.edit(key, "user", |object| {
                drop(object.fields.insert(path.clone(), value.clone()));
            }) && server.edit(key, "user", |object| object.entries = before)
        }
        Deed::Share(key) => {
            server.edit(key, "user", |object| {
                let fields = object.fields.keys().cloned().collect();
                object.entries.retain(|entry| entry.manager != "tool");
                object.entries.push(Entry {
                    manager: "tool".into(),
                    apply: false,
                    fields,
                    time: object.version,
                });
            });
            true
        }
        Deed::Rule(name, spec) => {
            let describe = |object: &mut Object| object.spec = Some(Rc::new((**spec).clone()));
            let _ = server.declare(name, describe) || server.edit(name, "user", describe);
            true
        }
        Deed::Grant(key, spec) => {
            let describe = |object: &mut Object| object.grant = Some(Rc::new(spec.typed()));
            let _ = server.declare(key, describe) || server.edit(key, "user", describe);
            true
        }
        Deed::DeleteRule(key) | Deed::Revoke(key) => server.remove(key),
        Deed::Restart => true,
    }
}

/// True if the object has the label that the webhook configuration selects.
fn guarded(object: &Object) -> bool {
    object.field(GUARDED) == Some("deny")
}

/// True if the API server calls the webhook for a request that changes a copy into this object. The
/// registration of the webhook decides.
fn hooked(deed: &Deed, before: &Object, after: Option<&Rc<Object>>) -> bool {
    let own = |object: &Object| {
        object
            .entries
            .iter()
            .find(|entry| entry.apply && entry.manager == "mimeo")
            .cloned()
    };
    if own(before).is_none() {
        return false;
    }
    // A forged change takes two requests, and the first takes the field from Mimeo.
    let forges = matches!(deed, Deed::Forge(..));
    let changed = forges || after.is_none_or(|after| after.entries != before.entries);
    let exempt = before.key.namespace.starts_with("kube-");
    (guarded(before) || after.is_some_and(|after| guarded(after)))
        && !exempt
        && !before.deleting
        && (matches!(deed, Deed::Remove(_)) || changed)
}

fn differences(wanted: &super::model::Object, found: &Object) -> Vec<String> {
    let mut faults = Vec::new();
    if wanted.deleting != found.deleting {
        faults.push(format!("is being deleted: {}", found.deleting));
    }
    let paths: BTreeSet<&String> = wanted.fields.keys().chain(found.fields.keys()).collect();
    let entry = found
        .entries
        .iter()
        .find(|entry| entry.apply && entry.manager == "mimeo");
    for path in paths {
        let (field, value) = (wanted.fields.get(path), found.field(path));
        match (field, value) {
            (Some(field), Some(value)) if agrees(path, &field.value, value) => {}
            (field, value) => faults.push(format!(
                "{path} is {value:?}, not {:?}",
                field.map(|field| &field.value)
            )),
        }
        let mine = entry.is_some_and(|entry| entry.fields.contains(path));
        if mine != field.is_some_and(|field| field.mine) {
            faults.push(format!("{path} is Mimeo's: {mine}"));
        }
    }
    faults
}

fn ready(status: &ClusterReplicationStatus) -> Option<String> {
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")?;
    Some(ready.reason.clone())
}

/// Returns the entries in the plan of a suspended rule that differ from the model.
fn misplanned(plan: &Plan, status: &ClusterReplicationStatus) -> Vec<String> {
    let Some(found) = &status.plan else {
        return vec!["it has no plan".into()];
    };
    let mut faults = Vec::new();
    let counts =
        |which| i32::try_from(plan.values().filter(|one| **one == which).count()).expect("few");
    let wanted = [
        Planned::Create,
        Planned::Update,
        Planned::Delete,
        Planned::Conflict,
    ]
    .map(counts);
    let counted = [found.create, found.update, found.delete, found.conflict];
    if counted != wanted {
        faults.push(format!("plans {counted:?}, not {wanted:?}"));
    }
    let copies: Vec<_> = found
        .copies
        .iter()
        .map(|one| (&*one.namespace, &*one.kind, &*one.name, one.action.clone()))
        .collect();
    let mut first: Vec<(&str, &str, &str, String)> = Vec::new();
    let kinds: Vec<(&Key, String, &Planned)> = plan
        .iter()
        .map(|(key, one)| (key, key.res.gvk().kind.to_string(), one))
        .collect();
    first.extend(
        kinds
            .iter()
            .map(|(key, kind, one)| (&*key.namespace, &**kind, &*key.name, format!("{one:?}"))),
    );
    first.sort();
    first.truncate(20);
    if copies != first {
        faults.push(format!("plans {copies:?}, not {first:?}"));
    }
    faults
}

/// Returns the statements in the status that differ from the model.
fn misstatements(told: &ReportedCopy, status: &ClusterReplicationStatus) -> Vec<String> {
    let mut faults = Vec::new();
    let mut reasons = Vec::new();
    if told.refused {
        reasons.push("InvalidSpec");
    } else if told.suspended {
        reasons.push("Suspended");
    } else {
        // If there are several reasons, the documents do not say which comes first.
        let all = [
            (told.desired == 0, "NoNamespaceMatches"),
            (told.sourceless, "SourceNotFound"),
            // The grace periods are over by then, except one that was prolonged.
            (told.sourceless, "InGracePeriod"),
            (told.unread, "SourceRefused"),
            (told.ungranted, "NotAuthorized"),
            (told.failed > 0, "CopiesFailed"),
        ];
        reasons.extend(
            all.into_iter()
                .filter(|(holds, _)| *holds)
                .map(|(_, reason)| reason),
        );
        if reasons.is_empty() {
            reasons.push("Synced");
        }
    }
    let found = ready(status).unwrap_or_default();
    if !reasons.contains(&found.as_str()) {
        let says = status
            .conditions
            .iter()
            .find(|one| one.type_ == "Ready")
            .map(|one| &one.message);
        faults.push(format!("Ready says {found} ({says:?}), not {reasons:?}"));
    }
    if let Some(plan) = &told.plan {
        faults.extend(misplanned(plan, status));
    }
    if told.refused || told.suspended {
        return faults;
    }
    let counts = status
        .copies
        .map(|copies| [copies.desired, copies.synced, copies.failed]);
    let wanted =
        [told.desired, told.synced, told.failed].map(|count| i32::try_from(count).expect("few"));
    if counts != Some(wanted) {
        faults.push(format!("counts {counts:?}, not {wanted:?}"));
    }
    let said: BTreeSet<(String, String)> = status
        .failures
        .iter()
        .map(|failure| (failure.namespace.clone(), failure.reason.clone()))
        .collect();
    let meant: BTreeSet<(String, String)> = told
        .reasons
        .iter()
        .map(|(namespace, _, reason)| (namespace.clone(), (*reason).to_owned()))
        .collect();
    // The status names twenty at most.
    let right = if told.failed > 20 {
        said.is_subset(&meant)
    } else {
        said == meant
    };
    if !right {
        faults.push(format!("failures {said:?}, not {meant:?}"));
    }
    faults
}
