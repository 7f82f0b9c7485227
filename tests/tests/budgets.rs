//! What tenants may take of the programs' memory, driven to its end: as many of their rules and sources are held as the documents say, and
//! others go on.

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use mimeo_api::Replication;
use mimeo_tests::scenario::{SOON, Scene, Setting, apply, of, put, rule, wait_for};
use mimeo_tests::tenant::{Tenant, copying, has};
use mimeo_tests::traffic::{create_patiently, pod};
use mimeo_tests::{ControlPlane, Pair, eventually};
use serde_json::{Value, json};

/// What docs/lifecycle.md reckons for the reconciler under "Sizing": the program, and tenants.
const RECONCILER: u64 = (25 + 145) << 20;
/// And for the webhook: the program, reviews and connections, and tenants' rules.
const WEBHOOK: u64 = (25 + 145 + 35) << 20;

/// Tenants with a large source each, and rules that each make another copy of it.
const LARGE: usize = 12;
const GUISES: usize = 20;
/// With a source of so many bytes and three copies of it a namespace's 4 MiB are full, and by eight namespaces the 32 MiB of all.
const SIZE: usize = 1_000_000;
const COPIES: usize = 3;
const SERVED: usize = 8;

/// Tenants with rules as large as can be, and how many each tries to have.
const CROWDS: usize = 5;
const CROWD: usize = 45;

/// All that it takes without the budgets is some 240 MiB of copies alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_get_what_is_theirs_of_the_memory_and_no_more_and_others_notice_nothing() -> Result<()> {
    let mut setting = Setting::start(ControlPlane::builder(), Pair::builder().shipped_rights()).await?;
    let homes = {
        let scene = setting.scene("budgets").await?;
        let neighbour = Tenant::editor(&scene).await?;
        neighbour.secret("own", "one").await?;
        let mut own = copying(None, "own", &[&neighbour.home]);
        own["targets"][0]["name"] = json!("copy");
        neighbour.writes("replications", "own", &own).await?;
        neighbour.status("own", "Ready", "Synced").await?;
        scene.secret("registry", &[("token", "one")]).await?;
        let platform = scene.rule().secret(&scene.home, "registry").named("registry");
        platform.create(&scene.client).await?;
        scene.wait_condition(&platform.name, "BarrierActive", "True", "Active").await?;

        let mut tenants = Vec::new();
        for _ in 0..LARGE {
            tenants.push(Tenant::editor(&scene).await?);
        }
        for tenant in &tenants {
            for number in 0..GUISES {
                let spec = copying_map("large", &tenant.home, &format!("copy-{number:02}"));
                tenant.writes("replications", &format!("large-{number:02}"), &spec).await?;
            }
        }
        rules_are_held_as_far_as_they_have_room(&scene).await?;

        // All at once.
        try_join_all(tenants.iter().map(|tenant| large(&tenant.client, &tenant.home, 'a'))).await?;
        let homes: Vec<String> = tenants.iter().map(|tenant| tenant.home.clone()).collect();
        let served = settled(&scene, &homes).await?;
        // Before what they have is counted, so that the bound is what fails where nothing else bounds them.
        peaks(&scene)?;
        let want: Vec<usize> = (0..LARGE).map(|at| if at < SERVED { COPIES } else { 0 }).collect();
        ensure!(served == want, "{served:?}");

        // All change at once, and others meanwhile.
        let changes = tenants.iter().map(|tenant| large(&tenant.client, &tenant.home, 'b'));
        let others = others_go_on(&scene, &neighbour);
        let changed = async { try_join_all(changes).await.map(drop) };
        tokio::try_join!(changed, others)?;
        for tenant in &tenants[..SERVED] {
            let last = of::<ConfigMap>(&scene.client, &tenant.home);
            let new = |copy: &ConfigMap| copy.data.as_ref().is_some_and(|data| data["a"].starts_with('b'));
            wait_for(last, format!("copy-{:02}", COPIES - 1), new).await?;
        }
        // There is room left for what is small, be it new.
        let newcomer = Tenant::editor(&scene).await?;
        newcomer.secret("own", "one").await?;
        own["targets"][0]["namespaces"] = json!([newcomer.home]);
        newcomer.writes("replications", "own", &own).await?;
        newcomer.status("own", "Ready", "Synced").await?;
        // And where an older one goes, for the next.
        tenants[0].rules().delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        homes
    };
    let scene = setting.scene("next").await?;
    let want: Vec<usize> = (0..LARGE).map(|at| if (1..=SERVED).contains(&at) { COPIES } else { 0 }).collect();
    let is = async |scene: &Scene<'_>| {
        eventually(SOON, "room for the next", || async {
            let served = settled(scene, &homes).await?;
            ensure!(served == want, "{served:?}");
            Ok(Some(()))
        })
        .await
    };
    is(&scene).await?;
    peaks(&scene)?;
    drop(scene);

    // One that starts finds all of it there.
    let mut reconciler = setting.pair.reconciler.take().context("no reconciler")?;
    assert!(reconciler.program.stop(SOON).await?.success());
    setting.pair.start_reconciler().await?;
    let scene = setting.scene("again").await?;
    scene.secret("later", &[("token", "one")]).await?;
    let later = rule(&scene.tag).secret(&scene.home, "later").target(json!({"namespaces": [scene.home]})).named("copy");
    later.create(&scene.client).await?;
    scene.wait_secret(&scene.home, "copy", has("one")).await?;
    is(&scene).await?;
    peaks(&scene)
}

