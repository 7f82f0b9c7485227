//! The sources that the selectors of rules find. A source appears and disappears with its labels,
//! and so do the rule's projections for it.
//!
//! A source that a selector no longer finds has no projection any more. Its copies still exist, but
//! no rule wants them. Each copy names its source in an annotation. That tells whether the copy was
//! lost with its source, even if the loss happened before this process began.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use mimeo_model::{
    id::{ProjectionId, RuleId},
    kind::GroupKind,
    known::{Decoded, Known, Watched},
    meta::Seen,
    names,
    rule::Rule,
    source::{SourceRef, SourceRefused, SourceSelector, refused_size},
};

use crate::{
    Effects, Index, Member, Members, SourceState, copy::CopyState, jobs::JobKey,
    projection::Projection,
};

/// The objects that one selector finds, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct SelectorState {
    /// The rules with this selector, each with whether it may select here. A plan needs the answers
    /// for each copy.
    pub(crate) rules: BTreeMap<Arc<RuleId>, bool>,
    /// True if the watch of the selector is open. An event of a watch that was just closed is too
    /// late, and ignored.
    pub(crate) watched: bool,
    /// Before the watch has shown everything that the selector finds, no object counts.
    pub(crate) watch: Watched,
    pub(crate) members: Members,
}

impl SelectorState {
    /// The selector isn't watched any more: drops all that was found. Returns true if the selector
    /// was listed before.
    pub(crate) fn forget(&mut self) -> bool {
        self.members = Members::default();
        std::mem::take(&mut self.watch).is_listed()
    }

    /// True if a rule may take the object.
    fn offers(&self, name: &str) -> bool {
        self.members.first().any(|member| *member.name == *name)
    }
}

/// The sources that a rule copies now.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// The sources that the rule names, then those that its selectors find.
    pub(crate) sources: Vec<SourceRef>,
    /// Objects that the selectors find and that are never copied, with the reason.
    pub(crate) passed: Vec<(SourceRef, SourceRefused)>,
    /// True if the selectors find more objects than the rule may have.
    pub(crate) beyond: bool,
}

impl Index {
    /// Returns the facts that decide if a rule takes the source: whether it was read, and why it is
    /// never copied. `None`: no such object is known.
    fn seen_as(&self, source: &SourceRef) -> Option<(bool, Option<SourceRefused>)> {
        match self.sources.get(source)? {
            SourceState::NotRead => Some((false, None)),
            SourceState::Found { never, .. } => Some((true, never.clone())),
            SourceState::Missing { .. } => None,
        }
    }

    /// True if the selector of the source is not listed yet, so that its copied objects are
    /// unknown, and this object of this size may be one of them.
    fn may_be_copied_later(&self, source: &SourceRef, bytes: usize) -> bool {
        let findings = source
            .selector()
            .and_then(|selector| self.selectors.get(selector));
        findings.is_some_and(|findings| {
            let mut rules = findings.rules.keys();
            !findings.watch.is_listed()
                && findings.offers(&source.name)
                && rules.any(|id| refused_size(id.kind, bytes).is_none())
        })
    }

    /// Chooses the sources that a rule copies now: first the named ones, then those that its
    /// selectors find. If there are too many, the first ones are taken. Only selectors that the
    /// stored rule of this identity has count.
    pub(crate) fn choose(&self, rule: &Rule) -> Choice {
        let mut choice = Choice {
            sources: rule.sources.clone(),
            ..Choice::default()
        };
        let mut taken: BTreeSet<_> = rule.sources.iter().map(SourceRef::object).collect();
        for selector in self.followed(rule) {
            let Some(members) = self.found(selector) else {
                continue;
            };
            choice.beyond |= members.excess().is_some_and(|member| !member.copy);
            for member in members.first() {
                let source = selector.source(&*member.name);
                let Some((_, never)) = self.seen_as(&source) else {
                    continue;
                };
                let object = source.object();
                if member.copy || taken.contains(&object) {
                    continue;
                }
                // A rule that changes the type of Secrets may copy the object, unless the object
                // can't be decoded.
                let retyped = rule.transform.common.type_.is_some();
                let refused = |why: &SourceRefused| !retyped || *why == SourceRefused::Undecodable;
                if let Some(why) = never.filter(refused) {
                    choice.passed.push((source, why));
                } else if choice.sources.len() < rule.most_sources {
                    taken.insert(object);
                    choice.sources.push(source);
                } else {
                    choice.beyond = true;
                }
            }
        }
        choice
    }

