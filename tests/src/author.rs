//! Users with limited permissions, as authors of rules.

use anyhow::{Result, bail, ensure};
use kube::{Api, Client, api::PostParams};
use mimeo_api::ClusterReplication;
use serde_json::{Value, json};

use crate::{
    eventually,
    scenario::{RuleSpec, SOON, Scene, apply, create},
    unique,
};

/// All verbs that a rule uses on Secrets, except reading its source.
pub const WRITE: [&str; 3] = ["create", "update", "delete"];

/// An RBAC rule that allows these verbs on Secrets.
pub fn secrets(verbs: &[&str]) -> Value {
    json!({"apiGroups": [""], "resources": ["secrets"], "verbs": verbs})
}

/// A user that may write rules and policies, and nothing else at first.
pub struct Author<'a> {
    /// The scene of this user.
    pub scene: &'a Scene<'a>,
    /// The user's name.
    pub name: String,
    /// The user's client.
    pub client: Client,
}

impl<'a> Author<'a> {
    /// A user with a unique name, in these groups.
    pub async fn new(scene: &'a Scene<'a>, groups: &[&str]) -> Result<Self> {
        let name = unique(&scene.tag);
        let client = scene
            .setting
            .control_plane
            .user(&name, groups)?
            .client()
            .await?;
        let author = Self {
            scene,
            name,
            client,
        };
        let kinds = ["clusterreplications", "transformpolicies"];
        let rules = json!({"apiGroups": ["mimeo.dev"], "resources": kinds, "verbs": ["get", "create", "update", "patch"]});
        author.may(None, &rules).await?;
        Ok(author)
    }

    /// Grants the user these RBAC rules, in `namespace` or in the whole cluster. Returns the name
    /// of the binding.
    pub async fn may(&self, namespace: Option<&str>, rules: &Value) -> Result<String> {
        grant(self.scene, "User", &self.name, namespace, rules).await
    }

    /// Waits until the API server refuses the rule with a message that contains all `words`. A new
    /// permission takes a moment to work.
    pub async fn refused(&self, rule: &RuleSpec, words: &[&str]) -> Result<String> {
        self.refused_as(&PostParams::default(), rule, words).await
    }

    /// The same, with these parameters for the create request.
    pub async fn refused_as(
        &self,
        params: &PostParams,
        rule: &RuleSpec,
        words: &[&str],
    ) -> Result<String> {
        let (rules, object) = (
            Api::<ClusterReplication>::all(self.client.clone()),
            serde_json::from_value(rule.object())?,
        );
        let message = eventually(
            SOON,
            format!("{} refused: {words:?}", rule.name),
            || async {
                match rules.create(params, &object).await {
                    Err(kube::Error::Api(status)) if status.code == 403 => {
                        let so = words.iter().all(|word| status.message.contains(word));
                        if so {
                            Ok(Some(status.message.clone()))
                        } else {
                            bail!("{}", status.message)
                        }
                    }
                    Err(error) => bail!("{error}"),
                    Ok(_) => bail!("it was accepted"),
                }
            },
        )
        .await?;
        let rules: Api<ClusterReplication> = Api::all(self.scene.client.clone());
        ensure!(
            rules.get_opt(&rule.name).await?.is_none(),
            "refused and stored"
        );
        Ok(message)
    }

    /// Waits until the API server accepts the rule.
    pub async fn accepted(&self, rule: &RuleSpec) -> Result<()> {
        eventually(SOON, format!("{} accepted", rule.name), || async {
            Ok(Some(
                create(&self.client, "clusterreplications", &rule.object()).await?,
            ))
        })
        .await?;
        Ok(())
    }
}

/// Grants a user or group these RBAC rules, in `namespace` or in the whole cluster. Returns the
/// name of the binding.
pub async fn grant(
    scene: &Scene<'_>,
    to: &str,
    name: &str,
    namespace: Option<&str>,
    rules: &Value,
) -> Result<String> {
    let (role, binding) = if namespace.is_some() {
        ("Role", "RoleBinding")
    } else {
        ("ClusterRole", "ClusterRoleBinding")
    };
    let (api_version, called) = ("rbac.authorization.k8s.io/v1", unique(&scene.tag));
    let metadata = json!({"name": called, "namespace": namespace});
    let role_ref = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": called});
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": to, "name": name});
    let role =
        json!({"apiVersion": api_version, "kind": role, "metadata": metadata, "rules": [rules]});
    apply(&scene.client, &role).await?;
    let binding = json!({
        "apiVersion": api_version, "kind": binding, "metadata": metadata, "roleRef": role_ref, "subjects": [subject],
    });
    apply(&scene.client, &binding).await?;
    Ok(called)
}
