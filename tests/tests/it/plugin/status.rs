//! `kubectl mimeo status`: every copy that is not synced is listed, and the exit code is right.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
    sync::mpsc::{self, Receiver},
};

use anyhow::{Context as _, Result, ensure};
use mimeo_tests::{
    create_secret, eventually,
    scenario::{SOON, Scene, apply, delete, kubectl, merge},
    tenant::{Tenant, copying},
};
use serde_json::{Value, json};

use super::{Output, command, measured, run};
use crate::stages::{IN_THE_WAY, LOAD, MANY, Many, PLAIN as STAGE, many};

const REGISTRY: &str = "registry";

fn status(scene: &Scene<'_>, args: &[&str]) -> Result<Output> {
    let args: Vec<&str> = ["status", &scene.tag].iter().chain(args).copied().collect();
    run(&scene.setting.control_plane, None, &args)
}

/// The one rule of the answer.
fn line(answer: &Value) -> &Value {
    &answer["rules"][0]
}

#[tokio::test]
async fn every_copy_that_is_not_synced_is_listed() -> Result<()> {
    let scene = STAGE.scene("status").await?;
    let namespaces = scene.namespaces(24).await?;
    for namespace in &namespaces[1..] {
        create_secret(&scene.client, namespace, REGISTRY, &[("a", "b")]).await?;
    }
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .create(&scene.client)
        .await?;
    let answer = eventually(SOON, "23 conflicts", || async {
        let output = status(&scene, &["-o", "json"])?;
        let answer = output.json()?;
        ensure!(line(&answer)["failed"] == 23, "{answer:#}");
        ensure!(line(&answer)["ready"] == "False", "{answer:#}");
        ensure!(output.code == 1);
        Ok(Some(answer))
    })
    .await?;
    // The rule's own status names 20 of them.
    assert_eq!(line(&answer)["copies"], 24);
    assert_eq!(line(&answer)["synced"], 1);
    let copies = answer["copies"].as_array().context("no copies")?;
    assert_eq!(copies.len(), 23);
    assert!(copies.iter().all(|copy| copy["state"] == "Conflict"));

    let table = status(&scene, &[])?.stdout;
    let rule = format!("ClusterReplication/{}", scene.tag);
    let row = table.lines().find(|line| line.starts_with(&rule));
    let row: Vec<&str> = row.context(table.clone())?.split_whitespace().collect();
    assert_eq!(row[1..6], ["False", "1/24", "0", "23", "0"], "{table}");
    assert!(table.contains("Reconciler: reconciler-"), "{table}");
    assert!(table.contains("Webhook: "), "{table}");
    assert!(!table.contains('\x1b'), "no colours, this is no terminal");

    // One namespace alone.
    let one = status(&scene, &["-n", &namespaces[1], "-o", "json"])?;
    assert_eq!(one.code, 1);
    assert_eq!(line(&one.json()?)["copies"], 1);
    let good = status(&scene, &["-n", &namespaces[0], "-o", "json"])?.json()?;
    assert_eq!(line(&good)["synced"], 1);

    for namespace in &namespaces[1..] {
        delete(&scene.secrets(namespace), REGISTRY).await?;
    }
    let waited = status(&scene, &["--wait", "-o", "json"])?;
    assert_eq!(waited.code, 0, "{}", waited.stdout);
    assert_eq!(line(&waited.json()?)["synced"], 24);
    let failed = status(&scene, &["--failed"])?;
    assert_eq!(failed.code, 0);
    let all = "All copies of all rules are synced.";
    assert!(failed.stdout.contains(all), "{}", failed.stdout);
    Ok(())
}

