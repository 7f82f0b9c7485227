//! Limits of a `Replication`. In its own namespace it needs no grant, between namespaces it needs
//! grants, and it never reveals another namespace's objects to its tenant.

#![allow(clippy::unwrap_used)] // It is how a test fails.

mod absent;
mod consent;
mod lost;
mod many;
mod platform;
pub(crate) mod scene;
mod selectors;
mod sources;
mod usage;
