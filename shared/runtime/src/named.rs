//! Reads and patches one object by a name that comes from outside of Mimeo.
//!
//! [`kube::Api`] puts a name into the URL as it is. The name `a/configmaps/b` would thus read or
//! write an object of another kind. Here a name must be a single segment of the path, or no request
//! is made.

use std::{fmt::Debug, io};

use kube::{
    Api, Client,
    api::{GetParams, ObjectMeta, Patch, PatchParams},
    core::{Request, request},
};
use mimeo_model::{known::Decoded, review::is_name};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{call::encode, object, watch::Meta};

/// The object with this name; none if it does not exist.
///
/// # Errors
/// The request failed, or no object can have this name.
pub async fn read<K>(api: &Api<K>, name: &str) -> kube::Result<Option<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    api.get_opt(&segment(name)?).await
}

/// The metadata of the object with this name; none if it does not exist. `path` is the path of all
/// objects of its kind, or of those in its namespace.
///
/// # Errors
/// As for [`read`].
pub async fn read_metadata(
    client: &Client,
    path: &str,
    name: &str,
) -> kube::Result<Option<ObjectMeta>> {
    let request = Request::new(path).get_metadata(&segment(name)?, &GetParams::default());
    match metadata(client, request).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        found => found.map(Some),
    }
}

/// Merges a patch into the object with this name, and returns the object's metadata. `path` is as
/// for [`read_metadata`]. Without a manager, the API server names one after the client.
///
/// # Errors
/// As for [`read`].
pub async fn merge(
    client: &Client,
    path: &str,
    name: &str,
    manager: Option<&str>,
    patch: &Value,
) -> kube::Result<ObjectMeta> {
    let params = PatchParams {
        field_manager: manager.map(Into::into),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(patch);
    let request = Request::new(path).patch_metadata(&segment(name)?, &params, &patch);
    metadata(client, request).await
}

/// Sends a request that the server answers with an object's metadata. Entries of `managedFields`
/// that cannot be decoded do not matter here. Otherwise the webhook could not read such a
/// namespace, and the namespace would be unprotected.
async fn metadata(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, request::Error>,
) -> kube::Result<ObjectMeta> {
    let answer = client
        .request_text(request.map_err(kube::Error::BuildRequest)?)
        .await?;
    let object: Option<Meta> = object::decode(answer.as_bytes()).and_then(Decoded::whole);
    let object = object.ok_or_else(|| refused("the answer can't be decoded"))?;
    Ok(object.metadata)
}

/// The name as a segment of a path. A name with a slash cannot be encoded: API servers decode the
/// path before they split it.
fn segment(name: &str) -> kube::Result<String> {
    if is_name(name) {
        Ok(encode(name))
    } else {
        Err(refused("nothing can have that name"))
    }
}

fn refused(why: &'static str) -> kube::Error {
    kube::Error::Service(io::Error::other(why).into())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::{
        object::tests::{object as text_of, undecodable},
        testing::{Script, Server},
    };

    const NAMESPACES: &str = "/api/v1/namespaces";

    /// Otherwise the owner of a namespace could prevent all checks that read the namespace.
    #[tokio::test]
    async fn what_is_in_managed_fields_keeps_nobody_from_reading() {
        for bad in undecodable() {
            let answer = || Script::text(200, text_of("team", 7, &[&bad], ""));
            let server = Server::start([answer(), answer()]).await;
            let read = read_metadata(&server.client(), NAMESPACES, "team")
                .await
                .expect("read")
                .expect("there");
            let written = merge(&server.client(), NAMESPACES, "team", None, &json!({}))
                .await
                .expect("written");
            assert_eq!(
                (
                    read.resource_version.as_deref(),
                    written.resource_version.as_deref()
                ),
                (Some("7"), Some("7"))
            );
        }
    }

    #[tokio::test]
    async fn a_name_is_one_segment() {
        let object = json!({"metadata": {"name": "x?y#z"}});
        let scripts = [(); 3].map(|()| Script::json(200, &object));
        let server = Server::start(scripts).await;
        let (client, change) = (server.client(), json!({}));
        let name = "x?y#z";
        let written = merge(&client, NAMESPACES, name, None, &change).await;
        assert_eq!(written.expect("written").name.as_deref(), Some(name));
        let found = read_metadata(&server.client(), NAMESPACES, name)
            .await
            .expect("read");
        assert_eq!(found.expect("there").name.as_deref(), Some(name));
        let maps: Api<ConfigMap> = Api::namespaced(server.client(), "team");
        let found = read(&maps, name).await.expect("read").expect("there");
        assert_eq!(found.metadata.name.as_deref(), Some(name));
        for name in [
            "",
            ".",
            "..",
            "team/configmaps/x",
            "team%2Fconfigmaps%2Fx",
            "../nodes/x",
        ] {
            let found = read_metadata(&server.client(), NAMESPACES, name).await;
            assert!(found.is_err(), "{name:?}");
            assert!(
                merge(&client, NAMESPACES, name, None, &change)
                    .await
                    .is_err(),
                "{name:?}"
            );
        }
        assert_eq!(
            server.requests(),
            [
                "PATCH /api/v1/namespaces/x%3Fy%23z?",
                "GET /api/v1/namespaces/x%3Fy%23z",
                "GET /api/v1/namespaces/team/configmaps/x%3Fy%23z",
            ]
        );
    }
}
