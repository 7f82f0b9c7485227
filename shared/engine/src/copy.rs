//! The state of one copy: everything known about the object of one kind, namespace and name that a
//! rule wants there, or that Mimeo has written there. This file also holds the comparison of the
//! observed object with the wanted copy, which yields the next step.
//!
//! Mimeo owns an object if `managedFields` has an entry of the field manager `mimeo`, or had one
//! when this process saw the same object before. The comments call such an object Mimeo's own copy.

use std::{num::NonZeroU64, sync::Arc};

use mimeo_model::{
    choices::ConflictPolicy,
    id::{KindId, ProjectionId, RuleId},
    meta::{Checksum, Seen, Uid},
    outcome::{Failure, FailureReason},
    words,
};

use crate::{clock::Tick, verdict::Verdict};

/// The observed state of a copy.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Observation {
    /// No request and no watch has shown the copy yet.
    #[default]
    Unknown,
    /// A quorum read found no object.
    Absent,
    /// The watch of copies lost this object, which Mimeo owned. Either the object was deleted, or
    /// only the label that the watch selects by was removed. A create request tells the two apart.
    Vanished(Uid),
    /// Only the label was removed: the object still exists.
    Hidden(Uid),
    /// The answer to a request said: an object exists here, or the object isn't the expected one. A
    /// read must show which object it is. The uid is that of Mimeo's own copy, if one was here
    /// before.
    Taken(Option<Uid>),
    /// An object, whether Mimeo owns it or not. It is not boxed. A box would be allocated between
    /// the memory of two requests and outlive both. The gaps between such boxes would stay unused.
    Present(Seen),
}

/// The baseline for later comparisons: the state of an object at a certain moment. The moment is
/// the first time that this process saw the object. Later it is Mimeo's last write, or the last
/// comparison that found the copy correct. A difference from the baseline means a change by another
/// client since then. It still counts as one if Mimeo did not react to it at that time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Baseline {
    /// The resourceVersion at that moment.
    pub version: u64,
    /// The hash of `managedFields` at that moment.
    pub managers: u64,
    /// True if the object was a correct copy at that moment. False means only that no comparison
    /// has shown it yet.
    pub right: bool,
    /// True if the object's checksum annotation has changed since that moment. Another client did
    /// that, because each write by Mimeo makes a new baseline.
    pub rewritten: bool,
}

impl Baseline {
    /// The baseline of an object that is correct as it is.
    pub fn right(seen: &Seen) -> Self {
        Self {
            version: seen.version,
            managers: seen.managers,
            right: true,
            rewritten: false,
        }
    }
}

/// Why a copy differs from its desired state, and since when without a break.
#[derive(Clone, Debug, PartialEq)]
pub struct Failing {
    /// The result of the last request about the copy, or the reason why no request was sent.
    pub failure: Failure,
    /// When the failure began.
    pub since: Tick,
    /// The object that was last seen here. A retry asks anew whether it exists, and meanwhile an
    /// Event can still be about it.
    pub object: Option<Uid>,
}

/// Namespace, kind and name of a copy.
pub(crate) type CopyKey = (Arc<str>, KindId, Arc<str>);

