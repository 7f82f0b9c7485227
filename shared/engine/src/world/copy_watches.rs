//! The progress of the watches of copies: which copies they have listed so far.

use std::collections::{BTreeMap, BTreeSet};

use mimeo_api::Access;

use mimeo_model::{
    id::KindId,
    kind::{GroupKind, GroupVersionKind, Resource},
    known::{Known, Watched},
    outcome::Unreadable,
    rule::Rule,
    selection::Place,
};

use crate::{Demand, Effects, Index, KindState};

/// One watch of copies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyWatch {
    /// Kind of the copies.
    pub kind: GroupKind,
    /// The watched namespace, or `None` for all namespaces.
    pub namespace: Option<Box<str>>,
}

impl From<GroupKind> for CopyWatch {
    /// A watch of all namespaces.
    fn from(kind: GroupKind) -> Self {
        Self {
            kind,
            namespace: None,
        }
    }
}

/// The progress of one watch. The default is that of a watch without an event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WatchProgress {
    /// Number of the current or last listing.
    pub(crate) listing: u8,
    pub(crate) watch: Watched,
}

impl KindState {
    /// Returns the progress of the watch that shows a namespace's copies, or all copies.
    pub(crate) fn watched_in(&self, namespace: Option<&str>) -> WatchProgress {
        let here = || self.watches.get(&namespace.map(Into::into));
        let watch = self.watches.get(&None).or_else(here);
        watch.copied().unwrap_or_default()
    }
}

impl Index {
    /// Returns why copies of the rule can't be watched, and in which namespace if not in all.
    /// Problems in other namespaces are not revealed to the rule's author.
    pub(crate) fn unwatchable(
        &self,
        rule: &Rule,
        kind: &GroupKind,
    ) -> Option<(Option<&str>, Unreadable)> {
        let id = self.kinds.id(kind)?;
        let mut watches = self.watches_of(rule, id).into_iter();
        watches.find_map(|(name, progress)| progress.watch.unreadable().map(|why| (name, why)))
    }

    /// True if every possible copy of the rule has been listed, or can't be listed.
    pub(crate) fn knows_copies_of(&self, rule: &Rule, kind: KindId) -> bool {
        self.watches_of(rule, kind).iter().all(|(_, progress)| {
            progress.watch.is_listed() || progress.watch.unreadable().is_some()
        })
    }

    fn watches_of(&self, rule: &Rule, kind: KindId) -> Vec<(Option<&str>, WatchProgress)> {
        let kind = &self.kinds[kind];
        let Some(targets) = &self.settings.reach.targets else {
            return vec![(None, kind.watched_in(None))];
        };
        let reached = self.reached(rule).unwrap_or_default();
        let places = targets.iter().filter(|name| reached.contains(*name));
        places
            .map(|name| (Some(&**name), kind.watched_in(Some(name))))
            .collect()
    }

