//! The edits of a round: random changes of namespaces, sources, rules, grants, copies and foreign
//! objects, and new pods.
//!
//! Each edit is a request that the API server accepts or refuses. The model's world records the
//! result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ObjectMeta, Patch};
use kube::core::DynamicObject;
use kube::{Api, Client};
use mimeo_tests::eventually;
use mimeo_tests::scenario::SOON;
use serde_json::{Value, json};

use super::cluster::{
    Decision, body, create, delete, in_force, map, objects, observe, patch, read,
};
use super::dice::Dice;
use super::judge::{ALWAYS, EDITED, EXTRA, Object, Round};
use super::memory::Memory;
use super::model::{
    Access, Cell, Content, Foreign, Gate, KINDS, Kind, Rule, RuleId, Verdict, World,
};
use super::pods::{Pod, Pods};

pub const TEAMS: [&str; 2] = ["red", "green"];
pub const TIERS: [&str; 2] = ["gold", "iron"];
/// The number of fixed names of namespaces that are created and deleted. As many others get
/// generated names.
const SLOTS: u64 = 3;
const MOST_NAMESPACES: usize = 6;
pub const SOURCES: u64 = 4;
pub const RULES: u64 = 4;

pub struct Exam {
    pub client: Client,
    pub tag: String,
    pub dice: Dice,
    pub world: World,
    pub memory: Memory,
    pub round: Round,
    pub pods: Pods,
    /// The number of edits in this round so far.
    pub edits: usize,
    /// Answers that contradict the documents.
    pub complaints: Vec<String>,
    /// The number of the round's states so far.
    pub steps: Arc<AtomicUsize>,
    pub count: usize,
}

fn told<T>(outcome: &Decision<T>) -> String {
    outcome.as_ref().err().map_or_else(
        || "done".to_owned(),
        |status| format!("{} {}", status.code, status.message),
    )
}

impl Exam {
    pub async fn new(client: Client, tag: String, seed: u64) -> Result<Self> {
        let mut exam = Self {
            client,
            tag,
            dice: Dice(seed),
            world: World::default(),
            memory: Memory::default(),
            round: Round::default(),
            pods: Pods::default(),
            edits: 0,
            complaints: Vec::new(),
            steps: Arc::default(),
            count: 0,
        };
        exam.begin_round();
        for name in [exam.home(), exam.tenant()] {
            exam.create_namespace(Some(name), BTreeMap::new(), 0)
                .await?;
        }
        for number in 0..SOURCES {
            exam.write_source(&exam.source(number)).await?;
        }
        for number in 0..2 {
            exam.write_source(&exam.own(number)).await?;
        }
        exam.write_grant(&exam.home(), Access::Read, KINDS.into())
            .await?;
        for _ in 0..4 {
            exam.add_namespace().await?;
        }
        for number in 0..=RULES {
            exam.write_rule(&exam.rule_id(number)).await?;
        }
        Ok(exam)
    }

    pub fn begin_round(&mut self) {
        self.round = Round {
            states: vec![self.world.clone()],
            ..Round::default()
        };
        self.steps.store(0, Ordering::SeqCst);
        self.edits = 0;
    }

    pub fn home(&self) -> String {
        format!("{}-home", self.tag)
    }

    pub fn tenant(&self) -> String {
        format!("{}-tenant", self.tag)
    }

    fn count(&mut self) -> usize {
        self.count += 1;
        self.count
    }

    pub fn source(&self, number: u64) -> Cell {
        let kind = KINDS[usize::from(number.is_multiple_of(2))];
        Cell {
            namespace: self.home(),
            kind,
            name: format!("s{number}"),
        }
    }

    /// Returns a source in the tenant's own namespace.
    pub fn own(&self, number: u64) -> Cell {
        let kind = KINDS[usize::from(number.is_multiple_of(2))];
        Cell {
            namespace: self.tenant(),
            kind,
            name: format!("own{number}"),
        }
    }

    /// The last two are Replications: one that writes into other namespaces, and one that reads
    /// from another.
    pub fn rule_id(&self, number: u64) -> RuleId {
        if number < RULES {
            RuleId {
                home: None,
                name: format!("{}-c{number}", self.tag),
            }
        } else {
            RuleId {
                home: Some(self.tenant()),
                name: format!("{}-r{number}", self.tag),
            }
        }
    }

