//! The control planes that modules share.
//!
//! The first test on a stage starts it, and it ends with the process. A test on a stage keeps to
//! the namespaces, labels and names of its scene.
//!
//! A test needs its own control plane if it counts requests of all namespaces, floods the API
//! server, or ends a program. The same holds if it changes the webhook configurations or reads all
//! objects of the cluster.

use mimeo_tests::{ControlPlane, Pair, scenario::Stage};
use tokio::sync::Mutex;

/// Held by a test that keeps its API server or a webhook busy for long. Two of them at once would
/// leave the other tests too little of the machine. It comes before the lock of a stage.
pub(crate) static LOAD: Mutex<()> = Mutex::const_new(());

/// Both programs with all permissions and default flags.
pub(crate) static PLAIN: Stage = Stage::new(|| ControlPlane::builder().audit(true), Pair::builder);

/// Both programs with the permissions of the manifests.
pub(crate) static SHIPPED: Stage = Stage::new(
    || ControlPlane::builder().audit(true),
    || Pair::builder().shipped_rights(),
);

/// As [`PLAIN`], but lost copies are collected for one second instead of ten.
pub(crate) static QUICK: Stage = Stage::new(
    || ControlPlane::builder().audit(true),
    || Pair::builder().reconciler_args(["--deletion-delay", "1s"]),
);

/// As [`SHIPPED`], but lost copies are collected for one second instead of ten.
pub(crate) static SHIPPED_QUICK: Stage = Stage::new(
    || ControlPlane::builder().audit(true),
    || {
        Pair::builder()
            .shipped_rights()
            .reconciler_args(["--deletion-delay", "1s"])
    },
);

/// One webhook and no reconciler.
pub(crate) static WEBHOOK: Stage = Stage::new(
    || ControlPlane::builder().audit(true),
    || Pair::builder().reconciler(false),
);
