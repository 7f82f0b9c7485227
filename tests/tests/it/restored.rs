//! A backup restored in another cluster, where all uids differ: the promises of docs/how-to/backup.md
//! under "Restore".

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::PostParams;
use kube::core::DynamicObject;
use kube::{Api, Client};
use mimeo_api::ClusterReplication;
use mimeo_tests::author::{Author, WRITE, secrets};
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Setting, annotation, any, delete, kubectl, of, put, rule, uid, value,
    version, wait_for,
};
use mimeo_tests::{
    ControlPlane, NAMESPACE, Pair, create_namespace, eventually, install_crd, unique,
};
use serde_json::{Value, json};

const AUTHOR: &str = "mimeo.dev/author";
/// The Secret that webhooks create and restore.
const CERTIFICATE: &str = "mimeo-webhook-tls";
const REGISTRY: &str = "registry";

/// The objects in a backup, as the tool writes them elsewhere: without the fields that the old API
/// server filled in.
#[derive(Default)]
struct Backup(Vec<Value>);

impl Backup {
    async fn take(
        &mut self,
        client: &Client,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<()> {
        let api_version = if kind == "ClusterReplication" {
            "mimeo.dev/v1alpha1"
        } else {
            "v1"
        };
        let object = any(client, api_version, kind, namespace)?.get(name).await?;
        let mut object = serde_json::to_value(object)?;
        let fields = object.as_object_mut().context("no object")?;
        fields.insert("apiVersion".to_owned(), json!(api_version));
        fields.insert("kind".to_owned(), json!(kind));
        fields.remove("status");
        let metadata = fields["metadata"].as_object_mut().context("no metadata")?;
        metadata
            .retain(|field, _| ["name", "namespace", "labels", "annotations"].contains(&&**field));
        self.0.push(object);
        Ok(())
    }

    fn find(&self, kind: &str, name: &str) -> Result<&Value> {
        let found = self
            .0
            .iter()
            .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        found.with_context(|| format!("no {kind} {name}"))
    }
}

async fn restore(client: &Client, object: &Value) -> Result<DynamicObject> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let (api_version, kind) = text("/apiVersion").zip(text("/kind")).context("no kind")?;
    let api = any(client, api_version, kind, text("/metadata/namespace"))?;
    let object = serde_json::from_value(object.clone())?;
    Ok(api.create(&PostParams::default(), &object).await?)
}

/// The rules in the old cluster, and their author. The owner of a namespace keeps one copy for
/// good.
struct Old {
    backup: Backup,
    tag: String,
    home: String,
    namespaces: Vec<String>,
    /// The name of the author of all rules.
    author: String,
    /// One rule is in force at once, one is restored while the webhook runs, and one is
    /// `CreateOnce`.
    rules: [RuleSpec; 3],
}

impl Old {
    async fn new() -> Result<Self> {
        let setting =
            Setting::start(ControlPlane::builder(), Pair::builder().shipped_rights()).await?;
        let scene = setting.scene("restored").await?;
        scene.secret(REGISTRY, &[("token", "one")]).await?;
        let namespaces = scene.namespaces(3).await?;
        let ann = Author::new(&scene, &[]).await?;
        ann.may(None, &secrets(&[&WRITE[..], &["get"]].concat()))
            .await?;
        let rule = |name: &str| {
            rule(&unique(&scene.tag))
                .secret(&scene.home, REGISTRY)
                .to_label("scene", &scene.tag)
                .named(name)
        };
        let once = rule("once").set("strategy", json!("CreateOnce"));
        let rules = [rule("kept"), rule("late"), once];
        for rule in &rules {
            ann.accepted(rule).await?;
            scene.wait_synced(&rule.name).await?;
        }
        let mut backup = Backup::default();
        let client = &scene.client;
        backup.take(client, "Namespace", None, &scene.home).await?;
        backup
            .take(client, "Secret", Some(&scene.home), REGISTRY)
            .await?;
        for namespace in &namespaces {
            let remembers = |one: &Namespace| annotation(one, "mimeo.dev/seeded").is_some();
            wait_for(Api::all(client.clone()), namespace.clone(), remembers).await?;
            backup.take(client, "Namespace", None, namespace).await?;
        }
        for rule in &rules {
            backup
                .take(client, "ClusterReplication", None, &rule.name)
                .await?;
        }
        // The backup contains two copies, although the documents advise against it.
        backup
            .take(client, "Secret", Some(&namespaces[0]), "kept")
            .await?;
        backup
            .take(client, "Secret", Some(&namespaces[0]), "once")
            .await?;
        let (tag, home) = (scene.tag.clone(), scene.home.clone());
        let author = ann.name.clone();
        Ok(Self {
            backup,
            tag,
            home,
            namespaces,
            author,
            rules,
        })
    }
}

