//! A foreign admission webhook that accepts connections and never answers. Writes hang for as long
//! as the test needs.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

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
    address: SocketAddr,
    /// Takes connections without accepting them.
    listener: Option<TcpListener>,
    /// The first connection.
    called: Option<TcpStream>,
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
        let address = listener.local_addr()?;
        let name = format!("{}.example.com", scene.tag);
        let rules = json!([{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["secrets"],
        }]);
        let named =
            json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces});
        let hook = json!({
            "name": name, "clientConfig": {"url": format!("https://{address}/")}, "rules": rules,
            "namespaceSelector": {"matchExpressions": [named]},
            "failurePolicy": failure_policy, "timeoutSeconds": seconds,
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
        });
        let hooks = json!({"apiVersion": ADMISSION, "kind": KIND, "metadata": {"name": name}, "webhooks": [hook]});
        apply(&scene.client, &hooks).await?;
        // The webhook is in use once an API server calls it. The probe may give up before that
        // call is answered.
        let probe = Secret {
            metadata: ObjectMeta {
                name: Some("probe".into()),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        };
        let secrets = scene.secrets(namespaces.first().context("no namespace")?);
        listener.set_nonblocking(true)?;
        let called = eventually(SOON, "the hook to be in force", || async {
            let dry_run = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            let _ = timeout(Duration::from_secs(1), secrets.create(&dry_run, &probe)).await;
            let (called, _) = listener.accept()?;
            Ok(Some(called))
        })
        .await?;
        Ok(Self {
            scene,
            name,
            address,
            listener: Some(listener),
            called: Some(called),
        })
    }

    /// Breaks the connections of the calls that hang now, so they fail at once. Later calls hang as
    /// before.
    pub fn let_go(&mut self) -> Result<()> {
        (self.listener, self.called) = (None, None);
        self.listener = Some(TcpListener::bind(self.address)?);
        Ok(())
    }

    /// Deletes the registration. API servers notice a moment later.
    pub async fn end(self) -> Result<()> {
        delete(&any(&self.scene.client, ADMISSION, KIND, None)?, &self.name).await
    }
}
