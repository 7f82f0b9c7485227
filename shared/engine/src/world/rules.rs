//! Rules as they appear, change and disappear, and their projections.

use std::{collections::BTreeSet, sync::Arc};

use mimeo_model::{
    id::{ProjectionId, RuleId, RuleKind},
    known::{Known, Watched},
    outcome::Unreadable,
    refusal::Refused,
    rule::Rule,
    source::{SourceQuery, SourceRef},
};

use crate::{
    Effects, Index, SourceState,
    clock::Tick,
    conditions::pod_gate_active,
    copy::Reference,
    jobs::JobKey,
    projection::{NoRendering, Projection},
    status::{self, Observed},
    view::Ended,
    work,
};

/// One rule, as last seen.
#[derive(Debug)]
pub(crate) struct RuleState {
    pub(crate) rule: Result<Rule, Refused>,
    /// The projections of each source, in the order of the targets.
    pub(crate) projections: Vec<Vec<ProjectionId>>,
    /// True for each source that the rule may read, and then for each selector whose objects it may
    /// read.
    pub(crate) readable: Vec<bool>,
    /// resourceVersion at which this generation was first seen.
    pub(crate) spec_version: u64,
    pub(crate) spec_seen: Tick,
    /// True if its status already showed an active pod gate when this generation was first seen.
    /// Then every webhook replica knew the rule before a restart. The versions that replicas report
    /// since then need not prove it again.
    pub(crate) pod_gate_proven: bool,
    pub(crate) status: status::Book,
    /// Number of its last change that the page shows.
    pub(crate) changed: u64,
}

impl RuleState {
    /// When the rule was created, in seconds since 1970, if that is known.
    fn created(&self) -> Option<u32> {
        let created = match &self.rule {
            Ok(rule) => rule.created,
            Err(refused) => refused.created,
        };
        u32::try_from(created.as_second()).ok()
    }
}

impl Index {
    /// True if changes of `ClusterReplication`s are visible, as far as is known.
    pub fn follows_rules(&self) -> bool {
        self.rule_watch(RuleKind::ClusterReplication)
            .unreadable()
            .is_none()
    }

    /// The state of the watch of these rules.
    pub(crate) fn rule_watch(&self, kind: RuleKind) -> Watched {
        self.rule_watches.get(&kind).copied().unwrap_or_default()
    }

    /// True if every rule of the kind was shown.
    pub(crate) fn all_rules_of(&self, kind: RuleKind) -> bool {
        self.rule_watch(kind).is_listed()
    }

    /// True if every rule that counts was shown. `ClusterReplication`s don't wait for Replications
    /// that can't be read.
    pub(crate) fn all_rules(&self) -> bool {
        self.all_rules_of(RuleKind::ClusterReplication)
            && self.rule_watch(RuleKind::Replication).known() != Known::Unknown
    }

    /// The `ClusterReplication`s. They come first in the order of identities.
    pub(crate) fn cluster_rules(&self) -> impl Iterator<Item = (&Arc<RuleId>, &RuleState)> {
        self.rules
            .iter()
            .take_while(|(id, _)| id.kind == RuleKind::ClusterReplication)
    }

    /// The highest resourceVersion at which a generation of a `ClusterReplication` was first seen.
    pub fn newest_spec(&self) -> u64 {
        self.newest_spec
    }

    /// The highest resourceVersion of a `ClusterReplication`. Writes of statuses count, too.
    pub fn newest_rule(&self) -> u64 {
        let rules = self.cluster_rules().filter_map(|(_, state)| state.valid());
        let versions = rules.map(|rule| rule.resource_version);
        versions.max().unwrap_or_default()
    }

    /// Returns one value that all copies of an existing rule share.
    pub(crate) fn rule_name(&self, id: &Arc<RuleId>) -> Arc<RuleId> {
        let known = self.rules.get_key_value(id);
        known.map_or(id, |(known, _)| known).clone()
    }

    /// Forgets a projection that its rule no longer has.
    pub(crate) fn remove_projection(&mut self, id: ProjectionId) {
        // A source is never written. Where this was the last projection of a source, another rule
        // may write over the object now.
        if let Some(gone) = self.projections.remove(&id)
            && let Some(home) = self.namespaces.get(&*gone.source.namespace)
        {
            self.dirty.insert(home.name.clone());
        }
    }
}

impl Index {
    /// Records a rule with this spec; `observed` is the status that it carries.
    pub(crate) fn rule_applied(
        &mut self,
        id: RuleId,
        rule: Result<Rule, Refused>,
        observed: Observed,
        effects: &mut Effects,
    ) {
        let id = self.rule_name(&Arc::new(id));
        let rule = rule.map(|rule| rule.within(&self.settings.reach));
        let read = JobKey::ConfirmRule(id.clone());
        if self.absences.remove(&read).is_some() {
            effects.jobs.end(&read);
        }
        let known = self.valid(&id);
        let says_the_same = |new: &Rule| {
            known.is_some_and(|old| old.generation == new.generation && old.uid == new.uid)
        };
        match rule {
            Ok(rule) if says_the_same(&rule) => {
                // Of changed metadata and of the status, the engine uses the confirmation and the
                // status.
                if let Some(state) = self.rules.get_mut(&id) {
                    state.rule = Ok(rule);
                    state.status.observe(observed);
                }
                self.confirm(&id, effects);
            }
            rule => {
                self.replace_rule(&id, rule, observed, effects);
                if let Some(home) = &id.namespace {
                    self.refuse_excess(home, effects);
                }
            }
        }
    }

