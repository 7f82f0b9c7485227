//! `kubectl mimeo held` and `confirm`: what a held deletion would delete, and its release.

use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::{
    api::core::v1::Secret,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, ResourceExt as _};
use mimeo_api::ClusterReplication;
use mimeo_model::names::CONFIRM_DELETION;
use mimeo_tests::{
    ControlPlane, NAMESPACE, Pair,
    author::grant,
    create_namespace, create_secret, eventually, install_crd,
    scenario::{SOON, Scene, Setting, annotation, delete, kubectl, of, rule, wait_for, wait_gone},
};
use serde_json::{Value, json};

use super::{Output, command, finish, run};
use crate::stages::QUICK as STAGE;

const REGISTRY: &str = "registry";

/// `kubectl mimeo confirm` of the scene's rule, by a person who types this text.
fn confirm_typing(scene: &Scene<'_>, text: &str) -> Result<Output> {
    let (input, mut typed) = std::io::pipe()?;
    typed.write_all(text.as_bytes())?;
    drop(typed);
    let args = ["confirm", &scene.tag];
    let mut confirm = command(&scene.setting.control_plane, None, &args)?;
    confirm.stdin(input);
    finish(confirm)
}

/// `status` counts the copies whose deletion is held, and points to `held`.
fn status_has_held(scene: &Scene<'_>, copies: usize) -> Result<()> {
    let control_plane = &scene.setting.control_plane;
    let status = run(control_plane, None, &["status", &scene.tag, "-o", "json"])?;
    assert_eq!(status.code, 1, "{}", status.stdout);
    assert_eq!(status.json()?["rules"][0]["held"], copies);
    let table = run(control_plane, None, &["status", &scene.tag])?.stdout;
    let column = |row: &str| row.split_whitespace().nth(5).map(str::to_owned);
    let rule = format!("ClusterReplication/{}", scene.tag);
    for (row, held) in [("RULE", "HELD".to_owned()), (&rule, copies.to_string())] {
        let found = table.lines().find(|line| line.starts_with(row));
        assert_eq!(found.and_then(column), Some(held), "{table}");
    }
    let told = "Deletions wait for a person: kubectl mimeo held";
    assert!(table.contains(told), "{table}");
    Ok(())
}

#[tokio::test]
async fn a_held_deletion_is_listed_and_confirmed_by_the_number_of_copies() -> Result<()> {
    let scene = STAGE.scene("held").await?;
    let namespaces = scene.namespaces(25).await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let rule = scene.rule().secret(&scene.home, REGISTRY);
    rule.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let control_plane = &scene.setting.control_plane;
    let none = run(
        control_plane,
        None,
        &["confirm", &scene.tag, "--copies", "1"],
    )?;
    assert_eq!(none.code, 2);
    assert!(none.stderr.contains("no deletion of"), "{}", none.stderr);

    // All copies are lost at once, however slow the machine is.
    let elsewhere = json!([{"namespaces": ["elsewhere"]}]);
    let rule = rule.set("targets", elsewhere);
    rule.replace(&scene.client).await?;
    scene
        .wait_condition(&scene.tag, "Stalled", "True", "DeletionHeld")
        .await?;
    let held = run(control_plane, None, &["held", &scene.tag, "-o", "json"])?.json()?;
    let copies = held[0]["copies"]
        .as_array()
        .context(held.to_string())?
        .len();
    assert_eq!(copies, 25, "{held:#}");
    assert_eq!(held[0]["ruleDeleted"], false);
    let text = run(control_plane, None, &["held", &scene.tag])?.stdout;
    for words in [
        format!("{copies} copies"),
        format!("kubectl mimeo confirm {}", scene.tag),
        "holds the deletion of".to_owned(),
    ] {
        assert!(text.contains(&words), "{words:?}: {text}");
    }

    status_has_held(&scene, copies)?;
    let lost = format!("{}/secret/{REGISTRY}", namespaces[24]);
    let why = run(control_plane, None, &["why", &lost])?;
    for words in [
        format!("ClusterReplication/{}: DeletionHeld\n", scene.tag),
        format!("kubectl mimeo confirm {}", scene.tag),
    ] {
        assert!(why.stdout.contains(&words), "{words:?}: {}", why.stdout);
    }

    let wrong = run(
        control_plane,
        None,
        &["confirm", &scene.tag, "--copies", "3"],
    )?;
    assert_eq!(wrong.code, 2);
    assert!(
        wrong.stderr.contains("nothing is confirmed"),
        "{}",
        wrong.stderr
    );
    let wrong = confirm_typing(&scene, "3\n")?;
    assert_eq!(wrong.code, 2);
    for words in [
        "To delete these copies, type their number: ",
        "nothing is confirmed: the deletion is of 25 copies",
    ] {
        assert!(wrong.stderr.contains(words), "{words:?}: {}", wrong.stderr);
    }
    let rules = Api::<ClusterReplication>::all(scene.client.clone());
    let stored = rules.get(&scene.tag).await?;
    assert_eq!(annotation(&stored, CONFIRM_DELETION), None);
    a_user_confirms_nothing_unseen(&scene, copies).await?;

    // The command waits for Mimeo for a limited time. Later it may find nothing left to confirm.
    eventually(SOON, "the confirmation", || async {
        let confirmed = confirm_typing(&scene, "25\n")?;
        let begun = confirmed.code == 0 || confirmed.stderr.contains("no deletion of");
        ensure!(begun, "{}", confirmed.stderr);
        Ok(Some(()))
    })
    .await?;
    for namespace in &namespaces {
        wait_gone(scene.secrets(namespace), REGISTRY).await?;
    }
    Ok(())
}

