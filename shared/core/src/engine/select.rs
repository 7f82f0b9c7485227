//! What the selectors of rules find. Sources come and go with their labels, so a rule's slots do.
//!
//! A source that a selector finds no more has no slot any more: its copies are there and nobody wants them. What they say they
//! were copied from tells whether they are lost with their source, in this process's life or before it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::{
    Engine, Namespace, Served, Source,
    absent::SourceVerdict,
    work::{Errand, Timer},
};
use crate::{
    cell::{Cell, Leave, Step, Why},
    lineage::Lineage,
    names,
    outcome::Unreadable,
    render::{SourceRefused, never_copied},
    rule::{MOST_SOURCES, Retain, Rule, RuleId, SourceRef, SourceSelector},
    selection::Labels,
    slot::SlotId,
};

/// An object that a selector finds. Ordered by who comes first where there are too many: what is no copy and may be copied, then
/// the older. So what is created or copied later takes no other's place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    last: bool,
    /// As the API server writes it, which is in the order of time.
    created: Box<str>,
    name: Box<str>,
}

impl Member {
    /// This object; none without a name. Its metadata is enough.
    pub fn of(object: &Value) -> Option<Self> {
        let metadata = &object["metadata"];
        Some(Self {
            last: metadata["annotations"][names::RULE].is_string() || never_copied(object["type"].as_str()).is_some(),
            created: metadata["creationTimestamp"].as_str().unwrap_or_default().into(),
            name: metadata["name"].as_str()?.into(),
        })
    }
}

/// What one selector finds.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Whether everything that it finds was shown. Nothing counts before.
    pub(super) listed: bool,
    /// Why it can't be watched now.
    pub(super) unreadable: Option<Unreadable>,
    in_order: BTreeSet<Member>,
    by_name: BTreeMap<Box<str>, Member>,
}

impl Findings {
    fn put(&mut self, member: Member) {
        if let Some(old) = self.by_name.insert(member.name.clone(), member.clone()) {
            self.in_order.remove(&old);
        }
        self.in_order.insert(member);
    }

    fn take(&mut self, name: &str) {
        if let Some(old) = self.by_name.remove(name) {
            self.in_order.remove(&old);
        }
    }

    /// Those that are held in memory: a rule takes none else.
    fn first(&self) -> impl Iterator<Item = &Member> {
        self.in_order.iter().take(MOST_SOURCES)
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }
}

/// What a rule copies now.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// What it names, then what its selectors find.
    pub(super) sources: Vec<SourceRef>,
    /// What they find that is never copied.
    pub(super) passed: Vec<(SourceRef, SourceRefused)>,
    /// How much more they find than a rule may have.
    pub(super) beyond: usize,
}

impl Engine {
    /// A selector's whole listing was shown: nothing but `found` is there now. What is in it is also told by
    /// [`Engine::source`], before or after this.
    pub fn selected(&mut self, selector: &SourceSelector, found: &BTreeSet<Member>, now: super::Tick) {
        self.at(now);
        let Some(findings) = self.selectors.get_mut(selector) else { return };
        let (listed, unreadable) = (std::mem::replace(&mut findings.listed, true), findings.unreadable.take());
        let lost: Vec<Box<str>> = {
            let names: BTreeSet<&str> = found.iter().map(|member| &*member.name).collect();
            let mine = self.sources.iter().filter(|(source, state)| selector.finds(source) && !state.is_missing());
            let held = mine.map(|(source, _)| &source.name).chain(findings.by_name.keys());
            held.filter(|name| !names.contains(&***name)).cloned().collect()
        };
        for member in found {
            if !findings.by_name.contains_key(&member.name) {
                findings.put(member.clone());
            }
        }
        for member in findings.first() {
            // Whoever shows it reads it, too.
            self.sources.entry(selector.source(member.name.clone())).or_insert(Source::NotRead);
        }
        for name in lost {
            self.source(&selector.source(name), None, now);
        }
        self.refit(selector);
        if !listed || unreadable.is_some() {
            self.touch_selecting(selector);
            self.everything_dirty();
        }
    }

