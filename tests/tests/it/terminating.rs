//! Namespaces in the middle of a long deletion. Any user may delete guarded copies there, and no
//! other copy has to wait.

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use mimeo_tests::scenario::{
    SOON, Setting, apply, delete, merge, of, put, value, version, wait_gone,
};
use mimeo_tests::traffic::refusal;
use mimeo_tests::{AuditEvent, ControlPlane, Pair, create_namespace, eventually};
use serde_json::json;

const REGISTRY: &str = "registry";

#[tokio::test]
async fn guarded_copies_may_go_with_their_namespace_and_no_other_waits_for_it() -> Result<()> {
    // Without a controller manager, objects of a terminating namespace stay until a client deletes
    // them.
    let control_plane = ControlPlane::builder()
        .controller_manager(false)
        .audit(true);
    let setting = Setting::start(control_plane, Pair::builder()).await?;
    let scene = setting.scene("going").await?;
    let (held, free) = (scene.namespace().await?, scene.namespace().await?);
    for name in [REGISTRY, "other"] {
        scene.secret(name, &[("token", "one")]).await?;
    }
    let rule = scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .secret(&scene.home, "other")
        .denying();
    rule.create(&scene.client).await?;
    scene.wait_synced(&rule.name).await?;
    scene
        .wait_condition(&rule.name, "PodGateActive", "True", "Active")
        .await?;
    let copies = scene.secrets(&held);
    let params = DeleteParams::default();
    let refused = refusal(|| copies.delete(REGISTRY, &params)).await?;
    assert!(
        refused.to_string().contains("copies.mimeo.dev"),
        "{refused}"
    );
    let metadata =
        json!({"name": "anchor", "namespace": held, "finalizers": ["example.com/anchor"]});
    apply(
        &scene.client,
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}),
    )
    .await?;

    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    delete(&namespaces, &held).await?;
    // Both programs learn it: the reconciler no longer counts the copies there, and the webhook lets
    // them be deleted.
    scene.wait_counts(&rule.name, [2, 2, 0]).await?;
    let mark = scene.setting.control_plane.audit_mark().await?;
    eventually(SOON, "the webhook to let a copy be deleted", || async {
        delete(&copies, REGISTRY).await.map(Some)
    })
    .await?;
    let changed = merge(
        &copies,
        "other",
        json!({"data": {"token": "eA=="}, "metadata": {"labels": null}}),
    )
    .await?;

    // Other namespaces get new content, and so does a new namespace.
    put(&scene.secrets(&scene.home), REGISTRY, &[("token", "two")]).await?;
    let late = scene.namespace().await?;
    for namespace in [&free, &late] {
        for (name, token) in [(REGISTRY, "two"), ("other", "one")] {
            scene
                .wait_secret(namespace, name, |copy| {
                    value(copy, "token").as_deref() == Some(token)
                })
                .await?;
        }
    }
    let status = scene.wait_counts(&rule.name, [4, 4, 0]).await?;
    assert!(status.failures.is_empty(), "{status:#?}");
    scene.wait_synced(&rule.name).await?;
    assert!(
        copies.get_opt(REGISTRY).await?.is_none(),
        "it isn't brought back"
    );
    assert_eq!(
        version(&copies.get("other").await?),
        version(&changed),
        "nor put right"
    );
    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let there = |event: &&AuditEvent| {
        scene.setting.is_ours(event) && event.is_write() && event.namespace == held
    };
    let writes: Vec<_> = events.iter().filter(there).collect();
    assert!(writes.is_empty(), "{writes:#?}");

    // The namespace controller does the same once all objects in the namespace are deleted.
    delete(&copies, "other").await?;
    let anchors: Api<ConfigMap> = of(&scene.client, &held);
    delete(&anchors, "anchor").await?;
    merge(
        &anchors,
        "anchor",
        json!({"metadata": {"finalizers": null}}),
    )
    .await?;
    finalize(&namespaces, &held).await?;
    wait_gone(namespaces, &held).await?;
    let status = serde_json::to_string(&scene.wait_counts(&rule.name, [4, 4, 0]).await?)?;
    assert!(!status.contains(&held), "{status}");
    // A new namespace of the same name is another one.
    create_namespace(&scene.client, &held, &[("scene", &scene.tag)]).await?;
    scene
        .wait_secret(&held, REGISTRY, |copy| {
            value(copy, "token").as_deref() == Some("two")
        })
        .await?;
    scene.wait_counts(&rule.name, [6, 6, 0]).await?;
    Ok(())
}

/// Removes the finalizers of a namespace.
async fn finalize(namespaces: &Api<Namespace>, name: &str) -> Result<()> {
    eventually(SOON, format!("{name} finalized"), || async {
        let mut namespace = namespaces.get(name).await?;
        namespace.spec.get_or_insert_default().finalizers = None;
        match namespaces
            .replace_subresource("finalize", name, &PostParams::default(), &namespace)
            .await
        {
            Ok(_) => Ok(Some(())),
            Err(error) => bail!("{error}"),
        }
    })
    .await
}
