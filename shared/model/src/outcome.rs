//! The outcome of a request: an answer of the API server, reduced to the few cases that the engine
//! treats differently.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    ObjectMeta, Status, StatusCause, StatusDetails,
};

use crate::{kind::Resource, words};

/// The outcome of one request about one copy.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// 200 or 201 to a write or a read: the current metadata of the object.
    Object(Box<ObjectMeta>),
    /// The API server accepted a delete, or answered a read or delete of the object itself with
    /// 404.
    Absent,
    /// 409: the object is not in the state that the request assumed.
    Conflict,
    /// 409: the request does not use force, and other managers own fields that it would change.
    Differs,
    /// The API server refuses this request, and will do so until something changes.
    Refused(Failure),
    /// The API server lets no client change this object in this way. A new object in its place
    /// could have the change.
    Immutable(Failure),
    /// The namespace is deleted or terminating. The write no longer matters.
    NamespaceGone,
    /// The API server does not serve the kind, or no longer serves it.
    NotServed,
    /// No answer, or an answer that says "not now". It is unknown if the request was carried out.
    Unavailable {
        /// The delay that the API server asks for.
        retry_after: Option<Duration>,
        /// The failure, without any content of the object.
        failure: Failure,
    },
}

/// The reason why a copy is not as it should be: a stable word and a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The stable word.
    pub reason: FailureReason,
    /// For people. It never has content of an object. About a Secret it keeps the code, the reason
    /// and field names of the answer, but not its message: validation messages quote the refused
    /// values.
    pub message: Box<str>,
}

words! {
    /// Words for `status.failures[].reason`, metric labels and logs.
    FailureReason {
        /// Another object, which is not Mimeo's, has the copy's name.
        Conflict,
        /// Another rule has the copy.
        RuleConflict,
        /// The namespace of the source or of the copy does not consent to the rule's namespace, or
        /// does not exist.
        NotGranted,
        /// The authorizer of the API server denies the write to Mimeo.
        Forbidden,
        /// The API server finds the object invalid.
        Invalid,
        /// The object exceeds the size limit of the API server.
        TooLarge,
        /// A `ResourceQuota` is used up.
        QuotaExceeded,
        /// An admission plugin, policy or webhook denies the write.
        AdmissionDenied,
        /// The copy needs a label's value, and the namespace does not have the label.
        VariableUnset,
        /// The API server did not answer within the deadline.
        Timeout,
        /// No connection to the cluster, or the cluster answers with errors of its own.
        ClusterUnreachable,
    }
}

words! {
    /// The reason why Mimeo can't read something, until a user fixes it. It says nothing about the
    /// existence of the objects. In particular, an unreadable object never counts as deleted.
    Unreadable {
        /// Mimeo lacks a permission.
        Forbidden,
        /// The server has answered only with errors for a while.
        Unavailable,
    }
}

impl Unreadable {
    /// The reason for people: the fault when Mimeo reads `resource`.
    pub fn explain(self, resource: &str) -> String {
        match self {
            Self::Forbidden => {
                format!("Mimeo may not read {resource} (it needs get, list and watch)")
            }
            Self::Unavailable => {
                format!("the API server has been answering with errors when asked for {resource}")
            }
        }
    }
}

impl FailureReason {
    /// True if the API server did not carry out the request: it gave no answer, or one about trouble
    /// of its own (5xx). A later answer about the object ends such a failure.
    pub fn is_silence(self) -> bool {
        matches!(self, Self::Timeout | Self::ClusterUnreachable)
    }

    /// Advice for people, in a few words.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Conflict => {
                "delete the object that has the copy's name, give the copy another name \
                 (copyName), or see conflictPolicy"
            }
            Self::RuleConflict => {
                "give the copies of one rule another name (copyName), or change the targets of one \
                 rule"
            }
            Self::NotGranted => "the owner of that namespace can write a ReplicationGrant",
            Self::Forbidden => "grant Mimeo the permission that the condition Authorized names",
            Self::Invalid => "fix the source or the transform",
            Self::TooLarge => "make the source smaller",
            Self::QuotaExceeded => "raise the ResourceQuota, or delete objects that it counts",
            Self::AdmissionDenied => {
                "exempt Mimeo's copies from the admission plugin, policy or webhook that denies \
                 them"
            }
            Self::VariableUnset => "give the namespace the label that the variable names",
            Self::Timeout | Self::ClusterUnreachable => "there is nothing to do, Mimeo retries",
        }
    }
}

