//! The life of a Helm release on an API server without nodes. The tests run the commands of the
//! release's hook pods themselves.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{Pod, Secret},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use mimeo_api::ClusterReplication;
use mimeo_tests::{
    Component, ControlPlane, NAMESPACE, Pair, Program, create_namespace, create_secret, eventually,
    scenario::{SOON, create, definitions_of_others, helm, kubectl, merge, rule, value, wait_for},
};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_blocking};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/chart");

struct Cluster {
    control_plane: ControlPlane,
    client: Client,
}

impl Cluster {
    /// Runs Helm beside the test, because Helm waits for steps of the test.
    fn helm(&self, args: &[&str]) -> Result<JoinHandle<Result<String>>> {
        let mut command = helm()?;
        command
            .env("KUBECONFIG", self.control_plane.kubeconfig())
            .args(["--namespace", NAMESPACE])
            .args(args);
        Ok(spawn_blocking(move || {
            let output = command.output()?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            ensure!(
                output.status.success(),
                "{command:?}: {}{}",
                text(&output.stdout),
                text(&output.stderr)
            );
            Ok(text(&output.stdout))
        }))
    }

    /// Runs the only container of the pod as its service account, as a node would.
    async fn run(&self, pod: &Value) -> Result<()> {
        let container = &pod["containers"][0];
        let command: Vec<String> = serde_json::from_value(container["command"].clone())?;
        let (program, args) = command.split_first().context("no command")?;
        let account = pod["serviceAccountName"].as_str().context("no account")?;
        let user = self
            .control_plane
            .user(&format!("system:serviceaccount:{NAMESPACE}:{account}"), &[])?;
        let program = Program::new(program.trim_start_matches('/'));
        let program = program.env("KUBECONFIG", user.kubeconfig().display().to_string());
        let mut running = program
            .args(["--namespace", NAMESPACE])
            .args(args)
            .start()?;
        ensure!(
            running.wait(SOON).await?.success(),
            "{command:?}: {}",
            running.log()?
        );
        Ok(())
    }

    async fn registrations(&self) -> Result<Vec<String>> {
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let mutating = mutating.list_metadata(&ListParams::default()).await?.items;
        let validating = validating
            .list_metadata(&ListParams::default())
            .await?
            .items;
        let names = mutating
            .into_iter()
            .map(|one| one.metadata)
            .chain(validating.into_iter().map(|one| one.metadata));
        Ok(names.filter_map(|metadata| metadata.name).collect())
    }

    async fn holds(&self, namespace: &str, token: &str) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let is = move |copy: &Secret| value(copy, "token").as_deref() == Some(token);
        wait_for(secrets, "registry".into(), is).await.map(drop)
    }

    /// Waits until no installed object is left, except CRDs.
    async fn nothing_is_left(&self) -> Result<()> {
        let kinds = "clusterroles,clusterrolebindings,flowschemas,prioritylevelconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings,deployments,services,serviceaccounts,roles,rolebindings,poddisruptionbudgets,resourcequotas,jobs,pods";
        eventually(SOON, "nothing to be left", || async {
            let left = kubectl(
                &self.control_plane,
                ["get", kinds, "--all-namespaces", "--output=name"],
            )?;
            let left: Vec<&str> = left.lines().filter(|name| name.contains("mimeo")).collect();
            if left.is_empty() {
                Ok(Some(()))
            } else {
                bail!("{left:?}")
            }
        })
        .await
    }

    /// Checks that no object has a finalizer of Mimeo's or waits for its deletion. A namespace with
    /// copies can be deleted.
    fn nothing_is_held_up(&self) -> Result<()> {
        let kinds = kubectl(
            &self.control_plane,
            ["api-resources", "--verbs=list", "--output=name"],
        )?;
        let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.contains(' ')).collect();
        ensure!(kinds.len() > 40, "{kinds:?}");
        // The contents are left out.
        let fields = "{.kind}/{.metadata.name}:{.metadata.finalizers}{.metadata.deletionTimestamp}";
        let output = format!("--output=jsonpath={{range .items[*]}}{fields}{{\"\\n\"}}{{end}}");
        let all = kubectl(
            &self.control_plane,
            ["get", &kinds.join(","), "--all-namespaces", &output],
        )?;
        ensure!(all.lines().count() > 100, "{all}");
        let named = |line: &&str| {
            line.contains("mimeo")
                || ["Namespace/", "Secret/"]
                    .iter()
                    .any(|kind| line.starts_with(kind))
        };
        let held: Vec<&str> = all
            .lines()
            .filter(named)
            .filter(|line| !line.ends_with(':'))
            .collect();
        ensure!(held.is_empty(), "{held:?}");
        kubectl(
            &self.control_plane,
            ["delete", "namespace", "team-a", "--timeout=5m"],
        )
        .map(drop)
    }

    /// Checks the objects that stay in Mimeo's namespace for a later installation, as
    /// `docs/how-to/uninstall.md` says.
    async fn only_what_mimeo_knows_is_left(&self) -> Result<()> {
        let expected = ["configmap/mimeo-kinds", "secret/mimeo-webhook-tls"];
        // A program without its permissions cannot delete its own Lease.
        let is_lease = |name: &&str| name.starts_with("lease.coordination.k8s.io/mimeo-");
        eventually(SOON, "all else to be gone", || async {
            let kinds = "configmaps,leases,secrets,services,serviceaccounts,roles,rolebindings,networkpolicies,deployments,jobs";
            let left = kubectl(&self.control_plane, ["get", kinds, "-n", NAMESPACE, "--output=name"])?;
            let other = |name: &&str| *name != "serviceaccount/default" && !is_lease(name);
            let mut left: Vec<&str> = left.lines().filter(other).collect();
            left.sort_unstable();
            if left == expected { Ok(Some(())) } else { bail!("{left:?}") }
        })
        .await
    }

    async fn webhook_replicas(&self) -> Result<Option<i32>> {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        Ok(deployments
            .get("mimeo-webhook")
            .await?
            .spec
            .context("no spec")?
            .replicas)
    }
}

