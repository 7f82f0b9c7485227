//! Durations as people write them in flags: `15s`, `2m30s`, `90d`.
//!
//! This is not `humantime`. Clients of the webhook's port send durations, too, and
//! `humantime::parse_duration` 2.4 panics for `18446744073709551615s1000ms`. It also reads `M` as a
//! month.

use std::time::Duration;

use anyhow::ensure;
use jiff::{Span, SpanRelativeTo};

/// The longest duration, about 136 years. Much longer ones would overflow a clock to which they are
/// added.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// Parses numbers with units from weeks (`w`) to nanoseconds (`ns`), the largest unit first. A day
/// has 24 hours. `0` needs no unit.
///
/// Made for `#[arg(value_parser = duration::parse)]`.
///
/// # Errors
/// The text is not a duration, or the duration is negative or over 136 years.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// let parsed = mimeo_runtime::duration::parse("1m30s");
/// assert_eq!(parsed.ok(), Some(Duration::from_secs(90)));
/// assert!(mimeo_runtime::duration::parse("15").is_err());
/// ```
pub fn parse(text: &str) -> anyhow::Result<Duration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let span: Span = text.parse()?;
    let length = span.to_duration(SpanRelativeTo::days_are_24_hours())?;
    let length = Duration::try_from(length)?;
    ensure!(length <= LONGEST, "too long");
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units_are_added_up() {
        let cases = [
            ("0", Some(0)),
            ("250ms", Some(250)),
            ("15s", Some(15_000)),
            ("2m", Some(120_000)),
            ("1h30m", Some(5_400_000)),
            ("90d", Some(90 * 86_400_000)),
            ("15 s", Some(15_000)),
            ("3w", Some(21 * 86_400_000)),
            ("1.5h", Some(5_400_000)),
            ("PT15S", Some(15_000)),
            ("", None),
            ("s", None),
            ("-5s", None),
            ("5s ago", None),
            ("15", None),
            ("10M", None),
            ("1mo", None),
            ("1y", None),
            ("99999999999d", None),
            ("50000d", None),
            ("99999999999999999999d", None),
            ("18446744073709551615s1000ms", None),
        ];
        for (text, want) in cases {
            assert_eq!(
                parse(text).ok(),
                want.map(Duration::from_millis),
                "{text:?}"
            );
        }
    }

    #[test]
    fn an_error_says_what_is_missing() {
        for (text, why) in [
            ("", "an empty string is not a valid duration"),
            ("15", "expected to find unit designator suffix"),
            ("10M", "expected to find unit designator suffix"),
            ("50000d", "too long"),
        ] {
            let error = parse(text).expect_err("it is no duration").to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