/// One copy of one namespace. An engine may hold a hundred thousand of them, so the struct stays
/// small.
#[allow(clippy::struct_excessive_bools)] // Facts that are true or not, each on its own.
#[derive(Debug, Default)]
pub struct CopyState {
    /// Kind of the copy.
    pub kind: KindId,
    /// Name of the copy.
    pub name: Arc<str>,
    /// The projection that wants the copy. `None`: no rule wants an object here (any more).
    pub want: Option<ProjectionId>,
    /// The observed state.
    pub observed: Observation,
    /// The baseline that a later state of the object is compared with.
    pub baseline: Option<Baseline>,
    /// The failure to report, if there is one. The next request that succeeds clears it.
    pub failure: Option<Box<Failing>>,
    /// The last decision about this copy.
    pub(crate) verdict: Verdict,
    /// The progress of the requests about this copy.
    pub phase: Phase,
    /// True if the queue has an entry for the copy. A copy whose verdict changes meanwhile is no
    /// longer [`Phase::Queued`], and its entry stays until its turn.
    pub(crate) in_queue: bool,
    /// The end of the current pause before the next request.
    pub due: Tick,
    /// The exponent of the back-off: failures in a row, or repairs in quick succession.
    pub streak: u8,
    /// The latest resourceVersion at which the watch of copies showed no object with Mimeo's label
    /// here.
    pub unseen: u64,
    /// The number of the last listing of the kind that showed the object.
    pub listing: u8,
    /// The loss for which the deletion of the copy is approved. Either the rule's pending deletion
    /// stayed under the limit, or a user confirmed the deletion.
    pub approved: Option<Why>,
    /// True if the API server refuses to change the object into the wanted copy. Mimeo must delete
    /// the object first.
    pub stuck: bool,
    /// Whether an object that Mimeo doesn't own has the content of the wanted copy.
    pub content: Content,
    /// The progress of a repair that takes more than one request.
    pub repair: Repair,
    /// When the resync period of the rule ends, in milliseconds.
    pub resync: Option<NonZeroU64>,
    /// True if a request must verify the copy even if it looks correct, because the rule's resync
    /// period has passed.
    pub verify: bool,
    /// True if Mimeo sent a delete request, and no answer has shown since that the object stays.
    pub leaving: bool,
    /// Sequence number of the latest observation of the object.
    pub shown: u64,
    /// Time of the last repair, in milliseconds. The interval between repairs tells a fight with
    /// another client from a single edit.
    pub repaired: u64,
}

/// The progress of the requests about a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// No request is needed now. Either the last decision says so, or the request of another copy
    /// asks the same question.
    #[default]
    Idle,
    /// The copy is in the queue.
    Queued,
    /// A request with this serial number is in flight.
    InFlight(u32),
    /// The copy backs off until a timer fires or an event changes its situation.
    Waiting,
}

/// The next step for a copy, and its reason. The step is about the object that was observed in the
/// copy when the step was decided. A later observation leads to another decision before a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// No request.
    Leave(Leave),
    /// Create the copy if no object exists.
    Create(Why),
    /// Apply the copy over the object.
    Apply(Why),
    /// Apply the copy over an object that Mimeo doesn't own.
    Take(Why),
    /// Ask the API server, by a dry run, whether an object that Mimeo doesn't own has the copy's
    /// content.
    Compare,
    /// Make Mimeo the only owner of the copy's fields.
    Claim(Why),
    /// Read the object.
    Look,
    /// Ask the API server, by a dry run, which fields an apply would own. One answer is enough for
    /// all copies of a projection.
    Learn,
    /// Delete the object.
    Delete(Why),
}

words! {
    /// The reason for a write or a deletion. Logs, users and tests see this word.
    Why {
        /// No object existed.
        Missing,
        /// The copy disappeared, or lost the label that the watch selects by.
        Vanished,
        /// The rendering changed, because the source or the rule changed.
        Changed,
        /// Another client changed fields that Mimeo owns.
        Drifted,
        /// The object changed, but `managedFields` names no client that changed it.
        SilentlyChanged,
        /// The rule's resync period has passed. If the copy is correct, the request changes nothing.
        Resync,
        /// The object changed, and Mimeo cannot tell whether one of its own fields did.
        Unproven,
        /// Another client removed Mimeo's entry from `managedFields`.
        Disowned,
        /// Other managers own fields that Mimeo must own alone, or must remove.
        Shared,
        /// Another client removed the label that the watch of copies selects by.
        LabelRemoved,
        /// The rule was deleted.
        RuleDeleted,
        /// The source was deleted.
        SourceDeleted,
        /// The rule now wants another copy here.
        Superseded,
        /// The rule no longer matches the namespace.
        Unmatched,
        /// The API server does not allow the change in place, so Mimeo deletes the object and creates
        /// it again.
        Replaced,
        /// Mimeo does not own the object, but the object was a copy already. The rule says to adopt
        /// such objects.
        Adopted,
        /// Mimeo does not own the object, and the rule says to overwrite it.
        Overwritten,
    }
}

impl Why {
    /// The reasons of writes that undo a change by another client.
    pub const REVERTS: [Self; 6] = [
        Self::Vanished,
        Self::Drifted,
        Self::SilentlyChanged,
        Self::Disowned,
        Self::Shared,
        Self::LabelRemoved,
    ];
}

