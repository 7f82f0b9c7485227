//! `kubectl mimeo test DIR`: the copies of each folder's files, compared with the expected ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use similar::TextDiff;

use crate::{
    files::{Files, Key, documents, key, listed, unfolded},
    manifest::mask,
    output::{Format, manifests, print},
    render::offline,
};

/// The file with the expected copies.
const EXPECTED: &str = "expected.yaml";

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Folder with test cases. Each folder in it that has YAML or JSON files is a case, and so is DIR
    /// itself
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// File or directory that belongs to every case, such as the rules; may be repeated
    #[arg(long = "filename", short = 'f', value_name = "FILE|DIR")]
    shared: Vec<PathBuf>,
    /// Write the rendered copies to expected.yaml of each case
    #[arg(long)]
    update: bool,
    /// With --update: write the length of each value in a Secret in place of the value
    #[arg(long, requires = "update")]
    mask: bool,
}

/// The explanation under `--help`.
pub(crate) const HELP: &str = "\
A case is a folder with the input of kubectl mimeo render and the file expected.yaml, which has
the copies in any order. The output has no values of Secrets. A value of a Secret in expected.yaml
may be its length, as render --mask prints it.

Exit code 0: every case renders the expected copies. 1: a case does not, or it has no
expected.yaml. 2: an error.";

/// The result of one case.
#[derive(Debug, Serialize)]
struct Outcome {
    case: String,
    passed: bool,
    /// True if expected.yaml was written.
    updated: bool,
    copies: usize,
    problems: Vec<String>,
    differences: Vec<Difference>,
}

/// A copy that is not as expected.
#[derive(Debug, Serialize)]
struct Difference {
    object: String,
    /// A unified diff from the expected to the rendered copy, in YAML.
    diff: String,
}

pub(crate) fn run(args: &TestArgs, namespace: Option<&str>, format: Format) -> Result<u8> {
    let folders = cases(&args.folder)?;
    if folders.is_empty() {
        bail!(
            "{} has no test case: a folder with rules, sources and namespaces, and {EXPECTED}",
            args.folder.display()
        );
    }
    let outcomes: Vec<Outcome> = folders
        .iter()
        .map(|folder| outcome(folder, args, namespace))
        .collect();
    print(format, &outcomes, |outcomes| text(outcomes))?;
    Ok(u8::from(outcomes.iter().any(|outcome| !outcome.passed)))
}

/// The folders that have manifests, sorted.
fn cases(folder: &Path) -> Result<Vec<PathBuf>> {
    let can_t_read = || format!("can't read {}", folder.display());
    let mut cases = Vec::new();
    if !listed(folder, false, &[])?.is_empty() {
        cases.push(folder.to_owned());
    }
    let mut below = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(can_t_read)? {
        let entry = entry.with_context(can_t_read)?;
        let path = entry.path();
        let name = path.file_name().map(|name| name.to_string_lossy());
        // Such as .git.
        let hidden = name.is_some_and(|name| name.starts_with('.'));
        // A link to a folder could lead back to this one.
        let folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if folder && !hidden {
            below.push(path);
        }
    }
    below.sort();
    for folder in below {
        cases.extend(self::cases(&folder)?);
    }
    Ok(cases)
}

/// Runs a case. An error in its files is its result.
fn outcome(folder: &Path, args: &TestArgs, namespace: Option<&str>) -> Outcome {
    let mut outcome = Outcome {
        case: folder.display().to_string(),
        passed: false,
        updated: false,
        copies: 0,
        problems: Vec::new(),
        differences: Vec::new(),
    };
    if let Err(error) = check(folder, args, namespace, &mut outcome) {
        outcome.problems.push(format!("{error:#}"));
    }
    outcome.passed = outcome.problems.is_empty() && outcome.differences.is_empty();
    outcome
}

fn check(
    folder: &Path,
    args: &TestArgs,
    namespace: Option<&str>,
    outcome: &mut Outcome,
) -> Result<()> {
    let mut paths = listed(folder, false, &[EXPECTED])?;
    for shared in &args.shared {
        paths.extend(listed(shared, false, &[EXPECTED])?);
    }
    let mut files = Files::default();
    files.read_all(&paths, namespace)?;
    let rendered = offline::render(&files);
    outcome.problems = rendered.problems;
    outcome.copies = rendered.copies.len();
    let copies: BTreeMap<Key, Value> = rendered
        .copies
        .into_iter()
        .map(|copy| (copy.key, copy.object))
        .collect();
    let path = folder.join(EXPECTED);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("can't read {}", path.display())),
    };
    if args.update {
        if outcome.problems.is_empty() {
            outcome.updated = update(&path, text.as_deref(), copies, args.mask)?;
        }
        return Ok(());
    }
    let Some(text) = text else {
        bail!("it has no {EXPECTED}; --update writes it");
    };
    outcome.differences = differences(&expected(&text, &path)?, &copies)?;
    Ok(())
}