/// Each copy counts for its own source.
#[tokio::test]
async fn a_failing_copy_leaves_the_other_copies_of_its_rule_synced() -> Result<()> {
    let scene = STAGE.scene("status-two").await?;
    let namespace = scene.namespace().await?;
    create_secret(&scene.client, &namespace, REGISTRY, &[("a", "b")]).await?;
    for name in [REGISTRY, "ca"] {
        scene.secret(name, &[("token", "one")]).await?;
    }
    scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .secret(&scene.home, "ca")
        .create(&scene.client)
        .await?;
    scene.wait_counts(&scene.tag, [2, 1, 1]).await?;
    let answer = status(&scene, &["-o", "json"])?.json()?;
    let rule = line(&answer);
    let counts = ["copies", "synced", "pending", "failed"].map(|field| rule[field].as_u64());
    assert_eq!(counts, [Some(2), Some(1), Some(0), Some(1)], "{answer:#}");
    assert_eq!(
        answer["copies"].as_array().map(Vec::len),
        Some(1),
        "{answer:#}"
    );
    assert_eq!(answer["copies"][0]["name"], REGISTRY);

    // A text from the cluster can't change the terminal, or add lines to the output.
    let source = "\u{202e}\u{1b}[2J\n  fix     rm";
    let marks = json!({"metadata": {"annotations": {"mimeo.dev/source": source}}});
    merge(&scene.secrets(&namespace), REGISTRY, marks).await?;
    let rule = json!({"metadata": {"annotations": {"mimeo.dev/rule": "Replication/x/\u{9b}y"}}});
    merge(&scene.secrets(&namespace), REGISTRY, rule).await?;
    let object = format!("{namespace}/secret/{REGISTRY}");
    for format in ["table", "json", "yaml"] {
        let args = ["why", &object, "-o", format];
        let shown = run(&scene.setting.control_plane, None, &args)?.stdout;
        let control = |char: char| char == '\u{202e}' || char.is_control() && char != '\n';
        assert!(!shown.contains(control), "{shown:?}");
        assert!(!shown.contains("\n  fix     rm"), "{shown}");
        // Marks of another client are no copy, so no rule that wrote it was deleted.
        assert!(!shown.contains("RuleDeleted"), "{shown}");
    }
    Ok(())
}

#[tokio::test]
async fn a_wait_ends_with_its_timeout_and_pods_that_wait_are_named() -> Result<()> {
    let scene = STAGE.scene("status-wait").await?;
    scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .set("podGate", json!("Required"))
        .create(&scene.client)
        .await?;
    // Only then does the webhook set the pending label.
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;
    let namespace = scene.namespace().await?;
    scene
        .wait_condition(&scene.tag, "SourcesFound", "False", "SourceNotFound")
        .await?;
    let output = status(&scene, &["--wait", "--timeout", "1s"])?;
    assert_eq!(output.code, 1);
    for words in [
        "waiting: 0 of 1 copies are synced, 0 of 1 rules are synced",
        "not all copies are synced after 1s",
    ] {
        assert!(output.stderr.contains(words), "{}", output.stderr);
    }
    let (text, waits) = (
        output.stdout,
        format!("The pods of namespace {namespace} are refused without these copies:"),
    );
    assert!(text.contains(&waits), "{text}");
    assert!(text.contains("SourceNotFound"), "{text}");
    let pod = format!("{namespace}/pod/app");
    let why = run(&scene.setting.control_plane, None, &["why", &pod])?;
    assert_eq!(why.code, 1);
    for words in [
        "PodsRefused",
        &format!("kubectl mimeo why {namespace}/secret/{REGISTRY}"),
    ] {
        assert!(why.stdout.contains(words), "{words:?}: {}", why.stdout);
    }
    let home = format!("{}/pods/app", scene.home);
    let why = run(&scene.setting.control_plane, None, &["why", &home])?;
    assert_eq!(
        (why.code, why.stdout.contains("Mimeo holds no pod")),
        (0, true)
    );
    Ok(())
}

#[tokio::test]
async fn a_watch_prints_the_rules_that_change() -> Result<()> {
    let scene = STAGE.scene("status-watch").await?;
    let namespace = scene.namespace().await?;
    create_secret(&scene.client, &namespace, REGISTRY, &[("a", "b")]).await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .create(&scene.client)
        .await?;
    let rule = format!("ClusterReplication/{}", scene.tag);
    let all = Watched::start(&scene, &[])?;
    // With --failed, a rule that has recovered is news, too.
    let failed = Watched::start(&scene, &["--failed"])?;
    for watched in [&all, &failed] {
        watched.wait(&[&rule, "0/1"])?;
    }
    delete(&scene.secrets(&namespace), REGISTRY).await?;
    for watched in [&all, &failed] {
        watched.wait(&[&rule, "True", "1/1"])?;
    }
    Ok(())
}

