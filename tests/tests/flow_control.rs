//! Mimeo's requests have seats of their own at the API server: what the manifests say of flow control is about these requests.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use mimeo_tests::{
    ControlPlane, Pair, create_namespace, create_secret, eventually,
    scenario::{SOON, rule, wait_for},
};
use serde_json::json;

/// How many requests the API server has served under each schema, by name and priority level.
async fn served(client: &Client) -> Result<BTreeMap<(String, String), f64>> {
    let text = client.request_text(http::Request::get("/metrics").body(Vec::new())?).await?;
    let label = |line: &str, name: &str| -> Option<String> {
        Some(line.split_once(&format!("{name}=\""))?.1.split_once('"')?.0.to_owned())
    };
    let lines = text.lines().filter(|line| line.starts_with("apiserver_flowcontrol_dispatched_requests_total{"));
    Ok(lines
        .filter_map(|line| {
            let names = (label(line, "flow_schema")?, label(line, "priority_level")?);
            Some((names, line.rsplit_once(' ')?.1.parse().ok()?))
        })
        .collect())
}

#[tokio::test]
async fn what_mimeo_asks_for_goes_by_its_own_schemas() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    let _pair = Pair::builder().shipped_rights().start(&control_plane).await?;
    let names = |schema: &str, level: &str| (schema.to_owned(), level.to_owned());
    let (writes, leases) = (names("mimeo", "mimeo"), names("mimeo-leases", "leader-election"));
    // The schemas are there a moment before the API server goes by them.
    let before = eventually(SOON, "renewals of Leases", || async {
        let served = served(&client).await?;
        if served.get(&leases).is_some_and(|count| *count > 1.0) { Ok(Some(served)) } else { bail!("{served:?}") }
    })
    .await?;
    create_namespace(&client, "platform", &[]).await?;
    create_secret(&client, "platform", "registry", &[("token", "one")]).await?;
    rule("registry").secret("platform", "registry").target(json!({"namespaces": ["team-*"]})).create(&client).await?;
    for number in 0..10 {
        let name = format!("team-{number}");
        create_namespace(&client, &name, &[]).await?;
        wait_for(Api::<Secret>::namespaced(client.clone(), &name), "registry".into(), |_: &Secret| true).await?;
    }
    let after = served(&client).await?;
    let of = |served: &BTreeMap<(String, String), f64>| served.get(&writes).copied().unwrap_or_default();
    // A write for each copy at least.
    assert!(of(&after) - of(&before) >= 10.0, "{before:?}, {after:?}");
    Ok(())
}
