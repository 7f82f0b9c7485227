//! An installation whose rights on objects are Roles in a few namespaces, as the component `restricted` says.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod, Secret},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{Api, Client, api::PostParams};
use mimeo_api::ClusterReplication;
use mimeo_tests::{
    AuditEvent, ControlPlane, NAMESPACE, Pair, create_namespace, create_secret, eventually,
    scenario::{SOON, apply, condition, delete, kubectl, merge, rule, value, wait_for, wait_gone},
};
use serde_json::{Value, json};

/// A kustomization as the component tells to write it, for sources in `platform`.
fn kustomization() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    // Paths have to be relative.
    let up = "../".repeat(folder.path().canonicalize()?.components().count() - 1);
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/kustomize").canonicalize()?;
    let base = format!("{up}{}", base.strip_prefix("/")?.display());
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [base, "bindings.json"], "components": [format!("{base}/restricted")],
    });
    fs::write(folder.path().join("kustomization.yaml"), kustomization.to_string())?;
    let binding = binding("platform", "mimeo-sources", &["mimeo-webhook", "mimeo-reconciler"]);
    fs::write(folder.path().join("bindings.json"), binding.to_string())?;
    Ok(folder)
}

fn binding(namespace: &str, role: &str, accounts: &[&str]) -> Value {
    let subject = |name: &&str| json!({"kind": "ServiceAccount", "namespace": NAMESPACE, "name": name});
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": accounts.iter().map(subject).collect::<Vec<_>>(),
    })
}

/// Lets Mimeo write copies into a namespace.
async fn grant(client: &Client, namespace: &str) -> Result<()> {
    apply(client, &binding(namespace, "mimeo-kinds", &["mimeo-webhook", "mimeo-reconciler"])).await?;
    apply(client, &binding(namespace, "mimeo-kinds-reconciler", &["mimeo-reconciler"])).await?;
    Ok(())
}

fn pod() -> Pod {
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    serde_json::from_value(pod).expect("a literal Pod")
}

/// What the scenario looks at.
struct Cluster {
    control_plane: ControlPlane,
    client: Client,
    rules: Api<ClusterReplication>,
}

