//! Conditions of statuses, and their words.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::words;

/// A condition of the object's `generation`, as of the time `now`. One of `old` that has the same
/// status passes its transition time on (Kubernetes API conventions).
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
    /// What a condition is about.
    ConditionType {
        /// Whether all is as the spec says.
        Ready,
        /// Whether every source is there.
        SourcesFound,
        /// True if other namespaces and the permissions of Mimeo allow what the rule does.
        Authorized,
        /// Whether pods of new namespaces wait for the copies.
        PodGateActive,
        /// Work is under way; only while it is.
        Reconciling,
        /// Nothing goes on before somebody does something; only while that is so.
        Stalled,
    }
}

words! {
    /// Why a condition is so.
    ConditionReason {
        /// Every copy is as it should be.
        Synced,
        /// No copy is wanted anywhere.
        NoNamespaceMatches,
        /// Some copies can't be written or deleted.
        CopiesFailed,
        /// A source isn't there.
        SourceNotFound,
        /// A permission or a grant is missing.
        NotAuthorized,
        /// The spec can't be carried out.
        InvalidSpec,
        /// The rule is suspended.
        Suspended,
        /// It is not done, not known or not in force yet.
        Pending,
        /// Every source is there.
        Found,
        /// The cluster doesn't serve the kind.
        KindNotServed,
        /// No copy may be or can be made of a source.
        SourceRefused,
        /// A source is gone, and its copies stay for a while.
        InGracePeriod,
        /// No permission and no grant is missing.
        Allowed,
        /// Another namespace doesn't consent.
        NotGranted,
        /// What other namespaces consent to can't be read.
        GrantsUnknown,
        /// Mimeo lacks a right.
        ControllerForbidden,
        /// It is in force.
        Active,
        /// The rule wants no pod gate.
        Disabled,
        /// No webhook replica lives.
        WebhookUnavailable,
        /// Another client keeps changing the webhook configuration.
        WebhookContested,
        /// So many copies were lost at once that none is deleted until somebody confirms it.
        DeletionHeld,
        /// The API server wouldn't have it registered.
        Rejected,
        /// Older grants of the namespace take all that may count.
        TooManyGrants,
    }
}
