//! Deletions that were pending when the reconciler ended, or became due while none ran. The next
//! reconciler decides them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use mimeo_api::ClusterReplication;
use mimeo_tests::{
    AuditEvent, AuditMark, ControlPlane, Pair, create_secret,
    scenario::{
        SOON, Setting, annotation, delete, merge, of, rule, uid, value, version, wait_condition,
        wait_gone,
    },
};
use serde_json::json;

const RETENTION: &str = "mimeo.dev/retention";

/// Starts a setting with a reconciler of its own, which the test stops. Mimeo collects losses for
/// one second instead of ten.
async fn setting() -> Result<Setting> {
    let pair = Pair::builder().reconciler_args(["--deletion-delay", "1s"]);
    Setting::start(ControlPlane::builder().audit(true), pair).await
}

/// Stops the reconciler with SIGTERM. After a kill, its Lease would delay the next reconciler.
async fn stop_reconciler(setting: &mut Setting) -> Result<()> {
    let mut reconciler = setting.pair.reconciler.take().context("no reconciler")?;
    assert!(reconciler.program.stop(SOON).await?.success());
    Ok(())
}

/// The documents say that the grace period begins again in the next process, which keeps no state.
/// It must still end.
#[tokio::test]
async fn a_grace_goes_on_in_the_next_reconciler_and_ends() -> Result<()> {
    const GRACE: Duration = Duration::from_secs(12);
    let mut setting = setting().await?;
    let client = setting.control_plane.client().await?;
    let gone = ["lost", "selected", "unseen"];
    // The sources that are deleted while no reconciler runs.
    let later = ["unseen", "waiting"];
    let (tag, home, namespaces) = {
        let scene = setting.scene("graced").await?;
        let namespaces = scene.namespaces(2).await?;
        for name in gone.into_iter().chain(["waiting", "back"]) {
            scene.secret(name, &[("token", "one")]).await?;
            let rule = rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag);
            let rule = if name == "selected" {
                merge(
                    &scene.secrets(&scene.home),
                    name,
                    json!({"metadata": {"labels": {"copy": "yes"}}}),
                )
                .await?;
                rule.selected(
                    "v1",
                    "Secret",
                    &scene.home,
                    &json!({"matchLabels": {"copy": "yes"}}),
                )
            } else {
                rule.secret(&scene.home, name)
            };
            // This grace period outlasts a busy machine.
            let rule = rule.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 3600}));
            rule.create(&client).await?;
            scene.wait_counts(&rule.name, [2, 2, 0]).await?;
        }
        (scene.tag.clone(), scene.home.clone(), namespaces)
    };
    let sources: Api<Secret> = of(&client, &home);
    let copies = async |name: &str| copies(&client, &namespaces, name).await;
    let rule_of = |name: &str| format!("{tag}-{name}");
    let in_grace = ["SourcesFound", "False", "InGracePeriod"];
    let (kept, waiting) = (copies("back").await?, copies("waiting").await?);

    let mark = setting.control_plane.audit_mark().await?;
    for name in ["lost", "selected", "back"] {
        delete(&sources, name).await?;
    }
    for name in ["lost", "selected", "back"] {
        wait_condition(&client, &rule_of(name), in_grace).await?;
    }
    stop_reconciler(&mut setting).await?;
    for name in later {
        delete(&sources, name).await?;
    }
    // From now on the grace period is one that the test can wait for.
    let rules: Api<ClusterReplication> = Api::all(client.clone());
    for name in gone {
        let retention = json!({"sourceGracePeriodSeconds": GRACE.as_secs()});
        let patch = json!({"spec": {"retentionPolicy": retention}});
        merge(&rules, &rule_of(name), patch).await?;
    }
    let between = Timestamp::now();
    setting.pair.start_reconciler().await?;
    wait_condition(&client, &rule_of("waiting"), in_grace).await?;
    create_secret(&client, &home, "back", &[("token", "one")]).await?;
    wait_condition(&client, &rule_of("back"), ["Ready", "True", "Synced"]).await?;
    assert_eq!(
        copies("back").await?,
        kept,
        "within the grace: not even touched"
    );

    for namespace in &namespaces {
        for name in gone {
            wait_gone(of::<Secret>(&client, namespace), name).await?;
        }
    }
    for name in gone {
        wait_condition(
            &client,
            &rule_of(name),
            ["SourcesFound", "False", "SourceNotFound"],
        )
        .await?;
    }
    for delete in deletions(&setting, &mark).await? {
        ensure!(gone.contains(&&*delete.name), "{delete:#?}");
        ensure!(
            delete.received >= between + GRACE,
            "{delete:#?}, though none ran before {between}"
        );
    }
    assert_eq!(
        (copies("back").await?, copies("waiting").await?),
        (kept, waiting)
    );
    Ok(())
}

