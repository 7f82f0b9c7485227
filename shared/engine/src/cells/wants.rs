//! Assigns each cell of a namespace to the rule that wants it.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use mimeo_api::{Access, DriftPolicy};

use mimeo_model::{
    choices::Strategy,
    drift::Marked,
    id::{KindId, RuleId, RuleKind, SlotId},
    outcome::FailureReason,
    render::unset,
    role::Role,
    rule::Rule,
    selection::Labels,
    template::{Place, Variable},
};

use crate::{
    Effects, Index, Namespace, RuleState, announce::Happening, cell::Cell, losses::LossEvent,
    slot::Slot,
};

/// A cell that a rule wants and cannot have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unmet {
    pub(crate) kind: KindId,
    pub(crate) name: Arc<str>,
    cause: Cause,
}

#[derive(Debug, Clone, PartialEq)]
enum Cause {
    /// This rule has the cell.
    Taken(Arc<RuleId>),
    /// The copy has no valid name, because the namespace has no value for this variable of the
    /// name. The name is still needed as a key: another rule may want a copy with the same
    /// unfinished name.
    Unset(Variable),
}

impl Unmet {
    /// The stable reason in statuses, logs and metrics.
    pub(crate) fn reason(&self) -> FailureReason {
        match self.cause {
            Cause::Taken(_) => FailureReason::RuleConflict,
            Cause::Unset(_) => FailureReason::VariableUnset,
        }
    }

    /// The problem, for users that look at the rule without the copy.
    pub(crate) fn message(&self, loser: &RuleId, namespace: &str) -> String {
        let winner = match &self.cause {
            Cause::Taken(winner) => winner,
            Cause::Unset(variable) => return unset(variable),
        };
        if **winner == *loser {
            "another source of this rule has this copy".to_owned()
        } else {
            taken(winner, loser, namespace)
        }
    }
}

/// Says that another rule has a copy. The message is for users of the rule without it.
pub(crate) fn taken(winner: &RuleId, loser: &RuleId, namespace: &str) -> String {
    // A tenant may know everything about its own namespace. About the rules of other tenants a
    // tenant may know nothing else.
    let known = |home: &str| namespace == home || winner.namespace.as_deref() == Some(home);
    if loser.namespace.as_deref().is_none_or(known) {
        format!("{winner} has this copy")
    } else {
        "another rule has this copy".to_owned()
    }
}

type Wants = BTreeMap<(KindId, Arc<str>), SlotId>;

impl Index {
    /// Returns the cells that rules want in a namespace, each with the winning slot. Returns also,
    /// for each losing rule, the cells that it cannot have.
    fn wanted(
        &self,
        name: &Arc<str>,
        namespace: &Namespace,
    ) -> (Wants, BTreeMap<Arc<RuleId>, Vec<Unmet>>) {
        // A webhook replica has no task in a namespace without the pending label.
        let concerned = self.settings.role == Role::Keeper || namespace.pending_label.is_some();
        if !namespace.alive() || !concerned {
            return (Wants::new(), BTreeMap::new());
        }
        let mut wants = Wants::new();
        let mut unmet: BTreeMap<Arc<RuleId>, Vec<Unmet>> = BTreeMap::new();
        // A Replication never wins a cell against a `ClusterReplication`, and a webhook replica
        // writes only the copies of `ClusterReplication`s.
        let rules = match self.settings.role {
            Role::Keeper => self.rules_for(name),
            Role::Injector => self.cluster_rules().map(|(id, _)| id.clone()).collect(),
        };
        let mut given = BTreeMap::new();
        for (id, state) in rules.iter().filter_map(|id| self.rules.get_key_value(id)) {
            let given = given
                .entry(&id.namespace)
                .or_insert_with(|| self.given(Access::Write, id, name));
            for (slot_id, slot) in self.slots_for(state, name, &namespace.labels) {
                let copy = slot.name.at(namespace.place(name));
                let kind = &self.kinds[slot.kind].group_kind;
                if self.is_own_source(state, kind, name, &copy) {
                    continue; // A source is never written, not even as a copy.
                }
                if !slot.granted || !given.covers(kind, &copy) {
                    continue;
                }
                let marked = namespace
                    .cell(slot.kind, &copy)
                    .and_then(Cell::ours)
                    .and_then(|seen| seen.rule.as_ref());
                if let Some(present) =
                    marked.filter(|present| self.is_yet_to_say(present, slot, name, namespace))
                {
                    let cells = unmet.entry(id.clone()).or_default();
                    // Another target of the same rule may have lost the cell already.
                    if !cells
                        .iter()
                        .any(|cell| cell.kind == slot.kind && cell.name == copy)
                    {
                        cells.push(Unmet {
                            kind: slot.kind,
                            name: copy,
                            cause: Cause::Taken(present.clone()),
                        });
                    }
                    continue;
                }
                let key = (slot.kind, copy.clone());
                let Some(holder) = wants.get(&key).and_then(|id| self.slots.get(id)) else {
                    wants.insert(key, slot_id);
                    continue;
                };
                if holder.rule == slot.rule && holder.source == slot.source {
                    continue; // An earlier target of the same rule.
                }
                if let Some(variable) = slot.name.unset_at(namespace.place(name)) {
                    let cells = unmet.entry(id.clone()).or_default();
                    cells.push(Unmet {
                        kind: slot.kind,
                        name: copy,
                        cause: Cause::Unset(variable.clone()),
                    });
                    continue;
                }
                // Between two sources of one rule, the source of the earlier target wins, and then
                // the earlier source.
                let (winner, loser) =
                    if holder.rule != slot.rule && self.precedes(id, &holder.rule, marked) {
                        let loser = holder.rule.clone();
                        wants.insert(key, slot_id);
                        (id.clone(), loser)
                    } else {
                        (holder.rule.clone(), id.clone())
                    };
                let cells = unmet.entry(loser).or_default();
                // Another target of the same rule may have lost the cell already, to a rule that
                // has lost it since.
                match cells
                    .iter_mut()
                    .find(|cell| cell.kind == slot.kind && cell.name == copy)
                {
                    Some(cell) => cell.cause = Cause::Taken(winner),
                    None => cells.push(Unmet {
                        kind: slot.kind,
                        name: copy,
                        cause: Cause::Taken(winner),
                    }),
                }
            }
        }
        (wants, unmet)
    }