    /// A selector can't be watched, until [`Engine::selected`] says otherwise. What it found holds.
    pub fn selector_unreadable(&mut self, selector: &SourceSelector, why: Unreadable, now: super::Tick) {
        self.at(now);
        let Some(findings) = self.selectors.get_mut(selector) else { return };
        if findings.unreadable.replace(why) != Some(why) {
            self.touch_selecting(selector);
            self.everything_dirty();
        }
    }

    /// Takes in that a selector finds an object, or doesn't find it any more. False: it is nobody's source.
    pub(super) fn meet(&mut self, source: &SourceRef, object: Option<&Value>) -> bool {
        let Some(selector) = source.selector() else { return self.sources.contains_key(source) };
        let Some(findings) = self.selectors.get_mut(&selector) else { return false };
        match object.and_then(Member::of) {
            Some(member) => findings.put(member),
            None => findings.take(&source.name),
        }
        if let Some(excess) = findings.in_order.iter().nth(MOST_SOURCES) {
            let excess = selector.source(excess.name.clone());
            if self.sources.get(&excess).is_some_and(|state| !state.is_missing()) {
                self.sources.remove(&excess);
            }
        }
        let held = object.is_some() && findings.first().any(|member| member.name == source.name);
        if held {
            self.sources.entry(source.clone()).or_insert(Source::NotRead);
        }
        held || self.sources.contains_key(source)
    }

    /// Gives every rule that has the selector a slot for each of its sources, and no other. What is found and isn't held, since
    /// there was no room for it when it was shown, is read.
    pub(super) fn refit(&mut self, selector: &SourceSelector) {
        let Some(findings) = self.selectors.get(selector) else { return };
        let first: Vec<SourceRef> = findings.first().map(|member| selector.source(member.name.clone())).collect();
        for source in first {
            if !self.sources.contains_key(&source) {
                self.sources.insert(source.clone(), Source::NotRead);
                self.work.errands.push_back(Errand::ReadSource(source));
            }
        }
        let rules = self
            .rules
            .iter()
            .filter(|(_, state)| state.rule.as_ref().is_ok_and(|rule| rule.selectors.contains(selector)));
        let rules: Vec<Arc<RuleId>> = rules.map(|(id, _)| id.clone()).collect();
        for id in rules {
            self.refit_rule(&id);
        }
    }

    fn refit_rule(&mut self, id: &Arc<RuleId>) {
        let Some((id, mut state)) = self.rules.remove_entry(id) else { return };
        if let Ok(rule) = &state.rule {
            let sources = self.choose(rule).sources;
            let has = |slots: &Vec<SlotId>| {
                slots.iter().filter_map(|slot| self.slots.get(slot)).map(|slot| &slot.source).eq(&sources)
            };
            if !state.slots.iter().all(has) {
                let former: BTreeMap<(usize, SourceRef), SlotId> = state
                    .slots
                    .iter()
                    .flatten()
                    .filter_map(|slot| {
                        let known = self.slots.get(slot)?;
                        Some(((known.target, known.source.clone()), *slot))
                    })
                    .collect();
                let slots = self.add_slots(&id, rule, &sources, &former);
                let kept: BTreeSet<&SlotId> = slots.iter().flatten().collect();
                for gone in former.values().filter(|slot| !kept.contains(slot)) {
                    self.slots.remove(gone);
                }
                state.slots = slots;
                state.status.touch();
                self.everything_dirty();
                self.work.disturb();
            }
        }
        self.rules.insert(id, state);
    }

