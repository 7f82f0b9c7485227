//! The Helm chart: the objects that it renders, the values that it refuses, and the files generated
//! from it. With `MIMEO_UPDATE_GOLDEN=1` (`make golden`) the test rewrites these files instead of
//! comparing them.

mod image;
mod platforms;
mod rights;
mod selectors;
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

use crate::repository::workspace;

/// The sets of values, by the names of their files.
const SETS: [&str; 6] = [
    "defaults",
    "everything",
    "least-privilege",
    "cert-manager",
    "strict-host-network",
    "elsewhere",
];

fn chart() -> PathBuf {
    workspace().join("manifests/chart")
}

fn own(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/chart")
        .join(file)
}

fn compare(path: &Path, text: &str) -> Result<()> {
    if env::var_os("MIMEO_UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    let found =
        fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    ensure!(
        found == text,
        "{} is stale: run `make golden` and look at the difference",
        path.display()
    );
    Ok(())
}

/// Runs Helm with a subcommand, the chart, and these arguments. Returns the output, or the refusal.
fn ask_helm(subcommand: &[&str], args: &[&str]) -> Result<Result<String, String>> {
    let output = scenario::helm()?
        .args(subcommand)
        .arg(chart())
        .args(["--namespace", NAMESPACE])
        .args(args)
        .output()?;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).context("Helm's output is no text");
    Ok(if output.status.success() {
        Ok(text(output.stdout)?)
    } else {
        Err(text(output.stderr)?)
    })
}

/// Returns the objects of a release with these values.
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
    let found = objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.with_context(|| format!("no {kind} {name}"))
}

/// Returns the documents of each template, in Helm's order. Labels that only a release has are left
/// out.
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
        let between = if file.is_empty() {
            "# Generated from manifests/chart; do not edit (make golden).\n"
        } else {
            "---\n"
        };
        file.extend([between, &text.join("\n"), "\n"]);
    }
    files
}

#[test]
fn golden_releases() -> Result<()> {
    for set in SETS {
        // The CRDs are long and have a test of their own.
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
        ensure!(
            kustomization.contains(&format!("\n- {name}\n")),
            "kustomization.yaml doesn't name {name}"
        );
    }
    for (value, component) in [
        ("guardedLabels", "guarded-labels"),
        ("guardedWrites", "guarded-writes"),
    ] {
        let template = format!("templates/{component}.yaml");
        let guarded = rendered(&[
            "--set",
            &format!("{value}.enabled=true"),
            "--show-only",
            &template,
        ])?;
        let text = by_template(&guarded)
            .remove(&format!("{component}.yaml"))
            .context("no policy")?;
        compare(&folder.join(component).join("policy.yaml"), &text)?;
    }
    Ok(())
}

#[test]
fn golden_readme() -> Result<()> {
    let readme = fs::read_to_string(chart().join("README.md"))?;
    let (before, _) = readme
        .split_once("## Values\n")
        .context("README.md has no section Values")?;
    compare(
        &chart().join("README.md"),
        &format!("{before}## Values\n\n{}", values::table(&chart())?),
    )
}

#[test]
fn the_schema_says_of_every_value_what_its_comment_says() -> Result<()> {
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json"))?)?;
    let documented = values::documented(&chart())?;
    let mut leaves = BTreeSet::new();
    values::leaves(&schema, "", &mut leaves)?;
    assert_eq!(
        leaves,
        documented.iter().map(|value| value.path.clone()).collect()
    );
    for value in documented {
        let node = values::node(&schema, &value.path).context("no such node")?;
        assert_eq!(
            node["description"],
            json!(value.description),
            "{}",
            value.path
        );
    }
    Ok(())
}

