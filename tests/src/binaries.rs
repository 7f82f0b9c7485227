//! Where the control plane's programs are: built on first use by `control-plane/build.sh`, or `KUBEBUILDER_ASSETS`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The directory of `etcd`, `kube-apiserver`, `kube-controller-manager` and `kubectl`.
///
/// Takes 5 to 10 minutes the first time on a machine and some milliseconds from then on; progress goes to stderr.
pub(crate) async fn directory() -> Result<PathBuf> {
    tokio::task::spawn_blocking(build).await.context("the build of the control plane was interrupted")?
}

/// The program of that name, an error that says what to do if it is not there.
pub(crate) fn program(directory: &Path, name: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    if !path.is_file() {
        bail!("{} has no {name}; without KUBEBUILDER_ASSETS it is built", directory.display());
    }
    Ok(path)
}

fn build() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("control-plane/build.sh");
    let output = Command::new(&script)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("failed to run {}", script.display()))?;
    if !output.status.success() {
        bail!("{} failed ({}); its output is on stderr", script.display(), output.status);
    }
    let directory = String::from_utf8(output.stdout).context("the directory's path is not UTF-8")?;
    Ok(PathBuf::from(directory.trim_end()))
}
