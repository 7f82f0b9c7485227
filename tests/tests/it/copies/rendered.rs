//! Contents of copies: variables, transforms, patches, and fields that are never copied.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{Api, ResourceExt as _};
use mimeo_api::ClusterReplicationStatus;
use mimeo_tests::planted::MARK;
use mimeo_tests::scenario::{
    annotation, apply, condition, label, merge, of, put, relabel, rule, uid, value, version,
    wait_for, wait_gone,
};
use serde_json::{Value, json};

use super::{BELONGS_TO, MANAGED_BY, STAGE, config_map};

#[tokio::test]
async fn each_namespace_fills_in_its_name_and_labels_and_one_that_cannot_is_reported() -> Result<()>
{
    let scene = STAGE.scene("fill-in").await?;
    let namespaces = scene.namespaces(3).await?;
    for (namespace, team) in namespaces.iter().zip(["red", "blue"]) {
        relabel(&scene.client, namespace, "team", Some(team)).await?;
    }
    scene.secret("registry", &[("token", "one")]).await?;
    let set = json!({"annotations": {"set": {"of": "$(source.name) for $(namespace.name)"}}});
    let rule = scene
        .rule()
        .secret(&scene.home, "registry")
        .named("registry-$(namespace.labels['team'])");
    rule.set("transform", set).create(&scene.client).await?;

    let status = scene.wait_counts(&scene.tag, [3, 2, 1]).await?;
    let failure = status.failures.first().context("no failure")?;
    assert_eq!(
        (&failure.namespace, failure.reason.as_str()),
        (&namespaces[2], "VariableUnset")
    );
    assert!(
        failure.message.contains("$(namespace.labels['team'])"),
        "{}",
        failure.message
    );
    for (namespace, team) in namespaces.iter().zip(["red", "blue"]) {
        let copy = scene
            .secrets(namespace)
            .get(&format!("registry-{team}"))
            .await?;
        assert_eq!(
            annotation(&copy, "of"),
            Some(format!("registry for {namespace}").as_str())
        );
        assert_eq!(value(&copy, "token").as_deref(), Some("one"));
    }
    relabel(&scene.client, &namespaces[2], "team", Some("green")).await?;
    scene.wait_synced(&scene.tag).await?;
    scene.secrets(&namespaces[2]).get("registry-green").await?;
    // Another name is another copy. Mimeo first writes the new copy and then deletes the old one.
    relabel(&scene.client, &namespaces[0], "team", Some("pink")).await?;
    scene
        .wait_secret(&namespaces[0], "registry-pink", |_| true)
        .await?;
    wait_gone(scene.secrets(&namespaces[0]), "registry-red").await
}

#[tokio::test]
async fn a_json_patch_is_the_last_word_and_one_that_does_not_fit_fails_each_copy() -> Result<()> {
    let scene = STAGE.scene("patch").await?;
    let namespace = scene.namespace().await?;
    config_map(
        &scene,
        "settings",
        &[("mode", "shared"), ("home", "x"), ("level", "1")],
    )
    .await?;
    let patch = json!([
        {"op": "test", "path": "/data/mode", "value": "shared"},
        {"op": "remove", "path": "/data/home"},
        {"op": "add", "path": "/data/place", "value": {"nested": "no"}},
        {"op": "replace", "path": "/data/place", "value": "$(source.name) in $(namespace.name)"},
        {"op": "add", "path": "/metadata/labels/example.com~1tier", "value": "$(namespace.labels['scene'])"},
    ]);
    let rule = scene
        .rule()
        .source("v1", "ConfigMap", &scene.home, "settings");
    rule.set("transform", json!({"jsonPatch": patch}))
        .create(&scene.client)
        .await?;

    scene.wait_synced(&scene.tag).await?;
    let copies: Api<ConfigMap> = of(&scene.client, &namespace);
    let place = format!("settings in {namespace}");
    let is = |copy: &ConfigMap, level: &str| {
        let data = copy
            .data
            .iter()
            .flatten()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect::<Vec<_>>();
        data == [
            ("level", level),
            ("mode", "shared"),
            ("place", place.as_str()),
        ] && label(copy, "example.com/tier") == Some(scene.tag.as_str())
            && label(copy, MANAGED_BY) == Some("mimeo")
    };
    assert!(is(&copies.get("settings").await?, "1"));
    merge(&copies, "settings", json!({"data": {"place": "elsewhere"}})).await?;
    wait_for(copies.clone(), "settings".into(), |copy| is(copy, "1")).await?;

    let sources: Api<ConfigMap> = of(&scene.client, &scene.home);
    merge(
        &sources,
        "settings",
        json!({"data": {"mode": "hunter2", "level": "2"}}),
    )
    .await?;
    let told = invalid(
        &scene
            .wait_condition(&scene.tag, "Ready", "False", "CopiesFailed")
            .await?,
    )?;
    assert!(
        told.contains("transform.jsonPatch[0]") && !told.contains("hunter2"),
        "{told}"
    );
    assert!(
        is(&copies.get("settings").await?, "1"),
        "what is there stays"
    );
    merge(&sources, "settings", json!({"data": {"mode": "shared"}})).await?;
    wait_for(copies, "settings".into(), |copy| is(copy, "2")).await?;
    Ok(())
}

