//! An object's metadata, reduced to the few values that decide about a copy.

use std::{num::NonZeroU64, ptr, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    choices::{outlives_rule, retaining_rule},
    id::RuleId,
    kind::GroupKind,
    marks::is_copy_mark,
    names,
    ownership::{Claims, editor, is_our_apply, is_our_apply_entry},
};

/// A `metadata.uid`, as the 16 bytes that its 36 characters spell. (A `u128` would be aligned to 16
/// bytes, and each copy would take more memory.)
///
/// The API server assigns only UUIDs (RFC 9562). If the uid of an object is not a UUID, Mimeo does
/// not read the object and never treats it as its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uid([u8; 16]);

impl Uid {
    /// Parses the form with hyphens.
    pub fn parse(text: &str) -> Option<Self> {
        let number = u128::from_str_radix(&text.replace('-', ""), 16).ok()?;
        let uid = Self(number.to_be_bytes());
        // The API server writes lower case and hyphens at fixed places. Another text would print
        // differently than it was read.
        (uid.to_string() == text).then_some(uid)
    }
}

impl std::fmt::Display for Uid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n = u128::from_be_bytes(self.0);
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            n >> 96,
            (n >> 80) & 0xffff,
            (n >> 64) & 0xffff,
            (n >> 48) & 0xffff,
            n & 0xffff_ffff_ffff
        )
    }
}

/// The first 128 bits of a SHA-256 hash, as two halves. Two renderings never share one, neither by
/// accident nor by an attack. The first half is never zero, so that an `Option` needs no extra
/// memory. (A `u128` would be aligned to 16 bytes, and each copy would take more memory.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checksum(NonZeroU64, u64);

impl Checksum {
    /// The checksum of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let digest = Sha256::digest(bytes);
        let half = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let first = NonZeroU64::new(half(&digest[..8])).unwrap_or(NonZeroU64::MIN);
        Self(first, half(&digest[8..16]))
    }

    /// Parses an annotation's text in the form that [`Display`](std::fmt::Display) writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (first, second) = text.split_at_checked(16).filter(|_| text.len() == 32)?;
        let half = |text| u64::from_str_radix(text, 16).ok();
        Some(Self(NonZeroU64::new(half(first)?)?, half(second)?))
    }

    /// The first half, for uses where 64 bits are enough to tell values apart.
    pub fn short(self) -> u64 {
        self.0.get()
    }
}

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}{:016x}", self.0, self.1)
    }
}

/// A `resourceVersion` as a number.
///
/// The versions of one resource compare as integers (KEP-5504; every etcd-backed API server before
/// it behaves the same). A version that is not a number counts as 0. It is then older than all
/// others, so Mimeo never mistakes it for its own last write.
pub fn version(text: Option<&str>) -> u64 {
    text.and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// True if selectors treat an object with this metadata as a copy: it has the annotation
/// [`names::RULE`] or an apply entry of Mimeo's field manager.
///
/// Any user with write access to an object can forge the annotation. This only keeps the object out
/// of selections. A copy that lost its annotations still has the entry.
pub fn is_copy(metadata: &Value) -> bool {
    metadata["annotations"][names::RULE].is_string()
        || metadata["managedFields"]
            .as_array()
            .into_iter()
            .flatten()
            .any(is_our_apply_entry)
}

/// The metadata of an object that may be a copy: the facts that decide about it.
#[allow(clippy::struct_excessive_bools)] // Independent facts, each true or false.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The object's uid.
    pub uid: Uid,
    /// The object's resourceVersion.
    pub version: u64,
    /// Hash of the field set in Mimeo's apply entry. `None` if Mimeo has no entry: the object is
    /// then not Mimeo's copy, unless `was_ours` is true.
    pub entry: Option<u64>,
    /// Hash of all `managedFields`, including the times.
    pub managers: u64,
    /// Checksum of the rendering that was last written, from the annotation.
    pub checksum: Option<Checksum>,
    /// The rule that the copy belongs to, from the annotation.
    pub rule: Option<Arc<RuleId>>,
    /// Hash of the source that the object was copied from, from the annotation.
    pub source: u64,
    /// Time of Mimeo's last change, from its apply entry, in seconds since 1970. 0 without an
    /// entry.
    pub written: u32,
    /// Creation time, in seconds since 1970. No client can forge it. 0 if it is not known.
    pub created: u32,
    /// Facts that only few copies have.
    rare: Option<Box<Rare>>,
    /// True if the object has the label that the watch of copies selects.
    pub labelled: bool,
    /// True if the object has a deletionTimestamp.
    pub deleting: bool,
    /// True if the annotation names another cluster as the writer of the copy.
    pub elsewhere: bool,
    /// True if the object has a label or annotation that replicators leave on their copies.
    pub marked: bool,
    /// True if the object has all labels and annotations of a copy of this cluster, but no entry in
    /// `managedFields`. A user removed the entries of a copy, or made another object look like a
    /// copy.
    pub stripped: bool,
    /// True if this process has seen Mimeo's entry in this same object before. Later changes of the
    /// object do not reset it.
    pub was_ours: bool,
}