#[tokio::test]
async fn a_watch_prints_one_json_document_for_each_change() -> Result<()> {
    let scene = STAGE.scene("status-json").await?;
    let namespace = scene.namespace().await?;
    create_secret(&scene.client, &namespace, REGISTRY, &[("a", "b")]).await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .create(&scene.client)
        .await?;
    scene.wait_counts(&scene.tag, [1, 0, 1]).await?;
    let watched = Watched::start(&scene, &["-o", "json"])?;
    let mut before = watched.document()?;
    assert_eq!(line(&before)["failed"], 1, "{before:#}");
    delete(&scene.secrets(&namespace), REGISTRY).await?;
    while line(&before)["synced"] != 1 {
        let now = watched.document()?;
        assert_ne!(printed(&now), printed(&before), "nothing has changed");
        before = now;
    }
    assert_eq!(before["copies"], json!([]), "{before:#}");
    Ok(())
}

/// The parts of a status that lead to a new document when they change.
fn printed(status: &Value) -> Value {
    let is_alive = |replicas: &str| {
        let mut replicas = status["mimeo"][replicas].as_array().into_iter().flatten();
        replicas.any(|replica| replica["alive"] == true)
    };
    json!([
        status["rules"],
        status["copies"],
        status["waiting"],
        status["heldOfDeletedRules"],
        is_alive("leader") && is_alive("webhooks"),
    ])
}

/// A running `kubectl mimeo status -w`.
struct Watched {
    child: Child,
    lines: Receiver<String>,
}