#[tokio::test]
async fn a_release_is_installed_verified_changed_and_removed_and_wedges_nothing() -> Result<()> {
    ensure!(Path::new(CHART).is_dir());
    let control_plane = ControlPlane::start().await?;
    let cluster = Cluster {
        client: control_plane.client().await?,
        control_plane,
    };
    let Cluster {
        control_plane,
        client,
    } = &cluster;
    cluster
        .helm(&["install", "mimeo", CHART, "--create-namespace"])?
        .await??;
    // The programs run in place of the pods. They have exactly the release's permissions, and the
    // strict failure policy.
    let strict = ["--namespaces-failure-policy", "fail"];
    let mut pair = Pair::builder()
        .installed_rights()
        .webhook_args(strict)
        .start(control_plane)
        .await?;

    create_namespace(client, "platform", &[]).await?;
    create_secret(client, "platform", "registry", &[("token", "one")]).await?;
    rule("registry")
        .secret("platform", "registry")
        .target(json!({"namespaces": ["team-*"]}))
        .create(client)
        .await?;
    create_namespace(client, "team-a", &[]).await?;
    cluster.holds("team-a", "one").await?;
    it_verifies_itself(&cluster).await?;
    it_is_upgraded_and_rolled_back(&cluster).await?;
    let sources: Api<Secret> = Api::namespaced(client.clone(), "platform");
    merge(
        &sources,
        "registry",
        json!({"stringData": {"token": "two"}}),
    )
    .await?;
    cluster.holds("team-a", "two").await?;

    it_is_uninstalled(&cluster).await?;
    // The webhook holds up nothing and registers nothing, neither while it still runs nor after
    // that.
    create_namespace(client, "team-b", &[]).await?;
    pair.stop_webhooks().await?;
    create_namespace(client, "team-c", &[]).await?;
    assert_eq!(cluster.registrations().await?, Vec::<String>::new());
    cluster.holds("team-a", "two").await?;
    let rules: Api<ClusterReplication> = Api::all(client.clone());
    let rule = rules.get("registry").await?;
    ensure!(
        rule.metadata.finalizers.is_none(),
        "{:?}",
        rule.metadata.finalizers
    );
    cluster.nothing_is_held_up()?;
    cluster.only_what_mimeo_knows_is_left().await?;

    // The new installation takes over the objects that stayed.
    cluster.helm(&["install", "mimeo", CHART])?.await??;
    rules.get("registry").await?;
    Ok(())
}

