//! Writes an object that several replicas share, in place of exactly the version that the write was
//! decided on. Of two writers one fails, and reads the result of the other.

use std::{fmt::Debug, time::Duration};

use kube::{Api, Resource, ResourceExt, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

use crate::fault::{status, within};

/// Replaces the version of the object that it names. Without a version, creates the object. `None`:
/// another write came first, so the object exists already, has changed, or was deleted.
pub(crate) async fn put<K>(api: &Api<K>, object: &K, deadline: Duration) -> kube::Result<Option<K>>
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
    match written.as_ref().err().and_then(status) {
        // A 404 to a create means that the namespace is missing. That is no conflict with another
        // write.
        Some(404) if exists => Ok(None),
        Some(409) => Ok(None),
        _ => written.map(Some),
    }
}
