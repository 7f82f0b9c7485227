//! `kubectl mimeo ui`: it finds the leader, starts `kubectl port-forward`, and opens the page. The
//! tests have no nodes, so a script stands in for `kubectl`.

use std::{env, fs, os::unix::fs::PermissionsExt as _, path::Path};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use mimeo_tests::{
    ControlPlane, Program, eventually,
    scenario::{SOON, apply, delete, wait_gone},
};
use serde_json::{Value, json};

use super::{Output, command, run};
use crate::stages::{PLAIN, WEBHOOK};

const MIMEO: &str = "mimeo-system";

/// Writes an executable script.
fn script(path: &Path, lines: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{lines}\n"))?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// Runs the command with scripts in place of `kubectl` and `xdg-open`.
fn ui(control_plane: &ControlPlane, folder: &Path, display: &str, args: &[&str]) -> Result<Output> {
    let mut command = command(control_plane, None, &[&["ui"], args].concat())?;
    let path = command.get_envs().find(|(name, _)| *name == "PATH");
    let path = path.and_then(|(_, value)| value).context("no PATH")?;
    let path: Vec<_> = std::iter::once(folder.into())
        .chain(env::split_paths(path))
        .collect();
    let output = command
        .env("KUBECTL", folder.join("forward"))
        .env("PATH", env::join_paths(path)?)
        .env("DISPLAY", display)
        .env_remove("WAYLAND_DISPLAY")
        .output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Output {
        code: output.status.code().unwrap_or(-1),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    })
}

/// Replaces the pod with the leader's name.
async fn pod(pods: &Api<Pod>, client: &kube::Client, name: &str, env: &Value) -> Result<()> {
    if pods.get_opt(name).await?.is_some() {
        delete(pods, name).await?;
        wait_gone(pods.clone(), name).await?;
    }
    let container = json!({"name": "reconciler", "image": "localhost/none", "env": env});
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": MIMEO, "name": name},
        "spec": {"containers": [container], "automountServiceAccountToken": false},
    });
    // The service account of a new namespace may not exist yet.
    eventually(SOON, "the pod", || async {
        apply(client, &object).await?;
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn the_page_of_the_leader_is_forwarded_and_opened() -> Result<()> {
    let scene = PLAIN.scene("ui").await?;
    let control_plane = &scene.setting.control_plane;
    let leader = &scene.setting.pair.reconciler.as_ref().context("none")?.name;
    let folder = tempfile::tempdir()?;
    let read = |name: &str| fs::read_to_string(folder.path().join(name));
    let at = |name: &str| folder.path().join(name).display().to_string();
    let forward = format!(
        "echo \"$@\" > {}\necho 'Forwarding from 127.0.0.1:41234 -> 8081'\necho 'Handling connection for 41234'",
        at("args")
    );
    script(&folder.path().join("forward"), &forward)?;
    script(
        &folder.path().join("xdg-open"),
        &format!("echo \"$1\" > {}", at("url")),
    )?;

    let output = ui(control_plane, folder.path(), ":0", &[])?;
    assert_eq!(output.code, 2);
    let told = format!("the leader {leader} is no pod of namespace {MIMEO}");
    assert!(output.stderr.contains(&told), "{}", output.stderr);

    let pods = Api::<Pod>::namespaced(scene.client.clone(), MIMEO);
    pod(&pods, &scene.client, leader, &json!([])).await?;
    let output = ui(control_plane, folder.path(), ":0", &[])?;
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.contains("reconciler.ui=true"),
        "{}",
        output.stderr
    );

    let env = json!([{"name": "MIMEO_UI", "value": "true"}]);
    pod(&pods, &scene.client, leader, &env).await?;
    let output = ui(control_plane, folder.path(), ":0", &[])?;
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert_eq!(output.stdout, "http://localhost:41234/ui/\n");
    let expected = format!("--namespace {MIMEO} port-forward pod/{leader} :ops\n");
    assert_eq!(read("args")?, expected);
    eventually(SOON, "the opener", || async {
        let url = read("url").unwrap_or_default();
        Ok((url == output.stdout).then_some(()))
    })
    .await?;

    // Without a display, and with the connection flags.
    fs::remove_file(at("url"))?;
    let flags = [
        "--as",
        "ann",
        "--as-group=system:masters",
        "--port=8080",
        "-n",
        "other",
    ];
    let output = ui(control_plane, folder.path(), "", &flags)?;
    assert_eq!(output.code, 0, "{}", output.stderr);
    let forward = format!("--namespace {MIMEO} port-forward pod/{leader} 8080:ops\n");
    assert_eq!(
        read("args")?,
        format!("--as ann --as-group system:masters {forward}")
    );
    let output = ui(control_plane, folder.path(), ":0", &["--no-open"])?;
    assert_eq!(output.code, 0);
    ensure!(read("url").is_err(), "it was opened");

    // The end of this program ends kubectl.
    let forward = format!(
        "echo $$ > {}\necho 'Forwarding from 127.0.0.1:41234 -> 8081'\nexec sleep 600",
        at("pid")
    );
    script(&folder.path().join("forward"), &forward)?;
    let kubeconfig = control_plane.kubeconfig().display().to_string();
    let mut running = Program::new("kubectl-mimeo")
        .env("KUBECONFIG", kubeconfig)
        .env("KUBECTL", at("forward"))
        .args(["ui", "--no-open"])
        .start()?;
    eventually(SOON, "the URL", || async {
        Ok(running.log()?.contains("localhost:41234").then_some(()))
    })
    .await?;
    assert_eq!(running.stop(SOON).await?.code(), Some(0));
    let process = Path::new("/proc").join(read("pid")?.trim());
    ensure!(!process.exists(), "kubectl runs on");

    // Kubectl fails, or is not there.
    script(
        &folder.path().join("forward"),
        "echo 'unable to listen' >&2; exit 1",
    )?;
    let output = ui(control_plane, folder.path(), "", &[])?;
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.contains("ended before it listened"),
        "{}",
        output.stderr
    );
    fs::remove_file(folder.path().join("forward"))?;
    let output = ui(control_plane, folder.path(), "", &[])?;
    assert!(
        output.stderr.contains("name it in KUBECTL"),
        "{}",
        output.stderr
    );
    delete(&pods, leader).await?;
    Ok(())
}

#[tokio::test]
async fn without_a_leader_there_is_no_page() -> Result<()> {
    let scene = WEBHOOK.scene("ui-none").await?;
    let control_plane = &scene.setting.control_plane;
    let output = run(control_plane, None, &["ui"])?;
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.contains("no reconciler leads"),
        "{}",
        output.stderr
    );
    let user = control_plane.user(&scene.tag, &[])?;
    let output = run(control_plane, Some(&user), &["ui"])?;
    assert_eq!(output.code, 2);
    let told = "Can't read the reconciler's Lease in namespace mimeo-system";
    assert!(output.stderr.contains(told), "{}", output.stderr);
    let output = run(control_plane, None, &["ui", "--port", "many"])?;
    assert_eq!(output.code, 2);
    Ok(())
}
