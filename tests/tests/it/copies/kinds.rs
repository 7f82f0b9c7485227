//! Copies of any kind, including kinds with defaults that the API server fills in and kinds that
//! appear and disappear.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps,
};
use mimeo_tests::scenario::{
    SOON, Scene, any, apply, label, merge, of, rule, uid, wait_for, wait_gone,
};
use mimeo_tests::{AuditEvent, AuditMark, NAMESPACE, eventually, install_crd};
use serde_json::json;

use super::{MANAGED_BY, STAGE, config_map};

#[tokio::test]
async fn any_kind_is_copied_with_one_write_however_the_server_completes_it() -> Result<()> {
    let scene = STAGE.scene("kinds").await?;
    let namespace = scene.namespace().await?;
    let pod = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}});
    let selector = json!({"matchLabels": {"app": "web"}});
    let sources = [
        (
            "v1",
            "ConfigMap",
            "configmaps",
            json!({"data": {"a": "b"}, "binaryData": {"c": "AAEC"}}),
        ),
        (
            "v1",
            "Service",
            "services",
            json!({"spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}),
        ),
        (
            "v1",
            "ServiceAccount",
            "serviceaccounts",
            json!({"imagePullSecrets": [{"name": "registry"}]}),
        ),
        (
            "v1",
            "LimitRange",
            "limitranges",
            json!({"spec": {"limits": [{"type": "Container", "default": {"cpu": "0.5"}}]}}),
        ),
        (
            "rbac.authorization.k8s.io/v1",
            "Role",
            "roles",
            json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
        ),
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            "networkpolicies",
            json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}),
        ),
        (
            "apps/v1",
            "Deployment",
            "deployments",
            json!({"spec": {"replicas": 1, "selector": selector, "template": pod}}),
        ),
    ];
    let mut rule = scene.rule();
    for (api_version, kind, _, content) in &sources {
        let mut object = content.clone();
        object["apiVersion"] = json!(api_version);
        object["kind"] = json!(kind);
        object["metadata"] = json!({"name": "web", "namespace": scene.home});
        apply(&scene.client, &object).await?;
        rule = rule.source(api_version, kind, &scene.home, "web");
    }
    let mark = scene.setting.control_plane.audit_mark().await?;
    rule.create(&scene.client).await?;
    scene
        .wait_counts(&scene.tag, [sources.len(), sources.len(), 0])
        .await?;

    for (api_version, kind, _, content) in &sources {
        let of = |namespace| any(&scene.client, api_version, kind, Some(namespace));
        let (mut source, mut copy) = (
            of(&scene.home)?.get("web").await?,
            of(&namespace)?.get("web").await?,
        );
        for object in [&mut source, &mut copy] {
            // Each Service has its own address.
            if let Some(spec) = object.data["spec"]
                .as_object_mut()
                .filter(|_| *kind == "Service")
            {
                assert!(spec.remove("clusterIP").is_some() && spec.remove("clusterIPs").is_some());
            }
        }
        for key in content.as_object().context("no object")?.keys() {
            assert_eq!(copy.data[key], source.data[key], "{kind}");
        }
        assert_eq!(label(&copy, MANAGED_BY), Some("mimeo"), "{kind}");
        assert!(
            copy.data
                .get("status")
                .is_none_or(|status| *status == json!({}) || kind == &"Service"),
            "{kind}"
        );
    }
    let writes = scene.setting.control_plane.audit_since(&mark).await?;
    for (_, kind, plural, _) in &sources {
        let writes = writes
            .iter()
            .filter(|event| scene.setting.is_ours(event) && event.is_write());
        let count = writes
            .filter(|event| event.namespace == namespace && event.resource == *plural)
            .count();
        assert_eq!(count, 1, "{kind}");
    }
    Ok(())
}

#[tokio::test]
async fn a_custom_resource_is_copied_once_its_definition_arrives() -> Result<()> {
    let scene = STAGE.scene("custom").await?;
    let namespace = scene.namespace().await?;
    let group = format!("{}.example.com", scene.tag);
    let api_version = format!("{group}/v1");
    let rule = scene
        .rule()
        .source(&api_version, "Widget", &scene.home, "first");
    rule.create(&scene.client).await?;
    scene
        .wait_condition(&scene.tag, "SourcesFound", "False", "KindNotServed")
        .await?;

    install_crd(&scene.client, &widgets(&group)?).await?;
    scene
        .wait_condition(&scene.tag, "SourcesFound", "False", "SourceNotFound")
        .await?;
    let widget = |size: u32| {
        json!({"apiVersion": api_version, "kind": "Widget", "metadata": {"name": "first", "namespace": scene.home},
               "spec": {"size": size}})
    };
    apply(&scene.client, &widget(1)).await?;
    scene.wait_synced(&scene.tag).await?;
    let copies = any(&scene.client, &api_version, "Widget", Some(&namespace))?;
    let copy = copies.get("first").await?;
    assert_eq!(copy.data["spec"], json!({"size": 1, "color": "red"}));

    apply(&scene.client, &widget(2)).await?;
    let copy = wait_for(copies.clone(), "first".into(), |copy| {
        copy.data["spec"]["size"] == 2
    })
    .await?;
    merge(&copies, "first", json!({"spec": {"color": "blue"}})).await?;
    let repaired = wait_for(copies.clone(), "first".into(), |copy| {
        copy.data["spec"]["color"] == "red"
    })
    .await?;
    assert_eq!(uid(&repaired), uid(&copy));
    rule.delete(&scene.client).await?;
    wait_gone(copies, "first").await
}

