//! The watches of sources. Few sources are watched one by one, by name or selector. Many sources
//! are watched by kind.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    kind::{GroupVersionKind, Resource},
    source::{SourceRef, SourceSelector},
};

/// One watch that shows sources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceWatch {
    /// Shows this source alone, with its content.
    Named(SourceRef, Resource),
    /// Shows the sources that this selector finds, with their content.
    Selected(SourceSelector, Resource),
    /// Shows the metadata of every object of the kind. If a source changes, or an object matches a
    /// selector, Mimeo reads its content separately.
    Kind {
        /// Plural and group-version of the kind.
        resource: Resource,
        /// The namespace. `None` means all namespaces.
        namespace: Option<Box<str>>,
    },
}

impl SourceWatch {
    /// True if the watch shows all objects of the kind in that namespace.
    pub fn covers(&self, gvk: &GroupVersionKind, place: &str) -> bool {
        match self {
            Self::Named(..) | Self::Selected(..) => false,
            Self::Kind {
                resource,
                namespace,
            } => resource.gvk == *gvk && namespace.as_deref().is_none_or(|one| one == place),
        }
    }

    /// The selectors that can find their sources in this watch. Empty for a watch by name or
    /// selector.
    pub fn looks_for<'a>(
        &self,
        selectors: impl Iterator<Item = &'a SourceSelector>,
    ) -> BTreeSet<SourceSelector> {
        let covers = |one: &&SourceSelector| self.covers(&one.gvk, &one.namespace);
        selectors.filter(covers).cloned().collect()
    }
}

/// Most watches by name or selector for one kind in one namespace.
const PER_NAMESPACE: usize = 8;
/// Most watches of sources in total. Each costs a stream of a connection, and a goroutine in an API
/// server.
const IN_ALL: usize = 64;

/// The fewest and narrowest watches that show all of these sources and the sources of these
/// selectors. If `confined` is true, no watch covers more than one namespace.
pub fn watches(
    sources: &BTreeMap<SourceRef, Resource>,
    selectors: &BTreeMap<SourceSelector, Resource>,
    confined: bool,
) -> BTreeSet<SourceWatch> {
    let named = sources.iter().map(|(source, resource)| {
        let watch = SourceWatch::Named(source.clone(), resource.clone());
        ((resource, &*source.namespace), watch)
    });
    let selected = selectors.iter().map(|(selector, resource)| {
        let watch = SourceWatch::Selected(selector.clone(), resource.clone());
        ((resource, &*selector.namespace), watch)
    });
    let mut by_namespace: BTreeMap<(&Resource, &str), Vec<SourceWatch>> = BTreeMap::new();
    for (place, watch) in named.chain(selected) {
        by_namespace.entry(place).or_default().push(watch);
    }
    let wide = |resource: &Resource, namespace: Option<&str>| SourceWatch::Kind {
        resource: resource.clone(),
        namespace: namespace.map(Into::into),
    };
    let narrow = by_namespace
        .iter()
        .flat_map(|(&(resource, namespace), watches)| {
            if watches.len() > PER_NAMESPACE {
                vec![wide(resource, Some(namespace))]
            } else {
                watches.clone()
            }
        });
    let narrow: BTreeSet<SourceWatch> = narrow.collect();
    if narrow.len() <= IN_ALL {
        return narrow;
    }
    let places = by_namespace.into_keys();
    places
        .map(|(resource, namespace)| wide(resource, confined.then_some(namespace)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{kind::GroupVersionKind, refusal::Refusals, selection::Selector};

    fn sources(namespaces: usize, each: usize) -> BTreeMap<SourceRef, Resource> {
        let gvk = GroupVersionKind {
            group: "".into(),
            version: "v1".into(),
            kind: "Secret".into(),
        };
        let resource = Resource {
            gvk: gvk.clone(),
            plural: "secrets".into(),
            namespaced: true,
        };
        let all = (0..namespaces).flat_map(|n| (0..each).map(move |s| (n, s)));
        all.map(|(n, s)| {
            let source = SourceRef::named(gvk.clone(), format!("n{n}"), format!("s{s}"));
            (source, resource.clone())
        })
        .collect()
    }

    #[test]
    fn few_by_name_many_by_kind() {
        let named = |namespaces, each| watches(&sources(namespaces, each), &BTreeMap::new(), false);
        assert_eq!(named(2, 8).len(), 16);
        assert!(matches!(
            named(1, 9).first(),
            Some(SourceWatch::Kind {
                namespace: Some(_),
                ..
            })
        ));
        assert_eq!(named(8, 8).len(), 64);
        let many = named(65, 1);
        assert!(
            many.len() == 1
                && matches!(
                    many.first(),
                    Some(SourceWatch::Kind {
                        namespace: None,
                        ..
                    })
                )
        );
        let confined = watches(&sources(65, 1), &BTreeMap::new(), true);
        assert!(
            confined.len() == 65
                && confined.iter().all(|watch| matches!(
                    watch,
                    SourceWatch::Kind {
                        namespace: Some(_),
                        ..
                    }
                ))
        );
    }

    #[test]
    fn a_selector_counts_as_a_name_does() {
        let selected = |namespaces, each, kept: usize| {
            let mut named = sources(namespaces, each);
            let selectors: BTreeMap<SourceSelector, Resource> = std::iter::from_fn(|| {
                (named.len() > kept).then(|| named.pop_last()).flatten()
            })
            .map(|(source, resource)| {
                let key = source.name.to_string();
                let labels =
                    serde_json::json!({"matchExpressions": [{"key": key, "operator": "Exists"}]});
                let labels = serde_json::from_value(labels).expect("a selector");
                let selector = Arc::new(Selector::parse(
                    &labels,
                    "selector",
                    &mut Refusals::default(),
                ));
                (
                    SourceSelector {
                        gvk: source.gvk,
                        namespace: source.namespace,
                        selector,
                    },
                    resource,
                )
            })
            .collect();
            watches(&named, &selectors, false)
        };
        let few = selected(1, 8, 3);
        assert_eq!(
            few.iter()
                .filter(|watch| matches!(watch, SourceWatch::Selected(..)))
                .count(),
            5
        );
        assert!(matches!(
            selected(1, 9, 3).first(),
            Some(SourceWatch::Kind {
                namespace: Some(_),
                ..
            })
        ));
        assert!(matches!(
            selected(65, 1, 0).first(),
            Some(SourceWatch::Kind {
                namespace: None,
                ..
            })
        ));
    }
}
