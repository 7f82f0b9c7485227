//! Copies are created, follow their source, are restored and are deleted, on a real API server with
//! both programs running.

mod anew;
mod chains;
mod come;
mod follow;
mod go;
mod kinds;
mod policies;
mod rendered;
mod restarts;
pub(crate) mod told;

use std::collections::BTreeMap;

use anyhow::Result;
use mimeo_tests::scenario::{Scene, apply};
use serde_json::json;

use crate::stages::QUICK as STAGE;

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const BELONGS_TO: &str = "mimeo.dev/cluster-replication";
const CONFIRM: &str = "mimeo.dev/confirm-deletion";

async fn config_map(scene: &Scene<'_>, name: &str, data: &[(&str, &str)]) -> Result<()> {
    let data: BTreeMap<_, _> = data.iter().copied().collect();
    let metadata = json!({"name": name, "namespace": scene.home});
    apply(
        &scene.client,
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}),
    )
    .await?;
    Ok(())
}
