//! The reasons of the condition Ready. `kubectl get`, the status and the rules' metric say the
//! same. The alert for a reason selects its series, and the documents say how to react.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use http::{Request, header::ACCEPT};
use kube::Client;
use mimeo_model::{
    condition::ConditionReason::{self, *},
    outcome::FailureReason,
};
use mimeo_tests::{
    ControlPlane, Pair, create_namespace, create_secret, eventually,
    scenario::{RuleSpec, SOON, Scene, Setting, apply, delete, rule},
};
use serde_json::{Value, json};

use super::{Alert, Asked, alerts, read};

/// Returns whether a rule with this reason is Ready, and the alert that fires if it stays so.
/// `None` if no rule's Ready has the reason. The match has no `_` arm, so each new reason must be
/// added here, and below.
fn of_ready(reason: ConditionReason) -> Option<(bool, Option<&'static str>)> {
    match reason {
        Synced => Some((true, None)),
        NoNamespaceMatches => Some((true, Some("MimeoRulesMatchNothing"))),
        // These states are wanted, or they end by themselves.
        Suspended | Pending => Some((false, None)),
        CopiesFailed => Some((false, Some("MimeoCopiesFailing"))),
        InvalidSpec => Some((false, Some("MimeoRulesStalled"))),
        SourceNotFound | KindNotServed | SourceRefused | InGracePeriod | NotAuthorized => {
            Some((false, Some("MimeoRulesNotReady")))
        }
        Found | Allowed | NotGranted | GrantsUnknown | ControllerForbidden | Active | Disabled
        | WebhookUnavailable | WebhookContested | DeletionHeld | Rejected | TooManyGrants => None,
    }
}

/// All reasons of a rule's Ready.
fn of_rules() -> impl Iterator<Item = ConditionReason> {
    ConditionReason::ALL
        .iter()
        .copied()
        .filter(|reason| of_ready(*reason).is_some())
}

/// A metric with its labels.
type Series = (&'static str, Vec<(&'static str, String)>);

/// Returns the metrics of one `ClusterReplication` with this reason.
fn series(reason: ConditionReason, ready: bool) -> Vec<Series> {
    let kind = || "ClusterReplication".to_owned();
    let ready = if ready { "True" } else { "False" };
    let mut all = vec![(
        "mimeo_rules",
        vec![
            ("kind", kind()),
            ("ready", ready.to_owned()),
            ("reason", reason.to_string()),
        ],
    )];
    match reason {
        CopiesFailed => {
            let failure = FailureReason::Conflict.to_string();
            all.push((
                "mimeo_copies_failed",
                vec![("rule_kind", kind()), ("reason", failure)],
            ));
        }
        InvalidSpec => all.push((
            "mimeo_rules_stalled",
            vec![("kind", kind()), ("reason", reason.to_string())],
        )),
        _ => {}
    }
    all
}

/// Returns the alerts that select any of these series.
fn asking(alerts: &[Alert], told: &[Series]) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for Alert {
        name: alert, expr, ..
    } in alerts
    {
        for (metric, matchers) in Asked::of(expr)?.selected {
            let selected = |(name, labels): &Series| {
                let value = |label: &str| {
                    labels
                        .iter()
                        .find(|(name, _)| *name == label)
                        .map_or("", |(_, value)| value)
                };
                *name == metric
                    && matchers
                        .iter()
                        .all(|matcher| matcher.is_match(value(&matcher.name)))
            };
            if told.iter().any(selected) {
                found.insert(alert.clone());
            }
        }
    }
    Ok(found)
}

#[test]
fn every_reason_of_ready_has_the_alert_that_is_for_it_and_the_runbook_names_it_there() -> Result<()>
{
    let (alerts, runbook) = (alerts()?, read("manifests/chart/RUNBOOK.md")?);
    let section = |alert: &str| runbook.split("\n## ").find(|part| part.starts_with(alert));
    let named = |alert: &str, reason: ConditionReason| -> Result<()> {
        let section = section(alert).with_context(|| format!("no section {alert}"))?;
        ensure!(
            section.contains(&format!("`{reason}`")),
            "{alert} of the runbook doesn't name {reason}"
        );
        Ok(())
    };
    for (reason, ready, alert) in
        of_rules().filter_map(|one| of_ready(one).map(|(ready, alert)| (one, ready, alert)))
    {
        let want: BTreeSet<String> = alert.map(str::to_owned).into_iter().collect();
        assert_eq!(asking(&alerts, &series(reason, ready))?, want, "{reason}");
        if let Some(alert) = alert {
            named(alert, reason)?;
        }
    }
    // The condition Ready of a TransformPolicy has fewer reasons, and one alert.
    for reason in [InvalidSpec, KindNotServed, Rejected] {
        let told = (
            "mimeo_policies",
            vec![
                ("ready", "False".to_owned()),
                ("reason", reason.to_string()),
            ],
        );
        assert_eq!(
            asking(&alerts, &[told])?,
            ["MimeoPoliciesNotReady".to_owned()].into(),
            "{reason}"
        );
        named("MimeoPoliciesNotReady", reason)?;
    }
    Ok(())
}

