//! A rule's report about its copies: its plan, its status, and failures.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures::stream::{StreamExt as _, TryStreamExt as _, iter};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use mimeo_api::ClusterReplicationStatus;
use mimeo_tests::scenario::{
    SOON, Scene, Setting, any, apply, condition, delete, kubectl, put, relabel, rule, value,
    version, wait_gone,
};
use mimeo_tests::tenant::{Tenant, consent};
use mimeo_tests::{
    ControlPlane, Pair, Silent, create_namespace, create_secret, eventually, unique,
};
use serde_json::json;
use tokio::time::timeout;

use super::{STAGE, config_map};

#[tokio::test]
async fn a_suspended_rule_plans_and_does_nothing_until_it_is_lifted() -> Result<()> {
    let scene = STAGE.scene("suspend").await?;
    let [changed, left] =
        <[String; 2]>::try_from(scene.namespaces(2).await?).map_err(|_| anyhow!("not two"))?;
    // These get the label later.
    let [new, taken] = [unique(&scene.tag), unique(&scene.tag)];
    for name in [&new, &taken] {
        create_namespace(&scene.client, name, &[]).await?;
    }
    scene.secret("registry", &[("token", "one")]).await?;
    let lifted = scene.rule().secret(&scene.home, "registry");
    let suspended = lifted.clone().set("suspend", json!(true));
    suspended.create(&scene.client).await?;
    wait_plan(&scene, [2, 0, 0, 0]).await?;
    assert!(scene.secrets(&changed).get_opt("registry").await?.is_none());

    lifted.replace(&scene.client).await?;
    assert_eq!(plan(&scene.wait_synced(&scene.tag).await?), None);
    suspended.replace(&scene.client).await?;
    scene
        .wait_condition(&scene.tag, "Ready", "False", "Suspended")
        .await?;
    let before = scene.secrets(&changed).get("registry").await?;
    let foreign = create_secret(&scene.client, &taken, "registry", &[("token", "theirs")]).await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    relabel(&scene.client, &left, "scene", None).await?;
    for name in [&new, &taken] {
        relabel(&scene.client, name, "scene", Some(&scene.tag)).await?;
    }
    let planned = planned(&wait_plan(&scene, [1, 1, 1, 1]).await?);
    let mut named = [
        ("Update", &changed),
        ("Delete", &left),
        ("Create", &new),
        ("Conflict", &taken),
    ];
    named.sort_by_key(|(_, namespace)| *namespace);
    assert_eq!(
        planned,
        named.map(|(action, namespace)| format!("{action} Secret {namespace}/registry"))
    );
    assert_eq!(
        version(&scene.secrets(&changed).get("registry").await?),
        version(&before)
    );
    scene.secrets(&left).get("registry").await?;
    assert!(scene.secrets(&new).get_opt("registry").await?.is_none());

    lifted.replace(&scene.client).await?;
    for name in [&changed, &new] {
        scene
            .wait_secret(name, "registry", |copy| {
                value(copy, "token").as_deref() == Some("two")
            })
            .await?;
    }
    wait_gone(scene.secrets(&left), "registry").await?;
    let status = scene.wait_counts(&scene.tag, [3, 2, 1]).await?;
    assert_eq!(plan(&status), None);
    assert_eq!(
        version(&scene.secrets(&taken).get("registry").await?),
        version(&foreign)
    );
    Ok(())
}

