//! Why a copy may go.
//!
//! - `disposal`: what is to become of copies that are to be there no more
//! - `collect`: whether they may go now
//! - `absent`: what became of rules and sources that aren't there
//! - `losses`: what each rule loses
//! - `sweep`: losses that nobody confirmed
//! - `withdrawn`: which of them are consent that was taken back on purpose

pub(in crate::engine) mod absent;
pub(in crate::engine) mod collect;
pub(in crate::engine) mod disposal;
pub(in crate::engine) mod losses;
pub(in crate::engine) mod sweep;
pub(in crate::engine) mod withdrawn;
