//! The commands and log lines that the runbook tells an operator to check show the promised facts
//! on a real API server.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use mimeo_tests::{
    ControlPlane, Pair, Program, eventually, install_crd,
    scenario::{SOON, Setting, kubectl},
};

/// Returns the manifest that a section of the runbook pipes to kubectl.
fn manifest(section: &str) -> Result<tempfile::NamedTempFile> {
    let runbook = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/chart/RUNBOOK.md"),
    )?;
    let section = runbook
        .split("\n## ")
        .find(|part| part.starts_with(section))
        .context("no such section")?;
    let (_, rest) = section.split_once("<<'EOF'\n").context("no manifest")?;
    let (text, _) = rest
        .split_once("\n    EOF\n")
        .context("no end of the manifest")?;
    let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
    fs::write(file.path(), text)?;
    Ok(file)
}

#[tokio::test]
async fn the_probe_tells_whether_api_servers_reach_the_webhook() -> Result<()> {
    let mut setting = Setting::start(ControlPlane::builder(), Pair::builder()).await?;
    let file = manifest("MimeoWebhookUnreachable")?;
    let probe = [
        "create",
        "--dry-run=server",
        "-f",
        file.path().to_str().context("a path")?,
    ];
    let told = kubectl(&setting.control_plane, probe)?;
    ensure!(told.contains("Warning: Mimeo: "), "{told}");
    setting.pair.stop_webhooks().await?;
    match kubectl(&setting.control_plane, probe) {
        Ok(told) => bail!("nobody was there to take it: {told}"),
        Err(refused) => ensure!(
            refused.to_string().contains("failed calling webhook"),
            "{refused}"
        ),
    }
    let rules = kubectl(&setting.control_plane, ["get", "clusterreplications"])?;
    ensure!(rules.contains("No resources found"), "{rules}");
    // The alert uses two counts of the API server: the failed calls of a hook, and all calls of
    // that hook.
    kubectl(
        &setting.control_plane,
        ["create", "namespace", "let-through"],
    )?;
    let counted = kubectl(&setting.control_plane, ["get", "--raw", "/metrics"])?;
    let count = |metric: &str, labels: &[&str]| -> f64 {
        let metric = format!("apiserver_admission_webhook_{metric}{{");
        let lines = counted.lines().filter(|line| line.starts_with(&metric));
        let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
        lines
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    };
    let (rules, namespaces) = ("name=\"rules.mimeo.dev\"", "name=\"namespaces.mimeo.dev\"");
    let refused = count(
        "rejection_count",
        &[rules, "error_type=\"calling_webhook_error\""],
    );
    let opened = count("fail_open_count", &[namespaces]);
    for (failed, all) in [
        (refused, count("request_total", &[rules])),
        (opened, count("request_total", &[namespaces])),
    ] {
        ensure!(
            failed > 0.5 && all >= failed,
            "{failed} of {all}: {counted}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_program_logs_what_it_lacks_and_when_it_lacks_nothing() -> Result<()> {
    let control_plane = ControlPlane::builder()
        .controller_manager(false)
        .start()
        .await?;
    let client = control_plane.client().await?;
    for crd in mimeo_api::crds() {
        install_crd(&client, &crd).await?;
    }
    let user = control_plane.user("nobody-yet", &[])?;
    let reconciler =
        Program::new("mimeo-reconciler").env("KUBECONFIG", user.kubeconfig().display().to_string());
    let reconciler = reconciler
        .args(["--namespace", "default", "--ops-listen", "127.0.0.1:0"])
        .start()?;
    let told = || -> Result<Vec<String>> {
        let log = reconciler.log()?;
        let told = log
            .lines()
            .filter_map(|line| line.split_once("mimeo_runtime::readiness: "));
        Ok(told
            .map(|(_, said)| said.to_owned())
            .filter(|said| said.contains("ready"))
            .collect())
    };
    let missing =
        "ClusterReplications readable, definitions up to date, rules and namespaces listed";
    eventually(SOON, "what is missing", || async {
        Ok(told()?.first().map(|_| ()))
    })
    .await?;
    assert_eq!(
        told()?,
        [format!("not ready missing=\"{missing}\"")],
        "once"
    );
    let admin = [
        "create",
        "clusterrolebinding",
        "admin",
        "--clusterrole=cluster-admin",
        "--user=nobody-yet",
    ];
    kubectl(&control_plane, admin)?;
    eventually(SOON, "readiness", || async {
        let told = told()?;
        if told.last().is_some_and(|last| last == "ready") {
            Ok(Some(()))
        } else {
            bail!("{told:?}")
        }
    })
    .await
}
