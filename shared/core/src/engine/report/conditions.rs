//! A rule's conditions: the words for how it stands.

use std::{borrow::Cow, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use mimeo_api::{CopyCounts, Plan};

use crate::engine::{
    Engine, RuleState,
    authorized::Unauthorized,
    numbers::Told,
    select::Choice,
    status::{HOOKS_KNOWN, Observed},
    tally::Tally,
};
use crate::{
    condition::{ConditionReason, ConditionType},
    names,
    rule::{Barrier, Rule, RuleId, RuleKind},
};

/// Most namespaces that a message names.
const NAMED: usize = 5;
/// Longest message of a condition, in bytes of JSON: those of all conditions have room in a status.
const MESSAGE: usize = 2000;

/// Conditions in the making: each keeps its transition time while its status stays (Kubernetes API conventions).
pub(in crate::engine) struct Conditions<'a> {
    pub(in crate::engine) old: &'a [Condition],
    pub(in crate::engine) wall: Timestamp,
    pub(in crate::engine) generation: i64,
    pub(in crate::engine) new: Vec<Condition>,
    /// The same in words that don't depend on the rule.
    pub(in crate::engine) told: Told,
}

impl Conditions<'_> {
    pub(in crate::engine) fn set(
        &mut self,
        type_: ConditionType,
        status: bool,
        reason: ConditionReason,
        message: &str,
    ) {
        match type_ {
            ConditionType::Ready => self.told.ready = Some((status, reason)),
            ConditionType::Stalled => self.told.stalled = Some(reason),
            ConditionType::SourcesFound
            | ConditionType::Authorized
            | ConditionType::BarrierActive
            | ConditionType::Reconciling => {}
        }
        let status = if status { "True" } else { "False" };
        let same = self.old.iter().find(|old| old.type_ == type_.as_str() && old.status == status);
        let now = Timestamp::from_second(self.wall.as_second()).unwrap_or(self.wall);
        self.new.push(Condition {
            type_: type_.to_string(),
            status: status.into(),
            reason: reason.to_string(),
            message: cut(message, MESSAGE),
            last_transition_time: same.map_or(Time(now), |old| old.last_transition_time.clone()),
            observed_generation: Some(self.generation),
        });
    }
}

/// What is the matter with a rule, if anything is.
struct Findings<'a> {
    rule: &'a Rule,
    tally: &'a Tally,
    trouble: Option<(ConditionReason, String)>,
    unauthorized: Option<Unauthorized>,
    unwatched: Option<String>,
}

impl Findings<'_> {
    /// Whether copies are on their way, and nothing keeps them.
    fn pending(&self) -> bool {
        let CopyCounts { desired, synced, failed } = self.tally.copies;
        let hindered = self.trouble.is_some() || self.unauthorized.is_some() || self.unwatched.is_some();
        !hindered && failed == 0 && synced < desired
    }

    /// Of all that is the matter the first thing that somebody has to do something about.
    fn ready(&self) -> (bool, ConditionReason, Cow<'_, str>) {
        let CopyCounts { desired, synced, failed } = self.tally.copies;
        match &self.trouble {
            _ if self.rule.suspend => (false, ConditionReason::Suspended, self.preview().into()),
            _ if let Some(Unauthorized { message, .. }) = &self.unauthorized => {
                (false, ConditionReason::NotAuthorized, message.into())
            }
            Some((_, message)) => (false, ConditionReason::SourceNotFound, message.into()),
            None if let Some(message) = &self.unwatched => (false, ConditionReason::Pending, message.into()),
            None if failed > 0 => (false, ConditionReason::CopiesFailed, self.failures().into()),
            None if desired == 0 => (true, ConditionReason::NoNamespaceMatches, "no namespace is selected".into()),
            None if self.pending() => {
                (false, ConditionReason::Pending, format!("{synced} of {desired} copies are up to date").into())
            }
            None => (true, ConditionReason::Synced, format!("all {desired} copies are up to date").into()),
        }
    }

    fn preview(&self) -> String {
        let Plan { create, update, delete, conflict, .. } = &self.tally.plan;
        format!(
            "nothing is written or deleted; lifting suspend would create {create}, update {update} and delete {delete} copies, \
             {conflict} conflict"
        )
    }

    /// Where copies failed, and what to do about the first.
    fn failures(&self) -> String {
        let CopyCounts { desired, failed, .. } = self.tally.copies;
        let mut names: Vec<&str> = self.tally.failures.keys().map(|(namespace, ..)| &**namespace).collect();
        names.dedup();
        let more =
            if names.len() > NAMED { format!(" and {} more namespaces", names.len() - NAMED) } else { String::new() };
        let names = names[..names.len().min(NAMED)].join(", ");
        let first = self.tally.failures.values().next().map(|(reason, _)| *reason);
        let (reason, advice) = first
            .map_or(("unknown".into(), String::new()), |reason| (reason.to_string(), format!("; {}", reason.advice())));
        format!("{failed} of {desired} copies failed, first with {reason}: in {names}{more}{advice}")
    }
}

