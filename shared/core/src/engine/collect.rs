//! Which copies nobody wants, and whether they may go.
//!
//! Deleting is the one thing that can't be mended, and silence is easily mistaken for a wish. So a loss counts as meant only
//! when a read that no cache answers says so; every other loss is collected for a while first, and held when it is large.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{Engine, Namespace, Role, Tick, absent::Fate, kinds::Note, record::CrdState, work::Errand};
use crate::{
    cell::{Belief, Cell, Leave, Phase, Step, Why},
    meta::source_hash,
    rule::{Retain, RuleId, RuleKind, SourceRef},
    slot::{KindId, NoRendering, Slot},
};

/// Where there are this many cells, tidying takes a while,
const MANY: usize = 1024;
/// and rests so long for each of them afterwards: some ten times what it took.
const EACH: Duration = Duration::from_micros(5);

impl Engine {
    pub(super) fn decide_unwanted(&mut self, name: &Arc<str>, namespace: &Namespace, cell: &Cell) -> Step {
        if matches!(cell.belief, Belief::Taken(_)) && self.settings.role == Role::Keeper {
            return Step::Look;
        }
        // Without our label no watch shows it, and what nobody sees nobody cleans up: seen by chance it is left alone, too.
        let Some(seen) = cell.ours().filter(|seen| seen.labelled) else { return Step::Leave(Leave::Nothing) };
        if self.settings.role == Role::Injector || seen.deleting {
            return Step::Leave(Leave::Deleting);
        }
        if seen.elsewhere {
            return Step::Leave(Leave::Elsewhere);
        }
        let Some(id) = seen.rule.clone() else { return Step::Leave(Leave::Nothing) };
        if self.remembers(namespace, &id, cell.kind, &cell.name) {
            // Kept by its rule once, which has come to create once since: the marks on it are older than that.
            return Step::Leave(Leave::Retained);
        }
        let undecided = Step::Leave(Leave::Undecided);
        if !self.all_rules() || !self.all_rules_of(id.kind) {
            return undecided;
        }
        // Once a copy, now what others are copied from: its own copies would go with it.
        let feeds = self.is_named(id.kind, cell.kind, name, &cell.name);
        let state = match self.rules.get(&id) {
            None if feeds => return Step::Leave(Leave::Retained),
            None => return self.decide_ruleless(&id, name, cell),
            Some(state) => state,
        };
        if state.acting().is_none() {
            return Step::Leave(Leave::Suspended);
        }
        // Without a source of its own it goes all the same.
        if let Some(step) = self.decide_unselected(&id, name, namespace, cell) {
            return step;
        }
        if feeds {
            return Step::Leave(Leave::Retained);
        }
        let Some((state, Ok(rule))) = self.rules.get(&id).map(|state| (state, &state.rule)) else { return undecided };
        if rule.retention.when_unmatched == Retain::Retain {
            return Step::Leave(Leave::Retained);
        }
        if id.kind == RuleKind::Replication && !self.grants_known() {
            return undecided;
        }
        let mut slots = state.slots.iter().flatten().filter_map(|slot| self.slots.get(slot));
        let makes = slots.any(|slot| slot.kind == cell.kind && slot.name.at(namespace.place(name)) == cell.name);
        let withheld = self.origin(cell).is_some_and(|source| self.is_withheld(rule, source));
        if makes || withheld || !rule.matches(name, &namespace.labels) {
            // A copy that the rule still makes, elsewhere, or would make: what has changed is the namespace, or the selection, or
            // what is granted.
            return self.sweep(&id, name, cell, Why::Unmatched);
        }
        self.decide_superseded(&id, name, namespace, cell)
    }

    /// Whether this object is a source that a rule of the kind `by` must leave alone because a rule names it. What a selector
    /// finds it takes as it comes and goes.
    pub(super) fn is_named(&self, by: RuleKind, kind: KindId, namespace: &str, name: &str) -> bool {
        let kind = &self.kinds[kind].group_kind;
        let counts = |slot: &Slot| slot.granted && slot.rule.kind <= by && slot.source.selector().is_none();
        self.slots.of_object(kind, namespace, name).any(counts)
    }

