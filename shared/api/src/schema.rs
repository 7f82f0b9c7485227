//! The parts of the schema that the Rust types cannot express: limits, list types, CEL rules.
//!
//! No field has a `pattern`: the API server would answer with the regular expression. A CEL rule
//! has a message.
//!
//! Every list, map and string that a CEL rule looks at has a limit, because the API server refuses
//! a definition whose rules could become too expensive.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt as _;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::{ClusterReplication, Replication, ReplicationGrant, TransformPolicy};

/// The definitions of all of Mimeo's kinds, in order of name, as they are installed in a cluster.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        ClusterReplication::crd(),
        ReplicationGrant::crd(),
        Replication::crd(),
        TransformPolicy::crd(),
    ];
    for version in crds.iter_mut().flat_map(|crd| &mut crd.spec.versions) {
        if let Some(root) = version
            .schema
            .as_mut()
            .and_then(|schema| schema.open_api_v3_schema.as_mut())
        {
            tidy(root);
        }
    }
    crds
}

/// Takes out what is true of Rust but not of the API, at every level.
///
/// `nullable` goes because an explicit null then counts as left out (the API server prunes it, then
/// fills in the default), titles because they repeat the kind, line breaks because they are those
/// of the source file.
fn tidy(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.title = None;
    if let Some(description) = &mut schema.description {
        *description = description.replace('\n', " ");
    }
    schema
        .properties
        .iter_mut()
        .flatten()
        .for_each(|(_, property)| tidy(property));
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        tidy(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        tidy(values);
    }
}

/// Why a Replication refuses a wildcard in `targets[].namespaces`.
pub const EXACT_TARGETS: &str =
    "a Replication names its target namespaces exactly; wildcards are for ClusterReplications";

/// This JSON as a schema.
fn schema(json: Value) -> Schema {
    // Only a value that is neither an object nor a boolean is no schema.
    Schema::try_from(json).unwrap_or_default()
}

/// One CEL rule of `x-kubernetes-validations`: what must hold, and what people read if it doesn't.
pub(crate) fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message, "reason": "FieldValueInvalid"})
}

/// A regular expression as API servers take it: they can evaluate it, else whoever asks them to
/// (the policy that guards labels) would fail. The answer doesn't matter; of what is no regular
/// expression there is none, which refuses it.
pub(crate) fn name_pattern(_: &mut SchemaGenerator) -> Schema {
    let taken = rule(
        "''.matches('^(?:' + self + ')$') in [true, false]",
        "must be a regular expression in RE2's syntax",
    );
    json_schema!({"type": "string", "minLength": 1, "maxLength": 256, "x-kubernetes-validations": [taken]})
}

/// A [`rule`] whose refusal names `field` (a path below the schema that carries the rule, as
/// `.targets`).
pub(crate) fn rule_of(field: &str, expression: &str, message: &str) -> Value {
    let mut rule = rule(expression, message);
    rule["fieldPath"] = json!(field);
    rule
}

/// Text of 1 to `max` characters that matches `regex`. A refusal says `message` and not the regular
/// expression.
fn text(max: u32, regex: &str, message: &str) -> Value {
    let matches = format!("self.matches(r'{regex}')");
    json!({
        "type": "string", "minLength": 1, "maxLength": max,
        "x-kubernetes-validations": [rule(&matches, message)],
    })
}

/// A list of at most `max` such texts, none of which comes twice.
fn set_of(max: u32, items: &Value) -> Value {
    json!({"type": "array", "maxItems": max, "x-kubernetes-list-type": "set", "items": items})
}

/// Label keys, annotation keys and finalizers: a DNS prefix of 253, a slash, a name of 63.
const QUALIFIED_NAME_LENGTH: u32 = 317;
const NAMESPACE_GLOB: &str = "^[a-z0-9*?]([-a-z0-9*?]*[a-z0-9*?])?$";

pub(crate) fn api_version(_: &mut SchemaGenerator) -> Schema {
    schema(text(
        QUALIFIED_NAME_LENGTH,
        "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[a-z]([-a-z0-9]*[a-z0-9])?$",
        "must be a version of the core group or a group, \"/\" and a version, as in v1 or apps/v1",
    ))
}

