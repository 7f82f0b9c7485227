//! Inline sources: the rule itself contains the object.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use mimeo_tests::author::{Author, WRITE};
use mimeo_tests::scenario::{
    Setting, annotation, condition, delete, label, merge, of, rule, wait_for, wait_gone,
};
use mimeo_tests::{AuditMark, unique};
use serde_json::{Value, json};

use crate::stages::PLAIN as STAGE;

fn object(api_version: &str, kind: &str, name: &str, fields: &Value) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
    for (field, value) in fields.as_object().into_iter().flatten() {
        object[field] = value.clone();
    }
    object
}

fn policy(types: &[&str]) -> Value {
    object(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        "default-deny",
        &json!({"spec": {"podSelector": {}, "policyTypes": types}}),
    )
}

fn has_types(types: &'static [&str]) -> impl Fn(&NetworkPolicy) -> bool {
    move |copy| {
        copy.spec
            .iter()
            .flat_map(|spec| &spec.policy_types)
            .flatten()
            .eq(types)
    }
}

/// Counts Mimeo's writes to objects of that name in these namespaces since then. If the webhook is
/// slow, the reconciler sends the same write, and the API server refuses one of them.
async fn writes(
    setting: &Setting,
    mark: &AuditMark,
    namespaces: &[String],
    name: &str,
) -> Result<usize> {
    let events = setting.control_plane.audit_since(mark).await?;
    Ok(events
        .iter()
        .filter(|event| setting.is_ours(event) && event.is_write() && event.name == name)
        .filter(|event| event.code < 300)
        .filter(|event| namespaces.contains(&event.namespace))
        .count())
}

#[tokio::test]
async fn every_namespace_gets_its_network_policy_and_follows_the_rule_with_one_write_each()
-> Result<()> {
    let scene = STAGE.scene("policy").await?;
    let setting = scene.setting;
    let mut namespaces = scene.namespaces(2).await?;
    let mark = setting.control_plane.audit_mark().await?;
    scene
        .rule()
        .inline(&policy(&["Ingress"]))
        .create(&scene.client)
        .await?;
    scene.wait_counts(&scene.tag, [2, 2, 0]).await?;
    namespaces.push(scene.namespace().await?);
    for namespace in &namespaces {
        let copy = wait_for(
            of(&scene.client, namespace),
            "default-deny".into(),
            has_types(&["Ingress"]),
        )
        .await?;
        assert_eq!(
            annotation(&copy, "mimeo.dev/source"),
            Some("inline/networking.k8s.io/v1/NetworkPolicy/default-deny")
        );
    }
    let status = scene.wait_counts(&scene.tag, [3, 3, 0]).await?;
    let found = condition(&status, "SourcesFound").context("no condition")?;
    assert_eq!((&*found.status, &*found.reason), ("True", "Found"));
    let source = &status.sources[0];
    assert_eq!(
        (&*source.name, &source.namespace, &source.resource_version),
        ("default-deny", &None, &None)
    );
    let name = "default-deny";
    assert_eq!(writes(setting, &mark, &namespaces, name).await?, 3);

    let mark = setting.control_plane.audit_mark().await?;
    scene
        .rule()
        .inline(&policy(&["Ingress", "Egress"]))
        .replace(&scene.client)
        .await?;
    for namespace in &namespaces {
        wait_for(
            of(&scene.client, namespace),
            "default-deny".into(),
            has_types(&["Ingress", "Egress"]),
        )
        .await?;
    }
    scene.wait_synced(&scene.tag).await?;
    assert_eq!(
        writes(setting, &mark, &namespaces, name).await?,
        3,
        "one write for each copy"
    );

    // Mimeo restores a deleted copy. If the object is no valid NetworkPolicy, the status has the
    // API server's message.
    delete(
        &of::<NetworkPolicy>(&scene.client, &namespaces[0]),
        "default-deny",
    )
    .await?;
    wait_for(
        of(&scene.client, &namespaces[0]),
        "default-deny".into(),
        has_types(&["Ingress", "Egress"]),
    )
    .await?;
    scene.wait_synced(&scene.tag).await?;
    scene
        .rule()
        .inline(&policy(&["Sideways"]))
        .replace(&scene.client)
        .await?;
    let status = scene.wait_counts(&scene.tag, [3, 0, 3]).await?;
    let failure = &status.failures[0];
    assert_eq!(failure.reason, "Invalid");
    assert!(failure.message.contains("Sideways"), "{}", failure.message);
    scene
        .rule()
        .inline(&policy(&["Egress"]))
        .replace(&scene.client)
        .await?;
    scene.wait_counts(&scene.tag, [3, 3, 0]).await?;
    Ok(())
}

