//! Sets up the log on standard error. Other code decides on the messages.

use std::io;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::filter_fn, layer::SubscriberExt, reload,
    util::SubscriberInitExt,
};

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line of text for each event.
    Text,
    /// A JSON object per line.
    Json,
}

/// Flags for the log.
#[derive(Args)]
#[command(next_help_heading = "Logs")]
pub struct TelemetryArgs {
    /// Format of the log on standard error
    #[arg(
        long,
        env = "MIMEO_LOG_FORMAT",
        value_name = "FORMAT",
        value_enum,
        default_value = "text"
    )]
    pub log_format: LogFormat,
    /// Log level (error, warn, info, debug, trace), or levels per module, as in
    /// `info,mimeo_runtime=debug`
    #[arg(long, env = "MIMEO_LOG", value_name = "FILTER", default_value = "info")]
    pub log_level: String,
}

impl TelemetryArgs {
    /// Installs the process's log subscriber. The returned filter can be changed later.
    ///
    /// # Errors
    /// The filter can't be parsed, or the process has a subscriber already.
    pub fn init(&self) -> anyhow::Result<LogFilter> {
        let (filter, handle) = reload::Layer::new(parse(&self.log_level)?);
        // Kube's client logs an undecodable answer in full, at `warn`. The answer may be a Secret.
        let silent = filter_fn(|metadata| !metadata.target().starts_with("kube_client"));
        let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
        let layer = match self.log_format {
            LogFormat::Text => layer
                .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
                .boxed(),
            LogFormat::Json => layer.json().flatten_event(true).boxed(),
        };
        tracing_subscriber::registry()
            .with(layer.with_filter(silent).with_filter(filter))
            .try_init()?;
        Ok(LogFilter(handle))
    }
}

fn parse(filter: &str) -> anyhow::Result<EnvFilter> {
    EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .parse(filter)
        .map_err(|error| anyhow!("invalid log filter: {error}"))
}

/// The log's filter. Cheap to clone.
#[derive(Clone)]
pub struct LogFilter(pub(crate) reload::Handle<EnvFilter, Registry>);

impl LogFilter {
    /// The present filter, in the syntax of `--log-level`.
    pub fn current(&self) -> String {
        self.0.with_current(ToString::to_string).unwrap_or_default()
    }

    /// Changes the filter, beginning with the next line.
    ///
    /// # Errors
    /// The filter can't be parsed, or the log no longer exists.
    pub fn set(&self, filter: &str) -> anyhow::Result<()> {
        Ok(self.0.reload(parse(filter)?)?)
    }
}
