//! `docs/reference/api.md`: the definitions as people read them, a section per object and a row per field.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use mimeo_model::marks::{COPY_MARKS, MARK_KEYS, MARKS};
use serde_json::{Map, Value};

const INTRODUCTION: &str = "\
<!-- Generated from the doc comments of shared/api, from lists of shared/model, and from examples.md of its tests; do not edit (make golden). -->

# The API

Mimeo has the kinds below, in API group `mimeo.dev`, version `v1alpha1`. `kubectl explain` describes each field in the same words, as in
`kubectl explain clusterreplication.spec.targets`. A rule can be as short as this:

    apiVersion: mimeo.dev/v1alpha1
    kind: ClusterReplication
    metadata: {name: registry}
    spec:
      sources: [{apiVersion: v1, kind: Secret, namespace: platform, name: registry}]
      targets: [{namespaceSelector: {}}]

You may leave out each field that is not *required*. A *set* has no item twice; a *list* may. The API server refuses a value that is not
among the listed choices. kubectl refuses an unknown field, unless you turn its strict validation off.
";

/// What rules make, row by row; it is the only part that is written by hand.
const EXAMPLES: &str = include_str!("examples.md");

/// The whole file.
pub(crate) fn render(definitions: &[CustomResourceDefinition]) -> String {
    let mut text = [INTRODUCTION, EXAMPLES].concat();
    for definition in definitions {
        let names = &definition.spec.names;
        let mut sections = Sections {
            kind: &names.kind,
            seen: BTreeMap::new(),
            found: Vec::new(),
        };
        let version =
            serde_json::to_value(&definition.spec.versions[0]).expect("a definition is plain data");
        let schema = &version["schema"]["openAPIV3Schema"];
        let short: Vec<String> = names
            .short_names
            .iter()
            .flatten()
            .map(|name| format!(", `{name}`"))
            .collect();
        let scope = if definition.spec.scope == "Cluster" {
            "Cluster-scoped"
        } else {
            "Namespaced"
        };
        let _ = write!(text, "\n## {}\n\n{}\n\n", names.kind, described(schema));
        let _ = writeln!(
            text,
            "{scope}. Names in kubectl: `{}`{}.",
            names.plural,
            short.concat()
        );
        for part in ["spec", "status"] {
            let mut waiting = vec![(part.to_owned(), schema["properties"][part].clone())];
            while let Some((path, schema)) = waiting.pop() {
                text += &sections.section(&path, &schema);
                // What an object is made of follows it, in the order of its fields.
                waiting.extend(sections.found.drain(..).rev());
            }
        }
    }
    text + &marks()
}

