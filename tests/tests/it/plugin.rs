//! `kubectl mimeo`: the compiled program runs as a plugin of kubectl, on the real API server.

mod check;
mod completion;
mod copy;
mod diff;
mod feeds;
mod golden;
mod grant;
mod held;
mod reads;
mod render;
mod states;
mod status;
mod test;
mod ui;
mod why;

use std::{env, ffi::OsString, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use mimeo_tests::{
    ControlPlane, Program, User, eventually, locate, planted,
    scenario::{SOON, Scene, bare_kubectl},
};
use serde_json::Value;

/// `kubectl mimeo ARGS` without a cluster.
async fn offline(args: &[&str]) -> Result<Output> {
    let mut command = bare_kubectl().await?;
    command.env("PATH", path()?).arg("mimeo").args(args);
    finish(command)
}

/// The exit code of a command, its output, and the peak of its memory in MiB.
async fn measured(
    control_plane: &ControlPlane,
    args: &[&str],
) -> Result<(Option<i32>, String, u64)> {
    let kubeconfig = control_plane.kubeconfig().display().to_string();
    let mut running = Program::new("kubectl-mimeo")
        .env("KUBECONFIG", kubeconfig)
        .args(args.iter().copied())
        .start()?;
    let mut peak = 0;
    while running.is_alive()? {
        peak = running.peak_bytes().unwrap_or_default().max(peak);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ended = running.wait(SOON).await?;
    Ok((ended.code(), running.log()?, peak >> 20))
}

/// The exit code and both outputs of a command.
pub(crate) struct Output {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Output {
    /// The standard output as JSON.
    pub(crate) fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout)
            .with_context(|| format!("{}{}", self.stdout, self.stderr))
    }
}

/// The PATH, on which kubectl finds the plugin.
pub(crate) fn path() -> Result<OsString> {
    let program = locate("kubectl-mimeo")?;
    let mut path: Vec<PathBuf> = program.parent().map(Into::into).into_iter().collect();
    path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    Ok(env::join_paths(path)?)
}

/// `kubectl mimeo ARGS`, as the admin or as another user.
fn command(control_plane: &ControlPlane, user: Option<&User>, args: &[&str]) -> Result<Command> {
    let mut command = control_plane.kubectl()?;
    command.env("PATH", path()?).arg("mimeo").args(args);
    if let Some(user) = user {
        command.env("KUBECONFIG", user.kubeconfig());
    }
    Ok(command)
}

/// Runs `kubectl mimeo ARGS` to its end. No planted value may be in its output.
pub(crate) fn run(
    control_plane: &ControlPlane,
    user: Option<&User>,
    args: &[&str],
) -> Result<Output> {
    finish(command(control_plane, user, args)?)
}

fn finish(mut command: Command) -> Result<Output> {
    let output = command.output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    planted::look(format!("{command:?}"), &format!("{stdout}{stderr}"));
    Ok(Output {
        code: output.status.code().unwrap_or(-1),
        stdout,
        stderr,
    })
}

/// The exit code and the JSON of `kubectl mimeo why`, as the admin or as another user.
fn why(control_plane: &ControlPlane, user: Option<&User>, object: &str) -> Result<(i32, Value)> {
    let output = run(control_plane, user, &["why", object, "-o", "json"])?;
    Ok((output.code, output.json()?))
}

/// Waits until `kubectl mimeo why` gives a rule's answer this state. Returns the answer.
async fn wait_state(scene: &Scene<'_>, object: &str, rule: &str, state: &str) -> Result<Value> {
    eventually(SOON, format!("{object}: {state}"), || async {
        let (code, answer) = why(&scene.setting.control_plane, None, object)?;
        let rules = answer["rules"].as_array().cloned().unwrap_or_default();
        let correct = rules.iter().any(|one| one["state"] == "Synced");
        let own = rules.into_iter().find(|one| one["rule"] == rule);
        let own = own.with_context(|| format!("{answer:#}"))?;
        ensure!(own["state"] == state, "{answer:#}");
        ensure!((code == 0) == correct, "exit code {code}: {answer:#}");
        Ok(Some(own))
    })
    .await
}

/// The command that an answer of `kubectl mimeo why` has as its fix.
fn fix_command(answer: &Value) -> Result<&str> {
    let command = answer["fix"]["command"].as_str();
    command.with_context(|| format!("no command: {answer:#}"))
}

/// A shell with kubectl and the plugin, for a script.
pub(crate) fn bash(control_plane: &ControlPlane, script: &str) -> Result<Command> {
    let kubectl = control_plane.kubectl()?;
    let set = kubectl.get_envs();
    let script = format!("kubectl() {{ \"$KUBECTL\" \"$@\"; }}\n{script}");
    let mut bash = Command::new("bash");
    bash.args(["-c", &script])
        .envs(set.filter_map(|(name, value)| Some((name, value?))))
        .env("KUBECTL", kubectl.get_program())
        .env("PATH", path()?);
    Ok(bash)
}

/// Runs a command line that the plugin printed, in a shell. Returns its standard output. A command
/// that fails is run again, because a webhook may answer too late on a busy machine.
async fn shell(control_plane: &ControlPlane, line: &str) -> Result<String> {
    let script = format!("set -eo pipefail\n{line}");
    eventually(SOON, line, || async {
        let bash = bash(control_plane, &script)?;
        let Output {
            code,
            stdout,
            stderr,
        } = finish(bash)?;
        ensure!(code == 0, "{line}: {stdout}{stderr}");
        Ok(Some(stdout))
    })
    .await
}

#[track_caller]
fn says(answer: &Value, field: &str, words: &str) {
    // The fix of a state has a command, a note or both.
    let parts = [
        &answer[field],
        &answer[field]["command"],
        &answer[field]["note"],
    ];
    let text = parts
        .map(|part| part.as_str().unwrap_or_default())
        .join("\n");
    assert!(
        text.contains(words),
        "{words:?} is not in {field} of {answer:#}"
    );
}
