//! The answers of the rules: whether a rule wants the copy, and the state of the copy.

use jiff::Timestamp;
use mimeo_api::{ClusterReplicationStatus, CopyFailure};
use mimeo_engine::{CopyView, State};
use mimeo_model::{
    id::{RuleId, RuleKind},
    outcome::FailureReason,
    rule::Rule,
    selection::{Labels, Mismatch},
    source::SourceRef,
    template::Place,
};
use serde::Serialize;

use super::{Key, marks::Copy};
use crate::picture::{Picture, Stored};

/// The decision of one rule about the object.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub(super) rule: String,
    pub(super) source: String,
    /// `Synced`, `Pending`, or the reason why there is no correct copy.
    pub(super) state: String,
    /// The reason in a sentence.
    pub(super) message: String,
    /// The next step for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

/// The sources of a rule: named, inline, and found by selectors.
fn sources(picture: &Picture, rule: &Rule) -> Vec<SourceRef> {
    let mut sources = rule.sources.clone();
    for selector in &rule.selectors {
        let names = picture.selected.get(selector).into_iter().flatten();
        sources.extend(names.map(|name| selector.source(name.as_str())));
    }
    sources
}

/// The decision of one rule: an answer for each source with a copy of the object's name.
pub(super) fn answers(
    picture: &Picture,
    key: &Key<'_>,
    id: &RuleId,
    stored: &Stored,
) -> Vec<Answer> {
    let rule = match &stored.rule {
        Ok(rule) => rule,
        Err(refused) => {
            // Its copies are unknown, but a spec with the name is worth a look.
            let spec = stored.object["spec"].to_string();
            let refusals = refused.refusals.iter().map(ToString::to_string);
            let answer = Answer {
                rule: id.to_string(),
                source: refused.source.clone().unwrap_or_default(),
                state: "InvalidSpec".into(),
                message: refusals.collect::<Vec<_>>().join("; "),
                fix: Some(format!("kubectl edit {}", object(id))),
            };
            return spec
                .contains(key.name)
                .then_some(answer)
                .into_iter()
                .collect();
        }
    };
    let labels = picture.labels(key.namespace).unwrap_or_default();
    let place = Place {
        name: key.namespace,
        labels: &labels,
    };
    let mut answers = Vec::new();
    for source in sources(picture, rule) {
        if source.gvk.group_kind() != key.gvk.group_kind() {
            continue;
        }
        let named = rule
            .targets
            .iter()
            .filter(|target| target.copy_name(&source).text_at(place) == key.name);
        let mut mismatches = Vec::new();
        let mut selected = false;
        for target in named {
            match target.selection.mismatch(key.namespace, &labels) {
                Some(mismatch) => mismatches.push(mismatch),
                None => selected = true,
            }
        }
        if selected {
            answers.push(wanted(picture, key, rule, &source, stored.status.as_ref()));
        } else if let Some(mismatch) = mismatches.into_iter().next() {
            answers.push(not_selected(key, id, &source, mismatch));
        }
    }
    answers
}

fn not_selected(key: &Key<'_>, id: &RuleId, source: &SourceRef, mismatch: Mismatch) -> Answer {
    let namespace = key.namespace;
    let fix = match mismatch.label {
        Some(label) => format!("kubectl label namespace {namespace} {label}"),
        None => format!("kubectl edit {}   (spec.targets, spec.exclude)", object(id)),
    };
    Answer {
        rule: id.to_string(),
        source: source.to_string(),
        state: "NotSelected".into(),
        message: format!(
            "the rule doesn't select namespace {namespace}: {}",
            mismatch.why
        ),
        fix: Some(fix),
    }
}

/// The engine's view of the object as a copy of the rule.
fn copy(picture: &Picture, key: &Key<'_>, rule: &RuleId) -> Option<CopyView> {
    let (engine, now) = picture.snapshot.decided();
    let copies = engine.copies(rule, key.namespace, now, Timestamp::now());
    let same = |copy: &CopyView| *copy.kind == *key.gvk.kind && copy.name == key.name;
    copies.into_iter().find(same)
}

/// The state of a copy that the rule selects.
fn wanted(
    picture: &Picture,
    key: &Key<'_>,
    rule: &Rule,
    source: &SourceRef,
    status: Option<&ClusterReplicationStatus>,
) -> Answer {
    let copy = copy(picture, key, &rule.id);
    let (state, message) = state(picture, key, rule, source, copy.as_ref(), status);
    let fix = fix(&state, key, rule, source);
    Answer {
        rule: rule.id.to_string(),
        source: source.to_string(),
        state,
        message,
        fix,
    }
}

