//! The rights that Mimeo's programs need for the kinds of a rule, and how to give them those that they lack.
//!
//! Whether they have them is left to the caller to ask.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    authority::Right,
    kind::{GroupVersionKind, Resource},
    names,
    rule::SourceRef,
};

/// Which of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// Reads sources and writes the copies of new namespaces.
    Webhook,
    /// Does that in all namespaces, watches copies and deletes them.
    Reconciler,
}

/// A right that one of Mimeo's own programs needs; what a rule's author needs is [`authority`](crate::authority)'s.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramRight {
    /// Whose.
    pub program: Program,
    /// To do what.
    pub verb: &'static str,
    /// With what.
    pub resource: Resource,
    /// Where; everywhere if absent.
    pub namespace: Option<Box<str>>,
}

impl ProgramRight {
    /// The right itself, as the API server is asked for it.
    pub fn right(&self) -> Right {
        let Self { verb, resource: Resource { gvk, plural, .. }, namespace, .. } = self;
        Right { verb, group: gvk.group.clone(), resource: plural.clone(), namespace: namespace.clone(), name: None }
    }
}

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 2] = ["create", "patch"];
const DELETE: &str = "delete";

/// What is needed for copies of these sources; a kind that `look_up` doesn't find needs nothing yet.
pub fn needed(
    sources: &[SourceRef],
    look_up: impl Fn(&GroupVersionKind) -> Option<Resource>,
) -> BTreeSet<ProgramRight> {
    let mut needs = BTreeSet::new();
    for source in sources {
        let Some(resource) = look_up(&source.gvk) else { continue };
        let home = Some(&*source.namespace);
        // The webhook watches no copies.
        let webhook = READ.map(|verb| (Program::Webhook, verb, home)).into_iter();
        let webhook = webhook.chain(WRITE.map(|verb| (Program::Webhook, verb, None)));
        let reconciler = READ.into_iter().chain(WRITE).chain([DELETE]).map(|verb| (Program::Reconciler, verb, None));
        needs.extend(webhook.chain(reconciler).map(|(program, verb, namespace)| ProgramRight {
            program,
            verb,
            resource: resource.clone(),
            namespace: namespace.map(Into::into),
        }));
    }
    needs
}

/// How to grant what is missing, each a sentence for people.
pub fn explain(missing: &BTreeSet<ProgramRight>) -> Vec<String> {
    let mut verbs: BTreeMap<(&Resource, &str), BTreeSet<&str>> = BTreeMap::new();
    for need in missing {
        // Both programs read and write the same.
        let label = if need.verb == DELETE { names::AGGREGATE_TO_RECONCILER } else { names::AGGREGATE };
        verbs.entry((&need.resource, label)).or_default().insert(need.verb);
    }
    let sentence = |((resource, label), verbs): ((&Resource, &str), BTreeSet<&str>)| {
        let Resource { gvk, plural, .. } = resource;
        let verbs = verbs.into_iter().collect::<Vec<_>>().join(", ");
        let (kind, group) = (&gvk.kind, if gvk.group.is_empty() { "\"\"" } else { &*gvk.group });
        format!(
            "Mimeo lacks rights on {kind}: a ClusterRole labelled {label}=true must have the rule {{apiGroups: [{group}], \
             resources: [{plural}], verbs: [{verbs}]}}"
        )
    };
    verbs.into_iter().map(sentence).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    fn policies() -> Resource {
        let gvk = GroupVersionKind::parse("networking.k8s.io/v1", "NetworkPolicy").unwrap();
        Resource { gvk, plural: "networkpolicies".into(), namespaced: true }
    }

    fn needs() -> BTreeSet<ProgramRight> {
        let source = |name: &str| SourceRef::named(policies().gvk, "home", name);
        needed(&[source("a"), source("b")], |_| Some(policies()))
    }

    #[test]
    fn each_program_needs_what_it_does() {
        let told = |need: &ProgramRight| {
            format!("{:?} {} {}", need.program, need.verb, need.namespace.as_deref().unwrap_or("*"))
        };
        let told: Vec<String> = needs().iter().map(told).collect();
        assert_eq!(
            told,
            [
                "Webhook create *",
                "Webhook get home",
                "Webhook list home",
                "Webhook patch *",
                "Webhook watch home",
                "Reconciler create *",
                "Reconciler delete *",
                "Reconciler get *",
                "Reconciler list *",
                "Reconciler patch *",
                "Reconciler watch *",
            ]
        );
        assert!(needed(&[], |_| None).is_empty());
    }

    #[test]
    fn what_is_missing_is_named_with_the_rule_that_gives_it() {
        assert!(explain(&BTreeSet::new()).is_empty());
        assert_eq!(
            explain(&needs()),
            [
                "Mimeo lacks rights on NetworkPolicy: a ClusterRole labelled mimeo.dev/aggregate-to-mimeo=true must have the \
                 rule {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [create, get, list, patch, watch]}",
                "Mimeo lacks rights on NetworkPolicy: a ClusterRole labelled mimeo.dev/aggregate-to-mimeo-reconciler=true \
                 must have the rule {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [delete]}",
            ]
        );
        // The API server cuts a warning off at 256 characters.
        assert!(explain(&needs()).iter().all(|sentence| sentence.len() <= 256));
    }
}
