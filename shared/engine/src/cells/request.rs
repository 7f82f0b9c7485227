//! From a decision to a request.

use std::{sync::Arc, time::Duration};

use mimeo_model::{
    choices::Strategy,
    id::{KindId, RuleId, SlotId},
    kind::{GroupVersionKind, Resource},
    meta::{Checksum, Seen, Uid},
    outcome::{Failure, FailureReason},
    render::{Copies, Rendering},
    template::Place,
};

use crate::{
    Engine, Namespace,
    cell::{Belief, Cell, Leave, Phase, Reference, Repair, Step, Why},
    clock::Tick,
    slot::Slot,
    work::{CellRef, delay},
};

/// One request about one cell.
#[derive(Debug)]
pub struct Request {
    /// Comes back with the answer.
    pub ticket: Ticket,
    /// Where to send it.
    pub resource: Resource,
    /// What to write; none where nothing is written.
    pub rendering: Option<Arc<Rendering>>,
    /// Whether nobody else is to own a field of the copy.
    pub exclusive: bool,
    /// The rule on whose behalf.
    pub rule: Option<Arc<RuleId>>,
}

/// Ties an answer to its request.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// Namespace of the cell.
    pub namespace: Arc<str>,
    /// Name of the copy.
    pub name: Arc<str>,
    /// What is asked for.
    pub verb: Verb,
    pub(crate) kind: KindId,
    pub(crate) serial: u32,
    pub(crate) slot: Option<SlotId>,
    /// Of what is written.
    pub(crate) checksum: Option<Checksum>,
    /// Of the slot's copies then, whatever their namespaces.
    pub(crate) copies: Option<Checksum>,
    pub(crate) sent: Tick,
    /// Why something changes; none where nothing does.
    pub why: Option<Why>,
    /// The edit that it undoes, if it undoes one.
    pub(crate) edit: Option<Edit>,
    /// Version of what was seen in the cell then.
    pub(crate) version: Option<u64>,
}

/// Somebody's change of a copy.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    /// The field manager that has written the copy last, if `managedFields` tells it.
    pub(crate) manager: Option<Box<str>>,
}

/// What is asked of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Server-side apply that only ever creates.
    Create,
    /// Forced server-side apply to the object with this uid.
    Apply(Uid),
    /// The same if the object is still of this version.
    Take(Uid, u64),
    /// Server-side apply of the content alone to the object with this uid and version, without
    /// force and as a dry run.
    Compare(Uid, u64),
    /// Forced server-side apply to the object with this uid, as a dry run.
    Learn(Uid),
    /// Read the object's metadata and write of it what [`claim`](mimeo_model::ownership::claim)
    /// says, if it still has this uid and version.
    Claim(Uid, u64),
    /// Read the metadata, not from a cache.
    Look,
    /// Delete the object with this uid if it is still of this version.
    Delete(Uid, u64),
}

/// A repair within this time of the last one is part of the same fight; where the pauses have grown
/// longer, within twice the pause.
pub(crate) const FIGHT: Duration = Duration::from_mins(1);

impl Engine {
    /// Turns a queued cell into a request, as things stand now.
    pub(crate) fn request(&mut self, (name, kind, copy): &CellRef) -> Option<Request> {
        let mut namespace = self.namespaces.remove(name)?;
        let request = self.request_in(name, &mut namespace, *kind, copy);
        namespace.changed = self.changes.next();
        self.namespaces.insert(name.clone(), namespace);
        request
    }

