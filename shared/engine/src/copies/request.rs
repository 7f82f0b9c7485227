//! Turns a decision into a request.

use std::{sync::Arc, time::Duration};

use mimeo_model::{
    choices::Strategy,
    id::{KindId, ProjectionId, RuleId},
    kind::{GroupVersionKind, Resource},
    meta::{Checksum, Seen, Uid},
    outcome::{Failure, FailureReason},
    render::Rendering,
    selection::Place,
};

use crate::{
    Effects, Index, Namespace,
    copy::{CopyKey, CopyState, Observation, Phase, Reference, Repair, Step, Why},
    kinds::namespaced,
    projection::Projection,
    work::delay,
};

/// One request about one copy.
#[derive(Clone, Debug)]
pub struct Request {
    /// Namespace of the copy.
    pub namespace: Arc<str>,
    /// Name of the copy.
    pub name: Arc<str>,
    /// The operation.
    pub verb: Verb,
    /// The reason for the change. `None`: the request changes nothing.
    pub why: Option<Why>,
    /// The resource of the API server to send the request to.
    pub resource: Resource,
    /// The object to write. `None`: the request writes no object.
    pub rendering: Option<Rendering>,
    /// True if no other manager may own a field of the copy.
    pub exclusive: bool,
    /// The rule that the request serves.
    pub rule: Option<Arc<RuleId>>,
    pub(crate) kind: KindId,
    pub(crate) serial: u32,
    pub(crate) projection: Option<ProjectionId>,
    /// Checksum of the projection's copies when the request was sent. It is the same for all
    /// namespaces.
    pub(crate) copies: Option<Checksum>,
    /// True if this request undoes a change of the copy by another client.
    pub(crate) reverts: bool,
    /// The field manager that made this change, if `managedFields` shows it.
    pub(crate) editor: Option<Box<str>>,
    /// The resourceVersion of the observed object when the request was sent.
    pub(crate) version: Option<u64>,
}

/// An operation of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Server-side apply that only creates.
    Create,
    /// Forced server-side apply to the object with this uid.
    Apply(Uid),
    /// Forced server-side apply to the object with this uid, if it still has this resourceVersion.
    Take(Uid, u64),
    /// Server-side apply of the content alone, without force and as a dry run, to the object with
    /// this uid and resourceVersion.
    Compare(Uid, u64),
    /// Forced server-side apply to the object with this uid, as a dry run.
    Learn(Uid),
    /// Read the object's metadata and write the `managedFields` that
    /// [`claim`](mimeo_model::ownership::claim) computes, if the object still has this uid and
    /// resourceVersion.
    Claim(Uid, u64),
    /// Read the object's metadata without a cache.
    Look,
    /// Delete the object with this uid, if it still has this resourceVersion.
    Delete(Uid, u64),
}

impl Request {
    /// Returns the checksum of the written rendering.
    pub(crate) fn checksum(&self) -> Option<Checksum> {
        self.rendering.as_ref().map(|rendering| rendering.checksum)
    }
}

impl Verb {
    /// The uid and the resourceVersion that the object must have, as far as they matter.
    pub(crate) fn expects(self) -> (Option<Uid>, Option<u64>) {
        match self {
            Self::Create | Self::Look => (None, None),
            Self::Apply(uid) | Self::Learn(uid) => (Some(uid), None),
            Self::Take(uid, version)
            | Self::Compare(uid, version)
            | Self::Claim(uid, version)
            | Self::Delete(uid, version) => (Some(uid), Some(version)),
        }
    }
}

/// A repair within this time after the last one belongs to the same fight with another client. Once
/// the pauses have grown longer than half of this time, the limit is twice the pause.
pub(crate) const FIGHT: Duration = Duration::from_mins(1);

impl Index {
    /// True if a copy may have no fields but Mimeo's (`strategy: Replace`).
    pub(crate) fn exclusive(&self, copy: &CopyState) -> bool {
        let projection = self.projections.wanted(copy);
        let rule = projection.and_then(|projection| self.valid(&projection.rule));
        rule.is_some_and(|rule| rule.strategy == Strategy::Replace)
    }

