//! A Lease as another replica sees it: by the time without a change.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

/// A Lease, and since when this state of it has been seen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeenLease {
    /// The last state that was seen.
    pub(crate) lease: Lease,
    pub(super) since: Instant,
    /// The Lease was deleted since. Its holder does not know that yet, and may create it again.
    pub(super) deleted: bool,
}

impl SeenLease {
    /// When the holder counts as dead, unless the Lease changes before.
    pub(crate) fn expiry(&self) -> Instant {
        let spec = self.lease.spec.as_ref();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        let seconds = u64::try_from(seconds.unwrap_or(0)).unwrap_or(0);
        self.since + Duration::from_secs(seconds)
    }
}

/// The Lease's holder. An empty text stands for none.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref();
    holder.filter(|holder| !holder.is_empty())
}

/// The state after `seen` was received. A write that leaves the spec as it was (such as an
/// annotation) is no sign of life of the holder.
pub(crate) fn observe(
    before: Option<SeenLease>,
    seen: Option<Lease>,
    now: Instant,
) -> Option<SeenLease> {
    let Some(lease) = seen else {
        return before.map(|before| SeenLease {
            deleted: true,
            ..before
        });
    };
    let since = match before {
        Some(before) if before.lease.spec == lease.spec => before.since,
        _ => now,
    };
    Some(SeenLease {
        lease,
        since,
        deleted: false,
    })
}

#[cfg(test)]
mod tests {
    use super::{super::testing::lease, *};

    #[test]
    fn only_the_holders_own_writes_are_signs_of_life() {
        let start = Instant::now();
        let later = start + Duration::from_secs(9);
        let first = observe(None, Some(lease(Some("you"), 0)), start);
        assert_eq!(first.as_ref().map(|seen| seen.since), Some(start));

        let mut annotated = lease(Some("you"), 0);
        annotated.metadata.resource_version = Some("2".to_owned());
        let same = observe(first.clone(), Some(annotated.clone()), later).expect("still there");
        assert_eq!((same.since, same.lease), (start, annotated));

        let renewed = observe(first.clone(), Some(lease(Some("you"), 2)), later);
        assert_eq!(renewed.map(|seen| seen.since), Some(later));
        assert_eq!(observe(None, None, later), None);
    }
}
