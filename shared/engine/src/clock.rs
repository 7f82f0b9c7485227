//! The engine's only clock.

use std::time::Duration;

/// Time since the process started, always an argument.
pub type Tick = Duration;
