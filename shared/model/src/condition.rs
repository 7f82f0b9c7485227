//! Conditions in a status, and their types and reasons.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::words;

/// A condition for the object's `generation`, at the time `now`. It keeps the transition time of a
/// condition in `old` that has the same type and status (Kubernetes API conventions).
pub fn condition(
    (type_, status): (ConditionType, bool),
    reason: ConditionReason,
    message: String,
    generation: Option<i64>,
    old: &[Condition],
    now: Timestamp,
) -> Condition {
    let status = if status { "True" } else { "False" };
    let same = old
        .iter()
        .find(|old| old.type_ == type_.as_str() && old.status == status);
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Condition {
        type_: type_.to_string(),
        status: status.into(),
        reason: reason.to_string(),
        message,
        last_transition_time: same.map_or(Time(now), |old| old.last_transition_time.clone()),
        observed_generation: generation,
    }
}

words! {
    /// The type of a condition.
    ConditionType {
        /// True if everything is as the spec says.
        Ready,
        /// True if every source exists.
        SourcesFound,
        /// True if other namespaces and the permissions of Mimeo allow what the rule does.
        Authorized,
        /// True if pods of new namespaces wait for the copies.
        PodGateActive,
        /// Work is in progress. The condition exists only while this is true.
        Reconciling,
        /// No progress is possible until a user acts. The condition exists only while this is true.
        Stalled,
    }
}

words! {
    /// The reason of a condition.
    ConditionReason {
        /// Every copy is as it should be.
        Synced,
        /// The rule wants no copy in any namespace.
        NoNamespaceMatches,
        /// Mimeo can't write or delete some copies.
        CopiesFailed,
        /// A source does not exist.
        SourceNotFound,
        /// A permission or a grant is missing.
        NotAuthorized,
        /// Mimeo can't carry out the spec.
        InvalidSpec,
        /// The rule is suspended.
        Suspended,
        /// Something is not done yet, not known yet or not in force yet.
        Pending,
        /// Every source exists.
        Found,
        /// The API server does not serve the kind.
        KindNotServed,
        /// A source must not be copied, or no copy can be made of it.
        SourceRefused,
        /// A source was deleted, and its copies stay for the grace period.
        InGracePeriod,
        /// No permission and no grant is missing.
        Allowed,
        /// Another namespace does not consent.
        NotGranted,
        /// The grants of other namespaces can't be read.
        GrantsUnknown,
        /// Mimeo itself lacks a permission.
        ControllerForbidden,
        /// The object is in force.
        Active,
        /// The rule wants no pod gate.
        Disabled,
        /// No webhook replica is alive.
        WebhookUnavailable,
        /// Another client keeps changing the webhook configuration.
        WebhookContested,
        /// Too many copies were lost at once. Mimeo deletes none of them until a user confirms it.
        DeletionHeld,
        /// The policy can't be registered: the API server refuses it, or too many older policies
        /// exist.
        Rejected,
        /// Older grants of the namespace already use up its limit.
        TooManyGrants,
    }
}
