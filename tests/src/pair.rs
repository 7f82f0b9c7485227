//! Mimeo itself on a control plane: CRDs, permissions, any number of webhook replicas behind one
//! address, and the reconciler.

use std::{
    collections::BTreeMap,
    io::copy,
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use http::{HeaderValue, Request, header::USER_AGENT};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleRef, Subject};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde::Deserialize;

use crate::{
    ControlPlane, Program, Running, User, audit::OWN_USER_AGENT, create_namespace, eventually,
    follower::Follower, install_crd, ops::OpsPort, planted, ports, scenario::SOON,
};

/// Mimeo's namespace in tests.
pub const NAMESPACE: &str = "mimeo-system";

/// Flags of the reconciler for a busy machine, where an answer may take longer than the defaults
/// allow. A reconciler that loses its Lease ends, and nothing restarts it here. (A stopped
/// reconciler releases its Lease.) A request whose answer comes too late is sent twice. A test that
/// sets one of these flags replaces the value here.
const PATIENT: [[&str; 2]; 3] = [
    ["--lease-duration", "300s"],
    ["--lease-renew-deadline", "240s"],
    ["--request-timeout", "300s"],
];

/// A setting of the C library that the manifests give both programs, as an environment variable.
/// Without it, the memory of a busy webhook depends on the order in which bodies of reviews arrive. A
/// smaller value would give each larger buffer its own mapping, which takes time.
pub const MALLOC: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "1048576");

/// Permissions of the programs.
#[derive(Debug, Clone)]
enum Rights {
    /// All permissions.
    All,
    /// The permissions in this kustomization.
    Of(PathBuf),
    /// The permissions that are installed already, together with the CRDs.
    Installed,
}

/// Options of the pair.
#[derive(Debug, Clone)]
pub struct PairBuilder {
    webhooks: usize,
    reconciler: bool,
    webhook_args: Vec<String>,
    reconciler_args: Vec<String>,
    rights: Rights,
    quiet: bool,
}

impl Default for PairBuilder {
    fn default() -> Self {
        Self {
            webhooks: 1,
            reconciler: true,
            webhook_args: Vec::new(),
            reconciler_args: Vec::new(),
            rights: Rights::All,
            quiet: false,
        }
    }
}

impl PairBuilder {
    /// Number of webhook replicas. Default: 1.
    #[must_use]
    pub fn webhooks(mut self, count: usize) -> Self {
        self.webhooks = count;
        self
    }

    /// Whether the reconciler runs. Default: it does.
    #[must_use]
    pub fn reconciler(mut self, run: bool) -> Self {
        self.reconciler = run;
        self
    }

    /// Additional flags of every webhook.
    #[must_use]
    pub fn webhook_args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.webhook_args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Additional flags of the reconciler.
    #[must_use]
    pub fn reconciler_args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.reconciler_args
            .extend(args.into_iter().map(Into::into));
        self
    }

    /// Gives both programs the permissions in `manifests/kustomize` and no more. Default: all
    /// permissions.
    #[must_use]
    pub fn shipped_rights(self) -> Self {
        self.rights_of(Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/kustomize"))
    }

    /// Gives both programs the permissions in this kustomization and no more.
    #[must_use]
    pub fn rights_of(mut self, folder: impl Into<PathBuf>) -> Self {
        self.rights = Rights::Of(folder.into());
        self
    }

    /// Gives both programs the permissions that are installed already. The pair then installs
    /// nothing, not even CRDs.
    #[must_use]
    pub fn installed_rights(mut self) -> Self {
        self.rights = Rights::Installed;
        self
    }

    /// Prints the programs' logs only on a panic.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Installs CRDs and permissions and starts the programs. Returns when all are ready.
    pub async fn start(self, control_plane: &ControlPlane) -> Result<Pair> {
        let client = control_plane.client().await?;
        if Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone())
            .get_opt(NAMESPACE)
            .await?
            .is_none()
        {
            create_namespace(&client, NAMESPACE, &[]).await?;
        }
        if !matches!(self.rights, Rights::Installed) {
            for crd in mimeo_api::crds() {
                install_crd(&client, &crd).await?;
            }
        }
        let user = |name: &str| {
            // RBAC and flow control recognize a service account by its user name, however it
            // authenticates.
            let account = format!("system:serviceaccount:{NAMESPACE}:{name}");
            control_plane.user(
                if matches!(self.rights, Rights::All) {
                    name
                } else {
                    &account
                },
                &[],
            )
        };
        let (webhook_user, reconciler_user) = (user("mimeo-webhook")?, user("mimeo-reconciler")?);
        match &self.rights {
            Rights::All => {
                for user in [&webhook_user, &reconciler_user] {
                    grant(&client, user).await?;
                }
            }
            Rights::Of(folder) => install_rights(control_plane, folder).await?,
            Rights::Installed => rights_added_up(&control_plane.client().await?).await?,
        }
        let balancer = Balancer::start()?;
        let mut pair = Pair {
            builder: self,
            balancer,
            admin: control_plane.admin().clone(),
            webhook_user,
            reconciler_user,
            webhooks: Vec::new(),
            reconciler: None,
        };
        pair.start_webhooks(pair.builder.webhooks).await?;
        if pair.builder.reconciler {
            pair.start_reconciler().await?;
        }
        Ok(pair)
    }
}

