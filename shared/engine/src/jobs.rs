//! Jobs: questions to the API server and small writes that concern no single copy.
//!
//! One table holds every job by its key, so a job that is asked for twice runs once. A part of the
//! engine asks for a job by its key. When the job's turn comes, [`Index::task`] returns its task,
//! or finds that the job is no longer needed. The driver carries the task out once and hands the
//! answer to `Engine::answered`. The driver retries nothing: a failed job waits here, for a pause
//! that doubles with each failure.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

use mimeo_model::{
    created::CreatedCopies,
    id::RuleId,
    kind::{GroupKind, GroupVersionKind},
    known::Decoded,
    source::SourceRef,
};

use crate::{
    Effects, GrantsRead, Index, Notice, Presence,
    clock::Tick,
    kinds::Note,
    work::{Timer, delay},
};

/// The identity of a job. Two jobs with equal keys are one job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JobKey {
    RecordKind(GroupKind),
    ForgetKind(GroupKind),
    ConfirmRule(Arc<RuleId>),
    ConfirmSource(SourceRef),
    ConfirmGrants(Box<str>),
    ReadSource(SourceRef),
    RecordCreated(Arc<str>),
    RemoveLabel(Arc<str>),
}

/// A job for the driver.
#[derive(Clone, Debug)]
pub struct Job {
    /// The work of the driver.
    pub task: Task,
    key: JobKey,
    number: u64,
    /// The number of observations of copies when the job started. The answer proves nothing about a
    /// copy that was observed later.
    shown: u64,
}

/// The work of the driver for one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Record in the kinds `ConfigMap` that copies of this kind may exist. Answer:
    /// [`Answer::Done`].
    RecordKind(GroupVersionKind),
    /// Remove that record, unless one of these namespaces has a copy. A `None` in the list stands
    /// for all namespaces. Answer: [`Answer::Done`], or [`Answer::Changed`] if there is a copy.
    ForgetKind(GroupKind, Vec<Option<Box<str>>>),
    /// Read a rule and its CRD, without any cache. Answer: [`Answer::Presence`].
    ConfirmRule(RuleId),
    /// Read a source and its namespace, without any cache. Answer: [`Answer::Presence`].
    ConfirmSource(SourceRef),
    /// Read the grants of a namespace, the namespace and the CRD of grants, without any cache.
    /// Answer: [`Answer::Grants`].
    ConfirmGrants(Box<str>),
    /// Read a source that a selector finds, or whose content was too large to be held. Answer:
    /// [`Answer::Object`].
    ReadSource(SourceRef),
    /// Record in a namespace's annotation the copies that were created once in it. Answer:
    /// [`Answer::Done`], or [`Answer::Failed`] if the namespace has another resourceVersion.
    RecordCreated {
        /// The namespace.
        namespace: Arc<str>,
        /// The whole value of the annotation.
        created: CreatedCopies,
        /// The namespace's resourceVersion.
        version: u64,
    },
    /// Remove the pending label from a namespace. Answer: [`Answer::Done`], or [`Answer::Failed`]
    /// if the namespace has another resourceVersion. Then its labels may have changed, and another
    /// rule may match.
    RemoveLabel {
        /// The namespace.
        namespace: Arc<str>,
        /// The value of the pending label.
        nonce: Box<str>,
        /// The namespace's resourceVersion.
        version: u64,
        /// When this process first saw the label.
        since: Tick,
    },
}

/// The result of a job.
pub enum Answer {
    /// The write succeeded.
    Done,
    /// The result of reading a rule or a source.
    Presence(Presence),
    /// The grants of the namespace.
    Grants(GrantsRead),
    /// The source. `None`: it does not exist.
    Object(Option<Decoded<Value>>),
    /// The object isn't as the job assumed, and nothing was written.
    Changed,
    /// The API server didn't answer, or answered with an error. So a write may have succeeded. A
    /// 403 or 5xx never means that an object is gone.
    Failed,
}

