//! Decides the next step for one copy. Each step for a copy is decided here. `may_go` says whether
//! the step may be a deletion.

use std::sync::Arc;

use mimeo_model::{
    choices::Strategy,
    id::{ProjectionId, RuleId, RuleKind},
    known::Known,
    meta::Checksum,
    outcome::{Failure, FailureReason},
    rule::Rule,
};

use crate::{
    Index, Namespace, RuleState,
    absent::HowGone,
    copy::{CopyState, Leave, Observation, Spared, Step, Why},
    jobs::JobKey,
    projection::{NoRendering, Projection},
    verdict::{Need, Needs, Outlook, Verdict},
    wants::taken,
};

impl Index {
    /// Returns the verdict about one copy in the present situation, and what must be done before
    /// the verdict can change.
    pub(crate) fn decide(&self, namespace: &Namespace, copy: &CopyState) -> (Verdict, Needs) {
        let mut needs = Needs::new();
        if !namespace.alive() {
            // The copies of a terminating namespace are deleted with it, and the API server accepts
            // no creates there.
            return (Verdict::default(), needs);
        }
        let verdict = match copy.want {
            Some(id) => self.decide_wanted(id, namespace, copy, &mut needs),
            None => self.decide_unwanted(namespace, copy, &mut needs),
        };
        let mut verdict = verdict.unwrap_or_default();
        match verdict.step {
            // A copy that is created once belongs to its namespace.
            Step::Leave(Leave::CreatedOnce) => {}
            // A write would show whether the copy still exists. If no write follows, a read must
            // show it. Otherwise Mimeo could not recognise the copy later, when it must delete the
            // copy.
            Step::Leave(_) if self.settings.keeps_copies() && copy.out_of_sight() => {
                verdict.step = Step::Look;
            }
            _ => {}
        }
        if !self.settings.keeps_copies() {
            // A webhook replica leaves deletions, and the questions before them, to the reconciler.
            needs.retain(|need| !matches!(need, Need::Absence(..) | Need::Loss(..)));
            if matches!(verdict.step, Step::Delete(_)) {
                verdict.step = Step::Leave(Leave::Undecided);
            }
        }
        (verdict, needs)
    }

    fn decide_wanted(
        &self,
        id: ProjectionId,
        namespace: &Namespace,
        copy: &CopyState,
        needs: &mut Needs,
    ) -> Option<Verdict> {
        let projection = self.projections.get(&id)?;
        let rule_id = &projection.rule;
        let state = self.rules.get(rule_id)?;
        let Some(rule) = state.valid() else {
            return Some(Verdict::open(Step::Leave(Leave::Suspended)));
        };
        let aim = self.aim(projection, rule, namespace, copy, needs);
        if aim == Step::Learn {
            needs.push(Need::Reference(id));
        }
        let fate = match aim {
            Step::Leave(Leave::NoSource) => self.sourceless(projection, rule, copy),
            _ => Err(Leave::NoSource),
        };
        let reserved = match aim {
            Step::Leave(_) => None,
            _ => self.reserved_for(rule_id, copy),
        };
        let outlook = match aim {
            Step::Leave(Leave::UpToDate | Leave::CreatedOnce)
            | Step::Learn
            | Step::Apply(Why::Resync) => Outlook::Right,
            Step::Leave(Leave::NoSource) if fate.is_ok() => Outlook::Delete,
            Step::Leave(Leave::Foreign(_) | Leave::Deleting) => Outlook::Conflict,
            Step::Leave(Leave::Unfillable) => Outlook::Unfillable,
            Step::Apply(_) | Step::Claim(_) if reserved.is_some() => Outlook::Conflict,
            Step::Create(_) => Outlook::Create,
            Step::Apply(_) | Step::Claim(_) | Step::Take(_) => Outlook::Update,
            Step::Leave(_) | Step::Compare | Step::Look | Step::Delete(_) => Outlook::Open,
        };
        let step = match self.step_towards(aim, (projection, state), namespace, copy) {
            Step::Leave(Leave::NoSource)
                if fate.is_err() || self.left_by_the_platform(rule_id, copy, needs) =>
            {
                self.may_go(fate, rule_id, namespace, copy, needs)
                    .map_or_else(Step::Leave, Step::Delete)
            }
            // A read must show first how the former rule went. Meanwhile the loss stays collected.
            Step::Leave(Leave::NoSource) => Step::Leave(Leave::Undecided),
            step @ Step::Leave(_) => step,
            _ if let Some(winner) = reserved => {
                needs.push(Need::Failure(Failure {
                    reason: FailureReason::RuleConflict,
                    message: taken(winner, rule_id, &namespace.name).into(),
                }));
                Step::Leave(Leave::Reserved)
            }
            step if self.in_charge(namespace)
                && self.left_by_the_platform(rule_id, copy, needs) =>
            {
                step
            }
            _ => Step::Leave(Leave::Undecided),
        };
        Some(Verdict { step, outlook })
    }

