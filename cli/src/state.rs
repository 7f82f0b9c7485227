//! The state of a copy in the words of statuses and documents, and the next step for a person. Every
//! command reads it here.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mimeo_api::ClusterReplicationStatus;
use mimeo_engine::{AwaitedCopy, CopyView, Outlook, Progress as Waits, State as Decided};
use mimeo_model::{
    choices::Strategy,
    condition::ConditionReason,
    id::{RuleId, RuleKind},
    kind::GroupVersionKind,
    outcome::FailureReason,
    source::SourceRef,
};
use serde::Serialize;

use crate::{
    connect::ClusterFlags,
    kinds,
    names::{ObjectName, argument, object},
    output::{Tone, quoted},
    picture::{Gap, Picture},
};

/// The state of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum State {
    Synced,
    Suspended,
    Pending,
    /// The user may not read a fact that decides about it.
    Unknown,
    /// Its deletion waits for a person.
    DeletionHeld,
    /// Mimeo deletes it.
    Unwanted,
    /// The rule leaves it behind.
    Retained,
    /// The rule that wrote it no longer exists.
    RuleDeleted,
    NotSelected,
    InvalidSpec,
    /// The pods of its namespace wait for it.
    PodsWait,
    /// The pods of its namespace are admitted with a warning.
    PodsWarned,
    PodsRefused,
    /// There is no correct copy, for this reason of a failure or a condition.
    #[serde(untagged)]
    Failed(String),
}

/// Prints the word that JSON has, too.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl State {
    /// Good: the copy is correct. Bad: a person has to do something.
    pub(crate) fn tone(&self) -> Tone {
        match self {
            Self::Synced => Tone::Good,
            Self::Failed(reason) if reason == ConditionReason::InGracePeriod.as_str() => {
                Tone::Notice
            }
            Self::Failed(_) | Self::InvalidSpec | Self::PodsRefused => Tone::Bad,
            _ => Tone::Notice,
        }
    }
}

/// The copies that a namespace waits for, by what happens to its pods meanwhile.
pub(crate) fn pods(waits: &Waits) -> [(State, &[AwaitedCopy]); 3] {
    [
        (State::PodsRefused, &waits.denied),
        (State::PodsWarned, &waits.excused),
        (State::PodsWait, &waits.waiting),
    ]
}

/// The reason of a failure that the rule's status counts and does not name.
const UNNAMED: &str = "Failed";

/// A state, and the reason in a sentence.
pub(crate) type Explained = (State, String);

/// The state of a copy of a rule. `source` is none if the rule does not want the copy, or no longer
/// exists. `copy` is the engine's view of the copy.
pub(crate) fn state(
    picture: &Picture,
    key: &ObjectName<'_>,
    id: &RuleId,
    source: Option<&SourceRef>,
    copy: Option<&CopyView>,
) -> Explained {
    let known = |state, message: &str| (state, message.to_owned());
    let Some(stored) = picture.rules.get(id) else {
        return if picture.unread.has(&Gap::Rules(id.kind)) {
            let message = "you may not read the rule that wrote the copy";
            known(State::Unknown, message)
        } else {
            let message =
                "Mimeo deletes the copy, unless the rule retained it or its deletion is held";
            known(State::RuleDeleted, message)
        };
    };
    if stored.rule.as_ref().is_ok_and(|rule| rule.suspend) {
        let message = "the rule is suspended: Mimeo writes and deletes nothing for it";
        return known(State::Suspended, message);
    }
    let status = stored.status.as_ref();
    if let Some(copy) = copy {
        let held = || is_lost(copy) && status.and_then(held_deletion).is_some();
        match copy.state {
            Decided::Failed => {
                let reason = copy.reason().unwrap_or_default().to_owned();
                let message = copy.failure.as_ref().map(|(_, message)| message.clone());
                return (State::Failed(reason), message.unwrap_or_default());
            }
            Decided::Synced => {
                let rule = stored.rule.as_ref();
                let message = if rule.is_ok_and(|rule| rule.strategy == Strategy::CreateOnce) {
                    "the rule created the copy once, and neither changes it nor creates it again \
                     (strategy: CreateOnce)"
                } else {
                    "the copy is as the rule says"
                };
                return known(State::Synced, message);
            }
            state if state == Decided::Held || held() => {
                let message = "the deletion of the copy waits for a person";
                return known(State::DeletionHeld, message);
            }
            _ => {}
        }
    }
    match (source, copy) {
        (Some(source), copy) => missing(picture, key, source, status, copy),
        (None, Some(_)) => known(State::Unwanted, "Mimeo deletes the copy"),
        (None, None) if picture.unread.has(&Gap::Copies) => {
            known(State::Unknown, "you may not list copies of its kind")
        }
        (None, None) => {
            let message = "the rule's retentionPolicy leaves the copy behind";
            known(State::Retained, message)
        }
    }
}

