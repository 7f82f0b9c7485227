//! The shipped alerts and dashboard. They query metrics that exist, the alerts fire for their
//! cause, and each alert has its section in the runbook. The reasons of rules are the same wherever
//! they are shown.

mod evaluated;
pub(crate) mod reasons;
mod state_metrics;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
};

use anyhow::{Context, Result, anyhow, ensure};
use mimeo_model::{condition::ConditionReason, id::RuleKind, outcome::FailureReason};
use mimeo_tests::{eventually, scenario::SOON};
use promql_parser::{
    label::{MatchOp, Matcher},
    parser::{Expr, LabelModifier, VectorSelector, parse},
    util::{ExprVisitor, walk_expr},
};
use serde::Deserialize;
use serde_json::Value;

use crate::{repository::read, stages::PLAIN};

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

fn alerts() -> Result<Vec<Alert>> {
    let groups: Vec<Group> = serde_yaml::from_str(&read("manifests/chart/files/alerts.yaml")?)?;
    ensure!(
        groups.iter().all(|group| !group.name.is_empty()),
        "a group without a name"
    );
    Ok(groups.into_iter().flat_map(|group| group.rules).collect())
}

/// Returns the names and help texts of all metrics in `docs/reference/metrics.md`.
fn metrics() -> Result<BTreeMap<String, String>> {
    let reference = read("docs/reference/metrics.md")?;
    let row = |line: &str| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        name.starts_with("mimeo_")
            .then(|| (name.to_owned(), rest.to_owned()))
    };
    let metrics: BTreeMap<_, _> = reference.lines().filter_map(row).collect();
    ensure!(metrics.len() > 10, "{metrics:?}");
    Ok(metrics)
}

/// Labels that no program sets: the bounds of histograms, and the labels that Prometheus adds.
const BESIDES: [&str; 4] = ["le", "cluster", "namespace", "instance"];

/// The metrics and labels in an expression.
#[derive(Default)]
struct Asked {
    /// Metrics, each with the matchers of its labels.
    selected: Vec<(String, Vec<Matcher>)>,
    /// Labels by which the expression sums, takes the maximum, or joins.
    grouped: BTreeSet<String>,
}

impl Asked {
    /// Parses an expression of Prometheus, or of Grafana with its variables.
    fn of(expr: &str) -> Result<Self> {
        let parsed = parse(&expr.replace("$__rate_interval", "5m"))
            .map_err(|error| anyhow!("{expr}: {error}"))?;
        let mut asked = Self::default();
        let Ok(_) = walk_expr(&mut asked, &parsed);
        ensure!(!asked.selected.is_empty(), "{expr} asks for nothing");
        Ok(asked)
    }

    fn select(&mut self, VectorSelector { name, matchers, .. }: &VectorSelector) {
        let matchers = matchers
            .matchers
            .iter()
            .chain(matchers.or_matchers.iter().flatten())
            .cloned()
            .collect();
        self.selected
            .push((name.clone().unwrap_or_default(), matchers));
    }

    fn group(&mut self, modifier: Option<&LabelModifier>) {
        self.grouped.extend(
            modifier
                .iter()
                .flat_map(|modifier| &modifier.labels().labels)
                .cloned(),
        );
    }

    /// Returns Mimeo's metrics in the expression. Fails if a metric lacks a label that the
    /// expression uses.
    fn ours(&self, metrics: &BTreeMap<String, String>) -> Result<BTreeSet<String>> {
        let mut ours = BTreeSet::new();
        for (name, matchers) in &self.selected {
            if name.starts_with("apiserver_") {
                of_our_hooks(name, matchers)?;
                continue;
            }
            // Another test finds these on the page of a program.
            if name.starts_with("process_") {
                continue;
            }
            let (metric, help) =
                find(metrics, name).with_context(|| format!("there is no {name}"))?;
            let labels = matchers
                .iter()
                .map(|matcher| &matcher.name)
                .chain(&self.grouped);
            for label in labels.filter(|label| !BESIDES.contains(&label.as_str())) {
                ensure!(
                    help.contains(&format!("`{label}`")),
                    "{name} has no label {label}"
                );
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
                self.group(
                    binary
                        .modifier
                        .as_ref()
                        .and_then(|modifier| modifier.matching.as_ref()),
                );
            }
            _ => {}
        }
        Ok(true)
    }
}