    /// Whether this object is a source that a rule of the kind `by` must leave alone. To the platform's rules a tenant's sources
    /// are none: by naming the place of a copy as a source he could keep it away, or keep it for good. Nor is anything a source
    /// that its rule may not read.
    pub(super) fn is_source(&self, by: RuleKind, kind: KindId, namespace: &str, name: &str) -> bool {
        let kind = &self.kinds[kind].group_kind;
        self.slots.of_object(kind, namespace, name).any(|slot| slot.granted && slot.rule.kind <= by)
    }

    /// A copy that its rule, which still matches the namespace, wants no more: renamed, of another kind, or of a source that the
    /// rule no longer has. First the new copies, then away with the old one; but what can't come is not waited for.
    fn decide_superseded(&mut self, id: &Arc<RuleId>, name: &Arc<str>, namespace: &Namespace, cell: &Cell) -> Step {
        let Some(seen) = cell.ours() else { return Step::Leave(Leave::Nothing) };
        let undecided = Step::Leave(Leave::Undecided);
        let mut sourceless = None;
        for other in namespace.cells.iter().filter(|other| other.good.is_none()) {
            let slot = other.want.and_then(|want| Some((want, self.slots.get(&want)?)));
            let Some((want, slot)) = slot.filter(|(_, slot)| slot.rule == *id) else { continue };
            let heir = seen.source == source_hash(&slot.source.to_string());
            match &slot.rendering {
                Err(NoRendering::SourceMissing) if heir => sourceless = Some(want),
                Err(NoRendering::NotRead) if self.hindrance(slot).is_none() => return undecided,
                // The heir of this very copy is waited for, come what may.
                _ if heir => return undecided,
                Ok(_) if other.failure.is_none() => return undecided,
                _ => {}
            }
        }
        match sourceless {
            Some(want) => self.decide_sourceless(want, name, cell),
            None => Step::Delete(seen.uid, seen.version, Why::Superseded),
        }
    }

    fn decide_ruleless(&mut self, id: &Arc<RuleId>, name: &Arc<str>, cell: &Cell) -> Step {
        let Some(seen) = cell.ours() else { return Step::Leave(Leave::Nothing) };
        if seen.retention().is_some_and(|retention| retention.when_rule_deleted == Retain::Retain) {
            return Step::Leave(Leave::Retained);
        }
        match self.rule_fate(id, cell) {
            None => Step::Leave(Leave::Undecided),
            Some(Fate::Meant) => Step::Delete(seen.uid, seen.version, Why::RuleDeleted),
            Some(Fate::Homeless | Fate::Lost) => self.sweep(id, name, cell, Why::RuleDeleted),
        }
    }

    pub(super) fn decide_lost_source(
        &mut self,
        source: &SourceRef,
        rule: &Arc<RuleId>,
        name: &Arc<str>,
        cell: &Cell,
    ) -> Step {
        let Some(seen) = cell.ours() else { return Step::Leave(Leave::NoSource) };
        match self.source_fate(source, cell) {
            None => Step::Leave(Leave::Undecided),
            Some(Fate::Meant) => Step::Delete(seen.uid, seen.version, Why::SourceDeleted),
            Some(Fate::Homeless | Fate::Lost) => self.sweep(rule, name, cell, Why::SourceDeleted),
        }
    }

