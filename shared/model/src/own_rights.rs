//! The permissions that Mimeo's own programs need for a rule's kinds, and instructions to grant the
//! missing ones.
//!
//! The caller asks the API server which of them the programs have.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    id::RuleKind,
    kind::{GroupVersionKind, Resource, Served},
    names,
    reach::Reach,
    right::{self, Right},
    source::SourceQuery,
};

/// One of Mimeo's two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// Reads sources and writes the copies of new namespaces.
    Webhook,
    /// Does the same in all namespaces, watches copies and deletes them.
    Reconciler,
}

/// A permission that one of Mimeo's programs needs. The permissions of a rule's author are in
/// [`authority`](crate::authority).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramRight {
    /// The program that needs it.
    pub program: Program,
    /// The kind of the copies that it is needed for.
    pub kind: Box<str>,
    /// The permission itself.
    pub right: Right,
}

/// The role that a RoleBinding names.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RoleRef {
    kind: Box<str>,
    name: Box<str>,
}

impl RoleRef {
    /// The role of an object, if it has one. `None` if the role has a variable, because each
    /// namespace fills in another value.
    pub fn of(object: &Value) -> Option<Self> {
        let role = Self::deserialize(object.get("roleRef")?).ok()?;
        (!role.kind.contains("$(") && !role.name.contains("$(")).then_some(role)
    }
}

impl ProgramRight {
    /// True if the permission is about the permissions that a copy grants, and not about the copy
    /// itself.
    pub fn hands_out(&self) -> bool {
        matches!(self.right.verb, "bind" | "escalate")
    }
}

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 2] = ["create", "patch"];
const DELETE: &str = "delete";

/// The permissions that a rule of this kind needs for copies of these sources in these places.
/// `None` means everywhere. A source has a role if its copies are RoleBindings and all bind this
/// role. A kind that is not served needs no permission yet.
pub fn needed_by<'a>(
    kind: RuleKind,
    sources: impl Iterator<Item = (SourceQuery<'a>, Option<RoleRef>)>,
    places: Option<&BTreeSet<Box<str>>>,
    served: &Served,
) -> BTreeSet<ProgramRight> {
    let targets: Vec<Option<&str>> = match places {
        None => vec![None],
        Some(places) => places.iter().map(|name| Some(&**name)).collect(),
    };
    let mut needs = BTreeSet::new();
    for (source, role) in sources {
        let (gvk, home) = (source.gvk(), source.home());
        let Some(Resource { plural, .. }) = served.get(gvk) else {
            continue;
        };
        let right = |verb| Right::new(verb, gvk.group.clone(), plural.clone());
        let mut need = |program, rights: &[Right], namespace: Option<&str>| {
            needs.extend(rights.iter().map(|right| ProgramRight {
                program,
                kind: gvk.kind.clone(),
                right: Right {
                    namespace: namespace.map(Into::into),
                    ..right.clone()
                },
            }));
        };
        let (read, write) = (READ.map(right), WRITE.map(right));
        if home.is_some() {
            need(Program::Webhook, &read, home);
            // Without `places`, the reconciler reads all namespaces for its copies.
            if places.is_some() {
                need(Program::Reconciler, &read, home);
            }
        }
        // Neither program may grant permissions that it does not have.
        let grant = to_grant_by(gvk, role.as_ref());
        let write = [&write[..], &grant[..]].concat();
        for target in &targets {
            // The webhook watches no copies and deletes none.
            need(Program::Webhook, &write, *target);
            need(Program::Reconciler, &write, *target);
            need(Program::Reconciler, &read, *target);
            need(Program::Reconciler, &[right(DELETE)], *target);
        }
    }
    if kind == RuleKind::Replication {
        // Only the reconciler writes copies for a Replication.
        needs.retain(|need| need.program == Program::Reconciler);
    }
    needs
}

/// True if objects of the kind grant permissions through a role that each object names.
pub fn binds(gvk: &GroupVersionKind) -> bool {
    right::to_grant(gvk)
        .iter()
        .any(|right| right.verb == "bind")
}

/// The permissions needed to write an object of this kind that grants permissions itself. If the
/// role is known, the permission to bind this role is enough.
fn to_grant_by(gvk: &GroupVersionKind, role: Option<&RoleRef>) -> Vec<Right> {
    let mut rights = right::to_grant(gvk);
    if let Some(RoleRef { kind, name }) = role {
        let kind = kind.to_lowercase();
        rights.retain(|right| right.resource.strip_suffix('s') == Some(&kind));
        rights
            .iter_mut()
            .for_each(|right| right.name = Some(name.clone()));
    }
    rights
}

