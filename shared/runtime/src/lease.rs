//! Leases: one leader among replicas ([`Election`]), and a sign of life of each replica
//! ([`Heartbeat`]).
//!
//! The rules are those of Kubernetes' own components, so the same Lease can be read by the same
//! eyes: a holder renews on a short period and gives up itself well before others may take over,
//! and others judge by how long *they* have seen no change, never by comparing clocks. What leading
//! means is the caller's business.

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

/// Up, since others must not take over early; at least one, as the API server demands.
fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis().div_ceil(1_000))
        .unwrap_or(i32::MAX)
        .max(1)
}
