//! Who owns which fields of a copy, by its `managedFields`, and how what is ours becomes ours alone.
//!
//! Server-side apply removes a field that we leave out only if nobody else owns it, and touches none that we never owned. So where
//! a field is to go that others own, too, their claims go first: by a change of `managedFields` alone, which takes no right that an
//! apply doesn't.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta};
use serde_json::{Map, Value};

use crate::names;

/// Manager under which an apply sums up what is in an object without `managedFields`. The API server's word.
const FORMER: &str = "before-first-apply";

/// Our manager may also appear with operation Update or for a subresource when someone else writes under the name; only the
/// apply entry is the one that our own writes leave.
pub(crate) fn is_our_apply(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(names::MANAGER) && entry.operation.as_deref() == Some("Apply") && is_main(entry)
}

/// What is written by way of a subresource is none of a copy's business.
fn is_main(entry: &ManagedFieldsEntry) -> bool {
    entry.subresource.as_deref().is_none_or(str::is_empty)
}

/// A change of a copy's `managedFields` by which its fields become ours alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The new `managedFields`, as JSON. Field names and keys of lists, no values.
    pub managers: Box<str>,
    /// Whether it is for a copy that is to have no fields but ours.
    pub exclusive: bool,
    /// Whether fields are in it that are to go. If not it can wait for the next change of the copy: that may take a field away.
    pub due: bool,
}

impl Claim {
    /// Whether it can't wait, in a copy that is to be `exclusive` or isn't.
    pub fn presses(&self, exclusive: bool) -> bool {
        self.due && (exclusive || !self.exclusive)
    }

    /// What there is to claim in an object; none if it isn't ours, or nothing.
    ///
    /// Fields that others own as well as we are taken from them. Fields that only others own stay theirs, unless the copy is to be
    /// `exclusive`, or it is not known whose they are, since somebody has removed the entries that said so: these become ours,
    /// for the next apply to remove. Finalizers and owner references of others are for them to remove.
    pub fn of(meta: &ObjectMeta, exclusive: bool) -> Option<Self> {
        let entries = meta.managed_fields.as_deref().unwrap_or_default();
        let own = entries.iter().find(|entry| is_our_apply(entry)).filter(|_| entries.len() > 1)?;
        let ours = fields(own)?;
        let mut all = ours.clone();
        let mut others = Vec::new();
        let (mut shared, mut due) = (false, false);
        for entry in entries.iter().filter(|entry| !is_our_apply(entry)) {
            // Paths of different versions can't be compared.
            let theirs = fields(entry).filter(|_| is_main(entry) && entry.api_version == own.api_version);
            let Some(theirs) = theirs else {
                others.push(entry.clone());
                continue;
            };
            let (content, lifeline) = split(theirs);
            let taken = exclusive || entry.manager.as_deref() == Some(FORMER);
            let mut left = if taken { lifeline } else { theirs.clone() };
            if taken && !owns(ours, &content) {
                due = true;
                add(&mut all, &content);
            }
            if shares(ours, theirs) {
                shared = true;
                left = without(&left, ours);
            }
            if !left.is_empty() {
                others.push(ManagedFieldsEntry { fields_v1: Some(FieldsV1(left.into())), ..entry.clone() });
            }
        }
        let own = ManagedFieldsEntry { fields_v1: Some(FieldsV1(all.into())), ..own.clone() };
        let managers = serde_json::to_string(&[vec![own], others].concat()).ok()?;
        (shared || due).then(|| Self { managers: managers.into(), exclusive, due })
    }
}

/// Whether the object had our content, status apart, before we applied it: no other entry owns a field that ours doesn't, and ours
/// has none that was in nobody's. With values that are equal wherever ours and theirs meet (an apply without force has none else),
/// the object's content is ours, no more and no less.
pub fn content_is_ours(meta: &ObjectMeta) -> bool {
    let entries = meta.managed_fields.as_deref().unwrap_or_default();
    let content = |entry: &ManagedFieldsEntry| {
        let mut content = fields(entry).cloned().unwrap_or_default();
        // A Secret's type is there always, of nobody's where it is the default, and another one would have been refused.
        content.retain(|field, _| !matches!(field.as_str(), "f:metadata" | "f:status" | "f:type"));
        content
    };
    // Who applies nothing has no entry.
    let ours = entries.iter().find(|entry| is_our_apply(entry)).map(content).unwrap_or_default();
    let mut theirs = Map::new();
    for entry in entries.iter().filter(|entry| !is_our_apply(entry) && is_main(entry)) {
        add(&mut theirs, &content(entry));
    }
    owns(&ours, &theirs) && owns(&theirs, &ours)
}