/// True if the rule's status counts the copy, in this state, as failed. It does not count a copy
/// whose source is missing, say.
pub(crate) fn is_failure(
    picture: &Picture,
    key: &ObjectName<'_>,
    id: &RuleId,
    (state, copy): (&State, &CopyView),
) -> bool {
    let rule = picture.rules.get(id);
    let status = rule.and_then(|rule| rule.status.as_ref());
    copy.state == Decided::Failed
        || *state == State::Failed(UNNAMED.into())
        || status.and_then(|status| recorded(status, key)).is_some()
}

/// True if Mimeo has to delete the copy.
pub(crate) fn is_lost(copy: &CopyView) -> bool {
    copy.failure.is_none() && copy.outlook == Outlook::Delete
}

/// The state of a copy that the rule wants, and that is not correct.
fn missing(
    picture: &Picture,
    key: &ObjectName<'_>,
    source: &SourceRef,
    status: Option<&ClusterReplicationStatus>,
    copy: Option<&CopyView>,
) -> Explained {
    // The reconciler has tried, and the API server has refused. Only the status shows that.
    if let Some(failure) = status.and_then(|status| recorded(status, key)) {
        return failure;
    }
    if let Some(cause) = status.and_then(|status| cause(status, source, copy)) {
        return (State::Failed(cause.reason.clone()), cause.message.clone());
    }
    if picture.unread.has(&Gap::Source(source.clone())) {
        let message = "you may not read the source, so the state of its copy is unknown";
        return (State::Unknown, message.into());
    }
    if !picture.namespaces.contains_key(key.namespace) {
        let message = format!(
            "namespace {} does not exist; Mimeo creates the copy together with it",
            key.namespace
        );
        return (State::Pending, message);
    }
    let planned = match copy.map(|copy| copy.outlook) {
        Some(Outlook::Create) => "Mimeo has to create the copy",
        Some(Outlook::Update) => "Mimeo has to update the copy",
        Some(Outlook::Delete) => "Mimeo has to delete the copy",
        _ => "Mimeo has not decided about the copy yet",
    };
    match status.and_then(unnamed) {
        Some((true, message)) => (State::Failed(UNNAMED.into()), message),
        Some((false, message)) => (State::Pending, format!("{planned}. {message}")),
        None => (State::Pending, planned.into()),
    }
}

/// The condition of the rule that keeps the copy of this source away. A condition is about all
/// sources of the rule, and names the first ones with a trouble.
fn cause<'a>(
    status: &'a ClusterReplicationStatus,
    source: &SourceRef,
    copy: Option<&CopyView>,
) -> Option<&'a Condition> {
    // A source may be unreadable because Mimeo lacks a permission, so Authorized comes first.
    let causes = ["Authorized", "SourcesFound"].into_iter();
    let causes = causes.filter_map(|cause| condition(status, cause));
    let failed = |one: &&Condition| one.status == "False" && one.reason != "Pending";
    let failed: Vec<&Condition> = causes.filter(failed).collect();
    let named = failed.iter().find(|one| {
        // Missing permissions of Mimeo are about kinds.
        let of_kind = one.reason == ConditionReason::ControllerForbidden.as_str();
        let word = if of_kind {
            &source.gvk.kind
        } else {
            &source.name
        };
        mentions(&one.message, word)
    });
    // Mimeo plans a write only of a copy that nothing keeps away.
    let planned = matches!(
        copy.map(|copy| copy.outlook),
        Some(Outlook::Create | Outlook::Update)
    );
    let first = failed.first().filter(|_| !planned);
    named.or(first).copied()
}

