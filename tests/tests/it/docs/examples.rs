//! The tables of `docs/reference/api.md` under "What you write, what you get". On a real API server each rule
//! makes the copies of its row, and no others.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use mimeo_tests::{
    ControlPlane, Pair, eventually,
    scenario::{SOON, Setting, any, apply, create, delete, uid, value, version},
};
use serde_json::{Map, Value, json};

use crate::repository::workspace;

/// The namespace of the Replications in the tables.
const HOME: &str = "team-a";
const RULE: &str = "example";

type Data = BTreeMap<String, String>;

/// One row of a table.
struct Row {
    about: String,
    /// The kind of the rule.
    kind: &'static str,
    spec: Map<String, Value>,
    outcome: Outcome,
}

enum Outcome {
    /// The API server refuses the rule with these words.
    Refused(String),
    /// The copies by `namespace/name`, with their data if the row has them. Also the reason of
    /// Ready.
    Copies(BTreeMap<String, Option<Data>>, String),
}

/// Returns the text between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the objects that exist before each rule, and the rows of all tables.
fn tables(document: &str) -> Result<(Vec<Value>, Vec<Row>)> {
    let (_, section) = document
        .split_once("\n## What you write, what you get\n")
        .context("no such section")?;
    let section = section.split("\n## ").next().unwrap_or(section);
    let mut parts = section.split("\n### ");
    let introduction = parts.next().context("no introduction")?;
    let world = introduction
        .lines()
        .filter_map(|line| line.strip_prefix("    "));
    let world: Value = serde_yaml::from_str(&world.collect::<Vec<_>>().join("\n"))?;
    let world = world["items"].as_array().context("no objects")?.clone();
    let mut rows = Vec::new();
    for part in parts {
        let kind = match part.strip_prefix("By a ") {
            Some(heading) if heading.starts_with("ClusterReplication") => "ClusterReplication",
            Some(heading) if heading.starts_with("Replication") => "Replication",
            _ => bail!("an unknown table: {part}"),
        };
        let (before, table) = part
            .split_once("\n| --- | --- | --- |\n")
            .context("no table")?;
        let sources = quoted(before)
            .find(|text| text.starts_with("sources: "))
            .context("no sources of such rows")?;
        for line in table.lines().take_while(|line| line.starts_with('|')) {
            rows.push(row(kind, sources, line).with_context(|| line.to_owned())?);
        }
    }
    Ok((world, rows))
}

fn row(kind: &'static str, sources: &str, line: &str) -> Result<Row> {
    let cells: Vec<&str> = line
        .trim_start_matches("| ")
        .trim_end_matches(" |")
        .split(" | ")
        .collect();
    let [about, fields, outcome] = cells[..] else {
        bail!("{} cells", cells.len())
    };
    let mut spec: Map<String, Value> = serde_yaml::from_str(sources)?;
    for field in quoted(fields) {
        spec.extend(serde_yaml::from_str::<Map<String, Value>>(field)?);
    }
    Ok(Row {
        about: about.to_owned(),
        kind,
        spec,
        outcome: parsed(outcome)?,
    })
}

fn parsed(outcome: &str) -> Result<Outcome> {
    if let Some(refused) = outcome.strip_prefix("refused: ") {
        return Ok(Outcome::Refused(
            quoted(refused).next().context("no words")?.to_owned(),
        ));
    }
    let (told, reason) = match outcome.split_once("; `Ready` has the reason ") {
        Some((told, reason)) => (told, quoted(reason).next().context("no reason")?),
        None => (outcome, "Synced"),
    };
    let mut copies = BTreeMap::new();
    for copy in quoted(told) {
        match serde_yaml::from_str(copy)? {
            Value::String(name) => _ = copies.insert(name, None),
            with_data => copies.extend(serde_json::from_value::<BTreeMap<String, Option<Data>>>(
                with_data,
            )?),
        }
    }
    ensure!(
        copies.is_empty() == (told == "none"),
        "either copies, or none: {told}"
    );
    Ok(Outcome::Copies(copies, reason.to_owned()))
}

/// A cluster with the objects of the tables.
struct World {
    client: Client,
    /// The uids and versions of all Secrets and `ConfigMap`s before the first rule.
    before: BTreeMap<String, String>,
}

impl World {
    async fn create(client: Client, objects: &[Value]) -> Result<Self> {
        for object in objects {
            apply(&client, object).await?;
        }
        let mut world = Self {
            client,
            before: BTreeMap::new(),
        };
        world.before = world
            .all()
            .await?
            .into_iter()
            .map(|(_, uid, version, _)| (uid, version))
            .collect();
        Ok(world)
    }

