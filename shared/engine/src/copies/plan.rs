//! Goes over the namespaces that changed, copy by copy.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use mimeo_model::{
    id::RuleId,
    meta::Checksum,
    outcome::{Failure, FailureReason},
    rule::Rule,
};

use crate::{
    Effects, Index, Namespace,
    copy::{Baseline, CopyState, Leave, Phase, Reference, Step, Why},
    jobs::JobKey,
    work::Timer,
};

/// A namespace with at least this many copies is crowded: it is planned less often.
const CROWD: usize = 256;
/// The pause of a crowded namespace after a plan, for each of its copies. It is about ten times the
/// duration of the plan.
const REST: Duration = Duration::from_micros(20);

impl Index {
    /// Returns the active rule that wants the copy.
    pub(crate) fn acting_for(&self, copy: &CopyState) -> Option<&Rule> {
        self.acting(&self.projections.wanted(copy)?.rule)
    }

    /// Returns the resync period of a copy, if its rule may write the copy.
    fn resync_of(&self, copy: &CopyState) -> Option<Duration> {
        let rule = self.acting_for(copy)?;
        rule.resync.filter(|_| self.settings.keeps_copies())
    }

    /// Marks the status of the rule whose numbers include this copy as due.
    pub(crate) fn mark_status_of(&mut self, copy: &CopyState) {
        let owner = self.projections.owner(copy);
        if let Some(state) = owner.and_then(|id| self.rules.get_mut(id)) {
            state.status.mark_due();
        }
    }

    pub(crate) fn mark_all_statuses_due(&mut self) {
        let states = self.rules.values_mut();
        states.for_each(|state| state.status.mark_due());
    }

    /// Marks a rule's status as due.
    pub(crate) fn mark_status_due(&mut self, id: &RuleId) {
        if let Some(state) = self.rules.get_mut(id) {
            state.status.mark_due();
        }
    }
}

impl Index {
    /// Plans a namespace that changed, unless it is crowded and must wait for that. A tenant may
    /// have many rules in one namespace. If each change of one of them planned all of their copies
    /// at once, the engine would have no time for other namespaces.
    pub(crate) fn plan(&mut self, name: &Arc<str>, effects: &mut Effects) {
        if let Some(namespace) = self.namespaces.get_mut(name)
            && namespace.copies.len() >= CROWD
            && namespace.pending_label.is_none()
        {
            if self.now < namespace.rests {
                namespace.behind = true;
                effects
                    .work
                    .timer(namespace.rests, Timer::Namespace(name.clone()));
                return;
            }
            let copies = u32::try_from(namespace.copies.len()).unwrap_or(u32::MAX);
            namespace.rests = self.now + REST.saturating_mul(copies);
        }
        self.plan_namespace(name, effects);
    }

    /// Plans a namespace, even one that must wait for its next plan.
    pub(crate) fn plan_namespace(&mut self, name: &Arc<str>, effects: &mut Effects) {
        effects.effort.planned += 1;
        let Some(mut namespace) = self.namespaces.remove(name) else {
            return;
        };
        namespace.behind = false;
        self.assign(&mut namespace, effects);
        // Wanted copies come first: the decision about an unwanted copy depends on whether the
        // wanted copies exist.
        for wanted in [true, false] {
            for index in 0..namespace.copies.len() {
                if namespace.copies[index].want.is_some() == wanted {
                    self.consider(&mut namespace, index, effects);
                }
            }
        }
        // A webhook replica watches no copies, so it forgets a copy once no rule wants it.
        let keeps = self.settings.keeps_copies();
        let known = |copy: &CopyState| keeps && (copy.seen().is_some() || copy.out_of_sight());
        namespace
            .copies
            .retain(|copy| copy.want.is_some() || known(copy) || !copy.settled());
        if namespace.pending_label.is_some() && self.held_by_nothing(&namespace) {
            effects.jobs.ask(JobKey::RemoveLabel(name.clone()));
        }
        self.plan_created(&mut namespace, effects);
        namespace.changed = effects.changes.next();
        if namespace.uid.is_some() || !namespace.copies.is_empty() {
            self.namespaces.insert(name.clone(), namespace);
        }
    }

