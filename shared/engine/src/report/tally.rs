//! What the cells of a rule come to: each by itself, and all of them counted.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use mimeo_api::{CopyCounts, Plan, PlannedCopy};

use mimeo_model::{
    id::{KindId, RuleId},
    meta::Seen,
    outcome::FailureReason,
    rule::Rule,
};

use crate::{
    CopyNumbers, Engine, Namespace, RuleState,
    cell::{Cell, Leave, Step, Why},
};

/// What is to be done about a cell, as a plan tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PlannedAction {
    /// A copy is to come.
    Create,
    /// A copy is to change.
    Update,
    /// A copy is to go.
    Delete,
    /// What is there keeps the copy away: it isn't the rule's, or is on its way out and not gone.
    Conflict,
}

impl fmt::Display for PlannedAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Most failures that are told of a rule.
pub(crate) const FAILURES: usize = 20;
const PLANNED: usize = 20;

/// Namespace, kind and name: the order in which failures are told.
pub(crate) type CellName = (Arc<str>, String, Arc<str>);

/// What one cell has come to for a rule that wants a copy there, or whose copy is there though it
/// wants none.
pub(crate) struct Standing<'a> {
    /// Whether a copy is wanted.
    pub(crate) wanted: bool,
    /// Whether it is as it should be.
    pub(crate) synced: bool,
    /// What is to be done about it.
    pub(crate) action: Option<PlannedAction>,
    /// Why it isn't as it should be: a stable word, and a sentence for people.
    pub(crate) failure: Option<(FailureReason, Cow<'a, str>)>,
}

/// What the cells of one rule come to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) copies: CopyCounts,
    pub(crate) plan: Plan,
    /// The first copies that the plan counts.
    planned: BTreeMap<CellName, PlannedAction>,
    pub(crate) failures: BTreeMap<CellName, (FailureReason, Box<str>)>,
}

impl Tally {
    /// The plan with the first of its copies.
    pub(crate) fn planned(&self) -> Plan {
        let copies = self.planned.iter().map(planned).collect();
        Plan {
            copies,
            ..self.plan.clone()
        }
    }

    /// The copies, and how many failed for which reason.
    pub(crate) fn numbers(&self) -> CopyNumbers {
        let CopyCounts {
            desired,
            synced,
            failed,
        } = self.copies;
        let count = |count: i32| usize::try_from(count).unwrap_or_default();
        let mut reasons = BTreeMap::new();
        for (reason, _) in self.failures.values() {
            *reasons.entry(*reason).or_default() += 1;
        }
        // Of these alone not every one is kept by name.
        let more = count(failed).saturating_sub(self.failures.len());
        if more > 0 {
            *reasons.entry(FailureReason::NotGranted).or_default() += more;
        }
        CopyNumbers {
            desired: count(desired),
            synced: count(synced),
            failed: reasons,
        }
    }

    /// Counts a cell. Most are as they should be, and have their names in no list.
    pub(crate) fn count(&mut self, cell: impl Fn() -> CellName, standing: Standing<'_>) {
        let Standing {
            wanted,
            synced,
            action,
            failure,
        } = standing;
        self.copies.desired += i32::from(wanted);
        self.copies.synced += i32::from(synced);
        if let Some(action) = action {
            self.plan(action, cell());
        }
        if let Some((reason, message)) = failure {
            self.copies.failed += 1;
            self.failures.insert(cell(), (reason, message.into()));
        }
    }

    /// Counts what would be done about a cell, and keeps the first of these by name.
    fn plan(&mut self, action: PlannedAction, cell: CellName) {
        let Plan {
            create,
            update,
            delete,
            conflict,
            ..
        } = &mut self.plan;
        *match action {
            PlannedAction::Create => create,
            PlannedAction::Update => update,
            PlannedAction::Delete => delete,
            PlannedAction::Conflict => conflict,
        } += 1;
        self.planned.insert(cell, action);
        if self.planned.len() > PLANNED {
            self.planned.pop_last();
        }
    }
}

fn planned(((namespace, kind, name), action): (&CellName, &PlannedAction)) -> PlannedCopy {
    PlannedCopy {
        action: action.to_string(),
        kind: kind.clone(),
        namespace: namespace.to_string(),
        name: name.to_string(),
    }
}

impl Engine {
    /// Adds to what its cells come to what the rule wants and can't have.
    pub(crate) fn tally_unmet(
        &self,
        id: &RuleId,
        state: &RuleState,
        rule: &Rule,
        tally: &mut Tally,
    ) {
        for (name, unmet) in &state.unmet {
            for cell in unmet {
                let standing = Standing::unmet(cell.reason(), cell.message(id, name));
                tally.count(
                    || {
                        (
                            name.clone(),
                            self.kind_of(cell.kind).to_owned(),
                            cell.name.clone(),
                        )
                    },
                    standing,
                );
            }
        }
        self.tally_not_granted(rule, tally);
    }

