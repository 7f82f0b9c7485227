//! Replicas start and stop while users work.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use mimeo_node_tests::{Mimeo, Program};
use serde_json::json;

use crate::people::People;

/// The smallest number of namespaces, each with a pod.
const STORM: usize = 200;
const AT_ONCE: usize = 8;

#[tokio::test]
async fn webhooks_are_rolled_during_a_storm_of_namespaces_and_nobody_notices() -> Result<()> {
    // With this policy, the API server refuses a namespace if it cannot call the webhook.
    let mimeo = Mimeo::kustomized(&json!({"components": ["strict"]})).await?;
    let people = People::settle(&mimeo.client, "storm").await?;
    // Restarts the webhook again and again until the storm is over. Each restart lasts from the
    // command until no former pod is left.
    let rolled = async {
        let (mut times, mut meanwhile) = (0, 0);
        while people.moved_in() < STORM {
            let (before, old) = (people.moved_in(), pods(&mimeo).await?);
            mimeo.restart(Program::Webhook).await?;
            ensure!(
                pods(&mimeo).await?.is_disjoint(&old),
                "some of {old:?} were not replaced"
            );
            meanwhile += people.moved_in() - before;
            times += 1;
        }
        Ok((times, meanwhile))
    };
    let (names, (times, meanwhile)) = people.move_in_during(STORM, AT_ONCE, rolled).await?;
    eprintln!(
        "{} namespaces, {meanwhile} of them during {times} roll-outs",
        names.len()
    );
    ensure!(
        meanwhile > STORM / 2,
        "only {meanwhile} of {} came while pods were replaced",
        names.len()
    );
    people.have(&names, "first").await?;
    people.leave().await
}

/// Returns the names of the webhook's pods.
async fn pods(mimeo: &Mimeo) -> Result<BTreeSet<String>> {
    Ok(mimeo
        .pods(Program::Webhook)
        .await?
        .into_iter()
        .filter_map(|pod| pod.metadata.name)
        .collect())
}