impl Outcome {
    /// The outcome for an error answer to a request about the object `name`. `retry_after` comes
    /// from the HTTP header.
    pub fn of_error(
        code: u16,
        status: &Status,
        retry_after: Option<Duration>,
        resource: &Resource,
        name: &str,
    ) -> Self {
        let secret = resource.gvk.is_secret();
        let message = status.message.as_deref().unwrap_or_default();
        let details = status.details.as_ref();
        let failure = |reason| Failure {
            reason,
            message: told(code, status, secret),
        };
        let refused = |reason| Self::Refused(failure(reason));
        match code {
            // Policies and webhooks choose the status code themselves. It says nothing about the
            // object, and an administrator may remove the policy or webhook at any time.
            400..=499 if !matches!(code, 408 | 429) && denied(message) => {
                refused(FailureReason::AdmissionDenied)
            }
            404 if details.is_none_or(|d| d.name.as_deref().unwrap_or_default().is_empty()) => {
                Self::NotServed
            }
            404 if details.and_then(|d| d.kind.as_deref()) == Some("namespaces") => {
                Self::NamespaceGone
            }
            404 if details.is_some_and(|d| is_of(d, resource, name)) => Self::Absent,
            // The API server does not find an object that this one refers to. One case is a
            // RoleBinding to a missing role, if the writer lacks the permission to bind any role.
            404 => refused(FailureReason::Forbidden),
            403 if names_cause(status, "NamespaceTerminating") => Self::NamespaceGone,
            // All kinds of 403 have the same reason word. Only the messages differ. The rest of
            // this one tells how many objects the namespace has, which not every reader may know.
            403 if message.contains("exceeded quota: ") => Self::Refused(Failure {
                reason: FailureReason::QuotaExceeded,
                message: "a ResourceQuota of the namespace has no room for this copy; kubectl describe quota shows it".into(),
            }),
            403 if message.contains(" cannot ") && message.contains("User ") => {
                refused(FailureReason::Forbidden)
            }
            // A Role or RoleBinding that would grant permissions which the writer does not have.
            403 if message.contains("attempting to grant RBAC permissions not currently held") => {
                refused(FailureReason::Forbidden)
            }
            // The update of a quota's usage conflicts with other writers, before the API server
            // looks at the object itself. If the object is this quota, the conflict is about the
            // object.
            409 if details.is_some_and(|d| {
                d.kind.as_deref() == Some("resourcequotas") && !is_of(d, resource, name)
            }) =>
            {
                let message = "the API server is busy with a ResourceQuota of the namespace";
                Self::of_silence(FailureReason::QuotaExceeded, message)
            }
            409 if names_cause(status, "FieldManagerConflict") => Self::Differs,
            409 => Self::Conflict,
            // The apply names the uid of another object. The API server checks immutable fields,
            // such as the uid, before preconditions.
            422 if names_field(status, "metadata.uid") => Self::Conflict,
            422 if immutable(status) => Self::Immutable(failure(FailureReason::Invalid)),
            413 => refused(FailureReason::TooLarge),
            _ if too_large(message) => refused(FailureReason::TooLarge),
            // Server-side apply answers 500 for a body that does not match the schema or can't be
            // decoded. A retry does not help.
            _ if undecodable(message) => refused(FailureReason::Invalid),
            400 | 405 | 415 | 422 => refused(FailureReason::Invalid),
            429 | 500..=599 | 408 => Self::Unavailable {
                retry_after: retry_after.or_else(|| {
                    let seconds = details?.retry_after_seconds?;
                    Some(Duration::from_secs(seconds.try_into().ok()?))
                }),
                failure: failure(unavailable(code)),
            },
            _ => refused(FailureReason::AdmissionDenied),
        }
    }

    /// The outcome if no answer came in time, or no connection was possible.
    pub fn of_silence(reason: FailureReason, message: impl Into<Box<str>>) -> Self {
        Self::Unavailable {
            retry_after: None,
            failure: Failure {
                reason,
                message: message.into(),
            },
        }
    }
}

/// Recognizes the phrases with which the API server introduces the message of an admission webhook
/// or of a `ValidatingAdmissionPolicy`.
fn denied(message: &str) -> bool {
    message.contains("admission webhook \"") && message.contains("\" denied the request")
        || message.contains("ValidatingAdmissionPolicy '") && message.contains(" denied request")
}

/// True if the details are about the object of the request. Some servers do not write the kind in
/// the plural, as they should.
fn is_of(details: &StatusDetails, resource: &Resource, name: &str) -> bool {
    let kind = details.kind.as_deref().unwrap_or_default();
    let known = [&resource.plural, &resource.gvk.kind]
        .into_iter()
        .any(|word| word.eq_ignore_ascii_case(kind));
    details.name.as_deref() == Some(name) && (known || kind.is_empty())
}

fn unavailable(code: u16) -> FailureReason {
    if code == 504 || code == 408 {
        FailureReason::Timeout
    } else {
        FailureReason::ClusterUnreachable
    }
}

