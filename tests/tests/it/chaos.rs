//! A random run that kills either program at random points. It must end in the state that the rules
//! describe.
//!
//! The test computes that state only from the users' actions. The seed of the run is printed, and
//! `MIMEO_CHAOS_SEED` repeats it. A seed fixes the order of actions and kills, but not the races
//! between the processes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use mimeo_api::ClusterReplication;
use mimeo_tests::scenario::{
    RuleSpec, SOON, Setting, delete, of, relabel, rule, value, version, wait_for,
};
use mimeo_tests::traffic::stubbornly;
use mimeo_tests::{ControlPlane, NAMESPACE, Pair, Replica, create_namespace, eventually, unique};
use serde_json::{Value, json};

const SEED: &str = "MIMEO_CHAOS_SEED";
/// The number of kills of a leading reconciler, and also of kills of either program at any moment.
/// The latter mostly hit a program that has just started.
const KILLS: usize = 12;
/// The Lease of the leading reconciler.
const LEASE: &str = "mimeo-reconciler";
/// The largest number of the users' actions between two kills, and while a program is down.
const STRIDE: u64 = 12;
const DOWN: u64 = 5;
/// The longest time for which a program is down. Users may wait for it.
const PATIENCE: Duration = Duration::from_millis(300);
/// The longest time between an action and a kill, in milliseconds. During this time the programs
/// work on the action.
const AIM: u64 = 40;
const NAMESPACES: usize = 12;
const TEAMS: [&str; 3] = ["red", "green", "blue"];
const RULES: u64 = 4;
const SOURCES: u64 = 5;

#[tokio::test]
async fn whoever_is_killed_the_rules_prevail() -> Result<()> {
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed
            .parse()
            .with_context(|| format!("{SEED} is no number"))?,
        Err(_) => RandomState::new().hash_one("seed"),
    };
    eprintln!("{SEED}={seed}");
    let control_plane = ControlPlane::builder().audit(true);
    // Large losses, which Mimeo holds until a person confirms them, belong to another test.
    let lease = ["--lease-retry-period", "300ms"];
    let sweeps = [
        "--deletion-delay",
        "500ms",
        "--deletion-limit",
        "1000000",
        "--log-level",
        "info,mimeo_runtime=debug",
    ];
    let pair = Pair::builder().reconciler_args(lease.into_iter().chain(sweeps));
    let mut setting = Setting::start(control_plane, pair).await?;

    let client = setting.control_plane.client().await?;
    let leases = of(&client, NAMESPACE);
    let audit = setting.control_plane.audit_mark().await?;
    let mut people = People::settle(client, Dice(seed)).await?;
    let steps = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    let living = async {
        while !over.load(Ordering::Relaxed) {
            people.act().await?;
            steps.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let killing = async {
        let done = kill_again_and_again(&mut setting.pair, &leases, Dice(!seed), &steps).await;
        over.store(true, Ordering::Relaxed);
        done
    };
    let ((), led) = tokio::try_join!(living, killing)?;
    eprintln!(
        "{} steps, {} kills, {led} of them of a leader",
        steps.load(Ordering::Relaxed),
        2 * KILLS
    );
    assert!(led >= KILLS, "only {led} of {KILLS} led");

    let outcome = people.end_as_the_rules_say().await;
    if outcome.is_err() {
        eprintln!("the actions:\n{}", people.diary.join("\n"));
        people.tell_what_is_amiss().await?;
    }
    outcome?;
    let events = setting.control_plane.audit_since(&audit).await?;
    let at_sources = |event: &&mimeo_tests::AuditEvent| {
        setting.is_ours(event) && event.is_write() && event.namespace == people.home
    };
    let written: Vec<_> = events.iter().filter(at_sources).collect();
    assert!(written.is_empty(), "sources were written: {written:#?}");
    Ok(())
}

/// Kills the programs again and again. Returns how many of the killed reconcilers were leading.
async fn kill_again_and_again(
    pair: &mut Pair,
    leases: &Api<Lease>,
    mut dice: Dice,
    steps: &AtomicUsize,
) -> Result<usize> {
    let mut led = 0;
    for kill in 0..2 * KILLS {
        let leader = kill.is_multiple_of(2);
        let reconciler = leader || dice.below(2) == 0;
        let mut victim = if reconciler {
            pair.reconciler.take()
        } else {
            pair.webhooks.pop()
        }
        .context("no program runs")?;
        if leader {
            wait_for(leases.clone(), LEASE.to_owned(), |lease| {
                leads(lease, &victim)
            })
            .await?;
        }
        take(steps, dice.below(STRIDE)).await?;
        tokio::time::sleep(Duration::from_millis(dice.below(AIM))).await;
        victim.program.kill()?;
        // The killed process could not release its Lease, so the Lease still names it. The test
        // does not wait until it expires: the time would have to be short, and on a busy machine
        // leaders would lose it, too.
        let lease = leases.get_opt(LEASE).await?;
        if lease.is_some_and(|lease| leads(&lease, &victim)) {
            led += 1;
            delete(leases, LEASE).await?;
        }
        // The users may have to wait for the program: while no webhook runs, no rule can be
        // written.
        let _ = tokio::time::timeout(PATIENCE, take(steps, dice.below(DOWN))).await;
        if reconciler {
            pair.start_reconciler().await?;
        } else {
            pair.start_webhook().await?;
        }
    }
    Ok(led)
}

fn leads(lease: &Lease, replica: &Replica) -> bool {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_ref())
        == Some(&replica.name)
}

