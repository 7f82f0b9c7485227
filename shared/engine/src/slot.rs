//! A slot: one source of one rule for one of its targets, that is, one rendering for any number of
//! namespaces, or one form.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    sync::Arc,
};

use mimeo_model::{
    id::{KindId, RuleId, SlotId},
    kind::{GroupKind, GroupVersionKind},
    render::Copies,
    source::{SourceRef, SourceRefused},
    template::{Place, Template, Variable},
};

use crate::{
    cell::{Cell, Reference},
    clock::Tick,
};

/// One source of one rule for one of its targets.
#[derive(Debug)]
pub struct Slot {
    /// The rule.
    pub rule: Arc<RuleId>,
    /// Index of the target in the rule.
    pub target: usize,
    /// The source.
    pub source: SourceRef,
    /// Kind of source and copy.
    pub kind: KindId,
    /// Whether the rule may read the source; if not, nothing depends on what is there.
    pub granted: bool,
    /// Name of the copies.
    pub name: CopyName,
    /// The copies' bytes, or why there are none.
    pub rendering: Result<Copies, NoRendering>,
    /// When a change of the source made them what they are; none if the rule did.
    pub renewed: Option<Tick>,
    /// What a good copy's field set is.
    pub reference: Reference,
    /// How often in a row nobody could tell.
    pub untold: u8,
}

impl Slot {
    /// The kind, with the version that is written.
    pub fn gvk(&self) -> &GroupVersionKind {
        &self.source.gvk
    }
}

/// All slots, by their numbers and by their sources: of both there may be very many.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    by_id: BTreeMap<SlotId, Slot>,
    by_object: BTreeMap<Object, BTreeSet<SlotId>>,
    /// Names of copies that are the same in all namespaces, and how many slots have each.
    names: BTreeMap<KindId, BTreeMap<Arc<str>, usize>>,
    last: u32,
}

/// What tells one object from another, whoever finds it, in whatever version.
type Object = (GroupKind, Box<str>, Box<str>);

#[allow(clippy::trivially_copy_pass_by_ref)] // As with any map.
impl Slots {
    /// A number for a new one; none: they are used up.
    pub(crate) fn next_id(&mut self) -> Option<SlotId> {
        self.last = self.last.checked_add(1)?;
        NonZeroU32::new(self.last).map(SlotId)
    }

    pub(crate) fn insert(&mut self, id: SlotId, slot: Slot) {
        self.by_object
            .entry(slot.source.object())
            .or_default()
            .insert(id);
        if let CopyName::Alike(name) = &slot.name {
            *self
                .names
                .entry(slot.kind)
                .or_default()
                .entry(name.clone())
                .or_default() += 1;
        }
        self.by_id.insert(id, slot);
    }

    pub(crate) fn remove(&mut self, id: &SlotId) -> Option<Slot> {
        let slot = self.by_id.remove(id)?;
        let object = slot.source.object();
        if let Some(ids) = self.by_object.get_mut(&object) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_object.remove(&object);
            }
        }
        if let (CopyName::Alike(name), Some(names)) = (&slot.name, self.names.get_mut(&slot.kind))
            && let Some(count) = names.get_mut(name)
        {
            *count -= 1;
            if *count == 0 {
                names.remove(name);
            }
        }
        Some(slot)
    }

    /// One name shared by all slots whose copies have it, if there are any.
    pub(crate) fn copy_name(&self, kind: KindId, name: &str) -> Option<&Arc<str>> {
        self.names
            .get(&kind)?
            .get_key_value(name)
            .map(|(name, _)| name)
    }

    pub(crate) fn get(&self, id: &SlotId) -> Option<&Slot> {
        self.by_id.get(id)
    }

    /// To change anything but its source.
    pub(crate) fn get_mut(&mut self, id: &SlotId) -> Option<&mut Slot> {
        self.by_id.get_mut(id)
    }

    /// The rule that wants the cell, else the one whose copy is in it.
    pub(crate) fn owner<'a>(&'a self, cell: &'a Cell) -> Option<&'a Arc<RuleId>> {
        let wanted = cell
            .want
            .and_then(|id| self.get(&id))
            .map(|slot| &slot.rule);
        wanted.or_else(|| cell.ours()?.rule.as_ref())
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Slot> {
        self.by_id.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Those that copy this object, in whatever version, however their rules come to it.
    pub(crate) fn of_object(
        &self,
        kind: &GroupKind,
        namespace: &str,
        name: &str,
    ) -> impl Iterator<Item = &Slot> {
        let ids = self
            .by_object
            .get(&(kind.clone(), namespace.into(), name.into()));
        ids.into_iter()
            .flatten()
            .filter_map(|id| self.by_id.get(id))
    }

    /// Those of just this source.
    pub(crate) fn of_source(&self, source: &SourceRef) -> impl Iterator<Item = (SlotId, &Slot)> {
        let ids = self.by_object.get(&source.object()).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.by_id.get(id)?)))
            .filter(move |(_, slot)| slot.source == *source)
    }
}

/// Name of a slot's copies.
#[derive(Clone, Debug)]
pub enum CopyName {
    /// The same in all namespaces, and one string for all of them.
    Alike(Arc<str>),
    /// Variables of the namespace are in it.
    Form(Template),
}

impl CopyName {
    /// The name in one namespace. One that can't be made there still tells the cell from others,
    /// and people what is missing: no object has such a name.
    pub fn at(&self, place: Place<'_>) -> Arc<str> {
        match self {
            Self::Alike(name) => name.clone(),
            Self::Form(template) => template.text_at(place).into(),
        }
    }

    /// The first variable in it that has no value there.
    pub fn unset_at(&self, place: Place<'_>) -> Option<&Variable> {
        match self {
            Self::Alike(_) => None,
            Self::Form(template) => template
                .variables()
                .find(|variable| variable.value(place).is_none()),
        }
    }

    /// Whether there may be namespaces in which it is that name, too.
    pub fn may_be(&self, other: &Template) -> bool {
        match (self, other.literal()) {
            (Self::Alike(name), Some(other)) => **name == *other,
            _ => true,
        }
    }
}

impl From<Template> for CopyName {
    fn from(template: Template) -> Self {
        match template.literal() {
            Some(name) => Self::Alike(name.into()),
            None => Self::Form(template),
        }
    }
}

/// Why a slot has no rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRendering {
    /// The source's namespace doesn't let the rule read it, or there is none.
    NotGranted,
    /// The source has not been read yet.
    NotRead,
    /// The source isn't there.
    SourceMissing,
    /// The source gives no copy.
    Refused(SourceRefused),
}
