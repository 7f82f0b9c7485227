//! The permissions in the manifests are enough for all work of the two programs: the API server
//! denies them nothing.

use std::fmt::Debug;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Secret},
    events::v1::Event,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use mimeo_api::{ClusterReplication, TransformPolicy};
use mimeo_tests::{
    ControlPlane, Pair, create_namespace, create_secret, eventually, never_permitted,
    scenario::{SOON, wait_gone},
    traffic::create_patiently,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

#[tokio::test]
async fn the_shipped_rights_are_enough_for_everything() -> Result<()> {
    let control_plane = ControlPlane::builder().audit(true).start().await?;
    let mark = control_plane.audit_mark().await?;
    // Mimeo collects losses for one second instead of ten, because this test waits for it.
    let builder = Pair::builder()
        .webhooks(2)
        .shipped_rights()
        .reconciler_args(["--deletion-delay", "1s"]);
    let mut pair = builder.start(&control_plane).await?;
    let client = control_plane.client().await?;
    platform(&client).await?;
    create_namespace(&client, "team-old", &[]).await?;

    // One rule with both kinds of source, and a policy. They use discovery, both configurations,
    // the statuses and the ConfigMap of kinds.
    let rules: Api<ClusterReplication> = Api::all(client.clone());
    let rule = serde_json::from_value(json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "rights"},
        "spec": {
            "sources": [
                {"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "registry"},
                {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "platform", "name": "settings"},
            ],
            "targets": [{"namespaces": ["team-*"]}], "podGate": "Required",
            "retentionPolicy": {"sourceGracePeriodSeconds": 0},
        },
    }))?;
    create_patiently(&rules, &rule).await?;
    let policies: Api<TransformPolicy> = Api::all(client.clone());
    let policy = serde_json::from_value(json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "rights"},
        "spec": {
            "match": {"kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"rewrite": "me"}}},
            "transform": {"labels": {"set": {"rewritten": "yes"}}},
        },
    }))?;
    create_patiently(&policies, &policy).await?;
    condition(&client, "clusterreplications", "PodGateActive").await?;
    condition(&client, "transformpolicies", "Ready").await?;
    copies(&client, &["team-old"]).await?;

    // The work of the webhook: the pending label, the copy and the removal of the label; an update;
    // and all of it by the other replica once the first has stopped.
    create_namespace(&client, "team-new", &[]).await?;
    copies(&client, &["team-new", "team-old"]).await?;
    pair.webhooks.remove(0).program.stop(SOON).await?;
    create_namespace(&client, "team-newer", &[]).await?;
    copies(&client, &["team-new", "team-newer", "team-old"]).await?;
    unmarked(&client).await?;

    // The work of the reconciler: a repair, a rotation, a deleted source, a deleted namespace, and
    // a deleted rule.
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "team-old");
    secrets.delete("registry", &DeleteParams::default()).await?;
    copies(&client, &["team-new", "team-newer", "team-old"]).await?;
    let sources: Api<Secret> = Api::namespaced(client.clone(), "platform");
    let edit = json!({"stringData": {"token": "2"}});
    sources
        .patch("registry", &PatchParams::default(), &Patch::Merge(edit))
        .await?;
    eventually(SOON, "the rotation", || async {
        let data = secrets.get("registry").await?.data.unwrap_or_default();
        Ok(data
            .get("token")
            .is_some_and(|token| token.0 == b"2")
            .then_some(()))
    })
    .await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .delete("team-newer", &DeleteParams::default())
        .await?;
    copies(&client, &["team-new", "team-old"]).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "platform");
    maps.delete("settings", &DeleteParams::default()).await?;
    copies_of::<ConfigMap>(&client, &[]).await?;
    copies_of::<Secret>(&client, &["team-new", "team-old"]).await?;
    told(&client, "SourceGone").await?;
    namespaces
        .delete("platform", &DeleteParams::default())
        .await?;
    copies(&client, &[]).await?;
    wait_gone(namespaces, "platform").await?;
    platform(&client).await?;
    copies(&client, &["team-new", "team-old"]).await?;
    rules.delete("rights", &DeleteParams::default()).await?;
    copies(&client, &[]).await?;
    policies.delete("rights", &DeleteParams::default()).await?;

    let events = control_plane.audit_since(&mark).await?;
    let ours = events.iter().filter(|event| event.user.contains("mimeo"));
    let denied: Vec<String> = never_permitted(&ours.collect::<Vec<_>>())
        .into_iter()
        .map(|event| {
            format!(
                "{} {} {} {}/{}",
                event.user, event.verb, event.resource, event.namespace, event.name
            )
        })
        .collect();
    // Admission refuses a write into a terminating namespace. RBAC does not.
    let denied: Vec<_> = denied
        .into_iter()
        .filter(|line| !line.contains("team-newer"))
        .collect();
    ensure!(denied.is_empty(), "denied: {denied:#?}");
    Ok(())
}

