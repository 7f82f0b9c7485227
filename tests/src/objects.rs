//! The few objects that every scenario starts with.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};

use crate::scenario::SOON;
use crate::traffic::patiently;
use crate::wait::eventually;

/// A unique name: the prefix, a word of this process, and a counter. All names with one prefix have
/// the same length, because API servers truncate messages by length.
pub fn unique(prefix: &str) -> String {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one("names") & 0xffff);
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        "{prefix}-{:04x}-{:05}",
        *PROCESS,
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Creates a namespace with these labels and returns it as stored. Retries if the webhook asks for
/// that ([`patiently`]).
pub async fn create_namespace(
    client: &Client,
    name: &str,
    labels: &[(&str, &str)],
) -> Result<Namespace> {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let (namespaces, params) = (Api::all(client.clone()), PostParams::default());
    let (created, _) = patiently(|| namespaces.create(&params, &namespace))
        .await
        .with_context(|| format!("failed to create namespace {name}"))?;
    Ok(created)
}

/// Creates an Opaque Secret with these keys and returns it as stored.
pub async fn create_secret(
    client: &Client,
    namespace: &str,
    name: &str,
    data: &[(&str, &str)],
) -> Result<Secret> {
    let data: BTreeMap<_, _> = data
        .iter()
        .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
        .collect();
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..Secret::default()
    };
    let created = Api::namespaced(client.clone(), namespace)
        .create(&PostParams::default(), &secret)
        .await;
    created.with_context(|| format!("failed to create secret {namespace}/{name}"))
}

/// Applies a CRD and waits until it is Established and served.
///
/// This holds for the API server of this client. Other API servers follow some milliseconds later;
/// use `eventually` for them.
pub async fn install_crd(client: &Client, crd: &CustomResourceDefinition) -> Result<()> {
    let name = crd
        .metadata
        .name
        .as_deref()
        .context("the CRD has no name")?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply("mimeo-tests").force();
    crds.patch(name, &params, &Patch::Apply(crd))
        .await
        .with_context(|| format!("failed to apply CRD {name}"))?;
    eventually(SOON, format!("CRD {name}"), || async {
        let status = crds.get(name).await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        if !conditions
            .iter()
            .any(|condition| condition.type_ == "Established" && condition.status == "True")
        {
            bail!("its conditions are {conditions:?}");
        }
        for version in crd.spec.versions.iter().filter(|version| version.served) {
            let kind = GroupVersionKind::gvk(&crd.spec.group, &version.name, &crd.spec.names.kind);
            let resource = ApiResource::from_gvk_with_plural(&kind, &crd.spec.names.plural);
            let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            objects.list(&ListParams::default().limit(1)).await?;
        }
        Ok(Some(()))
    })
    .await
}
