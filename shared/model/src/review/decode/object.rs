//! The parts of an object that a hook needs.

use std::{cell::Cell, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use crate::names;

/// The parts of a review's objects that a hook needs. The decoder skips all other parts, so that
/// the author of an object cannot make the review unreadable with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The name, and the annotations with the rule and the source of a copy.
    Marks,
    /// All of `metadata` except owners and `managedFields`. If an old object has too many values
    /// there, only its [`Mark`](Self::Mark).
    Metadata,
    /// The identity of a namespace, its resourceVersion and its pending label.
    Mark,
    /// The metadata and the fields that a policy changes: `type`, and the keys of `data`,
    /// `binaryData` and `stringData`.
    Content,
    /// `metadata` and `spec`, and the whole user of the request.
    Rule,
}

impl Kept {
    fn parts(self) -> Part {
        match self {
            Self::Marks => Part::Fields(&[], &[("metadata", MARKED)]),
            Self::Metadata => Part::Fields(&[], &[("metadata", METADATA)]),
            Self::Mark => Part::Fields(&[], &[("metadata", OF_NAMESPACE)]),
            Self::Content => Part::Fields(
                &["apiVersion", "kind", "type"],
                &[
                    ("metadata", METADATA),
                    ("data", Part::Keys),
                    ("binaryData", Part::Keys),
                    ("stringData", Part::Keys),
                ],
            ),
            Self::Rule => Part::Fields(&["apiVersion", "kind", "spec"], &[("metadata", METADATA)]),
        }
    }
}

const MARKED: Part = Part::Fields(&["name"], &[("annotations", MARKS)]);
const MARKS: Part = Part::Fields(&[names::RULE, names::SOURCE], &[]);
const OF_NAMESPACE: Part = Part::Fields(
    &["name", "uid", "resourceVersion", "deletionTimestamp"],
    &[("labels", Part::Fields(&[names::PENDING_LABEL], &[]))],
);
const METADATA: Part = Part::Fields(
    &[
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
    ],
    &[],
);

/// Most values in the kept parts of one object. A map counts as five values, because its first node
/// takes as much memory. The limit allows about 4 MiB. The largest rule within its schema has half
/// as many values.
const VALUES: usize = 20_000;
const MAP: usize = 5;
/// Longest key of `data`, in bytes.
const KEY_LENGTH: usize = 253;
/// The error for too many values. The parser appends a position to it.
pub(super) const TOO_MANY: &str = "too many values";

/// Parses the kept parts of an object.
pub(super) fn parse(object: &RawValue, kept: Kept) -> serde_json::Result<Value> {
    let left = Cell::new(VALUES);
    let parts = Parse {
        part: kept.parts(),
        left: &left,
    };
    parts.deserialize(&mut serde_json::Deserializer::from_str(object.get()))
}

/// A part of a JSON value.
#[derive(Clone, Copy)]
enum Part {
    Whole,
    /// The keys of a map, each with the value null, because no hook needs the values of a Secret.
    /// Nothing of a value that is not a map: other kinds may have any value under the same name.
    Keys,
    /// These fields of a map: those that are kept whole, and those of which a part is kept.
    Fields(&'static [&'static str], &'static [(&'static str, Part)]),
}

/// Parses a part of a value, within the number of values that are left.
#[derive(Clone, Copy)]
struct Parse<'a> {
    part: Part,
    left: &'a Cell<usize>,
}

impl Parse<'_> {
    fn take<E: Error>(self, count: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(count);
        self.left.set(left.ok_or_else(|| E::custom(TOO_MANY))?);
        Ok(())
    }

    fn scalar<E: Error>(self, value: impl Into<Value>) -> Result<Value, E> {
        self.take(1)?;
        match self.part {
            Part::Whole => Ok(value.into()),
            Part::Keys => Ok(Value::Null),
            Part::Fields(..) => Err(Error::custom("no map")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Parse<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Parse<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.take(1)?;
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        match self.part {
            Part::Whole => {
                self.take(1)?;
                while let Some(item) = list.next_element_seed(self)? {
                    items.push(item);
                }
                Ok(items.into())
            }
            Part::Keys => {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Value::Null)
            }
            Part::Fields(..) => Err(Error::custom("no map")),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        self.take(MAP)?;
        while let Some(key) = map.next_key::<String>()? {
            let part = match self.part {
                Part::Whole => Some(Part::Whole),
                Part::Keys => None,
                Part::Fields(whole, _) if whole.contains(&&*key) => Some(Part::Whole),
                Part::Fields(_, parts) => {
                    let field = parts.iter().find(|(name, _)| *name == key);
                    field.map(|(_, part)| *part)
                }
            };
            let Some(part) = part else {
                map.next_value::<IgnoredAny>()?;
                if matches!(self.part, Part::Keys) && key.len() <= KEY_LENGTH {
                    self.take(1)?;
                    fields.insert(key, Value::Null);
                }
                continue;
            };
            let value = map.next_value_seed(Self { part, ..self })?;
            if matches!(part, Part::Whole) || value.is_object() {
                fields.insert(key, value);
            }
        }
        Ok(fields.into())
    }
}
