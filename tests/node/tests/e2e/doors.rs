//! Mimeo's ports, used by a client inside the cluster that does not verify the server's
//! certificate.

use anyhow::{Context, Result, ensure};
use http::{Request, StatusCode, header::CONTENT_TYPE};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Config, client::Body};
use mimeo_node_tests::Mimeo;
use mimeo_tests::{planted, traffic::create_account};
use serde_json::{Value, json};

/// One of a pod's ports.
pub(crate) struct Door(Client);

impl Door {
    /// Connects to a pod's port, with this token or without one.
    pub(crate) fn of(pod: &Pod, scheme: &str, port: u16, token: Option<&str>) -> Result<Self> {
        let address = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_deref())
            .context("no address")?;
        let mut config = Config::new(format!("{scheme}://{address}:{port}").parse()?);
        config.accept_invalid_certs = true;
        config.default_retry = false;
        config.auth_info = serde_json::from_value(json!({"token": token}))?;
        Client::try_from(config)
            .context("failed to make a client")
            .map(Self)
    }

    /// Returns the status of an answer, also if the answer is a stream.
    pub(crate) async fn status(&self, path: &str) -> Result<u16> {
        let answer = self.0.send(Request::get(path).body(Body::empty())?).await;
        Ok(answer
            .with_context(|| format!("no answer to {path}"))?
            .status()
            .as_u16())
    }

    /// Returns the status of an answer that ends.
    ///
    /// # Errors
    ///
    /// Also if the answer contains the marked content of a Secret.
    pub(crate) async fn get(&self, path: &str) -> Result<u16> {
        Ok(self
            .exchange(Request::get(path).body(Body::empty())?)
            .await?
            .0
            .as_u16())
    }

    /// Returns a hook's answer to a review: the text, followed by the text of its patch.
    ///
    /// # Errors
    ///
    /// Also if the answer contains the marked content of a Secret, or is not the answer to this
    /// review.
    pub(crate) async fn ask(&self, hook: &str, review: &Value) -> Result<String> {
        let request =
            Request::post(format!("{hook}?timeout=5s")).header(CONTENT_TYPE, "application/json");
        let (status, text) = self
            .exchange(request.body(review.to_string().into_bytes().into())?)
            .await?;
        ensure!(status == StatusCode::OK, "{hook} answers {status}");
        let answer: Value =
            serde_json::from_str(&text).with_context(|| format!("{hook} answers {text}"))?;
        ensure!(
            answer["response"]["uid"] == review["request"]["uid"],
            "{hook} answers {text}"
        );
        Ok(format!(
            "{text}{}",
            planted::patch_of(&text).unwrap_or_default()
        ))
    }

    async fn exchange(&self, request: Request<Body>) -> Result<(StatusCode, String)> {
        let what = format!("{} {}", request.method(), request.uri());
        let answer = self
            .0
            .send(request)
            .await
            .with_context(|| format!("no answer to {what}"))?;
        let status = answer.status();
        let text = String::from_utf8_lossy(&answer.into_body().collect_bytes().await?).into_owned();
        ensure!(!planted::is_in(&text), "{what} shows a Secret's content");
        Ok((status, text))
    }
}

/// Returns a token of the account `default` of that namespace, which has no permissions.
pub(crate) async fn token(mimeo: &Mimeo, namespace: &str) -> Result<String> {
    create_account(&mimeo.client, namespace).await?;
    Ok(mimeo
        .node
        .kubectl(["-n", namespace, "create", "token", "default"])
        .await?
        .trim()
        .to_owned())
}
