//! Tenants use up the limits of Replications. As many of their rules and sources count as the
//! documents say, other users notice nothing, and the programs' memory stays within its calculated
//! bound.

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use kube::api::ListParams;
use kube::{Api, Client};
use mimeo_api::Replication;
use mimeo_tests::scenario::{SOON, Scene, Setting, apply, of, put, rule};
use mimeo_tests::tenant::{Tenant, copying, has};
use mimeo_tests::traffic::{create_patiently, pod};
use mimeo_tests::{ControlPlane, Pair, eventually};
use serde_json::{Value, json};

use crate::stages::LOAD;

/// The reconciler's memory according to "Sizing" in docs/how-to/availability.md: the program, and the
/// namespaces that use up their limits.
const RECONCILER: u64 = (25 + 60 * CROWDS as u64) << 20;
/// The webhook's memory according to the same section: the program, reviews and connections, and
/// the rules of the same namespaces.
const WEBHOOK: u64 = (25 + 170 + 10 * CROWDS as u64) << 20;

/// The number of tenants with one source each, and of rules that each make another copy of it.
const LARGE: usize = 4;
const GUISES: usize = 10;
/// The size of a source that is too large for a Replication, and of one that is not.
const TOO_LARGE: usize = 1_000_000;
const FITS: usize = 200_000;

/// The number of tenants with the largest possible rules, the number of rules that each tries to
/// write, and the number that count: those with 10,240 copies in all.
const CROWDS: usize = 5;
const CROWD: usize = 45;
const COUNTING: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_use_up_their_own_limits_and_others_notice_nothing() -> Result<()> {
    let _turn = LOAD.lock().await;
    let mut setting =
        Setting::start(ControlPlane::builder(), Pair::builder().shipped_rights()).await?;
    let homes = {
        let scene = setting.scene("budgets").await?;
        let neighbour = Tenant::editor(&scene).await?;
        neighbour.secret("own", "one").await?;
        let mut own = copying(None, "own", &[&neighbour.home]);
        own["targets"][0]["copyName"] = json!("copy");
        neighbour.writes("replications", "own", &own).await?;
        neighbour.status("own", "Ready", "Synced").await?;
        scene.secret("registry", &[("token", "one")]).await?;
        let platform = scene
            .rule()
            .secret(&scene.home, "registry")
            .named("registry");
        platform.create(&scene.client).await?;
        scene
            .wait_condition(&platform.name, "PodGateActive", "True", "Active")
            .await?;

        let mut tenants = Vec::new();
        for _ in 0..LARGE {
            tenants.push(Tenant::editor(&scene).await?);
        }
        for tenant in &tenants {
            for number in 0..GUISES {
                let spec = copying_map("large", &tenant.home, &format!("copy-{number:02}"));
                tenant
                    .writes("replications", &format!("large-{number:02}"), &spec)
                    .await?;
            }
        }
        the_oldest_rules_of_each_namespace_count(&scene).await?;

        let homes: Vec<String> = tenants.iter().map(|tenant| tenant.home.clone()).collect();
        for (size, copies) in [(TOO_LARGE, 0), (FITS, GUISES)] {
            try_join_all(
                tenants
                    .iter()
                    .map(|tenant| large(&tenant.client, &tenant.home, size)),
            )
            .await?;
            are_made(&scene, &homes, copies).await?;
            peaks(&scene)?;
        }
        others_go_on(&scene, &neighbour).await?;
        // Another tenant has limits of its own.
        let newcomer = Tenant::editor(&scene).await?;
        newcomer.secret("own", "one").await?;
        own["targets"][0]["namespaces"] = json!([newcomer.home]);
        newcomer.writes("replications", "own", &own).await?;
        newcomer.status("own", "Ready", "Synced").await?;
        homes
    };

    // The new reconciler finds all of these objects at its start.
    let mut reconciler = setting.pair.reconciler.take().context("no reconciler")?;
    assert!(reconciler.program.stop(SOON).await?.success());
    setting.pair.start_reconciler().await?;
    let scene = setting.scene("again").await?;
    scene.secret("later", &[("token", "one")]).await?;
    let later = rule(&scene.tag)
        .secret(&scene.home, "later")
        .target(json!({"namespaces": [scene.home]}))
        .named("copy");
    later.create(&scene.client).await?;
    scene.wait_secret(&scene.home, "copy", has("one")).await?;
    are_made(&scene, &homes, GUISES).await?;
    peaks(&scene)
}

/// Returns the spec of a Replication that copies a `ConfigMap` within its namespace.
fn copying_map(source: &str, home: &str, name: &str) -> Value {
    let mut spec = copying(None, source, &[home]);
    spec["sources"][0]["kind"] = json!("ConfigMap");
    spec["targets"][0]["copyName"] = json!(name);
    spec
}

/// Writes a tenant's source with this size.
async fn large(client: &Client, home: &str, size: usize) -> Result<()> {
    let metadata = json!({"namespace": home, "name": "large"});
    let data = json!({"a": "a".repeat(size)});
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
    apply(client, &object).await.map(drop)
}

