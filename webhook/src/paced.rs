//! Limits how often one message is logged. Any client that reaches the port can cause some messages
//! thousands of times.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const EVERY: Duration = Duration::from_secs(10);

/// Time of the last log line.
#[derive(Default)]
pub(crate) struct Paced(Mutex<Option<Instant>>);

impl Paced {
    /// True if the message is due. It then counts as logged.
    pub(crate) fn is_news(&self) -> bool {
        let mut told = self.0.lock();
        let news = told.is_none_or(|told| told.elapsed() >= EVERY);
        if news {
            *told = Some(Instant::now());
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_told_now_and_then() {
        let paced = Paced::default();
        assert_eq!([paced.is_news(), paced.is_news()], [true, false]);
        tokio::time::advance(EVERY).await;
        assert_eq!([paced.is_news(), paced.is_news()], [true, false]);
    }
}
