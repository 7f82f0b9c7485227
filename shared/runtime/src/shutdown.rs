//! The one signal that ends a program: stop being ready, drain, exit.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
pub use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// A token that SIGTERM and SIGINT cancel. A second signal ends the process at once, with 128 plus
/// the signal's number as exit code.
///
/// Needs a Tokio runtime.
pub fn on_signals() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
                _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            }
        };
        let first = next().await;
        info!(signal = first, "shutting down");
        token.cancel();
        let second = next().await;
        warn!(signal = second, "second signal, exiting at once");
        std::process::exit(128 + second);
    });
    Ok(shutdown)
}
