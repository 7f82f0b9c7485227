//! The log in JSON, for programs.

use anyhow::{Context, Result, ensure};
use mimeo_tests::{
    ControlPlane, Pair, create_secret, eventually,
    scenario::{SOON, Setting, put, value, wait_gone},
};
use serde_json::Value;

/// The fields of every line, according to docs/how-to/logs-and-traces.md.
const ALWAYS: [&str; 4] = ["level", "message", "target", "timestamp"];
const OF_A_COPY: [&str; 5] = ["kind", "name", "namespace", "reason", "rule"];

#[tokio::test]
async fn every_line_in_json_is_an_object_and_a_change_has_its_fields() -> Result<()> {
    // The programs log as much as possible about themselves.
    let args = [
        "--log-format",
        "json",
        "--log-level",
        "info,mimeo_runtime=trace,mimeo_webhook=trace",
    ];
    let pair = Pair::builder().webhook_args(args).reconciler_args(args);
    let setting = Setting::start(ControlPlane::builder(), pair).await?;
    let scene = setting.scene("json").await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let namespaces = scene.namespaces(2).await?;
    create_secret(&scene.client, &namespaces[1], "registry", &[]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    scene.wait_counts(&scene.tag, [2, 1, 1]).await?;
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    scene
        .wait_secret(&namespaces[0], "registry", |copy| {
            value(copy, "token").as_deref() == Some("two")
        })
        .await?;
    scene
        .wait_condition(&scene.tag, "PodGateActive", "True", "Active")
        .await?;
    let new = scene.namespace().await?;
    scene.wait_secret(&new, "registry", |_| true).await?;
    scene.rule().delete(&scene.client).await?;
    for namespace in [&namespaces[0], &new] {
        wait_gone(scene.secrets(namespace), "registry").await?;
    }
    // The API server shows the deletion before the reconciler has its answer.
    let log = eventually(SOON, "both deletions in the log", || async {
        let log = setting.log();
        Ok((log.matches("copy deleted").count() == 2).then_some(log))
    })
    .await?;

    let mut lines: Vec<Value> = Vec::new();
    // The last line may be incomplete.
    for line in log
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
    {
        let line: Value = serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))?;
        for field in ALWAYS {
            ensure!(line[field].is_string(), "no {field}: {line}");
        }
        line["timestamp"]
            .as_str()
            .unwrap_or_default()
            .parse::<jiff::Timestamp>()
            .with_context(|| line.to_string())?;
        lines.push(line);
    }
    for (message, level, namespace) in [
        ("copy written", "INFO", &namespaces[0]),
        ("copy not written", "WARN", &namespaces[1]),
        ("copy written", "INFO", &new),
        ("copy deleted", "INFO", &namespaces[0]),
    ] {
        let is =
            |line: &&Value| line["message"] == message && line["namespace"] == namespace.as_str();
        let line = lines
            .iter()
            .find(is)
            .with_context(|| format!("{message} in {namespace}"))?;
        for field in OF_A_COPY {
            ensure!(
                line[field].as_str().is_some_and(|text| !text.is_empty()),
                "no {field}: {line}"
            );
        }
        assert_eq!(
            (&line["level"], &line["kind"], &line["name"]),
            (&level.into(), &"Secret".into(), &"registry".into())
        );
        ensure!(
            line["rule"] == format!("ClusterReplication/{}", scene.tag),
            "{line}"
        );
        ensure!(line["error"].is_string() == (level == "WARN"), "{line}");
    }
    ensure!(
        lines
            .iter()
            .filter(|line| line["message"] == "ready")
            .count()
            == 2,
        "each program says that it is ready"
    );
    Ok(())
}
