//! Asks the API server who may do what.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::{Api, Client, api::PostParams, core::Status};
use mimeo_core::{authority::Right, review::User};
use tokio::time::Instant;

use crate::client::within;

/// Whether the user holds the right.
///
/// # Errors
/// Nobody could say: that isn't "no".
pub async fn is_allowed(client: &Client, user: &User, right: &Right, deadline: Instant) -> kube::Result<bool> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let left = deadline.saturating_duration_since(Instant::now());
    let answer = within(left, reviews.create(&PostParams::default(), &review(user, right))).await?;
    match answer.status {
        Some(SubjectAccessReviewStatus { allowed: true, .. }) => Ok(true),
        // An authorizer that would have said "yes" may be the one that failed. (Bindings to roles that aren't there are no
        // errors: RBAC tells of these as its reason.)
        Some(SubjectAccessReviewStatus { evaluation_error: Some(error), .. }) if !error.is_empty() => {
            Err(kube::Error::Api(Status::failure(&error, "EvaluationError").with_code(UNDECIDED).boxed()))
        }
        _ => Ok(false),
    }
}

/// The code of an answer that was none, though the API server gave it: it isn't overloaded.
const UNDECIDED: u16 = 424;

fn review(user: &User, right: &Right) -> SubjectAccessReview {
    let User { name, uid, groups, extra } = user;
    let Right { verb, group, resource, namespace, name: object } = right;
    let attributes = ResourceAttributes {
        verb: Some((*verb).to_owned()),
        group: Some(group.to_string()),
        // Not one of the kind's versions, but the kind.
        version: Some("*".into()),
        resource: Some(resource.to_string()),
        namespace: namespace.as_ref().map(ToString::to_string),
        name: object.as_ref().map(ToString::to_string),
        ..ResourceAttributes::default()
    };
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(name.clone()),
            uid: Some(uid.clone()).filter(|uid| !uid.is_empty()),
            groups: Some(groups.clone()),
            extra: Some(extra.clone()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}
