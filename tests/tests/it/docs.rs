//! The documents: their links have targets, the tests that they name exist, and their examples
//! work. They and their sentences are short.

mod examples;
mod explained;
mod modules;
mod rules;

pub(crate) use rules::{parts_of, rules_of};

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::repository::{files, workspace};

/// Where the project's files can be read. Documents that are shown elsewhere have links that begin
/// with it.
const HOME: &str = "https://mimeo.dev/";

/// The most words of all documents in `docs`, as `wc -w` counts them.
const WORDS: usize = 30_000;

/// The most words of a sentence.
const WORDS_OF_A_SENTENCE: usize = 30;

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

#[test]
fn the_documents_have_at_most_30_000_words() -> Result<()> {
    let mut documents = Vec::new();
    files(&workspace().join("docs"), "md", &mut documents)?;
    let mut words = 0;
    for document in &documents {
        words += fs::read_to_string(document)?.split_whitespace().count();
    }
    ensure!(words <= WORDS, "{words} words in docs, and not {WORDS}");
    ensure!(words > WORDS / 2, "only {words} words were found");
    Ok(())
}

/// Returns the paragraphs of a document and the items of its lists. Headings, tables, HTML and code
/// are left out.
fn paragraphs(text: &str) -> Vec<String> {
    let (mut found, mut current, mut fenced) = (Vec::new(), String::new(), false);
    for line in text.lines().chain([""]) {
        let text = line.trim();
        let is_fence = text.starts_with("```");
        fenced ^= is_fence;
        let ends = is_fence || fenced || text.is_empty() || text.starts_with(['#', '|', '<']);
        // Indented lines after an empty one are code. Others go on with an item of a list.
        let is_code = current.is_empty() && line.starts_with("    ");
        let numbered = text
            .split_once(". ")
            .filter(|(number, _)| number.parse::<u8>().is_ok());
        let item = text.strip_prefix("- ").or(numbered.map(|(_, rest)| rest));
        if ends || item.is_some() {
            found.push(std::mem::take(&mut current));
        }
        if !ends && !is_code {
            current.extend([item.unwrap_or(text), " "]);
        }
    }
    found
}

/// Returns the sentences of a paragraph. Code is one word, and a link is its text.
fn sentences(paragraph: &str) -> Vec<String> {
    let parts = paragraph.split('`').enumerate();
    let without_code: String = parts
        .map(|(at, part)| if at % 2 == 1 { "code" } else { part })
        .collect();
    let mut links = without_code.split("](");
    let mut text = links.next().unwrap_or_default().to_owned();
    for link in links {
        text.push_str(link.split_once(')').map_or(link, |(_, rest)| rest));
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_last = |word: &&str| {
        word.trim_end_matches([')', '*', '_', '"'])
            .ends_with(['.', '?', '!'])
    };
    let each = words.split_inclusive(is_last);
    each.map(|sentence| sentence.join(" ")).collect()
}

#[test]
fn no_sentence_in_a_document_has_more_than_30_words() -> Result<()> {
    let mut documents = ["README.md", "CONTRIBUTING.md"]
        .map(|name| workspace().join(name))
        .to_vec();
    files(&workspace().join("docs"), "md", &mut documents)?;
    let (mut count, mut long) = (0, Vec::new());
    for document in &documents {
        let paragraphs = paragraphs(&fs::read_to_string(document)?);
        for sentence in paragraphs.iter().flat_map(|text| sentences(text)) {
            count += 1;
            if sentence.split(' ').count() > WORDS_OF_A_SENTENCE {
                long.push(format!("{}: {sentence}", document.display()));
            }
        }
    }
    ensure!(long.is_empty(), "sentences that are too long: {long:#?}");
    ensure!(count > 1000, "only {count} sentences were found");
    Ok(())
}

#[test]
fn sentences_are_found_in_paragraphs_and_lists() {
    let text = "# Heading.\n\nFirst `a b. c` [link\ntext](x.md#y). (Second 1.5?) *Third.* Last\n\
        \n    - code\n\n- An item\n  - of a list\n    and more\n1. Another.\n\n| table |\n\n\
        ```text\nfenced\n```\n";
    let found: Vec<String> = paragraphs(text)
        .iter()
        .flat_map(|text| sentences(text))
        .collect();
    assert_eq!(
        found,
        [
            "First code [link text.",
            "(Second 1.5?)",
            "*Third.*",
            "Last",
            "An item",
            "of a list and more",
            "Another.",
        ]
    );
}
