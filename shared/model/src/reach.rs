//! The limits of an installation: all kinds and namespaces, or only those that its operator allows.
//!
//! An operator can give Mimeo Roles instead of a `ClusterRole`, and then sets flags that name their
//! namespaces. Mimeo does not ask for other permissions, and does not promise copies elsewhere.

use std::{collections::BTreeSet, sync::Arc};

use crate::{kind::GroupKind, source::SourceQuery, syntax};

/// The limits of an installation. `None` means no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Namespaces in which sources are read.
    pub sources: Option<BTreeSet<Box<str>>>,
    /// Namespaces that copies are written into. Rules can't target other namespaces.
    pub targets: Option<Arc<BTreeSet<Box<str>>>>,
    /// Kinds that are copied.
    pub kinds: Option<BTreeSet<GroupKind>>,
}

impl Reach {
    /// True if Mimeo copies objects of the kind.
    pub fn copies(&self, kind: &GroupKind) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(kind))
    }

    /// True if copies may exist in that namespace.
    pub fn is_target(&self, namespace: &str) -> bool {
        self.targets
            .as_ref()
            .is_none_or(|targets| targets.contains(namespace))
    }

    /// The limit that forbids Mimeo to read the source, or to copy its kind, if there is one.
    pub fn refuses(&self, query: SourceQuery<'_>) -> Option<OutOfReach> {
        if !self.copies(&query.gvk().group_kind()) {
            return Some(OutOfReach::Kind);
        }
        let (limit, home) = (self.sources.as_ref()?, query.home()?);
        (!limit.contains(home)).then_some(OutOfReach::Namespace)
    }
}

/// Parses the name of a namespace in a limit.
///
/// # Errors
/// The fault of the name, for people. A pattern is refused, because a Role belongs to one
/// namespace.
pub fn namespace(text: &str) -> Result<Box<str>, String> {
    syntax::dns_label(text).map(|()| text.into())
}

/// The limit that keeps Mimeo from reading a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfReach {
    /// The limit of kinds.
    #[error("this installation of Mimeo does not copy the kind (--kinds)")]
    Kind,
    /// The limit of the sources' namespaces.
    #[error("this installation of Mimeo reads no sources in the namespace (--source-namespaces)")]
    Namespace,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use crate::kind::GroupVersionKind;
    use crate::source::SourceRef;

    fn source(kind: &str, namespace: &str) -> SourceRef {
        let gvk = GroupVersionKind::parse("v1", kind).unwrap();
        SourceRef::named(gvk, namespace, "a")
    }

    #[test]
    fn what_is_not_limited_is_in_reach() {
        let reach = Reach::default();
        let source = source("Secret", "platform");
        assert_eq!(reach.refuses(SourceQuery::One(&source)), None);
        assert!(reach.is_target("anywhere"));
    }

    #[test]
    fn each_limit_is_told_apart() {
        let secret = source("Secret", "platform").gvk.group_kind();
        let reach = Reach {
            sources: Some(["platform".into()].into()),
            targets: Some(Arc::new(["team".into()].into())),
            kinds: Some([secret].into()),
        };
        for (source, refusal) in [
            (source("Secret", "platform"), None),
            (source("Secret", "team"), Some(OutOfReach::Namespace)),
            (source("ConfigMap", "platform"), Some(OutOfReach::Kind)),
        ] {
            let refused = reach.refuses(SourceQuery::One(&source));
            assert_eq!(refused, refusal, "{source}");
        }
        assert!(reach.is_target("team") && !reach.is_target("platform"));
    }
}
