//! The watches that the engine needs. State without a watch is removed.

use std::collections::{BTreeMap, BTreeSet};

use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    source::{SourceQuery, SourceRef, SourceSelector},
};

use crate::{
    Effects, Index, RuleState, SourceState, copy_watches::CopyWatch, jobs::JobKey,
    kinds::namespaced, projection::Projection,
};

/// The watches that are needed now. The driver compares them with the open watches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Kinds that discovery must find, and must find again when they appear and disappear.
    pub kinds: BTreeSet<GroupVersionKind>,
    /// Watches of copies.
    pub copies: BTreeMap<CopyWatch, Resource>,
    /// Watches of sources by name.
    pub sources: BTreeMap<SourceRef, Resource>,
    /// Watches of sources by selector.
    pub selectors: BTreeMap<SourceSelector, Resource>,
    /// True if sources may be watched only in their own namespaces.
    pub confined: bool,
}

impl Index {
    /// A number that grows whenever `Engine::demand` may have changed.
    pub fn demand_version(&self) -> u64 {
        self.demand_version
    }

    pub(crate) fn demand_changed(&mut self) {
        self.demand_version += 1;
    }

    /// Returns the watches that rules need.
    fn demanded(&self) -> Demand {
        // New namespaces do not wait for the copies of Replications.
        let waited_for =
            |id: &RuleId| self.settings.keeps_copies() || id.kind == RuleKind::ClusterReplication;
        let mut demand = Demand {
            confined: self.settings.reach.sources.is_some(),
            ..Demand::default()
        };
        let reach = &self.settings.reach;
        let in_reach = |query: SourceQuery<'_>| reach.refuses(query).is_none();
        // Kinds without a grant are not even looked up. Otherwise a tenant could cause lookups of
        // any number of kinds.
        let read = |projection: &&Projection| {
            projection.granted && in_reach(SourceQuery::One(&projection.source))
        };
        for projection in self.projections.values().filter(read) {
            if !demand.kinds.contains(projection.gvk()) {
                demand.kinds.insert(projection.gvk().clone());
            }
            if let Some(resource) = self.kinds.resource(projection.gvk()) {
                let named = projection.source.is_named();
                if named
                    && waited_for(&projection.rule)
                    && !demand.sources.contains_key(&projection.source)
                {
                    demand
                        .sources
                        .insert(projection.source.clone(), resource.clone());
                }
                self.demand_copies(&mut demand, resource);
            }
        }
        let selecting = self.rules.values().filter_map(RuleState::valid);
        let selecting = selecting.filter(|rule| waited_for(&rule.id));
        for selector in selecting
            .flat_map(|rule| self.followed(rule))
            .filter(|selector| in_reach(SourceQuery::Selected(selector)))
        {
            demand.kinds.insert(selector.gvk.clone());
            if let Some(resource) = self.kinds.resource(&selector.gvk) {
                demand.selectors.insert(selector.clone(), resource.clone());
                self.demand_copies(&mut demand, resource);
            }
        }
        for (gvk, served) in &self.kinds.served {
            let kind = gvk.group_kind();
            let recorded = self
                .kinds
                .id(&kind)
                .is_some_and(|id| self.kinds[id].may_have_copies());
            if !recorded || !self.settings.reach.copies(&kind) {
                continue;
            }
            demand.kinds.insert(gvk.clone());
            if let Some(resource) = namespaced(served) {
                self.demand_copies(&mut demand, resource);
            }
        }
        demand
    }
}

impl Index {
    /// Returns the watches that are needed now. Forgets the state that only other watches could
    /// show, because no events about it arrive from now on. Until this call the state stays valid,
    /// even if the demand changes back and forth.
    pub(crate) fn demand(&mut self, effects: &mut Effects) -> Demand {
        let mut demand = self.demanded();
        // A watch that is closed and opened again makes a new listing. `forget_unwatched` drops the
        // members of a closed watch. The selector is then no longer depleted, and is demanded again
        // next time.
        let known = self.selectors.iter();
        for (selector, _) in known.filter(|(_, findings)| findings.members.depleted()) {
            if demand.selectors.remove(selector).is_some() {
                self.demand_version += 1;
            }
        }
        self.forget_unwatched(&demand, effects);
        self.keep_what_is_copied(effects);
        demand
    }

    fn forget_unwatched(&mut self, demand: &Demand, effects: &mut Effects) {
        self.forget_watches(&demand.copies);
        self.kinds
            .served
            .retain(|gvk, served| served.is_listed() || demand.kinds.contains(gvk));
        self.selectors
            .retain(|_, findings| !findings.rules.is_empty());
        let mut unselected = Vec::new();
        for (selector, findings) in &mut self.selectors {
            findings.watched = demand.selectors.contains_key(selector);
            if !findings.watched && findings.forget() {
                unselected.push(selector.clone());
            }
        }
        let watched = |source: &SourceRef| match source.selector() {
            Some(selector) => demand.selectors.contains_key(selector),
            None => source.is_inline() || demand.sources.contains_key(source),
        };
        let kept = |source: &SourceRef| {
            if source.selector().is_some() {
                watched(source)
            } else {
                self.projections.of_source(source).next().is_some()
            }
        };
        self.sources.retain(|source, _| kept(source));
        self.unreadable.retain(|source, _| watched(source));
        let mut silent = Vec::new();
        let known = self
            .sources
            .iter_mut()
            .filter(|(_, state)| !matches!(state, SourceState::NotRead));
        for (source, state) in known.filter(|(source, _)| !watched(source)) {
            // Without a watch, the absence of events must never count as a deletion.
            *state = SourceState::NotRead;
            effects.jobs.end(&JobKey::ConfirmSource(source.clone()));
            silent.push(source.clone());
        }
        for source in &silent {
            self.render_source(source);
        }
        // The findings of these selectors are no longer known, but their copies are.
        for selector in &unselected {
            self.refit_selecting(selector, effects);
        }
    }
}
