//! The one signal that ends a program: stop being ready, drain, exit.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
pub use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// A token that SIGTERM and SIGINT cancel. A second signal ends the process at once, with 128 plus
/// the signal's number as exit code.
///
/// Needs a Tokio runtime.
pub fn on_signals() -> io::Result<CancellationToken> {
    let mut signals = Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
    };
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    tokio::spawn(async move {
        let first = signals.recv().await;
        info!(signal = first.as_raw_value(), "shutting down");
        token.cancel();
        let second = signals.recv().await;
        warn!(
            signal = second.as_raw_value(),
            "second signal, exiting at once"
        );
        std::process::exit(128 + second.as_raw_value());
    });
    Ok(shutdown)
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
