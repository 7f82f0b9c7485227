//! What people are told.
//!
//! - `status`: what a rule says about itself, and when it is written
//! - `census`: goes over the cells for all statuses that are due
//! - `tally`: what it counts, what is planned, and what failed
//! - `conditions`: a rule's conditions
//! - `trouble`: what is wrong with its sources
//! - `announce`: Events
//! - `numbers`: what metrics are made of
//! - `preview`: what a rule would meet that isn't stored yet
//! - `view`: what has changed of all that, for whoever looks on

pub(in crate::engine) mod announce;
pub(in crate::engine) mod census;
pub(in crate::engine) mod conditions;
pub(in crate::engine) mod numbers;
pub(in crate::engine) mod preview;
pub(in crate::engine) mod status;
pub(in crate::engine) mod tally;
pub(in crate::engine) mod trouble;
pub(in crate::engine) mod view;