/// Two things could stand in the way: a policy that needs the CRDs, and an operations port that
/// asks for tokens. Copies are deleted first, as `docs/how-to/uninstall.md` says. One copy stays,
/// because its rule retains it.
#[tokio::test]
async fn a_release_goes_with_its_definitions_and_copies() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let cluster = Cluster {
        client: control_plane.client().await?,
        control_plane,
    };
    let Cluster {
        control_plane,
        client,
    } = &cluster;
    let values = [
        "guardedLabels.enabled=true",
        "crds.keep=false",
        "metrics.auth=Token",
    ];
    cluster
        .helm(&[
            "install",
            "mimeo",
            CHART,
            "--create-namespace",
            "--set",
            &values.join(","),
        ])?
        .await??;
    let token = ["--ops-auth", "token"];
    let _pair = Pair::builder()
        .installed_rights()
        .webhook_args(token)
        .reconciler_args(token)
        .start(control_plane)
        .await?;
    create_namespace(client, "platform", &[]).await?;
    create_secret(client, "platform", "registry", &[("token", "one")]).await?;
    rule("registry")
        .secret("platform", "registry")
        .target(json!({"namespaces": ["team-*"]}))
        .create(client)
        .await?;
    create_namespace(client, "team-a", &[]).await?;
    cluster.holds("team-a", "one").await?;

    let kept = rule("kept")
        .secret("platform", "registry")
        .target(json!({"namespaces": ["kept"]}));
    kept.set("retentionPolicy", json!({"whenRuleDeleted": "Retain"}))
        .create(client)
        .await?;
    create_namespace(client, "kept", &[]).await?;
    cluster.holds("kept", "one").await?;

    kubectl(
        control_plane,
        [
            "delete",
            "clusterreplications,replications",
            "--all",
            "--all-namespaces",
        ],
    )?;
    let secrets: Api<Secret> = Api::all(client.clone());
    let copies = ListParams::default().labels("app.kubernetes.io/managed-by=mimeo");
    eventually(SOON, "copies to go", || async {
        let left = secrets.list_metadata(&copies).await?;
        let left: Vec<_> = left
            .items
            .into_iter()
            .filter_map(|copy| copy.metadata.namespace)
            .collect();
        if left == ["kept"] {
            Ok(Some(()))
        } else {
            bail!("{left:?}")
        }
    })
    .await?;
    it_is_uninstalled(&cluster).await?;
    let crds = kubectl(
        control_plane,
        ["get", "customresourcedefinitions", "--output=name"],
    )?;
    ensure!(!crds.contains("mimeo"), "{crds}");
    cluster.nothing_is_held_up()?;
    // An API server that starts now has no policy that needs the CRDs.
    control_plane.restart(Component::ApiServer(0)).await?;
    eventually(SOON, "namespaces to be created", || async {
        create_namespace(client, "team-b", &[]).await?;
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn what_kustomize_installed_becomes_a_release() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let cluster = Cluster {
        client: control_plane.client().await?,
        control_plane,
    };
    let kustomization = format!("{CHART}/../kustomize");
    kubectl(&cluster.control_plane, ["apply", "-k", &kustomization])?;
    let refused = cluster.helm(&["install", "mimeo", CHART])?.await?;
    ensure!(refused.is_err(), "Helm took the objects over unasked");
    let take = [
        "install",
        "mimeo",
        CHART,
        "--take-ownership",
        "--force-conflicts",
        "--set",
        "webhook.replicas=3",
    ];
    cluster.helm(&take)?.await??;
    assert_eq!(cluster.webhook_replicas().await?, Some(3));
    // From then on it is an ordinary release.
    cluster
        .helm(&["upgrade", "mimeo", CHART, "--set", "webhook.replicas=2"])?
        .await??;
    assert_eq!(cluster.webhook_replicas().await?, Some(2));
    Ok(())
}

/// A restored cluster has the CRDs before Mimeo. They belong to no release until Helm is told to
/// take them over.
#[tokio::test]
async fn definitions_that_are_there_before_are_taken_over_or_left_alone() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let cluster = Cluster {
        client: control_plane.client().await?,
        control_plane,
    };
    let definitions = format!("{CHART}/../crds");
    kubectl(&cluster.control_plane, ["apply", "-k", &definitions])?;
    let refused = cluster
        .helm(&["install", "mimeo", CHART, "--create-namespace"])?
        .await?;
    ensure!(format!("{:?}", refused.err().context("it was installed")?).contains("ownership"));
    let alone = [
        "--set",
        "crds.enabled=false,webhook.replicas=0,reconciler.replicas=0",
    ];
    cluster
        .helm(
            &[
                &["install", "mimeo", CHART, "--create-namespace"][..],
                &alone,
            ]
            .concat(),
        )?
        .await??;
    assert_eq!(cluster.webhook_replicas().await?, Some(0));
    // Now the objects that the programs need exist.
    let take = ["--reset-values", "--take-ownership", "--force-conflicts"];
    cluster
        .helm(&[&["upgrade", "mimeo", CHART][..], &take].concat())?
        .await??;
    assert_eq!(cluster.webhook_replicas().await?, Some(2));
    let label = "--output=jsonpath={.metadata.labels.app\\.kubernetes\\.io/managed-by}";
    let definition = "clusterreplications.mimeo.dev";
    assert_eq!(
        kubectl(
            &cluster.control_plane,
            ["get", "customresourcedefinition", definition, label]
        )?,
        "Helm"
    );
    Ok(())
}

