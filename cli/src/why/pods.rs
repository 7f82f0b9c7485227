//! `kubectl mimeo why NAMESPACE/pod/NAME`: the copies for which the pods of a namespace wait.

use mimeo_engine::AwaitedCopy;
use mimeo_model::{id::RuleKind, names::PENDING_LABEL};

use super::{Why, verdict::Answer};
use crate::{
    names::ObjectName,
    output::quoted,
    picture::{Gap, Picture},
    state::{Fix, State, pods},
};

/// True if the user means pods. Users ask why one is refused, and no rule should copy pods.
pub(super) fn means_pods(kind: &str) -> bool {
    ["pod", "pods", "po"].contains(&kind.to_lowercase().as_str())
}

/// The copies that hold the pods of the namespace. The second value is true if Mimeo is known to
/// hold none of its pods.
pub(super) fn explain(picture: &Picture, object: &ObjectName<'_>) -> (Why, bool) {
    let namespace = object.namespace;
    let mut notes: Vec<String> = picture.unread.sentences().cloned().collect();
    let mut rules = Vec::new();
    let found = picture.namespaces.get(namespace);
    let mut known = found.is_some_and(|found| found.creation_timestamp.is_some());
    match picture.waiting.get(namespace) {
        _ if found.is_none() => notes.push(format!("There is no namespace {namespace}.")),
        // The picture assumes a namespace that the user may not read, and knows no time of it.
        _ if !known => notes.push(format!(
            "Whether Mimeo holds pods of namespace {namespace} is unknown."
        )),
        None => notes.push(format!(
            "Mimeo holds no pod of namespace {namespace}: it has no label {PENDING_LABEL}."
        )),
        Some(progress) => {
            for (state, copies) in pods(progress) {
                rules.extend(copies.iter().map(|copy| answer(namespace, &state, copy)));
            }
            // Only ClusterReplications hold pods.
            known = !picture
                .unread
                .has(&Gap::Rules(RuleKind::ClusterReplication));
            if rules.is_empty() && !known {
                notes.push(format!(
                    "The pods of namespace {namespace} wait: it has the label {PENDING_LABEL}. For \
                     which copies is unknown."
                ));
            } else if rules.is_empty() {
                notes.push(format!(
                    "All copies of namespace {namespace} exist. Mimeo is about to remove its label \
                     {PENDING_LABEL}."
                ));
            }
        }
    }
    let healthy = known && rules.is_empty();
    let why = Why {
        kind: "Pod".into(),
        namespace: namespace.to_owned(),
        name: object.name.to_owned(),
        exists: None,
        copy: None,
        changed_by: Vec::new(),
        rules,
        notes,
    };
    (why, healthy)
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
        message: format!("the copy is missing (podGate: {pod_gate:?}): {why}"),
        fix,
    }
}
