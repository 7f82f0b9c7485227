//! After its removal, Mimeo leaves nothing that needs attention.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube::{
    Api,
    api::{ListParams, ObjectMeta, PostParams},
};
use mimeo_node_tests::Mimeo;
use mimeo_tests::{
    create_namespace,
    scenario::{any, of, rule, wait_condition},
    unique,
};
use serde_json::json;

use crate::people::{PULL_SECRET, People, gated, refused};

/// The cluster-scoped kinds of an installation's objects.
const KINDS: [(&str, &str); 11] = [
    (
        "admissionregistration.k8s.io/v1",
        "MutatingWebhookConfiguration",
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicy",
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
    ),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema"),
    (
        "flowcontrol.apiserver.k8s.io/v1",
        "PriorityLevelConfiguration",
    ),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("v1", "Namespace"),
    ("scheduling.k8s.io/v1", "PriorityClass"),
];

#[tokio::test]
async fn removed_while_it_is_used_it_leaves_copies_and_nothing_else() -> Result<()> {
    let mimeo = Mimeo::kustomized(&json!({"components": ["guarded-writes"]})).await?;
    let people = People::settle(&mimeo.client, "removed").await?;
    let names = people.move_in_together(20).await?;
    // This namespace still has the pending label when Mimeo is removed. Its pods wait for a source
    // that never exists.
    let waiting = unique("waiting");
    let required = rule(&waiting)
        .secret(people.home(), "never")
        .to_label("people", &waiting);
    required
        .set("podGate", json!("Required"))
        .create(&mimeo.client)
        .await?;
    wait_condition(&mimeo.client, &waiting, ["PodGateActive", "True", "Active"]).await?;
    let marked = unique(&people.tag);
    create_namespace(&mimeo.client, &marked, &[("people", &waiting)]).await?;
    let refusal = refused(&mimeo.client, &marked).await?;
    ensure!(refusal.contains("pods.mimeo.dev"), "{refusal}");
    mimeo.delete().await?;

    for (api_version, kind) in KINDS {
        let left = any(&mimeo.client, api_version, kind, None)?
            .list_metadata(&ListParams::default())
            .await?;
        let names: Vec<_> = left
            .items
            .into_iter()
            .filter_map(|object| object.metadata.name)
            .collect();
        let ours: Vec<_> = names.iter().filter(|name| name.contains("mimeo")).collect();
        ensure!(ours.is_empty(), "{kind}: {ours:?} are left");
    }
    nothing_is_held_up(&mimeo).await?;
    for name in &names {
        let copy = of::<Secret>(&mimeo.client, name)
            .get(PULL_SECRET)
            .await
            .context("a copy is gone")?;
        let ObjectMeta {
            finalizers,
            owner_references,
            ..
        } = copy.metadata;
        ensure!(
            finalizers.is_none() && owner_references.is_none(),
            "{finalizers:?} {owner_references:?}"
        );
    }
    // Namespaces with copies can be deleted like any other. Users can create and use new ones.
    people
        .run_an_idle_pod(&people.namespace().await?, "app")
        .await?;
    of::<Pod>(&mimeo.client, &marked)
        .create(&PostParams::default(), &gated()?)
        .await
        .context("it is still closed")?;
    people.leave_namespaces().await?;
    let namespaces = Api::<Namespace>::all(mimeo.client.clone())
        .list_metadata(&ListParams::default())
        .await?;
    ensure!(
        namespaces
            .items
            .iter()
            .all(|namespace| namespace.metadata.deletion_timestamp.is_none()),
        "one is stuck"
    );
    Ok(())
}

/// Checks that no object has a finalizer of Mimeo's, and that no namespace has any finalizer in its
/// metadata. No object of Mimeo's is still being deleted.
async fn nothing_is_held_up(mimeo: &Mimeo) -> Result<()> {
    let kinds = mimeo
        .node
        .kubectl(["api-resources", "--verbs=list", "--output=name"])
        .await?;
    let kinds: Vec<&str> = kinds.lines().collect();
    // The contents are left out.
    let fields = "{.kind}/{.metadata.name}:{.metadata.finalizers}{.metadata.deletionTimestamp}";
    let output = format!("--output=jsonpath={{range .items[*]}}{fields}{{\"\\n\"}}{{end}}");
    let all = mimeo
        .node
        .kubectl(["get", &kinds.join(","), "--all-namespaces", &output])
        .await?;
    ensure!(all.lines().count() > 100, "{all}");
    let ours = |line: &&str| line.contains("mimeo") || line.starts_with("Namespace/");
    let held: Vec<&str> = all
        .lines()
        .filter(ours)
        .filter(|line| !line.ends_with(':'))
        .collect();
    ensure!(held.is_empty(), "{held:?}");
    Ok(())
}
