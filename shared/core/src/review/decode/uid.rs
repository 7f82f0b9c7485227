//! The uid of a review that can't be decoded: the answer needs it all the same.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};

use super::WORD_LENGTH;

/// `request.uid`, out of a body that goes wrong elsewhere, even if it goes wrong further on.
pub(in crate::review) fn find_uid(body: &[u8]) -> Option<String> {
    let mut found = None;
    let search = Search { path: &["request", "uid"], found: &mut found };
    // An error only means that reading stopped; what had been found by then counts.
    let _stopped = search.deserialize(&mut serde_json::Deserializer::from_slice(body));
    found.filter(|uid| uid.len() <= WORD_LENGTH)
}

/// Notes the string at `path` as it passes by.
struct Search<'a> {
    path: &'a [&'static str],
    found: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Search<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.path.is_empty() {
            *self.found = Some(String::deserialize(deserializer)?);
            return Ok(());
        }
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Search<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((next, path)) = self.path.split_first() else { return Ok(()) };
        while let Some(key) = map.next_key::<String>()? {
            if key == *next {
                map.next_value_seed(Search { path, found: self.found })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}