/// kubectl takes the field from Helm. Helm takes it back only if asked, as the runbook says.
#[tokio::test]
async fn replicas_that_kubectl_has_scaled_are_kubectls_until_helm_is_told_otherwise() -> Result<()>
{
    let control_plane = ControlPlane::start().await?;
    let cluster = Cluster {
        client: control_plane.client().await?,
        control_plane,
    };
    let scale = |replicas: &str| {
        let deployment = [
            "scale",
            "deployment/mimeo-webhook",
            "--namespace",
            NAMESPACE,
            "--replicas",
        ];
        kubectl(
            &cluster.control_plane,
            [&deployment[..], &[replicas]].concat(),
        )
    };
    let upgrade = async |args: &[&str]| -> Result<Result<String>> {
        Ok(cluster
            .helm(&[&["upgrade", "mimeo", CHART][..], args].concat())?
            .await?)
    };
    let refused = |told: Result<String>| -> Result<()> {
        let told = format!("{:?}", told.err().context("it was done")?);
        ensure!(
            told.contains("conflict") && told.contains("kubectl"),
            "{told}"
        );
        Ok(())
    };
    cluster
        .helm(&["install", "mimeo", CHART, "--create-namespace"])?
        .await??;

    scale("4")?;
    refused(upgrade(&[]).await?)?;
    upgrade(&["--reuse-values", "--set", "webhook.replicas=4"]).await??;
    // Several recipes scale to zero and back. The same number is no conflict.
    scale("0")?;
    scale("4")?;
    upgrade(&["--reuse-values"]).await??;
    scale("3")?;
    refused(upgrade(&["--reuse-values"]).await?)?;
    assert_eq!(cluster.webhook_replicas().await?, Some(3));
    upgrade(&["--reuse-values", "--force-conflicts"]).await??;
    assert_eq!(cluster.webhook_replicas().await?, Some(4));
    upgrade(&["--reuse-values", "--set", "webhook.replicas=2"]).await??;
    assert_eq!(cluster.webhook_replicas().await?, Some(2));
    Ok(())
}

/// A RoleBinding can be written only in an existing namespace.
#[tokio::test]
async fn a_namespace_that_is_gone_has_to_leave_the_values_before_anything_is_upgraded() -> Result<()>
{
    let control_plane = ControlPlane::start().await?;
    let cluster = Cluster {
        client: control_plane.client().await?,
        control_plane,
    };
    let of = |namespaces: &str| format!("rbac.targetNamespaces={{{namespaces}}}");
    for namespace in ["team-a", "team-b"] {
        create_namespace(&cluster.client, namespace, &[]).await?;
    }
    let both = of("team-a,team-b");
    cluster
        .helm(&[
            "install",
            "mimeo",
            CHART,
            "--create-namespace",
            "--set",
            &both,
        ])?
        .await??;
    kubectl(&cluster.control_plane, ["delete", "namespace", "team-b"])?;
    let refused = cluster
        .helm(&[
            "upgrade",
            "mimeo",
            CHART,
            "--set",
            &format!("{both},webhook.replicas=3"),
        ])?
        .await?;
    let refused = format!("{:?}", refused.err().context("it was upgraded")?);
    ensure!(
        refused.contains("namespaces \"team-b\" not found"),
        "{refused}"
    );
    cluster
        .helm(&[
            "upgrade",
            "mimeo",
            CHART,
            "--set",
            &format!("{},webhook.replicas=3", of("team-a")),
        ])?
        .await??;
    assert_eq!(cluster.webhook_replicas().await?, Some(3));
    let refused = cluster.helm(&["rollback", "mimeo", "1"])?.await?;
    ensure!(refused.is_err(), "there is no such namespace");
    Ok(())
}

