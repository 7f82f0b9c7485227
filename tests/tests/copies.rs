//! How copies come, follow, heal and go, on a real API server, with both programs running.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use mimeo_api::{ClusterReplication, ClusterReplicationStatus, TransformPolicy};
use mimeo_tests::scenario::{
    SOON, Scene, Setting, Stage, annotation, any, apply, condition, delete, kubectl, label, merge, of, put, relabel,
    rule, uid, value, version, wait_for, wait_gone,
};
use mimeo_tests::{AuditEvent, ControlPlane, Pair, create_namespace, eventually, install_crd, unique};
use serde_json::json;

/// Losses are collected for a second instead of ten: that long these tests wait.
static STAGE: Stage =
    Stage::new(|| ControlPlane::builder().audit(true), || Pair::builder().reconciler_args(["--deletion-delay", "1s"]));

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const BELONGS_TO: &str = "mimeo.dev/cluster-replication";
const CONFIRM: &str = "mimeo.dev/confirm-deletion";

// ---- how copies come ----

#[tokio::test]
async fn existing_namespaces_are_filled_and_no_others() -> Result<()> {
    let scene = STAGE.scene("fill").await?;
    let namespaces = scene.namespaces(3).await?;
    let source = scene.secret("registry", &[("token", "one"), ("user", "robin")]).await?;
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;

    scene.wait_counts(&scene.tag, [3, 3, 0]).await?;
    scene.wait_synced(&scene.tag).await?;
    let cluster = uid(&Api::<Namespace>::all(scene.client.clone()).get("kube-system").await?);
    for namespace in &namespaces {
        let copy = scene.secrets(namespace).get("registry").await?;
        assert_eq!((&copy.data, &copy.type_), (&source.data, &source.type_));
        assert_eq!(label(&copy, MANAGED_BY), Some("mimeo"));
        assert_eq!(label(&copy, BELONGS_TO), Some(scene.tag.as_str()));
        let rule = format!("ClusterReplication/{}", scene.tag);
        assert_eq!(annotation(&copy, "mimeo.dev/rule"), Some(rule.as_str()));
        let from = format!("v1/Secret/{}/registry", scene.home);
        assert_eq!(annotation(&copy, "mimeo.dev/source"), Some(from.as_str()));
        assert_eq!(annotation(&copy, "mimeo.dev/cluster"), Some(cluster.as_str()));
        assert!(copy.finalizers().is_empty() && copy.owner_references().is_empty());
        let managers: Vec<_> = copy.managed_fields().iter().map(|entry| entry.manager.as_deref()).collect();
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
    let passed_over = ["exactly", "glob-no", "p-x", "p-1x", "excluded"].map(|end| format!("{tag}-{end}"));
    for name in chosen.iter().chain(&passed_over[..4]) {
        create_namespace(&scene.client, name, &[]).await?;
    }
    create_namespace(&scene.client, &passed_over[4], &[("scene", tag), ("tier", "sandbox")]).await?;
    let labelled = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    rule(tag)
        .secret(&scene.home, "registry")
        .target(json!({
            "namespaces": [format!("{tag}-exact"), format!("{tag}-glob-*")],
            "exclude": {"namespaces": [format!("{tag}-*-no")]},
        }))
        .target(json!({"namespacePattern": format!("{tag}-p-[0-9]+")}))
        .target(json!({
            "namespaceSelector": {"matchLabels": {"scene": tag}},
            "exclude": {"namespaceSelector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["sandbox"]}]}},
        }))
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
    let (wide, exact) = (format!("{}-wide", scene.tag), format!("{}-exact", scene.tag));
    rule(&wide)
        .secret(&scene.home, &source)
        .to_label("kubernetes.io/metadata.name", "kube-public")
        .target(json!({"namespaces": ["kube-publi?", "kube-syste*"]}))
        .target(json!({"namespacePattern": "kube-node-lease"}))
        .create(&scene.client)
        .await?;
    scene.wait_condition(&wide, "Ready", "True", "NoNamespaceMatches").await?;
    scene.wait_counts(&wide, [0, 0, 0]).await?;

    let named = rule(&exact).secret(&scene.home, &source).target(json!({"namespaces": ["kube-public"]}));
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
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;
    scene.wait_condition(&scene.tag, "Ready", "True", "NoNamespaceMatches").await?;

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
    scene.wait_secret(&new, "registry", |copy| value(copy, "token").as_deref() == Some("one")).await?;
    Ok(())
}

#[tokio::test]
async fn several_sources_come_under_names_that_tell_them_apart() -> Result<()> {
    let scene = STAGE.scene("several").await?;
    let namespace = scene.namespace().await?;
    for name in ["one", "two"] {
        scene.secret(name, &[("name", name)]).await?;
    }
    config_map(&scene, "one", &[("name", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "one").secret(&scene.home, "two");
    let rule = rule.source("v1", "ConfigMap", &scene.home, "one").named("from-$(source.namespace)-$(source.name)");
    rule.create(&scene.client).await?;

    scene.wait_counts(&scene.tag, [3, 3, 0]).await?;
    for name in ["one", "two"] {
        let copy = scene.secrets(&namespace).get(&format!("from-{}-{name}", scene.home)).await?;
        assert_eq!(value(&copy, "name").as_deref(), Some(name));
    }
    let copies: Api<ConfigMap> = of(&scene.client, &namespace);
    copies.get(&format!("from-{}-one", scene.home)).await?;
    Ok(())
}

#[tokio::test]
async fn each_namespace_fills_in_its_name_and_labels_and_one_that_cannot_is_reported() -> Result<()> {
    let scene = STAGE.scene("fill-in").await?;
    let namespaces = scene.namespaces(3).await?;
    for (namespace, team) in namespaces.iter().zip(["red", "blue"]) {
        relabel(&scene.client, namespace, "team", Some(team)).await?;
    }
    scene.secret("registry", &[("token", "one")]).await?;
    let set = json!({"annotations": {"set": {"of": "$(source.name) for $(namespace.name)"}}});
    let rule = scene.rule().secret(&scene.home, "registry").named("registry-$(namespace.labels['team'])");
    rule.set("transform", set).create(&scene.client).await?;

    let status = scene.wait_counts(&scene.tag, [3, 2, 1]).await?;
    let failure = status.failures.first().context("no failure")?;
    assert_eq!((&failure.namespace, failure.reason.as_str()), (&namespaces[2], "VariableUnset"));
    assert!(failure.message.contains("$(namespace.labels['team'])"), "{}", failure.message);
    for (namespace, team) in namespaces.iter().zip(["red", "blue"]) {
        let copy = scene.secrets(namespace).get(&format!("registry-{team}")).await?;
        assert_eq!(annotation(&copy, "of"), Some(format!("registry for {namespace}").as_str()));
        assert_eq!(value(&copy, "token").as_deref(), Some("one"));
    }
    relabel(&scene.client, &namespaces[2], "team", Some("green")).await?;
    scene.wait_synced(&scene.tag).await?;
    scene.secrets(&namespaces[2]).get("registry-green").await?;
    // Another name is another copy: first that one, then away with the former.
    relabel(&scene.client, &namespaces[0], "team", Some("pink")).await?;
    scene.wait_secret(&namespaces[0], "registry-pink", |_| true).await?;
    wait_gone(scene.secrets(&namespaces[0]), "registry-red").await
}

#[tokio::test]
async fn a_json_patch_is_the_last_word_and_one_that_does_not_fit_refuses_the_source() -> Result<()> {
    let scene = STAGE.scene("patch").await?;
    let namespace = scene.namespace().await?;
    config_map(&scene, "settings", &[("mode", "shared"), ("home", "x"), ("level", "1")]).await?;
    let patch = json!([
        {"op": "test", "path": "/data/mode", "value": "shared"},
        {"op": "remove", "path": "/data/home"},
        {"op": "add", "path": "/data/place", "value": {"nested": "no"}},
        {"op": "replace", "path": "/data/place", "value": "$(source.name) in $(namespace.name)"},
        {"op": "add", "path": "/metadata/labels/example.com~1tier", "value": "$(namespace.labels['scene'])"},
    ]);
    let rule = scene.rule().source("v1", "ConfigMap", &scene.home, "settings");
    rule.set("transform", json!({"jsonPatch": patch})).create(&scene.client).await?;

    scene.wait_synced(&scene.tag).await?;
    let copies: Api<ConfigMap> = of(&scene.client, &namespace);
    let place = format!("settings in {namespace}");
    let is = |copy: &ConfigMap, level: &str| {
        let data = copy.data.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str())).collect::<Vec<_>>();
        data == [("level", level), ("mode", "shared"), ("place", place.as_str())]
            && label(copy, "example.com/tier") == Some(scene.tag.as_str())
            && label(copy, MANAGED_BY) == Some("mimeo")
    };
    assert!(is(&copies.get("settings").await?, "1"));
    merge(&copies, "settings", json!({"data": {"place": "elsewhere"}})).await?;
    wait_for(copies.clone(), "settings".into(), |copy| is(copy, "1")).await?;

    let sources: Api<ConfigMap> = of(&scene.client, &scene.home);
    merge(&sources, "settings", json!({"data": {"mode": "hunter2", "level": "2"}})).await?;
    let status = scene.wait_condition(&scene.tag, "SourcesFound", "False", "SourceRefused").await?;
    let told = &condition(&status, "SourcesFound").context("no condition")?.message;
    assert!(told.contains("transform.jsonPatch[0]") && !told.contains("hunter2"), "{told}");
    assert!(is(&copies.get("settings").await?, "1"), "what is there stays");
    merge(&sources, "settings", json!({"data": {"mode": "shared"}})).await?;
    wait_for(copies, "settings".into(), |copy| is(copy, "2")).await?;
    Ok(())
}

#[tokio::test]
async fn any_kind_is_copied_with_one_write_however_the_server_completes_it() -> Result<()> {
    let scene = STAGE.scene("kinds").await?;
    let namespace = scene.namespace().await?;
    let pod =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}});
    let selector = json!({"matchLabels": {"app": "web"}});
    let sources = [
        ("v1", "ConfigMap", "configmaps", json!({"data": {"a": "b"}, "binaryData": {"c": "AAEC"}})),
        ("v1", "Service", "services", json!({"spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}})),
        ("v1", "ServiceAccount", "serviceaccounts", json!({"imagePullSecrets": [{"name": "registry"}]})),
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
    scene.wait_counts(&scene.tag, [sources.len(), sources.len(), 0]).await?;

    for (api_version, kind, _, content) in &sources {
        let of = |namespace| any(&scene.client, api_version, kind, Some(namespace));
        let (mut source, mut copy) = (of(&scene.home)?.get("web").await?, of(&namespace)?.get("web").await?);
        for object in [&mut source, &mut copy] {
            // Each Service has an address of its own.
            if let Some(spec) = object.data["spec"].as_object_mut().filter(|_| *kind == "Service") {
                assert!(spec.remove("clusterIP").is_some() && spec.remove("clusterIPs").is_some());
            }
        }
        for key in content.as_object().context("no object")?.keys() {
            assert_eq!(copy.data[key], source.data[key], "{kind}");
        }
        assert_eq!(label(&copy, MANAGED_BY), Some("mimeo"), "{kind}");
        assert!(copy.data.get("status").is_none_or(|status| *status == json!({}) || kind == &"Service"), "{kind}");
    }
    let writes = scene.setting.control_plane.audit_since(&mark).await?;
    for (_, kind, plural, _) in &sources {
        let writes = writes.iter().filter(|event| scene.setting.is_ours(event) && event.is_write());
        let count = writes.filter(|event| event.namespace == namespace && event.resource == *plural).count();
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
    let rule = scene.rule().source(&api_version, "Widget", &scene.home, "first");
    rule.create(&scene.client).await?;
    scene.wait_condition(&scene.tag, "SourcesFound", "False", "KindNotServed").await?;

    install_crd(&scene.client, &widgets(&group)?).await?;
    scene.wait_condition(&scene.tag, "SourcesFound", "False", "SourceNotFound").await?;
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
    let copy = wait_for(copies.clone(), "first".into(), |copy| copy.data["spec"]["size"] == 2).await?;
    merge(&copies, "first", json!({"spec": {"color": "blue"}})).await?;
    let repaired = wait_for(copies.clone(), "first".into(), |copy| copy.data["spec"]["color"] == "red").await?;
    assert_eq!(uid(&repaired), uid(&copy));
    rule.delete(&scene.client).await?;
    wait_gone(copies, "first").await
}

/// A kind of custom resources.
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

#[tokio::test]
async fn the_watches_of_a_kind_close_with_its_last_rule() -> Result<()> {
    let scene = STAGE.scene("close").await?;
    let control_plane = &scene.setting.control_plane;
    let namespace = scene.namespace().await?;
    let group = format!("{}.example.com", scene.tag);
    let api_version = format!("{group}/v1");
    install_crd(&scene.client, &widgets(&group)?).await?;
    let widget =
        json!({"apiVersion": api_version, "kind": "Widget", "metadata": {"name": "first", "namespace": scene.home}});
    apply(&scene.client, &widget).await?;

    // How many watches of the kind are open, of the reconciler and of the webhook.
    let start = control_plane.audit_mark().await?;
    let open = async || -> Result<[usize; 2]> {
        let ended = control_plane.watches_ended_since(&start).await?;
        let begun = control_plane.audit_since(&start).await?;
        let pair = &scene.setting.pair;
        Ok([pair.reconciler_user(), pair.webhook_user()].map(|user| {
            let of_kind = |event: &&AuditEvent| event.user == user.name() && event.group == group && event.code == 200;
            let begun = begun.iter().filter(|event| event.verb == "watch").filter(of_kind).count();
            begun - ended.iter().filter(of_kind).count()
        }))
    };
    let [first, second] = ["one", "two"].map(|name| {
        let rule = rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag);
        rule.source(&api_version, "Widget", &scene.home, "first").named(name)
    });
    let copies = any(&scene.client, &api_version, "Widget", Some(&namespace))?;
    for rule in [&first, &second] {
        rule.create(&scene.client).await?;
        scene.wait_synced(&rule.name).await?;
    }
    eventually(SOON, "both programs to watch the kind", || async {
        let open = open().await?;
        if open.iter().all(|open| *open > 0) { Ok(Some(())) } else { bail!("{open:?}") }
    })
    .await?;
    first.delete(&scene.client).await?;
    wait_gone(copies.clone(), "one").await?;
    let left = open().await?;
    assert!(left.iter().all(|open| *open > 0), "the other rule needs them: {left:?}");

    second.delete(&scene.client).await?;
    wait_gone(copies, "two").await?;
    eventually(SOON, "the watches of the kind to be closed", || async {
        let open = open().await?;
        if open == [0, 0] { Ok(Some(())) } else { bail!("{open:?}") }
    })
    .await?;
    // Nor are they opened again when the programs have other things to do, with kinds among them.
    let closed = control_plane.audit_mark().await?;
    let group = format!("{}-other.example.com", scene.tag);
    install_crd(&scene.client, &widgets(&group)?).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let other = scene.rule().secret(&scene.home, "registry");
    let other = other.source(&format!("{group}/v1"), "Widget", &scene.home, "first");
    other.create(&scene.client).await?;
    scene.wait_condition(&scene.tag, "SourcesFound", "False", "SourceNotFound").await?;
    scene.wait_secret(&namespace, "registry", |_| true).await?;
    let events = control_plane.audit_since(&closed).await?;
    let again: Vec<_> =
        events.iter().filter(|event| scene.setting.is_ours(event) && event.uri.contains(&api_version)).collect();
    assert!(again.is_empty(), "{again:#?}");
    Ok(())
}

#[tokio::test]
async fn a_chain_of_rules_carries_a_change_to_its_end() -> Result<()> {
    let scene = STAGE.scene("chain").await?;
    let [middle, end] = ["middle", "end"].map(|end| format!("{}-{end}", scene.tag));
    for name in [&middle, &end] {
        create_namespace(&scene.client, name, &[]).await?;
    }
    scene.secret("registry", &[("token", "one")]).await?;
    let to = |name: &str| json!({"namespaces": [name]});
    rule(&middle).secret(&scene.home, "registry").target(to(&middle)).create(&scene.client).await?;
    rule(&end).secret(&middle, "registry").target(to(&end)).create(&scene.client).await?;
    let copy = scene.wait_secret(&end, "registry", |copy| value(copy, "token").as_deref() == Some("one")).await?;
    assert_eq!(label(&copy, BELONGS_TO), Some(end.as_str()));

    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    scene.wait_secret(&end, "registry", |copy| value(copy, "token").as_deref() == Some("two")).await?;
    Ok(())
}

async fn config_map(scene: &Scene<'_>, name: &str, data: &[(&str, &str)]) -> Result<()> {
    let data: BTreeMap<_, _> = data.iter().copied().collect();
    let metadata = json!({"name": name, "namespace": scene.home});
    apply(&scene.client, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})).await?;
    Ok(())
}

// ---- how they follow and heal ----

#[tokio::test]
async fn copies_follow_their_source() -> Result<()> {
    let scene = STAGE.scene("follow").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one"), ("old", "key")]).await?;
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;
    let before = scene.wait_secret(&namespace, "registry", |_| true).await?;

    let change = json!({
        "metadata": {"labels": {"app": "shop"}, "annotations": {"example.com/note": "hello"}},
        "data": {"token": "dHdv", "old": null, "new": "a2V5"},
    });
    merge(&scene.secrets(&scene.home), "registry", change).await?;
    let after =
        scene.wait_secret(&namespace, "registry", |copy| value(copy, "token").as_deref() == Some("two")).await?;
    let data = after.data.as_ref().context("no data")?;
    assert_eq!(data.keys().collect::<Vec<_>>(), ["new", "token"]);
    assert_eq!(label(&after, "app"), Some("shop"));
    assert_eq!(annotation(&after, "example.com/note"), Some("hello"));
    assert_eq!(uid(&after), uid(&before));
    Ok(())
}

#[tokio::test]
async fn a_rule_pointed_at_another_source_updates_its_copies_in_place() -> Result<()> {
    let scene = STAGE.scene("point").await?;
    let namespaces = scene.namespaces(2).await?;
    scene.secret("blue", &[("color", "blue"), ("only", "blue")]).await?;
    scene.secret("green", &[("color", "green")]).await?;
    scene.rule().secret(&scene.home, "blue").named("color").create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let before = scene.secrets(&namespaces[0]).get("color").await?;

    // One that is yet to come: till then the copies stay.
    scene.rule().secret(&scene.home, "red").named("color").replace(&scene.client).await?;
    scene.wait_condition(&scene.tag, "SourcesFound", "False", "SourceNotFound").await?;
    scene.rule().secret(&scene.home, "green").named("color").replace(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    for namespace in &namespaces {
        let after = scene.secrets(namespace).get("color").await?;
        assert_eq!(after.data.as_ref().map(BTreeMap::len), Some(1));
        assert_eq!(value(&after, "color").as_deref(), Some("green"));
        let from = format!("v1/Secret/{}/green", scene.home);
        assert_eq!(annotation(&after, "mimeo.dev/source"), Some(from.as_str()));
    }
    assert_eq!(uid(&scene.secrets(&namespaces[0]).get("color").await?), uid(&before));
    Ok(())
}

#[tokio::test]
async fn whatever_is_done_to_a_copy_is_undone_in_place() -> Result<()> {
    let scene = STAGE.scene("heal").await?;
    let damages = [
        ("a value changed", json!({"data": {"token": "eHh4"}})),
        ("a key removed", json!({"data": {"token": null}})),
        ("a label changed", json!({"metadata": {"labels": {"app": "other"}}})),
        ("our label removed", json!({"metadata": {"labels": {MANAGED_BY: null}}})),
        ("our label changed", json!({"metadata": {"labels": {MANAGED_BY: "other"}}})),
        ("all marks removed", json!({"metadata": {"labels": null, "annotations": null}})),
        ("the checksum changed", json!({"metadata": {"annotations": {"mimeo.dev/checksum": "x"}}})),
        (
            "the rule's name changed",
            json!({"metadata": {"annotations": {"mimeo.dev/rule": "ClusterReplication/other"}}}),
        ),
    ];
    let namespaces = scene.namespaces(damages.len()).await?;
    let labels = json!({"metadata": {"labels": {"app": "shop"}}});
    scene.secret("registry", &[("token", "one"), ("user", "robin")]).await?;
    merge(&scene.secrets(&scene.home), "registry", labels).await?;
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;

    for (namespace, (what, damage)) in namespaces.iter().zip(damages) {
        let copies = scene.secrets(namespace);
        let good = copies.get("registry").await?;
        merge(&copies, "registry", damage).await?;
        let (data, metadata) = (good.data.clone(), good.metadata.clone());
        let whole = move |copy: &Secret| {
            copy.data == data
                && copy.metadata.labels == metadata.labels
                && copy.metadata.annotations == metadata.annotations
        };
        let healed = scene.wait_secret(namespace, "registry", whole).await.context(what)?;
        assert_eq!(uid(&healed), uid(&good), "{what}");
    }
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}

#[tokio::test]
async fn a_copy_that_somebody_else_takes_over_is_taken_back() -> Result<()> {
    let scene = STAGE.scene("take").await?;
    let [applied, forced, replaced] =
        <[String; 3]>::try_from(scene.namespaces(3).await?).map_err(|_| anyhow!("not three"))?;
    scene.secret("registry", &[("token", "one"), ("user", "robin")]).await?;
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let good = scene.secrets(&applied).get("registry").await?;
    let is_whole = |copy: &Secret| copy.data == good.data && copy.metadata.labels == good.metadata.labels;

    let other = PatchParams::apply("other");
    let data =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "registry"}, "data": {"token": "eHh4"}});
    let refused = scene.secrets(&applied).patch("registry", &other, &Patch::Apply(&data)).await;
    assert!(
        matches!(refused, Err(kube::Error::Api(status)) if status.code == 409),
        "without force they conflict with us"
    );
    scene.secrets(&forced).patch("registry", &other.clone().force(), &Patch::Apply(&data)).await?;
    let mut object = scene.secrets(&replaced).get("registry").await?;
    object.metadata.labels = None;
    object.data = None;
    object.metadata.managed_fields = None;
    scene.secrets(&replaced).replace("registry", &PostParams::default(), &object).await?;
    for namespace in [&applied, &forced, &replaced] {
        let copies = scene.secrets(namespace);
        eventually(SOON, "a whole copy", || async { Ok(is_whole(&copies.get("registry").await?).then_some(())) })
            .await?;
    }
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}

