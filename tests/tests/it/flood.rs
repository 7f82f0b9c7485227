//! A user with the permission to write rules, grants and policies creates far too many of them.
//! Other users notice nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, future::try_join_all, stream};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use mimeo_api::{ClusterReplication, TransformPolicy};
use mimeo_tests::author::{Author, secrets};
use mimeo_tests::scenario::{SOON, Scene, Setting, apply, create, put, rule, value, wait_for};
use mimeo_tests::tenant::{Tenant, consent, copying, has};
use mimeo_tests::traffic::{create_patiently, pod, retry_after, revision, webhook_timed_out};
use mimeo_tests::{ControlPlane, Pair, create_namespace, eventually, unique};
use serde_json::{Value, json};

use crate::{alerts::reasons::printed, stages::LOAD};

/// The number of rules, and of grants, and of policies.
const MANY: usize = 3_000;
/// The number of a namespace's rules that count. The tenant has one more.
const COUNTING: usize = 1_024;
/// The number of selectors.
const SELECTORS: usize = 100;
/// The number of a namespace's selectors that count. Each takes 256 of 10,240 copies.
const COUNTED: usize = 40;
const SELECTED: usize = 20;
/// The number of requests at once.
const AT_ONCE: usize = 48;

/// Starts a setting for one test, because a flood slows the programs and the API server afterwards.
async fn setting() -> Result<Setting> {
    Setting::start(ControlPlane::builder(), Pair::builder().shipped_rights()).await
}

/// All rules wait for one source. Once it exists, thousands of copies are due at once. Changes of
/// other users come before them. The resourceVersions show how many of the copies come first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_change_comes_before_the_thousands_of_copies_of_a_tenant() -> Result<()> {
    let _turn = LOAD.lock().await;
    let setting = setting().await?;
    let scene = setting.scene("flood").await?;
    let (tenant, neighbour, team) = (
        Tenant::editor(&scene).await?,
        Tenant::editor(&scene).await?,
        scene.namespace().await?,
    );
    scene.secret("first", &[("token", "one")]).await?;
    scene.secret("second", &[("token", "one")]).await?;
    let before = rule(&format!("{}-before", scene.tag))
        .secret(&scene.home, "first")
        .target(json!({"namespaces": [team]}));
    before.create(&scene.client).await?;
    scene.wait_synced(&before.name).await?;
    for owner in [&neighbour, &tenant] {
        owner.makes("own", "one").await?;
        let mut own = copying(None, "own", &[&owner.home]);
        own["targets"][0]["copyName"] = json!("copy");
        owner.writes("replications", "own", &own).await?;
        owner.status("own", "Ready", "Synced").await?;
    }

    scene.secret("pods", &[("token", "one")]).await?;
    let pods = rule(&format!("{}-pods", scene.tag))
        .secret(&scene.home, "pods")
        .to_label("pods", &scene.tag);
    pods.create(&scene.client).await?;
    scene
        .wait_condition(&pods.name, "PodGateActive", "True", "Active")
        .await?;

    let over = AtomicBool::new(false);
    let others = async {
        // During the flood come a new namespace with a pod, a rotation, and another rule.
        new_namespace(&scene).await?;
        ensure!(
            !over.load(Ordering::Relaxed),
            "the flood was over before there was a pod"
        );
        put(&scene.secrets(&scene.home), "first", &[("token", "two")]).await?;
        scene.wait_secret(&team, "first", has("two")).await?;
        let during = rule(&format!("{}-during", scene.tag)).secret(&scene.home, "second");
        let during = during.target(json!({"namespaces": [team]}));
        let rules: Api<ClusterReplication> = Api::all(scene.client.clone());
        create_patiently(&rules, &serde_json::from_value(during.object())?).await?;
        scene.wait_secret(&team, "second", has("one")).await?;
        scene.wait_synced(&during.name).await?;
        anyhow::Ok(())
    };
    let flood = async {
        let refused = flood(&tenant, &team).await;
        over.store(true, Ordering::Relaxed);
        refused
    };
    let (refused, served) = tokio::join!(flood, others);
    served?;
    let [rules, grants, policies] = refused?;
    ensure!(
        grants > MANY / 2 && policies == MANY,
        "{grants} grants and {policies} policies were refused"
    );
    // The webhook may see the last rule that counts some time after it judges the next one.
    ensure!(
        rules > MANY / 2 && rules <= MANY - COUNTING + 1,
        "{rules} rules were refused"
    );
    let wanted = COUNTING - 1;

    tenant.makes("source", "flood").await?;
    let copies = async || -> Result<Vec<u64>> {
        let ours = ListParams::default()
            .labels("app.kubernetes.io/managed-by=mimeo")
            .match_any();
        let mut found = tenant.secrets().list_metadata(&ours).await?.items;
        found.retain(|copy| copy.name_any() != "copy");
        found.iter().map(revision).collect()
    };
    eventually(SOON, "the first of the copies", || async {
        Ok((!copies().await?.is_empty()).then_some(()))
    })
    .await?;
    let sources = [
        scene.secrets(&scene.home),
        neighbour.secrets(),
        tenant.secrets(),
    ];
    let (three, names) = ([("token", "three")], ["first", "own", "own"]);
    let changes = try_join_all(
        sources
            .iter()
            .zip(names)
            .map(|(sources, name)| put(sources, name, &three)),
    );
    let (changes, first_pod) = tokio::try_join!(changes, new_namespace(&scene))?;
    let served = [
        scene.wait_secret(&team, "first", has("three")).await?,
        scene
            .wait_secret(&neighbour.home, "copy", has("three"))
            .await?,
        scene
            .wait_secret(&tenant.home, "copy", has("three"))
            .await?,
    ];
    let flood = eventually(SOON, "all copies", || async {
        let copies = copies().await?;
        if copies.len() == wanted {
            Ok(Some(copies))
        } else {
            bail!("{} of {wanted}", copies.len())
        }
    })
    .await?;
    let mut first = Vec::new();
    for (change, copy) in changes.iter().zip(&served) {
        first.push((revision(change)?, revision(copy)?));
    }
    first.push(first_pod);
    let came = |(from, to): (u64, u64)| {
        flood
            .iter()
            .filter(|revision| (from..to).contains(revision))
            .count()
    };
    let first: Vec<usize> = first.into_iter().map(came).collect();
    // A few copies may come first: those in flight, and those that left while the change was on its
    // way. A waiting copy may come first only for the tenant's own change.
    eprintln!(
        "of {wanted} copies, those that came before the platform's, another tenant's, the tenant's \
         own and a new namespace's pod: {first:?}"
    );
    ensure!(
        first[0] < wanted / 4,
        "the platform's change waited for {} of {wanted} copies",
        first[0]
    );
    ensure!(
        first[1] < wanted / 4,
        "another tenant's change waited for {} of {wanted} copies",
        first[1]
    );
    ensure!(
        first[2] > wanted / 2,
        "nothing had to wait: the tenant's own came before {} of {wanted}",
        wanted - first[2]
    );
    ensure!(
        first[3] < wanted / 4,
        "a new namespace's first pod waited for {} of {wanted} copies",
        first[3]
    );
    // The tenant gets the copies that it has the permission for. It gets none in the other
    // namespace, which grants it nothing.
    let foreign = scene.secrets(&team).list(&ListParams::default()).await?;
    ensure!(foreign.items.len() == 2, "{} Secrets", foreign.items.len());
    Ok(())
}

