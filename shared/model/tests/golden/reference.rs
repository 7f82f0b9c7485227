//! `docs/reference/api.md`: the CRDs as people read them, with a section for each object and an item
//! for each field.
//!
//! Many objects have the same fields. The page describes a field once. A later section links to the
//! section with the same field, and adds only the sentences that are new.

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

The kinds are in API group `mimeo.dev`, version `v1alpha1`. `kubectl explain` describes each field in the same words, as in
`kubectl explain clusterreplication.spec.targets`. A rule can be as short as this:

    apiVersion: mimeo.dev/v1alpha1
    kind: ClusterReplication
    metadata: {name: registry}
    spec:
      sources: [{apiVersion: v1, kind: Secret, namespace: platform, name: registry}]
      targets: [{namespaceSelector: {}}]

A field is optional unless it is *required*. A set has no item twice. The API server refuses other values than the listed choices. kubectl refuses
unknown fields, unless you turn its strict validation off.
";

/// What rules make, row by row; it is the only part that is written by hand.
const EXAMPLES: &str = include_str!("examples.md");

/// A text that many fields accept.
struct Format {
    name: &'static str,
    size: &'static str,
    meaning: &'static str,
    /// The beginning of the condition in the schema.
    condition: &'static str,
}

const FORMATS: &[Format] = &[
    Format {
        name: "API version",
        size: "1 to 317 characters",
        meaning: "`v1`, or a group, \"/\" and a version, as in `apps/v1`",
        condition: "must be a version of the core group or a group",
    },
    Format {
        name: "kind",
        size: "1 to 63 characters",
        meaning: "in CamelCase and singular, as in `Secret`",
        condition: "must be a kind in CamelCase",
    },
    Format {
        name: "name",
        size: "1 to 253 characters",
        meaning: "the name of an object, without \"/\" and \"%\"",
        condition: "must be the name of an object without its namespace and kind",
    },
    Format {
        name: "name glob",
        size: "1 to 253 characters",
        meaning: "likewise, with `*` for any characters and `?` for one",
        condition: "must be the name of an object, in which *",
    },
    Format {
        name: "namespace",
        size: "1 to 63 characters",
        meaning: "lower-case letters, digits and \"-\", with a letter or digit at both ends",
        condition: "must be the name of a namespace, as in team-a",
    },
    Format {
        name: "namespace glob",
        size: "1 to 63 characters",
        meaning: "lower-case letters, digits, \"-\", `*` for any characters and `?` for one",
        condition: "must be the name of a namespace, in which *",
    },
    Format {
        name: "RE2",
        size: "1 to 256 characters",
        meaning: "a regular expression in RE2's syntax, without flags and named classes",
        condition: "must be a regular expression in RE2's syntax, without flags and named classes",
    },
    Format {
        name: "key glob",
        size: "1 to 317 characters",
        meaning: "letters, digits, \"-\", \"_\", \".\", \"/\", `*` and `?`, as in `example.com/*`",
        condition: "must be a key, in which * stands for any characters and ? for one, as in \
            example.com/*",
    },
    Format {
        name: "data key",
        size: "1 to 253 characters",
        meaning: "letters, digits, \"-\", \"_\" and \".\", as in `tls.crt`",
        condition: "must be a key, as in tls.crt",
    },
    Format {
        name: "data key glob",
        size: "1 to 253 characters",
        meaning: "likewise, with `*` and `?`",
        condition: "must be a key, in which * stands for any characters and ? for one, as in tls.*",
    },
    Format {
        name: "finalizer",
        size: "1 to 317 characters",
        meaning: "a domain, \"/\" and a name, as in `example.com/cleanup`",
        condition: "must be a domain, \"/\" and a name",
    },
    Format {
        name: "JSON pointer",
        size: "1 to 1024 characters",
        meaning: "as RFC 6901 says, as in `/data/key`",
        condition: "must be a JSON pointer (RFC 6901)",
    },
];