    /// What a cell has come to for this rule; none: nothing of the rule's is there or wanted there.
    pub(crate) fn standing<'a>(
        &'a self,
        id: &RuleId,
        rule: &Rule,
        (name, namespace): (&str, &Namespace),
        cell: &'a Cell,
    ) -> Option<Standing<'a>> {
        let slot = cell
            .want
            .and_then(|want| self.slots.get(&want))
            .filter(|slot| *slot.rule == *id);
        let Some(slot) = slot else {
            return self.standing_unwanted(id, (name, namespace), cell);
        };
        let step = self.aim(slot, rule, (name, namespace), cell);
        let synced = matches!(
            step,
            Step::Leave(Leave::UpToDate | Leave::Seeded | Leave::Learning)
                | Step::Learn(_)
                | Step::Apply(_, Why::Resync)
        );
        let action = match step {
            _ if synced => None,
            Step::Leave(Leave::NoSource) => self
                .sourceless(slot, rule, cell)
                .goes()
                .then_some(PlannedAction::Delete),
            Step::Leave(Leave::Foreign(_) | Leave::Deleting) => Some(PlannedAction::Conflict),
            Step::Apply(..) | Step::Claim(..)
                if cell
                    .want
                    .and_then(|id| self.reserved_for(id, cell))
                    .is_some() =>
            {
                Some(PlannedAction::Conflict)
            }
            Step::Create(_) => Some(PlannedAction::Create),
            Step::Apply(..) | Step::Take(..) | Step::Claim(..) => Some(PlannedAction::Update),
            _ => None,
        };
        let failure = failure(
            (&rule.id, name),
            cell,
            slot.rendering.is_ok() && step != Step::Leave(Leave::Seeded),
        );
        Some(Standing {
            wanted: true,
            synced,
            action,
            failure,
        })
    }

    /// The same of a copy of the rule's that nobody wants (any more).
    fn standing_unwanted<'a>(
        &self,
        id: &RuleId,
        (name, namespace): (&str, &Namespace),
        cell: &'a Cell,
    ) -> Option<Standing<'a>> {
        let own = |seen: &&Seen| seen.rule.as_deref() == Some(id) && !seen.elsewhere;
        cell.ours()
            .filter(own)
            .filter(|_| cell.want.is_none() && namespace.alive())?;
        let goes = self.disposal(name, namespace, cell).goes();
        let failure = failure((id, name), cell, false);
        Some(Standing {
            wanted: false,
            synced: false,
            action: goes.then_some(PlannedAction::Delete),
            failure,
        })
    }

    pub(crate) fn kind_of(&self, kind: KindId) -> &str {
        &self.kinds[kind].group_kind.kind
    }

    /// Counts the copies that a rule may not have. Whether their namespaces exist makes no
    /// difference.
    fn tally_not_granted(&self, rule: &Rule, tally: &mut Tally) {
        let Some(home) = rule.id.namespace.as_deref() else {
            return;
        };
        let cells = self.ungranted_cells(rule, None);
        let count = i32::try_from(cells.len()).unwrap_or(i32::MAX);
        tally.copies.desired += count;
        if !self.grants_known() {
            return; // What is there may be as it should be.
        }
        tally.copies.failed += count;
        // More are never shown.
        for ((namespace, kind, name), lack) in cells.into_iter().take(FAILURES) {
            let cell = (namespace.into(), kind.to_owned(), name.into());
            tally
                .failures
                .insert(cell, (FailureReason::NotGranted, lack.message(home).into()));
        }
    }
}

impl Standing<'_> {
    /// Of a cell that the rule can't have: mostly because another one has it.
    pub(crate) fn unmet(reason: FailureReason, message: String) -> Self {
        let action = (reason == FailureReason::RuleConflict).then_some(PlannedAction::Conflict);
        Self {
            wanted: true,
            synced: false,
            action,
            failure: Some((reason, message.into())),
        }
    }
}

/// Why a cell isn't as it should be: what the last request came to, or that a `wanted` copy can't
/// be put right because what is there is going and doesn't go.
fn failure<'a>(
    (rule, namespace): (&RuleId, &str),
    cell: &'a Cell,
    wanted: bool,
) -> Option<(FailureReason, Cow<'a, str>)> {
    let going = wanted && cell.seen().is_some_and(|seen| seen.deleting);
    match &cell.failure {
        Some(failing) => Some((
            failing.failure.reason,
            Cow::Borrowed(failing.failure.message_for(rule, namespace)),
        )),
        None => going.then(|| {
            (
                FailureReason::Conflict,
                "what has its name is being deleted, and a finalizer keeps it".into(),
            )
        }),
    }
}
