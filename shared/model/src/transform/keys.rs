//! Edits of labels, annotations and data by their keys.

use std::collections::BTreeSet;

use json_patch::{MoveOperation, PatchOperation, RemoveOperation, jsonptr::PointerBuf};
use mimeo_api::{DataEdits, KeyEdits};
use serde_json::Value;

use super::{Fields, Use, object_in};
use crate::{
    marks::{is_mark, is_ours, never_carried},
    names,
    refusal::Refusals,
    selection::Glob,
    source::SourceRef,
    syntax::{self, Check},
    template::{Show, Template, Variable, check_sample, checked},
};

/// Most keys of one `set`, and most globs of one list.
const KEYS: usize = 64;

/// True if these lists of globs keep the key: one of `include` matches it, and none of `exclude`.
fn keeps(include: &[String], exclude: &[String], key: &str) -> bool {
    let matches = |globs: &[String]| globs.iter().any(|glob| Glob(glob).matches(key));
    matches(include) && !matches(exclude)
}

/// Checks the edits of labels or of annotations. Refusals name fields below `field`.
pub(super) fn check_keys(
    edits: &KeyEdits,
    field: &str,
    used: Use<'_>,
    check_key: Check,
    check_value: Check,
    refusals: &mut Refusals,
) {
    let KeyEdits {
        include,
        exclude,
        set,
    } = edits;
    refusals.each(&format!("{field}.include"), include, KEYS, syntax::key_glob);
    refusals.each(&format!("{field}.exclude"), exclude, KEYS, syntax::key_glob);
    let field = format!("{field}.set");
    refusals.limit(&field, set.len(), KEYS);
    let mut size = 0;
    for (key, text) in set {
        let field = format!("{field}[{key}]");
        refusals.one(&field, check_key(key));
        if is_mark(key) {
            refusals.add(&field, "is reserved for Mimeo");
        }
        let Some(template) = refusals.one(&field, Template::parse(text)) else {
            continue;
        };
        refusals.one(&field, check_values(&template, used, check_value));
        size += key.len() + template.longest();
    }
    let most = syntax::ANNOTATIONS_SIZE;
    if size > most {
        let message = format!("must not have more than {most} bytes in all keys and values");
        refusals.add(field, message);
    }
}

/// The labels or annotations of a copy of `source`, which has `from`. Mimeo's own are not
/// included. `show` returns the text for each variable of the namespace.
pub(crate) fn copy_keys(
    edits: &KeyEdits,
    from: Option<&Fields>,
    source: &SourceRef,
    show: Show<'_>,
) -> Fields {
    let carried = from
        .into_iter()
        .flatten()
        .filter(|(key, _)| !never_carried(key) && keeps(&edits.include, &edits.exclude, key));
    let carried = carried.map(|(key, value)| (key.clone(), value.clone()));
    let set = edits.set.iter().map(|(key, text)| {
        let text = checked(text).of_source(source).text(show);
        (key.clone(), text.into())
    });
    carried.chain(set).collect()
}

/// Edits the labels or annotations in the field `key` of an object's metadata.
pub(super) fn rewrite_keys(edits: &KeyEdits, metadata: &mut Fields, key: &str, namespace: &str) {
    if let Some(there) = metadata.get_mut(key).and_then(Value::as_object_mut) {
        there.retain(|key, value| {
            let our_label = key == names::MANAGED_BY && value == names::MANAGED_BY_VALUE;
            keeps(&edits.include, &edits.exclude, key) || is_ours(key) || our_label
        });
    }
    if edits.set.is_empty() {
        return;
    }
    let Some(there) = object_in(metadata, key) else {
        return;
    };
    // The texts have no other variable.
    let variable = Variable::Name.to_string();
    for (key, text) in &edits.set {
        there.insert(key.clone(), text.replace(&variable, namespace).into());
    }
}

/// Checks the edits of the keys of `data`. Refusals name fields below `field`.
pub(super) fn check_data(edits: &DataEdits, field: &str, refusals: &mut Refusals) {
    let DataEdits {
        include,
        exclude,
        rename,
    } = edits;
    refusals.each(
        &format!("{field}.include"),
        include,
        KEYS,
        syntax::data_glob,
    );
    refusals.each(
        &format!("{field}.exclude"),
        exclude,
        KEYS,
        syntax::data_glob,
    );
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
}

/// Edits the data of a copy.
///
/// # Errors
/// The name that two keys of the source would have.
pub(crate) fn copy_data(edits: &DataEdits, body: &mut Fields) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for field in ["data", "binaryData"] {
        let Some(data) = body.get_mut(field).and_then(Value::as_object_mut) else {
            continue;
        };
        for (key, value) in std::mem::take(data)
            .into_iter()
            .filter(|(key, _)| keeps(&edits.include, &edits.exclude, key))
        {
            let name = edits.rename.get(&key).unwrap_or(&key).clone();
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
pub(crate) fn data_changes(edits: &DataEdits, object: &Value) -> Vec<PatchOperation> {
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
            if !keeps(&edits.include, &edits.exclude, key) {
                if !edits.rename.values().any(|new| new == key) {
                    let path = path(key);
                    changes.push(PatchOperation::Remove(RemoveOperation { path }));
                }
            } else if let Some(new) = edits.rename.get(key).filter(|new| !has(new)) {
                let (from, path) = (path(key), path(new));
                changes.push(PatchOperation::Move(MoveOperation { from, path }));
            }
        }
    }
    changes
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
