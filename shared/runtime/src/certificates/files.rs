//! Files with certificates, which another program keeps current.
//!
//! The files' contents are compared on a short period. The kubelet swaps a symbolic link two levels
//! above the files, so a watch of the files would miss the change. A watch of the folders would
//! depend on the file system.

use std::{array, io, path::PathBuf, time::Duration};

use anyhow::anyhow;
use tokio::{sync::watch, time::sleep};
use tracing::{info, warn};

pub(super) const PERIOD: Duration = Duration::from_secs(2);

/// The content of a file, or why it can't be read. It may be a key, so it is never printed.
pub(super) type Content = Result<Vec<u8>, io::ErrorKind>;

/// Reads the files periodically, until all receivers are dropped. Publishes `first`, and the result
/// of `load` whenever a file has changed. Files that cannot be used (half written, for example) change
/// nothing, and one warning is logged.
pub(super) fn poll<const N: usize, T: Send + Sync + 'static>(
    files: [PathBuf; N],
    first: Option<T>,
    load: fn(&[Content; N]) -> anyhow::Result<T>,
) -> watch::Receiver<Option<T>> {
    let (publish, receiver) = watch::channel(first);
    tokio::spawn(async move {
        let mut last = None;
        while !publish.is_closed() {
            let mut contents = array::from_fn(|_| Ok(Vec::new()));
            for (content, file) in contents.iter_mut().zip(&files) {
                *content = tokio::fs::read(file).await.map_err(|error| error.kind());
            }
            if last.as_ref() != Some(&contents) {
                match load(&contents) {
                    Ok(loaded) => {
                        info!(?files, "certificates loaded");
                        publish.send_replace(Some(loaded));
                    }
                    Err(error) => {
                        let error = format!("{error:#}");
                        warn!(
                            ?files,
                            error, "certificates can't be used, keeping the last ones, if any"
                        );
                    }
                }
                last = Some(contents);
            }
            sleep(PERIOD).await;
        }
    });
    receiver
}

/// The bytes of a file with this name.
pub(super) fn bytes<'a>(content: &'a Content, name: &str) -> anyhow::Result<&'a [u8]> {
    let read = content.as_deref();
    read.map_err(|why| anyhow!("failed to read {name}: {why}"))
}
