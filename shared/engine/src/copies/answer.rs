//! Applies an answer of the API server to its copy.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use mimeo_model::{
    choices::ConflictPolicy,
    id::{KindId, ProjectionId, RuleId},
    kind::GroupKind,
    meta::Seen,
    outcome::{FailureReason, Outcome},
    ownership::content_is_ours,
    selection::Place,
};

use crate::{
    Effects, Index, Notice,
    clock::Tick,
    copy::{Baseline, Content, CopyState, Observation, Phase, Reference, Repair, Why},
    events::EventReason,
    projection::Projection,
    request::{Request, Verb},
    work::{Timer, delay},
};

impl Index {
    /// Returns the projection of a request, if it still has the content that it had when the request
    /// was sent.
    fn unchanged(&mut self, request: &Request) -> Option<(ProjectionId, &mut Projection)> {
        let id = request.projection?;
        let projection = self.projections.get_mut(&id)?;
        let same = projection
            .rendering
            .as_ref()
            .is_ok_and(|copies| Some(copies.checksum) == request.copies);
        same.then_some((id, projection))
    }

    /// Records which fields a correct copy owns, unless that is known. Copies may wait for it.
    fn learn(&mut self, request: &Request, entry: u64) {
        let Some((_, projection)) = self.unchanged(request) else {
            return;
        };
        let former = projection.reference;
        if !matches!(
            former,
            Reference::Unknown | Reference::Wanted | Reference::Asked
        ) {
            return;
        }
        projection.reference = Reference::Known(entry);
        projection.failed_dry_runs = 0;
        if former != Reference::Unknown {
            let rule = projection.rule.clone();
            self.replan_rule(&rule);
        }
    }

    /// Allows another dry run for a projection. The API server may be able to answer by now, or the
    /// object of another copy may get an answer.
    pub(crate) fn ask_reference(&mut self, id: ProjectionId) {
        if let Some(projection) = self.projections.get_mut(&id)
            && projection.reference == Reference::Asked
        {
            projection.reference = Reference::Unknown;
            let rule = projection.rule.clone();
            self.replan_rule(&rule);
        }
    }

    /// Records that the object was deleted or never existed. An object that the watch has shown
    /// since the request stays. If it is gone, too, the watch will soon show that.
    fn take_absence(&mut self, request: &Request, copy: &mut CopyState) {
        let (uid, _) = request.verb.expects();
        let known = |seen: &Seen| match request.verb {
            Verb::Look => Some(seen.version) == request.version,
            _ => Some(seen.uid) == uid,
        };
        if copy.seen().is_some_and(|seen| !known(seen)) {
            return;
        }
        if let Verb::Delete(_, version) = request.verb {
            if let Some(rule) = copy.rule() {
                self.synced(rule);
            }
            // A listing from before the deletion may still arrive.
            copy.unseen = copy.unseen.max(version);
        }
        copy.observed = Observation::Absent;
        copy.leaving = false;
        copy.stuck = false;
        copy.baseline = None;
        copy.failure = None;
        copy.approved = None;
    }

    /// Reads the metadata of an object of this kind. `None`: its uid is not a UUID.
    pub(crate) fn read(&self, meta: &ObjectMeta, kind: KindId) -> Option<Seen> {
        let mut seen = Seen::read(meta, &self.kinds[kind].group_kind, &self.settings.cluster)?;
        seen.rule = seen.rule.map(|rule| self.rule_name(&rule));
        Some(seen)
    }

    /// True if Mimeo may delete an object that it cannot change, and create it again. The object
    /// must be Mimeo's copy, or the rule must say `Overwrite`. Other objects must not depend on
    /// objects of the kind: the deletion of a workload, a volume or a Service would take its
    /// dependants along.
    fn replaces(&self, copy: &CopyState) -> bool {
        let GroupKind { group, kind } = &self.kinds[copy.kind].group_kind;
        let harmless = matches!(
            (&**group, &**kind),
            ("", "Secret" | "ConfigMap") | ("rbac.authorization.k8s.io", "RoleBinding")
        );
        let owner = self.projections.owner(copy);
        let rule = owner.and_then(|id| self.valid(id));
        let given = copy.ours().is_some()
            || rule.is_some_and(|rule| rule.conflict == ConflictPolicy::Overwrite);
        harmless && given && self.settings.keeps_copies()
    }

