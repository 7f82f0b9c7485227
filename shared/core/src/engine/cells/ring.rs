//! Copies of themselves. A copy may be the source of another rule, and so on; where that leads back to where it began, each rule
//! would write because of the other, and never come to an end. So no copy is written that comes from itself.

use crate::engine::{Engine, Namespace};
use crate::{cell::Cell, slot::Slot};

/// Most rules one after the other that a copy is followed back through. What comes through more is taken for a ring.
const LONGEST: usize = 256;

impl Engine {
    /// Whether what a slot would write into a cell comes, through copies that are there, from that cell.
    pub(in crate::engine) fn comes_from_itself(
        &self,
        slot: &Slot,
        name: &str,
        namespace: &Namespace,
        cell: &Cell,
    ) -> bool {
        let mut slot = slot;
        for _ in 0..LONGEST {
            let (home, copy) = (&*slot.source.namespace, &*slot.source.name);
            let kind = slot.kind;
            if (kind, home, copy) == (cell.kind, name, &*cell.name) {
                return true;
            }
            // One that is being planned isn't among the others.
            let space = if home == name { Some(namespace) } else { self.namespaces.get(home).map(AsRef::as_ref) };
            let copy = space.and_then(|space| space.cell(kind, copy)).filter(|cell| cell.ours().is_some());
            let Some(next) = copy.and_then(|cell| self.slots.get(&cell.want?)) else { return false };
            slot = next;
        }
        true
    }
}
