//! Assigns each copy of a namespace to the rule that wants it.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use mimeo_api::{Access, DriftPolicy};

use mimeo_model::{
    choices::Strategy,
    drift::Marked,
    id::{KindId, ProjectionId, RuleId, RuleKind},
    outcome::FailureReason,
    render::unset,
    rule::Rule,
    selection::Place,
    source::{SourceQuery, SourceRef},
    template::Variable,
};

use crate::{
    Effects, Index, Namespace, RuleState, copy::CopyState, events::EventReason,
    projection::Projection,
};

/// The copies that rules want in a namespace and cannot have, by rule, kind and name.
pub(crate) type BlockedCopies = BTreeMap<(Arc<RuleId>, KindId, Arc<str>), BlockedCopy>;

/// A copy that a rule wants and cannot have.
#[derive(Debug, PartialEq)]
pub(crate) struct BlockedCopy {
    /// The projection that lost.
    pub(crate) projection: ProjectionId,
    cause: Cause,
}

#[derive(Debug, Clone, PartialEq)]
enum Cause {
    /// This rule has the copy.
    Taken(Arc<RuleId>),
    /// The copy has no valid name, because the namespace has no value for this variable of the
    /// name. The name is still needed as a key: another rule may want a copy with the same
    /// unfinished name.
    Unset(Variable),
}

impl BlockedCopy {
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

type Wants = BTreeMap<(KindId, Arc<str>), ProjectionId>;

impl Index {
    /// Returns the copies that rules want in a namespace, each with the winning projection. Returns
    /// also the copies that losing rules cannot have.
    fn wanted(&self, namespace: &Namespace) -> (Wants, BlockedCopies) {
        // A webhook replica has no task in a namespace without the pending label.
        let keeps = self.settings.keeps_copies();
        let concerned = keeps || namespace.pending_label.is_some();
        let mut wants = Wants::new();
        let mut blocked = BlockedCopies::new();
        if !namespace.alive() || !concerned {
            return (wants, blocked);
        }
        let name = &namespace.name;
        // A webhook replica writes only the copies of `ClusterReplication`s. They never lose a copy
        // to a Replication.
        let rules = self.rules_for(name);
        let rules = rules.filter(|(id, _)| keeps || id.kind == RuleKind::ClusterReplication);
        let mut given = BTreeMap::new();
        for (id, state) in rules {
            let Some(rule) = state.valid() else { continue };
            let given = given
                .entry(&id.namespace)
                .or_insert_with(|| self.given(Access::Write, id, name));
            for (projection_id, projection) in self.projections_for(state, namespace) {
                let copy_name = projection.name.at(namespace.place());
                let kind = &self.kinds[projection.kind].group_kind;
                if self.is_own_source(rule, kind, name, &copy_name) {
                    continue; // A source is never written, not even as a copy.
                }
                if !projection.granted || !given.covers(kind, &copy_name) {
                    continue;
                }
                let marked = namespace
                    .copy(projection.kind, &copy_name)
                    .and_then(CopyState::rule);
                let key = (projection.kind, copy_name);
                let held = wants.get(&key);
                let held = held.and_then(|id| Some((*id, self.projections.get(id)?)));
                let waits = |present: &&Arc<RuleId>| self.is_yet_to_say(present, id, namespace);
                let (loser, lost, cause) = if let Some(present) = marked.filter(waits) {
                    (id, projection_id, Cause::Taken(present.clone()))
                } else if let Some((held, holder)) = held {
                    if holder.rule == projection.rule && holder.source == projection.source {
                        continue; // An earlier target of the same rule.
                    }
                    if let Some(variable) = projection.name.unset_at(namespace.place()) {
                        (id, projection_id, Cause::Unset(variable.clone()))
                    } else if self.precedes(id, &holder.rule, marked) {
                        wants.insert(key.clone(), projection_id);
                        (&holder.rule, held, Cause::Taken(id.clone()))
                    } else {
                        // Between two sources of one rule, the source of the earlier target wins,
                        // and then the earlier source.
                        (id, projection_id, Cause::Taken(holder.rule.clone()))
                    }
                } else {
                    wants.insert(key, projection_id);
                    continue;
                };
                // Another target of the same rule may have lost the copy already, to a rule that
                // has lost it since.
                let (kind, name) = key;
                blocked
                    .entry((loser.clone(), kind, name))
                    .and_modify(|copy| copy.cause = cause.clone())
                    .or_insert(BlockedCopy {
                        projection: lost,
                        cause,
                    });
            }
        }
        (wants, blocked)
    }

    /// Returns the projections of those targets of a rule that match the namespace.
    pub(crate) fn projections_for<'a>(
        &'a self,
        state: &'a RuleState,
        namespace: &'a Namespace,
    ) -> impl Iterator<Item = (ProjectionId, &'a Projection)> {
        let rule = state.rule.as_ref().into_iter();
        let targets = rule.flat_map(|rule: &Rule| rule.targets.iter().enumerate());
        let place = namespace.place();
        let matched = targets.filter(move |(_, target)| target.matches(place));
        let of_sources = state.projections.iter();
        matched
            .flat_map(move |(index, _)| of_sources.clone().filter_map(move |ids| ids.get(index)))
            .filter_map(|id| Some((*id, self.projections.get(id)?)))
    }

