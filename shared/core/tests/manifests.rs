//! The webhook configurations in `manifests/kustomize` against what the webhook registers in a cluster.
//!
//! They are installed with the rest so that what fails closed does so from the start, and what the webhook writes over them
//! is the same. The `caBundle` is the webhook's to add, and so are the policies' entries.
//! `MIMEO_UPDATE_GOLDEN=1` rewrites the file.

use std::{env, fs, path::PathBuf};

use mimeo_api::FailurePolicy;
use mimeo_core::registration::{Endpoint, Registration, default_barrier_resources};

const HEADER: &str = "\
# Generated from shared/core (registration.rs); do not edit (make golden). The webhook writes the same, with its caBundle.
#
# namespaces.mimeo.dev fails open: without a webhook namespaces are created, and filled later. The component `strict` says Fail.
# barrier.mimeo.dev fails closed: it is asked only about pods in namespaces whose copies are missing.
# rules.mimeo.dev fails closed: what nobody checked isn't stored.
";

#[test]
fn webhook_configurations_are_current() {
    let registration = Registration {
        endpoint: Endpoint::Service { namespace: "mimeo-system".into(), name: "mimeo-webhook".into(), port: 443 },
        ca_bundle: None,
        own_namespace: "mimeo-system".into(),
        namespaces_failure_policy: FailurePolicy::Ignore,
        barrier_resources: default_barrier_resources(),
        mimeo_users: vec![
            "system:serviceaccount:mimeo-system:mimeo-reconciler".into(),
            "system:serviceaccount:mimeo-system:mimeo-webhook".into(),
        ],
        owner: None,
    };
    let yaml = |value| serde_yaml::to_string(&value).expect("a configuration can be written as YAML");
    let text = format!("{HEADER}{}---\n{}", yaml(registration.mutating()), yaml(registration.validating()));
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../manifests/kustomize/webhooks.yaml");
    if env::var_os("MIMEO_UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(&path, &text).expect("manifests/kustomize can be written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "{} is stale: run `make golden`", path.display());
}
