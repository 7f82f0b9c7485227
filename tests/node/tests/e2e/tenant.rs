//! Somebody with an account and no rights, inside the cluster, tries all of Mimeo's doors for a Secret.

use anyhow::{Context, Result, bail, ensure};
use http::{Request, header::CONTENT_TYPE};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Pod, Secret},
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams},
    client::Body,
};
use mimeo_node_tests::{Mimeo, PROGRAMS, Program};
use mimeo_tests::{
    NAMESPACE,
    scenario::{any, apply, of},
    traffic::create_account,
};
use serde_json::{Value, json};

use crate::people::{PULL_SECRET, People};

/// What nobody else may see.
const SECRET: &str = "correct-horse-battery-staple";
/// Those of the operations port that there are, with what a tenant is answered, and some that one would try.
const PAGES: [(&str, &[Program], u16); 16] = [
    ("/healthz", &PROGRAMS, 200),
    ("/readyz", &PROGRAMS, 200),
    ("/metrics", &PROGRAMS, 200),
    // Without tokens only for who is in the pod.
    ("/debug/state", &PROGRAMS, 403),
    ("/debug/log-level", &PROGRAMS, 403),
    // The page is for everybody, what it shows is not.
    ("/ui/", &[Program::Reconciler], 200),
    ("/ui/page.js", &[Program::Reconciler], 200),
    ("/ui/stream", &[Program::Reconciler], 403),
    ("/ui/copies", &[Program::Reconciler], 403),
    ("/", &[], 0),
    ("/livez", &[], 0),
    ("/debug", &[], 0),
    ("/debug/pprof/", &[], 0),
    ("/api", &[], 0),
    ("/events", &[], 0),
    ("/secrets", &[], 0),
];
const HOOKS: [&str; 7] = [
    "/mutate/namespaces",
    "/mutate/barrier",
    "/mutate/objects/doors",
    "/mutate/rules",
    "/validate/rules",
    "/validate/copies",
    "/validate/sources",
];

#[tokio::test]
async fn a_tenant_reads_no_secret_through_any_of_its_doors() -> Result<()> {
    // All doors that there are.
    let switches = [("MIMEO_UI", "mimeo-reconciler"), ("MIMEO_DEBUG_ENDPOINTS", "mimeo-(webhook|reconciler)")];
    let patches = switches.map(|(name, deployments)| {
        let patch = json!([{"op": "add", "path": "/spec/template/spec/containers/0/env/-", "value": {"name": name, "value": "true"}}]);
        json!({"target": {"kind": "Deployment", "name": deployments}, "patch": patch.to_string()})
    });
    let mimeo = Mimeo::kustomized(&json!({"patches": patches})).await?;
    let people = People::settle(&mimeo.client, "doors").await?;
    let doors = any(&mimeo.client, "mimeo.dev/v1alpha1", "TransformPolicy", None)?;
    apply(
        &mimeo.client,
        &json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "doors"},
            "spec": {
                "match": {"kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"doors": &people.tag}}},
                "transform": {"labels": {"set": {"seen": "yes"}}},
            },
        }),
    )
    .await?;
    people.rotate(SECRET).await?;
    let filled = people.move_in().await?;
    people.have(std::slice::from_ref(&filled), SECRET).await?;

    // A namespace of theirs, which the rule doesn't select.
    let home = format!("{}-tenant", people.tag);
    mimeo_tests::create_namespace(&mimeo.client, &home, &[]).await?;
    create_account(&mimeo.client, &home).await?;
    let token = mimeo.node.kubectl(["-n", &home, "create", "token", "default"]).await?.trim().to_owned();
    let tenant = mimeo.node.client_with(&token).await?;
    for namespace in [people.home(), &filled, NAMESPACE] {
        let refused = of::<Secret>(&tenant, namespace).list(&ListParams::default()).await;
        ensure!(
            matches!(refused, Err(kube::Error::Api(status)) if status.code == 403),
            "secrets of {namespace} are open"
        );
    }
    ensure!(Api::<Secret>::all(tenant).list(&ListParams::default()).await.is_err(), "all secrets are open");

    for program in PROGRAMS {
        for pod in mimeo.pods(program).await? {
            let address = address(&pod)?;
            let ops = door(&format!("http://{address}:8080"), &token)?;
            for (page, programs, expected) in PAGES {
                let status = nothing_secret(&ops, Request::get(page).body(Body::empty())?).await?;
                let expected = if programs.contains(&program) { expected } else { 404 };
                ensure!(status == expected, "{page} of {} answers {status}", program.name());
            }
            if program == Program::Webhook {
                let hooks = door(&format!("https://{address}:8443"), &token)?;
                for hook in HOOKS {
                    for review in [pod_review(&filled), secret_review(people.home()), secret_review(&filled)] {
                        let request = Request::post(hook).header(CONTENT_TYPE, "application/json");
                        let request = request.body(review.to_string().into_bytes().into())?;
                        let status = nothing_secret(&hooks, request).await?;
                        // Answered in earnest: had they not been asked, nothing would have been shown.
                        ensure!(status == 200, "{hook} answers {status}");
                    }
                }
            }
        }
    }
    doors.delete("doors", &DeleteParams::default()).await?;
    people.leave().await
}

fn address(pod: &Pod) -> Result<&str> {
    pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()).context("a pod without an address")
}

fn door(url: &str, token: &str) -> Result<Client> {
    let mut config = Config::new(url.parse()?);
    config.accept_invalid_certs = true;
    config.default_retry = false;
    config.auth_info = serde_json::from_value(json!({"token": token}))?;
    Client::try_from(config).context("failed to make a client")
}

/// The answer's status; an error if the answer has the Secret's data.
async fn nothing_secret(door: &Client, request: Request<Body>) -> Result<u16> {
    let what = format!("{} {}", request.method(), request.uri());
    let answer = door.send(request).await.with_context(|| format!("no answer to {what}"))?;
    let status = answer.status();
    let body = String::from_utf8_lossy(&answer.into_body().collect_bytes().await?).into_owned();
    let base64 = json!(ByteString(SECRET.as_bytes().to_vec()));
    for text in [SECRET, base64.as_str().unwrap_or_default()] {
        if body.contains(text) {
            bail!("{what} tells it");
        }
    }
    Ok(status.as_u16())
}

fn review(resource: &str, kind: &str, namespace: &str, object: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1", "operation": "CREATE", "namespace": namespace, "name": object["metadata"]["name"],
        "kind": {"group": "", "version": "v1", "kind": kind}, "requestKind": {"group": "", "version": "v1", "kind": kind},
        "resource": {"group": "", "version": "v1", "resource": resource},
        "requestResource": {"group": "", "version": "v1", "resource": resource},
        "userInfo": {"username": "system:serviceaccount:mimeo-system:mimeo-reconciler"}, "object": object, "oldObject": null,
        "dryRun": false, "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }})
}

fn pod_review(namespace: &str) -> Value {
    review(
        "pods",
        "Pod",
        namespace,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": namespace}}),
    )
}

fn secret_review(namespace: &str) -> Value {
    let metadata = json!({"name": PULL_SECRET, "namespace": namespace});
    review("secrets", "Secret", namespace, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata}))
}
