//! A foreign admission webhook that accepts connections and never answers. Writes hang for as long
//! as the test needs.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    eventually,
    scenario::{SOON, Scene, any, apply, delete},
};

const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const KIND: &str = "MutatingWebhookConfiguration";
/// How long an API server waits for the TLS handshake of a hook, whatever the hook's timeout is. It
/// calls mutating hooks one after another, so several of them hold a write for longer.
const HANDSHAKE: u32 = 10;

/// The webhook, for the Secrets of some namespaces.
pub struct Silent<'a> {
    scene: &'a Scene<'a>,
    name: String,
    address: SocketAddr,
    calls: Arc<Mutex<Calls>>,
}

/// What happens to the calls of API servers.
enum Calls {
    /// They hang. These are their connections.
    Hang(Vec<TcpStream>),
    /// They fail at once.
    Fail,
    /// The thread that accepts connections ends.
    End,
}

impl<'a> Silent<'a> {
    /// Registers hooks that hold each write for this time, and waits until the API server uses
    /// them. The write then fails, or passes with the failure policy `Ignore`. API servers end each
    /// write after 34 seconds.
    pub async fn over(
        scene: &'a Scene<'a>,
        namespaces: &[String],
        failure_policy: &str,
        seconds: u32,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let silent = Self {
            scene,
            name: format!("{}.example.com", scene.tag),
            address: listener.local_addr()?,
            calls: Arc::new(Mutex::new(Calls::Hang(Vec::new()))),
        };
        let calls = silent.calls.clone();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                match &mut *calls.lock().unwrap_or_else(PoisonError::into_inner) {
                    Calls::Hang(connections) => connections.push(connection),
                    Calls::Fail => drop(connection),
                    Calls::End => break,
                }
            }
        });
        let rules = json!([{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["secrets"],
        }]);
        let named =
            json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces});
        let last = seconds.div_ceil(HANDSHAKE);
        let hook = |number| {
            let policy = if number == last {
                failure_policy
            } else {
                "Ignore"
            };
            json!({
                "name": format!("{number}.{}", silent.name),
                "clientConfig": {"url": format!("https://{}/", silent.address)}, "rules": rules,
                "namespaceSelector": {"matchExpressions": [named]},
                "failurePolicy": policy, "timeoutSeconds": seconds.min(HANDSHAKE),
                "sideEffects": "None", "admissionReviewVersions": ["v1"],
            })
        };
        let hooks: Vec<Value> = (1..=last).map(hook).collect();
        let hooks = json!({"apiVersion": ADMISSION, "kind": KIND, "metadata": {"name": silent.name}, "webhooks": hooks});
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
        eventually(SOON, "the hook to be in force", || async {
            let dry_run = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            let _ = timeout(Duration::from_secs(1), secrets.create(&dry_run, &probe)).await;
            Ok(silent.is_called().then_some(()))
        })
        .await?;
        Ok(silent)
    }

    fn is_called(&self) -> bool {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(&*calls, Calls::Hang(connections) if !connections.is_empty())
    }

    /// Breaks the connections of the calls that hang, and of all later calls.
    pub fn let_go(&self) {
        self.set(Calls::Fail);
    }

    /// Lets calls hang again after [`Silent::let_go`].
    pub fn hold(&self) {
        self.set(Calls::Hang(Vec::new()));
    }

    fn set(&self, calls: Calls) {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner) = calls;
    }

    /// Deletes the registration, and breaks the connections of the calls that hang. API servers
    /// notice the deletion a moment later. Until then, their calls fail at once.
    pub async fn end(self) -> Result<()> {
        delete(&any(&self.scene.client, ADMISSION, KIND, None)?, &self.name).await
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        self.set(Calls::End);
        // Wakes the thread.
        drop(TcpStream::connect(self.address));
    }
}
