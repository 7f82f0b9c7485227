//! The words of conditions.

use crate::words::words;

words! {
    /// What a condition is about.
    ConditionType {
        /// Whether all is as the spec says.
        Ready,
        /// Whether every source is there.
        SourcesFound,
        /// Whether the rule's author and Mimeo may do what it takes.
        Authorized,
        /// Whether pods of new namespaces wait for the copies.
        BarrierActive,
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
        /// Somebody may not do what the rule takes.
        NotAuthorized,
        /// The spec can't be carried out.
        InvalidSpec,
        /// The author wants nothing done for now.
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
        /// All may who have to.
        Allowed,
        /// The author lacks a right.
        AuthorDenied,
        /// Nobody is known to have written the spec.
        AuthorUnknown,
        /// Another namespace doesn't consent.
        NotGranted,
        /// What other namespaces consent to can't be read.
        GrantsUnknown,
        /// Mimeo lacks a right.
        ControllerForbidden,
        /// It is in force.
        Active,
        /// The rule wants no barrier.
        Disabled,
        /// No webhook replica lives.
        WebhookUnavailable,
        /// So many copies were lost at once that none is deleted until somebody confirms it.
        DeletionHeld,
        /// The API server wouldn't have it registered.
        Rejected,
    }
}