#[tokio::test]
async fn what_a_rule_no_longer_sets_leaves_its_copies() -> Result<()> {
    let scene = STAGE.scene("unset").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let plain = scene.rule().secret(&scene.home, "registry");
    let transform = json!({
        "labels": {"set": {"tier": "gold"}}, "annotations": {"set": {"example.com/note": "x"}}, "finalizers": [FINALIZER],
    });
    plain.clone().set("transform", transform).create(&scene.client).await?;
    let before = scene.wait_secret(&namespace, "registry", |copy| label(copy, "tier") == Some("gold")).await?;
    plain.replace(&scene.client).await?;
    let after = scene.wait_secret(&namespace, "registry", |copy| label(copy, "tier").is_none()).await?;
    assert!(annotation(&after, "example.com/note").is_none() && after.finalizers().is_empty());
    assert_eq!(uid(&after), uid(&before));
    Ok(())
}

#[tokio::test]
async fn a_deleted_copy_is_restored() -> Result<()> {
    let scene = STAGE.scene("restore").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;
    let before = scene.wait_secret(&namespace, "registry", |_| true).await?;
    delete(&scene.secrets(&namespace), "registry").await?;
    let old = uid(&before);
    let restored = scene.wait_secret(&namespace, "registry", move |copy| uid(copy) != old).await?;
    assert_eq!(restored.data, before.data);
    Ok(())
}

