//! What others read, compared with files: reviews and webhook configurations with those in
//! `tests/golden`, definitions and the installed webhook configurations, and all in one file, with
//! those in `manifests`, the reference of the API with `docs/reference/api.md`.
//!
//! With `MIMEO_UPDATE_GOLDEN=1` (`make golden`) the files are rewritten instead.

#![allow(clippy::panic)] // It is how a test fails.

#[path = "golden/reference.rs"]
mod reference;

use std::{env, fs, path::PathBuf};

use mimeo_api::{FailurePolicy, TransformPolicy, crds};
use mimeo_model::{
    kind::{GroupVersionKind, Resource, Served},
    policy::Policy,
    registration::{Endpoint, Registration},
    review::{self, GroupVersionResource, Verdict},
};
use serde_json::{Value, json};

/// A file of the workspace.
fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name)
}

fn golden(name: &str) -> String {
    format!("shared/model/tests/golden/{name}")
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[track_caller]
fn matches_text(name: &str, text: &str) {
    if env::var_os("MIMEO_UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(path(name), text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    assert!(
        read(name) == text,
        "{name} is stale: run `make golden` and look at the difference"
    );
}

#[track_caller]
fn matches_file(name: &str, value: &Value) {
    matches_text(
        &golden(name),
        &(serde_json::to_string_pretty(value).expect("a Value is JSON") + "\n"),
    );
}

fn yaml(value: &Value) -> String {
    serde_yaml::to_string(value).expect("a Value can be written as YAML")
}

fn policy(spec: Value) -> Policy {
    let object: TransformPolicy = serde_json::from_value(spec).expect("the shape of a policy");
    Policy::parse(&object).expect("a good policy")
}

/// Adds a label and a finalizer, and gives Secrets a type.
fn devops() -> Policy {
    policy(json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "devops"},
        "spec": {
            "match": {
                "kinds": [{"apiVersion": "v1", "kind": "Secret"}],
                "objectSelector": {"matchLabels": {"origin": "devops"}},
                "excludeNamespaces": ["devops-system"],
            },
            "transform": {
                "type": "example.com/basic-auth", "labels": {"set": {"participant": "mimeo"}},
                "annotations": {"exclude": ["note-*"]}, "finalizers": ["example.com/credential"],
            },
        },
    }))
}

/// On two kinds, in chosen namespaces, failing open.
fn team() -> Policy {
    policy(json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "a.team"},
        "spec": {
            "match": {
                "kinds": [
                    {"apiVersion": "v1", "kind": "ConfigMap"}, {"apiVersion": "apps/v1", "kind": "Deployment"},
                    {"apiVersion": "example.com/v1", "kind": "NotServed"},
                ],
                "objectSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
                "namespaceSelector": {
                    "matchLabels": {"env": "prod"},
                    "matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["b", "a"]}],
                },
            },
            "transform": {"labels": {"set": {"a": "b"}}},
            "failurePolicy": "Ignore",
        },
    }))
}

fn served() -> Served {
    let kinds = [
        ("v1", "Secret", "secrets"),
        ("v1", "ConfigMap", "configmaps"),
        ("apps/v1", "Deployment", "deployments"),
    ];
    let serve = |(api_version, kind, plural): (&str, &str, &str)| {
        let gvk = GroupVersionKind::parse(api_version, kind).expect("a kind");
        let resource = Resource {
            gvk: gvk.clone(),
            plural: plural.into(),
            namespaced: true,
        };
        (gvk, resource)
    };
    kinds.into_iter().map(serve).collect()
}

fn registration() -> Registration {
    Registration {
        endpoint: Endpoint::Service {
            namespace: "mimeo-system".into(),
            name: "mimeo-webhook".into(),
            port: 443,
        },
        ca_bundle: Some("-----BEGIN CERTIFICATE-----\n".into()),
        own_namespace: "mimeo-system".into(),
        namespaces_failure_policy: FailurePolicy::Ignore,
        pod_gate_resources: vec![],
        mimeo_users: vec!["system:serviceaccount:mimeo-system:mimeo-webhook".into()],
    }
}

#[test]
fn reference_of_the_api() {
    matches_text("docs/reference/api.md", &reference::render(&crds()));
}

#[test]
fn webhook_configurations() {
    let registration = registration();
    matches_file("registration-mutating.json", &registration.mutating());
    matches_file("registration-validating.json", &registration.validating());
    matches_file(
        "registration-policies.json",
        &registration.policies(&[devops(), team()], &served()),
    );
}

#[test]
fn webhook_configurations_by_url_and_strict() {
    let registration = Registration {
        endpoint: Endpoint::Url("https://127.0.0.1:8443".into()),
        ca_bundle: None,
        namespaces_failure_policy: FailurePolicy::Fail,
        pod_gate_resources: vec![GroupVersionResource::new("batch", "v1", "jobs")],
        ..registration()
    };
    matches_file("registration-mutating-url.json", &registration.mutating());
}