    /// True if rule `a` wins a copy against rule `b`. A `ClusterReplication` wins against a
    /// Replication. Then the rule in the copy's annotation wins, then the older rule, then the
    /// first by name.
    pub(crate) fn precedes(
        &self,
        a: &Arc<RuleId>,
        b: &Arc<RuleId>,
        marked: Option<&Arc<RuleId>>,
    ) -> bool {
        let created = |id| self.valid(id).map(|rule| rule.created);
        let rank = |id| rank(id, created(id), marked.map(|marked| &**marked));
        rank(a) < rank(b)
    }

    /// True if the rule `present`, which the annotation of the present copy names, may want the
    /// copy once its selectors are listed. No other rule takes the copy before that, because the
    /// other rule would then keep it. A `ClusterReplication` wins the copy in any case, so a
    /// Replication reserves nothing against it.
    fn is_yet_to_say(&self, present: &RuleId, other: &RuleId, namespace: &Namespace) -> bool {
        let waits = |rule: &Rule| rule.matches(namespace.place()) && !self.knows_selected(rule);
        *other != *present && present.kind <= other.kind && self.valid(present).is_some_and(waits)
    }

    /// True if the rule wants that copy and denies changes by other clients (`driftPolicy: Deny`).
    pub fn guards(&self, id: &RuleId, copy: &Marked<'_>) -> bool {
        let Marked {
            kind,
            namespace,
            name,
            source,
        } = copy;
        let Some(rule) = self.acting(id) else {
            return false;
        };
        let Some(space) = self.namespaces.get(*namespace) else {
            return false;
        };
        let makes = |source: &SourceRef| {
            source.gvk.is_of(kind)
                && self.may_read(id, SourceQuery::One(source))
                && rule.makes(source, space.place(), name)
        };
        // The webhook does not watch the selectors of Replications, and lists others a moment later.
        // Until a selector is listed, the annotation of the copy names the source.
        let may_be_found = |source: &&SourceRef| {
            self.followed(rule)
                .any(|selector| selector.could_find(source) && self.found(selector).is_none())
        };
        rule.drift == DriftPolicy::Deny
            && space.alive()
            && (self.choose(rule).sources.iter().any(makes)
                || source.iter().filter(may_be_found).any(makes))
            && !self.is_own_source(rule, kind, namespace, name)
            && self.may_write(id, namespace, kind, name)
    }
}

impl Index {
    /// Assigns to every copy of the namespace the projection that wants it.
    pub(crate) fn assign(&mut self, namespace: &mut Namespace, effects: &mut Effects) {
        let (wants, blocked) = self.wanted(namespace);
        let known = std::mem::replace(&mut namespace.blocked, blocked);
        for (key, copy) in &namespace.blocked {
            if known.get(key) != Some(copy) {
                let (id, kind, copy_name) = key;
                let copy_key = (namespace.name.clone(), *kind, copy_name.clone());
                let cause = EventReason::CopyFailed(copy.reason());
                effects.events.add(id, cause, Some((copy_key, None)), self);
                self.mark_status_due(id);
            }
        }
        let unblocked = known
            .keys()
            .filter(|key| !namespace.blocked.contains_key(key));
        unblocked.for_each(|(id, ..)| self.mark_status_due(id));
        for (kind, copy_name) in wants.keys() {
            namespace.copy_or_insert(*kind, copy_name);
        }
        let place = Place {
            name: &namespace.name,
            labels: &namespace.labels,
        };
        for copy in &mut namespace.copies {
            let want = wants.get(&(copy.kind, copy.name.clone())).copied();
            if copy.want == want {
                continue;
            }
            self.mark_status_of(copy);
            let projection = want.and_then(|id| self.projections.get(&id));
            let rule = projection.and_then(|projection| self.valid(&projection.rule));
            if rule.is_some_and(|rule| rule.strategy == Strategy::CreateOnce) {
                copy.look_anew();
            }
            copy.want = want;
            // The baseline belongs to the formerly wanted copy. It stays valid only if the newly
            // wanted copy has the same bytes.
            let wanted = projection.and_then(|projection| projection.checksum_at(place));
            if (wanted.is_none() || copy.seen().and_then(|seen| seen.checksum) != wanted)
                && let Some(baseline) = &mut copy.baseline
            {
                baseline.right = false;
            }
            copy.streak = 0;
            copy.start_over();
            effects.work.remind(&namespace.name, copy, None);
            if want.is_some() {
                self.forgive(&copy.key(&namespace.name));
            }
            self.mark_status_of(copy);
        }
    }
}

/// The sort key of a rule that competes for a copy: the lowest wins. `marked` is the rule that the
/// present copy's annotation names, if it is known.
pub(crate) fn rank<'a>(
    id: &'a RuleId,
    created: Option<Timestamp>,
    marked: Option<&RuleId>,
) -> impl Ord + use<'a> {
    (id.kind, marked != Some(id), created, id)
}
