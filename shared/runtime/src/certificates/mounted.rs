//! The certificate from mounted files, such as cert-manager's Secret in a volume.
//!
//! The files' contents are compared on a short period. The kubelet swaps a symbolic link two levels
//! above the files, so a watch of the files would miss the change. A watch of the folders would
//! depend on the file system.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use tokio::{sync::watch, time::sleep};
use tracing::{info, warn};

use super::{
    Polled, ServingMaterial,
    credential::{Facts, timestamp},
    offer,
};
use crate::tls::{self, Certificate};

const PERIOD: Duration = Duration::from_secs(2);

/// Reads `tls.crt`, `tls.key` and, if present, `ca.crt` from the folder, periodically, until all
/// receivers are dropped. Files that cannot be used (half written, for example) change nothing, and
/// one warning is logged.
pub fn start(folder: PathBuf) -> Certificate {
    let (publish, receiver) = watch::channel(None);
    tokio::spawn(async move {
        let mut files = Polled(None);
        while !publish.is_closed() {
            match files.changed(Contents::read(&folder).await).map(material) {
                None => {}
                Some(Ok(material)) => {
                    info!(folder = %folder.display(), not_after = %material.not_after, "certificate loaded");
                    offer(&publish, material);
                }
                Some(Err(error)) => {
                    let error = format!("{error:#}");
                    warn!(folder = %folder.display(), error, "certificate can't be used, \
                        keeping the last one");
                }
            }
            sleep(PERIOD).await;
        }
    });
    receiver
}

/// The contents of the files. No `Debug`, because they include the key.
#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    ca: Option<Vec<u8>>,
}

/// A file that cannot be read, and why.
type Unread = (&'static str, io::ErrorKind);

impl Contents {
    async fn read(folder: &Path) -> Result<Self, Unread> {
        let file = async |name: &'static str| {
            let read = tokio::fs::read(folder.join(name)).await;
            read.map_err(|error| (name, error.kind()))
        };
        let ca = match file("ca.crt").await {
            // cert-manager leaves the file empty if the issuer does not provide its CA.
            Ok(ca) => Some(ca).filter(|ca| !ca.is_empty()),
            Err((_, io::ErrorKind::NotFound)) => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            certificate: file("tls.crt").await?,
            key: file("tls.key").await?,
            ca,
        })
    }
}

fn material(read: &Result<Contents, Unread>) -> anyhow::Result<ServingMaterial> {
    let read = read.as_ref();
    let files = read.map_err(|(name, why)| anyhow!("failed to read {name}: {why}"))?;
    let certified_key = Arc::new(tls::certified_key(&files.certificate, &files.key)?);
    let (_, not_after) = certificates(&files.certificate, "tls.crt")?;
    let ca = files.ca.as_deref().map(|ca| certificates(ca, "ca.crt"));
    let ca_bundle = ca.transpose()?.map(|(text, _)| text.to_owned());
    Ok(ServingMaterial {
        certified_key,
        ca_bundle,
        not_after,
    })
}

/// The text of a file, and when its first certificate expires.
fn certificates<'a>(pem: &'a [u8], name: &str) -> anyhow::Result<(&'a str, Timestamp)> {
    let text = str::from_utf8(pem).ok();
    text.and_then(|text| Some((text, timestamp(Facts::parse(text)?.not_after))))
        .with_context(|| format!("{name} is no certificate in PEM"))
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
        fs::write(folder.join("tls.crt"), &bundle.serving.certificate).expect("written");
        fs::write(folder.join("tls.key"), bundle.serving.key.expose()).expect("written");
        fs::write(folder.join("ca.crt"), bundle.ca_bundle()).expect("written");
    }

    #[tokio::test]
    async fn a_swapped_link_is_noticed_once() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (one, two) = (bundle(), bundle());
        write(&root.path().join("1"), &one);
        write(&root.path().join("2"), &two);
        symlink("1", root.path().join("data")).expect("a link");
        let (mut files, data) = (Polled(None), root.path().join("data"));
        let mut changed = async || files.changed(Contents::read(&data).await).map(material);
        let first = changed().await.expect("new").expect("usable");
        assert_eq!(first.ca_bundle, Some(one.ca_bundle()));
        assert!(changed().await.is_none());

        symlink("2", root.path().join("swap")).expect("a link");
        fs::rename(root.path().join("swap"), root.path().join("data")).expect("swapped");
        let second = changed().await.expect("new").expect("usable");
        assert!(!second.is_same(&first));
        assert!(second.is_same(&two.material().expect("material")));
    }

    #[tokio::test]
    async fn a_half_written_pair_is_told_once_and_taken_when_whole() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (one, two) = (bundle(), bundle());
        let mut files = Polled(None);
        let mut changed = async || {
            files
                .changed(Contents::read(root.path()).await)
                .map(material)
        };
        let unread = "failed to read tls.crt";
        let error = changed().await.expect("new").expect_err("no file");
        assert!(error.to_string().starts_with(unread), "{error}");
        assert!(changed().await.is_none(), "told before");
        write(root.path(), &one);
        changed().await.expect("new").expect("usable");

        fs::write(root.path().join("tls.crt"), &two.serving.certificate).expect("written");
        let error = changed().await.expect("new").expect_err("not its key");
        assert!(!error.to_string().starts_with(unread), "{error}");
        assert!(changed().await.is_none(), "told before");
        write(root.path(), &two);
        changed().await.expect("new").expect("usable");

        fs::remove_file(root.path().join("ca.crt")).expect("removed");
        let without = changed().await.expect("new").expect("usable");
        assert_eq!(without.ca_bundle, None);
    }
}