/// Waits until each of these namespaces has this many copies, and until its other rules report that
/// the source is refused.
async fn are_made(scene: &Scene<'_>, homes: &[String], copies: usize) -> Result<()> {
    eventually(SOON, format!("{copies} copies in each"), || async {
        for home in homes {
            let rules = of::<Replication>(&scene.client, home)
                .list(&ListParams::default())
                .await?
                .items;
            let told = |word: &str| {
                let conditions =
                    |rule: &Replication| rule.status.clone().unwrap_or_default().conditions;
                rules
                    .iter()
                    .filter(|rule| conditions(rule).iter().any(|one| one.reason == word))
                    .count()
            };
            let (made, refused) = (told("Synced"), told("SourceRefused"));
            ensure!(
                made == copies && made + refused == rules.len(),
                "of {} in {home} {made} are made, {refused} refused",
                rules.len()
            );
        }
        Ok(Some(()))
    })
    .await
}

/// Checks that neither program has ever used more memory than documented.
fn peaks(scene: &Scene<'_>) -> Result<()> {
    let pair = &scene.setting.pair;
    let reconciler = pair
        .reconciler
        .as_ref()
        .context("no reconciler")?
        .program
        .peak_bytes()?;
    let webhook = pair.webhooks[0].program.peak_bytes()?;
    eprintln!(
        "at most: reconciler {} MiB, webhook {} MiB",
        reconciler >> 20,
        webhook >> 20
    );
    ensure!(
        reconciler <= RECONCILER,
        "the reconciler took {} of {} MiB",
        reconciler >> 20,
        RECONCILER >> 20
    );
    ensure!(
        webhook <= WEBHOOK,
        "the webhook took {} of {} MiB",
        webhook >> 20,
        WEBHOOK >> 20
    );
    Ok(())
}

/// Several tenants write the largest rules one after another. The sources do not exist. Forty rules
/// of each tenant count.
async fn the_oldest_rules_of_each_namespace_count(scene: &Scene<'_>) -> Result<()> {
    let mut held = Vec::new();
    for _ in 0..CROWDS {
        let tenant = Tenant::editor(scene).await?;
        let sources: Vec<Value> = (0..32)
            .map(|at| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": format!("absent-{at:02}")}))
            .collect();
        let write = async |number: usize| {
            let name = |at: usize| format!("$(source.name)-{number:02}-{at}");
            let targets: Vec<Value> = (0..8)
                .map(|at| json!({"namespaces": [tenant.home], "copyName": name(at)}))
                .collect();
            let spec = json!({"sources": sources, "targets": targets});
            match tenant
                .write("replications", &format!("crowd-{number:02}"), &spec)
                .await
            {
                Ok(_) => Ok(false),
                Err(kube::Error::Api(status))
                    if status.message.contains("older Replications use that up") =>
                {
                    Ok(true)
                }
                Err(error) => Err(error).context("a large rule"),
            }
        };
        for number in 0..CROWD {
            write(number).await?;
        }
        // The webhook may see the last rule that fits some time after it judges the next one. The
        // next one still does not count.
        let rules = of::<Replication>(&scene.client, &tenant.home);
        let served = eventually(SOON, "a word about every large rule", || async {
            let mut served = 0;
            for rule in rules.list(&ListParams::default()).await?.items {
                let conditions = rule.status.unwrap_or_default().conditions;
                match conditions
                    .iter()
                    .find(|one| one.type_ == "Ready")
                    .map(|one| &*one.reason)
                {
                    Some("InvalidSpec") => {}
                    Some("SourceNotFound") => served += 1,
                    other => bail!("{other:?}"),
                }
            }
            Ok(Some(served))
        })
        .await?;
        // Once the webhook has seen them, it refuses another rule.
        let mut number = CROWD;
        eventually(SOON, "a refusal", || {
            number += 1;
            let write = write(number);
            async move { Ok(write.await?.then_some(())) }
        })
        .await?;
        held.push(served);
    }
    ensure!(held == [COUNTING; CROWDS], "{held:?}");
    Ok(())
}

/// Checks an older tenant, the platform, and pods of new namespaces.
async fn others_go_on(scene: &Scene<'_>, neighbour: &Tenant<'_>) -> Result<()> {
    put(&neighbour.secrets(), "own", &[("token", "two")]).await?;
    scene
        .wait_secret(&neighbour.home, "copy", has("two"))
        .await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    scene
        .wait_secret(&neighbour.home, "registry", has("two"))
        .await?;
    let new = scene.namespace().await?;
    create_patiently(&Api::namespaced(scene.client.clone(), &new), &pod("first")).await?;
    let copy = scene
        .secrets(&new)
        .get("registry")
        .await
        .context("a pod came before its copy")?;
    ensure!(has("two")(&copy), "it is an old one");
    Ok(())
}
