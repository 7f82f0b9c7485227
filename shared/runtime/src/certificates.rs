//! Sources of serving certificates, and the check of client certificates.
//!
//! A serving certificate has one of three sources:
//!
//! - [`in_cluster`]: a Secret in which Mimeo issues and rotates it, by the rules of [`Bundle`].
//! - [`mounted`]: files in a folder, which another program keeps current.
//! - [`unverified`]: memory. No trusted CA has signed it.
//!
//! [`Trusted`] decides how long a former CA stays trusted. [`callers`] decides on the client
//! certificates that are accepted.

mod bundle;
pub mod callers;
mod credential;
mod files;
pub mod in_cluster;
pub mod mounted;
mod trusted;
pub mod unverified;

use std::{collections::BTreeSet, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use tokio::sync::watch;

pub use self::{
    bundle::{Bundle, Renewal},
    credential::{Credential, PrivateKeyPem, expiries},
    trusted::{Trusted, split},
};
use crate::{
    client::Clients,
    duration,
    shutdown::CancellationToken,
    tls::{Certificate, ServingMaterial},
};

/// Flags of the serving certificate.
#[derive(Args)]
#[command(next_help_heading = "Certificate")]
pub struct CertificateArgs {
    /// Folder with tls.crt, tls.key and, if Mimeo must keep its caBundle current, ca.crt; read
    /// again when they change. Default: a certificate that Mimeo issues and rotates in a Secret
    #[arg(long, env = "MIMEO_CERT_DIR", value_name = "FOLDER")]
    pub cert_dir: Option<PathBuf>,
    /// Secret, in Mimeo's namespace, of the certificate that Mimeo issues
    #[arg(
        long,
        env = "MIMEO_TLS_SECRET",
        value_name = "NAME",
        default_value = "mimeo-webhook-tls"
    )]
    pub tls_secret: String,
    /// How long certificates are valid.
    #[command(flatten)]
    pub lifetimes: Lifetimes,
}

impl CertificateArgs {
    /// Keeps a certificate current in the background, for as long as the returned receiver exists.
    /// The receiver has `None` until there is a certificate.
    ///
    /// The certificate comes from the folder if one is given. Else it is issued for `names` and
    /// kept in the Secret in `namespace`, which is not written after the shutdown.
    pub fn start(
        &self,
        clients: &Clients,
        namespace: &str,
        names: ServingNames,
        shutdown: CancellationToken,
    ) -> Certificate {
        match &self.cert_dir {
            Some(folder) => mounted::start(folder, None),
            None => in_cluster::start(
                clients,
                namespace,
                &self.tls_secret,
                names,
                self.lifetimes,
                shutdown,
            ),
        }
    }
}

/// The lifetimes of certificates. A serving certificate is never valid for longer than its CA.
#[derive(Clone, Copy, Args)]
pub struct Lifetimes {
    /// Validity of the CA that Mimeo issues (as in 365d, 12h); Mimeo replaces it after two thirds
    #[arg(long = "ca-validity", env = "MIMEO_CA_VALIDITY", value_name = "DURATION", default_value = "365d", value_parser = duration::parse)]
    pub ca: Duration,
    /// Validity of the serving certificate (as in 90d, 12h); Mimeo replaces it after two thirds
    #[arg(long = "certificate-validity", env = "MIMEO_CERTIFICATE_VALIDITY", value_name = "DURATION", default_value = "90d", value_parser = duration::parse)]
    pub serving: Duration,
    /// How long the next CA is trusted before it signs, and how long a former CA stays trusted, also
    /// one of --cert-dir (as in 1h, 30s)
    #[arg(long = "ca-overlap", env = "MIMEO_CA_OVERLAP", value_name = "DURATION", default_value = "1h", value_parser = duration::parse)]
    pub overlap: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        let days = |days: u64| Duration::from_hours(days * 24);
        Self {
            ca: days(365),
            serving: days(90),
            overlap: Duration::from_hours(1),
        }
    }
}

/// The names that a serving certificate is valid for: DNS names and IP addresses, sorted.
#[derive(Debug, PartialEq, Eq)]
pub struct ServingNames(BTreeSet<String>);

impl ServingNames {
    /// The names of these hosts. IP addresses are recognized, with or without the brackets of a
    /// URL.
    pub fn new<T: Into<String>>(hosts: impl IntoIterator<Item = T>) -> Self {
        Self(
            hosts
                .into_iter()
                .map(|host| canonical(&host.into()))
                .collect(),
        )
    }

    /// The names that API servers and cluster DNS use for a Service.
    pub fn for_service(namespace: &str, name: &str) -> Self {
        Self::new([
            format!("{name}.{namespace}.svc"),
            format!("{name}.{namespace}.svc.cluster.local"),
        ])
    }
}

fn canonical(host: &str) -> String {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    bare.parse::<IpAddr>()
        .map_or_else(|_| bare.to_ascii_lowercase(), |address| address.to_string())
}

type Publisher = watch::Sender<Option<Arc<ServingMaterial>>>;