/// Each of the numbers is different, so that a test cannot confuse them.
#[tokio::test]
async fn a_plan_counts_all_and_names_the_first_and_lifting_it_does_exactly_that() -> Result<()> {
    const CREATED: usize = 9;
    const UPDATED: usize = 13;
    const DELETED: usize = 6;
    const TAKEN: usize = 4;
    let scene = STAGE.scene("plan").await?;
    // Some namespaces get the label later.
    let mut namespaces: Vec<String> = (0..CREATED + TAKEN).map(|_| unique(&scene.tag)).collect();
    for name in &namespaces {
        create_namespace(&scene.client, name, &[]).await?;
    }
    namespaces.extend(scene.namespaces(UPDATED + DELETED).await?);
    let (late, rest) = namespaces.split_at(CREATED);
    let (taken, rest) = rest.split_at(TAKEN);
    let (kept, left) = rest.split_at(UPDATED);
    scene.secret("registry", &[("token", "one")]).await?;
    let lifted = scene.rule().secret(&scene.home, "registry");
    lifted.create(&scene.client).await?;
    scene
        .wait_counts(&scene.tag, [UPDATED + DELETED, UPDATED + DELETED, 0])
        .await?;
    lifted
        .clone()
        .set("suspend", json!(true))
        .replace(&scene.client)
        .await?;
    scene
        .wait_condition(&scene.tag, "Ready", "False", "Suspended")
        .await?;

    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    for name in left {
        relabel(&scene.client, name, "scene", None).await?;
    }
    for name in taken {
        create_secret(&scene.client, name, "registry", &[("token", "theirs")]).await?;
    }
    for name in late.iter().chain(taken) {
        relabel(&scene.client, name, "scene", Some(&scene.tag)).await?;
    }
    let want =
        [CREATED, UPDATED, DELETED, TAKEN].map(|count| i32::try_from(count).unwrap_or_default());
    let status = wait_plan(&scene, want).await?;
    let ready = &condition(&status, "Ready").context("no Ready")?.message;
    assert!(
        ready.contains("would create 9 copies, update 13 copies and delete 6 copies; conflicts: 4"),
        "{ready}"
    );
    let all = [
        ("Create", late),
        ("Update", kept),
        ("Delete", left),
        ("Conflict", taken),
    ];
    let all = all
        .iter()
        .flat_map(|(action, names)| names.iter().map(move |name| (name, action)));
    let all: BTreeMap<_, _> = all.collect();
    let first = all
        .iter()
        .take(20)
        .map(|(name, action)| format!("{action} Secret {name}/registry"));
    assert_eq!(planned(&status), first.collect::<Vec<_>>());

    let mark = scene.setting.control_plane.audit_mark().await?;
    lifted.replace(&scene.client).await?;
    let wanted = CREATED + UPDATED + TAKEN;
    assert_eq!(
        plan(
            &scene
                .wait_counts(&scene.tag, [wanted, wanted - TAKEN, TAKEN])
                .await?
        ),
        None
    );
    for name in left {
        wait_gone(scene.secrets(name), "registry").await?;
    }
    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let done = events
        .iter()
        .filter(|event| scene.setting.is_ours(event) && event.is_write() && event.code < 300);
    let mut counts: BTreeMap<(&str, u16), BTreeSet<&String>> = BTreeMap::new();
    for event in
        done.filter(|event| event.name == "registry" && namespaces.contains(&event.namespace))
    {
        let anew = counts
            .entry((&event.verb, event.code))
            .or_default()
            .insert(&event.namespace);
        assert!(anew, "{event:?}");
    }
    let did = [
        (("patch", 201), late),
        (("patch", 200), kept),
        (("delete", 200), left),
    ];
    assert_eq!(
        counts,
        did.map(|(what, names)| (what, names.iter().collect()))
            .into()
    );
    Ok(())
}

/// Waits until the status of the suspended rule has these numbers of the plan.
async fn wait_plan(scene: &Scene<'_>, want: [i32; 4]) -> Result<ClusterReplicationStatus> {
    eventually(SOON, format!("the plan {want:?}"), || async {
        let status = scene
            .wait_condition(&scene.tag, "Ready", "False", "Suspended")
            .await?;
        if plan(&status) == Some(want) {
            Ok(Some(status))
        } else {
            bail!("{status:#?}")
        }
    })
    .await
}

/// Returns the numbers of the plan: create, update, delete, conflict.
fn plan(status: &ClusterReplicationStatus) -> Option<[i32; 4]> {
    status
        .plan
        .as_ref()
        .map(|plan| [plan.create, plan.update, plan.delete, plan.conflict])
}

