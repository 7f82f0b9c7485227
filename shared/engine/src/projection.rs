//! A projection: one source of one rule for one target of the rule. All namespaces of the target
//! share its copies (the body with blanks for the checksum and the namespace's values).

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    sync::Arc,
};

use mimeo_model::{
    id::{KindId, ProjectionId, RuleId},
    kind::{GroupKind, GroupVersionKind},
    meta::Checksum,
    render::Copies,
    selection::Place,
    source::{SourceRef, SourceRefused},
    template::{Template, Variable},
};

use crate::{
    clock::Tick,
    copy::{CopyState, Reference},
};

/// One source of one rule for one of the rule's targets.
#[derive(Debug)]
pub struct Projection {
    /// The rule.
    pub rule: Arc<RuleId>,
    /// Index of the target in the rule.
    pub target: usize,
    /// The source.
    pub source: SourceRef,
    /// Kind of the source and of the copy.
    pub kind: KindId,
    /// True if the rule may read the source. If not, the projection's outcome does not depend on
    /// the source object.
    pub granted: bool,
    /// Name of the copies.
    pub name: CopyName,
    /// The copies' bytes, or the reason why there are none.
    pub rendering: Result<Copies, NoRendering>,
    /// When a change of the source produced this rendering. `None`: a change of the rule produced
    /// it.
    pub renewed: Option<Tick>,
    /// The field set of a correct copy.
    pub reference: Reference,
    /// How many dry runs in a row gave no field set.
    pub failed_dry_runs: u8,
}

impl Projection {
    /// The kind, in the version that Mimeo writes.
    pub fn gvk(&self) -> &GroupVersionKind {
        &self.source.gvk
    }

    /// Returns the checksum of the copy in one namespace. `None`: there can be no copy.
    pub(crate) fn checksum_at(&self, place: Place<'_>) -> Option<Checksum> {
        self.rendering.as_ref().ok()?.checksum_at(place).ok()
    }
}

/// All projections, by number and by source. There may be very many of both.
#[derive(Debug, Default)]
pub(crate) struct Projections {
    by_id: BTreeMap<ProjectionId, Projection>,
    by_object: BTreeMap<Object, BTreeSet<ProjectionId>>,
    /// Copy names that are the same in all namespaces.
    names: BTreeSet<Arc<str>>,
    last: u32,
}

/// The identity of a source object, independent of its version and of the rules that use it.
type Object = (GroupKind, Box<str>, Box<str>);

#[allow(clippy::trivially_copy_pass_by_ref)] // As with any map.
impl Projections {
    /// Adds a projection. Returns its number, or `None` if all numbers are used up.
    pub(crate) fn insert(&mut self, mut projection: Projection) -> Option<ProjectionId> {
        self.last = self.last.checked_add(1)?;
        let id = ProjectionId(NonZeroU32::new(self.last)?);
        self.by_object
            .entry(projection.source.object())
            .or_default()
            .insert(id);
        if let CopyName::Alike(name) = &mut projection.name {
            *name = self.copy_name(name);
            self.names.insert(name.clone());
        }
        self.by_id.insert(id, projection);
        Some(id)
    }

    pub(crate) fn remove(&mut self, id: &ProjectionId) -> Option<Projection> {
        let projection = self.by_id.remove(id)?;
        let object = projection.source.object();
        if let Some(ids) = self.by_object.get_mut(&object) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_object.remove(&object);
            }
        }
        Some(projection)
    }

    /// Returns one name that all copies of a projection share, also with the events of the watch.
    pub(crate) fn copy_name(&self, name: &str) -> Arc<str> {
        self.names.get(name).cloned().unwrap_or_else(|| name.into())
    }

    /// Forgets the names that no projection and no copy has any more.
    pub(crate) fn forget_names(&mut self) {
        self.names.retain(|name| Arc::strong_count(name) > 1);
    }

    pub(crate) fn get(&self, id: &ProjectionId) -> Option<&Projection> {
        self.by_id.get(id)
    }

    /// Gives access to change a projection. The projection's source must not change, since
    /// `by_object` depends on it.
    pub(crate) fn get_mut(&mut self, id: &ProjectionId) -> Option<&mut Projection> {
        self.by_id.get_mut(id)
    }

    /// Returns the rule that wants the copy, or else the rule of the copy in it.
    pub(crate) fn owner<'a>(&'a self, copy: &'a CopyState) -> Option<&'a Arc<RuleId>> {
        let wanted = self.wanted(copy).map(|projection| &projection.rule);
        wanted.or_else(|| copy.rule())
    }

    /// Returns the projection that wants the copy.
    pub(crate) fn wanted(&self, copy: &CopyState) -> Option<&Projection> {
        self.get(&copy.want?)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Projection> {
        self.by_id.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The projections that copy this object, in any version, whether a rule names it or a selector
    /// finds it.
    pub(crate) fn of_object(
        &self,
        kind: &GroupKind,
        namespace: &str,
        name: &str,
    ) -> impl Iterator<Item = &Projection> {
        let ids = self
            .by_object
            .get(&(kind.clone(), namespace.into(), name.into()));
        ids.into_iter()
            .flatten()
            .filter_map(|id| self.by_id.get(id))
    }

    /// The projections of exactly this source, version included.
    pub(crate) fn of_source(
        &self,
        source: &SourceRef,
    ) -> impl Iterator<Item = (ProjectionId, &Projection)> {
        let ids = self.by_object.get(&source.object()).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.by_id.get(id)?)))
            .filter(move |(_, projection)| projection.source == *source)
    }
}

/// Name of a projection's copies.
#[derive(Clone, Debug)]
pub enum CopyName {
    /// The same name in all namespaces, as one shared string.
    Alike(Arc<str>),
    /// A name that contains variables of the namespace.
    Form(Template),
}

impl CopyName {
    /// Returns the name in one namespace. If a variable has no value there, the text still
    /// identifies the copy and shows users the missing variable. No object can have such a name.
    pub fn at(&self, place: Place<'_>) -> Arc<str> {
        match self {
            Self::Alike(name) => name.clone(),
            Self::Form(template) => template.text_at(place).into(),
        }
    }

    /// Returns the first variable of the name without a value in that namespace.
    pub fn unset_at(&self, place: Place<'_>) -> Option<&Variable> {
        match self {
            Self::Alike(_) => None,
            Self::Form(template) => template
                .variables()
                .find(|variable| variable.value(place).is_none()),
        }
    }

    /// True if both names can be equal in some namespace.
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

/// Why a projection has no rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRendering {
    /// The source's namespace does not let the rule read the source, or that namespace does not
    /// exist.
    NotGranted,
    /// The source has not been read yet.
    NotRead,
    /// The source does not exist.
    SourceMissing,
    /// The source cannot be copied.
    Refused(SourceRefused),
}