/// The objects exist all the time, in another version.
#[tokio::test]
async fn a_version_that_is_not_served_for_a_while_costs_no_copy() -> Result<()> {
    let scene = STAGE.scene("version").await?;
    let namespaces = scene.namespaces(3).await?;
    let group = format!("{}.example.com", scene.tag);
    let definition = |served: bool| in_two_versions(&group, served);
    install_crd(&scene.client, &definition(true)?).await?;
    let widget = |size: u32| {
        json!({"apiVersion": format!("{group}/v2"), "kind": "Widget", "metadata": {"name": "first", "namespace": scene.home},
               "spec": {"size": size}})
    };
    apply(&scene.client, &widget(1)).await?;
    let rule = scene
        .rule()
        .source(&format!("{group}/v1"), "Widget", &scene.home, "first");
    // If Mimeo took the source for deleted, the copies would be deleted at once.
    rule.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 0}))
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    let uids = async || -> Result<Vec<String>> {
        let mut uids = Vec::new();
        for namespace in &namespaces {
            let copies = any(
                &scene.client,
                &format!("{group}/v2"),
                "Widget",
                Some(namespace),
            )?;
            uids.push(uid(&copies.get("first").await?));
        }
        Ok(uids)
    };
    let before = uids().await?;

    let mark = scene.setting.control_plane.audit_mark().await?;
    install_crd(&scene.client, &definition(false)?).await?;
    scene
        .wait_condition(&scene.tag, "SourcesFound", "False", "KindNotServed")
        .await?;
    scene
        .wait_condition(&scene.tag, "Ready", "False", "KindNotServed")
        .await?;
    apply(&scene.client, &widget(2)).await?;
    assert_eq!(uids().await?, before);

    install_crd(&scene.client, &definition(true)?).await?;
    for namespace in &namespaces {
        let copies = any(
            &scene.client,
            &format!("{group}/v1"),
            "Widget",
            Some(namespace),
        )?;
        wait_for(copies, "first".into(), |copy| {
            copy.data["spec"]["size"] == 2
        })
        .await?;
    }
    scene.wait_synced(&scene.tag).await?;
    assert_eq!(uids().await?, before, "the same copies");
    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let ours = events
        .iter()
        .filter(|event| scene.setting.is_ours(event) && event.group == group);
    let deletes: Vec<_> = ours
        .filter(|event| event.verb.starts_with("delete"))
        .collect();
    assert!(deletes.is_empty(), "{deletes:#?}");
    Ok(())
}

/// Mimeo deletes the copies through the remaining version. After an upgrade, a cluster may no
/// longer serve the former one.
#[tokio::test]
async fn copies_of_a_rule_that_goes_while_its_version_is_not_served_go_all_the_same() -> Result<()>
{
    let scene = STAGE.scene("dropped").await?;
    let namespaces = scene.namespaces(2).await?;
    let group = format!("{}.example.com", scene.tag);
    install_crd(&scene.client, &in_two_versions(&group, true)?).await?;
    let widget = json!({
        "apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": "first", "namespace": scene.home},
    });
    apply(&scene.client, &widget).await?;
    let rule = scene
        .rule()
        .source(&format!("{group}/v1"), "Widget", &scene.home, "first");
    rule.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;

    install_crd(&scene.client, &in_two_versions(&group, false)?).await?;
    scene
        .wait_condition(&scene.tag, "SourcesFound", "False", "KindNotServed")
        .await?;
    rule.delete(&scene.client).await?;
    let widgets = |namespace| {
        any(
            &scene.client,
            &format!("{group}/v2"),
            "Widget",
            Some(namespace),
        )
    };
    for namespace in &namespaces {
        wait_gone(widgets(namespace)?, "first").await?;
    }
    widgets(&scene.home)?.get("first").await?;
    eventually(SOON, "the end of the search for copies", || async {
        let noted = of::<ConfigMap>(&scene.client, NAMESPACE)
            .get("mimeo-kinds")
            .await?
            .data
            .unwrap_or_default();
        Ok((!noted.contains_key(&format!("Widget.{group}"))).then_some(()))
    })
    .await
}

