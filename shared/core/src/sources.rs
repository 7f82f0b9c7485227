//! How sources are watched: each by its name while they are few, by kind once they are many.

use std::collections::{BTreeMap, BTreeSet};

use crate::{kind::Resource, rule::SourceRef};

/// One watch that sources are followed by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceWatch {
    /// The source alone, in full.
    Named(SourceRef),
    /// The metadata of every object of the kind in this namespace; a wanted one that changed is then read in full.
    Namespace {
        /// Plural and group-version of the kind.
        resource: Resource,
        /// The namespace.
        namespace: Box<str>,
    },
    /// The same over all namespaces.
    Cluster {
        /// Plural and group-version of the kind.
        resource: Resource,
    },
}

impl SourceWatch {
    /// Whether it shows that source.
    pub fn shows(&self, source: &SourceRef) -> bool {
        match self {
            Self::Named(named) => named == source,
            Self::Namespace { resource, namespace } => resource.gvk == source.gvk && *namespace == source.namespace,
            Self::Cluster { resource } => resource.gvk == source.gvk,
        }
    }
}

/// At most this many watches by name in one namespace,
const PER_NAMESPACE: usize = 8;
/// and this many watches of sources in all: each is a connection's stream and an API server's goroutine.
const IN_ALL: usize = 64;

/// The fewest and narrowest watches that show all of these sources; `confined` if none may be wider than a namespace.
pub fn watches(sources: &BTreeMap<SourceRef, Resource>, confined: bool) -> BTreeSet<SourceWatch> {
    let mut by_namespace: BTreeMap<(&Resource, &str), Vec<&SourceRef>> = BTreeMap::new();
    for (source, resource) in sources {
        by_namespace.entry((resource, &source.namespace)).or_default().push(source);
    }
    let narrow: BTreeSet<SourceWatch> = by_namespace
        .iter()
        .flat_map(|((resource, namespace), sources)| {
            if sources.len() > PER_NAMESPACE {
                vec![SourceWatch::Namespace { resource: (*resource).clone(), namespace: (*namespace).into() }]
            } else {
                sources.iter().map(|source| SourceWatch::Named((*source).clone())).collect()
            }
        })
        .collect();
    if narrow.len() <= IN_ALL {
        return narrow;
    }
    let wide = |(source, resource): (&SourceRef, &Resource)| {
        let resource = resource.clone();
        if confined {
            SourceWatch::Namespace { resource, namespace: source.namespace.clone() }
        } else {
            SourceWatch::Cluster { resource }
        }
    };
    sources.iter().map(wide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::GroupVersionKind;

    fn sources(namespaces: usize, each: usize) -> BTreeMap<SourceRef, Resource> {
        let gvk = GroupVersionKind { group: "".into(), version: "v1".into(), kind: "Secret".into() };
        let resource = Resource { gvk: gvk.clone(), plural: "secrets".into(), namespaced: true };
        let all = (0..namespaces).flat_map(|n| (0..each).map(move |s| (n, s)));
        all.map(|(n, s)| {
            let source = SourceRef::named(gvk.clone(), format!("n{n}"), format!("s{s}"));
            (source, resource.clone())
        })
        .collect()
    }

    #[test]
    fn few_by_name_many_by_kind() {
        assert_eq!(watches(&sources(2, 8), false).len(), 16);
        assert!(matches!(watches(&sources(1, 9), false).first(), Some(SourceWatch::Namespace { .. })));
        assert_eq!(watches(&sources(8, 8), false).len(), 64);
        let many = watches(&sources(65, 1), false);
        assert!(many.len() == 1 && matches!(many.first(), Some(SourceWatch::Cluster { .. })));
        let confined = watches(&sources(65, 1), true);
        assert!(confined.len() == 65 && confined.iter().all(|watch| matches!(watch, SourceWatch::Namespace { .. })));
    }
}
