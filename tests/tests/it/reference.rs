//! The reference pages that people write: flags, labels and annotations, limits, values of the
//! chart. Each has what the code has, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use mimeo_tests::{Program, scenario::SOON};
use serde_json::Value;

use crate::repository::read;

/// Both programs. The page of the flags has a section for each.
pub(crate) const PROGRAMS: [&str; 2] = ["mimeo-webhook", "mimeo-reconciler"];

/// The limits: the file of the constant, its text, and the words for the limit and its value on the
/// page.
const LIMITS: [(&str, &str, &str, &str); 24] = [
    (
        "webhook/src/policies.rs",
        "const MOST: usize = 256;",
        "TransformPolicies",
        "256",
    ),
    (
        "shared/model/src/patch.rs",
        "const RESULT: usize = 1536 * 1024;",
        "`jsonPatch`",
        "1.5 MiB",
    ),
    (
        "shared/model/src/source.rs",
        "const MOST_BYTES: usize = 256 << 10;",
        "`jsonPatch`",
        "256 KiB",
    ),
    (
        "shared/model/src/selection/pattern.rs",
        "const PATTERN_SIZE: usize = 32 * 1024;",
        "`namespacePattern`",
        "32 KiB",
    ),
    (
        "shared/model/src/source.rs",
        "const MOST_BYTES: usize = 256 << 10;",
        "size of a source",
        "256 KiB",
    ),
    (
        "shared/model/src/rule/replication.rs",
        "const MOST_COPIES: usize = 256;",
        "copies of a Replication",
        "256",
    ),
    (
        "shared/engine/src/quota.rs",
        "const REPLICATIONS: usize = 1024;",
        "Replications of a namespace",
        "1,024",
    ),
    (
        "shared/engine/src/quota.rs",
        "const COPIES: usize = 10_240;",
        "Replications of a namespace",
        "10,240",
    ),
    (
        "shared/model/src/grant.rs",
        "const MOST: usize = 256;",
        "grants of a namespace",
        "256",
    ),
    (
        "shared/model/src/grant.rs",
        "const LOAD: usize = 1024;",
        "grants of a namespace",
        "1,024 names",
    ),
    (
        "shared/runtime/src/https.rs",
        "const CONNECTIONS: usize = 512;",
        "connections",
        "512",
    ),
    (
        "shared/runtime/src/https.rs",
        "const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);",
        "TLS handshake",
        "10 s",
    ),
    (
        "shared/runtime/src/https.rs",
        "const HEAD: usize = 32 << 10;",
        "head of a request",
        "32 KiB",
    ),
    (
        "shared/runtime/src/https.rs",
        "const IDLE_TIMEOUT: Duration = Duration::from_secs(100);",
        "idle connection",
        "100 s",
    ),
    (
        "shared/runtime/src/https.rs",
        "const LIFETIME: Duration = Duration::from_mins(5);",
        "lifetime of a connection",
        "5 min",
    ),
    (
        "shared/runtime/src/https.rs",
        "const GRACE: Duration = Duration::from_mins(2);",
        "lifetime of a connection",
        "2 min",
    ),
    (
        "shared/model/src/registration.rs",
        "const TIMEOUT: Duration = Duration::from_secs(5);",
        "body of a review and its answer",
        "5 s",
    ),
    (
        "webhook/src/body.rs",
        "const BODY_LIMIT: usize = (2 * 6 * 3 / 2 + 1) << 20;",
        "body of a review",
        "19 MiB",
    ),
    (
        "webhook/src/limits.rs",
        "const BODIES: usize = 64 << 20;",
        "bodies of all reviews",
        "64 MiB",
    ),
    (
        "webhook/src/limits.rs",
        "const REQUEST: u32 = 16 << 10;",
        "bodies of all reviews",
        "16 KiB",
    ),
    (
        "webhook/src/limits.rs",
        "const NAMESPACES: usize = 32;",
        "reviews decided at once",
        "32 of namespaces",
    ),
    (
        "webhook/src/limits.rs",
        "const DECIDING: usize = 8;",
        "reviews decided at once",
        "8 of objects",
    ),
    (
        "shared/model/src/review/decode/object.rs",
        "const VALUES: usize = 20_000;",
        "values in the parts of an object",
        "20,000",
    ),
    (
        "shared/model/src/review/decode/object.rs",
        "const MAP: usize = 5;",
        "values in the parts of an object",
        "a map counts for 5",
    ),
];

/// Returns the items of a page's lists and the rows of its tables. One may have several lines.
fn items(text: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    let mut in_item = false;
    for line in text.lines() {
        if line.starts_with("- ") || line.starts_with("| ") {
            items.push(line.to_owned());
            in_item = true;
        } else if line.is_empty() {
            in_item = false;
        } else if let Some(item) = items.last_mut().filter(|_| in_item) {
            item.extend([" ", line.trim()]);
        }
    }
    items
}

