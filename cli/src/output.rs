//! The forms of output: text for people, JSON and YAML for programs.

use std::{fmt::Write as _, io::IsTerminal as _};

use anyhow::Result;
use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

/// The form of a command's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text for people.
    #[default]
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Prints a result: as text, or as a whole.
pub(crate) fn print<T: Serialize>(
    format: Format,
    result: &T,
    text: impl Fn(&T) -> String,
) -> Result<()> {
    let output = match format {
        Format::Table => shown(&text(result)),
        Format::Json => escaped(&serde_json::to_string_pretty(result)?) + "\n",
        Format::Yaml => shown(&serde_yaml::to_string(result)?),
    };
    write(&output)
}

/// Objects as kubectl takes them: a list in JSON, or the documents of one YAML text.
pub(crate) fn manifests<'a>(
    objects: impl Iterator<Item = &'a Value>,
    format: Format,
) -> Result<String> {
    if format == Format::Json {
        let items: Vec<&Value> = objects.collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        return Ok(serde_json::to_string_pretty(&list)? + "\n");
    }
    let documents: Result<Vec<String>, _> = objects.map(serde_yaml::to_string).collect();
    Ok(documents?.join("---\n"))
}

/// The text without characters that could change the terminal. Users with the permission to write an
/// object choose some of the texts. Only line breaks, tabs and the colours of [`paint`] stay.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        let colour = COLOURS.iter().find(|colour| rest.starts_with(**colour));
        let (kept, length) = match colour {
            Some(colour) => (*colour, colour.len()),
            None if is_control(char) && !"\n\t".contains(char) => ("\u{fffd}", char.len_utf8()),
            None => (&rest[..char.len_utf8()], char.len_utf8()),
        };
        shown += kept;
        rest = &rest[length..];
    }
    shown
}

/// True for control characters, for line breaks, and for characters that change the direction of a
/// text.
fn is_control(char: char) -> bool {
    let breaks = matches!(char, '\u{2028}' | '\u{2029}');
    let directs = matches!(
        char,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    char.is_control() || breaks || directs
}

/// The text on one line: a message from the cluster must not look like further lines of the output.
pub(crate) fn line(text: &str) -> String {
    text.chars()
        .map(|char| if is_control(char) { ' ' } else { char })
        .collect()
}

/// JSON in which also the control characters above U+007E are escaped.
fn escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for char in json.chars() {
        if is_control(char) && char != '\n' {
            // Writing to a String never fails.
            _ = write!(escaped, "\\u{:04x}", u32::from(char));
        } else {
            escaped.push(char);
        }
    }
    escaped
}

/// Prints lines for people to standard error.
pub(crate) fn tell(text: &str) {
    #[allow(clippy::print_stderr)] // The only place.
    {
        eprintln!("{}", shown(text));
    }
}

/// A text as one word of a shell's command.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "-._/:=@,+".contains(char);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Prints a text for people.
pub(crate) fn print_text(text: &str) -> Result<()> {
    write(&shown(text))
}

/// Writes to standard output as it is. A reader that has closed its end (`| head`) ends the program without
/// an error.
pub(crate) fn write(text: &str) -> Result<()> {
    use std::io::{ErrorKind, Write as _};
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        written => Ok(written?),
    }
}

/// A text in a table, and how it looks on a terminal.
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

/// The colour of a text. Other outputs than terminals have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// The terminal's own colour.
    Plain,
    /// Nothing needs to be done.
    Good,
    /// Something is on its way, or worth a look.
    Notice,
    /// A person has to do something.
    Bad,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Self {
        let text = line(&text.into());
        Self { text, tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

/// Lays out rows in columns, as kubectl does. The last column is not padded.
pub(crate) fn table(headers: &[&str], rows: Vec<Vec<Cell>>) -> String {
    layout(headers, rows, coloured())
}

fn layout(headers: &[&str], rows: Vec<Vec<Cell>>, coloured: bool) -> String {
    let headers = headers.iter().map(|header| Cell::from(*header)).collect();
    let rows: Vec<Vec<Cell>> = std::iter::once(headers).chain(rows).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.text.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let padding = width + 3 - cell.text.chars().count();
            line += &paint(&cell.text, cell.tone, coloured);
            line += &" ".repeat(padding);
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Red, green, yellow, and the terminal's own colour.
const COLOURS: [&str; 4] = ["\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"];

fn paint(text: &str, tone: Tone, coloured: bool) -> String {
    let [bad, good, notice, end] = COLOURS;
    let colour = match tone {
        _ if !coloured => return text.to_owned(),
        Tone::Plain => return text.to_owned(),
        Tone::Good => good,
        Tone::Notice => notice,
        Tone::Bad => bad,
    };
    format!("{colour}{text}{end}")
}

/// True if standard output is a terminal whose user has not declined colours
/// (<https://no-color.org>).
fn coloured() -> bool {
    let declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && !declined && !dumb
}

/// How long ago a time was, as kubectl prints ages: `45s`, `5m`, `3h`, `2d`.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(since.as_second()).max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_text_without_its_colour() {
        let rows = || {
            let state = |text: &str, tone| Cell::new(text, tone);
            vec![
                vec!["registry".into(), state("Synced", Tone::Good), "".into()],
                vec!["ca".into(), state("Conflict", Tone::Bad), "ä b".into()],
            ]
        };
        let headers = ["NAME", "STATE", "MESSAGE"];
        let plain = "NAME       STATE      MESSAGE\n\
                     registry   Synced\n\
                     ca         Conflict   ä b\n";
        assert_eq!(layout(&headers, rows(), false), plain);
        let coloured = plain
            .replace("Synced", "\x1b[32mSynced\x1b[0m")
            .replace("Conflict", "\x1b[31mConflict\x1b[0m");
        let trimmed: Vec<String> = layout(&headers, rows(), true)
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        assert_eq!(trimmed.join("\n") + "\n", coloured);
    }

    #[test]
    fn control_characters_are_not_printed() {
        let text = "a\x1b[2J\tb\n\x1b[31mred\x1b[0m";
        assert_eq!(shown(text), "a\u{fffd}[2J\tb\n\x1b[31mred\x1b[0m");
        assert_eq!(shown("\u{202e}\u{9b}"), "\u{fffd}\u{fffd}");
        assert_eq!(line("a\u{2028}b\u{200f}c"), "a b c");
        assert_eq!(escaped("\"a\u{9b}\"\n"), "\"a\\u009b\"\n");
        assert_eq!(line("a\n  fix: b"), "a   fix: b");
    }

    #[test]
    fn a_word_with_other_characters_is_quoted() {
        for (word, text) in [
            ("team-blue/secret/registry", "team-blue/secret/registry"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(id)", "'$(id)'"),
            ("it's", "'it'\\''s'"),
        ] {
            assert_eq!(quoted(word), text);
        }
    }

    #[test]
    fn ages_are_printed_as_kubectl_prints_them() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7200, "2h"),
            (172_800, "2d"),
        ];
        for (seconds, text) in cases {
            assert_eq!(age(at(1_000_000), at(1_000_000 + seconds)), text);
        }
        assert_eq!(age(at(10), at(5)), "0s", "clocks differ");
    }
}
