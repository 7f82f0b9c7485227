//! What a rule copies.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde_json::Value;

use super::{Refusal, Refusals, RuleId, inline, syntax};
use crate::{
    kind::{GroupKind, GroupVersionKind},
    selection::Selector,
};

/// Most sources of one rule, those that its selectors find included.
pub const MOST_SOURCES: usize = 256;

/// What an inline source begins with as text.
const INLINE: &str = "inline/";

/// The items of a rule's `sources`.
#[derive(Default)]
pub(super) struct Sources {
    /// What is known without looking: what is named, and what is inline.
    pub(super) known: Vec<SourceRef>,
    pub(super) inline: BTreeMap<SourceRef, Arc<Value>>,
    pub(super) selectors: Vec<SourceSelector>,
    /// Of each item.
    pub(super) kinds: Vec<GroupVersionKind>,
}

impl Sources {
    /// Sources to check with what is made of any: those that are known, and one that each selector could find.
    pub(super) fn samples(&self) -> Vec<SourceRef> {
        self.known.iter().cloned().chain(self.selectors.iter().map(|selector| selector.source("x"))).collect()
    }
}

/// The items that can be parsed.
pub(super) fn parse(sources: &[mimeo_api::Source], rule: &RuleId, refusals: &mut Refusals) -> Sources {
    refusals.count("spec.sources", sources.len());
    let mut parsed = Sources::default();
    let Sources { known, inline, selectors, kinds } = &mut parsed;
    for (i, source) in sources.iter().enumerate() {
        let field = format!("spec.sources[{i}]");
        match refusals.all(parse_one(source, rule, &field)) {
            None => {}
            Some(Parsed::Known(source, object)) => {
                kinds.push(source.gvk.clone());
                if let Some(first) = known.iter().find(|first| first.is_same_object(&source)) {
                    refusals.add(field, format!("{first} is there already"));
                } else {
                    inline.extend(object.map(|object| (source.clone(), object)));
                    known.push(source);
                }
            }
            Some(Parsed::Selector(selector)) => {
                kinds.push(selector.gvk.clone());
                if selectors.contains(&selector) {
                    refusals.add(field, "the same selector is there already");
                } else {
                    selectors.push(selector);
                }
            }
        }
    }
    parsed
}

enum Parsed {
    /// With the object itself, if it is inline.
    Known(SourceRef, Option<Arc<Value>>),
    Selector(SourceSelector),
}

fn parse_one(source: &mimeo_api::Source, rule: &RuleId, field: &str) -> Result<Parsed, Vec<Refusal>> {
    let mimeo_api::Source { api_version, kind, namespace, name, selector, inline } = source;
    let mut refusals = Refusals::default();
    if let Some(object) = inline {
        if [api_version, kind, namespace, name].iter().any(|other| other.is_some()) || selector.is_some() {
            refusals
                .add(field, "inline must be alone: the object has its own apiVersion, kind and name, and no namespace");
        }
        let parsed = refusals.all(inline::parse(object, rule, &format!("{field}.inline")));
        return refusals.finish_with(parsed.map(|source| Parsed::Known(source, Some(Arc::new(object.clone())))));
    }
    let (Some(api_version), Some(kind), Some(namespace)) = (api_version, kind, namespace) else {
        refusals.add(field, "apiVersion, kind and namespace must be set");
        return refusals.finish_with(None);
    };
    let gvk = refusals.one(field, GroupVersionKind::parse(api_version, kind));
    refusals.one(&format!("{field}.namespace"), syntax::dns_label(namespace));
    if let Some(why) = gvk.as_ref().and_then(never_copied) {
        refusals.add(format!("{field}.kind"), why);
    }
    let parsed = match (name, selector) {
        (Some(name), None) => {
            let group = gvk.as_ref().map_or("", |gvk| &gvk.group);
            refusals.one(&format!("{field}.name"), syntax::object_name(group, name));
            gvk.map(|gvk| Parsed::Known(SourceRef::named(gvk, namespace.as_str(), name.as_str()), None))
        }
        (None, Some(selector)) => {
            let selector = refusals.all(Selector::parse(selector, &format!("{field}.selector"))).map(Arc::new);
            let namespace = namespace.as_str().into();
            gvk.zip(selector).map(|(gvk, selector)| Parsed::Selector(SourceSelector { gvk, namespace, selector }))
        }
        _ => {
            refusals.add(field, "exactly one of name, selector and inline must be set");
            None
        }
    };
    refusals.finish_with(parsed)
}

/// A source: one object by kind, namespace and name, and how rules come to it.
///
/// Prints as `v1/Secret/platform/registry` and `apps/v1/Deployment/platform/web`; one that stands in its rule, which whoever
/// reads of it knows, as `inline/v1/ConfigMap/settings`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceRef {
    /// Its kind, in the version in which it is read and its copies are written.
    pub gvk: GroupVersionKind,
    /// Its namespace; empty, as no namespace's name is, if it is inline.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// How rules come to it.
    pub origin: Origin,
}

/// How rules come to a source. The same object is another source to a rule that comes to it in another way: it may be there
/// to the one and not to the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// By its name.
    Named,
    /// By its labels: it is there for as long as they match.
    Selected(Arc<Selector>),
    /// It stands in this rule, and there is nothing to read.
    Inline(Arc<RuleId>),
}

