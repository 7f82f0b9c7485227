//! One request to the API server and its whole answer. Only watches read an answer piece by piece.
//!
//! The caller interprets the answer. An answer may hold a Secret, so this file never logs or prints
//! one, and [`CallError`] quotes none.

use std::{iter::successors, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, Method, Request, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER},
};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::{Client, ResourceExt, client::Body};
use mimeo_model::known::Decoded;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::json;

use crate::object::{self, Page};

/// The usual deadline of one request.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Accept header for an object's metadata alone. Servers that cannot reduce an object send the
/// whole object.
pub const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// [`METADATA`] for lists.
pub const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// Accept header for whole objects.
pub const JSON: &str = "application/json";
/// Content type of a server-side apply.
pub const APPLY: &str = "application/apply-patch+yaml";
/// Content type of a merge patch.
pub(crate) const MERGE: &str = "application/merge-patch+json";
/// Content type of a list of operations on fields.
pub const JSON_PATCH: &str = "application/json-patch+json";

/// Most bytes of an answer to the writer: twice the size of the largest object in etcd, with room
/// for its managed fields. A larger answer counts as no answer.
pub(crate) const LARGEST_ANSWER: usize = 4 << 20;
/// Most bytes of an answer about an object that no user must be able to make unreadable by its
/// size. An object has up to 1.5 MiB in etcd. Some characters take one byte there, but the API
/// server writes them as six.
pub const LARGEST_OBJECT: usize = 10 << 20;

/// Why a request failed. It holds no content of any object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// 404.
    #[error("not found")]
    NotFound,
    /// 409: the object isn't as the request assumed.
    #[error("it was changed in the meantime")]
    Conflict,
    /// 422: the API server does not accept the new object. For a patch with a `test` operation, it
    /// can also mean that the object isn't as the request assumed.
    #[error("the API server doesn't accept it (422)")]
    Invalid,
    /// 401 or 403.
    #[error("not allowed ({code})")]
    Denied {
        /// The HTTP status.
        code: u16,
    },
    /// Any other error answer.
    #[error("the API server answered {code} {reason}")]
    Unavailable {
        /// The HTTP status.
        code: u16,
        /// The reason that the API server gave, or an empty string.
        reason: String,
    },
    /// The deadline passed. It is unknown if the API server carried the request out.
    #[error("no answer within the deadline")]
    Late,
    /// A 2xx answer that is no such object as the request is for.
    #[error("the answer can't be decoded")]
    Undecodable,
    /// The request could not be made, or there was no answer, or none of use. It is unknown if the
    /// API server carried the request out.
    #[error("{0}")]
    Silent(String),
}

/// The result of a request.
pub type CallResult<T> = Result<T, CallError>;

/// A request, if it could be built. Object names come from the API server or were checked at
/// admission. An error here therefore points to a bug in Mimeo and not to a bad name.
pub type Message = CallResult<Request<Body>>;

impl From<http::Error> for CallError {
    fn from(error: http::Error) -> Self {
        Self::Silent(format!("the request can't be built: {error}"))
    }
}

/// Why a request has no answer. The error comes from the connection or from the authentication.
/// Other errors are of answers. They may quote an answer, so they are not shown.
impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        Self::Silent(match error {
            kube::Error::HyperError(error) => error.to_string(),
            kube::Error::Service(error) => {
                let causes = successors(error.source(), |error| error.source());
                causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
            }
            kube::Error::Auth(error) => format!("authentication failed: {error}"),
            _ => "request failed".into(),
        })
    }
}

/// A complete answer.
pub struct Answer {
    /// The HTTP status.
    pub code: StatusCode,
    /// How long the server asks the client to wait.
    pub(crate) retry_after: Option<Duration>,
    body: Bytes,
}

impl Answer {
    /// Parses the body of a 2xx answer. Returns none if the body is not JSON of this shape.
    pub fn parse<T: DeserializeOwned>(&self) -> Option<T> {
        self.object()?.whole()
    }

    /// The object in a 2xx answer, as far as it can be decoded. Returns none if the body is not an
    /// object.
    pub(crate) fn object<T: DeserializeOwned>(&self) -> Option<Decoded<T>> {
        object::decode(&self.body)
    }

    /// The list in a 2xx answer. Returns none if the body is not a list.
    pub(crate) fn page<T: DeserializeOwned>(&self) -> Option<Page<T>> {
        Page::read(&self.body)
    }

    /// Returns a 2xx answer.
    ///
    /// # Errors
    /// The error that another status stands for.
    pub fn accept(self) -> CallResult<Self> {
        match self.code.as_u16() {
            200..=299 => Ok(self),
            404 => Err(CallError::NotFound),
            409 => Err(CallError::Conflict),
            422 => Err(CallError::Invalid),
            code @ (401 | 403) => Err(CallError::Denied { code }),
            code => Err(CallError::Unavailable {
                code,
                reason: self.status().reason.unwrap_or_default(),
            }),
        }
    }

    /// The server's description of an error. It is empty if a proxy answers, or with a plain HTTP
    /// error page.
    pub(crate) fn status(&self) -> Status {
        self.parse().unwrap_or_default()
    }

