//! An installation of Mimeo on the node.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use mimeo_api::ClusterReplication;
use mimeo_tests::{
    NAMESPACE, eventually, rights_added_up,
    scenario::{SOON, of, rule},
};
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use crate::{Node, node::run, workspace};

/// The name of the built and imported images.
pub const IMAGE: &str = "localhost/mimeo";
/// The tag of the present image.
const TODAY: &str = "e2e";
/// The chart's release.
const RELEASE: &str = "mimeo";

/// One of Mimeo's two programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `mimeo-webhook`.
    Webhook,
    /// `mimeo-reconciler`.
    Reconciler,
}

/// Both programs.
pub const PROGRAMS: [Program; 2] = [Program::Webhook, Program::Reconciler];

impl Program {
    /// The name of its Deployment, and of its binary.
    pub fn name(self) -> &'static str {
        match self {
            Self::Webhook => "mimeo-webhook",
            Self::Reconciler => "mimeo-reconciler",
        }
    }
}

/// An installation on the node. When it is dropped, it prints the logs of its pods. The test
/// harness shows them for a failed test.
pub struct Mimeo {
    /// The node of the installation.
    pub node: Node,
    /// The admin's client.
    pub client: Client,
    by: By,
}

/// The tool that installed it. The same tool removes it.
enum By {
    /// The kustomization in this folder.
    Kustomize(TempDir),
    /// The chart in this folder, as the release `mimeo`, with the image of this tag and these
    /// values.
    Chart(PathBuf, &'static str, Value),
    /// The file of a packed release.
    File(PathBuf),
}

impl Mimeo {
    /// Installs Mimeo with `kubectl apply -k manifests/kustomize` and the image's name. Waits until
    /// it is ready.
    pub async fn by_kustomize() -> Result<Self> {
        Self::kustomized(&json!({})).await
    }

    /// Installs a kustomization with these additional fields. It names components by their folders.
    pub async fn kustomized(fields: &Value) -> Result<Self> {
        Self::installed(kustomization(fields)?).await
    }

    /// Installs Mimeo with `helm install`, these values and the image's name, or upgrades an
    /// existing release. Waits until it is ready.
    pub async fn by_chart(values: &Value) -> Result<Self> {
        Self::installed(By::Chart(
            workspace().join("manifests/chart"),
            TODAY,
            values.clone(),
        ))
        .await
    }

    /// Installs the chart and the programs of the previous commit.
    pub async fn by_the_last_commit_s_chart(values: &Value) -> Result<Self> {
        Self::installed(By::Chart(
            Node::get().await?.last_chart(),
            "before",
            values.clone(),
        ))
        .await
    }

    /// Installs the image and `install.yaml` of a folder that `make dist` has packed with the image's
    /// name `localhost/mimeo`.
    pub async fn packed(folder: &Path, version: &str) -> Result<Self> {
        let node = Node::get().await?;
        let archive = folder.join(format!("mimeo-{version}-linux-amd64.oci.tar"));
        node.import(&archive, TODAY, version).await?;
        Self::installed(By::File(folder.join("install.yaml"))).await
    }

    /// Removes any installation, by the chart or by the kustomization: the names are the same.
    pub async fn remove_any() -> Result<()> {
        Self::new(kustomization(&json!({}))?).await?.delete().await
    }

    async fn new(by: By) -> Result<Self> {
        let node = Node::get().await?;
        Ok(Self {
            client: node.client().await?,
            node,
            by,
        })
    }

    async fn installed(by: By) -> Result<Self> {
        let mimeo = Self::new(by).await?;
        match &mimeo.by {
            By::Kustomize(folder) => {
                mimeo
                    .node
                    .kubectl(["apply".as_ref(), "-k".as_ref(), folder.path().as_os_str()])
                    .await?;
            }
            By::Chart(chart, tag, values) => {
                let mut file = NamedTempFile::new()?;
                file.write_all(values.to_string().as_bytes())?;
                let (chart, values) = (
                    chart.display().to_string(),
                    file.path().display().to_string(),
                );
                let image = format!("image.repository={IMAGE},image.tag={tag}");
                let upgrade = [
                    "upgrade",
                    "--install",
                    "--create-namespace",
                    RELEASE,
                    &chart,
                ];
                mimeo
                    .helm(&[&upgrade[..], &["--values", &values, "--set", &image]].concat())
                    .await?;
            }
            By::File(file) => {
                mimeo
                    .node
                    .kubectl([
                        "apply".as_ref(),
                        "--server-side".as_ref(),
                        "-f".as_ref(),
                        file.as_os_str(),
                    ])
                    .await?;
            }
        }
        mimeo.ready().await?;
        Ok(mimeo)
    }

    /// Runs Helm in Mimeo's namespace and returns its output.
    pub async fn helm(&self, args: &[&str]) -> Result<String> {
        let mut build = Command::new(workspace().join("tests/tools/build.sh"));
        build.arg("helm");
        let program = run(build).await?;
        let mut helm = Command::new(program.trim());
        helm.env("KUBECONFIG", self.node.kubeconfig())
            .args(["--namespace", NAMESPACE])
            .args(args);
        run(helm).await
    }

    /// Runs `kubectl delete -k`, or `helm uninstall` and then deletes the objects that Helm leaves
    /// on purpose. Returns once everything is deleted.
    pub async fn delete(&self) -> Result<()> {
        let delete = ["delete", "--ignore-not-found", "--timeout=120s"];
        match &self.by {
            By::Kustomize(folder) => {
                let folder = folder.path().display().to_string();
                self.node
                    .kubectl([&delete[..], &["-k", &folder]].concat())
                    .await?;
            }
            By::File(file) => {
                let file = file.display().to_string();
                self.node
                    .kubectl([&delete[..], &["-f", &file]].concat())
                    .await?;
            }
            By::Chart(..) => {
                self.helm(&["uninstall", RELEASE, "--wait", "--ignore-not-found"])
                    .await?;
                let definitions = workspace().join("manifests/crds").display().to_string();
                self.node
                    .kubectl([&delete[..], &["-k", &definitions]].concat())
                    .await?;
                self.node
                    .kubectl([&delete[..], &["namespace", NAMESPACE]].concat())
                    .await?;
            }
        }
        Ok(())
    }