#[tokio::test]
async fn what_others_add_to_a_copy_stays_theirs() -> Result<()> {
    let scene = STAGE.scene("share").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;
    scene.wait_secret(&namespace, "registry", |_| true).await?;
    let theirs = json!({"metadata": {"labels": {"team": "blue"}}, "data": {"extra": "eHh4"}});
    merge(&scene.secrets(&namespace), "registry", theirs).await?;

    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    let copy = scene.wait_secret(&namespace, "registry", |copy| value(copy, "token").as_deref() == Some("two")).await?;
    assert_eq!(value(&copy, "extra").as_deref(), Some("xxx"));
    assert_eq!(label(&copy, "team"), Some("blue"));
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}

// ---- how they go ----

#[tokio::test]
async fn copies_go_with_their_rule_unless_it_retains_them() -> Result<()> {
    let scene = STAGE.scene("rule-gone").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let [kept, gone] = ["kept", "gone"].map(|name| {
        let to = rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag);
        to.secret(&scene.home, "registry").named(name)
    });
    let kept = kept.set("retentionPolicy", json!({"whenRuleDeleted": "Retain"}));
    for rule in [&kept, &gone] {
        rule.create(&scene.client).await?;
        scene.wait_synced(&rule.name).await?;
    }
    let before = scene.secrets(&namespace).get("kept").await?;
    kept.delete(&scene.client).await?;
    gone.delete(&scene.client).await?;
    wait_gone(scene.secrets(&namespace), "gone").await?;
    assert_eq!(version(&scene.secrets(&namespace).get("kept").await?), version(&before));

    // A rule of that name has it again, in place.
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    kept.create(&scene.client).await?;
    scene.wait_synced(&kept.name).await?;
    let after = scene.secrets(&namespace).get("kept").await?;
    assert_eq!((value(&after, "token").as_deref(), uid(&after)), (Some("two"), uid(&before)));
    Ok(())
}