impl Cluster {
    fn secret(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn holds(&self, namespace: &str, token: &str) -> Result<()> {
        let is = move |copy: &Secret| value(copy, "token").as_deref() == Some(token);
        wait_for(self.secret(namespace), "registry".into(), is).await.map(drop)
    }

    async fn says(&self, name: &str, type_: &str, is: impl Fn(&Condition) -> bool) -> Result<()> {
        let is = |rule: &ClusterReplication| {
            rule.status.as_ref().and_then(|status| condition(status, type_)).is_some_and(&is)
        };
        wait_for(self.rules.clone(), name.into(), is).await.map(drop)
    }
}

#[tokio::test]
async fn with_roles_in_a_few_namespaces_all_is_done_there_and_nothing_asked_elsewhere() -> Result<()> {
    let folder = kustomization()?;
    let control_plane = ControlPlane::builder().audit(true).start().await?;
    let client = control_plane.client().await?;
    for name in ["platform", "team-a", "team-c", "elsewhere"] {
        create_namespace(&client, name, &[]).await?;
    }
    create_secret(&client, "platform", "registry", &[("token", "one")]).await?;
    grant(&client, "team-a").await?;
    let mark = control_plane.audit_mark().await?;
    let limits = ["--source-namespaces", "platform", "--target-namespaces", "team-a,team-b", "--kinds", "Secret"];
    let pair = Pair::builder().rights_of(folder.path()).webhook_args(limits);
    let pair = pair.reconciler_args(limits).reconciler_args(["--deletion-delay", "1s"]);
    // Before the pair: it ends after it, which is searched at its end.
    let cluster = Cluster { control_plane, rules: Api::all(client.clone()), client };
    let _pair = pair.start(&cluster.control_plane).await?;

    let pull = rule("pull").secret("platform", "registry").target(json!({"namespaces": ["team-*"]}));
    pull.set("barrier", json!("Required")).create(&cluster.client).await?;
    cluster.holds("team-a", "one").await?;
    the_role_for_a_new_namespace_may_come_later(&cluster).await?;
    merge(&cluster.secret("platform"), "registry", json!({"stringData": {"token": "two"}})).await?;
    cluster.holds("team-b", "two").await?;
    cluster.holds("team-a", "two").await?;
    merge(&cluster.secret("team-a"), "registry", json!({"data": {"token": null}})).await?;
    cluster.holds("team-a", "two").await?;
    ensure!(cluster.secret("team-c").get_opt("registry").await?.is_none(), "out of reach");
    what_is_out_of_reach_is_said(&cluster, &folder.path().join("rule.json")).await?;
    all_is_tidied_up(&cluster).await?;

    let asked = cluster.control_plane.audit_since(&mark).await?;
    let asked = asked.iter().filter(|event| event.user.contains("mimeo-system:mimeo-"));
    let objects = asked.clone().filter(|event| matches!(event.resource.as_str(), "secrets" | "configmaps"));
    let places = ["platform", "team-a", "team-b", NAMESPACE];
    let strayed: Vec<_> = objects.filter(|event| !places.contains(&event.namespace.as_str())).collect();
    ensure!(strayed.is_empty(), "{strayed:#?}");
    let denied: Vec<_> = asked.filter(|event| event.code == 403 && event.namespace != "team-b").collect();
    ensure!(denied.is_empty(), "{denied:#?}");
    Ok(())
}

/// A namespace in reach that Mimeo has no Role in: nothing waits there, and all comes once the Role does.
async fn the_role_for_a_new_namespace_may_come_later(cluster: &Cluster) -> Result<()> {
    let client = &cluster.client;
    create_namespace(client, "team-b", &[]).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "team-b");
    eventually(SOON, "the pod to be admitted", || async {
        pods.create(&PostParams::default(), &pod()).await.context("held").map(Some)
    })
    .await?;
    ensure!(cluster.secret("team-b").get_opt("registry").await?.is_none());
    let told = "in namespace team-b: a Role there must have the rule {apiGroups: [\"\"]";
    cluster
        .says("pull", "Authorized", |one| {
            one.reason == "ControllerForbidden" && one.message.contains(told) && !one.message.contains("team-a")
        })
        .await?;
    let before = cluster.control_plane.audit_mark().await?;
    grant(client, "team-b").await?;
    cluster.holds("team-b", "one").await?;
    cluster.says("pull", "Ready", |one| one.status == "True" && one.message.contains("all 2 copies")).await?;
    let after = cluster.control_plane.audit_since(&before).await?;
    let watches = |event: &AuditEvent| event.verb == "watch" && event.namespace == "team-b";
    ensure!(after.iter().any(|event| watches(event) && event.resource == "secrets"), "it is not watched");
    Ok(())
}

/// At once, to the rule's author, and later in its status.
async fn what_is_out_of_reach_is_said(cluster: &Cluster, file: &Path) -> Result<()> {
    let away = rule("away").secret("elsewhere", "registry").target(json!({"namespaces": ["team-a"]})).named("other");
    fs::write(file, away.object().to_string())?;
    let told = kubectl(&cluster.control_plane, ["apply", "-f", &file.display().to_string()])?;
    let warned = "Warning: Mimeo: source v1/Secret/elsewhere/registry: ";
    ensure!(told.contains(warned) && told.contains("--source-namespaces"), "{told}");
    cluster
        .says("away", "SourcesFound", |one| {
            one.reason == "SourceRefused" && one.message.contains("--source-namespaces")
        })
        .await?;
    delete(&cluster.rules, "away").await
}

/// The rule's end, and that of the kind's note: copies are looked for in these namespaces alone.
async fn all_is_tidied_up(cluster: &Cluster) -> Result<()> {
    delete(&cluster.rules, "pull").await?;
    wait_gone(cluster.secret("team-a"), "registry").await?;
    wait_gone(cluster.secret("team-b"), "registry").await?;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    eventually(SOON, "the kind's note to go", || async {
        let noted = maps.get("mimeo-kinds").await?.data.unwrap_or_default();
        if noted.is_empty() { Ok(Some(())) } else { bail!("{noted:?}") }
    })
    .await
}
