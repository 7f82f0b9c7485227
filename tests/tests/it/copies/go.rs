//! Deletion of copies: with their rule, their source or their namespace. Large losses are held.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use mimeo_api::ClusterReplication;
use mimeo_tests::scenario::{
    SOON, Scene, apply, condition, delete, label, merge, of, put, relabel, rule, uid, value,
    version, wait_for, wait_gone,
};
use mimeo_tests::{create_namespace, eventually};
use serde_json::json;

use super::{BELONGS_TO, CONFIRM, STAGE, config_map};

#[tokio::test]
async fn copies_go_with_their_rule_unless_it_retains_them() -> Result<()> {
    let scene = STAGE.scene("rule-gone").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let [kept, gone] = ["kept", "gone"].map(|name| {
        let to = rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag);
        to.secret(&scene.home, "registry").named(name)
    });
    let kept = kept.set("retentionPolicy", json!({"whenRuleDeleted": "Retain"}));
    for rule in [&kept, &gone] {
        rule.create(&scene.client).await?;
        scene.wait_synced(&rule.name).await?;
    }
    let before = scene.secrets(&namespace).get("kept").await?;
    kept.delete(&scene.client).await?;
    gone.delete(&scene.client).await?;
    wait_gone(scene.secrets(&namespace), "gone").await?;
    assert_eq!(
        version(&scene.secrets(&namespace).get("kept").await?),
        version(&before)
    );

    // A rule of that name that wants it nowhere leaves it alone, and so does the end of that rule:
    // its author may have no permission in this namespace.
    let nowhere = json!([{"namespaces": [format!("{}-nowhere", scene.tag)], "copyName": "kept"}]);
    let elsewhere = kept.clone().set("targets", nowhere);
    let elsewhere = elsewhere.set("retentionPolicy", json!({}));
    elsewhere.create(&scene.client).await?;
    scene
        .wait_condition(&kept.name, "Ready", "True", "NoNamespaceMatches")
        .await?;
    // A copy that is lost later than this one would be goes.
    gone.create(&scene.client).await?;
    scene.wait_synced(&gone.name).await?;
    relabel(&scene.client, &namespace, "scene", None).await?;
    wait_gone(scene.secrets(&namespace), "gone").await?;
    elsewhere.delete(&scene.client).await?;
    gone.delete(&scene.client).await?;
    relabel(&scene.client, &namespace, "scene", Some(&scene.tag)).await?;
    assert_eq!(
        version(&scene.secrets(&namespace).get("kept").await?),
        version(&before)
    );

    // A rule of that name takes the copy over again, in place.
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    kept.create(&scene.client).await?;
    scene.wait_synced(&kept.name).await?;
    let after = scene.secrets(&namespace).get("kept").await?;
    assert_eq!(
        (value(&after, "token").as_deref(), uid(&after)),
        (Some("two"), uid(&before))
    );
    Ok(())
}

#[tokio::test]
async fn copies_go_with_their_source_after_its_grace_unless_retained() -> Result<()> {
    let scene = STAGE.scene("source-gone").await?;
    let namespaces = scene.namespaces(2).await?;
    let [kept, gone, graced] = ["kept", "gone", "graced"].map(|name| {
        rule(&format!("{}-{name}", scene.tag))
            .to_label("scene", &scene.tag)
            .secret(&scene.home, name)
    });
    let kept = kept.set(
        "retentionPolicy",
        json!({"whenSourceDeleted": "Retain", "sourceGracePeriodSeconds": 0}),
    );
    let gone = gone.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 0}));
    // This grace period outlasts a busy machine.
    let graced = graced.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 3600}));
    for (rule, name) in [(&kept, "kept"), (&gone, "gone"), (&graced, "graced")] {
        scene.secret(name, &[("token", "one")]).await?;
        rule.create(&scene.client).await?;
        scene.wait_synced(&rule.name).await?;
    }
    let mut before = Vec::new();
    for namespace in &namespaces {
        for name in ["kept", "graced"] {
            before.push(version(&scene.secrets(namespace).get(name).await?));
        }
    }
    for name in ["kept", "graced", "gone"] {
        delete(&scene.secrets(&scene.home), name).await?;
    }
    for namespace in &namespaces {
        wait_gone(scene.secrets(namespace), "gone").await?;
    }
    scene
        .wait_condition(&gone.name, "SourcesFound", "False", "SourceNotFound")
        .await?;
    scene
        .wait_condition(&kept.name, "SourcesFound", "False", "SourceNotFound")
        .await?;
    scene
        .wait_condition(&graced.name, "SourcesFound", "False", "InGracePeriod")
        .await?;
    for name in ["graced", "gone"] {
        scene.secret(name, &[("token", "one")]).await?;
    }
    scene.wait_synced(&graced.name).await?;
    scene.wait_synced(&gone.name).await?;
    let mut after = Vec::new();
    for namespace in &namespaces {
        for name in ["kept", "graced"] {
            after.push(version(&scene.secrets(namespace).get(name).await?));
        }
    }
    assert_eq!(
        after, before,
        "retained or within the grace: not even touched"
    );
    Ok(())
}

