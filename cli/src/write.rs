//! Sends one request that writes, or would write in a dry run.
//!
//! The body and the answer may hold a Secret. This file prints neither.

use http::{Method, Request, header::CONTENT_TYPE};
use mimeo_runtime::fault::{Fault, within};
use serde_json::Value;

use crate::connect::Connected;

/// The reason for a failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The HTTP status. 0 if there was no answer.
    pub(crate) code: u16,
    /// The API server's message. For a Secret it may quote a part of the request.
    pub(crate) message: String,
}

/// The effect of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Creates it.
    Create,
    /// Server-side apply: creates or changes it.
    Apply,
    /// JSON merge patch (RFC 7386): changes these fields of an object that exists.
    Merge,
}

/// Sends a change. Returns the API server's answer.
pub(crate) async fn send(
    connected: &Connected,
    change: Change,
    path: &str,
    object: &Value,
) -> Result<Value, Refusal> {
    let (method, content) = match change {
        Change::Create => (Method::POST, "application/json"),
        Change::Apply => (Method::PATCH, "application/apply-patch+yaml"),
        Change::Merge => (Method::PATCH, "application/merge-patch+json"),
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(CONTENT_TYPE, content)
        .body(object.to_string().into_bytes());
    let failed = |message: String| Refusal { code: 0, message };
    let request = request.map_err(|error| failed(error.to_string()))?;
    let answer = connected.client.request::<Value>(request);
    match within(connected.timeout, answer).await {
        Ok(answer) => Ok(answer),
        Err(kube::Error::Api(status)) => Err(Refusal {
            code: status.code,
            message: status.message.clone(),
        }),
        Err(error) => Err(failed(Fault(&error).to_string())),
    }
}
