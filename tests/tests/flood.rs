//! More rules, grants and policies than anybody needs, from somebody who may write them: others don't notice.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use mimeo_api::TransformPolicy;
use mimeo_tests::scenario::{SOON, Scene, Stage, apply, create, put, rule, value, wait_for};
use mimeo_tests::traffic::{create_patiently, pod};
use mimeo_tests::{ControlPlane, Pair, create_secret, eventually, unique};
use serde_json::{Value, json};
use tokio::time::timeout;

static STAGE: Stage = Stage::new(ControlPlane::builder, || Pair::builder().shipped_rights());

/// Of each.
const MANY: usize = 1_500;
/// Selectors, and objects that each of them finds.
const SELECTORS: usize = 100;
const SELECTED: usize = 20;
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
        async move {
            match create(&client, &path, &object).await {
                // More than count are refused.
                Err(kube::Error::Api(status)) if status.message.contains("ReplicationGrants of a namespace count") => {
                    Ok(1)
                }
                other => other.map(|_| 0),
            }
        }
    }))
    .buffer_unordered(AT_ONCE)
    .try_fold(0, |refused, one| async move { Ok(refused + one) });
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
    let refused: usize = flooded.context("the flood took too long")??;
    ensure!(refused > 0, "no grant was refused");
    served?;

    // What he may have he gets: copies in his own namespace, and none in the other, which grants him nothing.
    scene
        .wait_secret(&tenant, &format!("copy-{}", MANY - 1), |copy| value(copy, "token").as_deref() == Some("flood"))
        .await?;
    let foreign = scene.secrets(&team).list(&kube::api::ListParams::default()).await?;
    ensure!(foreign.items.len() == 2, "{} Secrets", foreign.items.len());
    Ok(())
}

/// Selectors, each of which finds as many Secrets as the tenant cares to make, in rules that all want copies of all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_a_tenants_selectors_keep_no_copy_of_others_waiting() -> Result<()> {
    let scene = STAGE.scene("selectors").await?;
    let (tenant, team) = (scene.namespace().await?, scene.namespace().await?);
    scene.secret("first", &[("token", "one")]).await?;
    let before = rule(&scene.tag).secret(&scene.home, "first").target(json!({"namespaces": [team]}));
    before.create(&scene.client).await?;
    scene.wait_synced(&before.name).await?;

    let selecting = |number: usize| {
        let metadata = json!({"namespace": tenant, "name": format!("flood-{number:03}")});
        let another = json!([{"key": format!("no-{number}"), "operator": "DoesNotExist"}]);
        let labels = json!({"matchLabels": {"flood": "yes"}, "matchExpressions": another});
        let sources = json!([{"apiVersion": "v1", "kind": "Secret", "selector": labels}]);
        let targets = json!([{"namespaces": [&tenant], "name": format!("$(source.name)-{number}")}]);
        json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication", "metadata": metadata,
            "spec": {"sources": sources, "targets": targets, "transform": {"labels": {"exclude": ["flood"]}}},
        })
    };
    // One after the other: they are refused as soon as the webhook has seen those that are there.
    let flood = async {
        let mut refused = 0;
        for number in 0..SELECTORS {
            match create(&scene.client, &format!("namespaces/{tenant}/replications"), &selecting(number)).await {
                Err(kube::Error::Api(status)) if status.message.contains("at most 32 selectors") => refused += 1,
                other => drop(other?),
            }
        }
        anyhow::Ok(refused)
    };
    let sources = stream::iter(0..SELECTED).map(|number| {
        let secrets = scene.secrets(&tenant);
        async move {
            let secret = json!({"metadata": {"name": format!("s{number}"), "labels": {"flood": "yes"}}});
            secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
            anyhow::Ok(())
        }
    });
    let sources = sources.buffer_unordered(8).try_collect::<()>();
    let others = async {
        put(&scene.secrets(&scene.home), "first", &[("token", "two")]).await?;
        scene.wait_secret(&team, "first", |copy| value(copy, "token").as_deref() == Some("two")).await?;
        scene.wait_synced(&before.name).await?;
        anyhow::Ok(())
    };
    let (refused, made, served) = tokio::join!(flood, sources, others);
    made?;
    served?;
    let refused = refused?;
    ensure!(refused >= SELECTORS - 40, "{refused} of {SELECTORS} were refused");

    // What counts is carried out, and no more: as many copies as the oldest rules make.
    scene.wait_secret(&tenant, &format!("s{}-0", SELECTED - 1), |_| true).await?;
    eventually(SOON, "the copies of 32 rules", || async {
        let copies = ListParams::default().labels("app.kubernetes.io/managed-by=mimeo");
        let found = scene.secrets(&tenant).list_metadata(&copies).await?.items.len();
        ensure!(found == SELECTED * 32, "{found}");
        Ok(Some(()))
    })
    .await
}

/// As many policies are created.
const POLICIES: usize = 3_000;
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
    stream::iter(0..POLICIES).map(create).buffer_unordered(AT_ONCE).try_collect::<()>().await?;

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
    said("Rejected", POLICIES + 1 - REGISTERED).await?;
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
