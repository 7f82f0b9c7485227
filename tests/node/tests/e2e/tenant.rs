//! Somebody with an account and no rights, inside the cluster, tries all of Mimeo's doors for a Secret.

use anyhow::{Context, Result, bail, ensure};
use http::{Request, header::CONTENT_TYPE};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Pod, Secret},
};
use kube::{Api, Client, Config, api::ListParams, client::Body};
use mimeo_node_tests::{Mimeo, PROGRAMS, Program};
use mimeo_tests::{NAMESPACE, scenario::of, traffic::create_account};
use serde_json::{Value, json};

use crate::people::{PULL_SECRET, People};

/// What nobody else may see.
const SECRET: &str = "correct-horse-battery-staple";
/// Those that there are and those that one would try.
const PAGES: [&str; 12] = [
    "/",
    "/metrics",
    "/healthz",
    "/readyz",
    "/livez",
    "/debug",
    "/debug/pprof/",
    "/debug/state",
    "/ui",
    "/api",
    "/events",
    "/secrets",
];
const HOOKS: [&str; 6] = [
    "/mutate/namespaces",
    "/mutate/barrier",
    "/mutate/objects",
    "/mutate/rules",
    "/validate/rules",
    "/validate/copies",
];

#[tokio::test]
async fn a_tenant_reads_no_secret_through_any_of_its_doors() -> Result<()> {
    let mimeo = Mimeo::by_kustomize().await?;
    let people = People::settle(&mimeo.client, "doors").await?;
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

    let mut answers = 0;
    for program in PROGRAMS {
        for pod in mimeo.pods(program).await? {
            let address = address(&pod)?;
            let ops = door(&format!("http://{address}:8080"), &token)?;
            for page in PAGES {
                answers += nothing_secret(&ops, Request::get(page).body(Body::empty())?).await?;
            }
            if program == Program::Webhook {
                let hooks = door(&format!("https://{address}:8443"), &token)?;
                for hook in HOOKS {
                    for review in [pod_review(&filled), secret_review(people.home()), secret_review(&filled)] {
                        let request = Request::post(hook).header(CONTENT_TYPE, "application/json");
                        answers +=
                            nothing_secret(&hooks, request.body(review.to_string().into_bytes().into())?).await?;
                    }
                }
            }
        }
    }
    // Had they not been asked, nothing would have been shown.
    ensure!(answers > 4 * 3, "only {answers} answers");
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

/// Whether it was answered in earnest, be it whatever; an error if the answer has the Secret's data.
async fn nothing_secret(door: &Client, request: Request<Body>) -> Result<usize> {
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
    Ok(usize::from(status.is_success()))
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