impl SourceRef {
    /// An object that a rule names.
    pub fn named(gvk: GroupVersionKind, namespace: impl Into<Box<str>>, name: impl Into<Box<str>>) -> Self {
        Self { gvk, namespace: namespace.into(), name: name.into(), origin: Origin::Named }
    }

    /// An object that stands in a rule.
    pub(super) fn inline(gvk: GroupVersionKind, rule: &RuleId, name: &str) -> Self {
        Self { gvk, namespace: "".into(), name: name.into(), origin: Origin::Inline(Arc::new(rule.clone())) }
    }

    /// The object that a copy's annotation [`names::SOURCE`](crate::names::SOURCE) names; none if it doesn't.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.starts_with(INLINE) {
            return None;
        }
        let (rest, name) = text.rsplit_once('/')?;
        let (rest, namespace) = rest.rsplit_once('/')?;
        let (api_version, kind) = rest.rsplit_once('/')?;
        Some(Self::named(GroupVersionKind::parse(api_version, kind).ok()?, namespace, name))
    }

    /// Whether a rule names it, and so has it watched by its name.
    pub fn is_named(&self) -> bool {
        matches!(self.origin, Origin::Named)
    }

    /// Whether it stands in its rule.
    pub fn is_inline(&self) -> bool {
        matches!(self.origin, Origin::Inline(_))
    }

    /// Its namespace, if it has one.
    pub fn home(&self) -> Option<&str> {
        (!self.is_inline()).then_some(&*self.namespace)
    }

    /// Whether it is that object, in whatever version of its kind.
    pub fn is(&self, kind: &GroupKind, namespace: &str, name: &str) -> bool {
        *self.name == *name && *self.namespace == *namespace && self.gvk.is_of(kind)
    }

    /// What finds it, if its name isn't what it is known by.
    pub fn selector(&self) -> Option<SourceSelector> {
        match &self.origin {
            Origin::Named | Origin::Inline(_) => None,
            Origin::Selected(selector) => Some(SourceSelector {
                gvk: self.gvk.clone(),
                namespace: self.namespace.clone(),
                selector: selector.clone(),
            }),
        }
    }

    /// Whether an object of its name is this source, given the value of each of its labels by key.
    pub fn admits<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        match &self.origin {
            Origin::Named | Origin::Inline(_) => true,
            Origin::Selected(selector) => selector.matches_by(label),
        }
    }

    /// What tells it from other objects, whoever finds it, in whatever version.
    pub(crate) fn object(&self) -> (GroupKind, Box<str>, Box<str>) {
        (self.gvk.group_kind(), self.namespace.clone(), self.name.clone())
    }

    /// Whether it is the same object, though perhaps in another version, or found in another way.
    pub(crate) fn is_same_object(&self, other: &Self) -> bool {
        (&self.gvk.group, &self.gvk.kind, &self.namespace, &self.name)
            == (&other.gvk.group, &other.gvk.kind, &other.namespace, &other.name)
    }
}

impl fmt::Display for SourceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gvk, namespace, name, origin } = self;
        match origin {
            Origin::Named | Origin::Selected(_) => write!(f, "{gvk}/{namespace}/{name}"),
            Origin::Inline(_) => write!(f, "{INLINE}{gvk}/{name}"),
        }
    }
}

/// Every object of a kind in one namespace whose labels match.
///
/// Prints as `v1/Secret/platform`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceSelector {
    /// The kind, in the version in which it is read and its copies are written.
    pub gvk: GroupVersionKind,
    /// The namespace.
    pub namespace: Box<str>,
    /// Which labels.
    pub selector: Arc<Selector>,
}

impl SourceSelector {
    /// The object of that name, as a source that this finds.
    pub fn source(&self, name: impl Into<Box<str>>) -> SourceRef {
        let Self { gvk, namespace, selector } = self.clone();
        SourceRef { gvk, namespace, name: name.into(), origin: Origin::Selected(selector) }
    }

    /// Whether an object is where it looks, in whatever version, and has the kind.
    pub(crate) fn could_find(&self, source: &SourceRef) -> bool {
        self.namespace == source.namespace && (&self.gvk.group, &self.gvk.kind) == (&source.gvk.group, &source.gvk.kind)
    }

    /// Whether it is what finds this source.
    pub fn finds(&self, source: &SourceRef) -> bool {
        let selector = match &source.origin {
            Origin::Named | Origin::Inline(_) => None,
            Origin::Selected(selector) => Some(selector),
        };
        self.namespace == source.namespace && self.gvk == source.gvk && selector == Some(&self.selector)
    }
}

impl fmt::Display for SourceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gvk, namespace, selector: _ } = self;
        write!(f, "{gvk}/{namespace}")
    }
}

/// Why objects of the kind are never copied, if they aren't.
pub(super) fn never_copied(gvk: &GroupVersionKind) -> Option<&'static str> {
    match (&*gvk.group, &*gvk.kind) {
        ("", "Namespace") => Some("kind Namespace is never copied"),
        (mimeo_api::names::GROUP, _) => Some("Mimeo's own kinds are never copied"),
        _ => None,
    }
}