/// The chart's README says how to continue after a failed Job: how to keep Mimeo, and how to
/// uninstall without the Job. Here the Job has done all its work, so the largest possible number of
/// objects is missing.
#[tokio::test]
async fn an_uninstallation_that_fails_can_be_taken_back_and_gone_on_with() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let cluster = Cluster {
        client: control_plane.client().await?,
        control_plane,
    };
    let Cluster { control_plane, .. } = &cluster;
    let values = [
        "--set",
        "guardedLabels.enabled=true,networkPolicy.enabled=true",
    ];
    cluster
        .helm(
            &[
                &["install", "mimeo", CHART, "--create-namespace"][..],
                &values,
            ]
            .concat(),
        )?
        .await??;
    let mut pair = Pair::builder()
        .reconciler(false)
        .installed_rights()
        .start(control_plane)
        .await?;
    let registered = async || {
        eventually(SOON, "the registrations", || async {
            let there = cluster.registrations().await?;
            if there.len() >= 2 {
                Ok(Some(()))
            } else {
                bail!("{there:?}")
            }
        })
        .await
    };
    registered().await?;

    its_job_fails(&cluster).await?;
    let refused = cluster.helm(&["upgrade", "mimeo", CHART])?.await?;
    let refused = format!("{:?}", refused.err().context("it was upgraded")?);
    ensure!(refused.contains("has no deployed releases"), "{refused}");
    let history = cluster.helm(&["history", "mimeo"])?.await??;
    ensure!(history.contains("uninstalling"), "{history}");
    cluster.helm(&["rollback", "mimeo", "1"])?.await??;
    registered().await?;
    let policy = "validatingadmissionpolicybinding/mimeo-guarded-labels";
    kubectl(control_plane, ["get", policy])?;
    cluster
        .helm(&[&["upgrade", "mimeo", CHART][..], &values].concat())?
        .await??;

    its_job_fails(&cluster).await?;
    pair.stop_webhooks().await?;
    cluster
        .helm(&["uninstall", "mimeo", "--no-hooks"])?
        .await??;
    let left = [
        "clusterrolebinding,clusterrole",
        "job,serviceaccount,networkpolicy",
    ];
    ensure!(
        kubectl(
            control_plane,
            ["get", left[1], "--namespace", NAMESPACE, "--output=name"]
        )?
        .contains("mimeo")
    );
    for kinds in left {
        kubectl(
            control_plane,
            [
                "delete",
                kinds,
                "mimeo-unregister",
                "--namespace",
                NAMESPACE,
                "--ignore-not-found",
            ],
        )?;
    }
    cluster.nothing_is_left().await?;
    cluster.helm(&["install", "mimeo", CHART])?.await?.map(drop)
}

/// Uninstalls. The Job fails after it has done its work.
async fn its_job_fails(cluster: &Cluster) -> Result<()> {
    let uninstalling = cluster.helm(&["uninstall", "mimeo"])?;
    let jobs: Api<Job> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    // Helm first deletes a Job that failed before.
    let fresh = |job: &Job| {
        job.status
            .as_ref()
            .is_none_or(|status| status.conditions.is_none())
    };
    let job = wait_for(jobs.clone(), "mimeo-unregister".into(), fresh).await?;
    cluster
        .run(&serde_json::to_value(job.spec)?["template"]["spec"])
        .await?;
    assert_eq!(cluster.registrations().await?, Vec::<String>::new());
    ended(&jobs, ["FailureTarget", "Failed"], "failed").await?;
    let told = format!("{:?}", uninstalling.await?.err().context("it succeeded")?);
    ensure!(told.contains("mimeo-unregister"), "{told}");
    Ok(())
}

