//! The certificate from mounted files, such as cert-manager's Secret in a volume.
//!
//! The files' contents are compared on a short period. The kubelet swaps a symbolic link two levels
//! above the files, so a watch of the files would miss the change. A watch of the folders would
//! depend on the file system.
//!
//! Replicas see a change up to a minute apart. Meanwhile some serve a certificate of the former CA
//! and others one of the present CA, but all share one `caBundle`. So a replica that has seen a new
//! CA trusts the former one for a while.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::{info, warn};

use super::{ServingMaterial, credential::not_after, offer};
use crate::tls::{self, TlsError};

const PERIOD: Duration = Duration::from_secs(2);

/// Reads `tls.crt`, `tls.key` and, if present, `ca.crt` from the folder, periodically, until all
/// receivers are dropped. Files that cannot be used (half written, for example) change nothing, and
/// one warning is logged. A former CA stays in the bundle for `overlap`.
pub fn start(folder: PathBuf, overlap: Duration) -> watch::Receiver<Option<Arc<ServingMaterial>>> {
    let (publish, receiver) = watch::channel(None);
    tokio::spawn(async move {
        let mut folder = Folder {
            path: folder,
            last: None,
        };
        let mut trusted = Trusted {
            overlap,
            present: Vec::new(),
            former: Vec::new(),
        };
        let mut current = None;
        while !publish.is_closed() {
            match folder.changed().await {
                Ok(None) => {}
                Ok(Some(material)) => {
                    info!(folder = %folder.path.display(), not_after = %material.not_after, "certificate loaded");
                    current = Some(material);
                }
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    warn!(folder = %folder.path.display(), %error, cause, "certificate can't be used, keeping the last one");
                }
            }
            if let Some(material) = current.clone() {
                let ca_bundle = material
                    .ca_bundle
                    .map(|ca| trusted.bundle(&ca, Instant::now()));
                offer(
                    &publish,
                    ServingMaterial {
                        ca_bundle,
                        ..material
                    },
                );
            }
            sleep(PERIOD).await;
        }
    });
    receiver
}

/// The CA certificates in the folder, and former ones.
struct Trusted {
    overlap: Duration,
    present: Vec<String>,
    /// Each former certificate with the time until which it is trusted.
    former: Vec<(String, Instant)>,
}

impl Trusted {
    /// All certificates to trust now that the folder has `ca`. Those of `ca` come first.
    fn bundle(&mut self, ca: &str, now: Instant) -> String {
        let certificates = ca
            .split_inclusive(END)
            .map(|pem| pem.trim().to_owned())
            .filter(|pem| pem.ends_with(END));
        let before = std::mem::replace(&mut self.present, certificates.collect());
        let present = &self.present;
        self.former.retain(|(pem, _)| !before.contains(pem));
        self.former
            .extend(before.into_iter().map(|pem| (pem, now + self.overlap)));
        self.former
            .retain(|(pem, until)| !present.contains(pem) && *until > now);
        let former = self.former.iter().map(|(pem, _)| pem);
        present
            .iter()
            .chain(former)
            .flat_map(|pem| [&**pem, "\n"])
            .collect()
    }
}

const END: &str = "-----END CERTIFICATE-----";