/// Creates a namespace that gets a copy, and a pod in it. Returns the revisions of both. The copy's
/// revision is between them.
async fn new_namespace(scene: &Scene<'_>) -> Result<(u64, u64)> {
    let name = unique(&scene.tag);
    let namespace = create_namespace(&scene.client, &name, &[("pods", &scene.tag)]).await?;
    let (pod, _) =
        create_patiently(&Api::namespaced(scene.client.clone(), &name), &pod("first")).await?;
    let copy = scene
        .secrets(&name)
        .get("pods")
        .await
        .context("a pod came without its copy")?;
    ensure!(has("one")(&copy), "it has another value");
    let [from, copy, to] = [revision(&namespace)?, revision(&copy)?, revision(&pod)?];
    ensure!((from..to).contains(&copy), "a pod came before its copy");
    Ok((from, to))
}

/// The owner of a namespace writes as many rules, grants and policies as possible. Returns how many
/// of each were refused.
async fn flood(tenant: &Tenant<'_>, team: &str) -> Result<[usize; 3]> {
    let refused = async |path: String, object: Value, words: &str| loop {
        match create(&tenant.client, &path, &object).await {
            Ok(_) => return Ok(0),
            Err(kube::Error::Api(status)) if status.message.contains(words) => return Ok(1),
            // The flood retries every request that a busy server refused.
            Err(kube::Error::Api(status))
                if status.code == 429 || status.message.contains("deadline exceeded") => {}
            Err(error) => return Err(error).context(path),
        }
    };
    let targets = |number: usize| json!([{"namespaces": [tenant.home, team], "copyName": format!("copy-{number}")}]);
    let home = |plural: &str| format!("namespaces/{}/{plural}", tenant.home);
    let rules = (0..MANY).map(|number| {
        let mut spec = copying(None, "source", &[]);
        spec["targets"] = targets(number);
        let object = tenant.object("replications", &format!("flood-{number}"), &spec);
        refused(
            home("replications"),
            object,
            "older Replications use that up",
        )
    });
    let grants = (0..MANY).map(|number| {
        let object = tenant.object(
            "replicationgrants",
            &format!("flood-{number}"),
            &consent("Read", "*", &[]),
        );
        refused(
            home("replicationgrants"),
            object,
            "older grants use that up",
        )
    });
    let policies = (0..MANY).map(|number| {
        let object = policy(&format!("{}-{number}", tenant.name()), "flood");
        refused("transformpolicies".to_owned(), object, "is forbidden")
    });
    let add = |sum, one| async move { Ok(sum + one) };
    tokio::try_join!(
        stream::iter(rules)
            .buffer_unordered(AT_ONCE / 3)
            .try_fold(0, add),
        stream::iter(grants)
            .buffer_unordered(AT_ONCE / 3)
            .try_fold(0, add),
        stream::iter(policies)
            .buffer_unordered(AT_ONCE / 3)
            .try_fold(0, add),
    )
    .map(|(rules, grants, policies)| [rules, grants, policies])
}

