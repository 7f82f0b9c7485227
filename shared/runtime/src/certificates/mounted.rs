//! The certificate from mounted files, such as cert-manager's Secret in a volume.

use std::{io, path::Path, sync::Arc};

use anyhow::Context;
use jiff::Timestamp;

use super::{
    ServingMaterial,
    credential::{Facts, timestamp},
    files::{Content, bytes, poll},
};
use crate::tls::{self, Certificate};

/// Reads `tls.crt`, `tls.key` and, if present, `ca.crt` from the folder, periodically, until all
/// receivers are dropped. Until they can be used, there is the `first` certificate, if any.
pub fn start(folder: &Path, first: Option<Arc<ServingMaterial>>) -> Certificate {
    let files = ["tls.crt", "tls.key", "ca.crt"].map(|name| folder.join(name));
    poll(files, first, |contents| material(contents).map(Arc::new))
}

fn material([certificate, key, ca]: &[Content; 3]) -> anyhow::Result<ServingMaterial> {
    let (certificate, key) = (bytes(certificate, "tls.crt")?, bytes(key, "tls.key")?);
    let ca = match ca {
        Err(io::ErrorKind::NotFound) => None,
        // cert-manager leaves the file empty if the issuer does not provide its CA.
        ca => Some(bytes(ca, "ca.crt")?).filter(|ca| !ca.is_empty()),
    };
    let certified_key = Arc::new(tls::certified_key(certificate, key)?);
    let (_, not_after) = certificates(certificate, "tls.crt")?;
    let ca = ca.map(|ca| certificates(ca, "ca.crt")).transpose()?;
    Ok(ServingMaterial {
        certified_key,
        ca_bundle: ca.map(|(text, _)| text.to_owned()),
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

    use tokio::time::sleep;

    use super::*;
    use crate::certificates::{Bundle, Lifetimes, ServingNames, files::PERIOD};

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

    /// The next material, after the files have changed.
    async fn next(material: &mut Certificate) -> Arc<ServingMaterial> {
        material.changed().await.expect("read again and again");
        material.borrow_and_update().clone().expect("usable")
    }

    #[tokio::test(start_paused = true)]
    async fn a_swapped_link_is_noticed_once() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (one, two) = (bundle(), bundle());
        write(&root.path().join("1"), &one);
        write(&root.path().join("2"), &two);
        symlink("1", root.path().join("data")).expect("a link");
        let mut material = start(&root.path().join("data"), None);
        let first = next(&mut material).await;
        assert_eq!(first.ca_bundle, Some(one.ca_bundle()));
        sleep(PERIOD * 2).await;
        assert!(!material.has_changed().expect("read again and again"));

        symlink("2", root.path().join("swap")).expect("a link");
        fs::rename(root.path().join("swap"), root.path().join("data")).expect("swapped");
        let second = next(&mut material).await;
        let wanted = two.material().expect("material");
        assert_eq!(second.certified_key.cert, wanted.certified_key.cert);
        assert_eq!(second.ca_bundle, wanted.ca_bundle);
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_written_pair_changes_nothing_and_is_taken_when_whole() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (one, two) = (bundle(), bundle());
        let first = Arc::new(bundle().material().expect("material"));
        let mut material = start(root.path(), Some(first.clone()));
        let unusable = async |material: &Certificate| {
            sleep(PERIOD * 2).await;
            assert!(!material.has_changed().expect("read again and again"));
        };
        unusable(&material).await;
        let current = material.borrow().clone().expect("the first");
        assert!(Arc::ptr_eq(&current, &first));
        write(root.path(), &one);
        next(&mut material).await;

        fs::write(root.path().join("tls.crt"), &two.serving.certificate).expect("written");
        unusable(&material).await;
        write(root.path(), &two);
        next(&mut material).await;

        fs::remove_file(root.path().join("ca.crt")).expect("removed");
        assert_eq!(next(&mut material).await.ca_bundle, None);
    }
}
