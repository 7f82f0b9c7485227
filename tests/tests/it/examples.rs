//! The folders of `examples/`: the commands of each README run on a real API server with both
//! programs, and lead to the end state in `expected.yaml`. The how-to pages show the same rules.

use std::{collections::BTreeSet, fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use mimeo_tests::{
    ControlPlane, NAMESPACE, Pair, eventually,
    scenario::{SOON, apply, definitions_of_others, helm},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::repository::{read, workspace};

/// Time limit for a command that depends on an earlier one. Aggregated roles and admission policies
/// take effect a moment after they are written.
const RETRIED: Duration = Duration::from_mins(2);

/// The end state of an example.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// Objects with these fields. A field with the value null is missing.
    #[serde(default)]
    present: Vec<Value>,
    #[serde(default)]
    absent: Vec<Value>,
    #[serde(default)]
    refused: Vec<Refused>,
}

/// A command that fails.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refused {
    command: String,
    /// A part of the output.
    message: String,
}

/// Returns the names of the folders. The folder that takes permissions from the programs is last.
fn folders() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(workspace().join("examples"))? {
        let entry = entry?;
        if entry.path().is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort_by_key(|name| (name == "least-privilege", name.clone()));
    Ok(names)
}

/// Returns the files of a folder with the extension `yaml`, as paths from the root of the
/// repository.
fn manifests(folder: &str) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(workspace().join(folder))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let path = format!("{folder}/{name}");
        if workspace().join(&path).is_dir() {
            found.extend(manifests(&path)?);
        } else if Path::new(&path)
            .extension()
            .is_some_and(|known| known == "yaml")
        {
            found.insert(path);
        }
    }
    Ok(found)
}

/// Returns the commands of a README: those that apply the example, and those that remove it.
fn commands(readme: &str) -> Result<[Vec<&str>; 2]> {
    let (applied, removed) = readme
        .split_once("\n## Remove\n")
        .context("no section Remove")?;
    Ok([applied, removed].map(|text| {
        let lines = text.lines().filter_map(|line| line.strip_prefix("    "));
        lines.collect()
    }))
}

fn objects(text: &str) -> Result<Vec<Value>> {
    let each = serde_yaml::Deserializer::from_str(text).map(Value::deserialize);
    Ok(each.collect::<Result<_, _>>()?)
}

/// Returns where an object differs from what is expected of it. An expected item of a list may be
/// anywhere in the list.
fn difference(expected: &Value, found: &Value, path: &str) -> Option<String> {
    match (expected, found) {
        (Value::Object(expected), Value::Object(_)) => expected
            .iter()
            .find_map(|(key, value)| difference(value, &found[key], &format!("{path}.{key}"))),
        (Value::Array(expected), Value::Array(found)) => expected.iter().find_map(|item| {
            let is_there = found.iter().any(|one| difference(item, one, "").is_none());
            (!is_there).then(|| format!("{path} has no {item}: {found:?}"))
        }),
        _ => (expected != found).then(|| format!("{path} is {found} and not {expected}")),
    }
}

/// A cluster with the chart installed, both programs, and the CRDs of other projects.
struct Cluster {
    /// It is dropped first, because its end still searches the cluster for planted values.
    _pair: Pair,
    control_plane: ControlPlane,
}