/// Each selector finds as many Secrets as the tenant creates. All rules want copies of all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_a_tenants_selectors_keep_no_copy_of_others_waiting() -> Result<()> {
    let _turn = LOAD.lock().await;
    let setting = setting().await?;
    let scene = setting.scene("selectors").await?;
    let (tenant, team) = (Tenant::editor(&scene).await?, scene.namespace().await?);
    scene.secret("first", &[("token", "one")]).await?;
    let before = rule(&scene.tag)
        .secret(&scene.home, "first")
        .target(json!({"namespaces": [team]}));
    before.create(&scene.client).await?;
    scene.wait_synced(&before.name).await?;

    let selecting = |number: usize| {
        let another = json!([{"key": format!("no-{number}"), "operator": "DoesNotExist"}]);
        let labels = json!({"matchLabels": {"flood": "yes"}, "matchExpressions": another});
        let sources = json!([{"apiVersion": "v1", "kind": "Secret", "selector": labels}]);
        let targets =
            json!([{"namespaces": [tenant.home], "copyName": format!("$(source.name)-{number}")}]);
        json!({"sources": sources, "targets": targets, "transform": {"labels": {"exclude": ["flood"]}}})
    };
    // The selectors are written one after another. They are refused as soon as the webhook has seen
    // the existing ones, which takes longer on a busy machine.
    let flood = async {
        let (mut refused, mut written) = (0, 0);
        for number in 0.. {
            if refused + COUNTED >= SELECTORS {
                break;
            }
            match tenant
                .write(
                    "replications",
                    &format!("flood-{number:03}"),
                    &selecting(number),
                )
                .await
            {
                Err(kube::Error::Api(status))
                    if status.message.contains("older Replications use that up") =>
                {
                    refused += 1;
                }
                Err(error) if retry_after(&error).is_some() || webhook_timed_out(&error) => {}
                other => {
                    drop(other?);
                    written += 1;
                    ensure!(written < 10 * SELECTORS, "{written} were accepted");
                }
            }
        }
        anyhow::Ok(())
    };
    let sources = stream::iter(0..SELECTED).map(|number| {
        let secrets = tenant.secrets();
        async move {
            let secret =
                json!({"metadata": {"name": format!("s{number}"), "labels": {"flood": "yes"}}});
            secrets
                .create(&PostParams::default(), &serde_json::from_value(secret)?)
                .await?;
            anyhow::Ok(())
        }
    });
    let sources = sources.buffer_unordered(8).try_collect::<()>();
    let others = async {
        put(&scene.secrets(&scene.home), "first", &[("token", "two")]).await?;
        scene.wait_secret(&team, "first", has("two")).await?;
        scene.wait_synced(&before.name).await?;
        anyhow::Ok(())
    };
    tokio::try_join!(flood, sources, others)?;

    // Mimeo carries out only the rules that count: exactly the copies of the oldest rules.
    scene
        .wait_secret(&tenant.home, &format!("s{}-0", SELECTED - 1), |_| true)
        .await?;
    eventually(SOON, "the copies of the rules that count", || async {
        let copies = ListParams::default().labels("app.kubernetes.io/managed-by=mimeo");
        let found = tenant.secrets().list_metadata(&copies).await?.items.len();
        ensure!(found == SELECTED * COUNTED, "{found}");
        Ok(Some(()))
    })
    .await
}

/// The number of policies that are created.
const POLICIES: usize = 3_000;
/// The number of policies that are registered with the API server.
const REGISTERED: usize = 256;

