//! Regular expressions over names.

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use regex_automata::{
    Anchored, Input,
    dfa::{Automaton, StartKind, dense},
    nfa::thompson,
    util::syntax,
};
use regex_syntax::ast::parse::Parser;

use super::glob::GLOB_LOAD;

/// Longest pattern, in bytes.
const PATTERN_LENGTH: usize = 256;

/// Most memory of one pattern, in bytes. The owner of a namespace may write many patterns, and
/// `{10000}` needs much memory. A pattern for names of up to 63 characters needs a tenth of the
/// limit.
const PATTERN_SIZE: usize = 32 * 1024;
/// The same limit during the compilation.
const COMPILING: usize = 8 * PATTERN_SIZE;

/// This many bytes of a pattern cost as much as one name.
const BYTES_OF_A_NAME: usize = 128;

/// The syntax that Mimeo and API servers read alike, as a pattern over patterns.
///
/// Mimeo parses a pattern by Rust's dialect, API servers by RE2's. Their parsers refuse most syntax
/// of only the other dialect. Syntax that both accept may have two meanings, as `[[a-z]0-9]` and
/// `\<`. The policy that guards labels would then select other namespaces than Mimeo. Names of
/// namespaces need only this part:
/// - groups, without flags and without a name
/// - characters, `.`, `^`, `$` and `|`
/// - escapes that are no edges of words and no codes of characters
/// - classes without a class inside and without a leading `]`; a `-` there follows no other `-`
/// - repetitions, without spaces
const COMMON: &str = concat!(
    r"(?:\((?:\?:)?",
    r"|(?:[[:word:].,^$)|-]",
    r"|\\[dswDSW_.,^$*+?{}()|\[\]\\-]",
    r"|\[\^?(?:-|(?:-?(?:[[:word:].,$*+?{}()|]|\\[dswDSW_.,^$*+?{}()|\[\]\\-]))+-?)\]",
    r")(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})?\??)*",
);
static SYNTAX: LazyLock<Pattern> =
    LazyLock::new(|| Pattern::compile(COMMON).expect("a constant that tests compile"));

/// A regular expression that must match a whole name, in RE2's syntax. It is compiled to a table. A
/// match takes one step for each character and no further memory, for every expression.
#[derive(Clone)]
pub struct Pattern {
    table: Arc<dense::DFA<Vec<u32>>>,
}

/// Not derived, because the table is unreadable.
impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({} bytes)", self.table.memory_usage())
    }
}

