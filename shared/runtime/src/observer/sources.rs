//! Watches sources in three ways: one source by its name, the sources of one selector, or many
//! sources of a kind. In the third way only metadata is watched, and a source that changes is read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mimeo_engine::{Member, Members as Found};
use mimeo_model::{
    kind::Resource,
    known::{Decoded, Known},
    meta,
    source::{SourceRef, SourceSelector},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use super::{Failing, Observer};
use crate::{
    discovery::resource_path,
    follow::Follower,
    object::text,
    watch::{Event, Meta, WatchSpec, watch},
};

#[cfg(test)]
mod tests;

impl Observer {
    /// Watches one source by its name.
    pub(super) async fn source(self, source: SourceRef, resource: Resource) {
        let path = resource_path(&resource, Some(&source.namespace), None);
        let (watcher, what) = (self.watcher.clone(), format!("source {source}"));
        let follower = Follower::<Value>::new(watcher, &path, &source.name, what);
        let tell = |state| match state {
            Known::Listed(object) => self.handle.source(&source, object),
            Known::Unserved => self.gone(&resource),
            Known::Unreadable(why) => self
                .handle
                .with(|engine| engine.source_unreadable(&source, why)),
            Known::Unknown => {}
        };
        follower.hand_over(tell).await;
    }

    /// Watches the sources that a selector finds.
    pub(super) async fn selected(self, selector: SourceSelector, resource: Resource) {
        let path = resource_path(&resource, Some(&selector.namespace), None);
        let spec = WatchSpec {
            label_selector: (!selector.selector.is_empty()).then(|| selector.selector.to_query()),
            ..WatchSpec::objects(path, format!("sources {selector}"))
        };
        // The sources in the listing that is in progress; none outside of a listing.
        let mut found = Some(Found::default());
        watch::<Value>(self.watcher.clone(), spec, |event| match event {
            Event::Listing => found = Some(Found::default()),
            Event::Shown(object) => {
                let name = text(object.value(), "/metadata/name");
                let Some(name) = name.filter(|name| !selector.passes_over(name)) else {
                    return;
                };
                let source = selector.source(name);
                if let Some(found) = &mut found {
                    found.extend(Member::of(object.value()));
                }
                self.handle.source(&source, Some(object));
            }
            Event::Deleted(object) => {
                let Some(name) = object.metadata.name else {
                    return;
                };
                if let Some(found) = &mut found {
                    found.take(&name);
                }
                self.handle.source(&selector.source(name), None);
            }
            Event::Known(Known::Unserved) => self.gone(&resource),
            Event::Known(known) => {
                let found = found.take().unwrap_or_default();
                let known = known.map(|_| &found);
                self.handle.with(|engine| engine.selected(&selector, known));
            }
        })
        .await;
    }

    /// Watches many sources of one kind, and the sources that these selectors find among its
    /// objects. Only metadata is watched, and a source that changes is read.
    pub(super) async fn many(
        self,
        resource: Resource,
        namespace: Option<Box<str>>,
        members: Arc<Members>,
        selectors: BTreeSet<SourceSelector>,
    ) {
        let path = resource_path(&resource, namespace.as_deref(), None);
        let spec = WatchSpec::metadata(path, "sources");
        let mut many = Many {
            observer: &self,
            resource: &resource,
            members: &members,
            selected: BTreeMap::new(),
            missing: BTreeSet::new(),
        };
        for selector in selectors {
            let here = many.selected.entry(selector.namespace.clone());
            here.or_default().push(Selected {
                selector,
                found: Found::default(),
            });
        }
        let watching = watch::<Meta>(self.watcher.clone(), spec, |event| match event {
            Event::Listing => many.list(),
            Event::Shown(Decoded::Whole(object)) => many.show(&object, true),
            Event::Deleted(object) => many.show(&object, false),
            Event::Shown(Decoded::Part(_)) => {}
            Event::Known(Known::Unserved) => self.gone(&resource),
            Event::Known(known) => many.know(known),
        });
        tokio::join!(watching, self.read(&members.reads, &resource));
    }

    /// Reads the due sources, one at a time.
    async fn read(&self, reads: &Reads, resource: &Resource) {
        let mut failing: BTreeMap<SourceRef, Failing> = BTreeMap::new();
        loop {
            let source = reads.next().await;
            // A source without a grant must not be read, although the watch may show it a moment
            // longer.
            if !self.handle.look(|engine| engine.index().follows(&source)) {
                failing.remove(&source);
                continue;
            }
            match self.writer.read(&source, resource).await {
                Ok(object) => {
                    failing.remove(&source);
                    self.handle.source(&source, object);
                }
                Err(error) => {
                    let streak = failing.entry(source.clone()).or_default();
                    if let Some(why) = streak.despair(&source, &error) {
                        self.handle
                            .with(|engine| engine.source_unreadable(&source, why));
                    }
                    reads.want_at(source, Instant::now() + streak.backoff.pause());
                }
            }
        }
    }
}

/// The sources that one watch of a kind serves. They change while the watch runs. A new source is
/// read when it is added, and the watch shows its later changes.
#[derive(Default)]
pub(super) struct Members {
    wanted: Mutex<BTreeSet<SourceRef>>,
    reads: Reads,
    told: Mutex<Option<Instant>>,
}

impl Members {
    /// When the watch last told how far its objects are known. `None`: it is still listing them.
    pub(super) fn told(&self) -> Option<Instant> {
        *self.told.lock()
    }

    /// Replaces the sources. New ones are read if the watch is running. Otherwise its first listing
    /// shows them.
    pub(super) fn set<'a>(&self, sources: impl Iterator<Item = &'a SourceRef>, running: bool) {
        let sources: BTreeSet<SourceRef> = sources.cloned().collect();
        let former = std::mem::replace(&mut *self.wanted.lock(), sources.clone());
        if running {
            sources
                .difference(&former)
                .for_each(|source| self.reads.want(source.clone()));
        }
    }
}

