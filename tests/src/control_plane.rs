//! etcd, API servers and controller manager as one unit that a test starts, disturbs and asks.
//!
//! The servers are plain child processes ([`crate::process`]). Each question to them uses a client
//! made for that call, so a control plane belongs to no runtime.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use http::{HeaderValue, Request, header::USER_AGENT};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, Client, Config};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::audit::{self, AuditEvent, AuditMark};
use crate::pki::{self, Authority};
use crate::process::{Process, Spec};
use crate::user::User;
use crate::wait::eventually;
use crate::{binaries, guard, ports};

/// Time limit for any one server to become ready. It takes a few seconds on an idle machine.
const READY_WITHIN: Duration = Duration::from_mins(5);
/// Time limit for a question that a server should answer at once, on a busy machine, too.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);
/// Time limit for a write to be answered. Admission webhooks may take 30 seconds.
const WRITE_WITHIN: Duration = Duration::from_mins(5);
/// Number of attempts to start. Another process may take a port between its choice and its use.
const STARTS: u32 = 3;

/// Controllers that run. They delete namespaces, collect garbage and create `default` service
/// accounts as in any cluster, and fill the roles `view`, `edit` and `admin`. Controllers that
/// would write into every namespace are left out, because tests count the writes there.
const CONTROLLERS: &str = "namespace-controller,garbage-collector-controller,serviceaccount-controller,clusterrole-aggregation-controller";

/// One server of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The only etcd.
    Etcd,
    /// An API server, counted from 0.
    ApiServer(usize),
    /// The controller manager. It uses API server 0.
    ControllerManager,
}

/// Options of a control plane; from [`ControlPlane::builder`].
#[derive(Debug, Clone)]
pub struct Builder {
    api_servers: usize,
    controller_manager: bool,
    audit: bool,
    shows_certificate: bool,
    api_server_args: Vec<String>,
}

impl Builder {
    /// Number of API servers that share the etcd. Default and minimum: 1.
    #[must_use]
    pub fn api_servers(mut self, count: usize) -> Self {
        self.api_servers = count.max(1);
        self
    }

    /// Whether a controller manager runs (by default it does). It completes namespace deletions,
    /// collects garbage, creates the `default` service account of each namespace (one write), and
    /// fills the roles `view`, `edit` and `admin`.
    #[must_use]
    pub fn controller_manager(mut self, run: bool) -> Self {
        self.controller_manager = run;
        self
    }

    /// Whether API servers log each request for [`ControlPlane::audit_since`]. By default they do
    /// not.
    #[must_use]
    pub fn audit(mut self, log: bool) -> Self {
        self.audit = log;
        self
    }

    /// Whether API servers show webhooks a client certificate, signed by the CA in
    /// [`ControlPlane::callers_ca`]. By default they do not.
    #[must_use]
    pub fn shows_certificate(mut self, shows: bool) -> Self {
        self.shows_certificate = shows;
        self
    }

    /// Adds one argument for every API server, such as `--max-requests-inflight=10`. Of several
    /// arguments with one name the last one counts.
    #[must_use]
    pub fn api_server_arg(mut self, arg: impl Into<String>) -> Self {
        self.api_server_args.push(arg.into());
        self
    }