/// The API server's admission metrics cover all webhooks. The expression must select only those of
/// Mimeo.
fn of_our_hooks(name: &str, matchers: &[Matcher]) -> Result<()> {
    let known = ["rejection_count", "fail_open_count", "request_total"];
    let known = known.map(|name| format!("apiserver_admission_webhook_{name}"));
    ensure!(
        known.iter().any(|known| known == name),
        "{name} isn't known"
    );
    let ours = |matcher: &Matcher| {
        matcher.name == "name"
            && matches!(matcher.op, MatchOp::Re(_))
            && matcher.value == ".*[.]mimeo[.]dev"
    };
    ensure!(matchers.iter().any(ours), "{name} of others' hooks");
    Ok(())
}

/// Returns the metric of that name, or the histogram that it is a part of, with its help.
fn find<'a>(metrics: &'a BTreeMap<String, String>, name: &str) -> Option<(&'a str, &'a str)> {
    let of = |name: &str| metrics.get_key_value(name);
    let histogram = ["_bucket", "_count", "_sum"]
        .iter()
        .find_map(|part| name.strip_suffix(part));
    let histogram = histogram
        .and_then(of)
        .filter(|(_, help)| help.contains("histogram"));
    of(name)
        .or(histogram)
        .map(|(name, help)| (&**name, &**help))
}

/// The values that labels may have.
struct Words {
    /// Values of labels that the programs show completely, from the start or soon after. The key is
    /// the label's name.
    shown: BTreeMap<String, BTreeSet<String>>,
    /// The source file that names the reasons of failed watches.
    watches: String,
}

impl Words {
    async fn of_the_programs() -> Result<Self> {
        let pair = &PLAIN.get().await?.pair;
        // A leader also shows the metrics that only a leader has.
        let reconciler = pair.reconciler.as_ref().context("no reconciler")?;
        eventually(SOON, "a leader", || async {
            let text = reconciler.metrics()?;
            Ok(text
                .lines()
                .any(|line| line == "mimeo_leader 1")
                .then_some(()))
        })
        .await?;
        let mut shown: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for replica in pair.webhooks.iter().chain(&pair.reconciler) {
            let text = replica.metrics()?;
            let labels = text.lines().filter_map(|line| {
                line.strip_prefix("mimeo_")?
                    .split_once('{')?
                    .1
                    .split_once('}')
            });
            for (label, word) in labels
                .flat_map(|(labels, _)| labels.split(','))
                .filter_map(|one| one.split_once('='))
            {
                shown
                    .entry(label.to_owned())
                    .or_default()
                    .insert(word.trim_matches('"').to_owned());
            }
        }
        Ok(Self {
            shown,
            watches: read("shared/runtime/src/watch/health.rs")?,
        })
    }

    /// True if a label of this metric can have this value. With a wrong value, an alert would never
    /// fire.
    fn know(&self, metric: &str, label: &str, word: &str) -> bool {
        match (label, metric) {
            ("kind" | "rule_kind", _) => RuleKind::ALL.iter().any(|kind| kind.to_string() == word),
            ("reason", "mimeo_copies_failed") => FailureReason::ALL
                .iter()
                .any(|reason| reason.as_str() == word),
            ("reason", "mimeo_watch_failures_total") => {
                self.watches.contains(&format!("\"{word}\""))
            }
            // A rule without a status has neither value yet.
            ("reason", _) => {
                ConditionReason::ALL
                    .iter()
                    .any(|reason| reason.as_str() == word)
                    || word == "Unknown"
            }
            ("ready", _) => ["True", "False", "Unknown"].contains(&word),
            _ => self
                .shown
                .get(label)
                .is_some_and(|shown| shown.contains(word)),
        }
    }
}

/// Returns the texts between these two.
fn between<'a>(text: &'a str, before: &'a str, after: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(before)
        .skip(1)
        .filter_map(move |rest| rest.split(after).next())
        .map(str::trim)
}

