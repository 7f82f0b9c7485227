//! The status of a rule, and when it is written.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mimeo_api::{ClusterReplicationStatus, CopyFailure, SourceStatus};
use serde::Serialize;

use mimeo_model::{
    condition::{ConditionReason, ConditionType, condition},
    id::{RuleId, RuleKind},
    known::Known,
    outcome::FailureReason,
    refusal::in_one_line,
    source::{SourceQuery, SourceRef},
    source_text,
};

use crate::{
    Effects, Index, RuleState, SourceState,
    clock::Tick,
    numbers::Reported,
    tally::{CellName, Tally},
    view::Changes,
    work::Timer,
};

/// The status that a rule carries, as the API server shows it.
pub type Observed = Option<ClusterReplicationStatus>;

/// A status to write.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusUpdate {
    /// The rule.
    pub id: RuleId,
    /// The whole status.
    pub status: ClusterReplicationStatus,
}

/// The known state of the webhook's replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Webhooks {
    /// For each replica with a live Lease: the highest resourceVersion of a rule that the replica
    /// has processed.
    pub seen: Vec<u64>,
    /// A sentence for users while another client keeps changing the hooks of namespaces and pods.
    pub contested: Option<Arc<str>>,
}

/// When the status of a rule was written, and whether it must be written again.
#[derive(Debug, Default)]
pub(crate) struct Book {
    due: bool,
    not_before: Tick,
    /// The status for users. [`Book::observe`] changes it.
    pub(crate) observed: Observed,
    /// True if the last write of the status failed.
    unwritten: bool,
    /// True if a copy was written or deleted since the last status.
    pub(crate) synced: bool,
    /// The values of the last status.
    pub(crate) reported: Reported,
}

impl Book {
    /// Marks the status as due.
    pub(crate) fn mark_due(&mut self) {
        self.due = true;
    }

    /// Records the status that the rule carries. The webhook relies on it, so a change by another
    /// client makes the status due again.
    pub(crate) fn observe(&mut self, observed: Observed) {
        self.due |= self.observed.is_some() && self.observed != observed;
        self.observed = observed;
    }
}

/// The shortest time between two status writes of one rule.
const PACE: Duration = Duration::from_secs(1);
/// A webhook configuration reaches every API server within this time.
pub(crate) const HOOKS_KNOWN: Duration = Duration::from_secs(5);
const SOURCES: usize = 32;
const FAILURES: usize = 20;
/// The longest status, in bytes of JSON. With very long names, fewer entries fit than the other
/// limits allow. Each client that watches rules receives the whole status with each change.
const LONGEST: usize = 16 * 1024 - 1;
/// The longest message of a condition, in bytes of JSON. A status has room for the messages of all
/// conditions.
const MESSAGE: usize = 2000;
/// The largest number of statuses at once; they are written one by one.
const BATCH: usize = 128;

impl Index {
    /// Returns the next rules with due statuses. Later events make their statuses due again.
    pub(crate) fn due_statuses(&mut self) -> Vec<Arc<RuleId>> {
        let due = self
            .rules
            .iter()
            .filter(|(_, state)| state.status.due && state.status.not_before <= self.now);
        let mut due: Vec<(Tick, Arc<RuleId>)> = due
            .map(|(id, state)| (state.status.not_before, id.clone()))
            .collect();
        // `ClusterReplication`s come first, however many rules a tenant has. After them the rules
        // come that have waited longest.
        due.sort_by_key(|(since, id)| (id.kind, *since));
        let mut rules = Vec::new();
        for (_, id) in due.into_iter().take(BATCH) {
            // A status with partial facts would mislead. After a start, the status stays as it was
            // until all of its facts are known.
            let known = self
                .rules
                .get(&id)
                .is_some_and(|state| self.known(&id, state));
            let Some(state) = self.rules.get_mut(&id) else {
                continue;
            };
            if known {
                state.status.due = false;
                rules.push(id);
            } else {
                state.status.not_before = self.now + PACE;
            }
        }
        rules
    }

