//! What is kept of an object in a review, and the memory that it takes.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use crate::{memory, names};

/// What a hook looks at in the objects of a review. No more is kept, so that nothing else can be too much for it: who
/// may write an object may put many values into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Whose copy it is: what it is called, and the annotations that say of which rule and source.
    Marks,
    /// All of `metadata` but owners and `managedFields`; of an old object that has too much of that, its [`Mark`](Self::Mark).
    Metadata,
    /// Which namespace it is, in which version, and its mark.
    Mark,
    /// That, and what a policy rewrites: `type`, and of `data`, `binaryData` and `stringData` the keys.
    Content,
    /// `metadata` and `spec`, and all of who writes it.
    Rule,
}

impl Kept {
    /// The fields that are kept whole, and `metadata`.
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Marks | Self::Metadata | Self::Mark => &["metadata"],
            Self::Content => &["apiVersion", "kind", "metadata", "type"],
            Self::Rule => &["apiVersion", "kind", "metadata", "spec"],
        }
    }

    fn of_metadata(self) -> &'static [&'static str] {
        match self {
            Self::Marks => MARKED,
            Self::Mark => OF_NAMESPACE,
            Self::Metadata | Self::Content | Self::Rule => OF_METADATA,
        }
    }

    /// Of this map in `metadata` these alone.
    fn part(self) -> Option<(&'static str, &'static [&'static str])> {
        match self {
            Self::Marks => Some(("annotations", MARKS)),
            Self::Mark => Some(("labels", &[names::MARK])),
            Self::Metadata | Self::Content | Self::Rule => None,
        }
    }

    /// Of these the keys are kept, each with null: more of a Secret than that is nobody's business here.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Content => &["data", "binaryData", "stringData"],
            Self::Marks | Self::Metadata | Self::Mark | Self::Rule => &[],
        }
    }
}

const MARKED: &[&str] = &["name", "annotations"];
/// Some 80,000 annotations fit into an object.
const MARKS: &[&str] = &[names::RULE, names::SOURCE];
const OF_NAMESPACE: &[&str] = &["name", "uid", "resourceVersion", "deletionTimestamp", "labels"];
const OF_METADATA: &[&str] = &[
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
    /// A map in it of which not all is kept, and what is.
    part: Option<(&'static str, Fields<'a>)>,
    /// Maps of which the keys are kept, and what these take.
    data: Map<String, Value>,
    data_memory: usize,
}

impl<'a> Object<'a> {
    pub(super) fn pick(object: &'a RawValue, kept: Kept) -> serde_json::Result<Self> {
        let pick =
            |object: &'a RawValue, kept| Pick(kept).deserialize(&mut serde_json::Deserializer::from_str(object.get()));
        let is_map = |text: &RawValue| text.get().starts_with('{');
        let mut fields = pick(object, kept.fields())?;
        let metadata = fields.remove("metadata").map(|metadata| pick(metadata, kept.of_metadata())).transpose()?;
        let mut metadata = metadata.unwrap_or_default();
        let part = kept.part().and_then(|(map, keys)| Some((map, metadata.remove(map)?, keys)));
        let part = part.filter(|(_, text, _)| is_map(text));
        let part = part.map(|(map, text, keys)| Ok((map, pick(text, keys)?))).transpose()?;
        let (mut data, mut data_memory) = (Map::new(), 0);
        // Other kinds may have anything under these names.
        let maps = pick(object, kept.keys())?.into_iter().filter(|(_, text)| is_map(text));
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
        Ok(Self { fields, metadata, part, data, data_memory })
    }

    /// Length of the longest text that it is known by.
    pub(super) fn longest_name(&self) -> usize {
        let names = self.metadata.iter().filter(|(key, _)| IDENTITY.contains(key));
        names.map(|(_, text)| text.get().len()).max().unwrap_or_default()
    }

    /// Bytes that it takes at most, once it is parsed.
    pub(super) fn memory(&self) -> usize {
        let part = self.part.iter().flat_map(|(_, part)| part.values());
        self.fields
            .values()
            .chain(self.metadata.values())
            .chain(part)
            .map(|text| memory::of_text(text.get()))
            .sum::<usize>()
            + self.data_memory
    }

    pub(super) fn parse(&self) -> serde_json::Result<Value> {
        let parse = |fields: &Fields<'_>| -> serde_json::Result<Map<String, Value>> {
            fields.iter().map(|(name, text)| Ok(((*name).to_owned(), serde_json::from_str(text.get())?))).collect()
        };
        let mut object = parse(&self.fields)?;
        let mut metadata = parse(&self.metadata)?;
        if let Some((map, part)) = self.part.as_ref().filter(|(_, part)| !part.is_empty()) {
            metadata.insert((*map).into(), parse(part)?.into());
        }
        object.insert("metadata".into(), metadata.into());
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