#[test]
fn alerts_ask_for_metrics_that_exist_and_for_labels_that_these_have() -> Result<()> {
    let metrics = metrics()?;
    for Alert {
        name: alert,
        expr,
        annotations,
        ..
    } in alerts()?
    {
        let asked = Asked::of(&expr).context(alert.clone())?;
        asked.ours(&metrics).context(alert.clone())?;
        for label in annotations
            .values()
            .flat_map(|text| between(text, "$labels.", " "))
        {
            ensure!(
                asked.grouped.contains(label),
                "{alert} tells of {label}, by which nothing is grouped"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn alerts_ask_for_words_that_the_programs_use() -> Result<()> {
    let words = Words::of_the_programs().await?;
    for Alert {
        name: alert, expr, ..
    } in alerts()?
    {
        for (metric, matchers) in Asked::of(&expr)?.selected {
            for Matcher {
                name: label, value, ..
            } in matchers.iter().filter(|_| metric.starts_with("mimeo_"))
            {
                for word in value.split('|') {
                    ensure!(
                        words.know(&metric, label, word),
                        "{alert}: no {label} of {metric} is {word}"
                    );
                }
            }
        }
    }
    assert!(words.know("mimeo_admission_duration_seconds_count", "hook", "Pods"));
    assert!(!words.know("mimeo_admission_duration_seconds_count", "hook", "Pod"));
    Ok(())
}

#[test]
fn panels_ask_for_metrics_that_exist_and_every_metric_has_one() -> Result<()> {
    let metrics = metrics()?;
    let dashboard: Value = serde_json::from_str(&read("manifests/chart/files/dashboard.json")?)?;
    let mut unseen: BTreeSet<String> = metrics.keys().cloned().collect();
    // The build information is not on the dashboard. Users can show it in tables of their own.
    unseen.remove("mimeo_build_info");
    let variables = dashboard["templating"]["list"]
        .as_array()
        .context("no variables")?;
    let variables: BTreeSet<&str> = variables
        .iter()
        .filter_map(|variable| variable["name"].as_str())
        .collect();
    assert_eq!(variables, ["datasource", "cluster", "namespace"].into());
    for panel in dashboard["panels"].as_array().context("no panels")? {
        let title = panel["title"].as_str().context("a panel without a title")?;
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        ensure!(
            panel["type"] == "row" || !targets.is_empty(),
            "{title} shows nothing"
        );
        for target in targets {
            let asked = Asked::of(target["expr"].as_str().context("no expression")?)?;
            let ours = asked.ours(&metrics).context(title.to_owned())?;
            ensure!(!ours.is_empty(), "{title} asks for no metric of ours");
            unseen.retain(|name| !ours.contains(name));
            for (metric, matchers) in &asked.selected {
                let chosen = ["cluster", "namespace"].iter().all(|label| {
                    let variable = format!("${label}");
                    matchers
                        .iter()
                        .any(|matcher| matcher.name == *label && matcher.value == variable)
                });
                ensure!(
                    chosen,
                    "{title} shows {metric} of all clusters and namespaces, whatever is chosen"
                );
            }
            for label in between(
                target["legendFormat"].as_str().unwrap_or_default(),
                "{{",
                "}}",
            ) {
                ensure!(
                    asked.grouped.contains(label),
                    "{title} names {label}, by which nothing is grouped"
                );
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
        let error = Asked::of(expr)
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(
            error.contains(told) && error.len() > expr.len() + 2,
            "{expr}: {error:?}"
        );
    }
}

#[test]
fn every_alert_has_its_section_of_the_runbook_and_every_section_its_alert() -> Result<()> {
    let runbook = read("manifests/chart/RUNBOOK.md")?;
    let mut sections: BTreeMap<&str, &str> = runbook
        .split("\n## ")
        .skip(1)
        .map(|section| section.split_once('\n').unwrap_or((section, "")))
        .collect();
    for Alert {
        name: alert,
        pending,
        labels,
        annotations,
        ..
    } in alerts()?
    {
        let section = sections
            .remove(&*alert)
            .with_context(|| format!("the runbook has no section {alert}"))?;
        for part in ["**Meaning.**", "**Cause.**", "**Fix.**"] {
            ensure!(section.contains(part), "{alert} lacks {part}");
        }
        ensure!(section.contains("\n    "), "{alert} has no command");
        let place = format!(
            "https://mimeo.dev/manifests/chart/RUNBOOK.md#{}",
            alert.to_lowercase()
        );
        assert_eq!(annotations.get("runbook_url"), Some(&place), "{alert}");
        let said: BTreeSet<&str> = annotations.keys().map(String::as_str).collect();
        assert_eq!(
            said,
            ["description", "runbook_url", "summary"].into(),
            "{alert}"
        );
        let word = |label: &str| labels.get(label).map(String::as_str);
        ensure!(
            matches!(
                (word("severity"), word("response")),
                (Some("critical"), Some("page"))
                    | (Some("warning"), Some("ticket"))
                    | (Some("info"), Some("none"))
            ) && labels.len() == 2,
            "{alert}: {labels:?}"
        );
        ensure!(
            pending
                .strip_suffix('m')
                .is_some_and(|minutes| minutes.parse::<u8>().is_ok()),
            "{alert}: {pending}"
        );
    }
    ensure!(
        sections.is_empty(),
        "nothing alerts for {:?}",
        sections.keys()
    );
    Ok(())
}
