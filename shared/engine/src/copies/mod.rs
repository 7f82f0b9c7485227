//! From a changed namespace to requests, and from their answers back to the observed state of
//! copies.
//!
//! - `plan`: goes over the namespaces that changed
//! - `wants`: which rule wants which copy
//! - `decide`: the verdict about a copy
//! - `verdict`: what a verdict is, and what follows from it
//! - `blocked`: why a copy cannot exist for now
//! - `created`: copies that are created once
//! - `work`: the queue, the timers and the back-off
//! - `request`: from a decision to a request
//! - `answer`: how an answer changes the copy

pub(crate) mod answer;
pub(crate) mod blocked;
pub(crate) mod created;
pub(crate) mod decide;
pub(crate) mod plan;
pub(crate) mod request;
pub(crate) mod verdict;
pub(crate) mod wants;
pub(crate) mod work;
