//! Creation of copies: in which namespaces, and under which names.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, ResourceExt as _, api::PostParams};
use mimeo_tests::scenario::{
    SOON, annotation, delete, label, merge, of, relabel, rule, uid, value, version, wait_gone,
};
use mimeo_tests::{AuditEvent, ControlPlane, Pair, create_namespace, eventually, unique};
use serde_json::{Value, json};

use super::{BELONGS_TO, MANAGED_BY, STAGE, config_map};
use crate::stages::LOAD;

#[tokio::test]
async fn existing_namespaces_are_filled_and_no_others() -> Result<()> {
    let scene = STAGE.scene("fill").await?;
    let namespaces = scene.namespaces(3).await?;
    let source = scene
        .secret("registry", &[("token", "one"), ("user", "robin")])
        .await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;

    scene.wait_counts(&scene.tag, [3, 3, 0]).await?;
    scene.wait_synced(&scene.tag).await?;
    let cluster = uid(&Api::<Namespace>::all(scene.client.clone())
        .get("kube-system")
        .await?);
    for namespace in &namespaces {
        let copy = scene.secrets(namespace).get("registry").await?;
        assert_eq!((&copy.data, &copy.type_), (&source.data, &source.type_));
        assert_eq!(label(&copy, MANAGED_BY), Some("mimeo"));
        assert_eq!(label(&copy, BELONGS_TO), Some(scene.tag.as_str()));
        let rule = format!("ClusterReplication/{}", scene.tag);
        assert_eq!(annotation(&copy, "mimeo.dev/rule"), Some(rule.as_str()));
        let from = format!("v1/Secret/{}/registry", scene.home);
        assert_eq!(annotation(&copy, "mimeo.dev/source"), Some(from.as_str()));
        assert_eq!(
            annotation(&copy, "mimeo.dev/cluster"),
            Some(cluster.as_str())
        );
        assert!(copy.finalizers().is_empty() && copy.owner_references().is_empty());
        let managers: Vec<_> = copy
            .managed_fields()
            .iter()
            .map(|entry| entry.manager.as_deref())
            .collect();
        assert_eq!(managers, [Some("mimeo")]);
    }
    assert_eq!(
        version(&scene.secrets(&scene.home).get("registry").await?),
        version(&source),
        "the source is untouched"
    );
    Ok(())
}

