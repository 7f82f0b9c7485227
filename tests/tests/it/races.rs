//! Races between Mimeo and other clients. The second write is refused, and its client reads again;
//! this holds for Mimeo too. No object is harmed.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mimeo_tests::author::{grant, secrets};
use mimeo_tests::scenario::{SOON, Scene, Stage, delete, of, put, uid, value, version, wait_gone};
use mimeo_tests::tenant::{Tenant, has};
use mimeo_tests::{ControlPlane, Pair, eventually, unique};
use serde_json::json;

use crate::stages::LOAD;

/// Mimeo uses the first API server, the rival uses the second.
static STAGE: Stage = Stage::new(
    || ControlPlane::builder().api_servers(2).audit(true),
    Pair::builder,
);

const RACES: usize = 100;

#[tokio::test]
async fn whoever_comes_first_in_a_race_keeps_the_name() -> Result<()> {
    let _turn = LOAD.lock().await;
    let scene = STAGE.scene("race").await?;
    let rival = rival(&scene).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;
    let mark = scene.setting.control_plane.audit_mark().await?;

    // Both create the copy in a new namespace. The winner of one race has a shorter head start in
    // the next. So each wins now and then, on a machine of any speed.
    let mut theirs = Vec::new();
    let mut ours = Vec::new();
    let mut head_start = Duration::ZERO;
    for _ in 0..RACES {
        let namespace = scene.namespace().await?;
        tokio::time::sleep(head_start).await;
        if let Some(foreign) = intrude(&rival, &namespace).await? {
            theirs.push((namespace, foreign));
            head_start += head_start / 2 + Duration::from_millis(1);
        } else {
            ours.push(namespace);
            head_start /= 2;
        }
    }
    eprintln!(
        "new namespaces: {} ours, {} theirs",
        ours.len(),
        theirs.len()
    );
    assert!(
        !ours.is_empty() && !theirs.is_empty(),
        "no races: {} ours, {} theirs",
        ours.len(),
        theirs.len()
    );
    scene
        .wait_counts(&scene.tag, [RACES, ours.len(), theirs.len()])
        .await?;
    assert_kept(&scene, &theirs).await?;

    // Both change existing copies: the rival deletes and creates, while Mimeo writes a new version
    // everywhere, several times.
    let raced = ours.split_off(ours.len() / 2);
    let deletions = async {
        for (race, namespace) in raced.into_iter().enumerate() {
            delete(&of::<Secret>(&rival, &namespace), "registry").await?;
            tokio::time::sleep(Duration::from_millis(u64::try_from(race % 10)?)).await;
            match intrude(&rival, &namespace).await? {
                Some(foreign) => theirs.push((namespace, foreign)),
                None => ours.push(namespace),
            }
        }
        anyhow::Ok(())
    };
    tokio::select! {
        outcome = deletions => outcome?,
        Err(error) = rotating(scene.secrets(&scene.home), "registry".to_owned()) => return Err(error),
    }
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    eprintln!(
        "copies replaced: {} ours, {} theirs",
        ours.len(),
        theirs.len()
    );
    scene
        .wait_counts(&scene.tag, [RACES, ours.len(), theirs.len()])
        .await?;
    assert_kept(&scene, &theirs).await?;
    for namespace in &ours {
        let copy = scene.secrets(namespace).get("registry").await?;
        assert_eq!(value(&copy, "token").as_deref(), Some("two"), "{namespace}");
    }
    scene.assert_unwritten(&scene.home, &mark).await
}

/// Returns a client at the second API server with permissions only to create and delete Secrets.
async fn rival(scene: &Scene<'_>) -> Result<Client> {
    let user = scene.setting.control_plane.user(&unique(&scene.tag), &[])?;
    grant(
        scene,
        "User",
        user.name(),
        None,
        &secrets(&["create", "delete"]),
    )
    .await?;
    let client = user.client_for(1).await?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let nothing: Secret = serde_json::from_value(json!({"metadata": {"name": "nothing"}}))?;
    eventually(SOON, "the rival's rights", || async {
        Ok(Some(
            of::<Secret>(&client, &scene.home)
                .create(&dry_run, &nothing)
                .await?,
        ))
    })
    .await?;
    Ok(client)
}

