//! The simulated world: the API server, the programs, the clock, and the failures between them.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use mimeo_engine::{Job, Request, Settings, Task, Verb, Webhooks};
use mimeo_model::{
    names,
    outcome::{FailureReason, Outcome},
    role::Role,
    selection::Labels,
    source::SourceSelector,
};

use super::{
    carry::{brief, carry, describe},
    model::{self, Facts},
    onlooker::Onlooker,
    process::{Answer, Flight, Process, Topic, What, body_of, key_of, verb_name},
    server::{COPIED, Entry, Key, Object, Res, Server},
    spec::{Clash, Hold, PICK, RuleSpec, SOURCES},
};

/// The fate of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Carried out and answered.
    Good,
    /// Not carried out: no connection.
    Refused,
    /// Not carried out: 429.
    Throttled,
    /// Carried out, but the answer is lost.
    Unanswered,
    /// Not answered in time, and carried out later.
    Late,
}

/// An action of a user. Small numbers choose among the existing objects.
#[derive(Clone, Debug)]
pub enum Act {
    PutSource(usize, &'static str),
    /// Sets one of two annotations: one that Mimeo leaves out of copies, or one that copies carry.
    /// "bad" removes it.
    Annotate(usize, bool, &'static str),
    DeleteSource(usize),
    /// Sets or removes the label by which rules select the source.
    Pick(usize, bool),
    PutNamespace(usize, Option<&'static str>),
    DeleteNamespace(usize),
    Reap(usize),
    /// Sets the pending label without a request of the webhook, or removes it.
    Mark(usize, bool),
    PutRule(usize, Box<RuleSpec>),
    DeleteRule(usize),
    Suspend(usize),
    /// Changes a field of the n-th copy that Mimeo owns.
    EditCopy(usize, &'static str),
    /// Changes a field that Mimeo does not own.
    AddToCopy(usize, &'static str),
    DropFromCopy(usize),
    Unlabel(usize),
    /// Clears `managedFields`.
    Disown(usize),
    /// Another client applies the present state, so it owns all the fields, too.
    CoOwn(usize),
    DeleteCopy(usize),
    /// The copy's finalizers are removed.
    Finalize(usize),
    /// Creates a foreign object with the name of a copy. The fields are: source, namespace,
    /// renamed, labelled, content. If the content is "copied", the object belongs to another
    /// replicator.
    Foreign(usize, usize, bool, bool, &'static str),
    DeleteForeign(usize),
    Quota(usize, bool),
    Unserve(Res),
    Serve(Res),
    /// Creates or relabels 24 namespaces of one team at once. `FleetGone` deletes them.
    Fleet(Option<&'static str>),
    FleetGone,
    /// A user repeats the nonce of a rule's held deletion.
    Confirm(usize),
    /// A pod in the namespace, at the given webhook replica.
    Pod(usize, usize),
}

/// One event of a history.
#[derive(Clone, Debug)]
pub enum Move {
    Act(Act),
    /// A watch of a program delivers this number of messages.
    Deliver(usize, usize, usize),
    /// The server carries a request out. The answer is in flight.
    Carry(usize, usize),
    /// A request gets its fate.
    Answer(usize, usize, Fate),
    /// The server carries out the n-th late request.
    Late(usize),
    Relist(usize, usize),
    Restart(usize),
    Tick(u64),
    /// No failure happens for this number of rounds.
    Calm(usize),
    /// The programs write statuses, or fail to write them.
    Status(bool),
}

pub const NAMESPACES: [&str; 8] = ["p", "q", "t0", "t1", "t2", "t3", "u0", "kube-system"];
pub const RULES: [&str; 3] = ["r0", "r1", "r2"];
const FLEET: usize = 24;

/// The API server, the programs, and the messages between them.
#[derive(Debug)]
pub struct World {
    pub server: Server,
    pub clock: Duration,
    pub programs: Vec<Process>,
    /// One onlooker for each program.
    onlookers: Vec<Onlooker>,
    roles: Vec<Role>,
    window: usize,
    late: Vec<Flight>,
    pub facts: Facts,
    tokens: usize,
    /// True if a restart may find another state than the present one.
    unsure: bool,
    lines: Vec<String>,
    faults: Vec<String>,
}

type Outcomes = Result<(), String>;

impl World {
    pub fn new(roles: &[Role], window: usize) -> Self {
        let mut server = Server::new();
        for name in ["p", "q", "kube-system"] {
            server.create(&Key::new(Res::Namespace, "", name), &[], "user");
        }
        // The clock does not start at zero.
        let clock = Duration::from_secs(1000);
        server.seconds = clock.as_secs();
        let mut world = Self {
            server,
            clock,
            programs: Vec::new(),
            onlookers: roles.iter().map(|_| Onlooker::default()).collect(),
            roles: roles.to_vec(),
            window,
            late: Vec::new(),
            facts: Facts {
                replicas: roles.contains(&Role::Injector),
                ..Facts::default()
            },
            tokens: 0,
            unsure: false,
            lines: Vec::new(),
            faults: Vec::new(),
        };
        world.programs = roles
            .iter()
            .map(|role| Process::new(*role, window, clock, &world.server))
            .collect();
        world
    }

    fn say(&mut self, line: impl Into<String>) {
        self.lines
            .push(format!("{:>9.3} {}", self.clock.as_secs_f64(), line.into()));
    }

    /// Returns the history so far, with the fault that was found.
    pub fn report(&self, fault: &str) -> String {
        let skipped = self.lines.len().saturating_sub(400);
        format!(
            "{fault}\n  ({skipped} lines left out)\n  {}\n{fault}",
            self.lines[skipped..].join("\n  ")
        )
    }

    fn fault(&mut self, fault: impl Into<String>) {
        let fault = fault.into();
        self.say(format!("!!! {fault}"));
        self.faults.push(fault);
    }

    pub fn verdict(&mut self) -> Outcomes {
        let found = std::mem::take(&mut self.server.violations);
        found.into_iter().for_each(|fault| self.fault(fault));
        match self.faults.first() {
            Some(fault) => Err(self.report(&fault.clone())),
            None => Ok(()),
        }
    }

    // ---- moves ----

    pub fn run(&mut self, moves: &[Move]) -> Outcomes {
        for step in moves {
            self.step(step);
            self.verdict()?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Move) {
        let at = |index: usize, len: usize| (len > 0).then(|| index % len);
        match step {
            Move::Act(act) => self.act(act),
            Move::Deliver(program, watch, count) => {
                let program = program % self.programs.len();
                let topics: Vec<Topic> = self.programs[program].watches.keys().cloned().collect();
                if let Some(at) = at(*watch, topics.len()) {
                    for _ in 0..*count {
                        self.deliver(program, &topics[at]);
                    }
                }
            }
            Move::Carry(program, flight) => {
                let program = program % self.programs.len();
                if let Some(at) = at(*flight, self.programs[program].flights.len()) {
                    self.carry(program, at);
                }
            }
            Move::Answer(program, flight, fate) => {
                let program = program % self.programs.len();
                if let Some(at) = at(*flight, self.programs[program].flights.len()) {
                    self.answer(program, at, *fate);
                }
            }
            Move::Late(index) => self.come_late(*index),
            Move::Relist(program, watch) => {
                let program = program % self.programs.len();
                let topics: Vec<Topic> = self.programs[program].watches.keys().cloned().collect();
                if let Some(at) = at(*watch, topics.len()) {
                    self.say(format!("{program}: relists {:?}", topics[at]));
                    self.programs[program].relist(&topics[at], &self.server);
                }
            }
            Move::Restart(program) => self.restart(program % self.programs.len()),
            Move::Tick(millis) => self.advance(Duration::from_millis(*millis)),
            Move::Calm(rounds) => {
                for _ in 0..*rounds {
                    self.round();
                }
            }
            Move::Status(good) => drop(self.statuses(*good)),
        }
        self.pump();
    }

    fn advance(&mut self, by: Duration) {
        self.clock += by;
        self.server.seconds = self.clock.as_secs();
    }

    pub fn restart(&mut self, program: usize) {
        self.say(format!("{program}: restarts"));
        let fresh = Process::new(self.roles[program], self.window, self.clock, &self.server);
        let old = std::mem::replace(&mut self.programs[program], fresh);
        if old.role == Role::Keeper {
            self.facts.unseen.extend(self.facts.lost.iter().cloned());
        }
        self.onlookers[program] = Onlooker::default();
        let begun = old
            .flights
            .into_iter()
            .filter(|flight| flight.answer.is_none() && matches!(flight.what, What::Request(_)));
        self.late.extend(begun);
        self.late.truncate(8);
    }

    fn come_late(&mut self, index: usize) {
        if self.late.is_empty() {
            return;
        }
        let flight = self.late.remove(index % self.late.len());
        // A request may outlive its program. But it does not outlive the time in which Mimeo finds
        // that the record of a kind is no longer needed.
        if let What::Request(request) = &flight.what
            && !self.server.noted().kinds.contains(&request.resource.gvk)
        {
            return;
        }
        let (answer, line) = carry(&mut self.server, &flight.what);
        if let (What::Request(request), Answer::Outcome(Outcome::Absent, _)) =
            (&flight.what, &answer)
            && matches!(request.verb, Verb::Delete(..))
        {
            self.facts.deleted_late.insert(key_of(request));
        }
        self.say(format!("late: {line} -> {}", describe(&answer)));
    }

    // ---- the programs ----

    fn deliver(&mut self, program: usize, topic: &Topic) -> bool {
        let Some(message) = self.programs[program].deliver(topic, &self.server, self.clock) else {
            return false;
        };
        self.say(format!("{program}: {topic:?}: {message}"));
        true
    }

    /// Takes the present work from every engine and checks it.
    fn pump(&mut self) {
        for program in 0..self.programs.len() {
            self.programs[program].retry_lists(&self.server);
            let new = self.programs[program].pump(&self.server, self.clock);
            let from = self.programs[program].flights.len() - new;
            for at in from..from + new {
                self.judge(program, at);
            }
            for outdated in self.programs[program].engine.outdated_verdicts() {
                self.fault(format!("{program}: not planned again: {outdated}"));
            }
            self.judge_pods(program);
        }
    }

    /// Checks a request against the events that its program has received.
    fn judge(&mut self, program: usize, at: usize) {
        let process = &self.programs[program];
        let What::Request(request) = &process.flights[at].what else {
            let line = format!("{program}: sends {:?}", process.flights[at].what);
            let unmarked = match &process.flights[at].what {
                What::Job(job) => match &job.task {
                    Task::RemoveLabel { namespace, .. } => Some(namespace.to_string()),
                    _ => None,
                },
                What::Request(_) => None,
            };
            self.say(line);
            unmarked
                .into_iter()
                .for_each(|name| self.judge_unmark(program, &name));
            return;
        };
        let key = key_of(request);
        let line = format!(
            "{program}: sends {} {key} ({:?})",
            verb_name(request.verb),
            request.why
        );
        let fault = judge(process, request, &key)
            .err()
            .map(|why| format!("{line}: {why}"));
        self.say(line);
        if let Some(fault) = fault {
            self.fault(fault);
        }
    }

    /// Checks a namespace with the pending label: when its pods may pass, the copies exist. Copies
    /// that another client removed are excepted.
    fn judge_pods(&mut self, program: usize) {
        let process = &mut self.programs[program];
        if process.role != Role::Injector {
            return;
        }
        let now = process.tick(self.clock);
        let marked: Vec<Rc<Object>> = process
            .view
            .namespaces
            .values()
            .filter(|namespace| mark_of(namespace).is_some())
            .cloned()
            .collect();
        let ready: Vec<Rc<Object>> = marked
            .into_iter()
            .filter(|namespace| {
                crate::common::ready(&process.engine.at(now).progress(&namespace.key.name))
            })
            .collect();
        for namespace in ready {
            let held = |_: &Object, hold: Hold| hold >= Hold::BestEffort;
            let labels = self.programs[program].view.namespaces[&namespace.key.name].labels();
            for fault in missing(
                &self.server,
                &self.programs[program],
                &namespace,
                &labels,
                held,
            ) {
                self.fault(format!(
                    "{program}: pods of {} may pass, {fault}",
                    namespace.key.name
                ));
            }
        }
    }

    fn carry(&mut self, program: usize, at: usize) {
        if self.programs[program].flights[at].answer.is_some() {
            return;
        }
        let (answer, line) = carry(&mut self.server, &self.programs[program].flights[at].what);
        self.say(format!(
            "{program}: carried out: {line} -> {}",
            describe(&answer)
        ));
        let flight = &mut self.programs[program].flights[at];
        flight.answer = Some(answer);
    }

    /// The pending label is never removed while a required copy is missing.
    fn judge_unmark(&mut self, program: usize, name: &str) {
        let Some(namespace) = self.server.namespace(name).cloned() else {
            return;
        };
        let held = |_: &Object, hold: Hold| hold == Hold::Required;
        let Some(seen) = self.programs[program].view.namespaces.get(name) else {
            return;
        };
        let labels = seen.labels();
        for fault in missing(
            &self.server,
            &self.programs[program],
            &namespace,
            &labels,
            held,
        ) {
            self.fault(format!("{program}: the mark of {name} goes, {fault}"));
        }
    }

    fn answer(&mut self, program: usize, at: usize, fate: Fate) {
        let fate = if self.programs[program].flights[at].answer.is_some() && fate != Fate::Good {
            Fate::Unanswered
        } else {
            fate
        };
        if matches!(fate, Fate::Good | Fate::Unanswered) {
            self.carry(program, at);
        }
        let Flight { what, answer } = self.programs[program].flights.remove(at);
        let now = self.programs[program].tick(self.clock);
        match what {
            What::Request(request) => {
                let outcome = match (fate, answer) {
                    (Fate::Good, Some(Answer::Outcome(outcome, object))) => {
                        // The answer to a dry run is not the stored object.
                        let dry = matches!(request.verb, Verb::Learn(_) | Verb::Compare(..));
                        let shown = object.filter(|_| !dry);
                        shown
                            .iter()
                            .for_each(|object| self.programs[program].see(object));
                        outcome
                    }
                    (Fate::Throttled, _) => {
                        let later = Some(Duration::from_secs(2));
                        Outcome::of_error(429, &status(), later, &request.resource, &request.name)
                    }
                    (Fate::Refused, _) => {
                        Outcome::of_silence(FailureReason::ClusterUnreachable, "no connection")
                    }
                    _ => Outcome::of_silence(FailureReason::Timeout, "no answer"),
                };
                self.say(format!(
                    "{program}: answered {} {} {fate:?}: {}",
                    verb_name(request.verb),
                    key_of(&request),
                    brief(&outcome)
                ));
                self.programs[program]
                    .engine
                    .at(now)
                    .outcome(&request, outcome);
                if fate == Fate::Late {
                    self.late.push(Flight::of(What::Request(request)));
                }
            }
            What::Job(job) => {
                self.end_job(program, &job, answer.filter(|_| fate == Fate::Good));
            }
        }
    }

    fn end_job(&mut self, program: usize, job: &Job, answer: Option<Answer>) {
        self.say(format!("{program}: answered {:?}: {answer:?}", job.task));
        let process = &mut self.programs[program];
        let now = process.tick(self.clock);
        process.end_job(job, answer, now);
    }

    fn statuses(&mut self, good: bool) -> usize {
        let mut written = 0;
        // A replica's Lease appears once it is ready.
        let replicas = self
            .programs
            .iter()
            .filter(|program| program.role == Role::Injector && program.engine.index().primed());
        let seen: Vec<u64> = replicas
            .map(|program| program.engine.index().newest_rule())
            .collect();
        for program in 0..self.programs.len() {
            let process = &mut self.programs[program];
            if process.role != Role::Keeper {
                continue;
            }
            let now = process.tick(self.clock);
            process.engine.at(now).webhooks(Webhooks {
                seen: seen.clone(),
                contested: None,
            });
            self.onlookers[program].look(&process.engine);
            let wall =
                Timestamp::from_millisecond(i64::try_from(self.clock.as_millis()).expect("small"))
                    .expect("in range");
            for update in process.engine.at(now).statuses(wall) {
                written += 1;
                let name = update.id.name.to_string();
                self.lines.push(format!(
                    "{:>9.3} {program}: status of {name}: {:?}",
                    self.clock.as_secs_f64(),
                    update.status.copies
                ));
                if !good || !self.server.status(&Key::of(&update.id), update.status) {
                    self.programs[program]
                        .engine
                        .at(now)
                        .status_failed(&update.id);
                }
            }
        }
        written
    }

    // ---- good times ----

    /// Carries out everything in flight and delivers it. Returns true if there was anything.
    pub fn round(&mut self) -> bool {
        let mut busy = false;
        self.pump();
        for program in 0..self.programs.len() {
            while !self.programs[program].flights.is_empty() {
                let before = self.programs[program].flights.len();
                self.answer(program, 0, Fate::Good);
                busy = true;
                if self.programs[program].flights.len() >= before {
                    break;
                }
            }
            busy |= self.deliver_all(program);
        }
        self.pump();
        busy
    }

    fn deliver_all(&mut self, program: usize) -> bool {
        let mut busy = false;
        self.programs[program].retry_lists(&self.server);
        let topics: Vec<Topic> = self.programs[program].watches.keys().cloned().collect();
        for topic in topics {
            while self.deliver(program, &topic) {
                busy = true;
            }
        }
        busy
    }

    /// Delivers all events and answers in flight, and those that follow from them.
    pub fn calm(&mut self) -> Outcomes {
        for _ in 0..400 {
            let busy = self.round();
            self.verdict()?;
            if !busy
                && self
                    .programs
                    .iter()
                    .all(|program| program.flights.is_empty())
            {
                return Ok(());
            }
        }
        Err(self.report("never comes to rest"))
    }

    /// Delivers all events, so that every program knows the present state. No request is in flight,
    /// and no program has decided on this state yet.
    fn flush(&mut self) {
        while !self.late.is_empty() {
            self.come_late(0);
        }
        for program in 0..self.programs.len() {
            for at in 0..self.programs[program].flights.len() {
                self.carry(program, at);
            }
        }
        for program in 0..self.programs.len() {
            for _ in 0..self.programs[program].flights.len() {
                self.answer(program, 0, Fate::Good);
            }
            self.deliver_all(program);
        }
    }

    /// Lets everything settle: all messages are delivered, no request fails, and enough time passes
    /// for every delay to end.
    pub fn settle(&mut self) -> Outcomes {
        self.say("---- settles ----");
        // Without their CRD the existing rules are unknown.
        self.serve(Res::Rule);
        self.flush();
        self.facts.unlisted = self.unlisted();
        self.facts.masses |= self.has_masses();
        let before = self.server.clone();
        self.pass(Duration::from_secs(400))?;
        self.check(&before)
    }

    /// True if a rule has so many copies that the loss of all would be held.
    fn has_masses(&self) -> bool {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for copy in self.server.objects.values().filter(|copy| copy.ours()) {
            *counts
                .entry(model::rule_of(copy).unwrap_or_default())
                .or_default() += 1;
        }
        let limit = Settings::new(Role::Keeper, "").deletion_limit;
        counts.values().any(|count| *count >= limit)
    }

    /// Returns the rules with selectors that a reconciler has not listed.
    fn unlisted(&self) -> BTreeSet<String> {
        let keepers = || {
            let all = self.programs.iter();
            all.filter(|program| program.role == Role::Keeper)
        };
        let is_unlisted = |selector: &SourceSelector| {
            let topic = Topic::Selected(selector.clone());
            keepers().any(|keeper| !keeper.watches.contains_key(&topic))
        };
        let rules = self.server.of(Res::Rule).filter(|rule| {
            let spec = rule.spec.as_ref().expect("a rule has a spec");
            let rule = spec.parse(rule);
            rule.is_ok_and(|rule| rule.selectors.iter().any(is_unlisted))
        });
        rules.map(|rule| rule.key.name.clone()).collect()
    }

    /// Lets time pass without failures.
    pub fn pass(&mut self, time: Duration) -> Outcomes {
        let end = self.clock + time;
        for _ in 0..2000 {
            self.calm()?;
            if self.statuses(true) > 0 {
                continue;
            }
            let due = self.programs.iter().flat_map(|program| {
                let due = [
                    program.engine.wake_at(),
                    (program.role == Role::Keeper)
                        .then(|| program.engine.index().status_due())
                        .flatten(),
                ];
                due.into_iter().flatten().map(|due| program.start + due)
            });
            if let Some(due) = due.min().filter(|due| *due < end) {
                self.advance(due.saturating_sub(self.clock).max(Duration::from_millis(1)));
            } else {
                self.advance(end.saturating_sub(self.clock));
                self.calm()?;
                self.statuses(true);
                return self.calm();
            }
        }
        Err(self.report("time passes and it never comes to rest"))
    }

    /// Checks that the state equals the model's state, and stays equal.
    fn check(&mut self, before: &Server) -> Outcomes {
        let counts = match model::check(before, &self.server, &self.facts) {
            Ok(counts) => counts,
            Err(why) => return Err(self.report(&why)),
        };
        self.unsure = counts.is_none();
        for (name, [desired, synced, failed]) in counts.unwrap_or_default() {
            let rule = self.server.get(&Key::new(Res::Rule, "", &name)).cloned();
            let Some(rule) = rule else { continue };
            let spec = rule.spec.clone().expect("a rule has a spec");
            let Some(copies) = rule.status.as_ref().and_then(|status| status.copies) else {
                if spec.invalid {
                    continue;
                }
                return Err(self.report(&format!("{name} has no counts in its status")));
            };
            let found = [copies.desired, copies.synced, copies.failed];
            if !spec.suspend && !spec.invalid && found != [desired, synced, failed] {
                return Err(self.report(&format!(
                    "status of {name} counts {found:?}, not {:?}",
                    [desired, synced, failed]
                )));
            }
        }
        self.check_shown()
    }

    fn check_shown(&mut self) -> Outcomes {
        let programs = self.programs.iter().zip(&mut self.onlookers);
        let mut keepers = programs.filter(|(program, _)| program.role == Role::Keeper);
        let told = keepers.try_for_each(|(keeper, onlooker)| onlooker.check(&keeper.engine));
        told.map_err(|why| self.report(&why))
    }

    /// Checks a settled world: Mimeo writes nothing more, neither as time passes nor after a
    /// restart of every program.
    pub fn check_rest(&mut self) -> Outcomes {
        self.say("---- rests ----");
        let writes = self.server.writes.len();
        // After a restart, a failing request fails again and gets a new time. The grace period of a
        // missing source begins again, and a preview reads again.
        let failing = |rule: &Rc<Object>| {
            let failed = rule
                .status
                .as_ref()
                .and_then(|status| status.copies)
                .is_some_and(|copies| copies.failed > 0);
            let spec = rule.spec.as_ref().expect("a rule has a spec");
            let missing = |source: &usize| model::source_for(&self.server, spec, *source).is_none();
            // Held deletions are collected again, too.
            let mut conditions = rule.status.iter().flat_map(|status| &status.conditions);
            let held = conditions.any(|condition| condition.type_ == "Stalled");
            failed || held || spec.suspend || spec.sources.iter().any(missing)
        };
        let failing: BTreeSet<Key> = self
            .server
            .of(Res::Rule)
            .filter(|rule| failing(rule))
            .map(|rule| rule.key.clone())
            .collect();
        self.pass(Duration::from_mins(2))?;
        self.no_writes_since(writes, "at rest", &BTreeSet::new())?;
        if self.unsure {
            return Ok(());
        }
        self.say("---- restarts at rest ----");
        (0..self.programs.len()).for_each(|program| self.restart(program));
        self.pass(Duration::from_mins(2))?;
        self.no_writes_since(writes, "after a restart", &failing)
    }

    fn no_writes_since(&self, writes: usize, when: &str, except: &BTreeSet<Key>) -> Outcomes {
        // The ownership of a copy's fields may be claimed once before its write is refused.
        let excused = |verb: &str| verb == "claim" && !except.is_empty();
        let mut found = self.server.writes[writes..]
            .iter()
            .filter(|write| !excused(write.verb));
        match found.find(|write| !except.contains(&write.key)) {
            Some(write) => Err(self.report(&format!("{when}: {} of {}", write.verb, write.key))),
            None => Ok(()),
        }
    }

    // ---- actions of other clients ----

    /// Delivers all messages of one watch of a program. Then the program acts on them.
    pub fn tell(&mut self, program: usize, topic: &Topic) {
        while self.deliver(program, topic) {}
        self.pump();
    }

    pub fn act(&mut self, act: &Act) {
        let homes = self.homes();
        let done = self.try_act(act);
        let (still, homes) = (self.homes(), homes.into_iter());
        self.facts
            .homes
            .extend(homes.filter(|(source, _)| !still.contains_key(source)));
        self.say(format!(
            "=== {act:?}{}",
            if done { "" } else { " (came to nothing)" }
        ));
    }

    /// Returns the existing sources, each with the uid of its namespace.
    fn homes(&self) -> BTreeMap<usize, String> {
        let home = |index: usize| Some(self.server.namespace(SOURCES[index].1)?.uid.clone());
        let there =
            (0..SOURCES.len()).filter(|index| model::source_of(&self.server, *index).is_some());
        there
            .filter_map(|index| Some((index, home(index)?)))
            .collect()
    }

    fn try_act(&mut self, act: &Act) -> bool {
        let namespace = |index: usize| NAMESPACES[index % NAMESPACES.len()];
        let source = |index: usize| {
            let (res, namespace, name) = SOURCES[index % SOURCES.len()];
            Key::new(res, namespace, name)
        };
        let rule = |index: usize| Key::new(Res::Rule, "", RULES[index % RULES.len()]);
        match act {
            Act::PutSource(index, value) => {
                let key = source(*index);
                let path = if key.res == Res::Widget {
                    "spec/k"
                } else {
                    "data/k"
                };
                let pick = (format!("label/{PICK}"), (index % SOURCES.len()).to_string());
                self.server.create(
                    &key,
                    &[(path, value), (pick.0.as_str(), pick.1.as_str())],
                    "user",
                ) || self.server.edit(&key, "user", |object| {
                    drop(object.fields.insert(path.into(), (*value).into()));
                })
            }
            Act::Annotate(index, carried, value) => {
                let path = if *carried {
                    "ann/note"
                } else {
                    "ann/kubectl.kubernetes.io/last-applied"
                };
                self.server.edit(&source(*index), "user", |object| {
                    drop(match *value {
                        "bad" => object.fields.remove(path),
                        value => object.fields.insert(path.into(), value.into()),
                    });
                })
            }
            Act::DeleteSource(index) => self.server.remove(&source(*index)),
            Act::Pick(index, on) => {
                let (path, value) = (format!("label/{PICK}"), (index % SOURCES.len()).to_string());
                self.server.edit(&source(*index), "user", |object| {
                    drop(if *on {
                        object.fields.insert(path, value)
                    } else {
                        object.fields.remove(&path)
                    });
                })
            }
            Act::PutNamespace(index, team) => self.put_namespace(namespace(*index), *team),
            Act::DeleteNamespace(index) => {
                self.server
                    .remove(&Key::new(Res::Namespace, "", namespace(*index)))
            }
            Act::Reap(index) => self.server.reap(namespace(*index)),
            Act::Mark(index, on) => {
                let path = format!("label/{}", names::PENDING_LABEL);
                self.tokens += 1;
                let token = format!("token-{}", self.tokens);
                self.server.edit(
                    &Key::new(Res::Namespace, "", namespace(*index)),
                    "user",
                    |object| {
                        drop(if *on {
                            object.fields.insert(path, token)
                        } else {
                            object.fields.remove(&path)
                        });
                    },
                )
            }
            Act::PutRule(index, spec) => {
                let key = rule(*index);
                let created = self
                    .server
                    .declare(&key, |object| object.spec = Some(Rc::new((**spec).clone())));
                if created {
                    self.facts.lost.remove(&key.name);
                    self.facts.unseen.remove(&key.name);
                }
                created
                    || self.server.edit(&key, "user", |object| {
                        object.spec = Some(Rc::new((**spec).clone()));
                    })
            }
            Act::DeleteRule(index) => self.server.remove(&rule(*index)),
            Act::Suspend(index) => self.server.edit(&rule(*index), "user", |object| {
                let spec = object.spec.as_deref().expect("a rule has a spec").clone();
                object.spec = Some(Rc::new(RuleSpec {
                    suspend: !spec.suspend,
                    ..spec
                }));
            }),
            Act::Foreign(index, place, renamed, labelled, content) => {
                let source = source(*index);
                let name = if *renamed {
                    format!("{}-x", source.name)
                } else {
                    source.name
                };
                let key = Key::new(source.res, namespace(*place), &name);
                let path = if key.res == Res::Widget {
                    "spec/k"
                } else {
                    "data/k"
                };
                let label = format!("label/{}", names::MANAGED_BY);
                let mut fields = vec![(path, *content)];
                if *content == "copied" {
                    fields.push((model::COPY_MARK, "x"));
                }
                if *labelled {
                    fields.push((&label, names::MANAGED_BY_VALUE));
                }
                // Only its author writes an object with the key of a source.
                !SOURCES.contains(&(key.res, namespace(*place), &name))
                    && self.server.create(&key, &fields, "stranger")
            }
            Act::DeleteForeign(index) => {
                let foreign = |object: &&Rc<Object>| {
                    COPIED.contains(&object.key.res) && !object.ours() && !is_source(&object.key)
                };
                let all: Vec<Key> = self
                    .server
                    .objects
                    .values()
                    .filter(foreign)
                    .map(|object| object.key.clone())
                    .collect();
                !all.is_empty() && self.server.remove(&all[index % all.len()])
            }
            Act::Quota(index, full) => {
                let name = namespace(*index).to_owned();
                if *full {
                    self.server.full.insert(name)
                } else {
                    self.server.full.remove(&name)
                }
            }
            Act::Unserve(res) => self.unserve(*res),
            Act::Serve(res) => self.serve(*res),
            Act::Fleet(team) => {
                self.facts.masses = true;
                (0..FLEET)
                    .filter(|index| self.put_namespace(&format!("f{index}"), *team))
                    .count()
                    > 0
            }
            Act::FleetGone => (0..FLEET).fold(false, |done, index| {
                let name = format!("f{index}");
                let gone = self.server.remove(&Key::new(Res::Namespace, "", &name));
                self.server.reap(&name) || gone || done
            }),
            Act::Confirm(index) => self.confirm(&rule(*index)),
            Act::Pod(place, replica) => self.pod(namespace(*place), *replica),
            copy => self.act_on_copy(copy),
        }
    }

    fn act_on_copy(&mut self, act: &Act) -> bool {
        let copies: Vec<Key> = self
            .server
            .objects
            .values()
            .filter(|object| object.ours())
            .map(|object| object.key.clone())
            .collect();
        let index = match act {
            Act::EditCopy(index, _) | Act::AddToCopy(index, _) => *index,
            Act::DropFromCopy(index)
            | Act::Unlabel(index)
            | Act::Disown(index)
            | Act::CoOwn(index)
            | Act::DeleteCopy(index)
            | Act::Finalize(index) => *index,
            _ => return false,
        };
        if copies.is_empty() {
            return false;
        }
        let key = &copies[index % copies.len()];
        let part = if key.res == Res::Widget {
            "spec"
        } else {
            "data"
        };
        let label = format!("label/{}", names::MANAGED_BY);
        match act {
            Act::EditCopy(_, value) => self.server.edit(key, "user", |object| {
                drop(object.fields.insert(format!("{part}/k"), (*value).into()));
            }),
            Act::AddToCopy(_, value) => self.server.edit(key, "user", |object| {
                drop(
                    object
                        .fields
                        .insert(format!("{part}/other"), (*value).into()),
                );
            }),
            Act::DropFromCopy(_) => self.server.edit(key, "user", |object| {
                drop(object.fields.remove(&format!("{part}/k")));
            }),
            Act::Unlabel(_) => self
                .server
                .edit(key, "user", |object| drop(object.fields.remove(&label))),
            // A copy without Mimeo's label is overwritten unseen if it is still the same object,
            // because a removed label may cost only two requests. So a user that wants to keep such
            // a copy removes the label last.
            Act::Disown(_) | Act::DeleteCopy(_)
                if self.server.get(key).is_some_and(|copy| !copy.labelled()) =>
            {
                false
            }
            Act::Disown(_) => self
                .server
                .edit(key, "user", |object| object.entries.clear()),
            Act::CoOwn(_) => self.server.edit(key, "user", |object| {
                let fields = object.fields.keys().cloned().collect();
                object.entries.push(Entry {
                    manager: "tool".into(),
                    apply: true,
                    fields,
                    time: 0,
                });
            }),
            Act::Finalize(_) => self.server.edit(key, "user", |object| {
                object.fields.retain(|path, _| !path.starts_with("fin/"));
            }),
            _ => self.server.remove(key),
        }
    }

    fn confirm(&mut self, rule: &Key) -> bool {
        let status = self.server.get(rule).and_then(|rule| rule.status.clone());
        let told = status.and_then(|status| {
            status
                .conditions
                .into_iter()
                .find(|condition| condition.reason == "DeletionHeld")
        });
        let Some(nonce) = told.and_then(|told| told.message.rsplit('=').next().map(str::to_owned))
        else {
            return false;
        };
        let path = format!("ann/{}", names::CONFIRM_DELETION);
        self.server.edit(rule, "user", |object| {
            drop(object.fields.insert(path, nonce));
        })
    }

    fn unserve(&mut self, res: Res) -> bool {
        // Between the removal and the installation of a CRD there is more time than a request can
        // outlive its program.
        self.late.clear();
        if res == Res::Rule {
            let rules: Vec<String> = self
                .server
                .of(Res::Rule)
                .map(|rule| rule.key.name.clone())
                .collect();
            if self.server.served(res) {
                self.facts.crd_changed = true;
                let unseen = |rule: &&String| {
                    let mut keepers = self.programs.iter();
                    keepers.any(|program| {
                        program.role == Role::Keeper && !program.view.rules.contains_key(*rule)
                    })
                };
                let unseen: Vec<String> = rules.iter().filter(unseen).cloned().collect();
                self.facts.unseen.extend(unseen);
                self.facts.lost.extend(rules);
            }
        }
        self.server.unserve(res)
    }

    fn serve(&mut self, res: Res) -> bool {
        let installed = self.server.serve(res);
        if installed && res == Res::Rule {
            self.facts.crd_again = self.facts.crd_again.or(self.server.crd);
            // Rules that are created from now on are younger than the CRD. Times have whole
            // seconds.
            self.advance(Duration::from_secs(1));
        }
        installed
    }

    /// Creates a namespace, through the webhook, or relabels it.
    fn put_namespace(&mut self, name: &str, team: Option<&'static str>) -> bool {
        let key = Key::new(Res::Namespace, "", name);
        let change = |object: &mut Object| {
            object.fields.remove("label/team");
            team.into_iter()
                .for_each(|team| drop(object.fields.insert("label/team".into(), team.into())));
        };
        if let Some(namespace) = self.server.get(&key).cloned() {
            return !self.mark_first(&namespace, team) || self.server.edit(&key, "user", change);
        }
        if self.server.reaped.remove(name) {
            // Kubernetes waits so long before it deletes the content of a namespace.
            self.advance(Duration::from_secs(5));
        }
        let labels: Labels = team
            .into_iter()
            .map(|team| ("team".into(), team.into()))
            .collect();
        let mut fields: Vec<(&str, &str)> =
            team.into_iter().map(|team| ("label/team", team)).collect();
        let token = self.admit(name, &labels);
        let mark = format!("label/{}", names::PENDING_LABEL);
        fields.extend(token.iter().map(|token| (mark.as_str(), token.as_str())));
        self.server.create(&key, &fields, "user")
    }

    /// The webhook replica sets the pending label if the update makes more rules with a pod gate
    /// match. Returns whether the update is admitted after that: a later webhook may refuse it.
    fn mark_first(&mut self, namespace: &Object, team: Option<&'static str>) -> bool {
        let name = &namespace.key.name;
        let clock = self.clock;
        let mut replicas = self
            .programs
            .iter_mut()
            .filter(|program| program.role == Role::Injector);
        let Some(replica) = replicas.find(|program| program.engine.index().primed()) else {
            return true;
        };
        let mut labels = namespace.labels();
        labels.remove("team");
        labels.extend(team.map(|team| ("team".to_owned(), team.to_owned())));
        let rules = |labels: &BTreeMap<String, String>| {
            let labels = labels
                .iter()
                .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
                .collect::<Labels>();
            replica.engine.index().pod_gate_rules(Some(name), &labels)
        };
        let more = rules(&labels)
            .difference(&rules(&namespace.labels()))
            .next()
            .is_some();
        if !more || namespace.deleting || mark_of(namespace).is_some() {
            return true;
        }
        self.tokens += 1;
        let token = format!("token-{}", self.tokens);
        let now = replica.tick(clock);
        replica.engine.at(now).issue(&token);
        self.say(format!("{name} is marked before its labels change"));
        self.server.edit(&namespace.key, "mimeo", |object| {
            object
                .fields
                .insert(format!("label/{}", names::PENDING_LABEL), token);
        });
        !self.tokens.is_multiple_of(5)
    }

    /// Asks a webhook replica about a new namespace, if one knows enough. Returns the value of the
    /// pending label.
    fn admit(&mut self, name: &str, labels: &Labels) -> Option<String> {
        self.tokens += 1;
        let token = format!("token-{}", self.tokens);
        let clock = self.clock;
        let replicas = self
            .programs
            .iter_mut()
            .filter(|program| program.role == Role::Injector);
        let replica = replicas
            .filter(|program| program.engine.index().primed())
            .nth(0)?;
        if replica
            .engine
            .index()
            .pod_gate_rules(Some(name), labels)
            .is_empty()
        {
            return None;
        }
        let now = replica.tick(clock);
        replica.engine.at(now).issue(&token);
        Some(token)
    }

    fn pod(&mut self, namespace: &str, replica: usize) -> bool {
        let clock = self.clock;
        let mut replicas: Vec<&mut Process> = self
            .programs
            .iter_mut()
            .filter(|program| program.role == Role::Injector)
            .collect();
        if replicas.is_empty() {
            return false;
        }
        let at = replica % replicas.len();
        let now = replicas[at].tick(clock);
        replicas[at].engine.at(now).take_charge(namespace);
        true
    }
}

fn is_source(key: &Key) -> bool {
    SOURCES.contains(&(key.res, &key.namespace, &key.name))
}

fn mark_of(namespace: &Object) -> Option<&str> {
    namespace.field(&format!("label/{}", names::PENDING_LABEL))
}

fn status() -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Status {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Status::default()
}

/// Returns missing copies that a program knows to belong in a namespace, and that no other client
/// removed. Only copies with at least this strict a pod gate count.
fn missing(
    server: &Server,
    process: &Process,
    namespace: &Object,
    labels: &BTreeMap<String, String>,
    held: impl Fn(&Object, Hold) -> bool,
) -> Vec<String> {
    let Some(seen) = process
        .view
        .namespaces
        .get(&namespace.key.name)
        .filter(|seen| seen.uid == namespace.uid)
    else {
        return Vec::new();
    };
    let Some(now) = server
        .namespace(&namespace.key.name)
        .filter(|now| now.uid == seen.uid && !now.deleting)
    else {
        return Vec::new();
    };
    let mut claims: BTreeMap<Key, Vec<&Rc<Object>>> = BTreeMap::new();
    for rule in process.view.rules.values() {
        let spec = rule.spec.as_ref().expect("a rule has a spec");
        for (key, _) in model::cells_of(spec, &namespace.key.name, labels) {
            claims.entry(key).or_default().push(rule);
        }
    }
    let mut faults = Vec::new();
    for (key, rules) in claims {
        // This program may not know the selected sources yet.
        let sure = |spec: &RuleSpec| !spec.suspend && !spec.picks;
        let holds = |rule: &Rc<Object>| {
            rule.spec
                .as_ref()
                .is_some_and(|spec| held(rule, spec.hold) && sure(spec))
        };
        // If several rules want the copy, this check does not find out which of them gets it. So
        // the copy counts only if all of them hold pods.
        if !rules.iter().all(|rule| holds(rule)) {
            continue;
        }
        let there =
            server.get(&key).is_some() || server.meddled.contains(&(now.uid.clone(), key.clone()));
        if !there && server.served(key.res) {
            faults.push(format!("{key} of {} is missing", rules[0].key.name));
        }
    }
    faults
}

/// Returns an error if a program may not send this request, given the events that it has received.
fn judge(process: &Process, request: &Request, key: &Key) -> Result<(), String> {
    let namespace = process
        .view
        .namespaces
        .get(&key.namespace)
        .ok_or("into a namespace that was never shown")?;
    if namespace.deleting {
        return Err("into a terminating namespace".into());
    }
    if is_source(key) && request.verb != Verb::Look {
        return Err("to a source".into());
    }
    let labels = namespace.labels();
    let sender = request
        .rule
        .as_ref()
        .and_then(|rule| process.view.rules.get(&*rule.name));
    let once = sender.is_some_and(|rule| rule.spec.as_ref().is_some_and(|spec| spec.once));
    let remembered = || sender.is_some_and(|rule| model::remembers(namespace, &rule.key.name, key));
    if let Verb::Take(uid, version) | Verb::Compare(uid, version) = request.verb {
        let seen = process
            .view
            .copies
            .get(&uid.to_string())
            .ok_or("to an object that was never seen")?;
        // A foreign object may be written only if the rule of the request allows it.
        let spec = sender
            .and_then(|rule| rule.spec.as_deref())
            .ok_or("for a rule that was never shown")?;
        let (clash, active) = (spec.clash, !spec.suspend);
        if seen.ours() || seen.deleting || seen.version != version {
            return Err("to an object that is ours, going, or another by now".into());
        }
        let (config, _) = body_of(request, key)?;
        if clash == Clash::Report && model::stripped(seen) {
            let same = model::yields(seen, Clash::Adopt, &config)
                || !matches!(request.verb, Verb::Take(..));
            return if same {
                Ok(())
            } else {
                Err("though it has another content".into())
            };
        }
        return match request.verb {
            Verb::Take(..) if once && remembered() => Err("though it was created once".into()),
            Verb::Take(..) if !active || !model::yields(seen, clash, &config) => {
                Err("though its rule spares it".into())
            }
            Verb::Compare(..) if clash != Clash::Adopt => Err("though its rule doesn't ask".into()),
            _ => Ok(()),
        };
    }
    // Only a dry run shows the repairs that a suspended rule would make.
    let plans = process.role == Role::Keeper && matches!(request.verb, Verb::Learn(_));
    let wanted = process.view.rules.values().any(|rule| {
        let spec = rule.spec.as_ref().expect("a rule has a spec");
        let planned = plans && spec.suspend;
        (!spec.suspend || planned)
            && model::cells_of(spec, &key.namespace, &labels)
                .iter()
                .any(|(cell, _)| cell == key)
    });
    let uid = match request.verb {
        Verb::Look => return Ok(()),
        Verb::Create if !wanted => return Err("though no rule wants it".into()),
        Verb::Create if once && remembered() => return Err("though it was created once".into()),
        Verb::Create => return Ok(()),
        Verb::Apply(_) | Verb::Learn(_) | Verb::Claim(..) if once => {
            return Err("though its rule only creates".into());
        }
        Verb::Apply(_) | Verb::Learn(_) | Verb::Claim(..) if !wanted => {
            return Err("though no rule wants it".into());
        }
        Verb::Delete(..) if process.role == Role::Injector => return Err("by a webhook".into()),
        Verb::Apply(uid)
        | Verb::Learn(uid)
        | Verb::Claim(uid, _)
        | Verb::Delete(uid, _)
        | Verb::Take(uid, _)
        | Verb::Compare(uid, _) => uid.to_string(),
    };
    match process.view.copies.get(&uid) {
        None => Err("to an object that was never seen".into()),
        Some(seen) if !seen.ours() && !process.view.ours.contains(&uid) => {
            Err("to an object that isn't ours".into())
        }
        Some(seen) if seen.deleting => Err("to an object that is being deleted".into()),
        Some(_) => Ok(()),
    }
}

/// How often Mimeo made each kind of change to copies.
pub fn count_writes(server: &Server) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for write in server
        .writes
        .iter()
        .filter(|write| COPIED.contains(&write.key.res))
    {
        *counts.entry(write.verb).or_default() += 1;
    }
    counts
}