    /// What a rule copies now: what it names, and then what its selectors find, the first of them if there are too many.
    pub(super) fn choose(&self, rule: &Rule) -> Choice {
        let mut choice = Choice { sources: rule.sources.clone(), ..Choice::default() };
        let mut taken: BTreeSet<_> = rule.sources.iter().map(place).collect();
        for selector in &rule.selectors {
            let Some(findings) = self.selectors.get(selector).filter(|findings| findings.listed) else { continue };
            choice.beyond += findings.len().saturating_sub(MOST_SOURCES);
            for member in findings.first() {
                let source = selector.source(member.name.clone());
                let object = match self.sources.get(&source) {
                    Some(Source::Found { object, .. }) => Some(object),
                    Some(Source::NotRead) => None,
                    Some(Source::Missing { .. }) | None => continue,
                };
                if object.is_some_and(|object| !Lineage::of(object.get("metadata")).admits(&rule.id))
                    || taken.contains(&place(&source))
                {
                    continue;
                }
                let type_ = object.filter(|_| source.gvk.is_secret() && rule.transform.secret_type().is_none());
                if let Some(why) = type_.and_then(|object| never_copied(object["type"].as_str())) {
                    choice.passed.push((source, why));
                } else if choice.sources.len() < MOST_SOURCES {
                    taken.insert(place(&source));
                    choice.sources.push(source);
                } else {
                    choice.beyond += 1;
                }
            }
        }
        choice
    }

    /// How many slots a rule has, with those that it would have if what its selectors don't find any more were there.
    pub(super) fn slots_had(&self, state: &super::RuleState) -> usize {
        let slots = state.slots.iter().map(Vec::len).sum::<usize>();
        let Ok(rule) = &state.rule else { return slots };
        let selected = |source: &SourceRef| rule.selectors.iter().any(|selector| selector.finds(source));
        let lost = self.sources.iter().filter(|(source, state)| state.is_missing() && selected(source)).count();
        slots + lost.min(MOST_SOURCES) * rule.targets.len()
    }

    /// Whether the source has yet to be read.
    pub fn awaits(&self, source: &SourceRef) -> bool {
        matches!(self.sources.get(source), Some(Source::NotRead))
    }

    /// Whether the object is one of the rule's own sources.
    pub(super) fn is_own_source(
        &self,
        state: &super::RuleState,
        kind: &crate::kind::GroupKind,
        namespace: &str,
        name: &str,
    ) -> bool {
        let Ok(rule) = &state.rule else { return false };
        // Nowhere else is any, and this is asked for every cell.
        let near = rule.selectors.iter().any(|selector| *selector.namespace == *namespace);
        let mut slots = state.slots.iter().take(1).flatten().filter_map(|slot| self.slots.get(slot));
        rule.is_source(kind, namespace, name) || near && slots.any(|slot| slot.source.is(kind, namespace, name))
    }

