//! Verifies callers by their client certificates. A caller needs a certificate from a CA in the
//! given file, such as an API server that is configured with one for this webhook.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};

use super::files::{Content, bytes, poll};
use crate::tls::Callers;

/// Reads the file until the receiver is dropped. Until the file was read once there is no CA, and no
/// caller is accepted.
pub fn start(file: PathBuf) -> Callers {
    poll([file], None, verifier)
}

fn verifier([pem]: &[Content; 1]) -> anyhow::Result<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bytes(
        pem,
        "the CA of API servers, without which every caller is refused",
    )?) {
        roots.add(certificate.ok().context("it is no PEM text")?)?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        // Clients choose their certificate by this list. It is empty: a client with several
        // certificates knows which one is for this webhook.
        .clear_root_hint_subjects()
        .build()?;
    Ok(verifier)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap fails the test.
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa,
        KeyPair,
    };
    use rustls::pki_types::UnixTime;
    use tokio::time::sleep;

    use super::*;
    use crate::certificates::files::PERIOD;

    type Ca = CertifiedIssuer<'static, KeyPair>;

    fn ca() -> Ca {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn of(ca: &Ca, usage: ExtendedKeyUsagePurpose) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![usage];
        params
            .signed_by(&KeyPair::generate().unwrap(), ca)
            .unwrap()
            .der()
            .clone()
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_a_certificate_of_the_ca_that_the_file_has_now() {
        let (one, two) = (ca(), ca());
        let client = |ca| of(ca, ExtendedKeyUsagePurpose::ClientAuth);
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut cas = start(file.path().to_owned());
        let seen = cas.clone();
        let lets_in = |certificate: &CertificateDer<'_>| {
            let verifier = seen.borrow().clone();
            verifier.is_some_and(|verifier| {
                let verified = verifier.verify_client_cert(certificate, &[], UnixTime::now());
                verifier.client_auth_mandatory() && verified.is_ok()
            })
        };
        assert!(!lets_in(&client(&one)), "there is no CA yet");
        std::fs::write(file.path(), one.pem()).unwrap();
        cas.changed().await.unwrap();
        assert!(lets_in(&client(&one)) && !lets_in(&client(&two)));
        assert!(
            !lets_in(&of(&one, ExtendedKeyUsagePurpose::ServerAuth)),
            "not every certificate of the CA is a client's"
        );
        std::fs::write(file.path(), "half").unwrap();
        sleep(PERIOD * 2).await;
        assert!(lets_in(&client(&one)), "what can't be used changes nothing");
        std::fs::write(file.path(), two.pem()).unwrap();
        cas.changed().await.unwrap();
        assert!(lets_in(&client(&two)) && !lets_in(&client(&one)));
    }
}
