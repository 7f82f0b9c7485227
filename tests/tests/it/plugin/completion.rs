//! Completion of `kubectl mimeo`, by kubectl's own completion.

use std::{env, fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use anyhow::{Result, ensure};
use mimeo_tests::{scenario::bare_kubectl, tenant::Tenant};
use serde_json::json;

use super::{finish, offline, path};
use crate::stages::PLAIN as STAGE;

/// The rules of the cluster that the flags name.
#[tokio::test]
async fn names_of_rules_are_completed_from_the_cluster() -> Result<()> {
    let scene = STAGE.scene("completion").await?;
    let tenant = Tenant::editor(&scene).await?;
    let spec = json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "db"}],
        "targets": [{"namespaces": [tenant.home], "copyName": "db-copy"}],
    });
    tenant.writes("replications", "copied", &spec).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    rule.create(&scene.client).await?;
    let control_plane = &scene.setting.control_plane;
    let replication = format!("{}/copied", tenant.home);
    let kubeconfig = control_plane.kubeconfig().display().to_string();
    for (words, found) in [
        (&["status", ""][..], vec![&scene.tag, &replication]),
        (&["held", ""], vec![&scene.tag, &replication]),
        (&["confirm", &tenant.home], vec![&replication]),
        (&["grant", ""], vec![&replication]),
        (&["status", "--context", ""], vec![]),
        (&["status", "-o", ""], vec![]),
    ] {
        // The flags may come before the words or after them.
        let flags = ["--kubeconfig", &kubeconfig];
        let args = ["__complete", "--"].into_iter().chain(flags);
        let args: Vec<&str> = args.chain(words.iter().copied()).collect();
        let output = offline(&args).await?;
        let lines: Vec<&str> = output.stdout.lines().collect();
        for name in [&scene.tag, &replication] {
            let line = format!("{name}\t");
            let there = lines.contains(&&*line);
            ensure!(
                there == found.contains(&name),
                "{words:?}: {}{}",
                output.stdout,
                output.stderr
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_completes_commands_flags_values_and_files() -> Result<()> {
    let script = offline(&["completion"]).await?;
    ensure!(script.code == 0, "{}", script.stderr);
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("kubectl_complete-mimeo");
    fs::write(&program, script.stdout)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    fs::create_dir(folder.path().join("rules"))?;
    let mut paths: Vec<PathBuf> = vec![folder.path().into()];
    paths.extend(env::split_paths(&path()?));
    let paths = env::join_paths(paths)?;
    for (words, candidate, directives) in [
        (&["sta"][..], "status\tShow the state of the rules", ":4"),
        (&["status", "--fa"], "--failed\tLeave out rules", ":4"),
        (&["-n", "team-a", "wh"], "where\tList the copies", ":4"),
        (&["check", "-o", "y"], "yaml\t", ":4"),
        (&["diff", "-f", "ru"], "rules/", ":6"),
        (&[""], "why\tExplain why", ":4"),
    ] {
        let mut command = bare_kubectl().await?;
        command.current_dir(folder.path()).env("PATH", &paths);
        command.args(["__complete", "mimeo"]).args(words);
        let output = finish(command)?;
        let mut lines = output.stdout.lines();
        ensure!(
            lines.any(|line| line.starts_with(candidate)),
            "{words:?}: {}{}",
            output.stdout,
            output.stderr
        );
        let last = output.stdout.lines().last();
        ensure!(last == Some(directives), "{words:?}: {}", output.stdout);
        let hidden = "__complete";
        ensure!(!output.stdout.contains(hidden), "{}", output.stdout);
    }
    Ok(())
}
