//! `make demo`: Mimeo on a control plane of its own, as a story that a person can follow and that
//! checks itself.
//!
//! Every step does something and then checks the state of the cluster. Its time covers both. The
//! first failing step ends the story with the observed state, the end of the programs' logs, and
//! exit code 1. After the story the control plane keeps running until Ctrl-C, unless `--once` is
//! given. With `--on KUBECONFIG` the story runs on a cluster that has Mimeo already, and starts
//! nothing.
//!
//! The library starts the programs. This file only tells the story.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    future::Future,
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Namespace, Pod, Secret},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use mimeo_api::{ClusterReplication, TransformPolicy};
use mimeo_tests::{
    ControlPlane, Pair, create_namespace, create_secret, eventually,
    traffic::{create_account, wants_account},
};
use serde_json::json;

/// Time limit for any one step. Most steps take some milliseconds; the pod gate takes 5 s, and the
/// deletion of the namespaces takes longer too.
const WITHIN: Duration = Duration::from_mins(2);

/// Namespace of the source.
const PLATFORM: &str = "platform";
/// Name of the source, of its copies and of the rule.
const REGISTRY: &str = "registry";
/// The key of the source's data.
const KEY: &str = ".dockerconfigjson";
/// Namespaces that exist before the rule.
const OLD: [&str; 3] = ["team-blue", "team-green", "team-red"];
/// Number of namespaces that are created after the rule, one after another.
const MORE: usize = 20;

/// A Secret that belongs to a team and that Mimeo must not touch.
const FOREIGN: &str = "own";

const RULE: &str = r#"apiVersion: mimeo.dev/v1alpha1
kind: ClusterReplication
metadata: {name: registry}
spec:
  sources: [{apiVersion: v1, kind: Secret, namespace: platform, name: registry}]
  targets: [{namespaces: ["team-*"]}]
  transform:
    type: kubernetes.io/dockerconfigjson
    labels: {set: {team-visible: "true"}}
    finalizers: [demo.example/registry]
  podGate: Required
"#;

/// The properties that [`RULE`] gives its copies.
const COPY: Looks = Looks {
    type_: "kubernetes.io/dockerconfigjson",
    label: ("team-visible", "true"),
    finalizer: "demo.example/registry",
};

/// Rewrites copies of another tool, kubed. That tool does not set the type, the label and the
/// finalizer that the copies need.
const POLICY: &str = "apiVersion: mimeo.dev/v1alpha1
kind: TransformPolicy
metadata: {name: devops-credentials}
spec:
  match:
    kinds: [{apiVersion: v1, kind: Secret}]
    objectSelector: {matchLabels: {kubed.appscode.com/origin.namespace: kubesphere-devops-system}}
    excludeNamespaces: [kubesphere-devops-system]
  transform:
    type: credential.devops.kubesphere.io/basic-auth
    labels: {set: {participant: kyverno}}
    finalizers: [finalizers.kubesphere.io/credential]
";

/// The properties that [`POLICY`] gives a Secret.
const CREDENTIAL: Looks = Looks {
    type_: "credential.devops.kubesphere.io/basic-auth",
    label: ("participant", "kyverno"),
    finalizer: "finalizers.kubesphere.io/credential",
};

/// The most common kind of rule, for users to try.
const TRY: &str = r#"apiVersion: mimeo.dev/v1alpha1
kind: ClusterReplication
metadata: {name: registry}
spec:
  sources: [{apiVersion: v1, kind: Secret, namespace: platform, name: registry}]
  targets: [{namespaces: ["team-*"]}]
