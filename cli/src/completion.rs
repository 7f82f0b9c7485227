//! Completion of `kubectl mimeo` in every shell that kubectl itself completes for. kubectl runs the
//! program `kubectl_complete-mimeo` with the words of the command line, and reads its protocol: a
//! candidate and its help on each line, then a colon and a sum of directives.
//! Source: <https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/>

use std::{ffi::OsString, fmt::Write as _, path::Path};

use anyhow::Result;
use clap::CommandFactory as _;
use clap_complete::engine::complete;

use crate::{Flags, output};

/// The content of the program `kubectl_complete-mimeo`.
pub(crate) const SCRIPT: &str = "#!/bin/sh\nexec kubectl-mimeo __complete -- \"$@\"\n";

/// The explanation under `--help`.
pub(crate) const HELP: &str = "\
Once kubectl's own completion works, this adds the plugin's, in every shell:

  kubectl mimeo completion > /usr/local/bin/kubectl_complete-mimeo
  chmod +x /usr/local/bin/kubectl_complete-mimeo";

/// Directives of kubectl: write no space after the candidate, and complete no names of files.
const NO_SPACE: u8 = 2;
const NO_FILES: u8 = 4;

/// Prints the candidates for the last of the words.
pub(crate) fn run(words: Vec<OsString>) -> Result<u8> {
    let mut line = vec![OsString::from("kubectl-mimeo")];
    line.extend(words);
    if line.len() == 1 {
        line.push(OsString::new());
    }
    let last = line.len() - 1;
    let candidates = complete(&mut Flags::command(), line, last, Some(Path::new(".")))?;
    let mut text = String::new();
    let mut directives = NO_FILES;
    for candidate in candidates
        .iter()
        .filter(|candidate| !candidate.is_hide_set())
    {
        let value = candidate.get_value().to_string_lossy();
        if value.ends_with(['/', '=']) {
            directives |= NO_SPACE;
        }
        let help = candidate.get_help().map(ToString::to_string);
        let help = help.unwrap_or_default();
        let help = help.lines().next().unwrap_or_default();
        // Writing to a String never fails.
        _ = writeln!(text, "{value}\t{help}");
    }
    _ = writeln!(text, ":{directives}");
    output::write(&text)?;
    Ok(0)
}
