//! Reads the bytes of a watch or a list.

use std::time::Duration;

use kube::core::ListMeta;
use mimeo_model::known::Decoded;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt},
    time::timeout,
};

use super::{End, Meta};
use crate::object;

/// The size to which the buffer shrinks between events, so that one large object does not cost
/// memory forever.
const KEPT_BUFFER: usize = 64 << 10;

/// A line of a watch. The server writes `type` first, so `object` is parsed directly as the right
/// type.
#[allow(clippy::large_enum_variant)] // There is one at a time.
#[derive(Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
pub(super) enum Line<T, M> {
    #[serde(rename = "ADDED", alias = "MODIFIED")]
    Shown(T),
    Deleted(M),
    Bookmark(Meta),
    Error(Refusal),
}

impl<T: DeserializeOwned> Line<Option<Decoded<T>>, Option<Meta>> {
    /// Reads a line; none if it is not an event. An object is none if not even its metadata can be
    /// decoded.
    pub(super) fn read(line: &[u8]) -> Option<Self> {
        if let Ok(event) = serde_json::from_slice::<Line<T, Meta>>(line) {
            return Some(event.map(|object| Some(Decoded::Whole(object)), Some));
        }
        let event: Line<&RawValue, &RawValue> = serde_json::from_slice(line).ok()?;
        let deleted = |object: &RawValue| object::decode(object.get().as_bytes())?.whole();
        Some(event.map(|object| object::decode(object.get().as_bytes()), deleted))
    }
}

impl<T, M> Line<T, M> {
    fn map<U, N>(self, shown: impl FnOnce(T) -> U, deleted: impl FnOnce(M) -> N) -> Line<U, N> {
        match self {
            Self::Shown(object) => Line::Shown(shown(object)),
            Self::Deleted(object) => Line::Deleted(deleted(object)),
            Self::Bookmark(bookmark) => Line::Bookmark(bookmark),
            Self::Error(refusal) => Line::Error(refusal),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Refusal {
    #[serde(default)]
    pub(super) code: u16,
}

/// Reads only the resourceVersion of an event. `ListMeta` has this field and skips the object's
/// other metadata.
#[derive(Deserialize)]
pub(super) struct Dated {
    pub(super) object: DatedObject,
}

#[derive(Deserialize)]
pub(super) struct DatedObject {
    pub(super) metadata: ListMeta,
}

/// Replaces the line by the next one. An incomplete line at the end of the body is dropped.
pub(super) async fn next_line(
    body: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
    silence: Duration,
) -> Result<(), End> {
    line.clear();
    line.shrink_to(KEPT_BUFFER);
    match timeout(silence, body.read_until(b'\n', line)).await {
        Err(_) => Err(End::Silent),
        Ok(Err(error)) => Err(End::Closed(error.to_string())),
        Ok(Ok(_)) if line.ends_with(b"\n") => Ok(()),
        Ok(Ok(_)) => Err(End::Closed("the server closed it".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(90);

    #[tokio::test]
    async fn a_large_event_leaves_no_large_buffer() {
        let large = "x".repeat(1 << 20);
        let text = format!("{large}\nsmall\n{large}");
        let (mut body, mut line) = (text.as_bytes(), Vec::new());
        let read = next_line(&mut body, &mut line, WAIT).await;
        assert_eq!((read.is_ok(), line.len()), (true, (1 << 20) + 1));
        let read = next_line(&mut body, &mut line, WAIT).await;
        assert_eq!((read.is_ok(), &*line), (true, &b"small\n"[..]));
        assert!(line.capacity() <= KEPT_BUFFER);
        assert!(next_line(&mut body, &mut line, WAIT).await.is_err());
    }
}