"#;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [] => Box::pin(run(false)).await,
        ["--once"] => Box::pin(run(true)).await,
        ["--on", kubeconfig] => Box::pin(run_on(kubeconfig)).await,
        _ => {
            eprintln!("usage: mimeo-demo [--once | --on KUBECONFIG]");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nmimeo-demo: {}", told(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes, down to the API server's message. The whole Status would only repeat
/// the message.
fn told(error: &anyhow::Error) -> String {
    let mut told = Vec::new();
    for cause in error.chain() {
        if let Some(kube::Error::Api(status)) = cause.downcast_ref() {
            told.push(status.message.clone());
            break;
        }
        told.push(cause.to_string());
    }
    told.join(": ")
}

async fn run(once: bool) -> Result<()> {
    let mut story = Story::new();
    story.chapter("Mimeo, on a control plane of its own")?;
    let start = async {
        let control_plane = ControlPlane::start().await?;
        let version = control_plane
            .client()
            .await?
            .apiserver_version()
            .await?
            .git_version;
        Ok((control_plane, version))
    };
    let (control_plane, version) = story
        .step("etcd, kube-apiserver, kube-controller-manager", start)
        .await?;
    story.note(format!("Kubernetes {version}"))?;
    let start = async {
        let pair = Pair::builder().quiet().start(&control_plane).await?;
        settle(&control_plane).await?;
        Ok(pair)
    };
    let pair = story
        .step("CRDs, mimeo-webhook, mimeo-reconciler", start)
        .await?;
    let config = control_plane.admin().config_for(0).await?;
    if let Err(error) = Box::pin(tell(&mut story, config)).await {
        logs(&pair);
        return Err(error);
    }
    story.end()?;
    if once {
        return Ok(());
    }
    let directory = tempfile::Builder::new().prefix("mimeo-demo-").tempdir()?;
    let rule = directory.path().join("rule.yaml");
    std::fs::write(&rule, TRY)?;
    story.invite(&control_plane, &rule)?;
    tokio::signal::ctrl_c()
        .await
        .context("failed to wait for Ctrl-C")
}

/// Tells the story on an existing cluster.
async fn run_on(kubeconfig: &str) -> Result<()> {
    let mut story = Story::new();
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Box::pin(tell(&mut story, config)).await?;
    story.end()
}

/// After a CRD is established, an API server delays the first create of its kind for about 2 s,
/// even without Mimeo. The story's times must not include this delay.
async fn settle(control_plane: &ControlPlane) -> Result<()> {
    let rule: ClusterReplication = serde_yaml::from_str(RULE)?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    Api::all(control_plane.client().await?)
        .create(&dry_run, &rule)
        .await?;
    Ok(())
}

/// Prints the last lines of the programs' logs to stderr, where the error follows.
fn logs(pair: &Pair) {
    let programs = pair
        .webhooks
        .iter()
        .map(|replica| ("mimeo-webhook", replica));
    for (name, replica) in programs.chain(
        pair.reconciler
            .iter()
            .map(|replica| ("mimeo-reconciler", replica)),
    ) {
        let log = replica
            .program
            .log()
            .unwrap_or_else(|error| format!("(no log: {error})"));
        let lines: Vec<&str> = log.lines().collect();
        eprintln!("\n--- the log of {name} ends with ---");
        for line in &lines[lines.len().saturating_sub(25)..] {
            eprintln!("{line}");
        }
    }
}

async fn tell(story: &mut Story, mut config: Config) -> Result<()> {
    // Retries after a 429 with Retry-After, as kubectl does.
    config.default_retry = true;
    let cluster = Cluster {
        client: Client::try_from(config)?,
    };
    old_namespaces(story, &cluster).await?;
    Box::pin(new_namespaces(story, &cluster)).await?;
    other_tools(story, &cluster).await?;
    drift(story, &cluster).await?;
    let source = rotation(story, &cluster).await?;
    clean_up(story, &cluster, &source).await
}

async fn old_namespaces(story: &mut Story, cluster: &Cluster) -> Result<()> {
    story.chapter("Three old namespaces, a source and a rule")?;
    let setup = async {
        for name in OLD.into_iter().chain([PLATFORM]) {
            create_namespace(&cluster.client, name, &[]).await?;
        }
        create_secret(&cluster.client, OLD[0], FOREIGN, &[("theirs", "untouched")]).await?;
        create_secret(
            &cluster.client,
            PLATFORM,
            REGISTRY,
            &[(KEY, &credentials(1))],
        )
        .await
    };
    story
        .step(
            "namespaces team-blue, team-green, team-red; Secret platform/registry",
            setup,
        )
        .await?;
    story.text(RULE)?;
    let backfill = async {
        let rule: ClusterReplication = serde_yaml::from_str(RULE)?;
        Api::all(cluster.client.clone())
            .create(&PostParams::default(), &rule)
            .await?;
        cluster.copies_hold(1, OLD.len()).await
    };
    story
        .step("rule created; all three have their copy", backfill)
        .await?;
    let status = cluster.rule_says("Ready", "True", OLD.len());
    let message = story.step("the rule's status says so", status).await?;
    story.note(message)
}

async fn new_namespaces(story: &mut Story, cluster: &Cluster) -> Result<()> {
    story.chapter("A new namespace, and a pod in it at once")?;
    let active = cluster.rule_says("PodGateActive", "True", OLD.len());
    let message = story
        .step("every API server and webhook knows the rule", active)
        .await?;
    story.note(message)?;
    let seen = story
        .step(
            "namespace team-new, then a pod: the copy was there first",
            cluster.race("team-new"),
        )
        .await?;
    story.note(seen)?;
    let source = cluster.secrets(PLATFORM).get(REGISTRY).await?;
    let copy = cluster.secrets("team-new").get(REGISTRY).await?;
    for line in COPY.changes(&source, &copy) {
        story.note(line)?;
    }
    let more = async {
        let (mut selected, mut others) = (Vec::with_capacity(MORE), Vec::with_capacity(MORE));
        for number in 1..=MORE {
            selected.push(cluster.race(&format!("team-{number:02}")).await?.pod_after);
            others.push(
                cluster
                    .first_pod(&format!("other-{number:02}"))
                    .await?
                    .pod_after,
            );
        }
        Ok((selected, others))
    };
    let (mut selected, mut others) = story
        .step(
            &format!("{MORE} more, one after another: 0 pods without their copy"),
            more,
        )
        .await?;
    for (pods, whose) in [
        (&mut selected, "a pod there"),
        (&mut others, "where no rule applies"),
    ] {
        pods.sort_unstable();
        story.note(format!(
            "{whose:21}  {:>6} in the middle, {:>6} at most",
            Took(pods[MORE / 2]),
            Took(pods[MORE - 1])
        ))?;
    }
    Ok(())
}

async fn other_tools(story: &mut Story, cluster: &Cluster) -> Result<()> {
    story.chapter("Another tool's copies, changed as they are written")?;
    story.text(POLICY)?;
    let namespace = "devops-project";
    let force = async {
        create_namespace(&cluster.client, namespace, &[]).await?;
        let policy: TransformPolicy = serde_yaml::from_str(POLICY)?;
        let policies: Api<TransformPolicy> = Api::all(cluster.client.clone());
        policies.create(&PostParams::default(), &policy).await?;
        eventually(WITHIN, "the policy", || async {
            let status = policies
                .get("devops-credentials")
                .await?
                .status
                .unwrap_or_default();
            condition(&status.conditions, "Ready", "True").map(Some)
        })
        .await
    };
    let message = story.step("policy created and in force", force).await?;
    story.note(message)?;

    let secrets = cluster.secrets(namespace);
    let sent = synced_by_kubed();
    let create = async {
        secrets.create(&PostParams::default(), &sent).await?;
        CREDENTIAL.check(secrets.get("credential").await?)
    };
    let stored = story.step("the tool writes its copy", create).await?;
    for line in CREDENTIAL.changes(&sent, &stored) {
        story.note(line)?;
    }
    let replace = async {
        secrets
            .replace("credential", &PostParams::default(), &sent)
            .await?;
        CREDENTIAL.check(secrets.get("credential").await?)
    };
    story
        .step(
            "the tool writes it again, with its old type: all is kept",
            replace,
        )
        .await?;
    let delete = async {
        secrets
            .delete("credential", &DeleteParams::default())
            .await?;
        let Some(deleting) = secrets.get_opt("credential").await? else {
            bail!("it went without its finalizer's owner")
        };
        cluster.release(&deleting).await?;
        cluster.gone(namespace, "credential").await
    };
    story
        .step("it is deleted; the finalizer's owner lets it go", delete)
        .await
}

async fn drift(story: &mut Story, cluster: &Cluster) -> Result<()> {
    story.chapter("Copies stay as they should be")?;
    let edit = async {
        let patch = json!({"data": {KEY: ByteString(credentials(666).into_bytes())}, "metadata": {"labels": {"team-visible": null}}});
        cluster
            .secrets(OLD[2])
            .patch(REGISTRY, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        cluster.copies_hold(1, OLD.len() + 1 + MORE).await
    };
    story
        .step(
            "a hand edits data and label of team-red's copy: repaired",
            edit,
        )
        .await?;

    let secrets = cluster.secrets(OLD[1]);
    let old = secrets.get(REGISTRY).await?.metadata.uid;
    let delete = async {
        secrets.delete(REGISTRY, &DeleteParams::default()).await?;
        cluster.release(&secrets.get(REGISTRY).await?).await?;
        cluster.copies_hold(1, OLD.len() + 1 + MORE).await?;
        ensure!(
            secrets.get(REGISTRY).await?.metadata.uid != old,
            "the deleted copy never went"
        );
        Ok(())
    };
    story
        .step(
            "team-green's copy is deleted, its finalizer's owner lets it go: restored",
            delete,
        )
        .await
}

/// Returns the source in its new state.
async fn rotation(story: &mut Story, cluster: &Cluster) -> Result<Secret> {
    let count = OLD.len() + 1 + MORE;
    story.chapter("A rotation")?;
    let rotate = async {
        let patch = json!({"data": {KEY: ByteString(credentials(2).into_bytes())}});
        let source = cluster
            .secrets(PLATFORM)
            .patch(REGISTRY, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        cluster.copies_hold(2, count).await?;
        Ok(source)
    };
    let source = story
        .step(
            &format!("the source gets new credentials: all {count} copies have them"),
            rotate,
        )
        .await?;
    let message = story
        .step(
            "the rule's status says so",
            cluster.rule_says("Ready", "True", count),
        )
        .await?;
    story.note(message)?;
    Ok(source)
}

async fn clean_up(story: &mut Story, cluster: &Cluster, source: &Secret) -> Result<()> {
    story.chapter("Clean-up")?;
    let delete = async {
        let rules: Api<ClusterReplication> = Api::all(cluster.client.clone());
        rules.delete(REGISTRY, &DeleteParams::default()).await?;
        ensure!(
            rules.get_opt(REGISTRY).await?.is_none(),
            "the rule is still there: Mimeo sets no finalizers"
        );
        cluster.release_all().await
    };
    story
        .step(
            "rule deleted; the finalizer's owner lets the copies go: all are gone",
            delete,
        )
        .await?;
    let untouched = async {
        let now = cluster.secrets(PLATFORM).get(REGISTRY).await?;
        ensure!(
            now.metadata.resource_version == source.metadata.resource_version,
            "somebody wrote the source"
        );
        let foreign = cluster.secrets(OLD[0]).get(FOREIGN).await?;
        ensure!(
            foreign.metadata.labels.is_none(),
            "somebody marked a Secret of a team's own"
        );
        Ok(())
    };
    story
        .step(
            "the source and a team's own Secret are untouched",
            untouched,
        )
        .await?;
    story
        .step(
            "all namespaces deleted: nothing holds them up",
            cluster.delete_namespaces(),
        )
        .await?;
    story.note("5 s of it are the namespace controller's own, which then begins")
}

/// The cluster as its users see it.
struct Cluster {
    client: Client,
}

impl Cluster {
    fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// All Secrets with the source's name except the source, by namespace.
    async fn copies(&self) -> Result<BTreeMap<String, Secret>> {
        let named = ListParams::default().fields(&format!("metadata.name={REGISTRY}"));
        let found = Api::<Secret>::all(self.client.clone()).list(&named).await?;
        let by_namespace = found.items.into_iter().map(|secret| {
            (
                secret.metadata.namespace.clone().unwrap_or_default(),
                secret,
            )
        });
        Ok(by_namespace
            .filter(|(namespace, _)| namespace != PLATFORM)
            .collect())
    }

    /// Waits until there are `count` copies, each with these credentials and the properties of the
    /// rule.
    async fn copies_hold(&self, version: u32, count: usize) -> Result<()> {
        eventually(WITHIN, format!("{count} copies"), || async {
            let copies = self.copies().await?;
            ensure!(copies.len() == count, "there are {} copies", copies.len());
            for (namespace, copy) in copies {
                holds(copy, version).with_context(|| format!("in {namespace}"))?;
            }
            Ok(Some(()))
        })
        .await
    }

    /// Waits for a condition of the rule, with this number of desired and synced copies. Returns
    /// its message.
    async fn rule_says(&self, type_: &str, status: &str, copies: usize) -> Result<String> {
        let rules: Api<ClusterReplication> = Api::all(self.client.clone());
        eventually(WITHIN, format!("condition {type_} {status}"), || async {
            let seen = rules.get(REGISTRY).await?.status.unwrap_or_default();
            let counts = seen.copies.unwrap_or_default();
            let copies = i32::try_from(copies)?;
            ensure!(
                (counts.desired, counts.synced, counts.failed) == (copies, copies, 0),
                "{counts:?}"
            );
            condition(&seen.conditions, type_, status).map(Some)
        })
        .await
    }

    /// Creates a namespace and immediately a pod in it.
    async fn first_pod(&self, name: &str) -> Result<FirstPod> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "app"},
            "spec": {"containers": [{"name": "app", "image": "app", "imagePullPolicy": "Never"}]},
        }))?;
        let begun = Instant::now();
        create_namespace(&self.client, name, &[]).await?;
        let namespace = begun.elapsed();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), name);
        let pod = match pods.create(&PostParams::default(), &pod).await {
            Err(refused) if wants_account(&refused) => {
                create_account(&self.client, name).await?;
                pods.create(&PostParams::default(), &pod).await
            }
            outcome => outcome,
        };
        let pod = pod.context("the pod was refused")?;
        let pod_after = begun.elapsed().saturating_sub(namespace);
        Ok(FirstPod {
            namespace,
            pod_after,
            revision: revision(&pod.metadata)?,
        })
    }

    /// Verifies that the copy exists when the first pod does, and that the copy is older.
    async fn race(&self, name: &str) -> Result<Race> {
        let FirstPod {
            namespace,
            pod_after,
            revision: pod,
        } = self.first_pod(name).await?;
        let copy = self
            .secrets(name)
            .get_opt(REGISTRY)
            .await?
            .context("a pod was admitted without its copy")?;
        let race = Race {
            namespace,
            pod_after,
            copy: revision(&copy.metadata)?,
            pod,
        };
        ensure!(race.copy < race.pod, "the copy came after the pod: {race}");
        holds(copy, 1)?;
        Ok(race)
    }

    /// Removes the finalizers of an object that is being deleted. In a real cluster the controller
    /// that the finalizers belong to does this.
    async fn release(&self, secret: &Secret) -> Result<()> {
        let metadata = &secret.metadata;
        let (Some(name), Some(namespace)) = (&metadata.name, &metadata.namespace) else {
            bail!("it has no name")
        };
        ensure!(
            metadata.deletion_timestamp.is_some(),
            "{namespace}/{name} is not being deleted"
        );
        let patch = json!({"metadata": {"uid": metadata.uid, "finalizers": null}});
        match self
            .secrets(namespace)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error)
                .with_context(|| format!("failed to take the finalizer off {namespace}/{name}")),
        }
    }

    /// Waits until all copies are being deleted, removes their finalizers, and waits until no copy
    /// is left.
    async fn release_all(&self) -> Result<()> {
        eventually(WITHIN, "the copies' end", || async {
            let copies = self.copies().await?;
            let deleting = copies
                .values()
                .filter(|copy| copy.metadata.deletion_timestamp.is_some());
            stream::iter(deleting)
                .map(|copy| self.release(copy))
                .buffer_unordered(8)
                .try_collect::<Vec<()>>()
                .await?;
            let left = self.copies().await?;
            ensure!(
                left.is_empty(),
                "still there in {}",
                left.into_keys().collect::<Vec<_>>().join(", ")
            );
            Ok(Some(()))
        })
        .await
    }

    async fn gone(&self, namespace: &str, name: &str) -> Result<()> {
        let gone = || async {
            Ok(self
                .secrets(namespace)
                .get_opt(name)
                .await?
                .is_none()
                .then_some(()))
        };
        eventually(
            WITHIN,
            format!("the end of Secret {namespace}/{name}"),
            gone,
        )
        .await
    }

    /// Deletes the story's namespaces except the source's, and waits until they are gone.
    async fn delete_namespaces(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let ours = || async {
            let all = namespaces.list_metadata(&ListParams::default()).await?;
            let names = all
                .items
                .into_iter()
                .filter_map(|namespace| namespace.metadata.name);
            let of_the_story = |name: &String| {
                ["team-", "other-", "devops-"]
                    .iter()
                    .any(|prefix| name.starts_with(prefix))
            };
            anyhow::Ok(names.filter(of_the_story).collect::<Vec<_>>())
        };
        for name in ours().await? {
            namespaces.delete(&name, &DeleteParams::default()).await?;
        }
        eventually(WITHIN, "the namespaces' end", || async {
            let left = ours().await?;
            ensure!(left.is_empty(), "still there: {}", left.join(", "));
            Ok(Some(()))
        })
        .await
    }
}

