//! The advice in `docs/how-to/coming-from.md` for users of another tool. Its rules are accepted unchanged,
//! and so is each part of a rule in its tables. Copies that the other tool has left become Mimeo's
//! in place.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use kube::{Client, core::DynamicObject};
use mimeo_tests::scenario::{
    SOON, Stage, annotation, any, apply, create, kubectl, label, merge, uid, version,
    wait_condition,
};
use mimeo_tests::{ControlPlane, Pair, create_namespace, create_secret, eventually};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

static STAGE: Stage = Stage::new(ControlPlane::builder, Pair::builder);

fn document() -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/coming-from.md");
    Ok(fs::read_to_string(path)?)
}

/// Returns the sections of the document that have rules: each heading with all objects in the
/// section.
fn sections(document: &str) -> Result<Vec<(&str, Vec<Value>)>> {
    let mut found = Vec::new();
    for section in document.split("\n## ").skip(1) {
        let (heading, body) = section
            .split_once('\n')
            .context("a heading and nothing else")?;
        let lines: Vec<&str> = body.lines().collect();
        let mut objects = Vec::new();
        for block in lines
            .split(|line| !line.starts_with("    "))
            .filter(|block| !block.is_empty())
        {
            let block: String = block.iter().flat_map(|line| [&line[4..], "\n"]).collect();
            if !block.starts_with("apiVersion: ") {
                continue;
            }
            for object in serde_yaml::Deserializer::from_str(&block) {
                objects.push(Value::deserialize(object).with_context(|| block.clone())?);
            }
        }
        if !objects.is_empty() {
            found.push((heading, objects));
        }
    }
    Ok(found)
}

/// Returns the parts of rules in the tables, each as fields of a spec.
fn parts(document: &str) -> Result<Vec<Map<String, Value>>> {
    const FIELDS: [&str; 8] = [
        "sources",
        "targets",
        "exclude",
        "transform",
        "strategy",
        "conflictPolicy",
        "retentionPolicy",
        "resyncSeconds",
    ];
    let cells = document
        .lines()
        .filter(|line| line.starts_with("| "))
        .filter_map(|line| line.split(" | ").nth(1));
    let quoted = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let fields = quoted.filter(|text| {
        FIELDS
            .iter()
            .any(|field| text.starts_with(&format!("{field}: ")))
    });
    fields
        .map(|text| serde_yaml::from_str(text).with_context(|| text.to_owned()))
        .collect()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns the labels and annotations that a tool writes on its copies.
fn marks(section: &str) -> Result<[Value; 2]> {
    Ok(match section {
        "Kyverno generate" => [
            json!({"app.kubernetes.io/managed-by": "kyverno", "generate.kyverno.io/policy-name": "regcred"}),
            json!({}),
        ],
        "kubed and Config Syncer" => [
            json!({"kubed.appscode.com/origin.cluster": "unicorn", "kubed.appscode.com/origin.name": "app-settings",
                   "kubed.appscode.com/origin.namespace": "platform"}),
            json!({"kubed.appscode.com/origin": r#"{"namespace":"platform","name":"app-settings","uid":"u","resourceVersion":"1"}"#}),
        ],
        "kubernetes-reflector" => [
            json!({}),
            json!({"reflector.v1.k8s.emberstack.com/auto-reflects": "True",
                   "reflector.v1.k8s.emberstack.com/reflected-version": "1",
                   "reflector.v1.k8s.emberstack.com/reflected-at": "2026-01-01T00:00:00Z"}),
        ],
        "kubernetes-replicator" => [
            json!({}),
            json!({"replicator.v1.mittwald.de/replicated-at": "2026-01-01T00:00:00Z",
                   "replicator.v1.mittwald.de/replicated-from-version": "1",
                   "replicator.v1.mittwald.de/replicated-keys": "password"}),
        ],
        "ClusterSecret" => [
            json!({"clustersecret.io": "true"}),
            json!({"clustersecret.io/created-by": "ClusterSecrets", "clustersecret.io/version": "1",
                   "clustersecret.io/last-sync": "2026-01-01T00:00:00Z"}),
        ],
        "ObjectSync" | "Replika" | "GlobalObject" | "Scripts" => [json!({}), json!({})],
        other => bail!("the labels and annotations of {other} are unknown"),
    })
}

/// Returns the name of the copy of the section's first rule.
fn copy_name(rule: &Value) -> &str {
    let name = text(rule, "/spec/targets/0/copyName");
    if name.is_empty() {
        text(rule, "/spec/sources/0/name")
    } else {
        name
    }
}

/// Returns a source, or the copy that a tool has made of it.
fn object(
    rule: &Value,
    namespace: &str,
    name: &str,
    [labels, annotations]: [Value; 2],
    value: &str,
) -> Value {
    let kind = text(rule, "/spec/sources/0/kind");
    // Values of a Secret are in base64.
    let value = if kind == "Secret" {
        value.replace("new", "bmV3").replace("old", "b2xk")
    } else {
        value.to_owned()
    };
    json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {"namespace": namespace, "name": name, "labels": labels, "annotations": annotations},
        "data": {"password": value},
    })
}

fn password(object: &DynamicObject) -> Option<&str> {
    object.data["data"]["password"].as_str()
}

/// A tool's section, its copy, and the rule that takes the copy over.
struct Move<'a> {
    section: &'a str,
    rule: Value,
    planted: DynamicObject,
    marked: bool,
}