impl Watched {
    fn start(scene: &Scene<'_>, flags: &[&str]) -> Result<Self> {
        let args: Vec<&str> = ["status", &scene.tag, "-w"]
            .iter()
            .chain(flags)
            .copied()
            .collect();
        let mut child = command(&scene.setting.control_plane, None, &args)?
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, lines })
    }

    /// Waits until the command prints a line with these words.
    fn wait(&self, words: &[&str]) -> Result<()> {
        loop {
            let line = self.lines.recv_timeout(SOON)?;
            if words.iter().all(|word| line.contains(word)) {
                return Ok(());
            }
        }
    }

    /// Waits until the command has printed a whole JSON document. Its last line is the only brace
    /// without indentation.
    fn document(&self) -> Result<Value> {
        let mut text = String::new();
        loop {
            let line = self.lines.recv_timeout(SOON)?;
            text += &line;
            if line == "}" {
                return serde_json::from_str(&text).context(text);
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // It may have ended already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A status names 20 failures, and a copy may be wanted in a namespace that doesn't exist.
#[tokio::test]
async fn copies_that_lack_a_grant_in_missing_namespaces_are_listed() -> Result<()> {
    let scene = STAGE.scene("status-absent").await?;
    let tenant = Tenant::new(&scene).await?;
    create_secret(&scene.client, &tenant.home, "db", &[("a", "b")]).await?;
    let absent: Vec<String> = (0..22).map(|n| format!("{}-{n}", scene.tag)).collect();
    let absent: Vec<&str> = absent.iter().map(String::as_str).collect();
    let spec = copying(None, "db", &absent);
    apply(&scene.client, &tenant.object("replications", "db", &spec)).await?;
    let rule = format!("{}/db", tenant.home);
    eventually(SOON, "22 failures", || async {
        let args = ["status", &rule, "-o", "json"];
        let answer = run(&scene.setting.control_plane, None, &args)?.json()?;
        ensure!(
            [&line(&answer)["copies"], &line(&answer)["failed"]] == [22, 22],
            "{answer:#}"
        );
        let copies = answer["copies"].as_array().into_iter().flatten();
        let lacking = copies.filter(|copy| copy["state"] == "NotGranted");
        ensure!(lacking.count() == 22, "{answer:#}");
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn a_missing_rule_and_missing_permissions_are_told() -> Result<()> {
    let scene = STAGE.scene("status-tenant").await?;
    let namespace = scene.namespace().await?;
    let control_plane = &scene.setting.control_plane;
    let absent = run(control_plane, None, &["status", "no-such-rule"])?;
    assert_eq!(absent.code, 2);
    let told = "there is no ClusterReplication/no-such-rule";
    assert!(absent.stderr.contains(told), "{}", absent.stderr);
    let wrong = run(control_plane, None, &["status", "A/b/c"])?;
    assert!(
        wrong.stderr.contains("NAMESPACE/NAME for a Replication"),
        "{}",
        wrong.stderr
    );
    let user = control_plane.user(&scene.tag, &[])?;
    let pod = format!("{namespace}/pod/app");
    let why = run(control_plane, Some(&user), &["why", &pod])?;
    assert_eq!(why.code, 1, "{}", why.stdout);
    let told = format!("holds pods of namespace {namespace} is unknown");
    assert!(why.stdout.contains(&told), "{}", why.stdout);
    let role = ["--clusterrole=edit", "--user", &scene.tag];
    let binding = ["-n", &namespace, "create", "rolebinding", "edits"];
    kubectl(control_plane, binding.iter().chain(&role))?;
    let all = run(control_plane, Some(&user), &["status"])?;
    assert_eq!(all.code, 2);
    assert!(all.stderr.contains("-n NAMESPACE"), "{}", all.stderr);
    let one = run(control_plane, Some(&user), &["status", "-n", &namespace])?;
    assert!(
        one.stdout.contains("You can't list ClusterReplications"),
        "{}",
        one.stdout
    );
    // A rule that could not be read may have failed.
    let told = "No rule, as far as the cluster could be read.";
    assert!(one.stdout.contains(told), "{}", one.stdout);
    assert_eq!(one.code, 1);
    let absent = run(control_plane, None, &["status", "-n", "no-such-namespace"])?;
    assert_eq!(absent.code, 2);
    let told = "there is no namespace no-such-namespace";
    assert!(absent.stderr.contains(told), "{}", absent.stderr);
    Ok(())
}

/// Ten thousand namespaces: all failures are listed, and no command that reads them all takes much
/// memory.
#[tokio::test]
async fn ten_thousand_namespaces_take_little_memory() -> Result<()> {
    let _load = LOAD.lock().await;
    let many = many().await?;
    let scene = many.setting.scene("status-many").await?;
    scene
        .wait_counts(Many::RULE, [MANY, MANY - IN_THE_WAY, IN_THE_WAY])
        .await?;
    let source = format!("platform/{}", Many::RULE);
    let copy = format!("team-00001/cm/{}", Many::RULE);
    for (args, code) in [
        (&["status"][..], 1),
        (&["where", "cm", &source], 0),
        (&["why", &copy], 0),
        (&["held"], 0),
        (&["check"], 0),
    ] {
        let (ended, printed, peak) = measured(
            &many.setting.control_plane,
            &[args, &["-o", "json"]].concat(),
        )
        .await?;
        assert_eq!(ended, Some(code), "{args:?}");
        eprintln!("{args:?}: {peak} MiB");
        assert!(peak < 100, "{args:?}: {peak} MiB");
        let answer: Value = serde_json::from_str(&printed)?;
        match args[0] {
            "status" => {
                assert_eq!(line(&answer)["copies"], MANY);
                assert_eq!(line(&answer)["failed"], IN_THE_WAY);
                assert_eq!(answer["copies"].as_array().map(Vec::len), Some(IN_THE_WAY));
            }
            "where" => {
                let copies = answer["rules"][0]["copies"].as_array().map(Vec::len);
                assert_eq!(copies, Some(MANY));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Flags of kubectl that change how the plugin reaches the API server.
#[tokio::test]
async fn flags_of_kubectl_about_the_connection_have_an_effect() -> Result<()> {
    let scene = STAGE.scene("status-flags").await?;
    let control_plane = &scene.setting.control_plane;
    let plain = run(control_plane, None, &["status", "-o", "json"])?;
    for flag in [
        "--request-timeout=0",
        "--insecure-skip-tls-verify",
        "--insecure-skip-tls-verify=true",
        "--insecure-skip-tls-verify=false",
    ] {
        let taken = run(control_plane, None, &["status", "-o", "json", flag])?;
        assert!(taken.code < 2, "{flag}: {}", taken.stderr);
        taken.json()?;
    }
    assert!(plain.code < 2, "{}", plain.stderr);
    for (flag, words) in [
        ("--client-certificate=/nowhere/tls.crt", "/nowhere/tls.crt"),
        ("--client-key=/nowhere/tls.key", "/nowhere/tls.key"),
        // The API server takes no UID without a user: 400, or 500 in older versions.
        ("--as-uid=ann", "the API server answered"),
    ] {
        let refused = run(control_plane, None, &["status", flag])?;
        assert_eq!(refused.code, 2, "{flag}: {}", refused.stdout);
        assert!(refused.stderr.contains(words), "{flag}: {}", refused.stderr);
    }
    Ok(())
}