/// A pod, and the time between the creation of its namespace and of the pod.
struct FirstPod {
    namespace: Duration,
    pod_after: Duration,
    revision: u64,
}

/// The order in which a namespace, its copy and its pod were created.
struct Race {
    namespace: Duration,
    pod_after: Duration,
    /// etcd revisions. The copy's must be the smaller one.
    copy: u64,
    pod: u64,
}

impl Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            namespace,
            pod_after,
            copy,
            pod,
        } = self;
        let (namespace, pod_after) = (Took(*namespace), Took(*pod_after));
        write!(
            f,
            "namespace {namespace}, pod {pod_after}; the copy is revision {copy} of the store, the \
             pod {pod}"
        )
    }
}

/// The type, label and finalizer that a Secret must have.
struct Looks {
    type_: &'static str,
    label: (&'static str, &'static str),
    finalizer: &'static str,
}

impl Looks {
    fn check(&self, secret: Secret) -> Result<Secret> {
        let Self {
            type_,
            label: (key, value),
            finalizer,
        } = self;
        let labels = secret.metadata.labels.as_ref();
        let finalizers = secret.metadata.finalizers.as_deref().unwrap_or_default();
        ensure!(
            secret.type_.as_deref() == Some(type_),
            "its type is {:?}",
            secret.type_
        );
        ensure!(
            labels
                .and_then(|labels| labels.get(*key))
                .is_some_and(|v| v == value),
            "no label {key}: {value}"
        );
        ensure!(
            finalizers.iter().any(|name| name == finalizer),
            "its finalizers are {finalizers:?}"
        );
        Ok(secret)
    }

