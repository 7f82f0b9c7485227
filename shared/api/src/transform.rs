//! The changes to an object, shared by the rules for copies and the policies that act at admission.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{is_default, schema};

/// Changes of an object. The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Transform {
    /// Type of the Secret. Allowed only if all objects concerned are Secrets. Not the type of
    /// service account tokens or Helm releases. If left out, the type stays.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub type_: Option<String>,

    /// Labels to keep and to set. Values to set must be valid values of labels. A copy never gets
    /// those labels of its source by which GitOps tools, Helm and other replicators know their
    /// objects.
    #[serde(skip_serializing_if = "is_default")]
    pub labels: KeyEdits,

    /// Annotations to keep and to set. A copy never gets those of its source by which GitOps tools,
    /// Helm, kubectl and other replicators know their objects.
    #[serde(skip_serializing_if = "is_default")]
    pub annotations: KeyEdits,

    /// Keys of data and binaryData to keep, and their new names. Allowed only if all objects
    /// concerned are Secrets or ConfigMaps.
    #[serde(skip_serializing_if = "is_default")]
    pub data: DataEdits,

    /// Finalizers to set, each as domain/name. Mimeo keeps them while the object is not being
    /// deleted. Something else must remove each finalizer, otherwise the object can never be
    /// deleted. At most 8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::finalizers")]
    pub finalizers: Vec<String>,
}

/// Changes of a copy. The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CopyTransform {
    /// The changes that come first, in this order: type, labels, annotations, data, finalizers.
    #[serde(flatten)]
    pub common: Transform,

    /// Operations of a JSON Patch (RFC 6902), applied last, to the copy without its identity and
    /// Mimeo's labels and annotations. They may change all fields except apiVersion, kind, status,
    /// and type and stringData of a Secret. In metadata they may change single labels and
    /// annotations; both maps exist, even if empty. The data of a Secret stays in data, and its
    /// values are base64 without variables. If an operation cannot be done or a test fails, each
    /// copy fails with the reason Invalid. In strings of values $(source.name),
    /// $(source.namespace), $(namespace.name) and $(namespace.labels['key']) stand for those of the
    /// source and of the copy's namespace; in values of a test only those of the source. In a
    /// Replication, labels of the namespace only where every target is its own namespace. At most
    /// 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub json_patch: Vec<JsonPatchOperation>,
}

/// One operation of a JSON Patch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JsonPatchOperation {
    /// The operation.
    pub op: JsonPatchOp,

    /// JSON pointer (RFC 6901) to the place of the operation: /data/key, /spec/items/0,
    /// /metadata/labels/example.com~1team.
    #[schemars(schema_with = "schema::json_pointer")]
    pub path: String,

    /// JSON pointer to the value to move or copy. Only for move and copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::json_pointer")]
    pub from: Option<String>,

    /// The value to add, to put in place, or to compare with; not null. Only for add, replace and
    /// test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub value: Option<Value>,
}

/// An operation of a JSON Patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum JsonPatchOp {
    /// Adds a field or an item, or replaces a field.
    Add,
    /// Removes the value.
    Remove,
    /// Replaces the value.
    Replace,
    /// Moves a value.
    Move,
    /// Copies a value.
    Copy,
    /// Compares the value.
    #[default]
    Test,
}

/// Edits of the keys of `data` and `binaryData`: keep the keys that `include` matches and
/// `exclude` does not, then rename.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct DataEdits {
    /// Keys to keep, exact or with * (any characters) and ? (one character). At most two * in one,
    /// and no ? between them. Default: ["*"], which is all of them. An empty list keeps none. At
    /// most 64.
    #[schemars(schema_with = "schema::data_globs")]
    pub include: Vec<String>,

    /// Keys to leave out although they are included, exact or with * and ? as in include. At most
    /// 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::data_globs")]
    pub exclude: Vec<String>,

    /// New names of keys that are kept, by their old names. A name of a missing key has no effect.
    /// Two keys must not get the same name. At most 64.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::data_names")]
    pub rename: BTreeMap<String, String>,
}

impl Default for DataEdits {
    fn default() -> Self {
        Self {
            include: every_key(),
            exclude: Vec::new(),
            rename: BTreeMap::new(),
        }
    }
}

/// Edits of labels or annotations: keep the keys that `include` matches and `exclude` does not,
/// then set `set`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct KeyEdits {
    /// Keys to keep, exact or with * (any characters) and ? (one character). At most two * in one,
    /// and no ? between them. Default: ["*"], which is all of them. An empty list keeps none. At
    /// most 64.
    #[schemars(schema_with = "schema::key_globs")]
    pub include: Vec<String>,

    /// Keys to leave out although they are included, exact or with * and ? as in include. At most
    /// 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::key_globs")]
    pub exclude: Vec<String>,

    /// Keys and values to set, even if the object has other values. At most 64. In values of a rule
    /// $(source.name), $(source.namespace), $(namespace.name) and $(namespace.labels['key']) stand
    /// for the source's and the copy's namespace. In a Replication, labels of the namespace only
    /// where every target is its own namespace. In values of a policy $(namespace.name) stands for
    /// the name of the object's namespace.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::set_values")]
    pub set: BTreeMap<String, String>,
}

impl Default for KeyEdits {
    fn default() -> Self {
        Self {
            include: every_key(),
            exclude: Vec::new(),
            set: BTreeMap::new(),
        }
    }
}

fn every_key() -> Vec<String> {
    vec!["*".to_owned()]
}