/// The whole file.
pub(crate) fn render(definitions: &[CustomResourceDefinition]) -> String {
    let mut text = [INTRODUCTION, EXAMPLES].concat();
    let mut page = Page::default();
    for definition in definitions {
        text += &page.kind(definition);
    }
    text + &formats() + &marks()
}

fn formats() -> String {
    let mut text = "\n## Formats\n\n".to_owned();
    for format in FORMATS {
        let (name, meaning, size) = (format.name, format.meaning, format.size);
        let _ = writeln!(text, "- **{name}**: {meaning}; {size}");
    }
    text
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

/// A field of an object.
struct Field {
    name: String,
    type_: String,
    /// Title of the section that describes the object in the field.
    link: Option<String>,
    /// Whether the field is required, or its default.
    presence: String,
    text: String,
    limits: String,
}

impl Field {
    fn item(&self, text: &str) -> String {
        let type_ = match &self.link {
            Some(title) => format!("[{}](#{})", self.type_, anchor(title)),
            None => self.type_.clone(),
        };
        format!("- **`{}`**: {type_}{}. {text}\n", self.name, self.presence)
    }

    fn described(&self) -> String {
        self.item(&format!("{}{}", self.text, self.limits))
    }
}

/// What an earlier section says of a field.
enum Known {
    Same,
    /// The same, and these sentences.
    And(String),
}

/// An object that the page describes.
struct Section {
    title: String,
    fields: Vec<Field>,
    conditions: Vec<String>,
}

impl Section {
    fn known(&self, field: &Field) -> Option<Known> {
        let here = self.fields.iter().find(|one| {
            (&one.name, &one.type_, &one.presence, &one.limits)
                == (&field.name, &field.type_, &field.presence, &field.limits)
        })?;
        if (&here.text, &here.link) == (&field.text, &field.link) {
            return Some(Known::Same);
        }
        let before: BTreeSet<&str> = sentences(&here.text).collect();
        let now: BTreeSet<&str> = sentences(&field.text).collect();
        let mut new = String::new();
        for sentence in sentences(&field.text).filter(|one| !before.contains(one)) {
            new.extend([" ", sentence, "."]);
        }
        before.is_subset(&now).then_some(Known::And(new))
    }

    fn known_fields(&self, fields: &[Field]) -> usize {
        fields
            .iter()
            .filter(|field| self.known(field).is_some())
            .count()
    }
}

/// The sections so far.
#[derive(Default)]
struct Page {
    sections: Vec<Section>,
    /// The title of the section of each object, by its fields.
    objects: BTreeMap<String, String>,
    /// All descriptions so far.
    descriptions: BTreeSet<String>,
}

impl Page {
    fn kind(&mut self, definition: &CustomResourceDefinition) -> String {
        let names = &definition.spec.names;
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
        let mut text = format!(
            "\n## {}\n\n{}\n\n{scope}. Names in kubectl: `{}`{}.\n",
            names.kind,
            escaped(described(schema)),
            names.plural,
            short.concat()
        );
        for part in ["spec", "status"] {
            let mut waiting = vec![(part.to_owned(), schema["properties"][part].clone())];
            while let Some((path, schema)) = waiting.pop() {
                let mut found = Vec::new();
                text += &self.section(&names.kind, &path, &schema, &mut found);
                // The objects in the fields follow, in the order of the fields.
                waiting.extend(found.into_iter().rev());
            }
        }
        text
    }

    /// Returns the text of a section. Adds the objects in its fields to `found`, unless a section
    /// describes them already.
    fn section(
        &mut self,
        kind: &str,
        path: &str,
        schema: &Value,
        found: &mut Vec<(String, Value)>,
    ) -> String {
        let title = format!("{kind}: {path}");
        let fields = self.fields(kind, path, schema, found);
        let conditions = rules(schema);
        let mut text = format!("\n### {title}\n\n");
        let description = described(schema);
        if !description.is_empty() && self.descriptions.insert(description.to_owned()) {
            let _ = writeln!(text, "{}\n", escaped(description));
        }
        let properties = schema["properties"].as_object().into_iter().flatten();
        self.descriptions
            .extend(properties.map(|(_, field)| described(field).to_owned()));
        let earlier = self.earlier(path, &fields);
        text += &earlier.map_or_else(String::new, |earlier| same(earlier, &fields, &conditions));
        if !conditions.is_empty() && earlier.is_none_or(|one| one.conditions != conditions) {
            text += "The API server enforces these conditions:\n\n";
            for condition in &conditions {
                let _ = writeln!(text, "- {}", escaped(condition));
            }
            text += "\nFields:\n\n";
        }
        for field in &fields {
            match earlier.and_then(|earlier| Some((earlier, earlier.known(field)?))) {
                Some((_, Known::Same)) => {}
                Some((earlier, Known::And(more))) => {
                    let there = format!("As [there](#{}).{more}", anchor(&earlier.title));
                    text += &field.item(&there);
                }
                None => text += &field.described(),
            }
        }
        self.sections.push(Section {
            title,
            fields,
            conditions,
        });
        text.truncate(text.trim_end().trim_end_matches("Fields:").trim_end().len());
        text + "\n"
    }

    /// Returns the section that describes most of these fields: of the same part of another kind,
    /// or of any object with two of them.
    fn earlier(&self, path: &str, fields: &[Field]) -> Option<&Section> {
        let twin = format!(": {path}");
        let known = |section: &&Section| section.known_fields(fields);
        // Of equal ones the first counts.
        let all = || self.sections.iter().rev();
        let twins = all().filter(|one| one.title.ends_with(&twin));
        let twin = twins.max_by_key(known).filter(|one| known(one) > 0);
        twin.or_else(|| all().max_by_key(known).filter(|one| known(one) > 1))
    }

    fn fields(
        &mut self,
        kind: &str,
        path: &str,
        schema: &Value,
        found: &mut Vec<(String, Value)>,
    ) -> Vec<Field> {
        let required: BTreeSet<&str> = strings(&schema["required"]).collect();
        let properties = schema["properties"].as_object().into_iter().flatten();
        let (needed, optional): (Vec<_>, Vec<_>) =
            properties.partition(|(name, _)| required.contains(name.as_str()));
        let of_spec = path.starts_with("spec");
        let mut fields = Vec::new();
        for (name, schema) in needed.into_iter().chain(optional) {
            let presence = match schema.get("default") {
                _ if required.contains(name.as_str()) && of_spec => ", *required*".to_owned(),
                Some(default) => format!(", default `{default}`").replace('"', ""),
                None => String::new(),
            };
            let object = object_in(&format!("{kind}: {path}.{name}"), schema);
            let link = object.map(|(title, object)| self.place(title, object, found));
            fields.push(Field {
                name: name.clone(),
                type_: type_of(schema),
                link,
                presence,
                text: text_of(schema),
                limits: if of_spec {
                    limits_of(schema)
                } else {
                    String::new()
                },
            });
        }
        fields
    }

    /// Returns the title of the section with the object's fields. It is a new section unless an
    /// object with the same fields has one.
    fn place(&mut self, title: String, object: &Value, found: &mut Vec<(String, Value)>) -> String {
        let fields = [&object["properties"], &object["x-kubernetes-validations"]]
            .map(Value::to_string)
            .concat();
        if let Some(known) = self.objects.get(&fields) {
            return known.clone();
        }
        let path = title.split_once(": ").map_or("", |(_, path)| path);
        found.push((path.to_owned(), object.clone()));
        self.objects.insert(fields, title.clone());
        title
    }
}

/// Says which fields an earlier section describes in the same words.
fn same(earlier: &Section, fields: &[Field], conditions: &[String]) -> String {
    let names: Vec<String> = fields
        .iter()
        .filter(|field| matches!(earlier.known(field), Some(Known::Same)))
        .map(|field| format!("`{}`", field.name))
        .collect();
    let link = format!("[{}](#{})", earlier.title, anchor(&earlier.title));
    let mut text = String::new();
    if names.len() == fields.len() && fields.len() == earlier.fields.len() {
        let _ = write!(text, "The fields of {link}.");
    } else if !names.is_empty() {
        let _ = write!(text, "As in {link}: {}.", names.join(", "));
    }
    if !conditions.is_empty() && earlier.conditions == conditions {
        let _ = write!(text, " The API server enforces the conditions of {link}.");
    }
    if text.is_empty() {
        return text;
    }
    text.trim_start().to_owned() + "\n\n"
}

/// Returns the object in a field, in its items or in its values, with the title of its section.
fn object_in<'a>(title: &str, schema: &'a Value) -> Option<(String, &'a Value)> {
    if schema["properties"].is_object() {
        return Some((title.to_owned(), schema));
    }
    object_in(&format!("{title}[]"), schema.get("items")?)
}

