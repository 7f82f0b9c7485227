//! `kubectl mimeo render`: the copies, from files alone. They equal the copies in a cluster.

use std::path::Path;

use anyhow::{Context as _, Result};
use mimeo_tests::{
    eventually,
    scenario::{SOON, kubectl},
};
use serde_json::{Value, json};

use super::offline;
use crate::stages::PLAIN as STAGE;

/// A namespace, a source, and a rule with a variable.
pub(super) const FILES: &str = r#"
apiVersion: v1
kind: Namespace
metadata:
  name: team-blue
  labels: {team: blue}
---
apiVersion: v1
kind: Secret
metadata:
  name: registry
  namespace: platform
  labels: {app: registry, kustomize.toolkit.fluxcd.io/name: platform}
stringData:
  token: hunter2
---
apiVersion: mimeo.dev/v1alpha1
kind: ClusterReplication
metadata:
  name: registry
spec:
  sources:
  - {apiVersion: v1, kind: Secret, namespace: platform, name: registry}
  targets:
  - namespaceSelector: {matchExpressions: [{key: team, operator: Exists}]}
  transform:
    annotations:
      set: {team: "$(namespace.labels['team'])"}
"#;

const MASKED: &str = "\
apiVersion: v1
data:
  token: '*** (7 bytes)'
kind: Secret
metadata:
  annotations:
    mimeo.dev/rule: ClusterReplication/registry
    mimeo.dev/source: v1/Secret/platform/registry
    team: blue
  labels:
    app: registry
    app.kubernetes.io/managed-by: mimeo
    mimeo.dev/cluster-replication: registry
  name: registry
  namespace: team-blue
type: Opaque
";

const TABLE: &str = "\
NAMESPACE   KIND     NAME       RULE                          SOURCE
team-blue   Secret   registry   ClusterReplication/registry   v1/Secret/platform/registry
";

/// A rule for the Secret `platform/registry`, or for another one.
fn rule(name: &str, source: &str, target: &Value) -> Value {
    json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": name},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": source}],
            "targets": [target],
        },
    })
}

fn folder(files: &[(&str, &str)]) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text)?;
    }
    Ok(folder)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}

#[tokio::test]
async fn copies_are_rendered_from_files_without_a_cluster() -> Result<()> {
    let folder = folder(&[("all.yaml", FILES)])?;
    let path = text(folder.path())?;
    let output = offline(&["render", "-f", path]).await?;
    assert_eq!((output.code, &*output.stderr), (0, ""));
    assert_eq!(
        output.stdout,
        MASKED.replace("'*** (7 bytes)'", "aHVudGVyMg==")
    );
    let output = offline(&["render", "-f", path, "--mask"]).await?;
    assert_eq!((output.code, &*output.stdout), (0, MASKED));
    let output = offline(&["render", "-f", path, "-o", "table"]).await?;
    assert_eq!((output.code, &*output.stdout), (0, TABLE));
    let list = offline(&["render", "-f", path, "-o", "json"])
        .await?
        .json()?;
    assert_eq!(list["kind"], "List");
    assert_eq!(list["items"][0]["metadata"]["namespace"], "team-blue");
    Ok(())
}