/// Why a copy needs no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leave {
    /// The copy is correct.
    UpToDate,
    /// The copy was created once, or an object exists here, and the rule (`strategy: CreateOnce`)
    /// wants no more.
    CreatedOnce,
    /// The copy is being deleted. The next step is decided after that.
    Deleting,
    /// Mimeo does not own the object.
    Foreign(Spared),
    /// The source does not exist.
    NoSource,
    /// The source cannot be copied.
    SourceRefused,
    /// The rule makes no copy that can be written, either in general or in this namespace.
    Unfillable,
    /// The API server does not serve the kind.
    KindNotServed,
    /// The `ConfigMap` `mimeo-kinds` does not list the kind yet. Mimeo records each kind there
    /// before its first copy.
    KindNotRecorded,
    /// The copies of the kind are still being listed.
    NotListed,
    /// The object is the copy of another rule, which keeps it although that rule is inactive.
    Reserved,
    /// The rule is inactive: it is suspended, or its spec is refused and its wishes are unknown.
    Suspended,
    /// The rule says to retain the copy.
    Retained,
    /// The copy belongs to another cluster.
    Elsewhere,
    /// The deletion of the copy is not decided yet: Mimeo still reads, or lists the objects of a
    /// selector, or collects losses, or holds the deletion.
    Undecided,
    /// No object exists here, and no rule wants one.
    Nothing,
}

/// Why Mimeo leaves an object alone that it does not own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spared {
    /// The rule's `conflictPolicy` says so.
    ByPolicy,
    /// The rule would adopt a copy, but the object is none: neither its content nor another tool's
    /// mark shows a copy.
    NoCopy,
    /// A rule names the object as its source.
    Source,
    /// A rule of a higher rank names the copy as its source.
    Named,
}

impl Spared {
    /// The problem and its solution, for users.
    pub fn message(self) -> &'static str {
        match self {
            Self::ByPolicy => {
                "an object that Mimeo didn't write has the copy's name: delete it, give the copy \
                 another name (copyName), or see conflictPolicy"
            }
            Self::NoCopy => {
                "an object that Mimeo didn't write has the copy's name, and it is not adopted: its \
                 content isn't the copy's, and no other tool has marked it as a copy"
            }
            Self::Named => {
                "a rule of a higher rank names this object as its source, so this rule doesn't \
                 write it: give the copy another name (copyName), or create the other rule again \
                 if it is only older"
            }
            Self::Source => {
                "the object that has the copy's name is the source of a rule, and sources are \
                 never written"
            }
        }
    }
}

/// The result of comparing an object that Mimeo does not own with the rendering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// Not compared.
    #[default]
    Unknown,
    /// The object has the content of the rendering, no more and no less.
    Same,
    /// The object has other content.
    Other,
}

/// The progress of a repair that takes more than one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// No such repair is in progress.
    #[default]
    None,
    /// An apply has shown fields of other managers that must be removed.
    Begun,
    /// Mimeo has become the only owner of the fields, or cannot become it. An apply follows.
    Claimed,
}

/// Facts about a rendering besides its bytes: which fields a correct copy owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// The hash of the field set that the API server reports for a correct copy. The engine cannot
    /// compute it, because of defaulting and atomic lists.
    Known(u64),
    /// A request is in flight, and its answer will show the field set.
    Asked,
    /// Unknown. The verdicts of some copies depend on it, and no request is in flight.
    Wanted,
    /// Unknown, and no verdict depends on it.
    Unknown,
    /// Each copy has its own field set, because the keys of its fields may contain values of its
    /// namespace.
    Apart,
    /// Unknown, and the checksum is enough. A webhook replica only creates copies and leaves drift
    /// to the reconciler.
    Waived,
}

impl CopyState {
    pub(crate) fn key(&self, namespace: &Arc<str>) -> CopyKey {
        (namespace.clone(), self.kind, self.name.clone())
    }

    /// The object that was last observed here.
    pub fn seen(&self) -> Option<&Seen> {
        match &self.observed {
            Observation::Present(seen) => Some(seen),
            _ => None,
        }
    }

    /// Mimeo's own copy, if it was last observed here.
    pub fn ours(&self) -> Option<&Seen> {
        self.seen().filter(|seen| seen.ours())
    }