#[tokio::test]
async fn each_way_to_select_namespaces_selects_what_it_says() -> Result<()> {
    let scene = STAGE.scene("select").await?;
    let tag = &scene.tag;
    let chosen = ["exact", "glob-a", "glob-b1", "p-1", "p-22"].map(|end| format!("{tag}-{end}"));
    let passed_over =
        ["exactly", "glob-no", "p-x", "p-1x", "excluded"].map(|end| format!("{tag}-{end}"));
    for name in chosen.iter().chain(&passed_over[..4]) {
        create_namespace(&scene.client, name, &[]).await?;
    }
    create_namespace(
        &scene.client,
        &passed_over[4],
        &[("scene", tag), ("tier", "sandbox")],
    )
    .await?;
    let labelled = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    rule(tag)
        .secret(&scene.home, "registry")
        .target(json!({"namespaces": [format!("{tag}-exact"), format!("{tag}-glob-*")]}))
        .target(json!({"namespacePattern": format!("{tag}-p-[0-9]+")}))
        .target(json!({"namespaceSelector": {"matchLabels": {"scene": tag}}}))
        .set(
            "exclude",
            json!([
                {"namespaces": [format!("{tag}-*-no")]},
                {"namespaceSelector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["sandbox"]}]}},
            ]),
        )
        .create(&scene.client)
        .await?;

    scene.wait_counts(tag, [6, 6, 0]).await?;
    let mut found = BTreeSet::new();
    for name in chosen.iter().chain(&passed_over).chain([&labelled]) {
        if scene.secrets(name).get_opt("registry").await?.is_some() {
            found.insert(name.clone());
        }
    }
    assert_eq!(found, chosen.into_iter().chain([labelled]).collect());
    Ok(())
}

#[tokio::test]
async fn the_systems_namespaces_are_reached_by_their_exact_names_alone() -> Result<()> {
    let scene = STAGE.scene("system").await?;
    let source = format!("{}-registry", scene.tag);
    scene.secret(&source, &[("token", "one")]).await?;
    let (wide, exact) = (
        format!("{}-wide", scene.tag),
        format!("{}-exact", scene.tag),
    );
    rule(&wide)
        .secret(&scene.home, &source)
        .to_label("kubernetes.io/metadata.name", "kube-public")
        .target(json!({"namespaces": ["kube-publi?", "kube-syste*"]}))
        .target(json!({"namespacePattern": "kube-node-lease"}))
        .create(&scene.client)
        .await?;
    scene
        .wait_condition(&wide, "Ready", "True", "NoNamespaceMatches")
        .await?;
    scene.wait_counts(&wide, [0, 0, 0]).await?;

    let named = rule(&exact)
        .secret(&scene.home, &source)
        .target(json!({"namespaces": ["kube-public"]}));
    named.create(&scene.client).await?;
    scene.wait_synced(&exact).await?;
    scene.secrets("kube-public").get(&source).await?;
    named.delete(&scene.client).await?;
    wait_gone(scene.secrets("kube-public"), &source).await
}

#[tokio::test]
async fn a_namespace_gets_its_copies_as_soon_as_it_matches() -> Result<()> {
    let scene = STAGE.scene("match").await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene
        .wait_condition(&scene.tag, "Ready", "True", "NoNamespaceMatches")
        .await?;

    let new = scene.namespace().await?;
    scene.wait_secret(&new, "registry", |_| true).await?;

    let old = unique(&scene.tag);
    create_namespace(&scene.client, &old, &[]).await?;
    relabel(&scene.client, &old, "scene", Some(&scene.tag)).await?;
    scene.wait_secret(&old, "registry", |_| true).await?;

    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    delete(&namespaces, &new).await?;
    wait_gone(namespaces, &new).await?;
    create_namespace(&scene.client, &new, &[("scene", &scene.tag)]).await?;
    scene
        .wait_secret(&new, "registry", |copy| {
            value(copy, "token").as_deref() == Some("one")
        })
        .await?;
    Ok(())
}

/// An editor of a namespace can fill it with markup, which API servers send as six times as much.
/// The old and the new object together have some 15 MiB.
#[tokio::test]
async fn a_namespace_as_large_as_can_be_gets_its_copies() -> Result<()> {
    let _turn = LOAD.lock().await;
    let scene = STAGE.scene("large").await?;
    let namespace = unique(&scene.tag);
    create_namespace(&scene.client, &namespace, &[]).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;
    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    let field = format!("f:{}", "<".repeat(1 << 20));
    let entry = json!({
        "manager": "somebody", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:annotations": {field: {}}}},
    });
    let full = json!({"metadata": {"annotations": {"note": "<".repeat(200 << 10)}, "managedFields": [entry]}});
    let stored = serde_json::to_string(&merge(&namespaces, &namespace, full).await?)?;
    assert!(
        stored.matches('<').count() > 6 << 17,
        "it isn't stored as it was sent"
    );
    let labels = async |value| relabel(&scene.client, &namespace, "scene", value).await;
    eventually(SOON, "the webhook to label it first", || async {
        let setting = scene.setting;
        let mark = setting.control_plane.audit_mark().await?;
        labels(Some(&scene.tag)).await?;
        scene
            .wait_secret(&namespace, "registry", |copy| {
                value(copy, "token").as_deref() == Some("one")
            })
            .await?;
        // By then the webhook has read all of it and set the pending label. The reconciler would
        // also fill a namespace that the webhook cannot read, a moment later.
        let events = setting.control_plane.audit_since(&mark).await?;
        let of_namespace =
            |event: &&AuditEvent| event.resource == "namespaces" && event.name == namespace;
        let webhook = setting.pair.webhook_user().name();
        let writes: Vec<_> = events
            .iter()
            .filter(of_namespace)
            .filter(|event| event.is_write() && event.code < 300)
            .collect();
        let labelled = writes
            .iter()
            .find(|event| !setting.is_ours(event))
            .context("nobody labelled it")?;
        let marked = writes
            .iter()
            .any(|event| event.user == webhook && event.at <= labelled.at);
        if marked {
            return Ok(Some(()));
        }
        // On a busy machine, the API server may have admitted the namespace without the webhook's
        // answer.
        let told = format!("nobody marked it before it was labelled: {writes:#?}");
        labels(None).await?;
        wait_gone(scene.secrets(&namespace), "registry").await?;
        bail!("{told}")
    })
    .await?;
    // Each scene that ends lists all namespaces.
    delete(&namespaces, &namespace).await
}

#[tokio::test]
async fn several_sources_come_under_names_that_tell_them_apart() -> Result<()> {
    let scene = STAGE.scene("several").await?;
    let namespace = scene.namespace().await?;
    for name in ["one", "two"] {
        scene.secret(name, &[("name", name)]).await?;
    }
    config_map(&scene, "one", &[("name", "one")]).await?;
    let rule = scene
        .rule()
        .secret(&scene.home, "one")
        .secret(&scene.home, "two");
    let rule = rule
        .source("v1", "ConfigMap", &scene.home, "one")
        .named("from-$(source.namespace)-$(source.name)");
    rule.create(&scene.client).await?;

    scene.wait_counts(&scene.tag, [3, 3, 0]).await?;
    for name in ["one", "two"] {
        let copy = scene
            .secrets(&namespace)
            .get(&format!("from-{}-{name}", scene.home))
            .await?;
        assert_eq!(value(&copy, "name").as_deref(), Some(name));
    }
    let copies: Api<ConfigMap> = of(&scene.client, &namespace);
    copies.get(&format!("from-{}-one", scene.home)).await?;
    Ok(())
}

/// The namespace got the labels before Mimeo was installed.
#[tokio::test]
async fn a_namespace_with_too_many_labels_gets_no_more_and_can_be_rid_of_them() -> Result<()> {
    let control_plane = ControlPlane::builder()
        .controller_manager(false)
        .start()
        .await?;
    let client = control_plane.client().await?;
    let many = |value: Value| -> Value {
        (0..25_000)
            .map(|number| (format!("l{number}"), value.clone()))
            .collect()
    };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let full = json!({"metadata": {"name": "full", "labels": many("".into())}});
    namespaces
        .create(&PostParams::default(), &serde_json::from_value(full)?)
        .await?;
    let _pair = Pair::builder()
        .reconciler(false)
        .start(&control_plane)
        .await?;
    let labelled = async |labels: Value| {
        merge(&namespaces, "full", json!({"metadata": {"labels": labels}})).await
    };
    eventually(SOON, "another label to be refused", || async {
        let refused = labelled(json!({"tier": "gold"}))
            .await
            .err()
            .context("let through")?;
        ensure!(
            format!("{refused:?}").contains("too many values"),
            "{refused:?}"
        );
        Ok(Some(()))
    })
    .await?;
    labelled(many(Value::Null)).await?;
    let rid = labelled(json!({"tier": "gold"})).await?;
    assert_eq!(label(&rid, "tier"), Some("gold"));
    Ok(())
}