pub(crate) fn kind(_: &mut SchemaGenerator) -> Schema {
    schema(text(
        63,
        "^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$",
        "must be a kind in CamelCase and singular, as in Secret or ConfigMap: letters and digits, beginning with a letter",
    ))
}

/// One segment of a URL: not every kind's names are DNS names.
fn name_of_object(message: &str) -> Value {
    text(253, "^[^/%]+$", message)
}

pub(crate) fn object_name(_: &mut SchemaGenerator) -> Schema {
    schema(name_of_object(
        "must be the name of an object without its namespace and kind, as in registry; no \"/\" and no \"%\"",
    ))
}

const NAMESPACE_MESSAGE: &str = "must be the name of a namespace, as in team-a: at most 63 lower-case letters, digits and \"-\", \
                                 with a letter or digit at both ends";

fn name_of_namespace() -> Value {
    let message = format!("{NAMESPACE_MESSAGE}; no wildcards here");
    text(63, "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", &message)
}

pub(crate) fn namespace_name(_: &mut SchemaGenerator) -> Schema {
    schema(name_of_namespace())
}

pub(crate) fn namespace_names(_: &mut SchemaGenerator) -> Schema {
    schema(set_of(64, &name_of_namespace()))
}

/// Exact names. Wildcards pass the first rule, so that a user who writes one reads only the hint of
/// the second.
pub(crate) fn target_namespaces(_: &mut SchemaGenerator) -> Schema {
    let mut name = text(63, NAMESPACE_GLOB, NAMESPACE_MESSAGE);
    if let Some(rules) = name["x-kubernetes-validations"].as_array_mut() {
        rules.push(rule(
            "!self.contains('*') && !self.contains('?')",
            EXACT_TARGETS,
        ));
    }
    schema(not_empty(set_of(32, &name)))
}

/// The schema of a list that must have items. An empty list would select nothing, or anything, and
/// look as if it were left out.
fn not_empty(mut list: Value) -> Value {
    list["minItems"] = json!(1);
    list
}

/// Names of objects, with wildcards.
pub(crate) fn object_globs(_: &mut SchemaGenerator) -> Schema {
    let message = "must be the name of an object, in which * stands for any characters and ? for one, as in registry-*; no \"/\" \
                   and no \"%\"";
    schema(not_empty(set_of(64, &name_of_object(message))))
}

/// Names of namespaces, with wildcards.
pub(crate) fn namespace_globs(_: &mut SchemaGenerator) -> Schema {
    let message = "must be the name of a namespace, in which * stands for any characters and ? for one, as in team-*: at most 63 \
                   lower-case letters, digits, \"-\", \"*\" and \"?\"";
    schema(not_empty(set_of(128, &text(63, NAMESPACE_GLOB, message))))
}

pub(crate) fn key_globs(_: &mut SchemaGenerator) -> Schema {
    let message = "must be a key, in which * stands for any characters and ? for one, as in example.com/*: only letters, digits, \
                   \"-\", \"_\", \".\", \"/\", \"*\" and \"?\"";
    schema(set_of(
        64,
        &text(QUALIFIED_NAME_LENGTH, "^[-A-Za-z0-9_./*?]+$", message),
    ))
}

/// Keys of a Secret or a ConfigMap (`IsConfigMapKey` of Kubernetes), with wildcards.
pub(crate) fn data_globs(_: &mut SchemaGenerator) -> Schema {
    let message = "must be a key, in which * stands for any characters and ? for one, as in tls.*: only letters, digits, \"-\", \
                   \"_\", \".\", \"*\" and \"?\"";
    schema(set_of(64, &text(253, "^[-A-Za-z0-9_.*?]+$", message)))
}

/// The old names are not checked by the schema: a key that no object can have renames nothing.
pub(crate) fn data_names(_: &mut SchemaGenerator) -> Schema {
    let message = "must be a key, as in tls.crt: only letters, digits, \"-\", \"_\" and \".\"";
    let name = text(253, "^[-A-Za-z0-9_.]+$", message);
    json_schema!({"type": "object", "maxProperties": 64, "additionalProperties": name})
}