    /// The rule that Mimeo's own copy here names.
    pub(crate) fn rule(&self) -> Option<&Arc<RuleId>> {
        self.ours()?.rule.as_ref()
    }

    /// The reason of the failure to report, if there is one.
    pub(crate) fn failed(&self) -> Option<FailureReason> {
        self.failure.as_ref().map(|failing| failing.failure.reason)
    }

    /// True if the kind of the copy must stay recorded: an object with Mimeo's label or Mimeo's
    /// entry is here, or may be. (Before the record goes, a LIST by the label finds such objects.)
    pub fn needs_record(&self) -> bool {
        self.seen().is_some_and(|seen| seen.labelled || seen.ours())
            || self.out_of_sight()
            || matches!(self.phase, Phase::InFlight(_))
    }

    /// True if Mimeo's own copy was here and may still exist although no watch shows it. Then the
    /// uid alone identifies the copy as Mimeo's own.
    pub fn out_of_sight(&self) -> bool {
        matches!(
            self.observed,
            Observation::Vanished(_) | Observation::Hidden(_) | Observation::Taken(Some(_))
        )
    }

    /// True if the object here makes a create needless for good. Either it is Mimeo's own copy, or
    /// it is another object, which the policy does not overwrite. An object that is being deleted
    /// does not count: Mimeo may have deleted it for another rule, and the next process could not
    /// know that.
    pub fn shows_created(&self, policy: ConflictPolicy) -> bool {
        match &self.observed {
            Observation::Present(seen) => {
                !seen.deleting && (seen.ours() || policy != ConflictPolicy::Overwrite)
            }
            Observation::Hidden(_) => true,
            Observation::Unknown
            | Observation::Absent
            | Observation::Vanished(_)
            | Observation::Taken(_) => false,
        }
    }

    /// Returns the step that makes this copy hold the rendering with this checksum. If `exclusive`
    /// is set, the copy may hold no other fields. `policy` says how to treat an object that Mimeo
    /// doesn't own.
    pub(crate) fn compare(
        &self,
        checksum: Checksum,
        reference: Reference,
        policy: ConflictPolicy,
        exclusive: bool,
    ) -> Step {
        let seen = match &self.observed {
            Observation::Unknown | Observation::Absent => return Step::Create(Why::Missing),
            Observation::Vanished(_) => return Step::Create(Why::Vanished),
            Observation::Hidden(_) => return Step::Apply(Why::LabelRemoved),
            Observation::Taken(_) => return Step::Look,
            Observation::Present(seen) => seen,
        };
        if seen.deleting {
            return Step::Leave(Leave::Deleting);
        }
        if !seen.ours() {
            return self.conflict(seen, policy);
        }
        let Some(entry) = seen.entry else {
            return Step::Apply(Why::Disowned);
        };
        if seen.checksum != Some(checksum) {
            let rewritten = self.baseline.is_some_and(|baseline| baseline.rewritten);
            let why = if rewritten {
                Why::Drifted
            } else {
                Why::Changed
            };
            // A field that the change removes would stay in the object if another manager owned it,
            // too.
            if seen.claims().any(exclusive) && self.repair != Repair::Claimed {
                return Step::Claim(why);
            }
            return Step::Apply(why);
        }
        if !seen.labelled {
            return Step::Apply(Why::LabelRemoved);
        }
        if self.repair == Repair::Claimed {
            return Step::Apply(Why::Shared);
        }
        if self.stuck {
            return Step::Apply(Why::Replaced);
        }
        let excess = seen.claims().has_excess(exclusive);
        if !excess {
            if self.verify {
                return Step::Apply(Why::Resync);
            }
            if self
                .baseline
                .is_some_and(|baseline| baseline.right && baseline.version == seen.version)
            {
                return Step::Leave(Leave::UpToDate);
            }
        }
        let silently = |baseline: Baseline| {
            baseline.version != seen.version && baseline.managers == seen.managers
        };
        match reference {
            Reference::Unknown | Reference::Wanted | Reference::Asked => Step::Learn,
            // After a claim, the claimed fields look as if Mimeo had written them. The next process
            // has no other evidence. So Mimeo restores its own changed fields before the claim.
            Reference::Known(set) if set != entry => Step::Apply(Why::Drifted),
            _ if excess => Step::Claim(Why::Shared),
            // If Mimeo's fields are unchanged, this request changes nothing.
            Reference::Apart => Step::Apply(Why::Unproven),
            Reference::Known(_) if self.baseline.is_some_and(silently) => {
                Step::Apply(Why::SilentlyChanged)
            }
            Reference::Known(_) | Reference::Waived => Step::Leave(Leave::UpToDate),
        }
    }

