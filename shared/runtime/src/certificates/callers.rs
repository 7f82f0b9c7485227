//! Verifies callers by their client certificates. A caller needs a certificate from a CA in the
//! given file, such as an API server that is configured with one for this webhook.
//!
//! The file is read periodically, as the mounted certificate is, and for the same reason.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use tokio::{sync::watch, time::sleep};
use tracing::{info, warn};

const PERIOD: Duration = Duration::from_secs(2);

/// Accepts every caller if there is no file. Otherwise the file is read until the verifier is
/// dropped. A file that cannot be used changes nothing, and one warning is logged.
pub fn start(file: Option<PathBuf>) -> Arc<dyn ClientCertVerifier> {
    match file {
        Some(file) => Arc::new(Callers::start(file)),
        None => WebPkiClientVerifier::no_client_auth(),
    }
}

/// Requires a certificate from every caller. While there is no CA to verify it with, every caller
/// is refused.
struct Callers {
    cas: watch::Receiver<Option<Arc<dyn ClientCertVerifier>>>,
    provider: CryptoProvider,
}

impl Callers {
    fn start(file: PathBuf) -> Self {
        let (publish, cas) = watch::channel(None);
        tokio::spawn(async move {
            let mut last = None;
            while !publish.is_closed() {
                let read = tokio::fs::read(&file).await.map_err(|error| error.kind());
                if last.as_ref() != Some(&read) {
                    match verifier(&read) {
                        Ok(verifier) => {
                            info!(file = %file.display(), "CA of API servers loaded");
                            publish.send_replace(Some(verifier));
                        }
                        Err(why) => {
                            warn!(file = %file.display(), why, "CA of API servers can't be used, keeping the last one");
                        }
                    }
                    last = Some(read);
                }
                sleep(PERIOD).await;
            }
        });
        Self {
            cas,
            provider: ring::default_provider(),
        }
    }
}

fn verifier(pem: &Result<Vec<u8>, io::ErrorKind>) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let pem = pem.as_ref().map_err(ToString::to_string)?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| "it is no PEM text")?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    verifier.map_err(|error| error.to_string())
}

impl ClientCertVerifier for Callers {
    /// Clients choose their certificate by this list. It is empty: a client with several
    /// certificates knows which one is for this webhook.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verifier = self.cas.borrow().clone();
        let verifier =
            verifier.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        verifier.verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callers")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap fails the test.
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa,
        KeyPair,
    };

    use super::*;

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
        let callers = Callers::start(file.path().to_owned());
        let lets_in = |certificate: &CertificateDer<'_>| {
            callers
                .verify_client_cert(certificate, &[], UnixTime::now())
                .is_ok()
        };
        assert!(callers.client_auth_mandatory());
        let mut cas = callers.cas.clone();
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
