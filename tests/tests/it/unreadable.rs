//! Permissions that Mimeo lacks or has lost. If Mimeo may not read a rule's kind, the rule reports
//! it and nothing waits for it. The rule works once Mimeo has the permission. An unreadable object
//! is never treated as deleted.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    core::v1::{Pod, PodTemplate, Secret},
    rbac::v1::ClusterRole,
};
use kube::{Api, Client, api::PostParams};
use mimeo_api::ClusterReplication;
use mimeo_tests::{
    ControlPlane, Pair, create_namespace, create_secret, eventually,
    scenario::{SOON, any, apply, delete, kubectl, merge, put, rule, value, wait_for},
    traffic::{create_patiently, pod, stubbornly},
};
use serde_json::{Value, json};

#[tokio::test]
async fn a_source_that_mimeo_may_not_read_is_told_and_waited_for_by_nobody() -> Result<()> {
    let control_plane = ControlPlane::builder().start().await?;
    let mut pair = Pair::builder()
        .shipped_rights()
        .start(&control_plane)
        .await?;
    let client = control_plane.client().await?;
    create_namespace(&client, "platform", &[]).await?;
    let template = json!({
        "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "base"},
        "template": {"spec": {"containers": [{"name": "main", "image": "example.com/app:1"}]}},
    });
    let templates: Api<PodTemplate> = Api::namespaced(client.clone(), "platform");
    templates
        .create(&PostParams::default(), &serde_json::from_value(template)?)
        .await?;
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "templates"},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "PodTemplate", "namespace": "platform", "name": "base"}],
            "targets": [{"namespaces": ["team-*"]}], "podGate": "Required",
        },
    });
    let rules: Api<ClusterReplication> = Api::all(client.clone());
    create_patiently(&rules, &serde_json::from_value(rule)?).await?;
    let found = condition(&client, "SourcesFound", "SourceRefused").await?;
    ensure!(found.contains("may not read podtemplates"), "{found}");
    let denied = condition(&client, "Authorized", "ControllerForbidden").await?;
    let missing =
        "{apiGroups: [\"\"], resources: [podtemplates], verbs: [create, get, list, patch, watch]}";
    ensure!(denied.contains(missing), "{denied}");
    condition(&client, "Ready", "NotAuthorized").await?;
    condition(&client, "PodGateActive", "Active").await?;

    // A replica that starts now still becomes ready.
    pair.start_webhook().await?;
    create_namespace(&client, "team-a", &[]).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "team-a");
    let params = PostParams::default();
    eventually(SOON, "pods denied", || async {
        match pods.create(&params, &pod("first")).await {
            Ok(_) => bail!("a pod was admitted"),
            Err(kube::Error::Api(status))
                if status.message.contains("podGate Required): Forbidden") =>
            {
                Ok(Some(()))
            }
            Err(error) => bail!("{error}"),
        }
    })
    .await?;

    // Mimeo needs exactly the permissions in the message. With fewer, the message names the rest.
    for (name, label, verbs) in [
        (
            "templates-read",
            "mimeo.dev/aggregate-to-mimeo",
            json!(["get", "list", "watch"]),
        ),
        (
            "templates-write",
            "mimeo.dev/aggregate-to-mimeo",
            json!(["create", "patch"]),
        ),
        (
            "templates-delete",
            "mimeo.dev/aggregate-to-mimeo-reconciler",
            json!(["delete"]),
        ),
    ] {
        if name == "templates-write" {
            condition(&client, "SourcesFound", "Found").await?;
            let denied = told(
                &client,
                "Authorized",
                "ControllerForbidden",
                "may not write copies of kind PodTemplate in namespace team-a",
            )
            .await?;
            ensure!(denied.contains(missing), "{denied}");
        }
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name, "labels": {label: "true"}},
            "rules": [{"apiGroups": [""], "resources": ["podtemplates"], "verbs": verbs}],
        });
        Api::<ClusterRole>::all(client.clone())
            .create(&PostParams::default(), &serde_json::from_value(role)?)
            .await?;
    }
    condition(&client, "Ready", "Synced").await?;
    condition(&client, "Authorized", "Allowed").await?;
    let second = pod("second");
    stubbornly(|| pods.create(&params, &second)).await?;
    Ok(())
}