/// A user who can't see all copies of a held deletion can't confirm it. Other facts that the user
/// can't read are only printed.
async fn a_user_confirms_nothing_unseen(scene: &Scene<'_>, copies: usize) -> Result<()> {
    let control_plane = &scene.setting.control_plane;
    let user = control_plane.user(&scene.tag, &[])?;
    let number = copies.to_string();
    for (groups, resources, verb, told) in [
        (
            ["", "mimeo.dev"],
            vec![
                "namespaces",
                "clusterreplications",
                "replications",
                "replicationgrants",
            ],
            "list",
            [
                "You can't list copies of kind Secret",
                "nothing is confirmed",
            ],
        ),
        (
            ["*", ""],
            vec!["*"],
            "list",
            ["You can't read ConfigMap", "nothing is confirmed"],
        ),
        // Without the uid of kube-system, no copy is known to be of this cluster.
        (
            ["", ""],
            vec!["configmaps"],
            "get",
            [
                "You can't read Namespace kube-system",
                "nothing is confirmed: only 0 of the copies",
            ],
        ),
        (
            ["", ""],
            vec!["namespaces"],
            "get",
            [
                "You can't read the limits in Deployment",
                "To delete these copies, type their number: ",
            ],
        ),
    ] {
        let rules = json!({"apiGroups": groups, "resources": resources, "verbs": [verb]});
        grant(scene, "User", &scene.tag, None, &rules).await?;
        let asks = told[1].starts_with("To delete");
        let args = ["confirm", &scene.tag, "--copies", &number];
        let args = if asks { &args[..2] } else { &args[..] };
        // Authorizers learn of the binding a moment after it is stored.
        eventually(SOON, told[1], || async {
            let refused = run(control_plane, Some(&user), args)?;
            let (code, text) = (refused.code, refused.stderr);
            ensure!(code == 2 && text.contains("nothing is confirmed"), "{text}");
            let [note, result] = told.map(|words| text.find(words));
            ensure!(note.is_some() && note < result, "{text}");
            Ok(Some(()))
        })
        .await?;
        let listed = run(control_plane, Some(&user), &["held"])?;
        let unread = listed.code == 1 && listed.stderr.contains(told[0]);
        assert!(unread || asks, "{}: {}", listed.code, listed.stderr);
    }
    Ok(())
}

