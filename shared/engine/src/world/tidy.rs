//! What is forgotten since nothing needs it any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use mimeo_model::{
    id::{KindId, RuleId, RuleKind},
    meta::source_hash,
    role::Role,
    source::SourceRef,
};

use crate::{Engine, cell::Phase, clock::Tick, jobs::JobKey, kinds::Note};

/// Where there are this many cells, tidying takes a while.
const MANY: usize = 1024;
/// How long it then rests for each of them: some ten times what tidying took.
const EACH: Duration = Duration::from_micros(5);

impl Engine {
    /// Forgets rules that no copy names any more, and kinds that need no watch any more. Called
    /// when the queue is empty.
    pub(crate) fn tidy(&mut self) {
        if !self.all_rules() || self.settings.role == Role::Injector {
            return;
        }
        let mut named: BTreeSet<KindId> = BTreeSet::new();
        let mut owners: BTreeSet<Arc<RuleId>> = BTreeSet::new();
        let mut origins: BTreeSet<u64> = BTreeSet::new();
        let mut strewn: BTreeMap<Arc<RuleId>, BTreeSet<Arc<str>>> = BTreeMap::new();
        let count = self
            .namespaces
            .values()
            .map(|namespace| namespace.cells.len())
            .sum::<usize>();
        let rest = EACH.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        self.work.tidy_after = self.now + if count < MANY { Duration::ZERO } else { rest };
        let cells = self
            .namespaces
            .iter()
            .flat_map(|(name, namespace)| namespace.cells.iter().map(move |cell| (name, cell)));
        for (name, cell) in cells {
            if cell.want.is_none() && matches!(cell.phase, Phase::InFlight(_)) {
                // A copy may come of it yet, of a rule that is gone. Its answer calls here again.
                return;
            }
            if cell.needs_record() {
                named.insert(cell.kind);
            }
            origins.extend(cell.ours().map(|seen| seen.source));
            let Some(owner) = cell.ours().and_then(|seen| seen.rule.clone()) else {
                continue;
            };
            if owner.kind == RuleKind::Replication {
                strewn
                    .entry(owner.clone())
                    .or_default()
                    .insert(name.clone());
            }
            owners.insert(owner);
        }
        self.consent.strewn_as(strewn);
        self.forget_origins(&origins);
        let now = self.now;
        self.gone
            .retain(|id, gone| owners.contains(id) || now < gone.until);
        // A rule that is there may have lost the source of a copy that carries another's mark
        // still.
        self.sweeps
            .retain(|id| owners.contains(id) || self.rules.contains_key(id));
        self.forget_withdrawals();
        let wanted = self.wanted_kinds();
        for (id, kind) in self.kinds.iter() {
            let needless =
                !wanted.contains(&id) && !named.contains(&id) && self.all_copies_listed(kind);
            if needless && matches!(kind.note, Note::Present { .. }) {
                self.jobs.ask(JobKey::ForgetKind(kind.group_kind.clone()));
            }
        }
        for kind in RuleKind::ALL {
            self.replace_crd(kind);
        }
    }

    /// Forgets what no copy was made of any more, of what selectors don't find any more.
    fn forget_origins(&mut self, copied: &BTreeSet<u64>) {
        self.origins.retain(|hash, _| copied.contains(hash));
        let copied = |source: &SourceRef| copied.contains(&source_hash(&source.to_string()));
        self.sources.retain(|source, state| {
            source.selector().is_none() || !state.is_missing() || copied(source)
        });
    }

    /// What keeps one small that may not act yet: time passes, and what has ended is forgotten.
    /// Nothing is planned, which would only be out of date when it may.
    pub fn rest(&mut self, now: Tick) {
        self.at(now);
        self.fire();
        self.news.forget();
        self.changes.forget();
        let mut owners: BTreeSet<Arc<RuleId>> = BTreeSet::new();
        let mut origins: BTreeSet<u64> = BTreeSet::new();
        self.namespaces.retain(|_, namespace| {
            namespace
                .cells
                .retain(|cell| cell.want.is_some() || cell.seen().is_some() || !cell.settled());
            owners.extend(
                namespace
                    .cells
                    .iter()
                    .filter_map(|cell| cell.ours()?.rule.clone()),
            );
            origins.extend(
                namespace
                    .cells
                    .iter()
                    .filter_map(|cell| Some(cell.ours()?.source)),
            );
            namespace.uid.is_some() || !namespace.cells.is_empty()
        });
        self.dirty.retain(|name| self.namespaces.contains_key(name));
        self.gone
            .retain(|id, gone| owners.contains(id) || self.now < gone.until);
        self.consent.forget_strewn(&owners);
        self.forget_origins(&origins);
    }
}
