//! The chart: installed, verified, upgraded and rolled back under load, and uninstalled.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Secret};
use kube::{Api, api::ListParams};
use mimeo_node_tests::Mimeo;
use mimeo_tests::scenario::of;

use crate::people::{PULL_SECRET, People};

const AT_ONCE: usize = 4;

#[tokio::test]
async fn a_release_is_installed_upgraded_rolled_back_and_uninstalled_under_load_and_nobody_notices() -> Result<()> {
    // Names are fixed, whoever installs.
    Mimeo::by_kustomize().await?.delete().await?;
    let mimeo = Mimeo::by_chart().await?;
    let people = People::settle(&mimeo.client, "release").await?;
    mimeo.helm(&["test", "mimeo"]).await?;

    let over = AtomicBool::new(false);
    let changed = async {
        let both = async {
            mimeo.apply(&["log.level=debug", "webhook.replicas=3"]).await?;
            mimeo.ready().await?;
            mimeo.helm(&["rollback", "mimeo", "1"]).await?;
            mimeo.ready().await
        };
        let both = both.await;
        over.store(true, Ordering::Relaxed);
        both
    };
    // Every refusal, and every pod before its copy, is an error.
    let (names, ()) = tokio::try_join!(people.keep_moving_in(0, AT_ONCE, &over), changed)?;
    people.rotate("second").await?;
    people.have(&names, "second").await?;

    // Uninstalled, it leaves its definitions, and with them rules and copies; and nothing that anybody waits for.
    mimeo.helm(&["uninstall", "mimeo", "--wait"]).await?;
    let hooks = Api::<MutatingWebhookConfiguration>::all(mimeo.client.clone()).list(&ListParams::default()).await?;
    ensure!(hooks.items.is_empty(), "{} registrations are left", hooks.items.len());
    for name in &names {
        of::<Secret>(&mimeo.client, name).get(PULL_SECRET).await?;
    }
    people.run_an_idle_pod(&people.namespace().await?, "app").await?;

    // Installed again, it goes on where it was.
    mimeo.apply(&[]).await?;
    mimeo.ready().await?;
    people.in_force().await?;
    people.rotate("third").await?;
    people.have(&names, "third").await?;
    people.leave().await?;
    mimeo.delete().await
}
