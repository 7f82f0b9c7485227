//! Writes an object that several replicas share, in place of exactly the version that the write was
//! decided on. Of two writers one fails, and reads the result of the other.

use std::{fmt::Debug, time::Duration};

use kube::{Api, Resource, ResourceExt, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

use crate::fault::{status, within};

/// Why the write failed.
pub(crate) enum Failure {
    /// Another write came first: the object exists already, has changed, or was deleted.
    Conflict,
    Request(kube::Error),
}

/// Replaces the version of the object that it names. Without a version, creates the object.
pub(crate) async fn put<K>(api: &Api<K>, object: &K, deadline: Duration) -> Result<K, Failure>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let params = PostParams::default();
    let (name, exists) = (object.name_any(), object.resource_version().is_some());
    let written = if exists {
        within(deadline, api.replace(&name, &params, object)).await
    } else {
        within(deadline, api.create(&params, object)).await
    };
    written.map_err(|error| match status(&error) {
        Some(409) => Failure::Conflict,
        // A 404 to a create means that the namespace is missing. That is no conflict with another
        // write.
        Some(404) if exists => Failure::Conflict,
        _ => Failure::Request(error),
    })
}
