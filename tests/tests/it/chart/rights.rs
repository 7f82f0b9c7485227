//! The permissions of the programs by the chart's roles, and by no other roles.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use mimeo_tests::NAMESPACE;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{find, objects, rendered_set};

/// A rule of a role.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RbacRule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
    verbs: Vec<String>,
}

/// Returns the rules of a role. If the cluster fills the role in by aggregation, these are the
/// rules of the selected roles.
fn rules(objects: &[Value], role: &Value) -> Result<Vec<RbacRule>> {
    let Some(selectors) = role["aggregationRule"]["clusterRoleSelectors"].as_array() else {
        return Ok(serde_json::from_value(role["rules"].clone())?);
    };
    let mut all = Vec::new();
    for selector in selectors {
        let labels = selector["matchLabels"].as_object().context("no labels")?;
        let found = |object: &&Value| {
            let has = |(key, value): (&String, &Value)| {
                object["metadata"]["labels"].get(key) == Some(value)
            };
            object["kind"] == "ClusterRole" && labels.iter().all(has)
        };
        for role in objects.iter().filter(found) {
            all.extend(rules(objects, role)?);
        }
    }
    Ok(all)
}

/// The permissions of the programs, by namespace and resource. An empty namespace means everywhere.
/// A resource can be `leases.coordination.k8s.io/mimeo-reconciler`.
type Rights = BTreeMap<(String, String), BTreeSet<String>>;

fn rights(objects: &[Value]) -> Result<Rights> {
    let mut rights = Rights::new();
    for binding in objects.iter().filter(
        |object| matches!(&object["kind"], Value::String(kind) if kind.ends_with("RoleBinding")),
    ) {
        let [kind, name] =
            ["kind", "name"].map(|field| binding["roleRef"][field].as_str().unwrap_or_default());
        let place = binding["metadata"]["namespace"]
            .as_str()
            .unwrap_or_default();
        for rule in rules(objects, find(objects, kind, name)?)? {
            for (group, resource) in rule
                .api_groups
                .iter()
                .flat_map(|group| rule.resources.iter().map(move |resource| (group, resource)))
            {
                let resource = if group.is_empty() {
                    resource.clone()
                } else {
                    format!("{resource}.{group}")
                };
                let named = rule
                    .resource_names
                    .iter()
                    .map(|name| format!("{resource}/{name}"));
                let named: Vec<String> = if rule.resource_names.is_empty() {
                    vec![resource.clone()]
                } else {
                    named.collect()
                };
                for resource in named {
                    rights
                        .entry((place.to_owned(), resource))
                        .or_default()
                        .extend(rule.verbs.iter().cloned());
                }
            }
        }
    }
    Ok(rights)
}

/// Returns permissions from lines of a namespace, a resource and verbs.
fn table<'a>(lines: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>) -> Rights {
    let row = |(place, resource, verbs): (&str, &str, &str)| {
        (
            (place.to_owned(), resource.to_owned()),
            verbs.split(' ').map(str::to_owned).collect(),
        )
    };
    lines.into_iter().map(row).collect()
}

#[test]
fn with_least_privilege_the_programs_may_do_this_and_nothing_else() -> Result<()> {
    let objects = objects(&rendered_set("least-privilege", &["--no-hooks"])?)?;
    let own = NAMESPACE;
    let mut expected = table([
        ("", "namespaces", "get list watch patch"),
        ("", "clusterreplications.mimeo.dev", "get list watch"),
        ("", "replications.mimeo.dev", "get list watch"),
        ("", "replicationgrants.mimeo.dev", "list watch"),
        ("", "replicationgrants/status.mimeo.dev", "patch"),
        ("", "transformpolicies.mimeo.dev", "get list watch"),
        ("", "clusterreplications/status.mimeo.dev", "patch"),
        ("", "replications/status.mimeo.dev", "patch"),
        ("", "transformpolicies/status.mimeo.dev", "patch"),
        ("", "events.events.k8s.io", "get create patch"),
        ("", "subjectaccessreviews.authorization.k8s.io", "create"),
        (
            "",
            "customresourcedefinitions.apiextensions.k8s.io",
            "get list watch",
        ),
        (
            "",
            "clusterroles.rbac.authorization.k8s.io/mimeo-webhook",
            "get",
        ),
        (own, "secrets", "create"),
        (own, "secrets/mimeo-webhook-tls", "get list watch update"),
        (own, "configmaps", "create"),
        (own, "configmaps/mimeo-kinds", "get list watch patch"),
        (
            own,
            "leases.coordination.k8s.io",
            "list watch create patch delete",
        ),
        (
            own,
            "leases.coordination.k8s.io/mimeo-reconciler",
            "get update",
        ),
    ]);
    for kind in ["mutating", "validating"] {
        for name in ["mimeo", "mimeo-policies"] {
            let resource =
                format!("{kind}webhookconfigurations.admissionregistration.k8s.io/{name}");
            expected.extend(table([(
                "",
                &*resource,
                "get list watch create patch delete",
            )]));
        }
    }
    // The kinds and namespaces in the values.
    for kind in ["secrets", "networkpolicies.networking.k8s.io"] {
        expected.extend(table([("platform", kind, "get list watch")]));
        expected.extend(
            ["team-a", "team-b"]
                .map(|place| (place, kind, "get list watch create patch delete"))
                .into_iter()
                .flat_map(|row| table([row])),
        );
    }
    assert_eq!(rights(&objects)?, expected);
    for program in ["mimeo-webhook", "mimeo-reconciler"] {
        let container =
            &find(&objects, "Deployment", program)?["spec"]["template"]["spec"]["containers"][0];
        let env = container["env"].as_array().context("no env")?;
        for (name, value) in [
            ("MIMEO_SOURCE_NAMESPACES", "platform"),
            ("MIMEO_TARGET_NAMESPACES", "team-a,team-b"),
            ("MIMEO_KINDS", "Secret,NetworkPolicy.networking.k8s.io"),
        ] {
            ensure!(
                env.contains(&json!({"name": name, "value": value})),
                "{program} isn't told {name}: {env:?}"
            );
        }
    }
    Ok(())
}