/// A flag, as `--help` shows it.
#[derive(Debug)]
pub(crate) struct Flag {
    /// Its environment variable.
    pub(crate) variable: String,
    default: Option<Preset>,
}

/// The default of a flag.
#[derive(Debug)]
enum Preset {
    /// This value.
    Value(String),
    /// What these words say.
    Words(String),
}

impl Flag {
    /// Parses the lines below a flag. A flag without a value is a switch.
    fn parse(lines: &[&str], is_switch: bool) -> Self {
        let bracketed = |name: &str| {
            let found = lines
                .iter()
                .find_map(|line| line.trim().strip_prefix(name)?.strip_suffix(']'));
            found.map(str::to_owned)
        };
        let described: Vec<&str> = lines
            .iter()
            .map(|line| line.trim())
            .take_while(|line| !line.is_empty())
            .collect();
        let described = described.join(" ");
        let words = described.split_once("Default: ");
        let value = bracketed("[default: ").or_else(|| is_switch.then(|| "false".to_owned()));
        let variable = bracketed("[env: ").unwrap_or_default();
        Self {
            variable: variable.split('=').next().unwrap_or_default().to_owned(),
            default: value
                .map(Preset::Value)
                .or_else(|| words.map(|(_, words)| Preset::Words(words.to_owned()))),
        }
    }

    /// Compares the flag with the page. `item` is the text of its item after the name.
    fn compare(&self, name: &str, item: &str) -> Result<()> {
        // The page says how the name of a variable follows from its flag.
        let usual = format!("MIMEO_{}", name.to_uppercase().replace('-', "_"));
        let another = item
            .split_once("Variable `")
            .and_then(|(_, rest)| rest.split('`').next());
        let variable = another.unwrap_or(&usual);
        ensure!(
            self.variable == variable,
            "the variable is {:?} and not {variable}",
            self.variable
        );
        let shown = item
            .strip_prefix(" (default: ")
            .and_then(|rest| rest.split_once("): "))
            .map(|(default, _)| default);
        let agrees = match (&self.default, shown) {
            (None, None) => true,
            (Some(Preset::Value(value)), Some(shown)) => format!("`{value}`") == shown,
            // The page may be shorter.
            (Some(Preset::Words(words)), Some(shown)) => words.starts_with(shown),
            _ => false,
        };
        ensure!(
            agrees,
            "the default is {:?} and not {shown:?}",
            self.default
        );
        Ok(())
    }
}

/// Returns the flags of a program, from the output of `--help`.
pub(crate) async fn flags(program: &str) -> Result<BTreeMap<String, Flag>> {
    let mut running = Program::new(program).arg("--help").quiet().start()?;
    running.wait(SOON).await?;
    let help = running.log()?;
    let lines: Vec<&str> = help.lines().collect();
    // The descriptions of flags are indented further.
    let name_of = |line: &str| {
        let flag = line.trim_start();
        let is_flag = flag.starts_with('-') && line.len() - flag.len() < 10;
        let (_, long) = flag.split_once("--").filter(|_| is_flag)?;
        Some(long.to_owned())
    };
    let mut flags = BTreeMap::new();
    for part in lines.chunk_by(|_, next| name_of(next).is_none()) {
        let Some(flag) = name_of(part[0]) else {
            continue; // The beginning of the output.
        };
        let (name, is_switch) = match flag.split_once(' ') {
            Some((name, _)) => (name.to_owned(), false),
            None => (flag, true),
        };
        if !matches!(&*name, "help" | "version") {
            flags.insert(name, Flag::parse(&part[1..], is_switch));
        }
    }
    ensure!(flags.len() > 5, "the help of {program} shows {flags:?}");
    Ok(flags)
}

#[tokio::test]
async fn the_page_of_flags_has_each_flag_with_its_variable_and_default() -> Result<()> {
    let page = read("docs/reference/flags.md")?;
    let section = |name: &str| {
        let mut parts = page.split("\n### ");
        let found = parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('\n'));
        let found = found.and_then(|text| text.split("\n## ").next());
        found
            .map(items)
            .with_context(|| format!("the page has no section {name}"))
    };
    for program in PROGRAMS {
        let mut flags = flags(program).await?;
        for item in [section("Both programs")?, section(program)?].concat() {
            let (name, rest) = item
                .strip_prefix("- `--")
                .and_then(|rest| rest.split_once('`'))
                .with_context(|| format!("no flag: {item}"))?;
            let flag = flags
                .remove(name)
                .with_context(|| format!("{program} has no --{name}, or the page has it twice"))?;
            flag.compare(name, rest)
                .with_context(|| format!("--{name} of {program}"))?;
        }
        ensure!(flags.is_empty(), "{program} also has {flags:?}");
    }
    Ok(())
}

