//! The manifests as users install them. The API server accepts them, the programs accept their
//! flags, and the webhook has the permissions that it needs on its configurations.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration, coordination::v1::Lease, core::v1::Pod,
};
use kube::{Api, api::PostParams};
use mimeo_tests::{
    ControlPlane, MALLOC, NAMESPACE, Pair, Program, create_namespace, eventually,
    scenario::{SOON, bare_kubectl, delete, kubectl, of, wait_for, wait_gone},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    reference::{PROGRAMS, flags},
    repository::workspace,
};

fn run(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("failed to run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the objects of a folder, as kustomize composes them.
async fn rendered(folder: &Path) -> Result<Vec<Value>> {
    parsed(&run(bare_kubectl().await?.arg("kustomize").arg(folder))?)
}

/// Writes a kustomization with the base and the components, as an operator would.
fn with_components() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    // Kustomize accepts only relative paths.
    let up = "../".repeat(folder.path().canonicalize()?.components().count() - 1);
    let base = workspace().join("manifests/kustomize").canonicalize()?;
    let base = format!("{up}{}", base.strip_prefix("/")?.display());
    let components = ["strict", "guarded-labels", "guarded-writes", "restricted"]
        .map(|name| format!("{base}/{name}"));
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [base], "components": components,
    });
    fs::write(
        folder.path().join("kustomization.yaml"),
        kustomization.to_string(),
    )?;
    Ok(folder)
}

#[tokio::test]
async fn an_api_server_takes_the_manifests_and_the_pods_that_follow() -> Result<()> {
    let control_plane = ControlPlane::builder().start().await?;
    let base = workspace().join("manifests/kustomize");
    let kubectl = |args: &[&str], folder: &Path| -> Result<String> {
        run(control_plane
            .kubectl()?
            .args(["apply", "--validate=strict"])
            .args(args)
            .arg("-k")
            .arg(folder))
    };
    kubectl(&[], &base)?;
    let again = kubectl(&["--dry-run=server"], &base)?;
    // kubectl replaces the selector of a PodDisruptionBudget each time.
    let changed = again
        .lines()
        .filter(|line| !line.contains(" unchanged") && !line.contains("poddisruptionbudget"));
    let changed: Vec<&str> = changed.collect();
    ensure!(changed.is_empty(), "applied again, it changes {changed:?}");
    kubectl(&["--dry-run=server"], with_components()?.path())?;
    // The single file has the same objects.
    let file = workspace().join("manifests/install.yaml");
    run(control_plane
        .kubectl()?
        .args(["apply", "--validate=strict", "--dry-run=server", "-f"])
        .arg(file))?;

    // The checks of Pod Security, quota and priority class act on pods, not on Deployments.
    let pods: Api<Pod> = Api::namespaced(control_plane.client().await?, NAMESPACE);
    for deployment in rendered(&base)
        .await?
        .into_iter()
        .filter(|object| object["kind"] == "Deployment")
    {
        let mut pod = deployment["spec"]["template"].clone();
        // The tests of the webhook's memory start it with the same setting.
        let (name, value) = MALLOC;
        let env = pod["spec"]["containers"][0]["env"].as_array();
        let setting = json!({"name": name, "value": value});
        ensure!(env.is_some_and(|env| env.contains(&setting)), "{pod:#}");
        pod["metadata"]["generateName"] = "pod-".into();
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        pods.create(&params, &serde_json::from_value(pod)?).await?;
    }
    restricted_afterwards_it_keeps_rights_until_they_are_taken(&control_plane).await
}

/// The documents warn of this in docs/how-to/least-privilege.md and say how to proceed.
async fn restricted_afterwards_it_keeps_rights_until_they_are_taken(
    control_plane: &ControlPlane,
) -> Result<()> {
    kubectl(
        control_plane,
        [
            "apply",
            "-k",
            &with_components()?.path().display().to_string(),
        ],
    )?;
    // kubectl exits with 1 if the answer is no.
    let may = || {
        let account = format!("--as=system:serviceaccount:{NAMESPACE}:mimeo-reconciler");
        let output = control_plane
            .kubectl()?
            .args(["auth", "can-i", "get", "secrets", "-n", "default", &account])
            .output()?;
        anyhow::Ok(String::from_utf8_lossy(&output.stdout).trim() == "yes")
    };
    eventually(SOON, "the rights that it has had", || async {
        Ok(may()?.then_some(()))
    })
    .await?;
    let operations = fs::read_to_string(workspace().join("docs/how-to/least-privilege.md"))?;
    let command = operations
        .lines()
        .find_map(|line| line.strip_prefix("    kubectl delete clusterrolebinding "));
    let command = format!(
        "delete clusterrolebinding {}",
        command.context("no command")?
    );
    kubectl(control_plane, command.split_whitespace())?;
    eventually(SOON, "them to be gone", || async {
        Ok((!may()?).then_some(()))
    })
    .await
}