/// Writes the status that the Job controller would write.
async fn ended(jobs: &Api<Job>, conditions: [&str; 2], pods: &str) -> Result<()> {
    let now = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    let conditions =
        conditions.map(|name| json!({"type": name, "status": "True", "lastTransitionTime": now}));
    let mut status = json!({"startTime": now, "conditions": conditions, pods: 1});
    if pods == "succeeded" {
        status["completionTime"] = json!(now);
    }
    let write = async |status: &Value| {
        let status = Patch::Merge(json!({"status": status}));
        let params = PatchParams::default();
        jobs.patch_status("mimeo-unregister", &params, &status)
            .await
    };
    match write(&status).await {
        // In older versions of Kubernetes only Jobs with a success policy may have the first
        // condition.
        Err(kube::Error::Api(refused)) if refused.code == 422 => {
            status["conditions"] = json!([conditions[1]]);
            write(&status).await?;
        }
        outcome => _ = outcome?,
    }
    Ok(())
}

/// Copies and namespaces stay unchanged, as `docs/how-to/uninstall.md` says.
#[tokio::test]
async fn what_one_file_installed_is_removed_by_it_and_copies_stay() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let cluster = Cluster {
        client: control_plane.client().await?,
        control_plane,
    };
    let Cluster {
        control_plane,
        client,
    } = &cluster;
    let file = format!("{CHART}/../install.yaml");
    kubectl(control_plane, ["apply", "-f", &file])?;
    // The webhook writes these configurations itself, here with an address in place of the Service
    // in the file.
    kubectl(
        control_plane,
        [
            "delete",
            "mutatingwebhookconfiguration,validatingwebhookconfiguration",
            "mimeo",
        ],
    )?;
    let mut pair = Pair::builder()
        .installed_rights()
        .start(control_plane)
        .await?;
    create_namespace(client, "platform", &[]).await?;
    create_secret(client, "platform", "registry", &[("token", "one")]).await?;
    rule("registry")
        .secret("platform", "registry")
        .target(json!({"namespaces": ["team-*"]}))
        .create(client)
        .await?;
    create_namespace(client, "team-a", &[]).await?;
    cluster.holds("team-a", "one").await?;
    let policy = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "labels"},
        "spec": {
            "match": {"kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"a": "b"}}},
            "transform": {"labels": {"set": {"c": "d"}}},
        },
    });
    create(client, "transformpolicies", &policy).await?;
    eventually(SOON, "all registrations", || async {
        let there = cluster.registrations().await?;
        if there.len() == 3 {
            Ok(Some(()))
        } else {
            bail!("{there:?}")
        }
    })
    .await?;

    // The programs continue to run meanwhile, as pods do for a while.
    kubectl(control_plane, ["delete", "--ignore-not-found", "-f", &file])?;
    cluster.nothing_is_left().await?;
    eventually(SOON, "no registration", || async {
        let left = cluster.registrations().await?;
        if left.is_empty() {
            Ok(Some(()))
        } else {
            bail!("{left:?}")
        }
    })
    .await?;
    pair.stop_webhooks().await?;
    assert_eq!(cluster.registrations().await?, Vec::<String>::new());
    create_namespace(client, "team-b", &[]).await?;
    cluster.holds("team-a", "one").await
}

/// Copies the chart without two fields in the CRD of rules, as an older chart.
fn older_chart(folder: &Path) -> Result<String> {
    let chart = folder.join("chart");
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .arg(CHART)
        .arg(&chart)
        .status()?;
    ensure!(copied.success());
    let file = chart.join("files/crds/clusterreplications.yaml");
    let mut definition: Value = serde_yaml::from_str(&std::fs::read_to_string(&file)?)?;
    let fields = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    for (parent, field) in [("spec", "suspend"), ("status", "plan")] {
        let fields = fields[parent]["properties"]
            .as_object_mut()
            .context("no fields")?;
        fields.remove(field).context(field)?;
    }
    std::fs::write(&file, serde_yaml::to_string(&definition)?)?;
    Ok(chart.display().to_string())
}

/// True if the CRD of rules has the field that the older CRD lacks.
async fn knows_suspend(client: &Client) -> Result<bool> {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let definition = serde_json::to_value(definitions.get("clusterreplications.mimeo.dev").await?)?;
    let suspend = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/suspend";
    Ok(definition.pointer(suspend).is_some())
}

