//! Removed, it leaves nothing that anybody has to know of.

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

/// Cluster-scoped kinds of which an installation has objects.
const KINDS: [(&str, &str); 9] = [
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema"),
    ("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("v1", "Namespace"),
    ("scheduling.k8s.io/v1", "PriorityClass"),
];

#[tokio::test]
async fn removed_while_it_is_used_it_leaves_copies_and_nothing_else() -> Result<()> {
    let mimeo = Mimeo::by_kustomize().await?;
    let people = People::settle(&mimeo.client, "removed").await?;
    let names = people.move_in_together(20).await?;
    // One that is still marked when everything goes: its pods wait for a source that never comes.
    let waiting = unique("waiting");
    let required = rule(&waiting).secret(people.home(), "never").to_label("people", &waiting);
    required.set("barrier", json!("Required")).create(&mimeo.client).await?;
    wait_condition(&mimeo.client, &waiting, ["BarrierActive", "True", "Active"]).await?;
    let marked = unique(&people.tag);
    create_namespace(&mimeo.client, &marked, &[("people", &waiting)]).await?;
    let refusal = refused(&mimeo.client, &marked).await?;
    ensure!(refusal.contains("barrier.mimeo.dev"), "{refusal}");
    mimeo.delete().await?;

    for (api_version, kind) in KINDS {
        let left = any(&mimeo.client, api_version, kind, None)?.list_metadata(&ListParams::default()).await?;
        let names: Vec<_> = left.items.into_iter().filter_map(|object| object.metadata.name).collect();
        let ours: Vec<_> = names.iter().filter(|name| name.contains("mimeo")).collect();
        ensure!(ours.is_empty(), "{kind}: {ours:?} are left");
    }
    let namespaces = Api::<Namespace>::all(mimeo.client.clone()).list(&ListParams::default()).await?;
    for namespace in namespaces {
        let finalizers = namespace.metadata.finalizers.unwrap_or_default();
        ensure!(finalizers.is_empty(), "{:?} has {finalizers:?}", namespace.metadata.name);
    }
    for name in &names {
        let copy = of::<Secret>(&mimeo.client, name).get(PULL_SECRET).await.context("a copy is gone")?;
        let ObjectMeta { finalizers, owner_references, .. } = copy.metadata;
        ensure!(finalizers.is_none() && owner_references.is_none(), "{finalizers:?} {owner_references:?}");
    }
    // Namespaces that it had to do with end like any other, and nothing keeps people from making new ones and using them.
    people.run_an_idle_pod(&people.namespace().await?, "app").await?;
    of::<Pod>(&mimeo.client, &marked).create(&PostParams::default(), &gated()?).await.context("it is still closed")?;
    people.leave_namespaces().await
}
