//! What a rule copies.

use std::fmt;

use super::{Refusal, Refusals, syntax};
use crate::kind::{GroupKind, GroupVersionKind};

/// The sources that can be parsed.
pub(super) fn parse(sources: &[mimeo_api::Source], refusals: &mut Refusals) -> Vec<SourceRef> {
    refusals.count("spec.sources", sources.len());
    let mut parsed: Vec<SourceRef> = Vec::new();
    for (i, source) in sources.iter().enumerate() {
        let Some(source) = refusals.all(SourceRef::parse(source, &format!("spec.sources[{i}]"))) else { continue };
        if let Some(first) = parsed.iter().find(|first| first.is_same_object(&source)) {
            refusals.add(format!("spec.sources[{i}]"), format!("{first} is there already"));
            continue;
        }
        parsed.push(source);
    }
    parsed
}

/// A source: one object by kind, namespace and name.
///
/// Prints as `v1/Secret/platform/registry` and `apps/v1/Deployment/platform/web`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceRef {
    /// Its kind, in the version in which it is read and its copies are written.
    pub gvk: GroupVersionKind,
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

impl SourceRef {
    /// Whether it is that object, in whatever version of its kind.
    pub fn is(&self, kind: &GroupKind, namespace: &str, name: &str) -> bool {
        *self.name == *name && *self.namespace == *namespace && self.gvk.is_of(kind)
    }

    /// One object.
    pub fn named(gvk: GroupVersionKind, namespace: impl Into<Box<str>>, name: impl Into<Box<str>>) -> Self {
        Self { gvk, namespace: namespace.into(), name: name.into() }
    }

    fn parse(source: &mimeo_api::Source, field: &str) -> Result<Self, Vec<Refusal>> {
        let mimeo_api::Source { api_version, kind, namespace, name } = source;
        let mut refusals = Refusals::default();
        let gvk = refusals.one(field, GroupVersionKind::parse(api_version, kind));
        refusals.one(&format!("{field}.namespace"), syntax::dns_label(namespace));
        if let Some(gvk) = &gvk {
            if let Some(why) = never_copied(gvk) {
                refusals.add(format!("{field}.kind"), why);
            }
            refusals.one(&format!("{field}.name"), syntax::object_name(&gvk.group, name));
        }
        refusals.finish_with(gvk.map(|gvk| Self::named(gvk, namespace.as_str(), name.as_str())))
    }

    /// Whether it is the same object, though perhaps in another version.
    fn is_same_object(&self, other: &Self) -> bool {
        (&self.gvk.group, &self.gvk.kind, &self.namespace, &self.name)
            == (&other.gvk.group, &other.gvk.kind, &other.namespace, &other.name)
    }
}

impl fmt::Display for SourceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gvk, namespace, name } = self;
        write!(f, "{gvk}/{namespace}/{name}")
    }
}

/// Why objects of the kind are never copied, if they aren't.
fn never_copied(gvk: &GroupVersionKind) -> Option<&'static str> {
    match (&*gvk.group, &*gvk.kind) {
        ("", "Namespace") => Some("kind Namespace is never copied"),
        (mimeo_api::names::GROUP, _) => Some("Mimeo's own kinds are never copied"),
        _ => None,
    }
}
