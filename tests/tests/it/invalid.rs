//! Rules that the webhook would have refused, stored while it was away. The reconciler refuses them
//! too, and keeps the existing copies.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mimeo_api::{
    ClusterReplication, ClusterReplicationStatus, Replication, ReplicationGrant, TransformPolicy,
};
use mimeo_tests::scenario::{
    RuleSpec, SOON, Scene, Setting, any, apply, condition, create, forget_the_hooks, of, put, rule,
    uid, value, version, wait_for,
};
use mimeo_tests::traffic::{pod, stubbornly};
use mimeo_tests::{ControlPlane, Pair, eventually};
use serde_json::{Value, json};

use crate::alerts::reasons::printed;

const REGISTRY: &str = "registry";

/// A pattern that the schema and the API server accept. It is too large for Mimeo.
const LARGE: &str = "(.*a.{9}){9}";

/// The rules of the scene. Each name ends with the name of the rule's copies.
struct Rules {
    patterned: RuleSpec,
    transformed: RuleSpec,
    pace: RuleSpec,
}

impl Rules {
    fn new(scene: &Scene<'_>) -> Self {
        let named =
            |name: &str| rule(&format!("{}-{name}", scene.tag)).secret(&scene.home, REGISTRY);
        let of_scene = |name: &str| named(name).to_label("scene", &scene.tag).named(name);
        let pattern = json!({"namespacePattern": format!("{}-[0-9a-f]+-[0-9]+", scene.tag), "copyName": "patterned"});
        Self {
            patterned: named("patterned").target(pattern),
            transformed: of_scene("transformed"),
            pace: of_scene("pace"),
        }
    }

