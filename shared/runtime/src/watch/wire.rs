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

use super::End;
use crate::object::decode;

/// The size to which the buffer shrinks between events, so that one large object does not cost
/// memory forever.
const KEPT_BUFFER: usize = 64 << 10;

/// A line of a watch, without its object. Of the object's metadata `ListMeta` reads the
/// resourceVersion, and skips the rest.
#[derive(Deserialize)]
pub(super) struct Line {
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    pub(super) object: Dated,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Kind {
    #[serde(alias = "MODIFIED")]
    Added,
    Deleted,
    Bookmark,
    Error,
}

#[derive(Deserialize)]
pub(super) struct Dated {
    #[serde(default)]
    pub(super) metadata: ListMeta,
}

/// Reads the object of a line, if it can be decoded as a whole.
pub(super) fn whole<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, End> {
    #[derive(Deserialize)]
    struct Content<T> {
        object: T,
    }
    let content = serde_json::from_slice(line).map_err(|_| End::Undecodable("an event"))?;
    let Content { object } = content;
    Ok(object)
}

/// Reads the object of a line, as far as it can be decoded; none if not even its metadata can be.
pub(super) fn object<T: DeserializeOwned>(line: &[u8]) -> Option<Decoded<T>> {
    if let Ok(object) = whole(line) {
        return Some(Decoded::Whole(object));
    }
    decode(whole::<&RawValue>(line).ok()?.get().as_bytes())
}

#[derive(Deserialize)]
pub(super) struct Refusal {
    #[serde(default)]
    pub(super) code: u16,
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
