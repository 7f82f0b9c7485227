//! The slowest globs and patterns that the webhook accepts, on the largest sources. Other users do
//! not have to wait.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::PostParams;
use mimeo_tests::scenario::{Setting, create, merge, of, put, rule, value, wait_for};
use mimeo_tests::traffic::{pod, stubbornly};
use mimeo_tests::{ControlPlane, Pair};
use serde_json::{Value, json};

use crate::stages::LOAD;

/// The longest key of data.
const KEY: usize = 253;
/// The number of such keys that fit into a source of a Replication.
const KEYS: usize = 900;
/// The largest number of globs in one list.
const GLOBS: usize = 64;
/// The number of changes of the source.
const CHANGES: usize = 8;

/// Returns globs that almost match: all keys begin and end with the same letters.
fn globs() -> Vec<String> {
    (0..GLOBS)
        .map(|number| format!("a*{}b{number:03}*a", "a".repeat(120)))
        .collect()
}

/// Returns a pattern of nearly the largest permitted compiled size. It matches the scene's
/// namespaces.
fn pattern(tag: &str) -> String {
    format!("{tag}-[0-9a-f]+-[0-9]+|(a|b){{60}}never")
}

#[tokio::test]
async fn the_slowest_globs_over_the_largest_source_keep_nobody_waiting() -> Result<()> {
    let _turn = LOAD.lock().await;
    let setting = Setting::start(ControlPlane::builder(), Pair::builder()).await?;
    let scene = setting.scene("slow").await?;
    let (tenant, team) = (scene.namespace().await?, scene.namespace().await?);
    scene.secret("registry", &[("token", "0")]).await?;
    let others = rule(&scene.tag).secret(&scene.home, "registry");
    // One target matches, and 31 others do not.
    let never = json!({"namespacePattern": pattern(&format!("{}-never", scene.tag))});
    let others = others.target(json!({"namespacePattern": pattern(&scene.tag)}));
    let mut others = others.set("exclude", json!([never]));
    for _ in 1..32 {
        others = others.target(never.clone());
    }
    others.create(&scene.client).await?;
    scene.wait_counts(&scene.tag, [2, 2, 0]).await?;
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;

    let keys: BTreeMap<String, String> = (0..KEYS)
        .map(|number| {
            (
                format!("{}{number:06}a", "a".repeat(KEY - 7)),
                String::new(),
            )
        })
        .collect();
    let large = json!({"metadata": {"name": "large"}, "data": keys});
    let maps: Api<ConfigMap> = of(&scene.client, &tenant);
    maps.create(&PostParams::default(), &serde_json::from_value(large)?)
        .await?;
    let mut include = globs();
    include[GLOBS - 1] = "small".to_owned();
    let transform = json!({"data": {"include": include, "exclude": globs()}});
    let spec = |number: usize| {
        let sources = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "large"}]);
        let targets = json!([{"namespaces": [tenant], "copyName": format!("slow-{number}")}]);
        json!({"sources": sources, "targets": targets, "transform": transform})
    };
    for number in 0..4 {
        let metadata = json!({"namespace": tenant, "name": format!("slow-{number}")});
        let object = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication", "metadata": metadata, "spec": spec(number),
        });
        create(
            &scene.client,
            &format!("namespaces/{tenant}/replications"),
            &object,
        )
        .await?;
    }
    let small = |text: &str| {
        let text = text.to_owned();
        move |map: &ConfigMap| map.data == Some([("small".to_owned(), text.clone())].into())
    };
    for change in 1..=CHANGES {
        let text = change.to_string();
        merge(&maps, "large", json!({"data": {"small": text}})).await?;
        // For each change of the tenant's source, the platform's source changes once and a
        // namespace with a pod is created.
        put(&scene.secrets(&scene.home), "registry", &[("token", &text)]).await?;
        let new = scene.namespace().await?;
        let pods: Api<Pod> = of(&scene.client, &new);
        stubbornly(|| async { pods.create(&PostParams::default(), &pod("first")).await }).await?;
        for namespace in [&team, &new] {
            scene
                .wait_secret(namespace, "registry", |copy| {
                    value(copy, "token").as_deref() == Some(&text)
                })
                .await?;
        }
        wait_for(maps.clone(), "slow-0".to_owned(), small(&text))
            .await
            .context(text)?;
    }
    scene
        .wait_counts(&scene.tag, [2 + CHANGES, 2 + CHANGES, 0])
        .await?;
    let left: Vec<Value> = maps
        .get("slow-0")
        .await?
        .data
        .into_iter()
        .map(|data| json!(data))
        .collect();
    assert_eq!(left, [json!({"small": CHANGES.to_string()})]);
    Ok(())
}