/// A retry cannot help, and comes after minutes. A change of the rule leads to a write at once.
#[tokio::test]
async fn a_field_that_no_schema_declares_is_tried_once_until_the_rule_is_changed() -> Result<()> {
    /// The first retry of anything comes after one second.
    const QUIET: Duration = Duration::from_secs(5);
    let scene = STAGE.scene("undeclared").await?;
    let namespaces = scene.namespaces(3).await?;
    let group = format!("{}.example.com", scene.tag);
    install_crd(&scene.client, &widgets(&group)?).await?;
    let widget = json!({
        "apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": "first", "namespace": scene.home},
        "spec": {"size": 1},
    });
    apply(&scene.client, &widget).await?;
    config_map(&scene, "first", &[("token", "one")]).await?;
    scene.secret("first", &[("token", "hunter2")]).await?;
    let add = |path: &str| json!({"jsonPatch": [{"op": "add", "path": path, "value": 3}]});
    let to = |name: &str| rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag);
    let custom = to("custom").source(&format!("{group}/v1"), "Widget", &scene.home, "first");
    let custom = custom.set("transform", add("/spec/weight"));
    let builtin = to("builtin")
        .source("v1", "ConfigMap", &scene.home, "first")
        .secret(&scene.home, "first");

    let mark = scene.setting.control_plane.audit_mark().await?;
    custom.create(&scene.client).await?;
    builtin
        .clone()
        .set("transform", add("/weight"))
        .create(&scene.client)
        .await?;
    for (rule, copies) in [(&custom, 3), (&builtin, 6)] {
        scene
            .wait_condition(&rule.name, "Ready", "False", "CopiesFailed")
            .await?;
        let status = scene.wait_counts(&rule.name, [copies, 0, copies]).await?;
        for failure in &status.failures {
            assert_eq!(failure.reason, "Invalid", "{failure:?}");
            assert_eq!(
                failure.message.contains("weight"),
                failure.kind != "Secret",
                "{failure:?}"
            );
        }
    }
    let once = |answers: &[u16]| -> BTreeMap<(String, String), Vec<u16>> {
        let places = namespaces.iter().flat_map(|namespace| {
            ["widgets", "configmaps", "secrets"]
                .map(|resource| (namespace.clone(), resource.to_owned()))
        });
        places.map(|place| (place, answers.to_vec())).collect()
    };
    tokio::time::sleep(QUIET).await;
    assert_eq!(tried(&scene, &mark, &namespaces).await?, once(&[500]));

    let mut declared = widgets(&group)?;
    let schema = declared.spec.versions[0]
        .schema
        .as_mut()
        .and_then(|schema| schema.open_api_v3_schema.as_mut());
    let spec = schema.and_then(|schema| {
        schema
            .properties
            .as_mut()?
            .get_mut("spec")?
            .properties
            .as_mut()
    });
    let integer = JSONSchemaProps {
        type_: Some("integer".into()),
        ..JSONSchemaProps::default()
    };
    spec.context("no schema")?.insert("weight".into(), integer);
    install_crd(&scene.client, &declared).await?;
    let mut another = widget.clone();
    another["metadata"]["name"] = "another".into();
    another["spec"]["weight"] = 1.into();
    eventually(SOON, "the API server to use the changed CRD", || async {
        apply(&scene.client, &another).await.map(Some)
    })
    .await?;
    let custom = custom.set("podGate", json!("None"));
    custom.replace(&scene.client).await?;
    builtin.replace(&scene.client).await?;
    for rule in [&custom, &builtin] {
        scene.wait_synced(&rule.name).await?;
    }
    for namespace in &namespaces {
        let copies = any(
            &scene.client,
            &format!("{group}/v1"),
            "Widget",
            Some(namespace),
        )?;
        assert_eq!(copies.get("first").await?.data["spec"]["weight"], 3);
    }
    let mut tried = tried(&scene, &mark, &namespaces).await?;
    // If the API server uses the changed CRD late, Mimeo has to try the custom objects again.
    for ((_, resource), answers) in &mut tried {
        if resource == "widgets" {
            answers.dedup_by(|next, before| (*next, *before) == (500, 500));
        }
    }
    assert_eq!(tried, once(&[500, 201]));
    Ok(())
}