/// Returns the copies that the plan names.
fn planned(status: &ClusterReplicationStatus) -> Vec<String> {
    let copies = status.plan.iter().flat_map(|plan| &plan.copies);
    copies
        .map(|copy| {
            format!(
                "{} {} {}/{}",
                copy.action, copy.kind, copy.namespace, copy.name
            )
        })
        .collect()
}

#[tokio::test]
async fn a_status_is_what_kubectl_shows_and_waits_for() -> Result<()> {
    let scene = STAGE.scene("status").await?;
    scene.namespaces(2).await?;
    let control_plane = &scene.setting.control_plane;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    let status = scene
        .wait_condition(&scene.tag, "Ready", "False", "SourceNotFound")
        .await?;
    assert!(status.last_sync_time.is_none());
    assert_eq!(status.sources[0].resource_version, None);

    let source = scene.secret("registry", &[("token", "one")]).await?;
    let name = format!("crepl/{}", scene.tag);
    kubectl(
        control_plane,
        ["wait", "--for=condition=Ready", "--timeout=5m", &name],
    )?;
    let status = scene.wait_counts(&scene.tag, [2, 2, 0]).await?;
    assert_eq!(status.observed_generation, Some(1));
    assert!(status.last_sync_time.is_some() && status.failures.is_empty());
    assert_eq!(status.sources[0].resource_version, Some(version(&source)));
    let found = condition(&status, "SourcesFound").context("no SourcesFound")?;
    assert_eq!(
        (found.status.as_str(), found.reason.as_str()),
        ("True", "Found")
    );
    let types: BTreeSet<_> = status
        .conditions
        .iter()
        .map(|one| one.type_.as_str())
        .collect();
    assert_eq!(
        types,
        ["Ready", "SourcesFound", "Authorized", "PodGateActive"]
            .into_iter()
            .collect()
    );
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;

    let table = kubectl(control_plane, ["get", "crepl", &scene.tag])?;
    let (head, row) = table.split_once('\n').context("no row")?;
    assert_eq!(
        words(head),
        [
            "NAME", "SOURCE", "READY", "DESIRED", "SYNCED", "FAILED", "REASON", "AGE"
        ]
    );
    let source = format!("{}/registry", scene.home);
    assert_eq!(
        words(row)[..8],
        [
            scene.tag.as_str(),
            "Secret",
            &source,
            "True",
            "2",
            "2",
            "0",
            "Synced"
        ]
    );
    let wide = kubectl(
        control_plane,
        ["get", "clusterreplication", &scene.tag, "-o", "wide"],
    )?;
    for column in ["MESSAGE", "LAST SYNC", "SUSPENDED"] {
        assert!(
            wide.lines()
                .next()
                .is_some_and(|head| head.contains(column)),
            "{wide}"
        );
    }
    assert!(
        kubectl(control_plane, ["get", "mimeo"])?.contains(&scene.tag),
        "the category"
    );

    // An inline source has no name. Of several sources only the first is named.
    let about = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "about"}});
    let source = format!("Secret {}/registry", scene.home);
    let named = |name: &str| rule(&format!("{}-{name}", scene.tag)).to_label("scene", "nowhere");
    let three = named("three").secret(&scene.home, "registry");
    let three = three.secret(&scene.home, "b").secret(&scene.home, "c");
    for (rule, source) in [
        (named("inline").inline(&about), "ConfigMap inline"),
        (three, &*format!("{source} +2")),
    ] {
        rule.create(&scene.client).await?;
        eventually(SOON, format!("{} from {source}", rule.name), || async {
            let table = kubectl(control_plane, ["get", "crepl", &rule.name])?;
            let row = words(table.lines().nth(1).context("no row")?).join(" ");
            let want = format!("{} {source} ", rule.name);
            ensure!(row.starts_with(&want), "{row}, and not {want}");
            Ok(Some(()))
        })
        .await?;
        rule.delete(&scene.client).await?;
    }
    Ok(())
}