/// Recognizes the messages for a field outside the schema, and for a value that the field's type
/// can't hold: text that is not base64, a quantity or a time. The second message begins like the
/// message for a conversion webhook that does not answer. That error may pass.
fn undecodable(message: &str) -> bool {
    message.contains("failed to create typed patch object")
        || message.contains("failed to convert new object")
            && message.contains("unable to convert unstructured object to")
}

fn too_large(message: &str) -> bool {
    [
        "request is too large",
        "Request entity too large",
        "Too long: may not be more than",
        "Too long: must have at most",
        "trying to send message larger than max",
    ]
    .iter()
    .any(|text| message.contains(text))
}

/// The causes that the details of an answer list.
fn causes(status: &Status) -> impl Iterator<Item = &StatusCause> {
    let details = status.details.iter();
    details.flat_map(|details| details.causes.iter().flatten())
}

fn names_cause(status: &Status, reason: &str) -> bool {
    causes(status).any(|cause| cause.reason.as_deref() == Some(reason))
}

/// Recognizes the messages for a Secret's type, for immutable Secrets and `ConfigMap`s, and for the
/// role of a role binding.
fn immutable(status: &Status) -> bool {
    let mut messages = causes(status).filter_map(|cause| cause.message.as_deref());
    messages.any(|message| {
        message.contains("field is immutable") || message.contains("cannot change roleRef")
    })
}

fn names_field(status: &Status, field: &str) -> bool {
    causes(status).any(|cause| cause.field.as_deref() == Some(field))
}

/// Most bytes of a message of the API server that are kept.
const TOLD: usize = 400;