#[tokio::test]
async fn copies_go_with_their_source_after_its_grace_unless_retained() -> Result<()> {
    let scene = STAGE.scene("source-gone").await?;
    let namespaces = scene.namespaces(2).await?;
    let [kept, gone, graced] = ["kept", "gone", "graced"]
        .map(|name| rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag).secret(&scene.home, name));
    let kept = kept.set("retentionPolicy", json!({"whenSourceDeleted": "Retain", "sourceGracePeriodSeconds": 0}));
    let gone = gone.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 0}));
    for (rule, name) in [(&kept, "kept"), (&gone, "gone"), (&graced, "graced")] {
        scene.secret(name, &[("token", "one")]).await?;
        rule.create(&scene.client).await?;
        scene.wait_synced(&rule.name).await?;
    }
    let mut before = Vec::new();
    for namespace in &namespaces {
        for name in ["kept", "graced"] {
            before.push(version(&scene.secrets(namespace).get(name).await?));
        }
    }
    for name in ["kept", "graced", "gone"] {
        delete(&scene.secrets(&scene.home), name).await?;
    }
    for namespace in &namespaces {
        wait_gone(scene.secrets(namespace), "gone").await?;
    }
    scene.wait_condition(&gone.name, "SourcesFound", "False", "SourceNotFound").await?;
    scene.wait_condition(&kept.name, "SourcesFound", "False", "SourceNotFound").await?;
    scene.wait_condition(&graced.name, "SourcesFound", "False", "InGracePeriod").await?;
    for name in ["graced", "gone"] {
        scene.secret(name, &[("token", "one")]).await?;
    }
    scene.wait_synced(&graced.name).await?;
    scene.wait_synced(&gone.name).await?;
    let mut after = Vec::new();
    for namespace in &namespaces {
        for name in ["kept", "graced"] {
            after.push(version(&scene.secrets(namespace).get(name).await?));
        }
    }
    assert_eq!(after, before, "retained or within the grace: not even touched");
    Ok(())
}

#[tokio::test]
async fn a_copy_goes_when_its_namespace_no_longer_matches_unless_retained() -> Result<()> {
    let scene = STAGE.scene("unmatched").await?;
    let namespaces = scene.namespaces(2).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let [kept, gone] = ["kept", "gone"].map(|name| {
        let to = rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag);
        to.secret(&scene.home, "registry").named(name)
    });
    let kept = kept.set("retentionPolicy", json!({"whenUnmatched": "Retain"}));
    for rule in [&kept, &gone] {
        rule.create(&scene.client).await?;
        scene.wait_synced(&rule.name).await?;
    }
    relabel(&scene.client, &namespaces[0], "scene", None).await?;
    wait_gone(scene.secrets(&namespaces[0]), "gone").await?;
    scene.secrets(&namespaces[0]).get("kept").await?;
    scene.secrets(&namespaces[1]).get("gone").await?;
    scene.wait_counts(&gone.name, [1, 1, 0]).await?;
    Ok(())
}

#[tokio::test]
async fn a_changed_rule_takes_its_former_copies_away() -> Result<()> {
    let scene = STAGE.scene("changed").await?;
    let namespace = scene.namespace().await?;
    for name in ["registry", "second"] {
        scene.secret(name, &[("token", "one")]).await?;
    }
    config_map(&scene, "registry", &[("token", "one")]).await?;
    let secrets = scene.rule().secret(&scene.home, "registry").secret(&scene.home, "second");
    secrets.named("old-$(source.name)").create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;

    // Renamed, and one source less.
    scene.rule().secret(&scene.home, "registry").named("new").replace(&scene.client).await?;
    scene.wait_secret(&namespace, "new", |_| true).await?;
    for name in ["old-registry", "old-second"] {
        wait_gone(scene.secrets(&namespace), name).await?;
    }
    // Of another kind.
    scene.rule().source("v1", "ConfigMap", &scene.home, "registry").named("new").replace(&scene.client).await?;
    let copies: Api<ConfigMap> = of(&scene.client, &namespace);
    wait_for(copies, "new".into(), |copy| label(copy, BELONGS_TO) == Some(scene.tag.as_str())).await?;
    wait_gone(scene.secrets(&namespace), "new").await
}

#[tokio::test]
async fn copies_of_a_source_that_went_with_its_namespace_go_after_it() -> Result<()> {
    let scene = STAGE.scene("home-gone").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    rule.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 0})).create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    delete(&Api::<Namespace>::all(scene.client.clone()), &scene.home).await?;
    wait_gone(scene.secrets(&namespace), "registry").await
}

#[tokio::test]
async fn a_sweep_of_relabellings_is_held_until_a_person_confirms_it() -> Result<()> {
    let scene = STAGE.scene("sweep").await?;
    let namespaces = scene.namespaces(24).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let before = uids(&scene, &namespaces).await?;

    for namespace in &namespaces {
        relabel(&scene.client, namespace, "scene", None).await?;
    }
    let status = scene.wait_condition(&scene.tag, "Stalled", "True", "DeletionHeld").await?;
    assert_eq!(uids(&scene, &namespaces).await?, before, "nothing is deleted");
    let message = &condition(&status, "Stalled").context("not stalled")?.message;
    let nonce = message.split_once(&format!("{CONFIRM}=")).context(message.clone())?.1;
    let nonce = nonce.split_whitespace().next().context("no nonce")?;

    // A wrong word confirms nothing, and it was read: with it came an edit of the spec that the status tells of.
    let rules: Api<ClusterReplication> = Api::all(scene.client.clone());
    let edit = json!({"metadata": {"annotations": {CONFIRM: "yes"}}, "spec": {"retentionPolicy": {"sourceGracePeriodSeconds": 1}}});
    merge(&rules, &scene.tag, edit).await?;
    let status = scene.wait_condition(&scene.tag, "Stalled", "True", "DeletionHeld").await?;
    assert!(condition(&status, "Stalled").is_some_and(|stalled| stalled.message == *message), "the same are held");
    assert_eq!(uids(&scene, &namespaces).await?, before);
    merge(&rules, &scene.tag, json!({"metadata": {"annotations": {CONFIRM: nonce}}})).await?;
    for namespace in &namespaces {
        wait_gone(scene.secrets(namespace), "registry").await?;
    }
    eventually(SOON, "no more stalling", || async {
        let status = scene.wait_condition(&scene.tag, "Ready", "True", "NoNamespaceMatches").await?;
        if condition(&status, "Stalled").is_none() { Ok(Some(())) } else { bail!("{status:?}") }
    })
    .await
}

/// The copies' uids.
async fn uids(scene: &Scene<'_>, namespaces: &[String]) -> Result<Vec<String>> {
    let mut uids = Vec::new();
    for namespace in namespaces {
        uids.push(uid(&scene.secrets(namespace).get("registry").await?));
    }
    Ok(uids)
}

// ---- what they look like ----

