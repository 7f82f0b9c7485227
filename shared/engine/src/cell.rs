//! One cell, the place in a namespace where a copy belongs: what is believed to be in it, and what
//! to do about that.

use std::sync::Arc;

use mimeo_model::{
    choices::ConflictPolicy,
    id::{KindId, SlotId},
    meta::{Checksum, Seen, Uid},
    outcome::Failure,
};

use crate::clock::Tick;

/// What is believed to be in a cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Belief {
    /// Never looked.
    #[default]
    Unknown,
    /// A quorum read found nothing.
    Absent,
    /// The watch of copies lost this object of ours: it was deleted, or only our label was. A
    /// create tells which.
    Vanished(Uid),
    /// It was only the label: the object is still there.
    Hidden(Uid),
    /// A request was told that something is there, or something else than it took it for. What it
    /// is, a read has to tell. What was ours, by its uid, still is.
    Taken(Option<Uid>),
    /// An object, ours or not.
    Present(Box<Seen>),
}

/// What an object here was like: as this process saw it first, and from then on at the last write
/// of ours, or the last comparison that found nothing amiss. By this it is known whether somebody
/// has changed it since, be it that nobody acted for it meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Basis {
    /// Its resourceVersion then.
    pub version: u64,
    /// Its managedFields then, hashed.
    pub managers: u64,
    /// Whether it was right; if not, nobody has said so yet.
    pub right: bool,
    /// Whether it has got another checksum since. That wasn't us: by a write of ours there is a new
    /// basis.
    pub rewritten: bool,
}

impl Basis {
    /// What is seen is right as it is.
    pub fn right(seen: &Seen) -> Self {
        Self {
            version: seen.version,
            managers: seen.managers,
            right: true,
            rewritten: false,
        }
    }
}

/// Why a cell isn't as it should be, and since when without a break.
#[derive(Clone, Debug, PartialEq)]
pub struct Failing {
    /// What the last request about it came to, or why there was none.
    pub failure: Failure,
    /// When it first wasn't.
    pub since: Tick,
}

/// One cell of one namespace. There may be a hundred thousand of these: it stays small.
#[allow(clippy::struct_excessive_bools)] // Facts that are true or not, each on its own.
#[derive(Debug)]
pub struct Cell {
    /// Kind of the copy.
    pub kind: KindId,
    /// Name of the copy.
    pub name: Arc<str>,
    /// The slot that wants a copy here; none: whatever is here isn't wanted (any more).
    pub want: Option<SlotId>,
    /// What is believed to be here.
    pub belief: Belief,
    /// What is compared with when what is here has changed.
    pub basis: Option<Basis>,
    /// Why it isn't as it should be, if that needs saying; cleared by the next request that doesn't
    /// fail.
    pub failure: Option<Box<Failing>>,
    /// Where it stands with requests.
    pub phase: Phase,
    /// Until when it was last put off.
    pub due: Tick,
    /// Failures in a row, or repairs in quick succession: the exponent of the back-off.
    pub streak: u8,
    /// The watch of copies has shown that no object with our label was here as of this version.
    pub unseen: u64,
    /// Which listing of its kind showed it last.
    pub listing: u8,
    /// The loss for which its deletion has been decided, by a sweep that stayed under the limit or
    /// that a person confirmed.
    pub condemned: Option<Why>,
    /// What is here can't be changed into what is wanted: it has to go first.
    pub stuck: bool,
    /// Whether what is here, not being ours, has the content that is wanted.
    pub content: Content,
    /// How far a repair is that takes more than one request.
    pub repair: Repair,
    /// When its rule's period will have passed.
    pub resync: Option<Tick>,
    /// Whether it is to be verified, however right it seems: its rule's period has passed.
    pub verify: bool,
    /// Whether a deletion of ours was not answered, and may have taken what was seen here.
    pub leaving: bool,
    /// Whether an answer has shown something here: what watches show may have been in a former
    /// namespace of the name.
    pub proven: bool,
    /// Sequence number of the latest observation of what is here.
    pub shown: u64,
    /// Milliseconds of the last repair, to tell a fight from a mishap.
    pub repaired: u64,
}

/// Where a cell stands with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing to do as far as was last decided.
    Idle,
    /// In the queue.
    Queued,
    /// A request with this serial is under way.
    InFlight(u32),
    /// Backing off until a timer fires or the world changes.
    Waiting,
}