/// Returns the message of the only failure of a status: a copy is invalid.
fn invalid(status: &ClusterReplicationStatus) -> Result<String> {
    assert_eq!(
        condition(status, "SourcesFound").map(|found| &*found.reason),
        Some("Found")
    );
    let [failure] = &status.failures[..] else {
        bail!("{:?}", status.failures)
    };
    assert_eq!(failure.reason, "Invalid");
    Ok(failure.message.clone())
}

/// The API server answers such writes with 500, although no retry helps.
#[tokio::test]
async fn a_value_that_cannot_be_decoded_is_invalid_and_no_outage() -> Result<()> {
    let scene = STAGE.scene("undecodable").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let metadata = json!({"name": "limits", "namespace": scene.home});
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"count/secrets": "100"}}});
    apply(&scene.client, &quota).await?;
    let [secret, quota] = ["secret", "quota"]
        .map(|name| rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag));
    let patched = |path: &str, value: &str| json!({"jsonPatch": [{"op": "add", "path": path, "value": value}]});
    let secret = secret.secret(&scene.home, "registry");
    let quota = quota.source("v1", "ResourceQuota", &scene.home, "limits");
    // Only the API server sees that this value is not base64.
    let label = json!({
        "labels": {"set": {"tier": "not-so"}},
        "jsonPatch": [{"op": "copy", "from": "/metadata/labels/tier", "path": "/data/x"}],
    });
    for (rule, transform, named) in [
        (&secret, label, "answered 500"),
        (&quota, patched("/spec/hard/cpu", "not-so"), "quantities"),
    ] {
        rule.clone()
            .set("transform", transform)
            .create(&scene.client)
            .await?;
        let told = invalid(
            &scene
                .wait_condition(&rule.name, "Ready", "False", "CopiesFailed")
                .await?,
        )?;
        assert!(told.contains(named) && !told.contains("not-so"), "{told}");
    }
    secret
        .clone()
        .set("transform", patched("/data/x", "eWVz"))
        .replace(&scene.client)
        .await?;
    scene
        .wait_secret(&namespace, "registry", |copy| {
            value(copy, "x").as_deref() == Some("yes")
        })
        .await?;
    scene.wait_synced(&secret.name).await?;
    Ok(())
}

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
    let labels: BTreeMap<_, _> = copy
        .labels()
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    let tag = scene.tag.as_str();
    let want = [
        ("app", "shop"),
        ("team", "green"),
        ("from", "home"),
        (MANAGED_BY, "mimeo"),
        (BELONGS_TO, tag),
    ];
    assert_eq!(labels, want.into_iter().collect());
    let annotations: Vec<_> = copy
        .annotations()
        .keys()
        .filter(|key| !key.starts_with("mimeo.dev/"))
        .collect();
    assert_eq!(annotations, ["example.com/note", "example.com/set"]);
    assert_eq!(copy.finalizers(), ["example.com/held"]);

    // The finalizer stays while the copy lives. Once the copy is being deleted, the owner of the
    // finalizer can remove it. Mimeo does not write in between.
    merge(
        &scene.secrets(&namespace),
        "registry",
        json!({"metadata": {"finalizers": null}}),
    )
    .await?;
    scene
        .wait_secret(&namespace, "registry", |copy| {
            copy.finalizers() == ["example.com/held"]
        })
        .await?;
    rule.delete(&scene.client).await?;
    let going = |copy: &Secret| copy.metadata.deletion_timestamp.is_some();
    let copy = scene.wait_secret(&namespace, "registry", going).await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    rule.create(&scene.client).await?;
    scene
        .wait_condition(&scene.tag, "Ready", "False", "CopiesFailed")
        .await?;
    assert_eq!(
        version(&scene.secrets(&namespace).get("registry").await?),
        version(&copy)
    );
    merge(
        &scene.secrets(&namespace),
        "registry",
        json!({"metadata": {"finalizers": null}}),
    )
    .await?;
    let old = uid(&copy);
    scene
        .wait_secret(&namespace, "registry", move |copy| uid(copy) != old)
        .await?;
    merge(
        &scene.secrets(&scene.home),
        "registry",
        json!({"metadata": {"finalizers": null}}),
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn keys_of_data_are_left_out_and_renamed() -> Result<()> {
    let scene = STAGE.scene("data").await?;
    let namespace = scene.namespace().await?;
    let keys = |copy: &Secret| {
        copy.data
            .iter()
            .flat_map(BTreeMap::keys)
            .cloned()
            .collect::<Vec<_>>()
    };
    scene
        .secret(
            "registry",
            &[
                ("user", "robin"),
                ("token", "one"),
                ("token.old", "none"),
                ("note", "x"),
            ],
        )
        .await?;
    let edits = json!({"include": ["user", "token*"], "exclude": ["*.old"], "rename": {"token": "password"}});
    let rule = scene
        .rule()
        .secret(&scene.home, "registry")
        .set("transform", json!({"data": edits}));
    rule.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let copy = scene.secrets(&namespace).get("registry").await?;
    assert_eq!(
        (keys(&copy), value(&copy, "password").as_deref()),
        (vec!["password".into(), "user".into()], Some("one"))
    );

    // An edit of fields that copies do not carry causes no write. A key that the source loses is
    // removed from the copy.
    let mark = scene.setting.control_plane.audit_mark().await?;
    merge(
        &scene.secrets(&scene.home),
        "registry",
        json!({"stringData": {"note": "y"}, "data": {"user": null}}),
    )
    .await?;
    let copy = scene
        .wait_secret(&namespace, "registry", |copy| keys(copy) == ["password"])
        .await?;
    merge(
        &scene.secrets(&scene.home),
        "registry",
        json!({"stringData": {"note": "z", "token": "two"}}),
    )
    .await?;
    scene
        .wait_secret(&namespace, "registry", |copy| {
            value(copy, "password").as_deref() == Some("two")
        })
        .await?;
    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let writes = events.iter().filter(|event| {
        event.is_write() && event.namespace == namespace && event.resource == "secrets"
    });
    assert_eq!(writes.count(), 2);

    // Two keys cannot get the same name. The existing copy stays.
    merge(
        &scene.secrets(&scene.home),
        "registry",
        json!({"stringData": {"password": "three"}}),
    )
    .await?;
    let twice = json!({"include": ["*"], "rename": {"token": "password"}});
    scene
        .rule()
        .secret(&scene.home, "registry")
        .set("transform", json!({"data": twice}))
        .replace(&scene.client)
        .await?;
    let message = invalid(
        &scene
            .wait_condition(&scene.tag, "Ready", "False", "CopiesFailed")
            .await?,
    )?;
    assert!(
        message.contains("\"password\"") && !message.contains("three"),
        "{message}"
    );
    let left = scene.secrets(&namespace).get("registry").await?;
    assert_eq!(
        (uid(&left), value(&left, "password").as_deref()),
        (uid(&copy), Some("two"))
    );
    Ok(())
}

/// Binary values are in `data` of a Secret and in `binaryData` of a `ConfigMap`. The edits work on
/// both, and keep the bytes.
#[tokio::test]
async fn keys_of_bytes_are_left_out_and_renamed_as_those_of_text() -> Result<()> {
    let scene = STAGE.scene("bytes").await?;
    let namespace = scene.namespace().await?;
    let map = |data: &Value, binary: &Value| {
        let metadata = json!({"namespace": scene.home, "name": "settings"});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data, "binaryData": binary})
    };
    let binary = json!({"a.bin": "/wD+", "old.bin": "/w==", "other": "/w=="});
    apply(
        &scene.client,
        &map(&json!({"user": "robin", "old.txt": "x"}), &binary),
    )
    .await?;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": scene.home, "name": "keys"}, "data": binary});
    apply(&scene.client, &secret).await?;
    let edits =
        json!({"include": ["user", "*.bin"], "exclude": ["old*"], "rename": {"a.bin": "b.bin"}});
    let rule = scene
        .rule()
        .source("v1", "ConfigMap", &scene.home, "settings")
        .secret(&scene.home, "keys");
    rule.set("transform", json!({"data": edits}))
        .create(&scene.client)
        .await?;

    let maps = of::<ConfigMap>(&scene.client, &namespace);
    let is = |copy: &ConfigMap, data: Value, binary: Value| {
        [
            json!(copy.data.clone().unwrap_or_default()),
            json!(copy.binary_data.clone().unwrap_or_default()),
        ] == [data, binary]
    };
    let first = |copy: &ConfigMap| is(copy, json!({"user": "robin"}), json!({"b.bin": "/wD+"}));
    wait_for(maps.clone(), "settings".to_owned(), first).await?;
    let copy = scene.wait_secret(&namespace, "keys", |_| true).await?;
    assert_eq!(json!(copy.data), json!({"b.bin": "/wD+"}));

    // A text value becomes binary, and a binary value becomes text. A key may be in only one of the
    // two maps.
    apply(
        &scene.client,
        &map(&json!({"a.bin": "text"}), &json!({"user": "/w=="})),
    )
    .await?;
    let swapped = |copy: &ConfigMap| is(copy, json!({"b.bin": "text"}), json!({"user": "/w=="}));
    wait_for(maps.clone(), "settings".to_owned(), swapped).await?;
    // So the same name cannot result from both maps.
    apply(
        &scene.client,
        &map(&json!({"b.bin": "text"}), &json!({"a.bin": "/w=="})),
    )
    .await?;
    let message = invalid(
        &scene
            .wait_condition(&scene.tag, "Ready", "False", "CopiesFailed")
            .await?,
    )?;
    assert!(message.contains("\"b.bin\""), "{message}");
    assert!(swapped(&maps.get("settings").await?), "what is there stays");
    Ok(())
}