    /// The selectors of a stored rule that are followed: it may select there. All selectors of
    /// `ClusterReplication`s are followed, and those of a Replication in its own namespace and in
    /// namespaces that consent. If a selector isn't followed, Mimeo watches nothing and looks
    /// nothing up for it, and the rule gets no sources from it. That holds even if the same
    /// selector is followed for another rule.
    pub(crate) fn followed<'a>(&self, rule: &'a Rule) -> impl Iterator<Item = &'a SourceSelector> {
        let selectors = rule.selectors.iter();
        selectors.filter(move |selector| self.is_granted(rule, selector) == Some(true))
    }

    /// True if one of the rule's selectors could find this object, but the object's namespace does
    /// not grant that.
    pub(crate) fn is_withheld(&self, rule: &Rule, source: &SourceRef) -> bool {
        let mut selectors = rule.selectors.iter();
        selectors.any(|selector| {
            selector.could_find(source) && self.is_granted(rule, selector) == Some(false)
        })
    }

    /// Whether a stored rule may select with this selector. `None`: the rule does not have it.
    fn is_granted(&self, rule: &Rule, selector: &SourceSelector) -> Option<bool> {
        self.selectors.get(selector)?.rules.get(&rule.id).copied()
    }

    /// The rules that have a selector, whether it is followed for them or not.
    pub(crate) fn rules_selecting(&self, selector: &SourceSelector) -> Vec<Arc<RuleId>> {
        self.selectors
            .get(selector)
            .into_iter()
            .flat_map(|findings| findings.rules.keys())
            .cloned()
            .collect()
    }

    /// True if the engine needs events about the source: a rule names it, or a selector that finds
    /// it is watched.
    pub fn follows(&self, source: &SourceRef) -> bool {
        let watched = |selector: &SourceSelector| {
            self.selectors
                .get(selector)
                .is_some_and(|findings| findings.watched)
        };
        source
            .selector()
            .map_or_else(|| self.sources.contains_key(source), watched)
    }

    /// True if the engine knows this resourceVersion of the source, and its last read succeeded.
    pub fn knows(&self, source: &SourceRef, version: u64) -> bool {
        matches!(self.sources.get(source), Some(SourceState::Found { version: known, .. }) if *known == version)
            && !self.unreadable.contains_key(source)
    }

    /// True if the source must still be read.
    pub(crate) fn is_unread(&self, source: &SourceRef) -> bool {
        matches!(self.sources.get(source), Some(SourceState::NotRead))
    }

    /// True if the object is one of the rule's own sources.
    pub(crate) fn is_own_source(
        &self,
        rule: &Rule,
        kind: &GroupKind,
        namespace: &str,
        name: &str,
    ) -> bool {
        // A quick check comes first, because this is called for every copy. Selected sources exist
        // only in the namespaces of the rule's selectors.
        let near = rule
            .selectors
            .iter()
            .any(|selector| *selector.namespace == *namespace);
        let mut projections = self.projections.of_object(kind, namespace, name);
        rule.is_source(kind, namespace, name)
            || near && projections.any(|projection| *projection.rule == rule.id)
    }

    /// True if each selector of the rule is listed, or can't be listed for a known reason.
    pub(crate) fn knows_selected(&self, rule: &Rule) -> bool {
        self.followed(rule).all(|selector| {
            self.found(selector).is_some() || self.selector_blocked(selector).is_some()
        })
    }

    /// Returns the source that a copy names in its annotation.
    pub(crate) fn origin(&self, copy: &CopyState) -> Option<&SourceRef> {
        copy.ours().and_then(|seen| self.origins.get(&seen.source))
    }

    /// Returns the objects that a selector finds. `None`: the selector is not listed yet.
    pub(crate) fn found(&self, selector: &SourceSelector) -> Option<&Members> {
        let findings = self.selectors.get(selector)?;
        findings.watch.is_listed().then_some(&findings.members)
    }

    /// Remembers the source that a copy names in its annotation.
    pub(crate) fn remember_origin(&mut self, seen: &Seen, meta: &ObjectMeta) {
        let source = || SourceRef::parse(meta.annotations.as_ref()?.get(names::SOURCE)?);
        if seen.ours()
            && !self.origins.contains_key(&seen.source)
            && let Some(source) = source()
        {
            self.origins.insert(seen.source, source);
        }
    }
}

