//! Mimeo's own CA and serving certificate: how they are issued, and what is due when. No IO and no clock here; the
//! Secret is [`in_cluster`]'s, mounted files are [`mounted`]'s and what nobody verifies is [`unverified`]'s business; whose
//! certificates are asked for is [`callers`]'.
//!
//! # How a CA is replaced without anybody noticing
//!
//! Clients (API servers) trust the CAs in the `caBundle` of Mimeo's webhook configurations, and see a new bundle a
//! moment after it is published. So a CA is replaced in three steps, with the overlap time between them:
//!
//! | step | trusted (`caBundle`) | served certificate is signed by |
//! | --- | --- | --- |
//! | before | A | A |
//! | introduce | A, B | A |
//! | promote | A, B | B |
//! | finish | B | B |
//!
//! Whoever still has the bundle of the step before can verify what is served now, and whoever has the bundle of now can
//! verify a replica that still serves the certificate of the step before. The state is the bundle itself: a CA that
//! waits is one that was introduced when it was issued, a CA that retires does so since the serving certificate was
//! issued. So there is no second record that could disagree, and any replica can take the next step.

pub mod callers;
pub mod in_cluster;
pub mod mounted;
pub mod unverified;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use clap::Args;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;
use tokio::sync::watch;
use x509_parser::{extensions::GeneralName, extensions::ParsedExtension, prelude::X509Certificate};

use crate::{client::Clients, duration, tls, tls::TlsError};

/// Certificates are valid from this long before they are issued, for clients whose clocks are late.
const BACKDATED: i64 = 3_600;

/// Keys of the Secret's data. The first three are what `kubernetes.io/tls` and cert-manager use.
mod key {
    pub(super) const SERVING: &str = "tls.crt";
    pub(super) const SERVING_KEY: &str = "tls.key";
    pub(super) const CA: &str = "ca.crt";
    pub(super) const CA_KEY: &str = "ca.key";
    pub(super) const NEXT_CA: &str = "next-ca.crt";
    pub(super) const NEXT_CA_KEY: &str = "next-ca.key";
    pub(super) const OLD_CA: &str = "old-ca.crt";
    pub(super) const ALL: [&str; 7] = [SERVING, SERVING_KEY, CA, CA_KEY, NEXT_CA, NEXT_CA_KEY, OLD_CA];
}

/// Flags of the serving certificate.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Certificate")]
pub struct CertificateArgs {
    /// Folder with tls.crt, tls.key and, if Mimeo shall keep its caBundle current, ca.crt; re-read when they change.
    /// Default: a certificate that Mimeo issues and rotates in a Secret
    #[arg(long, env = "MIMEO_CERT_DIR", value_name = "FOLDER")]
    pub cert_dir: Option<PathBuf>,
    /// Secret of the certificate that Mimeo issues, in its namespace
    #[arg(long, env = "MIMEO_TLS_SECRET", value_name = "NAME", default_value = "mimeo-webhook-tls")]
    pub tls_secret: String,
    /// How long a CA is valid that Mimeo issues (as in 365d, 12h); it is replaced after two thirds of it
    #[arg(long, env = "MIMEO_CA_VALIDITY", value_name = "DURATION", default_value = "365d", value_parser = duration::parse)]
    pub ca_validity: Duration,
    /// How long a serving certificate is valid (as in 90d, 12h); it is replaced after two thirds of it
    #[arg(long, env = "MIMEO_CERTIFICATE_VALIDITY", value_name = "DURATION", default_value = "90d", value_parser = duration::parse)]
    pub certificate_validity: Duration,
    /// How long to wait between the three steps of replacing a CA, and how long a former ca.crt of the folder stays trusted
    /// (as in 1h, 30s)
    #[arg(long, env = "MIMEO_CA_OVERLAP", value_name = "DURATION", default_value = "1h", value_parser = duration::parse)]
    pub ca_overlap: Duration,
}

impl CertificateArgs {
    /// Keeps a certificate current in the background, for as long as anybody receives it: from the folder if one is
    /// given, else in the Secret in `namespace`, issued for `names`. `None` until there is one.
    pub fn start(
        &self,
        clients: &Clients,
        namespace: &str,
        names: ServingNames,
    ) -> watch::Receiver<Option<Arc<ServingMaterial>>> {
        match &self.cert_dir {
            Some(folder) => mounted::start(folder.clone(), self.ca_overlap),
            None => in_cluster::start(clients, namespace, &self.tls_secret, names, self.lifetimes()),
        }
    }

