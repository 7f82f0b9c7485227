//! One request to the API server and its whole answer.
//!
//! An answer may hold a Secret. This file prints none.

use std::time::Duration;

use http::{
    HeaderMap, Request,
    header::{HeaderName, RETRY_AFTER},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::{Client, client::Body};
use mimeo_runtime::call::CallError;

/// An answer other than 2xx, or none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Refusal {
    /// The HTTP status. 0 if there was no answer.
    pub(crate) code: u16,
    /// The API server's description. About a Secret it may quote a part of the request.
    pub(crate) status: Box<Status>,
    /// How long the API server asks to wait before the next attempt.
    pub(crate) retry_after: Option<Duration>,
}

impl Refusal {
    pub(crate) fn silence(why: &impl ToString) -> Self {
        let mut silence = Self::default();
        silence.status.message = Some(why.to_string());
        silence
    }

    pub(crate) fn message(&self) -> &str {
        self.status.message.as_deref().unwrap_or_default()
    }
}

/// Sends a request. Returns the headers and the body of a 2xx answer.
pub(crate) async fn call(
    client: &Client,
    timeout: Duration,
    request: http::Result<Request<Body>>,
) -> Result<(HeaderMap, Vec<u8>), Refusal> {
    let request = request.map_err(|error| Refusal::silence(&error))?;
    let silence = |error: kube::Error| Refusal::silence(&CallError::from(error));
    let exchange = async {
        let answer = client.send(request).await.map_err(silence)?;
        let (head, body) = answer.into_parts();
        let body = body.collect_bytes().await.map_err(silence)?;
        if head.status.is_success() {
            return Ok((head.headers, body.to_vec()));
        }
        let seconds = header(&head.headers, &RETRY_AFTER).and_then(|text| text.parse().ok());
        Err(Refusal {
            code: head.status.as_u16(),
            // A proxy may answer with a page of its own.
            status: serde_json::from_slice(&body).unwrap_or_default(),
            retry_after: seconds.map(Duration::from_secs),
        })
    };
    let answer = tokio::time::timeout(timeout, exchange).await;
    answer.unwrap_or_else(|_| Err(Refusal::silence(&"no answer within --request-timeout")))
}

/// The text of a header.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