/// True if the word is in the message, and not only as a part of a longer name.
fn mentions(message: &str, word: &str) -> bool {
    let in_a_name = |char: char| char.is_alphanumeric() || "-._:".contains(char);
    let mut names = message.split(|char| !in_a_name(char));
    names.any(|name| name.trim_end_matches(['.', ':']) == word)
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
fn recorded(status: &ClusterReplicationStatus, key: &ObjectName<'_>) -> Option<Explained> {
    let failure = status.failures.iter().find(|failure| {
        failure.kind == key.kind && failure.namespace == key.namespace && failure.name == key.name
    })?;
    let state = State::Failed(failure.reason.clone());
    Some((state, failure.message.clone()))
}

/// A status names the first 20 failures. If it counts more, a copy that it does not name may have
/// failed, too. True: it has failed, because each copy of the rule is either correct or failed.
fn unnamed(status: &ClusterReplicationStatus) -> Option<(bool, String)> {
    let counts = status.copies?;
    let named = status.failures.len();
    let failed = usize::try_from(counts.failed).unwrap_or_default();
    let rest = failed.checked_sub(named).filter(|rest| *rest > 0)?;
    let certain = counts.desired == counts.synced + counts.failed;
    let mut reasons: Vec<&str> = status.failures.iter().map(|one| &*one.reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let reasons = reasons.join(", ");
    let message = if certain {
        format!(
            "Mimeo could not write the copy. The rule's status names {named} of {failed} failures, \
             and not this one. Their reasons: {reasons}"
        )
    } else {
        format!("Or it has failed: the rule's status counts {rest} failures that it does not name")
    };
    Some((certain, message))
}

/// The next step for a person: a command for the shell, a sentence, or both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Fix {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
    /// What the command shows, or what there is to do beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

impl Fix {
    pub(crate) fn run(command: impl Into<String>) -> Self {
        Self {
            command: Some(command.into()),
            note: None,
        }
    }

    pub(crate) fn say(note: impl Into<String>) -> Self {
        Self {
            command: None,
            note: Some(note.into()),
        }
    }

    pub(crate) fn note(self, note: impl Into<String>) -> Self {
        Self {
            note: Some(note.into()),
            ..self
        }
    }

    /// The same step, for the cluster that the user named.
    pub(crate) fn for_cluster(self, cluster: &ClusterFlags) -> Self {
        let told = |text: String| cluster.in_commands(&text);
        Self {
            command: self.command.map(told),
            note: self.note.map(told),
        }
    }
}

/// On one line: the command, then what it shows.
impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [&self.command, &self.note].into_iter().flatten();
        let parts: Vec<&str> = parts.map(String::as_str).collect();
        f.write_str(&parts.join("   "))
    }
}

/// The next step for a person, if the copy with this namespace, kind and name is in this state.
pub(crate) fn fix(
    picture: &Picture,
    (state, message): (&State, &str),
    (namespace, gvk, name): (&str, &GroupVersionKind, &str),
    id: &RuleId,
    source: Option<&SourceRef>,
) -> Option<Fix> {
    let copy = kinds::argument(gvk, name);
    let rule = object(id);
    let edit = || Fix::run(format!("kubectl edit {rule}"));
    let check = || Fix::run("kubectl mimeo check");
    Some(match state {
        State::Suspended => Fix::run(format!(
            "kubectl patch {rule} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'"
        )),
        State::DeletionHeld => {
            let name = argument(id);
            Fix::run(format!("kubectl mimeo held {name}")).note(format!(
                "it lists the copies; kubectl mimeo confirm {name} deletes them"
            ))
        }
        State::RuleDeleted => Fix::run(format!("kubectl mimeo held {}", argument(id)))
            .note("it shows whether the deletion of the copy is held"),
        State::Retained => Fix::say(format!(
            "if the copy is not needed, delete it: kubectl -n {} delete {copy}",
            quoted(namespace)
        )),
        State::Pending if !picture.namespaces.contains_key(namespace) => {
            create_namespace(namespace).note("or correct its name")
        }
        State::Pending | State::Unwanted => {
            check().note("it shows whether Mimeo works; if it does, wait some seconds")
        }
        State::InvalidSpec => edit(),
        State::Failed(reason) => {
            let cause = ConditionReason::ALL.iter();
            let cause = cause.copied().find(|one| one.as_str() == reason);
            let failure = FailureReason::ALL.iter();
            let failure = failure.copied().find(|one| one.as_str() == reason);
            return match (cause, failure) {
                (Some(cause), _) => fix_cause(cause, id, source),
                (_, Some(failure)) => {
                    let copy = (&*quoted(namespace), &*copy);
                    Some(fix_failure((failure, message), copy, id, source))
                }
                // The reason of a failure that no status names.
                (None, None) => {
                    let logs = format!(
                        "kubectl -n {} logs -l app.kubernetes.io/name=mimeo-reconciler --tail=-1 | \
                         grep 'copy not written'",
                        quoted(&picture.mimeo)
                    );
                    Some(Fix::run(logs).note("it shows the reason for each copy"))
                }
            };
        }
        _ => return None,
    })
}

pub(crate) fn create_namespace(name: &str) -> Fix {
    Fix::run(format!("kubectl create namespace {}", quoted(name)))
}

