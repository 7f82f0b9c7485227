//! New namespaces without a mark: no webhook answered when they were created. Nobody takes a mark off them, so how long their
//! copies took is measured here, by the process that writes them.

use std::{sync::Arc, time::Duration};

use crate::engine::{Engine, Namespace, Role, Tick, work::Timer};

/// How long a standby remembers a new namespace: longer than it takes to become the leader.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// A namespace that was created while this process looked on.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Newcomer {
    /// When its watch first showed it.
    since: Tick,
    /// Whether it was found without all of its copies. One that never was has waited for nobody, or for another process.
    pub(in crate::engine) waits: bool,
}

impl Engine {
    /// A namespace has come, and without a mark. Those of the first listing are older than that, nobody knows by how much.
    pub(in crate::engine) fn greet(&mut self, name: &Arc<str>) {
        let unmarked = self.namespaces.get(name).is_some_and(|namespace| namespace.token().is_none());
        if unmarked && self.settings.role == Role::Keeper && self.namespaces_listed {
            self.newcomers.insert(name.clone(), Newcomer { since: self.now, waits: false });
        }
    }

    /// Counts a newcomer once nothing of what pods would have waited for is still to be written. What can't be written now has the
    /// budget's time to become writable, as in a marked namespace.
    pub(in crate::engine) fn plan_newcomer(&mut self, name: &Arc<str>, namespace: &Namespace) {
        let Some(newcomer) = self.newcomers.get(name).copied().filter(|_| self.primed()) else { return };
        if namespace.mark.is_some() || !namespace.alive() {
            self.newcomers.remove(name);
            return;
        }
        let progress = self.progress_of(name, namespace);
        let until = newcomer.since + self.settings.budget;
        let done = progress.waiting.is_empty() && (progress.ready() || self.now >= until);
        if done {
            self.newcomers.remove(name);
            if newcomer.waits {
                self.lags.namespaces.record(self.now.saturating_sub(newcomer.since));
            }
            return;
        }
        self.newcomers.insert(name.clone(), Newcomer { waits: true, ..newcomer });
        if progress.waiting.is_empty() {
            self.work.timer(until, Timer::Namespace(name.clone()));
        }
    }

    /// A standby plans nothing: what it saw come is the leader's.
    pub(in crate::engine) fn forget_newcomers(&mut self) {
        self.newcomers.retain(|_, newcomer| self.now < newcomer.since + FORGOTTEN);
    }
}
