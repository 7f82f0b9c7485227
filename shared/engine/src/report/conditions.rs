//! The conditions of a rule.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mimeo_api::{CopyCounts, Plan};

use mimeo_model::{
    choices::PodGate,
    condition::{ConditionReason, ConditionType, condition},
    id::{RuleId, RuleKind},
    names, plural,
    rule::Rule,
};

use crate::{
    Index, RuleState,
    losses::Held,
    numbers::Reported,
    select::Choice,
    status::{HOOKS_KNOWN, Observed},
    tally::Tally,
    trouble::Trouble,
};

/// The largest number of namespaces that a message names.
const NAMED: usize = 5;
/// The longest message of a condition, in bytes of JSON. A status has room for the messages of all
/// conditions.
const MESSAGE: usize = 2000;

/// The conditions of a status in preparation. Each condition keeps its transition time while its
/// status stays the same (Kubernetes API conventions).
pub(crate) struct Conditions<'a> {
    pub(crate) old: &'a [Condition],
    pub(crate) wall: Timestamp,
    pub(crate) generation: i64,
    pub(crate) new: Vec<Condition>,
    /// The same facts in values that don't depend on the rule.
    pub(crate) reported: Reported,
}

impl Conditions<'_> {
    pub(crate) fn set(
        &mut self,
        type_: ConditionType,
        status: bool,
        reason: ConditionReason,
        message: &str,
    ) {
        match type_ {
            ConditionType::Ready => self.reported.ready = Some((status, reason)),
            ConditionType::Stalled => self.reported.stalled = Some(reason),
            ConditionType::SourcesFound
            | ConditionType::Authorized
            | ConditionType::PodGateActive
            | ConditionType::Reconciling => {}
        }
        self.new.push(condition(
            (type_, status),
            reason,
            cut(message),
            Some(self.generation),
            self.old,
            self.wall,
        ));
    }

    /// Sets a condition that is false because of this trouble, or else true for this reason.
    fn set_unless(
        &mut self,
        trouble: Option<&Trouble>,
        type_: ConditionType,
        reason: ConditionReason,
        message: &str,
    ) {
        match trouble {
            Some((reason, message)) => self.set(type_, false, *reason, message),
            None => self.set(type_, true, reason, message),
        }
    }
}

/// The problems of a rule.
struct Problems<'a> {
    rule: &'a Rule,
    tally: &'a Tally,
    sources: Option<Trouble>,
    unauthorized: Option<Trouble>,
    unwatched: Option<String>,
}

impl Problems<'_> {
    /// True if copies are being written, and no problem holds them up.
    fn pending(&self) -> bool {
        let CopyCounts {
            desired,
            synced,
            failed,
        } = self.tally.copies;
        let hindered =
            self.sources.is_some() || self.unauthorized.is_some() || self.unwatched.is_some();
        !hindered && failed == 0 && synced < desired
    }

    /// Returns the condition Ready. If there are several problems, it shows the first that a user
    /// must solve.
    fn ready(&self) -> (bool, ConditionReason, Cow<'_, str>) {
        let CopyCounts {
            desired,
            synced,
            failed,
        } = self.tally.copies;
        match &self.sources {
            _ if self.rule.suspend => (false, ConditionReason::Suspended, self.preview().into()),
            _ if let Some((_, message)) = &self.unauthorized => {
                (false, ConditionReason::NotAuthorized, message.into())
            }
            Some((reason, message)) => (false, *reason, message.into()),
            None if let Some(message) = &self.unwatched => {
                (false, ConditionReason::Pending, message.into())
            }
            None if failed > 0 => (false, ConditionReason::CopiesFailed, self.failures().into()),
            None if desired == 0 => (
                true,
                ConditionReason::NoNamespaceMatches,
                "no namespace is selected".into(),
            ),
            None if self.pending() => (
                false,
                ConditionReason::Pending,
                format!("{synced} of {} up to date", copies_are(desired)).into(),
            ),
            None if desired == 1 => (true, ConditionReason::Synced, "1 copy is up to date".into()),
            None => (
                true,
                ConditionReason::Synced,
                format!("all {desired} copies are up to date").into(),
            ),
        }
    }

    fn preview(&self) -> String {
        let Plan {
            create,
            update,
            delete,
            conflict,
            ..
        } = &self.tally.plan;
        format!(
            "the rule is suspended: Mimeo writes and deletes nothing for it. Without suspend Mimeo \
             would create {}, update {} and delete {}; conflicts: {conflict}",
            plural::copies(*create),
            plural::copies(*update),
            plural::copies(*delete)
        )
    }

    /// Returns the namespaces of the failed copies, and advice for the first failure.
    fn failures(&self) -> String {
        let CopyCounts {
            desired, failed, ..
        } = self.tally.copies;
        let mut names: Vec<&str> = self
            .tally
            .failures
            .keys()
            .map(|(namespace, ..)| &**namespace)
            .collect();
        names.dedup();
        let more = if names.len() > NAMED {
            format!(" and {}", plural::more_namespaces(names.len() - NAMED))
        } else {
            String::new()
        };
        let names = names[..names.len().min(NAMED)].join(", ");
        let of = plural::copies(desired);
        let failed = format!("{failed} of {of} failed, first with");
        match self.tally.failures.values().next() {
            Some((reason, _)) => {
                let advice = reason.advice();
                format!("{failed} {reason}: in {names}{more}; {advice}")
            }
            None => format!("{failed} unknown: in {names}{more}"),
        }
    }
}