#[test]
fn every_reason_of_a_condition_and_of_a_failure_has_its_row_in_the_reference() -> Result<()> {
    let document = read("docs/reference/reasons.md")?;
    let section = document
        .split("\n## ")
        .find(|part| part.starts_with("Reasons\n"));
    let rows = section
        .context("no such section")?
        .lines()
        .filter_map(|line| line.strip_prefix("| `"));
    let first = rows.filter_map(|row| row.split(" | ").next());
    let words: BTreeSet<&str> = first
        .flat_map(|cell| cell.split([',', ' ', '`']))
        .filter(|word| !word.is_empty())
        .collect();
    let conditions = ConditionReason::ALL.iter().map(|reason| reason.as_str());
    let all: BTreeSet<&str> = conditions
        .chain(FailureReason::ALL.iter().map(|reason| reason.as_str()))
        .collect();
    assert_eq!(words, all);
    Ok(())
}

/// Rules with each reason, and namespaces for them. No webhook runs, because it would refuse
/// `InvalidSpec`.
struct Rules<'a> {
    scene: &'a Scene<'a>,
    /// A namespace for copies.
    open: String,
    /// A namespace that the reconciler leaves to a webhook, for an hour.
    marked: String,
}

impl<'a> Rules<'a> {
    async fn new(scene: &'a Scene<'a>) -> Result<Self> {
        let marked = format!("{}-marked", scene.tag);
        create_namespace(&scene.client, &marked, &[("mimeo.dev/copies", "held")]).await?;
        Ok(Self {
            scene,
            open: scene.namespace().await?,
            marked,
        })
    }

    fn name(&self, reason: ConditionReason) -> String {
        format!("{}-{}", self.scene.tag, reason.as_str().to_lowercase())
    }

    /// Creates a rule that gets this reason, after the preparations for it.
    async fn create(&self, reason: ConditionReason) -> Result<()> {
        let Scene {
            client, home, tag, ..
        } = self.scene;
        let name = self.name(reason);
        let to = |namespace: &str| {
            rule(&name).target(json!({"namespaces": [namespace], "copyName": name}))
        };
        let good = to(&self.open).secret(home, "registry");
        let rule: RuleSpec = match reason {
            Synced => good,
            NoNamespaceMatches => to(&format!("{tag}-nowhere")).secret(home, "registry"),
            Suspended => good.set("suspend", json!(true)),
            Pending => to(&self.marked).secret(home, "registry"),
            CopiesFailed => {
                create_secret(client, &self.open, &name, &[("token", "theirs")]).await?;
                good
            }
            InvalidSpec => good.set(
                "transform",
                json!({"annotations": {"set": {"note": "$(namespace.uid)"}}}),
            ),
            SourceNotFound => to(&self.open).secret(home, "missing"),
            KindNotServed => {
                to(&self.open).source(&format!("{tag}.example.com/v1"), "Gadget", home, "one")
            }
            SourceRefused => {
                let metadata = json!({"namespace": home, "name": "release"});
                let release = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "helm.sh/release.v1"});
                apply(client, &release).await?;
                to(&self.open).secret(home, "release")
            }
            InGracePeriod => {
                self.scene.secret("going", &[("token", "one")]).await?;
                let graced = json!({"sourceGracePeriodSeconds": 3600});
                to(&self.open)
                    .secret(home, "going")
                    .set("retentionPolicy", graced)
            }
            // Mimeo has no permission for this kind.
            NotAuthorized => to(&self.open).source("v1", "PodTemplate", home, "base"),
            other => anyhow::bail!("{other} is no reason of a rule's Ready"),
        };
        rule.create(client).await?;
        if reason == InGracePeriod {
            self.scene.wait_synced(&name).await?;
            delete(&self.scene.secrets(home), "going").await?;
        }
        Ok(())
    }
}

