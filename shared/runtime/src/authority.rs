//! Asks the API server who may do what.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};
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
    // An evaluation error beside a "no" is a dangling binding more often than not, and no "yes" anyway.
    Ok(answer.status.is_some_and(|status| status.allowed))
}

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
