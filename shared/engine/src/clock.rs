//! The engine's only clock.

use std::time::Duration;

/// Time since the process started. The caller hands it over with
/// [`Engine::at`](crate::Engine::at).
pub type Tick = Duration;

/// How many seconds younger a namespace may seem than an object that was created in it. The clocks of
/// API servers differ by up to a second, and times are cut to whole seconds. An object of a former
/// namespace is older by more: Kubernetes waits five seconds before it deletes the content of a
/// namespace.
pub(crate) const SKEW: u32 = 2;
