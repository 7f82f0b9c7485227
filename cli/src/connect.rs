//! The flags that `kubectl` passes to every command, and the client that they describe.

use std::{fmt::Write as _, io::ErrorKind, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use clap::Args;
use http::header::{HeaderName, HeaderValue, USER_AGENT};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use mimeo_runtime::{client::Clients, duration};

use crate::{output::quoted, read::Reader};

/// [Impersonation](https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/) by
/// UID. The kubeconfig type of `kube` has no field for it.
const IMPERSONATE_UID: HeaderName = HeaderName::from_static("impersonate-uid");
/// The namespace in which Mimeo's manifests install it.
const MIMEO_SYSTEM: &str = "mimeo-system";
/// The environment variable in place of `--mimeo-namespace`.
const MIMEO_NAMESPACE: &str = "MIMEO_NAMESPACE";
/// The time in place of no limit.
const NO_LIMIT: Duration = Duration::from_hours(24 * 365);

/// Kubectl's own flags, with kubectl's meaning. `kubectl mimeo` receives only the flags after the
/// command's name.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// Path of the kubeconfig file. Default: the files in KUBECONFIG, else ~/.kube/config
    #[arg(long, global = true, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// Name of the kubeconfig context
    #[arg(long, global = true)]
    context: Option<String>,
    /// Name of the kubeconfig cluster
    #[arg(long, global = true)]
    cluster: Option<String>,
    /// Name of the kubeconfig user
    #[arg(long, global = true)]
    user: Option<String>,
    /// Namespace, where a command needs one. Default: the context's
    #[arg(long, short = 'n', global = true)]
    namespace: Option<String>,
    /// Address and port of the API server
    #[arg(long, short = 's', global = true, value_name = "URL")]
    server: Option<String>,
    /// Bearer token
    #[arg(long, global = true)]
    token: Option<String>,
    /// User to impersonate
    #[arg(long = "as", global = true, value_name = "USER")]
    impersonate: Option<String>,
    /// Group to impersonate; may be repeated
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    impersonate_groups: Vec<String>,
    /// UID to impersonate
    #[arg(long = "as-uid", global = true, value_name = "UID")]
    impersonate_uid: Option<String>,
    /// File with a client certificate
    #[arg(long, global = true, value_name = "PATH")]
    client_certificate: Option<PathBuf>,
    /// File with the key of the client certificate
    #[arg(long, global = true, value_name = "PATH")]
    client_key: Option<PathBuf>,
    /// File with the certificate of the API server's authority
    #[arg(long, global = true, value_name = "PATH")]
    certificate_authority: Option<PathBuf>,
    /// Don't verify the API server's certificate
    #[arg(
        long,
        global = true,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        hide_default_value = true,
        hide_possible_values = true,
        value_name = "BOOL"
    )]
    insecure_skip_tls_verify: bool,
    /// Name in the API server's certificate, if it is not the one in its address
    #[arg(long, global = true, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// Longest time for one request (as in 30s); 0 for no limit
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    request_timeout: Duration,
    /// Namespace in which Mimeo is installed
    #[arg(
        long,
        global = true,
        value_name = "NAMESPACE",
        env = MIMEO_NAMESPACE,
        default_value = MIMEO_SYSTEM
    )]
    mimeo_namespace: String,
}

/// A client, with the settings that commands need beside it.
#[derive(Clone)]
pub(crate) struct Connected {
    pub(crate) client: Client,
    /// The namespace of the flag or of the context.
    pub(crate) namespace: String,
    /// The namespace of the flag alone.
    pub(crate) asked_namespace: Option<String>,
    /// The namespace in which Mimeo is installed.
    pub(crate) mimeo: String,
    /// The longest time for one request.
    pub(crate) timeout: Duration,
    pub(crate) flags: ClusterFlags,
}

/// The flags by which the user named the cluster, without impersonation and credentials. Commands
/// that are printed for the user have them, too: without them, a command would change another
/// cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterFlags {
    /// The flags of kubectl, each with a space behind it.
    kubectl: String,
    /// The same for this plugin.
    mimeo: String,
}

impl ClusterFlags {
    pub(crate) fn new(connection: &Connection) -> Self {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let mut kubectl = String::new();
        for (flag, value) in [
            ("--kubeconfig", path(&connection.kubeconfig)),
            ("--context", connection.context.clone()),
            ("--cluster", connection.cluster.clone()),
            ("--user", connection.user.clone()),
            ("--server", connection.server.clone()),
            (
                "--certificate-authority",
                path(&connection.certificate_authority),
            ),
            ("--tls-server-name", connection.tls_server_name.clone()),
        ] {
            if let Some(value) = value {
                // Writing to a String never fails.
                _ = write!(kubectl, "{flag} {} ", quoted(&value));
            }
        }
        if connection.insecure_skip_tls_verify {
            kubectl += "--insecure-skip-tls-verify ";
        }
        let mut mimeo = kubectl.clone();
        // In the user's next shell the variable may be unset.
        let from_variable = std::env::var_os(MIMEO_NAMESPACE).is_some();
        if connection.mimeo_namespace != MIMEO_SYSTEM || from_variable {
            let namespace = quoted(&connection.mimeo_namespace);
            _ = write!(mimeo, "--mimeo-namespace {namespace} ");
        }
        Self { kubectl, mimeo }
    }

