//! The fate of copies without a source, and of copies that no rule wants. Deletions and the plan of
//! a suspended rule both use this one decision.

use mimeo_model::{
    choices::Retain,
    id::{RuleId, RuleKind},
    meta::{Seen, source_hash},
    rule::Rule,
    selection::Labels,
    source::SourceRef,
};

use crate::{
    Index, Namespace, SourceState,
    cell::{Cell, Leave},
    slot::{NoRendering, Slot},
    verdict::Outlook,
};

/// The fate of a copy according to the wishes of all rules. Other files check whether the rule is
/// active, and which reads, pauses or confirmations a deletion needs first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The copy stays.
    Keep(Leave),
    /// Mimeo deletes the copy because its rule does not exist.
    RuleGone,
    /// Mimeo deletes the copy because its source is gone. The rule would find the source under any
    /// of these references, and none of them exists.
    SourceGone(Vec<SourceRef>),
    /// Mimeo deletes the copy because the rule wants no copy in this namespace, or may have none
    /// there.
    Unmatched,
    /// Mimeo deletes the copy because another copy of the rule replaces it, or will soon replace
    /// it.
    Superseded,
}

impl Fate {
    pub(crate) fn goes(&self) -> bool {
        !matches!(self, Self::Keep(_))
    }
}

impl Index {
    /// Returns the fate of the object in a cell that no rule wants (any more).
    pub(crate) fn fate(&self, name: &str, namespace: &Namespace, cell: &Cell) -> Fate {
        let Some(seen) = cell.ours() else {
            return Fate::Keep(Leave::Nothing);
        };
        if seen.deleting {
            return Fate::Keep(Leave::Deleting);
        }
        if seen.elsewhere {
            return Fate::Keep(Leave::Elsewhere);
        }
        let Some(id) = &seen.rule else {
            return Fate::Keep(Leave::Nothing);
        };
        if self.remembers(namespace, id, cell.kind, &cell.name) {
            // The rule once kept this copy up to date, and now has `strategy: CreateOnce`. Mimeo's
            // annotations on the copy are older than that change.
            return Fate::Keep(Leave::Retained);
        }
        if !self.all_rules() || !self.all_rules_of(id.kind) {
            return Fate::Keep(Leave::Undecided);
        }
        // The copy is now itself the source of other copies. They would be deleted with it.
        let feeds = self.is_named(id.kind, cell.kind, name, &cell.name);
        let Some(state) = self.rules.get(id) else {
            let retained = seen
                .retention()
                .is_some_and(|retention| retention.when_rule_deleted == Retain::Retain);
            return if feeds || retained {
                Fate::Keep(Leave::Retained)
            } else {
                Fate::RuleGone
            };
        };
        let Ok(rule) = &state.rule else {
            return Fate::Keep(Leave::Suspended);
        };
        // Otherwise a user could create a rule with the former rule's name and so delete copies
        // without the permission to delete them.
        if seen.left_by_another(&rule.uid) {
            return Fate::Keep(Leave::Retained);
        }
        // A copy that has lost its own source is deleted even if other copies are made from it.
        if let Some(fate) = self.unselected(rule, name, &namespace.labels, cell) {
            return fate;
        }
        if feeds || rule.retention.when_unmatched == Retain::Retain {
            return Fate::Keep(Leave::Retained);
        }
        if id.kind == RuleKind::Replication && !self.grants_known() {
            return Fate::Keep(Leave::Undecided);
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
            // The rule still makes this copy elsewhere, or would make it. So the change was in the
            // namespace, in the rule's selection, or in the grants.
            return Fate::Unmatched;
        }
        self.superseded(rule, namespace, cell, seen)
    }

