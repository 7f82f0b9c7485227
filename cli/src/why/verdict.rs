//! The answers of the rules: whether a rule wants the copy, and the state of the copy.

use mimeo_engine::CopyView;
use mimeo_model::{
    choices::Strategy,
    id::RuleId,
    names::CREATED_ONCE,
    selection::{Mismatch, NAMESPACE_NAME, Place},
    source::SourceRef,
};
use serde::Serialize;

use super::{Key, marks::Copy};
use crate::{
    names::{ObjectName, object, refusals},
    output::quoted,
    picture::{Picture, Stored, as_source, copies, sources},
    state::{Explained, Fix, State, create_namespace, fix, state},
};

/// The decision of one rule about the object.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub(super) rule: String,
    pub(super) source: String,
    pub(super) state: State,
    /// The reason in a sentence.
    pub(super) message: String,
    /// The next step for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<Fix>,
}

/// The decision of one rule: an answer for each source with a copy of the object's name.
pub(super) fn answers(
    picture: &Picture,
    key: &Key<'_>,
    exists: Option<bool>,
    id: &RuleId,
    stored: &Stored,
) -> Vec<Answer> {
    let rule = match &stored.rule {
        Ok(rule) => rule,
        Err(refused) => {
            // Its copies are unknown, but a spec with the name is worth a look.
            let named = stored.object["spec"].to_string().contains(key.name);
            let source = String::new();
            let explained = (State::InvalidSpec, refusals(&refused.refusals));
            let answer = || answer(picture, key, (id, None), source, explained);
            return named.then(answer).into_iter().collect();
        }
    };
    let sources = sources(picture, rule);
    if as_source(&sources, (key.namespace, &key.gvk, key.name)).is_some() {
        return Vec::new();
    }
    let labels = picture.labels(key.namespace).unwrap_or_default();
    let place = Place {
        name: key.namespace,
        labels: &labels,
    };
    let mut answers = Vec::new();
    for source in sources {
        if source.gvk.group_kind() != key.gvk.group_kind() {
            continue;
        }
        let targets = rule.targets.iter();
        let named = targets.filter(|target| target.copy_name(&source).text_at(place) == key.name);
        let mismatches: Vec<Option<Mismatch>> =
            named.map(|target| target.mismatch(place)).collect();
        if mismatches.iter().any(Option::is_none) {
            let explained = explain(picture, key, id, Some(&source));
            let once = rule.strategy == Strategy::CreateOnce;
            if once && explained.0 == State::Synced && exists == Some(false) {
                answers.push(created_and_deleted(key, id, &source));
                continue;
            }
            let text = source.to_string();
            answers.push(answer(picture, key, (id, Some(&source)), text, explained));
        } else if let Some(mismatch) = mismatches.into_iter().flatten().next() {
            answers.push(not_selected(picture, key, id, &source, &mismatch));
        }
    }
    answers
}

/// An answer with the next step for its state.
fn answer(
    picture: &Picture,
    key: &Key<'_>,
    (id, source): (&RuleId, Option<&SourceRef>),
    text: String,
    (state, message): Explained,
) -> Answer {
    let object = (key.namespace, &key.gvk, key.name);
    Answer {
        rule: id.to_string(),
        source: text,
        fix: fix(picture, (&state, &message), object, id, source),
        state,
        message,
    }
}

/// A copy that its rule created once, and that another client has deleted. The rule's status counts
/// it as synced.
fn created_and_deleted(key: &Key<'_>, id: &RuleId, source: &SourceRef) -> Answer {
    let namespace = quoted(key.namespace);
    Answer {
        rule: id.to_string(),
        source: source.to_string(),
        state: State::Synced,
        message:
            "the rule created the copy once, another client deleted it, and the rule does not \
                  create it again (strategy: CreateOnce)"
                .into(),
        fix: Some(
            Fix::run(format!(
                "kubectl annotate namespace {namespace} {CREATED_ONCE}-"
            ))
            .note(
                "it makes Mimeo create again all missing copies of rules with strategy CreateOnce \
                 in this namespace",
            ),
        ),
    }
}

fn not_selected(
    picture: &Picture,
    key: &Key<'_>,
    id: &RuleId,
    source: &SourceRef,
    mismatch: &Mismatch,
) -> Answer {
    let namespace = key.namespace;
    let label = mismatch.label.as_deref().unwrap_or_default();
    let fix = match label.split_once('=') {
        // The API server sets this label to the namespace's name.
        Some((key, _)) if key != NAMESPACE_NAME => {
            let place = quoted(namespace);
            let command = format!("kubectl label namespace {place} {label}");
            if !picture.namespaces.contains_key(namespace) {
                create_namespace(namespace).note(format!("or correct its name; then: {command}"))
            } else if picture.has_label(namespace, key) {
                Fix::run(format!("{command} --overwrite")).note("it replaces the label's value")
            } else {
                Fix::run(command)
            }
        }
        _ => Fix::run(format!("kubectl edit {}", object(id)))
            .note("see spec.targets and spec.exclude"),
    };
    Answer {
        rule: id.to_string(),
        source: source.to_string(),
        state: State::NotSelected,
        message: format!(
            "the rule doesn't select namespace {namespace}: {}",
            mismatch.why
        ),
        fix: Some(fix),
    }
}

/// The state of the object as a copy of the rule.
fn explain(picture: &Picture, key: &Key<'_>, id: &RuleId, source: Option<&SourceRef>) -> Explained {
    let copies = copies(&picture.snapshot, id, key.namespace);
    let same = |copy: &&CopyView| *copy.kind == *key.gvk.kind && copy.name == key.name;
    let copy_key = ObjectName {
        namespace: key.namespace,
        kind: &key.gvk.kind,
        name: key.name,
    };
    state(picture, &copy_key, id, source, copies.iter().find(same))
}

/// A copy that no rule wants, as its marks show. `why` says why its rule doesn't, if that is known.
pub(super) fn left_behind(
    picture: &Picture,
    key: &Key<'_>,
    copy: &Copy,
    why: Option<String>,
) -> Option<Answer> {
    let id: RuleId = copy.rule.parse().ok()?;
    let (state, what) = explain(picture, key, &id, None);
    let why = match state {
        State::Unknown => None,
        State::RuleDeleted => Some("the rule that wrote the copy no longer exists".into()),
        _ => Some(why.unwrap_or_else(|| "the rule no longer wants the copy".into())),
    };
    let message = why.map_or_else(|| what.clone(), |why| format!("{why}; {what}"));
    let source = copy.source.clone();
    Some(answer(picture, key, (&id, None), source, (state, message)))
}

/// The names that rules do make in the namespace, for a user who misspelt one.
pub(super) fn others(picture: &Picture, key: &Key<'_>) -> String {
    let labels = picture.labels(key.namespace).unwrap_or_default();
    let place = Place {
        name: key.namespace,
        labels: &labels,
    };
    let mut found = Vec::new();
    for rule in picture.valid_rules() {
        for source in sources(picture, rule) {
            if source.gvk.group_kind() == key.gvk.group_kind() {
                let names = rule.copy_names(&source, place);
                found.extend(names.map(|name| format!("{name} ({})", rule.id)));
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
