//! Reads from the API server with the rights of the user: paged lists, metadata, single objects.
//!
//! An answer may hold a Secret. This file prints none, and an error says the status and nothing of
//! the content.

use std::{fmt, time::Duration};

use http::{Request, header::ACCEPT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use mimeo_model::{known::Decoded, meta::version};
use mimeo_runtime::{
    call::{JSON, METADATA, METADATA_LIST, encode},
    fault::Fault,
    object::decode,
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// Most requests at once.
pub(crate) const AT_ONCE: usize = 16;

/// Which part of an object is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The metadata alone.
    Metadata,
    /// The whole object.
    Whole,
}

/// The reason for a failed read. The text completes "can't read X: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReadError {
    /// The user lacks the permission.
    #[error("you have no permission ({0})")]
    Forbidden(String),
    /// The kind is served, and the object does not exist.
    #[error("it does not exist")]
    Absent,
    /// The API server doesn't serve the kind.
    #[error("the API server doesn't serve it")]
    NotServed,
    /// The list took so long that its snapshot has expired.
    #[error("the list took too long")]
    Expired,
    /// Any other error.
    #[error("{0}")]
    Failed(String),
}

/// Sends requests, each with a deadline.
#[derive(Clone)]
pub(crate) struct Reader {
    client: Client,
    timeout: Duration,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Page {
    metadata: ListMeta,
    /// The API server sends null for an empty list of metadata.
    items: Option<Vec<Box<RawValue>>>,
}

impl Reader {
    pub(crate) fn new(client: Client, timeout: Duration) -> Self {
        Self { client, timeout }
    }

    /// Reads the object at a path. `None`: it does not exist.
    pub(crate) async fn get(&self, path: &str, part: Part) -> Result<Option<Value>, ReadError> {
        let accept = match part {
            Part::Metadata => METADATA,
            Part::Whole => JSON,
        };
        match self.text(path, accept).await {
            Ok(text) => match decode::<Value>(text.as_bytes()) {
                Some(Decoded::Whole(object) | Decoded::Part(object)) => Ok(Some(object)),
                None => Err(undecodable()),
            },
            Err(ReadError::Absent) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists objects page by page. If the list must begin again, `each` gets objects a second time.
    /// Returns the resourceVersion of the list.
    pub(crate) async fn list(
        &self,
        path: &str,
        selector: Option<&str>,
        part: Part,
        mut each: impl FnMut(Decoded<Value>),
    ) -> Result<u64, ReadError> {
        // A list of any length needs no more memory than one page. A single object may have 1 MiB.
        let (accept, limit) = match part {
            Part::Metadata => (METADATA_LIST, 500),
            Part::Whole => (JSON, 50),
        };
        let selector = selector.map_or_else(String::new, |selector| {
            format!("&labelSelector={}", encode(selector))
        });
        let (mut next, mut again) = (String::new(), true);
        loop {
            let resume = if next.is_empty() {
                String::new()
            } else {
                format!("&continue={}", encode(&next))
            };
            let text = match self
                .text(&format!("{path}?limit={limit}{selector}{resume}"), accept)
                .await
            {
                Ok(text) => text,
                // The position is too old. One more attempt from the beginning.
                Err(ReadError::Expired) if again => {
                    (next, again) = (String::new(), false);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let page: Page = serde_json::from_str(&text).map_err(|_| undecodable())?;
            for item in page.items.iter().flatten() {
                if let Some(object) = decode(item.get().as_bytes()) {
                    each(object);
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => next = token,
                None => return Ok(version(page.metadata.resource_version.as_deref())),
            }
        }
    }

    async fn text(&self, path: &str, accept: &str) -> Result<String, ReadError> {
        let request = Request::get(path)
            .header(ACCEPT, accept)
            .body(Vec::new())
            .map_err(|error| ReadError::Failed(error.to_string()))?;
        let answer = tokio::time::timeout(self.timeout, self.client.request_text(request)).await;
        let late = || ReadError::Failed("no answer within --request-timeout".into());
        let error = match answer.map_err(|_| late())? {
            Ok(text) => return Ok(text),
            Err(kube::Error::Api(status)) => status,
            Err(error) => return Err(ReadError::Failed(Fault(&error).to_string())),
        };
        let details = error.details.as_ref();
        Err(match error.code {
            401 => ReadError::Failed("the API server doesn't accept your credentials (401)".into()),
            403 => ReadError::Forbidden(error.message.clone()),
            404 if details.is_some_and(|details| !details.name.is_empty()) => ReadError::Absent,
            404 => ReadError::NotServed,
            410 => ReadError::Expired,
            code => ReadError::Failed(format!("the API server answered {code} {}", error.reason)),
        })
    }
}

fn undecodable() -> ReadError {
    ReadError::Failed("the answer can't be decoded".into())
}