/// Returns the keys of labels and annotations among the constants: whether each is a label or an
/// annotation, and the key.
fn keys_in_code() -> Result<BTreeSet<(String, String)>> {
    let (mut keys, mut comment, mut before) = (BTreeSet::new(), String::new(), "");
    for line in read("shared/model/src/names.rs")?.lines() {
        if let Some(text) = line.strip_prefix("/// ") {
            comment.push_str(&text.to_lowercase());
            comment.push(' ');
            continue;
        }
        let comment = std::mem::take(&mut comment);
        let value = line
            .strip_prefix("pub const ")
            .and_then(|rest| rest.split('"').nth(1));
        let Some(key) = value.filter(|value| value.contains('/') && !value.ends_with('/')) else {
            continue;
        };
        // The comment begins with one of both words, or says that the constant is the same.
        let first = ["label", "annotation"]
            .into_iter()
            .filter(|word| comment.contains(*word))
            .min_by_key(|word| comment.find(*word));
        let Some(what) = first.or(comment.starts_with("the same ").then_some(before)) else {
            continue;
        };
        before = what;
        keys.insert((what.to_owned(), key.to_owned()));
    }
    Ok(keys)
}

/// Returns the same of the page: the names in backticks right after one of both words, joined by
/// "and" or "or".
fn keys_on_page(page: &str) -> BTreeSet<(String, String)> {
    let mut keys = BTreeSet::new();
    for item in items(page) {
        let mut what = None;
        for word in item.split_whitespace() {
            let name = word.strip_prefix('`').and_then(|rest| rest.split_once('`'));
            what = match (word, what, name) {
                ("label" | "labels", ..) => Some("label"),
                ("annotation" | "annotations", ..) => Some("annotation"),
                ("and" | "or", ..) => what,
                (_, Some(what), Some((name, after))) => {
                    let key = if name.contains('/') {
                        name.to_owned()
                    } else {
                        format!("mimeo.dev/{name}")
                    };
                    keys.insert((what.to_owned(), key));
                    after.is_empty().then_some(what)
                }
                _ => None,
            };
        }
    }
    keys
}

#[test]
fn the_page_of_labels_has_each_label_and_annotation() -> Result<()> {
    let page = keys_on_page(&read("docs/reference/labels.md")?);
    let code = keys_in_code()?;
    ensure!(code.len() > 15, "only {code:?}");
    let missing: Vec<_> = code.difference(&page).collect();
    let further: Vec<_> = page.difference(&code).collect();
    ensure!(
        missing.is_empty() && further.is_empty(),
        "the page lacks {missing:?}, and has without a constant {further:?}"
    );
    Ok(())
}

/// True if a row or an item has this limit.
fn has_limit(row: &str, what: &str, limit: &str) -> bool {
    row.to_lowercase().contains(&what.to_lowercase()) && row.contains(limit)
}

#[test]
fn the_page_of_limits_has_the_numbers_of_the_code() -> Result<()> {
    let mut rows = items(&read("docs/reference/limits.md")?);
    rows.retain(|row| row.contains(|char: char| char.is_ascii_digit()));
    for (file, constant, what, limit) in LIMITS {
        ensure!(
            read(file)?.contains(constant),
            "{file} no longer has {constant:?}: correct {what} on the page, and this test"
        );
        ensure!(
            rows.iter().any(|row| has_limit(row, what, limit)),
            "the page has no limit {what}: {limit}"
        );
    }
    for row in &rows {
        let mut limits = LIMITS.iter();
        ensure!(
            limits.any(|(_, _, what, limit)| has_limit(row, what, limit)),
            "no constant is known for {row}"
        );
    }
    Ok(())
}

#[test]
fn the_page_of_values_has_each_group_and_only_values_that_exist() -> Result<()> {
    let values: Value = serde_yaml::from_str(&read("manifests/chart/values.yaml")?)?;
    let page = read("docs/reference/values.md")?;
    let mut named = BTreeSet::new();
    for path in page.split('`').skip(1).step_by(2) {
        let pointer = format!("/{}", path.replace('.', "/"));
        ensure!(
            values.pointer(&pointer).is_some(),
            "the chart has no value {path}"
        );
        named.extend(path.split('.').next());
    }
    let groups = values.as_object().context("no values")?;
    let missing: Vec<&String> = groups
        .keys()
        .filter(|group| !named.contains(group.as_str()))
        .collect();
    ensure!(missing.is_empty(), "the page lacks {missing:?}");
    Ok(())
}
