//! The manifests as people install them: the API server takes them, the programs know their flags, and the webhook may do with
//! its configurations what it has to.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Pod};
use kube::{Api, api::PostParams};
use mimeo_tests::{ControlPlane, NAMESPACE, Pair, Program, eventually, scenario::SOON};
use serde::Deserialize;
use serde_json::{Value, json};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("failed to run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The objects of a folder, as kustomize composes them.
fn rendered(control_plane: &ControlPlane, folder: &Path) -> Result<Vec<Value>> {
    let text = run(control_plane.kubectl()?.arg("kustomize").arg(folder))?;
    serde_yaml::Deserializer::from_str(&text).map(|object| Ok(Value::deserialize(object)?)).collect()
}

/// A kustomization of base and components, as an operator would have one.
fn with_components() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    // Paths have to be relative.
    let up = "../".repeat(folder.path().canonicalize()?.components().count() - 1);
    let base = workspace().join("manifests/kustomize").canonicalize()?;
    let base = format!("{up}{}", base.strip_prefix("/")?.display());
    let components = ["strict", "guarded-labels", "restricted"].map(|name| format!("{base}/{name}"));
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [base], "components": components,
    });
    fs::write(folder.path().join("kustomization.yaml"), kustomization.to_string())?;
    Ok(folder)
}

#[tokio::test]
async fn an_api_server_takes_the_manifests_and_the_pods_that_follow() -> Result<()> {
    let control_plane = ControlPlane::builder().start().await?;
    let base = workspace().join("manifests/kustomize");
    let kubectl = |args: &[&str], folder: &Path| -> Result<String> {
        run(control_plane.kubectl()?.args(["apply", "--validate=strict"]).args(args).arg("-k").arg(folder))
    };
    kubectl(&[], &base)?;
    let again = kubectl(&["--dry-run=server"], &base)?;
    // kubectl replaces the selector of a PodDisruptionBudget each time.
    let changed = again.lines().filter(|line| !line.contains(" unchanged") && !line.contains("poddisruptionbudget"));
    let changed: Vec<&str> = changed.collect();
    ensure!(changed.is_empty(), "applied again, it changes {changed:?}");
    kubectl(&["--dry-run=server"], with_components()?.path())?;
    // The same in one file.
    let file = workspace().join("manifests/install.yaml");
    run(control_plane.kubectl()?.args(["apply", "--validate=strict", "--dry-run=server", "-f"]).arg(file))?;

    // Pod security, quota and priority class have their say about pods, not about Deployments.
    let pods: Api<Pod> = Api::namespaced(control_plane.client().await?, NAMESPACE);
    for deployment in rendered(&control_plane, &base)?.into_iter().filter(|object| object["kind"] == "Deployment") {
        let mut pod = deployment["spec"]["template"].clone();
        pod["metadata"]["generateName"] = "pod-".into();
        let params = PostParams { dry_run: true, ..PostParams::default() };
        pods.create(&params, &serde_json::from_value(pod)?).await?;
    }
    Ok(())
}

#[tokio::test]
async fn strict_is_said_by_flag_and_manifest_alike() -> Result<()> {
    let control_plane = ControlPlane::builder().controller_manager(false).start().await?;
    let objects = rendered(&control_plane, with_components()?.path())?;
    let find = |kind: &str, name: &str| {
        let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        found.with_context(|| format!("no {kind} {name}"))
    };
    let hook = &find("MutatingWebhookConfiguration", "mimeo")?["webhooks"][0];
    assert_eq!((&hook["name"], &hook["failurePolicy"]), (&json!("namespaces.mimeo.dev"), &json!("Fail")));
    let container = &find("Deployment", "mimeo-webhook")?["spec"]["template"]["spec"]["containers"][0];
    let env = container["env"].as_array().context("no env")?;
    ensure!(env.contains(&json!({"name": "MIMEO_NAMESPACES_FAILURE_POLICY", "value": "Fail"})), "{env:?}");
    Ok(())
}

/// Flags of a program with their variables, as `--help` tells them.
async fn flags(program: &str) -> Result<BTreeMap<String, String>> {
    let mut running = Program::new(program).arg("--help").quiet().start()?;
    running.wait(SOON).await?;
    let mut flags = BTreeMap::new();
    let mut last = None;
    for line in running.log()?.lines().map(str::trim) {
        if let Some((_, long)) = line.split_once("--").filter(|_| line.starts_with('-')) {
            let name = long.split([' ', '=']).next().unwrap_or_default();
            last = Some(name.to_owned());
            flags.insert(name.to_owned(), String::new());
        } else if let Some((_, env)) = line.split_once("[env: ") {
            let name = env.split(['=', ']']).next().unwrap_or_default();
            flags.insert(last.clone().context("a variable before any flag")?, name.to_owned());
        }
    }
    flags.retain(|name, _| !matches!(name.as_str(), "help" | "version"));
    ensure!(flags.len() > 5, "the help of {program} shows {flags:?}");
    Ok(flags)
}

#[tokio::test]
async fn flags_have_variables_and_the_deployments_and_the_readme_know_them() -> Result<()> {
    let control_plane = ControlPlane::builder().controller_manager(false).start().await?;
    let readme = fs::read_to_string(workspace().join("README.md"))?;
    let objects = rendered(&control_plane, with_components()?.path())?;
    for program in ["mimeo-webhook", "mimeo-reconciler"] {
        let flags = flags(program).await?;
        for (flag, variable) in &flags {
            ensure!(!variable.is_empty(), "--{flag} of {program} has no variable");
            ensure!(
                readme.contains(&format!("| `--{flag}` | `{variable}` |")),
                "README.md lacks --{flag} ({variable})"
            );
        }
        let deployment =
            objects.iter().find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == program);
        let container = &deployment.context("no Deployment")?["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["command"], json!([format!("/{program}")]));
        let args: Vec<String> = serde_json::from_value(container["args"].clone()).unwrap_or_default();
        for arg in &args {
            let name = arg.strip_prefix("--").and_then(|arg| arg.split('=').next()).context("no flag")?;
            ensure!(flags.contains_key(name), "{program} doesn't know {arg}");
        }
        for variable in container["env"].as_array().context("no env")? {
            let name = variable["name"].as_str().context("no name")?;
            ensure!(flags.values().any(|known| known == name), "{program} doesn't know {name}");
        }
        // The values are looked at before the help is shown.
        let mut parsed = Program::new(program).args(args).arg("--help").quiet().start()?;
        ensure!(parsed.wait(SOON).await?.success(), "{}", parsed.log()?);
    }
    Ok(())
}

#[tokio::test]
async fn the_hooks_get_their_owner_where_that_takes_the_right_to_delete_them() -> Result<()> {
    let plugins = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement";
    let control_plane = ControlPlane::builder().api_server_arg(plugins).start().await?;
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(control_plane.client().await?);
    // Installed before the webhook starts, as by the manifests: what it does then is an update.
    let installed = serde_json::from_value(json!({"metadata": {"name": "mimeo"}}))?;
    mutating.create(&PostParams::default(), &installed).await?;
    let _pair = Pair::builder().reconciler(false).shipped_rights().start(&control_plane).await?;
    eventually(SOON, "the owner", || async {
        let owners = mutating.get("mimeo").await?.metadata.owner_references.unwrap_or_default();
        if owners.iter().any(|owner| owner.name == "mimeo-webhook") { Ok(Some(())) } else { bail!("{owners:?}") }
    })
    .await
}