    /// Returns the slots of those targets of a rule that match the namespace.
    pub(crate) fn slots_for<'a>(
        &'a self,
        state: &'a RuleState,
        name: &'a str,
        labels: &'a Labels,
    ) -> impl Iterator<Item = (SlotId, &'a Slot)> {
        let rule = state.rule.as_ref().into_iter();
        let targets = rule.flat_map(|rule: &Rule| rule.targets.iter().zip(&state.slots));
        let matched = targets.filter(move |(target, _)| target.selection.matches(name, labels));
        matched
            .flat_map(|(_, slots)| slots)
            .filter_map(|id| Some((*id, self.slots.get(id)?)))
    }

    /// True if rule `a` wins a cell against rule `b`. A `ClusterReplication` wins against a
    /// Replication. Then the rule in the copy's annotation wins, then the older rule, then the
    /// first by name.
    pub(crate) fn precedes(
        &self,
        a: &Arc<RuleId>,
        b: &Arc<RuleId>,
        marked: Option<&Arc<RuleId>>,
    ) -> bool {
        let created = |id| {
            self.rules
                .get(id)
                .and_then(RuleState::valid)
                .map(|rule| rule.created)
        };
        let rank = |id| rank(id, created(id), marked.map(|marked| &**marked));
        rank(a) < rank(b)
    }

    /// True if the rule `present`, which the annotation of the present copy names, may want the
    /// copy once its selectors are listed. No other rule takes the copy before that, because the
    /// other rule would then keep it. A `ClusterReplication` wins the cell in any case, so a
    /// Replication reserves nothing against it.
    fn is_yet_to_say(
        &self,
        present: &RuleId,
        slot: &Slot,
        name: &str,
        namespace: &Namespace,
    ) -> bool {
        let others = *slot.rule != *present && present.kind <= slot.rule.kind;
        let rule = self
            .rules
            .get(present)
            .filter(|_| others)
            .and_then(RuleState::valid);
        let Some(rule) = rule.filter(|rule| !self.knows_selected(rule)) else {
            return false;
        };
        let kind = &self.kinds[slot.kind].group_kind;
        let place = namespace.place(name);
        let copy = slot.name.at(place);
        let selects = || {
            rule.selectors
                .iter()
                .any(|selector| selector.gvk.is_of(kind))
        };
        rule.wants(&rule.sources, kind, &copy, place)
            || selects()
                && !rule.is_source(kind, name, &copy)
                && rule.matches(name, &namespace.labels)
    }

    /// True if the rule wants that copy and denies changes by other clients (`driftPolicy: Deny`).
    pub fn guards(&self, id: &RuleId, copy: &Marked<'_>) -> bool {
        let Marked {
            kind,
            namespace,
            name,
            ..
        } = copy;
        let Some(state) = self.rules.get(id) else {
            return false;
        };
        let Some(rule) = state.acting() else {
            return false;
        };
        let Some(space) = self.namespaces.get(*namespace) else {
            return false;
        };
        let denies = rule.drift == DriftPolicy::Deny && space.alive();
        let makes = |slot: &Slot| {
            slot.granted
                && slot.gvk().is_of(kind)
                && *slot.name.at(space.place(namespace)) == **name
        };
        denies
            && (self
                .slots_for(state, namespace, &space.labels)
                .any(|(_, slot)| makes(slot))
                || self.may_select_for(rule, space, copy))
            && !self.is_own_source(state, kind, namespace, name)
            && self.may_write(id, namespace, kind, name)
    }

    /// True if a Replication's selectors may find the source of this copy. The webhook does not
    /// watch these selectors. The copy's own annotation, which only Mimeo may change, names the
    /// source.
    fn may_select_for(&self, rule: &Rule, space: &Namespace, copy: &Marked<'_>) -> bool {
        if self.settings.role == Role::Keeper || rule.id.kind != RuleKind::Replication {
            return false;
        }
        let Some(source) = copy
            .source
            .as_ref()
            .filter(|source| source.gvk.is_of(&copy.kind))
        else {
            return false;
        };
        let place = space.place(copy.namespace);
        self.followed(rule)
            .iter()
            .any(|selector| selector.could_find(source))
            && rule.targets.iter().any(|target| {
                target.selection.matches(copy.namespace, &space.labels)
                    && target.copy_name(source).text_at(place) == copy.name
            })
    }
}

