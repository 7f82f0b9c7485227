//! What GitOps tools conclude from the statuses of Mimeo's kinds. The tools themselves don't run
//! here. The health script for Argo CD (`manifests/argo-cd/argocd-cm.yaml`) runs in an interpreter
//! of Lua 5.1, and the rules of kstatus, by which Flux waits, are written down in this file. Both
//! are applied to statuses that the reconciler wrote on a real API server.

use std::{fs, path::Path, pin::pin};

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures::TryStreamExt as _;
use kube::{
    Client,
    api::{ListParams, WatchEvent, WatchParams},
};
use mimeo_tests::{
    ControlPlane, Pair, create_namespace, create_secret, eventually,
    scenario::{SOON, Setting, any, apply, kubectl, merge, relabel, rule},
};
use mlua::{Lua, LuaOptions, StdLib};
use serde_json::{Value, json};

/// The number of namespaces in which copies take a while.
const MANY: usize = 100;

const KINDS: [&str; 4] = [
    "ClusterReplication",
    "Replication",
    "ReplicationGrant",
    "TransformPolicy",
];

/// Returns the health script for a kind.
fn script(kind: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/argo-cd/argocd-cm.yaml");
    let map: Value = serde_yaml::from_str(&fs::read_to_string(path)?)?;
    let key = format!("resource.customizations.health.mimeo.dev_{kind}");
    let script = map["data"][&key]
        .as_str()
        .with_context(|| format!("no {key}"))?;
    Ok(script.to_owned())
}

/// The value as Argo CD hands it to a script.
fn in_lua(lua: &Lua, value: &Value) -> mlua::Result<mlua::Value> {
    Ok(match value {
        Value::Null => mlua::Value::Nil,
        Value::Bool(value) => mlua::Value::Boolean(*value),
        Value::Number(number) => mlua::Value::Number(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => mlua::Value::String(lua.create_string(text)?),
        Value::Array(items) => {
            let items = items.iter().map(|item| in_lua(lua, item));
            mlua::Value::Table(lua.create_sequence_from(items.collect::<mlua::Result<Vec<_>>>()?)?)
        }
        Value::Object(fields) => {
            let table = lua.create_table()?;
            for (key, value) in fields {
                table.set(key.as_str(), in_lua(lua, value)?)?;
            }
            mlua::Value::Table(table)
        }
    })
}

/// The health and the message that the script finds. As in Argo CD, the script has the basic
/// functions and the library `table`, and no others.
fn health(object: &Value) -> Result<(String, String)> {
    let script = script(object["kind"].as_str().context("no kind")?)?;
    let run = || -> mlua::Result<(String, String)> {
        let lua = Lua::new_with(StdLib::TABLE, LuaOptions::default())?;
        lua.globals().set("obj", in_lua(&lua, object)?)?;
        let told: mlua::Table = lua.load(script).eval()?;
        Ok((told.get("status")?, told.get("message")?))
    };
    run().map_err(|error| anyhow!("{error}"))
}

/// The status of an object by the rules of kstatus.
fn kstatus(object: &Value) -> &'static str {
    let (metadata, status) = (&object["metadata"], &object["status"]);
    if metadata["deletionTimestamp"].is_string() {
        return "Terminating";
    }
    let observed = &status["observedGeneration"];
    if !observed.is_null() && *observed != metadata["generation"] {
        return "InProgress";
    }
    let conditions = status["conditions"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    for condition in conditions {
        match (condition["type"].as_str(), condition["status"].as_str()) {
            (Some("Reconciling"), Some("True")) => return "InProgress",
            (Some("Stalled"), Some("True")) => return "Failed",
            _ => {}
        }
    }
    match conditions.iter().find(|one| one["type"] == "Ready") {
        Some(ready) if ready["status"] != "True" => "InProgress",
        // An object without the condition counts as current.
        _ => "Current",
    }
}

fn plural(kind: &str) -> String {
    match kind {
        "TransformPolicy" => "transformpolicies".to_owned(),
        kind => format!("{}s", kind.to_lowercase()),
    }
}

async fn get(client: &Client, kind: &str, namespace: &str, name: &str) -> Result<Value> {
    let of = if namespace.is_empty() {
        String::new()
    } else {
        format!("namespaces/{namespace}/")
    };
    let path = format!("/apis/mimeo.dev/v1alpha1/{of}{}/{name}", plural(kind));
    let request = http::Request::get(path).body(Vec::new())?;
    Ok(client.request(request).await?)
}

/// One object, and what the tools conclude from its status: the reason of `Ready`, Argo CD's
/// health, and kstatus.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    [&'static str; 2],
);

