//! The code in the documents, and the commands in it.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::repository::{files, read, workspace};

/// Code that is neither YAML nor a command: its document, and its beginning.
pub(super) const OUTPUT: [(&str, &str); 3] = [
    ("README.md", "A new namespace, and a pod in it at once"),
    (
        "docs/how-to/authors.md",
        "Mimeo: ClusterReplication registry needs permissions",
    ),
    (
        "docs/start/quick-start.md",
        "Warning: Mimeo: no namespace matches the rule now",
    ),
];

/// Returns the documents for users, as paths from the root of the repository.
pub(super) fn documents() -> Result<Vec<String>> {
    let outside = [
        "README.md",
        "manifests/chart/README.md",
        "manifests/chart/RUNBOOK.md",
    ];
    let root = workspace();
    let mut found = outside.map(|path| root.join(path)).to_vec();
    files(&root.join("docs"), "md", &mut found)?;
    let paths = found
        .iter()
        .filter_map(|file| file.strip_prefix(&root).ok()?.to_str());
    Ok(paths.map(str::to_owned).collect())
}

/// Returns the code of a document in blocks, without its indentation. It leaves out blocks that are
/// marked as YAML or text.
pub(super) fn blocks(text: &str) -> Vec<Vec<&str>> {
    let mut found: Vec<Vec<&str>> = Vec::new();
    let mut fence = None;
    let (mut in_code, mut after_empty) = (false, true);
    for line in text.lines() {
        let mark = line.trim_start().strip_prefix("```");
        // Code is indented by four and comes after an empty line. Other indented lines belong to
        // an item of a list.
        let indented = line.starts_with("    ") && (in_code || after_empty);
        if let Some(language) = mark {
            fence = fence.is_none().then_some(language);
            found.push(Vec::new());
        } else if fence.map_or(indented, |language| !matches!(language, "yaml" | "text")) {
            if fence.is_none() && !in_code {
                found.push(Vec::new());
            }
            if let Some(block) = found.last_mut() {
                block.push(line);
            }
        }
        in_code = fence.is_none() && mark.is_none() && indented;
        after_empty = line.is_empty();
    }
    found.retain(|block| !block.is_empty());
    for block in &mut found {
        let indents = block
            .iter()
            .map(|line| line.len() - line.trim_start().len());
        let indent = indents.min().unwrap_or_default();
        for line in block {
            *line = &line[indent..];
        }
    }
    found
}

/// True if a block is YAML.
fn is_yaml(block: &[&str]) -> bool {
    let text = block.join("\n");
    serde_yaml::Deserializer::from_str(&text).all(|part| match Value::deserialize(part) {
        // A command with JSON in it has a colon, too.
        Ok(Value::Object(fields)) => fields.keys().all(|key| !key.contains(' ')),
        Ok(Value::Array(_)) => true,
        _ => false,
    })
}

/// A command of a document.
pub(super) struct Shown {
    pub(super) command: String,
    /// The output, if the document shows it. Then the command begins with `$ ` there.
    pub(super) output: Option<Vec<String>>,
}

/// Returns the commands of a document, in order.
pub(super) fn commands(document: &str) -> Result<Vec<Shown>> {
    let text = read(document)?;
    let mut commands = Vec::new();
    for block in blocks(&text) {
        let is_output = OUTPUT
            .iter()
            .any(|(of, beginning)| *of == document && block[0].starts_with(beginning));
        if !is_output && !is_yaml(&block) {
            commands.extend(commands_of(block).with_context(|| document.to_owned())?);
        }
    }
    Ok(commands)
}

/// Returns the commands of a block.
fn commands_of(block: Vec<&str>) -> Result<Vec<Shown>> {
    let mut commands: Vec<Shown> = Vec::new();
    let mut lines = block.into_iter();
    while let Some(line) = lines.next() {
        let output = commands.last_mut().and_then(|shown| shown.output.as_mut());
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push(Shown {
                command: command.to_owned(),
                output: Some(Vec::new()),
            });
        } else if let Some(output) = output {
            output.push(line.to_owned());
        } else if !line.starts_with('#') {
            commands.push(Shown {
                command: whole(line, &mut lines)?,
                output: None,
            });
        }
    }
    Ok(commands)
}

/// Returns a command with the lines of its here-document, and without a comment. A pipe after a
/// command of kubectl is cut off, too: a `grep` fails if it finds nothing.
fn whole<'a>(line: &str, following: impl Iterator<Item = &'a str>) -> Result<String> {
    let mut command = line.to_owned();
    if line.ends_with("<<'EOF'") {
        for line in following {
            command.extend(["\n", line]);
            if line == "EOF" {
                return Ok(command);
            }
        }
        bail!("the here-document of {line} has no end");
    }
    for end in ["  ", " | ", " &"] {
        if end != " | " || !line.starts_with("sed ") {
            command.truncate(command.find(end).unwrap_or(command.len()));
        }
    }
    Ok(command)
}
