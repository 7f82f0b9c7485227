//! Whether copies may go that are to.
//!
//! Deleting is the one thing that can't be mended, and silence is easily mistaken for a wish. So a loss counts as meant only
//! when a read that no cache answers says so; every other loss is collected for a while first, and held when it is large.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    Engine, Namespace, Role, RuleState, SourceState, Tick,
    absent::{Absence, HowGone},
    disposal::{Disposal, is_heir},
    kinds::Note,
    record::CrdState,
    work::{Errand, Timer},
};
use crate::{
    cell::{Belief, Cell, Leave, Phase, Step, Why},
    meta::{Seen, source_hash},
    rule::{RuleId, RuleKind, SourceRef},
    slot::{KindId, NoRendering, Slot},
};

/// Where there are this many cells, tidying takes a while.
const MANY: usize = 1024;
/// How long it then rests for each of them: some ten times what tidying took.
const EACH: Duration = Duration::from_micros(5);

impl Engine {
    /// What to do about a cell in which nobody wants a copy (any more).
    pub(super) fn decide_unwanted(&mut self, name: &Arc<str>, namespace: &Namespace, cell: &Cell) -> Step {
        if matches!(cell.belief, Belief::Taken(_)) && self.settings.role == Role::Keeper {
            return Step::Look;
        }
        let Some(id) = cell.ours().and_then(|seen| seen.rule.clone()) else { return Step::Leave(Leave::Nothing) };
        let disposal = self.disposal(name, namespace, cell);
        self.decide_disposal(disposal, &id, (name, namespace), cell)
    }

    /// What to do about a copy that counts with this rule, by what is to become of it.
    pub(super) fn decide_disposal(
        &mut self,
        disposal: Disposal,
        id: &Arc<RuleId>,
        (name, namespace): (&Arc<str>, &Namespace),
        cell: &Cell,
    ) -> Step {
        let Some(seen) = cell.ours() else { return Step::Leave(Leave::Nothing) };
        match disposal {
            Disposal::Keep(why) => Step::Leave(why),
            // Deleting is the keeper's.
            _ if self.settings.role == Role::Injector => Step::Leave(Leave::Undecided),
            _ if self.rules.get(id).is_some_and(|state| state.acting().is_none()) => Step::Leave(Leave::Suspended),
            Disposal::RuleGone => {
                let how = self.how_rule_went(id, name, cell);
                self.decide_lost(how, id, name, cell, Why::RuleDeleted)
            }
            // As long as it is new.
            Disposal::SourceGone(sources) if self.is_new_loss(id, &sources) => Step::Leave(Leave::NoSource),
            Disposal::SourceGone(sources) => {
                let how = self.how_sources_went(&sources, name, cell);
                self.decide_lost(how, id, name, cell, Why::SourceDeleted)
            }
            Disposal::Unmatched => self.sweep(id, name, cell, Why::Unmatched),
            // First the new copies, then away with the old one.
            Disposal::Superseded if self.awaits_successors(id, namespace, seen) => Step::Leave(Leave::Undecided),
            Disposal::Superseded => Step::Delete(seen.uid, seen.version, Why::Superseded),
        }
    }

    /// Whether this object is a source that a rule of the kind `by` must leave alone. To the platform's rules a tenant's sources
    /// are none: by naming the place of a copy as a source he could keep it away, or keep it for good. Nor is anything a source
    /// that its rule may not read.
    pub(super) fn is_source(&self, by: RuleKind, kind: KindId, namespace: &str, name: &str) -> bool {
        let kind = &self.kinds[kind].group_kind;
        self.slots.of_object(kind, namespace, name).any(|slot| slot.granted && slot.rule.kind <= by)
    }

    /// Whether a source was lost so shortly ago that what its rule copied of it stays.
    fn is_new_loss(&mut self, id: &Arc<RuleId>, sources: &[SourceRef]) -> bool {
        let Some(rule) = self.rules.get(id).and_then(RuleState::acting) else { return true };
        let grace = rule.retention.source_grace;
        let mut new = false;
        for source in sources {
            // What a selector found before this process began is lost from now on.
            let lost = SourceState::Missing { since: self.now, absence: Absence::from(None) };
            if let SourceState::Missing { since, .. } = self.sources.entry(source.clone()).or_insert(lost)
                && self.now < *since + grace
            {
                self.work.timer(*since + grace, Timer::Rule(id.clone()));
                new = true;
            }
        }
        new
    }

    /// What became of the sources that this copy may have been made of; none: that isn't known of all.
    fn how_sources_went(&mut self, sources: &[SourceRef], name: &Arc<str>, cell: &Cell) -> Option<HowGone> {
        let mut all = HowGone::Deleted;
        for source in sources {
            // What is there is not deleted: it has come of this copy's own rule.
            let missing = self.sources.get(source).is_some_and(SourceState::is_missing);
            let how = if missing { self.how_source_went(source, name, cell)? } else { HowGone::Unexplained };
            if how != HowGone::Deleted {
                all = how;
            }
        }
        Some(all)
    }

    /// A copy of a rule that has lost what it was for: it goes if that was meant, and with all others if it wasn't.
    fn decide_lost(&mut self, how: Option<HowGone>, id: &Arc<RuleId>, name: &Arc<str>, cell: &Cell, why: Why) -> Step {
        let Some(seen) = cell.ours() else { return Step::Leave(Leave::Nothing) };
        match how {
            None => Step::Leave(Leave::Undecided),
            Some(HowGone::Deleted) => Step::Delete(seen.uid, seen.version, why),
            Some(HowGone::WithNamespace | HowGone::Unexplained) => self.sweep(id, name, cell, why),
        }
    }

    /// Whether copies are yet to come that this one is left for. What can't come is not waited for.
    fn awaits_successors(&self, id: &RuleId, namespace: &Namespace, seen: &Seen) -> bool {
        let comes = |other: &Cell, slot: &Slot| match &slot.rendering {
            Err(NoRendering::NotRead) => true,
            Ok(_) => other.failure.is_none(),
            Err(_) => false,
        };
        // Its heir is waited for come what may.
        let due = |(other, slot)| is_heir(slot, seen) || self.hindrance(slot).is_none() && comes(other, slot);
        self.successors(id, namespace).any(due)
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
        let listed: Vec<bool> = self.kinds.iter().map(|(_, kind)| self.all_copies_listed(kind)).collect();
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
