//! The values that Mimeo decides about, and pure functions of them: identifiers, parsed rules,
//! selection, rendering, object metadata, outcomes of writes, admission reviews and webhook
//! configurations.
//!
//! This crate has no state, no clock and no client. `mimeo-engine` makes the decisions with these
//! values.

pub mod authority;
pub mod choices;
pub mod condition;
pub mod created;
pub mod definition;
pub mod drift;
pub mod grant;
pub mod id;
pub mod kind;
pub mod known;
pub mod marks;
pub mod meta;
pub mod names;
pub mod outcome;
pub mod own_rights;
pub mod ownership;
mod patch;
pub mod plural;
pub mod policy;
pub mod reach;
pub mod refusal;
pub mod registration;
pub mod render;
pub mod review;
pub mod right;
pub mod role;
pub mod rule;
pub mod selection;
pub mod size;
pub mod source;
pub mod source_text;
pub mod sources;
mod syntax;
pub mod template;
pub mod transform;
mod words;