impl Index {
    /// Records the state of a selector's watch. A list has all objects that exist now.
    /// `Engine::source` shows each of them too, before or after this call. The objects that it
    /// found before stay valid while it can't be watched.
    pub(crate) fn selected(
        &mut self,
        selector: &SourceSelector,
        known: Known<&Members>,
        effects: &mut Effects,
    ) {
        if let Known::Listed(found) = known {
            return self.selector_listed(selector, found, effects);
        }
        let findings = self.selectors.get_mut(selector);
        if findings.is_some_and(|findings| findings.watch.becomes(known)) {
            self.replan_rules(self.rules_selecting(selector));
        }
    }

    fn selector_listed(
        &mut self,
        selector: &SourceSelector,
        found: &Members,
        effects: &mut Effects,
    ) {
        let Some(findings) = self
            .selectors
            .get_mut(selector)
            .filter(|findings| findings.watched)
        else {
            return;
        };
        findings.watch.becomes(Known::Listed(()));
        let members = findings.members.relisted(found);
        let former = std::mem::replace(&mut findings.members, members);
        let new = |member: &&Member| former.get(&member.name).is_none();
        for member in findings.members.first().filter(new) {
            // The caller also shows the object itself, so no job needs to read it.
            self.sources
                .entry(selector.source(&*member.name))
                .or_insert(SourceState::NotRead);
        }
        // An object for which there is no more room may still exist. A read shows that before a copy
        // of it is deleted.
        let members = &findings.members;
        let held = self.sources.iter().filter(|(source, state)| {
            selector.finds(source) && !state.is_missing() && members.get(&source.name).is_none()
        });
        let gone: Vec<_> = held.map(|(source, _)| source.clone()).collect();
        for source in &gone {
            self.take_source(source, None, effects);
        }
        self.refit_selecting(selector, effects);
        // Then the objects are dropped that no rule copies.
        self.demand_changed();
    }

    /// A selector finds an object, or doesn't find it any more.
    pub(crate) fn selected_source(
        &mut self,
        selector: &SourceSelector,
        source: &SourceRef,
        object: Option<Decoded<Value>>,
        effects: &mut Effects,
    ) {
        let before = self.seen_as(source);
        let Some(findings) = self
            .selectors
            .get_mut(selector)
            .filter(|findings| findings.watched)
        else {
            return;
        };
        let moved = match object
            .as_ref()
            .and_then(|object| Member::of(object.value()))
        {
            Some(member) => findings.members.put(member),
            None => findings.members.take(&source.name),
        };
        let excess = findings
            .members
            .excess()
            .map(|member| selector.source(&*member.name));
        let held = object.is_some() && findings.offers(&source.name);
        if findings.members.depleted() {
            self.demand_changed();
        }
        if let Some(excess) = excess
            && self
                .sources
                .get(&excess)
                .is_some_and(|state| !state.is_missing())
        {
            self.sources.remove(&excess);
        }
        if held {
            self.sources
                .entry(source.clone())
                .or_insert(SourceState::NotRead);
        }
        self.take_source(source, object, effects);
        if moved || self.seen_as(source) != before {
            self.refit_selecting(selector, effects);
        }
        self.render_source(source);
        self.keep_if_copied(source, effects);
    }