#[tokio::test]
async fn each_failure_is_named_with_its_file_and_its_rule() -> Result<()> {
    let blue = json!({"namespaces": ["team-blue"]});
    let named = |name: &str| json!({"namespaces": ["team-blue"], "copyName": name});
    let mut unset = rule("unset", "registry", &named("unset"));
    unset["spec"]["transform"] =
        json!({"labels": {"set": {"stage": "$(namespace.labels['stage'])"}}});
    let rules = [
        rule("rival", "registry", &blue),
        rule("lost", "nowhere", &blue),
        rule("wrong", "registry", &named("a_b")),
        rule(
            "elsewhere",
            "registry",
            &json!({"namespaces": ["team-red"]}),
        ),
        unset,
        json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication",
            "metadata": {"name": "pull", "namespace": "team-blue"},
            "spec": {"sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "registry"}]},
        }),
    ];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": rules}).to_string();
    let folder = folder(&[("all.yaml", FILES), ("rules.json", &list)])?;
    let output = offline(&["render", "-f", text(folder.path())?, "-o", "table"]).await?;
    assert_eq!((output.code, &*output.stdout), (1, TABLE));
    for words in [
        "ClusterReplication/rival: RuleConflict: Secret team-blue/registry: \
         ClusterReplication/registry has this copy",
        "ClusterReplication/lost: SourceNotFound: v1/Secret/platform/nowhere does not exist",
        "ClusterReplication/wrong: InvalidSpec: spec.targets[0].copyName",
        "ClusterReplication/unset: VariableUnset: Secret team-blue/unset",
        "Replication/team-blue/pull: NotGranted: Secret registry in namespace platform is not \
         granted",
    ] {
        let line = format!("rules.json: {words}");
        assert!(output.stderr.contains(&line), "{line}\n{}", output.stderr);
    }
    let note =
        "rules.json: ClusterReplication/elsewhere names namespace team-red, and no file has it";
    assert!(output.stderr.contains(note), "{}", output.stderr);
    let errors = output.stderr.matches("error: ").count();
    assert_eq!(errors, 5, "{}", output.stderr);
    Ok(())
}

#[tokio::test]
async fn a_file_that_can_not_be_used_is_named() -> Result<()> {
    let folder = folder(&[("a.txt", "")])?;
    let path = text(folder.path())?;
    let output = offline(&["render", "-f", path]).await?;
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.contains("has no file that ends with .yaml"),
        "{}",
        output.stderr
    );
    let output = offline(&["render", "-f", &format!("{path}/a.txt")]).await?;
    assert!(
        output.stderr.contains("a.txt has no object in it"),
        "{}",
        output.stderr
    );
    Ok(())
}

/// The API server completes the rule, and the reconciler writes the copy.
#[tokio::test]
async fn a_rendered_copy_equals_the_copy_in_a_cluster() -> Result<()> {
    let scene = STAGE.scene("render").await?;
    let namespace = scene.namespace().await?;
    let control_plane = &scene.setting.control_plane;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": scene.home, "labels": {"a": "b"}, "annotations": {"helm.sh/x": "y"}},
        "data": {"kept": "1", "left-out": "2", "old": "3"},
    });
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": scene.tag},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "ConfigMap", "namespace": scene.home, "name": "settings"}],
            "targets": [{"namespaces": [namespace], "copyName": "copy-in-$(namespace.name)"}],
            "retentionPolicy": {"whenUnmatched": "Retain"}, "strategy": "Replace", "podGate": null,
            "transform": {
                "data": {"exclude": ["left-*"], "rename": {"old": "new"}},
                "labels": {"set": {"scene": "$(namespace.labels['scene'])"}},
            },
        },
    });
    let there = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": namespace, "labels": {"scene": scene.tag}},
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [map, rule]}).to_string();
    let folder = folder(&[("all.json", &list), ("namespace.json", &there.to_string())])?;
    kubectl(
        control_plane,
        ["apply", "-f", text(&folder.path().join("all.json"))?],
    )?;
    let output = offline(&["render", "-f", text(folder.path())?, "-o", "json"]).await?;
    let rendered = output.json()?["items"][0].take();
    let name = format!("copy-in-{namespace}");
    eventually(SOON, "the copy equals the rendered one", || async {
        let args = ["-n", &namespace, "get", "configmap", &name, "-o", "json"];
        let Ok(found) = kubectl(control_plane, args) else {
            return Ok(None);
        };
        let mut found: Value = serde_json::from_str(&found)?;
        let metadata = found["metadata"].as_object_mut().context("metadata")?;
        metadata.retain(|field, _| {
            ["name", "namespace", "labels", "annotations"].contains(&field.as_str())
        });
        let annotations = metadata["annotations"]
            .as_object_mut()
            .context("annotations")?;
        annotations
            .retain(|key, _| !["mimeo.dev/checksum", "mimeo.dev/cluster"].contains(&key.as_str()));
        assert_eq!(found, rendered);
        Ok(Some(()))
    })
    .await
}