    /// Records the present world as a new state of the round, and prints the edit that led to it.
    /// Its time tells where it belongs between the lines of Mimeo's logs.
    pub fn note(&mut self, what: &str) {
        self.edits += 1;
        eprintln!("{:.6}  {}. {what}", Timestamp::now(), self.edits);
        self.round.states.push(self.world.clone());
        self.steps.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until each rule with a pod gate reports that the gate is in force.
    pub async fn await_force(&self) -> Result<BTreeSet<RuleId>> {
        let gated = |rule: &Rule| rule.spec.gate != Gate::None && !rule.spec.suspend;
        let rules = self
            .world
            .rules
            .iter()
            .filter(|(id, rule)| id.home.is_none() && gated(rule));
        let wanted: BTreeSet<&RuleId> = rules.map(|(id, _)| id).collect();
        eventually(SOON, "pod gates in force", || async {
            let force = in_force(&self.client).await?;
            let missing: Vec<_> = wanted.iter().filter(|id| !force.contains(**id)).collect();
            ensure!(missing.is_empty(), "not in force: {missing:?}");
            Ok(Some(force))
        })
        .await
    }

    /// Waits until deleted namespaces are gone. Nothing of Mimeo's holds them.
    pub async fn await_ends(&self) -> Result<()> {
        eventually(SOON, "the end of namespaces", || async {
            let observed = observe(&self.client, &self.tag).await?;
            let left = observed
                .namespaces
                .iter()
                .filter(|(name, seen)| seen.terminating && name.starts_with(&self.tag));
            let left: Vec<&String> = left.map(|(name, _)| name).collect();
            ensure!(left.is_empty(), "still there: {left:?}");
            Ok(Some(()))
        })
        .await
    }

    /// A user does one random action. With `gates`, the action mostly concerns namespaces and pods.
    pub async fn act(&mut self, gates: bool) -> Result<()> {
        let kinds = if gates && !self.dice.once_in(4) {
            14
        } else {
            40
        };
        match self.dice.below(kinds) {
            0..4 => self.add_namespace().await,
            4..8 => self.relabel().await,
            8..10 => self.flap().await,
            10 => self.delete_namespace().await,
            11..14 => {
                self.add_pod();
                Ok(())
            }
            14..16 => {
                let source = self.some_source();
                self.write_source(&source).await
            }
            16..18 => {
                let source = self.some_source();
                self.delete_source(&source).await
            }
            18 => self.swap_source().await,
            19..25 => {
                let id = self.some_rule();
                self.write_rule(&id).await
            }
            25..27 => {
                let id = self.some_rule();
                self.delete_rule(&id).await
            }
            27 => self.swap_rule().await,
            28 => self.toggle_grant().await,
            29..37 => self.meddle().await,
            37..39 => self.put_in_the_way().await,
            _ => self.take_out_of_the_way().await,
        }
    }

    // ---- Namespaces ----

    async fn add_namespace(&mut self) -> Result<()> {
        if self.world.namespaces.len() >= MOST_NAMESPACES + 2 {
            return self.delete_namespace().await;
        }
        let name = format!("{}-n{}", self.tag, self.dice.below(SLOTS * 2));
        let slot = !self.world.namespaces.contains_key(&name) && self.dice.below(2) == 0;
        let mut labels = map(&[("team", self.dice.one_of(&TEAMS).unwrap_or_default())]);
        if self.dice.once_in(3) {
            labels.insert(
                "tier".to_owned(),
                self.dice.one_of(&TIERS).unwrap_or_default().to_owned(),
            );
        }
        if self.dice.once_in(8) {
            labels.remove("team");
        }
        let pods = self.dice.below(3);
        self.create_namespace(slot.then_some(name), labels, pods)
            .await
    }

    async fn create_namespace(
        &mut self,
        name: Option<String>,
        labels: super::model::Map,
        pods: u64,
    ) -> Result<()> {
        let generate = name.is_none().then(|| format!("{}-g-", self.tag));
        let metadata = ObjectMeta {
            name,
            generate_name: generate,
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        };
        let wanted = Namespace {
            metadata,
            ..Namespace::default()
        };
        let api: Api<Namespace> = Api::all(self.client.clone());
        let created = match create(&api, &wanted).await? {
            Ok(created) => created.metadata,
            // A former namespace of this name is still being deleted.
            Err(status) if status.code == 409 => return Ok(()),
            Err(status) => bail!("a namespace was refused: {}", status.message),
        };
        let (name, uid) = (
            created.name.unwrap_or_default(),
            created.uid.unwrap_or_default(),
        );
        self.world.namespaces.insert(
            name.clone(),
            super::model::Namespace {
                uid,
                labels: labels.clone(),
            },
        );
        self.note(&format!(
            "create namespace {name} {labels:?} with {pods} pods"
        ));
        for _ in 0..pods {
            self.create_pod(&name);
        }
        Ok(())
    }

    fn create_pod(&mut self, namespace: &str) {
        let generated = self.dice.below(2) == 0;
        let name = format!("pod-{}", self.count());
        let steps = self.steps.clone();
        self.pods.spawn(
            &self.client,
            Pod::new(namespace, &name, generated, &self.round, &self.world),
            steps,
        );
    }

    fn some_namespace(&mut self) -> Option<String> {
        let home = self.home();
        let names: Vec<String> = self
            .world
            .namespaces
            .keys()
            .filter(|name| **name != home)
            .cloned()
            .collect();
        self.dice.one_of(&names)
    }

    fn add_pod(&mut self) {
        if let Some(name) = self.some_namespace() {
            self.create_pod(&name);
            self.note(&format!("create a pod in {name}"));
        }
    }

    async fn relabel(&mut self) -> Result<()> {
        let Some(name) = self.some_namespace() else {
            return Ok(());
        };
        let (key, value) = if self.dice.once_in(4) {
            (
                "tier",
                self.dice
                    .one_of(&[Some("gold"), Some("iron"), None])
                    .flatten(),
            )
        } else {
            (
                "team",
                self.dice
                    .one_of(&[Some("red"), Some("green"), None])
                    .flatten(),
            )
        };
        self.label(&name, key, value).await?;
        if self.dice.below(2) == 0 {
            self.create_pod(&name);
            self.note(&format!("create a pod in {name}"));
        }
        Ok(())
    }

    async fn label(&mut self, name: &str, key: &str, value: Option<&str>) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let change = Patch::Merge(json!({"metadata": {"labels": {key: value}}}));
        let outcome = patch(&api, name, change).await?;
        if let Err(status) = outcome {
            bail!("labels of {name} were refused: {}", status.message);
        }
        let labels = &mut self
            .world
            .namespaces
            .get_mut(name)
            .context("no such namespace")?
            .labels;
        match value {
            Some(value) => labels.insert(key.to_owned(), value.to_owned()),
            None => labels.remove(key),
        };
        self.note(&format!("label {name} {key}={value:?}"));
        Ok(())
    }

