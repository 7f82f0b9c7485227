//! The webhook's certificates are replaced while users work.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use mimeo_node_tests::Mimeo;
use mimeo_tests::{
    NAMESPACE,
    scenario::{SOON, of},
};
use serde_json::{Value, json};

use crate::people::People;

const AT_ONCE: usize = 2;
/// Much shorter than the life of any certificate.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The number of CAs. With this many, one of them has replaced another without any help.
const GENERATIONS: usize = 3;

#[tokio::test]
async fn authorities_and_certificates_are_replaced_under_load_and_nobody_notices() -> Result<()> {
    // With this policy, the API server refuses a namespace if it cannot send the review.
    let lifetimes = [
        ("CA_VALIDITY", "45s"),
        ("CERTIFICATE_VALIDITY", "20s"),
        ("CA_OVERLAP", "8s"),
    ];
    let env = lifetimes.map(|(name, value)| {
        let variable = json!({"name": format!("MIMEO_{name}"), "value": value});
        json!({"op": "add", "path": "/spec/template/spec/containers/0/env/-", "value": variable})
    });
    let mimeo = Mimeo::kustomized(&json!({
        "components": ["strict"],
        "patches": [{
            "target": {"kind": "Deployment", "name": "mimeo-webhook"},
            "patch": Value::from(env.to_vec()).to_string(),
        }],
    }))
    .await?;
    let people = People::settle(&mimeo.client, "rotated").await?;
    let rotated = async {
        let (mut authorities, mut certificates) = (BTreeSet::new(), BTreeSet::new());
        let secrets = of::<Secret>(&mimeo.client, NAMESPACE);
        tokio::time::timeout(2 * SOON, async {
            while authorities.len() < GENERATIONS {
                let data = secrets
                    .get("mimeo-webhook-tls")
                    .await?
                    .data
                    .context("an empty Secret")?;
                let text = |key: &str| {
                    data.get(key)
                        .map(|ByteString(bytes)| bytes.clone())
                        .context("a key is missing")
                };
                authorities.insert(text("ca.crt")?);
                certificates.insert(text("tls.crt")?);
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            anyhow::Ok(certificates.len())
        })
        .await
        .context("too few authorities")?
    };
    let (names, certificates) = people.move_in_during(0, AT_ONCE, rotated).await?;
    eprintln!(
        "{} namespaces, {GENERATIONS} authorities, {certificates} certificates",
        names.len()
    );
    assert!(certificates >= GENERATIONS);
    people.have(&names, "first").await?;
    people.leave().await?;
    // The next test uses the ordinary lifetimes. It must not find the certificates of this test.
    mimeo.delete().await
}
