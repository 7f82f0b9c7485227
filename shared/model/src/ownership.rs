//! The owners of a copy's fields, as `managedFields` lists them, and the transfer of fields to
//! Mimeo alone.
//!
//! If an apply leaves out a field, the API server removes it only if no other manager owns it. An
//! apply never removes a field that its manager did not own. So Mimeo first takes over the unwanted
//! fields of other owners. It changes `managedFields` alone for this, which needs no permission
//! beyond an apply's.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta};
use serde_json::{Map, Value, json};

use crate::{
    kind::{GroupKind, assigned},
    names,
};

/// The fields that a manager owns, each with the fields below it.
type FieldSet = Map<String, Value>;

/// The manager that the API server names when it sums up an object without `managedFields` before
/// an apply.
const FORMER: &str = "before-first-apply";

/// True for the entry that Mimeo's own writes leave. Another client may write under the same
/// manager name, but with the operation Update or for a subresource. Such an entry does not count.
pub(crate) fn is_our_apply(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(names::MANAGER)
        && entry.operation.as_deref() == Some("Apply")
        && is_main(entry)
}

/// The same check for an entry as JSON.
pub(crate) fn is_our_apply_entry(entry: &Value) -> bool {
    entry["manager"] == names::MANAGER
        && entry["operation"] == "Apply"
        && entry["subresource"].as_str().is_none_or(str::is_empty)
}

/// True if the entry is not about a subresource. Copies have nothing to do with writes to
/// subresources.
fn is_main(entry: &ManagedFieldsEntry) -> bool {
    entry.subresource.as_deref().is_none_or(str::is_empty)
}

/// The fields that other managers own in a copy. The copy's rule decides if Mimeo takes them over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Some fields that Mimeo owns have other owners, too.
    pub shared: bool,
    /// Some fields have only other owners.
    pub added: bool,
    /// Some fields have an unknown owner, because a client removed the entries of the owner.
    pub orphaned: bool,
}

impl Claims {
    /// The claims of other managers on an object of this kind. All false if the object is not a
    /// copy.
    pub fn of(meta: &ObjectMeta, kind: &GroupKind) -> Self {
        let mut claims = Self::default();
        let Some((own, ours)) = own(meta) else {
            return claims;
        };
        for entry in others(meta) {
            let Some(theirs) = comparable(entry, own) else {
                continue;
            };
            claims.shared |= shares(ours, theirs);
            let adds = !owns(ours, &content(theirs, kind));
            claims.orphaned |= adds && is_former(entry);
            claims.added |= adds && !is_former(entry);
        }
        claims
    }

    /// True if some fields must go from the copy. `exclusive` means that only Mimeo may own fields.
    pub fn has_excess(self, exclusive: bool) -> bool {
        self.orphaned || exclusive && self.added
    }

    /// True if there is anything to take over. If [`Self::has_excess`] is false, this can wait for
    /// the next change of the copy, which may remove a field.
    pub fn any(self, exclusive: bool) -> bool {
        self.shared || self.has_excess(exclusive)
    }
}

/// The new `managedFields`, as JSON, that make the fields of this copy Mimeo's alone. `None` if
/// there is nothing to take over.
///
/// - A field that others own together with Mimeo becomes Mimeo's alone.
/// - A field that only others own stays theirs, unless the copy is `exclusive` or the owner is
///   unknown. Then it becomes Mimeo's, and the next apply removes it.
/// - Finalizers and owner references of others stay theirs, because only they may remove them.
///   Fields that the cluster assigned stay as well, because no client can remove them.
pub fn claim(meta: &ObjectMeta, kind: &GroupKind, exclusive: bool) -> Option<String> {
    let (own, ours) = own(meta).filter(|_| Claims::of(meta, kind).any(exclusive))?;
    let mut all = ours.clone();
    let mut left = Vec::new();
    for entry in others(meta) {
        let Some(theirs) = comparable(entry, own) else {
            left.push(entry.clone());
            continue;
        };
        let mut theirs = theirs.clone();
        if exclusive || is_former(entry) {
            let content = content(&theirs, kind);
            add(&mut all, &content);
            theirs = without(&theirs, &content);
        }
        if shares(ours, &theirs) {
            theirs = without(&theirs, ours);
        }
        if !theirs.is_empty() {
            left.push(ManagedFieldsEntry {
                fields_v1: Some(FieldsV1(theirs.into())),
                ..entry.clone()
            });
        }
    }
    let own = ManagedFieldsEntry {
        fields_v1: Some(FieldsV1(all.into())),
        ..own.clone()
    };
    serde_json::to_string(&[vec![own], left].concat()).ok()
}

