//! What is kept of an object in a review, and the memory that it takes.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use crate::memory;

/// What is kept of an object. `managedFields`, which grow with it, are not.
pub(super) const KEPT: &[&str] = &["apiVersion", "kind", "metadata", "type"];
/// Of these the keys are kept, each with null: more of a Secret than that is nobody's business here.
const KEYS_KEPT: &[&str] = &["data", "binaryData", "stringData"];
/// What is kept of one of Mimeo's own, besides.
pub(super) const KEPT_OF_OWN: &[&str] = &["apiVersion", "kind", "metadata", "spec"];
const KEPT_OF_METADATA: &[&str] = &[
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "annotations",
    "finalizers",
];
/// What of it is as short as a name, and stands in logs.
pub(super) const IDENTITY: &[&str] = &["name", "generateName", "namespace", "uid", "resourceVersion"];
/// Most memory for what is kept of one object, in bytes: a rule as large as its schema allows takes half of it.
pub(super) const KEPT_MEMORY: usize = 4 << 20;

/// The parts of an object that are kept, as text.
pub(super) struct Object<'a> {
    fields: Fields<'a>,
    metadata: Fields<'a>,
    /// Maps of which the keys are kept, and what these take.
    data: Map<String, Value>,
    data_memory: usize,
}

impl<'a> Object<'a> {
    pub(super) fn pick(object: &'a RawValue, kept: &'static [&'static str]) -> serde_json::Result<Self> {
        let pick =
            |object: &'a RawValue, kept| Pick(kept).deserialize(&mut serde_json::Deserializer::from_str(object.get()));
        let mut fields = pick(object, kept)?;
        let metadata = fields.remove("metadata").map(|metadata| pick(metadata, KEPT_OF_METADATA)).transpose()?;
        let (mut data, mut data_memory) = (Map::new(), 0);
        // Other kinds may have anything under these names.
        let maps = pick(object, KEYS_KEPT)?.into_iter().filter(|(_, text)| text.get().starts_with('{'));
        for (name, text) in maps {
            // All but the values' own text, which isn't kept.
            data_memory += memory::of_text(text.get()) - text.get().len();
            if data_memory > KEPT_MEMORY {
                break;
            }
            let keys = keys(text.get())?;
            data_memory += keys.keys().map(String::len).sum::<usize>();
            data.insert(name.to_owned(), keys.into());
        }
        Ok(Self { fields, metadata: metadata.unwrap_or_default(), data, data_memory })
    }

    /// Length of the longest text that it is known by.
    pub(super) fn longest_name(&self) -> usize {
        let names = self.metadata.iter().filter(|(key, _)| IDENTITY.contains(key));
        names.map(|(_, text)| text.get().len()).max().unwrap_or_default()
    }

    /// Bytes that it takes at most, once it is parsed.
    pub(super) fn memory(&self) -> usize {
        let parts = self.fields.values().chain(self.metadata.values());
        parts.map(|text| memory::of_text(text.get())).sum::<usize>() + self.data_memory
    }

    pub(super) fn parse(&self) -> serde_json::Result<Value> {
        let parse = |fields: &Fields<'_>| -> serde_json::Result<Map<String, Value>> {
            fields.iter().map(|(name, text)| Ok(((*name).to_owned(), serde_json::from_str(text.get())?))).collect()
        };
        let mut object = parse(&self.fields)?;
        object.insert("metadata".into(), parse(&self.metadata)?.into());
        object.extend(self.data.clone());
        Ok(object.into())
    }
}

/// The keys of a map, as long as keys of data may be.
fn keys(json: &str) -> serde_json::Result<Map<String, Value>> {
    const LONGEST: usize = 253;
    #[allow(clippy::zero_sized_map_values)] // It is a map in the text.
    let keys: BTreeMap<String, IgnoredAny> = serde_json::from_str(json)?;
    Ok(keys.into_keys().filter(|key| key.len() <= LONGEST).map(|key| (key, Value::Null)).collect())
}

pub(super) type Fields<'a> = BTreeMap<&'static str, &'a RawValue>;

/// Takes the fields of these names out of an object, as text.
struct Pick(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Pick {
    type Value = Fields<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Pick {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields::new();
        while let Some(key) = map.next_key::<String>()? {
            if let Some(name) = self.0.iter().find(|name| **name == key) {
                fields.insert(name, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(fields)
    }
}