    /// The message of an error, or the HTTP status if the answer has none. The message may quote the
    /// request.
    pub fn message(&self) -> String {
        let message = self.status().message;
        message.unwrap_or_else(|| self.code.to_string())
    }

    /// Whether this is a 404 for the requested object itself, and not for its kind.
    pub(crate) fn is_absence(&self) -> bool {
        let name = self.status().details.and_then(|details| details.name);
        self.code == StatusCode::NOT_FOUND && name.is_some_and(|name| !name.is_empty())
    }
}

/// A GET.
pub(crate) fn read(uri: &str, accept: &str) -> Message {
    let request = Request::get(uri).header(ACCEPT, accept);
    Ok(request.body(Body::empty())?)
}

/// Reads the object at this path; none if the server answers 404.
///
/// # Errors
/// As for [`exchange`].
pub async fn get<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    accept: &str,
    deadline: Duration,
) -> CallResult<Option<T>> {
    match exchange(client, read(path, accept), deadline).await {
        Err(CallError::NotFound) => Ok(None),
        found => found.map(Some),
    }
}

/// A request with a JSON body.
///
/// # Errors
/// As for [`Message`].
pub fn write(
    method: Method,
    uri: &str,
    accept: &str,
    content_type: &str,
    body: impl Into<Vec<u8>>,
) -> Message {
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header(ACCEPT, accept)
        .header(CONTENT_TYPE, content_type);
    Ok(request.body(Body::from(body.into()))?)
}

/// Deletes the object at this path. Returns false if it did not exist.
///
/// # Errors
/// As for [`exchange`].
pub async fn delete(client: &Client, path: &str, deadline: Duration) -> CallResult<bool> {
    let request = write(Method::DELETE, path, METADATA, JSON, "{}");
    match exchange(client, request, deadline).await {
        Err(CallError::NotFound) => Ok(false),
        deleted => deleted.map(|IgnoredAny| true),
    }
}

/// Replaces the version of the object that it names. Without a version, creates the object. `path`
/// is that of its collection. `None`: another write came first, so the object exists already, has
/// changed, or was deleted. Of two writers one thus fails, and can read the result of the other.
pub(crate) async fn put<K>(
    client: &Client,
    path: &str,
    object: &K,
    deadline: Duration,
) -> CallResult<Option<K>>
where
    K: ResourceExt + Serialize + DeserializeOwned,
{
    let (exists, body) = (
        object.resource_version().is_some(),
        json!(object).to_string(),
    );
    let request = if exists {
        let path = format!("{path}/{}", object.name_any());
        write(Method::PUT, &path, JSON, JSON, body)
    } else {
        write(Method::POST, path, JSON, JSON, body)
    };
    match exchange(client, request, deadline).await {
        // A 404 to a create means that the namespace is missing. That is no conflict with another
        // write.
        Err(CallError::NotFound) if exists => Ok(None),
        Err(CallError::Conflict) => Ok(None),
        written => written.map(Some),
    }
}

/// Sends a request, and decodes the object in its answer.
///
/// # Errors
/// The request failed, or its answer is no such object.
pub async fn exchange<T: DeserializeOwned>(
    client: &Client,
    request: Message,
    deadline: Duration,
) -> CallResult<T> {
    let answer = call(client, request, deadline, LARGEST_OBJECT).await?;
    answer.accept()?.parse().ok_or(CallError::Undecodable)
}

/// Sends a request and reads its whole answer, of at most `largest` bytes, within `deadline`.
///
/// # Errors
/// There was no such answer.
pub async fn call(
    client: &Client,
    request: Message,
    deadline: Duration,
    largest: usize,
) -> CallResult<Answer> {
    let exchange = async {
        let response = client.send(request?).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, largest).collect().await;
        // The cause is left out: it may come from a decoder, which quotes the text.
        let body = body
            .map_err(|_| {
                let most = largest >> 20;
                CallError::Silent(format!("the answer broke off or is over {most} MiB"))
            })?
            .to_bytes();
        Ok(Answer {
            code: head.status,
            retry_after: retry_after(&head.headers),
            body,
        })
    };
    tokio::time::timeout(deadline, exchange)
        .await
        .unwrap_or(Err(CallError::Late))
}

/// The header's seconds, up to a minute. API servers never send the header's other form, a date.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds.min(60)))
}

/// Every character that may have a meaning in a URL.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':');

/// Encodes a path segment or a query value. Object names stay as they are; selectors do not.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_nothing_of_an_undecodable_answer() {
        let parsed = serde_json::from_str::<u8>("\"hunter2\"").map_err(kube::Error::SerdeError);
        let error = CallError::from(parsed.expect_err("a string is no number"));
        assert_eq!(error.to_string(), "request failed");
    }

    #[test]
    fn encode_leaves_names_alone() {
        for (text, want) in [
            ("team-a.example", "team-a.example"),
            ("system:node", "system:node"),
            ("a/../b?c#d", "a%2F..%2Fb%3Fc%23d"),
            (
                "app.kubernetes.io/managed-by=mimeo",
                "app.kubernetes.io%2Fmanaged-by%3Dmimeo",
            ),
            ("ä&+ %", "%C3%A4%26%2B%20%25"),
        ] {
            assert_eq!(encode(text), want);
        }
    }
}