    /// The differences between two Secrets, as text for the story.
    fn changes(&self, from: &Secret, to: &Secret) -> [String; 3] {
        let type_ = |secret: &Secret| secret.type_.clone().unwrap_or_default();
        let (key, value) = self.label;
        [
            format!("type       {} -> {}", type_(from), type_(to)),
            format!("label      {key}: {value}"),
            format!("finalizer  {}", self.finalizer),
        ]
    }
}

/// Verifies that a copy has these credentials and the properties of the rule.
fn holds(copy: Secret, version: u32) -> Result<()> {
    let copy = COPY.check(copy)?;
    let data = copy.data.as_ref().and_then(|data| data.get(KEY));
    ensure!(
        data.is_some_and(|data| data.0 == credentials(version).into_bytes()),
        "its data is not of version {version}"
    );
    Ok(())
}

/// Credentials for a registry, in their usual form.
fn credentials(version: u32) -> String {
    json!({"auths": {"registry.example": {"username": "pull", "password": format!("version-{version}")}}}).to_string()
}

/// A Secret as the other tool sends it each time.
fn synced_by_kubed() -> Secret {
    let label = (
        "kubed.appscode.com/origin.namespace".to_owned(),
        "kubesphere-devops-system".to_owned(),
    );
    Secret {
        metadata: ObjectMeta {
            name: Some("credential".to_owned()),
            labels: Some([label].into()),
            ..ObjectMeta::default()
        },
        type_: Some("will-be-modify-by-kyverno".to_owned()),
        string_data: Some([("username".to_owned(), "ci".to_owned())].into()),
        ..Secret::default()
    }
}