fn fields(entry: &ManagedFieldsEntry) -> Option<&Map<String, Value>> {
    entry.fields_v1.as_ref()?.0.as_object()
}

/// A field set without what keeps an object from going or makes it go, and that alone.
fn split(fields: &Map<String, Value>) -> (Map<String, Value>, Map<String, Value>) {
    let (mut content, mut lifeline) = (fields.clone(), Map::new());
    let Some(metadata) = content.get_mut("f:metadata").and_then(Value::as_object_mut) else {
        return (content, lifeline);
    };
    let kept = ["f:finalizers", "f:ownerReferences"].iter().filter_map(|field| metadata.remove_entry(*field));
    let kept: Map<String, Value> = kept.collect();
    if metadata.keys().all(|field| field == PARENT) {
        content.remove("f:metadata");
    }
    if !kept.is_empty() {
        lifeline.insert("f:metadata".into(), kept.into());
    }
    (content, lifeline)
}

/// Stands in a field set for the parent itself, which is there with any of its fields.
const PARENT: &str = ".";

/// Whether the field set `ours` has every field of `theirs`.
fn owns(ours: &Map<String, Value>, theirs: &Map<String, Value>) -> bool {
    theirs.iter().filter(|(field, _)| *field != PARENT).all(|(field, below)| {
        ours.get(field).is_some_and(|ours| match (ours.as_object(), below.as_object()) {
            (Some(ours), Some(below)) => owns(ours, below),
            _ => true,
        })
    })
}

/// Whether two field sets have a field in common.
fn shares(ours: &Map<String, Value>, theirs: &Map<String, Value>) -> bool {
    theirs.iter().filter(|(field, _)| *field != PARENT).any(|(field, below)| {
        ours.get(field).is_some_and(|ours| match (ours.as_object(), below.as_object()) {
            (Some(ours), Some(below)) if !below.is_empty() => shares(ours, below),
            _ => true,
        })
    })
}

/// The fields of `theirs` that `ours` doesn't have.
fn without(theirs: &Map<String, Value>, ours: &Map<String, Value>) -> Map<String, Value> {
    let left = theirs.iter().filter(|(field, _)| *field != PARENT).filter_map(|(field, below)| {
        let left = match (ours.get(field).map(Value::as_object), below.as_object()) {
            (None, _) => below.clone(),
            (Some(Some(ours)), Some(below)) => Some(without(below, ours)).filter(|left| !left.is_empty())?.into(),
            _ => return None,
        };
        Some((field.clone(), left))
    });
    left.collect()
}

