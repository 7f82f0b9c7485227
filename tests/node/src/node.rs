//! The machine that `machine.sh` runs, and ways to disturb it.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1 as core;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use mimeo_tests::{eventually, scenario::SOON};

use crate::{mimeo::IMAGE, workspace};

/// The folder of `machine.sh`.
const STATE: &str = "/var/lib/mimeo-node";
/// The name of the node.
const NAME: &str = "node1";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The running node.
#[derive(Debug, Clone)]
pub struct Node {
    state: PathBuf,
}

impl Node {
    /// Waits until the node is ready.
    ///
    /// # Errors
    ///
    /// If no machine runs.
    pub async fn get() -> Result<Self> {
        let node = Self {
            state: PathBuf::from(STATE),
        };
        ensure!(
            node.state.join("ready").exists(),
            "no machine runs: use `make e2e`, or tests/node/machine.sh"
        );
        node.is_ready().await?;
        Ok(node)
    }

    /// Returns the admin's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("pki/admin.kubeconfig")
    }

    /// Returns a new client of the admin. It retries nothing, so a test sees every refusal.
    pub async fn client(&self) -> Result<Client> {
        Client::try_from(self.config().await?).context("failed to make a client")
    }

    /// Returns a new client with this token.
    pub async fn client_with(&self, token: &str) -> Result<Client> {
        let mut config = self.config().await?;
        config.auth_info = serde_json::from_value(serde_json::json!({"token": token}))?;
        Client::try_from(config).context("failed to make a client")
    }

    async fn config(&self) -> Result<Config> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig())?;
        let mut config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        Ok(config)
    }

    /// Returns the imported archive of Mimeo's image.
    pub fn image(&self) -> PathBuf {
        self.state.join("mimeo.tar")
    }

    /// Imports an archive of Mimeo's image, and gives the image with the first tag the second one,
    /// too.
    pub async fn import(&self, archive: &Path, tag: &str, other: &str) -> Result<()> {
        let copied = self.state.join("packed.tar");
        std::fs::copy(archive, &copied)?;
        let containerd = "/run/mimeo-node/containerd.sock";
        let ctr = [
            "run",
            "ctr",
            "--address",
            containerd,
            "--namespace",
            "k8s.io",
            "images",
        ];
        let file = copied.display().to_string();
        self.machine(&[&ctr[..], &["import", &file]].concat())
            .await?;
        let (name, alias) = (format!("{IMAGE}:{tag}"), format!("{IMAGE}:{other}"));
        self.machine(&[&ctr[..], &["tag", "--force", &name, &alias]].concat())
            .await
    }

    /// Returns the chart of the previous commit.
    pub fn last_chart(&self) -> PathBuf {
        self.state.join("chart-before")
    }

    /// Runs `kubectl` as the admin and returns its output.
    ///
    /// # Errors
    ///
    /// If it exits with an error. The error has the output.
    pub async fn kubectl<A: Into<OsString>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Result<String> {
        let mut command = self.kubectl_command();
        command.args(args.into_iter().map(Into::into));
        run(command).await
    }

    /// Returns the command `kubectl` as the admin, without arguments.
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new(self.state.join("bin/kubectl"));
        command
            .env("KUBECONFIG", self.kubeconfig())
            .env("KUBECACHEDIR", self.state.join("kubectl-cache"));
        command
    }

    /// Kills one of the node's programs.
    pub async fn kill(&self, program: &str) -> Result<()> {
        self.machine(&["kill", program]).await
    }

    /// Starts a program again, and waits until it answers.
    pub async fn start(&self, program: &str) -> Result<()> {
        self.machine(&["start", program]).await
    }

    /// Cuts the power, boots, and waits until the node is ready. Then all processes are new, also
    /// those of pods.
    pub async fn reboot(&self) -> Result<()> {
        self.machine(&["reboot"]).await?;
        eventually(SOON, "the machine to boot", || async {
            Ok(self.state.join("ready").exists().then_some(()))
        })
        .await?;
        self.is_ready().await
    }

    async fn machine(&self, args: &[&str]) -> Result<()> {
        let mut command = Command::new(workspace().join("tests/node/machine.sh"));
        command.args(args);
        run(command).await.map(drop)
    }

    async fn is_ready(&self) -> Result<()> {
        let nodes: Api<core::Node> = Api::all(self.client().await?);
        eventually(SOON, "the node to be ready", || async {
            let node = nodes.get(NAME).await?;
            let conditions = node
                .status
                .unwrap_or_default()
                .conditions
                .unwrap_or_default();
            let ready = conditions
                .iter()
                .find(|condition| condition.type_ == "Ready");
            match ready {
                Some(condition) if condition.status == "True" => Ok(Some(())),
                other => bail!("{other:?}"),
            }
        })
        .await
    }

    /// Returns the processes of this command in containers, as folders in this machine's `/proc`.
    pub fn processes(program: &str) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let process = entry?.path();
            // A process that has ended meanwhile has no command line.
            let command = std::fs::read(process.join("cmdline")).unwrap_or_default();
            if command.split(|byte| *byte == 0).next() == Some(program.as_bytes()) {
                found.push(process);
            }
        }
        Ok(found)
    }
}

/// Runs a command off this task and returns its standard output.
pub async fn run(mut command: Command) -> Result<String> {
    tokio::task::spawn_blocking(move || {
        let output = command
            .output()
            .with_context(|| format!("failed to run {command:?}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        ensure!(output.status.success(), "{command:?}: {stdout}{stderr}");
        Ok(stdout)
    })
    .await?
}
