//! Sends one request that writes, or would write in a dry run.
//!
//! The body and the answer may hold a Secret. This file prints neither.

use http::{Method, Request, header::CONTENT_TYPE};
use serde_json::Value;

use crate::{
    call::{Refusal, call},
    connect::Connected,
};

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

/// Sends a change. Returns the API server's answer. A write is never repeated.
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
        .body(object.to_string().into_bytes().into());
    let (_, answer) = call(&connected.client, connected.timeout, request).await?;
    Ok(serde_json::from_slice(&answer).unwrap_or_default())
}
