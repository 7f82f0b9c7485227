//! The client of the API server, for requests and for watches.
//!
//! It speaks HTTP/1.1 over a pool of connections. A pool writes as fast as HTTP/2, and one slow
//! answer does not delay other answers.
//!
//! The client does not limit or retry requests. A caller knows the value of a request and chooses
//! pace and back-off by it. The HTTP stack is therefore built here, from kube's own layers without
//! kube's retries.

use std::{env, path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use clap::Args;
use http::{HeaderValue, Request, header::USER_AGENT};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::connect::HttpConnector,
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::ConfigExt,
    config::{KubeConfigOptions, Kubeconfig},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use tower::{BoxError, ServiceBuilder, service_fn};

use crate::{
    pieces::{Outgoing, unpack},
    tls,
    watch::Watcher,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest number of concurrent writes. More idle connections would only cost memory at both
/// ends.
const IDLE_CONNECTIONS: usize = 64;
/// Shorter than the idle timeouts of load balancers in front of API servers.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Flags for the connection to the API server.
#[derive(Args)]
#[command(next_help_heading = "API server")]
pub struct ClientArgs {
    /// Kubeconfig file. Default: the files in KUBECONFIG, else the Pod's service account, else
    /// ~/.kube/config
    #[arg(long, env = "MIMEO_KUBECONFIG", value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
}

/// Counts requests to the API server. Cheap to clone.
pub(crate) type ApiRequests = Family<ApiRequest, Counter>;

/// The labels of a request. The code is 0 if there was no answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ApiRequest {
    method: String,
    code: u16,
}

/// One HTTP client of an API server, for requests and for watches. It has no deadline except the one
/// for connecting (5 s).
pub struct Clients {
    /// For requests that end. [`call`](crate::call) sets a deadline for each.
    pub requests: Client,
    /// For watches. [`watch`](crate::watch) ends one that is silent.
    pub watcher: Watcher,
    pub(crate) counts: ApiRequests,
}

impl ClientArgs {
    /// Builds the client and sends nothing yet. The API server's audit log shows `program` with
    /// its version.
    ///
    /// # Errors
    /// There is no configuration, or a part of it cannot be used.
    pub async fn clients(&self, program: &str) -> anyhow::Result<Clients> {
        let config = self.config().await;
        let mut config =
            config.context("failed to load the kubeconfig or the Pod's service account")?;
        let agent = HeaderValue::from_str(&format!("{program}/{}", env!("CARGO_PKG_VERSION")))?;
        config.headers.push((USER_AGENT, agent));
        Clients::new(&config)
    }

    async fn config(&self) -> anyhow::Result<Config> {
        let kubeconfig = match &self.kubeconfig {
            Some(path) => Some(Kubeconfig::read_from(path)?),
            None => Kubeconfig::from_env()?,
        };
        let options = KubeConfigOptions::default();
        Ok(match kubeconfig {
            Some(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options).await?,
            None if env::var_os("KUBERNETES_SERVICE_HOST").is_some() => Config::incluster()?,
            None => Config::infer().await?,
        })
    }
}

impl Clients {
    /// Builds kube's own stack with three differences. It has no retries, which would hide
    /// back-pressure and would count as requests. It has no tracing layer, because each error is
    /// logged where it is handled. Its pool is bounded.
    ///
    /// # Errors
    /// A part of the configuration cannot be used.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        tls::install_provider();
        ensure!(
            config.proxy_url.is_none(),
            "the kubeconfig's proxy-url is not supported"
        );
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(KEEPALIVE));
        let https = config.rustls_https_connector_with_connector(tcp)?;
        let mut connector = TimeoutConnector::new(https);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build::<_, Outgoing>(connector);
        let counts = ApiRequests::default();
        let counted = counts.clone();
        let http = service_fn(move |request: Request<Outgoing>| {
            let (method, counted) = (request.method().to_string(), counted.clone());
            let sent = http.request(request);
            async move {
                let answer = sent.await;
                let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
                counted.get_or_create(&ApiRequest { method, code }).inc();
                answer
            }
        });
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .map_request(unpack)
            .service(http);
        let requests = Client::new(service, config.default_namespace.clone());
        Ok(Self {
            watcher: Watcher::from(requests.clone()),
            requests,
            counts,
        })
    }
}

#[cfg(test)]
mod tests {
    use kube::config::KubeconfigError;

    use super::*;

    #[tokio::test]
    async fn a_kubeconfig_makes_the_client() {
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
        let refused = clients.requests.apiserver_version().await;
        assert!(refused.is_err());
        let missing = ClientArgs {
            kubeconfig: Some(directory.path().join("none")),
        }
        .clients("mimeo-test")
        .await;
        assert!(missing.is_err_and(|error| error.is::<KubeconfigError>()));
    }
}