/// The longest pause before a job is retried. Pods may wait for a copy whose kind must be recorded
/// first, so it is shorter than the longest pause of a copy.
const LONGEST: Duration = Duration::from_mins(1);

impl Task {
    /// True if the job reads an object and writes nothing.
    pub fn asks(&self) -> bool {
        matches!(
            self,
            Self::ConfirmRule(_)
                | Self::ConfirmSource(_)
                | Self::ConfirmGrants(_)
                | Self::ReadSource(_)
        )
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecordKind(gvk) => write!(f, "record the kind {}", gvk.group_kind()),
            Self::ForgetKind(kind, _) => write!(f, "remove the record of the kind {kind}"),
            Self::ConfirmRule(id) => write!(f, "confirm that {id} is gone"),
            Self::ConfirmSource(source) => write!(f, "confirm that {source} is gone"),
            Self::ConfirmGrants(namespace) => {
                write!(f, "confirm that grants of namespace {namespace} are gone")
            }
            Self::ReadSource(source) => write!(f, "read {source}"),
            Self::RecordCreated { namespace, .. } => {
                write!(f, "record in namespace {namespace} the copies created once")
            }
            Self::RemoveLabel { namespace, .. } => {
                write!(f, "remove the pending label from namespace {namespace}")
            }
        }
    }
}

/// All requested jobs that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    table: BTreeMap<JobKey, Entry>,
    queue: VecDeque<JobKey>,
    /// The number of jobs that the driver has received.
    started: u64,
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// The number of failures in a row.
    failures: u8,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Queued,
    /// The driver has received the job.
    Running {
        number: u64,
        /// True if the watch has shown a change of the job's object since the start.
        moved: bool,
    },
    /// The job failed, and waits for its next try. Or its write succeeded, and the watch does not
    /// show it yet. At this time the job is queued again.
    Waiting(Tick),
}

impl Jobs {
    /// Requests a job. A job that is in the table already goes on as it is.
    pub(crate) fn ask(&mut self, key: JobKey) {
        if !self.table.contains_key(&key) {
            self.queue.push_back(key.clone());
            let state = State::Queued;
            self.table.insert(key, Entry { state, failures: 0 });
        }
    }

    /// The watch shows a change of the job's object. A job that waits is queued, and a running job
    /// is queued after its answer. Whether it is still needed is decided at its turn.
    pub(crate) fn moved(&mut self, key: &JobKey) {
        match self.table.get_mut(key).map(|entry| &mut entry.state) {
            Some(State::Running { moved, .. }) => *moved = true,
            Some(State::Waiting(_)) => self.queue_again(key),
            Some(State::Queued) | None => {}
        }
    }

    fn queue_again(&mut self, key: &JobKey) {
        if let Some(entry) = self.table.get_mut(key) {
            entry.state = State::Queued;
            self.queue.push_back(key.clone());
        }
    }

    /// Ends a job. If the driver has received it, its answer is ignored.
    pub(crate) fn end(&mut self, key: &JobKey) {
        self.table.remove(key);
    }

    /// The number of jobs that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Takes the next queued job.
    fn pop(&mut self) -> Option<JobKey> {
        while let Some(key) = self.queue.pop_front() {
            let entry = self.table.get(&key);
            if entry.is_some_and(|entry| entry.state == State::Queued) {
                return Some(key);
            }
        }
        None
    }

    fn start(&mut self, key: &JobKey) -> u64 {
        self.started += 1;
        let number = self.started;
        if let Some(entry) = self.table.get_mut(key) {
            entry.state = State::Running {
                number,
                moved: false,
            };
        }
        number
    }

    /// Returns whether the object of this job has changed since the job started. `None`: its answer
    /// no longer counts.
    fn running(&self, job: &Job) -> Option<bool> {
        match self.table.get(&job.key)?.state {
            State::Running { number, moved } => (number == job.number).then_some(moved),
            _ => None,
        }
    }

