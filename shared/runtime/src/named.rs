//! Reads and patches one object by a name that comes from outside of Mimeo.
//!
//! [`kube::Api`] puts a name into the URL as it is. The name `a/configmaps/b` would thus read or
//! write an object of another kind. Here a name must be a single segment of the path, or no request
//! is made.

use http::Method;
use kube::{Client, api::ObjectMeta};
use mimeo_model::review::is_name;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use crate::{
    call::{self, CallError, CallResult, DEADLINE, JSON, MERGE, METADATA, encode},
    watch::Meta,
};

/// The object with this name; none if it does not exist. `path` is the path of all objects of its
/// kind, or of those in its namespace.
///
/// # Errors
/// The request failed, or no object can have this name.
pub async fn read<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    name: &str,
) -> CallResult<Option<T>> {
    call::get(client, &object_path(path, name)?, JSON, DEADLINE).await
}

/// The metadata of the object with this name; none if it does not exist. `path` is as for
/// [`read`]. Entries of `managedFields` that cannot be decoded do not matter. Otherwise the webhook
/// could not read such a namespace, and the namespace would be unprotected.
///
/// # Errors
/// As for [`read`].
pub async fn read_metadata(
    client: &Client,
    path: &str,
    name: &str,
) -> CallResult<Option<ObjectMeta>> {
    let found = call::get(client, &object_path(path, name)?, METADATA, DEADLINE).await?;
    Ok(found.map(|Meta { metadata }| metadata))
}

/// Merges a patch into the object with this name, as this field manager. `path` is as for [`read`].
///
/// # Errors
/// As for [`read`].
pub async fn merge(
    client: &Client,
    path: &str,
    name: &str,
    manager: &str,
    patch: &Value,
) -> CallResult<()> {
    let uri = format!("{}?fieldManager={manager}", object_path(path, name)?);
    let request = call::write(Method::PATCH, &uri, METADATA, MERGE, patch.to_string());
    let IgnoredAny = call::exchange(client, request, DEADLINE).await?;
    Ok(())
}

/// The path of the object. A name with a slash cannot be encoded: API servers decode the path
/// before they split it.
fn object_path(path: &str, name: &str) -> CallResult<String> {
    if is_name(name) {
        Ok(format!("{path}/{}", encode(name)))
    } else {
        Err(CallError::Silent("nothing can have that name".into()))
    }
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
            assert_eq!(read.resource_version.as_deref(), Some("7"));
            merge(&server.client(), NAMESPACES, "team", "m", &json!({}))
                .await
                .expect("written");
        }
    }

    #[tokio::test]
    async fn a_name_is_one_segment() {
        let object = json!({"metadata": {"name": "x?y#z"}});
        let scripts = [(); 3].map(|()| Script::json(200, &object));
        let server = Server::start(scripts).await;
        let (client, change) = (server.client(), json!({}));
        let name = "x?y#z";
        let written = merge(&client, NAMESPACES, name, "m", &change).await;
        written.expect("written");
        let found = read_metadata(&server.client(), NAMESPACES, name)
            .await
            .expect("read");
        assert_eq!(found.expect("there").name.as_deref(), Some(name));
        let maps = "/api/v1/namespaces/team/configmaps";
        let found: Option<ConfigMap> = read(&client, maps, name).await.expect("read");
        assert_eq!(found.expect("there").metadata.name.as_deref(), Some(name));
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
                merge(&client, NAMESPACES, name, "m", &change)
                    .await
                    .is_err(),
                "{name:?}"
            );
        }
        assert_eq!(
            server.requests(),
            [
                "PATCH /api/v1/namespaces/x%3Fy%23z?fieldManager=m",
                "GET /api/v1/namespaces/x%3Fy%23z",
                "GET /api/v1/namespaces/team/configmaps/x%3Fy%23z",
            ]
        );
    }
}