    /// Records a rule that is new or has another spec.
    pub(crate) fn replace_rule(
        &mut self,
        id: &Arc<RuleId>,
        rule: Result<Rule, Refused>,
        observed: Observed,
        effects: &mut Effects,
    ) {
        let old = self.take_rule(id);
        let valid = rule.as_ref().ok();
        let readable = valid.map_or_else(Vec::new, |rule| self.add_claims(id, rule));
        let version = valid.map_or(0, |rule| rule.resource_version);
        let pod_gate_proven = valid.is_some_and(|rule| pod_gate_active(&observed, rule.generation));
        let mut book = old.map_or_else(status::Book::default, |(_, old)| old.status);
        book.observe(observed);
        self.rules.insert(
            id.clone(),
            RuleState {
                rule,
                projections: vec![],
                readable,
                spec_version: version,
                spec_seen: self.now,
                pod_gate_proven,
                status: book,
                changed: effects.changes.next(),
            },
        );
        self.refit_projections(id, effects);
        self.mark_status_due(id);
        if id.kind == RuleKind::ClusterReplication {
            self.newest_spec = version.max(self.newest_spec);
            effects.work.timer(
                self.now + status::HOOKS_KNOWN,
                work::Timer::Rule(id.clone()),
            );
        }
        self.replan_rule(id);
        self.demand_changed();
    }

    /// Removes a rule with its claims and its projections.
    fn take_rule(&mut self, id: &RuleId) -> Option<(Arc<RuleId>, RuleState)> {
        self.replan_rule(id);
        let (id, old) = self.rules.remove_entry(id)?;
        if let Some(rule) = old.valid() {
            self.remove_claims(&id, rule);
        }
        for projection in old.projections.concat() {
            self.remove_projection(projection);
        }
        Some((id, old))
    }

    /// Records that a rule no longer exists according to its watch.
    pub(crate) fn rule_gone(&mut self, id: &RuleId, effects: &mut Effects) {
        let Some((id, old)) = self.take_rule(id) else {
            return;
        };
        effects.jobs.end(&JobKey::ConfirmRule(id.clone()));
        effects.changes.end(Ended::Rule(id.clone()));
        self.losses.end(&id);
        effects.work.untidy = true;
        self.lose_rule(id, old.created());
        self.demand_changed();
    }

    /// Records the state of the watch of these rules. A list has all rules of the kind.
    ///
    /// Rules that can't be read stay valid as they were shown, and their statuses report the
    /// problem. If none was shown so far, rules of the other kind behave as if this kind were not
    /// served. `ClusterReplication`s don't wait for Replications, because the sources of these
    /// don't count for them. A copy's annotation names its rule. The copy is not changed before all
    /// rules of that kind are known.
    pub(crate) fn rules_known(
        &mut self,
        kind: RuleKind,
        known: Known<&BTreeSet<RuleId>>,
        effects: &mut Effects,
    ) {
        let was_listed = self.all_rules_of(kind);
        let none = BTreeSet::new();
        let known = match known {
            // A webhook replica then has nothing to wait for. The meaning for existing copies is
            // not decided by a watch.
            Known::Unserved if !self.settings.keeps_copies() => Known::Listed(&none),
            // The problem ends by itself, and no status could be written meanwhile.
            Known::Unreadable(Unreadable::Unavailable) if was_listed => return,
            known => known,
        };
        if let Known::Listed(listed) = known {
            let lost = |id: &&Arc<RuleId>| id.kind == kind && !listed.contains(&***id);
            let lost: Vec<Arc<RuleId>> = self.rules.keys().filter(lost).cloned().collect();
            lost.iter().for_each(|id| self.rule_gone(id, effects));
        }
        let watch = self.rule_watches.entry(kind).or_default();
        if watch.becomes(known) {
            self.mark_all_statuses_due();
        }
        if known.is_listed() || !was_listed {
            self.replan_all();
        }
    }

    /// Adds a projection of a source for each target of the rule.
    pub(crate) fn project(
        &mut self,
        id: &Arc<RuleId>,
        rule: &Rule,
        source: &SourceRef,
    ) -> Vec<ProjectionId> {
        let Some(kind) = self.kind_id(&source.gvk.group_kind()) else {
            // The rule's status says that the kind isn't served. Of so many kinds hardly any can be
            // served.
            return vec![];
        };
        let granted = self.may_read(id, SourceQuery::One(source));
        let state = self
            .sources
            .entry(source.clone())
            .or_insert(SourceState::NotRead);
        let draft = state.draft(rule, source, granted, &self.settings.cluster);
        let mut added = Vec::new();
        for (index, target) in rule.targets.iter().enumerate() {
            let mut projection = Projection {
                rule: id.clone(),
                target: index,
                source: source.clone(),
                kind,
                granted,
                name: target.copy_name(source).into(),
                reference: Reference::Unknown,
                failed_dry_runs: 0,
                rendering: Err(NoRendering::NotRead),
                renewed: None,
            };
            projection.render(target, &draft, &self.settings);
            added.extend(self.projections.insert(projection));
        }
        added
    }
}
