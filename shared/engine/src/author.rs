//! The annotation [`names::AUTHOR`]: the user that wrote the spec of a rule, a grant or a policy.
//! It is for people to read.
//!
//! No decision rests on the annotation. The webhook checks permissions when the object is written
//! ([`authority`](mimeo_model::authority)), against the user of that request.

use json_patch::Patch;
use serde_json::Value;

use mimeo_model::{
    names,
    review::{Operation, Request},
};

use crate::admission::set;

/// Returns the patch that notes the author: the user of the request if the spec is new or changed,
/// and otherwise the author that the stored object names. A value that the request itself carries
/// is never kept.
pub fn note(request: &Request) -> Patch {
    let Some(object) = &request.object else {
        return Patch::default();
    };
    let old = request
        .old_object
        .as_ref()
        .filter(|_| request.operation == Operation::Update);
    let author = match old {
        Some(old) if old["spec"] == object["spec"] => noted(old),
        _ => Some(request.user.name.as_str()),
    };
    if noted(object) == author {
        return Patch::default();
    }
    set(object, "annotations", names::AUTHOR, author)
}

fn noted(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][names::AUTHOR].as_str()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use mimeo_model::review::{Kept, decode};
    use serde_json::json;

    fn object(author: Option<&str>, spec: u8) -> Value {
        let mut object = json!({"metadata": {"name": "registry"}, "spec": {"targets": spec}});
        if let Some(author) = author {
            object["metadata"]["annotations"] = json!({names::AUTHOR: author, "note": "kept"});
        }
        object
    }

    /// Returns the author in the object that is stored if `user` writes `object` over `old`.
    fn stored(user: &str, old: Option<&Value>, object: &Value) -> Option<String> {
        let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "7", "operation": operation, "name": "registry", "userInfo": {"username": user},
                "kind": {"group": "mimeo.dev", "version": "v1alpha1", "kind": "ClusterReplication"},
                "resource": {"group": "mimeo.dev", "version": "v1alpha1", "resource": "clusterreplications"},
                "object": object, "oldObject": old,
            },
        });
        let request = decode(review.to_string().as_bytes(), Kept::Rule).unwrap();
        let mut written = object.clone();
        json_patch::patch(&mut written, &note(&request)).unwrap();
        noted(&written).map(Into::into)
    }

    #[test]
    fn the_author_is_the_user_who_wrote_the_spec_last() {
        for (case, old, new, author) in [
            ("a new object", None, object(None, 1), Some("ann")),
            (
                "a new object that names another user",
                None,
                object(Some("bob"), 1),
                Some("ann"),
            ),
            (
                "a changed spec",
                Some(object(Some("bob"), 1)),
                object(Some("bob"), 2),
                Some("ann"),
            ),
            (
                "the same spec",
                Some(object(Some("bob"), 1)),
                object(Some("bob"), 1),
                Some("bob"),
            ),
            (
                "the annotation removed",
                Some(object(Some("bob"), 1)),
                object(None, 1),
                Some("bob"),
            ),
            (
                "the annotation changed",
                Some(object(Some("bob"), 1)),
                object(Some("ann"), 1),
                Some("bob"),
            ),
            (
                "an object without an author",
                Some(object(None, 1)),
                object(Some("ann"), 1),
                None,
            ),
        ] {
            assert_eq!(
                stored("ann", old.as_ref(), &new).as_deref(),
                author,
                "{case}"
            );
        }
    }
}
