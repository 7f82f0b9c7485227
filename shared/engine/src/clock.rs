//! The engine's only clock.

use std::time::Duration;

/// Time since the process started. Each function takes it as an argument.
pub type Tick = Duration;
