//! The conditions of a rule.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mimeo_api::{CopyCounts, Plan};

use mimeo_model::{
    choices::PodGate,
    condition::{ConditionReason, ConditionType},
    id::{RuleId, RuleKind},
    names,
    outcome::FailureReason,
    plural,
    rule::Rule,
};

use crate::{
    Index, RuleState,
    events::places,
    losses::Held,
    select::Choice,
    status::{HOOKS_KNOWN, Observed},
    tally::Tally,
    trouble::Trouble,
};

/// A condition in preparation: its type, its status, its reason and its message.
pub(crate) type Finding = (ConditionType, bool, Trouble);

/// Returns a condition that is false because of this trouble, or else true for this reason.
fn unless(type_: ConditionType, trouble: Option<Trouble>, good: Trouble) -> Finding {
    match trouble {
        Some(trouble) => (type_, false, trouble),
        None => (type_, true, good),
    }
}

impl Tally {
    /// Returns the reason and message of the condition Ready if nothing else keeps the rule from its
    /// work.
    fn progress(&self) -> Trouble {
        let CopyCounts {
            desired, synced, ..
        } = self.copies;
        if let Some((first, _)) = self.failures.values().next() {
            return (ConditionReason::CopiesFailed, self.failed(*first));
        }
        if desired == 0 {
            let message = "no namespace is selected".to_owned();
            return (ConditionReason::NoNamespaceMatches, message);
        }
        let copies = copies_are(desired);
        if synced < desired {
            let message = format!("{synced} of {copies} up to date");
            (ConditionReason::Pending, message)
        } else {
            (ConditionReason::Synced, format!("{copies} up to date"))
        }
    }

    /// Returns the reason and message of the condition Ready of a suspended rule.
    fn preview(&self) -> Trouble {
        let Plan {
            create,
            update,
            delete,
            conflict,
            ..
        } = self.plan;
        let message = format!(
            "the rule is suspended: Mimeo writes and deletes nothing for it. Without suspend Mimeo \
             would create {}, update {} and delete {}; conflicts: {conflict}",
            plural::copies(create),
            plural::copies(update),
            plural::copies(delete)
        );
        (ConditionReason::Suspended, message)
    }

    /// Returns the namespaces of the failed copies, and advice for the first failure.
    fn failed(&self, first: FailureReason) -> String {
        let CopyCounts {
            desired, failed, ..
        } = self.copies;
        let namespaces = self.failures.keys().map(|(namespace, ..)| &**namespace);
        format!(
            "{failed} of {} failed, first with {first}: in {}; {}",
            plural::copies(desired),
            places(namespaces),
            first.advice()
        )
    }
}

impl Index {
    /// Returns whether pods wait for the rule's copies, as reason and message.
    pub(crate) fn pod_gate_word(&self, state: &RuleState) -> Trouble {
        let replicas = self.webhooks.seen.len();
        let gated = |rule: &Rule| rule.pod_gate != PodGate::None;
        if !state.acting().is_some_and(gated) {
            let message = "pods do not wait for this rule's copies";
            (ConditionReason::Disabled, message.to_owned())
        } else if replicas == 0 {
            let message = "no webhook replica is alive: new namespaces get their copies from the \
                reconciler, pods do not wait";
            (ConditionReason::WebhookUnavailable, message.to_owned())
        } else if let Some(contested) = &self.webhooks.contested {
            (ConditionReason::WebhookContested, contested.to_string())
        } else if !self.taken_in(state) {
            let message = "not every webhook replica knows this version of the rule yet";
            (ConditionReason::Pending, message.to_owned())
        } else {
            let message = "pods of new namespaces wait for their copies; webhook replicas: ";
            (ConditionReason::Active, format!("{message}{replicas}"))
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
    /// Returns all conditions of a rule with a valid spec.
    pub(crate) fn findings(
        &self,
        state: &RuleState,
        rule: &Rule,
        tally: &Tally,
        choice: &Choice,
    ) -> Vec<Finding> {
        let sources = self.source_trouble(rule, choice);
        let unauthorized = self.unauthorized(rule, tally);
        let unwatched = self.unwatched_copies(rule);
        // A rule whose copies cannot be watched is pending, too, but writes none.
        let writes = unwatched.is_none();
        // If there are several problems, Ready shows the first that a user must solve.
        let suspended = rule.suspend.then(|| tally.preview());
        let why = suspended
            .or_else(|| {
                let (_, message) = unauthorized.clone()?;
                Some((ConditionReason::NotAuthorized, message))
            })
            .or_else(|| sources.clone())
            .or_else(|| Some((ConditionReason::Pending, unwatched?)))
            .unwrap_or_else(|| tally.progress());
        let ready = matches!(
            why.0,
            ConditionReason::NoNamespaceMatches | ConditionReason::Synced
        );
        let pending = writes && why.0 == ConditionReason::Pending;
        let all_found = (ConditionReason::Found, found(choice));
        let denied = unauthorized.or_else(|| self.rules_unread());
        let allowed = "Mimeo has the permissions that the rule takes";
        let allowed = (ConditionReason::Allowed, allowed.to_owned());
        let mut findings = vec![
            (ConditionType::Ready, ready, why),
            unless(ConditionType::SourcesFound, sources, all_found),
            unless(ConditionType::Authorized, denied, allowed),
        ];
        // A Replication has no pod gate.
        if rule.id.kind == RuleKind::ClusterReplication {
            let why = self.pod_gate_word(state);
            let active = why.0 == ConditionReason::Active;
            findings.push((ConditionType::PodGateActive, active, why));
        }
        if pending {
            let missing = tally.copies.desired - tally.copies.synced;
            let message = format!("{} being written", copies_are(missing));
            let why = (ConditionReason::Pending, message);
            findings.push((ConditionType::Reconciling, true, why));
        }
        findings.extend(self.held_deletion(&rule.id));
        findings
    }

    /// Returns the condition Stalled if deletions wait for a confirmation.
    fn held_deletion(&self, id: &RuleId) -> Option<Finding> {
        let Held { nonce, .. } = self.losses.held(id)?;
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
        let why = (ConditionReason::DeletionHeld, message);
        Some((ConditionType::Stalled, true, why))
    }
}

/// "1 copy is", "12 copies are".
fn copies_are(number: i32) -> String {
    plural::counted(number, "copy is", "copies are")
}

/// Returns the message for found sources. It names the first source that is passed over.
fn found(choice: &Choice) -> String {
    let passed = choice.passed.first().map(|(source, why)| {
        let count = choice.passed.len();
        format!("; {source} is selected, but {why}; passed over in all: {count}")
    });
    format!("every source was found{}", passed.unwrap_or_default())
}

/// True if a status has a condition of this type that is as asked.
pub(crate) fn says(
    observed: &Observed,
    type_: ConditionType,
    is: impl Fn(&Condition) -> bool,
) -> bool {
    let conditions = observed.iter().flat_map(|status| &status.conditions);
    let mut typed = conditions.filter(|condition| condition.type_ == type_.as_str());
    typed.any(is)
}

/// True if a status says that the pod gate of this generation is active.
pub(crate) fn pod_gate_active(observed: &Observed, generation: i64) -> bool {
    says(observed, ConditionType::PodGateActive, |active| {
        active.status == "True" && active.observed_generation == Some(generation)
    })
}