impl Index {
    /// Returns whether pods wait for the rule's copies, as reason and message.
    pub(crate) fn pod_gate_word(&self, state: &RuleState) -> (ConditionReason, Cow<'static, str>) {
        if state.pod_gate() == PodGate::None {
            (
                ConditionReason::Disabled,
                "pods do not wait for this rule's copies".into(),
            )
        } else if self.webhooks.seen.is_empty() {
            let message = "no webhook replica is alive: new namespaces get their copies from the \
                reconciler, pods do not wait";
            (ConditionReason::WebhookUnavailable, message.into())
        } else if let Some(contested) = &self.webhooks.contested {
            (
                ConditionReason::WebhookContested,
                contested.to_string().into(),
            )
        } else if !self.taken_in(state) {
            (
                ConditionReason::Pending,
                "not every webhook replica knows this version of the rule yet".into(),
            )
        } else {
            let count = self.webhooks.seen.len();
            (
                ConditionReason::Active,
                format!("pods of new namespaces wait for their copies; webhook replicas: {count}")
                    .into(),
            )
        }
    }

    /// True if every live webhook replica knows this version of the rule, and every API server
    /// knows the webhook configurations.
    fn taken_in(&self, state: &RuleState) -> bool {
        // If the pod gate is proven, every replica from before took part in the proof. Each later
        // replica has listed the rule when it started. So only a replica that has seen nothing yet
        // doesn't know the rule. The spec's version cannot serve here: it may be the version of a
        // later write of the status.
        let least = if state.pod_gate_proven {
            1
        } else {
            state.spec_version
        };
        (state.pod_gate_proven
            || self.now >= state.spec_seen.max(self.webhooks_since) + HOOKS_KNOWN)
            && self.webhooks.seen.iter().all(|seen| *seen >= least)
    }
}

impl Index {
    /// Sets all conditions of a rule that is active, or would be active if it weren't suspended.
    pub(crate) fn describe(
        &self,
        state: &RuleState,
        rule: &Rule,
        (tally, choice): (&Tally, &Choice),
        conditions: &mut Conditions<'_>,
    ) {
        let problems = Problems {
            rule,
            tally,
            sources: self.source_trouble(rule, choice),
            unauthorized: self.unauthorized(rule, tally),
            unwatched: self.unwatched_copies(rule),
        };
        let (ready, reason, message) = problems.ready();
        conditions.set(ConditionType::Ready, ready, reason, &message);
        conditions.set_unless(
            problems.sources.as_ref(),
            ConditionType::SourcesFound,
            ConditionReason::Found,
            &found(choice),
        );
        let unread = self.rules_unread();
        conditions.set_unless(
            problems.unauthorized.as_ref().or(unread.as_ref()),
            ConditionType::Authorized,
            ConditionReason::Allowed,
            "Mimeo has the permissions that the rule takes",
        );
        // A Replication has no pod gate.
        if rule.id.kind == RuleKind::ClusterReplication {
            let (reason, message) = self.pod_gate_word(state);
            let active = reason == ConditionReason::Active;
            conditions.set(ConditionType::PodGateActive, active, reason, &message);
        }
        if problems.pending() && !rule.suspend {
            let message = format!(
                "{} being written",
                copies_are(tally.copies.desired - tally.copies.synced)
            );
            conditions.set(
                ConditionType::Reconciling,
                true,
                ConditionReason::Pending,
                &message,
            );
        }
    }
}

impl Index {
    /// Sets the condition Stalled if deletions wait for a confirmation.
    pub(crate) fn describe_held(&self, id: &RuleId, conditions: &mut Conditions<'_>) {
        let Some(Held { nonce, .. }) = self.losses.held(id) else {
            return;
        };
        let copies = plural::copies(self.held_copies(id).len());
        let window = match self.settings.deletion_window.as_secs() {
            seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
            seconds => format!("{seconds} s"),
        };
        let rule = match &id.namespace {
            None => format!("clusterreplication {}", id.name),
            Some(home) => format!("replication --namespace {home} {}", id.name),
        };
        let message = format!(
            "Mimeo holds the deletion of {copies}, because the rule lost half of its copies or \
             more within {window}. Undo the change that caused this, or confirm the deletion: \
             kubectl annotate --overwrite {rule} {}={nonce}",
            names::CONFIRM_DELETION,
        );
        conditions.set(
            ConditionType::Stalled,
            true,
            ConditionReason::DeletionHeld,
            &message,
        );
    }
}

/// Returns the beginning of a message, up to [`MESSAGE`].
fn cut(message: &str) -> String {
    let mut left = MESSAGE;
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

/// "1 copy is", "12 copies are".
fn copies_are(number: i32) -> String {
    format!(
        "{} {}",
        plural::copies(number),
        if number == 1 { "is" } else { "are" }
    )
}

/// Returns the message for found sources. It names the first source that is passed over.
fn found(choice: &Choice) -> String {
    let more = match choice.passed.len() {
        0 | 1 => String::new(),
        2 => ", and 1 more is passed over".to_owned(),
        count => format!(", and {} more are passed over", count - 1),
    };
    let passed = choice
        .passed
        .first()
        .map(|(source, why)| format!("; {source} is selected, but {why}{more}"));
    format!("every source was found{}", passed.unwrap_or_default())
}

/// True if a status says that the pod gate of this generation is active.
pub(crate) fn pod_gate_active(observed: &Observed, generation: i64) -> bool {
    observed
        .iter()
        .flat_map(|status| &status.conditions)
        .any(|condition| {
            condition.type_ == ConditionType::PodGateActive.as_str()
                && condition.status == "True"
                && condition.observed_generation == Some(generation)
        })
}
