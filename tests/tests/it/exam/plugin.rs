//! `kubectl mimeo status` against the statuses that the reconciler wrote: both must count the same
//! copies, and name the same failures.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use kube::{Client, api::ListParams};
use mimeo_api::ClusterReplicationStatus;
use mimeo_tests::{
    ControlPlane, eventually,
    scenario::{SOON, any},
};
use serde_json::Value;

use crate::plugin::run;

/// A rule's copies that should exist, that are synced, and that have failed. Then the namespace and
/// the reason of each failure.
type Counts = ([u64; 3], Vec<(String, String)>);

/// Waits until the plugin and the statuses agree. Returns the number of compared rules.
pub async fn agrees(client: &Client, control_plane: &ControlPlane) -> Result<usize> {
    eventually(SOON, "kubectl mimeo status agrees", || async {
        let before = reported(client).await?;
        let told = run(control_plane, None, &["status", "-o", "json"])?.json()?;
        // A status that changed meanwhile may be compared with neither.
        ensure!(before == reported(client).await?, "the statuses change");
        for (rule, reported) in &before {
            let (counts, failures) = counted(&told, rule)?;
            ensure!(
                counts == reported.0,
                "{rule}: {reported:?}, not {counts:?}: {told:#}"
            );
            for failure in &reported.1 {
                ensure!(
                    failures.contains(failure),
                    "{rule}: no {failure:?}: {told:#}"
                );
            }
        }
        Ok(Some(before.len()))
    })
    .await
}

/// The counts in the statuses of all rules that are not suspended.
async fn reported(client: &Client) -> Result<BTreeMap<String, Counts>> {
    let mut all = BTreeMap::new();
    for kind in ["ClusterReplication", "Replication"] {
        let rules = any(client, "mimeo.dev/v1alpha1", kind, None)?;
        for rule in rules.list(&ListParams::default()).await? {
            if rule.data["spec"]["suspend"] == true {
                continue;
            }
            let meta = rule.metadata;
            let path = [Some(kind.to_owned()), meta.namespace, meta.name];
            let name = path.into_iter().flatten().collect::<Vec<_>>().join("/");
            let status = serde_json::from_value(rule.data["status"].clone());
            let status: ClusterReplicationStatus = status.unwrap_or_default();
            if status.observed_generation != meta.generation {
                bail!("{name} has no status for its present spec");
            }
            let copies = status.copies.unwrap_or_default();
            let counts = [copies.desired, copies.synced, copies.failed];
            let failures = status.failures.into_iter();
            let failures = failures.map(|failure| (failure.namespace, failure.reason));
            let counts = counts.map(|count| u64::try_from(count).unwrap_or(u64::MAX));
            all.insert(name, (counts, failures.collect()));
        }
    }
    Ok(all)
}

/// The plugin's counts of one rule.
fn counted(told: &Value, rule: &str) -> Result<Counts> {
    let list = |field: &str| told[field].as_array().cloned().unwrap_or_default();
    let line = list("rules").into_iter().find(|line| line["rule"] == rule);
    let line = line.with_context(|| format!("no {rule}: {told:#}"))?;
    let counts = ["copies", "synced", "failed"].map(|field| line[field].as_u64().unwrap_or(0));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let copies = list("copies")
        .into_iter()
        .filter(|copy| copy["rule"] == rule);
    let failures = copies.map(|copy| (text(&copy["namespace"]), text(&copy["state"])));
    Ok((counts, failures.collect()))
}
