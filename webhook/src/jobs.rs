//! Subcommands for the chart's Jobs. The Jobs run this image because the chart has no other.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use http::Method;
use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
        ValidatingWebhookConfiguration,
    },
    rbac::v1::ClusterRoleBinding,
};
use kube::{Client, Resource};
use mimeo_api::ClusterReplication;
use mimeo_model::registration::{NAME, POLICIES_NAME};
use mimeo_runtime::call::{self, Answer, DEADLINE, JSON, LARGEST_OBJECT, METADATA};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::info;

/// Timeout of a whole Job.
const PATIENCE: Duration = Duration::from_mins(1);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// Time for which the registrations must stay deleted before the Job ends. A webhook may have sent
/// a write just before its permission was removed, and API servers learn of the removal one by one.
const SETTLED: Duration = Duration::from_secs(3);
/// `ClusterRoleBinding` that lets the webhook write its registrations.
const BINDING: &str = "mimeo-webhook";
/// Name of the policy that guards the labels of namespaces, and of its binding.
const GUARDED_LABELS: &str = "mimeo-guarded-labels";

/// What to do instead of serving.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Job {
    /// Take the webhook registrations away, and the webhook's right to put them back, and then the
    /// policy of guarded labels: before Mimeo is removed
    Unregister,
    /// Verify that API servers reach the webhook, by a dry run that nobody but it would refuse
    Verify,
}

impl Job {
    /// Runs the Job until it ends.
    pub(crate) async fn run(self, client: &Client, namespace: &str) -> anyhow::Result<()> {
        match self {
            Self::Unregister => unregister(client).await,
            Self::Verify => verify(client, namespace).await,
        }
    }
}

async fn unregister(client: &Client) -> anyhow::Result<()> {
    // The permission goes first, because a running webhook restores deleted registrations.
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
        if remove::<ValidatingWebhookConfiguration>(client, NAME).await? {
            settled = Instant::now();
        }
        sleep(PAUSE).await;
    }
    // The policy fails closed without Mimeo's CRDs, and these may be deleted before it. It goes
    // last: if an earlier step fails, Mimeo keeps running and the labels must stay guarded.
    remove::<ValidatingAdmissionPolicyBinding>(client, GUARDED_LABELS).await?;
    remove::<ValidatingAdmissionPolicy>(client, GUARDED_LABELS).await?;
    info!("unregistered");
    Ok(())
}

/// Deletes an object. Returns false if it did not exist.
async fn remove<K>(client: &Client, name: &str) -> anyhow::Result<bool>
where
    K: Resource<DynamicType = ()>,
{
    let (kind, path) = (K::kind(&()), K::url_path(&(), None));
    let deleted = call::delete(client, &format!("{path}/{name}"), DEADLINE).await;
    let existed = deleted.with_context(|| format!("failed to delete {kind} {name}"))?;
    if existed {
        info!(%kind, name, "deleted");
    }
    Ok(existed)
}

/// Verifies that the API server asks the webhook. The rule copies a Secret that its author, the
/// account of this program, may not read. Only the webhook refuses such a rule for that reason.
async fn verify(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "mimeo-verify"},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "name": "mimeo-verify"}],
            "targets": [{"namespaces": ["mimeo-verify"]}],
        },
    });
    let uri = format!("{}?dryRun=All", ClusterReplication::url_path(&(), None));
    let started = Instant::now();
    loop {
        let request = call::write(Method::POST, &uri, METADATA, JSON, rule.to_string());
        let answer = call::call(client, request, DEADLINE, LARGEST_OBJECT).await;
        if let Ok(answer) = &answer
            && is_the_webhooks(answer.code.as_u16(), &answer.message())
        {
            info!("the API server has asked the webhook");
            return Ok(());
        }
        let told = match answer.and_then(Answer::accept) {
            Err(error) => error.to_string(),
            Ok(_) => "the API server has asked nobody about a rule".to_owned(),
        };
        if started.elapsed() > PATIENCE {
            bail!(told);
        }
        info!(told, "not yet");
        sleep(PAUSE).await;
    }
}

/// True if the refusal comes from the webhook itself. A failed call to the webhook does not count.
fn is_the_webhooks(code: u16, message: &str) -> bool {
    code == 403 && message.contains("rules.mimeo.dev") && message.contains("denied the request")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_webhooks_own_refusal_verifies_it() {
        for (code, message, is) in [
            (
                403,
                r#"admission webhook "rules.mimeo.dev" denied the request: Forbidden: user "x" may not"#,
                true,
            ),
            (
                500,
                r#"failed calling webhook "rules.mimeo.dev": no endpoints available"#,
                false,
            ),
            (
                403,
                r#"clusterreplications.mimeo.dev is forbidden: User "x" cannot create resource"#,
                false,
            ),
            (
                403,
                r#"admission webhook "policy.example.com" denied the request: no"#,
                false,
            ),
        ] {
            assert_eq!(is_the_webhooks(code, message), is, "{message}");
        }
    }
}
