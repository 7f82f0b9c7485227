//! Objects in YAML or JSON files, for the commands that answer before anything is applied.
//!
//! A file may have several documents and v1 Lists. Objects of Mimeo's kinds are completed as the API
//! server completes them (`schema`). An error names the file.

mod schema;

use std::{
    collections::BTreeMap,
    fmt,
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use mimeo_api::names::{API_VERSION, GROUP};
use mimeo_model::{
    id::RuleId,
    kind::GroupVersionKind,
    source::{SourceRef, SourceSelector},
};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

/// The flags that name files, with kubectl's meaning.
#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// File or directory with rules, grants, sources and namespaces, or - for standard input; may
    /// be repeated
    #[arg(
        long = "filename",
        short = 'f',
        value_name = "FILE|DIR|-",
        required = true
    )]
    pub(crate) paths: Vec<PathBuf>,
    /// Read the subdirectories, too
    #[arg(long, short = 'R')]
    pub(crate) recursive: bool,
}

/// Group, kind, namespace (empty for cluster-scoped objects) and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            namespace,
            name,
            ..
        } = self;
        if namespace.is_empty() {
            write!(f, "{kind}/{name}")
        } else {
            write!(f, "{kind}/{namespace}/{name}")
        }
    }
}

/// An object, and the file that has it.
#[derive(Clone, Debug)]
pub(crate) struct InFile {
    pub(crate) object: Value,
    pub(crate) file: String,
}

/// The objects of all files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files(BTreeMap<Key, InFile>);

/// The kinds of Mimeo that files may hold.
const KINDS: [&str; 4] = [
    "ClusterReplication",
    "Replication",
    "ReplicationGrant",
    "TransformPolicy",
];

impl Files {
    /// Reads files and directories. `namespace` is for objects without one, as `kubectl -n` means it.
    pub(crate) fn read(args: &FileArgs, namespace: Option<&str>) -> Result<Self> {
        let mut files = Self::default();
        for path in &args.paths {
            if path.as_os_str() == "-" {
                let mut text = String::new();
                std::io::stdin()
                    .read_to_string(&mut text)
                    .context("can't read standard input")?;
                files.add(&text, "standard input", namespace)?;
                continue;
            }
            let found = listed(path, args.recursive, &[])?;
            if found.is_empty() {
                bail!(
                    "{} has no file that ends with .yaml, .yml or .json{}",
                    path.display(),
                    if args.recursive {
                        ""
                    } else {
                        "; -R reads its subdirectories, too"
                    }
                );
            }
            files.read_all(&found, namespace)?;
        }
        Ok(files)
    }

