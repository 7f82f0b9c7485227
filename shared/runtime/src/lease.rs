//! Leases: one leader among replicas ([`Election`]), and a sign of life of each replica
//! ([`Heartbeat`]).
//!
//! These Leases follow the rules of Kubernetes' own components, so people and tools can read them
//! alike. A holder renews often, and gives up well before another replica may take over. Other
//! replicas measure how long *they* have seen no change, and never compare clocks. The caller
//! decides on the work that only a leader does.

mod election;
mod heartbeat;
mod seen;
#[cfg(test)]
mod testing;

use std::time::Duration;

pub(crate) use self::seen::{SeenLease, observe};
pub use self::{
    election::{Election, LeaseArgs, LeaseError},
    heartbeat::{Heartbeat, HeartbeatSpec},
};

/// Rounds up, because others must not take over early. Returns at least one, as the API server
/// requires.
fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis().div_ceil(1_000))
        .unwrap_or(i32::MAX)
        .max(1)
}
