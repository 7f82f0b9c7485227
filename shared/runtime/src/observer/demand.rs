//! Opens and closes watches as the engine's demand changes, and looks up the kinds in the demand.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use mimeo_engine::{CopyWatch, Demand, Engine};
use mimeo_model::{
    kind::{GroupVersionKind, Resource},
    known::Known,
    source::SourceSelector,
    sources::{SourceWatch, watches},
};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep},
};
use tracing::debug;

use super::{Failing, Observer, sources::Members};

impl Observer {
    /// Keeps everything open that the engine's demand names, and follows its changes. `wake`
    /// triggers another look-up of the kinds.
    pub(super) async fn demand(self, wake: Arc<Notify>) {
        let mut open = Open::default();
        let mut failing: BTreeMap<GroupVersionKind, Failing> = BTreeMap::new();
        let mut took = Duration::ZERO;
        loop {
            // Work on the demand takes at most a fifth of the time. This holds even if a tenant
            // with thousands of rules changes the demand all the time.
            sleep(took * 4).await;
            let began = Instant::now();
            let (current, demand) = self
                .handle
                .look(|engine| (engine.index().demand_version(), engine.demand()));
            let moved = |engine: &Engine| engine.index().demand_version() != current;
            let mut pause = self.follow(&demand, &mut open);
            took = began.elapsed();
            failing.retain(|gvk, _| demand.kinds.contains(gvk));
            // Kinds that are failing come last: a hanging server of one kind must not delay the
            // demand that follows from the other kinds.
            let (last, first): (Vec<_>, Vec<_>) = demand
                .kinds
                .iter()
                .partition(|gvk| failing.contains_key(gvk));
            for kinds in [first, last] {
                pause = pause.min(self.discover(&kinds, &mut failing).await);
                if self.handle.look(|engine| moved(engine)) {
                    break;
                }
            }
            tokio::select! {
                () = self.handle.until(moved) => {}
                () = wake.notified() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Looks up these kinds. Returns the time until the next look-up: a kind that no CRD announces
    /// is looked up periodically.
    async fn discover(
        &self,
        kinds: &[&GroupVersionKind],
        failing: &mut BTreeMap<GroupVersionKind, Failing>,
    ) -> Duration {
        let mut pause = Duration::MAX;
        let mut missing = BTreeSet::new();
        let discovery = &self.writer.discovery;
        for gvk in kinds {
            // A kind that may have copies is looked up in any version: the version of the copies
            // may no longer be served.
            let noted = self.noted.lock().contains(*gvk);
            let found = if noted {
                discovery.find_in_any_version(gvk).await
            } else {
                discovery.find(gvk).await
            };
            match found {
                Ok(found) => {
                    failing.remove(*gvk);
                    let served = found.as_ref().is_some_and(|found| found.gvk == **gvk);
                    if !served {
                        missing.insert(&gvk.group);
                        pause = pause.min(Duration::from_secs(30));
                    }
                    self.handle.with(|engine| {
                        if !served {
                            engine.kind(gvk, Known::Unserved);
                        }
                        if let Some(found) = found {
                            engine.kind(&found.gvk.clone(), Known::Listed(found));
                        }
                    });
                }
                // A missing answer does not mean "not served".
                Err(error) => {
                    pause = pause.min(Duration::from_secs(5));
                    let streak = failing.entry((*gvk).clone()).or_default();
                    if let Some(why) = streak.despair(gvk, &error) {
                        self.handle
                            .with(|engine| engine.kind(gvk, Known::Unreadable(why)));
                    }
                }
            }
        }
        missing
            .into_iter()
            .for_each(|group| discovery.forget_group(group));
        pause
    }

    /// Opens and closes watches. Returns the time until the next call: ten minutes, or less if a
    /// watch must be reopened that was opened too recently.
    fn follow(&self, demand: &Demand, open: &mut Open) -> Duration {
        open.copies
            .retain(|(watch, resource), _| demand.copies.get(watch) == Some(resource));
        for (watch, resource) in &demand.copies {
            let key = (watch.clone(), resource.clone());
            open.copies.entry(key).or_insert_with(|| {
                debug!(kind = %watch.kind, namespace = watch.namespace, "watching copies");
                let mut watching = JoinSet::new();
                watching.spawn(self.clone().copies(watch.clone(), resource.clone()));
                watching
            });
        }
        let wanted = watches(&demand.sources, &demand.selectors, demand.confined);
        let now = Instant::now();
        let mut pause = Duration::from_mins(10);
        open.sources.retain(|watch, task| {
            if !wanted.contains(watch) {
                return false;
            }
            // A watch of all objects of a kind would not show the objects of a new selector before
            // its next listing. So it is reopened for other selectors, and also if these have been
            // demanded and dropped in between: the engine has forgotten the listing of a selector
            // that left and came back.
            task.stale |= task.selectors != watch.looks_for(demand.selectors.keys());
            if !task.stale {
                return true;
            }
            let due = task.members.told().unwrap_or(now) + REOPENING;
            let left = due.saturating_duration_since(now);
            if left.is_zero() {
                return false;
            }
            pause = pause.min(left);
            true
        });
        for watch in wanted {
            let sources = demand.sources.keys();
            let sources = sources.filter(|source| watch.covers(&source.gvk, &source.namespace));
            match open.sources.entry(watch.clone()) {
                Entry::Occupied(task) => task.get().members.set(sources, true),
                Entry::Vacant(task) => {
                    let members = Arc::<Members>::default();
                    members.set(sources, false);
                    task.insert(self.open(watch, demand, members));
                }
            }
        }
        pause
    }

    /// Opens a watch of sources. A watch of all objects of a kind serves these members.
    fn open(&self, watch: SourceWatch, demand: &Demand, members: Arc<Members>) -> Task {
        let selectors = watch.looks_for(demand.selectors.keys());
        let observer = self.clone();
        let mut watching = JoinSet::new();
        match watch {
            SourceWatch::Named(source, resource) => {
                watching.spawn(observer.source(source, resource))
            }
            SourceWatch::Selected(selector, resource) => {
                watching.spawn(observer.selected(selector, resource))
            }
            SourceWatch::Kind {
                resource,
                namespace,
            } => {
                let many = observer.many(resource, namespace, members.clone(), selectors.clone());
                watching.spawn(many)
            }
        };
        Task {
            selectors,
            stale: false,
            members,
            _watching: watching,
        }
    }
}

/// A watch of all objects of a kind is reopened for each change of its selectors, and then lists
/// all objects. To keep a user from causing such listings all the time, it stays open for this long
/// after a listing, however long that took.
const REOPENING: Duration = Duration::from_secs(5);

/// The open watches. Each closes when its task is dropped.
#[derive(Default)]
struct Open {
    copies: BTreeMap<(CopyWatch, Resource), JoinSet<()>>,
    sources: BTreeMap<SourceWatch, Task>,
}

/// An open watch of sources.
struct Task {
    /// The selectors that the watch looks for, if it shows all objects of a kind.
    selectors: BTreeSet<SourceSelector>,
    /// True if other selectors were demanded since the watch was opened.
    stale: bool,
    /// The sources that the watch serves, if it shows all objects of a kind.
    members: Arc<Members>,
    /// Closes the watch when it is dropped.
    _watching: JoinSet<()>,
}
