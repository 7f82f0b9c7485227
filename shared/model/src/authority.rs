//! The permissions that the author of a rule, a grant or a policy must have. Mimeo acts in the
//! author's place, so the author needs the permissions for these actions.
//!
//! The webhook asks the API server by `SubjectAccessReview` when the object is created or its spec
//! changes. It does not ask again later. Kubernetes checks Roles against privilege escalation in
//! the same way. The needed permissions do not depend on the objects that exist, so a refusal
//! reveals none of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
};

use mimeo_api::{Access, names::GROUP};
use serde_json::Value;

use crate::{
    choices::PodGate,
    grant::Grant,
    kind::{GroupVersionKind, Served},
    plural,
    policy::Policy,
    right::{GATE, Right, to_grant},
    rule::Rule,
};

/// Verbs for the sources that a read grant names: Replications read these sources.
const OF_SOURCES: &[&str] = &["get"];
/// Verbs for copies. Mimeo may use all of them over time, even if the rule now needs fewer.
const OF_COPIES: &[&str] = &["create", "update", "delete"];
/// Verbs for sources that a selector finds: their names are not known in advance. A read grant
/// without names allows selectors, too. `list` already returns the contents of objects. Both verbs
/// are needed all the same, because an authorizer may allow `list` and still deny `get`.
const SELECT: [&str; 2] = ["get", "list"];
/// Verbs for the objects that a policy changes as other users create and update them. `create` is
/// needed too: a policy can stop the creation of all pods, and `update` alone must not be enough
/// for this.
const OF_POLICIES: &[&str] = &["create", "update"];

/// Most permissions in single namespaces that the webhook checks for one rule. Beyond this number
/// the author must have the permissions in all namespaces.
const MOST: usize = 256;

/// A needed permission, and the permissions that can replace it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// This permission is enough.
    pub right: Right,
    /// All of these together are enough, too. Empty if nothing can replace `right`.
    pub instead: Vec<Right>,
}

impl Need {
    fn of(right: Right) -> Self {
        Self {
            right,
            instead: Vec::new(),
        }
    }
}

/// The permissions that the author of a rule needs. For a Replication these are only the permissions
/// in its own namespace, because other namespaces consent with grants.
///
/// - For each named source: to `get` it. An inline source needs no such permission.
/// - For each selector: to `get` and `list` all objects of its kind in its namespace.
/// - For the copies: to create, update and delete objects of any name wherever the rule targets.
/// - For copies of Roles and `RoleBindings`: the permissions that the API server also demands.
/// - For `podGate: Required`: the verb `gate` on the rule.
///
/// If a kind is not served, its resource name is unknown. The author then needs the
/// permission for all resources of the kind's API group.
pub fn of_rule(rule: &Rule, served: &Served) -> Vec<Need> {
    let home = rule.id.namespace.as_deref();
    let own = |namespace: &str| home.is_none_or(|home| home == namespace);
    let mut needs = Vec::new();
    for query in rule.queries().filter(|query| query.home().is_some_and(own)) {
        let verbs = match query.name() {
            Some(_) => OF_SOURCES,
            None => &SELECT,
        };
        needs.extend(verbs.iter().map(|verb| {
            Need::of(Right {
                namespace: query.home().map(Into::into),
                name: query.name().map(Into::into),
                ..right(verb, query.gvk(), served)
            })
        }));
    }
    let mut targets = named_targets(rule).unwrap_or_default();
    if home.is_none_or(|home| targets.contains(home)) {
        let write = to_write(OF_COPIES, rule.kinds.iter(), home, served);
        if home.is_some() || targets.len() * write.len() > MOST {
            targets.clear();
        }
        needs.extend(write.into_iter().map(|right| {
            let there = |name: &&str| Right {
                namespace: Some((*name).into()),
                ..right.clone()
            };
            Need {
                instead: targets.iter().map(there).collect(),
                right,
            }
        }));
    }
    if rule.pod_gate == PodGate::Required {
        needs.push(Need::of(Right {
            name: Some(rule.id.name.clone()),
            ..Right::new(GATE, GROUP, rule.id.kind.plural())
        }));
    }
    // Several selectors of one kind need the same permissions.
    let mut known = BTreeSet::new();
    needs.retain(|need| known.insert(need.right.clone()));
    needs
}