async fn noted(client: &Client, rule: &str) -> Result<Option<String>> {
    let rule = Api::<ClusterReplication>::all(client.clone())
        .get(rule)
        .await?;
    Ok(annotation(&rule, AUTHOR).map(str::to_owned))
}

fn has(token: &'static str) -> impl Fn(&Secret) -> bool {
    move |copy| value(copy, "token").as_deref() == Some(token)
}

#[tokio::test]
async fn a_restored_rule_is_in_force_at_once() -> Result<()> {
    let old = Old::new().await?;
    let [kept, late, once] = &old.rules;
    let cluster = ControlPlane::builder().start().await?;
    let client = cluster.client().await?;
    // The order is the documented one: CRDs, namespaces, sources, rules, and then Mimeo.
    create_namespace(&client, NAMESPACE, &[]).await?;
    for crd in mimeo_api::crds() {
        install_crd(&client, &crd).await?;
    }
    let is_late = |object: &&Value| object["metadata"]["name"] == *late.name;
    for object in old.backup.0.iter().filter(|object| !is_late(object)) {
        restore(&client, object).await?;
    }
    let theirs = of::<Secret>(&client, &old.namespaces[0])
        .get("kept")
        .await?;
    let seed = of::<Secret>(&client, &old.namespaces[0])
        .get("once")
        .await?;
    let pair = Pair::builder().shipped_rights().start(&cluster).await?;
    let setting = Setting {
        control_plane: cluster,
        pair,
    };
    let scene = scene(&setting, &old, &client);
    in_force(&scene, &old, [&theirs, &seed]).await?;
    assert_eq!(
        noted(&client, &kept.name).await?.as_deref(),
        Some(&*old.author),
        "the backup names the former author"
    );
    while_the_webhook_runs(&scene, &old).await?;

    // If the rule permits it, Mimeo adopts an object with the labels and annotations of a copy.
    kept.clone()
        .set("conflictPolicy", json!("Adopt"))
        .replace(&client)
        .await?;
    scene.wait_counts(&kept.name, [3, 3, 0]).await?;
    put(&scene.secrets(&old.home), REGISTRY, &[("token", "two")]).await?;
    for namespace in &old.namespaces {
        scene.wait_secret(namespace, "kept", has("two")).await?;
    }
    assert_eq!(
        uid(&scene.secrets(&old.namespaces[0]).get("kept").await?),
        uid(&theirs)
    );
    assert_eq!(
        version(&scene.secrets(&old.namespaces[0]).get("once").await?),
        version(&seed)
    );
    once.delete(&client).await
}

fn scene<'a>(setting: &'a Setting, old: &Old, client: &Client) -> Scene<'a> {
    Scene {
        setting,
        client: client.clone(),
        tag: old.tag.clone(),
        home: old.home.clone(),
    }
}

/// Without any help, Mimeo creates missing copies and leaves foreign objects. For Mimeo, objects
/// that a backup tool writes are foreign.
async fn in_force(scene: &Scene<'_>, old: &Old, restored: [&Secret; 2]) -> Result<()> {
    let [kept, _, once] = &old.rules;
    let [first, second, third] = &old.namespaces[..] else {
        bail!("not three")
    };
    for namespace in [second, third] {
        for name in ["kept", "once"] {
            scene.wait_secret(namespace, name, has("one")).await?;
        }
    }
    let status = scene.wait_counts(&kept.name, [3, 2, 1]).await?;
    assert_eq!(
        (&status.failures[0].namespace, &*status.failures[0].reason),
        (first, "Conflict")
    );
    scene.wait_synced(&once.name).await?;
    for (name, restored) in [("kept", restored[0]), ("once", restored[1])] {
        assert_eq!(
            version(&scene.secrets(first).get(name).await?),
            version(restored),
            "{name}"
        );
    }
    // Mimeo creates the copy once in each of these namespaces. The former namespaces, with their
    // records, have other uids.
    let remembers_now = |before: &Value| {
        let before = before["metadata"]["annotations"]["mimeo.dev/seeded"].clone();
        move |one: &Namespace| {
            annotation(one, "mimeo.dev/seeded").is_some_and(|now| json!(now) != before)
        }
    };
    let before = old.backup.find("Namespace", third)?;
    wait_for(
        Api::<Namespace>::all(scene.client.clone()),
        third.clone(),
        remembers_now(before),
    )
    .await?;
    delete(&scene.secrets(third), "once").await?;
    delete(&scene.secrets(third), "kept").await?;
    scene.wait_secret(third, "kept", has("one")).await?;
    scene.wait_synced(&once.name).await?;
    ensure!(
        scene.secrets(third).get_opt("once").await?.is_none(),
        "once, and not again"
    );
    Ok(())
}