/// The message of the condition with this status. An error shows all conditions.
fn condition(conditions: &[Condition], type_: &str, status: &str) -> Result<String> {
    match conditions.iter().find(|condition| condition.type_ == type_) {
        Some(condition) if condition.status == status => Ok(condition.message.clone()),
        _ => {
            let seen = conditions
                .iter()
                .map(|c| format!("{}={} ({}: {})", c.type_, c.status, c.reason, c.message));
            bail!("conditions: {}", seen.collect::<Vec<_>>().join("; "))
        }
    }
}

/// The etcd revision of an object. Within one etcd, resourceVersions of all kinds form one
/// sequence.
fn revision(metadata: &ObjectMeta) -> Result<u64> {
    Ok(metadata
        .resource_version
        .as_deref()
        .context("it has no resourceVersion")?
        .parse()?)
}

/// A duration in a form for people.
struct Took(Duration);

impl Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0.as_millis() {
            0..1000 => format!("{} ms", self.0.as_millis()),
            _ => format!("{:.1} s", self.0.as_secs_f64()),
        };
        f.pad(&text)
    }
}

/// Column in which the times end, followed by "ok".
const WIDTH: usize = 78;

/// Prints the story, with colours if stdout is a terminal.
struct Story {
    out: std::io::Stdout,
    colours: bool,
    steps: usize,
    begun: Instant,
}

