//! The parts of the schema that Rust types can't express: limits, list types, CEL rules.
//!
//! No field has a `pattern`, because the API server would show the regular expression to the user.
//! A CEL rule has a message instead.
//!
//! The lists, maps and strings in CEL rules have limits. Without them, the API server would refuse
//! the CRD, because its rules could become too expensive.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt as _;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::{ClusterReplication, Replication, ReplicationGrant, TransformPolicy};

/// The CRDs of all of Mimeo's kinds, sorted by name, as they are installed in a cluster.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        ClusterReplication::crd(),
        ReplicationGrant::crd(),
        Replication::crd(),
        TransformPolicy::crd(),
    ];
    // `kubectl get` shows the same columns of both kinds of rules.
    let columns = crds[0].spec.versions[0].additional_printer_columns.clone();
    crds[2].spec.versions[0].additional_printer_columns = columns;
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

/// Removes the parts of the schema that describe Rust and not the API, at every level.
///
/// - `nullable`: without it, an explicit null counts as left out. The API server prunes it and
///   fills in the default.
/// - Titles: they repeat the kind.
/// - Line breaks: they come from the source file.
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

/// One CEL rule of `x-kubernetes-validations`: the condition, and the message for people if it
/// fails.
pub(crate) fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message, "reason": "FieldValueInvalid"})
}

/// A regular expression that API servers can evaluate. Otherwise every policy with this expression
/// would fail, such as the policy that guards labels. The result of the match does not matter. An
/// invalid expression has no result, so the rule refuses it.
pub(crate) fn name_pattern(_: &mut SchemaGenerator) -> Schema {
    let taken = rule(
        "''.matches('^(?:' + self + ')$') in [true, false]",
        "must be a regular expression in RE2's syntax, without flags and named classes",
    );
    json_schema!({"type": "string", "minLength": 1, "maxLength": 256, "x-kubernetes-validations": [taken]})
}

/// A [`rule`] with a refusal that names `field`: a path below this schema, as in `.targets`.
pub(crate) fn rule_of(field: &str, expression: &str, message: &str) -> Value {
    let mut rule = rule(expression, message);
    rule["fieldPath"] = json!(field);
    rule
}

/// Text of 1 to `max` characters that matches `regex`. A refusal shows `message` instead of the
/// regular expression.
fn text(max: u32, regex: &str, message: &str) -> Schema {
    let matches = format!("self.matches(r'{regex}')");
    json_schema!({
        "type": "string", "minLength": 1, "maxLength": max,
        "x-kubernetes-validations": [rule(&matches, message)],
    })
}

/// A list of at most `max` items without duplicates.
fn set_of(max: u32, items: &Schema) -> Schema {
    json_schema!({"type": "array", "maxItems": max, "x-kubernetes-list-type": "set", "items": items})
}

/// Longest label key, annotation key or finalizer: a DNS prefix of 253, a slash, and a name of 63.
const QUALIFIED_NAME_LENGTH: u32 = 317;

pub(crate) fn api_version(_: &mut SchemaGenerator) -> Schema {
    text(
        QUALIFIED_NAME_LENGTH,
        "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[a-z]([-a-z0-9]*[a-z0-9])?$",
        "must be a version of the core group or a group, \"/\" and a version, as in v1 or apps/v1",
    )
}

pub(crate) fn kind(_: &mut SchemaGenerator) -> Schema {
    text(
        63,
        "^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$",
        "must be a kind in CamelCase and singular, as in Secret or ConfigMap: letters and digits, \
         beginning with a letter",
    )
}

/// The name of an object: one URL segment. Some kinds have names that are not DNS names.
fn name_of_object(message: &str) -> Schema {
    text(253, "^[^/%]+$", message)
}

pub(crate) fn object_name(_: &mut SchemaGenerator) -> Schema {
    name_of_object(
        "must be the name of an object without its namespace and kind, as in registry; no \"/\" \
         and no \"%\"",
    )
}

pub(crate) fn namespace_name(_: &mut SchemaGenerator) -> Schema {
    text(
        63,
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        "must be the name of a namespace, as in team-a: at most 63 lower-case letters, digits and \
         \"-\", with a letter or digit at both ends; no wildcards here",
    )
}

