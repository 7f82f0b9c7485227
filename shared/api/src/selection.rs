//! Which namespaces: the three ways to choose them, shared by targets and their exclusions.

// The comments of fields are printed by `kubectl explain`, which would print the backticks too.
#![allow(clippy::doc_markdown)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// Namespaces by name, by pattern or by label.
///
/// A target sets exactly one of the fields, an exclusion at least one; the CRD holds them to it where it embeds this.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceSelection {
    /// Names of namespaces, exact or with * (any characters) and ? (one character). At most 128.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::namespace_globs")]
    pub namespaces: Vec<String>,

    /// Regular expression (RE2 syntax) that must match the whole name of a namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::name_pattern")]
    pub namespace_pattern: Option<String>,

    /// Namespaces with these labels. An empty selector ({}) means every namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub namespace_selector: Option<LabelSelector>,
}