/// The rule was lost with its CRD. It has no status, and the program computes the nonce.
#[tokio::test]
async fn a_held_deletion_of_a_deleted_rule_is_confirmed() -> Result<()> {
    let quick = Pair::builder().reconciler_args(["--deletion-delay", "1s"]);
    let mut setting = Setting::start(ControlPlane::builder(), quick).await?;
    let client = setting.control_plane.client().await?;
    create_namespace(&client, "platform", &[]).await?;
    create_secret(&client, "platform", REGISTRY, &[("token", "one")]).await?;
    let teams = ["team-a", "team-b"];
    for team in teams {
        create_namespace(&client, team, &[("team", "yes")]).await?;
    }
    rule(REGISTRY)
        .secret("platform", REGISTRY)
        .to_label("team", "yes")
        .create(&client)
        .await?;
    setting.wait_synced(&client, REGISTRY).await?;
    let crd = mimeo_api::crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == "ClusterReplication")
        .context("no CRD")?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    delete(&definitions, &crd.name_any()).await?;
    wait_gone(definitions, &crd.name_any()).await?;
    let control_plane = &setting.control_plane;
    let unserved = run(control_plane, None, &["held"])?;
    ensure!(unserved.code == 2, "{}", unserved.stdout);
    let told = "CRDs are not installed";
    ensure!(unserved.stderr.contains(told), "{}", unserved.stderr);
    install_crd(&client, &crd).await?;

    let logged = held_in_log(&setting).await?;
    let held: Value = run(control_plane, None, &["held", "-o", "json"])?.json()?;
    let nonce = held[0]["nonce"].as_str().context(held.to_string())?;
    ensure!(logged.contains(nonce), "{nonce}: {logged}");
    ensure!(held[0]["ruleDeleted"] == true, "{held:#}");
    ensure!(
        held[0]["copies"].as_array().map(Vec::len) == Some(2),
        "{held:#}"
    );
    let status = run(control_plane, None, &["status", "-o", "json"])?;
    let answer = status.json()?;
    ensure!(status.code == 1, "{answer:#}");
    ensure!(answer["heldOfDeletedRules"] == 2, "{answer:#}");

    // Nobody deletes anything while no reconciler runs, and that is said.
    let mut old = setting.pair.reconciler.take().context("no reconciler")?;
    ensure!(old.program.stop(SOON).await?.success());
    let control_plane = &setting.control_plane;
    let args = ["confirm", REGISTRY, "--copies", "2", "-o", "json"];
    let early = run(control_plane, None, &args)?;
    ensure!(early.code == 2, "{}", early.stdout);
    let told = "has not begun the deletion";
    ensure!(early.stderr.contains(told), "{}", early.stderr);
    let remove = format!("{CONFIRM_DELETION}-");
    let remove = [
        "-n",
        NAMESPACE,
        "annotate",
        "configmap",
        "mimeo-kinds",
        &remove,
    ];
    kubectl(control_plane, remove)?;
    setting.pair.start_reconciler().await?;
    held_in_log(&setting).await?;

    let confirmed = run(&setting.control_plane, None, &args)?;
    ensure!(confirmed.code == 0, "{}", confirmed.stderr);
    let result = confirmed.json()?;
    ensure!(
        result["nonce"] == *nonce && result["moreHeld"] == false,
        "{result:#}"
    );
    for team in teams {
        let copy = of::<Secret>(&client, team).get_opt(REGISTRY).await?;
        ensure!(copy.is_none(), "a copy in {team}");
    }
    let source = of::<Secret>(&client, "platform");
    wait_for(source, REGISTRY.to_owned(), |_| true).await?;
    Ok(())
}

/// The log line about the held deletion of a rule that is gone.
async fn held_in_log(setting: &Setting) -> Result<String> {
    eventually(SOON, "a held deletion in the log", || async {
        let reconciler = setting.pair.reconciler.as_ref().context("no reconciler")?;
        let log = reconciler.program.log()?;
        let line = log.lines().find(|line| line.contains("deletion held"));
        Ok(line.map(str::to_owned))
    })
    .await
}
