//! The one signal that ends a program: stop being ready, drain, exit.

use std::{io, sync::Arc};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};
use tracing::{info, warn};

/// A token that is triggered once. All of its clones see this.
#[derive(Debug, Clone)]
pub struct Shutdown(Arc<watch::Sender<bool>>);

impl Shutdown {
    /// A token that only [`Shutdown::trigger`] triggers.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// A token that SIGTERM and SIGINT trigger. A second signal ends the process at once, with 128
    /// plus the signal's number as exit code.
    ///
    /// Needs a Tokio runtime.
    pub fn on_signals() -> io::Result<Self> {
        let mut signals = Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        let shutdown = Self::new();
        let token = shutdown.clone();
        tokio::spawn(async move {
            let first = signals.recv().await;
            info!(signal = first.as_raw_value(), "shutting down");
            token.trigger();
            let second = signals.recv().await;
            warn!(
                signal = second.as_raw_value(),
                "second signal, exiting at once"
            );
            std::process::exit(128 + second.as_raw_value());
        });
        Ok(shutdown)
    }

    /// Begins the shutdown. Further calls change nothing.
    pub fn trigger(&self) {
        self.0.send_replace(true);
    }

    /// Whether the shutdown has begun.
    pub fn is_triggered(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns as soon as the shutdown has begun. Cancel safe.
    pub async fn triggered(&self) {
        // An error would mean that the sender was dropped, but `self` holds it.
        let _ = self.0.subscribe().wait_for(|triggered| *triggered).await;
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn recv(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_clone_sees_it_whenever_it_looks() {
        let shutdown = Shutdown::new();
        let early = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { shutdown.triggered().await }
        });
        assert!(!shutdown.is_triggered());
        shutdown.clone().trigger();
        early.await.expect("the waiting task ends");
        shutdown.triggered().await;
        assert!(shutdown.is_triggered());
    }
}
