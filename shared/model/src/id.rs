//! Identifiers of rules, kinds and projections. A projection is one source of one rule for one
//! target.

use std::{fmt, num::NonZeroU32, str::FromStr};

use crate::syntax;

/// The kinds of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuleKind {
    /// Cluster-scoped, written by the platform's administrators.
    ClusterReplication,
    /// Namespaced: the owner of any namespace may write one. It sorts after a `ClusterReplication`
    /// and yields to it.
    Replication,
}

impl RuleKind {
    /// All kinds, in their order of precedence.
    pub const ALL: [Self; 2] = [Self::ClusterReplication, Self::Replication];

    /// The resource name in URLs and in authorization rules.
    pub fn plural(self) -> &'static str {
        match self {
            Self::ClusterReplication => "clusterreplications",
            Self::Replication => "replications",
        }
    }

    /// Name of the CRD.
    pub fn crd_name(self) -> String {
        format!("{}.{}", self.plural(), mimeo_api::names::GROUP)
    }
}

impl fmt::Display for RuleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterReplication => mimeo_api::names::CLUSTER_REPLICATION,
            Self::Replication => mimeo_api::names::REPLICATION,
        })
    }
}

/// Identifies a rule. The uid is not part of it: a rule that is created again, or restored from a
/// backup, keeps its copies.
///
/// Prints as `ClusterReplication/registry` and `Replication/team-a/registry`, and parses the same
/// text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId {
    /// Kind of the rule.
    pub kind: RuleKind,
    /// Namespace of the rule. `None` for a cluster-scoped kind.
    pub namespace: Option<Box<str>>,
    /// Name of the rule.
    pub name: Box<str>,
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            namespace,
            name,
        } = self;
        match namespace {
            None => write!(f, "{kind}/{name}"),
            Some(namespace) => write!(f, "{kind}/{namespace}/{name}"),
        }
    }
}

impl FromStr for RuleId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::read(text).ok_or("not kind/name of a rule")
    }
}

impl RuleId {
    /// Reads the text that [`Display`](fmt::Display) prints.
    fn read(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once('/')?;
        let (kind, namespace, name) = match kind {
            mimeo_api::names::CLUSTER_REPLICATION => (RuleKind::ClusterReplication, None, rest),
            mimeo_api::names::REPLICATION => {
                let (namespace, name) = rest.split_once('/')?;
                syntax::dns_label(namespace).ok()?;
                (RuleKind::Replication, Some(namespace.into()), name)
            }
            _ => return None,
        };
        syntax::dns_subdomain(name).ok()?;
        Some(Self {
            kind,
            namespace,
            name: name.into(),
        })
    }
}

/// The number of a kind (in all versions) that has or had copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KindId(pub u16);

/// The number of a projection. A process never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProjectionId(pub NonZeroU32);

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    #[test]
    fn rule_ids_parse_as_they_print() {
        let id: RuleId = "Replication/team/a.b".parse().unwrap();
        assert_eq!(
            (id.kind, id.namespace.as_deref(), &*id.name),
            (RuleKind::Replication, Some("team"), "a.b")
        );
        assert_eq!(id.to_string(), "Replication/team/a.b");
        let id: RuleId = "ClusterReplication/a.b".parse().unwrap();
        assert_eq!(
            (id.kind, &*id.name, id.to_string().as_str()),
            (
                RuleKind::ClusterReplication,
                "a.b",
                "ClusterReplication/a.b"
            )
        );
        for text in [
            "",
            "registry",
            "ClusterReplication",
            "ClusterReplication/",
            "ClusterReplication/a/b",
            "Replication/a",
        ] {
            assert!(text.parse::<RuleId>().is_err(), "{text:?}");
        }
    }
}