#[derive(Debug, thiserror::Error)]
enum MountedError {
    #[error("failed to read {0}")]
    Read(&'static str, #[source] io::Error),
    #[error("the files can't be used")]
    Unusable(#[from] TlsError),
    #[error("{0} is no certificate in PEM")]
    Unreadable(&'static str),
}

/// The contents of the files. No `Debug`, because they include the key.
#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    ca: Option<Vec<u8>>,
}

struct Folder {
    path: PathBuf,
    /// The last result of reading, usable or not: the contents, or the file that could not be read
    /// with its error.
    last: Option<Result<Contents, (&'static str, io::ErrorKind)>>,
}

impl Folder {
    /// The present material, if the files changed since the last call.
    async fn changed(&mut self) -> Result<Option<ServingMaterial>, MountedError> {
        let seen = read(&self.path).await;
        let (last, outcome) = match seen {
            Ok(contents) => (Ok(contents), None),
            Err((name, error)) => (
                Err((name, error.kind())),
                Some(MountedError::Read(name, error)),
            ),
        };
        if self.last.as_ref() == Some(&last) {
            return Ok(None);
        }
        let last = self.last.insert(last);
        match (last, outcome) {
            (Ok(contents), _) => contents.material().map(Some),
            (Err(_), Some(error)) => Err(error),
            (Err(_), None) => Ok(None),
        }
    }
}

impl Contents {
    fn material(&self) -> Result<ServingMaterial, MountedError> {
        let certified_key = Arc::new(tls::certified_key(&self.certificate, &self.key)?);
        let ca_bundle = self
            .ca
            .as_deref()
            .map(|ca| certificates(ca, "ca.crt"))
            .transpose()?;
        Ok(ServingMaterial {
            certified_key,
            ca_bundle,
            not_after: expiry(&self.certificate)?,
        })
    }
}

fn certificates(pem: &[u8], name: &'static str) -> Result<String, MountedError> {
    let text = str::from_utf8(pem).map_err(|_| MountedError::Unreadable(name))?;
    not_after(text).ok_or(MountedError::Unreadable(name))?;
    Ok(text.to_owned())
}

fn expiry(pem: &[u8]) -> Result<Timestamp, MountedError> {
    str::from_utf8(pem)
        .ok()
        .and_then(not_after)
        .ok_or(MountedError::Unreadable("tls.crt"))
}

async fn read(folder: &Path) -> Result<Contents, (&'static str, io::Error)> {
    let file = async |name: &'static str| {
        tokio::fs::read(folder.join(name))
            .await
            .map_err(|error| (name, error))
    };
    let ca = match file("ca.crt").await {
        // cert-manager leaves the file empty if the issuer does not provide its CA.
        Ok(ca) => Some(ca).filter(|ca| !ca.is_empty()),
        Err((_, error)) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    Ok(Contents {
        certificate: file("tls.crt").await?,
        key: file("tls.key").await?,
        ca,
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;
    use crate::certificates::{Bundle, Lifetimes, ServingNames};

    fn bundle() -> Bundle {
        Bundle::issue(
            &ServingNames::new(["localhost"]),
            &Lifetimes::default(),
            Timestamp::now(),
        )
        .expect("a bundle")
    }

    fn write(folder: &Path, bundle: &Bundle) {
        fs::create_dir_all(folder).expect("a folder");
        fs::write(folder.join("tls.crt"), bundle.serving().certificate()).expect("written");
        fs::write(folder.join("tls.key"), bundle.serving().key().expose()).expect("written");
        fs::write(folder.join("ca.crt"), bundle.ca_bundle()).expect("written");
    }

    #[tokio::test]
    async fn a_swapped_link_is_noticed_once() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (one, two) = (bundle(), bundle());
        write(&root.path().join("1"), &one);
        write(&root.path().join("2"), &two);
        symlink("1", root.path().join("data")).expect("a link");
        let mut folder = Folder {
            path: root.path().join("data"),
            last: None,
        };
        let first = folder.changed().await.expect("usable").expect("new");
        assert_eq!(first.ca_bundle, Some(one.ca_bundle()));
        assert!(folder.changed().await.expect("usable").is_none());

        symlink("2", root.path().join("swap")).expect("a link");
        fs::rename(root.path().join("swap"), root.path().join("data")).expect("swapped");
        let second = folder.changed().await.expect("usable").expect("new");
        assert!(!second.is_same(&first));
        assert!(second.is_same(&two.material().expect("material")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_former_ca_stays_trusted_for_the_overlap() {
        let start = Instant::now();
        let mut trusted = Trusted {
            overlap: Duration::from_mins(10),
            present: Vec::new(),
            former: Vec::new(),
        };
        let mut at = |minutes, names: &str| {
            let ca: String = names
                .split_terminator("")
                .filter(|name| !name.is_empty())
                .flat_map(|name| [name, END, "\n"])
                .collect();
            trusted
                .bundle(&ca, start + Duration::from_mins(minutes))
                .replace(&format!("{END}\n"), "")
        };
        assert_eq!((at(0, "a"), at(1, "a")), ("a".to_owned(), "a".to_owned()));
        assert_eq!(
            (at(20, "b"), at(21, "b")),
            ("ba".to_owned(), "ba".to_owned())
        );
        assert_eq!(at(25, "a"), "ab", "changed back");
        assert_eq!(at(26, "c"), "cba");
        assert_eq!(
            (at(35, "c"), at(37, "c")),
            ("ca".to_owned(), "c".to_owned())
        );
        assert_eq!(
            (at(50, "cd"), at(51, "d"), at(62, "d")),
            ("cd".to_owned(), "dc".to_owned(), "d".to_owned())
        );
    }

    #[tokio::test]
    async fn a_half_written_pair_is_told_once_and_taken_when_whole() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (one, two) = (bundle(), bundle());
        let mut folder = Folder {
            path: root.path().to_owned(),
            last: None,
        };
        assert!(matches!(
            folder.changed().await,
            Err(MountedError::Read("tls.crt", _))
        ));
        assert!(folder.changed().await.expect("told before").is_none());
        write(root.path(), &one);
        folder.changed().await.expect("usable").expect("new");

        fs::write(root.path().join("tls.crt"), two.serving().certificate()).expect("written");
        assert!(matches!(
            folder.changed().await,
            Err(MountedError::Unusable(_))
        ));
        assert!(folder.changed().await.expect("told before").is_none());
        write(root.path(), &two);
        folder.changed().await.expect("usable").expect("new");

        fs::remove_file(root.path().join("ca.crt")).expect("removed");
        let without = folder.changed().await.expect("usable").expect("new");
        assert_eq!(without.ca_bundle, None);
    }
}