#[tokio::test]
async fn a_transform_changes_type_labels_annotations_and_finalizers() -> Result<()> {
    let scene = STAGE.scene("transform").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let metadata = json!({"metadata": {
        "labels": {"app": "shop", "app-tier": "web", "team": "blue", "example.com/zone": "north"},
        "annotations": {"example.com/note": "hello", "example.com/secret-note": "psst", "other.example/note": "no"},
        "finalizers": ["example.com/source"],
    }});
    merge(&scene.secrets(&scene.home), "registry", metadata).await?;
    let rule = scene.rule().secret(&scene.home, "registry").set(
        "transform",
        json!({
            "type": "example.com/login",
            "labels": {"include": ["app*", "team"], "exclude": ["*-tier"], "set": {"team": "green", "from": "home"}},
            "annotations": {"include": ["example.com/*"], "exclude": ["*/secret-*"], "set": {"example.com/set": "yes"}},
            "finalizers": ["example.com/held"],
        }),
    );
    rule.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;

    let copy = scene.secrets(&namespace).get("registry").await?;
    assert_eq!(copy.type_.as_deref(), Some("example.com/login"));
    let labels: BTreeMap<_, _> = copy.labels().iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let tag = scene.tag.as_str();
    let want = [("app", "shop"), ("team", "green"), ("from", "home"), (MANAGED_BY, "mimeo"), (BELONGS_TO, tag)];
    assert_eq!(labels, want.into_iter().collect());
    let annotations: Vec<_> = copy.annotations().keys().filter(|key| !key.starts_with("mimeo.dev/")).collect();
    assert_eq!(annotations, ["example.com/note", "example.com/set"]);
    assert_eq!(copy.finalizers(), ["example.com/held"]);

    // Kept while the copy lives; when it is to go, whoever runs the finalizer lets it go, and nobody writes in between.
    merge(&scene.secrets(&namespace), "registry", json!({"metadata": {"finalizers": null}})).await?;
    scene.wait_secret(&namespace, "registry", |copy| copy.finalizers() == ["example.com/held"]).await?;
    rule.delete(&scene.client).await?;
    let going = |copy: &Secret| copy.metadata.deletion_timestamp.is_some();
    let copy = scene.wait_secret(&namespace, "registry", going).await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    rule.create(&scene.client).await?;
    scene.wait_condition(&scene.tag, "Ready", "False", "CopiesFailed").await?;
    assert_eq!(version(&scene.secrets(&namespace).get("registry").await?), version(&copy));
    merge(&scene.secrets(&namespace), "registry", json!({"metadata": {"finalizers": null}})).await?;
    let old = uid(&copy);
    scene.wait_secret(&namespace, "registry", move |copy| uid(copy) != old).await?;
    merge(&scene.secrets(&scene.home), "registry", json!({"metadata": {"finalizers": null}})).await?;
    Ok(())
}

/// The API server refuses these changes whoever asks for them.
#[tokio::test]
async fn a_copy_that_cannot_be_changed_in_place_is_made_anew() -> Result<()> {
    let scene = STAGE.scene("anew").await?;
    let namespace = scene.namespace().await?;
    let secrets = scene.secrets(&namespace);
    let rule = |type_: &str| scene.rule().secret(&scene.home, "registry").set("transform", json!({"type": type_}));
    scene.secret("registry", &[("token", "one")]).await?;
    rule("example.com/one").create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let first = uid(&secrets.get("registry").await?);

    // Another type.
    rule("example.com/two").replace(&scene.client).await?;
    let copy =
        scene.wait_secret(&namespace, "registry", |copy| copy.type_.as_deref() == Some("example.com/two")).await?;
    assert_ne!(uid(&copy), first);
    scene.wait_synced(&scene.tag).await?;

    // A tenant makes the copy immutable; that lasts until something else is wanted.
    merge(&secrets, "registry", json!({"immutable": true})).await?;
    let before = uid(&secrets.get("registry").await?);
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    let copy = scene.wait_secret(&namespace, "registry", |copy| value(copy, "token").as_deref() == Some("two")).await?;
    assert_ne!(uid(&copy), before);

    // Another role.
    let binding = |role: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "readers", "namespace": scene.home},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "readers"}],
        })
    };
    let bindings = |namespace: &str| any(&scene.client, "rbac.authorization.k8s.io/v1", "RoleBinding", Some(namespace));
    let role = |binding: &DynamicObject| binding.data["roleRef"]["name"].as_str().map(str::to_owned);
    apply(&scene.client, &binding("view")).await?;
    let name = format!("{}-roles", scene.tag);
    let rule = mimeo_tests::scenario::rule(&name).to_label("scene", &scene.tag);
    let rule = rule.source("rbac.authorization.k8s.io/v1", "RoleBinding", &scene.home, "readers");
    rule.create(&scene.client).await?;
    scene.wait_synced(&name).await?;
    delete(&bindings(&scene.home)?, "readers").await?;
    apply(&scene.client, &binding("edit")).await?;
    let copies = bindings(&namespace)?;
    wait_for(copies, "readers".into(), move |copy| role(copy).as_deref() == Some("edit")).await?;
    rule.delete(&scene.client).await
}

#[tokio::test]
async fn keys_of_data_are_left_out_and_renamed() -> Result<()> {
    let scene = STAGE.scene("data").await?;
    let namespace = scene.namespace().await?;
    let keys = |copy: &Secret| copy.data.iter().flat_map(BTreeMap::keys).cloned().collect::<Vec<_>>();
    scene.secret("registry", &[("user", "robin"), ("token", "one"), ("token.old", "none"), ("note", "x")]).await?;
    let edits = json!({"include": ["user", "token*"], "exclude": ["*.old"], "rename": {"token": "password"}});
    let rule = scene.rule().secret(&scene.home, "registry").set("transform", json!({"data": edits}));
    rule.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let copy = scene.secrets(&namespace).get("registry").await?;
    assert_eq!(
        (keys(&copy), value(&copy, "password").as_deref()),
        (vec!["password".into(), "user".into()], Some("one"))
    );

    // An edit of what copies don't carry writes nothing; a key that goes at the source goes here.
    let mark = scene.setting.control_plane.audit_mark().await?;
    merge(&scene.secrets(&scene.home), "registry", json!({"stringData": {"note": "y"}, "data": {"user": null}}))
        .await?;
    let copy = scene.wait_secret(&namespace, "registry", |copy| keys(copy) == ["password"]).await?;
    merge(&scene.secrets(&scene.home), "registry", json!({"stringData": {"note": "z", "token": "two"}})).await?;
    scene.wait_secret(&namespace, "registry", |copy| value(copy, "password").as_deref() == Some("two")).await?;
    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let writes =
        events.iter().filter(|event| event.is_write() && event.namespace == namespace && event.resource == "secrets");
    assert_eq!(writes.count(), 2);

    // Two keys of one name are nobody's wish: what is there stays.
    merge(&scene.secrets(&scene.home), "registry", json!({"stringData": {"password": "three"}})).await?;
    let twice = json!({"include": ["*"], "rename": {"token": "password"}});
    scene
        .rule()
        .secret(&scene.home, "registry")
        .set("transform", json!({"data": twice}))
        .replace(&scene.client)
        .await?;
    let status = scene.wait_condition(&scene.tag, "SourcesFound", "False", "SourceRefused").await?;
    let message = condition(&status, "SourcesFound").map(|condition| condition.message.clone()).unwrap_or_default();
    assert!(message.contains("\"password\"") && !message.contains("three"), "{message}");
    let left = scene.secrets(&namespace).get("registry").await?;
    assert_eq!((uid(&left), value(&left, "password").as_deref()), (uid(&copy), Some("two")));
    Ok(())
}

