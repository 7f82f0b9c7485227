//! The alerts, evaluated by Prometheus' own promtool. The series include cases in which an alert
//! must fire and similar cases in which it must not.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use mimeo_tests::{NAMESPACE, scenario};
use serde::Deserialize;
use serde_json::{Value, json};

use super::read;

/// One case of `cases.yaml`. The file explains the fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    alert: String,
    case: String,
    series: BTreeMap<String, String>,
    #[serde(default)]
    fires: Vec<u32>,
    #[serde(default)]
    silent: Vec<u32>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    clusters: bool,
}

impl Example {
    /// Returns the case in promtool's format.
    fn test(&self, own: &Value) -> Result<Value> {
        let mut labels: BTreeMap<String, String> = serde_json::from_value(own.clone())?;
        labels.extend(self.labels.clone());
        let at = |minutes: &u32, fires: bool| {
            let expected = if fires {
                json!([{"exp_labels": labels}])
            } else {
                json!([])
            };
            json!({"eval_time": format!("{minutes}m"), "alertname": self.alert, "exp_alerts": expected})
        };
        let fires = self.fires.iter().map(|minutes| at(minutes, true));
        let all: Vec<Value> = fires
            .chain(self.silent.iter().map(|minutes| at(minutes, false)))
            .collect();
        let series: Vec<Value> = self
            .series
            .iter()
            .map(|(series, values)| json!({"series": series, "values": values}))
            .collect();
        let name = format!("{}: {}", self.alert, self.case);
        Ok(json!({"name": name, "interval": "1m", "input_series": series, "alert_rule_test": all}))
    }
}

/// Returns the alerts as the chart renders them for one Prometheus with several clusters.
fn of_several_clusters() -> Result<Value> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/chart");
    let values =
        "metrics.prometheusRule.enabled=true,metrics.prometheusRule.aggregationLabels={cluster}";
    let mut helm = scenario::helm()?;
    helm.args([
        "template",
        "mimeo",
        chart,
        "--namespace",
        NAMESPACE,
        "--set",
        values,
    ]);
    let rendered = run(helm.args(["--show-only", "templates/monitoring.yaml"]))?;
    let rule: Value = serde_yaml::from_str(&rendered)?;
    Ok(rule["spec"]["groups"].clone())
}

fn run(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("failed to run {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(
        output.status.success(),
        "{command:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    Ok(text(&output.stdout))
}

#[test]
fn alerts_fire_on_what_they_are_for_and_on_nothing_else() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cases: Vec<Example> = serde_yaml::from_str(&read("tests/tests/it/alerts/cases.yaml")?)?;
    let file: Value = serde_yaml::from_str(&read("manifests/chart/files/alerts.yaml")?)?;
    for (clusters, mut groups) in [(false, file), (true, of_several_clusters()?)] {
        // Here promtool checks the alerts with their templates. Below, the templates are left out,
        // because each case would have to repeat their texts.
        let rules = folder.path().join("rules.yaml");
        fs::write(&rules, json!({"groups": groups}).to_string())?;
        run(Command::new(scenario::promtool()?)
            .args(["check", "rules", "--lint=none"])
            .arg(&rules))?;
        let mut labels = BTreeMap::new();
        for rule in groups
            .as_array_mut()
            .into_iter()
            .flatten()
            .filter_map(|group| group["rules"].as_array_mut())
            .flatten()
        {
            rule.as_object_mut()
                .context("no rule")?
                .remove("annotations");
            labels.insert(
                rule["alert"].as_str().context("no name")?.to_owned(),
                rule["labels"].clone(),
            );
        }
        fs::write(&rules, json!({"groups": groups}).to_string())?;
        let chosen: Vec<&Example> = cases
            .iter()
            .filter(|case| case.clusters == clusters)
            .collect();
        let tests = chosen
            .iter()
            .map(|case| case.test(labels.get(&case.alert).context(case.alert.clone())?));
        let tests: Vec<Value> = tests.collect::<Result<_>>()?;
        let tests =
            json!({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests});
        let file = folder.path().join("tests.yaml");
        fs::write(&file, tests.to_string())?;
        run(Command::new(scenario::promtool()?)
            .args(["test", "rules"])
            .arg(&file))?;
        if !clusters {
            // Each alert has a case in which it fires and a case in which it does not.
            let all: BTreeSet<&String> = labels.keys().collect();
            let fire = chosen
                .iter()
                .filter(|case| !case.fires.is_empty())
                .map(|case| &case.alert);
            assert_eq!(fire.collect::<BTreeSet<_>>(), all);
            let stay = chosen
                .iter()
                .filter(|case| case.fires.is_empty())
                .map(|case| &case.alert);
            assert_eq!(stay.collect::<BTreeSet<_>>(), all);
        }
    }
    Ok(())
}
