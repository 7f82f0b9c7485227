//! The grants that a rule lacks in other namespaces, and their messages. All of it is the same
//! whether such a namespace grants nothing or doesn't exist.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use mimeo_api::Access;

use mimeo_model::{
    kind::GroupVersionKind,
    known::Known,
    rule::{Rule, Target},
    selection::Labels,
    source::{SourceRef, SourceSelector},
    template::Place,
};

use crate::Index;

/// The missing grants of a rule: for its sources, its selectors and its copies, each in the rule's
/// order.
#[derive(Clone, Debug)]
pub(crate) struct MissingGrants {
    /// Named sources.
    sources: Vec<bool>,
    selectors: Vec<bool>,
    copies: Vec<Option<Access>>,
}

impl Index {
    /// Returns the missing grants of a stored rule.
    fn missing(&self, rule: &Rule) -> Cow<'_, MissingGrants> {
        match self.consent.missing_grants.get(&rule.id) {
            Some(known) => {
                Cow::Borrowed(known.get_or_init(|| self.find_lacks(rule, &self.sources_had(rule))))
            }
            None => Cow::Owned(self.find_lacks(rule, &self.sources_had(rule))),
        }
    }

    fn find_lacks(&self, rule: &Rule, sources: &[SourceRef]) -> MissingGrants {
        let unread: Vec<bool> = rule
            .sources
            .iter()
            .map(|source| !self.may_read(&rule.id, source))
            .collect();
        let selectors = rule
            .selectors
            .iter()
            .map(|selector| !self.may_select(&rule.id, selector))
            .collect();
        let mut given = BTreeMap::new();
        let copies = copies_of(rule, sources).map(|(namespace, index, target)| {
            let name = copy_name(target, &sources[index], namespace);
            let given = given
                .entry(namespace)
                .or_insert_with(|| self.given(Access::Write, &rule.id, namespace));
            let kind = sources[index].gvk.group_kind();
            // A source is never written, even a source that the rule may not read.
            if sources
                .iter()
                .any(|source| source.is(&kind, namespace, &name))
            {
                None
            } else if unread.get(index).is_some_and(|unread| *unread) {
                Some(Access::Read)
            } else {
                (!given.covers(&kind, &name)).then_some(Access::Write)
            }
        });
        let copies = copies.collect();
        MissingGrants {
            sources: unread,
            selectors,
            copies,
        }
    }

    /// Returns the missing grants of a stored rule: up to `most` sentences for users, and the
    /// number of the others. The result is the same whether the other namespace grants nothing or
    /// doesn't exist. It is empty until the grants are known. If the grants cannot be read, the
    /// result is that message.
    pub(crate) fn missing_grants_told(&self, rule: &Rule, most: usize) -> (Vec<String>, usize) {
        self.tell(rule, &self.sources_had(rule), &self.missing(rule), most)
    }

    /// Returns the missing grants of a rule before it is stored, with all the `sources` that it
    /// would have.
    pub fn not_granted(
        &self,
        rule: &Rule,
        sources: &[SourceRef],
        most: usize,
    ) -> (Vec<String>, usize) {
        self.tell(rule, sources, &self.find_lacks(rule, sources), most)
    }

    fn tell(
        &self,
        rule: &Rule,
        sources: &[SourceRef],
        known: &MissingGrants,
        most: usize,
    ) -> (Vec<String>, usize) {
        let Some(home) = rule.id.namespace.as_deref() else {
            return (vec![], 0);
        };
        if self.consent.known == Known::Unknown || !self.namespaces_listed {
            return (vec![], 0);
        }
        let missing = all_missing(rule, sources, known);
        if let Some(unknown) = self.grants_unknown().filter(|_| !missing.is_empty()) {
            return (vec![unknown.message], 0);
        }
        (
            missing
                .iter()
                .take(most)
                .map(|lack| lack.message(home))
                .collect(),
            missing.len().saturating_sub(most),
        )
    }

    /// Returns the grants that a Replication with these `sources` lacks, each once. A missing grant
    /// to read a source hides the grant that its copies need: ask again once it is given. The
    /// result means nothing until the grants and the rule's own namespace are known.
    pub fn missing_grants<'a>(
        &self,
        rule: &'a Rule,
        sources: &[SourceRef],
    ) -> BTreeSet<MissingGrant<'a>> {
        all_missing(rule, sources, &self.find_lacks(rule, sources))
    }

    /// Returns the copies that a rule may not have, in one namespace or in all, by namespace, kind
    /// and name. Each has the missing grant.
    pub(crate) fn ungranted_copies<'a>(
        &self,
        rule: &'a Rule,
        only: Option<&str>,
    ) -> BTreeMap<(&'a str, &'a str, String), MissingGrant<'a>> {
        ungranted(rule, &self.sources_had(rule), &self.missing(rule), only)
    }
}

