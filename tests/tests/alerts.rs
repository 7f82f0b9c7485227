//! The alerts and the dashboard that are shipped: they ask for metrics that exist, and each alert has its page in the runbook.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Alert>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alert {
    #[serde(rename = "alert")]
    name: String,
    expr: String,
    #[serde(rename = "for")]
    pending: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).context(path.to_owned())
}

fn alerts() -> Result<Vec<Alert>> {
    let groups: Vec<Group> = serde_yaml::from_str(&read("manifests/chart/files/alerts.yaml")?)?;
    ensure!(groups.iter().all(|group| !group.name.is_empty()), "a group without a name");
    Ok(groups.into_iter().flat_map(|group| group.rules).collect())
}

/// Names and help of all metrics, as the README lists them.
fn metrics() -> Result<BTreeMap<String, String>> {
    let readme = read("README.md")?;
    let row = |line: &str| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        name.starts_with("mimeo_").then(|| (name.to_owned(), rest.to_owned()))
    };
    let metrics: BTreeMap<_, _> = readme.lines().filter_map(row).collect();
    ensure!(metrics.len() > 10, "{metrics:?}");
    Ok(metrics)
}

/// The words of an expression that begin like a metric of ours.
fn asked(expr: &str) -> BTreeSet<&str> {
    let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("mimeo_")).collect()
}

#[test]
fn alerts_ask_for_metrics_that_exist_and_for_labels_that_these_have() -> Result<()> {
    let metrics = metrics()?;
    for Alert { name: alert, expr, .. } in alerts()? {
        let asked = asked(&expr);
        // The API server's own, which tell of Mimeo's hooks alone.
        let hooks: Vec<_> = expr.split("apiserver_admission_webhook_").skip(1).collect();
        ensure!(!asked.is_empty() || !hooks.is_empty(), "{alert} asks for no metric of ours");
        for hook in hooks {
            let (name, labels) = hook.split_once('{').with_context(|| format!("{alert}: of all hooks"))?;
            ensure!(matches!(name, "rejection_count" | "fail_open_count"), "{alert}: {name}");
            ensure!(labels.starts_with("name=~\".*[.]mimeo[.]dev\""), "{alert}: of others' hooks");
        }
        for name in asked {
            let help = &metrics[metric(&metrics, name).with_context(|| format!("{alert}: there is no {name}"))?];
            let selected = expr.split(name).nth(1).and_then(|rest| rest.strip_prefix('{')?.split_once('}'));
            for matcher in selected.iter().flat_map(|(labels, _)| labels.split(',')) {
                let label = matcher.split(['=', '!']).next().unwrap_or_default();
                ensure!(help.contains(&format!("`{label}`")), "{alert}: {name} has no label {label}");
            }
        }
        for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
            ensure!(expr.matches(open).count() == expr.matches(close).count(), "{alert}: {open} and {close}: {expr}");
        }
    }
    Ok(())
}

#[test]
fn panels_ask_for_metrics_that_exist_and_every_metric_has_one() -> Result<()> {
    let metrics = metrics()?;
    let dashboard: Value = serde_json::from_str(&read("manifests/chart/files/dashboard.json")?)?;
    let mut unseen: BTreeSet<String> = metrics.keys().cloned().collect();
    // What is running is for tables of one's own; whether a rule waits for a person is told by an alert.
    unseen.retain(|name| !matches!(&**name, "mimeo_build_info" | "mimeo_rules_stalled"));
    for panel in dashboard["panels"].as_array().context("no panels")? {
        let title = panel["title"].as_str().context("a panel without a title")?;
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        ensure!(panel["type"] == "row" || !targets.is_empty(), "{title} shows nothing");
        for target in targets {
            let expr = target["expr"].as_str().context("no expression")?;
            let asked = asked(expr);
            ensure!(!asked.is_empty(), "{title} asks for no metric of ours");
            for name in asked {
                let name = metric(&metrics, name).with_context(|| format!("{title}: there is no {name}"))?;
                unseen.remove(name);
                for label in shown(expr).chain(target["legendFormat"].as_str().into_iter().flat_map(placeholders)) {
                    ensure!(
                        label == "le" || metrics[name].contains(&format!("`{label}`")),
                        "{title}: {name} has no {label}"
                    );
                }
            }
        }
    }
    ensure!(unseen.is_empty(), "no panel shows {unseen:?}");
    Ok(())
}

/// The metric of that name, or the histogram of which it is a part.
fn metric<'a>(metrics: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
    let of = |name: &str| metrics.get_key_value(name);
    let histogram = ["_bucket", "_count", "_sum"].iter().find_map(|part| name.strip_suffix(part));
    let histogram = histogram.and_then(of).filter(|(_, help)| help.contains("histogram"));
    of(name).or(histogram).map(|(name, _)| &**name)
}

/// The labels that an expression sums or takes the greatest by.
fn shown(expr: &str) -> impl Iterator<Item = &str> {
    let lists = expr.split(" by (").skip(1).filter_map(|rest| rest.split(')').next());
    lists.flat_map(|list| list.split(',')).map(str::trim)
}

/// Those that a legend names.
fn placeholders(legend: &str) -> impl Iterator<Item = &str> {
    legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next())
}

#[test]
fn every_alert_has_its_section_of_the_runbook_and_every_section_its_alert() -> Result<()> {
    let runbook = read("docs/runbook.md")?;
    let mut sections: BTreeMap<&str, &str> =
        runbook.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap_or((section, ""))).collect();
    for Alert { name: alert, pending, labels, annotations, .. } in alerts()? {
        let section = sections.remove(&*alert).with_context(|| format!("the runbook has no section {alert}"))?;
        for part in ["**What it means.**", "**What users notice.**", "**Find the cause.**", "**Mend it.**"] {
            ensure!(section.contains(part), "{alert} lacks {part}");
        }
        ensure!(section.contains("\n    "), "{alert} has no command");
        let url = format!("https://mimeo.dev/docs/runbook.md#{}", alert.to_lowercase());
        assert_eq!(annotations.get("runbook_url"), Some(&url), "{alert}");
        let said: BTreeSet<&str> = annotations.keys().map(String::as_str).collect();
        assert_eq!(said, ["description", "runbook_url", "summary"].into(), "{alert}");
        let severity = labels.get("severity").map(String::as_str);
        ensure!(matches!(severity, Some("critical" | "warning")) && labels.len() == 1, "{alert}: {labels:?}");
        ensure!(pending.strip_suffix('m').is_some_and(|minutes| minutes.parse::<u8>().is_ok()), "{alert}: {pending}");
    }
    ensure!(sections.is_empty(), "nothing alerts for {:?}", sections.keys());
    Ok(())
}
