//! An object's metadata, reduced to the few machine words that decide about a copy.

use std::{num::NonZeroU128, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    choices::{Retention, retaining_rule},
    id::RuleId,
    kind::GroupKind,
    marks::is_copy_mark,
    names,
    ownership::{Claims, editor, is_our_apply, is_our_apply_entry},
    role::Role,
};

/// A `metadata.uid`, as the number its 36 characters spell.
///
/// The API server only hands out UUIDs (RFC 9562). An object with anything else as uid is not
/// understood, and what isn't understood is never ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid(u128);

impl Uid {
    /// Parses the hyphenated form.
    pub fn parse(text: &str) -> Option<Self> {
        let hyphens =
            text.len() == 36 && [8, 13, 18, 23].iter().all(|&i| text.as_bytes()[i] == b'-');
        if !hyphens {
            return None;
        }
        let mut number = 0u128;
        for digit in text.chars().filter(|&c| c != '-') {
            // The API server writes lower case; anything else would not survive the round trip.
            let value = match digit {
                '0'..='9' | 'a'..='f' => digit.to_digit(16)?,
                _ => return None,
            };
            number = number.checked_mul(16)?.checked_add(u128::from(value))?;
        }
        Some(Self(number))
    }
}

impl std::fmt::Display for Uid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n = self.0;
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

/// First 128 bits of SHA-256: wide enough that two renderings never share one by accident or
/// design. Never zero, so that no checksum takes no more room than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Checksum(NonZeroU128);

impl Checksum {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let digest = Sha256::digest(bytes);
        let mut first = [0u8; 16];
        first.copy_from_slice(&digest[..16]);
        Self(NonZeroU128::new(u128::from_be_bytes(first)).unwrap_or(NonZeroU128::MIN))
    }

    /// Of an annotation's text as [`Display`](std::fmt::Display) wrote it.
    pub fn parse(text: &str) -> Option<Self> {
        let number = (text.len() == 32)
            .then(|| u128::from_str_radix(text, 16).ok())
            .flatten();
        number.and_then(NonZeroU128::new).map(Self)
    }

    /// The first half, for where 64 bits tell apart well enough.
    #[allow(clippy::cast_possible_truncation)] // The half that is meant.
    pub fn short(self) -> u64 {
        (self.0.get() >> 64) as u64
    }
}

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A `resourceVersion` as the number that it is.
///
/// Versions of one resource compare as integers (KEP-5504; true of every etcd-backed API server
/// before it, too). One that isn't a number counts as 0: older than anything, so it never passes
/// for our own last write.
pub fn version(text: Option<&str>) -> u64 {
    text.and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// True if an object with this metadata counts as a copy of Mimeo's to selectors: it has the
/// annotation [`names::RULE`] or an apply entry of our manager.
///
/// Anyone who may write an object can forge the annotation. That only keeps the object out of
/// selections. A copy that lost its annotations still has the entry.
pub fn is_copy(metadata: &Value) -> bool {
    metadata["annotations"][names::RULE].is_string()
        || metadata["managedFields"]
            .as_array()
            .into_iter()
            .flatten()
            .any(is_our_apply_entry)
}

/// What an object's metadata says that matters to its cell.
#[allow(clippy::struct_excessive_bools)] // Facts that are true or not, each on its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The object's uid.
    pub uid: Uid,
    /// Its resourceVersion.
    pub version: u64,
    /// The field set of our apply entry, hashed; none if we have no entry: then the object isn't
    /// ours.
    pub entry: Option<u64>,
    /// All of `managedFields`, hashed, times included.
    pub managers: u64,
    /// The rendering that was last written, by its annotation.
    pub checksum: Option<Checksum>,
    /// The rule that it belongs to, by its annotation.
    pub rule: Option<Arc<RuleId>>,
    /// The source that it was copied from, by its annotation, hashed.
    pub source: u64,
    /// When Mimeo last changed it, by our apply entry, in seconds since 1970; 0 if there is none.
    pub written: u32,
    /// When the object was created, in seconds since 1970, which nobody can forge; 0 if that isn't
    /// known.
    pub created: u32,
    /// What few copies have.
    rare: Option<Box<Rare>>,
    /// Whether the label is there by which the watch of copies selects.
    pub labelled: bool,
    /// Whether a deletionTimestamp is set.
    pub deleting: bool,
    /// Whether another cluster's mark is on it.
    pub elsewhere: bool,
    /// Whether a mark is on it that replicators leave on their copies.
    pub marked: bool,
    /// Whether it has all marks of a copy of this cluster and nobody owns a field of it: somebody
    /// has removed the entries of a copy, or has made his object look like that.
    pub stripped: bool,
    /// Whether this process has seen our entry in this very object, whatever has become of it
    /// since.
    pub was_ours: bool,
}

