//! Makes the body of the copies from a source.

use std::{cell::RefCell, collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use mimeo_api::{CopyTransform, DriftPolicy};
use serde_json::{Map, Value, json};

use super::{Copies, Part};
use crate::{
    choices::{Strategy, retention_annotation},
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, assigned},
    meta::Checksum,
    names,
    ownership::without_paths,
    patch,
    rule::{Rule, Target},
    source::{SourceRef, SourceRefused, refused_type},
    syntax,
    template::{Show, Variable, fill_in},
    transform::{copy_data, copy_keys},
};

type Fields = Map<String, Value>;

/// The common part of all copies that one rule makes of one source. They differ only in their
/// names. To make the rest again for each target would cost as much as the source is large.
pub struct Draft {
    source: SourceRef,
    /// Labels, annotations and finalizers, without the name.
    metadata: Value,
    content: Arc<[Part]>,
    /// Checksum of the content, including the blanks.
    checksum: Checksum,
    /// The variables of the namespace outside the names of the copies.
    variables: BTreeSet<Variable>,
    /// True if the content has a variable inside a list.
    own_fields_apart: bool,
    /// What stands for the variables, including those in the names.
    blanks: Blanks,
}

impl Draft {
    /// Makes the draft of a rule from `object`.
    ///
    /// # Errors
    /// The reason why the object gives no copy.
    pub fn of(
        rule: &Rule,
        source: &SourceRef,
        object: &Value,
        cluster: &str,
    ) -> Result<Self, SourceRefused> {
        let draft = |show: Show<'_>| draft(rule, source, object, cluster, show);
        // The first draft shows each variable as it is written. It asks for the text of each one,
        // so it also finds the variables.
        let found = RefCell::new(BTreeSet::new());
        let as_written = |variable: &Variable| {
            found.borrow_mut().insert(variable.clone());
            variable.to_string()
        };
        let (mut metadata, mut body) = draft(&as_written)?;
        let variables = found.borrow().clone();
        let targets = rule.targets.iter();
        let names: Vec<String> = targets
            .map(|target| target.copy_name(source).text(as_written))
            .collect();
        let mut content = body.to_string();
        let mut checksum = Checksum::of(content.as_bytes());
        let text = of_json(&json!([checksum.to_string(), &metadata, names]));
        let blanks = Blanks {
            sign: format!("«{text}:"),
            variables: found.into_inner().into_iter().collect(),
        };
        let mut own_fields_apart = false;
        if !blanks.variables.is_empty() {
            (metadata, body) = draft(&|variable| blanks.of(variable))?;
            own_fields_apart = in_a_list(&body, &blanks.sign);
            content = body.to_string();
            checksum = Checksum::of(content.as_bytes());
        }
        Ok(Self {
            source: source.clone(),
            metadata,
            checksum,
            content: blanks.split(&behind_metadata(content)).into(),
            variables,
            own_fields_apart,
            blanks,
        })
    }

    /// The copies of a rule as one object without name, namespace and Mimeo's marks. It is for
    /// copies that no rule maintains.
    ///
    /// # Errors
    /// The reason why the object gives no copy.
    pub fn without_marks(
        rule: &Rule,
        source: &SourceRef,
        object: &Value,
    ) -> Result<Value, SourceRefused> {
        let mut copy = unmarked(rule, source, object, &Variable::to_string)?;
        if let Some(metadata) = copy["metadata"].as_object_mut() {
            metadata.retain(|_, fields| *fields != json!({}));
        }
        Ok(copy)
    }

    /// The copies for one target of the rule.
    ///
    /// # Errors
    /// The reason why the target gets no copies.
    pub fn copies(&self, target: &Target) -> Result<Copies, SourceRefused> {
        let name = target.copy_name(&self.source);
        let variables = name.variables().chain(&self.variables);
        let variables: BTreeSet<Variable> = variables.cloned().collect();
        let blanks = &self.blanks;
        let shown = name.text(|variable| blanks.of(variable));
        let mut metadata = self.metadata.clone();
        metadata["name"] = shown.into();
        check_metadata(&metadata, &blanks.sign)?;
        let checksum = of_json(&json!([&metadata, self.checksum.to_string()]));
        Ok(Copies {
            checksum,
            variables,
            group: self.source.gvk.group.clone(),
            name,
            own_fields_apart: self.own_fields_apart,
            content: self.content.clone(),
            metadata: blanks.split(&metadata_text(metadata, blanks.of_checksum()).into()),
        })
    }
}

/// The checksum of a value's JSON.
pub(super) fn of_json(value: &Value) -> Checksum {
    Checksum::of(value.to_string().as_bytes())
}

