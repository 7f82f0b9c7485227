//! The progress of a long reading, for people at a terminal.

use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

/// A line on the terminal that counts answers while a reading takes long.
#[derive(Default)]
pub(super) struct Progress {
    began: Option<Instant>,
    shown: Option<Instant>,
    answers: usize,
}

impl Progress {
    pub(super) fn count(&mut self) {
        self.answers += 1;
        let now = Instant::now();
        let began = *self.began.get_or_insert(now);
        let due = self.shown.unwrap_or(began) + Duration::from_secs(1);
        if now >= due && std::io::stderr().is_terminal() {
            self.shown = Some(now);
            let mut terminal = std::io::stderr();
            // A terminal that can't be written to is no reason to stop.
            _ = write!(terminal, "\rreading the cluster: {} answers", self.answers);
            _ = terminal.flush();
        }
    }

    pub(super) fn end(&mut self) {
        if self.shown.is_some() {
            _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
