//! A slot: one source of one rule for one of its targets, that is, one rendering for any number of namespaces.

use std::sync::Arc;

use crate::{
    cell::Reference,
    kind::GroupVersionKind,
    render::{Rendering, SourceRefused},
    rule::{RuleId, SourceRef},
};

/// Number of a group and kind that has or had copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KindId(pub u16);

/// Number of a slot; never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub std::num::NonZeroU32);

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
    /// Name of the copy.
    pub name: Arc<str>,
    /// The copy's bytes, or why there are none.
    pub rendering: Result<Arc<Rendering>, NoRendering>,
    /// What a good copy's field set is.
    pub reference: Reference,
}

impl Slot {
    /// The kind, with the version that is written.
    pub fn gvk(&self) -> &GroupVersionKind {
        &self.source.gvk
    }
}

/// Why a slot has no rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRendering {
    /// The source has not been read yet.
    NotRead,
    /// The source isn't there.
    SourceMissing,
    /// The source gives no copy.
    Refused(SourceRefused),
}
