//! Kinds: whether the API server serves them, and whether the kinds `ConfigMap` records that copies
//! of them may exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops,
    sync::Arc,
};

use mimeo_model::{
    id::{KindId, RuleId},
    kind::{GroupKind, GroupVersionKind, Resource},
    known::Known,
};

use crate::{Effects, Index, RuleState, copy_watches::WatchProgress, jobs::JobKey};

/// The kinds that rules name or that copies have.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    /// The kinds by number, including forgotten ones. Readers find no copies in those.
    pub(crate) states: Vec<KindState>,
    ids: BTreeMap<GroupKind, KindId>,
    /// Numbers of forgotten kinds, for reuse.
    vacant: Vec<KindId>,
    /// The results of discovery, by version, and the versions in which kinds are recorded.
    pub(crate) served: BTreeMap<GroupVersionKind, Known<Resource>>,
    /// True if the kinds `ConfigMap` was read.
    pub(crate) known: bool,
}

impl Kinds {
    /// Returns the number of a kind, if it has one.
    pub(crate) fn id(&self, kind: &GroupKind) -> Option<KindId> {
        self.ids.get(kind).copied()
    }

    /// Returns the result of discovery for a kind in this version.
    pub(crate) fn served(&self, gvk: &GroupVersionKind) -> &Known<Resource> {
        self.served.get(gvk).unwrap_or(&Known::Unknown)
    }

    /// Returns the resource of a kind in this version, if copies of it can exist.
    pub(crate) fn resource(&self, gvk: &GroupVersionKind) -> Option<&Resource> {
        namespaced(self.served(gvk))
    }
}

impl ops::Index<KindId> for Kinds {
    type Output = KindState;

    fn index(&self, id: KindId) -> &KindState {
        &self.states[usize::from(id.0)]
    }
}

impl ops::IndexMut<KindId> for Kinds {
    fn index_mut(&mut self, id: KindId) -> &mut KindState {
        &mut self.states[usize::from(id.0)]
    }
}

#[derive(Debug)]
pub(crate) struct KindState {
    pub(crate) group_kind: GroupKind,
    pub(crate) note: Note,
    /// The watches of its copies, by watched namespace, each from its first event on. `None` watches
    /// all namespaces, and is then the only one.
    pub(crate) watches: BTreeMap<Option<Box<str>>, WatchProgress>,
    /// True if a copy of the kind was lost. A pending deletion may name the kind by its number.
    pub(crate) lost: bool,
}

/// The state of a kind's entry in the kinds `ConfigMap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    Absent,
    Present,
    /// The entry is being removed. Existing copies are still reported until then, but no copy may
    /// be written.
    Removing,
}

impl KindState {
    pub(crate) fn may_have_copies(&self) -> bool {
        self.note != Note::Absent
    }

    /// True if copies may be written: the entry is stored, so a later process will look for them.
    pub(crate) fn may_be_written(&self) -> bool {
        self.note == Note::Present
    }

    /// True if every copy in the namespace has been listed.
    pub(crate) fn copies_known_in(&self, namespace: &str) -> bool {
        self.watched_in(Some(namespace)).watch.is_listed()
    }
}

/// The resource of a kind, if copies of it can exist.
pub(crate) fn namespaced(served: &Known<Resource>) -> Option<&Resource> {
    served.listed().filter(|resource| resource.namespaced)
}

impl Index {
    fn replan_rules_of_kind(&mut self, gvk: &GroupVersionKind) {
        let names = |state: &RuleState| state.valid().is_some_and(|rule| rule.kinds.contains(gvk));
        let rules: Vec<Arc<RuleId>> = self
            .rules
            .iter()
            .filter(|(_, state)| names(state))
            .map(|(id, _)| id.clone())
            .collect();
        self.replan_rules(rules);
    }
}