/// Waits until the users have done this many more actions.
async fn take(steps: &AtomicUsize, more: u64) -> Result<()> {
    let until = steps.load(Ordering::Relaxed) + usize::try_from(more)?;
    eventually(SOON, "people to go on", || async {
        Ok((steps.load(Ordering::Relaxed) >= until).then_some(()))
    })
    .await
}

/// Random numbers that a seed determines (`SplitMix64`).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let limit = u64::try_from(all.len()).ok().filter(|limit| *limit > 0)?;
        all.get(usize::try_from(self.below(limit)).ok()?)
    }
}

/// The users' last wishes, and their own objects.
struct People {
    client: Client,
    dice: Dice,
    /// The prefix of every name.
    tag: String,
    /// The namespace of the sources.
    home: String,
    /// Names of namespaces, each with the value of its label `team`.
    namespaces: BTreeMap<String, Option<&'static str>>,
    /// Namespaces that were created and deleted, or are being deleted.
    left: BTreeSet<String>,
    /// Numbers of the existing sources, each with its text and its resourceVersion.
    sources: BTreeMap<u64, (String, String)>,
    rules: BTreeMap<u64, Wish>,
    /// The users' own objects under names of copies: resourceVersions by namespace and name.
    own: BTreeMap<(String, String), String>,
    /// The actions so far, for the report of a failed test.
    diary: Vec<String>,
}

/// A rule as its author wants it.
#[derive(Clone)]
struct Wish {
    team: &'static str,
    sources: BTreeSet<u64>,
}

/// All objects of a namespace without those of the system: the value of their only key, by name.
type Contents = BTreeMap<String, String>;

/// The only key of every object.
const KEY: &str = "text";

/// Sources with even numbers are Secrets, the others are ConfigMaps.
fn is_secret(source: u64) -> bool {
    source.is_multiple_of(2)
}

fn source_name(source: u64) -> String {
    format!("source-{source}")
}

/// Returns the name of a copy. Rules have different names, so two rules never want the same cell.
fn copy_name(rule: u64, source: u64) -> String {
    format!("rule-{rule}-{}", source_name(source))
}

impl People {
    async fn settle(client: Client, mut dice: Dice) -> Result<Self> {
        let tag = unique("chaos");
        let home = format!("{tag}-home");
        create_namespace(&client, &home, &[]).await?;
        let seed = dice.roll();
        let mut people = Self {
            client,
            dice: Dice(seed),
            tag,
            home,
            namespaces: BTreeMap::new(),
            left: BTreeSet::new(),
            sources: BTreeMap::new(),
            rules: BTreeMap::new(),
            own: BTreeMap::new(),
            diary: Vec::new(),
        };
        for source in 0..SOURCES {
            people.write_source(source).await?;
        }
        for rule in 0..RULES {
            people.write_rule(rule).await?;
        }
        for _ in 0..NAMESPACES / 2 {
            people.add_namespace().await?;
        }
        Ok(people)
    }

    /// A user does one random action.
    async fn act(&mut self) -> Result<()> {
        match self.dice.below(20) {
            0..3 => self.add_namespace().await,
            3 => self.delete_namespace().await,
            4..8 => self.relabel().await,
            8..11 => {
                let source = self.dice.below(SOURCES);
                self.write_source(source).await
            }
            11 => self.delete_source().await,
            12..14 => {
                let rule = self.dice.below(RULES);
                self.write_rule(rule).await
            }
            14 => self.delete_rule().await,
            15..17 => self.meddle().await,
            17..19 => self.put_something_in_the_way().await,
            _ => self.take_it_out_of_the_way().await,
        }
    }

    fn note(&mut self, what: String) {
        self.diary.push(what);
    }