    /// When `Engine::statuses` may return statuses again.
    pub fn status_due(&self) -> Option<Tick> {
        self.rules
            .values()
            .filter(|state| state.status.due)
            .map(|state| state.status.not_before)
            .min()
    }

    fn known(&self, id: &RuleId, state: &RuleState) -> bool {
        let projections = state
            .projections
            .iter()
            .flatten()
            .filter_map(|id| self.projections.get(id));
        self.primed()
            && state.valid().is_none_or(|rule| self.knows_selected(rule))
            && (id.kind == RuleKind::ClusterReplication || self.consent.known != Known::Unknown)
            && projections
                .filter(|projection| {
                    let source = SourceQuery::One(&projection.source);
                    projection.granted && self.settings.reach.refuses(source).is_none()
                })
                .all(|projection| match self.kinds.served(projection.gvk()) {
                    Known::Listed(resource) if resource.namespaced => {
                        let knows = |rule| self.knows_copies_of(rule, projection.kind);
                        state.valid().is_some_and(knows)
                            && (projection.rendering.is_ok() || self.blocked(projection).is_some())
                    }
                    Known::Unknown => false,
                    _ => true,
                })
    }

    fn source_status(&self, id: &RuleId, source: &SourceRef) -> SourceStatus {
        let version = match self.sources.get(source) {
            // A rule without the consent to read a source must not learn its version from another
            // rule's read.
            Some(SourceState::Found { version, .. })
                if !source.is_inline() && self.may_read(id, SourceQuery::One(source)) =>
            {
                Some(version.to_string())
            }
            _ => None,
        };
        SourceStatus {
            api_version: source.gvk.api_version(),
            kind: source.gvk.kind.to_string(),
            namespace: source.home().map(Into::into),
            name: source.name.to_string(),
            resource_version: version,
        }
    }
}

impl Index {
    /// Records the webhook's replicas, as their Leases show them.
    pub(crate) fn webhooks(&mut self, webhooks: Webhooks, effects: &mut Effects) {
        if self.webhooks == webhooks {
            return;
        }
        match (self.webhooks.seen.is_empty(), webhooks.seen.is_empty()) {
            // No replica was alive before, so the first one has just registered the hooks.
            (true, false) => {
                self.webhooks_since = self.now;
                effects.work.timer(self.now + HOOKS_KNOWN, Timer::Rules);
            }
            (false, true) => self
                .rules
                .values_mut()
                .for_each(|state| state.pod_gate_proven = false),
            _ => {}
        }
        let pod_gates = |index: &Index| -> Vec<_> {
            let rules = index.cluster_rules();
            rules
                .map(|(id, state)| (id.clone(), index.pod_gate_word(state)))
                .collect()
        };
        let before = pod_gates(self);
        self.webhooks = webhooks;
        for (now, before) in pod_gates(self).into_iter().zip(before) {
            if now != before {
                self.mark_status_due(&now.0);
            }
        }
    }

    /// Records that a status could not be written.
    pub(crate) fn status_failed(&mut self, id: &RuleId) {
        if let Some(state) = self.rules.get_mut(id) {
            state.status.due = true;
            state.status.unwritten = true;
            state.status.not_before = self.now + PACE * 5;
        }
    }

    /// Returns the status of a rule with this tally, if it must be written.
    pub(crate) fn status(
        &mut self,
        id: &Arc<RuleId>,
        tally: Tally,
        wall: Timestamp,
        changes: &mut Changes,
    ) -> Option<StatusUpdate> {
        let (status, reported) = self.compose(id, self.rules.get(id)?, tally, wall);
        let state = self.rules.get_mut(id)?;
        let book = &mut state.status;
        book.reported = reported;
        book.synced = false;
        if !std::mem::take(&mut book.unwritten) && book.observed.as_ref() == Some(&status) {
            return None;
        }
        book.observed = Some(status.clone());
        book.not_before = self.now + PACE;
        state.changed = changes.next();
        Some(StatusUpdate {
            id: (**id).clone(),
            status,
        })
    }

