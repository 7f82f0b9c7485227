//! How long to wait before a failed operation is retried.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

/// Pauses that double from the first one up to the longest one. Each pause is shortened by up to a
/// half at random, so that replicas which failed together do not retry together.
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Default for Backoff {
    /// From one second to one minute.
    fn default() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_mins(1))
    }
}

impl Backoff {
    /// Starts with `first` and never exceeds `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }

    /// Returns the next pause. Each call doubles the pause after it.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = pause.saturating_mul(2);
        pause.mul_f64(1.0 - f64::from(random(500)) / 1_000.0)
    }

    /// Returns to the first pause, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// A random number below `limit`, from the seeds that the standard library gives to hash maps. They
/// are random enough to spread requests.
pub(crate) fn random(limit: u32) -> u32 {
    let number = RandomState::new().build_hasher().finish() % u64::from(limit.max(1));
    u32::try_from(number).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backoff_doubles_up_to_its_limit_and_begins_anew() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        for most in [1, 2, 4, 8, 16, 30, 30].map(Duration::from_secs) {
            let pause = backoff.pause();
            assert!(pause > most / 2 && pause <= most, "{pause:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_secs(1));
        let drawn: std::collections::BTreeSet<u32> = (0..100).map(|_| random(1000)).collect();
        assert!(drawn.len() > 20 && drawn.iter().all(|&n| n < 1000));
    }
}