pub(crate) fn namespace_names(generator: &mut SchemaGenerator) -> Schema {
    set_of(64, &namespace_name(generator))
}

/// Exact names of namespaces.
pub(crate) fn target_namespaces(generator: &mut SchemaGenerator) -> Schema {
    not_empty(set_of(32, &namespace_name(generator)))
}

/// Requires at least one item. An empty list would select nothing or everything, and would look
/// like a list that is left out.
fn not_empty(mut list: Schema) -> Schema {
    list.insert("minItems".to_owned(), json!(1));
    list
}

/// Globs for names of objects.
pub(crate) fn object_globs(_: &mut SchemaGenerator) -> Schema {
    let message = "must be the name of an object, in which * stands for any characters and ? for \
        one, as in registry-*; no \"/\" and no \"%\"";
    not_empty(set_of(64, &name_of_object(message)))
}

/// Globs for names of namespaces.
pub(crate) fn namespace_globs(_: &mut SchemaGenerator) -> Schema {
    let message = "must be the name of a namespace, in which * stands for any characters and ? for \
        one, as in team-*: at most 63 lower-case letters, digits, \"-\", \"*\" and \"?\"";
    not_empty(set_of(
        128,
        &text(63, "^[a-z0-9*?]([-a-z0-9*?]*[a-z0-9*?])?$", message),
    ))
}

pub(crate) fn key_globs(_: &mut SchemaGenerator) -> Schema {
    let message = "must be a key, in which * stands for any characters and ? for one, as in \
        example.com/*: only letters, digits, \"-\", \"_\", \".\", \"/\", \"*\" and \"?\"";
    set_of(
        64,
        &text(QUALIFIED_NAME_LENGTH, "^[-A-Za-z0-9_./*?]+$", message),
    )
}

/// Globs for keys of a Secret or a ConfigMap (`IsConfigMapKey` of Kubernetes).
pub(crate) fn data_globs(_: &mut SchemaGenerator) -> Schema {
    let message = "must be a key, in which * stands for any characters and ? for one, as in tls.*: \
        only letters, digits, \"-\", \"_\", \".\", \"*\" and \"?\"";
    set_of(64, &text(253, "^[-A-Za-z0-9_.*?]+$", message))
}

/// New names of data keys. The schema does not check the old names: an impossible key renames
/// nothing.
pub(crate) fn data_names(_: &mut SchemaGenerator) -> Schema {
    let message = "must be a key, as in tls.crt: only letters, digits, \"-\", \"_\" and \".\"";
    let name = text(253, "^[-A-Za-z0-9_.]+$", message);
    json_schema!({"type": "object", "maxProperties": 64, "additionalProperties": name})
}

/// Finalizers with a domain. The API server uses a few finalizers without one, and rules must not
/// set these.
pub(crate) fn finalizers(_: &mut SchemaGenerator) -> Schema {
    let finalizer = text(
        QUALIFIED_NAME_LENGTH,
        "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        "must be a domain, \"/\" and a name, as in example.com/cleanup",
    );
    set_of(8, &finalizer)
}

/// A JSON pointer to a place in an object, for a JSON Patch.
pub(crate) fn json_pointer(_: &mut SchemaGenerator) -> Schema {
    text(
        1024,
        "^/",
        "must be a JSON pointer (RFC 6901), which begins with \"/\", as in /data/key",
    )
}

/// Values of labels and annotations. The webhook checks those of labels, which may have variables.
pub(crate) fn set_values(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": 64,
        "additionalProperties": {"type": "string", "maxLength": 4096},
    })
}

/// Any JSON. The API server keeps all fields in it.
pub(crate) fn any_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

/// An object of any kind, in the form that clients send. The API server checks its apiVersion, kind
/// and metadata.
pub(crate) fn embedded_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

/// A label selector with limits. The standard selector has none.
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
                            "description": "How the label is compared. In: it has one of the \
                                values. NotIn: it has none of them. Exists: it is there. \
                                DoesNotExist: it is not there.",
                            "type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                        },
                        "values": {
                            "description": "Values for In and NotIn, at least one. None for Exists \
                                and DoesNotExist. At most 64.",
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

/// The conditions of all Kubernetes kinds, merged by type.
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
