//! Edits of labels, annotations and data by their keys.

use std::collections::{BTreeMap, BTreeSet};

use json_patch::{MoveOperation, PatchOperation, RemoveOperation, jsonptr::PointerBuf};
use serde_json::Value;

use super::{Fields, Use, object_in};
use crate::{
    marks::{is_mark, is_ours, never_carried},
    names,
    refusal::Refusals,
    selection::Glob,
    source::SourceRef,
    syntax::{self, Check},
    template::{Show, Template, check_sample, hint},
};

/// Most keys of one `set`, and most globs of one list.
const KEYS: usize = 64;

/// Edits of labels or of annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edits {
    keys: Keys,
    set: BTreeMap<String, Template>,
}

/// The keys to keep: each key that matches a glob of `include` and none of `exclude`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Keys {
    include: Vec<Glob>,
    exclude: Vec<Glob>,
}

impl Keys {
    fn parse(
        include: &[String],
        exclude: &[String],
        field: &str,
        check: Check,
        refusals: &mut Refusals,
    ) -> Self {
        let include = globs(include, &format!("{field}.include"), check, refusals);
        let exclude = globs(exclude, &format!("{field}.exclude"), check, refusals);
        Self { include, exclude }
    }

    fn keep(&self, key: &str) -> bool {
        self.include.iter().any(|glob| glob.matches(key))
            && !self.exclude.iter().any(|glob| glob.matches(key))
    }
}

/// The different rules for labels and annotations.
#[derive(Clone, Copy)]
pub(super) struct Syntax {
    key: Check,
    value: Check,
}

pub(super) const LABELS: Syntax = Syntax {
    key: syntax::qualified_name,
    value: syntax::label_value,
};

pub(super) const ANNOTATIONS: Syntax = Syntax {
    key: syntax::annotation_key,
    value: |_| Ok(()),
};

impl Edits {
    pub(super) fn parse(
        edits: &mimeo_api::KeyEdits,
        field: &str,
        used: Use<'_>,
        syntax: Syntax,
        refusals: &mut Refusals,
    ) -> Self {
        let mimeo_api::KeyEdits {
            include,
            exclude,
            set,
        } = edits;
        let keys = Keys::parse(include, exclude, field, syntax::key_glob, refusals);
        let set = parse_set(set, &format!("{field}.set"), used, syntax, refusals);
        Self { keys, set }
    }

    /// The labels or annotations of a copy of `source`, which has `from`. Mimeo's own are not
    /// included. `show` returns the text for each variable of the namespace.
    pub(crate) fn copy(&self, from: Option<&Fields>, source: &SourceRef, show: Show<'_>) -> Fields {
        let carried = from
            .into_iter()
            .flatten()
            .filter(|(key, _)| !never_carried(key) && self.keys.keep(key));
        let carried = carried.map(|(key, value)| (key.clone(), value.clone()));
        let set = self.set.iter().map(|(key, template)| {
            let text = template.of_source(source).text(show);
            (key.clone(), text.into())
        });
        carried.chain(set).collect()
    }

    /// Edits the labels or annotations in the field `key` of an object's metadata.
    pub(super) fn rewrite(&self, metadata: &mut Fields, key: &str, namespace: &str) {
        if let Some(there) = metadata.get_mut(key).and_then(Value::as_object_mut) {
            there.retain(|key, value| {
                let our_label = key == names::MANAGED_BY && value == names::MANAGED_BY_VALUE;
                self.keys.keep(key) || is_ours(key) || our_label
            });
        }
        if self.set.is_empty() {
            return;
        }
        let Some(there) = object_in(metadata, key) else {
            return;
        };
        for (key, template) in &self.set {
            there.insert(key.clone(), template.text(|_| namespace).into());
        }
    }
}

/// Edits of the keys of `data`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DataEdits {
    keys: Keys,
    rename: BTreeMap<String, String>,
}

impl DataEdits {
    pub(super) fn parse(
        edits: &mimeo_api::DataEdits,
        field: &str,
        refusals: &mut Refusals,
    ) -> Self {
        let mimeo_api::DataEdits {
            include,
            exclude,
            rename,
        } = edits;
        let keys = Keys::parse(include, exclude, field, syntax::data_glob, refusals);
        refusals.limit(&format!("{field}.rename"), rename.len(), KEYS);
        let mut taken = BTreeSet::new();
        for (old, new) in rename {
            let field = format!("{field}.rename[{old}]");
            refusals.one(&field, syntax::data_key(old));
            refusals.one(&field, syntax::data_key(new));
            if !taken.insert(new) {
                refusals.add(field, format!("another key is renamed to {new:?} as well"));
            }
        }
        Self {
            keys,
            rename: rename.clone(),
        }
    }