fn state(
    picture: &Picture,
    key: &Key<'_>,
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
    let conditions = status.into_iter().flat_map(|status| &status.conditions);
    for condition in conditions.filter(|condition| condition.status == "False") {
        let causes = ["SourcesFound", "Authorized"];
        if causes.contains(&&*condition.type_) && condition.reason != "Pending" {
            return (condition.reason.clone(), condition.message.clone());
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

/// The failure that the rule's status names for this copy.
fn recorded<'a>(
    status: Option<&'a ClusterReplicationStatus>,
    key: &Key<'_>,
) -> Option<&'a CopyFailure> {
    let failures = &status?.failures;
    failures.iter().find(|failure| {
        failure.kind == *key.gvk.kind
            && failure.namespace == key.namespace
            && failure.name == key.name
    })
}

/// The next step for a person in this state.
fn fix(state: &str, key: &Key<'_>, rule: &Rule, source: &SourceRef) -> Option<String> {
    let Key {
        namespace,
        name,
        gvk,
        mimeo,
    } = key;
    let kind = gvk.kind.to_lowercase();
    let rule = object(&rule.id);
    Some(match state {
        "Synced" | "Unknown" => return None,
        "Suspended" => {
            format!("kubectl patch {rule} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'")
        }
        "SourceNotFound" | "InGracePeriod" => format!(
            "create the source, or correct spec.sources; is it there?  kubectl -n {} get {} {}",
            source.namespace,
            source.gvk.kind.to_lowercase(),
            source.name
        ),
        "KindNotServed" => format!(
            "install the CRD of {}, or correct apiVersion and kind in spec.sources",
            source.gvk
        ),
        "SourceRefused" => format!("kubectl edit {rule}   (spec.sources, or transform.type)"),
        "ControllerForbidden" => {
            "give Mimeo the permission that the message names, by a ClusterRole with the label mimeo.dev/aggregate-to-mimeo=true".into()
        }
        "DeletionHeld" => confirm(&rule),
        "Conflict" => format!(
            "kubectl -n {namespace} get {kind} {name} -o yaml --show-managed-fields   shows whose it is; then delete it, or set copyName or conflictPolicy in {rule}"
        ),
        "QuotaExceeded" => format!("kubectl -n {namespace} describe resourcequota"),
        "VariableUnset" => format!(
            "kubectl label namespace {namespace} KEY=VALUE   with the label that the message names"
        ),
        "Pending" => format!(
            "kubectl -n {mimeo} get pods   shows whether the reconciler runs; if it does, wait some seconds"
        ),
        other => FailureReason::ALL
            .iter()
            .find(|reason| reason.as_str() == other)?
            .advice()
            .to_owned(),
    })
}

/// The command that shows a held deletion, and how to confirm it.
fn confirm(rule: &str) -> String {
    format!(
        "kubectl get {rule} -o jsonpath='{{.status.conditions[?(@.type==\"Stalled\")].message}}'   shows the annotation that confirms the deletion"
    )
}

/// A copy that no rule wants, as its marks tell.
pub(super) fn left_behind(picture: &Picture, key: &Key<'_>, copy: &Copy) -> Option<Answer> {
    let id: RuleId = copy.rule.parse().ok()?;
    let rule = picture.rules.get(&id);
    let view = self::copy(picture, key, &id);
    let (state, message, fix) = match (rule, view.map(|view| view.state)) {
        (None, _) => (
            "RuleDeleted",
            "the rule that wrote the copy no longer exists. Mimeo deletes the copy, unless the rule retained it or its deletion is held",
            Some(format!(
                "kubectl -n {} logs -l app.kubernetes.io/name=mimeo-reconciler --tail=-1   has \"deletion held\" with the next command, if it is held",
                key.mimeo
            )),
        ),
        (Some(_), Some(State::Held)) => (
            "DeletionHeld",
            "the rule no longer wants the copy, and its deletion waits for a person",
            Some(confirm(&object(&id))),
        ),
        (Some(_), Some(_)) => (
            "Unwanted",
            "the rule no longer wants the copy. Mimeo deletes it",
            None,
        ),
        (Some(_), None) => (
            "Retained",
            "the rule no longer wants the copy, and its retentionPolicy leaves it behind",
            Some(format!(
                "kubectl -n {} delete {} {}   if it isn't needed",
                key.namespace,
                key.gvk.kind.to_lowercase(),
                key.name
            )),
        ),
    };
    Some(Answer {
        rule: copy.rule.clone(),
        source: copy.source.clone(),
        state: state.into(),
        message: message.into(),
        fix,
    })
}

/// The names that rules do make in the namespace, for a user who misspelt one.
pub(super) fn others(picture: &Picture, key: &Key<'_>) -> String {
    let labels = picture.labels(key.namespace).unwrap_or_default();
    let mut found = Vec::new();
    for (id, stored) in &picture.rules {
        let Ok(rule) = &stored.rule else { continue };
        for source in sources(picture, rule) {
            if source.gvk.group_kind() == key.gvk.group_kind() {
                found.extend(
                    names_of(rule, &source, key.namespace, &labels)
                        .map(|name| format!("{name} ({id})")),
                );
            }
        }
    }
    found.sort();
    found.truncate(5);
    if found.is_empty() {
        return String::new();
    }
    format!(" In this namespace rules make: {}.", found.join(", "))
}

fn names_of<'a>(
    rule: &'a Rule,
    source: &'a SourceRef,
    namespace: &'a str,
    labels: &'a Labels,
) -> impl Iterator<Item = String> + 'a {
    let place = Place {
        name: namespace,
        labels,
    };
    let targets = rule.targets.iter();
    let matching = targets.filter(move |target| target.selection.matches(namespace, labels));
    matching.map(move |target| target.copy_name(source).text_at(place))
}

/// A rule as an argument of kubectl.
fn object(id: &RuleId) -> String {
    match (&id.kind, &id.namespace) {
        (RuleKind::Replication, Some(namespace)) => {
            format!("-n {namespace} replication/{}", id.name)
        }
        _ => format!("clusterreplication/{}", id.name),
    }
}
