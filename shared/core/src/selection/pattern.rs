//! Regular expressions over names.

use regex::bytes::{Regex, RegexBuilder};

/// Longest pattern, in bytes.
const PATTERN_LENGTH: usize = 256;

/// Most memory of one compiled pattern, in bytes: a rule may have 64 of them.
const PATTERN_SIZE: usize = 256 * 1024;

/// A regular expression over a whole name, in RE2's syntax.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    /// What every match begins with, as far as it is plain to see.
    begins: Box<str>,
}

impl Pattern {
    /// Compiles `text`.
    ///
    /// # Errors
    /// A message for people, with what is wrong in it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("must not be empty".into());
        }
        if text.len() > PATTERN_LENGTH {
            return Err(format!("must not be longer than {PATTERN_LENGTH} characters"));
        }
        // Alone first: `a)|(b` would close the group below, and then not be anchored.
        compile_pattern(text)?;
        let regex = compile_pattern(&format!(r"\A(?:{text})\z"))?;
        Ok(Self { regex, begins: literal_beginning(text).into() })
    }

    /// Whether the whole of `name` matches.
    pub fn matches(&self, name: &str) -> bool {
        self.regex.is_match(name.as_bytes())
    }

    pub(super) fn could_match(&self, prefix: &str) -> bool {
        self.begins.starts_with(prefix) || prefix.starts_with(&*self.begins)
    }
}

/// Over bytes and without Unicode: names are ASCII, `\d` and `\w` mean ASCII in RE2 too, and the tables are large.
fn compile_pattern(text: &str) -> Result<Regex, String> {
    RegexBuilder::new(text).unicode(false).size_limit(PATTERN_SIZE).dfa_size_limit(PATTERN_SIZE).build().map_err(
        |error| {
            match error {
                regex::Error::CompiledTooBig(_) => "not a regular expression that fits into memory".to_owned(),
                // The parser's message draws the pattern over several lines; the last says why.
                other => {
                    let drawn = other.to_string();
                    let why = drawn.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                    format!("not a regular expression: {why}")
                }
            }
        },
    )
}

/// The characters before the first one that could be special.
fn literal_beginning(pattern: &str) -> &str {
    if pattern.contains('|') {
        return "";
    }
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let end = pattern.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(pattern.len());
    // `ab?` may begin with `a` alone.
    let quantified = pattern[end..].starts_with(['?', '*', '+', '{']);
    &pattern[..end - usize::from(quantified && end > 0)]
}