/// The running programs. They end with the process that started them.
pub struct Pair {
    builder: PairBuilder,
    balancer: Balancer,
    admin: User,
    webhook_user: User,
    reconciler_user: User,
    /// Webhook replicas, in the order of their start.
    pub webhooks: Vec<Replica>,
    /// The reconciler, or `None` if it was not started or was stopped.
    pub reconciler: Option<Replica>,
}

/// One running program.
pub struct Replica {
    /// Its name in Leases.
    pub name: String,
    /// The process.
    pub program: Running,
    ops: OpsPort,
    backend: Option<Arc<Backend>>,
}

impl Pair {
    /// One webhook and one reconciler.
    pub fn builder() -> PairBuilder {
        PairBuilder::default()
    }

    /// Replaces the flags for webhooks that start from now on.
    pub fn set_webhook_args<A: Into<String>>(&mut self, args: impl IntoIterator<Item = A>) {
        self.builder.webhook_args = args.into_iter().map(Into::into).collect();
    }

    /// Ends all webhook replicas with SIGTERM. They release their Leases, so nothing waits for the
    /// Leases to expire.
    pub async fn stop_webhooks(&mut self) -> Result<()> {
        for replica in &mut self.webhooks {
            replica.program.terminate()?;
        }
        for mut replica in self.webhooks.drain(..) {
            replica.program.wait(SOON).await?;
        }
        Ok(())
    }

    /// Starts one more webhook replica and waits until it is ready.
    pub async fn start_webhook(&mut self) -> Result<()> {
        self.start_webhooks(1).await
    }

    /// Starts `count` more webhook replicas at the same time and waits until each is ready.
    pub async fn start_webhooks(&mut self, count: usize) -> Result<()> {
        let started: Vec<Replica> = (0..count)
            .map(|_| self.launch_webhook())
            .collect::<Result<_>>()?;
        for mut replica in started {
            replica.ready().await?;
            // The flag is set now, not at the next probe, because the caller expects that requests
            // reach the replica.
            if let Some(backend) = &replica.backend {
                backend.ready.store(true, Ordering::Relaxed);
            }
            self.webhooks.push(replica);
        }
        Ok(())
    }

    fn launch_webhook(&self) -> Result<Replica> {
        let ports = ports::free(2)?;
        let (listen, ops) = (ports[0], ports[1]);
        let name = format!("webhook-{listen}");
        let program = self
            .program("mimeo-webhook", &self.webhook_user, &name, ops)
            .args([
                "--listen".to_owned(),
                format!("127.0.0.1:{listen}"),
                "--url".to_owned(),
                self.url(),
            ])
            .args(["--mimeo-users", self.reconciler_user.name()])
            .args(self.builder.webhook_args.clone())
            .start()?;
        let ops = ops_port(ops, &self.builder.webhook_args);
        Ok(Replica {
            name,
            program,
            ops,
            backend: Some(self.balancer.add(listen, ops)),
        })
    }

