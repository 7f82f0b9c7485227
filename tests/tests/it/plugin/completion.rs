//! Completion of `kubectl mimeo`, by kubectl's own completion.

use std::{env, fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use anyhow::{Result, ensure};
use mimeo_tests::scenario::bare_kubectl;

use super::{finish, offline, path};

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
