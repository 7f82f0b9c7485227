//! The workflows in `.github` only call targets of the Makefile. So a developer can run all that
//! the forge checks.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::repository::read;

const WORKFLOWS: [&str; 2] = ["ci.yml", "release.yml"];

/// Begins a line that needs root.
const AS_ROOT: &str = r#"sudo --preserve-env env "HOME=$HOME" "PATH=$PATH" "#;

/// Lines that call no target, by their beginning: they install packages of the machine, or upload
/// the packed release.
const EXCEPTIONS: [&str; 3] = [
    "sudo apt-get update",
    "sudo apt-get install --yes ",
    r#"gh release create "$GITHUB_REF_NAME" --repo "$GITHUB_REPOSITORY" --draft --verify-tag "#,
];

fn workflow(name: &str) -> Result<Value> {
    let text = read(&format!(".github/workflows/{name}"))?;
    serde_yaml::from_str(&text).with_context(|| name.to_owned())
}

/// Returns the steps of all jobs.
fn steps(workflow: &Value) -> Result<Vec<&Value>> {
    let jobs = workflow["jobs"].as_object().context("no jobs")?;
    let mut steps = Vec::new();
    for (name, job) in jobs {
        steps.extend(job["steps"].as_array().with_context(|| name.clone())?);
    }
    Ok(steps)
}

/// Returns the command lines of all jobs, except [`EXCEPTIONS`].
fn lines(workflow: &Value) -> Result<Vec<&str>> {
    let mut lines: Vec<&str> = steps(workflow)?
        .into_iter()
        .filter_map(|step| step["run"].as_str())
        .flat_map(str::lines)
        .collect();
    let excepted = |line: &str| {
        let is_one = !line.contains([';', '&', '|']);
        is_one && EXCEPTIONS.iter().any(|begin| line.starts_with(begin))
    };
    lines.retain(|line| !excepted(line));
    Ok(lines)
}

/// Returns the targets that a line makes. `None` if it does anything else.
fn targets(line: &str) -> Option<BTreeSet<String>> {
    let line = line.strip_prefix(AS_ROOT).unwrap_or(line);
    // A quoted value of a variable may have spaces.
    let unquoted: String = line.split('"').step_by(2).collect();
    let words = unquoted.strip_prefix("make ")?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '-' | '=');
    let targets = words.split(' ').filter(|word| !word.contains('='));
    words
        .chars()
        .all(is_plain)
        .then(|| targets.map(str::to_owned).collect())
}

/// Returns all targets that these lines make.
fn made(lines: &[&str]) -> Result<BTreeSet<String>> {
    let mut made = BTreeSet::new();
    for line in lines {
        let targets = targets(line).with_context(|| format!("no make: {line}"))?;
        ensure!(!targets.is_empty(), "no target: {line}");
        made.extend(targets);
    }
    Ok(made)
}

#[test]
fn the_workflows_only_call_targets_of_the_makefile() -> Result<()> {
    let makefile = read("Makefile")?;
    let known: BTreeSet<&str> = makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', '.', '#']) && !line.contains(":="))
        .filter_map(|line| Some(line.split_once(':')?.0))
        .collect();
    for name in WORKFLOWS {
        for target in made(&lines(&workflow(name)?)?).with_context(|| name.to_owned())? {
            ensure!(
                known.contains(&*target),
                "{name}: the Makefile has no {target}"
            );
        }
    }
    Ok(())
}

#[test]
fn the_workflows_check_what_a_developer_checks_and_pack_a_release() -> Result<()> {
    let run = read(".ci/run")?;
    let run: Vec<&str> = run
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("make "))
        .collect();
    assert_eq!(made(&lines(&workflow("ci.yml")?)?)?, made(&run)?);
    let release = workflow("release.yml")?;
    assert_eq!(
        made(&lines(&release)?)?,
        BTreeSet::from(["dist".to_owned()])
    );
    let uploads = steps(&release)?
        .into_iter()
        .filter_map(|step| step["run"].as_str())
        .filter(|line| line.starts_with(EXCEPTIONS[2]) && line.ends_with(" target/dist/*/*"));
    assert_eq!(uploads.count(), 1);
    Ok(())
}

/// A tag of an action can move to other code. So only a job that runs nothing but the forge's own
/// actions and client may write. The shell gets no text that a stranger wrote.
#[test]
fn actions_have_a_version_and_only_the_upload_may_write() -> Result<()> {
    for name in WORKFLOWS {
        let workflow = workflow(name)?;
        let text = workflow.to_string();
        for word in ["pull_request_target", "secrets."] {
            ensure!(!text.contains(word), "{name}: {word}");
        }
        let steps_of = steps(&workflow)?;
        let mut runs = steps_of.iter().filter_map(|step| step["run"].as_str());
        let fills_in = |line: &&str| ["${{", "$(", "`"].iter().any(|word| line.contains(word));
        assert_eq!(runs.find(fills_in), None, "{name}");
        assert_eq!(
            workflow["permissions"],
            json!({"contents": "read"}),
            "{name}"
        );
        for action in steps_of.iter().filter_map(|step| step["uses"].as_str()) {
            let (_, version) = action.split_once("@v").context(action.to_owned())?;
            ensure!(
                version.chars().all(|c| c.is_ascii_digit()),
                "{name}: {action}"
            );
        }
        for (job, fields) in workflow["jobs"].as_object().context("no jobs")? {
            let writes = json!({"contents": "write"});
            let may = &fields["permissions"];
            let step = fields["steps"].as_array().into_iter().flatten();
            let own = |step: &Value| {
                let is = |key: &str, begin: &str| {
                    step[key].as_str().is_some_and(|it| it.starts_with(begin))
                };
                is("uses", "actions/") || is("run", "gh ")
            };
            let uploads = *may == writes && step.into_iter().all(own);
            ensure!(may.is_null() || uploads, "{name}: {job} may {may}");
        }
    }
    Ok(())
}
