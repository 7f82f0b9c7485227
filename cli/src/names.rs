//! The names of rules and objects, as users give them and as commands take them.

use anyhow::{Result, bail};
use mimeo_model::{
    id::{RuleId, RuleKind},
    refusal::Refusal,
};

/// Parses the name of a rule: as statuses print it, or without its kind.
pub(crate) fn rule(text: &str) -> Result<RuleId, String> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let long = match text.split_once('/') {
        Some(("clusterreplication" | "clusterreplications", name)) => {
            format!("{}/{name}", RuleKind::ClusterReplication)
        }
        Some(_) => format!("{}/{text}", RuleKind::Replication),
        None => format!("{}/{text}", RuleKind::ClusterReplication),
    };
    long.parse().map_err(|_| {
        "write NAME for a ClusterReplication, and NAMESPACE/NAME for a Replication".to_owned()
    })
}

/// An object, or the place where a copy is missing. Users write `NAMESPACE/KIND/NAME`, or
/// `KIND/NAME` in the namespace of `-n`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObjectName<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
}

impl<'a> ObjectName<'a> {
    pub(crate) fn parse(text: &'a str, namespace: &'a str) -> Result<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let (namespace, kind, name) = match *parts {
            [namespace, kind, name] => (namespace, kind, name),
            [kind, name] => (namespace, kind, name),
            _ => bail!(
                "{text} is no object: write NAMESPACE/KIND/NAME, for example team-blue/secret/registry"
            ),
        };
        Ok(Self {
            namespace,
            kind,
            name,
        })
    }
}

/// A rule as an argument of this program: the short name, unless that means another rule.
pub(crate) fn argument(id: &RuleId) -> String {
    let short = match &id.namespace {
        Some(namespace) => format!("{namespace}/{}", id.name),
        None => id.name.to_string(),
    };
    if rule(&short).as_ref() == Ok(id) {
        short
    } else {
        id.to_string()
    }
}

/// A rule as an argument of kubectl.
pub(crate) fn object(id: &RuleId) -> String {
    match (&id.kind, &id.namespace) {
        (RuleKind::Replication, Some(namespace)) => {
            format!("-n {namespace} replication/{}", id.name)
        }
        _ => format!("clusterreplication/{}", id.name),
    }
}

/// The refusals of a spec, on one line.
pub(crate) fn refusals(refusals: &[Refusal]) -> String {
    let refusals: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    refusals.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_named_with_or_without_its_kind() {
        for (text, id) in [
            ("registry", "ClusterReplication/registry"),
            ("ClusterReplication/registry", "ClusterReplication/registry"),
            ("clusterreplication/registry", "ClusterReplication/registry"),
            ("team-blue/ca", "Replication/team-blue/ca"),
            ("Replication/team-blue/ca", "Replication/team-blue/ca"),
        ] {
            assert_eq!(rule(text).map(|id| id.to_string()), Ok(id.into()), "{text}");
        }
        for text in ["", "/", "a/", "Team/x", "a/b/c", "under_score"] {
            assert!(rule(text).is_err(), "{text}");
        }
        for (text, short) in [
            ("ClusterReplication/registry", "registry"),
            ("Replication/team-blue/ca", "team-blue/ca"),
            // A namespace may have this name.
            (
                "Replication/clusterreplication/ca",
                "Replication/clusterreplication/ca",
            ),
        ] {
            assert_eq!(rule(text).map(|id| argument(&id)), Ok(short.into()));
        }
    }

    #[test]
    fn an_object_is_named_with_or_without_its_namespace() {
        let parse = |text| ObjectName::parse(text, "here").ok();
        let object = |namespace| ObjectName {
            namespace,
            kind: "secret",
            name: "registry",
        };
        assert_eq!(parse("secret/registry"), Some(object("here")));
        assert_eq!(parse("there/secret/registry"), Some(object("there")));
        assert_eq!(parse("registry"), None);
        assert_eq!(parse("a/b/c/d"), None);
    }
}
