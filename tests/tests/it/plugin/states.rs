//! `kubectl mimeo why` in the states that other tests of the plugin don't reach: each is named with
//! the next step.

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use mimeo_tests::{
    eventually,
    scenario::{SOON, Scene, apply, create, delete, of, relabel, rule, wait_for},
    tenant::{Tenant, copying},
};
use serde_json::json;

use super::{says, wait_state};
use crate::stages::{PLAIN as STAGE, SHIPPED};

const REGISTRY: &str = "registry";

/// A policy of the cluster that denies Secrets of this name.
async fn deny(scene: &Scene<'_>, name: &str) -> Result<()> {
    let api = "admissionregistration.k8s.io/v1";
    let resources = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}]);
    let policy = json!({
        "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": resources},
            "validations": [{"expression": format!("object.metadata.name != '{name}'"), "message": "no such Secrets here"}],
        },
    });
    apply(&scene.client, &policy).await?;
    let binding = json!({
        "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    apply(&scene.client, &binding).await?;
    // The API server enforces a policy some time after it was written.
    let secrets = scene.secrets(&scene.home);
    let probe: Secret = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    let params = kube::api::PostParams {
        dry_run: true,
        ..Default::default()
    };
    eventually(SOON, "the policy", || async {
        Ok(secrets.create(&params, &probe).await.is_err().then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_refusal_by_the_api_server_is_told_as_it_was_answered() -> Result<()> {
    let scene = STAGE.scene("states-refused").await?;
    let namespace = scene.namespace().await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let denied = format!("{}-denied", scene.tag);
    deny(&scene, &denied).await?;
    rule(&denied)
        .secret(&scene.home, REGISTRY)
        .to_label("scene", &scene.tag)
        .named(&denied)
        .create(&scene.client)
        .await?;
    let object = format!("{namespace}/secret/{denied}");
    let id = format!("ClusterReplication/{denied}");
    let answer = wait_state(&scene, &object, &id, "AdmissionDenied").await?;
    says(&answer, "fix", "exempt Mimeo's copies");

    let invalid = format!("{}-invalid", scene.tag);
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": invalid},
        "spec": {"podSelector": {}, "policyTypes": ["Sideways"]},
    });
    rule(&invalid)
        .inline(&policy)
        .to_label("scene", &scene.tag)
        .create(&scene.client)
        .await?;
    let object = format!("{namespace}/networkpolicy/{invalid}");
    let id = format!("ClusterReplication/{invalid}");
    let answer = wait_state(&scene, &object, &id, "Invalid").await?;
    says(&answer, "message", "Sideways");
    says(&answer, "fix", "fix the source or the transform");
    Ok(())
}

#[tokio::test]
async fn sources_that_are_gone_or_refused_and_copies_that_are_left_are_told() -> Result<()> {
    let scene = STAGE.scene("states-sources").await?;
    let namespace = scene.namespace().await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let retained = json!({"whenUnmatched": "Retain", "sourceGracePeriodSeconds": 3600});
    scene
        .rule()
        .secret(&scene.home, REGISTRY)
        .set("retentionPolicy", retained)
        .create(&scene.client)
        .await?;
    scene.wait_synced(&scene.tag).await?;
    let object = format!("{namespace}/secret/{REGISTRY}");
    let id = format!("ClusterReplication/{}", scene.tag);
    delete(&scene.secrets(&scene.home), REGISTRY).await?;
    let answer = wait_state(&scene, &object, &id, "InGracePeriod").await?;
    says(&answer, "fix", "create the source");

    relabel(&scene.client, &namespace, "scene", None).await?;
    let answer = wait_state(&scene, &object, &id, "Retained").await?;
    says(&answer, "message", "doesn't select namespace");
    says(
        &answer,
        "fix",
        &format!("kubectl -n {namespace} delete secret {REGISTRY}"),
    );

    // Nobody can copy the token of a service account.
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "token", "namespace": scene.home, "annotations": {"kubernetes.io/service-account.name": "default"}},
    });
    let accounts = of::<k8s_openapi::api::core::v1::ServiceAccount>(&scene.client, &scene.home);
    wait_for(accounts, "default".into(), |_| true).await?;
    apply(&scene.client, &token).await?;
    relabel(&scene.client, &namespace, "scene", Some(&scene.tag)).await?;
    let second = format!("{}-token", scene.tag);
    rule(&second)
        .secret(&scene.home, "token")
        .to_label("scene", &scene.tag)
        .create(&scene.client)
        .await?;
    let object = format!("{namespace}/secret/token");
    let id = format!("ClusterReplication/{second}");
    let answer = wait_state(&scene, &object, &id, "SourceRefused").await?;
    says(&answer, "fix", "kubectl edit clusterreplication/");
    Ok(())
}

#[tokio::test]
async fn a_missing_grant_and_a_missing_permission_of_mimeo_are_told() -> Result<()> {
    let scene = SHIPPED.scene("states-rights").await?;
    let (owner, tenant) = (Tenant::editor(&scene).await?, Tenant::editor(&scene).await?);
    owner.secret("db", "one").await?;
    let spec = copying(Some(&owner.home), "db", &[&tenant.home]);
    tenant.writes("replications", "db", &spec).await?;
    let object = format!("{}/secret/db", tenant.home);
    let id = format!("Replication/{}/db", tenant.home);
    let answer = wait_state(&scene, &object, &id, "NotGranted").await?;
    says(&answer, "message", &owner.home);
    says(
        &answer,
        "fix",
        &format!("kubectl mimeo grant {}/db", tenant.home),
    );

    let namespace = scene.namespace().await?;
    let name = format!("{}-templates", scene.tag);
    let source =
        json!({"apiVersion": "v1", "kind": "PodTemplate", "namespace": scene.home, "name": "base"});
    let rule = rule(&name)
        .set("sources", json!([source]))
        .to_label("scene", &scene.tag);
    create(&scene.client, "clusterreplications", &rule.object()).await?;
    let object = format!("{namespace}/podtemplate/base");
    let id = format!("ClusterReplication/{name}");
    let answer = wait_state(&scene, &object, &id, "ControllerForbidden").await?;
    says(&answer, "fix", "mimeo.dev/aggregate-to-mimeo");
    Ok(())
}
