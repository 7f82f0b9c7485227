//! The fate of copies without a source, and of copies that no rule wants. Deletions and the plan of
//! a suspended rule both use this one decision.

use mimeo_model::{
    choices::Retain,
    id::{RuleId, RuleKind},
    meta::{Seen, source_hash},
    rule::Rule,
    source::SourceRef,
};

use crate::{
    Index, Namespace, SourceState,
    copy::{CopyState, Leave},
    projection::{NoRendering, Projection},
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
    /// Returns the fate of a copy that no rule wants (any more).
    pub(crate) fn fate(&self, namespace: &Namespace, copy: &CopyState) -> Fate {
        let Some(seen) = copy.ours() else {
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
        if self.remembers(namespace, id, copy.kind, &copy.name) {
            // The rule once kept this copy up to date, and now has `strategy: CreateOnce`. Mimeo's
            // annotations on the copy are older than that change.
            return Fate::Keep(Leave::Retained);
        }
        if !self.all_rules() || !self.all_rules_of(id.kind) {
            return Fate::Keep(Leave::Undecided);
        }
        // The copy is now itself the source of other copies. They would be deleted with it.
        let feeds = self.is_named(id.kind, namespace, copy);
        let Some(state) = self.rules.get(id) else {
            return if feeds || seen.outlives_rule() {
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
        if let Some(fate) = self.unselected(rule, namespace, copy) {
            return fate;
        }
        if feeds || rule.retention.when_unmatched == Retain::Retain {
            return Fate::Keep(Leave::Retained);
        }
        if id.kind == RuleKind::Replication && !self.grants_known() {
            return Fate::Keep(Leave::Undecided);
        }
        let mut projections = state
            .projections
            .iter()
            .flatten()
            .filter_map(|projection| self.projections.get(projection));
        let makes = projections.any(|projection| {
            projection.kind == copy.kind && projection.name.at(namespace.place()) == copy.name
        });
        let withheld = self
            .origin(copy)
            .is_some_and(|source| self.is_withheld(rule, source));
        if makes || withheld || !rule.matches(namespace.place()) {
            // The rule still makes this copy elsewhere, or would make it. So the change was in the
            // namespace, in the rule's selection, or in the grants.
            return Fate::Unmatched;
        }
        // Another rule or source may have the copy that should replace this one, or its name can't
        // be filled in. Then this copy stays.
        let blocked = namespace.blocked.get(id).into_iter().flatten();
        let mut lost = blocked.filter_map(|(_, copy)| self.projections.get(&copy.projection));
        if lost.any(|projection| is_replacement(projection, seen)) {
            return Fate::Keep(Leave::Undecided);
        }
        self.superseded(rule, namespace, copy, seen)
    }

    /// Returns the fate of a copy that a rule wants but has no source for.
    pub(crate) fn sourceless(
        &self,
        projection: &Projection,
        rule: &Rule,
        copy: &CopyState,
    ) -> Fate {
        let keep = Fate::Keep(Leave::NoSource);
        let Some(seen) = copy.ours() else { return keep };
        // A copy of another source stays: the user may have changed the rule to a source that does
        // not exist yet.
        if seen.deleting || !is_replacement(projection, seen) {
            return keep;
        }
        // A former rule of the same name retained this copy. The present rule has never written it,
        // and so doesn't delete it.
        if seen.left_by_another(&rule.uid) {
            return Fate::Keep(Leave::Retained);
        }
        if !self
            .sources
            .get(&projection.source)
            .is_some_and(SourceState::is_missing)
        {
            return keep;
        }
        // A copy that another rule reserves stays, too.
        if self.reserved_for(&projection.rule, copy).is_some() {
            return keep;
        }
        if rule.retention.when_source_deleted == Retain::Retain {
            return Fate::Keep(Leave::Retained);
        }
        Fate::SourceGone(vec![projection.source.clone()])
    }

    /// Returns the fate of a copy that no rule wants because the rule's selectors no longer find
    /// its source. It is treated like a copy of a named source that was deleted. Without a grant
    /// the findings of a selector are unknown, so such a copy is not decided here.
    fn unselected(&self, rule: &Rule, namespace: &Namespace, copy: &CopyState) -> Option<Fate> {
        let source = self
            .origin(copy)
            .filter(|source| !self.is_withheld(rule, source))?;
        let mut selectors = rule
            .selectors
            .iter()
            .filter(|selector| selector.could_find(source))
            .peekable();
        selectors.peek()?;
        let kind = source.gvk.group_kind();
        let mut projections = self
            .projections
            .of_object(&kind, &source.namespace, &source.name);
        if !rule.matches(namespace.place())
            || projections.any(|projection| *projection.rule == rule.id)
        {
            return None;
        }
        let keep = |why| Some(Fate::Keep(why));
        if rule.retention.when_source_deleted == Retain::Retain {
            return keep(Leave::Retained);
        }
        let mut lost = Vec::new();
        for selector in selectors {
            let Some(members) = self.found(selector) else {
                return keep(Leave::Undecided);
            };
            let found = members.get(&source.name);
            let source = selector.source(source.name.clone());
            match self.sources.get(&source) {
                Some(SourceState::NotRead) => return keep(Leave::Undecided),
                // The selector finds the object, but the rule already has as many sources as it may
                // have.
                None if found.is_some() => return keep(Leave::Retained),
                // The object was never copied, or the rule already has as many sources as it may
                // have. An object that has become a copy is no source any more.
                Some(SourceState::Found { .. }) if found.is_none_or(|found| !found.copy) => {
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
    fn superseded(
        &self,
        rule: &Rule,
        namespace: &Namespace,
        copy: &CopyState,
        seen: &Seen,
    ) -> Fate {
        let mut sourceless = None;
        for (other, projection) in self
            .successors(&rule.id, namespace)
            .filter(|(_, projection)| is_replacement(projection, seen))
        {
            match &projection.rendering {
                Err(NoRendering::SourceMissing) => sourceless = Some(projection),
                // No known obstacle keeps the replacement away.
                Ok(_)
                    if !matches!(
                        other.verdict.outlook,
                        Outlook::Conflict | Outlook::Unfillable
                    ) => {}
                // The replacement of this copy, from the same source, must exist first. Nothing
                // cuts this wait short.
                _ => return Fate::Keep(Leave::Undecided),
            }
        }
        sourceless.map_or(Fate::Superseded, |projection| {
            self.sourceless(projection, rule, copy)
        })
    }

    /// The copies of a namespace that the rule wants and in which no correct copy was seen yet.
    pub(crate) fn successors<'a>(
        &'a self,
        id: &'a RuleId,
        namespace: &'a Namespace,
    ) -> impl Iterator<Item = (&'a CopyState, &'a Projection)> {
        let open = |copy: &&CopyState| copy.baseline.is_none_or(|baseline| !baseline.right);
        let copies = namespace.copies.iter().filter(open);
        let projection = |copy: &'a CopyState| Some((copy, self.projections.wanted(copy)?));
        copies
            .filter_map(projection)
            .filter(|(_, projection)| *projection.rule == *id)
    }
}

/// True if the projection makes its copy from the same source as this copy. Then it is the copy's
/// replacement.
pub(crate) fn is_replacement(projection: &Projection, copy: &Seen) -> bool {
    copy.source == source_hash(&projection.source.to_string())
}