/// Waits until `Ready` has the reason for the current spec, then compares.
async fn check(client: &Client, (kind, namespace, name, reason, expected): Case) -> Result<Value> {
    let object = eventually(SOON, format!("{kind} {name}: {reason}"), || async {
        let object = get(client, kind, namespace, name).await?;
        let conditions = object["status"]["conditions"].as_array();
        let told = conditions.into_iter().flatten();
        let is_so = told.into_iter().any(|one| {
            one["reason"] == reason && one["observedGeneration"] == object["metadata"]["generation"]
        });
        Ok(is_so.then_some(object))
    })
    .await?;
    let (health, message) = health(&object)?;
    assert_eq!(
        [health.as_str(), kstatus(&object)],
        expected,
        "{name}: {}",
        object["status"]
    );
    ensure!(message.contains(reason), "{name}: {message}");
    Ok(object)
}

async fn with_objects(client: &Client) -> Result<()> {
    for (name, labels) in [
        ("platform", &[][..]),
        ("shop", &[]),
        ("team-a", &[("team", "yes"), ("held", "yes")]),
        ("team-b", &[("team", "yes"), ("held", "yes")]),
        ("team-c", &[("team", "yes"), ("held", "yes")]),
    ] {
        create_namespace(client, name, labels).await?;
    }
    create_secret(client, "platform", "registry", &[("token", "one")]).await?;
    create_secret(client, "shop", "db", &[("password", "one")]).await?;
    create_secret(client, "team-a", "conflicting", &[("token", "other")]).await?;
    let source = |name: &str| rule(name).secret("platform", "registry");
    let team = |name: &str| json!({"namespaceSelector": {"matchLabels": {"team": "yes"}}, "copyName": name});
    for rule in [
        source("synced").target(team("synced")),
        rule("missing")
            .secret("platform", "none")
            .target(team("none")),
        source("suspended")
            .target(team("suspended"))
            .set("suspend", json!(true)),
        source("nowhere").target(json!({"namespaces": ["nowhere"]})),
        source("conflicting").target(team("conflicting")),
        source("held").target(
            json!({"namespaceSelector": {"matchLabels": {"held": "yes"}}, "copyName": "held"}),
        ),
    ] {
        rule.create(client).await?;
    }
    let api = "mimeo.dev/v1alpha1";
    for object in [
        json!({
            "apiVersion": api, "kind": "ReplicationGrant", "metadata": {"namespace": "shop", "name": "db"},
            "spec": {"access": "Read", "grantees": [{"namespaces": ["team-a"]}], "objects": [{"apiVersion": "v1", "kind": "Secret", "names": ["db"]}]},
        }),
        json!({
            "apiVersion": api, "kind": "Replication", "metadata": {"namespace": "team-a", "name": "granted"},
            "spec": {"sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "shop", "name": "db"}]},
        }),
        json!({
            "apiVersion": api, "kind": "Replication", "metadata": {"namespace": "team-b", "name": "not-granted"},
            "spec": {"sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "shop", "name": "db"}]},
        }),
        json!({
            "apiVersion": api, "kind": "Replication", "metadata": {"namespace": "team-a", "name": "suspended"},
            "spec": {"suspend": true, "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "shop", "name": "db"}]},
        }),
        json!({
            "apiVersion": api, "kind": "TransformPolicy", "metadata": {"name": "labels"},
            "spec": {
                "match": {"kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"a": "b"}}},
                "transform": {"labels": {"set": {"c": "d"}}},
            },
        }),
    ] {
        apply(client, &object).await?;
    }
    Ok(())
}

#[tokio::test]
async fn argo_cd_and_flux_see_in_a_status_what_a_person_does() -> Result<()> {
    let flags = [
        "--deletion-delay",
        "500ms",
        "--deletion-limit",
        "2",
        "--concurrency",
        "1",
    ];
    let pair = Pair::builder().reconciler_args(flags);
    let mut setting = Setting::start(ControlPlane::builder(), pair).await?;
    let client = setting.control_plane.client().await?;
    with_objects(&client).await?;
    let cluster = |name, reason, expected| ("ClusterReplication", "", name, reason, expected);
    let current = ["Healthy", "Current"];
    for case in [
        cluster("synced", "Synced", current),
        cluster("held", "Synced", current),
        cluster("nowhere", "NoNamespaceMatches", current),
        cluster("missing", "SourceNotFound", ["Degraded", "InProgress"]),
        cluster("conflicting", "CopiesFailed", ["Degraded", "InProgress"]),
        cluster("suspended", "Suspended", ["Suspended", "InProgress"]),
        ("ReplicationGrant", "shop", "db", "Active", current),
        ("Replication", "team-a", "granted", "Synced", current),
        (
            "Replication",
            "team-b",
            "not-granted",
            "NotAuthorized",
            ["Degraded", "InProgress"],
        ),
        (
            "Replication",
            "team-a",
            "suspended",
            "Suspended",
            ["Suspended", "InProgress"],
        ),
        ("TransformPolicy", "", "labels", "Active", current),
    ] {
        check(&client, case).await?;
    }
    let many = reconciling(&client).await?;
    assert_eq!(
        (health(&many)?.0.as_str(), kstatus(&many)),
        ("Progressing", "InProgress"),
        "{many}"
    );
    for namespace in ["team-a", "team-b", "team-c"] {
        relabel(&client, namespace, "held", None).await?;
    }
    let held = cluster("held", "DeletionHeld", ["Degraded", "Failed"]);
    check(&client, held).await?;

    // Without a reconciler the statuses are those of former specs, or missing.
    let mut reconciler = setting.pair.reconciler.take().context("no reconciler")?;
    reconciler.program.stop(SOON).await?;
    let changed = json!({"spec": {"suspend": true}});
    let rules = kube::Api::<mimeo_api::ClusterReplication>::all(client.clone());
    merge(&rules, "synced", changed).await?;
    rule("unseen")
        .secret("platform", "registry")
        .target(json!({"namespaces": ["shop"]}))
        .create(&client)
        .await?;
    for (name, expected) in [
        ("synced", ["Progressing", "InProgress"]),
        // kstatus takes an object without a status for one that has none.
        ("unseen", ["Progressing", "Current"]),
    ] {
        let object = get(&client, "ClusterReplication", "", name).await?;
        let (health, message) = health(&object)?;
        assert_eq!([health.as_str(), kstatus(&object)], expected, "{name}");
        ensure!(message.contains("has not seen this version"), "{message}");
    }
    Ok(())
}

/// Creates a rule for many namespaces. Returns it with a status that the reconciler wrote while it
/// was writing the copies.
async fn reconciling(client: &Client) -> Result<Value> {
    for number in 0..MANY {
        create_namespace(client, &format!("many-{number}"), &[("many", "yes")]).await?;
    }
    // A watch misses no status, however slow this test is.
    let rules = any(client, "mimeo.dev/v1alpha1", "ClusterReplication", None)?;
    let version = rules.list(&ListParams::default()).await?.metadata;
    let version = version.resource_version.context("no version")?;
    let params = WatchParams::default().fields("metadata.name=many");
    let mut states = pin!(rules.watch(&params, &version).await?);
    rule("many")
        .secret("platform", "registry")
        .to_label("many", "yes")
        .create(client)
        .await?;
    let mut found = None;
    while let Some(event) = states.try_next().await? {
        let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else {
            bail!("{event:?}");
        };
        let object = serde_json::to_value(object)?;
        let conditions = object["status"]["conditions"].as_array();
        let has = |type_: &str| {
            let mut told = conditions.into_iter().flatten();
            told.any(|one| one["type"] == type_ && one["status"] == "True")
        };
        if has("Ready") {
            return found.context("the reconciler never told of work in progress");
        }
        if has("Reconciling") {
            found = Some(object);
        }
    }
    bail!("the watch ended")
}

/// Returns a rule with these conditions, each with its type, status and reason.
fn object(kind: &str, conditions: &[[&str; 3]]) -> Value {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|[type_, status, reason]| json!({"type": type_, "status": status, "reason": reason, "message": "why"}))
        .collect();
    json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": kind, "metadata": {"generation": 3},
        "status": {"observedGeneration": 3, "conditions": conditions},
    })
}

#[test]
fn each_combination_of_conditions_has_a_health() -> Result<()> {
    for kind in KINDS {
        for (conditions, expected) in [
            (&[["Ready", "True", "Synced"]][..], ["Healthy", "Current"]),
            (
                &[["Ready", "False", "Pending"]],
                ["Progressing", "InProgress"],
            ),
            (
                &[["Ready", "Unknown", "Pending"]],
                ["Progressing", "InProgress"],
            ),
            (
                &[["Ready", "Unknown", "Other"]],
                ["Progressing", "InProgress"],
            ),
            (
                &[
                    ["Ready", "False", "Pending"],
                    ["Reconciling", "True", "Pending"],
                ],
                ["Progressing", "InProgress"],
            ),
            (
                &[["Ready", "False", "InvalidSpec"]],
                ["Degraded", "InProgress"],
            ),
            (
                &[
                    ["Ready", "False", "InvalidSpec"],
                    ["Stalled", "True", "InvalidSpec"],
                ],
                ["Degraded", "Failed"],
            ),
            (
                &[
                    ["Ready", "True", "Synced"],
                    ["Stalled", "True", "DeletionHeld"],
                ],
                ["Degraded", "Failed"],
            ),
            (
                &[["Ready", "False", "Suspended"]],
                ["Suspended", "InProgress"],
            ),
            (
                &[
                    ["Ready", "False", "Suspended"],
                    ["Stalled", "True", "DeletionHeld"],
                ],
                ["Degraded", "Failed"],
            ),
            (&[], ["Progressing", "Current"]),
        ] {
            let mut object = object(kind, conditions);
            let found = health(&object)?;
            assert_eq!(
                [found.0.as_str(), kstatus(&object)],
                expected,
                "{kind} {conditions:?}"
            );
            // The status of a former spec says nothing.
            object["metadata"]["generation"] = json!(4);
            let found = health(&object)?;
            assert_eq!(
                [found.0.as_str(), kstatus(&object)],
                ["Progressing", "InProgress"]
            );
        }
    }
    Ok(())
}

/// `kubectl patch` merges the ConfigMap, as the comment in the file says.
#[tokio::test]
async fn the_health_scripts_are_added_to_the_settings_of_argo_cd() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    create_namespace(&client, "argocd", &[]).await?;
    let own = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "argocd", "name": "argocd-cm"},
        "data": {"url": "https://argocd.example.com"},
    });
    apply(&client, &own).await?;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/argo-cd/argocd-cm.yaml");
    let file = file.display().to_string();
    let patch = [
        "--namespace",
        "argocd",
        "patch",
        "configmap",
        "argocd-cm",
        "--patch-file",
        &file,
    ];
    kubectl(&control_plane, patch)?;
    let read = [
        "--namespace",
        "argocd",
        "get",
        "configmap",
        "argocd-cm",
        "-o",
        "json",
    ];
    let map: Value = serde_json::from_str(&kubectl(&control_plane, read)?)?;
    assert_eq!(map["data"]["url"], "https://argocd.example.com");
    for kind in KINDS {
        let key = format!("resource.customizations.health.mimeo.dev_{kind}");
        assert_eq!(map["data"][key], script(kind)?.as_str(), "{kind}");
    }
    Ok(())
}
