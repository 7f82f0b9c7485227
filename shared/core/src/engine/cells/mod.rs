//! From a namespace in which something changed to a request, and back to what is believed to be in a cell.
//!
//! - `plan`: goes over the namespaces in which something changed
//! - `wants`: which cell is which rule's
//! - `decide`: what to do about a cell
//! - `hindrance`: why there can be nothing in it for now
//! - `ring`: copies that would be made of themselves
//! - `seeds`: copies that are created once
//! - `work`: the queue, the timers and the back-off
//! - `request`: from a decision to a request
//! - `answer`: what the answer means for the cell

pub(in crate::engine) mod answer;
pub(in crate::engine) mod decide;
pub(in crate::engine) mod hindrance;
pub(in crate::engine) mod plan;
pub(in crate::engine) mod request;
pub(in crate::engine) mod ring;
pub(in crate::engine) mod seeds;
pub(in crate::engine) mod wants;
pub(in crate::engine) mod work;