/// Facts that only few copies have, stored separately to keep the other copies small in memory.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rare {
    /// True if the copy stays when its rule is deleted.
    outlives_rule: bool,
    /// Hash of the uid of the rule that set the retention, if the copy has it.
    retained_by: Option<u64>,
    /// The fields that other managers own in the copy.
    claims: Claims,
    /// The field manager that changed the object after Mimeo's last change. The API server allows
    /// at most 128 bytes.
    editor: Option<Box<str>>,
}

impl Seen {
    /// True if Mimeo wrote the object: it has an entry of Mimeo's field manager, or had one when
    /// this process saw the object before. Any user with write access to the object can remove the
    /// entry. No user can forge the uid, which shows that it is the same object.
    pub fn ours(&self) -> bool {
        self.entry.is_some() || self.was_ours
    }

    /// A lower bound of the time since which the object is as Mimeo wrote it, in seconds since
    /// 1970. Any user with write access to the object can forge the time in the entry. But the copy
    /// can't be older than the object's creation.
    pub fn last_made(&self) -> u32 {
        self.written.max(self.created)
    }

    /// True if the copy stays when its rule is deleted.
    pub fn outlives_rule(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.outlives_rule)
    }

    /// True if an earlier rule of the same name, with another uid than this, left the copy in
    /// place. The copy belongs to the new rule as soon as the new rule has written it.
    pub fn left_by_another(&self, uid: &str) -> bool {
        self.rare
            .as_ref()
            .and_then(|rare| rare.retained_by)
            .is_some_and(|former| former != source_hash(uid))
    }

    /// The fields that other managers own in the copy.
    pub fn claims(&self) -> Claims {
        let claims = self.rare.as_ref().map(|rare| rare.claims);
        claims.unwrap_or_default()
    }

    /// The field manager that changed the object after Mimeo's last change, if an entry shows one.
    pub fn editor(&self) -> Option<&str> {
        self.rare.as_ref()?.editor.as_deref()
    }

    /// True if the object can disappear or change without Mimeo noticing it by a watch or by its
    /// own writes. A watch of copies selects by Mimeo's label.
    pub fn unwatched(&self, watches_copies: bool) -> bool {
        let shown = self.labelled && watches_copies;
        !shown && (self.deleting || !self.ours())
    }

    /// Reads the metadata of an object of this kind. `None` if its uid is not a UUID. `cluster` is
    /// the uid of this cluster's namespace `kube-system`.
    pub fn read(meta: &ObjectMeta, kind: &GroupKind, cluster: &str) -> Option<Self> {
        let uid = Uid::parse(meta.uid.as_deref()?)?;
        let annotation = |key: &str| Some(meta.annotations.as_ref()?.get(key)?.as_str());
        let entries = meta.managed_fields.as_deref().unwrap_or_default();
        let own = entries.iter().find(|entry| is_our_apply(entry));
        let entry = own.map(field_set);
        let rest: Vec<_> = entries
            .iter()
            .filter(|entry| !own.is_some_and(|own| ptr::eq(own, *entry)))
            .collect();
        let rare = Rare {
            outlives_rule: annotation(names::RETENTION).is_some_and(outlives_rule),
            retained_by: annotation(names::RETENTION)
                .and_then(retaining_rule)
                .map(source_hash),
            claims: Claims::of(meta, kind),
            editor: editor(meta).map(Into::into),
        };
        let rare = (rare != Rare::default()).then(|| Box::new(rare));
        let labels = meta.labels.as_ref();
        let labelled = labels
            .and_then(|all| all.get(names::MANAGED_BY))
            .is_some_and(|value| value == names::MANAGED_BY_VALUE);
        let checksum = annotation(names::CHECKSUM).and_then(Checksum::parse);
        let rule: Option<RuleId> = annotation(names::RULE).and_then(|id| id.parse().ok());
        let of_here = annotation(names::CLUSTER) == Some(cluster);
        Some(Self {
            uid,
            version: version(meta.resource_version.as_deref()),
            entry,
            // Mimeo's own fields are the largest part, and `entry` is their hash already.
            managers: hash(&(entry, own.map(|own| &own.time), rest)),
            stripped: entries.is_empty()
                && labelled
                && of_here
                && rule.is_some()
                && checksum.is_some(),
            checksum,
            rule: rule.map(Arc::new),
            source: annotation(names::SOURCE).map_or(0, source_hash),
            written: own.and_then(|entry| entry.time.as_ref()).map_or(0, seconds),
            created: meta.creation_timestamp.as_ref().map_or(0, seconds),
            rare,
            labelled,
            deleting: meta.deletion_timestamp.is_some(),
            elsewhere: annotation(names::CLUSTER).is_some_and(|uid| uid != cluster),
            marked: [&meta.labels, &meta.annotations]
                .into_iter()
                .flatten()
                .flatten()
                .any(|(key, _)| is_copy_mark(key)),
            was_ours: false,
        })
    }
}