impl Cluster {
    async fn start() -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        let client = control_plane.client().await?;
        for crd in stand_ins() {
            apply(&client, &crd).await?;
        }
        let run = |command: &str| typed(&control_plane, command);
        for file in definitions_of_others()? {
            run(&format!(
                "kubectl apply --server-side -f {}",
                file.display()
            ))?;
        }
        run(&format!(
            "helm install mimeo manifests/chart --namespace {NAMESPACE} --create-namespace"
        ))?;
        let pair = Pair::builder()
            .installed_rights()
            .start(&control_plane)
            .await?;
        Ok(Self {
            control_plane,
            _pair: pair,
        })
    }

    /// Runs a command, again if it fails.
    async fn run(&self, command: &str) -> Result<()> {
        let mut last = None;
        let done = eventually(RETRIED, command, || {
            let output = typed(&self.control_plane, command);
            let done = output.is_ok();
            last = output.err();
            async move { Ok(done.then_some(())) }
        });
        done.await.map_err(|error| last.unwrap_or(error))
    }

    /// Reads an object that a manifest names.
    fn get(&self, object: &Value) -> Result<Value> {
        let mut name = json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": object["metadata"]["name"]}});
        if let Some(namespace) = object["metadata"].get("namespace") {
            name["metadata"]["namespace"] = namespace.clone();
        }
        let command = format!("kubectl get --ignore-not-found -o json -f - <<'EOF'\n{name}\nEOF\n");
        let output = typed(&self.control_plane, &command)?;
        // kubectl prints nothing, the object, or a list that has the object.
        if output.trim().is_empty() {
            return Ok(Value::Null);
        }
        let found: Value = serde_json::from_str(&output)?;
        Ok(if found["kind"] == "List" {
            found["items"][0].clone()
        } else {
            found
        })
    }

    async fn check(&self, expected: &Expected) -> Result<()> {
        for object in &expected.present {
            let mut last = String::new();
            let is_so = eventually(SOON, object, || {
                let missing = self
                    .get(object)
                    .map(|found| difference(object, &found, "").unwrap_or_default());
                last = missing.unwrap_or_else(|error| format!("{error:#}"));
                let done = last.is_empty();
                async move { Ok(done.then_some(())) }
            });
            is_so.await.with_context(|| last)?;
        }
        for object in &expected.absent {
            let found = self.get(object)?;
            ensure!(found.is_null(), "it exists: {found}");
        }
        for Refused { command, message } in &expected.refused {
            let refused = eventually(RETRIED, command, || {
                let output = typed(&self.control_plane, command);
                async move { Ok(output.err().map(|error| format!("{error:#}"))) }
            });
            let output = refused.await?;
            ensure!(output.contains(message), "{command}: {output}");
        }
        Ok(())
    }

    async fn apply_and_check(&self, name: &str, applied: Vec<&str>) -> Result<()> {
        for command in applied {
            self.run(command).await?;
        }
        let expected = read(&format!("examples/{name}/expected.yaml"))?;
        let expected: Expected = serde_yaml::from_str(&expected)?;
        ensure!(!expected.present.is_empty(), "nothing is expected");
        self.check(&expected).await
    }

    /// Applies an example, compares its end state, and removes the example in any case.
    async fn try_example(&self, name: &str) -> Result<()> {
        let readme = read(&format!("examples/{name}/README.md"))?;
        let [applied, removed] = commands(&readme)?;
        let tried = self.apply_and_check(name, applied).await;
        for command in removed {
            let done = self.run(command).await;
            // If the example failed, some of its objects may be missing.
            if tried.is_ok() {
                done?;
            }
        }
        tried
    }
}

/// Runs a command of a document in a shell, at the root of the repository.
fn typed(control_plane: &ControlPlane, command: &str) -> Result<String> {
    let (kubectl, helm) = (control_plane.kubectl()?, helm()?);
    let script =
        format!("kubectl() {{ \"$KUBECTL\" \"$@\"; }}\nhelm() {{ \"$HELM\" \"$@\"; }}\n{command}");
    let mut bash = Command::new("bash");
    bash.current_dir(workspace())
        .env("KUBECONFIG", control_plane.kubeconfig())
        .env("KUBECTL", kubectl.get_program())
        .env("HELM", helm.get_program())
        .args(["-c", &script]);
    for (name, value) in helm.get_envs().chain(kubectl.get_envs()) {
        if let Some(value) = value {
            bash.env(name, value);
        }
    }
    let output = bash.output()?;
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if !output.status.success() {
        bail!("{command}: {stdout}{stderr}");
    }
    Ok(stdout)
}

