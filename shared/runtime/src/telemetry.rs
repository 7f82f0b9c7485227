//! Logs to standard error and the registry of metrics. What is logged and measured is the business of whoever does it.

use std::io;

use clap::{Args, ValueEnum};
use prometheus_client::{encoding::text::encode, metrics::info::Info, registry::Registry};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{ParseError, filter_fn},
    layer::SubscriberExt,
    util::{SubscriberInitExt, TryInitError},
};

/// How logs look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line for a person.
    Text,
    /// One JSON object per line.
    Json,
}

/// Flags of the logs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs")]
pub struct TelemetryArgs {
    /// Format of the log on standard error
    #[arg(long, env = "MIMEO_LOG_FORMAT", value_name = "FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged: a level (error, warn, info, debug, trace) or directives per module, as in `info,mimeo_runtime=debug`
    #[arg(long, env = "MIMEO_LOG", value_name = "FILTER", default_value = "info")]
    pub log_level: String,
}

/// Why logging couldn't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter can't be parsed.
    #[error("invalid log filter")]
    Filter(#[from] ParseError),
    /// There is a subscriber already.
    #[error("logging was set up before")]
    Twice(#[from] TryInitError),
}

impl TelemetryArgs {
    /// Installs the subscriber of the whole process.
    pub fn init(&self) -> Result<(), TelemetryError> {
        let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).parse(&self.log_level)?;
        // Kube's client logs an answer that it can't decode in full, at `warn`; the answer may be a Secret.
        let silent = filter_fn(|metadata| !metadata.target().starts_with("kube_client"));
        let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
        let layer = match self.log_format {
            LogFormat::Text => layer.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).boxed(),
            LogFormat::Json => layer.json().flatten_event(true).boxed(),
        };
        tracing_subscriber::registry().with(layer.with_filter(silent)).with(filter).try_init()?;
        Ok(())
    }
}

/// The content type of what [`encode_metrics`] returns.
pub const METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A registry whose metrics are all named `mimeo_...`, with `mimeo_build_info` in it.
pub fn registry() -> Registry {
    let mut registry = Registry::with_prefix("mimeo");
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "What is running", build);
    registry
}

/// All metrics as text in the `OpenMetrics` format.
///
/// # Errors
/// Only where a metric's own collector fails.
pub fn encode_metrics(registry: &Registry) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    encode(&mut text, registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_carry_the_prefix_and_end_as_the_format_asks() {
        let text = encode_metrics(&registry()).expect("plain metrics encode");
        assert!(text.contains("mimeo_build_info{version=\""), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