/// The labels and annotations that copies don't have of their sources, and those by which a copy of
/// another tool is known.
fn marks() -> String {
    let list = |keys: &[&str]| {
        keys.iter()
            .map(|key| format!("`{key}`"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut text = "
## What is never carried

Copies do not get the labels and annotations that say who manages an object, even if `include` names them. These are all keys in the domains below and in
their subdomains, and these keys: "
        .to_owned();
    let _ = writeln!(
        text,
        "{}. `set` may give a copy any of them except Mimeo's.\n",
        list(MARK_KEYS)
    );
    text += "| whose | domains |\n| --- | --- |\n";
    for (whose, domains) in MARKS {
        let _ = writeln!(text, "| {whose} | {} |", list(domains));
    }
    let _ = writeln!(
        text,
        "\nUnder `conflictPolicy: Adopt` an object with one of these keys counts as another tool's copy, and its content does not matter: {}.",
        list(COPY_MARKS)
    );
    text
}

/// The sections of one kind.
struct Sections<'a> {
    kind: &'a str,
    /// Where objects of the same fields are described first.
    seen: BTreeMap<String, String>,
    /// Objects that the section named.
    found: Vec<(String, Value)>,
}

impl Sections<'_> {
    fn section(&mut self, path: &str, schema: &Value) -> String {
        let mut text = format!("\n### {}\n\n", self.title(path));
        if !described(schema).is_empty() {
            let _ = write!(text, "{}\n\n", escaped(described(schema)));
        }
        let rules: Vec<String> = rules(schema)
            .iter()
            .map(|rule| format!("- {}\n", escaped(rule)))
            .collect();
        if !rules.is_empty() {
            let _ = writeln!(
                text,
                "The API server enforces these conditions:\n\n{}",
                rules.concat()
            );
        }
        text += "| field | type | default | what it is |\n| --- | --- | --- | --- |\n";
        let required: BTreeSet<&str> = strings(&schema["required"]).collect();
        let properties = schema["properties"].as_object().into_iter().flatten();
        let (needed, optional): (Vec<_>, Vec<_>) =
            properties.partition(|(name, _)| required.contains(name.as_str()));
        for (name, field) in needed.iter().chain(&optional) {
            let default = match field.get("default") {
                _ if required.contains(name.as_str()) && path.starts_with("spec") => {
                    "*required*".to_owned()
                }
                Some(default) => format!("`{default}`").replace('"', ""),
                None => String::new(),
            };
            let type_ = self.type_of(&format!("{path}.{name}"), field);
            let row = format!(
                "| `{name}` | {type_} | {default} | {} |",
                told(field).replace('|', "\\|")
            );
            let _ = writeln!(text, "{row}");
        }
        text
    }

    fn title(&self, path: &str) -> String {
        format!("{}: {path}", self.kind)
    }

    /// What the field's values are; objects have sections of their own.
    fn type_of(&mut self, path: &str, schema: &Value) -> String {
        if let Some(choices) = schema["enum"].as_array() {
            let choices = choices
                .iter()
                .filter_map(Value::as_str)
                .map(|choice| format!("`{choice}`"));
            return choices.collect::<Vec<_>>().join(", ");
        }
        match schema["type"].as_str().unwrap_or("any") {
            "array" => {
                let unordered = matches!(
                    schema["x-kubernetes-list-type"].as_str(),
                    Some("set" | "map")
                );
                let items = self.type_of(&format!("{path}[]"), &schema["items"]);
                format!("{} of {items}", if unordered { "set" } else { "list" })
            }
            "object" if schema["properties"].is_object() => self.link(path, schema),
            "object" if schema["additionalProperties"].is_object() => {
                format!(
                    "map of string to {}",
                    self.type_of(&format!("{path}{{}}"), &schema["additionalProperties"])
                )
            }
            type_ => schema["format"]
                .as_str()
                .filter(|_| type_ == "string")
                .unwrap_or(type_)
                .to_owned(),
        }
    }

    /// To where such an object is described: further below, unless one of the same fields was
    /// before.
    fn link(&mut self, path: &str, schema: &Value) -> String {
        let fields = [&schema["properties"], &schema["x-kubernetes-validations"]]
            .map(Value::to_string)
            .concat();
        let known = self.seen.get(&fields).cloned();
        let path = known.unwrap_or_else(|| {
            self.seen.insert(fields, path.to_owned());
            self.found.push((path.to_owned(), schema.clone()));
            path.to_owned()
        });
        // As GitHub makes anchors of headings.
        let kept = |c: &char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let anchor: String = self.title(&path).chars().filter(kept).collect();
        format!("[object](#{})", anchor.to_lowercase().replace(' ', "-"))
    }
}

fn described(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

/// The description, without the default that has a column, and what else the schema asks for.
fn told(schema: &Value) -> String {
    let mut text = described(schema).to_owned();
    if let Some(default) = schema.get("default") {
        text = text.replace(
            &format!(" Default: {}.", default.to_string().trim_matches('"')),
            "",
        );
    }
    text = escaped(&text);
    let mut asked: Vec<String> = limits(schema).into_iter().collect();
    asked.extend(limits(&schema["items"]).map(|limits| format!("each {limits}")));
    asked.extend(
        limits(&schema["additionalProperties"]).map(|limits| format!("each value {limits}")),
    );
    // Those of an object are in its section.
    asked.extend(
        rules(schema)
            .iter()
            .filter(|_| !schema["properties"].is_object())
            .map(|rule| escaped(rule)),
    );
    for (parts, each) in [("items", "each"), ("additionalProperties", "each value")] {
        let parts = Some(&schema[parts]).filter(|parts| !parts["properties"].is_object());
        asked.extend(
            parts
                .into_iter()
                .flat_map(rules)
                .map(|rule| format!("{each} {}", escaped(&rule))),
        );
    }
    if !asked.is_empty() {
        let _ = write!(text, " *{}.*", asked.join("; "));
    }
    text
}

/// Lengths, ranges and counts.
fn limits(schema: &Value) -> Option<String> {
    let schema: &Map<String, Value> = schema.as_object()?;
    let range = |[low, high]: [&str; 2], unit: &str| {
        let [low, high] = [low, high].map(|key| schema.get(key).and_then(Value::as_i64));
        match (low, high) {
            (None, None) => None,
            (Some(low), None) => Some(format!("at least {low}{unit}")),
            // Descriptions say how many there may be.
            (_, Some(high)) if described_in(schema, high) => None,
            (None, Some(high)) => Some(format!("at most {high}{unit}")),
            (Some(low), Some(high)) => Some(format!("{low} to {high}{unit}")),
        }
    };
    let found = [
        range(["minimum", "maximum"], ""),
        range(["minLength", "maxLength"], " characters"),
        range(["minItems", "maxItems"], " items"),
        range(["minProperties", "maxProperties"], " entries"),
    ];
    let found: Vec<String> = found.into_iter().flatten().collect();
    (!found.is_empty()).then(|| found.join(", "))
}

/// What CEL rules ask for, in their words.
fn rules(schema: &Value) -> Vec<String> {
    let rules = schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten();
    rules
        .filter_map(|rule| rule["message"].as_str())
        .map(str::to_owned)
        .collect()
}

fn described_in(schema: &Map<String, Value>, most: i64) -> bool {
    let words = [
        format!("At most {most}."),
        format!("at most {most}."),
        format!(" to {most}."),
    ];
    schema
        .get("description")
        .and_then(Value::as_str)
        .is_some_and(|text| words.iter().any(|word| text.contains(word)))
}

/// Asterisks as they are.
fn escaped(text: &str) -> String {
    text.replace('*', "\\*")
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}