    /// The text with these flags in its commands. Kubectl takes the flags of a plugin behind the
    /// plugin's name.
    pub(crate) fn in_commands(&self, text: &str) -> String {
        const KUBECTL: &str = "kubectl ";
        const PLUGIN: &str = "mimeo ";
        let mut parts = text.split(KUBECTL);
        let mut told = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            told += KUBECTL;
            if let Some(rest) = part.strip_prefix(PLUGIN) {
                told += PLUGIN;
                told += &self.mimeo;
                told += rest;
            } else {
                told += &self.kubectl;
                told += part;
            }
        }
        told
    }
}

impl Connected {
    /// A reader with the permissions of the user.
    pub(crate) fn reader(&self) -> Reader {
        Reader::new(self.client.clone(), self.timeout)
    }
}

impl Connection {
    /// The namespace of the flag, for commands that need no cluster.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Builds the client. It sends nothing yet.
    pub(crate) async fn connect(&self) -> Result<Connected> {
        let mut config = self
            .config()
            .await
            .context("failed to load the kubeconfig")?;
        if let Some(server) = &self.server {
            config.cluster_url = server
                .parse()
                .with_context(|| format!("--server {server} is no URL"))?;
        }
        if let Some(path) = &self.certificate_authority {
            config.root_cert = None;
            config.root_cert_file = Some(path.clone());
        }
        // As kubectl does: naming a CA asks for verification, whatever the kubeconfig says.
        config.accept_invalid_certs = self.insecure_skip_tls_verify
            || config.accept_invalid_certs && self.certificate_authority.is_none();
        if let Some(name) = &self.tls_server_name {
            config.tls_server_name = Some(name.clone());
        }
        if let Some(token) = &self.token {
            config.auth_info.token = Some(token.clone().into());
            config.auth_info.token_file = None;
        }
        if let Some(path) = &self.client_certificate {
            config.auth_info.client_certificate_data = None;
            config.auth_info.client_certificate = Some(path.display().to_string());
        }
        if let Some(path) = &self.client_key {
            config.auth_info.client_key_data = None;
            config.auth_info.client_key = Some(path.display().to_string());
        }
        if let Some(user) = &self.impersonate {
            config.auth_info.impersonate = Some(user.clone());
        }
        if !self.impersonate_groups.is_empty() {
            config.auth_info.impersonate_groups = Some(self.impersonate_groups.clone());
        }
        if let Some(uid) = &self.impersonate_uid {
            let value = HeaderValue::from_str(uid).context("--as-uid is no header value")?;
            config.headers.push((IMPERSONATE_UID, value));
        }
        let agent = concat!("kubectl-mimeo/", env!("CARGO_PKG_VERSION"));
        config
            .headers
            .push((USER_AGENT, HeaderValue::from_static(agent)));
        let namespace = self.namespace.clone();
        Ok(Connected {
            client: Clients::new(&config)?.requests,
            asked_namespace: namespace.clone(),
            namespace: namespace.unwrap_or(config.default_namespace),
            mimeo: self.mimeo_namespace.clone(),
            timeout: if self.request_timeout.is_zero() {
                NO_LIMIT
            } else {
                self.request_timeout
            },
            flags: ClusterFlags::new(self),
        })
    }

    /// The same flags for kubectl. Without the namespace, and without the time for one request,
    /// which would end a forwarded port.
    pub(crate) fn kubectl_flags(&self) -> Vec<String> {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let values = [
            ("--kubeconfig", path(&self.kubeconfig)),
            ("--context", self.context.clone()),
            ("--cluster", self.cluster.clone()),
            ("--user", self.user.clone()),
            ("--server", self.server.clone()),
            ("--token", self.token.clone()),
            ("--as", self.impersonate.clone()),
            ("--as-uid", self.impersonate_uid.clone()),
            ("--client-certificate", path(&self.client_certificate)),
            ("--client-key", path(&self.client_key)),
            ("--certificate-authority", path(&self.certificate_authority)),
            ("--tls-server-name", self.tls_server_name.clone()),
        ];
        let groups = self.impersonate_groups.iter();
        let groups = groups.map(|group| ("--as-group", Some(group.clone())));
        let mut flags = Vec::new();
        for (flag, value) in values.into_iter().chain(groups) {
            if let Some(value) = value {
                flags.extend([flag.to_owned(), value]);
            }
        }
        if self.insecure_skip_tls_verify {
            flags.push("--insecure-skip-tls-verify".into());
        }
        flags
    }

    async fn config(&self) -> Result<Config> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        let kubeconfig = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path)?,
            None => match Kubeconfig::read() {
                Ok(kubeconfig) => kubeconfig,
                // As kubectl does inside of a Pod, which has no such file.
                Err(KubeconfigError::ReadConfig(error, path))
                    if error.kind() == ErrorKind::NotFound =>
                {
                    let missing = || KubeconfigError::ReadConfig(error, path);
                    return Config::incluster().map_err(|_| missing().into());
                }
                Err(error) => return Err(error.into()),
            },
        };
        Ok(Config::from_custom_kubeconfig(kubeconfig, &options).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_command_names_the_cluster_that_the_user_named() {
        let flags = ClusterFlags {
            kubectl: "--context prod ".into(),
            mimeo: "--context prod --mimeo-namespace copies ".into(),
        };
        let none = ClusterFlags::default();
        for (text, told) in [
            (
                "kubectl -n blue get secret/ca",
                "kubectl --context prod -n blue get secret/ca",
            ),
            (
                "kubectl mimeo held; kubectl get pods",
                "kubectl mimeo --context prod --mimeo-namespace copies held; kubectl --context \
                 prod get pods",
            ),
            ("wait some seconds", "wait some seconds"),
        ] {
            assert_eq!(flags.in_commands(text), told);
            assert_eq!(none.in_commands(text), text);
        }
    }
}