#[tokio::test]
async fn marks_of_other_tools_are_never_carried() -> Result<()> {
    let scene = STAGE.scene("strip").await?;
    let namespace = scene.namespace().await?;
    let home = uid(&Api::<Namespace>::all(scene.client.clone()).get(&scene.home).await?);
    scene.secret("registry", &[("token", "one")]).await?;
    merge(&scene.secrets(&scene.home), "registry", json!({"metadata": {
        "labels": {
            "app": "shop", "app.kubernetes.io/name": "shop",
            "app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/instance": "shop", "helm.sh/chart": "shop-1",
            "argocd.argoproj.io/instance": "shop", "kustomize.toolkit.fluxcd.io/name": "shop",
            "helm.toolkit.fluxcd.io/name": "shop", "kubed.appscode.com/origin.name": "registry",
            "controller.cert-manager.io/fao": "true", "mimeo.dev/cluster-replication": "other",
        },
        "annotations": {
            "example.com/note": "hello",
            "kubectl.kubernetes.io/last-applied-configuration": "{}", "meta.helm.sh/release-name": "shop",
            "argocd.argoproj.io/tracking-id": "shop", "config.kubernetes.io/origin": "shop",
            "cert-manager.io/certificate-name": "shop", "replicator.v1.mittwald.de/replicate-to": "x",
            "reflector.v1.k8s.emberstack.com/reflection-allowed": "true", "kubed.appscode.com/sync": "",
            "clustersecret.io/version": "1", "mimeo.dev/rule": "ClusterReplication/other", "mimeo.dev/retention": "rule=Retain",
        },
        "ownerReferences": [{"apiVersion": "v1", "kind": "Namespace", "name": scene.home, "uid": home}],
    }}))
    .await?;
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;

    let copy = scene.secrets(&namespace).get("registry").await?;
    let labels: Vec<_> = copy.labels().keys().map(String::as_str).collect();
    assert_eq!(labels, ["app", MANAGED_BY, "app.kubernetes.io/name", BELONGS_TO]);
    assert_eq!((label(&copy, MANAGED_BY), label(&copy, BELONGS_TO)), (Some("mimeo"), Some(scene.tag.as_str())));
    let annotations: Vec<_> = copy.annotations().keys().map(String::as_str).collect();
    let ours = ["mimeo.dev/checksum", "mimeo.dev/cluster", "mimeo.dev/rule", "mimeo.dev/source", "mimeo.dev/via"];
    assert_eq!(annotations, ["example.com/note"].into_iter().chain(ours).collect::<Vec<_>>());
    // What says that it is a copy passes for one: of which rule its own copies tell.
    assert_eq!(annotation(&copy, "mimeo.dev/via"), Some("ClusterReplication/other"));
    let rule = format!("ClusterReplication/{}", scene.tag);
    assert_eq!(annotation(&copy, "mimeo.dev/rule"), Some(rule.as_str()));
    assert!(copy.owner_references().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_secret_of_a_mebibyte_is_copied_and_one_over_the_servers_limit_is_too_large() -> Result<()> {
    let scene = STAGE.scene("size").await?;
    let namespace = scene.namespace().await?;
    let big = "x".repeat(1 << 20);
    let source = scene.secret("big", &[("all", &big)]).await?;
    scene.secret("noted", &[("token", "one")]).await?;
    // All keys and values of the annotations may come to 256 KiB together: with the marks there is no room.
    let note = "x".repeat((256 << 10) - "example.com/note".len());
    merge(&scene.secrets(&scene.home), "noted", json!({"metadata": {"annotations": {"example.com/note": note}}}))
        .await?;
    let [whole, over] = ["big", "noted"]
        .map(|name| rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag).secret(&scene.home, name));
    whole.create(&scene.client).await?;
    scene.wait_synced(&whole.name).await?;
    assert_eq!(scene.secrets(&namespace).get("big").await?.data, source.data);

    let mark = scene.setting.control_plane.audit_mark().await?;
    over.create(&scene.client).await?;
    let status = scene.wait_condition(&over.name, "Ready", "False", "CopiesFailed").await?;
    let failure = status.failures.first().context("no failure")?;
    assert_eq!((failure.namespace.as_str(), failure.name.as_str()), (namespace.as_str(), "noted"));
    assert_eq!(failure.reason, "TooLarge", "{failure:?}");
    // What can't fit isn't tried over and over; what has become smaller is.
    put(&scene.secrets(&scene.home), "big", &[("all", "less")]).await?;
    scene.wait_secret(&namespace, "big", |copy| value(copy, "all").as_deref() == Some("less")).await?;
    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let tries = events.iter().filter(|event| event.namespace == namespace && event.name == "noted" && event.is_write());
    assert_eq!(tries.filter(|event| scene.setting.is_ours(event)).count(), 1);
    merge(&scene.secrets(&scene.home), "noted", json!({"metadata": {"annotations": null}})).await?;
    scene.wait_synced(&over.name).await?;
    Ok(())
}

// ---- what a rule says of itself ----

#[tokio::test]
async fn a_suspended_rule_plans_and_does_nothing_until_it_is_lifted() -> Result<()> {
    let scene = STAGE.scene("suspend").await?;
    let [changed, left, new, taken] =
        <[String; 4]>::try_from(scene.namespaces(4).await?).map_err(|_| anyhow!("not four"))?;
    for name in [&new, &taken] {
        relabel(&scene.client, name, "scene", None).await?;
    }
    scene.secret("registry", &[("token", "one")]).await?;
    let lifted = scene.rule().secret(&scene.home, "registry");
    let suspended = lifted.clone().set("suspend", json!(true));
    suspended.create(&scene.client).await?;
    let status = scene.wait_condition(&scene.tag, "Ready", "False", "Suspended").await?;
    assert_eq!(plan(&status), Some([2, 0, 0, 0]));
    assert!(scene.secrets(&changed).get_opt("registry").await?.is_none());

    lifted.replace(&scene.client).await?;
    assert_eq!(plan(&scene.wait_synced(&scene.tag).await?), None);
    suspended.replace(&scene.client).await?;
    scene.wait_condition(&scene.tag, "Ready", "False", "Suspended").await?;
    let before = scene.secrets(&changed).get("registry").await?;
    let foreign = mimeo_tests::create_secret(&scene.client, &taken, "registry", &[("token", "theirs")]).await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    relabel(&scene.client, &left, "scene", None).await?;
    for name in [&new, &taken] {
        relabel(&scene.client, name, "scene", Some(&scene.tag)).await?;
    }
    eventually(SOON, "the plan", || async {
        let status = scene.wait_condition(&scene.tag, "Ready", "False", "Suspended").await?;
        if plan(&status) == Some([1, 1, 1, 1]) { Ok(Some(())) } else { bail!("{status:#?}") }
    })
    .await?;
    let planned = planned(&scene.wait_condition(&scene.tag, "Ready", "False", "Suspended").await?);
    let mut named = [("Update", &changed), ("Delete", &left), ("Create", &new), ("Conflict", &taken)];
    named.sort_by_key(|(_, namespace)| *namespace);
    assert_eq!(planned, named.map(|(action, namespace)| format!("{action} Secret {namespace}/registry")));
    assert_eq!(version(&scene.secrets(&changed).get("registry").await?), version(&before));
    scene.secrets(&left).get("registry").await?;
    assert!(scene.secrets(&new).get_opt("registry").await?.is_none());

    lifted.replace(&scene.client).await?;
    for name in [&changed, &new] {
        scene.wait_secret(name, "registry", |copy| value(copy, "token").as_deref() == Some("two")).await?;
    }
    wait_gone(scene.secrets(&left), "registry").await?;
    let status = scene.wait_counts(&scene.tag, [3, 2, 1]).await?;
    assert_eq!(plan(&status), None);
    assert_eq!(version(&scene.secrets(&taken).get("registry").await?), version(&foreign));
    Ok(())
}

/// Create, update, delete, conflict.
fn plan(status: &ClusterReplicationStatus) -> Option<[i32; 4]> {
    status.plan.as_ref().map(|plan| [plan.create, plan.update, plan.delete, plan.conflict])
}

/// The copies that the plan names.
fn planned(status: &ClusterReplicationStatus) -> Vec<String> {
    let copies = status.plan.iter().flat_map(|plan| &plan.copies);
    copies.map(|copy| format!("{} {} {}/{}", copy.action, copy.kind, copy.namespace, copy.name)).collect()
}

#[tokio::test]
async fn a_status_is_what_kubectl_shows_and_waits_for() -> Result<()> {
    let scene = STAGE.scene("status").await?;
    scene.namespaces(2).await?;
    let control_plane = &scene.setting.control_plane;
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;
    let status = scene.wait_condition(&scene.tag, "Ready", "False", "SourceNotFound").await?;
    assert!(status.last_sync_time.is_none());
    assert_eq!(status.sources[0].resource_version, None);

    let source = scene.secret("registry", &[("token", "one")]).await?;
    let name = format!("crepl/{}", scene.tag);
    kubectl(control_plane, ["wait", "--for=condition=Ready", "--timeout=30s", &name])?;
    let status = scene.wait_counts(&scene.tag, [2, 2, 0]).await?;
    assert_eq!(status.observed_generation, Some(1));
    assert!(status.last_sync_time.is_some() && status.failures.is_empty());
    assert_eq!(status.sources[0].resource_version, Some(version(&source)));
    let found = condition(&status, "SourcesFound").context("no SourcesFound")?;
    assert_eq!((found.status.as_str(), found.reason.as_str()), ("True", "Found"));
    let types: BTreeSet<_> = status.conditions.iter().map(|one| one.type_.as_str()).collect();
    assert_eq!(types, ["Ready", "SourcesFound", "Authorized", "BarrierActive"].into_iter().collect());
    scene.wait_condition(&scene.tag, "BarrierActive", "True", "Active").await?;

    let table = kubectl(control_plane, ["get", "crepl", &scene.tag])?;
    let (head, row) = table.split_once('\n').context("no row")?;
    assert_eq!(words(head), ["NAME", "READY", "DESIRED", "SYNCED", "FAILED", "REASON", "AGE"]);
    assert_eq!(words(row)[..6], [scene.tag.as_str(), "True", "2", "2", "0", "Synced"]);
    let wide = kubectl(control_plane, ["get", "clusterreplication", &scene.tag, "-o", "wide"])?;
    for column in ["MESSAGE", "LAST SYNC", "SUSPENDED"] {
        assert!(wide.lines().next().is_some_and(|head| head.contains(column)), "{wide}");
    }
    assert!(kubectl(control_plane, ["get", "mimeo"])?.contains(&scene.tag), "the category");
    Ok(())
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[tokio::test]
async fn a_namespace_that_refuses_its_copy_delays_no_other_and_is_reported() -> Result<()> {
    let scene = STAGE.scene("refuse").await?;
    let namespaces = scene.namespaces(8).await?;
    let [full, closed] = [&namespaces[2], &namespaces[5]];
    exhaust(&scene, full).await?;
    let policy = close(&scene, closed).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;

    scene.wait_condition(&scene.tag, "Ready", "False", "CopiesFailed").await?;
    let status = scene.wait_counts(&scene.tag, [8, 6, 2]).await?;
    let failures: Vec<_> = status.failures.iter().map(|one| (one.namespace.as_str(), one.reason.as_str())).collect();
    assert_eq!(failures, [(full.as_str(), "QuotaExceeded"), (closed.as_str(), "AdmissionDenied")]);
    let told = serde_json::to_string(&status)?;
    assert!(!told.contains("hunter2") && !told.contains("b25l"), "no server text for Secrets: {told}");

    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    for namespace in namespaces.iter().filter(|name| ![full, closed].contains(name)) {
        scene.wait_secret(namespace, "registry", |copy| value(copy, "token").as_deref() == Some("two")).await?;
    }
    assert!(scene.secrets(full).get_opt("registry").await?.is_none());

    delete(&any(&scene.client, "v1", "ResourceQuota", Some(full))?, "none").await?;
    delete(&any(&scene.client, ADMISSION, "ValidatingAdmissionPolicyBinding", None)?, &policy).await?;
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}

const ADMISSION: &str = "admissionregistration.k8s.io/v1";

/// A quota of no Secrets. Its status is what counts, and no controller runs here that would fill it in.
async fn exhaust(scene: &Scene<'_>, namespace: &str) -> Result<()> {
    let hard = json!({"hard": {"count/secrets": "0"}});
    let metadata = json!({"name": "none", "namespace": namespace});
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": hard});
    apply(&scene.client, &quota).await?;
    let quotas = any(&scene.client, "v1", "ResourceQuota", Some(namespace))?;
    let status = json!({"status": {"hard": {"count/secrets": "0"}, "used": {"count/secrets": "0"}}});
    quotas.patch_status("none", &PatchParams::default(), &Patch::Merge(status)).await?;
    wait_until_refused(scene, namespace).await
}

/// An admission policy against all Secrets, with a message that nobody should repeat.
async fn close(scene: &Scene<'_>, namespace: &str) -> Result<String> {
    let name = format!("{}.example.com", scene.tag);
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["secrets"]}]);
    let validations = json!([{"expression": "false", "message": "closed, says hunter2"}]);
    let spec =
        json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules}, "validations": validations});
    let policy =
        json!({"apiVersion": ADMISSION, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec});
    apply(&scene.client, &policy).await?;
    let only = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}});
    let spec = json!({"policyName": name, "validationActions": ["Deny"], "matchResources": only});
    let kind = "ValidatingAdmissionPolicyBinding";
    let binding = json!({"apiVersion": ADMISSION, "kind": kind, "metadata": {"name": name}, "spec": spec});
    apply(&scene.client, &binding).await?;
    wait_until_refused(scene, namespace).await?;
    Ok(name)
}

