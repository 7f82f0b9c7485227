//! The IO that Mimeo's two programs share: connections to the API server, certificates, leases,
//! telemetry and shutdown.
//!
//! This crate does not decide how Mimeo treats an object. `mimeo-engine` decides that.

pub mod access;
pub mod backoff;
pub mod call;
pub mod certificates;
pub mod client;
mod connections;
pub mod debug;
pub mod definitions;
pub mod discovery;
pub mod driver;
pub mod duration;
pub mod follow;
pub mod guard;
pub mod handle;
pub mod https;
pub mod identity;
pub mod lease;
pub mod limiter;
mod linger;
pub mod listen;
pub mod metrics;
pub mod named;
pub mod object;
pub mod observer;
pub mod operations;
mod pieces;
pub mod program;
pub mod reach;
pub mod readiness;
pub mod shutdown;
pub mod stored;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod trace;
pub mod watch;
pub mod writer;