/// Changes the value of a source again and again, until the source is deleted.
async fn rotating(sources: Api<Secret>, name: String) -> Result<()> {
    for turn in 0.. {
        let patch = Patch::Merge(json!({"stringData": {"token": format!("turn-{turn}")}}));
        match sources.patch(&name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            outcome => drop(outcome?),
        }
    }
    Ok(())
}

/// The owner deletes sources and creates every second one again, while another task changes their
/// values. Each copy becomes equal to its source or is deleted with it.
#[tokio::test]
async fn a_source_deleted_while_it_is_rotated_takes_its_copies_along_and_nothing_else() -> Result<()>
{
    const SOURCES: usize = 30;
    let _turn = LOAD.lock().await;
    let scene = STAGE.scene("gone").await?;
    let (owner, neighbour) = (
        Tenant::editor_of(&scene, &scene.home).await?,
        Tenant::editor(&scene).await?,
    );
    let target = scene.namespace().await?;
    let names: Vec<String> = (0..SOURCES)
        .map(|number| format!("source-{number}"))
        .collect();
    let source = |name: &str, token: &str| -> Result<Secret> {
        let metadata = json!({"name": name, "labels": {"copy": "yes"}});
        Ok(serde_json::from_value(
            json!({"metadata": metadata, "stringData": {"token": token}}),
        )?)
    };
    let sources = owner.secrets();
    for name in &names {
        sources
            .create(&PostParams::default(), &source(name, "first")?)
            .await?;
    }
    // In the neighbour's namespace, foreign objects have some of the names.
    let mut theirs = Vec::new();
    for name in names.iter().step_by(3) {
        theirs.push((name, neighbour.makes(name, "theirs").await?));
    }
    let labels = json!({"matchLabels": {"copy": "yes"}});
    let rule = scene.rule().selected("v1", "Secret", &scene.home, &labels);
    rule.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 0}))
        .create(&scene.client)
        .await?;
    scene
        .wait_counts(
            &scene.tag,
            [2 * SOURCES, 2 * SOURCES - theirs.len(), theirs.len()],
        )
        .await?;

    for (race, name) in names.iter().enumerate() {
        let deletion = async {
            tokio::time::sleep(Duration::from_millis(u64::try_from(race % 10)?)).await;
            delete(&sources, name).await
        };
        let (deleted, rotated) = tokio::join!(deletion, rotating(sources.clone(), name.clone()));
        deleted?;
        rotated?;
        if race % 2 == 0 {
            sources
                .create(&PostParams::default(), &source(name, "anew")?)
                .await?;
        }
    }
    for (race, name) in names.iter().enumerate() {
        let taken = theirs.iter().find(|(taken, _)| *taken == name);
        for namespace in [&target, &neighbour.home] {
            match taken {
                Some((_, foreign)) if *namespace == neighbour.home => {
                    let found = neighbour.secrets().get(name).await?;
                    assert_eq!(
                        (uid(&found), version(&found)),
                        (uid(foreign), version(foreign)),
                        "{name}"
                    );
                }
                _ if race % 2 == 0 => drop(scene.wait_secret(namespace, name, has("anew")).await?),
                _ => wait_gone(scene.secrets(namespace), name).await?,
            }
        }
    }
    let kept = SOURCES.div_ceil(2);
    let taken = names.iter().step_by(6).count();
    scene
        .wait_counts(&scene.tag, [2 * kept, 2 * kept - taken, taken])
        .await?;
    Ok(())
}

/// Creates an object with the copy's name. Returns `None` if one existed already.
async fn intrude(rival: &Client, namespace: &str) -> Result<Option<Secret>> {
    let foreign = json!({"metadata": {"name": "registry"}, "stringData": {"token": "theirs"}});
    let foreign: Secret = serde_json::from_value(foreign)?;
    match of::<Secret>(rival, namespace)
        .create(&PostParams::default(), &foreign)
        .await
    {
        Ok(created) => Ok(Some(created)),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn assert_kept(scene: &Scene<'_>, theirs: &[(String, Secret)]) -> Result<()> {
    for (namespace, foreign) in theirs {
        let found = scene.secrets(namespace).get("registry").await?;
        assert_eq!(
            (uid(&found), version(&found)),
            (uid(foreign), version(foreign)),
            "{namespace}"
        );
    }
    Ok(())
}
