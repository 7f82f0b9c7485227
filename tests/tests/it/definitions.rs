//! CRDs that are older than the programs, for example after an upgrade that did not update them.

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mimeo_tests::scenario::{SOON, Setting};
use mimeo_tests::{ControlPlane, Pair, eventually, install_crd};
use serde_json::{from_value, to_value};

const RULES: &str = "clusterreplications.mimeo.dev";

/// Returns the present CRD of rules without the fields that an older one did not have.
fn older(current: &CustomResourceDefinition) -> Result<CustomResourceDefinition> {
    let mut older = to_value(current)?;
    let schema = &mut older["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for (parent, field) in [("spec", "suspend"), ("status", "plan")] {
        let fields = schema["properties"][parent]["properties"]
            .as_object_mut()
            .context("no fields")?;
        fields.remove(field).context(field)?;
    }
    Ok(from_value::<CustomResourceDefinition>(older)?)
}

#[tokio::test]
async fn the_reconciler_is_not_ready_and_says_what_to_do_until_definitions_are_up_to_date()
-> Result<()> {
    let mut setting = Setting::start(
        ControlPlane::builder().controller_manager(false),
        Pair::builder(),
    )
    .await?;
    let client = setting.control_plane.client().await?;
    let current = mimeo_api::crds()
        .into_iter()
        .find(|crd| crd.metadata.name.as_deref() == Some(RULES));
    let current = current.context("no definition of rules")?;
    install_crd(&client, &older(&current)?).await?;
    let reconciler = setting.pair.reconciler.as_mut().context("no reconciler")?;
    eventually(SOON, "a reconciler that isn't ready", || async {
        let answer = reconciler.ask("GET", "/readyz", None, "")?;
        if answer.ends_with("missing: definitions up to date\n") {
            Ok(Some(()))
        } else {
            bail!("{answer}")
        }
    })
    .await?;
    install_crd(&client, &current).await?;
    reconciler.ready().await?;
    let log = reconciler.program.log()?;
    let told: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("mimeo_runtime::definitions:") && line.contains(RULES))
        .collect();
    assert_eq!(told.len(), 2, "{told:#?}");
    for part in [
        "ERROR",
        "spec.suspend, status.plan",
        "kubectl apply -k manifests/crds",
    ] {
        assert!(told[0].contains(part), "{}", told[0]);
    }
    assert!(
        told[1].contains("has all that this program needs"),
        "{}",
        told[1]
    );
    Ok(())
}