impl Move<'_> {
    /// Creates the source, and the copy as the tool left it. A copy with the tool's labels or
    /// annotations has outdated content, too.
    async fn begin<'a>(client: &Client, section: &'a str, mut rule: Value) -> Result<Move<'a>> {
        let source = text(&rule, "/spec/sources/0/name");
        apply(
            client,
            &object(&rule, "platform", source, [json!({}), json!({})], "new"),
        )
        .await?;
        let marks = marks(section)?;
        let marked = marks
            .iter()
            .any(|marks| marks.as_object().is_some_and(|marks| !marks.is_empty()));
        let planted = object(
            &rule,
            "team-a",
            copy_name(&rule),
            marks,
            if marked { "old" } else { "new" },
        );
        let planted = apply(client, &planted).await?;
        rule["spec"]["suspend"] = json!(true);
        Ok(Move {
            section,
            rule,
            planted,
            marked,
        })
    }

    fn name(&self) -> &str {
        text(&self.rule, "/metadata/name")
    }

    async fn copy(&self, client: &Client) -> Result<DynamicObject> {
        let copies = any(
            client,
            "v1",
            text(&self.rule, "/spec/sources/0/kind"),
            Some("team-a"),
        )?;
        Ok(copies.get(copy_name(&self.rule)).await?)
    }

    async fn set(&self, client: &Client, spec: Value) -> Result<()> {
        let rules = any(client, "mimeo.dev/v1alpha1", "ClusterReplication", None)?;
        merge(&rules, self.name(), json!({"spec": spec})).await?;
        Ok(())
    }
}

#[tokio::test]
async fn copies_that_another_tool_has_left_become_mimeos_in_place() -> Result<()> {
    let client = STAGE.get().await?.control_plane.client().await?;
    for name in ["platform", "certificates", "shop"] {
        create_namespace(&client, name, &[]).await?;
    }
    // Every rule targets this namespace.
    create_namespace(&client, "team-a", &[("app", "shop"), ("license", "yes")]).await?;
    let document = document()?;
    let (mut moves, mut others) = (Vec::new(), 0);
    for (section, objects) in sections(&document)? {
        for object in objects {
            if text(&object, "/metadata/name").starts_with("from-")
                && object["kind"] == "ClusterReplication"
            {
                let begun = Move::begin(&client, section, object).await?;
                create(&client, "clusterreplications", &begun.rule)
                    .await
                    .context(section.to_owned())?;
                moves.push(begun);
            } else {
                apply(&client, &object).await.context(section.to_owned())?;
                others += 1;
            }
        }
    }
    assert_eq!((moves.len(), others), (9, 5));
    for one in &moves {
        // The plan predicts the result, and nothing is written yet.
        eventually(SOON, format!("{}: a plan", one.section), || async {
            let rules = any(&client, "mimeo.dev/v1alpha1", "ClusterReplication", None)?;
            let rule = rules.get(one.name()).await?;
            let plan = &rule.data["status"]["plan"];
            ensure!(plan["conflict"] == 0 && plan["update"] == 1, "{plan}");
            Ok(Some(()))
        })
        .await?;
        let copy = one.copy(&client).await?;
        assert_eq!(
            copy.metadata.resource_version, one.planted.metadata.resource_version,
            "{}",
            one.section
        );
        one.set(&client, json!({"suspend": false})).await?;
    }
    for one in &moves {
        wait_condition(&client, one.name(), ["Ready", "True", "Synced"])
            .await
            .context(one.section.to_owned())?;
        let copy = one.copy(&client).await?;
        assert_eq!(
            uid(&copy),
            uid(&one.planted),
            "{}: the same object",
            one.section
        );
        assert_eq!(
            label(&copy, "app.kubernetes.io/managed-by"),
            Some("mimeo"),
            "{}",
            one.section
        );
        let fresh = if text(&one.rule, "/spec/sources/0/kind") == "Secret" {
            "bmV3"
        } else {
            "new"
        };
        assert_eq!(password(&copy), Some(fresh), "{}", one.section);
        // With the strategy Apply, the tool's labels and annotations stay. With Replace they are
        // removed.
        assert_eq!(
            left(one, &copy),
            one.marked,
            "{}: {:?}",
            one.section,
            copy.metadata
        );
        one.set(
            &client,
            json!({"conflictPolicy": "Report", "strategy": "Replace"}),
        )
        .await?;
    }
    for one in &moves {
        eventually(SOON, format!("{}: no marks", one.section), || async {
            let copy = one.copy(&client).await?;
            ensure!(!left(one, &copy), "{:?}", copy.metadata);
            assert_eq!(
                uid(&copy),
                uid(&one.planted),
                "{}: the same object",
                one.section
            );
            Ok(Some(()))
        })
        .await?;
    }
    the_way_back(&client, &moves).await
}