    /// Returns the resource that serves a kind, in the wanted version if possible, else in any
    /// version.
    pub(crate) fn resource(
        &self,
        kind: KindId,
        gvk: Option<&GroupVersionKind>,
    ) -> Option<Resource> {
        if let Some(resource) = gvk.and_then(|gvk| self.kinds.resource(gvk)) {
            return Some(resource.clone());
        }
        let group_kind = &self.kinds[kind].group_kind;
        let mut served = self
            .kinds
            .served
            .iter()
            .filter(|(gvk, _)| gvk.is_of(group_kind));
        served.find_map(|(_, served)| namespaced(served)).cloned()
    }
}

impl Index {
    /// Takes back a request that was never sent, if its copy now wants another one. Returns true in
    /// that case. The next plan then decides about the copy.
    pub(crate) fn withdraw_outdated(&mut self, request: &Request) -> bool {
        let namespace = self.namespaces.get_mut(&request.namespace);
        let Some(copy) =
            namespace.and_then(|namespace| namespace.copy_mut(request.kind, &request.name))
        else {
            return true;
        };
        let verb = copy.verb().map(|(verb, _)| verb);
        let projection = self.projections.wanted(copy);
        let copies = projection.and_then(|projection| projection.rendering.as_ref().ok());
        let stands = copy.phase == Phase::InFlight(request.serial)
            && copy.want == request.projection
            && verb == Some(request.verb)
            && copies.map(|copies| copies.checksum) == request.copies;
        if !stands {
            copy.phase = Phase::Idle;
            copy.leaving = false;
            copy.repaired = 0;
            self.dirty.insert(request.namespace.clone());
        }
        !stands
    }

    /// Turns a queued copy into a request.
    pub(crate) fn request(
        &mut self,
        (name, kind, copy_name): &CopyKey,
        effects: &mut Effects,
    ) -> Option<Request> {
        let mut namespace = self.namespaces.remove(name)?;
        let request = self.request_in(&mut namespace, *kind, copy_name, effects);
        namespace.changed = effects.changes.next();
        self.namespaces.insert(name.clone(), namespace);
        request
    }

    fn request_in(
        &mut self,
        namespace: &mut Namespace,
        kind: KindId,
        copy_name: &str,
        effects: &mut Effects,
    ) -> Option<Request> {
        let at = namespace.position(kind, copy_name).ok()?;
        namespace.copies[at].in_queue = false;
        if namespace.copies[at].phase != Phase::Queued {
            return None;
        }
        // A crowded namespace may rest although facts have changed since its last plan. The next
        // plan queues the copy again if that is needed.
        let copy = &namespace.copies[at];
        let outdated = namespace.behind && self.decide(namespace, copy).0 != copy.verdict;
        let copy = &mut namespace.copies[at];
        copy.phase = Phase::Idle;
        if outdated {
            return None;
        }
        let (verb, why) = copy.verb()?;
        // These requests continue a repair and don't begin one. A missing label is found by the
        // first request of its repair. A claim follows an apply that showed shared fields, and an
        // apply follows each claim.
        let begun = match copy.repair {
            Repair::Claimed => true,
            Repair::Begun if why == Some(Why::Shared) => true,
            Repair::Begun | Repair::None => matches!(copy.observed, Observation::Hidden(_)),
        };
        if why.is_some_and(Why::repairs) && !begun && self.fights(&namespace.name, copy, effects) {
            return None;
        }
        let projection = copy.want.and_then(|id| self.projections.get_mut(&id));
        if let (Verb::Learn(_), Some(projection)) = (verb, projection) {
            // One answer is enough for all copies of the projection.
            if projection.reference == Reference::Asked {
                return None;
            }
            projection.reference = Reference::Asked;
        }
        let projection = self.projections.wanted(copy);
        let resource = self.resource(kind, projection.map(Projection::gvk))?;
        let copies = projection.and_then(|projection| projection.rendering.as_ref().ok());
        let place = Place {
            name: &namespace.name,
            labels: &namespace.labels,
        };
        let rendering = copies.and_then(|copies| copies.rendering_at(place).ok());
        let rule = self.rule_of(copy);
        effects.work.serial = effects.work.serial.wrapping_add(1);
        copy.phase = Phase::InFlight(effects.work.serial);
        copy.leaving |= matches!(verb, Verb::Delete(..));
        let reverts = why.is_some_and(|why| copy.undoes_an_edit(why));
        let seen = copy.seen();
        let editor = seen.and_then(Seen::editor);
        Some(Request {
            namespace: namespace.name.clone(),
            name: copy.name.clone(),
            verb,
            why,
            resource,
            rendering,
            exclusive: self.exclusive(copy),
            rule,
            kind,
            serial: effects.work.serial,
            projection: copy.want,
            copies: copies.map(|copies| copies.checksum),
            reverts,
            editor: editor.filter(|_| reverts).map(Into::into),
            version: seen.map(|seen| seen.version),
        })
    }

