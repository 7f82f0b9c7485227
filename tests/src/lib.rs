//! A real control plane for tests, the demo and the measurements.
//!
//! [`ControlPlane`] starts etcd, kube-apiserver and kube-controller-manager on free loopback ports
//! with their own certificates. They end with the process that started them, even if that process
//! is killed. [`Program`] does the same for Mimeo's own binaries.
//!
//! The rest of this crate is shared by all scenarios: waiting on a condition with a deadline
//! ([`eventually`]), counting requests in the API server's audit log ([`AuditEvent`]), users with
//! limited permissions ([`User`]), and a few objects.
//!
//! This crate owns no tokio task, so tests with different runtimes may share one control plane. A
//! client belongs to one runtime, so each call of `client()` makes a new one.
//!
//! The scenarios under `tests/` check Mimeo's behaviour. `control-plane/build.sh` builds the
//! binaries of the control plane.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use mimeo_tests::{ControlPlane, create_namespace, unique};
//!
//! let control_plane = ControlPlane::shared().await?;
//! let client = control_plane.client().await?;
//! create_namespace(&client, &unique("team"), &[("tier", "gold")]).await?;
//! # Ok(())
//! # }
//! ```

mod audit;
pub mod author;
mod binaries;
mod browser;
mod collector;
mod control_plane;
pub mod follower;
mod guard;
pub mod managed;
mod objects;
mod ops;
mod pair;
mod pki;
pub mod planted;
mod ports;
mod process;
mod program;
pub mod refused;
pub mod scenario;
mod silent;
pub mod tenant;
pub mod traffic;
mod user;
mod versions;
mod wait;

pub use audit::{AuditEvent, AuditMark, never_permitted};
pub use browser::Browser;
pub use collector::Collector;
pub use control_plane::{Builder, Component, ControlPlane, Shared};
pub use objects::{create_namespace, create_secret, install_crd, unique};
pub use pair::{MALLOC, NAMESPACE, Pair, PairBuilder, Replica, rights_added_up};
pub use program::{Program, Running, locate};
pub use silent::Silent;
pub use user::User;
pub use versions::skipped_before;
pub use wait::eventually;
