//! The names that users give: of rules, and of objects.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::GroupVersionKind,
};

use crate::picture::Picture;

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

/// An object as a user names it: `NAMESPACE/KIND/NAME`, or `KIND/NAME` in the namespace of `-n`.
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

/// Finds the kind that a user means: its name, its plural, or one of both with the group.
pub(crate) fn kind_of(picture: &Picture, text: &str) -> Result<GroupVersionKind> {
    let rules = picture
        .rules
        .values()
        .filter_map(|stored| stored.rule.as_ref().ok());
    let mut known: Vec<&GroupVersionKind> = rules.flat_map(|rule| &rule.kinds).collect();
    known.extend(picture.kinds.keys());
    let wanted = text.to_lowercase();
    let wanted = if wanted == "cm" {
        "configmap".to_owned()
    } else {
        wanted
    };
    let means = |gvk: &GroupVersionKind| {
        let kind = gvk.kind.to_lowercase();
        let plural = picture.kinds.get(gvk).and_then(Option::as_ref);
        let names = [
            Some(kind.as_str()),
            plural.map(|resource| &*resource.plural),
        ];
        names
            .into_iter()
            .flatten()
            .any(|name| wanted == name || wanted == format!("{name}.{}", gvk.group))
    };
    let meant: Vec<&GroupVersionKind> = known.iter().copied().filter(|gvk| means(gvk)).collect();
    let groups: BTreeSet<String> = meant
        .iter()
        .map(|gvk| gvk.group_kind().to_string())
        .collect();
    if groups.len() > 1 {
        let groups: Vec<String> = groups.into_iter().collect();
        bail!(
            "{text:?} stands for several kinds; write one of {}",
            groups.join(", ")
        );
    }
    if let Some(gvk) = meant.first() {
        return Ok((*gvk).clone());
    }
    for (kind, plural) in [("Secret", "secrets"), ("ConfigMap", "configmaps")] {
        if wanted == kind.to_lowercase() || wanted == plural {
            return GroupVersionKind::parse("v1", kind).map_err(anyhow::Error::msg);
        }
    }
    let mut kinds: Vec<String> = known
        .iter()
        .map(|gvk| gvk.group_kind().to_string())
        .collect();
    kinds.sort();
    kinds.dedup();
    let kinds = if kinds.is_empty() {
        "none".to_owned()
    } else {
        kinds.join(", ")
    };
    bail!("no rule copies objects of kind {text:?}; the kinds that rules copy: {kinds}")
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