fn type_of(schema: &Value) -> String {
    if let Some(choices) = schema["enum"].as_array() {
        let choices = choices.iter().filter_map(Value::as_str);
        let choices: Vec<String> = choices.map(|choice| format!("`{choice}`")).collect();
        return choices.join(", ");
    }
    format!("`{}`", plain_type_of(schema))
}

fn plain_type_of(schema: &Value) -> String {
    match schema["type"].as_str().unwrap_or("any") {
        "array" => {
            let unordered = matches!(
                schema["x-kubernetes-list-type"].as_str(),
                Some("set" | "map")
            );
            let list = if unordered { "set" } else { "list" };
            format!("{list}<{}>", plain_type_of(&schema["items"]))
        }
        "object" if schema["additionalProperties"].is_object() => {
            format!("map<{}>", plain_type_of(&schema["additionalProperties"]))
        }
        type_ => schema["format"]
            .as_str()
            .filter(|_| type_ == "string")
            .unwrap_or(type_)
            .to_owned(),
    }
}

/// Returns the text after `#` in a link to a heading, as GitHub makes it.
fn anchor(title: &str) -> String {
    let kept = |c: &char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let anchor: String = title.chars().filter(kept).collect();
    anchor.to_lowercase().replace(' ', "-")
}

fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.split(". ")
        .map(|sentence| sentence.trim_end_matches('.'))
}

