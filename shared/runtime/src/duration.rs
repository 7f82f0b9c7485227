//! Durations as people write them in flags: `15s`, `2m30s`, `90d`.

use std::time::Duration;

/// The longest duration, about 136 years. Much longer ones would overflow a clock to which they are
/// added.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DurationError {
    /// A number or a unit is missing or unknown.
    #[error(transparent)]
    Unreadable(#[from] humantime::DurationError),
    /// The duration is over 136 years.
    #[error("too long")]
    TooLong,
}

/// Adds up whole numbers with units. `0` needs no unit.
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
    let duration = humantime::parse_duration(text)?;
    if duration > LONGEST {
        return Err(DurationError::TooLong);
    }
    Ok(duration)
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
            ("", None),
            ("s", None),
            ("-5s", None),
            ("15", None),
            ("3x", None),
            ("99999999999d", None),
            ("99999999999999999999d", None),
        ];
        for (text, want) in cases {
            assert_eq!(
                parse(text).ok(),
                want.map(Duration::from_millis),
                "{text:?}"
            );
        }
    }
}