/// True if Mimeo's entry owns the same fields as all other entries together, except metadata and
/// status. The object then had the copy's content already before Mimeo applied it. The values are
/// equal, too: an apply without force fails if a shared field has another value.
pub fn content_is_ours(meta: &ObjectMeta) -> bool {
    let content = |entry: &ManagedFieldsEntry| {
        let mut content = fields(entry).cloned().unwrap_or_default();
        // Every Secret has a type. The default type has no owner, and the API server would have
        // refused a change of the type.
        content.retain(|field, _| !matches!(field.as_str(), "f:metadata" | "f:status" | "f:type"));
        content
    };
    // A manager that applies no fields has no entry.
    let ours = own(meta).map(|(own, _)| content(own)).unwrap_or_default();
    let mut theirs = Map::new();
    for entry in others(meta).filter(|entry| is_main(entry)) {
        add(&mut theirs, &content(entry));
    }
    owns(&ours, &theirs) && owns(&theirs, &ours)
}

/// The field manager that changed the object after Mimeo's last change. With several managers, it
/// is the latest. `None` if no entry shows one.
///
/// A manager that only removes a field leaves no entry, because entries list only fields set by a
/// manager.
pub fn editor(meta: &ObjectMeta) -> Option<&str> {
    let (own, _) = own(meta)?;
    let since =
        others(meta).filter(|entry| is_main(entry) && !is_former(entry) && entry.time >= own.time);
    since
        .max_by_key(|entry| entry.time.as_ref().map(|time| time.0))?
        .manager
        .as_deref()
}

fn fields(entry: &ManagedFieldsEntry) -> Option<&FieldSet> {
    entry.fields_v1.as_ref()?.0.as_object()
}

/// Mimeo's entry and its field set.
fn own(meta: &ObjectMeta) -> Option<(&ManagedFieldsEntry, &FieldSet)> {
    let own = meta
        .managed_fields
        .iter()
        .flatten()
        .find(|entry| is_our_apply(entry))?;
    Some((own, fields(own)?))
}

fn others(meta: &ObjectMeta) -> impl Iterator<Item = &ManagedFieldsEntry> {
    meta.managed_fields
        .iter()
        .flatten()
        .filter(|entry| !is_our_apply(entry))
}

/// The field set of another entry, if it can be compared with Mimeo's. Paths of different API
/// versions can't be compared.
fn comparable<'a>(entry: &'a ManagedFieldsEntry, own: &ManagedFieldsEntry) -> Option<&'a FieldSet> {
    fields(entry).filter(|_| is_main(entry) && entry.api_version == own.api_version)
}

fn is_former(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(FORMER)
}

/// The field set without finalizers and owner references, which control the deletion of the object,
/// and without fields that the cluster assigned.
fn content(fields: &FieldSet, kind: &GroupKind) -> FieldSet {
    let left_out = LIFELINE.iter().chain(assigned(&kind.group, &kind.kind));
    without_paths(fields, "f:", left_out)
}

const LIFELINE: &[&[&str]] = &[
    &["metadata", "finalizers"],
    &["metadata", "ownerReferences"],
];

/// The fields without those at these paths, and without parents that then have none. In `fields`
/// each name begins with `prefix`.
pub(crate) fn without_paths<'a>(
    fields: &FieldSet,
    prefix: &str,
    paths: impl Iterator<Item = &'a &'a [&'a str]>,
) -> FieldSet {
    let mut left_out = json!({});
    for path in paths {
        let names = path.iter().map(|name| format!("{prefix}{name}"));
        *names.fold(&mut left_out, |parent, name| &mut parent[name]) = true.into();
    }
    without(fields, left_out.as_object().unwrap_or(&FieldSet::new()))
}

/// In a field set this key stands for the parent itself, which exists with any of its fields.
const PARENT: &str = ".";

/// The fields of a set, without the parent itself.
fn fields_of(set: &FieldSet) -> impl Iterator<Item = (&String, &Value)> {
    set.iter().filter(|(field, _)| *field != PARENT)
}

/// True if the field set `ours` has every field of `theirs`.
fn owns(ours: &FieldSet, theirs: &FieldSet) -> bool {
    without(theirs, ours).is_empty()
}

/// True if the two field sets have a field in common.
fn shares(ours: &FieldSet, theirs: &FieldSet) -> bool {
    fields_of(theirs).any(|(field, below)| {
        ours.get(field)
            .is_some_and(|ours| match (ours.as_object(), below.as_object()) {
                (Some(ours), Some(below)) if !below.is_empty() => shares(ours, below),
                _ => true,
            })
    })
}

/// The fields of `theirs` that are not in `ours`.
fn without(theirs: &FieldSet, ours: &FieldSet) -> FieldSet {
    let left = fields_of(theirs).filter_map(|(field, below)| {
        let left = match (ours.get(field).map(Value::as_object), below.as_object()) {
            (None, _) => below.clone(),
            (Some(Some(ours)), Some(below)) => Some(without(below, ours))
                .filter(|left| !left.is_empty())?
                .into(),
            _ => return None,
        };
        Some((field.clone(), left))
    });
    left.collect()
}

