//! Sets up the log on standard error. Other code decides on the messages.

use std::{fmt, io};

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{ParseError, filter_fn},
    layer::SubscriberExt,
    reload,
    util::{SubscriberInitExt, TryInitError},
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
#[derive(Debug, Clone, Args)]
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

/// Why the log could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter can't be parsed.
    #[error("invalid log filter: {0}")]
    Filter(ParseError),
    /// The log no longer exists.
    #[error("the log can't be changed any more")]
    Gone(#[from] reload::Error),
    /// There is a subscriber already.
    #[error("logging was set up before")]
    Twice(#[from] TryInitError),
}

impl TelemetryArgs {
    /// Installs the process's log subscriber. The returned filter can be changed later.
    pub fn init(&self) -> Result<LogFilter, TelemetryError> {
        let (filter, handle) =
            reload::Layer::new(parse(&self.log_level).map_err(TelemetryError::Filter)?);
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
        Ok(handle.into())
    }
}

fn parse(filter: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .parse(filter)
}

/// The log's filter. Cheap to clone.
#[derive(Clone)]
pub struct LogFilter(reload::Handle<EnvFilter, Registry>);

impl LogFilter {
    /// The present filter, in the syntax of `--log-level`.
    pub fn current(&self) -> String {
        self.0.with_current(ToString::to_string).unwrap_or_default()
    }

    /// Changes the filter, beginning with the next line.
    pub fn set(&self, filter: &str) -> Result<(), TelemetryError> {
        self.0
            .reload(parse(filter).map_err(TelemetryError::Filter)?)
            .map_err(TelemetryError::from)
    }
}

impl From<reload::Handle<EnvFilter, Registry>> for LogFilter {
    fn from(handle: reload::Handle<EnvFilter, Registry>) -> Self {
        Self(handle)
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogFilter").field(&self.current()).finish()
    }
}
