//! What a namespace's own rule may do: within it by itself, between namespaces what these consent
//! to, and nothing that would tell a tenant what there is in another's.

#![allow(clippy::unwrap_used)] // It is how a test fails.

mod absent;
mod consent;
mod lost;
mod many;
mod platform;
mod scene;
mod selectors;
mod sources;
mod usage;