    fn lifetimes(&self) -> Lifetimes {
        Lifetimes { ca: self.ca_validity, serving: self.certificate_validity, overlap: self.ca_overlap }
    }
}

/// How long things last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// Validity of a CA.
    pub ca: Duration,
    /// Validity of a serving certificate, cut to its CA's.
    pub serving: Duration,
    /// Between the steps of replacing a CA.
    pub overlap: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        let days = |days: u64| Duration::from_hours(days * 24);
        Self { ca: days(365), serving: days(90), overlap: Duration::from_hours(1) }
    }
}

/// The names that a serving certificate is for: DNS names and IP addresses, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServingNames(BTreeSet<String>);

impl ServingNames {
    /// The given hosts; addresses are recognized, with or without the brackets of a URL.
    pub fn new<T: Into<String>>(hosts: impl IntoIterator<Item = T>) -> Self {
        Self(hosts.into_iter().map(|host| canonical(&host.into())).collect())
    }

    /// What an API server calls a Service by, and what cluster DNS does.
    pub fn for_service(namespace: &str, name: &str) -> Self {
        Self::new([format!("{name}.{namespace}.svc"), format!("{name}.{namespace}.svc.cluster.local")])
    }

    fn and(&self, others: &Self) -> Self {
        Self(self.0.union(&others.0).cloned().collect())
    }
}

fn canonical(host: &str) -> String {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().map_or_else(|_| bare.to_ascii_lowercase(), |address| address.to_string())
}

/// A private key in PEM. It shows itself to nobody who doesn't [`expose`](Self::expose) it.
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

/// What can be wrong with certificates.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A certificate couldn't be issued, as for a name that is none.
    #[error("failed to issue a certificate")]
    Issue(#[from] rcgen::Error),
    /// Something of the bundle isn't there.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A certificate can't be read.
    #[error("{0} is no certificate in PEM")]
    Unreadable(&'static str),
    /// A certificate and its key can't be used.
    #[error("{0} and its key can't be used")]
    Unusable(&'static str, #[source] TlsError),
}

/// A certificate with its private key; they fit each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    certificate: String,
    key: PrivateKeyPem,
    facts: Facts,
}

impl Credential {
    /// The certificate in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its private key.
    pub fn key(&self) -> &PrivateKeyPem {
        &self.key
    }

    /// When it expires.
    pub fn not_after(&self) -> Timestamp {
        timestamp(self.facts.not_after)
    }

    fn parse(certificate: String, key: String, what: &'static str) -> Result<Self, CertificateError> {
        tls::certified_key(certificate.as_bytes(), key.as_bytes())
            .map_err(|error| CertificateError::Unusable(what, error))?;
        let facts = Facts::parse(&certificate).ok_or(CertificateError::Unreadable(what))?;
        Ok(Self { certificate, key: PrivateKeyPem(key), facts })
    }

    fn certified_key(&self) -> Result<CertifiedKey, TlsError> {
        tls::certified_key(self.certificate.as_bytes(), self.key.0.as_bytes())
    }
}

/// What a certificate says of itself. Times are in seconds of the Unix epoch, as exact as certificates are.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Facts {
    issued: i64,
    not_after: i64,
    names: BTreeSet<String>,
    key_id: Option<Vec<u8>>,
    issuer_key_id: Option<Vec<u8>>,
}

impl Facts {
    fn parse(pem: &str) -> Option<Self> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
        let certificate = pem.parse_x509().ok()?;
        let validity = certificate.validity();
        let mut facts = Self {
            issued: validity.not_before.timestamp().saturating_add(BACKDATED),
            not_after: validity.not_after.timestamp(),
            names: names(&certificate),
            key_id: None,
            issuer_key_id: None,
        };
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => facts.key_id = Some(id.0.to_vec()),
                ParsedExtension::AuthorityKeyIdentifier(id) => {
                    facts.issuer_key_id = id.key_identifier.as_ref().map(|id| id.0.to_vec());
                }
                _ => {}
            }
        }
        Some(facts)
    }

    /// When it should be replaced: after two thirds of its life.
    fn due(&self) -> i64 {
        let life = self.not_after.saturating_sub(self.issued).max(0);
        self.issued.saturating_add(life / 3 * 2 + life % 3 * 2 / 3)
    }

    fn signed_by(&self, ca: &Self) -> bool {
        self.issuer_key_id.is_some() && self.issuer_key_id == ca.key_id
    }
}

