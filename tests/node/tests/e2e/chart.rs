//! The chart: installation, verification, an upgrade and a rollback under load, and removal. Also
//! the features that its values switch on.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::Secret,
};
use kube::{Api, api::ListParams};
use mimeo_node_tests::{Mimeo, Node, Program};
use mimeo_tests::{
    NAMESPACE, create_namespace, eventually,
    scenario::{SOON, of},
};
use serde_json::{Value, json};

use crate::{
    doors::{Door, token},
    people::{PULL_SECRET, People},
};

const AT_ONCE: usize = 4;

#[tokio::test]
async fn a_release_is_installed_upgraded_rolled_back_and_uninstalled_under_load_and_nobody_notices()
-> Result<()> {
    // The names of the objects are fixed, so another installation would be in the way.
    Mimeo::remove_any().await?;
    // With this policy, the API server refuses a namespace if the webhook does not answer.
    // Otherwise the test would not notice it.
    let strict = |mut values: Value| {
        values["webhook"]["namespacesFailurePolicy"] = json!("Fail");
        values
    };
    let mimeo = Mimeo::by_chart(&strict(json!({}))).await?;
    let people = People::settle(&mimeo.client, "release").await?;
    mimeo.helm(&["test", "mimeo"]).await?;

    let both = async {
        Mimeo::by_chart(&strict(
            json!({"log": {"level": "debug"}, "webhook": {"replicas": 3}}),
        ))
        .await?;
        mimeo.helm(&["rollback", "mimeo", "1"]).await?;
        mimeo.ready().await
    };
    let (names, ()) = people.move_in_during(0, AT_ONCE, both).await?;
    people.rotate("second").await?;
    people.have(&names, "second").await?;

    // After the removal, the CRDs stay, and so do the rules and copies. Nothing that stays holds
    // anything up. A namespace that is created meanwhile may or may not get a copy, and admits its
    // pods.
    people
        .come_in_during(AT_ONCE, mimeo.helm(&["uninstall", "mimeo", "--wait"]))
        .await?;
    let all = ListParams::default();
    let mutating = Api::<MutatingWebhookConfiguration>::all(mimeo.client.clone())
        .list(&all)
        .await?
        .items
        .len();
    let validating = Api::<ValidatingWebhookConfiguration>::all(mimeo.client.clone())
        .list(&all)
        .await?
        .items
        .len();
    ensure!(
        mutating + validating == 0,
        "{mutating} and {validating} registrations are left"
    );
    for name in &names {
        of::<Secret>(&mimeo.client, name).get(PULL_SECRET).await?;
    }
    people
        .run_an_idle_pod(&people.namespace().await?, "app")
        .await?;

    // A new installation continues with the existing rules.
    let mimeo = Mimeo::by_chart(&json!({})).await?;
    people.in_force().await?;
    people.rotate("third").await?;
    people.have(&names, "third").await?;
    people.leave().await?;
    mimeo.delete().await
}

#[tokio::test]
async fn with_its_switches_on_a_release_runs_where_only_restricted_pods_may() -> Result<()> {
    Mimeo::remove_any().await?;
    let client = Node::get().await?.client().await?;
    create_namespace(
        &client,
        NAMESPACE,
        &[("pod-security.kubernetes.io/enforce", "restricted")],
    )
    .await?;
    let mimeo = Mimeo::by_chart(&json!({
        "log": {"format": "json"},
        "webhook": {"namespacesFailurePolicy": "Fail", "port": 10250, "opsPort": 8081},
        "reconciler": {"ui": true, "opsPort": 8082},
        "rbac": {"aggregate": {"edit": true, "admin": true}},
        "guardedLabels": {"enabled": true},
        "networkPolicy": {"enabled": true},
        "metrics": {"auth": "Token", "dashboard": {"enabled": true}},
    }))
    .await?;
    // The logs come from its pods and from those of its Jobs.
    mimeo.helm(&["test", "mimeo"]).await?;
    let people = People::settle(&client, "switches").await?;
    let names = people.move_in_together(AT_ONCE).await?;
    people.rotate("second").await?;
    people.have(&names, "second").await?;
    let log = mimeo
        .node
        .kubectl(["-n", NAMESPACE, "logs", "deployment/mimeo-reconciler"])
        .await?;
    for line in log.lines() {
        serde_json::from_str::<Value>(line).with_context(|| format!("no JSON: {line}"))?;
    }
    whom_a_role_is_bound_to_may_read(&mimeo, &people).await?;
    people.leave().await?;
    mimeo.delete().await
}

/// Reads metrics and the page's data with the permissions that the pages in docs/how-to give to
/// Prometheus.
async fn whom_a_role_is_bound_to_may_read(mimeo: &Mimeo, people: &People) -> Result<()> {
    let (monitoring, elsewhere) = (
        format!("{}-monitoring", people.tag),
        format!("{}-elsewhere", people.tag),
    );
    for namespace in [&monitoring, &elsewhere] {
        create_namespace(&mimeo.client, namespace, &[]).await?;
    }
    let (reader, stranger) = (
        token(mimeo, &monitoring).await?,
        token(mimeo, &elsewhere).await?,
    );
    let roles = ["mimeo-metrics", "mimeo-page"];
    for name in roles {
        let (role, account) = (
            format!("--clusterrole={name}"),
            format!("--serviceaccount={monitoring}:default"),
        );
        mimeo
            .node
            .kubectl(["create", "clusterrolebinding", name, &role, &account])
            .await?;
    }
    let of_both = [
        (Program::Webhook, 8081, "/metrics"),
        (Program::Reconciler, 8082, "/metrics"),
    ];
    for (program, port, path) in
        of_both
            .into_iter()
            .chain([(Program::Reconciler, 8082, "/ui/stream")])
    {
        for pod in mimeo.pods(program).await? {
            let status = async |token| Door::of(&pod, "https", port, token)?.status(path).await;
            // Authorizers see a binding a moment after it is stored.
            eventually(
                SOON,
                format!("{} to show {path}", program.name()),
                || async {
                    let answer = status(Some(&*reader)).await?;
                    ensure!(answer == 200, "{answer}");
                    Ok(Some(()))
                },
            )
            .await?;
            let others = [
                status(Some("none.of.theirs")).await?,
                status(None).await?,
                status(Some(&*stranger)).await?,
            ];
            ensure!(
                others == [401, 401, 403],
                "{path} of {} answers {others:?}",
                program.name()
            );
        }
    }
    mimeo
        .node
        .kubectl(["delete", "clusterrolebinding"].into_iter().chain(roles))
        .await
        .map(drop)
}

#[tokio::test]
async fn on_the_node_s_own_network_it_does_the_same() -> Result<()> {
    Mimeo::remove_any().await?;
    // One replica of each program, because the node has each port only once.
    let mimeo = Mimeo::by_chart(&json!({
        "webhook": {"replicas": 1, "hostNetwork": true, "port": 9443, "opsPort": 9080},
        "reconciler": {"replicas": 1, "hostNetwork": true, "opsPort": 9081},
    }))
    .await?;
    let people = People::settle(&mimeo.client, "host").await?;
    let names = people.move_in_together(AT_ONCE).await?;
    people.rotate("second").await?;
    people.have(&names, "second").await?;
    people.leave().await?;
    mimeo.delete().await
}