    /// The namespaces in reach that the rule matches, and where it needs no grant or holds one for a
    /// kind of its copies. `None`: the reach is unlimited.
    pub fn reached(&self, rule: &Rule) -> Option<BTreeSet<Box<str>>> {
        let targets = self.settings.reach.targets.as_ref()?;
        let writes = |place: Place<'_>| {
            let given = self.given(Access::Write, &rule.id, place.name);
            let mut kinds = rule.kinds.iter().map(GroupVersionKind::group_kind);
            rule.matches(place) && kinds.any(|kind| given.concerns(&kind))
        };
        let reached = |name: &str| {
            let known = self.namespaces.get(name);
            known.is_some_and(|namespace| writes(namespace.place()))
        };
        let targets = targets.iter().filter(|name| reached(name));
        Some(targets.cloned().collect())
    }

    /// Adds the watches of a kind's copies. A webhook replica watches no copies.
    pub(crate) fn demand_copies(&self, demand: &mut Demand, resource: &Resource) {
        if !self.settings.keeps_copies() {
            return;
        }
        let kind = resource.gvk.group_kind();
        for namespace in self.watched_places() {
            demand
                .copies
                .entry(CopyWatch {
                    kind: kind.clone(),
                    namespace,
                })
                .or_insert_with(|| resource.clone());
        }
    }

    /// The places where copies are watched: all namespaces by one watch, or each existing namespace
    /// in reach. A namespace that doesn't exist has no copies, and no Role for Mimeo.
    pub(crate) fn watched_places(&self) -> Vec<Option<Box<str>>> {
        let Some(targets) = &self.settings.reach.targets else {
            return vec![None];
        };
        let exists = |name: &str| {
            self.namespaces
                .get(name)
                .is_some_and(|entry| entry.uid.is_some())
        };
        targets
            .iter()
            .filter(|name| exists(name))
            .cloned()
            .map(Some)
            .collect()
    }

    /// Resets the progress of watches that are no longer open.
    pub(crate) fn forget_watches(&mut self, watched: &BTreeMap<CopyWatch, Resource>) {
        for kind in &mut self.kinds.states {
            for (namespace, progress) in &mut kind.watches {
                let watch = CopyWatch {
                    kind: kind.group_kind.clone(),
                    namespace: namespace.clone(),
                };
                if !watched.contains_key(&watch) {
                    progress.watch = Watched::default();
                }
            }
        }
    }

    /// True if every possible copy of the kind has been listed.
    pub(crate) fn all_copies_listed(&self, kind: &KindState) -> bool {
        let places = self.watched_places();
        self.namespaces_listed
            && places.iter().all(|place| {
                let progress = kind.watched_in(place.as_deref());
                progress.watch.is_listed()
            })
    }
}

impl Index {
    /// Records that a listing of copies begins.
    pub(crate) fn copies_listing(&mut self, watch: &CopyWatch) {
        if let Some(progress) = self.watch_progress(watch) {
            progress.listing = progress.listing.wrapping_add(1);
        }
    }

    /// Records the state of a watch of copies. A list has a resourceVersion. Copies that the
    /// listing didn't show were absent then. Copies seen so far stay known while they can't be
    /// watched.
    pub(crate) fn copies_known(
        &mut self,
        watch: &CopyWatch,
        known: Known<u64>,
        effects: &mut Effects,
    ) {
        let Some(progress) = self.watch_progress(watch) else {
            return;
        };
        let changed = progress.watch.becomes(known);
        if let Known::Listed(at) = known {
            let listing = progress.listing;
            self.copies_listed(watch, listing, at);
            // A kind without any copy may need no record any more.
            effects.work.untidy = true;
        }
        if changed {
            self.mark_all_statuses_due();
        }
    }

    /// Records that the listing with this number did not show the other copies known so far.
    fn copies_listed(&mut self, watch: &CopyWatch, listing: u8, at: u64) {
        let Some(id) = self.kinds.id(&watch.kind) else {
            return;
        };
        let shown = |name: &str| watch.namespace.as_deref().is_none_or(|only| only == name);
        let mut owners = BTreeSet::new();
        for (_, entry) in self.namespaces.iter_mut().filter(|(name, _)| shown(name)) {
            for copy in entry
                .copies
                .iter_mut()
                .filter(|copy| copy.kind == id && copy.listing != listing)
            {
                // A write by Mimeo may be newer than the listing.
                let owner = self.projections.owner(copy).cloned();
                if copy.vanish(None, at) {
                    copy.retry_now();
                    owners.extend(owner);
                }
            }
        }
        owners.iter().for_each(|rule| self.mark_status_due(rule));
        self.replan_all();
    }

    fn watch_progress(&mut self, watch: &CopyWatch) -> Option<&mut WatchProgress> {
        let id = self.kind_id(&watch.kind)?;
        let watches = &mut self.kinds[id].watches;
        Some(watches.entry(watch.namespace.clone()).or_default())
    }
}