#[tokio::test]
async fn marks_of_other_tools_are_never_carried() -> Result<()> {
    let scene = STAGE.scene("strip").await?;
    let namespace = scene.namespace().await?;
    let home = uid(&Api::<Namespace>::all(scene.client.clone())
        .get(&scene.home)
        .await?);
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
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;

    let copy = scene.secrets(&namespace).get("registry").await?;
    let labels: Vec<_> = copy.labels().keys().map(String::as_str).collect();
    assert_eq!(
        labels,
        ["app", MANAGED_BY, "app.kubernetes.io/name", BELONGS_TO]
    );
    assert_eq!(
        (label(&copy, MANAGED_BY), label(&copy, BELONGS_TO)),
        (Some("mimeo"), Some(scene.tag.as_str()))
    );
    let annotations: Vec<_> = copy.annotations().keys().map(String::as_str).collect();
    let ours = [
        "mimeo.dev/checksum",
        "mimeo.dev/cluster",
        "mimeo.dev/rule",
        "mimeo.dev/source",
    ];
    assert_eq!(
        annotations,
        ["example.com/note"]
            .into_iter()
            .chain(ours)
            .collect::<Vec<_>>()
    );
    let rule = format!("ClusterReplication/{}", scene.tag);
    assert_eq!(annotation(&copy, "mimeo.dev/rule"), Some(rule.as_str()));
    assert!(copy.owner_references().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_secret_of_a_mebibyte_is_copied_and_one_over_the_servers_limit_is_too_large() -> Result<()>
{
    let scene = STAGE.scene("size").await?;
    let namespace = scene.namespace().await?;
    let big = "x".repeat((1 << 20) - MARK.len());
    let source = scene.secret("big", &[("all", &big)]).await?;
    scene.secret("noted", &[("token", "one")]).await?;
    // All keys and values of the annotations together may have 256 KiB. With Mimeo's own
    // annotations, there is no room.
    let note = "x".repeat((256 << 10) - "example.com/note".len());
    merge(
        &scene.secrets(&scene.home),
        "noted",
        json!({"metadata": {"annotations": {"example.com/note": note}}}),
    )
    .await?;
    let [whole, over] = ["big", "noted"].map(|name| {
        rule(&format!("{}-{name}", scene.tag))
            .to_label("scene", &scene.tag)
            .secret(&scene.home, name)
    });
    whole.create(&scene.client).await?;
    scene.wait_synced(&whole.name).await?;
    assert_eq!(
        scene.secrets(&namespace).get("big").await?.data,
        source.data
    );

    let mark = scene.setting.control_plane.audit_mark().await?;
    over.create(&scene.client).await?;
    let status = scene
        .wait_condition(&over.name, "Ready", "False", "CopiesFailed")
        .await?;
    let failure = status.failures.first().context("no failure")?;
    assert_eq!(
        (failure.namespace.as_str(), failure.name.as_str()),
        (namespace.as_str(), "noted")
    );
    assert_eq!(failure.reason, "TooLarge", "{failure:?}");
    // Mimeo does not retry a copy that cannot fit. It writes the copy once the source is smaller.
    put(&scene.secrets(&scene.home), "big", &[("all", "less")]).await?;
    scene
        .wait_secret(&namespace, "big", |copy| {
            value(copy, "all").as_deref() == Some("less")
        })
        .await?;
    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let tries = events
        .iter()
        .filter(|event| event.namespace == namespace && event.name == "noted" && event.is_write());
    assert_eq!(
        tries.filter(|event| scene.setting.is_ours(event)).count(),
        1
    );
    merge(
        &scene.secrets(&scene.home),
        "noted",
        json!({"metadata": {"annotations": null}}),
    )
    .await?;
    scene.wait_synced(&over.name).await?;
    Ok(())
}