/// The permissions that the author of a grant in the namespace `home` needs there: all that the
/// grant gives. An unknown kind counts as in [`of_rule`].
pub fn of_grant(grant: &Grant, home: &str, served: &Served) -> Vec<Need> {
    let mut needs = BTreeSet::new();
    for to in &grant.objects {
        let verbs: &[&'static str] = match grant.access {
            Access::Read if to.is_any() => &SELECT,
            Access::Read => OF_SOURCES,
            Access::Write => OF_COPIES,
        };
        let all = to_write(verbs, std::iter::once(&to.gvk), Some(home), served);
        match to.exact_names().filter(|_| grant.access == Access::Read) {
            None => needs.extend(all),
            Some(names) => {
                needs.extend(all.iter().flat_map(|right| {
                    names.iter().map(move |name| Right {
                        name: Some((*name).into()),
                        ..right.clone()
                    })
                }));
            }
        }
    }
    needs.into_iter().map(Need::of).collect()
}

/// The permissions that the author of a policy needs: to create and update objects of its kinds in
/// all namespaces, because the policy changes objects that other users write there. An unknown kind
/// counts as in [`of_rule`].
pub fn of_policy(policy: &Policy, served: &Served) -> Vec<Need> {
    let write = to_write(OF_POLICIES, policy.kinds.iter(), None, served);
    write.into_iter().map(Need::of).collect()
}

/// True if the change from the stored rule `old` to `new` only sets `spec.suspend`. Such a change
/// needs no permission besides the one to update the rule: the user could also delete the rule.
pub fn only_suspends(old: &Value, new: &Value) -> bool {
    let rest = |rule: &Value| {
        let mut spec = rule["spec"].as_object()?.clone();
        spec.remove("suspend");
        Some(spec)
    };
    new["spec"]["suspend"] == true && rest(old) == rest(new)
}

/// Returns the needed permissions that a user lacks. `held` returns the answers so far. A permission
/// in single namespaces is not asked for if the user has it in all namespaces.
///
/// # Errors
/// The permissions whose answers are needed, too.
pub fn find(
    needs: &[Need],
    held: impl Fn(&Right) -> Option<bool>,
) -> Result<Vec<&Right>, Vec<&Right>> {
    let (mut open, mut missing) = (Vec::new(), Vec::new());
    for Need { right, instead } in needs {
        let asked = match held(right) {
            Some(false) if !instead.is_empty() => &instead[..],
            _ => slice::from_ref(right),
        };
        for right in asked {
            match held(right) {
                None => open.push(right),
                Some(true) => {}
                Some(false) => missing.push(right),
            }
        }
    }
    if open.is_empty() {
        Ok(missing)
    } else {
        Err(open)
    }
}

/// The message that names the permissions which a user lacks.
pub fn lacks(user: &str, missing: &[&Right]) -> String {
    let rights = plural::first_items(missing, ", ");
    format!("user {user:?} may not {rights}")
}

/// The namespaces that the rule targets, if each target names them exactly.
fn named_targets(rule: &Rule) -> Option<BTreeSet<&str>> {
    let names: Option<Vec<_>> = rule
        .targets
        .iter()
        .map(|target| target.selection.exact_names())
        .collect();
    Some(names?.into_iter().flatten().collect())
}

/// The permissions for these verbs and kinds in one namespace or in all, each once.
fn to_write<'a>(
    verbs: &[&'static str],
    kinds: impl Iterator<Item = &'a GroupVersionKind>,
    namespace: Option<&str>,
    served: &Served,
) -> BTreeSet<Right> {
    let kinds: BTreeMap<_, _> = kinds.map(|gvk| (gvk.group_kind(), gvk)).collect();
    let of_kind = |gvk: &GroupVersionKind| {
        let rights = verbs.iter().map(|verb| right(verb, gvk, served));
        let rights = rights.chain(to_grant(gvk)).map(|right| Right {
            namespace: namespace.map(Into::into),
            ..right
        });
        rights.collect::<Vec<_>>()
    };
    kinds.into_values().flat_map(of_kind).collect()
}