/// A tenant's rule and grant, and a policy. Each is shown by its short name, with its columns.
#[tokio::test]
async fn kubectl_shows_every_kind_by_its_short_name_and_waits_for_what_becomes_ready() -> Result<()>
{
    let scene = STAGE.scene("shown").await?;
    let tenant = Tenant::editor(&scene).await?;
    let home = &*tenant.home;
    tenant.secret("db", "one").await?;
    let spec = json!({
        "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "db"}],
        "targets": [{"namespaces": [home], "copyName": "db-copy"}],
    });
    tenant.writes("replications", "copied", &spec).await?;
    tenant
        .writes(
            "replicationgrants",
            "given",
            &consent("Read", &scene.home, &[]),
        )
        .await?;
    let matched = json!({
        "kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"policy": scene.tag}},
    });
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": scene.tag},
        "spec": {"match": matched, "transform": {"type": "example.com/login"}},
    });
    apply(&scene.client, &policy).await?;

    let shown = |args: &[&str]| kubectl(&scene.setting.control_plane, args.iter().copied());
    let tpol = format!("tpol/{}", scene.tag);
    for object in ["repl/copied", "replgrant/given", &tpol] {
        shown(&[
            "wait",
            "--for=condition=Ready",
            "--timeout=5m",
            "--namespace",
            home,
            object,
        ])?;
    }
    for (kind, name, head, row) in [
        (
            "repl",
            "copied",
            "NAME SOURCE READY DESIRED SYNCED FAILED REASON MESSAGE LAST SYNC SUSPENDED AGE",
            "copied Secret * True 1 1 0 Synced 1 copy is up to date * false *",
        ),
        (
            "replgrant",
            "given",
            "NAME ACCESS GRANTEES OBJECTS READY USED BY REASON AGE",
            &format!("given Read {} Secret (any) True 0 Active *", scene.home),
        ),
        (
            "tpol",
            &scene.tag,
            "NAME READY FAILURE POLICY REASON MESSAGE AGE",
            &format!("{} True Fail Active * *", scene.tag),
        ),
    ] {
        let wide = shown(&["get", kind, name, "--namespace", home, "-o", "wide"])?;
        assert!(is_table(&wide, head, row), "{wide}");
        // Wide columns appear only with `-o wide`.
        let narrow = shown(&["get", kind, name, "--namespace", home])?;
        let head = head
            .replace(" MESSAGE LAST SYNC SUSPENDED", "")
            .replace(" MESSAGE", "");
        assert_eq!(
            narrow.lines().next().map(words),
            Some(words(&head)),
            "{narrow}"
        );
    }
    let all = shown(&["get", "mimeo", "--namespace", home])?;
    for object in [
        "replication.mimeo.dev/copied",
        "replicationgrant.mimeo.dev/given",
    ] {
        assert!(all.contains(object), "{all}");
    }
    assert!(
        all.contains(&format!("transformpolicy.mimeo.dev/{}", scene.tag)),
        "{all}"
    );
    Ok(())
}

/// True if kubectl has printed this head and this row. A `*` stands for any words.
fn is_table(table: &str, head: &str, row: &str) -> bool {
    let Some((first, second)) = table.trim_end().split_once('\n') else {
        return false;
    };
    let told = words(second).join(" ");
    let mut rest = &*told;
    let fits = row
        .split('*')
        .all(|part| match rest.split_once(part.trim()) {
            Some((_, behind)) => {
                rest = behind;
                true
            }
            None => false,
        });
    words(first) == words(head) && fits
}