    /// Returns the fate of a copy that a rule wants but has no source for.
    pub(crate) fn sourceless(&self, slot: &Slot, rule: &Rule, cell: &Cell) -> Fate {
        let keep = Fate::Keep(Leave::NoSource);
        let Some(seen) = cell.ours() else { return keep };
        // A copy of another source stays: the user may have changed the rule to a source that does
        // not exist yet.
        if seen.deleting || seen.source != source_hash(&slot.source.to_string()) {
            return keep;
        }
        // A former rule of the same name retained this copy. The present rule has never written it,
        // and so doesn't delete it.
        if seen.left_by_another(&rule.uid) {
            return Fate::Keep(Leave::Retained);
        }
        if !self
            .sources
            .get(&slot.source)
            .is_some_and(SourceState::is_missing)
        {
            return keep;
        }
        // A copy that another rule reserves stays, too.
        if cell
            .want
            .is_some_and(|id| self.reserved_for(id, cell).is_some())
        {
            return keep;
        }
        if rule.retention.when_source_deleted == Retain::Retain {
            return Fate::Keep(Leave::Retained);
        }
        Fate::SourceGone(vec![slot.source.clone()])
    }

    /// Returns the fate of a copy that no rule wants because the rule's selectors no longer find
    /// its source. It is treated like a copy of a named source that was deleted. Without a grant
    /// the findings of a selector are unknown, so such a copy is not decided here.
    fn unselected(&self, rule: &Rule, name: &str, labels: &Labels, cell: &Cell) -> Option<Fate> {
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
        let keep = |why| Some(Fate::Keep(why));
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
                Some(SourceState::NotRead) => return keep(Leave::Undecided),
                // The selector finds the object, but the rule already has as many sources as it may
                // have.
                None if found => return keep(Leave::Retained),
                // The object was never copied, or the rule already has as many sources as it may
                // have. An object that has become a copy is no source any more.
                Some(SourceState::Found { facts, .. }) if !facts.copy => {
                    return keep(Leave::Retained);
                }
                Some(SourceState::Found { .. } | SourceState::Missing { .. }) | None => {
                    lost.push(source);
                }
            }
        }
        Some(Fate::SourceGone(lost))
    }

    /// Returns the fate of a copy that its rule no longer wants although the rule still matches the
    /// namespace. The copy's name or kind has changed, or the rule no longer has its source.
    fn superseded(&self, rule: &Rule, namespace: &Namespace, cell: &Cell, seen: &Seen) -> Fate {
        let mut sourceless = None;
        for (other, slot) in self
            .successors(&rule.id, namespace)
            .filter(|(_, slot)| is_replacement(slot, seen))
        {
            match &slot.rendering {
                Err(NoRendering::SourceMissing) => sourceless = Some(slot),
                Ok(_) if other.may_come() => {}
                // The replacement of this copy, from the same source, must exist first. Nothing
                // cuts this wait short.
                _ => return Fate::Keep(Leave::Undecided),
            }
        }
        sourceless.map_or(Fate::Superseded, |slot| self.sourceless(slot, rule, cell))
    }

    /// The cells of a namespace that the rule wants and in which no correct copy was seen yet.
    pub(crate) fn successors<'a>(
        &'a self,
        id: &'a RuleId,
        namespace: &'a Namespace,
    ) -> impl Iterator<Item = (&'a Cell, &'a Slot)> {
        let cells = namespace.cells.iter().filter(|cell| !cell.was_right());
        let slot = |cell: &'a Cell| Some((cell, self.slots.wanted(cell)?));
        cells.filter_map(slot).filter(|(_, slot)| *slot.rule == *id)
    }
}

impl Cell {
    /// True if no known obstacle keeps the wanted copy out of the cell.
    fn may_come(&self) -> bool {
        !matches!(
            self.verdict.outlook,
            Outlook::Conflict | Outlook::Unfillable
        )
    }
}

/// True if the slot makes its copy from the same source as this copy. Then it is the copy's
/// replacement.
pub(crate) fn is_replacement(slot: &Slot, copy: &Seen) -> bool {
    copy.source == source_hash(&slot.source.to_string())
}
