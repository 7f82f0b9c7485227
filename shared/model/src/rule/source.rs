//! The sources of a rule.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::inline;
use crate::{
    id::RuleId,
    kind::GroupVersionKind,
    refusal::{ITEMS, Refusals},
    selection::Selector,
    source::{SourceRef, SourceSelector},
    syntax,
};

/// Most sources of one rule, including those that its selectors find.
pub const MOST_SOURCES: usize = 256;

/// The items of a rule's `sources`.
#[derive(Default)]
pub(super) struct Sources {
    /// Sources known without a read: the named and the inline ones.
    pub(super) known: Vec<SourceRef>,
    pub(super) inline: BTreeMap<SourceRef, Arc<Value>>,
    pub(super) selectors: Vec<SourceSelector>,
    /// The kind of each item.
    pub(super) kinds: Vec<GroupVersionKind>,
}

/// Sample sources for checks of values that are made from a source: all known sources, and one
/// source that each selector could find.
pub(super) fn samples(known: &[SourceRef], selectors: &[SourceSelector]) -> Vec<SourceRef> {
    let found = selectors.iter().map(|selector| selector.source("x"));
    known.iter().cloned().chain(found).collect()
}

/// Parses the items of `sources`, and skips refused items.
pub(super) fn parse(
    sources: &[mimeo_api::Source],
    rule: &RuleId,
    refusals: &mut Refusals,
) -> Sources {
    refusals.count("spec.sources", sources.len(), ITEMS);
    let mut parsed = Sources::default();
    for (i, source) in sources.iter().enumerate() {
        let field = format!("spec.sources[{i}]");
        match refusals.part(|refusals| parse_one(source, rule, &field, refusals)) {
            None => {}
            Some(Parsed::Known(source, object)) => {
                parsed.kinds.push(source.gvk.clone());
                let known = &mut parsed.known;
                if let Some(first) = known.iter().find(|first| first.object() == source.object()) {
                    refusals.add(field, format!("the rule already has the source {first}"));
                } else {
                    let object = object.map(|object| (source.clone(), object));
                    parsed.inline.extend(object);
                    known.push(source);
                }
            }
            Some(Parsed::Selector(selector)) => {
                parsed.kinds.push(selector.gvk.clone());
                if parsed.selectors.contains(&selector) {
                    refusals.add(field, "the rule already has the same selector");
                } else {
                    parsed.selectors.push(selector);
                }
            }
        }
    }
    parsed
}

enum Parsed {
    /// A named source, or an inline source with its object.
    Known(SourceRef, Option<Arc<Value>>),
    Selector(SourceSelector),
}

fn parse_one(
    source: &mimeo_api::Source,
    rule: &RuleId,
    field: &str,
    refusals: &mut Refusals,
) -> Option<Parsed> {
    let mimeo_api::Source {
        api_version,
        kind,
        namespace,
        name,
        selector,
        inline,
    } = source;
    if let Some(object) = inline {
        if [api_version, kind, namespace, name]
            .iter()
            .any(|other| other.is_some())
            || selector.is_some()
        {
            refusals.add(
                field,
                "inline must be the only field of a source: the object has its own \
                    apiVersion, kind and name, and no namespace",
            );
        }
        let source = inline::parse(object, rule, &format!("{field}.inline"), refusals)?;
        return Some(Parsed::Known(source, Some(Arc::new(object.clone()))));
    }
    let (Some(api_version), Some(kind), Some(namespace)) = (api_version, kind, namespace) else {
        refusals.add(field, "apiVersion, kind and namespace must be set");
        return None;
    };
    let gvk = refusals.one(field, GroupVersionKind::parse(api_version, kind));
    refusals.one(&format!("{field}.namespace"), syntax::dns_label(namespace));
    if let Some(why) = gvk.as_ref().and_then(GroupVersionKind::left_alone) {
        refusals.add(format!("{field}.kind"), why);
    }
    let namespace = namespace.as_str();
    match (name, selector) {
        (Some(name), None) => {
            let group = gvk.as_ref().map_or("", |gvk| &gvk.group);
            refusals.one(&format!("{field}.name"), syntax::object_name(group, name));
            let source = SourceRef::named(gvk?, namespace, name.as_str());
            Some(Parsed::Known(source, None))
        }
        (None, Some(selector)) => {
            let selector = Selector::parse(selector, &format!("{field}.selector"), refusals);
            Some(Parsed::Selector(SourceSelector {
                gvk: gvk?,
                namespace: namespace.into(),
                selector: Arc::new(selector),
            }))
        }
        _ => {
            refusals.add(
                field,
                "exactly one of name, selector and inline must be set",
            );
            None
        }
    }
}
