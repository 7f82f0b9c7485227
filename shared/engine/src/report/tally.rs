//! The state of each cell for its rule, and the counts of all cells of a rule.

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
    cell::{Cell, Leave, Step},
};

/// The planned action for a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PlannedAction {
    /// A copy will be created.
    Create,
    /// A copy will change.
    Update,
    /// A copy will be deleted.
    Delete,
    /// The present object keeps the copy away: it is not the rule's copy, or it is being deleted
    /// and still exists.
    Conflict,
}

impl fmt::Display for PlannedAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The largest number of failures that are reported for a rule.
pub(crate) const FAILURES: usize = 20;
const PLANNED: usize = 20;

/// Namespace, kind and name: the order in which failures are reported.
pub(crate) type CellName = (Arc<str>, String, Arc<str>);

/// The state of one cell for a rule. The rule wants a copy there, or has left a copy there that it
/// no longer wants.
pub(crate) struct Standing<'a> {
    /// True if the rule wants a copy.
    pub(crate) wanted: bool,
    /// True if the copy is correct.
    pub(crate) synced: bool,
    /// The planned action.
    pub(crate) action: Option<PlannedAction>,
    /// The failure: a stable reason, and a sentence for users.
    pub(crate) failure: Option<(FailureReason, Cow<'a, str>)>,
}

/// The counts of the cells of one rule.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) copies: CopyCounts,
    pub(crate) plan: Plan,
    /// The first copies that the plan counts.
    planned: BTreeMap<CellName, PlannedAction>,
    pub(crate) failures: BTreeMap<CellName, (FailureReason, Box<str>)>,
}

impl Tally {
    /// Returns the plan with its first copies.
    pub(crate) fn planned(&self) -> Plan {
        let copies = self.planned.iter().map(planned).collect();
        Plan {
            copies,
            ..self.plan.clone()
        }
    }

    /// Returns the number of copies, and the number of failures for each reason.
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
        // Only failures with the reason `NotGranted` are counted without being listed by name.
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

    /// Counts a cell. Most copies are correct, so their names are in no list.
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

    /// Counts a planned action, and keeps the first ones by name.
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
    /// Adds to the tally the copies that the rule wants and cannot have.
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

    /// Returns the state of a cell for this rule. `None`: the rule wants no copy there and has none
    /// there.
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
        let synced = step.is_right();
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

    /// Returns the state of a cell with a copy of this rule that no rule wants (any more).
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

    /// Counts the copies that a rule lacks grants for. The count is the same whether their
    /// namespaces exist or not.
    fn tally_not_granted(&self, rule: &Rule, tally: &mut Tally) {
        let Some(home) = rule.id.namespace.as_deref() else {
            return;
        };
        let cells = self.ungranted_cells(rule, None);
        let count = i32::try_from(cells.len()).unwrap_or(i32::MAX);
        tally.copies.desired += count;
        if !self.grants_known() {
            return; // The copies may be correct.
        }
        tally.copies.failed += count;
        // A status never shows more than these.
        for ((namespace, kind, name), lack) in cells.into_iter().take(FAILURES) {
            let cell = (namespace.into(), kind.to_owned(), name.into());
            tally
                .failures
                .insert(cell, (FailureReason::NotGranted, lack.message(home).into()));
        }
    }
}

impl Standing<'_> {
    /// The state of a cell that the rule cannot have, mostly because another rule has it.
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

/// Returns the failure of a cell. It is the result of the last request. Without one, a `wanted`
/// copy fails if the present object is being deleted and still exists.
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