/// What to do about a cell, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Leave(Leave),
    /// Create the copy if nothing is there.
    Create(Why),
    /// Write the copy over the object with this uid.
    Apply(Uid, Why),
    /// The same over an object that isn't ours, if it is still of this version.
    Take(Uid, u64, Why),
    /// Have the server say, without writing, whether an object that isn't ours, of this version,
    /// has the copy's content.
    Compare(Uid, u64),
    /// Make the fields of our copy with this uid ours alone, if it is still of this version.
    Claim(Uid, u64, Why),
    /// Read what is there.
    Look,
    /// Have the server say which fields a write would own, without writing.
    Learn(Uid),
    /// Delete the object with this uid, if it is still of this version.
    Delete(Uid, u64, Why),
}

/// Why something is written or deleted: the word that logs and tests see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// Nothing was there.
    Missing,
    /// It was there, and isn't any more (or its label isn't).
    Vanished,
    /// The rendering changed: the source or the rule did.
    Changed,
    /// Somebody changed fields that we own.
    Drifted,
    /// The object changed though nobody owns up to it.
    SilentlyChanged,
    /// The rule's period has passed: costs a request that changes nothing, if nothing is wrong.
    Resync,
    /// The object changed, and whether a field of ours did can't be told.
    Unproven,
    /// Somebody removed our entry from `managedFields`.
    Disowned,
    /// Others own fields that are to be ours alone, or to go.
    Shared,
    /// Somebody removed the label that the watch selects by.
    LabelRemoved,
    /// The rule was deleted.
    RuleDeleted,
    /// The source was deleted.
    SourceDeleted,
    /// The rule wants another copy here now.
    Superseded,
    /// The rule doesn't match the namespace any more.
    Unmatched,
    /// What changed can't be changed in an object of this kind: it is made anew.
    Replaced,
    /// It isn't ours but was a copy already, and the rule says to adopt such ones.
    Adopted,
    /// It isn't ours, and the rule says to overwrite it.
    Overwritten,
}

/// Why nothing is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leave {
    /// The copy is as it should be.
    UpToDate,
    /// It was created once, or something is there, and more isn't wanted.
    Seeded,
    /// The copy is being deleted; what comes after is decided then.
    Deleting,
    /// What is there isn't ours.
    Foreign(Spared),
    /// Another request has to come back first, which tells what a good copy looks like.
    Learning,
    /// The source isn't there.
    NoSource,
    /// The source gives no copy.
    SourceRefused,
    /// The rule, or its form in this namespace, makes no copy that could be written.
    Unfillable,
    /// The server doesn't serve the kind.
    KindNotServed,
    /// The kind has not been recorded yet as one that has copies.
    KindNotRecorded,
    /// The copies of the kind are still being listed.
    NotListed,
    /// What is there is the copy of another rule, which keeps it though it does nothing now.
    Reserved,
    /// Its rule is inactive: it is suspended, or its spec is refused and its wishes are unknown.
    Suspended,
    /// The rule says to keep it.
    Retained,
    /// Another cluster's copy.
    Elsewhere,
    /// Whether it is to go is still being found out, collected, or held.
    Undecided,
    /// Nothing is here and nothing is wanted.
    Nothing,
}

/// Why an object that isn't ours is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spared {
    /// The rule says so.
    ByPolicy,
    /// The rule would adopt a copy, and it is none: neither by its content nor by a mark.
    NoCopy,
    /// A rule names it as its source.
    Source,
    /// A rule of a higher rank names the copy as its source.
    Named,
}

impl Spared {
    /// What the matter is and what to do about it, for people.
    pub fn message(self) -> &'static str {
        match self {
            Self::ByPolicy => {
                "an object that Mimeo didn't write has the copy's name: delete it, give the copy another name \
                 (copyName), or see conflictPolicy"
            }
            Self::NoCopy => {
                "an object that Mimeo didn't write has the copy's name, and it is not adopted: its content isn't the copy's, and \
                 no other tool has marked it as a copy"
            }
            Self::Named => {
                "a rule of a higher rank names this object as its source, so this rule doesn't write it: give the copy another \
                 name (copyName), or create the other rule again if it is only older"
            }
            Self::Source => {
                "the object that has the copy's name is the source of a rule, and sources are never written"
            }
        }
    }
}

/// What a comparison found of an object that isn't ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Not compared.
    Unknown,
    /// That of the rendering, no more and no less.
    Same,
    /// Another.
    Other,
}

/// How far a repair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// None goes on.
    None,
    /// An apply has shown what others own that is to go.
    Begun,
    /// It is ours alone, or can't be made so: an apply follows.
    Claimed,
}

/// What is known of a rendering besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// The field set that the server reports for a good copy, hashed. Defaulting and atomic lists
    /// make it uncomputable here.
    Known(u64),
    /// A request is under way that will tell.
    Asked,
    /// Not known, and nobody asked yet.
    Unknown,
    /// Each copy has its own: values of its namespace may be among the keys of its fields.
    Apart,
    /// Not known, and the checksum shall do: whoever only creates copies leaves drift to the
    /// reconciler.
    Waived,
}

