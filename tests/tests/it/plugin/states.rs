//! `kubectl mimeo why` in the states that other tests of the plugin don't reach: each is named with
//! the next step.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::{
    api::core::v1::Secret,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, api::PostParams};
use mimeo_model::names::PENDING_LABEL;
use mimeo_tests::{
    ControlPlane, Pair, Silent, create_namespace, create_secret, eventually,
    scenario::{
        SOON, Scene, Setting, any, apply, create, delete, forget_the_hooks, of, relabel, rule,
        wait_for, wait_gone,
    },
    tenant::{Tenant, copying},
};
use serde_json::{Value, json};

use super::{fix_command, run, says, shell, wait_state};
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
    let params = PostParams {
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
    let control_plane = &scene.setting.control_plane;
    let shown = shell(control_plane, fix_command(&answer)?).await?;
    ensure!(shown.contains(&denied), "{shown}");
    let bindings = any(
        &scene.client,
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
        None,
    )?;
    delete(&bindings, &denied).await?;
    wait_state(&scene, &object, &id, "Synced").await?;

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
    let edit = fix_command(&answer)?;
    let edit = format!("KUBE_EDITOR='sed -i s/Sideways/Ingress/' {edit}");
    shell(control_plane, &edit).await?;
    wait_state(&scene, &object, &id, "Synced").await?;
    Ok(())
}

/// Creates the roles that `kubectl mimeo check` names for a kind.
async fn give_permissions(scene: &Scene<'_>, kind: &str) -> Result<()> {
    let answer = run(&scene.setting.control_plane, None, &["check", "-o", "json"])?.json()?;
    let check = format!("Permissions on {kind}");
    let mut checks = answer["checks"].as_array().into_iter().flatten();
    let item = checks.find(|item| item["check"] == check);
    let message = item.and_then(|item| item["message"].as_str());
    let message = message.with_context(|| format!("{answer:#}"))?;
    let roles = message.split("a ClusterRole labelled ").skip(1);
    for (number, role) in roles.enumerate() {
        let parts = role.split_once("=true must have the rule ");
        let (label, rest) = parts.with_context(|| message.to_owned())?;
        let (rule, _) = rest.split_once('}').with_context(|| message.to_owned())?;
        let rule: Value = serde_yaml::from_str(&format!("{rule}}}"))?;
        let name = format!("{}-{number}", scene.tag);
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name, "labels": {label: "true"}}, "rules": [rule],
        });
        apply(&scene.client, &role).await?;
    }
    Ok(())
}

/// Mimeo may read the source, and not write the copy.
#[tokio::test]
async fn a_write_that_rbac_denies_to_mimeo_is_told() -> Result<()> {
    let scene = SHIPPED.scene("states-forbidden").await?;
    let namespace = scene.namespace().await?;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": scene.tag, "labels": {"mimeo.dev/aggregate-to-mimeo": "true"}},
        "rules": [{"apiGroups": ["apps"], "resources": ["controllerrevisions"], "verbs": ["get", "list", "watch"]}],
    });
    apply(&scene.client, &role).await?;
    let source = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {"name": "base", "namespace": scene.home}, "revision": 1, "data": {},
    });
    apply(&scene.client, &source).await?;
    rule(&scene.tag)
        .source("apps/v1", "ControllerRevision", &scene.home, "base")
        .to_label("scene", &scene.tag)
        .create(&scene.client)
        .await?;
    let object = format!("{namespace}/controllerrevision/base");
    let id = format!("ClusterReplication/{}", scene.tag);
    let answer = wait_state(&scene, &object, &id, "Forbidden").await?;
    says(&answer, "message", "controllerrevisions");
    says(&answer, "fix", "kubectl mimeo check");
    give_permissions(&scene, "ControllerRevision").await?;
    wait_state(&scene, &object, &id, "Synced").await?;
    Ok(())
}

