//! Watches of sources: one by one, by a selector, or many of a kind by their metadata, of which
//! those that change are read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mimeo_engine::{Member, Members as Found};
use mimeo_model::{
    kind::Resource,
    meta,
    source::{SourceRef, SourceSelector},
};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};
use tracing::warn;

use super::{Failing, Observer, cluster_wide};
use crate::{
    discovery::resource_path,
    handle::admits,
    object::Decoded,
    watch::{Event, Meta, WatchSpec, watch},
    writer::ErrandError,
};

#[cfg(test)]
mod tests;

impl Observer {
    pub(super) async fn source(self, source: SourceRef, resource: Resource) {
        let spec = WatchSpec {
            path: resource_path(&resource, Some(&source.namespace), None),
            metadata_only: false,
            label_selector: None,
            name: Some(source.name.to_string()),
            what: format!("source {source}"),
        };
        let mut seen = false;
        let tell = |object| self.handle.source(&source, object);
        let newest = Newest::default();
        let watching = watch::<Value>(self.watcher.clone(), spec, |event| match event {
            Event::Listing => seen = false,
            Event::Applied(object) => {
                seen = true;
                newest.put(Some(Decoded::Whole(object)));
            }
            Event::Undecodable(part) => {
                seen = true;
                newest.put(Some(Decoded::Part(part)));
            }
            Event::Deleted(_) => newest.put(None),
            Event::Listed { .. } if !seen => newest.put(None),
            Event::Listed { .. } => {}
            Event::NotServed => {
                newest.take();
                self.gone(&resource);
            }
            Event::Unreadable(why) => {
                newest.take().into_iter().for_each(tell);
                self.handle
                    .with(|engine, now| engine.source_unreadable(&source, why, now));
            }
        });
        tokio::join!(watching, newest.hand_over(tell));
    }

    /// What a selector finds.
    pub(super) async fn selected(self, selector: SourceSelector, resource: Resource) {
        let spec = WatchSpec {
            path: resource_path(&resource, Some(&selector.namespace), None),
            metadata_only: false,
            label_selector: (!selector.selector.is_empty()).then(|| selector.selector.to_query()),
            name: None,
            what: format!("sources {selector}"),
        };
        // Of a listing that is under way.
        let mut found = Some(Found::default());
        let show = |found: &mut Option<Found>, object: Decoded<Value>| {
            let name = object
                .value()
                .pointer("/metadata/name")
                .and_then(Value::as_str);
            let Some(name) = name.filter(|name| !selector.passes_over(name)) else {
                return;
            };
            let source = selector.source(name);
            if let Some(found) = found {
                found.extend(Member::of(object.value()));
            }
            self.handle.source(&source, Some(object));
        };
        watch::<Value>(self.watcher.clone(), spec, |event| match event {
            Event::Listing => found = Some(Found::default()),
            Event::Applied(object) => show(&mut found, Decoded::Whole(object)),
            Event::Undecodable(part) => show(&mut found, Decoded::Part(part)),
            Event::Deleted(object) => {
                let Some(name) = object.metadata.name else {
                    return;
                };
                self.handle.source(&selector.source(name), None);
            }
            Event::Listed { .. } => {
                let found = found.take().unwrap_or_default();
                self.handle
                    .with(|engine, now| engine.selected(&selector, &found, now));
            }
            Event::NotServed => self.gone(&resource),
            Event::Unreadable(why) => self
                .handle
                .with(|engine, now| engine.selector_unreadable(&selector, why, now)),
        })
        .await;
    }

