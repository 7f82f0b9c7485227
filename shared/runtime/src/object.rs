//! Decodes objects as the API server sends them, including parts that no decoder can read.
//!
//! A client with permission to write an object can write its `managedFields`, too, and the API
//! server stores them unchanged. They may nest fields deeper than this program's JSON decoder
//! allows, or hold a time later than its last one. The schema of a custom resource may allow the
//! same in the rest of the object.
//!
//! A defect in one object must not affect any other object. So a defective object is decoded as far
//! as possible, or is reported as undecodable on its own.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::{ListMeta, ObjectMeta};
use mimeo_model::known::Decoded;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};

/// Decodes an object; none if not even its metadata can be decoded. The result depends on the
/// object's own text alone, and not on how deep the object was nested in an answer.
pub fn decode<T: DeserializeOwned>(json: &[u8]) -> Option<Decoded<T>> {
    match serde_json::from_slice(json) {
        Ok(object) => Some(Decoded::Whole(object)),
        Err(_) => mend(json),
    }
}

/// A page of a list. An object is none if not even its metadata can be decoded.
pub(crate) struct Page<T> {
    pub(crate) metadata: ListMeta,
    pub(crate) items: Vec<Option<Decoded<T>>>,
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(default)]
    metadata: ListMeta,
    /// Null in an empty list of metadata. An object without this field is not a list.
    #[serde(borrow, deserialize_with = "Deserialize::deserialize")]
    items: Option<Vec<&'a RawValue>>,
}

impl<T: DeserializeOwned> Page<T> {
    /// Reads a page; none if it is not a list.
    pub(crate) fn read(page: &[u8]) -> Option<Self> {
        let List { metadata, items } = serde_json::from_slice(page).ok()?;
        let items = items
            .into_iter()
            .flatten()
            .map(|object| decode(object.get().as_bytes()))
            .collect();
        Some(Self { metadata, items })
    }
}

/// The text at this JSON pointer.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer)?.as_str()
}

/// The text of each field. Fields are parsed only where necessary: elsewhere [`RawValue`] accepts
/// any depth without recursion.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

fn mend<T: DeserializeOwned>(json: &[u8]) -> Option<Decoded<T>> {
    let mut object: Fields<'_> = serde_json::from_slice(json).ok()?;
    let mut metadata: Fields<'_> = serde_json::from_str(object.get("metadata")?.get()).ok()?;
    let decodable_managers;
    if let Some(managers) = metadata.get_mut("managedFields") {
        // Each entry is decoded on its own, so that Mimeo's entry is found beside any other. Its
        // time says nothing to Mimeo. If Mimeo's own entry were left out for its time, Mimeo would
        // write the copy again and again: a write that changes nothing keeps the time.
        let mut entries: Vec<Fields<'_>> = serde_json::from_str(managers.get()).unwrap_or_default();
        for entry in &mut entries {
            let known = |text: &RawValue| serde_json::from_str::<Time>(text.get()).is_ok();
            entry.retain(|name, text| name != "time" || known(text));
        }
        entries.retain(is_decodable);
        decodable_managers = to_raw_value(&entries).ok()?;
        *managers = &decodable_managers;
    }
    let metadata = to_raw_value(&metadata).ok()?;
    object.insert("metadata".into(), &metadata);
    if let Ok(whole) = serde_json::from_slice(&serde_json::to_vec(&object).ok()?) {
        return Some(Decoded::Whole(whole));
    }
    let part: Map<String, Value> = decodable(object).collect();
    part.contains_key("metadata")
        .then(|| Decoded::Part(part.into()))
}

fn decodable(fields: Fields<'_>) -> impl Iterator<Item = (String, Value)> {
    fields
        .into_iter()
        .filter_map(|(name, text)| Some((name, serde_json::from_str(text.get()).ok()?)))
}