/// The writes wait for an admission webhook that does not answer, until the test releases them.
#[tokio::test]
async fn what_is_under_way_is_told_until_it_is_done() -> Result<()> {
    let scene = STAGE.scene("under-way").await?;
    let namespace = scene.namespace().await?;
    let silent = Silent::over(&scene, std::slice::from_ref(&namespace), "Ignore", HELD).await?;
    let token = || unique("token");
    let source = token();
    scene.secret("registry", &[("token", &source)]).await?;
    // On a busy machine, a write may be over before its state is seen. Then the test takes another
    // rule.
    eventually(SOON * 2, "two writes under way", || async {
        let name = unique(&scene.tag);
        let rule = rule(&name)
            .secret(&scene.home, "registry")
            .to_label("scene", &scene.tag);
        let (first, second) = (token(), token());
        let set = async |token: &str| {
            put(&scene.secrets(&scene.home), "registry", &[("token", token)]).await
        };
        set(&first).await?;
        silent.hold();
        rule.named(&name).create(&scene.client).await?;
        is_told_until_done(&scene, &silent, &name, (&namespace, &first)).await?;
        silent.hold();
        set(&second).await?;
        is_told_until_done(&scene, &silent, &name, (&namespace, &second)).await?;
        Ok(Some(()))
    })
    .await?;
    silent.end().await
}

/// For how many seconds a write is held.
const HELD: u32 = 30;

/// Waits until the write of the rule's only copy is under way. Then releases it. The rule and the
/// copy have the same name.
async fn is_told_until_done(
    scene: &Scene<'_>,
    silent: &Silent<'_>,
    rule: &str,
    (namespace, token): (&str, &str),
) -> Result<()> {
    let wait = |condition: &str, timeout: &str| {
        let (condition, timeout, rule) = (
            format!("--for=condition={condition}"),
            format!("--timeout={timeout}"),
            format!("crepl/{rule}"),
        );
        kubectl(
            &scene.setting.control_plane,
            ["wait", &condition, &timeout, &rule],
        )
    };
    let under_way = scene.wait_condition(rule, "Reconciling", "True", "Pending");
    let status = timeout(Duration::from_secs(HELD.into()), under_way).await??;
    let ready = condition(&status, "Ready").context("no Ready")?;
    assert_eq!(
        (&*ready.status, &*ready.reason),
        ("False", "Pending"),
        "{status:#?}"
    );
    assert_eq!(
        status
            .copies
            .as_ref()
            .map(|copies| [copies.desired, copies.synced, copies.failed]),
        Some([1, 0, 0])
    );
    wait("Reconciling", "30s")?;
    silent.let_go();
    wait("Ready", "5m")?;
    assert_eq!(
        value(&scene.secrets(namespace).get(rule).await?, "token").as_deref(),
        Some(token)
    );
    let status = scene.wait_synced(rule).await?;
    assert!(
        condition(&status, "Reconciling").is_none() && condition(&status, "Stalled").is_none(),
        "{status:#?}"
    );
    Ok(())
}

/// In one case no answer comes, in the other the API server answers with an error of its own.
#[tokio::test]
async fn a_write_that_nobody_answers_is_the_trouble_of_its_namespace_alone() -> Result<()> {
    let pair = Pair::builder().reconciler_args(["--request-timeout", "10s"]);
    let setting = Setting::start(ControlPlane::builder(), pair).await?;
    // The seconds that the API server waits itself: longer than Mimeo's timeout, and shorter.
    futures::try_join!(
        a_write_is_in_vain(&setting, "unanswered", HELD, "Timeout"),
        a_write_is_in_vain(&setting, "failing", 1, "ClusterUnreachable")
    )?;
    Ok(())
}