fn names(certificate: &X509Certificate<'_>) -> BTreeSet<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return BTreeSet::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
        _ => None,
    };
    extension.value.general_names.iter().filter_map(name).collect()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Where the replacement of the CA stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Overlap {
    /// There is one CA.
    None,
    /// The next CA is trusted already and signs nothing yet.
    Introduced(Credential),
    /// The old CA (in PEM) signs nothing any more and is trusted still.
    Retiring(String),
}

/// The CA, the serving certificate it signed, and the state of the CA's replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    ca: Credential,
    serving: Credential,
    overlap: Overlap,
}

/// What is due for a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Nothing before this time.
    Keep {
        /// When to look again.
        until: Timestamp,
    },
    /// A new serving certificate from the same CA, for exactly the wanted names.
    RenewServing,
    /// A new serving certificate for the wanted names and those it has. Replicas with different flags would otherwise
    /// undo each other's.
    AddNames,
    /// A next CA is issued and trusted.
    IntroduceCa,
    /// The next CA takes over and signs a new serving certificate.
    PromoteCa,
    /// The old CA is no longer trusted.
    FinishOverlap,
    /// All is too late: a new CA and serving certificate at once.
    Reissue,
}

impl Bundle {
    /// A new CA, and a serving certificate for `names` signed by it.
    pub fn issue(names: &ServingNames, lifetimes: &Lifetimes, now: Timestamp) -> Result<Self, CertificateError> {
        let ca = issue_ca(lifetimes, now)?;
        let serving = issue_serving(&ca, names, lifetimes, now)?;
        Ok(Self { ca, serving, overlap: Overlap::None })
    }

    /// The CA that signs.
    pub fn ca(&self) -> &Credential {
        &self.ca
    }

    /// The serving certificate.
    pub fn serving(&self) -> &Credential {
        &self.serving
    }

    /// All CAs to be trusted, in PEM; the one that signs comes first.
    pub fn ca_bundle(&self) -> String {
        let other = match &self.overlap {
            Overlap::None => "",
            Overlap::Introduced(next) => &next.certificate,
            Overlap::Retiring(old) => old,
        };
        format!("{}{other}", self.ca.certificate)
    }

    /// What a server needs of it.
    pub fn material(&self) -> Result<ServingMaterial, TlsError> {
        let certified_key = Arc::new(self.serving.certified_key()?);
        Ok(ServingMaterial { certified_key, ca_bundle: Some(self.ca_bundle()), not_after: self.serving.not_after() })
    }

    /// What is due at `now`, for whoever wants to serve `names`.
    pub fn renewal(&self, names: &ServingNames, lifetimes: &Lifetimes, now: Timestamp) -> Renewal {
        let overlap = seconds(lifetimes.overlap);
        let (ca, serving, now) = (&self.ca.facts, &self.serving.facts, now.as_second());
        let step = match &self.overlap {
            Overlap::None => (Renewal::IntroduceCa, ca.due()),
            // The overlap can't outlast the CA that it replaces.
            Overlap::Introduced(next) => {
                (Renewal::PromoteCa, next.facts.issued.saturating_add(overlap).min(ca.not_after))
            }
            Overlap::Retiring(_) => (Renewal::FinishOverlap, serving.issued.saturating_add(overlap)),
        };
        let expired = match &self.overlap {
            Overlap::Introduced(next) => next.facts.not_after,
            Overlap::None | Overlap::Retiring(_) => ca.not_after,
        };
        if now >= expired {
            return Renewal::Reissue;
        }
        if now >= ca.not_after {
            return Renewal::PromoteCa;
        }
        if now >= serving.due() || !serving.signed_by(ca) {
            return Renewal::RenewServing;
        }
        if !names.0.is_subset(&serving.names) {
            return Renewal::AddNames;
        }
        if now >= step.1 {
            return step.0;
        }
        Renewal::Keep { until: timestamp(step.1.min(serving.due())) }
    }

