//! Copies follow their source and their rule, and are restored after other changes.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams, PostParams};
use mimeo_tests::eventually;
use mimeo_tests::scenario::{SOON, annotation, delete, label, merge, put, uid, value};
use serde_json::json;

use super::{MANAGED_BY, STAGE, policies::FINALIZER};

#[tokio::test]
async fn copies_follow_their_source() -> Result<()> {
    let scene = STAGE.scene("follow").await?;
    let namespace = scene.namespace().await?;
    scene
        .secret("registry", &[("token", "one"), ("old", "key")])
        .await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    let before = scene.wait_secret(&namespace, "registry", |_| true).await?;

    let change = json!({
        "metadata": {"labels": {"app": "shop"}, "annotations": {"example.com/note": "hello"}},
        "data": {"token": "dHdv", "old": null, "new": "a2V5"},
    });
    merge(&scene.secrets(&scene.home), "registry", change).await?;
    let after = scene
        .wait_secret(&namespace, "registry", |copy| {
            value(copy, "token").as_deref() == Some("two")
        })
        .await?;
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
    scene
        .secret("blue", &[("color", "blue"), ("only", "blue")])
        .await?;
    scene.secret("green", &[("color", "green")]).await?;
    scene
        .rule()
        .secret(&scene.home, "blue")
        .named("color")
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    let before = scene.secrets(&namespaces[0]).get("color").await?;

    // The new source does not exist yet. Until it does, the copies stay.
    scene
        .rule()
        .secret(&scene.home, "red")
        .named("color")
        .replace(&scene.client)
        .await?;
    scene
        .wait_condition(&scene.tag, "SourcesFound", "False", "SourceNotFound")
        .await?;
    scene
        .rule()
        .secret(&scene.home, "green")
        .named("color")
        .replace(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    for namespace in &namespaces {
        let after = scene.secrets(namespace).get("color").await?;
        assert_eq!(after.data.as_ref().map(BTreeMap::len), Some(1));
        assert_eq!(value(&after, "color").as_deref(), Some("green"));
        let from = format!("v1/Secret/{}/green", scene.home);
        assert_eq!(annotation(&after, "mimeo.dev/source"), Some(from.as_str()));
    }
    assert_eq!(
        uid(&scene.secrets(&namespaces[0]).get("color").await?),
        uid(&before)
    );
    Ok(())
}

#[tokio::test]
async fn whatever_is_done_to_a_copy_is_undone_in_place() -> Result<()> {
    let scene = STAGE.scene("heal").await?;
    let damages = [
        ("a value changed", json!({"data": {"token": "eHh4"}})),
        ("a key removed", json!({"data": {"token": null}})),
        (
            "a label changed",
            json!({"metadata": {"labels": {"app": "other"}}}),
        ),
        (
            "our label removed",
            json!({"metadata": {"labels": {MANAGED_BY: null}}}),
        ),
        (
            "our label changed",
            json!({"metadata": {"labels": {MANAGED_BY: "other"}}}),
        ),
        (
            "all marks removed",
            json!({"metadata": {"labels": null, "annotations": null}}),
        ),
        (
            "the checksum changed",
            json!({"metadata": {"annotations": {"mimeo.dev/checksum": "x"}}}),
        ),
        (
            "the rule's name changed",
            json!({"metadata": {"annotations": {"mimeo.dev/rule": "ClusterReplication/other"}}}),
        ),
    ];
    let namespaces = scene.namespaces(damages.len()).await?;
    let labels = json!({"metadata": {"labels": {"app": "shop"}}});
    scene
        .secret("registry", &[("token", "one"), ("user", "robin")])
        .await?;
    merge(&scene.secrets(&scene.home), "registry", labels).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
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
        let healed = scene
            .wait_secret(namespace, "registry", whole)
            .await
            .context(what)?;
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
    scene
        .secret("registry", &[("token", "one"), ("user", "robin")])
        .await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    let good = scene.secrets(&applied).get("registry").await?;
    let is_whole =
        |copy: &Secret| copy.data == good.data && copy.metadata.labels == good.metadata.labels;

    let other = PatchParams::apply("other");
    let data = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "registry"}, "data": {"token": "eHh4"}});
    let refused = scene
        .secrets(&applied)
        .patch("registry", &other, &Patch::Apply(&data))
        .await;
    assert!(
        matches!(refused, Err(kube::Error::Api(status)) if status.code == 409),
        "without force they conflict with us"
    );
    scene
        .secrets(&forced)
        .patch("registry", &other.clone().force(), &Patch::Apply(&data))
        .await?;
    let mut object = scene.secrets(&replaced).get("registry").await?;
    object.metadata.labels = None;
    object.data = None;
    object.metadata.managed_fields = None;
    scene
        .secrets(&replaced)
        .replace("registry", &PostParams::default(), &object)
        .await?;
    for namespace in [&applied, &forced, &replaced] {
        let copies = scene.secrets(namespace);
        eventually(SOON, "a whole copy", || async {
            Ok(is_whole(&copies.get("registry").await?).then_some(()))
        })
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
    plain
        .clone()
        .set("transform", transform)
        .create(&scene.client)
        .await?;
    let before = scene
        .wait_secret(&namespace, "registry", |copy| {
            label(copy, "tier") == Some("gold")
        })
        .await?;
    plain.replace(&scene.client).await?;
    let after = scene
        .wait_secret(&namespace, "registry", |copy| label(copy, "tier").is_none())
        .await?;
    assert!(annotation(&after, "example.com/note").is_none() && after.finalizers().is_empty());
    assert_eq!(uid(&after), uid(&before));
    Ok(())
}

#[tokio::test]
async fn a_deleted_copy_is_restored() -> Result<()> {
    let scene = STAGE.scene("restore").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    let before = scene.wait_secret(&namespace, "registry", |_| true).await?;
    delete(&scene.secrets(&namespace), "registry").await?;
    let old = uid(&before);
    let restored = scene
        .wait_secret(&namespace, "registry", move |copy| uid(copy) != old)
        .await?;
    assert_eq!(restored.data, before.data);
    Ok(())
}

#[tokio::test]
async fn what_others_add_to_a_copy_stays_theirs() -> Result<()> {
    let scene = STAGE.scene("share").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene.wait_secret(&namespace, "registry", |_| true).await?;
    let theirs = json!({"metadata": {"labels": {"team": "blue"}}, "data": {"extra": "eHh4"}});
    merge(&scene.secrets(&namespace), "registry", theirs).await?;

    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    let copy = scene
        .wait_secret(&namespace, "registry", |copy| {
            value(copy, "token").as_deref() == Some("two")
        })
        .await?;
    assert_eq!(value(&copy, "extra").as_deref(), Some("xxx"));
    assert_eq!(label(&copy, "team"), Some("blue"));
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}
