//! The documents: their links have targets, the tests that they name exist, and their examples
//! work.

mod examples;
mod explained;
mod modules;
mod rules;

pub(crate) use rules::rules_of;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

/// Where the project's files can be read. Documents that are shown elsewhere have links that begin
/// with it.
const HOME: &str = "https://mimeo.dev/";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Finds the files below a folder with this extension, except built and hidden ones.
fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files(&path, extension, found)?;
        } else if path.extension().is_some_and(|known| known == extension) {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns a document without its code: without fenced blocks, indented blocks, and text between
/// backticks.
fn prose(text: &str) -> String {
    let (mut prose, mut fenced) = (String::new(), false);
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if !fenced && !line.starts_with("    ") {
            prose.extend(line.split('`').step_by(2).chain(["\n"]));
        }
    }
    prose
}

/// Returns the targets of a document's links: the text in `](...)`.
fn links(prose: &str) -> impl Iterator<Item = &str> {
    let targets = prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next());
    targets.filter(|target| target.starts_with(HOME) || !target.contains("://"))
}

/// Returns the anchor of a heading: the text after `#` in a link to it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn leads_somewhere(document: &Path, link: &str) -> Result<bool> {
    let (path, to) = link.split_once('#').unwrap_or((link, ""));
    let target = match (path, path.strip_prefix(HOME)) {
        (_, Some(path)) => workspace().join(path),
        ("", _) => document.to_owned(),
        (path, _) => document
            .parent()
            .context("a file is in a folder")?
            .join(path),
    };
    if to.is_empty() || !target.exists() {
        return Ok(target.exists());
    }
    let text = fs::read_to_string(&target)?;
    Ok(text
        .lines()
        .filter(|line| line.starts_with('#'))
        .any(|heading| anchor(heading) == to))
}

#[test]
fn every_link_leads_somewhere() -> Result<()> {
    let mut documents = Vec::new();
    files(&workspace(), "md", &mut documents)?;
    let (mut count, mut broken) = (0, Vec::new());
    for document in &documents {
        let prose = prose(&fs::read_to_string(document)?);
        for link in links(&prose) {
            count += 1;
            if !leads_somewhere(document, link)? {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    ensure!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
    ensure!(
        count > 50,
        "only {count} links were found in {} documents",
        documents.len()
    );
    Ok(())
}

/// Returns the names of all functions below a folder, and of all Rust files.
fn written() -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let mut sources = Vec::new();
    files(&workspace(), "rs", &mut sources)?;
    let mut functions = BTreeSet::new();
    for source in &sources {
        for line in fs::read_to_string(source)?.lines() {
            let name = line
                .trim_start()
                .trim_start_matches("async ")
                .strip_prefix("fn ");
            functions.extend(
                name.and_then(|name| name.split('(').next())
                    .map(str::to_owned),
            );
        }
    }
    let names = sources
        .iter()
        .filter_map(|source| source.file_name()?.to_str().map(str::to_owned));
    Ok((functions, names.collect()))
}

/// True if the name is a test's. The names of tests are sentences, and a document may leave out the
/// beginning. Of other names in backticks, only metrics have so many words.
fn is_test(name: &str) -> bool {
    let name = name.trim_start_matches("...");
    let letters = name
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    letters && name.split('_').count() > 3 && !name.starts_with("mimeo_")
}

/// A document names the test that proves a promise.
#[test]
fn the_tests_and_the_files_of_tests_that_documents_name_exist() -> Result<()> {
    let (functions, names) = written()?;
    let is_there = |name: &str| match name.strip_prefix("...") {
        Some(end) => functions.iter().any(|function| function.ends_with(end)),
        None => functions.contains(name),
    };
    let mut documents = Vec::new();
    files(&workspace(), "md", &mut documents)?;
    let (mut count, mut missing) = (0, Vec::new());
    for document in documents {
        let text = fs::read_to_string(&document)?;
        let quoted = text.split('`').skip(1).step_by(2);
        for name in quoted {
            let file = Path::new(name).extension().is_some_and(|end| end == "rs")
                && !name.contains(['/', ' ']);
            count += usize::from(is_test(name));
            if is_test(name) && !is_there(name) || file && !names.contains(name) {
                missing.push(format!("{}: {name}", document.display()));
            }
        }
    }
    ensure!(missing.is_empty(), "no such tests: {missing:#?}");
    ensure!(count > 40, "only {count} tests are named");
    Ok(())
}
