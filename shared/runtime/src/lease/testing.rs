//! Leases for tests.

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};

/// A Lease that was renewed at this second, for 15 seconds.
pub(super) fn lease(holder: Option<&str>, renewed: i64) -> Lease {
    let time = MicroTime(Timestamp::from_second(renewed).expect("in range"));
    let spec = LeaseSpec {
        holder_identity: holder.map(str::to_owned),
        lease_duration_seconds: Some(15),
        acquire_time: Some(time.clone()),
        renew_time: Some(time),
        lease_transitions: Some(3),
        ..LeaseSpec::default()
    };
    Lease {
        spec: Some(spec),
        ..Lease::default()
    }
}
