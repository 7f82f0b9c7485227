//! Every decision Mimeo makes: pure, synchronous, deterministic. Time and events come in as arguments, requests go out as
//! values; whatever waits lives in `mimeo-runtime` and in the binaries.
//!
//! One way through: *event → index → plan → write → outcome → status*.

pub mod admission;
pub mod authority;
pub mod cell;
pub mod condition;
pub mod definition;
pub mod drift;
pub mod engine;
pub mod grant;
pub mod kind;
pub mod lineage;
mod memory;
pub mod meta;
pub mod names;
pub mod outcome;
pub mod own_rights;
pub mod ownership;
mod patch;
pub mod policy;
pub mod reach;
pub mod registration;
pub mod render;
pub mod review;
pub mod rule;
pub mod seeds;
pub mod selection;
pub mod slot;
pub mod sources;
pub mod stamp;
pub mod template;
pub mod transform;
mod words;
