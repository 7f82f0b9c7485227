//! `kubectl mimeo check`: whether Mimeo is installed and works.
//!
//! Each check reads, or asks the API server for a dry run. None of them changes anything.

mod crds;
mod permissions;
mod programs;
mod watches;
mod webhook;

use anyhow::{Result, bail};
use clap::Args;
use mimeo_runtime::call::encode;
use serde::Serialize;

use crate::{
    connect::Connected,
    output::{Cell, Format, Tone, line, print, table},
    picture::{Picture, Scope},
    read::{Part, ReadError, Reader},
    state::Fix,
};

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {}

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Verdict {
    Ok,
    /// It works, and a person should look at it.
    Warning,
    Failed,
    /// The user lacks a permission, or the API server gave no answer.
    Unknown,
}

impl Verdict {
    fn cell(self) -> Cell {
        match self {
            Self::Ok => Cell::new("ok", Tone::Good),
            Self::Warning => Cell::new("warning", Tone::Notice),
            Self::Failed => Cell::new("failed", Tone::Bad),
            Self::Unknown => Cell::new("unknown", Tone::Notice),
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    check: String,
    result: Verdict,
    message: String,
    /// The next step for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<Fix>,
}

impl Item {
    fn new(check: impl Into<String>, result: Verdict, message: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            result,
            message: message.into(),
            fix: None,
        }
    }

    /// The check failed, because the API server refused to answer or could not answer.
    fn unread(check: impl Into<String>, what: &str, error: &ReadError) -> Self {
        let message = format!("can't read {what}: {error}");
        Self::new(check, Verdict::Unknown, message)
    }

    fn fix(self, fix: Fix) -> Self {
        Self {
            fix: Some(fix),
            ..self
        }
    }
}

/// All checks.
#[derive(Debug, Serialize)]
struct Report {
    checks: Vec<Item>,
    /// Facts that could not be read.
    notes: Vec<String>,
}

impl Report {
    /// The exit code: 0 if no check failed, 1 if one failed, 2 if every result is unknown.
    fn code(&self) -> u8 {
        let has = |result| self.checks.iter().any(|item| item.result == result);
        if has(Verdict::Failed) {
            1
        } else if has(Verdict::Ok) || has(Verdict::Warning) {
            0
        } else {
            2
        }
    }
}

pub(crate) async fn run(_: CheckArgs, connected: &Connected, format: Format) -> Result<u8> {
    let reader = connected.reader();
    let namespace = namespace(&reader, &connected.mimeo).await?;
    let (crds, served) = crds::check(connected, &reader).await;
    let (programs, deployments) = programs::check(&reader, &connected.mimeo).await;
    let mut report = Report {
        checks: namespace.into_iter().chain(crds).collect(),
        notes: Vec::new(),
    };
    report
        .checks
        .extend(webhook::check(connected, &reader, deployments.webhook.as_ref()).await);
    report.checks.extend(programs);
    if served {
        // A user who may not list namespaces can name one with -n.
        match Picture::outline(connected, Scope::asked(connected)).await {
            Ok(picture) => {
                report.checks.push(watches::check(&picture, reader.now()));
                permissions::check(connected, &picture, &deployments.accounts, &mut report).await;
            }
            Err(error) => {
                let unread = |check| Item::new(check, Verdict::Unknown, format!("{error:#}"));
                let items = [watches::CHECK, permissions::CHECK].map(unread);
                report.checks.extend(items);
            }
        }
    } else {
        let message = "they depend on the rules, whose CRDs are not installed";
        let item = Item::new(permissions::CHECK, Verdict::Unknown, message);
        report.checks.push(item);
    }
    for item in &mut report.checks {
        item.fix = item.fix.take().map(|fix| fix.for_cluster(&connected.flags));
    }
    print(format, &report, text)?;
    Ok(report.code())
}

/// The item of Mimeo's namespace, if the namespace does not exist. Fails if the API server gives no
/// answer.
async fn namespace(reader: &Reader, mimeo: &str) -> Result<Option<Item>> {
    let path = format!("/api/v1/namespaces/{}", encode(mimeo));
    match reader.get(&path, Part::Metadata).await {
        Err(ReadError::Failed(error)) => bail!("can't reach the cluster: {error}"),
        Ok(None) => {
            let check = format!("Namespace {mimeo}");
            let message = "it does not exist, so Mimeo is not installed there";
            let fix = Fix::say(
                "install Mimeo, or add --mimeo-namespace NAMESPACE if it is in another namespace",
            );
            Ok(Some(Item::new(check, Verdict::Failed, message).fix(fix)))
        }
        _ => Ok(None),
    }
}

fn text(report: &Report) -> String {
    let row = |item: &Item| {
        let message = match &item.fix {
            Some(fix) => format!("{}. Fix: {fix}", item.message),
            None => item.message.clone(),
        };
        vec![
            Cell::from(item.check.as_str()),
            item.result.cell(),
            message.into(),
        ]
    };
    let rows = report.checks.iter().map(row).collect();
    let mut text = table(&["CHECK", "RESULT", "MESSAGE"], rows);
    for note in &report.notes {
        text.push('\n');
        text += &line(note);
    }
    if !report.notes.is_empty() {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_says_whether_a_check_failed() {
        use Verdict::{Failed, Ok, Unknown, Warning};
        let code = |results: &[Verdict]| {
            let item = |result: &Verdict| Item::new("a", *result, "b");
            let checks = results.iter().map(item).collect();
            let notes = vec![];
            Report { checks, notes }.code()
        };
        assert_eq!(code(&[Ok, Warning, Unknown]), 0);
        assert_eq!(code(&[Ok, Failed, Unknown]), 1);
        assert_eq!(code(&[Unknown, Unknown]), 2);
        assert_eq!(code(&[]), 2);
    }

    #[test]
    fn the_fix_follows_the_message() {
        let item = Item::new("Leader", Verdict::Failed, "no replica leads");
        let report = Report {
            checks: vec![item.fix(Fix::run("kubectl get pods").note("shows them"))],
            notes: vec!["You can't list rules.".into()],
        };
        assert_eq!(
            text(&report),
            "CHECK    RESULT   MESSAGE\n\
             Leader   failed   no replica leads. Fix: kubectl get pods   shows them\n\n\
             You can't list rules.\n"
        );
    }
}
