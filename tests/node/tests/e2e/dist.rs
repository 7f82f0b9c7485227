//! `make dist`: what it packs can be installed, says its own checksums, and is the same every time.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use mimeo_node_tests::{IMAGE, Mimeo, Node, run, workspace};

use crate::people::People;

/// Runs `.ci/dist` into this target folder, with the image and the plugin that are built already.
async fn pack(node: &Node, target: &Path) -> Result<()> {
    let mut pack = Command::new(workspace().join(".ci/dist"));
    let plugin = mimeo_tests::locate("kubectl-mimeo")?;
    pack.env("IMAGE", IMAGE)
        .env("PLATFORMS", "linux/amd64")
        .env("DIST_IMAGE", node.image())
        .env("DIST_PLUGIN", plugin)
        .env("CARGO_TARGET_DIR", target);
    run(pack).await.map(drop)
}

#[tokio::test]
async fn a_packed_release_installs_and_is_packed_alike_every_time() -> Result<()> {
    let node = Node::get().await?;
    let version = env!("CARGO_PKG_VERSION");
    let target = tempfile::tempdir()?;
    pack(&node, target.path()).await?;
    let folder = target.path().join(format!("dist/mimeo-{version}"));
    let sums = fs::read_to_string(folder.join("SHA256SUMS"))?;
    for file in [
        format!("mimeo-{version}-linux-amd64.oci.tar"),
        format!("mimeo-{version}.tgz"),
        format!("kubectl-mimeo-{version}-linux-amd64.tar.gz"),
        "crds.yaml".into(),
        "install.yaml".into(),
        "krew.yaml".into(),
        "kubectl-mimeo.cdx.json".into(),
        "mimeo-reconciler.cdx.json".into(),
        "mimeo-webhook.cdx.json".into(),
        "RELEASE-NOTES.md".into(),
    ] {
        ensure!(sums.contains(&format!("  {file}\n")), "{file}: {sums}");
    }
    let mut check = Command::new("sha256sum");
    check
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(&folder);
    run(check).await?;
    let again = tempfile::tempdir()?;
    pack(&node, again.path()).await?;
    let second = again
        .path()
        .join(format!("dist/mimeo-{version}/SHA256SUMS"));
    ensure!(
        fs::read_to_string(second)? == sums,
        "packed again, it differs"
    );

    Mimeo::remove_any().await?;
    let mimeo = Mimeo::packed(&folder, version).await?;
    let people = People::settle(&mimeo.client, "dist").await?;
    let name = people.move_in().await?;
    people.have(std::slice::from_ref(&name), "first").await?;
    people.leave().await?;

    // The plugin of the archive, as krew unpacks it.
    let unpacked = tempfile::tempdir()?;
    let mut unpack = Command::new("tar");
    unpack
        .arg("-xzf")
        .arg(folder.join(format!("kubectl-mimeo-{version}-linux-amd64.tar.gz")))
        .current_dir(&unpacked);
    run(unpack).await?;
    let mut status = Command::new(unpacked.path().join("kubectl-mimeo"));
    status.arg("status").env("KUBECONFIG", node.kubeconfig());
    let status = run(status).await.context("the plugin of the archive")?;
    ensure!(status.contains("Reconciler: mimeo-reconciler-"), "{status}");
    mimeo.delete().await
}
