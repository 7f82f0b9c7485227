//! `driftPolicy: Deny`: who may not change or delete a copy is told so in the request.
//!
//! The API server asks only about requests that delete an object of ours, change it, give it an
//! owner, or come with more `managedFields` than API servers look through
//! ([`registration`](crate::registration)). Whether the rule still wants it kept is decided here.
//! Whether its namespace is being deleted, a read must tell: no watch is as quick as a deletion.

use crate::{
    id::{RuleId, RuleKind},
    kind::GroupKind,
    names,
    review::{Operation, Request, User, Verdict},
    source::SourceRef,
};

/// What the names begin with of those who run the cluster: its controllers, its nodes, and its
/// other parts. Of a request about a copy nothing else is known of its user.
const SYSTEM: [&str; 3] = [
    "system:serviceaccount:kube-system:",
    "system:node:",
    "system:kube-",
];

/// A copy as its marks have it.
#[derive(Debug)]
pub struct Marked<'a> {
    /// Its kind.
    pub kind: GroupKind,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// What it was copied from, if that is an object.
    pub source: Option<SourceRef>,
}

/// The rule that keeps others from doing what is asked for, if there is one. `guards` tells whether
/// a rule wants this copy, and nobody else to change it.
///
/// A tenant's rule binds nobody who runs the cluster: it may have a copy of any name at home, also
/// where the cluster's own controllers keep something.
pub fn guard(request: &Request, guards: impl Fn(&RuleId, &Marked<'_>) -> bool) -> Option<RuleId> {
    // As it is stored: what the request makes of the annotation is part of the change.
    let copy = request.old_object.as_ref()?;
    let annotation = |key: &str| copy.pointer("/metadata/annotations")?.get(key)?.as_str();
    let rule: RuleId = annotation(names::RULE)?.parse().ok()?;
    if rule.kind == RuleKind::Replication && runs_the_cluster(&request.user) {
        return None;
    }
    let marked = Marked {
        kind: request.kind.group_kind(),
        namespace: request.namespace.as_deref()?,
        // A deletion of many has no name of its own.
        name: copy.pointer("/metadata/name")?.as_str()?,
        source: annotation(names::SOURCE).and_then(SourceRef::parse),
    };
    guards(&rule, &marked).then_some(rule)
}

fn runs_the_cluster(user: &User) -> bool {
    SYSTEM.iter().any(|prefix| user.name.starts_with(prefix))
}

/// What is answered then.
pub fn refusal(request: &Request, rule: &RuleId) -> Verdict {
    let what = match request.operation {
        Operation::Delete => "only Mimeo may delete it",
        _ => "only Mimeo may change or add a field, an owner or an entry of managedFields",
    };
    let message = format!(
        "Mimeo: this is a copy of {rule}, whose driftPolicy is Deny: {what}. Change the source of the copy, or the rule"
    );
    Verdict::Deny {
        code: 403,
        reason: "Forbidden",
        message,
        retry_after_seconds: None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::review::{Kept, decode};

    /// Guards one copy of one rule.
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
                retry_after_seconds: None,
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
