//! Clients of the API server: one for requests, one for watches.
//!
//! Both speak HTTP/1.1 over a pool of connections, which writes as fast as HTTP/2 and doesn't let
//! one slow answer hold up others. Neither limits nor retries: pace and back-off belong to whoever
//! knows what a request is worth.

use std::{fmt, path::PathBuf, time::Duration};

use clap::Args;
use http::{HeaderValue, header::USER_AGENT};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::connect::HttpConnector,
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::ConfigExt,
    config::{InClusterError, InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tower::{BoxError, ServiceBuilder};

use crate::{
    body::{Outgoing, unpack},
    tls,
    watch::Watcher,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The API server sends a bookmark about once a minute, so a watch that has been silent for longer
/// is dead. A little longer than [`watch`](crate::watch) has patience, which tells this from a
/// connection that broke.
const WATCH_SILENCE: Duration = Duration::from_secs(100);
/// As many as write at the same time at most; the rest would only cost memory at both ends.
const IDLE_CONNECTIONS: usize = 64;
/// Below the idle timeouts of load balancers in front of API servers.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Flags that say where the API server is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "API server")]
pub struct ClientArgs {
    /// Kubeconfig file. Default: the files in KUBECONFIG, else the Pod's service account, else
    /// ~/.kube/config
    #[arg(long, env = "MIMEO_KUBECONFIG", value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
}

/// The clients of one API server.
#[derive(Clone)]
pub struct Clients {
    /// For requests that end. It sets no deadline of its own but that of connecting (5 s): see
    /// [`within`](crate::fault::within).
    pub requests: Client,
    /// For watches: a connection that is silent for 100 s is given up.
    pub watches: Client,
    /// The same for watches that engines live by, of which it is known how they fare.
    pub watcher: Watcher,
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients").finish_non_exhaustive()
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A kubeconfig is missing or wrong.
    #[error("failed to load the kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    /// The Pod's service account is there but unusable.
    #[error("failed to load the Pod's service account")]
    InCluster(#[from] InClusterError),
    /// Nothing says where the API server is.
    #[error("no kubeconfig and no service account found")]
    Nowhere(#[source] Box<InferConfigError>),
    /// The configuration asks for a proxy.
    #[error("the kubeconfig's proxy-url is not supported")]
    Proxy,
    /// Credentials or certificates of the configuration are unusable.
    #[error("failed to build the client")]
    Build(#[source] Box<kube::Error>),
    /// The program's name is no header value.
    #[error("invalid user agent")]
    UserAgent(#[from] http::header::InvalidHeaderValue),
}

impl ClientArgs {
    /// Builds the clients; nothing is sent yet. `program` is what the API server's audit log shows,
    /// with the version.
    pub async fn clients(&self, program: &str) -> Result<Clients, ClientError> {
        tls::install_provider();
        let mut config = self.config().await?;
        if config.proxy_url.is_some() {
            return Err(ClientError::Proxy);
        }
        let agent = HeaderValue::from_str(&format!("{program}/{}", env!("CARGO_PKG_VERSION")))?;
        config.headers.push((USER_AGENT, agent));
        let build =
            |flavour| build(&config, flavour).map_err(|error| ClientError::Build(Box::new(error)));
        let watches = build(Flavour::Watches)?;
        Ok(Clients {
            requests: build(Flavour::Requests)?,
            watcher: Watcher::from(watches.clone()),
            watches,
        })
    }

    async fn config(&self) -> Result<Config, ClientError> {
        let options = KubeConfigOptions::default();
        if let Some(path) = &self.kubeconfig {
            return Ok(
                Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await?,
            );
        }
        if let Some(kubeconfig) = Kubeconfig::from_env()? {
            return Ok(Config::from_custom_kubeconfig(kubeconfig, &options).await?);
        }
        if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            return Ok(Config::incluster()?);
        }
        Config::infer()
            .await
            .map_err(|error| ClientError::Nowhere(Box::new(error)))
    }
}

#[derive(Clone, Copy)]
enum Flavour {
    Requests,
    Watches,
}

/// Kube's own stack without its retries (they would hide back-pressure and count as requests) and
/// its tracing layer (each error is logged where it stops), and with a bounded pool.
fn build(config: &Config, flavour: Flavour) -> Result<Client, kube::Error> {
    let (silence, idle) = match flavour {
        Flavour::Requests => (None, IDLE_CONNECTIONS),
        Flavour::Watches => (Some(WATCH_SILENCE), 2),
    };
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_read_timeout(silence);
    // Without this the time that a connection lay idle in the pool would count as silence of its
    // next watch.
    connector.set_reset_reader_on_write(true);
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(idle)
        .build::<_, Outgoing>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .map_request(unpack)
        .service(http);
    Ok(Client::new(service, config.default_namespace.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::within;

    #[tokio::test]
    async fn a_kubeconfig_makes_both_clients() {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let path = directory.path().join("config");
        let kubeconfig = r#"{"apiVersion":"v1","kind":"Config","current-context":"c",
            "clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
            "users":[{"name":"u","user":{"token":"t"}}],
            "contexts":[{"name":"c","context":{"cluster":"c","user":"u","namespace":"here"}}]}"#;
        std::fs::write(&path, kubeconfig).expect("a file is written");
        let clients = ClientArgs {
            kubeconfig: Some(path),
        }
        .clients("mimeo-test")
        .await
        .expect("clients");
        assert_eq!(clients.requests.default_namespace(), "here");
        let refused = within(Duration::from_secs(5), clients.requests.apiserver_version()).await;
        assert!(refused.is_err());
        let missing = ClientArgs {
            kubeconfig: Some(directory.path().join("none")),
        }
        .clients("mimeo-test")
        .await;
        assert!(matches!(missing, Err(ClientError::Kubeconfig(_))));
    }
}
