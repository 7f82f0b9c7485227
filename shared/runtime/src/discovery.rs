//! The kinds that the API server serves, and their paths.
//!
//! This is not kube's `pinned_kind`, which answers for one kind alone. Here the other kinds of the
//! version are kept, for the next questions and for a suggestion when a kind is misspelt. Names
//! from rules are encoded in paths, and a failure is never taken for an absence.
//!
//! Discovery asks only about kinds that a caller names, and never about the rest of the API. The
//! caller notices when a kind may have appeared or disappeared, and then has the cached answer
//! forgotten.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResource, APIResourceList};
use kube::Client;
use mimeo_model::kind::{GroupVersionKind, Resource};
use parking_lot::Mutex;

use crate::call::{self, CallResult, DEADLINE, JSON, encode};

/// The verbs that Mimeo uses on the objects of a kind. Mimeo cannot handle a kind that lacks one of
/// them.
const VERBS: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];

/// Looks kinds up and caches the answers.
pub struct Discovery {
    client: Client,
    known: Mutex<Known>,
}

/// The served kinds, by group and version.
type Known = BTreeMap<(Box<str>, Box<str>), Arc<[Resource]>>;

impl Discovery {
    /// A discovery with an empty cache. It sends nothing yet.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            known: Mutex::default(),
        }
    }

    /// How a kind is served. Returns none if the kind is not served, not in this version, or
    /// without one of the verbs that Mimeo needs.
    ///
    /// # Errors
    /// It is unknown whether the kind is served, most often because the server of an aggregated API
    /// is down. Never treat this error as "not served".
    pub async fn find(&self, gvk: &GroupVersionKind) -> CallResult<Option<Resource>> {
        let served = self.served(gvk).await?;
        Ok(served.iter().find(|served| served.gvk == *gvk).cloned())
    }

    /// Looks the kind up in its own version first, and then in every version that is served, in the
    /// server's order. Each version shows the same objects.
    ///
    /// # Errors
    /// As [`Discovery::find`].
    pub async fn find_in_any_version(
        &self,
        gvk: &GroupVersionKind,
    ) -> CallResult<Option<Resource>> {
        let found = self.find(gvk).await?;
        // The core group has only one version.
        if found.is_some() || gvk.group.is_empty() {
            return Ok(found);
        }
        let path = format!("/apis/{}", encode(&gvk.group));
        let group: Option<APIGroup> = call::get(&self.client, &path, JSON, DEADLINE).await?;
        for served in group.into_iter().flat_map(|group| group.versions) {
            let other = GroupVersionKind {
                version: served.version.into(),
                ..gvk.clone()
            };
            let found = self.find(&other).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Suggests a kind for a name that [`Discovery::find`] has just not found. The suggestion is a
    /// namespaced kind of the same group and version. Its name has other letter cases or is in the
    /// plural, as in `secret`, `secrets` or `Secrets`.
    pub fn meant(&self, gvk: &GroupVersionKind) -> Option<Box<str>> {
        let known = self.known.lock();
        let served = known.get(&(gvk.group.clone(), gvk.version.clone()))?;
        let written = |name: &str| name.eq_ignore_ascii_case(&gvk.kind);
        let alike = |one: &&Resource| {
            (written(&one.gvk.kind) || written(&one.plural)) && one.gvk != *gvk && one.namespaced
        };
        served.iter().find(alike).map(|one| one.gvk.kind.clone())
    }

    /// Forgets everything, so that the next question goes to the server.
    pub fn forget(&self) {
        self.known.lock().clear();
    }

    /// Forgets one group, for example because a CRD was created, changed or deleted.
    pub fn forget_group(&self, group: &str) {
        self.known.lock().retain(|(known, _), _| **known != *group);
    }

    /// The kinds of this group and version; none if the server does not serve it. Only such an
    /// absence is not cached, because its end may not be announced.
    async fn served(&self, gvk: &GroupVersionKind) -> CallResult<Arc<[Resource]>> {
        let key = (gvk.group.clone(), gvk.version.clone());
        if let Some(known) = self.known.lock().get(&key) {
            return Ok(known.clone());
        }
        let path = group_path(gvk);
        let list: Option<APIResourceList> = call::get(&self.client, &path, JSON, DEADLINE).await?;
        let Some(list) = list else {
            return Ok(Arc::default());
        };
        let resources = list.resources.into_iter();
        let served: Arc<[Resource]> = resources.filter_map(|one| reduce(gvk, one)).collect();
        self.known.lock().insert(key, served.clone());
        Ok(served)
    }
}

/// A resource of the group and version of `gvk`, reduced to the fields that Mimeo uses. None for a
/// kind that lacks a needed verb, and for a subresource such as `secrets/status`.
fn reduce(gvk: &GroupVersionKind, resource: APIResource) -> Option<Resource> {
    let has = |verb: &str| resource.verbs.iter().any(|has| has == verb);
    let serves = VERBS.into_iter().all(has) && !resource.name.contains('/');
    serves.then(|| Resource {
        gvk: GroupVersionKind {
            kind: resource.kind.into(),
            ..gvk.clone()
        },
        plural: resource.name.into(),
        namespaced: resource.namespaced,
    })
}

fn group_path(gvk: &GroupVersionKind) -> String {
    let GroupVersionKind { group, version, .. } = gvk;
    if group.is_empty() {
        format!("/api/{}", encode(version))
    } else {
        format!("/apis/{}/{}", encode(group), encode(version))
    }
}

/// The path of all objects of a kind, of those in one namespace, or of one object. `namespace` is
/// ignored for kinds outside namespaces.
pub fn resource_path(resource: &Resource, namespace: Option<&str>, name: Option<&str>) -> String {
    let mut path = group_path(&resource.gvk);
    if let Some(namespace) = namespace.filter(|_| resource.namespaced) {
        path.push_str("/namespaces/");
        path.push_str(&encode(namespace));
    }
    path.push('/');
    path.push_str(&encode(&resource.plural));
    if let Some(name) = name {
        path.push('/');
        path.push_str(&encode(name));
    }
    path
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        call::CallError,
        testing::{Script, Server},
    };

    fn gvk(api_version: &str, kind: &str) -> GroupVersionKind {
        GroupVersionKind::parse(api_version, kind).expect("a kind")
    }

    fn list() -> Script {
        let verbs = [
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ];
        Script::json(
            200,
            &json!({
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "example.com/v1",
                "resources": [
                    {"name": "widgets", "singularName": "widget", "namespaced": true, "kind": "Widget", "verbs": verbs},
                    {"name": "widgets/scale", "singularName": "", "namespaced": true, "kind": "Scale", "verbs": verbs},
                    {"name": "reviews", "singularName": "", "namespaced": false, "kind": "Review", "verbs": ["create"]},
                ]
            }),
        )
    }

    #[tokio::test]
    async fn finds_what_is_served_and_remembers_it() {
        let server = Server::start([list(), list()]).await;
        let discovery = Discovery::new(server.client());
        let widget = gvk("example.com/v1", "Widget");
        let found = discovery.find(&widget).await;
        let want = Resource {
            gvk: widget.clone(),
            plural: "widgets".into(),
            namespaced: true,
        };
        assert_eq!(found, Ok(Some(want.clone())));
        for kind in ["Scale", "Review", "Other"] {
            assert_eq!(
                discovery.find(&gvk("example.com/v1", kind)).await,
                Ok(None),
                "{kind}"
            );
        }
        for (kind, meant) in [
            ("widget", Some("Widget")),
            ("Widgets", Some("Widget")),
            ("WIDGET", Some("Widget")),
            ("Widget", None),
            ("review", None),
            ("Gadget", None),
        ] {
            assert_eq!(
                discovery.meant(&gvk("example.com/v1", kind)).as_deref(),
                meant,
                "{kind}"
            );
        }
        assert_eq!(
            discovery.meant(&gvk("example.com/v2", "widget")),
            None,
            "it was not asked about"
        );
        assert_eq!(server.requests(), ["GET /apis/example.com/v1"]);
        discovery.forget_group("");
        discovery.forget_group("example.com");
        assert_eq!(discovery.find(&widget).await, Ok(Some(want)));
        assert_eq!(server.requests().len(), 2);
    }

    #[tokio::test]
    async fn what_is_served_in_another_version_is_found_if_that_will_do() {
        let version = |version: &str| json!({"groupVersion": format!("example.com/{version}"), "version": version});
        let group = json!({
            "kind": "APIGroup", "apiVersion": "v1", "name": "example.com",
            "versions": [version("v3"), version("v2"), version("v1")],
        });
        let missing = || Script::json(404, &json!({"kind": "Status", "apiVersion": "v1"}));
        let empty = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "example.com/v3", "resources": []});
        let server = Server::start([
            missing(),
            Script::json(200, &group),
            Script::json(200, &empty),
            list(),
            missing(),
            missing(),
        ])
        .await;
        let discovery = Discovery::new(server.client());
        let found = discovery
            .find_in_any_version(&gvk("example.com/v1beta1", "Widget"))
            .await;
        let want = Resource {
            gvk: gvk("example.com/v2", "Widget"),
            plural: "widgets".into(),
            namespaced: true,
        };
        assert_eq!(found, Ok(Some(want)));
        // If the whole group is gone or has no other version, no other version is asked for.
        assert_eq!(
            discovery
                .find_in_any_version(&gvk("other.example.com/v1", "Widget"))
                .await,
            Ok(None)
        );
        let asked =
            ["v1beta1", "", "v3", "v2"].map(|version| format!("GET /apis/example.com/{version}"));
        let asked = asked.map(|request| request.trim_end_matches('/').to_owned());
        let then = [
            "GET /apis/other.example.com/v1",
            "GET /apis/other.example.com",
        ]
        .map(str::to_owned);
        assert_eq!(
            server.requests(),
            asked.into_iter().chain(then).collect::<Vec<_>>()
        );
    }

    #[tokio::test]
    async fn silence_is_not_absence() {
        let error = |code| Script::json(code, &json!({"kind": "Status", "apiVersion": "v1"}));
        let server = Server::start([
            error(404),
            error(503),
            error(403),
            Script::json(200, &json!("?")),
        ])
        .await;
        let discovery = Discovery::new(server.client());
        let secret = gvk("v1", "Secret");
        assert_eq!(discovery.find(&secret).await, Ok(None));
        assert!(matches!(
            discovery.find(&secret).await,
            Err(CallError::Unavailable { code: 503, .. })
        ));
        assert!(matches!(
            discovery.find(&secret).await,
            Err(CallError::Denied { code: 403 })
        ));
        assert!(matches!(
            discovery.find(&secret).await,
            Err(CallError::Undecodable)
        ));
        assert_eq!(server.requests(), ["GET /api/v1"; 4]);
    }

    #[test]
    fn paths_are_those_of_the_api() {
        let resource = |api_version: &str, plural: &str, namespaced| Resource {
            gvk: gvk(api_version, "X"),
            plural: plural.into(),
            namespaced,
        };
        let secrets = resource("v1", "secrets", true);
        let cases = [
            (resource_path(&secrets, None, None), "/api/v1/secrets"),
            (
                resource_path(&secrets, Some("a"), None),
                "/api/v1/namespaces/a/secrets",
            ),
            (
                resource_path(&secrets, Some("a"), Some("b/../c")),
                "/api/v1/namespaces/a/secrets/b%2F..%2Fc",
            ),
            (
                resource_path(&resource("apps/v1", "xs", false), Some("a"), Some("b")),
                "/apis/apps/v1/xs/b",
            ),
        ];
        for (got, want) in cases {
            assert_eq!(got, want);
        }
    }
}
