//! The engine's only clock.

use std::time::Duration;

/// Time since the process started. The caller hands it over with
/// [`Engine::at`](crate::Engine::at).
pub type Tick = Duration;