/// The spec of a Replication that copies a `ConfigMap` at home.
fn copying_map(source: &str, home: &str, name: &str) -> Value {
    let mut spec = copying(None, source, &[home]);
    spec["sources"][0]["kind"] = json!("ConfigMap");
    spec["targets"][0]["name"] = json!(name);
    spec
}

/// Makes a tenant's large source, or another one of it.
async fn large(client: &Client, home: &str, letter: char) -> Result<()> {
    let metadata = json!({"namespace": home, "name": "large"});
    let data = json!({"a": letter.to_string().repeat(SIZE)});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
    apply(client, &object).await.map(drop)
}

/// Of each of these how many of their large copies are there, once every rule says what became of it.
async fn settled(scene: &Scene<'_>, homes: &[String]) -> Result<Vec<usize>> {
    eventually(SOON, "a word about every large copy", || async {
        let mut all = Vec::new();
        for home in homes {
            let rules = of::<Replication>(&scene.client, home).list(&ListParams::default()).await?.items;
            let told = |word: &str| {
                let conditions = |rule: &Replication| rule.status.clone().unwrap_or_default().conditions;
                rules.iter().filter(|rule| conditions(rule).iter().any(|one| one.reason == word)).count()
            };
            let (made, refused) = (told("Synced"), told("SourceRefused"));
            ensure!(made + refused == rules.len(), "of {} in {home} {made} are made, {refused} refused", rules.len());
            all.push(made);
        }
        Ok(Some(all))
    })
    .await
}

/// That neither program ever took more than documented.
fn peaks(scene: &Scene<'_>) -> Result<()> {
    let pair = &scene.setting.pair;
    let reconciler = pair.reconciler.as_ref().context("no reconciler")?.program.peak_bytes()?;
    let webhook = pair.webhooks[0].program.peak_bytes()?;
    eprintln!("at most: reconciler {} MiB, webhook {} MiB", reconciler >> 20, webhook >> 20);
    ensure!(reconciler <= RECONCILER, "the reconciler took {} of {} MiB", reconciler >> 20, RECONCILER >> 20);
    ensure!(webhook <= WEBHOOK, "the webhook took {} of {} MiB", webhook >> 20, WEBHOOK >> 20);
    Ok(())
}

/// The largest rules, of sources that aren't there, by several tenants one after the other: some forty of each have room, and four
/// times that many of all.
async fn rules_are_held_as_far_as_they_have_room(scene: &Scene<'_>) -> Result<()> {
    let mut held = Vec::new();
    for _ in 0..CROWDS {
        let tenant = Tenant::editor(scene).await?;
        let sources: Vec<Value> = (0..32)
            .map(|at| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": format!("absent-{at:02}")}))
            .collect();
        let mut refused = 0;
        for number in 0..CROWD {
            let name = |at: usize| format!("$(source.name)-{number:02}-{at}");
            let targets: Vec<Value> = (0..8).map(|at| json!({"namespaces": [tenant.home], "name": name(at)})).collect();
            let spec = json!({"sources": sources, "targets": targets});
            match tenant.write("replications", &format!("crowd-{number:02}"), &spec).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.message.contains("older ones have taken") => refused += 1,
                Err(error) => return Err(error).context("a large rule"),
            }
        }
        // The webhook may hear of the last that fits a moment after the next is asked about: that one isn't held all the same.
        let rules = of::<Replication>(&scene.client, &tenant.home);
        let served = eventually(SOON, "a word about every large rule", || async {
            let mut served = 0;
            for rule in rules.list(&ListParams::default()).await?.items {
                let conditions = rule.status.unwrap_or_default().conditions;
                match conditions.iter().find(|one| one.type_ == "Ready").map(|one| &*one.reason) {
                    Some("InvalidSpec") => {}
                    Some("SourceNotFound") => served += 1,
                    other => bail!("{other:?}"),
                }
            }
            Ok(Some(served))
        })
        .await?;
        ensure!(refused + served + 2 >= CROWD, "{served} held, {refused} refused");
        held.push(served);
    }
    eprintln!("large rules held: {held:?}");
    let (each, all): (usize, usize) = (held[0], held.iter().sum());
    ensure!((36..=44).contains(&each) && held[..3] == [each; 3], "{held:?}");
    // What the rest is after four namespaces' is less than what one rule takes of each, and small rules were there before.
    ensure!((4 * each - 3..=4 * each + 3).contains(&all), "{held:?}");
    Ok(())
}

/// An older tenant, the platform, and pods of new namespaces.
async fn others_go_on(scene: &Scene<'_>, neighbour: &Tenant<'_>) -> Result<()> {
    put(&neighbour.secrets(), "own", &[("token", "two")]).await?;
    scene.wait_secret(&neighbour.home, "copy", has("two")).await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    scene.wait_secret(&neighbour.home, "registry", has("two")).await?;
    let new = scene.namespace().await?;
    create_patiently(&Api::namespaced(scene.client.clone(), &new), &pod("first")).await?;
    let copy = scene.secrets(&new).get("registry").await.context("a pod came before its copy")?;
    ensure!(has("two")(&copy), "it is an old one");
    Ok(())
}