/// Adds the fields of `theirs` to `ours`.
fn add(ours: &mut FieldSet, theirs: &FieldSet) {
    for (field, below) in fields_of(theirs) {
        match (ours.get_mut(field), below) {
            (None, _) => drop(ours.insert(field.clone(), below.clone())),
            // An empty map is a leaf: the field itself.
            (Some(Value::Object(ours)), Value::Object(below)) if !ours.is_empty() => {
                add(ours, below);
            }
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
        (
            "mimeo",
            "Apply",
            json!({"f:data": {"f:a": {}, "f:b": {}}, "f:metadata": {"f:labels": {"f:m": {}}}}),
        )
    }

    /// The entries after the transfer: manager and field set.
    fn claimed(
        others: &[(&str, &str, Value)],
        exclusive: bool,
    ) -> Option<(bool, Vec<(String, Value)>)> {
        claimed_of("Secret", others, exclusive)
    }

    fn claimed_of(
        kind: &str,
        others: &[(&str, &str, Value)],
        exclusive: bool,
    ) -> Option<(bool, Vec<(String, Value)>)> {
        let (object, kind) = (object(&[&[ours()], others].concat()), kind.parse().unwrap());
        let claims = Claims::of(&object, &kind);
        let managers = claim(&object, &kind, exclusive);
        assert_eq!(claims.any(exclusive), managers.is_some());
        let entries: Vec<ManagedFieldsEntry> = serde_json::from_str(&managers?).unwrap();
        let fields =
            |entry: ManagedFieldsEntry| (entry.manager.unwrap(), entry.fields_v1.unwrap().0);
        Some((
            claims.has_excess(exclusive),
            entries.into_iter().map(fields).collect(),
        ))
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
        assert_eq!(
            claimed(&[("kubectl", "Update", added.clone())], false),
            None,
            "they only added"
        );
        let equal = json!({"f:data": {".": {}, "f:a": {}, "f:c": {}}, "f:metadata": metadata()});
        let left = json!({"f:data": {"f:c": {}}, "f:metadata": {"f:labels": {"f:theirs": {}}}});
        let want = vec![ours(), ("kubectl".into(), left)];
        assert_eq!(
            claimed(&[("kubectl", "Apply", equal)], false),
            Some((false, want))
        );
        let forged = json!({"f:data": {"f:a": {}}});
        assert_eq!(
            claimed(&[("mimeo", "Update", forged)], false),
            Some((false, vec![ours()])),
            "under our name"
        );
    }

    #[test]
    fn what_is_nobodys_any_more_becomes_ours() {
        let former = json!({"f:data": {".": {}, "f:a": {}, "f:old": {}}, "f:type": {}});
        let all = json!({
            "f:data": {"f:a": {}, "f:b": {}, "f:old": {}}, "f:type": {}, "f:metadata": {"f:labels": {"f:m": {}}}
        });
        assert_eq!(
            claimed(&[("before-first-apply", "Update", former)], false),
            Some((true, vec![mimeo(all)]))
        );
        let same = json!({"f:data": {".": {}, "f:a": {}}});
        let claim = claimed(&[("before-first-apply", "Update", same)], false);
        assert_eq!(
            claim,
            Some((false, vec![mimeo(ours().2)])),
            "nothing is to go"
        );
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
        assert_eq!(
            claimed(&[("kubectl", "Update", theirs)], true),
            Some((true, want))
        );
        assert_eq!(
            claimed(&[("kubectl", "Update", left)], true),
            None,
            "these alone are no reason"
        );
        let equal = json!({"f:data": {"f:a": {}}});
        assert_eq!(
            claimed(&[("kubectl", "Update", equal)], true).map(|(due, _)| due),
            Some(false)
        );
    }

    #[test]
    fn a_status_and_other_versions_are_not_ours_to_claim() {
        let mut object = object(&[
            ours(),
            ("kubelet", "Update", ours().2),
            ("kubectl", "Apply", ours().2),
        ]);
        let entries = object.managed_fields.as_mut().unwrap();
        entries[1].subresource = Some("status".into());
        entries[2].api_version = Some("v2".into());
        let secret = "Secret".parse().unwrap();
        assert_eq!(claim(&object, &secret, true), None);
        let entries = object.managed_fields.as_mut().unwrap();
        entries.remove(0);
        entries[1].api_version = Some("v1".into());
        assert_eq!(
            Claims::of(&object, &secret),
            Claims::default(),
            "it isn't ours"
        );
    }

    /// An apply without the field would be refused, because the API server lets no client change
    /// it.
    #[test]
    fn what_the_cluster_assigned_is_left_to_whoever_has_it() {
        let bound = || json!({"f:spec": {"f:volumeName": {}}});
        for (manager, exclusive) in [
            ("before-first-apply", false),
            ("before-first-apply", true),
            ("binder", true),
        ] {
            let of = |kind, fields| claimed_of(kind, &[(manager, "Update", fields)], exclusive);
            assert_eq!(of("PersistentVolumeClaim", bound()), None, "{manager}");
            assert!(of("ConfigMap", bound()).is_some(), "{manager}");
            let more = json!({"f:data": {"f:a": {}}, "f:spec": {".": {}, "f:volumeName": {}, "f:old": {}}});
            let mut all = ours().2;
            all["f:spec"] = json!({"f:old": {}});
            let want = vec![mimeo(all), (manager.into(), bound())];
            assert_eq!(
                of("PersistentVolumeClaim", more),
                Some((true, want)),
                "{manager}"
            );
        }
    }
}