/// Instructions to grant the missing permissions, each a sentence for people. There may be many,
/// one for each namespace and kind.
pub fn explain(missing: &BTreeSet<ProgramRight>, reach: &Reach) -> Vec<String> {
    let by_roles = reach.sources.is_some() || reach.targets.is_some();
    let mut rules: BTreeMap<Lack<'_>, BTreeSet<&str>> = BTreeMap::new();
    for need in missing {
        let ProgramRight {
            kind,
            right:
                Right {
                    verb,
                    group,
                    resource,
                    namespace,
                    name,
                },
            ..
        } = need;
        let grant = match namespace.as_deref().filter(|_| by_roles) {
            Some(namespace) => Grant::Role(namespace),
            // Both programs need the same permissions to read and write.
            None if *verb == DELETE => Grant::ClusterRole(names::AGGREGATE_TO_RECONCILER),
            None => Grant::ClusterRole(names::AGGREGATE),
        };
        let lack = Lack {
            grant,
            kind,
            hands_out: need.hands_out(),
            group,
            resource,
            name: name.as_deref(),
        };
        rules.entry(lack).or_default().insert(verb);
    }
    let sentence = |(lack, verbs): (&Lack<'_>, &BTreeSet<&str>)| lack.explain(verbs);
    rules.iter().map(sentence).collect()
}

/// A missing RBAC rule, without its verbs.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Lack<'a> {
    grant: Grant<'a>,
    kind: &'a str,
    hands_out: bool,
    group: &'a str,
    resource: &'a str,
    name: Option<&'a str>,
}

impl Lack<'_> {
    fn explain(&self, verbs: &BTreeSet<&str>) -> String {
        let Self {
            grant,
            kind,
            hands_out,
            group,
            resource,
            name,
        } = self;
        let verbs = verbs.iter().copied().collect::<Vec<_>>().join(", ");
        let group = if group.is_empty() { "\"\"" } else { group };
        let only = name
            .map(|name| format!(", resourceNames: [{name:?}]"))
            .unwrap_or_default();
        let rule =
            format!("{{apiGroups: [{group}], resources: [{resource}], verbs: [{verbs}]{only}}}");
        let (place, role) = match grant {
            Grant::ClusterRole(label) => (
                String::new(),
                format!("a ClusterRole labelled {label}=true"),
            ),
            Grant::Role(namespace) => (
                format!(" in namespace {namespace}"),
                "a Role there".to_owned(),
            ),
        };
        if *hands_out {
            // Where Mimeo has all permissions that the copies give, it needs no more.
            return format!(
                "Mimeo writes no {kind}{place} that exceeds its own permissions unless {role} has \
                 the rule {rule}"
            );
        }
        format!("missing permissions on {kind}{place}: {role} must have the rule {rule}")
    }
}

