//! A certificate that nobody vouches for: made at start and kept in memory. It keeps tokens from being sent in the clear on ports
//! whose clients are told not to verify it, and has no other use.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{sync::watch, time::sleep};
use tracing::warn;

use super::{Bundle, CertificateError, Lifetimes, ServingMaterial, ServingNames, offer};

/// Well before it expires.
const RENEWAL: Duration = Duration::from_hours(30 * 24);

/// Makes it, and a new one now and then, until nobody receives any more.
///
/// # Errors
/// When there is no first one.
pub fn start() -> Result<watch::Receiver<Option<Arc<ServingMaterial>>>, CertificateError> {
    let (publish, receiver) = watch::channel(Some(Arc::new(issue()?)));
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = sleep(RENEWAL) => {}
                () = publish.closed() => return,
            }
            match issue() {
                Ok(material) => offer(&publish, material),
                Err(error) => warn!(%error, "failed to renew a certificate, keeping the last one"),
            }
        }
    });
    Ok(receiver)
}

fn issue() -> Result<ServingMaterial, CertificateError> {
    let bundle = Bundle::issue(&ServingNames::new(["localhost"]), &Lifetimes::default(), Timestamp::now())?;
    bundle.material().map_err(|error| CertificateError::Unusable("tls.crt", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_renewed_long_before_it_expires() {
        let mut material = start().expect("a certificate");
        let first = material.borrow_and_update().clone().expect("there from the start");
        assert!(first.not_after > Timestamp::now() + jiff::Span::new().hours(24 * 60));
        material.changed().await.expect("it goes on");
        assert!(!material.borrow().as_ref().expect("still there").is_same(&first));
    }
}