#[test]
fn thresholds_are_the_numbers_of_the_alerts() -> Result<()> {
    let file = fs::read_to_string(chart().join("files/alerts.yaml"))?;
    let values: Value = serde_yaml::from_str(&fs::read_to_string(chart().join("values.yaml"))?)?;
    let thresholds = values["metrics"]["prometheusRule"]["thresholds"]
        .as_object()
        .context("no thresholds")?;
    let named = file
        .lines()
        .filter_map(|line| line.strip_prefix("      ")?.split_once(" # "));
    let named: BTreeSet<(String, &str)> = named
        .map(|(expr, name)| (expr.rsplit(' ').next().unwrap_or_default().to_owned(), name))
        .collect();
    assert_eq!(
        named,
        thresholds
            .iter()
            .map(|(name, default)| (default.to_string(), name.as_str()))
            .collect()
    );
    // The alerts are rendered unchanged if no value changes them. The file everything.yaml has them
    // with changed values.
    let enabled = rendered(&[
        "--set",
        "metrics.prometheusRule.enabled=true",
        "--set",
        "crds.enabled=false",
    ])?;
    let enabled = objects(&enabled)?;
    let groups = &find(&enabled, "PrometheusRule", "mimeo")?["spec"]["groups"];
    assert_eq!(*groups, serde_yaml::from_str::<Value>(&file)?);
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

/// Checks that the chart refuses these values, and says why.
fn refused(values: &[&str], told: &str) -> Result<()> {
    let refusal = ask_helm(&["template", "mimeo"], &["--set", &values.join(",")])?;
    let refusal = refusal
        .err()
        .with_context(|| format!("{values:?} was taken"))?;
    ensure!(refusal.contains(told), "{values:?}: {refusal}");
    Ok(())
}

#[test]
fn values_that_make_no_sense_are_refused() -> Result<()> {
    for (values, told) in [
        (
            &["replicas=1"][..],
            "additional properties 'replicas' not allowed",
        ),
        (
            &["webhook.replica=1"],
            "additional properties 'replica' not allowed",
        ),
        (&["webhook.replicas=many"], "got string, want integer"),
        (
            &["webhook.namespacesFailurePolicy=Open"],
            "value must be one of 'Ignore', 'Fail'",
        ),
        (
            &["webhook.tls.mode=Manual"],
            "value must be one of 'SelfManaged', 'CertManager', 'Secret'",
        ),
        (&["webhook.port=70000"], "maximum: got 70,000, want 65,535"),
        (&["image.digest=sha256:12"], "does not match pattern"),
        (&["podGate.budget=soon"], "does not match pattern"),
        (
            &["rbac.targetNamespaces={team-*}"],
            "does not match pattern",
        ),
        (&["webhook.extraArgs={verbose}"], "does not match pattern"),
        (
            &["webhook.hostNetwork=true", "webhook.port=10250"],
            "10250 is the kubelet's",
        ),
        (
            &["webhook.hostNetwork=true", "reconciler.hostNetwork=true"],
            "a node has no room for both",
        ),
        (
            &["webhook.podDisruptionBudget.minAvailable=2"],
            "so no node with one could be drained",
        ),
        (
            &["reconciler.podDisruptionBudget.minAvailable=100%"],
            "so no node with one could be drained",
        ),
        (
            &["reconciler.podDisruptionBudget.minAvailable=51%"],
            "of 2 replicas 51% must stay, so no node with one could",
        ),
        (
            &[
                "webhook.replicas=10",
                "webhook.podDisruptionBudget.minAvailable=99%",
            ],
            "so no node with one could be drained",
        ),
        (
            &["webhook.podDisruptionBudget.minAvailable=200%"],
            "so no node with one could be drained",
        ),
        (
            &["rbac.targetNamespaces={team-a}", "rbac.kinds=null"],
            "rbac.kinds: with rbac.targetNamespaces there are no",
        ),
        (
            &[
                "webhook.tls.certManager.duration=24h",
                "webhook.tls.certManager.renewBefore=1440m",
            ],
            "renewBefore 1440m is no less than duration 24h",
        ),
        (
            &[
                "webhook.tls.mode=CertManager",
                "webhook.tls.certManager.duration=3641h",
            ],
            "served for more than 2920h, and may outlive the chart's own CA",
        ),
        (
            &[
                "webhook.tls.mode=CertManager",
                "webhook.tls.certManager.renewBefore=167h59m",
                "metrics.prometheusRule.enabled=true",
            ],
            "certificateDays: 7 days are more than webhook.tls.certManager.renewBefore",
        ),
        (
            &["metrics.prometheusRule.thresholds.copyLagSeconds=1800"],
            "exclusiveMaximum: got 1,800, want 1,800",
        ),
        (
            &["metrics.prometheusRule.thresholds.namespaceLagSeconds=3600"],
            "exclusiveMaximum: got 3,600, want 1,800",
        ),
        (
            &["reconciler.extraArgs={--log-level=debug}"],
            "reconciler.extraArgs: --log-level is set by log.level",
        ),
        (
            &[
                "webhook.extraEnv[0].name=MIMEO_CERT_DIR",
                "webhook.extraEnv[0].value=/x",
            ],
            "webhook.extraEnv: MIMEO_CERT_DIR is set by webhook.tls",
        ),
        (
            &["webhook.port=8080"],
            "webhook.port and webhook.opsPort must differ",
        ),
        (
            &[
                "metrics.serviceMonitor.enabled=true",
                "metrics.podMonitor.enabled=true",
            ],
            "enable one of them",
        ),
        (
            &["metrics.auth=Token", "metrics.podMonitor.enabled=true"],
            "metrics.podMonitor needs metrics.tokenSecret",
        ),
        (
            &[
                "rbac.kinds[0].apiGroup=apps",
                "rbac.kinds[0].resource=deployments",
            ],
            "missing property 'kind'",
        ),
        (
            &[r"commonLabels.app\.kubernetes\.io/name=x"],
            "commonLabels: app.kubernetes.io/name is the chart's to set",
        ),
        (
            &[r"commonLabels.mimeo\.dev/aggregate-to-mimeo=yes"],
            "commonLabels: mimeo.dev/aggregate-to-mimeo is the chart's",
        ),
        (
            &[r"webhook.podLabels.app\.kubernetes\.io/name=x"],
            "webhook.podLabels: app.kubernetes.io/name is the chart's",
        ),
        (
            &[r"reconciler.podLabels.app\.kubernetes\.io/name=x"],
            "reconciler.podLabels: app.kubernetes.io/name is the",
        ),
        (
            &[r"metrics.dashboard.labels.helm\.sh/chart=x"],
            "metrics.dashboard.labels: helm.sh/chart is the chart's to set",
        ),
    ] {
        refused(values, told)?;
    }
    Ok(())
}

/// These durations are just below the largest permitted ones.
#[test]
fn certificates_of_cert_managers_may_last_as_long_as_nothing_breaks() -> Result<()> {
    let monitored = "metrics.prometheusRule.enabled=true,webhook.tls.certManager.renewBefore=";
    for values in [
        "webhook.tls.mode=CertManager,webhook.tls.certManager.duration=3640h",
        "webhook.tls.mode=CertManager,webhook.tls.certManager.duration=9000h,webhook.tls.certManager.issuerRef.name=own",
        &format!("webhook.tls.mode=CertManager,{monitored}168h"),
        // Another flag decides when the webhook renews its own certificates.
        &format!("{monitored}1h"),
    ] {
        rendered(&["--set", values, "--show-only", "templates/webhook.yaml"])
            .context(values.to_owned())?;
    }
    Ok(())
}

/// The pods of Mimeo's Jobs can run wherever the webhook can. But they also find a node if Mimeo's
/// pods may not share one.
#[test]
fn errands_run_where_the_webhook_does() -> Result<()> {
    let anywhere = json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]});
    let nodes = json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]});
    let webhook = json!({
        "hostNetwork": true, "nodeSelector": {"pool": "system"}, "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": nodes, "podAntiAffinity": anywhere}, "priorityClassName": "mine",
    });
    let values =
        json!({"webhook": webhook, "podSecurityContext": {"runAsUser": null, "runAsGroup": null}});
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("values.json");
    fs::write(&file, values.to_string())?;
    let objects = objects(&rendered(&[
        "--set",
        "crds.enabled=false",
        "--values",
        &file.display().to_string(),
    ])?)?;
    let pod = |kind: &str, name: &str| -> Result<Value> {
        let found = &find(&objects, kind, name)?["spec"];
        Ok(if kind == "Pod" {
            found.clone()
        } else {
            found["template"]["spec"].clone()
        })
    };
    let deployed = pod("Deployment", "mimeo-webhook")?;
    assert_eq!(deployed["affinity"]["podAntiAffinity"], anywhere);
    assert_eq!(
        deployed["securityContext"],
        json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}})
    );
    for errand in [pod("Job", "mimeo-unregister")?, pod("Pod", "mimeo-verify")?] {
        for same in [
            "hostNetwork",
            "dnsPolicy",
            "nodeSelector",
            "tolerations",
            "priorityClassName",
            "securityContext",
        ] {
            assert_eq!(errand[same], deployed[same], "{same}");
        }
        assert_eq!(errand["affinity"], json!({"nodeAffinity": nodes}));
        ensure!(errand["topologySpreadConstraints"].is_null());
    }
    Ok(())
}

