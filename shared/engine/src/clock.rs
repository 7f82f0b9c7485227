//! The engine's only clock.

use std::time::Duration;

/// Time since the process started. The caller hands it over with
/// [`Engine::at`](crate::Engine::at).
pub type Tick = Duration;

/// By how many seconds two creation times may be wrong: the clocks of API servers differ, and each
/// time is cut to whole seconds. Kubernetes waits five seconds before it deletes the content of a
/// namespace. So an object of a former namespace is older than the present one even by more.
pub(crate) const SKEW: u32 = 2;