impl Index {
    /// Records the answer of discovery about a kind. An earlier answer stays valid while there is
    /// none.
    pub(crate) fn kind(&mut self, gvk: &GroupVersionKind, served: Known<Resource>) {
        let known = self.kinds.served.entry(gvk.clone()).or_default();
        if *known == served {
            return;
        }
        if let Known::Unreadable(_) = served {
            if matches!(known, Known::Unknown | Known::Unreadable(_)) {
                *known = served;
                self.replan_rules_of_kind(gvk);
            }
            return;
        }
        let never = !served.is_listed() && !known.is_listed();
        *known = served;
        if never {
            // No copies of it can exist now, and none existed before. So only the rules that name
            // the kind are affected.
            self.replan_rules_of_kind(gvk);
        } else {
            self.mark_all_statuses_due();
            self.replan_all();
        }
        self.demand_changed();
    }

    /// Records the kinds in the kinds `ConfigMap`, in the recorded versions. Copies of these may
    /// exist.
    pub(crate) fn kinds_recorded(
        &mut self,
        kinds: &BTreeSet<GroupVersionKind>,
        effects: &mut Effects,
    ) {
        for gvk in kinds {
            let Some(id) = self.kind_id(&gvk.group_kind()) else {
                continue;
            };
            effects.jobs.moved(&JobKey::RecordKind(gvk.group_kind()));
            let kind = &mut self.kinds[id];
            // The request that removes the entry may still be unanswered.
            if kind.note != Note::Removing {
                kind.note = Note::Present;
                self.kinds.served.entry(gvk.clone()).or_default();
            }
        }
        self.kinds.known = true;
        let named: BTreeSet<GroupKind> = kinds.iter().map(GroupVersionKind::group_kind).collect();
        for kind in self
            .kinds
            .states
            .iter_mut()
            .filter(|kind| !named.contains(&kind.group_kind))
        {
            kind.note = Note::Absent;
            let key = JobKey::ForgetKind(kind.group_kind.clone());
            effects.jobs.moved(&key);
        }
        self.replan_all();
        self.demand_changed();
    }

    /// Returns the number of a kind. `None`: there are too many kinds, and none can be forgotten.
    pub(crate) fn kind_id(&mut self, group_kind: &GroupKind) -> Option<KindId> {
        if let Some(id) = self.kinds.id(group_kind) {
            return Some(id);
        }
        if self.kinds.vacant.is_empty() && self.kinds.states.len() > usize::from(u16::MAX) {
            self.forget_needless_kinds();
        }
        let state = KindState {
            group_kind: group_kind.clone(),
            note: Note::Absent,
            watches: BTreeMap::new(),
            lost: false,
        };
        let id = if let Some(id) = self.kinds.vacant.pop() {
            self.kinds[id] = state;
            id
        } else {
            let next = u16::try_from(self.kinds.states.len()).ok()?;
            self.kinds.states.push(state);
            KindId(next)
        };
        self.kinds.ids.insert(group_kind.clone(), id);
        Some(id)
    }

    /// Forgets kinds that the state contains only by name. Rules may name kinds that don't exist,
    /// and each update of a rule may name others.
    pub(crate) fn forget_needless_kinds(&mut self) {
        let copies = self.namespaces.values().flat_map(|namespace| {
            let blocked = namespace.blocked.keys();
            let copies = namespace.copies.iter().map(|copy| copy.kind);
            copies.chain(blocked.map(|(_, kind, _)| *kind))
        });
        let rules = self.projections.values();
        let needed: BTreeSet<KindId> = copies
            .chain(rules.map(|projection| projection.kind))
            .collect();
        let Kinds {
            states,
            ids,
            vacant,
            served,
            ..
        } = &mut self.kinds;
        let served = served.iter().filter(|(_, served)| served.is_listed());
        let served: BTreeSet<GroupKind> = served.map(|(gvk, _)| gvk.group_kind()).collect();
        ids.retain(|group_kind, id| {
            let kind = &states[usize::from(id.0)];
            let needed = kind.note != Note::Absent
                || kind.lost
                || needed.contains(id)
                || served.contains(group_kind);
            // The state stays until the number is used again.
            if !needed {
                vacant.push(*id);
            }
            needed
        });
    }
}
