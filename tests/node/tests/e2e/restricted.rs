//! The smallest set of permissions: on objects in a few namespaces, by Roles, and on no others.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::DeleteParams;
use mimeo_node_tests::{Mimeo, Node, PROGRAMS, Program};
use mimeo_tests::{
    NAMESPACE, create_namespace, create_secret,
    scenario::{merge, of, relabel, rule, value, wait_condition, wait_for, wait_gone},
    traffic::{create_account, create_patiently, precedes},
};
use serde_json::json;

use crate::people::{PULL_SECRET, gated};

#[tokio::test]
async fn with_roles_in_a_few_namespaces_both_programs_do_their_work_there() -> Result<()> {
    // The former installation may have more permissions.
    Mimeo::remove_any().await?;
    let node = Node::get().await?;
    let client = &node.client().await?;
    for name in ["vault", "tenant", "later", "outside"] {
        create_namespace(client, name, &[]).await?;
    }
    let secrets = json!({"apiGroup": "", "resource": "secrets", "kind": "Secret"});
    let mimeo = Mimeo::by_chart(&json!({
        "rbac": {"kinds": [secrets], "sourceNamespaces": ["vault"], "targetNamespaces": ["tenant", "later"]},
    }))
    .await?;
    for program in PROGRAMS {
        let account = format!("--as=system:serviceaccount:{NAMESPACE}:{}", program.name());
        for verb in ["get", "list", "watch", "create", "patch", "delete"] {
            let may = mimeo
                .node
                .kubectl(["auth", "can-i", verb, "secrets", "-n", "outside", &account])
                .await;
            ensure!(
                may.is_err_and(|no| format!("{no:#}").contains("no\n")),
                "{} may {verb} secrets",
                program.name()
            );
        }
    }

    create_secret(client, "vault", PULL_SECRET, &[("token", "one")]).await?;
    let pull = rule("few")
        .secret("vault", PULL_SECRET)
        .target(json!({"namespaces": ["tenant", "outside"]}));
    pull.create(client).await?;
    wait_condition(client, "few", ["Ready", "True", "Synced"]).await?;
    let (copies, sources) = (
        of::<Secret>(client, "tenant"),
        of::<Secret>(client, "vault"),
    );
    let holds = |text: &'static str| {
        let is = move |copy: &Secret| value(copy, "token").as_deref() == Some(text);
        wait_for(copies.clone(), PULL_SECRET.to_owned(), is)
    };
    holds("one").await?;
    merge(
        &sources,
        PULL_SECRET,
        json!({"stringData": {"token": "two"}}),
    )
    .await?;
    holds("two").await?;
    merge(&copies, PULL_SECRET, json!({"data": {"token": null}})).await?;
    holds("two").await?;
    copies.delete(PULL_SECRET, &DeleteParams::default()).await?;
    holds("two").await?;
    ensure!(
        of::<Secret>(client, "outside")
            .get_opt(PULL_SECRET)
            .await?
            .is_none(),
        "a copy out of reach"
    );
    the_webhook_alone_fills_a_namespace_before_its_pods(&mimeo).await?;
    pull.delete(client).await?;
    wait_gone(copies, PULL_SECRET).await?;
    mimeo.delete().await?;
    mimeo
        .node
        .kubectl(["delete", "namespace", "vault", "tenant", "later", "outside"])
        .await
        .map(drop)
}

/// Labels an existing namespace so that a rule matches it, and creates a pod at once. No reconciler
/// runs that could help.
async fn the_webhook_alone_fills_a_namespace_before_its_pods(mimeo: &Mimeo) -> Result<()> {
    let (client, copies) = (&mimeo.client, of::<Secret>(&mimeo.client, "later"));
    let labelled = rule("labelled")
        .secret("vault", PULL_SECRET)
        .to_label("few", "later");
    labelled
        .set("podGate", json!("Required"))
        .create(client)
        .await?;
    wait_condition(client, "labelled", ["PodGateActive", "True", "Active"]).await?;
    mimeo.scale(Program::Reconciler, 0).await?;
    create_account(client, "later").await?;
    ensure!(
        copies.get_opt(PULL_SECRET).await?.is_none(),
        "a copy where none is wanted"
    );
    relabel(client, "later", "few", Some("later")).await?;
    let (pod, _) = create_patiently(&of::<Pod>(client, "later"), &gated()?)
        .await
        .context("a pod was refused")?;
    let copy = copies
        .get(PULL_SECRET)
        .await
        .context("a miss: no copy where a pod is")?;
    ensure!(
        precedes(&copy, &pod)?,
        "a miss: the pod was there before the copy"
    );
    ensure!(
        value(&copy, "token").as_deref() == Some("two"),
        "another copy"
    );
    mimeo.scale(Program::Reconciler, 2).await?;
    rule("labelled").delete(client).await?;
    wait_gone(copies, PULL_SECRET).await
}
