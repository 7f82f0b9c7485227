//! CRDs that are older than the programs, for example after an upgrade that did not update them.

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mimeo_tests::scenario::SOON;
use mimeo_tests::{ControlPlane, Program, eventually, install_crd};
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
    let control_plane = ControlPlane::builder()
        .controller_manager(false)
        .start()
        .await?;
    let client = control_plane.client().await?;
    for crd in mimeo_api::crds() {
        install_crd(&client, &crd).await?;
    }
    let current = mimeo_api::crds()
        .into_iter()
        .find(|crd| crd.metadata.name.as_deref() == Some(RULES));
    let current = current.context("no definition of rules")?;
    install_crd(&client, &older(&current)?).await?;
    let kubeconfig = control_plane.kubeconfig().display().to_string();
    let reconciler = Program::new("mimeo-reconciler")
        .env("KUBECONFIG", kubeconfig)
        .args(["--namespace", "default", "--ops-listen", "127.0.0.1:0"])
        .start()?;
    let last = |module: &str| -> Result<String> {
        let log = reconciler.log()?;
        let mut lines = log.lines().filter(|line| line.contains(module));
        Ok(lines.next_back().unwrap_or_default().to_owned())
    };
    let becomes = async |state: &str| {
        eventually(SOON, state, || async {
            let line = last("mimeo_runtime::readiness: ")?;
            if line.ends_with(state) {
                Ok(Some(()))
            } else {
                bail!("{line}")
            }
        })
        .await
    };
    becomes("not ready missing=\"definitions up to date\"").await?;
    let told = last("mimeo_runtime::definitions: ")?;
    for part in ["ERROR", RULES, "kubectl apply -k manifests/crds"] {
        assert!(told.contains(part), "{told}");
    }
    install_crd(&client, &current).await?;
    becomes(": ready").await?;
    let log = reconciler.log()?;
    let lines = log.lines();
    let told = lines.filter(|line| line.contains("mimeo_runtime::definitions: "));
    let told: Vec<&str> = told.collect();
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(
        told[1].contains("has all that this program needs"),
        "{}",
        told[1]
    );
    Ok(())
}
