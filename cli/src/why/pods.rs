//! `kubectl mimeo why NAMESPACE/pod/NAME`: the copies for which the pods of a namespace wait.

use mimeo_engine::AwaitedCopy;
use mimeo_model::names::PENDING_LABEL;

use super::{Why, verdict::Answer};
use crate::{
    names::ObjectName,
    output::quoted,
    picture::Picture,
    state::{Fix, State, pods},
};

/// True if the user means pods. No rule can copy them to a good end, and users ask why one is
/// refused.
pub(super) fn means_pods(kind: &str) -> bool {
    ["pod", "pods", "po"].contains(&kind.to_lowercase().as_str())
}

/// The copies that hold the pods of the namespace.
pub(super) fn explain(picture: &Picture, object: &ObjectName<'_>) -> Why {
    let namespace = object.namespace;
    let mut notes: Vec<String> = picture.unread.iter().cloned().collect();
    let mut rules = Vec::new();
    match picture.waiting.get(namespace) {
        _ if !picture.namespaces.contains_key(namespace) => {
            notes.push(format!("There is no namespace {namespace}."));
        }
        None => notes.push(format!(
            "Mimeo holds no pod of namespace {namespace}: it has no label {PENDING_LABEL}."
        )),
        Some(progress) => {
            for (state, copies) in pods(progress) {
                rules.extend(copies.iter().map(|copy| answer(namespace, &state, copy)));
            }
            if rules.is_empty() {
                notes.push(format!(
                    "All copies of namespace {namespace} exist. Mimeo is about to remove its label \
                     {PENDING_LABEL}."
                ));
            }
        }
    }
    Why {
        kind: "Pod".into(),
        namespace: namespace.to_owned(),
        name: object.name.to_owned(),
        exists: None,
        copy: None,
        rules,
        notes,
    }
}

fn answer(namespace: &str, state: &State, copy: &AwaitedCopy) -> Answer {
    let AwaitedCopy {
        copy,
        rule,
        pod_gate,
        why,
    } = copy;
    let fix = copy
        .split_once(' ')
        .filter(|(_, name)| !name.contains(' '))
        .map(|(kind, name)| {
            let object = format!("{namespace}/{}/{name}", kind.to_lowercase());
            Fix::run(format!("kubectl mimeo why {}", quoted(&object)))
        });
    Answer {
        rule: rule.to_string(),
        source: copy.clone(),
        state: state.clone(),
        message: format!("the copy is missing (podGate: {pod_gate}): {why}"),
        fix,
    }
}