    fn request_in(
        &mut self,
        name: &Arc<str>,
        namespace: &mut Namespace,
        kind: KindId,
        copy: &str,
    ) -> Option<Request> {
        let at = namespace.position(kind, copy).ok()?;
        if namespace.cells[at].phase != Phase::Queued {
            return None;
        }
        let step = self.decide(name, namespace, &namespace.cells[at]);
        let cell = &mut namespace.cells[at];
        cell.phase = Phase::Idle;
        let (verb, why) = match step {
            Step::Leave(leave) => {
                self.settle(
                    Place {
                        name,
                        labels: &namespace.labels,
                    },
                    name,
                    cell,
                    leave,
                );
                // What is to be remembered of the namespace waits for all that is queued there, and
                // no answer comes of this.
                if leave == Leave::Seeded || !namespace.seeds.is_empty() {
                    self.dirty.insert(name.clone());
                }
                return None;
            }
            Step::Create(why) => (Verb::Create, Some(why)),
            Step::Apply(uid, why) => (Verb::Apply(uid), Some(why)),
            Step::Take(uid, version, why) => (Verb::Take(uid, version), Some(why)),
            Step::Compare(uid, version) => (Verb::Compare(uid, version), None),
            Step::Learn(uid) => (Verb::Learn(uid), None),
            Step::Claim(uid, version, why) => (Verb::Claim(uid, version), Some(why)),
            Step::Look => (Verb::Look, None),
            Step::Delete(uid, version, why) => (Verb::Delete(uid, version), Some(why)),
        };
        // A label found missing is the second half of a repair. Another half is a claim that the
        // first one showed to be due, and what follows any claim.
        let begun = match cell.repair {
            Repair::Claimed => true,
            Repair::Begun if why == Some(Why::Shared) => true,
            Repair::Begun | Repair::None => matches!(cell.belief, Belief::Hidden(_)),
        };
        if why.is_some_and(Why::repairs) && !begun && self.fights(name, cell) {
            return None;
        }
        let slot = cell.want.and_then(|id| self.slots.get_mut(&id));
        if let (Verb::Learn(_), Some(slot)) = (verb, slot) {
            slot.reference = Reference::Asked;
        }
        let slot = cell.want.and_then(|id| self.slots.get(&id));
        let resource = self.resource(kind, slot.map(Slot::gvk))?;
        let copies = slot.and_then(|slot| slot.rendering.as_ref().ok());
        let place = Place {
            name,
            labels: &namespace.labels,
        };
        let rendering = copies.and_then(|copies| copies.rendering_at(place).ok());
        let rule = slot
            .map(|slot| slot.rule.clone())
            .or_else(|| cell.ours().and_then(|seen| seen.rule.clone()));
        self.work.serial = self.work.serial.wrapping_add(1);
        cell.phase = Phase::InFlight(self.work.serial);
        let ticket = Ticket {
            namespace: name.clone(),
            name: cell.name.clone(),
            verb,
            kind,
            serial: self.work.serial,
            slot: cell.want,
            checksum: rendering.as_ref().map(|rendering| rendering.checksum),
            copies: copies.map(Copies::checksum),
            sent: self.now,
            why,
            edit: why.filter(|why| cell.undoes_an_edit(*why)).map(|_| Edit {
                manager: cell.seen().and_then(Seen::editor).map(Into::into),
            }),
            version: cell.seen().map(|seen| seen.version),
        };
        let exclusive = self.exclusive(&namespace.cells[at]);
        Some(Request {
            ticket,
            resource,
            rendering,
            exclusive,
            rule,
        })
    }

    /// Whether this repair follows the last one so closely that someone undoes it; then it is put
    /// off.
    fn fights(&mut self, name: &Arc<str>, cell: &mut Cell) -> bool {
        let now = u64::try_from(self.now.as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        let last = Duration::from_millis(cell.repaired);
        let pause = delay(&self.settings, cell.streak);
        if cell.repaired == 0 || self.now > last + FIGHT.max(pause * 2) {
            // What was refused is tried again after pauses that grow, too, until it is let through.
            cell.streak = if cell.refused() { cell.streak } else { 0 };
        } else {
            let due = last + pause;
            if self.now < due {
                let message = "somebody keeps undoing what Mimeo writes: it is put right after a pause that grows";
                self.fail(
                    name,
                    cell,
                    Failure {
                        reason: FailureReason::Conflict,
                        message: message.into(),
                    },
                );
                self.work.put_off(name, cell, due);
                return true;
            }
            cell.streak = cell.streak.saturating_add(1);
        }
        cell.repaired = now;
        false
    }

    /// Whether a copy is to have no fields but ours.
    pub(crate) fn exclusive(&self, cell: &Cell) -> bool {
        let slot = cell.want.and_then(|id| self.slots.get(&id));
        let rule = slot.and_then(|slot| self.rules.get(&slot.rule)?.rule.as_ref().ok());
        rule.is_some_and(|rule| rule.strategy == Strategy::Replace)
    }

    /// How the server serves a kind: in the wanted version, else in any.
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
            .all_served()
            .iter()
            .filter(|(gvk, _)| gvk.is_of(group_kind));
        served.find_map(|(_, served)| served.namespaced()).cloned()
    }
}

impl Cell {
    /// Whether a write for this reason undoes an edit of the copy that is here.
    fn undoes_an_edit(&self, why: Why) -> bool {
        match why {
            // A write after a claim completes the claim, which has told of the edit.
            Why::Drifted => self.repair != Repair::Claimed,
            Why::SilentlyChanged | Why::LabelRemoved => true,
            // An adopted object has fields of the manager that created it. That is no edit.
            Why::Shared => self.seen().is_some_and(|seen| seen.editor().is_some()),
            _ => false,
        }
    }

    /// Whether the server refused the last write, or didn't answer it.
    pub(crate) fn refused(&self) -> bool {
        self.failure
            .as_ref()
            .is_some_and(|failing| failing.failure.reason != FailureReason::Conflict)
    }
}

impl Why {
    /// Whether this write undoes what somebody else did: repeated quickly, it is a fight.
    pub(crate) fn repairs(self) -> bool {
        let undoes = matches!(
            self,
            Self::Drifted
                | Self::Unproven
                | Self::SilentlyChanged
                | Self::LabelRemoved
                | Self::Vanished
        );
        undoes
            || matches!(
                self,
                Self::Disowned | Self::Shared | Self::Adopted | Self::Overwritten
            )
    }
}
