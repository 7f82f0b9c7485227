//! `driftPolicy: Deny`: the webhook refuses requests that change or delete a copy.
//!
//! The API server asks only about some requests ([`registration`](crate::registration)). These
//! delete a copy, change it, give it an owner, or have more entries in `managedFields` than the API
//! server checks. This module decides if the rule still guards the copy. The caller must read
//! whether the namespace is being deleted, because a watch may show a deletion too late.

use crate::{
    id::{RuleId, RuleKind},
    kind::GroupKind,
    names,
    review::{Operation, Request, User, Verdict},
    source::SourceRef,
};

/// Prefixes of the user names of the cluster's controllers, nodes and other parts. For requests
/// about copies the webhook knows nothing else about the user.
const SYSTEM: [&str; 3] = [
    "system:serviceaccount:kube-system:",
    "system:node:",
    "system:kube-",
];

/// A copy, as its annotations describe it.
#[derive(Debug)]
pub struct Marked<'a> {
    /// Kind of the copy.
    pub kind: GroupKind,
    /// Namespace of the copy.
    pub namespace: &'a str,
    /// Name of the copy.
    pub name: &'a str,
    /// The object that it was copied from. `None` for an inline source.
    pub source: Option<SourceRef>,
}

/// The rule that forbids the request, if there is one. `guards` tells if a rule wants this copy and
/// forbids other clients to change it.
///
/// A Replication never binds the parts of the cluster itself. A tenant may give a copy any name in
/// the tenant's own namespace. A controller of the cluster may keep an object of the same name
/// there.
pub fn guard(request: &Request, guards: impl Fn(&RuleId, &Marked<'_>) -> bool) -> Option<RuleId> {
    // Read the stored object: the request may change the annotation.
    let copy = request.old_object.as_ref()?;
    let annotation = |key: &str| copy.pointer("/metadata/annotations")?.get(key)?.as_str();
    let rule: RuleId = annotation(names::RULE)?.parse().ok()?;
    if rule.kind == RuleKind::Replication && runs_the_cluster(&request.user) {
        return None;
    }
    let marked = Marked {
        kind: request.kind.group_kind(),
        namespace: request.namespace.as_deref()?,
        // A deletion of a collection names no object in the request.
        name: copy.pointer("/metadata/name")?.as_str()?,
        source: annotation(names::SOURCE).and_then(SourceRef::parse),
    };
    guards(&rule, &marked).then_some(rule)
}

fn runs_the_cluster(user: &User) -> bool {
    SYSTEM.iter().any(|prefix| user.name.starts_with(prefix))
}

/// The refusal of a request that the rule forbids.
pub fn refusal(request: &Request, rule: &RuleId) -> Verdict {
    let what = match request.operation {
        Operation::Delete => "only Mimeo may delete it",
        _ => "only Mimeo may change or add a field, an owner or an entry of managedFields",
    };
    let message = format!(
        "this is a copy of {rule}, whose driftPolicy is Deny: {what}. Change the source of the \
         copy, or the rule"
    );
    Verdict::deny(403, "Forbidden", message)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::review::{Kept, decode};

    /// Guards one copy for one rule of each kind.
    fn guards(rule: &RuleId, copy: &Marked<'_>) -> bool {
        ["ClusterReplication/rule", "Replication/team/rule"].contains(&rule.to_string().as_str())
            && copy.kind.to_string() == "Secret"
            && (copy.namespace, copy.name) == ("team", "registry")
    }

    fn request(operation: &str, old: &Value) -> Request {
        let object = if operation == "UPDATE" {
            json!({"metadata": {}})
        } else {
            Value::Null
        };
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "kind": {"group": "", "version": "v1", "kind": "Secret"},
                "resource": {"group": "", "version": "v1", "resource": "secrets"},
                "namespace": "team", "operation": operation, "object": object, "oldObject": old,
            },
        });
        decode(review.to_string().as_bytes(), Kept::Marks).unwrap()
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
            assert_eq!(
                guard(&request, guards).is_some(),
                guarded,
                "{operation} {old}"
            );
        }
    }

    #[test]
    fn a_tenants_rule_binds_nobody_who_runs_the_cluster() {
        for (user, bound) in [
            (
                "system:serviceaccount:kube-system:root-ca-cert-publisher",
                false,
            ),
            ("system:node:worker-1", false),
            ("system:kube-scheduler", false),
            ("system:serviceaccount:kube-system-2:x", true),
            ("system:serviceaccount:team:kube-system", true),
            ("system:admin", true),
            ("ann", true),
        ] {
            for (rule, bound) in [
                ("Replication/team/rule", bound),
                ("ClusterReplication/rule", true),
            ] {
                let mut request = request("DELETE", &copy(rule));
                request.user.name = user.into();
                assert_eq!(guard(&request, guards).is_some(), bound, "{rule} {user}");
            }
        }
    }

    #[test]
    fn the_refusal_says_whose_copy_it_is() {
        for (operation, words) in [
            ("DELETE", "may delete it"),
            ("UPDATE", "may change or add a field"),
        ] {
            let request = request(operation, &copy("ClusterReplication/rule"));
            let Verdict::Deny {
                code: 403,
                reason: "Forbidden",
                message,
            } = refusal(&request, &guard(&request, guards).unwrap())
            else {
                unreachable!("a refusal");
            };
            assert!(
                message.contains("ClusterReplication/rule") && message.contains(words),
                "{message}"
            );
        }
    }
}