/// True if an object with this entry of `managedFields` alone can be decoded. Fields whose entry is
/// left out count as fields without an owner.
fn is_decodable(entry: &Fields<'_>) -> bool {
    let metadata = BTreeMap::from([("managedFields", [entry])]);
    let object = serde_json::to_string(&BTreeMap::from([("metadata", metadata)]));
    object.is_ok_and(|text| serde_json::from_str::<BTreeMap<&str, ObjectMeta>>(&text).is_ok())
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::watch::Meta;

    /// Nested fields with this many levels, as text: not every encoder could print them.
    pub(crate) fn nested(levels: usize) -> String {
        format!(
            "{}{}",
            r#"{"f:x":"#.repeat(levels - 1) + "{",
            "}".repeat(levels)
        )
    }

    /// Entries that a client can write into `managedFields`.
    pub(crate) fn undecodable() -> [String; 3] {
        let entry = |time: &str, fields: &str| {
            format!(
                r#"{{"manager":"m","operation":"Update","apiVersion":"v1","time":"{time}","fieldsType":"FieldsV1","fieldsV1":{fields}}}"#
            )
        };
        [
            entry("2026-01-01T00:00:00Z", &nested(130)),
            entry("9999-12-31T23:59:59Z", r#"{"f:data":{"f:a":{}}}"#),
            entry("9999-12-31T23:59:59Z", &nested(100_000)),
        ]
    }

    const OWN: &str = r#"{"manager":"mimeo","operation":"Apply","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}"#;

    /// An object with these entries in `managedFields` and these further fields.
    pub(crate) fn object(name: &str, version: u64, entries: &[&str], more: &str) -> String {
        let entries = entries.join(",");
        let metadata = format!(
            r#"{{"name":"{name}","namespace":"team","resourceVersion":"{version}","managedFields":[{entries}]}}"#
        );
        format!(r#"{{"apiVersion":"v1","kind":"Secret","metadata":{metadata}{more}}}"#)
    }

    #[track_caller]
    fn whole<T: DeserializeOwned>(json: &str) -> T {
        match decode(json.as_bytes()) {
            Some(Decoded::Whole(object)) => object,
            Some(Decoded::Part(_)) => panic!("only a part"),
            None => panic!("nothing"),
        }
    }

    #[test]
    fn an_entry_that_cannot_be_decoded_harms_no_other_and_nothing_else() {
        let data = r#","data":{"a":"aHVudGVyMg=="}"#;
        for bad in undecodable() {
            assert!(
                serde_json::from_str::<Meta>(&object("a", 7, &[&bad], "")).is_err(),
                "no test of anything"
            );
            let alone: Meta = whole(&object("a", 7, &[OWN], data));
            for entries in [[&bad, OWN], [OWN, &bad]] {
                let mended: Meta = whole(&object("a", 7, &entries, data));
                let entries = mended.metadata.managed_fields.unwrap_or_default();
                let (own, others): (Vec<_>, Vec<_>) = entries
                    .into_iter()
                    .partition(|entry| entry.manager.as_deref() == Some("mimeo"));
                assert_eq!(Some(own), alone.metadata.managed_fields);
                // Without its time the entry can be decoded, unless its fields can't be.
                let late = serde_json::from_str::<Value>(&bad).is_ok();
                assert_eq!(others.len(), usize::from(late));
                assert!(others.iter().all(|entry| entry.time.is_none()));
            }
            let object: Value = whole(&object("a", 7, &[&bad, OWN], data));
            assert_eq!(object["data"], json!({"a": "aHVudGVyMg=="}));
            let entries = object["metadata"]["managedFields"].as_array();
            let own = serde_json::from_str(OWN).expect("JSON");
            assert!(entries.is_some_and(|entries| entries.contains(&own)));
        }
    }

    /// Otherwise a user who writes such a time into Mimeo's own entry could make Mimeo write the
    /// copy again and again.
    #[test]
    fn an_own_entry_with_an_undecodable_time_is_found() {
        let late = OWN.replace("2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z");
        let [bad, ..] = undecodable();
        for entries in [&[&*late][..], &[&*late, &*bad]] {
            let mended: Meta = whole(&object("a", 7, entries, ""));
            let entries = mended.metadata.managed_fields.unwrap_or_default();
            let [own] = &entries[..] else {
                panic!("{entries:?}")
            };
            assert_eq!((own.manager.as_deref(), &own.time), (Some("mimeo"), &None));
            let sound: Meta = whole(&object("a", 7, &[OWN], ""));
            let sound = sound.metadata.managed_fields.unwrap_or_default();
            assert_eq!(own.fields_v1, sound[0].fields_v1);
        }
    }

    /// An entry must read the same regardless of its neighbours: Mimeo remembers a hash of its own
    /// entry.
    #[test]
    fn what_an_entry_reads_as_depends_on_itself_alone() {
        let [bad, ..] = undecodable();
        // The decoder allows 127 levels, and object, metadata, list and entry take one each.
        for (levels, decodable) in [(122, true), (123, true), (124, false), (500, false)] {
            let own = format!(
                r#"{{"manager":"mimeo","operation":"Apply","fieldsV1":{}}}"#,
                nested(levels)
            );
            let strict = serde_json::from_str::<Value>(&object("a", 7, &[&own], ""));
            assert_eq!(strict.is_ok(), decodable, "{levels}");
            let entries = |entries: &[&str]| {
                whole::<Value>(&object("a", 7, entries, ""))["metadata"]["managedFields"].take()
            };
            let (alone, beside) = (entries(&[&own]), entries(&[&own, &bad]));
            assert_eq!(alone, beside, "{levels}");
            assert_eq!(alone != json!([]), decodable, "{levels}");
        }
    }

    #[test]
    fn what_cannot_be_decoded_elsewhere_is_left_out_and_said() {
        let [bad, ..] = undecodable();
        for deep in [nested(128), nested(100_000), "1e999".into()] {
            let more = format!(r#","spec":{deep},"status":{{"is":"fine"}}"#);
            for entries in [&[OWN][..], &[&bad]] {
                let text = object("a", 7, entries, &more);
                let Some(Decoded::Part(part)) = decode::<Value>(text.as_bytes()) else {
                    panic!("no part")
                };
                assert_eq!(
                    (&part["metadata"]["name"], &part["status"]),
                    (&json!("a"), &json!({"is": "fine"}))
                );
                assert_eq!(part.get("spec"), None);
                // If only the metadata is read, this object is as good as any other.
                assert_eq!(whole::<Meta>(&text).metadata.name.as_deref(), Some("a"));
            }
        }
        let deep = nested(126);
        let object: Value = whole(&object("a", 7, &[&bad], &format!(r#","spec":{deep}"#)));
        assert_eq!(
            object["spec"].to_string(),
            deep,
            "as deep as without that entry"
        );
    }

    #[test]
    fn what_is_no_object_is_none() {
        for text in [
            "",
            "hunter2",
            "{",
            r#"{"metadata":7}"#,
            r#"{"metadata":{"name":7}"#,
        ] {
            assert!(decode::<Meta>(text.as_bytes()).is_none(), "{text}");
        }
    }
}
