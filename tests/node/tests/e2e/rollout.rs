//! Replicas come and go while people work.

use anyhow::Result;
use mimeo_node_tests::{Mimeo, Program};
use serde_json::json;

use crate::people::People;

/// At least as many namespaces, each with a pod.
const STORM: usize = 200;
const AT_ONCE: usize = 8;

#[tokio::test]
async fn webhooks_are_rolled_during_a_storm_of_namespaces_and_nobody_notices() -> Result<()> {
    // Strict: a namespace that the API server can't ask a webhook about is refused.
    let mimeo = Mimeo::kustomized(&json!({"components": ["strict"]})).await?;
    let people = People::settle(&mimeo.client, "storm").await?;
    let (names, ()) = people.move_in_during(STORM, AT_ONCE, mimeo.restart(Program::Webhook)).await?;
    people.have(&names, "first").await?;
    people.leave().await
}
