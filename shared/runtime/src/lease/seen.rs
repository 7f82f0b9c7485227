//! A Lease as others see it: by how long they have seen no change of it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

/// The Lease, and since when it has been seen as it is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeenLease {
    /// As it was seen last.
    pub(crate) lease: Lease,
    pub(super) since: Instant,
    /// It was deleted since. Its holder doesn't know yet, and may write it anew.
    pub(super) deleted: bool,
}

impl SeenLease {
    /// When its holder counts as dead unless it shows a sign of life.
    pub(crate) fn expiry(&self) -> Instant {
        self.since + self.duration()
    }

    /// The Lease, unless it was deleted since.
    pub(super) fn existing(&self) -> Option<&Lease> {
        (!self.deleted).then_some(&self.lease)
    }

    pub(super) fn holder(&self) -> Option<&str> {
        self.lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.as_deref())
            .filter(|holder| !holder.is_empty())
    }

    fn duration(&self) -> Duration {
        let seconds = self
            .lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds)
            .unwrap_or(0);
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    }
}

/// What is known after `seen` arrived. A write that isn't the holder's (an annotation, say) is no
/// sign of its life.
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
