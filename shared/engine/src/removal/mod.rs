//! Why a copy may go.
//!
//! - `disposal`: what is to become of copies that are to be there no more
//! - `collect`: whether they may go now
//! - `absent`: what became of rules and sources that aren't there
//! - `losses`: what each rule loses
//! - `sweep`: losses that nobody confirmed
//! - `withdrawn`: consent that was taken back on purpose

pub(crate) mod absent;
pub(crate) mod collect;
pub(crate) mod disposal;
pub(crate) mod losses;
pub(crate) mod sweep;
pub(crate) mod withdrawn;