/// The API server's clock shows that the copy is deleted after the grace period, and not before. A
/// second rule has a grace period that outlasts a busy machine, and its status shows it.
#[tokio::test]
async fn a_copy_outlives_its_source_by_its_grace_and_no_longer() -> Result<()> {
    const GRACE: Duration = Duration::from_secs(15);
    const LONG: Duration = Duration::from_hours(1);
    let scene = STAGE.scene("grace-over").await?;
    let namespaces = scene.namespaces(2).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let long = format!("{}-long", scene.tag);
    let named = rule(&long)
        .to_label("scene", &scene.tag)
        .named("long")
        .secret(&scene.home, "registry");
    let rule = scene.rule().secret(&scene.home, "registry");
    for (rule, grace) in [(rule, GRACE), (named, LONG)] {
        let retention = json!({"sourceGracePeriodSeconds": grace.as_secs()});
        let rule = rule.set("retentionPolicy", retention);
        rule.create(&scene.client).await?;
        scene.wait_synced(&rule.name).await?;
    }

    let mark = scene.setting.control_plane.audit_mark().await?;
    delete(&scene.secrets(&scene.home), "registry").await?;
    let status = scene
        .wait_condition(&long, "SourcesFound", "False", "InGracePeriod")
        .await?;
    let told = &condition(&status, "SourcesFound")
        .context("no SourcesFound")?
        .message;
    assert!(
        told.contains(&format!(
            " is deleted; its copies stay for {} seconds after that",
            LONG.as_secs()
        )),
        "{told}"
    );
    scene
        .wait_condition(&long, "Ready", "False", "InGracePeriod")
        .await?;
    // A new namespace gets no copy, because the source is missing.
    let late = scene.namespace().await?;
    for namespace in &namespaces {
        wait_gone(scene.secrets(namespace), "registry").await?;
    }
    scene
        .wait_condition(&scene.tag, "SourcesFound", "False", "SourceNotFound")
        .await?;
    scene.wait_counts(&scene.tag, [3, 0, 0]).await?;
    for name in ["registry", "long"] {
        assert!(scene.secrets(&late).get_opt(name).await?.is_none());
    }

    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let deleted = |namespace: &String| {
        let found = events.iter().find(|event| {
            event.verb == "delete"
                && event.resource == "secrets"
                && event.namespace == *namespace
                && event.code == 200
        });
        found.with_context(|| format!("no deletion in {namespace}"))
    };
    let lost = deleted(&scene.home)?;
    for namespace in &namespaces {
        let copy = deleted(namespace)?;
        assert!(
            scene.setting.is_ours(copy) && copy.received >= lost.received + GRACE,
            "{copy:#?} after {lost:#?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_copy_goes_when_its_namespace_no_longer_matches_unless_retained() -> Result<()> {
    let scene = STAGE.scene("unmatched").await?;
    let namespaces = scene.namespaces(2).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let [kept, gone] = ["kept", "gone"].map(|name| {
        let to = rule(&format!("{}-{name}", scene.tag)).to_label("scene", &scene.tag);
        to.secret(&scene.home, "registry").named(name)
    });
    let kept = kept.set("retentionPolicy", json!({"whenUnmatched": "Retain"}));
    for rule in [&kept, &gone] {
        rule.create(&scene.client).await?;
        scene.wait_synced(&rule.name).await?;
    }
    relabel(&scene.client, &namespaces[0], "scene", None).await?;
    wait_gone(scene.secrets(&namespaces[0]), "gone").await?;
    scene.secrets(&namespaces[0]).get("kept").await?;
    scene.secrets(&namespaces[1]).get("gone").await?;
    scene.wait_counts(&gone.name, [1, 1, 0]).await?;
    Ok(())
}

#[tokio::test]
async fn a_changed_rule_takes_its_former_copies_away() -> Result<()> {
    let scene = STAGE.scene("changed").await?;
    let namespace = scene.namespace().await?;
    for name in ["registry", "second"] {
        scene.secret(name, &[("token", "one")]).await?;
    }
    config_map(&scene, "registry", &[("token", "one")]).await?;
    let secrets = scene
        .rule()
        .secret(&scene.home, "registry")
        .secret(&scene.home, "second");
    secrets
        .named("old-$(source.name)")
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;

    // The copies get another name, and the rule loses a source.
    scene
        .rule()
        .secret(&scene.home, "registry")
        .named("new")
        .replace(&scene.client)
        .await?;
    scene.wait_secret(&namespace, "new", |_| true).await?;
    for name in ["old-registry", "old-second"] {
        wait_gone(scene.secrets(&namespace), name).await?;
    }
    // The source has another kind.
    scene
        .rule()
        .source("v1", "ConfigMap", &scene.home, "registry")
        .named("new")
        .replace(&scene.client)
        .await?;
    let copies: Api<ConfigMap> = of(&scene.client, &namespace);
    wait_for(copies, "new".into(), |copy| {
        label(copy, BELONGS_TO) == Some(scene.tag.as_str())
    })
    .await?;
    wait_gone(scene.secrets(&namespace), "new").await
}

#[tokio::test]
async fn copies_of_a_source_that_went_with_its_namespace_go_after_it() -> Result<()> {
    let scene = STAGE.scene("home-gone").await?;
    let namespace = scene.namespace().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    rule.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 0}))
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    delete(&Api::<Namespace>::all(scene.client.clone()), &scene.home).await?;
    wait_gone(scene.secrets(&namespace), "registry").await
}

