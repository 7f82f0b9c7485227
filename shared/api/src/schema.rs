//! What the Rust types alone cannot say about the schema: limits, patterns, list types, CEL rules; and the definitions
//! put together.
//!
//! Every list, map and string that a CEL rule looks at has a limit, because the API server refuses a definition whose
//! rules could become too expensive.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt as _;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::{ClusterReplication, Replication, ReplicationGrant, TransformPolicy};

/// The definitions of all of Mimeo's kinds, in order of name, as they are installed in a cluster.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![ClusterReplication::crd(), ReplicationGrant::crd(), Replication::crd(), TransformPolicy::crd()];
    for version in crds.iter_mut().flat_map(|crd| &mut crd.spec.versions) {
        if let Some(root) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            tidy(root);
        }
    }
    crds
}

/// Takes out what is true of Rust but not of the API, at every level.
///
/// `nullable` goes because an explicit null then counts as left out (the API server prunes it, then fills in the
/// default), titles because they repeat the kind, line breaks because they are those of the source file.
fn tidy(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.title = None;
    if let Some(description) = &mut schema.description {
        *description = description.replace('\n', " ");
    }
    schema.properties.iter_mut().flatten().for_each(|(_, property)| tidy(property));
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        tidy(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        tidy(values);
    }
}

/// One CEL rule of `x-kubernetes-validations`: what must hold, and what people read if it doesn't.
pub(crate) fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message, "reason": "FieldValueInvalid"})
}

/// A regular expression as API servers take it: they can evaluate it, else whoever asks them to (the policy that guards labels) would
/// fail. The answer doesn't matter; of what is no regular expression there is none, which refuses it.
pub(crate) fn name_pattern(_: &mut SchemaGenerator) -> Schema {
    let taken =
        rule("''.matches('^(?:' + self + ')$') in [true, false]", "must be a regular expression in RE2's syntax");
    json_schema!({"type": "string", "minLength": 1, "maxLength": 256, "x-kubernetes-validations": [taken]})
}

/// A [`rule`] whose refusal names `field` (a path below the schema that carries the rule, as `.targets`).
pub(crate) fn rule_of(field: &str, expression: &str, message: &str) -> Value {
    let mut rule = rule(expression, message);
    rule["fieldPath"] = json!(field);
    rule
}

/// Label keys, annotation keys and finalizers: a DNS prefix of 253, a slash, a name of 63.
const QUALIFIED_NAME_LENGTH: u32 = 317;
const NAMESPACE: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
const NAMESPACE_GLOB: &str = "^[a-z0-9*?]([-a-z0-9*?]*[a-z0-9*?])?$";
/// Characters of a label value, and variables. What becomes of them the webhook checks.
const LABEL_VALUE: &str = r"^([-A-Za-z0-9_.]|\$\((source|namespace)\.[^)]+\))*$";
/// The API server knows a few finalizers without a domain; they are its own and not for rules to set.
const FINALIZER: &str = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";

pub(crate) fn api_version(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "minLength": 1, "maxLength": 317,
        "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[a-z]([-a-z0-9]*[a-z0-9])?$",
    })
}

pub(crate) fn kind(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "minLength": 1, "maxLength": 63,
        "pattern": "^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$",
    })
}

/// What may stand in a URL as one segment: not every kind's names are DNS names.
pub(crate) fn object_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": 253, "pattern": "^[^/%]+$"})
}

pub(crate) fn namespace_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": 63, "pattern": NAMESPACE})
}

pub(crate) fn namespace_names(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": 64, "x-kubernetes-list-type": "set",
        "items": namespace_name(generator),
    })
}

pub(crate) fn target_namespaces(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "minItems": 1, "maxItems": 32, "x-kubernetes-list-type": "set",
        "items": namespace_name(generator),
    })
}

/// Names of objects, with wildcards. Not empty: an empty list would mean any name, and look like none.
pub(crate) fn object_globs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "minItems": 1, "maxItems": 64, "x-kubernetes-list-type": "set",
        "items": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": "^[^/%]+$"},
    })
}

/// Not empty: an empty list would be a selection of nothing that looks like one that was left out.
pub(crate) fn namespace_globs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "minItems": 1, "maxItems": 128, "x-kubernetes-list-type": "set",
        "items": {"type": "string", "minLength": 1, "maxLength": 63, "pattern": NAMESPACE_GLOB},
    })
}

pub(crate) fn key_globs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": 64, "x-kubernetes-list-type": "set",
        "items": {
            "type": "string", "minLength": 1, "maxLength": QUALIFIED_NAME_LENGTH,
            "pattern": "^[-A-Za-z0-9_./*?]+$",
        },
    })
}

/// Keys of a Secret or a ConfigMap (`IsConfigMapKey` of Kubernetes), with wildcards.
pub(crate) fn data_globs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": 64, "x-kubernetes-list-type": "set",
        "items": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": "^[-A-Za-z0-9_.*?]+$"},
    })
}

/// The old names are not checked by the schema: one that can't be never is there.
pub(crate) fn data_names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": 64,
        "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": "^[-A-Za-z0-9_.]+$"},
    })
}

pub(crate) fn finalizers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": 8, "x-kubernetes-list-type": "set",
        "items": {"type": "string", "minLength": 3, "maxLength": QUALIFIED_NAME_LENGTH, "pattern": FINALIZER},
    })
}

pub(crate) fn label_values() -> Schema {
    json_schema!({
        "type": "object", "maxProperties": 64,
        "additionalProperties": {"type": "string", "maxLength": 1024, "pattern": LABEL_VALUE},
    })
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

/// An object of any kind, as it would be sent to the API server, which checks its apiVersion, kind and metadata.
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
