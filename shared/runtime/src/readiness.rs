//! Whether the program is ready, and which checks fail, for probes and for the log.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};
use tracing::{info, warn};

use crate::shutdown::CancellationToken;

/// How long a check must fail before this is logged: about as long as the kubelet takes to notice.
const UNREADY: Duration = Duration::from_secs(5);

/// The program's readiness. It is ready when all named checks hold and no shutdown has begun.
#[derive(Clone)]
pub struct Readiness {
    checks: Arc<watch::Sender<BTreeMap<&'static str, bool>>>,
    shutdown: CancellationToken,
}

impl Readiness {
    /// Ready until a check is added.
    pub fn new(shutdown: CancellationToken) -> Self {
        Self {
            checks: Arc::default(),
            shutdown,
        }
    }

    /// Adds a check that does not hold yet. Adding it again resets it.
    pub fn check(&self, name: &'static str) -> Check {
        let check = Check {
            name,
            readiness: self.clone(),
        };
        check.set(false);
        check
    }

    /// The names of the failing checks, sorted. Empty means ready.
    pub fn missing(&self) -> Vec<&'static str> {
        let checks = self.checks.borrow();
        let shutdown = self.shutdown.is_cancelled().then_some("not shutting down");
        checks
            .iter()
            .filter(|(_, holds)| !**holds)
            .map(|(name, _)| *name)
            .chain(shutdown)
            .collect()
    }

    /// Logs the failing checks when they change, until a shutdown begins. Failures that end before
    /// the kubelet notices are not logged: a start has many of them.
    pub(crate) async fn tell(self) {
        let mut changes = self.checks.subscribe();
        let mut told = None;
        loop {
            changes.mark_unchanged();
            let missing = self.missing();
            let news = async {
                if told.as_ref() == Some(&missing) {
                    pending::<()>().await;
                }
                if !missing.is_empty() {
                    sleep(UNREADY).await;
                }
            };
            tokio::select! {
                () = news => {}
                // An error would mean that the sender was dropped, but `self` holds it.
                _ = changes.changed() => continue,
                () = self.shutdown.cancelled() => return,
            }
            if missing.is_empty() {
                info!("ready");
            } else {
                warn!(missing = missing.join(", "), "not ready");
            }
            told = Some(missing);
        }
    }

    /// Returns as soon as all checks hold. Cancel safe.
    pub async fn complete(&self) {
        // An error would mean that the sender was dropped, but `self` holds it.
        let _ = self
            .checks
            .subscribe()
            .wait_for(|checks| checks.values().all(|holds| *holds))
            .await;
    }
}

/// One condition for the program's readiness.
pub struct Check {
    name: &'static str,
    readiness: Readiness,
}

impl Check {
    /// Sets whether the check holds.
    pub fn set(&self, holds: bool) {
        self.readiness
            .checks
            .send_if_modified(|checks| checks.insert(self.name, holds) != Some(holds));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Log;

    #[tokio::test(start_paused = true)]
    async fn what_is_missing_is_logged_once_when_that_changes_and_lasts() {
        let log = Log::default();
        let _log = log.record();
        let shutdown = CancellationToken::new();
        let readiness = Readiness::new(shutdown.clone());
        let (caches, certificate) = (readiness.check("caches"), readiness.check("certificate"));
        let telling = tokio::spawn(readiness.clone().tell());
        let wait = async |seconds| sleep(Duration::from_secs(seconds)).await;
        wait(1).await;
        certificate.set(true);
        wait(60).await;
        caches.set(true);
        wait(1).await;
        for check in [&caches, &certificate] {
            check.set(false);
            wait(1).await;
            check.set(true);
            check.set(true);
            wait(60).await;
        }
        certificate.set(false);
        wait(60).await;
        shutdown.cancel();
        telling.await.expect("it ends");
        let log = log.text();
        let lines: Vec<&str> = log
            .lines()
            .filter_map(|line| line.split_once("readiness: "))
            .map(|(_, said)| said)
            .collect();
        assert_eq!(
            lines,
            [
                "not ready missing=\"caches\"",
                "ready",
                "not ready missing=\"certificate\""
            ],
            "{log}"
        );
    }
}