/// The deletion of this many copies is rarely intended.
#[tokio::test]
async fn many_copies_of_a_source_that_went_with_its_namespace_are_held_until_it_is_back()
-> Result<()> {
    let scene = STAGE.scene("home-lost").await?;
    let namespaces = scene.namespaces(20).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    rule.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 0}))
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    let before = uids(&scene, &namespaces).await?;

    let homes: Api<Namespace> = Api::all(scene.client.clone());
    delete(&homes, &scene.home).await?;
    let status = scene
        .wait_condition(&scene.tag, "Stalled", "True", "DeletionHeld")
        .await?;
    let told = &condition(&status, "Stalled")
        .context("not stalled")?
        .message;
    assert!(
        told.starts_with("Mimeo holds the deletion of 20 copies, ") && told.contains(CONFIRM),
        "{told}"
    );
    wait_gone(homes, &scene.home).await?;
    assert_eq!(
        uids(&scene, &namespaces).await?,
        before,
        "nothing is deleted"
    );

    create_namespace(&scene.client, &scene.home, &[]).await?;
    scene.secret("registry", &[("token", "two")]).await?;
    for namespace in &namespaces {
        scene
            .wait_secret(namespace, "registry", |copy| {
                value(copy, "token").as_deref() == Some("two")
            })
            .await?;
    }
    assert_eq!(
        uids(&scene, &namespaces).await?,
        before,
        "they have their source again"
    );
    eventually(SOON, "no more stalling", || async {
        let status = scene.wait_synced(&scene.tag).await?;
        if condition(&status, "Stalled").is_none() {
            Ok(Some(()))
        } else {
            bail!("{status:?}")
        }
    })
    .await
}

/// The labels are removed slowly. Mimeo may delete a few copies until the loss is large enough to
/// be held, and then none.
#[tokio::test]
async fn a_sweep_of_relabellings_is_held_until_a_person_confirms_it() -> Result<()> {
    let scene = STAGE.scene("sweep").await?;
    let namespaces = scene.namespaces(30).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    let before = uids(&scene, &namespaces).await?;

    // The removals take longer than Mimeo collects losses here.
    for (at, namespace) in namespaces.iter().enumerate() {
        relabel(&scene.client, namespace, "scene", None).await?;
        if at == 2 {
            wait_gone(scene.secrets(&namespaces[0]), "registry").await?;
        }
    }
    let status = scene
        .wait_condition(&scene.tag, "Stalled", "True", "DeletionHeld")
        .await?;
    let message = &condition(&status, "Stalled")
        .context("not stalled")?
        .message;
    let nonce = nonce(message)?;

    // A wrong nonce confirms nothing. The status also has an edit of the spec from the same
    // request, so Mimeo has read the nonce.
    let rules: Api<ClusterReplication> = Api::all(scene.client.clone());
    let edit = json!({"metadata": {"annotations": {CONFIRM: "yes"}}, "spec": {"retentionPolicy": {"sourceGracePeriodSeconds": 1}}});
    merge(&rules, &scene.tag, edit).await?;
    let status = scene
        .wait_condition(&scene.tag, "Stalled", "True", "DeletionHeld")
        .await?;
    assert!(
        condition(&status, "Stalled").is_some_and(|stalled| stalled.message == *message),
        "the same are held"
    );
    let left = left(&scene, &namespaces).await?;
    assert!(
        left.len() > 10,
        "{} copies are left: 20 count as many",
        left.len()
    );
    assert!(left.iter().all(|uid| before.contains(uid)), "as they were");
    merge(
        &rules,
        &scene.tag,
        json!({"metadata": {"annotations": {CONFIRM: nonce}}}),
    )
    .await?;
    // Losses after the first held ones may be held separately.
    eventually(SOON, "no copy, and no more stalling", || async {
        let copies = self::left(&scene, &namespaces).await?.len();
        let status = rules.get(&scene.tag).await?.status.context("no status")?;
        if let Some(stalled) = condition(&status, "Stalled") {
            merge(
                &rules,
                &scene.tag,
                json!({"metadata": {"annotations": {CONFIRM: self::nonce(&stalled.message)?}}}),
            )
            .await?;
            bail!("{copies} copies, {status:?}");
        }
        if copies == 0 {
            Ok(Some(()))
        } else {
            bail!("{copies} copies, {status:?}")
        }
    })
    .await?;
    scene
        .wait_condition(&scene.tag, "Ready", "True", "NoNamespaceMatches")
        .await?;
    Ok(())
}