/// Returns the columns READY and REASON by name, as `kubectl get` prints them for these resources.
/// The API server makes the table. `path` is as in `namespaces/a/replicationgrants`.
pub(crate) async fn printed(client: &Client, path: &str) -> Result<BTreeMap<String, [String; 2]>> {
    let request = Request::get(format!("/apis/mimeo.dev/v1alpha1/{path}"));
    let request = request
        .header(ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())?;
    let table: Value = client.request(request).await?;
    let columns = table["columnDefinitions"]
        .as_array()
        .context("no columns")?;
    let at = |column: &str| {
        columns
            .iter()
            .position(|one| one["name"] == column)
            .with_context(|| column.to_owned())
    };
    let (ready, reason) = (at("Ready")?, at("Reason")?);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = table["rows"].as_array().context("no rows")?;
    let row = |row: &Value| {
        (
            text(&row["object"]["metadata"]["name"]),
            [ready, reason].map(|column| text(&row["cells"][column])),
        )
    };
    Ok(rows.iter().map(row).collect())
}

/// Returns the same values from the rules' statuses.
async fn stored(client: &Client) -> Result<BTreeMap<String, [String; 2]>> {
    let request = Request::get("/apis/mimeo.dev/v1alpha1/clusterreplications").body(Vec::new())?;
    let list: Value = client.request(request).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let ready = |rule: &Value| {
        let conditions = rule["status"]["conditions"].as_array()?;
        let ready = conditions.iter().find(|one| one["type"] == "Ready")?;
        Some((
            text(&rule["metadata"]["name"]),
            ["status", "reason"].map(|field| text(&ready[field])),
        ))
    };
    Ok(list["items"]
        .as_array()
        .context("no items")?
        .iter()
        .filter_map(ready)
        .collect())
}

/// Returns the metrics of rules with a value that is not zero. The labels are in alphabetical
/// order.
fn counted(text: &str) -> BTreeMap<(String, BTreeMap<String, String>), f64> {
    let line = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.trim_end_matches('}').split_once('{')?;
        let label = |one: &str| {
            one.split_once('=')
                .map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()))
        };
        let value: f64 = value.parse().ok()?;
        (value > 0.0).then(|| {
            (
                (
                    name.to_owned(),
                    labels.split(',').filter_map(label).collect(),
                ),
                value,
            )
        })
    };
    let of_rules = ["mimeo_rules", "mimeo_rules_stalled", "mimeo_copies_failed"];
    text.lines()
        .filter_map(line)
        .filter(|((name, _), _)| of_rules.contains(&&**name))
        .collect()
}

/// Checks each reason of a rule's Ready with a `ClusterReplication`, without an exception. A
/// Replication has the same reasons, by the same code.
///
/// Other tests make the reasons of a `TransformPolicy`'s Ready: `watched.rs` has `KindNotServed`
/// with its metric, `flood.rs` has `Rejected`, `copies/told.rs` has
/// `Active`, and `invalid.rs` has `InvalidSpec` and the reasons of a grant's Ready. The reasons of
/// other conditions are in `unreadable.rs`, `replications.rs`, `pod_gate.rs`, `outage.rs`,
/// `harm.rs` and `copies/go.rs`.
#[tokio::test]
async fn the_reason_of_ready_is_the_same_through_kubectl_in_the_status_and_in_the_metric()
-> Result<()> {
    // During the whole test, the reconciler leaves namespaces with the pending label to a webhook.
    let pair = Pair::builder()
        .webhooks(0)
        .shipped_rights()
        .reconciler_args(["--takeover-delay", "1h"]);
    let setting = Setting::start(ControlPlane::builder(), pair).await?;
    let scene = setting.scene("reasons").await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let rules = Rules::new(&scene).await?;
    let (mut shown, mut numbers) = (BTreeMap::new(), BTreeMap::new());
    for reason in of_rules() {
        rules
            .create(reason)
            .await
            .with_context(|| reason.to_string())?;
        let (ready, _) = of_ready(reason).context("a reason of Ready")?;
        shown.insert(
            rules.name(reason),
            [
                if ready { "True" } else { "False" }.to_owned(),
                reason.to_string(),
            ],
        );
        for (name, labels) in series(reason, ready) {
            let labels = labels
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
            numbers.insert((name.to_owned(), labels), 1.0);
        }
    }
    let reconciler = setting.pair.reconciler.as_ref().context("a reconciler")?;
    eventually(SOON, "every reason, wherever it is shown", || async {
        let (status, table) = (
            stored(&scene.client).await?,
            printed(&scene.client, "clusterreplications").await?,
        );
        ensure!(
            status == shown,
            "the statuses: {status:#?}, and not {shown:#?}"
        );
        ensure!(table == shown, "kubectl: {table:#?}, and not {shown:#?}");
        let found = counted(&reconciler.metrics()?);
        ensure!(
            found == numbers,
            "the metrics: {found:#?}, and not {numbers:#?}"
        );
        Ok(Some(()))
    })
    .await
}