/// CRDs with the names of those of Argo CD and Flux. They permit any fields: these tools were not
/// run, and the tests don't fetch their CRDs.
fn stand_ins() -> [Value; 4] {
    [
        ("argoproj.io", "v1alpha1", "Application", "applications"),
        ("helm.toolkit.fluxcd.io", "v2", "HelmRelease", "helmreleases"),
        ("kustomize.toolkit.fluxcd.io", "v1", "Kustomization", "kustomizations"),
        ("source.toolkit.fluxcd.io", "v1", "GitRepository", "gitrepositories"),
    ]
    .map(|(group, version, kind, plural)| {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
            },
        })
    })
}

#[tokio::test]
async fn each_example_leads_to_its_end_state_and_can_be_removed() -> Result<()> {
    let cluster = Cluster::start().await?;
    let mut failed = Vec::new();
    for name in folders()? {
        if let Err(error) = cluster.try_example(&name).await {
            failed.push(format!("examples/{name}: {error:#}"));
        }
    }
    ensure!(failed.is_empty(), "{failed:#?}");
    Ok(())
}

#[test]
fn each_how_to_with_manifests_has_an_example_and_links_to_it() -> Result<()> {
    let folders: BTreeSet<String> = folders()?.into_iter().collect();
    for entry in fs::read_dir(workspace().join("docs/how-to"))? {
        let path = entry?.path();
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let text = fs::read_to_string(&path)?;
        let shows = text
            .lines()
            .any(|line| line.trim_start().starts_with("apiVersion: "));
        ensure!(!shows || folders.contains(&name), "no example for {name}");
        let link = format!("](../../examples/{name}/README.md)");
        ensure!(
            folders.contains(&name) == text.contains(&link),
            "{name}: no link to its example"
        );
    }
    let index = read("examples/README.md")?;
    for name in &folders {
        ensure!(
            index.contains(&format!("]({name}/README.md)")),
            "{name} is not in the index"
        );
        ensure!(
            workspace().join(format!("docs/how-to/{name}.md")).exists(),
            "no page for {name}"
        );
    }
    Ok(())
}

/// A reader may take a rule from the page or from the folder.
#[test]
fn a_how_to_and_its_example_show_the_same_rules() -> Result<()> {
    let mut same = 0;
    for name in folders()? {
        let page = read(&format!("docs/how-to/{name}.md"))?;
        let folder = format!("examples/{name}");
        let readme =
            read(&format!("{folder}/README.md"))? + &read(&format!("{folder}/expected.yaml"))?;
        let shown = super::docs::rules_of(&page)?;
        for file in manifests(&folder)? {
            let part = file.strip_prefix(&format!("{folder}/")).unwrap_or(&file);
            let whole = part.split_once('/').map_or(part, |(whole, _)| whole);
            ensure!(readme.contains(whole), "{file}: the README doesn't name it");
            if part == "expected.yaml" {
                continue;
            }
            for object in objects(&read(&file)?)? {
                let is = |one: &&Value| {
                    one["kind"] == object["kind"]
                        && one["metadata"]["name"] == object["metadata"]["name"]
                };
                if let Some(shown) = shown.iter().find(is) {
                    assert_eq!(*shown, object, "{file} differs from the page");
                    same += 1;
                }
            }
        }
    }
    ensure!(same > 4, "only {same} objects are on both");
    Ok(())
}

/// Returns a key that the values of the chart lack. An empty map there may have any keys.
fn unknown_key(given: &Value, chart: &Value, path: &str) -> Option<String> {
    let (given, chart) = (given.as_object()?, chart.as_object()?);
    given.iter().find_map(|(key, value)| {
        let path = format!("{path}.{key}");
        match chart.get(key) {
            Some(known) => unknown_key(value, known, &path),
            None => (!chart.is_empty()).then_some(path),
        }
    })
}