    /// Starts the reconciler and waits until it is ready.
    pub async fn start_reconciler(&mut self) -> Result<()> {
        let ops = ports::free(1)?[0];
        let name = format!("reconciler-{ops}");
        let args = &self.builder.reconciler_args;
        let patient = PATIENT
            .into_iter()
            .filter(|[flag, _]| !args.iter().any(|arg| arg == flag));
        let program = self
            .program("mimeo-reconciler", &self.reconciler_user, &name, ops)
            .args(patient.flatten())
            .args(args.clone())
            .start()?;
        let ops = ops_port(ops, &self.builder.reconciler_args);
        let mut replica = Replica {
            name,
            program,
            ops,
            backend: None,
        };
        replica.ready().await?;
        self.reconciler = Some(replica);
        Ok(())
    }

    fn program(&self, binary: &str, user: &User, name: &str, ops: u16) -> Program {
        let (threshold, bytes) = MALLOC;
        let program = Program::new(binary)
            .env("KUBECONFIG", user.kubeconfig().display().to_string())
            .env(threshold, bytes)
            .args([
                "--namespace".to_owned(),
                NAMESPACE.to_owned(),
                "--replica-name".to_owned(),
                name.to_owned(),
                "--ops-listen".to_owned(),
                format!("127.0.0.1:{ops}"),
            ]);
        if self.builder.quiet {
            program.quiet()
        } else {
            program
        }
    }

    /// The URL that the API server calls.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.balancer.port)
    }

    /// Searches for planted values ([`planted`]) in logs, metrics and the objects of the cluster.
    ///
    /// # Panics
    /// The cluster does not answer, because a test must end with its API server running. If the
    /// test already fails, this only prints the error.
    pub fn look(&self) {
        for replica in self.webhooks.iter().chain(&self.reconciler) {
            planted::look(
                format!("the log of {}", replica.name),
                &replica.program.log().unwrap_or_default(),
            );
            // The client searches each answer as it arrives. A replica without an answer has leaked
            // nothing there.
            for path in ["/metrics", "/debug/state"] {
                drop(replica.ask("GET", path, None, ""));
            }
        }
        // A separate thread, because destructors call this and cannot block the runtime that they
        // may run on.
        let asked = thread::scope(|scope| {
            let asking = || {
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?
                    .block_on(ask_all(&self.admin))
            };
            scope.spawn(asking).join()
        });
        match asked {
            Ok(Ok(())) => {}
            Ok(Err(error)) => unsearched(&error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// The user of the webhook.
    pub fn webhook_user(&self) -> &User {
        &self.webhook_user
    }

    /// The user of the reconciler.
    pub fn reconciler_user(&self) -> &User {
        &self.reconciler_user
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // In the demo and the measurements nothing is planted, and the search would disturb a
        // measurement.
        if !self.builder.quiet {
            self.look();
            planted::raise();
        }
    }
}

#[expect(
    clippy::panic,
    reason = "it is called by what ends, which can fail a test in no other way"
)]
fn unsearched(error: &anyhow::Error) {
    let told = format!("the cluster was not searched for planted values: {error:#}");
    if thread::panicking() {
        eprintln!("{told}");
    } else {
        panic!("{told}");
    }
}

/// Reads all kinds of objects that Mimeo writes. The client searches the answers.
async fn ask_all(admin: &User) -> Result<()> {
    const TOLD: [&str; 8] = [
        "/api/v1/events",
        "/apis/mimeo.dev/v1alpha1/clusterreplications",
        "/apis/mimeo.dev/v1alpha1/replications",
        "/apis/mimeo.dev/v1alpha1/replicationgrants",
        "/apis/mimeo.dev/v1alpha1/transformpolicies",
        "/api/v1/namespaces/mimeo-system/configmaps",
        "/apis/coordination.k8s.io/v1/namespaces/mimeo-system/leases",
        "/api/v1/namespaces",
    ];
    let mut config = admin.config_for(0).await?;
    // Tests do not count requests with this user agent.
    config.headers = vec![(USER_AGENT, HeaderValue::from_static(OWN_USER_AGENT))];
    let client = planted::client(config)?;
    for path in TOLD {
        tokio::time::timeout(SOON, ask(&client, path))
            .await
            .context("no answer")??;
    }
    Ok(())
}

