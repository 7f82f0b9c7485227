//! The forms of output: text for people, JSON and YAML for programs.

use anyhow::Result;
use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;

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
        Format::Table => text(result),
        Format::Json => serde_json::to_string_pretty(result)? + "\n",
        Format::Yaml => serde_yaml::to_string(result)?,
    };
    write(&output)
}

/// Writes to standard output. A reader that has closed its end (`| head`) ends the program without
/// an error.
pub(crate) fn write(text: &str) -> Result<()> {
    use std::io::{ErrorKind, Write as _};
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        written => Ok(written?),
    }
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
