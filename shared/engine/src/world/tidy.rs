//! Removes state that is no longer needed.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use mimeo_model::{id::RuleId, meta::source_hash, source::SourceRef};

use crate::{
    Effects, Index, SourceState,
    consent::Consent,
    copy::{CopyState, Phase},
    jobs::JobKey,
};

/// With this many copies or more, tidying takes a while.
const MANY: u32 = 128;
/// The pause after tidying, for each copy. It is about a hundred times as long as the tidying took.
const EACH: Duration = Duration::from_micros(45);

impl Index {
    /// Forgets rules that no copy names any more, and kinds that need no watch any more. It runs
    /// when the queue is empty.
    pub(crate) fn tidy(&mut self, effects: &mut Effects) {
        if !self.all_rules() {
            return;
        }
        let mut count = 0;
        for copy in self
            .namespaces
            .values()
            .flat_map(|namespace| &namespace.copies)
        {
            count += 1;
            if copy.want.is_none() && matches!(copy.phase, Phase::InFlight(_)) {
                // The running request may still create a copy of a rule that is gone. Its answer
                // leads to another call.
                return;
            }
        }
        let rest = if count < MANY {
            Duration::ZERO
        } else {
            EACH.saturating_mul(count)
        };
        effects.work.tidy_after = self.now + rest;
        let owners = self.forget_unnamed();
        if !self.settings.keeps_copies() {
            return; // A webhook replica knows too little of copies for the rest.
        }
        // An existing rule may have lost the source of a copy whose labels and annotations still
        // name another rule.
        let over = |id: &&Arc<RuleId>| !owners.contains(*id) && !self.rules.contains_key(*id);
        let over: Vec<_> = self.losses.pending.keys().filter(over).cloned().collect();
        over.iter().for_each(|id| self.losses.end(id));
        let kinds = self.kinds.states.iter().map(|state| &state.group_kind);
        for kind in kinds.filter(|kind| self.is_needless(kind)) {
            effects.jobs.ask(JobKey::ForgetKind(kind.clone()));
        }
    }

    /// Forgets state that has ended, in the engine of a standby.
    pub(crate) fn rest(&mut self) {
        self.namespaces.retain(|_, namespace| {
            namespace
                .copies
                .retain(|copy| copy.want.is_some() || copy.seen().is_some() || !copy.settled());
            namespace.uid.is_some() || !namespace.copies.is_empty()
        });
        self.dirty.retain(|name| self.namespaces.contains_key(name));
        self.forget_unnamed();
    }

    /// Forgets missing rules, missing sources and kinds that no copy names any more. Returns the
    /// rules that copies name.
    fn forget_unnamed(&mut self) -> BTreeSet<Arc<RuleId>> {
        let mut owners: BTreeSet<Arc<RuleId>> = BTreeSet::new();
        let mut origins: BTreeSet<u64> = BTreeSet::new();
        self.consent.copies_in.clear();
        for (name, namespace) in &self.namespaces {
            for seen in namespace.copies.iter().filter_map(CopyState::ours) {
                origins.insert(seen.source);
                let Some(owner) = &seen.rule else { continue };
                self.consent.note_copy_in(owner, name);
                owners.insert(owner.clone());
            }
        }
        self.origins.retain(|hash, _| origins.contains(hash));
        let copied = |source: &SourceRef| origins.contains(&source_hash(&source.to_string()));
        self.sources.retain(|source, state| {
            source.selector().is_none() || !state.is_missing() || copied(source)
        });
        self.absences.retain(|key, absence| match key {
            JobKey::ConfirmRule(id) => owners.contains(id) || self.now < absence.until,
            JobKey::ConfirmSource(source) => self
                .sources
                .get(source)
                .is_some_and(SourceState::is_missing),
            JobKey::ConfirmGrants(giver) => {
                let Consent {
                    targeting, reading, ..
                } = &self.consent;
                targeting.contains_key(giver) || reading.contains_key(giver)
            }
            _ => false,
        });
        self.forget_needless_kinds();
        self.projections.forget_names();
        owners
    }
}