fn described(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

/// The description, without the default if the schema has it.
fn text_of(schema: &Value) -> String {
    let mut text = described(schema).to_owned();
    if let Some(default) = schema.get("default") {
        let default = default.to_string();
        text = text.replace(&format!(" Default: {}.", default.trim_matches('"')), "");
    }
    escaped(&text)
}

/// What the schema asks for besides its description.
fn limits_of(schema: &Value) -> String {
    let mut asked = asked(schema);
    for (parts, each) in [("items", "each"), ("additionalProperties", "each value")] {
        if let Some(parts) = schema.get(parts) {
            let first = asked.len();
            asked.extend(self::asked(parts));
            if let Some(first) = asked.get_mut(first) {
                *first = format!("{each} {first}");
            }
        }
    }
    if asked.is_empty() {
        return String::new();
    }
    format!(" *{}.*", asked.join("; "))
}

fn asked(schema: &Value) -> Vec<String> {
    let mut size = limits(schema);
    let mut asked = Vec::new();
    // The conditions of an object are in its section.
    if !schema["properties"].is_object() {
        for rule in rules(schema) {
            let known = FORMATS.iter().find(|one| rule.starts_with(one.condition));
            let Some(format) = known else {
                asked.push(escaped(&rule));
                continue;
            };
            size = size.filter(|size| size != format.size);
            asked.push(format!("[{}](#formats)", format.name));
        }
    }
    asked.extend(size);
    asked
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
