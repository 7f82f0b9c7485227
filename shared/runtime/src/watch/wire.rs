//! Reads the bytes of a watch or a list.

use std::{collections::BTreeMap, time::Duration};

use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::client::Body;
use mimeo_model::known::Decoded;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::{End, Meta, broken};
use crate::object;

/// Annotation of the bookmark that ends a streamed list.
pub(super) const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
/// The size to which the buffer shrinks between events, so that one large object does not cost
/// memory forever.
const KEPT_BUFFER: usize = 64 << 10;

/// A line of a watch. An object is none if not even its metadata can be decoded.
#[allow(clippy::large_enum_variant)] // There is one at a time.
pub(super) enum Line<T> {
    Shown(Option<Decoded<T>>),
    Deleted(Option<Meta>),
    Bookmark(Bookmark),
    Error(Refusal),
}

/// The server writes `type` first, so `object` is parsed directly as the right type.
#[derive(Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
enum Event<T, M> {
    Added(T),
    Modified(T),
    Deleted(M),
    Bookmark(Bookmark),
    Error(Refusal),
}

impl<T: DeserializeOwned> Line<T> {
    /// Reads a line; none if it is not an event.
    pub(super) fn read(line: &[u8]) -> Option<Self> {
        if let Ok(event) = serde_json::from_slice::<Event<T, Meta>>(line) {
            return Some(event.map(|object| Some(Decoded::Whole(object)), Some));
        }
        let event: Event<&RawValue, &RawValue> = serde_json::from_slice(line).ok()?;
        let deleted = |object: &RawValue| match object::decode(object.get().as_bytes())? {
            Decoded::Whole(meta) => Some(meta),
            Decoded::Part(_) => None,
        };
        Some(event.map(|object| object::decode(object.get().as_bytes()), deleted))
    }
}

impl<O, M> Event<O, M> {
    fn map<T>(
        self,
        shown: impl FnOnce(O) -> Option<Decoded<T>>,
        deleted: impl FnOnce(M) -> Option<Meta>,
    ) -> Line<T> {
        match self {
            Self::Added(object) | Self::Modified(object) => Line::Shown(shown(object)),
            Self::Deleted(object) => Line::Deleted(deleted(object)),
            Self::Bookmark(bookmark) => Line::Bookmark(bookmark),
            Self::Error(refusal) => Line::Error(refusal),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Bookmark {
    pub(super) metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BookmarkMeta {
    pub(super) resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl BookmarkMeta {
    /// Whether this bookmark completes a streamed list.
    pub(super) fn ends_list(&self) -> bool {
        self.annotations.contains_key(INITIAL_EVENTS_END)
    }
}

#[derive(Deserialize)]
pub(super) struct Refusal {
    #[serde(default)]
    pub(super) code: u16,
}

/// Reads only the resourceVersion of an event.
#[derive(Deserialize)]
pub(super) struct Dated<'a> {
    #[serde(borrow)]
    pub(super) object: DatedObject<'a>,
}

#[derive(Deserialize)]
pub(super) struct DatedObject<'a> {
    #[serde(borrow)]
    pub(super) metadata: DatedMeta<'a>,
}

#[derive(Deserialize)]
pub(super) struct DatedMeta<'a> {
    #[serde(rename = "resourceVersion")]
    pub(super) version: &'a str,
}

/// A page of a list. An object is none if not even its metadata can be decoded.
pub(super) struct Page<T> {
    pub(super) metadata: ListMeta,
    pub(super) items: Vec<Option<Decoded<T>>>,
}

#[derive(Deserialize)]
struct List<T> {
    metadata: ListMeta,
    /// Null in an empty list of metadata.
    items: Option<Vec<T>>,
}

impl<T: DeserializeOwned> Page<T> {
    /// Reads a page; none if it is not a list.
    pub(super) fn read(page: &[u8]) -> Option<Self> {
        if let Ok(List { metadata, items }) = serde_json::from_slice(page) {
            let items = items
                .into_iter()
                .flatten()
                .map(|object| Some(Decoded::Whole(object)))
                .collect();
            return Some(Self { metadata, items });
        }
        let List::<&RawValue> { metadata, items } = serde_json::from_slice(page).ok()?;
        let items = items
            .into_iter()
            .flatten()
            .map(|object| object::decode(object.get().as_bytes()))
            .collect();
        Some(Self { metadata, items })
    }
}

/// Splits a body into lines. All lines use one buffer.
pub(super) struct Lines {
    body: Body,
    buffer: Vec<u8>,
    /// How much of the buffer was returned already.
    used: usize,
}

impl Lines {
    pub(super) fn new(body: Body) -> Self {
        Self {
            body,
            buffer: Vec::new(),
            used: 0,
        }
    }

    /// Returns the next line. An incomplete line at the end of the body is dropped.
    pub(super) async fn next(&mut self, silence: Duration) -> Result<&[u8], End> {
        let mut searched = self.used;
        loop {
            if let Some(length) = self.buffer[searched..]
                .iter()
                .position(|&byte| byte == b'\n')
            {
                let line = self.used..searched + length;
                self.used = line.end + 1;
                return Ok(&self.buffer[line]);
            }
            self.make_room();
            searched = self.buffer.len();
            let frame = timeout(silence, self.body.frame())
                .await
                .map_err(|_| End::Silent)?;
            let frame = frame.ok_or_else(|| End::Closed("the server closed it".into()))?;
            if let Ok(data) = frame.map_err(|error| broken(&error))?.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    fn make_room(&mut self) {
        self.buffer.drain(..self.used);
        self.used = 0;
        if self.buffer.len() < KEPT_BUFFER {
            self.buffer.shrink_to(KEPT_BUFFER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(90);

    #[tokio::test]
    async fn a_large_event_leaves_no_large_buffer() {
        let large = "x".repeat(1 << 20);
        let body = Body::from(format!("{large}\nsmall\n{large}").into_bytes());
        let mut lines = Lines::new(body);
        assert_eq!(lines.next(WAIT).await.expect("a line").len(), 1 << 20);
        assert_eq!(lines.next(WAIT).await.expect("a line"), b"small");
        assert!(lines.next(WAIT).await.is_err());
        let mut lines = Lines::new(Body::from(format!("{large}\n").into_bytes()));
        assert!(lines.next(WAIT).await.is_ok());
        assert!(lines.next(WAIT).await.is_err());
        assert!(lines.buffer.capacity() <= KEPT_BUFFER);
    }
}
