//! One reading of the cluster, and the engine's decisions about it. Nothing is written.
//!
//! `kubectl mimeo` explains copies with the reconciler's own engine. A reconciler watches, and
//! carries out each request. A snapshot asks each [`Question`] once, and sends no request that
//! would change the cluster.
//!
//! The caller shows the rules, grants and namespaces by the engine's own events
//! ([`Snapshot::engine`]). It then answers questions until there are none. A question without an
//! answer is allowed: the engine treats such a fact as not known yet.

use std::{collections::BTreeSet, time::Duration};

use mimeo_model::{
    kind::{GroupVersionKind, Resource},
    outcome::Outcome,
    role::Role,
    source::{SourceRef, SourceSelector},
};

use crate::{
    Action, Answer, CopyWatch, Demand, Engine, Job, Request, Settings, Task, Verb, clock::Tick,
    copy::Why,
};

/// The time of the first event. Only the delays of the engine's own work pass after it.
const START: Tick = Duration::from_secs(1);
/// No work of a snapshot is later. A grace period of a rule never ends before.
const END: Tick = Duration::from_secs(2);
const NEVER: Duration = Duration::from_hours(24);

/// A fact that the engine needs.
#[derive(Debug)]
pub enum Question {
    /// The resource that serves a kind. The answer is [`Engine::kind`].
    Kind(GroupVersionKind),
    /// The existing copies. The answers are [`Engine::copy_applied`] for each object with Mimeo's
    /// label, and then [`Engine::copies_known`].
    Copies(CopyWatch, Resource),
    /// The content of a source. The answer is [`Engine::source`].
    Source(SourceRef, Resource),
    /// The sources that a selector finds. The answers are [`Engine::source`] for each, and then
    /// [`Engine::selected`].
    Selected(SourceSelector, Resource),
    /// A read that proves why an object is gone. The answer is [`Engine::answered`].
    Job(Box<Job>),
    /// The object that has the copy's name. The answer is [`Snapshot::object`].
    Object(Box<Request>),
}

/// An engine that reads the cluster once.
#[derive(Debug)]
pub struct Snapshot {
    engine: Engine,
    /// The watches that questions have stood for so far.
    asked: Demand,
    recorded: BTreeSet<GroupVersionKind>,
    changes: Vec<Request>,
}

impl Snapshot {
    /// Creates a snapshot that has read nothing yet. `settings` are those of the installation. The
    /// role is the reconciler's, and no decision waits for a delay.
    pub fn new(settings: Settings) -> Self {
        let settings = Settings {
            role: Role::Keeper,
            takeover: Duration::ZERO,
            // The guard judges the losses after this delay: once everything has been read, because
            // the time of a snapshot passes only while there is no question.
            deletion_delay: Duration::from_millis(1),
            // No read is repeated.
            backoff: NEVER,
            backoff_limit: NEVER,
            ..settings
        };
        let mut engine = Engine::new(settings);
        engine.at(START);
        Self {
            engine,
            asked: Demand::default(),
            recorded: BTreeSet::new(),
            changes: Vec::new(),
        }
    }

    /// The engine, for events and answers.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The engine, to read its decisions.
    pub fn decided(&self) -> &Engine {
        &self.engine
    }

    /// The kinds that may have copies, as the kinds `ConfigMap` records them.
    pub fn kinds_recorded(&mut self, kinds: BTreeSet<GroupVersionKind>) {
        self.recorded = kinds;
        self.engine.kinds_recorded(&self.recorded);
    }

    /// Returns the next questions. Several may be answered at the same time. An empty list means
    /// that the snapshot is complete.
    pub fn questions(&mut self) -> Vec<Question> {
        loop {
            let questions = self.ask();
            if !questions.is_empty() {
                return questions;
            }
            if self.withdraw_outdated() {
                continue;
            }
            match self.engine.wake_at().filter(|due| *due <= END) {
                // A namespace with many copies rests between two plans.
                Some(due) => {
                    let next = self.engine.now() + Duration::from_millis(1);
                    self.engine.at(due.max(next));
                }
                None => return questions,
            }
        }
    }