    /// True if the request still has the content that its copy wants.
    fn asked_for(&self, request: &Request, place: Place<'_>, copy: &CopyState) -> bool {
        let projection = self.projections.wanted(copy);
        let checksum = projection.and_then(|projection| projection.checksum_at(place));
        copy.want == request.projection && checksum == request.checksum()
    }

    /// Records that a copy of the rule was written or deleted.
    fn synced(&mut self, rule: &RuleId) {
        if let Some(state) = self.rules.get_mut(rule) {
            state.status.synced = true;
            state.status.mark_due();
        }
    }
}

impl Index {
    /// Takes the answer to a request.
    pub(crate) fn outcome(&mut self, request: &Request, outcome: Outcome, effects: &mut Effects) {
        effects.work.untidy = true;
        self.take_lesson(request, &outcome, effects);
        let Some(mut namespace) = self.namespaces.remove(&request.namespace) else {
            return;
        };
        if let Ok(at) = namespace.position(request.kind, &request.name) {
            let copy = &mut namespace.copies[at];
            if copy.phase == Phase::InFlight(request.serial) {
                copy.phase = Phase::Idle;
                if matches!(request.verb, Verb::Delete(..)) {
                    copy.leaving = matches!(
                        outcome,
                        Outcome::Unavailable { .. }
                            | Outcome::Object(_)
                            | Outcome::Conflict
                            | Outcome::Differs
                    );
                }
                // The status of the rule that the copy belongs to is due now. Planning marks the
                // status of the rule that the copy belongs to next.
                self.mark_status_of(copy);
                let place = Place {
                    name: &namespace.name,
                    labels: &namespace.labels,
                };
                if matches!(outcome, Outcome::Object(_)) {
                    self.measure(request, namespace.labelled, effects);
                }
                self.take_in(request, outcome, place, copy, effects);
                if let Some(rule) = copy.rule() {
                    self.consent.note_copy_in(rule, &request.namespace);
                }
                self.note_created(&mut namespace, at);
                self.dirty.insert(request.namespace.clone());
            }
        }
        self.namespaces.insert(request.namespace.clone(), namespace);
    }

    /// Uses the answer of a dry run for its projection, even if the copy has changed since. The
    /// other copies of the projection wait for this answer.
    fn take_lesson(&mut self, request: &Request, outcome: &Outcome, effects: &mut Effects) {
        if !matches!(request.verb, Verb::Learn(_)) {
            return;
        }
        let entry = match outcome {
            Outcome::Object(meta) => self.read(meta, request.kind).and_then(|seen| seen.entry),
            _ => None,
        };
        if let Some(entry) = entry {
            self.learn(request, entry);
        } else if let Some((id, projection)) = self.unchanged(request)
            && projection.reference == Reference::Asked
        {
            // If every copy asked again at once, each answer would plan all other copies. The
            // reference stays `Asked` until the timer fires.
            let failed = projection.failed_dry_runs;
            projection.failed_dry_runs = failed.saturating_add(1);
            let due = self.now + delay(&self.settings, failed);
            effects.work.timer(due, Timer::Learn(id));
        }
    }

