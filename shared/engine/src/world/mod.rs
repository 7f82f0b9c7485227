//! What the cluster shows of rules, kinds, namespaces and copies, and what must be watched and
//! written down for it.
//!
//! - `rules`: rules as they come, change and go, and their slots
//! - `kinds`: which kinds the server serves, and which may have copies
//! - `record`: what is written down before a kind's first copy
//! - `namespaces`: namespaces, and the cells in them
//! - `copies`: what is seen of copies
//! - `survey`: which copies were seen, and where
//! - `demand`: what must be watched for all that
//! - `tidy`: what is forgotten since nothing needs it any more

pub(crate) mod copies;
pub(crate) mod demand;
pub(crate) mod kinds;
pub(crate) mod namespaces;
pub(crate) mod record;
pub(crate) mod rules;
pub(crate) mod survey;
pub(crate) mod tidy;
