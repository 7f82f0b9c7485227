//! What is to become of copies that are to be there no more. Said once, for what is done and for
//! what a plan says will be.

use mimeo_model::{
    choices::Retain,
    id::{RuleId, RuleKind},
    meta::{Seen, source_hash},
    rule::Rule,
    selection::Labels,
    source::SourceRef,
};

use crate::{
    Engine, Namespace, SourceState,
    cell::{Cell, Leave, Step},
    slot::{NoRendering, Slot},
};

/// What is to become of a copy, as far as everybody's wishes go. Whether its rule acts now, and
/// what has to be asked, awaited or confirmed before anything goes, is another matter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Disposal {
    /// It stays.
    Keep(Leave),
    /// It goes with its rule, which isn't there.
    RuleGone,
    /// It goes with its source: under each of these names the rule would look for it, and has
    /// nothing.
    SourceGone(Vec<SourceRef>),
    /// It goes since the rule wants none in its namespace, or may have none there.
    Unmatched,
    /// It goes since the rule has another one in its stead, or is about to.
    Superseded,
}

impl Disposal {
    pub(crate) fn goes(&self) -> bool {
        !matches!(self, Self::Keep(_))
    }
}

impl Engine {
    /// What is to become of what is in a cell in which nobody wants a copy (any more).
    pub(crate) fn disposal(&self, name: &str, namespace: &Namespace, cell: &Cell) -> Disposal {
        let Some(seen) = cell.ours() else {
            return Disposal::Keep(Leave::Nothing);
        };
        if seen.deleting {
            return Disposal::Keep(Leave::Deleting);
        }
        if seen.elsewhere {
            return Disposal::Keep(Leave::Elsewhere);
        }
        let Some(id) = &seen.rule else {
            return Disposal::Keep(Leave::Nothing);
        };
        if self.remembers(namespace, id, cell.kind, &cell.name) {
            // Kept by its rule once, which has come to create once since: the marks on it are older
            // than that.
            return Disposal::Keep(Leave::Retained);
        }
        if !self.all_rules() || !self.all_rules_of(id.kind) {
            return Disposal::Keep(Leave::Undecided);
        }
        // Once a copy, now what others are copied from: its own copies would go with it.
        let feeds = self.is_named(id.kind, cell.kind, name, &cell.name);
        let Some(state) = self.rules.get(id) else {
            let retained = seen
                .retention()
                .is_some_and(|retention| retention.when_rule_deleted == Retain::Retain);
            return if feeds || retained {
                Disposal::Keep(Leave::Retained)
            } else {
                Disposal::RuleGone
            };
        };
        let Ok(rule) = &state.rule else {
            return Disposal::Keep(Leave::Suspended);
        };
        // Else whoever makes a rule of the former one's name would delete copies where they may
        // delete nothing.
        if seen.left_by_another(&rule.uid) {
            return Disposal::Keep(Leave::Retained);
        }
        // Without a source of its own it goes all the same.
        if let Some(disposal) = self.unselected(rule, name, &namespace.labels, cell) {
            return disposal;
        }
        if feeds || rule.retention.when_unmatched == Retain::Retain {
            return Disposal::Keep(Leave::Retained);
        }
        if id.kind == RuleKind::Replication && !self.grants_known() {
            return Disposal::Keep(Leave::Undecided);
        }
        let mut slots = state
            .slots
            .iter()
            .flatten()
            .filter_map(|slot| self.slots.get(slot));
        let makes = slots
            .any(|slot| slot.kind == cell.kind && slot.name.at(namespace.place(name)) == cell.name);
        let withheld = self
            .origin(cell)
            .is_some_and(|source| self.is_withheld(rule, source));
        if makes || withheld || !rule.matches(name, &namespace.labels) {
            // A copy that the rule still makes, elsewhere, or would make: what has changed is the
            // namespace, or the selection, or what is granted.
            return Disposal::Unmatched;
        }
        self.superseded(rule, (name, namespace), cell, seen)
    }

    /// The same of a copy that a rule wants, but that it has no source for.
    pub(crate) fn sourceless(&self, slot: &Slot, rule: &Rule, cell: &Cell) -> Disposal {
        let keep = Disposal::Keep(Leave::NoSource);
        let Some(seen) = cell.ours() else { return keep };
        // A copy of another source stays: the rule may just have been pointed at one that is yet to
        // come.
        if seen.deleting || seen.source != source_hash(&slot.source.to_string()) {
            return keep;
        }
        // A rule deletes no copy that a former rule of its name retained and that it has never
        // written itself.
        if seen.left_by_another(&rule.uid) {
            return Disposal::Keep(Leave::Retained);
        }
        if !self
            .sources
            .get(&slot.source)
            .is_some_and(SourceState::is_missing)
        {
            return keep;
        }
        // Nor does one go that another rule keeps from this one.
        if cell
            .want
            .is_some_and(|id| self.reserved_for(id, cell).is_some())
        {
            return keep;
        }
        if rule.retention.when_source_deleted == Retain::Retain {
            return Disposal::Keep(Leave::Retained);
        }
        Disposal::SourceGone(vec![slot.source.clone()])
    }