    /// Waits until both programs have exactly the wanted number of ready pods, all of the present
    /// template. Then waits until the webhook can be reached, because a Service starts to forward
    /// to its pods a moment after they are ready.
    pub async fn ready(&self) -> Result<()> {
        for program in PROGRAMS {
            self.rolled_out(program).await?;
        }
        rights_added_up(&self.client).await?;
        let question = rule("reached")
            .secret("default", "none")
            .target(json!({"namespaces": ["none"]}));
        let (rules, question) = (
            Api::<ClusterReplication>::all(self.client.clone()),
            serde_json::from_value(question.object())?,
        );
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        eventually(SOON, "the webhook to be reached", || async {
            Ok(Some(rules.create(&dry_run, &question).await?))
        })
        .await
        .map(drop)
    }

    /// Waits for the pods of one program.
    pub async fn rolled_out(&self, program: Program) -> Result<()> {
        let deployments: Api<Deployment> = of(&self.client, NAMESPACE);
        eventually(
            SOON,
            format!("{} to be rolled out", program.name()),
            || async {
                let deployment = deployments.get(program.name()).await?;
                let wanted = deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1);
                let status = deployment.status.unwrap_or_default();
                ensure!(
                    status.observed_generation == deployment.metadata.generation,
                    "not seen yet"
                );
                let counts = [
                    status.replicas,
                    status.updated_replicas,
                    status.available_replicas,
                ]
                .map(Option::unwrap_or_default);
                ensure!(counts == [wanted; 3], "{counts:?} of {wanted}");
                // The counts leave out pods that are still ending.
                let pods = self.pods(program).await?;
                ensure!(
                    pods.len() == usize::try_from(wanted)?,
                    "{} pods",
                    pods.len()
                );
                Ok(Some(()))
            },
        )
        .await
    }

    /// Returns the pods of a program, also those that are ending.
    pub async fn pods(&self, program: Program) -> Result<Vec<Pod>> {
        let label = format!("app.kubernetes.io/name={}", program.name());
        Ok(of::<Pod>(&self.client, NAMESPACE)
            .list(&ListParams::default().labels(&label))
            .await?
            .items)
    }

    /// Runs `kubectl rollout restart`, and waits until no former pod runs.
    pub async fn restart(&self, program: Program) -> Result<()> {
        let deployment = format!("deployment/{}", program.name());
        self.node
            .kubectl(["-n", NAMESPACE, "rollout", "restart", &deployment])
            .await?;
        self.rolled_out(program).await
    }

    /// Sets how many pods a program has, and waits until it has them.
    pub async fn scale(&self, program: Program, replicas: u32) -> Result<()> {
        let (deployment, replicas) = (
            format!("deployment/{}", program.name()),
            format!("--replicas={replicas}"),
        );
        self.node
            .kubectl(["-n", NAMESPACE, "scale", &deployment, &replicas])
            .await?;
        self.rolled_out(program).await
    }

    /// Waits for a leader and returns its pod.
    pub async fn leader(&self) -> Result<String> {
        let leases: Api<Lease> = of(&self.client, NAMESPACE);
        eventually(SOON, "a leader", || async {
            let lease = leases.get(Program::Reconciler.name()).await?;
            let holder = lease
                .spec
                .and_then(|spec| spec.holder_identity)
                .filter(|holder| !holder.is_empty());
            let pods = self.pods(Program::Reconciler).await?;
            match holder {
                Some(holder)
                    if pods
                        .iter()
                        .any(|pod| pod.metadata.name.as_ref() == Some(&holder)) =>
                {
                    Ok(Some(holder))
                }
                other => bail!("the holder is {other:?}"),
            }
        })
        .await
    }
}

impl Drop for Mimeo {
    fn drop(&mut self) {
        let mut kubectl = self.node.kubectl_command();
        let logs = kubectl
            .args(["-n", NAMESPACE, "logs", "--prefix", "--tail=40"])
            .args([
                "-l",
                "app.kubernetes.io/name in (mimeo-webhook, mimeo-reconciler)",
            ])
            .output();
        let logs = logs
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default();
        eprintln!("--- the last logs of Mimeo's pods ---\n{logs}");
    }
}

/// Writes an operator's kustomization over the shipped one, with these additional fields.
fn kustomization(fields: &Value) -> Result<By> {
    let folder = tempfile::tempdir()?;
    // Kustomize accepts only relative paths.
    let up = "../".repeat(folder.path().canonicalize()?.components().count() - 1);
    let shipped = workspace().join("manifests/kustomize").canonicalize()?;
    let base = format!("{up}{}", shipped.strip_prefix("/")?.display());
    let mut kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [&base],
        "images": [{"name": "mimeo", "newName": IMAGE, "newTag": TODAY}],
    });
    for (name, value) in fields.as_object().context("no fields")? {
        kustomization[name] = value.clone();
    }
    // A component's name is its folder in the shipped kustomization.
    for component in kustomization["components"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        *component = json!(format!("{base}/{}", component.as_str().context("no name")?));
    }
    fs::write(
        folder.path().join("kustomization.yaml"),
        kustomization.to_string(),
    )?;
    Ok(By::Kustomize(folder))
}