impl Cell {
    /// A cell in which nothing is known to be.
    pub fn new(kind: KindId, name: Arc<str>) -> Self {
        Self {
            kind,
            name,
            want: None,
            belief: Belief::Unknown,
            basis: None,
            failure: None,
            phase: Phase::Idle,
            due: Tick::ZERO,
            streak: 0,
            unseen: 0,
            listing: 0,
            condemned: None,
            stuck: false,
            content: Content::Unknown,
            repair: Repair::None,
            resync: None,
            verify: false,
            leaving: false,
            proven: false,
            shown: 0,
            repaired: 0,
        }
    }

    /// The object believed to be here.
    pub fn seen(&self) -> Option<&Seen> {
        match &self.belief {
            Belief::Present(seen) => Some(seen),
            _ => None,
        }
    }

    /// Whether something is here as far as is known, seen or not.
    pub fn occupied(&self) -> bool {
        matches!(self.belief, Belief::Present(_) | Belief::Taken(_))
    }

    /// Our copy, believed to be here.
    pub fn ours(&self) -> Option<&Seen> {
        self.seen().filter(|seen| seen.ours())
    }

    /// Whether our copy was here, and may still be, though nothing shows it: that it was ours is
    /// known by its uid alone.
    pub fn out_of_sight(&self) -> bool {
        matches!(
            self.belief,
            Belief::Vanished(_) | Belief::Hidden(_) | Belief::Taken(Some(_))
        )
    }

    /// Whether a good copy has been here, as far as is known, and still may be.
    pub fn was_right(&self) -> bool {
        self.basis.is_some_and(|basis| basis.right)
    }

    /// Whether what is here shows that a copy need not be created (any more): ours is there, or
    /// anything is that isn't to be overwritten, here to stay.
    pub fn shows_seed(&self, policy: ConflictPolicy) -> bool {
        match &self.belief {
            Belief::Present(seen) => {
                seen.ours() || (!seen.deleting && policy != ConflictPolicy::Overwrite)
            }
            Belief::Hidden(_) => true,
            Belief::Unknown | Belief::Absent | Belief::Vanished(_) | Belief::Taken(_) => false,
        }
    }

    /// What makes this cell hold the rendering with that checksum, and nothing else if it is to be
    /// `exclusive`, under that policy for what isn't ours.
    pub fn compare(
        &self,
        checksum: Checksum,
        reference: Reference,
        policy: ConflictPolicy,
        exclusive: bool,
    ) -> Step {
        let seen = match &self.belief {
            Belief::Unknown | Belief::Absent => return Step::Create(Why::Missing),
            Belief::Vanished(_) => return Step::Create(Why::Vanished),
            Belief::Hidden(uid) => return Step::Apply(*uid, Why::LabelRemoved),
            Belief::Taken(_) => return Step::Look,
            Belief::Present(seen) => seen,
        };
        if seen.deleting {
            return Step::Leave(Leave::Deleting);
        }
        if !seen.ours() {
            return self.conflict(seen, policy);
        }
        let Some(entry) = seen.entry else {
            return Step::Apply(seen.uid, Why::Disowned);
        };
        if seen.checksum != Some(checksum) {
            let rewritten = self.basis.is_some_and(|basis| basis.rewritten);
            let why = if rewritten {
                Why::Drifted
            } else {
                Why::Changed
            };
            // What the change takes away would stay if it were others', too.
            if seen.claims().any(exclusive) && self.repair != Repair::Claimed {
                return Step::Claim(seen.uid, seen.version, why);
            }
            return Step::Apply(seen.uid, why);
        }
        if !seen.labelled {
            return Step::Apply(seen.uid, Why::LabelRemoved);
        }
        if self.repair == Repair::Claimed {
            return Step::Apply(seen.uid, Why::Shared);
        }
        if self.stuck {
            return Step::Apply(seen.uid, Why::Replaced);
        }
        if seen.claims().press(exclusive) {
            // A claim makes what it takes look as if we had written it, and whoever comes after
            // this process has nothing else to go by: what was changed of ours is put right before.
            return match reference {
                Reference::Unknown => Step::Learn(seen.uid),
                Reference::Asked => Step::Leave(Leave::Learning),
                Reference::Known(set) if set != entry => Step::Apply(seen.uid, Why::Drifted),
                _ => Step::Claim(seen.uid, seen.version, Why::Shared),
            };
        }
        if self.verify {
            return Step::Apply(seen.uid, Why::Resync);
        }
        if self
            .basis
            .is_some_and(|basis| basis.right && basis.version == seen.version)
        {
            return Step::Leave(Leave::UpToDate);
        }
        let silently =
            |basis: Basis| basis.version != seen.version && basis.managers == seen.managers;
        match reference {
            Reference::Unknown => Step::Learn(seen.uid),
            Reference::Asked => Step::Leave(Leave::Learning),
            // Costs a request that changes nothing, if nothing of ours was changed.
            Reference::Apart => Step::Apply(seen.uid, Why::Unproven),
            Reference::Known(set) if set != entry => Step::Apply(seen.uid, Why::Drifted),
            Reference::Known(_) if self.basis.is_some_and(silently) => {
                Step::Apply(seen.uid, Why::SilentlyChanged)
            }
            Reference::Known(_) | Reference::Waived => Step::Leave(Leave::UpToDate),
        }
    }

