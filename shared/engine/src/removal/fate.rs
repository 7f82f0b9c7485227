//! The fate of copies without a source, and of copies that no rule wants, and whether Mimeo may
//! delete such a copy now. Deletions and the plan of a suspended rule both use this one decision
//! about the fate.

use std::sync::Arc;

use mimeo_model::{
    choices::Retain,
    id::{KindId, RuleId, RuleKind},
    meta::{Seen, source_hash},
    rule::Rule,
    source::SourceRef,
};

use crate::{
    Index, Namespace, SourceState,
    absent::HowGone,
    clock::Tick,
    copy::{CopyState, Leave, Why},
    jobs::JobKey,
    projection::{NoRendering, Projection},
    verdict::{Need, Needs, Outlook},
};

/// The fate of a copy according to the wishes of all rules: why Mimeo deletes it, or else why it
/// stays. [`Index::may_go`] checks whether the rule is active, and which reads, pauses or
/// confirmations a deletion needs first.
pub(crate) type Fate = Result<Removal, Leave>;

/// Why Mimeo deletes a copy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// Its rule does not exist.
    RuleGone,
    /// Its source is gone.
    SourceGone(SourceRef),
    /// The rule wants no copy in this namespace, or may have none there.
    Unmatched,
    /// Another copy of the rule replaces it, or will soon replace it.
    Superseded,
}

impl Index {
    /// Returns the fate of a copy that no rule wants (any more).
    pub(crate) fn fate(&self, namespace: &Namespace, copy: &CopyState) -> Fate {
        let seen = copy.ours().ok_or(Leave::Nothing)?;
        if seen.deleting {
            return Err(Leave::Deleting);
        }
        if seen.elsewhere {
            return Err(Leave::Elsewhere);
        }
        let id = seen.rule.as_ref().ok_or(Leave::Nothing)?;
        if self.remembers(namespace, id, copy.kind, &copy.name) {
            // The rule once kept this copy up to date, and now has `strategy: CreateOnce`. Mimeo's
            // annotations on the copy are older than that change.
            return Err(Leave::Retained);
        }
        if !self.all_rules() || !self.all_rules_of(id.kind) {
            return Err(Leave::Undecided);
        }
        // The copy is now itself the source of other copies. They would be deleted with it.
        let feeds = self.is_source(id.kind, namespace, copy);
        let Some(state) = self.rules.get(id) else {
            return if feeds || seen.outlives_rule() {
                Err(Leave::Retained)
            } else {
                Ok(Removal::RuleGone)
            };
        };
        let rule = state.valid().ok_or(Leave::Suspended)?;
        // Otherwise a user could create a rule with the former rule's name and so delete copies
        // without the permission to delete them.
        if seen.left_by_another(&rule.uid) {
            return Err(Leave::Retained);
        }
        // A copy that has lost its own source is deleted even if other copies are made from it.
        if let Some(fate) = self.unselected(rule, namespace, copy) {
            return fate;
        }
        if feeds || rule.retention.when_unmatched == Retain::Retain {
            return Err(Leave::Retained);
        }
        if id.kind == RuleKind::Replication && !self.grants_known() {
            return Err(Leave::Undecided);
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
            return Ok(Removal::Unmatched);
        }
        // Selectors that aren't listed yet may find the source of a copy that replaces this one.
        // Before they are listed, no other rule takes this copy either.
        if !self.knows_selected(rule) {
            return Err(Leave::Undecided);
        }
        // Another rule or source may have the copy that should replace this one, or its name can't
        // be filled in. Then this copy stays.
        let first = (id.clone(), KindId::default(), Arc::default());
        let blocked = namespace.blocked.range(first..);
        let blocked = blocked.take_while(|((rule, ..), _)| rule == id);
        let mut lost = blocked.filter_map(|(_, copy)| self.projections.get(&copy.projection));
        if lost.any(|projection| is_replacement(projection, seen)) {
            return Err(Leave::Undecided);
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
        let keep = Err(Leave::NoSource);
        let seen = copy.ours().ok_or(Leave::NoSource)?;
        // A copy of another source stays: the user may have changed the rule to a source that does
        // not exist yet.
        if seen.deleting || !is_replacement(projection, seen) {
            return keep;
        }
        // A former rule of the same name retained this copy. The present rule has never written it,
        // and so doesn't delete it.
        if seen.left_by_another(&rule.uid) {
            return Err(Leave::Retained);
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
            return Err(Leave::Retained);
        }
        Ok(Removal::SourceGone(projection.source.clone()))
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
        let keep = |why| Some(Err(why));
        if rule.retention.when_source_deleted == Retain::Retain {
            return keep(Leave::Retained);
        }
        // All these selectors have lost the same object, so one read tells how it went. The grace
        // period begins when the last of them lost it.
        let mut lost: Option<(Tick, SourceRef)> = None;
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
                Some(SourceState::Missing { since, .. }) => lost = lost.max(Some((*since, source))),
                Some(SourceState::Found { .. }) => lost = lost.or(Some((Tick::ZERO, source))),
                // Its grace period begins now.
                None => lost = Some((self.now, source)),
            }
        }
        lost.map(|(_, source)| Ok(Removal::SourceGone(source)))
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
                _ => return Err(Leave::Undecided),
            }
        }
        sourceless.map_or(Ok(Removal::Superseded), |projection| {
            self.sourceless(projection, rule, copy)
        })
    }

    /// The copies of a namespace that the rule wants and in which no correct copy was seen yet.
    fn successors<'a>(
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