/// Neither program runs, so nothing changes while the test looks.
#[tokio::test]
async fn copies_that_mimeo_has_yet_to_write_or_delete_are_told() -> Result<()> {
    let mut setting = Setting::start(ControlPlane::builder(), Pair::builder()).await?;
    let client = setting.control_plane.client().await?;
    let (tag, home, namespace, labels) = {
        let scene = setting.scene("states-at-rest").await?;
        let namespace = scene.namespace().await?;
        scene.secret(REGISTRY, &[("token", "one")]).await?;
        for name in ["stays", "leaves", "dies"] {
            rule(&format!("{}-{name}", scene.tag))
                .secret(&scene.home, REGISTRY)
                .to_label(name, &scene.tag)
                .named(name)
                .create(&scene.client)
                .await?;
        }
        let labels = ["stays", "leaves", "dies"].map(|name| (name, scene.tag.clone()));
        for (label, value) in &labels {
            relabel(&client, &namespace, label, Some(value)).await?;
            scene.wait_synced(&format!("{}-{label}", scene.tag)).await?;
        }
        (scene.tag.clone(), scene.home.clone(), namespace, labels)
    };
    let mut reconciler = setting.pair.reconciler.take().context("no reconciler")?;
    assert!(reconciler.program.stop(SOON).await?.success());
    setting.pair.stop_webhooks().await?;
    forget_the_hooks(&client).await?;
    let scene = Scene {
        setting: &setting,
        client,
        tag,
        home,
    };
    let id = |name: &str| format!("ClusterReplication/{}-{name}", scene.tag);

    // The API server may call a webhook for a moment after its registration is gone.
    eventually(SOON, "the changes", || async {
        relabel(&scene.client, &namespace, "leaves", None).await?;
        Ok(Some(()))
    })
    .await?;
    let object = format!("{namespace}/secret/leaves");
    let answer = wait_state(&scene, &object, &id("leaves"), "Unwanted").await?;
    says(&answer, "message", "leaves is not set");
    says(&answer, "fix", "kubectl mimeo check");

    rule(&format!("{}-dies", scene.tag))
        .delete(&scene.client)
        .await?;
    let object = format!("{namespace}/secret/dies");
    let answer = wait_state(&scene, &object, &id("dies"), "RuleDeleted").await?;
    says(&answer, "message", "no longer exists");
    says(
        &answer,
        "fix",
        &format!("kubectl mimeo held {}-dies", scene.tag),
    );

    // A namespace whose pods wait, and an object in the way of a second copy.
    let created = format!("{}-new", scene.tag);
    let pending = (PENDING_LABEL.to_owned(), "nonce".to_owned());
    let labels = labels
        .into_iter()
        .map(|(label, value)| (label.to_owned(), value));
    let labels: Vec<(String, String)> = labels.chain([pending]).collect();
    let labels: Vec<(&str, &str)> = labels
        .iter()
        .map(|(label, value)| (&**label, &**value))
        .collect();
    create_namespace(&scene.client, &created, &labels).await?;
    create_secret(&scene.client, &created, "leaves", &[("a", "b")]).await?;
    let object = format!("{created}/secret/stays");
    let answer = wait_state(&scene, &object, &id("stays"), "Pending").await?;
    says(&answer, "message", "Mimeo has to create the copy");
    says(&answer, "fix", "kubectl mimeo check");
    let pod = format!("{created}/pod/app");
    let answer = wait_state(&scene, &pod, &id("stays"), "PodsWait").await?;
    says(&answer, "message", "it is being written");
    says(
        &answer,
        "fix",
        &format!("kubectl mimeo why {created}/secret/stays"),
    );
    let answer = wait_state(&scene, &pod, &id("leaves"), "PodsWarned").await?;
    says(
        &answer,
        "message",
        "Conflict, an object of that name exists",
    );
    says(
        &answer,
        "fix",
        &format!("kubectl mimeo why {created}/secret/leaves"),
    );

    // The rule names a namespace that does not exist yet.
    let named = format!("{}-named", scene.tag);
    rule(&named)
        .secret(&scene.home, REGISTRY)
        .target(json!({"namespaces": [named]}))
        .create(&scene.client)
        .await?;
    let object = format!("{named}/secret/{REGISTRY}");
    let answer = wait_state(&scene, &object, &id("named"), "Pending").await?;
    says(&answer, "message", "does not exist");
    says(&answer, "fix", &format!("kubectl create namespace {named}"));
    Ok(())
}

/// The reconciler starts without the CRD of grants, so nothing crosses namespaces.
#[tokio::test]
async fn a_missing_crd_of_grants_is_told() -> Result<()> {
    let without = Pair::builder().reconciler(false);
    let mut setting = Setting::start(ControlPlane::builder(), without).await?;
    let client = setting.control_plane.client().await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    let grants = "replicationgrants.mimeo.dev";
    delete(&definitions, grants).await?;
    wait_gone(definitions, grants).await?;
    setting.pair.start_reconciler().await?;
    let scene = setting.scene("states-grants").await?;
    let tenant = Tenant::editor(&scene).await?;
    scene.secret("db", &[("password", "one")]).await?;
    let spec = copying(Some(&scene.home), "db", &[&tenant.home]);
    tenant.writes("replications", "db", &spec).await?;
    let object = format!("{}/secret/db", tenant.home);
    let id = format!("Replication/{}/db", tenant.home);
    let answer = wait_state(&scene, &object, &id, "GrantsUnknown").await?;
    says(&answer, "fix", "kubectl mimeo check");
    let check = run(&setting.control_plane, None, &["check"])?;
    let lost = format!("CRD {grants}");
    let row = check.stdout.lines().find(|row| row.starts_with(&lost));
    let row = row.context("no row")?;
    assert!(
        row.contains("failed") && row.contains("not installed"),
        "{row}"
    );
    Ok(())
}

