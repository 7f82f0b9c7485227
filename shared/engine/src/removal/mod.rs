//! Why Mimeo may delete a copy.
//!
//! - `disposal`: the fate of copies without a source, and of copies that no rule wants
//! - `collect`: whether such copies may be deleted now
//! - `absent`: how rules and sources disappeared
//! - `losses`: the lost copies of each rule
//! - `sweep`: losses without a confirmation
//! - `withdrawn`: consent that was taken back on purpose

pub(crate) mod absent;
pub(crate) mod collect;
pub(crate) mod disposal;
pub(crate) mod losses;
pub(crate) mod sweep;
pub(crate) mod withdrawn;
