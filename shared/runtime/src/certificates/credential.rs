//! A certificate with its private key: how it is issued, and how its fields are read.

use std::{collections::BTreeSet, fmt, net::IpAddr, time::Duration};

use anyhow::Context;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;

use super::{
    Lifetimes, ServingNames,
    bundle::{CA_CRT, TLS_CRT},
};
use crate::tls;

/// Certificates are valid from this long before they are issued, for clients with slow clocks.
const BACKDATED: i64 = 3_600;

/// A private key in PEM. Only [`expose`](Self::expose) shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKeyPem(String);

impl PrivateKeyPem {
    /// The key itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PrivateKeyPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKeyPem(..)")
    }
}

/// A certificate with its private key. The two belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// The certificate in PEM.
    pub certificate: String,
    /// The private key.
    pub key: PrivateKeyPem,
    pub(super) facts: Facts,
}

impl Credential {
    /// When the certificate expires.
    pub fn not_after(&self) -> Timestamp {
        timestamp(self.facts.not_after)
    }

    pub(super) fn parse(certificate: String, key: String, what: &str) -> anyhow::Result<Self> {
        tls::certified_key(certificate.as_bytes(), key.as_bytes())
            .with_context(|| format!("{what} and its key can't be used"))?;
        let facts = Facts::parse(&certificate)
            .with_context(|| format!("{what} is no certificate in PEM"))?;
        Ok(Self {
            certificate,
            key: PrivateKeyPem(key),
            facts,
        })
    }
}

/// The fields of a certificate that Mimeo reads. Times are in seconds of the Unix epoch, which is
/// the precision of certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) issued: i64,
    pub(super) not_after: i64,
    pub(super) names: BTreeSet<String>,
    /// The names of its owner and of its issuer, in DER. Each CA of Mimeo has a name of its own.
    pub(super) subject: Vec<u8>,
    pub(super) issuer: Vec<u8>,
}

impl Facts {
    pub(super) fn parse(pem: &str) -> Option<Self> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
        let certificate = pem.parse_x509().ok()?;
        let validity = certificate.validity();
        let names = certificate.subject_alternative_name().ok().flatten();
        let names = names.iter().flat_map(|names| &names.value.general_names);
        Some(Self {
            issued: validity.not_before.timestamp().saturating_add(BACKDATED),
            not_after: validity.not_after.timestamp(),
            names: names.filter_map(name).collect(),
            subject: certificate.subject().as_raw().to_vec(),
            issuer: certificate.issuer().as_raw().to_vec(),
        })
    }

    /// When the certificate should be replaced: after two thirds of its life.
    pub(super) fn due(&self) -> i64 {
        let life = self.not_after.saturating_sub(self.issued).max(0);
        self.not_after.saturating_sub(life / 3)
    }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
        _ => None,
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// When each certificate in a text of PEM blocks expires. Leaves out other blocks.
pub fn expiries(pem: &[u8]) -> Vec<Timestamp> {
    let blocks = x509_parser::pem::Pem::iter_from_buffer(pem).filter_map(Result::ok);
    let expiry = |block: x509_parser::pem::Pem| {
        let certificate = block.parse_x509().ok()?;
        Some(timestamp(certificate.validity().not_after.timestamp()))
    };
    blocks.filter_map(expiry).collect()
}

pub(super) fn issue_ca(lifetimes: &Lifetimes, now: Timestamp) -> anyhow::Result<Credential> {
    let mut params = CertificateParams::default();
    // Each CA has a name of its own, so that a client does not treat the old CA as the issuer of
    // the new one's certificates.
    let name = format!("mimeo-ca@{}", now.as_second());
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) =
        validity(now.as_second(), seconds(lifetimes.ca), i64::MAX);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    Credential::parse(certificate, key.serialize_pem(), CA_CRT)
}

pub(super) fn issue_serving(
    ca: &Credential,
    names: &ServingNames,
    lifetimes: &Lifetimes,
    now: Timestamp,
) -> anyhow::Result<Credential> {
    let mut params = CertificateParams::new(names.0.iter().cloned().collect::<Vec<_>>())
        .context("failed to issue a certificate")?;
    let name = "mimeo-webhook";
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    (params.not_before, params.not_after) = validity(
        now.as_second(),
        seconds(lifetimes.serving),
        ca.facts.not_after,
    );
    // The parser's own error could quote the key.
    let ca_key = KeyPair::from_pem(&ca.key.0).ok();
    let ca_key = ca_key.context("the CA's private key can't be used")?;
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, ca_key)?;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Credential::parse(certificate, key.serialize_pem(), TLS_CRT)
}

fn validity(now: i64, length: i64, latest: i64) -> (OffsetDateTime, OffsetDateTime) {
    // The year 9999 is the last one that certificates can express. The library's own range ends
    // there, too.
    let time = |second: i64| {
        OffsetDateTime::from_unix_timestamp(second.clamp(0, 253_402_300_799))
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    };
    (
        time(now.saturating_sub(BACKDATED)),
        time(now.saturating_add(length).min(latest)),
    )
}

pub(super) fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

pub(super) fn timestamp(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_certificate_of_a_bundle_has_its_expiry() {
        let ca = issue_ca(&Lifetimes::default(), Timestamp::now()).expect("a CA");
        let pem = format!("{0}a comment\n{0}", ca.certificate);
        assert_eq!(expiries(pem.as_bytes()), [ca.not_after(); 2]);
        assert_eq!(expiries(ca.key.expose().as_bytes()), []);
        assert_eq!(expiries(b"nothing"), []);
    }
}
