//! Asks the API server for a user's permissions, with a `SubjectAccessReview`.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::{
    authentication::v1::UserInfo,
    authorization::v1::{SelfSubjectAccessReview, SubjectAccessReview, SubjectAccessReviewStatus},
};
use kube::{Client, Resource};
use mimeo_model::{review::User, right::Right};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::call::{self, CallError, CallResult, JSON};

/// Whether the user has the permission. The API server must answer within `deadline`.
///
/// # Errors
/// The API server gave no decision. An error does not mean that the permission is missing.
pub async fn is_allowed(
    client: &Client,
    user: &User,
    right: &Right,
    deadline: Duration,
) -> CallResult<bool> {
    let spec = json!({
        "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
        "resourceAttributes": attributes(right),
    });
    ask(client, spec, deadline).await
}

/// Whether the user may use this verb on a path outside the resource API, such as `get` on
/// `/metrics`.
///
/// # Errors
/// As for [`is_allowed`].
pub async fn may_visit(
    client: &Client,
    user: &UserInfo,
    verb: &str,
    path: &str,
    deadline: Duration,
) -> CallResult<bool> {
    let spec = json!({
        "user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra,
        "nonResourceAttributes": {"verb": verb, "path": path},
    });
    ask(client, spec, deadline).await
}

async fn ask(client: &Client, spec: Value, deadline: Duration) -> CallResult<bool> {
    let review: SubjectAccessReview = review(client, json!({"spec": spec}), deadline).await?;
    decision(review.status)
}

/// Whether the user of the client has the permission. Every user may ask this.
///
/// # Errors
/// As for [`is_allowed`].
pub async fn may_self(client: &Client, right: &Right, deadline: Duration) -> CallResult<bool> {
    let spec = json!({"spec": {"resourceAttributes": attributes(right)}});
    let review: SelfSubjectAccessReview = review(client, spec, deadline).await?;
    decision(review.status)
}

/// Creates a review of kind `K` with this content. The API server answers it and does not store it.
pub(crate) async fn review<K>(
    client: &Client,
    mut content: Value,
    deadline: Duration,
) -> CallResult<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    content["apiVersion"] = json!(K::api_version(&()));
    content["kind"] = json!(K::kind(&()));
    let (path, body) = (K::url_path(&(), None), content.to_string());
    let request = call::write(Method::POST, &path, JSON, JSON, body);
    call::exchange(client, request, deadline).await
}

fn decision(status: Option<SubjectAccessReviewStatus>) -> CallResult<bool> {
    match status {
        Some(SubjectAccessReviewStatus { allowed: true, .. }) => Ok(true),
        // An authorizer failed, and this authorizer might have allowed the request. (A binding to a
        // role that does not exist is not such an error: RBAC reports it as the reason.)
        Some(SubjectAccessReviewStatus {
            evaluation_error: Some(error),
            ..
        }) if !error.is_empty() => Err(CallError::Silent("an authorizer failed".into())),
        _ => Ok(false),
    }
}

fn attributes(right: &Right) -> Value {
    let mut attributes = json!(right);
    // The permission is for the kind in all of its versions.
    attributes["version"] = "*".into();
    attributes
}