/// Returns the objects of an example, also of its end state, and their specs.
fn objects_of(folder: &str) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for file in manifests(folder)? {
        for object in objects(&read(&file)?)? {
            let present = object["present"].as_array().cloned();
            found.extend(present.unwrap_or_default());
            found.extend([object["spec"].clone(), object]);
        }
    }
    Ok(found)
}

/// Checks that a part of an object on a page is in the example of this page.
fn is_in_example(part: &Value, name: &str) -> Result<()> {
    let folder = format!("examples/{name}");
    let chart: Value = serde_yaml::from_str(&read("manifests/chart/values.yaml")?)?;
    let has_key = |part: &Map<String, Value>| part.keys().any(|key| chart.get(key).is_some());
    let (file, part) = if part.as_object().is_some_and(has_key) {
        let unknown = unknown_key(part, &chart, "");
        ensure!(unknown.is_none(), "the chart has no value {unknown:?}");
        ("values.yaml", part.clone())
    } else if part.get("resources").is_some() {
        let text = part.to_string();
        let bases = text
            .split('"')
            .filter_map(|text| text.strip_prefix("<mimeo>/"));
        for base in bases {
            ensure!(workspace().join(base).is_dir(), "there is no {base}");
        }
        let text = text.replace("<mimeo>", "../..");
        ("kustomization.yaml", serde_json::from_str(&text)?)
    } else {
        // A list is one of rules.
        let part = if part.is_array() {
            json!({"rules": part})
        } else {
            part.clone()
        };
        let mut objects = objects_of(&folder)?.into_iter();
        let found = objects.any(|object| difference(&part, &object, "").is_none());
        ensure!(found, "no object in {folder} has it");
        return Ok(());
    };
    if workspace().join(&folder).is_dir() {
        let whole: Value = serde_yaml::from_str(&read(&format!("{folder}/{file}"))?)?;
        let difference = difference(&part, &whole, "");
        ensure!(difference.is_none(), "{folder}/{file}: {difference:?}");
    }
    Ok(())
}

/// A page also shows parts of objects: values of the chart, kustomizations, rules of roles.
#[test]
fn each_part_of_an_object_in_a_how_to_is_in_its_example() -> Result<()> {
    let mut count = 0;
    for entry in fs::read_dir(workspace().join("docs/how-to"))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        for part in super::docs::parts_of(&fs::read_to_string(&path)?)? {
            is_in_example(&part, &name).with_context(|| format!("{name}: {part}"))?;
            count += 1;
        }
    }
    ensure!(count > 10, "only {count} parts were found");
    Ok(())
}

#[test]
fn a_key_that_the_chart_lacks_is_found() {
    let chart = json!({"a": {"b": 1, "c": {}, "d": []}});
    for (given, unknown) in [
        (json!({"a": {"b": 2, "c": {"x": 1}, "d": [{"x": 1}]}}), None),
        (json!({"a": {"x": 1}}), Some(".a.x")),
        (json!({"a": {}, "x": {}}), Some(".x")),
    ] {
        assert_eq!(unknown_key(&given, &chart, "").as_deref(), unknown);
    }
}

#[test]
fn a_difference_is_found_in_fields_and_in_lists() {
    let found = json!({"a": [{"x": 1, "y": 2}, {"x": 3}], "b": {"c": "d"}});
    for (expected, differs) in [
        (json!({"a": [{"x": 3}], "b": {"e": null}}), false),
        (json!({"a": [{"y": 2}]}), false),
        (json!({"a": [{"x": 4}]}), true),
        (json!({"b": {"c": null}}), true),
        (json!({"b": {"c": "e"}}), true),
        (json!({"f": {"g": 1}}), true),
    ] {
        assert_eq!(
            difference(&expected, &found, "").is_some(),
            differs,
            "{expected}"
        );
    }
}