    /// Starts the control plane and returns once every server is ready. By then the bootstrap roles
    /// and namespaces exist. With a controller manager the `default` service account exists too.
    ///
    /// # Errors
    /// A server does not become ready (the error has the end of its log), or the binaries cannot be
    /// built.
    pub async fn start(self) -> Result<ControlPlane> {
        let binaries = binaries::directory().await?;
        let mut attempt = 1;
        loop {
            match self.try_start(&binaries).await {
                Err(error)
                    if attempt < STARTS
                        && format!("{error:#}").contains("address already in use") =>
                {
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    async fn try_start(&self, binaries: &Path) -> Result<ControlPlane> {
        let authority = Authority::new()?;
        let layout = Layout::new(binaries, self.api_servers)?;
        layout.write_files(&authority)?;
        let etcd = Mutex::new(Process::start(layout.etcd()?)?);
        let api_servers = (0..self.api_servers)
            .map(|index| Ok(Mutex::new(Process::start(layout.api_server(index, self)?)?)))
            .collect::<Result<_>>()?;
        let admin = layout.write_user(&authority, "admin", &["system:masters"])?;
        let audit = self.audit;
        let settled = (0..self.api_servers).map(|_| AtomicU64::new(0)).collect();
        let mut started = ControlPlane {
            controller_manager: None,
            api_servers,
            etcd,
            audit,
            settled,
            authority,
            admin,
            layout,
        };
        for index in 0..self.api_servers {
            started.ready(Component::ApiServer(index)).await?;
        }
        // etcd comes last. If another process had taken its port, the API servers would be ready
        // with that process's etcd.
        started.ready(Component::Etcd).await?;
        if self.controller_manager {
            // Not earlier: the controller manager gives up if the API server takes long.
            let spec = started.layout.controller_manager(&started.authority)?;
            started.controller_manager = Some(Mutex::new(Process::start(spec)?));
            started.ready(Component::ControllerManager).await?;
        }
        Ok(started)
    }
}

/// A running control plane: etcd without fsync, API servers with RBAC and TLS, controller manager.
///
/// All servers listen on loopback only and keep their state in a temporary directory. Dropping the
/// control plane kills the servers and removes the directory. The same happens however this process
/// ends. Service account admission is off: pods need no account, and no node runs them.
pub struct ControlPlane {
    // Fields are dropped in this order, the directory last.
    controller_manager: Option<Mutex<Process>>,
    api_servers: Vec<Mutex<Process>>,
    etcd: Mutex<Process>,
    audit: bool,
    /// For each API server, a position in its audit log, in bytes. Every write before it has been
    /// answered.
    settled: Vec<AtomicU64>,
    authority: Authority,
    admin: User,
    layout: Layout,
}

impl ControlPlane {
    /// Starts one API server and a controller manager, without an audit log; see
    /// [`Builder::start`].
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// Options for any other control plane.
    pub fn builder() -> Builder {
        Builder {
            api_servers: 1,
            controller_manager: true,
            audit: false,
            shows_certificate: false,
            api_server_args: Vec::new(),
        }
    }

    /// The control plane of this process: one API server, a controller manager, an audit log. The
    /// first call starts it, and it ends with the process. Tests that share it use their own
    /// namespaces and disturb no server.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: Shared = Shared::new(|| ControlPlane::builder().audit(true));
        SHARED.get().await
    }

    /// File with the CA of the client certificates that API servers show webhooks, if they do. No
    /// user has a certificate of this CA.
    pub fn callers_ca(&self) -> PathBuf {
        self.layout.path("callers.crt")
    }

    /// The admin, a member of `system:masters`. RBAC refuses the admin nothing.
    pub fn admin(&self) -> &User {
        &self.admin
    }

    /// A new client for the admin on API server 0; see [`User::config_for`].
    pub async fn client(&self) -> Result<Client> {
        self.admin.client().await
    }

    /// A new client for the admin on one API server, counted from 0.
    pub async fn client_for(&self, api_server: usize) -> Result<Client> {
        self.admin.client_for(api_server).await
    }

    /// The admin's kubeconfig for API server 0.
    pub fn kubeconfig(&self) -> &Path {
        self.admin.kubeconfig()
    }

    /// A user with a certificate for this name and at most two groups. The user has no permissions
    /// beyond discovery until the test binds a role to the name or to a group.
    pub fn user(&self, name: &str, groups: &[&str]) -> Result<User> {
        self.layout.write_user(&self.authority, name, groups)
    }

    /// `kubectl` as the admin on API server 0, without arguments.
    pub fn kubectl(&self) -> Result<Command> {
        let mut command = Command::new(self.layout.program("kubectl")?);
        // kubectl's cache identifies a server by its address. Another control plane may have had
        // this address before.
        command
            .env("KUBECONFIG", self.kubeconfig())
            .env("KUBECACHEDIR", self.layout.path("kubectl-cache"));
        Ok(command)
    }

    /// Kills a server (SIGKILL) and waits for its end. Its stored data stays.
    pub fn kill(&self, component: Component) -> Result<()> {
        self.process(component)?.kill()
    }

    /// Sends SIGTERM and returns at once. An API server with open watches may need a minute to end.
    pub fn terminate(&self, component: Component) -> Result<()> {
        self.process(component)?.signal(Signal::TERM)
    }

    /// Starts a server that has ended, with its data and on its old port. Returns once it is ready.
    ///
    /// # Errors
    /// The server still runs, or does not become ready.
    pub async fn start_again(&self, component: Component) -> Result<()> {
        {
            let mut process = self.process(component)?;
            if process.exit()?.is_none() {
                bail!("{component:?} still runs");
            }
            if let Component::ApiServer(index) = component
                && self.audit
            {
                // Requests that the old process had begun are never answered.
                self.settled[index].store(
                    audit::end(&self.layout.audit_log(index))?,
                    Ordering::Relaxed,
                );
            }
            let again = Process::start(process.spec().clone())?;
            *process = again;
        }
        self.ready(component).await
    }

    /// [`ControlPlane::kill`] and then [`ControlPlane::start_again`].
    pub async fn restart(&self, component: Component) -> Result<()> {
        self.kill(component)?;
        self.start_again(component).await
    }

    /// Freezes a server (SIGSTOP). Its connections stay open, its watches go silent, and it answers
    /// nothing.
    pub fn pause(&self, component: Component) -> Result<()> {
        self.process(component)?.signal(Signal::STOP)
    }

    /// Ends [`ControlPlane::pause`].
    pub fn resume(&self, component: Component) -> Result<()> {
        self.process(component)?.signal(Signal::CONT)
    }

    /// Waits until a server reports that it is ready, for at most five minutes.
    ///
    /// # Errors
    /// The time has passed (the error has the end of the log), or the server has ended (at once).
    pub async fn ready(&self, component: Component) -> Result<()> {
        let server = self.own_client(component).await?;
        let cluster = self.own_client(Component::ApiServer(0)).await?;
        let outcome = eventually(
            READY_WITHIN,
            format!("{component:?} to be ready"),
            || async {
                let running = self.process(component)?.still_running();
                if running.is_err() {
                    return Ok(Some(running));
                }
                tokio::time::timeout(ANSWER_WITHIN, is_ready(component, &server, &cluster))
                    .await??;
                Ok(Some(Ok(())))
            },
        );
        match outcome.await {
            Ok(outcome) => outcome,
            Err(error) => Err(error.context(format!(
                "its log ends with:\n{}",
                self.process(component)?.log_tail()
            ))),
        }
    }

    /// Resident memory of a server at this moment, in bytes.
    pub fn resident_bytes(&self, component: Component) -> Result<u64> {
        self.process(component)?.memory("VmRSS")
    }

    /// The last 8 KiB of a server's log.
    pub fn log_tail(&self, component: Component) -> Result<String> {
        Ok(self.process(component)?.log_tail())
    }

    /// The position after every request that was answered before this call, for
    /// [`ControlPlane::audit_since`].
    ///
    /// # Errors
    /// There is no audit log ([`Builder::audit`]), or an API server is paused.
    pub async fn audit_mark(&self) -> Result<AuditMark> {
        self.settle_audit().await?;
        let ends =
            (0..self.api_servers.len()).map(|index| audit::end(&self.layout.audit_log(index)));
        Ok(AuditMark(ends.collect::<Result<_>>()?))
    }

    /// Every request that any API server answered between the mark and this call, for any user.
    /// There is one event per request, in the order of the answers within an API server. A watch
    /// counts when it begins.
    ///
    /// # Errors
    /// The same as for [`ControlPlane::audit_mark`].
    pub async fn audit_since(&self, mark: &AuditMark) -> Result<Vec<AuditEvent>> {
        let events = self.audit_events(mark).await?;
        Ok(events
            .into_iter()
            .filter(|event| !event.ends_watch())
            .collect())
    }

    /// The watches that ended between the mark and this call, whenever they began.
    ///
    /// # Errors
    /// The same as for [`ControlPlane::audit_mark`].
    pub async fn watches_ended_since(&self, mark: &AuditMark) -> Result<Vec<AuditEvent>> {
        let events = self.audit_events(mark).await?;
        Ok(events.into_iter().filter(AuditEvent::ends_watch).collect())
    }

    async fn audit_events(&self, mark: &AuditMark) -> Result<Vec<AuditEvent>> {
        self.settle_audit().await?;
        let logs = mark
            .0
            .iter()
            .enumerate()
            .map(|(index, from)| audit::read(&self.layout.audit_log(index), index, *from));
        Ok(logs.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Sends each running API server a unique request, and waits until the audit log has it and the
    /// answers of all earlier writes. After that the log covers every write that the test has seen,
    /// even if only through a watch.
    async fn settle_audit(&self) -> Result<()> {
        if !self.audit {
            bail!("this control plane was started without an audit log");
        }
        for index in 0..self.api_servers.len() {
            let component = Component::ApiServer(index);
            if self.process(component)?.exit()?.is_some() {
                continue;
            }
            let log = self.layout.audit_log(index);
            let from = self.settled[index].load(Ordering::Relaxed);
            let uri = format!("/version?mark={}", crate::unique("audit"));
            let client = self.own_client(component).await?;
            let answer = client.request_text(Request::get(&uri).body(Vec::new())?);
            tokio::time::timeout(ANSWER_WITHIN, answer)
                .await
                .with_context(|| format!("{component:?} is silent"))??;
            let until = eventually(
                WRITE_WITHIN,
                "the audit log's mark, and the answers of writes before it",
                || async { audit::settled(&log, from, &uri) },
            )
            .await?;
            self.settled[index].fetch_max(until, Ordering::Relaxed);
        }
        Ok(())
    }

    fn process(&self, component: Component) -> Result<MutexGuard<'_, Process>> {
        let process = match component {
            Component::Etcd => Some(&self.etcd),
            Component::ApiServer(index) => self.api_servers.get(index),
            Component::ControllerManager => self.controller_manager.as_ref(),
        };
        let process =
            process.with_context(|| format!("this control plane has no {component:?}"))?;
        Ok(process.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A client for this crate's own questions. The audit results leave these out.
    async fn own_client(&self, component: Component) -> Result<Client> {
        let mut config = match component {
            Component::Etcd => {
                Config::new(format!("http://127.0.0.1:{}", self.layout.etcd_port).parse()?)
            }
            Component::ApiServer(index) => self.admin.config_for(index).await?,
            Component::ControllerManager => Config::new(
                format!("https://127.0.0.1:{}", self.layout.controller_manager_port).parse()?,
            ),
        };
        // The controller manager makes its own certificate.
        config.accept_invalid_certs = component == Component::ControllerManager;
        config.default_retry = false;
        config.headers = vec![(USER_AGENT, HeaderValue::from_static(audit::OWN_USER_AGENT))];
        Client::try_from(config).context("failed to make a client")
    }
}

/// A control plane of a test binary, other than [`ControlPlane::shared`]. The first use starts it,
/// and all tests share it.
///
/// ```no_run
/// # use mimeo_tests::{ControlPlane, Shared};
/// static PAIR: Shared = Shared::new(|| ControlPlane::builder().api_servers(2));
/// # async fn example() -> anyhow::Result<()> {
/// let second = PAIR.get().await?.client_for(1).await?;
/// # Ok(())
/// # }
/// ```
pub struct Shared {
    builder: fn() -> Builder,
    started: OnceCell<Result<ControlPlane, String>>,
}

impl Shared {
    /// Makes one for a `static`.
    pub const fn new(builder: fn() -> Builder) -> Self {
        Self {
            builder,
            started: OnceCell::const_new(),
        }
    }

    /// Starts it, or waits until it has started. A failure is returned to all callers and not
    /// retried.
    pub async fn get(&'static self) -> Result<&'static ControlPlane> {
        let start = || async {
            (self.builder)()
                .start()
                .await
                .map_err(|error| format!("{error:#}"))
        };
        self.started
            .get_or_init(start)
            .await
            .as_ref()
            .map_err(|error| anyhow!("{error}"))
    }
}

/// Checks once whether a server is ready. An error names the missing part.
async fn is_ready(component: Component, server: &Client, cluster: &Client) -> Result<()> {
    let path = match component {
        Component::Etcd => "/health",
        Component::ApiServer(_) => "/readyz",
        Component::ControllerManager => "/healthz",
    };
    server
        .request_text(Request::get(path).body(Vec::new())?)
        .await?;
    match component {
        Component::Etcd => {}
        Component::ApiServer(_) => {
            for name in ["default", "kube-system"] {
                Api::<Namespace>::all(server.clone()).get(name).await?;
            }
        }
        Component::ControllerManager => {
            Api::<ServiceAccount>::namespaced(cluster.clone(), "default")
                .get("default")
                .await?;
            let view = Api::<ClusterRole>::all(cluster.clone()).get("view").await?;
            view.rules
                .filter(|rules| !rules.is_empty())
                .context("the role view has no rules yet")?;
        }
    }
    Ok(())
}

/// Ports, files, and the command lines that use them.
struct Layout {
    binaries: PathBuf,
    etcd_port: u16,
    etcd_peer_port: u16,
    controller_manager_port: u16,
    api_ports: Vec<u16>,
    users: AtomicU32,
    directory: TempDir,
}

impl Layout {
    fn new(binaries: &Path, api_servers: usize) -> Result<Self> {
        let mut ports = ports::free(api_servers + 3)?.into_iter();
        let mut port = || ports.next().context("too few ports");
        let directory = tempfile::Builder::new()
            .prefix("mimeo-control-plane-")
            .tempdir()?;
        guard::remove_at_end(directory.path())?;
        Ok(Self {
            binaries: binaries.to_owned(),
            etcd_port: port()?,
            etcd_peer_port: port()?,
            controller_manager_port: port()?,
            api_ports: ports.collect(),
            users: AtomicU32::new(0),
            directory,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn program(&self, name: &str) -> Result<PathBuf> {
        binaries::program(&self.binaries, name)
    }

    fn audit_log(&self, api_server: usize) -> PathBuf {
        self.path(&format!("audit-{api_server}.log"))
    }

    fn write(&self, name: &str, content: &str) -> Result<()> {
        std::fs::write(self.path(name), content).with_context(|| format!("failed to write {name}"))
    }

    fn write_files(&self, authority: &Authority) -> Result<()> {
        let serving = authority.serving(&[
            "127.0.0.1",
            "10.96.0.1",
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ])?;
        let (token_key, token_public_key) = pki::token_keys()?;
        self.write("ca.crt", &authority.certificate())?;
        self.write("serving.crt", &serving.certificate)?;
        self.write("serving.key", &serving.key)?;
        self.write("token.key", &token_key)?;
        self.write("token.pub", &token_public_key)?;
        self.write("audit-policy.json", audit::POLICY)?;
        self.write_callers()
    }

    /// Writes the credentials that API servers use when they call webhooks.
    fn write_callers(&self) -> Result<()> {
        let authority = Authority::new()?;
        self.write("callers.crt", &authority.certificate())?;
        // The API server looks the user up by the webhook's host name, or else uses `*`.
        let kubeconfig = authority.kubeconfig("", "*", &authority.client("kube-apiserver", &[])?);
        self.write("callers.kubeconfig", &kubeconfig.to_string())?;
        let plugin = |name| {
            let configuration = json!({
                "apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration",
                "kubeConfigFile": self.path("callers.kubeconfig"),
            });
            json!({"name": name, "configuration": configuration})
        };
        let configuration = json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
            "plugins": [plugin("MutatingAdmissionWebhook"), plugin("ValidatingAdmissionWebhook")],
        });
        self.write("admission.json", &configuration.to_string())
    }

    fn write_user(&self, authority: &Authority, name: &str, groups: &[&str]) -> Result<User> {
        let identity = authority.client(name, groups)?;
        // The file name has a number, because a user's name may have characters that a file name
        // may not.
        let number = self.users.fetch_add(1, Ordering::Relaxed);
        let mut kubeconfigs = Vec::new();
        for (index, port) in self.api_ports.iter().enumerate() {
            let file = format!("user-{number}-{index}.kubeconfig");
            let server = format!("https://127.0.0.1:{port}");
            self.write(
                &file,
                &authority.kubeconfig(&server, name, &identity).to_string(),
            )?;
            kubeconfigs.push(self.path(&file));
        }
        Ok(User::new(name, kubeconfigs))
    }

    fn spec(&self, name: String, program: &str, args: Vec<String>) -> Result<Spec> {
        let log = self.path(&format!("{name}.log"));
        Ok(Spec {
            name,
            program: self.program(program)?,
            args,
            env: Vec::new(),
            log,
        })
    }

    fn etcd(&self) -> Result<Spec> {
        let client = format!("http://127.0.0.1:{}", self.etcd_port);
        let peer = format!("http://127.0.0.1:{}", self.etcd_peer_port);
        let args = vec![
            format!("--data-dir={}", self.path("etcd").display()),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=error".to_owned(),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
        ];
        self.spec("etcd".to_owned(), "etcd", args)
    }

    fn api_server(&self, index: usize, options: &Builder) -> Result<Spec> {
        let file = |name: &str| self.path(name).display().to_string();
        let mut args = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            // If another control plane's etcd takes the port at this moment, the prefix keeps its
            // objects out of reach.
            format!("--etcd-prefix=/registry-{}", self.etcd_peer_port),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.api_ports[index]),
            "--advertise-address=127.0.0.1".to_owned(),
            // A loopback address is no valid endpoint of the Service `kubernetes`.
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/24".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--anonymous-auth=false".to_owned(),
            format!("--tls-cert-file={}", file("serving.crt")),
            format!("--tls-private-key-file={}", file("serving.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", file("token.pub")),
            format!("--service-account-signing-key-file={}", file("token.key")),
            // Tests can then create pods right after their namespace, before it has its `default`
            // account.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
        ];
        if options.audit {
            args.extend([
                format!("--audit-policy-file={}", file("audit-policy.json")),
                format!("--audit-log-path={}", self.audit_log(index).display()),
                // Each line is written before its request ends, and all lines go into one file
                // (size in MiB).
                "--audit-log-mode=blocking".to_owned(),
                "--audit-log-maxsize=1000000".to_owned(),
            ]);
        }
        if options.shows_certificate {
            args.push(format!(
                "--admission-control-config-file={}",
                file("admission.json")
            ));
        }
        args.extend(options.api_server_args.iter().cloned());
        self.spec(format!("kube-apiserver-{index}"), "kube-apiserver", args)
    }

    fn controller_manager(&self, authority: &Authority) -> Result<Spec> {
        let user = self.write_user(authority, "system:kube-controller-manager", &[])?;
        let args = vec![
            format!("--kubeconfig={}", user.kubeconfig().display()),
            "--use-service-account-credentials".to_owned(),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.controller_manager_port),
            // By default the controller manager limits itself to 20 requests a second and takes 5 s
            // to start.
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
            format!("--controllers={CONTROLLERS}"),
        ];
        self.spec(
            "kube-controller-manager".to_owned(),
            "kube-controller-manager",
            args,
        )
    }
}
