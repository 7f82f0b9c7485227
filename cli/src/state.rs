//! The state of a copy in the words of statuses and documents, and the next step for a person.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mimeo_api::{ClusterReplicationStatus, CopyFailure};
use mimeo_engine::{CopyView, State};
use mimeo_model::{
    condition::ConditionReason,
    id::{RuleId, RuleKind},
    outcome::FailureReason,
    rule::Rule,
    source::SourceRef,
};

use crate::{output::quoted, picture::Picture};

/// One copy, or the place where it is missing.
pub(crate) struct CopyKey<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
}

/// The state of a copy that the rule wants, and the reason in a sentence. `copy` is the engine's view
/// of it.
pub(crate) fn state(
    picture: &Picture,
    key: &CopyKey<'_>,
    rule: &Rule,
    source: &SourceRef,
    copy: Option<&CopyView>,
    status: Option<&ClusterReplicationStatus>,
) -> (String, String) {
    let known = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
    if rule.suspend {
        return known(
            "Suspended",
            "the rule is suspended: Mimeo writes and deletes nothing for it",
        );
    }
    if let Some(copy) = copy {
        match copy.state {
            State::Failed => {
                let reason = copy.reason.clone().unwrap_or_default();
                return (reason, copy.message.clone().unwrap_or_default());
            }
            State::Synced => return known("Synced", "the copy is as the rule says"),
            State::Held => return known("DeletionHeld", "the copy's deletion waits for a person"),
            State::Pending | State::Suspended => {}
        }
    }
    // The reconciler has tried, and the API server has refused. Only the status shows that.
    if let Some(failure) = recorded(status, key) {
        return (failure.reason.clone(), failure.message.clone());
    }
    // A source may be unreadable because Mimeo lacks a permission, so Authorized comes first.
    for cause in ["Authorized", "SourcesFound"] {
        let found = status.and_then(|status| condition(status, cause));
        let failed = |one: &&Condition| one.status == "False" && one.reason != "Pending";
        if let Some(one) = found.filter(failed) {
            return (one.reason.clone(), one.message.clone());
        }
    }
    if picture.hidden.contains(source) {
        return known(
            "Unknown",
            "you may not read the source, so the state of its copy is unknown",
        );
    }
    match copy.and_then(|copy| copy.reason.as_deref()) {
        Some("Create") => known("Pending", "Mimeo has to create the copy"),
        Some("Update") => known("Pending", "Mimeo has to update the copy"),
        Some("Delete") => known("Pending", "Mimeo has to delete the copy"),
        _ => known("Pending", "Mimeo has not decided about the copy yet"),
    }
}

/// The condition of this type.
pub(crate) fn condition<'a>(
    status: &'a ClusterReplicationStatus,
    type_: &str,
) -> Option<&'a Condition> {
    let mut conditions = status.conditions.iter();
    conditions.find(|condition| condition.type_ == type_)
}

/// The condition that a deletion of the rule's copies is held, if it is.
pub(crate) fn held_deletion(status: &ClusterReplicationStatus) -> Option<&Condition> {
    let held = ConditionReason::DeletionHeld.as_str();
    condition(status, "Stalled").filter(|one| one.status == "True" && one.reason == held)
}

/// The failure that the rule's status names for this copy.
fn recorded<'a>(
    status: Option<&'a ClusterReplicationStatus>,
    key: &CopyKey<'_>,
) -> Option<&'a CopyFailure> {
    let failures = &status?.failures;
    failures.iter().find(|failure| {
        failure.kind == key.kind && failure.namespace == key.namespace && failure.name == key.name
    })
}

/// The next step for a person in this state.
pub(crate) fn fix(
    state: &str,
    key: &CopyKey<'_>,
    rule: &Rule,
    source: &SourceRef,
) -> Option<String> {
    let CopyKey {
        namespace,
        kind,
        name,
    } = key;
    let kind = kind.to_lowercase();
    let name = &quoted(name);
    let id = &rule.id;
    let rule = object(id);
    Some(match state {
        "Synced" | "Unknown" => return None,
        "Suspended" => {
            format!("kubectl patch {rule} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'")
        }
        "SourceNotFound" | "InGracePeriod" => format!(
            "create the source, or correct spec.sources; is it there?  kubectl -n {} get {} {}",
            source.namespace,
            source.gvk.kind.to_lowercase(),
            quoted(&source.name)
        ),
        "KindNotServed" => format!(
            "install the CRD of {}, or correct apiVersion and kind in spec.sources",
            source.gvk
        ),
        "SourceRefused" => format!("kubectl edit {rule}   (spec.sources, or transform.type)"),
        "ControllerForbidden" => {
            "give Mimeo the permission that the message names, by a ClusterRole with the label mimeo.dev/aggregate-to-mimeo=true".into()
        }
        "DeletionHeld" => confirm(id),
        "NotGranted" if id.kind == RuleKind::Replication => format!(
            "kubectl mimeo grant {}   prints the ReplicationGrant for the owner of the other namespace",
            argument(id)
        ),
        "Conflict" => format!(
            "kubectl -n {namespace} get {kind} {name} -o yaml --show-managed-fields   shows whose it is; then delete it, or set copyName or conflictPolicy in {rule}"
        ),
        "QuotaExceeded" => format!("kubectl -n {namespace} describe resourcequota"),
        "VariableUnset" => format!(
            "kubectl label namespace {namespace} KEY=VALUE   with the label that the message names"
        ),
        "Pending" => "kubectl mimeo check   shows whether Mimeo works; if it does, wait some seconds".into(),
        other => FailureReason::ALL
            .iter()
            .find(|reason| reason.as_str() == other)?
            .advice()
            .to_owned(),
    })
}

/// The commands that show a held deletion, and confirm it.
pub(crate) fn confirm(rule: &RuleId) -> String {
    let name = argument(rule);
    format!(
        "kubectl mimeo held {name}   lists the copies; kubectl mimeo confirm {name}   deletes them"
    )
}

/// A rule as an argument of this program.
pub(crate) fn argument(id: &RuleId) -> String {
    match &id.namespace {
        Some(namespace) => format!("{namespace}/{}", id.name),
        None => id.name.to_string(),
    }
}

/// A rule as an argument of kubectl.
pub(crate) fn object(id: &RuleId) -> String {
    match (&id.kind, &id.namespace) {
        (RuleKind::Replication, Some(namespace)) => {
            format!("-n {namespace} replication/{}", id.name)
        }
        _ => format!("clusterreplication/{}", id.name),
    }
}