async fn wait_until_refused(scene: &Scene<'_>, namespace: &str) -> Result<()> {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut probe = Secret::default();
    probe.metadata.name = Some("probe".to_owned());
    eventually(SOON, "the refusal of Secrets", || async {
        let answer = scene.secrets(namespace).create(&dry_run, &probe).await;
        Ok(answer.is_err().then_some(()))
    })
    .await
}

// ---- namespaces that go ----

#[tokio::test]
async fn deletion_of_a_namespace_is_never_held_up_and_its_copies_are_left_alone() -> Result<()> {
    let scene = STAGE.scene("terminate").await?;
    let [held, free] = <[String; 2]>::try_from(scene.namespaces(2).await?).map_err(|_| anyhow!("not two"))?;
    let names = ["one", "two", "three"];
    let mut rule = scene.rule();
    for name in names {
        scene.secret(name, &[("token", "one")]).await?;
        rule = rule.secret(&scene.home, name);
    }
    rule.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    // Something of somebody else's keeps the namespace terminating for a while.
    let metadata = json!({"name": "anchor", "namespace": held, "finalizers": ["example.com/anchor"]});
    apply(&scene.client, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})).await?;

    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    let mark = scene.setting.control_plane.audit_mark().await?;
    delete(&namespaces, &held).await?;
    for name in names {
        wait_gone(scene.secrets(&held), name).await?;
        put(&scene.secrets(&scene.home), name, &[("token", "two")]).await?;
        scene.wait_secret(&free, name, |copy| value(copy, "token").as_deref() == Some("two")).await?;
    }
    relabel(&scene.client, &held, "tier", Some("gold")).await?;
    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let ours = events.iter().filter(|event| scene.setting.is_ours(event) && event.namespace == held);
    let ours: Vec<_> = ours.map(|event| (&event.verb, &event.name, event.code)).collect();
    assert!(ours.len() <= names.len(), "at most one write of each was under way: {ours:?}");

    merge(&of::<ConfigMap>(&scene.client, &held), "anchor", json!({"metadata": {"finalizers": null}})).await?;
    wait_gone(namespaces.clone(), &held).await?;
    // And one that goes before it is complete.
    let brief = scene.namespace().await?;
    delete(&namespaces, &brief).await?;
    wait_gone(namespaces, &brief).await?;
    let log = scene.setting.pair.reconciler.as_ref().context("no reconciler")?.program.log()?;
    let told: Vec<_> = log.lines().filter(|line| line.contains(&held) || line.contains(&brief)).collect();
    let complaints = told.iter().filter(|line| line.contains("WARN") || line.contains("ERROR")).count();
    assert!(complaints == 0 && told.len() <= 4 * names.len(), "{told:#?}");
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}

// ---- objects that others write ----

const WANTED_TYPE: &str = "credential.devops.kubesphere.io/basic-auth";
const SENT_TYPE: &str = "will-be-modify-by-kyverno";
const ORIGIN: &str = "kubed.appscode.com/origin.namespace";
const ORIGIN_NAMESPACE: &str = "kubesphere-devops-system";
const FINALIZER: &str = "finalizers.kubesphere.io/credential";