    /// Edits the data of a copy.
    ///
    /// # Errors
    /// The name that two keys of the source would have.
    pub(crate) fn copy(&self, body: &mut Fields) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for field in ["data", "binaryData"] {
            let Some(data) = body.get_mut(field).and_then(Value::as_object_mut) else {
                continue;
            };
            for (key, value) in std::mem::take(data)
                .into_iter()
                .filter(|(key, _)| self.keys.keep(key))
            {
                let name = self.rename.get(&key).unwrap_or(&key).clone();
                if !names.insert(name.clone()) {
                    return Err(name);
                }
                data.insert(name, value);
            }
        }
        Ok(())
    }

    /// The changes to the data of an object at admission, without any of the data. A second run
    /// changes nothing. A key that is the new name of another key is never removed, because
    /// an earlier run may have renamed it. A key keeps its old name if the new name is taken.
    pub(crate) fn changes(&self, object: &Value) -> Vec<PatchOperation> {
        let mut changes = Vec::new();
        let fields =
            ["data", "binaryData", "stringData"].map(|field| (field, object[field].as_object()));
        let has = |key: &str| {
            fields
                .iter()
                .any(|(_, data)| data.is_some_and(|data| data.contains_key(key)))
        };
        for (field, data) in &fields {
            for key in data.iter().flat_map(|data| data.keys()) {
                let path = |key: &str| PointerBuf::from_tokens([*field, key]);
                if !self.keys.keep(key) {
                    if !self.rename.values().any(|new| new == key) {
                        let path = path(key);
                        changes.push(PatchOperation::Remove(RemoveOperation { path }));
                    }
                } else if let Some(new) = self.rename.get(key).filter(|new| !has(new)) {
                    let (from, path) = (path(key), path(new));
                    changes.push(PatchOperation::Move(MoveOperation { from, path }));
                }
            }
        }
        changes
    }
}

fn globs(globs: &[String], field: &str, check: Check, refusals: &mut Refusals) -> Vec<Glob> {
    refusals.each(field, globs, KEYS, check);
    globs.iter().map(|glob| Glob::new(glob)).collect()
}

fn parse_set(
    set: &BTreeMap<String, String>,
    field: &str,
    used: Use<'_>,
    Syntax {
        key: check_key,
        value,
    }: Syntax,
    refusals: &mut Refusals,
) -> BTreeMap<String, Template> {
    refusals.limit(field, set.len(), KEYS);
    let mut parsed = BTreeMap::new();
    for (key, text) in set {
        let field = format!("{field}[{key}]");
        refusals.one(&field, check_key(key));
        if is_mark(key) {
            refusals.add(&field, "is reserved for Mimeo");
        }
        let Some(template) = refusals.one(&field, Template::parse(text)) else {
            continue;
        };
        let checked = check_values(&template, used, value);
        refusals.one(&field, checked.map_err(|why| why + &hint(text)));
        parsed.insert(key.clone(), template);
    }
    let sizes = parsed.iter().map(|(key, text)| key.len() + text.longest());
    let most = syntax::ANNOTATIONS_SIZE;
    if sizes.sum::<usize>() > most {
        let message = format!("must not have more than {most} bytes in all keys and values");
        refusals.add(field, message);
    }
    parsed
}

/// Checks the resulting text for each source, and returns only the first error.
fn check_values(template: &Template, used: Use<'_>, check: Check) -> Result<(), String> {
    match (template.literal(), used) {
        (Some(text), _) => check(text),
        (None, Use::Admission) if template.has_only_the_namespace() => {
            check_sample(template, check)
        }
        (None, Use::Admission) => {
            Err("a TransformPolicy has only the variable $(namespace.name)".into())
        }
        (None, Use::Copies(sources)) => sources.iter().try_for_each(|source| {
            check_sample(&template.of_source(source), check)
                .map_err(|why| format!("the value for {source} {why}"))
        }),
    }
}