/// Writes the copies. Returns false if the file has them already.
fn update(
    path: &Path,
    former: Option<&str>,
    mut copies: BTreeMap<Key, Value>,
    masked: bool,
) -> Result<bool> {
    if masked {
        copies.values_mut().for_each(mask);
    }
    // In the order of kubectl mimeo render.
    let mut copies: Vec<(Key, Value)> = copies.into_iter().collect();
    copies.sort_by(|(a, _), (b, _)| offline::order(a).cmp(&offline::order(b)));
    let text = manifests(copies.iter().map(|(_, copy)| copy), Format::Yaml)?;
    if former == Some(text.as_str()) {
        return Ok(false);
    }
    if path.is_symlink() {
        bail!(
            "{} is a symbolic link, which is not written",
            path.display()
        );
    }
    std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))?;
    Ok(true)
}

fn expected(text: &str, path: &Path) -> Result<BTreeMap<Key, Value>> {
    let of_file = || path.display().to_string();
    let documents = documents(text).with_context(|| format!("{} is no valid YAML", of_file()))?;
    let mut expected = BTreeMap::new();
    for object in documents.into_iter().flat_map(unfolded) {
        let key = key(&object, None).with_context(of_file)?;
        if expected.insert(key.clone(), object).is_some() {
            bail!("{}: {key} is in it twice", of_file());
        }
    }
    Ok(expected)
}

fn differences(
    expected: &BTreeMap<Key, Value>,
    copies: &BTreeMap<Key, Value>,
) -> Result<Vec<Difference>> {
    let keys: BTreeSet<&Key> = expected.keys().chain(copies.keys()).collect();
    let mut differences = Vec::new();
    for key in keys {
        let (old, new) = (expected.get(key), copies.get(key));
        let (old, new) = masked(old, new);
        let text = |object: Option<&Value>| object.map(serde_yaml::to_string).transpose();
        let (before, after) = (text(old.as_ref())?, text(new.as_ref())?);
        let name = |text: &Option<String>| match text {
            Some(_) => key.to_string(),
            None => "/dev/null".to_owned(),
        };
        let (old, new) = (
            before.as_deref().unwrap_or_default(),
            after.as_deref().unwrap_or_default(),
        );
        let hunks = TextDiff::from_lines(old, new).unified_diff().to_string();
        if !hunks.is_empty() {
            let header = format!("--- {}\n+++ {}\n", name(&before), name(&after));
            differences.push(Difference {
                object: key.to_string(),
                diff: header + &hunks,
            });
        }
    }
    Ok(differences)
}

/// Both objects with lengths in place of the values of Secrets. Different values of the same length
/// stay different.
fn masked(old: Option<&Value>, new: Option<&Value>) -> (Option<Value>, Option<Value>) {
    let (Some(old), Some(new)) = (old, new) else {
        let masked = |object: &Value| {
            let mut object = object.clone();
            mask(&mut object);
            object
        };
        return (old.map(masked), new.map(masked));
    };
    let (mut before, mut after) = (old.clone(), new.clone());
    mask(&mut before);
    mask(&mut after);
    if old["kind"] == "Secret" {
        for field in ["data", "stringData"] {
            let keys: Vec<String> = old[field]
                .as_object()
                .into_iter()
                .flat_map(|data| data.keys().cloned())
                .collect();
            for key in keys {
                // The file may have the length alone.
                if old[field][&key] == after[field][&key] {
                    before[field][&key] = after[field][&key].clone();
                } else if old[field][&key] != new[field][&key] && new[field][&key].is_string() {
                    let length = after[field][&key].as_str().unwrap_or_default();
                    after[field][&key] = json!(format!("{length} changed"));
                }
            }
        }
    }
    (Some(before), Some(after))
}

fn text(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let Outcome {
            case,
            passed,
            updated,
            copies,
            problems,
            differences,
        } = outcome;
        let result = match (passed, updated) {
            (false, _) => "FAIL",
            (true, true) => "updated",
            (true, false) => "ok",
        };
        let copies = match copies {
            1 => "1 copy".to_owned(),
            copies => format!("{copies} copies"),
        };
        // Writing to a String never fails.
        _ = writeln!(text, "{result}   {case}   {copies}");
        for problem in problems {
            _ = writeln!(text, "error: {problem}");
        }
        for Difference { diff, .. } in differences {
            text.push_str(diff);
        }
    }
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    _ = writeln!(text, "{failed} of {} failed", outcomes.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(value: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": value}})
    }

    fn data(object: Option<Value>) -> Value {
        object.unwrap_or_default()["data"]["a"].take()
    }

    #[test]
    fn values_of_secrets_are_compared_and_not_shown() {
        let compared = |old: &str, new: &str| {
            let (old, new) = masked(Some(&secret(old)), Some(&secret(new)));
            (data(old), data(new))
        };
        assert_eq!(
            compared("b25l", "b25l"),
            (json!("*** (3 bytes)"), json!("*** (3 bytes)"))
        );
        assert_eq!(
            compared("b25l", "dHdv"),
            (json!("*** (3 bytes)"), json!("*** (3 bytes) changed"))
        );
        assert_eq!(
            compared("*** (3 bytes)", "dHdv"),
            (json!("*** (3 bytes)"), json!("*** (3 bytes)"))
        );
        let (old, new) = masked(None, Some(&secret("b25l")));
        assert_eq!((old, data(new)), (None, json!("*** (3 bytes)")));
    }
}
