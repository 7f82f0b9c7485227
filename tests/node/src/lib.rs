//! The node of `machine.sh` with Mimeo on it, for the end-to-end tests.
//!
//! There is one node, and an installation changes all of it. So the tests run one after another.
//! Each begins with the installation that it needs ([`Mimeo::by_kustomize`] and similar functions),
//! in any state that the previous test has left.

mod mimeo;
mod node;

pub use mimeo::{IMAGE, Mimeo, PROGRAMS, Program};
pub use node::{Node, run};

use std::path::PathBuf;

/// Returns the workspace's folder.
pub fn workspace() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