/// Only a deletion that a quorum read confirms leads to deletions. A 403 never counts as a
/// deletion.
#[tokio::test]
async fn rights_that_mimeo_loses_cost_no_copy() -> Result<()> {
    let control_plane = ControlPlane::builder().start().await?;
    let mut pair = Pair::builder()
        .shipped_rights()
        .start(&control_plane)
        .await?;
    let client = control_plane.client().await?;
    let copies: Api<Secret> = Api::namespaced(client.clone(), "team-a");
    create_namespace(&client, "platform", &[]).await?;
    create_namespace(&client, "team-a", &[]).await?;
    create_secret(&client, "platform", "registry", &[("token", "one")]).await?;
    // Without a grace period, a deleted source would lose its copies at once.
    let spec = rule("templates")
        .secret("platform", "registry")
        .target(json!({"namespaces": ["team-*"]}));
    let spec = spec.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 0}));
    spec.create(&client).await?;
    condition(&client, "Ready", "Synced").await?;
    let before = copies.get("registry").await?.metadata;

    // Secrets are removed from Mimeo's permissions, and Mimeo is restarted.
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let mut taken = Vec::new();
    for name in ["mimeo-copied-kinds", "mimeo-copied-kinds-delete"] {
        let role = roles.get(name).await?;
        taken.push(json!({"rules": role.rules}));
        merge(&roles, name, json!({"rules": []})).await?;
    }
    let reconciler = pair.reconciler_user().client().await?;
    eventually(SOON, "the rights to be gone", || async {
        match reconciler
            .request_text(http::Request::get("/api/v1/secrets?limit=1").body(Vec::new())?)
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(Some(())),
            answer => bail!("{:?}", answer.map(drop)),
        }
    })
    .await?;
    pair.reconciler
        .take()
        .context("no reconciler runs")?
        .program
        .stop(SOON)
        .await?;
    pair.start_reconciler().await?;
    condition(&client, "Authorized", "ControllerForbidden").await?;
    condition(&client, "Ready", "NotAuthorized").await?;
    // Meanwhile Mimeo does not see changes of the source. An edit of another rule makes it plan all
    // copies again.
    put(
        &Api::namespaced(client.clone(), "platform"),
        "registry",
        &[("token", "two")],
    )
    .await?;
    spec.clone()
        .target(json!({"namespaces": ["other"]}))
        .replace(&client)
        .await?;
    told(&client, "Authorized", "ControllerForbidden", "").await?;
    let now = copies.get("registry").await?.metadata;
    assert_eq!(
        (&now.uid, &now.resource_version),
        (&before.uid, &before.resource_version)
    );

    for (name, rules) in ["mimeo-copied-kinds", "mimeo-copied-kinds-delete"]
        .into_iter()
        .zip(taken)
    {
        merge(&roles, name, rules).await?;
    }
    let copy = wait_for(copies, "registry".into(), |copy| {
        value(copy, "token").as_deref() == Some("two")
    })
    .await?;
    assert_eq!(
        copy.metadata.uid, before.uid,
        "it is the same copy, rotated"
    );
    condition(&client, "Ready", "Synced").await?;
    Ok(())
}

#[tokio::test]
async fn a_role_that_mimeo_may_not_hand_out_is_told_and_copied_once_it_may() -> Result<()> {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"namespace": "platform", "name": "base"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "developers"}],
    });
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"namespace": "platform", "name": "base"},
        "rules": [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "patch"]}],
    });
    let control_plane = ControlPlane::builder().start().await?;
    let _pair = Pair::builder()
        .shipped_rights()
        .start(&control_plane)
        .await?;
    let client = control_plane.client().await?;
    create_namespace(&client, "platform", &[]).await?;
    create_namespace(&client, "team-a", &[]).await?;
    hand_out(
        &control_plane,
        &binding,
        json!({"resources": ["clusterroles"], "verbs": ["bind"], "resourceNames": ["view"]}),
    )
    .await?;
    let rules: Api<ClusterReplication> = Api::all(client);
    delete(&rules, "templates").await?;
    hand_out(
        &control_plane,
        &role,
        json!({"resources": ["roles"], "verbs": ["escalate"]}),
    )
    .await
}

