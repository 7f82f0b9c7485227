//! Durations as people write them in flags: `15s`, `2m30s`, `90d`.
//!
//! This is not `humantime`. Clients of the webhook's port send durations, too, and
//! `humantime::parse_duration` 2.4 panics for `18446744073709551615s1000ms`. It also reads `M` as a
//! month.

use std::time::Duration;

/// The longest duration, about 136 years. Much longer ones would overflow a clock to which they are
/// added.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text is empty, or a unit has no number before it.
    #[error("expected a number and a unit, as in 15s")]
    NoNumber,
    /// A number has no unit after it, or an unknown one.
    #[error("unknown unit {0:?}; units are ms, s, m, h, d")]
    Unit(String),
    /// The duration is over 136 years.
    #[error("too long")]
    TooLong,
}

/// Parses a sequence of whole numbers with units (`ms`, `s`, `m`, `h`, `d`) and adds them up. `0`
/// needs no unit.
///
/// Made for `#[arg(value_parser = duration::parse)]`.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// assert_eq!(mimeo_runtime::duration::parse("1m30s"), Ok(Duration::from_secs(90)));
/// assert!(mimeo_runtime::duration::parse("15").is_err());
/// ```
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.is_empty() {
        return Err(DurationError::NoNumber);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (number, after) = split_where(rest, |c| !c.is_ascii_digit());
        if number.is_empty() {
            return Err(DurationError::NoNumber);
        }
        let (unit, after) = split_where(after, |c| c.is_ascii_digit());
        let number = number.parse().map_err(|_| DurationError::TooLong)?;
        let part = Duration::from_millis(1)
            .checked_mul(milliseconds(unit)?)
            .and_then(|one| one.checked_mul(number))
            .ok_or(DurationError::TooLong)?;
        total = total
            .checked_add(part)
            .filter(|total| *total <= LONGEST)
            .ok_or(DurationError::TooLong)?;
        rest = after;
    }
    Ok(total)
}

fn split_where(text: &str, end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(end).unwrap_or(text.len()))
}

fn milliseconds(unit: &str) -> Result<u32, DurationError> {
    Ok(match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(DurationError::Unit(unit.to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units_are_added_up() {
        let cases = [
            ("0", Ok(0)),
            ("250ms", Ok(250)),
            ("15s", Ok(15_000)),
            ("2m", Ok(120_000)),
            ("1h30m", Ok(5_400_000)),
            ("90d", Ok(90 * 86_400_000)),
            ("", Err(DurationError::NoNumber)),
            ("s", Err(DurationError::NoNumber)),
            ("-5s", Err(DurationError::NoNumber)),
            ("15", Err(DurationError::Unit(String::new()))),
            ("15 s", Err(DurationError::Unit(" s".to_owned()))),
            ("3w", Err(DurationError::Unit("w".to_owned()))),
            ("10M", Err(DurationError::Unit("M".to_owned()))),
            ("1.5h", Err(DurationError::Unit(".".to_owned()))),
            ("99999999999d", Err(DurationError::TooLong)),
            ("50000d", Err(DurationError::TooLong)),
            ("99999999999999999999d", Err(DurationError::TooLong)),
            ("18446744073709551615s1000ms", Err(DurationError::TooLong)),
        ];
        for (text, want) in cases {
            assert_eq!(parse(text), want.map(Duration::from_millis), "{text:?}");
        }
    }
}
