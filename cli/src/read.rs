//! Reads from the API server with the rights of the user: paged lists, metadata, single objects.
//!
//! An answer may hold a Secret. This file prints none, and an error says the status and nothing of
//! the content.

use std::{fmt, time::Duration};

use http::{Request, header::ACCEPT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use mimeo_model::{known::Decoded, meta::version};
use mimeo_runtime::object::decode;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// Most objects of one page. A list of any length needs no more memory than one page.
const PAGE: usize = 500;

const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const JSON: &str = "application/json";

/// Which part of an object is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The metadata alone.
    Metadata,
    /// The whole object.
    Whole,
}

/// Why something can't be read. The text completes "can't read X: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReadError {
    /// The user lacks the permission.
    #[error("you have no permission ({0})")]
    Forbidden(String),
    /// The API server doesn't serve this path.
    #[error("the API server doesn't serve it")]
    NotServed,
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
                Some(object) => Ok(Some(object.value().clone())),
                None => Err(ReadError::Failed("the answer can't be decoded".into())),
            },
            Err(Refused::Absent) => Ok(None),
            Err(refused) => Err(refused.into()),
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
        let accept = match part {
            Part::Metadata => METADATA_LIST,
            Part::Whole => JSON,
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
                .text(&format!("{path}?limit={PAGE}{selector}{resume}"), accept)
                .await
            {
                Ok(text) => text,
                // The position is too old. One more attempt from the beginning.
                Err(Refused::Expired) if again => {
                    (next, again) = (String::new(), false);
                    continue;
                }
                Err(Refused::Absent) => return Err(ReadError::NotServed),
                Err(refused) => return Err(refused.into()),
            };
            let page: Page = serde_json::from_str(&text)
                .map_err(|_| ReadError::Failed("the answer can't be decoded".into()))?;
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

    async fn text(&self, path: &str, accept: &str) -> Result<String, Refused> {
        let request = Request::get(path)
            .header(ACCEPT, accept)
            .body(Vec::new())
            .map_err(|error| Refused::Failed(error.to_string()))?;
        let answer = tokio::time::timeout(self.timeout, self.client.request_text(request)).await;
        match answer {
            Err(_) => Err(Refused::Failed("no answer within --request-timeout".into())),
            Ok(Ok(text)) => Ok(text),
            Ok(Err(kube::Error::Api(status))) => Err(match status.code {
                401 | 403 => Refused::Forbidden(status.message.clone()),
                404 => Refused::Absent,
                410 => Refused::Expired,
                code => {
                    Refused::Failed(format!("the API server answered {code} {}", status.reason))
                }
            }),
            Ok(Err(error)) => Err(Refused::Failed(
                mimeo_runtime::fault::Fault(&error).to_string(),
            )),
        }
    }
}

/// The reason why a request has no result.
enum Refused {
    Forbidden(String),
    Absent,
    Expired,
    Failed(String),
}

impl From<Refused> for ReadError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Forbidden(message) => Self::Forbidden(message),
            Refused::Absent => Self::NotServed,
            Refused::Expired => Self::Failed("the list took too long".into()),
            Refused::Failed(why) => Self::Failed(why),
        }
    }
}

/// Encodes a value of a query.
pub(crate) fn encode(text: &str) -> String {
    mimeo_runtime::discovery::encode(text)
}