    /// The bundle after that step.
    pub fn renewed(
        &self,
        step: Renewal,
        names: &ServingNames,
        lifetimes: &Lifetimes,
        now: Timestamp,
    ) -> Result<Self, CertificateError> {
        let serving = |ca: &Credential, names: &ServingNames| issue_serving(ca, names, lifetimes, now);
        let this = self.clone();
        Ok(match (step, &self.overlap) {
            (Renewal::Keep { .. }, _) => this,
            (Renewal::RenewServing, _) => Self { serving: serving(&self.ca, names)?, ..this },
            (Renewal::AddNames, _) => {
                let names = names.and(&ServingNames(self.serving.facts.names.clone()));
                Self { serving: serving(&self.ca, &names)?, ..this }
            }
            (Renewal::IntroduceCa, _) => Self { overlap: Overlap::Introduced(issue_ca(lifetimes, now)?), ..this },
            (Renewal::PromoteCa, Overlap::Introduced(next)) => Self {
                serving: serving(next, names)?,
                ca: next.clone(),
                overlap: Overlap::Retiring(self.ca.certificate.clone()),
            },
            (Renewal::FinishOverlap, _) => Self { overlap: Overlap::None, ..this },
            (Renewal::Reissue | Renewal::PromoteCa, _) => Self::issue(names, lifetimes, now)?,
        })
    }

    /// Reads it from a Secret's data.
    pub fn from_data(data: &BTreeMap<String, ByteString>) -> Result<Self, CertificateError> {
        let text = |name: &'static str| {
            let bytes = data.get(name).filter(|bytes| !bytes.0.is_empty()).ok_or(CertificateError::Missing(name))?;
            String::from_utf8(bytes.0.clone()).map_err(|_| CertificateError::Unreadable(name))
        };
        let credential = |certificate, key| Credential::parse(text(certificate)?, text(key)?, certificate);
        let overlap = if data.contains_key(key::NEXT_CA) {
            Overlap::Introduced(credential(key::NEXT_CA, key::NEXT_CA_KEY)?)
        } else if data.contains_key(key::OLD_CA) {
            let old = text(key::OLD_CA)?;
            Facts::parse(&old).ok_or(CertificateError::Unreadable(key::OLD_CA))?;
            Overlap::Retiring(old)
        } else {
            Overlap::None
        };
        let ca = credential(key::CA, key::CA_KEY)?;
        let serving = credential(key::SERVING, key::SERVING_KEY)?;
        Ok(Self { ca, serving, overlap })
    }

    /// Writes it to a Secret's data; keys that aren't the bundle's stay.
    pub fn write_to(&self, data: &mut BTreeMap<String, ByteString>) {
        data.retain(|name, _| !key::ALL.contains(&name.as_str()));
        let mut put = |name: &str, text: &str| data.insert(name.to_owned(), ByteString(text.as_bytes().to_vec()));
        put(key::CA, &self.ca.certificate);
        put(key::CA_KEY, &self.ca.key.0);
        put(key::SERVING, &self.serving.certificate);
        put(key::SERVING_KEY, &self.serving.key.0);
        match &self.overlap {
            Overlap::None => {}
            Overlap::Introduced(next) => {
                put(key::NEXT_CA, &next.certificate);
                put(key::NEXT_CA_KEY, &next.key.0);
            }
            Overlap::Retiring(old) => {
                put(key::OLD_CA, old);
            }
        }
    }
}

/// What a server needs: the certificate to serve and the CAs by which clients verify it.
#[derive(Clone)]
pub struct ServingMaterial {
    /// Certificate chain and key.
    pub certified_key: Arc<CertifiedKey>,
    /// CAs in PEM, for `caBundle`; `None` if somebody else takes care of that.
    pub ca_bundle: Option<String>,
    /// When the certificate expires.
    pub not_after: Timestamp,
}

impl ServingMaterial {
    /// Whether the other one would be served and trusted alike.
    pub fn is_same(&self, other: &Self) -> bool {
        self.certified_key.cert == other.certified_key.cert && self.ca_bundle == other.ca_bundle
    }
}