    /// Forgets rules that no copy names any more, and kinds that need no watch any more. Called when the queue is empty.
    pub(super) fn tidy(&mut self) {
        if !self.all_rules() || self.settings.role == Role::Injector {
            return;
        }
        let mut named: BTreeSet<KindId> = BTreeSet::new();
        let mut owners: BTreeSet<Arc<RuleId>> = BTreeSet::new();
        let mut origins: BTreeSet<u64> = BTreeSet::new();
        let mut strewn: BTreeMap<Arc<RuleId>, BTreeSet<Arc<str>>> = BTreeMap::new();
        let count = self.namespaces.values().map(|namespace| namespace.cells.len()).sum::<usize>();
        let rest = EACH.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        self.work.tidy_after = self.now + if count < MANY { Duration::ZERO } else { rest };
        let cells =
            self.namespaces.iter().flat_map(|(name, namespace)| namespace.cells.iter().map(move |cell| (name, cell)));
        for (name, cell) in cells {
            if cell.want.is_none() && matches!(cell.phase, Phase::InFlight(_)) {
                // A copy may come of it yet, of a rule that is gone. Its answer calls here again.
                return;
            }
            // Whoever lists the kind before its note goes finds what isn't ours, too, if it carries our label.
            if cell.seen().is_some_and(|seen| seen.labelled || seen.ours()) {
                named.insert(cell.kind);
            }
            origins.extend(cell.ours().map(|seen| seen.source));
            let Some(owner) = cell.ours().and_then(|seen| seen.rule.clone()) else { continue };
            if owner.kind == RuleKind::Replication {
                strewn.entry(owner.clone()).or_default().insert(name.clone());
            }
            owners.insert(owner);
        }
        self.consent.strewn_as(strewn);
        self.forget_origins(&origins);
        let now = self.now;
        self.gone.retain(|id, gone| owners.contains(id) || now < gone.until);
        // A rule that is there may have lost the source of a copy that carries another's mark still.
        self.sweeps.retain(|id, _| owners.contains(id) || self.rules.contains_key(id));
        self.forget_withdrawals();
        let wanted = self.wanted_kinds();
        let places = self.watched_places();
        let listed: Vec<bool> = self.kinds.iter().map(|(_, kind)| self.listed(kind)).collect();
        for ((id, kind), listed) in self.kinds.iter_mut().zip(listed) {
            let needless = listed && !wanted.contains(&id) && !named.contains(&id);
            if needless && matches!(kind.note, Note::Present { .. }) {
                kind.note = Note::Removing;
                self.work.errands.push_back(Errand::Unrecord(kind.group_kind.clone(), places.clone()));
            }
        }
        for kind in RuleKind::ALL {
            let CrdState { current, recorded, .. } = &self.collections[kind].crd;
            // Where no tenant ever had a rule there is nothing to tell from another definition's.
            let used = kind == RuleKind::ClusterReplication || recorded.is_some() || self.has_rules(kind);
            let another = current != recorded && used;
            if self.ask_where_rules_live(kind) && another && self.every_copy_seen() {
                self.record_crd_when_clear(kind);
            }
        }
    }

    /// Forgets what no copy was made of any more, of what selectors don't find any more.
    fn forget_origins(&mut self, copied: &BTreeSet<u64>) {
        self.origins.retain(|hash, _| copied.contains(hash));
        let copied = |source: &SourceRef| copied.contains(&source_hash(&source.to_string()));
        self.sources.retain(|source, state| source.selector().is_none() || !state.is_missing() || copied(source));
    }

    /// What keeps one small that may not act yet: time passes, and what has ended is forgotten. Nothing is planned, which would
    /// only be out of date when it may.
    pub fn rest(&mut self, now: Tick) {
        self.at(now);
        self.fire();
        self.news.forget();
        self.changes.forget();
        self.forget_newcomers();
        let mut owners: BTreeSet<Arc<RuleId>> = BTreeSet::new();
        let mut origins: BTreeSet<u64> = BTreeSet::new();
        self.namespaces.retain(|_, namespace| {
            namespace.cells.retain(|cell| cell.want.is_some() || cell.seen().is_some() || !cell.settled());
            owners.extend(namespace.cells.iter().filter_map(|cell| cell.ours()?.rule.clone()));
            origins.extend(namespace.cells.iter().filter_map(|cell| Some(cell.ours()?.source)));
            namespace.uid.is_some() || !namespace.cells.is_empty()
        });
        self.dirty.retain(|name| self.namespaces.contains_key(name));
        self.gone.retain(|id, gone| owners.contains(id) || self.now < gone.until);
        self.consent.forget_strewn(&owners);
        self.forget_origins(&origins);
    }
}
