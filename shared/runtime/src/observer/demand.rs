//! Opens and closes watches as the engine's demand changes, and looks its kinds up.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use mimeo_core::{
    engine::{CopyWatch, Demand},
    kind::{GroupVersionKind, Resource},
    rule::SourceSelector,
    sources::{SourceWatch, watches},
};
use tokio::{sync::Notify, task::AbortHandle, time::Instant};
use tracing::{debug, warn};

use super::{Failing, Observer, sources::Members};
use crate::discovery::DiscoveryError;

impl Observer {
    /// Everything that the engine's demand asks for, opened and closed as it changes. `wake` makes it look at kinds again.
    pub async fn demand(self, wake: Arc<Notify>) {
        let mut changes = self.handle.changes();
        let mut open = Open::default();
        let mut failing: BTreeMap<GroupVersionKind, Failing> = BTreeMap::new();
        let mut version = None;
        let mut took = Duration::ZERO;
        loop {
            // However often it changes, to look at what a tenant with thousands of rules demands takes little of the time.
            tokio::time::sleep(took * 4).await;
            let current = self.handle.look(|engine, _| engine.demand_version());
            let moved = || self.handle.look(|engine, _| engine.demand_version()) != current;
            let mut pause = Duration::from_mins(10);
            if version != Some(current) {
                let began = Instant::now();
                let demand = self.handle.look(|engine, _| engine.demand());
                version = Some(current);
                self.follow(&demand, &mut open);
                took = began.elapsed();
                failing.retain(|gvk, _| demand.kinds.contains(gvk));
                // A kind whose server hangs doesn't hold up what the others' answers ask for.
                let (last, first): (Vec<_>, Vec<_>) = demand.kinds.iter().partition(|gvk| failing.contains_key(gvk));
                for kinds in [first, last] {
                    pause = pause.min(self.discover(&kinds, &mut failing).await);
                    if moved() {
                        break;
                    }
                }
                if moved() {
                    continue;
                }
            }
            let changed = async {
                loop {
                    if changes.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                    if moved() {
                        return;
                    }
                    // Demand changes with rules and kinds, other things far more often.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                () = changed => {}
                () = wake.notified() => version = None,
                () = tokio::time::sleep(pause) => version = None,
            }
        }
    }

    /// Looks these kinds up. Returns when to do so again: one that no CRD announces is looked for now and then.
    async fn discover(
        &self,
        kinds: &[&GroupVersionKind],
        failing: &mut BTreeMap<GroupVersionKind, Failing>,
    ) -> Duration {
        let mut pause = Duration::MAX;
        let mut missing = BTreeSet::new();
        for gvk in kinds {
            let error = match self.discovery.find(gvk).await {
                Ok(resource) => {
                    failing.remove(*gvk);
                    if resource.is_none() {
                        missing.insert(&gvk.group);
                        pause = pause.min(Duration::from_secs(30));
                    }
                    self.handle.with(|engine, now| engine.kind(gvk, resource, now));
                    continue;
                }
                // Not answered is not "not served".
                Err(error) => error,
            };
            pause = pause.min(Duration::from_secs(5));
            let streak = failing.entry((*gvk).clone()).or_default();
            if let Some((why, news)) = streak.despair(matches!(error, DiscoveryError::Denied { .. })) {
                if news {
                    warn!(kind = %gvk.kind, group = %gvk.group, %error, "cannot look a kind up");
                }
                self.handle.with(|engine, now| engine.kind_unanswered(gvk, why, now));
            }
        }
        missing.into_iter().for_each(|group| self.discovery.forget_group(group));
        pause
    }

    fn follow(&self, demand: &Demand, open: &mut Open) {
        open.copies.retain(|watch, task| demand.copies.get(watch) == Some(&task.resource) || task.stop());
        for (watch, resource) in &demand.copies {
            open.copies.entry(watch.clone()).or_insert_with(|| {
                debug!(kind = %watch.kind, namespace = watch.namespace, "watching copies");
                Task::start(resource, self.clone().copies(watch.clone(), resource.clone()))
            });
        }
        let wanted = watches(&demand.sources, &demand.selectors, demand.confined);
        let selectors: BTreeSet<SourceSelector> = demand.selectors.keys().cloned().collect();
        // What another selector finds a wide watch would not show before its next listing.
        let wide = |watch: &SourceWatch| matches!(watch, SourceWatch::Namespace { .. } | SourceWatch::Cluster { .. });
        let stale = |watch: &SourceWatch| wide(watch) && open.selectors != selectors;
        open.sources.retain(|watch, task| (wanted.contains(watch) && !stale(watch)) || task.stop());
        open.members.retain(|watch, _| wanted.contains(watch));
        for watch in wanted {
            let members = match &watch {
                SourceWatch::Named(_) | SourceWatch::Selected(_) => Arc::default(),
                wide => open.members.entry(wide.clone()).or_default().clone(),
            };
            let running = open.sources.contains_key(&watch);
            members.set(demand.sources.keys().filter(|source| watch.shows(source)), running);
            open.sources.entry(watch.clone()).or_insert_with(|| match watch {
                SourceWatch::Named(source) => {
                    let resource = demand.sources.get(&source).cloned().unwrap_or_else(|| unknown(&source.gvk));
                    Task::start(&resource, self.clone().source(source, resource.clone()))
                }
                SourceWatch::Selected(selector) => {
                    let resource = demand.selectors.get(&selector).cloned().unwrap_or_else(|| unknown(&selector.gvk));
                    Task::start(&resource, self.clone().selected(selector, resource.clone()))
                }
                SourceWatch::Namespace { resource, namespace } => Task::start(
                    &resource,
                    self.clone().many(resource.clone(), Some(namespace), members, selectors.clone()),
                ),
                SourceWatch::Cluster { resource } => {
                    Task::start(&resource, self.clone().many(resource.clone(), None, members, selectors.clone()))
                }
            });
        }
        open.selectors = selectors;
    }
}

#[derive(Default)]
struct Open {
    copies: BTreeMap<CopyWatch, Task>,
    sources: BTreeMap<SourceWatch, Task>,
    members: BTreeMap<SourceWatch, Arc<Members>>,
    selectors: BTreeSet<SourceSelector>,
}

struct Task {
    resource: Resource,
    abort: AbortHandle,
}

impl Task {
    fn start(resource: &Resource, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { resource: resource.clone(), abort: tokio::spawn(work).abort_handle() }
    }

    /// Ends it; always false, for `retain`.
    fn stop(&self) -> bool {
        self.abort.abort();
        false
    }
}

fn unknown(gvk: &GroupVersionKind) -> Resource {
    Resource { gvk: gvk.clone(), plural: "".into(), namespaced: true }
}
