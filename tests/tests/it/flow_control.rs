//! Mimeo's requests have their own seats at the API server: the flow control objects in the
//! manifests match these requests.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use mimeo_tests::{
    ControlPlane, Pair, create_namespace, create_secret, eventually,
    scenario::{SOON, rule, wait_for},
};
use serde_json::json;

/// Returns how many requests the API server has served for each flow schema, by schema and priority
/// level.
async fn served(client: &Client) -> Result<BTreeMap<(String, String), f64>> {
    let text = client
        .request_text(http::Request::get("/metrics").body(Vec::new())?)
        .await?;
    let label = |line: &str, name: &str| -> Option<String> {
        Some(
            line.split_once(&format!("{name}=\""))?
                .1
                .split_once('"')?
                .0
                .to_owned(),
        )
    };
    let lines = text
        .lines()
        .filter(|line| line.starts_with("apiserver_flowcontrol_dispatched_requests_total{"));
    Ok(lines
        .filter_map(|line| {
            let names = (label(line, "flow_schema")?, label(line, "priority_level")?);
            Some((names, line.rsplit_once(' ')?.1.parse().ok()?))
        })
        .collect())
}

#[tokio::test]
async fn all_that_mimeo_asks_for_goes_by_its_own_schemas() -> Result<()> {
    let control_plane = ControlPlane::builder().audit(true).start().await?;
    let client = control_plane.client().await?;
    let pair = Pair::builder()
        .shipped_rights()
        .start(&control_plane)
        .await?;
    let names = |schema: &str, level: &str| (schema.to_owned(), level.to_owned());
    let (own, leases) = (
        names("mimeo", "mimeo"),
        names("mimeo-leases", "leader-election"),
    );
    let of =
        |served: &BTreeMap<(String, String), f64>| served.get(&own).copied().unwrap_or_default();
    // The schemas exist a moment before the API server uses them. Both counts must begin with the
    // same request.
    let (before, mark) = eventually(SOON, "renewals of Leases, and nothing else", || async {
        let before = served(&client).await?;
        let mark = control_plane.audit_mark().await?;
        let renewed = before.get(&leases).is_some_and(|count| *count > 1.0);
        if renewed && of(&served(&client).await?) <= of(&before) {
            return Ok(Some((of(&before), mark)));
        }
        bail!("{before:?}")
    })
    .await?;
    create_namespace(&client, "platform", &[]).await?;
    create_secret(&client, "platform", "registry", &[("token", "one")]).await?;
    rule("registry")
        .secret("platform", "registry")
        .target(json!({"namespaces": ["team-*"]}))
        .create(&client)
        .await?;
    for number in 0..10 {
        let name = format!("team-{number}");
        create_namespace(&client, &name, &[]).await?;
        wait_for(
            Api::<Secret>::namespaced(client.clone(), &name),
            "registry".into(),
            |_: &Secret| true,
        )
        .await?;
    }
    // Every read and write uses the schema. A request may be in flight between the two counts.
    eventually(
        SOON,
        "as many requests by the schema as Mimeo has made",
        || async {
            let events = control_plane.audit_since(&mark).await?;
            let asked: Vec<_> = events
                .iter()
                .filter(|event| is_mimeo(&event.user) && event.resource != "leases")
                .collect();
            let writes = asked.iter().filter(|event| event.is_write()).count();
            let counted = of(&served(&client).await?) - before;
            if writes >= 10 && (counted - f64::from(u32::try_from(asked.len())?)).abs() < 0.5 {
                return Ok(Some(()));
            }
            bail!(
                "{counted} by the schema of {} requests, {writes} of them writes",
                asked.len()
            )
        },
    )
    .await?;
    drop(pair);
    Ok(())
}

/// True if the user is the account of one of the two programs.
fn is_mimeo(user: &str) -> bool {
    user.rsplit_once(':')
        .is_some_and(|(_, name)| ["mimeo-webhook", "mimeo-reconciler"].contains(&name))
}
