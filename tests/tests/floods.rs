//! More objects than anybody needs, from somebody who may create them: they cost their author, and nobody else what they have.

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use mimeo_api::TransformPolicy;
use mimeo_tests::{
    ControlPlane, Pair, eventually,
    scenario::{SOON, Scene, Stage, apply, value, wait_for},
    traffic::{create_patiently, pod},
    unique,
};
use serde_json::{Value, json};

static STAGE: Stage = Stage::new(ControlPlane::builder, Pair::builder);

/// As many as are created.
const FLOOD: usize = 3_000;
/// As many at once.
const AT_ONCE: usize = 32;
/// As many policies as the API server is told of.
const REGISTERED: usize = 256;

/// Gives Secrets with that label another one.
fn policy(name: &str, label: &str) -> Value {
    let matched = json!({
        "kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"policy": label}},
    });
    json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": name},
        "spec": {"match": matched, "transform": {"labels": {"set": {"rewritten": "yes"}}}},
    })
}

async fn wait_rewritten(scene: &Scene<'_>) -> Result<()> {
    eventually(SOON, "a rewritten Secret", || async {
        let sent = json!({"metadata": {"name": unique("sent"), "labels": {"policy": scene.tag}}});
        let stored = scene.secrets(&scene.home).create(&PostParams::default(), &serde_json::from_value(sent)?).await?;
        Ok(stored.metadata.labels.unwrap_or_default().contains_key("rewritten").then_some(()))
    })
    .await
}

#[tokio::test]
async fn three_thousand_policies_leave_older_ones_copies_and_pods_alone() -> Result<()> {
    let scene = STAGE.scene("policies").await?;
    let policies: Api<TransformPolicy> = Api::all(scene.client.clone());
    apply(&scene.client, &policy(&scene.tag, &scene.tag)).await?;
    wait_rewritten(&scene).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene.rule().secret(&scene.home, "registry").create(&scene.client).await?;
    scene.wait_condition(&scene.tag, "BarrierActive", "True", "Active").await?;

    // A second later than the first: age in whole seconds decides who is registered.
    let first = policies.get(&scene.tag).await?.metadata.creation_timestamp.context("no time")?;
    eventually(SOON, "a second", || async {
        Ok((jiff::Timestamp::now().as_second() > first.0.as_second()).then_some(()))
    })
    .await?;
    let create = async |number: usize| {
        let name = format!("{}-{number:04}", scene.tag);
        let object: TransformPolicy = serde_json::from_value(policy(&name, &name))?;
        policies.create(&PostParams::default(), &object).await.map(drop).context(name)
    };
    stream::iter(0..FLOOD).map(create).buffer_unordered(AT_ONCE).try_collect::<()>().await?;

    // In the midst of it all: a new namespace, its copy, and a pod that comes after it.
    let namespace = scene.namespace().await?;
    let (_, _) = create_patiently(&Api::namespaced(scene.client.clone(), &namespace), &pod("first")).await?;
    let copy: Secret = scene.secrets(&namespace).get("registry").await.context("a pod came before its copy")?;
    ensure!(value(&copy, "token").as_deref() == Some("one"));
    wait_rewritten(&scene).await?;
    // Whoever comes too late is told so.
    let is = |word: &'static str| {
        move |policy: &TransformPolicy| {
            let conditions = policy.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|ready| ready.type_ == "Ready" && ready.reason == word)
        }
    };
    let said = async |word: &'static str, count: usize| {
        eventually(SOON, format!("{count} policies that are {word}"), || async {
            let all = policies.list(&ListParams::default().match_any()).await?.items;
            let found = all.iter().filter(|policy| is(word)(policy)).count();
            ensure!(found == count, "{found}");
            Ok(Some(()))
        })
        .await
    };
    said("Active", REGISTERED).await?;
    said("Rejected", FLOOD + 1 - REGISTERED).await?;
    wait_for(policies.clone(), scene.tag.clone(), is("Active")).await?;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(scene.client.clone());
    let entries = configurations.get("mimeo-policies").await?.webhooks.unwrap_or_default().len();
    ensure!(entries == REGISTERED, "{entries}");

    policies.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    eventually(SOON, "no entries", || async {
        let left = configurations.get_opt("mimeo-policies").await?.and_then(|found| found.webhooks).unwrap_or_default();
        Ok(left.is_empty().then_some(()))
    })
    .await
}