/// The metadata and the other fields of the copies, without name and checksum. `show` returns the
/// text for each variable of the namespace.
fn draft(
    rule: &Rule,
    source: &SourceRef,
    object: &Value,
    cluster: &str,
    show: Show<'_>,
) -> Result<(Value, Value), SourceRefused> {
    let mut body = unmarked(rule, source, object, show)?;
    let metadata = body
        .as_object_mut()
        .and_then(|copy| copy.remove("metadata"));
    let mut metadata = metadata.unwrap_or_default();
    // The patch can't change the marks and the finalizers.
    mark(rule, source, cluster, &mut metadata);
    let finalizers = &rule.transform.common.finalizers;
    if !finalizers.is_empty() {
        metadata["finalizers"] = finalizers.clone().into();
    }
    Ok((metadata, body))
}

/// The copies as one object without name, without Mimeo's marks and without finalizers.
fn unmarked(
    rule: &Rule,
    source: &SourceRef,
    object: &Value,
    show: Show<'_>,
) -> Result<Value, SourceRefused> {
    let CopyTransform { common, json_patch } = &rule.transform;
    let mut filled;
    let object = if source.is_inline() {
        filled = object.clone();
        fill_in(&mut filled, source, show);
        &filled
    } else {
        object
    };
    let fields = object.as_object().ok_or(SourceRefused::NotAnObject)?;
    let mut copy = content(&source.gvk, fields);
    if source.gvk.is_secret() {
        let wanted = common.type_.as_deref();
        copy.extend(wanted.map(|wanted| ("type".into(), wanted.into())));
        // The check is for the type of the source and for a type set by the rule. A token
        // controller would fill in a copied token, and Helm would use a copied release.
        refused_type(copy.get("type").and_then(Value::as_str)).map_or(Ok(()), Err)?;
    }
    copy_data(&common.data, &mut copy).map_err(SourceRefused::SameKey)?;
    let mut copy = Value::Object(copy);
    for (field, edits) in [
        ("labels", &common.labels),
        ("annotations", &common.annotations),
    ] {
        let from = object["metadata"][field].as_object();
        copy["metadata"][field] = copy_keys(edits, from, source, show).into();
    }
    patch::apply(json_patch, &mut copy, source, rule.id.kind, show)?;
    if let Some(fields) = copy.as_object_mut()
        && (source.gvk.is_secret() || source.gvk.is_config_map())
    {
        // An empty map equals a missing field. So Mimeo writes no copy if a source changes from one
        // to the other.
        fields.retain(|field, value| {
            !matches!(field.as_str(), "data" | "binaryData") || *value != json!({})
        });
    }
    // These fields are set after the patch, so the patch can't change them.
    copy["apiVersion"] = source.gvk.api_version().into();
    copy["kind"] = (*source.gvk.kind).into();
    Ok(copy)
}

/// Checks the labels and annotations after a patch. Every blank begins with `sign`. Only the API
/// server checks a label's value with a blank.
fn check_metadata(metadata: &Value, sign: &str) -> Result<(), SourceRefused> {
    for field in ["labels", "annotations"] {
        for (key, value) in metadata[field].as_object().into_iter().flatten() {
            let right = |text: &str| {
                field != "labels" || text.contains(sign) || syntax::label_value(text).is_ok()
            };
            if !value.as_str().is_some_and(right) {
                return Err(SourceRefused::Metadata {
                    field,
                    key: key.clone(),
                });
            }
        }
    }
    Ok(())
}

/// True if text with this sign is anywhere in a list.
fn in_a_list(value: &Value, sign: &str) -> bool {
    match value {
        Value::Array(_) => value.to_string().contains(sign),
        Value::Object(fields) => fields.values().any(|field| in_a_list(field, sign)),
        _ => false,
    }
}

/// The text that stands in a copy for a variable. It consists of a sign, which nothing else in the
/// text contains, and a number.
///
/// The sign has a hash of the whole text, and no author can write a text that contains its own
/// hash. The first character of the sign occurs nowhere else in it. So neighbouring text can't form
/// a second sign together with it.
struct Blanks {
    sign: String,
    variables: Vec<Variable>,
}

impl Blanks {
    fn of(&self, variable: &Variable) -> String {
        let number = self.variables.iter().position(|one| one == variable);
        self.number(number.unwrap_or_default())
    }

    fn of_checksum(&self) -> String {
        self.number(self.variables.len())
    }

    fn number(&self, number: usize) -> String {
        format!("{}{number}»", self.sign)
    }

