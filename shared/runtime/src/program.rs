//! What both programs start with: the log, the clients, and the pages of the operations server.

use anyhow::Context;
use axum::Router;
use clap::Args;
use mimeo_engine::{Engine, Settings};
use tokio_util::sync::CancellationToken;

use crate::{
    client::{ClientArgs, Clients},
    debug::DebugPages,
    guard::Guard,
    handle::{CopyMetrics, Handle},
    identity::IdentityArgs,
    metrics::Metrics,
    operations::{self, OpsArgs},
    reach::ReachArgs,
    readiness::Readiness,
    shutdown,
    telemetry::TelemetryArgs,
    trace::{TraceArgs, Traces},
};

/// Flags of both programs.
#[derive(Args)]
pub struct ProgramArgs {
    /// The connection to the API server.
    #[command(flatten)]
    pub client: ClientArgs,
    /// The identity of the process.
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// The limits of the installation.
    #[command(flatten)]
    pub reach: ReachArgs,
    /// The operations server.
    #[command(flatten)]
    pub ops: OpsArgs,
    /// The log.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
    /// Traces.
    #[command(flatten)]
    pub trace: TraceArgs,
}

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
    pub async fn start(name: &str, args: &ProgramArgs) -> anyhow::Result<Self> {
        let debug = DebugPages::new(args.telemetry.init()?);
        let shutdown = shutdown::on_signals()?;
        Ok(Self {
            readiness: Readiness::new(shutdown.clone()),
            shutdown,
            metrics: Metrics::default(),
            debug,
            clients: args.client.clients(name).await?,
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

    /// Starts an engine. Adds its numbers, and those of its watches and of the clients, to the
    /// metrics and to the debug pages.
    pub fn engine(&self, settings: Settings, traces: Traces) -> Handle {
        let counts = self.metrics.add(CopyMetrics::new);
        let handle = Handle::new(Engine::new(settings), counts, traces);
        let health = &self.clients.watcher.health;
        self.metrics.of_watches(health);
        self.metrics.of_engine(&handle);
        self.metrics.of_clients(&self.clients);
        self.debug.of_watches(health);
        self.debug.of_engine(&handle);
        handle
    }
}
