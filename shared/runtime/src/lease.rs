//! Leases: one leader among replicas ([`Candidate`]), and the Leases of other replicas as signs of
//! life.
//!
//! These Leases follow the rules of Kubernetes' own components, so people and tools can read them
//! alike. A holder renews often, and gives up well before another replica may take over. Other
//! replicas measure how long *they* have seen no change, and never compare clocks. The caller
//! decides on the work that only a leader does.

mod election;
mod seen;
#[cfg(test)]
mod testing;

use std::time::Duration;

pub use self::election::{Candidate, LeaseArgs};
pub(crate) use self::seen::{SeenLease, observe};

/// Rounds up, because others must not take over early. Returns at least one, as the API server
/// requires.
fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis().div_ceil(1_000))
        .unwrap_or(i32::MAX)
        .max(1)
}