    /// Splits the text into parts. All parts are slices of the text.
    fn split(&self, text: &Bytes) -> Vec<Part> {
        let bytes = |part: &str| Part::Bytes(text.slice_ref(part.as_bytes()));
        let mut pieces = std::str::from_utf8(text)
            .unwrap_or_default()
            .split(&self.sign);
        let mut parts: Vec<Part> = pieces.next().map(bytes).into_iter().collect();
        for (number, behind) in pieces.filter_map(|piece| piece.split_once('»')) {
            let variable = number
                .parse()
                .ok()
                .and_then(|at: usize| self.variables.get(at));
            parts.push(variable.cloned().map_or(Part::Checksum, Part::Blank));
            parts.push(bytes(behind));
        }
        parts
    }
}

/// `…metadata's members`: the part of the body after the id.
fn metadata_text(mut metadata: Value, checksum: String) -> String {
    metadata["annotations"][names::CHECKSUM] = checksum.into();
    let mut text = metadata.to_string();
    text.pop();
    text.remove(0);
    text
}

/// `},…the other members}`: the part of the body after the metadata.
fn behind_metadata(mut body: String) -> Bytes {
    // The body has members, at least a kind, so a comma joins the parts.
    body.replace_range(..1, "},");
    body.into()
}

/// The fields of a source that no copy takes over as they are.
const OWN: &[&[&str]] = &[&["apiVersion"], &["kind"], &["metadata"], &["status"]];

/// The fields of the source without identity, metadata and status, and without values that the
/// cluster assigned to the source alone.
fn content(gvk: &GroupVersionKind, object: &Fields) -> Fields {
    let left_out = OWN.iter().chain(assigned(&gvk.group, &gvk.kind));
    without_paths(object, "", left_out)
}

/// Sets Mimeo's labels and annotations on a copy.
fn mark(rule: &Rule, source: &SourceRef, cluster: &str, metadata: &mut Value) {
    let mut mark = |field: &str, key: &str, value: String| metadata[field][key] = value.into();
    mark("labels", names::MANAGED_BY, names::MANAGED_BY_VALUE.into());
    let label = match rule.id.kind {
        RuleKind::ClusterReplication => names::CLUSTER_REPLICATION,
        RuleKind::Replication => names::REPLICATION,
    };
    mark("labels", label, label_value(&rule.id));
    if rule.drift == DriftPolicy::Deny {
        mark("labels", names::DRIFT, names::DRIFT_DENY.into());
    }
    mark("annotations", names::RULE, rule.id.to_string());
    mark("annotations", names::SOURCE, source.to_string());
    mark("annotations", names::CLUSTER, cluster.into());
    if rule.strategy == Strategy::Replace {
        let replace = names::STRATEGY_REPLACE.into();
        mark("annotations", names::STRATEGY, replace);
    }
    if let Some(retention) = retention_annotation(&rule.retention, &rule.uid) {
        mark("annotations", names::RETENTION, retention);
    }
}

/// A label value has at most 63 characters, but a rule's name may have 253. A longer name is cut,
/// and a hash is appended.
fn label_value(id: &RuleId) -> String {
    let name = match &id.namespace {
        None => id.name.to_string(),
        Some(namespace) => format!("{namespace}.{}", id.name),
    };
    if name.len() <= 63 {
        return name;
    }
    let beginning: String = name.chars().take(54).collect();
    format!(
        "{beginning}-{:08x}",
        Checksum::of(name.as_bytes()).short() >> 32
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::syntax;

    #[test]
    fn a_label_says_which_rule_however_long_its_name_is() {
        let (namespace, long) = ("n".repeat(63), "r".repeat(253));
        let ids = [
            "ClusterReplication/registry".to_owned(),
            format!("ClusterReplication/{}", &long[..63]),
            format!("ClusterReplication/{}", &long[..64]),
            format!("ClusterReplication/{long}"),
            // The cut falls on a character that must not end a label value.
            format!("ClusterReplication/{}.{}", &long[..53], &long[..199]),
            format!("Replication/{namespace}/{long}"),
            format!("Replication/{namespace}/{}", &long[..252]),
            format!("Replication/{namespace}/a"),
        ];
        let labels: BTreeSet<String> = ids
            .iter()
            .map(|id| label_value(&id.parse().unwrap()))
            .collect();
        assert_eq!(labels.len(), ids.len(), "{labels:?}");
        for label in &labels {
            syntax::label_value(label).unwrap();
        }
        assert!(
            labels.contains("registry") && labels.contains(&long[..63]),
            "{labels:?}"
        );
    }
}