/// The case that a Kyverno policy is known for, word for word.
#[tokio::test]
async fn a_policy_corrects_what_another_tool_writes_and_writes_again() -> Result<()> {
    let scene = STAGE.scene("policy").await?;
    let namespace = scene.namespace().await?;
    create_namespace(&scene.client, ORIGIN_NAMESPACE, &[]).await?;
    let tool = scene.setting.control_plane.user("syncer", &["system:masters"])?.client().await?;
    let theirs: Api<Secret> = Api::namespaced(tool.clone(), &namespace);
    let sent = |name: &str, password: &str| -> Result<Secret> {
        Ok(serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Secret", "type": SENT_TYPE, "stringData": {"password": password},
            "metadata": {"name": name, "labels": {ORIGIN: ORIGIN_NAMESPACE}},
        }))?)
    };
    let params = PostParams::default();
    theirs.create(&params, &sent("older", "one")?).await?;
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "Secret"}],
                "objectSelector": {"matchLabels": {ORIGIN: ORIGIN_NAMESPACE}},
                "excludeNamespaces": [ORIGIN_NAMESPACE],
            },
            "transform": {
                "type": WANTED_TYPE, "labels": {"set": {"participant": "kyverno"}}, "finalizers": [FINALIZER],
            },
            "failurePolicy": "Fail",
        },
    });
    apply(&scene.client, &policy).await?;
    wait_active(&scene.client, &scene.tag).await?;
    wait_rewritten(&theirs, &sent("probe", "x")?).await?;

    let corrected = |secret: &Secret, password: &str| {
        let is = (secret.type_.as_deref(), label(secret, "participant"), value(secret, "password"));
        assert_eq!(is, (Some(WANTED_TYPE), Some("kyverno"), Some(password.to_owned())));
        assert_eq!(secret.finalizers(), [FINALIZER]);
    };
    corrected(&theirs.create(&params, &sent("basic", "one")?).await?, "one");
    // The tool knows nothing of it: it sends what it has, its own type too, by every verb there is.
    let replaced = theirs.replace("basic", &params, &sent("basic", "two")?).await?;
    corrected(&replaced, "two");
    let again = theirs.replace("basic", &params, &sent("basic", "two")?).await?;
    assert_eq!(version(&again), version(&replaced), "sent again, nothing changes");
    let patch =
        json!({"type": SENT_TYPE, "stringData": {"password": "three"}, "metadata": {"labels": {"participant": null}}});
    corrected(&merge(&theirs, "basic", patch).await?, "three");
    let apply_as = PatchParams::apply("syncer").force();
    corrected(&theirs.patch("basic", &apply_as, &Patch::Apply(&sent("basic", "four")?)).await?, "four");
    corrected(&theirs.patch("fresh", &apply_as, &Patch::Apply(&sent("fresh", "one")?)).await?, "one");

    // Neither where the policy leaves objects alone nor what it isn't for.
    let origin: Api<Secret> = Api::namespaced(tool, ORIGIN_NAMESPACE);
    let mut other = sent("other", "one")?;
    other.metadata.labels = Some([(ORIGIN.to_owned(), "elsewhere".to_owned())].into());
    for left in [origin.create(&params, &sent("basic", "one")?).await?, theirs.create(&params, &other).await?] {
        assert_eq!((left.type_.as_deref(), label(&left, "participant")), (Some(SENT_TYPE), None));
        assert!(left.finalizers().is_empty());
    }

    // One that was stored before with another type can be edited, and whoever does so is told.
    let older = theirs.replace("older", &params, &sent("older", "two")?).await?;
    assert_eq!((older.type_.as_deref(), value(&older, "password").as_deref()), (Some(SENT_TYPE), Some("two")));
    assert_eq!((label(&older, "participant"), older.finalizers()), (Some("kyverno"), &[FINALIZER.to_owned()][..]));
    let annotate = ["annotate", "secret", "older", "example.com/note=x", "-n", &namespace];
    let told = kubectl(&scene.setting.control_plane, annotate)?;
    assert!(told.contains("Warning") && told.contains(SENT_TYPE) && told.contains(&scene.tag), "{told}");

    // Its finalizer is kept while it lives; when it is to go, the owner takes it off, and it goes.
    let without = json!({"metadata": {"finalizers": null}});
    let kept = merge(&theirs, "basic", without.clone()).await?;
    assert_eq!(kept.finalizers(), [FINALIZER]);
    for name in ["basic", "fresh", "older"] {
        delete(&theirs, name).await?;
        assert!(theirs.get(name).await?.metadata.deletion_timestamp.is_some());
        merge(&theirs, name, without.clone()).await?;
        assert!(theirs.get_opt(name).await?.is_none(), "{name}");
    }
    Ok(())
}

/// Waits until the policy says that it is in force.
async fn wait_active(client: &kube::Client, policy: &str) -> Result<()> {
    let policies: Api<TransformPolicy> = Api::all(client.clone());
    wait_for(policies, policy.to_owned(), |policy| {
        let conditions = policy.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True")
    })
    .await?;
    Ok(())
}

/// The API server takes a moment to know of a new hook: waits until this Secret would come out with another type.
async fn wait_rewritten(secrets: &Api<Secret>, sent: &Secret) -> Result<()> {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    eventually(SOON, "the policy in force", || async {
        let answer = secrets.create(&dry_run, sent).await?;
        Ok((answer.type_ != sent.type_).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_policy_chooses_and_renames_keys_of_data() -> Result<()> {
    let scene = STAGE.scene("keys").await?;
    let namespace = scene.namespace().await?;
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "Secret"}],
                "objectSelector": {"matchLabels": {"scene": scene.tag}},
            },
            "transform": {"data": {"exclude": ["*.old"], "rename": {"token": "password"}}},
        },
    });
    apply(&scene.client, &policy).await?;
    wait_active(&scene.client, &scene.tag).await?;
    let secrets = scene.secrets(&namespace);
    let sent = |name: &str| -> Result<Secret> {
        Ok(serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Secret", "data": {"token": "b25l", "token.old": "eA=="}, "stringData": {"user": "robin"},
            "metadata": {"name": name, "labels": {"scene": scene.tag}},
        }))?)
    };
    let keys = |secret: &Secret| secret.data.iter().flat_map(BTreeMap::keys).cloned().collect::<Vec<_>>();
    eventually(SOON, "the policy in force", || async {
        let name = unique("probe");
        let created = secrets.create(&PostParams::default(), &sent(&name)?).await?;
        Ok((keys(&created) == ["password", "user"]).then_some(()))
    })
    .await?;
    secrets.create(&PostParams::default(), &sent("registry")?).await?;
    // The tool sends what it knows; what was renamed is replaced by what is sent.
    let replaced = secrets.replace("registry", &PostParams::default(), &sent("registry")?).await?;
    assert_eq!(
        (keys(&replaced), value(&replaced, "password").as_deref()),
        (vec!["password".into(), "user".into()], Some("one"))
    );
    Ok(())
}

#[tokio::test]
async fn without_a_webhook_a_policy_fails_or_is_ignored_as_it_says() -> Result<()> {
    let mut setting =
        Setting::start(ControlPlane::builder().controller_manager(false), Pair::builder().reconciler(false)).await?;
    let client = setting.control_plane.client().await?;
    let namespace = unique("team");
    create_namespace(&client, &namespace, &[]).await?;
    let secrets: Api<Secret> = of(&client, &namespace);
    let sent = |name: &str| -> Result<Secret> {
        Ok(serde_json::from_value(
            json!({"metadata": {"name": unique(name), "labels": {"policy": name}}, "type": "a/b"}),
        )?)
    };
    for failure_policy in ["Fail", "Ignore"] {
        let name = failure_policy.to_lowercase();
        let matched = json!({"kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"policy": name}}});
        let spec = json!({"match": matched, "transform": {"type": "c/d"}, "failurePolicy": failure_policy});
        let metadata = json!({"name": name});
        apply(
            &client,
            &json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": metadata, "spec": spec}),
        )
        .await?;
        wait_active(&client, &name).await?;
        wait_rewritten(&secrets, &sent(&name)?).await?;
    }
    setting.pair.webhooks[0].program.kill()?;
    let params = PostParams::default();
    let refused = secrets.create(&params, &sent("fail")?).await.expect_err("nobody is there to rewrite it");
    assert!(refused.to_string().contains("policies.mimeo.dev"), "{refused}");
    for name in ["ignore", "none"] {
        assert_eq!(secrets.create(&params, &sent(name)?).await?.type_.as_deref(), Some("a/b"));
    }
    setting.pair.webhooks.clear();
    setting.pair.start_webhook().await?;
    wait_rewritten(&secrets, &sent("fail")?).await?;
    // And without the policy, nothing.
    delete(&Api::<TransformPolicy>::all(client), "fail").await?;
    eventually(SOON, "the end of the policy", || async {
        let answer = secrets.create(&params, &sent("fail")?).await?;
        Ok((answer.type_.as_deref() == Some("a/b")).then_some(()))
    })
    .await
}
