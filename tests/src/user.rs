//! A user of a control plane: a name, groups and a certificate. The test grants its permissions by
//! RBAC.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::planted;

const CONNECT_TIMEOUT: Duration = Duration::from_mins(1);

/// A user of one [`crate::ControlPlane`], with a kubeconfig per API server.
///
/// The kubeconfig files are removed together with the control plane.
#[derive(Debug, Clone)]
pub struct User {
    name: String,
    kubeconfigs: Vec<PathBuf>,
}

impl User {
    pub(crate) fn new(name: &str, kubeconfigs: Vec<PathBuf>) -> Self {
        Self {
            name: name.to_owned(),
            kubeconfigs,
        }
    }

    /// The name in RBAC bindings and in the audit log.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kubeconfig for the first API server.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfigs[0]
    }

    /// The kubeconfig for one API server, counted from 0.
    ///
    /// # Errors
    /// There are fewer API servers.
    pub fn kubeconfig_for(&self, api_server: usize) -> Result<&Path> {
        let path = self.kubeconfigs.get(api_server);
        path.map(PathBuf::as_path)
            .with_context(|| format!("there is no API server {api_server}"))
    }

    /// A new client of the first API server; see [`User::config_for`].
    pub async fn client(&self) -> Result<Client> {
        self.client_for(0).await
    }

    /// A new client of one API server, counted from 0; see [`User::config_for`].
    ///
    /// The client belongs to the runtime that it was made on, so every `#[tokio::test]` makes its
    /// own. It plants a marker in the Secrets that it writes ([`planted`]).
    pub async fn client_for(&self, api_server: usize) -> Result<Client> {
        planted::client(self.config_for(api_server).await?)
    }

    /// The configuration behind [`User::client_for`], for tests that change it before they make a
    /// client.
    ///
    /// It has no request limit and no retries, so that a test sees every refusal. The user agent is
    /// `mimeo-tests`.
    pub async fn config_for(&self, api_server: usize) -> Result<Config> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig_for(api_server)?)?;
        let mut config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.headers = vec![(USER_AGENT, HeaderValue::from_static("mimeo-tests"))];
        Ok(config)
    }
}