    /// Returns all Secrets and `ConfigMap`s: `namespace/name`, uid, version and data. Mimeo's
    /// record of kinds is not a copy and is left out.
    async fn all(&self) -> Result<Vec<(String, String, String, Data)>> {
        let (secrets, maps) = (
            Api::<Secret>::all(self.client.clone()),
            Api::<ConfigMap>::all(self.client.clone()),
        );
        let mut found = Vec::new();
        for secret in secrets.list(&ListParams::default()).await? {
            let keys = secret.data.iter().flatten().map(|(key, _)| key);
            let data = keys
                .filter_map(|key| Some((key.clone(), value(&secret, key)?)))
                .collect();
            let name = format!(
                "{}/{}",
                secret.namespace().unwrap_or_default(),
                secret.name_any()
            );
            found.push((name, uid(&secret), version(&secret), data));
        }
        for map in maps.list(&ListParams::default()).await? {
            let name = format!("{}/{}", map.namespace().unwrap_or_default(), map.name_any());
            found.push((
                name,
                uid(&map),
                version(&map),
                map.data.clone().unwrap_or_default(),
            ));
        }
        found.retain(|(name, ..)| name != "mimeo-system/mimeo-kinds");
        Ok(found)
    }

    /// Returns the new objects. The objects from before must be unchanged.
    async fn copies(&self) -> Result<BTreeMap<String, Data>> {
        let (mut copies, mut untouched) = (BTreeMap::new(), 0);
        for (name, uid, version, data) in self.all().await? {
            match self.before.get(&uid) {
                Some(before) => {
                    // Mimeo's own namespace has the certificate.
                    ensure!(
                        *before == version || name.starts_with("mimeo-system/"),
                        "{name} was written"
                    );
                    untouched += 1;
                }
                None => ensure!(
                    copies.insert(name.clone(), data).is_none(),
                    "two objects are called {name}"
                ),
            }
        }
        ensure!(
            untouched == self.before.len(),
            "{} objects are gone",
            self.before.len() - untouched
        );
        Ok(copies)
    }

    /// Writes the row's rule and waits for the result in the row. Then deletes the rule with its
    /// copies.
    async fn check(&self, row: &Row) -> Result<()> {
        let (plural, namespace) = match row.kind {
            "Replication" => (format!("namespaces/{HOME}/replications"), Some(HOME)),
            _ => ("clusterreplications".to_owned(), None),
        };
        let metadata = json!({"namespace": namespace, "name": RULE});
        let rule = json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": row.kind, "metadata": metadata, "spec": row.spec});
        let answer = create(&self.client, &plural, &rule).await;
        let (copies, reason) = match (&row.outcome, answer) {
            (Outcome::Refused(words), Err(kube::Error::Api(status)))
                if status.message.contains(words) =>
            {
                return Ok(());
            }
            (Outcome::Refused(words), Err(error)) => {
                bail!("refused, but not with {words}: {error}")
            }
            (Outcome::Refused(_), Ok(_)) => bail!("it was accepted"),
            (Outcome::Copies(..), Err(error)) => bail!("it was refused: {error}"),
            (Outcome::Copies(copies, reason), Ok(_)) => (copies, reason),
        };
        let rules = any(&self.client, "mimeo.dev/v1alpha1", row.kind, namespace)?;
        let made = eventually(SOON, &row.about, || async {
            let found = self.copies().await?;
            let same = |(name, data): (&String, &Data)| {
                copies
                    .get(name)
                    .is_some_and(|told| told.is_none() || told.as_ref() == Some(data))
            };
            ensure!(
                found.len() == copies.len() && found.iter().all(same),
                "{found:?}, and not {copies:?}"
            );
            let rule = rules.get(RULE).await?;
            let status = &rule.data["status"];
            let conditions = status["conditions"].as_array().context("no conditions")?;
            let ready = conditions
                .iter()
                .find(|one| one["type"] == "Ready")
                .context("no Ready")?;
            let now = status["observedGeneration"].as_i64() == rule.metadata.generation;
            ensure!(
                now && ready["reason"] == **reason,
                "Ready is not {reason}: {ready}"
            );
            let count = |field: &str| status["copies"][field].as_u64().unwrap_or_default();
            ensure!(
                count("synced") == u64::try_from(copies.len())?,
                "it counts {}",
                status["copies"]
            );
            ensure!(
                count("desired") - count("failed") == count("synced"),
                "more are to come: {}",
                status["copies"]
            );
            Ok(Some(()))
        })
        .await;
        delete(&rules, RULE).await?;
        eventually(SOON, "its copies to go", || async {
            let left = self.copies().await?;
            ensure!(
                left.is_empty() && rules.get_opt(RULE).await?.is_none(),
                "{left:?}"
            );
            Ok(Some(()))
        })
        .await?;
        made
    }
}

#[tokio::test]
async fn each_rule_in_the_tables_of_the_api_makes_the_copies_of_its_row_and_no_others() -> Result<()>
{
    let (objects, rows) = tables(&fs::read_to_string(
        workspace().join("docs/reference/api.md"),
    )?)?;
    ensure!((12..=30).contains(&rows.len()), "{} rows", rows.len());
    let setting = Setting::start(
        ControlPlane::builder().controller_manager(false),
        Pair::builder(),
    )
    .await?;
    let world = World::create(setting.control_plane.client().await?, &objects).await?;
    let mut wrong = Vec::new();
    for row in &rows {
        if let Err(error) = world.check(row).await {
            wrong.push(format!("{}: {} {error:#}", row.about, json!(row.spec)));
        }
    }
    ensure!(
        wrong.is_empty(),
        "{} of {} rows are wrong: {wrong:#?}",
        wrong.len(),
        rows.len()
    );
    Ok(())
}
