//! `kubectl mimeo check`: each part of an installation that fails is named with its fix.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::Secret,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, api::DeleteParams};
use mimeo_tests::{
    ControlPlane, Pair, User, eventually,
    scenario::{SOON, apply, kubectl, rule},
};
use serde_json::{Value, json};

use super::run;
use crate::stages::SHIPPED as STAGE;

/// The exit code and the JSON of `kubectl mimeo check`.
fn check(control_plane: &ControlPlane, user: Option<&User>, args: &[&str]) -> Result<(i32, Value)> {
    let args: Vec<&str> = ["check", "-o", "json"]
        .iter()
        .chain(args)
        .copied()
        .collect();
    let output = run(control_plane, user, &args)?;
    Ok((output.code, output.json()?))
}

/// One check of an answer.
#[track_caller]
fn item<'a>(answer: &'a Value, check: &str) -> Result<&'a Value> {
    let checks = answer["checks"].as_array().context("no checks")?;
    let mut checks = checks.iter();
    let found = checks.find(|item| item["check"] == check);
    found.with_context(|| format!("no {check} in {answer:#}"))
}

#[track_caller]
fn is(answer: &Value, check: &str, result: &str, words: &str) -> Result<()> {
    let item = item(answer, check)?;
    ensure!(item["result"] == result, "{item:#}");
    ensure!(item.to_string().contains(words), "{words}: {item:#}");
    Ok(())
}

#[tokio::test]
async fn an_installation_that_works_passes_every_check() -> Result<()> {
    let scene = STAGE.scene("check").await?;
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    let control_plane = &scene.setting.control_plane;
    let (_, answer) = check(control_plane, None, &[])?;
    for kind in [
        "clusterreplications",
        "replications",
        "replicationgrants",
        "transformpolicies",
    ] {
        is(
            &answer,
            &format!("CRD {kind}.mimeo.dev"),
            "ok",
            "v1alpha1 is served",
        )?;
    }
    is(&answer, "Webhook registration", "ok", "all hooks")?;
    is(&answer, "Webhook certificate", "ok", "valid until 20")?;
    is(&answer, "Serving certificate", "ok", "valid until 20")?;
    is(&answer, "Webhook reached", "ok", "dry run")?;
    is(&answer, "Strict mode", "ok", "off: ")?;
    is(&answer, "Reconciler leader", "ok", "reconciler-")?;
    is(&answer, "Webhook replicas", "ok", "webhook-")?;
    is(&answer, "Watches", "ok", "have seen")?;
    is(&answer, "Permissions on Secret", "ok", "may read")?;
    // The test has no nodes, so there are no Deployments.
    is(
        &answer,
        "Deployment mimeo-webhook",
        "warning",
        "outside of the cluster",
    )?;

    let table = run(control_plane, None, &["check"])?.stdout;
    let rows: Vec<&str> = table.lines().collect();
    let words: Vec<&str> = rows[0].split_whitespace().collect();
    assert_eq!(words, ["CHECK", "RESULT", "MESSAGE"], "{table}");
    assert!(
        rows[1].starts_with("CRD clusterreplications.mimeo.dev"),
        "{table}"
    );
    let yaml = run(control_plane, None, &["check", "-o", "yaml"])?.stdout;
    assert!(yaml.starts_with("checks:\n- check: CRD"), "{yaml}");
    // Other scenes may have rules that need more permissions.
    Ok(())
}