#[tokio::test]
async fn each_namespace_fills_in_its_own_and_what_is_taken_out_of_the_rule_goes() -> Result<()> {
    let scene = STAGE.scene("filled").await?;
    let namespaces = scene.namespaces(2).await?;
    let url = "https://$(namespace.name).example.com/$(source.name)?scene=$(namespace.labels['scene'])&x=$(x)";
    let mut map = object(
        "v1",
        "ConfigMap",
        "settings",
        &json!({"data": {"url": url}}),
    );
    map["metadata"]["labels"] = json!({"for": "all", "app.kubernetes.io/instance": "other"});
    map["metadata"]["annotations"] = json!({"of": "$(namespace.name)"});
    map["metadata"]["creationTimestamp"] = Value::Null;
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": "$(namespace.name)"}});
    let peers = json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": here}]}]});
    let own = object(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        "own",
        &json!({"spec": peers}),
    );
    scene
        .rule()
        .inline(&map)
        .inline(&own)
        .create(&scene.client)
        .await?;
    for namespace in &namespaces {
        let copy: ConfigMap =
            wait_for(of(&scene.client, namespace), "settings".into(), |_| true).await?;
        let url = format!(
            "https://{namespace}.example.com/settings?scene={}&x=$(x)",
            scene.tag
        );
        assert_eq!(
            copy.data.iter().flatten().next(),
            Some((&"url".to_owned(), &url))
        );
        assert_eq!(
            (
                label(&copy, "for"),
                label(&copy, "app.kubernetes.io/instance")
            ),
            (Some("all"), None)
        );
        assert_eq!(annotation(&copy, "of"), Some(&**namespace));
        let named = |copy: &NetworkPolicy| {
            json!(copy.spec)
                .to_string()
                .contains(&format!("{namespace:?}"))
        };
        wait_for(of(&scene.client, namespace), "own".into(), named).await?;
    }
    scene.wait_counts(&scene.tag, [4, 4, 0]).await?;
    // Mimeo reverts a change by another client, as for any copy.
    let maps: Api<ConfigMap> = of(&scene.client, &namespaces[0]);
    merge(&maps, "settings", json!({"data": {"url": "elsewhere"}})).await?;
    let is_right = |copy: &ConfigMap| {
        copy.data
            .iter()
            .flatten()
            .any(|(_, url)| url.starts_with("https://"))
    };
    wait_for(maps, "settings".into(), is_right).await?;

    scene.rule().inline(&own).replace(&scene.client).await?;
    for namespace in &namespaces {
        wait_gone(of::<ConfigMap>(&scene.client, namespace), "settings").await?;
    }
    scene.wait_counts(&scene.tag, [2, 2, 0]).await?;
    Ok(())
}

#[tokio::test]
async fn what_hands_out_rights_takes_the_right_to_do_that() -> Result<()> {
    let scene = STAGE.scene("rights").await?;
    let namespace = scene.namespace().await?;
    let ann = Author::new(&scene, &[]).await?;
    let rbac = "rbac.authorization.k8s.io";
    let may = |resources: &[&str], verbs: &[&str]| json!({"apiGroups": [rbac], "resources": resources, "verbs": verbs});
    ann.may(Some(&namespace), &may(&["roles", "rolebindings"], &WRITE))
        .await?;
    let rules = json!({"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]});
    let role = object(&format!("{rbac}/v1"), "Role", "reader", &rules);
    let reference = json!({
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"apiGroup": rbac, "kind": "Group", "name": "$(namespace.name)-admins"}],
    });
    let binding = object(&format!("{rbac}/v1"), "RoleBinding", "admins", &reference);
    let of_rule = |object: &Value| {
        rule(&unique(&scene.tag))
            .inline(object)
            .target(json!({"namespaces": [namespace]}))
    };
    let there = |right: &str| format!("{right}.{rbac} in namespace {namespace}");
    ann.refused(&of_rule(&role), &[&there("escalate roles")])
        .await?;
    ann.refused(
        &of_rule(&binding),
        &[&there("bind clusterroles"), &there("bind roles")],
    )
    .await?;
    ann.may(Some(&namespace), &may(&["roles"], &["escalate", "bind"]))
        .await?;
    ann.accepted(&of_rule(&role)).await?;
    ann.refused(&of_rule(&binding), &[&there("bind clusterroles")])
        .await?;
    ann.may(Some(&namespace), &may(&["clusterroles"], &["bind"]))
        .await?;
    ann.accepted(&of_rule(&binding)).await?;
    wait_for(
        of::<Role>(&scene.client, &namespace),
        "reader".into(),
        |role| role.rules.is_some(),
    )
    .await?;
    let group = format!("{namespace}-admins");
    let is_bound = |copy: &RoleBinding| {
        copy.subjects
            .iter()
            .flatten()
            .any(|subject| subject.name == group)
    };
    wait_for(of(&scene.client, &namespace), "admins".into(), is_bound).await?;
    Ok(())
}