/// The state of a watch of many sources.
struct Many<'a> {
    observer: &'a Observer,
    resource: &'a Resource,
    members: &'a Members,
    /// Grouped by namespace, so that each object is compared only with the selectors for its
    /// namespace.
    selected: BTreeMap<Box<str>, Vec<Selected>>,
    /// The sources that the listing in progress has not shown yet.
    missing: BTreeSet<SourceRef>,
}

impl Many<'_> {
    fn list(&mut self) {
        self.missing.clone_from(&self.members.wanted.lock());
        self.selected
            .values_mut()
            .flatten()
            .for_each(|selected| selected.found = Found::default());
    }

    /// Queues the sources to read that this object is, or was until now. A read tells the present
    /// state. The order of events therefore does not matter. `there`: the object exists.
    fn show(&mut self, object: &Meta, there: bool) {
        let reads = &self.members.reads;
        let metadata = &object.metadata;
        let home = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let named = SourceRef::named(self.resource.gvk.clone(), home, name);
        let version = meta::version(metadata.resource_version.as_deref());
        let handle = &self.observer.handle;
        // A new listing shows mostly known versions. These are not read again. Otherwise a user who
        // makes the watch list again and again could keep the last of many sources from being read.
        let news = |source: &SourceRef| {
            !there || !handle.look(|engine| engine.index().knows(source, version))
        };
        if self.members.wanted.lock().contains(&named) {
            self.missing.remove(&named);
            if news(&named) {
                reads.want(named);
            }
        }
        let Some(here) = self.selected.get_mut(home) else {
            return;
        };
        let member = Member::of(&json!({"metadata": metadata})).filter(|_| there);
        let shown = here
            .iter_mut()
            .filter_map(|selected| selected.show(object, member.as_ref()));
        shown.filter(news).for_each(|source| reads.want(source));
    }

    fn know(&mut self, known: Known<u64>) {
        *self.members.told.lock() = Some(Instant::now());
        if known.is_listed() {
            let missing = std::mem::take(&mut self.missing);
            missing
                .into_iter()
                .for_each(|source| self.members.reads.want(source));
        }
        self.observer.handle.with(|engine| {
            if let Known::Unreadable(why) = known {
                for source in self.members.wanted.lock().iter() {
                    engine.source_unreadable(source, why);
                }
            }
            for Selected { selector, found } in self.selected.values().flatten() {
                engine.selected(selector, known.map(|_| found));
            }
        });
    }
}

/// A selector, and the sources that a watch of its kind has found for it.
struct Selected {
    selector: SourceSelector,
    found: Found,
}

impl Selected {
    /// Returns the source that must be read: the object belongs to the selector's sources now, or
    /// did until now. `member` is the object, unless it was deleted.
    fn show(&mut self, Meta { metadata }: &Meta, member: Option<&Member>) -> Option<SourceRef> {
        let name = metadata.name.as_deref()?;
        let label = |key: &str| metadata.labels.as_ref()?.get(key).map(String::as_str);
        let is_one = |_: &&Member| {
            self.selector.selector.matches_by(label) && !self.selector.passes_over(name)
        };
        let known = match member.filter(is_one) {
            Some(member) => self.found.put(member.clone()) || self.found.get(name).is_some(),
            None => self.found.take(name),
        };
        known.then(|| self.selector.source(name))
    }
}

/// The sources to read. Each is queued once, regardless of how often it changed.
#[derive(Default)]
struct Reads {
    due: Mutex<BTreeMap<SourceRef, Instant>>,
    more: Notify,
}

impl Reads {
    /// Queues a source that changed or may have changed.
    fn want(&self, source: SourceRef) {
        self.due.lock().insert(source, Instant::now());
        self.more.notify_one();
    }

    /// Queues a source for a later time, unless it is queued already.
    fn want_at(&self, source: SourceRef, at: Instant) {
        self.due.lock().entry(source).or_insert(at);
    }

    /// Returns the source that has been due for longest, as soon as one is due. A change from here
    /// on makes the source due again.
    async fn next(&self) -> SourceRef {
        loop {
            let first = self
                .due
                .lock()
                .iter()
                .min_by_key(|(_, due)| **due)
                .map(|(source, due)| (source.clone(), *due));
            match first {
                Some((source, due)) if due <= Instant::now() => {
                    self.due.lock().remove(&source);
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
