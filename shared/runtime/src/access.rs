//! Asks the API server for a user's permissions, with a `SubjectAccessReview`.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::{
    authentication::v1::UserInfo,
    authorization::v1::{
        NonResourceAttributes, ResourceAttributes, SelfSubjectAccessReview, SubjectAccessReview,
        SubjectAccessReviewSpec, SubjectAccessReviewStatus,
    },
};
use kube::{Client, Resource};
use mimeo_model::{review::User, right::Right};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

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
    let User {
        name,
        uid,
        groups,
        extra,
    } = user.clone();
    let spec = SubjectAccessReviewSpec {
        user: Some(name),
        uid: Some(uid).filter(|uid| !uid.is_empty()),
        groups: Some(groups),
        extra: Some(extra),
        resource_attributes: Some(attributes(right)),
        ..SubjectAccessReviewSpec::default()
    };
    ask(client, spec, deadline).await
}

/// Whether the user may use this verb on a path outside the resource API, such as `get` on
/// `/metrics`.
///
/// # Errors
/// As for [`is_allowed`].
pub async fn may_visit(
    client: &Client,
    user: UserInfo,
    verb: &str,
    path: &str,
    deadline: Duration,
) -> CallResult<bool> {
    let spec = SubjectAccessReviewSpec {
        user: user.username,
        uid: user.uid,
        groups: user.groups,
        extra: user.extra,
        non_resource_attributes: Some(NonResourceAttributes {
            verb: Some(verb.to_owned()),
            path: Some(path.to_owned()),
        }),
        ..SubjectAccessReviewSpec::default()
    };
    ask(client, spec, deadline).await
}

async fn ask(
    client: &Client,
    spec: SubjectAccessReviewSpec,
    deadline: Duration,
) -> CallResult<bool> {
    let review = SubjectAccessReview {
        spec,
        ..SubjectAccessReview::default()
    };
    decision(review_of(client, &review, deadline).await?.status)
}

/// Whether the user of the client has the permission. Every user may ask this.
///
/// # Errors
/// As for [`is_allowed`].
pub async fn may_self(client: &Client, right: &Right, deadline: Duration) -> CallResult<bool> {
    let mut review = SelfSubjectAccessReview::default();
    review.spec.resource_attributes = Some(attributes(right));
    decision(review_of(client, &review, deadline).await?.status)
}

/// Creates a review, which the API server answers and does not store.
pub(crate) async fn review_of<K>(client: &Client, review: &K, deadline: Duration) -> CallResult<K>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
{
    let (path, body) = (K::url_path(&(), None), json!(review).to_string());
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

fn attributes(right: &Right) -> ResourceAttributes {
    let Right {
        verb,
        group,
        resource,
        namespace,
        name,
    } = right;
    ResourceAttributes {
        verb: Some((*verb).to_owned()),
        group: Some(group.to_string()),
        // The permission is for the kind in all of its versions.
        version: Some("*".into()),
        resource: Some(resource.to_string()),
        namespace: namespace.as_ref().map(ToString::to_string),
        name: name.as_ref().map(ToString::to_string),
        ..ResourceAttributes::default()
    }
}