/// The message for people. For a Secret it has only parts that can't quote data.
fn told(code: u16, status: &Status, secret: bool) -> Box<str> {
    let reason = status.reason.as_deref().unwrap_or("no reason given");
    if secret {
        let fields: Vec<&str> = causes(status)
            .filter_map(|cause| cause.field.as_deref())
            // A field path may name keys of `data`. The author chose these keys, and they are not
            // secret.
            .take(3)
            .collect();
        let at = if fields.is_empty() {
            String::new()
        } else {
            format!(" at {}", fields.join(", "))
        };
        return format!("the API server answered {code} {reason}{at}").into();
    }
    let mut text = format!(
        "the API server answered {code} {reason}: {}",
        status.message.as_deref().unwrap_or_default()
    );
    text.truncate(text.floor_char_boundary(TOLD));
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::GroupVersionKind;

    fn status(json: serde_json::Value) -> Status {
        serde_json::from_value(json).expect("a literal Status")
    }

    fn resource(kind: &str) -> Resource {
        let group = if kind == "Secret" {
            "v1"
        } else {
            "rbac.authorization.k8s.io/v1"
        };
        let gvk = GroupVersionKind::parse(group, kind).expect("a kind");
        Resource {
            gvk,
            plural: format!("{}s", kind.to_lowercase()).into(),
            namespaced: true,
        }
    }

    #[test]
    fn errors_are_told_apart() {
        let policy = r#"secrets "x" is forbidden: ValidatingAdmissionPolicy 'a' with binding 'b' denied request: no"#;
        let forbidden = r#"secrets "x" is forbidden: User "mimeo" cannot patch resource "secrets""#;
        let gives = "rolebindings.rbac.authorization.k8s.io \"x\" is forbidden: user \"mimeo\" (groups=[\"a\"]) is attempting \
                     to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}";
        let cases = [
            (404, serde_json::json!({}), "NotServed"),
            (
                404,
                serde_json::json!({"details": {"name": "a", "kind": "namespaces"}}),
                "NamespaceGone",
            ),
            (
                404,
                serde_json::json!({"details": {"name": "a", "kind": "rolebindings"}}),
                "Absent",
            ),
            (
                404,
                serde_json::json!({"details": {"name": "a", "kind": "RoleBinding"}}),
                "Absent",
            ),
            (404, serde_json::json!({"details": {"name": "a"}}), "Absent"),
            (
                404,
                serde_json::json!({"details": {"name": "a", "kind": "roles"}}),
                "Forbidden",
            ),
            (
                404,
                serde_json::json!({"details": {"name": "b", "kind": "rolebindings"}}),
                "Forbidden",
            ),
            (
                403,
                serde_json::json!({"details": {"causes": [{"reason": "NamespaceTerminating"}]}}),
                "NamespaceGone",
            ),
            (
                403,
                serde_json::json!({"message": "exceeded quota: q"}),
                "QuotaExceeded",
            ),
            (403, serde_json::json!({"message": forbidden}), "Forbidden"),
            (403, serde_json::json!({"message": gives}), "Forbidden"),
            (
                403,
                serde_json::json!({"message": "denied by a policy"}),
                "AdmissionDenied",
            ),
            (
                409,
                serde_json::json!({"message": "admission webhook \"a.b\" denied the request: no"}),
                "AdmissionDenied",
            ),
            (
                422,
                serde_json::json!({"message": policy}),
                "AdmissionDenied",
            ),
            (
                429,
                serde_json::json!({"message": "admission webhook \"a.b\" denied the request: \
                    later"}),
                "Unavailable",
            ),
            (409, serde_json::json!({"reason": "Conflict"}), "Conflict"),
            (
                409,
                serde_json::json!({"reason": "AlreadyExists"}),
                "Conflict",
            ),
            (
                409,
                serde_json::json!({"details": {"causes": [{"reason": "FieldManagerConflict", "field": ".data.a"}]}}),
                "Differs",
            ),
            (
                422,
                serde_json::json!({"details": {"causes": [{"field": "type", "message": "Invalid value: \"a\": field is immutable"}]}}),
                "Immutable",
            ),
            (413, serde_json::json!({}), "TooLarge"),
            (
                422,
                serde_json::json!({"message": "data: Too long: may not be more than 1048576 bytes"}),
                "TooLarge",
            ),
            (
                500,
                serde_json::json!({"message": "failed to create typed patch object: .spec.x: field \
                    not declared"}),
                "Invalid",
            ),
            (
                500,
                serde_json::json!({"message": "failed to convert new object (/a; /v1, Kind=Secret) \
                    to proper version: unable to convert unstructured object to /v1, Kind=Secret: \
                    error decoding from json: illegal base64 data at input byte 7"}),
                "Invalid",
            ),
            (
                500,
                serde_json::json!({"message": "failed to convert new object (/a; example.com/v1, \
                    Kind=Widget) to proper version: conversion webhook for example.com/v1, \
                    Kind=Widget failed: connection refused"}),
                "Unavailable",
            ),
            (422, serde_json::json!({}), "Invalid"),
            (
                429,
                serde_json::json!({"details": {"retryAfterSeconds": 3}}),
                "Unavailable",
            ),
            (503, serde_json::json!({}), "Unavailable"),
        ];
        for (code, json, want) in cases {
            let outcome = Outcome::of_error(
                code,
                &status(json.clone()),
                None,
                &resource("RoleBinding"),
                "a",
            );
            let got = match &outcome {
                Outcome::Refused(failure) => failure.reason.to_string(),
                other => format!("{other:?}")
                    .split(['(', ' '])
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            };
            assert_eq!(got, want, "{code} {json}");
        }
    }

    /// The API server names a quota in the same way in two cases: it could not update the quota's
    /// usage, or the copy is a quota and does not match the request's preconditions.
    #[test]
    fn a_conflict_about_a_quota_is_no_quota_that_is_used_up() {
        for (kind, name, want) in [
            ("ResourceQuota", "a", "Conflict"),
            ("ResourceQuota", "other", "QuotaExceeded"),
            ("Secret", "a", "QuotaExceeded"),
        ] {
            let gvk = GroupVersionKind::parse("v1", kind).expect("a kind");
            let plural = format!("{}s", kind.to_lowercase()).into();
            let resource = Resource {
                gvk,
                plural,
                namespaced: true,
            };
            let details = serde_json::json!({"kind": "resourcequotas", "name": name});
            let json = serde_json::json!({"reason": "Conflict", "details": details});
            let got = match Outcome::of_error(409, &status(json), None, &resource, "a") {
                Outcome::Unavailable { failure, .. } => failure.reason.to_string(),
                other => format!("{other:?}"),
            };
            assert_eq!(got, want, "{kind} {name}");
        }
    }

    #[test]
    fn the_amounts_of_a_quota_are_not_kept() {
        let amounts = "small, requested: secrets=1, used: secrets=5, limited: secrets=5";
        let message = format!("secrets \"a\" is forbidden: exceeded quota: {amounts}");
        let refused = status(serde_json::json!({"reason": "Forbidden", "message": message}));
        for kind in ["Secret", "ConfigMap"] {
            let outcome = Outcome::of_error(403, &refused, None, &resource(kind), "a");
            let Outcome::Refused(failure) = outcome else {
                panic!("not refused")
            };
            assert_eq!(
                (failure.reason, &*failure.message),
                (
                    FailureReason::QuotaExceeded,
                    "a ResourceQuota of the namespace has no room for this copy; kubectl describe quota shows it"
                ),
                "{kind}"
            );
        }
    }

    #[test]
    fn what_a_server_says_of_a_secret_is_not_kept() {
        let json = serde_json::json!({
            "reason": "Invalid", "message": "data[token]: Invalid value: hunter2",
            "details": {"causes": [{"field": "data[token]", "message": "Invalid value: hunter2"}]}
        });
        let Outcome::Refused(failure) =
            Outcome::of_error(422, &status(json), None, &resource("Secret"), "a")
        else {
            panic!("not refused")
        };
        assert_eq!(
            &*failure.message,
            "the API server answered 422 Invalid at data[token]"
        );
    }
}