async fn condition(client: &Client, plural: &str, condition: &str) -> Result<()> {
    let path = format!("/apis/mimeo.dev/v1alpha1/{plural}/rights");
    eventually(SOON, format!("{plural} {condition}"), || async {
        let object: Value = client
            .request(http::Request::get(&path).body(Vec::new())?)
            .await?;
        let conditions = object["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if conditions
            .iter()
            .any(|one| one["type"] == condition && one["status"] == "True")
        {
            return Ok(Some(()));
        }
        bail!("{conditions:?}")
    })
    .await
}

/// Creates the sources in a namespace of their own.
async fn platform(client: &Client) -> Result<()> {
    create_namespace(client, "platform", &[]).await?;
    create_secret(client, "platform", "registry", &[("token", "1")]).await?;
    let settings = json!({"metadata": {"name": "settings"}, "data": {"proxy": "none"}});
    let settings: ConfigMap = serde_json::from_value(settings)?;
    Api::namespaced(client.clone(), "platform")
        .create(&PostParams::default(), &settings)
        .await?;
    Ok(())
}

/// Waits until exactly these namespaces have both copies.
async fn copies(client: &Client, namespaces: &[&str]) -> Result<()> {
    copies_of::<Secret>(client, namespaces).await?;
    copies_of::<ConfigMap>(client, namespaces).await
}

async fn copies_of<K>(client: &Client, namespaces: &[&str]) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let all: Api<K> = Api::all(client.clone());
    eventually(
        SOON,
        format!("copies of a {} in {namespaces:?}", K::kind(&())),
        || async {
            let listed = all
                .list_metadata(
                    &ListParams::default().labels("mimeo.dev/cluster-replication=rights"),
                )
                .await?;
            let mut found: Vec<String> = listed
                .items
                .into_iter()
                .filter_map(|copy| copy.metadata.namespace)
                .collect();
            found.sort();
            if found == namespaces {
                Ok(Some(()))
            } else {
                bail!("they are in {found:?}")
            }
        },
    )
    .await
}

/// Waits for an Event about the rule.
async fn told(client: &Client, reason: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    eventually(SOON, format!("an Event {reason}"), || async {
        let told: Vec<_> = events
            .list(&ListParams::default())
            .await?
            .items
            .into_iter()
            .map(|one| one.reason)
            .collect();
        if told.iter().any(|one| one.as_deref() == Some(reason)) {
            Ok(Some(()))
        } else {
            bail!("{told:?}")
        }
    })
    .await
}

async fn unmarked(client: &Client) -> Result<()> {
    let all: Api<DynamicObject> = Api::all_with(
        client.clone(),
        &kube::core::ApiResource::erase::<Namespace>(&()),
    );
    eventually(SOON, "marks removed", || async {
        let marked = all
            .list_metadata(&ListParams::default().labels("mimeo.dev/copies"))
            .await?;
        Ok(marked.items.is_empty().then_some(()))
    })
    .await
}
