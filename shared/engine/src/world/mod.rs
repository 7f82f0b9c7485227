//! The observed state of rules, kinds, namespaces and copies. From it follows which watches and
//! records are needed.
//!
//! - `rules`: rules as they appear, change and disappear, and their projections
//! - `kinds`: which kinds the API server serves, and which may have copies
//! - `record`: the records that are written before a kind's first copy
//! - `namespaces`: namespaces, and the copies in them
//! - `copies`: copies as their watch shows them
//! - `copy_watches`: which copies the watches have listed, and where
//! - `demand`: the watches that are needed
//! - `tidy`: removes state that is no longer needed

pub(crate) mod copies;
pub(crate) mod copy_watches;
pub(crate) mod demand;
pub(crate) mod kinds;
pub(crate) mod namespaces;
pub(crate) mod record;
pub(crate) mod rules;
pub(crate) mod tidy;
