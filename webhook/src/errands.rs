//! What the program does besides being the webhook: errands of the chart's Jobs, which have no other image to run.

use std::{fmt::Debug, time::Duration};

use anyhow::{Context, anyhow, bail};
use clap::Subcommand;
use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
        ValidatingWebhookConfiguration,
    },
    core::v1::ConfigMap,
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, PostParams},
};
use mimeo_api::{ClusterReplication, Replication};
use mimeo_core::registration::{NAME, POLICIES_NAME, SOURCES_NAME};
use mimeo_runtime::{
    client::{Fault, status, within},
    writer::KINDS_CONFIG_MAP,
};
use serde::de::DeserializeOwned;
use serde_json::{from_value, json};
use tokio::time::{Instant, sleep};
use tracing::info;

/// For one request.
const DEADLINE: Duration = Duration::from_secs(10);
/// For an errand, all in all.
const PATIENCE: Duration = Duration::from_mins(1);
/// For the copies to go, when their rules do.
const DELETING: Duration = Duration::from_mins(2);
/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);
/// How long registrations must have stayed away: a write may have been under way when its right was taken, and
/// API servers hear of that one after the other.
const SETTLED: Duration = Duration::from_secs(3);
/// By which the webhook may write its registrations.
const BINDING: &str = "mimeo-webhook";
/// The policy that guards namespaces' labels, and its binding.
const GUARDED_LABELS: &str = "mimeo-guarded-labels";

/// What to do instead of serving.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Errand {
    /// Take the webhook registrations away, and the webhook's right to put them back, and the policy of guarded labels: before Mimeo is
    /// removed
    Unregister {
        /// Delete all rules first, and wait until the reconciler has deleted their copies
        #[arg(long)]
        delete_copies: bool,
    },
    /// Verify that API servers reach the webhook, by a dry run that nobody but it would refuse
    Verify,
}

impl Errand {
    /// Runs it to its end.
    pub(crate) async fn run(self, client: &Client, namespace: &str) -> anyhow::Result<()> {
        match self {
            Self::Unregister { delete_copies } => {
                if delete_copies {
                    delete_rules(client, namespace).await?;
                }
                unregister(client).await
            }
            Self::Verify => verify(client, namespace).await,
        }
    }
}

/// Copies of rules that are deleted go, but for those that their rules leave. It is the reconciler that deletes them: it notes which kinds may
/// have any.
async fn delete_rules(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        delete_all::<ClusterReplication>(client).await?;
        delete_all::<Replication>(client).await?;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let noted = within(DEADLINE, maps.get_opt(KINDS_CONFIG_MAP)).await;
        let noted = noted.map_err(|error| anyhow!("failed to read ConfigMap {KINDS_CONFIG_MAP}: {}", Fault(&error)))?;
        let kinds: Vec<String> = noted.and_then(|map| map.data).unwrap_or_default().into_keys().collect();
        if kinds.is_empty() {
            info!("no copy is left");
            return Ok(());
        }
        if started.elapsed() > DELETING {
            bail!("copies are left of {}: does the reconciler run, and is no deletion held?", kinds.join(", "));
        }
        sleep(PAUSE).await;
    }
}

async fn delete_all<K>(client: &Client) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let kind = K::kind(&());
    let all = within(DEADLINE, Api::<K>::all(client.clone()).list_metadata(&ListParams::default())).await;
    for rule in all.map_err(|error| anyhow!("failed to list {kind}s: {}", Fault(&error)))? {
        let path = K::url_path(&(), rule.metadata.namespace.as_deref());
        let name = rule.metadata.name.unwrap_or_default();
        let request = kube::core::Request::new(path).delete(&name, &DeleteParams::default())?;
        match within(DEADLINE, client.request_status::<K>(request)).await {
            Ok(_) => info!(%kind, name, "deleted"),
            Err(error) if status(&error) == Some(404) => {}
            Err(error) => bail!("failed to delete {kind} {name}: {}", Fault(&error)),
        }
    }
    Ok(())
}

async fn unregister(client: &Client) -> anyhow::Result<()> {
    // It fails closed without the definitions, and these may be gone before it.
    remove::<ValidatingAdmissionPolicyBinding>(client, GUARDED_LABELS).await?;
    remove::<ValidatingAdmissionPolicy>(client, GUARDED_LABELS).await?;
    // First, for a running webhook puts back what is deleted.
    remove::<ClusterRoleBinding>(client, BINDING).await?;
    let started = Instant::now();
    let mut settled = started;
    while settled.elapsed() < SETTLED {
        if started.elapsed() > PATIENCE {
            bail!("somebody writes the webhook registrations again and again");
        }
        for name in [NAME, POLICIES_NAME] {
            if remove::<MutatingWebhookConfiguration>(client, name).await? {
                settled = Instant::now();
            }
        }
        for name in [NAME, SOURCES_NAME] {
            if remove::<ValidatingWebhookConfiguration>(client, name).await? {
                settled = Instant::now();
            }
        }
        sleep(PAUSE).await;
    }
    info!("unregistered");
    Ok(())
}

/// Deletes an object; false if there was none.
async fn remove<K>(client: &Client, name: &str) -> anyhow::Result<bool>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let kind = K::kind(&());
    match within(DEADLINE, Api::<K>::all(client.clone()).delete(name, &DeleteParams::default())).await {
        Ok(_) => {
            info!(%kind, name, "deleted");
            Ok(true)
        }
        Err(error) if status(&error) == Some(404) => Ok(false),
        Err(error) => bail!("failed to delete {kind} {name}: {}", Fault(&error)),
    }
}

/// The rule would copy what its author, this program's account, may not read: a refusal for that has come all the way from the webhook.
async fn verify(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "mimeo-verify"},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "name": "mimeo-verify"}],
            "targets": [{"namespaces": ["mimeo-verify"]}],
        },
    });
    let rule: ClusterReplication = from_value(rule).context("the rule")?;
    let rules: Api<ClusterReplication> = Api::all(client.clone());
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let started = Instant::now();
    loop {
        let told = match within(DEADLINE, rules.create(&params, &rule)).await {
            Err(kube::Error::Api(refusal)) if is_the_webhooks(refusal.code, &refusal.message) => {
                info!("the API server has asked the webhook");
                return Ok(());
            }
            Err(error) => Fault(&error).to_string(),
            Ok(_) => "the API server has asked nobody about a rule".to_owned(),
        };
        if started.elapsed() > PATIENCE {
            bail!(told);
        }
        info!(told, "not yet");
        sleep(PAUSE).await;
    }
}

/// Whether the refusal is what the webhook has to say, not that it wasn't reached.
fn is_the_webhooks(code: u16, message: &str) -> bool {
    code == 403 && message.contains("rules.mimeo.dev") && message.contains("denied the request")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_webhooks_own_refusal_verifies_it() {
        for (code, message, is) in [
            (403, r#"admission webhook "rules.mimeo.dev" denied the request: Forbidden: user "x" may not"#, true),
            (500, r#"failed calling webhook "rules.mimeo.dev": no endpoints available"#, false),
            (403, r#"clusterreplications.mimeo.dev is forbidden: User "x" cannot create resource"#, false),
            (403, r#"admission webhook "policy.example.com" denied the request: no"#, false),
        ] {
            assert_eq!(is_the_webhooks(code, message), is, "{message}");
        }
    }
}
