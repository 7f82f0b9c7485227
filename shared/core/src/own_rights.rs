//! The rights that Mimeo's programs need for the kinds of a rule, and how to give them those that they lack.
//!
//! Whether they have them is left to the caller to ask.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    authority::Right,
    kind::{GroupVersionKind, Resource},
    names,
    reach::Reach,
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

/// What is needed for copies, in these places or everywhere if `None`, of sources of these kinds in these namespaces, or in none if
/// they are inline; a kind that `look_up` doesn't find needs nothing yet.
pub fn needed<'a>(
    homes: impl Iterator<Item = (&'a GroupVersionKind, Option<&'a str>)>,
    places: Option<&BTreeSet<Box<str>>>,
    look_up: impl Fn(&GroupVersionKind) -> Option<Resource>,
) -> BTreeSet<ProgramRight> {
    let targets: Vec<Option<&str>> = match places {
        None => vec![None],
        Some(places) => places.iter().map(|name| Some(&**name)).collect(),
    };
    let mut needs = BTreeSet::new();
    for (gvk, home) in homes {
        let Some(resource) = look_up(gvk) else { continue };
        let mut need = |program, verbs: &[&'static str], namespace: Option<&str>| {
            needs.extend(verbs.iter().map(|verb| ProgramRight {
                program,
                verb,
                resource: resource.clone(),
                namespace: namespace.map(Into::into),
            }));
        };
        if home.is_some() {
            need(Program::Webhook, &READ, home);
        }
        // Without places it reads everywhere, for its copies.
        if home.is_some() && places.is_some() {
            need(Program::Reconciler, &READ, home);
        }
        for target in &targets {
            // The webhook watches no copies, and deletes none.
            need(Program::Webhook, &WRITE, *target);
            need(Program::Reconciler, &WRITE, *target);
            need(Program::Reconciler, &READ, *target);
            need(Program::Reconciler, &[DELETE], *target);
        }
    }
    needs
}

/// Most namespaces of which it is told one by one that a Role is missing in them.
const PLACES: usize = 3;

/// How to grant what is missing, each a sentence for people.
pub fn explain(missing: &BTreeSet<ProgramRight>, reach: &Reach) -> Vec<String> {
    let by_roles = reach.sources.is_some() || reach.targets.is_some();
    let mut grants: BTreeMap<(&Resource, Grant<'_>), BTreeSet<&str>> = BTreeMap::new();
    for ProgramRight { verb, resource, namespace, .. } in missing {
        let grant = match namespace.as_deref().filter(|_| by_roles) {
            Some(namespace) => Grant::Role(namespace),
            // Both programs read and write the same.
            None if *verb == DELETE => Grant::ClusterRole(names::AGGREGATE_TO_RECONCILER),
            None => Grant::ClusterRole(names::AGGREGATE),
        };
        grants.entry((resource, grant)).or_default().insert(verb);
    }
    let more = grants.len().saturating_sub(PLACES);
    let sentence = |((resource, grant), verbs): ((&Resource, Grant<'_>), BTreeSet<&str>)| {
        let Resource { gvk, plural, .. } = resource;
        let verbs = verbs.into_iter().collect::<Vec<_>>().join(", ");
        let (kind, group) = (&gvk.kind, if gvk.group.is_empty() { "\"\"" } else { &*gvk.group });
        let rule = format!("{{apiGroups: [{group}], resources: [{plural}], verbs: [{verbs}]}}");
        match grant {
            Grant::ClusterRole(label) => {
                format!("Mimeo lacks rights on {kind}: a ClusterRole labelled {label}=true must have the rule {rule}")
            }
            Grant::Role(namespace) => {
                format!("Mimeo lacks rights on {kind} in namespace {namespace}: a Role there must have the rule {rule}")
            }
        }
    };
    if !by_roles {
        return grants.into_iter().map(sentence).collect();
    }
    let mut told: Vec<String> = grants.into_iter().take(PLACES).map(sentence).collect();
    if more > 0 {
        told.push(format!("Mimeo: so it is in {more} more namespaces"));
    }
    told
}

/// What would grant a right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Grant<'a> {
    /// One with this label.
    ClusterRole(&'a str),
    /// One in this namespace.
    Role(&'a str),
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
        needs_in(None)
    }

    fn needs_in(places: Option<&BTreeSet<Box<str>>>) -> BTreeSet<ProgramRight> {
        needed([(&policies().gvk, Some("home")); 2].into_iter(), places, |_| Some(policies()))
    }

    fn told(needs: &BTreeSet<ProgramRight>) -> Vec<String> {
        let told = |need: &ProgramRight| {
            format!("{:?} {} {}", need.program, need.verb, need.namespace.as_deref().unwrap_or("*"))
        };
        needs.iter().map(told).collect()
    }

    #[test]
    fn each_program_needs_what_it_does() {
        assert_eq!(
            told(&needs()),
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
        assert!(needed([(&policies().gvk, Some("home"))].into_iter(), None, |_| None).is_empty());
        let inline = needed([(&policies().gvk, None)].into_iter(), None, |_| Some(policies()));
        assert_eq!(told(&inline)[..2], ["Webhook create *", "Webhook patch *"], "there is nothing to read");
    }

    #[test]
    fn where_roles_are_given_they_are_asked_for_in_each_namespace() {
        let reach = Reach { targets: Some(std::sync::Arc::new(["t1".into(), "t2".into()].into())), ..Reach::default() };
        let needs = needs_in(reach.targets.as_deref());
        assert!(told(&needs).iter().all(|need| !need.ends_with('*')), "{needs:?}");
        let sentences = explain(&needs, &reach);
        assert_eq!(
            sentences[1],
            "Mimeo lacks rights on NetworkPolicy in namespace t1: a Role there must have the rule {apiGroups: \
             [networking.k8s.io], resources: [networkpolicies], verbs: [create, delete, get, list, patch, watch]}"
        );
        let many = (0..9).map(|n| format!("t{n}").into()).collect();
        let reach = Reach { targets: Some(std::sync::Arc::new(many)), ..Reach::default() };
        let sentences = explain(&needs_in(reach.targets.as_deref()), &reach);
        assert_eq!(sentences.last().map(String::as_str), Some("Mimeo: so it is in 7 more namespaces"));
        assert_eq!(sentences.len(), PLACES + 1);
    }

    #[test]
    fn what_is_missing_is_named_with_the_rule_that_gives_it() {
        assert!(explain(&BTreeSet::new(), &Reach::default()).is_empty());
        assert_eq!(
            explain(&needs(), &Reach::default()),
            [
                "Mimeo lacks rights on NetworkPolicy: a ClusterRole labelled mimeo.dev/aggregate-to-mimeo=true must have the \
                 rule {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [create, get, list, patch, watch]}",
                "Mimeo lacks rights on NetworkPolicy: a ClusterRole labelled mimeo.dev/aggregate-to-mimeo-reconciler=true \
                 must have the rule {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [delete]}",
            ]
        );
        // The API server cuts a warning off at 256 characters.
        assert!(explain(&needs(), &Reach::default()).iter().all(|sentence| sentence.len() <= 256));
    }
}