/// Helm never upgrades CRDs in its folder `crds`. So the CRDs of this chart are among its
/// templates.
#[tokio::test]
async fn an_upgrade_brings_newer_definitions_and_neither_it_nor_a_rollback_loses_a_rule()
-> Result<()> {
    let folder = tempfile::tempdir()?;
    let older = older_chart(folder.path())?;
    let control_plane = ControlPlane::start().await?;
    let cluster = Cluster {
        client: control_plane.client().await?,
        control_plane,
    };
    let Cluster {
        control_plane,
        client,
    } = &cluster;
    cluster
        .helm(&["install", "mimeo", &older, "--create-namespace"])?
        .await??;
    ensure!(!knows_suspend(client).await?, "it isn't older");
    create_namespace(client, "platform", &[]).await?;
    create_secret(client, "platform", "registry", &[("token", "one")]).await?;
    // This rule is stored while no webhook runs yet.
    rule("early")
        .secret("platform", "registry")
        .target(json!({"namespaces": ["none"]}))
        .create(client)
        .await?;
    let rules: Api<ClusterReplication> = Api::all(client.clone());
    let early = rules.get("early").await?;

    cluster.helm(&["upgrade", "mimeo", CHART])?.await??;
    ensure!(knows_suspend(client).await?, "the definition is as it was");
    let still = rules.get("early").await?;
    assert_eq!(
        (still.metadata.uid, still.spec),
        (early.metadata.uid, early.spec)
    );
    let mut pair = Pair::builder()
        .installed_rights()
        .start(control_plane)
        .await?;
    rule("registry")
        .secret("platform", "registry")
        .target(json!({"namespaces": ["team-*"]}))
        .create(client)
        .await?;
    create_namespace(client, "team-a", &[]).await?;
    cluster.holds("team-a", "one").await?;
    let copies: Api<Secret> = Api::namespaced(client.clone(), "team-a");
    let (before, copy) = (rules.get("registry").await?, copies.get("registry").await?);

    cluster.helm(&["rollback", "mimeo", "1"])?.await??;
    ensure!(!knows_suspend(client).await?, "the definition is as it was");
    let sources: Api<Secret> = Api::namespaced(client.clone(), "platform");
    merge(
        &sources,
        "registry",
        json!({"stringData": {"token": "two"}}),
    )
    .await?;
    cluster.holds("team-a", "two").await?;
    let after = rules.get("registry").await?;
    assert_eq!(
        (after.metadata.uid, after.spec),
        (before.metadata.uid, before.spec)
    );
    assert_eq!(
        copies.get("registry").await?.metadata.uid,
        copy.metadata.uid,
        "it was recreated"
    );

    cluster.helm(&["upgrade", "mimeo", CHART])?.await??;
    eventually(SOON, "the rule to be suspended", || async {
        let suspended = merge(&rules, "registry", json!({"spec": {"suspend": true}})).await?;
        Ok(suspended.spec.copies.suspend.then_some(()))
    })
    .await?;
    pair.reconciler
        .as_mut()
        .context("no reconciler")?
        .ready()
        .await
}