/// Ends programs and deletes registrations, so it needs a control plane of its own.
#[tokio::test]
async fn each_fault_of_an_installation_is_named() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let (code, answer) = check(&control_plane, None, &[])?;
    assert_eq!(code, 1, "{answer:#}");
    is(
        &answer,
        "Namespace mimeo-system",
        "failed",
        "--mimeo-namespace",
    )?;
    is(
        &answer,
        "CRD replications.mimeo.dev",
        "failed",
        "manifests/crds",
    )?;
    is(
        &answer,
        "Webhook registration",
        "failed",
        "no webhook configurations",
    )?;
    is(&answer, "Reconciler leader", "failed", "no replica leads")?;

    let mut pair = Pair::builder().shipped_rights();
    pair = pair.webhook_args(["--namespaces-failure-policy", "Fail"]);
    let mut pair = pair.start(&control_plane).await?;
    let client = control_plane.client().await?;
    let (code, answer) = check(&control_plane, None, &[])?;
    assert_eq!(code, 0, "{answer:#}");
    is(&answer, "Strict mode", "ok", "on: ")?;
    is(&answer, "Permissions", "ok", "no rules")?;

    for program in ["mimeo-webhook", "mimeo-reconciler"] {
        let labels = json!({"app.kubernetes.io/name": program});
        let containers = json!([{"name": "c", "image": "localhost/none"}]);
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"namespace": "mimeo-system", "name": program},
            "spec": {
                "replicas": 2, "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"serviceAccountName": program, "containers": containers},
                },
            },
        });
        apply(&client, &deployment).await?;
    }
    let (_, answer) = check(&control_plane, None, &[])?;
    is(
        &answer,
        "Deployment mimeo-webhook",
        "failed",
        "0 of 2 replicas are ready",
    )?;

    // A kind for which Mimeo has no permissions, and one that is not served.
    let from = |api_version: &str, kind: &str| {
        rule(&kind.to_lowercase())
            .source(api_version, kind, "mimeo-system", "one")
            .target(json!({"namespaces": ["default"]}))
    };
    from("networking.k8s.io/v1", "NetworkPolicy")
        .create(&client)
        .await?;
    from("example.com/v1", "Gadget").create(&client).await?;
    let (code, answer) = check(&control_plane, None, &[])?;
    assert_eq!(code, 1);
    is(
        &answer,
        "Permissions on NetworkPolicy",
        "failed",
        "a ClusterRole labelled mimeo.dev/aggregate-to-mimeo=true must have the rule {apiGroups: \
         [networking.k8s.io], resources: [networkpolicies]",
    )?;
    is(
        &answer,
        "Kind example.com/v1/Gadget",
        "warning",
        "install its CRD",
    )?;

    pair.stop_webhooks().await?;
    let secrets = Api::<Secret>::namespaced(client.clone(), "mimeo-system");
    secrets
        .delete("mimeo-webhook-tls", &DeleteParams::default())
        .await?;
    let (code, answer) = check(&control_plane, None, &[])?;
    assert_eq!(code, 1);
    is(
        &answer,
        "Serving certificate",
        "failed",
        "Secret mimeo-system/mimeo-webhook-tls does not exist",
    )?;
    is(&answer, "Webhook replicas", "failed", "no replica is alive")?;
    is(
        &answer,
        "Webhook reached",
        "failed",
        "failed calling webhook",
    )?;

    let delete_params = DeleteParams::default();
    let hooks = Api::<MutatingWebhookConfiguration>::all(client.clone());
    hooks.delete("mimeo", &delete_params).await?;
    let (_, answer) = check(&control_plane, None, &[])?;
    is(
        &answer,
        "Webhook registration",
        "failed",
        "namespaces.mimeo.dev, pods.mimeo.dev",
    )?;
    let hooks = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    hooks.delete("mimeo", &delete_params).await?;
    eventually(SOON, "the API server asks no webhook", || async {
        let (_, answer) = check(&control_plane, None, &[])?;
        is(
            &answer,
            "Webhook reached",
            "failed",
            "without asking the webhook",
        )?;
        Ok(Some(()))
    })
    .await?;

    // An older CRD, which lacks a field.
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    let name = "transformpolicies.mimeo.dev";
    let mut crd = serde_json::to_value(crds.get(name).await?)?;
    let spec = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let fields = spec["properties"].as_object_mut().context("no fields")?;
    fields.remove("failurePolicy").context("no such field")?;
    crds.replace(
        name,
        &kube::api::PostParams::default(),
        &serde_json::from_value(crd)?,
    )
    .await?;
    let (_, answer) = check(&control_plane, None, &[])?;
    is(
        &answer,
        &format!("CRD {name}"),
        "failed",
        "the CRD is older than this program",
    )?;
    Ok(())
}

#[tokio::test]
async fn a_user_without_permissions_gets_unknown_results() -> Result<()> {
    let scene = STAGE.scene("check-tenant").await?;
    let control_plane = &scene.setting.control_plane;
    let user = control_plane.user(&scene.tag, &[])?;
    let (code, answer) = check(control_plane, Some(&user), &[])?;
    assert_eq!(code, 2, "{answer:#}");
    let words = "Whether the CRD has all fields is unknown";
    let item = item(&answer, "CRD replications.mimeo.dev")?;
    assert!(item.to_string().contains(words), "{item:#}");
    is(
        &answer,
        "Webhook reached",
        "unknown",
        "may create ClusterReplications",
    )?;
    is(
        &answer,
        "Webhook certificate",
        "unknown",
        "you have no permission",
    )?;
    is(&answer, "Permissions", "unknown", "can't list namespaces")?;
    let (code, answer) = check(control_plane, Some(&user), &["-n", &scene.home])?;
    assert_eq!(code, 2, "{answer:#}");
    is(&answer, "Permissions", "unknown", "no rule could be read")?;
    let notes = answer["notes"].to_string();
    assert!(notes.contains("You can't list Replications"), "{answer:#}");
    // Reads rules and namespaces, and may not ask about the permissions of others.
    scene.secret("registry", &[("token", "one")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .create(&scene.client)
        .await?;
    let role = [
        "--verb=get,list",
        "--resource=namespaces,clusterreplications.mimeo.dev",
    ];
    let create = ["create", "clusterrole", &scene.tag];
    kubectl(control_plane, create.iter().chain(&role))?;
    let to = format!("--clusterrole={}", scene.tag);
    let create = [
        "create",
        "clusterrolebinding",
        &scene.tag,
        &to,
        "--user",
        &scene.tag,
    ];
    kubectl(control_plane, create)?;
    eventually(SOON, "the permission to read rules", || async {
        let (_, answer) = check(control_plane, Some(&user), &[])?;
        is(
            &answer,
            "Permissions on Secret",
            "unknown",
            "subjectaccessreviews",
        )?;
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_is_an_error() -> Result<()> {
    let scene = STAGE.scene("check-wrong").await?;
    let control_plane = &scene.setting.control_plane;
    let output = run(
        control_plane,
        None,
        &["check", "--server", "https://127.0.0.1:9"],
    )?;
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.contains("can't reach the cluster"),
        "{}",
        output.stderr
    );
    let output = run(control_plane, None, &["check", "--no-such-flag"])?;
    assert_eq!(output.code, 2);
    Ok(())
}
