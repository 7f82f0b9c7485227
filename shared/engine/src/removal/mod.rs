//! Why Mimeo may delete a copy.
//!
//! - `fate`: the fate of copies without a source, and of copies that no rule wants, and whether they
//!   may be deleted now
//! - `absent`: how rules and sources disappeared
//! - `losses`: the lost copies of each rule
//! - `pending`: losses without a confirmation, which are collected and held
//! - `withdrawn`: consent that was taken back on purpose

pub(crate) mod absent;
pub(crate) mod fate;
pub(crate) mod losses;
pub(crate) mod pending;
pub(crate) mod withdrawn;