async fn a_write_is_in_vain(
    setting: &Setting,
    about: &str,
    seconds: u32,
    reason: &str,
) -> Result<()> {
    let scene = setting.scene(about).await?;
    let (stuck, other) = (scene.namespace().await?, scene.namespace().await?);
    let silent = Silent::over(&scene, std::slice::from_ref(&stuck), "Fail", seconds).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene
        .wait_secret(&other, "registry", |copy| {
            value(copy, "token").as_deref() == Some("one")
        })
        .await?;
    // On a busy machine, another attempt may fail in another way.
    eventually(SOON, format!("the failure {reason}"), || async {
        let status = scene.wait_counts(&scene.tag, [2, 1, 1]).await?;
        let failures = status.failures.iter();
        let failures: Vec<_> = failures
            .map(|one| (&*one.namespace, &*one.reason))
            .collect();
        ensure!(failures == [(&*stuck, reason)], "{failures:?}");
        Ok(Some(()))
    })
    .await?;
    scene
        .wait_condition(&scene.tag, "Ready", "False", "CopiesFailed")
        .await?;
    silent.end().await?;
    scene.wait_synced(&scene.tag).await?;
    assert_eq!(
        value(&scene.secrets(&stuck).get("registry").await?, "token").as_deref(),
        Some("one")
    );
    Ok(())
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[tokio::test]
async fn a_namespace_that_refuses_its_copy_delays_no_other_and_is_reported() -> Result<()> {
    let scene = STAGE.scene("refuse").await?;
    let namespaces = scene.namespaces(8).await?;
    let [full, closed] = [&namespaces[2], &namespaces[5]];
    exhaust(&scene, full).await?;
    let policy = close(&scene, closed).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;

    scene
        .wait_condition(&scene.tag, "Ready", "False", "CopiesFailed")
        .await?;
    let status = scene.wait_counts(&scene.tag, [8, 6, 2]).await?;
    let failures: Vec<_> = status
        .failures
        .iter()
        .map(|one| (one.namespace.as_str(), one.reason.as_str()))
        .collect();
    assert_eq!(
        failures,
        [
            (full.as_str(), "QuotaExceeded"),
            (closed.as_str(), "AdmissionDenied")
        ]
    );
    assert_eq!(
        status.failures[0].message.as_str(),
        "a ResourceQuota of the namespace has no room for this copy; kubectl describe quota shows it"
    );
    let told = serde_json::to_string(&status)?;
    assert!(
        !told.contains("hunter2") && !told.contains("b25l"),
        "no server text for Secrets: {told}"
    );

    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    for namespace in namespaces
        .iter()
        .filter(|name| ![full, closed].contains(name))
    {
        scene
            .wait_secret(namespace, "registry", |copy| {
                value(copy, "token").as_deref() == Some("two")
            })
            .await?;
    }
    assert!(scene.secrets(full).get_opt("registry").await?.is_none());

    delete(
        &any(&scene.client, "v1", "ResourceQuota", Some(full))?,
        "none",
    )
    .await?;
    delete(
        &any(
            &scene.client,
            ADMISSION,
            "ValidatingAdmissionPolicyBinding",
            None,
        )?,
        &policy,
    )
    .await?;
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}

/// The rule, the sources and the namespaces have names of the largest permitted length. No copy can
/// be written.
#[tokio::test]
async fn a_status_stays_small_however_much_fails_and_is_written_once_a_second_at_most() -> Result<()>
{
    const SOURCES: usize = 8;
    const NAMESPACES: usize = 40;
    const COPIES: usize = SOURCES * NAMESPACES;
    let scene = STAGE.scene("small").await?;
    let mut rule = rule(&format!("{:r<253}", scene.tag))
        .to_label("scene", &scene.tag)
        .named("$(source.name)");
    let names: Vec<String> = (0..SOURCES)
        .map(|number| format!("{number}{:n<252}", ""))
        .collect();
    for name in &names {
        config_map(&scene, name, &[("token", "one")]).await?;
        rule = rule.source("v1", "ConfigMap", &scene.home, name);
    }
    let create = |_| async {
        let name = format!("{:n<63}", unique(&scene.tag));
        create_namespace(&scene.client, &name, &[("scene", &scene.tag)]).await?;
        anyhow::Ok(name)
    };
    let mut namespaces: Vec<String> = iter(0..NAMESPACES)
        .map(create)
        .buffer_unordered(32)
        .try_collect()
        .await?;
    namespaces.sort();
    let undeclared = json!({"jsonPatch": [{"op": "add", "path": "/undeclared", "value": "x"}]});
    let mark = scene.setting.control_plane.audit_mark().await?;
    rule.clone()
        .set("transform", undeclared)
        .create(&scene.client)
        .await?;
    let status = scene.wait_counts(&rule.name, [COPIES, 0, COPIES]).await?;
    scene.assert_paced(&rule.name, &mark).await?;

    let rules = any(
        &scene.client,
        "mimeo.dev/v1alpha1",
        "ClusterReplication",
        None,
    )?;
    let stored = rules.get(&rule.name).await?.data["status"].to_string();
    assert!(stored.len() < 16 * 1024, "{} bytes: {stored}", stored.len());
    assert!(
        status.sources.len() < SOURCES,
        "the list of sources is shortened first"
    );
    let failed: Vec<_> = status
        .failures
        .iter()
        .map(|one| (&*one.namespace, &*one.name, &*one.reason))
        .collect();
    let all = namespaces.iter().flat_map(|namespace| {
        names
            .iter()
            .map(move |name| (&**namespace, &**name, "Invalid"))
    });
    assert_eq!(failed, all.take(20).collect::<Vec<_>>());
    let ready = &condition(&status, "Ready").context("no Ready")?.message;
    let named = namespaces[..3].join(", ");
    let told = format!(
        "320 of 320 copies failed, first with Invalid: in 40 namespaces, first {named}; fix"
    );
    assert!(ready.starts_with(&told), "{ready}");

    // When nothing fails any more, the status is small, too.
    let mark = scene.setting.control_plane.audit_mark().await?;
    rule.replace(&scene.client).await?;
    let status = scene.wait_counts(&rule.name, [COPIES, COPIES, 0]).await?;
    assert!(
        status.failures.is_empty() && status.sources.len() == SOURCES,
        "{status:#?}"
    );
    scene.assert_paced(&rule.name, &mark).await
}

const ADMISSION: &str = "admissionregistration.k8s.io/v1";

/// Writes a quota that permits no Secrets. The API server reads its status. No controller runs
/// here, so the test fills the status in.
pub(crate) async fn exhaust(scene: &Scene<'_>, namespace: &str) -> Result<()> {
    let hard = json!({"hard": {"count/secrets": "0"}});
    let metadata = json!({"name": "none", "namespace": namespace});
    let quota =
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": hard});
    apply(&scene.client, &quota).await?;
    let quotas = any(&scene.client, "v1", "ResourceQuota", Some(namespace))?;
    let status =
        json!({"status": {"hard": {"count/secrets": "0"}, "used": {"count/secrets": "0"}}});
    quotas
        .patch_status("none", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    wait_until_refused(scene, namespace).await
}

/// Writes an admission policy against all Secrets. Its message must appear nowhere.
async fn close(scene: &Scene<'_>, namespace: &str) -> Result<String> {
    let name = format!("{}.example.com", scene.tag);
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["secrets"]}]);
    let validations = json!([{"expression": "false", "message": "closed, says hunter2"}]);
    let spec = json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules}, "validations": validations});
    let policy = json!({"apiVersion": ADMISSION, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec});
    apply(&scene.client, &policy).await?;
    let only =
        json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}});
    let spec = json!({"policyName": name, "validationActions": ["Deny"], "matchResources": only});
    let kind = "ValidatingAdmissionPolicyBinding";
    let binding =
        json!({"apiVersion": ADMISSION, "kind": kind, "metadata": {"name": name}, "spec": spec});
    apply(&scene.client, &binding).await?;
    wait_until_refused(scene, namespace).await?;
    Ok(name)
}

async fn wait_until_refused(scene: &Scene<'_>, namespace: &str) -> Result<()> {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut probe = Secret::default();
    probe.metadata.name = Some("probe".to_owned());
    eventually(SOON, "the refusal of Secrets", || async {
        let answer = scene.secrets(namespace).create(&dry_run, &probe).await;
        Ok(answer.is_err().then_some(()))
    })
    .await
}