/// Goes back as the document says. The last rule is deleted without these steps. Once its copy is
/// gone, the other copies would be gone, too.
async fn the_way_back(client: &Client, moves: &[Move<'_>]) -> Result<()> {
    let (other, back) = moves.split_last().context("no moves")?;
    let control_plane = &STAGE.get().await?.control_plane;
    for one in back {
        one.set(
            client,
            json!({"retentionPolicy": {"whenRuleDeleted": "Retain"}}),
        )
        .await?;
        let rule = format!("clusterreplication/{}", one.name());
        kubectl(
            control_plane,
            ["wait", "--for=condition=Ready", &*rule, "--timeout=5m"],
        )
        .context(one.section.to_owned())?;
    }
    for one in moves {
        kubectl(control_plane, ["delete", "clusterreplication", one.name()])?;
    }
    eventually(SOON, format!("{}: no copy", other.section), || async {
        Ok(other.copy(client).await.is_err().then_some(()))
    })
    .await?;
    for one in back {
        assert_eq!(
            uid(&one.copy(client).await?),
            uid(&one.planted),
            "{}: it stays",
            one.section
        );
    }
    Ok(())
}

/// True if the copy still has one of the tool's labels or annotations. A key with a value of
/// Mimeo's own does not count.
fn left(one: &Move<'_>, copy: &DynamicObject) -> bool {
    let planted = &one.planted.metadata;
    let labels = planted
        .labels
        .iter()
        .flatten()
        .filter(|(key, _)| *key != "app.kubernetes.io/managed-by");
    let annotations = planted.annotations.iter().flatten();
    labels
        .into_iter()
        .any(|(key, _)| label(copy, key).is_some())
        || annotations
            .into_iter()
            .any(|(key, _)| annotation(copy, key).is_some())
}

/// Mimeo does not take over an object with other content if it has no tool's labels or annotations.
/// The table in the document says for which tools this happens.
#[tokio::test]
async fn what_no_tool_has_marked_is_a_conflict_unless_it_is_the_copy_already() -> Result<()> {
    let scene = STAGE.scene("unmarked").await?;
    let (rule, namespace) = (
        scene.rule().secret(&scene.home, "registry"),
        scene.namespace().await?,
    );
    scene.secret("registry", &[("password", "new")]).await?;
    let other = create_secret(
        &scene.client,
        &namespace,
        "registry",
        &[("password", "old")],
    )
    .await?;
    rule.set("conflictPolicy", json!("Adopt"))
        .create(&scene.client)
        .await?;
    scene.wait_counts(&scene.tag, [1, 0, 1]).await?;
    let left = scene.secrets(&namespace).get("registry").await?;
    assert_eq!(
        left.metadata.resource_version,
        other.metadata.resource_version
    );
    Ok(())
}

/// Three objects have labels or annotations of a tool, and one has none. Each differs from the copy
/// in a field that the API server lets no client change.
#[tokio::test]
async fn what_cannot_be_changed_in_place_is_not_adopted_and_its_copy_comes_once_somebody_deletes_it()
-> Result<()> {
    const RBAC: &str = "rbac.authorization.k8s.io";
    let scene = STAGE.scene("in-place").await?;
    let (client, namespace) = (&scene.client, scene.namespace().await?);
    let binding_version = format!("{RBAC}/v1");
    let secret = |type_: &str, data: &str| json!({"type": type_, "data": {"password": data}});
    let binding =
        |role: &str| json!({"roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}});
    // The object in the way, and the source.
    let objects = [
        (
            "v1",
            "Secret",
            "marked",
            secret("example.com/old", "b2xk"),
            secret("example.com/new", "bmV3"),
        ),
        (
            "v1",
            "Secret",
            "unmarked",
            secret("example.com/old", "bmV3"),
            secret("example.com/new", "bmV3"),
        ),
        (
            "v1",
            "ConfigMap",
            "fixed",
            json!({"immutable": true, "data": {"color": "red"}}),
            json!({"data": {"color": "blue"}}),
        ),
        (
            &*binding_version,
            "RoleBinding",
            "readers",
            binding("edit"),
            binding("view"),
        ),
    ];
    let (mut rule, mut before) = (scene.rule(), Vec::new());
    for (api_version, kind, name, there, source) in &objects {
        let written = async |namespace: &str, annotations: Value, fields: &Value| {
            let metadata =
                json!({"namespace": namespace, "name": name, "annotations": annotations});
            let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
            object
                .as_object_mut()
                .context("an object")?
                .extend(fields.as_object().context("fields")?.clone());
            apply(client, &object).await
        };
        let mark = if *name == "unmarked" {
            json!({})
        } else {
            json!({"kubed.appscode.com/origin": "{}"})
        };
        before.push(written(&namespace, mark, there).await?);
        written(&scene.home, json!({}), source).await?;
        rule = rule.source(api_version, kind, &scene.home, name);
    }
    let rule = rule
        .named("$(source.name)")
        .set("conflictPolicy", json!("Adopt"));
    rule.clone()
        .set("suspend", json!(true))
        .create(client)
        .await?;
    eventually(SOON, "the plan", || async {
        let plan = scene
            .wait_condition(&scene.tag, "Ready", "False", "Suspended")
            .await?
            .plan
            .context("no plan")?;
        ensure!((plan.update, plan.conflict) == (3, 1), "{plan:?}");
        Ok(Some(()))
    })
    .await?;
    rule.replace(client).await?;
    let status = scene.wait_counts(&scene.tag, [4, 0, 4]).await?;
    let reasons: Vec<_> = status
        .failures
        .iter()
        .map(|one| (&*one.name, &*one.reason))
        .collect();
    let want = [
        ("fixed", "Invalid"),
        ("readers", "Invalid"),
        ("marked", "Invalid"),
        ("unmarked", "Conflict"),
    ];
    assert_eq!(reasons, want, "{status:#?}");
    scene
        .wait_condition(&scene.tag, "Ready", "False", "CopiesFailed")
        .await?;
    for ((api_version, kind, name, ..), before) in objects.iter().zip(&before) {
        let left = any(client, api_version, kind, Some(&namespace))?
            .get(name)
            .await?;
        assert_eq!(
            (uid(&left), version(&left)),
            (uid(before), version(before)),
            "{kind} {name} is as it was"
        );
        let kind = kind.to_lowercase();
        let control_plane = &scene.setting.control_plane;
        kubectl(
            control_plane,
            ["delete", &*kind, *name, "--namespace", &*namespace],
        )?;
    }
    scene.wait_counts(&scene.tag, [4, 4, 0]).await?;
    for (api_version, kind, name, _, source) in &objects {
        let copy = any(client, api_version, kind, Some(&namespace))?
            .get(name)
            .await?;
        let same = source
            .as_object()
            .context("fields")?
            .iter()
            .all(|(field, value)| copy.data[field] == *value);
        ensure!(
            same && label(&copy, "app.kubernetes.io/managed-by") == Some("mimeo"),
            "{kind} {name}: {:?}",
            copy.metadata
        );
    }
    Ok(())
}

#[tokio::test]
async fn every_part_of_a_rule_in_the_tables_is_taken() -> Result<()> {
    let setting = STAGE.get().await?;
    let document = document()?;
    let parts = parts(&document)?;
    assert!(parts.len() > 35, "only {} parts", parts.len());
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().display().to_string();
    for part in parts {
        let told = json!(part).to_string();
        // The data of a Secret is base64, so text is put into ConfigMaps.
        let kind = if told.contains("/data/") {
            "ConfigMap"
        } else {
            "Secret"
        };
        let mut spec = json!({
            "sources": [{"apiVersion": "v1", "kind": kind, "namespace": "default", "name": "regcred"}],
            "targets": [{"namespaces": ["shop"]}],
        });
        spec.as_object_mut().context("a spec")?.extend(part);
        let rule = json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "part"}, "spec": spec,
        });
        fs::write(file.path(), rule.to_string())?;
        // kubectl refuses unknown fields.
        kubectl(
            &setting.control_plane,
            ["create", "--dry-run=server", "-f", &*path],
        )
        .context(told)?;
    }
    Ok(())
}