    /// Decides the next step for one copy and queues the copy if a request is needed.
    fn consider(&mut self, namespace: &mut Namespace, index: usize, effects: &mut Effects) {
        let copy = &namespace.copies[index];
        if self.kinds.known && copy.ours().is_some() && !self.kinds[copy.kind].may_have_copies() {
            // The kind was removed from the `ConfigMap` `mimeo-kinds` while the copy was being
            // written.
            self.record(copy.kind, effects);
        }
        let (verdict, needs) = self.decide(namespace, copy);
        effects.effort.decided += 1;
        let step = verdict.step;
        let key = copy.key(&namespace.name);
        // The copy may be lost.
        let open = matches!(step, Step::Leave(Leave::Undecided) | Step::Look);
        // Only a collected loss ends here. A released copy counts until a rule wants it again.
        if !open && self.losses.get(&key).is_some() {
            self.forgive(&key);
        }
        let waits = !needs.is_empty();
        let failure = self.meet(needs, &key, effects);
        let urgent = namespace.pending_label.is_some();
        let copy = &mut namespace.copies[index];
        if copy.verdict.outlook != verdict.outlook {
            self.mark_status_of(copy);
        }
        copy.verdict = verdict;
        copy.approved = copy.approved.filter(|why| step.may_be_for(*why));
        if let Step::Leave(why) = step {
            if copy.phase == Phase::Queued {
                copy.phase = Phase::Idle;
            }
            // A deletion may have failed, and is no longer due.
            if why == Leave::Undecided && copy.want.is_none() && !waits {
                copy.failure = None;
            }
            self.settle(&namespace.name, copy, (why, failure), effects);
            return;
        }
        let projection = self.projections.wanted(copy);
        if step == Step::Learn
            && projection.is_some_and(|projection| projection.reference == Reference::Asked)
        {
            return; // A request of another copy asks already.
        }
        if copy.phase == Phase::Idle {
            copy.phase = Phase::Queued;
            let rule = self.rule_of(copy);
            let home = rule.as_ref().and_then(|rule| rule.namespace.as_deref());
            effects.work.queue(&namespace.name, copy, urgent, home);
        }
        self.mark_status_of(copy);
    }

    /// Records that a copy needs no request now, and why.
    fn settle(
        &mut self,
        name: &Arc<str>,
        copy: &mut CopyState,
        (why, failure): (Leave, Option<Failure>),
        effects: &mut Effects,
    ) {
        let keeps = self.settings.keeps_copies();
        let reads_again = copy.phase == Phase::Idle
            && match why {
                // An object that Mimeo doesn't own may lack the label that the watch selects by. So
                // Mimeo reads it again from time to time.
                Leave::Foreign(_) => true,
                // No watch will show the end of this object.
                Leave::Deleting => copy.seen().is_some_and(|seen| seen.unwatched(keeps)),
                _ => false,
            };
        match why {
            Leave::UpToDate => {
                self.remind_of_resync(name, copy, effects);
                let before = (copy.baseline, copy.failure.take());
                copy.baseline = copy.seen().map(Baseline::right);
                if before == (copy.baseline, None) {
                    return;
                }
            }
            Leave::Unfillable | Leave::Reserved => {
                if let Some(failure) = failure {
                    self.fail(name, copy, failure, effects);
                }
            }
            Leave::Foreign(why) if reads_again => {
                let failure = Failure {
                    reason: FailureReason::Conflict,
                    message: why.message().into(),
                };
                self.fail(name, copy, failure, effects);
            }
            Leave::KindNotRecorded => self.record(copy.kind, effects),
            // A request follows now or soon. Until then users still see the last failure.
            Leave::Foreign(_) | Leave::NotListed | Leave::Undecided => {}
            _ => copy.failure = None,
        }
        if reads_again {
            effects.work.back_off(name, copy, None, self);
        }
        // An unwanted copy counts for the rule that wrote it.
        self.mark_status_of(copy);
    }

    /// Sets the timer for the next verification of a copy, at the end of the rule's resync period.
    /// The namespace and name determine a copy's moment in the period, so the copies are not all
    /// verified at once. The moment is always the same. So the copy has one timer, however often a
    /// plan finds it correct.
    fn remind_of_resync(
        &mut self,
        namespace: &Arc<str>,
        copy: &mut CopyState,
        effects: &mut Effects,
    ) {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let due = self.resync_of(copy).and_then(|period| {
            let (now, period) = (millis(self.now), millis(period));
            let copy = format!("{namespace}/{}", copy.name);
            let moment = Checksum::of(copy.as_bytes()).short() % period;
            let periods = (now + period - moment) / period;
            NonZeroU64::new(moment + period.saturating_mul(periods))
        });
        effects.work.remind(namespace, copy, due);
    }
}

impl Step {
    /// True if the step deletes the copy for this loss, or may still do so. An approval for a loss
    /// that was undone must not count for the next loss.
    fn may_be_for(self, loss: Why) -> bool {
        match self {
            Self::Delete(why) => why == loss,
            Self::Leave(why) => matches!(why, Leave::Undecided | Leave::Deleting),
            Self::Look => true,
            _ => false,
        }
    }
}

impl CopyState {
    /// True if no request about the copy is queued or in flight.
    pub(crate) fn settled(&self) -> bool {
        !matches!(self.phase, Phase::Queued | Phase::InFlight(_))
    }
}
