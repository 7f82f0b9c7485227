//! `make dist`: what it packs can be installed, says its own checksums, and is the same every time.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use mimeo_node_tests::{IMAGE, Mimeo, Node, run, workspace};
use serde_json::{Value, json};

use crate::people::People;

/// The folder from which krew would download.
const DOWNLOADS: &str = "https://downloads.example.com/mimeo/packed";

/// Runs `.ci/dist` into this target folder, with the image and the plugin that are built already.
async fn pack(node: &Node, target: &Path) -> Result<()> {
    let mut pack = Command::new(workspace().join(".ci/dist"));
    let plugin = mimeo_tests::locate("kubectl-mimeo")?;
    pack.env("IMAGE", IMAGE)
        .env("PLATFORMS", "linux/amd64")
        .env("DOWNLOADS", DOWNLOADS)
        .env("DIST_IMAGE", node.image())
        .env("DIST_PLUGIN", plugin)
        .env("CARGO_TARGET_DIR", target);
    run(pack).await.map(drop)
}

/// Checks that `krew.yaml` has each packed archive of the plugin with its platform, address and
/// checksum, and names a program in it.
async fn check_krew(folder: &Path, version: &str, sums: &str) -> Result<()> {
    let krew: Value = serde_yaml::from_str(&fs::read_to_string(folder.join("krew.yaml"))?)?;
    assert_eq!(krew["metadata"]["name"], "mimeo");
    assert_eq!(krew["spec"]["version"], format!("v{version}"));
    let mut archives = BTreeSet::new();
    for platform in krew["spec"]["platforms"]
        .as_array()
        .context("no platforms")?
    {
        let field = |pointer: &str| {
            let text = platform.pointer(pointer).and_then(Value::as_str);
            text.with_context(|| format!("no {pointer}: {platform}"))
        };
        let os = field("/selector/matchLabels/os")?;
        let arch = field("/selector/matchLabels/arch")?;
        let archive = format!("kubectl-mimeo-{version}-{os}-{arch}.tar.gz");
        let sum = format!("{}  {archive}\n", field("/sha256")?);
        ensure!(sums.contains(&sum), "{sum} is not among {sums}");
        assert_eq!(field("/uri")?, format!("{DOWNLOADS}/{archive}"));
        // krew unpacks all files, and links the program.
        assert_eq!(platform["files"], json!([{"from": "*", "to": "."}]));
        let mut list = Command::new("tar");
        list.arg("-tzf").arg(folder.join(&archive));
        let (list, bin) = (run(list).await?, field("/bin")?);
        ensure!(list.lines().any(|name| name == bin), "no {bin}: {list}");
        archives.insert(archive);
    }
    let packed = sums
        .lines()
        .filter_map(|line| Some(line.split_once("  ")?.1.to_owned()))
        .filter(|file| file.starts_with("kubectl-mimeo-") && file.ends_with(".tar.gz"));
    assert_eq!(archives, packed.collect());
    Ok(())
}

/// Installs the packed chart with its own values.
async fn install_chart(mimeo: &Mimeo, folder: &Path, version: &str) -> Result<()> {
    let chart = folder.join(format!("mimeo-{version}.tgz"));
    let chart = chart.display().to_string();
    mimeo
        .helm(&["install", "mimeo", &chart, "--create-namespace"])
        .await?;
    mimeo.ready().await?;
    mimeo
        .helm(&["uninstall", "mimeo", "--wait"])
        .await
        .map(drop)
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
    check_krew(&folder, version, &sums).await?;
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
    mimeo.delete().await?;

    install_chart(&mimeo, &folder, version).await?;
    Mimeo::remove_any().await
}