impl Story {
    fn new() -> Self {
        let out = std::io::stdout();
        let colours =
            out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            out,
            colours,
            steps: 0,
            begun: Instant::now(),
        }
    }

    fn paint(&self, code: &str, text: impl Display) -> String {
        if self.colours {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_string()
        }
    }

    fn chapter(&mut self, title: &str) -> Result<()> {
        let title = self.paint("1", title);
        Ok(writeln!(self.out, "\n{title}")?)
    }

    /// Prints the text before it does the step, so that a person knows the reason for the wait.
    async fn step<T>(&mut self, text: &str, deed: impl Future<Output = Result<T>>) -> Result<T> {
        write!(self.out, "  {text}")?;
        self.out.flush()?;
        let begun = Instant::now();
        let outcome = deed.await;
        let took = Took(begun.elapsed());
        let verdict = if outcome.is_ok() {
            self.paint("32", "ok")
        } else {
            self.paint("31", "FAILED")
        };
        writeln!(
            self.out,
            "{took:>width$}  {verdict}",
            width = WIDTH.saturating_sub(text.chars().count())
        )?;
        self.steps += 1;
        outcome.with_context(|| format!("this did not hold: {text}"))
    }

    /// Prints an observation.
    fn note(&mut self, seen: impl Display) -> Result<()> {
        let seen = self.paint("2", seen);
        Ok(writeln!(self.out, "    {seen}")?)
    }

    /// Prints YAML that is sent to the cluster.
    fn text(&mut self, yaml: &str) -> Result<()> {
        for line in yaml.lines() {
            let line = self.paint("36", line);
            writeln!(self.out, "    | {line}")?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let (steps, took) = (self.steps, Took(self.begun.elapsed()));
        Ok(writeln!(self.out, "\nAll {steps} steps held, in {took}.")?)
    }

    fn invite(&mut self, control_plane: &ControlPlane, rule: &Path) -> Result<()> {
        let (kubeconfig, rule) = (control_plane.kubeconfig().display(), rule.display());
        let kubectl = control_plane
            .kubectl()
            .map_or_else(|_| PathBuf::from("kubectl"), |it| it.get_program().into());
        let kubectl = kubectl.display();
        self.chapter("It keeps running until Ctrl-C. To try it, in another terminal:")?;
        Ok(write!(
            self.out,
            "
  export KUBECONFIG={kubeconfig}
  alias kubectl={kubectl}
  kubectl apply -f {rule}
  kubectl create namespace team-mine && kubectl run app --image=app -n team-mine && kubectl get secrets -n team-mine
  kubectl get clusterreplications -o wide
  kubectl edit secret registry -n platform
  kubectl delete clusterreplication registry
"
        )?)
    }
}