    fn compose(
        &self,
        id: &Arc<RuleId>,
        state: &RuleState,
        mut tally: Tally,
        wall: Timestamp,
    ) -> (ClusterReplicationStatus, Reported) {
        let old = state.status.observed.as_ref();
        let generation = state
            .rule
            .as_ref()
            .map_or_else(|refused| refused.generation, |rule| rule.generation);
        // Times in the Kubernetes API have whole seconds.
        let now = Timestamp::from_second(wall.as_second()).ok().map(Time);
        let last_sync_time = now
            .filter(|_| state.status.synced)
            .or_else(|| old.and_then(|old| old.last_sync_time.clone()));
        let mut status = ClusterReplicationStatus {
            observed_generation: Some(generation),
            last_sync_time,
            ..ClusterReplicationStatus::default()
        };
        let mut reported = Reported::default();
        let findings = match &state.rule {
            Err(refused) => {
                let why = (ConditionReason::InvalidSpec, in_one_line(&refused.refusals));
                vec![
                    (ConditionType::Ready, false, why.clone()),
                    (ConditionType::Stalled, true, why),
                ]
            }
            Ok(rule) => {
                self.tally_not_granted(id, rule, &mut tally);
                let choice = self.choose(rule);
                let findings = self.findings(state, rule, &tally, &choice);
                reported.copies = tally.numbers();
                status.copies = Some(tally.copies);
                status.source = source_text::of_sources(&choice.sources, &rule.selectors);
                status.plan = rule.suspend.then(|| tally.planned());
                status.sources = choice
                    .sources
                    .iter()
                    .take(SOURCES)
                    .map(|source| self.source_status(id, source))
                    .collect();
                status.failures = tally
                    .failures
                    .into_iter()
                    .take(FAILURES)
                    .map(failure)
                    .collect();
                findings
            }
        };
        let old = old.map_or(&[][..], |old| &old.conditions);
        for (type_, is, (reason, message)) in findings {
            match type_ {
                ConditionType::Ready => reported.ready = Some((is, reason)),
                ConditionType::Stalled => reported.stalled = Some(reason),
                _ => {}
            }
            let message = cut(message);
            let condition = condition((type_, is), reason, message, Some(generation), old, wall);
            status.conditions.push(condition);
        }
        (shortened(status), reported)
    }
}

/// Shortens a status to the limit. It keeps all conditions and numbers, and as many list entries as
/// fit. Sources are removed first, because they are in the rule or follow from it. Failures are
/// removed last.
fn shortened(mut status: ClusterReplicationStatus) -> ClusterReplicationStatus {
    let mut over = json_size(&status).saturating_sub(LONGEST);
    shorten(&mut status.sources, &mut over);
    if let Some(plan) = &mut status.plan {
        shorten(&mut plan.copies, &mut over);
    }
    shorten(&mut status.failures, &mut over);
    status
}

/// Removes the last items until the excess is gone. Each removal also removes a comma.
fn shorten<T: Serialize>(items: &mut Vec<T>, over: &mut usize) {
    while *over > 0
        && let Some(item) = items.pop()
    {
        *over = over.saturating_sub(json_size(&item));
    }
}

/// Shortens a message until it has at most [`MESSAGE`] bytes, a quarter at a time.
fn cut(mut message: String) -> String {
    while json_size(&message) > MESSAGE {
        message.truncate(message.floor_char_boundary(message.len() / 4 * 3));
    }
    message
}

fn json_size(value: &impl Serialize) -> usize {
    // All keys in a status are text, so serialization cannot fail.
    serde_json::to_vec(value).map_or(0, |json| json.len())
}

fn failure(
    ((namespace, kind, name), (reason, message)): (CellName, (FailureReason, String)),
) -> CopyFailure {
    CopyFailure {
        kind,
        namespace,
        name,
        reason: reason.to_string(),
        message: message.chars().take(300).collect(),
    }
}