impl Index {
    /// Assigns to every cell of the namespace the slot that wants a copy in it.
    pub(crate) fn assign(
        &mut self,
        name: &Arc<str>,
        namespace: &mut Namespace,
        effects: &mut Effects,
    ) {
        let (wants, mut unmet) = self.wanted(name, namespace);
        for id in &self.rules_for(name) {
            let Some(state) = self.rules.get_mut(id) else {
                continue;
            };
            let cells = unmet.remove(id);
            if state.unmet.get(name) == cells.as_ref() {
                continue;
            }
            let known = state.unmet.remove(name).unwrap_or_default();
            let new = cells.iter().flatten().filter(|cell| !known.contains(cell));
            for cell in new {
                let key = (name.clone(), cell.kind, cell.name.clone());
                let happening = Happening::CopyFailed(cell.reason());
                effects.news.add(id, happening, [(key, None)], 0, self.now);
            }
            state.unmet.extend(cells.map(|cells| (name.clone(), cells)));
            state.status.mark_due();
        }
        for (kind, copy) in wants.keys() {
            namespace.cell_or_insert(*kind, copy);
        }
        let place = Place {
            name,
            labels: &namespace.labels,
        };
        for cell in &mut namespace.cells {
            let want = wants.get(&(cell.kind, cell.name.clone())).copied();
            if cell.want == want {
                continue;
            }
            let former = self.rule_of(cell);
            let slot = want.and_then(|id| self.slots.get(&id));
            let rule = slot.and_then(|slot| self.rules.get(&slot.rule)?.valid());
            if self.settings.role == Role::Keeper
                && rule.is_some_and(|rule| rule.strategy == Strategy::CreateOnce)
            {
                cell.look_anew();
            }
            cell.want = want;
            // The baseline belongs to the formerly wanted copy. It stays valid only if the newly
            // wanted copy has the same bytes.
            let wanted = slot.and_then(|slot| slot.rendering.as_ref().ok());
            let wanted = wanted.and_then(|copies| copies.checksum_at(place).ok());
            if wanted.is_none() || cell.seen().and_then(|seen| seen.checksum) != wanted {
                cell.baseline
                    .iter_mut()
                    .for_each(|baseline| baseline.right = false);
            }
            cell.streak = 0;
            cell.start_over();
            effects.work.remind(name, cell, None);
            if want.is_some() {
                effects.losses.push(LossEvent::Wanted(cell.key(name)));
            }
            for rule in [former, self.rule_of(cell)].iter().flatten() {
                self.mark_status_due(rule);
            }
        }
    }
}

/// The sort key of a rule that competes for a cell: the lowest wins. `marked` is the rule that the
/// present copy's annotation names, if it is known.
pub(crate) fn rank<'a>(
    id: &'a RuleId,
    created: Option<Timestamp>,
    marked: Option<&RuleId>,
) -> impl Ord + use<'a> {
    (id.kind, marked != Some(id), created, id)
}
