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

pub(crate) mod announce;
pub(crate) mod census;
pub(crate) mod conditions;
pub(crate) mod numbers;
pub(crate) mod preview;
pub(crate) mod status;
pub(crate) mod tally;
pub(crate) mod trouble;
pub(crate) mod view;