/// The next step if a condition of the rule keeps the copy away.
fn fix_cause(cause: ConditionReason, id: &RuleId, source: Option<&SourceRef>) -> Option<Fix> {
    let edit = || Fix::run(format!("kubectl edit {}", object(id)));
    Some(match cause {
        ConditionReason::SourceNotFound | ConditionReason::InGracePeriod => {
            let source = source?;
            let name = kinds::argument(&source.gvk, &source.name);
            Fix::run(format!(
                "kubectl -n {} get {name}",
                quoted(&source.namespace)
            ))
            .note("if it is not there, create the source, or correct spec.sources")
        }
        ConditionReason::KindNotServed => edit().note(
            "correct apiVersion and kind in spec.sources, or install the CRD of the source's kind",
        ),
        ConditionReason::SourceRefused => edit().note("see spec.sources and transform.type"),
        ConditionReason::ControllerForbidden => check_permissions(),
        ConditionReason::GrantsUnknown => Fix::run("kubectl mimeo check")
            .note("it shows whether the CRD replicationgrants is served"),
        // The same word is a reason of failures, which come here as well.
        ConditionReason::NotGranted if id.kind == RuleKind::Replication => grant(id),
        _ => return None,
    })
}

/// The next step if Mimeo can't write this copy, in this namespace.
fn fix_failure(
    (failure, message): (FailureReason, &str),
    (namespace, copy): (&str, &str),
    id: &RuleId,
    source: Option<&SourceRef>,
) -> Fix {
    let edit = || Fix::run(format!("kubectl edit {}", object(id)));
    // An inline source is a part of its rule.
    let edit_source = || match source.and_then(|source| Some((source, source.home()?))) {
        Some((source, home)) => {
            let source = kinds::argument(&source.gvk, &source.name);
            Fix::run(format!("kubectl -n {home} edit {source}"))
        }
        None => edit(),
    };
    match failure {
        FailureReason::Conflict => edit().note(format!(
            "set copyName or conflictPolicy; or, if the object in the way is not needed, delete it: \
             kubectl -n {namespace} delete {copy}"
        )),
        FailureReason::RuleConflict => edit().note(failure.advice()),
        FailureReason::NotGranted => grant(id),
        FailureReason::Forbidden => check_permissions(),
        FailureReason::Invalid | FailureReason::TooLarge => edit_source().note(failure.advice()),
        FailureReason::QuotaExceeded => {
            Fix::run(format!("kubectl -n {namespace} describe resourcequota"))
                .note(failure.advice())
        }
        FailureReason::AdmissionDenied => Fix::run(
            "kubectl get validatingadmissionpolicies,validatingwebhookconfigurations,\
             mutatingwebhookconfigurations",
        )
        .note(failure.advice()),
        FailureReason::VariableUnset => match unset(message) {
            Some(label) => {
                let label = quoted(&format!("{label}=<value>"));
                Fix::run(format!("kubectl label namespace {namespace} {label}"))
                    .note("with the value that the copy needs")
            }
            None => Fix::say(failure.advice()),
        },
        FailureReason::Timeout | FailureReason::ClusterUnreachable => {
            Fix::run("kubectl get --raw '/readyz?verbose'").note(format!(
                "it shows whether the API server works; {}",
                failure.advice()
            ))
        }
    }
}

fn check_permissions() -> Fix {
    Fix::run("kubectl mimeo check").note(
        "it names the missing permissions, and the roles to give them by; if the message is about a \
         flag of Mimeo instead, change the flag or the rule",
    )
}

fn grant(id: &RuleId) -> Fix {
    Fix::run(format!("kubectl mimeo grant {}", argument(id)))
        .note("it prints the ReplicationGrant for the owner of the other namespace")
}

/// The key of the label that a message about an unset variable names:
/// `$(namespace.labels['stage'])`.
fn unset(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("$(namespace.labels['")?;
    let (key, _) = rest.split_once("'])")?;
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_about_a_longer_name_is_about_another_object() {
        for (message, word, about) in [
            ("v1/Secret/platform/web does not exist", "web", true),
            (
                "v1/Secret/platform/web: the kind is not served.",
                "web",
                true,
            ),
            ("v1/Secret/platform/web-2 does not exist", "web", false),
            ("v1/Secret/platform/web.tls does not exist", "web", false),
            ("Secret web in namespace blue is not granted", "web", true),
            ("v1/RoleBinding/blue/admins: forbidden", "Role", false),
            ("every source exists, except web.", "web", true),
            ("v1/RoleBinding/blue/team:web: forbidden", "web", false),
            ("v1/RoleBinding/blue/team:web: forbidden", "team:web", true),
        ] {
            assert_eq!(mentions(message, word), about, "{message}");
        }
    }
}