    /// Adds the objects of these files.
    pub(crate) fn read_all(&mut self, paths: &[PathBuf], namespace: Option<&str>) -> Result<()> {
        for path in paths {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("can't read {}", path.display()))?;
            self.add(&text, &path.display().to_string(), namespace)?;
        }
        Ok(())
    }

    /// Adds the objects of one file's text.
    pub(crate) fn add(&mut self, text: &str, file: &str, namespace: Option<&str>) -> Result<()> {
        let mut any = false;
        for document in documents(text).with_context(|| format!("{file} is no valid YAML"))? {
            for object in unfolded(document) {
                self.add_object(object, file, namespace)
                    .with_context(|| file.to_owned())?;
                any = true;
            }
        }
        if !any {
            bail!("{file} has no object in it");
        }
        Ok(())
    }

    fn add_object(&mut self, mut object: Value, file: &str, namespace: Option<&str>) -> Result<()> {
        let key = key(&object, namespace)?;
        if key.group == GROUP {
            check_own_kind(&object, &key)?;
            let unknown = schema::complete(&key.kind, &mut object);
            if !unknown.is_empty() {
                bail!("{key} has unknown fields: {}", unknown.join(", "));
            }
        }
        if !key.namespace.is_empty() {
            object["metadata"]["namespace"] = json!(key.namespace);
        }
        if key.group.is_empty() && key.kind == "Secret" {
            complete_secret(&mut object).with_context(|| key.to_string())?;
        }
        let in_file = InFile {
            object,
            file: file.to_owned(),
        };
        if let Some(other) = self.0.insert(key.clone(), in_file) {
            bail!("{key} is also in {}; keep one of both", other.file);
        }
        Ok(())
    }

    /// All objects, by kind, namespace and name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &InFile)> {
        self.0.iter()
    }

    /// The objects of one of Mimeo's kinds.
    pub(crate) fn of_kind(&self, kind: &str) -> impl Iterator<Item = (&Key, &InFile)> {
        self.iter()
            .filter(move |(key, _)| key.group == GROUP && key.kind == kind)
    }

    /// The namespaces.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = (&Key, &InFile)> {
        self.iter()
            .filter(|(key, _)| key.group.is_empty() && key.kind == "Namespace")
    }

    /// The object of a kind with this namespace and name, in any version of the kind.
    pub(crate) fn object(
        &self,
        gvk: &GroupVersionKind,
        namespace: &str,
        name: &str,
    ) -> Option<&InFile> {
        self.0.get(&Key {
            group: gvk.group.to_string(),
            kind: gvk.kind.to_string(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// The object that a rule names as its source.
    pub(crate) fn source(&self, source: &SourceRef) -> Option<&InFile> {
        self.object(&source.gvk, &source.namespace, &source.name)
    }

    /// The objects of the selector's kind in its namespace, and whether it selects each.
    pub(crate) fn candidates<'a>(
        &'a self,
        selector: &'a SourceSelector,
    ) -> impl Iterator<Item = (&'a InFile, bool)> {
        let SourceSelector {
            gvk,
            namespace,
            selector: labels,
        } = selector;
        self.iter()
            .filter(move |(key, _)| {
                *key.group == *gvk.group && *key.kind == *gvk.kind && *key.namespace == **namespace
            })
            .map(move |(key, found)| {
                let label = |key: &str| found.object["metadata"]["labels"][key].as_str();
                let selected = labels.matches_by(label) && !selector.passes_over(&key.name);
                (found, selected)
            })
    }

    /// The file of a rule.
    pub(crate) fn file_of(&self, rule: &RuleId) -> Option<&str> {
        let key = Key {
            group: GROUP.to_owned(),
            kind: rule.kind.to_string(),
            namespace: rule.namespace.as_deref().unwrap_or_default().to_owned(),
            name: rule.name.to_string(),
        };
        Some(&self.0.get(&key)?.file)
    }
}

/// The manifests at a path: the file itself, or those in the directory, sorted. Files with the
/// names in `except` are left out.
pub(crate) fn listed(path: &Path, recursive: bool, except: &[&str]) -> Result<Vec<PathBuf>> {
    let can_t_read = || format!("can't read {}", path.display());
    if !std::fs::metadata(path).with_context(can_t_read)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).with_context(can_t_read)? {
        let entry = entry.with_context(can_t_read)?;
        let path = entry.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        let name = path.file_name().and_then(|name| name.to_str());
        if path.is_dir() {
            // A link to a folder could lead back to this one.
            if recursive && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.extend(listed(&path, recursive, except)?);
            }
        } else if matches!(extension, Some("yaml" | "yml" | "json"))
            && !name.is_some_and(|name| except.contains(&name))
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The place of an error, without the values that its message may quote.
fn unquoted(error: serde_yaml::Error) -> anyhow::Error {
    let message = error.to_string();
    match error.location() {
        Some(place) if message.contains("invalid ") => {
            anyhow!(
                "line {}, column {}: the value doesn't fit its type",
                place.line(),
                place.column()
            )
        }
        _ => error.into(),
    }
}

/// The documents of a text, without empty ones. JSON is YAML, too.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>> {
    let mut documents = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        // This type refuses a key that occurs twice. JSON values would keep the last one.
        let mut document = serde_yaml::Value::deserialize(document).map_err(unquoted)?;
        document.apply_merge()?;
        if !document.is_null() {
            documents.push(serde_json::to_value(document)?);
        }
    }
    Ok(documents)
}

/// The items of a List, or the object itself.
pub(crate) fn unfolded(mut document: Value) -> Vec<Value> {
    let is_list = document["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("List"));
    match document.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if is_list => items.into_iter().flat_map(unfolded).collect(),
        Some(items) => {
            document["items"] = items;
            vec![document]
        }
        None => vec![document],
    }
}

