//! Paths of third-party programs. `control-plane/build.sh` builds the control plane on first use,
//! unless `KUBEBUILDER_ASSETS` names a directory. `tools/build.sh` builds Helm and promtool.
//! Third-party CRDs are downloaded on first use.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The directory of `etcd`, `kube-apiserver`, `kube-controller-manager` and `kubectl`.
///
/// The first call on a machine takes 5 to 10 minutes, later calls some milliseconds. Progress is
/// printed to stderr.
pub(crate) async fn directory() -> Result<PathBuf> {
    tokio::task::spawn_blocking(|| build("control-plane/build.sh", &[]))
        .await
        .context("the build of the control plane was interrupted")?
}

/// `kubectl`, without arguments and without a cluster.
pub(crate) async fn kubectl() -> Result<Command> {
    let mut command = Command::new(program(&directory().await?, "kubectl")?);
    command.env("KUBECONFIG", "/dev/null");
    Ok(command)
}

/// The path of a program. If it is missing, the error says how to fix that.
pub(crate) fn program(directory: &Path, name: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    if !path.is_file() {
        bail!(
            "{} has no {name}; without KUBEBUILDER_ASSETS it is built",
            directory.display()
        );
    }
    Ok(path)
}

/// `helm`, without arguments. It is built on first use, which takes some minutes. It reads and
/// writes none of the user's configuration.
pub(crate) fn helm() -> Result<Command> {
    let mut command = Command::new(build("tools/build.sh", &["helm"])?);
    // Repositories and plugins of the user must not influence the tests.
    for (variable, folder) in [
        ("HELM_CONFIG_HOME", "config"),
        ("HELM_CACHE_HOME", "cache"),
        ("HELM_DATA_HOME", "data"),
    ] {
        command.env(
            variable,
            std::env::temp_dir().join("mimeo-helm").join(folder),
        );
    }
    Ok(command)
}

/// The path of `promtool`. It is built on first use, which takes some minutes.
pub(crate) fn promtool() -> Result<PathBuf> {
    build("tools/build.sh", &["promtool"])
}

/// CRD files from the modules that `definitions/go.mod` pins, by their paths inside a module. The
/// first module that has a path wins.
pub(crate) fn definitions(paths: &[&str]) -> Result<Vec<PathBuf>> {
    let mut go = Command::new("go");
    go.args(["mod", "download", "-json"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("definitions"));
    let output = go.output().context("failed to run go")?;
    if !output.status.success() {
        bail!("{go:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let modules =
        serde_json::Deserializer::from_slice(&output.stdout).into_iter::<serde_json::Value>();
    let folders = modules.map(|module| {
        Ok(module?["Dir"]
            .as_str()
            .context("a module without a folder")?
            .into())
    });
    let folders: Vec<PathBuf> = folders.collect::<Result<_>>()?;
    let find = |path: &&str| {
        let files = folders.iter().map(|folder| folder.join(path));
        files
            .into_iter()
            .find(|file| file.is_file())
            .with_context(|| format!("no module has {path}"))
    };
    paths.iter().map(find).collect()
}

/// Runs a build script and returns the path that it prints.
fn build(script: &str, args: &[&str]) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let output = Command::new(&script)
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("failed to run {}", script.display()))?;
    if !output.status.success() {
        bail!(
            "{} failed ({}); its output is on stderr",
            script.display(),
            output.status
        );
    }
    let path = String::from_utf8(output.stdout).context("the path is not UTF-8")?;
    Ok(PathBuf::from(path.trim_end()))
}