/// The account that restores a rule is its author: it needs the permissions.
async fn while_the_webhook_runs(scene: &Scene<'_>, old: &Old) -> Result<()> {
    let late = &old.rules[1];
    let backup = old.backup.find("ClusterReplication", &late.name)?;
    let tool = Author::new(scene, &[]).await?;
    let refused = eventually(SOON, "the tool refused", || async {
        match restore(&tool.client, backup).await {
            Err(error) if error.to_string().contains("rules.mimeo.dev") => {
                Ok(Some(error.to_string()))
            }
            other => bail!("{other:?}"),
        }
    })
    .await?;
    ensure!(
        refused.contains(&tool.name) && refused.contains("may not"),
        "{refused}"
    );
    tool.may(None, &secrets(&[&WRITE[..], &["get"]].concat()))
        .await?;
    eventually(SOON, "the rule restored", || async {
        restore(&tool.client, backup).await.map(Some)
    })
    .await?;
    assert_eq!(
        noted(&scene.client, &late.name).await?.as_deref(),
        Some(&*tool.name)
    );
    scene.wait_synced(&late.name).await?;
    Ok(())
}

/// An administrator replaces a leaked key by deleting the Secret. Meanwhile a webhook may be
/// finishing its requests.
#[tokio::test]
async fn a_webhook_that_stops_does_not_put_back_its_certificate() -> Result<()> {
    let cluster = ControlPlane::builder().start().await?;
    let client = cluster.client().await?;
    let mut pair = Pair::builder().reconciler(false).start(&cluster).await?;
    let own = of::<Secret>(&client, NAMESPACE);
    let before = loop {
        let mut stopping = pair.webhooks.pop().context("no webhook")?;
        let before = own.get(CERTIFICATE).await?.data;
        stopping.program.terminate()?;
        eventually(SOON, "the shutdown", || async {
            Ok(stopping
                .program
                .log()?
                .contains("shutting down")
                .then_some(()))
        })
        .await?;
        delete(&own, CERTIFICATE).await?;
        let seen = stopping.program.is_alive()?;
        assert!(stopping.program.wait(SOON).await?.success());
        ensure!(own.get_opt(CERTIFICATE).await?.is_none(), "it was put back");
        if seen {
            break before;
        }
        // On a busy machine, the webhook may stop before it sees the deletion. Then the test starts
        // another one.
        pair.start_webhook().await?;
    };
    pair.start_webhook().await?;
    let after = own.get(CERTIFICATE).await?.data;
    ensure!(after.is_some() && before != after, "it is the same");
    Ok(())
}

/// A tool without any order restores objects into a cluster with Mimeo. Programs and hooks are
/// removed meanwhile. With hooks but without programs, nothing could be restored.
#[tokio::test]
async fn what_is_restored_while_programs_and_hooks_are_away_is_in_force_when_they_are_back()
-> Result<()> {
    let mut setting =
        Setting::start(ControlPlane::builder(), Pair::builder().shipped_rights()).await?;
    let mut backup = Backup::default();
    let (client, home, namespace, kept) = {
        let scene = setting.scene("away").await?;
        scene.secret(REGISTRY, &[("token", "one")]).await?;
        let namespace = scene.namespace().await?;
        let kept = rule(&unique(&scene.tag))
            .secret(&scene.home, REGISTRY)
            .to_label("scene", &scene.tag)
            .named("kept");
        let ann = Author::new(&scene, &[]).await?;
        ann.may(None, &secrets(&[&WRITE[..], &["get"]].concat()))
            .await?;
        ann.accepted(&kept).await?;
        scene.wait_synced(&kept.name).await?;
        (scene.client.clone(), scene.home.clone(), namespace, kept)
    };
    backup
        .take(&client, "ClusterReplication", None, &kept.name)
        .await?;

    setting.pair.stop_webhooks().await?;
    let mut reconciler = setting.pair.reconciler.take().context("no reconciler")?;
    assert!(reconciler.program.stop(SOON).await?.success());
    kept.delete(&client).await?;
    let rule = backup.find("ClusterReplication", &kept.name)?;
    ensure!(
        restore(&client, rule).await.is_err(),
        "the hooks fail closed"
    );
    for (kind, names) in [
        ("mutating", &["mimeo", "mimeo-policies"][..]),
        ("validating", &["mimeo"]),
    ] {
        let configurations = format!("{kind}webhookconfigurations");
        kubectl(
            &setting.control_plane,
            [&["delete", &configurations, "--ignore-not-found"], names].concat(),
        )?;
    }
    // The API server uses a deleted hook for another moment.
    eventually(SOON, "the rule to be restored", || async {
        restore(&client, rule).await.map(Some)
    })
    .await?;

    setting.pair.start_webhook().await?;
    setting.pair.start_reconciler().await?;
    put(&of::<Secret>(&client, &home), REGISTRY, &[("token", "two")]).await?;
    wait_for(of::<Secret>(&client, &namespace), "kept".into(), has("two")).await?;
    Ok(())
}