/// The key of an object. `namespace` is for an object without one.
pub(crate) fn key(object: &Value, namespace: Option<&str>) -> Result<Key> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let (Some(api_version), Some(kind)) = (text("/apiVersion"), text("/kind")) else {
        bail!("a document is no Kubernetes object: it needs the fields apiVersion and kind");
    };
    let gvk = GroupVersionKind::parse(api_version, kind).map_err(anyhow::Error::msg)?;
    let Some(name) = text("/metadata/name").filter(|name| !name.is_empty()) else {
        bail!("an object of kind {kind} has no metadata.name");
    };
    let namespace = match (&*gvk.group, kind) {
        ("", "Namespace") | (GROUP, "ClusterReplication" | "TransformPolicy") => "",
        (GROUP, _) => match text("/metadata/namespace").or(namespace) {
            Some(namespace) => namespace,
            None => bail!("{kind}/{name} has no metadata.namespace; add it, or use -n NAMESPACE"),
        },
        ("", "Secret" | "ConfigMap") => text("/metadata/namespace")
            .or(namespace)
            .unwrap_or("default"),
        // It may be cluster-scoped.
        _ => text("/metadata/namespace").unwrap_or_default(),
    };
    Ok(Key {
        group: gvk.group.to_string(),
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Refuses a kind or a version that Mimeo doesn't have.
fn check_own_kind(object: &Value, key: &Key) -> Result<()> {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    if version != API_VERSION {
        bail!("{key} has apiVersion {version}; this kubectl mimeo knows {API_VERSION}");
    }
    if !KINDS.contains(&&*key.kind) {
        bail!(
            "{API_VERSION} has no kind {}; its kinds are {}",
            key.kind,
            KINDS.join(", ")
        );
    }
    Ok(())
}

/// Completes a Secret as the API server does: `stringData` becomes data, and the type is set.
fn complete_secret(secret: &mut Value) -> Result<()> {
    let Some(object) = secret.as_object_mut() else {
        return Ok(());
    };
    if let Some(plain) = object.remove("stringData").filter(|plain| !plain.is_null()) {
        let plain: Map<String, Value> = serde_json::from_value(plain)
            .ok()
            .context("stringData must be a map of texts")?;
        let data = object.entry("data").or_insert(Value::Null);
        if data.is_null() {
            *data = json!({});
        }
        for (key, value) in plain {
            let Some(text) = value.as_str() else {
                bail!("stringData[{key}] must be a text, in quotes");
            };
            let bytes = k8s_openapi::ByteString(text.as_bytes().to_vec());
            data[&*key] = serde_json::to_value(bytes)?;
        }
    }
    object.entry("type").or_insert_with(|| json!("Opaque"));
    serde_json::from_value::<k8s_openapi::api::core::v1::Secret>(secret.clone())
        .ok()
        .context("it is no valid Secret: data must be a map of texts in base64")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(text: &str) -> Result<Files> {
        let mut files = Files::default();
        files.add(text, "a.yaml", None)?;
        Ok(files)
    }

    #[track_caller]
    fn refused(text: &str, words: &str) {
        let error = add(text).err().map(|error| format!("{error:#}"));
        let error = error.unwrap_or_default();
        assert!(
            error.contains("a.yaml") && error.contains(words),
            "{error:?}"
        );
    }

    #[test]
    fn each_mistake_is_named_with_its_file() {
        refused("", "has no object in it");
        refused("# nothing\n---\n", "has no object in it");
        refused("a: [b", "no valid YAML");
        refused("a: 1\na: 2", "no valid YAML");
        refused("a: 1", "needs the fields apiVersion and kind");
        refused("{apiVersion: v1, kind: Secret}", "no metadata.name");
        refused(
            "{apiVersion: mimeo.dev/v1alpha1, kind: ClusterReplicaton, metadata: {name: a, namespace: b}}",
            "its kinds are ClusterReplication",
        );
        refused(
            "{apiVersion: mimeo.dev/v1, kind: ClusterReplication, metadata: {name: a}}",
            "knows mimeo.dev/v1alpha1",
        );
        refused(
            "{apiVersion: mimeo.dev/v1alpha1, kind: Replication, metadata: {name: a}}",
            "no metadata.namespace",
        );
        refused(
            "{apiVersion: mimeo.dev/v1alpha1, kind: ClusterReplication, metadata: {name: a}, spec: {source: []}}",
            "unknown fields: spec.source",
        );
        refused(
            "{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {k: no base64}}",
            "Secret/default/a: it is no valid Secret",
        );
        let twice = "{apiVersion: v1, kind: Namespace, metadata: {name: a}}";
        refused(&format!("{twice}\n---\n{twice}"), "is also in a.yaml");
    }

    #[test]
    fn a_list_has_its_items_and_a_secret_its_text_as_data() -> Result<()> {
        let files = add(
            "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Secret, metadata: {name: a}, stringData: {k: v}}]}",
        )?;
        let (key, found) = files.iter().next().context("an object")?;
        assert_eq!(key.to_string(), "Secret/default/a");
        assert_eq!(found.object["data"], json!({"k": "dg=="}));
        assert_eq!(found.object["type"], "Opaque");
        assert!(found.object.get("stringData").is_none());
        Ok(())
    }
}
