//! Limits how many requests are in flight, and adapts this limit to the API server. A fixed limit,
//! as tower has it, would be a guess.
//!
//! A task takes a [`Permit`] before it sends a request, and reports the result with
//! [`Permit::done`]. While answers are quick the limit grows by about one per round of requests.
//! When the server is overloaded the limit is halved. `Pace` decides this and has no clock of its
//! own.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// The initial limit: high enough for quick writes from the start, and low enough for any server.
const START: usize = 32;
/// The limit is halved at most once in this time, or once per round of requests if a round is
/// longer. A burst of errors is one overload.
const CUT_EVERY: Duration = Duration::from_millis(100);
/// An average latency below this says nothing about load.
const QUICK: Duration = Duration::from_millis(5);
/// Above this multiple of the best recent average the limit does not grow: more requests would only
/// wait longer.
const SLOW: f64 = 4.0;
/// Above this multiple the server is overloaded even if it does not say so, and the limit is
/// halved.
const OVERLOADED: f64 = 20.0;
/// How long an average counts as recent: at least this, at most twice this.
const RECENT: Duration = Duration::from_secs(30);

/// Hands out permits. A clone shares the limit.
#[derive(Clone)]
pub struct Limiter(Arc<Shared>);

struct Shared {
    pace: Mutex<Pace>,
    /// Wakes one waiter. That waiter wakes the next one if there is still room.
    room: Notify,
}

/// Allows one request in flight. A permit that is dropped without a verdict only makes room.
#[must_use = "dropping a permit gives the room to someone else"]
pub struct Permit(Arc<Shared>);

/// The result of a request, as a sign of the server's load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The request was answered after this time.
    Ok(Duration),
    /// The answer was a 429 or a server error, or there was no answer in time.
    Overload {
        /// No request is sent before this time has passed.
        retry_after: Option<Duration>,
    },
    /// The answer says nothing about the load.
    Unrelated,
}

impl Limiter {
    /// Keeps the limit between `min` (at least 1) and `max`.
    pub fn new(min: usize, max: usize) -> Self {
        Self(Arc::new(Shared {
            pace: Mutex::new(Pace::new(min, max, Instant::now())),
            room: Notify::new(),
        }))
    }

    /// Returns a permit if there is room now.
    #[cfg(test)]
    pub(crate) fn try_acquire(&self) -> Option<Permit> {
        matches!(self.0.take(), Room::Taken).then(|| Permit(self.0.clone()))
    }

    /// Waits for room and returns a permit. Cancel safe.
    pub async fn acquire(&self) -> Permit {
        loop {
            match self.0.take() {
                Room::Taken => return Permit(self.0.clone()),
                Room::Full => self.0.room.notified().await,
                Room::Paused(until) => sleep_until(until).await,
            }
        }
    }

    /// The current limit.
    #[cfg(test)]
    pub(crate) fn limit(&self) -> usize {
        self.0.pace.lock().whole_limit()
    }
}

impl Shared {
    fn take(&self) -> Room {
        let mut pace = self.pace.lock();
        let room = pace.take(Instant::now());
        if room == Room::Taken && pace.in_flight < pace.whole_limit() {
            // The limit may have grown by more than the one place that woke this waiter.
            self.room.notify_one();
        }
        room
    }
}

impl Permit {
    /// Returns the permit and reports the request's result.
    pub fn done(self, verdict: Verdict) {
        self.0.pace.lock().learn(verdict, Instant::now());
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.pace.lock().in_flight -= 1;
        self.0.room.notify_one();
    }
}

/// Whether another request may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Yes. The request now counts as in flight.
    Taken,
    /// No. The limit is reached.
    Full,
    /// Not before this time.
    Paused(Instant),
}

/// Decides on the limit. Time is an argument.
struct Pace {
    min: f64,
    max: f64,
    limit: f64,
    in_flight: usize,
    paused_until: Instant,
    /// When the limit may be halved again.
    next_cut: Instant,
    /// Moving average of latencies in seconds; none before the first.
    average: Option<f64>,
    /// The smallest averages of the current window and of the window before it.
    smallest: [f64; 2],
    window_ends: Instant,
}