    fn team(&mut self) -> &'static str {
        TEAMS[usize::try_from(self.dice.below(3)).unwrap_or_default()]
    }

    async fn add_namespace(&mut self) -> Result<()> {
        if self.namespaces.len() >= NAMESPACES {
            return Ok(());
        }
        let (name, team) = (unique(&self.tag), self.team());
        create_namespace(&self.client, &name, &[("team", team)]).await?;
        self.note(format!("create {name} for {team}"));
        self.namespaces.insert(name, Some(team));
        Ok(())
    }

    fn some_namespace(&mut self) -> Option<String> {
        let names: Vec<String> = self.namespaces.keys().cloned().collect();
        self.dice.one_of(&names).cloned()
    }

    async fn delete_namespace(&mut self) -> Result<()> {
        let Some(name) = self.some_namespace().filter(|_| self.namespaces.len() > 4) else {
            return Ok(());
        };
        Api::<Namespace>::all(self.client.clone())
            .delete(&name, &DeleteParams::default())
            .await?;
        self.note(format!("delete {name}"));
        self.namespaces.remove(&name);
        self.own.retain(|(namespace, _), _| *namespace != name);
        self.left.insert(name);
        Ok(())
    }

    async fn relabel(&mut self) -> Result<()> {
        let Some(name) = self.some_namespace() else {
            return Ok(());
        };
        let team = (self.dice.below(4) > 0).then(|| self.team());
        // With the default policy, a killed webhook does not block this request.
        relabel(&self.client, &name, "team", team).await?;
        self.note(format!("give {name} to {team:?}"));
        self.namespaces.insert(name, team);
        Ok(())
    }

    async fn write_source(&mut self, source: u64) -> Result<()> {
        let (name, text) = (source_name(source), format!("{:x}", self.dice.roll()));
        let version = if self.sources.contains_key(&source) {
            overwrite(&self.client, &self.home, &name, &text).await??
        } else {
            create(&self.client, &self.home, &name, &text).await??
        };
        self.note(format!("write {name}: {text}"));
        self.sources.insert(source, (text, version));
        Ok(())
    }

    async fn delete_source(&mut self) -> Result<()> {
        let there: Vec<u64> = self.sources.keys().copied().collect();
        let Some(source) = self.dice.one_of(&there).copied() else {
            return Ok(());
        };
        remove(&self.client, &self.home, &source_name(source)).await??;
        self.note(format!("delete {}", source_name(source)));
        self.sources.remove(&source);
        Ok(())
    }

    async fn write_rule(&mut self, number: u64) -> Result<()> {
        let mut sources: BTreeSet<u64> = (0..2).map(|_| self.dice.below(SOURCES)).collect();
        sources.insert(self.dice.below(SOURCES));
        let wish = Wish {
            team: self.team(),
            sources,
        };
        let spec = self.spec(number, &wish);
        let client = self.client.clone();
        // A rule is stored only after the webhook's check. While no webhook runs, the author
        // retries.
        if self.rules.contains_key(&number) {
            let rules: Api<ClusterReplication> = Api::all(client);
            let patch = json!([{"op": "replace", "path": "/spec", "value": spec.spec}]);
            let (params, patch) = (
                PatchParams::default(),
                Patch::Json::<()>(serde_json::from_value(patch)?),
            );
            stubbornly(|| rules.patch(&spec.name, &params, &patch)).await?;
        } else {
            let object = spec.object();
            stubbornly(|| mimeo_tests::scenario::create(&client, "clusterreplications", &object))
                .await?;
        }
        self.note(format!(
            "{} copies {:?} for {}",
            spec.name, wish.sources, wish.team
        ));
        self.rules.insert(number, wish);
        Ok(())
    }

    fn spec(&self, number: u64, wish: &Wish) -> RuleSpec {
        let mut spec = rule(&format!("{}-{number}", self.tag)).to_label("team", wish.team);
        for source in &wish.sources {
            let kind = if is_secret(*source) {
                "Secret"
            } else {
                "ConfigMap"
            };
            spec = spec.source("v1", kind, &self.home, &source_name(*source));
        }
        let retention = json!({"sourceGracePeriodSeconds": number % 2});
        spec.named(&format!("rule-{number}-$(source.name)"))
            .set("retentionPolicy", retention)
    }

    async fn delete_rule(&mut self) -> Result<()> {
        let numbers: Vec<u64> = self.rules.keys().copied().collect();
        let Some(number) = self.dice.one_of(&numbers).copied() else {
            return Ok(());
        };
        let name = format!("{}-{number}", self.tag);
        Api::<ClusterReplication>::all(self.client.clone())
            .delete(&name, &DeleteParams::default())
            .await?;
        self.note(format!("delete {name}"));
        self.rules.remove(&number);
        Ok(())
    }

    /// Returns a namespace, and a copy that it may have.
    fn some_cell(&mut self) -> Option<(String, u64, u64)> {
        let namespace = self.some_namespace()?;
        Some((namespace, self.dice.below(RULES), self.dice.below(SOURCES)))
    }

    /// A user edits or deletes a copy, if it exists.
    async fn meddle(&mut self) -> Result<()> {
        let Some((namespace, rule, source)) = self.some_cell() else {
            return Ok(());
        };
        let name = copy_name(rule, source);
        if self.own.contains_key(&(namespace.clone(), name.clone())) {
            return Ok(());
        }
        let edit = self.dice.below(2) == 0;
        let outcome = if edit {
            overwrite(&self.client, &namespace, &name, "edited")
                .await?
                .map(|_| ())
        } else {
            remove(&self.client, &namespace, &name).await?
        };
        self.note(format!(
            "{} {namespace}/{name}: {}",
            if edit { "edit" } else { "delete" },
            told(&outcome)
        ));
        unless(404, outcome)?;
        Ok(())
    }

    /// A user creates an object under a copy's name, if the name is free.
    async fn put_something_in_the_way(&mut self) -> Result<()> {
        let Some((namespace, rule, source)) = self.some_cell() else {
            return Ok(());
        };
        let name = copy_name(rule, source);
        let outcome = create(&self.client, &namespace, &name, "their own").await?;
        self.note(format!("put {namespace}/{name}: {}", told(&outcome)));
        if let Some(version) = unless(409, outcome)? {
            self.own.insert((namespace, name), version);
        }
        Ok(())
    }

    async fn take_it_out_of_the_way(&mut self) -> Result<()> {
        let own: Vec<(String, String)> = self.own.keys().cloned().collect();
        let Some((namespace, name)) = self.dice.one_of(&own).cloned() else {
            return Ok(());
        };
        remove(&self.client, &namespace, &name).await??;
        self.note(format!("take {namespace}/{name}"));
        self.own.remove(&(namespace, name));
        Ok(())
    }

    /// Returns the contents of a namespace at the end.
    fn expected(&self, namespace: &str, team: Option<&str>) -> Contents {
        let mut contents = Contents::new();
        for (number, wish) in self
            .rules
            .iter()
            .filter(|(_, wish)| Some(wish.team) == team)
        {
            let there = wish
                .sources
                .iter()
                .filter_map(|source| Some((source, self.sources.get(source)?)));
            contents.extend(
                there.map(|(source, (text, _))| (copy_name(*number, *source), text.clone())),
            );
        }
        let own = self.own.keys().filter(|(theirs, _)| theirs == namespace);
        contents.extend(own.map(|(_, name)| (name.clone(), "their own".to_owned())));
        contents
    }

    async fn end_as_the_rules_say(&self) -> Result<()> {
        eventually(SOON * 2, "the state that the rules describe", || async {
            self.check_copies().await?;
            self.check_namespaces().await?;
            Ok(Some(()))
        })
        .await?;
        for ((namespace, name), written) in &self.own {
            let now = version_of(&self.client, namespace, name).await?;
            assert_eq!(&now, written, "{namespace}/{name} is not Mimeo's");
        }
        for (source, (_, written)) in &self.sources {
            let now = version_of(&self.client, &self.home, &source_name(*source)).await?;
            assert_eq!(&now, written, "{} is a source", source_name(*source));
        }
        let home = contents(&self.client, &self.home).await?;
        assert_eq!(
            home.len(),
            self.sources.len(),
            "in the sources' namespace: {:?}",
            home.keys()
        );
        Ok(())
    }

    /// Prints the metadata of the wrong objects, for the report of a failed test.
    async fn tell_what_is_amiss(&self) -> Result<()> {
        for (namespace, team) in &self.namespaces {
            let (expected, found) = (
                self.expected(namespace, *team),
                contents(&self.client, namespace).await?,
            );
            for (name, _) in found
                .iter()
                .filter(|(name, text)| expected.get(*name) != Some(*text))
            {
                let object = objects(&self.client, namespace, name)?
                    .get_opt(name)
                    .await?;
                eprintln!(
                    "{namespace}/{name}: {:#?}",
                    object.map(|object| object.metadata)
                );
            }
        }
        Ok(())
    }

    async fn check_copies(&self) -> Result<()> {
        let compared = self.namespaces.iter().map(async |(namespace, team)| {
            let (expected, found) = (
                self.expected(namespace, *team),
                contents(&self.client, namespace).await?,
            );
            let differs = (expected != found)
                .then(|| format!("{namespace}: {found:#?}, and not {expected:#?}"));
            Ok::<_, anyhow::Error>(differs)
        });
        let differences: Vec<String> = try_join_all(compared)
            .await?
            .into_iter()
            .flatten()
            .collect();
        if differences.is_empty() {
            Ok(())
        } else {
            bail!("{}", differences.join("\n"))
        }
    }

    /// Checks the namespaces: their labels are the users' labels, no pending label is left, and
    /// deleted namespaces do not exist.
    async fn check_namespaces(&self) -> Result<()> {
        let all = Api::<Namespace>::all(self.client.clone())
            .list(&ListParams::default())
            .await?;
        for namespace in all.items.into_iter().map(|namespace| namespace.metadata) {
            let name = namespace.name.unwrap_or_default();
            if self.left.contains(&name) {
                bail!("{name} is still there");
            }
            let Some(team) = self.namespaces.get(&name) else {
                continue;
            };
            let mut labels = namespace.labels.unwrap_or_default();
            labels.remove("kubernetes.io/metadata.name");
            let given: BTreeMap<_, _> = team
                .iter()
                .map(|team| ("team".to_owned(), (*team).to_owned()))
                .collect();
            if labels != given
                || namespace
                    .annotations
                    .is_some_and(|annotations| !annotations.is_empty())
            {
                bail!("{name} has the labels {labels:?}, and not {given:?}, or annotations");
            }
        }
        Ok(())
    }
}