/// The form in which [`Seen`] stores a source.
pub fn source_hash(source: &str) -> u64 {
    Checksum::of(source.as_bytes()).short()
}

/// The time in seconds since 1970.
pub fn seconds(time: &Time) -> u32 {
    u32::try_from(time.0.as_second()).unwrap_or_default()
}

/// Hash of an entry's field set, without the time. Two copies of one rendering have the same hash.
fn field_set(entry: &ManagedFieldsEntry) -> u64 {
    hash(&(&entry.api_version, &entry.fields_v1))
}

/// Hash of a value's JSON. Maps are ordered in it, so equal values have equal hashes.
fn hash<T: serde::Serialize>(value: &T) -> u64 {
    // Plain JSON data always serializes to memory. If it ever failed, the empty text would only
    // cause a needless write.
    Checksum::of(&serde_json::to_vec(value).unwrap_or_default()).short()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn uid_prints_what_it_parsed() {
        let text = "0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5";
        assert_eq!(
            Uid::parse(text).map(|u| u.to_string()).as_deref(),
            Some(text)
        );
        for bad in [
            "",
            "x",
            "0F3E4D5C-1A2B-3C4D-5E6F-708192A3B4C5",
            "0f3e4d5c11a2b-3c4d-5e6f-708192a3b4c5",
            "é3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5",
        ] {
            assert_eq!(Uid::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn checksum_prints_what_it_parsed() {
        let sum = Checksum::of(b"abc");
        assert_eq!(Checksum::parse(&sum.to_string()), Some(sum));
        assert_eq!(Checksum::parse("xyz"), None);
    }

    #[test]
    fn only_our_apply_entry_makes_an_object_ours() {
        let entry =
            |manager: &str, operation: &str, subresource: Option<&str>| ManagedFieldsEntry {
                manager: Some(manager.into()),
                operation: Some(operation.into()),
                subresource: subresource.map(Into::into),
                ..ManagedFieldsEntry::default()
            };
        for (entry, ours) in [
            (entry("mimeo", "Apply", None), true),
            (entry("mimeo", "Apply", Some("")), true),
            (entry("mimeo", "Update", None), false),
            (entry("mimeo", "Apply", Some("status")), false),
            (entry("kubectl", "Apply", None), false),
        ] {
            let meta = ObjectMeta {
                uid: Some("0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5".into()),
                managed_fields: Some(vec![entry.clone()]),
                ..ObjectMeta::default()
            };
            assert_eq!(
                Seen::read(&meta, &"Secret".parse().unwrap(), "").map(|s| s.ours()),
                Some(ours),
                "{entry:?}"
            );
            let metadata = serde_json::to_value(&meta).unwrap();
            assert_eq!(is_copy(&metadata), ours, "{entry:?}");
        }
    }

    #[test]
    fn the_mark_of_any_rule_makes_an_object_a_copy_to_selectors() {
        for (annotations, copy) in [
            (json!({"mimeo.dev/rule": "ClusterReplication/a"}), true),
            (json!({"mimeo.dev/rule": "forged"}), true),
            (json!({"mimeo.dev/source": "v1/Secret/a/b"}), false),
            (json!({"kubed.appscode.com/origin": "x"}), false),
            (Value::Null, false),
        ] {
            let metadata = json!({"annotations": annotations});
            assert_eq!(is_copy(&metadata), copy, "{metadata}");
        }
    }
}
