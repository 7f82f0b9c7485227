//! `driftPolicy: Deny`: who may not change or delete a copy is told so in the request.
//!
//! The API server asks only about requests that take something from Mimeo in an object that is ours
//! ([`registration`](crate::registration)). Whether the rule still wants it kept is decided here. Whether its namespace is being
//! deleted, a read must tell: no watch is as quick as a deletion.

use crate::{
    kind::GroupKind,
    names,
    review::{Operation, Request, Verdict},
    rule::RuleId,
};

/// The rule that keeps others from doing what is asked for, if there is one. `guards` tells whether a rule wants a copy of that
/// kind in that namespace under that name, and nobody else to change it.
pub fn guard(request: &Request, guards: impl Fn(&RuleId, &GroupKind, &str, &str) -> bool) -> Option<RuleId> {
    // As it is stored: what the request makes of the annotation is part of the change.
    let copy = request.old_object.as_ref()?;
    let rule: RuleId = copy.pointer("/metadata/annotations")?.get(names::RULE)?.as_str()?.parse().ok()?;
    // A deletion of many has no name of its own.
    let (namespace, name) = (request.namespace.as_deref()?, copy.pointer("/metadata/name")?.as_str()?);
    guards(&rule, &request.kind.group_kind(), namespace, name).then_some(rule)
}

/// What is answered then.
pub fn refusal(request: &Request, rule: &RuleId) -> Verdict {
    let what = match request.operation {
        Operation::Delete => "be deleted",
        _ => "be changed in what Mimeo keeps",
    };
    let message =
        format!("Mimeo: this is a copy of {rule}, whose driftPolicy is Deny: it can't {what}. Change its source");
    Verdict::Deny { code: 403, reason: "Forbidden", message, retry_after_seconds: None }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::review::decode;

    /// Guards one copy of one rule.
    fn guards(rule: &RuleId, kind: &GroupKind, namespace: &str, name: &str) -> bool {
        rule.to_string() == "ClusterReplication/rule"
            && kind.to_string() == "Secret"
            && (namespace, name) == ("team", "registry")
    }

    fn request(operation: &str, old: &Value) -> Request {
        let object = if operation == "UPDATE" { json!({"metadata": {}}) } else { Value::Null };
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Secret"},
                "resource": {"group": "", "version": "v1", "resource": "secrets"},
                "namespace": "team", "operation": operation, "object": object, "oldObject": old,
            },
        });
        decode(review.to_string().as_bytes()).unwrap().request
    }

    fn copy(rule: &str) -> Value {
        json!({"metadata": {"name": "registry", "annotations": {"mimeo.dev/rule": rule}}})
    }

    #[test]
    fn what_the_stored_copy_says_and_the_rule_wants_is_guarded() {
        for (operation, old, guarded) in [
            ("DELETE", copy("ClusterReplication/rule"), true),
            ("UPDATE", copy("ClusterReplication/rule"), true),
            ("UPDATE", copy("ClusterReplication/other"), false),
            ("UPDATE", copy("nonsense"), false),
            ("UPDATE", json!({"metadata": {"name": "registry"}}), false),
            ("CREATE", Value::Null, false),
        ] {
            let request = request(operation, &old);
            assert_eq!(guard(&request, guards).is_some(), guarded, "{operation} {old}");
        }
    }

    #[test]
    fn the_refusal_says_whose_copy_it_is() {
        for (operation, words) in [("DELETE", "be deleted"), ("UPDATE", "be changed")] {
            let request = request(operation, &copy("ClusterReplication/rule"));
            let Verdict::Deny { code: 403, reason: "Forbidden", message, retry_after_seconds: None } =
                refusal(&request, &guard(&request, guards).unwrap())
            else {
                unreachable!("a refusal");
            };
            assert!(message.contains("ClusterReplication/rule") && message.contains(words), "{message}");
        }
    }
}
