//! Tenants: each owns one namespace and nothing else. Their permissions end there, and so must
//! everything that Mimeo does for them.

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use mimeo_api::{ClusterReplicationStatus, Replication};
use serde_json::{Value, json};

use crate::{
    User,
    author::grant,
    create_secret, eventually,
    scenario::{SOON, Scene, any, apply, condition, create, merge, of, uid, wait_for},
    unique,
};

/// The owner of one namespace.
pub struct Tenant<'a> {
    /// The scene of this tenant.
    pub scene: &'a Scene<'a>,
    /// The tenant's user.
    pub user: User,
    /// The tenant's client.
    pub client: Client,
    /// The tenant's namespace.
    pub home: String,
}

impl<'a> Tenant<'a> {
    /// A tenant with a new namespace. The tenant may write rules and grants there, and nothing else
    /// at first.
    pub async fn new(scene: &'a Scene<'a>) -> Result<Self> {
        let home = scene.namespace().await?;
        Self::at(scene, &home).await
    }

    /// A tenant with the role `edit` in a new namespace. The cluster's controller manager fills
    /// this role, so it must run.
    pub async fn editor(scene: &'a Scene<'a>) -> Result<Self> {
        let home = scene.namespace().await?;
        Self::editor_of(scene, &home).await
    }