    /// Returns the verdict about a copy that no rule wants (any more).
    fn decide_unwanted(
        &self,
        namespace: &Namespace,
        copy: &CopyState,
        needs: &mut Needs,
    ) -> Option<Verdict> {
        if matches!(copy.observed, Observation::Taken(_)) && self.settings.keeps_copies() {
            return Some(Verdict::open(Step::Look));
        }
        let id = copy.rule()?;
        let fate = self.fate(namespace, copy);
        let outlook = if fate.is_ok() {
            Outlook::Delete
        } else {
            Outlook::Open
        };
        let step = self
            .may_go(fate, id, namespace, copy, needs)
            .map_or_else(Step::Leave, Step::Delete);
        Some(Verdict { step, outlook })
    }

    /// Returns the `ClusterReplication` whose copy has the place of this rule's copy although the
    /// `ClusterReplication` is inactive: its spec is refused, so its wishes are unknown, or it is
    /// suspended, and a Replication takes nothing from a suspended `ClusterReplication`.
    pub(crate) fn reserved_for<'a>(
        &self,
        rule: &RuleId,
        copy: &'a CopyState,
    ) -> Option<&'a Arc<RuleId>> {
        let former = copy.platforms(rule)?;
        let rests = match &self.rules.get(former)?.rule {
            Err(_) => true,
            Ok(former) => rule.kind == RuleKind::Replication && former.suspend,
        };
        rests.then_some(former)
    }

    /// True if the `ClusterReplication`s leave the copy to this rule. They come before
    /// Replications, and their wishes are unknown until all of them are listed. So the copy of a
    /// `ClusterReplication` passes to another rule only where Mimeo might delete it, too.
    fn left_by_the_platform(&self, rule: &RuleId, copy: &CopyState, needs: &mut Needs) -> bool {
        let tenants = rule.kind == RuleKind::Replication;
        let rules = self.rule_watch(RuleKind::ClusterReplication).known();
        if tenants && !matches!(rules, Known::Listed(()) | Known::Unserved) {
            return false;
        }
        let Some(former) = copy.platforms(rule) else {
            return true;
        };
        match self.rules.get(former) {
            Some(state) if tenants => state.acting().is_some(),
            Some(state) => state.rule.is_ok(),
            None if !tenants && !rules.is_listed() => false,
            // To another `ClusterReplication` the copy passes as soon as a read shows that the
            // former rule does not exist. Otherwise no rule could take over the copies of a rule
            // that was lost.
            None => self
                .how_gone(JobKey::ConfirmRule(former.clone()), copy, needs)
                .is_some_and(|how| how == HowGone::Deleted || !tenants),
        }
    }

    /// True if this process may write into the namespace now.
    pub(crate) fn in_charge(&self, namespace: &Namespace) -> bool {
        let keeps = self.settings.keeps_copies();
        let from = match &namespace.pending_label {
            Some(label) if !keeps => label.charge,
            // A namespace with the pending label belongs to the webhook for a while. A second
            // writer would only cost a second request.
            Some(label) => Some(label.since + self.settings.takeover),
            None => keeps.then_some(namespace.settles),
        };
        from.is_some_and(|from| self.now >= from)
    }

    /// Returns the step that may be taken now towards this aim: the rule may be inactive, or a fact
    /// may be missing.
    fn step_towards(
        &self,
        step: Step,
        (projection, state): (&Projection, &RuleState),
        namespace: &Namespace,
        copy: &CopyState,
    ) -> Step {
        if step == Step::Leave(Leave::CreatedOnce) {
            let shown = |rule: &Rule| copy.shows_created(rule.conflict);
            // Mimeo may have deleted the object. The namespace records a create-once copy for good,
            // so a read must first show that the object stays.
            let doubted = copy.leaving && state.acting().is_some_and(shown);
            return if doubted { Step::Look } else { step };
        }
        if matches!(step, Step::Leave(Leave::NoSource | Leave::SourceRefused)) {
            return step;
        }
        if self.kinds.resource(projection.gvk()).is_none() {
            return Step::Leave(Leave::KindNotServed);
        }
        if step == Step::Leave(Leave::Unfillable) {
            return step;
        }
        let kind = &self.kinds[projection.kind];
        let listed = kind.copies_known_in(&namespace.name) || !self.settings.keeps_copies();
        let step = if listed {
            step
        } else {
            Step::Leave(Leave::NotListed)
        };
        if state.acting().is_none() {
            // The preview of a suspended rule must tell a create from a conflict. Only a read can
            // do that.
            let known = matches!(copy.observed, Observation::Absent | Observation::Present(_));
            return match step {
                Step::Leave(Leave::NotListed) => step,
                _ if !self.settings.keeps_copies() => Step::Leave(Leave::Suspended),
                _ if !known => Step::Look,
                // Only the API server can tell whether an object would be adopted, or whether a
                // copy was changed while no watch was open. Both requests are dry runs.
                Step::Compare | Step::Learn => step,
                _ => Step::Leave(Leave::Suspended),
            };
        }
        if copy.stuck && matches!(step, Step::Apply(_) | Step::Take(_)) {
            return Step::Delete(Why::Replaced);
        }
        // Recording the kind while its copies are still being listed costs no time.
        let writes = matches!(
            step,
            Step::Create(_) | Step::Apply(_) | Step::Take(_) | Step::Claim(_)
        );
        if !kind.may_be_written() && (writes || step == Step::Leave(Leave::NotListed)) {
            return Step::Leave(Leave::KindNotRecorded);
        }
        step
    }

    /// Returns the step that gives the copy the state wanted by its projection, if the wishes of
    /// all rules allow it. The caller checks whether the rule is active, and whether the necessary
    /// facts are known.
    fn aim(
        &self,
        projection: &Projection,
        rule: &Rule,
        namespace: &Namespace,
        copy: &CopyState,
        needs: &mut Needs,
    ) -> Step {
        if self.created_once(rule, namespace, copy) {
            return Step::Leave(Leave::CreatedOnce);
        }
        match &projection.rendering {
            Ok(copies) => match copies.checksum_at(namespace.place()) {
                Ok(checksum) => self.compare(projection, checksum, rule, namespace, copy),
                Err(failure) => {
                    needs.push(Need::Failure(failure));
                    Step::Leave(Leave::Unfillable)
                }
            },
            Err(NoRendering::Refused(why)) if why.by_the_rule() => {
                needs.push(Need::Failure(why.failure()));
                Step::Leave(Leave::Unfillable)
            }
            Err(NoRendering::Refused(_)) => Step::Leave(Leave::SourceRefused),
            Err(_) => Step::Leave(Leave::NoSource),
        }
    }

    /// Returns the step that makes the copy hold its projection's rendering. The rule says how to
    /// treat an object that Mimeo doesn't own.
    fn compare(
        &self,
        projection: &Projection,
        checksum: Checksum,
        rule: &Rule,
        namespace: &Namespace,
        copy: &CopyState,
    ) -> Step {
        let exclusive = rule.strategy == Strategy::Replace;
        let step = copy.compare(checksum, projection.reference, rule.conflict, exclusive);
        match step {
            // All rules must be known before Mimeo writes over an object that it doesn't own. Any
            // of them may name the object as its source.
            Step::Take(_) | Step::Compare if !self.all_rules() => Step::Leave(Leave::Undecided),
            Step::Take(_) | Step::Compare if self.is_source(rule.id.kind, namespace, copy) => {
                Step::Leave(Leave::Foreign(Spared::Source))
            }
            // Each rule of a ring would have to rank above the next one, so no ring can form.
            _ if self.is_named_above(&projection.rule, namespace, copy) => {
                // With `strategy: CreateOnce` an existing object counts as the created copy.
                // Elsewhere the create request shows whether an object exists. No create is allowed
                // here, so a read shows it.
                let once = rule.strategy == Strategy::CreateOnce;
                if once && matches!(copy.observed, Observation::Unknown) {
                    Step::Look
                } else {
                    Step::Leave(Leave::Foreign(Spared::Named))
                }
            }
            _ => step,
        }
    }
}

impl CopyState {
    /// Returns the `ClusterReplication` that Mimeo's own copy here names, if it is not this rule.
    fn platforms(&self, rule: &RuleId) -> Option<&Arc<RuleId>> {
        self.rule()
            .filter(|former| former.kind == RuleKind::ClusterReplication && ***former != *rule)
    }
}