fn nonce(message: &str) -> Result<&str> {
    let nonce = message
        .split_once(&format!("{CONFIRM}="))
        .context(message.to_owned())?
        .1;
    nonce.split_whitespace().next().context("no nonce")
}

/// Returns the uids of the remaining copies.
async fn left(scene: &Scene<'_>, namespaces: &[String]) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for namespace in namespaces {
        left.extend(
            scene
                .secrets(namespace)
                .get_opt("registry")
                .await?
                .iter()
                .map(uid),
        );
    }
    Ok(left)
}

/// Returns the uids of all copies.
async fn uids(scene: &Scene<'_>, namespaces: &[String]) -> Result<Vec<String>> {
    let mut uids = Vec::new();
    for namespace in namespaces {
        uids.push(uid(&scene.secrets(namespace).get("registry").await?));
    }
    Ok(uids)
}

#[tokio::test]
async fn deletion_of_a_namespace_is_never_held_up_and_its_copies_are_left_alone() -> Result<()> {
    let scene = STAGE.scene("terminate").await?;
    let [held, free] =
        <[String; 2]>::try_from(scene.namespaces(2).await?).map_err(|_| anyhow!("not two"))?;
    let names = ["one", "two", "three"];
    let mut rule = scene.rule();
    for name in names {
        scene.secret(name, &[("token", "one")]).await?;
        rule = rule.secret(&scene.home, name);
    }
    rule.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    // A foreign object with a finalizer keeps the namespace terminating for a while.
    let metadata =
        json!({"name": "anchor", "namespace": held, "finalizers": ["example.com/anchor"]});
    apply(
        &scene.client,
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}),
    )
    .await?;

    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    delete(&namespaces, &held).await?;
    // Mimeo has seen that the namespace is terminating.
    scene.wait_counts(&scene.tag, [3, 3, 0]).await?;
    let mark = scene.setting.control_plane.audit_mark().await?;
    for name in names {
        wait_gone(scene.secrets(&held), name).await?;
        put(&scene.secrets(&scene.home), name, &[("token", "two")]).await?;
        scene
            .wait_secret(&free, name, |copy| {
                value(copy, "token").as_deref() == Some("two")
            })
            .await?;
    }
    relabel(&scene.client, &held, "tier", Some("gold")).await?;
    let events = scene.setting.control_plane.audit_since(&mark).await?;
    let ours = events
        .iter()
        .filter(|event| scene.setting.is_ours(event) && event.namespace == held);
    let ours: Vec<_> = ours
        .map(|event| (&event.verb, &event.name, event.code))
        .collect();
    assert!(
        ours.len() <= names.len(),
        "at most one write of each was under way: {ours:?}"
    );

    merge(
        &of::<ConfigMap>(&scene.client, &held),
        "anchor",
        json!({"metadata": {"finalizers": null}}),
    )
    .await?;
    wait_gone(namespaces.clone(), &held).await?;
    // Another namespace is deleted before its copies are complete.
    let brief = scene.namespace().await?;
    delete(&namespaces, &brief).await?;
    wait_gone(namespaces, &brief).await?;
    let log = scene
        .setting
        .pair
        .reconciler
        .as_ref()
        .context("no reconciler")?
        .program
        .log()?;
    let told: Vec<_> = log
        .lines()
        .filter(|line| line.contains(&held) || line.contains(&brief))
        .collect();
    let complaints = told
        .iter()
        .filter(|line| line.contains("WARN") || line.contains("ERROR"))
        .count();
    assert!(
        complaints == 0 && told.len() <= 4 * names.len(),
        "{told:#?}"
    );
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}