    /// The same with an existing namespace.
    pub async fn editor_of(scene: &'a Scene<'a>, home: &str) -> Result<Self> {
        let tenant = Self::at(scene, home).await?;
        let api_group = "rbac.authorization.k8s.io";
        let binding = json!({
            "apiVersion": format!("{api_group}/v1"), "kind": "RoleBinding",
            "metadata": {"namespace": home, "name": unique("edit")},
            "roleRef": {"apiGroup": api_group, "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": api_group, "kind": "User", "name": tenant.name()}],
        });
        apply(&scene.client, &binding).await?;
        // Authorizers learn of the binding a moment after it is stored.
        eventually(SOON, "the right to edit", || async {
            Ok(Some(
                tenant
                    .secrets()
                    .list(&ListParams::default().limit(1))
                    .await?,
            ))
        })
        .await?;
        Ok(tenant)
    }

    async fn at(scene: &'a Scene<'a>, home: &str) -> Result<Self> {
        let user = scene.setting.control_plane.user(&unique(&scene.tag), &[])?;
        let client = user.client().await?;
        let tenant = Self {
            scene,
            user,
            client,
            home: home.to_owned(),
        };
        let kinds = ["replications", "replicationgrants"];
        tenant
            .may(&json!({"apiGroups": ["mimeo.dev"], "resources": kinds, "verbs": ["*"]}))
            .await?;
        Ok(tenant)
    }

    /// The name of the tenant's user.
    pub fn name(&self) -> &str {
        self.user.name()
    }

    /// Grants the tenant these RBAC rules in its namespace. Returns the name of the binding.
    pub async fn may(&self, rules: &Value) -> Result<String> {
        grant(self.scene, "User", self.name(), Some(&self.home), rules).await
    }

    /// The Secrets in the tenant's namespace, with the tenant's permissions.
    pub fn secrets(&self) -> Api<Secret> {
        of(&self.client, &self.home)
    }

    /// The tenant's Replications.
    pub fn rules(&self) -> Api<Replication> {
        of(&self.client, &self.home)
    }

    /// A Replication or `ReplicationGrant` in the tenant's namespace.
    pub fn object(&self, plural: &str, name: &str, spec: &Value) -> Value {
        let kind = kind_of(plural);
        let metadata = json!({"namespace": self.home, "name": name});
        json!({"apiVersion": "mimeo.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
    }

    /// Creates such an object.
    ///
    /// # Errors
    /// The API server's refusal, unchanged.
    pub async fn write(&self, plural: &str, name: &str, spec: &Value) -> kube::Result<Value> {
        create(
            &self.client,
            &format!("namespaces/{}/{plural}", self.home),
            &self.object(plural, name, spec),
        )
        .await
    }

    /// Creates such an object, and retries until it is accepted.
    pub async fn writes(&self, plural: &str, name: &str, spec: &Value) -> Result<()> {
        eventually(SOON, format!("{plural} {name} accepted"), || async {
            Ok(Some(self.write(plural, name, spec).await?))
        })
        .await?;
        Ok(())
    }

    /// Waits until such an object is refused with these words. Verifies that the refusal stored
    /// nothing.
    pub async fn is_refused(
        &self,
        plural: &str,
        name: &str,
        spec: &Value,
        words: &str,
    ) -> Result<()> {
        let objects = any(
            &self.scene.client,
            "mimeo.dev/v1alpha1",
            kind_of(plural),
            Some(&self.home),
        )?;
        let stored = async || -> Result<_> {
            Ok(objects
                .get_opt(name)
                .await?
                .map(|found| (uid(&found), found.data["spec"].clone())))
        };
        let before = stored().await?;
        eventually(
            SOON,
            format!("{plural} {name} refused: {words}"),
            || async {
                match self.write(plural, name, spec).await {
                    Err(kube::Error::Api(status)) if status.message.contains(words) => Ok(Some(())),
                    Err(error) => bail!("{error}"),
                    Ok(_) => bail!("it was accepted"),
                }
            },
        )
        .await?;
        ensure!(
            stored().await? == before,
            "{plural} {name}: refused and stored"
        );
        Ok(())
    }

    /// Waits until a Replication has a condition with this reason for its present spec.
    pub async fn status(
        &self,
        rule: &str,
        type_: &str,
        reason: &str,
    ) -> Result<ClusterReplicationStatus> {
        let rules: Api<Replication> = of(&self.scene.client, &self.home);
        let told = |object: &Replication| {
            let status = object
                .status
                .as_ref()
                .filter(|status| status.observed_generation == object.metadata.generation);
            status
                .and_then(|status| condition(status, type_))
                .is_some_and(|found| found.reason == reason)
        };
        Ok(wait_for(rules, rule.to_owned(), told)
            .await?
            .status
            .unwrap_or_default())
    }

    /// All that the tenant can read about a Replication once it is not granted: the status and the
    /// Events. The name `namespace` is replaced, so that two such texts can be compared.
    pub async fn told(&self, rule: &str, namespace: &str) -> Result<String> {
        let status = self.status(rule, "Authorized", "NotGranted").await?;
        let ClusterReplicationStatus {
            conditions,
            copies,
            failures,
            sources,
            plan,
            ..
        } = status;
        let conditions: Vec<_> = conditions
            .iter()
            .map(|one| (&one.type_, &one.status, &one.reason, &one.message))
            .collect();
        let events: Api<Event> = of(&self.scene.client, &self.home);
        let events = events
            .list(&ListParams::default().fields(&format!("involvedObject.name={rule}")))
            .await?;
        let events: Vec<_> = events
            .items
            .into_iter()
            .map(|event| (event.reason, event.message))
            .collect();
        let told =
            format!("{conditions:?} {copies:?} {failures:?} {sources:?} {plan:?} {events:?}");
        Ok(told.replace(namespace, "NAMESPACE"))
    }

    /// Creates a Secret in the tenant's namespace as the admin. It stands for one that existed
    /// before.
    pub async fn secret(&self, name: &str, token: &str) -> Result<Secret> {
        create_secret(&self.scene.client, &self.home, name, &[("token", token)]).await
    }

    /// Creates such a Secret with the label `copy`.
    pub async fn labelled(&self, name: &str, token: &str) -> Result<()> {
        self.secret(name, token).await?;
        merge(
            &self.scene.secrets(&self.home),
            name,
            json!({"metadata": {"labels": {"copy": "yes"}}}),
        )
        .await?;
        Ok(())
    }

    /// Creates a Secret in the tenant's namespace as the tenant.
    ///
    /// # Errors
    /// The API server's refusal, unchanged.
    pub async fn makes(&self, name: &str, token: &str) -> kube::Result<Secret> {
        let secret = json!({"metadata": {"name": name}, "stringData": {"token": token}});
        let secret = serde_json::from_value(secret).map_err(kube::Error::SerdeError)?;
        self.secrets().create(&PostParams::default(), &secret).await
    }
}

fn kind_of(plural: &str) -> &'static str {
    if plural == "replications" {
        "Replication"
    } else {
        "ReplicationGrant"
    }
}

/// The spec of a Replication that copies Secret `from/name` to these namespaces. Without `from` the
/// Secret is in the Replication's own namespace.
pub fn copying(from: Option<&str>, name: &str, to: &[&str]) -> Value {
    let mut spec = json!({"sources": [{"apiVersion": "v1", "kind": "Secret", "name": name}]});
    if let Some(from) = from {
        spec["sources"][0]["namespace"] = json!(from);
    }
    if !to.is_empty() {
        spec["targets"] = json!([{"namespaces": to}]);
    }
    spec
}

/// The spec of a `ReplicationGrant` for Secrets that grants Replications in `from`.
pub fn consent(access: &str, from: &str, names: &[&str]) -> Value {
    let mut to = json!({"apiVersion": "v1", "kind": "Secret"});
    if !names.is_empty() {
        to["names"] = json!(names);
    }
    json!({"access": access, "grantees": [{"namespaces": [from]}], "objects": [to]})
}

/// A test whether a Secret has this token.
pub fn has(token: &'static str) -> impl Fn(&Secret) -> bool {
    move |copy| crate::scenario::value(copy, "token").as_deref() == Some(token)
}