    fn take_in(
        &mut self,
        request: &Request,
        outcome: Outcome,
        place: Place<'_>,
        copy: &mut CopyState,
        effects: &mut Effects,
    ) {
        let gone = matches!(
            (request.verb, &outcome),
            (Verb::Delete(..), Outcome::Absent | Outcome::Object(_))
        );
        if gone && copy.stuck {
            self.report(EventReason::CopyRecreated, request, copy, effects);
        }
        match (request.verb, outcome) {
            (
                Verb::Compare(uid, version),
                compared @ (Outcome::Object(_) | Outcome::Differs | Outcome::Immutable(_)),
            ) => {
                let observed = copy.seen().map(|seen| (seen.uid, seen.version));
                if observed == Some((uid, version)) && self.asked_for(request, place, copy) {
                    copy.content = match compared {
                        Outcome::Object(meta) if content_is_ours(&meta) => Content::Same,
                        _ => Content::Other,
                    };
                }
            }
            (_, Outcome::Object(meta)) => {
                let Some(seen) = self.read(&meta, request.kind) else {
                    return;
                };
                self.remember_origin(&seen, &meta);
                self.take_object(request, seen, copy, effects);
            }
            (verb, Outcome::Conflict | Outcome::Differs) => refute(verb, copy),
            (_, Outcome::Absent) => self.take_absence(request, copy),
            // The refused content is no longer wanted.
            (_, Outcome::Refused(_) | Outcome::Immutable(_))
                if !self.asked_for(request, place, copy) => {}
            // To delete the object and create it again, Mimeo must first read it.
            (Verb::Apply(uid), Outcome::Immutable(_))
                if copy.observed == Observation::Hidden(uid) =>
            {
                copy.observed = Observation::Taken(Some(uid));
            }
            // A claim writes the former content. The API server may by now refuse that content and
            // accept only the new one. So the apply follows without a claim.
            (Verb::Claim(..), Outcome::Refused(_) | Outcome::Immutable(_))
                if request.why != Some(Why::Shared) =>
            {
                copy.repair = Repair::Claimed;
            }
            // For a dry run too this answer means a wrong object: the API server would accept the
            // same content in a correct copy.
            (Verb::Apply(_) | Verb::Take(..) | Verb::Learn(_), Outcome::Immutable(_))
                if self.replaces(copy) =>
            {
                copy.stuck = true;
            }
            (verb, Outcome::Refused(failure) | Outcome::Immutable(failure)) => {
                // An object that Mimeo doesn't own may change or disappear unseen, so its refusal
                // may end at any time.
                let lasting = !matches!(verb, Verb::Take(..) | Verb::Compare(..));
                let hopeless = lasting
                    && matches!(
                        failure.reason,
                        FailureReason::Invalid | FailureReason::TooLarge
                    );
                // Nothing was written, so no other client can have undone it.
                copy.repaired = 0;
                self.fail(&request.namespace, copy, failure, effects);
                // The API server answers the same bytes in the same way until the cause changes: a
                // schema, a limit, or the owner of a port.
                let at_least = hopeless.then_some(self.settings.backoff_limit);
                effects
                    .work
                    .back_off(&request.namespace, copy, at_least, self);
            }
            (_, Outcome::NamespaceGone | Outcome::NotServed) => {
                // The watch of namespaces or the discovery will show that soon. Until then Mimeo
                // reports no failure.
                effects
                    .work
                    .back_off(&request.namespace, copy, Some(Duration::from_secs(1)), self);
            }
            (
                _,
                Outcome::Unavailable {
                    retry_after,
                    failure,
                },
            ) => {
                copy.repaired = 0;
                self.fail(&request.namespace, copy, failure, effects);
                effects
                    .work
                    .back_off(&request.namespace, copy, retry_after, self);
            }
        }
    }

    /// Records how long a source's change took to reach this copy, if the request wrote that
    /// change. If the namespace's labels changed later than the source, the copy may have been
    /// written for the labels. So the time counts from the later change, and a user that may change
    /// labels cannot make copies look late.
    fn measure(&mut self, request: &Request, labelled: Tick, effects: &mut Effects) {
        let written = matches!(request.verb, Verb::Apply(_) | Verb::Take(..))
            && request.why == Some(Why::Changed);
        if written
            && let Some((_, projection)) = self.unchanged(request)
            && let Some(renewed) = projection.renewed
        {
            let kind = projection.rule.kind;
            let lag = self.now.saturating_sub(renewed.max(labelled));
            effects.notices.push(Notice::CopyLag { kind, lag });
        }
    }