    /// Why nobody knows what a selector finds, if that is known: whoever waits for it needn't.
    pub(super) fn selector_hindrance(&self, selector: &SourceSelector) -> Option<&'static str> {
        if self.settings.reach.refuses_home(&selector.gvk, Some(&selector.namespace)).is_some() {
            return Some("OutOfReach");
        }
        match self.served.get(&selector.gvk) {
            None | Some(Served::Unknown) => None,
            Some(Served::Unanswered(why)) => Some(why.reason()),
            Some(served) if served.namespaced().is_none() => Some("KindNotServed"),
            Some(_) => self.selectors.get(selector)?.unreadable.map(Unreadable::reason),
        }
    }

    /// Whether everything is known, or known not to be, that the rule's selectors find.
    pub(super) fn knows_selected(&self, rule: &Rule) -> bool {
        let listed = |selector| self.selectors.get(selector).is_some_and(|findings| findings.listed);
        rule.selectors.iter().all(|selector| listed(selector) || self.selector_hindrance(selector).is_some())
    }

    pub(super) fn touch_selecting(&mut self, selector: &SourceSelector) {
        let mut rules = self.rules.values_mut();
        let selects = |rule: &Rule| rule.selectors.contains(selector);
        while let Some(state) = rules.find(|state| state.rule.as_ref().is_ok_and(selects)) {
            state.status.touch();
        }
    }

    /// The selectors of its rule that could have found the source of an unwanted copy, if none does any more.
    pub(super) fn unselected(&self, id: &RuleId, name: &str, labels: &Labels, cell: &Cell) -> Vec<SourceSelector> {
        let Some((rule, state)) = self.rules.get(id).and_then(|state| Some((state.rule.as_ref().ok()?, state))) else {
            return vec![];
        };
        let Some(source) = cell.ours().and_then(|seen| self.origins.get(&seen.source)) else { return vec![] };
        let kind = source.gvk.group_kind();
        let of_kind = |selector: &&SourceSelector| selector.gvk.is_of(&kind) && selector.namespace == source.namespace;
        let selectors: Vec<SourceSelector> = rule.selectors.iter().filter(of_kind).cloned().collect();
        if selectors.is_empty() || !rule.matches(name, labels) {
            return vec![];
        }
        let mut slots = state.slots.iter().flatten().filter_map(|slot| self.slots.get(slot));
        if slots.any(|slot| slot.source.is_same_object(source)) { vec![] } else { selectors }
    }

    /// A copy whose source the rule's selectors find no more: as with one that is named it stays through the grace, and until the
    /// loss is known to be meant. That it has other labels now is nobody's word for a deletion: such losses are collected.
    pub(super) fn decide_unselected(
        &mut self,
        id: &Arc<RuleId>,
        name: &Arc<str>,
        namespace: &Namespace,
        cell: &Cell,
    ) -> Option<Step> {
        let selectors = self.unselected(id, name, &namespace.labels, cell);
        let seen = cell.ours().filter(|_| !selectors.is_empty())?;
        let source = self.origins.get(&seen.source)?.clone();
        let rule = self.rules.get(id)?.rule.as_ref().ok()?;
        if rule.retention.when_source_deleted == Retain::Retain {
            return Some(Step::Leave(Leave::Retained));
        }
        let (grace, undecided) = (rule.retention.source_grace, Step::Leave(Leave::Undecided));
        let mut meant = true;
        for selector in &selectors {
            let Some(findings) = self.selectors.get(selector).filter(|findings| findings.listed) else {
                return Some(undecided);
            };
            let found = findings.by_name.contains_key(&source.name);
            let source = selector.source(source.name.clone());
            let home = self.namespaces.get(&*source.namespace).and_then(|entry| entry.uid);
            let since = self.now;
            if found && !self.sources.contains_key(&source) {
                // One of too many.
                return Some(Step::Leave(Leave::Retained));
            }
            let lost = Source::Missing { since, verdict: SourceVerdict::Unconfirmed, home };
            match self.sources.entry(source.clone()).or_insert(lost) {
                Source::Missing { since, .. } if self.now < *since + grace => {
                    self.work.timer(*since + grace, Timer::Rule(id.clone()));
                    return Some(undecided);
                }
                Source::Missing { verdict: verdict @ SourceVerdict::Unconfirmed, .. } => {
                    *verdict = SourceVerdict::Asked;
                    self.work.errands.push_back(Errand::ConfirmSource(source));
                    return Some(undecided);
                }
                Source::Missing { verdict: SourceVerdict::Asked, .. } | Source::NotRead => return Some(undecided),
                Source::Missing { verdict: SourceVerdict::Meant, .. } => {}
                Source::Missing { verdict: SourceVerdict::Lost, .. } => meant = false,
                // In its place is what comes of it by this very rule.
                Source::Found { object, .. } if !Lineage::of(object.get("metadata")).admits(id) => meant = false,
                // Never copied, or one of too many.
                Source::Found { .. } => return Some(Step::Leave(Leave::Retained)),
            }
        }
        Some(if meant {
            Step::Delete(seen.uid, seen.version, Why::SourceDeleted)
        } else {
            self.sweep(id, name, cell, Why::SourceDeleted)
        })
    }

    /// Remembers what a copy says it was copied from.
    pub(super) fn remember_origin(&mut self, seen: &crate::meta::Seen, annotation: Option<&String>) {
        if seen.ours()
            && self.settings.role == super::Role::Keeper
            && !self.origins.contains_key(&seen.source)
            && let Some(source) = annotation.and_then(|text| SourceRef::parse(text))
        {
            self.origins.insert(seen.source, source);
        }
    }
}

/// What tells one object from another, whoever finds it, in whatever version.
fn place(source: &SourceRef) -> (crate::kind::GroupKind, Box<str>, Box<str>) {
    (source.gvk.group_kind(), source.namespace.clone(), source.name.clone())
}