/// Every place where a Replication wants a copy: the namespace, the index of the source, and the
/// target. The namespace need not exist.
fn copies_of<'a>(
    rule: &'a Rule,
    sources: &[SourceRef],
) -> impl Iterator<Item = (&'a str, usize, &'a Target)> {
    let count = sources.len();
    rule.targets.iter().flat_map(move |target| {
        let names = target.selection.exact_names().unwrap_or_default();
        names
            .into_iter()
            .flat_map(move |namespace| (0..count).map(move |index| (namespace, index, target)))
    })
}

/// Returns the missing grants of a rule, each once.
fn all_missing<'a>(
    rule: &'a Rule,
    sources: &[SourceRef],
    known: &MissingGrants,
) -> BTreeSet<MissingGrant<'a>> {
    let reads = rule
        .sources
        .iter()
        .zip(&known.sources)
        .filter(|(_, missing)| **missing);
    let selects = rule
        .selectors
        .iter()
        .zip(&known.selectors)
        .filter(|(_, missing)| **missing);
    let mut missing: BTreeSet<MissingGrant<'_>> = reads
        .map(|(source, _)| MissingGrant::of_source(source))
        .collect();
    missing.extend(selects.map(|(selector, _)| MissingGrant::of_selector(selector)));
    missing.extend(ungranted(rule, sources, known, None).into_values());
    missing
}

/// Returns the copies without a grant, in one namespace or in all.
fn ungranted<'a>(
    rule: &'a Rule,
    sources: &[SourceRef],
    known: &MissingGrants,
    only: Option<&str>,
) -> BTreeMap<(&'a str, &'a str, String), MissingGrant<'a>> {
    let mut copies = BTreeMap::new();
    for ((namespace, index, target), missing) in copies_of(rule, sources).zip(&known.copies) {
        let Some(access) = missing.filter(|_| only.is_none_or(|only| namespace == only)) else {
            continue;
        };
        let name = copy_name(target, &sources[index], namespace);
        let Some(gvk) = rule.kinds.iter().find(|gvk| **gvk == sources[index].gvk) else {
            continue;
        };
        let lack = match (access, rule.sources.get(index)) {
            (Access::Read, Some(source)) => MissingGrant::of_source(source),
            _ => MissingGrant {
                access,
                namespace,
                gvk,
                name: Some(name.clone()),
            },
        };
        copies.insert((namespace, &*gvk.kind, name), lack);
    }
    copies
}

/// Returns the name of the copy. The names of a tenant's copies don't depend on labels of their
/// namespaces.
pub(crate) fn copy_name(target: &Target, source: &SourceRef, namespace: &str) -> String {
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
    /// The missing grant to read a source.
    pub(crate) fn of_source(source: &'a SourceRef) -> Self {
        let SourceRef { gvk, namespace, .. } = source;
        Self {
            access: Access::Read,
            namespace,
            gvk,
            name: Some(source.name.to_string()),
        }
    }

    /// The missing grant to select sources.
    pub(crate) fn of_selector(selector: &'a SourceSelector) -> Self {
        let SourceSelector { gvk, namespace, .. } = selector;
        Self {
            access: Access::Read,
            namespace,
            gvk,
            name: None,
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
            assert!(
                warning.len() <= 256 && warning.ends_with(advice),
                "{warning}"
            );
        }
    }
}