    /// Returns invalid rules that the schema accepts. Each has words of its message.
    fn bad(&self) -> [(RuleSpec, [&'static str; 2]); 2] {
        let patterned = self
            .patterned
            .clone()
            .set("targets", json!([{"namespacePattern": LARGE}]));
        let set = json!({"annotations": {"set": {"note": "$(namespace.uid)"}}});
        let transformed = self.transformed.clone().set("transform", set);
        [
            (
                patterned,
                [
                    "spec.targets[0].namespacePattern: not a regular expression",
                    "fits into",
                ],
            ),
            (
                transformed,
                ["spec.transform.annotations.set[note]", "$(namespace.uid)"],
            ),
        ]
    }
}

/// Waits until the rule's status says that its present generation is invalid. Returns the
/// generation.
async fn wait_invalid(client: &Client, name: &str, words: &[&str]) -> Result<i64> {
    let rules: Api<ClusterReplication> = Api::all(client.clone());
    eventually(SOON, format!("{name} invalid"), || async {
        let rule = rules.get(name).await?;
        let (generation, status) = (rule.metadata.generation, rule.status.unwrap_or_default());
        if status.observed_generation != generation {
            bail!("{status:#?}");
        }
        is_invalid(&status, generation, words)?;
        Ok(Some(generation.unwrap_or_default()))
    })
    .await
}

fn is_invalid(
    status: &ClusterReplicationStatus,
    generation: Option<i64>,
    words: &[&str],
) -> Result<()> {
    for (type_, is) in [("Ready", "False"), ("Stalled", "True")] {
        let Condition {
            status,
            reason,
            message,
            observed_generation,
            ..
        } = condition(status, type_).with_context(|| format!("no {type_}"))?;
        ensure!(
            (&**status, &**reason, *observed_generation) == (is, "InvalidSpec", generation),
            "{status} {reason}"
        );
        ensure!(words.iter().all(|word| message.contains(word)), "{message}");
    }
    ensure!(
        status.conditions.len() == 2 && status.copies.is_none() && status.failures.is_empty(),
        "{status:#?}"
    );
    Ok(())
}

/// Replaces the spec of a rule while no webhook is called.
async fn store(client: &Client, rule: &RuleSpec) -> Result<()> {
    eventually(SOON, format!("{} stored", rule.name), || async {
        Ok(Some(rule.replace(client).await?))
    })
    .await
}

async fn copies(client: &Client, namespace: &str) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for name in ["patterned", "transformed"] {
        let copy = of::<Secret>(client, namespace).get(name).await?;
        found.push((uid(&copy), version(&copy)));
    }
    Ok(found)
}

#[tokio::test]
async fn an_invalid_rule_says_so_keeps_its_copies_and_works_once_it_is_mended() -> Result<()> {
    let mut setting = Setting::start(ControlPlane::builder(), Pair::builder()).await?;
    let client = setting.control_plane.client().await?;
    let (rules, tag, home, old) = {
        let scene = setting.scene("invalid").await?;
        scene.secret(REGISTRY, &[("token", "one")]).await?;
        let old = scene.namespace().await?;
        let rules = Rules::new(&scene);
        for rule in [&rules.patterned, &rules.transformed, &rules.pace] {
            rule.create(&client).await?;
            scene.wait_counts(&rule.name, [1, 1, 0]).await?;
        }
        (rules, scene.tag.clone(), scene.home.clone(), old)
    };
    setting.pair.stop_webhooks().await?;
    forget_the_hooks(&client).await?;
    let kept = copies(&client, &old).await?;
    for (bad, words) in &rules.bad() {
        store(&client, bad).await?;
        assert_eq!(wait_invalid(&client, &bad.name, words).await?, 2);
    }

    // Neither a rotation nor a restart changes a copy or creates one. Other rules work as before.
    put(&of(&client, &home), REGISTRY, &[("token", "two")]).await?;
    let mut reconciler = setting.pair.reconciler.take().context("no reconciler")?;
    assert!(reconciler.program.stop(SOON).await?.success());
    setting.pair.start_reconciler().await?;
    setting.pair.start_webhook().await?;
    let scene = Scene {
        setting: &setting,
        client: client.clone(),
        tag: tag.clone(),
        home: home.clone(),
    };
    scene
        .wait_condition(&rules.pace.name, "PodGateActive", "True", "Active")
        .await?;
    let new = scene.namespace().await?;
    for namespace in [&old, &new] {
        scene
            .wait_secret(namespace, "pace", |copy| {
                value(copy, "token").as_deref() == Some("two")
            })
            .await?;
    }
    let pods: Api<Pod> = of(&client, &new);
    stubbornly(|| async { pods.create(&PostParams::default(), &pod("first")).await }).await?;
    scene.wait_counts(&rules.pace.name, [2, 2, 0]).await?;
    assert_eq!(copies(&client, &old).await?, kept);
    for name in ["patterned", "transformed"] {
        assert!(scene.secrets(&new).get_opt(name).await?.is_none(), "{name}");
    }
    for (bad, words) in &rules.bad() {
        wait_invalid(&client, &bad.name, words).await?;
        // By now a webhook runs and refuses an equal rule.
        let other = RuleSpec {
            name: format!("{}-again", bad.name),
            ..bad.clone()
        };
        let refused = other
            .create(&client)
            .await
            .err()
            .context("it was accepted")?;
        ensure!(
            words
                .iter()
                .all(|word| format!("{refused:#}").contains(word)),
            "{refused:#}"
        );
    }

    // The rules are fixed while the webhook runs. The copies stay and get the new content.
    for rule in [&rules.patterned, &rules.transformed] {
        rule.replace(&client).await?;
        let status = scene.wait_synced(&rule.name).await?;
        assert_eq!(status.observed_generation, Some(3));
        assert!(condition(&status, "Stalled").is_none(), "{status:#?}");
        scene.wait_counts(&rule.name, [2, 2, 0]).await?;
    }
    for (name, (uid_before, _)) in ["patterned", "transformed"].iter().zip(&kept) {
        let copy = scene.secrets(&old).get(name).await?;
        assert_eq!(
            (&uid(&copy), value(&copy, "token").as_deref()),
            (uid_before, Some("two"))
        );
        scene.secrets(&new).get(name).await?;
    }
    Ok(())
}

/// The same holds for the Replication of a namespace, and for a grant.
#[tokio::test]
async fn an_invalid_rule_or_grant_of_a_namespace_does_nothing_until_it_is_mended() -> Result<()> {
    let mut setting = Setting::start(ControlPlane::builder(), Pair::builder()).await?;
    let client = setting.control_plane.client().await?;
    let (home, team) = {
        let scene = setting.scene("tenants").await?;
        scene.secret(REGISTRY, &[("token", "one")]).await?;
        (scene.home.clone(), scene.namespace().await?)
    };
    let object = |kind: &str, namespace: &str, spec: &Value| {
        let metadata = json!({"namespace": namespace, "name": "r"});
        json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
    };
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "namespace": home, "name": REGISTRY});
    let spec = json!({"sources": [secret]});
    let grant = json!({"grantees": [{"namespaces": [team]}], "objects": [{"apiVersion": "v1", "kind": "Secret"}]});
    create(
        &client,
        &format!("namespaces/{home}/replicationgrants"),
        &object("ReplicationGrant", &home, &grant),
    )
    .await?;
    create(
        &client,
        &format!("namespaces/{team}/replications"),
        &object("Replication", &team, &spec),
    )
    .await?;
    let copies: Api<Secret> = of(&client, &team);
    let before = wait_for(copies.clone(), REGISTRY.to_owned(), |_| true).await?;
    let replications: Api<Replication> = of(&client, &team);
    let told = async |is: &dyn Fn(&Replication) -> Result<()>| {
        eventually(SOON, "the Replication's status", || async {
            let rule = replications.get("r").await?;
            is(&rule)?;
            Ok(Some(()))
        })
        .await
    };
    let reason = |rule: &Replication, type_: &str, reason: &str| -> Result<()> {
        let status = rule.status.clone().unwrap_or_default();
        ensure!(
            status.observed_generation == rule.metadata.generation,
            "{status:#?}"
        );
        ensure!(
            condition(&status, type_).is_some_and(|one| one.reason == reason),
            "{status:#?}"
        );
        Ok(())
    };
    told(&|rule| reason(rule, "Ready", "Synced")).await?;
    setting.pair.stop_webhooks().await?;
    forget_the_hooks(&client).await?;

    let store = async |kind: &str, namespace: &str, spec: &Value| {
        let api = any(&client, "mimeo.dev/v1alpha1", kind, Some(namespace))?;
        let patch: Patch<()> = Patch::Json(serde_json::from_value(
            json!([{"op": "replace", "path": "/spec", "value": spec}]),
        )?);
        eventually(SOON, format!("{kind} stored"), || async {
            Ok(Some(api.patch("r", &PatchParams::default(), &patch).await?))
        })
        .await
    };
    let mut bad = spec.clone();
    bad["transform"] = json!({"jsonPatch": [{"op": "remove", "path": "/metadata/name"}]});
    store("Replication", &team, &bad).await?;
    let words = ["spec.transform.jsonPatch[0].path"];
    told(&|rule| {
        is_invalid(
            &rule.status.clone().unwrap_or_default(),
            rule.metadata.generation,
            &words,
        )
    })
    .await?;
    store("Replication", &team, &spec).await?;
    told(&|rule| reason(rule, "Ready", "Synced")).await?;

    // A grant that cannot be parsed grants nothing. So the rule no longer wants the copies that it
    // permitted.
    let grants: Api<ReplicationGrant> = of(&client, &home);
    let says = async |is: [&str; 2], words: &str| {
        eventually(SOON, format!("the grant's status {is:?}"), || async {
            let grant = grants.get("r").await?;
            let status = grant.status.unwrap_or_default();
            let ready = status.conditions.first().context("no condition")?;
            ensure!(
                status.observed_generation == grant.metadata.generation
                    && [&*ready.status, &*ready.reason] == is
                    && ready.message.contains(words),
                "{status:#?}"
            );
            Ok(Some(status.replications))
        })
        .await
    };
    assert_eq!(says(["True", "Active"], "").await?, Some(1));
    let mut bad = grant.clone();
    bad["grantees"] = json!([{"namespacePattern": LARGE}]);
    store("ReplicationGrant", &home, &bad).await?;
    told(&|rule| reason(rule, "Authorized", "NotGranted")).await?;
    let why = "spec.grantees[0].namespacePattern: not a regular expression";
    assert_eq!(says(["False", "InvalidSpec"], why).await?, Some(0));
    let path = format!("namespaces/{home}/replicationgrants");
    assert_eq!(
        printed(&client, &path).await?["r"],
        ["False", "InvalidSpec"]
    );
    store("ReplicationGrant", &home, &grant).await?;
    told(&|rule| reason(rule, "Ready", "Synced")).await?;
    assert_eq!(says(["True", "Active"], "").await?, Some(1));
    // Two grants with 610 names each have more than count in a namespace. The older one counts.
    let named = |item: usize| {
        let names: Vec<_> = (0..60).map(|name| format!("n{item}-{name}")).collect();
        json!({"apiVersion": "v1", "kind": "Secret", "names": names})
    };
    let objects: Vec<_> = (0..10).map(named).collect();
    for (name, want) in [("s", ["True", "Active"]), ("t", ["False", "TooManyGrants"])] {
        let mut many = object("ReplicationGrant", &home, &grant);
        many["metadata"]["name"] = json!(name);
        many["spec"]["objects"] = json!(objects);
        create(&client, &path, &many).await?;
        eventually(SOON, format!("{name} {want:?}"), || async {
            let printed = printed(&client, &path).await?;
            let told = printed.get(name).context("no such grant")?;
            ensure!(*told == want, "{told:?}");
            Ok(Some(()))
        })
        .await?;
    }
    let after = wait_for(copies, REGISTRY.to_owned(), |_| true).await?;
    assert_eq!(value(&after, "token"), value(&before, "token"));
    Ok(())
}