    fn take_object(
        &mut self,
        request: &Request,
        seen: Seen,
        copy: &mut CopyState,
        effects: &mut Effects,
    ) {
        if let Verb::Learn(_) = request.verb {
            // Mimeo no longer owns the object. The watch will show that.
            if seen.entry.is_none() {
                effects.work.back_off(&request.namespace, copy, None, self);
            }
            return;
        }
        self.shown += 1;
        copy.shown = self.shown;
        copy.leaving &= seen.deleting;
        match request.verb {
            // The answers to dry runs have been used before.
            Verb::Learn(_) | Verb::Compare(..) => {}
            Verb::Create | Verb::Apply(_) | Verb::Take(..) => {
                copy.stuck &= request.verb != Verb::Create;
                if let Some(entry) = seen.entry.filter(|_| seen.checksum == request.checksum()) {
                    self.learn(request, entry);
                }
                // The watch event for this write may have arrived before the answer. So the answer
                // is compared with the resourceVersion that was observed when the request was sent.
                let written = request.version != Some(seen.version);
                let (mut baseline, checksum) = (Baseline::right(&seen), seen.checksum);
                let was_refused = copy.refused();
                copy.failure = None;
                copy.verify = false;
                if !written {
                    // No client had undone a write.
                    copy.repaired = 0;
                }
                if copy.repaired == 0 || was_refused {
                    copy.streak = 0;
                }
                if matches!(request.why, Some(Why::Adopted | Why::Overwritten)) {
                    self.report(EventReason::CopyAdopted, request, copy, effects);
                }
                // A client that only moved the resourceVersion, such as a storage migration, has
                // edited nothing.
                if written {
                    if request.reverts {
                        self.report(EventReason::EditReverted, request, copy, effects);
                    }
                    // The watch shows a lost label in the same way as a deletion. But then the
                    // object still exists, and the API server refuses a create.
                    if (request.verb, request.why) == (Verb::Create, Some(Why::Vanished)) {
                        self.report(EventReason::CopyRestored, request, copy, effects);
                    }
                }
                // If another client removed entries from `managedFields`, only an apply shows the
                // fields without an owner. Fields that others own after a claim were added since,
                // so they don't begin a new repair.
                let begun = copy.repair != Repair::Claimed
                    && seen.claims().has_excess(self.exclusive(copy));
                copy.repair = if begun { Repair::Begun } else { Repair::None };
                copy.show(seen);
                // The watch may already have shown a later change of the object.
                baseline.rewritten = copy.seen().is_some_and(|now| now.checksum != checksum);
                copy.baseline = Some(baseline);
                if written && let Some(rule) = &request.rule {
                    self.synced(rule);
                }
            }
            Verb::Claim(..) => {
                if request.reverts {
                    self.report(EventReason::EditReverted, request, copy, effects);
                }
                copy.repair = Repair::Claimed;
                copy.show(seen);
            }
            // A copy with finalizers outlives its deletion for a while.
            Verb::Delete(..) => {
                copy.show(seen);
            }
            Verb::Look => {
                // No write may follow, so this answer is the one that ends an outage.
                if copy.failed().is_some_and(FailureReason::is_silence) {
                    copy.failure = None;
                }
                // The read found an object, but the watch lost it before the answer arrived. The
                // next request will show the present object.
                if !copy.show(seen) && copy.seen().is_none() {
                    copy.observed = Observation::Unknown;
                }
            }
        }
    }

    /// Reports the effect of a request with the next Event of the rule that the copy's numbers count
    /// for.
    fn report(
        &self,
        cause: EventReason,
        request: &Request,
        copy: &CopyState,
        effects: &mut Effects,
    ) {
        if let Some(rule) = self.projections.owner(copy) {
            let copy = (copy.key(&request.namespace), request.editor.clone());
            effects.events.add(rule, cause, Some(copy), self);
        }
    }
}

/// Records that the object isn't the one that the request expected. Mimeo must read it, unless the
/// watch has shown it since.
fn refute(verb: Verb, copy: &mut CopyState) {
    let (uid, version) = verb.expects();
    let refuted = copy.seen().is_none_or(|seen| {
        Some(seen.uid) == uid && version.is_none_or(|version| version == seen.version)
    });
    if !refuted {
        return;
    }
    copy.observed = match (verb, &copy.observed) {
        (Verb::Create, Observation::Vanished(uid)) => Observation::Hidden(*uid),
        _ => Observation::Taken(copy.ours().map(|seen| seen.uid)),
    };
    if matches!(verb, Verb::Claim(..)) {
        copy.repair = Repair::None;
    }
    // The object may be a different one by now, which the API server lets Mimeo change.
    copy.stuck = false;
    copy.baseline = None;
}
