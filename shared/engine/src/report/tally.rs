//! The state of each copy for its rule, and the counts of all copies of a rule.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_api::{CopyCounts, Plan, PlannedCopy};

use mimeo_model::{
    id::{KindId, RuleId},
    meta::Seen,
    outcome::FailureReason,
    rule::Rule,
};

use crate::{CopyNumbers, Effort, Index, Namespace, copy::CopyState, verdict::Outlook};

/// The largest number of failures that are reported for a rule.
pub(crate) const FAILURES: usize = 20;
const PLANNED: usize = 20;

/// Namespace, kind and name: the order in which failures are reported.
pub(crate) type CellName = (Arc<str>, String, Arc<str>);

/// The state of one copy for a rule. The rule wants a copy there, or has left a copy there that it
/// no longer wants.
pub(crate) struct Standing<'a> {
    /// True if the rule wants a copy.
    pub(crate) wanted: bool,
    /// The change that the rule wants. [`Outlook::Right`]: the copy is correct.
    pub(crate) outlook: Outlook,
    /// The failure: a stable reason, and a sentence for users.
    pub(crate) failure: Option<(FailureReason, Cow<'a, str>)>,
}

/// The counts of the copies of one rule.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) copies: CopyCounts,
    pub(crate) plan: Plan,
    /// The first copies that the plan counts.
    planned: BTreeMap<CellName, Outlook>,
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

    /// Counts a copy. Most copies are correct, so their names are in no list.
    pub(crate) fn count(&mut self, copy: impl Fn() -> CellName, standing: Standing<'_>) {
        let Standing {
            wanted,
            outlook,
            failure,
        } = standing;
        self.copies.desired += i32::from(wanted);
        self.copies.synced += i32::from(outlook == Outlook::Right);
        self.plan(outlook, &copy);
        if let Some((reason, message)) = failure {
            self.copies.failed += 1;
            self.failures.insert(copy(), (reason, message.into()));
        }
    }

    /// Counts a planned change, and keeps the first ones by name.
    fn plan(&mut self, outlook: Outlook, copy: impl Fn() -> CellName) {
        let Plan {
            create,
            update,
            delete,
            conflict,
            ..
        } = &mut self.plan;
        *match outlook {
            Outlook::Create => create,
            Outlook::Update => update,
            Outlook::Delete => delete,
            Outlook::Conflict => conflict,
            Outlook::Right | Outlook::Unfillable | Outlook::Open => return,
        } += 1;
        self.planned.insert(copy(), outlook);
        if self.planned.len() > PLANNED {
            self.planned.pop_last();
        }
    }
}

fn planned(((namespace, kind, name), action): (&CellName, &Outlook)) -> PlannedCopy {
    PlannedCopy {
        action: action.planned().unwrap_or_default().to_owned(),
        kind: kind.clone(),
        namespace: namespace.to_string(),
        name: name.to_string(),
    }
}

impl Index {
    /// Counts the copies of these rules, and visits each copy once. The tallies are in the order of
    /// the rules.
    pub(crate) fn tallies(
        &self,
        rules: Vec<Arc<RuleId>>,
        effort: &mut Effort,
    ) -> Vec<(Arc<RuleId>, Tally)> {
        let valid = |id: &&Arc<RuleId>| self.rules.get(*id).is_some_and(|state| state.rule.is_ok());
        let mut tallies: BTreeMap<_, _> = rules
            .iter()
            .filter(valid)
            .map(|id| (id.clone(), Tally::default()))
            .collect();
        // A ClusterReplication may have copies anywhere.
        let places: BTreeSet<Arc<str>> = if tallies.keys().any(|id| id.namespace.is_none()) {
            self.namespaces.keys().cloned().collect()
        } else {
            tallies.keys().flat_map(|id| self.places(id)).collect()
        };
        for (name, namespace) in places
            .iter()
            .filter_map(|name| self.namespaces.get_key_value(name))
        {
            effort.counted += u64::try_from(namespace.copies.len()).unwrap_or(u64::MAX);
            for copy in &namespace.copies {
                if let Some(id) = self.projections.owner(copy)
                    && let Some(tally) = tallies.get_mut(id)
                    && let Some(standing) = self.standing(id, (name, namespace), copy)
                {
                    let kind = || self.kind_of(copy.kind).to_owned();
                    tally.count(|| (name.clone(), kind(), copy.name.clone()), standing);
                }
            }
            for (id, blocked) in &namespace.blocked {
                let Some(tally) = tallies.get_mut(id) else {
                    continue;
                };
                for ((kind, copy_name), copy) in blocked {
                    let standing = Standing::blocked(copy.reason(), copy.message(id, name));
                    let kind = || self.kind_of(*kind).to_owned();
                    tally.count(|| (name.clone(), kind(), copy_name.clone()), standing);
                }
            }
        }
        let tally = |id| {
            let tally = tallies.remove(&id).unwrap_or_default();
            (id, tally)
        };
        rules.into_iter().map(tally).collect()
    }

    /// Returns the state of a copy for this rule. `None`: the rule wants no copy there and has none
    /// there.
    pub(crate) fn standing<'a>(
        &'a self,
        id: &RuleId,
        (name, namespace): (&str, &Namespace),
        copy: &'a CopyState,
    ) -> Option<Standing<'a>> {
        let projection = self.projections.wanted(copy);
        let wanted = projection.is_some_and(|projection| *projection.rule == *id);
        let own = |seen: &Seen| seen.rule.as_deref() == Some(id) && !seen.elsewhere;
        let left_behind = copy.want.is_none() && namespace.alive() && copy.ours().is_some_and(own);
        (wanted || left_behind).then(|| Standing {
            wanted,
            outlook: copy.verdict.outlook,
            failure: failure((id, name), copy),
        })
    }

    pub(crate) fn kind_of(&self, kind: KindId) -> &str {
        &self.kinds[kind].group_kind.kind
    }

    /// Counts the copies that a rule lacks grants for. The count is the same whether their
    /// namespaces exist or not.
    pub(crate) fn tally_not_granted(&self, rule: &Rule, tally: &mut Tally) {
        let Some(home) = rule.id.namespace.as_deref() else {
            return;
        };
        let copies = self.ungranted_copies(rule, None);
        let count = i32::try_from(copies.len()).unwrap_or(i32::MAX);
        tally.copies.desired += count;
        if !self.grants_known() {
            return; // The copies may be correct.
        }
        tally.copies.failed += count;
        // A status never shows more than these.
        for ((namespace, kind, name), lack) in copies.into_iter().take(FAILURES) {
            let copy = (namespace.into(), kind.to_owned(), name.into());
            tally
                .failures
                .insert(copy, (FailureReason::NotGranted, lack.message(home).into()));
        }
    }
}

impl Standing<'_> {
    /// The state of a copy that the rule cannot have, mostly because another rule has it.
    pub(crate) fn blocked(reason: FailureReason, message: String) -> Self {
        let outlook = if reason == FailureReason::RuleConflict {
            Outlook::Conflict
        } else {
            Outlook::Open
        };
        Self {
            wanted: true,
            outlook,
            failure: Some((reason, message.into())),
        }
    }
}

/// Returns the failure of a copy. It is the result of the last request. Without one, a wanted copy
/// fails if the present object is being deleted and still exists.
fn failure<'a>(
    (rule, namespace): (&RuleId, &str),
    copy: &'a CopyState,
) -> Option<(FailureReason, Cow<'a, str>)> {
    let deleting = copy.seen().is_some_and(|seen| seen.deleting);
    let going = deleting && copy.verdict.outlook == Outlook::Conflict;
    match &copy.failure {
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