/// What few copies have: kept apart, so that the others are small.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rare {
    /// What is to become of it when its rule is gone; none: delete.
    retention: Option<Retention>,
    /// The uid of the rule that said so, hashed, if it is on the copy.
    retained_by: Option<u64>,
    /// What others own in it.
    claims: Claims,
    /// The field manager that has changed it since Mimeo last did. At most 128 bytes, says the API
    /// server.
    editor: Option<Box<str>>,
}

impl Seen {
    /// Whether Mimeo wrote it: it has an entry of our manager, or had one when this process saw it
    /// before. An entry can be removed by whoever may patch the object; that it is the same object
    /// can't be forged.
    pub fn ours(&self) -> bool {
        self.entry.is_some() || self.was_ours
    }

    /// Since when at most it is as Mimeo made it, in seconds since 1970. Our entry's time can be
    /// forged by whoever may write the object; but before that was created there was no copy.
    pub fn last_made(&self) -> u32 {
        self.written.max(self.created)
    }

    /// What is to become of it when its rule is gone; none: delete.
    pub fn retention(&self) -> Option<&Retention> {
        self.rare.as_ref()?.retention.as_ref()
    }

    /// Whether another rule than the one with this uid, of the same name, left it to stay. It is
    /// this one's once this one has written it.
    pub fn left_by_another(&self, uid: &str) -> bool {
        self.rare
            .as_ref()
            .and_then(|rare| rare.retained_by)
            .is_some_and(|former| former != source_hash(uid))
    }

    /// What others own in it.
    pub fn claims(&self) -> Claims {
        self.rare
            .as_ref()
            .map_or_else(Claims::default, |rare| rare.claims)
    }

    /// The field manager that has changed it since Mimeo last did, if an entry tells of one.
    pub fn editor(&self) -> Option<&str> {
        self.rare.as_ref()?.editor.as_deref()
    }

    /// Whether it may go, or change, and neither a watch nor a write of ours would tell. What
    /// carries our label is shown to whoever watches copies.
    pub fn unwatched(&self, role: Role) -> bool {
        let shown = self.labelled && role == Role::Keeper;
        !shown && (self.deleting || !self.ours())
    }

    /// Reads the metadata of an object of this kind; none if it has no uid that we understand.
    /// `cluster` is the uid of this cluster's `kube-system`.
    pub fn read(meta: &ObjectMeta, kind: &GroupKind, cluster: &str) -> Option<Self> {
        let uid = Uid::parse(meta.uid.as_deref()?)?;
        let annotation = |key: &str| {
            meta.annotations
                .as_ref()
                .and_then(|all| all.get(key))
                .map(String::as_str)
        };
        let entries = meta.managed_fields.as_deref().unwrap_or_default();
        let own = entries.iter().find(|entry| is_our_apply(entry));
        let rare = Rare {
            retention: annotation(names::RETENTION).map(Retention::from_annotation),
            retained_by: annotation(names::RETENTION)
                .and_then(retaining_rule)
                .map(source_hash),
            claims: Claims::of(meta, kind),
            editor: editor(meta).map(Into::into),
        };
        let rare = (rare != Rare::default()).then(|| Box::new(rare));
        let labelled = meta
            .labels
            .as_ref()
            .and_then(|all| all.get(names::MANAGED_BY))
            .is_some_and(|value| value == names::MANAGED_BY_VALUE);
        let checksum = annotation(names::CHECKSUM).and_then(Checksum::parse);
        let rule: Option<RuleId> = annotation(names::RULE).and_then(|id| id.parse().ok());
        let of_here = annotation(names::CLUSTER) == Some(cluster);
        Some(Self {
            uid,
            version: version(meta.resource_version.as_deref()),
            entry: own.map(field_set),
            managers: hash(&entries),
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

/// The form in which [`Seen`] remembers a source.
pub fn source_hash(source: &str) -> u64 {
    Checksum::of(source.as_bytes()).short()
}

/// In seconds since 1970.
pub fn seconds(time: &Time) -> u32 {
    u32::try_from(time.0.as_second()).unwrap_or_default()
}

/// The set of fields alone, without the time: two copies of one rendering have the same.
fn field_set(entry: &ManagedFieldsEntry) -> u64 {
    hash(&(&entry.api_version, &entry.fields_v1))
}

/// Hashes a value's JSON; maps are ordered in it, so equal values hash alike whoever serialized
/// them.
fn hash<T: serde::Serialize>(value: &T) -> u64 {
    // Serializing plain JSON data to memory cannot fail; an empty text would only cost a needless
    // write.
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