    /// The requests that would change the cluster now. They are complete after the last question.
    pub fn changes(&self) -> &[Request] {
        &self.changes
    }

    /// Removes the changes that later answers have made wrong. Returns true if there were any:
    /// their copies are then decided again.
    fn withdraw_outdated(&mut self) -> bool {
        let before = self.changes.len();
        let engine = &mut self.engine;
        self.changes
            .retain(|request| !engine.withdraw_outdated(request));
        self.changes.len() < before
    }

    fn ask(&mut self) -> Vec<Question> {
        let mut questions = Vec::new();
        self.demanded(&mut questions);
        while let Some(action) = self.engine.next_action() {
            match action {
                Action::Job(job) => self.take_job(job, &mut questions),
                Action::Request(request) => self.take_request(request, &mut questions),
            }
        }
        self.demanded(&mut questions);
        questions
    }

    /// Adds the questions that a watch would answer.
    fn demanded(&mut self, questions: &mut Vec<Question>) {
        let demand = self.engine.demand();
        for gvk in demand.kinds {
            if self.asked.kinds.insert(gvk.clone()) {
                questions.push(Question::Kind(gvk));
            }
        }
        for (watch, resource) in demand.copies {
            let asked = self.asked.copies.insert(watch.clone(), resource.clone());
            if asked.is_none() {
                questions.push(Question::Copies(watch, resource));
            }
        }
        for (source, resource) in demand.sources {
            let asked = self.asked.sources.insert(source.clone(), resource.clone());
            if asked.is_none() {
                questions.push(Question::Source(source, resource));
            }
        }
        for (selector, resource) in demand.selectors {
            let asked = self
                .asked
                .selectors
                .insert(selector.clone(), resource.clone());
            if asked.is_none() {
                questions.push(Question::Selected(selector, resource));
            }
        }
    }

    fn take_job(&mut self, job: Box<Job>, questions: &mut Vec<Question>) {
        if job.task.asks() {
            questions.push(Question::Job(job));
        } else if let Task::RecordKind(gvk) = &job.task {
            // The reconciler would record the kind now, and then write the copies.
            self.recorded.insert(gvk.clone());
            self.engine.answered(&job, Answer::Done);
            self.engine.kinds_recorded(&self.recorded);
        }
        // No decision of this snapshot depends on the writes of the other jobs.
    }

    /// Asks about the object of a request. A request that would change the cluster stays without an
    /// answer, so its copy stays as it is decided now.
    fn take_request(&mut self, request: Box<Request>, questions: &mut Vec<Question>) {
        let asks = match request.verb {
            Verb::Create | Verb::Look | Verb::Compare(..) | Verb::Learn(_) => true,
            // The copy has the right checksum. A reconciler that has just begun applies it once
            // more, which most often changes nothing. Here it counts as correct.
            Verb::Apply(_) => request.why == Some(Why::Unproven),
            Verb::Take(..) | Verb::Claim(..) | Verb::Delete(..) => false,
        };
        if asks {
            questions.push(Question::Object(request));
        } else if request.why != Some(Why::Resync) {
            // A resync changes nothing, as far as is known.
            self.changes.push(*request);
        }
    }

    /// Answers [`Question::Object`]. For [`Verb::Compare`] and [`Verb::Learn`], `outcome` is that
    /// of the dry run. For all other verbs it is that of a read of the object's metadata.
    pub fn object(&mut self, request: &Request, outcome: Outcome) {
        let outcome = match (request.verb, outcome) {
            (Verb::Create, Outcome::Object(_)) => Outcome::Conflict,
            (Verb::Create, Outcome::Absent) => {
                self.changes.push(request.clone());
                return;
            }
            // Without this answer it is unknown whether the copy would be created.
            (Verb::Create, _) => return,
            (_, outcome) => outcome,
        };
        self.engine.outcome(request, outcome);
    }
}