/// An invalid policy reports it, too, and changes nothing until it is fixed.
#[tokio::test]
async fn an_invalid_policy_says_so_and_rewrites_nothing_until_it_is_corrected() -> Result<()> {
    let mut setting = Setting::start(ControlPlane::builder(), Pair::builder()).await?;
    let client = setting.control_plane.client().await?;
    let policies: Api<TransformPolicy> = Api::all(client.clone());
    let policy = |set: &Value| {
        json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "p"},
            "spec": {
                "match": {
                    "kinds": [{"apiVersion": "v1", "kind": "ConfigMap"}],
                    "objectSelector": {"matchLabels": {"rewrite": "yes"}},
                },
                "transform": {"annotations": {"set": set}},
            },
        })
    };
    let good = policy(&json!({"note": "$(namespace.name)"}));
    let says = async |is: [&str; 2], words: &str| {
        eventually(SOON, format!("the policy's status {is:?}"), || async {
            let policy = policies.get("p").await?;
            let status = policy.status.unwrap_or_default();
            let ready = status.conditions.first().context("no condition")?;
            ensure!(
                status.observed_generation == policy.metadata.generation
                    && [&*ready.status, &*ready.reason] == is
                    && ready.message.contains(words),
                "{status:#?}"
            );
            Ok(Some(()))
        })
        .await
    };
    create(&client, "transformpolicies", &good).await?;
    says(["True", "Active"], "").await?;
    setting.pair.stop_webhooks().await?;
    forget_the_hooks(&client).await?;
    let spec = policy(&json!({"note": "$(namespace.uid)"}))["spec"].clone();
    let bad: Patch<()> = Patch::Json(serde_json::from_value(
        json!([{"op": "replace", "path": "/spec", "value": spec}]),
    )?);
    eventually(SOON, "the invalid policy stored", || async {
        Ok(Some(
            policies.patch("p", &PatchParams::default(), &bad).await?,
        ))
    })
    .await?;
    setting.pair.start_webhook().await?;
    let words = "spec.transform.annotations.set[note]";
    says(["False", "InvalidSpec"], words).await?;
    let told = printed(&client, "transformpolicies").await?;
    assert_eq!(told["p"], ["False", "InvalidSpec"]);
    // The API server does not call the webhook for objects of this policy.
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default", "labels": {"rewrite": "yes"}}});
    let maps: Api<ConfigMap> = of(&client, "default");
    eventually(SOON, "an object that is not rewritten", || async {
        apply(&client, &map).await?;
        let annotations = maps.get("a").await?.metadata.annotations;
        ensure!(annotations.is_none(), "{annotations:?}");
        Ok(Some(()))
    })
    .await?;
    let corrected: Patch<()> = Patch::Json(serde_json::from_value(
        json!([{"op": "replace", "path": "/spec", "value": good["spec"]}]),
    )?);
    policies
        .patch("p", &PatchParams::default(), &corrected)
        .await?;
    says(["True", "Active"], "").await
}
