//! The chart's values, as their comments document them.

use std::{collections::BTreeSet, fmt::Write, fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A value that has a comment of its own.
pub(super) struct Documented {
    /// The path of the value, for example `image.tag`.
    pub(super) path: String,
    pub(super) description: String,
    default: Value,
}

/// Returns all of them, in the file's order.
pub(super) fn documented(chart: &Path) -> Result<Vec<Documented>> {
    let text = fs::read_to_string(chart.join("values.yaml"))?;
    let defaults: Value = serde_yaml::from_str(&text)?;
    let mut found = Vec::new();
    let mut parents: Vec<(usize, &str)> = Vec::new();
    let mut comment: Option<String> = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        if let Some(first) = trimmed.strip_prefix("# -- ") {
            comment = Some(first.to_owned());
        } else if let (Some(next), Some(comment)) = (trimmed.strip_prefix("# "), &mut comment) {
            comment.push(' ');
            comment.push_str(next);
        } else {
            let key = trimmed
                .split_once(':')
                .map(|(key, _)| key)
                .filter(|key| key.chars().all(char::is_alphabetic));
            if let Some(key) = key {
                let indent = line.len() - trimmed.len();
                parents.retain(|(of, _)| *of < indent);
                parents.push((indent, key));
                if let Some(description) = comment.take() {
                    let keys: Vec<&str> = parents.iter().map(|(_, key)| *key).collect();
                    let default = defaults.pointer(&format!("/{}", keys.join("/")));
                    let default = default.with_context(|| format!("no {keys:?}"))?.clone();
                    found.push(Documented {
                        path: keys.join("."),
                        description,
                        default,
                    });
                }
            }
            comment = None;
        }
    }
    Ok(found)
}

/// Returns the table of the README.
pub(super) fn table(chart: &Path) -> Result<String> {
    let mut table = String::from(
        "| Key | Type | Default | Description |\n|-----|------|---------|-------------|\n",
    );
    for Documented {
        path,
        description,
        default,
    } in documented(chart)?
    {
        let kind = match &default {
            Value::Null => "any",
            Value::Bool(_) => "bool",
            Value::Number(number) if number.is_f64() => "float",
            Value::Number(_) => "int",
            Value::String(_) => "string",
            Value::Array(_) => "list",
            Value::Object(_) => "object",
        };
        writeln!(
            table,
            "| {path} | {kind} | `{default}` | {} |",
            description.replace('|', "\\|")
        )?;
    }
    Ok(table)
}

/// Finds the paths in a schema that have a description. Checks that the objects above them permit
/// no other keys, except `global`.
pub(super) fn leaves(schema: &Value, path: &str, found: &mut BTreeSet<String>) -> Result<()> {
    if schema["description"].is_string() {
        found.insert(path.to_owned());
        return Ok(());
    }
    // Helm hands the values under `global` to each chart of a release, and other charts have more of
    // them.
    ensure!(
        path == "global" || schema["additionalProperties"] == Value::Bool(false),
        "{path:?} takes any key"
    );
    for (key, node) in schema["properties"]
        .as_object()
        .with_context(|| format!("{path:?} has no properties"))?
    {
        let path = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        leaves(node, &path, found)?;
    }
    Ok(())
}

/// Returns the schema of the value at a path.
pub(super) fn node<'a>(schema: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .try_fold(schema, |node, key| node["properties"].get(key))
}