impl Engine {
    /// All conditions of a rule that may act, or might if it weren't suspended.
    pub(in crate::engine) fn describe(
        &self,
        id: &Arc<RuleId>,
        state: &RuleState,
        rule: &Rule,
        (tally, choice): (&Tally, &Choice),
        conditions: &mut Conditions<'_>,
    ) {
        let findings = Findings {
            rule,
            tally,
            trouble: self.source_trouble(rule, choice),
            unauthorized: self.unauthorized(rule, tally),
            unwatched: self.unwatched_copies(rule),
        };
        let (ready, reason, message) = findings.ready();
        conditions.set(ConditionType::Ready, ready, reason, &message);
        match &findings.trouble {
            None => conditions.set(ConditionType::SourcesFound, true, ConditionReason::Found, &found(choice)),
            Some((reason, message)) => conditions.set(ConditionType::SourcesFound, false, *reason, message),
        }
        self.describe_authorized(findings.unauthorized.as_ref(), conditions);
        self.describe_barrier(state, rule, conditions);
        if findings.pending() && !rule.suspend {
            let message = format!("{} copies are being written", tally.copies.desired - tally.copies.synced);
            conditions.set(ConditionType::Reconciling, true, ConditionReason::Pending, &message);
        }
        self.describe_held(id, conditions);
    }

    fn describe_authorized(&self, unauthorized: Option<&Unauthorized>, conditions: &mut Conditions<'_>) {
        match unauthorized {
            None if let Some(Unauthorized { reason, message }) = self.rules_unread() => {
                conditions.set(ConditionType::Authorized, false, reason, &message);
            }
            None => {
                let message = "the rule's author and Mimeo may do what it takes";
                conditions.set(ConditionType::Authorized, true, ConditionReason::Allowed, message);
            }
            Some(Unauthorized { reason, message }) => {
                conditions.set(ConditionType::Authorized, false, *reason, message);
            }
        }
    }

    /// Which deletions wait for a person, if some do.
    fn describe_held(&self, id: &RuleId, conditions: &mut Conditions<'_>) {
        let Some(nonce) = self.sweeps.get(id).and_then(|sweep| sweep.held.as_deref()) else { return };
        let count = self.told(id).len();
        let (most, rule) = match &id.namespace {
            None => ("this rule's copies", format!("clusterreplication {}", id.name)),
            Some(home) => (
                "this rule's copies, of its namespace's Replications' or of all Replications',",
                format!("replication --namespace {home} {}", id.name),
            ),
        };
        let message = format!(
            "{count} copies would be deleted at once, which is half of {most} or more; if that is meant: kubectl annotate \
             --overwrite {rule} {}={nonce}",
            names::CONFIRM_DELETION,
        );
        conditions.set(ConditionType::Stalled, true, ConditionReason::DeletionHeld, &message);
    }

    pub(in crate::engine) fn describe_barrier(&self, state: &RuleState, rule: &Rule, conditions: &mut Conditions<'_>) {
        if rule.id.kind == RuleKind::Replication {
            return; // It can have none.
        }
        let (reason, message) = self.barrier_word(state);
        conditions.set(ConditionType::BarrierActive, reason == ConditionReason::Active, reason, &message);
    }

    /// Whether pods wait for the rule's copies: reason and message.
    pub(in crate::engine) fn barrier_word(&self, state: &RuleState) -> (ConditionReason, Cow<'static, str>) {
        if state.barrier() == Barrier::None {
            (ConditionReason::Disabled, "pods do not wait for this rule's copies".into())
        } else if self.webhooks.seen.is_empty() {
            let message =
                "no webhook replica is alive: new namespaces get their copies from the reconciler, pods do not wait";
            (ConditionReason::WebhookUnavailable, message.into())
        } else if !self.taken_in(state) {
            (ConditionReason::Pending, "not every webhook replica has taken in this version of the rule".into())
        } else {
            let count = self.webhooks.seen.len();
            (
                ConditionReason::Active,
                format!("pods of new namespaces wait for their copies; webhook replicas: {count}").into(),
            )
        }
    }

    /// Whether every live webhook replica has taken in this version of the rule, and every API server the webhooks'.
    fn taken_in(&self, state: &RuleState) -> bool {
        // A replica of before the proof took part in it, one of after it has listed the rule: only one that has seen nothing
        // yet doesn't know it. Versions are no help here, those of statuses written since are among them.
        let least = if state.barrier_proven { 1 } else { state.spec_version };
        (state.barrier_proven || self.now >= state.spec_seen.max(self.webhooks_since) + HOOKS_KNOWN)
            && self.webhooks.seen.iter().all(|seen| *seen >= least)
    }
}

/// The beginning of a message that takes at most so many bytes of JSON.
fn cut(message: &str, most: usize) -> String {
    let mut left = most;
    let fits = |char: &char| {
        let size = match char {
            '"' | '\\' => 2,
            control if control.is_control() => 6,
            other => other.len_utf8(),
        };
        let rest = left.checked_sub(size);
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    message.chars().take_while(fits).collect()
}

/// What was found, and what of it is passed over.
fn found(choice: &Choice) -> String {
    let more = match choice.passed.len() {
        0 | 1 => String::new(),
        count => format!(", and {} more are passed over like it", count - 1),
    };
    let passed = choice.passed.first().map(|(source, why)| format!("; {source} is selected, but {why}{more}"));
    format!("every source was found{}", passed.unwrap_or_default())
}

/// Whether a status says that the barrier of this generation is up.
pub(in crate::engine) fn barrier_active(observed: &Observed, generation: i64) -> bool {
    observed.iter().flat_map(|status| &status.conditions).any(|condition| {
        condition.type_ == ConditionType::BarrierActive.as_str()
            && condition.status == "True"
            && condition.observed_generation == Some(generation)
    })
}