fn right(verb: &'static str, gvk: &GroupVersionKind, served: &Served) -> Right {
    let resource = served.get(gvk).map_or("*", |resource| &*resource.plural);
    Right::new(verb, gvk.group.clone(), resource)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kind::Resource;

    fn secret(name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": name})
    }

    fn of_kind(api_version: &str, kind: &str) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "namespace": "platform", "name": "one"})
    }

    /// These kinds as the API server serves them. It does not serve `Gadget`.
    fn served<'a>(kinds: impl IntoIterator<Item = &'a GroupVersionKind>) -> Served {
        let served = |gvk: &&GroupVersionKind| &*gvk.kind != "Gadget";
        let serve = |gvk: &GroupVersionKind| {
            let resource = Resource {
                gvk: gvk.clone(),
                plural: format!("{}s", gvk.kind.to_lowercase()).into(),
                namespaced: true,
            };
            (gvk.clone(), resource)
        };
        kinds.into_iter().filter(served).map(serve).collect()
    }

    fn needs(sources: &[Value], targets: &[Value]) -> Vec<Need> {
        let rule = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "registry"},
            "spec": {"sources": sources, "targets": targets},
        });
        let rule = Rule::parse(&serde_json::from_value(rule).unwrap()).unwrap();
        of_rule(&rule, &served(&rule.kinds))
    }

    /// One line for each need: first the permission, then its replacements.
    fn told(needs: &[Need]) -> Vec<String> {
        let tell = |need: &Need| {
            let rights: Vec<_> = std::iter::once(&need.right)
                .chain(&need.instead)
                .map(ToString::to_string)
                .collect();
            rights.join(" | ")
        };
        needs.iter().map(tell).collect()
    }

    /// The needs of a Replication in namespace `home`.
    fn needs_at_home(spec: &Value) -> Vec<Need> {
        let rule = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication", "metadata": {"namespace": "home", "name": "r"},
            "spec": spec,
        });
        let rule = Rule::parse_replication(&serde_json::from_value(rule).unwrap()).unwrap();
        of_rule(&rule, &served(&rule.kinds))
    }

    #[test]
    fn a_tenants_rule_takes_the_rights_that_its_own_namespace_gives() {
        let own = json!({"apiVersion": "v1", "kind": "Secret", "name": "own"});
        let pulls = json!({"sources": [secret("a")]});
        let writes = [
            "create secrets in namespace home",
            "delete secrets in namespace home",
            "update secrets in namespace home",
        ];
        assert_eq!(told(&needs_at_home(&pulls)), writes);
        let pushes = json!({"sources": [own], "targets": [{"namespaces": ["other"]}]});
        assert_eq!(
            told(&needs_at_home(&pushes)),
            ["get secrets/own in namespace home"]
        );
        let abroad = json!({"sources": [secret("a")], "targets": [{"namespaces": ["other"]}]});
        assert_eq!(
            told(&needs_at_home(&abroad)),
            [] as [&str; 0],
            "all of it is others' to grant"
        );
        let selects = |home: &str| json!({"apiVersion": "v1", "kind": "Secret", "namespace": home, "selector": {}});
        let pushes = json!({"sources": [selects("home"), selects("away")], "targets": [{"namespaces": ["other"]}]});
        let listed = [
            "get secrets in namespace home",
            "list secrets in namespace home",
        ];
        assert_eq!(told(&needs_at_home(&pushes)), listed);
        assert_eq!(
            told(&needs_at_home(&json!({"sources": [selects("away")]}))),
            writes
        );
    }

    #[test]
    fn whoever_grants_must_hold_what_they_grant() {
        let needs = |access: &str, to: Value| {
            let grant = json!({
                "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant",
                "metadata": {"namespace": "home", "name": "g"},
                "spec": {"access": access, "grantees": [{"namespaces": ["other"]}], "objects": [to]},
            });
            let grant = Grant::parse(&serde_json::from_value(grant).unwrap()).unwrap();
            let kinds = grant.objects.iter().map(|objects| &objects.gvk);
            told(&of_grant(&grant, "home", &served(kinds)))
        };
        let secrets =
            |names: &[&str]| json!({"apiVersion": "v1", "kind": "Secret", "names": names});
        let exact = [
            "get secrets/a in namespace home",
            "get secrets/b in namespace home",
        ];
        assert_eq!(needs("Read", secrets(&["a", "b"])), exact);
        assert_eq!(
            needs("Read", secrets(&["a", "b-*"])),
            ["get secrets in namespace home"]
        );
        let any = [
            "get secrets in namespace home",
            "list secrets in namespace home",
        ];
        assert_eq!(
            needs("Read", secrets(&[])),
            any,
            "selectors find what there is"
        );
        let gadgets = json!({"apiVersion": "example.com/v1", "kind": "Gadget"});
        assert_eq!(
            needs("Read", gadgets),
            [
                "get *.example.com in namespace home",
                "list *.example.com in namespace home"
            ]
        );
        let writes = [
            "create secrets in namespace home",
            "delete secrets in namespace home",
            "update secrets in namespace home",
        ];
        assert_eq!(needs("Write", secrets(&["a"])), writes);
    }

    #[test]
    fn to_suspend_a_rule_takes_no_permission_and_any_other_change_does() {
        let rule = |spec: &Value| json!({"metadata": {"name": "r"}, "spec": spec});
        let target = json!({"namespaces": ["one"]});
        let old =
            json!({"sources": [secret("a")], "targets": [target, everywhere()], "suspend": false});
        let with = |field: &str, value: Value| {
            let mut spec = old.clone();
            spec[field] = value;
            spec
        };
        let suspended = with("suspend", json!(true));
        assert!(only_suspends(&rule(&old), &rule(&suspended)));
        let mut without = old.clone();
        without.as_object_mut().unwrap().remove("suspend");
        assert!(only_suspends(&rule(&without), &rule(&suspended)));
        for new in [
            old.clone(),
            with("targets", json!([target])),
            with("podGate", json!("None")),
        ] {
            assert!(!only_suspends(&rule(&old), &rule(&new)), "{new}");
            assert!(!only_suspends(&rule(&suspended), &rule(&new)), "{new}");
        }
        let fewer = json!({"sources": [secret("a")], "targets": [target], "suspend": true});
        assert!(!only_suspends(&rule(&old), &rule(&fewer)));
        assert!(!only_suspends(&rule(&json!("odd")), &rule(&suspended)));
    }

    fn everywhere() -> Value {
        json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}})
    }

    #[test]
    fn sources_are_read_and_copies_are_written_wherever_they_are_wanted() {
        let got = told(&needs(&[secret("a"), secret("b")], &[everywhere()]));
        assert_eq!(
            got,
            [
                "get secrets/a in namespace platform",
                "get secrets/b in namespace platform",
                "create secrets in all namespaces",
                "delete secrets in all namespaces",
                "update secrets in all namespaces",
            ]
        );
    }

    #[test]
    fn a_rule_that_holds_pods_back_takes_the_verb_gate() {
        let gates = |pod_gate: &str| {
            let spec =
                json!({"sources": [secret("a")], "targets": [everywhere()], "podGate": pod_gate});
            let rule = json!({
                "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "registry"},
                "spec": spec,
            });
            let rule = Rule::parse(&serde_json::from_value(rule).unwrap()).unwrap();
            let needs = of_rule(&rule, &served(&rule.kinds));
            told(&needs)
                .into_iter()
                .filter(|need| need.starts_with("gate"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            gates("Required"),
            ["gate clusterreplications.mimeo.dev/registry"]
        );
        assert!(gates("BestEffort").is_empty() && gates("None").is_empty());
    }

    #[test]
    fn named_namespaces_take_rights_in_these_alone() {
        let named = json!({"namespaces": ["one", "two"]});
        let got = needs(&[secret("a")], std::slice::from_ref(&named));
        let want = "create secrets in all namespaces | create secrets in namespace one | create \
            secrets in namespace two";
        assert_eq!(told(&got)[1], want);
        // Any other target could select any namespace.
        for other in [
            everywhere(),
            json!({"namespaces": ["team-*"]}),
            json!({"namespacePattern": "one"}),
        ] {
            let got = needs(&[secret("a")], &[named.clone(), other]);
            assert!(
                got.iter().all(|need| need.instead.is_empty()),
                "{:?}",
                told(&got)
            );
        }
        let more = json!({"namespaces": ["two", "three"]});
        let got = needs(&[secret("a")], &[named, more]);
        assert!(
            got[1..].iter().all(|need| need.instead.len() == 3),
            "{:?}",
            told(&got)
        );
    }

    #[test]
    fn what_is_asked_is_bounded() {
        let names = |count| (0..count).map(|n| format!("team-{n}")).collect::<Vec<_>>();
        let target = |count| json!({"namespaces": names(count)});
        let instead = |targets: &[Value]| {
            needs(&[secret("a")], targets)
                .iter()
                .map(|need| need.instead.len())
                .sum::<usize>()
        };
        assert_eq!(instead(&[target(85)]), 255);
        assert_eq!(instead(&[target(86)]), 0);
    }

    #[test]
    fn what_gives_rights_takes_the_right_to_give_them() {
        let rights = |kind| {
            let got = needs(
                &[of_kind("rbac.authorization.k8s.io/v1", kind)],
                &[json!({"namespaces": ["team"]})],
            );
            let beyond = got
                .into_iter()
                .filter(|need| !matches!(need.right.verb, "get" | "create" | "update" | "delete"));
            told(&beyond.collect::<Vec<_>>())
        };
        let both = |right: &str| {
            format!(
                "{right}.rbac.authorization.k8s.io in all namespaces | {right}.rbac.authorization.k8s.io in namespace team"
            )
        };
        assert_eq!(rights("Role"), [both("escalate roles")]);
        assert_eq!(
            rights("RoleBinding"),
            [both("bind clusterroles"), both("bind roles")]
        );
        assert!(
            needs(&[of_kind("example.com/v1", "Role")], &[everywhere()]).len() == 4,
            "another group's"
        );
    }

    #[test]
    fn a_kind_that_is_not_served_takes_rights_to_all_of_its_group() {
        let got = needs(&[of_kind("example.com/v1", "Gadget")], &[everywhere()]);
        assert_eq!(
            told(&got)[..2],
            [
                "get *.example.com/one in namespace platform",
                "create *.example.com in all namespaces"
            ]
        );
    }

    #[test]
    fn what_is_not_held_everywhere_is_asked_for_where_it_is_needed() {
        let needs = needs(&[secret("a")], &[json!({"namespaces": ["one", "two"]})]);
        let find = |held: fn(&Right) -> Option<bool>| match find(&needs, held) {
            Err(open) => open.into_iter().map(|right| format!("{right}?")).collect(),
            Ok(missing) => missing
                .into_iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
        };
        let first: Vec<String> = needs
            .iter()
            .map(|need| format!("{}?", need.right))
            .collect();
        assert_eq!(find(|_| None), first);
        assert_eq!(find(|_| Some(true)), [""; 0]);
        assert_eq!(
            find(|right| Some(right.verb == "get" || right.namespace.is_some())),
            [""; 0]
        );
        let deletes = |right: &Right| {
            (right.verb != "delete" || right.namespace.is_some()).then_some(right.verb != "create")
        };
        assert_eq!(
            find(deletes),
            ["delete secrets in all namespaces?"],
            "what is missing for certain is told when all is known",
        );
        let create = [
            "create secrets in namespace one",
            "create secrets in namespace two",
        ];
        assert_eq!(find(|right| Some(right.verb != "create")), create);
        assert_eq!(
            find(|right| Some(right.verb != "get")),
            ["get secrets/a in namespace platform"]
        );
        assert_eq!(
            lacks("ann", &[&needs[0].right]),
            r#"user "ann" may not get secrets/a in namespace platform"#
        );
        assert!(lacks("ann", &[&needs[0].right; 7]).ends_with(" and 2 more"));
    }

    #[test]
    fn a_policy_takes_the_right_to_change_what_it_changes() {
        let policy = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "a"},
            "spec": {
                "match": {
                    "kinds": [{"apiVersion": "v1", "kind": "Secret"}, {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}],
                    "objectSelector": {"matchLabels": {"a": "b"}},
                },
                "transform": {"labels": {"set": {"c": "d"}}},
            },
        });
        let policy = Policy::parse(&serde_json::from_value(policy).unwrap()).unwrap();
        assert_eq!(
            told(&of_policy(&policy, &served(&policy.kinds))),
            [
                "create secrets in all namespaces",
                "create roles.rbac.authorization.k8s.io in all namespaces",
                "escalate roles.rbac.authorization.k8s.io in all namespaces",
                "update secrets in all namespaces",
                "update roles.rbac.authorization.k8s.io in all namespaces",
            ]
        );
    }
}