    /// True if this repair follows the last one so closely that another client must be undoing it.
    /// Then the repair is put off.
    fn fights(&mut self, name: &Arc<str>, copy: &mut CopyState, effects: &mut Effects) -> bool {
        let now = u64::try_from(self.now.as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        let last = Duration::from_millis(copy.repaired);
        let pause = delay(&self.settings, copy.streak);
        if copy.repaired == 0 || self.now > last + FIGHT.max(pause * 2) {
            // After a refused write the pauses keep growing, until the API server accepts the
            // write.
            if !copy.refused() {
                copy.streak = 0;
            }
        } else {
            let due = last + pause;
            if self.now < due {
                let message = "another client keeps undoing Mimeo's writes of this copy, and Mimeo \
                    restores it after growing pauses; find the client by kubectl get \
                    --show-managed-fields, and stop it or have the rule leave this namespace out";
                let failure = Failure {
                    reason: FailureReason::Conflict,
                    message: message.into(),
                };
                self.fail(name, copy, failure, effects);
                effects.work.put_off(name, copy, due);
                // Other copies of the namespace may have waited for this one.
                self.dirty.insert(name.clone());
                return true;
            }
            copy.streak = copy.streak.saturating_add(1);
        }
        copy.repaired = now;
        false
    }
}

impl CopyState {
    /// Returns the operation for the next step, and the reason for the change. `None`: no request.
    fn verb(&self) -> Option<(Verb, Option<Why>)> {
        let uid = match &self.observed {
            Observation::Present(seen) => Some(seen.uid),
            Observation::Hidden(uid) => Some(*uid),
            _ => None,
        };
        let version = self.seen().map(|seen| seen.version);
        Some(match self.verdict.step {
            Step::Leave(_) => return None,
            Step::Create(why) => (Verb::Create, Some(why)),
            Step::Apply(why) => (Verb::Apply(uid?), Some(why)),
            Step::Take(why) => (Verb::Take(uid?, version?), Some(why)),
            Step::Compare => (Verb::Compare(uid?, version?), None),
            Step::Learn => (Verb::Learn(uid?), None),
            Step::Claim(why) => (Verb::Claim(uid?, version?), Some(why)),
            Step::Look => (Verb::Look, None),
            Step::Delete(why) => (Verb::Delete(uid?, version?), Some(why)),
        })
    }

    /// True if a write for this reason undoes an edit of the present copy.
    fn undoes_an_edit(&self, why: Why) -> bool {
        match why {
            // A write after a claim completes the claim. The claim has reported the edit already.
            Why::Drifted => self.repair != Repair::Claimed,
            Why::SilentlyChanged | Why::LabelRemoved => true,
            // An adopted object has fields of the manager that created it. That is no edit.
            Why::Shared => self.seen().is_some_and(|seen| seen.editor().is_some()),
            _ => false,
        }
    }

    /// True if the API server refused the last write, or did not answer it.
    pub(crate) fn refused(&self) -> bool {
        self.failed()
            .is_some_and(|reason| reason != FailureReason::Conflict)
    }
}

impl Why {
    /// True if this write undoes a change by another client. Quick repetitions are a fight with
    /// that client.
    pub(crate) fn repairs(self) -> bool {
        Self::REVERTS.contains(&self)
            || matches!(self, Self::Unproven | Self::Adopted | Self::Overwritten)
    }
}