    /// Queues a job again after its pause.
    pub(crate) fn resume(&mut self, key: &JobKey, now: Tick) {
        let state = self.table.get(key).map(|entry| &entry.state);
        if let Some(State::Waiting(due)) = state
            && *due <= now
        {
            self.queue_again(key);
        }
    }
}

impl Index {
    /// Returns the task of a job at this moment. `None`: the job is no longer needed.
    fn task(&self, key: &JobKey) -> Option<Task> {
        let missing = self.absences.contains_key(key);
        match key {
            JobKey::RecordKind(kind) => self.kind_to_record(kind).map(Task::RecordKind),
            JobKey::ForgetKind(kind) => self
                .is_needless(kind)
                .then(|| Task::ForgetKind(kind.clone(), self.watched_places())),
            JobKey::ConfirmRule(id) => missing.then(|| Task::ConfirmRule((**id).clone())),
            JobKey::ConfirmSource(source) => missing.then(|| Task::ConfirmSource(source.clone())),
            JobKey::ConfirmGrants(giver) => missing.then(|| Task::ConfirmGrants(giver.clone())),
            JobKey::ReadSource(source) => self
                .is_unread(source)
                .then(|| Task::ReadSource(source.clone())),
            JobKey::RecordCreated(namespace) => self.created_to_record(namespace),
            JobKey::RemoveLabel(namespace) => self.label_to_remove(namespace),
        }
    }
}

impl Index {
    /// Returns the next job that is still needed.
    pub(crate) fn next_job(&mut self, effects: &mut Effects) -> Option<Job> {
        while let Some(key) = effects.jobs.pop() {
            let Some(task) = self.task(&key) else {
                effects.jobs.end(&key);
                continue;
            };
            // From now on no copy of the kind may be written.
            if let Task::ForgetKind(kind, _) = &task
                && let Some(id) = self.kinds.id(kind)
            {
                self.kinds[id].note = Note::Removing;
            }
            let number = effects.jobs.start(&key);
            return Some(Job {
                task,
                key,
                number,
                shown: self.shown,
            });
        }
        None
    }

    /// Takes in the answer to a job. An answer that no longer counts changes nothing.
    pub(crate) fn answered(&mut self, job: &Job, answer: Answer, effects: &mut Effects) {
        if effects.jobs.running(job).is_none() {
            return;
        }
        let written = matches!(answer, Answer::Done);
        let settled = match (&job.task, answer) {
            // Facts that the watch has shown meanwhile are newer than the read.
            (Task::ReadSource(source), Answer::Object(object)) => {
                if self.is_unread(source) {
                    self.source_shown(source, object, effects);
                }
                true
            }
            (Task::ForgetKind(kind, _), Answer::Changed) => {
                self.kept_kind(kind);
                false
            }
            (Task::RemoveLabel { since, .. }, Answer::Done) => {
                let lag = self.now.saturating_sub(*since);
                effects.notices.push(Notice::NamespaceLag(lag));
                false
            }
            (_, read) => self.absence_read(&job.key, &read, job.shown, effects),
        };
        // The answer may have led to a new job with the same key.
        let Some(moved) = effects.jobs.running(job) else {
            return;
        };
        if settled {
            effects.jobs.end(&job.key);
        } else if moved {
            effects.jobs.queue_again(&job.key);
        } else {
            self.pause(job, written, effects);
        }
    }

    /// Lets a job wait that was written, or that failed.
    fn pause(&mut self, job: &Job, written: bool, effects: &mut Effects) {
        let Some(entry) = effects.jobs.table.get_mut(&job.key) else {
            return;
        };
        let mut pause = LONGEST;
        if !written {
            pause = pause.min(delay(&self.settings, entry.failures));
            entry.failures = entry.failures.saturating_add(1);
        }
        // Spread over a fifth: jobs that failed together don't come back together.
        let due = self.now + pause + pause * u32::try_from(job.number % 200).unwrap_or(0) / 1000;
        entry.state = State::Waiting(due);
        effects.work.timer(due, Timer::Job(job.key.clone()));
    }
}
