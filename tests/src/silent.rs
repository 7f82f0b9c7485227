//! A foreign admission webhook that accepts connections and never answers. Writes hang for as long
//! as the test needs.

use std::{net::TcpListener, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    eventually,
    scenario::{SOON, Scene, any, apply, delete},
};

const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const KIND: &str = "ValidatingWebhookConfiguration";

/// The webhook, for the Secrets of some namespaces.
pub struct Silent<'a> {
    scene: &'a Scene<'a>,
    name: String,
    _listener: TcpListener,
}

impl<'a> Silent<'a> {
    /// Registers the webhook and waits until the API server uses it.
    pub async fn over(
        scene: &'a Scene<'a>,
        namespaces: &[String],
        failure_policy: &str,
        seconds: u32,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let name = format!("{}.example.com", scene.tag);
        let rules = json!([{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["secrets"],
        }]);
        let named =
            json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces});
        let hook = json!({
            "name": name, "clientConfig": {"url": format!("https://{}/", listener.local_addr()?)}, "rules": rules,
            "namespaceSelector": {"matchExpressions": [named]},
            "failurePolicy": failure_policy, "timeoutSeconds": seconds,
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
        });
        let hooks = json!({"apiVersion": ADMISSION, "kind": KIND, "metadata": {"name": name}, "webhooks": [hook]});
        apply(&scene.client, &hooks).await?;
        // The webhook is in use once a write hangs or is refused because of it. The probe may give
        // up waiting before it has an answer.
        let probe = Secret {
            metadata: ObjectMeta {
                name: Some("probe".into()),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        };
        let secrets = scene.secrets(namespaces.first().context("no namespace")?);
        eventually(SOON, "the hook to be in force", || async {
            let dry_run = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            Ok(
                match timeout(Duration::from_secs(2), secrets.create(&dry_run, &probe)).await {
                    Err(_) => Some(()),
                    Ok(Err(kube::Error::Api(status))) => {
                        status.message.contains(&name).then_some(())
                    }
                    Ok(_) => None,
                },
            )
        })
        .await?;
        Ok(Self {
            scene,
            name,
            _listener: listener,
        })
    }

    /// Deletes the registration. API servers notice a moment later.
    pub async fn end(self) -> Result<()> {
        delete(&any(&self.scene.client, ADMISSION, KIND, None)?, &self.name).await
    }
}