async fn ask(client: &Client, path: &str) -> Result<()> {
    loop {
        match client
            .request_text(Request::get(path).body(Vec::new())?)
            .await
        {
            // The CRD may be gone by the end of a test.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            // The CRD may have just changed. The API server then prepares its storage again.
            Err(kube::Error::Api(status)) if status.code == 429 => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            answer => return answer.map(drop).context(path.to_owned()),
        }
    }
}

impl Replica {
    /// Waits until `/readyz` answers with 200.
    pub async fn ready(&mut self) -> Result<()> {
        let ops = self.ops;
        let ready = eventually(SOON, "/readyz", || async move {
            let answer = ops.get("/readyz")?;
            if answer.starts_with("HTTP/1.1 200") {
                Ok(Some(()))
            } else {
                bail!("{answer}")
            }
        })
        .await;
        if ready.is_err() && !self.program.is_alive()? {
            bail!("it ended: {}", self.program.log()?);
        }
        ready
    }

    /// The answer of `/metrics`.
    pub fn metrics(&self) -> Result<String> {
        self.ops.get("/metrics")
    }

    /// The answer of the operations port, head and body.
    pub fn ask(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> Result<String> {
        self.ops.ask(method, path, token, body)
    }

    /// The URL of a path on the operations port, for a browser.
    pub fn url(&self, path: &str) -> String {
        let scheme = if self.ops.tls { "https" } else { "http" };
        format!("{scheme}://localhost:{}{path}", self.ops.port)
    }

    /// Follows the stream behind the page.
    pub fn follow(&self) -> Result<Follower> {
        Ok(Follower::new(self.ops.stream("/ui/stream")?))
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(backend) = &self.backend {
            backend.removed.store(true, Ordering::Relaxed);
        }
    }
}

/// With authentication the operations port uses TLS.
fn ops_port(port: u16, args: &[String]) -> OpsPort {
    OpsPort {
        port,
        tls: args.iter().any(|arg| arg == "--ops-auth"),
    }
}

/// Installs the objects of a kustomization that are about permissions and flow control.
async fn install_rights(control_plane: &ControlPlane, folder: &Path) -> Result<()> {
    let client = control_plane.client().await?;
    for object in rights(control_plane, folder)? {
        let object: DynamicObject =
            serde_json::from_value(object).context("failed to read a manifest")?;
        let types = object.types.clone().context("a manifest without a kind")?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let name = object.name_any();
        // This does the same as `kubectl apply --server-side`, which takes a second for each start.
        api.patch(
            &name,
            &PatchParams::apply("kubectl"),
            &Patch::Apply(&object),
        )
        .await
        .with_context(|| format!("failed to apply {name}"))?;
    }
    rights_added_up(&client).await
}

/// The objects of a kustomization that are about permissions and flow control. Each kustomization
/// is rendered once per process.
fn rights(control_plane: &ControlPlane, folder: &Path) -> Result<Vec<serde_json::Value>> {
    static RENDERED: Mutex<BTreeMap<PathBuf, Vec<serde_json::Value>>> = Mutex::new(BTreeMap::new());
    const KINDS: [&str; 6] = [
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "PriorityLevelConfiguration",
        "FlowSchema",
    ];
    let mut known = RENDERED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(documents) = known.get(folder) {
        return Ok(documents.clone());
    }
    let rendered = run(control_plane.kubectl()?.arg("kustomize").arg(folder))?;
    let mut documents = Vec::new();
    for document in serde_yaml::Deserializer::from_str(&rendered) {
        let object =
            serde_json::Value::deserialize(document).context("failed to read a manifest")?;
        if object["kind"]
            .as_str()
            .is_some_and(|kind| KINDS.contains(&kind))
        {
            documents.push(object);
        }
    }
    known.insert(folder.to_owned(), documents.clone());
    Ok(documents)
}

/// Waits until the controller manager has aggregated the `ClusterRoles` for kinds. If a webhook may
/// not watch a source yet, it retries after longer and longer pauses, and pods are denied in the
/// meantime.
pub async fn rights_added_up(client: &kube::Client) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    for name in ["mimeo-kinds", "mimeo-kinds-reconciler"] {
        eventually(SOON, format!("the rules of ClusterRole {name}"), || async {
            let rules = roles.get(name).await?.rules.unwrap_or_default();
            Ok((!rules.is_empty()).then_some(()))
        })
        .await?;
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().context("failed to run kubectl")?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).context("kubectl's output is no text")
}

