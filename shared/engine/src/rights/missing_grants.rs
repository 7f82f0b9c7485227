//! The grants that a rule lacks in other namespaces, and their messages. All of it is the same
//! whether such a namespace grants nothing or doesn't exist.

use std::collections::{BTreeMap, BTreeSet};

use mimeo_api::Access;

use mimeo_model::{
    kind::GroupVersionKind,
    known::Known,
    rule::{Rule, Target},
    selection::{Labels, Place},
    source::{SourceQuery, SourceRef},
};

use crate::Index;

/// Copies that a rule may not have, by namespace, kind and name. Each has the missing grant.
type Ungranted<'a> = BTreeMap<(&'a str, &'a str, String), MissingGrant<'a>>;

impl Index {
    /// Returns the missing grants of a rule with these `sources`, as sentences for users. The
    /// result is the same whether the other namespace grants nothing or doesn't exist. It is empty
    /// until the grants are known. If the grants cannot be read, the result is that message.
    pub fn not_granted(&self, rule: &Rule, sources: &[SourceRef]) -> Vec<String> {
        let known = self.consent.known != Known::Unknown && self.namespaces_listed;
        let Some(home) = rule.id.namespace.as_deref().filter(|_| known) else {
            return vec![];
        };
        let missing = self.missing_grants(rule, sources);
        match self.grants_unknown() {
            Some((_, unknown)) if !missing.is_empty() => vec![unknown],
            _ => missing.iter().map(|lack| lack.message(home)).collect(),
        }
    }

    /// Returns the grants that a Replication with these `sources` lacks, each once. A missing grant
    /// to read a source hides the grant that its copies need: ask again once it is given. The
    /// result means nothing until the grants and the rule's own namespace are known.
    pub fn missing_grants<'a>(
        &self,
        rule: &'a Rule,
        sources: &[SourceRef],
    ) -> BTreeSet<MissingGrant<'a>> {
        let unread = rule.queries();
        let unread = unread.filter(|query| !self.may_read(&rule.id, *query));
        unread
            .map(MissingGrant::to_read)
            .chain(self.ungranted(rule, sources, None).into_values())
            .collect()
    }

    /// Returns the copies that a rule with these `sources` may not have, in one namespace or in all.
    pub(crate) fn ungranted<'a>(
        &self,
        rule: &'a Rule,
        sources: &[SourceRef],
        only: Option<&str>,
    ) -> Ungranted<'a> {
        let may_read = |source: &SourceRef| self.may_read(&rule.id, SourceQuery::One(source));
        let unread = rule.sources.iter().filter(|source| !may_read(source));
        let unread: Vec<&SourceRef> = unread.collect();
        let mut copies = BTreeMap::new();
        for target in &rule.targets {
            let namespaces = target.selection.exact_names().into_iter().flatten();
            // Such a namespace need not exist.
            for namespace in namespaces.filter(|name| only.is_none_or(|only| only == *name)) {
                let given = self.given(Access::Write, &rule.id, namespace);
                for source in sources {
                    let Some(gvk) = rule.kinds.iter().find(|gvk| **gvk == source.gvk) else {
                        continue;
                    };
                    let (kind, name) = (gvk.group_kind(), copy_name(target, source, namespace));
                    // A source is never written, even a source that the rule may not read.
                    if sources
                        .iter()
                        .any(|other| other.is(&kind, namespace, &name))
                    {
                        continue;
                    }
                    let lack = match unread.iter().find(|unread| **unread == source) {
                        Some(source) => MissingGrant::to_read(SourceQuery::One(source)),
                        None if given.covers(&kind, &name) => continue,
                        None => MissingGrant {
                            access: Access::Write,
                            namespace,
                            gvk,
                            name: Some(name.clone()),
                        },
                    };
                    copies.insert((namespace, &*gvk.kind, name), lack);
                }
            }
        }
        copies
    }
}

/// Returns the name of the copy. The names of a tenant's copies don't depend on labels of their
/// namespaces.
fn copy_name(target: &Target, source: &SourceRef, namespace: &str) -> String {
    target.copy_name(source).text_at(Place {
        name: namespace,
        labels: &Labels::new(),
    })
}

/// A grant that a namespace would have to give.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingGrant<'a> {
    /// The access that it must give.
    pub access: Access,
    /// The namespace that must give it.
    pub namespace: &'a str,
    /// The kind of the objects.
    pub gvk: &'a GroupVersionKind,
    /// The name of the object. `None`: objects of any name.
    pub name: Option<String>,
}

impl<'a> MissingGrant<'a> {
    /// The missing grant to read these sources, which are not inline.
    pub(crate) fn to_read(query: SourceQuery<'a>) -> Self {
        Self {
            access: Access::Read,
            namespace: query.home().unwrap_or_default(),
            gvk: query.gvk(),
            name: query.name().map(ToOwned::to_owned),
        }
    }

    /// Returns the message for users of the rule. `home` is the rule's namespace.
    pub(crate) fn message(&self, home: &str) -> String {
        let Self {
            access,
            namespace,
            gvk,
            name,
        } = self;
        let kind = &gvk.kind;
        let role = match access {
            Access::Read => "source",
            Access::Write => "copy",
        };
        let (what, covers) = match name {
            Some(name) => (format!("{kind} {name}"), "it"),
            None => (format!("{kind} by a selector"), "objects of any name"),
        };
        format!(
            "{what} in namespace {namespace} is not granted as a {role} to namespace {home}: no ReplicationGrant in {namespace} \
             with access {access:?} covers {covers}, or no such namespace"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mimeo_model::review::{Verdict, encode};

    #[test]
    fn what_is_not_granted_is_told_whole_however_long_the_names_are() {
        let (home, namespace, kind) = ("h".repeat(63), "n".repeat(63), "K".repeat(63));
        let gvk = GroupVersionKind::parse("v1", &kind).expect("a kind");
        for (access, name, advice) in [
            (
                Access::Read,
                Some("s".repeat(253)),
                "with access Read covers it, or no such namespace",
            ),
            (
                Access::Write,
                Some("c".repeat(253)),
                "with access Write covers it, or no such namespace",
            ),
            (
                Access::Read,
                None,
                "with access Read covers objects of any name, or no such namespace",
            ),
        ] {
            let lack = MissingGrant {
                access,
                namespace: &namespace,
                gvk: &gvk,
                name,
            };
            let warnings = vec![lack.message(&home)];
            let sent = encode("u", &Verdict::Allow { warnings });
            let sent: serde_json::Value = serde_json::from_slice(&sent).expect("a review");
            let warning = sent["response"]["warnings"][0].as_str().unwrap_or_default();
            assert!(warning.ends_with(advice), "{warning}");
        }
    }
}