/// A deleted rule leaves only the annotations on its copies.
#[tokio::test]
async fn what_a_rule_last_wrote_on_its_copies_decides_once_it_is_gone() -> Result<()> {
    let mut setting = setting().await?;
    let client = setting.control_plane.client().await?;
    let retain = json!({"whenRuleDeleted": "Retain"});
    let (tag, namespaces) = {
        let scene = setting.scene("last-word").await?;
        let namespaces = scene.namespaces(2).await?;
        scene.secret("registry", &[("token", "one")]).await?;
        // The first retention policy of each rule, and its later changes in order.
        for (name, changes) in [
            ("kept", vec![json!({}), retain.clone()]),
            ("gone", vec![retain.clone(), json!({})]),
            (
                "gone-again",
                vec![
                    json!({}),
                    retain.clone(),
                    json!({"whenRuleDeleted": "Delete"}),
                ],
            ),
            ("unwritten", vec![json!({})]),
        ] {
            let rule = rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag);
            let rule = rule.secret(&scene.home, "registry").named(name);
            let mut uids = None;
            for (number, retention) in changes.into_iter().enumerate() {
                let retains = retention == retain;
                let rule = rule.clone().set("retentionPolicy", retention);
                match number {
                    0 => rule.create(&client).await?,
                    _ => rule.replace(&client).await?,
                }
                scene.wait_synced(&rule.name).await?;
                let mut now = Vec::new();
                for namespace in &namespaces {
                    let copy = scene.secrets(namespace).get(name).await?;
                    assert_eq!(annotation(&copy, RETENTION).is_some(), retains, "{name}");
                    now.push(uid(&copy));
                }
                assert_eq!(
                    uids.get_or_insert_with(|| now.clone()),
                    &now,
                    "it is written in place"
                );
            }
        }
        (scene.tag.clone(), namespaces)
    };
    let kept = copies(&client, &namespaces, "kept").await?;

    stop_reconciler(&mut setting).await?;
    let rules: Api<ClusterReplication> = Api::all(client.clone());
    // No reconciler runs that would write this change on the copies.
    merge(
        &rules,
        &format!("{tag}-unwritten"),
        json!({"spec": {"retentionPolicy": retain}}),
    )
    .await?;
    for name in ["kept", "gone", "gone-again", "unwritten"] {
        delete(&rules, &format!("{tag}-{name}")).await?;
    }
    let mark = setting.control_plane.audit_mark().await?;
    setting.pair.start_reconciler().await?;
    for namespace in &namespaces {
        for name in ["gone", "gone-again", "unwritten"] {
            wait_gone(of::<Secret>(&client, namespace), name).await?;
        }
    }
    assert_eq!(copies(&client, &namespaces, "kept").await?, kept);
    let deleted = deletions(&setting, &mark).await?;
    assert_eq!(deleted.len(), 3 * namespaces.len(), "{deleted:#?}");
    Ok(())
}

/// Returns each namespace's copy of that name: its uid, its version and its content.
async fn copies(
    client: &Client,
    namespaces: &[String],
    name: &str,
) -> Result<Vec<(String, String, Option<String>)>> {
    let mut copies = Vec::new();
    for namespace in namespaces {
        let copy = of::<Secret>(client, namespace).get(name).await?;
        copies.push((uid(&copy), version(&copy), value(&copy, "token")));
    }
    Ok(copies)
}

/// Returns the Secrets that Mimeo has deleted since the mark.
async fn deletions(setting: &Setting, mark: &AuditMark) -> Result<Vec<AuditEvent>> {
    let mut events = setting.control_plane.audit_since(mark).await?;
    events.retain(|event| {
        setting.is_ours(event) && event.verb == "delete" && event.resource == "secrets"
    });
    Ok(events)
}
