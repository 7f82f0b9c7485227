//! Where an installation acts: everything, or only the kinds and namespaces that its operator has
//! granted it.
//!
//! Whoever gives Mimeo Roles instead of a `ClusterRole` says by flags where they are, so that it
//! neither asks for what it was never meant to have nor promises what it can't do there.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    kind::{GroupKind, GroupVersionKind},
    source::SourceRef,
    syntax,
};

/// The limits of an installation; without one there is none of that sort.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Namespaces in which sources are read.
    pub sources: Option<BTreeSet<Box<str>>>,
    /// Namespaces into which copies are written. Others are no targets, whatever rules say.
    pub targets: Option<Arc<BTreeSet<Box<str>>>>,
    /// Kinds that are copied.
    pub kinds: Option<BTreeSet<GroupKind>>,
}

impl Reach {
    /// Whether objects of the kind are copied.
    pub fn copies(&self, kind: &GroupKind) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(kind))
    }

    /// Whether copies may be in that namespace.
    pub fn is_target(&self, namespace: &str) -> bool {
        self.targets
            .as_ref()
            .is_none_or(|targets| targets.contains(namespace))
    }

    /// Why that source isn't read, if it isn't.
    pub fn refuses(&self, source: &SourceRef) -> Option<OutOfReach> {
        self.refuses_home(&source.gvk, source.home())
    }

    /// Why the kind isn't copied from that namespace, if it isn't; from none, if the source is
    /// inline.
    pub fn refuses_home(
        &self,
        gvk: &GroupVersionKind,
        namespace: Option<&str>,
    ) -> Option<OutOfReach> {
        if !self.copies(&gvk.group_kind()) {
            return Some(OutOfReach::Kind);
        }
        let (limit, home) = (self.sources.as_ref()?, namespace?);
        (!limit.contains(home)).then_some(OutOfReach::Namespace)
    }
}

/// A namespace in such a limit.
///
/// # Errors
/// What is wrong with the name, for people. A pattern is no name: Roles don't reach so far.
pub fn namespace(text: &str) -> Result<Box<str>, String> {
    syntax::dns_label(text).map(|()| text.into())
}

/// Which limit keeps a source from being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfReach {
    /// That of kinds.
    #[error("this installation of Mimeo does not copy the kind (--kinds)")]
    Kind,
    /// That of the sources' namespaces.
    #[error("this installation of Mimeo reads no sources in the namespace (--source-namespaces)")]
    Namespace,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    fn source(kind: &str, namespace: &str) -> SourceRef {
        let gvk = GroupVersionKind::parse("v1", kind).unwrap();
        SourceRef::named(gvk, namespace, "a")
    }

    #[test]
    fn what_is_not_limited_is_in_reach() {
        let reach = Reach::default();
        assert_eq!(reach.refuses(&source("Secret", "platform")), None);
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
            assert_eq!(reach.refuses(&source), refusal, "{source}");
        }
        assert!(reach.is_target("team") && !reach.is_target("platform"));
    }
}