impl Index {
    /// Returns why Mimeo may delete a copy of this rule with this fate now. The error says why the
    /// copy stays.
    ///
    /// A deletion cannot be undone, and an object that a watch doesn't show is easily mistaken for
    /// a deleted one. So a loss counts as deliberate only if an uncached read says so. Every other
    /// loss is first collected for a while, and held if it is large.
    pub(crate) fn may_go(
        &self,
        fate: Fate,
        id: &Arc<RuleId>,
        namespace: &Namespace,
        copy: &CopyState,
        needs: &mut Needs,
    ) -> Result<Why, Leave> {
        let seen = copy.ours().ok_or(Leave::Nothing)?;
        let removal = fate?;
        if self.may_be_selected(namespace, copy) {
            return Err(Leave::Undecided);
        }
        let (how, why) = match removal {
            // The source's grace period has not ended.
            Removal::SourceGone(source) if self.is_new_loss(id, &source, needs) => {
                return Err(Leave::NoSource);
            }
            _ if self.rules.contains_key(id) && self.acting(id).is_none() => {
                return Err(Leave::Suspended);
            }
            Removal::RuleGone => {
                let key = JobKey::ConfirmRule(id.clone());
                (self.how_gone(key, copy, needs), Why::RuleDeleted)
            }
            Removal::SourceGone(source) => {
                let how = self.how_source_went(source, copy, needs);
                (how, Why::SourceDeleted)
            }
            Removal::Unmatched => match self.how_consent_went(id, namespace, copy, needs) {
                Some(HowGone::Unexplained) => return Err(Leave::Retained),
                how => (how, Why::Unmatched),
            },
            // The new copies must exist before the old one is deleted.
            Removal::Superseded if self.awaits_successors(id, namespace, seen) => {
                return Err(Leave::Undecided);
            }
            Removal::Superseded => return Ok(Why::Superseded),
        };
        match how {
            // No client deleted the rule, the source or the grant on purpose. So the copy is deleted
            // only after the rule's collected losses were approved.
            Some(HowGone::WithNamespace | HowGone::Unexplained) if copy.approved != Some(why) => {
                needs.push(Need::Loss(id.clone(), why));
                Err(Leave::Undecided)
            }
            Some(_) => Ok(why),
            None => Err(Leave::Undecided),
        }
    }

    /// True if a rule may make this copy once its selectors are listed. It would have to create the
    /// copy again, while pods may need it.
    fn may_be_selected(&self, namespace: &Namespace, copy: &CopyState) -> bool {
        let Some(source) = self.origin(copy) else {
            return false;
        };
        let place = namespace.place();
        let kind = &self.kinds[copy.kind].group_kind;
        let makes = |rule: &Rule| {
            rule.makes(source, place, &copy.name)
                && self.may_write(&rule.id, place.name, kind, &copy.name)
        };
        self.selectors.iter().any(|(selector, findings)| {
            let granted = findings.rules.iter().filter(|(_, granted)| **granted);
            selector.could_find(source)
                && !findings.watch.is_listed()
                && self.selector_blocked(selector).is_none()
                && granted.filter_map(|(id, _)| self.acting(id)).any(makes)
        })
    }

    /// True if the grace period of a source has not ended, so that the copies of the rule stay.
    fn is_new_loss(&self, id: &Arc<RuleId>, source: &SourceRef, needs: &mut Needs) -> bool {
        let Some(rule) = self.valid(id) else {
            return true;
        };
        let since = match self.sources.get(source) {
            Some(SourceState::Missing { since, .. }) => *since,
            Some(_) => return false,
            // The grace period of a source that a selector found before this process began starts
            // now.
            None => {
                needs.push(Need::LostSource(source.clone()));
                self.now
            }
        };
        let end = since + rule.source_grace();
        let new = self.now < end;
        if new {
            needs.push(Need::GraceEnd(id.clone(), end));
        }
        new
    }

    /// True if the rule's other copies must be written first. A copy that cannot be written is not
    /// waited for.
    fn awaits_successors(&self, id: &RuleId, namespace: &Namespace, seen: &Seen) -> bool {
        let comes = |other: &CopyState, projection: &Projection| match &projection.rendering {
            Err(NoRendering::NotRead) => true,
            Ok(_) => other.failure.is_none(),
            Err(_) => false,
        };
        // The replacement of this copy, from the same source, is waited for in any case.
        let due = |(other, projection)| {
            is_replacement(projection, seen)
                || self.blocked(projection).is_none() && comes(other, projection)
        };
        self.successors(id, namespace).any(due)
    }
}

/// True if the projection makes its copy from the same source as this copy. Then it is the copy's
/// replacement.
fn is_replacement(projection: &Projection, copy: &Seen) -> bool {
    copy.source == source_hash(&projection.source.to_string())
}
