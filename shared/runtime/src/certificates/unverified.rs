//! A certificate that no trusted CA has signed. It is made at start and kept in memory.
//!
//! It keeps tokens from being sent in clear text on ports where clients are told not to verify the
//! certificate. It also answers probes, which verify no certificate, while there is no other one.

use std::time::Duration;

use jiff::Timestamp;

use super::{Bundle, Lifetimes, ServingMaterial, ServingNames};

/// Longer than any process runs: the certificate is never renewed.
const VALIDITY: Duration = Duration::from_hours(10 * 365 * 24);

/// Makes a certificate.
///
/// # Errors
/// The certificate could not be made.
pub fn issue() -> anyhow::Result<ServingMaterial> {
    let lifetimes = Lifetimes {
        ca: VALIDITY,
        serving: VALIDITY,
        ..Lifetimes::default()
    };
    Bundle::issue(
        &ServingNames::new(["localhost"]),
        &lifetimes,
        Timestamp::now(),
    )?
    .material()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn it_outlives_the_process() {
        let material = issue().expect("a certificate");
        let nine_years = SignedDuration::from_hours(9 * 365 * 24);
        assert!(material.not_after > Timestamp::now() + nine_years);
    }
}
