//! The alerts and the dashboard that are shipped: they ask for metrics that exist, and each alert has its page in the runbook.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fs,
    path::Path,
};

use anyhow::{Context, Result, anyhow, ensure};
use promql_parser::{
    label::{MatchOp, Matcher},
    parser::{Expr, LabelModifier, VectorSelector, parse},
    util::{ExprVisitor, walk_expr},
};
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

/// What an expression asks for.
#[derive(Default)]
struct Asked {
    /// Metrics, each with what is asked of its labels.
    selected: Vec<(String, Vec<Matcher>)>,
    /// Labels by which it sums, takes the greatest, or joins.
    grouped: BTreeSet<String>,
}

impl Asked {
    /// Of an expression as Prometheus, or Grafana with its variables, takes it.
    fn of(expr: &str) -> Result<Self> {
        let parsed = parse(&expr.replace("$__rate_interval", "5m")).map_err(|error| anyhow!("{expr}: {error}"))?;
        let mut asked = Self::default();
        let Ok(_) = walk_expr(&mut asked, &parsed);
        ensure!(!asked.selected.is_empty(), "{expr} asks for nothing");
        Ok(asked)
    }

    fn select(&mut self, VectorSelector { name, matchers, .. }: &VectorSelector) {
        let matchers = matchers.matchers.iter().chain(matchers.or_matchers.iter().flatten()).cloned().collect();
        self.selected.push((name.clone().unwrap_or_default(), matchers));
    }

    fn group(&mut self, modifier: Option<&LabelModifier>) {
        self.grouped.extend(modifier.iter().flat_map(|modifier| &modifier.labels().labels).cloned());
    }

    /// The metrics of ours that it asks for. All have the labels that they are asked for by.
    fn ours(&self, metrics: &BTreeMap<String, String>) -> Result<BTreeSet<String>> {
        let mut ours = BTreeSet::new();
        for (name, matchers) in &self.selected {
            if name.starts_with("apiserver_") {
                of_our_hooks(name, matchers)?;
                continue;
            }
            let (metric, help) = find(metrics, name).with_context(|| format!("there is no {name}"))?;
            let labels = matchers.iter().map(|matcher| &matcher.name).chain(&self.grouped);
            for label in labels.filter(|label| *label != "le") {
                ensure!(help.contains(&format!("`{label}`")), "{name} has no label {label}");
            }
            ours.insert(metric.to_owned());
        }
        Ok(ours)
    }
}

impl ExprVisitor for Asked {
    type Error = Infallible;

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, Infallible> {
        match expr {
            Expr::VectorSelector(selector) => self.select(selector),
            Expr::MatrixSelector(matrix) => self.select(&matrix.vs),
            Expr::Aggregate(aggregate) => self.group(aggregate.modifier.as_ref()),
            Expr::Binary(binary) => {
                self.group(binary.modifier.as_ref().and_then(|modifier| modifier.matching.as_ref()));
            }
            _ => {}
        }
        Ok(true)
    }
}

/// The API server's own metrics of admission tell of all hooks that there are: they are asked for Mimeo's alone.
fn of_our_hooks(name: &str, matchers: &[Matcher]) -> Result<()> {
    let known = ["apiserver_admission_webhook_rejection_count", "apiserver_admission_webhook_fail_open_count"];
    ensure!(known.contains(&name), "{name} isn't known");
    let ours = |matcher: &Matcher| {
        matcher.name == "name" && matches!(matcher.op, MatchOp::Re(_)) && matcher.value == ".*[.]mimeo[.]dev"
    };
    ensure!(matchers.iter().any(ours), "{name} of others' hooks");
    Ok(())
}

/// The metric of that name, or the histogram of which it is a part, with its help.
fn find<'a>(metrics: &'a BTreeMap<String, String>, name: &str) -> Option<(&'a str, &'a str)> {
    let of = |name: &str| metrics.get_key_value(name);
    let histogram = ["_bucket", "_count", "_sum"].iter().find_map(|part| name.strip_suffix(part));
    let histogram = histogram.and_then(of).filter(|(_, help)| help.contains("histogram"));
    of(name).or(histogram).map(|(name, help)| (&**name, &**help))
}

/// The words that stand between these two in a text.
fn between<'a>(text: &'a str, before: &'a str, after: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(move |rest| rest.split(after).next()).map(str::trim)
}

#[test]
fn alerts_ask_for_metrics_that_exist_and_for_labels_that_these_have() -> Result<()> {
    let metrics = metrics()?;
    for Alert { name: alert, expr, annotations, .. } in alerts()? {
        let asked = Asked::of(&expr).context(alert.clone())?;
        asked.ours(&metrics).context(alert.clone())?;
        for label in annotations.values().flat_map(|text| between(text, "$labels.", " ")) {
            ensure!(asked.grouped.contains(label), "{alert} tells of {label}, by which nothing is grouped");
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
            let asked = Asked::of(target["expr"].as_str().context("no expression")?)?;
            let ours = asked.ours(&metrics).context(title.to_owned())?;
            ensure!(!ours.is_empty(), "{title} asks for no metric of ours");
            unseen.retain(|name| !ours.contains(name));
            for label in between(target["legendFormat"].as_str().unwrap_or_default(), "{{", "}}") {
                ensure!(asked.grouped.contains(label), "{title} names {label}, by which nothing is grouped");
            }
        }
    }
    ensure!(unseen.is_empty(), "no panel shows {unseen:?}");
    Ok(())
}

#[test]
fn what_is_no_expression_is_found_out() {
    for (expr, told) in [
        ("sum by (reason (mimeo_copies_failed)", "reason"),
        ("rate(mimeo_copy_requests_total)", "expected type"),
        ("mimeo_rules{ready=~\"(\"}", "regex"),
        ("sum(mimeo_rules[$interval])", "$"),
    ] {
        let error = Asked::of(expr).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(told) && error.len() > expr.len() + 2, "{expr}: {error:?}");
    }
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