/// Returns a policy that adds a label to the Secrets with this label.
fn policy(name: &str, label: &str) -> Value {
    let matched = json!({
        "kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"policy": label}},
    });
    json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": name},
        "spec": {"match": matched, "transform": {"labels": {"set": {"rewritten": "yes"}}}},
    })
}

async fn wait_rewritten(scene: &Scene<'_>) -> Result<()> {
    eventually(SOON, "a rewritten Secret", || async {
        let sent = json!({"metadata": {"name": unique("sent"), "labels": {"policy": scene.tag}}});
        let stored = scene
            .secrets(&scene.home)
            .create(&PostParams::default(), &serde_json::from_value(sent)?)
            .await?;
        Ok(stored
            .metadata
            .labels
            .unwrap_or_default()
            .contains_key("rewritten")
            .then_some(()))
    })
    .await
}

/// The author of the policies may write policies and update Secrets, as a policy needs, and has no
/// other permission.
#[tokio::test]
async fn three_thousand_policies_leave_older_ones_copies_and_pods_alone() -> Result<()> {
    let _turn = LOAD.lock().await;
    let setting = setting().await?;
    let scene = setting.scene("policies").await?;
    let policies: Api<TransformPolicy> = Api::all(scene.client.clone());
    apply(&scene.client, &policy(&scene.tag, &scene.tag)).await?;
    wait_rewritten(&scene).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;

    // The other policies are a second younger. The age in whole seconds decides which are
    // registered.
    let first = policies
        .get(&scene.tag)
        .await?
        .metadata
        .creation_timestamp
        .context("no time")?;
    eventually(SOON, "a second", || async {
        Ok((jiff::Timestamp::now().as_second() > first.0.as_second()).then_some(()))
    })
    .await?;
    let author = Author::new(&scene, &[]).await?;
    author.may(None, &secrets(&["create", "update"])).await?;
    let his: Api<TransformPolicy> = Api::all(author.client.clone());
    let create = async |number: usize| {
        let name = format!("{}-{number:04}", scene.tag);
        let object: TransformPolicy = serde_json::from_value(policy(&name, &name))?;
        let created = create_patiently(&his, &object).await;
        created.map(drop).context(name)
    };
    eventually(SOON, "the author's permissions", || async {
        Ok(Some(create(POLICIES).await?))
    })
    .await?;
    stream::iter(0..POLICIES)
        .map(create)
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;

    // During the flood come a new namespace, its copy, and then a pod.
    let namespace = scene.namespace().await?;
    let (_, _) = create_patiently(
        &Api::namespaced(scene.client.clone(), &namespace),
        &pod("first"),
    )
    .await?;
    let copy: Secret = scene
        .secrets(&namespace)
        .get("registry")
        .await
        .context("a pod came before its copy")?;
    ensure!(value(&copy, "token").as_deref() == Some("one"));
    wait_rewritten(&scene).await?;
    // A policy that comes too late says so in its status.
    let is = |word: &'static str| {
        move |policy: &TransformPolicy| {
            let conditions = policy.status.iter().flat_map(|status| &status.conditions);
            conditions
                .into_iter()
                .any(|ready| ready.type_ == "Ready" && ready.reason == word)
        }
    };
    let said = async |word: &'static str, count: usize| {
        eventually(
            SOON,
            format!("{count} policies that are {word}"),
            || async {
                let all = policies
                    .list(&ListParams::default().match_any())
                    .await?
                    .items;
                let found = all.iter().filter(|policy| is(word)(policy)).count();
                ensure!(found == count, "{found}");
                Ok(Some(()))
            },
        )
        .await
    };
    said("Active", REGISTERED).await?;
    said("Rejected", POLICIES + 2 - REGISTERED).await?;
    let printed = printed(&scene.client, "transformpolicies").await?;
    let rejected = printed
        .values()
        .filter(|told| **told == ["False", "Rejected"]);
    assert_eq!(rejected.count(), POLICIES + 2 - REGISTERED);
    wait_for(policies.clone(), scene.tag.clone(), is("Active")).await?;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(scene.client.clone());
    let entries = configurations
        .get("mimeo-policies")
        .await?
        .webhooks
        .unwrap_or_default()
        .len();
    ensure!(entries == REGISTERED, "{entries}");

    // The API server may end a request that takes too long.
    eventually(SOON, "no policies", || async {
        let all = ListParams::default();
        policies
            .delete_collection(&DeleteParams::default(), &all)
            .await?;
        Ok(policies.list(&all).await?.items.is_empty().then_some(()))
    })
    .await?;
    eventually(SOON, "no entries", || async {
        let left = configurations
            .get_opt("mimeo-policies")
            .await?
            .and_then(|found| found.webhooks)
            .unwrap_or_default();
        Ok(left.is_empty().then_some(()))
    })
    .await
}