    /// Many sources of one kind, and what these selectors find of it: the metadata is watched, and
    /// what changed is read.
    pub(super) async fn many(
        self,
        resource: Resource,
        namespace: Option<Box<str>>,
        members: Arc<Members>,
        selectors: BTreeSet<SourceSelector>,
    ) {
        let path = resource_path(&resource, namespace.as_deref(), None);
        let spec = cluster_wide(&path, true, None, "sources");
        // Each object is compared with those of its namespace alone.
        let mut selected: BTreeMap<Box<str>, Vec<Selected>> = BTreeMap::new();
        for selector in selectors {
            selected
                .entry(selector.namespace.clone())
                .or_default()
                .push(Selected::new(selector));
        }
        let find = |meta: &Meta| {
            let (namespace, name) = (
                meta.metadata.namespace.as_deref()?,
                meta.metadata.name.as_deref()?,
            );
            members
                .wanted()
                .get(&SourceRef::named(resource.gvk.clone(), namespace, name))
                .cloned()
        };
        let reads = &members.reads;
        let mut missing = BTreeSet::new();
        let watching = watch::<Meta>(self.watcher.clone(), spec, |event| match event {
            Event::Listing => {
                missing.clone_from(&members.wanted());
                selected
                    .values_mut()
                    .flatten()
                    .for_each(|selected| selected.found = Found::default());
            }
            // What became of it, and in which order, a read tells.
            Event::Applied(ref object) | Event::Deleted(ref object) => {
                let there = matches!(event, Event::Applied(_));
                if let Some(source) = find(object) {
                    missing.remove(&source);
                    reads.want(source);
                }
                let home = object.metadata.namespace.as_deref().unwrap_or_default();
                let Some(here) = selected.get_mut(home) else {
                    return;
                };
                let member = Member::of(&json!({"metadata": object.metadata})).filter(|_| there);
                let shown = here
                    .iter_mut()
                    .filter_map(|selected| selected.show(object, member.as_ref()));
                let version = meta::version(object.metadata.resource_version.as_deref());
                // A new listing shows mostly what is known.
                let news = |source: &SourceRef| {
                    !there || !self.handle.look(|engine, _| engine.knows(source, version))
                };
                shown.filter(news).for_each(|source| reads.want(source));
            }
            Event::Listed { .. } => {
                std::mem::take(&mut missing)
                    .into_iter()
                    .for_each(|source| reads.want(source));
                self.handle.with(|engine, now| {
                    for Selected { selector, found } in selected.values().flatten() {
                        engine.selected(selector, found, now);
                    }
                });
            }
            Event::Undecodable(_) => {}
            Event::NotServed => self.gone(&resource),
            Event::Unreadable(why) => self.handle.with(|engine, now| {
                for source in members.wanted().iter() {
                    engine.source_unreadable(source, why, now);
                }
                for Selected { selector, .. } in selected.values().flatten() {
                    engine.selector_unreadable(selector, why, now);
                }
            }),
        });
        tokio::join!(watching, self.read(reads, &resource));
    }

    /// Reads sources as they come due, one at a time.
    async fn read(&self, reads: &Reads, resource: &Resource) {
        let mut failing: BTreeMap<SourceRef, Failing> = BTreeMap::new();
        loop {
            let source = reads.next().await;
            // What isn't granted any more isn't read, though it may be shown a moment longer.
            if !self.handle.look(|engine, _| engine.follows(&source)) {
                failing.remove(&source);
                continue;
            }
            let error = match self
                .writer
                .read(resource, &source.namespace, &source.name)
                .await
            {
                Ok(object) => {
                    failing.remove(&source);
                    self.handle.source(
                        &source,
                        object.filter(|object| admits(&source, object.value())),
                    );
                    continue;
                }
                Err(error) => error,
            };
            let streak = failing.entry(source.clone()).or_default();
            if let Some((why, news)) = streak.despair(matches!(error, ErrandError::Denied { .. })) {
                if news {
                    warn!(%source, %error, "cannot read a source");
                }
                self.handle
                    .with(|engine, now| engine.source_unreadable(&source, why, now));
            }
            reads.want_at(source, Instant::now() + streak.backoff.pause());
        }
    }
}

/// How many times as long as it took to hand something over nothing else is.
const REST: u32 = 10;