fn told<T>(outcome: &kube::Result<T>) -> String {
    outcome
        .as_ref()
        .err()
        .map_or_else(|| "done".to_owned(), ToString::to_string)
}

/// Returns `None` if the request was refused with this code.
fn unless<T>(code: u16, outcome: kube::Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(kube::Error::Api(status)) if status.code == code => Ok(None),
        Err(error) => Err(error.into()),
    }
}

// --- Secrets and ConfigMaps ---

/// Returns the API for the kind of the object with this name.
fn objects(client: &Client, namespace: &str, name: &str) -> Result<Api<DynamicObject>> {
    let source: u64 = name
        .rsplit('-')
        .next()
        .unwrap_or_default()
        .parse()
        .context("a name that ends in no number")?;
    Ok(of_kind(
        client,
        namespace,
        if is_secret(source) {
            "Secret"
        } else {
            "ConfigMap"
        },
    ))
}

fn of_kind(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Creates an object and returns its resourceVersion.
async fn create(
    client: &Client,
    namespace: &str,
    name: &str,
    text: &str,
) -> Result<kube::Result<String>> {
    let api = objects(client, namespace, name)?;
    let mut object: DynamicObject = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    object.data = with_text(name, text);
    Ok(api
        .create(&PostParams::default(), &object)
        .await
        .map(|created| version(&created)))
}

/// Gives an object another text and returns its resourceVersion.
async fn overwrite(
    client: &Client,
    namespace: &str,
    name: &str,
    text: &str,
) -> Result<kube::Result<String>> {
    let patch = Patch::Merge(with_text(name, text));
    let patched = objects(client, namespace, name)?
        .patch(name, &PatchParams::default(), &patch)
        .await;
    Ok(patched.map(|patched| version(&patched)))
}

async fn remove(client: &Client, namespace: &str, name: &str) -> Result<kube::Result<()>> {
    let removed = objects(client, namespace, name)?
        .delete(name, &DeleteParams::default())
        .await;
    Ok(removed.map(|_| ()))
}

fn with_text(name: &str, text: &str) -> Value {
    let secret = name
        .rsplit('-')
        .next()
        .and_then(|number| number.parse().ok())
        .is_some_and(is_secret);
    if secret {
        json!({"stringData": {KEY: text}})
    } else {
        json!({"data": {KEY: text}})
    }
}

async fn version_of(client: &Client, namespace: &str, name: &str) -> Result<String> {
    Ok(version(&objects(client, namespace, name)?.get(name).await?))
}

async fn contents(client: &Client, namespace: &str) -> Result<Contents> {
    let mut contents = Contents::new();
    for secret in of::<Secret>(client, namespace)
        .list(&ListParams::default())
        .await?
    {
        let text = value(&secret, KEY).unwrap_or_default();
        contents.insert(secret.metadata.name.unwrap_or_default(), text);
    }
    for map in of::<ConfigMap>(client, namespace)
        .list(&ListParams::default())
        .await?
    {
        let text = map
            .data
            .and_then(|mut data| data.remove(KEY))
            .unwrap_or_default();
        contents.insert(map.metadata.name.unwrap_or_default(), text);
    }
    Ok(contents)
}
