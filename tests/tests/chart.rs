//! The Helm chart: what it renders, what it refuses, and what is made from it. With `MIMEO_UPDATE_GOLDEN=1` (`make golden`) the
//! files that are made from it are rewritten instead of compared.

#[path = "chart/values.rs"]
mod values;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use mimeo_tests::{ControlPlane, NAMESPACE, create_namespace, scenario};
use serde::Deserialize;
use serde_json::{Value, json};

/// The sets of values that are looked at, by the names of their files.
const SETS: [&str; 6] =
    ["defaults", "everything", "least-privilege", "cert-manager", "strict-host-network", "elsewhere"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn chart() -> PathBuf {
    workspace().join("manifests/chart")
}

fn own(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chart").join(file)
}

fn compare(path: &Path, text: &str) -> Result<()> {
    if env::var_os("MIMEO_UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    let found = fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    ensure!(found == text, "{} is stale: run `make golden` and look at the difference", path.display());
    Ok(())
}

/// What Helm says to these arguments after a subcommand and the chart, or why it refuses.
fn ask_helm(subcommand: &[&str], args: &[&str]) -> Result<Result<String, String>> {
    let output =
        scenario::helm()?.args(subcommand).arg(chart()).args(["--namespace", NAMESPACE]).args(args).output()?;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).context("Helm's output is no text");
    Ok(if output.status.success() { Ok(text(output.stdout)?) } else { Err(text(output.stderr)?) })
}

/// The release as it would be installed with these values.
fn rendered(args: &[&str]) -> Result<String> {
    let told = ask_helm(&["template", "mimeo"], args)?;
    told.map_err(|refusal| anyhow::anyhow!("helm template {args:?}: {refusal}"))
}

fn rendered_set(set: &str, args: &[&str]) -> Result<String> {
    let values = own(&format!("{set}.values.yaml")).display().to_string();
    rendered(&[&["--values", values.as_str()], args].concat())
}

fn objects(rendered: &str) -> Result<Vec<Value>> {
    let each = serde_yaml::Deserializer::from_str(rendered).map(Value::deserialize);
    let all: Vec<Value> = each.collect::<Result<_, _>>()?;
    Ok(all.into_iter().filter(|object| !object.is_null()).collect())
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> Result<&'a Value> {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.with_context(|| format!("no {kind} {name}"))
}

/// The documents of each template, in Helm's order, and without what only Helm's releases have.
fn by_template(rendered: &str) -> BTreeMap<String, String> {
    let helms_own = |line: &&str| {
        let line = line.trim_start();
        !line.starts_with("helm.sh/chart:") && line != "app.kubernetes.io/managed-by: Helm"
    };
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for part in rendered.split("---\n# Source: mimeo/templates/").skip(1) {
        let (name, text) = part.split_once('\n').unwrap_or((part, ""));
        let text: Vec<&str> = text.trim().lines().filter(helms_own).collect();
        let file = files.entry(name.to_owned()).or_default();
        let between =
            if file.is_empty() { "# Generated from manifests/chart; do not edit (make golden).\n" } else { "---\n" };
        file.extend([between, &text.join("\n"), "\n"]);
    }
    files
}

#[test]
fn golden_releases() -> Result<()> {
    for set in SETS {
        // The definitions have a test of their own, and are long.
        let text = rendered_set(set, &["--set", "crds.enabled=false"])?;
        compare(&own(&format!("{set}.yaml")), &text)?;
    }
    Ok(())
}

#[test]
fn golden_kustomization() -> Result<()> {
    let folder = workspace().join("manifests/kustomize");
    let base = rendered(&["--set", "crds.enabled=false", "--no-hooks"])?;
    for (name, text) in by_template(&base) {
        compare(&folder.join(&name), &text)?;
        let kustomization = fs::read_to_string(folder.join("kustomization.yaml"))?;
        ensure!(kustomization.contains(&format!("\n- {name}\n")), "kustomization.yaml doesn't name {name}");
    }
    let guarded = rendered(&["--set", "guardedLabels.enabled=true", "--show-only", "templates/guarded-labels.yaml"])?;
    let text = by_template(&guarded).remove("guarded-labels.yaml").context("no policy")?;
    compare(&folder.join("guarded-labels/policy.yaml"), &text)
}

#[test]
fn golden_readme() -> Result<()> {
    let readme = fs::read_to_string(chart().join("README.md"))?;
    let (before, _) = readme.split_once("## Values\n").context("README.md has no section Values")?;
    compare(&chart().join("README.md"), &format!("{before}## Values\n\n{}", values::table(&chart())?))
}

#[test]
fn the_schema_says_of_every_value_what_its_comment_says() -> Result<()> {
    let schema: Value = serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json"))?)?;
    let documented = values::documented(&chart())?;
    let mut leaves = BTreeSet::new();
    values::leaves(&schema, "", &mut leaves)?;
    // Helm gives it to every part of another chart.
    leaves.remove("global");
    assert_eq!(leaves, documented.iter().map(|value| value.path.clone()).collect());
    for value in documented {
        let node = values::node(&schema, &value.path).context("no such node")?;
        assert_eq!(node["description"], json!(value.description), "{}", value.path);
    }
    Ok(())
}

#[test]
fn lint_finds_nothing() -> Result<()> {
    for set in SETS {
        let values = own(&format!("{set}.values.yaml")).display().to_string();
        let told = ask_helm(&["lint"], &["--strict", "--values", &values])?;
        ensure!(told.is_ok(), "{set}: {told:?}");
    }
    Ok(())
}

#[test]
fn values_that_make_no_sense_are_refused() -> Result<()> {
    for (values, told) in [
        (&["replicas=1"][..], "additional properties 'replicas' not allowed"),
        (&["webhook.replica=1"], "additional properties 'replica' not allowed"),
        (&["webhook.replicas=many"], "got string, want integer"),
        (&["webhook.namespacesFailurePolicy=Open"], "value must be one of 'Ignore', 'Fail'"),
        (&["webhook.tls.mode=Manual"], "value must be one of 'SelfManaged', 'CertManager', 'Secret'"),
        (&["webhook.port=70000"], "maximum: got 70,000, want 65,535"),
        (&["image.digest=sha256:12"], "does not match pattern"),
        (&["barrier.budget=soon"], "does not match pattern"),
        (&["rbac.targetNamespaces={team-*}"], "does not match pattern"),
        (&["webhook.extraArgs={verbose}"], "does not match pattern"),
        (&["webhook.hostNetwork=true", "webhook.port=10250"], "10250 is the kubelet's"),
        (&["webhook.hostNetwork=true", "reconciler.hostNetwork=true"], "a node has no room for both"),
        (&["webhook.port=8080"], "webhook.port and webhook.opsPort must differ"),
        (&["metrics.serviceMonitor.enabled=true", "metrics.podMonitor.enabled=true"], "enable one of them"),
        (&["metrics.auth=Token", "metrics.podMonitor.enabled=true"], "metrics.podMonitor needs metrics.tokenSecret"),
    ] {
        let refusal = ask_helm(&["template", "mimeo"], &["--set", &values.join(",")])?;
        let refusal = refusal.err().with_context(|| format!("{values:?} was taken"))?;
        ensure!(refusal.contains(told), "{values:?}: {refusal}");
    }
    Ok(())
}

#[test]
fn definitions_are_those_of_the_manifests_and_stay() -> Result<()> {
    let mut crds = objects(&rendered(&["--show-only", "templates/crds.yaml"])?)?;
    assert_eq!(crds.len(), 4);
    for crd in &mut crds {
        assert_eq!(crd["metadata"]["annotations"], json!({"helm.sh/resource-policy": "keep"}));
        assert_eq!(crd["metadata"]["labels"]["app.kubernetes.io/managed-by"], "Helm");
        let plural = crd["spec"]["names"]["plural"].as_str().context("no plural")?.to_owned();
        let plain = fs::read_to_string(workspace().join(format!("manifests/crds/{plural}.yaml")))?;
        let metadata = json!({"name": crd["metadata"]["name"]});
        crd["metadata"] = metadata;
        assert_eq!(*crd, serde_yaml::from_str::<Value>(&plain)?, "{plural}");
    }
    let gone = objects(&rendered(&["--show-only", "templates/crds.yaml", "--set", "crds.keep=false"])?)?;
    assert!(gone.iter().all(|crd| crd["metadata"]["annotations"].is_null()));
    Ok(())
}

#[test]
fn versions_are_the_workspaces() -> Result<()> {
    let chart: Value = serde_yaml::from_str(&fs::read_to_string(chart().join("Chart.yaml"))?)?;
    for version in ["version", "appVersion"] {
        assert_eq!(chart[version], env!("CARGO_PKG_VERSION"));
    }
    Ok(())
}

#[test]
fn with_least_privilege_nothing_cluster_wide_reaches_an_object() -> Result<()> {
    let objects = objects(&rendered_set("least-privilege", &["--no-hooks"])?)?;
    let bound: Vec<&Value> = objects.iter().filter(|object| object["kind"] == "ClusterRoleBinding").collect();
    for binding in &bound {
        let role = find(&objects, "ClusterRole", binding["roleRef"]["name"].as_str().context("no role")?)?;
        assert_eq!(role["aggregationRule"], Value::Null, "{role}");
        for rule in role["rules"].as_array().context("no rules")? {
            let resources: Vec<String> = serde_json::from_value(rule["resources"].clone())?;
            let core = rule["apiGroups"] == json!([""]);
            let objects = core && resources.iter().any(|resource| resource != "namespaces");
            ensure!(!objects, "{} is bound cluster-wide and has {rule}", role["metadata"]["name"]);
        }
    }
    assert_eq!(bound.len(), 2);
    let places: BTreeSet<(String, String)> = objects
        .iter()
        .filter(|object| object["kind"] == "RoleBinding" && object["roleRef"]["kind"] == "ClusterRole")
        .map(|binding| (binding["metadata"]["namespace"].to_string(), binding["roleRef"]["name"].to_string()))
        .collect();
    let expected = [
        ("platform", "mimeo-sources"),
        ("team-a", "mimeo-kinds"),
        ("team-a", "mimeo-kinds-reconciler"),
        ("team-b", "mimeo-kinds"),
        ("team-b", "mimeo-kinds-reconciler"),
    ];
    assert_eq!(places, expected.map(|(a, b)| (format!("{a:?}"), format!("{b:?}"))).into());
    Ok(())
}

/// Definitions of the kinds of others that the chart can have objects of: enough for the API server to take them.
fn definition(group: &str, version: &str, kind: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
            "versions": [{
                "name": version, "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

#[tokio::test]
async fn an_api_server_takes_every_set() -> Result<()> {
    let control_plane = ControlPlane::builder().start().await?;
    let client = control_plane.client().await?;
    for name in [NAMESPACE, "platform", "team-a", "team-b"] {
        create_namespace(&client, name, &[]).await?;
    }
    let monitoring =
        ["ServiceMonitor", "PodMonitor", "PrometheusRule"].map(|kind| ("monitoring.coreos.com", "v1", kind));
    let cert_manager = ["Certificate", "Issuer"].map(|kind| ("cert-manager.io", "v1", kind));
    for (group, version, kind) in monitoring.into_iter().chain(cert_manager) {
        scenario::apply(&client, &definition(group, version, kind)).await?;
    }
    // The policy's parameters are of a kind that must be there.
    let crds = workspace().join("manifests/crds");
    scenario::kubectl(&control_plane, ["apply", "-k", &crds.display().to_string()])?;
    let folder = tempfile::tempdir()?;
    for set in SETS {
        let file = folder.path().join(format!("{set}.yaml"));
        fs::write(&file, rendered_set(set, &["--set", "crds.enabled=false"])?)?;
        let file = file.display().to_string();
        let args = ["apply", "--server-side", "--validate=strict", "--dry-run=server", "-f", file.as_str()];
        let told = mimeo_tests::eventually(scenario::SOON, "the kinds to be served", || async {
            scenario::kubectl(&control_plane, args).map(Some)
        });
        told.await.with_context(|| set)?;
    }
    Ok(())
}
