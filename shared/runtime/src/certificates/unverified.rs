//! A certificate that no trusted CA has signed. It is made at start and kept in memory.
//!
//! It keeps tokens from being sent in clear text on ports where clients are told not to verify the
//! certificate. It also answers probes, which verify no certificate, while there is no other one.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{sync::watch, time::sleep};
use tracing::warn;

use super::{Bundle, CertificateError, Lifetimes, ServingMaterial, ServingNames, offer};

/// Well before the certificate expires.
const RENEWAL: Duration = Duration::from_hours(30 * 24);

/// Makes a certificate and replaces it periodically, until all receivers are dropped.
///
/// # Errors
/// The first certificate could not be made.
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

/// Serves an unverified certificate until the wanted one exists, and from then on only the wanted
/// one. Until then probes are answered, and clients that verify certificates are not.
///
/// # Errors
/// The unverified certificate could not be made.
pub fn until(
    mut wanted: watch::Receiver<Option<Arc<ServingMaterial>>>,
) -> Result<watch::Receiver<Option<Arc<ServingMaterial>>>, CertificateError> {
    let (publish, receiver) = watch::channel(Some(Arc::new(issue()?)));
    tokio::spawn(async move {
        loop {
            let material = wanted.borrow_and_update().clone();
            if material.is_some() {
                publish.send_replace(material);
            }
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                () = publish.closed() => return,
            }
        }
    });
    Ok(receiver)
}

fn issue() -> Result<ServingMaterial, CertificateError> {
    let bundle = Bundle::issue(
        &ServingNames::new(["localhost"]),
        &Lifetimes::default(),
        Timestamp::now(),
    )?;
    bundle
        .material()
        .map_err(|error| CertificateError::Unusable("tls.crt", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_stands_in_until_what_is_wanted_is_there() {
        let (give, wanted) = watch::channel(None);
        let mut material = until(wanted).expect("a certificate");
        let own = material
            .borrow_and_update()
            .clone()
            .expect("there from the start");
        let given = Arc::new(issue().expect("another one"));
        give.send_replace(Some(given.clone()));
        material.changed().await.expect("it goes on");
        let now = material.borrow_and_update().clone().expect("still there");
        assert!(now.is_same(&given) && !now.is_same(&own));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_renewed_long_before_it_expires() {
        let mut material = start().expect("a certificate");
        let first = material
            .borrow_and_update()
            .clone()
            .expect("there from the start");
        assert!(first.not_after > Timestamp::now() + jiff::Span::new().hours(24 * 60));
        material.changed().await.expect("it goes on");
        assert!(
            !material
                .borrow()
                .as_ref()
                .expect("still there")
                .is_same(&first)
        );
    }
}