/// Creates a source that has RBAC permissions. Grants Mimeo the RBAC rule that it needs to write
/// copies of the source.
async fn hand_out(
    control_plane: &ControlPlane,
    source: &Value,
    mut rule_told: Value,
) -> Result<()> {
    rule_told["apiGroups"] = json!(["rbac.authorization.k8s.io"]);
    let kind = source["kind"].as_str().context("no kind")?;
    let client = control_plane.client().await?;
    apply(&client, source).await?;
    let plural = format!("{}s", kind.to_lowercase());
    let give = async |name: &str, label: &str, rule: &Value| {
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name, "labels": {label: "true"}}, "rules": [rule],
        });
        apply(&client, &role).await
    };
    let verbs = |verbs: &[&str]| json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": [plural], "verbs": verbs});
    let (both, reconciler) = (
        "mimeo.dev/aggregate-to-mimeo",
        "mimeo.dev/aggregate-to-mimeo-reconciler",
    );
    give(
        &format!("copies-of-{plural}"),
        both,
        &verbs(&["get", "list", "watch", "create", "patch"]),
    )
    .await?;
    give(
        &format!("copies-of-{plural}-delete"),
        reconciler,
        &verbs(&["delete"]),
    )
    .await?;

    let rule = rule("templates").source("rbac.authorization.k8s.io/v1", kind, "platform", "base");
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(
        file.path(),
        rule.target(json!({"namespaces": ["team-*"]}))
            .object()
            .to_string(),
    )?;
    let path = file.path().display().to_string();
    eventually(SOON, "the rights on the kind itself", || async {
        let told = kubectl(control_plane, ["apply", "-f", &*path, "--dry-run=server"])?;
        ensure!(!told.contains("missing permissions"), "{told}");
        Ok(Some(()))
    })
    .await?;
    kubectl(control_plane, ["apply", "-f", &*path])?;
    let asked = |text: &str| -> Result<Value> {
        let words = format!(
            "Mimeo writes no {kind} that exceeds its own permissions unless a ClusterRole labelled \
             {both}=true has the rule "
        );
        let (_, rule) = text.split_once(&words).with_context(|| text.to_owned())?;
        let (rule, _) = rule.split_once('}').context("no end")?;
        Ok(serde_yaml::from_str(&format!("{rule}}}"))?)
    };
    let denied = told(
        &client,
        "Authorized",
        "ControllerForbidden",
        "may not write copies of kind",
    )
    .await?;
    condition(&client, "Ready", "NotAuthorized").await?;
    assert_eq!(asked(&denied)?, rule_told, "{denied}");
    give(&format!("hand-out-{plural}"), both, &asked(&denied)?).await?;
    condition(&client, "Ready", "Synced").await?;
    condition(&client, "Authorized", "Allowed").await?;
    let copy = any(
        &client,
        "rbac.authorization.k8s.io/v1",
        kind,
        Some("team-a"),
    )?
    .get("base")
    .await?
    .data;
    for part in ["roleRef", "subjects", "rules"] {
        assert_eq!(copy.get(part), source.get(part), "{part}");
    }
    Ok(())
}

/// Waits for a reason of a condition. Returns the message.
async fn condition(client: &Client, type_: &str, reason: &str) -> Result<String> {
    told(client, type_, reason, "").await
}

/// Waits for a reason of a condition with these words in the message. Returns the message.
async fn told(client: &Client, type_: &str, reason: &str, words: &str) -> Result<String> {
    let path = "/apis/mimeo.dev/v1alpha1/clusterreplications/templates";
    eventually(SOON, format!("{type_} {reason}"), || async {
        let object: Value = client
            .request(http::Request::get(path).body(Vec::new())?)
            .await?;
        let conditions = object["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let message = |one: &Value| one["message"].as_str().unwrap_or_default().to_owned();
        let found = conditions
            .iter()
            .find(|one| one["type"] == type_ && one["reason"] == reason)
            .map(message);
        match found.filter(|message| message.contains(words)) {
            Some(message) => Ok(Some(message)),
            None => bail!("{conditions:?}"),
        }
    })
    .await
}
