//! The YAML in the documents. Each rule, grant and policy has only fields of the API, and Mimeo
//! accepts it.

use std::{fs, path::Path};

use anyhow::{Context, Result, anyhow, bail, ensure};
use mimeo_model::{grant::Grant, policy::Policy, refusal::Refusal, rule::Rule};
use serde::{Deserialize as _, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::repository::{files, workspace};

/// Returns the indented code of a document in blocks, without the indentation.
fn blocks(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for block in lines.split(|line| !line.starts_with("    ")) {
        let indented = |line: &&str| line.len() - line.trim_start().len();
        let indent = block.iter().map(indented).min().unwrap_or_default();
        found.push(block.iter().map(|line| &line[indent..]).collect());
    }
    found
}

/// Returns the YAML in the indented code of a document: from `apiVersion` to the end of the code,
/// or of the shell's here-document.
fn manifests(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for block in blocks(text) {
        let mut manifest = String::new();
        for line in block {
            if line == "EOF" {
                found.push(std::mem::take(&mut manifest));
            } else if !manifest.is_empty() || line.starts_with("apiVersion: ") {
                manifest.extend([line, "\n"]);
            }
        }
        found.push(manifest);
    }
    found.retain(|manifest| !manifest.is_empty());
    found
}

/// Returns the objects in the code of a document.
pub(crate) fn rules_of(text: &str) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for manifest in manifests(text) {
        for object in serde_yaml::Deserializer::from_str(&manifest) {
            found.push(Value::deserialize(object).with_context(|| manifest.clone())?);
        }
    }
    Ok(found)
}

/// Returns the parts of objects in the code of a document: YAML that begins with another key than
/// `apiVersion`, or with an item of a list.
pub(crate) fn parts_of(text: &str) -> Result<Vec<Value>> {
    let is_part = |block: &Vec<&str>| {
        let line = block.first().copied().unwrap_or_default();
        let first = line.split(' ').next().unwrap_or_default();
        let is_key = first.ends_with(':') && first.starts_with(|c: char| c.is_ascii_lowercase());
        first == "-" || is_key && first != "apiVersion:"
    };
    let parts = blocks(text).into_iter().filter(is_part);
    parts
        .map(|block| {
            let block = block.join("\n");
            serde_yaml::from_str(&block).with_context(|| block.clone())
        })
        .collect()
}

/// True if the second value has all fields of the first.
fn has_all(given: &Value, read: &Value) -> bool {
    match (given, read) {
        (Value::Object(given), Value::Object(read)) => given
            .iter()
            .all(|(key, value)| read.get(key).is_some_and(|read| has_all(value, read))),
        (Value::Array(given), Value::Array(read)) => {
            given.len() == read.len() && given.iter().zip(read).all(|(a, b)| has_all(a, b))
        }
        _ => given == read,
    }
}

fn accepted<T, P>(object: &Value, parse: fn(&T) -> Result<P, Vec<Refusal>>) -> Result<()>
where
    T: DeserializeOwned + Serialize,
{
    let read: T = serde_json::from_value(object.clone())?;
    let written = serde_json::to_value(&read)?;
    ensure!(has_all(object, &written), "an unknown field: {written}");
    parse(&read).map_err(|refusals| anyhow!("refused: {refusals:?}"))?;
    Ok(())
}

fn check(object: &Value) -> Result<()> {
    match object["kind"].as_str() {
        Some("ClusterReplication") => accepted(object, Rule::parse),
        Some("Replication") => accepted(object, Rule::parse_replication),
        Some("ReplicationGrant") => accepted(object, Grant::parse),
        Some("TransformPolicy") => accepted(object, Policy::parse),
        other => bail!("no such kind: {other:?}"),
    }
}

#[test]
fn every_rule_in_a_document_has_only_fields_of_the_api_and_is_accepted() -> Result<()> {
    let mut documents = Vec::new();
    files(&workspace(), "md", &mut documents)?;
    let mut count = 0;
    for document in &documents {
        count += check_all(document).with_context(|| document.display().to_string())?;
    }
    ensure!(count >= 20, "only {count} rules were found");
    Ok(())
}

fn check_all(document: &Path) -> Result<usize> {
    let mut count = 0;
    for object in rules_of(&fs::read_to_string(document)?)? {
        if object["apiVersion"] == "mimeo.dev/v1alpha1" {
            check(&object).with_context(|| object.to_string())?;
            count += 1;
        }
    }
    Ok(count)
}
