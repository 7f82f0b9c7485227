//! Writes an object that several replicas share, in place of exactly the version that the write was
//! decided on. Of two writers one fails, and reads the result of the other.

use std::time::Duration;

use http::Method;
use kube::{Client, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::call::{self, CallError, CallResult, JSON};

/// Replaces the version of the object that it names. Without a version, creates the object. `path`
/// is that of its collection. `None`: another write came first, so the object exists already, has
/// changed, or was deleted.
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
        call::write(Method::PUT, &path, JSON, JSON, body)
    } else {
        call::write(Method::POST, path, JSON, JSON, body)
    };
    match call::exchange(client, request, deadline).await {
        // A 404 to a create means that the namespace is missing. That is no conflict with another
        // write.
        Err(CallError::NotFound) if exists => Ok(None),
        Err(CallError::Conflict) => Ok(None),
        written => written.map(Some),
    }
}