/// The API server knows a few finalizers without a domain; they are its own and not for rules to
/// set.
pub(crate) fn finalizers(_: &mut SchemaGenerator) -> Schema {
    let finalizer = text(
        QUALIFIED_NAME_LENGTH,
        "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        "must be a domain, \"/\" and a name, as in example.com/cleanup",
    );
    schema(set_of(8, &finalizer))
}

/// Characters of a label value, and variables. The webhook checks what the variables become. A
/// value may be empty.
pub(crate) fn label_values() -> Schema {
    let mut value = text(
        1024,
        r"^([-A-Za-z0-9_.]|\$\((source|namespace)\.[^)]+\))*$",
        "must be a label value, as in gold or $(namespace.name): only letters, digits, \"-\", \"_\", \".\" and variables",
    );
    if let Some(value) = value.as_object_mut() {
        value.remove("minLength");
    }
    json_schema!({"type": "object", "maxProperties": 64, "additionalProperties": value})
}

/// A place in an object for a JSON Patch.
pub(crate) fn json_pointer(_: &mut SchemaGenerator) -> Schema {
    schema(text(
        1024,
        "^/",
        "must be a JSON pointer (RFC 6901), which begins with \"/\", as in /data/key",
    ))
}

pub(crate) fn annotation_values() -> Schema {
    json_schema!({
        "type": "object", "maxProperties": 64,
        "additionalProperties": {"type": "string", "maxLength": 4096},
    })
}

/// Any JSON, and the server keeps what is in it.
pub(crate) fn any_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

/// An object of any kind, as it would be sent to the API server, which checks its apiVersion, kind
/// and metadata.
pub(crate) fn embedded_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

/// A label selector within limits; its own definition has none.
pub(crate) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "description": "Labels that must all be there, with these values. At most 64.",
                "type": "object", "maxProperties": 64,
                "additionalProperties": {"type": "string", "maxLength": 63},
            },
            "matchExpressions": {
                "description": "Requirements that must all hold. At most 16.",
                "type": "array", "maxItems": 16, "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object", "required": ["key", "operator"],
                    "properties": {
                        "key": {
                            "description": "Key of the label.",
                            "type": "string", "minLength": 1, "maxLength": QUALIFIED_NAME_LENGTH,
                        },
                        "operator": {
                            "description": "How the label is compared. In: it has one of the values. NotIn: it has \
                                            none of them. Exists: it is there. DoesNotExist: it is not there.",
                            "type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                        },
                        "values": {
                            "description": "Values for In and NotIn, at least one. None for Exists and \
                                            DoesNotExist. At most 64.",
                            "type": "array", "maxItems": 64, "x-kubernetes-list-type": "atomic",
                            "items": {"type": "string", "maxLength": 63},
                        },
                    },
                },
            },
        },
    })
}

pub(crate) fn nonempty_label_selector(generator: &mut SchemaGenerator) -> Schema {
    let mut selector = label_selector(generator);
    let set = rule(
        "(has(self.matchLabels) && size(self.matchLabels) > 0) \
         || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
        "must not be empty",
    );
    selector.insert("x-kubernetes-validations".to_owned(), json!([set]));
    selector
}

/// The conditions that all kinds of Kubernetes share, merged by type.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": 16,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object", "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": {"description": "What the condition is about.", "type": "string", "maxLength": 316},
                "status": {
                    "description": "Whether it holds: True, False or Unknown.",
                    "type": "string", "enum": ["True", "False", "Unknown"],
                },
                "reason": {
                    "description": "Why, in one word that programs may rely on.",
                    "type": "string", "minLength": 1, "maxLength": 1024,
                },
                "message": {"description": "Why, for people.", "type": "string", "maxLength": 32768},
                "lastTransitionTime": {
                    "description": "When the status last changed.",
                    "type": "string", "format": "date-time",
                },
                "observedGeneration": {
                    "description": "The metadata.generation that the condition describes.",
                    "type": "integer", "format": "int64", "minimum": 0,
                },
            },
        },
    })
}
