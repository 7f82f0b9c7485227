//! Reports to users.
//!
//! - `status`: the status of a rule, and when it is written
//! - `tally`: the counts of a rule, its plan, and its failures
//! - `conditions`: the conditions of a rule
//! - `trouble`: the problems with a rule's sources
//! - `events`: Events
//! - `numbers`: the values for metrics
//! - `preview`: the effects of a rule that isn't stored yet
//! - `view`: the changes of rules and namespaces, for the page that shows them

pub(crate) mod conditions;
pub(crate) mod events;
pub(crate) mod numbers;
pub(crate) mod preview;
pub(crate) mod status;
pub(crate) mod tally;
pub(crate) mod trouble;
pub(crate) mod view;