/// Adds the fields of `theirs`.
fn add(ours: &mut Map<String, Value>, theirs: &Map<String, Value>) {
    for (field, below) in theirs.iter().filter(|(field, _)| *field != PARENT) {
        match (ours.get_mut(field), below) {
            (None, _) => drop(ours.insert(field.clone(), below.clone())),
            // Without fields of its own it is a field itself.
            (Some(Value::Object(ours)), Value::Object(below)) if !ours.is_empty() => add(ours, below),
            _ => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    /// An object with these entries: manager, operation and field set.
    fn object(entries: &[(&str, &str, Value)]) -> ObjectMeta {
        let entry = |(manager, operation, fields): &(&str, &str, Value)| json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields});
        from_value(json!({"managedFields": entries.iter().map(entry).collect::<Vec<_>>()})).unwrap()
    }

    fn ours() -> (&'static str, &'static str, Value) {
        ("mimeo", "Apply", json!({"f:data": {"f:a": {}, "f:b": {}}, "f:metadata": {"f:labels": {"f:m": {}}}}))
    }

    /// What the claim makes of them: manager and field set.
    fn claimed(others: &[(&str, &str, Value)], exclusive: bool) -> Option<(bool, Vec<(String, Value)>)> {
        let claim = Claim::of(&object(&[&[ours()], others].concat()), exclusive)?;
        let entries: Vec<ManagedFieldsEntry> = serde_json::from_str(&claim.managers).unwrap();
        let fields = |entry: ManagedFieldsEntry| (entry.manager.unwrap(), entry.fields_v1.unwrap().0);
        Some((claim.due, entries.into_iter().map(fields).collect()))
    }

    fn mimeo(fields: Value) -> (String, Value) {
        ("mimeo".into(), fields)
    }

    #[test]
    fn what_others_own_as_well_is_taken_from_them_and_the_rest_is_theirs() {
        let ours = || mimeo(self::ours().2);
        let metadata = || json!({"f:labels": {".": {}, "f:theirs": {}}});
        let added = json!({"f:data": {".": {}, "f:c": {}}, "f:metadata": metadata()});
        assert_eq!(claimed(&[], false), None);
        assert_eq!(claimed(&[("kubectl", "Update", added.clone())], false), None, "they only added");
        let equal = json!({"f:data": {".": {}, "f:a": {}, "f:c": {}}, "f:metadata": metadata()});
        let left = json!({"f:data": {"f:c": {}}, "f:metadata": {"f:labels": {"f:theirs": {}}}});
        let want = vec![ours(), ("kubectl".into(), left)];
        assert_eq!(claimed(&[("kubectl", "Apply", equal)], false), Some((false, want)));
        let forged = json!({"f:data": {"f:a": {}}});
        assert_eq!(claimed(&[("mimeo", "Update", forged)], false), Some((false, vec![ours()])), "under our name");
    }

    #[test]
    fn what_is_nobodys_any_more_becomes_ours() {
        let former = json!({"f:data": {".": {}, "f:a": {}, "f:old": {}}, "f:type": {}});
        let all = json!({
            "f:data": {"f:a": {}, "f:b": {}, "f:old": {}}, "f:type": {}, "f:metadata": {"f:labels": {"f:m": {}}}
        });
        assert_eq!(claimed(&[("before-first-apply", "Update", former)], false), Some((true, vec![mimeo(all)])));
        let same = json!({"f:data": {".": {}, "f:a": {}}});
        let claim = claimed(&[("before-first-apply", "Update", same)], false);
        assert_eq!(claim, Some((false, vec![mimeo(ours().2)])), "nothing is to go");
    }

    #[test]
    fn what_is_exclusive_has_nothing_of_others_but_their_finalizers() {
        let theirs = json!({
            "f:data": {"f:c": {}},
            "f:metadata": {"f:annotations": {".": {}, "f:x": {}}, "f:finalizers": {".": {}, "v:\"a/b\"": {}}},
        });
        let all = json!({
            "f:data": {"f:a": {}, "f:b": {}, "f:c": {}},
            "f:metadata": {"f:labels": {"f:m": {}}, "f:annotations": {".": {}, "f:x": {}}},
        });
        let left = json!({"f:metadata": {"f:finalizers": {".": {}, "v:\"a/b\"": {}}}});
        let want = vec![mimeo(all), ("kubectl".into(), left.clone())];
        assert_eq!(claimed(&[("kubectl", "Update", theirs)], true), Some((true, want)));
        assert_eq!(claimed(&[("kubectl", "Update", left)], true), None, "these alone are no reason");
        let equal = json!({"f:data": {"f:a": {}}});
        assert_eq!(claimed(&[("kubectl", "Update", equal)], true).map(|(due, _)| due), Some(false));
    }

    #[test]
    fn a_status_and_other_versions_are_not_ours_to_claim() {
        let mut object = object(&[ours(), ("kubelet", "Update", ours().2), ("kubectl", "Apply", ours().2)]);
        let entries = object.managed_fields.as_mut().unwrap();
        entries[1].subresource = Some("status".into());
        entries[2].api_version = Some("v2".into());
        assert_eq!(Claim::of(&object, true), None);
        object.managed_fields.as_mut().unwrap().remove(0);
        assert_eq!(Claim::of(&object, true), None, "it isn't ours");
    }
}