    /// What to do about an object that isn't ours.
    fn conflict(&self, seen: &Seen, policy: ConflictPolicy) -> Step {
        match (policy, self.content) {
            // Whoever may patch it can make any object look so. One that has the copy's content
            // loses nothing by becoming it.
            (ConflictPolicy::Report, Content::Unknown) if seen.stripped => {
                Step::Compare(seen.uid, seen.version)
            }
            (ConflictPolicy::Report, Content::Same) if seen.stripped => {
                Step::Take(seen.uid, seen.version, Why::Disowned)
            }
            (ConflictPolicy::Report, _) => Step::Leave(Leave::Foreign(Spared::ByPolicy)),
            (ConflictPolicy::Overwrite, _) => Step::Take(seen.uid, seen.version, Why::Overwritten),
            (ConflictPolicy::Adopt, Content::Same) => {
                Step::Take(seen.uid, seen.version, Why::Adopted)
            }
            (ConflictPolicy::Adopt, _) if seen.marked => {
                Step::Take(seen.uid, seen.version, Why::Adopted)
            }
            (ConflictPolicy::Adopt, Content::Unknown) => Step::Compare(seen.uid, seen.version),
            (ConflictPolicy::Adopt, Content::Other) => Step::Leave(Leave::Foreign(Spared::NoCopy)),
        }
    }

    /// Notes that what is seen is right as it is.
    pub fn approve(&mut self) {
        if let Some(seen) = self.seen() {
            self.basis = Some(Basis::right(seen));
        }
    }

    /// Takes in what the watch, or an answer, shows. Older news than what is known is no news:
    /// answers and events overtake each other. Tells whether it was news.
    pub fn show(&mut self, mut seen: Seen) -> bool {
        let shown = self.seen().map_or(0, |known| known.version);
        // The answer to a write may come after the news that somebody undid it.
        let refuted = seen.labelled && seen.version <= self.unseen;
        if seen.version <= shown || refuted {
            return false;
        }
        // What couldn't be changed was another one.
        let same = self.seen().is_none_or(|known| known.uid == seen.uid);
        self.stuck &= same;
        if !same {
            self.repair = Repair::None;
            self.basis = None;
        }
        // What was hidden from us and isn't any more somebody has had his hands on, too.
        let (was_ours, rewritten) = match &self.belief {
            Belief::Present(known) => (
                same && known.ours(),
                same && known.checksum != seen.checksum,
            ),
            Belief::Vanished(uid) | Belief::Hidden(uid) | Belief::Taken(Some(uid)) => {
                (*uid == seen.uid, *uid == seen.uid && seen.labelled)
            }
            Belief::Unknown | Belief::Absent | Belief::Taken(None) => (false, false),
        };
        let basis = self.basis.get_or_insert(Basis {
            right: false,
            ..Basis::right(&seen)
        });
        basis.rewritten |= rewritten;
        seen.was_ours |= was_ours;
        self.belief = Belief::Present(Box::new(seen));
        self.content = Content::Unknown;
        true
    }

    /// Takes in that the watch shows no object here as of `version`; `uid` is that of the one it
    /// lost, if it said so. Tells whether it was news.
    pub fn vanish(&mut self, uid: Option<Uid>, version: u64) -> bool {
        self.unseen = self.unseen.max(version);
        let Belief::Present(known) = &self.belief else {
            return false;
        };
        if uid.is_some_and(|uid| known.uid != uid) || known.version > version || !known.labelled {
            return false;
        }
        // What isn't ours, or is on its way out, may still be there without our label: then it is
        // to be looked at, not to be written over. So is what a listing doesn't show: it may have
        // become so since.
        self.belief = match (known.ours() && !known.deleting, uid) {
            (true, Some(uid)) => Belief::Vanished(uid),
            (true, None) => Belief::Taken(Some(known.uid)),
            (false, _) => Belief::Unknown,
        };
        self.basis = None;
        true
    }
}
