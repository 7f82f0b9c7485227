//! The verdict about one cell: the next step, and everything that the engine must do because of the
//! decision. A decision changes nothing. Only [`Engine::adopt`] has effects.

use std::sync::Arc;

use mimeo_model::{
    id::{KindId, RuleId},
    source::SourceRef,
};

use crate::{
    Engine, SourceState,
    absent::{Absence, Gone},
    cell::{Step, Why},
    clock::Tick,
    jobs::JobKey,
    work::Timer,
};

/// A decision about one cell.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// The next step.
    pub(crate) step: Step,
    /// The work that must be done before the decision can change.
    pub(crate) needs: Needs,
}

/// The needs in the order in which the decision found them. Most decisions have none.
pub(crate) type Needs = Vec<Need>;

/// One effect that a decision asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Read this rule from the API server, to learn how it disappeared.
    Rule(Arc<RuleId>),
    /// Read this source from the API server, to learn how it disappeared.
    Source(SourceRef),
    /// Read the grants of this namespace from the API server.
    Grants(Box<str>),
    /// Begin the grace period of a source that a selector found before this process began.
    LostSource(SourceRef),
    /// Decide about the rule's copies again when the grace period of a source ends.
    GraceEnd(Arc<RuleId>, Tick),
    /// Collect the copy with the other losses of this rule.
    Loss(Arc<RuleId>, Why),
}

impl Engine {
    /// Carries out the needs of a decision about one cell.
    pub(crate) fn adopt(
        &mut self,
        namespace: &Arc<str>,
        (kind, name): (KindId, &Arc<str>),
        needs: Needs,
    ) {
        for need in needs {
            match need {
                Need::Rule(id) => {
                    let gone = self.gone.entry(id.clone());
                    let gone = gone.or_insert_with(|| Gone::seen_under(None, None, Tick::ZERO));
                    gone.absence.ask(namespace);
                    self.jobs.ask(JobKey::ConfirmRule(id));
                }
                Need::Source(source) => {
                    if let Some(SourceState::Missing { absence, .. }) =
                        self.sources.get_mut(&source)
                    {
                        absence.ask(namespace);
                        self.jobs.ask(JobKey::ConfirmSource(source));
                    }
                }
                Need::Grants(giver) => {
                    self.consent.withdrawal(&giver).ask(namespace);
                    self.jobs.ask(JobKey::ConfirmGrants(giver));
                }
                Need::LostSource(source) => {
                    let lost = SourceState::Missing {
                        since: self.now,
                        absence: Absence::from(None),
                    };
                    self.sources.entry(source).or_insert(lost);
                }
                Need::GraceEnd(id, due) => self.work.timer(due, Timer::Rule(id)),
                Need::Loss(id, why) => {
                    self.collect_loss(&id, (namespace.clone(), kind, name.clone()), why);
                }
            }
        }
    }
}