    /// Returns the step for an object that Mimeo doesn't own.
    fn conflict(&self, seen: &Seen, policy: ConflictPolicy) -> Step {
        match (policy, self.content) {
            // A user with `patch` permission can make any object look like a stripped copy. An
            // object that already has the copy's content loses nothing when it becomes the copy.
            (ConflictPolicy::Report, Content::Unknown) if seen.stripped => Step::Compare,
            (ConflictPolicy::Report, Content::Same) if seen.stripped => Step::Take(Why::Disowned),
            (ConflictPolicy::Report, _) => Step::Leave(Leave::Foreign(Spared::ByPolicy)),
            (ConflictPolicy::Overwrite, _) => Step::Take(Why::Overwritten),
            (ConflictPolicy::Adopt, Content::Same) => Step::Take(Why::Adopted),
            (ConflictPolicy::Adopt, _) if seen.marked => Step::Take(Why::Adopted),
            (ConflictPolicy::Adopt, Content::Unknown) => Step::Compare,
            (ConflictPolicy::Adopt, Content::Other) => Step::Leave(Leave::Foreign(Spared::NoCopy)),
        }
    }

    /// True if the known state is of this version or newer. A version of 0 is always old.
    pub fn knows(&self, version: u64) -> bool {
        version <= self.seen().map_or(0, |known| known.version)
    }

    /// Records an object that the watch or an answer shows. Returns false if the observation is
    /// older than the known state: answers and events overtake each other.
    pub fn show(&mut self, mut seen: Seen) -> bool {
        // The answer to a write may arrive after the watch event that shows the write undone.
        let refuted = seen.labelled && seen.version <= self.unseen;
        if self.knows(seen.version) || refuted {
            return false;
        }
        // The object that could not be changed was a different one.
        let same = self.seen().is_none_or(|known| known.uid == seen.uid);
        self.stuck &= same;
        if !same {
            self.repair = Repair::None;
            self.baseline = None;
        }
        // If an object was out of sight and has its label again, another client has edited it.
        let (was_ours, rewritten) = match &self.observed {
            Observation::Present(known) => (
                same && known.ours(),
                same && known.checksum != seen.checksum,
            ),
            Observation::Vanished(uid)
            | Observation::Hidden(uid)
            | Observation::Taken(Some(uid)) => {
                (*uid == seen.uid, *uid == seen.uid && seen.labelled)
            }
            Observation::Unknown | Observation::Absent | Observation::Taken(None) => (false, false),
        };
        let baseline = self.baseline.get_or_insert(Baseline {
            right: false,
            ..Baseline::right(&seen)
        });
        baseline.rewritten |= rewritten;
        seen.was_ours |= was_ours;
        self.observed = Observation::Present(seen);
        self.content = Content::Unknown;
        true
    }

    /// Records that the watch shows no object here as of `version`. `uid` identifies the lost
    /// object if the event has it. Returns true if that changes the known state.
    pub fn vanish(&mut self, uid: Option<Uid>, version: u64) -> bool {
        self.unseen = self.unseen.max(version);
        let Observation::Present(known) = &self.observed else {
            return false;
        };
        if uid.is_some_and(|uid| known.uid != uid) || known.version > version || !known.labelled {
            return false;
        }
        // An object that Mimeo doesn't own, or that is being deleted, may still exist without the
        // label. Mimeo must read it then, not write over it. The same holds for an object that a
        // listing doesn't show: it may have changed since the listing.
        self.observed = match (known.ours() && !known.deleting, uid) {
            (true, Some(uid)) => Observation::Vanished(uid),
            (true, None) => Observation::Taken(Some(known.uid)),
            (false, _) => Observation::Unknown,
        };
        self.baseline = None;
        true
    }
}