/// The certificate may come from another tool, and later from Mimeo again. The Secret is part of no
/// release, so no release deletes it.
#[tokio::test]
async fn certificates_of_another_origin_take_the_right_away_and_leave_the_secret() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let cluster = Cluster {
        client: control_plane.client().await?,
        control_plane,
    };
    let Cluster {
        control_plane,
        client,
    } = &cluster;
    for file in definitions_of_others()? {
        let file = file.display().to_string();
        kubectl(
            control_plane,
            ["apply", "--server-side", "-f", file.as_str()],
        )?;
    }
    cluster
        .helm(&["install", "mimeo", CHART, "--create-namespace"])?
        .await??;
    let mut pair = Pair::builder()
        .reconciler(false)
        .installed_rights()
        .start(control_plane)
        .await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let hooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let (secret, hook) = (
        secrets.get("mimeo-webhook-tls").await?,
        hooks.get("mimeo").await?,
    );
    pair.stop_webhooks().await?;

    let cert_manager = [
        "webhook.tls.mode=CertManager",
        "webhook.tls.secretName=theirs",
    ]
    .join(",");
    let mounted = ["webhook.tls.mode=Secret", "webhook.tls.secretName=mine"].join(",");
    for (values, mounts, certificates, may) in [
        (cert_manager.as_str(), Some("theirs"), 2, "no"),
        (&mounted, Some("mine"), 0, "no"),
        ("webhook.tls.mode=SelfManaged", None, 0, "yes"),
    ] {
        cluster
            .helm(&["upgrade", "mimeo", CHART, "--set", values])?
            .await??;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        let deployment = serde_json::to_value(deployments.get("mimeo-webhook").await?)?;
        let mounted = deployment
            .pointer("/spec/template/spec/volumes/0/secret/secretName")
            .and_then(Value::as_str);
        assert_eq!(mounted, mounts, "{values}");
        let listed = kubectl(
            control_plane,
            ["get", "certificates", "-n", NAMESPACE, "--output=name"],
        )?;
        assert_eq!(listed.lines().count(), certificates, "{values}: {listed}");
        let account = format!("--as=system:serviceaccount:{NAMESPACE}:mimeo-webhook");
        let question = [
            "auth",
            "can-i",
            "update",
            "secrets/mimeo-webhook-tls",
            "-n",
            NAMESPACE,
            &account,
        ];
        eventually(SOON, format!("{values}: {may}"), || async {
            // kubectl exits with 1 if the answer is no.
            let told = control_plane.kubectl()?.args(question).output()?.stdout;
            Ok((String::from_utf8_lossy(&told).trim() == may).then_some(()))
        })
        .await?;
    }
    pair.start_webhook().await?;
    let bundle = |hook: MutatingWebhookConfiguration| {
        hook.webhooks
            .unwrap_or_default()
            .into_iter()
            .find_map(|one| one.client_config.ca_bundle)
    };
    assert_eq!(
        secrets
            .get("mimeo-webhook-tls")
            .await?
            .metadata
            .resource_version,
        secret.metadata.resource_version
    );
    assert_eq!(bundle(hooks.get("mimeo").await?), bundle(hook));
    Ok(())
}

async fn it_verifies_itself(cluster: &Cluster) -> Result<()> {
    let testing = cluster.helm(&["test", "mimeo"])?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let pod = wait_for(pods.clone(), "mimeo-verify".into(), |_: &Pod| true).await?;
    cluster.run(&serde_json::to_value(pod.spec)?).await?;
    let succeeded = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    pods.patch_status("mimeo-verify", &PatchParams::default(), &succeeded)
        .await?;
    let told = testing.await??;
    ensure!(told.contains("Succeeded"), "{told}");
    Ok(())
}

/// An upgrade and a rollback leave the configurations that the webhook keeps in the cluster, even
/// with another failure policy than the release's.
async fn it_is_upgraded_and_rolled_back(cluster: &Cluster) -> Result<()> {
    let before = cluster.registrations().await?;
    ensure!(!before.is_empty());
    cluster
        .helm(&["upgrade", "mimeo", CHART, "--set", "webhook.replicas=3"])?
        .await??;
    assert_eq!(cluster.webhook_replicas().await?, Some(3));
    cluster.helm(&["rollback", "mimeo", "1"])?.await??;
    assert_eq!(cluster.webhook_replicas().await?, Some(2));
    assert_eq!(cluster.registrations().await?, before);
    Ok(())
}

async fn it_is_uninstalled(cluster: &Cluster) -> Result<()> {
    let client = &cluster.client;
    let uninstalling = cluster.helm(&["uninstall", "mimeo"])?;
    let jobs: Api<Job> = Api::namespaced(client.clone(), NAMESPACE);
    let job = wait_for(jobs.clone(), "mimeo-unregister".into(), |_: &Job| true).await?;
    let spec = serde_json::to_value(job.spec)?;
    let pod = &spec["template"]["spec"];
    cluster.run(pod).await?;
    // The Job deleted the registrations, not the garbage collector: the owner still exists. The
    // running webhook has lost the permission to write them again.
    assert_eq!(cluster.registrations().await?, Vec::<String>::new());
    Api::<ClusterRole>::all(client.clone())
        .get("mimeo-webhook")
        .await?;
    ensure!(
        Api::<ClusterRoleBinding>::all(client.clone())
            .get_opt("mimeo-webhook")
            .await?
            .is_none(),
        "it may"
    );
    ended(&jobs, ["SuccessCriteriaMet", "Complete"], "succeeded").await?;
    assert_eq!(
        kubectl(
            &cluster.control_plane,
            ["get", "validatingadmissionpolicybindings", "--output=name"]
        )?,
        ""
    );
    uninstalling.await??;
    cluster.nothing_is_left().await
}