/// Returns the codes of Mimeo's requests since the mark, by namespace and resource, for the objects
/// in these namespaces.
async fn tried(
    scene: &Scene<'_>,
    mark: &AuditMark,
    namespaces: &[String],
) -> Result<BTreeMap<(String, String), Vec<u16>>> {
    let mut tried: BTreeMap<_, Vec<u16>> = BTreeMap::new();
    for event in scene.setting.control_plane.audit_since(mark).await? {
        if scene.setting.is_ours(&event)
            && namespaces.contains(&event.namespace)
            && event.name == "first"
        {
            tried
                .entry((event.namespace, event.resource))
                .or_default()
                .push(event.code);
        }
    }
    Ok(tried)
}

/// Returns a CRD.
fn widgets(group: &str) -> Result<CustomResourceDefinition> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "size": {"type": "integer"}, "color": {"type": "string", "default": "red"},
                    }},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}},
            }],
        },
    }))?)
}

/// Returns the CRD with a second version, which is always served.
fn in_two_versions(group: &str, first_served: bool) -> Result<CustomResourceDefinition> {
    let mut definition = widgets(group)?;
    let first = definition.spec.versions.pop().context("no version")?;
    let second = CustomResourceDefinitionVersion {
        name: "v2".into(),
        storage: false,
        ..first.clone()
    };
    definition.spec.versions = vec![
        CustomResourceDefinitionVersion {
            served: first_served,
            ..first
        },
        second,
    ];
    Ok(definition)
}

#[tokio::test]
async fn the_watches_of_a_kind_close_with_its_last_rule() -> Result<()> {
    let scene = STAGE.scene("close").await?;
    let control_plane = &scene.setting.control_plane;
    let namespace = scene.namespace().await?;
    let group = format!("{}.example.com", scene.tag);
    let api_version = format!("{group}/v1");
    install_crd(&scene.client, &widgets(&group)?).await?;
    let widget = json!({"apiVersion": api_version, "kind": "Widget", "metadata": {"name": "first", "namespace": scene.home}});
    apply(&scene.client, &widget).await?;

    // Counts the open watches of the kind: those of the reconciler and of the webhook.
    let start = control_plane.audit_mark().await?;
    let open = async || -> Result<[usize; 2]> {
        let ended = control_plane.watches_ended_since(&start).await?;
        let begun = control_plane.audit_since(&start).await?;
        let pair = &scene.setting.pair;
        Ok([pair.reconciler_user(), pair.webhook_user()].map(|user| {
            let of_kind = |event: &&AuditEvent| {
                event.user == user.name() && event.group == group && event.code == 200
            };
            let begun = begun
                .iter()
                .filter(|event| event.verb == "watch")
                .filter(of_kind)
                .count();
            begun - ended.iter().filter(of_kind).count()
        }))
    };
    let [first, second] = ["one", "two"].map(|name| {
        let rule = rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag);
        rule.source(&api_version, "Widget", &scene.home, "first")
            .named(name)
    });
    let copies = any(&scene.client, &api_version, "Widget", Some(&namespace))?;
    for rule in [&first, &second] {
        rule.create(&scene.client).await?;
        scene.wait_synced(&rule.name).await?;
    }
    eventually(SOON, "both programs to watch the kind", || async {
        let open = open().await?;
        if open.iter().all(|open| *open > 0) {
            Ok(Some(()))
        } else {
            bail!("{open:?}")
        }
    })
    .await?;
    first.delete(&scene.client).await?;
    wait_gone(copies.clone(), "one").await?;
    let left = open().await?;
    assert!(
        left.iter().all(|open| *open > 0),
        "the other rule needs them: {left:?}"
    );

    second.delete(&scene.client).await?;
    wait_gone(copies, "two").await?;
    eventually(SOON, "the watches of the kind to be closed", || async {
        let open = open().await?;
        if open == [0, 0] {
            Ok(Some(()))
        } else {
            bail!("{open:?}")
        }
    })
    .await?;
    // The watches stay closed when the programs have other work, also with other kinds.
    let closed = control_plane.audit_mark().await?;
    let group = format!("{}-other.example.com", scene.tag);
    install_crd(&scene.client, &widgets(&group)?).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let other = scene.rule().secret(&scene.home, "registry");
    let other = other.source(&format!("{group}/v1"), "Widget", &scene.home, "first");
    other.create(&scene.client).await?;
    scene
        .wait_condition(&scene.tag, "SourcesFound", "False", "SourceNotFound")
        .await?;
    scene.wait_secret(&namespace, "registry", |_| true).await?;
    let events = control_plane.audit_since(&closed).await?;
    let again: Vec<_> = events
        .iter()
        .filter(|event| scene.setting.is_ours(event) && event.uri.contains(&api_version))
        .collect();
    assert!(again.is_empty(), "{again:#?}");
    Ok(())
}