/// The newest of what a watch showed. What it costs to take it up may be much: whoever changes one
/// of his objects ten times a second, of which thousands of copies are rendered, would keep the
/// engine from everybody else. So the first is taken up at once, and after that the newest, at a
/// pace that leaves most of the time to others.
struct Newest<T> {
    value: Mutex<Option<T>>,
    more: Notify,
}

impl<T> Default for Newest<T> {
    fn default() -> Self {
        Self {
            value: Mutex::default(),
            more: Notify::default(),
        }
    }
}

impl<T> Newest<T> {
    fn put(&self, value: T) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        self.more.notify_one();
    }

    fn take(&self) -> Option<T> {
        self.value
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Runs until dropped.
    async fn hand_over(&self, mut to: impl FnMut(T)) {
        loop {
            self.more.notified().await;
            let Some(value) = self.take() else { continue };
            let began = Instant::now();
            to(value);
            tokio::time::sleep(began.elapsed() * REST).await;
        }
    }
}

/// The sources that one wide watch serves. They come and go while it goes on: whichever comes is
/// read then, and what happens to it afterwards the watch shows.
#[derive(Default)]
pub(super) struct Members {
    wanted: Mutex<BTreeSet<SourceRef>>,
    reads: Reads,
}

impl Members {
    fn wanted(&self) -> MutexGuard<'_, BTreeSet<SourceRef>> {
        // It is replaced as a whole.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on it is these. What a watch that is yet to begin serves its listing will show.
    pub(super) fn set<'a>(&self, sources: impl Iterator<Item = &'a SourceRef>, running: bool) {
        let sources: BTreeSet<SourceRef> = sources.cloned().collect();
        let former = std::mem::replace(&mut *self.wanted(), sources.clone());
        if running {
            sources
                .difference(&former)
                .for_each(|source| self.reads.want(source.clone()));
        }
    }
}

/// A selector among those that a kind's watch looks for.
struct Selected {
    selector: SourceSelector,
    found: Found,
}

impl Selected {
    fn new(selector: SourceSelector) -> Self {
        Self {
            selector,
            found: Found::default(),
        }
    }

    /// The source to read, if it is one now or was until now. `member`: the object, if it is there.
    fn show(&mut self, Meta { metadata }: &Meta, member: Option<&Member>) -> Option<SourceRef> {
        let name = metadata.name.as_deref()?;
        let label = |key: &str| metadata.labels.as_ref()?.get(key).map(String::as_str);
        let is_one = |_: &&Member| {
            self.selector.selector.matches_by(label) && !self.selector.passes_over(name)
        };
        let known = match member.filter(is_one) {
            Some(member) => self.found.put(member.clone()) || self.found.contains(name),
            None => self.found.take(name),
        };
        known.then(|| self.selector.source(name))
    }
}

/// Sources to read: each once, however often it changed.
#[derive(Default)]
struct Reads {
    due: Mutex<BTreeMap<SourceRef, Instant>>,
    more: Notify,
}

impl Reads {
    fn due(&self) -> MutexGuard<'_, BTreeMap<SourceRef, Instant>> {
        // Entries are added and removed whole.
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It changed, or may have.
    fn want(&self, source: SourceRef) {
        self.due().insert(source, Instant::now());
        self.more.notify_one();
    }

    /// It is worth another look then, if nothing happens before.
    fn want_at(&self, source: SourceRef, at: Instant) {
        self.due().entry(source).or_insert(at);
    }

    /// The one that has been due for longest, as soon as one is. What happens to it from here on
    /// makes it due again.
    async fn next(&self) -> SourceRef {
        loop {
            let first = self
                .due()
                .iter()
                .min_by_key(|(_, due)| **due)
                .map(|(source, due)| (source.clone(), *due));
            match first {
                Some((source, due)) if due <= Instant::now() => {
                    self.due().remove(&source);
                    return source;
                }
                Some((_, due)) => tokio::select! {
                    () = tokio::time::sleep_until(due) => {}
                    () = self.more.notified() => {}
                },
                None => self.more.notified().await,
            }
        }
    }
}
