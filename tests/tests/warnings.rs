//! What the author of a rule is told while it is stored, and when nothing is said.

use anyhow::{Context, Result, bail};
use kube::Api;
use mimeo_api::ClusterReplication;
use mimeo_tests::scenario::{RuleSpec, SOON, Scene, Stage, apply, kubectl, rule};
use mimeo_tests::{ControlPlane, Pair, eventually, unique};
use serde_json::json;

/// The rights that Mimeo has by its manifests; the controller manager adds up those that are granted later.
static STAGE: Stage = Stage::new(ControlPlane::builder, || Pair::builder().shipped_rights());

/// The warnings that kubectl shows when the rule is applied, really or as a dry run.
fn warnings(scene: &Scene<'_>, rule: &RuleSpec, dry_run: bool) -> Result<Vec<String>> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), rule.object().to_string())?;
    let path = file.path().display().to_string();
    let mut args = vec!["apply", "-f", &path];
    if dry_run {
        args.push("--dry-run=server");
    }
    let told = kubectl(&scene.setting.control_plane, args)?;
    Ok(told.lines().filter_map(|line| line.strip_prefix("Warning: ")).map(str::to_owned).collect())
}

#[track_caller]
fn assert_told(warnings: &[String], parts: &[&str]) {
    let told = |part: &&str| warnings.iter().any(|line| line.contains(*part));
    assert!(warnings.len() == parts.len() && parts.iter().all(told), "{warnings:#?} should be {parts:#?}");
}

#[tokio::test]
async fn a_rule_that_does_what_it_says_is_taken_without_a_word() -> Result<()> {
    let scene = STAGE.scene("quiet").await?;
    scene.namespaces(3).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, "registry");
    seen(&scene, &rule, 3).await?;
    assert_eq!(warnings(&scene, &rule, false)?, [""; 0]);
    let relabelled = rule.clone().set("transform", json!({"labels": {"set": {"a": "b"}}}));
    assert_eq!(warnings(&scene, &relabelled, false)?, [""; 0]);
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}

/// Waits until the webhook knows of so many namespaces that the rule selects.
async fn seen(scene: &Scene<'_>, rule: &RuleSpec, count: usize) -> Result<()> {
    eventually(SOON, "the webhook to see the namespaces", || async {
        let told = warnings(scene, rule, true)?;
        let so = told.iter().any(|line| line.contains(&format!("the rule selects {count} of ")));
        if so { Ok(Some(())) } else { bail!("{told:?}") }
    })
    .await
}

#[tokio::test]
async fn a_dry_run_tells_what_the_real_one_does_and_how_many_and_changes_nothing() -> Result<()> {
    let scene = STAGE.scene("dry").await?;
    scene.namespaces(2).await?;
    let rules: Api<ClusterReplication> = Api::all(scene.client.clone());
    let missing = scene.rule().secret(&scene.home, "registry");
    seen(&scene, &missing, 2).await?;
    assert_told(&warnings(&scene, &missing, true)?, &["does not exist", "the rule selects 2 of "]);
    assert!(rules.get_opt(&scene.tag).await?.is_none(), "a dry run stores nothing");
    assert_told(&warnings(&scene, &missing, false)?, &["does not exist"]);

    // What goes with a change, before it goes.
    let none = rule(&scene.tag).secret(&scene.home, "registry").to_label("scene", "nobody");
    let parts = ["does not exist", "no namespace matches", "2 namespaces are selected no more"];
    assert_told(&warnings(&scene, &none, true)?, &parts);
    let generation = rules.get(&scene.tag).await?.metadata.generation;
    assert_eq!(generation, Some(1), "nor does a dry run change anything");
    let retained = none.clone().set("retentionPolicy", json!({"whenUnmatched": "Retain"}));
    assert_told(&warnings(&scene, &retained, true)?, &parts[..2]);
    assert_told(&warnings(&scene, &none, false)?, &parts);
    Ok(())
}

#[tokio::test]
async fn copies_that_another_rule_has_are_told_with_the_rule_and_the_namespaces() -> Result<()> {
    let scene = STAGE.scene("contest").await?;
    let mut namespaces = scene.namespaces(2).await?;
    namespaces.sort();
    scene.secret("registry", &[("token", "one")]).await?;
    let first = scene.rule().secret(&scene.home, "registry");
    first.create(&scene.client).await?;
    scene.wait_condition(&scene.tag, "BarrierActive", "True", "Active").await?;
    let second = RuleSpec { name: unique(&scene.tag), ..first.clone() };
    let told = warnings(&scene, &second, false)?;
    assert_told(&told, &[&format!("ClusterReplication/{} wants Secret registry, too; it has it", first.name)]);
    assert!(told[0].ends_with(&format!("in namespaces {}, {}", namespaces[0], namespaces[1])), "{told:?}");
    let status = scene.wait_condition(&second.name, "Ready", "False", "CopiesFailed").await?;
    assert_eq!(status.failures.first().context("no failure")?.reason, "RuleConflict", "as was said");
    // Said once: what was known before is no news.
    let edited = second.set("barrier", json!("None"));
    assert_eq!(warnings(&scene, &edited, false)?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn rights_that_mimeo_lacks_are_told_with_the_rule_that_gives_them() -> Result<()> {
    let scene = STAGE.scene("rights").await?;
    scene.namespace().await?;
    let (group, plural) = ("networking.k8s.io", "networkpolicies");
    let source = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": scene.home}, "spec": {"podSelector": {}},
    });
    apply(&scene.client, &source).await?;
    let rule = scene.rule().source("networking.k8s.io/v1", "NetworkPolicy", &scene.home, "closed");
    let told = warnings(&scene, &rule, false)?;
    let all = "[create, get, list, patch, watch]";
    let rights = |verbs: &str| format!("{{apiGroups: [{group}], resources: [{plural}], verbs: {verbs}}}");
    let labels = ["mimeo.dev/aggregate-to-mimeo", "mimeo.dev/aggregate-to-mimeo-reconciler"];
    let want = [(labels[0], rights(all)), (labels[1], rights("[delete]"))];
    assert_eq!(told.len(), 2, "{told:#?}");
    for ((label, rule), line) in want.iter().zip(&told) {
        assert!(line.contains(&format!("{label}=true")) && line.contains(rule), "{line}");
    }

    // Done as it was said, nothing is missing.
    for (label, verbs) in [(labels[0], &["create", "get", "list", "patch", "watch"][..]), (labels[1], &["delete"])] {
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": unique(&scene.tag), "labels": {label: "true"}},
            "rules": [{"apiGroups": [group], "resources": [plural], "verbs": verbs}],
        });
        apply(&scene.client, &role).await?;
    }
    let changed = rule.clone().set("barrier", json!("None"));
    eventually(SOON, "the rights to be there", || async {
        let told = warnings(&scene, &changed, true)?;
        if told.iter().any(|line| line.contains("lacks rights")) { bail!("{told:?}") } else { Ok(Some(())) }
    })
    .await?;
    scene.wait_synced(&scene.tag).await?;
    Ok(())
}
