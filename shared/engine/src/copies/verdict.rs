//! The verdict about one copy, and everything that the engine must do because of the decision. A
//! decision changes nothing. The plan of its namespace carries it out: [`Index::meet`] meets its
//! needs, and the copy is queued or put to rest.
//!
//! Each plan stores its verdicts. Requests, the pod gate, statuses and the page read them, so these
//! cannot disagree about a copy.

use std::sync::Arc;

use mimeo_model::{
    id::{ProjectionId, RuleId},
    outcome::Failure,
    source::SourceRef,
};

use crate::{
    Effects, Index,
    clock::Tick,
    copy::{CopyKey, Leave, Reference, Step, Why},
    jobs::JobKey,
    work::Timer,
};

/// A decision about one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The next step.
    pub(crate) step: Step,
    /// The change that the rules want, whether or not they may act now.
    pub(crate) outlook: Outlook,
}

/// The change of a copy that the rules want. A suspended rule has an outlook, too: its status shows
/// what the rule would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// The copy exists and is right, as far as is known. A copy that is compared in detail or only
    /// due for its resync counts as right until the answer shows a difference.
    Right,
    /// A copy will be created.
    Create,
    /// A copy will change.
    Update,
    /// A copy will be deleted.
    Delete,
    /// The present object keeps the copy away: it is not the rule's copy, or it is being deleted
    /// and still exists.
    Conflict,
    /// The rule makes no copy that can be written in this namespace.
    Unfillable,
    /// No change is wanted, or a fact is missing that decides about the change.
    Open,
}

impl Outlook {
    /// The planned change, in the word that statuses and the page show. `None`: no change.
    pub(crate) fn planned(self) -> Option<&'static str> {
        match self {
            Self::Create => Some("Create"),
            Self::Update => Some("Update"),
            Self::Delete => Some("Delete"),
            Self::Conflict => Some("Conflict"),
            Self::Right | Self::Unfillable | Self::Open => None,
        }
    }
}

impl Verdict {
    /// A verdict without a change that the rules are known to want.
    pub(crate) fn open(step: Step) -> Self {
        let outlook = Outlook::Open;
        Self { step, outlook }
    }
}

impl Default for Verdict {
    fn default() -> Self {
        Self::open(Step::Leave(Leave::Nothing))
    }
}

/// The needs in the order in which the decision found them. Most decisions have none.
pub(crate) type Needs = Vec<Need>;

/// One effect that a decision asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The verdict depends on how the object disappeared that this job reads. True: the object must
    /// be read (again) first.
    Absence(JobKey, bool),
    /// Begin the grace period of a source that a selector found before this process began.
    LostSource(SourceRef),
    /// Decide about the rule's copies again when the grace period of a source ends.
    GraceEnd(Arc<RuleId>, Tick),
    /// The verdict depends on which fields a correct copy of this projection owns.
    Reference(ProjectionId),
    /// Collect the copy with the other losses of this rule.
    Loss(Arc<RuleId>, Why),
    /// Report why the copy cannot be written, if no request follows.
    Failure(Failure),
}

impl Index {
    /// Decides about every copy again. Returns the copies whose stored verdict is out of date: some
    /// change has not led to a plan of their namespace. Namespaces that wait for their next plan
    /// are left out.
    pub(crate) fn outdated_verdicts(&self) -> Vec<String> {
        let mut outdated = Vec::new();
        for (name, namespace) in &self.namespaces {
            if self.dirty.contains(name) || namespace.behind {
                continue;
            }
            for copy in &namespace.copies {
                let (now, _) = self.decide(namespace, copy);
                let stored = copy.verdict;
                if now != stored {
                    outdated.push(format!(
                        "{name}/{}: {stored:?} has become {now:?}",
                        copy.name
                    ));
                }
            }
        }
        outdated
    }

    /// Carries out the needs of a decision about one copy. Returns the decision's failure, which
    /// the caller reports after it has stored the verdict.
    pub(crate) fn meet(
        &mut self,
        needs: Needs,
        copy: &CopyKey,
        effects: &mut Effects,
    ) -> Option<Failure> {
        let mut reported = None;
        for need in needs {
            match need {
                Need::Absence(key, asks) => {
                    let absence = self.absences.entry(key.clone()).or_default();
                    absence.used(&copy.0, asks);
                    if asks {
                        effects.jobs.ask(key);
                    }
                }
                Need::LostSource(source) => {
                    if !self.sources.contains_key(&source) {
                        self.lose_source(source, None);
                    }
                }
                Need::GraceEnd(id, due) => effects.work.timer(due, Timer::Rule(id)),
                Need::Reference(id) => {
                    if let Some(projection) = self.projections.get_mut(&id)
                        && projection.reference == Reference::Unknown
                    {
                        projection.reference = Reference::Wanted;
                    }
                }
                Need::Failure(failure) => reported = Some(failure),
                Need::Loss(id, why) => {
                    self.kinds[copy.1].lost = true;
                    self.collect(&id, copy, why, effects);
                }
            }
        }
        reported
    }
}