/// A flag that is set twice would have no effect, or the manifests would contradict the programs.
#[test]
fn whatever_the_chart_tells_the_programs_nobody_can_tell_them_besides() -> Result<()> {
    let helpers = fs::read_to_string(chart().join("templates/_helpers.tpl"))?;
    for set in SETS {
        for object in objects(&rendered_set(set, &["--set", "crds.enabled=false"])?)? {
            if object["kind"] != "Deployment" {
                continue;
            }
            let extra = |name: &str| {
                // The sets of values themselves add these.
                matches!(
                    name,
                    "--pod-gate-wait"
                        | "--concurrency"
                        | "MIMEO_POD_GATE_MAX_HELD"
                        | "MIMEO_DELETION_LIMIT"
                )
            };
            let container = &object["spec"]["template"]["spec"]["containers"][0];
            let args = container["args"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            let args = args.filter_map(|arg| arg.split('=').next());
            let env = container["env"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|one| one["name"].as_str());
            for name in args.chain(env).filter(|name| !extra(name)) {
                ensure!(
                    helpers.contains(&format!("\"{name}\"")),
                    "{set}: {name} is not among the refused flags"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn whoever_installs_is_told_what_may_surprise() -> Result<()> {
    for (values, told) in [
        (
            "webhook.namespacesFailurePolicy=Fail,webhook.replicas=1",
            "WARNING: strict mode, with webhook.replicas 1",
        ),
        ("log.level=info", "WARNING: image.repository is not set"),
        ("webhook.replicas=0", "WARNING: webhook.replicas is 0"),
        (
            "metrics.prometheusRule.enabled=true",
            "WARNING: metrics.prometheusRule without metrics.serviceMonitor",
        ),
        (
            "networkPolicy.enabled=true,webhook.hostNetwork=true",
            "has no effect on pods in their node's network",
        ),
        (
            "rbac.sourceNamespaces={platform}",
            "The programs read sources only in platform, but they have the permission",
        ),
    ] {
        let notes = ask_helm(
            &["install", "mimeo", "--dry-run=client"],
            &["--set", values],
        )?;
        let notes = notes.map_err(|refusal| anyhow::anyhow!("{values}: {refusal}"))?;
        ensure!(notes.contains(told), "{values}: {notes}");
    }
    let pulled = [
        "--set",
        "image.repository=registry.example.com/mimeo,metrics.prometheusRule.enabled=true,metrics.podMonitor.enabled=true",
    ];
    let notes = ask_helm(&["install", "mimeo", "--dry-run=client"], &pulled)?.unwrap_or_default();
    ensure!(
        notes.contains("copies objects into the namespaces that rules select")
            && !notes.contains("WARNING"),
        "{notes}"
    );
    Ok(())
}

#[test]
fn definitions_are_those_of_the_manifests_and_stay() -> Result<()> {
    let mut crds = objects(&rendered(&["--show-only", "templates/crds.yaml"])?)?;
    assert_eq!(crds.len(), 4);
    for crd in &mut crds {
        assert_eq!(
            crd["metadata"]["annotations"],
            json!({"helm.sh/resource-policy": "keep"})
        );
        assert_eq!(
            crd["metadata"]["labels"]["app.kubernetes.io/managed-by"],
            "Helm"
        );
        let plural = crd["spec"]["names"]["plural"]
            .as_str()
            .context("no plural")?
            .to_owned();
        let plain = fs::read_to_string(workspace().join(format!("manifests/crds/{plural}.yaml")))?;
        let metadata = json!({"name": crd["metadata"]["name"]});
        crd["metadata"] = metadata;
        assert_eq!(*crd, serde_yaml::from_str::<Value>(&plain)?, "{plural}");
    }
    let gone = objects(&rendered(&[
        "--show-only",
        "templates/crds.yaml",
        "--set",
        "crds.keep=false",
    ])?)?;
    assert!(
        gone.iter()
            .all(|crd| crd["metadata"]["annotations"].is_null())
    );
    Ok(())
}

#[test]
fn versions_are_the_workspaces() -> Result<()> {
    let chart: Value = serde_yaml::from_str(&fs::read_to_string(chart().join("Chart.yaml"))?)?;
    for version in ["version", "appVersion"] {
        assert_eq!(chart[version], env!("CARGO_PKG_VERSION"));
    }
    // Both ways to install use the same image.
    let kustomization =
        fs::read_to_string(workspace().join("manifests/kustomize/kustomization.yaml"))?;
    let kustomization: Value = serde_yaml::from_str(&kustomization)?;
    assert_eq!(
        kustomization["images"][0]["newTag"],
        env!("CARGO_PKG_VERSION")
    );
    for (document, repository) in [
        ("README.md", LOADED),
        ("docs/start/quick-start.md", "registry.example.com/mimeo"),
        ("docs/how-to/install.md", "registry.example.com/mimeo"),
    ] {
        let text = fs::read_to_string(workspace().join(document))?;
        let built = format!(
            "docker build -t {repository}:{} .",
            env!("CARGO_PKG_VERSION")
        );
        ensure!(text.contains(&built), "{document} builds another image");
        let installed = format!("--set image.repository={repository}");
        ensure!(
            text.contains(&installed),
            "{document} installs another image"
        );
    }
    Ok(())
}

/// The repository of the image that the README builds and loads into a cluster's nodes.
const LOADED: &str = "localhost/mimeo";

#[test]
fn the_image_that_the_readme_loads_is_the_one_that_the_chart_runs() -> Result<()> {
    let readme = fs::read_to_string(workspace().join("README.md"))?;
    let image = format!("{LOADED}:{}", env!("CARGO_PKG_VERSION"));
    for load in [
        "kind load docker-image",
        "minikube image load",
        "k3d image import",
    ] {
        ensure!(
            readme.contains(&format!("{load} {image}")),
            "{load} takes another image"
        );
    }
    let all = objects(&rendered(&[
        "--set",
        &format!("image.repository={LOADED}"),
    ])?)?;
    for program in ["mimeo-webhook", "mimeo-reconciler"] {
        let pod = &find(&all, "Deployment", program)?["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        assert_eq!(container["image"], image.as_str(), "{program}");
        assert_eq!(container["imagePullPolicy"], "IfNotPresent", "{program}");
    }
    Ok(())
}

/// Returns the content of an annotation of the chart. It is YAML within YAML.
fn annotation(name: &str) -> Result<Vec<Value>> {
    let chart: Value = serde_yaml::from_str(&fs::read_to_string(chart().join("Chart.yaml"))?)?;
    let text = chart["annotations"][format!("artifacthub.io/{name}")]
        .as_str()
        .context(name.to_owned())?
        .to_owned();
    Ok(serde_yaml::from_str(&text)?)
}

#[test]
fn artifact_hub_is_told_what_the_chart_has() -> Result<()> {
    let mut definitions = BTreeSet::new();
    for entry in fs::read_dir(chart().join("files/crds"))? {
        let crd: Value = serde_yaml::from_str(&fs::read_to_string(entry?.path())?)?;
        for version in crd["spec"]["versions"].as_array().context("no versions")? {
            let [name, kind] =
                [&crd["metadata"]["name"], &crd["spec"]["names"]["kind"]].map(ToString::to_string);
            definitions.insert([name, kind, version["name"].to_string()]);
        }
    }
    let told = annotation("crds")?
        .into_iter()
        .map(|crd| ["name", "kind", "version"].map(|key| crd[key].to_string()));
    assert_eq!(told.collect::<BTreeSet<_>>(), definitions);
    let examples: BTreeSet<String> = annotation("crdsExamples")?
        .iter()
        .map(|one| one["kind"].to_string())
        .collect();
    assert_eq!(
        examples,
        definitions
            .iter()
            .map(|[_, kind, _]| kind.clone())
            .collect()
    );
    let image = format!("mimeo:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(
        annotation("images")?,
        [json!({"name": "mimeo", "image": image})]
    );
    ensure!(
        rendered(&[])?.contains(&format!("image: \"{image}\"")),
        "it is another one"
    );
    Ok(())
}

#[test]
fn the_quota_has_room_for_all_pods_of_the_systems_priority_classes() -> Result<()> {
    for (values, pods, classes) in [
        ("webhook.replicas=2", "10", &["system-cluster-critical"][..]),
        ("webhook.replicas=5", "15", &["system-cluster-critical"]),
        (
            "reconciler.priorityClassName=system-cluster-critical,reconciler.replicas=3",
            "15",
            &["system-cluster-critical"],
        ),
        (
            "reconciler.priorityClassName=system-node-critical",
            "12",
            &["system-cluster-critical", "system-node-critical"],
        ),
        (
            "webhook.priorityClassName=mine,reconciler.priorityClassName=system-node-critical",
            "10",
            &["system-node-critical"],
        ),
    ] {
        let objects = objects(&rendered(&[
            "--show-only",
            "templates/quota.yaml",
            "--set",
            values,
        ])?)?;
        let quota = &find(&objects, "ResourceQuota", "mimeo-critical-pods")?["spec"];
        assert_eq!(quota["hard"]["pods"], pods, "{values}");
        assert_eq!(
            quota["scopeSelector"]["matchExpressions"][0]["values"],
            json!(classes),
            "{values}"
        );
    }
    let none = rendered(&["--set", "webhook.priorityClassName=mine"])?;
    assert!(!none.contains("kind: ResourceQuota"));
    Ok(())
}

#[test]
fn labels_of_one_object_win_over_those_of_all() -> Result<()> {
    let text = rendered_set("everything", &["--set", "commonLabels.release=other"])?;
    let objects = objects(&text)?;
    for (kind, name, release) in [
        ("PrometheusRule", "mimeo", "prometheus"),
        ("Service", "mimeo-webhook", "other"),
    ] {
        assert_eq!(
            find(&objects, kind, name)?["metadata"]["labels"]["release"],
            release,
            "{kind}"
        );
    }
    let rule = text
        .split("---\n")
        .find(|text| text.contains("\nkind: PrometheusRule\n"))
        .context("no rule")?;
    assert_eq!(
        rule.matches("    release: ").count(),
        1,
        "a key stands there once"
    );
    Ok(())
}

#[tokio::test]
async fn an_api_server_takes_every_set() -> Result<()> {
    let control_plane = ControlPlane::builder().start().await?;
    let client = control_plane.client().await?;
    for name in [NAMESPACE, "platform", "team-a", "team-b", "monitoring"] {
        create_namespace(&client, name, &[]).await?;
    }
    for file in scenario::definitions_of_others()? {
        // Some objects are too large for the annotation in which a client-side apply records them.
        let file = file.display().to_string();
        scenario::kubectl(
            &control_plane,
            ["apply", "--server-side", "-f", file.as_str()],
        )?;
    }
    // The CRD of the policy's parameters must exist first.
    let crds = workspace().join("manifests/crds");
    scenario::kubectl(&control_plane, ["apply", "-k", &crds.display().to_string()])?;
    let folder = tempfile::tempdir()?;
    // The examples for Artifact Hub count, too.
    let examples =
        json!({"apiVersion": "v1", "kind": "List", "items": annotation("crdsExamples")?});
    let file = folder.path().join("examples.json");
    fs::write(&file, examples.to_string())?;
    let file = file.display().to_string();
    scenario::kubectl(
        &control_plane,
        [
            "apply",
            "--validate=strict",
            "--dry-run=server",
            "-f",
            file.as_str(),
        ],
    )?;
    for set in SETS {
        let file = folder.path().join(format!("{set}.yaml"));
        fs::write(&file, rendered_set(set, &["--set", "crds.enabled=false"])?)?;
        let file = file.display().to_string();
        let args = [
            "apply",
            "--server-side",
            "--validate=strict",
            "--dry-run=server",
            "-f",
            file.as_str(),
        ];
        let told = mimeo_tests::eventually(scenario::SOON, "the kinds to be served", || async {
            scenario::kubectl(&control_plane, args).map(Some)
        });
        told.await.with_context(|| set)?;
    }
    Ok(())
}
