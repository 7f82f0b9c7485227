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

/// Sends an object: a PATCH is a server-side apply. Returns the API server's answer.
pub(crate) async fn send(
    connected: &Connected,
    method: Method,
    path: &str,
    object: &Value,
) -> Result<Value, Refusal> {
    let content = if method == Method::PATCH {
        "application/apply-patch+yaml"
    } else {
        "application/json"
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
