//! From a namespace in which something changed to a request, and back to what is believed to be in
//! a cell.
//!
//! - `plan`: goes over the namespaces in which something changed
//! - `wants`: which cell is which rule's
//! - `decide`: what to do about a cell
//! - `hindrance`: why there can be nothing in it for now
//! - `seeds`: copies that are created once
//! - `work`: the queue, the timers and the back-off
//! - `request`: from a decision to a request
//! - `answer`: what the answer means for the cell

pub(crate) mod answer;
pub(crate) mod decide;
pub(crate) mod hindrance;
pub(crate) mod plan;
pub(crate) mod request;
pub(crate) mod seeds;
pub(crate) mod wants;
pub(crate) mod work;
