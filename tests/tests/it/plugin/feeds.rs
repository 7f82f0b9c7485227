//! `kubectl mimeo where`: what a source feeds, and what its deletion would do.

use anyhow::{Result, ensure};
use mimeo_tests::{
    create_secret, eventually,
    scenario::{SOON, rule},
};
use serde_json::json;

use super::run;
use crate::stages::PLAIN as STAGE;

const REGISTRY: &str = "registry";

#[tokio::test]
async fn the_copies_of_a_source_are_listed_by_rule_and_namespace() -> Result<()> {
    let scene = STAGE.scene("where").await?;
    let namespaces = scene.namespaces(3).await?;
    create_secret(&scene.client, &namespaces[2], REGISTRY, &[("a", "b")]).await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .set("retentionPolicy", json!({"sourceGracePeriodSeconds": 90}))
        .create(&scene.client)
        .await?;
    let control_plane = &scene.setting.control_plane;
    let source = format!("{}/{REGISTRY}", scene.home);
    let args = ["where", "secret", &source, "-o", "json"];
    let feeds = eventually(SOON, "two copies and a conflict", || async {
        let output = run(control_plane, None, &args)?;
        let feeds = output.json()?;
        let copies = feeds["rules"][0]["copies"].as_array().cloned();
        let states = copies.unwrap_or_default();
        let states: Vec<&str> = states
            .iter()
            .filter_map(|copy| copy["state"].as_str())
            .collect();
        ensure!(states == ["Synced", "Synced", "Conflict"], "{feeds:#}");
        ensure!(output.code == 0);
        Ok(Some(feeds))
    })
    .await?;
    assert_eq!(feeds["exists"], true);
    assert_eq!(
        feeds["rules"][0]["copies"][0]["namespace"],
        json!(namespaces[0])
    );
    // The source's own place has no copy of it, although the rule selects it.
    let home = format!("{}-home", scene.tag);
    let targets = json!([{"namespaces": [scene.home, namespaces[0]], "copyName": REGISTRY}]);
    let own = rule(&home).secret(&scene.home, REGISTRY);
    own.set("targets", targets).create(&scene.client).await?;
    let feeds = run(control_plane, None, &args)?.json()?;
    let fed = &feeds["rules"][1];
    assert_eq!(fed["rule"], format!("ClusterReplication/{home}"));
    assert_eq!(fed["copies"].as_array().map(Vec::len), Some(1), "{fed:#}");
    let why = run(
        control_plane,
        None,
        &["why", &format!("{}/secret/{REGISTRY}", scene.home)],
    )?;
    let words = format!("It is a source of ClusterReplication/{home}");
    assert!(why.stdout.contains(&words), "{}", why.stdout);
    assert!(!why.stdout.contains("Pending"), "{}", why.stdout);
    // The other form of the argument, as text. The flag -n leaves no copies out.
    let text = run(
        control_plane,
        None,
        &["where", &format!("secrets/{REGISTRY}"), "-n", &scene.home],
    )?;
    for words in ["exists.", "deletes its copies 90 s later", &namespaces[1]] {
        assert!(text.stdout.contains(words), "{words:?}: {}", text.stdout);
    }

    let other = run(
        control_plane,
        None,
        &["where", "secret", &format!("{}/other", scene.home)],
    )?;
    assert_eq!(other.code, 1);
    assert!(
        other.stdout.contains("No rule has it as a source"),
        "{}",
        other.stdout
    );
    assert!(other.stdout.contains("does not exist"), "{}", other.stdout);
    let wrong = run(control_plane, None, &["where", "secret", "a/b/c"])?;
    assert_eq!(wrong.code, 2);
    assert!(
        wrong.stderr.contains("NAMESPACE/KIND/NAME"),
        "{}",
        wrong.stderr
    );
    Ok(())
}

#[tokio::test]
async fn copies_that_stay_without_their_source_are_told() -> Result<()> {
    let scene = STAGE.scene("where-stays").await?;
    scene.namespace().await?;
    let policy = json!({"whenSourceDeleted": "Retain"});
    for (name, field, value, why) in [
        (
            "kept",
            "retentionPolicy",
            policy,
            "retentionPolicy.whenSourceDeleted: Retain",
        ),
        (
            "once",
            "strategy",
            json!("CreateOnce"),
            "strategy: CreateOnce",
        ),
    ] {
        scene.secret(name, &[("token", "one")]).await?;
        rule(&format!("{}-{name}", scene.tag))
            .to_label("scene", &scene.tag)
            .secret(&scene.home, name)
            .set(field, value)
            .create(&scene.client)
            .await?;
        let control_plane = &scene.setting.control_plane;
        let source = format!("{}/{name}", scene.home);
        let args = ["where", "secret", &source, "-o", "json"];
        let feeds = run(control_plane, None, &args)?.json()?;
        let told = format!("Its copies stay as they are ({why}).");
        assert_eq!(feeds["rules"][0]["whenDeleted"], told, "{feeds:#}");
        let text = run(control_plane, None, &args[..3])?.stdout;
        let line = format!("If the source is deleted: {told}\n");
        assert!(text.contains(&line), "{text}");
    }
    Ok(())
}