/// A status names 20 failures. The others are no less failures.
#[tokio::test]
async fn failures_beyond_those_that_the_status_names_are_told() -> Result<()> {
    let scene = STAGE.scene("states-many").await?;
    let namespaces = scene.namespaces(22).await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let denied = format!("{}-denied", scene.tag);
    deny(&scene, &denied).await?;
    rule(&denied)
        .secret(&scene.home, REGISTRY)
        .to_label("scene", &scene.tag)
        .named(&denied)
        .create(&scene.client)
        .await?;
    scene.wait_counts(&denied, [22, 0, 22]).await?;
    let control_plane = &scene.setting.control_plane;
    let status = run(control_plane, None, &["status", &denied, "-o", "json"])?.json()?;
    assert_eq!(status["rules"][0]["failed"], 22, "{status:#}");
    let named = |state: &str| {
        let copies = status["copies"].as_array().into_iter().flatten();
        copies.filter(|copy| copy["state"] == state).count()
    };
    assert_eq!((named("AdmissionDenied"), named("Failed")), (20, 2));
    let copies = status["copies"].as_array().into_iter().flatten();
    let unnamed = copies.into_iter().find(|copy| copy["state"] == "Failed");
    let namespace = unnamed.and_then(|copy| copy["namespace"].as_str());
    let namespace = namespace.context("no copy")?;
    assert!(namespaces.iter().any(|one| one == namespace));
    let object = format!("{namespace}/secret/{denied}");
    let id = format!("ClusterReplication/{denied}");
    let answer = wait_state(&scene, &object, &id, "Failed").await?;
    says(&answer, "message", "names 20 of 22 failures");
    says(&answer, "message", "AdmissionDenied");
    says(&answer, "fix", "copy not written");
    Ok(())
}

/// The rule is stored while no webhook is called.
#[tokio::test]
async fn a_copy_that_is_too_large_or_late_and_an_invalid_rule_are_told() -> Result<()> {
    let quick = Pair::builder().reconciler_args(["--request-timeout", "2s"]);
    let mut setting = Setting::start(ControlPlane::builder(), quick).await?;
    let (client, tag, home, namespace) = {
        let scene = setting.scene("states-own").await?;
        let namespace = scene.namespace().await?;
        // The annotations of an object have at most 256 KiB. Mimeo's do not fit beside these.
        let metadata =
            json!({"name": "large", "annotations": {"note": "a".repeat((256 << 10) - 100)}});
        let secret = serde_json::from_value(json!({ "metadata": metadata }))?;
        scene
            .secrets(&scene.home)
            .create(&PostParams::default(), &secret)
            .await?;
        let own = |name: &str| {
            let rule = rule(&format!("{}-{name}", scene.tag));
            rule.secret(&scene.home, name).to_label("scene", &scene.tag)
        };
        own("large").create(&scene.client).await?;
        let object = format!("{namespace}/secret/large");
        let id = format!("ClusterReplication/{}-large", scene.tag);
        let answer = wait_state(&scene, &object, &id, "TooLarge").await?;
        says(&answer, "fix", "make the source smaller");

        scene.secret("late", &[("token", "one")]).await?;
        let namespaces = std::slice::from_ref(&namespace);
        let silent = Silent::over(&scene, namespaces, "Fail", 30).await?;
        own("late").create(&scene.client).await?;
        let object = format!("{namespace}/secret/late");
        let id = format!("ClusterReplication/{}-late", scene.tag);
        let answer = wait_state(&scene, &object, &id, "Timeout").await?;
        says(&answer, "message", "no answer within the deadline");
        says(&answer, "fix", "Mimeo retries");
        silent.end().await?;

        // The API server gives up before Mimeo does.
        scene.secret("failing", &[("token", "one")]).await?;
        let silent = Silent::over(&scene, namespaces, "Fail", 1).await?;
        own("failing").create(&scene.client).await?;
        let object = format!("{namespace}/secret/failing");
        let id = format!("ClusterReplication/{}-failing", scene.tag);
        let answer = wait_state(&scene, &object, &id, "ClusterUnreachable").await?;
        says(&answer, "fix", "kubectl get --raw '/readyz?verbose'");
        silent.end().await?;
        (
            scene.client.clone(),
            scene.tag.clone(),
            scene.home.clone(),
            namespace,
        )
    };
    setting.pair.stop_webhooks().await?;
    forget_the_hooks(&client).await?;
    let name = format!("{tag}-late");
    let set = json!({"annotations": {"set": {"note": "$(namespace.uid)"}}});
    let invalid = rule(&name)
        .secret(&home, "late")
        .to_label("scene", &tag)
        .set("transform", set);
    eventually(SOON, "the rule to be stored", || async {
        Ok(Some(invalid.replace(&client).await?))
    })
    .await?;
    let scene = Scene {
        setting: &setting,
        client,
        tag,
        home,
    };
    let object = format!("{namespace}/secret/late");
    let id = format!("ClusterReplication/{name}");
    let answer = wait_state(&scene, &object, &id, "InvalidSpec").await?;
    says(&answer, "message", "$(namespace.uid)");
    says(
        &answer,
        "fix",
        &format!("kubectl edit clusterreplication/{name}"),
    );
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
        &format!("kubectl -n {namespace} delete secret/{REGISTRY}"),
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
    let line = format!("{} | kubectl apply -f -", fix_command(&answer)?);
    shell(&scene.setting.control_plane, &line).await?;
    wait_state(&scene, &object, &id, "Synced").await?;

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
    says(&answer, "message", "mimeo.dev/aggregate-to-mimeo=true");
    says(&answer, "fix", "kubectl mimeo check");
    Ok(())
}
