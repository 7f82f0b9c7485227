//! The answers of the rules: whether a rule wants the copy, and the state of the copy.

use jiff::Timestamp;
use mimeo_api::ClusterReplicationStatus;
use mimeo_engine::{CopyView, State};
use mimeo_model::{
    id::RuleId, rule::Rule, selection::Mismatch, source::SourceRef, template::Place,
};
use serde::Serialize;

use super::{Key, marks::Copy};
use crate::{
    output::quoted,
    picture::{Picture, Stored, sources},
    state::{CopyKey, confirm, fix, held_deletion, object, state},
};

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
    let copy_key = CopyKey {
        namespace: key.namespace,
        kind: &key.gvk.kind,
        name: key.name,
    };
    let (state, message) = state(picture, &copy_key, rule, source, copy.as_ref(), status);
    let fix = fix(&state, &copy_key, rule, source);
    Answer {
        rule: rule.id.to_string(),
        source: source.to_string(),
        state,
        message,
        fix,
    }
}

/// A copy that no rule wants, as its marks tell. `why` says why its rule doesn't, if that is known.
pub(super) fn left_behind(
    picture: &Picture,
    key: &Key<'_>,
    copy: &Copy,
    why: Option<String>,
) -> Option<Answer> {
    let id: RuleId = copy.rule.parse().ok()?;
    let stored = picture.rules.get(&id);
    let view = self::copy(picture, key, &id);
    if stored.is_none() && picture.partial.contains(&id.kind) {
        return Some(Answer {
            rule: copy.rule.clone(),
            source: copy.source.clone(),
            state: "Unknown".into(),
            message: "you may not read the rule that wrote the copy".into(),
            fix: None,
        });
    }
    let held = stored.is_some_and(|stored| {
        stored
            .status
            .as_ref()
            .is_some_and(|status| held_deletion(status).is_some())
    });
    let (state, what, fix) = match (stored, view.map(|view| view.state)) {
        (None, _) => (
            "RuleDeleted",
            "Mimeo deletes the copy, unless the rule retained it or its deletion is held",
            Some(confirm(&id)),
        ),
        (Some(_), Some(view)) if held || view == State::Held => (
            "DeletionHeld",
            "the deletion of the copy waits for a person",
            Some(confirm(&id)),
        ),
        (Some(_), Some(_)) => ("Unwanted", "Mimeo deletes the copy", None),
        (Some(_), None) => (
            "Retained",
            "the rule's retentionPolicy leaves the copy behind",
            Some(format!(
                "kubectl -n {} delete {} {}   if it isn't needed",
                key.namespace,
                key.gvk.kind.to_lowercase(),
                quoted(key.name)
            )),
        ),
    };
    let why = why.unwrap_or_else(|| match stored {
        None => "the rule that wrote the copy no longer exists".into(),
        Some(_) => "the rule no longer wants the copy".into(),
    });
    Some(Answer {
        rule: copy.rule.clone(),
        source: copy.source.clone(),
        state: state.into(),
        message: format!("{why}; {what}"),
        fix,
    })
}

/// The names that rules do make in the namespace, for a user who misspelt one.
pub(super) fn others(picture: &Picture, key: &Key<'_>) -> String {
    let labels = picture.labels(key.namespace).unwrap_or_default();
    let place = Place {
        name: key.namespace,
        labels: &labels,
    };
    let mut found = Vec::new();
    for (id, stored) in &picture.rules {
        let Ok(rule) = &stored.rule else { continue };
        for source in sources(picture, rule) {
            if source.gvk.group_kind() == key.gvk.group_kind() {
                let names = rule.copy_names(&source, place);
                found.extend(names.map(|name| format!("{name} ({id})")));
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
