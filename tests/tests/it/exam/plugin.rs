//! `kubectl mimeo` against the statuses that the reconciler wrote: `status` must count the same
//! copies and name the same failures, `why` must give each copy the same state, and `diff` must
//! foretell the plan of a suspended rule.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Client, api::DynamicObject, api::ListParams};
use mimeo_api::ClusterReplicationStatus;
use mimeo_tests::{
    ControlPlane, eventually,
    scenario::{SOON, any},
};
use serde_json::{Value, json};

use crate::plugin::run;

/// Most copies that `why` is asked about, and most suspended rules that `diff` is asked about.
const ASKED: usize = 3;

/// A rule's copies that should exist, that are synced, and that have failed. Then the namespace and
/// the reason of each failure.
type Counts = ([u64; 3], Vec<(String, String)>);

/// Waits until the plugin and the statuses agree. Returns the number of comparisons by command.
pub async fn agrees(
    client: &Client,
    control_plane: &ControlPlane,
) -> Result<[(&'static str, usize); 3]> {
    eventually(SOON, "kubectl mimeo agrees", || async {
        let rules = rules(client).await?;
        let (before, plans) = (reported(&rules)?, plans(&rules));
        let told = run(control_plane, None, &["status", "-o", "json"])?.json()?;
        let explained = explained(control_plane, &told)?;
        let synced = synced(client, control_plane, &rules).await?;
        // The plugin sends no dry run. Without one it knows neither the conflict of a copy that lacks
        // Mimeo's entry, nor a user's edit of a copy.
        // The reconciler remembers a copy that has lost its label or its entry. For the plugin it is
        // another client's object.
        // And the reconciler does not notice an object that comes where a suspended rule plans a
        // copy (docs/faq.md).
        let labelled = objects(client, OWN).await?;
        let others = objects(client, FOREIGN).await?;
        let comparable = |copy: &[String; 4]| match &*copy[0] {
            "Conflict" => false,
            "Create" => !others.keys().any(|key| *key == copy[1..]),
            "Delete" => labelled
                .iter()
                .any(|(key, meta)| *key == copy[1..] && has_entry(meta)),
            _ => true,
        };
        let mut diffs = Vec::new();
        for (id, plan) in plans.iter().take(ASKED) {
            let mut diff = foretold(control_plane, id, &rules[*id])?;
            diff.retain(comparable);
            let mut plan = plan.clone();
            plan.retain(comparable);
            diffs.push((id, plan, diff));
        }
        // A status that changed meanwhile may be compared with neither.
        let after = self::rules(client).await?;
        let same = before == reported(&after)? && plans == self::plans(&after);
        ensure!(same, "the statuses change");
        for (rule, reported) in &before {
            let (counts, failures) = counted(&told, rule)?;
            ensure!(
                counts == reported.0,
                "{rule}: {reported:?}, not {counts:?}: {told:#}"
            );
            for failure in &reported.1 {
                ensure!(
                    failures.contains(failure),
                    "{rule}: no {failure:?}: {told:#}"
                );
            }
        }
        for (state, answer) in &explained {
            ensure!(answer["state"] == **state, "not {state}: {answer:#}");
        }
        let mut whys = explained.len();
        if let Some((number, answers)) = synced {
            let right = answers.iter().filter(|answer| answer["state"] == "Synced");
            ensure!(
                right.count() as u64 == number,
                "{number} copies are synced: {answers:#?}"
            );
            whys += answers.len();
        }
        for (rule, plan, diff) in &diffs {
            let mut missing = plan.difference(diff).filter(|copy| copy[0] != "Update");
            let same = diff.is_subset(plan) && missing.next().is_none();
            ensure!(same, "{rule}: {plan:?}, not {diff:?}");
        }
        Ok(Some([
            ("rules of kubectl mimeo status", before.len()),
            ("copies of kubectl mimeo why", whys),
            ("plans of kubectl mimeo diff", diffs.len()),
        ]))
    })
    .await
}

/// The rules of both kinds, by their names in statuses.
async fn rules(client: &Client) -> Result<BTreeMap<String, DynamicObject>> {
    let mut all = BTreeMap::new();
    for kind in ["ClusterReplication", "Replication"] {
        let rules = any(client, "mimeo.dev/v1alpha1", kind, None)?;
        for rule in rules.list(&ListParams::default()).await? {
            let meta = &rule.metadata;
            let path = [Some(kind), meta.namespace.as_deref(), meta.name.as_deref()];
            let name = path.into_iter().flatten().collect::<Vec<_>>().join("/");
            all.insert(name, rule);
        }
    }
    Ok(all)
}

fn status(rule: &DynamicObject) -> ClusterReplicationStatus {
    serde_json::from_value(rule.data["status"].clone()).unwrap_or_default()
}

fn is_suspended(rule: &DynamicObject) -> bool {
    rule.data["spec"]["suspend"] == true
}

/// An answer of `why`, with the state that it must have.
type Explained = (String, Value);

/// Asks `why` about some copies that are not synced.
fn explained(control_plane: &ControlPlane, told: &Value) -> Result<Vec<Explained>> {
    let copies = told["copies"].as_array().into_iter().flatten();
    let copies = copies.map(|copy| {
        let fields = ["namespace", "kind", "name", "rule", "state"];
        fields.map(|field| copy[field].as_str().unwrap_or_default().to_owned())
    });
    let mut explained = Vec::new();
    for [namespace, kind, name, rule, state] in copies.take(ASKED) {
        let answer = why(control_plane, &format!("{namespace}/{kind}/{name}"), &rule)?;
        explained.push((state, answer));
    }
    Ok(explained)
}

/// The answer of `why` about an object, as a copy of one rule.
fn why(control_plane: &ControlPlane, object: &str, rule: &str) -> Result<Value> {
    let answer = run(control_plane, None, &["why", object, "-o", "json"])?.json()?;
    let rules = answer["rules"].as_array().into_iter().flatten();
    let own = rules.into_iter().find(|one| one["rule"] == rule).cloned();
    Ok(own.unwrap_or(answer))
}

/// Asks `why` about the copies of the first rule with few copies, all of which are synced. Returns
/// the number in the rule's status, and the answers.
async fn synced(
    client: &Client,
    control_plane: &ControlPlane,
    rules: &BTreeMap<String, DynamicObject>,
) -> Result<Option<(u64, Vec<Value>)>> {
    let few = |rule: &DynamicObject| {
        let counts = status(rule).copies.unwrap_or_default();
        let number = u64::try_from(counts.synced).unwrap_or_default();
        let all = counts.desired == counts.synced && (1..=ASKED as u64).contains(&number);
        // A copy that was created once, and deleted, counts as synced.
        let there = rule.data["spec"]["strategy"] != "CreateOnce" && !is_suspended(rule);
        (all && there).then_some(number)
    };
    let Some((id, number)) = rules.iter().find_map(|(id, rule)| Some((id, few(rule)?))) else {
        return Ok(None);
    };
    let mut answers = Vec::new();
    let own = objects(client, OWN)
        .await?
        .into_iter()
        .filter(|(_, meta)| written_by(meta) == Some(id));
    for ([kind, namespace, name], _) in own {
        let object = format!("{namespace}/{kind}/{name}");
        answers.push(why(control_plane, &object, id)?);
    }
    Ok(Some((number, answers)))
}

/// The objects with Mimeo's label, and those without it.
const OWN: &str = "app.kubernetes.io/managed-by=mimeo";
const FOREIGN: &str = "app.kubernetes.io/managed-by!=mimeo";

/// The metadata of the objects that the label selector matches, by kind, namespace and name.
async fn objects(client: &Client, selector: &str) -> Result<BTreeMap<[String; 3], ObjectMeta>> {
    let selected = ListParams::default().labels(selector);
    let mut objects = BTreeMap::new();
    for kind in ["Secret", "ConfigMap"] {
        for object in any(client, "v1", kind, None)?.list(&selected).await? {
            let meta = object.metadata;
            if let (Some(namespace), Some(name)) = (&meta.namespace, &meta.name) {
                objects.insert([kind.to_owned(), namespace.clone(), name.clone()], meta);
            }
        }
    }
    Ok(objects)
}

/// True if `managedFields` has Mimeo's entry.
fn has_entry(meta: &ObjectMeta) -> bool {
    let mut entries = meta.managed_fields.iter().flatten();
    entries.any(|entry| entry.manager.as_deref() == Some("mimeo"))
}

/// The rule that the annotation names.
fn written_by(meta: &ObjectMeta) -> Option<&str> {
    Some(meta.annotations.as_ref()?.get("mimeo.dev/rule")?)
}

/// The copies that a rule would change or could not write: action, kind, namespace and name.
type Plan = BTreeSet<[String; 4]>;

/// The plans of suspended rules, as far as their statuses name all copies.
fn plans(rules: &BTreeMap<String, DynamicObject>) -> BTreeMap<&String, Plan> {
    let suspended = rules.iter().filter(|(_, rule)| is_suspended(rule));
    let plan = |(id, rule)| {
        let plan = status(rule).plan?;
        let all = plan.create + plan.update + plan.delete + plan.conflict;
        let whole = usize::try_from(all).is_ok_and(|all| all == plan.copies.len());
        let copies = plan.copies.into_iter();
        let copies = copies.map(|copy| [copy.action, copy.kind, copy.namespace, copy.name]);
        whole.then(|| (id, copies.collect()))
    };
    suspended.filter_map(plan).collect()
}

/// The changes and conflicts of a suspended rule that `diff` foretells for the rule without
/// `suspend`.
fn foretold(control_plane: &ControlPlane, id: &str, rule: &DynamicObject) -> Result<Plan> {
    let mut spec = rule.data["spec"].clone();
    spec["suspend"] = json!(false);
    let metadata = json!({"name": rule.metadata.name, "namespace": rule.metadata.namespace});
    let object = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": rule.types.as_ref().map(|types| &types.kind),
        "metadata": metadata, "spec": spec,
    });
    let file = tempfile::NamedTempFile::with_suffix(".json")?;
    std::fs::write(file.path(), object.to_string())?;
    let path = file.path().display().to_string();
    let told = run(control_plane, None, &["diff", "-f", &path, "-o", "json"])?.json()?;
    let list = |field: &str| told[field].as_array().cloned().unwrap_or_default();
    let own = |one: &Value| one["rule"] == id;
    let named = |action: &str, one: &Value| {
        let [kind, namespace, name] = ["kind", "namespace", "name"].map(|field| text(&one[field]));
        [action.to_owned(), kind, namespace, name]
    };
    let changes = list("changes").into_iter().filter(own).map(|change| {
        let action = match change["action"].as_str() {
            Some("create") => "Create",
            Some("update") => "Update",
            _ => "Delete",
        };
        named(action, &change)
    });
    let in_the_way = |one: &Value| one["reason"] == "Conflict" || one["reason"] == "RuleConflict";
    let failures = list("failures").into_iter().filter(own).filter(in_the_way);
    Ok(changes
        .chain(failures.map(|failure| named("Conflict", &failure)))
        .collect())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The counts in the statuses of all rules that are not suspended.