#[tokio::test]
async fn strict_is_said_by_flag_and_manifest_alike() -> Result<()> {
    let objects = rendered(with_components()?.path()).await?;
    let find = |kind: &str, name: &str| {
        let found = objects
            .iter()
            .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        found.with_context(|| format!("no {kind} {name}"))
    };
    let hook = &find("MutatingWebhookConfiguration", "mimeo")?["webhooks"][0];
    assert_eq!(
        (&hook["name"], &hook["failurePolicy"]),
        (&json!("namespaces.mimeo.dev"), &json!("Fail"))
    );
    let container =
        &find("Deployment", "mimeo-webhook")?["spec"]["template"]["spec"]["containers"][0];
    let env = container["env"].as_array().context("no env")?;
    ensure!(
        env.contains(&json!({"name": "MIMEO_NAMESPACES_FAILURE_POLICY", "value": "Fail"})),
        "{env:?}"
    );
    Ok(())
}

fn parsed(text: &str) -> Result<Vec<Value>> {
    serde_yaml::Deserializer::from_str(text)
        .map(|object| Ok(Value::deserialize(object)?))
        .collect()
}

/// Returns everything that is rendered: the golden file of each set of values, the single file, and
/// the kustomization with its components.
async fn everything_rendered() -> Result<Vec<(String, Vec<Value>)>> {
    let mut all = vec![(
        "kustomization".to_owned(),
        rendered(with_components()?.path()).await?,
    )];
    let mut files = vec![workspace().join("manifests/install.yaml")];
    for entry in fs::read_dir(workspace().join("tests/tests/it/chart"))? {
        let path = entry?.path();
        // The files `NAME.values.yaml` are left out.
        let golden = path.extension().is_some_and(|known| known == "yaml")
            && path.with_extension("").extension().is_none();
        files.extend(golden.then_some(path));
    }
    for file in files {
        all.push((
            file.display().to_string(),
            parsed(&fs::read_to_string(&file)?)?,
        ));
    }
    Ok(all)
}

/// A container of Mimeo's own: its program, arguments and environment.
struct Told {
    program: String,
    errand: Vec<String>,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Told {
    fn of(container: &Value) -> Result<Self> {
        let mut command: Vec<String> = serde_json::from_value(container["command"].clone())?;
        let program = command.remove(0).trim_start_matches('/').to_owned();
        let args =
            serde_json::from_value::<Option<_>>(container["args"].clone())?.unwrap_or_default();
        let env = container["env"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|variable| {
                // A node would fill in a name.
                let value = variable["value"].as_str().unwrap_or("pod-0");
                Ok((
                    variable["name"].as_str().context("no name")?.to_owned(),
                    value.to_owned(),
                ))
            });
        Ok(Self {
            program,
            errand: command,
            args,
            env: env.collect::<Result<_>>()?,
        })
    }

    fn program(&self) -> Program {
        let program = Program::new(&self.program)
            .args(self.args.clone())
            .args(self.errand.clone())
            .quiet();
        self.env
            .iter()
            .fold(program, |program, (name, value)| program.env(name, value))
    }
}

/// Returns the containers of an object, if it has a pod template.
fn containers(object: &Value) -> Result<Vec<Told>> {
    let of =
        ["/spec/template/spec/containers", "/spec/containers"].map(|path| object.pointer(path));
    of.into_iter()
        .flatten()
        .filter_map(Value::as_array)
        .flatten()
        .map(Told::of)
        .collect()
}

#[tokio::test]
async fn the_programs_take_whatever_a_manifest_tells_them() -> Result<()> {
    let mut flags_of = BTreeMap::new();
    for program in PROGRAMS {
        flags_of.insert(program.to_owned(), flags(program).await?);
    }
    let mut started = BTreeMap::<String, usize>::new();
    for (file, objects) in everything_rendered().await? {
        for object in &objects {
            for told in containers(object)? {
                let flags = flags_of
                    .get(&told.program)
                    .with_context(|| format!("{file}: {}", told.program))?;
                // A program does not report an unknown variable.
                for (variable, _) in &told.env {
                    let of_libc = variable == MALLOC.0;
                    ensure!(
                        of_libc || flags.values().any(|flag| flag.variable == *variable),
                        "{file}: {variable} is no variable"
                    );
                }
                // A program checks all flags before it looks for the cluster, which does not exist
                // here.
                let mut running = told.program().env("KUBECONFIG", "/nowhere").start()?;
                let status = running.wait(SOON).await?;
                let log = running.log()?;
                let lost = log.contains("failed to load the kubeconfig");
                ensure!(
                    status.code() == Some(1) && lost,
                    "{file}: {} ended with {status}: {log}",
                    told.program
                );
                *started.entry(told.program).or_default() += 1;
            }
        }
    }
    // Eight manifests have both programs. The webhook's program also runs the Jobs.
    ensure!(
        started["mimeo-reconciler"] >= 8 && started["mimeo-webhook"] > 16,
        "{started:?}"
    );
    Ok(())
}

/// Even with valid flags, a program may fail to start, for example if a folder is not mounted.
#[tokio::test]
async fn the_programs_begin_as_the_chart_tells_them_with_every_switch_turned() -> Result<()> {
    let control_plane = ControlPlane::builder()
        .controller_manager(false)
        .start()
        .await?;
    let crds = workspace().join("manifests/crds").display().to_string();
    kubectl(&control_plane, ["apply", "-k", &crds])?;
    create_namespace(&control_plane.client().await?, NAMESPACE, &[]).await?;
    let everything = parsed(&fs::read_to_string(
        workspace().join("tests/tests/it/chart/everything.yaml"),
    )?)?;
    let deployments: Vec<&Value> = everything
        .iter()
        .filter(|object| object["kind"] == "Deployment")
        .collect();
    assert_eq!(deployments.len(), 2);
    for mut told in deployments
        .into_iter()
        .map(containers)
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
    {
        // On this machine another program may use the ports.
        for arg in told.args.iter_mut().filter(|arg| arg.contains("listen=")) {
            let port = arg.rsplit(':').next().context("no port")?.to_owned();
            *arg = arg.replace(&format!(":{port}"), ":0");
        }
        let kubeconfig = control_plane.kubeconfig().display().to_string();
        let running = told
            .program()
            .env("KUBECONFIG", kubeconfig)
            .args(["--namespace", NAMESPACE])
            .start()?;
        eventually(SOON, format!("{} to be ready", told.program), || async {
            let log = running.log()?;
            if log.contains("\"message\":\"ready\"") {
                Ok(Some(()))
            } else {
                bail!("{log}")
            }
        })
        .await?;
    }
    Ok(())
}

/// No process is left to delete the Lease, and a Lease that stays looks like a replica. The program
/// stands for the Pod's container, and gets the values that a node would fill in.
#[tokio::test]
async fn the_lease_of_a_killed_replica_goes_with_its_pod() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    let crds = workspace().join("manifests/crds").display().to_string();
    kubectl(&control_plane, ["apply", "-k", &crds])?;
    create_namespace(&client, NAMESPACE, &[]).await?;
    let pods = of::<Pod>(&client, NAMESPACE);
    let pod = json!({"metadata": {"name": "replica"}, "spec": {"containers": [{"name": "webhook", "image": "mimeo"}]}});
    let pod = pods
        .create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;