    /// Of a copy whose source the selectors of its rule find no more, if that is why nobody wants
    /// it: it goes as with a source that is named. What selectors would find that nobody grants
    /// isn't known.
    fn unselected(
        &self,
        rule: &Rule,
        name: &str,
        labels: &Labels,
        cell: &Cell,
    ) -> Option<Disposal> {
        let source = self
            .origin(cell)
            .filter(|source| !self.is_withheld(rule, source))?;
        let mut selectors = rule
            .selectors
            .iter()
            .filter(|selector| selector.could_find(source))
            .peekable();
        selectors.peek()?;
        let kind = source.gvk.group_kind();
        let mut slots = self.slots.of_object(&kind, &source.namespace, &source.name);
        if !rule.matches(name, labels) || slots.any(|slot| *slot.rule == rule.id) {
            return None;
        }
        let keep = |why| Some(Disposal::Keep(why));
        if !self.counts_selectors(rule) {
            return keep(Leave::Undecided);
        }
        if rule.retention.when_source_deleted == Retain::Retain {
            return keep(Leave::Retained);
        }
        let mut lost = Vec::new();
        for selector in selectors {
            let Some(found) = self.finds(selector, &source.name) else {
                return keep(Leave::Undecided);
            };
            let source = selector.source(source.name.clone());
            match self.sources.get(&source) {
                Some(SourceState::NotRead { .. }) => return keep(Leave::Undecided),
                // One of too many.
                None if found => return keep(Leave::Retained),
                // Never copied, or one of too many. An object that has become a copy is no
                // source any more.
                Some(SourceState::Found { facts, .. }) if !facts.copy => {
                    return keep(Leave::Retained);
                }
                Some(SourceState::Found { .. } | SourceState::Missing { .. }) | None => {
                    lost.push(source);
                }
            }
        }
        Some(Disposal::SourceGone(lost))
    }

    /// Of a copy that its rule, which still matches the namespace, wants no more: renamed, of
    /// another kind, or of a source that the rule no longer has.
    fn superseded(
        &self,
        rule: &Rule,
        place: (&str, &Namespace),
        cell: &Cell,
        seen: &Seen,
    ) -> Disposal {
        let mut sourceless = None;
        for (other, slot) in self
            .successors(&rule.id, place.1)
            .filter(|(_, slot)| is_heir(slot, seen))
        {
            match &slot.rendering {
                Err(NoRendering::SourceMissing) => sourceless = Some(slot),
                Ok(_) if self.may_come(slot, rule, place, other) => {}
                // The heir of this very copy is waited for, come what may.
                _ => return Disposal::Keep(Leave::Undecided),
            }
        }
        sourceless.map_or(Disposal::Superseded, |slot| {
            self.sourceless(slot, rule, cell)
        })
    }

    /// The cells of a namespace in which the rule's copies are yet to be seen.
    pub(crate) fn successors<'a>(
        &'a self,
        id: &'a RuleId,
        namespace: &'a Namespace,
    ) -> impl Iterator<Item = (&'a Cell, &'a Slot)> {
        let cells = namespace.cells.iter().filter(|cell| !cell.was_right());
        let slot = |cell: &'a Cell| Some((cell, self.slots.get(&cell.want?)?));
        cells.filter_map(slot).filter(|(_, slot)| *slot.rule == *id)
    }

    /// Whether nothing keeps a copy from a cell as far as is known.
    fn may_come(&self, slot: &Slot, rule: &Rule, place: (&str, &Namespace), cell: &Cell) -> bool {
        let barred = matches!(
            self.aim(slot, rule, place, cell),
            Step::Leave(Leave::Foreign(_) | Leave::Unfillable)
        );
        !barred
            && cell
                .want
                .and_then(|id| self.reserved_for(id, cell))
                .is_none()
    }
}

/// Whether what the slot makes has the same source as this copy.
pub(crate) fn is_heir(slot: &Slot, copy: &Seen) -> bool {
    copy.source == source_hash(&slot.source.to_string())
}