fn reported(rules: &BTreeMap<String, DynamicObject>) -> Result<BTreeMap<String, Counts>> {
    let mut all = BTreeMap::new();
    for (id, rule) in rules {
        let status = status(rule);
        if status.observed_generation != rule.metadata.generation {
            bail!("{id} has no status for its present spec");
        }
        if is_suspended(rule) {
            continue;
        }
        let copies = status.copies.unwrap_or_default();
        let counts = [copies.desired, copies.synced, copies.failed];
        let failures = status.failures.into_iter();
        let failures = failures.map(|failure| (failure.namespace, failure.reason));
        let counts = counts.map(|count| u64::try_from(count).unwrap_or(u64::MAX));
        all.insert(id.clone(), (counts, failures.collect()));
    }
    Ok(all)
}

/// The plugin's counts of one rule.
fn counted(told: &Value, rule: &str) -> Result<Counts> {
    let list = |field: &str| told[field].as_array().cloned().unwrap_or_default();
    let line = list("rules").into_iter().find(|line| line["rule"] == rule);
    let line = line.with_context(|| format!("no {rule}: {told:#}"))?;
    let counts = ["copies", "synced", "failed"].map(|field| line[field].as_u64().unwrap_or(0));
    let copies = list("copies")
        .into_iter()
        .filter(|copy| copy["rule"] == rule);
    let failures = copies.map(|copy| (text(&copy["namespace"]), text(&copy["state"])));
    Ok((counts, failures.collect()))
}
