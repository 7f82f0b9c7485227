//! Completion of `kubectl mimeo` in every shell that kubectl itself completes for. kubectl runs the
//! program `kubectl_complete-mimeo` with the words of the command line, and reads its protocol: a
//! candidate and its help on each line, then a colon and a sum of directives.
//! Source: <https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/>

use std::{
    ffi::{OsStr, OsString},
    fmt::Write as _,
    path::Path,
    sync::OnceLock,
    time::Duration,
};

use anyhow::Result;
use clap::{CommandFactory as _, FromArgMatches as _};
use clap_complete::engine::{CompletionCandidate, complete};
use mimeo_model::id::{RuleId, RuleKind};

use crate::{
    Flags,
    connect::{Connected, Connection},
    names, output,
    read::{Part, Reader, metadata, own_path},
};

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

/// The commands with a rule as their argument.
const TAKE_A_RULE: [&str; 4] = ["confirm", "grant", "held", "status"];
/// A user who has pressed Tab waits no longer for the names of rules.
const PATIENCE: Duration = Duration::from_secs(2);
/// The names of the rules in the cluster, as arguments. They are read first, because clap asks for
/// candidates while nothing can wait for the API server.
static RULES: OnceLock<Vec<String>> = OnceLock::new();

/// The candidates for a rule.
pub(crate) fn rules(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let all = RULES.get().into_iter().flatten();
    let begun = all.filter(|name| name.starts_with(&*current));
    begun.map(CompletionCandidate::new).collect()
}

/// The candidates for a Replication.
pub(crate) fn replications(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = rules(current);
    found.retain(|one| one.get_value().to_string_lossy().contains('/'));
    found
}

/// The names of the rules that the user may list, in the cluster of the words' flags.
async fn rule_names(line: &[OsString]) -> Result<Vec<String>> {
    // The last word is not finished, and others may be missing.
    let command = Flags::command().ignore_errors(true);
    let matches = command.try_get_matches_from(line)?;
    let connection = Connection::from_arg_matches(&matches)?;
    let connected = connection.connect().await?;
    let reader = connected.reader();
    let mut found = Vec::new();
    for kind in RuleKind::ALL {
        let mut names = list(&reader, kind, None).await;
        if names.is_empty() && kind == RuleKind::Replication {
            names = list(&reader, kind, Some(&connected)).await;
        }
        found.append(&mut names);
    }
    Ok(found)
}

/// The rules of a kind, in all namespaces or in the user's own. A user who may not list them gets
/// none.
async fn list(reader: &Reader, kind: RuleKind, own: Option<&Connected>) -> Vec<String> {
    let mut found = Vec::new();
    let namespace = own.map(|connected| &*connected.namespace);
    let path = own_path(namespace, kind.plural(), None);
    let listed = reader.list(&path, None, Part::Metadata, |object| {
        let meta = metadata(object.value()).unwrap_or_default();
        let id = RuleId {
            kind,
            namespace: meta.namespace.map(Into::into),
            name: meta.name.unwrap_or_default().into(),
        };
        found.push(names::argument(&id));
    });
    _ = listed.await;
    found
}

/// Prints the candidates for the last of the words.
pub(crate) async fn run(words: Vec<OsString>) -> Result<u8> {
    let mut line = vec![OsString::from("kubectl-mimeo")];
    line.extend(words);
    if line.len() == 1 {
        line.push(OsString::new());
    }
    let last = line.len() - 1;
    let takes_a_rule = line.iter().any(|word| {
        let word = word.to_str();
        word.is_some_and(|word| TAKE_A_RULE.contains(&word))
    });
    if takes_a_rule && !line[last].to_string_lossy().starts_with('-') {
        let names = tokio::time::timeout(PATIENCE, rule_names(&line[..last])).await;
        RULES.get_or_init(|| names.ok().and_then(Result::ok).unwrap_or_default());
    }
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