/// The object that would grant a permission.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Grant<'a> {
    /// A `ClusterRole` with this label.
    ClusterRole(&'a str),
    /// A Role in this namespace.
    Role(&'a str),
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::json;

    use super::*;
    use crate::source::SourceRef;

    fn policies() -> Resource {
        let gvk = GroupVersionKind::parse("networking.k8s.io/v1", "NetworkPolicy").unwrap();
        Resource {
            gvk,
            plural: "networkpolicies".into(),
            namespaced: true,
        }
    }

    fn served(resource: Resource) -> Served {
        [(resource.gvk.clone(), resource)].into()
    }

    /// A `NetworkPolicy` in the namespace `home`.
    fn source() -> SourceRef {
        SourceRef::named(policies().gvk, "home", "x")
    }

    fn needs() -> BTreeSet<ProgramRight> {
        needs_in(None)
    }

    fn needs_in(places: Option<&BTreeSet<Box<str>>>) -> BTreeSet<ProgramRight> {
        needed_by(
            RuleKind::ClusterReplication,
            std::iter::repeat_n((SourceQuery::One(&source()), None), 2),
            places,
            &served(policies()),
        )
    }

    fn told(needs: &BTreeSet<ProgramRight>) -> Vec<String> {
        let told = |need: &ProgramRight| {
            let Right {
                verb, namespace, ..
            } = &need.right;
            format!(
                "{:?} {verb} {}",
                need.program,
                namespace.as_deref().unwrap_or("*")
            )
        };
        needs.iter().map(told).collect()
    }

    #[test]
    fn for_a_replication_the_webhook_writes_nothing() {
        let by = |kind| {
            let source = source();
            let sources = [(SourceQuery::One(&source), None)].into_iter();
            needed_by(kind, sources, None, &served(policies()))
        };
        assert_eq!(by(RuleKind::ClusterReplication), needs());
        let mut own = needs();
        own.retain(|need| need.program == Program::Reconciler);
        assert!(own.len() < needs().len());
        assert_eq!(by(RuleKind::Replication), own);
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
        assert!(
            needed_by(
                RuleKind::ClusterReplication,
                [(SourceQuery::One(&source()), None)].into_iter(),
                None,
                &Served::new()
            )
            .is_empty()
        );
        let rule = "ClusterReplication/r".parse().unwrap();
        let inline = SourceRef::inline(policies().gvk, &rule, "x");
        let inline = needed_by(
            RuleKind::ClusterReplication,
            [(SourceQuery::One(&inline), None)].into_iter(),
            None,
            &served(policies()),
        );
        assert_eq!(
            told(&inline)[..2],
            ["Webhook create *", "Webhook patch *"],
            "there is nothing to read"
        );
    }

    #[test]
    fn where_roles_are_given_they_are_asked_for_in_each_namespace() {
        let reach = Reach {
            targets: Some(std::sync::Arc::new(["t1".into(), "t2".into()].into())),
            ..Reach::default()
        };
        let needs = needs_in(reach.targets.as_deref());
        assert!(
            told(&needs).iter().all(|need| !need.ends_with('*')),
            "{needs:?}"
        );
        let sentences = explain(&needs, &reach);
        assert_eq!(
            sentences[1],
            "missing permissions on NetworkPolicy in namespace t1: a Role there must have the rule \
             {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [create, \
             delete, get, list, patch, watch]}"
        );
    }

    /// The instructions about permissions that copies grant.
    fn handed_out(kind: &str, object: Option<&Value>, reach: &Reach) -> Vec<String> {
        let gvk = GroupVersionKind::parse("rbac.authorization.k8s.io/v1", kind).unwrap();
        let plural = format!("{}s", kind.to_lowercase()).into();
        let resource = Resource {
            gvk: gvk.clone(),
            plural,
            namespaced: true,
        };
        let source = SourceRef::named(gvk, "home", "x");
        let role = object.and_then(RoleRef::of);
        let sources = [(SourceQuery::One(&source), role)].into_iter();
        let needed = needed_by(
            RuleKind::ClusterReplication,
            sources,
            reach.targets.as_deref(),
            &served(resource.clone()),
        );
        let sentences = explain(&needed, reach);
        // The API server may cut a warning off after 256 characters.
        assert!(
            sentences.iter().all(|sentence| sentence.len() <= 256),
            "{sentences:?}"
        );
        let about = |sentence: String| {
            let rule = sentence.strip_prefix("Mimeo writes no ")?;
            Some(rule.replace("apiGroups: [rbac.authorization.k8s.io], ", ""))
        };
        sentences.into_iter().filter_map(about).collect()
    }

    #[test]
    fn what_copies_give_must_be_mimeos_to_give() {
        let everywhere = Reach::default();
        let of = |kind: &str, rule: &str| {
            format!(
                "{kind} that exceeds its own permissions unless a ClusterRole labelled mimeo.dev/aggregate-to-mimeo=true has the rule {rule}"
            )
        };
        assert_eq!(
            handed_out("Role", None, &everywhere),
            [of("Role", "{resources: [roles], verbs: [escalate]}")]
        );
        let any = [
            of("RoleBinding", "{resources: [clusterroles], verbs: [bind]}"),
            of("RoleBinding", "{resources: [roles], verbs: [bind]}"),
        ];
        assert_eq!(handed_out("RoleBinding", None, &everywhere), any);
        let bound = |kind: &str, name: &str| json!({"roleRef": {"kind": kind, "name": name}});
        assert_eq!(
            handed_out(
                "RoleBinding",
                Some(&bound("ClusterRole", "view")),
                &everywhere
            ),
            [of(
                "RoleBinding",
                "{resources: [clusterroles], verbs: [bind], resourceNames: [\"view\"]}"
            )]
        );
        assert_eq!(
            handed_out(
                "RoleBinding",
                Some(&bound("Role", "$(namespace.name)")),
                &everywhere
            ),
            any
        );
        let reach = Reach {
            targets: Some(std::sync::Arc::new(["t1".into()].into())),
            ..Reach::default()
        };
        assert_eq!(
            handed_out("RoleBinding", Some(&bound("Role", "deployer")), &reach),
            [
                "RoleBinding in namespace t1 that exceeds its own permissions unless a Role there \
                 has the rule {resources: [roles], verbs: [bind], resourceNames: [\"deployer\"]}"
            ]
        );
        assert_eq!(handed_out("ConfigMap", None, &everywhere), [""; 0]);
    }

    #[test]
    fn what_is_missing_is_named_with_the_rule_that_gives_it() {
        assert!(explain(&BTreeSet::new(), &Reach::default()).is_empty());
        assert_eq!(
            explain(&needs(), &Reach::default()),
            [
                "missing permissions on NetworkPolicy: a ClusterRole labelled \
                 mimeo.dev/aggregate-to-mimeo=true must have the rule {apiGroups: \
                 [networking.k8s.io], resources: [networkpolicies], verbs: [create, get, list, \
                 patch, watch]}",
                "missing permissions on NetworkPolicy: a ClusterRole labelled \
                 mimeo.dev/aggregate-to-mimeo-reconciler=true must have the rule {apiGroups: \
                 [networking.k8s.io], resources: [networkpolicies], verbs: [delete]}",
            ]
        );
        // The API server may cut a warning off after 256 characters.
        assert!(
            explain(&needs(), &Reach::default())
                .iter()
                .all(|sentence| sentence.len() <= 256)
        );
    }
}