    /// Holds an object only if copies are made from it. So it drops the object if no rule takes it,
    /// or if it is too large for every rule that does. If the object is needed but not held, it is
    /// read again.
    pub(crate) fn keep_if_copied(&mut self, source: &SourceRef, effects: &mut Effects) {
        let Some(&SourceState::Found { bytes, .. }) = self.sources.get(source) else {
            return;
        };
        let fits = |projection: &Projection| refused_size(projection.rule.kind, bytes).is_none();
        let copied = self
            .projections
            .of_source(source)
            .any(|(_, projection)| fits(projection));
        let kept = copied || self.may_be_copied_later(source, bytes);
        let Some(SourceState::Found { object, never, .. }) = self.sources.get_mut(source) else {
            return;
        };
        let decodable = *never != Some(SourceRefused::Undecodable);
        if object.is_none() && copied && decodable {
            self.read_again(source, effects);
        } else if !kept {
            *object = None;
        }
    }

    pub(crate) fn read_again(&mut self, source: &SourceRef, effects: &mut Effects) {
        self.sources.insert(source.clone(), SourceState::NotRead);
        // The answer to a running read may be older than the state that was dropped since.
        effects.jobs.end(&JobKey::ReadSource(source.clone()));
        effects.jobs.ask(JobKey::ReadSource(source.clone()));
    }

    /// Gives every rule that follows the selector one projection for each of its sources, and no
    /// other. If a found object isn't held because there was no room when the watch showed it, it
    /// is read now.
    pub(crate) fn refit_selecting(&mut self, selector: &SourceSelector, effects: &mut Effects) {
        let Some(findings) = self.selectors.get(selector) else {
            return;
        };
        let first: Vec<SourceRef> = findings
            .members
            .first()
            .map(|member| selector.source(&*member.name))
            .collect();
        for source in first {
            if !self.sources.contains_key(&source) {
                self.read_again(&source, effects);
            }
        }
        let rules = self.rules_selecting(selector);
        for id in &rules {
            self.refit_projections(id, effects);
        }
        // A rule may have copies of an object that it does not copy any more.
        self.replan_rules(rules);
    }

    /// Gives a rule one projection of each of its sources for each of its targets, and no other.
    /// Sources that it copies and that aren't held are read.
    pub(crate) fn refit_projections(&mut self, id: &Arc<RuleId>, effects: &mut Effects) {
        let Some((id, mut state)) = self.rules.remove_entry(id) else {
            return;
        };
        let mut sources = vec![];
        if let Ok(rule) = &state.rule {
            sources = self.choose(rule).sources;
            let known = |projections: Vec<ProjectionId>| {
                let first = self.projections.get(projections.first()?)?;
                Some((first.source.clone(), projections))
            };
            let former = std::mem::take(&mut state.projections).into_iter();
            let mut former: BTreeMap<_, _> = former.filter_map(known).collect();
            for source in &sources {
                let known = former.remove(source);
                let projections = known.unwrap_or_else(|| self.project(&id, rule, source));
                state.projections.push(projections);
            }
            for (source, gone) in former {
                gone.into_iter().for_each(|id| self.remove_projection(id));
                sources.push(source);
            }
        }
        self.rules.insert(id, state);
        for source in &sources {
            self.keep_if_copied(source, effects);
        }
        effects.work.untidy = true;
    }

    /// Drops the objects that no rule copies.
    pub(crate) fn keep_what_is_copied(&mut self, effects: &mut Effects) {
        let sources: Vec<SourceRef> = self.sources.keys().cloned().collect();
        for source in &sources {
            self.keep_if_copied(source, effects);
        }
    }
}
