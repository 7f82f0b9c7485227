//! Reviews that no API server has sent. A client that reaches the webhook's port can cause no write
//! and learns nothing.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, Client, ResourceExt, api::PostParams};
use mimeo_model::names::PENDING_LABEL;
use mimeo_tests::{
    ControlPlane, Pair, create_namespace, planted,
    scenario::{Scene, Setting, of, stranger, wait_for},
};
use serde_json::{Value, json};

use crate::stages::WEBHOOK as STAGE;

/// Returns a client inside the network, without a certificate.
fn anybody(setting: &Setting) -> Result<Client> {
    stranger(&setting.pair.url())
}

/// Posts a review with these fields in its request. Returns the answer.
async fn post(client: &Client, hook: &str, request: Value) -> Result<Value> {
    let mut review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "forged", "kind": {"group": "", "version": "v1", "kind": "Namespace"},
            "resource": {"group": "", "version": "v1", "resource": "namespaces"}, "operation": "CREATE",
            "userInfo": {"username": "mallory"},
        },
    });
    for (field, value) in request.as_object().context("fields of a request")? {
        review["request"][field] = value.clone();
    }
    let request =
        http::Request::post(format!("{hook}?timeout=5s")).body(review.to_string().into_bytes())?;
    let answer: Value = client.request(request).await?;
    Ok(answer["response"].clone())
}

fn pods() -> Value {
    json!({"group": "", "version": "v1", "resource": "pods"})
}

/// Writes a rule for all namespaces of the scene. Returns a namespace outside the scene.
async fn outside(scene: &Scene<'_>) -> Result<String> {
    scene.secret("registry", &[("password", "example")]).await?;
    scene
        .rule()
        .secret(&scene.home, "registry")
        .set("podGate", json!("Required"))
        .create(&scene.client)
        .await?;
    let outside = format!("{}-outside", scene.tag);
    create_namespace(&scene.client, &outside, &[]).await?;
    Ok(outside)
}

/// Waits for the copy in a new namespace of the rule. By then the webhook has carried out all
/// earlier work.
async fn all_is_done(scene: &Scene<'_>) -> Result<()> {
    let inside = scene.namespace().await?;
    scene.wait_secret(&inside, "registry", |_| true).await?;
    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    wait_for(namespaces, inside, |namespace| {
        !namespace.labels().contains_key(PENDING_LABEL)
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn another_object_is_taken_for_no_namespace() -> Result<()> {
    let scene = STAGE.scene("read").await?;
    let outside = outside(&scene).await?;
    all_is_done(&scene).await?;
    // The namespace would need these labels to get the copies.
    let labels = json!({"scene": scene.tag, PENDING_LABEL: "0123456789abcdef"});
    let map = json!({"metadata": {"name": outside, "labels": labels}});
    of::<ConfigMap>(&scene.client, &outside)
        .create(&PostParams::default(), &serde_json::from_value(map)?)
        .await?;
    let anybody = anybody(scene.setting)?;
    for namespace in [
        format!("{outside}/configmaps/{outside}"),
        format!("{outside}%2Fconfigmaps%2F{outside}"),
    ] {
        for _ in 0..2 {
            let forged = json!({"namespace": namespace, "name": "pod", "resource": pods()});
            let answer = post(&anybody, "/mutate/pods", forged).await?;
            assert_eq!(
                (&answer["uid"], &answer["status"]["code"]),
                (&json!("forged"), &json!(400)),
                "{answer}"
            );
        }
    }
    all_is_done(&scene).await?;
    let copy = scene.secrets(&outside).get_opt("registry").await?;
    assert!(copy.is_none(), "copied for a ConfigMap's labels");
    Ok(())
}

#[tokio::test]
async fn nothing_is_marked_that_no_api_server_asked_about() -> Result<()> {
    let scene = STAGE.scene("mark").await?;
    let outside = outside(&scene).await?;
    all_is_done(&scene).await?;
    let map = json!({"metadata": {"name": "settings"}});
    let maps: Api<ConfigMap> = of(&scene.client, &outside);
    maps.create(&PostParams::default(), &serde_json::from_value(map)?)
        .await?;
    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    let system = namespaces
        .get("kube-system")
        .await?
        .resource_version()
        .context("no resourceVersion")?;
    let own = namespaces
        .get(mimeo_tests::NAMESPACE)
        .await?
        .resource_version()
        .context("no resourceVersion")?;
    let anybody = anybody(scene.setting)?;
    let object = |name: &str, version: &str, labels: Value| json!({"metadata": {"name": name, "resourceVersion": version, "labels": labels}});
    let elsewhere = format!("{outside}/configmaps/settings");
    for (name, version, code) in [
        (elsewhere.as_str(), "", json!(400)),
        (&outside, "", json!(400)),
        (&outside, "0", json!(400)),
        ("kube-system", &system, Value::Null),
        (mimeo_tests::NAMESPACE, &own, Value::Null),
    ] {
        let forged = json!({
            "operation": "UPDATE", "name": name, "namespace": name,
            "object": object(name, version, json!({"scene": scene.tag})), "oldObject": object(name, version, json!({})),
        });
        let answer = post(&anybody, "/mutate/namespaces", forged).await?;
        assert_eq!(answer["status"]["code"], code, "{name}: {answer}");
    }
    let found = maps.get("settings").await?;
    assert!(
        !found.labels().contains_key(PENDING_LABEL),
        "{:?}",
        found.labels()
    );
    for name in [outside.as_str(), "kube-system", mimeo_tests::NAMESPACE] {
        let found = namespaces.get(name).await?;
        assert!(
            !found.labels().contains_key(PENDING_LABEL),
            "{name}: {:?}",
            found.labels()
        );
    }
    Ok(())
}

#[tokio::test]
async fn who_shows_no_certificate_of_the_api_servers_ca_asks_nothing() -> Result<()> {
    let control_plane = ControlPlane::builder()
        .shows_certificate(true)
        .start()
        .await?;
    // The file comes late, and until then the webhook is not ready.
    let folder = tempfile::tempdir()?;
    let ca = folder.path().join("ca.crt");
    let (from, to) = (control_plane.callers_ca(), ca.clone());
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        std::fs::copy(from, to)
    });
    let pair = Pair::builder()
        .reconciler(false)
        .webhook_args(["--client-ca-file", &ca.display().to_string()])
        .start(&control_plane)
        .await?;
    assert!(ca.exists(), "ready without a CA");
    let setting = Setting {
        control_plane,
        pair,
    };
    let scene = setting.scene("shown").await?;
    outside(&scene).await?;
    all_is_done(&scene).await?;
    let mut mallory = setting
        .control_plane
        .user("mallory", &[])?
        .config_for(0)
        .await?;
    mallory.cluster_url = setting.pair.url().parse()?;
    mallory.accept_invalid_certs = true;
    for client in [anybody(&setting)?, planted::client(mallory)?] {
        let error = post(&client, "/mutate/namespaces", json!({"name": "team"}))
            .await
            .expect_err("answered");
        let unheard = matches!(
            error.downcast_ref(),
            Some(kube::Error::Service(_) | kube::Error::HyperError(_))
        );
        assert!(unheard, "{error:?}");
    }
    Ok(())
}