impl Pace {
    #[allow(clippy::cast_precision_loss)] // Limits are two-digit numbers.
    fn new(min: usize, max: usize, now: Instant) -> Self {
        let min = min.max(1);
        let max = max.max(min);
        Self {
            min: min as f64,
            max: max as f64,
            limit: START.clamp(min, max) as f64,
            in_flight: 0,
            paused_until: now,
            next_cut: now,
            average: None,
            smallest: [f64::INFINITY; 2],
            window_ends: now + RECENT,
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `min` to `max`: a usize.
    fn whole_limit(&self) -> usize {
        self.limit as usize
    }

    fn take(&mut self, now: Instant) -> Room {
        if now < self.paused_until {
            Room::Paused(self.paused_until)
        } else if self.in_flight >= self.whole_limit() {
            Room::Full
        } else {
            self.in_flight += 1;
            Room::Taken
        }
    }

    fn learn(&mut self, verdict: Verdict, now: Instant) {
        match verdict {
            Verdict::Ok(latency) => self.learn_latency(latency.as_secs_f64(), now),
            Verdict::Overload { retry_after } => {
                // The caller has capped it at a minute.
                let pause = retry_after.unwrap_or_default();
                self.paused_until = self.paused_until.max(now + pause);
                self.cut(now);
            }
            Verdict::Unrelated => {}
        }
    }

    fn learn_latency(&mut self, latency: f64, now: Instant) {
        let average = self
            .average
            .map_or(latency, |average| average + (latency - average) / 16.0);
        self.average = Some(average);
        if now >= self.window_ends {
            self.smallest = [f64::INFINITY, self.smallest[0]];
            self.window_ends = now + RECENT;
        }
        self.smallest[0] = self.smallest[0].min(average);
        let best = self.smallest[0]
            .min(self.smallest[1])
            .max(QUICK.as_secs_f64());
        if average > best * OVERLOADED {
            self.cut(now);
        } else if average < best * SLOW && self.in_flight * 2 >= self.whole_limit() {
            // Growth requires that at least half of the limit is in flight. Answers under little
            // load prove nothing about a higher limit.
            self.limit = (self.limit + 1.0 / self.limit).min(self.max);
        }
    }

    fn cut(&mut self, now: Instant) {
        if now < self.next_cut {
            return;
        }
        self.limit = (self.limit / 2.0).max(self.min);
        // Requests in flight were sent under the old limit, so their answers say nothing about the
        // new one. The cap of a minute limits the effect of a single absurd latency.
        let round = Duration::from_secs_f64(self.average.unwrap_or_default().min(60.0));
        self.next_cut = now + round.max(CUT_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const OVERLOAD: Verdict = Verdict::Overload { retry_after: None };

    fn busy(now: Instant) -> Pace {
        let mut pace = Pace::new(4, 64, now);
        while pace.take(now) == Room::Taken {}
        pace
    }

    #[test]
    fn limit_starts_between_its_bounds() {
        let now = Instant::now();
        for (min, max, want) in [(4, 64, 32), (0, 8, 8), (40, 64, 40), (0, 0, 1), (9, 3, 9)] {
            assert_eq!(Pace::new(min, max, now).whole_limit(), want, "{min}..{max}");
        }
    }

    #[test]
    fn quick_answers_raise_the_limit_by_one_a_round() {
        let now = Instant::now();
        let mut pace = busy(now);
        for _ in 0..33 {
            pace.learn(Verdict::Ok(10 * MS), now);
        }
        assert_eq!(pace.whole_limit(), 33);
        for _ in 0..10_000 {
            while pace.take(now) == Room::Taken {}
            pace.learn(Verdict::Ok(10 * MS), now);
        }
        assert_eq!(pace.whole_limit(), 64);
    }

    #[test]
    fn limit_stays_while_little_is_under_way() {
        let now = Instant::now();
        let mut pace = Pace::new(4, 64, now);
        pace.take(now);
        (0..1000).for_each(|_| pace.learn(Verdict::Ok(MS), now));
        assert_eq!(pace.whole_limit(), 32);
    }

    #[test]
    fn slow_answers_stop_the_growth_and_very_slow_ones_halve() {
        let now = Instant::now();
        let mut pace = busy(now);
        pace.learn(Verdict::Ok(MS), now);
        let grown = pace.limit;
        (0..200).for_each(|_| pace.learn(Verdict::Ok(50 * MS), now));
        let average = pace.average.expect("a sample");
        assert!((0.02..0.051).contains(&average), "{average}");
        assert!(pace.limit < grown + 0.5);
        (0..200).for_each(|_| pace.learn(Verdict::Ok(3000 * MS), now));
        assert_eq!(pace.whole_limit(), 16);
    }

    #[test]
    fn a_burst_of_errors_halves_once() {
        let now = Instant::now();
        let mut pace = busy(now);
        (0..32).for_each(|_| pace.learn(OVERLOAD, now + 10 * MS));
        assert_eq!(pace.whole_limit(), 16);
        pace.learn(OVERLOAD, now + 111 * MS);
        assert_eq!(pace.whole_limit(), 8);
        pace.learn(OVERLOAD, now + 500 * MS);
        assert_eq!(pace.whole_limit(), 4);
        pace.learn(OVERLOAD, now + 1000 * MS);
        assert_eq!(pace.whole_limit(), 4, "never below the minimum");
    }

    #[test]
    fn what_was_slow_long_ago_is_the_new_measure() {
        let now = Instant::now();
        let mut pace = busy(now);
        pace.learn(Verdict::Ok(MS), now);
        for second in 1..100 {
            pace.learn(Verdict::Ok(50 * MS), now + Duration::from_secs(second));
        }
        let before = pace.limit;
        pace.learn(Verdict::Ok(50 * MS), now + Duration::from_secs(100));
        assert!(pace.limit > before, "50 ms is what this server takes");
    }

    #[test]
    fn retry_after_pauses_everything() {
        let now = Instant::now();
        let mut pace = Pace::new(4, 64, now);
        pace.learn(
            Verdict::Overload {
                retry_after: Some(2000 * MS),
            },
            now,
        );
        assert_eq!(pace.take(now + 1999 * MS), Room::Paused(now + 2000 * MS));
        assert_eq!(pace.take(now + 2000 * MS), Room::Taken);
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_get_what_others_give_back() {
        let limiter = Limiter::new(1, 2);
        let (first, second) = (limiter.acquire().await, limiter.acquire().await);
        assert!(limiter.try_acquire().is_none());
        let waiters = [0, 1].map(|_| {
            tokio::spawn({
                let limiter = limiter.clone();
                async move { limiter.acquire().await.done(Verdict::Ok(MS)) }
            })
        });
        tokio::task::yield_now().await;
        first.done(Verdict::Overload {
            retry_after: Some(Duration::from_secs(3)),
        });
        drop(second);
        let started = Instant::now();
        for waiter in waiters {
            waiter.await.expect("a waiter that is served");
        }
        assert_eq!(started.elapsed().as_secs(), 3);
    }
}
