//! What both programs start with: the log, the clients, and the pages of the operations server.

use anyhow::Context;
use axum::Router;
use tokio_util::sync::CancellationToken;

use crate::{
    client::{ClientArgs, Clients},
    debug::DebugPages,
    guard::Guard,
    handle::Handle,
    metrics::Metrics,
    operations::{self, OpsArgs},
    readiness::Readiness,
    shutdown,
    telemetry::TelemetryArgs,
};

/// A program that has started.
pub struct Program {
    /// Cancelled when the program must end.
    pub shutdown: CancellationToken,
    /// Whether the program is ready.
    pub readiness: Readiness,
    /// Its metrics.
    pub metrics: Metrics,
    /// Its debug pages.
    pub debug: DebugPages,
    /// Its clients.
    pub clients: Clients,
}

impl Program {
    /// Sets up the log, the signals and the clients. Sends nothing yet. The API server's audit log
    /// shows `name`.
    ///
    /// # Errors
    /// A flag is invalid, or there is no usable configuration of a client.
    pub async fn start(
        name: &str,
        telemetry: &TelemetryArgs,
        client: &ClientArgs,
    ) -> anyhow::Result<Self> {
        let debug = DebugPages::new(telemetry.init()?);
        let shutdown = shutdown::on_signals()?;
        Ok(Self {
            readiness: Readiness::new(shutdown.clone()),
            shutdown,
            metrics: Metrics::default(),
            debug,
            clients: client.clients(name).await?,
        })
    }

    /// Starts the operations server. `more` adds routes, which have to use the guard themselves.
    ///
    /// # Errors
    /// As for [`operations::serve`].
    pub fn operate(
        &self,
        args: &OpsArgs,
        more: impl FnOnce(&Guard) -> Router,
    ) -> anyhow::Result<()> {
        let guard = args.guard(&self.clients.requests);
        let (readiness, metrics) = (self.readiness.clone(), self.metrics.clone());
        let more = more(&guard);
        operations::serve(args, &guard, readiness, metrics, &self.debug, more)
            .context("operations server")
            .map(drop)
    }

    /// Adds the numbers of an engine, of its watches and of the clients to the metrics and to the
    /// debug pages.
    pub fn show(&self, handle: &Handle) {
        let health = &self.clients.watcher.health;
        self.metrics.of_watches(health);
        self.metrics.of_engine(handle);
        self.metrics.of_clients(&self.clients);
        self.debug.of_watches(health);
        self.debug.of_engine(handle);
    }
}