/// The answer to a review in a file, with its patch in plain sight.
fn answer(body: &str, decide: impl FnOnce(&review::Request) -> Verdict) -> Value {
    let bytes = match review::decode(body.as_bytes(), review::Kept::Content) {
        Ok(request) => review::encode(&request.uid, &decide(&request)),
        Err(undecodable) => review::encode_unread(
            body.as_bytes(),
            &review::bad_request(undecodable.to_string()),
        ),
    };
    serde_json::from_slice(&bytes).expect("an answer is JSON")
}

#[test]
fn reviews() {
    let body = read(&golden("review-create.json"));
    matches_file(
        "review-create-patched.json",
        &answer(&body, |request| devops().rewrite(request)),
    );
    matches_file(
        "review-update-kept.json",
        &answer(&read(&golden("review-update.json")), |r| {
            devops().rewrite(r)
        }),
    );
    let cut_off = body
        .rsplit_once("\"object\"")
        .map_or("", |(before, _)| before);
    matches_file(
        "review-undecodable.json",
        &answer(cut_off, |_| Verdict::ALLOW),
    );
    let deny = |_: &review::Request| Verdict::Deny {
        code: 429,
        reason: "TooManyRequests",
        message: "copies are being written into namespace team; try again".into(),
    };
    matches_file("review-denied.json", &answer(&body, deny));
}

const HEADER: &str = "\
# Generated from shared/model (registration.rs); do not edit (make golden). The webhook writes the same, with its caBundle.
#
# namespaces.mimeo.dev fails open: without a webhook namespaces are created, and filled later. The component `strict` says Fail.
# pods.mimeo.dev fails closed: it is asked only about pods in namespaces whose copies are missing.
# rules.mimeo.dev fails closed: what nobody checked isn't stored.
";

#[test]
fn manifests() {
    installed_webhook_configurations();
    definitions();
    in_one_file();
}

/// They are installed with the rest so that what fails closed does so from the start, and what the
/// webhook writes over them is the same. The `caBundle` is the webhook's to add, and so are the
/// policies' entries.
fn installed_webhook_configurations() {
    let registration = Registration {
        ca_bundle: None,
        mimeo_users: vec![
            "system:serviceaccount:mimeo-system:mimeo-reconciler".into(),
            "system:serviceaccount:mimeo-system:mimeo-webhook".into(),
        ],
        ..registration()
    };
    let text = format!(
        "{HEADER}{}---\n{}",
        yaml(&registration.mutating()),
        yaml(&registration.validating())
    );
    matches_text("manifests/kustomize/webhooks.yaml", &text);
}

fn definitions() {
    for crd in crds() {
        let mut value = serde_json::to_value(&crd).expect("a CRD is plain data");
        whole_numbers(&mut value);
        let text = format!(
            "# Generated from shared/api; do not edit (make golden).\n{}",
            yaml(&value)
        );
        let plural = &crd.spec.names.plural;
        matches_text(&format!("manifests/crds/{plural}.yaml"), &text);
        // The chart can't reach beyond its own folder.
        matches_text(&format!("manifests/chart/files/crds/{plural}.yaml"), &text);
    }
}

/// What `manifests/kustomize` names, one after the other: the same for who has no kustomize.
fn in_one_file() {
    let mut text = String::from(
        "# Generated from manifests/kustomize; do not edit (make golden). Installs Mimeo: kubectl apply -f\n",
    );
    for file in resources("manifests/kustomize") {
        let document = read(&file);
        let lines: Vec<&str> = document
            .lines()
            .filter(|line| !line.starts_with("# Generated"))
            .collect();
        text.extend(["---\n", &lines.join("\n"), "\n"]);
    }
    matches_text("manifests/install.yaml", &text);
}

/// The files of a kustomization, those of folders that it names included.
fn resources(folder: &str) -> Vec<String> {
    let kustomization: Value = serde_yaml::from_str(&read(&format!("{folder}/kustomization.yaml")))
        .expect("a kustomization is YAML");
    let named: Vec<String> =
        serde_json::from_value(kustomization["resources"].clone()).expect("a list of names");
    let files = named.into_iter().map(|name| format!("{folder}/{name}"));
    files
        .flat_map(|name| {
            if path(&name).is_dir() {
                resources(&name)
            } else {
                vec![name]
            }
        })
        .collect()
}

/// Writes 60 instead of 60.0: limits are floats in the Rust type of a schema.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        Value::Number(number) => {
            if let Some(whole) = number
                .as_f64()
                .and_then(|float| format!("{float}").parse::<i64>().ok())
            {
                *value = whole.into();
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
