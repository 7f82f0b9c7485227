//! The selection of namespaces: three ways to choose them, used by targets, exclusions and grants.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{self, rule};

/// The CEL rule for an item that selects namespaces: at least one of its fields is set.
pub(crate) fn one_is_set() -> serde_json::Value {
    rule(
        "has(self.namespaces) || has(self.namespacePattern) || has(self.namespaceSelector)",
        "at least one of namespaces, namespacePattern and namespaceSelector must be set",
    )
}

/// Namespaces by name, by pattern and by label. Set at least one of the three. All that are set
/// must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [one_is_set()]))]
pub struct NamespaceSelection {
    /// Names of namespaces, exact or with * (any characters) and ? (one character). At most 128.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::namespace_globs")]
    pub namespaces: Vec<String>,

    /// Regular expression (RE2 syntax) that must match the whole name of a namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::name_pattern")]
    pub namespace_pattern: Option<String>,

    /// Namespaces with these labels. An empty selector ({}) means every namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub namespace_selector: Option<LabelSelector>,
}