/// Grants all permissions. Another scenario tests the permissions in the manifests.
async fn grant(client: &kube::Client, user: &User) -> Result<()> {
    let binding = ClusterRoleBinding {
        metadata: kube::api::ObjectMeta {
            name: Some(user.name().to_owned()),
            ..Default::default()
        },
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "ClusterRole".into(),
            name: "cluster-admin".into(),
        },
        subjects: Some(vec![Subject {
            kind: "User".into(),
            name: user.name().into(),
            ..Subject::default()
        }]),
    };
    match Api::all(client.clone())
        .create(&PostParams::default(), &binding)
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error).context("failed to bind a user"),
    }
}

/// Stands for a Service: spreads connections over the ready replicas. It runs on threads, so that
/// it outlives the runtime of a test.
struct Balancer {
    port: u16,
    backends: Arc<std::sync::RwLock<Vec<Arc<Backend>>>>,
    ended: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Backend {
    listen: u16,
    ops: OpsPort,
    ready: AtomicBool,
    removed: AtomicBool,
}

impl Balancer {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, ports::free(1)?[0]))?;
        let port = listener.local_addr()?.port();
        let backends: Arc<std::sync::RwLock<Vec<Arc<Backend>>>> = Arc::default();
        let ended = Arc::new(AtomicBool::new(false));
        let (accepting, probing) = (backends.clone(), backends.clone());
        let (no_more, no_probes) = (ended.clone(), ended.clone());
        thread::spawn(move || {
            let turn = AtomicUsize::new(0);
            for stream in listener.incoming().flatten() {
                if no_more.load(Ordering::Relaxed) {
                    break;
                }
                let ready: Vec<Arc<Backend>> = accepting
                    .read()
                    .map(|all| {
                        all.iter()
                            .filter(|b| b.ready.load(Ordering::Relaxed))
                            .cloned()
                            .collect()
                    })
                    .unwrap_or_default();
                let turn = turn.fetch_add(1, Ordering::Relaxed);
                // If no replica is ready, the connection is closed. A Service without endpoints
                // also refuses it.
                let backend = (0..ready.len())
                    .map(|n| &ready[(turn + n) % ready.len()])
                    .find_map(|backend| {
                        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, backend.listen));
                        TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()
                    });
                if let Some(backend) = backend {
                    join(stream, backend);
                }
            }
        });
        thread::spawn(move || {
            while !no_probes.load(Ordering::Relaxed) {
                let all = probing.read().map(|all| all.clone()).unwrap_or_default();
                for backend in all
                    .iter()
                    .filter(|backend| !backend.removed.load(Ordering::Relaxed))
                {
                    let ready = backend
                        .ops
                        .get("/readyz")
                        .is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"));
                    backend.ready.store(ready, Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        Ok(Self {
            port,
            backends,
            ended,
        })
    }

    fn add(&self, listen: u16, ops: OpsPort) -> Arc<Backend> {
        let (ready, removed) = (AtomicBool::new(false), AtomicBool::new(false));
        let backend = Arc::new(Backend {
            listen,
            ops,
            ready,
            removed,
        });
        if let Ok(mut all) = self.backends.write() {
            all.retain(|backend| !backend.removed.load(Ordering::Relaxed));
            all.push(backend.clone());
        }
        backend
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then closes the port. Otherwise the port would stay in
        // use.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

fn join(client: TcpStream, server: TcpStream) {
    for side in [&client, &server] {
        // A frame must not wait for the acknowledgement of the one before, which takes 40 ms on
        // most requests. A failure here is not fatal.
        let _ = side.set_nodelay(true);
    }
    for (mut from, mut to) in [
        (client.try_clone(), server.try_clone()),
        (Ok(server), Ok(client)),
    ]
    .into_iter()
    .filter_map(|(from, to)| Some((from.ok()?, to.ok()?)))
    {
        thread::spawn(move || {
            // The end of one direction, with or without an error, ends the other.
            let _ = copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
}
