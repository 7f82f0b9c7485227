//! The node of `machine.sh`, and Mimeo on it, as the end-to-end tests see them.
//!
//! There is one node, and an installation changes all of it: tests run one after another, and each
//! begins with the installation that it is about ([`Mimeo::by_kustomize`] and the like), whatever
//! the one before has left.

mod mimeo;
mod node;

pub use mimeo::{Mimeo, PROGRAMS, Program};
pub use node::Node;

use std::path::PathBuf;

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
