//! The configuration of TLS servers, with a certificate that may change while the server runs.
//!
//! Certificates come from [`crate::certificates`].

use std::{io, sync::Arc};

use anyhow::Context;
use jiff::Timestamp;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};
use tokio::{net::TcpStream, sync::watch};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Verifies client certificates by CAs that may change. Without a CA no client is accepted.
pub type Callers = watch::Receiver<Option<Arc<dyn ClientCertVerifier>>>;

/// Makes ring the process's TLS cryptography, unless another provider was chosen. Some libraries
/// ask the process for its provider.
pub fn install_provider() {
    // An error means that a provider was installed already.
    let _ = ring::default_provider().install_default();
}

/// Parses a certificate chain and its private key, both in PEM, and checks that they belong
/// together.
pub fn certified_key(certificate: &[u8], key: &[u8]) -> anyhow::Result<CertifiedKey> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    let chain = chain.context("the certificate is no PEM text")?;
    // The parser's own error could quote the key.
    let key = PrivateKeyDer::from_pem_slice(key).ok();
    let key = key.context("the private key is no PEM text")?;
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .context("the certificate and its private key can't be used")
}

/// The certificate that a server serves, and the CAs with which clients verify it.
///
/// `Debug` shows nothing secret: rustls prints only the algorithm of a private key.
#[derive(Clone, Debug)]
pub struct ServingMaterial {
    /// Certificate chain and key.
    pub certified_key: Arc<CertifiedKey>,
    /// CAs in PEM, for `caBundle`; `None` if another program maintains the `caBundle`.
    pub ca_bundle: Option<String>,
    /// When the certificate expires.
    pub not_after: Timestamp,
}

/// The newest serving certificate; `None` until there is one.
pub type Certificate = watch::Receiver<Option<Arc<ServingMaterial>>>;

/// The certificate that a TLS server presents, and the clients that it accepts. Both may change
/// while the server runs. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    /// The certificate. Handshakes fail while there is none.
    pub material: Certificate,
    /// The CAs of client certificates; `None` accepts every client.
    pub callers: Option<Callers>,
}

impl Tls {
    /// Accepts a connection with the certificate and the CAs of this moment.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(Arc::new(self.config().map_err(io::Error::other)?));
        acceptor.accept(stream).await
    }

    fn config(&self) -> Result<ServerConfig, &'static str> {
        let material = self.material.borrow().clone();
        let material = material.ok_or("there is no certificate yet")?;
        let key = Arc::clone(&material.certified_key);
        let callers = match &self.callers {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(callers) => callers
                .borrow()
                .clone()
                .ok_or("there is no CA of clients yet")?,
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|_| "the provider lacks cipher suites")?
            .with_client_cert_verifier(callers)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // API servers do not resume sessions, so the server keeps no sessions.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::{Bundle, Lifetimes, ServingNames};

    #[test]
    fn a_key_must_fit_its_certificate() {
        let names = ServingNames::new(["localhost"]);
        let issue = || {
            Bundle::issue(&names, &Lifetimes::default(), jiff::Timestamp::now()).expect("a bundle")
        };
        let (one, two) = (issue(), issue());
        let (certificate, key) = (
            one.serving.certificate.as_bytes(),
            one.serving.key.expose().as_bytes(),
        );
        assert!(certified_key(certificate, key).is_ok());
        let other = two.serving.key.expose().as_bytes();
        let cases: [(&[u8], &[u8], &str); 3] = [
            (
                certificate,
                other,
                "the certificate and its private key can't be used",
            ),
            (certificate, b"?", "the private key is no PEM text"),
            (b"?", key, "the certificate is no PEM text"),
        ];
        for (certificate, key, why) in cases {
            let error = certified_key(certificate, key).expect_err(why);
            assert_eq!(error.to_string(), why);
        }
    }
}
