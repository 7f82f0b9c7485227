//! `manifests/kube-state-metrics.yaml` asks for fields that the CRDs have.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::read;

/// The schema at a path of fields. For a list this is the schema of its items.
fn at<'a>(schema: &'a Value, path: &Value) -> Result<&'a Value> {
    let mut found = schema;
    for field in path.as_array().context("no path")? {
        let field = field.as_str().context("no field")?;
        let properties = &found["properties"];
        // Metadata is the same in all kinds, and in no CRD.
        if field == "metadata" {
            return Ok(found);
        }
        found = &properties[field];
        ensure!(!found.is_null(), "there is no field {field} of {path}");
        if found["type"] == "array" {
            found = &found["items"];
        }
    }
    Ok(found)
}

#[test]
fn every_field_is_in_the_schema_and_every_kind_is_asked_for() -> Result<()> {
    let config: Value = serde_yaml::from_str(&read("manifests/kube-state-metrics.yaml")?)?;
    let mut kinds = BTreeSet::new();
    for resource in config["spec"]["resources"].as_array().context("none")? {
        let kind = &resource["groupVersionKind"]["kind"];
        let crds = mimeo_api::crds();
        let crd = crds.iter().find(|crd| *kind == crd.spec.names.kind);
        let crd = serde_json::to_value(crd.with_context(|| format!("no kind {kind}"))?)?;
        let (group, version) = (&crd["spec"]["group"], &crd["spec"]["versions"][0]);
        assert_eq!(&resource["groupVersionKind"]["group"], group);
        assert_eq!(resource["groupVersionKind"]["version"], version["name"]);
        let schema = &version["schema"]["openAPIV3Schema"];
        for path in resource["labelsFromPath"]
            .as_object()
            .context("none")?
            .values()
        {
            at(schema, path)?;
        }
        for metric in resource["metrics"].as_array().context("none")? {
            let each = &metric["each"];
            if each["type"] == "Gauge" {
                let field = at(schema, &each["gauge"]["path"])?;
                let number = ["integer", "boolean"]
                    .iter()
                    .any(|kind| field["type"] == *kind);
                ensure!(
                    number || field["format"] == "date-time",
                    "{metric}: {field}"
                );
                continue;
            }
            let set = &each["stateSet"];
            let item = at(schema, &set["path"]).with_context(|| format!("{kind}"))?;
            for path in set["labelsFromPath"].as_object().context("none")?.values() {
                at(item, path)?;
            }
            let value = at(item, &set["valueFrom"])?;
            assert_eq!(set["list"], value["enum"], "{metric}");
        }
        kinds.insert(kind.to_string());
    }
    assert_eq!(kinds.len(), mimeo_api::crds().len());
    Ok(())
}