    /// Takes a namespace from its team, and gives it back while its copies are being deleted.
    /// Creates a pod at once.
    async fn flap(&mut self) -> Result<()> {
        let Some(name) = self.some_namespace() else {
            return Ok(());
        };
        let Some(team) = self.world.namespaces[&name].labels.get("team").cloned() else {
            return Ok(());
        };
        self.label(&name, "team", None).await?;
        tokio::time::sleep(Duration::from_millis(self.dice.below(800))).await;
        self.label(&name, "team", Some(&team)).await?;
        self.create_pod(&name);
        self.note(&format!("create a pod in {name}"));
        Ok(())
    }

    async fn delete_namespace(&mut self) -> Result<()> {
        let tenant = self.tenant();
        let Some(name) = self.some_namespace().filter(|name| *name != tenant) else {
            return Ok(());
        };
        if self.world.namespaces.len() < 6 {
            return Ok(());
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        if let Err(status) = delete(&api, &name).await? {
            bail!("{name} was not deleted: {}", status.message);
        }
        self.world.namespaces.remove(&name);
        self.world.foreign.retain(|cell, _| cell.namespace != name);
        self.world
            .grants
            .retain(|(namespace, _), _| *namespace != name);
        self.note(&format!("delete namespace {name}"));
        Ok(())
    }

    // ---- Sources ----

    fn some_source(&mut self) -> Cell {
        let number = self.dice.below(SOURCES + 2);
        if number < SOURCES {
            self.source(number)
        } else {
            self.own(number - SOURCES)
        }
    }

    async fn write_source(&mut self, cell: &Cell) -> Result<()> {
        let number = self.count().to_string();
        let mut content = Content {
            data: map(&[
                ("text", &format!("{}-{number}", cell.name)),
                ("extra", ALWAYS),
            ]),
            labels: map(&[
                ("app", cell.name.as_str()),
                ("argocd.argoproj.io/instance", "never"),
            ]),
            annotations: map(&[("exam/note", "first")]),
        };
        // Some edits change fields that copies may not carry.
        if let Some(before) = self.world.sources.get(cell)
            && self.dice.once_in(4)
        {
            content = before.clone();
            content.annotations.insert(
                "kubectl.kubernetes.io/last-applied-configuration".to_owned(),
                number,
            );
        } else if self.dice.once_in(4) {
            content.annotations.insert("exam/note".to_owned(), number);
        }
        let api = objects(&self.client, cell.kind, Some(&cell.namespace))?;
        let mut object = body(cell.kind, &content);
        let exists = self.world.sources.contains_key(cell);
        let outcome = if exists {
            let change = Patch::Merge(object);
            patch(&api, &cell.name, change).await?
        } else {
            object["metadata"]["name"] = json!(cell.name);
            let object: DynamicObject = serde_json::from_value(object)?;
            create(&api, &object).await?
        };
        let written = outcome.map_err(|status| {
            anyhow::anyhow!("{} of {}: {}", status.code, cell.name, status.message)
        })?;
        self.world
            .sources
            .insert(cell.clone(), read(cell.kind, &written).content);
        self.note(&format!(
            "{} source {}",
            if exists { "edit" } else { "create" },
            cell.name
        ));
        Ok(())
    }

    async fn delete_source(&mut self, cell: &Cell) -> Result<()> {
        if self.world.sources.remove(cell).is_some() {
            self.remove(cell)
                .await?
                .map_err(|status| anyhow::anyhow!("{}", status.message))?;
            self.note(&format!("delete source {}", cell.name));
        }
        Ok(())
    }

    /// Deletes a source and creates it again at once.
    async fn swap_source(&mut self) -> Result<()> {
        let cell = self.some_source();
        self.delete_source(&cell).await?;
        self.write_source(&cell).await
    }

    async fn remove(&self, cell: &Cell) -> Result<Decision<()>> {
        let api = objects(&self.client, cell.kind, Some(&cell.namespace))?;
        delete(&api, &cell.name).await
    }

    // ---- Copies ----

    /// A user changes or deletes a copy.
    async fn meddle(&mut self) -> Result<()> {
        let live = |cell: &&Cell| {
            self.world.namespaces.contains_key(&cell.namespace)
                && !self.world.foreign.contains_key(*cell)
        };
        let cells: Vec<Cell> = self.memory.copies.keys().filter(live).cloned().collect();
        let Some(cell) = self.dice.one_of(&cells) else {
            return Ok(());
        };
        let extra = format!("{EXTRA}{}", self.count());
        let data = if cell.kind == Kind::Secret {
            "stringData"
        } else {
            "data"
        };
        let renamed = self.memory.copies[&cell]
            .object
            .content
            .data
            .contains_key("renamed");
        let key = if renamed { "renamed" } else { "text" };
        let (what, change) = match self.dice.below(7) {
            0 => ("edit", json!({data: {key: EDITED}})),
            1 => (
                "strip the label of",
                json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}}),
            ),
            2 => ("strip all labels of", json!({"metadata": {"labels": null}})),
            3 => (
                "clear managedFields of",
                json!({"metadata": {"managedFields": [{}]}}),
            ),
            4 => (
                "label",
                json!({"metadata": {"labels": {extra.as_str(): "theirs"}}}),
            ),
            5 => ("add data to", json!({data: {extra.as_str(): "theirs"}})),
            _ => ("delete", Value::Null),
        };
        let tampers = what.starts_with("strip") || what.starts_with("clear");
        let outcome = if change.is_null() {
            self.remove(&cell).await?.map(|()| None)
        } else {
            let api = objects(&self.client, cell.kind, Some(&cell.namespace))?;
            let change = Patch::Merge(change);
            patch(&api, &cell.name, change).await?.map(Some)
        };
        let said = format!(
            "{what} {} {}/{} ({extra}): {}",
            cell.kind.name(),
            cell.namespace,
            cell.name,
            told(&outcome)
        );
        self.check_denial(&cell, &said, &outcome);
        match outcome {
            Ok(None) => drop(self.round.deleted.insert(cell)),
            Ok(Some(object)) => {
                let Object { uid, content, .. } = read(cell.kind, &object);
                if tampers {
                    self.round.tampered.insert(uid.clone());
                }
                if content.labels.contains_key(&extra) || content.data.contains_key(&extra) {
                    self.memory.extras.insert(extra, uid.clone());
                }
                if what == "edit" {
                    self.memory.edited.insert(uid.clone());
                }
                self.round.answered.insert(uid, content);
            }
            Err(_) => {}
        }
        self.note(&said);
        Ok(())
    }

    /// A change of a copy is refused only for `driftPolicy: Deny`, and then always while a webhook
    /// answers.
    fn check_denial<T>(&mut self, cell: &Cell, said: &str, outcome: &Decision<T>) {
        let denies = |state: &World| {
            let mut rules = state.claims(cell).into_keys();
            rules.any(|id| state.rules[&id].spec.deny && !state.rules[&id].spec.suspend)
        };
        match outcome {
            Err(status) if status.code == 403 && !self.round.states.iter().any(denies) => {
                self.complaints
                    .push(format!("refused without a rule that denies it: {said}"));
            }
            Err(status) if ![403, 404].contains(&status.code) => {
                self.complaints.push(format!("refused: {said}"));
            }
            Ok(_) if !self.round.killed_webhook && !self.round.deleted.contains(cell) => {
                let Some(held) = self.memory.copies.get(cell) else {
                    return;
                };
                let owned = held
                    .object
                    .content
                    .labels
                    .get("mimeo.dev/drift")
                    .is_some_and(|drift| drift == "deny");
                let uid = &held.object.uid;
                let rough =
                    self.round.tampered.contains(uid) || self.round.answered.contains_key(uid);
                let steady = |state: &World| {
                    denies(state)
                        && matches!(state.verdict(cell, Some(&held.holder)), Verdict::Wanted(rules, _) if rules.contains(&held.holder.rule))
                };
                if owned && !rough && self.round.states.iter().all(steady) {
                    self.complaints
                        .push(format!("not refused though its rule denies it: {said}"));
                }
            }
            _ => {}
        }
    }

    // ---- Objects in the way ----

    async fn put_in_the_way(&mut self) -> Result<()> {
        let Some(namespace) = self.some_namespace() else {
            return Ok(());
        };
        let id = self.some_rule();
        let source = if id == self.rule_id(RULES) {
            self.own(0)
        } else {
            self.some_source()
        };
        let shared = self.dice.once_in(4);
        let name = format!(
            "{}-{}",
            if shared { "shared" } else { id.word() },
            source.name
        );
        let cell = Cell {
            namespace,
            kind: source.kind,
            name,
        };
        let extra = format!("{EXTRA}{}", self.count());
        // Some foreign objects have the content of the copy.
        let mut content = Content {
            data: map(&[(extra.as_str(), "foreign")]),
            ..Content::default()
        };
        if let (Some(rule), Some(of), true) = (
            self.world.rules.get(&id),
            self.world.sources.get(&source),
            self.dice.once_in(2),
        ) {
            content.data = rule.spec.render(&id, &source, of, &cell.namespace).data;
        }
        let mut object = body(cell.kind, &content);
        object["metadata"]["name"] = json!(cell.name);
        let object: DynamicObject = serde_json::from_value(object)?;
        let api = objects(&self.client, cell.kind, Some(&cell.namespace))?;
        let outcome = create(&api, &object).await?;
        let said = format!(
            "put {} {}/{}: {}",
            cell.kind.name(),
            cell.namespace,
            cell.name,
            told(&outcome)
        );
        if let Ok(object) = outcome {
            let Object { uid, version, .. } = read(cell.kind, &object);
            if content.data.values().any(|value| value == ALWAYS) {
                self.memory.edited.insert(uid.clone());
            }
            self.memory.extras.insert(extra, uid.clone());
            self.world.foreign.insert(cell, Foreign { uid, version });
        }
        self.note(&said);
        Ok(())
    }

    async fn take_out_of_the_way(&mut self) -> Result<()> {
        let cells: Vec<Cell> = self.world.foreign.keys().cloned().collect();
        let Some(cell) = self.dice.one_of(&cells) else {
            return Ok(());
        };
        let outcome = self.remove(&cell).await?;
        self.world.foreign.remove(&cell);
        self.round.deleted.insert(cell.clone());
        self.note(&format!(
            "take away {}/{}: {}",
            cell.namespace,
            cell.name,
            told(&outcome)
        ));
        Ok(())
    }
}