impl fmt::Debug for ServingMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingMaterial").field("not_after", &self.not_after).finish_non_exhaustive()
    }
}

/// Publishes it, unless it is what was published last.
fn offer(publish: &watch::Sender<Option<Arc<ServingMaterial>>>, material: ServingMaterial) {
    publish.send_if_modified(|current| {
        if current.as_ref().is_some_and(|current| current.is_same(&material)) {
            return false;
        }
        *current = Some(Arc::new(material));
        true
    });
}

/// When a certificate in PEM expires.
fn not_after(pem: &str) -> Option<Timestamp> {
    Facts::parse(pem).map(|facts| timestamp(facts.not_after))
}

fn issue_ca(lifetimes: &Lifetimes, now: Timestamp) -> Result<Credential, CertificateError> {
    let mut params = CertificateParams::default();
    // Not the same name twice, so that nobody takes the old one for the new one's issuer.
    params.distinguished_name = common_name(&format!("mimeo-ca@{}", now.as_second()));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = validity(now.as_second(), seconds(lifetimes.ca), i64::MAX);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    Credential::parse(certificate, key.serialize_pem(), key::CA)
}

fn issue_serving(
    ca: &Credential,
    names: &ServingNames,
    lifetimes: &Lifetimes,
    now: Timestamp,
) -> Result<Credential, CertificateError> {
    let mut params = CertificateParams::new(names.0.iter().cloned().collect::<Vec<_>>())?;
    params.distinguished_name = common_name("mimeo-webhook");
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    (params.not_before, params.not_after) = validity(now.as_second(), seconds(lifetimes.serving), ca.facts.not_after);
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, KeyPair::from_pem(&ca.key.0)?)?;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Credential::parse(certificate, key.serialize_pem(), key::SERVING)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn validity(now: i64, length: i64, latest: i64) -> (OffsetDateTime, OffsetDateTime) {
    // The year 9999 is the last one that certificates know; the library's own range ends there too.
    let time = |second: i64| {
        OffsetDateTime::from_unix_timestamp(second.clamp(0, 253_402_300_799)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    };
    (time(now.saturating_sub(BACKDATED)), time(now.saturating_add(length).min(latest)))
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn timestamp(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use rustls::{
        RootCertStore,
        client::{WebPkiServerVerifier, danger::ServerCertVerifier},
        crypto::ring,
        pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    };

    use super::*;

    const START: i64 = 1_800_000_000;
    const HOUR: i64 = 3_600;
    const DAY: i64 = 86_400;

    fn at(second: i64) -> Timestamp {
        timestamp(START + second)
    }

    fn service() -> ServingNames {
        ServingNames::for_service("mimeo-system", "mimeo-webhook")
    }

    fn issued() -> Bundle {
        Bundle::issue(&service(), &Lifetimes::default(), at(0)).expect("a bundle")
    }

    fn renewal(bundle: &Bundle, second: i64) -> Renewal {
        bundle.renewal(&service(), &Lifetimes::default(), at(second))
    }

    #[track_caller]
    fn step(bundle: &Bundle, want: Renewal, second: i64) -> Bundle {
        assert_eq!(renewal(bundle, second), want);
        bundle.renewed(want, &service(), &Lifetimes::default(), at(second)).expect("the next bundle")
    }

    /// Whether a client that trusts one bundle accepts the certificate of the other as `name`.
    fn verifies(trusted: &Bundle, served: &Bundle, name: &str, second: i64) -> bool {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(trusted.ca_bundle().as_bytes()) {
            roots.add(certificate.expect("PEM")).expect("a CA");
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().expect("roots");
        let shown = CertificateDer::from_pem_slice(served.serving.certificate.as_bytes()).expect("PEM");
        let now = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(START + second).expect("after 1970")));
        let name = ServerName::try_from(name).expect("a name");
        verifier.verify_server_cert(&shown, &[], &name, &[], now).is_ok()
    }

    #[test]
    fn serving_certificates_hold_for_their_names_and_time() {
        let names = ServingNames::new(["Localhost", "127.0.0.1", "[::1]"]);
        let bundle = Bundle::issue(&names, &Lifetimes::default(), at(0)).expect("a bundle");
        for name in ["localhost", "127.0.0.1", "::1"] {
            assert!(verifies(&bundle, &bundle, name, 0), "{name}");
        }
        assert!(!verifies(&bundle, &bundle, "example.org", 0));
        assert!(!verifies(&issued(), &bundle, "localhost", 0), "another CA");
        assert!(verifies(&bundle, &bundle, "localhost", -HOUR + 1), "a client whose clock is late");
        assert!(!verifies(&bundle, &bundle, "localhost", -HOUR - 1));
        assert!(verifies(&bundle, &bundle, "localhost", 90 * DAY - 1));
        assert!(!verifies(&bundle, &bundle, "localhost", 90 * DAY + 1));
        assert!(Bundle::issue(&ServingNames::new(["ä"]), &Lifetimes::default(), at(0)).is_err());
    }

    #[test]
    fn a_serving_certificate_is_renewed_after_two_thirds_by_the_same_ca() {
        let first = issued();
        assert_eq!(renewal(&first, 0), Renewal::Keep { until: at(60 * DAY) });
        assert_eq!(renewal(&first, 60 * DAY - 1), Renewal::Keep { until: at(60 * DAY) });
        let second = step(&first, Renewal::RenewServing, 60 * DAY);
        assert_eq!(renewal(&second, 60 * DAY), Renewal::Keep { until: at(120 * DAY) });
        assert_eq!(second.ca, first.ca);
        assert_ne!(second.serving.key, first.serving.key);
        assert!(verifies(&first, &second, "mimeo-webhook.mimeo-system.svc", 60 * DAY));
        // Even one that slept through it all.
        step(&first, Renewal::RenewServing, 200 * DAY);
    }

    #[test]
    fn other_names_are_added_once_and_dropped_by_the_next_renewal() {
        let (mine, yours) = (ServingNames::new(["10.0.0.1"]), service());
        let lifetimes = Lifetimes::default();
        let first = issued();
        assert_eq!(first.renewal(&mine, &lifetimes, at(HOUR)), Renewal::AddNames);
        let both = first.renewed(Renewal::AddNames, &mine, &lifetimes, at(HOUR)).expect("the next bundle");
        for names in [&mine, &yours] {
            assert!(matches!(both.renewal(names, &lifetimes, at(HOUR)), Renewal::Keep { .. }));
        }
        assert!(verifies(&first, &both, "10.0.0.1", HOUR));
        assert!(verifies(&first, &both, "mimeo-webhook.mimeo-system.svc", HOUR));
        let later = both.renewed(Renewal::RenewServing, &mine, &lifetimes, at(61 * DAY)).expect("the next bundle");
        assert_eq!(ServingNames(later.serving.facts.names), mine);
    }

    /// A year and a half, hour by hour: whoever has the bundle of this step or the one before accepts what is served in
    /// this step or was served in the one before.
    #[test]
    fn no_client_notices_a_rotation() {
        let name = "mimeo-webhook.mimeo-system.svc";
        let mut history = vec![issued()];
        let mut steps = Vec::new();
        for hour in 0..(550 * 24) {
            let second = hour * HOUR;
            let now = history.last().expect("never empty");
            let due = renewal(now, second);
            if matches!(due, Renewal::Keep { .. }) {
                continue;
            }
            let next = step(now, due, second);
            assert!(matches!(renewal(&next, second), Renewal::Keep { .. }), "one step at a time");
            for (trusted, served) in [(now, &next), (&next, now), (&next, &next)] {
                assert!(verifies(trusted, served, name, second), "{due:?} in hour {hour}");
            }
            history.push(next);
            steps.push(due);
        }
        assert!(!steps.contains(&Renewal::Reissue));
        let rotation = [Renewal::IntroduceCa, Renewal::PromoteCa, Renewal::FinishOverlap];
        let rotations: Vec<_> = steps.iter().filter(|step| **step != Renewal::RenewServing).copied().collect();
        assert_eq!(rotations, [rotation, rotation].concat());
    }

    #[test]
    fn the_steps_of_a_rotation_keep_their_distance() {
        let lifetimes = Lifetimes { serving: Duration::from_hours(365 * 24), ..Lifetimes::default() };
        let names = service();
        let due = 365 * DAY * 2 / 3;
        let first = Bundle::issue(&names, &lifetimes, at(0)).expect("a bundle");
        let first = first.renewed(Renewal::RenewServing, &names, &lifetimes, at(due)).expect("renewed");
        let advance = |bundle: &Bundle, step, second| {
            assert_eq!(bundle.renewal(&names, &lifetimes, at(second)), step);
            let next = bundle.renewed(step, &names, &lifetimes, at(second)).expect("the next bundle");
            assert_eq!(
                next.renewal(&names, &lifetimes, at(second + HOUR - 1)),
                Renewal::Keep { until: at(second + HOUR) }
            );
            next
        };
        let introduced = advance(&first, Renewal::IntroduceCa, due);
        assert_eq!(introduced.serving, first.serving);
        let promoted = advance(&introduced, Renewal::PromoteCa, due + HOUR);
        assert_eq!(promoted.renewal(&names, &lifetimes, at(due + 2 * HOUR)), Renewal::FinishOverlap);
        let finished = promoted.renewed(Renewal::FinishOverlap, &names, &lifetimes, at(due + 2 * HOUR)).expect("done");
        assert_eq!(finished.ca_bundle(), finished.ca.certificate);
        assert_ne!(finished.ca, first.ca);
    }

    #[test]
    fn what_expired_is_replaced_at_once() {
        let first = issued();
        let again = step(&first, Renewal::Reissue, 365 * DAY);
        assert!(verifies(&again, &again, "mimeo-webhook.mimeo-system.svc", 365 * DAY));
        let introduced = step(&first, Renewal::RenewServing, 364 * DAY);
        let introduced = step(&introduced, Renewal::IntroduceCa, 364 * DAY);
        step(&introduced, Renewal::PromoteCa, 366 * DAY);
        step(&introduced, Renewal::Reissue, 800 * DAY);
    }

    #[test]
    fn a_serving_certificate_never_outlives_its_ca() {
        let lifetimes = Lifetimes { ca: Duration::from_mins(10), ..Lifetimes::default() };
        let bundle = Bundle::issue(&service(), &lifetimes, at(0)).expect("a bundle");
        assert_eq!(bundle.serving.not_after(), at(600));
    }

    #[test]
    fn a_secret_holds_every_state_and_keeps_what_is_not_ours() {
        let first = issued();
        let introduced = first.renewed(Renewal::IntroduceCa, &service(), &Lifetimes::default(), at(DAY)).expect("next");
        let promoted =
            introduced.renewed(Renewal::PromoteCa, &service(), &Lifetimes::default(), at(DAY)).expect("next");
        let mut data = BTreeMap::from([("other".to_owned(), ByteString(b"x".to_vec()))]);
        for bundle in [&first, &introduced, &promoted, &first] {
            bundle.write_to(&mut data);
            assert_eq!(&Bundle::from_data(&data).expect("readable"), bundle);
            assert!(data.contains_key("other"));
        }
    }

    #[test]
    fn a_broken_secret_is_refused_by_the_key_that_is_wrong() {
        let broken: [(&str, Option<&str>); 5] = [
            ("tls.crt", None),
            ("tls.key", Some("")),
            ("ca.key", Some("?")),
            ("ca.crt", Some("?")),
            ("old-ca.crt", Some("?")),
        ];
        for (name, value) in broken {
            let mut data = BTreeMap::new();
            issued().write_to(&mut data);
            match value {
                None => data.remove(name),
                Some(value) => data.insert(name.to_owned(), ByteString(value.as_bytes().to_vec())),
            };
            assert!(Bundle::from_data(&data).is_err(), "{name}");
        }
        let (mut one, mut two) = (BTreeMap::new(), BTreeMap::new());
        issued().write_to(&mut one);
        issued().write_to(&mut two);
        one.insert(key::CA_KEY.to_owned(), two[key::CA_KEY].clone());
        assert!(matches!(Bundle::from_data(&one), Err(CertificateError::Unusable("ca.crt", _))));
    }

    #[test]
    fn keys_are_not_shown() {
        let bundle = issued();
        let shown = format!("{bundle:?} {:?}", bundle.material().expect("material"));
        assert!(!shown.contains("PRIVATE"), "{shown}");
    }
}