    let defaults = parsed(&fs::read_to_string(
        workspace().join("tests/tests/it/chart/defaults.yaml"),
    )?)?;
    let is_webhook = |object: &&Value| {
        object["kind"] == "Deployment" && object["metadata"]["name"] == "mimeo-webhook"
    };
    let told = containers(defaults.iter().find(is_webhook).context("no Deployment")?)?.remove(0);
    let mut program = Program::new(told.program).env(
        "KUBECONFIG",
        control_plane.kubeconfig().display().to_string(),
    );
    for (variable, value) in told.env {
        let value = match &*variable {
            "POD_NAME" => "replica".to_owned(),
            "POD_UID" => pod.metadata.uid.clone().context("no uid")?,
            _ => value,
        };
        program = program.env(variable, value);
    }
    let anywhere = [
        "--listen=127.0.0.1:0",
        "--ops-listen=127.0.0.1:0",
        "--namespace",
        NAMESPACE,
    ];
    let mut replica = program.args(anywhere).start()?;
    let leases = of::<Lease>(&client, NAMESPACE);
    wait_for(
        leases.clone(),
        "mimeo-webhook-replica".into(),
        |_: &Lease| true,
    )
    .await?;
    replica.kill()?;
    replica.wait(SOON).await?;
    delete(&pods, "replica").await?;
    wait_gone(leases, "mimeo-webhook-replica").await
}

#[tokio::test]
async fn the_hooks_get_their_owner_where_that_takes_the_right_to_delete_them() -> Result<()> {
    let plugins = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement";
    let control_plane = ControlPlane::builder()
        .api_server_arg(plugins)
        .start()
        .await?;
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(control_plane.client().await?);
    // The configuration is installed before the webhook starts, as by the manifests. So the webhook
    // updates it.
    let installed = serde_json::from_value(json!({"metadata": {"name": "mimeo"}}))?;
    mutating.create(&PostParams::default(), &installed).await?;
    let _pair = Pair::builder()
        .reconciler(false)
        .shipped_rights()
        .start(&control_plane)
        .await?;
    eventually(SOON, "the owner", || async {
        let owners = mutating
            .get("mimeo")
            .await?
            .metadata
            .owner_references
            .unwrap_or_default();
        if owners.iter().any(|owner| owner.name == "mimeo-webhook") {
            Ok(Some(()))
        } else {
            bail!("{owners:?}")
        }
    })
    .await
}
