//! A tenant who writes as many rules and grants as he can: others don't notice.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use mimeo_tests::scenario::{Stage, create, put, rule, value};
use mimeo_tests::{ControlPlane, Pair, create_secret};
use serde_json::json;
use tokio::time::timeout;

static STAGE: Stage = Stage::new(ControlPlane::builder, || Pair::builder().shipped_rights());

/// Of each.
const MANY: usize = 1_500;
/// Requests at once.
const AT_ONCE: usize = 48;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_thousand_rules_and_grants_of_a_tenant_keep_no_copy_of_others_waiting() -> Result<()> {
    let scene = STAGE.scene("flood").await?;
    let (tenant, team) = (scene.namespace().await?, scene.namespace().await?);
    scene.secret("first", &[("token", "one")]).await?;
    scene.secret("second", &[("token", "one")]).await?;
    let before =
        rule(&format!("{}-before", scene.tag)).secret(&scene.home, "first").target(json!({"namespaces": [team]}));
    before.create(&scene.client).await?;
    scene.wait_synced(&before.name).await?;

    let objects = (0..MANY).flat_map(|number| {
        let object = |kind: &str, spec| {
            let metadata = json!({"namespace": tenant, "name": format!("flood-{number}")});
            json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
        };
        let secret = json!({"apiVersion": "v1", "kind": "Secret"});
        let named = json!({"apiVersion": "v1", "kind": "Secret", "name": format!("source-{}", number % 100)});
        let targets = json!([{"namespaces": [&tenant, &team], "name": format!("copy-{number}")}]);
        [
            ("replications", object("Replication", json!({"sources": [named], "targets": targets}))),
            ("replicationgrants", object("ReplicationGrant", json!({"from": [{"namespaces": ["*"]}], "to": [secret]}))),
        ]
    });
    for number in 0..100 {
        create_secret(&scene.client, &tenant, &format!("source-{number}"), &[("token", "flood")]).await?;
    }
    let flood = stream::iter(objects.map(|(plural, object)| {
        let (client, path) = (scene.client.clone(), format!("namespaces/{tenant}/{plural}"));
        async move { create(&client, &path, &object).await }
    }))
    .buffer_unordered(AT_ONCE)
    .try_for_each(|_| async { Ok(()) });
    let others = async {
        // While it lasts: a rotation, and another rule. The deadline is no measure, but a tenant's work is far from done by then.
        put(&scene.secrets(&scene.home), "first", &[("token", "two")]).await?;
        scene.wait_secret(&team, "first", |copy| value(copy, "token").as_deref() == Some("two")).await?;
        let during = rule(&format!("{}-during", scene.tag)).secret(&scene.home, "second");
        let during = during.target(json!({"namespaces": [team]}));
        during.create(&scene.client).await?;
        scene.wait_secret(&team, "second", |copy| value(copy, "token").as_deref() == Some("one")).await?;
        scene.wait_synced(&during.name).await?;
        anyhow::Ok(())
    };
    let (flooded, served) = tokio::join!(timeout(Duration::from_mins(2), flood), others);
    flooded.context("the flood took too long")??;
    served?;

    // What he may have he gets: copies in his own namespace, and none in the other, which grants him nothing.
    scene
        .wait_secret(&tenant, &format!("copy-{}", MANY - 1), |copy| value(copy, "token").as_deref() == Some("flood"))
        .await?;
    let foreign = scene.secrets(&team).list(&kube::api::ListParams::default()).await?;
    ensure!(foreign.items.len() == 2, "{} Secrets", foreign.items.len());
    Ok(())
}