impl Pattern {
    /// Compiles `text`.
    ///
    /// # Errors
    /// A message for people that names the fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("must not be empty".into());
        }
        if text.len() > PATTERN_LENGTH {
            return Err(format!(
                "must not be longer than {PATTERN_LENGTH} characters"
            ));
        }
        Parser::new().parse(text).map_err(|error| {
            // The parser's message shows the pattern on several lines. The last has the reason.
            let drawn = error.to_string();
            let why = drawn.lines().last().unwrap_or_default();
            let why = why.trim_start_matches("error: ");
            format!("not a regular expression: {why}")
        })?;
        if !SYNTAX.matches(text) {
            return Err(
                "not a regular expression in RE2's syntax of characters, classes, groups \
                and counts, without flags, named classes, edges of words and codes of characters"
                    .into(),
            );
        }
        Self::compile(text).ok_or_else(|| {
            format!("not a regular expression that fits into {PATTERN_SIZE} bytes of memory")
        })
    }

    /// Compiles an expression for the whole name. `None` if the table is too large.
    ///
    /// It compiles without Unicode. Names are ASCII, `\d` and `\w` mean ASCII in RE2 as well, and
    /// Unicode tables are large.
    fn compile(text: &str) -> Option<Self> {
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            .accelerate(false)
            .dfa_size_limit(Some(PATTERN_SIZE))
            .determinize_size_limit(Some(COMPILING));
        let table = dense::Builder::new()
            .configure(config)
            .thompson(thompson::Config::new().nfa_size_limit(Some(COMPILING)))
            .syntax(syntax::Config::new().unicode(false).utf8(false))
            .build(&format!("(?:{text})$"))
            .ok()?;
        Some(Self {
            table: Arc::new(table),
        })
    }

    /// True if the pattern matches the whole of `name`.
    pub fn matches(&self, name: &str) -> bool {
        let input = Input::new(name).anchored(Anchored::Yes).earliest(true);
        self.table
            .try_search_fwd(&input)
            .is_ok_and(|found| found.is_some())
    }

    /// The cost of memory and of a match, in names compared.
    pub fn load(&self) -> usize {
        GLOB_LOAD.max(self.table.memory_usage() / BYTES_OF_A_NAME)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    #[test]
    fn what_anybody_means_is_small_and_what_is_meant_to_be_large_is_refused() {
        for text in [
            "team-[0-9]+",
            "team-[a-z0-9-]{1,40}",
            "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
            "(dev|test|prod)-.*-[a-z]{2}[0-9]{3}",
            ".*-(preview|pr)-[0-9]+",
            "^tenant-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
        ] {
            let pattern = Pattern::parse(text).unwrap();
            let size = pattern.table.memory_usage();
            eprintln!("{text}: {size} bytes, load {}", pattern.load());
            assert!(size <= PATTERN_SIZE / 2, "{text}: {size}");
        }
        for text in [
            "(a{10000})",
            "((a{100}){100}){100}",
            r"(?:\w{1,60}){60}",
            ".*a.{20}",
            "(.*a.{9}){9}",
            "(?u)(\\w{9}){99}",
        ] {
            let refused = Pattern::parse(text).unwrap_err();
            assert!(
                refused.starts_with("not a regular expression"),
                "{text}: {refused}"
            );
        }
    }

    /// API servers accept each of these expressions, or some expressions of the same sort.
    #[test]
    fn syntax_that_others_read_otherwise_is_refused() {
        for text in [
            "[a-z&&[^x]]+",
            "[a&&b]",
            "[!--b]",
            "[a-z~~b]",
            "[[a-z]0-9]",
            "[a[b]]",
            "x[^a[:b:]]",
            "[--a]",
            "[^--a]",
            "[a--b]",
            "[]-a]",
            r"\<a",
            r"(a|b\>)",
            r"\b{start}a",
            r"a\b{end-half}",
            "a{ 2 }",
            "a{2, 3}",
            "(?x)a",
            "(?iR:a)",
            "a(?-u:b)",
        ] {
            let refused = Pattern::parse(text).expect_err(text);
            assert!(refused.contains("RE2's syntax"), "{text}: {refused}");
        }
    }

    /// API servers read each of these expressions alike, but no name needs them.
    #[test]
    fn syntax_that_no_name_needs_is_refused() {
        for text in [
            "(?i)a",
            "a(?s-mU:b)",
            "(?P<n>a)",
            "[[:alpha:]]",
            "[]a]",
            "[^]a]",
            r"\ba\B",
            r"\Aa\z",
            r"\x41",
            "a b",
            "a**",
        ] {
            let refused = Pattern::parse(text).expect_err(text);
            assert!(refused.contains("RE2's syntax"), "{text}: {refused}");
        }
    }

    #[test]
    fn syntax_that_both_read_alike_is_taken() {
        for text in [
            "[-]",
            "[^-]",
            "[-a-z]",
            "[a-z.-]+",
            "[a-c-e]",
            r"[\--a]",
            r"[\[\]]",
            r"[^\d\s]\w\-\.",
            "(?:a|b)(c|)",
            "^a--b$",
            "a{2}b{1,2}?c{3,}d*?",
        ] {
            assert!(Pattern::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_pattern_counts_by_its_size() {
        let load = |text| Pattern::parse(text).unwrap().load();
        assert_eq!(load("a"), GLOB_LOAD);
        assert!(load("(a|b){500}") > 2 * load("[a-z0-9-]{1,40}"));
    }
}
